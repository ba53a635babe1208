//! FLOPs of a run by the conventions of those who publish rates, and the time that a published rate means.

use crate::error::{require, Error};
use crate::plan::{Plan, Recompute};
use crate::spec::cluster::DeviceGroup;
use crate::spec::problem::Problem;
use serde::{Deserialize, Serialize};

/// How fast a run was, as its publisher says it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "unit", rename_all = "snake_case", deny_unknown_fields)]
pub enum Rate {
    /// Seconds of one step.
    StepS {
        /// The figure.
        value: f64,
    },
    /// Tokens a second of one device.
    TokensPerSPerDevice {
        /// The figure.
        value: f64,
    },
    /// 10^12 floating-point operations a second of one device.
    TflopsPerDevice {
        /// The figure.
        value: f64,
        /// Which operations were counted.
        convention: Convention,
    },
    /// The same as a share of the 16-bit peak.
    Mfu {
        /// The figure.
        value: f64,
        /// Which operations were counted.
        convention: Convention,
    },
}

/// Which operations of a step are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Convention {
    /// The products with weights.
    pub work: Work,
    /// The products of attention.
    pub attention: AttentionFlops,
}

/// How the products with weights are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Forward, and twice that backward: each product with a weight that a token meets, output head included
    /// (Korthikanti et al. 2022, arXiv:2205.05198, appendix A).
    #[serde(rename = "model")]
    Model,
    /// The same and the forward passes that are run again: with full recompute four passes over the layers and three
    /// over the head (Narayanan et al. 2021, arXiv:2104.04473, equation 3).
    #[serde(rename = "hardware")]
    Hardware,
    /// Six operations a parameter that a token meets (Kaplan et al. 2020, arXiv:2001.08361). Tied weights count once;
    /// an input embedding of its own, which is only looked up, does not count.
    #[serde(rename = "6n")]
    SixN,
    /// Eight: as `SixN` with every layer run again.
    #[serde(rename = "8n")]
    EightN,
}

/// How the products of attention are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttentionFlops {
    /// Every query with every key.
    Full,
    /// Half of that: what a causal mask leaves.
    Causal,
    /// Not at all.
    None,
}

/// Floating-point operations of one step, all devices together.
pub fn run_flops(problem: &Problem, plan: &Plan, convention: Convention) -> f64 {
    let (m, w) = (&problem.model, &problem.workload);
    let share = match convention.attention {
        AttentionFlops::Full => 1.0,
        AttentionFlops::Causal => 0.5,
        AttentionFlops::None => 0.0,
    };
    let attention = |layer: u32| share * m.attention_products(layer, w.sequence_length);
    let all_attention: f64 = (0..m.layers).map(attention).sum();
    let products = match convention.work {
        Work::Model | Work::Hardware => {
            let weights: u64 = (0..m.layers).map(|i| m.layer_matmul_parameters(i)).sum();
            let again = match convention.work {
                Work::Hardware => again(plan, |i| m.layer_matmul_parameters(i) as f64, attention),
                Work::Model | Work::SixN | Work::EightN => 0.0,
            };
            let head = (m.vocab * m.hidden) as f64;
            3.0 * (weights as f64 + all_attention + head) + again
        }
        Work::SixN | Work::EightN => {
            let looked_up = if m.tied_embeddings { 0 } else { m.embedding_parameters() };
            let passes = if convention.work == Work::EightN { 4.0 } else { 3.0 };
            passes * ((m.active_parameters() - looked_up) as f64 + all_attention)
        }
    };
    2.0 * w.tokens() as f64 * products
}

/// Multiplications of a token in the forward passes that are run again.
fn again(plan: &Plan, weights: impl Fn(u32) -> f64, attention: impl Fn(u32) -> f64) -> f64 {
    let mut first = 0;
    let mut sum = 0.0;
    for stage in &plan.stages {
        let layers = first..first + stage.layers;
        let chunk = (stage.layers / plan.vpp as u32).max(1);
        sum += match stage.recompute {
            Recompute::None => 0.0,
            Recompute::Selective => layers.map(&attention).sum(),
            Recompute::Uniform { .. } => layers.map(|i| weights(i) + attention(i)).sum(),
            Recompute::Block { layers: some } => layers
                .filter(|i| (i - first) % chunk < some)
                .map(|i| weights(i) + attention(i))
                .sum::<f64>(),
            Recompute::Parts(parts) => layers
                .map(|i| {
                    let (index, n) = ((i - first) / chunk, (i - first) % chunk);
                    let own = parts.of_chunk(u64::from(index), plan.vpp);
                    match n {
                        n if n < own.layers => weights(i) + attention(i),
                        n if n < own.operators.attention => attention(i),
                        _ => 0.0,
                    }
                })
                .sum::<f64>(),
        };
        first += stage.layers;
    }
    sum
}

/// 16-bit operations a second of all devices of a plan at their peak.
pub fn peak(problem: &Problem, plan: &Plan) -> f64 {
    let of_kind = |(kind, group): (usize, &DeviceGroup)| {
        let stages = plan.stages.iter().filter(|s| s.chip as usize == kind).count() as u64;
        let peaks = &group.chip.peak_tflops;
        let devices = stages.saturating_mul(plan.devices_per_stage(kind)) as f64;
        peaks.bf16.or(peaks.fp16).unwrap_or(0.0) * 1e12 * devices
    };
    // Added from the least, so that the order of kinds changes no last digit.
    let mut peaks: Vec<f64> = problem.cluster.groups.iter().enumerate().map(of_kind).collect();
    peaks.sort_by(f64::total_cmp);
    peaks.into_iter().sum()
}

/// Seconds that one step took, by a published rate.
///
/// # Errors
/// A figure that is not positive.
pub fn measured_seconds(problem: &Problem, plan: &Plan, rate: Rate) -> Result<f64, Error> {
    let figure = match rate {
        Rate::StepS { value }
        | Rate::TokensPerSPerDevice { value }
        | Rate::TflopsPerDevice { value, .. }
        | Rate::Mfu { value, .. } => value,
    };
    require(
        figure.is_finite() && figure > 0.0,
        "value",
        || format!("must be positive, found {figure}"),
        "Give the figure in its unit.",
    )?;
    let devices = plan.devices() as f64;
    Ok(match rate {
        Rate::StepS { value } => value,
        Rate::TokensPerSPerDevice { value } => problem.workload.tokens() as f64 / (value * devices),
        Rate::TflopsPerDevice { value, convention } => {
            run_flops(problem, plan, convention) / (value * 1e12 * devices)
        }
        Rate::Mfu { value, convention } => {
            run_flops(problem, plan, convention) / (value * peak(problem, plan))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Stage;

    use crate::testing;

    const FULL: AttentionFlops = AttentionFlops::Full;

    fn run() -> (Problem, Plan) {
        // 24 layers of 2304, 24 heads, 2048 positions, 512 sequences: a row of the SC21 paper's table 1.
        let mut model = testing::gpt(24, 2304);
        model.vocab = 51_200;
        let cluster = testing::cluster(testing::a100(), 32);
        let problem = testing::problem(model, cluster, 512, 2048);
        let recompute = Recompute::Uniform { layers: 1 };
        let stages = vec![Stage { chip: 0, layers: 24, recompute, offload: 0 }];
        let plan = Plan { dp: 32, mbs: 16, ..testing::plan(stages) };
        (problem, plan)
    }

    #[test]
    fn hardware_flops_are_those_of_the_sc21_paper() {
        // 96 B s l h^2 (1 + s/6h + V/16lh) = 96 x 512 x 2048 x 24 x 2304^2 x (1 + 2048/13824 + 51200/884736).
        let (problem, plan) = run();
        let h: f64 = 2304.0;
        let paper = 96.0
            * 512.0
            * 2048.0
            * 24.0
            * h
            * h
            * (1.0 + 2048.0 / (6.0 * h) + 51_200.0 / (16.0 * 24.0 * h));
        let ours = run_flops(&problem, &plan, Convention { work: Work::Hardware, attention: FULL });
        // Norms and biases are ours alone: 0.1 %.
        assert!((ours / paper - 1.0).abs() < 1.5e-3, "{ours} against {paper}");
    }

    #[test]
    fn without_recompute_hardware_flops_are_model_flops() {
        let (problem, mut plan) = run();
        plan.stages[0].recompute = Recompute::None;
        let hardware = Convention { work: Work::Hardware, attention: FULL };
        let model = problem.model.model_flops(512 * 2048, 2048);
        let ours = run_flops(&problem, &plan, hardware);
        assert!((ours / model - 1.0).abs() < 1e-12);
    }

    #[test]
    fn six_a_parameter_and_token() {
        let (problem, plan) = run();
        let six = Convention { work: Work::SixN, attention: AttentionFlops::None };
        let m = &problem.model;
        let counted = m.parameters() - if m.tied_embeddings { 0 } else { m.embedding_parameters() };
        let expected = 6.0 * counted as f64 * 512.0 * 2048.0;
        assert!((run_flops(&problem, &plan, six) / expected - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_rate_gives_the_time() {
        // 512 x 2048 tokens over 32 devices at 4096 tokens a second each: 8 s.
        let (problem, plan) = run();
        let rate = Rate::TokensPerSPerDevice { value: 4096.0 };
        assert_eq!(measured_seconds(&problem, &plan, rate).unwrap(), 8.0);
    }

    #[test]
    fn a_share_of_the_peak_is_a_rate() {
        let (problem, plan) = run();
        let convention = Convention { work: Work::Model, attention: FULL };
        let peak = 312.0;
        let share = Rate::Mfu { value: 0.5, convention };
        let rate = Rate::TflopsPerDevice { value: 0.5 * peak, convention };
        let seconds = |rate| measured_seconds(&problem, &plan, rate).unwrap();
        assert!((seconds(share) / seconds(rate) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn nothing_a_second_is_refused() {
        let (problem, plan) = run();
        let error = measured_seconds(&problem, &plan, Rate::StepS { value: 0.0 }).unwrap_err();
        assert_eq!(error.path, "value");
    }
}
