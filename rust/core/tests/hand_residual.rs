//! A residual stream in 32 bits, and gradients of tables, worked by hand from what PyTorch runs under autocast.

mod sums;

use autopar_core::estimate::layer::Pricer;
use autopar_core::estimate::memory::{self, Holdings};
use autopar_core::estimate::shard::{LayerCost, Shard};
use autopar_core::spec::framework::Projections;
use autopar_core::spec::kernels::{NormKernel, RotaryKernel};
use autopar_core::spec::problem::Problem;
use autopar_core::testing::{self, whole};
use autopar_core::units::Bytes;
use sums::{close, layer, llama, H, SH};

/// Seconds in which an A100 moves so many bytes, in so many kernels.
fn moves(problem: &Problem, bytes: f64, kernels: f64) -> f64 {
    bytes / (2039e9 * 0.87) + kernels * problem.cluster.groups[0].chip.host.kernel_us * 1e-6
}

/// What a stream in 32 bits adds to a layer: seconds forward and backward, and bytes that it keeps.
fn wider(problem: &mut Problem) -> (f64, f64, u64) {
    let passes =
        |cost: LayerCost| [cost.forward, cost.input_gradient].map(|pass| pass.compute.seconds());
    problem.framework.held.fp32_residual = false;
    let narrow = layer(problem, whole());
    problem.framework.held.fp32_residual = true;
    let wide = layer(problem, whole());
    let [forward, backward] = [0, 1].map(|n| passes(wide)[n] - passes(narrow)[n]);
    (forward, backward, wide.kept.0 - narrow.kept.0)
}

#[test]
fn products_cast_what_they_read_of_a_stream_in_32_bits_each_by_itself() {
    // In bytes a token and channel: five products cast what they read (4 + 2 each, 30), two additions read and write 32 bits
    // (2 + 2 each, 8), cosines in 32 bits rotate queries and a quarter as many keys (12 of 1.25, 15). Backward five casts (30), three
    // sums of their gradients (6 each, 18), at either addition a sum (6) and the branch's cast (6) (24), rotation (15).
    let mut problem = llama();
    problem.framework.projections = Projections::Apart;
    let fused = &mut problem.framework.fused;
    (fused.norm, fused.rope) = (NormKernel::Eager, RotaryKernel::Eager);
    (fused.activation, fused.residual) = (false, false);
    let (forward, backward, kept) = wider(&mut problem);
    let sh = SH as f64;
    close(forward, moves(&problem, 53.0 * sh, 2.0), 1e-4);
    close(backward, moves(&problem, 87.0 * sh, 2.0), 1e-4);
    // Two normalised copies in 32 bits (2 each), and a cast of its own for all but the first product of either (3 times 2).
    assert_eq!(kept, 10 * SH);
}

#[test]
fn a_compiler_casts_in_the_kernels_beside_a_stream_in_32_bits() {
    // A norm reads 4 bytes and makes 2, half as much again as it did: 3.6 and 14 of a byte more, twice; two additions as before (4),
    // and backward a sum (6) whose cast is written with it (2).
    let mut problem = llama();
    let fused = &mut problem.framework.fused;
    (fused.norm, fused.rope) = (NormKernel::Compiled, RotaryKernel::Compiled);
    (fused.activation, fused.residual) = (true, true);
    let (forward, backward, kept) = wider(&mut problem);
    let sh = SH as f64;
    close(forward, moves(&problem, (2.0 * 3.6 + 8.0) * sh, 0.0), 1e-4);
    close(backward, moves(&problem, (2.0 * 14.0 + 16.0) * sh, 0.0), 1e-4);
    // Norms keep what they read.
    assert_eq!(kept, 2 * 2 * SH);
}

#[test]
fn the_gradient_of_a_table_is_as_large_as_the_table() {
    // 32,000 rows more of 2,048 numbers: zeros in 2 bytes, then read beside a sum in 4 that is read and written: 2 + 2 + 8. Of 32-bit
    // weights under autocast 4 + 4 + 8; scattered in each pass the zeros alone.
    let mut problem = llama();
    problem.framework.bytes.gradient = 4;
    let backward = |problem: &Problem, shard: Shard| {
        Pricer::new(problem, 0, shard).embedding().cost.input_gradient.compute.seconds()
    };
    let more = |problem: &Problem, shard: Shard| {
        let mut larger = problem.clone();
        larger.model.vocab += 32_000;
        backward(&larger, shard) - backward(problem, shard)
    };
    let table = 32_000.0 * H as f64;
    close(more(&problem, whole()), moves(&problem, 12.0 * table, 0.0), 1e-4);
    let sharded = Shard { dp: 8, zero: 3, shard_group: 8, ..whole() };
    close(more(&problem, sharded), moves(&problem, 2.0 * table, 0.0), 1e-4);
    problem.framework.casts_weights = true;
    close(more(&problem, whole()), moves(&problem, 16.0 * table, 0.0), 1e-4);
}

#[test]
fn an_embedding_that_begins_a_stream_in_32_bits_is_not_cast() {
    let mut f = testing::framework();
    f.bytes.parameter = 6;
    let held = Holdings {
        dense_parameters: 1000,
        end_parameters: 50,
        uncast: Bytes(2 * 50),
        ..Holdings::default()
    };
    assert_eq!(memory::items(&held, &whole(), false, &f).parameters, Bytes(6 * 950 + 4 * 50));
    // A tenth of them on each of ten ranks.
    let sharded = Shard { dp: 10, zero: 3, shard_group: 10, ..whole() };
    assert_eq!(memory::items(&held, &sharded, false, &f).parameters, Bytes(6 * 95 + 4 * 5));
}

#[test]
fn what_kernels_make_is_filled_before_they_do() {
    // In numbers a token and channel: two norms (2), products of 1.5, 1, 6 and 1, attention's result (1), two additions (2), of rotation
    // a third of 2.3 passes over 1.25 and of SwiGLU of 3 over 3. Backward norms (2), gradients of the products' inputs, 1, 1, 1 and 3,
    // and of attention's (3), of additions (2), of rotation as before and of SwiGLU a third of 5 over 3. Sums of weights' gradients
    // are no new tensors. Eleven fills each way.
    let mut problem = llama();
    let passes = |problem: &Problem| {
        let cost = layer(problem, whole());
        [cost.forward, cost.input_gradient, cost.weight_gradient].map(|pass| pass.compute.seconds())
    };
    let before = passes(&problem);
    problem.framework.fills_tensors = true;
    let filled = passes(&problem);
    let more = [0, 1, 2].map(|n| filled[n] - before[n]);
    let numbers = [2.0 + 9.5 + 1.0 + 2.0 + 2.3 * 1.25 / 3.0 + 3.0, 16.0 + 2.3 * 1.25 / 3.0 + 2.0];
    for (n, numbers) in numbers.into_iter().enumerate() {
        close(more[n], moves(&problem, numbers * 2.0 * SH as f64, 11.0), 1e-4);
    }
    assert_eq!(more[2], 0.0);
}
