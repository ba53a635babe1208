//! Many plans as rows of numbers cost what each costs by itself.

mod draw;

use autopar_core::bulk::{estimate_many, Stages, LACKS_MEMORY, WORDS};
use autopar_core::estimate::estimate;
use autopar_core::plan::rules::check;
use autopar_core::plan::{Plan, Recompute};
use autopar_core::spec::problem::Schedule;
use autopar_core::Watch;
use draw::pipeline::SCHEDULES;
use draw::plans::any_plan;
use draw::Draw;

/// A row of numbers for a plan, and the layers and chips of its stages.
fn row(plan: &Plan) -> ([i32; 17], Vec<i32>, Vec<i32>) {
    let schedule = SCHEDULES.iter().position(|s| *s == plan.schedule).unwrap_or_default();
    let (recompute, layers) = match plan.stages[0].recompute {
        Recompute::None => (0, 0),
        Recompute::Selective => (1, 0),
        Recompute::Block { layers } => (2, layers),
        Recompute::Uniform { layers } => (3, layers),
        Recompute::Parts(_) => unreachable!("no row says it"),
    };
    let degrees = [plan.dp, plan.tp, plan.sp.into(), plan.cp, plan.ep, plan.etp, plan.pp, plan.vpp];
    let rest = [
        plan.mbs,
        plan.zero.into(),
        plan.shard_group,
        schedule as u64,
        recompute,
        layers.into(),
        plan.stages[0].offload.into(),
        plan.optimizer_offload.into(),
        plan.stages[0].chip.into(),
    ];
    let mut all = [0; 17];
    for (cell, value) in all.iter_mut().zip(degrees.into_iter().chain(rest)) {
        *cell = value as i32;
    }
    let layers = plan.stages.iter().map(|s| s.layers as i32).collect();
    (all, layers, plan.stages.iter().map(|s| s.chip as i32).collect())
}

#[test]
fn a_row_of_a_table_costs_what_its_estimate_says() {
    let mut draw = Draw::new(14);
    // Plans that ran, that lacked memory, that broke a rule; equal stages under 1F1B and under other schedules.
    let (mut fit, mut lack, mut illegal, mut plain, mut other) = (0, 0, 0, 0, 0);
    for n in 0..1500 {
        let kinds = draw.pick(&[1, 1, 2]);
        let mut problem = draw::problem(&mut draw, kinds);
        if draw.once_in(2) {
            problem.model.moe = None;
            problem.model.window = None;
        }
        for group in &mut problem.cluster.groups {
            group.chip.memory_gib = problem.framework.context_gib + draw.scale(0.01, 20.0);
        }
        // Three of four are the first legal one of several, where there is one.
        let plans: Vec<Plan> = (0..12)
            .map(|n| {
                let mut plan = any_plan(&mut draw, &problem);
                for _ in 0..10 {
                    if n % 4 > 0 && !check(&problem, &plan).is_empty() {
                        plan = any_plan(&mut draw, &problem);
                    }
                }
                plan
            })
            .collect();
        let width = plans.iter().map(|p| p.stages.len()).max().unwrap_or_default();
        let (mut cells, mut layers, mut chips) = (Vec::new(), Vec::new(), Vec::new());
        for plan in &plans {
            let (row, of_stages, on) = row(plan);
            cells.extend(row);
            for (list, mut line) in [(&mut layers, of_stages), (&mut chips, on)] {
                line.resize(width, 0);
                list.extend(line);
            }
        }
        let stages = Stages { width, layers: &layers, chips: Some(&chips) };
        let watch = Watch::new(None);
        let words = estimate_many(&problem, &cells, Some(stages), &watch).expect("known codes");
        let alike = estimate_many(&problem, &cells, None, &watch).expect("known codes");
        for (at, plan) in plans.iter().enumerate() {
            let word = &words[at * WORDS..][..WORDS];
            let case = format!("case {n}: {plan:?} {problem:?}");
            let [fits, violation, _, _, stage @ ..] = word[6].to_ne_bytes();
            let equal = plan.stages.iter().all(|s| *s == plan.stages[0]);
            match estimate(&problem, plan) {
                Err(_) => {
                    illegal += 1;
                    assert!((1..LACKS_MEMORY).contains(&violation), "{case}");
                    assert!(word[0] == 0 && f64::from_bits(word[1]).is_nan(), "{case}");
                }
                Ok(cost) => {
                    let bits = [cost.step_s, cost.tokens_per_s, cost.mfu].map(f64::to_bits);
                    assert_eq!((word[0], &word[1..4]), (cost.step_ps.0, &bits[..]), "{case}");
                    let left = |i: usize| {
                        let s = &cost.stages[i];
                        i128::from(s.capacity_bytes.0) - i128::from(s.allocated_bytes.0)
                    };
                    let least = (0..plan.stages.len()).min_by_key(|&i| left(i)).unwrap_or_default();
                    let fullest = &cost.stages[least];
                    let memory = [fullest.allocated_bytes.0, fullest.capacity_bytes.0];
                    assert_eq!(
                        (&word[4..6], u32::from_ne_bytes(stage)),
                        (&memory[..], least as u32),
                        "{case}"
                    );
                    assert_eq!(fits == 1, cost.violations.is_empty(), "{case}");
                    assert_eq!(violation, if fits == 1 { 0 } else { LACKS_MEMORY }, "{case}");
                    fit += u32::from(fits == 1);
                    lack += u32::from(fits == 0);
                    let deep = u32::from(equal && plan.pp > 2);
                    let of = plan.schedule == Schedule::OneFOneB;
                    *if of { &mut plain } else { &mut other } += deep;
                }
            }
            // Equal stages need not be told. A plan without a cost has NaN, which has one pattern of bits here.
            if equal && problem.model.layers.is_multiple_of(plan.pp as u32) {
                assert_eq!(word, &alike[at * WORDS..][..WORDS], "{case}");
            }
        }
    }
    let counts = [(fit, 2000), (lack, 1000), (illegal, 1000), (plain, 200), (other, 100)];
    for (count, least) in counts {
        assert!(count > least, "{fit} fit, {lack} lack, {illegal} illegal, {plain} plain, {other}");
    }
}
