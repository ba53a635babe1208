//! How many devices to use: the best plan of every device count up to a limit, or of those alone that nothing beats.
//!
//! Each count is a search of its own over its whole space. The best plans of all counts hold the fastest of all plans
//! that leave any number of devices idle. Where every device-hour has one price, money at a count is time times that count:
//! the fastest plan of a count is its cheapest, so they hold the cheapest of all plans too, and whatever no plan beats in both
//! time and money is among them, but for others with exactly its time and money. With several prices the cheapest plan of a
//! count need not be its fastest; then nothing is said of money. Where only what nothing beats is wanted, what other counts
//! have found bounds the search of one, which then ends as soon as no plan of it can matter, and all are sifted together before
//! any is searched by itself (`sieve`).

use super::best::{Best, Candidate};
use super::cell::divisors;
use super::entries::Entries;
use super::entry::Entry;
use super::enumerate::{enumerate, search_entries};
use super::known::{Known, Unbeaten};
use super::octaves::Octaves;
use super::replicas::with_other_replicas;
pub use super::report::Wanted;
use super::report::{Counters, Cut, Ranked};
use super::sieve::sift;
use super::{devices, watch::Watch};
use crate::estimate::estimate;
use crate::spec::problem::Problem;
use crate::units::Time;
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// Schema of the sizes document.
pub const SIZES_SCHEMA: &str = "autopar.sizes/2";

/// Counts that are searched side by side against the same finds, at most.
const BLOCK: usize = 8;

/// Counts that are sifted and searched before the others.
const FIRST: usize = 2;

/// The best plans of the device counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sizes {
    /// [`SIZES_SCHEMA`].
    pub schema: String,
    /// The question; its device count is the limit.
    pub problem: Problem,
    /// Which counts `sizes` lists.
    pub wanted: Wanted,
    /// Device counts to which some degrees multiply.
    pub considered: u64,
    /// Whether all of them were searched to the end.
    pub proved: bool,
    /// Counts at which a plan fits, ascending; of them those that were wanted.
    pub sizes: Vec<Size>,
    /// Which of `sizes` is the fastest; the one with the fewest devices of several.
    pub fastest: Option<u64>,
    /// Which costs least money, likewise the faster of several; nothing without one price for all.
    pub cheapest: Option<u64>,
}

/// A device count with its best plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// Devices that the plan uses.
    pub devices: u64,
    /// The fastest plan.
    pub best: Ranked,
    /// Whether no other size is better in time or money and as good in the other; false without one price for all.
    pub frontier: bool,
}

impl Size {
    fn known(&self) -> Known {
        Known { devices: self.devices, time: self.best.estimate.step_ps }
    }
}

/// The best plan of every device count up to the problem's that is wanted.
pub fn sizes(problem: Problem, wanted: Wanted, watch: &Watch) -> Sizes {
    let most = problem.cluster.devices.min(problem.all_available());
    let priced = has_one_price(&problem);
    let counts = devices::device_counts(&problem, most);
    let considered = counts.len() as u64;
    let mut sweep = Sweep::new(&problem, wanted, watch);
    if wanted == Wanted::Every || (wanted != Wanted::Fastest && !priced) {
        sweep.wanted = Wanted::Every;
        let counts: Vec<Count> = counts.into_iter().map(Count::of).collect();
        sweep.search(&counts, |_| false);
    } else {
        sweep.search_bounded(&counts);
    }
    let Sweep { mut found, proved, .. } = sweep;
    found.sort_unstable_by_key(|size| size.devices);
    if priced {
        for n in 0..found.len() {
            let beaten = |other: &Size| found[n].known().is_beaten_by(&other.known());
            found[n].frontier = !found.iter().any(beaten);
        }
    }
    keep(&mut found, wanted, priced);
    let place = |key: &dyn Fn(&Size) -> (u128, u64)| {
        (0..found.len()).min_by_key(|&i| key(&found[i])).map(|i| i as u64)
    };
    let fastest = place(&by_time).filter(|_| wanted != Wanted::Cheapest);
    let cheapest = place(&by_money).filter(|_| priced && wanted != Wanted::Fastest);
    let schema = SIZES_SCHEMA.into();
    Sizes { schema, problem, wanted, considered, proved, sizes: found, fastest, cheapest }
}

/// A device count that is to be searched.
struct Count {
    devices: u64,
    /// No plan ends before this.
    least: Time,
    /// What may matter of it, where that is known.
    entries: Option<Vec<Entry>>,
}

impl Count {
    fn of(devices: u64) -> Count {
        Count { devices, least: Time::ZERO, entries: None }
    }
}

/// The counts that are searched, and what was found on them.
struct Sweep<'a> {
    problem: &'a Problem,
    wanted: Wanted,
    watch: &'a Watch,
    found: Vec<Size>,
    /// What was found, and what that tells of counts that were not searched.
    known: Unbeaten,
    /// Whether all were searched to the end.
    proved: bool,
}

impl<'a> Sweep<'a> {
    fn new(problem: &'a Problem, wanted: Wanted, watch: &'a Watch) -> Sweep<'a> {
        let (found, known) = (Vec::new(), Unbeaten::default());
        Sweep { problem, wanted, watch, found, known, proved: true }
    }

    /// The longest time that is of use on so many devices.
    fn limit(&self, devices: u64) -> Time {
        self.known.limit(devices, self.wanted)
    }

    /// Searches counts, some side by side against the same finds, until `enough` is found; returns how many it searched.
    fn search(&mut self, counts: &[Count], enough: impl Fn(&[Size]) -> bool) -> usize {
        let (mut done, mut block) = (0, 1);
        while done < counts.len() && !enough(&self.found) {
            if self.watch.stopped() {
                self.proved = false;
                break;
            }
            let now = &counts[done..counts.len().min(done + block)];
            let sweep = &*self;
            let searched: Vec<(Option<Size>, bool)> =
                now.par_iter().map(|count| sweep.search_count(count)).collect();
            for (size, to_the_end) in searched {
                size.into_iter().for_each(|size| self.note(size));
                self.proved &= to_the_end;
            }
            (done, block) = (done + now.len(), (2 * block).min(BLOCK));
        }
        done
    }

    /// Notes what was found on a count, and of others what the same plan takes there.
    fn note(&mut self, size: Size) {
        self.known.add(size.known());
        if self.wanted != Wanted::Every {
            let others = with_other_replicas(self.problem, &size.best.plan, self.watch);
            others.into_iter().for_each(|plan| self.known.add(plan));
        }
        self.found.push(size);
    }

    /// The best plan of a count if it is of use, and whether all were looked at.
    fn search_count(&self, count: &Count) -> (Option<Size>, bool) {
        let (devices, limit) = (count.devices, self.limit(count.devices));
        if count.least > limit {
            return (None, true);
        }
        let mut problem = self.problem.clone();
        problem.cluster.devices = devices;
        problem.options.top = 1;
        let best = Best::within(&problem, limit);
        let answer = match &count.entries {
            Some(entries) => {
                let within: Vec<Entry> =
                    entries.iter().filter(|entry| entry.bound <= limit).copied().collect();
                let entries = Entries::of(&problem, within);
                search_entries(&problem, entries, best, Counters::default(), self.watch)
            }
            None => enumerate(&problem, best, self.watch),
        };
        let to_the_end = !answer.counters.cut.contains_key(&Cut::Unreached);
        let sized = |(time, plan): Candidate| {
            let estimate = estimate(&problem, &plan).expect("the search proposes legal plans");
            assert_eq!(estimate.step_ps, time, "search and estimate must agree");
            Size { devices, best: Ranked { plan, estimate }, frontier: false }
        };
        // Before its turn a class may have shown a plan beyond the limit.
        let best = answer.best.into_list().into_iter().next().filter(|best| best.0 <= limit);
        (best.map(sized), to_the_end)
    }

    /// Searches ascending counts as far as they are of use.
    ///
    /// The first that has a plan is searched whole, and what it finds bounds the others. Of these a few and then all that remain are
    /// sifted together, and of each what is left is searched.
    fn search_bounded(&mut self, counts: &[u64]) {
        let octaves = Octaves::new(self.problem, counts);
        let least = |&devices: &u64| match &octaves {
            Some(octaves) => octaves.of(devices).throughput.least(devices),
            None => Time::ZERO,
        };
        let bounds: FxHashMap<u64, Time> = counts.par_iter().map(|n| (*n, least(n))).collect();
        let order = in_order(&bounds, self.problem, self.wanted);
        let all: Vec<Count> =
            order.iter().map(|&n| Count { least: bounds[&n], ..Count::of(n) }).collect();
        let searched = self.search(&all, |found| !found.is_empty());
        let mut first = all;
        first.drain(..searched);
        let others = first.split_off(FIRST.min(first.len()));
        for mut counts in [first, others] {
            if let Some(octaves) = octaves.as_ref().filter(|_| !self.problem.options.mixed_tp) {
                counts = self.sift(octaves, counts);
            }
            self.search(&counts, |_| false);
        }
    }

    /// What may matter of some counts, those that promise most first.
    fn sift(&mut self, octaves: &Octaves, counts: Vec<Count>) -> Vec<Count> {
        let within = |count: &Count| {
            let limit = self.limit(count.devices);
            (count.least <= limit).then_some((count.devices, limit))
        };
        let limits: FxHashMap<u64, Time> = counts.iter().filter_map(within).collect();
        let mut sifted = sift(self.problem, octaves, &limits, self.watch);
        if self.watch.stopped() {
            self.proved = false;
        }
        let left = |count: Count| {
            let entries = sifted.remove(&count.devices)?;
            let least = entries.iter().map(|entry| entry.bound).min()?;
            Some(Count { least, entries: Some(entries), ..count })
        };
        let mut left: Vec<Count> = counts.into_iter().filter_map(left).collect();
        let promise = |c: &Count| c.least.seconds() / limits[&c.devices].seconds();
        left.sort_by(|a, b| promise(a).total_cmp(&promise(b)));
        left
    }
}

/// The order in which counts are searched, so that what is found early spares the others.
fn in_order(bounds: &FxHashMap<u64, Time>, problem: &Problem, wanted: Wanted) -> Vec<u64> {
    let mut counts: Vec<u64> = bounds.keys().copied().collect();
    let replicas = divisors(problem.workload.global_batch_size);
    let other = |devices: u64| {
        let most = replicas.iter().rev().find(|&&dp| devices.is_multiple_of(dp));
        devices / most.unwrap_or(&1)
    };
    let asked = problem.cluster.devices;
    match wanted {
        Wanted::Fastest => counts.sort_by_key(|n| (bounds[n], *n)),
        _ => counts.sort_by_cached_key(|&n| (n != asked, other(n), Reverse(n))),
    }
    counts
}

/// The order in which a size is the fastest.
fn by_time(size: &Size) -> (u128, u64) {
    (size.known().time.0.into(), size.devices)
}

/// The order in which a size is the cheapest.
fn by_money(size: &Size) -> (u128, u64) {
    (size.known().money(), size.known().time.0)
}

/// Drops the sizes that are not wanted.
fn keep(found: &mut Vec<Size>, wanted: Wanted, priced: bool) {
    let only = |found: &mut Vec<Size>, key: fn(&Size) -> (u128, u64)| {
        let best = found.iter().map(key).min();
        found.retain(|size| Some(key(size)) == best);
    };
    match wanted {
        Wanted::Every => {}
        Wanted::Frontier => found.retain(|size| size.frontier || !priced),
        Wanted::Fastest => only(found, by_time),
        Wanted::Cheapest if priced => only(found, by_money),
        Wanted::Cheapest => found.clear(),
    }
}

/// Whether a device-hour costs the same on every kind of chip.
fn has_one_price(problem: &Problem) -> bool {
    let price = |kind: usize| problem.cluster.groups[kind].chip.price_per_hour;
    (0..problem.cluster.groups.len()).all(|kind| price(kind).is_some() && price(kind) == price(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::search;
    use crate::testing;

    fn problem(price: Option<f64>) -> Problem {
        let mut chip = testing::a100();
        chip.price_per_hour = price;
        let mut problem =
            testing::problem(testing::gpt(4, 1024), testing::cluster(chip, 12), 12, 1024);
        problem.options.top = 1;
        problem
    }

    #[test]
    fn every_count_up_to_the_limit_has_the_best_plan_of_its_own_search() {
        let found = sizes(problem(None), Wanted::Every, &Watch::new(None));
        assert!(found.proved);
        let mut expected = Vec::new();
        for devices in 1..=12 {
            let mut other = problem(None);
            other.cluster.devices = devices;
            let report = search(other, &Watch::new(None));
            expected.extend(report.ranked.into_iter().map(|best| (devices, best)));
        }
        let got: Vec<_> = found.sizes.iter().map(|s| (s.devices, s.best.clone())).collect();
        assert_eq!(got, expected);
        let least = expected.iter().min_by_key(|(n, b)| (b.estimate.step_ps, *n));
        let fastest = found.fastest.map(|i| found.sizes[i as usize].devices);
        assert_eq!(fastest, least.map(|(n, _)| *n));
        assert_eq!(found.cheapest, None);
    }

    #[test]
    fn the_frontier_holds_what_no_other_size_beats_in_time_and_money() {
        let found = sizes(problem(Some(2.0)), Wanted::Every, &Watch::new(None));
        let cost = |s: &Size| {
            let money = s.best.estimate.money.expect("a price is there");
            (s.best.estimate.step_s, money.step)
        };
        for size in &found.sizes {
            // Two currency units an hour: devices x seconds x 2 / 3600.
            let (seconds, step) = cost(size);
            assert!((step / (size.devices as f64 * seconds * 2.0 / 3600.0) - 1.0).abs() < 1e-12);
            let tokens = 12.0 * 1024.0;
            let money = size.best.estimate.money.expect("a price is there");
            assert!((money.trillion_tokens / (step * 1e12 / tokens) - 1.0).abs() < 1e-12);
            let beaten = found.sizes.iter().any(|other| {
                let (t, m) = cost(other);
                (t < seconds && m <= step) || (t <= seconds && m < step)
            });
            assert_eq!(size.frontier, !beaten, "{} devices", size.devices);
        }
        assert!(found.sizes[found.fastest.unwrap() as usize].frontier);
        let cheapest = &found.sizes[found.cheapest.unwrap() as usize];
        assert!(cheapest.frontier);
        assert!(found.sizes.iter().all(|s| cost(s).1 >= cost(cheapest).1));
        assert!(found.sizes.iter().filter(|s| s.frontier).count() > 1);
    }

    #[test]
    fn what_is_not_wanted_is_cut_and_nothing_else() {
        let every = sizes(problem(Some(2.0)), Wanted::Every, &Watch::new(None));
        let place = |place: Option<u64>| vec![every.sizes[place.unwrap() as usize].clone()];
        let frontier: Vec<Size> = every.sizes.iter().filter(|s| s.frontier).cloned().collect();
        let wanted = |wanted| sizes(problem(Some(2.0)), wanted, &Watch::new(None));
        let same = |found: Vec<Size>, expected: Vec<Size>| {
            let bare = |list: Vec<Size>| -> Vec<(u64, Ranked)> {
                list.into_iter().map(|s| (s.devices, s.best)).collect()
            };
            assert_eq!(bare(found), bare(expected));
        };
        same(wanted(Wanted::Fastest).sizes, place(every.fastest));
        same(wanted(Wanted::Cheapest).sizes, place(every.cheapest));
        same(wanted(Wanted::Frontier).sizes, frontier);
        assert_eq!(wanted(Wanted::Fastest).cheapest, None);
        assert_eq!(wanted(Wanted::Cheapest).fastest, None);
        // Without a price nothing is said of money.
        let unpriced = |wanted| sizes(problem(None), wanted, &Watch::new(None)).sizes.len();
        assert_eq!(unpriced(Wanted::Frontier), every.sizes.len());
        assert_eq!(unpriced(Wanted::Cheapest), 0);
    }
}
