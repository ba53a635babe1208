//! Branch and bound over the classes of the space.
//!
//! Parts of the space stand in a heap in the order of their lower bounds: first every legal choice of degrees and micro-batch
//! (an entry), then its classes, each bounded with its own sharding, schedule, chips and memory. A part whose bound is above
//! the N-th best time known is never opened. Before a class is solved, all that could matter are guessed at, so that
//! the limit is tight. Parts are opened in blocks of fixed sizes against the plans found before the block, so that neither the
//! answer nor a counter depends on the number of threads. A class whose plan is not yet proved to be its optimum goes back into
//! the heap until it is closed.

use super::best::{Best, Candidate};
use super::bound::{Continuous, Shape};
use super::descent::close;
use super::entries::{entries, shard, Entry};
use super::guess::guess;
use super::holds::Holds;
use super::relax::{Question, Verdict};
use super::report::{Counters, Cut};
use super::space::{self, Composition, Walked};
use super::stages::{solve, Class, Outcome};
use super::watch::Watch;
use crate::estimate::least::Least;
use crate::estimate::shard::Shard;
use crate::estimate::stage::Table;
use crate::estimate::{sends, Tables};
use crate::plan::Plan;
use crate::spec::problem::{Problem, Schedule};
use crate::units::Time;
use rayon::prelude::*;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// What the enumeration found.
pub struct Found {
    /// Best plans.
    pub best: Best,
    /// What happened to every class.
    pub counters: Counters,
    /// Bound of the first entry that was not reached, if the search was stopped.
    pub open: Option<Time>,
}

/// A part of the space with a lower bound for all that is in it.
struct Node {
    bound: Time,
    /// Order of its making, so that equal bounds are taken in turn.
    serial: u64,
    entry: usize,
    /// Classes in it; none where its class is already counted as estimated.
    classes: u64,
    part: Part,
}

/// What a node stands for.
enum Part {
    /// All classes of an entry.
    Entry,
    /// All compositions under a sharding and a schedule.
    Schedule((u8, u64), (Schedule, u64)),
    /// One class.
    Class((u8, u64), (Schedule, u64), Composition),
    /// A class with a plan that may not be its optimum, and its time.
    Open(Box<Plan>, Time),
}

impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Node {}

impl PartialOrd for Node {
    fn partial_cmp(&self, other: &Node) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Node {
    /// The smallest bound is the greatest node: a heap gives it first.
    fn cmp(&self, other: &Node) -> Ordering {
        (other.bound, other.serial).cmp(&(self.bound, self.serial))
    }
}

/// What became of a node.
#[derive(Default)]
struct Opened {
    /// Its parts.
    parts: Vec<(Time, u64, Part)>,
    /// The time of some plan of its class.
    guess: Option<Time>,
    /// A plan of its class.
    found: Option<Candidate>,
    /// A better plan of an open class, with the one that it replaces.
    better: Option<(Plan, Candidate)>,
    counters: Counters,
}

/// Nodes that are opened, and classes that are solved, against the same incumbents.
const OPENED: usize = 32;
const SOLVED: usize = 4;

/// Searches the whole space.
pub fn enumerate(problem: &Problem, watch: &Watch) -> Found {
    let mut counters = Counters::default();
    let entries = entries(problem, &mut counters);
    let mut best = Best::new(problem);
    let mut heap: BinaryHeap<Node> = entries
        .iter()
        .enumerate()
        .map(|(n, e)| Node {
            bound: e.bound,
            serial: n as u64,
            entry: n,
            classes: e.classes,
            part: Part::Entry,
        })
        .collect();
    let mut serial = entries.len() as u64;
    let mut open = None;
    // Classes wait until all have been guessed at, so that each is solved against a tight limit; those whose guesses are
    // among the best are solved at once, which tightens it.
    let mut waiting: BinaryHeap<Node> = BinaryHeap::new();
    let (mut done, mut all) = (0, heap.len() as u64);
    for solving in [false, true] {
        if solving {
            heap.append(&mut waiting);
        }
        while heap.peek().is_some_and(|node| node.bound <= best.limit()) && !watch.stopped() {
            let limit = best.limit();
            let block = block(&mut heap, limit, if solving { SOLVED } else { OPENED });
            let results: Vec<Opened> = block
                .par_iter()
                .map(|node| {
                    let entry = &entries[node.entry];
                    match &node.part {
                        Part::Class(..) if !solving => guess_node(problem, entry, node, limit),
                        _ => open_node(problem, entry, node, limit, watch),
                    }
                })
                .collect();
            done += block.len() as u64;
            let mut promising = Vec::new();
            for (node, opened) in block.into_iter().zip(results) {
                counters.merge(&opened.counters);
                opened.guess.into_iter().for_each(|time| best.guess(time));
                opened.found.into_iter().for_each(|c| best.offer(c));
                opened.better.into_iter().for_each(|(old, c)| best.replace(&old, c));
                if opened.counters.cut.contains_key(&Cut::Unreached) {
                    open = Some(open.map_or(node.bound, |o: Time| o.min(node.bound)));
                }
                for (bound, classes, part) in opened.parts {
                    // A part is bounded by what it is a part of.
                    let bound = bound.max(node.bound);
                    heap.push(Node { bound, serial, entry: node.entry, classes, part });
                    serial += 1;
                    all += 1;
                }
                if matches!(node.part, Part::Class(..)) && !solving {
                    match opened.guess.filter(|&time| time <= best.limit()) {
                        Some(time) => promising.push((node, time)),
                        None => waiting.push(node),
                    }
                    all += 1;
                }
            }
            let limit = best.limit();
            let solved: Vec<Opened> = promising
                .par_iter()
                .map(|(node, _)| open_node(problem, &entries[node.entry], node, limit, watch))
                .collect();
            done += promising.len() as u64;
            for ((node, guess), opened) in promising.into_iter().zip(solved) {
                counters.merge(&opened.counters);
                if let Some(found) = opened.found {
                    best.better(guess, found.0);
                    best.offer(found);
                }
                for (bound, classes, part) in opened.parts {
                    let bound = bound.max(node.bound);
                    waiting.push(Node { bound, serial, entry: node.entry, classes, part });
                    serial += 1;
                    all += 1;
                }
            }
            watch.advance(done, all);
        }
    }
    heap.append(&mut waiting);
    let limit = best.limit();
    let left = heap.peek().map(|node| node.bound).filter(|&bound| bound <= limit);
    for node in heap {
        // What the watch left is not proved to be slower.
        let reason = if node.bound <= limit { Cut::Unreached } else { Cut::Bound };
        counters.cut(reason, node.classes);
    }
    let complete = left.is_none() && open.is_none();
    if !complete && !counters.cut.contains_key(&Cut::Unreached) {
        // Only classes with a plan are left; whether it is their best is not proved.
        counters.cut.insert(Cut::Unreached, 0);
    }
    let open = left.into_iter().chain(open).min();
    Found { best, counters, open }
}

/// Takes the next nodes that may hold a plan within `limit`, at most `most`.
fn block(heap: &mut BinaryHeap<Node>, limit: Time, most: usize) -> Vec<Node> {
    let mut block = Vec::with_capacity(most);
    while block.len() < most && heap.peek().is_some_and(|node| node.bound <= limit) {
        block.extend(heap.pop());
    }
    block
}

/// The time of some plan of a class, if it is within `limit`.
fn guess_node(problem: &Problem, entry: &Entry, node: &Node, limit: Time) -> Opened {
    let mut opened = Opened::default();
    if let Part::Class(sharding, schedule, runs) = &node.part {
        with_class(problem, entry, (*sharding, *schedule), &stage_kinds(runs), |class| {
            opened.guess = guess(class, limit, &mut opened.counters);
        });
    }
    opened
}

/// Prices a class for `then`.
fn with_class(
    problem: &Problem,
    entry: &Entry,
    (sharding, schedule): ((u8, u64), (Schedule, u64)),
    kinds: &[usize],
    then: impl FnOnce(&Class<'_, '_, '_>),
) {
    let shard = shard(problem, entry.cell, entry.sp, entry.ep, entry.mbs, sharding);
    let used = |kind: usize| kinds.contains(&kind);
    let tables = Tables::new(problem, shard, used);
    let holds = Holds::new(problem, &tables, degrees(entry, shard, schedule), used);
    then(&Class { holds: &holds, kinds });
}

/// Splits a node into its parts, or finds the plan of its class.
fn open_node(problem: &Problem, entry: &Entry, node: &Node, limit: Time, watch: &Watch) -> Opened {
    let mut opened = Opened::default();
    match &node.part {
        Part::Entry => open_entry(problem, entry, limit, watch, &mut opened),
        Part::Schedule(sharding, schedule) => {
            open_schedule(problem, entry, *sharding, *schedule, limit, watch, &mut opened);
        }
        Part::Class(sharding, schedule, runs) => {
            with_class(problem, entry, (*sharding, *schedule), &stage_kinds(runs), |class| {
                match solve(class, limit, &mut opened.counters) {
                    Outcome::Found(f) => {
                        opened.counters.estimated += 1;
                        if f.bound < f.time {
                            let part = Part::Open(Box::new(f.plan.clone()), f.time);
                            opened.parts.push((f.bound, 0, part));
                        }
                        opened.found = Some((f.time, f.plan));
                    }
                    Outcome::Cut(reason) => opened.counters.cut(reason, 1),
                }
            });
        }
        Part::Open(plan, time) => {
            let kinds: Vec<usize> = plan.stages.iter().map(|s| s.chip as usize).collect();
            let chosen = ((plan.zero, plan.shard_group), (plan.schedule, plan.vpp));
            let ceiling = (*time).min(Time(limit.0.saturating_add(1)));
            with_class(problem, entry, chosen, &kinds, |class| {
                opened.better = close(class, ceiling, &mut opened.counters)
                    .map(|(better, time)| ((**plan).clone(), (time, better)));
            });
        }
    }
    opened
}

/// Bounds every sharding and schedule of an entry.
fn open_entry(problem: &Problem, entry: &Entry, limit: Time, watch: &Watch, opened: &mut Opened) {
    let cell = entry.cell;
    let axes = space::axes(problem, cell);
    let below = axes.compositions * axes.schedules.len() as u64;
    let one_kind = problem.cluster.groups.len() == 1;
    for &sharding in &axes.sharding {
        let counters = &mut opened.counters;
        if watch.stopped() {
            counters.cut(Cut::Unreached, below);
            continue;
        }
        if let Some(reason) = space::cut_sharding(problem, cell, sharding) {
            counters.cut(reason, below);
            continue;
        }
        if !one_kind {
            for &schedule in &axes.schedules {
                let part = Part::Schedule(sharding, schedule);
                opened.parts.push((entry.bound, axes.compositions, part));
            }
            continue;
        }
        let shard = shard(problem, cell, entry.sp, entry.ep, entry.mbs, sharding);
        let table = Table::new(problem, 0, shard);
        let leasts = [Some(table.least())];
        let kinds = vec![0; cell.pp as usize];
        let runs: Composition = vec![(0, cell.pp)];
        for &schedule in &axes.schedules {
            if let Some(reason) = cut_composition(problem, entry, schedule, &runs) {
                counters.cut(reason, 1);
                continue;
            }
            counters.bounds += 1;
            match class_bound(problem, entry, schedule, &leasts, &kinds) {
                Verdict::Memory => counters.cut(Cut::Memory, 1),
                Verdict::Seconds(s) if Time::from_seconds(s) > limit => counters.cut(Cut::Bound, 1),
                Verdict::Seconds(s) => {
                    let part = Part::Class(sharding, schedule, runs.clone());
                    opened.parts.push((Time::from_seconds(s), 1, part));
                }
            }
        }
    }
}

/// Bounds every composition under a sharding and a schedule.
fn open_schedule(
    problem: &Problem,
    entry: &Entry,
    sharding: (u8, u64),
    schedule: (Schedule, u64),
    limit: Time,
    watch: &Watch,
    opened: &mut Opened,
) {
    let cell = entry.cell;
    let shard = shard(problem, cell, entry.sp, entry.ep, entry.mbs, sharding);
    let wanted = |kind: usize| space::places(problem, cell, kind, false);
    let tables = Tables::new(problem, shard, wanted);
    let leasts: Vec<Option<Least>> =
        (0..problem.cluster.groups.len()).map(|kind| tables.get(kind).map(Table::least)).collect();
    let degrees = degrees(entry, shard, schedule);
    let prune = |counts: &[u64], left: u64| {
        if watch.stopped() {
            return Some(Cut::Unreached);
        }
        beyond_limits(problem, entry, counts).or_else(|| {
            too_slow(problem, &tables, &degrees, counts, left, limit).then_some(Cut::Bound)
        })
    };
    let (counters, parts) = (&mut opened.counters, &mut opened.parts);
    space::each_composition(problem.cluster.groups.len(), cell.pp, &prune, &mut |step| {
        let runs = match step {
            Walked::One(runs) => runs,
            Walked::Cut(reason, classes) => {
                counters.cut(reason, classes);
                return;
            }
        };
        if let Some(reason) = cut_composition(problem, entry, schedule, runs) {
            counters.cut(reason, 1);
            return;
        }
        counters.bounds += 1;
        match class_bound(problem, entry, schedule, &leasts, &stage_kinds(runs)) {
            Verdict::Memory => counters.cut(Cut::Memory, 1),
            Verdict::Seconds(s) if Time::from_seconds(s) > limit => counters.cut(Cut::Bound, 1),
            Verdict::Seconds(s) => {
                let part = Part::Class(sharding, schedule, runs.clone());
                parts.push((Time::from_seconds(s), 1, part));
            }
        }
    });
}

/// A bound for one class.
fn class_bound(
    problem: &Problem,
    entry: &Entry,
    (schedule, vpp): (Schedule, u64),
    leasts: &[Option<Least>],
    kinds: &[usize],
) -> Verdict {
    let micro_batches = problem.workload.global_batch_size / (entry.cell.dp * entry.mbs);
    let one_kind = kinds.iter().all(|&k| k == kinds[0]);
    let zero_bubble = matches!(schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
    let question = Question {
        problem,
        shape: Shape { schedule, pp: entry.cell.pp, vpp, micro_batches },
        sends: sends(problem, schedule),
        even: zero_bubble || entry.cell.pp == 1 || (one_kind && !problem.options.uneven_layers),
        any_schedule: false,
    };
    question.bound(leasts, kinds)
}

/// The kind of each stage.
fn stage_kinds(runs: &Composition) -> Vec<usize> {
    runs.iter().flat_map(|&(kind, stages)| std::iter::repeat_n(kind, stages as usize)).collect()
}

/// Why a composition is not legal, if it is not.
fn cut_composition(
    problem: &Problem,
    entry: &Entry,
    schedule: (Schedule, u64),
    runs: &Composition,
) -> Option<Cut> {
    let mixed = runs.len() > 1;
    if !runs.iter().all(|&(kind, _)| space::places(problem, entry.cell, kind, mixed)) {
        return Some(Cut::Placement);
    }
    let per_stage = entry.cell.dp * entry.cell.tp * entry.cell.cp;
    if runs.iter().any(|&(kind, n)| n * per_stage > problem.available(kind)) {
        return Some(Cut::Limits);
    }
    space::cut_schedule(problem, entry.cell, entry.mbs, schedule, runs.len())
}

/// Whether the last of some counts of stages already asks for more devices than its kind has.
fn beyond_limits(problem: &Problem, entry: &Entry, counts: &[u64]) -> Option<Cut> {
    let per_stage = entry.cell.dp * entry.cell.tp * entry.cell.cp;
    let (kind, n) = (counts.len().checked_sub(1)?, counts.last()?);
    (n * per_stage > problem.available(kind)).then_some(Cut::Limits)
}

/// Whether no order of these counts of stages, with those left on the fastest kind still to come, can meet the limit.
fn too_slow(
    problem: &Problem,
    tables: &Tables<'_>,
    d: &Plan,
    counts: &[u64],
    left: u64,
    limit: Time,
) -> bool {
    if limit == Time::MAX {
        return false;
    }
    let mut stages: Vec<(f64, u64)> = counts
        .iter()
        .enumerate()
        .filter(|&(_, &n)| n > 0)
        .filter_map(|(kind, &n)| Some((tables.get(kind)?.unit(), n)))
        .collect();
    let coming = (counts.len()..problem.cluster.groups.len())
        .filter_map(|kind| Some(tables.get(kind)?.unit()))
        .min_by(f64::total_cmp);
    stages.extend(coming.map(|unit| (unit, left)));
    // The layers fit best with the slowest stages last.
    stages.sort_by(|a, b| b.0.total_cmp(&a.0));
    let shape = Shape {
        schedule: d.schedule,
        pp: d.pp,
        vpp: d.vpp,
        micro_batches: d.micro_batches(problem),
    };
    let mut bound = Continuous::new(shape);
    for (unit, n) in stages {
        for _ in 0..n {
            bound.stage(unit, 0.0);
        }
    }
    bound.bound(f64::from(problem.model.layers)) > limit.seconds() * (1.0 + 1e-9)
}

/// The class's plan without stages.
fn degrees(entry: &Entry, shard: Shard, (schedule, vpp): (Schedule, u64)) -> Plan {
    Plan {
        dp: shard.dp,
        tp: shard.tp,
        sp: shard.sp,
        cp: shard.cp,
        ep: shard.ep,
        etp: shard.etp,
        pp: entry.cell.pp,
        vpp,
        mbs: shard.mbs,
        zero: shard.zero,
        shard_group: shard.shard_group,
        schedule,
        optimizer_offload: false,
        stages: Vec::new(),
    }
}
