//! Elimination with Pareto fronts of time and memory: the fastest plan within a memory limit, for small graphs.

use super::cost::CostGraph;
use crate::units::Bytes;
use std::collections::{BTreeSet, HashMap};

/// A partial plan that no other beats in both time and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Label {
    time: u64,
    memory: u64,
    /// Place in [`Search::traces`].
    trace: usize,
}

/// How a label came about: values given to variables, on top of other labels.
#[derive(Clone, Debug)]
enum Trace {
    Nothing,
    Value { variable: usize, value: usize, of: usize },
    Both(usize, usize),
}

/// Labels made at most; beyond it the attempt is given up.
const LARGEST: usize = 1 << 20;

/// A front for each choice of the variables of a scope, which is ascending; cells in row-major order.
#[derive(Clone, Debug)]
struct Fronts {
    scope: Vec<usize>,
    cells: Vec<Vec<Label>>,
}

struct Search<'a> {
    graph: &'a CostGraph,
    /// A plan must take less than this.
    best: u64,
    /// Memory beyond what each node takes at least.
    slack: u64,
    traces: Vec<Trace>,
}

/// The fastest plan within the limit if it takes less than `best` picoseconds, `Some(None)` if none does; `None` if
/// the graph is too large to tell.
pub fn settle(graph: &CostGraph, limit: Bytes, best: u64) -> Option<Option<Vec<usize>>> {
    let n = graph.nodes.len();
    let least: Vec<u64> = (0..n)
        .map(|node| graph.prices(node).iter().map(|p| p.memory.0).min().unwrap_or(0))
        .collect();
    let slack = limit.0.checked_sub(least.iter().sum())?;
    let mut search = Search { graph, best, slack, traces: vec![Trace::Nothing] };
    let mut tables: Vec<Fronts> = Vec::new();
    for (node, least) in least.iter().enumerate() {
        let own = |p: &super::price::Price| {
            vec![Label { time: p.time().0, memory: p.memory.0 - least, trace: 0 }]
        };
        tables.push(Fronts {
            scope: vec![node],
            cells: graph.prices(node).iter().map(own).collect(),
        });
    }
    for edge in &graph.edges {
        let cells = graph.matrices[edge.matrix].cells.iter();
        let cells = cells.map(|&time| vec![Label { time, memory: 0, trace: 0 }]).collect();
        tables.push(Fronts { scope: vec![edge.from, edge.to], cells });
    }
    let mut left: BTreeSet<usize> = (0..n).collect();
    let mut done = vec![Label { time: 0, memory: 0, trace: 0 }];
    while let Some(v) = search.cheapest(&left, &tables) {
        left.remove(&v);
        let (named, rest): (Vec<_>, Vec<_>) =
            tables.into_iter().partition(|table| table.scope.contains(&v));
        tables = rest;
        let out = search.take_out(v, &named)?;
        if out.scope.is_empty() {
            done = search.sums(&done, &out.cells[0]);
        } else {
            tables.push(out);
        }
        if search.traces.len() > LARGEST {
            return None;
        }
    }
    Some(done.first().map(|label| search.choice(label.trace)))
}

impl Search<'_> {
    fn keeps(&self, label: &Label) -> bool {
        label.time < self.best && label.memory <= self.slack
    }

    /// The variable whose tables have the fewest cells together, the first of equals.
    fn cheapest(&self, left: &BTreeSet<usize>, tables: &[Fronts]) -> Option<usize> {
        let mut scopes: HashMap<usize, BTreeSet<usize>> = HashMap::new();
        for table in tables {
            for &v in &table.scope {
                scopes.entry(v).or_default().extend(&table.scope);
            }
        }
        let cells = |v: &usize| -> u64 {
            let scope = scopes.get(v).into_iter().flatten();
            scope.fold(1, |cells, &u| cells.saturating_mul(self.graph.count(u) as u64))
        };
        left.iter().copied().min_by_key(|v| (cells(v), *v))
    }

    /// Adds up tables and keeps the best of all values of `v`; `None` if there are too many labels.
    fn take_out(&mut self, v: usize, named: &[Fronts]) -> Option<Fronts> {
        let all: BTreeSet<usize> = named.iter().flat_map(|t| t.scope.iter().copied()).collect();
        let scope: Vec<usize> = all.into_iter().filter(|&u| u != v).collect();
        let total = scope.iter().try_fold(1usize, |n, &u| n.checked_mul(self.graph.count(u)))?;
        if total > LARGEST {
            return None;
        }
        let mut cells = Vec::with_capacity(total);
        for cell in 0..total {
            let mut at: HashMap<usize, usize> = HashMap::new();
            let mut rest = cell;
            for &u in scope.iter().rev() {
                at.insert(u, rest % self.graph.count(u));
                rest /= self.graph.count(u);
            }
            let mut front = Vec::new();
            for value in 0..self.graph.count(v) {
                at.insert(v, value);
                let mut labels = vec![Label { time: 0, memory: 0, trace: 0 }];
                for table in named {
                    let place = table.scope.iter().fold(0, |p, u| p * self.graph.count(*u) + at[u]);
                    labels = self.sums(&labels, &table.cells[place]);
                }
                for label in labels {
                    self.traces.push(Trace::Value { variable: v, value, of: label.trace });
                    front.push(Label { trace: self.traces.len() - 1, ..label });
                }
            }
            cells.push(pareto(front));
            if self.traces.len() > LARGEST {
                return None;
            }
        }
        Some(Fronts { scope, cells })
    }

    /// Every sum of two labels that may still become the best plan.
    fn sums(&mut self, a: &[Label], b: &[Label]) -> Vec<Label> {
        let mut all = Vec::with_capacity(a.len() * b.len());
        for x in a {
            for y in b {
                let sum = Label { time: x.time + y.time, memory: x.memory + y.memory, trace: 0 };
                if self.keeps(&sum) {
                    all.push(Label { trace: self.both(x.trace, y.trace), ..sum });
                }
            }
        }
        pareto(all)
    }

    fn both(&mut self, a: usize, b: usize) -> usize {
        match (a, b) {
            (0, trace) | (trace, 0) => trace,
            _ => {
                self.traces.push(Trace::Both(a, b));
                self.traces.len() - 1
            }
        }
    }

    fn choice(&self, trace: usize) -> Vec<usize> {
        let mut choice = vec![0; self.graph.nodes.len()];
        let mut open = vec![trace];
        while let Some(trace) = open.pop() {
            match self.traces[trace] {
                Trace::Nothing => {}
                Trace::Value { variable, value, of } => {
                    choice[variable] = value;
                    open.push(of);
                }
                Trace::Both(a, b) => open.extend([a, b]),
            }
        }
        choice
    }
}

/// The labels that no other beats, fastest first.
fn pareto(mut labels: Vec<Label>) -> Vec<Label> {
    labels.sort_unstable();
    let mut least = u64::MAX;
    labels.retain(|label| {
        let better = label.memory < least;
        least = least.min(label.memory);
        better
    });
    labels
}
