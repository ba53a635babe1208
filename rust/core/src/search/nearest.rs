//! Why there is no plan, and what comes nearest.

use super::cell::{self, Cell};
use super::counts::{Counts, Walked};
use super::devices;
use super::ends::{self, Ends};
use super::mixed;
use super::report::{Cut, Infeasible, Ranked};
use super::space;
use crate::estimate::{estimate, Tables};
use crate::plan::rules::check;
use crate::plan::{Plan, Recompute, Stage};
use crate::spec::cluster::MOST_DEVICES;
use crate::spec::problem::{Granularity, Problem, Schedule};
use crate::spec::workload;
use crate::units::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// The limits give fewer devices than the job asks for.
pub fn too_few_devices(problem: &Problem, available: u64) -> Infeasible {
    let limited: Vec<&str> = problem
        .cluster
        .groups
        .iter()
        .filter(|g| g.limit.is_some())
        .map(|g| g.chip.name.as_str())
        .collect();
    let missing = problem.cluster.devices - available;
    let other = if available > 0 { format!(", or ask for {available}") } else { String::new() };
    Infeasible::Devices {
        asked: problem.cluster.devices,
        available,
        cure: format!(
            "Raise the limit of {} by {missing} devices in whole nodes{other}.",
            limited.join(" or ")
        ),
    }
}

/// Why a complete search found nothing: memory if any class was legal, degrees otherwise.
pub fn why_nothing(problem: &Problem) -> Infeasible {
    match nearest_miss(problem) {
        Some((plan, stage, lack)) => {
            let estimate = estimate(problem, &plan).expect("the nearest miss is a legal plan");
            Infeasible::Memory {
                nearest: Box::new(Ranked { plan, estimate }),
                stage: stage as u32,
                lacks_gib: lack.gib(),
            }
        }
        None => Infeasible::Factorisation {
            nearest_devices: nearest_devices(problem),
            nearest_batch: nearest_batch(problem),
        },
    }
}

/// Of the legal plans with micro-batches as small as allowed, layers spread evenly and as much recompute and sharding
/// as the options allow, the one whose worst stage lacks least.
fn nearest_miss(problem: &Problem) -> Option<(Plan, usize, Bytes)> {
    // Kinds with degrees of their own are looked at where no degree suits all.
    KINDS_LOOKED_AT.into_iter().find_map(|kinds| {
        let alike = space::cells(problem.cluster.devices);
        nearest_of(problem, alike.into_iter(), kinds)
            .or_else(|| nearest_of(problem, mixed::all_cells(problem), kinds))
    })
}

/// Kinds of chip in the plans that are looked at: two are enough to see what is missing, and more are slower to list,
/// so they are looked at only where their limits leave no other plan.
const KINDS_LOOKED_AT: [usize; 2] = [2, usize::MAX];

/// Plans of a cell that are looked at for the nearest miss.
const PLANS_LOOKED_AT: usize = 64;

/// The same of some cells.
fn nearest_of(
    problem: &Problem,
    cells: impl Iterator<Item = Cell>,
    kinds: usize,
) -> Option<(Plan, usize, Bytes)> {
    let mut nearest: Option<(Plan, usize, Bytes)> = None;
    for cell in cells {
        let mut seen = 0;
        frugal_plans(problem, cell, kinds, &mut |plan| {
            let tables = Tables::of(problem, &plan);
            let lacks = |(i, stage): (usize, &Stage)| {
                let table = tables.kind(stage.chip as usize);
                let needed = table.memory(&plan.place(problem, i)).allocated();
                (i, needed.beyond(table.capacity()))
            };
            let lacking = plan.stages.iter().enumerate().map(lacks);
            let worst = lacking.filter(|&(_, lack)| lack > Bytes::ZERO).max_by_key(|&(_, l)| l);
            if let Some((stage, lack)) = worst {
                if nearest.as_ref().is_none_or(|(_, _, least)| lack < *least) {
                    nearest = Some((plan, stage, lack));
                }
            }
            seen += 1;
            seen < PLANS_LOOKED_AT
        });
    }
    nearest
}

/// Visits the legal plans of a cell that need least memory, for each composition of at most so many kinds, sp and ep,
/// until `visit` has seen enough.
fn frugal_plans(problem: &Problem, cell: Cell, kinds: usize, visit: &mut dyn FnMut(Plan) -> bool) {
    if space::cut_cell(problem, cell).is_some() {
        return;
    }
    let o = &problem.options;
    let axes = space::axes(problem, cell);
    let sharding = axes.sharding.iter().copied();
    let legal = sharding.filter(|&s| space::cut_sharding(problem, cell, s).is_none());
    let Some((zero, shard_group)) = legal.max() else { return };
    let recompute = most_recompute(problem);
    let done = std::cell::Cell::new(false);
    let prune = |counts: &[u64], _| {
        let used = || counts.iter().enumerate().filter(|&(_, &n)| n > 0);
        let mixed = used().count() > 1;
        let out = used().any(|(kind, &n)| {
            n * cell.devices_per_stage(kind) > problem.available(kind)
                || !space::places(problem, cell, kind, mixed)
        });
        (done.get() || used().count() > kinds || out).then_some(Cut::Limits)
    };
    for &sp in &axes.sp {
        for &ep in &axes.ep {
            let mut smallest = axes.mbs.iter().copied();
            let smallest =
                smallest.find(|&mbs| space::cut_shard(problem, cell, sp, ep, mbs).is_none());
            let Some(mbs) = smallest else { continue };
            Counts::of(problem, &cell).walk(&prune, &mut |step| {
                let Walked::One(runs) = step else { return };
                let chips: Vec<usize> = runs
                    .iter()
                    .flat_map(|&(kind, n)| std::iter::repeat_n(kind, n as usize))
                    .collect();
                // 1F1B holds least; the others count where it is not allowed.
                let legal = |s: &(Schedule, u64)| {
                    space::cut_schedule(problem, cell, mbs, *s, runs.len()).is_none()
                };
                let mut schedules: Vec<(Schedule, u64)> = axes.schedules.clone();
                schedules.retain(legal);
                if let Some((Schedule::OneFOneB, _)) = schedules.first() {
                    schedules.truncate(1);
                }
                let with_ends = |of| ends::all(problem, cell.pp, of).map(move |ends| (of, ends));
                for ((schedule, vpp), ends) in schedules.into_iter().flat_map(with_ends) {
                    let row = ends.row(problem.model.layers, vpp);
                    let Some(split) = even_split(row, &chips, o.uneven_layers) else { continue };
                    for &recompute in &recompute {
                        let plan = Plan {
                            dp: cell.dp,
                            tp: cell.tp,
                            tp_of_kind: cell.own_degrees(problem),
                            sp,
                            cp: cell.cp,
                            ep,
                            etp: space::expert_tensor_parallel(problem, cell.tp),
                            pp: cell.pp,
                            vpp,
                            mbs,
                            zero,
                            shard_group,
                            schedule,
                            optimizer_offload: o.optimizer_offload,
                            stages: stages((&split, ends), vpp as u32, &chips, recompute),
                        };
                        if !done.get() && check(problem, &plan).is_empty() {
                            done.set(!visit(plan));
                        }
                    }
                }
            });
        }
    }
}

/// The ways to recompute that leave least of those allowed: of whole layers, else selective, else none.
fn most_recompute(problem: &Problem) -> Vec<Recompute> {
    let o = &problem.options;
    let allowed = |g: &Granularity| o.recompute.is_empty() || o.recompute.contains(g);
    let whole = [
        (Granularity::Block, Recompute::Block { layers: problem.model.layers }),
        (Granularity::Uniform, Recompute::Uniform { layers: 1 }),
    ];
    let whole: Vec<Recompute> =
        whole.into_iter().filter_map(|(g, r)| allowed(&g).then_some(r)).collect();
    match whole.is_empty() {
        false => whole,
        true if allowed(&Granularity::Selective) => vec![Recompute::Selective],
        true => vec![Recompute::None],
    }
}

/// The layers of a row of chunks spread as evenly as they go over stages; nothing where stages of one kind must hold
/// equally many and cannot.
fn even_split(row: u32, chips: &[usize], uneven: bool) -> Option<Vec<u32>> {
    let pp = chips.len() as u32;
    if uneven {
        // The later stages take the remainder.
        let extra = row % pp;
        return Some((0..pp).map(|i| row / pp + u32::from(i >= pp - extra)).collect());
    }
    let mut counts: BTreeMap<usize, u32> = BTreeMap::new();
    for &chip in chips {
        *counts.entry(chip).or_insert(0) += 1;
    }
    // By the layers that the kinds so far hold together: how far from the mean their stages are, and each kind's share.
    let mut least: BTreeMap<u32, (u32, Vec<u32>)> = BTreeMap::from([(0, (0, Vec::new()))]);
    for &stages in counts.values() {
        let mut next: BTreeMap<u32, (u32, Vec<u32>)> = BTreeMap::new();
        for (held, (far, shares)) in &least {
            for each in 1..=(row - held) / stages {
                let far = far + stages * (each * pp).abs_diff(row);
                let place = next.entry(held + each * stages).or_insert((u32::MAX, Vec::new()));
                if far < place.0 {
                    *place = (far, shares.iter().copied().chain([each]).collect());
                }
            }
        }
        least = next;
    }
    let (_, shares) = least.remove(&row)?;
    let of_kind: BTreeMap<usize, u32> = counts.into_keys().zip(shares).collect();
    Some(chips.iter().map(|chip| of_kind[chip]).collect())
}

/// Stages of `vpp` chunks each, block recompute as deep as the largest chunk of its kind.
fn stages(
    (split, ends): (&[u32], Ends),
    vpp: u32,
    chips: &[usize],
    recompute: Recompute,
) -> Vec<Stage> {
    let pp = chips.len() as u64;
    let deepest = |chip: usize| {
        let of_kind = chips.iter().zip(split).filter(|&(&c, _)| c == chip);
        of_kind.map(|(_, &layers)| layers).max().unwrap_or(1)
    };
    let at = |chip: usize| match recompute {
        Recompute::Block { .. } => Recompute::Block { layers: deepest(chip) },
        Recompute::None
        | Recompute::Selective
        | Recompute::Uniform { .. }
        | Recompute::Parts(_) => recompute,
    };
    chips
        .iter()
        .zip(split)
        .enumerate()
        .map(|(i, (&chip, &layers))| Stage {
            chip: chip as u32,
            layers: (layers * vpp).saturating_sub(ends.of_stage(i, pp)),
            recompute: at(chip),
            offload: 0,
        })
        .collect()
}

/// Whether some class of a problem is legal, memory apart.
fn has_legal_class(problem: &Problem) -> bool {
    KINDS_LOOKED_AT.into_iter().any(|kinds| {
        let alike = space::cells(problem.cluster.devices).into_iter();
        alike.chain(mixed::all_cells(problem)).any(|cell| {
            let mut found = false;
            frugal_plans(problem, cell, kinds, &mut |_| {
                found = true;
                false
            });
            found
        })
    })
}

/// Candidates for a nearest value that are looked at, nearest first; degrees divide in all of them.
const CANDIDATES: usize = 256;

/// The nearest device count within the limits, in whole nodes, for which some class is legal.
fn nearest_devices(problem: &Problem) -> Option<u64> {
    let groups = &problem.cluster.groups;
    let node = groups.iter().map(|g| u64::from(g.chip.devices_per_node)).min()?;
    // Kinds without a limit have as many as are asked for.
    let mut largest = problem.clone();
    largest.cluster.devices = MOST_DEVICES;
    let most = largest.all_available().min(MOST_DEVICES);
    let counts = devices::device_counts(problem, most);
    nearest(problem.cluster.devices, counts.into_iter().filter(|n| n % node == 0), |devices| {
        let mut other = problem.clone();
        other.cluster.devices = devices;
        has_legal_class(&other)
    })
}

/// The nearest global batch for which some class is legal on the devices asked for: of the multiples of their replicas and
/// of what the options want, as far as a batch may go.
fn nearest_batch(problem: &Problem) -> Option<u64> {
    let asked = problem.workload.global_batch_size;
    let replicas = cell::divisors(problem.cluster.devices).into_iter();
    let batches: BTreeSet<u64> = replicas
        .filter_map(|dp| lcm(dp, problem.options.batch_multiple))
        .flat_map(|step| {
            let below = asked / step * step;
            [below, below.saturating_add(step)]
        })
        .filter(|batch| (1..=workload::MOST).contains(batch))
        .collect();
    nearest(asked, batches.into_iter(), |batch| {
        let mut other = problem.clone();
        other.workload.global_batch_size = batch;
        has_legal_class(&other)
    })
}

/// Of candidates other than `asked`, the nearest that is legal, the smaller of two as near.
fn nearest(
    asked: u64,
    candidates: impl Iterator<Item = u64>,
    legal: impl Fn(u64) -> bool,
) -> Option<u64> {
    let mut others: Vec<u64> = candidates.filter(|&n| n != asked).collect();
    others.sort_by_key(|&n| (n.abs_diff(asked), n));
    others.into_iter().take(CANDIDATES).find(|&n| legal(n))
}

/// Least common multiple, if it is a number here.
fn lcm(a: u64, b: u64) -> Option<u64> {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a / x).checked_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// 8,000 A100 and a batch of 1,024 without context parallel, stages of equal depth: a factor of 5 is left over.
    fn problem() -> Problem {
        let mut cluster = testing::cluster(testing::a100(), 8000);
        cluster.groups[0].limit = None;
        let mut problem = testing::problem(testing::gpt(80, 8192), cluster, 1024, 4096);
        problem.options.cp = vec![1];
        problem.options.uneven_layers = false;
        problem
    }

    #[test]
    fn the_nearest_device_count_lies_within_the_limits() {
        // 64 heads and 80 layers: 8,192 = 8 x 1 x 1024 is nearer than 5,120 = 5 x 1024, which a limit of 8,000 leaves.
        let mut problem = problem();
        assert_eq!(nearest_devices(&problem), Some(8192));
        problem.cluster.groups[0].limit = Some(8000);
        assert_eq!(nearest_devices(&problem), Some(5120));
    }

    #[test]
    fn the_nearest_batch_is_a_multiple_of_what_is_wanted() {
        // 8,000 = 8 x 40 x 25 replicas or more: 1,025 = 41 x 25, and 12,800 = 512 x 25.
        let mut problem = problem();
        assert_eq!(nearest_batch(&problem), Some(1025));
        problem.options.batch_multiple = 512;
        assert_eq!(nearest_batch(&problem), Some(12_800));
    }

    #[test]
    fn layers_are_spread_over_any_number_of_kinds() {
        // 14 layers over five stages: of 2a + b + 2c 2 x 3 + 2 + 2 x 3 is nearest the mean of 2.8.
        // And 13 as 2 x 2 + 3 + 2 x 3, nearer than a stage of one layer.
        assert_eq!(even_split(14, &[0, 0, 1, 2, 2], false), Some(vec![3, 3, 2, 3, 3]));
        assert_eq!(even_split(13, &[0, 0, 1, 2, 2], false), Some(vec![2, 2, 3, 3, 3]));
        assert_eq!(even_split(13, &[0, 0, 0, 0, 0], false), None);
        assert_eq!(even_split(13, &[0, 0, 1, 2, 2], true), Some(vec![2, 2, 3, 3, 3]));
    }

    #[test]
    fn a_nearest_value_may_be_far_away() {
        // 10^6 = 2^6 x 5^6, and 80 layers take one 5 at most: 2^20 devices need none, a batch of 336 x 5^5 has the others.
        let mut problem = problem();
        problem.cluster.devices = 1_000_000;
        problem.workload.global_batch_size = 1 << 20;
        assert_eq!(nearest_devices(&problem), Some(1 << 20));
        assert_eq!(nearest_batch(&problem), Some(1_050_000));
    }

    #[test]
    fn a_batch_beyond_the_largest_is_not_proposed() {
        // 2 x 5^9 devices: 80 layers take one 5, the batch at least 5^8 = 390,625, and 2^12 of them are beyond 2^30.
        let mut problem = problem();
        problem.cluster.devices = 3_906_250;
        problem.options.batch_multiple = 1 << 12;
        assert_eq!(nearest_batch(&problem), None);
        problem.options.batch_multiple = 1 << 11;
        assert_eq!(nearest_batch(&problem), Some(390_625 << 11));
    }
}
