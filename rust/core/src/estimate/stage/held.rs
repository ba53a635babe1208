//! What a stage holds: parameters, activations of the micro-batches in flight, and what is there only at times.

use super::super::memory::{self, Holdings, MemoryItems};
use super::super::replica::Groups;
use super::super::shard::Uneven;
use super::{Place, Table};
use crate::plan::Recompute;
use crate::spec::problem::Schedule;
use crate::units::Bytes;

impl Table<'_> {
    /// Share of what each chunk keeps that waits in host memory, if that is not told in layers.
    pub(super) fn offloaded_share(&self) -> f64 {
        self.problem.framework.held.offloaded_share
    }

    /// Whether tensors wait in host memory by their names.
    pub(super) fn offloads_tensors(&self) -> bool {
        self.problem.framework.held.offloaded.any()
    }

    /// Activations of one micro-batch that the layers of a chunk keep, wherever they wait.
    fn kept_of_layers(&self, place: &Place, chunk: u64) -> Bytes {
        let (from, count) = self.range(place, chunk);
        let all = self.layers(from, count);
        match place.recompute {
            Recompute::None => all.kept,
            Recompute::Selective => all.kept_selective,
            Recompute::Block { layers } => {
                let n = layers.min(count);
                self.layers(from, n).kept_input + self.layers(from + n, count - n).kept
            }
            Recompute::Uniform { layers } => {
                let groups = u64::from(count.div_ceil(layers.max(1)));
                let inputs = self.layers(from, count.min(1)).kept_input * groups;
                // Keys and values are returned for each layer, also inside a group.
                inputs + self.widest.returned * (u64::from(count) - groups)
            }
            Recompute::Parts(parts) => self.parts(parts, place, chunk).kept,
        }
    }

    /// What of the same the rank with most tokens has beyond the mean, of layers that do not wait on the host.
    fn uneven(&self, place: &Place, chunk: u64) -> Uneven {
        let (from, count) = self.range(place, chunk);
        let here = count - place.offload.min(count);
        match place.recompute {
            Recompute::None => self.layers(from, here).uneven[0],
            Recompute::Selective => self.layers(from, here).uneven[1],
            Recompute::Block { layers } => {
                let n = layers.min(here);
                self.layers(from + n, here - n).uneven[0]
            }
            Recompute::Uniform { .. } => Uneven::default(),
            Recompute::Parts(parts) => self.parts(parts, place, chunk).uneven,
        }
    }

    /// What routers hold of a chunk's layers after their last pass, which were computed again as a whole.
    fn held_balancing(&self, place: &Place, chunk: u64) -> Bytes {
        let (from, count) = self.range(place, chunk);
        let again = match place.recompute {
            Recompute::Uniform { .. } => count,
            Recompute::Block { layers } => layers.min(count),
            Recompute::None | Recompute::Selective | Recompute::Parts(_) => 0,
        };
        self.layers(from, again).held_balancing
    }

    /// Activations of one micro-batch that a chunk keeps on the device.
    fn kept(&self, place: &Place, chunk: u64) -> Bytes {
        let layers = self.kept_of_layers(place, chunk);
        let (embedding, head) = place.ends(chunk);
        let mut kept = layers.beyond(self.offloaded_bytes(place, chunk));
        if embedding {
            kept += self.embedding.cost.kept;
        }
        if head {
            kept += self.head.cost.kept;
        }
        kept
    }

    /// Activations of one micro-batch that wait in host memory: a share of what the chunk keeps, or of its last layers, which are
    /// not recomputed.
    pub(super) fn offloaded_bytes(&self, place: &Place, chunk: u64) -> Bytes {
        if self.offloads_tensors() && place.recompute == Recompute::Selective {
            let (from, count) = self.range(place, chunk);
            return self.layers(from, count).kept_offloaded;
        }
        let share = self.offloaded_share();
        if share > 0.0 {
            return Bytes::from_f64(self.kept_of_layers(place, chunk).0 as f64 * share);
        }
        if place.offload == 0 {
            return Bytes::ZERO;
        }
        let (from, count) = self.range(place, chunk);
        let (n, end) = (place.offload.min(count), from + count);
        let last = self.layers(end - n, n);
        match place.recompute {
            Recompute::None => last.kept,
            Recompute::Selective => last.kept_selective,
            Recompute::Block { layers } => {
                let whole = n.min(count - layers.min(count));
                self.layers(end - whole, whole).kept + self.layers(end - n, n - whole).kept_input
            }
            Recompute::Uniform { .. } => last.kept_input,
            // No plan has both.
            Recompute::Parts(_) => Bytes::ZERO,
        }
    }

    /// Of a stage's parameters, dense, expert and of embedding and head, those that ZeRO leaves whole.
    fn whole_parameters(&self, place: &Place) -> (u64, u64, u64) {
        let (mut dense, mut expert, mut ends) = (0, 0, 0);
        for chunk in 0..place.vpp {
            let (from, count) = self.range(place, chunk);
            let layers = self.layers(from, count);
            dense += layers.dense_whole;
            expert += layers.expert_whole;
            let (embedding, head) = place.ends(chunk);
            ends += if embedding { self.embedding.cost.dense_whole } else { 0 };
            ends += if head { self.head.cost.dense_whole } else { 0 };
        }
        (dense, expert, ends)
    }

    /// Parameters on this rank: dense, expert, those tied to another stage, and of the dense ones those of embedding and head.
    pub(super) fn parameters(&self, place: &Place) -> (u64, u64, u64, u64) {
        let (mut dense, mut expert, mut tied, mut ends) = (0, 0, 0, 0);
        for chunk in 0..place.vpp {
            let (from, count) = self.range(place, chunk);
            let layers = self.layers(from, count);
            dense += layers.dense_parameters;
            expert += layers.expert_parameters;
            let (embedding, head) = place.ends(chunk);
            if embedding {
                ends += self.embedding.cost.dense_parameters;
            }
            if head {
                ends += self.head.cost.dense_parameters;
            }
            let elsewhere = match place.schedule {
                Schedule::ZeroBubbleV => false,
                _ => place.pp > 1,
            };
            if elsewhere && (embedding || head) {
                tied += self.tied_parameters;
                if head {
                    ends += self.tied_parameters;
                }
            }
        }
        (dense + ends, expert, tied, ends)
    }

    /// Dense parameters that a stage's head reads, the embedding's with them where they are one.
    fn head_parameters(&self, place: &Place) -> u64 {
        let has = (0..place.vpp).any(|chunk| place.ends(chunk).1);
        if has {
            self.head.cost.dense_parameters + self.tied_parameters
        } else {
            0
        }
    }

    /// Whether a pass of another micro-batch runs beside each pass, to hide the exchange of experts.
    fn overlaps_passes(&self) -> bool {
        self.problem.framework.overlap.expert && self.pricer.shard().ep > 1
    }

    /// What the layer that is on its way forward keeps while another's backward pass still has all that it reads.
    fn layer_beside(&self, place: &Place) -> Bytes {
        let one = place.micro_batches == 1 || self.problem.framework.held.overlapped_pass;
        if one || !self.overlaps_passes() {
            return Bytes::ZERO;
        }
        match place.recompute {
            Recompute::None | Recompute::Block { .. } => self.widest.kept,
            Recompute::Selective => self.widest.kept.beyond(self.widest.core),
            Recompute::Uniform { .. } | Recompute::Parts(_) => self.widest.kept_input,
        }
    }

    /// Whether a stage fits in memory.
    pub fn fits(&self, place: &Place) -> bool {
        self.memory(place).allocated() <= self.capacity
    }

    /// Whether a stage could fit if only one layer's input were kept of each chunk pass: no recompute needs less.
    pub fn could_fit(&self, place: &Place) -> bool {
        let frugal = Place { recompute: Recompute::Uniform { layers: place.layers }, ..*place };
        let items = self.memory(&frugal);
        // Grouped recompute brings back every layer of its group; the transients alone are the least.
        let spare = self.widest.kept * u64::from(place.layers);
        items.allocated().beyond(spare) <= self.capacity
    }

    /// Memory of a stage by item.
    pub fn memory(&self, place: &Place) -> MemoryItems {
        let in_flight = memory::in_flight(
            place.schedule,
            place.pp,
            place.vpp,
            place.index,
            place.micro_batches,
        )
        .and_more(
            u64::from(self.problem.framework.held.overlapped_pass && self.overlaps_passes()),
            place.micro_batches,
        );
        let places = self.buffered(place);
        let held_of = |chunk| in_flight.of_chunk(chunk).max(places.unwrap_or(0));
        let uneven = (0..place.vpp).map(|chunk| (self.uneven(place, chunk), held_of(chunk)));
        let here = 1.0 - self.offloaded_share();
        let mut activations = Bytes::from_f64(Uneven::bytes(uneven).0 as f64 * here);
        activations += self.layer_beside(place);
        let (mut logits, mut cached_logits) = (Bytes::ZERO, Bytes::ZERO);
        for chunk in 0..place.vpp {
            activations += self.kept(place, chunk) * held_of(chunk);
            if place.ends(chunk).1 {
                (logits, cached_logits) = (self.head.logits, self.head.cached);
            }
        }
        let (dense_parameters, expert_parameters, _, end_parameters) = self.parameters(place);
        let (dense_whole, expert_whole, whole_end_parameters) = self.whole_parameters(place);
        let boundary = if place.pp > 1 { self.pricer.boundary_bytes() } else { 0.0 };
        let (unit, held) = (self.widest.gathered, &self.problem.framework.held);
        let held = Holdings {
            dense_parameters,
            expert_parameters,
            whole_parameters: (dense_whole, expert_whole),
            whole_end_parameters,
            regathered_parameters: self.regathered(place),
            end_parameters,
            head_parameters: self.head_parameters(place),
            gathered_parameters: held
                .gathered_parameters(unit, dense_parameters + expert_parameters),
            unreduced_parameters: unit,
            reduced_parameters: dense_parameters + expert_parameters,
            cast_sixteenths: memory::cast_sixteenths(
                &self.problem.framework,
                self.problem.workload.precision,
                self.problem.cluster.groups[self.kind].chip.gemm.fp8_any_layout,
            ),
            narrow_weights: memory::narrow_weights(
                &self.problem.framework,
                self.problem.workload.precision,
            ),
            activations,
            held_balancing: (0..place.vpp).map(|chunk| self.held_balancing(place, chunk)).sum(),
            logits,
            cached_logits,
            working_set: self.working_set(place),
            boundary: Bytes::from_f64(boundary),
            messages: place.micro_batches * self.arrivals(place),
            single: place.micro_batches == 1,
            uncast: self.uncast(place),
            casts: places.map_or(Bytes::ZERO, |places| {
                self.casts(dense_parameters + expert_parameters - end_parameters) * places
            }),
        };
        memory::items(&held, &self.shard, place.optimizer_offload, &self.problem.framework)
            .within(Bytes::from_gib(self.problem.cluster.groups[self.kind].chip.memory_gib))
    }

    /// Messages of one micro-batch that arrive at a stage: activations for every chunk but the model's first, gradients for every one
    /// but its last.
    fn arrivals(&self, place: &Place) -> u64 {
        (0..place.vpp)
            .map(|chunk| {
                let (first, last) = place.ends(chunk);
                u64::from(!first) + u64::from(!last)
            })
            .sum()
    }

    /// Micro-batches for which a stage has places, whether they are in flight or not, where the framework plans its buffers
    /// before it starts: `2 pp` between forward and backward pass, on every stage but that of the loss, where gradients are
    /// accumulated (Oneflow-Inc/oneflow, oneflow/core/job_rewriter/pipeline_buffer_pass.cpp).
    fn buffered(&self, place: &Place) -> Option<u64> {
        let planned = self.problem.framework.held.stage_buffers;
        (planned && place.micro_batches > 1 && place.index + 1 < place.pp).then_some(2 * place.pp)
    }

    /// Bytes of so many weights as they are cast for the products of one micro-batch; none where they are stored as they are read.
    fn casts(&self, weights: u64) -> Bytes {
        let width = self.problem.workload.precision.activation_bytes();
        let cast = self.problem.framework.casts_weights;
        if cast {
            Bytes::from_f64(weights as f64 * width)
        } else {
            Bytes::ZERO
        }
    }

    /// Bytes of casts that are counted with an embedding's parameters but not made.
    fn uncast(&self, place: &Place) -> Bytes {
        let first = (0..place.vpp).any(|chunk| place.ends(chunk).0);
        memory::uncast(self.problem, if first { self.embedding.cost.dense_parameters } else { 0 })
    }

    /// The groups in which a stage's gradients are summed, where their places are given.
    pub(super) fn groups(&self, place: &Place) -> Option<Groups> {
        let places = &self.problem.framework.fused_reduce_places;
        if places.is_empty() || self.shard.zero > 0 {
            return None;
        }
        let mut parameters = Vec::new();
        for chunk in 0..place.vpp {
            let (from, count) = self.range(place, chunk);
            let (embedding, head) = place.ends(chunk);
            if embedding {
                parameters.extend(self.shard.embedding_tensors(&self.problem.model));
            }
            for layer in from..from + count {
                let kind = self.problem.model.layer_kind(layer);
                parameters.extend(
                    self.problem.model.layer_tensors(kind).iter().map(|t| self.shard.owned(t)),
                );
            }
            if head {
                parameters.extend(self.shard.head_tensors(&self.problem.model));
            }
        }
        Some(Groups::of(places, parameters.into_iter()))
    }

    /// Tensors that live only while one layer runs: its transients, what recompute brings back, and two layers on their
    /// way to or from the host, or of a pipeline the shares of two chunks (kwai/Megatron-Kwai,
    /// megatron/core/pipeline_parallel/offload.py: a buffer to leave, and one to come back into while the other is read).
    fn working_set(&self, place: &Place) -> Bytes {
        let again = match place.recompute {
            Recompute::None => Bytes::ZERO,
            Recompute::Selective => self.widest.core,
            Recompute::Block { .. } => self.widest.kept,
            Recompute::Uniform { layers } => self.widest.kept * u64::from(layers.min(place.layers)),
            Recompute::Parts(parts) => self.parts_brought_back(parts, place.vpp),
        };
        let layer = match place.recompute {
            Recompute::Uniform { .. } => self.widest.kept_input,
            Recompute::None
            | Recompute::Selective
            | Recompute::Block { .. }
            | Recompute::Parts(_) => self.widest.kept,
        };
        let travelling = if self.offloaded_share() > 0.0 && place.pp > 1 {
            let shares = (0..place.vpp).map(|chunk| self.offloaded_bytes(place, chunk));
            shares.max().unwrap_or_default() * 2
        } else if self.offloads_tensors() && place.recompute == Recompute::Selective {
            self.widest.offloaded * 2
        } else if place.offload > 0 || self.offloaded_share() > 0.0 {
            layer * 2
        } else {
            Bytes::ZERO
        };
        self.widest.transient + again + travelling
    }
}
