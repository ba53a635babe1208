//! Rows of tokens on their way to experts' places and back: looked up, put there, added up and weighted.

use super::block::Block;
use super::compute::Gemm;
use crate::spec::model::Moe;

impl Block<'_, '_> {
    /// Seconds to add rows, of so many `elements`, to those of a sum: each is read, and its sum is read and written.
    pub(super) fn added(&self, elements: f64) -> f64 {
        self.p.device.stream(3.0 * elements * self.p.width / ADDED)
    }

    /// A stream of `elements` whose rows change their places, in so many passes either way: they pass at a share of the streaming rate,
    /// or at that rate where they are looked up, if so.
    pub(super) fn permute(
        &mut self,
        elements: f64,
        forward: (f64, bool),
        backward: (f64, bool),
        kernels: (u32, u32),
    ) {
        let rate = if self.p.framework.fused.permutation { PERMUTED } else { PERMUTED_UNFUSED };
        let wider = self.p.residual_width() / self.p.width;
        let passes =
            |(passes, looked_up): (f64, bool)| passes * wider / if looked_up { 1.0 } else { rate };
        let before = self.launched();
        self.stream(elements, passes(forward), passes(backward), kernels);
        self.beside_compiled(before);
    }

    /// What experts made, of so many `elements`, summed over a token's experts by a product of 32-bit numbers with their weights, one
    /// for each token (torch.bmm). Forward it is cast (2 + 4 bytes) and read by a kernel for vectors; backward it is read again for
    /// the gradient of the weights, its own is that of the sum times each weight, and that is cast (4 + 2).
    pub(super) fn sum_by_product(&mut self, moe: &Moe, elements: f64) {
        let d = &self.p.device;
        let tokens = elements / f64::from(moe.topk) / self.p.model.hidden as f64;
        let blocks = tokens * (self.p.model.hidden as f64 / OUTER_WIDTH).ceil();
        let outer = (blocks * OUTER / d.processors()).max(d.stream(4.0 * elements));
        let (cast, read) = (d.stream(6.0 * elements), d.stream(4.0 * elements / BY_VECTORS));
        let before = self.launched();
        self.forward.run_many(cast + read, 2);
        self.input.run_many(outer + read + cast, 3);
        self.beside_compiled(before);
    }

    /// Whether what experts made is weighted and summed by a product for each token, on a device whose vector units are known.
    pub(super) fn sums_by_product(&self) -> bool {
        self.p.framework.sums_by_product && self.p.device.widened(Gemm::new(1, 1, 1)).is_some()
    }
}

/// Share of the streaming rate at which a fused kernel permutes tokens: on an H100 that copies 3.0 TB/s, 0.88 and 0.95 to
/// copy tokens of 2,048 channels for eight experts each and to sum the copies, 1.12 and 0.94 of 4,096 for two, 1.0 to sort what is
/// of each expert in either (Transformer Engine 2.20, tests/data/operators/te_layers.csv).
const PERMUTED: f64 = 0.95;

/// The same as gathers, scatters and sums of their own: 301 of 1,456 GB/s on an A100 (configs/system/a100_pcie.json).
pub(super) const PERMUTED_UNFUSED: f64 = 0.2;

/// Share of the streaming rate at which a product of one row for each token reads its matrix: 0.286 ms for 101 million 32-bit numbers
/// on an H100 that streams 3.0 TB/s (torchtitan 0.2.2 under PyTorch 2.11: tests/data/steps/profiles.csv).
const BY_VECTORS: f64 = 0.47;

/// Channels that a thread block of a product of depth one works out of a token's results, and seconds of a processor for each: 3.14 ms
/// for 8,192 tokens of 8 experts and 2.75 for as many of 6, 2,048 channels each, on 132 processors (the same run, kernel
/// `sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize32x64x8`).
const OUTER_WIDTH: f64 = 64.0;
const OUTER: f64 = 1.48e-6;

/// Share of the streaming rate at which XLA adds rows to where their indices say, on a TPU's tensor cores: 81,920 rows of 2,048
/// channels on a v5p take 0.193 of 31.57 ms forward and 0.192 backward, 1.0 GB in 6.1 ms where it streams 2,212 GB/s
/// (marin-community/marin@0bfda0d9, .agents/logbooks/grug-moe-ep-ring.md, 2026-03-07: EP=4, capacity 1.25; sorting the indices
/// first, segment_sum and lax.scatter_add take no less). A gather of as many rows takes a sixth of that, as PERMUTED_UNFUSED has it.
const ADDED: f64 = 0.075;
