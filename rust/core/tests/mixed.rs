//! Kinds of chip with tensor-parallel degrees of their own, worked by hand.

use autopar_core::estimate::{estimate, Tables};
use autopar_core::plan::rules::check;
use autopar_core::plan::{Plan, Recompute, Stage};
use autopar_core::search::search;
use autopar_core::spec::cluster::{DeviceGroup, NetworkLink};
use autopar_core::spec::problem::{Problem, Schedule};
use autopar_core::testing;
use autopar_core::Watch;

/// Four layers of width 1,024 on six devices of two kinds that differ in their name alone, behind a link of 10 GB/s and 0.1 s.
fn problem() -> Problem {
    let mut cluster = testing::cluster(testing::a100(), 6);
    let mut other = testing::a100();
    other.name = "b100".into();
    cluster.groups.push(DeviceGroup { chip: other, limit: None });
    cluster.between_kinds = Some(NetworkLink { bandwidth_gb_per_s: 10.0, latency_us: 1e5 });
    testing::problem(testing::gpt(4, 1024), cluster, 8, 512)
}

/// Two stages of two layers, one on each kind.
fn plan(tp: u64, of_kind: &[u64]) -> Plan {
    let stage = |chip: u32| Stage { chip, layers: 2, recompute: Recompute::None, offload: 0 };
    let stages = vec![stage(0), stage(1)];
    Plan { tp, tp_of_kind: of_kind.to_vec(), sp: true, pp: 2, ..testing::plan(stages) }
}

#[test]
fn a_stage_costs_what_its_kinds_degree_makes_of_it() {
    let mixed = estimate(&problem(), &plan(4, &[4, 2])).expect("4 + 2 devices");
    for (stage, tp) in [(0, 4), (1, 2)] {
        let mut alike = problem();
        alike.cluster.devices = 2 * tp;
        let alike = estimate(&alike, &plan(tp, &[])).expect("two stages of one degree");
        let (a, b) = (&mixed.stages[stage], &alike.stages[stage]);
        assert_eq!((a.forward_ps, a.backward_ps), (b.forward_ps, b.backward_ps));
        assert_eq!(a.memory, b.memory);
    }
}

#[test]
fn the_smaller_group_carries_what_crosses() {
    // 512 positions of 1,024 numbers of 2 bytes, cut in two on the side of two ranks: 2^19 bytes at 10 GB/s, both ways.
    let problem = problem();
    let tables = Tables::of(&problem, &plan(4, &[4, 2]));
    let (there, back) = (tables.send((0, 0), (1, 0)), tables.send((1, 0), (0, 0)));
    assert_eq!(there, back);
    let wire = (1 << 19) as f64 / 10e9;
    assert!((there.seconds() - 0.1 - wire).abs() < 1e-5, "{there:?}");
    assert!(there.seconds() - 0.1 > 0.9 * wire, "{there:?}");
}

#[test]
fn degrees_of_kinds_must_differ_and_cut_the_sequence() {
    let problem = problem();
    let broken = |plan: &Plan| check(&problem, plan);
    assert!(broken(&plan(4, &[4, 2])).is_empty());
    let says = |plan: &Plan, what: &str| {
        let all = broken(plan);
        assert!(all.iter().any(|rule| rule.contains(what)), "{all:?}");
    };
    says(&plan(4, &[4, 4]), "must differ");
    says(&plan(2, &[4, 2]), "be the largest");
    says(&plan(4, &[4, 0]), "0 where it holds no stage");
    says(&plan(4, &[4, 2, 1]), "one degree a kind");
    says(&Plan { sp: false, ..plan(4, &[4, 2]) }, "need sequence parallel");
    says(&plan(4, &[4, 1]), "is 5 for 6 devices");
    says(&plan(8, &[8, 3]), "tp 3 does not divide 8 heads");
}

#[test]
fn a_degree_for_each_kind_is_found_where_no_other_plan_fills_the_devices() {
    let mut problem = problem();
    // Two stages of 3 devices each divide neither 8 heads nor 8 sequences; 4 + 2 do.
    problem.options.pp = vec![2];
    problem.options.dp = vec![1];
    problem.options.cp = vec![1];
    problem.options.schedules = vec![Schedule::OneFOneB];
    assert!(search(problem.clone(), &Watch::new(None)).ranked.is_empty());
    problem.options.mixed_tp = true;
    let report = search(problem, &Watch::new(None));
    let best = &report.ranked[0].plan;
    assert!(report.proved);
    assert_eq!((best.pp, best.tp), (2, 4));
    assert_eq!(best.tp_of_kind.iter().sum::<u64>(), 6);
}
