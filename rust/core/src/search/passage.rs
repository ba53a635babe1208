//! What a model's parts take for one micro-batch on a kind of chip, memory apart, and the floor of it for micro-batches of any size.
//!
//! The floor is what a sequence takes in a micro-batch so large that only what grows with it counts: no micro-batch passes its
//! sequences faster. The time of an operator is made of what its sequences need, each as much, and of what rounding up to
//! whole tiles, waves and rows, the depth of a weight gradient's product, launches, and the steps of a collective add to it: the
//! sum of such, or the longer of two, or the faster of several ways, is never less than its sequences' part. What runs beside
//! something else takes the longer of both and a share of the shorter, and so grows with both. At `ROWS` rows for every rank and
//! expert what is added is far less than `SLACK`.

use crate::estimate::least::Prices;
use crate::estimate::shard::Shard;
use crate::estimate::shortest::Shortest;
use crate::spec::framework::{ByProducts, Framework};
use crate::spec::problem::Problem;
use std::sync::OnceLock;

/// Prices of one kind of chip.
pub struct KindPrices {
    /// With nothing sharded.
    pub loud: Prices,
    /// Sharded without what that communicates, where it does in every pass.
    pub quiet: Option<Prices>,
    /// Replicas at most.
    up_to: u64,
    /// Sharded in whatever group is fastest: with ZeRO stage 2 or 3, and with one replica of an expert or several.
    in_any_group: [[OnceLock<Box<Prices>>; 2]; 2],
}

impl KindPrices {
    /// With any number of replicas up to so many, of which `shard` has one; parameters apart, which may travel in every pass.
    pub fn new(
        problem: &Problem,
        kind: usize,
        shard: Shard,
        each_pass: bool,
        up_to: u64,
    ) -> KindPrices {
        let of = |shard| Prices::of_few(problem, kind, shard, up_to);
        let quiet = each_pass.then(|| of(Shard { zero: 3, shard_group: 1, ..shard }));
        KindPrices { loud: of(shard), quiet, up_to, in_any_group: Default::default() }
    }

    /// Under a sharding that communicates in every pass, whichever its group of several ranks.
    pub fn in_any_group(
        &self,
        problem: &Problem,
        kind: usize,
        shard: Shard,
        shortest: impl FnOnce() -> Shortest,
    ) -> &Prices {
        let several = shard.expert_replica_group().size > 1;
        let known = &self.in_any_group[usize::from(shard.zero > 2)][usize::from(several)];
        known.get_or_init(|| {
            Box::new(Prices::in_any_group(problem, kind, shard, self.up_to, shortest()))
        })
    }
}

/// Rows of a product for each tensor-parallel rank and expert at which a floor is priced.
const ROWS: u64 = 1 << 26;

/// Share of a price that is left off for what does not grow with the micro-batch.
const SLACK: f64 = 1.0 / 64.0;

/// What one micro-batch takes at least on a kind of chip, in seconds, memory apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Passage {
    /// Layers of the most frequent sort.
    pub frequent: f64,
    /// Both passes of one of them.
    pub layer: f64,
    /// Its forward pass.
    pub forward: f64,
    /// Until it has passed on a micro-batch and its gradient.
    pub through: f64,
    /// Both passes of a layer of the sort that takes least.
    pub lightest: f64,
    /// Both passes of all other layers, of the embedding, and of the head.
    pub rest: [f64; 3],
}

impl Passage {
    /// Under any sharding.
    pub fn of(prices: &KindPrices) -> Passage {
        let loud = Passage::under(&prices.loud);
        let Some(b) = prices.quiet.as_ref().map(Passage::under) else { return loud };
        Passage {
            frequent: loud.frequent,
            layer: loud.layer.min(b.layer),
            forward: loud.forward.min(b.forward),
            through: loud.through.min(b.through),
            lightest: loud.lightest.min(b.lightest),
            rest: [0, 1, 2].map(|n| loud.rest[n].min(b.rest[n])),
        }
    }

    /// Under one that is priced.
    pub fn under(p: &Prices) -> Passage {
        Passage {
            frequent: p.count_of_frequent() as f64,
            layer: p.passes_of_frequent(),
            forward: p.forward_of_frequent(),
            through: p.through_frequent(),
            lightest: p.passes_of_lightest(),
            rest: p.passes_of_rest(),
        }
    }

    /// What each sequence takes at least in a micro-batch of any size; `shard` with any micro-batch.
    pub fn floor(problem: &Problem, kind: usize, shard: Shard, each_pass: bool) -> Passage {
        let spread = problem.model.moe.map_or(1, |m| m.experts.div_ceil(m.topk.max(1)));
        let rows = ROWS * shard.tp * shard.cp * u64::from(spread);
        // Where a fused kernel asks for a multiple of sequences, the largest may use it.
        let mbs = rows
            .div_ceil(problem.workload.sequence_length)
            .next_multiple_of(problem.framework.softmax_multiple.max(1));
        // A single sequence lies as fused attention wants it, and several are laid out for it; masks of more than its own tokens are larger,
        // but fill tiles better.
        let framework = &problem.framework;
        let masked = framework.dispatch_by_products == ByProducts::MicroBatch;
        let alone = (framework.attention_layouts > 0 || masked).then(|| {
            let dispatch_by_products =
                if masked { ByProducts::AtLeast } else { framework.dispatch_by_products };
            let alone =
                Framework { attention_layouts: 0, dispatch_by_products, ..framework.clone() };
            Problem { framework: alone, ..problem.clone() }
        });
        let problem = alone.as_ref().unwrap_or(problem);
        let large = KindPrices::new(problem, kind, Shard { mbs, ..shard }, each_pass, 1);
        Passage::of(&large).times((1.0 - SLACK) / mbs as f64)
    }

    /// The same so many times.
    pub fn times(self, by: f64) -> Passage {
        Passage {
            frequent: self.frequent,
            layer: self.layer * by,
            forward: self.forward * by,
            through: self.through * by,
            lightest: self.lightest * by,
            rest: self.rest.map(|seconds| seconds * by),
        }
    }
}
