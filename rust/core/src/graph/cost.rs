//! The cost graph: for each node its strategies with their prices, for each edge the price of every pair of them.
//!
//! A node is an operator, or a tensor from outside that several operators read. An edge is the tensors between two
//! nodes, with the reshards forward and, in training, backward. The cost of a plan is the sum over
//! nodes and edges; its memory is the sum over nodes. Each reader pays for its own reshard of a tensor.
//!
//! Nodes and edges that are alike share one table, so the layers of a deep network cost as much to price as one.

use super::fixed::{check_dataset, fixed_strategies, matching, refusal};
use super::layout::{Division, Layout};
use super::loops::{Axis, Cut, Loops};
use super::price::{Price, Pricer};
use super::problem::{FixedStrategy, Others};
use super::routes::{Passage, Routes};
use super::strategy::{strategies, Choices, Strategy};
use super::view::View;
use crate::error::Error;
use crate::units::{Bytes, Time};
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

/// What a node stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// An operator, by its place.
    Operator(usize),
    /// A tensor from outside, by its place.
    Tensor(usize),
}

/// A node of the cost graph.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it stands for.
    pub subject: Subject,
    /// Its place in [`CostGraph::kinds`].
    pub kind: usize,
}

/// The strategies of alike nodes.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Loop axes.
    pub loops: Loops,
    /// Every strategy that is allowed.
    pub strategies: Vec<Strategy>,
    /// The price of each.
    pub prices: Vec<Price>,
}

/// Tensors between two nodes.
#[derive(Clone, Debug)]
pub struct Edge {
    /// The node that writes.
    pub from: usize,
    /// The node that reads.
    pub to: usize,
    /// Its place in [`CostGraph::matrices`].
    pub matrix: usize,
    /// Each tensor with the output's and the input's place.
    pub tensors: Vec<(usize, usize, usize)>,
}

/// Picoseconds for every pair of strategies, by the classes of them that lay out the tensors alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// Classes of the writer's strategies.
    pub rows: View,
    /// Classes of the reader's.
    pub columns: View,
    /// A cell for each pair of classes, row by row.
    pub cells: Arc<[u64]>,
}

impl Matrix {
    /// The cell of a pair of strategies.
    pub fn at(&self, row: usize, column: usize) -> u64 {
        let (row, column) = (self.rows.class[row] as usize, self.columns.class[column] as usize);
        self.cells[row * self.columns.count + column]
    }

    /// A cell for each pair of strategies, row by row.
    pub fn whole(&self) -> Arc<[f64]> {
        let columns = self.columns.class.len();
        let rows = 0..self.rows.class.len();
        rows.flat_map(|row| (0..columns).map(move |column| self.at(row, column) as f64)).collect()
    }

    /// The same for some of the strategies.
    fn part(&self, rows: &[usize], columns: &[usize]) -> Matrix {
        let classes = |view: &View, kept: &[usize]| {
            let class: Vec<usize> = kept.iter().map(|&s| view.class[s] as usize).collect();
            let mut first: Vec<usize> = Vec::new();
            class.iter().for_each(|class| {
                if !first.contains(class) {
                    first.push(*class);
                }
            });
            (View::by(class), first)
        };
        let (rows, of_rows) = classes(&self.rows, rows);
        let (columns, of_columns) = classes(&self.columns, columns);
        let cell = |&row: &usize, &column: &usize| self.cells[row * self.columns.count + column];
        let cells = of_rows.iter().flat_map(|row| of_columns.iter().map(move |c| cell(row, c)));
        Matrix { cells: cells.collect(), rows, columns }
    }
}

/// What there is to choose, with what each choice costs.
#[derive(Clone, Debug)]
pub struct CostGraph {
    /// The nodes: shared tensors first, then operators in running order.
    pub nodes: Vec<Node>,
    /// The edges.
    pub edges: Vec<Edge>,
    /// Distinct nodes.
    pub kinds: Vec<Kind>,
    /// Distinct edges.
    pub matrices: Vec<Matrix>,
}

impl CostGraph {
    /// Lists and prices everything there is to choose.
    ///
    /// # Errors
    /// A strategy of the user's that its operator cannot have.
    pub fn new(pricer: &Pricer<'_>, choices: Choices) -> Result<CostGraph, Error> {
        let network = pricer.network;
        let fixed = fixed_strategies(pricer)?;
        check_dataset(pricer)?;
        let mut build = Build {
            pricer,
            choices,
            graph: CostGraph { nodes: vec![], edges: vec![], kinds: vec![], matrices: vec![] },
            kinds: HashMap::new(),
            links: HashMap::new(),
            tables: vec![],
            places: HashMap::new(),
            routes: vec![],
        };
        let mut node_of_tensor = vec![None; network.graph.tensors.len()];
        for (t, node) in node_of_tensor.iter_mut().enumerate() {
            if network.producer[t].is_none() && !pricer.is_own(t) && !network.readers[t].is_empty()
            {
                *node = Some(build.tensor(t));
            }
        }
        let mut node_of_operator = vec![0; network.graph.operators.len()];
        for &o in &network.order {
            node_of_operator[o] = build.operator(o, fixed[o])?;
            let mut edges: Vec<Edge> = Vec::new();
            for (place, &t) in network.inputs[o].iter().enumerate() {
                let (from, output) = match (network.producer[t], node_of_tensor[t]) {
                    (Some(p), _) => {
                        let written = network.outputs[p].iter().position(|&w| w == t);
                        (node_of_operator[p], written.unwrap_or_default())
                    }
                    (None, Some(node)) => (node, 0),
                    (None, None) => continue,
                };
                let to = node_of_operator[o];
                match edges.iter_mut().find(|edge| edge.from == from) {
                    Some(edge) => edge.tensors.push((t, output, place)),
                    None => {
                        edges.push(Edge { from, to, matrix: 0, tensors: vec![(t, output, place)] });
                    }
                }
            }
            for edge in edges {
                build.edge(edge);
            }
        }
        Ok(build.priced())
    }

    /// The same choices with the communication of parameters and gradients at no cost: below what any of them costs,
    /// however much of that runs beside computation.
    pub fn without_exchanges(&self) -> CostGraph {
        let mut free = self.clone();
        for price in free.kinds.iter_mut().flat_map(|kind| &mut kind.prices) {
            price.gradient = Time::ZERO;
        }
        free
    }

    /// The same with some of the strategies of each node: `kept` has their places, ascending, in the list of its kind.
    pub fn part(&self, kept: &[Vec<usize>]) -> CostGraph {
        let mut part = CostGraph {
            nodes: Vec::with_capacity(self.nodes.len()),
            edges: self.edges.clone(),
            kinds: vec![],
            matrices: vec![],
        };
        let mut kinds: HashMap<(usize, &[usize]), usize> = HashMap::new();
        for (node, kept) in self.nodes.iter().zip(kept) {
            let kind = *kinds.entry((node.kind, kept)).or_insert_with(|| {
                let whole = &self.kinds[node.kind];
                part.kinds.push(Kind {
                    loops: whole.loops.clone(),
                    strategies: kept.iter().map(|&s| whole.strategies[s].clone()).collect(),
                    prices: kept.iter().map(|&s| whole.prices[s]).collect(),
                });
                part.kinds.len() - 1
            });
            part.nodes.push(Node { subject: node.subject, kind });
        }
        let mut matrices: HashMap<(usize, usize, usize), usize> = HashMap::new();
        for edge in &mut part.edges {
            let key = (edge.matrix, part.nodes[edge.from].kind, part.nodes[edge.to].kind);
            let (rows, columns) = (&kept[edge.from], &kept[edge.to]);
            edge.matrix = *matrices.entry(key).or_insert_with(|| {
                part.matrices.push(self.matrices[edge.matrix].part(rows, columns));
                part.matrices.len() - 1
            });
        }
        part
    }

    /// The places of the strategies of each node for which `keep` holds; all of a node of which it holds for none.
    pub fn kept(&self, keep: impl Fn(&Strategy) -> bool) -> Vec<Vec<usize>> {
        let places = |kind: &Kind| -> Vec<usize> {
            let all = 0..kind.strategies.len();
            let kept: Vec<usize> = all.clone().filter(|&s| keep(&kind.strategies[s])).collect();
            if kept.is_empty() {
                all.collect()
            } else {
                kept
            }
        };
        let kinds: Vec<Vec<usize>> = self.kinds.iter().map(places).collect();
        self.nodes.iter().map(|node| kinds[node.kind].clone()).collect()
    }

    /// The edges of each node, by place.
    pub fn edges_of(&self) -> Vec<Vec<usize>> {
        let mut of: Vec<Vec<usize>> = vec![vec![]; self.nodes.len()];
        for (e, edge) in self.edges.iter().enumerate() {
            of[edge.from].push(e);
            of[edge.to].push(e);
        }
        of
    }

    /// Strategies of a node.
    pub fn count(&self, node: usize) -> usize {
        self.kinds[self.nodes[node].kind].strategies.len()
    }

    /// Prices of a node's strategies.
    pub fn prices(&self, node: usize) -> &[Price] {
        &self.kinds[self.nodes[node].kind].prices
    }

    /// Picoseconds and memory of a choice of one strategy a node.
    pub fn total(&self, choice: &[usize]) -> (u64, Bytes) {
        let mut time = 0u64;
        let mut memory = Bytes::ZERO;
        for (node, &chosen) in choice.iter().enumerate() {
            let price = &self.prices(node)[chosen];
            time = time.saturating_add(price.time().0);
            memory += price.memory;
        }
        for edge in &self.edges {
            let cell = self.matrices[edge.matrix].at(choice[edge.from], choice[edge.to]);
            time = time.saturating_add(cell);
        }
        (time, memory)
    }

    /// The layout in which a node writes a tensor.
    pub fn written(&self, node: usize, chosen: usize, output: usize) -> Layout {
        let kind = &self.kinds[self.nodes[node].kind];
        kind.strategies[chosen].output(&kind.loops, output)
    }
}

/// What tells two operators' prices apart.
type Signature = (String, Vec<usize>);

/// Kinds of writer and reader, and the places of each tensor between them.
type Link = (usize, usize, Vec<(usize, usize)>);

/// One of an edge's tensors.
struct Part {
    /// The layout of each of the writer's strategies.
    row_of: Vec<usize>,
    /// The reading of each of the reader's.
    column_of: Vec<usize>,
    /// Readings.
    width: usize,
    /// Place in [`Build::routes`].
    routes: usize,
    passage: Passage,
}

/// A matrix whose reshards are not yet priced.
struct Table {
    rows: View,
    columns: View,
    /// By class of rows, the layout in which each tensor is written.
    of_rows: Vec<Vec<usize>>,
    /// By class of columns, the reading of each.
    of_columns: Vec<Vec<usize>>,
    parts: Vec<Part>,
}

struct Build<'a, 'b> {
    pricer: &'b Pricer<'a>,
    choices: Choices,
    graph: CostGraph,
    kinds: HashMap<Signature, usize>,
    /// Places in [`Build::tables`].
    links: HashMap<Link, usize>,
    tables: Vec<Table>,
    /// Places in [`Build::routes`], by shape and bytes an element.
    places: HashMap<(Vec<u64>, u64), usize>,
    routes: Vec<Routes>,
}

impl Table {
    fn new(parts: Vec<Part>, rows: usize, columns: usize) -> Table {
        let classes = |of: &dyn Fn(usize) -> Vec<usize>, strategies: usize| {
            let keys: Vec<Vec<usize>> = (0..strategies).map(of).collect();
            (View::by(keys.iter().cloned()), distinct(keys.into_iter()).0)
        };
        let row_of = |s: usize| parts.iter().map(|part| part.row_of[s]).collect();
        let column_of = |s: usize| parts.iter().map(|part| part.column_of[s]).collect();
        let (rows, of_rows) = classes(&row_of, rows);
        let (columns, of_columns) = classes(&column_of, columns);
        Table { rows, columns, of_rows, of_columns, parts }
    }

    fn matrix(self, routes: &[Routes]) -> Matrix {
        let Table { rows, columns, of_rows, of_columns, parts } = self;
        let mut cells = vec![0; rows.count * columns.count];
        for (p, part) in parts.iter().enumerate() {
            let times = routes[part.routes].cells(&part.passage);
            for (line, row) in cells.chunks_exact_mut(columns.count).zip(&of_rows) {
                let times = &times[row[p] * part.width..][..part.width];
                line.iter_mut().zip(&of_columns).for_each(|(sum, column)| *sum += times[column[p]]);
            }
        }
        Matrix { rows, columns, cells: cells.into() }
    }
}

impl Build<'_, '_> {
    fn tensor(&mut self, t: usize) -> usize {
        let pricer = self.pricer;
        let spec = &pricer.network.graph.tensors[t];
        let fixed = pricer.fixed_input(t);
        let signature = (
            format!(
                "{:?} {:?} {:?} {:?} {:?}",
                spec.shape,
                spec.dtype,
                spec.role,
                pricer.gradients[t],
                fixed.map(|input| &input.cuts)
            ),
            vec![],
        );
        let division = fixed.map_or(self.choices.division, |_| Division::Primes);
        let choices = Choices { use_all_devices: false, division };
        let kind = *self.kinds.entry(signature).or_insert_with(|| {
            let axes = spec.shape.iter().map(|&size| Axis { size, cut: Cut::Free }).collect();
            let dims = (0..spec.shape.len()).map(Some).collect();
            let loops = Loops { axes, inputs: vec![], outputs: vec![dims] };
            let mut strategies = strategies(&loops, None, pricer.mesh, choices);
            if let Some(fixed) = fixed {
                strategies.retain(|s| s.output(&loops, 0).cuts(pricer.mesh) == fixed.cuts);
            }
            let price = |s: &Strategy| pricer.source(t, &s.output(&loops, 0));
            let prices = strategies.iter().map(price).collect();
            self.graph.kinds.push(Kind { loops, strategies, prices });
            self.graph.kinds.len() - 1
        });
        self.graph.nodes.push(Node { subject: Subject::Tensor(t), kind });
        self.graph.nodes.len() - 1
    }

    fn operator(&mut self, o: usize, fixed: Option<&FixedStrategy>) -> Result<usize, Error> {
        let network = self.pricer.network;
        let spec = &network.graph.operators[o];
        let tensors = |places: &[usize]| {
            places
                .iter()
                .map(|&t| {
                    let tensor = &network.graph.tensors[t];
                    (
                        &tensor.shape,
                        tensor.dtype,
                        tensor.role,
                        self.pricer.gradients[t],
                        self.pricer.is_own(t),
                    )
                })
                .collect::<Vec<_>>()
        };
        let text = format!(
            "{:?} {} {} {} {:?} {:?} {:?}",
            spec.form,
            spec.source,
            spec.host,
            spec.recompute,
            tensors(&network.inputs[o]),
            tensors(&network.outputs[o]),
            fixed.map(|f| (&f.inputs, &f.outputs, f.recompute, &f.rows)),
        );
        // How many operators keep an input of the dataset changes its share of the memory, and what is kept of the
        // others says what a recomputed operator must keep besides.
        let operators = &network.graph.operators;
        let again =
            |t: usize| network.producer[t].is_some_and(|writer| operators[writer].recompute);
        let held = |&t: &usize| {
            let flags = usize::from(self.pricer.is_kept(t)) << 1 | usize::from(again(t));
            self.pricer.keepers(t) << 2 | flags
        };
        let tensors = network.inputs[o].iter().chain(&network.outputs[o]);
        let signature = (text, tensors.map(held).collect());
        let kind = match self.kinds.get(&signature) {
            Some(&kind) => kind,
            None => {
                let kind = self.kind(o, fixed)?;
                self.graph.kinds.push(kind);
                self.kinds.insert(signature, self.graph.kinds.len() - 1);
                self.graph.kinds.len() - 1
            }
        };
        self.graph.nodes.push(Node { subject: Subject::Operator(o), kind });
        Ok(self.graph.nodes.len() - 1)
    }

    fn kind(&self, o: usize, fixed: Option<&FixedStrategy>) -> Result<Kind, Error> {
        let (network, mesh) = (self.pricer.network, self.pricer.mesh);
        let spec = &network.graph.operators[o];
        let loops = network.loops[o].clone();
        let shape = network.graph.tensors[network.outputs[o][0]].shape.as_slice();
        let choices = match fixed {
            Some(_) => Choices { use_all_devices: false, division: Division::Primes },
            None => self.choices,
        };
        let mut found = strategies(&loops, Some(shape), mesh, choices);
        match fixed {
            Some(fixed) => {
                found = matching(found, fixed, &loops, mesh);
                if found.is_empty() {
                    return Err(refusal(self.pricer, o, fixed));
                }
            }
            None if found.is_empty() => {
                // No loop takes all devices: the nearest is to cut by as many as can be.
                let free = Choices { use_all_devices: false, ..choices };
                found = strategies(&loops, Some(shape), mesh, free);
                let used = |s: &Strategy| mesh.parts(&s.axes.concat());
                let most = found.iter().map(used).max().unwrap_or(1);
                found.retain(|s| used(s) == most);
            }
            None => {}
        }
        if fixed.is_none() && self.pricer.options.others == Others::DataParallel {
            let leading =
                |s: &Strategy| s.scatter.is_none() && s.axes.iter().skip(1).all(Vec::is_empty);
            found = strategies(
                &loops,
                None,
                mesh,
                Choices { use_all_devices: false, division: Division::Primes },
            );
            found.retain(leading);
            let parts = |s: &Strategy| s.axes.first().map_or(1, |axes| mesh.parts(axes));
            let most = found.iter().map(parts).max().unwrap_or(1);
            found.retain(|s| parts(s) == most);
            found.truncate(1);
        }
        let mut prices: Vec<Price> = found.iter().map(|s| self.pricer.operator(o, s)).collect();
        let always = spec.recompute.then_some(true);
        match fixed.and_then(|fixed| fixed.recompute).or(always) {
            Some(true) => {
                found.iter_mut().for_each(|s| s.recompute = true);
                prices = found.iter().map(|s| self.pricer.operator(o, s)).collect();
            }
            None if self.pricer.options.recompute => {
                for plain in 0..found.len() {
                    let again = Strategy { recompute: true, ..found[plain].clone() };
                    let price = self.pricer.operator(o, &again);
                    // Otherwise it is slower and saves nothing.
                    if price.memory < prices[plain].memory {
                        found.push(again);
                        prices.push(price);
                    }
                }
            }
            Some(false) | None => {}
        }
        Ok(Kind { loops, strategies: found, prices })
    }

    fn edge(&mut self, mut edge: Edge) {
        let (from, to) = (self.graph.nodes[edge.from].kind, self.graph.nodes[edge.to].kind);
        let places = edge.tensors.iter().map(|&(_, output, input)| (output, input)).collect();
        let key = (from, to, places);
        edge.matrix = match self.links.get(&key) {
            Some(&table) => table,
            None => {
                let table = self.table(&edge, from, to);
                self.tables.push(table);
                self.links.insert(key, self.tables.len() - 1);
                self.tables.len() - 1
            }
        };
        self.graph.edges.push(edge);
    }

    /// Asks for the reshards of an edge.
    fn table(&mut self, edge: &Edge, from: usize, to: usize) -> Table {
        let (writer, reader) = (&self.graph.kinds[from], &self.graph.kinds[to]);
        let mut parts: Vec<Part> = Vec::new();
        if let Subject::Operator(operator) = self.graph.nodes[edge.to].subject {
            for &(tensor, output, input) in &edge.tensors {
                let spec = &self.pricer.network.graph.tensors[tensor];
                let key = (spec.shape.clone(), spec.dtype.bytes());
                let routes = *self.places.entry(key).or_insert_with(|| {
                    self.routes.push(Routes::new(spec));
                    self.routes.len() - 1
                });
                let written = writer.strategies.iter().map(|s| s.output(&writer.loops, output));
                let (rows, row_of) = distinct(written);
                let reading = |s| self.pricer.reading(tensor, operator, s, input);
                let (readings, column_of) = distinct(reader.strategies.iter().map(reading));
                let passage = self.routes[routes].ask(&rows, &readings);
                parts.push(Part { row_of, column_of, width: readings.len(), routes, passage });
            }
        }
        Table::new(parts, writer.strategies.len(), reader.strategies.len())
    }

    /// The graph with the reshards that were asked for.
    fn priced(self) -> CostGraph {
        let Build { pricer, mut graph, tables, mut routes, .. } = self;
        routes.par_iter_mut().for_each(|routes| routes.walk(|| pricer.walker()));
        graph.matrices = tables.into_par_iter().map(|table| table.matrix(&routes)).collect();
        graph
    }
}

/// The distinct items in order, and for each item its place among them.
fn distinct<T: std::hash::Hash + Eq + Clone>(
    items: impl Iterator<Item = T>,
) -> (Vec<T>, Vec<usize>) {
    let mut places: HashMap<T, usize> = HashMap::new();
    let mut list = Vec::new();
    let of = items
        .map(|item| {
            *places.entry(item).or_insert_with_key(|item| {
                list.push(item.clone());
                list.len() - 1
            })
        })
        .collect();
    (list, of)
}
