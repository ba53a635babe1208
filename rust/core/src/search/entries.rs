//! The choices of degrees and micro-batch, each with a lower bound for every plan below it.

use super::bound::Shape;
use super::caps::Places;
use super::cell::Cell;
use super::relax::{Question, Stages};
use super::report::{Counters, Cut};
use super::space;
use crate::estimate::layer::priced_as;
use crate::estimate::least::{Least, Passes, Prices};
use crate::estimate::pipeline::Sends;
use crate::estimate::sends;
use crate::estimate::shard::Shard;
use crate::spec::cluster::MOST_KINDS;
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
    pub(super) row: usize,
}

impl Entry {
    /// How its stages on a kind of chip are sharded under a ZeRO stage and shard group.
    pub fn shard(&self, problem: &Problem, kind: usize, sharding: (u8, u64)) -> Shard {
        shard(problem, self.cell, kind, self.sp, self.ep, self.mbs, sharding)
    }

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
    pub(super) prices: PriceList,
}

impl Entries {
    /// Every legal entry with one tensor-parallel degree for all kinds, with a bound for unlimited memory; illegal ones are
    /// counted.
    pub fn new(problem: &Problem, counters: &mut Counters) -> Entries {
        let mut list = Vec::new();
        let mut prices = PriceList::default();
        let mut rows: HashMap<(u64, bool, u64, u64, u64, bool), usize> = HashMap::new();
        for cell in space::cells(problem.cluster.devices) {
            let axes = space::axes(problem, cell);
            counters.considered = counters.considered.saturating_add(axes.size());
            if let Some(reason) = space::cut_cell(problem, cell) {
                counters.cut(reason, axes.size());
                continue;
            }
            let classes = axes.below_shard();
            let each_pass = gathers_each_pass(problem, cell.pp);
            for &sp in &axes.sp {
                for &ep in &axes.ep {
                    for &mbs in &axes.mbs {
                        if let Some(reason) = space::cut_shard(problem, cell, sp, ep, mbs) {
                            counters.cut(reason, classes);
                            continue;
                        }
                        let key = (cell.tp, sp, cell.cp, ep, mbs, each_pass);
                        let row = *rows
                            .entry(key)
                            .or_insert_with(|| prices.ask_for(problem, cell, sp, ep, mbs));
                        let entry = Entry { cell, sp, ep, mbs, bound: Time::ZERO, classes, row };
                        list.push(entry);
                    }
                }
            }
        }
        counters.bounds += list.len() as u64;
        prices.price(problem);
        for entry in &mut list {
            entry.bound = in_unlimited_memory(problem, entry, &prices);
        }
        Entries { list, prices }
    }

    /// What any stage costs at least under any sharding of an entry with a ZeRO stage, by kind.
    pub fn leasts(&self, problem: &Problem, entry: &Entry, zero: u8) -> Vec<Option<Least>> {
        let Cell { dp, cp, .. } = entry.cell;
        let of_kind = |kind: usize| {
            let (loud, quiet) = self.prices.of(entry.row, kind)?;
            // The largest group leaves least in memory.
            let shardings =
                [(0, 1), (zero, dp * cp)].map(|sharding| entry.shard(problem, kind, sharding));
            let each_pass = priced_as(shardings[1], &problem.framework).zero > 0;
            Some(if zero == 0 {
                Least::of(problem, kind, &shardings[0], loud)
            } else {
                let quiet = quiet.as_ref().filter(|_| each_pass).unwrap_or(loud);
                Least::of_shardings(problem, kind, &shardings, loud, quiet)
            })
        };
        (0..problem.cluster.groups.len()).map(of_kind).collect()
    }

    /// Prices of every kind of chip that an entry may use, under a ZeRO stage and shard group.
    pub fn prices(
        &self,
        problem: &Problem,
        entry: &Entry,
        sharding: (u8, u64),
    ) -> Vec<Option<Cow<'_, Prices>>> {
        let of_kind = |kind: usize| {
            let (loud, _) = self.prices.of(entry.row, kind)?;
            let key = priced_as(entry.shard(problem, kind, sharding), &problem.framework);
            Some(match key.zero {
                0 => Cow::Borrowed(loud),
                _ => Cow::Owned(Prices::new(problem, kind, key)),
            })
        };
        (0..problem.cluster.groups.len()).map(of_kind).collect()
    }
}

/// Whether a framework may send parameters in every pass, which may depend on whether there is a pipeline.
pub fn gathers_each_pass(problem: &Problem, pp: u64) -> bool {
    let cell = Cell { pp, tp: 1, each: None, cp: 1, dp: 1 };
    let sharded = shard(problem, cell, 0, false, 1, 1, (3, 1));
    priced_as(sharded, &problem.framework) == sharded
}

/// Prices with nothing sharded, and, where that differs, sharded without what that communicates.
pub type KindPrices = (Prices, Option<Prices>);

/// What prices layers: for each kind its degrees and micro-batch, ZeRO apart, and whether parameters may travel in every pass.
type PriceKey = (usize, Shard, bool);

/// Prices of layers by kind of chip, each priced once.
#[derive(Default)]
pub struct PriceList {
    keys: HashMap<PriceKey, u32>,
    asked: Vec<PriceKey>,
    priced: Vec<KindPrices>,
    rows: Vec<Row>,
}

/// Where the prices of each kind are; kinds that an entry cannot use have none.
pub type Row = [Option<u32>; MOST_KINDS];

impl PriceList {
    /// Asks for the prices of an entry's kinds; returns the place of their row.
    pub fn ask_for(&mut self, problem: &Problem, cell: Cell, sp: bool, ep: u64, mbs: u64) -> usize {
        let mut row = [None; MOST_KINDS];
        for (kind, place) in row[..problem.cluster.groups.len()].iter_mut().enumerate() {
            if space::places(problem, cell, kind, false) {
                *place = Some(self.ask_for_kind(problem, cell, kind, sp, ep, mbs));
            }
        }
        self.add(row)
    }

    /// Asks for the prices of one kind.
    pub fn ask_for_kind(
        &mut self,
        problem: &Problem,
        cell: Cell,
        kind: usize,
        sp: bool,
        ep: u64,
        mbs: u64,
    ) -> u32 {
        // A layer's price does not depend on dp, and on pp only through this.
        let each_pass = gathers_each_pass(problem, cell.pp);
        let pp = if each_pass == gathers_each_pass(problem, 1) { 1 } else { 2 };
        let shard = shard(problem, Cell { dp: 1, pp, ..cell }, kind, sp, ep, mbs, (0, 1));
        let key = (kind, shard, each_pass);
        *self.keys.entry(key).or_insert_with(|| {
            self.asked.push(key);
            self.asked.len() as u32 - 1
        })
    }

    /// Adds a row.
    pub fn add(&mut self, row: Row) -> usize {
        self.rows.push(row);
        self.rows.len() - 1
    }

    /// Prices what was asked for.
    pub fn price(&mut self, problem: &Problem) {
        let new = self.asked[self.priced.len()..].par_iter();
        let of_key = |&(kind, loud, each_pass): &PriceKey| {
            let quiet = each_pass
                .then(|| Prices::new(problem, kind, Shard { zero: 3, shard_group: 1, ..loud }));
            (Prices::new(problem, kind, loud), quiet)
        };
        let priced: Vec<KindPrices> = new.map(of_key).collect();
        self.priced.extend(priced);
    }

    /// Prices at a place.
    pub fn at(&self, place: u32) -> &KindPrices {
        &self.priced[place as usize]
    }

    /// Prices of a kind, if the row has any.
    pub fn of(&self, row: usize, kind: usize) -> Option<&KindPrices> {
        self.rows[row][kind].map(|place| self.at(place))
    }
}

/// What sharding makes of an entry's degrees on a kind of chip.
fn shard(
    problem: &Problem,
    cell: Cell,
    kind: usize,
    sp: bool,
    ep: u64,
    mbs: u64,
    (zero, shard_group): (u8, u64),
) -> Shard {
    let tp = cell.tp_of(kind);
    let etp = space::expert_tensor_parallel(problem, tp);
    let (sp, pipelined) = (sp && tp > 1, cell.pp > 1);
    Shard { dp: cell.dp, tp, sp, cp: cell.cp, ep, etp, mbs, zero, shard_group, pipelined }
}

/// The stages that each kind of chip can offer an entry.
pub fn offered(problem: &Problem, entry: &Entry) -> Vec<Stages> {
    let cell = &entry.cell;
    (0..problem.cluster.groups.len())
        .map(|kind| {
            let placed = space::places(problem, *cell, kind, false);
            let within = || problem.available(kind) / cell.devices_per_stage(kind);
            let most = if placed { within().min(cell.most_stages(problem, kind)) } else { 0 };
            Stages { kind, most }
        })
        .collect()
}

/// The least of a figure of a kind's prices, whatever is sharded.
pub fn least((loud, quiet): &KindPrices, figure: impl Fn(&Prices) -> f64) -> f64 {
    quiet.as_ref().map_or(f64::INFINITY, &figure).min(figure(loud))
}

/// A bound for every plan below an entry from computation alone: each of the fastest stages works for all micro-batches, and
/// one micro-batch passes through all layers and back.
pub fn in_unlimited_memory(problem: &Problem, entry: &Entry, prices: &PriceList) -> Time {
    let cell = &entry.cell;
    let mut kinds: Vec<Kind> = Vec::with_capacity(MOST_KINDS);
    let (mut frequent, mut rest, mut through) = (0.0, f64::INFINITY, f64::INFINITY);
    for Stages { kind, most } in offered(problem, entry).into_iter().filter(|s| s.most > 0) {
        let Some(of) = prices.of(entry.row, kind) else { continue };
        let unit = least(of, |p| p.passes_of_frequent());
        kinds.push(Kind { speed: 1.0 / unit, most, tp: cell.tp_of(kind) as f64 });
        frequent = of.0.count_of_frequent() as f64;
        rest = rest.min(least(of, |p| p.passes_of_rest()) / unit);
        through = through.min(least(of, |p| p.through_frequent()));
    }
    let speed = match cell.each {
        None => fastest(&mut kinds, cell.pp, 0, 0.0),
        Some(_) => fastest_of_ranks(&mut kinds, cell, problem.cluster.devices),
    };
    // Where the limits give too few stages, every composition will be cut.
    let Some(speed) = speed else { return Time::MAX };
    let micro_batches = problem.workload.global_batch_size / (cell.dp * entry.mbs);
    let work = (frequent + rest) / speed * micro_batches as f64;
    Time::from_seconds(work.max(frequent * through) * (1.0 - 1e-9))
}

/// What a kind of chip can do for a pipeline.
#[derive(Clone, Copy)]
struct Kind {
    /// Layers a second of one stage.
    speed: f64,
    /// Stages at most.
    most: u64,
    tp: f64,
}

/// Most layers a second of `pp` stages of which every kind has at least `each`, where a rank costs `price` layers a second.
fn fastest(kinds: &mut [Kind], pp: u64, each: u64, price: f64) -> Option<f64> {
    let worth = |kind: &Kind| kind.speed - price * kind.tp;
    kinds.sort_unstable_by(|a, b| worth(b).total_cmp(&worth(a)));
    let mut left = pp.checked_sub(each * kinds.len() as u64)?;
    let mut speed = 0.0;
    for kind in &*kinds {
        let n = kind.most.checked_sub(each)?.min(left);
        speed += (each + n) as f64 * worth(kind);
        left -= n;
    }
    (left == 0).then_some(speed)
}

/// The same where the stages of all kinds must have the ranks of the cell's devices: the least over the prices of a rank at which two
/// kinds are worth the same, which is the most of any fractions of stages (duality of linear programmes).
fn fastest_of_ranks(kinds: &mut [Kind], cell: &Cell, devices: u64) -> Option<f64> {
    let ranks = (devices / (cell.dp * cell.cp)) as f64;
    let known = kinds.to_vec();
    let pairs = known.iter().enumerate().flat_map(|(i, a)| known[..i].iter().map(move |b| (a, b)));
    let mut least = f64::INFINITY;
    for (a, b) in pairs.filter(|(a, b)| a.tp != b.tp) {
        let price = (a.speed - b.speed) / (a.tp - b.tp);
        least = least.min(fastest(kinds, cell.pp, 1, price)? + price * ranks);
    }
    Some(least)
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
