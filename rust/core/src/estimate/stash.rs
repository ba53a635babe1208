//! What experts keep, copied out of tensors of fixed size into pages, and back for the backward pass.

use super::block::Block;
use crate::spec::framework::Fp8Scaling;
use crate::spec::workload::Precision;

impl Block<'_, '_> {
    /// Copies tensors of so many `bytes` into pages behind the forward pass of a layer's experts, and back before their backward one.
    ///
    /// Only operands with scales of blocks are (NVIDIA-NeMo/Megatron-Bridge, perf_recipes/gpt_oss/common.py: of others the stash does
    /// nothing). Two copies of 2,048 thread blocks each, which a kernel on another stream may wait for, are taken to run beside
    /// nothing: blocks of an earlier kernel are placed before those of a later one (NVIDIA/Megatron-LM, transformer/moe/
    /// paged_stash.py: offload_to_stash and reload_from_stash). Of one layer a step, whose backward pass follows at once, there are
    /// none, which is not told apart.
    pub(super) fn stash(&mut self, bytes: [f64; 3]) {
        let p = self.p;
        if !(p.framework.stashes_experts && self.in_pages()) {
            return;
        }
        for copied in bytes.map(|bytes| p.device.traffic(2.0 * bytes) / COPIED) {
            // Page numbers and a flag are cleared, and the list of free pages moves on.
            self.forward.run_many(copied + 4.0 * p.device.kernel, 4);
            self.input.run_many(copied + 2.0 * p.device.kernel, 2);
        }
    }

    /// What experts keep of so many `bytes`: pages have room for 1.2 times what the mean of tokens takes, and what lies in no pages is
    /// as large as the tensors that hold 1.5 times a rank's mean (the same recipes: moe_paged_stash_buffer_size_factor_cuda and
    /// moe_expert_rank_capacity_factor, which every activation saved for the backward pass inherits).
    pub(super) fn stashed(&self, bytes: f64) -> f64 {
        match (self.p.framework.stashes_experts, self.in_pages()) {
            (false, _) => bytes,
            (true, true) => 1.2 * bytes,
            (true, false) => 1.5 * bytes,
        }
    }

    /// Whether a stash takes what experts keep.
    fn in_pages(&self) -> bool {
        let f = self.p.framework;
        let in_blocks =
            self.p.workload.precision == Precision::Fp8 && f.fp8_scaling == Fp8Scaling::Block;
        in_blocks && f.fused.grouped_gemm && !f.wide_experts
    }
}

/// Share of the streaming rate at which a stash is filled: 896 and 256 MiB of activations take 468 and 156 us on a GB300 (NVIDIA/
/// Megatron-LM pull request 6414, of the Triton kernels), 2.15 TB/s, read and written, of 6.96, and 31 us that are taken to be the
/// host's, which a graph has none of.
const COPIED: f64 = 0.618;
