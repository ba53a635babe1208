//! When a step is known to end no earlier than a time, before all of its passes have run.
//!
//! What a stage still has to do of its own follows the pass that it ended last, and its last backward pass is passed on to the stages
//! before it, each of which has one more. The delays of a pipeline that is filled badly show in its first rounds.

use super::order::Order;
use super::{makespan, order, unless_late, Run, Sends, StageClock};
use crate::spec::problem::Schedule;
use crate::units::Time;

/// The time from the first pass to the end of the last stage's tail if it is less than `ceiling`: mostly quicker to tell where it is
/// not.
pub fn makespan_below(
    schedule: Schedule,
    sends: Sends,
    stages: &[StageClock],
    micro_batches: u64,
    ceiling: Time,
) -> Option<Time> {
    let closed = schedule == Schedule::OneFOneB && sends == Sends::Blocking;
    let order = order(schedule, stages, micro_batches);
    let late = if closed { None } else { Late::new(order, sends, stages, ceiling) };
    let time = match late {
        Some(late) => unless_late(&order, sends, stages, |run, stage| late.is(run, stage))?,
        None => makespan(schedule, sends, stages, micro_batches),
    };
    (time < ceiling).then_some(time)
}

/// What each stage has to do in a step that should end before a time.
struct Late {
    order: Order,
    stages: Vec<Own>,
    ceiling: Time,
}

/// What the passes of a stage take, each with its send where that blocks, and what follows the last of them.
struct Own {
    passes: Time,
    after: Time,
}

impl Late {
    /// For a step of all micro-batches of `order`; nothing where the schedule does not run forward and backward passes in turn.
    pub fn new(order: Order, sends: Sends, stages: &[StageClock], ceiling: Time) -> Option<Late> {
        match order.schedule {
            Schedule::OneFOneB | Schedule::Interleaved => {}
            Schedule::GPipe | Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV => return None,
        }
        let blocking = |send: Time, to_nobody: bool| match sends {
            Sends::Blocking if !to_nobody => send,
            Sends::Blocking | Sends::Overlapped => Time::ZERO,
        };
        let mut all: Vec<Own> = Vec::with_capacity(stages.len());
        for (i, stage) in stages.iter().enumerate() {
            let chunks = stage.chunks.iter().enumerate().map(|(c, chunk)| {
                let model_ends = i + 1 == stages.len() && c + 1 == stage.chunks.len();
                let forward = chunk.forward + blocking(stage.send_forward, model_ends);
                forward + chunk.backward() + blocking(stage.send_backward, i == 0 && c == 0)
            });
            // The stage before runs its last backward pass when this one's has arrived.
            let passed_on = i.checked_sub(1).map_or(Time::ZERO, |before| {
                let last = stages[before].chunks[0].backward();
                let sent = blocking(stages[before].send_backward, before == 0);
                let travels = match sends {
                    Sends::Blocking => Time::ZERO,
                    Sends::Overlapped => stage.send_backward,
                };
                travels + last + sent + all[before].after
            });
            let passes = chunks.sum::<Time>() * order.m;
            all.push(Own { passes, after: stage.tail.max(passed_on) });
        }
        Some(Late { order, stages: all, ceiling })
    }

    /// Whether the step ends no earlier than its ceiling, by what `stage` has run and when. A run may be of fewer micro-batches:
    /// nothing is said of passes whose order that changes.
    fn is(&self, run: &Run<'_>, stage: usize) -> bool {
        let (order, n) = (&run.order, run.next[stage]);
        let warm = self.order.warm(stage as u64);
        let unchanged = warm + 2 * (order.m * order.vpp).saturating_sub(warm);
        let own = &self.stages[stage];
        (order.m == self.order.m || n <= unchanged)
            && run.free[stage] + (own.passes - run.done[stage]) + own.after >= self.ceiling
    }
}

#[cfg(test)]
mod tests {
    use super::super::Chunk;
    use super::*;

    /// Numbers that look random, from 1 to `most`.
    fn draw(seed: &mut u64, most: u64) -> u64 {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*seed >> 33) % most + 1
    }

    #[test]
    fn a_step_is_late_exactly_where_it_ends_no_earlier() {
        let mut seed = 7;
        for _ in 0..400 {
            let (pp, m) = (draw(&mut seed, 6), draw(&mut seed, 12));
            let vpp = draw(&mut seed, 3);
            let (schedule, vpp, m) = match (vpp, pp) {
                (1, _) | (_, 1) => (Schedule::OneFOneB, 1, m * 5),
                _ => (Schedule::Interleaved, vpp, m * pp),
            };
            let stages: Vec<StageClock> = (0..pp)
                .map(|_| {
                    let mut time = |most| Time(draw(&mut seed, most));
                    let chunk = |_| Chunk {
                        forward: time(9),
                        input_gradient: time(9),
                        weight_gradient: time(9),
                    };
                    let chunks = (0..vpp).map(chunk).collect();
                    let (send_forward, send_backward, tail) = (time(4), time(4), time(40));
                    StageClock { chunks, send_forward, send_backward, tail }
                })
                .collect();
            for sends in [Sends::Blocking, Sends::Overlapped] {
                let time = makespan(schedule, sends, &stages, m);
                for ceiling in [time.0 / 2, time.0 - 1, time.0, time.0 + 1, 2 * time.0] {
                    let below = makespan_below(schedule, sends, &stages, m, Time(ceiling));
                    assert_eq!(below, (time.0 < ceiling).then_some(time), "{schedule:?} {sends:?}");
                }
            }
        }
    }

    #[test]
    fn a_stage_that_waits_is_late_before_its_passes_have_run() {
        // Two stages of 4 micro-batches, 1 and 2 a pass: the second begins at 1, has 8 passes of 2, and the first has one more, of
        // 1: no sooner than 18. Begun at 3, no sooner than 20.
        let stage = |time| StageClock {
            chunks: vec![Chunk {
                forward: Time(time),
                input_gradient: Time(time),
                ..Chunk::default()
            }],
            ..StageClock::default()
        };
        let stages = [stage(1), stage(2)];
        let order = order(Schedule::OneFOneB, &stages, 4);
        let late = |(n, done, free), ceiling| {
            let mut run = Run::new(order, Sends::Overlapped, &stages);
            (run.next[1], run.done[1], run.free[1]) = (n, Time(done), Time(free));
            let late = Late::new(order, Sends::Overlapped, &stages, Time(ceiling));
            late.unwrap().is(&run, 1)
        };
        let begun = |at, ceiling| late((0, 0, at), ceiling);
        assert!(begun(1, 18) && !begun(1, 19));
        assert!(begun(3, 20) && !begun(3, 21));
        // Two passes later nothing has changed.
        let later = |ceiling| late((2, 4, 5), ceiling);
        assert!(later(18) && !later(19));
    }
}
