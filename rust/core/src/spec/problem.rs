//! The problem: what is asked, validated once and then immutable.

use super::cluster::Cluster;
use super::framework::{ContextExchange, Framework};
use super::model::Model;
use super::workload::Workload;
use crate::error::{require, Error};
use serde::{Deserialize, Serialize};

/// Schema of the problem document.
pub const PROBLEM_SCHEMA: &str = "autopar.problem/1";

/// A model to train on a cluster, with what the search may choose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Problem {
    /// [`PROBLEM_SCHEMA`].
    pub schema: String,
    /// Version of the package that wrote it.
    pub version: String,
    /// Date and hash of the catalog that its parts came from.
    pub catalog: String,
    /// The model.
    pub model: Model,
    /// The devices.
    pub cluster: Cluster,
    /// The step.
    pub workload: Workload,
    /// The software.
    pub framework: Framework,
    /// What the search may choose.
    pub options: Options,
}

/// What the search may choose and how much it returns. An empty list allows every value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Plans to return.
    pub top: u32,
    /// Share of a device's memory that stays free.
    pub memory_margin: f64,
    /// Allowed tensor-parallel degrees.
    pub tp: Vec<u64>,
    /// Allowed pipeline depths.
    pub pp: Vec<u64>,
    /// Allowed model chunks a stage.
    pub vpp: Vec<u64>,
    /// Allowed context-parallel degrees.
    pub cp: Vec<u64>,
    /// Allowed expert-parallel degrees.
    pub ep: Vec<u64>,
    /// Allowed data-parallel degrees.
    pub dp: Vec<u64>,
    /// Allowed micro-batch sizes.
    pub mbs: Vec<u64>,
    /// Allowed settings of sequence parallel.
    pub sp: Vec<bool>,
    /// Allowed ZeRO stages.
    pub zero: Vec<u8>,
    /// Allowed schedules.
    pub schedules: Vec<Schedule>,
    /// Allowed recompute.
    pub recompute: Vec<Granularity>,
    /// Allowed sizes of the shard group. Replicas that none of them divides are sharded as a whole.
    pub shard_group: Vec<u64>,
    /// ZeRO may shard over a part of the data-parallel group (HSDP).
    pub partial_shard_groups: bool,
    /// Activations may wait in host memory.
    pub activation_offload: bool,
    /// Optimizer state may live in host memory.
    pub optimizer_offload: bool,
    /// Stages of one kind of chip may hold different numbers of layers.
    pub uneven_layers: bool,
    /// Stages of one kind of chip may recompute differently.
    pub recompute_per_stage: bool,
    /// Kinds of chip may have tensor-parallel degrees of their own; such plans need sequence parallel.
    pub mixed_tp: bool,
    /// Experts are cut over the tensor-parallel group as the dense layers are (otherwise they are whole).
    pub expert_tensor_parallel: bool,
    /// What a global batch must be a multiple of that is proposed where no degrees suit the one asked for.
    pub batch_multiple: u64,
}

/// Order of forward and backward passes in the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Schedule {
    /// One forward, one backward in turn (PipeDream-flush).
    #[serde(rename = "1f1b")]
    OneFOneB,
    /// 1F1B over several model chunks a stage.
    #[serde(rename = "interleaved")]
    Interleaved,
    /// All forwards, then all backwards.
    #[serde(rename = "gpipe")]
    GPipe,
    /// Zero bubble with handcrafted order and 1F1B's memory (arXiv:2401.10241).
    #[serde(rename = "zb-h1")]
    ZeroBubbleH1,
    /// Zero bubble with two chunks in a V (arXiv:2405.15362).
    #[serde(rename = "zb-v")]
    ZeroBubbleV,
}

/// Kinds of recompute that a search may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Granularity {
    /// Nothing.
    None,
    /// The core of attention.
    Selective,
    /// Some whole layers of each chunk.
    Block,
    /// All layers, with fewer inputs kept.
    Uniform,
}

impl Problem {
    /// Checks every part and the parts against each other.
    ///
    /// # Errors
    /// The first thing that is wrong: where, what, found, cure.
    pub fn validate(self) -> Result<Problem, Error> {
        require(
            self.schema == PROBLEM_SCHEMA,
            "schema",
            || format!("must be \"{PROBLEM_SCHEMA}\", found \"{}\"", self.schema),
            "Write the document with this version of autopar.",
        )?;
        self.model.validate().map_err(|e| e.under("model"))?;
        self.cluster.validate().map_err(|e| e.under("cluster"))?;
        self.workload.validate().map_err(|e| e.under("workload"))?;
        self.framework.validate().map_err(|e| e.under("framework"))?;
        self.options.validate().map_err(|e| e.under("options"))?;
        for (i, group) in self.cluster.groups.iter().enumerate() {
            let (chip, precision) = (&group.chip, self.workload.precision);
            if chip.peak_tflops.of(precision).is_none() {
                let what = format!("chip \"{}\" has no {precision:?} matrix unit", chip.name);
                let path = format!("cluster.groups[{i}].chip.peak_tflops");
                return Err(Error::new(path, what.to_lowercase(), chip.peak_tflops.cure())
                    .about(&["workload.precision"]));
            }
        }
        // The most is where all tokens want the same topk experts.
        let most = self
            .model
            .moe
            .map_or(0.0, |moe| (f64::from(moe.experts) / f64::from(moe.topk) - 1.0).sqrt());
        let found = self.workload.expert_load_variation;
        require(
            (0.0..=most).contains(&found),
            "workload.expert_load_variation",
            || match most {
                0.0 => format!("must be 0 where no token chooses its experts, found {found}"),
                _ => format!("must be from 0 to {most:.3} for this model, found {found}"),
            },
            "Give 0 where tokens are spread at random, about 0.3 for a router that balances well.",
        )?;
        Ok(self)
    }
}

impl Problem {
    /// Devices of a kind that may be used: its limit in whole nodes, or as many as the job needs.
    pub fn available(&self, kind: usize) -> u64 {
        let group = &self.cluster.groups[kind];
        let node = u64::from(group.chip.devices_per_node);
        group.limit.map_or(self.cluster.devices, |limit| limit / node * node)
    }

    /// Devices of all kinds that the limits allow, in whole nodes.
    pub fn all_available(&self) -> u64 {
        (0..self.cluster.groups.len()).map(|kind| self.available(kind)).fold(0, u64::saturating_add)
    }

    /// Whether each rank gets whole heads where sequence shards are exchanged for heads.
    pub fn exchanges_whole_heads(&self, tp: u64, cp: u64) -> bool {
        self.framework.context_exchange != ContextExchange::Heads
            || u64::from(self.model.heads).is_multiple_of(tp * cp)
    }
}

impl Options {
    fn validate(&self) -> Result<(), Error> {
        require(
            (1..=100_000).contains(&self.top),
            "top",
            || format!("must be from 1 to 100000, found {}", self.top),
            "Give the number of plans to return.",
        )?;
        require(
            self.batch_multiple > 0,
            "batch_multiple",
            || "must be positive, found 0".to_owned(),
            "Give 1 for any batch.",
        )?;
        require(
            (0.0..1.0).contains(&self.memory_margin),
            "memory_margin",
            || format!("must be from 0 up to 1, found {}", self.memory_margin),
            "Give the share of memory that stays free, as 0.05.",
        )?;
        for (list, path) in [
            (&self.tp, "tp"),
            (&self.pp, "pp"),
            (&self.vpp, "vpp"),
            (&self.cp, "cp"),
            (&self.ep, "ep"),
            (&self.dp, "dp"),
            (&self.mbs, "mbs"),
            (&self.shard_group, "shard_group"),
        ] {
            require(
                !list.contains(&0),
                path,
                || "a degree must be positive, found 0".to_owned(),
                "Leave the list empty to allow every degree.",
            )?;
        }
        require(
            self.zero.iter().all(|&z| z <= 3),
            "zero",
            || format!("stages go from 0 to 3, found {:?}", self.zero),
            "0 shards nothing, 1 optimizer state, 2 gradients too, 3 parameters too.",
        )
    }
}
