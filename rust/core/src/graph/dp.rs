//! Dynamic programming over the cost graph: elimination without a memory limit; with one, a multiplier on memory and
//! labels of time and memory.
//!
//! With a limit the least of time plus multiplier times memory, less the multiplier times the limit, is a lower bound
//! for every multiplier (Lagrange). The best multiplier is found; the plans on both sides of it are joined and improved, and
//! the bound says how much could be left. Small graphs are then settled by elimination with Pareto fronts.

use super::answer::Found;
use super::cost::CostGraph;
use super::eliminate::{Eliminated, Tables};
use super::front;
use crate::units::{Bytes, Time};

/// Binary digits of the multiplier below one picosecond a byte.
const FRACTION: u32 = 24;
/// Multipliers tried; each is where two plans' lines cross, and a dozen suffices.
const MULTIPLIERS: usize = 40;
/// Rounds of improvement of a plan.
const ROUNDS: usize = 20;
/// Nodes of a graph that is settled by fronts; in larger ones the labels are too many.
const SETTLED: usize = 64;
/// Longer than any plan, and short enough that a few of them can be added: 13 days.
const NEVER: Time = Time(1 << 60);
/// The most that memory is charged a node; sums over thousands of nodes stay in 64 bits.
const LARGEST_CHARGE: u128 = 1 << 50;

/// The fastest choice within a memory limit, or the best found with a bound.
pub fn solve(graph: &CostGraph, limit: Bytes) -> Found {
    let free = eliminated(graph, |time, _| time);
    if graph.total(&free.choice).1 <= limit {
        return Found { choice: free.choice, bound: Some(free.bound), fits: true };
    }
    if least_memory(graph) > limit {
        return smallest(graph);
    }
    let small = smallest(graph).choice;
    let mut dual = Dual { graph, limit, over: free.choice, within: small, bound: free.bound };
    dual.maximise();
    let Dual { over, within, mut bound, .. } = dual;
    let mut best = within.clone();
    for _ in 0..ROUNDS {
        let before = graph.total(&best).0;
        for other in [&over, &within] {
            splice(graph, limit, &mut best, other);
        }
        improve(graph, limit, &mut best);
        if graph.total(&best).0 == before {
            break;
        }
    }
    let time = graph.total(&best).0;
    if bound < time && graph.nodes.len() <= SETTLED {
        if let Some(settled) = front::settle(graph, limit, time) {
            best = settled.unwrap_or(best);
            bound = graph.total(&best).0;
        }
    }
    Found { choice: best, bound: Some(bound), fits: true }
}

/// The least of a sum in which `weigh` turns the time and memory of a strategy into one number.
fn eliminated(graph: &CostGraph, weigh: impl Fn(u64, u64) -> u64) -> Eliminated {
    let sizes = (0..graph.nodes.len()).map(|node| graph.count(node)).collect();
    let mut tables = Tables::new(sizes);
    let own: Vec<usize> = graph
        .kinds
        .iter()
        .map(|kind| {
            let cells = kind.prices.iter().map(|p| weigh(p.time().0, p.memory.0));
            tables.enter(cells.collect())
        })
        .collect();
    let pairs: Vec<usize> =
        graph.matrices.iter().map(|matrix| tables.enter(matrix.cells.clone())).collect();
    for (n, node) in graph.nodes.iter().enumerate() {
        tables.add_one(n, own[node.kind]);
    }
    for edge in &graph.edges {
        tables.add_two(edge.from, edge.to, pairs[edge.matrix]);
    }
    tables.eliminate()
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
    let choice = eliminated(&restricted, |time, _| time).choice;
    Found { choice, bound: None, fits: false }
}

/// The state of the search for the best multiplier.
struct Dual<'a> {
    graph: &'a CostGraph,
    limit: Bytes,
    /// The fastest plan found that is over the limit, for the highest multiplier.
    over: Vec<usize>,
    /// A plan within it, for the lowest multiplier.
    within: Vec<usize>,
    bound: u64,
}

impl Dual<'_> {
    /// A plan's time plus its charged memory is a line over the multiplier, and the bound follows the lowest line. Where the
    /// lines of the two plans cross is the best multiplier, or there a lower line takes the place of one of them.
    fn maximise(&mut self) {
        for _ in 0..MULTIPLIERS {
            let (slow, little) = self.graph.total(&self.within);
            let (fast, much) = self.graph.total(&self.over);
            let rise = u128::from(slow.saturating_sub(fast)) << FRACTION;
            let multiplier = rise / u128::from((much - little).0.max(1));
            let charge = |memory: Bytes| (u128::from(memory.0) * multiplier) >> FRACTION;
            let found = eliminated(self.graph, |time, memory| {
                time.saturating_add(charge(Bytes(memory)).min(LARGEST_CHARGE) as u64)
            });
            // Charges of nodes are rounded down, the limit's is rounded up: the bound stays below.
            let credit = u64::try_from(charge(self.limit) + 1).unwrap_or(u64::MAX);
            self.bound = self.bound.max(found.bound.saturating_sub(credit));
            let (time, memory) = self.graph.total(&found.choice);
            let height = |time: u64, memory: Bytes| u128::from(time) + charge(memory);
            // Rounding may leave the lines' heights apart by a picosecond a node.
            let nodes = self.graph.nodes.len() as u128;
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
