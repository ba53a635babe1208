//! The choices of degrees and micro-batch, each with a lower bound for every plan below it.

use super::bound::Shape;
use super::relax::{Question, Verdict};
use super::report::Counters;
use super::space::{self, Cell};
use crate::estimate::least::{Least, Passes, Prices};
use crate::estimate::pipeline::Sends;
use crate::estimate::shard::Shard;
use crate::spec::problem::{Problem, Schedule};
use crate::units::Time;
use rayon::prelude::*;
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
}

/// Every legal entry with its bound; illegal ones are counted.
pub fn entries(problem: &Problem, counters: &mut Counters) -> Vec<Entry> {
    let mut entries = Vec::new();
    for cell in space::cells(problem.cluster.devices) {
        let axes = space::axes(problem, cell);
        counters.considered = counters.considered.saturating_add(axes.size());
        if let Some(reason) = space::cut_cell(problem, cell) {
            counters.cut(reason, axes.size());
            continue;
        }
        for &sp in &axes.sp {
            for &ep in &axes.ep {
                for &mbs in &axes.mbs {
                    match space::cut_shard(problem, cell, sp, ep, mbs) {
                        Some(reason) => counters.cut(reason, axes.below_shard()),
                        None => {
                            let classes = axes.below_shard();
                            entries.push(Entry { cell, sp, ep, mbs, bound: Time::ZERO, classes });
                        }
                    }
                }
            }
        }
    }
    counters.bounds += entries.len() as u64;
    let prices = prices(problem, &entries);
    entries.par_iter_mut().for_each(|entry| entry.bound = entry_bound(problem, entry, &prices));
    entries
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

/// What a layer's price depends on, ZeRO apart.
type PriceKey = (u64, bool, u64, u64, u64, bool);

/// For each kind, prices with nothing sharded, and sharded without what that communicates.
type EntryPrices = HashMap<PriceKey, Vec<[Prices; 2]>>;

fn price_key(entry: &Entry) -> PriceKey {
    (entry.cell.tp, entry.sp, entry.cell.cp, entry.ep, entry.mbs, entry.cell.pp > 1)
}

/// The prices of all entries, each once.
fn prices(problem: &Problem, entries: &[Entry]) -> EntryPrices {
    let mut distinct: HashMap<PriceKey, &Entry> = HashMap::new();
    for entry in entries {
        distinct.entry(price_key(entry)).or_insert(entry);
    }
    distinct
        .into_par_iter()
        .map(|(key, e)| {
            let of_kind = |kind: usize| {
                [(0, 1), (3, 1)].map(|sharding| {
                    let shard = shard(problem, e.cell, e.sp, e.ep, e.mbs, sharding);
                    Prices::new(problem, kind, shard)
                })
            };
            (key, (0..problem.cluster.groups.len()).map(of_kind).collect())
        })
        .collect()
}

/// Bytes that no stage needs, finite so that rates may be made of them.
const UNLIMITED: f64 = 1e18;

/// A bound for every schedule, sharding and composition below an entry: the fastest kinds take as many stages as
/// they may; activations take their memory, and of parameters and optimizer what the most frugal sharding leaves.
fn entry_bound(problem: &Problem, entry: &Entry, prices: &EntryPrices) -> Time {
    let Entry { cell, sp, ep, mbs, .. } = *entry;
    let per_stage = cell.dp * cell.tp * cell.cp;
    let whole = cell.dp * cell.cp;
    let shardings: Vec<Shard> = [(0, 1), (1, whole), (2, whole), (3, whole)]
        .into_iter()
        .map(|sharding| shard(problem, cell, sp, ep, mbs, sharding))
        .collect();
    let mut leasts: Vec<Option<Least>> = (0..problem.cluster.groups.len())
        .map(|kind| {
            let wanted = space::places(problem, cell, kind, false);
            let [loud, quiet] = &prices[&price_key(entry)][kind];
            wanted.then(|| Least::of_shardings(problem, kind, &shardings, loud, quiet))
        })
        .collect();
    let mut order: Vec<usize> = (0..leasts.len()).filter(|&k| leasts[k].is_some()).collect();
    let unit = |k: usize| leasts[k].as_ref().map_or(f64::INFINITY, |l| l.layer.both());
    // The layers fit best with the slowest stages last.
    order.sort_by(|&a, &b| unit(a).total_cmp(&unit(b)));
    let mut kinds = Vec::with_capacity(cell.pp as usize);
    for &kind in &order {
        let stages = (problem.available(kind) / per_stage).min(cell.pp - kinds.len() as u64);
        kinds.extend(std::iter::repeat_n(kind, stages as usize));
    }
    if kinds.len() < cell.pp as usize {
        // The limits give too few stages: every composition will be cut.
        return Time::MAX;
    }
    if order.len() > 1 {
        // Any kind may stand anywhere: memory is left to the classes, and the ends take what they take on the fastest.
        let of = |pick: fn(&Least) -> Passes| {
            leasts.iter().flatten().map(pick).reduce(Passes::min).unwrap_or_default()
        };
        let (other, ends) = (of(|l| l.other), [of(|l| l.ends[0]), of(|l| l.ends[1])]);
        for least in leasts.iter_mut().flatten() {
            least.capacity = UNLIMITED;
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
    };
    match question.bound(&leasts, &kinds) {
        Verdict::Seconds(seconds) => Time::from_seconds(seconds),
        Verdict::Memory => Time::MAX,
    }
}
