//! The end of a step worked by hand: gradients summed over replicas, parameters gathered, the optimizer's step.

mod sums;

use autopar_core::estimate::block;
use autopar_core::estimate::collective::Fabric;
use autopar_core::estimate::estimate;
use autopar_core::estimate::layer::Pricer;
use autopar_core::estimate::shard::Shard;
use autopar_core::plan::{Plan, Recompute, Stage};
use autopar_core::spec::cluster::Group;
use autopar_core::spec::framework::{Fp8Scaling, GatheredUnit, Gathers, Gradients, Shards};
use autopar_core::spec::kernels::AdamKernel;
use autopar_core::spec::model::LayerKind;
use autopar_core::spec::problem::Problem;
use autopar_core::spec::workload::Precision;
use autopar_core::testing::{self, whole};
use autopar_core::units::Time;
use sums::{close, gpt_problem, layer, replicas};

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
    // The embedding is one piece: 53 million parameters of 4 bytes, 2 x 7/8 of them at 235 GB/s, beside a start of 56 us.
    let embedding = 2.0 * 7.0 / 8.0 * ((51_200 + 2048) * 1024 * 4) as f64 / 235e9 + 56e-6;
    close(e.time.data_ps.seconds(), (all - backward).max(all / 4.0).max(embedding), 1e-6);
}

#[test]
fn gradients_that_wait_are_reduced_once_a_step_and_parameters_gathered_for_each_pass() {
    // Two micro-batches of eight ranks with nothing hidden: each reduces 4-byte gradients layer by layer, or all are reduced at
    // once at the end; parameters of 2 bytes are gathered before either pass.
    let mut problem = gpt_problem(1024, 512);
    problem.workload.global_batch_size = 16;
    let o = &mut problem.framework.overlap;
    (o.gradient_reduce, o.parameter_gather, o.backward_gather) = (false, false, false);
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let moved = |bytes: u64| fabric.all_gather(bytes as f64, Group { size: 8, stride: 1 });
    let shard = Shard { dp: 8, zero: 3, shard_group: 8, ..whole() };
    let plan = Plan { zero: 3, shard_group: 8, ..replicas(&problem, 8).0 };
    let with = |once: bool| {
        let mut problem = problem.clone();
        problem.framework.reduces_once = once;
        let cost = layer(&problem, shard);
        (cost, estimate(&problem, &plan).expect("a legal plan").time.data_ps.seconds())
    };
    let ((each, none), (once, all)) = (with(false), with(true));
    let parameters = each.dense_parameters;
    close(each.input_gradient.shard.seconds(), moved(2 * parameters) + moved(4 * parameters), 1e-6);
    close(once.input_gradient.shard.seconds(), moved(2 * parameters), 1e-6);
    assert_eq!(once.forward.shard, each.forward.shard);
    let of_all = 4 * parameters + (51_200 + 2048) * 1024 + 2 * 1024;
    close(all - none, moved(4 * of_all), 1e-6);
}

#[test]
fn a_framework_that_all_reduces_sends_gradients_twice_where_it_could_scatter_them() {
    // Eight ranks of one node with nothing hidden. Stage 1: an all-reduce of 4-byte gradients and a gather of 2-byte parameters,
    // in place of a scatter, which takes as long as a gather, and that gather. Stage 2: twice the scatter in each pass.
    let mut problem = gpt_problem(1024, 512);
    let o = &mut problem.framework.overlap;
    (o.gradient_reduce, o.parameter_gather) = (false, false);
    problem.framework.gathers = Gathers::MicroBatch;
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let group = Group { size: 8, stride: 1 };
    let with = |all_reduces: bool, zero: u8| {
        let mut problem = problem.clone();
        problem.framework.all_reduces = all_reduces;
        let plan = Plan { zero, shard_group: 8, ..replicas(&problem, 8).0 };
        let shard = Shard { dp: 8, zero, shard_group: 8, ..whole() };
        let passes = layer(&problem, shard).input_gradient.shard.seconds();
        (passes, estimate(&problem, &plan).expect("a legal plan").time.data_ps.seconds())
    };
    let parameters = (4 * (12 * 1024 + 13) * 1024 + (51_200 + 2048 + 2) * 1024) as f64;
    let more = with(true, 1).1 - with(false, 1).1;
    let sums = fabric.all_reduce(4.0 * parameters, group);
    close(more, sums - fabric.all_gather(4.0 * parameters, group), 1e-6);
    close(with(true, 2).0, 2.0 * with(false, 2).0, 1e-3);
    assert_eq!(with(true, 3), with(false, 3));
}

#[test]
fn what_of_a_layer_does_not_stay_gathered_is_gathered_again_after_recompute() {
    // Eight ranks of one node, nothing hidden. A layer of 12 h^2 + 13 h, of which the last matrix, 4 h^2, stays where 1.5 of it
    // may lie gathered, and all of it where that is enough.
    let mut problem = gpt_problem(1024, 512);
    let o = &mut problem.framework.overlap;
    (o.gradient_reduce, o.parameter_gather, o.backward_gather) = (false, false, false);
    let shard = Shard { dp: 8, zero: 3, shard_group: 8, ..whole() };
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let h = 1024;
    let parameters = 12 * h * h + 13 * h;
    let gather = fabric.all_gather(2.0 * parameters as f64, Group { size: 8, stride: 1 });
    let mut again = |live: u64| {
        problem.framework.held.live_parameters = live;
        layer(&problem, shard).recompute_full.shard.seconds()
    };
    let released = (parameters - 4 * h * h) as f64 / parameters as f64;
    close(again(6 * h * h), released * gather, 1e-4);
    assert_eq!(again(parameters), 0.0);
    // A framework that sets no limit keeps the layer for both.
    assert_eq!(again(0), 0.0);
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
    // Of 128 ranks 68 own one: 4 x 16 of the layers, the words' table, which is the head too, that of the positions and two of
    // the last norm. Sixteen nodes: 112 steps inside and 16 between.
    problem.cluster.devices = 128;
    problem.workload.global_batch_size = 128;
    let round = (8.4 + 112.0 * 3.4 + 16.0 * 14.0) * 1e-6;
    let tensors = step(&problem, 128);
    problem.framework.shards = Shards::Slices;
    close(tensors - step(&problem, 128), 2.0 * 67.0 * round, 1e-4);
}

#[test]
fn slices_that_are_reduced_to_their_owners_in_turn_fill_a_chain_a_node() {
    // Eight reductions, each of an eighth of the gradients, follow each other through a node: 7 hops of 1.9 us once.
    let mut problem = gpt_problem(1024, 512);
    problem.framework.overlap.gradient_reduce = false;
    problem.framework.bytes.gradient_sent = 2;
    let step = |problem: &Problem| {
        let plan = Plan { zero: 1, shard_group: 8, ..replicas(problem, 8).0 };
        estimate(problem, &plan).expect("a legal plan").time.data_ps.seconds()
    };
    let at_once = step(&problem);
    problem.framework.shards = Shards::Owners;
    close(step(&problem) - at_once, 7.0 * 1.9e-6, 1e-3);
}

#[test]
fn so_they_do_in_every_pass_where_each_reduces() {
    // Of the chain of the test before a layer fills its share, 12 h^2 + 13 h of all parameters, in each pass of stage 2; none where
    // stage 3 scatters.
    let h = 1024;
    let mut problem = gpt_problem(h, 512);
    problem.framework.gathers = Gathers::MicroBatch;
    problem.framework.overlap.gradient_reduce = false;
    problem.framework.bytes.gradient_sent = 2;
    let reduced = |problem: &Problem, zero| {
        let shard = Shard { dp: 8, zero, shard_group: 8, ..whole() };
        layer(problem, shard).input_gradient.shard.seconds()
    };
    let at_once = [2, 3].map(|zero| reduced(&problem, zero));
    problem.framework.shards = Shards::Owners;
    let parameters = (12 * h * h + 13 * h) as f64;
    let all = 4.0 * parameters + ((51_200 + 2048) * h + 2 * h) as f64;
    close(reduced(&problem, 2) - at_once[0], parameters / all * 7.0 * 1.9e-6, 1e-3);
    assert_eq!(reduced(&problem, 3), at_once[1]);
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
fn what_only_plain_replicas_reduce_behind_the_backward_pass_shows_where_states_are_sharded() {
    let mut problem = gpt_problem(1024, 512);
    let step = |problem: &Problem, zero: u8| {
        let shard_group = if zero > 0 { 8 } else { 1 };
        let plan = Plan { zero, shard_group, ..replicas(problem, 8).0 };
        estimate(problem, &plan).expect("a legal plan").time.data_ps
    };
    let hidden = [0, 1].map(|zero| step(&problem, zero));
    problem.framework.overlap.unsharded_alone = true;
    let alone = [0, 1].map(|zero| step(&problem, zero));
    problem.framework.overlap.gradient_reduce = false;
    let shown = [0, 1].map(|zero| step(&problem, zero));
    assert_eq!(alone, [hidden[0], shown[1]]);
    assert!(hidden[1] < shown[1]);
}

#[test]
fn gradients_that_are_fused_start_once_a_piece_and_show_the_last() {
    // 32-bit gradients of 105 million parameters, in pieces of 64 MiB: 421 MB / 67 MB, so 7 starts of 56 us in place of 1. The
    // embedding, half of all, is in one.
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
    let embedding = 2.0 * 7.0 / 8.0 * ((51_200 + 2048) * h * 4) as f64 / 235e9 + 56e-6;
    close(e.time.data_ps.seconds(), (all - backward).max(embedding), 1e-6);
}

#[test]
fn groups_of_layers_start_once_each_and_show_the_last() {
    // Three groups of four layers: two starts of 56 us more than one, and the embedding, half of all, behind nothing. There are no more groups
    // than layers.
    let mut problem = gpt_problem(1024, 512);
    problem.framework.overlap.gradient_reduce = false;
    let data = |problem: &Problem| replicas(problem, 8).1.time.data_ps.seconds();
    let one = data(&problem);
    problem.framework.fused_groups = 3;
    let all = data(&problem);
    close(all, one + 2.0 * 56e-6, 1e-6);
    problem.framework.fused_groups = 9;
    close(data(&problem), one + 3.0 * 56e-6, 1e-6);
    problem.framework.fused_groups = 3;
    problem.framework.overlap.gradient_reduce = true;
    let backward = replicas(&problem, 8).1.stages[0].backward_ps.seconds();
    let embedding = 2.0 * 7.0 / 8.0 * ((51_200 + 2048) * 1024 * 4) as f64 / 235e9 + 56e-6;
    close(data(&problem), (all - backward).max(embedding), 1e-6);
    // Bytes say it in their place.
    let mut by_bytes = problem.clone();
    by_bytes.framework.fused_reduce_bytes = 64 << 20;
    let seven = data(&by_bytes);
    by_bytes.framework.fused_groups = 0;
    close(data(&by_bytes), seven, 1e-12);
    // A stage of two has one group, which begins when its backward pass has ended.
    let stage = Stage { chip: 0, layers: 2, recompute: Recompute::None, offload: 0 };
    let piped = Plan { dp: 4, ..testing::plan(vec![stage; 2]) };
    let data = |problem: &Problem| estimate(problem, &piped).unwrap().time.data_ps;
    let behind_nothing = data(&problem);
    problem.framework.overlap.gradient_reduce = false;
    assert_eq!(behind_nothing, data(&problem));
}

#[test]
fn one_replica_sums_nothing() {
    let mut problem = gpt_problem(1024, 512);
    problem.cluster.devices = 1;
    problem.framework.overlap.gradient_reduce = false;
    assert_eq!(replicas(&problem, 1).1.time.data_ps, Time::ZERO);
}

#[test]
fn adam_in_separate_operators_takes_what_thirty_copies_of_its_32_bit_numbers_do() {
    // A parameter alone on its rank: the norm reads 4 bytes of gradient, clipping reads and writes them, zeroing writes them;
    // in one kernel Adam takes as long as 1.17 times 4 + 2 x 12 bytes, PyTorch's 1.5 times, else 1.5 x 20 x 4; and another reads 4
    // and writes 2.
    let mut problem = gpt_problem(1024, 512);
    let fused = replicas(&problem, 8).1.time.optimizer_ps.seconds();
    problem.framework.fused.optimizer = AdamKernel::Native;
    let native = replicas(&problem, 8).1.time.optimizer_ps.seconds();
    problem.framework.fused.optimizer = AdamKernel::Separate;
    let apart = replicas(&problem, 8).1.time.optimizer_ps.seconds();
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let h = 1024;
    let parameters = (4 * (12 * h * h + 13 * h) + (51_200 + 2048) * h + 2 * h) as f64;
    close(fused, (16.0 + 1.17 * 28.0 + 6.0) * parameters / memory, 1e-6);
    close(native, (16.0 + 48.0) * parameters / memory, 1e-6);
    close(apart, (16.0 + 126.0) * parameters / memory, 1e-6);
    // Where no norm clips, 12 bytes less pass.
    problem.framework.clips_gradients = false;
    let unclipped = replicas(&problem, 8).1.time.optimizer_ps.seconds();
    problem.framework.clips_gradients = true;
    close(apart - unclipped, 12.0 * parameters / memory, 1e-6);
    // Gradients that are dropped after the step need no zeroing.
    problem.framework.held.gradients = Gradients::Passing;
    let dropped = replicas(&problem, 8).1.time.optimizer_ps.seconds();
    close(dropped, (12.0 + 126.0) * parameters / memory, 1e-6);
    // Weights of 32 bits in two halves of 2 bytes, of which the optimizer holds one, are no copy: 12 of clipping and the norm,
    // 1.17 (4 + 2 x 12) fused.
    problem.framework.fused.optimizer = AdamKernel::Fused;
    problem.framework.bytes.optimizer = 10;
    let in_place = replicas(&problem, 8).1.time.optimizer_ps.seconds();
    close(in_place, (12.0 + 1.17 * 28.0) * parameters / memory, 1e-6);
    // All in 16 bits: 6 of clipping and the norm, 1.17 (2 + 2 x 6) fused, 1.5 x 20 x 2 in separate operators.
    let bytes = &mut problem.framework.bytes;
    (bytes.gradient, bytes.optimizer) = (2, 4);
    let narrow = replicas(&problem, 8).1.time.optimizer_ps.seconds();
    close(narrow, (6.0 + 1.17 * 14.0) * parameters / memory, 1e-6);
    problem.framework.fused.optimizer = AdamKernel::Separate;
    let apart = replicas(&problem, 8).1.time.optimizer_ps.seconds();
    close(apart, 66.0 * parameters / memory, 1e-6);
    // Casts of 16 bits beside 32-bit weights are no state: 12 of clipping and the norm, 1.17 (4 + 2 x 12).
    problem.framework.fused.optimizer = AdamKernel::Fused;
    let bytes = &mut problem.framework.bytes;
    (bytes.parameter, bytes.gradient, bytes.optimizer) = (6, 4, 8);
    let cast = replicas(&problem, 8).1.time.optimizer_ps.seconds();
    close(cast, (12.0 + 1.17 * 28.0) * parameters / memory, 1e-6);
}

#[test]
fn adam_tensor_by_tensor_waits_for_the_host_or_streams_as_any_operator() {
    // 20 reads and writes of 4 bytes beside 16 of norm, clipping and zeroing, and 6 of the copy. Or 8 launches for each tensor, where
    // those take longer: 16 tensors in each of 4 layers (six products and two norms with biases), two embeddings and the last norm's two.
    let mut problem = gpt_problem(1024, 512);
    problem.framework.fused.optimizer = AdamKernel::ByTensor;
    problem.framework.launch_us = 0.0;
    let streamed = replicas(&problem, 8).1.time.optimizer_ps.seconds();
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let h = 1024;
    let parameters = (4 * (12 * h * h + 13 * h) + (51_200 + 2048) * h + 2 * h) as f64;
    close(streamed, (16.0 + 80.0 + 6.0) * parameters / memory, 1e-6);
    problem.framework.launch_us = 1000.0;
    let launched = replicas(&problem, 8).1.time.optimizer_ps.seconds();
    close(launched, 8.0 * 1e-3 * (4.0 * 16.0 + 4.0), 1e-6);
}

#[test]
fn weights_are_cast_for_8_bit_products_once_a_step() {
    // Read in 2 bytes, written twice in 1; by a maximum of their own read once more; of weights that lie in casts alone one
    // is read and its transpose written; of scales of rows each pass casts its own.
    let mut problem = gpt_problem(1024, 512);
    problem.cluster.groups[0].chip.peak_tflops.fp8 = Some(624.0);
    let step = |problem: &Problem| replicas(problem, 8).1.time.optimizer_ps.seconds();
    let plain = step(&problem);
    problem.workload.precision = Precision::Fp8;
    problem.framework.held.fp8_weight_bytes = 2;
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let h = 1024;
    // Those of the layers: embedding and head are of no product in 8 bits.
    let parameters = f64::from(4 * (12 * h * h + 13 * h));
    for (scaling, bytes) in [(Fp8Scaling::Delayed, 4.0), (Fp8Scaling::Current, 6.0)] {
        problem.framework.fp8_scaling = scaling;
        close(step(&problem) - plain, bytes * parameters / memory, 1e-6);
    }
    problem.framework.fp8_scaling = Fp8Scaling::Row;
    assert_eq!(step(&problem), plain);
    problem.framework.fp8_scaling = Fp8Scaling::Current;
    problem.framework.held.narrow_weights = true;
    close(step(&problem) - plain, 2.0 * parameters / memory, 1e-6);
}

#[test]
fn a_collective_hides_but_for_the_processors_that_it_takes() {
    // 3 s beside 5 s: nothing shows, 0.5 of them where it takes half of the processors, all where it takes each. Beside 2 s the
    // third second shows too.
    let mut problem = gpt_problem(1024, 512);
    let mut shows = |share, behind| {
        problem.cluster.groups[0].chip.link.processor_share = share;
        Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip).beside(3.0, behind)
    };
    assert_eq!([shows(0.0, 5.0), shows(0.5, 5.0), shows(0.5, 2.0)], [0.0, 1.5, 2.0]);
    assert_eq!([shows(1.0, 5.0), shows(1.0, 2.0)], [3.0, 3.0]);
}

#[test]
fn parameters_that_are_gathered_after_the_gradients_before_show_in_full() {
    // ZeRO-3 over 8 ranks of a node behind a device so slow that it hides all: backward one gather of 2 bytes a parameter.
    let mut problem = gpt_problem(1024, 512);
    let chip = &mut problem.cluster.groups[0].chip;
    (chip.peak_tflops.bf16, chip.link.processor_share) = (Some(1.0), 0.0);
    let shard = Shard { dp: 8, zero: 3, shard_group: 8, ..whole() };
    let before = layer(&problem, shard);
    assert_eq!(before.input_gradient.shard, Time::ZERO);
    problem.framework.overlap.backward_gather = false;
    let after = layer(&problem, shard);
    assert_eq!(after.forward, before.forward);
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let bytes = 2.0 * after.dense_parameters as f64;
    let gather = fabric.all_gather(bytes, Group { size: 8, stride: 1 });
    close(after.input_gradient.shard.seconds(), gather, 1e-6);
}

#[test]
fn what_every_pass_scatters_shows_where_it_takes_the_stream_of_the_computation() {
    // ZeRO-3 over 8 ranks of a node behind a device so slow that it hides all: the gather of 2 bytes a parameter still, and of
    // the gradients' scatter of 4 bytes nothing.
    let mut problem = gpt_problem(1024, 512);
    let chip = &mut problem.cluster.groups[0].chip;
    (chip.peak_tflops.bf16, chip.link.processor_share) = (Some(1.0), 0.0);
    let shard = Shard { dp: 8, zero: 3, shard_group: 8, ..whole() };
    let beside = layer(&problem, shard);
    assert_eq!(beside.input_gradient.shard, Time::ZERO);
    problem.framework.overlap.gradient_scatter = false;
    let apart = layer(&problem, shard);
    assert_eq!(apart.forward, beside.forward);
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let bytes = 4.0 * apart.dense_parameters as f64;
    let scatter = fabric.all_gather(bytes, Group { size: 8, stride: 1 });
    close(apart.input_gradient.shard.seconds(), scatter, 1e-6);
}

#[test]
fn where_each_matrix_is_gathered_by_itself_so_is_each_of_every_expert() {
    // Six collectives a GPT layer, two of them for its MLP's matrices: beside experts four for the rest, and two for each of eight.
    // In one product experts are as many as a layer: six, beside six for the rest.
    let mut problem = gpt_problem(1024, 512);
    problem.model.moe = Some(testing::moe(8, 2, 1024));
    let f = &mut problem.framework;
    (f.gathers, f.gather_pieces, f.fused.grouped_gemm) = (Gathers::MicroBatch, 6, false);
    f.held.gathered_unit = GatheredUnit::Matrix;
    f.overlap.parameter_gather = false;
    let shard = Shard { dp: 8, zero: 3, shard_group: 8, ..whole() };
    let kind = LayerKind { moe: true, windowed: false };
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let pieces = |parameters: u64, count: f64| {
        count * fabric.all_gather(2.0 * parameters as f64 / count, Group { size: 8, stride: 1 })
    };
    let priced = |problem: &Problem| block::price(&Pricer::new(problem, 0, shard), kind).cost;
    let apart = priced(&problem);
    let seconds = pieces(apart.dense_parameters, 4.0) + pieces(apart.expert_parameters, 16.0);
    close(apart.forward.shard.seconds(), seconds, 1e-6);
    problem.framework.fused.grouped_gemm = true;
    let joined = priced(&problem).forward.shard.seconds();
    close(joined, pieces(apart.dense_parameters, 6.0) + pieces(apart.expert_parameters, 6.0), 1e-6);
}

#[test]
fn nothing_hides_an_embedding_s_gather_and_reduction_nor_a_head_s_that_comes_with_it() {
    // ZeRO-3 over 8 ranks of a node: parameters of 2 bytes forward, gradients of 4 backward. Where the ends are gathered at once
    // the head's show too, else they run behind its products, here of a device so slow that these hide all.
    let mut problem = gpt_problem(1024, 512);
    problem.model.tied_embeddings = false;
    let chip = &mut problem.cluster.groups[0].chip;
    (chip.peak_tflops.bf16, chip.link.processor_share) = (Some(1.0), 0.0);
    problem.framework.overlap.gradient_reduce = true;
    let shard = Shard { dp: 8, zero: 3, shard_group: 8, ..whole() };
    let ends = |together: bool| {
        let mut problem = problem.clone();
        problem.framework.held.gathered_ends = together;
        let pricer = Pricer::new(&problem, 0, shard);
        [pricer.embedding(), pricer.head()].map(|end| end.cost)
    };
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let moved = |bytes: u64| fabric.all_gather(bytes as f64, Group { size: 8, stride: 1 });
    let [apart, together] = [false, true].map(ends);
    for end in [apart[0], together[0], together[1]] {
        close(end.forward.shard.seconds(), moved(2 * end.dense_parameters), 1e-6);
        close(end.input_gradient.shard.seconds(), moved(4 * end.dense_parameters), 1e-6);
    }
    assert_eq!(apart[0].dense_parameters, (51_200 + 2048) * 1024);
    assert_eq!([apart[1].forward.shard, apart[1].input_gradient.shard], [Time::ZERO; 2]);
}

#[test]
fn a_gather_and_a_pass_s_own_messages_on_the_same_wires_take_turns() {
    // Slow links, so that a layer's gather of 2 bytes a parameter outlasts its forward pass. Two tensor-parallel ranks and four
    // replicas share the links of a node: while one sends the other waits, and all but the products shows. With one replica a
    // node the gather takes the cards and the sums the links: both pass meanwhile.
    let mut problem = gpt_problem(1024, 512);
    problem.framework.gathers = Gathers::MicroBatch;
    problem.framework.overlap.parameter_gather = true;
    problem.framework.launch_us = 0.0;
    let chip = &mut problem.cluster.groups[0].chip;
    (chip.link.all_gather_gb_per_s, chip.link.all_reduce_gb_per_s) = (2.0, 2.0);
    (chip.network.nic_gbit_per_s, chip.link.processor_share) = (1.0, 0.0);
    problem.cluster.devices = 32;
    let gathered = |dp: u64, tp: u64, in_turn: bool| {
        let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
        let cost = layer(&problem, Shard { dp, tp, zero: 3, shard_group: dp, ..whole() });
        let group = Group { size: dp, stride: tp };
        let gather = fabric.all_gather(2.0 * cost.dense_parameters as f64, group);
        let [computed, summed, shows] =
            [cost.forward.compute, cost.forward.tensor, cost.forward.shard].map(Time::seconds);
        assert!(summed > 0.0 && gather > computed + summed);
        close(shows, gather - computed - if in_turn { 0.0 } else { summed }, 1e-6);
    };
    gathered(4, 2, true);
    gathered(4, 8, false);
}

#[test]
fn copies_of_a_shard_sum_a_layer_s_gradients_in_pieces_that_each_start_by_themselves() {
    // Shards over four of eight ranks, with a copy each: sums between two in one collective, or in four for each of four layers,
    // which start fifteen times more.
    let mut problem = gpt_problem(1024, 512);
    problem.framework.overlap.gradient_reduce = false;
    let plan = Plan { zero: 3, shard_group: 4, ..replicas(&problem, 8).0 };
    let summed =
        |problem: &Problem| estimate(problem, &plan).expect("legal").time.data_ps.seconds();
    let one = summed(&problem);
    problem.framework.gather_pieces = 4;
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let pair = |bytes: f64| fabric.all_reduce(bytes, Group { size: 2, stride: 4 });
    let piece = 4.0 * 12.0 * 1024.0 * 1024.0 / 16.0;
    let start = 2.0 * pair(piece) - pair(2.0 * piece);
    close(summed(&problem) - one, 15.0 * start, 1e-3);
}

#[test]
fn parameters_that_are_gathered_once_a_step_start_as_often_however_many_pieces_passes_gather() {
    // ZeRO-2 over all eight ranks sums nothing over copies, and gathers what was updated.
    let mut problem = gpt_problem(1024, 512);
    problem.framework.gathers = Gathers::MicroBatch;
    problem.framework.overlap.parameter_gather = false;
    let plan = Plan { zero: 2, shard_group: 8, ..replicas(&problem, 8).0 };
    let gathered = |problem: &Problem| estimate(problem, &plan).expect("legal").time.data_ps;
    let one = gathered(&problem);
    problem.framework.gather_pieces = 12;
    assert!(one.seconds() > 0.0);
    assert_eq!(gathered(&problem), one);
}

#[test]
fn what_is_gathered_once_a_step_may_precede_its_first_pass() {
    // Under DeepSpeed's ZeRO-1 and 2 no pass begins before the gather of what was updated, so that it shows as where nothing runs
    // beside gathers at all: beyond a reduction that shows too, (n - 1)/n of 2 bytes a parameter at 230 GB/s, 8.4 us to start and 7
    // steps of 3.4. What every pass gathers is another matter. Eight ranks of one node.
    let h = 1024;
    let mut problem = gpt_problem(h, 512);
    let o = &mut problem.framework.overlap;
    (o.gradient_reduce, o.parameter_gather, o.step_gather) = (false, true, true);
    let step = |problem: &Problem, zero| {
        let plan = Plan { zero, shard_group: 8, ..replicas(problem, 8).0 };
        estimate(problem, &plan).expect("a legal plan")
    };
    let (behind, third) = (step(&problem, 1), step(&problem, 3));
    problem.framework.overlap.step_gather = false;
    let shown = step(&problem, 1).time.data_ps.seconds();
    assert_eq!(step(&problem, 3), third);
    assert!(behind.time.data_ps.seconds() < shown);
    let parameters = (4 * (12 * h * h + 13 * h) + (51_200 + 2048) * h + 2 * h) as f64;
    let round = |bytes: f64| 7.0 / 8.0 * bytes * parameters / 230e9 + (8.4 + 7.0 * 3.4) * 1e-6;
    close(shown, round(4.0) + round(2.0), 1e-3);
}
