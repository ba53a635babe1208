//! What products need beside themselves: in 8 and 4 bits their operands are cast, and scaled; gradients of weights are added up.

use super::block::Block;
use super::compute::{Casts, Gemm};
use super::layer::Pricer;
use super::pass::Pass;
use crate::spec::framework::{Fp8Scaling, Framework, Gradients};
use crate::spec::kernels::NormKernel;
use crate::spec::workload::Precision;

/// Share of the streaming rate at which a cast with scales of blocks passes, by rows and by columns at once: 52.3 us for 8,192 by
/// 8,192 numbers of 16 bits on a B200, 5.13 of 6.67 TB/s (ROCm/TransformerEngine pull request 598, NVIDIA's kernel beside its own; row by
/// row alone 34.8 us, 5.78). Kernels of pytorch/ao reach 0.74 to 0.82 of the peak there in either direction
/// (torchao/prototype/moe_training/README). Finding each block's maximum keeps processors busy (NVIDIA/TransformerEngine pull
/// request 1628 calls them bound by computation).
const IN_BLOCKS: f64 = 0.77;

impl Framework {
    /// Whether 8-bit operands are cast by rows alone, where products take them in any layout.
    pub(super) fn by_rows_alone(&self, any_layout: bool) -> bool {
        let whole = matches!(self.fp8_scaling, Fp8Scaling::Delayed | Fp8Scaling::Current);
        any_layout && whole && self.casts_by_rows
    }
}

impl Block<'_, '_> {
    /// What a product in 4 bits needs beside itself. The input and the output's gradient are read for the maximum of each
    /// tensor, as it is and with its columns turned by a Hadamard transform, and then cast by rows and, so turned, by
    /// columns: 2 bytes read, then 2 read and twice 4.5 bits written (NVIDIA/TransformerEngine, NVFP4BlockScaling; pytorch/ao
    /// pull request 4369). Casts of the weights serve a whole step.
    pub(super) fn casts_to_four_bits(&mut self, g: Gemm) {
        let d = &self.p.device;
        let maxima = |elements: f64| d.stream(2.0 * elements);
        let casts = |elements: f64| d.stream(3.125 * elements);
        for (pass, rows, columns) in [(&mut self.forward, g.m, g.k), (&mut self.input, g.m, g.n)] {
            let elements = (g.batch * rows * columns) as f64;
            pass.run(maxima(elements));
            pass.run(casts(elements));
        }
    }

    /// Which casts of the experts' first product, and of their second, are kernels of their own.
    pub(super) fn expert_casts(&self) -> (Casts, Casts) {
        let made = self.casts_in_products();
        (Casts { gradient: !made, ..Casts::ALL }, Casts { input: !made, ..Casts::ALL })
    }

    /// Whether the kernel of the experts' first product casts what its activation makes, and that of the second's input gradient
    /// the activation's (NVIDIA/TransformerEngine pull request 2769: forward_grouped_mlp and backward_grouped_mlp).
    pub(super) fn casts_in_products(&self) -> bool {
        let p = self.p;
        p.framework.fused.quantized_mlp
            && p.framework.fused.grouped_gemm
            && p.framework.fp8_scaling == Fp8Scaling::Block
            && p.workload.precision == Precision::Fp8
            && p.model.activation.gated()
            && !p.framework.wide_experts
    }

    /// What a product in 8 bits needs beside itself: its operands are cast from 16 bits, and scaled.
    ///
    /// Where a loop launches each expert's product so it does each one's casts, which end and begin one after another.
    pub(super) fn casts(&mut self, g: Gemm, casts: Casts) {
        let d = &self.p.device;
        let of_norm = casts.of_norm;
        let looped = self.p.framework.fused.looped_gemm && !self.casts_in_products();
        let gaps = if looped { (g.batch.max(1) - 1) as f64 * d.kernel } else { 0.0 };
        let elements = |rows: u64, columns: u64| (g.batch * rows * columns) as f64;
        let (input, weights, output) = (elements(g.m, g.k), elements(g.k, g.n), elements(g.m, g.n));
        let scaling = self.p.framework.fp8_scaling;
        match scaling {
            Fp8Scaling::Delayed | Fp8Scaling::Current | Fp8Scaling::Block => {
                // The input and the output's gradient are read and written by rows, 2 + 1 bytes an element, and by columns for
                // the product that sums over these, unless a chip multiplies what lies by rows all the same. Blocks have other
                // scales that way. What the product reads across is not written by columns: the input first.
                let as_it_lies = self.p.framework.by_rows_alone(d.takes_any_layout());
                let across = self.p.framework.operands_across.weight_gradient;
                let turns = |least: u8| !as_it_lies && across < least;
                let columns = |turned: bool| f64::from(u8::from(turned));
                // The kernel of a tuned norm knows the scale that earlier passes left, so that it writes 8 bits in place of 16,
                // which leaves the transpose, read and written; or finds the maximum of what it writes.
                let known = of_norm && self.p.norm_kernel() == NormKernel::Tuned;
                let rate = if scaling == Fp8Scaling::Block { IN_BLOCKS } else { 1.0 };
                let cast = |elements: f64, turned: bool| {
                    d.stream((3.0 + columns(turned)) * elements / rate) + gaps
                };
                if casts.input && (scaling != Fp8Scaling::Delayed || !known) {
                    self.forward.run(cast(input, turns(1)));
                } else if casts.input && turns(1) {
                    self.forward.run(d.stream((2.0 - 1.0) * input));
                }
                if casts.gradient {
                    self.input.run(cast(output, turns(2)));
                }
                if scaling == Fp8Scaling::Current {
                    // Read for its maximum in the same call.
                    let maximum = |elements: f64| d.stream(2.0 * elements);
                    if !known {
                        self.forward.compute += maximum(input);
                    }
                    self.input.compute += maximum(output);
                }
            }
            Fp8Scaling::Row => {
                // A row in memory is read once and written in 8 bits, 2 + 1 bytes; one across it is read for its maximum
                // first, 2 + 2 + 1. Forward the input and the weights by rows; for the input's gradient the output's
                // gradient by rows and the weights across; for the weights' both across. Backward no sum may be rounded
                // early: the products run with one scale, and a kernel scales their results (read 2, write 2;
                // pytorch/ao pull request 1325, issue 2184).
                let kernels = |pass: &mut Pass, moved: &[f64]| {
                    for &bytes in moved {
                        pass.run(d.stream(bytes));
                    }
                };
                kernels(&mut self.forward, &[3.0 * input, 3.0 * weights]);
                kernels(
                    &mut self.input,
                    &[3.0 * output, 2.0 * weights, 3.0 * weights, 4.0 * input],
                );
                let across = [2.0 * output, 3.0 * output, 2.0 * input, 3.0 * input];
                kernels(&mut self.weight, &across);
                self.weight.run(d.stream(4.0 * weights));
            }
        }
    }
}

impl Pricer<'_> {
    /// Seconds of the weight gradient of a product `g`, in the job's precision if `narrow`, and of adding it to the stored one: the
    /// product's kernel reads and writes the sum instead of its own result, or a second kernel reads that result too. Where the
    /// result is stored beside the sum it is first copied in the sum's width (microsoft/DeepSpeed, runtime/bf16_optimizer.py:
    /// `add_(lp.grad.data.to(hp_grad.dtype))`). Gradients that are reduced after each pass are not added here, nor those of the first
    /// micro-batch where none are stored.
    pub(super) fn weight_gradient(&self, g: Gemm, narrow: bool) -> f64 {
        let d = &self.device;
        let stored = self.framework.bytes.gradient as f64;
        let gradient = g.weight_gradient().across(self.framework.operands_across.weight_gradient);
        let product = if narrow { d.linear(gradient) } else { d.plain(gradient) };
        if self.reduces_each_pass() {
            product
        } else if !self.framework.fused.gradient_accumulation {
            let weights = g.batch as f64 * g.n as f64 * g.k as f64;
            let (sum, passes) =
                if stored > 4.0 { (stored - self.width, 4.0) } else { (stored, 2.0) };
            product + self.added() * d.stream(weights * (passes * sum + self.width))
        } else if narrow {
            d.linear_added(gradient, stored)
        } else {
            d.plain_added(gradient, stored)
        }
    }

    /// Share of a step's micro-batches whose gradients are added to stored ones by kernels of their own: without the first where none
    /// are kept from step to step, whose gradients are stored as they come (pytorch/pytorch, torch/csrc/autograd/functions/
    /// accumulate_grad.h: accumulateGrad).
    pub(super) fn added(&self) -> f64 {
        let sequences = (self.up_to.unwrap_or(self.shard.dp) * self.shard.mbs) as f64;
        match self.framework.held.gradients {
            Gradients::Passing => {
                (1.0 - sequences / self.workload.global_batch_size as f64).max(0.0)
            }
            Gradients::Kept | Gradients::Replace => 1.0,
        }
    }
}
