//! How an optimizer whose state is in host memory is fed and stepped.

use crate::error::{require, Error};
use crate::spec::cluster::Host;
use serde::{Deserialize, Serialize};

/// What a framework does where the optimizer's state is in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offload {
    /// Threads of each process that step the optimizer; 0 for as many as a device's share of the host's memory can feed.
    pub threads: u64,
    /// Gradients, parameters and what is kept for the backward pass cross between the device and pinned memory, those of a pass
    /// behind it; else the process copies them itself and launches nothing meanwhile.
    pub pinned: bool,
    /// Bytes of each parameter of a rank's share that cross with every micro-batch after which gradients are reduced, as their sums
    /// are on the host too; 0 where these stay on the device to the end of a step.
    pub pass_bytes: u64,
    /// Bytes of each of them that cross once a step; 0 for gradients and parameters as they are stored.
    pub step_bytes: u64,
}

impl Offload {
    pub(super) fn validate(&self) -> Result<(), Error> {
        for (count, path, most) in [
            (self.threads, "offload.threads", 1 << 16),
            (self.pass_bytes, "offload.pass_bytes", 1 << 10),
            (self.step_bytes, "offload.step_bytes", 1 << 10),
        ] {
            require(
                count <= most,
                path,
                || format!("must be at most {most}, found {count}"),
                "Give threads of a process, or bytes of one number.",
            )?;
        }
        Ok(())
    }

    /// Bytes a second of the host's memory that one process moves.
    pub fn memory(&self, host: &Host) -> f64 {
        let share = host.memory_gb_per_s * 1e9;
        if self.threads == 0 {
            share
        } else {
            share.min(self.threads as f64 * host.core_gb_per_s * 1e9)
        }
    }

    /// Bytes a second between a device and its host: without pinned memory no more than one thread copies.
    pub fn wire(&self, host: &Host) -> f64 {
        let wire = host.pcie_gb_per_s * 1e9;
        if self.pinned {
            wire
        } else {
            wire.min(host.core_gb_per_s * 1e9)
        }
    }
}
