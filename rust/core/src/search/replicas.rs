//! A plan with other numbers of replicas: how fast other device counts are at least, before any of them is searched.

use super::cell::{divisors, Cell};
use super::compositions::cut_composition;
use super::counts::Composition;
use super::entry::Entry;
use super::guess::guess;
use super::holds::Holds;
use super::known::Known;
use super::report::Counters;
use super::space;
use super::stages::Class;
use super::watch::Watch;
use crate::estimate::{Step, Tables};
use crate::plan::rules::first_broken;
use crate::plan::{Plan, Stage};
use crate::spec::problem::Problem;
use crate::units::Time;
use rayon::prelude::*;

/// Device counts up to a problem's on which `plan` has other numbers of replicas, where it is then one of the space's and fits; and
/// where it is on several kinds of chip, those on which each of them alone has its degrees.
pub fn with_other_replicas(problem: &Problem, plan: &Plan, watch: &Watch) -> Vec<Known> {
    let each = plan.devices() / plan.dp;
    let batch = problem.workload.global_batch_size;
    let replicas = |most: u64| {
        let fitting = divisors(batch / plan.mbs).into_iter();
        fitting.filter(move |&dp| dp * each <= most).collect::<Vec<u64>>()
    };
    let of = |dp: u64, time: &(dyn Fn(&Problem, &Plan) -> Option<Time> + Sync)| {
        let mut problem = problem.clone();
        problem.cluster.devices = dp * each;
        let time = time(&problem, &with_replicas(plan, dp))?;
        Some(Known { devices: dp * each, time })
    };
    let all = replicas(problem.cluster.devices).into_par_iter();
    let mut known: Vec<Known> = all.filter_map(|dp| of(dp, &time)).collect();
    let mut kinds: Vec<usize> = plan.stages.iter().map(|stage| stage.chip as usize).collect();
    kinds.sort_unstable();
    kinds.dedup();
    if plan.tp_of_kind.is_empty() && kinds.len() > 1 {
        for kind in kinds {
            let alone = replicas(problem.available(kind)).into_par_iter();
            let time = |problem: &Problem, plan: &Plan| time_on(problem, plan, kind, watch);
            known.par_extend(alone.filter_map(|dp| of(dp, &time)));
        }
    }
    known
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
    let alike = plan.stages.chunk_by(|a, b| a.chip == b.chip);
    let run = |run: &[Stage]| (run[0].chip as usize, run.len() as u64);
    let runs: Composition = alike.map(run).collect();
    if !has(problem, plan, &runs) || first_broken(problem, plan).is_some() {
        return None;
    }
    let tables = Tables::of(problem, plan);
    let step = Step::new(&tables, plan);
    (step.lacking(&tables, plan).is_empty() && step.time < Time::MAX).then_some(step.time)
}

/// The time of some plan with the degrees of `plan`, all stages on one kind of chip, if one of the problem's is at hand.
fn time_on(problem: &Problem, plan: &Plan, kind: usize, watch: &Watch) -> Option<Time> {
    if !has(problem, plan, &vec![(kind, plan.pp)]) {
        return None;
    }
    let degrees = Plan { stages: Vec::new(), optimizer_offload: false, ..plan.clone() };
    let sharding = (plan.zero, plan.shard_group);
    let shard = entry(plan).shard(problem, kind, sharding);
    let tables = Tables::new(problem, |of| (of == kind).then_some(shard));
    let holds = Holds::new(tables, degrees);
    let kinds = vec![kind; plan.pp as usize];
    let class = Class { holds: &holds, kinds: &kinds, watch };
    guess(&class, (Time::ZERO, Time::MAX), false, &mut Counters::default())
}

/// The degrees of a plan whose kinds have one.
fn entry(plan: &Plan) -> Entry {
    let &Plan { dp, tp, sp, cp, ep, pp, mbs, .. } = plan;
    let cell = Cell { pp, tp, each: None, cp, dp };
    Entry { cell, sp, ep, mbs, zero: [true; 4], bound: Time::ZERO, classes: 0, row: 0 }
}

/// Whether the degrees of a plan, its stages on so many of each kind, are in a problem's space.
fn has(problem: &Problem, plan: &Plan, runs: &Composition) -> bool {
    let entry = entry(plan);
    let Entry { cell, sp, ep, mbs, .. } = entry;
    let sharding = (plan.zero, plan.shard_group);
    plan.tp_of_kind.is_empty()
        && space::shardings(cell).contains(&sharding)
        && space::cut_cell(problem, cell).is_none()
        && space::cut_shard(problem, cell, sp, ep, mbs).is_none()
        && space::cut_sharding(problem, cell, sharding).is_none()
        && cut_composition(problem, &entry, (plan.schedule, plan.vpp), runs).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::search;
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
                for known in with_other_replicas(&problem, &found.plan, &Watch::new(None)) {
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
