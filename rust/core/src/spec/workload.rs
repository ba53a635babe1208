//! The workload: what one training step processes, and in which numbers.

use crate::error::{require, Error};
use serde::{Deserialize, Serialize};

/// The most sequences of a step, and the most tokens of a sequence.
pub const MOST: u64 = 1 << 30;

/// What one optimizer step does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Sequences in one step over the whole cluster.
    pub global_batch_size: u64,
    /// Tokens in one sequence.
    pub sequence_length: u64,
    /// Number format of the matrix products.
    pub precision: Precision,
    /// How attention is computed.
    pub attention: Attention,
    /// Whether hidden states and attention weights pass through dropout, as in the GPT-3 era.
    pub dropout: bool,
    /// Standard deviation of the experts' loads over their mean, as a router prefers some of them; 0 where it spreads tokens at random.
    /// Of no account where experts have a capacity.
    pub expert_load_variation: f64,
}

/// Number format of the matrix products. Everything else is in 16 bits, or in 32 with the 32-bit formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// bfloat16.
    Bf16,
    /// IEEE half with loss scaling.
    Fp16,
    /// 8-bit linear layers (forward and backward), 16-bit elsewhere.
    Fp8,
    /// 4-bit linear layers in NVFP4 (forward and backward): 16 numbers in a row share a scale of 8 bits. 16-bit elsewhere.
    Fp4,
    /// 32-bit numbers, matrix products on tensor cores that round them to 19 bits.
    Tf32,
    /// 32-bit numbers throughout.
    Fp32,
}

impl Precision {
    /// Every format, those of mixed precision by age first.
    pub const ALL: [Precision; 6] = [
        Precision::Bf16,
        Precision::Fp16,
        Precision::Fp8,
        Precision::Fp4,
        Precision::Tf32,
        Precision::Fp32,
    ];
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attention {
    /// One fused kernel that never stores the scores; which generation is the framework's choice.
    Flash,
    /// Scores, softmax and dropout as separate operators that store `sequence^2` elements a head.
    Unfused,
}

impl Precision {
    /// Bytes of an activation.
    pub fn activation_bytes(self) -> f64 {
        match self {
            Precision::Bf16 | Precision::Fp16 | Precision::Fp8 | Precision::Fp4 => 2.0,
            Precision::Tf32 | Precision::Fp32 => 4.0,
        }
    }

    /// Bytes of an element that was cast for a product with its share of the scales, where the products are narrower than
    /// the activations.
    pub fn cast_bytes(self) -> Option<f64> {
        match self {
            Precision::Fp8 => Some(1.0),
            Precision::Fp4 => Some(9.0 / 16.0),
            Precision::Bf16 | Precision::Fp16 | Precision::Tf32 | Precision::Fp32 => None,
        }
    }
}

impl Workload {
    /// Checks ranges.
    pub fn validate(&self) -> Result<(), Error> {
        for (v, path) in [
            (self.global_batch_size, "global_batch_size"),
            (self.sequence_length, "sequence_length"),
        ] {
            require(
                (1..=MOST).contains(&v),
                path,
                || format!("must be from 1 to 2^30, found {v}"),
                "Give a whole number.",
            )?;
        }
        Ok(())
    }

    /// Tokens in one step.
    pub fn tokens(&self) -> u64 {
        self.global_batch_size * self.sequence_length
    }
}
