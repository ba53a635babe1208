//! The choices of degrees and micro-batch, each with a lower bound for every plan below it.

use super::entry::Entry;
use super::prices::PriceList;
use super::report::{Counters, Cut};
use super::space::{self, Classes};
use super::swiftest::{swiftest_schedules, Swiftest};
use crate::spec::problem::Problem;
use crate::units::Time;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

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
        let mut prices = PriceList::new(problem, problem.cluster.devices);
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
                    let zero = [true; 4];
                    list.push(Entry { cell, sp, ep, mbs, zero, bound, classes, row });
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
        let mut prices = PriceList::new(problem, problem.cluster.devices);
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
