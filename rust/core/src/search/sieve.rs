//! What may matter at any of many device counts, each with a limit of its own.
//!
//! Counts have their degrees in common: with the same tp, cp, ep and pp they differ in their replicas alone. Micro-batches of one size
//! take as long in each; more replicas pass fewer of them a step, with no more of a model's state, and no more micro-batches in
//! flight, on a device. So when steps with the fewest of some replicas take T at least, with the memory that the most of them leave,
//! steps with d times as many take T / d at least: a path through a schedule meets a stage once for each micro-batch, or as often
//! however many there are. Where not even that is within a limit of any of the counts, none of them is looked at by itself; else
//! each half of them is, and so on.

use super::cell::{divisors, Cell};
use super::compositions::bound_below;
use super::devices::Degrees;
use super::entry::Entry;
use super::octaves::Octaves;
use super::passage::Passage;
use super::prices::PriceList;
use super::space::{self, offered};
use super::swiftest::{swiftest_schedules, Swiftest};
use super::watch::Watch;
use crate::estimate::least::Least;
use crate::spec::problem::{Problem, Schedule};
use crate::units::Time;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

/// What may be within the limit of each of some counts, by count; not all of it once the watch has stopped. Kinds of chip have one degree.
pub fn sift(
    problem: &Problem,
    octaves: &Octaves,
    limits: &FxHashMap<u64, Time>,
    watch: &Watch,
) -> FxHashMap<u64, Vec<Entry>> {
    let shapes = shapes(problem, octaves, limits);
    let lists = octaves.all().iter().map(|octave| {
        let mut prices = PriceList::new(&octave.problem);
        shapes.iter().for_each(|shape| _ = prices.ask_for(shape.cell, shape.sp, shape.ep));
        prices.settle();
        prices
    });
    let sieve = Sieve { problem, octaves, lists: lists.collect(), watch };
    let of_shape = |(row, shape): (usize, &Shape)| sieve.of_shape(row, shape);
    let left: Vec<Entry> = shapes.par_iter().enumerate().flat_map_iter(of_shape).collect();
    let mut by_count: FxHashMap<u64, Vec<Entry>> = FxHashMap::default();
    for entry in left {
        by_count.entry(devices(&entry.cell)).or_default().push(entry);
    }
    by_count
}

/// Degrees but for the replicas, and the replicas that fill counts, ascending.
struct Shape {
    /// With one replica.
    cell: Cell,
    sp: bool,
    ep: u64,
    members: Vec<Member>,
}

/// Some replicas of a shape, and the limit of their count.
#[derive(Clone, Copy)]
struct Member {
    dp: u64,
    limit: Time,
}

/// The legal shapes of counts, with what their devices might pass within the limits.
fn shapes(problem: &Problem, octaves: &Octaves, limits: &FxHashMap<u64, Time>) -> Vec<Shape> {
    let Degrees { pp, tp, cp, dp } = Degrees::of(problem);
    let experts = problem.model.moe.map_or(vec![1], |moe| divisors(u64::from(moe.experts)));
    let choices = [false, true].into_iter().flat_map(|sp| experts.iter().map(move |&ep| (sp, ep)));
    let choices: Vec<(bool, u64)> = choices.collect();
    let tp_of = |&pp: &u64| tp.iter().map(move |&tp| (pp, tp));
    let cp_of = |(pp, tp)| cp.iter().map(move |&cp| Cell { pp, tp, each: None, cp, dp: 1 });
    let mut shapes = Vec::new();
    for cell in pp.iter().flat_map(tp_of).flat_map(cp_of) {
        let filling = |&dp: &u64| {
            let filled = filled(&cell, dp);
            let limit = *limits.get(&devices(&filled))?;
            let least = octaves.of(devices(&filled)).throughput.least_of(&filled);
            let legal = least <= limit && space::cut_cell(problem, filled).is_none();
            legal.then_some((filled, limit))
        };
        let filling: Vec<(Cell, Time)> = dp.iter().filter_map(filling).collect();
        for &(sp, ep) in &choices {
            let legal =
                |(cell, _): &&(Cell, Time)| space::cut_any_size(problem, *cell, sp, ep).is_none();
            let members: Vec<Member> = filling
                .iter()
                .filter(legal)
                .map(|&(Cell { dp, .. }, limit)| Member { dp, limit })
                .collect();
            if !members.is_empty() {
                shapes.push(Shape { cell, sp, ep, members });
            }
        }
    }
    shapes
}

/// What bounds the members of shapes.
struct Sieve<'a> {
    problem: &'a Problem,
    octaves: &'a Octaves,
    /// By octave; a shape's row is its place.
    lists: Vec<PriceList<'a>>,
    watch: &'a Watch,
}

impl Sieve<'_> {
    /// What may be within the limits of a shape's members, with micro-batches of every size.
    fn of_shape(&self, row: usize, shape: &Shape) -> Vec<Entry> {
        let (problem, &Shape { cell, sp, ep, ref members }) = (self.problem, shape);
        let mut left = Vec::new();
        let batch = problem.workload.global_batch_size;
        let schedules = swiftest_schedules(problem, cell.pp);
        let mut divided = Vec::with_capacity(members.len());
        for mbs in divisors(batch / members[0].dp) {
            if self.watch.stopped() {
                break;
            }
            if !space::allows(&problem.options.mbs, &mbs) {
                continue;
            }
            divided.clear();
            divided.extend(members.iter().filter(|m| (batch / m.dp).is_multiple_of(mbs)));
            let entry = Entry { cell, sp, ep, mbs, bound: Time::ZERO, classes: 0, row };
            self.halve(entry, &divided, &schedules, &mut left);
        }
        left
    }

    /// Adds what may be within its limit of an entry's members.
    fn halve(
        &self,
        entry: Entry,
        members: &[Member],
        schedules: &[(Schedule, u64)],
        left: &mut Vec<Entry>,
    ) {
        let Some(&Member { dp, .. }) = members.first() else { return };
        let fewest = with(&entry, dp);
        let Cell { cp, tp, .. } = entry.cell;
        // Groups of one rank have neither shards nor a communicator.
        let experts = entry.ep * space::expert_tensor_parallel(self.problem, tp);
        let alone = dp * cp == 1 || dp * cp * tp == experts;
        let single = members.len() == 1;
        if single || !alone {
            match self.bound(&fewest, members, schedules) {
                None => return,
                Some(bound) if single => {
                    let classes = space::axes(self.problem, fewest.cell).below_shard();
                    left.push(Entry { bound, classes, ..fewest });
                    return;
                }
                Some(_) => {}
            }
        }
        let (fewer, more) = members.split_at(if alone { 1 } else { members.len() / 2 });
        self.halve(entry, fewer, schedules, left);
        self.halve(entry, more, schedules, left);
    }

    /// A time before which no step of the entry with the fewest replicas ends, if any of the members may be within its limit.
    fn bound(
        &self,
        fewest: &Entry,
        members: &[Member],
        schedules: &[(Schedule, u64)],
    ) -> Option<Time> {
        let (problem, &Entry { cell, mbs, row, .. }) = (self.problem, fewest);
        let limit_of = |m: &Member| m.limit.seconds() * (m.dp as f64 / cell.dp as f64);
        let limit = members.iter().map(limit_of).fold(0.0, f64::max);
        let limit = Time::from_seconds(limit * (1.0 + 1e-9));
        let prices = &self.lists[self.octaves.place(devices(&cell))];
        let legal = |&schedule: &(Schedule, u64)| {
            let of =
                |m: &Member| space::cut_everywhere(problem, with(fewest, m.dp).cell, mbs, schedule);
            members.iter().any(|m| of(m).is_none())
        };
        let unlimited = |passage: &dyn Fn(usize) -> Option<Passage>, times: f64| {
            Swiftest::new(problem, &cell, passage)
                .map(|of| of.bound_where(problem, &cell, (mbs, times), schedules, legal))
                .filter(|bound| *bound <= limit)
        };
        unlimited(&|kind| prices.floor(row, kind).copied(), mbs as f64)?;
        let least = unlimited(&|kind| prices.of(row, kind, mbs).map(Passage::of), 1.0)?;
        let stages = offered(problem, &cell);
        if stages.iter().map(|s| s.most).sum::<u64>() < cell.pp {
            return None;
        }
        let stages: Vec<u8> = (0..=3).filter(|z| space::allows(&problem.options.zero, z)).collect();
        let most = with(fewest, members[members.len() - 1].dp);
        let mut leasts = prices.leasts(&most, &stages);
        if members.len() > 1 {
            leasts.iter_mut().flatten().for_each(Least::forget_tail);
        }
        let flying = most.micro_batches(problem);
        let bound = bound_below(problem, fewest, flying, legal, &leasts, limit).ok()?;
        Some(bound.max(least))
    }
}

fn devices(cell: &Cell) -> u64 {
    cell.pp * cell.tp * cell.cp * cell.dp
}

/// Degrees with so many replicas.
fn filled(cell: &Cell, dp: u64) -> Cell {
    Cell { dp, ..*cell }
}

/// An entry with so many replicas.
fn with(entry: &Entry, dp: u64) -> Entry {
    Entry { cell: filled(&entry.cell, dp), ..*entry }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::devices::device_counts;
    use crate::search::search;
    use crate::spec::model::Model;
    use crate::testing;

    /// The best plans of all counts are left where nothing slower is of use.
    fn best_are_left(problem: &Problem) -> (usize, usize) {
        let most = problem.cluster.devices;
        let counts = device_counts(problem, most);
        let (mut limits, mut best) = (FxHashMap::default(), Vec::new());
        for &devices in &counts {
            let mut of_count = problem.clone();
            of_count.cluster.devices = devices;
            let report = search(of_count, &Watch::new(None));
            let Some(found) = report.ranked.into_iter().next() else { continue };
            limits.insert(devices, found.estimate.step_ps);
            best.push(found);
        }
        let octaves = Octaves::new(problem, &counts).expect("no torus");
        let left = sift(problem, &octaves, &limits, &Watch::new(None));
        for found in &best {
            let plan = &found.plan;
            let of_plan = |entry: &&Entry| {
                let Cell { pp, tp, cp, dp, .. } = entry.cell;
                let degrees = (pp, tp, cp, dp) == (plan.pp, plan.tp, plan.cp, plan.dp);
                degrees && (entry.sp, entry.ep, entry.mbs) == (plan.sp, plan.ep, plan.mbs)
            };
            let entry = left[&plan.devices()].iter().find(of_plan).expect("the best is left");
            assert!(entry.bound <= found.estimate.step_ps, "{plan:?}");
        }
        let all: usize = counts
            .iter()
            .map(|&devices| {
                let mut of_count = problem.clone();
                of_count.cluster.devices = devices;
                let mut counters = crate::search::report::Counters::default();
                crate::search::entries::Entries::new(&of_count, &mut counters).list.len()
            })
            .sum();
        (left.values().map(Vec::len).sum(), all)
    }

    #[test]
    fn the_best_of_every_count_is_left_and_most_is_not() {
        for (kinds, moe) in [(1, false), (1, true), (2, false), (2, true)] {
            let mut cluster = testing::cluster(testing::a100(), 24);
            if kinds == 2 {
                cluster.groups[0].limit = Some(16);
                cluster.groups.push(cluster.groups[0].clone());
                cluster.groups[1].chip = testing::fast();
            }
            for memory in [80.0, 3.0] {
                cluster.groups.iter_mut().for_each(|group| group.chip.memory_gib = memory);
                let moe = moe.then(|| testing::moe(4, 2, 2048));
                let model = Model { moe, ..testing::gpt(6, 1024) };
                let mut problem = testing::problem(model, cluster.clone(), 48, 1024);
                problem.options.top = 1;
                let (left, all) = best_are_left(&problem);
                assert!(left > 0 && 2 * left < all, "{left} of {all}");
            }
        }
    }
}
