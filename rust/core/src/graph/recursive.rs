//! Division of the devices by a prime again and again: each time every operator cuts one more of its axes, or none.
//!
//! This is the order of decisions of MindSpore's double recursive search (Wang et al. 2021, "Double-Recursive
//! Automatic Parallelism"), for any device count. Greedy: it proves nothing.

use super::answer::Found;
use super::cost::CostGraph;
use super::layout::Mesh;
use super::strategy::Strategy;
use crate::units::Bytes;

/// Strategies by recursion.
pub fn solve(graph: &CostGraph, mesh: &Mesh, limit: Bytes) -> Found {
    let nodes = graph.nodes.len();
    let strategies = |node: usize| &graph.kinds[graph.nodes[node].kind].strategies;
    let mut choice: Vec<usize> = (0..nodes)
        .map(|node| {
            let uncut = |s: &Strategy| s.axes.iter().all(Vec::is_empty);
            // An operator that is set has its strategies alone; the cheapest of them stays.
            let cheapest = || (0..graph.count(node)).min_by_key(|&s| graph.prices(node)[s].time());
            strategies(node).iter().position(uncut).or_else(cheapest).unwrap_or_default()
        })
        .collect();
    let around = graph.edges_of();
    for axis in &mesh.axes {
        let alike: Vec<u8> = (0..mesh.axes.len())
            .filter(|&i| mesh.axes[i].given == axis.given && mesh.axes[i].size == axis.size)
            .map(|i| i as u8)
            .collect();
        // Of interchangeable axes only the number that cut a loop counts; the outer loop has the outer ones.
        let counts = |s: &Strategy| -> Vec<(usize, usize)> {
            s.axes
                .iter()
                .map(|axes| {
                    let same = axes.iter().filter(|i| alike.contains(i)).count();
                    (same, axes.len() - same)
                })
                .collect()
        };
        let mut done = vec![false; nodes];
        for node in 0..nodes {
            let now = counts(&strategies(node)[choice[node]]);
            let next = |s: &Strategy| {
                let then = counts(s);
                let more = |(a, b): (&(usize, usize), &(usize, usize))| {
                    (b.1 == a.1 && b.0 >= a.0).then(|| b.0 - a.0)
                };
                let steps: Option<Vec<usize>> = now.iter().zip(&then).map(more).collect();
                steps.is_some_and(|steps| steps.iter().sum::<usize>() <= 1)
            };
            let cost = |s: usize| {
                let edges = around[node].iter().map(|&e| &graph.edges[e]);
                let settled = edges.filter(|e| done[if e.from == node { e.to } else { e.from }]);
                let reshards: u64 = settled
                    .map(|e| {
                        let at = |end: usize| if end == node { s } else { choice[end] };
                        graph.matrices[e.matrix].at(at(e.from), at(e.to))
                    })
                    .sum();
                graph.prices(node)[s].time().0 + reshards
            };
            let reachable = (0..graph.count(node)).filter(|&s| next(&strategies(node)[s]));
            choice[node] = reachable.min_by_key(|&s| (cost(s), s)).unwrap_or(choice[node]);
            done[node] = true;
        }
    }
    let fits = graph.total(&choice).1 <= limit;
    Found { choice, bound: None, fits }
}
