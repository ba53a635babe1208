//! How a stage is sharded, and the quantities that add up over its layers.

use crate::spec::cluster::Group;
use crate::units::{Bytes, Time};

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
}

impl Shard {
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

    /// The groups among which shards of equal content are summed (HSDP); size 1 without partial sharding.
    pub fn replicated(&self, replicas: Group) -> Group {
        let inner = self.sharded(replicas).size;
        Group { size: replicas.size / inner, stride: replicas.stride * inner }
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

impl std::ops::Sub for Split {
    type Output = Split;
    fn sub(self, o: Split) -> Split {
        Split {
            compute: self.compute - o.compute,
            tensor: self.tensor - o.tensor,
            context: self.context - o.context,
            expert: self.expert - o.expert,
            shard: self.shard - o.shard,
        }
    }
}

/// What a range of layers costs one device for one micro-batch. Costs add; prefix sums subtract.
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
    /// Kept when the layer is recomputed: its input.
    pub kept_input: Bytes,
    /// Parameters of the dense part on this device, before ZeRO.
    pub dense_parameters: u64,
    /// Parameters of experts on this device, before ZeRO.
    pub expert_parameters: u64,
}

/// The extreme of each field by `$pick` for numbers and by total for times.
macro_rules! extreme {
    ($(#[$doc:meta])* $name:ident, $pick:ident, $cheaper:expr) => {
        impl LayerCost {
            $(#[$doc])*
            pub fn $name(self, o: LayerCost) -> LayerCost {
                let split = |a: Split, b: Split| {
                    if (a.total() <= b.total()) == $cheaper { a } else { b }
                };
                LayerCost {
                    forward: split(self.forward, o.forward),
                    input_gradient: split(self.input_gradient, o.input_gradient),
                    weight_gradient: split(self.weight_gradient, o.weight_gradient),
                    recompute_selective: split(self.recompute_selective, o.recompute_selective),
                    recompute_full: split(self.recompute_full, o.recompute_full),
                    kept: self.kept.$pick(o.kept),
                    kept_selective: self.kept_selective.$pick(o.kept_selective),
                    kept_input: self.kept_input.$pick(o.kept_input),
                    dense_parameters: self.dense_parameters.$pick(o.dense_parameters),
                    expert_parameters: self.expert_parameters.$pick(o.expert_parameters),
                }
            }
        }
    };
}
extreme!(
    /// The smaller of each quantity.
    least, min, true
);
extreme!(
    /// The larger of each quantity.
    most, max, false
);

macro_rules! fieldwise {
    ($op:ident, $method:ident) => {
        impl std::ops::$op for LayerCost {
            type Output = LayerCost;
            fn $method(self, o: LayerCost) -> LayerCost {
                use std::ops::$op as Op;
                LayerCost {
                    forward: Op::$method(self.forward, o.forward),
                    input_gradient: Op::$method(self.input_gradient, o.input_gradient),
                    weight_gradient: Op::$method(self.weight_gradient, o.weight_gradient),
                    recompute_selective: Op::$method(
                        self.recompute_selective,
                        o.recompute_selective,
                    ),
                    recompute_full: Op::$method(self.recompute_full, o.recompute_full),
                    kept: Op::$method(self.kept, o.kept),
                    kept_selective: Op::$method(self.kept_selective, o.kept_selective),
                    kept_input: Op::$method(self.kept_input, o.kept_input),
                    dense_parameters: Op::$method(self.dense_parameters, o.dense_parameters),
                    expert_parameters: Op::$method(self.expert_parameters, o.expert_parameters),
                }
            }
        }
    };
}
fieldwise!(Add, add);
fieldwise!(Sub, sub);

/// One layer: its cost and what it needs only while it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    /// What adds up over layers.
    pub cost: LayerCost,
    /// Largest transient tensors of its backward pass.
    pub transient: Bytes,
}

/// The embedding before the first layer, or the final norm, head and loss after the last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct End {
    /// What it adds to its stage.
    pub cost: LayerCost,
    /// Logits and loss at their peak, of the one micro-batch that is at the head.
    pub logits: Bytes,
}
