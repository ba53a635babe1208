//! Every plan of a small problem, by loops and rules of its own.

use crate::draw;
use autopar_core::plan::{Plan, Recompute, Stage};
use autopar_core::spec::framework::ContextExchange;
use autopar_core::spec::problem::{Granularity, Problem, Schedule};
use std::ops::ControlFlow::{self, Continue};

/// Calls `visit` with every legal plan, memory apart, until it breaks.
pub fn every_plan(
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
                Schedule::Interleaved => vpp > 1 && pp > 1 && micro_batches.is_multiple_of(pp),
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
    // Interleaved, one layer may be lacking in the first chunk of all, and some in the last, if stages need not be equal.
    let (layers, vpp) = (problem.model.layers, degrees.vpp as u32);
    let short = degrees.schedule == Schedule::Interleaved && problem.options.uneven_layers;
    for lead in 0..=u32::from(short) {
        for lag in 0..if short { vpp } else { 1 } {
            if (layers + lead + lag) % vpp == 0 {
                every_split(problem, degrees, chips, (lead, lag), &mut Vec::new(), visit)?;
            }
        }
    }
    Continue(())
}

/// Cuts one row of chunks into stages in every way, where the first chunk of all lacks layers, and the last.
fn every_split(
    problem: &Problem,
    degrees: &Plan,
    chips: &[u32],
    (lead, lag): (u32, u32),
    split: &mut Vec<u32>,
    visit: &mut dyn FnMut(Plan) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let row = (problem.model.layers + lead + lag) / degrees.vpp as u32;
    let taken: u32 = split.iter().sum();
    if split.len() < chips.len() {
        for layers in 1..=row - taken.min(row) {
            split.push(layers);
            every_split(problem, degrees, chips, (lead, lag), split, visit)?;
            split.pop();
        }
        return Continue(());
    }
    if taken != row || split[0] < lead || split[split.len() - 1] < lag {
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
    every_recompute(problem, degrees, chips, (split, (lead, lag)), &mut Vec::new(), visit)
}

/// Chooses recompute for one kind of chip, or one stage, after the other, and activation offload where there is no pipeline.
fn every_recompute(
    problem: &Problem,
    degrees: &Plan,
    chips: &[u32],
    (split, (lead, lag)): (&[u32], (u32, u32)),
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
            every_recompute(problem, degrees, chips, (split, (lead, lag)), chosen, visit)?;
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
            every_recompute(problem, degrees, chips, (split, (lead, lag)), chosen, visit)?;
            chosen.pop();
        }
        return Continue(());
    }
    let stages = (0..chips.len()).map(|i| {
        let (recompute, offload) = chosen[of_stage(i)];
        let last = i + 1 == chips.len();
        let lacks = if i == 0 { lead } else { 0 } + if last { lag } else { 0 };
        let layers = split[i] * degrees.vpp as u32 - lacks;
        Stage { chip: chips[i], layers, recompute, offload }
    });
    visit(Plan { stages: stages.collect(), ..degrees.clone() })
}
