//! No bound is above a step or a plan that fits, on random ones.

mod draw;

use autopar_core::estimate::collective::Fabric;
use autopar_core::estimate::layer::priced_as;
use autopar_core::estimate::least::{Least, Prices};
use autopar_core::estimate::memory;
use autopar_core::estimate::pipeline::{makespan, Chunk, Sends, StageClock};
use autopar_core::estimate::shard::Shard;
use autopar_core::estimate::shortest::Shortest;
use autopar_core::estimate::{estimate, sends, Tables};
use autopar_core::plan::rules::check;
use autopar_core::plan::{Plan, Recompute};
use autopar_core::search::bound::{Continuous, Shape, Tail, Verdict, Work};
use autopar_core::search::passage::{KindPrices, Passage};
use autopar_core::search::places::Places;
use autopar_core::search::relax::Question;
use autopar_core::search::space::Stages as Offered;
use autopar_core::spec::framework::{Named, Selective};
use autopar_core::spec::problem::{Granularity, Schedule};
use autopar_core::units::{Time, GIB};
use draw::pipeline::{clocks, shape, SENDS};
use draw::plans::{any_plan, unequal_plan};
use draw::Draw;

/// A stage as the bounds see it.
fn work(schedule: Schedule, sends: Sends, stages: &[StageClock], i: usize) -> Work {
    let s = &stages[i];
    let (last, v) = (i + 1 == stages.len(), s.chunks.len() as u64);
    let split = matches!(schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
    let sum = |of: &dyn Fn(&Chunk) -> Time| s.chunks.iter().map(of).sum::<Time>();
    let first_backward = if split { s.chunks[0].input_gradient } else { s.chunks[0].backward() };
    let mut w = Work {
        forward: sum(&|c| c.forward),
        backward: sum(&|c| c.backward()),
        first_forward: s.chunks[0].forward,
        first_backward,
        until_input: if split { sum(&|c| c.input_gradient) } else { sum(&|c| c.backward()) },
        tail: s.tail,
    };
    if !last {
        w.first_forward += s.send_forward;
    }
    match sends {
        Sends::Blocking => {
            w.forward += s.send_forward * if last { v - 1 } else { v };
            w.backward += s.send_backward * if i == 0 { v - 1 } else { v };
            if i > 0 {
                w.first_backward += s.send_backward;
            }
        }
        Sends::Overlapped => {
            if !last {
                w.first_backward += stages[i + 1].send_backward;
            }
        }
    }
    w
}

/// How the schedules send: the zero-bubble ones never block.
fn sends_of(draw: &mut Draw, schedule: Schedule) -> Sends {
    match schedule {
        Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV => Sends::Overlapped,
        Schedule::OneFOneB | Schedule::Interleaved | Schedule::GPipe => draw.pick(&SENDS),
    }
}

#[test]
fn the_bound_of_labels_is_never_above_the_step() {
    let mut draw = Draw::new(3);
    for n in 0..20_000 {
        let shape = shape(&mut draw, 40);
        let stages = clocks(&mut draw, shape.pp, shape.vpp);
        let sends = sends_of(&mut draw, shape.schedule);
        let bound = (0..stages.len()).rev().fold(Tail::default(), |tail, i| {
            tail.after(shape, i as u64, &work(shape.schedule, sends, &stages, i))
        });
        let step = makespan(shape.schedule, sends, &stages, shape.micro_batches);
        assert!(
            bound.end <= step,
            "case {n}: {} above {} {shape:?} {sends:?} {stages:?}",
            bound.end.0,
            step.0
        );
    }
}

#[test]
fn the_bound_with_fractional_layers_is_never_above_the_step() {
    let mut draw = Draw::new(4);
    let mut close = 0;
    for n in 0..20_000 {
        let shape = shape(&mut draw, 40);
        let sends = sends_of(&mut draw, shape.schedule);
        let mut layers = 0;
        let interleaved = shape.schedule == Schedule::Interleaved;
        // Layers of a stage take `unit` each at least, the ends and recompute come on top. The first chunk of all may lack one, and the
        // last several.
        let ends = [interleaved && draw.once_in(2), interleaved && draw.once_in(2)];
        let on_top = draw.pick(&[[0; 3], [0, 0, 30]]);
        let alike = draw.once_in(2).then(|| (draw.scale(4.0, 4000.0) as u64, draw.between(1, 2)));
        let stages: Vec<(u64, StageClock)> = (0..shape.pp)
            .map(|i| {
                let any = (draw.scale(4.0, 4000.0) as u64, draw.between(1, 5));
                let (unit, count) = alike.unwrap_or(any);
                let (f, b) = (unit / 4, unit / 3);
                let lead = u64::from(ends[0] && i == 0);
                let lag = if ends[1] && i + 1 == shape.pp { draw.between(0, count) } else { 0 };
                layers += count * shape.vpp - lead - lag;
                let chunks = (0..shape.vpp)
                    .map(|chunk| {
                        let lacks = if chunk == 0 { lead } else { 0 };
                        let held = count - lacks - if chunk + 1 == shape.vpp { lag } else { 0 };
                        Chunk {
                            forward: Time(f * held + draw.pick(&on_top)),
                            input_gradient: Time(b * held + draw.pick(&on_top)),
                            weight_gradient: Time((unit - f - b) * held),
                        }
                    })
                    .collect();
                let send = draw.pick(&[0, 1, 50]);
                let clock = StageClock {
                    chunks,
                    send_forward: Time(draw.between(0, send)),
                    send_backward: Time(draw.between(0, send)),
                    tail: Time(0),
                };
                (unit, clock)
            })
            .collect();
        let mut bound = Continuous::new(shape, false);
        for (i, (unit, clock)) in stages.iter().enumerate().rev() {
            let down = if i + 1 < stages.len() { clock.send_forward } else { Time::ZERO };
            let up = if i > 0 { clock.send_backward } else { Time::ZERO };
            let own = if sends == Sends::Blocking { (down + up) * shape.vpp } else { Time::ZERO };
            bound.stage(*unit as f64, own.0 as f64);
        }
        let clocks: Vec<StageClock> = stages.iter().map(|(_, clock)| clock.clone()).collect();
        let step = makespan(shape.schedule, sends, &clocks, shape.micro_batches);
        let lacking = shape.lacking(0, ends[0]) * stages[0].0 as f64;
        let least = bound.bound(layers as f64) - lacking;
        close += u64::from(ends[0] && least + lacking > step.0 as f64);
        assert!(
            least <= step.0 as f64 * (1.0 + 1e-12),
            "case {n}: {least} above {} {shape:?} {sends:?} {stages:?}",
            step.0
        );
    }
    assert!(close > 0, "nowhere matters what the first chunk lacks");
}

#[test]
fn equal_stages_meet_the_bound_with_fractional_layers_as_micro_batches_grow() {
    // Four stages of 6 layers of 10, 1F1B: the step is (m + 3) 60. The bound lets later stages hold less; as m grows both
    // tend to 60 m: at m = 1000, 60180 against 1000 * 24 * 10 / (1 + r + r^2 + r^3) with r = 1 - 1/1000, 60090.1.
    let m = 1000;
    let shape = Shape { schedule: Schedule::OneFOneB, pp: 4, vpp: 1, micro_batches: m };
    let mut bound = Continuous::new(shape, false);
    (0..4).for_each(|_| bound.stage(10.0, 0.0));
    let r: f64 = 1.0 - 1.0 / m as f64;
    let expected = m as f64 * 24.0 * 10.0 / (1.0 + r + r * r + r * r * r);
    assert!((bound.bound(24.0) / expected - 1.0).abs() < 1e-12);
    assert!((bound.bound(24.0) - 60_090.1).abs() < 0.1);
}

#[test]
fn the_bound_of_a_class_is_never_above_a_plan_that_fits() {
    let mut draw = Draw::new(16);
    let mut tight = 0;
    for n in 0..4500 {
        let (mut problem, mut plan) = unequal_plan(&mut draw);
        if draw.once_in(2) {
            problem.model.window = draw::problem(&mut draw, 1).model.window;
        }
        let deepest = |chip: u32| {
            let of_kind = plan.stages.iter().filter(|s| s.chip == chip);
            of_kind.map(|s| s.layers.div_ceil(plan.vpp as u32)).max().unwrap_or(1)
        };
        let choices: Vec<(Recompute, u32)> = (0..3)
            .map(|chip| {
                let layers = draw.between(1, u64::from(deepest(chip))) as u32;
                let offload = if plan.pp == 1 { layers } else { 0 };
                draw.pick(&[
                    (Recompute::None, 0),
                    (Recompute::None, offload),
                    (Recompute::Selective, 0),
                    (Recompute::Block { layers }, 0),
                    (Recompute::Uniform { layers }, 0),
                ])
            })
            .collect();
        for stage in &mut plan.stages {
            (stage.recompute, stage.offload) = choices[stage.chip as usize];
        }
        problem.options.recompute.clear();
        problem.options.activation_offload = true;
        problem.options.optimizer_offload |= plan.optimizer_offload;
        problem.options.uneven_layers = true;
        // Just as much memory as the plan needs.
        let found = estimate(&problem, &plan).expect("a legal plan");
        for (chip, group) in problem.cluster.groups.iter_mut().enumerate() {
            let of_kind = plan.stages.iter().zip(&found.stages);
            let needs = of_kind.filter(|(s, _)| s.chip as usize == chip);
            let most = needs.map(|(_, e)| e.allocated_bytes.0).max().unwrap_or(1 << 40) + 1;
            group.chip.memory_gib = memory::context(&problem.framework, &plan.shard(0)).gib()
                + most as f64 / GIB / (1.0 - problem.options.memory_margin);
        }
        let found = estimate(&problem, &plan).expect("a legal plan");
        assert!(found.violations.is_empty(), "{:?}", found.violations);
        let tables = Tables::new(&problem, |kind| Some(plan.shard(kind)));
        let leasts: Vec<_> =
            (0..problem.cluster.groups.len()).map(|kind| Some(tables.kind(kind).least())).collect();
        let kinds: Vec<usize> = plan.stages.iter().map(|s| s.chip as usize).collect();
        let first = plan.stages[0].layers;
        let equal =
            first.is_multiple_of(plan.vpp as u32) && plan.stages.iter().all(|s| s.layers == first);
        let micro_batches = plan.micro_batches(&problem);
        let Plan { schedule, pp, vpp, .. } = plan;
        for (any_schedule, even) in [(false, false), (false, true), (true, false)] {
            if even && !equal {
                continue;
            }
            let shape = Shape { schedule, pp, vpp, micro_batches };
            let any = Shape { schedule: Schedule::OneFOneB, pp, vpp: 1, micro_batches };
            let question = Question {
                problem: &problem,
                shape: if any_schedule { any } else { shape },
                sends: sends(&problem, schedule),
                even: even || pp == 1,
                any_schedule,
                flying: micro_batches,
                limit: draw.pick(&[f64::INFINITY, found.step_s]),
            };
            if !any_schedule && !even {
                within_caps(
                    &question,
                    &leasts,
                    &stages_of(&kinds, leasts.len()),
                    &kinds,
                    found.step_s,
                );
            }
            let bound = question.bound(&leasts, &kinds);
            let Verdict::Seconds(seconds) = bound else {
                panic!("{n}: {even} {any_schedule}: does not fit: {plan:?}")
            };
            assert!(seconds <= found.step_s, "{n}: {seconds} > {} for {plan:?}", found.step_s);
            tight += u64::from(!any_schedule && seconds > 0.97 * found.step_s);
        }
    }
    assert!(tight > 400, "{tight}");
}

/// As many stages of each kind as there are.
fn stages_of(kinds: &[usize], all: usize) -> Vec<Offered> {
    let used = |kind| kinds.iter().filter(|&&k| k == kind).count() as u64;
    (0..all).map(|kind| Offered { kind, most: used(kind) }).collect()
}

/// Asserts that stages of `kinds` are said to hold the model within the time that a plan on them takes, whether their order is
/// known or not; says whether they are said not to within a tenth less.
fn within_caps(
    question: &Question<'_>,
    leasts: &[Option<Least>],
    offered: &[Offered],
    kinds: &[usize],
    seconds: f64,
) -> bool {
    let mut runs: Vec<(usize, u64)> = Vec::new();
    for &kind in kinds {
        match runs.last_mut() {
            Some((last, stages)) if *last == kind => *stages += 1,
            _ => runs.push((kind, 1)),
        }
    }
    let counts: Vec<u64> = stages_of(kinds, leasts.len()).iter().map(|s| s.most).collect();
    // What the kinds that are not used would take is no matter.
    let mut used = leasts.to_vec();
    (0..used.len()).filter(|kind| !kinds.contains(kind)).for_each(|kind| used[kind] = None);
    for leasts in [leasts, &used] {
        let places = Places::new(question, leasts, offered).expect("a kind is priced");
        let caps = places.within(seconds).expect("some stages hold the model");
        assert!(caps.hold(&runs), "{runs:?} in {seconds} s");
    }
    let places = Places::new(question, leasts, offered).expect("every kind is priced");
    let caps = places.within(seconds).expect("some stages hold the model");
    for decided in 0..=offered.len() {
        let left = counts[decided..].iter().sum();
        assert!(caps.hold_counts(&counts[..decided], left), "{counts:?}, {decided}");
    }
    let anywhere = question.in_any_order(leasts, offered);
    assert!(matches!(anywhere, Verdict::Seconds(s) if s <= seconds), "{anywhere:?} of {seconds}");
    let least = places.bound(Time::from_seconds(seconds / 8.0), Time::MAX);
    assert!(least.expect("they fit").seconds() <= seconds, "a bound is below the plan");
    let [from, limit] = [seconds / 2.0, 1.25 * seconds].map(Time::from_seconds);
    let least = places.bound(from, limit).expect("they fit");
    assert!(least.seconds() <= seconds, "a bound from the limit downwards is below the plan");
    // On one kind the bound sees to it that all stages save memory in one way.
    let held = places.within(least.seconds()).is_some() && leasts.len() > 1;
    assert!(least == from || !held, "a bound is a time that is too short");
    places.within(0.9 * seconds).is_none_or(|caps| !caps.hold(&runs))
}

#[test]
fn bounds_hold_where_operators_one_by_one_take_longer_again_than_their_layer() {
    // All that is named is a checkpoint of its own, and what is kept is little more than the layer's input, or less.
    let mut draw = Draw::new(4242);
    let mut slower = 0;
    for n in 0..60_000 {
        let mut problem = draw::problem(&mut draw, 1);
        let group = &mut problem.cluster.groups[0];
        (group.limit, group.chip.memory_gib) = (None, 1e6);
        problem.framework.selective = Selective::Named;
        problem.framework.named = Named {
            norm: true,
            projections: true,
            attention: true,
            output: true,
            dispatch: true,
            expansion: true,
            activation: true,
            contraction: true,
        };
        let mut plan = any_plan(&mut draw, &problem);
        let way = draw.pick(&[0, 1, 2]);
        for stage in &mut plan.stages {
            stage.offload = 0;
            stage.recompute = match way {
                0 => Recompute::Selective,
                1 => Recompute::Block { layers: stage.layers.div_ceil(plan.vpp as u32) },
                _ => Recompute::None,
            };
        }
        if !check(&problem, &plan).is_empty() {
            continue;
        }
        problem.options.recompute =
            vec![Granularity::Selective, Granularity::Block, Granularity::None];
        problem.options.optimizer_offload |= plan.optimizer_offload;
        problem.options.uneven_layers = true;
        let found = estimate(&problem, &plan).expect("a legal plan");
        // Just as much memory as the plan needs.
        let needs = found.stages.iter().map(|e| (e.allocated_bytes + e.memory.context).0);
        problem.cluster.groups[0].chip.memory_gib =
            (needs.max().unwrap_or(0) + 2) as f64 / GIB / (1.0 - problem.options.memory_margin);
        let least = Tables::new(&problem, |kind| Some(plan.shard(kind))).kind(0).least();
        slower += u64::from(least.again[0] > least.again[1]);
        let Plan { schedule, pp, vpp, .. } = plan;
        let micro_batches = plan.micro_batches(&problem);
        let question = Question {
            problem: &problem,
            shape: Shape { schedule, pp, vpp, micro_batches },
            sends: sends(&problem, schedule),
            even: pp == 1,
            any_schedule: false,
            flying: micro_batches,
            limit: f64::INFINITY,
        };
        let Verdict::Seconds(seconds) = question.bound(&[Some(least)], &vec![0; pp as usize])
        else {
            panic!("{n}: does not fit: {plan:?}")
        };
        assert!(seconds <= found.step_s, "{n}: {seconds} > {} for {plan:?}", found.step_s);
    }
    assert!(slower > 1000, "{slower}");
}

#[test]
fn bounds_of_any_degrees_are_never_above_a_plan_that_fits() {
    let mut draw = Draw::new(19);
    let (mut experts, mut tensor, mut context, mut tight) = (0, 0, 0, 0);
    let (mut capped, mut waiting) = (0, 0);
    for n in 0..8000 {
        let kinds = draw.pick(&[1, 1, 2, 3]);
        let mut problem = draw::problem(&mut draw, kinds);
        problem.cluster.groups.iter_mut().for_each(|g| {
            g.limit = None;
            g.chip.memory_gib = 1e6;
        });
        let mut plan = any_plan(&mut draw, &problem);
        // In the space activations wait on the host without a pipeline and recompute only.
        for s in &mut plan.stages {
            if plan.pp > 1 || s.recompute != Recompute::None {
                s.offload = 0;
            }
        }
        waiting += u64::from(plan.stages[0].offload > 0);
        if !check(&problem, &plan).is_empty() {
            continue;
        }
        problem.options.recompute.clear();
        problem.options.optimizer_offload |= plan.optimizer_offload;
        problem.options.activation_offload = true;
        problem.options.uneven_layers = true;
        let found = estimate(&problem, &plan).expect("a legal plan");
        // Just as much memory as the plan needs.
        for (chip, group) in problem.cluster.groups.iter_mut().enumerate() {
            let of_kind = plan.stages.iter().zip(&found.stages);
            let needs = of_kind.filter(|(s, _)| s.chip as usize == chip);
            let most = needs.map(|(_, e)| (e.allocated_bytes + e.memory.context).0).max();
            group.chip.memory_gib =
                (most.unwrap_or(1 << 40) + 2) as f64 / GIB / (1.0 - problem.options.memory_margin);
        }
        let tables = Tables::new(&problem, |kind| Some(plan.shard(kind)));
        let leasts: Vec<_> =
            (0..problem.cluster.groups.len()).map(|kind| Some(tables.kind(kind).least())).collect();
        let kinds: Vec<usize> = plan.stages.iter().map(|s| s.chip as usize).collect();
        let equal = plan.stages.iter().all(|s| s.layers == plan.stages[0].layers);
        let Plan { schedule, pp, vpp, .. } = plan;
        let zero_bubble = matches!(schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
        let question = Question {
            problem: &problem,
            shape: Shape { schedule, pp, vpp, micro_batches: plan.micro_batches(&problem) },
            sends: sends(&problem, schedule),
            even: equal && (zero_bubble || pp == 1),
            any_schedule: false,
            flying: plan.micro_batches(&problem),
            limit: f64::INFINITY,
        };
        let stages: Vec<Offered> = (0..problem.cluster.groups.len())
            .map(|kind| {
                let used = kinds.iter().filter(|&&k| k == kind).count() as u64;
                Offered { kind, most: used + draw.between(0, 1) }
            })
            .collect();
        capped += u64::from(within_caps(&question, &leasts, &stages, &kinds, found.step_s));
        for bound in [question.bound(&leasts, &kinds), question.in_any_order(&leasts, &stages)] {
            let Verdict::Seconds(seconds) = bound else { panic!("{n}: does not fit: {plan:?}") };
            assert!(seconds <= found.step_s, "{n}: {seconds} > {} for {plan:?}", found.step_s);
            tight += u64::from(seconds > 0.9 * found.step_s);
        }
        experts += u64::from(plan.ep > 1);
        tensor += u64::from(plan.tp > 1);
        context += u64::from(plan.cp > 1);
    }
    let seen =
        [(experts, 50), (tensor, 200), (context, 80), (tight, 200), (capped, 200), (waiting, 20)];
    assert!(seen.iter().all(|&(times, least)| times >= least), "{seen:?}");
}

#[test]
fn no_micro_batch_passes_its_sequences_faster_than_the_floor() {
    // Few of one seed's problems put tokens of tiny sequences into places by products.
    let mut draws = [29, 1001, 1004].map(Draw::new);
    let (mut experts, mut tensor, mut context, mut near) = (0, 0, 0, 0);
    for n in 0..36_000 {
        let draw = &mut draws[n % 3];
        let problem = draw::problem(draw, 1);
        let plan = any_plan(draw, &problem);
        if !check(&problem, &plan).is_empty() {
            continue;
        }
        experts += u64::from(plan.ep > 1);
        tensor += u64::from(plan.tp > 1);
        context += u64::from(plan.cp > 1);
        let shard = Shard { dp: 1, zero: 0, shard_group: 1, ..plan.shard(0) };
        let floor = Passage::floor(&problem, 0, Shard { mbs: 1, ..shard }, true);
        let figures =
            |p: &Passage| [p.layer, p.forward, p.through, p.rest[0], p.rest[1], p.rest[2]];
        for mbs in [1, 2, draw.between(3, 40), 1 << draw.between(6, 16), 1 << 22] {
            let priced = KindPrices::new(&problem, 0, Shard { mbs, ..shard }, true, plan.dp);
            let each = Passage::of(&priced).times(1.0 / mbs as f64);
            for (least, some) in figures(&floor).into_iter().zip(figures(&each)) {
                assert!(
                    least <= some,
                    "case {n}, {mbs} sequences: {floor:?} above {each:?} {plan:?}"
                );
            }
            near += u64::from(mbs == 1 << 22 && floor.layer > 0.95 * each.layer);
        }
    }
    let enough = experts > 50 && tensor > 200 && context > 100 && near > 500;
    assert!(enough, "{experts} {tensor} {context} {near}");
}

#[test]
fn no_group_gathers_sooner_than_the_soonest_of_any() {
    let mut draw = Draw::new(77);
    let (mut near, mut alone, mut apart) = (0, 0, 0);
    for _ in 0..8000 {
        let problem = draw::problem(&mut draw, 1);
        let plan = any_plan(&mut draw, &problem);
        let replicas = plan.dp * plan.cp;
        if !check(&problem, &plan).is_empty() || replicas == 1 {
            continue;
        }
        for zero in [2, 3] {
            let shard = |shard_group| Shard { zero, shard_group, ..plan.shard(0) };
            if priced_as(shard(2), &problem.framework).zero != zero {
                continue;
            }
            let whole = Shard { zero: 0, shard_group: 1, ..shard(1) };
            let prices = KindPrices::new(&problem, 0, whole, true, plan.dp);
            let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
            let ranks = replicas * plan.tp;
            let sizes: Vec<u64> = (2..=ranks).filter(|&n| ranks.is_multiple_of(n)).collect();
            let shortest = || Shortest::of(&fabric, &shard(2), &sizes);
            let soonest = Passage::under(prices.in_any_group(&problem, 0, shard(2), shortest));
            alone += u64::from(shard(2).expert_replica_group().size == 1);
            for group in (2..=replicas).filter(|&group| replicas.is_multiple_of(group)) {
                let own = Passage::under(&Prices::new(&problem, 0, shard(group)));
                let figures = |p: &Passage| [p.layer, p.forward, p.rest[0], p.rest[1], p.rest[2]];
                for (least, some) in figures(&soonest).into_iter().zip(figures(&own)) {
                    assert!(least <= some * (1.0 + 1e-12), "{soonest:?} above {own:?} {plan:?}");
                }
                near += u64::from(soonest.layer > 0.999 * own.layer);
                apart += u64::from(soonest.layer < 0.999 * own.layer);
            }
        }
    }
    assert!(near > 50 && alone > 5 && apart > 50, "{near} {alone} {apart}");
}

#[test]
fn prices_for_any_replicas_are_never_above_those_of_some() {
    let mut draw = Draw::new(91);
    let (mut loud, mut quiet, mut below) = (0, 0, 0);
    for n in 0..20_000 {
        let mut problem = draw::problem(&mut draw, 1);
        // What waits on the host is fetched by each rank.
        problem.framework.held.parameters_on_host = draw.once_in(8);
        let plan = any_plan(&mut draw, &problem);
        if !check(&problem, &plan).is_empty() {
            continue;
        }
        let shard = plan.shard(0);
        let one = Shard { dp: 1, zero: 0, shard_group: 1, ..shard };
        let up_to = plan.dp * draw.between(1, 3);
        let of_any = KindPrices::new(&problem, 0, one, true, up_to);
        let travels = priced_as(shard, &problem.framework).zero > 0;
        let least = if travels { of_any.quiet.as_ref() } else { Some(&of_any.loud) };
        let least = Passage::under(least.expect("parameters may travel"));
        let own = Passage::under(&Prices::new(&problem, 0, shard));
        let figures = |p: &Passage| [p.layer, p.forward, p.rest[0], p.rest[1], p.rest[2]];
        for (least, some) in figures(&least).into_iter().zip(figures(&own)) {
            assert!(least <= some * (1.0 + 1e-12), "{n}: {least} above {some} {plan:?}");
        }
        loud += u64::from(!travels);
        quiet += u64::from(travels);
        below += u64::from(!travels && least.layer < own.layer);
    }
    assert!(loud > 500 && quiet > 100 && below > 20, "{loud} {quiet} {below}");
}
