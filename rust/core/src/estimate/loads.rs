//! How unevenly experts are loaded, and what rows cost that only fill them up to the fullest.

use super::block::Block;
use super::pass::Pass;
use crate::spec::model::Moe;

impl Block<'_, '_> {
    /// Places that are filled for each visit of an expert, and how many times its mean of `visits` the fullest rank of the group gets,
    /// each of which holds so many `experts`.
    ///
    /// Places are filled alike on all ranks; else all wait for the one that most tokens want, unless this is one of the mean.
    pub(super) fn filled(&mut self, moe: &Moe, visits: f64, experts: u64) -> (f64, f64) {
        if moe.capacity_factor > 0.0 {
            return (moe.capacity_factor, 1.0);
        }
        if self.is_even(moe) {
            return (1.0, 1.0);
        }
        let fullest = self.fullest(moe, visits, self.p.shard.ep, experts);
        self.uneven |= fullest > 1.0;
        (1.0, if self.mean { 1.0 } else { fullest })
    }

    /// Whether all experts get as many tokens.
    pub(super) fn is_even(&self, moe: &Moe) -> bool {
        moe.capacity_factor > 0.0 || self.p.framework.neighbouring_experts
    }

    /// Rows that a rank of so many `experts` works out where each has as many as the fullest of all, of mean `visits` a rank; none where
    /// each has its own.
    pub(super) fn padded_rows(&self, moe: &Moe, visits: f64, experts: u64) -> Option<f64> {
        let padded = self.p.framework.pads_to_fullest && !self.is_even(moe);
        padded
            .then(|| visits * self.fullest(moe, visits / experts as f64, u64::from(moe.experts), 1))
    }

    /// How many times its mean of `visits` the fullest of `places` gets, where the wants of each expert vary by
    /// `expert_load_variation` of their mean beside the chance of the draw, and so those of `experts` that share a place by one over the
    /// root of their number of that.
    ///
    /// The expected maximum of n nearly normal numbers of mean 1 and variance 1 / visits + variation^2: 1 + sqrt(2 variance ln n); at
    /// most what all tokens send to one place, of a token's k choices no more than there are experts.
    fn fullest(&self, moe: &Moe, visits: f64, places: u64, experts: u64) -> f64 {
        if places <= 1 || visits <= 0.0 {
            return 1.0;
        }
        let variation = self.p.workload.expert_load_variation;
        let variance = 1.0 / visits + variation * variation / experts as f64;
        let k = u64::from(moe.topk);
        let most = (places * k.min(experts)) as f64 / k as f64;
        (1.0 + (2.0 * variance * (places as f64).ln()).sqrt()).min(most)
    }

    /// Copies tokens of so many `arrived` elements, expert by expert, into rows of `worked` elements, of which each expert has as many,
    /// and results out of them. Returns what of it follows the experts in the forward pass.
    ///
    /// Zeros are written, of both (1 and 1), and each part is copied there and back (2 and 2 of what arrived) (KempnerInstitute/
    /// KempnerForge@195da595, kempnerforge/model/moe.py: grouped_expert_forward). Backward, for each of E experts:
    ///
    /// - A copy into a part clones the gradient of all (2) and its part (2), which zeros replace (1 and 2) (pytorch/pytorch,
    ///   torch/csrc/autograd/functions/tensor.cpp: CopySlices): 2 E of the rows worked out, 2 E of those that arrived, and over all
    ///   parts twice 5 of these.
    /// - A part that was read fills a gradient of all (1) with it (2 of the part), which all but the first add to the sum (3): E + 2 +
    ///   3 (E - 1) of those that arrived. Of the rows worked out one index takes an expert's and another its first rows: E + 1 + 2 +
    ///   3 (E - 1), and 2 of those that arrived.
    ///
    /// Together 6 E of those worked out and 6 E + 11 of those that arrived, for which the host starts five operators an expert.
    pub(super) fn pad_to_the_fullest(&mut self, experts: u64, arrived: f64, worked: f64) -> Pass {
        let parts = experts.min(1 << 16) as u32;
        let e = experts as f64;
        let seconds = |elements: f64| self.p.device.stream(elements * self.p.width);
        let (there, back) = (seconds(worked + 2.0 * arrived), seconds(3.0 * arrived));
        let gradients = seconds(6.0 * e * worked + (6.0 * e + 11.0) * arrived);
        self.forward.run_many(there, 1 + parts);
        let before = self.forward;
        self.forward.run_many(back, 1 + parts);
        self.input.run_many(gradients, 5 * parts);
        self.forward.since(before)
    }
}
