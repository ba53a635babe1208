//! The counts that matter in time and money, found without a search of each, against a search of every count.
//!
//! `AUTOPAR_COUNT_PROBLEMS=2000` tries more problems than the few of a normal run, `AUTOPAR_COUNT_FIRST=20000` others.

mod draw;

use autopar_core::search::sizes::{sizes, Size, Wanted};
use autopar_core::spec::problem::Problem;
use autopar_core::units::GIB;
use autopar_core::Watch;
use draw::Draw;

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

/// A problem with one price for all chips, and with memory of about what the fastest plan of all needs.
fn drawn(seed: u64) -> Problem {
    let mut draw = Draw::new(seed);
    let mut problem = draw::problem(&mut draw, (seed % 3) as usize + 1);
    problem.options.mixed_tp &= draw.once_in(4);
    for group in &mut problem.cluster.groups {
        group.chip.price_per_hour = Some(2.0);
    }
    let found = sizes(problem.clone(), Wanted::Fastest, &Watch::new(None));
    if let Some(best) = found.sizes.first() {
        let need = best.best.estimate.stages.iter().map(|s| s.allocated_bytes + s.memory.context);
        let need = need.max().map_or(0, |bytes| bytes.0) as f64 / GIB;
        let share = draw.pick(&[0.3, 0.6, 0.9, 1.1, 2.0]);
        problem.cluster.groups.iter_mut().for_each(|group| group.chip.memory_gib = need * share);
    }
    problem
}

fn found(problem: &Problem, wanted: Wanted) -> Vec<Size> {
    let found = sizes(problem.clone(), wanted, &Watch::new(None));
    assert!(found.proved);
    found.sizes
}

#[test]
fn what_matters_of_all_counts_is_what_a_search_of_each_finds() {
    let first = number("AUTOPAR_COUNT_FIRST", 0);
    let (mut several, mut beaten) = (0, 0);
    for seed in first..first + number("AUTOPAR_COUNT_PROBLEMS", 90) {
        let problem = drawn(seed);
        let every = found(&problem, Wanted::Every);
        let frontier: Vec<&Size> = every.iter().filter(|size| size.frontier).collect();
        several += u64::from(frontier.len() > 1);
        beaten += u64::from(frontier.len() < every.len());
        let of = |sizes: &[&Size]| -> Vec<(u64, u64)> {
            sizes.iter().map(|size| (size.devices, size.best.estimate.step_ps.0)).collect()
        };
        let same = |wanted: Wanted, expected: &[&Size]| {
            let found = found(&problem, wanted);
            assert_eq!(of(&found.iter().collect::<Vec<_>>()), of(expected), "{wanted:?} of {seed}");
            assert!(found.iter().zip(expected).all(|(a, b)| a.best.plan == b.best.plan), "{seed}");
        };
        same(Wanted::Frontier, &frontier);
        let time = |size: &&Size| (size.best.estimate.step_ps, size.devices);
        let money =
            |size: &&Size| u128::from(size.best.estimate.step_ps.0) * u128::from(size.devices);
        let fastest: Vec<&Size> = every.iter().min_by_key(time).into_iter().collect();
        let cheapest: Vec<&Size> =
            every.iter().min_by_key(|s| (money(s), s.best.estimate.step_ps)).into_iter().collect();
        same(Wanted::Fastest, &fastest);
        same(Wanted::Cheapest, &cheapest);
    }
    assert!(several > 0 && beaten > 0, "{several}, {beaten}");
}
