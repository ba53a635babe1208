//! What is answered: a complete plan.

pub mod rules;

use crate::spec::framework::Named;
use crate::spec::problem::Schedule;
use serde::{Deserialize, Serialize};

/// A complete way to train: degrees, schedule, and for each pipeline stage its chip, layers and recompute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Data-parallel replicas.
    pub dp: u64,
    /// Tensor-parallel degree; where kinds of chip differ in it, the largest.
    pub tp: u64,
    /// Where they differ, the tensor-parallel degree of each kind in the cluster's list, 0 for kinds that hold no stage;
    /// otherwise empty.
    pub tp_of_kind: Vec<u64>,
    /// Sequence parallel: norms and residuals are split over the tensor-parallel group too.
    pub sp: bool,
    /// Context-parallel degree (ring attention).
    pub cp: u64,
    /// Expert-parallel degree; its group lies inside tp x cp x dp.
    pub ep: u64,
    /// Tensor-parallel degree inside an expert: 1, or `tp`, which then is each kind's own.
    pub etp: u64,
    /// Pipeline stages.
    pub pp: u64,
    /// Model chunks a stage holds (interleaved schedules).
    pub vpp: u64,
    /// Sequences in one micro-batch.
    pub mbs: u64,
    /// What is sharded over the data-parallel group: 0 nothing, 1 optimizer state (distributed optimizer), 2 and
    /// gradients, 3 and parameters (FSDP).
    pub zero: u8,
    /// Ranks over which ZeRO shards; at most dp x cp, smaller for hybrid sharding.
    pub shard_group: u64,
    /// Order of forward and backward passes.
    pub schedule: Schedule,
    /// Optimizer state and step on the host.
    pub optimizer_offload: bool,
    /// One entry a pipeline stage, first to last.
    pub stages: Vec<Stage>,
}

/// One pipeline stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Index of its kind of chip in the cluster's groups.
    pub chip: u32,
    /// Transformer layers it holds; the first stage also holds the embedding, the last the head.
    pub layers: u32,
    /// What it computes again in the backward pass.
    pub recompute: Recompute,
    /// Layers whose activations wait in host memory.
    pub offload: u32,
}

/// What a stage computes again in the backward pass instead of keeping it. Layer counts are a model chunk's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "granularity", rename_all = "lowercase", deny_unknown_fields)]
pub enum Recompute {
    /// Nothing.
    None,
    /// The core of attention: scores, softmax, dropout and values.
    Selective,
    /// The first `layers` layers of each chunk, each from its own input; a smaller chunk recomputes all of its own.
    Block {
        /// Recomputed layers of a chunk.
        layers: u32,
    },
    /// Every layer, in groups of `layers` that keep one input each.
    Uniform {
        /// Layers a group.
        layers: u32,
    },
    /// Whole layers, and single operators of others.
    Parts(Parts),
}

/// What is computed again where layers and operators are marked one by one (MindSpore: `Cell.recompute` and
/// `Primitive.recompute`). A count is dealt out to the chunks of a stage in turn, first to first, and is of the first layers of
/// each; a smaller chunk computes all of its own again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parts {
    /// Layers that are computed again whole, each from its own input.
    pub layers: u32,
    /// Whether parameters of these that ZeRO shards are gathered for each of their passes, and not once a step for all.
    pub regathers: bool,
    /// Layers in which single operators are computed again; what is above `layers` counts.
    pub operators: NamedLayers,
}

/// In how many layers each operator of [`Named`], and gathering its norms' results, is computed again by itself.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct NamedLayers {
    /// Norms before sub-layers.
    pub norm: u32,
    /// What sequence parallel gathered of the norms' results, where it is kept gathered.
    pub gather: u32,
    /// Products that make queries, keys and values.
    pub projections: u32,
    /// The core of attention.
    pub attention: u32,
    /// The products that open an MLP.
    pub expansion: u32,
    /// The nonlinearity of an MLP with its gate.
    pub activation: u32,
}

impl Parts {
    /// What is dealt out to one of `vpp` chunks.
    pub fn of_chunk(self, chunk: u64, vpp: u64) -> Parts {
        let dealt = |count: u32| {
            let before = u64::from(count).saturating_sub(chunk);
            before.div_ceil(vpp) as u32
        };
        let NamedLayers { norm, gather, projections, attention, expansion, activation } =
            self.operators;
        Parts {
            layers: dealt(self.layers),
            regathers: self.regathers,
            operators: NamedLayers {
                norm: dealt(norm),
                gather: dealt(gather),
                projections: dealt(projections),
                attention: dealt(attention),
                expansion: dealt(expansion),
                activation: dealt(activation),
            },
        }
    }
}

impl NamedLayers {
    /// The operators of layer `n` of a chunk, and whether gathers are among them.
    pub fn of_layer(self, n: u32) -> (Named, bool) {
        let named = Named {
            norm: n < self.norm,
            projections: n < self.projections,
            attention: n < self.attention,
            expansion: n < self.expansion,
            activation: n < self.activation,
            // No launcher marks these.
            output: false,
            dispatch: false,
            contraction: false,
        };
        (named, n < self.gather)
    }

    /// The most layers in which any is computed again.
    fn most(self) -> u32 {
        let NamedLayers { norm, gather, projections, attention, expansion, activation } = self;
        [norm, gather, projections, attention, expansion, activation].into_iter().fold(0, u32::max)
    }
}

impl Plan {
    /// Devices that the plan uses.
    pub fn devices(&self) -> u64 {
        if self.tp_of_kind.is_empty() {
            return self.devices_per_stage(0).saturating_mul(self.pp);
        }
        let of_stage = |s: &Stage| self.devices_per_stage(s.chip as usize);
        self.stages.iter().map(of_stage).fold(0, u64::saturating_add)
    }

    /// Devices of a stage on a kind of chip.
    pub fn devices_per_stage(&self, kind: usize) -> u64 {
        self.dp.saturating_mul(self.tp_of(kind)).saturating_mul(self.cp)
    }

    /// Tensor-parallel degree of the stages on a kind of chip.
    pub fn tp_of(&self, kind: usize) -> u64 {
        self.tp_of_kind.get(kind).copied().unwrap_or(self.tp)
    }

    /// Tensor-parallel degree inside an expert on a kind of chip.
    pub fn etp_of(&self, kind: usize) -> u64 {
        if self.etp == 1 {
            1
        } else {
            self.tp_of(kind)
        }
    }
}
