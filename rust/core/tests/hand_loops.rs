//! Experts in turn, projections apart, gradients that add up and activations weighed apart, worked by hand.

mod sums;

use autopar_core::estimate::block;
use autopar_core::estimate::layer::Pricer;
use autopar_core::estimate::shard::{LayerCost, Shard, Split};
use autopar_core::spec::framework::{ExpertDispatch, Projections};
use autopar_core::spec::model::{Activation, LayerKind};
use autopar_core::spec::problem::Problem;
use autopar_core::testing::{self, whole};
use sums::{close, gpt_problem};

/// A GPT whose MLPs are 8 gated experts of 1,024 channels, 2 a token, for 512 tokens of 1,024 channels.
fn experts() -> Problem {
    let mut problem = gpt_problem(1024, 512);
    problem.model.moe = Some(testing::moe(8, 2, 1024));
    problem.model.activation = Activation::Swiglu;
    problem.framework.launch_us = 0.0;
    problem
}

fn expert_layer(problem: &Problem, ep: u64) -> LayerCost {
    let kind = LayerKind { moe: true, windowed: false };
    block::price(&Pricer::new(problem, 0, Shard { dp: ep, ep, ..whole() }), kind).cost
}

/// Bytes a second of passes over results, and seconds from one kernel to the next.
fn rates(problem: &Problem) -> (f64, f64) {
    let chip = &problem.cluster.groups[0].chip;
    (chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency, chip.host.kernel_us * 1e-6)
}

/// Seconds that computing takes more in `a` than in `b`.
fn more(a: Split, b: Split) -> f64 {
    a.compute.seconds() - b.compute.seconds()
}

#[test]
fn gate_and_up_apart_have_two_gradients_of_one_input_to_add() {
    // Arithmetic takes no time: 1,024 visits of 1,024 channels, two read and one written of 2 bytes, or one read more where
    // operators are joined. Products read the input twice, and write its gradient twice.
    let mut problem = experts();
    let chip = &mut problem.cluster.groups[0].chip;
    chip.peak_tflops.bf16 = Some(1e9);
    let mut apart = |residual| {
        problem.framework.fused.residual = residual;
        problem.framework.projections = Projections::Packed;
        let packed = expert_layer(&problem, 1).input_gradient;
        problem.framework.projections = Projections::GateApart;
        more(expert_layer(&problem, 1).input_gradient, packed)
    };
    let (separate, joined) = (apart(false), apart(true));
    let (memory, kernel) = rates(&problem);
    let pass = 2.0 * 1024.0 * 1024.0 / memory;
    close(separate - joined, 2.0 * pass + kernel, 1e-3);
}

#[test]
fn an_expert_that_looks_up_its_tokens_clears_and_adds_gradients_of_all_of_them() {
    // 8 experts, each four passes over 512 tokens of 1,024 channels of 2 bytes backward, and forward what the host alone waits for.
    let mut problem = experts();
    problem.framework.fused.grouped_gemm = false;
    let sorted = expert_layer(&problem, 1);
    let shared = expert_layer(&problem, 8);
    problem.framework.looks_up_tokens = true;
    let looked = expert_layer(&problem, 1);
    let (memory, kernel) = rates(&problem);
    let each = 4.0 * 2.0 * 512.0 * 1024.0 / memory + kernel;
    close(more(looked.input_gradient, sorted.input_gradient), 8.0 * each, 1e-4);
    assert_eq!(looked.forward, sorted.forward);
    // What other ranks sent is sorted.
    assert_eq!(expert_layer(&problem, 8), shared);
    // Waiting for the host alone, 20 us an operator: 8 more an expert forward, less the 3 that find an order, and 12 backward.
    let host = |looks_up| {
        let mut problem = problem.clone();
        problem.framework.looks_up_tokens = looks_up;
        problem.framework.launch_us = 20.0;
        let chip = &mut problem.cluster.groups[0].chip;
        chip.peak_tflops.bf16 = Some(1e9);
        (chip.memory_bandwidth_gb_per_s, chip.host.kernel_us) = (1e12, 1e-6);
        expert_layer(&problem, 1)
    };
    let (looked, sorted) = (host(true), host(false));
    close(more(looked.forward, sorted.forward), (8.0 * 8.0 - 3.0) * 20e-6, 1e-4);
    close(more(looked.input_gradient, sorted.input_gradient), 8.0 * 12.0 * 20e-6, 1e-4);
}

#[test]
fn gradients_of_biases_that_were_looked_up_pass_at_a_fifth_of_the_memorys_rate() {
    // Of both products: 1,024 rows of twice 1,024 channels and of 1,024, of 2 bytes, 4 reads more than a sum by rows takes.
    let mut problem = experts();
    problem.model.moe.as_mut().unwrap().expert_bias = true;
    problem.framework.fused.expert_bias = true;
    problem.framework.fused.activation = false;
    problem.framework.fused.residual = true;
    let summed = expert_layer(&problem, 1).input_gradient;
    problem.framework.fused.residual = false;
    let added = expert_layer(&problem, 1).input_gradient;
    let (memory, _) = rates(&problem);
    let elements = 3.0 * 1024.0 * 1024.0;
    close(more(added, summed), 4.0 * 2.0 * elements / memory, 1e-2);
    // Gradients of repeated rows are added one after another in place of a read, 24.03 ps a number, which no memory makes faster.
    problem.framework.repeats_biases = true;
    problem.cluster.groups[0].chip.memory_bandwidth_gb_per_s *= 2.0;
    let repeated = expert_layer(&problem, 1).input_gradient;
    problem.framework.fused.residual = true;
    let summed = expert_layer(&problem, 1).input_gradient;
    close(more(repeated, summed), 24.028e-12 * elements - elements / memory, 1e-2);
}

#[test]
fn experts_whose_products_are_not_grouped_have_two_products_and_an_activation_each() {
    // Launches of a second each outlast everything else. Eight experts instead of one group: seven times two products and one
    // fused activation more forward, and seven times as many of the gradients of inputs, and two products of the weights'.
    let mut problem = gpt_problem(1024, 512);
    problem.framework.launch_us = 1e6;
    problem.framework.fused.activation = true;
    problem.model.moe = Some(testing::moe(8, 2, 1024));
    let mut launches = |grouped: bool| {
        problem.framework.fused.grouped_gemm = grouped;
        let kind = LayerKind { moe: true, windowed: false };
        let cost = block::price(&Pricer::new(&problem, 0, whole()), kind).cost;
        let backward = cost.input_gradient + cost.weight_gradient;
        [cost.forward, backward].map(|pass| pass.total().seconds().round())
    };
    let [grouped, apart] = [true, false].map(&mut launches);
    assert_eq!([apart[0] - grouped[0], apart[1] - grouped[1]], [21.0, 35.0]);
}

#[test]
fn activations_of_experts_are_weighed_apart_where_no_kernel_joins_them() {
    // 1,024 rows of 1,024 inner channels of 2 bytes: 2 passes forward and 6 backward. By weights in 32 bits the product reads 2
    // bytes and writes 4, the cast reads these and writes 2: 12. Backward a cast (6), the product (8) and its cast (6), another
    // product (10) and its sum (4): 34. What is kept of them is as much as results that are weighed afterwards, which the permutation
    // of copies reads once more for the weights' gradient, 2 bytes at 0.95 of the memory's rate.
    let mut problem = experts();
    problem.framework.neighbouring_experts = true;
    let priced = |weighed: u64, joined: bool, dispatch: ExpertDispatch| {
        let mut problem = problem.clone();
        problem.framework.fused.activation = joined;
        problem.framework.held.weighted_result_bytes = weighed;
        problem.framework.expert_dispatch = dispatch;
        expert_layer(&problem, 8)
    };
    let (memory, gap) = rates(&problem);
    let elements = 1024.0 * 1024.0;
    for (dispatch, forward, backward) in
        [(ExpertDispatch::Copies, 4.0, 12.0 - 2.0 / 0.95), (ExpertDispatch::OnceANode, 12.0, 34.0)]
    {
        let (before, after) = (priced(0, false, dispatch), priced(2, false, dispatch));
        close(more(before.forward, after.forward), forward * elements / memory + gap, 1e-3);
        let passes = more(before.input_gradient, after.input_gradient);
        close(passes, backward * elements / memory + gap, 1e-3);
        assert_eq!(before.kept, after.kept);
        let (joined, other) = (priced(0, true, dispatch), priced(2, true, dispatch));
        assert_eq!(joined.forward.compute, other.forward.compute);
    }
}

#[test]
fn weights_inside_the_nonlinearity_have_their_gradient_by_a_kernel_of_its_own() {
    // SwiGLU of one expert on each of 8 ranks, 1,024 visits by 1,024 channels on the mean one: 9.5 passes backward in place of 5,
    // and the permutation back that reads no results again. The fullest has 1,089.3 rows.
    let mut problem = experts();
    problem.model.activation = Activation::Swiglu;
    let backward = |problem: &Problem| expert_layer(problem, 8).input_gradient.compute.seconds();
    let outside = backward(&problem);
    problem.framework.held.weighted_result_bytes = 0;
    let (memory, gap) = rates(&problem);
    let fullest = 1.0 + (2.0 * 8f64.ln() / 1024.0).sqrt();
    let bytes = 2.0 * 1024.0 * 1024.0;
    let more = (4.5 * fullest - 1.0 / 0.95) * bytes / memory;
    close(backward(&problem) - outside, more, 1e-3);
    assert!(gap > 0.0);
}
