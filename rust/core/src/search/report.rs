//! What the search answers: the ranked plans, what was cut and why, and whether that is proved.

use crate::estimate::Estimate;
use crate::plan::Plan;
use crate::spec::problem::Problem;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Schema of the report document.
pub const REPORT_SCHEMA: &str = "autopar.report/1";

/// The answer to a problem, with the problem itself, so that it can be run again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// [`REPORT_SCHEMA`].
    pub schema: String,
    /// The question.
    pub problem: Problem,
    /// The best plans, fastest first; at most `options.top`.
    pub ranked: Vec<Ranked>,
    /// Why the search ended.
    pub stop: StopReason,
    /// Whether the list is proved to be the best of the whole space.
    pub proved: bool,
    /// Most by which the best plan could still be beaten, as a share of its step time; 0 when proved, null when
    /// nothing was found.
    pub gap: Option<f64>,
    /// What happened to every class of candidates.
    pub counters: Counters,
    /// Why there is no plan, if there is none.
    pub infeasible: Option<Infeasible>,
    /// Limits, roundings and warnings that bear on the result.
    pub notes: Vec<String>,
}

/// A plan with its estimate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ranked {
    /// The plan.
    pub plan: Plan,
    /// What it costs.
    pub estimate: Estimate,
}

/// Why a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StopReason {
    /// The whole space was searched.
    Complete,
    /// The time limit came first.
    Time,
    /// The caller stopped it.
    Interrupted,
}

/// Classes of candidates: considered = estimated + the sum of all cuts.
///
/// A class is one choice of degrees, micro-batch, ZeRO, schedule and chips of the stages; its layer split and
/// recompute are optimised inside it and not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Size of the space.
    pub considered: u64,
    /// Classes whose best plan was estimated.
    pub estimated: u64,
    /// Classes cut, by reason.
    pub cut: BTreeMap<Cut, u64>,
    /// Plans estimated; several in a class with several layer splits or recompute settings.
    pub estimates: u64,
    /// Lower bounds computed.
    pub bounds: u64,
}

/// Why a class of candidates was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cut {
    /// A degree, schedule or setting that the options do not allow.
    Options,
    /// Heads, key heads, experts or widths that the degrees do not divide.
    ModelShape,
    /// A sequence that the context-parallel degree does not divide.
    Sequence,
    /// A global batch that data parallel times micro-batch does not divide.
    Batch,
    /// More stages or chunks than layers, or layers that the schedule cannot split.
    Layers,
    /// Micro-batches that the interleaved schedule cannot order.
    MicroBatches,
    /// A tensor-parallel group that would leave its node.
    Placement,
    /// Chips that the limits do not give.
    Limits,
    /// Every layer split and recompute setting runs out of memory.
    Memory,
    /// A lower bound no better than the plans already found.
    Bound,
    /// Not reached before the search was stopped.
    Unreached,
}

/// Why no plan exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Infeasible {
    /// Nothing fits in memory.
    Memory {
        /// The plan that comes nearest.
        nearest: Box<Ranked>,
        /// Its stage that lacks most, counted from 0.
        stage: u32,
        /// What that stage lacks, in GiB.
        lacks_gib: f64,
    },
    /// The limits cannot give the devices.
    Devices {
        /// Devices asked for.
        asked: u64,
        /// Devices within the limits, whole nodes.
        available: u64,
        /// What to change.
        cure: String,
    },
    /// No degrees multiply to the device count and divide the batch, sequence and model.
    Factorisation {
        /// The nearest device count that has some.
        nearest_devices: Option<u64>,
        /// The nearest global batch that has some on the devices asked for.
        nearest_batch: Option<u64>,
    },
}

/// Which device counts matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// All at which a plan fits.
    Every,
    /// Those that no other beats in both time and money; without one price all.
    Frontier,
    /// The fastest alone.
    Fastest,
    /// The cheapest alone; without one price none.
    Cheapest,
}
