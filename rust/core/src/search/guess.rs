//! Some plan of a class, quickly.

use super::holds::Choice;
use super::report::Counters;
use super::stages::{Class, Solver};
use crate::estimate::Step;
use crate::units::Time;

/// The time of some plan of a class: layers in proportion to the stages' speed, and the first choice of the list that fits
/// everywhere, unless it is slower than `limit`. Its time bounds the optimum's from above.
pub fn guess(class: &Class<'_, '_, '_>, limit: Time, counters: &mut Counters) -> Option<Time> {
    let solver = Solver::new(class, false, Time::MAX);
    let kinds = class.kinds;
    let speed: Vec<f64> = kinds.iter().map(|&k| 1.0 / class.holds.tables.kind(k).unit()).collect();
    let total: f64 = speed.iter().sum();
    let (mut split, mut placed, mut share) = (Vec::with_capacity(kinds.len()), 0u32, 0.0);
    for (i, speed) in speed.iter().enumerate() {
        share += speed;
        let left = (kinds.len() - 1 - i) as u32;
        let until = (f64::from(solver.layers) * share / total).round() as u32;
        let layers = until.clamp(placed + 1, solver.layers - left) - placed;
        split.push(layers);
        placed += layers;
    }
    let even = (1..kinds.len()).all(|i| kinds[i] != kinds[i - 1] || split[i] == split[i - 1]);
    if !even && !class.holds.problem.options.uneven_layers {
        return None;
    }
    let fits = |n: usize| split.iter().enumerate().all(|(i, &layers)| solver.most(i, n) >= layers);
    let choice = (0..class.holds.choices.len()).find(|&n| fits(n))?;
    let stages: Vec<(u32, Choice)> =
        split.iter().map(|&layers| (layers, class.holds.choices[choice])).collect();
    // The clock runs only where the plan's own bound leaves it a chance.
    counters.bounds += 1;
    if solver.end(&stages) > limit {
        return None;
    }
    let plan = solver.plan(&stages);
    let step = Step::new(class.holds.tables, &plan);
    counters.estimates += 1;
    step.lacking(class.holds.tables, &plan).is_empty().then_some(step.time)
}
