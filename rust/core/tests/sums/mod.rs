//! What the sums by hand share.

#![allow(dead_code)] // Each test file is a crate of its own and uses a part of this.

use autopar_core::estimate::block;
use autopar_core::estimate::layer::Pricer;
use autopar_core::estimate::memory::{self, Holdings};
use autopar_core::estimate::shard::{LayerCost, Shard};
use autopar_core::estimate::{estimate, Estimate, MemoryItems};
use autopar_core::plan::{Plan, Recompute, Stage};
use autopar_core::spec::framework::Framework;
use autopar_core::spec::model::{Activation, LayerKind, Norm, Position};
use autopar_core::spec::problem::Problem;
use autopar_core::testing;
use autopar_core::units::Bytes;

/// A layer of no experts and no window.
pub const DENSE: LayerKind = LayerKind { moe: false, windowed: false };

pub fn close(got: f64, expected: f64, by: f64) {
    assert!((got / expected - 1.0).abs() < by, "{got} against {expected}");
}

/// Eight devices in one node, a GPT of 4 layers.
pub fn gpt_problem(hidden: u64, sequence: u64) -> Problem {
    testing::problem(testing::gpt(4, hidden), testing::cluster(testing::a100(), 8), 8, sequence)
}

/// What a dense layer costs.
pub fn layer(problem: &Problem, shard: Shard) -> LayerCost {
    block::price(&Pricer::new(problem, 0, shard), DENSE).cost
}

/// 1000 parameters in layers of 100, and 50 of embedding and head beside them, with 2-byte parameters and 4-byte gradients.
pub fn sharded(framework: &Framework, shard: Shard) -> MemoryItems {
    let held = Holdings {
        dense_parameters: 1050,
        end_parameters: 50,
        gathered_parameters: 200,
        unreduced_parameters: 100,
        working_set: Bytes(7),
        ..Holdings::default()
    };
    memory::items(&held, &shard, false, framework)
}

/// A plan of one stage with `dp` replicas.
pub fn replicas(problem: &Problem, dp: u64) -> (Plan, Estimate) {
    let stage =
        Stage { chip: 0, layers: problem.model.layers, recompute: Recompute::None, offload: 0 };
    let plan = Plan { dp, ..testing::plan(vec![stage]) };
    let estimate = estimate(problem, &plan).expect("a legal plan");
    (plan, estimate)
}

/// Tokens of a sequence of [`llama`].
pub const S: u64 = 1024;
/// Its channels.
pub const H: u64 = 2048;
/// Bytes of a number for each token and channel.
pub const SH: u64 = S * H;

/// A layer of Llama's kind: 16 heads of 128, 4 key heads, an MLP of 3 h, root-mean-square norms, rotary positions.
pub fn llama() -> Problem {
    let mut model = testing::gpt(4, H);
    (model.kv_heads, model.ffn_hidden, model.vocab) = (4, 3 * H, 32_000);
    (model.norm, model.norm_bias, model.activation) = (Norm::Rmsnorm, false, Activation::Swiglu);
    (model.position, model.position_rows, model.tied_embeddings) = (Position::Rope, 0, false);
    (model.qkv_bias, model.o_bias, model.mlp_bias) = (false, false, false);
    testing::problem(model, testing::cluster(testing::a100(), 8), 8, S)
}
