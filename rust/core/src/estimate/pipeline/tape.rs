//! Many steps of one order of passes: which pass waits for which is worked out once, and told as a tape.
//!
//! The tape has the passes in the order in which they would end if each took as long and a message no time. So whatever a pass waits
//! for stands before it, and what stands next to each other mostly waits for something else: a processor works on several at once.

use super::order::{Kind, Order};
use super::{closed, messages, order, periodic, Chunk, Run, Sends, StageClock};
use crate::spec::problem::Schedule;
use crate::units::Time;
use rustc_hash::FxHashMap;

/// Orders that are remembered at a time.
const KEPT: usize = 64;

/// Passes of a tape at most, so that their places are short: a tape is read from the processor's first cache.
const LONGEST: u64 = u16::MAX as u64;

/// The orders of passes so far.
#[derive(Default)]
pub struct Tapes {
    tapes: FxHashMap<(Schedule, u64, u64, u64), Tape>,
    scratch: Scratch,
}

/// What a step's run writes over.
#[derive(Default)]
struct Scratch {
    /// By position and kind of pass: its time, with its send where that blocks.
    work: Vec<Time>,
    /// By position: the time of the message that a forward pass waits for, and a backward pass; the last is no message.
    delay: Vec<Time>,
    /// When each stage is free.
    free: Vec<Time>,
    /// When each pass ended, by stage; the last has nothing to wait for.
    ends: Vec<Time>,
}

impl Tapes {
    /// What [`makespan`](super::makespan) says.
    pub fn makespan(
        &mut self,
        schedule: Schedule,
        sends: Sends,
        stages: &[StageClock],
        micro_batches: u64,
    ) -> Time {
        if let Some(time) = closed(schedule, sends, stages, micro_batches) {
            return time;
        }
        let order = order(schedule, stages, micro_batches);
        self.scratch.tell(&order, sends, stages);
        let run = |order: Order, repeats: bool| {
            if order.pp * order.len().max(3 * order.vpp) >= LONGEST {
                let mut run = Run::new(order, sends, stages);
                return Some((run.finish(|_, _| false)?, run.shift(repeats)));
            }
            let Order { schedule, pp, vpp, m } = order;
            if self.tapes.len() >= KEPT && !self.tapes.contains_key(&(schedule, pp, vpp, m)) {
                self.tapes.clear();
            }
            let tape = self.tapes.entry((schedule, pp, vpp, m)).or_insert_with(|| Tape::new(order));
            tape.run(&mut self.scratch);
            let of_stages = self.scratch.free.iter().zip(stages);
            let end = of_stages.map(|(&free, stage)| free + stage.tail).max()?;
            Some((end, tape.shift(&self.scratch.ends, repeats)))
        };
        periodic(&order, run).expect("nothing is late where no time is asked for")
    }
}

impl Scratch {
    /// Writes down what the passes and messages of some stages take.
    fn tell(&mut self, order: &Order, sends: Sends, stages: &[StageClock]) {
        let split = order.splits();
        let messages = messages(order, stages);
        self.work.clear();
        self.delay.clear();
        for position in 0..messages.len() {
            let (stage, chunk) = order.owned(position as u64);
            let Chunk { forward, input_gradient, weight_gradient } =
                stages[stage].chunks[chunk as usize];
            let weights = if split { Time::ZERO } else { weight_gradient };
            let (to_next, to_last) = match sends {
                Sends::Blocking => messages[position],
                Sends::Overlapped => (Time::ZERO, Time::ZERO),
            };
            let backward = input_gradient + weights + to_last;
            self.work.extend([forward + to_next, backward, weight_gradient]);
            let travels = |message: Option<Time>| match sends {
                Sends::Blocking => Time::ZERO,
                Sends::Overlapped => message.unwrap_or(Time::ZERO),
            };
            let up = position.checked_sub(1).map(|before| messages[before].0);
            let down = messages.get(position + 1).map(|after| after.1);
            self.delay.extend([travels(up), travels(down)]);
        }
        self.delay.push(Time::ZERO);
    }
}

/// The passes of an order.
struct Tape {
    order: Order,
    passes: Vec<Pass>,
    /// Passes that each stage runs.
    runs: Vec<usize>,
}

/// One pass: places in [`Scratch`] of what it needs and what it leaves.
struct Pass {
    stage: u16,
    work: u16,
    delay: u16,
    /// The end of the pass that it waits for.
    after: u16,
    end: u16,
}

impl Tape {
    fn new(order: Order) -> Tape {
        let chunk = Chunk { forward: Time(2), input_gradient: Time(1), weight_gradient: Time(1) };
        let stage = StageClock { chunks: vec![chunk; order.vpp as usize], ..StageClock::default() };
        let stages = vec![stage; order.pp as usize];
        let mut alike = Run::new(order, Sends::Overlapped, &stages);
        alike.record = Some(Vec::new());
        alike.finish(|_, _| false);
        let events = alike.record.unwrap_or_default();
        // Where each pass of each position and micro-batch stands among those of its stage.
        let (positions, most) = (order.pp * order.vpp, order.len());
        let at = |position: u64, micro_batch: u64| (position * order.m + micro_batch) as usize;
        let mut ends = [(); 2].map(|()| vec![0u16; (positions * order.m) as usize]);
        let mut runs = vec![0usize; order.pp as usize];
        let mut placed = Vec::with_capacity(events.len());
        for event in &events {
            let super::Task::Pass(kind) = event.task else { continue };
            let position = order.position(event.stage as u64, event.chunk as u64);
            let end = (event.stage as u64 * most) as u16 + runs[event.stage] as u16;
            runs[event.stage] += 1;
            match kind {
                Kind::Forward => ends[0][at(position, event.micro_batch)] = end,
                Kind::Backward => ends[1][at(position, event.micro_batch)] = end,
                Kind::Weight => {}
            }
            placed.push((event, kind, position, end));
        }
        placed.sort_by_key(|&(event, ..)| (event.end, event.stage));
        let nothing = (order.pp * most) as u16;
        let no_message = (2 * positions) as u16;
        let pass = |(event, kind, position, end): (&super::Event, Kind, u64, u16)| {
            let of = |kind: usize, position: u64| ends[kind][at(position, event.micro_batch)];
            let (after, delay) = match kind {
                Kind::Forward if position == 0 => (nothing, no_message),
                Kind::Forward => (of(0, position - 1), (2 * position) as u16),
                Kind::Backward if position + 1 == positions => (of(0, position), no_message),
                Kind::Backward => (of(1, position + 1), (2 * position + 1) as u16),
                Kind::Weight => (nothing, no_message),
            };
            let work = (3 * position) as u16 + kind as u16;
            Pass { stage: event.stage as u16, work, delay, after, end }
        };
        Tape { order, passes: placed.into_iter().map(pass).collect(), runs }
    }

    fn run(&self, scratch: &mut Scratch) {
        let Scratch { work, delay, free, ends } = scratch;
        free.clear();
        free.resize(self.order.pp as usize, Time::ZERO);
        ends.resize((self.order.pp * self.order.len()) as usize + 1, Time::ZERO);
        *ends.last_mut().expect("there is one more") = Time::ZERO;
        for pass in &self.passes {
            let ready = ends[pass.after as usize] + delay[pass.delay as usize];
            let end = free[pass.stage as usize].max(ready) + work[pass.work as usize];
            free[pass.stage as usize] = end;
            ends[pass.end as usize] = end;
        }
    }

    /// The common shift of one round, if the rounds repeat.
    fn shift(&self, ends: &[Time], repeats: bool) -> Option<Time> {
        let of_stage = |stage: usize| {
            let first = stage * self.order.len() as usize;
            &ends[first..first + self.runs[stage]]
        };
        repeats.then(|| self.order.shift(of_stage)).flatten()
    }
}
