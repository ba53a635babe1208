//! What shards, their copies and passes have to do with gradients, worked by hand.

mod sums;

use autopar_core::estimate::collective::Fabric;
use autopar_core::estimate::estimate;
use autopar_core::estimate::shard::Shard;
use autopar_core::plan::Plan;
use autopar_core::spec::cluster::Group;
use autopar_core::spec::framework::{Gathers, Gradients};
use autopar_core::testing::{self, whole};
use sums::{close, gpt_problem, layer, replicas};

#[test]
fn copies_of_shards_are_summed_in_each_pass_or_once_a_step() {
    // Two copies of four shards, nothing hidden, two micro-batches: a rank's quarter of a layer's 4-byte gradients is summed with
    // one other's, four apart, in each backward pass or, with embedding and last norm, at the step's end.
    let mut problem = gpt_problem(1024, 512);
    problem.workload.global_batch_size = 16;
    problem.framework.gathers = Gathers::MicroBatch;
    let o = &mut problem.framework.overlap;
    (o.gradient_reduce, o.parameter_gather, o.backward_gather) = (false, false, false);
    let shard = Shard { dp: 8, zero: 3, shard_group: 4, ..whole() };
    let plan = Plan { zero: 3, shard_group: 4, ..replicas(&problem, 8).0 };
    let with = |each: bool| {
        let mut problem = problem.clone();
        problem.framework.sums_copies_each_pass = each;
        let time = estimate(&problem, &plan).expect("a legal plan").time;
        (layer(&problem, shard), time.data_ps.seconds())
    };
    let ((once, all), (each, none)) = (with(false), with(true));
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let pair = Group { size: 2, stride: 4 };
    let sum = |parameters: u64| fabric.all_reduce(parameters as f64, pair);
    let more = each.input_gradient.shard.seconds() - once.input_gradient.shard.seconds();
    close(more, sum(once.dense_parameters), 1e-6);
    let of_all = 4 * once.dense_parameters + (51_200 + 2048 + 2) * 1024;
    close(all, sum(of_all), 1e-6);
    assert_eq!(none, 0.0);
}

#[test]
fn the_first_gradients_of_a_step_are_added_to_nothing_where_none_are_kept() {
    // A layer's 12 h^2 weights: a kernel reads a sum of 4 bytes and what was made in 2, and writes the sum. Of four micro-batches
    // the first adds nothing, of one none does.
    let mut problem = gpt_problem(1024, 512);
    problem.framework.fused.gradient_accumulation = false;
    let weight = |micro_batches: u64, kept: bool| {
        let mut problem = problem.clone();
        problem.workload.global_batch_size = micro_batches;
        problem.framework.held.gradients = if kept { Gradients::Kept } else { Gradients::Passing };
        layer(&problem, whole()).weight_gradient.compute.seconds()
    };
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let kernels = 4.0 * chip.host.kernel_us * 1e-6;
    let added = 12.0 * 1024.0 * 1024.0 * 10.0 / memory + kernels;
    close(weight(1, true) - weight(1, false), added, 1e-6);
    close(weight(4, true) - weight(4, false), added / 4.0, 1e-6);
}

#[test]
fn stages_below_the_first_that_overlaps_reduce_in_the_open() {
    let mut problem = gpt_problem(1024, 512);
    problem.framework.overlap.reduce_from_stage = 2;
    let data = |zero: u8, beside: bool| {
        let mut problem = problem.clone();
        problem.framework.overlap.gradient_reduce = beside;
        let plan = Plan { zero, shard_group: 8, ..replicas(&problem, 8).0 };
        estimate(&problem, &plan).expect("a legal plan").step_ps
    };
    assert_eq!(data(1, true), data(1, false));
    assert!(data(2, true) < data(2, false));
}

#[test]
fn sums_within_one_domain_show_where_the_cores_that_compute_make_them() {
    // Eight devices of one domain sum as if nothing hid it; sixteen leave it, and what does hides as before.
    let shown = |devices: u64, scatters: bool, hidden: bool| {
        let model = testing::gpt(4, 1024);
        let cluster = testing::cluster(testing::a100(), devices);
        let mut problem = testing::problem(model, cluster, devices, 512);
        problem.framework.overlap.gradient_scatter = scatters;
        problem.framework.overlap.gradient_reduce = hidden;
        replicas(&problem, devices).1.time.data_ps
    };
    assert_eq!(shown(8, false, true), shown(8, true, false));
    assert!(shown(8, true, true) < shown(8, true, false));
    assert_eq!(shown(16, false, true), shown(16, true, true));
}
