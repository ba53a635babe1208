//! Search against brute force: every plan of many small problems, enumerated and judged one by one.
//!
//! The enumeration has its own loops and its own rules of what is legal; it shares with the search only the price of
//! a plan. `AUTOPAR_ORACLE_PROBLEMS=12000` tries more problems than the few hundred of a normal run,
//! `AUTOPAR_ORACLE_FIRST=20000` others, `AUTOPAR_ORACLE_PLANS=400000` larger ones.

mod draw;

use autopar_core::estimate::shard::Shard;
use autopar_core::estimate::{estimate, Step, Tables};
use autopar_core::plan::{check, Plan, Recompute, Stage};
use autopar_core::search::report::{Infeasible, Report};
use autopar_core::search::search;
use autopar_core::spec::framework::ContextExchange;
use autopar_core::spec::problem::{Granularity, Problem, Schedule};
use autopar_core::units::{Time, GIB};
use autopar_core::Watch;
use draw::Draw;
use std::collections::BTreeMap;
use std::ops::ControlFlow::{self, Break, Continue};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// A number from the environment.
fn number(name: &str, usual: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")),
        Err(_) => usual,
    }
}

/// What distinguishes strategies, in the order that breaks ties: fewer devices, then smaller pp, tp, cp, then the rest of
/// the degrees, then the names of the stages' chips.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    devices: u64,
    pp: u64,
    tp: u64,
    cp: u64,
    dp: u64,
    sp: bool,
    ep: u64,
    etp: u64,
    vpp: u64,
    mbs: u64,
    zero: u8,
    shard_group: u64,
    schedule: Schedule,
    /// Of each stage, with its tensor-parallel degree.
    chips: Vec<(String, u64)>,
}

fn identity(problem: &Problem, p: &Plan) -> Identity {
    let name = |s: &Stage| problem.cluster.groups[s.chip as usize].chip.name.clone();
    let degree = |s: &Stage| p.tp_of_kind.get(s.chip as usize).copied().unwrap_or(p.tp);
    Identity {
        devices: p.stages.iter().map(|s| p.dp * degree(s) * p.cp).sum(),
        pp: p.pp,
        tp: p.tp,
        cp: p.cp,
        dp: p.dp,
        sp: p.sp,
        ep: p.ep,
        etp: p.etp,
        vpp: p.vpp,
        mbs: p.mbs,
        zero: p.zero,
        shard_group: p.shard_group,
        schedule: p.schedule,
        chips: p.stages.iter().map(|s| (name(s), degree(s))).collect(),
    }
}

/// Calls `visit` with every legal plan, memory apart, until it breaks.
fn every_plan(
    problem: &Problem,
    visit: &mut dyn FnMut(Plan) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let (o, n) = (&problem.options, problem.cluster.devices);
    for pp in (1..=n).filter(|&pp| divides(pp, n)) {
        for tp in (1..=n).filter(|&tp| divides(pp * tp, n)) {
            for cp in (1..=n).filter(|&cp| divides(pp * tp * cp, n)) {
                let dp = n / (pp * tp * cp);
                every_micro_batch(problem, (dp, cp, pp), tp, &[], visit)?;
            }
        }
    }
    if !o.mixed_tp {
        return Continue(());
    }
    for dp in (1..=n).filter(|&dp| divides(dp, n)) {
        for cp in (1..=n).filter(|&cp| divides(dp * cp, n)) {
            for degrees in draw::every_choice_of_degrees(problem) {
                let largest = degrees.iter().copied().max().unwrap_or(0);
                for pp in 2..=n / (dp * cp) {
                    if fills(&degrees, pp, n / (dp * cp)) {
                        every_micro_batch(problem, (dp, cp, pp), largest, &degrees, visit)?;
                    }
                }
            }
        }
    }
    Continue(())
}

fn divides(a: u64, b: u64) -> bool {
    b.is_multiple_of(a)
}

/// Whether some stages of each kind with a degree have so many ranks together.
fn fills(degrees: &[u64], stages: u64, ranks: u64) -> bool {
    match degrees.split_first() {
        None => stages == 0 && ranks == 0,
        Some((0, others)) => fills(others, stages, ranks),
        Some((tp, others)) => {
            (1..=stages.min(ranks / tp)).any(|held| fills(others, stages - held, ranks - held * tp))
        }
    }
}

/// Chooses the rest of the degrees for a tensor-parallel degree, or one of each kind of which it is the largest.
fn every_micro_batch(
    problem: &Problem,
    (dp, cp, pp): (u64, u64, u64),
    tp: u64,
    of_kind: &[u64],
    visit: &mut dyn FnMut(Plan) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let (m, w, o) = (&problem.model, &problem.workload, &problem.options);
    let (heads, kv) = (u64::from(m.heads), u64::from(m.kv_heads));
    let allows = |list: &[u64], x: u64| list.is_empty() || list.contains(&x);
    let every = |rule: &dyn Fn(u64) -> bool| match of_kind {
        [] => rule(tp),
        several => several.iter().all(|&tp| tp == 0 || rule(tp)),
    };
    let mixed = !of_kind.is_empty();
    let shape = |tp: u64| {
        allows(&o.tp, tp)
            && divides(tp, heads)
            && (divides(tp, kv) || divides(kv, tp))
            && divides(tp, m.ffn_hidden)
            && (problem.framework.context_exchange != ContextExchange::Heads
                || divides(tp * cp, heads))
    };
    let legal = allows(&o.pp, pp)
        && allows(&o.cp, cp)
        && allows(&o.dp, dp)
        && (cp == 1 || divides(2 * cp, w.sequence_length))
        && every(&shape);
    if !legal {
        return Continue(());
    }
    for (sp, ep) in [false, true].into_iter().flat_map(|sp| (1..=64).map(move |e| (sp, e))) {
        let tensor_experts = m.moe.is_some() && o.expert_tensor_parallel;
        let sp_wanted = o.sp.is_empty() || o.sp.contains(&sp) || (tp == 1 && !sp);
        let sp_legal =
            if sp { tp > 1 && every(&|tp| divides(tp, w.sequence_length / cp)) } else { !mixed };
        let ep_legal = match &m.moe {
            None => ep == 1,
            Some(moe) => {
                divides(ep, u64::from(moe.experts))
                    && every(&|tp| {
                        let etp = if tensor_experts { tp } else { 1 };
                        divides(ep * etp, tp * cp * dp)
                            && divides(etp, moe.expert_ffn)
                            && (tp == 1 || sp)
                    })
            }
        };
        if !(sp_wanted && sp_legal && ep_legal && allows(&o.ep, ep)) {
            continue;
        }
        for mbs in 1..=w.global_batch_size {
            if !divides(mbs * dp, w.global_batch_size) || !allows(&o.mbs, mbs) {
                continue;
            }
            for (zero, shard_group) in every_sharding(problem, dp * cp) {
                let plan = Plan {
                    dp,
                    tp,
                    tp_of_kind: of_kind.to_vec(),
                    sp,
                    cp,
                    ep,
                    etp: if tensor_experts { tp } else { 1 },
                    pp,
                    vpp: 1,
                    mbs,
                    zero,
                    shard_group,
                    schedule: Schedule::OneFOneB,
                    optimizer_offload: false,
                    stages: vec![],
                };
                every_schedule(problem, &plan, visit)?;
            }
        }
    }
    Continue(())
}

/// ZeRO stages with their shard groups.
fn every_sharding(problem: &Problem, replicas: u64) -> Vec<(u8, u64)> {
    let o = &problem.options;
    let asked_for = |group: u64| o.shard_group.contains(&group);
    let named = (2..=replicas).any(|g| divides(g, replicas) && asked_for(g));
    let legal = |&(zero, group): &(u8, u64)| {
        if !(o.zero.is_empty() || o.zero.contains(&zero)) {
            return false;
        }
        if zero == 0 {
            return group == 1;
        }
        let whole = group == replicas || o.partial_shard_groups && o.shard_group.is_empty();
        group > 1 && divides(group, replicas) && if named { asked_for(group) } else { whole }
    };
    let all = (0..=3u8).flat_map(|zero| (1..=replicas).map(move |group| (zero, group)));
    all.filter(legal).collect()
}

fn every_schedule(
    problem: &Problem,
    degrees: &Plan,
    visit: &mut dyn FnMut(Plan) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let o = &problem.options;
    let layers = u64::from(problem.model.layers);
    let micro_batches = problem.workload.global_batch_size / degrees.dp / degrees.mbs;
    let pp = degrees.pp;
    for schedule in [
        Schedule::OneFOneB,
        Schedule::GPipe,
        Schedule::Interleaved,
        Schedule::ZeroBubbleH1,
        Schedule::ZeroBubbleV,
    ] {
        if !o.schedules.is_empty() && !o.schedules.contains(&schedule) {
            continue;
        }
        for vpp in 1..=layers {
            let legal = match schedule {
                Schedule::OneFOneB => vpp == 1,
                Schedule::GPipe | Schedule::ZeroBubbleH1 => vpp == 1 && pp > 1,
                Schedule::Interleaved => {
                    vpp > 1 && pp > 1 && layers % vpp == 0 && micro_batches.is_multiple_of(pp)
                }
                Schedule::ZeroBubbleV => vpp == 2 && pp > 1 && layers % 2 == 0,
            };
            if !legal || !(o.vpp.is_empty() || o.vpp.contains(&vpp)) {
                continue;
            }
            for offload in [false, true] {
                if offload && !o.optimizer_offload {
                    continue;
                }
                let plan = Plan { schedule, vpp, optimizer_offload: offload, ..degrees.clone() };
                every_line_of_chips(problem, &plan, &mut Vec::new(), visit)?;
            }
        }
    }
    Continue(())
}

/// Gives every stage a kind of chip in every way, and keeps the legal ones.
fn every_line_of_chips(
    problem: &Problem,
    degrees: &Plan,
    chips: &mut Vec<u32>,
    visit: &mut dyn FnMut(Plan) -> ControlFlow<()>,
) -> ControlFlow<()> {
    if (chips.len() as u64) < degrees.pp {
        for kind in 0..problem.cluster.groups.len() as u32 {
            // A kind that was left must not come back.
            if chips.contains(&kind) && chips.last() != Some(&kind) {
                continue;
            }
            chips.push(kind);
            every_line_of_chips(problem, degrees, chips, visit)?;
            chips.pop();
        }
        return Continue(());
    }
    let mixed = chips.iter().any(|&c| c != chips[0]);
    let stages_of = |kind: usize| chips.iter().filter(|&&c| c as usize == kind).count() as u64;
    if !degrees.tp_of_kind.is_empty() {
        let of_kind = degrees.tp_of_kind.iter().enumerate();
        let ranks: u64 = of_kind.clone().map(|(kind, tp)| stages_of(kind) * tp).sum();
        let held = of_kind.clone().all(|(kind, &tp)| (stages_of(kind) > 0) == (tp > 0));
        if !held || ranks * degrees.dp * degrees.cp != problem.cluster.devices {
            return Continue(());
        }
    }
    for (kind, group) in problem.cluster.groups.iter().enumerate() {
        if stages_of(kind) == 0 {
            continue;
        }
        let tp = degrees.tp_of_kind.get(kind).copied().unwrap_or(degrees.tp);
        let node = u64::from(group.chip.devices_per_node);
        let used = stages_of(kind) * degrees.dp * tp * degrees.cp;
        if group.limit.is_some_and(|limit| used > limit - limit % node) {
            return Continue(());
        }
        let inside = node % tp == 0;
        let whole_nodes = tp.is_multiple_of(node) && !mixed;
        if !inside && !whole_nodes {
            return Continue(());
        }
    }
    every_split(problem, degrees, chips, &mut Vec::new(), visit)
}

/// Cuts one row of chunks into stages in every way.
fn every_split(
    problem: &Problem,
    degrees: &Plan,
    chips: &[u32],
    split: &mut Vec<u32>,
    visit: &mut dyn FnMut(Plan) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let row = problem.model.layers / degrees.vpp as u32;
    let taken: u32 = split.iter().sum();
    if split.len() < chips.len() {
        for layers in 1..=row - taken.min(row) {
            split.push(layers);
            every_split(problem, degrees, chips, split, visit)?;
            split.pop();
        }
        return Continue(());
    }
    if taken != row {
        return Continue(());
    }
    let mut pairs = chips.iter().zip(split.iter());
    let equal = |among: &dyn Fn(u32) -> bool| {
        let mut of = chips.iter().zip(split.iter()).filter(|(&c, _)| among(c)).map(|(_, &l)| l);
        let first = of.next();
        of.all(|l| Some(l) == first)
    };
    let zero_bubble = matches!(degrees.schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
    if zero_bubble && !(equal(&|_| true) && pairs.all(|(&c, _)| c == chips[0])) {
        return Continue(());
    }
    let kinds = problem.cluster.groups.len() as u32;
    if !problem.options.uneven_layers && !(0..kinds).all(|kind| equal(&|c| c == kind)) {
        return Continue(());
    }
    every_recompute(problem, degrees, chips, split, &mut Vec::new(), visit)
}

/// Chooses recompute for one kind of chip, or one stage, after the other, and activation offload where there is no pipeline.
fn every_recompute(
    problem: &Problem,
    degrees: &Plan,
    chips: &[u32],
    split: &[u32],
    chosen: &mut Vec<(Recompute, u32)>,
    visit: &mut dyn FnMut(Plan) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let o = &problem.options;
    let apart = o.recompute_per_stage;
    let of_stage = |i: usize| if apart { i } else { chips[i] as usize };
    if chosen.len() < if apart { chips.len() } else { problem.cluster.groups.len() } {
        let alike = (0..chips.len()).filter(|&i| of_stage(i) == chosen.len());
        let Some(most) = alike.map(|i| split[i]).max() else {
            chosen.push((Recompute::None, 0));
            every_recompute(problem, degrees, chips, split, chosen, visit)?;
            chosen.pop();
            return Continue(());
        };
        let mut list = Vec::new();
        if o.recompute.is_empty() || o.recompute.contains(&Granularity::None) {
            let offload = if chips.len() == 1 && o.activation_offload { most } else { 0 };
            list.extend((0..=offload).map(|n| (Recompute::None, n)));
        }
        if o.recompute.is_empty() || o.recompute.contains(&Granularity::Selective) {
            list.push((Recompute::Selective, 0));
        }
        if o.recompute.is_empty() || o.recompute.contains(&Granularity::Block) {
            list.extend((1..=most).map(|layers| (Recompute::Block { layers }, 0)));
        }
        if o.recompute.is_empty() || o.recompute.contains(&Granularity::Uniform) {
            list.extend((1..=most).map(|layers| (Recompute::Uniform { layers }, 0)));
        }
        for choice in list {
            chosen.push(choice);
            every_recompute(problem, degrees, chips, split, chosen, visit)?;
            chosen.pop();
        }
        return Continue(());
    }
    let stages = (0..chips.len()).map(|i| {
        let (recompute, offload) = chosen[of_stage(i)];
        let layers = split[i] * degrees.vpp as u32;
        Stage { chip: chips[i], layers, recompute, offload }
    });
    visit(Plan { stages: stages.collect(), ..degrees.clone() })
}

/// A plan with its time and what each stage allocates.
struct Priced {
    plan: Plan,
    time: Time,
    allocated: Vec<u64>,
}

fn price(problem: &Problem, plans: Vec<Plan>) -> Vec<Priced> {
    let mut tables: Option<(Vec<Option<Shard>>, Tables<'_>)> = None;
    let mut priced = Vec::with_capacity(plans.len());
    for plan in plans {
        let kinds = 0..problem.cluster.groups.len();
        let of_kind = |kind| (plan.tp_of_kind.get(kind) != Some(&0)).then(|| plan.shard(kind));
        let shards: Vec<Option<Shard>> = kinds.map(of_kind).collect();
        if tables.as_ref().is_none_or(|(of, _)| *of != shards) {
            tables = Some((shards.clone(), Tables::new(problem, |kind| shards[kind])));
        }
        let (_, tables) = tables.as_ref().expect("just built");
        let step = Step::new(tables, &plan);
        let allocated = step.stages.iter().map(|s| s.memory.allocated().0).collect();
        priced.push(Priced { plan, time: step.time, allocated });
    }
    priced
}

/// The context of a process: what the framework says, and each communicator's buffers.
fn context(problem: &Problem, plan: &Plan, kind: u32) -> f64 {
    let tp = plan.tp_of_kind.get(kind as usize).copied().unwrap_or(plan.tp);
    let (f, c) = (&problem.framework, &problem.framework.held.communicators);
    let opened: u64 = [
        (problem.cluster.devices, c.world),
        (tp, c.tensor),
        (plan.cp, c.context),
        (plan.ep, c.expert),
        (plan.dp * plan.cp, c.data),
        (plan.pp, c.pipeline),
    ]
    .into_iter()
    .filter(|(ranks, _)| *ranks > 1)
    .map(|(_, count)| count)
    .sum();
    f.context_gib + opened as f64 * f.held.communicator_gib
}

fn capacity(problem: &Problem, plan: &Plan, kind: u32) -> u64 {
    let chip = &problem.cluster.groups[kind as usize].chip;
    let bytes = |gib: f64| (gib * GIB).round() as u64;
    let left = bytes(chip.memory_gib).saturating_sub(bytes(context(problem, plan, kind)));
    (left as f64 * (1.0 - problem.options.memory_margin)).round() as u64
}

fn fits(problem: &Problem, priced: &Priced) -> bool {
    let stages = priced.plan.stages.iter().zip(&priced.allocated);
    stages.into_iter().all(|(s, &bytes)| bytes <= capacity(problem, &priced.plan, s.chip))
}

/// The problem of a seed with every plan of it, priced.
fn drawn(seed: u64) -> (Problem, Vec<Priced>) {
    let mut draw = Draw::new(seed);
    let mut problem = draw::problem(&mut draw, (seed % 3) as usize + 1);
    let most = number("AUTOPAR_ORACLE_PLANS", 20_000) as usize;
    let mut plans = Vec::new();
    while every_plan(&problem, &mut |plan| {
        plans.push(plan);
        if plans.len() > most {
            Break(())
        } else {
            Continue(())
        }
    })
    .is_break()
    {
        plans.clear();
        draw::narrow(&mut draw, &mut problem);
    }
    let priced = price(&problem, plans);
    // Memory from what only the leanest plan needs to what all need, and sometimes less than any.
    let mut needs: Vec<f64> = priced
        .iter()
        .map(|p| {
            let most = p.allocated.iter().copied().max().unwrap_or(0) as f64 / GIB;
            let stages = p.plan.stages.iter();
            let context = stages.map(|s| context(&problem, &p.plan, s.chip)).fold(0.0, f64::max);
            context + most / (1.0 - problem.options.memory_margin)
        })
        .collect();
    needs.sort_by(f64::total_cmp);
    let share = draw.pick(&[0.0, 0.01, 0.05, 0.2, 0.5, 0.8, 1.0]);
    let scale = draw.pick(&[1.0, 1.0, 1.0, 1.0, 1.0, 0.9]);
    if let Some(&need) = needs.get(((needs.len().max(1) - 1) as f64 * share) as usize) {
        for group in &mut problem.cluster.groups {
            let jitter = 1.0 + 0.5 * draw.share() * f64::from(u8::from(draw.once_in(2)));
            group.chip.memory_gib = need * scale * jitter;
        }
    }
    (problem, priced)
}

/// The best of each identity, in order.
fn best_by_brute_force(problem: &Problem, priced: &[Priced]) -> Vec<(Time, Identity)> {
    let mut best: BTreeMap<Identity, Time> = BTreeMap::new();
    for p in priced.iter().filter(|p| fits(problem, p)) {
        let time = best.entry(identity(problem, &p.plan)).or_insert(p.time);
        *time = p.time.min(*time);
    }
    let mut list: Vec<(Time, Identity)> = best.into_iter().map(|(id, time)| (time, id)).collect();
    list.sort();
    list.truncate(problem.options.top as usize);
    list
}

/// What a problem's answer was about, so that the problems cannot all be trivial unseen.
fn tell(problem: &Problem, report: &Report, seen: &mut BTreeMap<&'static str, u64>) {
    let any = |holds: &dyn Fn(&Plan) -> bool| report.ranked.iter().any(|r| holds(&r.plan));
    let stages = |holds: &dyn Fn(&Stage) -> bool| any(&|p| p.stages.iter().any(holds));
    let same =
        |of: &dyn Fn(&Stage) -> u32| any(&|p| p.stages.iter().any(|s| of(s) != of(&p.stages[0])));
    for (what, holds) in [
        ("an answer", !report.ranked.is_empty()),
        ("no answer", report.ranked.is_empty()),
        ("chips of two kinds in a plan", same(&|s| s.chip)),
        ("kinds with tensor parallel of their own", any(&|p| !p.tp_of_kind.is_empty())),
        ("stages of different size", same(&|s| s.layers)),
        (
            "layers that differ",
            (1..problem.model.layers)
                .any(|i| problem.model.layer_kind(i) != problem.model.layer_kind(0)),
        ),
        ("selective recompute", stages(&|s| s.recompute == Recompute::Selective)),
        ("block recompute", stages(&|s| matches!(s.recompute, Recompute::Block { .. }))),
        ("uniform recompute", stages(&|s| matches!(s.recompute, Recompute::Uniform { .. }))),
        (
            "stages of a kind that recompute differently",
            any(&|p| {
                let differ = |a: &Stage, b: &Stage| a.chip == b.chip && a.recompute != b.recompute;
                p.stages.windows(2).any(|pair| differ(&pair[0], &pair[1]))
            }),
        ),
        ("activation offload", stages(&|s| s.offload > 0)),
        ("optimizer offload", any(&|p| p.optimizer_offload)),
        ("tensor parallel", any(&|p| p.tp > 1)),
        ("sequence parallel", any(&|p| p.sp)),
        ("context parallel", any(&|p| p.cp > 1)),
        ("expert parallel", any(&|p| p.ep > 1)),
        ("a partial shard group", any(&|p| p.zero > 0 && p.shard_group < p.dp * p.cp)),
        (
            "a shard group of a size asked for",
            any(&|p| p.zero > 0 && problem.options.shard_group.contains(&p.shard_group)),
        ),
        (
            "replicas that no size asked for divides",
            any(&|p| p.zero > 0)
                && !problem.options.shard_group.is_empty()
                && any(&|p| !problem.options.shard_group.contains(&p.shard_group)),
        ),
        ("1f1b over stages", any(&|p| p.pp > 1 && p.schedule == Schedule::OneFOneB)),
        ("interleaving", any(&|p| p.schedule == Schedule::Interleaved)),
        ("gpipe", any(&|p| p.schedule == Schedule::GPipe)),
        ("zb-h1", any(&|p| p.schedule == Schedule::ZeroBubbleH1)),
        ("zb-v", any(&|p| p.schedule == Schedule::ZeroBubbleV)),
    ] {
        *seen.entry(what).or_insert(0) += u64::from(holds);
    }
}

/// What is wrong with the search's answer to a problem with these plans, if anything.
fn disagreement(
    problem: Problem,
    priced: &[Priced],
    seen: &mut BTreeMap<&'static str, u64>,
) -> Option<String> {
    let problem = problem.validate().expect("a drawn problem is valid");
    for p in priced {
        let broken = check(&problem, &p.plan);
        if !broken.is_empty() {
            return Some(format!("{:?} is refused: {broken:?}", p.plan));
        }
    }
    let expected = best_by_brute_force(&problem, priced);
    let report = search(problem.clone(), &Watch::new(None));
    tell(&problem, &report, seen);
    if !report.proved {
        return Some("not proved".into());
    }
    let got: Vec<(Time, Identity)> =
        report.ranked.iter().map(|r| (r.estimate.step_ps, identity(&problem, &r.plan))).collect();
    if let Some(n) = (0..expected.len().max(got.len())).find(|&n| expected.get(n) != got.get(n)) {
        let of = |id: &Identity, time: Time| {
            let fit = |p: &&Priced| p.time == time && identity(&problem, &p.plan) == *id;
            priced.iter().filter(|p| fits(&problem, p)).find(fit).map(|p| p.plan.stages.clone())
        };
        return Some(format!(
            "place {n} of {} and {}\n expected {:?}\n {:?}\n got {:?}\n {:?}",
            expected.len(),
            got.len(),
            expected.get(n),
            expected.get(n).map(|(t, id)| of(id, *t)),
            got.get(n),
            report.ranked.get(n).map(|r| &r.plan.stages),
        ));
    }
    for ranked in &report.ranked {
        let again = estimate(&problem, &ranked.plan);
        if again.as_ref() != Ok(&ranked.estimate) || !ranked.estimate.violations.is_empty() {
            return Some(format!("{:?} is estimated again as {again:?}", ranked.plan));
        }
    }
    let available: u64 =
        (0..problem.cluster.groups.len()).map(|kind| problem.available(kind)).sum();
    let named = match &report.infeasible {
        None => !got.is_empty(),
        Some(Infeasible::Devices { .. }) => available < problem.cluster.devices,
        Some(Infeasible::Memory { .. }) => got.is_empty() && !priced.is_empty(),
        Some(Infeasible::Factorisation { .. }) => priced.is_empty(),
    };
    (!named).then(|| format!("{} legal plans, but {:?}", priced.len(), report.infeasible))
}

#[test]
fn the_search_finds_what_brute_force_finds() {
    let problems = number("AUTOPAR_ORACLE_PROBLEMS", 600);
    let first = number("AUTOPAR_ORACLE_FIRST", 0);
    let mut seen = BTreeMap::new();
    let mut wrong = Vec::new();
    for seed in first..first + problems {
        // A panic is a disagreement too, and the seed must be known.
        let tried = catch_unwind(AssertUnwindSafe(|| {
            let (problem, priced) = drawn(seed);
            disagreement(problem, &priced, &mut seen)
        }));
        if let Some(what) = tried.unwrap_or_else(|_| Some("panics".into())) {
            wrong.push(format!("seed {seed}: {what}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {problems}:\n{}", wrong.len(), wrong.join("\n"));
    for (what, times) in seen {
        assert!(times >= problems / 100, "only {times} of {problems} problems have {what}");
    }
}
