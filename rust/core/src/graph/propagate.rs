//! From the operators that are set to all others: each next to a settled one takes the strategy with the least reshards.
//!
//! This is MindSpore's sharding propagation. Greedy: it proves nothing.

use super::answer::Found;
use super::cost::CostGraph;
use crate::units::Bytes;
use std::collections::VecDeque;

/// Strategies by propagation from the nodes `set`; if there are none, from the dearest node at its cheapest.
pub fn solve(graph: &CostGraph, set: &[bool], limit: Bytes) -> Found {
    let nodes = graph.nodes.len();
    complete(graph, vec![None; nodes], (0..nodes).filter(|&node| set[node]).collect(), limit)
}

/// Strategies for the nodes that have none in `choice`, those of `queue` first.
pub fn complete(
    graph: &CostGraph,
    mut choice: Vec<Option<usize>>,
    mut queue: VecDeque<usize>,
    limit: Bytes,
) -> Found {
    let nodes = graph.nodes.len();
    let mut around: Vec<Vec<usize>> = vec![vec![]; nodes];
    for (e, edge) in graph.edges.iter().enumerate() {
        around[edge.from].push(e);
        around[edge.to].push(e);
    }
    let own = |node: usize, s: usize| graph.prices(node)[s].time().0;
    let cheapest =
        |node: usize| (0..graph.count(node)).min_by_key(|&s| (own(node, s), s)).unwrap_or_default();
    let dearest = |choice: &[Option<usize>]| {
        let open = (0..nodes).filter(|&node| choice[node].is_none());
        open.max_by_key(|&node| (own(node, cheapest(node)), nodes - node))
    };
    if queue.is_empty() {
        queue.extend(dearest(&choice));
    }
    // A part of the graph that nothing set reaches starts at its own dearest node.
    while let Some(node) = queue.pop_front().or_else(|| dearest(&choice)) {
        if choice[node].is_some() {
            continue;
        }
        let reshards = |s: usize| -> u64 {
            let cells = around[node].iter().filter_map(|&e| {
                let edge = &graph.edges[e];
                let at = |end: usize| if end == node { Some(s) } else { choice[end] };
                Some(graph.matrices[edge.matrix].at(at(edge.from)?, at(edge.to)?))
            });
            cells.sum()
        };
        let best = (0..graph.count(node)).min_by_key(|&s| (reshards(s), own(node, s), s));
        choice[node] = best;
        for &e in &around[node] {
            let edge = &graph.edges[e];
            queue.push_back(if edge.from == node { edge.to } else { edge.from });
        }
    }
    let choice: Vec<usize> = choice.into_iter().map(Option::unwrap_or_default).collect();
    let fits = graph.total(&choice).1 <= limit;
    Found { choice, bound: None, fits }
}
