//! The compositions of a schedule whose stages could meet a time, listed a stretch of time after another.
//!
//! Kinds are counted before they are ordered, and most counts leave too little room for the layers within a time
//! ([`super::caps`]). As long as no limit is known, the time is a little above the bound of all compositions, so that those far
//! above it are seldom listed at all.

use super::bound::Verdict;
use super::caps::hold;
use super::cell::Cell;
use super::counts::{Composition, Counts, Walked};
use super::entry::{cut_entry, entry_bound, Entry};
use super::places::Places;
use super::relax::Question;
use super::report::{Counters, Cut};
use super::space::{self, offered};
use super::watch::Watch;
use crate::estimate::least::Least;
use crate::spec::problem::{Problem, Schedule};
use crate::units::Time;
use std::cell::OnceCell;
use std::collections::BTreeMap;

/// How far the compositions of a schedule are listed.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Those that could take no longer than this are listed.
    pub until: Time,
    /// How much further the next stretch goes at least.
    step: Time,
    /// How many are.
    classes: u64,
    /// How many are cut for what no time changes.
    cut: BTreeMap<Cut, u64>,
}

impl Listed {
    /// Nothing is listed.
    pub fn new(bound: Time) -> Listed {
        let step = Time((bound.0 / 64).max(1));
        Listed { until: bound, step, classes: 0, cut: BTreeMap::new() }
    }

    /// Classes that are listed or cut.
    fn settled(&self) -> u64 {
        self.cut.values().fold(self.classes, |sum, &n| sum.saturating_add(n))
    }

    /// Counts what was cut since `before`; returns how many more of the classes are settled.
    pub fn since(&self, before: &Listed, counters: &mut Counters) -> u64 {
        for (&reason, &classes) in &self.cut {
            let known = before.cut.get(&reason).copied().unwrap_or(0);
            counters.cut(reason, classes.saturating_sub(known));
        }
        self.settled().saturating_sub(before.settled())
    }
}

/// The compositions of an entry's schedule.
pub struct Compositions<'s, 'p> {
    pub problem: &'p Problem,
    pub entry: &'s Entry,
    pub schedule: (Schedule, u64),
    /// What any stage costs at least, by kind.
    pub leasts: &'s [Option<Least>],
    pub watch: &'s Watch,
}

impl Compositions<'_, '_> {
    /// Lists those of the next stretch, each with its bound, the first time in which some could hold the model and a little
    /// more, up to `limit`; `classes` are not settled yet.
    pub fn list(
        &self,
        listed: &Listed,
        classes: u64,
        limit: Time,
        counters: &mut Counters,
    ) -> (Listed, Vec<(Time, Composition)>) {
        let (problem, entry) = (self.problem, self.entry);
        let asked = entry.question(problem, self.schedule, false, limit);
        let offered = offered(problem, &entry.cell);
        let nothing = |reason| {
            let cut = BTreeMap::from([(reason, classes)]);
            (Listed { until: limit, classes: 0, cut, step: listed.step }, Vec::new())
        };
        let Some(places) = Places::new(&asked, self.leasts, &offered) else {
            return nothing(Cut::Placement);
        };
        let start = match places.bound(listed.until, limit) {
            // What else is wrong with those that the limit cuts is no matter.
            Err(Cut::Bound) => return (Listed { until: limit, ..listed.clone() }, Vec::new()),
            Err(reason) => return nothing(reason),
            Ok(bound) => bound,
        };
        let until = (start + listed.step).min(limit);
        let mut now = Listed { until, step: listed.step * 2, classes: 0, cut: BTreeMap::new() };
        let mut found = Vec::new();
        let (before, room) = (OnceCell::new(), OnceCell::new());
        let before = || before.get_or_init(|| places.within(listed.until.seconds()));
        let room = || room.get_or_init(|| places.within(f64::INFINITY));
        let Some(caps) = places.within(until.seconds()) else {
            return (Listed { until, ..listed.clone() }, found);
        };
        let prune = |counts: &[u64], left: u64| {
            if self.watch.stopped() {
                return Some(Cut::Unreached);
            }
            if let Some(reason) = self.beyond_limits(counts) {
                return Some(reason);
            }
            let undecided = offered.iter().filter(|s| s.kind >= counts.len());
            if undecided.map(|s| s.most.min(left)).sum::<u64>() < left {
                return Some(Cut::Limits);
            }
            if caps.hold_counts(counts, left) {
                return None;
            }
            let held = room().as_ref().is_some_and(|room| room.hold_counts(counts, left));
            Some(if held { Cut::Bound } else { Cut::Memory })
        };
        Counts::of(problem, &entry.cell).walk(&prune, &mut |step| {
            let mut cut = |reason, classes| {
                // Whatever takes longer may be listed later.
                if !matches!(reason, Cut::Bound | Cut::Unreached) {
                    let n = now.cut.entry(reason).or_insert(0);
                    *n = n.saturating_add(classes);
                }
            };
            let runs = match step {
                Walked::One(runs) => runs,
                Walked::Cut(reason, classes) => return cut(reason, classes),
            };
            if let Some(reason) = cut_composition(problem, entry, self.schedule, runs) {
                return cut(reason, 1);
            }
            if !caps.hold(runs) {
                let reason = if hold(room(), runs) { Cut::Bound } else { Cut::Memory };
                return cut(reason, 1);
            }
            counters.bounds += 1;
            let kinds = stage_kinds(runs);
            match class_bound(problem, entry, self.schedule, self.leasts, &kinds, until) {
                Verdict::Memory => cut(Cut::Memory, 1),
                Verdict::Seconds(s) => {
                    let bound = Time::from_seconds(s);
                    if bound <= until {
                        now.classes += 1;
                        let known = listed.classes > 0 && bound <= listed.until;
                        if !known || !hold(before(), runs) {
                            found.push((bound, runs.clone()));
                        }
                    }
                }
            }
        });
        (now, found)
    }

    /// Whether the last of some counts of stages already asks for more devices than its kind has.
    fn beyond_limits(&self, counts: &[u64]) -> Option<Cut> {
        let (kind, n) = (counts.len().checked_sub(1)?, counts.last()?);
        let devices = n * self.entry.cell.devices_per_stage(kind);
        (devices > self.problem.available(kind)).then_some(Cut::Limits)
    }
}

/// The kind of each stage.
pub fn stage_kinds(runs: &Composition) -> Vec<usize> {
    runs.iter().flat_map(|&(kind, stages)| std::iter::repeat_n(kind, stages as usize)).collect()
}

/// A bound for one class.
pub fn class_bound(
    problem: &Problem,
    entry: &Entry,
    schedule: (Schedule, u64),
    leasts: &[Option<Least>],
    kinds: &[usize],
    limit: Time,
) -> Verdict {
    let one_kind = kinds.iter().all(|&k| k == kinds[0]);
    let even = equal_layers(problem, &entry.cell, schedule.0, one_kind);
    entry.question(problem, schedule, even, limit).bound(leasts, kinds)
}

/// Whether all stages hold equally many layers.
fn equal_layers(problem: &Problem, cell: &Cell, schedule: Schedule, one_kind: bool) -> bool {
    matches!(schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV)
        || cell.pp == 1
        || (one_kind && !problem.options.uneven_layers)
}

/// A bound for every plan below an entry with schedules that are `legal`, from what any stage costs at least; of `flying` micro-batches
/// of a step, no more than it has, some are in flight.
pub fn bound_below(
    problem: &Problem,
    entry: &Entry,
    flying: u64,
    legal: impl Fn(&(Schedule, u64)) -> bool,
    leasts: &[Option<Least>],
    limit: Time,
) -> Result<Time, Cut> {
    let of_few = bound_few(problem, entry, flying, legal, leasts, limit);
    of_few.unwrap_or_else(|| entry_bound(problem, entry, flying, leasts, limit))
}

/// Why no such plan is within `limit`, if none is.
pub fn cut_below(
    problem: &Problem,
    entry: &Entry,
    flying: u64,
    legal: impl Fn(&(Schedule, u64)) -> bool,
    leasts: &[Option<Least>],
    limit: Time,
) -> Option<Cut> {
    match bound_few(problem, entry, flying, legal, leasts, limit) {
        Some(bound) => bound.err(),
        None => cut_entry(problem, entry, flying, leasts, limit),
    }
}

/// Of few schedules each is bounded by itself: that counts the wait for the first micro-batch, and what stages have time and memory for.
fn bound_few(
    problem: &Problem,
    entry: &Entry,
    flying: u64,
    legal: impl Fn(&(Schedule, u64)) -> bool,
    leasts: &[Option<Least>],
    limit: Time,
) -> Option<Result<Time, Cut>> {
    let cell = entry.cell;
    let mut schedules = space::schedules(problem, cell.pp);
    schedules.retain(legal);
    if problem.cluster.groups.len() > 1 || !(1..=FEW).contains(&schedules.len()) {
        return None;
    }
    let (kinds, offered) = (vec![0; cell.pp as usize], space::offered(problem, &cell));
    let of = |schedule: (Schedule, u64)| {
        let asked = |even| Question { flying, ..entry.question(problem, schedule, even, limit) };
        let even = equal_layers(problem, &cell, schedule.0, true);
        let bound = asked(even).bound(leasts, &kinds).within(limit)?;
        Places::new(&asked(false), leasts, &offered)
            .map_or(Err(Cut::Placement), |places| places.bound(bound, limit))
    };
    schedules.into_iter().map(of).reduce(|a, b| match (a, b) {
        (Ok(a), Ok(b)) => Ok(a.min(b)),
        (Ok(a), Err(_)) | (Err(_), Ok(a)) => Ok(a),
        (Err(a), Err(b)) => Err(a.max(b)),
    })
}

/// Schedules that are bounded each by itself.
const FEW: usize = 2;

/// Why a composition is not legal, if it is not.
pub fn cut_composition(
    problem: &Problem,
    entry: &Entry,
    schedule: (Schedule, u64),
    runs: &Composition,
) -> Option<Cut> {
    let mixed = runs.len() > 1;
    if !runs.iter().all(|&(kind, _)| space::places(problem, entry.cell, kind, mixed)) {
        return Some(Cut::Placement);
    }
    let devices = |&(kind, n): &(usize, u64)| n * entry.cell.devices_per_stage(kind);
    if runs.iter().any(|run| devices(run) > problem.available(run.0)) {
        return Some(Cut::Limits);
    }
    space::cut_schedule(problem, entry.cell, entry.mbs, schedule, runs.len())
}
