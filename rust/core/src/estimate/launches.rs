//! What the host launches otherwise than kernel by kernel: parts of a layer as one graph, and products in a compiled loop.

use super::block::Block;
use super::pass::Pass;
use super::shard::Split;
use crate::spec::framework::{Fp8Scaling, Selective};
use crate::spec::workload::Precision;

/// Launches that replaying a graph takes: its inputs are copied to where it reads them, it is launched, and in autograd it is one
/// node over all parameters (NVIDIA/TransformerEngine, pytorch/graph.py). How long is an assumption.
const REPLAY: u32 = 6;

/// Kernels that cast one expert's operand: its maximum is cleared and found, the scale follows, then cast and transpose
/// (NVIDIA/TransformerEngine, current scaling).
const CASTS: u32 = 4;

/// Launches that casting an expert's operand in blocks takes as long as: one kernel, but four tensors to allocate, numbers and scales
/// by rows and by columns (NVIDIA/Megatron-LM, docs/discussions/deepseek-v3-gb200-optimization, section 2.1.2), where a launch in a
/// loop is taken to allocate one: 7.3 + 4 x 2.7 us.
const CASTS_IN_BLOCKS: u32 = 2;

/// Launches that computing an operator again costs the host beside its kernels: states of random numbers are saved, set and set
/// back, and a backward pass runs within another (NVIDIA/Megatron-LM, core/tensor_parallel/random.py). How long is read off six
/// runs of NVIDIA-NeMo/Megatron-Bridge, which take 0.42 ms an operator of a layer more than its kernels tell.
pub(super) const CHECKPOINT: u32 = 4;

/// Launches of a layer's passes up to some point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Launched {
    forward: u32,
    input: u32,
    weight: u32,
    core: u32,
    summed: u32,
    sent: u32,
    exchanged: u32,
    repeated: [u32; 9],
}

impl Block<'_, '_> {
    /// What was launched so far.
    pub(super) fn launched(&self) -> Launched {
        Launched {
            forward: self.forward.kernels,
            input: self.input.kernels,
            weight: self.weight.kernels,
            core: self.core.kernels,
            summed: self.summed,
            sent: self.sent,
            exchanged: self.exchanged,
            repeated: self.repeats.kernels(),
        }
    }

    /// Whatever was launched since `before` is in a graph of each pass: a `new` one, or one that was replayed before.
    pub(super) fn in_graph(&mut self, before: Launched, new: bool) {
        let replay = if new { REPLAY } else { 0 };
        self.forward.kernels = before.forward + replay;
        self.input.kernels = before.input + replay;
        self.weight.kernels = before.weight;
        self.core.kernels = before.core;
        (self.summed, self.sent) = (before.summed, before.sent);
        self.exchanged = before.exchanged;
        self.repeats.set_kernels(before.repeated);
    }

    /// Whatever was launched since `before` is of experts' dispatch or combination, which a compiler may leave out.
    pub(super) fn beside_compiled(&mut self, before: Launched) {
        if self.p.framework.dispatch_launch_us > 0.0 {
            for (pass, before) in
                [(&mut self.forward, before.forward), (&mut self.input, before.input)]
            {
                pass.apart += pass.kernels - before;
                pass.kernels = before;
            }
        }
    }

    /// The forward pass, and what runs again of it before the `backward` pass, with what the device waits for launches.
    pub(super) fn forward_and_again(&self, recompute: Pass, backward: Pass) -> (Split, Split) {
        let launch = self.p.launch();
        if self.waits_for_counts() {
            // From one layer's wait to the next: the rest of this layer, in between its backward pass where it is run again, and what
            // precedes the next wait.
            let counted = self.counted;
            let first = [self.forward.since(counted), counted];
            let again = [recompute.since(counted), backward, counted];
            let waits = Pass::waits_in_order(&again, launch) - backward.waits(launch);
            let forward = self.forward.with_waits(Pass::waits_in_order(&first, launch));
            (forward, recompute.with_waits(waits))
        } else if self.waits_for_routing() {
            // A host that waited for each expert is not ahead when the backward pass begins.
            (self.forward.split(launch), recompute.split(launch))
        } else {
            (self.forward.split(launch), recompute.split_before(backward, launch))
        }
    }

    /// What `selective` recompute runs again before the `backward` pass, with what the device waits for launches. Where a policy is
    /// `asked` about every operator, it is so in the forward pass too: what that waits longer is counted here, as no other layer does.
    pub(super) fn selective_again(&self, selective: Pass, backward: Pass, asked: u32) -> Split {
        let launch = self.p.launch();
        if self.p.framework.selective != Selective::Operators || launch.asked == 0.0 {
            return selective.split_before(backward, launch);
        }
        let longer = Pass { asked, ..self.forward }.waits(launch) - self.forward.waits(launch);
        let again = Pass { asked, ..selective };
        again.with_waits(again.plus(backward).waits(launch) - backward.waits(launch) + longer)
    }

    /// Kernels of a compiled loop over `batch` products: each product, and in 8 and 4 bits the casts of its input and of its
    /// output's gradient. By maxima of earlier passes one kernel casts and transposes the operands of all experts
    /// (NVIDIA/TransformerEngine pull request 1072 of August 2024: fused_multi_cast_transpose), or one each where nothing is
    /// transposed. Where blocks share a scale, those of either operand are put in order for all products at once
    /// (the same, pull request 2019 of August 2025, pytorch/csrc/extensions/gemm.cpp: te_general_grouped_gemm).
    pub(super) fn launch_in_turn(&mut self, batch: u64) {
        let by_rows = self.p.framework.by_rows_alone(self.p.device.takes_any_layout());
        let (casts, ordered) = match (self.p.workload.precision, self.p.framework.fp8_scaling) {
            (Precision::Fp8, Fp8Scaling::Block) => (CASTS_IN_BLOCKS, 2),
            (Precision::Fp8, Fp8Scaling::Delayed) if by_rows => (1, 0),
            (Precision::Fp8, Fp8Scaling::Delayed) => (0, 1),
            (Precision::Fp8, Fp8Scaling::Current | Fp8Scaling::Row) => (CASTS, 0),
            (Precision::Fp4, _) => (2, 2),
            _ => (0, 0),
        };
        self.forward.loops(batch, 1 + casts, ordered);
        self.input.loops(batch, 1 + casts, ordered);
        self.weight.loops(batch, 1, ordered);
    }
}
