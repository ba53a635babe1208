//! Why there is no plan, and what comes nearest.

use super::report::{Counters, Cut, Infeasible, Ranked};
use super::space::{self, Cell, Walked};
use crate::estimate::{estimate, Step, Tables};
use crate::plan::{check, Plan, Recompute, Stage};
use crate::spec::problem::{Granularity, Problem, Schedule};
use crate::units::Bytes;

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
pub fn why_nothing(problem: &Problem, _counters: &Counters) -> Infeasible {
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
    let mut nearest: Option<(Plan, usize, Bytes)> = None;
    for cell in space::cells(problem.cluster.devices) {
        if space::cut_cell(problem, cell).is_some() {
            continue;
        }
        for plan in frugal_plans(problem, cell) {
            if !check(problem, &plan).is_empty() {
                continue;
            }
            let tables = Tables::new(problem, plan.shard(), |k| {
                plan.stages.iter().any(|s| s.chip as usize == k)
            });
            let step = Step::new(&tables, &plan);
            let worst = step.lacking(&tables, &plan).into_iter().max_by_key(|&(_, lack)| lack);
            if let Some((stage, lack)) = worst {
                if nearest.as_ref().is_none_or(|(_, _, least)| lack < *least) {
                    nearest = Some((plan, stage, lack));
                }
            }
        }
    }
    nearest
}

/// The plans of a cell that need least memory, for each composition of kinds, way to recompute and sp.
fn frugal_plans(problem: &Problem, cell: Cell) -> Vec<Plan> {
    let o = &problem.options;
    let axes = space::axes(problem, cell);
    let allowed = |g| o.recompute.is_empty() || o.recompute.contains(&g);
    let recompute = [
        (Granularity::None, Recompute::None),
        (Granularity::Selective, Recompute::Selective),
        (Granularity::Block, Recompute::Block { layers: problem.model.layers }),
        (Granularity::Uniform, Recompute::Uniform { layers: 1 }),
    ]
    .into_iter()
    .filter_map(|(g, r)| allowed(g).then_some(r));
    let sharding = axes
        .sharding
        .iter()
        .copied()
        .filter(|&s| space::cut_sharding(problem, cell, s).is_none())
        .max();
    let mut plans = Vec::new();
    let Some((zero, shard_group)) = sharding else { return plans };
    for &sp in &axes.sp {
        for &ep in &axes.ep {
            let smallest = axes
                .mbs
                .iter()
                .copied()
                .find(|&mbs| space::cut_shard(problem, cell, sp, ep, mbs).is_none());
            let Some(mbs) = smallest else { continue };
            // One border is enough to see what is missing; more would only be slower to list.
            let two = |counts: &[u64], _| {
                (counts.iter().filter(|&&n| n > 0).count() > 2).then_some(Cut::Bound)
            };
            space::each_composition(problem.cluster.groups.len(), cell.pp, &two, &mut |step| {
                let Walked::One(runs) = step else { return };
                if plans.len() >= 4096 {
                    return;
                }
                let chips: Vec<usize> = runs
                    .iter()
                    .flat_map(|&(kind, n)| std::iter::repeat_n(kind, n as usize))
                    .collect();
                // 1F1B holds least; the others count where it is not allowed.
                let legal = |s: &&(Schedule, u64)| {
                    space::cut_schedule(problem, cell, mbs, **s, runs.len()).is_none()
                };
                let first = axes.schedules.iter().find(legal).copied();
                let others = axes.schedules.iter().filter(legal).copied();
                let schedules: Vec<(Schedule, u64)> = match first {
                    Some((Schedule::OneFOneB, _)) => first.into_iter().collect(),
                    _ => others.collect(),
                };
                for (schedule, vpp) in schedules {
                    let row = problem.model.layers / vpp as u32;
                    let Some(split) = even_split(row, &chips, o.uneven_layers) else { continue };
                    plans.extend(recompute.clone().map(|recompute| Plan {
                        dp: cell.dp,
                        tp: cell.tp,
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
                        stages: stages(&split, vpp as u32, &chips, recompute),
                    }));
                }
            });
        }
    }
    plans
}

/// The layers of a row of chunks spread as evenly as they go over stages of at most two kinds of chip; nothing where
/// stages of one kind must hold equally many and cannot.
fn even_split(row: u32, chips: &[usize], uneven: bool) -> Option<Vec<u32>> {
    let pp = chips.len() as u32;
    if uneven {
        // The later stages take the remainder.
        let extra = row % pp;
        return Some((0..pp).map(|i| row / pp + u32::from(i >= pp - extra)).collect());
    }
    let first = chips.iter().filter(|&&c| c == chips[0]).count() as u32;
    let second = pp - first;
    let splits = (1..=row / first).filter_map(|each| {
        let rest = row - each * first;
        match second {
            0 => (rest == 0).then_some((each, each)),
            _ => (rest > 0 && rest.is_multiple_of(second)).then_some((each, rest / second)),
        }
    });
    let (a, b) = splits.min_by_key(|&(a, b)| a.abs_diff(b))?;
    Some(chips.iter().map(|&c| if c == chips[0] { a } else { b }).collect())
}

/// Stages of `vpp` chunks each, block recompute as deep as the largest chunk of its kind.
fn stages(split: &[u32], vpp: u32, chips: &[usize], recompute: Recompute) -> Vec<Stage> {
    let deepest = |chip: usize| {
        let of_kind = chips.iter().zip(split).filter(|&(&c, _)| c == chip);
        of_kind.map(|(_, &layers)| layers).max().unwrap_or(1)
    };
    let at = |chip: usize| match recompute {
        Recompute::Block { .. } => Recompute::Block { layers: deepest(chip) },
        Recompute::None | Recompute::Selective | Recompute::Uniform { .. } => recompute,
    };
    chips
        .iter()
        .zip(split)
        .map(|(&chip, &layers)| Stage {
            chip: chip as u32,
            layers: layers * vpp,
            recompute: at(chip),
            offload: 0,
        })
        .collect()
}

/// Whether some class of a problem is legal, memory apart.
fn has_legal_class(problem: &Problem) -> bool {
    space::cells(problem.cluster.devices).into_iter().any(|cell| {
        space::cut_cell(problem, cell).is_none()
            && frugal_plans(problem, cell).iter().any(|plan| check(problem, plan).is_empty())
    })
}

/// Steps tried on each side when looking for a nearest value.
const STEPS: u64 = 512;

/// The nearest device count, in whole nodes, for which some class is legal.
fn nearest_devices(problem: &Problem) -> Option<u64> {
    let node = problem.cluster.groups.iter().map(|g| u64::from(g.chip.devices_per_node)).min()?;
    let asked = problem.cluster.devices;
    (1..=STEPS)
        .flat_map(|n| [asked.checked_sub(n * node), asked.checked_add(n * node)])
        .flatten()
        .filter(|&devices| devices > 0)
        .find(|&devices| {
            let mut other = problem.clone();
            other.cluster.devices = devices;
            has_legal_class(&other)
        })
}

/// The nearest global batch for which some class is legal on the devices asked for.
fn nearest_batch(problem: &Problem) -> Option<u64> {
    let asked = problem.workload.global_batch_size;
    (1..=STEPS)
        .flat_map(|n| [asked.checked_sub(n), asked.checked_add(n)])
        .flatten()
        .filter(|&batch| batch > 0)
        .find(|&batch| {
            let mut other = problem.clone();
            other.workload.global_batch_size = batch;
            has_legal_class(&other)
        })
}
