//! Elimination with fronts of time and memory: the fastest plan within a memory limit.
//!
//! A label is a partial plan that no other beats in both. With a multiplier on memory, the completions of the charged sum
//! say what the rest of a plan takes at least, so that a label that cannot become a faster plan than the best known is
//! dropped at once, and near the best multiplier few are left. Where fronts are still too wide, some of their
//! labels are kept and the search proves nothing, but often finds a better plan.

use super::charged::{Charged, Dual, Solver};
use super::cost::CostGraph;

/// A partial plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Label {
    time: u64,
    /// Beyond what each node takes at least.
    memory: u64,
    /// Its time with its memory charged.
    charged: u64,
    /// Value of the variable that is being taken out.
    value: u32,
    /// Place in [`Search::traces`] of what it stands on.
    trace: u32,
}

const NOTHING: Label = Label { time: 0, memory: 0, charged: 0, value: 0, trace: 0 };

/// How a label came about: values given to variables, on top of other labels.
#[derive(Clone, Copy, Debug)]
enum Trace {
    Nothing,
    Value { variable: u32, value: u32, of: u32 },
    Both(u32, u32),
}

/// Traces at most; where labels that are still in use need more, the attempt is given up.
const LARGEST: usize = 1 << 24;

/// Labels for each choice of the variables of a scope, in row-major order.
#[derive(Clone, Debug, Default)]
struct Fronts {
    /// Where the labels of each cell begin, and their number.
    start: Vec<usize>,
    labels: Vec<Label>,
}

impl Fronts {
    fn cell(&self, place: usize) -> &[Label] {
        &self.labels[self.start[place]..self.start[place + 1]]
    }
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// A plan that is faster than the best known one, if there is one among the labels that were kept.
    pub choice: Option<Vec<usize>>,
    /// No label was left out: there is no faster plan.
    pub whole: bool,
}

struct Search<'a> {
    graph: &'a CostGraph,
    charged: &'a Charged<'a>,
    /// Charged time above which nothing is faster.
    most: u64,
    slack: u64,
    width: usize,
    whole: bool,
    traces: Vec<Trace>,
}

/// The fastest plan within the limit that takes less than `best` picoseconds, with at most `width` labels for each choice of
/// what a part of the graph shares with the rest; `None` if the labels are too many all the same.
pub fn settle(dual: &Dual<'_>, solver: &Solver<'_>, best: u64, width: usize) -> Option<Settled> {
    let (graph, limit, order) = (dual.graph, dual.limit, &solver.order);
    let charged = dual.charged(solver);
    let most = best.saturating_sub(1).saturating_add(dual.credit());
    let completions = charged.completions(most)?;
    let least: Vec<u64> = (0..graph.nodes.len())
        .map(|node| graph.prices(node).iter().map(|p| p.memory.0).min().unwrap_or(0))
        .collect();
    let slack = limit.0.checked_sub(least.iter().sum())?;
    let mut search = Search {
        graph,
        charged: &charged,
        most,
        slack,
        width,
        whole: true,
        traces: vec![Trace::Nothing],
    };
    let mut fronts: Vec<Fronts> = Vec::with_capacity(order.steps.len());
    let mut done = vec![NOTHING];
    for (sum, step) in order.steps.iter().enumerate() {
        let rest = &completions.rest[sum];
        let mut front = search.take_out(step.variable, &step.tables, &fronts, rest, &least)?;
        for &used in step.tables.iter().filter(|&&table| table >= order.given) {
            fronts[used - order.given] = Fronts::default();
        }
        if search.traces.len() > LARGEST / 2 {
            let labels = fronts.iter_mut().chain([&mut front]).flat_map(|front| &mut front.labels);
            search.collect(labels.chain(&mut done).collect());
        }
        if order.scopes[order.given + sum].is_empty() {
            let both = search.sums(&done, front.cell(0), 0);
            done = search.thinned(both);
            fronts.push(Fronts::default());
        } else {
            fronts.push(front);
        }
    }
    let choice = done.first().filter(|label| label.time < best).map(|l| search.choice(l.trace));
    Some(Settled { choice, whole: search.whole })
}

impl Search<'_> {
    /// Adds up tables and keeps the best of all values of `variable`; `None` if there are too many labels. `fronts` are those
    /// of earlier sums, and `rest` is what is missing at least for each cell of the result.
    fn take_out(
        &mut self,
        variable: usize,
        tables: &[usize],
        fronts: &[Fronts],
        rest: &[f64],
        least: &[u64],
    ) -> Option<Fronts> {
        let charged = self.charged;
        let order = &charged.solver.order;
        let prices = self.graph.prices(variable);
        let joint = order.joint_of(tables, variable);
        let (sums, given): (Vec<usize>, Vec<usize>) =
            tables.iter().partition(|&&table| table >= order.given);
        let all = [sums.as_slice(), &given].concat();
        let mut out = Fronts::default();
        order.lines(&joint, &all, |cell, places, strides| {
            out.start.push(out.labels.len());
            let rest = rest[cell] as u64;
            if rest > self.most || self.traces.len() > LARGEST {
                return;
            }
            let mut front: Vec<Label> = Vec::new();
            for (value, price) in prices.iter().enumerate() {
                let places: Vec<usize> = places
                    .iter()
                    .zip(strides)
                    .map(|(place, stride)| place + value * stride)
                    .collect();
                let at =
                    |(&table, &place): (&usize, &usize)| charged.sums.table(table)[place] as u64;
                let total: u64 = all.iter().zip(&places).map(at).sum();
                if total.saturating_add(rest) > self.most {
                    continue;
                }
                // The edges' times: all given tables but the node's own, which has memory charged.
                let edges = given.iter().zip(&places[sums.len()..]).filter(|(&t, _)| t != variable);
                let edges: u64 = edges.map(at).sum();
                let mut labels = vec![Label {
                    time: price.time().0 + edges,
                    memory: price.memory.0 - least[variable],
                    charged: charged.sums.table(variable)[value] as u64 + edges,
                    value: value as u32,
                    trace: 0,
                }];
                labels.retain(|label| label.memory <= self.slack);
                for (&sum, &place) in sums.iter().zip(&places) {
                    let others = fronts[sum - order.given].cell(place);
                    labels = self.sums(&labels, others, rest);
                }
                front.extend(labels);
            }
            for label in self.thinned(pareto(front)) {
                let (variable, value, of) = (variable as u32, label.value, label.trace);
                self.traces.push(Trace::Value { variable, value, of });
                let trace = (self.traces.len() - 1) as u32;
                out.labels.push(Label { value: 0, trace, ..label });
            }
        });
        out.start.push(out.labels.len());
        (self.traces.len() <= LARGEST).then_some(out)
    }

    /// Every sum of two labels that may still become a better plan, if the rest takes at least so much.
    fn sums(&mut self, a: &[Label], b: &[Label], rest: u64) -> Vec<Label> {
        let mut all = Vec::new();
        for x in a {
            for y in b {
                let sum = Label {
                    time: x.time + y.time,
                    memory: x.memory + y.memory,
                    charged: x.charged + y.charged,
                    value: x.value,
                    trace: 0,
                };
                if sum.charged.saturating_add(rest) <= self.most && sum.memory <= self.slack {
                    all.push(Label { trace: self.both(x.trace, y.trace), ..sum });
                }
            }
        }
        pareto(all)
    }

    /// At most as many labels as may be kept: of each stretch of memory the one whose charged time is least.
    fn thinned(&mut self, labels: Vec<Label>) -> Vec<Label> {
        if labels.len() <= self.width {
            return labels;
        }
        self.whole = false;
        let most = labels.first().map_or(0, |label| label.memory);
        let least = labels.last().map_or(0, |label| label.memory);
        let stretch = (most - least) / self.width as u64 + 1;
        let stretch_of = |label: &Label| (label.memory - least) / stretch;
        labels
            .chunk_by(|a, b| stretch_of(a) == stretch_of(b))
            .filter_map(|alike| alike.iter().min_by_key(|label| (label.charged, label.time)))
            .copied()
            .collect()
    }

    fn both(&mut self, a: u32, b: u32) -> u32 {
        match (a, b) {
            (0, trace) | (trace, 0) => trace,
            _ => {
                self.traces.push(Trace::Both(a, b));
                (self.traces.len() - 1) as u32
            }
        }
    }

    /// Drops the traces that no label stands on.
    fn collect(&mut self, mut labels: Vec<&mut Label>) {
        let mut places = vec![0u32; self.traces.len()];
        labels.iter().for_each(|label| places[label.trace as usize] = 1);
        // What a trace stands on was made before it.
        for (place, trace) in self.traces.iter().enumerate().rev() {
            match *trace {
                Trace::Value { of, .. } if places[place] == 1 => places[of as usize] = 1,
                Trace::Both(a, b) if places[place] == 1 => {
                    (places[a as usize], places[b as usize]) = (1, 1);
                }
                Trace::Nothing | Trace::Value { .. } | Trace::Both(..) => {}
            }
        }
        places[0] = 1;
        let mut kept = Vec::new();
        for (place, trace) in places.iter_mut().zip(&self.traces) {
            if *place == 1 {
                *place = kept.len() as u32;
                kept.push(*trace);
            }
        }
        let moved = |trace: &mut u32| *trace = places[*trace as usize];
        for trace in &mut kept {
            match trace {
                Trace::Nothing => {}
                Trace::Value { of, .. } => moved(of),
                Trace::Both(a, b) => [a, b].into_iter().for_each(moved),
            }
        }
        labels.iter_mut().for_each(|label| moved(&mut label.trace));
        self.traces = kept;
    }

    fn choice(&self, trace: u32) -> Vec<usize> {
        let mut choice = vec![0; self.graph.nodes.len()];
        let mut open = vec![trace];
        while let Some(trace) = open.pop() {
            match self.traces[trace as usize] {
                Trace::Nothing => {}
                Trace::Value { variable, value, of } => {
                    choice[variable as usize] = value as usize;
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
