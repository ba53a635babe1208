//! Tensors that are filled before a kernel writes them.
//!
//! torch.use_deterministic_algorithms also fills what torch.empty gives, so that a kernel that reads what it never wrote reads the same
//! each time (pytorch/pytorch, ATen/native/cuda/EmptyTensor and TensorFactories: fill_empty_deterministic_). NVIDIA/Megatron-LM pull
//! request 7093 of September 2026 turns that off for about 15 per cent of the rate of large mixtures. Each fill is a kernel that
//! compiled code launches.

use super::block::Block;
use super::compute::Gemm;
use super::layer::Pricer;
use super::pass::Pass;

/// Share of what elementwise kernels pass that they write: most read two tensors for one.
const WRITTEN: f64 = 1.0 / 3.0;

impl Pricer<'_> {
    /// Fills `bytes` of so many `tensors` that a `pass` makes, where they are.
    pub(super) fn fill(&self, pass: &mut Pass, bytes: f64, tensors: u32) {
        if self.framework.fills_tensors && bytes > 0.0 {
            pass.compute += self.device.stream(bytes);
            pass.looped += tensors;
        }
    }
}

impl Block<'_, '_> {
    /// The results of a linear layer's three products; a gradient that is added to the stored one by its product is no new tensor.
    pub(super) fn fill_results(&mut self, g: Gemm) {
        let p = self.p;
        let bytes = |rows: u64, columns: u64| (g.batch * rows * columns) as f64 * p.width;
        p.fill(&mut self.forward, bytes(g.m, g.n), 1);
        p.fill(&mut self.input, bytes(g.m, g.k), 1);
        if !p.framework.fused.gradient_accumulation {
            p.fill(&mut self.weight, bytes(g.n, g.k), 1);
        }
    }

    /// What memory-bound kernels over `elements` make in so many passes each way.
    pub(super) fn fill_streams(&mut self, elements: f64, passes: (f64, f64), kernels: (u32, u32)) {
        let p = self.p;
        let bytes = |passes: f64| WRITTEN * passes * elements * p.width;
        p.fill(&mut self.forward, bytes(passes.0), kernels.0);
        p.fill(&mut self.input, bytes(passes.1), kernels.1);
    }
}
