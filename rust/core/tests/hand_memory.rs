//! Sums of the memory estimate worked by hand, from what the frameworks' sources keep.

mod sums;

use autopar_core::estimate::block;
use autopar_core::estimate::layer::Pricer;
use autopar_core::estimate::memory::{self, cast_sixteenths, Holdings};
use autopar_core::estimate::shard::Shard;
use autopar_core::estimate::{estimate, MemoryItems};
use autopar_core::plan::{Plan, Recompute, Stage};
use autopar_core::spec::framework::{Communicators, Framework, GatheredUnit, Gathers, Gradients};
use autopar_core::spec::kernels::AdamKernel;
use autopar_core::spec::model::LayerKind;
use autopar_core::spec::problem::{Problem, Schedule};
use autopar_core::spec::workload::Precision;
use autopar_core::testing::{self, whole};
use autopar_core::units::Bytes;
use sums::{close, gpt_problem, layer, llama, sharded, DENSE, H, S, SH};

/// Sharded as FSDP does over eight ranks.
fn fsdp() -> Shard {
    Shard { dp: 8, zero: 3, shard_group: 8, ..whole() }
}

// ---- Outside the allocator -------------------------------------------------------------------------------------------

#[test]
fn a_process_has_a_context_and_a_communicator_for_each_group_that_it_belongs_to() {
    let mut f = testing::framework();
    f.context_gib = 0.5;
    f.held.communicator_gib = 0.6;
    f.held.communicators =
        Communicators { world: 1, tensor: 2, context: 1, expert: 1, data: 1, pipeline: 1 };
    assert_eq!(memory::context(&f, &whole()), Bytes::from_gib(0.5));
    // All ranks, replicas: 0.5 + 2 x 0.6.
    assert_eq!(memory::context(&f, &Shard { dp: 8, ..whole() }), Bytes::from_gib(1.7));
    // All ranks, two over the tensor-parallel group, replicas, stages: 0.5 + 5 x 0.6.
    let shard = Shard { dp: 2, tp: 4, pipelined: true, ..whole() };
    assert_eq!(memory::context(&f, &shard), Bytes::from_gib(3.5));
    // Of 80 GiB the allocator gets 76.5 less a tenth.
    let offered = memory::capacity(&testing::a100(), &f, &shard, 0.1);
    assert_eq!(offered, Bytes::from_gib(76.5 * 0.9));
}

// ---- Sharded parameters ----------------------------------------------------------------------------------------------

#[test]
fn sharded_layers_are_gathered_two_at_a_time_and_their_gradients_travel_one_behind_the_other() {
    // 200 gathered at 2 bytes; a gradient of 100 at 2 bytes as it is computed, and one of 100 at 4 bytes as it travels.
    let mut f = testing::framework();
    assert_eq!(sharded(&f, fsdp()).buffers, Bytes(400 + 200 + 400));
    // A gradient that travels as it was computed has no copy.
    f.bytes.gradient_sent = 2;
    assert_eq!(sharded(&f, fsdp()).buffers, Bytes(400 + 200));
    // Of 1050 parameters, 132 on each of 8 ranks.
    let items = sharded(&f, fsdp());
    assert_eq!((items.parameters, items.gradients), (Bytes(132 * 2), Bytes(132 * 4)));
}

#[test]
fn a_unit_is_a_layer_or_its_largest_matrix_and_live_parameters_bound_what_is_gathered() {
    // Two units at work and ahead; the largest matrix of the Llama layer above is gate and up-projection: h x 6 h.
    let mut problem = llama();
    let all = layer(&problem, whole()).dense_parameters;
    let unit = |p: &Problem| block::price(&Pricer::new(p, 0, whole()), DENSE).gathered;
    assert_eq!(unit(&problem), all);
    problem.framework.held.gathered_unit = GatheredUnit::Matrix;
    assert_eq!(unit(&problem), 6 * H * H);
    let held = &mut problem.framework.held;
    assert_eq!(held.gathered_parameters(100, 1050), 200);
    held.live_parameters = 1000;
    assert_eq!(held.gathered_parameters(100, 1050), 1000);
    assert_eq!(held.gathered_parameters(100, 700), 700);
    // A matrix at work is there whole, however few may be live.
    assert_eq!(held.gathered_parameters(1200, 7000), 1200);
}

#[test]
fn gradients_are_copied_into_a_bucket_no_larger_than_they_are_unless_zero_allocates_it_whole() {
    // 1050 gradients of 4 bytes as they travel, in a bucket of 5000 bytes.
    let mut f = testing::framework();
    f.bucket_bytes = 5000;
    let held = Holdings { dense_parameters: 1050, reduced_parameters: 1050, ..Holdings::default() };
    let buffers = |shard: Shard| memory::items(&held, &shard, false, &f).buffers;
    assert_eq!(buffers(Shard { dp: 8, ..whole() }), Bytes(4200));
    assert_eq!(buffers(Shard { zero: 1, ..fsdp() }), Bytes(5000));
    assert_eq!(buffers(whole()), Bytes(0));
}

#[test]
fn ends_that_stay_gathered_keep_their_parameters_and_through_the_backward_pass_gradients() {
    // Of 50 parameters the head reads 30, whose gradients of 2 bytes lie beside each layer's. When those of both are there, no layer
    // is: 50 of 2 bytes, and as many of 4 as they travel, are less than 600 and 1000 of layers, of smaller ones 300 less 60 and 100.
    let mut f = testing::framework();
    f.bytes.gradient_sent = 2;
    f.held.gathered_ends = true;
    let held = |unit: u64| Holdings {
        dense_parameters: 1050,
        end_parameters: 50,
        head_parameters: 30,
        gathered_parameters: 2 * unit,
        unreduced_parameters: unit,
        working_set: Bytes(7),
        ..Holdings::default()
    };
    let items = |f: &Framework, unit: u64| memory::items(&held(unit), &fsdp(), false, f);
    let of = |f: &Framework, unit: u64| (items(f, unit).buffers, items(f, unit).working_set);
    assert_eq!(of(&f, 100), (Bytes(600 + 50 * 2), Bytes(7 + 30 * 2)));
    f.bytes.gradient_sent = 4;
    assert_eq!(of(&f, 100), (Bytes(1000 + 50 * 2), Bytes(7 + 30 * 2)));
    assert_eq!(of(&f, 10), (Bytes(100 + 50 * 2), Bytes(50 * 6 - 100)));
    // Where they are units of their own, the head's are gone: 20 of 6 bytes less 100.
    f.ends_apart = true;
    assert_eq!(of(&f, 10), (Bytes(100 + 50 * 2), Bytes(20 * 6 - 100)));
    f.bytes.gradient_sent = 2;
    // Without sharded parameters nothing is gathered.
    let plain = sharded(&f, Shard { zero: 1, ..fsdp() });
    assert_eq!((plain.buffers, plain.working_set), (Bytes(0), Bytes(7)));
}

#[test]
fn parameters_gathered_once_a_step_lie_beside_their_shards_and_so_do_gradients() {
    // 1050 whole and 132 of them as this rank's: 1182 parameters of 2 bytes and gradients of 4.
    let mut f = testing::framework();
    f.gathers = Gathers::StepInPipeline;
    let items = sharded(&f, Shard { pipelined: true, ..fsdp() });
    assert_eq!((items.parameters, items.gradients), (Bytes(1182 * 2), Bytes(1182 * 4)));
    assert_eq!((items.optimizer, items.buffers), (Bytes(132 * 12), Bytes(0)));
    // Where those of a step are dropped the next one's shares come layer by layer in place of whole ones.
    f.held.gradients = Gradients::Passing;
    let items = sharded(&f, Shard { pipelined: true, ..fsdp() });
    assert_eq!((items.parameters, items.gradients), (Bytes(1182 * 2), Bytes(1050 * 4)));
    // On a stream of its own what reduces them takes memory for its own.
    f.shard_copies.reduced = true;
    let apart = sharded(&f, Shard { pipelined: true, ..fsdp() });
    assert_eq!(apart.cached - items.cached, Bytes(132 * 4));
}

#[test]
fn parameters_kept_whole_between_passes_lie_beside_the_shards_that_are_updated() {
    // 1050 whole in 2 bytes; this rank's 132 are what the update writes, where the optimizer has no copy of them.
    let mut f = testing::framework();
    let of = |f: &Framework| sharded(f, Shard { zero: 2, ..fsdp() }).parameters;
    (f.gathers, f.bytes.optimizer) = (Gathers::MicroBatch, 10);
    assert_eq!(of(&f), Bytes(1182 * 2));
    // A layer's gradient is reduced as where they are gathered for each pass: 100 in 2 bytes, and in 4 as they travel.
    let items = |f: &Framework| sharded(f, Shard { zero: 2, ..fsdp() });
    assert_eq!(items(&f).buffers, Bytes(200 + 400));
    // In the forward pass two layers' lie in buffers of their own before they are copied out.
    let plain = items(&f).cached;
    f.shard_copies.gathered = true;
    assert_eq!(items(&f).cached - plain, Bytes(2 * 100 * 2));
    f.bytes.optimizer = 12;
    assert_eq!(of(&f), Bytes(1050 * 2));
    assert_eq!(items(&f).buffers, Bytes(0));
}

#[test]
fn gradients_that_wait_for_the_last_micro_batch_add_up_whole_as_they_will_travel() {
    // 1050 in 2 bytes, of which this rank's 132 in 4 are left in the end. The only micro-batch reduces them as they come.
    let mut f = testing::framework();
    (f.gathers, f.reduces_once, f.bytes.gradient_sent) = (Gathers::MicroBatch, true, 2);
    assert_eq!(sharded(&f, fsdp()).gradients, Bytes(1050 * 2));
    let only = Holdings { dense_parameters: 1050, single: true, ..Holdings::default() };
    assert_eq!(memory::items(&only, &fsdp(), false, &f).gradients, Bytes(132 * 4));
}

#[test]
fn eight_bit_copies_lie_beside_the_weights_of_the_layers_alone() {
    // 1050 parameters of 2 bytes, and 2 bytes for each of the 1000 that are not of embedding and head.
    let mut f = testing::framework();
    f.held.fp8_weight_bytes = 2;
    let held = Holdings {
        dense_parameters: 1050,
        end_parameters: 50,
        cast_sixteenths: cast_sixteenths(&f, Precision::Fp8, false),
        ..Holdings::default()
    };
    let items = memory::items(&held, &whole(), false, &f);
    assert_eq!(items.parameters, Bytes(1050 * 2 + 1000 * 2));
}

#[test]
fn eight_bit_weights_take_the_place_of_what_they_are_cast_from() {
    // 50 of embedding and head in 2 bytes, 1000 of layers in 1, whole; the eighth of what these are cast from, 125 of 2 bytes, lies
    // with the moments of 4 of these and of 7.
    let mut f = testing::framework();
    (f.held.fp8_weight_bytes, f.held.narrow_weights, f.bytes.optimizer) = (1, true, 4);
    let held = |f: &Framework| Holdings {
        dense_parameters: 1050,
        end_parameters: 50,
        cast_sixteenths: cast_sixteenths(f, Precision::Fp8, false),
        narrow_weights: memory::narrow_weights(f, Precision::Fp8),
        ..Holdings::default()
    };
    let items = memory::items(&held(&f), &Shard { zero: 1, ..fsdp() }, false, &f);
    assert_eq!(items.parameters, Bytes(50 * 2 + 1000));
    assert_eq!(items.optimizer, Bytes(132 * 4 + 125 * 2));
    // Sharded parameters are sharded so; an optimizer with a copy in full precision needs no other.
    f.bytes.optimizer = 12;
    let items = memory::items(&held(&f), &fsdp(), false, &f);
    assert_eq!(items.parameters, Bytes(132 * 2 - 125));
    assert_eq!(items.optimizer, Bytes(132 * 12));
    assert!(!memory::narrow_weights(&f, Precision::Fp4));
    // Where no cast is kept nothing lies in place of a weight.
    f.held.fp8_weight_bytes = 0;
    assert!(!memory::narrow_weights(&f, Precision::Fp8));
}

// ---- What is not there all the time ----------------------------------------------------------------------------------

/// 100 parameters of 2 bytes with 4-byte gradients and 12 bytes of optimizer state, 4 more while it steps; one micro-batch.
fn one_step(change: impl Fn(&mut Framework), activations: u64) -> MemoryItems {
    let mut f = testing::framework();
    f.held.update_bytes = 4;
    change(&mut f);
    let held = Holdings {
        dense_parameters: 100,
        activations: Bytes(activations),
        logits: Bytes(50),
        working_set: Bytes(30),
        single: true,
        ..Holdings::default()
    };
    memory::items(&held, &whole(), false, &f)
}

#[test]
fn the_optimizer_s_copies_are_there_when_the_activations_are_gone() {
    // 200 + 400 + 1200 all the time. Activations of 1000 and logits of 50 are more than copies of 400, which the allocator
    // yet takes from the driver, as they fit into no block that was freed; activations of 100 are less.
    let items = one_step(|_| (), 1000);
    assert_eq!((items.activations, items.update), (Bytes(1000), Bytes(0)));
    assert_eq!((items.allocated(), items.reserved()), (Bytes(2850), Bytes(3250)));
    let items = one_step(|_| (), 100);
    assert_eq!((items.activations, items.logits, items.update), (Bytes(0), Bytes(0), Bytes(400)));
    assert_eq!((items.allocated(), items.reserved()), (Bytes(2200), Bytes(2350)));
}

#[test]
fn what_is_updated_in_turn_has_copies_in_turn() {
    // Of 64,000 parameters over eight ranks 8000 of 2 + 4 + 12 bytes; copies of 4 of all, or of 3000 at a time.
    let mut f = testing::framework();
    (f.gathers, f.bucket_bytes, f.held.update_bytes) = (Gathers::MicroBatch, 0, 4);
    let held = Holdings { dense_parameters: 64_000, ..Holdings::default() };
    let update = |f: &Framework| memory::items(&held, &fsdp(), false, f).update;
    assert_eq!(update(&f), Bytes(8000 * 4));
    f.held.updated_at_once = 3000;
    assert_eq!(update(&f), Bytes(3000 * 4));
}

#[test]
fn adam_in_separate_operators_holds_the_roots_of_all_second_moments() {
    // 200 + 400 + 1200 and 4 bytes of 100 roots, which tensor by tensor lie where activations were: none is taken for them.
    let separate =
        |f: &mut Framework| (f.held.update_bytes, f.fused.optimizer) = (0, AdamKernel::Separate);
    let items = one_step(separate, 100);
    assert_eq!(
        (items.update, items.allocated(), items.reserved()),
        (Bytes(400), Bytes(2200), Bytes(2200))
    );
    let items = one_step(separate, 1000);
    assert_eq!((items.update, items.reserved()), (Bytes(0), Bytes(2850)));
    // Moments of 16 bits, without a copy of the weights, have roots of 16.
    let narrow = |f: &mut Framework| {
        separate(f);
        f.bytes.optimizer = 4;
    };
    assert_eq!(one_step(narrow, 0).update, Bytes(200));
}

#[test]
fn what_was_gathered_for_the_passes_is_gone_when_the_optimizer_steps() {
    // Eight ranks of FSDP, 64,000 parameters in all: shards of 2 + 4 + 12 bytes, and roots of 4 in place of a layer's
    // 16-bit parameters and gradients on their way.
    let mut f = testing::framework();
    (f.gathers, f.fused.optimizer, f.bucket_bytes) = (Gathers::MicroBatch, AdamKernel::Separate, 0);
    let held = Holdings {
        dense_parameters: 64_000,
        gathered_parameters: 1000,
        unreduced_parameters: 1000,
        ..Holdings::default()
    };
    let items = memory::items(&held, &fsdp(), false, &f);
    assert_eq!((items.buffers, items.update), (Bytes(0), Bytes(8000 * 4)));
    assert_eq!(items.allocated(), Bytes(8000 * (2 + 4 + 12 + 4)));
}

#[test]
fn gradients_that_pass_come_as_activations_go() {
    let passing =
        |f: &mut Framework| (f.held.update_bytes, f.held.gradients) = (0, Gradients::Passing);
    // As the backward pass begins: 200 + 1200 and 1000 + 50, without the gradients' 400. What was freed elsewhere serves no
    // gradient: the driver gave all of it.
    let items = one_step(passing, 1000);
    assert_eq!((items.gradients, items.allocated()), (Bytes(0), Bytes(2450)));
    assert_eq!(items.reserved(), Bytes(2850));
    // As it ends: the gradients, and 30 of the layer at work, in place of 300 and 50.
    let items = one_step(passing, 300);
    assert_eq!((items.gradients, items.allocated()), (Bytes(400), Bytes(1830)));
    // Of a layer of 5 of the 100 parameters, and as many of an embedding, 10 gradients of 4 bytes come once the 30 are gone.
    let mut f = testing::framework();
    passing(&mut f);
    let held = Holdings {
        dense_parameters: 100,
        end_parameters: 8,
        head_parameters: 3,
        unreduced_parameters: 5,
        activations: Bytes(300),
        working_set: Bytes(50),
        single: true,
        ..Holdings::default()
    };
    let items = memory::items(&held, &whole(), false, &f);
    assert_eq!((items.gradients, items.working_set), (Bytes(400), Bytes(50 - 10 * 4)));
    // Laid out before, nothing lies beside anything that it could replace.
    let planned = |f: &mut Framework| {
        passing(f);
        f.held.planned = true;
    };
    assert_eq!(one_step(planned, 1000).reserved(), Bytes(2450));
}

#[test]
fn gradients_that_replace_parameters_need_nothing_where_those_are_gathered() {
    let mut f = testing::framework();
    f.held.gradients = Gradients::Replace;
    assert_eq!(sharded(&f, fsdp()).gradients, Bytes(0));
    assert_eq!(sharded(&f, Shard { zero: 1, ..fsdp() }).gradients, Bytes(1050 * 4));
}

#[test]
fn sliced_parameters_lie_gathered_in_16_bits_beside_their_slices() {
    // Of 1050 parameters in 4 bytes 132 on each of 8 ranks, with as many states; all gathered in 2 bytes. Gradients add up whole,
    // unless they are reduced at once.
    let mut f = testing::framework();
    (f.bytes.parameter, f.held.gathered_copy_bytes) = (4, 2);
    let items = sharded(&f, Shard { zero: 1, ..fsdp() });
    assert_eq!(items.parameters, Bytes(132 * 4 + 1050 * 2));
    assert_eq!((items.gradients, items.optimizer), (Bytes(1050 * 4), Bytes(132 * 12)));
    let once = Holdings { dense_parameters: 1050, single: true, ..Holdings::default() };
    let shard = Shard { zero: 1, ..fsdp() };
    assert_eq!(memory::items(&once, &shard, false, &f).gradients, Bytes(132 * 4));
    f.gathers = Gathers::MicroBatch;
    assert_eq!(sharded(&f, Shard { zero: 2, ..fsdp() }).gradients, Bytes(132 * 4));
    // One rank slices nothing.
    assert_eq!(sharded(&f, whole()).parameters, Bytes(1050 * 4));
}

#[test]
fn buckets_beside_the_gradients_are_as_large_as_all_of_them() {
    let mut f = testing::framework();
    (f.bucket_bytes, f.held.bucket_copies) = (100, true);
    let held = Holdings { dense_parameters: 1050, reduced_parameters: 1050, ..Holdings::default() };
    let shard = Shard { dp: 8, ..whole() };
    assert_eq!(memory::items(&held, &shard, false, &f).buffers, Bytes(4200));
}

#[test]
fn buffered_stages_have_places_for_twice_as_many_micro_batches_as_there_are_stages() {
    // Two stages of two layers, eight micro-batches: 1F1B keeps two of them on the first stage and one on the last. With
    // buffers the first has four places, and four for the 16-bit casts of its layers' weights; the last has none.
    let mut problem =
        testing::problem(testing::gpt(4, H), testing::cluster(testing::a100(), 2), 8, S);
    problem.framework.casts_weights = true;
    let stage = Stage { chip: 0, layers: 2, recompute: Recompute::None, offload: 0 };
    let plan = testing::plan(vec![stage; 2]);
    let stages = |p: &Problem| -> Vec<MemoryItems> {
        estimate(p, &plan).unwrap().stages.iter().map(|s| s.memory).collect()
    };
    let plain = stages(&problem);
    problem.framework.held.stage_buffers = true;
    let buffered = stages(&problem);
    assert_eq!(buffered[0].activations, plain[0].activations * 2);
    let weights = 2 * layer(&problem, Shard { pipelined: true, ..whole() }).dense_parameters;
    assert_eq!(buffered[0].parameters - plain[0].parameters, Bytes(weights * 2 * 4));
    assert_eq!(buffered[1].activations, plain[1].activations);
    assert_eq!(buffered[1].parameters, plain[1].parameters);
    // A message of 2 bytes a token and channel arrives from either side, and with buffers leaves to it.
    assert_eq!(buffered[1].buffers, plain[1].buffers * 2);
    assert_eq!(plain[1].buffers, Bytes(SH * 2 * 2));
}

#[test]
fn every_micro_batch_may_have_buffers_for_its_messages() {
    // Eight micro-batches through two stages, each message 2 bytes a token and channel: eight gradients come back to the first,
    // in place of a buffer for each side; with two chunks a stage, an input of the second and gradients of both.
    let mut problem =
        testing::problem(testing::gpt(4, H), testing::cluster(testing::a100(), 2), 8, S);
    let stage = Stage { chip: 0, layers: 2, recompute: Recompute::None, offload: 0 };
    let plan = testing::plan(vec![stage; 2]);
    let chunks = Plan { vpp: 2, schedule: Schedule::Interleaved, ..plan.clone() };
    let buffers = |p: &Problem, plan: &Plan| estimate(p, plan).unwrap().stages[0].memory.buffers;
    assert_eq!(buffers(&problem, &plan), Bytes(2 * SH * 2));
    problem.framework.held.message_buffers = true;
    assert_eq!(buffers(&problem, &plan), Bytes(SH * 2 * 8));
    assert_eq!(buffers(&problem, &chunks), Bytes(3 * SH * 2 * 8));
}

#[test]
fn a_share_of_each_chunk_waits_on_the_host_and_two_chunks_shares_are_on_their_way() {
    // Two stages of two layers: the first keeps two micro-batches of 2 k beside the embedding's. With 0.25 on the host, 1.5 k
    // each, and buffers of 0.25 (2 k) for one that leaves and one that comes back.
    let mut problem =
        testing::problem(testing::gpt(4, H), testing::cluster(testing::a100(), 2), 8, S);
    problem.framework.held.logit_bytes = 0;
    let stage = Stage { chip: 0, layers: 2, recompute: Recompute::None, offload: 0 };
    let plan = testing::plan(vec![stage; 2]);
    let first = |p: &Problem| estimate(p, &plan).unwrap().stages[0].memory;
    let plain = first(&problem);
    problem.framework.held.offloaded_share = 0.25;
    let shared = first(&problem);
    let k = layer(&problem, Shard { pipelined: true, ..whole() }).kept;
    assert_eq!(plain.activations - shared.activations, k);
    assert_eq!(shared.working_set - plain.working_set, k);
    // It leaves and comes back behind the passes; where memory is not pinned each of nine passes, eight on the second stage and one
    // before them on the first, waits for both ways of 0.25 (2 k), at what one thread copies.
    let host = &mut problem.cluster.groups[0].chip.host;
    (host.pcie_gb_per_s, host.core_gb_per_s) = (1e3, 500.0);
    let hidden = estimate(&problem, &plan).unwrap().step_s;
    problem.framework.offload.pinned = false;
    let open = estimate(&problem, &plan).unwrap().step_s - hidden;
    close(open, 9.0 * 2.0 * 0.25 * 2.0 * k.0 as f64 / 500e9, 1e-3);
    // Nothing of a step is faster for it.
    problem.framework.offload.pinned = true;
    problem.cluster.groups[0].chip.host.pcie_gb_per_s = 1e-3;
    assert!(estimate(&problem, &plan).unwrap().step_s > 1.0);
}

#[test]
fn shards_on_the_host_leave_the_device_and_cross_pcie_with_every_pass() {
    // Gathered forward and backward, 2 bytes each, and reduced in `gradient_sent`: an eighth of each layer on a rank.
    let mut problem = llama();
    problem.framework.gathers = Gathers::MicroBatch;
    problem.framework.overlap.parameter_gather = false;
    let stage = Stage { chip: 0, layers: 4, recompute: Recompute::None, offload: 0 };
    let plan = Plan { dp: 8, zero: 3, shard_group: 8, ..testing::plan(vec![stage]) };
    let memory = |p: &Problem| estimate(p, &plan).unwrap().stages[0].memory;
    assert_eq!(memory(&problem).parameters, Bytes(problem.model.parameters() / 8 * 2));
    problem.framework.held.parameters_on_host = true;
    let there = memory(&problem);
    assert_eq!((there.parameters, there.gradients), (Bytes::ZERO, Bytes::ZERO));
    // Unless gradients stay, an eighth of all on each rank.
    problem.framework.held.gradients_stay = true;
    let stay = memory(&problem);
    let shard = Bytes(problem.model.parameters() / 8 * problem.framework.bytes.gradient);
    assert_eq!((stay.parameters, stay.gradients), (Bytes::ZERO, shard));
    // They may be whole.
    let whole = estimate(&problem, &Plan { zero: 1, ..plan.clone() }).unwrap().stages[0].memory;
    assert_eq!((whole.parameters, whole.gradients), (Bytes::ZERO, Bytes(8 * shard.0)));
    problem.framework.held.gradients_stay = false;
    problem.cluster.groups[0].chip.host.pcie_gb_per_s = 1e-3;
    let each = (2 + 2 + problem.framework.bytes.gradient_sent) as f64 / (8.0 * 1e6);
    let layers: u64 = (0..4).map(|i| problem.model.layer_parameters(i)).sum();
    let seconds = estimate(&problem, &plan).unwrap().step_s;
    let (least, most) = (each * layers as f64, each * problem.model.parameters() as f64 + 1.0);
    assert!(least < seconds && seconds < most, "{least} {seconds} {most}");
    // Two gathers of 2 bytes each are left of it where gradients stay.
    problem.framework.held.gradients_stay = true;
    let gathers = estimate(&problem, &plan).unwrap().step_s;
    problem.framework.held.gradients_stay = false;
    let sent = problem.framework.bytes.gradient_sent as f64 / (8.0 * 1e6);
    let (crossed, all) = (seconds - gathers, problem.model.parameters() as f64);
    assert!(sent * layers as f64 <= crossed + 1e-3 && crossed < sent * all + 1.0, "{crossed}");
    // One rank, which has no shards, keeps all of it there: eight times as much, in each of eight micro-batches.
    let mut one = Problem { cluster: testing::cluster(testing::a100(), 1), ..problem.clone() };
    one.cluster.groups[0].chip.host.pcie_gb_per_s = 1e-3;
    let alone = estimate(&one, &Plan { dp: 1, zero: 0, shard_group: 1, ..plan.clone() }).unwrap();
    let held = alone.stages[0].memory;
    assert_eq!((held.parameters, held.gradients), (Bytes::ZERO, Bytes::ZERO));
    assert!(64.0 * least < alone.step_s && alone.step_s < 64.0 * most, "{}", alone.step_s);
    // None of it crosses once more where the optimizer's state is there too.
    let both = Plan { optimizer_offload: true, ..plan.clone() };
    assert!((estimate(&problem, &both).unwrap().step_s - seconds).abs() < 1.0);
}

#[test]
fn buffers_that_are_copied_out_are_kept_for_two_layers_or_for_the_ends_and_a_layer() {
    // The next is gathered before the last is free. Beside the 100 of a layer in 2 bytes that are counted lie as many, or embedding and
    // head if they are more: 50 are not, 250 are; as units of their own 200 and 50.
    let mut f = testing::framework();
    f.gathers = Gathers::MicroBatch;
    f.held.gathered_ends = true;
    let cached = |f: &Framework, end_parameters: u64| {
        let held = Holdings {
            dense_parameters: 1000,
            end_parameters,
            head_parameters: 50,
            gathered_parameters: 200,
            unreduced_parameters: 100,
            ..Holdings::default()
        };
        memory::items(&held, &fsdp(), false, f).cached
    };
    let more = |mut f: Framework, end_parameters: u64| {
        let plain = cached(&f, end_parameters);
        f.shard_copies.gathered = true;
        cached(&f, end_parameters) - plain
    };
    assert_eq!([50, 250].map(|ends| more(f.clone(), ends)), [100, 250].map(|n| Bytes(n * 2)));
    f.ends_apart = true;
    assert_eq!(more(f, 250), Bytes(200 * 2));
}

#[test]
fn the_first_step_puts_gradients_and_moments_where_logits_had_been() {
    // A block of 9000 that a loss left is cut: 1050 x (4 + 4) go into it, the rest is too small for the next logits.
    let mut f = testing::framework();
    (f.bytes.optimizer, f.held.gradients) = (4, Gradients::Passing);
    let cached = |f: &Framework, block: u64| {
        let held =
            Holdings { dense_parameters: 1050, cached_logits: Bytes(block), ..Holdings::default() };
        memory::items(&held, &whole(), false, f).cached
    };
    let more = |f: &Framework, block| cached(f, block) - cached(f, 0);
    assert_eq!([9000, 8000].map(|block| more(&f, block)), [600, 0].map(Bytes));
    // What stays from the first step on had its place before there were logits.
    f.held.gradients = Gradients::Kept;
    assert_eq!(more(&f, 9000), Bytes(9000));
}

#[test]
fn freed_memory_is_kept_no_further_than_the_device_has_room() {
    // 50 allocated, 5 of context and 40 that was freed fill 95. Of 80 the allocator keeps 25, of 52 nothing.
    let items = MemoryItems {
        parameters: Bytes(50),
        cached: Bytes(40),
        context: Bytes(5),
        ..MemoryItems::default()
    };
    let cached = |memory| items.within(Bytes(memory)).cached;
    assert_eq!([100, 80, 52].map(cached), [40, 25, 0].map(Bytes));
}

#[test]
fn of_layers_whose_loads_know_nothing_of_each_other_the_excess_adds_up_as_variances_do() {
    // One of eight experts a rank, 1,024 visits of the mean: the fullest of a layer has sqrt(2 ln 8 (1 / 1024 + v)) times the
    // mean beyond it, the fullest of four layers together twice what that of one has, not four times.
    let mut problem = gpt_problem(1024, 512);
    problem.model.moe = Some(testing::moe(8, 2, 1024));
    let shard = Shard { dp: 8, ep: 8, ..whole() };
    let of_layers = |problem: &Problem, layers: u32, recompute: Recompute| {
        let mut problem = problem.clone();
        problem.model.layers = layers;
        let stage = Stage { chip: 0, layers, recompute, offload: 0 };
        let plan = Plan { dp: 8, ep: 8, ..testing::plan(vec![stage]) };
        let kind = LayerKind { moe: true, windowed: false };
        let layer = block::price(&Pricer::new(&problem, 0, shard), kind);
        let kept = estimate(&problem, &plan).expect("a legal plan").stages[0].memory.activations;
        (layer, kept)
    };
    let beyond = |problem: &Problem, layers: u32| {
        let (layer, kept) = of_layers(problem, layers, Recompute::None);
        (kept - layer.cost.kept * u64::from(layers)).0 as f64
    };
    problem.model.moe.as_mut().unwrap().capacity_factor = 1.0;
    // Places that are filled alike: nothing but what embedding and head keep.
    let ends = beyond(&problem, 1);
    assert_eq!(beyond(&problem, 4), ends);
    problem.model.moe.as_mut().unwrap().capacity_factor = 0.0;
    let mut excess = |variation: f64| {
        problem.workload.expert_load_variation = variation;
        let [one, four] = [1, 4].map(|layers| beyond(&problem, layers) - ends);
        close(four, 2.0 * one, 0.02);
        let (layer, kept) = of_layers(&problem, 4, Recompute::Uniform { layers: 1 });
        assert_eq!(kept.0 as f64 - ends, 4.0 * layer.cost.kept_input.0 as f64);
        one
    };
    let load = |variance: f64| (1.0 / 1024.0 + variance).sqrt();
    close(excess(0.5) / excess(1.0), load(0.25) / load(1.0), 0.02);
}
