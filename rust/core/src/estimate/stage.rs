//! One pipeline stage: its layers as differences of prefix sums, its memory, and the end of its step.

use super::layer::Pricer;
use super::memory::{self, Holdings};
use super::pipeline::Chunk;
use super::replica::{self, StepEnd};
use super::shard::{End, LayerCost, Shard, Split};
use super::MemoryItems;
use crate::plan::Recompute;
use crate::spec::problem::{Problem, Schedule};
use crate::units::{Bytes, Time};

/// Prices of every layer on one kind of chip under one way of sharding.
#[derive(Clone)]
pub struct Table<'a> {
    pricer: Pricer<'a>,
    problem: &'a Problem,
    kind: usize,
    shard: Shard,
    /// Sums over the layers before each index.
    prefix: Vec<LayerCost>,
    embedding: End,
    head: End,
    tied_parameters: u64,
    /// The largest of any layer.
    widest: Widest,
    capacity: Bytes,
}

/// Largest of each quantity over the model's layers.
#[derive(Clone, Copy, Debug, Default)]
struct Widest {
    kept: Bytes,
    core: Bytes,
    transient: Bytes,
    dense_parameters: u64,
    expert_parameters: u64,
}

/// Where a stage stands and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Pipeline depth.
    pub pp: u64,
    /// Chunks a stage.
    pub vpp: u64,
    /// Schedule.
    pub schedule: Schedule,
    /// Micro-batches of a step.
    pub micro_batches: u64,
    /// Position in the pipeline, from 0.
    pub index: u64,
    /// Layers of one chunk in the stages before this one.
    pub first: u32,
    /// Layers of one chunk of this stage.
    pub layers: u32,
    /// Recompute.
    pub recompute: Recompute,
    /// Layers of a chunk whose activations wait in host memory.
    pub offload: u32,
    /// Optimizer on the host.
    pub optimizer_offload: bool,
}

/// What a stage costs: sums over its chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageCost {
    /// Forward pass of one micro-batch.
    pub forward: Time,
    /// Backward pass of one micro-batch.
    pub backward: Time,
    /// Gradient synchronisation after the last pass.
    pub synchronise: Time,
    /// Optimizer step.
    pub update: Time,
    /// Memory by item.
    pub memory: MemoryItems,
}

impl StageCost {
    /// Work of one micro-batch.
    pub fn busy(&self) -> Time {
        self.forward + self.backward
    }

    /// Work after the last pass.
    pub fn tail(&self) -> Time {
        self.synchronise + self.update
    }
}

/// Where a stage's time goes in one micro-batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// Forward and backward.
    pub passes: Split,
    /// Recompute.
    pub recompute: Split,
    /// Offloaded activations that nothing hides.
    pub offload: Time,
}

impl<'a> Table<'a> {
    /// Prices all layers of the problem's model on chips of group `kind`.
    pub fn new(problem: &'a Problem, kind: usize, shard: Shard) -> Table<'a> {
        let pricer = Pricer::new(problem, kind, shard);
        let model = &problem.model;
        let mut seen = Vec::with_capacity(4);
        let mut prefix = Vec::with_capacity(model.layers as usize + 1);
        let mut sum = LayerCost::default();
        let mut widest = Widest::default();
        prefix.push(sum);
        for index in 0..model.layers {
            let layer_kind = model.layer_kind(index);
            let layer = match seen.iter().find(|(k, _)| *k == layer_kind) {
                Some((_, layer)) => *layer,
                None => {
                    let layer = pricer.layer(layer_kind);
                    seen.push((layer_kind, layer));
                    widest.kept = widest.kept.max(layer.cost.kept);
                    widest.core = widest.core.max(layer.cost.kept - layer.cost.kept_selective);
                    widest.transient = widest.transient.max(layer.transient);
                    widest.dense_parameters =
                        widest.dense_parameters.max(layer.cost.dense_parameters);
                    widest.expert_parameters =
                        widest.expert_parameters.max(layer.cost.expert_parameters);
                    layer
                }
            };
            sum = sum + layer.cost;
            prefix.push(sum);
        }
        let capacity = memory::capacity(
            &problem.cluster.groups[kind].chip,
            &problem.framework,
            problem.options.memory_margin,
        );
        Table {
            embedding: pricer.embedding(),
            head: pricer.head(),
            tied_parameters: pricer.tied_parameters(),
            pricer,
            problem,
            kind,
            shard,
            prefix,
            widest,
            capacity,
        }
    }

    /// The same table as if every layer were the cheapest in each respect: bounds a range of layers wherever it lies.
    pub fn lightest(&self) -> Table<'a> {
        self.repeated(LayerCost::least)
    }

    /// The same table as if every layer were the dearest in each respect.
    pub fn heaviest(&self) -> Table<'a> {
        self.repeated(LayerCost::most)
    }

    fn repeated(&self, pick: fn(LayerCost, LayerCost) -> LayerCost) -> Table<'a> {
        let layers = self.problem.model.layers;
        let layer = (0..layers).map(|i| self.layers(i, 1)).reduce(pick).unwrap_or_default();
        let mut sum = LayerCost::default();
        let mut prefix = vec![sum];
        for _ in 0..layers {
            sum = sum + layer;
            prefix.push(sum);
        }
        Table { prefix, ..self.clone() }
    }

    /// Whether all layers cost the same, so that a stage's cost does not depend on where it begins.
    pub fn uniform(&self) -> bool {
        let first = self.layers(0, 1);
        (1..self.problem.model.layers).all(|i| self.layers(i, 1) == first)
    }

    /// Seconds a layer of forward and backward passes without recompute: the cheapest layer's.
    pub fn unit(&self) -> f64 {
        (0..self.problem.model.layers)
            .map(|i| self.layers(i, 1))
            .map(|l| l.forward.total() + l.input_gradient.total() + l.weight_gradient.total())
            .min()
            .unwrap_or(Time::ZERO)
            .seconds()
    }

    /// What a device of this kind offers to the allocator.
    pub fn capacity(&self) -> Bytes {
        self.capacity
    }

    /// The layers' prices and links.
    pub fn pricer(&self) -> &Pricer<'a> {
        &self.pricer
    }

    fn layers(&self, from: u32, count: u32) -> LayerCost {
        self.prefix[(from + count) as usize] - self.prefix[from as usize]
    }

    /// First layer of a chunk of the stage at `place`.
    fn first_layer(&self, place: &Place, chunk: u64) -> u32 {
        let per_chunk = self.problem.model.layers / place.vpp as u32;
        match place.schedule {
            // The second chunk of a V runs back through the stages.
            Schedule::ZeroBubbleV if chunk == 1 => {
                self.problem.model.layers - place.first - place.layers
            }
            _ => chunk as u32 * per_chunk + place.first,
        }
    }

    /// Whether a chunk holds the embedding, and whether it holds the head.
    fn ends(&self, place: &Place, chunk: u64) -> (bool, bool) {
        let last_stage = match place.schedule {
            Schedule::ZeroBubbleV => 0,
            _ => place.pp - 1,
        };
        (place.index == 0 && chunk == 0, place.index == last_stage && chunk == place.vpp - 1)
    }

    /// Where the time of one micro-batch in a chunk goes.
    pub fn spent(&self, place: &Place, chunk: u64) -> (Chunk, Spent) {
        let from = self.first_layer(place, chunk);
        let all = self.layers(from, place.layers);
        let (embedding, head) = self.ends(place, chunk);
        let mut forward = all.forward;
        let mut input = all.input_gradient;
        let mut weight = all.weight_gradient;
        for end in [embedding.then_some(&self.embedding), head.then_some(&self.head)] {
            if let Some(end) = end {
                forward = forward + end.cost.forward;
                input = input + end.cost.input_gradient;
                weight = weight + end.cost.weight_gradient;
            }
        }
        let recompute = match place.recompute {
            Recompute::None => Split::default(),
            Recompute::Selective => all.recompute_selective,
            Recompute::Block { layers } => {
                self.layers(from, layers.min(place.layers)).recompute_full
            }
            Recompute::Uniform { .. } => all.recompute_full,
        };
        // Each direction crosses PCIe once a micro-batch, behind the chunk's own passes.
        let moved = self.offloaded_bytes(place, chunk).0 as f64;
        let wire = self.problem.cluster.groups[self.kind].chip.host.pcie_gb_per_s * 1e9;
        let transfer = Time::from_seconds(moved / wire);
        let backward = input.total() + weight.total() + recompute.total();
        let (out, back) = (transfer.beyond(forward.total()), transfer.beyond(backward));
        let chunk = Chunk {
            forward: forward.total() + out,
            input_gradient: input.total() + recompute.total() + back,
            weight_gradient: weight.total(),
        };
        (chunk, Spent { passes: forward + input + weight, recompute, offload: out + back })
    }

    /// Times of one chunk.
    pub fn chunk(&self, place: &Place, chunk: u64) -> Chunk {
        self.spent(place, chunk).0
    }

    /// Activations of one micro-batch that a chunk keeps on the device.
    fn kept(&self, place: &Place, chunk: u64) -> Bytes {
        let from = self.first_layer(place, chunk);
        let all = self.layers(from, place.layers);
        let layers = match place.recompute {
            Recompute::None => all.kept,
            Recompute::Selective => all.kept_selective,
            Recompute::Block { layers } => {
                let n = layers.min(place.layers);
                self.layers(from, n).kept_input + self.layers(from + n, place.layers - n).kept
            }
            Recompute::Uniform { layers } => {
                let groups = u64::from(place.layers.div_ceil(layers.max(1)));
                self.layers(from, 1).kept_input * groups
            }
        };
        let (embedding, head) = self.ends(place, chunk);
        let mut kept = layers.beyond(self.offloaded_bytes(place, chunk));
        if embedding {
            kept += self.embedding.cost.kept;
        }
        if head {
            kept += self.head.cost.kept;
        }
        kept
    }

    /// Activations of one micro-batch that wait in host memory: of the chunk's last layers, which are not recomputed.
    fn offloaded_bytes(&self, place: &Place, chunk: u64) -> Bytes {
        if place.offload == 0 {
            return Bytes::ZERO;
        }
        let n = place.offload.min(place.layers);
        let last = self.layers(self.first_layer(place, chunk) + place.layers - n, n);
        match place.recompute {
            Recompute::None => last.kept,
            Recompute::Selective => last.kept_selective,
            Recompute::Block { layers } => {
                let whole = n.min(place.layers - layers.min(place.layers));
                let from = self.first_layer(place, chunk) + place.layers;
                self.layers(from - whole, whole).kept + self.layers(from - n, n - whole).kept_input
            }
            Recompute::Uniform { .. } => last.kept_input,
        }
    }

    /// Parameters on this rank: dense, expert, and those tied to another stage.
    fn parameters(&self, place: &Place) -> (u64, u64, u64) {
        let (mut dense, mut expert, mut tied) = (0, 0, 0);
        for chunk in 0..place.vpp {
            let layers = self.layers(self.first_layer(place, chunk), place.layers);
            dense += layers.dense_parameters;
            expert += layers.expert_parameters;
            let (embedding, head) = self.ends(place, chunk);
            if embedding {
                dense += self.embedding.cost.dense_parameters;
            }
            if head {
                dense += self.head.cost.dense_parameters;
            }
            let elsewhere = match place.schedule {
                Schedule::ZeroBubbleV => false,
                _ => place.pp > 1,
            };
            if elsewhere && (embedding || head) {
                tied += self.tied_parameters;
                if head {
                    dense += self.tied_parameters;
                }
            }
        }
        (dense, expert, tied)
    }

    /// Everything about a stage that the search needs.
    pub fn stage(&self, place: &Place) -> StageCost {
        let (mut forward, mut backward) = (Time::ZERO, Time::ZERO);
        let in_flight = memory::in_flight(
            place.schedule,
            place.pp,
            place.vpp,
            place.index,
            place.micro_batches,
        );
        let mut activations = Bytes::ZERO;
        let mut logits = Bytes::ZERO;
        for chunk in 0..place.vpp {
            let times = self.chunk(place, chunk);
            forward += times.forward;
            backward += times.backward();
            activations += self.kept(place, chunk) * in_flight.of_chunk(chunk);
            if self.ends(place, chunk).1 {
                logits = self.head.logits;
            }
        }
        let (dense_parameters, expert_parameters, tied_parameters) = self.parameters(place);
        let boundary = if place.pp > 1 { self.pricer.boundary_bytes() } else { 0.0 };
        let held = Holdings {
            dense_parameters,
            expert_parameters,
            layer_parameters: (self.widest.dense_parameters, self.widest.expert_parameters),
            activations,
            logits,
            working_set: self.working_set(place),
            boundary: Bytes::from_f64(boundary),
        };
        // With several chunks the last one's gradients are ready while the others still run.
        let rounds = 1 + (place.vpp - 1) * place.pp;
        let window = |time: Time| Time(time.0 / place.vpp) * rounds;
        let end = StepEnd {
            dense_parameters,
            expert_parameters,
            tied_parameters,
            layers: u64::from(place.layers) * place.vpp,
            backward_window: window(backward),
            forward_window: window(forward),
        };
        let framework = &self.problem.framework;
        let chip = &self.problem.cluster.groups[self.kind].chip;
        StageCost {
            forward,
            backward,
            synchronise: replica::synchronise(&end, &self.shard, framework, self.pricer.fabric()),
            update: replica::update(&end, &self.shard, place.optimizer_offload, framework, chip),
            memory: memory::items(&held, &self.shard, place.optimizer_offload, framework),
        }
    }

    /// Tensors that live only while one layer runs: its transients, what recompute brings back, and two layers on their
    /// way to or from the host.
    fn working_set(&self, place: &Place) -> Bytes {
        let again = match place.recompute {
            Recompute::None => Bytes::ZERO,
            Recompute::Selective => self.widest.core,
            Recompute::Block { .. } => self.widest.kept,
            Recompute::Uniform { layers } => self.widest.kept * u64::from(layers.min(place.layers)),
        };
        let travelling = if place.offload > 0 { self.widest.kept * 2 } else { Bytes::ZERO };
        self.widest.transient + again + travelling
    }
}
