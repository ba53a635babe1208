//! How many devices to use: the best plan of every device count up to a limit, and which of them nothing beats.
//!
//! Each count is a search of its own over its whole space. The best plans of all counts hold the fastest of all plans
//! that leave any number of devices idle. Where every device-hour has one price, money at a count is time times that count:
//! the fastest plan of a count is its cheapest, so they hold the cheapest of all plans too, and whatever no plan beats in both
//! time and money is among them, but for others with exactly its time and money. With several prices the cheapest plan of a
//! count need not be its fastest; then nothing is said of money.

use super::enumerate;
use super::report::{Cut, Ranked};
use super::{devices, watch::Watch};
use crate::estimate::estimate;
use crate::spec::problem::Problem;
use serde::{Deserialize, Serialize};

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
    let most = problem.cluster.devices.min(problem.all_available());
    let counts = devices::device_counts(&problem, most);
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
}
