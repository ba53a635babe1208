//! What the host spends on launches.

use crate::spec::framework::Framework;

/// Seconds of the host for a kernel that a compiled loop launches: the launch, and 2.7 us for each tensor that it allocates
/// (NVIDIA/TransformerEngine issue 2897: 350 us for the weight gradients of 64 experts' two layers).
const LOOPED: f64 = 10e-6;

/// What the host spends on a kernel, and whether it waits for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launch {
    pub(super) seconds: f64,
    /// On one that a compiled loop launches.
    pub(super) looped: f64,
    /// On one that lies between compiled parts of a layer.
    pub(super) apart: f64,
    /// On a compiled layer beside its kernels.
    pub(super) entered: f64,
    /// On a pass that gathers or reduces a layer's shards.
    pub(super) hooked: f64,
    pub(super) blocking: bool,
}

impl Launch {
    /// Under a framework on a host of some `pace`, where layers are cut over tensor-parallel ranks if `cut`.
    pub(super) fn of(framework: &Framework, pace: f64, cut: bool) -> Launch {
        let distributed = if cut { framework.distributed_tensor_us } else { 0.0 };
        Launch {
            seconds: (framework.launch_us + distributed) * 1e-6 * pace,
            looped: (framework.launch_us * 1e-6).min(LOOPED) * pace,
            apart: framework.dispatch_launch_us * 1e-6 * pace,
            entered: framework.compiled_layer_us * 1e-6 * pace,
            hooked: framework.sharded_layer_us * 1e-6 * pace,
            blocking: framework.blocking_launches,
        }
    }
}
