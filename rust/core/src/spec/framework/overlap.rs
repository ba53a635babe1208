//! What a framework sends behind computation.

use serde::{Deserialize, Serialize};

/// Communication that runs behind computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overlap {
    /// Gradient reduction behind the last backward pass.
    pub gradient_reduce: bool,
    /// Only from this ZeRO stage on (microsoft/DeepSpeed, runtime/engine.py: `overlap_comm` is ignored under stage 1, and without
    /// ZeRO gradients are summed after the pass).
    pub reduce_from_stage: u8,
    /// Of these, what every pass scatters (ZeRO stage 3), and where all devices are in one domain what is summed once a step: behind
    /// the rest of the backward pass, else in the open, by the cores that compute (XLA on TensorCores).
    pub gradient_scatter: bool,
    /// Parameter all-gather behind the first forward pass.
    pub parameter_gather: bool,
    /// Of these, what is gathered once a step; else the first forward pass begins after it (microsoft/DeepSpeed,
    /// `runtime/zero/stage_1_and_2.py`: `all_gather_dp_groups` at the end of `step`).
    pub step_gather: bool,
    /// Where the backward pass gathers parameters too: the next layer's behind the computation of the one before, else after it
    /// (PyTorch FSDP's BACKWARD_POST).
    pub backward_gather: bool,
    /// Tensor-parallel communication.
    pub tensor: TensorOverlap,
    /// Pipeline sends of the interleaved schedule.
    pub pipeline: bool,
    /// Pipeline sends of every schedule: who sends is no part of the stage's own order (OneFlow's actors).
    pub every_send: bool,
    /// Ring attention behind attention.
    pub context: bool,
    /// Expert all-to-all behind the shared expert and the other micro-batch.
    pub expert: bool,
    /// Gradients are reduced behind computation only without tensor and pipeline parallel, whose collectives, and all others
    /// with them, run in turn with computation (OneFlow: `enable_use_compute_stream`).
    pub replicas_alone: bool,
    /// Gradients are reduced behind computation only where nothing is sharded over replicas, as what reduces them there is left
    /// out otherwise (huggingface/nanotron, trainer.py: `make_ddp`).
    pub unsharded_alone: bool,
}

impl Overlap {
    /// Whether a ZeRO stage's gradients are reduced behind computation.
    pub fn reduces(&self, zero: u8) -> bool {
        self.gradient_reduce && zero >= self.reduce_from_stage
    }
}

/// How tensor-parallel communication is hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorOverlap {
    /// Never.
    None,
    /// In the backward pass, behind the weight gradient (Megatron's asynchronous all-reduce).
    Backward,
    /// Forward and backward, in pieces behind the products themselves (user buffers, MC2).
    Pipelined,
    /// The same around single products: the gradient of an input that several products read is scattered after their sum.
    PipelinedProducts,
}
