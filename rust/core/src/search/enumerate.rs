//! Branch and bound over the classes of the space.
//!
//! First every legal choice of degrees and micro-batch gets a lower bound from its layers' price alone; these entries are sorted by
//! it. Then they are searched in blocks of fixed size: inside a block every entry cuts by the plans found before the block
//! and by its own, so that neither the answer nor a counter depends on the number of threads. When the bound of a block's
//! first entry exceeds the N-th best time, all that is left is cut at once.

use super::bound::{Continuous, Shape};
use super::report::{Counters, Cut};
use super::space::{self, Axes, Cell, Composition};
use super::stages::{solve, Class, Outcome};
use super::watch::Watch;
use crate::estimate::layer::Pricer;
use crate::estimate::shard::Shard;
use crate::estimate::stage::Table;
use crate::estimate::Tables;
use crate::plan::Plan;
use crate::spec::problem::{Problem, Schedule};
use crate::units::Time;
use rayon::prelude::*;

/// Entries that are searched against the same incumbents.
const BLOCK: usize = 16;

/// One choice of degrees and micro-batch.
#[derive(Clone, Copy, Debug)]
struct Entry {
    cell: Cell,
    sp: bool,
    ep: u64,
    mbs: u64,
    bound: Time,
    /// Classes below it.
    classes: u64,
}

/// A plan with its time.
pub type Candidate = (Time, Plan);

/// The best plans so far, in order, at most `top`.
#[derive(Clone, Debug)]
pub struct Best {
    top: usize,
    list: Vec<Candidate>,
}

impl Best {
    /// No plan yet.
    pub fn new(top: u32) -> Best {
        Best { top: top as usize, list: Vec::new() }
    }

    /// A plan slower than this cannot enter.
    pub fn limit(&self) -> Time {
        if self.list.len() < self.top {
            Time::MAX
        } else {
            self.list[self.top - 1].0
        }
    }

    /// Enters a plan at its place.
    pub fn offer(&mut self, candidate: Candidate) {
        let place = self.list.partition_point(|c| order(c) < order(&candidate));
        self.list.insert(place, candidate);
        self.list.truncate(self.top);
    }

    /// The plans, fastest first.
    pub fn into_list(self) -> Vec<Candidate> {
        self.list
    }

    /// The fastest time.
    pub fn first(&self) -> Option<Time> {
        self.list.first().map(|c| c.0)
    }
}

/// Faster first; then fewer devices, smaller pp, tp, cp, then the plan's own order.
fn order(c: &Candidate) -> (Time, u64, u64, u64, u64, &Plan) {
    let p = &c.1;
    (c.0, p.devices(), p.pp, p.tp, p.cp, p)
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
    entries.sort_by_key(|e| e.bound);
    let mut best = Best::new(problem.options.top);
    let mut at = 0;
    while at < entries.len() && !watch.stopped() {
        if entries[at].bound > best.limit() {
            break;
        }
        let block = &entries[at..(at + BLOCK).min(entries.len())];
        let results: Vec<(Vec<Candidate>, Counters)> =
            block.par_iter().map(|e| search_entry(problem, e, &best, watch)).collect();
        for (found, count) in results {
            counters.merge(&count);
            found.into_iter().for_each(|c| best.offer(c));
        }
        at += block.len();
        watch.advance(at as u64, entries.len() as u64);
    }
    let rest = &entries[at..];
    let stopped = watch.stopped() && !rest.is_empty();
    let reason = if stopped { Cut::Unreached } else { Cut::Bound };
    for entry in rest {
        counters.cut(reason, entry.classes);
    }
    Found { best, counters, open: stopped.then(|| rest[0].bound) }
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
            Entry { cell, sp, ep, mbs, bound, classes }
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
    Shard { dp: cell.dp, tp: cell.tp, sp, cp: cell.cp, ep, etp, mbs, zero, shard_group }
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
                .map(|k| pricer.layer(k).cost)
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
    Time::from_seconds(bound.bound(f64::from(model.layers), micro_batches) * (1.0 - 1e-9))
}

/// Searches all classes of one entry.
fn search_entry(
    problem: &Problem,
    entry: &Entry,
    incumbents: &Best,
    watch: &Watch,
) -> (Vec<Candidate>, Counters) {
    let mut counters = Counters::default();
    let mut found = Vec::new();
    if entry.bound > incumbents.limit() {
        counters.cut(Cut::Bound, entry.classes);
        return (found, counters);
    }
    let mut best = incumbents.clone();
    let cell = entry.cell;
    let axes = space::axes(problem, cell);
    let mut search = EntrySearch { problem, entry, best: &mut best, found: &mut found, watch };
    for &sharding in &axes.sharding {
        if let Some(reason) = space::cut_sharding(problem, cell, sharding) {
            counters.cut(reason, axes.compositions * axes.schedules.len() as u64);
            continue;
        }
        search.sharding(&axes, sharding, &mut counters);
    }
    (found, counters)
}

struct EntrySearch<'p, 's> {
    problem: &'p Problem,
    entry: &'s Entry,
    best: &'s mut Best,
    found: &'s mut Vec<Candidate>,
    watch: &'s Watch,
}

impl EntrySearch<'_, '_> {
    fn sharding(&mut self, axes: &Axes, sharding: (u8, u64), counters: &mut Counters) {
        let e = self.entry;
        let problem = self.problem;
        let shard = shard(problem, e.cell, e.sp, e.ep, e.mbs, sharding);
        let tables =
            Tables::new(problem, shard, |kind| space::places(problem, e.cell, kind, false));
        let extremes: Vec<Option<(Table<'_>, Table<'_>)>> = (0..problem.cluster.groups.len())
            .map(|kind| {
                let table =
                    space::places(problem, e.cell, kind, false).then(|| tables.kind(kind))?;
                (!table.uniform()).then(|| (table.lightest(), table.heaviest()))
            })
            .collect();
        for &schedule in &axes.schedules {
            let degrees = degrees(e, shard, schedule);
            space::each_composition(problem.cluster.groups.len(), e.cell.pp, &mut |runs| {
                if self.watch.stopped() {
                    counters.cut(Cut::Unreached, 1);
                    return;
                }
                if let Some(reason) = self.cut_composition(schedule, runs) {
                    counters.cut(reason, 1);
                    return;
                }
                let kinds: Vec<usize> = runs
                    .iter()
                    .flat_map(|&(kind, stages)| std::iter::repeat_n(kind, stages as usize))
                    .collect();
                let class = Class {
                    problem,
                    tables: &tables,
                    extremes: &extremes,
                    degrees: &degrees,
                    kinds: &kinds,
                };
                match solve(&class, self.best.limit(), counters) {
                    Outcome::Found(plan, time) => {
                        counters.estimated += 1;
                        self.best.offer((time, plan.clone()));
                        self.found.push((time, plan));
                    }
                    Outcome::Cut(reason) => counters.cut(reason, 1),
                }
            });
        }
    }

    fn cut_composition(&self, schedule: (Schedule, u64), runs: &Composition) -> Option<Cut> {
        let (problem, e) = (self.problem, self.entry);
        let mixed = runs.len() > 1;
        if !runs.iter().all(|&(kind, _)| space::places(problem, e.cell, kind, mixed)) {
            return Some(Cut::Placement);
        }
        let per_stage = e.cell.dp * e.cell.tp * e.cell.cp;
        if runs.iter().any(|&(kind, n)| n * per_stage > problem.available(kind)) {
            return Some(Cut::Limits);
        }
        space::cut_schedule(problem, e.cell, e.mbs, schedule, runs.len())
    }
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
