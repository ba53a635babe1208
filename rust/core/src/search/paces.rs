//! What the stages of a class take at least, and those before each of them.

use super::bound::{Shape, Work};
use super::holds::{Choice, NONE};
use super::pace::{Ahead, Pace, Passed, Slope};
use super::stages::Solver;
use crate::estimate::stage::Place;
use crate::plan::Recompute;
use crate::spec::problem::Schedule;
use crate::units::Time;

impl Solver<'_, '_, '_> {
    /// What every stage takes at least.
    pub fn pace_stages(&mut self) {
        let kinds = self.class.kinds;
        let pp = kinds.len();
        let mut paces: Vec<Pace> = Vec::with_capacity(pp);
        for i in 0..pp {
            // Stages between two of their own kind are alike but for memory.
            let alike = i >= 2 && i + 2 < pp && kinds[i - 2..=i + 1].iter().all(|&k| k == kinds[i]);
            paces.push(if alike { paces[i - 1] } else { self.pace(i) });
        }
        self.paces = paces;
        self.passed = (self.shape.vpp == 1).then(|| self.pass_layers());
    }

    /// What layers take at least where they lie, on any kind of the class.
    fn pass_layers(&self) -> Passed {
        let (kinds, holds) = (self.class.kinds, self.class.holds);
        let Shape { schedule, pp, micro_batches: m, .. } = self.shape;
        let tables = || kinds.chunk_by(|a, b| a == b).map(|run| holds.tables.kind(run[0]));
        // Zero-bubble stages pass a gradient on before that of the weights is there.
        let split = matches!(schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
        let layer = |index: u32| {
            let passes = tables().map(|table| table.layer_passes(index));
            let (forward, backward) = passes.fold((Time::MAX, Time::MAX), |least, chunk| {
                let back = if split { chunk.input_gradient } else { chunk.backward() };
                (least.0.min(chunk.forward), least.1.min(back))
            });
            (forward + backward, rounds(schedule, (pp, m), forward, backward))
        };
        let layers: Vec<(Time, Time)> = (0..self.layers).map(layer).collect();
        let alike = tables().count() == 1 && !holds.problem.options.recompute_per_stage;
        let again = if alike { holds.lightest(kinds[0]).again() } else { [Time::ZERO; 2] };
        Passed::new(&layers, m - 1, again)
    }

    fn pace(&self, i: usize) -> Pace {
        let table = self.class.holds.lightest(self.class.kinds[i]);
        let work = |layers: u32, crosses: bool| {
            let place = self.alone(i, layers, NONE);
            let optimizer_offload = place.optimizer_offload && crosses;
            self.work_at(table, &Place { optimizer_offload, ..place })
        };
        let pair = |crosses| {
            let one = work(1, crosses);
            (one, if self.layers > 1 { work(2, crosses) } else { one })
        };
        let busy = |(one, two): &(Work, Work)| {
            Slope::through(one.forward + one.backward, two.forward + two.backward)
        };
        let down_and_up = |(one, two): &(Work, Work)| {
            let time = |w: &Work| w.first_forward + w.first_backward;
            Slope::through(time(one), time(two))
        };
        let (whole, bare) = (pair(true), pair(false));
        let Shape { schedule, pp, micro_batches: m, .. } = self.shape;
        let (one, two) = &whole;
        let (forward, backward) = (two.forward - one.forward, two.backward - one.backward);
        let taken = u64::from(self.row.ends.of_stage(i, pp));
        let again = table.again();
        Pace {
            busy: busy(&whole),
            bare: busy(&bare),
            down_and_up: down_and_up(&whole),
            ends: down_and_up(&bare).base,
            rounds: rounds(schedule, (pp, m), forward, backward.min(one.backward)),
            again: again.map(|time| time * self.shape.vpp),
            taken: again.map(|time| time * taken),
        }
    }

    /// Most layers of a chunk that stage `i` passes within the limit, memory apart.
    pub fn time_cap(&self, i: usize, recompute: Recompute) -> u32 {
        let room = match self.limit {
            Time::MAX => Time::MAX,
            Time(limit) => Time(limit / self.shape.micro_batches),
        };
        self.paces[i].most(room, recompute, self.class.holds.all(self.row, i))
    }

    /// What the stages before `i` add at least to a path, with `first` layers: by the lines over their layers, and by where these
    /// lie.
    pub fn ahead(&self, lines: &Ahead, i: usize, first: u32, choice: Choice) -> (Time, Time) {
        let on_lines = (lines.through(first), lines.rounds(first));
        let Some(passed) = &self.passed else { return on_lines };
        let (through, rounds) = passed.least(first, i as u32, choice.recompute);
        (on_lines.0.max(lines.ends + through), on_lines.1.max(rounds))
    }
}

/// What a layer adds to a path that waits for the first micro-batch to come back and then does the others: the terms of
/// [`super::bound::Tail`] that pass through the stages behind.
fn rounds(schedule: Schedule, (pp, m): (u64, u64), forward: Time, backward: Time) -> Time {
    match schedule {
        Schedule::OneFOneB => backward * (m - 1) + forward * (m - pp.min(m)),
        Schedule::GPipe => (forward + backward) * (m - 1),
        Schedule::Interleaved | Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV => Time::ZERO,
    }
}
