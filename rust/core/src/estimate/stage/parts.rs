//! What a chunk computes again where whole layers and single operators are counted.

use super::super::repeats::Layer;
use super::super::shard::{parameter_sent, Split, Uneven};
use super::{Place, Table};
use crate::plan::{Parts, Recompute};
use crate::units::{Bytes, Time};

/// What a chunk's layers cost beside their passes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PartsCost {
    /// Computing again.
    pub again: Split,
    /// Gathering parameters again for one pass, which the forward and the backward pass do.
    pub gather: Time,
    /// Activations that its layers keep of a micro-batch, and what the rank with most tokens has beyond them.
    pub kept: Bytes,
    pub uneven: Uneven,
}

impl Table<'_> {
    /// What the layers of a chunk compute again and keep.
    pub(super) fn parts(&self, parts: Parts, place: &Place, chunk: u64) -> PartsCost {
        let parts = parts.of_chunk(chunk, place.vpp);
        let (from, count) = self.range(place, chunk);
        let mut cost = PartsCost::default();
        for n in 0..count {
            let layer = self.layer(from + n);
            if n < parts.layers {
                cost.again = cost.again + layer.cost.recompute_full;
                cost.kept += layer.cost.kept_input;
                cost.gather += if parts.regathers { self.gather(layer) } else { Time::ZERO };
            } else {
                let named = parts.operators.of_layer(n);
                let again = layer.repeats.priced(named, self.pricer.launch()).0;
                let (kept, uneven) = layer.kept(named);
                cost.again = cost.again + again;
                cost.kept += kept;
                cost.uneven = cost.uneven + uneven;
            }
        }
        cost
    }

    /// The most bytes that a layer of a chunk brings back to compute its gradients.
    pub(super) fn parts_brought_back(&self, parts: Parts, vpp: u64) -> Bytes {
        let whole = if parts.layers > 0 { self.widest.kept } else { Bytes::ZERO };
        let launch = self.pricer.launch();
        let made = (0..vpp).flat_map(|chunk| {
            let own = parts.of_chunk(chunk, vpp);
            let named = own.operators.of_layer(own.layers);
            self.layer_kinds.iter().map(move |layer| layer.repeats.priced(named, launch).1)
        });
        made.fold(whole, Bytes::max)
    }

    /// Of the parameters of a stage that ZeRO shards, dense and expert, those that are gathered for each pass.
    pub(super) fn regathered(&self, place: &Place) -> (u64, u64) {
        let Recompute::Parts(parts @ Parts { regathers: true, .. }) = place.recompute else {
            return (0, 0);
        };
        let of_chunk = |chunk| {
            let (from, count) = self.range(place, chunk);
            let again = parts.of_chunk(chunk, place.vpp).layers;
            let layers = self.layers(from, again.min(count));
            let dense = layers.dense_parameters - layers.dense_whole;
            (dense, layers.expert_parameters - layers.expert_whole)
        };
        (0..place.vpp).map(of_chunk).fold((0, 0), |all, own| (all.0 + own.0, all.1 + own.1))
    }

    /// How long gathering a layer's sharded parameters holds a pass up.
    fn gather(&self, layer: &Layer) -> Time {
        let c = &layer.cost;
        let dense = c.dense_parameters - c.dense_whole;
        let expert = c.expert_parameters - c.expert_whole;
        let sent = parameter_sent(&self.problem.framework, self.problem.workload.precision);
        let seconds = self.pricer.shard_gather(dense as f64, expert as f64, sent as f64);
        let forward = c.forward.total().seconds();
        Time::from_seconds(if self.problem.framework.overlap.parameter_gather {
            self.pricer.fabric().beside(seconds, forward)
        } else {
            seconds
        })
    }
}
