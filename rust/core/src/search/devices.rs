//! Device counts that some plan fills.

use super::cell::divisors;
use super::mixed;
use super::space::allows;
use crate::spec::problem::Problem;
use std::collections::BTreeSet;

/// The degrees that divide batch, heads and sequence, with up to a stage a layer, as far as the options allow them.
pub struct Degrees {
    pub pp: Vec<u64>,
    pub tp: Vec<u64>,
    pub cp: Vec<u64>,
    pub dp: Vec<u64>,
}

impl Degrees {
    pub fn of(problem: &Problem) -> Degrees {
        let (m, w, o) = (&problem.model, &problem.workload, &problem.options);
        let degrees = |n: u64, allowed: &[u64]| -> Vec<u64> {
            divisors(n).into_iter().filter(|d| allows(allowed, d)).collect()
        };
        // Context parallel of more than one cuts the sequence into twice as many parts.
        let halves = if w.sequence_length.is_multiple_of(2) { w.sequence_length / 2 } else { 1 };
        Degrees {
            pp: (1..=u64::from(m.layers)).filter(|p| allows(&o.pp, p)).collect(),
            tp: degrees(u64::from(m.heads), &o.tp),
            cp: degrees(halves, &o.cp),
            dp: degrees(w.global_batch_size, &o.dp),
        }
    }
}

/// Device counts up to `most` that degrees multiply to, or add up to where kinds of chip have their own, ascending. Other counts have
/// no legal plan.
pub fn device_counts(problem: &Problem, most: u64) -> Vec<u64> {
    let Degrees { pp, tp, cp, dp } = Degrees::of(problem);
    let times = |counts: &BTreeSet<u64>, degrees: &[u64]| -> BTreeSet<u64> {
        let multiples =
            counts.iter().flat_map(|&n| degrees.iter().filter_map(move |&d| n.checked_mul(d)));
        multiples.filter(|&n| n <= most).collect()
    };
    let mut ranks = times(&BTreeSet::from_iter(tp), &pp);
    if problem.options.mixed_tp && problem.cluster.groups.len() > 1 {
        ranks.extend(mixed::ranks(problem, most));
    }
    times(&times(&ranks, &cp), &dp).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn the_options_limit_the_device_counts() {
        let cluster = testing::cluster(testing::a100(), 12);
        let mut problem = testing::problem(testing::gpt(4, 1024), cluster, 12, 1024);
        (problem.options.tp, problem.options.pp) = (vec![2], vec![1, 3]);
        (problem.options.cp, problem.options.dp) = (vec![1], vec![1, 4]);
        // 2 x {1, 3} x {1, 4}.
        assert_eq!(device_counts(&problem, 24), [2, 6, 8, 24]);
        assert_eq!(device_counts(&problem, 8), [2, 6, 8]);
        assert_eq!(device_counts(&problem, 0), Vec::<u64>::new());
    }
}
