//! A plan with other numbers of replicas: how fast other device counts are at least, before any of them is searched.

use super::cell::{divisors, Cell};
use super::compositions::cut_composition;
use super::counts::Composition;
use super::entry::Entry;
use super::known::Known;
use super::space;
use crate::estimate::{Step, Tables};
use crate::plan::rules::first_broken;
use crate::plan::{Plan, Stage};
use crate::spec::problem::Problem;
use crate::units::Time;
use rayon::prelude::*;

/// Device counts up to a problem's on which `plan` has other numbers of replicas, where it is then one of the space's and fits.
pub fn with_other_replicas(problem: &Problem, plan: &Plan) -> Vec<Known> {
    let each = plan.devices() / plan.dp;
    let batch = problem.workload.global_batch_size;
    let most = problem.cluster.devices / each;
    let replicas = divisors(batch / plan.mbs).into_iter().filter(|&dp| dp <= most);
    let of = |dp: u64| {
        let mut problem = problem.clone();
        problem.cluster.devices = dp * each;
        let time = time(&problem, &with_replicas(plan, dp))?;
        Some(Known { devices: dp * each, time })
    };
    replicas.collect::<Vec<u64>>().into_par_iter().filter_map(of).collect()
}

/// A plan with so many replicas, sharded over all of them where it was, else in groups as large if there may be such.
fn with_replicas(plan: &Plan, dp: u64) -> Plan {
    let all = plan.shard_group == plan.dp * plan.cp;
    let shard_group = if all { dp * plan.cp } else { plan.shard_group };
    let zero = if dp * plan.cp == 1 { 0 } else { plan.zero };
    Plan { dp, zero, shard_group: if zero == 0 { 1 } else { shard_group }, ..plan.clone() }
}

/// The time of a plan, if it is one of the problem's and fits.
fn time(problem: &Problem, plan: &Plan) -> Option<Time> {
    let &Plan { dp, tp, sp, cp, ep, pp, vpp, mbs, zero, shard_group, schedule, .. } = plan;
    let cell = Cell { pp, tp, each: None, cp, dp };
    let (zeros, bound, classes, row) = ([true; 4], Time::ZERO, 0, 0);
    let entry = Entry { cell, sp, ep, mbs, zero: zeros, bound, classes, row };
    let alike = plan.stages.chunk_by(|a, b| a.chip == b.chip);
    let run = |run: &[Stage]| (run[0].chip as usize, run.len() as u64);
    let runs: Composition = alike.map(run).collect();
    let in_space = plan.tp_of_kind.is_empty()
        && space::shardings(cell).contains(&(zero, shard_group))
        && space::cut_cell(problem, cell).is_none()
        && space::cut_shard(problem, cell, sp, ep, mbs).is_none()
        && space::cut_sharding(problem, cell, (zero, shard_group)).is_none()
        && cut_composition(problem, &entry, (schedule, vpp), &runs).is_none()
        && first_broken(problem, plan).is_none();
    if !in_space {
        return None;
    }
    let tables = Tables::of(problem, plan);
    let step = Step::new(&tables, plan);
    (step.lacking(&tables, plan).is_empty() && step.time < Time::MAX).then_some(step.time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{search, watch::Watch};
    use crate::spec::model::Model;
    use crate::testing;

    #[test]
    fn no_count_is_slower_than_another_counts_plan_with_its_replicas() {
        let mut cluster = testing::cluster(testing::a100(), 12);
        cluster.groups[0].limit = Some(8);
        cluster.groups.push(cluster.groups[0].clone());
        cluster.groups[1].chip = testing::fast();
        let (mut met, mut told) = (0, 0);
        for (memory, moe) in [(80.0, None), (3.0, None), (3.0, Some(testing::moe(4, 2, 2048)))] {
            cluster.groups.iter_mut().for_each(|group| group.chip.memory_gib = memory);
            let model = Model { moe, ..testing::gpt(6, 1024) };
            let mut problem = testing::problem(model, cluster.clone(), 48, 1024);
            problem.options.top = 1;
            let best = |devices: u64| {
                let mut problem = problem.clone();
                problem.cluster.devices = devices;
                search(problem, &Watch::new(None)).ranked.into_iter().next()
            };
            let times: Vec<Option<Time>> =
                (0..=12).map(|n| best(n.max(1)).map(|best| best.estimate.step_ps)).collect();
            for found in (1..=12).filter_map(best) {
                for known in with_other_replicas(&problem, &found.plan) {
                    let time = times[known.devices as usize].expect("a plan fits");
                    assert!(time <= known.time, "{known:?} of {:?}", found.plan);
                    let own = known.devices == found.plan.devices();
                    assert!(!own || known.time == found.estimate.step_ps);
                    told += u32::from(!own);
                    met += u32::from(!own && known.time == time);
                }
            }
        }
        assert!(told > 20 && met > 0, "{told} {met}");
    }
}
