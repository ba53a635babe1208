//! The choices of degrees and micro-batch, each with a lower bound for every plan below it.

use super::bound::Shape;
use super::caps::Places;
use super::relax::{Question, Stages};
use super::report::{Counters, Cut};
use super::space::{self, Cell};
use crate::estimate::layer::priced_as;
use crate::estimate::least::{Least, Passes, Prices};
use crate::estimate::pipeline::Sends;
use crate::estimate::sends;
use crate::estimate::shard::Shard;
use crate::spec::problem::{Problem, Schedule};
use crate::units::Time;
use rayon::prelude::*;
use std::borrow::Cow;
use std::collections::HashMap;

/// One choice of degrees and micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Degrees.
    pub cell: Cell,
    /// Sequence parallelism.
    pub sp: bool,
    /// Expert parallelism.
    pub ep: u64,
    /// Micro-batch.
    pub mbs: u64,
    /// No plan below it is faster.
    pub bound: Time,
    /// Classes below it.
    pub classes: u64,
    /// Place of its prices.
    prices: usize,
}

impl Entry {
    /// What is asked about a schedule; `even`: all stages hold equally many layers.
    pub fn question<'p>(
        &self,
        problem: &'p Problem,
        (schedule, vpp): (Schedule, u64),
        even: bool,
        limit: Time,
    ) -> Question<'p> {
        let micro_batches = problem.workload.global_batch_size / (self.cell.dp * self.mbs);
        Question {
            problem,
            shape: Shape { schedule, pp: self.cell.pp, vpp, micro_batches },
            sends: sends(problem, schedule),
            even,
            any_schedule: false,
            limit: limit.seconds(),
        }
    }
}

/// The legal entries, and what prices their layers.
pub struct Entries {
    /// One a choice of degrees and micro-batch.
    pub list: Vec<Entry>,
    prices: Vec<EntryPrices>,
}

/// For each kind, prices with nothing sharded, and, where that differs, sharded without what that communicates.
type EntryPrices = Vec<(Prices, Option<Prices>)>;

/// What a layer's price depends on, ZeRO apart.
type PriceKey = (u64, bool, u64, u64, u64, bool);

impl Entries {
    /// Every legal entry with a bound for unlimited memory; illegal ones are counted.
    pub fn new(problem: &Problem, counters: &mut Counters) -> Entries {
        let mut list = Vec::new();
        let mut keys: HashMap<PriceKey, usize> = HashMap::new();
        let mut priced: Vec<Entry> = Vec::new();
        for cell in space::cells(problem.cluster.devices) {
            let axes = space::axes(problem, cell);
            counters.considered = counters.considered.saturating_add(axes.size());
            if let Some(reason) = space::cut_cell(problem, cell) {
                counters.cut(reason, axes.size());
                continue;
            }
            let classes = axes.below_shard();
            // Whether parameters travel in every pass may depend on whether there is a pipeline.
            let sharded = shard(problem, cell, false, 1, 1, (3, 1));
            let each_pass = priced_as(sharded, &problem.framework) == sharded;
            for &sp in &axes.sp {
                for &ep in &axes.ep {
                    for &mbs in &axes.mbs {
                        if let Some(reason) = space::cut_shard(problem, cell, sp, ep, mbs) {
                            counters.cut(reason, classes);
                            continue;
                        }
                        let key = (cell.tp, sp, cell.cp, ep, mbs, each_pass);
                        let prices = *keys.entry(key).or_insert(priced.len());
                        let entry = Entry { cell, sp, ep, mbs, bound: Time::ZERO, classes, prices };
                        if prices == priced.len() {
                            priced.push(entry);
                        }
                        list.push(entry);
                    }
                }
            }
        }
        counters.bounds += list.len() as u64;
        let prices: Vec<EntryPrices> =
            priced.par_iter().map(|entry| entry_prices(problem, entry)).collect();
        for entry in &mut list {
            entry.bound = in_unlimited_memory(problem, entry, &prices[entry.prices]);
        }
        Entries { list, prices }
    }

    /// What any stage costs at least under any sharding of an entry with a ZeRO stage, by kind.
    pub fn leasts(&self, problem: &Problem, entry: &Entry, zero: u8) -> Vec<Option<Least>> {
        let Entry { cell, sp, ep, mbs, .. } = *entry;
        // The largest group leaves least in memory.
        let shardings = [(0, 1), (zero, cell.dp * cell.cp)]
            .map(|sharding| shard(problem, cell, sp, ep, mbs, sharding));
        let each_pass = priced_as(shardings[1], &problem.framework).zero > 0;
        let of_kind = |(kind, (loud, quiet)): (usize, &(Prices, Option<Prices>))| {
            space::places(problem, cell, kind, false).then(|| {
                if zero == 0 {
                    return Least::of(problem, kind, &shardings[0], loud);
                }
                let quiet = quiet.as_ref().filter(|_| each_pass).unwrap_or(loud);
                Least::of_shardings(problem, kind, &shardings, loud, quiet)
            })
        };
        self.prices[entry.prices].iter().enumerate().map(of_kind).collect()
    }

    /// Prices of every kind of chip that an entry may use, under a sharding.
    pub fn prices(
        &self,
        problem: &Problem,
        entry: &Entry,
        shard: Shard,
    ) -> Vec<Option<Cow<'_, Prices>>> {
        let key = priced_as(shard, &problem.framework);
        let by_kind = self.prices[entry.prices].iter().enumerate();
        by_kind
            .map(|(kind, (loud, _))| {
                space::places(problem, entry.cell, kind, false).then(|| match key.zero {
                    0 => Cow::Borrowed(loud),
                    _ => Cow::Owned(Prices::new(problem, kind, key)),
                })
            })
            .collect()
    }
}

/// Prices of an entry on every kind of chip.
fn entry_prices(problem: &Problem, entry: &Entry) -> EntryPrices {
    let of_kind = |kind: usize| {
        let [loud, quiet] = [(0, 1), (3, 1)]
            .map(|sharding| shard(problem, entry.cell, entry.sp, entry.ep, entry.mbs, sharding));
        let differs = priced_as(quiet, &problem.framework) == quiet;
        let quiet = differs.then(|| Prices::new(problem, kind, quiet));
        (Prices::new(problem, kind, loud), quiet)
    };
    (0..problem.cluster.groups.len()).map(of_kind).collect()
}

/// What sharding makes of an entry's degrees.
pub fn shard(
    problem: &Problem,
    cell: Cell,
    sp: bool,
    ep: u64,
    mbs: u64,
    (zero, shard_group): (u8, u64),
) -> Shard {
    let etp = space::expert_tensor_parallel(problem, cell.tp);
    let pipelined = cell.pp > 1;
    Shard { dp: cell.dp, tp: cell.tp, sp, cp: cell.cp, ep, etp, mbs, zero, shard_group, pipelined }
}

/// The stages that each kind of chip can offer an entry.
pub fn offered(problem: &Problem, entry: &Entry) -> Vec<Stages> {
    let Cell { pp, tp, cp, dp } = entry.cell;
    (0..problem.cluster.groups.len())
        .map(|kind| {
            let placed = space::places(problem, entry.cell, kind, false);
            let most = (problem.available(kind) / (dp * tp * cp)).min(pp);
            Stages { kind, most: if placed { most } else { 0 } }
        })
        .collect()
}

/// A bound for every plan below an entry from computation alone: each of the fastest stages works for all micro-batches, and
/// one micro-batch passes through all layers and back.
fn in_unlimited_memory(problem: &Problem, entry: &Entry, prices: &EntryPrices) -> Time {
    let least = |pick: &dyn Fn(&Prices) -> f64, (loud, quiet): &(Prices, Option<Prices>)| {
        quiet.as_ref().map_or(f64::INFINITY, pick).min(pick(loud))
    };
    let mut stages: Vec<(f64, u64)> = Vec::with_capacity(prices.len());
    let (mut frequent, mut rest, mut through) = (0.0, f64::INFINITY, f64::INFINITY);
    for Stages { kind, most } in offered(problem, entry).into_iter().filter(|s| s.most > 0) {
        let of = &prices[kind];
        let unit = least(&|p| p.passes_of_frequent(), of);
        stages.push((unit, most));
        frequent = of.0.count_of_frequent() as f64;
        rest = rest.min(least(&|p| p.passes_of_rest(), of) / unit);
        through = through.min(least(&|p| p.through_frequent(), of));
    }
    stages.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut left, mut speed) = (entry.cell.pp, 0.0);
    for (unit, most) in stages {
        let n = most.min(left);
        speed += n as f64 / unit;
        left -= n;
    }
    if left > 0 {
        // The limits give too few stages: every composition will be cut.
        return Time::MAX;
    }
    let micro_batches = problem.workload.global_batch_size / (entry.cell.dp * entry.mbs);
    let work = (frequent + rest) / speed * micro_batches as f64;
    Time::from_seconds(work.max(frequent * through) * (1.0 - 1e-9))
}

/// Bytes that no stage needs, finite so that rates may be made of them.
const UNLIMITED: f64 = 1e18;

/// A bound for every schedule, sharding and composition below an entry: the fastest kinds take as many stages as
/// they may; activations take their memory, and of parameters and optimizer what the most frugal sharding leaves.
pub fn entry_bound(
    problem: &Problem,
    entry: &Entry,
    leasts: &[Option<Least>],
    limit: Time,
) -> Result<Time, Cut> {
    let Entry { cell, mbs, .. } = *entry;
    let mut fastest = leasts.to_vec();
    let offered = offered(problem, entry);
    let mut order = offered.clone();
    order.retain(|s| s.most > 0);
    let unit = |s: &Stages| leasts[s.kind].as_ref().map_or(f64::INFINITY, |l| l.layer.both());
    // The layers fit best with the slowest stages last.
    order.sort_by(|a, b| unit(a).total_cmp(&unit(b)));
    let mut kinds = Vec::with_capacity(cell.pp as usize);
    for Stages { kind, most } in &order {
        let stages = (*most).min(cell.pp - kinds.len() as u64);
        kinds.extend(std::iter::repeat_n(*kind, stages as usize));
    }
    if kinds.len() < cell.pp as usize {
        return Err(Cut::Limits);
    }
    if order.len() > 1 {
        // Any kind may stand anywhere: memory is looked at below, the ends take what they take on the fastest, and the
        // step ends where its end is shortest.
        let of = |pick: fn(&Least) -> Passes| {
            leasts.iter().flatten().map(pick).reduce(Passes::min).unwrap_or_default()
        };
        let (other, ends) = (of(|l| l.other), [of(|l| l.ends[0]), of(|l| l.ends[1])]);
        for least in fastest.iter_mut().flatten() {
            least.capacity = UNLIMITED;
            least.forget_tail();
            (least.other, least.ends) = (other, ends);
        }
    }
    let micro_batches = problem.workload.global_batch_size / (cell.dp * mbs);
    let question = Question {
        problem,
        shape: Shape { schedule: Schedule::OneFOneB, pp: cell.pp, vpp: 1, micro_batches },
        sends: Sends::Overlapped,
        even: cell.pp == 1,
        any_schedule: true,
        limit: limit.seconds(),
    };
    let bound = question.bound(&fastest, &kinds).within(limit)?;
    if order.len() == 1 {
        return Ok(bound);
    }
    Places::new(&question, leasts, &offered)
        .map_or(Err(Cut::Placement), |places| places.bound(bound, limit))
}
