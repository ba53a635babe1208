//! A graph's parameters on servers and workers: what is asked, and what of the graph decides.
//!
//! The graph is that of one worker's mini-batch, in training. A parameter of which every reader is a look-up along its first
//! dimension is a table: a step reads and changes the rows that are named. Any other is read whole.

use super::form::Form;
use super::ir::{Gradients, Graph, Network, Role};
use super::layout::Mesh;
use super::loops::Loops;
use super::price::Pricer;
use super::problem::{one_kind, CostModel, Method, Others, ShardingOptions};
use super::strategy::Strategy;
use crate::error::{require, Error};
use crate::estimate::servers::{placements, Batch, Placement, Rows, ServersOptions, Weights};
use crate::spec::cluster::Cluster;
use crate::units::{Bytes, Time};
use serde::{Deserialize, Serialize};

/// Schema of the question.
pub const SERVERS_PROBLEM_SCHEMA: &str = "autopar.servers-problem/1";
/// Schema of the answer.
pub const SERVERS_SCHEMA: &str = "autopar.servers/1";

/// MindSpore keeps no larger parameter on servers, in bytes (its tutorial on parameter servers: INT_MAX).
const LARGEST: u64 = (1 << 31) - 1;

/// A graph to train with parameter servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServersProblem {
    /// [`SERVERS_PROBLEM_SCHEMA`].
    pub schema: String,
    /// Version of the package that wrote it.
    pub version: String,
    /// Date and hash of the catalog that its parts came from.
    pub catalog: String,
    /// The operators of one worker's mini-batch.
    pub graph: Graph,
    /// The workers, of one kind.
    pub cluster: Cluster,
    /// Servers and recovery.
    pub options: ServersOptions,
}

/// What each placement costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Servers {
    /// [`SERVERS_SCHEMA`].
    pub schema: String,
    /// The question.
    pub problem: ServersProblem,
    /// Parameters that only look-ups read, in the order of the graph.
    pub tables: Vec<String>,
    /// Everything on workers, everything on servers, tables on servers.
    pub placements: Vec<Placement>,
    /// Which of them takes the shortest synchronous step of those that fit; `null` if none does.
    pub fastest: Option<u64>,
    /// Limits and assumptions that bear on the result.
    pub notes: Vec<String>,
}

/// Prices the placements of a graph's parameters.
///
/// # Errors
/// A problem that is wrong: where, what, found, cure.
pub fn servers(problem: ServersProblem) -> Result<Servers, Error> {
    problem.check()?;
    let network = problem.graph.clone().validate().map_err(|e| e.under("graph"))?;
    let (compute, activations) = passes(&network, &problem.cluster);
    let trained = trained(&network);
    let weights: Vec<Weights> = trained.iter().map(|&t| weights(&network, t)).collect();
    let batch = Batch { compute, activations, weights: &weights };
    let found = placements(&batch, &problem.cluster, &problem.options);
    let fits = found.iter().enumerate().filter(|(_, p)| p.violations.is_empty());
    let fastest = fits.min_by_key(|(i, p)| (p.synchronous.step_ps, *i)).map(|(i, _)| i as u64);
    let name = |&t: &usize| network.graph.tensors[t].name.clone();
    let tables = trained.iter().zip(&weights).filter(|(_, w)| w.rows.is_some());
    Ok(Servers {
        schema: SERVERS_SCHEMA.to_owned(),
        tables: tables.map(|(t, _)| name(t)).collect(),
        placements: found,
        fastest,
        notes: notes(&network, &trained),
        problem,
    })
}

impl ServersProblem {
    fn check(&self) -> Result<(), Error> {
        require(
            self.schema == SERVERS_PROBLEM_SCHEMA,
            "schema",
            || format!("must be \"{SERVERS_PROBLEM_SCHEMA}\", found \"{}\"", self.schema),
            "Write the document with this version of autopar.",
        )?;
        one_kind(&self.cluster)?;
        self.options.validate().map_err(|e| e.under("options"))?;
        require(
            self.graph.gradients == Gradients::Implied,
            "graph.gradients",
            || "must be implied: servers update what workers train".to_owned(),
            "Give the graph of the forward pass, in training.",
        )
    }
}

/// Forward and backward passes on one device, and the activations kept between them.
fn passes(network: &Network, cluster: &Cluster) -> (Time, Bytes) {
    let mesh = Mesh::new(&[1]);
    // Nothing is cut, so that no choice matters.
    let options = ShardingOptions {
        method: Method::Dp,
        mesh: vec![],
        strategies: vec![],
        others: Others::Search,
        cost_model: CostModel::Estimate,
        dataset: vec![],
        prefetch_mb: None,
        reuse_limit: None,
        fusion: None,
        recompute: false,
        use_all_devices: false,
        refine: true,
        all_to_all: true,
        zero: 0,
        optimizer_bytes: 0,
        gradient_bytes: 0,
        memory_gib: None,
    };
    let pricer = Pricer::new(network, cluster, &options, &mesh);
    let (mut compute, mut activations) = (Time::ZERO, Bytes::ZERO);
    for operator in 0..network.graph.operators.len() {
        let recompute = network.graph.operators[operator].recompute;
        let whole = whole(&network.loops[operator], recompute);
        let price = pricer.operator(operator, &whole);
        compute += price.compute + price.recompute;
        activations += pricer.activations(operator, &whole);
    }
    (compute, activations)
}

/// The strategy that cuts nothing.
fn whole(loops: &Loops, recompute: bool) -> Strategy {
    Strategy { axes: vec![vec![]; loops.axes.len()], scatter: None, recompute }
}

/// Parameters with a gradient.
fn trained(network: &Network) -> Vec<usize> {
    let tensors = &network.graph.tensors;
    let is_trained = |&t: &usize| {
        tensors[t].role == Role::Parameter
            && tensors[t].dtype.is_float()
            && !network.readers[t].is_empty()
    };
    (0..tensors.len()).filter(is_trained).collect()
}

fn weights(network: &Network, tensor: usize) -> Weights {
    let spec = &network.graph.tensors[tensor];
    let product = |shape: &[u64]| shape.iter().product::<u64>() as f64;
    let readers = &network.readers[tensor];
    let looks_up = |&(operator, place): &(usize, usize)| {
        place == 0 && matches!(network.graph.operators[operator].form, Form::Gather { axis: 0, .. })
    };
    let rows = (readers.iter().all(looks_up) && !spec.shape.is_empty()).then(|| Rows {
        all: spec.shape[0] as f64,
        named: readers
            .iter()
            .map(|&(operator, _)| {
                product(&network.graph.tensors[network.inputs[operator][1]].shape)
            })
            .sum(),
    });
    Weights { elements: product(&spec.shape), bytes: spec.dtype.bytes() as f64, rows }
}

fn notes(network: &Network, trained: &[usize]) -> Vec<String> {
    let tensors = &network.graph.tensors;
    let large: Vec<&str> = trained
        .iter()
        .map(|&t| &tensors[t])
        .filter(|t| t.bytes().0 > LARGEST)
        .map(|t| t.name.as_str())
        .collect();
    let mut notes = vec![
        "rows are counted as if every row of a table were as likely; tables with favourites move fewer".to_owned(),
        "nothing is taken to hide behind the passes, in any placement".to_owned(),
    ];
    if !large.is_empty() {
        notes.push(format!(
            "MindSpore keeps no single parameter above 2^31 - 1 bytes on its servers: {}",
            large.join(", ")
        ));
    }
    notes
}
