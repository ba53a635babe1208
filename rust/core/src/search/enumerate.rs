//! Branch and bound over the classes of the space.
//!
//! Parts of the space stand in a heap in the order of their lower bounds: first every legal choice of degrees and micro-batch
//! (an entry), then its classes, each bounded with its own sharding, schedule, chips and memory. A part whose bound is above
//! the N-th best time known is never opened. Before a class is solved, all that could matter are guessed at, so that
//! the limit is tight. Parts are opened in blocks of fixed sizes against the plans found before the block, so that neither the
//! answer nor a counter depends on the number of threads. A class whose plan is not yet proved to be its optimum goes back into
//! the heap until it is closed.

use super::bound::{Continuous, Shape};
use super::descent::close;
use super::guess::guess;
use super::holds::Holds;
use super::relax::{Question, Verdict};
use super::report::{Counters, Cut};
use super::space::{self, Cell, Composition, Walked};
use super::stages::{solve, Class, Outcome};
use super::watch::Watch;
use crate::estimate::least::{Least, Passes, Prices};
use crate::estimate::pipeline::Sends;
use crate::estimate::shard::Shard;
use crate::estimate::stage::Table;
use crate::estimate::{sends, Tables};
use crate::plan::Plan;
use crate::spec::problem::{Problem, Schedule};
use crate::units::Time;
use rayon::prelude::*;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

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
    /// Place of each kind of chip in the order of their names.
    names: Vec<usize>,
    list: Vec<Candidate>,
    /// The shortest times of some plan of a class, one a class, at most `top`.
    guesses: Vec<Time>,
}

impl Best {
    /// No plan yet.
    pub fn new(problem: &Problem) -> Best {
        let groups = &problem.cluster.groups;
        let names = groups
            .iter()
            .map(|g| groups.iter().filter(|other| other.chip.name < g.chip.name).count())
            .collect();
        Best { top: problem.options.top as usize, names, list: Vec::new(), guesses: Vec::new() }
    }

    /// A plan slower than this cannot enter.
    pub fn limit(&self) -> Time {
        let found = self.list.get(self.top - 1).map_or(Time::MAX, |c| c.0);
        found.min(self.guesses.get(self.top - 1).copied().unwrap_or(Time::MAX))
    }

    /// Notes that a class has a plan of this time.
    fn guess(&mut self, time: Time) {
        let place = self.guesses.partition_point(|&t| t <= time);
        self.guesses.insert(place, time);
        self.guesses.truncate(self.top);
    }

    /// Notes that a class whose guess is among the best has a plan of this time.
    fn better(&mut self, guess: Time, time: Time) {
        let place = self.guesses.partition_point(|&t| t < guess);
        if self.guesses.get(place) == Some(&guess) {
            self.guesses.remove(place);
            self.guess(time);
        }
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
                        None => {
                            let classes = axes.below_shard();
                            entries.push(Entry { cell, sp, ep, mbs, bound: Time::ZERO, classes });
                        }
                    }
                }
            }
        }
    }
    counters.bounds += entries.len() as u64;
    let prices = prices(problem, &entries);
    entries.par_iter_mut().for_each(|entry| entry.bound = entry_bound(problem, entry, &prices));
    entries
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

/// What a layer's price depends on, ZeRO apart.
type PriceKey = (u64, bool, u64, u64, u64, bool);

/// For each kind, prices with nothing sharded, and sharded without what that communicates.
type EntryPrices = HashMap<PriceKey, Vec<[Prices; 2]>>;

fn price_key(entry: &Entry) -> PriceKey {
    (entry.cell.tp, entry.sp, entry.cell.cp, entry.ep, entry.mbs, entry.cell.pp > 1)
}

/// The prices of all entries, each once.
fn prices(problem: &Problem, entries: &[Entry]) -> EntryPrices {
    let mut distinct: HashMap<PriceKey, &Entry> = HashMap::new();
    for entry in entries {
        distinct.entry(price_key(entry)).or_insert(entry);
    }
    distinct
        .into_par_iter()
        .map(|(key, e)| {
            let of_kind = |kind: usize| {
                [(0, 1), (3, 1)].map(|sharding| {
                    let shard = shard(problem, e.cell, e.sp, e.ep, e.mbs, sharding);
                    Prices::new(problem, kind, shard)
                })
            };
            (key, (0..problem.cluster.groups.len()).map(of_kind).collect())
        })
        .collect()
}

/// Bytes that no stage needs, finite so that rates may be made of them.
const UNLIMITED: f64 = 1e18;

/// A bound for every schedule, sharding and composition below an entry: the fastest kinds take as many stages as
/// they may; activations take their memory, and of parameters and optimizer what the most frugal sharding leaves.
fn entry_bound(problem: &Problem, entry: &Entry, prices: &EntryPrices) -> Time {
    let Entry { cell, sp, ep, mbs, .. } = *entry;
    let per_stage = cell.dp * cell.tp * cell.cp;
    let whole = cell.dp * cell.cp;
    let shardings: Vec<Shard> = [(0, 1), (1, whole), (2, whole), (3, whole)]
        .into_iter()
        .map(|sharding| shard(problem, cell, sp, ep, mbs, sharding))
        .collect();
    let mut leasts: Vec<Option<Least>> = (0..problem.cluster.groups.len())
        .map(|kind| {
            let wanted = space::places(problem, cell, kind, false);
            let [loud, quiet] = &prices[&price_key(entry)][kind];
            wanted.then(|| Least::of_shardings(problem, kind, &shardings, loud, quiet))
        })
        .collect();
    let mut order: Vec<usize> = (0..leasts.len()).filter(|&k| leasts[k].is_some()).collect();
    let unit = |k: usize| leasts[k].as_ref().map_or(f64::INFINITY, |l| l.layer.both());
    order.sort_by(|&a, &b| unit(a).total_cmp(&unit(b)));
    let mut kinds = Vec::with_capacity(cell.pp as usize);
    for &kind in &order {
        let stages = (problem.available(kind) / per_stage).min(cell.pp - kinds.len() as u64);
        kinds.extend(std::iter::repeat_n(kind, stages as usize));
    }
    if kinds.len() < cell.pp as usize {
        // The limits give too few stages: every composition will be cut.
        return Time::MAX;
    }
    // The layers fit best with the slowest stages last.
    if order.len() > 1 {
        // Any kind may stand anywhere: memory is left to the classes, and the ends take what they take on the fastest.
        let of = |pick: fn(&Least) -> Passes| {
            leasts.iter().flatten().map(pick).reduce(Passes::min).unwrap_or_default()
        };
        let (other, ends) = (of(|l| l.other), [of(|l| l.ends[0]), of(|l| l.ends[1])]);
        for least in leasts.iter_mut().flatten() {
            least.capacity = UNLIMITED;
            (least.other, least.ends) = (other, ends);
        }
    }
    let micro_batches = problem.workload.global_batch_size / (cell.dp * mbs);
    let question = Question {
        problem,
        shape: Shape { schedule: Schedule::OneFOneB, pp: cell.pp, vpp: 1, micro_batches },
        sends: Sends::Overlapped,
        even: cell.pp == 1,
        any_schedule: true,
    };
    match question.bound(&leasts, &kinds) {
        Verdict::Seconds(seconds) => Time::from_seconds(seconds),
        Verdict::Memory => Time::MAX,
    }
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
