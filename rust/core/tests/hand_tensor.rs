//! Tensor-parallel communication of a layer worked by hand: what is copied beside it, and what hides it.

mod sums;

use autopar_core::estimate::collective::Fabric;
use autopar_core::estimate::layer::Pricer;
use autopar_core::estimate::shard::{LayerCost, Shard};
use autopar_core::spec::cluster::{Group, Topology};
use autopar_core::spec::framework::TensorOverlap;
use autopar_core::spec::problem::Problem;
use autopar_core::testing::whole;
use autopar_core::units::Time;
use sums::{close, gpt_problem, layer};

/// 1,024 tokens of 1,024 channels over eight ranks of a node, with sequence parallel.
fn split(problem: &Problem) -> LayerCost {
    layer(problem, Shard { tp: 8, sp: true, ..whole() })
}

/// Bytes of one gathered tensor, and seconds to gather or to scatter it.
fn one(problem: &Problem) -> (f64, f64) {
    let bytes = 2.0 * 1024.0 * 1024.0;
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    (bytes, fabric.all_gather(bytes, Group { size: 8, stride: 1 }))
}

fn more(a: Time, b: Time) -> f64 {
    a.seconds() - b.seconds()
}

#[test]
fn an_input_that_was_kept_gathered_is_not_gathered_again() {
    // Two gathers fewer backward: those of the inputs of attention and of the MLP.
    let mut problem = gpt_problem(1024, 1024);
    problem.framework.overlap.tensor = TensorOverlap::None;
    let again = split(&problem);
    problem.framework.held.gathered_inputs = true;
    let kept = split(&problem);
    assert_eq!(again.forward, kept.forward);
    let saved = more(again.input_gradient.tensor, kept.input_gradient.tensor);
    close(saved, 2.0 * one(&problem).1, 1e-6);
}

#[test]
fn a_sequence_that_is_not_the_first_dimension_is_copied_at_each_collective() {
    // Each copy reads and writes the whole tensor: two gathers and two sums forward, and of inputs that are kept gathered as
    // many backward. 2,039 GB/s x 0.87, and 3 us a kernel.
    let mut problem = gpt_problem(1024, 1024);
    problem.framework.overlap.tensor = TensorOverlap::None;
    problem.framework.held.gathered_inputs = true;
    let plain = split(&problem);
    problem.framework.sequence_copies = true;
    let copied = split(&problem);
    let copy = 2.0 * one(&problem).0 / (2039e9 * 0.87) + 3e-6;
    close(more(copied.forward.compute, plain.forward.compute), 4.0 * copy, 1e-4);
    let backward = more(copied.input_gradient.compute, plain.input_gradient.compute);
    close(backward, 4.0 * copy, 1e-4);
    // Without sequence parallel nothing is gathered or scattered.
    let sums = |problem: &Problem| layer(problem, Shard { tp: 8, ..whole() });
    problem.framework.sequence_copies = false;
    let without = sums(&problem);
    problem.framework.sequence_copies = true;
    assert_eq!(sums(&problem), without);
}

#[test]
fn pieces_around_single_products_leave_the_sums_of_inputs_gradients_in_the_open() {
    // Of the two sums backward each shows all of its seconds instead of what the products leave, and is copied.
    let mut problem = gpt_problem(1024, 1024);
    problem.cluster.groups[0].chip.link.processor_share = 0.0;
    problem.framework.held.gathered_inputs = true;
    problem.framework.sequence_copies = true;
    // So slow a device hides all but the first of eight pieces.
    problem.cluster.groups[0].chip.peak_tflops.bf16 = Some(1.0);
    problem.framework.overlap.tensor = TensorOverlap::Pipelined;
    let pieces = split(&problem);
    problem.framework.overlap.tensor = TensorOverlap::PipelinedProducts;
    let products = split(&problem);
    assert_eq!(products.forward, pieces.forward);
    let (bytes, seconds) = one(&problem);
    let shown = more(products.input_gradient.tensor, pieces.input_gradient.tensor);
    close(shown, 2.0 * seconds * 7.0 / 8.0, 1e-6);
    let copy = 2.0 * bytes / (2039e9 * 0.87) + 3e-6;
    close(more(products.input_gradient.compute, pieces.input_gradient.compute), 2.0 * copy, 1e-3);
}

#[test]
fn a_cut_message_is_gathered_where_it_arrives() {
    // 1,024 tokens of 1,024 channels in 2 bytes over two ranks, to the stage on the next two: half of them cross, and all are
    // gathered; with sequence parallel they stay cut.
    let mut problem = gpt_problem(1024, 1024);
    let message = |problem: &Problem, shard: Shard| Pricer::new(problem, 0, shard).message(0, 1);
    let pair = Shard { tp: 2, ..whole() };
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let bytes = 2.0 * 1024.0 * 1024.0;
    let crossing = fabric.send(bytes / 2.0, 2);
    let gather = fabric.all_gather(bytes, Group { size: 2, stride: 1 });
    close(message(&problem, pair), crossing + gather, 1e-9);
    close(message(&problem, Shard { sp: true, ..pair }), crossing, 1e-9);
    problem.framework.sharded_sends = false;
    close(message(&problem, pair), fabric.send(bytes, 2), 1e-9);
}

#[test]
fn the_last_stage_of_a_node_sends_out_of_it() {
    // 1,024 tokens of 1,024 channels in 2 bytes, from stages of two of a node's eight devices: the fourth's neighbour is on the
    // next node. Of three devices, all pairs but the first have a device on either side of a node's end.
    let mut problem = gpt_problem(1024, 1024);
    problem.framework.sharded_sends = false;
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let bytes = 2.0 * 1024.0 * 1024.0;
    let (inside, outside) = (fabric.send(bytes, 1), fabric.send(bytes, 8));
    assert!(outside > 2.0 * inside);
    for (dp, out) in [(2, vec![3]), (3, vec![1, 2, 4]), (8, vec![0, 1, 2])] {
        let pricer = Pricer::new(&problem, 0, Shard { dp, ..whole() });
        for stage in 0..5 {
            let seconds = if out.contains(&stage) { outside } else { inside };
            if dp < 8 || stage < 3 {
                close(pricer.message(stage, stage + 1), seconds, 1e-6);
            }
        }
        close(pricer.least_message(), if dp < 8 { inside } else { outside }, 1e-6);
    }
    let pipeline = |dp, pp| Pricer::new(&problem, 0, Shard { dp, ..whole() }).neighbours_alike(pp);
    assert!(pipeline(2, 4) && !pipeline(2, 5) && pipeline(5, 8) && pipeline(8, 2));
}

#[test]
fn devices_that_send_alone_have_the_cards_to_themselves() {
    // Two devices of a node send out where eight would share its cards: of one card they have four times as much, of two the one
    // that is theirs, twice as much, and of eight one each.
    let mut problem = gpt_problem(1024, 1024);
    problem.framework.sharded_sends = false;
    let bytes = 2.0 * 1024.0 * 1024.0;
    for (cards, more) in [(1, 4.0), (2, 2.0), (4, 1.0), (8, 1.0)] {
        problem.cluster.groups[0].chip.network.nics_per_node = cards;
        let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
        let start = fabric.send(0.0, 8);
        let shared = fabric.send(bytes, 8) - start;
        let pricer = Pricer::new(&problem, 0, Shard { dp: 2, ..whole() });
        close(pricer.message(3, 4), start + shared / more, 1e-6);
    }
}

#[test]
fn rings_in_a_part_of_a_node_carry_what_two_searched_ones_do() {
    // 1 GB over a mesh of eight gathered at 230 GB/s, 8.4 us and a step of 3.4 us. Six would use 5 of 7 wires, 164 GB/s, but get
    // 38; four get 3 of 7 wires and eight all. A sum is two halves in two steps. Exchanges need no rings.
    let mut problem = gpt_problem(1024, 1024);
    let chip = &mut problem.cluster.groups[0].chip;
    chip.link.topology = Topology::Mesh;
    chip.link.part_gb_per_s = Some(38.0);
    let chip = &problem.cluster.groups[0].chip;
    let fabric = Fabric::new(&problem.cluster, chip);
    let some = |size: u64| Group { size, stride: 1 };
    let gathered = |size: u64| fabric.all_gather(1e9, some(size)) - 11.8e-6;
    close(gathered(4), 0.75 / (230.0 * 3.0 / 7.0), 1e-9);
    close(gathered(6), 5.0 / 6.0 / 38.0, 1e-9);
    close(gathered(8), 0.875 / 230.0, 1e-9);
    close(fabric.all_reduce(1e9, some(6)) - 15.2e-6, 2.0 * 5.0 / 6.0 / 38.0, 1e-9);
    close(fabric.all_to_all(1e9, some(6)) - 11.8e-6, 5.0 / 6.0 / (230.0 * 5.0 / 7.0), 1e-9);
    // Twelve, six in each of two nodes, pass rings of their own through both.
    assert_eq!(chip.ring_limit(6, some(12)), f64::INFINITY);
}

#[test]
fn four_devices_on_one_socket_pass_rings_faster_than_eight_on_two() {
    // 1 GB over PCIe with an all-reduce of 28 GB/s in a node of eight and of 35 in one of four; 8.4 us and steps of 3.4 us. Four of
    // eight have no socket to themselves. Gathers and exchanges at 20 GB/s are a quarter faster too.
    let mut problem = gpt_problem(1024, 1024);
    let link = &mut problem.cluster.groups[0].chip.link;
    link.topology = Topology::Pcie;
    (link.all_reduce_gb_per_s, link.socket_gb_per_s) = (28.0, Some(35.0));
    (link.all_gather_gb_per_s, link.all_to_all_gb_per_s) = (20.0, 20.0);
    let four = Group { size: 4, stride: 1 };
    for (node, summed, rest) in [(8, 28.0, 20.0), (4, 35.0, 25.0)] {
        let chip = &mut problem.cluster.groups[0].chip;
        (chip.devices_per_node, chip.link_domain) = (node, node);
        let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
        close(fabric.all_reduce(1e9, four) - 28.8e-6, 1.5 / summed, 1e-9);
        close(fabric.all_gather(1e9, four) - 18.6e-6, 0.75 / rest, 1e-9);
        close(fabric.all_to_all(1e9, four) - 18.6e-6, 0.75 / rest, 1e-9);
    }
}
