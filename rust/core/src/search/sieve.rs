//! What may matter at any of many device counts, each with a limit of its own.
//!
//! Counts have their degrees in common: with the same tp, cp, ep and pp they differ in their replicas alone. Micro-batches of one size
//! take as long in each; more replicas pass fewer of them a step, with no more of a model's state, and no more micro-batches in
//! flight, on a device. So when steps with the fewest of some replicas take T at least, with the memory that the most of them leave,
//! steps with d times as many take T / d at least: a path through a schedule meets a stage once for each micro-batch, or as often
//! however many there are. A path of 1F1B that leaves out passes of a stage's warm-up is no exception: where these are longer than what
//! it has of other stages, all of the stage's own passes take longer than the path; else what it has of others is more than its share.
//! The path through steady work counts only where the shortest of these steps has such work too. Where not even that is within a limit of any of the counts, none of them is looked at by itself; else
//! each half of them is, and so on.

use super::cell::{divisors, Cell};
use super::compositions::{bound_below, cut_below};
use super::entry::Entry;
use super::octaves::Octaves;
use super::passage::Passage;
use super::prices::{alike, Alike, PriceList};
use super::relax::hosts;
use super::report::Cut;
use super::shapes::{devices, filled, shapes, Member, Shape};
use super::space::{self, offered};
use super::swiftest::{swiftest_schedules, Swiftest};
use super::watch::Watch;
use crate::estimate::least::Least;
use crate::spec::problem::{Problem, Schedule};
use crate::units::Time;
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use std::cell::OnceCell;

/// What may be within the limit of each of some counts, by count; not all of it once the watch has stopped. Kinds of chip have one degree.
pub fn sift(
    problem: &Problem,
    octaves: &Octaves,
    limits: &FxHashMap<u64, Time>,
    watch: &Watch,
) -> FxHashMap<u64, Vec<Entry>> {
    let shapes = shapes(problem, octaves, limits);
    let lists = octaves.all().iter().map(|octave| {
        let mut prices = PriceList::new(&octave.problem, octave.most);
        shapes.iter().for_each(|shape| _ = prices.ask_for(shape.cell, shape.sp, shape.ep));
        prices.settle();
        prices
    });
    let sieve = Sieve { problem, octaves, lists: lists.collect(), watch };
    let of_shape = |(row, shape): (usize, &Shape)| sieve.of_shape(row, shape);
    let left: Vec<Entry> = shapes.par_iter().enumerate().flat_map_iter(of_shape).collect();
    let mut by_count: FxHashMap<u64, Vec<Entry>> = FxHashMap::default();
    for entry in left {
        by_count.entry(devices(&entry.cell)).or_default().push(entry);
    }
    by_count
}

/// What is asked about the members of a shape.
struct Asked<'a> {
    /// With one replica.
    entry: Entry,
    /// The ZeRO stages that they have.
    alike: &'a Alike,
    schedules: &'a [(Schedule, u64)],
}

/// What bounds the members of shapes.
struct Sieve<'a> {
    problem: &'a Problem,
    octaves: &'a Octaves,
    /// By octave; a shape's row is its place.
    lists: Vec<PriceList<'a>>,
    watch: &'a Watch,
}

impl Sieve<'_> {
    /// What may be within the limits of a shape's members, with micro-batches of every size.
    fn of_shape(&self, row: usize, shape: &Shape) -> Vec<Entry> {
        let (problem, &Shape { cell, sp, ep, ref members }) = (self.problem, shape);
        let mut left = Vec::new();
        let batch = problem.workload.global_batch_size;
        let mut schedules = swiftest_schedules(problem, cell.pp);
        schedules.retain(|schedule| {
            let reason = space::cut_everywhere(problem, cell, 1, *schedule);
            reason.is_none_or(|reason| reason == Cut::MicroBatches)
        });
        let schedules = &schedules[..];
        let (zero, bound, classes) = ([false; 4], Time::ZERO, 0);
        let entry = |mbs| Entry { cell, sp, ep, mbs, zero, bound, classes, row };
        // The fewest replicas need not divide the others.
        let divides = |mbs: u64| members.iter().any(|m| (batch / m.dp).is_multiple_of(mbs));
        let mut sizes = divisors(batch);
        sizes.retain(|&mbs| space::allows(&problem.options.mbs, &mbs) && divides(mbs));
        let Some(&smallest) = sizes.first() else { return left };
        let all = alike(problem, cell.pp);
        // More replicas leave no more of a model's state on a device, and larger micro-batches spare none of it unless one is all
        // of a step.
        let alone = usize::from(self.is_alone(&entry(smallest), members[0].dp));
        let lacks = |alike: &Alike| {
            let lacks = |m: &Member| !self.holds_state(&with(&entry(smallest), m.dp), alike);
            alone + members[alone..].partition_point(lacks)
        };
        let lacking: Vec<OnceCell<usize>> = vec![OnceCell::new(); all.len()];
        let (mut swift, mut asked) = (Vec::new(), Vec::new());
        for mbs in sizes {
            if self.watch.stopped() {
                break;
            }
            let whole = members.iter().filter(|m| (batch / m.dp).is_multiple_of(mbs)).copied();
            asked.clear();
            asked.extend(whole);
            swift.clear();
            self.halve_by_floors(&entry(mbs), &asked, schedules, &mut swift);
            if swift.is_empty() {
                continue;
            }
            for (alike, lacking) in all.iter().zip(&lacking) {
                let lacking = &members[alone..*lacking.get_or_init(|| lacks(alike))];
                let matters = |m: &&Member| {
                    let sharded = alike.priced_as == 0 || m.dp * cell.cp > 1;
                    let lacks = lacking.iter().any(|lacking| lacking.dp == m.dp);
                    sharded && (!lacks || m.dp * mbs == batch)
                };
                asked.clear();
                asked.extend(swift.iter().filter(matters).copied());
                let zero = [0, 1, 2, 3].map(|stage| alike.stages.contains(&stage));
                let entry = Entry { zero, ..entry(mbs) };
                self.halve(&Asked { entry, alike, schedules }, &asked, &mut left);
            }
        }
        merged(left)
    }

    /// Adds those of an entry's members that computation alone, in micro-batches of whatever size, leaves within their limits.
    fn halve_by_floors(
        &self,
        entry: &Entry,
        members: &[Member],
        schedules: &[(Schedule, u64)],
        left: &mut Vec<Member>,
    ) {
        let legal = |schedule: &(Schedule, u64)| is_legal(self.problem, entry, members, *schedule);
        if members.is_empty() || !self.is_swift(entry, members, schedules, legal) {
            return;
        }
        if members.len() == 1 {
            left.push(members[0]);
            return;
        }
        let (fewer, more) = members.split_at(members.len() / 2);
        self.halve_by_floors(entry, fewer, schedules, left);
        self.halve_by_floors(entry, more, schedules, left);
    }

    /// Whether some of an entry's members may be within their limits, for all that computation alone tells.
    fn is_swift(
        &self,
        entry: &Entry,
        members: &[Member],
        schedules: &[(Schedule, u64)],
        legal: impl Fn(&(Schedule, u64)) -> bool,
    ) -> bool {
        let fewest = with(entry, members[0].dp);
        let floors = &self.lists[self.octaves.place(devices(&fewest.cell))];
        let floor = |kind| floors.floor(entry.row, kind).copied();
        let stages = offered(self.problem, &fewest.cell);
        let swiftest = Swiftest::among(self.problem, &fewest.cell, &stages, floor);
        let sized = (entry.mbs, entry.mbs as f64);
        let flying = with(entry, members[members.len() - 1].dp).micro_batches(self.problem);
        let bound = |of: Swiftest| {
            of.bound_where(self.problem, &fewest.cell, sized, flying, schedules, legal)
        };
        swiftest.map(bound).is_some_and(|bound| bound <= limit(&fewest, members))
    }

    /// Whether the stages of an entry have memory for the model's state, were all on the kind that has most and nothing else there.
    fn holds_state(&self, entry: &Entry, alike: &Alike) -> bool {
        let prices = &self.lists[self.octaves.place(devices(&entry.cell))];
        let leasts = prices.leasts_in_any_group(entry, alike);
        let hosts = hosts(self.problem, &leasts, false);
        leasts.iter().flatten().any(|least| {
            let held = hosts.clone().map(|host| least.most_beside_state(host)).fold(0.0, f64::max);
            held * entry.cell.pp as f64 >= least.frequent as f64
        })
    }

    /// Whether so many replicas, the fewest that a shape may have, leave ranks alone: groups of one have neither shards nor a
    /// communicator.
    fn is_alone(&self, entry: &Entry, dp: u64) -> bool {
        let Cell { cp, tp, .. } = entry.cell;
        let experts = entry.ep * space::expert_tensor_parallel(self.problem, tp);
        dp * cp == 1 || dp * cp * tp == experts
    }

    /// Adds what may be within its limit of an entry's members.
    fn halve(&self, asked: &Asked<'_>, members: &[Member], left: &mut Vec<Entry>) {
        let Some(&Member { dp, .. }) = members.first() else { return };
        let entry = &asked.entry;
        let fewest = with(entry, dp);
        let alone = self.is_alone(entry, dp);
        let single = members.len() == 1;
        if single || !alone {
            match self.bound(asked, &fewest, members) {
                None => return,
                Some(bound) if single => {
                    let classes = space::axes(self.problem, fewest.cell).below_shard();
                    left.push(Entry { bound, classes, ..fewest });
                    return;
                }
                Some(_) => {}
            }
        }
        let (fewer, more) = members.split_at(if alone { 1 } else { members.len() / 2 });
        self.halve(asked, fewer, left);
        self.halve(asked, more, left);
    }

    /// A time before which no step of the entry with the fewest replicas ends, if any of the members may be within its limit.
    fn bound(&self, asked: &Asked<'_>, fewest: &Entry, members: &[Member]) -> Option<Time> {
        let (problem, cell) = (self.problem, &fewest.cell);
        let prices = &self.lists[self.octaves.place(devices(cell))];
        let stages = offered(problem, cell);
        if stages.iter().map(|s| s.most).sum::<u64>() < cell.pp {
            return None;
        }
        let legal = |schedule: &(Schedule, u64)| is_legal(problem, fewest, members, *schedule);
        let limit = limit(fewest, members);
        let most = with(fewest, members[members.len() - 1].dp);
        let priced = |kind| prices.in_any_group(&most, kind, asked.alike.priced_as);
        let swiftest =
            Swiftest::among(problem, cell, &stages, |kind| priced(kind).map(Passage::under))?;
        let sized = (fewest.mbs, 1.0);
        let flying = most.micro_batches(problem);
        let least = swiftest.bound_where(problem, cell, sized, flying, asked.schedules, legal);
        if least > limit {
            return None;
        }
        let mut leasts = prices.leasts_in_any_group(&most, asked.alike);
        if members.len() > 1 {
            leasts.iter_mut().flatten().for_each(Least::forget_tail);
            let cut = cut_below(problem, fewest, flying, legal, &leasts, limit);
            return cut.is_none().then_some(least);
        }
        let bound = bound_below(problem, fewest, flying, legal, &leasts, limit).ok()?;
        Some(bound.max(least))
    }
}

/// The longest time of a step with the fewest replicas that leaves some member within its limit.
fn limit(fewest: &Entry, members: &[Member]) -> Time {
    let limit = |m: &Member| m.limit.seconds() * (m.dp as f64 / fewest.cell.dp as f64);
    Time::from_seconds(members.iter().map(limit).fold(0.0, f64::max) * (1.0 + 1e-9))
}

/// Whether a schedule is legal for some member.
fn is_legal(
    problem: &Problem,
    entry: &Entry,
    members: &[Member],
    schedule: (Schedule, u64),
) -> bool {
    members.iter().any(|m| {
        let cell = filled(&entry.cell, m.dp);
        space::cut_everywhere(problem, cell, entry.mbs, schedule).is_none()
    })
}

/// An entry with so many replicas.
fn with(entry: &Entry, dp: u64) -> Entry {
    Entry { cell: filled(&entry.cell, dp), ..*entry }
}

/// Entries that differ in their ZeRO stages alone as one.
fn merged(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort_by_key(|entry| (entry.cell.dp, entry.mbs));
    entries.dedup_by(|other, one| {
        let same = (other.cell.dp, other.mbs) == (one.cell.dp, one.mbs);
        if same {
            one.bound = one.bound.min(other.bound);
            one.zero = [0, 1, 2, 3].map(|n| one.zero[n] || other.zero[n]);
        }
        same
    });
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::devices::device_counts;
    use crate::search::search;
    use crate::spec::model::Model;
    use crate::testing;

    /// The best plans of all counts are left where nothing slower is of use.
    fn best_are_left(problem: &Problem) -> (usize, usize) {
        let most = problem.cluster.devices;
        let counts = device_counts(problem, most);
        let (mut limits, mut best) = (FxHashMap::default(), Vec::new());
        for &devices in &counts {
            let mut of_count = problem.clone();
            of_count.cluster.devices = devices;
            let report = search(of_count, &Watch::new(None));
            let Some(found) = report.ranked.into_iter().next() else { continue };
            limits.insert(devices, found.estimate.step_ps);
            best.push(found);
        }
        let octaves = Octaves::new(problem, &counts).expect("no torus");
        let left = sift(problem, &octaves, &limits, &Watch::new(None));
        // Of few counts the fewest replicas need not divide the others.
        let few = best.windows(2).flat_map(|pair| {
            let of_pair = pair.iter().map(|found| found.plan.devices());
            let limits = of_pair.map(|devices| (devices, limits[&devices])).collect();
            let left = sift(problem, &octaves, &limits, &Watch::new(None));
            pair.iter().map(move |found| (found, left.clone())).collect::<Vec<_>>()
        });
        let all = best.iter().map(|found| (found, left.clone()));
        for (found, left) in all.chain(few) {
            let plan = &found.plan;
            let of_plan = |entry: &&Entry| {
                let Cell { pp, tp, cp, dp, .. } = entry.cell;
                let degrees = (pp, tp, cp, dp) == (plan.pp, plan.tp, plan.cp, plan.dp);
                degrees && (entry.sp, entry.ep, entry.mbs) == (plan.sp, plan.ep, plan.mbs)
            };
            let entry = left[&plan.devices()].iter().find(of_plan).expect("the best is left");
            assert!(entry.bound <= found.estimate.step_ps, "{plan:?}");
        }
        let all: usize = counts
            .iter()
            .map(|&devices| {
                let mut of_count = problem.clone();
                of_count.cluster.devices = devices;
                let mut counters = crate::search::report::Counters::default();
                crate::search::entries::Entries::new(&of_count, &mut counters).list.len()
            })
            .sum();
        (left.values().map(Vec::len).sum(), all)
    }

    #[test]
    fn the_best_of_every_count_is_left_and_most_is_not() {
        for (kinds, moe) in [(1, false), (1, true), (2, false), (2, true)] {
            let mut cluster = testing::cluster(testing::a100(), 24);
            if kinds == 2 {
                cluster.groups[0].limit = Some(16);
                cluster.groups.push(cluster.groups[0].clone());
                cluster.groups[1].chip = testing::fast();
            }
            for memory in [80.0, 3.0] {
                cluster.groups.iter_mut().for_each(|group| group.chip.memory_gib = memory);
                let moe = moe.then(|| testing::moe(4, 2, 2048));
                let model = Model { moe, ..testing::gpt(6, 1024) };
                let mut problem = testing::problem(model, cluster.clone(), 48, 1024);
                problem.options.top = 1;
                let (left, all) = best_are_left(&problem);
                assert!(left > 0 && 2 * left < all, "{left} of {all}");
            }
        }
    }
}
