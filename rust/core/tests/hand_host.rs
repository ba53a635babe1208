//! What the host launches and how long that takes, worked by hand.

mod sums;

use autopar_core::estimate::block;
use autopar_core::estimate::estimate;
use autopar_core::estimate::layer::Pricer;
use autopar_core::estimate::shard::{Shard, Split};
use autopar_core::estimate::stage::Place;
use autopar_core::estimate::Tables;
use autopar_core::plan::{Plan, Recompute, Stage};
use autopar_core::spec::cluster::Host;
use autopar_core::spec::framework::{Graphs, Selective};
use autopar_core::spec::model::{LayerKind, QkNorm};
use autopar_core::spec::problem::{Problem, Schedule};
use autopar_core::testing::{self, whole};
use autopar_core::units::{Bytes, Time};
use sums::{close, gpt_problem, layer};

/// A device that computes and moves in no time, so that a pass lasts as long as the host takes: 20 us a launch.
fn host_bound(h: u64) -> Problem {
    let mut problem = gpt_problem(h, 512);
    problem.framework.launch_us = 20.0;
    let chip = &mut problem.cluster.groups[0].chip;
    (chip.peak_tflops.bf16, chip.memory_bandwidth_gb_per_s) = (Some(1e9), 1e12);
    chip.host.kernel_us = 1e-6;
    chip.attention.clear();
    problem
}

/// Launches of 20 us in a pass.
fn launches(pass: Split) -> f64 {
    (pass.total().seconds() / 20e-6).round()
}

#[test]
fn the_host_launches_tensor_parallel_collectives_as_it_launches_kernels() {
    // Two sums forward and two backward; with sequence parallel a gather before each sum forward, and backward a gather of
    // the output's gradient and of the input beside each sum: 4 and 6.
    let problem = host_bound(1024);
    let counts = |tp, sp| {
        let cost = layer(&problem, Shard { tp, sp, ..whole() });
        [launches(cost.forward), launches(cost.input_gradient)]
    };
    let [forward, backward] = counts(1, false);
    assert_eq!(counts(2, false), [forward + 2.0, backward + 2.0]);
    assert_eq!(counts(2, true), [forward + 4.0, backward + 6.0]);
}

#[test]
fn a_backward_pass_waits_for_its_launches_together() {
    // By itself the part with the inputs' gradients would wait for its many launches. Those of the weights' few products take
    // less than these last, so that the host is ahead by as much, and the pass lasts as long as the device is at it.
    let at = |launch_us: f64| {
        let mut problem = gpt_problem(1024, 512);
        problem.framework.launch_us = launch_us;
        let cost = layer(&problem, whole());
        [cost.input_gradient, cost.weight_gradient].map(|part| part.total().seconds())
    };
    let [device, host] = [at(0.0), at(1e6)];
    // Launches of a second each are counted; then each takes less, and more, than the device needs for one on average.
    let kernels = (host[0] + host[1]).round();
    let mean = (device[0] + device[1]) / kernels;
    let both = at(0.9 * mean * 1e6);
    close(both[0] + both[1], device[0] + device[1], 1e-9);
    let late = at(1.5 * mean * 1e6);
    close(late[0] + late[1], 1.5 * (device[0] + device[1]), 1e-6);
}

#[test]
fn distributed_tensors_take_the_host_longer_where_tensors_are_cut() {
    let mut problem = host_bound(1024);
    problem.framework.distributed_tensor_us = 10.0;
    let seconds = |tp| layer(&problem, Shard { tp, ..whole() }).forward.total().seconds();
    let alone = (seconds(1) / 20e-6).round();
    // Two sums more than on one rank, and all of them at 30 us.
    close(seconds(2), (alone + 2.0) * 30e-6, 1e-6);
}

#[test]
fn distributed_heads_take_the_host_longer_still_where_more_is_done_with_them_than_rotation() {
    let mut problem = host_bound(1024);
    problem.framework.distributed_heads_us = 5.0;
    let seconds =
        |problem: &Problem, tp| layer(problem, Shard { tp, ..whole() }).forward.total().seconds();
    let plain = seconds(&problem, 2);
    problem.model.qk_norm = QkNorm::Head;
    // A norm of queries and one of keys, and each kernel at 25 us.
    close(seconds(&problem, 2), ((plain / 20e-6).round() + 2.0) * 25e-6, 1e-6);
    close(seconds(&problem, 1), seconds(&problem, 2) * 20.0 / 25.0 - 2.0 * 20e-6, 1e-6);
}

#[test]
fn a_policy_is_asked_about_every_operator_of_a_forward_pass_and_of_the_one_that_runs_again() {
    let mut problem = host_bound(1024);
    problem.framework.selective = Selective::Operators;
    let again = |problem: &Problem| layer(problem, whole()).recompute_selective.total().seconds();
    let (kernels, plain) = (launches(layer(&problem, whole()).forward), again(&problem));
    problem.framework.asked_operator_us = 10.0;
    close(again(&problem) - plain, 2.0 * kernels * 10e-6, 1e-6);
    // Who computes all again asks none.
    assert_eq!(launches(layer(&problem, whole()).forward), kernels);
    problem.framework.selective = Selective::Attention;
    let attention = again(&problem);
    problem.framework.asked_operator_us = 0.0;
    assert_eq!(again(&problem), attention);
}

#[test]
fn a_layer_that_was_compiled_by_itself_is_entered_once_each_pass() {
    let mut problem = host_bound(1024);
    let passes = |problem: &Problem| {
        let cost = layer(problem, whole());
        let passes = [cost.forward, cost.input_gradient, cost.recompute_full, cost.weight_gradient];
        passes.map(|pass| pass.total().seconds())
    };
    let plain = passes(&problem);
    problem.framework.compiled_layer_us = 750.0;
    let compiled = passes(&problem);
    for pass in 0..3 {
        close(compiled[pass] - plain[pass], 750e-6, 1e-6);
    }
    assert_eq!(compiled[3], plain[3]);
}

#[test]
fn what_lies_between_compiled_parts_of_a_layer_is_launched_by_itself() {
    // Four kernels find the order of eight experts' tokens, and one each puts them there and takes them back; their results are
    // cast to 32 bits, weighted and cast back, and both additions to the residual stream are modules' callers': ten of a pass, and
    // of the backward pass one, one, five and two. At 64 us in place of 20 they take 44 us more each.
    let mut problem = host_bound(1024);
    problem.model.moe = Some(testing::moe(8, 2, 1024));
    problem.framework.held.weighted_result_bytes = 4;
    let passes = |problem: &Problem| {
        let kind = LayerKind { moe: true, windowed: false };
        let cost = block::price(&Pricer::new(problem, 0, whole()), kind).cost;
        [cost.forward, cost.input_gradient].map(|pass| pass.total().seconds())
    };
    problem.framework.fused.activation = false;
    let alike = passes(&problem);
    problem.framework.dispatch_launch_us = 64.0;
    let apart = passes(&problem);
    close(apart[0] - alike[0], 10.0 * 44e-6, 1e-6);
    close(apart[1] - alike[1], 9.0 * 44e-6, 1e-6);
}

#[test]
fn parts_of_a_layer_in_a_graph_are_launched_as_six_kernels() {
    let mut problem = host_bound(1024);
    let mut counts = |attention, mlp| {
        problem.framework.graphs = Graphs { attention, router: false, mlp };
        let cost = layer(&problem, whole());
        [cost.forward, cost.input_gradient, cost.weight_gradient].map(launches)
    };
    let plain = counts(false, false);
    let (without_mlp, without_attention) = (counts(false, true), counts(true, false));
    // The MLP goes on with the graph of attention; a product's weight gradient is in the graph of its pass.
    assert_eq!(counts(true, true), [6.0, 6.0, 0.0]);
    for pass in 0..2 {
        assert_eq!(without_mlp[pass] - 6.0 + without_attention[pass] - 6.0, plain[pass]);
    }
    assert_eq!(without_mlp[2] + without_attention[2], plain[2]);
}

#[test]
fn a_slow_host_takes_so_many_times_as_long_to_launch() {
    let mut problem = host_bound(1024);
    let usual = layer(&problem, whole()).forward.total();
    problem.cluster.groups[0].chip.host.pace = 2.5;
    let slow = layer(&problem, whole()).forward.total();
    close(slow.seconds() / usual.seconds(), 2.5, 1e-6);
}

#[test]
fn the_host_launches_fsdp_s_gathers_but_none_for_what_is_computed_again() {
    // One gather forward, one backward and one reduction; in 12 pieces 12, and 24.
    let mut problem = host_bound(1024);
    let shard = Shard { dp: 8, zero: 3, shard_group: 8, ..whole() };
    let plain = layer(&problem, whole());
    for pieces in [1, 12] {
        problem.framework.gather_pieces = pieces;
        let cost = layer(&problem, shard);
        let more = |a: Split, b: Split| launches(Split { shard: Time::ZERO, ..a }) - launches(b);
        assert_eq!(more(cost.forward, plain.forward), f64::from(pieces));
        assert_eq!(more(cost.input_gradient, plain.input_gradient), 2.0 * f64::from(pieces));
        assert_eq!(cost.recompute_full, plain.recompute_full);
    }
}

#[test]
fn hooks_around_a_sharded_layer_take_the_host_a_while_each_pass() {
    // A gather forward, one with a reduction backward, none for what is computed again; ZeRO-2 gathers nothing, and replicas of
    // everything neither, which hooks may surround all the same.
    let mut problem = host_bound(1024);
    let mut passes = |zero, replicas, hooks| {
        problem.framework.sharded_layer_us = hooks;
        problem.framework.hooks_replicas = replicas;
        let cost = layer(&problem, Shard { dp: 8, zero, shard_group: 8, ..whole() });
        let passes = [cost.forward, cost.input_gradient, cost.recompute_full, cost.weight_gradient];
        passes.map(|pass| pass.compute.seconds())
    };
    let longer = [
        (3, false, [1.0, 1.0, 0.0, 0.0]),
        (2, false, [0.0, 1.0, 0.0, 0.0]),
        (0, false, [0.0; 4]),
        (0, true, [1.0, 1.0, 0.0, 0.0]),
    ];
    for (zero, replicas, hooked) in longer {
        let (plain, longer) = (passes(zero, replicas, 0.0), passes(zero, replicas, 1000.0));
        for pass in 0..4 {
            close(longer[pass] - plain[pass] + 1.0, 1.0 + hooked[pass] * 1e-3, 1e-6);
        }
    }
}

/// Two micro-batches of ZeRO-3 over eight replicas with the optimizer in the memory of a host that moves 20 GB a second, a thread
/// of it 5, and 10 over PCIe.
fn offloaded() -> (Problem, Plan) {
    let mut problem = gpt_problem(1024, 512);
    problem.workload.global_batch_size = 16;
    let host = &mut problem.cluster.groups[0].chip.host;
    *host = Host { pcie_gb_per_s: 10.0, memory_gb_per_s: 20.0, core_gb_per_s: 5.0, ..*host };
    let stage = Stage { chip: 0, layers: 4, recompute: Recompute::None, offload: 0 };
    let plan = testing::plan(vec![stage]);
    let plan = Plan { dp: 8, zero: 3, shard_group: 8, optimizer_offload: true, ..plan };
    (problem, plan)
}

/// How long a step lasts beyond another, in seconds for each parameter of a rank's eighth.
fn longer(problem: &Problem, (step, other): (f64, f64)) -> f64 {
    (step - other) / (problem.model.parameters() as f64 / 8.0)
}

#[test]
fn one_thread_steps_the_optimizer_as_fast_as_it_reads_and_writes() {
    // Gradients of 4 bytes read, weights and two moments of 12 read and written, parameters of 2 written: 30 bytes in place of 20
    // GB a second at 5; with three threads at 15.
    let (mut problem, plan) = offloaded();
    let mut step = |threads| {
        problem.framework.offload.threads = threads;
        estimate(&problem, &plan).unwrap().step_s
    };
    let [all, one, three] = [0, 1, 3].map(&mut step);
    close(longer(&problem, (one, all)), 30.0 * (1.0 / 5e9 - 1.0 / 20e9), 1e-6);
    close(longer(&problem, (three, all)), 30.0 * (1.0 / 15e9 - 1.0 / 20e9), 1e-6);
}

#[test]
fn sums_of_gradients_on_the_host_cross_with_every_micro_batch_and_leave_the_device() {
    // A thread copies 4 bytes of each at 5 GB a second in both micro-batches, and at the end 6 and not 4 + 2 of what is stored.
    let (mut problem, plan) = offloaded();
    problem.framework.offload.pinned = false;
    let plain = estimate(&problem, &plan).unwrap();
    problem.framework.offload.pass_bytes = 4;
    let crossing = estimate(&problem, &plan).unwrap();
    close(longer(&problem, (crossing.step_s, plain.step_s)), 2.0 * 4.0 / 5e9, 1e-6);
    assert_eq!(crossing.stages[0].memory.gradients, Bytes::ZERO);
    assert!(plain.stages[0].memory.gradients > Bytes::ZERO);
    problem.framework.offload.step_bytes = 8;
    let wide = estimate(&problem, &plan).unwrap();
    close(longer(&problem, (wide.step_s, crossing.step_s)), 2.0 / 5e9, 1e-6);
}

#[test]
fn what_one_rank_s_stage_sends_to_the_host_crosses_too() {
    // All of the parameters, eight times an eighth: 4 bytes of each in both micro-batches.
    let (mut problem, plan) = offloaded();
    problem.framework.offload.pinned = false;
    problem.workload.global_batch_size = 2;
    let plan = Plan { dp: 1, shard_group: 1, ..plan };
    let mut one = Problem { cluster: testing::cluster(testing::a100(), 1), ..problem.clone() };
    one.cluster.groups[0].chip.host = problem.cluster.groups[0].chip.host;
    let plain = estimate(&one, &plan).unwrap().step_s;
    one.framework.offload.pass_bytes = 4;
    let crossing = estimate(&one, &plan).unwrap();
    close(longer(&one, (crossing.step_s, plain)), 8.0 * 2.0 * 4.0 / 5e9, 1e-6);
    assert_eq!(crossing.stages[0].memory.gradients, Bytes::ZERO);
    // Parameters that wait there too are not on the device.
    one.framework.held.parameters_on_host = true;
    let there = estimate(&one, &plan).unwrap();
    assert_eq!(there.stages[0].memory.parameters, Bytes::ZERO);
}

#[test]
fn from_pinned_memory_gradients_cross_behind_the_backward_pass() {
    let (mut problem, plan) = offloaded();
    let plain = estimate(&problem, &plan).unwrap().step_s;
    problem.framework.offload.pass_bytes = 1;
    problem.cluster.groups[0].chip.host.pcie_gb_per_s = 1e6;
    let swift = estimate(&problem, &plan).unwrap().step_s;
    // At 1e6 GB a second nothing of 6 bytes a step is left, and what crosses with a pass is hidden.
    close(longer(&problem, (plain, swift)), 6.0 / 10e9, 1e-3);
}

#[test]
fn gradients_of_weights_that_may_wait_cross_behind_their_own_pass() {
    // Two stages of two replicas. The first has the embedding, of whose gradients 4 bytes each cross for longer than any pass lasts:
    // of 409,600 + 64 rows, and of 12 widths a layer, of 1,024 channels, halved, at 100 GB a second. The gradient of its input does
    // not wait for that. If it did, for what the weights' own pass leaves in the open, a second layer would make it come sooner.
    let (h, cluster) = (1024, testing::cluster(testing::a100(), 4));
    let mut problem = testing::problem(testing::gpt(2, h), cluster, 8, 64);
    problem.model.vocab = 409_600;
    problem.framework.offload.pass_bytes = 4;
    let chip = &mut problem.cluster.groups[0].chip;
    (chip.peak_tflops.bf16, chip.host.pcie_gb_per_s) = (Some(3.0), 100.0);
    chip.gemm.processors = 1;
    (chip.link.all_gather_gb_per_s, chip.memory_bandwidth_gb_per_s) = (1e5, 1e5);
    let stage = Stage { chip: 0, layers: 1, recompute: Recompute::None, offload: 0 };
    let plan = testing::plan(vec![stage; 2]);
    let plan = Plan { dp: 2, zero: 3, shard_group: 2, optimizer_offload: true, ..plan };
    let tables = Tables::new(&problem, |kind| Some(plan.shard(kind)));
    let chunk = |schedule, layers, optimizer_offload| {
        let plan = Plan { schedule, ..plan.clone() };
        let place = Place { layers, optimizer_offload, ..plan.place(&problem, 0) };
        tables.kind(0).chunk(&place, 0)
    };
    for layers in [1, 2] {
        let [device, host] = [false, true].map(|host| chunk(Schedule::ZeroBubbleH1, layers, host));
        assert_eq!((host.forward, host.input_gradient), (device.forward, device.input_gradient));
        let parameters = (409_664 + 12 * h * u64::from(layers)) * h;
        close(host.weight_gradient.seconds(), parameters as f64 * 4.0 / 2.0 / 100e9, 1e-2);
        // Where they may not wait, all of the backward pass hides what crosses.
        let all = chunk(Schedule::OneFOneB, layers, true).backward();
        close(all.seconds(), host.weight_gradient.seconds(), 1e-6);
    }
}

#[test]
fn a_host_that_waited_for_a_message_has_launched_nothing_ahead() {
    // Two stages. After each message a pass begins with its first launch, of 4 us; a batch is fetched by nine before that, also where
    // no message was waited for.
    let mut problem = gpt_problem(1024, 512);
    problem.framework.launch_us = 4.0;
    let plan = |stages: usize| {
        let stage =
            Stage { chip: 0, layers: 4 / stages as u32, recompute: Recompute::None, offload: 0 };
        Plan { dp: 8 / stages as u64, ..testing::plan(vec![stage; stages]) }
    };
    let passes = |problem: &Problem, stages: usize| {
        let estimate = estimate(problem, &plan(stages)).expect("a legal plan");
        let stage = &estimate.stages[stages - 1];
        [stage.forward_ps.seconds(), stage.backward_ps.seconds()]
    };
    let before = [passes(&problem, 1), passes(&problem, 2)];
    let later = |problem: &Problem, stages: usize| {
        let now = passes(problem, stages);
        [0, 1].map(|pass| ((now[pass] - before[stages - 1][pass]) / 4e-6).round())
    };
    problem.framework.waits_for_messages = true;
    assert_eq!([later(&problem, 1), later(&problem, 2)], [[0.0, 0.0], [1.0, 1.0]]);
    problem.framework.fetching_operators = 9;
    assert_eq!([later(&problem, 1), later(&problem, 2)], [[10.0, 0.0], [10.0, 1.0]]);
    // What is sent behind computation is not waited for.
    problem.framework.overlap.every_send = true;
    assert_eq!(later(&problem, 2), [10.0, 0.0]);
    problem.framework.fetching_operators = 0;
    assert_eq!(later(&problem, 2), [0.0, 0.0]);
    // A host that waits for each kernel pays for the first of a pass with the others: nine launches more, and none by a message.
    problem.framework.overlap.every_send = false;
    problem.framework.blocking_launches = true;
    (problem.framework.waits_for_messages, problem.framework.fetching_operators) = (false, 0);
    let before = [passes(&problem, 1), passes(&problem, 2)];
    problem.framework.waits_for_messages = true;
    problem.framework.fetching_operators = 9;
    for stages in [1, 2] {
        let now = passes(&problem, stages);
        let more = [0, 1].map(|pass| ((now[pass] - before[stages - 1][pass]) / 4e-6).round());
        assert_eq!(more, [9.0, 0.0]);
    }
}
