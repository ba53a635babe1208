//! Random plans of a problem.

use super::pipeline::{shape, SCHEDULES};
use super::Draw;
use autopar_core::plan::{Plan, Recompute, Stage};
use autopar_core::search::bound::Shape;
use autopar_core::spec::problem::{Problem, Schedule};
use autopar_core::testing;

/// A random plan of a problem with plenty of memory: best of none, so that its stages may wait for each other.
pub fn unequal_plan(draw: &mut Draw) -> (Problem, Plan) {
    let Shape { schedule, pp, vpp, micro_batches } = shape(draw, 12);
    let (dp, mbs) = (draw.between(1, 4), draw.between(1, 2));
    let zero_bubble = matches!(schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
    let kinds = if zero_bubble { 1 } else { draw.between(1, 3) };
    let mut problem = super::problem(draw, kinds as usize);
    let equal = draw.between(1, 3) as u32;
    let border = draw.between(0, pp);
    let mut stages: Vec<Stage> = (0..pp)
        .map(|i| {
            let row = if zero_bubble { equal } else { draw.between(1, 3) as u32 };
            let chip = if i < border { 0 } else { kinds as u32 - 1 };
            Stage { chip, layers: row * vpp as u32, recompute: Recompute::None, offload: 0 }
        })
        .collect();
    if schedule == Schedule::Interleaved && draw.once_in(2) {
        // The embedding in place of a layer, and the head in place of some of a chunk.
        let chunk = u64::from(stages[pp as usize - 1].layers) / vpp;
        stages[0].layers -= draw.between(0, 1) as u32;
        stages[pp as usize - 1].layers -= draw.between(0, chunk.min(vpp - 1)) as u32;
    }
    problem.model.layers = stages.iter().map(|s| s.layers).sum();
    problem.model.window = None;
    problem.model.moe = None;
    problem.workload.global_batch_size = dp * mbs * micro_batches;
    problem.cluster.devices = pp * dp;
    problem.cluster.groups.iter_mut().for_each(|g| g.limit = None);
    let (zero, shard_group) = if dp > 1 { (draw.between(0, 3) as u8, dp) } else { (0, 1) };
    let shard_group = if zero == 0 { 1 } else { shard_group };
    let plan = Plan {
        dp,
        vpp,
        mbs,
        zero,
        shard_group,
        schedule,
        optimizer_offload: draw.once_in(4),
        ..testing::plan(stages)
    };
    (problem, plan)
}

/// A plan for the problem's devices that is legal more often than not; its stages equal or not.
pub fn any_plan(draw: &mut Draw, problem: &Problem) -> Plan {
    let devices = problem.cluster.devices;
    let layers = problem.model.layers;
    let factor = |draw: &mut Draw, n: u64| {
        draw.pick(&(1..=n).filter(|d| n.is_multiple_of(*d)).collect::<Vec<_>>())
    };
    let most = draw.pick(&[1, devices, devices]);
    let pp = factor(draw, most).min(u64::from(layers));
    let tp = factor(draw, devices / pp);
    let cp = if draw.once_in(3) { factor(draw, devices / pp / tp) } else { 1 };
    let dp = devices / pp / tp / cp;
    let schedule = if pp > 1 && draw.once_in(2) { draw.pick(&SCHEDULES) } else { SCHEDULES[0] };
    let vpp = match schedule {
        Schedule::Interleaved => 2,
        Schedule::ZeroBubbleV => 2,
        _ => 1,
    };
    let recompute = match draw.between(0, 3) {
        0 => Recompute::None,
        1 => Recompute::Selective,
        2 => Recompute::Block { layers: draw.between(0, 3) as u32 },
        _ => Recompute::Uniform { layers: draw.between(1, 3) as u32 },
    };
    let kinds = problem.cluster.groups.len() as u64;
    let (chip, offload) = (draw.between(0, kinds - 1) as u32, draw.pick(&[0, 0, 0, 1, 2]));
    let stage = Stage { chip, layers: layers / pp as u32, recompute, offload };
    let mut stages = vec![stage; pp as usize];
    stages[0].layers += layers % pp as u32;
    if pp > 1 && draw.once_in(3) {
        stages[pp as usize - 1].chip = draw.between(0, kinds - 1) as u32;
    }
    let zero = draw.between(0, 3) as u8;
    Plan {
        dp,
        tp,
        tp_of_kind: Vec::new(),
        sp: tp > 1 && !draw.once_in(4),
        cp,
        ep: draw.pick(&[1, 1, 2]),
        etp: 1,
        pp,
        vpp,
        mbs: draw.pick(&[1, 1, 2]),
        zero,
        shard_group: if zero > 0 { factor(draw, dp * cp) } else { 1 },
        schedule,
        optimizer_offload: draw.once_in(4),
        stages,
    }
}
