//! How tokens choose experts, come into their order and back, and where their weights act.

use super::block::Block;
use super::choice::Weighed;
use crate::spec::model::Moe;

impl Block<'_, '_> {
    /// Scores, choices and balancing losses of so many tokens. Megatron's small kernels take the device each as long as any at least;
    /// apart, top-k of its router and of its loss has a thread block for each token. Who loops over experts' products as Megatron does
    /// is taken to have its router; small kernels of others are joined by a compiler or were not timed, and cost their launches.
    pub(super) fn choose(&mut self, tokens: f64, moe: &Moe) {
        let d = &self.p.device;
        let (forward, backward) = self.router();
        self.stream(tokens * f64::from(moe.experts), 8.0, 6.0, (forward, backward));
        if !self.p.framework.fused.looped_gemm {
            return;
        }
        let others = |kernels: u32| f64::from(kernels - 1) * d.kernel;
        self.forward.compute += others(forward);
        self.input.compute += others(backward);
        if !self.p.framework.fused.router {
            self.forward.compute += 2.0 * tokens * CHOSEN_ROW / d.processors();
        }
    }

    /// Reads and writes over those of all copies, where tokens are copied for each of their experts or copies summed: a fused kernel
    /// reads a token once, of operators each copy is.
    pub(super) fn tokens_and_copies(&self, moe: &Moe) -> f64 {
        if self.p.framework.fused.permutation {
            1.0 + 1.0 / f64::from(moe.topk)
        } else {
            2.0
        }
    }

    /// What a fused permutation takes to find the places of so many tokens, for each expert that there is.
    pub(super) fn find_places(&mut self, tokens: f64, moe: &Moe) {
        if self.p.framework.fused.permutation {
            let entries = tokens * f64::from(moe.experts);
            self.forward.compute += entries * FOUND / self.p.device.processors();
        }
    }

    /// What sorts by chunks of so many rows take to find their places.
    pub(super) fn sort_places(&mut self, rows: f64) {
        if self.p.framework.fused.permutation {
            self.forward.compute += rows * SORTED_ROW / self.p.device.processors();
        }
    }

    /// Small kernels that the host launches for a router and the permutation's index, forward and backward, by a count of
    /// NVIDIA/Megatron-LM's router and token dispatcher (megatron/core/transformer/moe).
    ///
    /// Of the 34 a choice by softmax takes 8 (top-k, softmax, and two maps made, cast and filled), the scores of the balancing loss
    /// 6, the loss 5. Fused they are one each (NVIDIA/TransformerEngine, pytorch/router.py), 16 fewer. Backward 9 (3 of the
    /// choice, 4 of the loss, 2 of its scores) become 3.
    fn router(&self) -> (u32, u32) {
        if self.p.framework.fused.router {
            (18, 6)
        } else {
            (34, 12)
        }
    }

    /// How experts' activations are weighed.
    pub(super) fn weighs(&self) -> Weighed {
        let f = self.p.framework;
        match (f.held.weighted_result_bytes, f.fused.activation) {
            (0, true) => Weighed::Within,
            (0, false) => Weighed::Apart,
            _ => Weighed::Not,
        }
    }
}

/// Seconds of a processor for a token and an expert that there is, to find where the former's copies go: three kernels took 0.159 ms for
/// 16,384 tokens and 128 experts on an H100 of 132 processors (Transformer Engine 2.20, tests/data/operators/te_layers.csv).
const FOUND: f64 = 10e-9;

/// Seconds of a processor for a row whose place a sort by chunks finds: 0.157 ms for 131,072 rows of 128 experts (the same).
const SORTED_ROW: f64 = 158e-9;

/// Seconds of a processor for the choice among a token's scores by PyTorch's top-k: 0.110 ms for 16,384 tokens and 128 experts, its
/// sort with it (the same).
const CHOSEN_ROW: f64 = 890e-9;
