//! The work of one operator with a strategy on one device: what it computes, sends and keeps there.
//!
//! Computation is priced with the device model of the cluster level on the shapes that are left on a device.

use super::backward::gradient_places;
use super::form::Form;
use super::ir::{Dtype, Operator, Role};
use super::layout::AxisIndex;
use super::loops::{Cut, Loops};
use super::price::{Price, Pricer};
use super::problem::Collective;
use super::strategy::Strategy;
use crate::estimate::compute::{Device, Gemm};
use crate::estimate::fused_attention::FusedAttention;
use crate::units::{Bytes, Time};

impl Pricer<'_> {
    /// The price of an operator with a strategy.
    pub fn operator(&self, operator: usize, strategy: &Strategy) -> Price {
        let work = Work::new(self, operator, strategy);
        let (forward, backward) = work.computation();
        let mut price = Price {
            compute: Time::from_seconds(forward) + Time::from_seconds(backward),
            communication: Time::from_seconds(work.communication()),
            recompute: Time::from_seconds(if strategy.recompute && work.any_gradient() {
                forward + work.forward_communication()
            } else {
                0.0
            }),
            memory: work.kept(),
            ..Price::default()
        };
        for (place, &tensor) in self.network.inputs[operator].iter().enumerate() {
            if self.is_own(tensor) {
                let layout = strategy.input_gradient(work.loops, place);
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
        Work::new(self, operator, strategy).kept()
    }

    /// The collectives inside an operator, forward and backward: what is done, over which axes, with how many bytes.
    pub fn collectives(
        &self,
        operator: usize,
        strategy: &Strategy,
    ) -> Vec<(Collective, Vec<AxisIndex>, Bytes)> {
        let work = Work::new(self, operator, strategy);
        let mut all = work.forward_collectives();
        if strategy.recompute && work.any_gradient() {
            all.extend(work.forward_collectives());
        }
        let summed = strategy.raw_output(work.loops, 0).summed;
        if strategy.scatter.is_some() && work.any_gradient() && !summed.is_empty() {
            all.push((Collective::AllGather, summed, Bytes::from_f64(work.output_bytes(0))));
        }
        all
    }

    /// Time of an operator's forward and backward pass, communication inside it included.
    pub fn passes(&self, operator: usize, strategy: &Strategy) -> (Time, Time) {
        let work = Work::new(self, operator, strategy);
        let price = self.operator(operator, strategy);
        let all = price.compute + price.communication + price.recompute;
        let forward = work.computation().0 + work.forward_communication();
        let forward = Time::from_seconds(forward).min(all);
        (forward, all - forward)
    }
}

/// An operator with a strategy, as one device sees it.
struct Work<'a, 'b> {
    pricer: &'b Pricer<'a>,
    operator: usize,
    strategy: &'b Strategy,
    loops: &'b Loops,
    inputs: Vec<Vec<u64>>,
    outputs: Vec<Vec<u64>>,
}

impl<'a, 'b> Work<'a, 'b> {
    fn new(pricer: &'b Pricer<'a>, operator: usize, strategy: &'b Strategy) -> Work<'a, 'b> {
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
        Work {
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
