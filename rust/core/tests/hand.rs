//! Sums of the estimate worked by hand, from the papers' formulas and from first principles.

use autopar_core::estimate::block;
use autopar_core::estimate::collective::Fabric;
use autopar_core::estimate::compute::{Device, Gemm};
use autopar_core::estimate::layer::Pricer;
use autopar_core::estimate::memory::{self, Holdings};
use autopar_core::estimate::pipeline::{makespan, Chunk, Sends, StageClock};
use autopar_core::estimate::shard::{parameter_sent, LayerCost, Shard, Split};
use autopar_core::estimate::{estimate, sends, Estimate, MemoryItems};
use autopar_core::plan::{Plan, Recompute, Stage};
use autopar_core::spec::cluster::Group;
use autopar_core::spec::framework::{
    EightBitGathers, ExpertDispatch, Fp8Scaling, Framework, Projections, ShardCopies, Shards,
    TensorOverlap,
};
use autopar_core::spec::model::{Activation, LayerKind, Model, Moe, Norm, Position};
use autopar_core::spec::problem::{Problem, Schedule};
use autopar_core::spec::workload::{Attention, Precision};
use autopar_core::testing;
use autopar_core::units::{Bytes, Time};

const DENSE: LayerKind = LayerKind { moe: false, windowed: false };

fn close(got: f64, expected: f64, by: f64) {
    assert!((got / expected - 1.0).abs() < by, "{got} against {expected}");
}

/// Eight devices in one node, a GPT of 4 layers.
fn gpt_problem(hidden: u64, sequence: u64) -> Problem {
    testing::problem(testing::gpt(4, hidden), testing::cluster(testing::a100(), 8), 8, sequence)
}

/// No parallelism, one sequence a micro-batch.
fn whole() -> Shard {
    Shard {
        dp: 1,
        tp: 1,
        sp: false,
        cp: 1,
        ep: 1,
        etp: 1,
        mbs: 1,
        zero: 0,
        shard_group: 1,
        pipelined: false,
    }
}

fn layer(problem: &Problem, shard: Shard) -> LayerCost {
    block::price(&Pricer::new(problem, 0, shard), DENSE).cost
}

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
    m.moe = Some(Moe {
        experts: 8,
        topk: 2,
        expert_ffn: 14_336,
        shared_ffn: 0,
        first_dense: 0,
        every: 1,
        router_bias: false,
        expert_bias: false,
        shared_gate: false,
        node_limit: 0,
    });
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

// ---- Time ------------------------------------------------------------------------------------------------------------

#[test]
fn two_stages_and_two_micro_batches_take_26() {
    // Stage 0: F 2, B 3; stage 1: F 4, B 5; each send 1 and blocking.
    //   stage 0: F0 0-2, send -3, F1 3-5, send -6,                     B0 13-16,          B1 23-26
    //   stage 1:             F0 3-7, B0 7-12, send -13, F1 13-17, B1 17-22, send -23
    let stage = |f: u64, b: u64| StageClock {
        chunks: vec![Chunk { forward: Time(f), input_gradient: Time(b), weight_gradient: Time(0) }],
        send_forward: Time(1),
        send_backward: Time(1),
        tail: Time(0),
    };
    let stages = [stage(2, 3), stage(4, 5)];
    assert_eq!(makespan(Schedule::OneFOneB, Sends::Blocking, &stages, 2), Time(26));
    // When nobody waits for a send, stage 1 has F0 3-7, B0 7-12, F1 12-16, B1 16-21, and stage 0 ends with B1 22-25.
    assert_eq!(makespan(Schedule::OneFOneB, Sends::Overlapped, &stages, 2), Time(25));
}

/// A plan of one stage with `dp` replicas.
fn replicas(problem: &Problem, dp: u64) -> (Plan, Estimate) {
    let stage =
        Stage { chip: 0, layers: problem.model.layers, recompute: Recompute::None, offload: 0 };
    let plan = Plan {
        dp,
        tp: 1,
        sp: false,
        cp: 1,
        ep: 1,
        etp: 1,
        pp: 1,
        vpp: 1,
        mbs: 1,
        zero: 0,
        shard_group: 1,
        schedule: Schedule::OneFOneB,
        optimizer_offload: false,
        stages: vec![stage],
    };
    let estimate = estimate(problem, &plan).expect("a legal plan");
    (plan, estimate)
}

#[test]
fn without_a_pipeline_a_step_is_its_passes_then_gradients_then_update() {
    let problem = gpt_problem(1024, 512);
    let (plan, e) = replicas(&problem, 8);
    let stage = &e.stages[0];
    let m = plan.micro_batches(&problem);
    assert_eq!(m, 1);
    let passes = (stage.forward_ps + stage.backward_ps) * m;
    assert_eq!(e.step_ps, passes + e.time.data_ps + e.time.optimizer_ps);
}

#[test]
fn an_all_reduce_of_gradients_that_nothing_hides_is_charged_in_full() {
    // A layer 12h^2 + 13h, embedding (51200 + 2048 rows) h, last norm 2h; 4 bytes each; 8 ranks of one node at 235 GB/s:
    // 2 * 7/8 of the bytes, 8.4 us to start and 14 steps of 3.4 us.
    let h = 1024;
    let mut problem = gpt_problem(h, 512);
    problem.framework.overlap.gradient_reduce = false;
    let (_, e) = replicas(&problem, 8);
    let parameters = 4 * (12 * h * h + 13 * h) + (51_200 + 2048) * h + 2 * h;
    let seconds = 2.0 * 7.0 / 8.0 * parameters as f64 * 4.0 / 235e9 + 56e-6;
    close(e.time.data_ps.seconds(), seconds, 1e-6);
}

#[test]
fn behind_the_backward_pass_only_the_longer_rest_or_last_layer_of_it_shows() {
    let mut problem = gpt_problem(1024, 512);
    problem.framework.overlap.gradient_reduce = false;
    let all = replicas(&problem, 8).1.time.data_ps.seconds();
    problem.framework.overlap.gradient_reduce = true;
    let (_, e) = replicas(&problem, 8);
    let backward = e.stages[0].backward_ps.seconds();
    close(e.time.data_ps.seconds(), (all - backward).max(all / 4.0), 1e-6);
}

#[test]
fn a_framework_whose_sends_are_no_part_of_a_stage_s_order_runs_them_behind_computation() {
    // Two equal stages and no ends to speak of: a stage that waits for its own sends pays one forward and one backward a
    // micro-batch; behind computation only the first way down and the last way back show, one send each.
    let mut problem = gpt_problem(1024, 512);
    let stage = Stage { chip: 0, layers: 2, recompute: Recompute::None, offload: 0 };
    let plan = Plan { dp: 4, pp: 2, stages: vec![stage; 2], ..replicas(&problem, 8).0 };
    for schedule in [Schedule::OneFOneB, Schedule::GPipe] {
        problem.framework.overlap.every_send = false;
        assert_eq!(sends(&problem, schedule), Sends::Blocking);
        let waiting = estimate(&problem, &Plan { schedule, ..plan.clone() }).expect("legal");
        problem.framework.overlap.every_send = true;
        assert_eq!(sends(&problem, schedule), Sends::Overlapped);
        let behind = estimate(&problem, &Plan { schedule, ..plan.clone() }).expect("legal");
        assert!(waiting.time.pipeline_ps > Time::ZERO);
        assert_eq!(behind.time.pipeline_ps, Time::ZERO);
        assert!(behind.step_ps < waiting.step_ps);
    }
    let clock = |send| StageClock {
        chunks: vec![Chunk {
            forward: Time(100),
            input_gradient: Time(200),
            weight_gradient: Time(0),
        }],
        send_forward: Time(send),
        send_backward: Time(send),
        tail: Time::ZERO,
    };
    // Four micro-batches under GPipe: 4 x 300 on each stage, 300 of the other before and after, and two sends of 10.
    let step = |how| makespan(Schedule::GPipe, how, &[clock(10), clock(10)], 4);
    assert_eq!(step(Sends::Overlapped), Time(1520));
}

#[test]
fn owners_of_whole_tensors_are_served_one_after_another() {
    // Each further owner costs a reduction and a broadcast once round the ring: 8.4 us and 7 steps of 3.4 us in a node of 8.
    // A layer has 16 tensors: four products and their biases but two of the MLP, which are as many, and two norms of two.
    let h = 1024;
    let mut problem = gpt_problem(h, 512);
    problem.framework.overlap.gradient_reduce = false;
    problem.framework.overlap.parameter_gather = false;
    let step = |problem: &Problem, dp| {
        let plan = Plan { zero: 1, shard_group: dp, ..replicas(problem, dp).0 };
        estimate(problem, &plan).expect("a legal plan").time.data_ps.seconds()
    };
    let slices = step(&problem, 8);
    problem.framework.shards = Shards::Tensors;
    close(step(&problem, 8) - slices, 2.0 * 7.0 * (8.4 + 7.0 * 3.4) * 1e-6, 1e-4);
    // Of 128 ranks 67 own one of the 4 x 16 and embedding, head and last norm, here as far as parameters are: the one stage has
    // 4 (12 h^2 + 13 h) + 53,248 h + 2 h of 4 (12 h^2 + 13 h) + 2 x 51,200 h. Sixteen nodes: 112 steps inside and 16 between.
    problem.cluster.devices = 128;
    problem.workload.global_batch_size = 128;
    let layers = 4 * (12 * h * h + 13 * h);
    let share = (layers + 53_250 * h) as f64 / (layers + 102_400 * h) as f64;
    let round = (8.4 + 112.0 * 3.4 + 16.0 * 14.0) * 1e-6;
    let tensors = step(&problem, 128);
    problem.framework.shards = Shards::Slices;
    close(tensors - step(&problem, 128), 2.0 * 67.0 * share * round, 1e-4);
}

#[test]
fn a_framework_of_one_stream_hides_gradients_only_without_tensor_and_pipeline_parallel() {
    let mut problem = gpt_problem(1024, 512);
    let step = |problem: &Problem, tp: u64| {
        let plan = Plan { tp, dp: 8 / tp, ..replicas(problem, 8).0 };
        estimate(problem, &plan).expect("a legal plan").time.data_ps
    };
    let hidden = [1, 2].map(|tp| step(&problem, tp));
    problem.framework.overlap.replicas_alone = true;
    let alone = [1, 2].map(|tp| step(&problem, tp));
    problem.framework.overlap.gradient_reduce = false;
    let shown = [1, 2].map(|tp| step(&problem, tp));
    assert_eq!(alone, [hidden[0], shown[1]]);
    assert!(hidden[1] < shown[1]);
}

#[test]
fn gradients_that_are_fused_start_once_a_piece_and_show_the_last() {
    // 32-bit gradients of 105 million parameters, in pieces of 64 MiB: 421 MB / 67 MB, so 7 starts of 56 us in place of 1.
    let h = 1024;
    let mut problem = gpt_problem(h, 512);
    problem.framework.overlap.gradient_reduce = false;
    let parameters = 4 * (12 * h * h + 13 * h) + (51_200 + 2048) * h + 2 * h;
    let pieces = (parameters * 4).div_ceil(64 << 20);
    assert_eq!(pieces, 7);
    let one = replicas(&problem, 8).1.time.data_ps.seconds();
    problem.framework.fused_reduce_bytes = 64 << 20;
    let all = replicas(&problem, 8).1.time.data_ps.seconds();
    close(all, one + 6.0 * 56e-6, 1e-6);
    problem.framework.overlap.gradient_reduce = true;
    let (_, e) = replicas(&problem, 8);
    let backward = e.stages[0].backward_ps.seconds();
    close(e.time.data_ps.seconds(), (all - backward).max(all / 7.0), 1e-6);
}

#[test]
fn one_replica_sums_nothing() {
    let mut problem = gpt_problem(1024, 512);
    problem.cluster.devices = 1;
    problem.framework.overlap.gradient_reduce = false;
    assert_eq!(replicas(&problem, 1).1.time.data_ps, Time::ZERO);
}

#[test]
fn tensor_parallel_sums_twice_forward_and_twice_backward_in_a_layer() {
    // Shoeybi et al. 2019: one all-reduce of 2 s b h bytes after attention and one after the MLP, and the same backward.
    let mut problem = gpt_problem(1024, 512);
    problem.framework.overlap.tensor = TensorOverlap::None;
    let cost = layer(&problem, Shard { tp: 8, ..whole() });
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let one = fabric.all_reduce(2.0 * 512.0 * 1024.0, Group { size: 8, stride: 1 });
    close(cost.forward.tensor.seconds(), 2.0 * one, 1e-6);
    let backward = cost.input_gradient.tensor + cost.weight_gradient.tensor;
    close(backward.seconds(), 2.0 * one, 1e-6);
}

#[test]
fn sums_in_32_bits_move_twice_the_bytes_of_a_16_bit_activation() {
    // The same four sums with 4 s b h bytes; gathers, which sum nothing, stay: with sequence parallel 2 of 4 forward.
    let mut problem = gpt_problem(1024, 512);
    problem.framework.overlap.tensor = TensorOverlap::None;
    problem.framework.sums_in_fp32 = true;
    let bytes = 512.0 * 1024.0;
    let cluster = problem.cluster.clone();
    let fabric = Fabric::new(&cluster, &cluster.groups[0].chip);
    let group = Group { size: 8, stride: 1 };
    let cost = layer(&problem, Shard { tp: 8, ..whole() });
    let sum = fabric.all_reduce(4.0 * bytes, group);
    close(cost.forward.tensor.seconds(), 2.0 * sum, 1e-6);
    let split = layer(&problem, Shard { tp: 8, sp: true, ..whole() });
    let moved = fabric.all_gather(2.0 * bytes, group) + fabric.all_gather(4.0 * bytes, group);
    close(split.forward.tensor.seconds(), 2.0 * moved, 1e-6);
}

#[test]
fn a_sliced_input_takes_a_rank_s_share_and_one_gather_to_recompute() {
    // Without sequence parallel a recomputed layer keeps s b h 2 bytes; cut over 8 ranks an eighth of them.
    let mut problem = gpt_problem(1024, 512);
    let shard = Shard { tp: 8, ..whole() };
    let kept = layer(&problem, shard);
    problem.framework.slices_kept_inputs = true;
    let cut = layer(&problem, shard);
    let bytes = 512 * 1024 * 2;
    assert_eq!((kept.kept_input, cut.kept_input), (Bytes(bytes), Bytes(bytes / 8)));
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let gather = fabric.all_gather(bytes as f64, Group { size: 8, stride: 1 });
    let more = cut.recompute_full.tensor.seconds() - kept.recompute_full.tensor.seconds();
    close(more, gather, 1e-6);
    // Sequence parallel has cut it already.
    let split = Shard { sp: true, ..shard };
    assert_eq!(layer(&problem, split).kept_input, Bytes(bytes / 8));
    problem.framework.slices_kept_inputs = false;
    assert_eq!(layer(&problem, split).recompute_full, layer(&problem, split).forward);
}

#[test]
fn parameters_below_a_threshold_stay_whole_under_zero() {
    // Biases and norms of a GPT of width 1,024 have at most 4,096 numbers of 2 bytes: in each of 4 layers two norms of two,
    // three biases of 1,024 before and one after attention, one of 4,096 and one of 1,024 in the MLP; and the last norm.
    let mut problem = gpt_problem(1024, 512);
    let plan = Plan { zero: 1, shard_group: 8, ..replicas(&problem, 8).0 };
    let optimizer = |problem: &Problem| {
        estimate(problem, &plan).expect("a legal plan").stages[0].memory.optimizer.0
    };
    let all = problem.model.parameters();
    let small = 4 * (4 * 1024 + 4 * 1024 + 4096 + 1024) + 2 * 1024;
    assert_eq!(optimizer(&problem), all.div_ceil(8) * 12);
    problem.framework.whole_below_bytes = 8192;
    assert_eq!(optimizer(&problem), ((all - small).div_ceil(8) + small) * 12);
    // Below 2,048 bytes there is none; beyond the embedding of 51,200 rows all are.
    problem.framework.whole_below_bytes = 2047;
    assert_eq!(optimizer(&problem), all.div_ceil(8) * 12);
    problem.framework.whole_below_bytes = 51200 * 1024 * 2;
    assert_eq!(optimizer(&problem), all * 12);
}

#[test]
fn kept_results_of_communication_are_not_brought_again() {
    // A layer of a GPT keeps its input of s b h 2 bytes and the sum after attention, as many; nothing is summed again.
    let mut problem = gpt_problem(1024, 512);
    let bytes = 512 * 1024 * 2;
    let shard = Shard { tp: 8, ..whole() };
    let repeated = layer(&problem, shard);
    problem.framework.keeps_tensor_results = true;
    let kept = layer(&problem, shard);
    assert_eq!((repeated.kept_input, kept.kept_input), (Bytes(bytes), Bytes(2 * bytes)));
    assert_eq!(repeated.recompute_full.tensor, repeated.forward.tensor);
    assert_eq!(kept.recompute_full.tensor, Time::ZERO);
    assert_eq!(kept.recompute_full.compute, repeated.recompute_full.compute);
    // With sequence parallel: an eighth of the input and of that sum, and both inputs that were gathered.
    let split = layer(&problem, Shard { sp: true, ..shard });
    assert_eq!(split.kept_input, Bytes(2 * bytes / 8 + 2 * bytes));
    assert_eq!(split.recompute_full.tensor, Time::ZERO);
    // Alone a rank communicates nothing.
    assert_eq!(layer(&problem, whole()).kept_input, Bytes(bytes));
    // A sliced input is gathered all the same.
    problem.framework.slices_kept_inputs = true;
    let sliced = layer(&problem, shard);
    assert_eq!(sliced.kept_input, Bytes(bytes / 8 + bytes));
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let gather = fabric.all_gather(bytes as f64, Group { size: 8, stride: 1 });
    close(sliced.recompute_full.tensor.seconds(), gather, 1e-6);
}

#[test]
fn a_whole_vocabulary_needs_no_sums_and_eight_times_the_parameters() {
    // 51,200 rows of 1,024 channels on each of 8 ranks instead of 6,400. The head keeps one gather forward with
    // sequence parallel, the embedding one backward; nothing is summed.
    let mut problem = gpt_problem(1024, 512);
    let shard = Shard { tp: 8, sp: true, ..whole() };
    let cut = Pricer::new(&problem, 0, shard).embedding().cost;
    problem.framework.whole_vocabulary = true;
    let pricer = Pricer::new(&problem, 0, shard);
    let (embedding, head) = (pricer.embedding().cost, pricer.head().cost);
    let rows = 51_200 - 51_200 / 8;
    assert_eq!(embedding.dense_parameters - cut.dense_parameters, rows * 1024);
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let gather = fabric.all_gather(2.0 * 512.0 * 1024.0, Group { size: 8, stride: 1 });
    assert_eq!((embedding.forward.tensor, head.input_gradient.tensor), (Time::ZERO, Time::ZERO));
    close(embedding.input_gradient.tensor.seconds(), gather, 1e-6);
    close(head.forward.tensor.seconds(), gather, 1e-6);
}

#[test]
fn a_loss_in_16_bits_reads_and_writes_logits_of_16() {
    // 512 tokens by 51,200 rows: forward 4 bytes a logit for 38 and one kernel for eight, backward 4 for 14 and one for three.
    // Cut over 8 ranks: 16 bytes in five kernels.
    let mut problem = gpt_problem(1024, 512);
    let chip = problem.cluster.groups[0].chip.clone();
    let device = Device::new(&chip, Precision::Bf16, &[], 8);
    problem.framework.launch_us = 0.0;
    for (tp, bytes) in [(1, 4.0), (8, 16.0)] {
        let shard = Shard { tp, ..whole() };
        let cost = |problem: &Problem| Pricer::new(problem, 0, shard).head().cost;
        problem.framework.loss_in_16_bits = false;
        let wide = cost(&problem);
        problem.framework.loss_in_16_bits = true;
        let narrow = cost(&problem);
        let spared = |pass: fn(&LayerCost) -> Split| {
            pass(&wide).compute.seconds() - pass(&narrow).compute.seconds()
        };
        let logits = 512.0 * 51_200.0 / tp as f64;
        close(spared(|c| c.forward), device.traffic((38.0 - bytes) * logits), 1e-6);
        close(spared(|c| c.input_gradient), device.traffic(10.0 * logits), 1e-6);
    }
}

#[test]
fn what_is_cast_before_it_is_gathered_travels_in_8_bits() {
    // With sequence parallel two of four collectives forward are gathers: s b h bytes instead of 2 s b h; sums stay.
    let mut problem = gpt_problem(1024, 512);
    problem.framework.overlap.tensor = TensorOverlap::None;
    problem.framework.eight_bit_gathers = EightBitGathers { activations: true, parameters: true };
    let bytes = 512.0 * 1024.0;
    let cluster = problem.cluster.clone();
    let fabric = Fabric::new(&cluster, &cluster.groups[0].chip);
    let group = Group { size: 8, stride: 1 };
    let shard = Shard { tp: 8, sp: true, ..whole() };
    let plain = 4.0 * fabric.all_gather(2.0 * bytes, group);
    close(layer(&problem, shard).forward.tensor.seconds(), plain, 1e-6);
    problem.workload.precision = Precision::Fp8;
    let cast = 2.0 * fabric.all_gather(bytes, group) + 2.0 * fabric.all_gather(2.0 * bytes, group);
    close(layer(&problem, shard).forward.tensor.seconds(), cast, 1e-6);
    // Parameters that ZeRO gathers: one byte, and two where products run in 16 bits.
    let sent = |precision| parameter_sent(&problem.framework, precision);
    assert_eq!((sent(Precision::Fp8), sent(Precision::Bf16)), (1, 2));
}

#[test]
fn rows_that_share_a_scale_are_cast_for_each_product_and_results_scaled_backward() {
    // On 8 ranks the projections are [512, 1024] x [1024, 384], [512, 128] x [128, 1024], [512, 1024] x [1024, 512] and
    // [512, 512] x [512, 1024]: in units of 1,024 elements, inputs 512, 64, 512 and 256, weights 384, 128, 512 and 512, outputs
    // 192, 512, 256 and 512: 1,344, 1,536 and 1,472. Bytes of the casts: one scale a tensor 4 x 1,344 forward and 4 x 1,472
    // backward; one a row 3 (1,344 + 1,536), 3 x 1,472 + 5 x 1,536 + 4 x 1,344, and 5 (1,472 + 1,344) + 4 x 1,536. Each of the
    // four products launches 2, 4 and 5 kernels for 1, 1 and 0.
    let mut problem = gpt_problem(1024, 512);
    problem.workload.precision = Precision::Fp8;
    problem.framework.launch_us = 0.0;
    let shard = Shard { tp: 8, ..whole() };
    let tensor = layer(&problem, shard);
    problem.framework.fp8_scaling = Fp8Scaling::Row;
    let row = layer(&problem, shard);
    let device = Device::new(&problem.cluster.groups[0].chip, Precision::Fp8, &[], 8);
    let more = |units: f64, kernels: f64| {
        device.traffic(units * 1024.0) + 4.0 * kernels * (device.stream(1.0) - device.traffic(1.0))
    };
    let compute = |pass: Split| pass.compute.seconds();
    let gained = |pass: fn(&LayerCost) -> Split| compute(pass(&row)) - compute(pass(&tensor));
    close(gained(|c| c.forward), more(8_640.0 - 5_376.0, 1.0), 1e-6);
    close(gained(|c| c.input_gradient), more(17_472.0 - 5_888.0, 3.0), 1e-6);
    close(gained(|c| c.weight_gradient), more(20_224.0, 5.0), 1e-6);
}

// ---- What a framework chooses ----------------------------------------------------------------------------------------

#[test]
fn a_recompute_that_stops_early_leaves_out_the_last_product_its_sum_and_the_residual() {
    // 512 rows of 1,024 channels over 8 ranks: the last product is [512, 512] x [512, 1024]; the residual addition reads two
    // such tensors and writes one, 3 x 512 x 1024 x 2 bytes.
    let mut problem = gpt_problem(1024, 512);
    let shard = Shard { tp: 8, ..whole() };
    let whole = layer(&problem, shard).recompute_full;
    problem.framework.recompute_stops_early = true;
    let early = layer(&problem, shard).recompute_full;
    let chip = &problem.cluster.groups[0].chip;
    let device = Device::new(chip, Precision::Bf16, &[], 8);
    let left_out =
        device.linear(Gemm::new(512, 1024, 512)) + device.stream(3.0 * 512.0 * 1024.0 * 2.0);
    close(whole.compute.seconds() - early.compute.seconds(), left_out, 1e-6);
    let fabric = Fabric::new(&problem.cluster, chip);
    let sum = fabric.all_reduce(2.0 * 512.0 * 1024.0, Group { size: 8, stride: 1 });
    close(whole.tensor.seconds() - early.tensor.seconds(), sum, 1e-6);
    // Dropout after the product keeps a mask, which must be drawn again.
    problem.workload.dropout = true;
    let cost = layer(&problem, shard);
    assert_eq!(cost.recompute_full, cost.forward);
}

#[test]
fn projections_apart_sum_the_gradient_of_their_input_each_by_itself() {
    // Queries, keys and values: three sums backward for one; a plain MLP has one input projection.
    let mut problem = gpt_problem(1024, 512);
    problem.framework.overlap.tensor = TensorOverlap::None;
    let shard = Shard { tp: 8, ..whole() };
    let packed = layer(&problem, shard);
    problem.framework.projections = Projections::Apart;
    let apart = layer(&problem, shard);
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let sum = fabric.all_reduce(2.0 * 512.0 * 1024.0, Group { size: 8, stride: 1 });
    let more = apart.input_gradient.tensor.seconds() - packed.input_gradient.tensor.seconds();
    close(more, 2.0 * sum, 1e-6);
    assert_eq!(apart.forward.tensor, packed.forward.tensor);
    assert_eq!(apart.dense_parameters, packed.dense_parameters);
    // With a gate, and only gate and up apart: one sum more.
    problem.model.activation = Activation::Swiglu;
    let gated = layer(&problem, shard).input_gradient.tensor.seconds();
    close(gated, apart.input_gradient.tensor.seconds() + sum, 1e-6);
    problem.framework.projections = Projections::GateApart;
    let gate = layer(&problem, shard).input_gradient.tensor.seconds();
    close(gate, packed.input_gradient.tensor.seconds() + sum, 1e-6);
}

#[test]
fn weights_in_32_bits_are_cast_before_each_product_and_their_gradients_after() {
    // 12 h^2 weights in four products: 6 bytes each way at 2,039 GB/s x 0.87, and four kernels of 3 us.
    let mut problem = gpt_problem(2048, 1024);
    let kept = layer(&problem, whole());
    problem.framework.casts_weights = true;
    let cast = layer(&problem, whole());
    let seconds = 6.0 * 12.0 * 2048.0 * 2048.0 / (2039e9 * 0.87);
    let kernels = 4.0 * problem.cluster.groups[0].chip.host.kernel_us * 1e-6;
    for (with, without) in
        [(cast.forward, kept.forward), (cast.weight_gradient, kept.weight_gradient)]
    {
        let more = with.compute.seconds() - without.compute.seconds();
        close(more, seconds + kernels, 1e-4);
    }
}

#[test]
fn the_host_copies_each_rank_s_share_out_of_a_gathered_buffer() {
    // ZeRO-3 over 8 ranks in 12 pieces of 6 us a share: 576 us more forward; backward twice, for the gather and the scatter.
    let mut problem = gpt_problem(1024, 512);
    problem.framework.overlap.parameter_gather = false;
    problem.framework.overlap.gradient_reduce = false;
    problem.framework.gather_pieces = 12;
    let shard = Shard { dp: 8, zero: 3, shard_group: 8, ..whole() };
    let in_place = layer(&problem, shard);
    problem.framework.gather_copy_us = 6.0;
    let copied = layer(&problem, shard);
    let more = |a: Split, b: Split| a.shard.seconds() - b.shard.seconds();
    close(more(copied.forward, in_place.forward), 576e-6, 1e-6);
    close(more(copied.input_gradient, in_place.input_gradient), 1152e-6, 1e-6);
}

#[test]
fn copies_beside_fsdp_s_collectives_read_and_write_each_number_once() {
    // 2 bytes of a parameter out of the buffer forward, 4 moved; backward again, and gradients of 2 bytes into one of 4.
    let mut problem = gpt_problem(1024, 512);
    let shard = Shard { dp: 8, zero: 3, shard_group: 8, ..whole() };
    let plain = layer(&problem, shard);
    problem.framework.shard_copies = ShardCopies { gathered: true, reduced: true };
    let copied = layer(&problem, shard);
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let once = plain.dense_parameters as f64 / memory;
    let more = |a: Time, b: Time| a.seconds() - b.seconds();
    close(more(copied.forward.shard, plain.forward.shard), 4.0 * once, 1e-4);
    close(more(copied.input_gradient.shard, plain.input_gradient.shard), 10.0 * once, 1e-4);
    // One rank shards nothing and copies nothing, and what is computed again is not gathered again.
    let alone = Shard { dp: 1, shard_group: 1, ..shard };
    assert_eq!(layer(&problem, alone).forward.shard, Time::ZERO);
    assert_eq!(copied.recompute_full, plain.recompute_full);
}

// ---- Experts ---------------------------------------------------------------------------------------------------------

/// A GPT whose MLPs are 8 experts of 1,024 channels, 2 a token, on 8 devices that hold one each.
fn experts() -> Problem {
    let mut problem = gpt_problem(1024, 512);
    problem.model.moe = Some(Moe {
        experts: 8,
        topk: 2,
        node_limit: 0,
        expert_ffn: 1024,
        shared_ffn: 0,
        first_dense: 0,
        every: 1,
        router_bias: false,
        expert_bias: false,
        shared_gate: false,
    });
    problem
}

fn expert_layer(problem: &Problem, ep: u64) -> LayerCost {
    let kind = LayerKind { moe: true, windowed: false };
    block::price(&Pricer::new(problem, 0, Shard { dp: ep, ep, ..whole() }), kind).cost
}

#[test]
fn unfused_permutation_takes_three_times_as_long_as_fused() {
    // 512 tokens visit 2 experts: 1 Mi elements of 2 bytes, permuted and unpermuted forward in 4 passes, at 0.2 of the
    // streaming rate instead of 0.6: 4 * 2 MiB * (5 - 5/3) / rate more.
    let mut problem = experts();
    let fused = expert_layer(&problem, 8).forward.compute.seconds();
    problem.framework.fused.permutation = false;
    let apart = expert_layer(&problem, 8).forward.compute.seconds();
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let more = 4.0 * 2.0 * 1024.0 * 1024.0 * (5.0 - 5.0 / 3.0) / memory;
    close(apart - fused, more, 1e-4);
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
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let kernel = chip.host.kernel_us * 1e-6;
    let more = |a: Time, b: Time| a.seconds() - b.seconds();
    let forward = more(biased.forward.compute, plain.forward.compute);
    close(forward, 28.0 * elements / memory + kernel, 1e-4);
    let backward = more(biased.input_gradient.compute, plain.input_gradient.compute);
    close(backward, 40.0 * elements / memory + kernel, 1e-4);
}

#[test]
fn a_grouped_product_of_several_experts_costs_the_host_a_launch_each() {
    // Waiting for the host alone: 8 experts on one device, two grouped products of 8 launches of 10 us forward, and the
    // two kernels that sort by expert, of 20 us as the others, more than on eight devices.
    let mut problem = experts();
    problem.framework.launch_us = 20.0;
    let host = |ep| {
        let mut slow = problem.clone();
        slow.cluster.groups[0].chip.peak_tflops.bf16 = Some(1e9);
        slow.cluster.groups[0].chip.memory_bandwidth_gb_per_s = 1e12;
        slow.cluster.groups[0].chip.host.kernel_us = 1e-6;
        slow.framework.expert_dispatch = ExpertDispatch::Copies;
        slow.cluster.groups[0].chip.link.latency_us = 1e-6;
        let cost = expert_layer(&slow, ep).forward;
        cost.compute.seconds() + cost.expert.seconds()
    };
    close(host(1) - host(8), 2.0 * 8.0 * 10e-6 + 2.0 * 20e-6, 1e-3);
}

#[test]
fn an_expert_s_operand_in_blocks_is_cast_by_one_kernel_instead_of_four() {
    // Waiting for the host alone, 8 experts on one device: the inputs of two grouped products forward and the gradients of
    // their outputs backward take 8 launches of 10 us each instead of 32.
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
        [cost.forward, cost.input_gradient].map(|pass| pass.compute.seconds())
    };
    let (tensor, block) = (host(Fp8Scaling::Tensor), host(Fp8Scaling::Block));
    for pass in 0..2 {
        close(tensor[pass] - block[pass], 2.0 * 8.0 * 3.0 * 10e-6, 1e-3);
    }
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
