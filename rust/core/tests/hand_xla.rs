//! What XLA's programs do on TPUs, worked by hand.

mod sums;

use autopar_core::estimate::block;
use autopar_core::estimate::compute::{Device, Gemm};
use autopar_core::estimate::layer::Pricer;
use autopar_core::estimate::shard::{End, LayerCost, Shard, Split};
use autopar_core::spec::framework::ExpertDispatch;
use autopar_core::spec::model::{Activation, LayerKind, Position};
use autopar_core::spec::problem::Problem;
use autopar_core::spec::workload::Precision;
use autopar_core::testing::{self, whole};
use sums::{close, gpt_problem};

/// A layer of 512 tokens of 1,024 channels that visit 2 of 8 experts, over `ep` ranks.
fn expert_layer(problem: &Problem, ep: u64) -> LayerCost {
    let kind = LayerKind { moe: true, windowed: false };
    block::price(&Pricer::new(problem, 0, Shard { dp: ep, ep, ..whole() }), kind).cost
}

fn experts() -> Problem {
    let mut problem = gpt_problem(1024, 512);
    problem.model.moe = Some(testing::moe(8, 2, 1024));
    problem.framework.fused.permutation = false;
    problem.framework.launch_us = 0.0;
    problem
}

#[test]
fn results_that_are_scattered_are_added_at_a_fortieth_of_the_streaming_rate() {
    // 1,024 rows of 1,024 channels in 2 bytes are 2 MiB. Gathered back they pass twice at 0.2 of the streaming rate, 10 passes;
    // added where they belong three times at 0.075, 40 passes: 30 more each way, as backward the gradient of what was gathered
    // for experts is added too.
    let mut problem = experts();
    let gathered = expert_layer(&problem, 1);
    problem.framework.scatters_results = true;
    let scattered = expert_layer(&problem, 1);
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let more = 30.0 * 2.0 * 1024.0 * 1024.0 / memory;
    let forward = scattered.forward.compute.seconds() - gathered.forward.compute.seconds();
    let backward =
        scattered.input_gradient.compute.seconds() - gathered.input_gradient.compute.seconds();
    close(forward, more, 1e-6);
    close(backward, more, 1e-6);
}

#[test]
fn tokens_that_every_rank_gathers_are_sorted_once() {
    // By an exchange of copies they are sorted by expert where they arrive too, and back: forward of 1,024 rows in 2 MiB four passes
    // at 0.2 of the streaming rate. Who gathers fills 2,048 rows with zeros instead, in as many kernels.
    let mut problem = experts();
    let copies = expert_layer(&problem, 4);
    problem.framework.expert_dispatch = ExpertDispatch::Gather;
    let gathered = expert_layer(&problem, 4);
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    // The fullest of 4 ranks gets 1 + sqrt(2 ln 4 / 1024) of its mean by chance.
    let fullest = 1.0 + (2.0 * 4f64.ln() / 1024.0).sqrt();
    let row = 2.0 * 1024.0 / memory;
    let passes = 4.0 / 0.2 * fullest * 1024.0 * row - 2048.0 * row;
    let forward = copies.forward.compute.seconds() - gathered.forward.compute.seconds();
    close(forward, passes, 1e-6);
}

#[test]
fn a_loss_in_pieces_makes_its_logits_again_where_none_are_kept() {
    // Four products in place of three: 512 tokens by the vocabulary.
    let mut problem = gpt_problem(1024, 512);
    let backward = |problem: &Problem| {
        Pricer::new(problem, 0, whole()).head().cost.input_gradient.compute.seconds()
    };
    let kept = backward(&problem);
    problem.framework.recomputes_logits = true;
    assert_eq!(backward(&problem), kept);
    problem.framework.held.loss_pieces = 8;
    let chip = &problem.cluster.groups[0].chip;
    let device = Device::new(chip, Precision::Bf16, &problem.framework.attention_kernels, 1);
    let rows = problem.model.vocab;
    close(backward(&problem) - kept, device.plain(Gemm::new(512, rows, 1024)), 1e-6);
}

#[test]
fn a_nonlinearity_in_products_takes_what_their_arithmetic_does_not_hide() {
    // An operator of its own passes the inner channels of 512 tokens with a gate 3 times forward and 5 backward. In products
    // that arithmetic keeps busy it takes nothing; where memory sets their pace, it is 2 and 3 passes of theirs.
    let kind = LayerKind { moe: false, windowed: false };
    for (memory, shown) in [(1e6, 0.0), (1e-1, 1.0)] {
        let mut problem = gpt_problem(1024, 512);
        problem.model.activation = Activation::Swiglu;
        problem.framework.launch_us = 0.0;
        let chip = &mut problem.cluster.groups[0].chip;
        chip.memory_bandwidth_gb_per_s = memory;
        let kernel = chip.host.kernel_us * 1e-6;
        let pass =
            2.0 * 512.0 * problem.model.ffn_hidden as f64 / (memory * 1e9 * chip.memory_efficiency);
        let cost = |problem: &Problem| block::price(&Pricer::new(problem, 0, whole()), kind).cost;
        let apart = cost(&problem);
        problem.framework.fused.activation_in_products = true;
        let joined = cost(&problem);
        let spared = |of: fn(&LayerCost) -> Split| {
            of(&apart).compute.seconds() - of(&joined).compute.seconds()
        };
        close(spared(|c| c.forward), (3.0 - 2.0 * shown) * pass + kernel, 1e-4);
        close(spared(|c| c.input_gradient), (5.0 - 3.0 * shown) * pass + kernel, 1e-4);
    }
}

#[test]
fn an_embedding_by_a_product_costs_what_a_head_s_forward_pass_and_weights_do() {
    // 512 tokens of rows of one 1 each by a table of the vocabulary: the same operations as the logits and their weights' gradient.
    let mut problem = gpt_problem(1024, 512);
    problem.framework.launch_us = 0.0;
    problem.framework.embeds_by_product = true;
    (problem.model.position, problem.model.position_rows) = (Position::Rope, 0);
    let pricer = Pricer::new(&problem, 0, whole());
    let chip = &problem.cluster.groups[0].chip;
    let device = Device::new(chip, Precision::Bf16, &problem.framework.attention_kernels, 8);
    let product = Gemm::new(512, 1024, problem.model.vocab);
    let End { cost, .. } = pricer.embedding();
    close(cost.forward.compute.seconds(), device.plain(product), 1e-6);
    let stored = problem.framework.bytes.gradient as f64;
    let gradient = device.plain_added(product.weight_gradient(), stored);
    close(cost.input_gradient.compute.seconds(), gradient, 1e-6);
}
