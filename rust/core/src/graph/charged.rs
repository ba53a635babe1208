//! Sums in which memory has a price: the search for the multiplier on memory whose bound is best.
//!
//! For every multiplier the least of time plus multiplier times memory, less the multiplier times the limit, is a lower
//! bound of the time of any plan within the limit (Lagrange; Everett 1963).

use super::completion::Completions;
use super::cost::{CostGraph, Matrix, Node};
use super::eliminate::{Eliminated, Order, Summed};
use super::price::Price;
use crate::units::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Binary digits of the multiplier below one picosecond a byte.
const FRACTION: u32 = 24;
/// Multipliers tried; each is where two plans' lines cross, and a dozen suffices.
const MULTIPLIERS: usize = 40;
/// How far the multipliers of two halves of a plan are from the best, as powers of a half: far apart the halves differ more, near
/// each other both are near the best.
const SPREADS: [u32; 3] = [1, 4, 7];
/// The most that memory is charged a node; sums over thousands of nodes stay in 64 bits.
const LARGEST_CHARGE: u128 = 1 << 50;

/// The cost graph with the order in which its nodes are taken out. Its variables are the nodes, and its given tables first
/// the nodes' own and then the edges'.
#[derive(Clone, Debug)]
pub struct Solver<'a> {
    /// What is solved.
    pub graph: &'a CostGraph,
    pub(super) order: Order,
    /// The tables of the graph's matrices.
    pairs: Vec<Arc<[f64]>>,
}

/// The sums of every step with memory charged by a multiplier.
#[derive(Clone, Debug)]
pub struct Charged<'a> {
    pub(super) solver: &'a Solver<'a>,
    pub(super) sums: Summed,
}

impl Charged<'_> {
    /// What the rest of a plan is charged at least, for each part of a plan that is charged at most `most`; `None` if tables
    /// are too large.
    pub fn completions(&self, most: u64) -> Option<Completions> {
        self.solver.order.completions(&self.sums, most as f64)
    }
}

impl<'a> Solver<'a> {
    /// Finds the order.
    pub fn new(graph: &'a CostGraph) -> Solver<'a> {
        let sizes = (0..graph.nodes.len()).map(|node| graph.count(node)).collect();
        let ones = (0..graph.nodes.len()).map(|node| vec![node]);
        let twos = graph.edges.iter().map(|edge| vec![edge.from, edge.to]);
        let order = Order::new(sizes, ones.chain(twos).collect());
        Solver { graph, order, pairs: graph.matrices.iter().map(Matrix::whole).collect() }
    }

    /// The least sum in which `weigh` turns the price of a strategy into one number, and a plan that has it.
    pub fn least(&self, weigh: impl Fn(&Price) -> u64) -> Eliminated {
        self.order.chosen(&self.sums(1, |_| 0, |price, _| weigh(price)))
    }

    /// The sums in which `weigh` turns the price of a strategy into one number. It is given one of `sides`, and `side` says
    /// which each node is on.
    fn sums(
        &self,
        sides: usize,
        side: impl Fn(usize) -> usize,
        weigh: impl Fn(&Price, usize) -> u64,
    ) -> Summed {
        let graph = self.graph;
        let mut cells: Vec<Arc<[f64]>> = Vec::new();
        for kind in &graph.kinds {
            for side in 0..sides {
                cells.push(kind.prices.iter().map(|price| weigh(price, side) as f64).collect());
            }
        }
        let pairs = cells.len();
        cells.extend(self.pairs.iter().cloned());
        let own = graph.nodes.iter().enumerate().map(|(n, node)| node.kind * sides + side(n));
        let tables = own.chain(graph.edges.iter().map(|edge| pairs + edge.matrix)).collect();
        self.order.summed(cells, tables)
    }
}

/// A strategy's time with its memory charged by a multiplier.
fn charged(price: &Price, multiplier: u128) -> u64 {
    price.time().0.saturating_add(charge(price.memory, multiplier).min(LARGEST_CHARGE) as u64)
}

fn charge(memory: Bytes, multiplier: u128) -> u128 {
    (u128::from(memory.0) * multiplier) >> FRACTION
}

/// The state of the search for the best multiplier.
#[derive(Clone, Debug)]
pub struct Dual<'a> {
    /// What is solved.
    pub graph: &'a CostGraph,
    /// Memory that a plan may take.
    pub limit: Bytes,
    /// The fastest plan found that is over the limit, for the highest multiplier.
    pub over: Vec<usize>,
    /// A plan within it, for the lowest multiplier.
    pub within: Vec<usize>,
    /// No plan within the limit takes less.
    pub bound: u64,
    /// The one that the bound comes from, in parts of a picosecond a byte.
    multiplier: u128,
    /// Every plan that was found for one.
    plans: Vec<Vec<usize>>,
}

impl<'a> Dual<'a> {
    /// The best multiplier for a limit between the memory of the fastest plan and that of `within`. `least` finds the least
    /// sum of what it is given of each price.
    pub fn new(
        graph: &'a CostGraph,
        limit: Bytes,
        fastest: Eliminated,
        within: Vec<usize>,
        least: impl FnMut(&dyn Fn(&Price) -> u64) -> Eliminated,
    ) -> Dual<'a> {
        let (over, bound) = (fastest.choice, fastest.bound);
        let plans = vec![over.clone(), within.clone()];
        let mut dual = Dual { graph, limit, over, within, bound, multiplier: 0, plans };
        dual.maximise(least);
        dual
    }

    /// The same where sums over all strategies are dear: `least` is asked only at multipliers that are the best for the
    /// strategies taken so far, of the known plans and of those that it finds (column generation; Dantzig, Wolfe 1960). It
    /// ends where the others lower the sum by a `share` at most.
    pub fn grown(
        graph: &'a CostGraph,
        limit: Bytes,
        fastest: Eliminated,
        within: Vec<usize>,
        known: Vec<Vec<usize>>,
        share: f64,
        mut least: impl FnMut(&dyn Fn(&Price) -> u64) -> Eliminated,
    ) -> Dual<'a> {
        let Eliminated { choice: over, bound } = fastest;
        let mut plans = vec![over.clone(), within.clone()];
        plans.extend(known);
        let ends = [over.clone(), within.clone()];
        let mut dual = Dual { graph, limit, over, within, bound, multiplier: 0, plans };
        for _ in 0..MULTIPLIERS {
            let taken = dual.taken();
            let part = graph.part(&taken);
            let solver = Solver::new(&part);
            let [choice, within] = ends.each_ref().map(|plan| inside(&taken, plan));
            let fastest = Eliminated { choice, bound };
            let inner = Dual::new(&part, limit, fastest, within, |weigh| solver.least(weigh));
            let found = least(&|price| charged(price, inner.multiplier));
            dual.raise(inner.multiplier, found.bound);
            (dual.over, dual.within) = (among(&taken, &inner.over), among(&taken, &inner.within));
            dual.plans.push(found.choice);
            if dual.bound as f64 >= inner.bound as f64 * (1.0 - share) {
                break;
            }
        }
        dual
    }

    /// Takes a multiplier whose least sum is a better bound.
    fn raise(&mut self, multiplier: u128, least: u64) {
        // Charges of nodes are rounded down, the limit's is rounded up: the bound stays below.
        let credit = u64::try_from(charge(self.limit, multiplier) + 1).unwrap_or(u64::MAX);
        let bound = least.saturating_sub(credit);
        if bound > self.bound {
            (self.bound, self.multiplier) = (bound, multiplier);
        }
    }

    /// No multiplier, for a limit that the fastest plan keeps.
    pub fn without(graph: &'a CostGraph, limit: Bytes, fastest: Eliminated) -> Dual<'a> {
        let (over, bound) = (fastest.choice, fastest.bound);
        Dual { graph, limit, within: over.clone(), over, bound, multiplier: 0, plans: vec![] }
    }

    /// The same over some of the strategies of each node, this one's plans among them: `part` has those that are `kept`.
    pub fn inside<'b>(&self, part: &'b CostGraph, kept: &[Vec<usize>]) -> Dual<'b> {
        let (over, within) = (inside(kept, &self.over), inside(kept, &self.within));
        let Dual { limit, bound, multiplier, .. } = *self;
        Dual { graph: part, limit, over, within, bound, multiplier, plans: vec![] }
    }

    /// The sums at the best multiplier.
    pub fn charged<'s>(&self, solver: &'s Solver<'s>) -> Charged<'s> {
        let sums = solver.sums(1, |_| 0, |price, _| self.charge(price));
        Charged { solver, sums }
    }

    /// The time of a strategy with its memory charged by the best multiplier.
    pub fn charge(&self, price: &Price) -> u64 {
        charged(price, self.multiplier)
    }

    /// What a plan may be charged for memory within the limit; rounded down, as charges are.
    pub fn credit(&self) -> u64 {
        u64::try_from(charge(self.limit, self.multiplier)).unwrap_or(u64::MAX)
    }

    /// The strategies of each node that any plan found takes for a node of its kind.
    pub fn taken(&self) -> Vec<Vec<usize>> {
        let mut taken: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.graph.kinds.len()];
        for plan in &self.plans {
            let nodes = self.graph.nodes.iter().zip(plan);
            nodes.for_each(|(node, &s)| _ = taken[node.kind].insert(s));
        }
        let of = |node: &Node| taken[node.kind].iter().copied().collect();
        self.graph.nodes.iter().map(of).collect()
    }

    /// A plan's time plus its charged memory is a line over the multiplier, and the bound follows the lowest line. Where the
    /// lines of the two plans cross is the best multiplier, or there a lower line takes the place of one of them.
    fn maximise(&mut self, mut least: impl FnMut(&dyn Fn(&Price) -> u64) -> Eliminated) {
        let graph = self.graph;
        for _ in 0..MULTIPLIERS {
            let (slow, little) = graph.total(&self.within);
            let (fast, much) = graph.total(&self.over);
            let rise = u128::from(slow.saturating_sub(fast)) << FRACTION;
            let multiplier = rise / u128::from((much - little).0.max(1));
            let found = least(&|price| charged(price, multiplier));
            self.raise(multiplier, found.bound);
            self.plans.push(found.choice.clone());
            let (time, memory) = graph.total(&found.choice);
            let height = |time: u64, memory| u128::from(time) + charge(memory, multiplier);
            // Rounding may leave the lines' heights apart by a picosecond a node.
            let nodes = graph.nodes.len() as u128;
            let lower = height(time, memory) + nodes < height(fast, much);
            if memory > self.limit {
                self.over = found.choice;
            } else {
                self.within = found.choice;
            }
            if !lower {
                break;
            }
        }
    }

    /// A plan that begins as one over the limit and goes on as one within it: the first nodes are charged a little less
    /// than the best multiplier and the others a little more. As many are charged less as the limit allows, and what the
    /// change from one to the other costs is part of the sum.
    pub fn mixed(&self, solver: &Solver<'_>) -> Vec<usize> {
        let plans =
            SPREADS.iter().flat_map(|spread| self.spread(solver, self.multiplier >> spread));
        let all = plans.chain([self.within.clone()]);
        all.min_by_key(|plan| self.graph.total(plan).0).unwrap_or_default()
    }

    /// The fastest plan within the limit that the two multipliers so far from the best make, if any is.
    fn spread(&self, solver: &Solver<'_>, spread: u128) -> Option<Vec<usize>> {
        let charges = [self.multiplier - spread, self.multiplier + spread];
        let (mut fits, mut exceeds) = (0, self.graph.nodes.len() + 1);
        let mut best: Option<(u64, Vec<usize>)> = None;
        while exceeds - fits > 1 {
            let first = (fits + exceeds) / 2;
            let side = |node: usize| usize::from(node >= first);
            let sums = solver.sums(2, side, |price, side| charged(price, charges[side]));
            let found = solver.order.chosen(&sums);
            let (time, memory) = self.graph.total(&found.choice);
            if memory > self.limit {
                exceeds = first;
            } else {
                fits = first;
                if best.as_ref().is_none_or(|(least, _)| time < *least) {
                    best = Some((time, found.choice));
                }
            }
        }
        best.map(|(_, plan)| plan)
    }
}

/// A choice among some of the strategies as one among all.
pub fn among(kept: &[Vec<usize>], choice: &[usize]) -> Vec<usize> {
    kept.iter().zip(choice).map(|(kept, &chosen)| kept[chosen]).collect()
}

/// A choice of strategies that are kept as one among those.
pub fn inside(kept: &[Vec<usize>], choice: &[usize]) -> Vec<usize> {
    let place = |(kept, chosen): (&Vec<usize>, &usize)| kept.partition_point(|s| s < chosen);
    kept.iter().zip(choice).map(place).collect()
}
