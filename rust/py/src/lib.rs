//! The door: `autopar._core`, the verbs of `autopar_core::wire` as Python functions.
//!
//! Documents go in and come out as JSON text, tables of plans as NumPy arrays. Nothing is decided here: arguments are gathered
//! and the core is called through the `gate`.

mod gate;

use autopar_core::bulk::{Stages, WORDS};
use autopar_core::graph::Programmed;
use autopar_core::{wire, Watch};
use gate::{brief, gate, keep_panics, run, thread_count};
use mimalloc::MiMalloc;
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray2};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

/// A search's threads live as long as its call: with the system's allocator the memory of each goes back, to be faulted in again.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Autopar's core, compiled from Rust. Documents are JSON text; use the functions of `autopar` instead.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::{
        calibrate, canonical, check_graph, check_plan, check_problem, estimate, estimate_many,
        measured_seconds, model_facts, model_graph, operators, search, servers, shard,
        sharding_program, sharding_slices, sizes, stage_communications, timeline, ShardingProgram,
    };

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(_module: &super::Bound<'_, super::PyModule>) -> super::PyResult<()> {
        super::keep_panics();
        Ok(())
    }
}

/// Report of the best plans of a problem.
///
/// threads: 0 takes every core. time_limit_s: seconds after which the best plans so far are returned; None is no limit.
/// progress: called about 50 times a second with the classes done and the classes in all; what it raises ends the search.
#[pyfunction]
#[pyo3(signature = (problem, *, threads, time_limit_s = None, progress = None))]
fn search(
    py: Python<'_>,
    problem: &str,
    threads: &Bound<'_, PyAny>,
    time_limit_s: Option<&Bound<'_, PyAny>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let (threads, watch) = run(threads, time_limit_s)?;
    gate(py, &watch, progress, || wire::search(problem, threads, &watch))
}

/// Best plans of the device counts up to the problem's that are wanted, a JSON string; the other arguments are those of `search`.
#[pyfunction]
#[pyo3(signature = (problem, wanted, *, threads, time_limit_s = None))]
fn sizes(
    py: Python<'_>,
    problem: &str,
    wanted: &str,
    threads: &Bound<'_, PyAny>,
    time_limit_s: Option<&Bound<'_, PyAny>>,
) -> PyResult<String> {
    let (threads, watch) = run(threads, time_limit_s)?;
    gate(py, &watch, None, || wire::sizes(problem, wanted, threads, &watch))
}

/// Figures of a chip, fitted to measurements.
///
/// threads: 0 takes every core.
#[pyfunction]
#[pyo3(signature = (document, *, threads))]
fn calibrate(py: Python<'_>, document: &str, threads: &Bound<'_, PyAny>) -> PyResult<String> {
    let threads = thread_count(threads)?;
    let watch = Watch::new(None);
    gate(py, &watch, None, || wire::calibrate(document, threads, &watch))
}

/// Estimate of one plan: its time and its memory, item by item.
#[pyfunction]
fn estimate(py: Python<'_>, problem: &str, plan: &str) -> PyResult<String> {
    brief(py, || wire::estimate(problem, plan))
}

/// Estimates of many plans: an array of rows in, an array of rows out, as `autopar_core::bulk` has them.
#[pyfunction]
#[pyo3(signature = (problem, plans, layers = None, chips = None))]
fn estimate_many<'py>(
    py: Python<'py>,
    problem: &str,
    plans: PyReadonlyArray2<'py, i32>,
    layers: Option<PyReadonlyArray2<'py, i32>>,
    chips: Option<PyReadonlyArray2<'py, i32>>,
) -> PyResult<Bound<'py, PyArray2<u64>>> {
    let cells = plans.as_slice()?;
    let chips = chips.as_ref().map(|chips| chips.as_slice()).transpose()?;
    let stages = match &layers {
        None => None,
        Some(layers) => {
            Some(Stages { width: layers.as_array().ncols(), layers: layers.as_slice()?, chips })
        }
    };
    let watch = Watch::new(None);
    let words = gate(py, &watch, None, || wire::estimate_many(problem, cells, stages, &watch))?;
    PyArray1::from_vec(py, words).reshape([plans.as_array().nrows(), WORDS])
}

/// Seconds that one step of a plan took, by a published rate.
#[pyfunction]
fn measured_seconds(py: Python<'_>, problem: &str, plan: &str, rate: &str) -> PyResult<String> {
    brief(py, || wire::measured_seconds(problem, plan, rate))
}

/// Nothing, of a plan that breaks no rule.
#[pyfunction]
fn check_plan(py: Python<'_>, problem: &str, plan: &str) -> PyResult<()> {
    brief(py, || wire::check_plan(problem, plan))
}

/// Events of one step of a plan, as its schedule orders them.
#[pyfunction]
fn timeline(py: Python<'_>, problem: &str, plan: &str) -> PyResult<String> {
    brief(py, || wire::timeline(problem, plan))
}

/// A document of a kind, checked and written in the one form that equal documents share.
#[pyfunction]
fn canonical(py: Python<'_>, kind: &str, document: &str) -> PyResult<String> {
    brief(py, || wire::canonical(kind, document))
}

/// Nothing, of a valid problem.
#[pyfunction]
fn check_problem(py: Python<'_>, problem: &str) -> PyResult<()> {
    brief(py, || wire::check_problem(problem))
}

/// Names of a graph's operators in an order in which they can run; a graph that is wrong is refused.
#[pyfunction]
fn check_graph(py: Python<'_>, graph: &str) -> PyResult<String> {
    brief(py, || wire::check_graph(graph))
}

/// Graph of a model's operators.
#[pyfunction]
fn model_graph(py: Python<'_>, document: &str) -> PyResult<String> {
    brief(py, || wire::model_graph(document))
}

/// Strategies for a graph's operators, chosen by the core alone.
#[pyfunction]
fn shard(py: Python<'_>, problem: &str) -> PyResult<String> {
    brief(py, || wire::shard(problem))
}

/// A sharding problem as an integer program.
#[pyclass(frozen)]
struct ShardingProgram(Programmed);

/// A sharding problem as an integer program. None if no plan fits in memory.
#[pyfunction]
fn sharding_program(py: Python<'_>, problem: &str) -> PyResult<Option<ShardingProgram>> {
    Ok(brief(py, || wire::sharding_program(problem))?.map(ShardingProgram))
}

#[pymethods]
impl ShardingProgram {
    /// Arrays: cost, row_lower, row_upper and value of 64-bit floats, start, index and known of 32-bit integers, in native
    /// order; the number of whole columns; and the gap at which to stop.
    fn arrays<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let program = &self.0.program;
        let floats = |list: &[f64]| {
            PyBytes::new(py, &list.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>())
        };
        let integers = |list: &[i32]| {
            PyBytes::new(py, &list.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>())
        };
        let arrays = PyDict::new(py);
        arrays.set_item("cost", floats(&program.cost))?;
        arrays.set_item("row_lower", floats(&program.row_lower))?;
        arrays.set_item("row_upper", floats(&program.row_upper))?;
        arrays.set_item("value", floats(&program.value))?;
        arrays.set_item("start", integers(&program.start))?;
        arrays.set_item("index", integers(&program.index))?;
        arrays.set_item("known", integers(&program.known))?;
        arrays.set_item("whole", program.whole)?;
        arrays.set_item("gap", program.gap)?;
        Ok(arrays)
    }

    /// The sharding for a solver's choice among the whole columns, ascending, and its lower bound.
    #[pyo3(signature = (columns, bound = None))]
    fn chosen(&self, py: Python<'_>, columns: Vec<usize>, bound: Option<f64>) -> PyResult<String> {
        brief(py, || wire::sharding_chosen(&self.0, &columns, bound))
    }
}

/// Part of each tensor that each device holds: ranks, tensors, dimensions, first element and the one after the last.
#[pyfunction]
fn sharding_slices(py: Python<'_>, sharding: &str) -> PyResult<String> {
    brief(py, || wire::sharding_slices(sharding))
}

/// Costs of the placements of a graph's parameters on workers and servers.
#[pyfunction]
fn servers(py: Python<'_>, problem: &str) -> PyResult<String> {
    brief(py, || wire::servers(problem))
}

/// Communication operators that each stage compiles, at most `limit` of them calls of shared subgraphs.
#[pyfunction]
fn stage_communications(py: Python<'_>, problem: &str, plan: &str, limit: u64) -> PyResult<String> {
    brief(py, || wire::stage_communications(problem, plan, limit))
}

/// What follows from a model: its parameters, its FLOPs.
#[pyfunction]
fn model_facts(py: Python<'_>, model: &str) -> PyResult<String> {
    brief(py, || wire::model_facts(model))
}

/// Seconds of single operators on one chip.
#[pyfunction]
fn operators(py: Python<'_>, document: &str) -> PyResult<String> {
    brief(py, || wire::operators(document))
}
