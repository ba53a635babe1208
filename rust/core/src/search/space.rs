//! The space of candidate classes, in a fixed order. It knows rules, not costs.
//!
//! A [`Cell`] is one factorisation of the device count into tp x cp x pp x dp. In a cell the other axes are
//! independent lists ([`Axes`]), so its size is their product, and a cut at any level counts all classes below it. A
//! class is complete but for its layer split, recompute and offload, which are optimised inside it.

use super::report::{Counters, Cut};
use crate::spec::problem::{Problem, Schedule};
use std::collections::BTreeSet;

/// One factorisation of the device count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cell {
    /// Pipeline stages.
    pub pp: u64,
    /// Tensor-parallel degree.
    pub tp: u64,
    /// Context-parallel degree.
    pub cp: u64,
    /// Data-parallel replicas.
    pub dp: u64,
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
                cells.push(Cell { pp, tp, cp, dp: rest / cp });
            }
        }
    }
    cells
}

/// Device counts up to `most` that degrees which divide batch, heads and sequence multiply to, with up to a stage a layer,
/// ascending. Other counts have no legal plan.
pub fn device_counts(problem: &Problem, most: u64) -> Vec<u64> {
    let (m, w, o) = (&problem.model, &problem.workload, &problem.options);
    let degrees = |n: u64, allowed: &[u64]| -> Vec<u64> {
        divisors(n).into_iter().filter(|d| allows(allowed, d)).collect()
    };
    // Context parallel of more than one cuts the sequence into twice as many parts.
    let halves = if w.sequence_length.is_multiple_of(2) { w.sequence_length / 2 } else { 1 };
    let cp = degrees(halves, &o.cp);
    let pp = (1..=u64::from(m.layers)).filter(|p| allows(&o.pp, p)).collect();
    let tp = degrees(u64::from(m.heads), &o.tp);
    let dp = degrees(w.global_batch_size, &o.dp);
    let mut counts = BTreeSet::from([1u64]);
    for degrees in [tp, cp, dp, pp] {
        counts = counts
            .iter()
            .flat_map(|&n| degrees.iter().filter_map(move |&d: &u64| n.checked_mul(d)))
            .filter(|&n| n <= most)
            .collect();
    }
    counts.into_iter().collect()
}

/// The axes of a cell.
pub fn axes(problem: &Problem, cell: Cell) -> Axes {
    let layers = u64::from(problem.model.layers);
    let batch = problem.workload.global_batch_size;
    let mut sharding = vec![(0, 1)];
    for zero in 1..=3 {
        sharding.extend(divisors(cell.dp * cell.cp).into_iter().skip(1).map(|g| (zero, g)));
    }
    let mut schedules = vec![(Schedule::OneFOneB, 1)];
    if cell.pp > 1 {
        schedules.push((Schedule::GPipe, 1));
        schedules.push((Schedule::ZeroBubbleH1, 1));
        schedules.push((Schedule::ZeroBubbleV, 2));
        let chunks = divisors(layers).into_iter().filter(|&v| v > 1 && v * cell.pp <= layers);
        schedules.extend(chunks.map(|v| (Schedule::Interleaved, v)));
    }
    Axes {
        sp: vec![false, true],
        ep: problem.model.moe.map_or(vec![1], |m| divisors(u64::from(m.experts))),
        mbs: if batch.is_multiple_of(cell.dp) { divisors(batch / cell.dp) } else { vec![1] },
        sharding,
        schedules,
        compositions: compositions(problem.cluster.groups.len() as u64, cell.pp),
    }
}

/// Ways to give `pp` stages to some of `kinds` kinds in contiguous runs: for r of them, r! orders of each choice and
/// (pp - 1 choose r - 1) places of the borders.
pub fn compositions(kinds: u64, pp: u64) -> u64 {
    completions(0, kinds, pp)
}

/// Whether an option's list allows a value; an empty list allows all.
fn allows<T: PartialEq>(list: &[T], value: &T) -> bool {
    list.is_empty() || list.contains(value)
}

/// Why no class of a cell is legal, if none is.
pub fn cut_cell(problem: &Problem, cell: Cell) -> Option<Cut> {
    let (m, w, o) = (&problem.model, &problem.workload, &problem.options);
    let Cell { pp, tp, cp, dp } = cell;
    let allowed =
        allows(&o.tp, &tp) && allows(&o.pp, &pp) && allows(&o.cp, &cp) && allows(&o.dp, &dp);
    if !allowed {
        return Some(Cut::Options);
    }
    if pp > u64::from(m.layers) {
        return Some(Cut::Layers);
    }
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
    if !w.global_batch_size.is_multiple_of(dp) {
        return Some(Cut::Batch);
    }
    let placeable =
        (0..problem.cluster.groups.len()).any(|kind| places(problem, cell, kind, false));
    (!placeable).then_some(Cut::Placement)
}

/// Whether tensor-parallel groups of the cell fit the nodes of a kind; alone, a kind also takes groups of
/// whole nodes.
pub fn places(problem: &Problem, cell: Cell, kind: usize, mixed: bool) -> bool {
    let node = u64::from(problem.cluster.groups[kind].chip.devices_per_node);
    node.is_multiple_of(cell.tp) || (!mixed && cell.tp.is_multiple_of(node))
}

/// Why a choice of sequence parallel, ep and micro-batch is not legal, if it is not.
pub fn cut_shard(problem: &Problem, cell: Cell, sp: bool, ep: u64, mbs: u64) -> Option<Cut> {
    let (m, w, o) = (&problem.model, &problem.workload, &problem.options);
    // At tp 1 there is nothing to split; `sp` allowed alone still allows it there.
    let wanted = allows(&o.sp, &sp) || (cell.tp == 1 && !sp);
    if !wanted || !allows(&o.ep, &ep) || !allows(&o.mbs, &mbs) {
        return Some(Cut::Options);
    }
    let etp = expert_tensor_parallel(problem, cell.tp);
    let legal_experts = match &m.moe {
        None => true,
        Some(moe) => {
            (cell.tp == 1 || sp)
                && moe.expert_ffn.is_multiple_of(etp)
                && (cell.tp * cell.cp * cell.dp).is_multiple_of(ep * etp)
        }
    };
    if (sp && cell.tp == 1) || !legal_experts {
        return Some(Cut::ModelShape);
    }
    if sp && !(w.sequence_length / cell.cp).is_multiple_of(cell.tp) {
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

/// Contiguous runs of kinds over the stages.
pub type Composition = Vec<(usize, u64)>;

/// One step of a walk over compositions.
pub enum Walked<'w> {
    /// A composition.
    One(&'w Composition),
    /// As many as this were cut together.
    Cut(Cut, u64),
}

/// Every composition of `pp` stages, kinds in the order of the cluster's list, then by their counts, then by the order of
/// the runs.
///
/// `prune` sees the stages of the first kinds and how many are left for the others; what it cuts is counted, not listed.
pub fn each_composition(
    kinds: usize,
    pp: u64,
    prune: &dyn Fn(&[u64], u64) -> Option<Cut>,
    visit: &mut dyn FnMut(Walked<'_>),
) {
    spread(&mut Vec::with_capacity(kinds), kinds, pp, prune, visit);
}

fn spread(
    counts: &mut Vec<u64>,
    kinds: usize,
    left: u64,
    prune: &dyn Fn(&[u64], u64) -> Option<Cut>,
    visit: &mut dyn FnMut(Walked<'_>),
) {
    if let Some(reason) = prune(counts, left) {
        let used = counts.iter().filter(|&&n| n > 0).count() as u64;
        let below = completions(used, (kinds - counts.len()) as u64, left);
        visit(Walked::Cut(reason, below));
        return;
    }
    if counts.len() == kinds {
        if left == 0 {
            let used: Composition =
                counts.iter().copied().enumerate().filter(|&(_, n)| n > 0).collect();
            orders(&used, &mut Vec::new(), visit);
        }
        return;
    }
    // The last kind takes what is left.
    let least = if counts.len() + 1 == kinds { left } else { 0 };
    for n in least..=left {
        counts.push(n);
        spread(counts, kinds, left - n, prune, visit);
        counts.pop();
    }
}

fn orders(left: &Composition, taken: &mut Composition, visit: &mut dyn FnMut(Walked<'_>)) {
    if left.is_empty() {
        visit(Walked::One(taken));
        return;
    }
    for i in 0..left.len() {
        let mut rest = left.clone();
        taken.push(rest.remove(i));
        orders(&rest, taken, visit);
        taken.pop();
    }
}

/// Compositions that begin with `used` kinds of fixed counts and spread `left` stages over `kinds` more.
fn completions(used: u64, kinds: u64, left: u64) -> u64 {
    let factorial = |n: u64| (1..=n).fold(1u64, u64::saturating_mul);
    if left == 0 {
        return factorial(used);
    }
    (1..=kinds.min(left))
        .map(|t| {
            choose(kinds, t)
                .saturating_mul(choose(left - 1, t - 1))
                .saturating_mul(factorial(used + t))
        })
        .fold(0, u64::saturating_add)
}

/// Ways to choose `k` of `n`.
fn choose(n: u64, k: u64) -> u64 {
    (0..k).fold(1u64, |c, i| c.saturating_mul(n - i) / (i + 1))
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
    fn compositions_are_counted_as_they_are_listed() {
        for kinds in 1..=3 {
            for pp in 1..=6 {
                let mut n = 0;
                let mut count = |step: Walked<'_>| match step {
                    Walked::One(c) => {
                        assert_eq!(c.iter().map(|r| r.1).sum::<u64>(), pp);
                        n += 1;
                    }
                    Walked::Cut(_, below) => n += below,
                };
                each_composition(kinds, pp, &|_, _| None, &mut count);
                assert_eq!(n, compositions(kinds as u64, pp), "{kinds} kinds, {pp} stages");
                // Cut or listed, the classes are the same.
                n = 0;
                let mut count = |step: Walked<'_>| match step {
                    Walked::One(_) => n += 1,
                    Walked::Cut(_, below) => n += below,
                };
                let odd = |counts: &[u64], _| {
                    counts.last().is_some_and(|n| n % 2 == 1).then_some(Cut::Limits)
                };
                each_composition(kinds, pp, &odd, &mut count);
                assert_eq!(n, compositions(kinds as u64, pp), "{kinds} kinds, {pp} stages, cut");
            }
        }
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
