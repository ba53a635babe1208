//! The communication operators of a plan, and how many are left when identical ones share a subgraph.
//!
//! MindSpore compiles a communication operator each time it stands in a graph, unless identical ones are calls of one
//! subgraph; `MS_COMM_COMPILER_OPT` says how many of them may be replaced.

use super::cost::{CostGraph, Subject};
use super::fusion::each_exchange;
use super::layout::runs;
use super::price::Pricer;
use super::problem::{Collective, Communications, Overlap, Reshard, SharedExchange};
use std::collections::HashMap;

/// What makes communication operators identical: what is done, over which axes, with how many bytes.
pub(super) type Signature = (Collective, Vec<usize>, u64);

/// Counts the communication operators of a plan on one device.
pub fn communications(
    pricer: &Pricer<'_>,
    graph: &CostGraph,
    choice: &[usize],
    reshards: &[Reshard],
    overlap: Option<&Overlap>,
) -> Communications {
    let mut all: Vec<Signature> = Vec::new();
    for step in reshards.iter().flat_map(|reshard| reshard.forward.iter().chain(&reshard.backward))
    {
        if step.operation != Collective::Slice {
            all.push((step.operation, step.axes.clone(), step.bytes.0));
        }
    }
    for (n, node) in graph.nodes.iter().enumerate() {
        let Subject::Operator(o) = node.subject else { continue };
        let strategy = &graph.kinds[node.kind].strategies[choice[n]];
        for (operation, axes, bytes) in pricer.collectives(o, strategy) {
            // One operator for each run of neighbouring axes.
            all.extend(
                runs(&axes)
                    .map(|run| (operation, run.iter().map(|&axis| axis.into()).collect(), bytes.0)),
            );
        }
    }
    let single;
    let exchanges: &[SharedExchange] = match overlap {
        Some(overlap) if !overlap.buckets.is_empty() => &overlap.buckets,
        _ => {
            single = each_exchange(pricer, graph, choice);
            &single
        }
    };
    all.extend(exchanges.iter().map(|e| (e.operation, e.axes.clone(), e.bytes.0)));
    let mut kinds = HashMap::new();
    for signature in all {
        *kinds.entry(signature).or_default() += 1;
    }
    count(kinds, pricer.options.reuse_limit)
}

/// Replaces operators of the most frequent kinds first, each kind whole, while the limit allows; 0 allows all.
pub(super) fn count(kinds: HashMap<Signature, u64>, limit: Option<u64>) -> Communications {
    let operators = kinds.values().sum();
    let mut counts: Vec<u64> = kinds.into_values().filter(|&count| count > 1).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let most = match limit {
        None => 0,
        Some(0) => u64::MAX,
        Some(limit) => limit,
    };
    let (mut replaced, mut subgraphs) = (0u64, 0u64);
    for count in counts {
        if replaced + count <= most {
            replaced += count;
            subgraphs += 1;
        }
    }
    Communications { operators, replaced, subgraphs, compiled: operators - replaced + subgraphs }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signatures(counts: &[u64]) -> HashMap<Signature, u64> {
        let kind = |(i, &n): (usize, &u64)| ((Collective::AllReduce, vec![0], i as u64), n);
        counts.iter().enumerate().map(kind).collect()
    }

    #[test]
    fn identical_operators_become_one_subgraph_up_to_the_limit() {
        // 5 + 3 + 1 operators: all of the first two kinds become two subgraphs, the last stays.
        let all = || signatures(&[5, 3, 1]);
        let whole = Communications { operators: 9, replaced: 8, subgraphs: 2, compiled: 3 };
        assert_eq!(count(all(), Some(0)), whole);
        // Room for six: the kind of five, and no more.
        let some = Communications { operators: 9, replaced: 5, subgraphs: 1, compiled: 5 };
        assert_eq!(count(all(), Some(6)), some);
        let none = Communications { operators: 9, replaced: 0, subgraphs: 0, compiled: 9 };
        assert_eq!(count(all(), None), none);
    }
}
