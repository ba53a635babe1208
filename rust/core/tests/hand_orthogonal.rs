//! Updates made orthogonal before they are applied (Muon), worked by hand.

mod sums;

use autopar_core::estimate::collective::Fabric;
use autopar_core::estimate::estimate;
use autopar_core::estimate::shard::Shard;
use autopar_core::plan::Plan;
use autopar_core::spec::cluster::Group;
use autopar_core::spec::framework::Orthogonal;
use autopar_core::spec::problem::Problem;
use autopar_core::testing::{self, whole};
use autopar_core::units::Bytes;
use sums::{close, gpt_problem, replicas, sharded};

const MUON: Orthogonal = Orthogonal { iterations: 5, shared: false, batched: true };

/// Channels, so many that products last as long as their operations.
const H: u64 = 8192;

/// Seconds of the optimizer's step at `dp` replicas under a ZeRO stage.
fn step(problem: &Problem, dp: u64, zero: u8) -> f64 {
    let shard_group = if zero > 0 { dp } else { 1 };
    let plan = Plan { zero, shard_group, ..replicas(problem, dp).0 };
    estimate(problem, &plan).expect("a legal plan").time.optimizer_ps.seconds()
}

/// Seconds of the products for four layers: in each of five iterations X times its transpose, A times A and B times X. Of the four
/// matrices of h by h of attention each takes 2 + 2 + 2 h^3 operations, of the two of h by 4 h of the MLP each 8 + 2 + 8 h^3.
fn products(problem: &Problem) -> f64 {
    let chip = &problem.cluster.groups[0].chip;
    let rate = chip.peak_tflops.bf16.unwrap() * 1e12 * chip.gemm.efficiency;
    let h = H as f64;
    4.0 * 5.0 * (4.0 * 6.0 + 2.0 * 18.0) * h * h * h / rate
}

#[test]
fn a_replica_by_itself_takes_the_products_and_one_moment_less() {
    // In place of the second moment's 4 bytes, read and written, the update's 2 are.
    let mut problem = gpt_problem(H, 512);
    let adam = step(&problem, 8, 0);
    problem.framework.orthogonal = MUON;
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let parameters = (4 * (12 * H * H + 13 * H)) as f64;
    let more = step(&problem, 8, 0) - adam + 4.0 * parameters / memory;
    assert!((1.0..1.1).contains(&(more / products(&problem))), "{more} s");
    problem.framework.orthogonal.iterations = 10;
    let twice = step(&problem, 8, 0) - adam + 4.0 * parameters / memory;
    close(twice, 2.0 * more, 1e-6);
}

#[test]
fn replicas_that_share_the_matrices_take_an_eighth_and_pass_the_results_on() {
    let mut problem = gpt_problem(H, 512);
    let adam = [0, 1, 2].map(|zero| step(&problem, 8, zero));
    let with = |problem: &mut Problem, shared: bool, zero: u8| {
        problem.framework.orthogonal = Orthogonal { shared, ..MUON };
        step(problem, 8, zero) - adam[usize::from(zero)]
    };
    let alone = with(&mut problem, false, 0);
    let shared = with(&mut problem, true, 0);
    let sharded = with(&mut problem, true, 1);
    let scattered = with(&mut problem, true, 2);
    let gathered = with(&mut problem, false, 2);
    let fabric = Fabric::new(&problem.cluster, &problem.cluster.groups[0].chip);
    let group = Group { size: 8, stride: 1 };
    let bytes = (2 * 4 * (12 * H * H + 13 * H)) as f64;
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    // Every replica takes all products, or each an eighth of them and gathers the updates in 16 bits. A parameter's moment is each
    // replica's; sharded it is an eighth, and the gather of parameters brings what was updated.
    let saved = 2.0 * bytes / memory;
    let all = alone + saved;
    close(shared + saved, all / 8.0 + fabric.all_gather(bytes, group), 1e-3);
    close(sharded + saved / 8.0, all / 8.0, 1e-3);
    // Where gradients are sharded too, parts of matrices go to whoever takes them and come back, or are gathered by all.
    close(scattered + saved / 8.0, all / 8.0 + 2.0 * fabric.all_to_all(bytes / 8.0, group), 1e-3);
    close(gathered + saved / 8.0, all + fabric.all_gather(bytes, group), 1e-3);
}

#[test]
fn a_host_launches_what_is_not_batched() {
    // 25 launches of 10 us at most for each of six matrices in four layers, 4 us here, where the products are smaller than that.
    let mut problem = gpt_problem(128, 512);
    let adam = step(&problem, 8, 0);
    problem.framework.orthogonal = Orthogonal { batched: false, ..MUON };
    let chip = &problem.cluster.groups[0].chip;
    let memory = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    let saved = 4.0 * (4 * (12 * 128 * 128 + 13 * 128)) as f64 / memory;
    problem.framework.launch_us = 40.0;
    let usual = step(&problem, 8, 0) - adam + saved;
    close(usual, 24.0 * 25.0 * 10e-6, 1e-3);
}

#[test]
fn the_optimizer_keeps_one_moment_of_what_layers_have() {
    // 1000 parameters of layers and 50 of the ends, 12 bytes each under Adam.
    let mut f = testing::framework();
    let adam = sharded(&f, whole()).optimizer;
    f.orthogonal = MUON;
    assert_eq!(adam, Bytes(1050 * 12));
    assert_eq!(sharded(&f, whole()).optimizer, Bytes(1000 * 8 + 50 * 12));
    let eighth = Shard { dp: 8, zero: 1, shard_group: 8, ..whole() };
    let [with, without] = [true, false].map(|muon| {
        f.orthogonal.iterations = if muon { 5 } else { 0 };
        sharded(&f, eighth).optimizer.0
    });
    // 125 parameters of layers on a rank, and 7 of the ends.
    assert_eq!((without, with), (132 * 12, 125 * 8 + 7 * 12));
}
