//! Bounds from computation alone, for the entries of a cell.
//!
//! The fastest stages that there may be work for all micro-batches, and one micro-batch passes through all layers and back. The work of
//! a micro-batch, W seconds on all stages together, does not fill the step: before the first micro-batch has come down and
//! after the last has gone up, stages wait. How much of the step they do at least, [`Shape::work_within`] says for each schedule.
//! And no step ends before the stage with the head, which has a layer beside it, has worked on all micro-batches.

use super::bound::Shape;
use super::cell::Cell;
use super::ends;
use super::passage::Passage;
use super::space::{self, offered, Stages};
use crate::spec::cluster::MOST_KINDS;
use crate::spec::problem::{Problem, Schedule};
use crate::units::Time;

/// What bounds the entries of a cell that differ in their micro-batch alone.
pub struct Swiftest {
    /// Layers a second that all stages pass together at most.
    speed: f64,
    /// Layers' worth of work of a micro-batch.
    layers: f64,
    /// The fastest of each time on any kind.
    least: Passage,
    /// Seconds of a micro-batch on the stage with the head.
    headed: f64,
}

impl Swiftest {
    /// From what each kind takes; nothing where the limits give too few stages, so that every composition will be cut.
    pub fn new(
        problem: &Problem,
        cell: &Cell,
        passage: impl Fn(usize) -> Option<Passage>,
    ) -> Option<Swiftest> {
        Swiftest::among(problem, cell, &offered(problem, cell), passage)
    }

    /// The same of the stages that are offered.
    pub fn among(
        problem: &Problem,
        cell: &Cell,
        offered: &[Stages],
        passage: impl Fn(usize) -> Option<Passage>,
    ) -> Option<Swiftest> {
        let mut kinds: [Kind; MOST_KINDS] = Default::default();
        let mut used = 0;
        let mut least: Option<Passage> = None;
        let mut rest = [f64::INFINITY; 3];
        let mut headed = f64::INFINITY;
        for &Stages { kind, most } in offered.iter().filter(|s| s.most > 0) {
            let Some(of) = passage(kind) else { continue };
            kinds[used] = Kind { speed: 1.0 / of.layer, most, tp: cell.tp_of(kind) as f64 };
            used += 1;
            rest = [0, 1, 2].map(|n| f64::min(rest[n], of.rest[n] / of.layer));
            headed = headed.min(of.lightest + of.rest[2]);
            least = Some(least.map_or(of, |l| Passage {
                layer: l.layer.min(of.layer),
                forward: l.forward.min(of.forward),
                through: l.through.min(of.through),
                ..l
            }));
        }
        let kinds = &mut kinds[..used];
        let speed = match cell.each {
            None => fastest(kinds, cell.pp, 0, 0.0),
            Some(_) => fastest_of_ranks(kinds, cell, problem.cluster.devices),
        }?;
        let least = least?;
        let layers = least.frequent + rest.iter().sum::<f64>();
        Some(Swiftest { speed, layers, least, headed })
    }

    /// A bound for every plan of the cell with micro-batches of `mbs` sequences, which take `times` what was told.
    pub fn bound(
        &self,
        problem: &Problem,
        cell: &Cell,
        (mbs, times): (u64, f64),
        schedules: &[(Schedule, u64)],
    ) -> Time {
        let legal = |&schedule: &(Schedule, u64)| {
            space::cut_everywhere(problem, *cell, mbs, schedule).is_none()
        };
        let fewest = problem.workload.global_batch_size / (cell.dp * mbs);
        self.bound_where(problem, cell, (mbs, times), fewest, schedules, legal)
    }

    /// The same with the schedules that are `legal`, and for steps of `fewest` micro-batches and more, in proportion to these.
    pub fn bound_where(
        &self,
        problem: &Problem,
        cell: &Cell,
        (mbs, times): (u64, f64),
        fewest: u64,
        schedules: &[(Schedule, u64)],
        legal: impl Fn(&(Schedule, u64)) -> bool,
    ) -> Time {
        let micro_batches = problem.workload.global_batch_size / (cell.dp * mbs);
        let m = micro_batches as f64;
        let work = self.layers / self.speed * m;
        let through = self.least.frequent * self.least.through;
        let headed = self.headed * m;
        let waiting = schedules
            .iter()
            .filter(|schedule| legal(schedule))
            .map(|&schedule| self.waiting(problem, schedule, cell.pp, (micro_batches, fewest)))
            .fold(f64::INFINITY, f64::min);
        let waiting = if waiting.is_finite() { waiting } else { 0.0 };
        Time::from_seconds(work.max(through).max(headed).max(waiting) * times * (1.0 - 1e-9))
    }

    /// Seconds of a step in which stages wait for the first and the last micro-batch, all on the fastest kind.
    fn waiting(
        &self,
        problem: &Problem,
        (schedule, vpp): (Schedule, u64),
        pp: u64,
        (micro_batches, fewest): (u64, u64),
    ) -> f64 {
        let layers = u64::from(problem.model.layers);
        let others = layers as f64 - self.least.frequent;
        match schedule {
            // Stages are equal. A micro-batch reaches the last through a chunk of each stage before, and of all stages' frequent
            // layers each holds an equal number but for the others.
            Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV => {
                let own = ((layers / pp) as f64 - others).max(0.0);
                let ahead = if others > 0.0 { 0.0 } else { self.least.forward / vpp as f64 };
                own * ((pp - 1) as f64 * ahead + micro_batches as f64 * self.least.layer)
            }
            Schedule::OneFOneB | Schedule::GPipe | Schedule::Interleaved => {
                let shape = Shape { schedule, pp, vpp, micro_batches };
                let (unit, steady) = (self.least.layer, fewest > pp);
                let lacking = match schedule {
                    Schedule::Interleaved => {
                        shape.lacking(others as u64, ends::leads(problem, schedule))
                    }
                    _ => 0.0,
                };
                let waiting = |uneven| self.layers * unit / shape.work_within(uneven, steady);
                waiting(true).max(waiting(false) - lacking * unit)
            }
        }
    }
}

/// The schedules of a pipeline of `pp` stages among which one waits least: of interleaved ones that with most chunks.
pub fn swiftest_schedules(problem: &Problem, pp: u64) -> Vec<(Schedule, u64)> {
    let all = space::schedules(problem, pp);
    let allowed = |s: &&(Schedule, u64)| {
        space::allows(&problem.options.schedules, &s.0) && space::allows(&problem.options.vpp, &s.1)
    };
    let interleaved = |s: &&(Schedule, u64)| s.0 == Schedule::Interleaved;
    let most = all.iter().filter(allowed).filter(interleaved).max_by_key(|s| s.1);
    let others = all.iter().filter(allowed).filter(|s| !interleaved(s));
    others.chain(most).copied().collect()
}

/// What a kind of chip can do for a pipeline.
#[derive(Clone, Copy, Default)]
struct Kind {
    /// Layers a second of one stage.
    speed: f64,
    /// Stages at most.
    most: u64,
    tp: f64,
}

/// Most layers a second of `pp` stages of which every kind has at least `each`, where a rank costs `price` layers a second.
fn fastest(kinds: &mut [Kind], pp: u64, each: u64, price: f64) -> Option<f64> {
    let worth = |kind: &Kind| kind.speed - price * kind.tp;
    kinds.sort_unstable_by(|a, b| worth(b).total_cmp(&worth(a)));
    let mut left = pp.checked_sub(each * kinds.len() as u64)?;
    let mut speed = 0.0;
    for kind in &*kinds {
        let n = kind.most.checked_sub(each)?.min(left);
        speed += (each + n) as f64 * worth(kind);
        left -= n;
    }
    (left == 0).then_some(speed)
}

/// The same where the stages of all kinds must have the ranks of the cell's devices: the least over the prices of a rank at which two
/// kinds are worth the same, which is the most of any fractions of stages (duality of linear programmes).
fn fastest_of_ranks(kinds: &mut [Kind], cell: &Cell, devices: u64) -> Option<f64> {
    let ranks = (devices / (cell.dp * cell.cp)) as f64;
    let known = kinds.to_vec();
    let pairs = known.iter().enumerate().flat_map(|(i, a)| known[..i].iter().map(move |b| (a, b)));
    let mut least = f64::INFINITY;
    for (a, b) in pairs.filter(|(a, b)| a.tp != b.tp) {
        let price = (a.speed - b.speed) / (a.tp - b.tp);
        least = least.min(fastest(kinds, cell.pp, 1, price)? + price * ranks);
    }
    Some(least)
}
