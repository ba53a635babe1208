//! What fused-attention kernels were timed at.

use crate::error::{require, Error};
use serde::{Deserialize, Serialize};

/// One row of a fused-attention table: rate by sequence length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionRate {
    /// Kernel generation: `fa1`, `fa2`, `fa3`, `cudnn`, `npu`, ...
    pub kernel: String,
    /// Which pass was timed.
    pub pass: Pass,
    /// Head width.
    pub head_dim: u32,
    /// Whether the upper triangle was skipped (its operations are then not counted).
    pub causal: bool,
    /// Sequence lengths, ascending.
    pub sequence: Vec<u32>,
    /// 10^12 operations a second at each.
    pub tflops: Vec<f64>,
    /// Keys beyond a window that are worked out for each query, as blocks of queries and keys begin and end with no window.
    pub window_keys: u32,
}

/// Which pass an attention rate was timed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pass {
    /// Forward alone.
    Forward,
    /// Backward alone (2.5 times the forward operations).
    Backward,
    /// Both, timed together.
    Both,
}

impl AttentionRate {
    /// Checks lengths and ranges.
    pub(super) fn validate(&self, path: &str) -> Result<(), Error> {
        require(
            !self.sequence.is_empty()
                && self.sequence.len() == self.tflops.len()
                && self.sequence.windows(2).all(|w| w[0] < w[1])
                && self.sequence[0] > 0,
            path,
            || "sequence must be ascending and as long as tflops".to_owned(),
            "Give one rate for each sequence length.",
        )?;
        require(self.head_dim > 0, path, || "head_dim must be positive".to_owned(), "Give it.")?;
        require(
            self.tflops.iter().all(|&rate| rate.is_finite() && rate > 0.0),
            path,
            || "rates must be positive".to_owned(),
            "Give 10^12 operations a second.",
        )
    }
}
