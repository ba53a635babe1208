//! Sums worked by hand of what is asked for by name: operators that are computed again, groups of gradients.

mod sums;

use autopar_core::estimate::block;
use autopar_core::estimate::collective::Fabric;
use autopar_core::estimate::compute::Device;
use autopar_core::estimate::estimate;
use autopar_core::estimate::layer::Pricer;
use autopar_core::estimate::replica::Groups;
use autopar_core::estimate::shard::{LayerCost, Shard};
use autopar_core::plan::{Plan, Recompute, Stage};
use autopar_core::spec::cluster::Group;
use autopar_core::spec::framework::{ContextExchange, Named, Offloaded, Projections, Selective};
use autopar_core::spec::kernels::NormKernel;
use autopar_core::spec::model::{Activation, LayerKind, Norm, Position};
use autopar_core::spec::problem::Problem;
use autopar_core::testing::{self, named, whole};
use autopar_core::units::{Bytes, Time};
use sums::{close, gpt_problem, layer};

const S: u64 = 1024;
const H: u64 = 2048;
/// Bytes of a number for each token and channel.
const SH: u64 = S * H;

/// A layer of Llama's kind in fused operators: 16 heads of 128, 4 key heads, an MLP of 3 h, rotary positions.
fn llama(again: Named) -> Problem {
    let mut model = testing::gpt(4, H);
    (model.kv_heads, model.ffn_hidden, model.vocab) = (4, 3 * H, 32_000);
    (model.norm, model.norm_bias, model.activation) = (Norm::Rmsnorm, false, Activation::Swiglu);
    (model.position, model.position_rows, model.tied_embeddings) = (Position::Rope, 0, false);
    (model.qkv_bias, model.o_bias, model.mlp_bias) = (false, false, false);
    let mut problem = testing::problem(model, testing::cluster(testing::a100(), 8), 8, S);
    (problem.framework.selective, problem.framework.named) = (Selective::Named, again);
    problem
}

fn dropped(cost: &LayerCost) -> Bytes {
    cost.kept - cost.kept_selective
}

#[test]
fn each_operator_drops_what_it_makes_and_the_backward_pass_reads() {
    let alone = |again: Named| dropped(&layer(&llama(again), whole()));
    // Two norms of 2 bytes; the activation's output of 3 h; both halves that it reads.
    let norm = alone(Named { norm: true, ..named() });
    let activation = alone(Named { activation: true, ..named() });
    let expansion = alone(Named { expansion: true, ..named() });
    assert_eq!((norm, activation, expansion), (Bytes(SH * 4), Bytes(SH * 6), Bytes(SH * 12)));
    // Attention's output, and a 32-bit sum for each query of 16 heads.
    let attention = alone(Named { attention: true, ..named() });
    assert_eq!(attention, Bytes(SH * 2 + S * 16 * 4));
    // Queries h, keys and values a quarter each, and the rotated copies of queries and keys: 1.5 h and 1.25 h.
    let projections = alone(Named { projections: true, ..named() });
    assert_eq!(projections, Bytes(SH * 3 + SH * 5 / 2));
    // All together leave the inputs of the two norms.
    let every = Named {
        norm: true,
        projections: true,
        attention: true,
        expansion: true,
        activation: true,
        ..named()
    };
    let cost = layer(&llama(every), whole());
    assert_eq!(cost.kept_selective, Bytes(SH * 4));
    // With what closes attention, the input of the first.
    let closed = layer(&llama(Named { output: true, ..every }), whole());
    assert_eq!(closed.kept_selective, Bytes(SH * 2));
    assert!(closed.recompute_selective.compute > cost.recompute_selective.compute);
    // And keys and values of half its width together where the pass returns them.
    let mut returning = llama(Named { output: true, ..every });
    returning.framework.held.returned_keys = true;
    let returning = layer(&returning, whole());
    assert_eq!(returning.kept_selective, Bytes(SH * 2 + SH));
    assert_eq!(returning.kept_selective, returning.kept_input);
    assert_eq!(norm + projections + attention + expansion + activation, dropped(&cost));
    // The output product, the second of the MLP and the residual additions are not run again.
    assert!(cost.recompute_selective.compute < cost.forward.compute);
}

#[test]
fn separate_operators_make_more_that_is_dropped() {
    // A root-mean-square norm keeps 4 bytes more of its own, the gate's partner 2 of 3 h.
    let mut problem = llama(Named { norm: true, activation: true, ..named() });
    let fused = dropped(&layer(&problem, whole()));
    problem.framework.fused.norm = NormKernel::Separate;
    problem.framework.fused.activation = false;
    assert_eq!(dropped(&layer(&problem, whole())) - fused, Bytes(SH * 2 * 4 + SH * 6));
    // ReLU keeps its output in place of its input: there is nothing to gain.
    problem.model.activation = Activation::Relu;
    problem.framework.named.norm = false;
    let relu = layer(&problem, whole());
    assert_eq!((dropped(&relu), relu.recompute_selective.total()), (Bytes::ZERO, Time::ZERO));
}

#[test]
fn a_named_activation_runs_once_more() {
    // It reads two halves of 3 h and writes their product: 9 h of 2 bytes a token.
    let problem = llama(Named { activation: true, ..named() });
    let again = layer(&problem, whole()).recompute_selective;
    let chip = &problem.cluster.groups[0].chip;
    let kernels = &problem.framework.attention_kernels;
    let device = Device::new(chip, problem.workload.precision, kernels, problem.cluster.devices);
    close(again.total().seconds(), device.stream((SH * 18) as f64), 1e-6);
}

#[test]
fn a_norm_whose_result_is_kept_gathered_is_gathered_again_or_kept() {
    let mut problem = llama(Named { norm: true, ..named() });
    let shard = Shard { tp: 4, sp: true, ..whole() };
    // A rank keeps its quarter: half a byte for each of two norms.
    assert_eq!(dropped(&layer(&problem, shard)), Bytes(SH));
    problem.framework.held.gathered_inputs = true;
    let cost = layer(&problem, shard);
    assert_eq!(dropped(&cost), Bytes(SH * 4));
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let gather = fabric.all_gather((SH * 2) as f64, Group { size: 4, stride: 1 });
    close(cost.recompute_selective.tensor.seconds(), 2.0 * gather, 1e-6);
    // mp_comm_recompute off: what communication brought stays.
    problem.framework.keeps_tensor_results = true;
    let kept = layer(&problem, shard);
    assert_eq!((dropped(&kept), kept.recompute_selective.tensor), (Bytes::ZERO, Time::ZERO));
}

#[test]
fn experts_have_their_activation_and_first_products_by_themselves() {
    let mut problem = llama(Named { activation: true, expansion: true, ..named() });
    problem.model.moe = Some(testing::moe(8, 2, H));
    let kind = LayerKind { moe: true, windowed: false };
    let cost = block::price(&Pricer::new(&problem, 0, whole()), kind).cost;
    // Two experts a token, each with two halves of h and their product.
    assert_eq!(dropped(&cost), Bytes(2 * SH * (4 + 2)));
}

#[test]
fn groups_of_gradients_begin_at_their_places() {
    // 100, four of 10, 60: three groups, of 100, 2 x 10, and the rest.
    let parameters = [(1, 100), (4, 10), (1, 60)];
    let groups = |places: &[u32]| Groups::of(places, parameters.into_iter());
    assert_eq!(groups(&[1, 3]), Groups { count: 3, last: 0.5 });
    // A place 0 opens the first group; one beyond the parameters opens none.
    assert_eq!(groups(&[0, 3, 9]), Groups { count: 2, last: 0.6 });
    assert_eq!(groups(&[9]), Groups { count: 1, last: 1.0 });
}

#[test]
fn groups_start_once_each_and_the_first_parameters_show() {
    // Two more starts of 56 us; the gradients of the embedding's two tables, which are complete last, are a group of their own,
    // and without the second table's the first's.
    let h = 1024;
    let mut problem = gpt_problem(h, 512);
    let stages = vec![Stage { chip: 0, layers: 4, recompute: Recompute::None, offload: 0 }];
    let plan = Plan { dp: 8, ..testing::plan(stages) };
    let data = |problem: &Problem, plan: &Plan| {
        let found = estimate(problem, plan).expect("a legal plan");
        (found.time.data_ps.seconds(), found.stages[0].backward_ps.seconds())
    };
    problem.framework.overlap.gradient_reduce = false;
    let one = data(&problem, &plan).0;
    problem.framework.fused_reduce_places = vec![2, 18];
    let (all, backward) = data(&problem, &plan);
    close(all, one + 2.0 * 56e-6, 1e-6);
    problem.framework.overlap.gradient_reduce = true;
    let parameters = 4 * (12 * h * h + 13 * h) + (51_200 + 2048) * h + 2 * h;
    let last = all * ((51_200 + 2048) * h) as f64 / parameters as f64;
    close(data(&problem, &plan).0, (all - backward).max(last), 1e-6);
    problem.framework.fused_reduce_places = vec![1, 18];
    let first = all * (51_200 * h) as f64 / parameters as f64;
    close(data(&problem, &plan).0, (all - backward).max(first), 1e-6);
    problem.framework.fused_reduce_places = vec![2, 18];
    // Scattered gradients have groups by bytes.
    let scattered = Plan { zero: 1, shard_group: 8, ..plan };
    let by_places = data(&problem, &scattered);
    problem.framework.fused_reduce_places.clear();
    assert_eq!(by_places, data(&problem, &scattered));
}

#[test]
fn computing_an_operator_again_takes_the_host_four_launches_beside_its_kernels() {
    // Launches of a second each outlast everything else: two fused norms are a kernel each, the fused activation is one.
    let mut problem = llama(named());
    problem.framework.launch_us = 1e6;
    problem.framework.selective = Selective::Named;
    let mut again = |norm: bool, activation: bool| {
        problem.framework.named = Named { norm, activation, ..named() };
        layer(&problem, whole()).recompute_selective.total().seconds().round()
    };
    assert_eq!(again(false, false), 0.0);
    assert_eq!(again(true, false), 2.0 * (1.0 + 4.0));
    assert_eq!(again(false, true), 1.0 + 4.0);
    assert_eq!(again(true, true), 15.0);
}

#[test]
fn the_first_of_each_two_products_is_not_computed_again() {
    // Launches of a second each outlast everything else: of seven products the second, fourth and sixth run again, where some are
    // packed of four the second and the fourth.
    let mut problem = llama(named());
    problem.framework.selective = Selective::Operators;
    problem.framework.launch_us = 1e6;
    let mut launches = |projections| {
        problem.framework.projections = projections;
        let cost = layer(&problem, whole());
        let seconds = [cost.forward, cost.recompute_selective].map(|pass| pass.total().seconds());
        seconds.map(|s| s.round() as i64)
    };
    let [forward, again] = launches(Projections::Packed);
    assert_eq!(launches(Projections::Apart), [forward + 3, again + 1]);
}

#[test]
fn every_second_product_s_recompute_repeats_gathers_and_no_sum_or_exchange_of_a_sequence() {
    // Launches of a second each outlast everything else: with tensor parallel the host launches two gathers and two sums more,
    // of which it repeats the gathers; with context parallel one gather of keys and values more, which it does not repeat.
    let mut problem = llama(named());
    problem.framework.selective = Selective::Operators;
    problem.framework.launch_us = 1e6;
    problem.framework.context_exchange = ContextExchange::Gather;
    let launches = |shard: Shard| {
        let cost = layer(&problem, shard);
        let seconds = [cost.forward, cost.recompute_selective].map(|pass| pass.total().seconds());
        seconds.map(|s| s.round() as i64)
    };
    let [forward, again] = launches(whole());
    assert_eq!(launches(Shard { tp: 4, sp: true, ..whole() }), [forward + 4, again + 2]);
    assert_eq!(launches(Shard { cp: 2, ..whole() }), [forward + 1, again]);
}

#[test]
fn tensors_that_wait_on_the_host_by_name_leave_the_device_and_two_layers_of_them_travel() {
    // Kept of a layer: its input (2 bytes), queries, keys and values with the rotated copies (5.5), and what closes attention (2), of
    // which input and queries go to the host: four layers lie there, and two layers' pass through buffers.
    let again = Named { norm: true, attention: true, expansion: true, activation: true, ..named() };
    let mut problem = llama(again);
    problem.framework.held.logit_bytes = 0;
    let stage = Stage { chip: 0, layers: 4, recompute: Recompute::Selective, offload: 0 };
    let plan = Plan { dp: 8, ..testing::plan(vec![stage]) };
    let memory = |p: &Problem| estimate(p, &plan).unwrap().stages[0].memory;
    let plain = memory(&problem);
    problem.framework.held.offloaded =
        Offloaded { input: true, projections: true, ..Offloaded::default() };
    let offloaded = memory(&problem);
    let layer = SH * 2 + SH * 11 / 2;
    assert_eq!(plain.activations - offloaded.activations, Bytes(4 * layer));
    assert_eq!(offloaded.working_set - plain.working_set, Bytes(2 * layer));
    // What is computed again waits nowhere, and without selective recompute nothing does.
    problem.framework.held.offloaded.expansion = true;
    assert_eq!(memory(&problem), offloaded);
    let stage = Stage { recompute: Recompute::None, ..stage };
    let without = Plan { dp: 8, ..testing::plan(vec![stage]) };
    let all = estimate(&problem, &without).unwrap().stages[0].memory;
    let mut none = problem.clone();
    none.framework.held.offloaded = Offloaded::default();
    assert_eq!(all, estimate(&none, &without).unwrap().stages[0].memory);
    // A host that is slow enough holds the passes up, once each way.
    problem.cluster.groups[0].chip.host.pcie_gb_per_s = 1e3;
    let fast = estimate(&problem, &plan).unwrap().step_s;
    problem.framework.offload.pinned = true;
    problem.cluster.groups[0].chip.host.pcie_gb_per_s = 1e-3;
    let slow = estimate(&problem, &plan).unwrap().step_s - fast;
    assert!(slow < 2.0 * 4.0 * layer as f64 / 1e6 && slow > 1.8 * 4.0 * layer as f64 / 1e6);
}

#[test]
fn copies_and_results_of_experts_on_one_rank_are_made_again_by_name() {
    // Eight experts, two a token: copies in their order and results are 2 bytes of 2 h each.
    let mut problem = llama(named());
    problem.model.moe = Some(testing::moe(8, 2, H));
    let kept = |again: Named| {
        let mut problem = problem.clone();
        problem.framework.named = again;
        let pricer = Pricer::new(&problem, 0, whole());
        block::price(&pricer, LayerKind { moe: true, ..problem.model.layer_kind(0) }).cost
    };
    let dispatch = kept(Named { dispatch: true, ..named() });
    assert_eq!(dropped(&dispatch), Bytes(SH * 4));
    let contraction = kept(Named { contraction: true, ..named() });
    assert_eq!(dropped(&contraction), Bytes(SH * 4));
    assert!(contraction.recompute_selective.compute > dispatch.recompute_selective.compute);
}

#[test]
fn single_operators_may_keep_grouped_products_too() {
    // Two experts that each of 512 tokens visits: 1,024 inner channels and 1,024 of the result, 2 bytes each. What made them is not
    // computed again.
    let mut problem = gpt_problem(1024, 512);
    problem.model.moe = Some(testing::moe(2, 2, 1024));
    problem.framework.selective = Selective::Operators;
    let kind = LayerKind { moe: true, windowed: false };
    let priced = |problem: &Problem| block::price(&Pricer::new(problem, 0, whole()), kind).cost;
    let again = priced(&problem);
    problem.framework.keeps_grouped_products = true;
    let kept = priced(&problem);
    assert_eq!(kept.kept_selective - again.kept_selective, Bytes(2 * 512 * (1024 + 1024) * 2));
    let compute = |cost: LayerCost| cost.recompute_selective.compute.seconds();
    assert!(compute(kept) < compute(again));
}

#[test]
fn single_operators_may_run_attention_and_exchanges_again() {
    // A kernel that the list does not name drops its result of h in 2 bytes and runs once more. Its 32-bit sums of queries, a
    // sixty-fourth of that, count neither way.
    let mut problem = llama(named());
    problem.framework.selective = Selective::Operators;
    let kept = layer(&problem, whole());
    problem.framework.reruns_attention = vec!["another".into()];
    assert_eq!(layer(&problem, whole()), kept);
    problem.framework.reruns_attention = problem.framework.attention_kernels.clone();
    let again = layer(&problem, whole());
    assert_eq!(kept.kept_selective - again.kept_selective, Bytes(SH * 2));
    let compute = |cost: LayerCost| cost.recompute_selective.compute.seconds();
    // Scores and their product with the values, half of each under a causal mask, at 133 TFLOP/s, and a kernel's gap.
    close(compute(again) - compute(kept), (2 * S * S * H) as f64 / 133e12 + 3e-6, 1e-6);

    // Two experts on as many ranks: 512 tokens that visit both are sent and come back again, and the copies of 1,024 channels in 2
    // bytes are not kept.
    let mut problem = gpt_problem(1024, 512);
    problem.model.moe = Some(testing::moe(2, 2, 1024));
    problem.framework.selective = Selective::Operators;
    let kind = LayerKind { moe: true, windowed: false };
    let shard = Shard { dp: 2, ep: 2, ..whole() };
    let priced = |problem: &Problem| block::price(&Pricer::new(problem, 0, shard), kind).cost;
    let kept = priced(&problem);
    assert_eq!(kept.recompute_selective.expert, Time::ZERO);
    problem.framework.reruns_exchange = true;
    let again = priced(&problem);
    assert_eq!(again.recompute_selective.expert, again.forward.expert);
    assert!(again.forward.expert > Time::ZERO && again.kept_selective < kept.kept_selective);
}
