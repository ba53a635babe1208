//! Context parallel in blocks worked by hand: what merging them moves, and what of their exchange shows.

mod sums;

use autopar_core::estimate::collective::Fabric;
use autopar_core::estimate::shard::{LayerCost, Shard};
use autopar_core::spec::cluster::Group;
use autopar_core::spec::framework::ContextExchange;
use autopar_core::spec::problem::Problem;
use autopar_core::testing::whole;
use sums::{close, gpt_problem, layer};

/// A sequence of 8,192 over four ranks of a node: 2,048 tokens of 1,024 channels on each, and twice as many numbers of keys
/// and values.
fn four(problem: &Problem, exchange: ContextExchange) -> LayerCost {
    let mut problem = problem.clone();
    problem.framework.context_exchange = exchange;
    layer(&problem, Shard { cp: 4, ..whole() })
}

const RESULTS: f64 = 2048.0 * 1024.0;
const KEYS: f64 = 2.0 * RESULTS;

fn problem() -> Problem {
    let mut problem = gpt_problem(1024, 8192);
    problem.framework.launch_us = 0.0;
    problem.cluster.groups[0].chip.link.processor_share = 0.0;
    problem
}

#[test]
fn blocks_are_merged_and_their_gradients_summed_in_32_bits() {
    // Beside a ring's, whose blocks are as long: cast at first and at last (6 + 6 bytes a result), and three blocks merged,
    // 38 bytes a result or 13 where operators are joined; keys and values put in a row three times (4). Backward sums are
    // cleared and cast (4 + 6 a number), added to with each block (10), those of keys and values put in a row (8 more), and
    // these three times put in a row to be gathered (4). 2,039 GB/s x 0.87, and 3 us to begin.
    let memory = 2039e9 * 0.87;
    let mut problem = problem();
    for (fused, merge) in [(true, 13.0), (false, 38.0)] {
        problem.framework.fused.residual = fused;
        let ring = four(&problem, ContextExchange::Ring);
        let blocks = four(&problem, ContextExchange::Blocks);
        let forward = blocks.forward.compute.seconds() - ring.forward.compute.seconds();
        close(forward, (RESULTS * (12.0 + 3.0 * merge) + KEYS * 12.0) / memory + 3e-6, 1e-4);
        let backward =
            blocks.input_gradient.compute.seconds() - ring.input_gradient.compute.seconds();
        close(backward, (RESULTS * 50.0 + KEYS * 94.0) / memory + 3e-6, 1e-4);
    }
}

#[test]
fn the_last_of_contiguous_pieces_sees_most() {
    // Half a square of 8,192 by 8,192 tokens are the pairs of all: the last quarter of the tokens has 7 of 16 parts, where two
    // pieces from either end have 4. Two products forward, five backward, of 1,024 channels at 155 TFLOP/s, as of 2,048 tokens.
    // Heads are dealt out whole.
    let mut problem = problem();
    let heads = four(&problem, ContextExchange::Heads);
    let even = four(&problem, ContextExchange::Ring);
    problem.framework.contiguous_context = true;
    assert_eq!(four(&problem, ContextExchange::Heads).forward, heads.forward);
    let last = four(&problem, ContextExchange::Ring);
    let product = 2.0 * 1024.0 * (3.0 / 16.0) * (8192.0 * 8192.0 / 2.0) / 155e12;
    let forward = last.forward.compute.seconds() - even.forward.compute.seconds();
    close(forward, 2.0 * product, 1e-6);
    let backward = last.input_gradient.compute.seconds() - even.input_gradient.compute.seconds();
    close(backward, 5.0 * product, 1e-6);
}

#[test]
fn what_blocks_exchange_shows_where_attention_is_too_short_for_it() {
    let mut problem = problem();
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let group = Group { size: 4, stride: 1 };
    let hop = |bytes: f64| fabric.send(bytes, 1).max(fabric.all_gather(4.0 * bytes, group) / 3.0);
    // The gradients of the last block travel home with nothing beside them, in 4 bytes.
    let (gather, last) = (fabric.all_gather(4.0 * 2.0 * KEYS, group), hop(4.0 * KEYS));
    problem.cluster.groups[0].chip.peak_tflops.bf16 = Some(1.0);
    problem.cluster.groups[0].chip.attention.clear();
    let hidden = four(&problem, ContextExchange::Blocks);
    assert_eq!(hidden.forward.context.seconds(), 0.0);
    close(hidden.input_gradient.context.seconds(), last, 1e-6);
    // A gather in the open is the same before all of attention, and without the gradients' greater width.
    let open = four(&problem, ContextExchange::Gather);
    close(open.forward.context.seconds(), gather, 1e-6);
    close(open.input_gradient.context.seconds(), 2.0 * gather, 1e-6);
}

#[test]
fn repeated_heads_of_keys_and_values_are_exchanged_as_they_lie() {
    // Two heads of keys and values for eight of queries: four times as many numbers travel once they are repeated.
    let mut problem = problem();
    problem.model.kv_heads = 2;
    let few = four(&problem, ContextExchange::Gather).forward.context.seconds();
    problem.framework.repeats_key_heads = true;
    let all = four(&problem, ContextExchange::Gather).forward.context.seconds();
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let gather = |bytes| fabric.all_gather(bytes, Group { size: 4, stride: 1 });
    close(few, gather(4.0 * 2.0 * KEYS / 4.0), 1e-6);
    close(all, gather(4.0 * 2.0 * KEYS), 1e-6);
}
