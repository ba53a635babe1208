//! Bytes that layers, head and loss keep of what they make, worked by hand from what the frameworks' sources keep.

mod sums;

use autopar_core::estimate::block;
use autopar_core::estimate::estimate;
use autopar_core::estimate::layer::Pricer;
use autopar_core::estimate::memory::cast_sixteenths;
use autopar_core::estimate::shard::{LayerCost, Shard};
use autopar_core::plan::{Plan, Recompute, Stage};
use autopar_core::spec::framework::{ExpertDispatch, Fp8Scaling, Projections, Selective};
use autopar_core::spec::kernels::{NormKernel, SoftmaxKernel};
use autopar_core::spec::model::{Activation, LayerKind, Norm, QkNorm};
use autopar_core::spec::problem::Problem;
use autopar_core::spec::workload::{Attention, Precision};
use autopar_core::testing::{self, whole};
use autopar_core::units::Bytes;
use sums::{close, gpt_problem, layer, llama, S, SH};

/// One 32-bit sum a query.
const SUMS: u64 = 4 * 16 * S;

#[test]
fn a_llama_layer_in_fused_operators_keeps_33_and_a_half_bytes_a_token_and_channel() {
    // In bytes a token and channel, with 16-bit numbers: norm input 2 and output 2, twice: 8; queries 2, keys and values
    // 0.5 each: 3; rotated copies of queries and keys 2.5; attention's output 2; gate and up-projection 6 each, and their
    // product 6: 18. Together 33.5, and the sums.
    let cost = layer(&llama(), whole());
    assert_eq!(cost.kept, Bytes(SH * 67 / 2 + SUMS));
}

#[test]
fn a_ring_s_buffers_take_the_place_of_the_packed_projection() {
    // Over two ranks half of the tokens each, and no rotated copies of 2.5 beside what was packed: (33.5 - 2.5) / 2.
    let cost = layer(&llama(), Shard { cp: 2, ..whole() });
    assert_eq!(cost.kept, Bytes(SH * 31 / 2 + SUMS / 2));
}

#[test]
fn separate_operators_keep_the_norm_s_32_bit_input_its_normalised_copy_and_the_activation() {
    // A norm keeps its input in 32 bits (4), the normalised copy (2) and the output (2), twice: 16 in place of 8. The
    // activation's output is kept for the product with the gate: 6 more. Separate projections leave no packed one beside
    // the rotated copies: 2.5 less. 33.5 + 8 + 6 - 2.5 = 45.
    let mut problem = llama();
    let f = &mut problem.framework;
    (f.fused.norm, f.fused.activation, f.projections) =
        (NormKernel::Separate, false, Projections::Apart);
    assert_eq!(layer(&problem, whole()).kept, Bytes(SH * 45 + SUMS));
    // A stream in 32 bits is its own copy: the norm keeps it (4), its normalised copy in 32 bits (4), and each of the five products
    // the 16-bit input that it cast for itself (2).
    problem.framework.held.fp32_residual = true;
    assert_eq!(layer(&problem, whole()).kept, Bytes(SH * (45 + 4 + 6) + SUMS));
    assert_eq!(layer(&problem, whole()).kept_input, Bytes(SH * 4));
}

#[test]
fn clamps_in_separate_operators_keep_both_of_their_results_and_the_sigmoid_s() {
    // Beside the output before the gate three more of 3 h numbers in 2 bytes; in one kernel none of them.
    let mut problem = llama();
    problem.model.activation = Activation::ClampedSwiglu;
    let fused = layer(&problem, whole()).kept;
    // Clamped before that kernel: both halves, joined again.
    problem.framework.fused.clamp = false;
    assert_eq!(layer(&problem, whole()).kept - fused, Bytes(SH * 4 * 3));
    problem.framework.fused.activation = false;
    assert_eq!(layer(&problem, whole()).kept - fused, Bytes(SH * 4 * 6));
    problem.model.activation = Activation::Swiglu;
    assert_eq!(layer(&problem, whole()).kept - fused, Bytes(SH * 6));
}

#[test]
fn a_layer_norm_keeps_the_same_in_any_framework() {
    let mut problem = llama();
    problem.model.norm = Norm::Layernorm;
    let fused = layer(&problem, whole()).kept;
    problem.framework.fused.norm = NormKernel::Separate;
    assert_eq!(layer(&problem, whole()).kept, fused);
}

#[test]
fn relu_keeps_its_output_alone() {
    // GELU keeps its input of 3 h and the next product's input of 3 h, in 2 bytes; ReLU only the latter.
    let mut problem = llama();
    problem.model.activation = Activation::Gelu;
    let gelu = layer(&problem, whole()).kept;
    problem.model.activation = Activation::Relu;
    assert_eq!(gelu - layer(&problem, whole()).kept, Bytes(SH * 6));
}

#[test]
fn the_head_s_input_is_whole_on_every_rank_where_it_is_kept_as_it_was_gathered() {
    // With sequence parallel over 4 ranks the head keeps the norm's input (2 / 4) and its own (2 / 4, or 2 as gathered).
    let shard = Shard { tp: 4, sp: true, ..whole() };
    let mut problem = llama();
    assert_eq!(Pricer::new(&problem, 0, shard).head().cost.kept, Bytes(SH));
    problem.framework.held.gathered_inputs = true;
    assert_eq!(Pricer::new(&problem, 0, shard).head().cost.kept, Bytes(SH * 5 / 2));
}

#[test]
fn inputs_kept_as_they_were_gathered_are_whole_on_every_rank() {
    // With sequence parallel over 4 ranks two norm outputs of 2 bytes are whole in place of a quarter: 4 (1 - 1/4).
    let shard = Shard { tp: 4, sp: true, ..whole() };
    let mut problem = llama();
    let split = layer(&problem, shard).kept;
    problem.framework.held.gathered_inputs = true;
    assert_eq!(layer(&problem, shard).kept - split, Bytes(SH * 3));
}

#[test]
fn eight_bit_products_keep_their_inputs_in_8_or_16_bits_as_the_framework_says() {
    // Two norm outputs of h, attention's output of h and the activation's of 3 h: 6 numbers a token and channel.
    let mut problem = llama();
    problem.workload.precision = Precision::Fp8;
    let cast = layer(&problem, whole()).kept;
    problem.framework.held.fp8_input_bytes = 2;
    assert_eq!(layer(&problem, whole()).kept - cast, Bytes(SH * 6));
}

#[test]
fn four_bit_products_keep_nine_sixteenths_of_a_byte_and_casts_beside_16_bit_weights() {
    // The same 6 numbers in 9/16 of a byte in place of 1; with weights' casts by rows and by columns 2 x 9/16.
    let mut problem = llama();
    problem.workload.precision = Precision::Fp8;
    let eight = layer(&problem, whole()).kept;
    problem.workload.precision = Precision::Fp4;
    let four = layer(&problem, whole()).kept;
    assert_eq!(eight - four, Bytes(SH * 6 * 7 / 16));
    // So does who keeps what 8-bit products read in 16 bits.
    problem.framework.held.fp8_input_bytes = 2;
    assert_eq!(layer(&problem, whole()).kept, four);
    problem.framework.held.fp8_input_bytes = 1;
    let framework = &mut problem.framework;
    framework.eight_bit_gathers.activations = false;
    assert_eq!(cast_sixteenths(framework, Precision::Fp4, false), 0);
    framework.eight_bit_gathers.activations = true;
    assert_eq!(cast_sixteenths(framework, Precision::Fp4, false), 18);
    framework.held.fp8_weight_bytes = 2;
    assert_eq!(cast_sixteenths(framework, Precision::Fp8, false), 32);
    assert_eq!(cast_sixteenths(framework, Precision::Bf16, false), 0);
    // Where a chip takes any layout and a framework knows it, there is no copy by columns.
    framework.casts_by_rows = true;
    assert_eq!(cast_sixteenths(framework, Precision::Fp8, true), 16);
    framework.fp8_scaling = Fp8Scaling::Block;
    assert_eq!(cast_sixteenths(framework, Precision::Fp8, true), 32);
}

#[test]
fn recompute_of_operators_keeps_the_input_every_second_product_and_attention() {
    // Products have outputs of h, h / 4, h / 4 (queries, keys, values), h, 3 h, 3 h (gate and up) and h: the first, third, fifth and
    // seventh are 5.25 h, in 2 bytes 10.5. The layer's input 2 and attention's output 2. Together 14.5.
    let mut problem = llama();
    problem.framework.selective = Selective::Operators;
    problem.framework.projections = Projections::Apart;
    let cost = layer(&problem, whole());
    assert_eq!(cost.kept_selective, Bytes(SH * 29 / 2));
    // Nothing reads the seventh: it only makes the layer's output. A compiler drops it.
    problem.framework.fused.norm = NormKernel::Compiled;
    assert_eq!(layer(&problem, whole()).kept_selective, Bytes(SH * 25 / 2));
    problem.framework.fused.norm = NormKernel::Fused;
    // With biases the first four are kept all, 2.5 h, or none; of the others the first and the third are: 4 h.
    let mut biased = problem.clone();
    (biased.model.qkv_bias, biased.model.o_bias) = (true, true);
    assert_eq!(layer(&biased, whole()).kept_selective, Bytes(SH * 12));
    biased.framework.keeps_biased_products = true;
    assert_eq!(layer(&biased, whole()).kept_selective, Bytes(SH * 17));
    // Packed they are 1.5 h, h, 6 h and h: the first and the third.
    problem.framework.projections = Projections::Packed;
    assert_eq!(layer(&problem, whole()).kept_selective, Bytes(SH * 19));
    // Rotated queries and keys, 1.25 h, with what attention makes of them.
    problem.framework.keeps_attention_inputs = true;
    assert_eq!(layer(&problem, whole()).kept_selective, Bytes(SH * 43 / 2));
    (problem.framework.projections, problem.framework.keeps_attention_inputs) =
        (Projections::Apart, false);
    // Attention is not computed again, nor is half of the products: less than the forward pass, more than nothing.
    assert!(cost.recompute_selective.compute < cost.recompute_full.compute);
    assert!(cost.recompute_selective.compute.seconds() > 0.0);
    // Products of 4-bit numbers are all computed again: the layer's input and attention's output are left.
    let share = |problem: &Problem| {
        let cost = layer(problem, whole());
        cost.recompute_selective.compute.seconds() / cost.forward.compute.seconds()
    };
    let again = share(&problem);
    problem.workload.precision = Precision::Fp4;
    assert_eq!(layer(&problem, whole()).kept_selective, Bytes(SH * 4));
    assert!(share(&problem) > again);
}

#[test]
fn a_softmax_of_its_own_keeps_its_32_bit_result_beside_the_cast() {
    // 16 heads of 1024 x 1024 scores. In one kernel the 16-bit result is kept, 2 bytes a score; apart the 32-bit one too, 6. With
    // dropout 1 + 2 bytes are kept of its mask and its result, and not what it read: 5 and 4 + 1 + 2. In 32 bits there is no cast,
    // nor where the code makes none.
    let scores = 16 * S * S;
    let cast = |wide: bool, apart: bool, dropout: bool, precision: Precision| {
        let mut problem = llama();
        problem.workload.attention = Attention::Unfused;
        (problem.workload.dropout, problem.workload.precision) = (dropout, precision);
        problem.framework.fused.softmax =
            if apart { SoftmaxKernel::Separate } else { SoftmaxKernel::Fused };
        problem.framework.softmax_multiple = 1;
        problem.framework.softmax_in_fp32 = wide;
        layer(&problem, whole()).kept
    };
    let kept = |apart, dropout, precision| cast(true, apart, dropout, precision);
    let more =
        |dropout, precision| kept(true, dropout, precision) - kept(false, dropout, precision);
    assert_eq!(more(false, Precision::Bf16), Bytes(4 * scores));
    assert_eq!(more(true, Precision::Bf16), Bytes(2 * scores));
    assert_eq!(more(false, Precision::Tf32), Bytes(0));
    assert_eq!(cast(false, true, true, Precision::Bf16), kept(false, true, Precision::Bf16));
}

#[test]
fn norms_of_queries_and_keys_read_them_where_the_packed_projection_lies() {
    // Packed: h of queries and h / 4 each of keys and values, and queries and keys once more rotated, which read nothing of what
    // the norms made. Apart the norms' inputs are kept beside what attention reads: 1.25 h in 2 bytes.
    let kept = |norm: QkNorm, projections: Projections| {
        let mut problem = llama();
        (problem.model.qk_norm, problem.framework.projections) = (norm, projections);
        layer(&problem, whole()).kept
    };
    let more = |projections| kept(QkNorm::Head, projections) - kept(QkNorm::None, projections);
    assert_eq!(more(Projections::Packed), Bytes(0));
    assert_eq!(more(Projections::Apart), Bytes(SH * 5 / 2));
}

#[test]
fn attention_s_result_is_copied_for_a_projection_of_several_sequences() {
    // Two sequences: h for each of 2 x 1024 tokens in 2 bytes. Of one sequence both orders are one.
    let kept = |copied: bool, mbs: u64| {
        let mut problem = llama();
        problem.framework.held.copied_attention = copied;
        layer(&problem, Shard { mbs, ..whole() }).kept
    };
    assert_eq!(kept(true, 2) - kept(false, 2), Bytes(2 * SH * 2));
    assert_eq!(kept(true, 1), kept(false, 1));
}

#[test]
fn keys_and_values_that_a_pass_returns_live_with_each_layer_s_input() {
    // 4 key heads of 128 in 2 bytes, keys and values: 2 x 512 x 2 bytes a token; the input 2 h. A group of two layers keeps one
    // input and the keys and values of both.
    let mut problem = llama();
    let input = layer(&problem, whole()).kept_input;
    problem.framework.held.returned_keys = true;
    let cost = layer(&problem, whole());
    assert_eq!((input, cost.kept_input), (Bytes(2 * SH), Bytes(2 * SH + 2048 * S)));
    let kept = |layers: u32| {
        let recompute = Recompute::Uniform { layers };
        let stage = Stage { chip: 0, layers: 4, recompute, offload: 0 };
        let plan = Plan { dp: 8, ..testing::plan(vec![stage]) };
        estimate(&problem, &plan).unwrap().stages[0].memory.activations
    };
    assert_eq!(kept(1) - kept(2), Bytes(2 * 2 * SH));
}

// ---- Logits ----------------------------------------------------------------------------------------------------------

#[test]
fn the_loss_holds_a_framework_s_bytes_for_each_logit_of_a_rank() {
    // 1024 tokens and 32,000 rows: 12 bytes each; over 4 ranks a row padded to 128 x 4 gives 8064 rows, 16 bytes each.
    let mut problem = llama();
    (problem.framework.held.logit_bytes, problem.framework.held.split_logit_bytes) = (12, 16);
    assert_eq!(Pricer::new(&problem, 0, whole()).head().logits, Bytes(S * 32_000 * 12));
    let shard = Shard { tp: 4, ..whole() };
    assert_eq!(Pricer::new(&problem, 0, shard).head().logits, Bytes(S * 8064 * 16));
    // What the allocator keeps beside them.
    problem.framework.held.cached_logit_bytes = 4;
    let end = Pricer::new(&problem, 0, shard).head();
    assert_eq!((end.logits, end.cached), (Bytes(S * 8064 * 16), Bytes(S * 8064 * 4)));
    // In four pieces, one of which is there at a time.
    problem.framework.held.loss_pieces = 4;
    assert_eq!(Pricer::new(&problem, 0, shard).head().logits, Bytes(S / 4 * 8064 * 16));
}

/// A GPT of 512 tokens of 1,024 channels whose MLPs are 8 experts of 1,024 channels, 2 a token.
fn experts() -> Problem {
    let mut problem = gpt_problem(1024, 512);
    problem.model.moe = Some(testing::moe(8, 2, 1024));
    problem
}

/// A layer of theirs over so many ranks.
fn expert_layer(problem: &Problem, ep: u64) -> LayerCost {
    let kind = LayerKind { moe: true, windowed: false };
    block::price(&Pricer::new(problem, 0, Shard { dp: ep, ep, ..whole() }), kind).cost
}

#[test]
fn an_activation_in_separate_operators_is_kept_before_and_after_its_weights() {
    // Weighted before the second product, 1,024 visits of 1,024 channels in 2 bytes on each of 8 ranks: one result more than without
    // the weights, of which none is kept once in one kernel.
    let mut problem = experts();
    problem.framework.held.weighted_result_bytes = 0;
    let fused = expert_layer(&problem, 8).kept;
    problem.framework.fused.activation = false;
    assert_eq!(expert_layer(&problem, 8).kept - fused, Bytes(2 * 1024 * 1024));
}

#[test]
fn tokens_that_travel_once_are_kept_once_a_rank_with_recompute_of_single_operators() {
    // Sent once to each rank that holds some of a token's experts, of 8 ranks 8 (1 - (7/8)^2) = 1.875 for its 2, a token is there
    // once, and comes back as one sum: 512 of 1,024 channels in 2 bytes.
    let mut problem = experts();
    problem.framework.selective = Selective::Operators;
    problem.framework.expert_dispatch = ExpertDispatch::OnceANode;
    let [once, alone] = [8, 1].map(|ep| expert_layer(&problem, ep).kept_selective);
    close((once - alone).0 as f64, (1.0 + 1.875) * (512.0 * 1024.0 * 2.0), 1e-6);
}

#[test]
fn what_a_router_s_loss_holds_of_a_recomputed_layer_stays_to_its_next_forward_pass() {
    // Up to its router a layer keeps of each of 512 tokens, in 2 bytes: two norms' inputs and outputs, queries, keys, values and the
    // result of attention, 8 h in all, and attention's 4 bytes a head. As the backward pass ends four layers have left that, and
    // the inputs that checkpoints kept, 4 x 2 h, are gone; as it begins it is the other way round.
    let mut problem = experts();
    problem.framework.held.loss_pieces = 1 << 20;
    let (tokens, h, heads) = (512, 1024, u64::from(problem.model.heads));
    let up_to_router = tokens * (8 * 2 * h + 4 * heads);
    assert_eq!(expert_layer(&problem, 8).held_balancing, Bytes::ZERO);
    let activations = |problem: &Problem, recompute| {
        let stage = Stage { chip: 0, layers: 4, recompute, offload: 0 };
        let plan = Plan { dp: 8, ep: 8, ..testing::plan(vec![stage]) };
        estimate(problem, &plan).unwrap().stages[0].memory.activations
    };
    let full = Recompute::Uniform { layers: 1 };
    let (before, kept) = (activations(&problem, full), activations(&problem, Recompute::None));
    problem.framework.held.held_balancing = true;
    assert_eq!(expert_layer(&problem, 8).held_balancing, Bytes(up_to_router));
    assert_eq!(activations(&problem, full), Bytes(4 * up_to_router));
    assert!(before < Bytes(4 * up_to_router));
    assert_eq!(activations(&problem, Recompute::None), kept);
}
