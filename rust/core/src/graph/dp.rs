//! Dynamic programming over the cost graph: elimination without a memory limit; with one, a multiplier on memory and
//! labels of time and memory.
//!
//! The best multiplier gives a bound, plans over the limit and plans within it. Two of those are joined and improved. What
//! the bound shows to be in no better plan is left out, and fronts of labels settle the rest: they grow until none is
//! left out, which is a proof, or there are too many of them, and then the bound certifies the gap.

use super::answer::Found;
use super::charged::{among, inside, Dual, Solver};
use super::cost::CostGraph;
use super::front;
use super::layout::Mesh;
use crate::units::{Bytes, Time};

/// Labels for each choice that parts of a graph share, one attempt after the other.
const WIDTHS: [usize; 4] = [8, 64, 512, 1 << 16];
/// Rounds of improvement of a plan.
const ROUNDS: usize = 20;
/// Longer than any plan, and short enough that a few of them can be added: 13 days.
const NEVER: Time = Time(1 << 60);

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
    let dual = Dual::new(&solver, limit, free, smallest(graph).choice);
    let plan = joined(&dual);
    match limited(&dual, &plan) {
        Some(Rest { plan, bound, .. }) => Found { choice: plan, bound: Some(bound), fits: true },
        None => Found { choice: plan, bound: Some(dual.bound), fits: true },
    }
}

/// What a bound leaves of a graph for another solver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    /// The strategies of each node that may be part of a better plan, by place in its kind.
    pub kept: Vec<Vec<usize>>,
    /// The best plan known: it is among them.
    pub plan: Vec<usize>,
    /// Picoseconds below which no plan lies.
    pub bound: u64,
}

/// The strategies that the bound does not rule out: without a limit those of plans slower than the best by a `share` of its
/// time at most, within one those of plans that are no slower than the best found. `None` if tables are too large to tell,
/// or nothing fits.
pub fn rest(graph: &CostGraph, limit: Bytes, share: f64) -> Option<Rest> {
    let solver = Solver::new(graph);
    let free = solver.fastest();
    if least_memory(graph) > limit {
        return None;
    }
    if graph.total(&free.choice).1 <= limit {
        let (plan, bound) = (free.choice.clone(), free.bound);
        let kept = promising(&Dual::without(&solver, limit, free), &plan, share)?;
        return Some(Rest { kept, plan, bound });
    }
    let dual = Dual::new(&solver, limit, free, smallest(graph).choice);
    limited(&dual, &joined(&dual))
}

/// What is left below the limit, and the best plan found there, which may be no better than `plan`.
fn limited(dual: &Dual<'_>, plan: &[usize]) -> Option<Rest> {
    let kept = promising(dual, plan, 0.0)?;
    let part = dual.solver.graph.part(&kept);
    let solver = Solver::new(&part);
    let dual = dual.inside(&solver, &kept);
    let (plan, bound) = settled(&dual, inside(&kept, plan));
    let fewer = promising(&dual, &plan, 0.0)?;
    let of = |(kept, fewer): (&Vec<usize>, Vec<usize>)| fewer.iter().map(|&s| kept[s]).collect();
    let plan = among(&kept, &plan);
    Some(Rest { kept: kept.iter().zip(fewer).map(of).collect(), plan, bound })
}

/// A plan that the plans on both sides of the limit make together.
fn joined(dual: &Dual<'_>) -> Vec<usize> {
    let mut plan = dual.mixed();
    improve(dual.solver.graph, dual.limit, &mut plan);
    plan
}

/// A plan within the limit that fronts make no faster, and what is known of the fastest: its time if they settled that.
fn settled(dual: &Dual<'_>, mut plan: Vec<usize>) -> (Vec<usize>, u64) {
    let time = |plan: &[usize]| dual.solver.graph.total(plan).0;
    for width in WIDTHS {
        let best = time(&plan);
        if best <= dual.bound {
            break;
        }
        let Some(found) = front::settle(dual, best, width) else { break };
        plan = found.choice.unwrap_or(plan);
        if found.whole {
            let bound = time(&plan);
            return (plan, bound);
        }
        improve(dual.solver.graph, dual.limit, &mut plan);
    }
    (plan, dual.bound)
}

/// The strategies of each node that may be part of a plan within the limit that is slower than `plan` by a `share` of its
/// time at most, as the multiplier's sums tell; among them those of this plan and of the multiplier's. `None` if tables are
/// too large to tell.
fn promising(dual: &Dual<'_>, plan: &[usize], share: f64) -> Option<Vec<Vec<usize>>> {
    let charged = dual.charged();
    let best = dual.solver.graph.total(plan).0;
    let most = best.saturating_add((best as f64 * share) as u64);
    let most = most.saturating_add(charged.credit(dual.limit));
    let completions = charged.completions(most)?;
    let kept = |(node, through): (usize, &Vec<u64>)| {
        let known = [plan[node], dual.over[node], dual.within[node]];
        let keeps = |&s: &usize| through[s] <= most || known.contains(&s);
        (0..through.len()).filter(keeps).collect()
    };
    Some(completions.through.iter().enumerate().map(kept).collect())
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
        let kept = graph.kept(|strategy| strategy.is_whole(mesh, exception));
        if kept.iter().enumerate().all(|(node, kept)| kept.len() == graph.count(node)) {
            continue;
        }
        let found = solve(&graph.part(&kept), limit);
        let mut choice = among(&kept, &found.choice);
        if found.fits {
            improve(graph, limit, &mut choice);
            if time(&choice) < time(&best.choice) {
                best.choice = choice;
            }
        }
    }
    best
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
