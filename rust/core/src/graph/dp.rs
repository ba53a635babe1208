//! Dynamic programming over the cost graph: elimination without a memory limit; with one, a multiplier on memory and
//! labels of time and memory.
//!
//! With a limit the least of time plus multiplier times memory, less the multiplier times the limit, is a lower bound
//! for every multiplier (Lagrange). The multiplier is bisected; plans on both sides of it are joined and improved, and
//! the bound says how much could be left. Small graphs are then settled by elimination with Pareto fronts.

use super::answer::Found;
use super::cost::CostGraph;
use super::eliminate::{Eliminated, Tables};
use super::front;
use crate::units::{Bytes, Time};

/// Binary digits of the multiplier below one picosecond a byte.
const FRACTION: u32 = 24;
/// A microsecond a byte: more than memory is worth anywhere.
const HIGHEST: u64 = 1 << (FRACTION + 20);
/// Halvings of the multiplier's interval; beyond these its last digits no longer matter.
const HALVINGS: usize = 40;
/// Rounds of single changes.
const ROUNDS: usize = 20;
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
    let mut dual = Dual { graph, limit, over: free.choice, within: None, bound: free.bound };
    dual.bisect();
    let Dual { over, within, mut bound, .. } = dual;
    let mut best = within.unwrap_or_else(|| smallest(graph).choice);
    let candidates = [joined(graph, limit, &over, &best), joined(graph, limit, &best, &over)];
    for candidate in candidates.into_iter().flatten() {
        if graph.total(&candidate).0 < graph.total(&best).0 {
            best = candidate;
        }
    }
    improve(graph, limit, &mut best);
    let time = graph.total(&best).0;
    if bound < time {
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
    /// A fast plan over the limit.
    over: Vec<usize>,
    /// The fastest plan found within it.
    within: Option<Vec<usize>>,
    bound: u64,
}

impl Dual<'_> {
    fn bisect(&mut self) {
        let (mut low, mut high) = (0u64, 1u64 << FRACTION);
        while !self.try_multiplier(high) && high < HIGHEST {
            (low, high) = (high, high << 2);
        }
        for _ in 0..HALVINGS {
            let middle = low + (high - low) / 2;
            if middle == low {
                break;
            }
            if self.try_multiplier(middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
    }

    /// Solves with a multiplier; whether the plan fits.
    fn try_multiplier(&mut self, multiplier: u64) -> bool {
        let charge = |memory: u64| (u128::from(memory) * u128::from(multiplier)) >> FRACTION;
        let found = eliminated(self.graph, |time, memory| {
            time.saturating_add(charge(memory).min(LARGEST_CHARGE) as u64)
        });
        // Charges of nodes are rounded down, the limit's is rounded up: the bound stays below.
        let credit = u64::try_from(charge(self.limit.0) + 1).unwrap_or(u64::MAX);
        self.bound = self.bound.max(found.bound.saturating_sub(credit));
        let (time, memory) = self.graph.total(&found.choice);
        if memory > self.limit {
            self.over = found.choice;
            return false;
        }
        let better = |within: &Vec<usize>| time < self.graph.total(within).0;
        if self.within.as_ref().is_none_or(better) {
            self.within = Some(found.choice);
        }
        true
    }
}

/// The fastest plan within the limit that follows `first` up to some node and `second` from there on.
fn joined(
    graph: &CostGraph,
    limit: Bytes,
    first: &[usize],
    second: &[usize],
) -> Option<Vec<usize>> {
    let n = graph.nodes.len();
    let mut into: Vec<Vec<usize>> = vec![vec![]; n];
    for (e, edge) in graph.edges.iter().enumerate() {
        into[edge.from].push(e);
        into[edge.to].push(e);
    }
    let mut now = second.to_vec();
    let (mut time, mut memory) = graph.total(&now);
    let mut best: Option<(u64, usize)> = (memory <= limit).then_some((time, 0));
    for node in 0..n {
        let around = |choice: &[usize]| {
            let edges = into[node].iter().map(|&e| {
                let edge = &graph.edges[e];
                graph.matrices[edge.matrix].at(choice[edge.from], choice[edge.to])
            });
            graph.prices(node)[choice[node]].time().0 + edges.sum::<u64>()
        };
        let (time_before, price_before) = (around(&now), graph.prices(node)[now[node]].memory);
        now[node] = first[node];
        time = time - time_before + around(&now);
        memory = Bytes(memory.0 - price_before.0 + graph.prices(node)[now[node]].memory.0);
        if memory <= limit && best.is_none_or(|(least, _)| time < least) {
            best = Some((time, node + 1));
        }
    }
    best.map(|(_, to)| first[..to].iter().chain(&second[to..]).copied().collect())
}

/// Changes single nodes while that makes a plan faster within the limit.
fn improve(graph: &CostGraph, limit: Bytes, choice: &mut [usize]) {
    let n = graph.nodes.len();
    let mut around: Vec<Vec<usize>> = vec![vec![]; n];
    for (e, edge) in graph.edges.iter().enumerate() {
        around[edge.from].push(e);
        around[edge.to].push(e);
    }
    let mut memory = graph.total(choice).1 .0;
    for _ in 0..ROUNDS {
        let mut changed = false;
        for node in 0..n {
            let cost = |value: usize, choice: &[usize]| -> u64 {
                let edges = around[node].iter().map(|&e| {
                    let edge = &graph.edges[e];
                    let at = |end: usize| if end == node { value } else { choice[end] };
                    graph.matrices[edge.matrix].at(at(edge.from), at(edge.to))
                });
                graph.prices(node)[value].time().0 + edges.sum::<u64>()
            };
            let prices = graph.prices(node);
            let without = memory - prices[choice[node]].memory.0;
            let best = (0..prices.len())
                .filter(|&value| without + prices[value].memory.0 <= limit.0)
                .min_by_key(|&value| (cost(value, choice), prices[value].memory.0, value));
            if let Some(best) = best.filter(|&best| cost(best, choice) < cost(choice[node], choice))
            {
                choice[node] = best;
                memory = without + prices[best].memory.0;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
}
