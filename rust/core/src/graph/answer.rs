//! From a choice to the answer: every price and reshard once more, item by item.

use super::communications::communications;
use super::cost::{CostGraph, Subject};
use super::fusion;
use super::ir::Role;
use super::layout::Layout;
use super::price::{steps_time, summands, Pricer};
use super::problem::*;
use crate::units::{Bytes, Time};

/// What a method has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// A strategy for each node of the cost graph.
    pub choice: Vec<usize>,
    /// Picoseconds below which no plan lies, if the method knows.
    pub bound: Option<u64>,
    /// Whether the plan fits in memory.
    pub fits: bool,
}

/// The answer for a choice. Time and memory are worked out from the strategies themselves, not from the tables that
/// the search used.
pub fn answer(
    problem: &ShardingProblem,
    pricer: &Pricer<'_>,
    graph: &CostGraph,
    found: &Found,
    limit: Bytes,
    notes: Vec<String>,
) -> Sharding {
    let network = pricer.network;
    let mesh = pricer.mesh;
    let document = &network.graph;
    let mut cost = ShardingCost {
        total_ps: Time::ZERO,
        compute_ps: Time::ZERO,
        communication_ps: Time::ZERO,
        recompute_ps: Time::ZERO,
        reshard_ps: Time::ZERO,
        gradient_ps: Time::ZERO,
        optimizer_ps: Time::ZERO,
        hidden_ps: Time::ZERO,
        memory_bytes: Bytes::ZERO,
        limit_bytes: limit,
    };
    let mut operators = Vec::with_capacity(document.operators.len());
    let mut layouts: Vec<Option<Layout>> = vec![None; document.tensors.len()];
    for (n, node) in graph.nodes.iter().enumerate() {
        let kind = &graph.kinds[node.kind];
        let strategy = &kind.strategies[found.choice[n]];
        let price = match node.subject {
            Subject::Operator(o) => pricer.operator(o, strategy),
            Subject::Tensor(t) => pricer.source(t, &strategy.output(&kind.loops, 0)),
        };
        cost.compute_ps += price.compute;
        cost.communication_ps += price.communication;
        cost.recompute_ps += price.recompute;
        cost.gradient_ps += price.gradient;
        cost.optimizer_ps += price.optimizer;
        cost.memory_bytes += price.memory;
        match node.subject {
            Subject::Tensor(t) => layouts[t] = Some(strategy.output(&kind.loops, 0)),
            Subject::Operator(o) => {
                let (inputs, outputs) = (&network.inputs[o], &network.outputs[o]);
                for (place, &t) in inputs.iter().enumerate() {
                    if pricer.is_own(t) {
                        layouts[t] = Some(strategy.input(&kind.loops, place));
                    }
                }
                let read = |i| strategy.input(&kind.loops, i).cuts(mesh);
                let written = |i| strategy.output(&kind.loops, i).cuts(mesh);
                let sharded = ShardedOperator {
                    name: document.operators[o].name.clone(),
                    inputs: (0..inputs.len()).map(read).collect(),
                    outputs: (0..outputs.len()).map(written).collect(),
                    summands: summands(strategy, &kind.loops),
                    recompute: strategy.recompute,
                    compute_ps: price.compute,
                    communication_ps: price.communication,
                    recompute_ps: price.recompute,
                    gradient_ps: price.gradient,
                    optimizer_ps: price.optimizer,
                    memory_bytes: price.memory,
                };
                operators.push((o, sharded));
            }
        }
    }
    let mut reshards = Vec::new();
    for edge in &graph.edges {
        let reader = &graph.kinds[graph.nodes[edge.to].kind];
        let strategy = &reader.strategies[found.choice[edge.to]];
        for &(tensor, output, input) in &edge.tensors {
            let written = graph.written(edge.from, found.choice[edge.from], output);
            let Subject::Operator(operator) = graph.nodes[edge.to].subject else { continue };
            let (forward, backward) =
                pricer.transfer(tensor, &written, (operator, strategy), input);
            let time_ps = steps_time(&forward) + steps_time(&backward);
            cost.reshard_ps += time_ps;
            if forward.is_empty() && backward.is_empty() {
                continue;
            }
            let name = |subject| match subject {
                Subject::Operator(o) => Some(document.operators[o].name.clone()),
                Subject::Tensor(_) => None,
            };
            reshards.push(Reshard {
                tensor: document.tensors[tensor].name.clone(),
                writer: name(graph.nodes[edge.from].subject),
                reader: name(graph.nodes[edge.to].subject).unwrap_or_default(),
                forward,
                backward,
                time_ps,
            });
        }
    }
    cost.total_ps = cost.compute_ps
        + cost.communication_ps
        + cost.recompute_ps
        + cost.reshard_ps
        + cost.gradient_ps
        + cost.optimizer_ps;
    let room = Bytes(limit.0.saturating_sub(cost.memory_bytes.0));
    let overlap = fusion::overlap(pricer, graph, &found.choice, room);
    if let Some(overlap) = &overlap {
        let exposed = overlap.gradients_exposed_ps + overlap.gathers_exposed_ps;
        // Rounding a picosecond up each time may leave more than their sum.
        cost.hidden_ps = cost.gradient_ps - exposed.min(cost.gradient_ps);
        cost.total_ps = cost.total_ps - cost.hidden_ps;
        cost.memory_bytes += overlap.buffer_bytes;
    }
    let communications = communications(pricer, graph, &found.choice, &reshards, overlap.as_ref());
    operators.sort_by_key(|(o, _)| *o);
    let tensors = document
        .tensors
        .iter()
        .zip(layouts)
        .enumerate()
        .filter(|(_, (tensor, _))| tensor.role != Role::Activation)
        .map(|(t, (tensor, layout))| {
            let layout = layout.unwrap_or_else(|| Layout::replicated(tensor.shape.len()));
            let axes = layout.dims.iter().map(|axes| axes.iter().map(|&i| i.into()).collect());
            let axes: Vec<Vec<usize>> = axes.collect();
            let uneven = network.uneven.iter().find(|(table, _)| *table == t);
            let rows = uneven.map(|(_, rows)| rows.clone());
            ShardedTensor { name: tensor.name.clone(), axes, rows }
        })
        .collect();
    Sharding {
        schema: SHARDING_SCHEMA.to_owned(),
        problem: problem.clone(),
        proof: proof(found, cost.total_ps),
        fits: found.fits && cost.memory_bytes <= limit,
        mesh: mesh.axes.iter().map(|axis| axis.size).collect(),
        operators: operators.into_iter().map(|(_, operator)| operator).collect(),
        tensors,
        reshards,
        communications,
        overlap,
        cost,
        strategies: (0..graph.nodes.len()).map(|n| graph.count(n) as u64).sum(),
        notes,
    }
}

/// How good a plan of this time is known to be. Without a plan that fits nothing is proved about the fastest.
fn proof(found: &Found, total: Time) -> Proof {
    let bound = found.bound.filter(|_| found.fits).map(|bound| Time(bound.min(total.0)));
    let gap = bound.map(|bound| (total - bound).0 as f64 / total.0.max(1) as f64);
    Proof { exact: bound == Some(total), bound_ps: bound, gap }
}
