//! Branch and bound over the classes of the space.
//!
//! First every legal choice of degrees and micro-batch gets a lower bound from its layers' price alone; these entries are
//! sorted by the bound with a pipeline's usual bubble on top, so that good plans are found early. Then they are searched in
//! blocks of fixed sizes: inside a block every entry cuts by the plans found before the block and by its own, so that
//! neither the answer nor a counter depends on the number of threads. Classes whose plan is not yet proved to be
//! their optimum are closed at the end, when few of them still matter.

use super::bound::{Continuous, Shape};
use super::descent::close;
use super::guess::guess;
use super::holds::Holds;
use super::report::{Counters, Cut};
use super::space::{self, Axes, Cell, Composition, Walked};
use super::stages::{solve, Class, Outcome};
use super::watch::Watch;
use crate::estimate::block;
use crate::estimate::layer::Pricer;
use crate::estimate::shard::Shard;
use crate::estimate::Tables;
use crate::plan::Plan;
use crate::spec::problem::{Problem, Schedule};
use crate::units::Time;
use rayon::prelude::*;
use std::cmp::Ordering;

/// Entries that are searched against the same incumbents, at most: blocks double up to this size, so that the first
/// plans bound most of the rest.
const BLOCK: usize = 16;

/// One choice of degrees and micro-batch.
#[derive(Clone, Copy, Debug)]
struct Entry {
    cell: Cell,
    sp: bool,
    ep: u64,
    mbs: u64,
    bound: Time,
    /// Place in the order of the search.
    promise: Time,
    /// Classes below it.
    classes: u64,
}

/// A class whose plan may not be its optimum.
#[derive(Clone, Debug)]
struct Open {
    entry: usize,
    plan: Plan,
    bound: Time,
    time: Time,
}

/// A plan with its time.
pub type Candidate = (Time, Plan);

/// The best plans so far, in order, at most `top`.
#[derive(Clone, Debug)]
pub struct Best {
    top: usize,
    /// Place of each kind of chip in the order of their names.
    names: Vec<usize>,
    list: Vec<Candidate>,
    /// At least `top` classes have a plan no slower than this.
    ceiling: Time,
}

impl Best {
    /// No plan yet.
    pub fn new(problem: &Problem) -> Best {
        let groups = &problem.cluster.groups;
        let names = groups
            .iter()
            .map(|g| groups.iter().filter(|other| other.chip.name < g.chip.name).count())
            .collect();
        Best { top: problem.options.top as usize, names, list: Vec::new(), ceiling: Time::MAX }
    }

    /// A plan slower than this cannot enter.
    pub fn limit(&self) -> Time {
        self.list.get(self.top - 1).map_or(self.ceiling, |c| c.0.min(self.ceiling))
    }

    /// Enters a plan at its place.
    pub fn offer(&mut self, candidate: Candidate) {
        let place = self.list.partition_point(|c| self.order(c, &candidate).is_lt());
        self.list.insert(place, candidate);
        self.list.truncate(self.top);
    }

    /// Puts a faster plan in the place of another of its class.
    fn replace(&mut self, old: &Plan, candidate: Candidate) {
        self.list.retain(|c| &c.1 != old);
        self.offer(candidate);
    }

    /// The plans, fastest first.
    pub fn into_list(self) -> Vec<Candidate> {
        self.list
    }

    /// The fastest time.
    pub fn first(&self) -> Option<Time> {
        self.list.first().map(|c| c.0)
    }

    /// Faster first; then fewer devices, smaller pp, tp, cp, then the other degrees, then the names of the stages' chips:
    /// never the order in which chips were listed.
    fn order(&self, a: &Candidate, b: &Candidate) -> Ordering {
        let degrees = |p: &Plan| {
            let cells = (p.devices(), p.pp, p.tp, p.cp, p.dp);
            (cells, p.sp, p.ep, p.etp, p.vpp, p.mbs, p.zero, p.shard_group, p.schedule)
        };
        let names = |p: &Plan| -> Vec<usize> {
            p.stages.iter().map(|s| self.names[s.chip as usize]).collect()
        };
        a.0.cmp(&b.0)
            .then_with(|| degrees(&a.1).cmp(&degrees(&b.1)))
            .then_with(|| names(&a.1).cmp(&names(&b.1)))
    }
}

/// What the enumeration found.
pub struct Found {
    /// Best plans.
    pub best: Best,
    /// What happened to every class.
    pub counters: Counters,
    /// Bound of the first entry that was not reached, if the search was stopped.
    pub open: Option<Time>,
}

/// Searches the whole space.
pub fn enumerate(problem: &Problem, watch: &Watch) -> Found {
    let mut counters = Counters::default();
    let mut entries = entries(problem, &mut counters);
    entries.sort_by_key(|e| e.promise);
    let mut best = Best::new(problem);
    best.ceiling = ceiling(problem, &entries, &mut counters, watch);
    let mut open: Vec<Open> = Vec::new();
    let (mut at, mut size) = (0, 1);
    while at < entries.len() && !watch.stopped() {
        let block = at..(at + size).min(entries.len());
        let results: Vec<EntryResult> = block
            .clone()
            .into_par_iter()
            .map(|i| search_entry(problem, &entries, i, &best, watch))
            .collect();
        for result in results {
            counters.merge(&result.counters);
            result.found.into_iter().for_each(|c| best.offer(c));
            open.extend(result.open);
        }
        at = block.end;
        size = (2 * size).min(BLOCK);
        watch.advance(at as u64, entries.len() as u64);
    }
    for entry in &entries[at..] {
        counters.cut(Cut::Unreached, entry.classes);
    }
    let unreached = entries[at..].iter().map(|e| e.bound).min();
    let unproved = close_all(problem, &entries, open, &mut best, &mut counters, watch);
    let open = match (unreached, unproved) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    Found { best, counters, open }
}

/// Finds the optimum of every open class that could still enter the list; returns the least bound that is left open
/// when the watch stops it.
fn close_all(
    problem: &Problem,
    entries: &[Entry],
    mut open: Vec<Open>,
    best: &mut Best,
    counters: &mut Counters,
    watch: &Watch,
) -> Option<Time> {
    open.sort_by_key(|o| o.bound);
    let mut rest = open.into_iter();
    for class in rest.by_ref() {
        if class.bound > best.limit() {
            return None;
        }
        if watch.stopped() {
            return Some(class.bound);
        }
        let entry = &entries[class.entry];
        let shard = class.plan.shard();
        let tables = Tables::new(problem, shard, |k| space::places(problem, entry.cell, k, false));
        let wanted = |k: usize| space::places(problem, entry.cell, k, false);
        let holds = Holds::new(problem, &tables, class.plan.clone(), wanted);
        let kinds: Vec<usize> = class.plan.stages.iter().map(|s| s.chip as usize).collect();
        let whole = Class { holds: &holds, kinds: &kinds };
        let ceiling = class.time.min(Time(best.limit().0.saturating_add(1)));
        if let Some((plan, time)) = close(&whole, ceiling, counters) {
            best.replace(&class.plan, (time, plan));
        }
    }
    None
}

/// Entries, and classes of each, that are guessed at before the search.
const GUESSES: (usize, usize) = (96, 48);

/// The N-th best of quick guesses at the most promising classes: a time that the N-th best plan does not exceed.
fn ceiling(problem: &Problem, entries: &[Entry], counters: &mut Counters, watch: &Watch) -> Time {
    let promising = &entries[..entries.len().min(GUESSES.0)];
    let guesses: Vec<(Vec<Time>, Counters)> = promising
        .par_iter()
        .map(|entry| {
            let mut counters = Counters::default();
            let times = guess_entry(problem, entry, &mut counters, watch);
            (times, counters)
        })
        .collect();
    let mut times = Vec::new();
    for (found, count) in guesses {
        counters.merge(&count);
        times.extend(found);
    }
    times.sort_unstable();
    times.get(problem.options.top as usize - 1).copied().unwrap_or(Time::MAX)
}

/// Times of some plan of some classes of an entry: 1F1B and interleaved, nothing or everything sharded over the whole
/// group or the optimizer alone.
fn guess_entry(
    problem: &Problem,
    entry: &Entry,
    counters: &mut Counters,
    watch: &Watch,
) -> Vec<Time> {
    let cell = entry.cell;
    let axes = space::axes(problem, cell);
    let whole = cell.dp * cell.cp;
    let mut times = Vec::new();
    for &sharding in axes.sharding.iter().filter(|s| s.0 == 0 || s.1 == whole) {
        if space::cut_sharding(problem, cell, sharding).is_some() {
            continue;
        }
        let shard = shard(problem, cell, entry.sp, entry.ep, entry.mbs, sharding);
        let wanted = |k: usize| space::places(problem, cell, k, false);
        let tables = Tables::new(problem, shard, wanted);
        for &schedule in &axes.schedules {
            let usual = matches!(schedule.0, Schedule::OneFOneB | Schedule::Interleaved);
            if !usual || times.len() >= GUESSES.1 || watch.stopped() {
                continue;
            }
            let holds = Holds::new(problem, &tables, degrees(entry, shard, schedule), wanted);
            let tried = std::cell::Cell::new(0);
            let prune = |counts: &[u64], _: u64| {
                let enough = tried.get() >= GUESSES.1;
                beyond_limits(problem, entry, counts).or(enough.then_some(Cut::Bound))
            };
            space::each_composition(problem.cluster.groups.len(), cell.pp, &prune, &mut |step| {
                let Walked::One(runs) = step else { return };
                tried.set(tried.get() + 1);
                if cut_composition(problem, entry, schedule, runs).is_none() {
                    let kinds = stage_kinds(runs);
                    times.extend(guess(&Class { holds: &holds, kinds: &kinds }, counters));
                }
            });
        }
    }
    times
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

/// Every legal entry with its bound; illegal ones are counted.
fn entries(problem: &Problem, counters: &mut Counters) -> Vec<Entry> {
    let mut entries = Vec::new();
    for cell in space::cells(problem.cluster.devices) {
        let axes = space::axes(problem, cell);
        counters.considered = counters.considered.saturating_add(axes.size());
        if let Some(reason) = space::cut_cell(problem, cell) {
            counters.cut(reason, axes.size());
            continue;
        }
        for &sp in &axes.sp {
            for &ep in &axes.ep {
                for &mbs in &axes.mbs {
                    match space::cut_shard(problem, cell, sp, ep, mbs) {
                        Some(reason) => counters.cut(reason, axes.below_shard()),
                        None => entries.push((cell, sp, ep, mbs, axes.below_shard())),
                    }
                }
            }
        }
    }
    counters.bounds += entries.len() as u64;
    entries
        .into_par_iter()
        .map(|(cell, sp, ep, mbs, classes)| {
            let shard = shard(problem, cell, sp, ep, mbs, (0, 1));
            let bound = entry_bound(problem, cell, shard);
            let micro_batches = problem.workload.global_batch_size / (cell.dp * mbs);
            let bubble = (micro_batches + cell.pp - 1) as f64 / micro_batches as f64;
            let promise = Time::from_seconds(bound.seconds() * bubble);
            Entry { cell, sp, ep, mbs, bound, promise, classes }
        })
        .collect()
}

fn shard(
    problem: &Problem,
    cell: Cell,
    sp: bool,
    ep: u64,
    mbs: u64,
    (zero, shard_group): (u8, u64),
) -> Shard {
    let etp = space::expert_tensor_parallel(problem, cell.tp);
    let pipelined = cell.pp > 1;
    Shard { dp: cell.dp, tp: cell.tp, sp, cp: cell.cp, ep, etp, mbs, zero, shard_group, pipelined }
}

/// A bound for every schedule, sharding and composition below an entry: the fastest kinds take as many stages as
/// they may, nothing is recomputed, nothing waits.
fn entry_bound(problem: &Problem, cell: Cell, shard: Shard) -> Time {
    let model = &problem.model;
    let per_stage = cell.dp * cell.tp * cell.cp;
    let mut kinds: Vec<(f64, u64)> = (0..problem.cluster.groups.len())
        .filter(|&kind| space::places(problem, cell, kind, false))
        .map(|kind| {
            let pricer = Pricer::new(problem, kind, shard);
            let mut seen = Vec::new();
            for kind in (0..model.layers).map(|i| model.layer_kind(i)) {
                if !seen.contains(&kind) {
                    seen.push(kind);
                }
            }
            let unit = seen
                .into_iter()
                .map(|k| block::price(&pricer, k).cost)
                .map(|c| c.forward.total() + c.input_gradient.total() + c.weight_gradient.total())
                .min()
                .unwrap_or(Time::ZERO);
            (unit.seconds(), problem.available(kind) / per_stage)
        })
        .collect();
    kinds.sort_by(|a, b| a.0.total_cmp(&b.0));
    let micro_batches = problem.workload.global_batch_size / (cell.dp * shard.mbs);
    let shape = Shape { schedule: Schedule::ZeroBubbleH1, pp: cell.pp, vpp: 1, micro_batches };
    let mut bound = Continuous::new(shape);
    let mut left = cell.pp;
    for (unit, stages) in kinds {
        for _ in 0..stages.min(left) {
            bound.stage(unit, 0.0);
        }
        left -= stages.min(left);
    }
    if left > 0 {
        // The limits give too few stages: every composition will be cut.
        return Time::MAX;
    }
    // Rounded down by more than the integer prices can have been rounded up.
    Time::from_seconds(bound.bound(f64::from(model.layers)) * (1.0 - 1e-9))
}

/// What one entry gave.
#[derive(Default)]
struct EntryResult {
    found: Vec<Candidate>,
    open: Vec<Open>,
    counters: Counters,
}

/// Searches all classes of one entry.
fn search_entry(
    problem: &Problem,
    entries: &[Entry],
    index: usize,
    incumbents: &Best,
    watch: &Watch,
) -> EntryResult {
    let entry = &entries[index];
    let mut result = EntryResult::default();
    if entry.bound > incumbents.limit() {
        result.counters.cut(Cut::Bound, entry.classes);
        return result;
    }
    let mut best = incumbents.clone();
    let cell = entry.cell;
    let axes = space::axes(problem, cell);
    let mut search =
        EntrySearch { problem, entry, index, best: &mut best, result: &mut result, watch };
    for &sharding in &axes.sharding {
        if let Some(reason) = space::cut_sharding(problem, cell, sharding) {
            search.result.counters.cut(reason, axes.compositions * axes.schedules.len() as u64);
            continue;
        }
        search.sharding(&axes, sharding);
    }
    result
}

struct EntrySearch<'p, 's> {
    problem: &'p Problem,
    entry: &'s Entry,
    index: usize,
    best: &'s mut Best,
    result: &'s mut EntryResult,
    watch: &'s Watch,
}

impl EntrySearch<'_, '_> {
    fn sharding(&mut self, axes: &Axes, sharding: (u8, u64)) {
        let e = self.entry;
        let problem = self.problem;
        let shard = shard(problem, e.cell, e.sp, e.ep, e.mbs, sharding);
        let tables =
            Tables::new(problem, shard, |kind| space::places(problem, e.cell, kind, false));
        for &schedule in &axes.schedules {
            let wanted = |k: usize| space::places(problem, e.cell, k, false);
            let holds = Holds::new(problem, &tables, degrees(e, shard, schedule), wanted);
            let limit = std::cell::Cell::new(self.best.limit());
            let prune = |counts: &[u64], left: u64| {
                if self.watch.stopped() {
                    return Some(Cut::Unreached);
                }
                beyond_limits(problem, e, counts)
                    .or_else(|| too_slow(&holds, counts, left, limit.get()).then_some(Cut::Bound))
            };
            let counters = &mut self.result.counters;
            let (best, open, found) =
                (&mut *self.best, &mut self.result.open, &mut self.result.found);
            space::each_composition(problem.cluster.groups.len(), e.cell.pp, &prune, &mut |step| {
                let runs = match step {
                    Walked::One(runs) => runs,
                    Walked::Cut(reason, classes) => {
                        counters.cut(reason, classes);
                        return;
                    }
                };
                if let Some(reason) = cut_composition(problem, e, schedule, runs) {
                    counters.cut(reason, 1);
                    return;
                }
                let kinds = stage_kinds(runs);
                let class = Class { holds: &holds, kinds: &kinds };
                match solve(&class, limit.get(), counters) {
                    Outcome::Found(f) => {
                        counters.estimated += 1;
                        best.offer((f.time, f.plan.clone()));
                        limit.set(best.limit());
                        if f.bound < f.time {
                            let (plan, bound, time) = (f.plan.clone(), f.bound, f.time);
                            open.push(Open { entry: self.index, plan, bound, time });
                        }
                        found.push((f.time, f.plan));
                    }
                    Outcome::Cut(reason) => counters.cut(reason, 1),
                }
            });
        }
    }
}

/// Whether the last of some counts of stages already asks for more devices than its kind has.
fn beyond_limits(problem: &Problem, entry: &Entry, counts: &[u64]) -> Option<Cut> {
    let per_stage = entry.cell.dp * entry.cell.tp * entry.cell.cp;
    let (kind, n) = (counts.len().checked_sub(1)?, counts.last()?);
    (n * per_stage > problem.available(kind)).then_some(Cut::Limits)
}

/// Whether no order of these counts of stages, with those left on the fastest kind still to come, can meet the limit.
fn too_slow(holds: &Holds<'_, '_>, counts: &[u64], left: u64, limit: Time) -> bool {
    if limit == Time::MAX {
        return false;
    }
    let d = &holds.degrees;
    let mut stages: Vec<(f64, u64)> = counts
        .iter()
        .enumerate()
        .filter(|&(_, &n)| n > 0)
        .filter_map(|(kind, &n)| Some((holds.tables.get(kind)?.unit(), n)))
        .collect();
    let coming = (counts.len()..holds.problem.cluster.groups.len())
        .filter_map(|kind| Some(holds.tables.get(kind)?.unit()))
        .min_by(f64::total_cmp);
    stages.extend(coming.map(|unit| (unit, left)));
    // The layers fit best with the slowest stages last.
    stages.sort_by(|a, b| b.0.total_cmp(&a.0));
    let shape = Shape {
        schedule: d.schedule,
        pp: d.pp,
        vpp: d.vpp,
        micro_batches: d.micro_batches(holds.problem),
    };
    let mut bound = Continuous::new(shape);
    for (unit, n) in stages {
        for _ in 0..n {
            bound.stage(unit, 0.0);
        }
    }
    bound.bound(f64::from(holds.problem.model.layers)) > limit.seconds() * (1.0 + 1e-9)
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
