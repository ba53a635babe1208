//! The choice of strategies as an integer linear program, in flat arrays for a solver.
//!
//! A binary column for each strategy of each node, of which each node takes one; for each edge a column between 0 and 1
//! for each pair of unlike rows and columns of its matrix, whose sums over a row and over a column are those of the
//! strategies that are alike in it (Zheng et al. 2022, arXiv:2201.12023). With whole strategies the pairs' columns are
//! whole of themselves. A last row is the memory limit.
//!
//! A small graph is written whole, and its solution owes nothing to dynamic programming. Of a large one the program has the
//! strategies that a bound does not rule out ([`dp::rest`]), and a plan to begin with.

use super::answer::Found;
use super::charged::inside;
use super::cost::CostGraph;
use super::dp;
use crate::error::{require, Error};
use crate::units::Bytes;
use std::collections::HashMap;

/// Minimise `cost x` subject to `row_lower <= A x <= row_upper` and `0 <= x <= 1`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// Cost of each column, in nanoseconds.
    pub cost: Vec<f64>,
    /// Columns that must be whole: the first so many.
    pub whole: usize,
    /// Lower bound of each row.
    pub row_lower: Vec<f64>,
    /// Upper bound of each row.
    pub row_upper: Vec<f64>,
    /// Where each row begins in `index` and `value`, and their length.
    pub start: Vec<i32>,
    /// Columns of the entries.
    pub index: Vec<i32>,
    /// Entries.
    pub value: Vec<f64>,
    /// The columns of ones of a choice that is known, among the whole ones; none if none is.
    pub known: Vec<i32>,
    /// Share of the cost by which a choice may be above the solver's bound; with 1 any choice will do.
    pub gap: f64,
}

/// A cost graph as a solver gets it.
#[derive(Clone, Debug)]
pub struct Core {
    /// The strategies that are left.
    graph: CostGraph,
    /// Their places among all.
    kept: Vec<Vec<usize>>,
    /// A choice among them and a bound, if the graph is not whole.
    known: Option<(Vec<usize>, u64)>,
    /// Whether a better choice than the known one can only be among them.
    covers: bool,
}

/// Nodes of a graph that is written whole: four layers of a transformer.
const WHOLE: usize = 128;
/// Share of its time by which a plan may be slower than the best known one and is still left to the solver: it finds the
/// best by itself.
const MARGIN: f64 = 2e-4;
/// Gap at which the solver may stop on what is left of a large graph: within a memory limit the last of it is a knapsack
/// over equal layers, which takes far longer than all before.
const GAP: f64 = 1e-4;

impl Core {
    /// What of a graph is left to the solver.
    pub fn new(graph: &CostGraph, limit: Bytes) -> Core {
        let large = graph.nodes.len() > WHOLE;
        match large.then(|| dp::rest(graph, limit, MARGIN)).flatten() {
            Some(dp::Rest { kept, plan, bound, covers }) => {
                let known = Some((inside(&kept, &plan), bound));
                Core { graph: graph.part(&kept), kept, known, covers }
            }
            None => {
                let kept = (0..graph.nodes.len()).map(|node| (0..graph.count(node)).collect());
                Core { graph: graph.clone(), kept: kept.collect(), known: None, covers: true }
            }
        }
    }
}

/// Entries at most: with the solver's copies some gibibytes.
const LARGEST: usize = 1 << 27;

/// Share of the cost within which a solver's bound, worked out in floating point, is taken for the cost itself.
pub const TOLERANCE: f64 = 1e-9;

/// Picoseconds in a unit of cost.
const UNIT: f64 = 1e3;

impl Program {
    /// The program of what is left of a cost graph, under a memory limit.
    ///
    /// # Errors
    /// A graph too large for the solver's arrays.
    pub fn new(core: &Core, limit: Bytes) -> Result<Program, Error> {
        let graph = &core.graph;
        let mut program = Program { start: vec![0], ..Program::default() };
        let first = program.strategies(graph);
        if let Some((known, bound)) = &core.known {
            // Where the bound is that near already, any of the solver's will do.
            let near = *bound as f64 >= graph.total(known).0 as f64 * (1.0 - GAP);
            program.gap = if near { 1.0 } else { GAP };
            program.known = first.iter().zip(known).map(|(f, s)| (f + s) as i32).collect();
        }
        let mut cells = HashMap::new();
        for edge in &graph.edges {
            let matrix = &graph.matrices[edge.matrix];
            let classes = cells.entry(edge.matrix).or_insert_with(|| Classes::new(matrix));
            program.edge(classes, first[edge.from], first[edge.to]);
            require(
                program.index.len() <= LARGEST,
                "graph",
                || "has more than 2^27 entries as an integer program".to_owned(),
                "Use --method dp.",
            )?;
        }
        program.memory(graph, limit);
        Ok(program)
    }

    /// Columns and rows of the nodes; the first column of each.
    fn strategies(&mut self, graph: &CostGraph) -> Vec<usize> {
        let mut first = Vec::with_capacity(graph.nodes.len());
        for node in 0..graph.nodes.len() {
            first.push(self.cost.len());
            self.cost.extend(graph.prices(node).iter().map(|p| p.time().0 as f64 / UNIT));
            let columns = first[node]..self.cost.len();
            self.row(columns.map(|column| (column, 1.0)), 1.0, 1.0);
        }
        self.whole = self.cost.len();
        first
    }

    fn edge(&mut self, classes: &Classes, from: usize, to: usize) {
        let columns = classes.columns.len();
        let pairs = self.cost.len();
        self.cost.extend(classes.cells.iter().map(|&cell| cell as f64 / UNIT));
        for (r, rows) in classes.rows.iter().enumerate() {
            let pairs = (0..columns).map(|c| (pairs + r * columns + c, 1.0));
            let strategies = rows.iter().map(|&row| (from + row, -1.0));
            self.row(pairs.chain(strategies).collect::<Vec<_>>().into_iter(), 0.0, 0.0);
        }
        for (c, alike) in classes.columns.iter().enumerate() {
            let pairs = (0..classes.rows.len()).map(|r| (pairs + r * columns + c, 1.0));
            let strategies = alike.iter().map(|&column| (to + column, -1.0));
            self.row(pairs.chain(strategies).collect::<Vec<_>>().into_iter(), 0.0, 0.0);
        }
    }

    /// The memory beyond what each node takes at least, as a share of what there is of it.
    fn memory(&mut self, graph: &CostGraph, limit: Bytes) {
        let mut over = Vec::new();
        let (mut column, mut least_sum, mut most_sum) = (0, 0u64, 0u64);
        for node in 0..graph.nodes.len() {
            let memory = graph.prices(node).iter().map(|p| p.memory.0);
            let (least, most) =
                (memory.clone().min().unwrap_or(0), memory.clone().max().unwrap_or(0));
            least_sum += least;
            most_sum += most;
            over.extend(memory.enumerate().map(|(i, bytes)| (column + i, (bytes - least) as f64)));
            column += graph.count(node);
        }
        if most_sum > limit.0 {
            let slack = limit.0.saturating_sub(least_sum) as f64;
            let scale = slack.max(1.0);
            let entries = over.into_iter().filter(|&(_, bytes)| bytes > 0.0);
            self.row(
                entries.map(|(i, bytes)| (i, bytes / scale)),
                f64::NEG_INFINITY,
                slack / scale,
            );
        }
    }

    fn row(&mut self, entries: impl Iterator<Item = (usize, f64)>, lower: f64, upper: f64) {
        for (column, value) in entries {
            self.index.push(column as i32);
            self.value.push(value);
        }
        self.start.push(self.index.len() as i32);
        self.row_lower.push(lower);
        self.row_upper.push(upper);
    }
}

/// A matrix by its unlike rows and columns.
struct Classes {
    /// The strategies of each class of rows.
    rows: Vec<Vec<usize>>,
    /// The strategies of each class of columns.
    columns: Vec<Vec<usize>>,
    /// A cell for each pair of classes, row by row.
    cells: Vec<u64>,
}

impl Classes {
    fn new(matrix: &super::cost::Matrix) -> Classes {
        let (height, width) = (matrix.rows.class.len(), matrix.columns.class.len());
        let line = |row: usize| (0..width).map(move |c| matrix.at(row, c)).collect();
        let rows = grouped((0..height).map(line));
        let column = |c: usize| rows.iter().map(|alike| matrix.at(alike[0], c)).collect();
        let columns = grouped((0..width).map(column));
        let cells = rows
            .iter()
            .flat_map(|row| columns.iter().map(|column| matrix.at(row[0], column[0])))
            .collect();
        Classes { rows, columns, cells }
    }
}

/// Places of equal lines together, in order of the first of each.
fn grouped(lines: impl Iterator<Item = Vec<u64>>) -> Vec<Vec<usize>> {
    let mut seen: HashMap<Vec<u64>, usize> = HashMap::new();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (i, line) in lines.enumerate() {
        let group = *seen.entry(line).or_insert_with(|| {
            groups.push(vec![]);
            groups.len() - 1
        });
        groups[group].push(i);
    }
    groups
}

/// What a solver's columns of ones say, checked: the strategy of each node, and the bound in picoseconds.
///
/// # Errors
/// Columns that do not choose one strategy a node.
pub fn found(
    graph: &CostGraph,
    core: &Core,
    columns: &[usize],
    bound: Option<f64>,
    limit: Bytes,
) -> Result<Found, Error> {
    let mut choice = Vec::with_capacity(graph.nodes.len());
    let mut first = 0;
    for (kept, &column) in core.kept.iter().zip(columns) {
        choice.extend(column.checked_sub(first).and_then(|place| kept.get(place)));
        first += kept.len();
    }
    require(
        choice.len() == graph.nodes.len() && columns.len() == choice.len(),
        "choice",
        || "must be one column of each node, ascending".to_owned(),
        "Give the choice that the solver made.",
    )?;
    let (time, memory) = graph.total(&choice);
    let bound = bound.map(|bound| {
        let known = core.known.as_ref().map_or(0, |(_, bound)| *bound);
        let bound = (bound * UNIT).max(0.0);
        if !core.covers {
            return known;
        }
        if bound >= time as f64 * (1.0 - TOLERANCE) {
            return time;
        }
        known.max(bound.floor() as u64)
    });
    Ok(Found { choice, bound, fits: memory <= limit })
}
