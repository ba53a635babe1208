//! Updates made orthogonal before they are applied (Muon): what that takes a parameter.
//!
//! K. Jordan and others, "Muon: an optimizer for hidden layers in neural networks" (2024): a matrix X of m rows and n >= m columns
//! is replaced, a few times, by `a X + (b A + c A^2) X`, of which A is X times its transpose: products of `2 m^2 n`, `2 m^3` and
//! `2 m^2 n` operations. They run in 16 bits, and what is added is read by the product's own kernel (pytorch/pytorch,
//! torch/optim/_muon.py: addmm). What tensor parallelism cuts is taken block by block (NVIDIA/Megatron-LM: `--muon-tp-mode
//! blockwise`).

use super::collective::Fabric;
use super::compute::{Device, Gemm};
use super::host::Launch;
use super::shard::Shard;
use crate::spec::cluster::{Chip, Group};
use crate::spec::framework::Orthogonal;
use crate::spec::problem::Problem;
use crate::spec::tensors::{Cut, Tensors};
use crate::spec::workload::Precision;

/// Bytes of a number of what is made orthogonal.
const WIDTH: f64 = 2.0;

/// Seconds a parameter of a layer, dense ones and those of experts, in which its update is made orthogonal: products, and matrices
/// that are cut over replicas gathered and scattered again.
///
/// In place of the second moment, which Adam reads and writes, the update is written and read.
pub fn rates(problem: &Problem, chip: &Chip, shard: &Shard, fabric: &Fabric<'_>) -> [f64; 2] {
    let framework = &problem.framework;
    let how = framework.orthogonal;
    if !how.any() {
        return [0.0; 2];
    }
    let device = Device::new(chip, Precision::Bf16, &[], problem.cluster.devices);
    let launch = Launch::of(framework, &problem.model, chip.host.pace, shard.tp);
    let each = f64::from(how.kernels()) * launch.looped;
    // Of parameters and their matrices' seconds, those of dense layers and of experts.
    let mut sums = [(0.0, 0.0); 2];
    for layer in 0..problem.model.layers {
        for tensors in problem.model.layer_tensors(problem.model.layer_kind(layer)) {
            let (elements, seconds) = &mut sums[usize::from(tensors.cut == Cut::Expert)];
            let (count, size) = shard.owned(&tensors);
            *elements += (count * size) as f64;
            if let Some((m, n)) = sides(&tensors, size) {
                let device_s = iterations(&device, how, count, m, n);
                *seconds += device_s.max(count as f64 * each);
            }
        }
    }
    let groups = [shard.replica_group(), shard.expert_replica_group()];
    let saved = (2.0 * WIDTH - 2.0 * framework.bytes.moment() as f64)
        / (chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency);
    [0, 1].map(|of| {
        let (elements, seconds) = sums[of];
        let group = groups[of];
        let sharded = shard.sharded(group).size.max(1);
        let all = if how.shared { group.size.max(1) } else { 1 };
        let mine = if shard.zero >= 1 { 1.0 / sharded as f64 } else { 1.0 };
        let products = if elements > 0.0 { seconds / elements / all as f64 } else { 0.0 };
        products + mine * saved + moved(shard, how, fabric, group)
    })
}

/// Rows and columns on a rank of a matrix of `size` elements, the fewer first; nothing of vectors.
fn sides(tensors: &Tensors, size: u64) -> Option<(u64, u64)> {
    let other = size.checked_div(tensors.side)?.max(1);
    Some((tensors.side.min(other), tensors.side.max(other)))
}

/// Seconds of the iterations on `count` matrices of `m` by `n`, `m` not the larger.
fn iterations(device: &Device<'_>, how: Orthogonal, count: u64, m: u64, n: u64) -> f64 {
    let (batch, times) = if how.batched { (count, 1) } else { (1, count) };
    let square = device.plain(Gemm::batched(batch, m, m, n))
        + device.plain_added(Gemm::batched(batch, m, m, m), WIDTH);
    let back = device.plain_added(Gemm::batched(batch, m, n, m), WIDTH);
    f64::from(how.iterations) * times as f64 * (square + back)
}

/// Seconds a parameter to bring what a matrix is made of to who takes it, and its results to all.
///
/// Of what ZeRO shards (stages 2 and 3) each rank has a part of every matrix: it sends and gets as much as it has, or gathers all.
/// Of what each rank has whole, results alone are gathered, where ZeRO does not gather the parameters that they move.
fn moved(shard: &Shard, how: Orthogonal, fabric: &Fabric<'_>, replicas: Group) -> f64 {
    const SAMPLE: f64 = 1e9;
    let bytes = SAMPLE * WIDTH;
    let group = shard.sharded(replicas);
    let seconds = match (shard.zero, how.shared) {
        (2.., true) => 2.0 * fabric.all_to_all(bytes / group.size.max(1) as f64, group),
        (2.., false) => fabric.all_gather(bytes, group),
        (0, true) => fabric.all_gather(bytes, replicas),
        _ => 0.0,
    };
    seconds / SAMPLE
}
