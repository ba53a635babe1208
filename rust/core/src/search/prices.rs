//! Prices of layers by kind of chip, each worked out when it is first asked for: entries that differ in what does not change them share
//! them.

use super::cell::{divisors, Cell};
use super::entry::Entry;
use super::passage::{KindPrices, Passage};
use super::space::{self, shard};
use super::swiftest::{swiftest_schedules, Swiftest};
use crate::estimate::collective::Fabric;
use crate::estimate::layer::priced_as;
use crate::estimate::least::{Least, Prices};
use crate::estimate::shard::Shard;
use crate::estimate::shortest::Shortest;
use crate::spec::cluster::MOST_KINDS;
use crate::spec::problem::Problem;
use crate::units::Time;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::sync::OnceLock;

/// What prices depend on beside the micro-batch: the kind, its degrees as a sharding with nothing sharded, and whether parameters
/// may travel in every pass.
type Sort = (usize, Shard, bool);

/// Places of the prices of each kind; kinds that an entry cannot use have none.
pub type Row = [Option<u32>; MOST_KINDS];

/// Prices by sort and micro-batch, and the floor of each sort.
pub struct PriceList<'p> {
    problem: &'p Problem,
    /// Devices at most.
    devices: u64,
    /// Whether parameters may travel in every pass: without a pipeline, and in one.
    each_pass: [bool; 2],
    /// Every micro-batch that there may be.
    micro_batches: Vec<u64>,
    places: FxHashMap<Sort, u32>,
    sorts: Vec<Sort>,
    floors: Vec<OnceLock<Passage>>,
    /// By sort, then by micro-batch.
    priced: Vec<OnceLock<Box<KindPrices>>>,
    rows: Vec<Row>,
}

impl<'p> PriceList<'p> {
    /// No prices yet. They hold for up to so many `devices`, of which the problem has the fewest.
    pub fn new(problem: &'p Problem, devices: u64) -> PriceList<'p> {
        PriceList {
            problem,
            devices,
            each_pass: [1, 2].map(|pp| gathers_each_pass(problem, pp)),
            micro_batches: divisors(problem.workload.global_batch_size),
            places: FxHashMap::default(),
            sorts: Vec::new(),
            floors: Vec::new(),
            priced: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Whether parameters may travel in every pass of a pipeline of `pp` stages.
    pub fn each_pass(&self, pp: u64) -> bool {
        self.each_pass[usize::from(pp > 1)]
    }

    /// Asks for the prices of a cell's kinds; returns the place of their row.
    pub fn ask_for(&mut self, cell: Cell, sp: bool, ep: u64) -> usize {
        let mut row = [None; MOST_KINDS];
        for (kind, place) in row[..self.problem.cluster.groups.len()].iter_mut().enumerate() {
            if space::places(self.problem, cell, kind, false) {
                *place = Some(self.ask_for_kind(cell, kind, sp, ep));
            }
        }
        self.add(row)
    }

    /// Asks for the prices of one kind.
    pub fn ask_for_kind(&mut self, cell: Cell, kind: usize, sp: bool, ep: u64) -> u32 {
        // Prices are the least for any dp, and depend on pp only through this.
        let each_pass = self.each_pass(cell.pp);
        let pp = if each_pass == self.each_pass(1) { 1 } else { 2 };
        let shard = shard(self.problem, Cell { dp: 1, pp, ..cell }, kind, sp, ep, 1, (0, 1));
        let next = self.sorts.len() as u32;
        *self.places.entry((kind, shard, each_pass)).or_insert_with_key(|&sort| {
            self.sorts.push(sort);
            next
        })
    }

    /// Adds a row.
    pub fn add(&mut self, row: Row) -> usize {
        self.rows.push(row);
        self.rows.len() - 1
    }

    /// Makes room for the prices of what was asked for.
    pub fn settle(&mut self) {
        self.floors.resize_with(self.sorts.len(), OnceLock::new);
        self.priced.resize_with(self.sorts.len() * self.micro_batches.len(), OnceLock::new);
    }

    /// The floor of a sort.
    pub fn floor_at(&self, place: u32) -> &Passage {
        self.floors[place as usize].get_or_init(|| {
            let (kind, shard, each_pass) = self.sorts[place as usize];
            Passage::floor(self.problem, kind, shard, each_pass)
        })
    }

    /// The floor of a kind, if the row has any.
    pub fn floor(&self, row: usize, kind: usize) -> Option<&Passage> {
        self.rows[row][kind].map(|place| self.floor_at(place))
    }

    /// Prices of a sort for micro-batches of `mbs`, a divisor of the global batch.
    pub fn at(&self, place: u32, mbs: u64) -> &KindPrices {
        let sizes = &self.micro_batches;
        let size = sizes.binary_search(&mbs).expect("a micro-batch divides the batch");
        self.priced[place as usize * sizes.len() + size].get_or_init(|| {
            let (kind, shard, each_pass) = self.sorts[place as usize];
            let most = self.devices / (shard.tp * shard.cp);
            let up_to = most.min(self.problem.workload.global_batch_size / mbs);
            let shard = Shard { mbs, ..shard };
            Box::new(KindPrices::new(self.problem, kind, shard, each_pass, up_to))
        })
    }

    /// Prices of a kind, if the row has any.
    pub fn of(&self, row: usize, kind: usize, mbs: u64) -> Option<&KindPrices> {
        self.rows[row][kind].map(|place| self.at(place, mbs))
    }

    /// A bound for every plan below an entry from its own prices, memory apart.
    pub fn in_unlimited_memory(&self, entry: &Entry) -> Time {
        let (problem, Entry { cell, mbs, row, .. }) = (self.problem, entry);
        let passage = |kind| self.of(*row, kind, *mbs).map(Passage::of);
        let schedules = swiftest_schedules(problem, cell.pp);
        Swiftest::new(problem, cell, passage)
            .map_or(Time::MAX, |of| of.bound(problem, cell, (*mbs, 1.0), &schedules))
    }

    /// What any stage costs at least under any sharding of an entry with one of some ZeRO stages, by kind.
    pub fn leasts(&self, entry: &Entry, stages: &[u8]) -> Vec<Option<Least>> {
        let (problem, Cell { dp, cp, .. }) = (self.problem, entry.cell);
        let of_kind = |kind: usize| {
            let KindPrices { loud, quiet, .. } = self.of(entry.row, kind, entry.mbs)?;
            let shard = |sharding| entry.shard(problem, kind, sharding);
            let whole = shard((0, 1));
            // The largest group leaves least in memory.
            let sharded =
                stages.iter().filter(|&&zero| zero > 0).map(|&zero| shard((zero, dp * cp)));
            let shardings: Vec<Shard> = std::iter::once(whole).chain(sharded).collect();
            let each_pass =
                shardings.iter().any(|&shard| priced_as(shard, &problem.framework).zero > 0);
            Some(if stages == [0] {
                Least::of(problem, kind, &whole, loud)
            } else {
                let quiet = quiet.as_ref().filter(|_| each_pass).unwrap_or(loud);
                Least::of_shardings(problem, kind, &shardings, loud, quiet)
            })
        };
        (0..problem.cluster.groups.len()).map(of_kind).collect()
    }

    /// Prices under a ZeRO stage as [`alike`] names them: at least those of each of its shard groups.
    pub fn in_any_group(&self, entry: &Entry, kind: usize, priced_as: u8) -> Option<&Prices> {
        let (problem, prices) = (self.problem, self.of(entry.row, kind, entry.mbs)?);
        if priced_as == 0 {
            return Some(&prices.loud);
        }
        let shard = entry.shard(problem, kind, (priced_as, 2));
        Some(prices.in_any_group(problem, kind, shard, || {
            let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[kind].chip);
            // Dense parameters are sharded over replicas and sequences, experts' over tensor-parallel ranks too.
            let ranks = divisors(problem.workload.global_batch_size * shard.cp * shard.tp);
            Shortest::of(&fabric, &shard, &ranks[1..])
        }))
    }

    /// What any stage costs at least under any sharding of an entry with one of some ZeRO stages that are priced alike, by kind.
    pub fn leasts_in_any_group(&self, entry: &Entry, of: &Alike) -> Vec<Option<Least>> {
        if of.priced_as == 0 {
            return self.leasts(entry, &of.stages);
        }
        let problem = self.problem;
        let of_kind = |kind: usize| {
            let prices = self.in_any_group(entry, kind, of.priced_as)?;
            // The largest group leaves least in memory.
            let largest = entry.cell.dp * entry.cell.cp;
            let shard = |&zero| entry.shard(problem, kind, (zero, largest));
            let shardings: Vec<Shard> = of.stages.iter().map(shard).collect();
            Some(Least::of_shardings(problem, kind, &shardings, prices, prices))
        };
        (0..problem.cluster.groups.len()).map(of_kind).collect()
    }

    /// Prices of every kind of chip that an entry may use, under a ZeRO stage and shard group.
    pub fn under(&self, entry: &Entry, sharding: (u8, u64)) -> Vec<Option<Cow<'_, Prices>>> {
        let problem = self.problem;
        let of_kind = |kind: usize| {
            let loud = &self.of(entry.row, kind, entry.mbs)?.loud;
            let key = priced_as(entry.shard(problem, kind, sharding), &problem.framework);
            Some(match key.zero {
                0 => Cow::Borrowed(loud),
                _ => Cow::Owned(Prices::new(problem, kind, key)),
            })
        };
        (0..problem.cluster.groups.len()).map(of_kind).collect()
    }

    /// The same without what their passes communicate, if they do under this sharding.
    pub fn quiet(
        &self,
        entry: &Entry,
        sharding: (u8, u64),
    ) -> Option<Vec<Option<Cow<'_, Prices>>>> {
        let problem = self.problem;
        let kinds = 0..problem.cluster.groups.len();
        let priced = |kind: usize| self.of(entry.row, kind, entry.mbs);
        // Shardings are priced alike on all kinds or on none.
        let some = kinds.clone().find(|&kind| priced(kind).is_some())?;
        let key = priced_as(entry.shard(problem, some, sharding), &problem.framework);
        let quiet = |kind: usize| Some(Cow::Borrowed(priced(kind)?.quiet.as_ref()?));
        (key.zero > 0).then(|| kinds.map(quiet).collect())
    }
}

/// ZeRO stages whose passes communicate alike.
pub struct Alike {
    pub stages: Vec<u8>,
    /// One that is priced as they are.
    pub priced_as: u8,
}

/// The allowed ZeRO stages of a pipeline of `pp` stages by what their passes communicate.
pub fn alike(problem: &Problem, pp: u64) -> Vec<Alike> {
    let cell = Cell { pp, tp: 1, each: None, cp: 1, dp: 1 };
    let priced = |&zero: &u8| {
        priced_as(shard(problem, cell, 0, false, 1, 1, (zero, 1)), &problem.framework).zero
    };
    let allowed: Vec<u8> = (0..=3).filter(|z| space::allows(&problem.options.zero, z)).collect();
    let of = |stages: &[u8]| Alike { stages: stages.to_vec(), priced_as: priced(&stages[0]) };
    allowed.chunk_by(|a, b| priced(a) == priced(b)).map(of).collect()
}

/// Whether a framework may send parameters in every pass, which may depend on whether there is a pipeline.
fn gathers_each_pass(problem: &Problem, pp: u64) -> bool {
    let cell = Cell { pp, tp: 1, each: None, cp: 1, dp: 1 };
    let sharded = shard(problem, cell, 0, false, 1, 1, (3, 1));
    priced_as(sharded, &problem.framework) == sharded
}
