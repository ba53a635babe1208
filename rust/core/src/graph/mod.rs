//! The operator level: which axis of which tensor of each operator is cut over which devices.
//!
//! A [`ir::Graph`] is checked once. [`strategy`] lists the ways to run each operator on the mesh, [`price`], `work` and [`reshard`] say what
//! they cost, [`cost`] keeps that in tables, and the methods choose: [`dp`], a solver of integer programs for [`ilp`],
//! [`recursive`], [`double_recursive`] and [`propagate`].
//! Whatever is chosen is priced again for the [`answer`].

pub mod answer;
pub mod backward;
pub mod charged;
pub mod coarse;
pub mod communications;
pub mod completion;
pub mod cost;
pub mod double_recursive;
pub mod dp;
pub mod eliminate;
mod fixed;
pub mod form;
pub mod front;
pub mod fusion;
pub mod ilp;
pub mod ir;
pub mod layout;
pub mod loops;
mod minplus;
pub mod overlap;
pub mod packed;
pub mod price;
pub mod problem;
pub mod propagate;
pub mod recursive;
pub mod reshard;
pub mod routes;
pub mod servers;
pub mod slices;
pub mod stage_communications;
pub mod strategy;
pub mod transformer;
pub mod uneven;
pub mod view;
mod work;

use crate::error::Error;
use crate::spec::workload::Precision;
use crate::units::Bytes;
use answer::Found;
use cost::{CostGraph, Subject};
use ilp::{Core, Program};
use ir::{Dtype, Gradients, Network};
use layout::{Division, Mesh};
use price::{single_precision, Pricer};
use problem::{CostModel, Method, Sharding, ShardingProblem};
use std::collections::HashSet;
use strategy::Choices;

/// Loop axes of a batched product.
const LOOPS: u64 = 4;
/// Ways to cut a product up to which axes of the mesh are divided: tables have their square. On 4 x 16 devices there are 1,050.
const LARGEST_WAYS: u64 = 2000;

/// A problem with everything that its answer needs.
struct Asked {
    problem: ShardingProblem,
    network: Network,
    mesh: Mesh,
    limit: Bytes,
}

impl Asked {
    fn new(problem: ShardingProblem) -> Result<Asked, Error> {
        problem.check()?;
        let mut network = problem.graph.clone().validate().map_err(|e| e.under("graph"))?;
        uneven::apply(&mut network, &problem.options.strategies)?;
        let sizes = match problem.options.mesh.as_slice() {
            [] => vec![problem.cluster.devices],
            sizes => sizes.to_vec(),
        };
        let chip = &problem.cluster.groups[0].chip;
        let gib = problem.options.memory_gib.unwrap_or(chip.memory_gib);
        Ok(Asked { network, mesh: Mesh::new(&sizes), limit: Bytes::from_gib(gib), problem })
    }

    fn pricer(&self) -> Pricer<'_> {
        Pricer::new(&self.network, &self.problem.cluster, &self.problem.options, &self.mesh)
    }

    fn choices(&self) -> Choices {
        let options = &self.problem.options;
        match options.method {
            // Its first steps leave devices idle, and it cuts by one prime at a time.
            Method::Recursive => Choices { use_all_devices: false, division: self.finest() },
            Method::Dp | Method::Ilp | Method::Propagate => {
                let division = if options.refine { self.finest() } else { Division::Whole };
                Choices { use_all_devices: options.use_all_devices, division }
            }
        }
    }

    /// The finest division of the mesh's axes in which tables are not too large.
    fn finest(&self) -> Division {
        let few = |division: &Division| self.mesh.ways(LOOPS, *division) <= LARGEST_WAYS;
        [Division::Primes, Division::Twice].into_iter().find(few).unwrap_or(Division::Whole)
    }

    /// Which nodes have a strategy of the user's.
    fn set(&self, graph: &CostGraph) -> Vec<bool> {
        let names: HashSet<&str> =
            self.problem.options.strategies.iter().map(|s| s.operator.as_str()).collect();
        let operators = &self.network.graph.operators;
        let is_set = |node: &cost::Node| match node.subject {
            Subject::Operator(o) => names.contains(operators[o].name.as_str()),
            Subject::Tensor(_) => false,
        };
        graph.nodes.iter().map(is_set).collect()
    }

    /// The answer for what the method has found. Methods that search for the fastest plan weigh exchanges in full; if some
    /// of that runs beside computation, the plan that is fastest without them is tried too, and its time is the bound.
    fn answer(&self, pricer: &Pricer<'_>, graph: &CostGraph, found: Found) -> Sharding {
        let answer = |found: &Found| {
            answer::answer(&self.problem, pricer, graph, found, self.limit, self.notes())
        };
        let first = answer(&found);
        let searched = matches!(self.problem.options.method, Method::Dp | Method::Ilp);
        if first.overlap.is_none() || !searched {
            return first;
        }
        let free = dp::solve_on(&graph.without_exchanges(), &self.mesh, self.limit);
        let bound = free.bound.filter(|_| free.fits);
        let one = answer(&Found { bound, ..found });
        let other = answer(&Found { bound, ..free });
        let rank = |sharding: &Sharding| (!sharding.fits, sharding.cost.total_ps);
        if rank(&other) < rank(&one) {
            other
        } else {
            one
        }
    }

    fn notes(&self) -> Vec<String> {
        let graph = &self.network.graph;
        let chip = &self.problem.cluster.groups[0].chip;
        let mut notes = Vec::new();
        let opaque: Vec<&str> = graph
            .operators
            .iter()
            .filter(|operator| operator.form == form::Form::Opaque {})
            .map(|operator| operator.name.as_str())
            .collect();
        if !opaque.is_empty() {
            notes.push(format!(
                "operators of unknown kind, replicated or cut along the leading axis alone: {}",
                opaque.join(", ")
            ));
        }
        let options = &self.problem.options;
        if options.refine || options.method == Method::Recursive {
            let ways = self.mesh.ways(LOOPS, Division::Primes);
            let taken = match self.finest() {
                Division::Primes => None,
                Division::Twice => Some("has two uses at most, copies being one"),
                Division::Whole => Some("is taken whole or not at all"),
            };
            notes.extend(taken.map(|taken| {
                format!("in each operator an axis of the mesh {taken}: by its primes a product could be cut in {ways} ways")
            }));
        }
        let single = graph.tensors.iter().any(|t| t.dtype == Dtype::Float32);
        let precision = single_precision(chip);
        if single && matches!(precision, Precision::Bf16 | Precision::Fp16) {
            notes.push(format!("{} has no 32-bit matrix unit: products run in 16 bits", chip.name));
        }
        notes.push(
            match graph.gradients {
                Gradients::None => "memory is that of parameters and constants",
                Gradients::Implied => {
                    "memory is that of parameters, gradients, optimizer state and what the backward pass keeps"
                }
                Gradients::Explicit => {
                    "memory is that of parameters and constants; activations are not counted"
                }
            }
            .to_owned(),
        );
        notes.extend(chip.caveats.iter().map(|caveat| format!("{}: {caveat}", chip.name)));
        notes
    }
}

/// Chooses strategies by the problem's method, other than integer programming.
///
/// # Errors
/// A problem that is wrong: where, what, found, cure.
pub fn shard(problem: ShardingProblem) -> Result<Sharding, Error> {
    let asked = Asked::new(problem)?;
    let pricer = asked.pricer();
    let graph = CostGraph::new(&pricer, asked.choices())?;
    let found = match asked.problem.options.method {
        Method::Dp => dp::solve_on(&graph, &asked.mesh, asked.limit),
        // Where nothing fits there is nothing to solve.
        Method::Ilp if dp::least_memory(&graph) > asked.limit => dp::smallest(&graph),
        Method::Ilp => {
            return Err(Error::new(
                "options.method",
                "integer programs are not solved by the core",
                "Use autopar.shard, which has a solver, or dp.",
            ));
        }
        Method::Recursive => match asked.problem.options.cost_model {
            CostModel::Estimate => recursive::solve(&graph, &asked.mesh, asked.limit),
            CostModel::Mindspore => {
                let set = asked.set(&graph);
                double_recursive::solve(&graph, &asked.network, &asked.mesh, &set, asked.limit)
            }
        },
        Method::Propagate => propagate::solve(&graph, &asked.set(&graph), asked.limit),
    };
    Ok(asked.answer(&pricer, &graph, found))
}

/// A problem as an integer program, with what its answer needs.
pub struct Programmed {
    asked: Asked,
    graph: CostGraph,
    core: Core,
    /// For a solver.
    pub program: Program,
}

/// The problem as an integer program; nothing if no plan fits in memory.
///
/// # Errors
/// A problem that is wrong, or too large for a solver.
pub fn program(problem: ShardingProblem) -> Result<Option<Programmed>, Error> {
    let asked = Asked::new(problem)?;
    let graph = CostGraph::new(&asked.pricer(), asked.choices())?;
    if dp::least_memory(&graph) > asked.limit {
        return Ok(None);
    }
    let core = Core::new(&graph, asked.limit);
    let program = Program::new(&core, asked.limit)?;
    Ok(Some(Programmed { asked, graph, core, program }))
}

impl Programmed {
    /// The answer for a solver's choice: its columns of ones among the whole ones, and its lower bound if it has one.
    ///
    /// # Errors
    /// A choice that is not one of the problem's.
    pub fn chosen(&self, columns: &[usize], bound: Option<f64>) -> Result<Sharding, Error> {
        let Programmed { asked, graph, core, .. } = self;
        let found = ilp::found(graph, core, columns, bound, asked.limit)?;
        Ok(asked.answer(&asked.pricer(), graph, found))
    }
}
