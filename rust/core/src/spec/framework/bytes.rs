//! Bytes of each stored number: parameters, gradients and the optimizer's state.

use serde::{Deserialize, Serialize};

/// Bytes of each stored number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumberBytes {
    /// Parameters as the layers read them.
    pub parameter: u64,
    /// Gradients as they are accumulated.
    pub gradient: u64,
    /// Gradients as they travel.
    pub gradient_sent: u64,
    /// Optimizer state: a copy in full precision and two moments.
    pub optimizer: u64,
}

impl NumberBytes {
    /// Bytes of a parameter's 32-bit weight and two moments.
    pub const FULL_STATE: u64 = 12;

    /// Whether the optimizer holds all of them, and so the weights a second time.
    pub fn updates_a_copy(&self) -> bool {
        self.optimizer >= Self::FULL_STATE
    }

    /// Bytes of one of the two moments.
    pub fn moment(&self) -> u64 {
        self.optimizer.min(8) / 2
    }
}
