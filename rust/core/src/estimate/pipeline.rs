//! The pipeline's clock: when each pass of each stage runs, and so how long a step lasts.
//!
//! A schedule gives every stage an order of passes; a pass starts when the stage is free and what it needs has
//! arrived. The step is the longest path through these events. GPipe has a closed form, as its two phases
//! are flow shops with equal jobs; so has 1F1B with blocking sends ([`longest`]). The others run the max-plus recurrence, cut short once a whole round of passes on
//! every stage repeats the round before with one common shift: from there on the recurrence only repeats
//! it (Baccelli et al., Synchronization and Linearity, 1992).

pub mod late;
mod order;
pub mod tape;

use super::longest::{self, Lane};
use crate::spec::problem::{Problem, Schedule};
use crate::units::Time;
pub use order::Kind;
use order::{Order, Way};

/// Times of one model chunk for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Forward pass.
    pub forward: Time,
    /// Backward pass up to the gradient of the input, with recompute.
    pub input_gradient: Time,
    /// Gradient of the weights.
    pub weight_gradient: Time,
}

impl Chunk {
    /// The whole backward pass.
    pub fn backward(self) -> Time {
        self.input_gradient + self.weight_gradient
    }
}

/// One stage as the clock sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageClock {
    /// Its chunks, first to last.
    pub chunks: Vec<Chunk>,
    /// Send of one micro-batch to the next stage.
    pub send_forward: Time,
    /// Send of one micro-batch's gradient to the previous stage.
    pub send_backward: Time,
    /// Work after the stage's last pass: gradient reduction that is not hidden.
    pub tail: Time,
}

/// How sends meet computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sends {
    /// A stage waits for its own send: Megatron's 1F1B exchanges with both neighbours between passes.
    Blocking,
    /// A send only delays the receiver.
    Overlapped,
}

/// How a schedule's sends meet computation in the problem's framework.
pub fn sends(problem: &Problem, schedule: Schedule) -> Sends {
    let overlap = &problem.framework.overlap;
    match schedule {
        Schedule::OneFOneB | Schedule::GPipe if !overlap.every_send => Sends::Blocking,
        Schedule::Interleaved if !overlap.pipeline && !overlap.every_send => Sends::Blocking,
        Schedule::OneFOneB
        | Schedule::GPipe
        | Schedule::Interleaved
        | Schedule::ZeroBubbleH1
        | Schedule::ZeroBubbleV => Sends::Overlapped,
    }
}

/// A piece of work of the schedule, with when it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Stage, from 0.
    pub stage: usize,
    /// Chunk of the stage, from 0; 0 for work on the whole stage.
    pub chunk: usize,
    /// Micro-batch, from 0; 0 for work after the last.
    pub micro_batch: u64,
    /// What is done.
    pub task: Task,
    /// Start.
    pub start: Time,
    /// End.
    pub end: Time,
}

/// What a stage or its links do in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// A pass.
    Pass(Kind),
    /// Send of a pass's result to the stage that needs it.
    Send,
    /// Gradient reduction and parameter gathering that nothing hides.
    Synchronise,
    /// Gradient norm and optimizer step.
    Update,
}

/// Time from the first pass to the end of the last stage's tail.
pub fn makespan(
    schedule: Schedule,
    sends: Sends,
    stages: &[StageClock],
    micro_batches: u64,
) -> Time {
    closed(schedule, sends, stages.len(), |stage| &stages[stage], micro_batches)
        .unwrap_or_else(|| run(&order(schedule, stages, micro_batches), sends, stages))
}

/// The same where it has a closed form, of `pp` stages that `at` gives.
fn closed<'a>(
    schedule: Schedule,
    sends: Sends,
    pp: usize,
    at: impl Fn(usize) -> &'a StageClock,
    m: u64,
) -> Option<Time> {
    match schedule {
        Schedule::GPipe => Some(gpipe(sends, pp, at, m)),
        Schedule::OneFOneB if sends == Sends::Blocking => {
            let lanes: Vec<Lane> = (0..pp).map(|i| lane(at(i), i == 0, i + 1 == pp)).collect();
            longest::of_stages(&lanes, m)
        }
        Schedule::OneFOneB
        | Schedule::Interleaved
        | Schedule::ZeroBubbleH1
        | Schedule::ZeroBubbleV => None,
    }
}

/// A stage of 1F1B with its own sends, which block it.
pub fn lane(stage: &StageClock, first: bool, last: bool) -> Lane {
    let chunk = stage.chunks[0];
    let send = |time: Time, to_nobody: bool| if to_nobody { Time::ZERO } else { time };
    Lane {
        forward: chunk.forward + send(stage.send_forward, last),
        backward: chunk.backward() + send(stage.send_backward, first),
        tail: stage.tail,
    }
}

/// Passes and sends of a step of `micro_batches`, then the two parts of each stage's tail, synchronisation and update, as
/// `tails` has them: in order of their start, at most `limit`.
pub fn events(
    schedule: Schedule,
    sends: Sends,
    stages: &[StageClock],
    micro_batches: u64,
    tails: &[(Time, Time)],
    limit: usize,
) -> Vec<Event> {
    let mut run = Run::new(order(schedule, stages, micro_batches), sends, stages);
    run.record = Some(Vec::new());
    run.finish(|_, _| false);
    let mut events = run.record.unwrap_or_default();
    for (stage, (&free, &(synchronise, update))) in run.free.iter().zip(tails).enumerate() {
        let mut start = free;
        for (task, time) in [(Task::Synchronise, synchronise), (Task::Update, update)] {
            let end = start + time;
            if time > Time::ZERO {
                events.push(Event { stage, chunk: 0, micro_batch: 0, task, start, end });
            }
            start = end;
        }
    }
    events.sort_by_key(|e| (e.start, e.stage, e.end));
    events.truncate(limit);
    events
}

/// Fill, the slowest stage's other micro-batches, then the same backward: a permutation flow shop whose
/// jobs are all alike.
fn gpipe<'a>(sends: Sends, pp: usize, at: impl Fn(usize) -> &'a StageClock, m: u64) -> Time {
    let last = pp - 1;
    let mut fill = Time::ZERO;
    let mut slowest = Time::ZERO;
    let mut back = Time::ZERO;
    let mut back_slowest = Time::ZERO;
    let mut finish = Time::ZERO;
    for (i, s) in (0..pp).map(|i| (i, at(i))) {
        let own: Time = s.chunks.iter().map(|c| c.forward).sum();
        let send = if i < last { s.send_forward } else { Time::ZERO };
        fill += own + send;
        slowest = slowest.max(match sends {
            Sends::Blocking => own + send,
            Sends::Overlapped => own,
        });
    }
    for (i, s) in (0..pp).rev().map(|i| (i, at(i))) {
        let own: Time = s.chunks.iter().map(|c| c.backward()).sum();
        let send = if i > 0 { s.send_backward } else { Time::ZERO };
        let busy = match sends {
            Sends::Blocking => own + send,
            Sends::Overlapped => own,
        };
        back_slowest = back_slowest.max(busy);
        finish = finish.max(back + busy + back_slowest * (m - 1) + s.tail);
        back += own + send;
    }
    fill + slowest * (m - 1) + finish
}

/// The recurrence in progress: how far each stage is, and when each pass ended.
struct Run<'a> {
    order: Order,
    sends: Sends,
    stages: &'a [StageClock],
    ways: Vec<Way>,
    /// Messages from each position to the next and to the one before, forward and backward.
    messages: Vec<(Time, Time)>,
    /// End of each forward and backward pass by position and micro-batch; `Time::MAX` where not yet run.
    forward: Vec<Time>,
    backward: Vec<Time>,
    next: Vec<u64>,
    free: Vec<Time>,
    /// What the passes that have run took.
    done: Vec<Time>,
    /// Ends of every pass by stage, for the comparison of rounds.
    ends: Vec<Vec<Time>>,
    record: Option<Vec<Event>>,
}

impl<'a> Run<'a> {
    fn new(order: Order, sends: Sends, stages: &'a [StageClock]) -> Run<'a> {
        let (p, passes) = (stages.len(), (order.pp * order.vpp * order.m) as usize);
        Run {
            order,
            sends,
            stages,
            ways: order.ways(),
            messages: messages(&order, stages),
            forward: vec![Time::MAX; passes],
            backward: vec![Time::MAX; passes],
            next: vec![0; p],
            free: vec![Time::ZERO; p],
            done: vec![Time::ZERO; p],
            ends: vec![Vec::with_capacity(order.len() as usize); p],
            record: None,
        }
    }

    /// Runs every pass; returns when the last tail ends. Nothing once a stage, asked from time to time, is `late`.
    fn finish(&mut self, late: impl Fn(&Run<'_>, usize) -> bool) -> Option<Time> {
        let p = self.stages.len();
        let mut left = p as u64 * self.order.len();
        while left > 0 {
            let before = left;
            for stage in (0..p).chain((0..p).rev()) {
                while self.next[stage] < self.order.len() && self.step(stage) {
                    left -= 1;
                }
                if late(self, stage) {
                    return None;
                }
            }
            debug_assert!(left < before, "a schedule must never wait for itself");
            if left == before {
                break;
            }
        }
        Some((0..p).map(|i| self.free[i] + self.stages[i].tail).max().unwrap_or(Time::ZERO))
    }

    /// Runs the next pass of `stage` if what it needs has arrived.
    fn step(&mut self, stage: usize) -> bool {
        let (kind, chunk, micro_batch) =
            self.order.pass(&self.ways, stage as u64, self.next[stage]);
        let (p, v) = (self.order.pp, self.order.vpp);
        if micro_batch >= self.order.m {
            self.next[stage] += 1;
            return true;
        }
        let position = self.order.position(stage as u64, chunk);
        let last = p * v - 1;
        let at = |position: u64| (position * self.order.m + micro_batch) as usize;
        let here = &self.stages[stage];
        let times = here.chunks[chunk as usize];
        let (ready, work, send) = match kind {
            Kind::Forward => {
                let ready = if position == 0 {
                    Time::ZERO
                } else {
                    let before = self.forward[at(position - 1)];
                    if before == Time::MAX {
                        return false;
                    }
                    before + self.delay(self.messages[position as usize - 1].0)
                };
                (ready, times.forward, self.messages[position as usize].0)
            }
            Kind::Backward => {
                let ready = if position == last {
                    self.forward[at(position)]
                } else {
                    let after = self.backward[at(position + 1)];
                    if after == Time::MAX {
                        return false;
                    }
                    after + self.delay(self.messages[position as usize + 1].1)
                };
                let work =
                    if self.order.splits() { times.input_gradient } else { times.backward() };
                (ready, work, self.messages[position as usize].1)
            }
            Kind::Weight => (Time::ZERO, times.weight_gradient, Time::ZERO),
        };
        let start = self.free[stage].max(ready);
        let end = start + work + if self.sends == Sends::Blocking { send } else { Time::ZERO };
        match kind {
            Kind::Forward => self.forward[at(position)] = end,
            Kind::Backward => self.backward[at(position)] = end,
            Kind::Weight => {}
        }
        self.free[stage] = end;
        self.done[stage] += end - start;
        self.ends[stage].push(end);
        self.next[stage] += 1;
        if let Some(record) = &mut self.record {
            let (chunk, sent) = (chunk as usize, start + work);
            let pass = Task::Pass(kind);
            record.push(Event { stage, chunk, micro_batch, task: pass, start, end: sent });
            if send > Time::ZERO {
                let (task, start, end) = (Task::Send, sent, sent + send);
                record.push(Event { stage, chunk, micro_batch, task, start, end });
            }
        }
        true
    }

    fn delay(&self, send: Time) -> Time {
        match self.sends {
            Sends::Blocking => Time::ZERO,
            Sends::Overlapped => send,
        }
    }

    /// The common shift of one round, if the rounds repeat.
    fn shift(&self, repeats: bool) -> Option<Time> {
        repeats.then(|| self.order.shift(|stage| &self.ends[stage])).flatten()
    }
}

/// Rounds that a shortened run holds at first: warm-up, three rounds to compare, and the way out. Those of a zero-bubble schedule
/// settle later.
fn first_rounds(schedule: Schedule) -> u64 {
    match schedule {
        Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV => 8,
        Schedule::OneFOneB | Schedule::Interleaved | Schedule::GPipe => 6,
    }
}

/// Time of a message from each position to the next, and to the one before; none from the ends.
fn messages(order: &Order, stages: &[StageClock]) -> Vec<(Time, Time)> {
    let positions = order.pp * order.vpp;
    let message = |kind: Kind, from: u64, to: Option<u64>| {
        let Some(to) = to.filter(|&to| to < positions) else { return Time::ZERO };
        let (from, to) = (order.owner(from), order.owner(to));
        let sender = &stages[from];
        match (order.schedule, kind) {
            // On the way back a forward pass sends to the previous stage, and at the turn to nobody.
            (Schedule::ZeroBubbleV, _) if from == to => Time::ZERO,
            (Schedule::ZeroBubbleV, _) if from < to => sender.send_forward,
            (Schedule::ZeroBubbleV, _) => sender.send_backward,
            (_, Kind::Forward) => sender.send_forward,
            (_, Kind::Backward | Kind::Weight) => sender.send_backward,
        }
    };
    let of_position = |at: u64| {
        let up = message(Kind::Forward, at, Some(at + 1));
        (up, message(Kind::Backward, at, at.checked_sub(1)))
    };
    (0..positions).map(of_position).collect()
}

/// The order of a step's passes.
fn order(schedule: Schedule, stages: &[StageClock], m: u64) -> Order {
    Order { schedule, pp: stages.len() as u64, vpp: stages[0].chunks.len() as u64, m }
}

/// When the last tail of a step ends.
fn run(order: &Order, sends: Sends, stages: &[StageClock]) -> Time {
    unless_late(order, sends, stages, |_, _| false)
        .expect("nothing is late where no time is asked for")
}

/// The same; nothing once a stage is `late`.
fn unless_late(
    order: &Order,
    sends: Sends,
    stages: &[StageClock],
    late: impl Fn(&Run<'_>, usize) -> bool,
) -> Option<Time> {
    let (end, later) = periodic(order, |order, repeats| {
        let mut run = Run::new(order, sends, stages);
        Some((run.finish(&late)?, run.shift(repeats)))
    })?;
    Some(end + later)
}

/// How a step ends that has fewer micro-batches, once its rounds repeat, and how much later it ends with all of them. What runs an
/// order says how it ends and, if asked, by how much each round of those that repeat is later than the one before.
fn periodic<End>(
    order: &Order,
    mut run: impl FnMut(Order, bool) -> Option<(End, Option<Time>)>,
) -> Option<(End, Time)> {
    let mut rounds = first_rounds(order.schedule);
    loop {
        let short = rounds * order.pp + order.m % order.pp;
        if short >= order.m {
            return run(*order, false).map(|(end, _)| (end, Time::ZERO));
        }
        let (end, shift) = run(Order { m: short, ..*order }, true)?;
        if let Some(shift) = shift {
            return Some((end, shift * ((order.m - short) / order.pp)));
        }
        rounds *= 2;
    }
}
