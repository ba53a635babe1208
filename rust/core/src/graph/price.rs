//! What one operator costs with one strategy: the only judge of the operator level, with [`super::reshard`].
//!
//! Computation is priced with the device model of the cluster level on the shapes that are left on a device. An operator
//! of the graph's forward pass carries its gradient's cost in training. Work that is repeated is paid by everyone.

use super::form::Form;
use super::ir::{Dtype, Gradients, Network, Operator, Role};
use super::layout::{AxisIndex, Layout, Mesh};
use super::loops::{Cut, Loops};
use super::problem::{Collective, FixedInput, ReshardStep, ShardingOptions, Summands};
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
    /// Its forward pass once more, with its communication, if it is recomputed.
    pub recompute: Time,
    /// Communication of its parameters and their gradients.
    pub gradient: Time,
    /// Optimizer step of its parameters.
    pub optimizer: Time,
    /// Memory that it adds.
    pub memory: Bytes,
}

/// What the copies of a parameter exchange in a step, on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// Bytes of the part that operators read.
    pub bytes: f64,
    /// Bytes of its gradient.
    pub gradient: f64,
    /// Axes of the mesh along which devices hold summands of the gradient.
    pub summed: Vec<AxisIndex>,
    /// Axes along which devices hold equal parts.
    pub copies: Vec<AxisIndex>,
}

impl Price {
    /// All of its time.
    pub fn time(&self) -> Time {
        self.compute + self.communication + self.recompute + self.gradient + self.optimizer
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
    /// Activations that a gradient needs.
    kept: Vec<bool>,
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
        let gradients = gradients(network);
        Pricer {
            network,
            mesh,
            options,
            kept: kept(network, &gradients),
            gradients,
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

    /// The steps that bring a tensor from its writer's layout to a reader, forward and backward.
    ///
    /// An activation is kept as it was written. A gradient that needs it, and an operator that is recomputed, fetch it again.
    pub fn transfer(
        &self,
        tensor: usize,
        written: &Layout,
        reader: (usize, &Strategy),
        input: usize,
    ) -> (Vec<ReshardStep>, Vec<ReshardStep>) {
        let (operator, strategy) = reader;
        let loops = &self.network.loops[operator];
        let forward = self.reshard(tensor, written, &strategy.input(loops, input));
        let mut backward = Vec::new();
        let from_dataset = self.network.graph.tensors[tensor].role == Role::Input;
        let needed = strategy.recompute || self.needs(operator, input);
        if needed && !from_dataset {
            backward.extend(forward.iter().cloned());
        }
        if self.gradients[tensor] {
            let gradient = strategy.input_gradient(loops, input);
            backward.extend(self.reshard(tensor, &gradient, written));
        }
        (forward, backward)
    }

    /// How the user cuts a tensor of the dataset, if so.
    pub fn fixed_input(&self, tensor: usize) -> Option<&'a FixedInput> {
        let name = &self.network.graph.tensors[tensor].name;
        self.options.dataset.iter().find(|input| &input.tensor == name)
    }

    /// Whether a tensor is read where it lies, at no cost: a fixed or given one with a single reader.
    pub fn is_own(&self, tensor: usize) -> bool {
        let network = self.network;
        network.producer[tensor].is_none()
            && self.fixed_input(tensor).is_none()
            && (network.readers[tensor].len() <= 1
                || network.graph.tensors[tensor].shape.iter().all(|&size| size == 1))
    }

    /// How many operators need a tensor for their gradient.
    pub fn keepers(&self, tensor: usize) -> usize {
        let keeps = |&&(reader, place): &&(usize, usize)| self.needs(reader, place);
        self.network.readers[tensor].iter().filter(keeps).count()
    }

    /// Whether a gradient needs an activation.
    pub fn is_kept(&self, tensor: usize) -> bool {
        self.kept[tensor]
    }

    /// Whether the gradient of an operator needs one of its inputs.
    fn needs(&self, operator: usize, input: usize) -> bool {
        needs(self.network, &self.gradients, operator, input)
    }

    /// The price of an operator with a strategy.
    pub fn operator(&self, operator: usize, strategy: &Strategy) -> Price {
        let view = View::new(self, operator, strategy);
        let (forward, backward) = view.computation();
        let mut price = Price {
            compute: Time::from_seconds(forward) + Time::from_seconds(backward),
            communication: Time::from_seconds(view.communication()),
            recompute: Time::from_seconds(if strategy.recompute && view.any_gradient() {
                forward + view.forward_communication()
            } else {
                0.0
            }),
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
        let elements = layout.elements(&self.network.roomy(tensor), self.mesh) as f64;
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
        let Some(exchange) = self.exchange(tensor, layout) else { return };
        let options = self.options;
        let share = if options.zero > 0 { self.mesh.parts(&exchange.copies) as f64 } else { 1.0 };
        let part = |from: u8| if options.zero >= from { share } else { 1.0 };
        let gradients = exchange.gradient;
        let state = elements * options.optimizer_bytes as f64 / share;
        price.memory += whole(bytes / part(3)) + whole(gradients / part(2)) + whole(state);
        let gathers = match options.zero {
            0 => 0.0,
            1 | 2 => 1.0,
            _ => 2.0,
        };
        let seconds = self.reduction(&exchange.summed, gradients)
            + gathers * self.gathering(&exchange.copies, bytes);
        price.gradient += Time::from_seconds(seconds);
        // State is read and written, the gradient read, the parameter written.
        let traffic = 2.0 * state + gradients / share + bytes / share;
        price.optimizer += Time::from_seconds(self.half.traffic(traffic));
    }

    /// What a trained parameter's copies exchange in a step; `layout` is that of its gradient.
    pub fn exchange(&self, tensor: usize, layout: &Layout) -> Option<Exchange> {
        let spec = &self.network.graph.tensors[tensor];
        if spec.role != Role::Parameter || !self.gradients[tensor] {
            return None;
        }
        let elements = layout.elements(&self.network.roomy(tensor), self.mesh) as f64;
        let cut = |axis| layout.dims.iter().any(|dims| dims.contains(&axis));
        Some(Exchange {
            bytes: elements * spec.dtype.bytes() as f64,
            gradient: elements * self.options.gradient_bytes as f64,
            summed: layout.summed.clone(),
            copies: self.mesh.others(cut),
        })
    }

    /// Seconds to add gradients up: on every device, or with ZeRO each part on one of them.
    pub fn reduction(&self, summed: &[AxisIndex], bytes: f64) -> f64 {
        if self.options.zero == 0 {
            self.carrier().all_reduce(summed, bytes)
        } else {
            self.carrier().all_gather(summed, bytes)
        }
    }

    /// Seconds to put parameters together that lie divided among copies.
    pub fn gathering(&self, copies: &[AxisIndex], bytes: f64) -> f64 {
        self.carrier().all_gather(copies, bytes)
    }

    /// The collectives inside an operator, forward and backward: what is done, over which axes, with how many bytes.
    pub fn collectives(
        &self,
        operator: usize,
        strategy: &Strategy,
    ) -> Vec<(Collective, Vec<AxisIndex>, Bytes)> {
        let view = View::new(self, operator, strategy);
        let mut all = view.forward_collectives();
        if strategy.recompute && view.any_gradient() {
            all.extend(view.forward_collectives());
        }
        let summed = strategy.raw_output(view.loops, 0).summed;
        if strategy.scatter.is_some() && view.any_gradient() && !summed.is_empty() {
            all.push((Collective::AllGather, summed, Bytes::from_f64(view.output_bytes(0))));
        }
        all
    }

    /// Time of an operator's forward and backward pass, communication inside it included.
    pub fn passes(&self, operator: usize, strategy: &Strategy) -> (Time, Time) {
        let view = View::new(self, operator, strategy);
        let price = self.operator(operator, strategy);
        let all = price.compute + price.communication + price.recompute;
        let forward = view.computation().0 + view.forward_communication();
        let forward = Time::from_seconds(forward).min(all);
        (forward, all - forward)
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

/// Which activations a gradient needs: those that a reader's does, and the results of operators whose own does.
fn kept(network: &Network, gradients: &[bool]) -> Vec<bool> {
    let needed = |t: usize| {
        let own = network.producer[t].is_some_and(|o| {
            let form = &network.graph.operators[o].form;
            gradients[t] && matches!(form, Form::Softmax { .. } | Form::Attention { .. })
        });
        own || network.readers[t].iter().any(|&(o, place)| needs(network, gradients, o, place))
    };
    (0..network.graph.tensors.len())
        .map(|t| network.graph.tensors[t].role == Role::Activation && needed(t))
        .collect()
}

/// Whether the gradient of an operator needs one of its inputs.
fn needs(network: &Network, gradients: &[bool], operator: usize, input: usize) -> bool {
    network.outputs[operator].iter().any(|&t| gradients[t])
        && gradient_places(&network.graph.operators[operator], network.inputs[operator].len())
            .contains(&input)
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
                    let shape = network.roomy(t);
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

    fn spec(&self) -> &'b Operator {
        &self.pricer.network.graph.operators[self.operator]
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
            Form::Attention { causal, window } => self.attention(device, *causal, *window),
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
            | Form::Route {}
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

    fn attention(&self, device: &Device<'_>, causal: bool, window: Option<u64>) -> (f64, f64) {
        let (q, k, v) = (&self.inputs[0], &self.inputs[1], &self.inputs[2]);
        let all = (q[0] * q[1]) as f64 * q[2] as f64 * k[2] as f64;
        let gradient = self.any_gradient();
        if device.has_fused_attention() {
            let pairs = all * seen_share(k[2] as f64, causal, window);
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

    /// Seconds of communication that the strategy itself entails, forward and backward.
    fn communication(&self) -> f64 {
        let mut total = self.forward_communication();
        if self.strategy.scatter.is_some() && self.any_gradient() {
            // The gradient arrives in the same parts and is gathered.
            let summed = self.strategy.raw_output(self.loops, 0).summed;
            total += self.pricer.carrier().all_gather(&summed, self.output_bytes(0));
        }
        if self.has_gradient(0) {
            total += self.halos();
        }
        total
    }

    /// Seconds of communication of the forward pass.
    fn forward_communication(&self) -> f64 {
        let carrier = self.pricer.carrier();
        let seconds = |(operation, axes, bytes): &(Collective, Vec<AxisIndex>, Bytes)| {
            if *operation == Collective::AllReduce {
                carrier.all_reduce(axes, bytes.0 as f64)
            } else {
                carrier.all_gather(axes, bytes.0 as f64)
            }
        };
        self.halos() + self.forward_collectives().iter().map(seconds).sum::<f64>()
    }

    /// All-reduces and reduce-scatters of the forward pass.
    fn forward_collectives(&self) -> Vec<(Collective, Vec<AxisIndex>, Bytes)> {
        let mut all = Vec::new();
        for place in 0..self.outputs.len() {
            let summed = self.strategy.raw_output(self.loops, place).summed;
            let operation = if self.strategy.scatter.is_some() && place == 0 {
                Collective::ReduceScatter
            } else {
                Collective::AllReduce
            };
            if !summed.is_empty() {
                all.push((operation, summed, Bytes::from_f64(self.output_bytes(place))));
            }
        }
        for (i, axis) in self.loops.axes.iter().enumerate() {
            let cut = &self.strategy.axes[i];
            let Cut::Agreed(rounds) = axis.cut else { continue };
            if cut.is_empty() {
                continue;
            }
            let rows: u64 = self.inputs[0]
                .iter()
                .zip(&self.loops.inputs[0])
                .filter(|(_, &along)| along != Some(i))
                .map(|(&size, _)| size)
                .product();
            let bytes = Bytes(rows * Dtype::Float32.bytes());
            all.extend((0..rounds).map(|_| (Collective::AllReduce, cut.clone(), bytes)));
        }
        all
    }

    /// Seconds to fetch all neighbours' places beyond the own part; their gradients go back likewise.
    fn halos(&self) -> f64 {
        let mut total = 0.0;
        for (i, axis) in self.loops.axes.iter().enumerate() {
            match axis.cut {
                Cut::Window(places) if places > 0 && !self.strategy.axes[i].is_empty() => {
                    total += self.halo(i, places, &self.strategy.axes[i]);
                }
                Cut::Agreed(_) | Cut::Window(_) | Cut::Free | Cut::Summed | Cut::Whole => {}
            }
        }
        total
    }

    /// Seconds to fetch the neighbours' places along one axis.
    fn halo(&self, axis: usize, places: u64, cut: &[AxisIndex]) -> f64 {
        let Some(dim) = self.loops.inputs[0].iter().position(|&along| along == Some(axis)) else {
            return 0.0;
        };
        let bytes = self.input_bytes(0) * places as f64 / self.inputs[0][dim] as f64;
        let distance = self.pricer.mesh.group(&cut[cut.len() - 1..]).stride;
        self.pricer.fabric.send(bytes, distance)
    }

    /// Inputs whose values the gradient needs.
    fn kept_places(&self) -> Vec<usize> {
        if !self.any_gradient() {
            return vec![];
        }
        gradient_places(self.spec(), self.inputs.len())
    }

    /// Bytes kept for the backward pass: the outputs that a gradient needs, as they are written, each once whoever needs
    /// it. A recomputed operator keeps none of them, but what it is computed from must be there (Chen et al. 2016,
    /// arXiv:1604.06174): inputs that no gradient needs are kept for it. What operators keep of the dataset is one copy.
    fn kept(&self) -> Bytes {
        let pricer = self.pricer;
        let mut total = 0;
        for place in self.kept_places() {
            let tensor = self.read(place);
            if pricer.network.graph.tensors[tensor].role == Role::Input {
                let keepers = pricer.keepers(tensor).max(1) as u64;
                total += (self.input_bytes(place) as u64).div_ceil(keepers);
            }
        }
        if self.strategy.recompute {
            for place in 0..self.inputs.len() {
                let tensor = self.read(place);
                let writer = pricer.network.producer[tensor];
                // What an operator writes that itself always runs again is there anyway.
                let stays = |writer: usize| !pricer.network.graph.operators[writer].recompute;
                if writer.is_some_and(stays) && !pricer.is_kept(tensor) {
                    total += self.input_bytes(place) as u64;
                }
            }
            return Bytes(total);
        }
        for place in 0..self.outputs.len() {
            let tensor = self.written(place);
            if pricer.is_kept(tensor) {
                let spec = &pricer.network.graph.tensors[tensor];
                let layout = self.strategy.output(self.loops, place);
                total += layout.elements(&spec.shape, pricer.mesh) * spec.dtype.bytes();
            }
        }
        Bytes(total)
    }
}

/// Share of all pairs of queries and keys that are computed. Of a window of `w` of `n` places the first `w` queries see half of
/// it on average if each sees only what is before it, and the others all of it.
fn seen_share(places: f64, causal: bool, window: Option<u64>) -> f64 {
    let seen = window.map_or(places, |window| places.min(window as f64)) / places;
    if causal {
        seen * seen / 2.0 + seen * (1.0 - seen)
    } else {
        seen
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
        Form::Route {} => (1..inputs).collect(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_leaves_a_share_of_the_pairs() {
        assert_eq!(seen_share(8.0, false, None), 1.0);
        assert_eq!(seen_share(8.0, true, None), 0.5);
        // Four of eight places: 16 / 2 pairs of the first four queries and 4 x 4 of the others, of 64.
        assert_eq!(seen_share(8.0, true, Some(4)), 24.0 / 64.0);
        assert_eq!(seen_share(8.0, true, Some(100)), 0.5);
    }
}
