//! The choices of degrees and micro-batch, each with a lower bound for every plan below it.

use super::bound::Shape;
use super::cell::Cell;
use super::places::Places;
use super::prices::PriceList;
use super::relax::Question;
use super::report::{Counters, Cut};
use super::space::{self, offered, shard, Classes, Stages};
use super::swiftest::{swiftest_schedules, Swiftest};
use crate::estimate::least::{Least, Passes};
use crate::estimate::pipeline::Sends;
use crate::estimate::sends;
use crate::estimate::shard::Shard;
use crate::spec::problem::{Problem, Schedule};
use crate::units::Time;
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use std::borrow::Cow;

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
    pub(super) row: usize,
}

impl Entry {
    /// How its stages on a kind of chip are sharded under a ZeRO stage and shard group.
    pub fn shard(&self, problem: &Problem, kind: usize, sharding: (u8, u64)) -> Shard {
        shard(problem, self.cell, kind, self.sp, self.ep, self.mbs, sharding)
    }

    /// Micro-batches of a step.
    pub fn micro_batches(&self, problem: &Problem) -> u64 {
        problem.workload.global_batch_size / (self.cell.dp * self.mbs)
    }

    /// What is asked about a schedule; `even`: all stages hold equally many layers.
    pub fn question<'p>(
        &self,
        problem: &'p Problem,
        (schedule, vpp): (Schedule, u64),
        even: bool,
        limit: Time,
    ) -> Question<'p> {
        let micro_batches = self.micro_batches(problem);
        Question {
            problem,
            shape: Shape { schedule, pp: self.cell.pp, vpp, micro_batches },
            sends: sends(problem, schedule),
            even,
            any_schedule: false,
            flying: micro_batches,
            limit: limit.seconds(),
        }
    }
}

/// The legal entries, and what prices their layers.
pub struct Entries<'p> {
    /// One a choice of degrees and micro-batch.
    pub list: Vec<Entry>,
    pub(super) prices: PriceList<'p>,
}

impl<'p> Entries<'p> {
    /// Every legal entry with one tensor-parallel degree for all kinds, with a bound from the floor of its prices; illegal ones
    /// are counted.
    pub fn new(problem: &'p Problem, counters: &mut Counters) -> Entries<'p> {
        let mut list = Vec::new();
        let mut prices = PriceList::new(problem);
        let mut rows: FxHashMap<(u64, bool, u64, u64, bool), usize> = FxHashMap::default();
        let mut classes = Classes::new(problem);
        for cell in space::cells(problem.cluster.devices) {
            let all = classes.of(&cell);
            counters.considered = counters.considered.saturating_add(all);
            if let Some(reason) = space::cut_cell(problem, cell) {
                counters.cut(reason, all);
                continue;
            }
            let axes = space::axes(problem, cell);
            let below = axes.below_shard();
            for (&sp, &ep) in axes.sp.iter().flat_map(|sp| axes.ep.iter().map(move |ep| (sp, ep))) {
                let mut row = None;
                let any_size = space::cut_any_size(problem, cell, sp, ep);
                for &mbs in &axes.mbs {
                    let allowed = space::allows(&problem.options.mbs, &mbs);
                    if let Some(reason) = if allowed { any_size } else { Some(Cut::Options) } {
                        counters.cut(reason, below);
                        continue;
                    }
                    let row = *row.get_or_insert_with(|| {
                        let key = (cell.tp, sp, cell.cp, ep, prices.each_pass(cell.pp));
                        *rows.entry(key).or_insert_with(|| prices.ask_for(cell, sp, ep))
                    });
                    let (bound, classes) = (Time::ZERO, below);
                    list.push(Entry { cell, sp, ep, mbs, bound, classes, row });
                }
            }
        }
        counters.bounds += list.len() as u64;
        prices.settle();
        let cells = list.par_chunk_by_mut(|a, b| a.cell == b.cell);
        cells.for_each(|of_cell| bound_by_floors(problem, of_cell, &prices));
        Entries { list, prices }
    }

    /// Entries with bounds that were found elsewhere.
    pub fn of(problem: &'p Problem, mut list: Vec<Entry>) -> Entries<'p> {
        let mut prices = PriceList::new(problem);
        for entry in &mut list {
            entry.row = prices.ask_for(entry.cell, entry.sp, entry.ep);
        }
        prices.settle();
        Entries { list, prices }
    }
}

/// Bounds the entries of a cell by what no micro-batch undercuts.
fn bound_by_floors(problem: &Problem, of_cell: &mut [Entry], prices: &PriceList<'_>) {
    let cell = of_cell[0].cell;
    let schedules = swiftest_schedules(problem, cell.pp);
    for alike in of_cell.chunk_by_mut(|a, b| a.row == b.row) {
        let row = alike[0].row;
        let swiftest = Swiftest::new(problem, &cell, |kind| prices.floor(row, kind).copied());
        for entry in alike {
            let each = entry.mbs as f64;
            entry.bound = swiftest
                .as_ref()
                .map_or(Time::MAX, |of| of.bound(problem, &cell, (entry.mbs, each), &schedules));
        }
    }
}

/// Bytes that no stage needs, finite so that rates may be made of them.
const UNLIMITED: f64 = 1e18;

/// A bound for every schedule, sharding and composition below an entry: the fastest kinds take as many stages as
/// they may; activations take their memory, and of parameters and optimizer what the most frugal sharding leaves. Of `flying`
/// micro-batches of a step, no more than it has, some are in flight.
pub fn entry_bound(
    problem: &Problem,
    entry: &Entry,
    flying: u64,
    leasts: &[Option<Least>],
    limit: Time,
) -> Result<Time, Cut> {
    let cell = entry.cell;
    let mut fastest = Cow::Borrowed(leasts);
    let offered = offered(problem, &entry.cell);
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
        for least in fastest.to_mut().iter_mut().flatten() {
            least.capacity = UNLIMITED;
            least.forget_tail();
            (least.other, least.ends) = (other, ends);
        }
    }
    let micro_batches = entry.micro_batches(problem);
    let question = Question {
        problem,
        shape: Shape { schedule: Schedule::OneFOneB, pp: cell.pp, vpp: 1, micro_batches },
        sends: Sends::Overlapped,
        even: cell.pp == 1,
        any_schedule: true,
        flying,
        limit: limit.seconds(),
    };
    let bound = question.bound(&fastest, &kinds).within(limit)?;
    if order.len() == 1 {
        return Ok(bound);
    }
    Places::new(&question, leasts, &offered)
        .map_or(Err(Cut::Placement), |places| places.bound(bound, limit))
}
