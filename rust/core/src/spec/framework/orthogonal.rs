//! Updates that are made orthogonal before they are applied (Muon).

use crate::error::{require, Error};
use serde::{Deserialize, Serialize};

/// Most iterations: the quintic one of Newton and Schulz is taken five to a dozen times.
const MOST_ITERATIONS: u32 = 1000;

/// What is done to the update of each matrix of a layer before it is applied; embedding, head, router and vectors are stepped by Adam.
///
/// Such a matrix has one moment alone, and a second one has what Adam steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Orthogonal {
    /// Iterations of Newton and Schulz; 0 where nothing is made orthogonal.
    pub iterations: u32,
    /// Each replica takes some of the matrices and all get the results; else each takes all of them.
    pub shared: bool,
    /// Matrices that are alike are one batched product, of which a device launches nothing by itself (XLA, compiled steps).
    pub batched: bool,
}

impl Orthogonal {
    /// Whether any update is.
    pub fn any(self) -> bool {
        self.iterations > 0
    }

    /// Kernels that a host launches for each matrix: three products an iteration, and ten that move the moment, cast, norm and
    /// scale what goes in, and decay and move the weights (pytorch/pytorch, torch/optim/_muon.py).
    pub fn kernels(self) -> u32 {
        if self.any() && !self.batched {
            3 * self.iterations + 10
        } else {
            0
        }
    }

    pub(super) fn validate(self) -> Result<(), Error> {
        require(
            self.iterations <= MOST_ITERATIONS,
            "orthogonal.iterations",
            || format!("must be at most {MOST_ITERATIONS}, found {}", self.iterations),
            "Give the iterations of Newton and Schulz, 0 for none.",
        )
    }
}
