//! Which operators are one kernel.

use crate::spec::kernels::{AdamKernel, GeneralNorms, NormKernel, RotaryKernel, SoftmaxKernel};
use serde::{Deserialize, Serialize};

/// How operators run: as one kernel, or as one a mathematical step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fused {
    /// Norms.
    pub norm: NormKernel,
    /// Root-mean-square norms are tuned for Transformer Engine's widths alone: others pass these general kernels of it.
    pub general_norms: GeneralNorms,
    /// Bias and activation.
    pub activation: bool,
    /// A dense MLP's nonlinearity with its gate is part of the products beside it, whose arithmetic hides what it moves (XLA on
    /// TPUs).
    pub activation_in_products: bool,
    /// The product with a gate is part of that kernel; else nonlinearity and product run in separate operators.
    pub gate: bool,
    /// The clamps of a clamped SwiGLU are part of that kernel.
    pub clamp: bool,
    /// GELU is one operator; else each term of its approximation by tanh is (huggingface/transformers, activations.py:
    /// NewGELUActivation).
    pub gelu: bool,
    /// Of those terms none is kept: the backward pass computes them again, with the sum of product and bias that they begin with
    /// (NVIDIA/Megatron-LM, megatron/model/fused_bias_gelu.py, where nothing joins what TorchScript runs).
    pub gelu_again: bool,
    /// Of those terms the cube and what it enters are of 32 bits, as torch.autocast has powers.
    pub gelu_in_fp32: bool,
    /// Rotary embedding.
    pub rope: RotaryKernel,
    /// Norms of each head's queries and keys are part of the rotation's kernel.
    pub normed_rotation: bool,
    /// Scale, mask and softmax of unfused attention.
    pub softmax: SoftmaxKernel,
    /// Bias, dropout and residual addition.
    pub residual: bool,
    /// Cross-entropy.
    pub cross_entropy: bool,
    /// The compiler fuses the cast of logits to 32 bits into the head's product, and what is elementwise into the sums that read
    /// them and into their gradient (XLA).
    pub compiled_loss: bool,
    /// Expert products as one operator.
    pub grouped_gemm: bool,
    /// That operator is a compiled loop that launches each expert's product by itself (NVIDIA/TransformerEngine pull request 853:
    /// cuBLAS on several streams).
    pub looped_gemm: bool,
    /// Experts' first product with activation and casts, and the gradient of the second with those, in a kernel each, in 8 bits.
    pub quantized_mlp: bool,
    /// Weight gradients added to the stored ones by the product's own kernel.
    pub gradient_accumulation: bool,
    /// Tokens sorted by expert, and back with their weights, in a kernel each.
    pub permutation: bool,
    /// A router's scores with its choice, the scores of its balancing loss, and that loss, in a kernel each.
    pub router: bool,
    /// Biases of grouped experts added in one pass over all of them, not expert by expert.
    pub expert_bias: bool,
    /// Adam: one kernel, PyTorch's or another's, or each of its operations by itself.
    pub optimizer: AdamKernel,
}
