//! Prices of layers by kind of chip, each worked out when it is first asked for: entries that differ in what does not change them share
//! them.

use super::cell::{divisors, Cell};
use super::passage::{price, KindPrices, Passage};
use super::space::{self, shard};
use crate::estimate::layer::priced_as;
use crate::estimate::shard::Shard;
use crate::spec::cluster::MOST_KINDS;
use crate::spec::problem::Problem;
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use std::sync::OnceLock;

/// What prices depend on beside the micro-batch: the kind, its degrees as a sharding with nothing sharded, and whether parameters
/// may travel in every pass.
type Sort = (usize, Shard, bool);

/// Places of the prices of each kind; kinds that an entry cannot use have none.
pub type Row = [Option<u32>; MOST_KINDS];

/// Prices by sort and micro-batch, and the floor of each sort.
pub struct PriceList<'p> {
    problem: &'p Problem,
    /// Whether parameters may travel in every pass: without a pipeline, and in one.
    each_pass: [bool; 2],
    /// Every micro-batch that there may be.
    micro_batches: Vec<u64>,
    places: FxHashMap<Sort, u32>,
    sorts: Vec<Sort>,
    floors: Vec<Passage>,
    /// By sort, then by micro-batch.
    priced: Vec<OnceLock<Box<KindPrices>>>,
    rows: Vec<Row>,
}

impl<'p> PriceList<'p> {
    /// No prices yet.
    pub fn new(problem: &'p Problem) -> PriceList<'p> {
        PriceList {
            problem,
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
        // A layer's price does not depend on dp, and on pp only through this.
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

    /// Works out the floors of what was asked for, and makes room for its prices.
    pub fn settle(&mut self) {
        let problem = self.problem;
        let new = self.sorts[self.floors.len()..].par_iter();
        let floor =
            |&(kind, shard, each_pass): &Sort| Passage::floor(problem, kind, shard, each_pass);
        self.floors.par_extend(new.map(floor));
        self.priced.resize_with(self.sorts.len() * self.micro_batches.len(), OnceLock::new);
    }

    /// The floor of a sort.
    pub fn floor_at(&self, place: u32) -> &Passage {
        &self.floors[place as usize]
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
            Box::new(price(self.problem, kind, Shard { mbs, ..shard }, each_pass))
        })
    }

    /// Prices of a kind, if the row has any.
    pub fn of(&self, row: usize, kind: usize, mbs: u64) -> Option<&KindPrices> {
        self.rows[row][kind].map(|place| self.at(place, mbs))
    }
}

/// Whether a framework may send parameters in every pass, which may depend on whether there is a pipeline.
fn gathers_each_pass(problem: &Problem, pp: u64) -> bool {
    let cell = Cell { pp, tp: 1, each: None, cp: 1, dp: 1 };
    let sharded = shard(problem, cell, 0, false, 1, 1, (3, 1));
    priced_as(sharded, &problem.framework) == sharded
}
