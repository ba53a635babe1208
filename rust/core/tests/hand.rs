//! Sums of the estimate worked by hand: activations, parameters, experts and FLOPs, from the papers' formulas.

mod sums;

use autopar_core::estimate::memory::{self, Holdings};
use autopar_core::estimate::shard::{LayerCost, Shard};
use autopar_core::estimate::{estimate, MemoryItems, StageEstimate};
use autopar_core::plan::{Plan, Recompute, Stage};
use autopar_core::spec::model::{Activation, Model, Norm, Position};
use autopar_core::spec::workload::Attention;
use autopar_core::testing::{self, whole};
use autopar_core::units::Bytes;
use sums::{close, gpt_problem, layer};

// ---- Activations: Korthikanti et al. 2022, arXiv:2205.05198, section 4 ------------------------------------------------

/// s = 1024, b = 2, h = 2048, a = 16 heads, with dropout and stored scores, as the paper has them.
fn korthikanti(tp: u64, sp: bool) -> (LayerCost, f64, f64) {
    let mut problem = gpt_problem(2048, 1024);
    problem.workload.attention = Attention::Unfused;
    problem.workload.dropout = true;
    let (s, b, h, a) = (1024.0, 2.0, 2048.0, 16.0);
    (layer(&problem, Shard { tp, sp, mbs: 2, ..whole() }), s * b * h, a * s * s * b)
}

#[test]
fn a_gpt_layer_keeps_34_sbh_and_5_as2b_bytes() {
    // Attention 11 sbh + 5 as^2b, MLP 19 sbh, two norms 4 sbh: 34 * 4,194,304 + 5 * 33,554,432 = 310,378,496.
    let (cost, sbh, as2b) = korthikanti(1, false);
    assert_eq!(cost.kept, Bytes((34.0 * sbh + 5.0 * as2b) as u64));
    assert_eq!(cost.kept, Bytes(310_378_496));
}

#[test]
fn tensor_parallel_divides_all_but_10_sbh() {
    // Section 4.2.1: sbh (10 + 24/t + 5as/(ht)), t = 4.
    let (cost, sbh, as2b) = korthikanti(4, false);
    assert_eq!(cost.kept, Bytes((sbh * (10.0 + 24.0 / 4.0) + 5.0 * as2b / 4.0) as u64));
}

#[test]
fn sequence_parallel_divides_everything() {
    // Section 4.2.2: sbh/t (34 + 5as/h), t = 4.
    let (cost, sbh, as2b) = korthikanti(4, true);
    assert_eq!(cost.kept, Bytes(((34.0 * sbh + 5.0 * as2b) / 4.0) as u64));
}

#[test]
fn selective_recompute_drops_the_scores_and_full_recompute_all_but_the_input() {
    // Section 5: 34 sbh / t without the scores; section 4: 2 sbh of input where a whole layer is recomputed.
    let (cost, sbh, _) = korthikanti(4, true);
    assert_eq!(cost.kept_selective, Bytes((34.0 * sbh / 4.0) as u64));
    assert_eq!(cost.kept_input, Bytes((2.0 * sbh / 4.0) as u64));
}

#[test]
fn fused_attention_keeps_one_32_bit_number_a_query_in_place_of_the_scores() {
    // 32 sbh (no dropout masks) and 4 a s b of log-sum-exp: 32 * 2,097,152 + 4 * 16 * 1024 = 67,174,400.
    let problem = gpt_problem(2048, 1024);
    assert_eq!(layer(&problem, whole()).kept, Bytes(67_174_400));
}

// ---- Parameters and their bytes --------------------------------------------------------------------------------------

#[test]
fn a_gpt_layer_has_12_h2_and_13_h_parameters() {
    // Products 4h^2 + 8h^2; biases 3h + h + 4h + h, two norms 4h.
    let h = 2048;
    let problem = gpt_problem(h, 1024);
    assert_eq!(problem.model.layer_parameters(0), 12 * h * h + 13 * h);
    assert_eq!(layer(&problem, whole()).dense_parameters, 12 * h * h + 13 * h);
}

#[test]
fn tensor_parallel_cuts_the_products_and_leaves_the_norms() {
    // Without biases: 12h^2 / 4 and two norms of 2h on each of four ranks.
    let h = 2048;
    let mut problem = gpt_problem(h, 1024);
    let m = &mut problem.model;
    (m.qkv_bias, m.o_bias, m.mlp_bias) = (false, false, false);
    let cost = layer(&problem, Shard { tp: 4, ..whole() });
    assert_eq!(cost.dense_parameters, 3 * h * h + 4 * h);
}

fn llama2_70b() -> Model {
    let mut m = testing::gpt(80, 8192);
    (m.ffn_hidden, m.kv_heads, m.vocab) = (28_672, 8, 32_000);
    (m.norm, m.norm_bias, m.activation) = (Norm::Rmsnorm, false, Activation::Swiglu);
    (m.position, m.position_rows, m.tied_embeddings) = (Position::Rope, 0, false);
    (m.qkv_bias, m.o_bias, m.mlp_bias) = (false, false, false);
    m
}

#[test]
fn llama2_70b_has_68_976_648_192_parameters() {
    // A layer: 2 * 8192^2 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192 = 855,654,400; 80 of them, two tables of
    // 32000 * 8192 and a last norm.
    let m = llama2_70b();
    assert_eq!(m.layer_parameters(0), 855_654_400);
    assert_eq!(m.parameters(), 80 * 855_654_400 + 2 * 32_000 * 8192 + 8192);
    assert_eq!(m.parameters(), 68_976_648_192);
}

#[test]
fn mixtral_8x7b_has_46_702_792_704_parameters_of_which_a_token_meets_12_879_925_248() {
    // A layer: attention 2 * 4096^2 + 2 * 4096 * 1024, eight experts of 3 * 4096 * 14336, router 8 * 4096, norms.
    let mut m = llama2_70b();
    (m.layers, m.hidden, m.heads, m.kv_heads, m.ffn_hidden) = (32, 4096, 32, 8, 14_336);
    m.moe = Some(testing::moe(8, 2, 14_336));
    let expert = 3 * 4096 * 14_336;
    let layer = 41_943_040 + 8 * expert + 8 * 4096 + 2 * 4096;
    assert_eq!(m.parameters(), 32 * layer + 2 * 32_000 * 4096 + 4096);
    assert_eq!(m.parameters(), 46_702_792_704);
    assert_eq!(m.active_parameters(), 46_702_792_704 - 32 * 6 * expert);
    assert_eq!(m.active_parameters(), 12_879_925_248);
}

/// Bytes of 7.5e9 parameters on one of 64 replicas.
fn zero(stage: u8, gradient: u64) -> MemoryItems {
    let mut framework = testing::framework();
    framework.bytes.gradient = gradient;
    let shard_group = if stage == 0 { 1 } else { 64 };
    let shard = Shard { dp: 64, zero: stage, shard_group, ..whole() };
    let held = Holdings { dense_parameters: 7_500_000_000, ..Holdings::default() };
    memory::items(&held, &shard, false, &framework)
}

fn model_states(items: MemoryItems) -> f64 {
    (items.parameters + items.gradients + items.optimizer).0 as f64 / 1e9
}

#[test]
fn zero_stages_hold_what_their_paper_says() {
    // Rajbhandari et al. 2020, figure 1: 7.5e9 parameters, K = 12, 64 ranks: 120, 31.4, 16.6 and 1.9 GB.
    for (stage, gigabytes) in [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)] {
        close(model_states(zero(stage, 2)), gigabytes, 0.02);
    }
}

#[test]
fn gradients_in_32_bits_cost_two_bytes_a_parameter_more() {
    // 2 + 4 + 12 = 18 bytes without sharding; 2 + 4 + 12/64 with the optimizer alone; 2 + 16/64; 18/64.
    for (stage, bytes) in [(0, 18.0), (1, 6.1875), (2, 2.25), (3, 0.28125)] {
        close(model_states(zero(stage, 4)), 7.5 * bytes, 1e-6);
    }
}

// ---- FLOPs -----------------------------------------------------------------------------------------------------------

#[test]
fn gpt3_175b_takes_the_flops_of_korthikanti_s_formula() {
    // Appendix A: 72 B s l h^2 (1 + s/(6h) + V/(12 l h)) of model FLOPs for B = 1536, s = 2048, l = 96, h = 12288,
    // V = 51200. Ours also counts biases and norms: 13 in 12 h parameters, 0.009 %.
    let model = testing::gpt(96, 12_288);
    let (b, s, l, h, v) = (1536.0, 2048.0, 96.0, 12_288.0, 51_200.0);
    let got = model.model_flops(1536 * 2048, 2048);
    let formula = 72.0 * b * s * l * h * h * (1.0 + s / (6.0 * h) + v / (12.0 * l * h));
    close(got, formula, 1.0e-4);
    // Six FLOPs a parameter and token is less by what attention computes: s / (6 h) = 2.8 % of the layers.
    let six_n_d = 6.0 * (model.parameters() - 2048 * 12_288) as f64 * b * s;
    close(got / six_n_d, 1.0 + s / (6.0 * h), 2e-3);
}

#[test]
fn the_head_may_have_a_stage_for_itself() {
    // Both stages together pass a micro-batch in the time of one that holds everything, and hold its parameters.
    let mut problem = gpt_problem(1024, 512);
    problem.model.tied_embeddings = false;
    problem.framework.bucket_bytes = 0;
    let stage = |layers| Stage { chip: 0, layers, recompute: Recompute::None, offload: 0 };
    let plan = Plan { dp: 8, ..testing::plan(vec![stage(4)]) };
    let whole = estimate(&problem, &plan).expect("legal");
    let parts = estimate(
        &problem,
        &Plan { dp: 4, pp: 2, stages: vec![stage(4), stage(0)], ..plan.clone() },
    )
    .expect("legal");
    let [body, head] = &parts.stages[..] else { panic!("two stages") };
    assert_eq!(body.forward_ps + head.forward_ps, whole.stages[0].forward_ps);
    let parameters = |e: &StageEstimate| e.memory.parameters;
    assert_eq!(parameters(body) + parameters(head), parameters(&whole.stages[0]));
    assert_eq!(parameters(head), Bytes(2 * (51_200 * 1024 + 2 * 1024)));
    // Not between the ends, nor where chunks take turns.
    let between = vec![stage(2), stage(0), stage(1), stage(1)];
    assert!(estimate(&problem, &Plan { dp: 2, pp: 4, stages: between, ..plan.clone() }).is_err());
    assert!(estimate(&problem, &Plan { stages: vec![stage(0)], ..plan }).is_err());
}
