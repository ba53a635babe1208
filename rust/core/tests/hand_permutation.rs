//! How tokens come to their experts and back, worked by hand.

mod sums;

use autopar_core::estimate::block;
use autopar_core::estimate::layer::Pricer;
use autopar_core::estimate::shard::LayerCost;
use autopar_core::spec::model::LayerKind;
use autopar_core::spec::problem::Problem;
use autopar_core::testing::{self, whole};
use sums::{close, gpt_problem};

/// A layer of 8 experts, of which each of 512 tokens of 1,024 channels visits two, on a device whose kernels follow at once.
fn experts() -> Problem {
    let mut problem = gpt_problem(1024, 512);
    problem.model.moe = Some(testing::moe(8, 2, 1024));
    problem.framework.launch_us = 0.0;
    problem.framework.fused.permutation = false;
    problem.framework.fused.activation = false;
    problem.framework.held.weighted_result_bytes = 4;
    problem.cluster.groups[0].chip.host.kernel_us = 1e-9;
    problem
}

fn cost(problem: &Problem) -> LayerCost {
    let kind = LayerKind { moe: true, windowed: false };
    block::price(&Pricer::new(problem, 0, whole()), kind).cost
}

/// What `change` makes the forward and the backward pass shorter, in bytes that stream meanwhile.
fn shorter(problem: &Problem, change: impl Fn(&mut Problem)) -> [f64; 2] {
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let mut changed = problem.clone();
    change(&mut changed);
    let [before, after] = [problem, &changed].map(|problem| {
        let cost = cost(problem);
        [cost.forward, cost.input_gradient].map(|pass| pass.compute.seconds() * memory)
    });
    [before[0] - after[0], before[1] - after[1]]
}

/// Numbers that experts get and make.
const VISITS: f64 = 512.0 * 2.0 * 1024.0;

#[test]
fn rows_that_are_looked_up_stream_and_those_that_are_put_somewhere_do_not() {
    // Forward to the experts, backward on the way back: read and written, 4 bytes a number, at the streaming rate and not at 0.2 of
    // it. Where they are sorted once more, as much again each way.
    let mut problem = experts();
    let vectors = |problem: &mut Problem| problem.framework.gathers_in_vectors = true;
    let streams = 4.0 * VISITS * (5.0 - 1.0);
    let [forward, backward] = shorter(&problem, vectors);
    close(forward, streams, 1e-4);
    close(backward, streams, 1e-4);
    problem.framework.permutes_twice = true;
    let [forward, backward] = shorter(&problem, vectors);
    close(forward, 2.0 * streams, 1e-4);
    close(backward, 2.0 * streams, 1e-4);
}

#[test]
fn a_product_sums_what_experts_made_in_blocks_of_a_processor() {
    // In operators 20 bytes a number forward (2 + 4, 4 + 4, 4 + 2) and 36 backward (2 + 4, 3 times 4, 3 times 4, 4 + 2). By a product
    // 6 and 4 at 0.47 of the rate; backward these too, and 512 tokens times 16 blocks of 64 channels, 1.48 us each on one of
    // so many processors.
    let mut problem = experts();
    problem.cluster.groups[0].chip.peak_tflops.fp32 = Some(19.5);
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let outer = 512.0 * 16.0 * 1.48e-6 / f64::from(chip.gemm.processors) * memory;
    let [forward, backward] = shorter(&problem, |problem| problem.framework.sums_by_product = true);
    let read = 4.0 / 0.47;
    close(forward, (20.0 - 6.0 - read) * VISITS, 1e-3);
    close(backward, (36.0 - 6.0 - read) * VISITS - outer, 1e-3);
}
