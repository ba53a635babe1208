//! The space of candidate classes, in a fixed order. It knows rules, not costs.
//!
//! A [`Cell`] is one factorisation of the device count into tp x cp x pp x dp. In a cell the other axes are
//! independent lists ([`Axes`]), so its size is their product, and a cut at any level counts all classes below it. A
//! class is complete but for its layer split, recompute and offload, which are optimised inside it.

use super::counts::Counts;
use super::mixed;
use super::report::{Counters, Cut};
use crate::spec::cluster::MOST_KINDS;
use crate::spec::problem::{Problem, Schedule};
use std::collections::BTreeSet;

/// Tensor-parallel degrees by kind of chip, 0 for kinds that hold no stage.
pub type Each = [u32; MOST_KINDS];

/// One way to divide the device count: a factorisation, or with degrees of their own for some kinds of chip a sum of such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cell {
    /// Pipeline stages.
    pub pp: u64,
    /// Tensor-parallel degree, the largest.
    pub tp: u64,
    /// The degree of each kind, where they differ.
    pub each: Option<Each>,
    /// Context-parallel degree.
    pub cp: u64,
    /// Data-parallel replicas.
    pub dp: u64,
}

impl Cell {
    /// Tensor-parallel degree of the stages on a kind of chip.
    pub fn tp_of(&self, kind: usize) -> u64 {
        self.each.map_or(self.tp, |each| u64::from(each[kind]))
    }

    /// The degree of every kind of a problem, where they differ.
    pub fn own_degrees(&self, problem: &Problem) -> Vec<u64> {
        let kinds = if self.each.is_some() { problem.cluster.groups.len() } else { 0 };
        (0..kinds).map(|kind| self.tp_of(kind)).collect()
    }

    /// The stages that a kind may hold at most so that all of them add up to the devices.
    pub fn most_stages(&self, problem: &Problem, kind: usize) -> u64 {
        let Some(each) = self.each else { return self.pp };
        let (tp, ranks) = (self.tp_of(kind), problem.cluster.devices / (self.dp * self.cp));
        let mut most = self.pp - 1;
        let of_others = |other: &(usize, u64)| other.0 != kind && other.1 > 0;
        let others = || each.into_iter().map(u64::from).enumerate().filter(of_others).map(|o| o.1);
        let (least, largest) = (others().min().unwrap_or(tp), others().max().unwrap_or(tp));
        if tp > least {
            // n tp + (pp - n) least <= ranks.
            most = most.min(ranks.saturating_sub(self.pp * least) / (tp - least));
        }
        if tp < largest {
            // n tp + (pp - n) largest >= ranks.
            most = most.min((self.pp * largest).saturating_sub(ranks) / (largest - tp));
        }
        most
    }

    /// Devices of a stage on a kind of chip.
    pub fn devices_per_stage(&self, kind: usize) -> u64 {
        self.dp * self.cp * self.tp_of(kind)
    }

    /// The kinds with a degree of their own, of each degree one: what a rule on the degree must be asked of.
    fn degrees(&self) -> impl Iterator<Item = u64> + '_ {
        let own = self.each.into_iter().flatten().map(u64::from).filter(|&tp| tp > 0);
        own.chain(self.each.is_none().then_some(self.tp))
    }
}

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
    /// Classes of the cell.
    pub fn size(&self) -> u64 {
        [self.sp.len(), self.ep.len(), self.mbs.len(), self.sharding.len(), self.schedules.len()]
            .iter()
            .fold(self.compositions, |n, &len| n.saturating_mul(len as u64))
    }

    /// Classes below one choice of sequence parallel, ep and micro-batch.
    pub fn below_shard(&self) -> u64 {
        self.compositions
            .saturating_mul(self.sharding.len() as u64)
            .saturating_mul(self.schedules.len() as u64)
    }
}

/// Every divisor of `n`, ascending.
pub fn divisors(n: u64) -> Vec<u64> {
    let mut low = Vec::new();
    let mut high = Vec::new();
    let mut d = 1;
    while d * d <= n {
        if n.is_multiple_of(d) {
            low.push(d);
            if d * d < n {
                high.push(n / d);
            }
        }
        d += 1;
    }
    low.extend(high.into_iter().rev());
    low
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

/// Device counts up to `most` that degrees which divide batch, heads and sequence multiply to, or add up to where kinds of chip
/// have their own, with up to a stage a layer, ascending. Other counts have no legal plan.
pub fn device_counts(problem: &Problem, most: u64) -> Vec<u64> {
    let (m, w, o) = (&problem.model, &problem.workload, &problem.options);
    let degrees = |n: u64, allowed: &[u64]| -> Vec<u64> {
        divisors(n).into_iter().filter(|d| allows(allowed, d)).collect()
    };
    // Context parallel of more than one cuts the sequence into twice as many parts.
    let halves = if w.sequence_length.is_multiple_of(2) { w.sequence_length / 2 } else { 1 };
    let cp = degrees(halves, &o.cp);
    let pp: Vec<u64> = (1..=u64::from(m.layers)).filter(|p| allows(&o.pp, p)).collect();
    let tp = degrees(u64::from(m.heads), &o.tp);
    let dp = degrees(w.global_batch_size, &o.dp);
    let times = |counts: &BTreeSet<u64>, degrees: &[u64]| -> BTreeSet<u64> {
        let multiples =
            counts.iter().flat_map(|&n| degrees.iter().filter_map(move |&d| n.checked_mul(d)));
        multiples.filter(|&n| n <= most).collect()
    };
    let mut ranks = times(&BTreeSet::from_iter(tp), &pp);
    if o.mixed_tp && problem.cluster.groups.len() > 1 {
        ranks.extend(mixed::ranks(problem, most));
    }
    times(&times(&ranks, &cp), &dp).into_iter().collect()
}

/// The axes of a cell.
pub fn axes(problem: &Problem, cell: Cell) -> Axes {
    let batch = problem.workload.global_batch_size;
    let mut sharding = vec![(0, 1)];
    for zero in 1..=3 {
        sharding.extend(divisors(cell.dp * cell.cp).into_iter().skip(1).map(|g| (zero, g)));
    }
    Axes {
        sp: vec![false, true],
        ep: problem.model.moe.map_or(vec![1], |m| divisors(u64::from(m.experts))),
        mbs: if batch.is_multiple_of(cell.dp) { divisors(batch / cell.dp) } else { vec![1] },
        sharding,
        schedules: schedules(problem, cell.pp),
        compositions: Counts::of(problem, &cell).count(),
    }
}

/// Schedules of a pipeline with their chunks a stage.
pub fn schedules(problem: &Problem, pp: u64) -> Vec<(Schedule, u64)> {
    let layers = u64::from(problem.model.layers);
    let mut schedules = vec![(Schedule::OneFOneB, 1)];
    if pp > 1 {
        schedules.push((Schedule::GPipe, 1));
        schedules.push((Schedule::ZeroBubbleH1, 1));
        schedules.push((Schedule::ZeroBubbleV, 2));
        let chunks = divisors(layers).into_iter().filter(|&v| v > 1 && v * pp <= layers);
        schedules.extend(chunks.map(|v| (Schedule::Interleaved, v)));
    }
    schedules
}

/// Whether an option's list allows a value; an empty list allows all.
fn allows<T: PartialEq>(list: &[T], value: &T) -> bool {
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
    let (m, w, o) = (&problem.model, &problem.workload, &problem.options);
    // At tp 1 there is nothing to split; `sp` allowed alone still allows it there.
    let wanted = allows(&o.sp, &sp) || (cell.tp == 1 && !sp);
    if !wanted || !allows(&o.ep, &ep) || !allows(&o.mbs, &mbs) {
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
    use crate::testing;

    #[test]
    fn divisors_come_in_order() {
        assert_eq!(divisors(12), [1, 2, 3, 4, 6, 12]);
        assert_eq!(divisors(1), [1]);
    }

    #[test]
    fn eight_devices_factor_in_twenty_ways() {
        // Ordered factorisations of 2^3 into four factors: (3 + 3 choose 3) = 20.
        assert_eq!(cells(8).len(), 20);
        assert!(cells(24).iter().all(|c| c.pp * c.tp * c.cp * c.dp == 24));
    }

    #[test]
    fn the_options_limit_the_device_counts() {
        let cluster = testing::cluster(testing::a100(), 12);
        let mut problem = testing::problem(testing::gpt(4, 1024), cluster, 12, 1024);
        (problem.options.tp, problem.options.pp) = (vec![2], vec![1, 3]);
        (problem.options.cp, problem.options.dp) = (vec![1], vec![1, 4]);
        // 2 x {1, 3} x {1, 4}.
        assert_eq!(device_counts(&problem, 24), [2, 6, 8, 24]);
        assert_eq!(device_counts(&problem, 8), [2, 6, 8]);
        assert_eq!(device_counts(&problem, 0), Vec::<u64>::new());
    }
}
