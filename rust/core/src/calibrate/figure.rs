//! The figures that can be fitted: what each changes, and what is plausible.

use crate::spec::cluster::Chip;
use serde::{Deserialize, Serialize};

/// Least share of a figure's usual value, and least efficiency, that is plausible.
pub const LEAST: f64 = 0.02;

/// A figure of a chip, or of the host that runs the framework.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Figure {
    /// Share of the 16-bit peak that products sustain.
    #[serde(rename = "gemm.efficiency")]
    Gemm,
    /// The same of the 8-bit peak.
    #[serde(rename = "gemm.fp8_efficiency")]
    Fp8,
    /// The same of the 4-bit peak.
    #[serde(rename = "gemm.fp4_efficiency")]
    Fp4,
    /// Share of the memory bandwidth.
    #[serde(rename = "memory_efficiency")]
    Memory,
    /// One scale of the link's bandwidths.
    #[serde(rename = "link")]
    Link,
    /// Share of the network's line rate.
    #[serde(rename = "network.efficiency")]
    Network,
    /// One scale of the fused-attention rates.
    #[serde(rename = "attention")]
    Attention,
    /// One scale of the frameworks' host time a kernel.
    #[serde(rename = "launch_us")]
    Launch,
}

impl Figure {
    /// Its name in documents: the key of the chip's file that it stands for.
    pub fn name(self) -> &'static str {
        match self {
            Figure::Gemm => "gemm.efficiency",
            Figure::Fp8 => "gemm.fp8_efficiency",
            Figure::Fp4 => "gemm.fp4_efficiency",
            Figure::Memory => "memory_efficiency",
            Figure::Link => "link",
            Figure::Network => "network.efficiency",
            Figure::Attention => "attention",
            Figure::Launch => "launch_us",
        }
    }

    /// What would tell it.
    pub fn cure(self) -> &'static str {
        match self {
            Figure::Gemm => "Add runs of wide models, or products (m,n,k,dtype,time)",
            Figure::Fp8 => "Add runs or products in fp8",
            Figure::Fp4 => "Add runs or products in fp4",
            Figure::Memory => "Add runs of narrow models with and without recompute",
            Figure::Link => "Add runs with tensor parallel in a node, or nccl-tests of one node",
            Figure::Network => "Add runs over several nodes, or nccl-tests of several nodes",
            Figure::Attention => "Add runs with long sequences, or attention alone",
            Figure::Launch => "Add runs of small models with small micro-batches",
        }
    }

    /// Its present value; a scale is 1.
    pub fn value(self, chip: &Chip) -> f64 {
        match self {
            Figure::Gemm => chip.gemm.efficiency,
            Figure::Fp8 => chip.gemm.fp8_efficiency,
            Figure::Fp4 => chip.gemm.fp4_efficiency.unwrap_or(1.0),
            Figure::Memory => chip.memory_efficiency,
            Figure::Network => chip.network.efficiency,
            Figure::Link | Figure::Attention | Figure::Launch => 1.0,
        }
    }

    /// Changes it on a chip by a factor; a share of something stays at most all of it.
    pub fn scale(self, chip: &mut Chip, factor: f64) {
        let share = |part: &mut f64| *part = (*part * factor).min(1.0);
        match self {
            Figure::Gemm => share(&mut chip.gemm.efficiency),
            Figure::Fp8 => share(&mut chip.gemm.fp8_efficiency),
            Figure::Fp4 => chip.gemm.fp4_efficiency.as_mut().map_or((), share),
            Figure::Memory => share(&mut chip.memory_efficiency),
            Figure::Network => share(&mut chip.network.efficiency),
            Figure::Link => {
                chip.link.all_reduce_gb_per_s *= factor;
                chip.link.all_gather_gb_per_s *= factor;
                chip.link.all_to_all_gb_per_s *= factor;
                chip.link.p2p_gb_per_s *= factor;
                let parts = [&mut chip.link.part_gb_per_s, &mut chip.link.socket_gb_per_s];
                parts.into_iter().flatten().for_each(|rate| *rate *= factor);
            }
            Figure::Attention => {
                chip.attention
                    .iter_mut()
                    .flat_map(|row| &mut row.tflops)
                    .for_each(|r| *r *= factor);
            }
            Figure::Launch => {}
        }
    }

    /// The most that is plausible: all of the peak, of the line rate, of the wires.
    ///
    /// An all-reduce that the switch sums may exceed the wires' rate, so the other three of the link's rates bound its
    /// scale. Where no data sheet was given, they are taken to be at the wires' rate already.
    pub fn most(self, chip: &Chip, link_line_gb_per_s: Option<f64>) -> f64 {
        let link = &chip.link;
        match self {
            Figure::Gemm | Figure::Fp8 | Figure::Fp4 | Figure::Memory | Figure::Network => 1.0,
            Figure::Link => {
                let rates = [link.all_gather_gb_per_s, link.all_to_all_gb_per_s, link.p2p_gb_per_s];
                let fastest = rates.into_iter().fold(0.0, f64::max);
                (link_line_gb_per_s.unwrap_or(fastest) / fastest).max(1.0)
            }
            Figure::Attention => {
                let peak = chip.peak_tflops.bf16.or(chip.peak_tflops.fp16).unwrap_or(f64::INFINITY);
                let rates = chip.attention.iter().flat_map(|row| &row.tflops);
                (peak / rates.copied().fold(1e-9, f64::max)).clamp(1.0, 1.0 / LEAST)
            }
            Figure::Launch => 1.0 / LEAST,
        }
    }
}
