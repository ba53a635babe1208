//! What replicas do once a step: reduce gradients, gather parameters, clip and update.

use super::collective::Fabric;
use super::shard::Shard;
use crate::spec::cluster::{Chip, Group};
use crate::spec::framework::Framework;
use crate::units::Time;

/// What a stage brings to the end of the step.
#[derive(Clone, Copy, Debug)]
pub struct StepEnd {
    /// Dense parameters on this tensor-parallel rank.
    pub dense_parameters: u64,
    /// Expert parameters on this rank.
    pub expert_parameters: u64,
    /// Embedding parameters whose gradients are summed with another stage's copy.
    pub tied_parameters: u64,
    /// Layers of the stage: gradients are reduced in about as many pieces.
    pub layers: u64,
    /// Backward time that passes after the first gradients of the last micro-batch are ready.
    pub backward_window: Time,
    /// Forward time of the first micro-batch until the last parameters are needed.
    pub forward_window: Time,
}

/// Time of a step's end that nothing hides: gradient reduction and parameter gathering.
pub fn synchronise(
    end: &StepEnd,
    shard: &Shard,
    framework: &Framework,
    fabric: &Fabric<'_>,
) -> Time {
    let sent = framework.bytes.gradient_sent as f64;
    let mut seconds = 0.0;
    if shard.zero < 2 || !framework.gather_each_micro_batch {
        let (mut reduce, mut gather) = (0.0, 0.0);
        for (count, replicas) in [
            (end.dense_parameters as f64, shard.replica_group()),
            (end.expert_parameters as f64, shard.expert_replica_group()),
        ] {
            if shard.zero == 0 {
                reduce += fabric.all_reduce(count * sent, replicas);
                continue;
            }
            let (inner, outer) = (shard.sharded(replicas), shard.replicated(replicas));
            reduce += fabric.all_gather(count * sent, inner)
                + fabric.all_reduce(count * sent / inner.size as f64, outer);
            gather += fabric.all_gather(count * framework.bytes.parameter as f64, inner);
        }
        let hidden = |seconds: f64, window: Time, overlapped: bool| {
            if overlapped {
                // The last piece has nothing left to hide behind.
                (seconds - window.seconds()).max(seconds / end.layers.max(1) as f64)
            } else {
                seconds
            }
        };
        let o = framework.overlap;
        seconds += hidden(reduce, end.backward_window, o.gradient_reduce);
        seconds += hidden(gather, end.forward_window, o.parameter_gather);
    } else {
        for (count, replicas) in [
            (end.dense_parameters as f64, shard.replica_group()),
            (end.expert_parameters as f64, shard.expert_replica_group()),
        ] {
            let (inner, outer) = (shard.sharded(replicas), shard.replicated(replicas));
            seconds += fabric.all_reduce(count * sent / inner.size as f64, outer);
        }
    }
    // The embedding's two copies, on the first and the last stage.
    if end.tied_parameters > 0 {
        let bytes = end.tied_parameters as f64 * sent;
        let stage = shard.dp * shard.tp * shard.cp;
        seconds += fabric.all_reduce(bytes, Group { size: 2, stride: stage });
    }
    Time::from_seconds(seconds)
}

/// Time of the gradient norm and the optimizer step on a stage's parameters.
///
/// Adam reads the gradient and reads and writes the full-precision copy and two moments, and writes the
/// parameters: on the device at its memory bandwidth, or on the host at the host's, with gradients and
/// parameters crossing PCIe.
pub fn update(
    end: &StepEnd,
    shard: &Shard,
    offload: bool,
    framework: &Framework,
    chip: &Chip,
) -> Time {
    let bytes = &framework.bytes;
    let owned = |count: u64, replicas: Group| {
        let ranks = if shard.zero >= 1 { shard.sharded(replicas).size } else { 1 };
        count as f64 / ranks.max(1) as f64
    };
    let mine = owned(end.dense_parameters, shard.replica_group())
        + owned(end.expert_parameters, shard.expert_replica_group());
    let whole = (end.dense_parameters + end.expert_parameters) as f64;
    let device = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    // Norm reads, and the next step's zeroing writes, every gradient.
    let gradients = (mine + whole) * bytes.gradient as f64 / device;
    let state = mine * (bytes.gradient + 2 * bytes.optimizer + bytes.parameter) as f64;
    let step = if offload {
        let host = chip.host.memory_gb_per_s * 1e9;
        let wire = mine * (bytes.gradient + bytes.parameter) as f64;
        state / host + wire / (chip.host.pcie_gb_per_s * 1e9)
    } else {
        state / device
    };
    Time::from_seconds(gradients + step)
}
