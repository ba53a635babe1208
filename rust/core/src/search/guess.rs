//! Some plan of a class, quickly.

use super::holds::{largest, Choice, Row, NONE};
use super::report::Counters;
use super::stages::{Class, Solver, Way};
use crate::estimate::Step;
use crate::plan::{Plan, Recompute, Stage};
use crate::units::Time;

/// The time of some plan of a class, which bounds the optimum's from above, unless it is slower than `limit`: layers in proportion to
/// the stages' speed, and where that is far beyond the class's `bound` and a `thorough` look is asked for, packed stages.
pub fn guess(
    class: &Class<'_, '_>,
    (bound, limit): (Time, Time),
    thorough: bool,
    counters: &mut Counters,
) -> Option<Time> {
    let of_row = |row| guess_of(class, row, (bound, limit), thorough, counters);
    class.holds.rows.iter().filter_map(of_row).min()
}

/// The same of plans whose stages share a row of chunks.
fn guess_of(
    class: &Class<'_, '_>,
    row: &Row,
    (bound, limit): (Time, Time),
    thorough: bool,
    counters: &mut Counters,
) -> Option<Time> {
    // On the host the optimizer costs time, and spares what may decide whether the model fits at all.
    let on_device = || Solver::new(class, (row, false), limit);
    let places = class.optimizer_offloads();
    let on_host = places.last().is_some_and(|on_host| on_host && !on_device().holds_the_model());
    let way = (row, on_host);
    let simple = in_proportion(class, way, limit, counters);
    // Next to the bound there is little to gain.
    if simple.is_some_and(|time| time.beyond(bound) * NEAR < bound) {
        return simple;
    }
    let one_kind = class.kinds.iter().all(|&kind| kind == class.kinds[0]);
    if !thorough || !class.uneven() || !one_kind || class.holds.problem.options.recompute_per_stage
    {
        return simple;
    }
    // Close to the bound little may be recomputed, and so little must be tried; mostly that is not enough, so both are tried at once.
    let most = simple.unwrap_or(limit).min(limit);
    let [closer, close] = STRETCHES.map(|parts| {
        let limit = Time((bound.0 / 16).saturating_mul(parts)).min(most);
        move || packed(class, way, limit)
    });
    let ((closer, of_closer), (close, of_close)) = rayon::join(closer, close);
    counters.merge(&of_closer);
    counters.merge(&of_close);
    let found = closer.or(close).map(|plan| {
        counters.estimates += 1;
        Step::new(&class.holds.tables, &plan).time
    });
    found.filter(|&time| time <= most).or(simple)
}

/// The part of a bound within which a guess is good enough.
const NEAR: u64 = 32;

/// Within how much of a bound plans are looked for, in sixteenths of it.
const STRETCHES: [u64; 2] = [18, 20];

/// The plan with as many layers on each stage, from the first on, as memory and a time for each leave it, and what that cost to
/// find: no split has a shorter longest stage, nearly, and where memory is tight no split in proportion comes near to it.
fn packed<'c>(class: &Class<'c, '_>, way: Way<'c>, limit: Time) -> (Option<Plan>, Counters) {
    let mut counters = Counters::default();
    let mut solver = Solver::new(class, way, limit);
    counters.bounds += 1;
    if !solver.fast_enough() || !solver.prepare_choices() {
        return (None, counters);
    }
    let mut best: Option<(Time, Vec<(u32, Choice)>)> = None;
    for choice in 0..solver.choices[0].len() {
        let most = best.as_ref().map_or(limit, |(end, _)| *end);
        // What the fullest stage takes for a micro-batch, from the most that there is time for.
        let mut each = Time(most.0 / solver.shape.micro_batches);
        while let Some((stages, fullest)) = solver.pack(choice, each) {
            counters.bounds += 1;
            let end = solver.end(&stages);
            if end <= limit && best.as_ref().is_none_or(|(known, _)| end < *known) {
                best = Some((end, stages));
            }
            each = Time(fullest.0 - fullest.0 / 64 - 1);
        }
    }
    (best.map(|(_, stages)| solver.plan(&stages)), counters)
}

/// The same with layers in proportion to the stages' speed, and the best of the first choices that fit everywhere.
fn in_proportion<'c>(
    class: &Class<'c, '_>,
    way: Way<'c>,
    limit: Time,
    counters: &mut Counters,
) -> Option<Time> {
    let solver = Solver::new(class, way, Time::MAX);
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
    if split.iter().enumerate().any(|(i, &layers)| layers < solver.fewest(i)) {
        return None;
    }
    let stages = |choice: Choice| split.iter().map(|&layers| (layers, choice)).collect();
    let fits = |choice: Choice| {
        let mut first = 0;
        split.iter().enumerate().all(|(i, &layers)| {
            let place = solver.place(i, first, layers, choice);
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

/// The time of a class's plan with the stages of another's of as many chunks, if it fits and is within `limit`: classes that differ
/// in their sharding alone often have nearly the same optimum.
pub fn like(
    class: &Class<'_, '_>,
    plan: &Plan,
    limit: Time,
    counters: &mut Counters,
) -> Option<Time> {
    let places = |i: usize| plan.stages[i].layers.div_ceil(plan.vpp as u32);
    let all: u32 = (0..plan.stages.len()).map(places).sum();
    let lead = places(0) * plan.vpp as u32 - plan.stages[0].layers;
    let mut rows = class.holds.rows.iter();
    let row = rows.find(|row| row.layers == all && row.ends.lead == lead)?;
    let solver = Solver::new(class, (row, plan.optimizer_offload), Time::MAX);
    let of_stage = |(i, s): (usize, &Stage)| {
        (places(i), Choice { recompute: s.recompute, offload: s.offload })
    };
    let stages: Vec<(u32, Choice)> = plan.stages.iter().enumerate().map(of_stage).collect();
    let mut first = 0;
    let fits = stages.iter().zip(class.kinds).enumerate().all(|(i, (&(layers, choice), &kind))| {
        let place = solver.place(i, first, layers, choice);
        first += layers;
        class.holds.tables.kind(kind).fits(&place)
    });
    counters.bounds += 1;
    if !fits || solver.end(&stages) > limit {
        return None;
    }
    counters.estimates += 1;
    Some(Step::new(&class.holds.tables, &solver.plan(&stages)).time)
}

impl Solver<'_, '_, '_> {
    /// As many layers for each stage as it holds under a choice and passes in `each`, from the first on, and what the fullest takes;
    /// nothing if some are left.
    fn pack(&mut self, choice: usize, each: Time) -> Option<(Vec<(u32, Choice)>, Time)> {
        let stages = self.class.kinds.len();
        let (mut first, mut fullest) = (0, Time::ZERO);
        let mut split = Vec::with_capacity(stages);
        for i in 0..stages {
            let behind = (stages - 1 - i) as u32;
            let left = self.layers - first - behind;
            let most = self.caps[i][choice].min(left);
            // The last holds what is left.
            let fewest = if behind == 0 { left } else { 1 };
            if fewest > most {
                return None;
            }
            let mut busy = Time::ZERO;
            let mut holds = |layers: u32| {
                let work = self.work(i, first, layers, choice);
                let taken = work.map(|work| work.forward + work.backward).filter(|&t| t <= each);
                taken.inspect(|&time| busy = busy.max(time)).is_some()
            };
            // Mostly as many as the stage before.
            let mut layers = split.last().copied().unwrap_or(most).clamp(fewest, most);
            while layers >= fewest && !holds(layers) {
                layers -= 1;
            }
            if layers < fewest {
                return None;
            }
            while layers < most && holds(layers + 1) {
                layers += 1;
            }
            fullest = fullest.max(busy);
            split.push(layers);
            first += layers;
        }
        let chosen = self.choices[0][choice];
        (first == self.layers).then(|| (split.into_iter().map(|n| (n, chosen)).collect(), fullest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::shard::Shard;
    use crate::estimate::Tables;
    use crate::search::holds::Holds;
    use crate::search::stages::{solve, Outcome};
    use crate::search::watch::Watch;
    use crate::testing;

    #[test]
    fn packed_stages_lie_between_the_optimum_and_a_split_in_proportion() {
        let mut closer = 0;
        for gib in [16.0, 17.0, 18.0, 19.0, 20.0, 22.0, 24.0, 28.0] {
            let mut chip = testing::a100();
            chip.memory_gib = gib;
            let mut problem =
                testing::problem(testing::gpt(18, 2048), testing::cluster(chip, 4), 32, 2048);
            problem.options.optimizer_offload = false;
            let shard = Shard { pipelined: true, ..testing::whole() };
            let tables = Tables::new(&problem, |_| Some(shard));
            let holds = Holds::new(tables, Plan { pp: 4, ..testing::plan(Vec::new()) });
            let class = Class { holds: &holds, kinds: &[0; 4], watch: &Watch::new(None) };
            let counters = &mut Counters::default();
            let Outcome::Found(best) = solve(&class, Time::MAX, counters) else { continue };
            let way = (&holds.rows[0], false);
            let Some(simple) = in_proportion(&class, way, Time::MAX, counters) else { continue };
            let (Some(plan), _) = packed(&class, way, simple) else { continue };
            let packed = Step::new(&holds.tables, &plan).time;
            assert!(best.bound <= packed && packed <= simple, "{gib} GiB");
            closer += u32::from(packed < simple);
        }
        assert!(closer > 0, "memory is tight somewhere");
    }
}
