//! MindSpore's recursive_programming with its own relative costs, for any device count.
//!
//! Only matrix products, the dataset and the loss are decided; whatever stands between them follows afterwards. Once for
//! each prime of the mesh each of these parts cuts one axis more, or none. A product `[I, K] x [K, J]` weighs half of
//! the tensor that the cut axis does not run through, which has to be moved, and a reshard for every neighbour that
//! the same round cut otherwise (Wang et al. 2021, "Double-Recursive Automatic Parallelism"; the constants are those that
//! MindSpore 2.10 prints). The costs are numbers of elements: they rank the cuts of one product and mean nothing else.

use super::answer::Found;
use super::cost::{CostGraph, Subject};
use super::form::Form;
use super::ir::{Network, Role};
use super::layout::Mesh;
use super::loops::{Cut, Loops};
use super::propagate;
use crate::units::Bytes;
use std::collections::VecDeque;

/// Weight of moving a second factor, usually a parameter, relative to an activation: `rp_matmul_mem_coef`.
const WEIGHTS: f64 = 0.1;
/// Leaving a product uncut costs the square of its cheapest cut over this.
const UNCUT: f64 = 25.0;
/// A reshard costs so many times the elements of the tensor.
const RESHARD: f64 = 16.0;
/// From so many devices on, MindSpore 2.10 decides the loss first and the dataset last.
const LOSS_FIRST: u64 = 64;

/// Strategies by MindSpore's recursion; the nodes of `set` keep theirs.
pub fn solve(
    graph: &CostGraph,
    network: &Network,
    mesh: &Mesh,
    set: &[bool],
    limit: Bytes,
) -> Found {
    let mut parts = Parts::new(network, mesh.devices());
    for axis in &mesh.axes {
        parts.divide(axis.size);
    }
    let mut choice = vec![None; graph.nodes.len()];
    for (n, node) in graph.nodes.iter().enumerate() {
        let Subject::Operator(o) = node.subject else { continue };
        if set[n] {
            continue;
        }
        let Some(part) = parts.list.iter().find(|part| part.place == Place::Operator(o)) else {
            continue;
        };
        let kind = &graph.kinds[node.kind];
        let wanted = |&s: &usize| {
            let strategy = &kind.strategies[s];
            let alike = |(axis, &cuts): (usize, &u64)| strategy.parts(axis, mesh) == cuts;
            strategy.scatter.is_none() && part.cuts.iter().enumerate().all(alike)
        };
        // A mesh of several axes has several such strategies: the fastest of them.
        choice[n] = (0..graph.count(n)).filter(wanted).min_by_key(|&s| (kind.prices[s].time(), s));
    }
    let mut first: VecDeque<usize> = (0..graph.nodes.len()).filter(|&n| set[n]).collect();
    for edge in &graph.edges {
        for (end, other) in [(edge.from, edge.to), (edge.to, edge.from)] {
            if choice[end].is_some() {
                first.push_back(other);
            }
        }
    }
    propagate::complete(graph, choice, first, limit)
}

/// What a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A product or a loss, by its place among the operators.
    Operator(usize),
    /// A tensor of the dataset, by its place.
    Input(usize),
}

/// How a part weighs its cuts.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Weighing {
    /// A product: the axes of I, outermost first, then J and K.
    Product { rows: Vec<usize>, columns: usize, inner: usize },
    /// The outermost axis that can be cut, at no cost: datasets and losses.
    First,
}

/// A part of the network whose cuts are decided.
#[derive(Clone, Debug)]
struct Part {
    place: Place,
    loops: Loops,
    weighing: Weighing,
    /// Parts of each loop axis so far.
    cuts: Vec<u64>,
    /// The axis cut in this round; nothing inside for none.
    now: Option<Option<usize>>,
    /// The parts whose values it reads.
    reads: Vec<Read>,
}

/// That one part reads what another writes, with whatever stands between them taken away.
#[derive(Clone, Debug)]
struct Read {
    /// The writer.
    from: usize,
    /// The reader's input.
    input: usize,
    /// For each dimension of that input the writer's loop axis that it lies along.
    along: Vec<Option<usize>>,
}

/// Where a tensor's values come from: a part, and for each dimension that part's loop axis.
type Origin = (usize, Vec<Option<usize>>);

struct Parts {
    /// In the order in which they are decided.
    list: Vec<Part>,
}

impl Parts {
    fn new(network: &Network, devices: u64) -> Parts {
        let mut list: Vec<Part> =
            decided(network).into_iter().filter_map(|place| part(network, place)).collect();
        if devices >= LOSS_FIRST {
            list.sort_by_key(|part| match (part.place, &part.weighing) {
                (Place::Operator(_), Weighing::First) => 0,
                (Place::Operator(_), Weighing::Product { .. }) => 1,
                (Place::Input(_), _) => 2,
            });
        }
        let mut origins: Vec<Vec<Origin>> = vec![vec![]; network.graph.tensors.len()];
        for (p, part) in list.iter().enumerate() {
            if let Place::Input(t) = part.place {
                origins[t] = vec![(p, part.loops.outputs[0].clone())];
            }
        }
        for &o in &network.order {
            let (inputs, loops) = (&network.inputs[o], &network.loops[o]);
            let decided = list.iter().position(|part| part.place == Place::Operator(o));
            if let Some(p) = decided {
                for (input, &t) in inputs.iter().enumerate() {
                    let reads = origins[t].iter().cloned();
                    list[p].reads.extend(reads.map(|(from, along)| Read { from, input, along }));
                }
            }
            for (output, &t) in network.outputs[o].iter().enumerate() {
                origins[t] = match decided {
                    Some(p) => vec![(p, loops.outputs[output].clone())],
                    None => through(loops, inputs, output, &origins),
                };
            }
        }
        Parts { list }
    }

    /// One round: each part cuts one axis into so many parts more, or none.
    fn divide(&mut self, prime: u64) {
        for part in &mut self.list {
            part.now = None;
        }
        for p in 0..self.list.len() {
            let axis = self.best(p, prime);
            let part = &mut self.list[p];
            part.now = Some(axis);
            // The next round sees this cut; the readers of this one see what was before it.
            if let Some(axis) = axis {
                part.cuts[axis] *= prime;
            }
        }
    }

    fn best(&self, p: usize, prime: u64) -> Option<usize> {
        let part = &self.list[p];
        let free = |&axis: &usize| part.divides(axis, prime);
        let Weighing::Product { rows, columns, inner } = &part.weighing else {
            return (0..part.loops.axes.len()).find(free);
        };
        let moved = (prime - 1) as f64 / prime as f64;
        let weigh = |tensor: &[Option<usize>]| part.elements(tensor) * moved;
        let (input, weight, output) =
            (&part.loops.inputs[0], &part.loops.inputs[1], &part.loops.outputs[0]);
        let costs = [WEIGHTS * weigh(weight), weigh(input), weigh(output)];
        let uncut = costs.iter().copied().fold(f64::INFINITY, f64::min).powi(2) / UNCUT;
        // A product whose columns are cut keeps its inner axis whole from then on, and the other way round.
        let (columns, inner) = (*columns, *inner);
        let cuts = [
            rows.iter().copied().find(free),
            Some(columns).filter(|axis| part.cuts[inner] == 1 && free(axis)),
            Some(inner).filter(|axis| part.cuts[columns] == 1 && free(axis)),
        ];
        let mut least = (f64::INFINITY, None);
        for (cost, cut) in costs.into_iter().zip(cuts).filter(|(_, cut)| cut.is_some()) {
            let total = cost + self.reshards(p, cut);
            if total < least.0 {
                least = (total, cut);
            }
        }
        if uncut + self.reshards(p, None) < least.0 {
            least.1 = None;
        }
        least.1
    }

    /// What a cut of a part costs beside the neighbours that were cut in this round.
    fn reshards(&self, p: usize, cut: Option<usize>) -> f64 {
        let part = &self.list[p];
        let mut total = 0.0;
        for read in &part.reads {
            if self.list[read.from].now.is_some_and(|now| differs(read, now, &part.loops, cut)) {
                total += RESHARD * part.elements(&part.loops.inputs[read.input]);
            }
        }
        for reader in &self.list {
            let Some(now) = reader.now else { continue };
            for read in reader.reads.iter().filter(|read| read.from == p) {
                if differs(read, cut, &reader.loops, now) {
                    total += RESHARD * part.elements(&part.loops.outputs[0]);
                }
            }
        }
        total
    }
}

impl Part {
    fn divides(&self, axis: usize, prime: u64) -> bool {
        let free = self.loops.axes[axis].cut != Cut::Whole;
        free && (self.loops.axes[axis].size / self.cuts[axis]).is_multiple_of(prime)
    }

    /// Elements of a device's part of a tensor.
    fn elements(&self, tensor: &[Option<usize>]) -> f64 {
        let size = |&axis: &usize| (self.loops.axes[axis].size / self.cuts[axis]) as f64;
        tensor.iter().flatten().map(size).product()
    }
}

/// Whether a cut of the writer leaves its tensor in other parts than a cut of the reader wants.
fn differs(read: &Read, written: Option<usize>, reader: &Loops, wanted: Option<usize>) -> bool {
    let place = |cut: Option<usize>, dims: &[Option<usize>]| {
        cut.and_then(|axis| dims.iter().position(|&along| along == Some(axis)))
    };
    place(written, &read.along) != place(wanted, &reader.inputs[read.input])
}

/// What is decided, in its order: from the outputs backwards, last inputs first, each as it is first met; then the other way round.
fn decided(network: &Network) -> Vec<Place> {
    let mut met = vec![false; network.graph.operators.len()];
    let mut places = Vec::new();
    let last = |o: &&usize| network.outputs[**o].iter().all(|&t| network.readers[t].is_empty());
    let mut open: Vec<Place> =
        network.order.iter().filter(last).map(|&o| Place::Operator(o)).collect();
    while let Some(place) = open.pop() {
        match place {
            Place::Input(_) if places.contains(&place) => continue,
            Place::Input(_) => {}
            Place::Operator(o) if met[o] => continue,
            Place::Operator(o) => {
                met[o] = true;
                open.extend(network.inputs[o].iter().filter_map(|&t| match network.producer[t] {
                    Some(writer) => Some(Place::Operator(writer)),
                    None if network.graph.tensors[t].role == Role::Input => Some(Place::Input(t)),
                    None => None,
                }));
            }
        }
        places.push(place);
    }
    places.reverse();
    places
}

/// A part of the network, if its cuts are decided.
fn part(network: &Network, place: Place) -> Option<Part> {
    let (loops, weighing) = match place {
        Place::Input(t) => {
            let shape = network.graph.tensors[t].shape.iter();
            let axes: Vec<_> =
                shape.map(|&size| super::loops::Axis { size, cut: Cut::Free }).collect();
            let outputs = vec![(0..axes.len()).map(Some).collect()];
            (Loops { axes, inputs: vec![], outputs }, Weighing::First)
        }
        Place::Operator(o) => {
            let loops = network.loops[o].clone();
            let form = &network.graph.operators[o].form;
            // With leading dimensions of its own the second factor is no matrix.
            let weighing = if matches!(form, Form::Matmul { .. }) && loops.inputs[1].len() == 2 {
                let axes = loops.axes.len();
                let rows = (0..axes - 2).collect();
                Weighing::Product { rows, columns: axes - 1, inner: axes - 2 }
            } else if matches!(form, Form::CrossEntropy {}) {
                Weighing::First
            } else {
                return None;
            };
            (loops, weighing)
        }
    };
    let cuts = vec![1; loops.axes.len()];
    Some(Part { place, loops, weighing, cuts, now: None, reads: vec![] })
}

/// Where the values of an output come from when its operator is taken away: each origin once.
fn through(loops: &Loops, inputs: &[usize], output: usize, origins: &[Vec<Origin>]) -> Vec<Origin> {
    let mut found: Vec<Origin> = Vec::new();
    for (place, &t) in inputs.iter().enumerate() {
        for (from, along) in &origins[t] {
            if found.iter().any(|(other, _)| other == from) {
                continue;
            }
            let source = |axis: usize| {
                let dim = loops.inputs[place].iter().position(|&a| a == Some(axis))?;
                along[dim]
            };
            let dims = loops.outputs[output].iter().map(|axis| axis.and_then(source)).collect();
            found.push((*from, dims));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::ir::{Dtype, Gradients, Graph, Operator, Tensor, GRAPH_SCHEMA};

    /// `MatMul(ReLU(MatMul(x, w1)), w2)` with `x [rows, hidden]` and `w1 [hidden, inner]`.
    fn two_products(rows: u64, hidden: u64, inner: u64) -> Network {
        let tensor = |name: &str, shape: [u64; 2], role| Tensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype: Dtype::Float32,
            role,
        };
        let operator = |name: &str, form, inputs: &[&str], output: &str| Operator {
            name: name.to_owned(),
            source: String::new(),
            form,
            inputs: inputs.iter().map(|&input| input.to_owned()).collect(),
            outputs: vec![output.to_owned()],
            host: false,
            recompute: false,
        };
        let product = || Form::Matmul { transpose_a: false, transpose_b: false };
        let graph = Graph {
            schema: GRAPH_SCHEMA.to_owned(),
            name: "two products".to_owned(),
            gradients: Gradients::None,
            tensors: vec![
                tensor("x", [rows, hidden], Role::Input),
                tensor("w1", [hidden, inner], Role::Parameter),
                tensor("w2", [inner, hidden], Role::Parameter),
                tensor("a", [rows, inner], Role::Activation),
                tensor("r", [rows, inner], Role::Activation),
                tensor("b", [rows, hidden], Role::Activation),
            ],
            operators: vec![
                operator("first", product(), &["x", "w1"], "a"),
                operator("relu", Form::Elementwise {}, &["a"], "r"),
                operator("second", product(), &["r", "w2"], "b"),
            ],
        };
        graph.validate().expect("a valid graph")
    }

    /// Cuts of I, K and J of both products.
    fn cuts(network: &Network, devices: u64) -> Vec<Vec<u64>> {
        let mut parts = Parts::new(network, devices);
        for axis in &Mesh::new(&[devices]).axes {
            parts.divide(axis.size);
        }
        let products = parts.list.into_iter().filter(|part| part.weighing != Weighing::First);
        products.map(|part| part.cuts).collect()
    }

    #[test]
    fn the_costs_are_those_that_mindspore_prints() {
        // x [64, 4096], w1 [4096, 16384], the dataset cut along its rows: I 3.35544e6; J 131072 + 4.1943e6;
        // K 524288 + 4.1943e6; none 131072^2 / 25 + 4.1943e6 (GLOG_v=1, MindSpore 2.10.0).
        let network = two_products(64, 4096, 16384);
        let mut parts = Parts::new(&network, 8);
        let first = (0..3).find(|&p| parts.list[p].place == Place::Operator(0)).expect("a product");
        let dataset = (0..3).find(|&p| parts.list[p].place == Place::Input(0)).expect("a dataset");
        parts.list[dataset].now = Some(parts.best(dataset, 2));
        assert_eq!(parts.reshards(first, Some(0)), 0.0);
        assert_eq!(parts.reshards(first, Some(2)), 4_194_304.0);
        assert_eq!(parts.best(first, 2), Some(0));
    }

    #[test]
    fn real_choices_for_two_products_come_out() {
        // What MindSpore 2.10.0 chose: devices, rows, width, inner width; cuts of I and J of the first, I and K of the second.
        for (devices, rows, hidden, inner, wanted) in [
            (8, 128, 64, 256, [8, 1, 8, 1]),
            (8, 8, 4096, 16384, [1, 8, 1, 8]),
            (8, 64, 4096, 16384, [4, 2, 4, 2]),
            (64, 4096, 8192, 28672, [8, 8, 8, 8]),
            (16, 2048, 1024, 4096, [16, 1, 16, 1]),
            (256, 16384, 8192, 28672, [32, 8, 32, 8]),
        ] {
            let found = cuts(&two_products(rows, hidden, inner), devices);
            let [i, j, first_k, k, second_i, second_j] =
                [found[0][0], found[0][2], found[0][1], found[1][1], found[1][0], found[1][2]];
            assert_eq!([i, j, second_i, k], wanted, "{devices} devices, {rows} rows");
            assert_eq!([first_k, second_j], [1, 1]);
        }
    }
}
