//! One pipeline stage: its layers as differences of prefix sums, and the end of its step.

mod held;
mod parts;

use super::block;
use super::host::Beginning;
use super::layer::Pricer;
use super::least::{Least, Prices};
use super::memory::{self, MemoryItems};
use super::pipeline::{sends, Chunk, Sends};
use super::repeats::Layer;
use super::replica::{self, Rates, StepEnd};
use super::shard::{End, LayerCost, Shard, Split, Totals};
use crate::plan::Recompute;
use crate::spec::model::LayerKind;
use crate::spec::problem::{Problem, Schedule};
use crate::units::{Bytes, Time};

/// Prices of every layer on one kind of chip under one way of sharding.
#[derive(Clone)]
pub struct Table<'a> {
    pricer: Pricer<'a>,
    problem: &'a Problem,
    kind: usize,
    shard: Shard,
    /// The distinct layers, and which of them each layer is.
    layer_kinds: Vec<Layer>,
    kind_of: Vec<u8>,
    /// Sums over the layers before each index.
    prefix: Vec<Totals>,
    /// The cheapest layer's passes.
    unit: Time,
    embedding: End,
    head: End,
    embedding_totals: Totals,
    head_totals: Totals,
    rates: Rates,
    /// Under which the step may end as well, if that is sooner.
    other_rates: Vec<Rates>,
    tied_parameters: u64,
    /// The largest of any layer.
    widest: Widest,
    capacity: Bytes,
    /// How passes begin, and how where a message blocks a stage before them.
    beginnings: [Beginning; 2],
}

/// Largest of each quantity over the model's layers.
#[derive(Clone, Copy, Debug, Default)]
struct Widest {
    kept: Bytes,
    kept_input: Bytes,
    offloaded: Bytes,
    core: Bytes,
    transient: Bytes,
    gathered: u64,
    returned: Bytes,
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
    /// Places for layers in one chunk of every stage together: the model's layers over vpp, and more where the embedding or the
    /// head takes the place of layers.
    pub row: u32,
    /// Places that the embedding takes in the first chunk.
    pub lead: u32,
    /// Places of one chunk in the stages before this one.
    pub first: u32,
    /// Places of one chunk of this stage.
    pub layers: u32,
    /// Recompute.
    pub recompute: Recompute,
    /// Layers of a chunk whose activations wait in host memory.
    pub offload: u32,
    /// Optimizer on the host.
    pub optimizer_offload: bool,
}

impl Place {
    /// Layers of a chunk in a model of `all`: the first and how many.
    pub fn range(&self, all: u32, chunk: u64) -> (u32, u32) {
        let slot = match self.schedule {
            // The second chunk of a V runs back through the stages.
            Schedule::ZeroBubbleV if chunk == 1 => all - self.first - self.layers,
            _ => chunk as u32 * self.row + self.first,
        };
        let layer = |slot: u32| slot.saturating_sub(self.lead).min(all);
        (layer(slot), layer(slot + self.layers) - layer(slot))
    }

    /// Whether a chunk holds the embedding, and whether it holds the head.
    pub fn ends(&self, chunk: u64) -> (bool, bool) {
        let last_stage = match self.schedule {
            Schedule::ZeroBubbleV => 0,
            _ => self.pp - 1,
        };
        (self.index == 0 && chunk == 0, self.index == last_stage && chunk == self.vpp - 1)
    }
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
        let mut seen: Vec<LayerKind> = Vec::new();
        let mut layer_kinds: Vec<Layer> = Vec::new();
        let mut kind_of = Vec::with_capacity(model.layers as usize);
        for index in 0..model.layers {
            let layer_kind = model.layer_kind(index);
            let place = seen.iter().position(|k| *k == layer_kind).unwrap_or_else(|| {
                seen.push(layer_kind);
                layer_kinds.push(block::price(&pricer, layer_kind));
                seen.len() - 1
            });
            kind_of.push(place as u8);
        }
        let totals: Vec<Totals> = layer_kinds.iter().map(|l| Totals::from(&l.cost)).collect();
        let prefix = prefix_sums(kind_of.iter().map(|&k| totals[k as usize]));
        let widest = layer_kinds.iter().fold(Widest::default(), |w, layer| {
            let c = &layer.cost;
            Widest {
                kept: w.kept.max(layer.widest),
                kept_input: w.kept_input.max(c.kept_input),
                offloaded: w.offloaded.max(c.kept_offloaded),
                core: w.core.max(layer.core),
                transient: w.transient.max(layer.transient),
                gathered: w.gathered.max(layer.gathered),
                returned: w.returned.max(layer.returned),
            }
        });
        let chip = &problem.cluster.groups[kind].chip;
        let (embedding, head) = (pricer.embedding(), pricer.head());
        Table {
            unit: totals.iter().map(Totals::passes).min().unwrap_or(Time::ZERO),
            layer_kinds,
            kind_of,
            prefix,
            embedding,
            head,
            embedding_totals: Totals::from(&embedding.cost),
            head_totals: Totals::from(&head.cost),
            tied_parameters: pricer.tied_parameters(),
            rates: Rates::new(problem, kind, &shard, pricer.fabric()),
            other_rates: Vec::new(),
            pricer,
            problem,
            kind,
            shard,
            widest,
            beginnings: [false, true].map(|messages| {
                Beginning::of(
                    &problem.framework,
                    &problem.model,
                    chip.host.pace,
                    shard.tp,
                    messages,
                )
            }),
            capacity: memory::capacity(
                chip,
                &problem.framework,
                &shard,
                problem.options.memory_margin,
            ),
        }
    }

    /// Lets steps end as under any of some shardings too.
    pub fn may_end_as(&mut self, shards: &[Shard]) {
        let rates = |shard| Rates::new(self.problem, self.kind, shard, self.pricer.fabric());
        self.other_rates = shards.iter().map(rates).collect();
    }

    /// The same table as if every layer were the cheapest in each respect: bounds a range of layers wherever it lies.
    pub fn lightest(&self) -> Table<'a> {
        self.repeated(Totals::least)
    }

    /// The same table as if every layer were the dearest in each respect.
    pub fn heaviest(&self) -> Table<'a> {
        self.repeated(Totals::most)
    }

    fn repeated(&self, pick: fn(Totals, Totals) -> Totals) -> Table<'a> {
        let kinds = self.layer_kinds.iter().map(|l| Totals::from(&l.cost));
        let layer = kinds.reduce(pick).unwrap_or_default();
        let layers = self.problem.model.layers as usize;
        Table { prefix: prefix_sums(std::iter::repeat_n(layer, layers)), ..self.clone() }
    }

    /// What any stage costs at least.
    pub fn least(&self) -> Least {
        let layers: Vec<(Layer, u64)> = self
            .layer_kinds
            .iter()
            .enumerate()
            .map(|(n, layer)| {
                let count = self.kind_of.iter().filter(|&&k| usize::from(k) == n).count();
                (*layer, count as u64)
            })
            .collect();
        let boundary = self.pricer.boundary_bytes();
        let message = self.pricer.least_message();
        let prices = Prices { layers, ends: [self.embedding, self.head], boundary, message };
        Least::of(self.problem, self.kind, &self.shard, &prices)
    }

    /// Which of the distinct layers each layer is.
    pub fn kind_of(&self) -> &[u8] {
        &self.kind_of
    }

    /// Whether all layers cost the same, so that a stage's cost does not depend on where it begins.
    pub fn uniform(&self) -> bool {
        self.layer_kinds.len() == 1
    }

    /// Seconds a layer of forward and backward passes without recompute: the cheapest layer's.
    pub fn unit(&self) -> f64 {
        self.unit.seconds()
    }

    /// What selective and full recompute add to the passes of the first layer.
    pub fn again(&self) -> [Time; 2] {
        let layer = self.layers(0, 1);
        [layer.recompute_selective, layer.recompute_full]
    }

    /// What a device of this kind offers to the allocator.
    pub fn capacity(&self) -> Bytes {
        self.capacity
    }

    /// The layers' prices and links.
    pub fn pricer(&self) -> &Pricer<'a> {
        &self.pricer
    }

    /// Sums over layers. Whoever asks needs few of them: the others are never read where this is inlined.
    #[inline(always)]
    fn layers(&self, from: u32, count: u32) -> Totals {
        if self.uniform() {
            return self.prefix[count as usize];
        }
        self.prefix[(from + count) as usize] - self.prefix[from as usize]
    }

    fn layer(&self, index: u32) -> &Layer {
        &self.layer_kinds[usize::from(self.kind_of[index as usize])]
    }

    /// First layer of a chunk of the stage at `place`, and how many it holds.
    fn range(&self, place: &Place, chunk: u64) -> (u32, u32) {
        place.range(self.problem.model.layers, chunk)
    }

    /// Passes of one layer, nothing recomputed.
    pub fn layer_passes(&self, index: u32) -> Chunk {
        let Totals { forward, input_gradient, weight_gradient, .. } = self.layers(index, 1);
        Chunk { forward, input_gradient, weight_gradient }
    }

    /// Times of one chunk.
    pub fn chunk(&self, place: &Place, chunk: u64) -> Chunk {
        let (from, count) = self.range(place, chunk);
        let all = self.layers(from, count);
        let (embedding, head) = place.ends(chunk);
        let beginning = self.beginning(place);
        let mut passes = Chunk {
            forward: beginning.forward + all.forward,
            input_gradient: beginning.backward + all.input_gradient,
            weight_gradient: all.weight_gradient,
        };
        let ends = [embedding.then_some(&self.embedding_totals), head.then_some(&self.head_totals)];
        for end in ends.into_iter().flatten() {
            passes.forward += end.forward;
            passes.input_gradient += end.input_gradient;
            passes.weight_gradient += end.weight_gradient;
        }
        passes.input_gradient += match place.recompute {
            Recompute::None => Time::ZERO,
            Recompute::Selective => all.recompute_selective,
            Recompute::Block { layers } => self.layers(from, layers.min(count)).recompute_full,
            Recompute::Uniform { .. } => all.recompute_full,
            Recompute::Parts(parts) => {
                let cost = self.parts(parts, place, chunk);
                passes.forward += cost.gather;
                cost.again.total() + cost.gather
            }
        };
        if place.offload > 0 || self.offloaded_share() > 0.0 || self.offloads_tensors() {
            let (out, back) = self.offload_beyond(place, chunk, &passes);
            passes.forward += out;
            passes.input_gradient += back;
        }
        if place.optimizer_offload {
            passes.weight_gradient += self.gradients_beyond(place, chunk, &passes);
        }
        passes
    }

    /// How the passes of a chunk begin.
    fn beginning(&self, place: &Place) -> Beginning {
        let blocks = || sends(self.problem, place.schedule) == Sends::Blocking;
        self.beginnings[usize::from(place.pp > 1 && blocks())]
    }

    /// What crossing PCIe once in each direction adds to a chunk's passes: from pinned memory what is longer than these, else
    /// all of it, as the process waits for each copy (microsoft/DeepSpeed, runtime/activation_checkpointing/checkpointing.py:
    /// `partition.cpu()`, `copy_to_device` and back).
    fn offload_beyond(&self, place: &Place, chunk: u64, passes: &Chunk) -> (Time, Time) {
        let moved = self.offloaded_bytes(place, chunk).0 as f64;
        let offload = &self.problem.framework.offload;
        let wire = offload.wire(&self.problem.cluster.groups[self.kind].chip.host);
        let transfer = Time::from_seconds(moved / wire);
        if offload.pinned {
            (transfer.beyond(passes.forward), transfer.beyond(passes.backward()))
        } else {
            (transfer, transfer)
        }
    }

    /// What a chunk's gradients add to its backward pass where the host holds their sums: all that they take to cross, or from
    /// pinned memory what is longer than the pass. Where the schedule lets them wait, they are there in their own part of it, and
    /// cross behind that alone: the stage before does not wait for them.
    fn gradients_beyond(&self, place: &Place, chunk: u64, passes: &Chunk) -> Time {
        let framework = &self.problem.framework;
        let (from, count) = self.range(place, chunk);
        let layers = self.layers(from, count);
        let (embedding, head) = place.ends(chunk);
        let ends = [embedding.then_some(&self.embedding), head.then_some(&self.head)];
        let dense = ends.into_iter().flatten().map(|end| end.cost.dense_parameters).sum::<u64>();
        let crossing = Time::from_seconds(
            self.rates.crossing(layers.dense_parameters + dense, layers.expert_parameters),
        );
        if framework.offload.pinned && framework.overlap.reduces(self.shard.zero) {
            let waits = matches!(place.schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
            crossing.beyond(if waits { passes.weight_gradient } else { passes.backward() })
        } else {
            crossing
        }
    }

    /// Where the time of one micro-batch in a chunk goes: the causes add up to [`Table::chunk`].
    pub fn spent(&self, place: &Place, chunk: u64) -> Spent {
        let (from, count) = self.range(place, chunk);
        let layers = |count: u32| {
            self.kind_of[from as usize..(from + count) as usize]
                .iter()
                .map(|&k| self.layer_kinds[k as usize].cost)
                .fold(LayerCost::default(), |sum, cost| sum + cost)
        };
        let mut all = layers(count);
        let recompute = match place.recompute {
            Recompute::None => Split::default(),
            Recompute::Selective => all.recompute_selective,
            Recompute::Block { layers: n } => layers(n.min(count)).recompute_full,
            Recompute::Uniform { .. } => all.recompute_full,
            Recompute::Parts(parts) => {
                let cost = self.parts(parts, place, chunk);
                let gathers = Split { shard: cost.gather, ..Split::default() };
                all.forward = all.forward + gathers;
                cost.again + gathers
            }
        };
        let (embedding, head) = place.ends(chunk);
        let ends = [embedding.then_some(&self.embedding), head.then_some(&self.head)];
        for end in ends.into_iter().flatten() {
            all = all + end.cost;
        }
        let mut passes = all.forward + all.input_gradient + all.weight_gradient;
        let beginning = self.beginning(place);
        passes.compute += beginning.forward + beginning.backward;
        let whole = self.chunk(place, chunk);
        let offload = (whole.forward + whole.backward()).beyond(passes.total() + recompute.total());
        Spent { passes, recompute, offload }
    }

    /// Everything about a stage that the search needs.
    pub fn stage(&self, place: &Place) -> StageCost {
        StageCost { memory: self.memory(place), ..self.in_unlimited_memory(place) }
    }

    /// The same without its memory, which is quicker to say.
    pub fn in_unlimited_memory(&self, place: &Place) -> StageCost {
        let (mut forward, mut backward, mut last) = (Time::ZERO, Time::ZERO, Time::ZERO);
        for chunk in 0..place.vpp {
            let times = self.chunk(place, chunk);
            if chunk == 0 {
                last = times.backward();
            }
            forward += times.forward;
            backward += times.backward();
        }
        let (dense_parameters, expert_parameters, tied_parameters, ends) = self.parameters(place);
        // With several chunks the last one's gradients are ready while the others still run.
        let rounds = 1 + (place.vpp - 1) * place.pp;
        let window = |time: Time, rounds: u64| Time(time.0 / place.vpp) * rounds;
        // Of what a stage recomputes only its last pass counts as cover: recompute must not seem to shorten a step
        // because a stage that waits anyway hides more behind it.
        let plain = if place.recompute == Recompute::None || place.vpp == 1 {
            backward
        } else {
            let plain = Place { recompute: Recompute::None, ..*place };
            (0..place.vpp).map(|chunk| self.chunk(&plain, chunk).backward()).sum()
        };
        let end = StepEnd {
            dense_parameters,
            ends,
            expert_parameters,
            regathered: self.regathered(place),
            tied_parameters,
            layers: (0..place.vpp).map(|chunk| u64::from(self.range(place, chunk).1)).sum(),
            embedding: if place.ends(0).0 { self.embedding.cost.dense_parameters } else { 0 },
            groups: self.groups(place),
            backward_window: last + window(plain, rounds - 1),
            forward_window: window(forward, rounds),
        };
        let after = |rates: &Rates| {
            let synchronise = replica::synchronise(&end, rates, &self.problem.framework);
            (synchronise, replica::update(&end, rates, place.optimizer_offload))
        };
        let (synchronise, update) = self
            .other_rates
            .iter()
            .map(after)
            .fold(after(&self.rates), |a, b| if b.0 + b.1 < a.0 + a.1 { b } else { a });
        StageCost { forward, backward, synchronise, update, memory: MemoryItems::default() }
    }
}

/// Sums before each index, and after the last.
fn prefix_sums(layers: impl Iterator<Item = Totals>) -> Vec<Totals> {
    let mut sum = Totals::default();
    let mut sums = vec![sum];
    for layer in layers {
        sum = sum + layer;
        sums.push(sum);
    }
    sums
}
