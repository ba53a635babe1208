//! The part of the space in which kinds of chip have tensor-parallel degrees of their own.
//!
//! It is searched after the part with one degree for all, whose best plans are a limit. At a number of replicas and context-parallel
//! ranks, some degrees share out what is left of the devices, whatever the depth of the pipeline: a device of a kind
//! passes a layer at some rate, and all devices together no faster than if each did nothing else. Only degrees which that lets
//! through are looked at with each depth.

use super::cell::{divisors, Cell, Each};
use super::counts::Counts;
use super::entries::Entries;
use super::entry::Entry;
use super::passage::Passage;
use super::prices::{PriceList, Row};
use super::report::{Counters, Cut};
use super::space;
use super::swiftest::{swiftest_schedules, Swiftest};
use super::watch::Watch;
use crate::spec::cluster::MOST_KINDS;
use crate::spec::problem::Problem;
use crate::units::Time;
use rustc_hash::FxHashMap;

/// Degrees for two or more kinds, each a divisor of its nodes, not all the same; 0 for the other kinds.
pub fn choices(problem: &Problem) -> Vec<Each> {
    let mut all: Vec<Each> = vec![[0; MOST_KINDS]];
    for (kind, degrees) in degrees(problem).into_iter().enumerate() {
        let with = |each: &Each| {
            let own = degrees.iter().map(|&tp| {
                let mut each = *each;
                each[kind] = tp as u32;
                each
            });
            std::iter::once(*each).chain(own).collect::<Vec<Each>>()
        };
        all = all.iter().flat_map(with).collect();
    }
    all.retain(|each| {
        let mut used = each.iter().filter(|&&tp| tp > 0);
        let first = used.next();
        used.any(|tp| Some(tp) != first)
    });
    all
}

/// The degrees of each kind.
fn degrees(problem: &Problem) -> Vec<Vec<u64>> {
    let of_node = |chip: &crate::spec::cluster::Chip| divisors(u64::from(chip.devices_per_node));
    problem.cluster.groups.iter().map(|group| of_node(&group.chip)).collect()
}

/// Every cell of a number of replicas and context-parallel ranks with some degrees, each with its compositions.
pub fn cells(problem: &Problem, (dp, cp): (u64, u64), each: Each) -> Vec<(Cell, u64)> {
    let tp = each.iter().copied().max().map_or(1, u64::from);
    let ranks = problem.cluster.devices / (dp * cp);
    let least = each.iter().copied().filter(|&tp| tp > 0).min().map_or(1, u64::from);
    let deepest = (ranks / least).min(u64::from(problem.model.layers));
    (ranks.div_ceil(tp).max(2)..=deepest)
        .map(|pp| Cell { pp, tp, each: Some(each), cp, dp })
        .map(|cell| (cell, Counts::of(problem, &cell).count()))
        .filter(|(_, compositions)| *compositions > 0)
        .collect()
}

/// All cells of a problem that allows them, whose degrees divide model, sequence and batch.
pub fn all_cells(problem: &Problem) -> impl Iterator<Item = Cell> + '_ {
    let allowed = problem.options.mixed_tp;
    let (replicas, choices) =
        if allowed { (replicas(problem), choices(problem)) } else { Default::default() };
    replicas.into_iter().flat_map(move |(dp, cp)| {
        let divide = |each: &&Each| {
            let mut degrees = each.iter().filter(|&&tp| tp > 0).map(|&tp| u64::from(tp));
            degrees.all(|tp| space::cut_degrees(problem, tp, cp, dp).is_none())
        };
        let divided = choices.iter().filter(divide);
        let cells = divided.flat_map(|&each| cells(problem, (dp, cp), each));
        cells.map(|(cell, _)| cell).collect::<Vec<Cell>>()
    })
}

/// The ranks of pipelines in which each stage has a degree of its kind, up to `most`.
pub fn ranks(problem: &Problem, most: u64) -> Vec<u64> {
    let mut degrees = degrees(problem).concat();
    degrees.retain(|&tp| {
        space::allows(&problem.options.tp, &tp) && space::cut_degrees(problem, tp, 1, 1).is_none()
    });
    let layers = u64::from(problem.model.layers);
    let most = degrees.iter().max().map_or(0, |tp| tp * layers).min(most) as usize;
    // The fewest stages that have so many ranks.
    let mut stages = vec![0; 1];
    for ranks in 1..=most {
        let before = |&tp: &u64| stages.get(ranks.checked_sub(tp as usize)?).copied();
        stages.push(degrees.iter().filter_map(before).min().unwrap_or(layers) + 1);
    }
    (2..=most).filter(|&ranks| stages[ranks] <= layers).map(|ranks| ranks as u64).collect()
}

/// Replicas and context-parallel ranks that leave some of the devices.
pub fn replicas(problem: &Problem) -> Vec<(u64, u64)> {
    let devices = problem.cluster.devices;
    let pairs = |dp: u64| divisors(devices / dp).into_iter().map(move |cp| (dp, cp));
    divisors(devices).into_iter().flat_map(pairs).filter(|(dp, cp)| dp * cp < devices).collect()
}

impl<'p> Entries<'p> {
    /// Every legal entry with degrees of their own for some kinds that may be within `limit`; the others are counted.
    pub fn mixed(
        problem: &'p Problem,
        limit: Time,
        watch: &Watch,
        counters: &mut Counters,
    ) -> Entries<'p> {
        let mut mixed = Mixed {
            problem,
            limit,
            schedules: (0..=u64::from(problem.model.layers))
                .map(|pp| space::schedules(problem, pp).len() as u64)
                .collect(),
            list: Vec::new(),
            prices: PriceList::new(problem, problem.cluster.devices),
            places: FxHashMap::default(),
        };
        let (choices, replicas) = (choices(problem), replicas(problem));
        if !choices.is_empty() && !watch.stopped() {
            mixed.ask_for_all(&replicas);
        }
        for &(dp, cp) in &replicas {
            for &each in &choices {
                mixed.add((dp, cp), each, watch, counters);
            }
        }
        counters.bounds += mixed.list.len() as u64;
        Entries { list: mixed.list, prices: mixed.prices }
    }
}

/// The entries while they are made.
struct Mixed<'p> {
    problem: &'p Problem,
    limit: Time,
    /// How many schedules there are, by depth.
    schedules: Vec<u64>,
    list: Vec<Entry>,
    prices: PriceList<'p>,
    /// Place of a kind's prices at a degree, cp and ep.
    places: FxHashMap<(usize, u64, u64, u64), u32>,
}

impl Mixed<'_> {
    /// Asks for the prices of each kind at each of its degrees.
    fn ask_for_all(&mut self, replicas: &[(u64, u64)]) {
        let problem = self.problem;
        let degrees = degrees(problem);
        let experts = problem.model.moe.map_or(vec![1], |moe| divisors(u64::from(moe.experts)));
        for &(dp, cp) in replicas {
            for (kind, &tp) in
                degrees.iter().enumerate().flat_map(|(k, d)| d.iter().map(move |tp| (k, tp)))
            {
                if space::cut_degrees(problem, tp, cp, dp).is_some() {
                    continue;
                }
                let cell = Cell { pp: 2, tp, each: None, cp, dp };
                for &ep in &experts {
                    let place = self.prices.ask_for_kind(cell, kind, tp > 1, ep);
                    self.places.insert((kind, tp, cp, ep), place);
                }
            }
        }
        self.prices.settle();
    }

    /// Adds what may be within the limit of some degrees at a number of replicas.
    fn add(&mut self, (dp, cp): (u64, u64), each: Each, watch: &Watch, counters: &mut Counters) {
        let problem = self.problem;
        let cells = cells(problem, (dp, cp), each);
        let Some(&(some, _)) = cells.first() else { return };
        let axes = space::axes(problem, some);
        let shardings = axes.sharding.len() as u64;
        // Classes below one choice of sequence parallel, ep and micro-batch.
        let below = |(cell, compositions): &(Cell, u64)| {
            compositions.saturating_mul(shardings * self.schedules[cell.pp as usize])
        };
        let choices = (axes.sp.len() * axes.ep.len() * axes.mbs.len()) as u64;
        let mut legal = Vec::with_capacity(cells.len());
        for cell in &cells {
            let classes = below(cell);
            counters.considered =
                counters.considered.saturating_add(choices.saturating_mul(classes));
            match space::cut_cell(problem, cell.0) {
                Some(reason) => counters.cut(reason, choices.saturating_mul(classes)),
                None => legal.push((cell.0, classes)),
            }
        }
        let all = legal.iter().map(|cell| cell.1).fold(0, u64::saturating_add);
        for &sp in &axes.sp {
            for (&ep, &mbs) in
                axes.ep.iter().flat_map(|ep| axes.mbs.iter().map(move |mbs| (ep, mbs)))
            {
                if watch.stopped() {
                    counters.cut(Cut::Unreached, all);
                } else if let Some(reason) = space::cut_shard(problem, some, sp, ep, mbs) {
                    counters.cut(reason, all);
                } else if all > 0 {
                    self.add_entries(&legal, all, ep, mbs, counters);
                }
            }
        }
    }

    /// Adds the entries of some cells that differ in their depth alone, with all their classes.
    fn add_entries(
        &mut self,
        cells: &[(Cell, u64)],
        all: u64,
        ep: u64,
        mbs: u64,
        counters: &mut Counters,
    ) {
        let (problem, (some, _)) = (self.problem, cells[0]);
        let mut row: Row = [None; MOST_KINDS];
        for (kind, place) in row[..problem.cluster.groups.len()].iter_mut().enumerate() {
            *place = self.places.get(&(kind, some.tp_of(kind), some.cp, ep)).copied();
        }
        let prices = &self.prices;
        let floor = |kind: usize| row[kind].map(|at| prices.floor_at(at).times(mbs as f64));
        let passage = |kind: usize| row[kind].map(|at| Passage::of(prices.at(at, mbs)));
        counters.bounds += 1;
        // What is too slow by its floors is never priced.
        let too_slow = at_any_depth(problem, &some, mbs, floor) > self.limit
            || at_any_depth(problem, &some, mbs, passage) > self.limit;
        if too_slow {
            counters.cut(Cut::Bound, all);
            return;
        }
        let place = self.prices.add(row);
        for &(cell, classes) in cells {
            let passage = |kind| self.prices.of(place, kind, mbs).map(Passage::of);
            let schedules = swiftest_schedules(problem, cell.pp);
            let bound = Swiftest::new(problem, &cell, passage)
                .map_or(Time::MAX, |of| of.bound(problem, &cell, (mbs, 1.0), &schedules));
            if bound > self.limit {
                counters.bounds += 1;
                counters.cut(Cut::Bound, classes);
            } else {
                let (sp, zero, row) = (true, [true; 4], place);
                self.list.push(Entry { cell, sp, ep, mbs, zero, bound, classes, row });
            }
        }
    }
}

/// A bound for all plans with the degrees of a cell, whatever the depth of their pipelines, from computation alone: as many devices of
/// the kinds whose devices pass layers on fastest as there are.
fn at_any_depth(
    problem: &Problem,
    cell: &Cell,
    mbs: u64,
    passage: impl Fn(usize) -> Option<Passage>,
) -> Time {
    // Seconds of a layer times the ranks that share it, and the ranks of a replica, by kind.
    let mut kinds: Vec<(f64, f64)> = Vec::with_capacity(MOST_KINDS);
    let (mut frequent, mut rest) = (0.0, [f64::INFINITY; 3]);
    for kind in (0..problem.cluster.groups.len()).filter(|&kind| cell.tp_of(kind) > 0) {
        let Some(of) = passage(kind) else { continue };
        let tp = cell.tp_of(kind) as f64;
        let most = problem.available(kind) / cell.devices_per_stage(kind);
        kinds.push((of.layer * tp, most as f64 * tp));
        frequent = of.frequent;
        rest = [0, 1, 2].map(|n| f64::min(rest[n], of.rest[n] / of.layer));
    }
    kinds.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut left, mut speed) = ((problem.cluster.devices / (cell.dp * cell.cp)) as f64, 0.0);
    for (unit, most) in kinds {
        let ranks = most.min(left);
        speed += ranks / unit;
        left -= ranks;
    }
    if left > 0.0 {
        return Time::MAX;
    }
    let micro_batches = problem.workload.global_batch_size / (cell.dp * mbs);
    let layers = frequent + rest.iter().sum::<f64>();
    Time::from_seconds(layers / speed * micro_batches as f64 * (1.0 - 1e-9))
}
