//! What is computed again of a layer by its operators: which they are, and what selective recompute makes of them.

use super::block::Block;
use super::launches::CHECKPOINT;
use super::pass::Pass;
use super::repeats::{Operator, Products};
use crate::spec::framework::Selective;
use crate::spec::kernels::NormKernel;
use crate::spec::model::Activation;
use crate::spec::workload::Precision;

impl Block<'_, '_> {
    /// Counts what ran forward since `before`, and the bytes that it made, as an operator that may be computed again.
    pub(super) fn may_repeat(&mut self, operator: Operator, before: Pass, made: f64) {
        let (again, dropped) = &mut self.repeats.each[operator as usize];
        again.compute += self.forward.compute - before.compute;
        again.tensor += self.forward.tensor - before.tensor;
        again.kernels += self.forward.kernels - before.kernels + CHECKPOINT;
        again.looped += self.forward.looped - before.looped;
        *dropped += made;
    }

    /// The nonlinearity that ran since `before`, and the bytes that it made. To compute ReLU again its input would have to be kept in
    /// place of its output.
    pub(super) fn activation_may_repeat(&mut self, before: Pass, made: f64) {
        if self.p.model.activation != Activation::Relu {
            self.may_repeat(Operator::Activation, before, made);
        }
    }

    /// The core of attention since `before`, without the exchange of context parallel, which ends before.
    pub(super) fn attention_may_repeat(&mut self, before: Pass, made: f64) {
        self.may_repeat(Operator::Attention, before, made);
        self.repeats.each[Operator::Attention as usize].0.kernels -= self.exchanged;
    }

    /// The norm that ran since `before`: of its own it keeps its input, as a cast before it made that if one did. Where its result is
    /// kept gathered, gathering is an operator by itself.
    pub(super) fn norm_may_repeat(&mut self, before: Pass) {
        let p = self.p;
        let width = p.model.hidden as f64;
        let own = match p.norm_kernel() {
            NormKernel::Widened => 0.0,
            _ => p.norm_kept(p.residual_tokens * width) - p.residual_bytes(),
        };
        let result = p.column_input(width);
        if !(p.framework.held.gathered_inputs && p.shard.sp) {
            self.may_repeat(Operator::Norm, before, own + result);
            return;
        }
        self.may_repeat(Operator::Norm, before, own);
        let share = result / p.shard.tp as f64;
        let (gather, dropped) = &mut self.repeats.each[Operator::Gather as usize];
        gather.tensor += p.tensor_gather(p.gathered(p.tokens * width));
        *dropped += result - share;
        self.repeats.shares += share;
    }

    /// Runs a norm again in the backward pass, behind the first also the addition of what the sub-layer before made (3).
    pub(super) fn repeat_norm(&mut self, width: f64) {
        let p = self.p;
        let mut again = Pass { kernels: CHECKPOINT, ..Pass::default() };
        p.norm(&mut again, &mut Pass::default(), p.residual_tokens, width);
        if self.again.kernels > 0 {
            again.run(p.device.stream(3.0 * p.residual_bytes()));
        }
        self.input = self.input.plus(again);
        self.again = self.again.plus(again);
    }

    /// An output of a single product, with a bias or without, that recompute of single operators may save.
    pub(super) fn product_made(&mut self, elements: f64, read: bool, biased: bool) {
        if !biased {
            self.saved.product(elements, read);
        } else if self.p.framework.keeps_biased_products {
            self.saved.save(elements, read);
        }
    }

    /// Of the products since `before`, with a bias or without, recompute of single operators spares the first of each two, or all or
    /// none of those with a bias, which it does not count.
    pub(super) fn products_spared(&mut self, before: Products, biased: bool) {
        if biased {
            let kept = self.p.framework.keeps_biased_products;
            self.products = self.products.uncounted_since(before, kept);
        }
    }

    /// What selective recompute runs again, and the bytes that are kept with it.
    pub(super) fn selective(&self) -> (Pass, f64) {
        let p = self.p;
        match p.framework.selective {
            Selective::Named => {
                // What norms made is gathered again with them, unless what communication brought is kept.
                let gather = p.framework.named.norm && !p.framework.keeps_tensor_results;
                let (again, made) = self.repeats.sum(p.framework.named, gather);
                (again, self.kept - made)
            }
            Selective::Attention => {
                // What is in a graph launches nothing of its own.
                let checkpoint = if self.core.kernels > 0 { CHECKPOINT } else { 0 };
                let kernels = self.core.kernels + checkpoint;
                (Pass { kernels, ..self.core }, self.kept - self.kept_core)
            }
            Selective::Operators => {
                // Products of 4-bit numbers are none of the operators that it knows (`aten._scaled_mm_v2`; PyTorch 2.15,
                // functorch/partitioners.py: get_default_op_list, and pytorch/torchtitan 0.3.0): all run again.
                let known = p.workload.precision != Precision::Fp4;
                let spared = if known { self.products.spared } else { (0.0, 0) };
                let attends =
                    p.fused_attention && p.device.attention_is_of(&p.framework.reruns_attention);
                let core = if attends { Pass::default() } else { self.core };
                let sends = p.framework.reruns_exchange;
                let sent = if sends { self.sent } else { 0 };
                let again = Pass {
                    compute: self.forward.compute - core.compute - spared.0,
                    tensor: self.gathered,
                    expert: if sends { self.forward.expert } else { 0.0 },
                    kernels: self.forward.kernels.saturating_sub(
                        core.kernels + spared.1 + self.summed - sent + self.exchanged,
                    ),
                    apart: self.forward.apart,
                    ..Pass::default()
                };
                // The layer's input, the outputs of every second product, that of attention with its sums, of the two
                // reduce-scatters, and of the exchanges of experts; with a compiled kernel of attention what that returns.
                let compiled = p.framework.fused.norm == NormKernel::Compiled;
                let sums = if p.shard.sp { 2.0 * p.residual_bytes() } else { 0.0 };
                let products = if known { self.saved.kept(compiled) } else { 0.0 };
                let inputs = if p.framework.keeps_attention_inputs { self.scored } else { 0.0 };
                let outputs = (products + inputs) * p.width;
                let attended = if attends { 0.0 } else { self.attention_output };
                let brought = if sends { 0.0 } else { self.dispatched };
                let kept = p.residual_bytes() + outputs + attended;
                (again, (kept + sums + brought).min(self.kept))
            }
        }
    }
}
