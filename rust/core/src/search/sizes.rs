//! How many devices to use: the best plan of every device count up to a limit, and which of them nothing beats.
//!
//! Each count is a search of its own over its whole space. The best plans of all counts hold the fastest of all plans
//! that leave any number of devices idle. Where every device-hour has one price, money at a count is time times that count:
//! the fastest plan of a count is its cheapest, so they hold the cheapest of all plans too, and whatever no plan beats in both
//! time and money is among them, but for others with exactly its time and money. With several prices the cheapest plan of a
//! count need not be its fastest; then nothing is said of money.

use super::enumerate;
use super::report::{Cut, Ranked};
use super::watch::Watch;
use crate::estimate::estimate;
use crate::spec::problem::Problem;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Schema of the sizes document.
pub const SIZES_SCHEMA: &str = "autopar.sizes/1";

/// The best plan of every device count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sizes {
    /// [`SIZES_SCHEMA`].
    pub schema: String,
    /// The question; its device count is the limit.
    pub problem: Problem,
    /// Device counts to which some degrees multiply.
    pub considered: u64,
    /// Whether all of them were searched to the end.
    pub proved: bool,
    /// Counts at which a plan fits, ascending.
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

/// The best plan of every device count up to the problem's.
pub fn sizes(problem: Problem, watch: &Watch) -> Sizes {
    let counts = device_counts(&problem);
    let mut proved = true;
    let mut found = Vec::new();
    for &devices in &counts {
        if watch.stopped() {
            proved = false;
            break;
        }
        let mut other = problem.clone();
        other.cluster.devices = devices;
        other.options.top = 1;
        let answer = enumerate::enumerate(&other, watch);
        proved &= !answer.counters.cut.contains_key(&Cut::Unreached);
        for (time, plan) in answer.best.into_list() {
            let estimate = estimate(&other, &plan).expect("the search proposes legal plans");
            assert_eq!(estimate.step_ps, time, "search and estimate must agree");
            found.push(Size { devices, best: Ranked { plan, estimate }, frontier: false });
        }
    }
    let time = |size: &Size| size.best.estimate.step_ps.0;
    let money = |size: &Size| u128::from(size.devices) * u128::from(time(size));
    let place = |key: &dyn Fn(&Size) -> (u128, u64)| {
        (0..found.len()).min_by_key(|&i| key(&found[i])).map(|i| i as u64)
    };
    let fastest = place(&|s| (time(s).into(), s.devices));
    let cheapest = if has_one_price(&problem) { place(&|s| (money(s), time(s))) } else { None };
    if cheapest.is_some() {
        let costs: Vec<(u64, u128)> = found.iter().map(|s| (time(s), money(s))).collect();
        for (size, &(t, m)) in found.iter_mut().zip(&costs) {
            size.frontier = !costs
                .iter()
                .any(|&(other, price)| other <= t && price <= m && (other, price) != (t, m));
        }
    }
    let schema = SIZES_SCHEMA.into();
    Sizes {
        schema,
        problem,
        considered: counts.len() as u64,
        proved,
        sizes: found,
        fastest,
        cheapest,
    }
}

/// Whether a device-hour costs the same on every kind of chip.
fn has_one_price(problem: &Problem) -> bool {
    let price = |kind: usize| problem.cluster.groups[kind].chip.price_per_hour;
    (0..problem.cluster.groups.len()).all(|kind| price(kind).is_some() && price(kind) == price(0))
}

/// Device counts within the problem's and its limits that degrees which divide batch, heads and sequence multiply to, with up
/// to a stage a layer. Other counts have no legal plan.
fn device_counts(problem: &Problem) -> Vec<u64> {
    let (m, w, o) = (&problem.model, &problem.workload, &problem.options);
    let available = (0..problem.cluster.groups.len())
        .map(|k| problem.available(k))
        .fold(0, u64::saturating_add);
    let most = problem.cluster.devices.min(available);
    let divisors = |n: u64, allowed: &[u64]| -> Vec<u64> {
        (1..=n.min(most))
            .filter(|d| n.is_multiple_of(*d) && (allowed.is_empty() || allowed.contains(d)))
            .collect()
    };
    // Context parallel of more than one cuts the sequence into twice as many parts.
    let mut cp =
        divisors(w.sequence_length / 2 * u64::from(w.sequence_length.is_multiple_of(2)), &o.cp);
    if cp.is_empty() && (o.cp.is_empty() || o.cp.contains(&1)) {
        cp.push(1);
    }
    let pp = (1..=u64::from(m.layers)).filter(|p| o.pp.is_empty() || o.pp.contains(p)).collect();
    let tp = divisors(u64::from(m.heads), &o.tp);
    let dp = divisors(w.global_batch_size, &o.dp);
    let mut counts = BTreeSet::from([1]);
    for degrees in [tp, cp, dp, pp] {
        counts = counts
            .iter()
            .flat_map(|&n| degrees.iter().map(move |&d: &u64| n * d))
            .filter(|&n| n <= most)
            .collect();
    }
    counts.into_iter().collect()
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
        let found = sizes(problem(None), &Watch::new(None));
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
        let found = sizes(problem(Some(2.0)), &Watch::new(None));
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
    fn the_options_limit_the_counts() {
        let mut problem = problem(None);
        (problem.options.tp, problem.options.pp) = (vec![2], vec![1, 3]);
        problem.options.cp = vec![1];
        problem.options.dp = vec![1, 4];
        // 2 x {1, 3} x {1, 4} up to 12.
        assert_eq!(device_counts(&problem), [2, 6, 8]);
        problem.cluster.groups[0].limit = Some(10);
        assert_eq!(device_counts(&problem), [2, 6, 8]);
        problem.cluster.groups[0].limit = Some(7);
        assert_eq!(device_counts(&problem), Vec::<u64>::new());
    }
}
