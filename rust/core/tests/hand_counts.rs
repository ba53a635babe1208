//! What chooses experts, worked by hand: numbers of tokens that the host waits for, rows that fill multiples, a router's product, and
//! choices that all ranks gather.

mod sums;

use autopar_core::estimate::block;
use autopar_core::estimate::collective::Fabric;
use autopar_core::estimate::layer::Pricer;
use autopar_core::estimate::shard::{LayerCost, Shard, Split};
use autopar_core::spec::cluster::Group;
use autopar_core::spec::framework::{ExpertDispatch, Fp8Scaling};
use autopar_core::spec::kernels::NormKernel;
use autopar_core::spec::model::{Activation, LayerKind};
use autopar_core::spec::problem::Problem;
use autopar_core::spec::workload::Precision;
use autopar_core::testing::{self, whole};
use sums::{close, gpt_problem};

/// A GPT whose MLPs are 8 experts of 1,024 channels, 2 a token.
fn experts() -> Problem {
    let mut problem = gpt_problem(1024, 512);
    problem.model.moe = Some(testing::moe(8, 2, 1024));
    problem.cluster.groups[0].chip.peak_tflops.fp8 = Some(1e3);
    problem
}

fn expert_layer(problem: &Problem, ep: u64) -> LayerCost {
    let kind = LayerKind { moe: true, windowed: false };
    block::price(&Pricer::new(problem, 0, Shard { dp: ep, ep, ..whole() }), kind).cost
}

fn seconds(pass: Split) -> f64 {
    pass.total().seconds()
}

#[test]
fn a_host_that_asks_for_counts_leaves_the_device_waiting_for_the_next_launch() {
    // Launches of a nanosecond, which never outlast the device: it waits for one of them in each forward pass of the layer.
    let mut problem = experts();
    problem.framework.expert_dispatch = ExpertDispatch::Copies;
    problem.framework.launch_us = 1e-3;
    let forward = |change: &dyn Fn(&mut Problem)| {
        let mut changed = problem.clone();
        change(&mut changed);
        let waited = seconds(expert_layer(&changed, 8).forward);
        changed.framework.launch_us = 0.0;
        (waited - seconds(expert_layer(&changed, 8).forward)) * 1e9
    };
    assert!((forward(&|_| ()) - 1.0).abs() < 1e-2);
    // Places are known beforehand, another micro-batch runs meanwhile, or products one by one wait for more than counts.
    let fixed = |p: &mut Problem| p.model.moe.as_mut().unwrap().capacity_factor = 1.0;
    assert_eq!(forward(&fixed), 0.0);
    assert_eq!(forward(&|p| p.framework.overlap.expert = true), 0.0);
    assert_eq!(forward(&|p| p.framework.fused.grouped_gemm = false), 0.0);
}

#[test]
fn one_device_waits_for_counts_only_where_a_loop_launches_its_products() {
    let wait = |looped| {
        let mut problem = experts();
        problem.framework.fused.looped_gemm = looped;
        problem.framework.launch_us = 0.0;
        let device = seconds(expert_layer(&problem, 1).forward);
        problem.framework.launch_us = 1e-3;
        (seconds(expert_layer(&problem, 1).forward) - device) * 1e9
    };
    assert!((wait(true) - 1.0).abs() < 1e-2);
    assert_eq!(wait(false), 0.0);
}

#[test]
fn experts_rows_are_copied_to_multiples_and_back_where_products_are_narrow() {
    // 1,024 visits of 1,024 channels, on the fullest of 8 ranks 1 + sqrt(2 ln 8 / 1,024) as many: read and written before the
    // experts and after them, four passes of 2 bytes, forward and backward.
    let mut problem = experts();
    problem.framework.launch_us = 0.0;
    problem.workload.precision = Precision::Fp8;
    let filled = expert_layer(&problem, 8);
    problem.framework.pads_experts = true;
    let padded = expert_layer(&problem, 8);
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let fullest = 1.0 + (2.0 * 8f64.ln() / 1024.0).sqrt();
    let passes = 4.0 * 2.0 * 1024.0 * fullest * 1024.0 / memory + chip.host.kernel_us * 1e-6;
    close(seconds(padded.forward) - seconds(filled.forward), passes, 1e-4);
    close(seconds(padded.input_gradient) - seconds(filled.input_gradient), passes, 1e-4);
    // A capacity is such a multiple, and 16 bits need none.
    for change in [
        (|p: &mut Problem| p.model.moe.as_mut().unwrap().capacity_factor = 1.0) as fn(&mut Problem),
        |p| p.workload.precision = Precision::Bf16,
    ] {
        change(&mut problem);
        let padded = expert_layer(&problem, 8);
        problem.framework.pads_experts = false;
        assert_eq!(padded, expert_layer(&problem, 8));
        problem.framework.pads_experts = true;
    }
}

#[test]
fn what_experts_keep_is_copied_into_pages_and_back() {
    // One device: 1,024 visits. In 8 bits with scales of blocks their input takes 1 MiB, what a gated activation reads 4 and its result
    // 1. 6 MiB are read and written at 0.618 of 8 TB/s x 0.87, with four kernels for each of three tensors, and back with two.
    let mut problem = experts();
    (problem.framework.launch_us, problem.workload.precision) = (0.0, Precision::Fp8);
    problem.model.activation = Activation::Swiglu;
    (problem.framework.fused.activation, problem.framework.fused.gate) = (true, true);
    problem.framework.fp8_scaling = Fp8Scaling::Block;
    let mut chip = problem.cluster.groups[0].chip.clone();
    (chip.memory_bandwidth_gb_per_s, chip.memory_efficiency) = (8000.0, 0.87);
    problem.cluster.groups[0].chip = chip.clone();
    let kept = expert_layer(&problem, 1);
    problem.framework.stashes_experts = true;
    let stashed = expert_layer(&problem, 1);
    let (copies, gap) =
        (2.0 * 6.0 * f64::from(1 << 20) / (0.618 * 0.87 * 8e12), chip.host.kernel_us * 1e-6);
    close(seconds(stashed.forward) - seconds(kept.forward), copies + 12.0 * gap, 1e-4);
    close(seconds(stashed.input_gradient) - seconds(kept.input_gradient), copies + 6.0 * gap, 1e-4);
    // Pages have room for 1.2 times as much.
    close((stashed.kept.0 - kept.kept.0) as f64, 0.2 * 6.0 * f64::from(1 << 20), 1e-5);
    // Others are not copied, and lie in tensors 1.5 times as large.
    problem.framework.fp8_scaling = Fp8Scaling::Current;
    let large = expert_layer(&problem, 1);
    problem.framework.stashes_experts = false;
    let usual = expert_layer(&problem, 1);
    assert_eq!(large.forward, usual.forward);
    close((large.kept.0 - usual.kept.0) as f64, 0.5 * 6.0 * f64::from(1 << 20), 1e-5);
}

#[test]
fn experts_of_one_batched_product_have_as_many_rows_as_the_fullest() {
    // One device: 1,024 visits of 8 experts whose wants vary by half of their mean, 128 each. The fullest gets 1 + sqrt(2 ln 8 (1/128 +
    // 1/4)) = 2.0355 times as many, 260.5, so that 261 rows are worked out for each, as for a capacity of 2.0355.
    let mut problem = experts();
    problem.framework.launch_us = 0.0;
    problem.framework.pads_to_fullest = true;
    problem.workload.expert_load_variation = 0.5;
    let load = 1.0 + (2.0 * 8f64.ln() * (1.0 / 128.0 + 0.25)).sqrt();
    close(load, 2.0355, 1e-4);
    let padded = expert_layer(&problem, 1);
    let mut places = problem.clone();
    places.model.moe.as_mut().unwrap().capacity_factor = load;
    let places = expert_layer(&places, 1);
    close(seconds(padded.weight_gradient), seconds(places.weight_gradient), 1e-9);
    // Beyond what a capacity takes: zeros (1 of the rows worked out, 1 of those that arrived) and copies (4) of 1,024 channels of 2 bytes,
    // there and back with a gap each. Backward 6 * 8 of the rows worked out, 6 * 8 + 11 of those that arrived.
    let chip = &problem.cluster.groups[0].chip;
    let row = 2.0 * 1024.0 / (chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency);
    let (arrived, worked) = (1024.0 * row, 1024.0 * load * row);
    let gap = chip.host.kernel_us * 1e-6;
    let forward = worked + 5.0 * arrived + gap * 2.0;
    close(seconds(padded.forward) - seconds(places.forward), forward, 1e-3);
    let backward = 48.0 * worked + 59.0 * arrived + gap;
    close(seconds(padded.input_gradient) - seconds(places.input_gradient), backward, 1e-3);
    // All tokens may want the same two of eight, no more: four times the mean.
    problem.workload.expert_load_variation = 1.7;
    let all = expert_layer(&problem, 1);
    problem.model.moe.as_mut().unwrap().capacity_factor = 4.0;
    close(seconds(all.weight_gradient), seconds(expert_layer(&problem, 1).weight_gradient), 1e-9);
}

#[test]
fn scales_of_all_experts_are_put_in_order_at_once() {
    // Waiting for the host alone, on one device: each of two grouped products launches 8 products of 10 us forward and 8 casts of 20, and
    // orders the scales of either operand in one launch more; with a scale for each tensor 32 kernels cast. In 16 bits it launches 8
    // products and no more.
    let forward = |precision, scaling| {
        let mut problem = experts();
        problem.workload.precision = precision;
        problem.framework.fp8_scaling = scaling;
        problem.framework.fused.looped_gemm = true;
        problem.framework.launch_us = 20.0;
        let chip = &mut problem.cluster.groups[0].chip;
        (chip.peak_tflops.bf16, chip.peak_tflops.fp8) = (Some(1e9), Some(1e9));
        (chip.memory_bandwidth_gb_per_s, chip.host.kernel_us) = (1e12, 1e-6);
        seconds(expert_layer(&problem, 1).forward)
    };
    let wide = forward(Precision::Bf16, Fp8Scaling::Block);
    // Attention's projections are cast too, with both products, in operators of 20 us: four. The router's are not.
    let casts = 4.0 * 20e-6;
    let block = forward(Precision::Fp8, Fp8Scaling::Block) - wide;
    close(block, casts + 2.0 * (2.0 * 8.0 + 2.0) * 10e-6, 1e-3);
    let tensor = forward(Precision::Fp8, Fp8Scaling::Current) - wide;
    close(tensor, casts + 2.0 * (4.0 * 8.0) * 10e-6, 1e-3);
}

#[test]
fn a_cast_in_blocks_passes_at_less_than_streams_and_ends_for_each_expert() {
    // On one device, 8 experts: 1,024 visits of 1,024 channels are cast before the first product and of 2,048 before the second, by rows
    // and columns in 4 bytes, at 0.77 of the streaming rate. Before attention's two products 512 tokens of 1,024 channels are, twice.
    // A loop casts each expert's by itself: 2 x 7 kernels more end and begin.
    let mut problem = experts();
    problem.workload.precision = Precision::Fp8;
    problem.framework.launch_us = 0.0;
    problem.framework.fused.looped_gemm = false;
    let forward = |problem: &Problem, scaling| {
        let mut problem = problem.clone();
        problem.framework.fp8_scaling = scaling;
        problem.framework.fused.norm = NormKernel::Fused;
        seconds(expert_layer(&problem, 1).forward)
    };
    let ffn = problem.model.moe.as_ref().unwrap().expert_ffn as f64;
    let elements = 1_024.0 * (1_024.0 + ffn) + 512.0 * 2.0 * 1_024.0;
    let chip = problem.cluster.groups[0].chip.clone();
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let block = forward(&problem, Fp8Scaling::Block);
    let delayed = forward(&problem, Fp8Scaling::Delayed);
    close(block - delayed, 4.0 * elements * (1.0 / 0.77 - 1.0) / memory, 1e-3);
    problem.framework.fused.looped_gemm = true;
    let gaps = 2.0 * 7.0 * chip.host.kernel_us * 1e-6;
    // Beside it the router's small kernels take the device as long as they do in 16 bits.
    let wide = |looped: bool| {
        let mut problem = problem.clone();
        (problem.workload.precision, problem.framework.fused.looped_gemm) =
            (Precision::Bf16, looped);
        forward(&problem, Fp8Scaling::Block)
    };
    let router = wide(true) - wide(false);
    close(forward(&problem, Fp8Scaling::Block) - block, gaps + router, 1e-3);
    problem.framework.fused.looped_gemm = false;
    // A product's kernel that writes what its activation makes in 8 bits spares that kernel, three passes over it of 2 bytes, and the
    // second cast; backward five passes, and the cast of what is twice as wide.
    problem.framework.fp8_scaling = Fp8Scaling::Block;
    problem.model.activation = Activation::Swiglu;
    let apart = expert_layer(&problem, 1);
    problem.framework.fused.quantized_mlp = true;
    let joined = expert_layer(&problem, 1);
    let made = 1_024.0 * ffn;
    let gap = 2.0 * chip.host.kernel_us * 1e-6;
    let spared = made * (3.0 * 2.0 + 4.0 / 0.77) / memory + gap;
    close(seconds(apart.forward) - seconds(joined.forward), spared, 1e-3);
    let spared = made * (5.0 * 2.0 + 2.0 * 4.0 / 0.77) / memory + gap;
    close(seconds(apart.input_gradient) - seconds(joined.input_gradient), spared, 1e-3);
    assert_eq!(joined.kept, apart.kept);
}

#[test]
fn a_router_in_32_bits_passes_vector_units_and_casts_its_operands() {
    // 512 tokens of 1,024 channels (gpt_problem), 8 experts: 2 * 512 * 1024 * 8 = 8,388,608 operations a product at the vector
    // units' sustained rate, slow enough here that nothing moves as long, and 6 bytes for each of 512 * 1024 numbers cast both ways
    // and of 8 * 1024 weights. The same product of 16 bits takes what it moves. The input is kept in 32 bits too.
    let layer = |wide| {
        let mut problem = experts();
        problem.framework.wide_router = wide;
        (problem.framework.fused.activation, problem.framework.launch_us) = (false, 0.0);
        let chip = &mut problem.cluster.groups[0].chip;
        (chip.peak_tflops.bf16, chip.peak_tflops.fp32) = (Some(1e9), Some(1e-3));
        chip.host.kernel_us = 0.0;
        (expert_layer(&problem, 1), problem)
    };
    let ((wide, problem), (narrow, _)) = (layer(true), layer(false));
    let chip = &problem.cluster.groups[0].chip;
    let tokens = (problem.workload.sequence_length * 1024) as f64;
    let product = 2.0 * tokens * 8.0 / (1e9 * chip.gemm.efficiency);
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let casts = |elements: f64| 6.0 * elements / memory;
    let more = |a: Split, b: Split| seconds(a) - seconds(b);
    let moved = 2.0 * (tokens + 8.0 * 1024.0 + tokens / 128.0) / memory;
    close(more(wide.forward, narrow.forward), product + casts(tokens + 8192.0) - moved, 1e-3);
    close(more(wide.input_gradient, narrow.input_gradient), product + casts(tokens) - moved, 1e-3);
    assert_eq!(wide.kept.0 - narrow.kept.0, 4 * tokens as u64);
}

#[test]
fn who_gathers_tokens_first_permutes_those_of_all_parts_of_its_experts() {
    // Two ranks hold halves of all experts: 256 tokens of each, two experts a token, 1,024 channels of 2 bytes. Whoever sends copies
    // permutes its own 512 rows; after a gather both permute all 1,024, there and back, and fill 512 rows with zeros.
    let mut problem = experts();
    problem.framework.fused.permutation = true;
    problem.framework.held.weighted_result_bytes = 0;
    problem.framework.launch_us = 0.0;
    problem.cluster.groups[0].chip.host.kernel_us = 0.0;
    let shard = Shard { dp: 4, tp: 2, sp: true, etp: 2, ..whole() };
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let moe = LayerKind { moe: true, windowed: false };
    let mut forward = |dispatch| {
        problem.framework.expert_dispatch = dispatch;
        block::price(&Pricer::new(&problem, 0, shard), moe).cost.forward.compute.seconds()
    };
    let row = 2048.0 / memory;
    // A fused permutation reads tokens and writes copies, half as many again for two experts, at 0.95 of the streaming rate.
    let permuted = 2.0 * 1.5 * 512.0 * row / 0.95;
    let more = forward(ExpertDispatch::Gather) - forward(ExpertDispatch::Copies);
    close(more, permuted + 512.0 * row, 1e-3);
}

#[test]
fn tokens_that_every_rank_gathers_travel_once_over_both_groups() {
    // 512 tokens on two tensor-parallel ranks, 1024 channels of 2 bytes: half a MiB a rank, four of all 8, which two ranks of four
    // groups are. No copies for the two experts of each, and no second gather of experts that are cut. Beside them 8 bytes of
    // choices and 16 of weights a token.
    let mut problem = experts();
    problem.framework.expert_dispatch = ExpertDispatch::Gather;
    problem.framework.overlap.expert = false;
    let shard = Shard { dp: 4, tp: 2, sp: true, ep: 4, etp: 2, ..whole() };
    let moe = LayerKind { moe: true, windowed: false };
    let priced = block::price(&Pricer::new(&problem, 0, shard), moe);
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let gathered = |bytes: f64| fabric.all_gather(2048.0 * bytes, Group { size: 8, stride: 1 });
    let (once, weights) = (gathered(2048.0), gathered(16.0));
    close(priced.cost.forward.expert.seconds(), 2.0 * once + gathered(8.0) + weights, 1e-6);
    close(priced.cost.input_gradient.expert.seconds(), 2.0 * once + weights, 1e-6);
}
