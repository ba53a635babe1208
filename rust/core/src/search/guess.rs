//! Some plan of a class, quickly.

use super::holds::{largest, Choice, NONE};
use super::report::Counters;
use super::stages::{Class, Solver};
use crate::estimate::Step;
use crate::plan::Recompute;
use crate::units::Time;

/// The time of some plan of a class: layers in proportion to the stages' speed, and the best of the first
/// choices that fit everywhere, unless it is slower than `limit`. Its time bounds the optimum's from above.
pub fn guess(class: &Class<'_, '_>, limit: Time, counters: &mut Counters) -> Option<Time> {
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
    let stages = |choice: Choice| split.iter().map(|&layers| (layers, choice)).collect();
    let fits = |choice: Choice| {
        let mut first = 0;
        split.iter().enumerate().all(|(i, &layers)| {
            let place = class.holds.place(i, first, layers, choice, false);
            first += layers;
            class.holds.tables.kind(kinds[i]).fits(&place)
        })
    };
    // Of each way to save memory the choice that recomputes least.
    let choices = &class.holds.choices;
    let deepest = split.iter().copied().max().unwrap_or(1);
    let mut fitting: Vec<Choice> = Vec::new();
    for family in choices.chunk_by(|a, b| a.same_family(b)) {
        let family = &family[..family.partition_point(|c| c.depth() <= deepest)];
        let found = match family.first().map(|c| c.recompute) {
            Some(Recompute::Uniform { .. }) => family.iter().copied().find(|&c| fits(c)),
            _ => {
                let place = largest(family.len() as u32, |n| !fits(family[n as usize - 1]));
                family.get(place as usize).copied().filter(|&c| fits(c))
            }
        };
        fitting.extend(found);
        if fitting.first().is_some_and(|c| *c == NONE) {
            break;
        }
    }
    counters.bounds += fitting.len() as u64;
    let bounds = fitting.into_iter().map(|choice| {
        let stages: Vec<(u32, Choice)> = stages(choice);
        (solver.end(&stages), stages)
    });
    // The clock runs only where the plan's own bound leaves it a chance.
    let (_, stages) = bounds.filter(|(end, _)| *end <= limit).min_by_key(|(end, _)| *end)?;
    let plan = solver.plan(&stages);
    counters.estimates += 1;
    Some(Step::new(&class.holds.tables, &plan).time)
}
