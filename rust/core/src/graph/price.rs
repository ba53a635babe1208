//! What parameters and reshards cost: with `work`, which prices operators, the only judge of the operator level.
//!
//! An operator of the graph's forward pass carries its gradient's cost in training. Work that is repeated is paid by
//! everyone.

use super::backward;
use super::ir::{Dtype, Network, Role};
use super::layout::{AxisIndex, Layout, Mesh};
use super::loops::Loops;
use super::problem::{FixedInput, ReshardStep, ShardingOptions, Summands};
use super::reshard::{Carrier, Walker};
use super::strategy::Strategy;
use crate::estimate::collective::Fabric;
use crate::estimate::compute::Device;
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

/// How an operator reads a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reading {
    /// How it must lie.
    pub layout: Layout,
    /// It is fetched a second time for the backward pass.
    pub again: bool,
    /// How its gradient lies when it has been computed, if it has one.
    pub gradient: Option<Layout>,
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
    pub(super) chip: &'a Chip,
    pub(super) fabric: Fabric<'a>,
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
        let gradients = backward::gradients(network);
        Pricer {
            network,
            mesh,
            options,
            kept: backward::kept(network, &gradients),
            gradients,
            chip,
            fabric: Fabric::new(cluster, chip),
            half: device(half_precision(chip)),
            single: device(single_precision(chip)),
        }
    }

    /// The steps from one layout to another of a tensor in its own format.
    pub fn reshard(&self, tensor: usize, from: &Layout, to: &Layout) -> Vec<ReshardStep> {
        self.walker().steps(from, to, self.network.graph.tensors[tensor].bytes())
    }

    /// How an operator reads a tensor that is its input at a place.
    ///
    /// An activation is kept as it was written. A gradient that needs it, and an operator that is recomputed, fetch it again.
    pub fn reading(
        &self,
        tensor: usize,
        operator: usize,
        strategy: &Strategy,
        input: usize,
    ) -> Reading {
        let loops = &self.network.loops[operator];
        let from_dataset = self.network.graph.tensors[tensor].role == Role::Input;
        let needed = strategy.recompute || self.needs(operator, input);
        Reading {
            layout: strategy.input(loops, input),
            again: needed && !from_dataset,
            gradient: self.gradients[tensor].then(|| strategy.input_gradient(loops, input)),
        }
    }

    /// The steps that bring a tensor from its writer's layout to a reader, forward and backward.
    pub fn transfer(
        &self,
        tensor: usize,
        written: &Layout,
        reader: (usize, &Strategy),
        input: usize,
    ) -> (Vec<ReshardStep>, Vec<ReshardStep>) {
        let reading = self.reading(tensor, reader.0, reader.1, input);
        let forward = self.reshard(tensor, written, &reading.layout);
        let mut backward = if reading.again { forward.clone() } else { vec![] };
        if let Some(gradient) = reading.gradient {
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
        backward::needs(self.network, &self.gradients, operator, input)
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
    pub(super) fn weights(&self, tensor: usize, layout: &Layout, price: &mut Price) {
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

    pub(super) fn walker(&self) -> Walker<'_> {
        Walker::new(self.carrier())
    }

    pub(super) fn carrier(&self) -> Carrier<'_> {
        Carrier {
            mesh: self.mesh,
            fabric: &self.fabric,
            device: &self.half,
            all_to_all: self.options.all_to_all,
        }
    }

    pub(super) fn device(&self, dtype: Dtype) -> &Device<'a> {
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
