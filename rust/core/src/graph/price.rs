//! What one operator costs with one strategy: the only judge of the operator level, with [`super::reshard`].
//!
//! Computation is priced with the device model of the cluster level on the shapes that are left on a device. An operator
//! of the graph's forward pass carries its gradient's cost in training. Work that is repeated is paid by everyone.

use super::form::Form;
use super::ir::{Dtype, Gradients, Network, Operator, Role};
use super::layout::{AxisIndex, Layout, Mesh};
use super::loops::{Cut, Loops};
use super::problem::{ReshardStep, ShardingOptions, Summands};
use super::reshard::Carrier;
use super::strategy::Strategy;
use crate::estimate::collective::Fabric;
use crate::estimate::compute::{Device, FusedAttention, Gemm};
use crate::spec::cluster::{Chip, Cluster};
use crate::spec::workload::Precision;
use crate::units::{Bytes, Time};

/// What an operator costs on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Price {
    /// Computation, forward and backward.
    pub compute: Time,
    /// Communication inside the operator.
    pub communication: Time,
    /// Communication of its parameters and their gradients.
    pub gradient: Time,
    /// Optimizer step of its parameters.
    pub optimizer: Time,
    /// Memory that it adds.
    pub memory: Bytes,
}

impl Price {
    /// All of its time.
    pub fn time(&self) -> Time {
        self.compute + self.communication + self.gradient + self.optimizer
    }
}

/// Prices the operators of one network on one mesh.
pub struct Pricer<'a> {
    /// The network.
    pub network: &'a Network,
    /// The mesh.
    pub mesh: &'a Mesh,
    /// What may be chosen.
    pub options: &'a ShardingOptions,
    /// Tensors whose gradients are computed beside the forward operators.
    pub gradients: Vec<bool>,
    chip: &'a Chip,
    fabric: Fabric<'a>,
    half: Device<'a>,
    single: Device<'a>,
}

/// Fused-attention kernels of a chip, as its table names them.
fn kernels(chip: &Chip) -> Vec<String> {
    let mut names: Vec<String> = chip.attention.iter().map(|row| row.kernel.clone()).collect();
    names.dedup();
    names
}

/// The format that 32-bit products run in: 32 bits where the chip has such a unit, or the nearest.
pub fn single_precision(chip: &Chip) -> Precision {
    let peaks = &chip.peak_tflops;
    match (peaks.fp32, peaks.tf32) {
        (Some(_), _) => Precision::Fp32,
        (None, Some(_)) => Precision::Tf32,
        (None, None) => half_precision(chip),
    }
}

fn half_precision(chip: &Chip) -> Precision {
    if chip.peak_tflops.bf16.is_some() {
        Precision::Bf16
    } else {
        Precision::Fp16
    }
}

impl<'a> Pricer<'a> {
    /// A pricer for a checked problem.
    pub fn new(
        network: &'a Network,
        cluster: &'a Cluster,
        options: &'a ShardingOptions,
        mesh: &'a Mesh,
    ) -> Pricer<'a> {
        let chip = &cluster.groups[0].chip;
        let kernels = kernels(chip);
        let device = |precision| Device::new(chip, precision, &kernels, cluster.devices);
        Pricer {
            network,
            mesh,
            options,
            gradients: gradients(network),
            chip,
            fabric: Fabric::new(cluster, chip),
            half: device(half_precision(chip)),
            single: device(single_precision(chip)),
        }
    }

    /// The steps from one layout to another of a tensor in its own format.
    pub fn reshard(&self, tensor: usize, from: &Layout, to: &Layout) -> Vec<ReshardStep> {
        let tensor = &self.network.graph.tensors[tensor];
        self.carrier().steps(from, to, &tensor.shape, tensor.dtype.bytes())
    }

    /// Whether a tensor is read where it lies, at no cost: a fixed or given one with a single reader.
    pub fn is_own(&self, tensor: usize) -> bool {
        let network = self.network;
        network.producer[tensor].is_none()
            && (network.readers[tensor].len() <= 1
                || network.graph.tensors[tensor].shape.iter().all(|&size| size == 1))
    }

    /// How many operators keep a tensor for their gradient.
    pub fn keepers(&self, tensor: usize) -> usize {
        let keeps =
            |&&(reader, place): &&(usize, usize)| self.network.kept_places(reader).contains(&place);
        self.network.readers[tensor].iter().filter(keeps).count()
    }

    /// The price of an operator with a strategy.
    pub fn operator(&self, operator: usize, strategy: &Strategy) -> Price {
        let view = View::new(self, operator, strategy);
        let (forward, backward) = view.computation();
        let again = if view.is_repeated() { (forward, view.sums()) } else { (0.0, 0.0) };
        let mut price = Price {
            compute: Time::from_seconds(forward + again.0) + Time::from_seconds(backward),
            communication: Time::from_seconds(view.communication() + again.1),
            memory: view.kept(),
            ..Price::default()
        };
        for (place, &tensor) in self.network.inputs[operator].iter().enumerate() {
            if self.is_own(tensor) {
                let layout = strategy.input_gradient(view.loops, place);
                self.weights(tensor, &layout, &mut price);
            }
        }
        if self.network.graph.operators[operator].host {
            // Parameters, their gradients and state stay in the host's memory.
            price.memory = Bytes::ZERO;
        }
        price
    }

    /// Bytes of activations that an operator keeps for the backward pass.
    pub fn activations(&self, operator: usize, strategy: &Strategy) -> Bytes {
        View::new(self, operator, strategy).kept()
    }

    /// The price of a tensor that several operators read, in the layout in which it is kept.
    pub fn source(&self, tensor: usize, layout: &Layout) -> Price {
        let mut price = Price::default();
        self.weights(tensor, layout, &mut price);
        price
    }

    /// Adds what a parameter or constant costs beside the operators that read it; `layout` is that of its gradient.
    ///
    /// Devices with equal copies add their gradients up. With ZeRO each does the optimizer step of a part and they
    /// gather the result: an all-reduce in two halves. From stage 3 on the parameters are gathered before each pass
    /// instead, so one gather more (Rajbhandari et al. 2020, arXiv:1910.02054).
    fn weights(&self, tensor: usize, layout: &Layout, price: &mut Price) {
        let spec = &self.network.graph.tensors[tensor];
        let elements = layout.elements(&spec.shape, self.mesh) as f64;
        let bytes = elements * spec.dtype.bytes() as f64;
        let whole = |bytes: f64| Bytes::from_f64(bytes.ceil());
        let trained = self.gradients[tensor];
        match spec.role {
            Role::Input | Role::Activation => return,
            Role::Constant => {
                price.memory += whole(bytes);
                return;
            }
            Role::Parameter if !trained => {
                price.memory += whole(bytes);
                return;
            }
            Role::Parameter => {}
        }
        let options = self.options;
        let copies = self.mesh.others(|axis| layout.dims.iter().any(|d| d.contains(&axis)));
        let share = if options.zero > 0 { self.mesh.parts(&copies) as f64 } else { 1.0 };
        let part = |from: u8| if options.zero >= from { share } else { 1.0 };
        let gradients = elements * options.gradient_bytes as f64;
        let state = elements * options.optimizer_bytes as f64 / share;
        price.memory += whole(bytes / part(3)) + whole(gradients / part(2)) + whole(state);
        let carrier = self.carrier();
        price.gradient += Time::from_seconds(if options.zero == 0 {
            carrier.all_reduce(&layout.summed, gradients)
        } else {
            let gathers = if options.zero >= 3 { 2.0 } else { 1.0 };
            carrier.all_gather(&layout.summed, gradients)
                + gathers * carrier.all_gather(&copies, bytes)
        });
        // State is read and written, the gradient read, the parameter written.
        let traffic = 2.0 * state + gradients / share + bytes / share;
        price.optimizer += Time::from_seconds(self.half.traffic(traffic));
    }

    fn carrier(&self) -> Carrier<'_> {
        Carrier {
            mesh: self.mesh,
            fabric: &self.fabric,
            device: &self.half,
            all_to_all: self.options.all_to_all,
        }
    }

    fn device(&self, dtype: Dtype) -> &Device<'a> {
        match dtype {
            Dtype::Float32 | Dtype::Float64 => &self.single,
            Dtype::Bool
            | Dtype::Int8
            | Dtype::Uint8
            | Dtype::Int16
            | Dtype::Int32
            | Dtype::Int64
            | Dtype::Float8
            | Dtype::Float16
            | Dtype::Bfloat16 => &self.half,
        }
    }
}

/// Which tensors get a gradient: parameters, and what is computed from them in floating point.
fn gradients(network: &Network) -> Vec<bool> {
    let graph = &network.graph;
    let mut needed: Vec<bool> = graph
        .tensors
        .iter()
        .map(|t| {
            graph.gradients == Gradients::Implied && t.role == Role::Parameter && t.dtype.is_float()
        })
        .collect();
    for &operator in &network.order {
        if network.inputs[operator].iter().any(|&t| needed[t]) {
            for &t in &network.outputs[operator] {
                needed[t] = graph.tensors[t].dtype.is_float();
            }
        }
    }
    needed
}

/// Time of all steps of a reshard.
pub fn steps_time(steps: &[ReshardStep]) -> Time {
    steps.iter().map(|step| step.time_ps).sum()
}

/// What is done with an operator's summands.
pub fn summands(strategy: &Strategy, loops: &Loops) -> Summands {
    let any = (0..loops.outputs.len()).any(|i| !strategy.raw_output(loops, i).summed.is_empty());
    match (any, strategy.scatter) {
        (false, _) => Summands::None,
        (true, None) => Summands::AllReduce,
        (true, Some(_)) => Summands::ReduceScatter,
    }
}

/// An operator with a strategy, as one device sees it.
struct View<'a, 'b> {
    pricer: &'b Pricer<'a>,
    operator: usize,
    strategy: &'b Strategy,
    loops: &'b Loops,
    inputs: Vec<Vec<u64>>,
    outputs: Vec<Vec<u64>>,
}

impl<'a, 'b> View<'a, 'b> {
    fn new(pricer: &'b Pricer<'a>, operator: usize, strategy: &'b Strategy) -> View<'a, 'b> {
        let network = pricer.network;
        let loops = &network.loops[operator];
        let local = |tensors: &[usize], dims: &[Vec<Option<usize>>]| -> Vec<Vec<u64>> {
            let cut = |size: u64, axis: Option<usize>| {
                axis.map_or(size, |axis| size / strategy.parts(axis, pricer.mesh))
            };
            tensors
                .iter()
                .zip(dims)
                .map(|(&t, dims)| {
                    let shape = &network.graph.tensors[t].shape;
                    shape.iter().zip(dims).map(|(&size, &axis)| cut(size, axis)).collect()
                })
                .collect()
        };
        View {
            pricer,
            operator,
            strategy,
            loops,
            inputs: local(&network.inputs[operator], &loops.inputs),
            outputs: local(&network.outputs[operator], &loops.outputs),
        }
    }

    fn form(&self) -> &'b Form {
        &self.pricer.network.graph.operators[self.operator].form
    }

    fn read(&self, place: usize) -> usize {
        self.pricer.network.inputs[self.operator][place]
    }

    fn written(&self, place: usize) -> usize {
        self.pricer.network.outputs[self.operator][place]
    }

    fn dtype(&self, tensor: usize) -> Dtype {
        self.pricer.network.graph.tensors[tensor].dtype
    }

    fn input_bytes(&self, place: usize) -> f64 {
        product(&self.inputs[place]) as f64 * self.dtype(self.read(place)).bytes() as f64
    }

    fn output_bytes(&self, place: usize) -> f64 {
        product(&self.outputs[place]) as f64 * self.dtype(self.written(place)).bytes() as f64
    }

    fn has_gradient(&self, place: usize) -> bool {
        self.pricer.gradients[self.read(place)]
    }

    fn any_gradient(&self) -> bool {
        (0..self.outputs.len()).any(|place| self.pricer.gradients[self.written(place)])
    }

    /// Seconds of the forward and of the backward pass.
    fn computation(&self) -> (f64, f64) {
        if self.pricer.network.graph.operators[self.operator].host {
            return self.on_host();
        }
        let device = self.pricer.device(self.dtype(self.written(0)));
        match self.form() {
            Form::Matmul { .. } | Form::Convolution { .. } => {
                let gemm = self.gemm();
                let mut backward = 0.0;
                if self.has_gradient(0) {
                    backward += device.plain(gemm.input_gradient());
                }
                if self.has_gradient(1) {
                    backward += device.plain(gemm.weight_gradient());
                }
                (device.plain(gemm), backward)
            }
            Form::Attention { causal } => self.attention(device, *causal),
            Form::Reshape {} => (0.0, 0.0),
            Form::Gather { .. } => {
                // Only the rows that are named move.
                let bytes = 2.0 * self.output_bytes(0) + self.input_bytes(1);
                let seconds = device.stream(bytes);
                (seconds, if self.any_gradient() { seconds } else { 0.0 })
            }
            Form::Pool { .. }
            | Form::Norm { .. }
            | Form::BatchNorm { .. }
            | Form::Softmax { .. }
            | Form::Elementwise {}
            | Form::Reduce { .. }
            | Form::Transpose { .. }
            | Form::Concat { .. }
            | Form::Split { .. }
            | Form::Slice { .. }
            | Form::CrossEntropy {}
            | Form::OneHot { .. }
            | Form::TopK { .. }
            | Form::Opaque {} => self.memory_bound(device),
        }
    }

    /// Everything is read and written once; backward the gradients likewise, and the inputs that were kept are read.
    fn memory_bound(&self, device: &Device<'_>) -> (f64, f64) {
        let read: f64 = (0..self.inputs.len()).map(|i| self.input_bytes(i)).sum();
        let written: f64 = (0..self.outputs.len()).map(|i| self.output_bytes(i)).sum();
        let forward = device.stream(read + written);
        if !self.any_gradient() {
            return (forward, 0.0);
        }
        let gradients: f64 = (0..self.inputs.len())
            .filter(|&i| self.has_gradient(i))
            .map(|i| self.input_bytes(i))
            .sum();
        let kept: f64 = self.kept_places().into_iter().map(|i| self.input_bytes(i)).sum();
        (forward, device.stream(written + gradients + kept))
    }

    fn on_host(&self) -> (f64, f64) {
        let host = &self.pricer.chip.host;
        let moved = |bytes: f64| bytes / (host.pcie_gb_per_s * 1e9);
        let worked = |bytes: f64| bytes / (host.memory_gb_per_s * 1e9);
        let activations: f64 = (0..self.inputs.len())
            .filter(|&i| !self.pricer.is_own(self.read(i)))
            .map(|i| self.input_bytes(i))
            .sum();
        let written: f64 = (0..self.outputs.len()).map(|i| self.output_bytes(i)).sum();
        let read: f64 = match self.form() {
            Form::Gather { .. } => written,
            _ => (0..self.inputs.len()).map(|i| self.input_bytes(i)).sum(),
        };
        let forward = moved(activations + written) + worked(read + written);
        (forward, if self.any_gradient() { forward } else { 0.0 })
    }

    /// The product that a matrix product or a convolution is on this device.
    fn gemm(&self) -> Gemm {
        let sizes = |i: usize| {
            let parts = self.strategy.parts(i, self.pricer.mesh);
            self.loops.axes[i].size / parts
        };
        let axes = self.loops.axes.len();
        match self.form() {
            Form::Convolution { .. } => {
                let (filter, out) = (&self.inputs[1], &self.outputs[0]);
                let groups = self.inputs[0][1] / filter[1];
                let n = out[1] / groups.max(1);
                let m = out[0] * product(&out[2..]);
                Gemm::batched(groups.max(1), m, n, product(&filter[1..]))
            }
            _ => {
                let (m, k, n) = (sizes(axes - 3), sizes(axes - 2), sizes(axes - 1));
                let batch: u64 = (0..axes - 3).map(sizes).product();
                let shared = self.loops.inputs[1].len() == 2;
                if shared {
                    Gemm::new(batch * m, n, k)
                } else {
                    Gemm::batched(batch, m, n, k)
                }
            }
        }
    }

    fn attention(&self, device: &Device<'_>, causal: bool) -> (f64, f64) {
        let (q, k, v) = (&self.inputs[0], &self.inputs[1], &self.inputs[2]);
        let all = (q[0] * q[1]) as f64 * q[2] as f64 * k[2] as f64;
        let gradient = self.any_gradient();
        if device.has_fused_attention() {
            let pairs = if causal { all / 2.0 } else { all };
            let a = FusedAttention { pairs, qk_dim: q[3], v_dim: v[3], sequence: k[2] };
            let backward = if gradient { device.attention_backward(a) } else { 0.0 };
            return (device.attention_forward(a), backward);
        }
        let score = Gemm::batched(q[0] * q[1], q[2], k[2], q[3]);
        let value = Gemm::batched(q[0] * q[1], q[2], v[3], k[2]);
        // Scores are written, read and written by the softmax, and read again.
        let softmax = device.stream(4.0 * all * self.dtype(self.written(0)).bytes() as f64);
        let forward = device.plain(score) + device.plain(value) + softmax;
        (forward, if gradient { 2.0 * forward } else { 0.0 })
    }

    /// Whether the forward pass runs once more.
    fn is_repeated(&self) -> bool {
        self.pricer.network.graph.operators[self.operator].recompute && self.any_gradient()
    }

    /// Seconds in which summands are added up in a forward pass.
    fn sums(&self) -> f64 {
        let carrier = self.pricer.carrier();
        let sum = |place: usize| {
            let summed = self.strategy.raw_output(self.loops, place).summed;
            let bytes = self.output_bytes(place);
            if self.strategy.scatter.is_some() && place == 0 {
                carrier.all_gather(&summed, bytes)
            } else {
                carrier.all_reduce(&summed, bytes)
            }
        };
        (0..self.outputs.len()).map(sum).sum()
    }

    /// Seconds of communication that the strategy itself entails.
    fn communication(&self) -> f64 {
        let carrier = self.pricer.carrier();
        let mut total = self.sums();
        if self.strategy.scatter.is_some() && self.any_gradient() {
            // The gradient arrives in the same parts and is gathered.
            let summed = self.strategy.raw_output(self.loops, 0).summed;
            total += carrier.all_gather(&summed, self.output_bytes(0));
        }
        for (i, axis) in self.loops.axes.iter().enumerate() {
            let cut = &self.strategy.axes[i];
            match axis.cut {
                Cut::Agreed(rounds) if !cut.is_empty() => {
                    let rows: u64 = self.inputs[0]
                        .iter()
                        .zip(&self.loops.inputs[0])
                        .filter(|(_, &along)| along != Some(i))
                        .map(|(&size, _)| size)
                        .product();
                    let bytes = rows as f64 * Dtype::Float32.bytes() as f64;
                    total += rounds as f64 * carrier.all_reduce(cut, bytes);
                }
                Cut::Window(places) if places > 0 && !cut.is_empty() => {
                    total += self.halo(i, places, cut);
                }
                Cut::Agreed(_) | Cut::Window(_) | Cut::Free | Cut::Summed | Cut::Whole => {}
            }
        }
        total
    }

    /// Seconds to fetch the neighbours' places beyond the own part, and to send their gradients back.
    fn halo(&self, axis: usize, places: u64, cut: &[AxisIndex]) -> f64 {
        let Some(dim) = self.loops.inputs[0].iter().position(|&along| along == Some(axis)) else {
            return 0.0;
        };
        let bytes = self.input_bytes(0) * places as f64 / self.inputs[0][dim] as f64;
        let distance = self.pricer.mesh.group(&cut[cut.len() - 1..]).stride;
        let both = if self.has_gradient(0) { 2.0 } else { 1.0 };
        both * self.pricer.fabric.send(bytes, distance)
    }

    /// Inputs whose values the gradient needs.
    fn kept_places(&self) -> Vec<usize> {
        if !self.any_gradient() {
            return vec![];
        }
        self.pricer.network.kept_places(self.operator)
    }

    /// Bytes of activations kept for the backward pass. What several operators keep of one tensor is one copy.
    fn kept(&self) -> Bytes {
        let network = self.pricer.network;
        let mut total = 0;
        for place in self.kept_places() {
            let tensor = self.read(place);
            let role = network.graph.tensors[tensor].role;
            if role == Role::Activation || role == Role::Input {
                let keepers = self.pricer.keepers(tensor).max(1) as u64;
                total += (self.input_bytes(place) as u64).div_ceil(keepers);
            }
        }
        let result = matches!(self.form(), Form::Softmax { .. } | Form::Attention { .. });
        if result && self.any_gradient() && !self.is_repeated() {
            total += self.output_bytes(0) as u64;
        }
        Bytes(total)
    }
}

impl Network {
    /// Inputs that are kept for an operator's backward pass: those that its gradient needs, or all where it runs again; but not
    /// what an operator writes that itself runs again.
    pub fn kept_places(&self, operator: usize) -> Vec<usize> {
        let inputs = self.inputs[operator].len();
        let needed = if self.graph.operators[operator].recompute {
            (0..inputs).collect()
        } else {
            gradient_places(&self.graph.operators[operator], inputs)
        };
        let stays = |&place: &usize| {
            let writer = self.producer[self.inputs[operator][place]];
            writer.is_none_or(|writer| !self.graph.operators[writer].recompute)
        };
        needed.into_iter().filter(stays).collect()
    }
}

/// Inputs whose values an operator's gradient needs, if it has one.
fn gradient_places(operator: &Operator, inputs: usize) -> Vec<usize> {
    match &operator.form {
        Form::Matmul { .. } => vec![0, 1],
        Form::Convolution { .. }
        | Form::Pool { .. }
        | Form::Norm { .. }
        | Form::BatchNorm { .. }
        | Form::CrossEntropy {} => vec![0],
        Form::Gather { .. } => vec![1],
        Form::Attention { .. } => vec![0, 1, 2],
        // A sum needs nothing, a product its factors, a function of one input that input.
        Form::Elementwise {} => match operator.source.as_str() {
            "Add" | "Sub" | "BiasAdd" | "AddV2" | "Cast" | "Identity" | "Expand" => vec![],
            _ => (0..inputs).collect(),
        },
        Form::Opaque {} => (0..inputs).collect(),
        Form::Softmax { .. }
        | Form::Reduce { .. }
        | Form::Reshape {}
        | Form::Transpose { .. }
        | Form::Concat { .. }
        | Form::Split { .. }
        | Form::Slice { .. }
        | Form::OneHot { .. }
        | Form::TopK { .. } => vec![],
    }
}

fn product(shape: &[u64]) -> u64 {
    shape.iter().product()
}
