//! What the host spends on launches.

use crate::spec::framework::Framework;
use crate::spec::model::{Model, QkNorm};
use crate::units::Time;

/// Seconds of the host for a kernel that a compiled loop launches: the launch, and 2.7 us for each tensor that it allocates
/// (NVIDIA/TransformerEngine issue 2897: 350 us for the weight gradients of 64 experts' two layers).
const LOOPED: f64 = 10e-6;

/// What the host spends on a kernel, and whether it waits for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launch {
    pub(super) seconds: f64,
    /// On one that a compiled loop launches, or an optimizer that goes from matrix to matrix, beside which nothing is recorded.
    pub(super) looped: f64,
    /// On one that lies between compiled parts of a layer.
    pub(super) apart: f64,
    /// On a compiled layer beside its kernels.
    pub(super) entered: f64,
    /// On a pass that gathers or reduces a layer's shards.
    pub(super) hooked: f64,
    /// On a kernel whose operator a policy is asked about, beside it.
    pub(super) asked: f64,
    pub(super) blocking: bool,
}

impl Launch {
    /// Under a framework on a host of some `pace`, of layers of a `model` that are cut over so many tensor-parallel ranks.
    pub(super) fn of(framework: &Framework, model: &Model, pace: f64, tp: u64) -> Launch {
        let heads = if works_on_heads(model) { framework.distributed_heads_us } else { 0.0 };
        let distributed = if tp > 1 { framework.distributed_tensor_us + heads } else { 0.0 };
        Launch {
            seconds: (framework.launch_us + distributed) * 1e-6 * pace,
            looped: (framework.launch_us * 1e-6).min(LOOPED) * pace,
            apart: framework.dispatch_launch_us * 1e-6 * pace,
            entered: framework.compiled_layer_us * 1e-6 * pace,
            hooked: framework.sharded_layer_us * 1e-6 * pace,
            asked: framework.asked_operator_us * 1e-6 * pace,
            blocking: framework.blocking_launches,
        }
    }
}

/// Whether queries and keys pass more than their rotation before attention, so that a rank has them as distributed tensors and not as
/// its own heads alone (pytorch/torchtitan: `use_local_output=False` in the plans of qwen3, gpt_oss and deepseek_v3, not llama3).
fn works_on_heads(model: &Model) -> bool {
    model.qk_norm != QkNorm::None || model.attention_sinks || model.mla.is_some()
}

/// How long the device waits for the host at the beginning of a chunk's passes, as the host had waited for the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beginning {
    /// Of the forward pass.
    pub forward: Time,
    /// Of the backward pass.
    pub backward: Time,
}

impl Beginning {
    /// Under a framework on a host of some `pace`, of layers of a `model` that are cut over so many tensor-parallel ranks, where a
    /// message was waited for before each pass if `messages`.
    ///
    /// Nothing was launched ahead: what fetches a micro-batch is launched first, and then the first kernel. A host that waits for each
    /// kernel is never ahead, and its launches are all counted where they are made.
    pub fn of(
        framework: &Framework,
        model: &Model,
        pace: f64,
        tp: u64,
        messages: bool,
    ) -> Beginning {
        let launch = Launch::of(framework, model, pace, tp);
        let waits = messages && framework.waits_for_messages;
        let launches = |count: u32| Time::from_seconds(f64::from(count) * launch.seconds);
        let first = |waits: bool| u32::from(waits && !launch.blocking);
        let fetching = framework.fetching_operators;
        Beginning {
            forward: launches(fetching + first(waits || fetching > 0)),
            backward: launches(first(waits)),
        }
    }
}
