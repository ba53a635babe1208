//! What is measured: a training step, or one operator.

use crate::error::{require, Error};
use crate::estimate;
use crate::estimate::choice::Choice;
use crate::estimate::collective::Fabric;
use crate::estimate::compute::{Device, Gemm};
use crate::estimate::fused_attention::FusedAttention;
use crate::plan::Plan;
use crate::spec::cluster::{Chip, Cluster, DeviceGroup, Group};
use crate::spec::problem::Problem;
use crate::spec::workload::Precision;
use serde::{Deserialize, Serialize};

/// One measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Points that resemble each other, as those of one source; left out together.
    pub group: String,
    /// Seconds that it took.
    pub seconds: f64,
    /// What took them.
    pub what: Measured,
}

/// What was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Measured {
    /// One step of a training run on one kind of chip.
    Run {
        /// What was trained.
        problem: Box<Problem>,
        /// How.
        plan: Plan,
    },
    /// One product `[m, k] x [k, n]`.
    Gemm {
        /// Rows.
        m: u64,
        /// Columns.
        n: u64,
        /// Inner dimension.
        k: u64,
        /// Number format.
        precision: Precision,
    },
    /// One pass of causal fused attention.
    Attention {
        /// Kernel, as `fa2`.
        kernel: String,
        /// Heads times sequences.
        heads: u64,
        /// Width of a head.
        head_dim: u64,
        /// Length of a sequence.
        sequence: u64,
        /// Whether the backward pass ran, after the forward pass or alone.
        passes: Passes,
    },
    /// One collective of neighbouring ranks.
    Collective {
        /// Which.
        operation: Operation,
        /// Bytes: all of the gathered or summed tensor, or all that one rank exchanges.
        bytes: f64,
        /// Devices.
        ranks: u64,
    },
    /// Tokens on their way to their experts, or back: one copy for each node that holds some of them.
    Dispatch {
        /// Bytes of all copies that one rank's tokens have, one for each of their experts.
        bytes: f64,
        /// Neighbouring devices over which the experts are spread.
        ranks: u64,
        /// Experts of a token.
        topk: u32,
        /// Nodes over which a token's experts may lie; 0 for any.
        node_limit: u32,
    },
}

/// Passes of attention that were timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Passes {
    /// Forward.
    Forward,
    /// Backward.
    Backward,
    /// Both.
    Both,
}

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// All-reduce.
    AllReduce,
    /// All-gather or reduce-scatter.
    AllGather,
    /// All-to-all.
    AllToAll,
}

impl Measured {
    /// Checks that the core can price it; an operator on `chip`.
    pub fn check(&self, chip: &Chip) -> Result<(), Error> {
        let positive = |ok: bool| {
            require(ok, "what", || "a dimension is 0".to_owned(), "Give positive dimensions.")
        };
        match self {
            Measured::Run { problem, .. } => {
                problem.as_ref().clone().validate()?;
                require(
                    problem.cluster.groups.len() == 1,
                    "problem.cluster",
                    || format!("{} kinds of chip", problem.cluster.groups.len()),
                    "Give runs on one kind of chip.",
                )
            }
            Measured::Gemm { m, n, k, precision } => {
                positive(*m > 0 && *n > 0 && *k > 0)?;
                let peaks = &chip.peak_tflops;
                let known = match precision {
                    Precision::Fp16 | Precision::Bf16 => peaks.bf16.or(peaks.fp16),
                    Precision::Fp8 => peaks.fp8,
                    Precision::Fp4 => peaks.fp4,
                    Precision::Tf32 => peaks.tf32,
                    Precision::Fp32 => peaks.fp32,
                };
                require(
                    known.is_some(),
                    "precision",
                    || format!("the chip has no peak in {precision:?}"),
                    "Leave these products out.",
                )
            }
            Measured::Attention { kernel, heads, head_dim, sequence, .. } => {
                positive(*heads > 0 && *head_dim > 0 && *sequence > 0)?;
                require(
                    chip.attention.iter().any(|row| &row.kernel == kernel),
                    "kernel",
                    || format!("the chip has no rates of \"{kernel}\""),
                    "Name a kernel of the chip.",
                )
            }
            Measured::Collective { bytes, ranks, .. } => {
                positive(bytes.is_finite() && *bytes > 0.0 && *ranks > 1)
            }
            Measured::Dispatch { bytes, ranks, topk, .. } => {
                positive(bytes.is_finite() && *bytes > 0.0 && *ranks > 1 && *topk > 0)
            }
        }
    }

    /// Seconds that it should take where `change` is made to the chip and the framework's host time is scaled.
    ///
    /// # Errors
    /// A plan that breaks a rule.
    pub fn seconds(
        &self,
        chip: &Chip,
        change: impl Fn(&mut Chip),
        launch: f64,
    ) -> Result<f64, Error> {
        if let Measured::Run { problem, plan } = self {
            let mut changed = (**problem).clone();
            change(&mut changed.cluster.groups[0].chip);
            changed.framework.launch_us *= launch;
            return Ok(estimate::estimate(&changed, plan)?.step_s);
        }
        let mut chip = chip.clone();
        change(&mut chip);
        Ok(self.operator_seconds(&chip))
    }

    fn operator_seconds(&self, chip: &Chip) -> f64 {
        match self {
            Measured::Run { .. } => unreachable!("a run is no operator"),
            &Measured::Gemm { m, n, k, precision } => {
                Device::new(chip, precision, &[], 1).linear(Gemm::new(m, n, k))
            }
            Measured::Attention { kernel, heads, head_dim, sequence, passes } => {
                let device = Device::new(chip, Precision::Bf16, std::slice::from_ref(kernel), 1);
                let pairs = (heads * sequence * sequence) as f64 / 2.0;
                let (qk_dim, v_dim, sequence) = (*head_dim, *head_dim, *sequence);
                let asked = FusedAttention { pairs, qk_dim, v_dim, sequence };
                let forward = device.attention_forward(asked);
                match passes {
                    Passes::Forward => forward,
                    Passes::Backward => device.attention_backward(asked),
                    Passes::Both => forward + device.attention_backward(asked),
                }
            }
            &Measured::Collective { operation, bytes, ranks } => {
                neighbours(chip, ranks, |fabric, group| match operation {
                    Operation::AllReduce => fabric.all_reduce(bytes, group),
                    Operation::AllGather => fabric.all_gather(bytes, group),
                    Operation::AllToAll => fabric.all_to_all(bytes, group),
                })
            }
            &Measured::Dispatch { bytes, ranks, topk, node_limit } => {
                neighbours(chip, ranks, |fabric, group| {
                    fabric.once_a_node(bytes, Choice { topk, node_limit, in_turn: 0 }, group, "").0
                })
            }
        }
    }
}

/// Seconds of what `ranks` neighbouring devices of a kind do together.
fn neighbours(chip: &Chip, ranks: u64, cost: impl Fn(&Fabric<'_>, Group) -> f64) -> f64 {
    let groups = vec![DeviceGroup { chip: chip.clone(), limit: None }];
    let cluster = Cluster { groups, devices: ranks, fabric: vec![], between_kinds: None };
    cost(&Fabric::new(&cluster, chip), Group { size: ranks, stride: 1 })
}
