//! The space of candidate classes, in a fixed order. It knows rules, not costs.
//!
//! A `Cell` is one way to divide the devices by tp, cp, pp and dp. In a cell the other axes are
//! independent lists ([`Axes`]), so its size is their product, and a cut at any level counts all classes below it. A
//! class is complete but for its layer split, recompute and offload, which are optimised inside it.

use super::cell::{count_divisors, divisors, Cell};
use super::counts::Counts;
use super::ends;
use super::report::{Counters, Cut};
use crate::estimate::shard::Shard;
use crate::spec::problem::{Problem, Schedule};
use rustc_hash::FxHashMap;

/// The other axes of a cell, legal or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axes {
    /// Sequence parallel.
    pub sp: Vec<bool>,
    /// Expert-parallel degrees: the divisors of the number of experts.
    pub ep: Vec<u64>,
    /// Micro-batch sizes: the divisors of a replica's share of the batch.
    pub mbs: Vec<u64>,
    /// ZeRO stage and shard group: nothing, or stages 1 to 3 over every divisor above 1 of dp x cp.
    pub sharding: Vec<(u8, u64)>,
    /// Schedules with their chunks a stage.
    pub schedules: Vec<(Schedule, u64)>,
    /// Ways to give the stages to kinds of chip in contiguous runs.
    pub compositions: u64,
}

impl Axes {
    /// Classes below one choice of sequence parallel, ep and micro-batch.
    pub fn below_shard(&self) -> u64 {
        self.compositions
            .saturating_mul(self.sharding.len() as u64)
            .saturating_mul(self.schedules.len() as u64)
    }
}

/// Every factorisation of `devices`, by pp, then tp, then cp.
pub fn cells(devices: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    let all = divisors(devices);
    for &pp in &all {
        for &tp in all.iter().filter(|&&d| (devices / pp).is_multiple_of(d)) {
            let rest = devices / pp / tp;
            for &cp in all.iter().filter(|&&d| rest.is_multiple_of(d)) {
                cells.push(Cell { pp, tp, each: None, cp, dp: rest / cp });
            }
        }
    }
    cells
}

/// Counts the classes of cells, whose axes need not be listed for it. Cells share most of what they multiply.
pub struct Classes<'p> {
    problem: &'p Problem,
    expert_degrees: u64,
    /// How many divisors a number has, and schedules a depth.
    divisors: FxHashMap<u64, u64>,
    schedules: FxHashMap<u64, u64>,
}

impl<'p> Classes<'p> {
    /// Of cells of a problem.
    pub fn new(problem: &'p Problem) -> Classes<'p> {
        let expert_degrees = problem.model.moe.map_or(1, |m| count_divisors(u64::from(m.experts)));
        Classes {
            problem,
            expert_degrees,
            divisors: FxHashMap::default(),
            schedules: FxHashMap::default(),
        }
    }

    /// Classes of a cell: the product of its axes.
    pub fn of(&mut self, cell: &Cell) -> u64 {
        let &Cell { pp, cp, dp, .. } = cell;
        let problem = self.problem;
        let batch = problem.workload.global_batch_size;
        let mut divisors = |n: u64| *self.divisors.entry(n).or_insert_with(|| count_divisors(n));
        let mbs = if batch.is_multiple_of(dp) { divisors(batch / dp) } else { 1 };
        let shardings = 1 + 3 * (divisors(dp * cp) - 1);
        let schedules = *self.schedules.entry(pp).or_insert_with(|| {
            let fixed = if pp > 1 { 4 } else { 1 };
            fixed + chunks(problem, pp).count() as u64
        });
        let compositions = Counts::of(problem, cell).count();
        [2, self.expert_degrees, mbs, shardings, schedules]
            .into_iter()
            .fold(compositions, u64::saturating_mul)
    }
}

/// The axes of a cell.
pub fn axes(problem: &Problem, cell: Cell) -> Axes {
    let batch = problem.workload.global_batch_size;
    Axes {
        sp: vec![false, true],
        ep: problem.model.moe.map_or(vec![1], |m| divisors(u64::from(m.experts))),
        mbs: if batch.is_multiple_of(cell.dp) { divisors(batch / cell.dp) } else { vec![1] },
        sharding: shardings(cell),
        schedules: schedules(problem, cell.pp),
        compositions: Counts::of(problem, &cell).count(),
    }
}

/// ZeRO stages and shard groups of a cell, in order.
pub fn shardings(cell: Cell) -> Vec<(u8, u64)> {
    let groups = divisors(cell.dp * cell.cp);
    let of_stage = |zero| groups[1..].iter().map(move |&group| (zero, group));
    std::iter::once((0, 1)).chain((1..=3).flat_map(of_stage)).collect()
}

/// Schedules of a pipeline with their chunks a stage.
pub fn schedules(problem: &Problem, pp: u64) -> Vec<(Schedule, u64)> {
    let mut schedules = vec![(Schedule::OneFOneB, 1)];
    if pp > 1 {
        schedules.push((Schedule::GPipe, 1));
        schedules.push((Schedule::ZeroBubbleH1, 1));
        schedules.push((Schedule::ZeroBubbleV, 2));
    }
    schedules.extend(chunks(problem, pp).map(|v| (Schedule::Interleaved, v)));
    schedules
}

/// Chunks of a stage of an interleaved pipeline.
fn chunks(problem: &Problem, pp: u64) -> impl Iterator<Item = u64> + use<'_> {
    // The end stages may lack a layer each of one in every chunk.
    let most = if pp > 1 { (u64::from(problem.model.layers) + 2) / pp } else { 0 };
    let legal = move |&v: &u64| ends::all(problem, pp, (Schedule::Interleaved, v)).next().is_some();
    (2..=most).filter(legal)
}

/// Whether an option's list allows a value; an empty list allows all.
pub fn allows<T: PartialEq>(list: &[T], value: &T) -> bool {
    list.is_empty() || list.contains(value)
}

/// Why no class of a cell is legal, if none is.
pub fn cut_cell(problem: &Problem, cell: Cell) -> Option<Cut> {
    let o = &problem.options;
    let Cell { pp, cp, dp, .. } = cell;
    let allowed = allows(&o.pp, &pp) && allows(&o.cp, &cp) && allows(&o.dp, &dp);
    if !(allowed && cell.degrees().all(|tp| allows(&o.tp, &tp))) {
        return Some(Cut::Options);
    }
    if pp > u64::from(problem.model.layers) {
        return Some(Cut::Layers);
    }
    if let Some(reason) = cell.degrees().filter_map(|tp| cut_degrees(problem, tp, cp, dp)).min() {
        return Some(reason);
    }
    let placeable =
        (0..problem.cluster.groups.len()).any(|kind| places(problem, cell, kind, false));
    (!placeable).then_some(Cut::Placement)
}

/// Why degrees do not divide the model, the sequence or the batch, if they do not.
pub fn cut_degrees(problem: &Problem, tp: u64, cp: u64, dp: u64) -> Option<Cut> {
    let (m, w) = (&problem.model, &problem.workload);
    let kv = u64::from(m.kv_heads);
    let shape = u64::from(m.heads).is_multiple_of(tp)
        && (kv.is_multiple_of(tp) || tp.is_multiple_of(kv))
        && m.ffn_hidden.is_multiple_of(tp)
        && problem.exchanges_whole_heads(tp, cp);
    if !shape {
        return Some(Cut::ModelShape);
    }
    if cp > 1 && !w.sequence_length.is_multiple_of(2 * cp) {
        return Some(Cut::Sequence);
    }
    (!w.global_batch_size.is_multiple_of(dp)).then_some(Cut::Batch)
}

/// Whether tensor-parallel groups of the cell fit the nodes of a kind; alone, a kind also takes groups of
/// whole nodes.
pub fn places(problem: &Problem, cell: Cell, kind: usize, mixed: bool) -> bool {
    let (node, tp) =
        (u64::from(problem.cluster.groups[kind].chip.devices_per_node), cell.tp_of(kind));
    tp > 0 && (node.is_multiple_of(tp) || (!mixed && tp.is_multiple_of(node)))
}

/// Why a choice of sequence parallel, ep and micro-batch is not legal, if it is not.
pub fn cut_shard(problem: &Problem, cell: Cell, sp: bool, ep: u64, mbs: u64) -> Option<Cut> {
    if !allows(&problem.options.mbs, &mbs) {
        return Some(Cut::Options);
    }
    cut_any_size(problem, cell, sp, ep)
}

/// The same of micro-batches of any size.
pub fn cut_any_size(problem: &Problem, cell: Cell, sp: bool, ep: u64) -> Option<Cut> {
    let (m, w, o) = (&problem.model, &problem.workload, &problem.options);
    // At tp 1 there is nothing to split; `sp` allowed alone still allows it there.
    let wanted = allows(&o.sp, &sp) || (cell.tp == 1 && !sp);
    if !wanted || !allows(&o.ep, &ep) {
        return Some(Cut::Options);
    }
    let legal_experts = |tp: u64| match &m.moe {
        None => true,
        Some(moe) => {
            let etp = expert_tensor_parallel(problem, tp);
            (tp == 1 || sp)
                && moe.expert_ffn.is_multiple_of(etp)
                && (tp * cell.cp * cell.dp).is_multiple_of(ep * etp)
        }
    };
    // What crosses between kinds with degrees of their own is cut along the sequence.
    let illegal = if sp { cell.tp == 1 } else { cell.each.is_some() };
    if illegal || !cell.degrees().all(legal_experts) {
        return Some(Cut::ModelShape);
    }
    let whole = |tp| (w.sequence_length / cell.cp).is_multiple_of(tp);
    if sp && !cell.degrees().all(whole) {
        return Some(Cut::Sequence);
    }
    None
}

/// Tensor-parallel degree inside an expert.
pub fn expert_tensor_parallel(problem: &Problem, tp: u64) -> u64 {
    if problem.model.moe.is_some() && problem.options.expert_tensor_parallel {
        tp
    } else {
        1
    }
}

/// What a ZeRO stage and shard group make of a cell's degrees on a kind of chip.
pub fn shard(
    problem: &Problem,
    cell: Cell,
    kind: usize,
    sp: bool,
    ep: u64,
    mbs: u64,
    (zero, shard_group): (u8, u64),
) -> Shard {
    let tp = cell.tp_of(kind);
    let etp = expert_tensor_parallel(problem, tp);
    let (sp, pipelined) = (sp && tp > 1, cell.pp > 1);
    Shard { dp: cell.dp, tp, sp, cp: cell.cp, ep, etp, mbs, zero, shard_group, pipelined }
}

/// Stages of a kind, of which there may be fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stages {
    /// Kind.
    pub kind: usize,
    /// At most so many.
    pub most: u64,
}

/// The stages that each kind of chip can offer a cell.
pub fn offered(problem: &Problem, cell: &Cell) -> Vec<Stages> {
    (0..problem.cluster.groups.len())
        .map(|kind| {
            let placed = places(problem, *cell, kind, false);
            let within = || problem.available(kind) / cell.devices_per_stage(kind);
            let most = if placed { within().min(cell.most_stages(problem, kind)) } else { 0 };
            Stages { kind, most }
        })
        .collect()
}

/// Why a ZeRO stage with its shard group is not allowed, if it is not.
pub fn cut_sharding(problem: &Problem, cell: Cell, (zero, group): (u8, u64)) -> Option<Cut> {
    let o = &problem.options;
    let replicas = cell.dp * cell.cp;
    let whole = zero == 0 || group == replicas;
    let named = o.shard_group.iter().any(|&g| g > 1 && replicas.is_multiple_of(g));
    let sized = if zero > 0 && named {
        o.shard_group.contains(&group)
    } else {
        whole || (o.partial_shard_groups && o.shard_group.is_empty())
    };
    (!allows(&o.zero, &zero) || !sized).then_some(Cut::Options)
}

/// Why a schedule is not legal, if it is not. `kinds` is the number of kinds of chip in the pipeline.
pub fn cut_schedule(
    problem: &Problem,
    cell: Cell,
    mbs: u64,
    (schedule, vpp): (Schedule, u64),
    kinds: usize,
) -> Option<Cut> {
    let o = &problem.options;
    if !allows(&o.schedules, &schedule) || !allows(&o.vpp, &vpp) {
        return Some(Cut::Options);
    }
    let layers = u64::from(problem.model.layers);
    let even = layers.is_multiple_of(cell.pp * vpp);
    let micro_batches = problem.workload.global_batch_size / (cell.dp * mbs);
    match schedule {
        Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV if kinds > 1 || !even => Some(Cut::Layers),
        _ if kinds == 1 && !o.uneven_layers && !even => Some(Cut::Layers),
        Schedule::Interleaved if !micro_batches.is_multiple_of(cell.pp) => Some(Cut::MicroBatches),
        _ => None,
    }
}

/// Why a schedule is legal for no composition of a cell's stages, if it is for none.
pub fn cut_everywhere(
    problem: &Problem,
    cell: Cell,
    mbs: u64,
    schedule: (Schedule, u64),
) -> Option<Cut> {
    let kinds = if cell.each.is_some() { 2 } else { 1 };
    // Several kinds may hold unequal layers where one may not; zero-bubble stages are of one kind.
    let equal = problem.cluster.groups.len() == 1
        || matches!(schedule.0, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
    cut_schedule(problem, cell, mbs, schedule, kinds)
        .filter(|&reason| equal || reason != Cut::Layers)
}

impl Counters {
    /// Counts `classes` as cut for `reason`.
    pub fn cut(&mut self, reason: Cut, classes: u64) {
        if classes > 0 {
            let n = self.cut.entry(reason).or_insert(0);
            *n = n.saturating_add(classes);
        }
    }

    /// Adds another count.
    pub fn merge(&mut self, other: &Counters) {
        self.considered = self.considered.saturating_add(other.considered);
        self.estimated += other.estimated;
        self.estimates += other.estimates;
        self.bounds += other.bounds;
        for (&reason, &classes) in &other.cut {
            self.cut(reason, classes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::model::Model;
    use crate::testing;

    #[test]
    fn eight_devices_factor_in_twenty_ways() {
        // Ordered factorisations of 2^3 into four factors: (3 + 3 choose 3) = 20.
        assert_eq!(cells(8).len(), 20);
        assert!(cells(24).iter().all(|c| c.pp * c.tp * c.cp * c.dp == 24));
    }

    #[test]
    fn classes_are_counted_as_they_are_listed() {
        let mut cluster = testing::cluster(testing::a100(), 48);
        cluster.groups.push(cluster.groups[0].clone());
        for moe in [None, Some(testing::moe(12, 2, 512))] {
            let model = Model { moe, ..testing::gpt(12, 1024) };
            let problem = testing::problem(model, cluster.clone(), 96, 512);
            let mut classes = Classes::new(&problem);
            for cell in cells(48) {
                let of = axes(&problem, cell);
                let shards = of.sp.len() * of.ep.len() * of.mbs.len();
                let listed = shards as u64 * of.below_shard();
                assert_eq!(classes.of(&cell), listed, "{cell:?}");
            }
        }
    }
}
