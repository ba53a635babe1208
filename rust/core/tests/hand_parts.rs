//! Sums worked by hand of whole layers and single operators that are computed again beside each other.

mod sums;

use autopar_core::estimate::collective::Fabric;
use autopar_core::estimate::{estimate, Estimate};
use autopar_core::plan::rules::check;
use autopar_core::plan::{NamedLayers, Parts, Plan, Recompute, Stage};
use autopar_core::spec::cluster::Group;
use autopar_core::spec::framework::{Gathers, Gradients, Named, Selective};
use autopar_core::spec::model::{Activation, Norm};
use autopar_core::spec::problem::{Problem, Schedule};
use autopar_core::testing::{self, named, whole};
use autopar_core::units::{Bytes, Time};
use sums::{close, layer};

const S: u64 = 1024;
const H: u64 = 2048;
const SH: u64 = S * H;
const LAYERS: u32 = 8;

/// Eight layers with an MLP of 3 h and a gate, of fused operators, on a host that launches in no time.
fn problem(devices: u64) -> Problem {
    let mut model = testing::gpt(LAYERS, H);
    (model.ffn_hidden, model.norm, model.norm_bias) = (3 * H, Norm::Rmsnorm, false);
    (model.activation, model.mlp_bias) = (Activation::Swiglu, false);
    let mut problem = testing::problem(model, testing::cluster(testing::a100(), devices), 8, S);
    problem.framework.launch_us = 0.0;
    problem
}

fn none() -> NamedLayers {
    NamedLayers::default()
}

fn parts(layers: u32, operators: NamedLayers) -> Recompute {
    Recompute::Parts(Parts { layers, regathers: false, operators })
}

fn one_stage(recompute: Recompute) -> Plan {
    testing::plan(vec![Stage { chip: 0, layers: LAYERS, recompute, offload: 0 }])
}

fn cost(problem: &Problem, plan: &Plan) -> Estimate {
    estimate(problem, plan).expect("a legal plan")
}

#[test]
fn layers_alone_are_a_block_and_operators_of_all_layers_are_selective() {
    let mut problem = problem(1);
    let block = cost(&problem, &one_stage(Recompute::Block { layers: 3 }));
    assert_eq!(cost(&problem, &one_stage(parts(3, none()))), block);
    problem.framework.selective = Selective::Named;
    problem.framework.named = Named { norm: true, attention: true, ..named() };
    let selective = cost(&problem, &one_stage(Recompute::Selective));
    let all = NamedLayers { norm: LAYERS, attention: LAYERS, ..none() };
    assert_eq!(cost(&problem, &one_stage(parts(0, all))), selective);
}

#[test]
fn each_operator_is_computed_again_in_as_many_layers_as_it_says() {
    // Of eight layers the first two are computed again whole; of the next the activation in three, whose output is 3 h, and the
    // norms in one of them, whose two outputs are h each. A layer that is computed again keeps its input, h.
    let problem = problem(1);
    let kept = layer(&problem, whole()).kept;
    let plain = &cost(&problem, &one_stage(Recompute::None)).stages[0];
    let operators = NamedLayers { activation: 5, norm: 3, ..none() };
    let mixed = &cost(&problem, &one_stage(parts(2, operators))).stages[0];
    let dropped = Bytes((kept.0 - SH * 2) * 2 + 3 * SH * 6 + SH * 4);
    assert_eq!(plain.memory.activations - mixed.memory.activations, dropped);
    // So do their times: two layers, and three and one operators.
    let time = |count: NamedLayers| {
        cost(&problem, &one_stage(parts(0, count))).stages[0].backward_ps - plain.backward_ps
    };
    let activation = time(NamedLayers { activation: 1, ..none() });
    let norm = time(NamedLayers { norm: 1, ..none() });
    let two = layer(&problem, whole()).recompute_full.total() * 2;
    assert_eq!(mixed.backward_ps - plain.backward_ps, two + activation * 3 + norm);
    // One layer at a time is brought back.
    let block = &cost(&problem, &one_stage(Recompute::Block { layers: 2 })).stages[0];
    assert_eq!(mixed.memory.working_set, block.memory.working_set);
    let few = &cost(&problem, &one_stage(parts(0, operators))).stages[0];
    assert_eq!(few.memory.working_set - plain.memory.working_set, Bytes(SH * 6 + SH * 4));
}

#[test]
fn what_was_gathered_of_a_norm_is_kept_in_slices_or_with_the_norm_not_at_all() {
    // Four ranks of a layer keep the inputs of both sub-layers' products gathered, h each; their own quarters are what norms
    // made. Norms alone drop nothing of their own, being fused.
    let mut problem = problem(4);
    problem.framework.held.gathered_inputs = true;
    let of = |operators: NamedLayers| {
        let plan = Plan { tp: 4, sp: true, ..one_stage(parts(0, operators)) };
        let stage = cost(&problem, &plan).stages[0].clone();
        (stage.memory.activations, stage.backward_ps)
    };
    let (plain, backward) = of(NamedLayers { projections: 1, ..none() });
    let both = NamedLayers { projections: 1, norm: LAYERS, gather: LAYERS, ..none() };
    let gather = of(NamedLayers { norm: 0, ..both });
    let norm = of(NamedLayers { gather: 0, ..both });
    let layers = u64::from(LAYERS);
    assert_eq!(plain - gather.0, Bytes(layers * 2 * SH * 2 * 3 / 4));
    assert_eq!(plain, norm.0);
    assert_eq!(plain - of(both).0, Bytes(layers * 2 * SH * 2));
    // Two gathers of h in each layer.
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let each = fabric.all_gather((SH * 2) as f64, Group { size: 4, stride: 1 });
    close((gather.1 - backward).seconds(), (layers * 2) as f64 * each, 1e-6);
    assert_eq!(of(both).1 - backward, (gather.1 - backward) + (norm.1 - backward));
}

#[test]
fn layers_are_dealt_out_to_chunks_in_turn() {
    let problem = problem(2);
    let stage = |recompute| Stage { chip: 0, layers: LAYERS / 2, recompute, offload: 0 };
    let interleaved = |recompute: Recompute| Plan {
        vpp: 2,
        schedule: Schedule::Interleaved,
        ..testing::plan(vec![stage(recompute); 2])
    };
    let kept = |recompute| {
        cost(&problem, &interleaved(recompute))
            .stages
            .iter()
            .map(|s| s.memory.activations)
            .collect::<Vec<_>>()
    };
    // Two chunks of two layers: in one of each the activation's 3 h is dropped, as often as a chunk's passes are under way:
    // 2 (2 - i - 1) + 2 + 1 of them, five on the first stage and three on the last.
    let of = |activation| NamedLayers { activation, ..none() };
    let (plain, again) = (kept(Recompute::None), kept(parts(0, of(2))));
    assert_eq!(plain[0] - again[0], Bytes(5 * SH * 6));
    assert_eq!(plain[1] - again[1], Bytes(3 * SH * 6));
    // A third layer is the first chunk's second: three of the first stage's passes are its, two of the last's.
    let more = kept(parts(0, of(3)));
    assert_eq!(again[0] - more[0], Bytes(3 * SH * 6));
    assert_eq!(again[1] - more[1], Bytes(2 * SH * 6));
}

/// Eight replicas that slice parameters in 4 bytes and gather them in 2, once a step.
fn sliced() -> Problem {
    let mut problem = problem(8);
    let f = &mut problem.framework;
    (f.bytes.parameter, f.held.gathered_copy_bytes, f.gathers) = (4, 2, Gathers::Step);
    (f.held.gradients, f.overlap.parameter_gather) = (Gradients::Kept, false);
    problem.workload.global_batch_size = 16;
    problem
}

fn of_replicas(layers: u32, regathers: bool) -> Plan {
    let recompute = Recompute::Parts(Parts { layers, regathers, operators: none() });
    Plan { dp: 8, zero: 1, shard_group: 8, ..one_stage(recompute) }
}

#[test]
fn parameters_of_recomputed_layers_are_gathered_for_each_pass_in_place_of_once_a_step() {
    // Three of eight layers: their 2-byte copies lie there only while they are at work, two layers at a time.
    let problem = sliced();
    let (once, each) =
        (cost(&problem, &of_replicas(3, false)), cost(&problem, &of_replicas(3, true)));
    let (kept, left) = (once.stages[0].memory, each.stages[0].memory);
    let parameters = layer(&problem, whole()).dense_parameters;
    assert_eq!(kept.parameters - left.parameters, Bytes(3 * parameters * 2));
    assert_eq!(left.buffers - kept.buffers, Bytes(2 * parameters * 2));
    assert_eq!((kept.gradients, kept.optimizer), (left.gradients, left.optimizer));
    assert_eq!(kept.activations, left.activations);
    // Each of three layers is gathered before its forward pass and before it is computed again, in both micro-batches.
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let replicas = Group { size: 8, stride: 1 };
    let gather = fabric.all_gather((parameters * 2) as f64, replicas);
    let times =
        |e: &Estimate| (e.stages[0].forward_ps.seconds(), e.stages[0].backward_ps.seconds());
    let (before, after) = (times(&once), times(&each));
    close(after.0 - before.0, 3.0 * gather, 1e-6);
    close(after.1 - before.1, 3.0 * gather, 1e-6);
    close(each.time.shard_ps.seconds(), 2.0 * 6.0 * gather, 1e-6);
    assert_eq!(once.time.shard_ps, Time::ZERO);
    // The gather at the step's end has as much less to move.
    let ends = |count: u64| fabric.all_gather((count * 2) as f64, replicas);
    let saved = (once.time.data_ps - each.time.data_ps).seconds();
    close(saved, ends(4 * parameters) - ends(parameters), 1e-6);
    assert_eq!(once.time.recompute_ps, each.time.recompute_ps);
}

#[test]
fn what_no_framework_does_is_no_plan() {
    let refused = |problem: &Problem, plan: &Plan| check(problem, plan).join("; ");
    let problem = sliced();
    assert_eq!(refused(&problem, &of_replicas(3, true)), "");
    assert!(refused(&problem, &of_replicas(0, false)).contains("recompute of 0 layers"));
    assert!(refused(&problem, &of_replicas(9, false)).contains("recompute of 9 layers in chunks"));
    assert!(refused(&problem, &of_replicas(0, true)).contains("regathers needs whole layers"));
    let whole_parameters = Plan { zero: 0, shard_group: 1, ..of_replicas(3, true) };
    assert!(refused(&problem, &whole_parameters).contains("parameters that ZeRO slices"));
    let mut kept_whole = sliced();
    kept_whole.framework.held.gathered_copy_bytes = 0;
    assert!(refused(&kept_whole, &of_replicas(3, true)).contains("parameters that ZeRO slices"));
    let mut beside = of_replicas(3, false);
    beside.stages[0].offload = 2;
    assert!(refused(&problem, &beside).contains("offload beside operators"));
}
