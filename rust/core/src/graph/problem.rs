//! What is asked at the operator level, and what is answered.

use super::ir::Graph;
use crate::error::{require, Error};
use crate::spec::cluster::Cluster;
use crate::units::{Bytes, Time};
use serde::{Deserialize, Serialize};

/// Schema of the question.
pub const SHARDING_PROBLEM_SCHEMA: &str = "autopar.sharding-problem/1";
/// Schema of the answer.
pub const SHARDING_SCHEMA: &str = "autopar.sharding/1";

/// A graph to cut over devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardingProblem {
    /// [`SHARDING_PROBLEM_SCHEMA`].
    pub schema: String,
    /// Version of the package that wrote it.
    pub version: String,
    /// Date and hash of the catalog that its parts came from.
    pub catalog: String,
    /// The operators.
    pub graph: Graph,
    /// The devices, of one kind.
    pub cluster: Cluster,
    /// What may be chosen.
    pub options: ShardingOptions,
}

/// What may be chosen, and by which method.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardingOptions {
    /// How the choice is made.
    pub method: Method,
    /// By which costs; the answer is priced by the estimate either way.
    pub cost_model: CostModel,
    /// Sizes of the mesh's one to three axes, outermost first; empty for one axis of all devices.
    pub mesh: Vec<u64>,
    /// Strategies that the user has set.
    pub strategies: Vec<FixedStrategy>,
    /// What happens to operators without one.
    pub others: Others,
    /// How tensors of the dataset are cut; those that are not named lie as their readers want them.
    pub dataset: Vec<FixedInput>,
    /// Buffer for weights that are gathered ahead of their use, in MB (10^6 bytes), 0 for as large as is of use and memory
    /// has room for; `null` to gather none ahead. It acts where parameters are divided (ZeRO 3).
    pub prefetch_mb: Option<u64>,
    /// Identical communication operators that may be replaced by calls of a shared subgraph: at most so many, 0 for no
    /// limit; `null` replaces none.
    pub reuse_limit: Option<u64>,
    /// How gradients are grouped to be exchanged behind the backward pass; `null` charges each exchange in full.
    pub fusion: Option<Fusion>,
    /// Whether an operator is recomputed in the backward pass is chosen with its strategy; otherwise only those are that
    /// the user has set.
    pub recompute: bool,
    /// Only strategies that give each device work of its own.
    pub use_all_devices: bool,
    /// An axis of the mesh may be divided among several axes of an operator; otherwise each is taken whole or not at all.
    pub refine: bool,
    /// All-to-all may be used; otherwise it is an all-gather and a slice.
    pub all_to_all: bool,
    /// What is divided among the devices that hold equal parameters: 1 optimizer state, 2 gradients too, 3 parameters too.
    pub zero: u8,
    /// Bytes of optimizer state a parameter, its copy in 32 bits included.
    pub optimizer_bytes: u64,
    /// Bytes of a gradient as it is kept and summed.
    pub gradient_bytes: u64,
    /// Memory that a plan may use on a device, in GiB; `null` for the chip's.
    pub memory_gib: Option<f64>,
}

/// How strategies are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Dynamic programming.
    Dp,
    /// Integer linear programming.
    Ilp,
    /// Halving the devices again and again.
    Recursive,
    /// From the operators that are set to their neighbours.
    Propagate,
}

/// Costs that a method compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CostModel {
    /// Seconds.
    Estimate,
    /// The relative costs of MindSpore's recursive search.
    Mindspore,
}

/// What happens to operators that the user has not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Others {
    /// They are searched.
    Search,
    /// They are cut along their leading axis as often as it divides.
    DataParallel,
}

/// How exchanges of one kind are grouped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grouping {
    /// By what.
    pub mode: GroupingMode,
    /// Megabytes (10^6 bytes) that close a group, with `size`.
    pub mb: Option<u64>,
    /// Places of parameters, in the order of the graph, at which a new group begins, ascending, with `index`.
    pub places: Vec<u64>,
}

/// By what exchanges are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupingMode {
    /// 64 MB.
    Auto,
    /// A size that is given.
    Size,
    /// Places that are given.
    Index,
    /// The power of two of megabytes that exposes least.
    Best,
}

/// How exchanges are grouped, by kind: gradients without and with ZeRO, and parameters after their update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fusion {
    /// Gradients that every device gets.
    pub all_reduce: Grouping,
    /// Parameters that were updated in parts (ZeRO 1 and 2).
    pub all_gather: Grouping,
    /// Gradients of which each device gets a part.
    pub reduce_scatter: Grouping,
}

/// What runs beside computation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overlap {
    /// Groups of exchanges, in the order in which they run.
    pub buckets: Vec<SharedExchange>,
    /// Megabytes that close a group of gradients, if groups have a size.
    pub bucket_mb: Option<u64>,
    /// Exchange of gradients that goes on after the backward pass.
    pub gradients_exposed_ps: Time,
    /// Gathers of parameters that operators wait for.
    pub gathers_exposed_ps: Time,
    /// The most that is gathered ahead at a time.
    pub buffer_bytes: Bytes,
}

/// Communication operators on one device in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Communications {
    /// All of them.
    pub operators: u64,
    /// Those that became calls of a subgraph.
    pub replaced: u64,
    /// The subgraphs.
    pub subgraphs: u64,
    /// What is left to compile: those that stayed, and the subgraphs.
    pub compiled: u64,
}

/// Parameters whose exchanges are one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedExchange {
    /// What is done.
    pub operation: Collective,
    /// The prime axes of the mesh over which it is done.
    pub axes: Vec<usize>,
    /// The parameters.
    pub tensors: Vec<String>,
    /// Bytes of one device's result (gather) or operand (all others).
    pub bytes: Bytes,
    /// Its time.
    pub time_ps: Time,
}

/// A strategy that the user has set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedStrategy {
    /// The operator.
    pub operator: String,
    /// Cuts of each dimension of each input; an empty list for a scalar.
    pub inputs: Vec<Vec<u64>>,
    /// Cuts of each dimension of each output, where the operator leaves a choice.
    pub outputs: Option<Vec<Vec<u64>>>,
    /// Whether it is recomputed in the backward pass; `null` leaves that to the options.
    pub recompute: Option<bool>,
    /// Rows of each part of an embedding's table, where they are unlike (`manual_split`).
    pub rows: Option<Vec<u64>>,
}

/// How a tensor of the dataset is cut, along any of its dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedInput {
    /// The tensor.
    pub tensor: String,
    /// Cuts of each dimension.
    pub cuts: Vec<u64>,
}

/// The strategies chosen, with what they cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sharding {
    /// [`SHARDING_SCHEMA`].
    pub schema: String,
    /// The question.
    pub problem: ShardingProblem,
    /// Why the search ended.
    pub proof: Proof,
    /// Whether the plan fits in memory; if none does, this is one of the least memory.
    pub fits: bool,
    /// Sizes of the mesh's prime axes, outermost first: rank = their mixed radix number.
    pub mesh: Vec<u64>,
    /// One entry an operator, in the order of the graph.
    pub operators: Vec<ShardedOperator>,
    /// One entry a parameter, input or constant, in the order of the graph.
    pub tensors: Vec<ShardedTensor>,
    /// The tensors that change their layout between two operators.
    pub reshards: Vec<Reshard>,
    /// Communication operators on one device, before and after identical ones share a subgraph.
    pub communications: Communications,
    /// What runs beside computation; `null` if nothing was asked to.
    pub overlap: Option<Overlap>,
    /// The whole.
    pub cost: ShardingCost,
    /// Strategies considered, all operators together.
    pub strategies: u64,
    /// Limits, replacements and assumptions that bear on the result.
    pub notes: Vec<String>,
}

/// How good the answer is known to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    /// No strategies cost less; by integer programming, none by more than one part in 10^9, the solver's arithmetic.
    pub exact: bool,
    /// No strategies cost less than this; `null` for methods that give no bound.
    pub bound_ps: Option<Time>,
    /// Share of the cost by which it could still be beaten; `null` without a bound.
    pub gap: Option<f64>,
}

/// An operator with its strategy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardedOperator {
    /// The operator.
    pub name: String,
    /// Cuts of each dimension of each input.
    pub inputs: Vec<Vec<u64>>,
    /// Cuts of each dimension of each output, after its summands are added.
    pub outputs: Vec<Vec<u64>>,
    /// What is done with the summands that a cut inner axis leaves.
    pub summands: Summands,
    /// Its outputs are computed again in the backward pass.
    pub recompute: bool,
    /// Computation, forward and backward.
    pub compute_ps: Time,
    /// Communication inside the operator, forward and backward.
    pub communication_ps: Time,
    /// Its forward pass once more, with its communication, if it is recomputed.
    pub recompute_ps: Time,
    /// Communication of its parameters and their gradients.
    pub gradient_ps: Time,
    /// Optimizer step of its parameters.
    pub optimizer_ps: Time,
    /// Memory of its parameters, gradients, optimizer state and of what is kept of its outputs.
    pub memory_bytes: Bytes,
}

/// What is done with the summands that a cut inner axis leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Summands {
    /// There are none.
    None,
    /// Every device gets the sum.
    AllReduce,
    /// Every device gets a part of the sum.
    ReduceScatter,
}

/// A tensor that no operator writes, with its layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardedTensor {
    /// The tensor.
    pub name: String,
    /// The prime axes of the mesh that cut each dimension, outermost first.
    pub axes: Vec<Vec<usize>>,
    /// Elements of each part of the first dimension, where they are unlike.
    pub rows: Option<Vec<u64>>,
}

/// A tensor that changes its layout between two operators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reshard {
    /// The tensor.
    pub tensor: String,
    /// The operator that writes it; `null` for an input, parameter or constant.
    pub writer: Option<String>,
    /// The operator that reads it.
    pub reader: String,
    /// What is done forward.
    pub forward: Vec<ReshardStep>,
    /// What is done backward: the tensor fetched again where the reader's gradient needs it, then its gradient.
    pub backward: Vec<ReshardStep>,
    /// Time of both.
    pub time_ps: Time,
}

/// One collective or copy of a reshard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReshardStep {
    /// What is done.
    pub operation: Collective,
    /// The prime axes of the mesh over which it is done.
    pub axes: Vec<usize>,
    /// The dimension that is put together or summed whole; of an all-to-all the one that was cut.
    pub dimension: Option<usize>,
    /// The dimension that is cut by it.
    pub cut: Option<usize>,
    /// Bytes of one device's result (gather) or operand (all others).
    pub bytes: Bytes,
    /// Its time.
    pub time_ps: Time,
}

/// What a reshard is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Summands are added, each device keeps a part.
    ReduceScatter,
    /// Summands are added, each device keeps all.
    AllReduce,
    /// Each device keeps a part of what it has.
    Slice,
    /// Parts of one dimension become parts of another.
    AllToAll,
    /// Parts are put together on each device.
    AllGather,
}

/// What a plan costs on one device; the parts add up to the total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardingCost {
    /// Time of one step.
    pub total_ps: Time,
    /// Computation.
    pub compute_ps: Time,
    /// Communication inside operators.
    pub communication_ps: Time,
    /// Forward passes once more of the operators that are recomputed.
    pub recompute_ps: Time,
    /// Reshards between operators.
    pub reshard_ps: Time,
    /// Communication of parameters and their gradients.
    pub gradient_ps: Time,
    /// Optimizer step.
    pub optimizer_ps: Time,
    /// What of the communication of parameters and gradients runs beside computation or is saved by grouping: the total
    /// is less by it.
    pub hidden_ps: Time,
    /// Memory.
    pub memory_bytes: Bytes,
    /// Memory that it may use.
    pub limit_bytes: Bytes,
}

impl ShardingProblem {
    /// Checks everything but the graph, which [`Graph::validate`] checks.
    ///
    /// # Errors
    /// The first thing that is wrong: where, what, found, cure.
    pub fn check(&self) -> Result<(), Error> {
        require(
            self.schema == SHARDING_PROBLEM_SCHEMA,
            "schema",
            || format!("must be \"{SHARDING_PROBLEM_SCHEMA}\", found \"{}\"", self.schema),
            "Write the document with this version of autopar.",
        )?;
        one_kind(&self.cluster)?;
        let options = &self.options;
        let mesh = options.mesh.iter().try_fold(1u64, |n, &size| n.checked_mul(size));
        require(
            options.mesh.is_empty()
                || options.mesh.len() <= 3 && mesh == Some(self.cluster.devices),
            "options.mesh",
            || {
                format!(
                    "must be one to three sizes whose product is {}, found {:?}",
                    self.cluster.devices, options.mesh
                )
            },
            "Give sizes that multiply to the devices.",
        )?;
        require(
            options.cost_model == CostModel::Estimate || options.method == Method::Recursive,
            "options.cost_model",
            || "mindspore ranks the cuts of recursive alone".to_owned(),
            "Use the method recursive, or the cost model estimate.",
        )?;
        require(
            options.zero <= 3,
            "options.zero",
            || format!("must be from 0 to 3, found {}", options.zero),
            "0 divides nothing, 1 optimizer state, 2 gradients too, 3 parameters too.",
        )?;
        if let Some(fusion) = &options.fusion {
            for (grouping, path, indexed) in [
                (&fusion.all_reduce, "options.fusion.all_reduce", true),
                (&fusion.all_gather, "options.fusion.all_gather", false),
                (&fusion.reduce_scatter, "options.fusion.reduce_scatter", false),
            ] {
                grouping.check(path, indexed)?;
            }
        }
        require(
            options.optimizer_bytes <= 64 && options.gradient_bytes <= 64,
            "options.optimizer_bytes",
            || "bytes a parameter must be at most 64".to_owned(),
            "Adam in mixed precision keeps 12.",
        )
    }
}

impl Grouping {
    fn check(&self, path: &str, indexed: bool) -> Result<(), Error> {
        let named = |key: &str| format!("{path}.{key}");
        require(
            (self.mode == GroupingMode::Size) == self.mb.is_some(),
            &named("mb"),
            || "must be given with the mode size, and with no other".to_owned(),
            "Give megabytes, or another mode.",
        )?;
        require(
            indexed || self.mode != GroupingMode::Index,
            &named("mode"),
            || "must be auto, size or best, found index".to_owned(),
            "Places group the exchange of all_reduce alone.",
        )?;
        let ascending = self.places.windows(2).all(|pair| pair[0] < pair[1]);
        require(
            ascending && (self.mode == GroupingMode::Index) != self.places.is_empty(),
            &named("places"),
            || format!("must ascend, with the mode index alone, found {:?}", self.places),
            "Give the places at which groups begin.",
        )
    }
}

/// Checks devices on which a graph runs: all of one kind.
///
/// # Errors
/// The first thing that is wrong: where, what, found, cure.
pub fn one_kind(cluster: &Cluster) -> Result<(), Error> {
    cluster.validate().map_err(|e| e.under("cluster"))?;
    require(
        cluster.groups.len() == 1,
        "cluster.groups",
        || format!("must be one kind of chip, found {}", cluster.groups.len()),
        "Shard the operators of one stage at a time.",
    )
}
