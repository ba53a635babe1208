//! Times of the estimate worked by hand: schedules, layers, and what a framework chooses.

mod sums;

use autopar_core::estimate::collective::Fabric;
use autopar_core::estimate::compute::{Device, Gemm};
use autopar_core::estimate::layer::Pricer;
use autopar_core::estimate::pipeline::{makespan, Chunk, Sends, StageClock};
use autopar_core::estimate::shard::{parameter_sent, LayerCost, Shard, Split};
use autopar_core::estimate::{estimate, sends};
use autopar_core::plan::{Plan, Recompute, Stage};
use autopar_core::spec::cluster::Group;
use autopar_core::spec::framework::{
    EightBitGathers, Fp8Scaling, Projections, ShardCopies, TensorOverlap,
};
use autopar_core::spec::kernels::NormKernel;
use autopar_core::spec::model::Activation;
use autopar_core::spec::problem::{Problem, Schedule};
use autopar_core::spec::workload::{Attention, Precision};
use autopar_core::testing::{self, whole};
use autopar_core::units::{Bytes, Time};
use sums::{close, gpt_problem, layer, replicas};

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
fn logits_that_are_gathered_make_each_rank_s_loss_that_of_the_whole_vocabulary() {
    // 512 tokens by 51,200 rows in 16 bits from 8 ranks, joined in a copy (4 bytes a logit) and taken out of their gradient
    // (4 of a rank's own); 12 bytes a logit held. Three sums of 512 numbers are spared, that of the input's gradient stays.
    let mut problem = gpt_problem(1024, 512);
    let shard = Shard { tp: 8, ..whole() };
    let chip = problem.cluster.groups[0].chip.clone();
    let device = Device::new(&chip, Precision::Bf16, &[], 8);
    let cluster = problem.cluster.clone();
    let fabric = Fabric::new(&cluster, &chip);
    let group = Group { size: 8, stride: 1 };
    problem.framework.launch_us = 0.0;
    let of = |problem: &Problem| Pricer::new(problem, 0, shard).head();
    let cut = of(&problem);
    problem.framework.gathered_logits = true;
    let gathered = of(&problem);
    let logits = 512.0 * 51_200.0;
    let held = problem.framework.held.logit_bytes as f64;
    assert_eq!(gathered.logits, Bytes::from_f64(held * logits));
    assert_eq!(gathered.cost.dense_parameters, cut.cost.dense_parameters);
    let sums = cut.cost.forward.tensor.seconds();
    close(sums, 3.0 * fabric.all_reduce(4.0 * 512.0, group), 1e-6);
    close(gathered.cost.forward.tensor.seconds(), fabric.all_gather(2.0 * logits, group), 1e-6);
    assert_eq!(gathered.cost.input_gradient.tensor, cut.cost.input_gradient.tensor);
    let more = |pass: fn(&LayerCost) -> Split| {
        pass(&gathered.cost).compute.seconds() - pass(&cut.cost).compute.seconds()
    };
    let others = logits * 7.0 / 8.0;
    let copies = [device.stream(4.0 * logits), device.stream(4.0 / 8.0 * logits)];
    close(more(|c| c.forward), device.traffic(38.0 * others) + copies[0], 1e-6);
    close(more(|c| c.input_gradient), device.traffic(14.0 * others) + copies[1], 1e-6);
    // Of a vocabulary that is whole on each rank there is nothing to gather.
    problem.framework.whole_vocabulary = true;
    assert_eq!(of(&problem).cost.forward.tensor, Time::ZERO);
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
        // Transformer Engine's kernel for one in operators: of a rank's share as of the whole.
        problem.framework.fused.cross_entropy = true;
        let joined = cost(&problem).forward.compute.seconds();
        problem.framework.fused.cross_entropy = false;
        let apart = narrow.forward.compute.seconds();
        if tp == 1 {
            assert_eq!(apart, joined);
        } else {
            close(apart - joined, device.traffic(12.0 * logits), 1e-6);
        }
    }
}

#[test]
fn a_compiled_loss_reads_logits_for_two_sums_and_for_their_gradient() {
    // 512 tokens by 51,200 rows: forward 2 x 4 bytes a logit for 38, backward 4 + 2 for 14.
    let mut problem = gpt_problem(1024, 512);
    let chip = problem.cluster.groups[0].chip.clone();
    let device = Device::new(&chip, Precision::Bf16, &[], 8);
    problem.framework.launch_us = 0.0;
    let cost = |problem: &Problem| Pricer::new(problem, 0, whole()).head().cost;
    let apart = cost(&problem);
    problem.framework.fused.compiled_loss = true;
    let compiled = cost(&problem);
    let spared = |pass: fn(&LayerCost) -> Split| {
        pass(&apart).compute.seconds() - pass(&compiled).compute.seconds()
    };
    let logits = 512.0 * 51_200.0;
    close(spared(|c| c.forward), device.traffic(30.0 * logits), 1e-3);
    close(spared(|c| c.input_gradient), device.traffic(8.0 * logits), 1e-3);
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
    (problem.framework.launch_us, problem.framework.fused.norm) = (0.0, NormKernel::Fused);
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

#[test]
fn four_bit_products_are_faster_and_read_what_they_cast_twice() {
    // The shapes of the test above: inputs of 1,344 units of 1,024 elements, outputs of 1,472. In 8 bits one kernel casts each
    // of the four: 2 bytes read, 1 + 1 written. In 4 bits one reads 2 for the maxima, another 2 and writes 2 x 9/16: 5.125.
    let mut problem = gpt_problem(1024, 512);
    (problem.framework.launch_us, problem.framework.fused.norm) = (0.0, NormKernel::Fused);
    let chip = &mut problem.cluster.groups[0].chip;
    (chip.peak_tflops.fp8, chip.peak_tflops.fp4) = (Some(624.0), Some(1248.0));
    // Products as fast as in 8 bits, that the casts stand alone; what begins and ends them is the same 280 long.
    chip.gemm.fp4_efficiency = Some(chip.gemm.fp8_efficiency / 2.0);
    (chip.gemm.fp8_half_k, chip.memory_bandwidth_gb_per_s) = (1e-9, 1e5);
    let shard = Shard { tp: 8, ..whole() };
    problem.workload.precision = Precision::Fp8;
    let eight = layer(&problem, shard);
    problem.workload.precision = Precision::Fp4;
    let four = layer(&problem, shard);
    let device = Device::new(&problem.cluster.groups[0].chip, Precision::Fp4, &[], 8);
    let more = |units: f64| {
        device.traffic(1.125 * units * 1024.0) + 4.0 * (device.stream(1.0) - device.traffic(1.0))
    };
    let gained = |pass: fn(&LayerCost) -> Split| {
        pass(&four).compute.seconds() - pass(&eight).compute.seconds()
    };
    close(gained(|c| c.forward), more(1_344.0), 1e-6);
    close(gained(|c| c.input_gradient), more(1_472.0), 1e-6);
    assert_eq!(four.weight_gradient, eight.weight_gradient);
}

#[test]
fn a_large_product_runs_at_the_share_of_the_four_bit_peak() {
    // 0.4 of 9,000 TFLOP/s on 16384 x 16384 x 16384, whose fixed part is that of 2 x 400 of the inner dimension.
    let mut problem = gpt_problem(1024, 512);
    let chip = &mut problem.cluster.groups[0].chip;
    (chip.peak_tflops.fp4, chip.gemm.fp4_efficiency) = (Some(9000.0), Some(0.4));
    (chip.gemm.fp8_half_k, chip.gemm.processors) = (400.0, 128);
    let n = 16_384_u64;
    let device = Device::new(chip, Precision::Fp4, &[], 1);
    let seconds = 2.0 * (n as f64).powi(3) / 3.6e15 * (n as f64 + 800.0) / n as f64;
    close(device.linear(Gemm::new(n, n, n)), seconds + chip.host.kernel_us * 1e-6, 1e-3);
    // Half a peak does not do.
    chip.gemm.fp4_efficiency = None;
    let error = chip.validate().unwrap_err().to_string();
    assert!(error.contains("gemm.fp4_efficiency"), "{error}");
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
    // Shared, the collectives are those of packed projections; the products and the sum of their results stay apart.
    problem.framework.projections = Projections::Apart;
    let alone = layer(&problem, shard);
    problem.framework.shared_edges = true;
    let shared = layer(&problem, shard);
    assert_eq!(shared.input_gradient.tensor, packed.input_gradient.tensor);
    assert_eq!(shared.input_gradient.compute, alone.input_gradient.compute);
}

#[test]
fn clamps_in_separate_operators_pass_over_each_half_again_and_again() {
    // 1024 tokens of 8192 inner channels in 2 bytes at 2,039 GB/s x 0.87: 16 passes in place of 5 forward, 53 backward in place of 9
    // where gate and up are products of their own, and of 13 where the gradients of one's halves are joined.
    let mut problem = gpt_problem(2048, 1024);
    problem.framework.fused.activation = false;
    let pass = 1024.0 * 8192.0 * 2.0 / (2039e9 * 0.87);
    for (projections, backward) in [(Projections::GateApart, 44.0), (Projections::Packed, 40.0)] {
        problem.framework.projections = projections;
        problem.model.activation = Activation::Swiglu;
        let plain = layer(&problem, whole());
        problem.model.activation = Activation::ClampedSwiglu;
        let clamped = layer(&problem, whole());
        for (with, without, passes) in [
            (clamped.forward, plain.forward, 11.0),
            (clamped.input_gradient, plain.input_gradient, backward),
        ] {
            let more = with.compute.seconds() - without.compute.seconds();
            close(more, passes * pass, 1e-4);
        }
    }
    problem.framework.fused.activation = true;
    let fused = layer(&problem, whole());
    // Clamps of their own before one kernel: 11 passes in place of 3, and 15 in place of 5.
    problem.framework.fused.clamp = false;
    let apart = layer(&problem, whole());
    for (with, without, passes) in
        [(apart.forward, fused.forward, 8.0), (apart.input_gradient, fused.input_gradient, 10.0)]
    {
        let more = with.compute.seconds() - without.compute.seconds();
        close(more, passes * pass, 1e-4);
    }
    problem.model.activation = Activation::Swiglu;
    assert_eq!(layer(&problem, whole()).forward, fused.forward);
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

#[test]
fn recompute_that_gathers_for_itself_has_nothing_of_the_layer_before_to_hide_behind() {
    // Forward 4 of dense parameters' 2 bytes over 8 ranks behind the layer; backward the reduction and recompute's own gather
    // show whole, and the backward pass's gather runs behind recompute, as if there were a forward pass more.
    let mut problem = gpt_problem(1024, 512);
    let shard = Shard { dp: 8, zero: 3, shard_group: 8, ..whole() };
    let ahead = layer(&problem, shard);
    assert_eq!(ahead.recompute_full.shard, Time::ZERO);
    problem.framework.recompute_gathers = true;
    let again = layer(&problem, shard);
    assert_eq!((again.forward, again.input_gradient), (ahead.forward, ahead.input_gradient));
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let bytes = (2 + problem.framework.bytes.gradient_sent) * ahead.dense_parameters;
    let group = Group { size: 8, stride: 1 };
    let of = |bytes: u64| fabric.all_gather(bytes as f64, group);
    let shown = of(2 * ahead.dense_parameters) + of(bytes - 2 * ahead.dense_parameters);
    let backward = again.recompute_full.shard + again.input_gradient.shard;
    close(backward.seconds(), shown + ahead.forward.shard.seconds(), 1e-4);
    // Whoever gathers once a step gathers nothing to compute again.
    let once = layer(&problem, Shard { zero: 1, ..shard });
    assert_eq!(once.recompute_full.shard, Time::ZERO);
}

#[test]
fn fused_softmax_needs_a_multiple_of_four_sequences_times_heads_and_rows_of_its_length() {
    // 8 heads: over 4 ranks 2 of them, of one sequence, are no multiple of 4; of two sequences they are.
    let mut problem = gpt_problem(1024, 512);
    problem.workload.attention = Attention::Unfused;
    let forward =
        |problem: &Problem, mbs| layer(problem, Shard { tp: 4, mbs, ..whole() }).forward.compute;
    let heads = u64::from(problem.model.heads) / 4;
    assert_eq!(heads, 2);
    let free = [1, 2].map(|mbs| forward(&problem, mbs));
    problem.framework.softmax_multiple = 4;
    let held = [1, 2].map(|mbs| forward(&problem, mbs));
    assert_eq!(held[1], free[1]);
    // Scores of 2 heads: 14.5 instead of 1.5 passes of 2 bytes.
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let scores = 2.0 * 512.0 * 512.0 * 2.0;
    close(held[0].seconds() - free[0].seconds(), 13.0 * scores / memory, 1e-4);
    // Nor does it take rows of more keys than it was written for.
    problem.framework.softmax_longest = 512;
    assert_eq!([1, 2].map(|mbs| forward(&problem, mbs)), held);
    problem.framework.softmax_longest = 511;
    let long = forward(&problem, 2);
    close(long.seconds() - free[1].seconds(), 13.0 * 2.0 * scores / memory, 1e-4);
}

#[test]
fn sequences_before_the_batch_are_copied_for_a_kernel_that_wants_them_behind() {
    // Two sequences of 512 and width 1024: queries, keys and values in 2 bytes are read and written once, packed once more, and
    // the result is once; a single sequence lies as the kernel wants it, and is packed alone.
    let mut problem = gpt_problem(1024, 512);
    problem.cluster.groups[0].chip.host.kernel_us = 1e-9;
    let mut core = |layouts, mbs| {
        problem.framework.attention_layouts = layouts;
        layer(&problem, Shard { mbs, ..whole() }).forward.compute.seconds()
    };
    let plain = [1, 2].map(|mbs| core(0, mbs));
    let (once, packed) = ([1, 2].map(|mbs| core(1, mbs)), [1, 2].map(|mbs| core(2, mbs)));
    let chip = testing::a100();
    let pass = 2.0 * 2.0 * 512.0 * 1024.0
        / (chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency);
    assert_eq!(once[0], plain[0]);
    close(packed[0] - plain[0], 3.0 * pass, 1e-4);
    close(once[1] - plain[1], 2.0 * 4.0 * pass, 1e-4);
    close(packed[1] - plain[1], 2.0 * 7.0 * pass, 1e-4);
}
