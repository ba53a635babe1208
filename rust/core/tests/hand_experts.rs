//! Mixtures of experts worked by hand: what they keep, send and compute.

mod sums;

use autopar_core::estimate::block;
use autopar_core::estimate::collective::Fabric;
use autopar_core::estimate::compute::{Device, Gemm};
use autopar_core::estimate::layer::Pricer;
use autopar_core::estimate::shard::{LayerCost, Shard, Split};
use autopar_core::estimate::{estimate, MemoryItems};
use autopar_core::plan::{Plan, Recompute, Stage};
use autopar_core::spec::cluster::Group;
use autopar_core::spec::framework::{
    ByProducts, ExpertDispatch, Fp8Scaling, Framework, Graphs, Projections, Selective,
};
use autopar_core::spec::model::{LayerKind, Model};
use autopar_core::spec::problem::Problem;
use autopar_core::spec::workload::Precision;
use autopar_core::testing::{self, whole};
use autopar_core::units::{Bytes, Time};
use sums::{close, gpt_problem};

/// A GPT whose MLPs are 8 experts of 1,024 channels, 2 a token, on 8 devices that hold one each.
fn experts() -> Problem {
    let mut problem = gpt_problem(1024, 512);
    problem.model.moe = Some(testing::moe(8, 2, 1024));
    problem
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

fn expert_layer(problem: &Problem, ep: u64) -> LayerCost {
    let kind = LayerKind { moe: true, windowed: false };
    block::price(&Pricer::new(problem, 0, Shard { dp: ep, ep, ..whole() }), kind).cost
}

#[test]
fn single_operators_leave_grouped_products_to_be_computed_again_and_keep_what_was_exchanged() {
    // torchtitan keeps every second result of single products, none of a grouped one (its save list has aten.mm and not
    // aten._grouped_mm), and both exchanges: 512 tokens that visit 2 experts, 2 bytes a channel, there and back.
    let mut problem = experts();
    problem.framework.selective = Selective::Operators;
    problem.framework.launch_us = 0.0;
    let wide = |problem: &Problem, ep| {
        let mut problem = problem.clone();
        problem.model.moe = Some(testing::moe(8, 2, 2048));
        expert_layer(&problem, ep)
    };
    let (narrow, wider) = (expert_layer(&problem, 1), wide(&problem, 1));
    assert_eq!(narrow.kept_selective, wider.kept_selective);
    let more = wider.forward.total() - narrow.forward.total();
    let again = wider.recompute_selective.total() - narrow.recompute_selective.total();
    close(again.seconds(), more.seconds(), 1e-6);
    let apart = expert_layer(&problem, 8).kept_selective - narrow.kept_selective;
    assert_eq!(apart, Bytes(2 * (512 * 2 * 1024 * 2)));
    // Products of their own are single ones: half of their results are kept: of 1,024 channels more
    // of 1,024 visits half, in 2 bytes.
    problem.framework.fused.grouped_gemm = false;
    let own = wide(&problem, 1).kept_selective - expert_layer(&problem, 1).kept_selective;
    assert_eq!(own, Bytes(512 * 2 * 1024));
}

#[test]
fn unfused_permutation_takes_more_passes_at_a_lower_rate_than_fused() {
    // 512 tokens visit 2 experts: 1 Mi elements of 2 bytes, permuted and unpermuted forward in 4 passes at 0.2 of the streaming
    // rate. Fused a token is read and written once for both, 3 passes at 0.95, and 512 by 8 places take 10 ns of a processor each.
    let mut problem = experts();
    let fused = expert_layer(&problem, 8).forward.compute.seconds();
    problem.framework.fused.permutation = false;
    let apart = expert_layer(&problem, 8).forward.compute.seconds();
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let places = 512.0 * 8.0 * 10e-9 / f64::from(chip.gemm.processors);
    let more = 2.0 * 1024.0 * 1024.0 * (4.0 / 0.2 - 3.0 / 0.95) / memory - places;
    close(apart - fused, more, 1e-4);
}

#[test]
fn tokens_that_go_once_to_a_rank_are_copied_where_their_experts_are() {
    // One expert on each of 8 ranks, 2 a token: 8 (1 - (7/8)^2) = 1.875 ranks, 0.9375 copies a choice. In place of the 3 passes
    // of sorting and summing at the sender, two kernels that find 512 by 8 places first, there are 2 (1 + 0.9375) in one at the ranks
    // of the experts, over the visits of the fullest, 1,024 (1 + sqrt(2 ln 8 / 1,024)), at 0.95 of the streaming rate.
    let mut problem = experts();
    let sorted = expert_layer(&problem, 8).forward.compute.seconds();
    problem.framework.expert_dispatch = ExpertDispatch::OnceANode;
    let copied = expert_layer(&problem, 8).forward.compute.seconds();
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency * 0.95;
    let fullest = 1.0 + (2.0 * 8f64.ln() / 1024.0).sqrt();
    let passes = 2.0 * 1.9375 * fullest - 3.0;
    let places = 512.0 * 8.0 * 10e-9 / f64::from(chip.gemm.processors);
    let gap = chip.host.kernel_us * 1e-6;
    close(copied - sorted, passes * 2.0 * 1024.0 * 1024.0 / memory - gap - places, 1e-3);
}

#[test]
fn tokens_sent_to_neighbouring_experts_go_to_one_rank_each_and_load_all_alike() {
    // 8 experts on two ranks, two in a row a token: one copy for two choices, where 2 (1 - 1/4) = 1.5 ranks hold some of them
    // at random, of which the fuller rank has 1 + sqrt(2 ln 2 / 1,024) of its mean. Half of 1,024 visits of 1,024 channels leave
    // a rank, there and back.
    let mut problem = experts();
    problem.framework.expert_dispatch = ExpertDispatch::OnceANode;
    let wire = |problem: &Problem| expert_layer(problem, 2).forward.expert.seconds();
    let apart = wire(&problem);
    problem.framework.neighbouring_experts = true;
    let fuller = 1.0 + (2.0 * 2f64.ln() / 1024.0).sqrt();
    let rate = problem.cluster.groups[0].chip.link.all_to_all_gb_per_s * 1e9;
    let copies = 1.5 / 2.0 * fuller - 1.0 / 2.0;
    close(apart - wire(&problem), 2.0 * copies * 0.5 * 2.0 * 1024.0 * 1024.0 / rate, 1e-3);
    // Their products are of equal rows, as those of experts with a capacity of the mean.
    (problem.framework.launch_us, problem.framework.expert_dispatch) =
        (0.0, ExpertDispatch::Copies);
    let compute = |problem: &Problem| expert_layer(problem, 2).forward.compute.seconds();
    let even = compute(&problem);
    problem.framework.neighbouring_experts = false;
    assert!(even < compute(&problem));
    problem.model.moe.as_mut().unwrap().capacity_factor = 1.0;
    close(even, compute(&problem), 1e-9);
}

#[test]
fn results_of_experts_are_weighted_in_32_bits_step_by_step_where_nothing_joins_them() {
    // 1,024 visits of 1,024 channels. Forward the cast reads 2 bytes and writes 4, the product 4 and 4, the cast back 4 and 2: 20.
    // Backward both casts and the product again, and for the weights' gradient a product of two (12) and its sum (4): 36. That spares
    // the permutation, at 0.95 of the memory's rate, a pass of 2 bytes for it.
    let mut problem = experts();
    problem.framework.fused.activation = false;
    let narrow = expert_layer(&problem, 8);
    problem.framework.held.weighted_result_bytes = 4;
    let wide = expert_layer(&problem, 8);
    let elements = 1024.0 * 1024.0;
    let (memory, gap) = rates(&problem);
    let forward = more(wide.forward, narrow.forward);
    close(forward, 20.0 * elements / memory + gap, 1e-3);
    let backward = more(wide.input_gradient, narrow.input_gradient);
    close(backward, (36.0 - 2.0 / 0.95) * elements / memory + gap, 1e-3);
    // Then the gradient and those of both factors lie there in 32 bits, 12 bytes of each; joined, one in 32 and one in 16 bits.
    let kind = LayerKind { moe: true, windowed: false };
    let transient = |problem: &Problem| {
        block::price(&Pricer::new(problem, 0, Shard { dp: 8, ep: 8, ..whole() }), kind).transient
    };
    assert_eq!(transient(&problem), Bytes(12 << 20));
    // A compiler makes one pass of them, which is the permutation's own.
    problem.framework.fused.activation = true;
    let joined = expert_layer(&problem, 8);
    problem.framework.held.weighted_result_bytes = 2;
    assert_eq!(joined.forward.compute, expert_layer(&problem, 8).forward.compute);
}

#[test]
fn weighted_biases_of_experts_pass_seven_times_in_32_bits() {
    // 512 tokens, each rank one expert that 2 in 8 visit: 1,024 rows of 1,024 channels on the mean of 8 ranks, more on the
    // fullest; 28 bytes each forward and 40 backward beyond the same layer without biases.
    let mut problem = experts();
    let plain = expert_layer(&problem, 8);
    problem.model.moe.as_mut().unwrap().expert_bias = true;
    let biased = expert_layer(&problem, 8);
    let fullest = 1.0 + (2.0 * 8f64.ln() / 1024.0).sqrt();
    let elements = 1024.0 * fullest * 1024.0;
    let (memory, kernel) = rates(&problem);
    let forward = more(biased.forward, plain.forward);
    close(forward, 28.0 * elements / memory + kernel, 1e-4);
    let backward = more(biased.input_gradient, plain.input_gradient);
    close(backward, 40.0 * elements / memory + kernel, 1e-4);
    // Or 8 and 2 bytes in 16 bits.
    problem.framework.fused.expert_bias = true;
    let joined = expert_layer(&problem, 8);
    let forward = more(joined.forward, plain.forward);
    close(forward, 8.0 * elements / memory + kernel, 1e-4);
    let backward = more(joined.input_gradient, plain.input_gradient);
    close(backward, 2.0 * elements / memory + kernel, 1e-4);
}

#[test]
fn experts_of_a_capacity_have_places_for_that_many_tokens() {
    // One device, 512 tokens that visit 2 of 8 experts each: 1,024 visits of 1,024 channels, and half as many again. Arithmetic alone, and
    // no fused kernel that finds places.
    let mut problem = experts();
    (problem.framework.launch_us, problem.framework.fused.permutation) = (0.0, false);
    let chip = &mut problem.cluster.groups[0].chip;
    (chip.memory_bandwidth_gb_per_s, chip.host.kernel_us) = (1e12, 1e-6);
    (chip.gemm.half_k, chip.gemm.tile_m, chip.gemm.tile_n) = (0.0, 1, 1);
    let rate = chip.peak_tflops.bf16.unwrap() * 1e12 * chip.gemm.efficiency;
    let operations = |a: Time, b: Time| (a.seconds() - b.seconds()) * rate;
    let mut with = |factor: f64, by_products: ByProducts| {
        problem.model.moe.as_mut().unwrap().capacity_factor = factor;
        problem.framework.dispatch_by_products = by_products;
        expert_layer(&problem, 1)
    };
    let (none, micro_batch) = (ByProducts::None, ByProducts::MicroBatch);
    let (one, more, masked) = (with(1.0, none), with(1.5, none), with(1.5, micro_batch));
    let Model { activation, moe, .. } = problem.model;
    let matrices = if activation.gated() { 3.0 } else { 2.0 };
    let expert = 2.0 * 1024.0 * moe.unwrap().expert_ffn as f64 * matrices;
    close(operations(more.forward.compute, one.forward.compute), 512.0 * expert, 0.02);
    // By products with masks: 512 tokens by 1,536 places by 1,024 channels, twice forward and thrice backward.
    let product = 2.0 * 512.0 * 1536.0 * 1024.0;
    close(operations(masked.forward.compute, more.forward.compute), 2.0 * product, 0.02);
    let (masked, more) = (masked.input_gradient.compute, more.input_gradient.compute);
    close(operations(masked, more), 3.0 * product, 0.02);
}

#[test]
fn all_wait_for_the_rank_whose_experts_most_tokens_want() {
    // 1,024 visits of 2 KiB from each of 8 ranks with one expert, whose loads vary by half of their mean: the fullest takes
    // 1 + sqrt(2 ln 8 (1 / 1024 + 0.25)) = 2.0217 times the mean, and sends as much back. Four experts a rank vary by a quarter.
    let mut problem = experts();
    problem.framework.overlap.expert = false;
    let exchange = |problem: &Problem| expert_layer(problem, 8).forward.expert.seconds();
    let load = |variance: f64| 1.0 + (2.0 * 8f64.ln() * (1.0 / 1024.0 + variance)).sqrt();
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let group = Group { size: 8, stride: 1 };
    let moved = |load: f64| 2.0 * fabric.all_to_all(load * 1024.0 * 2048.0, group);
    close(exchange(&problem), moved(load(0.0)), 1e-6);
    problem.workload.expert_load_variation = 0.5;
    close(load(0.25), 2.0217, 1e-4);
    close(exchange(&problem), moved(load(0.25)), 1e-6);
    let mut more = problem.clone();
    more.model.moe.as_mut().unwrap().experts = 32;
    close(exchange(&more), moved(load(0.0625)), 1e-6);
    // Places are filled alike whatever the tokens want.
    problem.model.moe.as_mut().unwrap().capacity_factor = 1.0;
    close(exchange(&problem), moved(1.0), 1e-6);
}

#[test]
fn a_grouped_product_of_several_experts_costs_the_host_a_launch_each() {
    // Waiting for the host alone: 8 experts on one device, two grouped products of 8 launches of 10 us forward, and the
    // two kernels that sort by expert with one each before that finds where, of 20 us as the others, more than on eight devices;
    // these launch two exchanges of tokens and one of their weights. One kernel for all experts needs no loop.
    let mut problem = experts();
    problem.framework.launch_us = 20.0;
    problem.framework.permutes_twice = true;
    let host = |ep, looped| {
        let mut slow = problem.clone();
        slow.framework.fused.looped_gemm = looped;
        slow.cluster.groups[0].chip.peak_tflops.bf16 = Some(1e9);
        slow.cluster.groups[0].chip.memory_bandwidth_gb_per_s = 1e12;
        slow.cluster.groups[0].chip.host.kernel_us = 1e-6;
        slow.framework.expert_dispatch = ExpertDispatch::Copies;
        slow.cluster.groups[0].chip.link.latency_us = 1e-6;
        let cost = expert_layer(&slow, ep).forward;
        cost.compute.seconds() + cost.expert.seconds()
    };
    close(host(1, true) - host(8, true), 2.0 * 8.0 * 10e-6 + 4.0 * 20e-6 - 3.0 * 20e-6, 1e-3);
    close(host(1, true) - host(1, false), 2.0 * 8.0 * 10e-6, 1e-3);
}

#[test]
fn a_fused_router_spares_the_host_sixteen_launches_forward_and_six_backward() {
    // Waiting for the host alone, 20 us an operator: 34 small kernels become 18, and 12 backward 6.
    let host = |fused| {
        let mut problem = experts();
        problem.framework.launch_us = 20.0;
        problem.framework.fused.router = fused;
        let chip = &mut problem.cluster.groups[0].chip;
        chip.peak_tflops.bf16 = Some(1e9);
        (chip.memory_bandwidth_gb_per_s, chip.host.kernel_us) = (1e12, 1e-6);
        let cost = expert_layer(&problem, 1);
        (cost.forward.compute.seconds(), cost.input_gradient.compute.seconds())
    };
    let (apart, fused) = (host(false), host(true));
    close(apart.0 - fused.0, 16.0 * 20e-6, 1e-3);
    close(apart.1 - fused.1, 6.0 * 20e-6, 1e-3);
}

#[test]
fn biases_added_expert_by_expert_are_waited_for_forward() {
    // 8 experts on one device whose host takes 20 us an operator, 10 in a bare loop: two an expert forward, once it has read
    // their counts from the device, six backward, and one operator more backward than in one go. Where the host is what lasts
    // they add up; where the device is, it waits for those forward alone.
    let passes = |fused, fast| {
        let mut problem = experts();
        problem.framework.launch_us = 20.0;
        problem.framework.fused.expert_bias = fused;
        problem.model.moe.as_mut().unwrap().expert_bias = true;
        let chip = &mut problem.cluster.groups[0].chip;
        chip.peak_tflops.bf16 = Some(if fast { 1e9 } else { 1e-3 });
        (chip.memory_bandwidth_gb_per_s, chip.host.kernel_us) = (1e12, 1e-6);
        let cost = expert_layer(&problem, 1);
        (cost.forward.compute.seconds(), cost.input_gradient.compute.seconds())
    };
    let ((apart, apart_back), (fused, fused_back)) = (passes(false, true), passes(true, true));
    close(apart - fused, 2.0 * 8.0 * 10e-6, 1e-3);
    close(apart_back - fused_back, 6.0 * 8.0 * 10e-6 + 20e-6, 1e-3);
    let ((apart, apart_back), (fused, fused_back)) = (passes(false, false), passes(true, false));
    close(apart - fused, 2.0 * 8.0 * 10e-6, 1e-3);
    close(apart_back, fused_back, 1e-9);
}

#[test]
fn tokens_that_no_other_rank_sent_are_sorted_once_more_by_some_frameworks() {
    // 8 experts on one device: 1,024 visits of 1,024 channels are read and written once before and once after the experts,
    // 4 passes of 2 bytes at 0.95 of the streaming rate, and 1,024 places found either way, 158 ns of a processor each. On two
    // devices whoever asks sorts.
    let mut problem = experts();
    problem.framework.launch_us = 0.0;
    let time = |problem: &Problem, ep| expert_layer(problem, ep).forward.compute.seconds();
    let (alone, shared) = (time(&problem, 1), time(&problem, 2));
    problem.framework.permutes_twice = true;
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency * 0.95;
    let passes = 4.0 * 2.0 * 1024.0 * 1024.0 / memory + chip.host.kernel_us * 1e-6;
    let places = 2.0 * 1024.0 * 158e-9 / f64::from(chip.gemm.processors);
    close(time(&problem, 1) - alone, passes + places, 1e-4);
    close(time(&problem, 2), shared, 1e-9);
}

#[test]
fn tokens_copied_for_their_experts_and_summed_apart_pass_memory_in_its_order() {
    // 8 experts on one device, 1,024 visits of 1,024 channels by 512 tokens of two choices each: a copy reads half as much as it
    // writes, and a sum the other way round, 1.5 passes of 2 bytes each at the streaming rate, forward and backward.
    let mut problem = experts();
    problem.framework.launch_us = 0.0;
    let time = |problem: &Problem| {
        let cost = expert_layer(problem, 1);
        (cost.forward.compute.seconds(), cost.input_gradient.compute.seconds())
    };
    let (forward, backward) = time(&problem);
    problem.framework.copies_choices = true;
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let passes = 2.0 * (1.5 * 2.0 * 1024.0 * 1024.0 / memory + chip.host.kernel_us * 1e-6);
    close(time(&problem).0 - forward, passes, 1e-4);
    close(time(&problem).1 - backward, passes, 1e-4);
}

#[test]
fn a_grouped_product_works_out_whole_tiles_and_those_between_two_experts_twice() {
    // 8 experts on one device of 128 visits each, two products of widths of 1,024: tiles of 64 rows are met 16 times, and 7 once
    // more, so 23 of 16; tiles of 400 fill 1,200 of 1,024 in either width. Arithmetic of the forward products alone counts.
    let mut problem = experts();
    problem.framework.launch_us = 0.0;
    let chip = &mut problem.cluster.groups[0].chip;
    (chip.memory_bandwidth_gb_per_s, chip.host.kernel_us) = (1e12, 0.0);
    let time = |problem: &Problem| expert_layer(problem, 1).forward.compute.seconds();
    let usual = time(&problem);
    let device = Device::new(&problem.cluster.groups[0].chip, Precision::Bf16, &[], 1);
    let model = &problem.model;
    let (n, h) = (model.moe.as_ref().unwrap().expert_ffn, model.hidden);
    let inputs = if model.activation.gated() { 2 } else { 1 };
    let (up, down) = (
        device.linear(Gemm::batched(8, 128, inputs * n, h)),
        device.linear(Gemm::batched(8, 128, h, n)),
    );
    problem.framework.grouped_tile_rows = 64;
    close(time(&problem) - usual, (up + down) * 7.0 / 16.0, 1e-4);
    problem.framework.grouped_tile_rows = 0;
    problem.framework.grouped_tile_width = 400;
    problem.framework.projections = Projections::GateApart;
    let filled = |width: u64| (width.div_ceil(400) * 400) as f64 / width as f64;
    close(time(&problem) - usual, (up + down) * (filled(n) * filled(h) - 1.0), 1e-4);
}

#[test]
fn a_recompute_that_stops_early_runs_no_second_product_nor_the_way_back_of_weighted_activations() {
    // One expert on each of 8 ranks. After the nonlinearity, which has the router's weights, follow the second product of the
    // fullest rank's rows, [1,090, 1,024] x [1,024, 1,024] (1,024 (1 + sqrt(2 ln 8 / 1,024)) = 1,089.3), half of the exchanges,
    // the sums over 1,024 visits (1.5 passes of 2 bytes at 0.95 of the streaming rate) and the residual addition (3 passes over 512
    // tokens).
    let mut problem = experts();
    problem.framework.launch_us = 0.0;
    problem.framework.recompute_stops_early = true;
    let whole = expert_layer(&problem, 8);
    assert_eq!(whole.recompute_full, whole.forward);
    problem.framework.held.weighted_result_bytes = 0;
    let early = expert_layer(&problem, 8).recompute_full;
    let device = Device::new(&problem.cluster.groups[0].chip, Precision::Bf16, &[], 8);
    let elements = 2.0 * 1024.0 * 1024.0;
    let left_out = device.linear(Gemm::new(1_090, 1024, 1024))
        + device.stream(1.5 * elements / 0.95)
        + device.stream(3.0 * elements / 2.0);
    let forward = whole.forward;
    close(forward.compute.seconds() - early.compute.seconds(), left_out, 1e-6);
    close(early.expert.seconds(), forward.expert.seconds() / 2.0, 1e-6);
    // Another micro-batch hides the exchange of a forward pass, and not that of one that runs again for a backward pass.
    problem.cluster.groups[0].chip.link.all_to_all_gb_per_s = 0.1;
    let shown = expert_layer(&problem, 8);
    problem.framework.overlap.expert = true;
    let hidden = expert_layer(&problem, 8);
    assert!(hidden.forward.expert < shown.forward.expert);
    assert_eq!(hidden.recompute_full, shown.recompute_full);
    // Dropout after the product keeps a mask, which must be drawn again.
    problem.workload.dropout = true;
    let drawn = expert_layer(&problem, 8);
    assert_eq!(drawn.recompute_full.expert, shown.forward.expert);
    assert_eq!(drawn.recompute_full.compute, drawn.forward.compute);
}

#[test]
fn an_expert_s_operand_in_blocks_is_cast_in_the_time_of_two_launches_instead_of_four() {
    // Waiting for the host alone, 8 experts on one device: the inputs of two grouped products forward and the gradients of
    // their outputs backward take the time of 16 launches of 10 us instead of 32, and each product, of which there are twice as many
    // backward, 2 that order its operands' scales.
    let mut problem = experts();
    problem.framework.launch_us = 20.0;
    problem.workload.precision = Precision::Fp8;
    let chip = &mut problem.cluster.groups[0].chip;
    (chip.peak_tflops.bf16, chip.peak_tflops.fp8) = (Some(1e9), Some(1e9));
    chip.memory_bandwidth_gb_per_s = 1e12;
    chip.host.kernel_us = 1e-6;
    let host = |scaling| {
        let framework = Framework { fp8_scaling: scaling, ..problem.framework.clone() };
        let cost = expert_layer(&Problem { framework, ..problem.clone() }, 1);
        [cost.forward, cost.input_gradient + cost.weight_gradient].map(|p| p.compute.seconds())
    };
    let (tensor, block) = (host(Fp8Scaling::Current), host(Fp8Scaling::Block));
    for (pass, products) in [(0, 1.0), (1, 2.0)] {
        let fewer = 2.0 * (8.0 * (4.0 - 2.0) - 2.0 * products) * 10e-6;
        close(tensor[pass] - block[pass], fewer, 1e-3);
    }
}

#[test]
fn a_graph_of_the_router_goes_on_with_that_of_attention() {
    // Waiting for the host alone, 20 us a kernel: of the norm, the router's product and its 34 small kernels none is left; by
    // itself such a graph takes six launches to replay.
    let mut problem = experts();
    problem.framework.launch_us = 20.0;
    let chip = &mut problem.cluster.groups[0].chip;
    (chip.peak_tflops.bf16, chip.memory_bandwidth_gb_per_s) = (Some(1e9), 1e12);
    chip.host.kernel_us = 1e-6;
    let host = |attention, router| {
        let mut graphed = problem.clone();
        graphed.framework.graphs = Graphs { attention, router, mlp: true };
        expert_layer(&graphed, 1).forward.total().seconds()
    };
    close(host(false, false) - host(false, true), (1.0 + 1.0 + 34.0 - 6.0) * 20e-6, 1e-3);
    close(host(true, false) - host(true, true), (1.0 + 1.0 + 34.0) * 20e-6, 1e-3);
}

#[test]
fn without_all_to_all_every_rank_gathers_and_splits_the_tokens_of_all() {
    // 512 tokens that visit 2 experts, 1024 channels of 2 bytes: 2 MiB a rank, 16 MiB of all 8. Dispatch and combine each
    // gather the 16 MiB, read and write them to split, and read and write 2 MiB to join.
    let mut problem = experts();
    problem.framework.expert_dispatch = ExpertDispatch::GatherSplit;
    problem.framework.overlap.expert = false;
    let shard = Shard { dp: 8, ep: 8, ..whole() };
    let moe = LayerKind { moe: true, windowed: false };
    let priced = block::price(&Pricer::new(&problem, 0, shard), moe);
    let chip = &problem.cluster.groups[0].chip;
    let fabric = Fabric::new(&problem.cluster, chip);
    let mib = 1024.0 * 1024.0;
    let gather = fabric.all_gather(16.0 * mib, Group { size: 8, stride: 1 });
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let once = gather + 2.0 * 18.0 * mib / memory + 2.0 * chip.host.kernel_us * 1e-6;
    close(priced.cost.forward.expert.seconds(), 2.0 * once, 1e-6);
    assert!(priced.transient >= Bytes(16 << 20));
}

#[test]
fn an_exchange_that_another_micro_batch_hides_keeps_one_pass_more_or_one_layer() {
    // Eight experts on eight ranks, four micro-batches of one sequence each: without a pipeline two are in flight in place of
    // one; on the first of two stages three in place of two, but no more than there are. Where layers are dropped in turn it is
    // one more of the four or two that a pass has.
    let memory = |overlapped: Option<bool>, pp: u32, sequences: u64| {
        let mut problem = experts();
        problem.workload.global_batch_size = sequences * 8 / u64::from(pp);
        problem.framework.overlap.expert = overlapped.is_some();
        problem.framework.held.overlapped_pass = overlapped == Some(true);
        let layers = problem.model.layers / pp;
        let stage = Stage { chip: 0, layers, recompute: Recompute::None, offload: 0 };
        let dp = 8 / u64::from(pp);
        let plan = Plan { dp, ep: dp, ..testing::plan(vec![stage; pp as usize]) };
        estimate(&problem, &plan).expect("a legal plan").stages[0].memory
    };
    let kept = |overlapped, pp, sequences| memory(overlapped, pp, sequences).activations;
    let (pass, layer) = (Some(true), Some(false));
    assert_eq!(kept(pass, 1, 4).0, 2 * kept(None, 1, 4).0);
    assert_eq!(2 * kept(pass, 2, 4).0, 3 * kept(None, 2, 4).0);
    for pp in [1, 2] {
        // But for what the head or the embedding keeps, and the draw of the rank with most tokens.
        close(kept(layer, pp, 4).0 as f64, 1.25 * kept(None, pp, 4).0 as f64, 0.01);
    }
    assert_eq!((kept(pass, 1, 1), kept(layer, 1, 1)), (kept(None, 1, 1), kept(None, 1, 1)));
    let other = |m: MemoryItems| (m.parameters, m.gradients, m.optimizer);
    assert_eq!(other(memory(pass, 1, 4)), other(memory(None, 1, 4)));
}

#[test]
fn experts_outside_of_what_zero_shards_are_whole_on_each_of_their_replicas() {
    // Eight experts of two products of 1,024 by 1,024 and their biases over two of eight ranks: four a rank and layer, each on
    // four replicas, which ZeRO-3 else shards.
    let mut problem = experts();
    let stage = Stage { chip: 0, layers: 4, recompute: Recompute::None, offload: 0 };
    let plan = Plan { dp: 8, ep: 2, zero: 3, shard_group: 8, ..testing::plan(vec![stage]) };
    let held = |problem: &Problem| estimate(problem, &plan).expect("a legal plan").stages[0].memory;
    let sharded = held(&problem);
    problem.framework.held.whole_experts = true;
    let apart = held(&problem);
    let layer = expert_layer(&problem, 2);
    let mine = 4 * layer.expert_parameters;
    let bytes = &problem.framework.bytes;
    let more = apart.optimizer - sharded.optimizer;
    close(more.0 as f64, (mine * bytes.optimizer) as f64 * 0.75, 1e-6);
    let more = apart.parameters - sharded.parameters;
    close(more.0 as f64, (mine * bytes.parameter) as f64 * 0.75, 0.2);
}

#[test]
fn experts_one_after_another_have_the_passing_tensors_of_one() {
    // One rank, 512 tokens that visit 2 of 8 experts: 128 rows an expert in place of 1,024 of all.
    let mut problem = experts();
    let kind = LayerKind { moe: true, windowed: false };
    let passing = |problem: &Problem| {
        block::price(&Pricer::new(problem, 0, whole()), kind).transient.0 as f64
    };
    let together = passing(&problem);
    problem.framework.fused.grouped_gemm = false;
    close(passing(&problem), together / 8.0, 1e-6);
}

#[test]
fn what_experts_made_is_kept_where_it_is_weighted_afterwards() {
    // 512 tokens visit 2 experts each: 1,024 results of 1,024 channels in 2 bytes.
    let mut problem = experts();
    let kind = LayerKind { moe: true, windowed: false };
    let kept = |problem: &Problem| block::price(&Pricer::new(problem, 0, whole()), kind).cost.kept;
    let after = kept(&problem);
    problem.framework.held.weighted_result_bytes = 0;
    assert_eq!(after - kept(&problem), Bytes(1024 * 1024 * 2));
    // In 32 bits twice that, and the gradient of each passes in 4 and in 2 bytes.
    problem.framework.held.weighted_result_bytes = 4;
    assert_eq!(kept(&problem) - after, Bytes(1024 * 1024 * 2));
    let layer = block::price(&Pricer::new(&problem, 0, whole()), kind);
    assert_eq!(layer.transient, Bytes(1024 * 1024 * 6));
}

#[test]
fn a_host_that_runs_experts_one_after_another_has_gathered_nothing_ahead() {
    // Forward and to recompute the gather of the layer's 2 bytes a parameter shows whole; the reduction runs behind the pass.
    let mut problem = gpt_problem(1024, 512);
    problem.model.moe = Some(testing::moe(8, 2, 1024));
    problem.framework.overlap.gradient_reduce = true;
    let shard = Shard { dp: 8, zero: 3, shard_group: 8, ..whole() };
    let kind = LayerKind { moe: true, windowed: false };
    let priced = |problem: &Problem| block::price(&Pricer::new(problem, 0, shard), kind).cost;
    let grouped = priced(&problem);
    assert_eq!(grouped.recompute_full.shard, Time::ZERO);
    problem.framework.fused.grouped_gemm = false;
    let looped = priced(&problem);
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let gather = |bytes: u64| {
        let of = |parameters: u64| {
            fabric.all_gather((bytes * parameters) as f64, Group { size: 8, stride: 1 })
        };
        of(looped.dense_parameters) + of(looped.expert_parameters)
    };
    close(looped.forward.shard.seconds(), gather(2), 1e-4);
    let backward = |cost: &LayerCost| {
        cost.input_gradient.total().seconds() + cost.weight_gradient.total().seconds()
            - cost.input_gradient.shard.seconds()
    };
    let sent = problem.framework.bytes.gradient_sent;
    let reduced = fabric.beside(gather(sent), backward(&looped));
    let again = looped.recompute_full.shard + looped.input_gradient.shard;
    close(again.seconds(), gather(2) + reduced, 1e-4);
    // A program without a host has nothing to wait for.
    problem.framework.launch_us = 0.0;
    assert_eq!(priced(&problem).recompute_full.shard, Time::ZERO);
}

#[test]
fn experts_in_16_bits_under_a_job_in_8_cost_what_they_do_under_one_in_16() {
    // What the experts' two products add is the same as in a job of 16 bits, as their kept inputs are: 1,024 visits of 1,024
    // channels twice, 2 bytes each in place of 1.
    let mut problem = experts();
    problem.framework.launch_us = 0.0;
    problem.framework.held.fp8_input_bytes = 1;
    problem.cluster.groups[0].chip.peak_tflops.fp8 = Some(624.0);
    let wider = |problem: &Problem| {
        let mut twice = problem.clone();
        twice.model.moe = Some(testing::moe(8, 2, 2048));
        more(expert_layer(&twice, 1).forward, expert_layer(problem, 1).forward)
    };
    let in_16 = wider(&problem);
    problem.workload.precision = Precision::Fp8;
    let in_8 = wider(&problem);
    let kept = expert_layer(&problem, 1).kept.0;
    problem.framework.wide_experts = true;
    assert!(in_8 < in_16, "{in_8} {in_16}");
    close(wider(&problem), in_16, 1e-6);
    assert_eq!(expert_layer(&problem, 1).kept.0 - kept, 2 * 1024 * 1024);
}
