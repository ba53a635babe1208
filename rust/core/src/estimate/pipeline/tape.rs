//! Many steps of one order of passes: which pass waits for which is worked out once, and told as a tape.
//!
//! The tape has the passes in the order in which they would end if each took as long and a message no time. So whatever a pass waits
//! for stands before it, and what stands next to each other mostly waits for something else: a processor works on several at once.
//!
//! Steps whose passes and messages take the same, and which differ in what follows the last pass at most, share a run.

use super::order::{Kind, Order};
use super::{closed, messages, order, periodic, Chunk, Run, Sends, StageClock};
use crate::spec::problem::Schedule;
use crate::units::Time;
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::{Hash, Hasher};

/// Orders that are remembered at a time.
const KEPT: usize = 64;

/// Runs that are remembered at a time.
const KEPT_RUNS: usize = 1 << 12;

/// Places that a tape may name, each in two bytes: it is read from the processor's first cache, and no place is out of bounds.
const PLACES: usize = 1 << 16;

/// A figure for each place that a pass may name.
type Figures = Box<[Time; PLACES]>;

/// The orders of passes so far, and the runs.
#[derive(Default)]
pub struct Tapes {
    tapes: FxHashMap<Order, Tape>,
    /// By the hash of what they are told apart by.
    runs: Vec<Option<Ran>>,
    name: Vec<u64>,
    /// From the first run on.
    scratch: Option<Scratch>,
}

/// A run that has been.
struct Ran {
    /// What it is told apart by.
    name: Vec<u64>,
    /// When each stage has ended its passes; one that stands for several, the last of them.
    free: Vec<Time>,
}

/// What the passes and messages of a step take.
struct Passes {
    /// By position and kind of pass: its time, with its send where that blocks.
    work: Vec<Time>,
    /// By position: the time of the message that a forward pass waits for, and a backward pass; the last is no message.
    delay: Vec<Time>,
}

/// What a run reads and writes over.
struct Scratch {
    /// As [`Passes`] has them.
    work: Figures,
    delay: Figures,
    /// When each stage is free.
    free: Figures,
    /// When each pass ended, by stage; the last has nothing to wait for.
    ends: Figures,
}

impl Default for Scratch {
    fn default() -> Scratch {
        let figures = || vec![Time::ZERO; PLACES].try_into().expect("a figure for each place");
        Scratch { work: figures(), delay: figures(), free: figures(), ends: figures() }
    }
}

impl Tapes {
    /// What [`makespan`](super::makespan) says of a pipeline of `pp` stages. Where `stages` are three, and `pp` is more, the
    /// second of them stands for all between the first and the last.
    pub fn makespan(
        &mut self,
        schedule: Schedule,
        sends: Sends,
        stages: &[StageClock],
        pp: u64,
        micro_batches: u64,
    ) -> Time {
        let (depth, between) = (pp as usize, stages.len() < pp as usize);
        let at = |stage: usize| match (between, stage) {
            (false, _) => &stages[stage],
            (true, 0) => &stages[0],
            (true, _) => &stages[if stage + 1 == depth { 2 } else { 1 }],
        };
        if let Some(time) = closed(schedule, sends, depth, at, micro_batches) {
            return time;
        }
        let blocking = u64::from(sends == Sends::Blocking);
        self.name.clear();
        self.name.extend([schedule as u64, blocking, pp, stages.len() as u64, micro_batches]);
        for stage in stages {
            self.name.extend([stage.send_forward.0, stage.send_backward.0]);
            for Chunk { forward, input_gradient, weight_gradient } in &stage.chunks {
                self.name.extend([forward.0, input_gradient.0, weight_gradient.0]);
            }
        }
        let mut hasher = FxHasher::default();
        self.name.hash(&mut hasher);
        let place = hasher.finish() as usize % KEPT_RUNS;
        self.runs.resize_with(KEPT_RUNS, || None);
        if self.runs[place].as_ref().is_none_or(|ran| ran.name != self.name) {
            let all: Vec<StageClock> = (0..depth).map(|stage| at(stage).clone()).collect();
            let mut free = self.free(schedule, sends, &all, micro_batches);
            if between {
                let last = free[1..depth - 1].iter().max().copied();
                free.splice(1..depth - 1, last);
            }
            self.runs[place] = Some(Ran { name: self.name.clone(), free });
        }
        let free = self.runs[place].iter().flat_map(|ran| &ran.free);
        free.zip(stages).map(|(&free, stage)| free + stage.tail).max().unwrap_or(Time::ZERO)
    }

    /// When each stage has ended its passes.
    fn free(
        &mut self,
        schedule: Schedule,
        sends: Sends,
        stages: &[StageClock],
        micro_batches: u64,
    ) -> Vec<Time> {
        let step = order(schedule, stages, micro_batches);
        let passes = Passes::new(&step, sends, stages);
        let run = |order: Order, repeats: bool| {
            let Some(tape) = tape(&mut self.tapes, order).filter(|_| passes.adds_up(&order)) else {
                let mut run = Run::new(order, sends, stages);
                run.finish(|_, _| false)?;
                let shift = run.shift(repeats);
                return Some((run.free, shift));
            };
            let scratch = self.scratch.get_or_insert_default();
            tape.run(&passes, scratch);
            let free = scratch.free[..order.pp as usize].to_vec();
            Some((free, tape.shift(&scratch.ends[..], repeats)))
        };
        let (mut free, later) =
            periodic(&step, run).expect("nothing is late where no time is asked for");
        free.iter_mut().for_each(|free| *free += later);
        free
    }
}

/// The tape of an order, if it is short enough for one.
fn tape(tapes: &mut FxHashMap<Order, Tape>, order: Order) -> Option<&Tape> {
    // A place for each pass and one for what waits for none, and for each kind of pass and message.
    let places = order.pp * order.len().max(3 * order.vpp) + 1;
    if places > PLACES as u64 {
        return None;
    }
    if tapes.len() >= KEPT && !tapes.contains_key(&order) {
        tapes.clear();
    }
    Some(tapes.entry(order).or_insert_with(|| Tape::new(order)))
}

impl Passes {
    fn new(order: &Order, sends: Sends, stages: &[StageClock]) -> Passes {
        let split = order.splits();
        let messages = messages(order, stages);
        let mut work = Vec::with_capacity(3 * messages.len());
        let mut delay = Vec::with_capacity(2 * messages.len() + 1);
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
            work.extend([forward + to_next, backward, weight_gradient]);
            let travels = |message: Option<Time>| match sends {
                Sends::Blocking => Time::ZERO,
                Sends::Overlapped => message.unwrap_or(Time::ZERO),
            };
            let up = position.checked_sub(1).map(|before| messages[before].0);
            let down = messages.get(position + 1).map(|after| after.1);
            delay.extend([travels(up), travels(down)]);
        }
        delay.push(Time::ZERO);
        Passes { work, delay }
    }

    /// Whether no sum of passes and messages in a run of `order` is too long to be told.
    fn adds_up(&self, order: &Order) -> bool {
        let of_micro_batch: Time = self.work.iter().chain(&self.delay).copied().sum();
        of_micro_batch * order.m < Time::MAX
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

    fn run(&self, passes: &Passes, scratch: &mut Scratch) {
        let Scratch { work, delay, free, ends } = scratch;
        work[..passes.work.len()].copy_from_slice(&passes.work);
        delay[..passes.delay.len()].copy_from_slice(&passes.delay);
        free[..self.order.pp as usize].fill(Time::ZERO);
        ends[(self.order.pp * self.order.len()) as usize] = Time::ZERO;
        // The sums are known to be in range: nothing has to saturate.
        for pass in &self.passes {
            let ready = ends[pass.after as usize].0 + delay[pass.delay as usize].0;
            let end = free[pass.stage as usize].0.max(ready) + work[pass.work as usize].0;
            free[pass.stage as usize] = Time(end);
            ends[pass.end as usize] = Time(end);
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
