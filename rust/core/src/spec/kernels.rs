//! Kernels of norms and rotary embeddings, and how much memory traffic they were measured to be worth.

use serde::{Deserialize, Serialize};

use crate::error::{require, Error};

/// One pass of a micro-batch through an operator: full-tensor reads and writes that take as long, at the rate of a copy, as its
/// kernels do, and how many kernels these are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Reads and writes of every element, each way.
    pub forward: f64,
    /// The same in the backward pass, gradients of weights with it.
    pub backward: f64,
    /// Kernels of the forward and of the backward pass.
    pub kernels: (u32, u32),
}

/// Operands of 8 bits, of two, that a product reads across the dimension that it sums over; they are written by rows alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperandsAcross {
    /// Of the product that gives the gradient of a linear layer's input: the weights, for 1.
    pub input_gradient: u8,
    /// Of that of its weights: the input for 1, the output's gradient too for 2.
    pub weight_gradient: u8,
}

impl OperandsAcross {
    /// Checks ranges.
    pub fn validate(&self) -> Result<(), Error> {
        for (v, most, path) in [
            (self.input_gradient, 1, "operands_across.input_gradient"),
            (self.weight_gradient, 2, "operands_across.weight_gradient"),
        ] {
            require(
                v <= most,
                path,
                || format!("must be from 0 to {most}, found {v}"),
                "Give 0 where operands are transposed before the product.",
            )?;
        }
        Ok(())
    }
}

/// How a norm runs.
///
/// A kernel that reduces rows streams slower than a copy, and one that sums weights' gradients over columns slower still. What
/// that is worth was measured on A100, H100 and GB300, whose copies differ by a factor of five, and is the same share of them
/// within a third (`tests/data/operators/norms.csv`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKernel {
    /// Shaped for each width, all gradients in one pass: FastLayerNorm of NVIDIA/apex (pull request 1037: 0.0535 and 0.0866 ms
    /// for 16,384 rows of 1,024 on an A100), and Transformer Engine, which took it over.
    Tuned,
    /// One kernel a pass, and one for the weights' gradients: FusedLayerNorm of NVIDIA/apex, PyTorch's layer norm.
    Fused,
    /// PyTorch's own layer norm, and since release 2.9 its root-mean-square norm: such kernels, of which each thread block works on
    /// one row, so that rows as narrow as a head take it longer than their bytes (pytorch/pytorch, layer_norm_kernel.cu:
    /// launch_vectorized_layer_norm_kernel; layer_norm_grad_input_kernel_vectorized).
    Native,
    /// Such kernels on an input that is cast to 32 bits first (InternLM/InternLM, model/modeling_internlm.py: `norm1(residual.float())`):
    /// 2 bytes are read and 4 written (3), and the kernel reads twice as much (1); backward it reads its input and writes the
    /// gradient as wide (3 more), which is cast back (3).
    Widened,
    /// What torch.compile made of a root-mean-square norm in 2025 (linkedin/Liger-Kernel, benchmarks of version 0.5.2).
    Compiled,
    /// Operator by operator, cast to 32 bits and back, in PyTorch (huggingface/transformers, LlamaRMSNorm, in the same
    /// benchmarks). A layer norm is one kernel in any framework.
    Eager,
    /// The same in a framework whose operators nobody timed, counted: 18 reads and writes forward, and twice as many backward.
    Separate,
}

impl NormKernel {
    /// Transformer Engine's norm of heads, for which it has no kernel shaped for their width: 75.5 million numbers of 128 a head took
    /// 0.116 ms forward and 0.331 backward on an H100, of which 0.146 are the weights' gradients (tests/data/operators/te_layers.csv).
    pub const HEADS: Traffic = Traffic { forward: 2.3, backward: 6.6, kernels: (1, 2) };

    /// A root-mean-square norm without a weight, in the kernel that torch.compile makes of it and the addition before it: beside what
    /// that passes its result is written, and backward its input is read (PyTorch 2.15, reads and writes of the kernels that
    /// torch/_inductor plans of such layers for an H100: tests/data/operators/compiled.csv). A weight's gradient is a sum over all
    /// rows, for which it makes kernels apart.
    pub const WITHOUT_WEIGHT: Traffic = Traffic { forward: 1.0, backward: 1.0, kernels: (0, 0) };

    /// Widths whose root-mean-square norm Transformer Engine has kernels of its own for (NVIDIA/TransformerEngine,
    /// normalization/rmsnorm/rmsnorm_bwd_semi_cuda_kernel.cu: REGISTER_NORM_LAUNCHER, tuned).
    pub fn is_shaped_for(width: u64) -> bool {
        matches!(width, 512 | 768 | 1024 | 2048 | 4096 | 8192)
    }

    /// What its kernels are worth.
    pub fn traffic(self) -> Traffic {
        match self {
            NormKernel::Tuned => Traffic { forward: 2.1, backward: 3.4, kernels: (1, 2) },
            NormKernel::Fused | NormKernel::Native => {
                Traffic { forward: 3.3, backward: 7.8, kernels: (1, 2) }
            }
            NormKernel::Widened => Traffic { forward: 7.3, backward: 13.8, kernels: (2, 3) },
            NormKernel::Compiled => Traffic { forward: 3.6, backward: 14.0, kernels: (1, 2) },
            NormKernel::Eager => Traffic { forward: 27.0, backward: 71.0, kernels: (6, 12) },
            NormKernel::Separate => Traffic { forward: 18.0, backward: 36.0, kernels: (6, 12) },
        }
    }
}

/// Transformer Engine's kernels for root-mean-square norms of any width, by what they were built for.
///
/// Backward a thread block takes one row after another and leaves the sums of its rows' weights' gradients; a row has as many blocks
/// as it has 4,096 columns, which wait for each other on every row. A second kernel adds these sums up, of which a thread takes one
/// column, one of four rows after another, so that it waits for the memory whatever the width (NVIDIA/TransformerEngine,
/// normalization/rmsnorm/rmsnorm_bwd_kernels.cuh).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GeneralNorms {
    /// None: every width has kernels of its own.
    Absent,
    /// NVIDIA's devices. 8,192 rows of 8,192 took an H100 2.2 times as long forward as tuned kernels and 1.3 times backward
    /// (NVIDIA/TransformerEngine pull request 747), where these take 148 us by `te_layers.csv`; 4,096 rows of 7,168 took the first
    /// kernel of the backward pass 155 us on a B200, and all norms of a layer of DeepSeek-V3, some of them run again, 592 (torch
    /// profile of 21 April 2026 on 512 B200 of Together AI). So a row of two blocks waits 1.4 us on one and 2.8 on the other, of
    /// two dies; two are taken. Rows of one block pass as fast as heads do.
    Cuda,
    /// AMD's: 81 us forward and 217 backward for 16,384 rows of 2,880 on an MI355X, 21 us to read or write once at its 0.56 of the
    /// memory's rate, with a kernel's gap of 5, and 573 in the second kernel (profile of GPT-OSS-20B for MLPerf, 2026-04-20,
    /// gptoss_02, its B0).
    Hip,
}

impl GeneralNorms {
    /// What the kernels that pass whole tensors are worth.
    pub fn traffic(self) -> Traffic {
        match self {
            GeneralNorms::Absent => NormKernel::Tuned.traffic(),
            GeneralNorms::Cuda => Traffic { forward: 4.6, backward: 3.6, kernels: (1, 2) },
            GeneralNorms::Hip => Traffic { forward: 3.6, backward: 10.1, kernels: (1, 2) },
        }
    }

    /// The least seconds of the backward pass over so many `rows`, as blocks of one row wait for each other, on a device of so
    /// many `processors`.
    pub fn waits(self, rows: f64, width: f64, processors: f64) -> f64 {
        match self {
            GeneralNorms::Cuda if width > COLUMNS => {
                2e-6 * rows * (width / COLUMNS).ceil() / processors
            }
            GeneralNorms::Absent | GeneralNorms::Cuda | GeneralNorms::Hip => 0.0,
        }
    }

    /// Seconds in which weights' gradients are added up. AMD's 256 processors are taken to hold eight blocks each, NVIDIA's four, as
    /// registers allow for 4,096 columns three and for 2,048 five; there a row of sums takes 0.3 us, as 528 of a head's width did
    /// 146 on an H100 (`te_layers.csv`).
    pub fn sums(self, rows: f64, width: f64, processors: f64) -> f64 {
        let (blocks, step) = match self {
            GeneralNorms::Absent => return 0.0,
            GeneralNorms::Cuda => (4.0, 0.3e-6 / 4.0),
            GeneralNorms::Hip => (8.0, 573e-6 / (8.0 * 256.0)),
        };
        step * rows.min(blocks * processors / (width / COLUMNS).ceil())
    }
}

/// Columns of a row of which a thread block of a general norm's backward pass takes care.
const COLUMNS: f64 = 4096.0;

/// How queries and keys are rotated.
///
/// Measured like [`NormKernel`]; cosines and sines are of one head, and stay in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RotaryKernel {
    /// Read and written once.
    Fused,
    /// The same by blocks of one token, as Apex and Transformer Engine have it: 0.0895 ms forward and 0.091 backward for 41.9 million
    /// 16-bit numbers on an H100 of which a read or a write takes 0.0278 (Transformer Engine 2.20, tests/data/operators/te_layers.csv).
    ByToken,
    /// As torch.compile joined the operators in 2025.
    Compiled,
    /// The same operators in PyTorch, timed: products with what all heads share, and joins, move less than a copy. 67 million
    /// 16-bit numbers took 0.907 ms forward and 1.023 backward on an H100 that copies 2,974 GB/s (PyTorch 2.11).
    Eager,
    /// The same as Megatron-Core has it (NVIDIA/Megatron-LM, models/common/embeddings/rope_utils.py, _apply_rotary_pos_emb_bshd): for
    /// queries and for keys cosines and sines are made, scaled and cast, six kernels over what one head takes, and the result is
    /// joined with channels that are not rotated, of which there may be none (2 reads and writes); backward these have a gradient of
    /// zeros (1) that is added (3).
    Unfused,
    /// The eager ones on queries and keys that are cast to 32 bits and back, which are six reads and writes more; of as many numbers
    /// twice as wide no operator takes less than of narrow ones (pytorch/torchtitan, models/common/rope.py: CosSinRoPE).
    Widened,
    /// Neighbouring channels as complex numbers of 32 bits: a cast, a product and a cast back, which take 0.6 of the time of the
    /// eager ones forward and half backward, timed on an H100 under PyTorch 2.11 (the same, ComplexRoPE).
    Complex,
    /// Cosine product (2), halves negated and joined (4), sine product (2), sum (3), counted.
    Separate,
}

impl RotaryKernel {
    /// A kernel that norms each head of queries and keys and rotates it: read and written once, as the fused one; backward what it
    /// normed is read again beside the gradient (axolotl-ai-cloud/axolotl pull request 3680: fused_rms_norm_rope; AMD-AGI/Primus-Turbo,
    /// by which a step of Qwen3-30B-A3B on MI355X went from 7.35 to 6.99 s, notes of q30mi355).
    pub const NORMED: Traffic = Traffic { forward: 2.3, backward: 3.3, kernels: (2, 2) };

    /// As torch.compile joins rotation and a norm without a weight behind it: what is projected is read, and its rotation and the
    /// norm of that are written; backward the gradient and the rotation are read, and what lies between both is written and turned
    /// back in parts (from the same plans).
    pub const COMPILED_WITH_NORMS: Traffic =
        Traffic { forward: 3.05, backward: 7.1, kernels: (1, 5) };

    /// What the kernels of queries and of keys are worth.
    pub fn traffic(self) -> Traffic {
        match self {
            RotaryKernel::Fused => Traffic { forward: 2.3, backward: 2.3, kernels: (2, 2) },
            RotaryKernel::ByToken => Traffic { forward: 3.2, backward: 3.3, kernels: (2, 2) },
            RotaryKernel::Compiled => Traffic { forward: 4.0, backward: 10.0, kernels: (2, 2) },
            RotaryKernel::Eager => Traffic { forward: 20.1, backward: 22.7, kernels: (10, 10) },
            RotaryKernel::Unfused => Traffic { forward: 22.1, backward: 26.7, kernels: (24, 14) },
            RotaryKernel::Widened => Traffic { forward: 26.1, backward: 28.7, kernels: (14, 14) },
            RotaryKernel::Complex => Traffic { forward: 12.1, backward: 11.4, kernels: (6, 6) },
            RotaryKernel::Separate => Traffic { forward: 11.0, backward: 11.0, kernels: (10, 10) },
        }
    }
}

/// How Adam runs.
///
/// A kernel that reads four tensors and writes three, or passes over many tensors at a time, streams slower than a copy. Timed on an
/// H200 under PyTorch 2.11 (tests/published/hfh200.csv), and published of an A100 in 32 bits (IMvision12/trinix@5bd60d48,
/// benchmarks/OPTIMIZER.md, PyTorch 2.8: 63.3 ms a billion parameters in separate operators, 22.3 in one kernel of Triton), both
/// take 1.4 to 1.6 times as long as their bytes at the rate of a copy. In one kernel 16-bit numbers take 1.9 times as long there,
/// and 1.0 to 1.3 times on an H100 with slower memory (pytorch/pytorch pull request 119842).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdamKernel {
    /// PyTorch's operators over lists of tensors: weights decayed (2), the first moment moved towards the gradient (3), the second
    /// scaled (2) and the gradient's square added (3), its root (2), divided (2), epsilon added (2), and the weights moved by the
    /// quotient of both (4): 20 reads and writes (pytorch/pytorch, torch/optim/adamw.py, `_multi_tensor_adamw`).
    Separate,
    /// The same operators, tensor by tensor (`foreach=False`, which was all there was by default before PyTorch 2.0; pytorch/pytorch,
    /// torch/optim/adamw.py, `_single_tensor_adamw`): each streams as any other, and the host launches each of them.
    ByTensor,
    /// PyTorch's one kernel over lists of tensors (`fused=True`), which reads and writes each number once.
    Native,
    /// One kernel over lists of tensors, Apex's and what was made of it: Transformer Engine's takes 1.17 times as long as a copy of
    /// what it reads and writes, 9.48 ms for 872 million parameters in 32 bits on an H100 (tests/data/operators/te_layers.csv).
    Fused,
    /// As a compiler joins it or a chip's own library has it, which nobody timed apart: each number read and written once.
    Compiled,
}

impl AdamKernel {
    /// Bytes of a copy that take as long, where it reads or writes `once` bytes of a parameter each once, and works on numbers of so
    /// many bytes.
    pub fn traffic(self, once: f64, number: f64) -> f64 {
        const OVER_A_COPY: f64 = 1.5;
        match self {
            AdamKernel::Separate => once.max(OVER_A_COPY * 20.0 * number),
            AdamKernel::ByTensor => once.max(20.0 * number),
            AdamKernel::Native => OVER_A_COPY * once,
            AdamKernel::Fused => 1.17 * once,
            AdamKernel::Compiled => once,
        }
    }

    /// Kernels that the host launches for each tensor; 0 where one takes lists of them.
    ///
    /// Weights are decayed, the first moment is moved, the second scaled and added to, its root taken, divided and added to, and
    /// the weights are moved.
    pub fn kernels_a_tensor(self) -> u32 {
        match self {
            AdamKernel::ByTensor => 8,
            AdamKernel::Separate
            | AdamKernel::Native
            | AdamKernel::Fused
            | AdamKernel::Compiled => 0,
        }
    }
}

/// How scale, mask and softmax of scores that are stored run: widths of a score matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SoftmaxKernel {
    /// One kernel for causal models: below the diagonal alone it reads (half), and everywhere it writes; backward it reads two
    /// halves (NVIDIA/Megatron-LM, scaled_upper_triang_masked_softmax).
    Fused,
    /// As XLA joins them: what its attention takes on an H100 beyond its products, 3.57 ms forward and 7.13 backward for 64 heads
    /// of 4,096 tokens, of which these take some 1.5 and 3.0 (apple/axlearn, gpu_attention_benchmark.py, column `jax`).
    Compiled,
    /// Scale (2), mask (2.5), cast to 32 bits (3), softmax (4), cast back (3). Runs whose softmax casts nothing take as long
    /// (tests/published: sailor, cailight, fairseq13b); why is not known.
    Separate,
    /// Scale (2), mask (2.5) and softmax (2) of 16-bit scores in a compiled graph, which leaves out casts to what they are already.
    Narrow,
}

impl SoftmaxKernel {
    /// What the kernels are worth.
    pub fn traffic(self) -> Traffic {
        match self {
            SoftmaxKernel::Fused => Traffic { forward: 1.5, backward: 2.0, kernels: (1, 1) },
            SoftmaxKernel::Compiled => Traffic { forward: 2.8, backward: 5.6, kernels: (2, 2) },
            SoftmaxKernel::Separate => Traffic { forward: 14.5, backward: 16.0, kernels: (5, 5) },
            SoftmaxKernel::Narrow => Traffic { forward: 6.5, backward: 5.0, kernels: (3, 3) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Measured norms, a line each, by what the chip copies in a second. `apex`: NVIDIA/apex, pull request 1037;
    /// `liger-kernel`: linkedin/Liger-Kernel, benchmark/data (version 0.5.2; those in 32 bits are PyTorch's layer norm) and
    /// benchmark/rms_norm_speed, a backward pass being both passes less the forward one where it was not timed alone;
    /// `kernelagent`: meta-pytorch/KernelAgent, pull request 133, PyTorch's layer norm.
    const MEASURED: &str = include_str!("../../../../tests/data/operators/norms.csv");

    fn kernel(name: &str) -> NormKernel {
        serde_json::from_value(name.into()).unwrap()
    }

    #[test]
    fn general_norms_take_what_they_were_timed_at_and_their_sums_wait_alike_for_any_width() {
        // 16,384 rows of 2,880 numbers of two bytes at 0.56 of 8 TB/s, with a gap of 5 us a kernel.
        let pass = 16384.0 * 2880.0 * 2.0 / (0.56 * 8e12);
        let hip = GeneralNorms::Hip;
        assert!(((hip.traffic().forward * pass + 5e-6) / 81e-6 - 1.0).abs() < 0.01);
        assert!(((hip.traffic().backward * pass + 5e-6) / 217e-6 - 1.0).abs() < 0.01);
        let sums = |rows: f64, width: f64| 1e6 * hip.sums(rows, width, 256.0);
        assert!((sums(16384.0, 2880.0) - 573.0).abs() < 1e-6);
        assert!((sums(16384.0, 3584.0) - 573.0).abs() < 1e-6);
        // Two blocks a row leave half as many rows of sums, and half as many rows no more than they are.
        assert!((sums(16384.0, 6144.0) - 286.5).abs() < 1e-6);
        assert!((sums(1024.0, 2880.0) - 286.5).abs() < 1e-6);
        assert!(NormKernel::is_shaped_for(4096) && !NormKernel::is_shaped_for(5120));
    }

    #[test]
    fn general_norms_of_nvidia_lie_between_what_an_h100_and_a_b200_took() {
        let (cuda, tuned) = (GeneralNorms::Cuda, NormKernel::Tuned.traffic());
        assert!((cuda.traffic().forward / tuned.forward - 2.2).abs() < 0.01);
        // The backward pass of 4,096 rows of 7,168 on a B200 took 155 us beside the sums; of 8,192 of 8,192 on an H100 1.3 times 148
        // with them: 2 us a row of 4,096 columns, of 148 and 132 processors.
        let b200 = 1e6 * cuda.waits(4096.0, 7168.0, 148.0);
        assert!((b200 - 2.0 * 4096.0 * 2.0 / 148.0).abs() < 1e-9 && b200 < 155.0);
        let h100 = 1e6 * (cuda.waits(8192.0, 8192.0, 132.0) + cuda.sums(8192.0, 8192.0, 132.0));
        assert!(h100 > 1.3 * 148.0 && h100 < 2.0 * 148.0);
        // Blocks of up to 4,096 columns wait for none; 132 processors with four leave 528 rows of sums.
        assert_eq!(cuda.waits(8192.0, 2880.0, 132.0), 0.0);
        assert!((1e6 * cuda.sums(8192.0, 2880.0, 132.0) - 528.0 * 0.3 / 4.0).abs() < 1e-9);
    }

    #[test]
    fn a_cast_before_a_norm_passes_six_bytes_and_makes_the_kernel_read_wider() {
        // In 16 bits: 2 read and 4 written are three reads or writes, and 4 bytes read in place of 2 another; backward its input,
        // the other input of the gradient's sums and the gradient are 2 bytes wider each, and the cast back is three.
        let (plain, wide) = (NormKernel::Fused.traffic(), NormKernel::Widened.traffic());
        assert!((wide.forward - plain.forward - 4.0).abs() < 1e-9);
        assert!((wide.backward - plain.backward - 6.0).abs() < 1e-9);
    }

    #[test]
    fn adam_takes_what_it_was_timed_at() {
        // Milliseconds of so many parameters, of numbers of 2 and 4 bytes: a copy passes 4,320 GB/s on an H200, 1,774 on an A100. In
        // one kernel a gradient is read, and weights and moments are read and written: seven numbers.
        let timed = |kernel: AdamKernel, parameters: f64, number: f64, rate: f64| {
            1e3 * parameters * kernel.traffic(7.0 * number, number) / rate
        };
        let (h200, a100) = (4.32e12, 1.774e12);
        for (milliseconds, estimate) in [
            (21.8, timed(AdamKernel::Separate, 1.50e9, 2.0, h200)),
            (22.1, timed(AdamKernel::Separate, 1.57e9, 2.0, h200)),
            (40.8, timed(AdamKernel::Separate, 3.05e9, 2.0, h200)),
            (14.6, timed(AdamKernel::Native, 1.50e9, 4.0, h200)),
            (63.3, timed(AdamKernel::Separate, 1e9, 4.0, a100)),
        ] {
            assert!((estimate / milliseconds - 1.0).abs() < 0.08, "{estimate} of {milliseconds}");
        }
        // 16-bit numbers in one kernel keep arithmetic busy: 9.8 ms.
        assert!(timed(AdamKernel::Native, 1.57e9, 2.0, h200) > 0.75 * 9.8);
    }

    #[test]
    fn rotary_operators_take_what_they_were_timed_at() {
        // 2 sequences of 8,192 tokens with 32 heads of 128 numbers of 2 bytes, 0.134 GB, at 2,974 GB/s.
        let milliseconds = |passes: f64| 1e3 * passes * 2.0 * 8192.0 * 32.0 * 128.0 * 2.0 / 2974e9;
        let eager = RotaryKernel::Eager.traffic();
        assert!((milliseconds(eager.forward) - 0.907).abs() < 0.002);
        assert!((milliseconds(eager.backward) - 1.023).abs() < 0.002);
    }

    #[test]
    fn casts_around_rotary_operators_pass_six_bytes_each() {
        // 2 bytes read and 4 written are three reads or writes of 16 bits, and back as many: six, each way, in two kernels more for
        // queries and two for keys.
        let (narrow, wide) = (RotaryKernel::Eager.traffic(), RotaryKernel::Widened.traffic());
        assert!((wide.forward - narrow.forward - 6.0).abs() < 1e-9);
        assert!((wide.backward - narrow.backward - 6.0).abs() < 1e-9);
        assert_eq!((wide.kernels.0 - narrow.kernels.0, wide.kernels.1 - narrow.kernels.1), (4, 4));
    }

    #[test]
    fn what_a_compiler_joins_is_worth_what_it_plans() {
        // Passes over the stream of 256 channels, of which a layer has two norms, and queries and keys twice as many.
        let plans = include_str!("../../../../tests/data/operators/compiled.csv");
        let passes = |layer: &str, column: usize| -> f64 {
            let line = plans.lines().find(|line| line.starts_with(&format!("{layer},")));
            line.unwrap().split(',').nth(column).unwrap().parse().unwrap()
        };
        let gained =
            |more: &str, less: &str, column| (passes(more, column) - passes(less, column)) / 2.0;
        for (column, norm, heads) in [
            (3, NormKernel::WITHOUT_WEIGHT.forward, RotaryKernel::COMPILED_WITH_NORMS.forward),
            (4, NormKernel::WITHOUT_WEIGHT.backward, RotaryKernel::COMPILED_WITH_NORMS.backward),
        ] {
            assert!((gained("norms without weight", "no norms", column) - norm).abs() < 0.02);
            let rotated = gained("rotation and norms of heads", "norms without weight", column);
            assert!((rotated - heads).abs() < 0.05);
        }
    }

    #[test]
    fn measured_norms_are_worth_their_traffic_on_every_chip() {
        let mut errors: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for line in MEASURED.lines().skip(1) {
            let cells: Vec<&str> = line.split(',').collect();
            let number = |i: usize| cells[i].parse::<f64>().unwrap();
            let passes = kernel(cells[3]).traffic();
            let passes = if cells[4] == "forward" { passes.forward } else { passes.backward };
            let tensor = number(5) * number(6) * number(7);
            let milliseconds = 1e3 * passes * tensor / (number(2) * 1e9);
            let error = milliseconds / number(8) - 1.0;
            errors.entry(format!("{} {}", cells[3], cells[4])).or_default().push(error);
        }
        for (group, errors) in &errors {
            let mean = errors.iter().sum::<f64>() / errors.len() as f64;
            assert!(mean.abs() < 0.05, "{group}: {mean} of {errors:?}");
            // What torch.compile made of a backward pass is a fifth slower on an H100 and a tenth faster on an A100.
            assert!(errors.iter().all(|error| error.abs() < 0.25), "{group}: {errors:?}");
        }
        assert_eq!(errors.len(), 8);
    }
}
