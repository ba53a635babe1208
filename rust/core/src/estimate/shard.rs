//! How a stage is sharded, and the quantities that add up over its layers.

use crate::spec::cluster::Group;
use crate::spec::framework::Framework;
use crate::spec::model::Model;
use crate::spec::tensors::{Cut, Tensors};
use crate::spec::workload::Precision;
use crate::units::{Bytes, Time};

/// Whether what a pass works with comes from the host, where it waits: the shards that are gathered, of parameters alone where
/// gradients stay whole, or where nothing is sharded over replicas, as there is one, all of it.
pub(super) fn fetches_from_host(shard: &Shard, framework: &Framework) -> bool {
    framework.held.parameters_on_host
        && framework.gathers.each_pass(shard.pipelined)
        && (shard.zero == 3 || shard.alone() || framework.held.gradients_stay)
}

/// Bytes of a parameter as ZeRO gathers it for products in `precision`: as it is stored, or cast to what lies gathered.
pub fn parameter_sent(framework: &Framework, precision: Precision) -> u64 {
    match (precision, framework.held.gathered_copy_bytes) {
        (Precision::Fp8, _) if framework.eight_bit_gathers.parameters => 1,
        (_, 0) => framework.bytes.parameter,
        (_, copy) => copy,
    }
}

/// How one stage is sharded: everything but the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shard {
    /// Data-parallel replicas.
    pub dp: u64,
    /// Tensor-parallel degree.
    pub tp: u64,
    /// Sequence parallel.
    pub sp: bool,
    /// Context-parallel degree.
    pub cp: u64,
    /// Expert-parallel degree.
    pub ep: u64,
    /// Tensor-parallel degree inside an expert.
    pub etp: u64,
    /// Sequences in one micro-batch.
    pub mbs: u64,
    /// ZeRO stage.
    pub zero: u8,
    /// Ranks over which ZeRO shards.
    pub shard_group: u64,
    /// Whether the stage is one of several.
    pub pipelined: bool,
}

impl Shard {
    /// Devices of a stage.
    pub fn devices(&self) -> u64 {
        self.dp * self.tp * self.cp
    }

    /// Whether there is one replica, over which nothing is sharded.
    pub fn alone(&self) -> bool {
        self.dp * self.cp == 1
    }

    /// The tensor-parallel group: neighbouring ranks.
    pub fn tensor_group(&self) -> Group {
        Group { size: self.tp, stride: 1 }
    }

    /// The ring of context parallel.
    pub fn context_group(&self) -> Group {
        Group { size: self.cp, stride: self.tp }
    }

    /// The ranks that hold different experts.
    pub fn expert_group(&self) -> Group {
        Group { size: self.ep, stride: self.etp }
    }

    /// The ranks over which gradients of dense parameters are summed.
    pub fn replica_group(&self) -> Group {
        Group { size: self.dp * self.cp, stride: self.tp }
    }

    /// The ranks over which gradients of an expert's parameters are summed.
    pub fn expert_replica_group(&self) -> Group {
        let size = self.dp * self.cp * self.tp / (self.ep * self.etp);
        Group { size: size.max(1), stride: self.ep * self.etp }
    }

    /// The part of `replicas` over which ZeRO shards.
    pub fn sharded(&self, replicas: Group) -> Group {
        Group { size: replicas.size.min(self.shard_group), ..replicas }
    }

    /// The tensors of the embedding in the order of their making: how many are alike, and the elements of each on a rank.
    pub fn embedding_tensors(&self, model: &Model) -> impl Iterator<Item = (u64, u64)> {
        let (rows, h) = (model.vocab / self.tp, model.hidden);
        let norms = if model.embedding_norm { model.norm_vectors() } else { 0 };
        present([(1, rows * h), (1, model.position_rows * h), (norms, h)])
    }

    /// The same of the last norm and the head.
    pub fn head_tensors(&self, model: &Model) -> impl Iterator<Item = (u64, u64)> {
        let (rows, h) = (model.vocab / self.tp, model.hidden);
        let weights = u64::from(!model.tied_embeddings);
        let biases = u64::from(model.head_bias);
        present([(model.norm_vectors(), h), (weights, rows * h), (biases, rows)])
    }

    /// The tensors of a layer's kinds that this rank holds of the whole model, dense ones and those of experts, with embedding,
    /// head and last norm among the dense.
    pub fn tensors(&self, model: &Model) -> [Owned; 2] {
        let (mut dense, mut expert) = (Owned::default(), Owned::default());
        for (count, elements) in self.embedding_tensors(model).chain(self.head_tensors(model)) {
            dense.count += count;
            dense.elements += count * elements;
        }
        for layer in 0..model.layers {
            for tensors in model.layer_tensors(model.layer_kind(layer)) {
                let (count, elements) = self.owned(&tensors);
                let owned = if tensors.cut == Cut::Expert { &mut expert } else { &mut dense };
                owned.count += count;
                owned.elements += count * elements;
            }
        }
        [dense, expert]
    }

    /// How many of a layer's like tensors a rank holds, and how many elements of each.
    pub fn owned(&self, tensors: &Tensors) -> (u64, u64) {
        match tensors.cut {
            Cut::Whole => (tensors.count, tensors.elements),
            Cut::Tensor => (tensors.count, tensors.elements / self.tp),
            Cut::Expert => (tensors.count / self.ep, tensors.elements / self.etp),
        }
    }

    /// The groups among which shards of equal content are summed (HSDP); size 1 without partial sharding.
    pub fn replicated(&self, replicas: Group) -> Group {
        let inner = self.sharded(replicas).size;
        Group { size: replicas.size / inner, stride: replicas.stride * inner }
    }
}

/// Of tensors, alike in number and elements, those that there are.
fn present(tensors: [(u64, u64); 3]) -> impl Iterator<Item = (u64, u64)> {
    tensors.into_iter().filter(|&(count, elements)| count * elements > 0)
}

/// Tensors of one kind on a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    /// How many there are.
    pub count: u64,
    /// Elements of all of them.
    pub elements: u64,
}

/// Bytes that some rank holds beyond the mean of its group, of layers whose loads know nothing of each other: their squares add up,
/// as variances do.
///
/// Of n layers, each with a fullest rank f times the mean, the fullest rank of all together is then 1 + (f - 1) / sqrt(n) times it.
/// Squares of 64 KiB, rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uneven(u64);

impl Uneven {
    const UNIT: u64 = 1 << 16;

    /// Of one layer.
    pub fn new(bytes: Bytes) -> Uneven {
        let units = bytes.0.div_ceil(Uneven::UNIT).min(1 << 24);
        Uneven(units * units)
    }

    /// What of it there is together, of so many micro-batches each, which find the same experts wanted.
    pub fn bytes(parts: impl Iterator<Item = (Uneven, u64)>) -> Bytes {
        // The root of one square alone is exact.
        let square = |(part, n): (Uneven, u64)| {
            let one = Bytes::from_f64((part.0 as f64).sqrt() * Uneven::UNIT as f64);
            ((one * n).0 as f64).powi(2)
        };
        Bytes::from_f64(parts.map(square).sum::<f64>().sqrt())
    }
}

impl std::ops::Add for Uneven {
    type Output = Uneven;
    fn add(self, o: Uneven) -> Uneven {
        Uneven(self.0 + o.0)
    }
}

/// A time by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Arithmetic and memory traffic.
    pub compute: Time,
    /// Tensor-parallel communication that is not hidden.
    pub tensor: Time,
    /// Ring attention that is not hidden.
    pub context: Time,
    /// Expert all-to-all that is not hidden.
    pub expert: Time,
    /// Gathers and reductions of sharded parameters that are not hidden.
    pub shard: Time,
}

impl Split {
    /// All causes together.
    pub fn total(self) -> Time {
        self.compute + self.tensor + self.context + self.expert + self.shard
    }
}

impl std::ops::Add for Split {
    type Output = Split;
    fn add(self, o: Split) -> Split {
        Split {
            compute: self.compute + o.compute,
            tensor: self.tensor + o.tensor,
            context: self.context + o.context,
            expert: self.expert + o.expert,
            shard: self.shard + o.shard,
        }
    }
}

/// What a layer, or several, cost one device for one micro-batch, times by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerCost {
    /// Forward pass.
    pub forward: Split,
    /// Backward pass up to the gradient of the input.
    pub input_gradient: Split,
    /// Gradient of the weights.
    pub weight_gradient: Split,
    /// The core of attention once more.
    pub recompute_selective: Split,
    /// The whole forward pass once more.
    pub recompute_full: Split,
    /// Kept for the backward pass without recompute.
    pub kept: Bytes,
    /// Kept with selective recompute.
    pub kept_selective: Bytes,
    /// Of that, what waits in host memory by the tensors' names.
    pub kept_offloaded: Bytes,
    /// Kept when the layer is recomputed: its input.
    pub kept_input: Bytes,
    /// Held by its router's balancing loss after it was recomputed.
    pub held_balancing: Bytes,
    /// What the rank with most tokens keeps beyond these, without recompute and with selective recompute.
    pub uneven: [Uneven; 2],
    /// Parameters of the dense part on this device, before ZeRO.
    pub dense_parameters: u64,
    /// Parameters of experts on this device, before ZeRO.
    pub expert_parameters: u64,
    /// Dense parameters that ZeRO leaves whole.
    pub dense_whole: u64,
    /// Parameters of experts that ZeRO leaves whole.
    pub expert_whole: u64,
}

impl std::ops::Add for LayerCost {
    type Output = LayerCost;
    fn add(self, o: LayerCost) -> LayerCost {
        LayerCost {
            forward: self.forward + o.forward,
            input_gradient: self.input_gradient + o.input_gradient,
            weight_gradient: self.weight_gradient + o.weight_gradient,
            recompute_selective: self.recompute_selective + o.recompute_selective,
            recompute_full: self.recompute_full + o.recompute_full,
            kept: self.kept + o.kept,
            kept_selective: self.kept_selective + o.kept_selective,
            kept_offloaded: self.kept_offloaded + o.kept_offloaded,
            kept_input: self.kept_input + o.kept_input,
            held_balancing: self.held_balancing + o.held_balancing,
            uneven: [self.uneven[0] + o.uneven[0], self.uneven[1] + o.uneven[1]],
            dense_parameters: self.dense_parameters + o.dense_parameters,
            expert_parameters: self.expert_parameters + o.expert_parameters,
            dense_whole: self.dense_whole + o.dense_whole,
            expert_whole: self.expert_whole + o.expert_whole,
        }
    }
}

/// A [`LayerCost`] with its times summed over causes: what the search adds and subtracts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Forward pass.
    pub forward: Time,
    /// Backward pass up to the gradient of the input.
    pub input_gradient: Time,
    /// Gradient of the weights.
    pub weight_gradient: Time,
    /// The core of attention once more.
    pub recompute_selective: Time,
    /// The whole forward pass once more.
    pub recompute_full: Time,
    /// Kept for the backward pass without recompute.
    pub kept: Bytes,
    /// Kept with selective recompute.
    pub kept_selective: Bytes,
    /// Of that, what waits in host memory by the tensors' names.
    pub kept_offloaded: Bytes,
    /// Kept when the layer is recomputed.
    pub kept_input: Bytes,
    /// Held by its router's balancing loss after it was recomputed.
    pub held_balancing: Bytes,
    /// What the rank with most tokens keeps beyond these, without recompute and with selective recompute.
    pub uneven: [Uneven; 2],
    /// Parameters of the dense part.
    pub dense_parameters: u64,
    /// Parameters of experts.
    pub expert_parameters: u64,
    /// Dense parameters that ZeRO leaves whole.
    pub dense_whole: u64,
    /// Parameters of experts that ZeRO leaves whole.
    pub expert_whole: u64,
}

impl From<&LayerCost> for Totals {
    fn from(c: &LayerCost) -> Totals {
        Totals {
            forward: c.forward.total(),
            input_gradient: c.input_gradient.total(),
            weight_gradient: c.weight_gradient.total(),
            recompute_selective: c.recompute_selective.total(),
            recompute_full: c.recompute_full.total(),
            kept: c.kept,
            kept_selective: c.kept_selective,
            kept_offloaded: c.kept_offloaded,
            kept_input: c.kept_input,
            held_balancing: c.held_balancing,
            uneven: c.uneven,
            dense_parameters: c.dense_parameters,
            expert_parameters: c.expert_parameters,
            dense_whole: c.dense_whole,
            expert_whole: c.expert_whole,
        }
    }
}

impl Totals {
    /// Combines two field by field: times, bytes and counts each by their own function.
    fn zip(
        self,
        o: Totals,
        time: impl Fn(Time, Time) -> Time,
        bytes: impl Fn(Bytes, Bytes) -> Bytes,
        count: impl Fn(u64, u64) -> u64,
    ) -> Totals {
        Totals {
            forward: time(self.forward, o.forward),
            input_gradient: time(self.input_gradient, o.input_gradient),
            weight_gradient: time(self.weight_gradient, o.weight_gradient),
            recompute_selective: time(self.recompute_selective, o.recompute_selective),
            recompute_full: time(self.recompute_full, o.recompute_full),
            kept: bytes(self.kept, o.kept),
            kept_selective: bytes(self.kept_selective, o.kept_selective),
            kept_offloaded: bytes(self.kept_offloaded, o.kept_offloaded),
            kept_input: bytes(self.kept_input, o.kept_input),
            held_balancing: bytes(self.held_balancing, o.held_balancing),
            uneven: [0, 1].map(|n| Uneven(count(self.uneven[n].0, o.uneven[n].0))),
            dense_parameters: count(self.dense_parameters, o.dense_parameters),
            expert_parameters: count(self.expert_parameters, o.expert_parameters),
            dense_whole: count(self.dense_whole, o.dense_whole),
            expert_whole: count(self.expert_whole, o.expert_whole),
        }
    }

    /// Forward and backward passes without recompute.
    pub fn passes(&self) -> Time {
        self.forward + self.input_gradient + self.weight_gradient
    }

    /// The smaller of each quantity.
    pub fn least(self, o: Totals) -> Totals {
        self.zip(o, Time::min, Bytes::min, u64::min)
    }

    /// The larger of each quantity.
    pub fn most(self, o: Totals) -> Totals {
        self.zip(o, Time::max, Bytes::max, u64::max)
    }
}

impl std::ops::Add for Totals {
    type Output = Totals;
    fn add(self, o: Totals) -> Totals {
        self.zip(o, |a, b| a + b, |a, b| a + b, |a, b| a + b)
    }
}

impl std::ops::Sub for Totals {
    type Output = Totals;
    fn sub(self, o: Totals) -> Totals {
        self.zip(o, |a, b| a - b, |a, b| a - b, |a, b| a - b)
    }
}

/// The embedding before the first layer, or the final norm, head and loss after the last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct End {
    /// What it adds to its stage.
    pub cost: LayerCost,
    /// Logits and loss at their peak, of the one micro-batch that is at the head.
    pub logits: Bytes,
    /// What the allocator keeps beside them.
    pub cached: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_mean_adds_up_by_squares_over_layers_and_as_it_is_over_micro_batches() {
        let (three, four) = (Uneven::new(Bytes(3 << 16)), Uneven::new(Bytes((3 << 16) + 1)));
        assert_eq!(Uneven::bytes([(three + four, 1)].into_iter()), Bytes(5 << 16));
        assert_eq!(Uneven::bytes([(three, 2), (four, 2)].into_iter()), Bytes(10 << 16));
    }
}
