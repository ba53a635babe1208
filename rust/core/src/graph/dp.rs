//! Dynamic programming over the cost graph: elimination without a memory limit; with one, a multiplier on memory and
//! labels of time and memory.
//!
//! With a limit the least of time plus multiplier times memory, less the multiplier times the limit, is a lower bound
//! for every multiplier (Lagrange). The best multiplier is found; the plans on both sides of it are joined and improved, and
//! the bound says how much could be left. Small graphs are then settled by elimination with Pareto fronts.

use super::answer::Found;
use super::cost::CostGraph;
use super::eliminate::{Eliminated, Order};
use super::front;
use super::layout::Mesh;
use super::price::Price;
use crate::units::{Bytes, Time};
use std::rc::Rc;

/// Binary digits of the multiplier below one picosecond a byte.
const FRACTION: u32 = 24;
/// Multipliers tried; each is where two plans' lines cross, and a dozen suffices.
const MULTIPLIERS: usize = 40;
/// Rounds of improvement of a plan.
const ROUNDS: usize = 20;
/// How far the multipliers of two halves of a plan are apart, as powers of a half.
const SPREADS: [u32; 2] = [1, 3];
/// Nodes of a graph that is settled by fronts; in larger ones the labels are too many.
const SETTLED: usize = 64;
/// Longer than any plan, and short enough that a few of them can be added: 13 days.
const NEVER: Time = Time(1 << 60);
/// The most that memory is charged a node; sums over thousands of nodes stay in 64 bits.
const LARGEST_CHARGE: u128 = 1 << 50;

/// The fastest choice within a memory limit, or the best found with a bound.
pub fn solve(graph: &CostGraph, limit: Bytes) -> Found {
    let solver = Solver::new(graph);
    let mut free = solver.fastest();
    if graph.total(&free.choice).1 <= limit {
        if graph.total(&free.choice).0 > free.bound {
            improve(graph, limit, &mut free.choice);
        }
        return Found { choice: free.choice, bound: Some(free.bound), fits: true };
    }
    if least_memory(graph) > limit {
        return smallest(graph);
    }
    let within = smallest(graph).choice;
    let mut dual = Dual {
        solver: &solver,
        limit,
        over: free.choice,
        within,
        bound: free.bound,
        multiplier: 0,
    };
    dual.maximise();
    let mixed =
        SPREADS.iter().flat_map(|&spread| [false, true].map(|back| dual.mixed(spread, back)));
    let mut bound = dual.bound;
    let starts = mixed.chain([dual.within.clone()]);
    let polished = starts.map(|start| polished(graph, limit, start, [&dual.over, &dual.within]));
    let mut best = polished.min_by_key(|plan| graph.total(plan).0).unwrap_or(dual.within);
    let time = graph.total(&best).0;
    if bound < time && graph.nodes.len() <= SETTLED {
        if let Some(settled) = front::settle(graph, limit, time) {
            best = settled.unwrap_or(best);
            bound = graph.total(&best).0;
        }
    }
    Found { choice: best, bound: Some(bound), fits: true }
}

/// The same, and where that leaves a gap also the best plans of those that take axes of the mesh whole, all or all but one,
/// of which there are few: a large table may be too much only for all strategies.
pub fn solve_on(graph: &CostGraph, mesh: &Mesh, limit: Bytes) -> Found {
    let mut best = solve(graph, limit);
    let time = |choice: &[usize]| graph.total(choice).0;
    if !best.fits || best.bound >= Some(time(&best.choice)) {
        return best;
    }
    let given = mesh.axes.last().map_or(0, |axis| axis.given + 1);
    let exceptions = (0..given).filter(|_| given > 1).map(Some);
    for exception in [None].into_iter().chain(exceptions) {
        let (part, places) = graph.restricted(|strategy| strategy.is_whole(mesh, exception));
        let strategies = |graph: &CostGraph| -> usize {
            graph.kinds.iter().map(|kind| kind.strategies.len()).sum()
        };
        if strategies(&part) == strategies(graph) {
            continue;
        }
        let found = solve(&part, limit);
        let place = |(node, &chosen): (usize, &usize)| places[graph.nodes[node].kind][chosen];
        let mut choice: Vec<usize> = found.choice.iter().enumerate().map(place).collect();
        if found.fits {
            improve(graph, limit, &mut choice);
            if time(&choice) < time(&best.choice) {
                best.choice = choice;
            }
        }
    }
    best
}

/// The cost graph with the order in which its nodes are taken out.
struct Solver<'a> {
    graph: &'a CostGraph,
    order: Order,
}

impl<'a> Solver<'a> {
    fn new(graph: &'a CostGraph) -> Solver<'a> {
        let sizes = (0..graph.nodes.len()).map(|node| graph.count(node)).collect();
        let ones = (0..graph.nodes.len()).map(|node| vec![node]);
        let twos = graph.edges.iter().map(|edge| vec![edge.from, edge.to]);
        Solver { graph, order: Order::new(sizes, ones.chain(twos).collect()) }
    }

    /// The least of a sum in which `weigh` turns the price of a strategy into one number. It is given one of `sides`, and
    /// `side` says which each node is on.
    fn least(
        &self,
        sides: usize,
        side: impl Fn(usize) -> usize,
        weigh: impl Fn(&Price, usize) -> u64,
    ) -> Eliminated {
        let graph = self.graph;
        let mut cells: Vec<Rc<[u64]>> = Vec::new();
        for kind in &graph.kinds {
            for side in 0..sides {
                cells.push(kind.prices.iter().map(|price| weigh(price, side)).collect());
            }
        }
        let pairs = cells.len();
        cells.extend(graph.matrices.iter().map(|matrix| matrix.cells.clone()));
        let own = graph.nodes.iter().enumerate().map(|(n, node)| node.kind * sides + side(n));
        let tables = own.chain(graph.edges.iter().map(|edge| pairs + edge.matrix)).collect();
        self.order.eliminate(cells, tables)
    }

    /// The fastest plan, whatever its memory.
    fn fastest(&self) -> Eliminated {
        self.least(1, |_| 0, |price, _| price.time().0)
    }
}

/// Memory below which no plan lies: it is a sum over nodes, so each takes its least.
pub fn least_memory(graph: &CostGraph) -> Bytes {
    let least = |node| graph.prices(node).iter().map(|p| p.memory).min().unwrap_or(Bytes::ZERO);
    (0..graph.nodes.len()).map(least).sum()
}

/// The fastest plan among those of the least memory.
pub fn smallest(graph: &CostGraph) -> Found {
    let mut restricted = graph.clone();
    for kind in &mut restricted.kinds {
        let least = kind.prices.iter().map(|p| p.memory).min().unwrap_or(Bytes::ZERO);
        for price in kind.prices.iter_mut().filter(|p| p.memory > least) {
            price.compute = NEVER;
        }
    }
    let choice = Solver::new(&restricted).fastest().choice;
    Found { choice, bound: None, fits: false }
}

/// A strategy's time with its memory charged by a multiplier.
fn charged(price: &Price, multiplier: u128) -> u64 {
    price.time().0.saturating_add(charge(price.memory, multiplier).min(LARGEST_CHARGE) as u64)
}

fn charge(memory: Bytes, multiplier: u128) -> u128 {
    (u128::from(memory.0) * multiplier) >> FRACTION
}

/// The state of the search for the best multiplier.
struct Dual<'a> {
    solver: &'a Solver<'a>,
    limit: Bytes,
    /// The fastest plan found that is over the limit, for the highest multiplier.
    over: Vec<usize>,
    /// A plan within it, for the lowest multiplier.
    within: Vec<usize>,
    bound: u64,
    /// The last one tried, in parts of a picosecond a byte.
    multiplier: u128,
}

impl Dual<'_> {
    /// A plan's time plus its charged memory is a line over the multiplier, and the bound follows the lowest line. Where the
    /// lines of the two plans cross is the best multiplier, or there a lower line takes the place of one of them.
    fn maximise(&mut self) {
        let graph = self.solver.graph;
        for _ in 0..MULTIPLIERS {
            let (slow, little) = graph.total(&self.within);
            let (fast, much) = graph.total(&self.over);
            let rise = u128::from(slow.saturating_sub(fast)) << FRACTION;
            let multiplier = rise / u128::from((much - little).0.max(1));
            let found = self.solver.least(1, |_| 0, |price, _| charged(price, multiplier));
            // Charges of nodes are rounded down, the limit's is rounded up: the bound stays below.
            let credit = u64::try_from(charge(self.limit, multiplier) + 1).unwrap_or(u64::MAX);
            self.bound = self.bound.max(found.bound.saturating_sub(credit));
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
            self.multiplier = multiplier;
            if !lower {
                break;
            }
        }
    }

    /// A plan that begins as one over the limit and goes on as one within it: the first nodes are charged a little less
    /// than the best multiplier and the others a little more, by a `shift`-th power of a half. As many are charged less as
    /// the limit allows, and what the change from one to the other costs is part of the sum. `back` counts from the end.
    fn mixed(&self, shift: u32, back: bool) -> Vec<usize> {
        let nodes = self.solver.graph.nodes.len();
        let spread = self.multiplier >> shift;
        let charges = [self.multiplier - spread, self.multiplier + spread];
        let (mut fits, mut exceeds) = (0, nodes + 1);
        let mut best = self.within.clone();
        while exceeds - fits > 1 {
            let first = (fits + exceeds) / 2;
            let place = |node: usize| if back { nodes - 1 - node } else { node };
            let side = |node: usize| usize::from(place(node) >= first);
            let found = self.solver.least(2, side, |price, side| charged(price, charges[side]));
            let (time, memory) = self.solver.graph.total(&found.choice);
            if memory > self.limit {
                exceeds = first;
            } else {
                fits = first;
                if time < self.solver.graph.total(&best).0 {
                    best = found.choice;
                }
            }
        }
        best
    }
}

/// A plan within the limit that stretches of others and changes of single nodes make no faster.
fn polished(
    graph: &CostGraph,
    limit: Bytes,
    mut plan: Vec<usize>,
    others: [&[usize]; 2],
) -> Vec<usize> {
    for _ in 0..ROUNDS {
        let before = graph.total(&plan).0;
        for other in others {
            splice(graph, limit, &mut plan, other);
        }
        improve(graph, limit, &mut plan);
        if graph.total(&plan).0 == before {
            break;
        }
    }
    plan
}

/// The nodes' edges, by place.
fn edges_of(graph: &CostGraph) -> Vec<Vec<usize>> {
    let mut of: Vec<Vec<usize>> = vec![vec![]; graph.nodes.len()];
    for (e, edge) in graph.edges.iter().enumerate() {
        of[edge.from].push(e);
        of[edge.to].push(e);
    }
    of
}

/// Picoseconds of a node with a value and of its edges, its neighbours being chosen.
fn around(graph: &CostGraph, edges: &[usize], node: usize, value: usize, choice: &[usize]) -> u64 {
    let at = |end: usize| if end == node { value } else { choice[end] };
    let edges = edges.iter().map(|&e| {
        let edge = &graph.edges[e];
        graph.matrices[edge.matrix].at(at(edge.from), at(edge.to))
    });
    graph.prices(node)[value].time().0 + edges.sum::<u64>()
}

/// Puts the stretch of another plan into this one that makes it fastest within the limit, if any does.
fn splice(graph: &CostGraph, limit: Bytes, best: &mut [usize], other: &[usize]) {
    let of = edges_of(graph);
    let (start_time, start_memory) = graph.total(best);
    let mut found: Option<(u64, usize, usize)> = None;
    for first in 0..best.len() {
        if best[first] == other[first] {
            continue;
        }
        let mut now = best.to_owned();
        let (mut time, mut memory) = (start_time, start_memory);
        for node in first..best.len() {
            time -= around(graph, &of[node], node, now[node], &now);
            memory = memory - graph.prices(node)[now[node]].memory;
            now[node] = other[node];
            time += around(graph, &of[node], node, now[node], &now);
            memory += graph.prices(node)[now[node]].memory;
            if memory > limit {
                break;
            }
            if time < found.map_or(start_time, |(least, ..)| least) {
                found = Some((time, first, node));
            }
        }
    }
    if let Some((_, first, last)) = found {
        best[first..=last].copy_from_slice(&other[first..=last]);
    }
}

/// Changes single nodes while that makes a plan faster within the limit.
fn improve(graph: &CostGraph, limit: Bytes, choice: &mut [usize]) {
    let of = edges_of(graph);
    let mut memory = graph.total(choice).1;
    for _ in 0..ROUNDS {
        let mut changed = false;
        for node in 0..choice.len() {
            let prices = graph.prices(node);
            let without = memory - prices[choice[node]].memory;
            let cost = |value: usize| around(graph, &of[node], node, value, choice);
            let best = (0..prices.len())
                .filter(|&value| without + prices[value].memory <= limit)
                .min_by_key(|&value| (cost(value), prices[value].memory, value));
            if let Some(best) = best.filter(|&best| cost(best) < cost(choice[node])) {
                choice[node] = best;
                memory = without + prices[best].memory;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
}
