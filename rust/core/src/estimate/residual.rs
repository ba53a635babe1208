//! The residual stream: what is added to it, and what products cast where it, or their weights, are wider than they are.
//!
//! Under automatic mixed precision an embedding of 32-bit weights begins a stream in 32 bits, to which a 16-bit result is added as it
//! is promoted; norms of it give 32 bits, and each product casts what it reads by itself, as casts of weights alone are remembered
//! (pytorch/pytorch, ATen/autocast_mode.cpp: cached_cast, only of leaves). A compiler has these casts in the kernels beside them.

use super::block::Block;
use super::layer::Pricer;
use super::pass::Pass;
use crate::spec::kernels::{NormKernel, RotaryKernel, Traffic};
use crate::spec::model::{Position, QkNorm};

impl Block<'_, '_> {
    /// Bias, dropout and residual addition after a sub-layer; backward, the gradients of both branches are added.
    pub(super) fn residual(&mut self) {
        let p = self.p;
        let elements = p.residual_tokens * p.model.hidden as f64;
        let dropout = p.workload.dropout;
        let (mut forward, mut backward, mut kernels) = match (p.framework.fused.residual, dropout) {
            // Read two, write one, each way.
            (_, false) => (3.0, 3.0, (1, 1)),
            // The mask is one byte an element, half a 16-bit pass.
            (true, true) => (3.5, 5.5, (1, 2)),
            // Bias (2), dropout (2.5), addition (3).
            (false, true) => (7.5, 5.5, (3, 2)),
        };
        if p.is_wide() {
            // Read and written in 32 bits, with a branch in 16; backward so are both gradients and their sum (3), which is cast to
            // 16 for the branch (3), or written so too (1).
            forward += 2.0;
            backward += 3.0 + if p.is_joined() { 1.0 } else { 3.0 };
            kernels.1 += u32::from(!p.is_joined());
        }
        self.stream(elements, forward, backward, kernels);
        if dropout {
            self.kept += elements;
        }
    }

    /// So many products read `elements` of the residual stream, or of a norm's result: each casts them by itself, and its
    /// gradient back, where they are wider than it is; and their gradients are added up.
    pub(super) fn read_stream(&mut self, elements: f64, products: u32) {
        let p = self.p;
        if p.is_wide() && !p.is_joined() {
            let casts = f64::from(products) * (1.0 + p.residual_width() / p.width);
            self.stream(elements, casts, casts, (products, products));
            // Each keeps its own, where one serves all products of a narrow stream.
            self.kept += f64::from(products.saturating_sub(1)) * elements * p.width;
        }
        self.add_gradients(elements, products.saturating_sub(1));
    }

    /// Adds so many gradients of `elements` of the stream each to another: two are read and their sum written, or where operators
    /// are joined the kernel that follows reads each.
    pub(super) fn add_gradients(&mut self, elements: f64, more: u32) {
        let p = self.p;
        if p.is_joined() {
            self.input.compute += p.device.traffic(f64::from(more) * elements * p.width);
        } else {
            let passes = 3.0 * f64::from(more) * p.residual_width() / p.width;
            self.stream(elements, 0.0, passes, (0, more));
        }
    }
}

impl Pricer<'_> {
    /// Bytes of an element of the residual stream.
    pub(super) fn residual_width(&self) -> f64 {
        if self.framework.held.fp32_residual {
            self.width.max(4.0)
        } else {
            self.width
        }
    }

    /// Whether the residual stream is wider than what products read.
    pub(super) fn is_wide(&self) -> bool {
        self.residual_width() > self.width
    }

    /// Whether elementwise operators are part of the kernels beside them.
    pub(super) fn is_joined(&self) -> bool {
        self.framework.fused.residual && self.framework.fused.activation
    }

    /// Bytes of a number that a norm passes, of what it reads and what it makes on average: as wide as the stream, and where a
    /// cast is part of its kernel as wide as products read. In separate operators it passes 32 bits whatever the stream.
    pub(super) fn norm_width(&self) -> f64 {
        match self.norm_kernel() {
            // Operators cast to 32 bits and back: of numbers that have these none is wider.
            NormKernel::Eager | NormKernel::Separate => self.width.min(2.0),
            NormKernel::Widened => self.width,
            NormKernel::Fused | NormKernel::Native | NormKernel::Tuned | NormKernel::Compiled => {
                let made = if self.is_joined() { self.width } else { self.residual_width() };
                (self.residual_width() + made) / 2.0
            }
        }
    }

    /// How queries and keys are rotated: cosines as wide as the stream promote them, and attention casts them back
    /// (huggingface/transformers, modeling_llama.py: LlamaRotaryEmbedding gives the type of what it gets).
    ///
    /// The kernel by tokens takes no factor, so that with one the operators run after all in Megatron-Core's attention, which copies
    /// heads out of its packed projection (NVIDIA/Megatron-LM, models/common/embeddings/rope_utils.py, apply_rotary_pos_emb: `mscale !=
    /// 1.0`). NVIDIA-NeMo/Automodel multiplies beside the kernel (components/models/gpt_oss/rope_utils.py), which is not counted, and
    /// the kernel of latent attention takes it.
    pub(super) fn rotary_kernel(&self) -> RotaryKernel {
        match self.framework.fused.rope {
            RotaryKernel::Eager if self.is_wide() => RotaryKernel::Widened,
            RotaryKernel::ByToken
                if self.model.scaled_rotation
                    && self.model.mla.is_none()
                    && self.framework.copies_packed_heads =>
            {
                RotaryKernel::Unfused
            }
            kernel => kernel,
        }
    }

    /// Whether norms of heads are part of the rotation's kernel, which turns all of each head.
    pub(super) fn norms_in_rotation(&self) -> bool {
        let m = self.model;
        let rotated = m.position == Position::Rope && m.mla.is_none();
        let joined = self.framework.fused.normed_rotation || self.compiles_norms_of_heads();
        joined && m.qk_norm == QkNorm::Head && rotated
    }

    /// Whether a compiler joins norms of heads with their rotation: a weight's gradient is a sum over all rows, which ends a kernel.
    fn compiles_norms_of_heads(&self) -> bool {
        self.norm_kernel() == NormKernel::Compiled
            && self.framework.fused.rope == RotaryKernel::Compiled
            && !self.model.norm_weight
    }

    /// What the kernels of rotation are worth, with those of norms that are part of it.
    pub(super) fn rotary_traffic(&self) -> Traffic {
        match self.norms_in_rotation() {
            true if self.framework.fused.normed_rotation => RotaryKernel::NORMED,
            true => RotaryKernel::COMPILED_WITH_NORMS,
            false => self.rotary_kernel().traffic(),
        }
    }

    /// The gradient of a table of so many elements, rows of which are looked up: it is as large as the table, written as zeros (1) into
    /// which rows are added (pytorch/pytorch, cuda/Embedding.cu: embedding_dense_backward_cuda), and where passes add up it is added
    /// to the stored one by a kernel of its own, as no product made it.
    pub(super) fn table_gradient(&self, elements: f64, backward: &mut Pass) {
        let width = if self.framework.casts_weights { self.width.max(4.0) } else { self.width };
        backward.run(self.device.stream(width * elements));
        if !self.reduces_each_pass() {
            let stored = self.framework.bytes.gradient as f64;
            backward.run(self.added() * self.device.stream((width + 2.0 * stored) * elements));
        }
    }

    /// Casts so many weights for the products of a forward pass, and their gradients afterwards, where weights are kept in 32 bits
    /// and products run in fewer: read in one width and written in the other.
    pub(super) fn cast_weights(&self, weights: f64, forward: &mut Pass, weight: &mut Pass) {
        if self.framework.casts_weights && self.width < 4.0 {
            let seconds = self.device.stream((4.0 + self.width) * weights);
            forward.run(seconds);
            weight.run(seconds);
        }
    }
}
