//! Dynamic programming over the cost graph: elimination without a memory limit; with one, a multiplier on memory and
//! labels of time and memory.
//!
//! The best multiplier gives a bound, plans over the limit and plans within it. Two of those are joined and improved. What
//! the bound shows to be in no better plan is left out, and fronts of labels settle the rest: they grow until none is
//! left out, which is a proof, or there are too many of them, and then the bound certifies the gap.

use super::answer::Found;
use super::charged::{among, inside, Dual, Solver};
use super::coarse::{self, Groups};
use super::cost::{CostGraph, Kind};
use super::eliminate::Eliminated;
use super::front;
use super::layout::Mesh;
use super::price::Price;
use crate::units::Bytes;

/// Labels for each choice that parts of a graph share, one attempt after the other.
const WIDTHS: [usize; 4] = [8, 64, 512, 1 << 16];
/// The same where a node has hundreds of strategies: these find plans, and the rest of a proof is a knapsack over all of them.
const NARROW: [usize; 2] = [8, 64];
/// The share of its time by which a plan may be slower than its bound and is left as it is, where a node has hundreds of
/// strategies.
const CLOSE: f64 = 1e-3;
/// The share by which the bound of the strategies that were taken may be above that of all: a tenth of it.
const NEAR: f64 = 1e-4;
/// Rounds of improvement of a plan.
const ROUNDS: usize = 20;

/// The fastest choice within a memory limit, or the best found with a bound.
pub fn solve(graph: &CostGraph, limit: Bytes) -> Found {
    solve_by(Sums::new(graph), graph, limit, &WIDTHS, vec![], u64::MAX)
}

/// The same from coarse to fine, however few strategies there are.
pub fn solve_in_groups(graph: &CostGraph, limit: Bytes) -> Found {
    solve_by(Sums::Groups(Groups::new(graph)), graph, limit, &WIDTHS, vec![], u64::MAX)
}

/// The same with sums that are worked out in a given way, from plans that are `known`. Where the bound shows that no plan
/// takes less than `most` picoseconds, any within the limit will do.
fn solve_by(
    mut sums: Sums<'_>,
    graph: &CostGraph,
    limit: Bytes,
    widths: &[usize],
    known: Vec<Vec<usize>>,
    most: u64,
) -> Found {
    let mut free = sums.least(&|price| price.time().0);
    if graph.total(&free.choice).1 <= limit {
        if graph.total(&free.choice).0 > free.bound {
            improve(graph, limit, &mut free.choice);
        }
        return Found { choice: free.choice, bound: Some(free.bound), fits: true };
    }
    if least_memory(graph) > limit {
        return smallest(graph);
    }
    let dual = sums.dual(graph, limit, free, known);
    if dual.bound >= most {
        return Found { choice: dual.within, bound: Some(dual.bound), fits: true };
    }
    let (plan, bound) = (sums.joined(&dual), dual.bound);
    match sums.limited(&dual, &plan, widths) {
        Some(Rest { plan, bound, .. }) => Found { choice: plan, bound: Some(bound), fits: true },
        None => Found { choice: plan, bound: Some(bound), fits: true },
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
    /// Whether every better plan is among them too.
    pub covers: bool,
}

/// Strategies of a part of a graph, which has those that are `kept`, by places in the graph.
fn each_among(kept: &[Vec<usize>], fewer: Vec<Vec<usize>>) -> Vec<Vec<usize>> {
    let of = |(kept, fewer): (&Vec<usize>, Vec<usize>)| fewer.iter().map(|&s| kept[s]).collect();
    kept.iter().zip(fewer).map(of).collect()
}

/// The strategies that the bound does not rule out: without a limit those of plans slower than the best by a `share` of its
/// time at most, within one those of plans that are no slower than the best found; where it rules out too few, those that
/// the plans tried take. `None` if tables are too large to tell, or nothing fits.
pub fn rest(graph: &CostGraph, limit: Bytes, share: f64) -> Option<Rest> {
    let mut sums = Sums::new(graph);
    let free = sums.least(&|price| price.time().0);
    if least_memory(graph) > limit {
        return None;
    }
    if graph.total(&free.choice).1 <= limit {
        let (plan, bound) = (free.choice.clone(), free.bound);
        let dual = Dual::without(graph, limit, free);
        return match (sums.promising(&dual, &plan, share), sums) {
            (None, Sums::Groups(_)) => Some(tried(&dual, plan)),
            (kept, _) => kept.map(|kept| Rest { kept, plan, bound, covers: true }),
        };
    }
    let dual = sums.dual(graph, limit, free, vec![]);
    let plan = sums.joined(&dual);
    match (sums.limited(&dual, &plan, &WIDTHS), sums) {
        (None, Sums::Groups(_)) => Some(tried(&dual, plan)),
        (found, _) => found,
    }
}

/// The strategies that a plan and those tried on the way to it take: better ones may take others.
fn tried(dual: &Dual<'_>, plan: Vec<usize>) -> Rest {
    let mut kept = dual.taken();
    for (kept, &s) in kept.iter_mut().zip(&plan) {
        if let Err(place) = kept.binary_search(&s) {
            kept.insert(place, s);
        }
    }
    Rest { kept, plan, bound: dual.bound, covers: false }
}

/// How the sums over a graph are worked out: with tables of all strategies, or from coarse to fine.
enum Sums<'a> {
    Whole(Solver<'a>),
    Groups(Groups<'a>),
}

impl<'a> Sums<'a> {
    fn new(graph: &'a CostGraph) -> Sums<'a> {
        if coarse::has_many(graph) {
            Sums::Groups(Groups::new(graph))
        } else {
            Sums::Whole(Solver::new(graph))
        }
    }

    /// The least sum in which `weigh` turns the price of a strategy into one number.
    fn least(&mut self, weigh: &dyn Fn(&Price) -> u64) -> Eliminated {
        match self {
            Sums::Whole(solver) => solver.least(weigh),
            Sums::Groups(groups) => groups.least(weigh),
        }
    }

    /// The best multiplier for a limit that the fastest plan exceeds; plans that are `known` lead to it.
    fn dual<'g>(
        &mut self,
        graph: &'g CostGraph,
        limit: Bytes,
        fastest: Eliminated,
        known: Vec<Vec<usize>>,
    ) -> Dual<'g> {
        let within = smallest(graph).choice;
        match self {
            Sums::Whole(solver) => {
                Dual::new(graph, limit, fastest, within, |weigh| solver.least(weigh))
            }
            Sums::Groups(groups) => {
                let least = |weigh: &dyn Fn(&Price) -> u64| groups.least(weigh);
                Dual::grown(graph, limit, fastest, within, known, NEAR, least)
            }
        }
    }

    /// A plan that the plans on both sides of the limit make together.
    fn joined(&self, dual: &Dual<'_>) -> Vec<usize> {
        let mut plan = match self {
            Sums::Whole(solver) => dual.mixed(solver),
            // The best plan lies among theirs, nodes of a kind taking now one's strategy and now another's.
            Sums::Groups(_) => {
                let taken = dual.taken();
                let part = dual.graph.part(&taken);
                among(
                    &taken,
                    &solve_by(Sums::new(&part), &part, dual.limit, &NARROW, vec![], u64::MAX)
                        .choice,
                )
            }
        };
        improve(dual.graph, dual.limit, &mut plan);
        plan
    }

    /// What is left below the limit, and the best plan found there, which may be no better than `plan`.
    fn limited(&mut self, dual: &Dual<'_>, plan: &[usize], widths: &[usize]) -> Option<Rest> {
        let kept = self.promising(dual, plan, 0.0)?;
        let part = dual.graph.part(&kept);
        let solver = Solver::new(&part);
        let dual = dual.inside(&part, &kept);
        let widths = match self {
            Sums::Whole(_) => widths,
            Sums::Groups(_) => &NARROW,
        };
        let (found, bound) = settled(&dual, &solver, inside(&kept, plan), widths);
        let fewer = promising(&dual, &solver, &found, 0.0)?;
        let plan = among(&kept, &found);
        Some(Rest { kept: each_among(&kept, fewer), plan, bound, covers: true })
    }

    /// The strategies of each node that may be part of a plan within the limit that is slower than `plan` by a `share` of its
    /// time at most, as the multiplier's sums tell; among them those of this plan and of the multiplier's. `None` if tables
    /// are too large to tell.
    fn promising(
        &mut self,
        dual: &Dual<'_>,
        plan: &[usize],
        share: f64,
    ) -> Option<Vec<Vec<usize>>> {
        match self {
            Sums::Whole(solver) => promising(dual, solver, plan, share),
            Sums::Groups(groups) => {
                let (most, known) = (most(dual, plan, share), [plan, &dual.over, &dual.within]);
                let kept = groups.promising(|price| dual.charge(price), most, &known)?;
                // These are all of a kind that any node may need: fewer are left of each node.
                let part = dual.graph.part(&kept);
                let (dual, plan) = (dual.inside(&part, &kept), inside(&kept, plan));
                let fewer = promising(&dual, &Solver::new(&part), &plan, share)?;
                Some(each_among(&kept, fewer))
            }
        }
    }
}

/// A plan within the limit that fronts make no faster, and what is known of the fastest: its time if they settled that.
fn settled(
    dual: &Dual<'_>,
    solver: &Solver<'_>,
    mut plan: Vec<usize>,
    widths: &[usize],
) -> (Vec<usize>, u64) {
    let time = |plan: &[usize]| dual.graph.total(plan).0;
    for &width in widths {
        let best = time(&plan);
        if best <= dual.bound {
            break;
        }
        let Some(found) = front::settle(dual, solver, best, width) else { break };
        plan = found.choice.unwrap_or(plan);
        if found.whole {
            let bound = time(&plan);
            return (plan, bound);
        }
        improve(dual.graph, dual.limit, &mut plan);
    }
    (plan, dual.bound)
}

/// What a plan within the limit that is slower than `plan` by a `share` of its time is charged at most.
fn most(dual: &Dual<'_>, plan: &[usize], share: f64) -> u64 {
    let best = dual.graph.total(plan).0;
    best.saturating_add((best as f64 * share) as u64).saturating_add(dual.credit())
}

/// [`Sums::promising`] with tables of all strategies.
fn promising(
    dual: &Dual<'_>,
    solver: &Solver<'_>,
    plan: &[usize],
    share: f64,
) -> Option<Vec<Vec<usize>>> {
    let most = most(dual, plan, share);
    let completions = dual.charged(solver).completions(most)?;
    let kept = |(node, through): (usize, &Vec<f64>)| {
        let known = [plan[node], dual.over[node], dual.within[node]];
        let keeps = |&s: &usize| through[s] <= most as f64 || known.contains(&s);
        (0..through.len()).filter(keeps).collect()
    };
    Some(completions.through.iter().enumerate().map(kept).collect())
}

/// The same, and where that leaves a gap also the best plans of those that take axes of the mesh whole, all or all but one,
/// of which there are few: a large table may be too much only for all strategies.
pub fn solve_on(graph: &CostGraph, mesh: &Mesh, limit: Bytes) -> Found {
    let known = if coarse::has_many(graph) { on_whole_axes(graph, mesh, limit) } else { vec![] };
    let mut best = solve_by(Sums::new(graph), graph, limit, &WIDTHS, known, u64::MAX);
    let time = |choice: &[usize]| graph.total(choice).0;
    let near = if coarse::has_many(graph) { CLOSE } else { 0.0 };
    let reached = |bound: u64| bound as f64 >= time(&best.choice) as f64 * (1.0 - near);
    if !best.fits || best.bound.is_some_and(reached) {
        return best;
    }
    let given = mesh.axes.last().map_or(0, |axis| axis.given + 1);
    let exceptions = (0..given).filter(|_| given > 1).map(Some);
    for exception in [None].into_iter().chain(exceptions) {
        let kept = graph.kept(|strategy| strategy.is_whole(mesh, exception));
        if kept.iter().enumerate().all(|(node, kept)| kept.len() == graph.count(node)) {
            continue;
        }
        let part = graph.part(&kept);
        let most = time(&best.choice);
        let found = solve_by(Sums::new(&part), &part, limit, &WIDTHS, vec![], most);
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

/// The plans around a memory limit of those that take axes of the mesh whole.
fn on_whole_axes(graph: &CostGraph, mesh: &Mesh, limit: Bytes) -> Vec<Vec<usize>> {
    let kept = graph.kept(|strategy| strategy.is_whole(mesh, None));
    let part = graph.part(&kept);
    let mut sums = Sums::new(&part);
    let free = sums.least(&|price| price.time().0);
    if part.total(&free.choice).1 <= limit || least_memory(&part) > limit {
        return vec![among(&kept, &free.choice)];
    }
    let Dual { over, within, .. } = sums.dual(&part, limit, free, vec![]);
    [over, within].iter().map(|plan| among(&kept, plan)).collect()
}

/// Memory below which no plan lies: it is a sum over nodes, so each takes its least.
pub fn least_memory(graph: &CostGraph) -> Bytes {
    let least = |node| graph.prices(node).iter().map(|p| p.memory).min().unwrap_or(Bytes::ZERO);
    (0..graph.nodes.len()).map(least).sum()
}

/// The fastest plan among those of the least memory.
pub fn smallest(graph: &CostGraph) -> Found {
    let least = |kind: &Kind| -> Vec<usize> {
        let least = kind.prices.iter().map(|p| p.memory).min().unwrap_or(Bytes::ZERO);
        (0..kind.prices.len()).filter(|&s| kind.prices[s].memory == least).collect()
    };
    let kinds: Vec<Vec<usize>> = graph.kinds.iter().map(least).collect();
    let kept: Vec<Vec<usize>> = graph.nodes.iter().map(|node| kinds[node.kind].clone()).collect();
    let part = graph.part(&kept);
    let choice = Sums::new(&part).least(&|price| price.time().0).choice;
    Found { choice: among(&kept, &choice), bound: None, fits: false }
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
    let of = graph.edges_of();
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
