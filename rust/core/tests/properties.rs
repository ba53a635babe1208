//! Laws of the search and the estimate that hold for every problem, tried on random ones.

mod draw;

use autopar_core::estimate::memory;
use autopar_core::estimate::stage::Place;
use autopar_core::estimate::{estimate, Tables};
use autopar_core::plan::rules::check;
use autopar_core::plan::{Plan, Recompute};
use autopar_core::search::report::{Ranked, Report, StopReason};
use autopar_core::search::search;
use autopar_core::spec::problem::{Problem, Schedule};
use autopar_core::testing;
use autopar_core::units::{Time, GIB};
use autopar_core::{wire, Watch};
use draw::plans::{any_plan, unequal_plan};
use draw::Draw;

fn best(problem: &Problem) -> Report {
    search(problem.clone(), &Watch::new(None))
}

/// A random problem in which memory binds more or less.
fn tight_problem(draw: &mut Draw) -> Problem {
    let kinds = draw.pick(&[1, 2, 3]);
    let mut problem = draw::problem(draw, kinds);
    problem.options.top = draw.pick(&[1, 4, 12]);
    (0..draw.between(0, 4)).for_each(|_| draw::narrow(draw, &mut problem));
    let share = draw.pick(&[0.5, 0.8, 1.0, 2.0]);
    if let Some(first) = best(&problem).ranked.first() {
        let needs = first.estimate.stages.iter().map(|s| s.allocated_bytes.0).max().unwrap_or(0);
        for group in &mut problem.cluster.groups {
            let jitter = 0.8 + 0.4 * draw.share();
            let context = memory::context(&problem.framework, &first.plan.shard(0)).gib();
            group.chip.memory_gib = context + needs as f64 / GIB * share * jitter;
        }
    }
    problem
}

#[test]
fn every_returned_plan_is_legal_fits_and_is_listed_once_in_order() {
    let mut draw = Draw::new(5);
    let mut plans = 0;
    for _ in 0..70 {
        let problem = tight_problem(&mut draw);
        let report = best(&problem);
        assert!(report.proved && report.ranked.len() <= problem.options.top as usize);
        for r in &report.ranked {
            assert_eq!(check(&problem, &r.plan), Vec::<String>::new());
            assert_eq!(r.estimate.violations, Vec::<String>::new());
            assert_eq!(r.estimate.time.sum(), r.estimate.step_ps, "the parts add up to the step");
            plans += 1;
        }
        let times: Vec<Time> = report.ranked.iter().map(|r| r.estimate.step_ps).collect();
        assert!(times.is_sorted());
        let strategy = |p: &Plan| {
            let mut p = p.clone();
            p.optimizer_offload = false;
            for s in &mut p.stages {
                (s.layers, s.offload, s.recompute) = (0, 0, Recompute::None);
            }
            p
        };
        let mut strategies: Vec<Plan> = report.ranked.iter().map(|r| strategy(&r.plan)).collect();
        strategies.sort();
        strategies.dedup();
        assert_eq!(strategies.len(), report.ranked.len(), "a strategy is listed once");
    }
    assert!(plans > 100, "only {plans} plans were looked at");
}

#[test]
fn fewer_places_list_the_head_of_more() {
    let mut draw = Draw::new(6);
    for _ in 0..25 {
        let mut problem = tight_problem(&mut draw);
        problem.options.top = 20;
        let many = best(&problem).ranked;
        for top in [1, 3, 19] {
            problem.options.top = top;
            let times = |ranked: &[Ranked]| -> Vec<(Time, u64, Schedule)> {
                ranked.iter().map(|r| (r.estimate.step_ps, r.plan.tp, r.plan.schedule)).collect()
            };
            let few = best(&problem).ranked;
            assert_eq!(times(&few), times(&many[..few.len()]));
            assert_eq!(few.len(), many.len().min(top as usize));
        }
    }
}

/// Classes of a problem's space, counted by trying.
fn size(problem: &Problem) -> u64 {
    let (n, batch) = (problem.cluster.devices, problem.workload.global_batch_size);
    let layers = u64::from(problem.model.layers);
    let divisors = |n: u64| (1..=n).filter(|d| n.is_multiple_of(*d)).count() as u64;
    // Lines of kinds in which no kind comes back, of so many ranks where each has a degree of its own.
    fn lines(degrees: &[Option<u64>], left: u64, ranks: u64, used: u32, last: usize) -> u64 {
        if left == 0 {
            let held = |kind: usize| used & (1 << kind) != 0;
            let own = |kind: usize| degrees[kind].is_none_or(|tp| held(kind) == (tp > 0));
            return u64::from(ranks == 0 && (0..degrees.len()).all(own));
        }
        (0..degrees.len())
            .filter(|&k| k == last || used & (1 << k) == 0)
            .filter_map(|k| {
                let rest = ranks.checked_sub(degrees[k].unwrap_or(0))?;
                Some(lines(degrees, left - 1, rest, used | 1 << k, k))
            })
            .sum()
    }
    let below = |pp: u64, cp: u64, dp: u64, degrees: &[Option<u64>], ranks: u64| {
        // The first chunk of all may lack a layer, and the last as many as it has places for, which leaves one to each other stage.
        let most = u64::from(problem.options.uneven_layers);
        let fits = |v: u64, lead: u64, lag: u64| {
            let places = layers + lead + lag;
            places.is_multiple_of(v) && places / v >= lag.max(1) + pp - 1
        };
        let legal =
            |v: &u64| (0..=most).any(|lead| (0..=most * (v - 1)).any(|lag| fits(*v, lead, lag)));
        let chunks = (2..=layers + 2).filter(legal).count() as u64;
        let schedules = if pp == 1 { 1 } else { 4 + chunks };
        let mbs = if batch % dp == 0 { divisors(batch / dp) } else { 1 };
        let experts = problem.model.moe.map_or(1, |m| divisors(u64::from(m.experts)));
        let sharding = 1 + 3 * (divisors(dp * cp) - 1);
        2 * experts * mbs * sharding * schedules * lines(degrees, pp, ranks, 0, usize::MAX)
    };
    let mut all = 0;
    let alike = vec![None; problem.cluster.groups.len()];
    for pp in (1..=n).filter(|pp| n % pp == 0) {
        for tp in (1..=n).filter(|tp| n % (pp * tp) == 0) {
            for cp in (1..=n).filter(|cp| n % (pp * tp * cp) == 0) {
                all += below(pp, cp, n / (pp * tp * cp), &alike, 0);
            }
        }
    }
    if problem.options.mixed_tp {
        for dp in (1..=n).filter(|dp| n % dp == 0) {
            for cp in (1..=n / dp).filter(|cp| n % (dp * cp) == 0) {
                let ranks = n / (dp * cp);
                for degrees in draw::every_choice_of_degrees(problem) {
                    let degrees: Vec<Option<u64>> = degrees.into_iter().map(Some).collect();
                    let depths = 2..=ranks.min(layers);
                    all += depths.map(|pp| below(pp, cp, dp, &degrees, ranks)).sum::<u64>();
                }
            }
        }
    }
    all
}

#[test]
fn every_class_is_estimated_or_cut_and_none_twice() {
    let mut draw = Draw::new(7);
    for _ in 0..60 {
        let problem = tight_problem(&mut draw);
        let available: u64 = (0..problem.cluster.groups.len()).map(|k| problem.available(k)).sum();
        let counters = best(&problem).counters;
        let cut: u64 = counters.cut.values().sum();
        assert_eq!(counters.considered, counters.estimated + cut);
        if available >= problem.cluster.devices {
            assert_eq!(counters.considered, size(&problem));
        }
    }
}

#[test]
fn a_stopped_search_never_says_that_its_answer_is_proved() {
    let mut draw = Draw::new(17);
    let (mut stopped, mut with_plans) = (0, 0);
    for _ in 0..48 {
        let problem = tight_problem(&mut draw);
        let watch = Watch::new(None);
        let whole = search(problem.clone(), &watch);
        assert!(whole.proved);
        // At its last look a search may have nothing left to do.
        let looks = watch.looks();
        for _ in 0..6 {
            let n = draw.between(1, looks + 1);
            let watch = Watch::stopping_at(n);
            let report = search(problem.clone(), &watch);
            let said = format!("stopped at look {n} of {looks}: {:?}", report.counters);
            assert_eq!(report.proved, report.stop == StopReason::Complete, "{said}");
            if watch.interrupted() && watch.looks() > n {
                assert!(!report.proved || report.ranked == whole.ranked, "{said}");
            }
            let all = report.counters.cut.values().sum::<u64>() + report.counters.estimated;
            assert_eq!(report.counters.considered, all, "{said}");
            if !report.proved {
                stopped += 1;
                with_plans += u32::from(!report.ranked.is_empty());
                assert_eq!(report.gap.is_some(), !report.ranked.is_empty(), "{said}");
                assert_eq!(report.stop, StopReason::Interrupted, "{said}");
                assert!(report.infeasible.is_none(), "{said}");
                // The gap is an honest one.
                if let (Some(gap), Some(first), Some(best)) =
                    (report.gap, report.ranked.first(), whole.ranked.first())
                {
                    let least = first.estimate.step_s * (1.0 - gap) * (1.0 - 1e-9);
                    assert!(best.estimate.step_s >= least, "{said}");
                }
            }
        }
    }
    assert!(stopped > 100 && with_plans > 20, "{stopped} stopped, {with_plans} with plans");
}

#[test]
fn a_search_looks_whether_it_must_stop_at_least_every_thousand_estimates() {
    let mut draw = Draw::new(18);
    for _ in 0..40 {
        let watch = Watch::new(None);
        let report = search(tight_problem(&mut draw), &watch);
        assert!(watch.looks() * 1000 >= report.counters.estimates, "{:?}", report.counters);
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let mut draw = Draw::new(8);
    let mut problems: Vec<Problem> = (0..12).map(|_| tight_problem(&mut draw)).collect();
    problems.push(testing::problem(
        testing::gpt(12, 1024),
        testing::cluster(testing::a100(), 96),
        192,
        1024,
    ));
    for problem in problems {
        let document = serde_json::to_string(&problem).expect("a problem is a document");
        let on =
            |threads| wire::search(&document, threads, &Watch::new(None)).expect("it is valid");
        let one = on(1);
        assert_eq!(one, on(2));
        assert_eq!(one, on(16));
    }
}

#[test]
fn the_order_in_which_chips_are_listed_changes_only_their_indices() {
    let mut draw = Draw::new(9);
    let mut several = 0;
    for _ in 0..60 {
        let problem = tight_problem(&mut draw);
        let kinds = problem.cluster.groups.len();
        if kinds == 1 {
            continue;
        }
        several += 1;
        let shift = draw.between(1, kinds as u64 - 1) as usize;
        let mut turned = problem.clone();
        turned.cluster.groups.rotate_left(shift);
        let (a, mut b) = (best(&problem), best(&turned));
        for r in &mut b.ranked {
            for s in &mut r.plan.stages {
                s.chip = ((s.chip as usize + shift) % kinds) as u32;
            }
            if !r.plan.tp_of_kind.is_empty() {
                r.plan.tp_of_kind.rotate_right(shift);
            }
        }
        assert_eq!(a.ranked, b.ranked);
        assert_eq!(a.infeasible.is_some(), b.infeasible.is_some());
        assert_eq!(a.counters.considered, b.counters.considered);
    }
    assert!(several > 20);
}

#[test]
fn more_recompute_never_makes_a_step_shorter() {
    let mut draw = Draw::new(13);
    for _ in 0..2000 {
        let (problem, plan) = unequal_plan(&mut draw);
        let kind = draw.pick(&plan.stages).chip;
        let time = |recompute: Recompute| {
            let mut plan = plan.clone();
            for s in plan.stages.iter_mut().filter(|s| s.chip == kind) {
                s.recompute = recompute;
            }
            estimate(&problem, &plan).expect("a legal plan").step_ps
        };
        let of_kind = plan.stages.iter().filter(|s| s.chip == kind);
        let most = of_kind.map(|s| s.layers / plan.vpp as u32).max().unwrap_or(0);
        let said = format!("kind {kind} of {plan:?}");
        let none = time(Recompute::None);
        assert!(none <= time(Recompute::Selective), "selective on {said}");
        assert!(none <= time(Recompute::Uniform { layers: 1 }), "uniform on {said}");
        let blocks = (1..=most).map(|layers| time(Recompute::Block { layers }));
        let times: Vec<Time> = std::iter::once(none).chain(blocks).collect();
        assert!(times.is_sorted(), "block on {said}: {times:?}");
    }
}

#[test]
fn more_layers_never_need_less_memory() {
    let mut draw = Draw::new(14);
    for _ in 0..2000 {
        let (problem, plan) = unequal_plan(&mut draw);
        let tables = Tables::new(&problem, |kind| Some(plan.shard(kind)));
        let index = draw.between(0, plan.pp - 1) as usize;
        let table = tables.kind(plan.stages[index].chip as usize);
        let row = problem.model.layers / plan.vpp as u32;
        let layers = draw.between(1, 4) as u32;
        let recompute = draw.pick(&[
            Recompute::None,
            Recompute::Selective,
            Recompute::Block { layers },
            Recompute::Uniform { layers },
        ]);
        let bytes: Vec<u64> = (1..=row)
            .map(|layers| {
                let place = Place { first: 0, layers, recompute, ..plan.place(&problem, index) };
                table.stage(&place).memory.allocated().0
            })
            .collect();
        assert!(bytes.is_sorted(), "{recompute:?} at {index} of {plan:?}: {bytes:?}");
    }
}

/// The best step of `better` is no longer than that of `problem`, but for rounding to picoseconds.
fn never_slower(what: &str, problem: &Problem, better: &Problem) {
    let time = |p: &Problem| best(p).ranked.first().map(|r| r.estimate.step_ps.0 as f64);
    match (time(problem), time(better)) {
        (Some(before), Some(after)) => {
            assert!(after <= before * (1.0 + 1e-7), "{what}: {before} became {after}\n{problem:?}");
        }
        (Some(_), None) => panic!("{what}: nothing fits any more\n{problem:?}"),
        (None, _) => {}
    }
}

#[test]
fn more_memory_never_makes_the_best_plan_slower() {
    let mut draw = Draw::new(10);
    for _ in 0..60 {
        let problem = tight_problem(&mut draw);
        let mut better = problem.clone();
        let kind = draw.between(0, problem.cluster.groups.len() as u64 - 1) as usize;
        better.cluster.groups[kind].chip.memory_gib *= 1.0 + draw.share();
        never_slower("memory", &problem, &better);
    }
}

/// The problem with all its links so many times as fast.
fn with_faster_links(problem: &Problem, by: f64) -> Problem {
    let mut better = problem.clone();
    for group in &mut better.cluster.groups {
        let (link, network) = (&mut group.chip.link, &mut group.chip.network);
        link.all_reduce_gb_per_s *= by;
        link.all_gather_gb_per_s *= by;
        link.all_to_all_gb_per_s *= by;
        link.p2p_gb_per_s *= by;
        link.latency_us /= by;
        network.nic_gbit_per_s *= by;
        network.latency_us /= by;
    }
    if let Some(link) = &mut better.cluster.between_kinds {
        link.bandwidth_gb_per_s *= by;
        link.latency_us /= by;
    }
    better
}

#[test]
fn a_faster_link_never_makes_the_best_plan_slower() {
    let mut draw = Draw::new(11);
    for _ in 0..60 {
        let problem = tight_problem(&mut draw);
        let better = with_faster_links(&problem, 1.0 + 3.0 * draw.share());
        never_slower("link", &problem, &better);
    }
}

#[test]
fn a_faster_link_makes_no_plan_slower() {
    let mut draw = Draw::new(19);
    let mut legal = 0;
    for _ in 0..4000 {
        let kinds = draw.pick(&[1, 2]);
        let problem = draw::problem(&mut draw, kinds);
        let plan = any_plan(&mut draw, &problem);
        let better = with_faster_links(&problem, 1.0 + 3.0 * draw.share());
        if !check(&problem, &plan).is_empty() {
            continue;
        }
        legal += 1;
        let time = |p: &Problem| estimate(p, &plan).expect("a legal plan").step_ps.0 as f64;
        let (before, after) = (time(&problem), time(&better));
        let said = format!("{before} became {after} with {plan:?}\n{problem:?}");
        assert!(after <= before * (1.0 + 1e-7), "{said}");
    }
    assert!(legal > 300, "only {legal} plans were legal");
}

#[test]
fn a_faster_chip_never_makes_the_best_plan_slower() {
    let mut draw = Draw::new(12);
    for _ in 0..60 {
        let problem = tight_problem(&mut draw);
        let mut better = problem.clone();
        let by = 1.0 + 3.0 * draw.share();
        let kind = draw.between(0, problem.cluster.groups.len() as u64 - 1) as usize;
        let chip = &mut better.cluster.groups[kind].chip;
        let peaks = &mut chip.peak_tflops;
        for peak in [&mut peaks.bf16, &mut peaks.fp16, &mut peaks.fp8, &mut peaks.tf32] {
            *peak = peak.map(|p| p * by);
        }
        chip.memory_bandwidth_gb_per_s *= by;
        never_slower("chip", &problem, &better);
    }
}
