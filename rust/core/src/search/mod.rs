//! How the best is found: the whole space, in order of a lower bound, until the bound passes the N-th best.

mod any_order;
pub mod best;
pub mod bound;
pub mod caps;
mod cell;
mod compositions;
mod counts;
pub mod descent;
mod devices;
pub mod ends;
pub mod entries;
pub mod entry;
pub mod enumerate;
mod family;
pub mod guess;
pub mod holds;
mod known;
mod labels;
mod mixed;
pub mod nearest;
mod octaves;
mod pace;
mod paces;
pub mod passage;
mod paths;
pub mod places;
mod prices;
pub mod relax;
mod replicas;
pub mod report;
mod room;
mod shapes;
mod sieve;
pub mod sizes;
pub mod space;
pub mod stages;
mod stall;
mod swiftest;
mod throughput;
mod walk;
pub mod watch;
mod weights;

use crate::estimate::estimate;
use crate::spec::problem::Problem;
use crate::spec::workload::Attention;
use report::{Cut, Ranked, Report, StopReason, REPORT_SCHEMA};
use watch::Watch;

/// The best plans for `problem`, with what was cut and why.
///
/// Every returned plan passes [`crate::plan::rules::check`], fits in memory, and carries its estimate. When the search
/// runs to its end the report does not depend on the number of threads.
pub fn search(problem: Problem, watch: &Watch) -> Report {
    let mut notes = notes(&problem);
    let available = problem.all_available();
    if available < problem.cluster.devices {
        let infeasible = nearest::too_few_devices(&problem, available);
        return report(
            problem,
            Vec::new(),
            Default::default(),
            Some(infeasible),
            notes,
            None,
            watch,
        );
    }
    let found = enumerate::enumerate(&problem, best::Best::new(&problem), watch);
    let first = found.best.first();
    let ranked: Vec<Ranked> = found
        .best
        .into_list()
        .into_iter()
        .map(|(time, plan)| {
            // Only the estimate judges: each plan is priced again from nothing.
            let estimate = estimate(&problem, &plan).expect("the search proposes legal plans");
            assert_eq!(estimate.step_ps, time, "search and estimate must agree");
            Ranked { plan, estimate }
        })
        .collect();
    let of = &problem.workload;
    let spread = problem.model.moe.is_some_and(|moe| moe.capacity_factor == 0.0);
    if spread && of.expert_load_variation == 0.0 && ranked.iter().any(|r| r.plan.ep > 1) {
        notes.push(
            "experts: tokens are taken as spread at random; where routers chose freely the fullest rank took 1.3 to 4 times the \
             mean (arXiv:2606.04101), which expert_load_variation tells"
                .into(),
        );
    }
    let infeasible =
        (ranked.is_empty() && !watch.stopped()).then(|| nearest::why_nothing(&problem));
    if let Some(report::Infeasible::Memory { .. }) = infeasible {
        notes.push(
            "the nearest miss is the best of some plans with the smallest micro-batch, most recompute and sharding and \
             even layers; an uneven one may lack less"
                .into(),
        );
    }
    let gap = match (first, found.open) {
        (Some(best), Some(open)) => Some(best.beyond(open).seconds() / best.seconds()),
        (Some(_), None) => Some(0.0),
        (None, _) => None,
    };
    if found.counters.cut.contains_key(&Cut::Unreached) {
        notes.push(
            "the search was stopped: classes counted as unreached may hold better plans".into(),
        );
    }
    report(problem, ranked, found.counters, infeasible, notes, gap, watch)
}

fn report(
    problem: Problem,
    ranked: Vec<Ranked>,
    counters: report::Counters,
    infeasible: Option<report::Infeasible>,
    notes: Vec<String>,
    gap: Option<f64>,
    watch: &Watch,
) -> Report {
    let complete = !counters.cut.contains_key(&Cut::Unreached);
    Report {
        schema: REPORT_SCHEMA.into(),
        problem,
        ranked,
        stop: match (complete, watch.interrupted()) {
            (true, _) => StopReason::Complete,
            (false, true) => StopReason::Interrupted,
            (false, false) => StopReason::Time,
        },
        proved: complete,
        gap,
        counters,
        infeasible,
        notes,
    }
}

/// Roundings and weak figures that bear on the result.
fn notes(problem: &Problem) -> Vec<String> {
    let mut notes = Vec::new();
    let drawn = problem.workload.dropout && problem.workload.attention == Attention::Flash;
    for (kind, group) in problem.cluster.groups.iter().enumerate() {
        let chip = &group.chip;
        if drawn && chip.peak_tflops.integers().is_none() {
            notes.push(format!(
                "{}: what draws dropout in fused attention is not counted, as no peak of its vector units is known",
                chip.name
            ));
        }
        if let Some(limit) = group.limit {
            let whole = problem.available(kind);
            if whole < limit {
                notes.push(format!(
                    "{}: the limit {limit} is rounded down to {whole}, whole nodes of {}",
                    chip.name, chip.devices_per_node
                ));
            }
        }
        notes.extend(chip.caveats.iter().map(|caveat| format!("{}: {caveat}", chip.name)));
    }
    if problem.cluster.groups.len() > 1 {
        notes.push(
            "several kinds of chip: of such plans only runs of V100 with T4 were held against the estimate".into(),
        );
    }
    let (m, w) = (&problem.model, &problem.workload);
    if w.sequence_length > m.max_positions {
        notes.push(format!(
            "sequence {} is beyond the {} positions that {} was trained for",
            w.sequence_length, m.max_positions, m.name
        ));
    }
    notes
}
