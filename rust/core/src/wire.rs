//! The verbs as text: JSON documents in, JSON documents out.
//!
//! The documents are problem, plan, rate, estimate, report, sizes and timeline, and the parts of a problem on their own; at the
//! operator level graph, sharding-problem, sharding, servers-problem and servers.
//! Unknown and missing keys are refused with the place where they stand.

use crate::bulk::{self, Stages};
use crate::calibrate::point::Measured;
use crate::calibrate::{self, Calibration};
use crate::error::{require, Error};
use crate::estimate::flops::{self, Rate};
use crate::estimate::pipeline::{Kind, Task};
use crate::estimate::{self, Estimate};
use crate::graph::ir::Graph;
use crate::graph::problem::{Sharding, ShardingProblem};
use crate::graph::servers::{Servers, ServersProblem};
use crate::graph::transformer::{self, ModelGraph};
use crate::graph::Programmed;
use crate::plan::rules::require_legal;
use crate::plan::Plan;
use crate::reading::read;
use crate::search::report::{Cut, Report};
use crate::search::sizes::{Sizes, Wanted};
use crate::search::watch::Watch;
use crate::spec::cluster::{Chip, Cluster};
use crate::spec::framework::Framework;
use crate::spec::model::Model;
use crate::spec::problem::{Options, Problem};
use crate::spec::workload::Workload;
use crate::units::Time;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Schema of the timeline document.
pub const TIMELINE_SCHEMA: &str = "autopar.timeline/1";

/// Events that a timeline holds at most.
pub const TIMELINE_EVENTS: usize = 200_000;

/// Searches; the report as JSON. `threads` of 0 takes every processor.
///
/// # Errors
/// A document that is not a valid problem, or one whose steps take longer than can be told.
pub fn search(problem: &str, threads: usize, watch: &Watch) -> Result<String, Error> {
    let problem = read_searched(problem)?;
    let report = pool(threads)?.install(|| crate::search::search(problem, watch));
    // Without a plan nothing is slower than another but what reaches the longest time itself.
    let endless =
        report.ranked.is_empty() && report.proved && report.counters.cut.contains_key(&Cut::Bound);
    let steps = report.ranked.iter().map(|plan| plan.estimate.step_ps);
    told(steps.chain(endless.then_some(Time::MAX)))?;
    write(&report)
}

/// Searches the device counts up to the problem's; the sizes that are wanted as JSON. `wanted` is a [`Wanted`] as JSON, `threads`
/// as for [`search`].
///
/// # Errors
/// As [`search`].
pub fn sizes(problem: &str, wanted: &str, threads: usize, watch: &Watch) -> Result<String, Error> {
    let problem = read_searched(problem)?;
    let wanted: Wanted = read("wanted", wanted)?;
    let sizes = pool(threads)?.install(|| crate::search::sizes::sizes(problem, wanted, watch));
    told(sizes.sizes.iter().map(|size| size.best.estimate.step_ps))?;
    write(&sizes)
}

/// Refuses an answer that holds a step as long as the longest [`Time`]: sums stop there, so it says nothing.
fn told(steps: impl IntoIterator<Item = Time>) -> Result<(), Error> {
    require(
        steps.into_iter().all(|step| step < Time::MAX),
        "problem",
        || "a step takes over 213 days, the longest time that can be told".to_owned(),
        "Check the rates of its chips and the sizes of what is trained.",
    )
}

/// Checks a problem, as each verb does that is asked of one.
///
/// # Errors
/// A document that is not a valid problem.
pub fn check_problem(problem: &str) -> Result<(), Error> {
    read_problem(problem).map(drop)
}

/// Estimates a plan; the estimate as JSON.
///
/// # Errors
/// A document that is not valid, or a plan that breaks a rule.
pub fn estimate(problem: &str, plan: &str) -> Result<String, Error> {
    let problem = read_problem(problem)?;
    let plan: Plan = read("plan", plan)?;
    write(&estimate::estimate(&problem, &plan)?)
}

/// Refuses a plan that breaks a rule, whether it fits in memory or not.
///
/// # Errors
/// A document that is not valid, or the first rule that the plan breaks.
pub fn check_plan(problem: &str, plan: &str) -> Result<(), Error> {
    let problem = read_problem(problem)?;
    require_legal(&problem, &read("plan", plan)?)
}

/// Estimates many plans of one problem; rows of numbers in and out as [`bulk::estimate_many`] has them.
///
/// # Errors
/// A document that is not a valid problem, or rows of another form.
pub fn estimate_many(
    problem: &str,
    cells: &[i32],
    stages: Option<Stages<'_>>,
    watch: &Watch,
) -> Result<Vec<u64>, Error> {
    bulk::estimate_many(&read_problem(problem)?, cells, stages, watch)
}

/// Fits figures of a chip to measurements; what was found as JSON. `threads` of 0 takes every processor.
///
/// # Errors
/// A document that is not valid, or measurements that tell nothing.
pub fn calibrate(document: &str, threads: usize, watch: &Watch) -> Result<String, Error> {
    let task: Calibration = read("calibration", document)?;
    write(&pool(threads)?.install(|| calibrate::calibrate(&task, watch))?)
}

/// Seconds that one step of a plan took, by a published rate: a number as JSON.
///
/// # Errors
/// A document that is not valid.
pub fn measured_seconds(problem: &str, plan: &str, rate: &str) -> Result<String, Error> {
    let problem = read_problem(problem)?;
    let plan: Plan = read("plan", plan)?;
    write(&flops::measured_seconds(&problem, &plan, read::<Rate>("rate", rate)?)?)
}

/// Communication operators that MindSpore compiles for each stage of a plan, and how many are left when at most `limit` of them
/// become calls of shared subgraphs, as JSON.
///
/// # Errors
/// As [`estimate()`].
pub fn stage_communications(problem: &str, plan: &str, limit: u64) -> Result<String, Error> {
    let problem = read_problem(problem)?;
    let plan: Plan = read("plan", plan)?;
    write(&crate::graph::stage_communications::stage_communications(&problem, &plan, limit)?)
}

/// Passes, sends, synchronisation and update of one step of a plan with their times, as JSON; a long step is shown as one of
/// fewer micro-batches.
///
/// # Errors
/// As [`estimate()`].
pub fn timeline(problem: &str, plan: &str) -> Result<String, Error> {
    let problem = read_problem(problem)?;
    let plan: Plan = read("plan", plan)?;
    let events = estimate::timeline(&problem, &plan, TIMELINE_EVENTS)?;
    let all = plan.micro_batches(&problem);
    let truncated = events.len() == TIMELINE_EVENTS || all > estimate::SHOWN_ROUNDS * plan.pp;
    let events = events
        .iter()
        .map(|e| TimelineEvent {
            stage: e.stage,
            chunk: e.chunk,
            micro_batch: e.micro_batch,
            kind: match e.task {
                Task::Pass(Kind::Forward) => "forward",
                Task::Pass(Kind::Backward) => "backward",
                Task::Pass(Kind::Weight) => "weight",
                Task::Send => "send",
                Task::Synchronise => "data",
                Task::Update => "optimizer",
            },
            start_ps: e.start.0,
            duration_ps: (e.end - e.start).0,
        })
        .collect();
    write(&Timeline { schema: TIMELINE_SCHEMA, events, truncated })
}

/// Reads a document of `kind` and writes it again: what one side of the boundary sends, the other
/// understands in full.
///
/// # Errors
/// A document that is not of that kind.
pub fn canonical(kind: &str, document: &str) -> Result<String, Error> {
    fn again<T: DeserializeOwned + Serialize>(kind: &str, document: &str) -> Result<String, Error> {
        write(&read::<T>(kind, document)?)
    }
    match kind {
        "problem" => again::<Problem>(kind, document),
        "plan" => again::<Plan>(kind, document),
        "rate" => again::<Rate>(kind, document),
        "estimate" => again::<Estimate>(kind, document),
        "report" => again::<Report>(kind, document),
        "sizes" => again::<Sizes>(kind, document),
        "model" => again::<Model>(kind, document),
        "chip" => again::<Chip>(kind, document),
        "framework" => again::<Framework>(kind, document),
        "cluster" => again::<Cluster>(kind, document),
        "workload" => again::<Workload>(kind, document),
        "options" => again::<Options>(kind, document),
        "graph" => again::<Graph>(kind, document),
        "sharding-problem" => again::<ShardingProblem>(kind, document),
        "sharding" => again::<Sharding>(kind, document),
        "servers-problem" => again::<ServersProblem>(kind, document),
        "servers" => again::<Servers>(kind, document),
        _ => Err(Error::new(
            "kind",
            format!("there is no document \"{kind}\""),
            "Use problem, plan, rate, estimate, report, sizes, model, chip, framework, cluster, workload, options, graph, sharding-problem, sharding, servers-problem or servers.",
        )),
    }
}

/// Seconds of single operators on one chip, as a JSON list: what the estimate is built from, to hold against measured points.
///
/// # Errors
/// A document that is not valid, or an operator that the chip cannot run.
pub fn operators(document: &str) -> Result<String, Error> {
    let asked: Operators = read("operators", document)?;
    asked.chip.validate().map_err(|e| e.under("chip"))?;
    let seconds = |(i, what): (usize, &Measured)| {
        what.check(&asked.chip)
            .and_then(|()| what.seconds(&asked.chip, |_| (), 1.0))
            .map_err(|e| e.under(&format!("operators[{i}]")))
    };
    write(&asked.operators.iter().enumerate().map(seconds).collect::<Result<Vec<f64>, Error>>()?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Operators {
    chip: Chip,
    operators: Vec<Measured>,
}

/// Checks a graph: names, shapes, no cycle. The operators' names in an order in which they can run, as JSON.
///
/// # Errors
/// A document that is not a valid graph.
pub fn check_graph(graph: &str) -> Result<String, Error> {
    let network = read::<Graph>("graph", graph)?.validate()?;
    let names: Vec<_> =
        network.order.iter().map(|&i| network.graph.operators[i].name.as_str()).collect();
    write(&names)
}

/// The graph of a model's operators, as JSON.
///
/// # Errors
/// A document that is not valid, or a model that has no graph.
pub fn model_graph(document: &str) -> Result<String, Error> {
    write(&transformer::graph(&read::<ModelGraph>("model-graph", document)?)?)
}

/// Chooses how the operators of a graph are cut, by the problem's method; the sharding as JSON. Integer programs are
/// solved outside: with that method, this answers only where nothing fits in memory.
///
/// # Errors
/// A document that is not a valid problem, or one whose step takes longer than can be told.
pub fn shard(problem: &str) -> Result<String, Error> {
    let problem = read("sharding-problem", problem)?;
    write_sharding(&pool(0)?.install(|| crate::graph::shard(problem))?)
}

/// A sharding problem as an integer program; nothing if no plan fits in memory.
///
/// # Errors
/// A document that is not a valid problem, or too large for a solver.
pub fn sharding_program(problem: &str) -> Result<Option<Programmed>, Error> {
    let problem = read("sharding-problem", problem)?;
    pool(0)?.install(|| crate::graph::program(problem))
}

/// The sharding for a solver's choice among the program's whole columns, with its lower bound if it has one, as JSON.
///
/// # Errors
/// Columns that are no choice.
pub fn sharding_chosen(
    program: &Programmed,
    columns: &[usize],
    bound: Option<f64>,
) -> Result<String, Error> {
    write_sharding(&pool(0)?.install(|| program.chosen(columns, bound))?)
}

fn write_sharding(found: &Sharding) -> Result<String, Error> {
    told([found.cost.total_ps])?;
    write(found)
}

/// The part of each tensor that each device holds, as JSON: ranks, tensors, dimensions, first element and the one after the
/// last.
///
/// # Errors
/// A document that is not a sharding.
pub fn sharding_slices(sharding: &str) -> Result<String, Error> {
    write(&crate::graph::slices::slices(&read::<Sharding>("sharding", sharding)?))
}

/// Prices the placements of a graph's parameters on workers and servers, as JSON.
///
/// # Errors
/// A document that is not a valid problem, or one whose steps take longer than can be told.
pub fn servers(problem: &str) -> Result<String, Error> {
    let found = crate::graph::servers::servers(read("servers-problem", problem)?)?;
    told(found.placements.iter().map(|placement| placement.synchronous.step_ps))?;
    write(&found)
}

/// What follows from a model's dimensions alone, as JSON.
///
/// # Errors
/// A document that is not a valid model.
pub fn model_facts(model: &str) -> Result<String, Error> {
    let model: Model = read("model", model)?;
    model.validate().map_err(|e| e.under("model"))?;
    write(&ModelFacts {
        parameters: model.parameters(),
        active_parameters: model.active_parameters(),
        layer_parameters: (0..model.layers).map(|i| model.layer_parameters(i)).collect(),
        embedding_parameters: model.embedding_parameters(),
        head_parameters: model.head_parameters(),
    })
}

#[derive(Serialize)]
struct Timeline {
    schema: &'static str,
    events: Vec<TimelineEvent>,
    truncated: bool,
}

#[derive(Serialize)]
struct TimelineEvent {
    stage: usize,
    chunk: usize,
    micro_batch: u64,
    kind: &'static str,
    start_ps: u64,
    duration_ps: u64,
}

#[derive(Serialize)]
struct ModelFacts {
    parameters: u64,
    active_parameters: u64,
    layer_parameters: Vec<u64>,
    embedding_parameters: u64,
    head_parameters: u64,
}

fn pool(threads: usize) -> Result<rayon::ThreadPool, Error> {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|e| {
        Error::new("threads", format!("no pool of {threads} threads: {e}"), "Ask for fewer.")
    })
}

fn read_problem(document: &str) -> Result<Problem, Error> {
    read::<Problem>("problem", document)?.validate()
}

/// A problem whose plans are asked for.
fn read_searched(document: &str) -> Result<Problem, Error> {
    let problem = read_problem(document)?;
    let share = problem.framework.held.offloaded_share;
    require(
        share == 0.0,
        "problem.framework.held.offloaded_share",
        || format!("no search takes it, found {share}"),
        "Leave it out: a search offloads whole layers.",
    )?;
    require(
        !problem.framework.held.offloaded.any(),
        "problem.framework.held.offloaded",
        || "no search takes it, found true".to_owned(),
        "Leave it out: a search offloads whole layers.",
    )?;
    require(
        !problem.framework.held.parameters_on_host,
        "problem.framework.held.parameters_on_host",
        || "no search takes it, found true".to_owned(),
        "Leave it out: a search may offload the optimizer's state.",
    )?;
    Ok(problem)
}

fn write<T: Serialize>(document: &T) -> Result<String, Error> {
    serde_json::to_string(document).map_err(|e| {
        Error::new("document", format!("cannot be written: {e}"), "Report this as a defect.")
    })
}
