//! Branch and bound over the classes of the space.
//!
//! Parts of the space stand in a heap in the order of their lower bounds: first every legal choice of degrees and micro-batch
//! (an entry), then its classes, each bounded with its own sharding, schedule, chips and memory. A part whose bound is above
//! the N-th best time known is never opened. An entry is bounded by what no micro-batch undercuts, then by its own prices, then
//! with a look at memory, then with each schedule and sharding: what costs more to bound is seldom bounded. Before a class is
//! solved, all that could matter are guessed at, the most promising of each block ahead of their turn, so that the limit is tight:
//! of those that differ in their sharding alone the others only where the first promises something, and once it is solved, like its
//! plan. Parts are opened in blocks of fixed sizes against the plans found before the block, so that neither the answer nor a
//! counter depends on the number of threads. A class whose plan is not yet proved to be its optimum goes back into the heap until
//! it is closed.

use super::best::Best;
use super::caps::hold;
use super::cell::Cell;
use super::compositions::{class_bound, cut_composition, stage_kinds, Compositions, Listed};
use super::counts::{Composition, Counts};
use super::descent::close;
use super::entries::Entries;
use super::entry::{cut_entry, entry_bound, Entry};
use super::family::{shard_groups, tables, Families};
use super::guess::{guess, like};
use super::holds::Holds;
use super::places::Places;
use super::report::{Counters, Cut};
use super::space::{self, offered};
use super::stages::{least, solve, Class, Outcome};
use super::walk::{Found, Node, Opened, Part, Walk};
use super::watch::Watch;
use crate::estimate::least::{Least, Prices};
use crate::estimate::Tables;
use crate::plan::Plan;
use crate::spec::problem::{Problem, Schedule};
use crate::units::Time;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Nodes that are opened against the same incumbents, at most.
const OPENED: usize = 24;
/// Classes that are solved against the same incumbents, at first: what the first find spares the others.
const SOLVED: usize = 4;
/// Schedules, and classes, of a block that are looked at before their turn; and on one kind of chip classes that are solved.
const AHEAD: usize = 6;
/// Estimates that a class's first descent makes at most, and how many times as many each further one makes: what others find
/// may spare the rest.
const DESCENT: u64 = 64;
const FURTHER: u64 = 4;

/// What the parts of a search share: the question, and what was priced for it.
struct Ground<'a, 'w> {
    problem: &'a Problem,
    entries: Entries<'a>,
    watch: &'w Watch,
    /// What stages hold, by entry, sharding and schedule: kept for the classes that differ in their chips alone.
    held: Mutex<FxHashMap<HeldKey, Arc<Holds<'a>>>>,
    /// Bounds of families of classes, by entry, ZeRO stage, schedule and chips.
    families: Families<(usize, u8, (Schedule, u64), Composition)>,
}

type HeldKey = (usize, (u8, u64), (Schedule, u64));

/// Most sharding and schedules whose stages are remembered at once.
const HELD: usize = 1024;

/// Searches the whole space for what enters the list of the best.
pub fn enumerate(problem: &Problem, best: Best, watch: &Watch) -> Found {
    let mut counters = Counters::default();
    let entries = Entries::new(problem, &mut counters);
    let found = search_entries(problem, entries, best, counters, watch);
    if !problem.options.mixed_tp {
        return found;
    }
    let Found { best, mut counters, open } = found;
    let unreached = |counters: &Counters| counters.cut.get(&Cut::Unreached).copied();
    let before = unreached(&counters);
    let entries = Entries::mixed(problem, best.limit(), watch, &mut counters);
    // Of those that were not even bounded nothing is known.
    let unknown = (unreached(&counters) != before).then_some(Time::ZERO);
    let mut found = search_entries(problem, entries, best, counters, watch);
    found.open = found.open.into_iter().chain(open).chain(unknown).min();
    found
}

/// Searches all classes of some entries, beside the best of others.
pub fn search_entries<'a>(
    problem: &'a Problem,
    entries: Entries<'a>,
    best: Best,
    counters: Counters,
    watch: &Watch,
) -> Found {
    let (held, families) = (Mutex::default(), Families::new());
    let ground = Ground { problem, entries, watch, held, families };
    let mut walk = Walk::new(&ground.entries, best, counters);
    // On several kinds of chip the best of a class is far from its guess: all that are promising are solved.
    let apart = problem.cluster.groups.len() > 1;
    let solved = if apart { usize::MAX } else { AHEAD };
    let open = |node: &Node, limit| ground.open(node, limit);
    let guess = |node: &Node, limit, thorough| ground.guess(node, limit, thorough);
    let like = |node: &Node, plan: &Plan, limit| ground.guess_like(node, plan, limit);
    // The first blocks are small: what they find tells what of the next is worth a look.
    let mut most = 1;
    while walk.goes_on() && !watch.stopped() {
        let limit = walk.best.limit();
        let (mut classes, block): (Vec<Node>, Vec<Node>) =
            walk.block(most).into_iter().partition(|node| matches!(node.part, Part::Class(..)));
        most = (2 * most).min(OPENED);
        let mut fresh = walk.open_all(block, limit, open);
        // The most promising schedules and classes are looked at before their turn: a tight limit spares looks at the others.
        let limit = walk.best.limit();
        let early = promising(&mut fresh, limit, |part| matches!(part, Part::Schedule(..)));
        fresh.extend(walk.open_all(early, limit, open));
        classes.extend(promising(&mut fresh, limit, |part| matches!(part, Part::Class(..))));
        walk.heap.extend(fresh);
        let guessed = walk.guess_all(classes, apart, guess);
        walk.solve_promising(guessed, solved, open, like);
        watch.advance(walk.done, walk.serial);
    }
    // All that could matter are guessed at: those with the best guesses first, each class is solved against a tight limit.
    let waiting = std::mem::take(&mut walk.waiting);
    if watch.stopped() {
        walk.waiting = waiting;
    } else {
        walk.solve_promising(waiting, usize::MAX, open, like);
    }
    let waiting = std::mem::take(&mut walk.waiting);
    walk.heap.extend(waiting.into_iter().map(|(node, _)| node));
    let mut most = SOLVED;
    while walk.goes_on() && !watch.stopped() {
        let limit = walk.best.limit();
        let block = walk.block(most);
        most = (2 * most).min(OPENED);
        let fresh = walk.open_all(block, limit, |node, limit| ground.settle(node, limit));
        walk.heap.extend(fresh);
        watch.advance(walk.done, walk.serial);
    }
    walk.finish()
}

/// Takes the nodes with the least bounds whose parts are `wanted`, if they are within `limit`.
fn promising(fresh: &mut Vec<Node>, limit: Time, wanted: impl Fn(&Part) -> bool) -> Vec<Node> {
    fresh.sort_unstable_by(|a, b| b.cmp(a));
    let counts = |node: &Node| wanted(&node.part) && node.bound <= limit;
    let places: Vec<usize> = (0..fresh.len()).filter(|&n| counts(&fresh[n])).take(AHEAD).collect();
    places.into_iter().rev().map(|n| fresh.remove(n)).collect()
}

impl<'a> Ground<'a, '_> {
    fn entry(&self, node: &Node) -> &Entry {
        &self.entries.list[node.entry]
    }

    /// The time of some plan of a class, if it is within `limit`.
    fn guess(&self, node: &Node, limit: Time, thorough: bool) -> Opened {
        let mut opened = Opened::default();
        if let Part::Class(sharding, schedule, runs) = &node.part {
            let holds = self.holds((node.entry, *sharding, *schedule));
            let class = Class { holds: &holds, kinds: &stage_kinds(runs), watch: self.watch };
            opened.guess = guess(&class, (node.bound, limit), thorough, &mut opened.counters);
        }
        opened
    }

    /// The time of a class's plan with the stages of another's.
    fn guess_like(&self, node: &Node, plan: &Plan, limit: Time) -> Opened {
        let mut opened = Opened::default();
        if let Part::Class(sharding, schedule, runs) = &node.part {
            let holds = self.holds((node.entry, *sharding, *schedule));
            let class = Class { holds: &holds, kinds: &stage_kinds(runs), watch: self.watch };
            opened.guess = like(&class, plan, limit, &mut opened.counters);
        }
        opened
    }

    /// Whether the stages of a class could hold the model within `limit`.
    fn could_hold(
        &self,
        node: &Node,
        holds: &Holds<'_>,
        schedule: (Schedule, u64),
        runs: &Composition,
        limit: Time,
    ) -> bool {
        if limit == Time::MAX {
            return true;
        }
        let kinds = 0..self.problem.cluster.groups.len();
        let leasts: Vec<Option<Least>> = kinds
            .map(|kind| {
                let used = runs.iter().any(|run| run.0 == kind);
                used.then(|| holds.tables.kind(kind).least())
            })
            .collect();
        let entry = self.entry(node);
        let asked = entry.question(self.problem, schedule, false, limit);
        let offered = offered(self.problem, &entry.cell);
        let places = Places::new(&asked, &leasts, &offered);
        hold(&places.and_then(|places| places.within(limit.seconds())), runs)
    }

    /// What the stages of an entry hold under a sharding and a schedule.
    fn holds(&self, key: HeldKey) -> Arc<Holds<'a>> {
        let lock = || self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&key) {
            return known.clone();
        }
        let (n, sharding, schedule) = key;
        let entry = &self.entries.list[n];
        let tables = Tables::new(self.problem, |kind| {
            space::places(self.problem, entry.cell, kind, false)
                .then(|| entry.shard(self.problem, kind, sharding))
        });
        let holds = Arc::new(Holds::new(tables, degrees(self.problem, entry, sharding, schedule)));
        let mut held = lock();
        if held.len() >= HELD {
            held.clear();
        }
        held.insert(key, holds.clone());
        holds
    }

    /// The same, but for a class whose family has nothing within `limit`, which must be that of all nodes of a block.
    fn settle(&self, node: &Node, limit: Time) -> Opened {
        let mut opened = Opened::default();
        match self.family_bound(node, limit, &mut opened.counters) {
            Ok(bound) if bound <= limit => {}
            Err(Cut::Unreached) => {}
            Ok(_) => {
                opened.counters.cut(Cut::Bound, 1);
                return opened;
            }
            Err(reason) => {
                opened.counters.cut(reason, 1);
                return opened;
            }
        }
        let counted = opened.counters;
        opened = self.open(node, limit);
        opened.counters.merge(&counted);
        opened
    }

    /// A time before which no plan of a class's family ends, or why none is within `limit`.
    fn family_bound(&self, node: &Node, limit: Time, counters: &mut Counters) -> Result<Time, Cut> {
        let Part::Class((zero, _), schedule, runs) = &node.part else { return Ok(Time::ZERO) };
        let (zero, entry) = (*zero, self.entry(node));
        let Some(groups) = shard_groups(self.problem, entry, zero) else { return Ok(Time::ZERO) };
        self.families.bound((node.entry, zero, *schedule, runs.clone()), || {
            let degrees = degrees(self.problem, entry, (zero, groups[0]), *schedule);
            let holds = Holds::new(tables(self.problem, entry, zero, &groups), degrees);
            let class = Class { holds: &holds, kinds: &stage_kinds(runs), watch: self.watch };
            if class.uneven() {
                least(&class, limit, counters)
            } else {
                Ok(Time::ZERO)
            }
        })
    }

    /// Splits a node into its parts, or finds the plan of its class.
    fn open(&self, node: &Node, limit: Time) -> Opened {
        let mut opened = Opened::default();
        match &node.part {
            Part::Entry => self.weigh(node, limit, &mut opened),
            Part::Weighed(zero, leasts) => {
                self.open_entry(self.entry(node), (*zero, leasts), limit, &mut opened);
            }
            Part::Schedule(..) => self.open_schedule(node, limit, &mut opened),
            Part::Class(sharding, schedule, runs) => {
                let holds = self.holds((node.entry, *sharding, *schedule));
                let class = Class { holds: &holds, kinds: &stage_kinds(runs), watch: self.watch };
                opened.counters.bounds += 1;
                if !self.could_hold(node, &holds, *schedule, runs, limit) {
                    opened.counters.cut(Cut::Bound, 1);
                    return opened;
                }
                match solve(&class, limit, &mut opened.counters) {
                    Outcome::Found(f) => {
                        opened.counters.estimated += 1;
                        if f.bound < f.time {
                            let part = Part::Open(Box::new(f.plan.clone()), f.time, DESCENT);
                            opened.parts.push((f.bound, 0, part));
                        }
                        opened.found = Some((f.time, f.plan));
                    }
                    Outcome::Cut(reason) => opened.counters.cut(reason, 1),
                }
            }
            Part::Open(plan, time, estimates) => {
                let kinds: Vec<usize> = plan.stages.iter().map(|s| s.chip as usize).collect();
                let key = (node.entry, (plan.zero, plan.shard_group), (plan.schedule, plan.vpp));
                let holds = self.holds(key);
                let class = Class { holds: &holds, kinds: &kinds, watch: self.watch };
                let ceiling = (*time).min(Time(limit.0.saturating_add(1)));
                let closed = close(&class, ceiling, *estimates, &mut opened.counters);
                opened.better =
                    closed.better.map(|(better, time)| ((**plan).clone(), (time, better)));
                if !closed.done {
                    let (time, plan) = match &opened.better {
                        Some((_, better)) => better.clone(),
                        None => (*time, (**plan).clone()),
                    };
                    let part = Part::Open(Box::new(plan), time, estimates.saturating_mul(FURTHER));
                    opened.parts.push((node.bound, 0, part));
                }
            }
        }
        opened
    }

    /// Bounds an entry by its own prices, then with a look at memory, for each ZeRO stage by itself.
    fn weigh(&self, node: &Node, limit: Time, opened: &mut Opened) {
        let (problem, entry) = (self.problem, self.entry(node));
        let Opened { counters, parts, .. } = opened;
        let offered: u64 = offered(problem, &entry.cell).iter().map(|s| s.most).sum();
        if offered < entry.cell.pp {
            counters.cut(Cut::Limits, node.classes);
            return;
        }
        counters.bounds += 1;
        let least = self.entries.prices.in_unlimited_memory(entry);
        if least > limit {
            counters.cut(Cut::Bound, node.classes);
            return;
        }
        let shardings = space::shardings(entry.cell);
        let mut stages: Vec<(u8, u64)> = Vec::with_capacity(4);
        for of_stage in shardings.chunk_by(|a, b| a.0 == b.0) {
            let classes = node.classes / shardings.len() as u64 * of_stage.len() as u64;
            let cut = |&sharding| space::cut_sharding(problem, entry.cell, sharding);
            match of_stage.iter().map(cut).min().flatten() {
                Some(reason) => counters.cut(reason, classes),
                None if !entry.zero[usize::from(of_stage[0].0)] => {
                    counters.cut(Cut::Bound, classes);
                }
                None => stages.push((of_stage[0].0, classes)),
            }
        }
        let flying = entry.micro_batches(problem);
        let below = |leasts: &[Option<Least>]| entry_bound(problem, entry, flying, leasts, limit);
        let leasts = |stages: &[u8]| self.entries.prices.leasts(entry, stages);
        if stages.len() > 1 && limit < Time::MAX {
            // Most are cut whatever the stage.
            let all: Vec<u8> = stages.iter().map(|stage| stage.0).collect();
            counters.bounds += 1;
            if let Some(reason) = cut_entry(problem, entry, flying, &leasts(&all), limit) {
                stages.iter().for_each(|&(_, classes)| counters.cut(reason, classes));
                return;
            }
        }
        for (zero, classes) in stages {
            counters.bounds += 1;
            let leasts = leasts(&[zero]);
            match below(&leasts) {
                Err(reason) => counters.cut(reason, classes),
                Ok(bound) => {
                    let part = Part::Weighed(zero, Arc::new(leasts));
                    parts.push((bound.max(least), classes, part));
                }
            }
        }
    }

    /// Bounds every schedule of an entry for all shardings of a ZeRO stage at once, and those that may matter with each.
    fn open_entry(
        &self,
        entry: &Entry,
        (zero, leasts): (u8, &[Option<Least>]),
        limit: Time,
        opened: &mut Opened,
    ) {
        let (problem, cell) = (self.problem, entry.cell);
        let (all_schedules, all_shardings) =
            (space::schedules(problem, cell.pp), space::shardings(cell));
        let compositions = Counts::of(problem, &cell).count();
        let one_kind = problem.cluster.groups.len() == 1;
        let Opened { counters, parts, .. } = opened;
        let kinds = vec![0; if one_kind { cell.pp as usize } else { 0 }];
        let runs: Composition = vec![(0, cell.pp)];
        let offered = offered(problem, &entry.cell);
        let bound = |schedule, leasts: &[Option<Least>]| {
            if one_kind {
                class_bound(problem, entry, schedule, leasts, &kinds, limit)
            } else {
                entry.question(problem, schedule, false, limit).in_any_order(leasts, &offered)
            }
        };
        // When the fastest at each stage could hold the model.
        let held = |schedule, bound: Time| {
            let asked = entry.question(problem, schedule, false, limit);
            Places::new(&asked, leasts, &offered)
                .map_or(Err(Cut::Placement), |places| places.bound(bound, limit))
        };
        let shardings = || all_shardings.iter().copied().filter(|sharding| sharding.0 == zero);
        let all = compositions * shardings().count() as u64;
        let mut schedules = Vec::with_capacity(all_schedules.len());
        for &schedule in &all_schedules {
            let illegal = if one_kind {
                cut_composition(problem, entry, schedule, &runs)
            } else {
                space::cut_everywhere(problem, cell, entry.mbs, schedule)
            };
            if let Some(reason) = illegal {
                counters.cut(reason, all);
                continue;
            }
            counters.bounds += 1;
            match bound(schedule, leasts).within(limit).and_then(|bound| held(schedule, bound)) {
                Err(reason) => counters.cut(reason, all),
                Ok(bound) => schedules.push((schedule, bound)),
            }
        }
        if schedules.is_empty() {
            return;
        }
        let below = compositions * schedules.len() as u64;
        // Schedules that no group as large as the one at hand leaves memory for within the limit: smaller ones leave no more.
        let (mut hopeful, mut lost) = (schedules.clone(), BTreeMap::<Cut, u64>::new());
        for sharding in shardings().rev() {
            if self.watch.stopped() {
                counters.cut(Cut::Unreached, below);
                continue;
            }
            if let Some(reason) = space::cut_sharding(problem, cell, sharding) {
                counters.cut(reason, below);
                continue;
            }
            let mut left = &schedules;
            if let Some(quiet) = self.entries.prices.quiet(entry, sharding) {
                // Most are cut by what the sharding leaves in memory, before its passes are priced.
                if !hopeful.is_empty() {
                    let mut leasts = leasts_of(problem, entry, sharding, &quiet);
                    leasts.iter_mut().flatten().for_each(Least::forget_tail);
                    hopeful.retain(|&(schedule, _)| {
                        counters.bounds += 1;
                        let cut = bound(schedule, &leasts).within(limit).err();
                        cut.inspect(|&reason| *lost.entry(reason).or_insert(0) += 1).is_none()
                    });
                }
                lost.iter().for_each(|(&reason, n)| counters.cut(reason, n * compositions));
                left = &hopeful;
                if left.is_empty() {
                    continue;
                }
            }
            let prices = self.entries.prices.under(entry, sharding);
            let leasts = Arc::new(leasts_of(problem, entry, sharding, &prices));
            for &(schedule, least) in left.iter() {
                counters.bounds += 1;
                match bound(schedule, &leasts).within(limit).map(|bound| bound.max(least)) {
                    Err(reason) => counters.cut(reason, compositions),
                    Ok(bound) if one_kind => {
                        parts.push((bound, 1, Part::Class(sharding, schedule, runs.clone())));
                    }
                    Ok(bound) => {
                        let listed = Listed::new(bound);
                        let part = Part::Schedule(sharding, schedule, leasts.clone(), listed);
                        parts.push((bound, compositions, part));
                    }
                }
            }
        }
    }

    /// Lists the next compositions under a sharding and a schedule.
    fn open_schedule(&self, node: &Node, limit: Time, opened: &mut Opened) {
        let Part::Schedule(sharding, schedule, leasts, listed) = &node.part else { return };
        let (sharding, schedule) = (*sharding, *schedule);
        let (problem, entry, watch) = (self.problem, self.entry(node), self.watch);
        let compositions = Compositions { problem, entry, schedule, leasts, watch };
        let Opened { counters, parts, .. } = opened;
        let (now, found) = compositions.list(listed, node.classes, limit, counters);
        if watch.stopped() {
            let again = Part::Schedule(sharding, schedule, leasts.clone(), listed.clone());
            parts.push((node.bound, node.classes, again));
            return;
        }
        parts.extend(
            found
                .into_iter()
                .map(|(bound, runs)| (bound, 1, Part::Class(sharding, schedule, runs))),
        );
        let left = node.classes.saturating_sub(now.since(listed, counters));
        if now.until == limit {
            counters.cut(Cut::Bound, left);
        } else if left > 0 {
            let part = Part::Schedule(sharding, schedule, leasts.clone(), now.clone());
            parts.push((now.until, left, part));
        }
    }
}

/// What any stage costs at least on each kind that is priced.
fn leasts_of(
    problem: &Problem,
    entry: &Entry,
    sharding: (u8, u64),
    prices: &[Option<Cow<'_, Prices>>],
) -> Vec<Option<Least>> {
    let of = |(kind, prices): (usize, &Option<Cow<'_, Prices>>)| {
        let shard = entry.shard(problem, kind, sharding);
        prices.as_ref().map(|prices| Least::of(problem, kind, &shard, prices))
    };
    prices.iter().enumerate().map(of).collect()
}

/// The class's plan without stages.
fn degrees(
    problem: &Problem,
    entry: &Entry,
    (zero, shard_group): (u8, u64),
    (schedule, vpp): (Schedule, u64),
) -> Plan {
    let Cell { pp, tp, cp, dp, .. } = entry.cell;
    Plan {
        dp,
        tp,
        tp_of_kind: entry.cell.own_degrees(problem),
        sp: entry.sp,
        cp,
        ep: entry.ep,
        etp: space::expert_tensor_parallel(problem, tp),
        pp,
        vpp,
        mbs: entry.mbs,
        zero,
        shard_group,
        schedule,
        optimizer_offload: false,
        stages: Vec::new(),
    }
}
