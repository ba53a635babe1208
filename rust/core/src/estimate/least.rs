//! What a stage costs at least, before its layers and recompute are chosen: what the search's bounds are made of.
//!
//! Layers of the sort that most of them are count in full; the others count with the time of their passes alone. Every
//! figure is at most what [`super::stage::Table`] gives for any stage that holds as many of them.

use super::block;
use super::collective::Fabric;
use super::host::Beginning;
use super::layer::Pricer;
use super::memory::{self, Holdings};
use super::repeats::Layer;
use super::replica::{self, Rates, StepEnd};
use super::shard::{End, Shard, Totals};
use super::shortest::Shortest;
use crate::spec::framework::Gradients;
use crate::spec::model::LayerKind;
use crate::spec::problem::Problem;
use crate::units::{Bytes, Time};

/// Passes of one micro-batch, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Passes {
    /// Forward.
    pub forward: f64,
    /// Backward, nothing recomputed.
    pub backward: f64,
}

impl Passes {
    fn of(totals: &Totals, count: u64) -> Passes {
        let backward = totals.input_gradient + totals.weight_gradient;
        Passes {
            forward: totals.forward.seconds() * count as f64,
            backward: backward.seconds() * count as f64,
        }
    }

    /// Both.
    pub fn both(self) -> f64 {
        self.forward + self.backward
    }
}

impl Passes {
    /// The shorter of each.
    pub fn min(self, o: Passes) -> Passes {
        Passes { forward: self.forward.min(o.forward), backward: self.backward.min(o.backward) }
    }
}

impl std::ops::Add for Passes {
    type Output = Passes;
    fn add(self, o: Passes) -> Passes {
        Passes { forward: self.forward + o.forward, backward: self.backward + o.backward }
    }
}

/// A quantity that grows with the layers of a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Line {
    /// Without layers.
    pub base: f64,
    /// For each layer.
    pub each: f64,
}

/// The prices of a model's distinct layers, each with how many there are, and of its ends.
#[derive(Clone, Debug)]
pub struct Prices {
    /// The distinct layers.
    pub layers: Vec<(Layer, u64)>,
    /// The embedding, and the head.
    pub ends: [End; 2],
    /// Bytes of one message between stages.
    pub boundary: f64,
    /// Seconds that it takes between neighbours.
    pub message: f64,
}

impl Prices {
    /// On chips of group `kind`.
    pub fn new(problem: &Problem, kind: usize, shard: Shard) -> Prices {
        Prices::of(problem, Pricer::new(problem, kind, shard))
    }

    /// What they are at least with any number of replicas up to so many; `shard` has one.
    pub fn of_few(problem: &Problem, kind: usize, shard: Shard, up_to: u64) -> Prices {
        let pricer = Pricer::new(problem, kind, shard);
        Prices::of(problem, Pricer { up_to: Some(up_to), ..pricer })
    }

    /// The same in any shard group of several ranks, of which `shard` names one.
    pub fn in_any_group(
        problem: &Problem,
        kind: usize,
        shard: Shard,
        up_to: u64,
        shortest: Shortest,
    ) -> Prices {
        let pricer = Pricer::new(problem, kind, shard);
        let (up_to, shortest) = (Some(up_to), Some(shortest));
        Prices::of(problem, Pricer { up_to, shortest, ..pricer })
    }

    fn of(problem: &Problem, pricer: Pricer<'_>) -> Prices {
        let mut sorts: Vec<(LayerKind, u64)> = Vec::new();
        for index in 0..problem.model.layers {
            let sort = problem.model.layer_kind(index);
            match sorts.iter_mut().find(|s| s.0 == sort) {
                Some(known) => known.1 += 1,
                None => sorts.push((sort, 1)),
            }
        }
        Prices {
            layers: sorts.into_iter().map(|(s, n)| (block::price(&pricer, s), n)).collect(),
            ends: [pricer.embedding(), pricer.head()],
            boundary: pricer.boundary_bytes(),
            message: pricer.least_message(),
        }
    }

    fn widest(&self, of: impl Fn(&Layer) -> u64) -> u64 {
        self.layers.iter().map(|l| of(&l.0)).max().unwrap_or(0)
    }

    /// Bytes of `dense` and `expert` parameters with their gradients, optimizer state and buffers; ZeRO leaves `whole` of them as
    /// they are, which may need less where the others lie beside their shards.
    fn resident(
        &self,
        problem: &Problem,
        shard: &Shard,
        (dense, expert, ends): (u64, u64, u64),
        (dense_whole, expert_whole, ends_whole): (u64, u64, u64),
        on_host: bool,
    ) -> f64 {
        let (unit, gathered) = (self.widest(|l| l.gathered), &problem.framework.held);
        let held = Holdings {
            dense_parameters: dense + ends,
            expert_parameters: expert,
            whole_parameters: (dense_whole, expert_whole),
            whole_end_parameters: ends_whole,
            end_parameters: ends,
            // Where a stage with few parameters gathers fewer of them, or copies fewer gradients, none count: the least is a
            // line.
            reduced_parameters: 0,
            gathered_parameters: gathered.gathered_parameters(unit, 0),
            unreduced_parameters: unit,
            cast_sixteenths: memory::cast_sixteenths(
                &problem.framework,
                problem.workload.precision,
                problem.cluster.groups.iter().any(|group| group.chip.gemm.fp8_any_layout),
            ),
            narrow_weights: memory::narrow_weights(&problem.framework, problem.workload.precision),
            boundary: Bytes::from_f64(if shard.pipelined { self.boundary } else { 0.0 }),
            single: problem.workload.global_batch_size == shard.dp * shard.mbs,
            // Of a head as of an embedding, which is the least.
            uncast: memory::uncast(problem, ends),
            ..Holdings::default()
        };
        let items = memory::items(&held, shard, on_host, &problem.framework);
        // Gradients that pass are not there when activations need most, if one micro-batch is all.
        let passing = held.single && problem.framework.held.gradients == Gradients::Passing;
        let gradients = if passing { items.gradients } else { Bytes::ZERO };
        (items.resident() - gradients).0 as f64
    }

    /// The same as a line over the frequent layers.
    fn resident_line(&self, problem: &Problem, shard: &Shard, on_host: bool) -> Line {
        let (layer, most) = self.layers[self.frequent()];
        let cost = &layer.cost;
        let base = self.resident(problem, shard, (0, 0, 0), (0, 0, 0), on_host);
        let parameters = (most * cost.dense_parameters, most * cost.expert_parameters, 0);
        let whole = (most * cost.dense_whole, most * cost.expert_whole, 0);
        let all = self.resident(problem, shard, parameters, whole, on_host);
        Line { base: base - ROUNDED, each: (all - base) / most.max(1) as f64 }
    }

    /// The same with the optimizer on the device and, where that is allowed, on the host.
    fn resident_lines(&self, problem: &Problem, shard: &Shard) -> [Line; 2] {
        on_hosts(problem, |on_host| self.resident_line(problem, shard, on_host))
    }

    /// Passes of a layer of the most frequent sort, of all others together, of the embedding, and of the head.
    fn passes(&self) -> [Passes; 4] {
        let place = self.frequent();
        let of = |layer: &Layer, count| Passes::of(&Totals::from(&layer.cost), count);
        let others = self.layers.iter().enumerate().filter(|&(n, _)| n != place);
        let other = others.fold(Passes::default(), |sum, (_, (layer, n))| sum + of(layer, *n));
        let [first, last] = [0, 1].map(|end| Passes::of(&Totals::from(&self.ends[end].cost), 1));
        [of(&self.layers[place].0, 1), other, first, last]
    }

    /// Layers of the most frequent sort.
    pub fn count_of_frequent(&self) -> u64 {
        self.layers[self.frequent()].1
    }

    /// Seconds of both passes of a layer of the most frequent sort.
    pub fn passes_of_frequent(&self) -> f64 {
        Totals::from(&self.layers[self.frequent()].0.cost).passes().seconds()
    }

    /// Seconds until a layer of that sort has passed on a micro-batch and its gradient.
    pub fn through_frequent(&self) -> f64 {
        let cost = &self.layers[self.frequent()].0.cost;
        (cost.forward.total() + cost.input_gradient.total()).seconds()
    }

    /// Seconds of a layer of that sort's forward pass.
    pub fn forward_of_frequent(&self) -> f64 {
        self.layers[self.frequent()].0.cost.forward.total().seconds()
    }

    /// Seconds of both passes of a layer of the sort that takes least.
    pub fn passes_of_lightest(&self) -> f64 {
        let passes = self.layers.iter().map(|(layer, _)| Totals::from(&layer.cost).passes());
        passes.min().unwrap_or(Time::ZERO).seconds()
    }

    /// Seconds of both passes of all other layers, of the embedding, and of the head.
    pub fn passes_of_rest(&self) -> [f64; 3] {
        let place = self.frequent();
        let others = self.layers.iter().enumerate().filter(|&(n, _)| n != place);
        let others = others.map(|(_, (layer, count))| {
            Totals::from(&layer.cost).passes().seconds() * *count as f64
        });
        let [first, last] = [0, 1].map(|end| Totals::from(&self.ends[end].cost).passes().seconds());
        [others.sum(), first, last]
    }

    fn frequent(&self) -> usize {
        let most = self.layers.iter().map(|l| l.1).max().unwrap_or(0);
        self.layers.iter().position(|l| l.1 == most).unwrap_or(0)
    }
}

/// What holds with the optimizer on the device, and on the host: nothing where it may not be there.
fn on_hosts<T: Default>(problem: &Problem, of: impl Fn(bool) -> T) -> [T; 2] {
    [false, true].map(|on_host| {
        let allowed = !on_host || problem.options.optimizer_offload;
        if allowed {
            of(on_host)
        } else {
            T::default()
        }
    })
}

/// The least of everything on one kind of chip under one way of sharding.
#[derive(Clone, Debug)]
pub struct Least {
    rates: Option<Rates>,
    /// Layers of the most frequent sort, and of all others.
    pub frequent: u64,
    /// Layers of other sorts.
    pub others: u64,
    /// Passes of a frequent layer.
    pub layer: Passes,
    /// Passes of all other layers together.
    pub other: Passes,
    /// Passes of the embedding, and of the head.
    pub ends: [Passes; 2],
    /// Seconds that selective and full recompute add to a frequent layer.
    pub again: [f64; 2],
    /// Bytes that a frequent layer keeps of a micro-batch: everything, without the attention core, its input alone.
    pub kept: [f64; 3],
    /// Bytes that live only while a layer runs: always, and with selective and with full recompute besides.
    pub working: [f64; 3],
    /// Bytes of parameters, gradients, optimizer state and buffers; with the optimizer on the device, and on the host where it
    /// may be there.
    pub resident: [Line; 2],
    /// What the embedding and the head add to them, in the same order.
    pub end_resident: [[f64; 2]; 2],
    /// Bytes that the embedding and the head keep of a micro-batch.
    pub end_kept: [f64; 2],
    /// Bytes of the logits.
    pub logits: f64,
    /// Bytes that the allocator may hand out.
    pub capacity: f64,
    /// Bytes a second to the host.
    pub host: f64,
    /// Seconds of a send to the next stage of the same kind.
    pub send: f64,
    dense: [u64; 3],
    expert: u64,
    /// How a chunk's passes begin, if a message blocked its stage before them: what they take at most beside their layers.
    beginning: Passes,
}

/// Bytes by which rounding up to whole parameters may lift a sum.
const ROUNDED: f64 = 256.0;

impl Least {
    /// Without `rates` the end of the step takes no time, and the model's ends no memory.
    pub fn new(
        problem: &Problem,
        kind: usize,
        shard: &Shard,
        prices: &Prices,
        rates: Option<Rates>,
    ) -> Least {
        let chip = &problem.cluster.groups[kind].chip;
        let place = prices.frequent();
        let (frequent, most) = &prices.layers[place];
        let totals = Totals::from(&frequent.cost);
        let [layer, other, ends @ ..] = prices.passes();
        let working = [
            prices.widest(|l| l.transient.0),
            prices.widest(|l| l.core.0),
            prices.widest(|l| l.widest.0),
        ];
        let dense = [
            totals.dense_parameters,
            prices.ends[0].cost.dense_parameters,
            prices.ends[1].cost.dense_parameters,
        ];
        let resident = prices.resident_lines(problem, shard);
        let end_resident = [1, 2].map(|end| {
            let whole = (0, 0, prices.ends[end - 1].cost.dense_whole);
            on_hosts(problem, |host| {
                if rates.is_none() {
                    return 0.0;
                }
                let bytes = prices.resident(problem, shard, (0, 0, dense[end]), whole, host);
                bytes - resident[usize::from(host)].base - 2.0 * ROUNDED
            })
        });
        let capacity =
            memory::capacity(chip, &problem.framework, shard, problem.options.memory_margin).0
                as f64;
        let Beginning { forward, backward } =
            Beginning::of(&problem.framework, &problem.model, chip.host.pace, shard.tp, true);
        Least {
            rates,
            frequent: *most,
            others: prices.layers.iter().map(|l| l.1).sum::<u64>() - most,
            layer,
            other,
            ends,
            again: [totals.recompute_selective.seconds(), totals.recompute_full.seconds()],
            kept: [totals.kept, totals.kept_selective, totals.kept_input].map(|b| b.0 as f64),
            working: working.map(|bytes| bytes as f64),
            resident,
            end_resident,
            end_kept: [0, 1].map(|end| prices.ends[end].cost.kept.0 as f64),
            logits: prices.ends[1].logits.0 as f64,
            capacity,
            host: problem.framework.offload.wire(&chip.host),
            send: Time::from_seconds(prices.message).seconds(),
            dense,
            expert: totals.expert_parameters,
            beginning: Passes { forward: forward.seconds(), backward: backward.seconds() },
        }
    }

    /// With the sends to the next stage and the end of the step that `shard` and the chip's links give.
    pub fn of(problem: &Problem, kind: usize, shard: &Shard, prices: &Prices) -> Least {
        let chip = &problem.cluster.groups[kind].chip;
        let fabric = Fabric::new(&problem.cluster, chip);
        let rates = Rates::new(problem, kind, shard, &fabric);
        Least::new(problem, kind, shard, prices, Some(rates))
    }

    /// The least under any of some shardings: `quiet` are the prices without what the passes of sharded parameters communicate.
    pub fn of_shardings(
        problem: &Problem,
        kind: usize,
        shardings: &[Shard],
        prices: &Prices,
        quiet: &Prices,
    ) -> Least {
        let mut least = Least::new(problem, kind, &shardings[0], prices, None);
        for shard in &shardings[1..] {
            let lines = prices.resident_lines(problem, shard);
            for (to, line) in least.resident.iter_mut().zip(lines) {
                *to = Line { base: to.base.min(line.base), each: to.each.min(line.each) };
            }
        }
        let [layer, other, ends @ ..] = quiet.passes();
        least.layer = least.layer.min(layer);
        least.other = least.other.min(other);
        least.ends = [0, 1].map(|end| least.ends[end].min(ends[end]));
        least
    }

    /// Leaves the end of the step without time.
    pub fn forget_tail(&mut self) {
        self.rates = None;
    }

    /// Whether the end of the step takes no time.
    pub fn ends_at_once(&self) -> bool {
        self.rates.is_none()
    }

    /// The most frequent layers for whose parameters, gradients and optimizer's state a stage has memory, with nothing else in it.
    pub fn most_beside_state(&self, host: usize) -> f64 {
        let Line { base, each } = self.resident[host];
        (((self.capacity - base) / each.max(1.0)).max(0.0) + 1e-9).floor()
    }

    /// Whether a stage with the optimizer on the host has memory for whatever one with it on the device has.
    pub fn host_spares_memory(&self) -> bool {
        let [device, host] = self.resident;
        let ends = self.end_resident.iter().all(|[device, host]| host <= device);
        host.base <= device.base && host.each <= device.each && ends
    }

    /// Seconds of a frequent layer that is computed again.
    pub fn slowest(&self) -> f64 {
        self.layer.both() + self.again[0].max(self.again[1])
    }

    /// Seconds that a stage of `vpp` chunks needs at least after its last pass when it holds `layers` frequent layers, whatever
    /// it recomputes: convex in `layers`.
    pub fn tail(
        &self,
        problem: &Problem,
        (pp, vpp): (u64, u64),
        layers: u64,
        (first, last): (bool, bool),
        on_host: bool,
    ) -> f64 {
        let Some(rates) = &self.rates else { return 0.0 };
        // Where passes hide communication, the others count as if they were frequent too.
        let n = (layers + self.others) as f64;
        let dense = |at: usize, there: bool| if there { self.dense[at] } else { 0 };
        let end = |at: usize, there: bool| if there { self.ends[at] } else { Passes::default() };
        let beginnings = Passes {
            forward: vpp as f64 * self.beginning.forward,
            backward: vpp as f64 * self.beginning.backward,
        };
        let fixed = self.other + end(0, first) + end(1, last) + beginnings;
        let forward = n * self.layer.forward + fixed.forward;
        // Recompute and transfers to the host may lengthen the backward pass behind which gradients travel.
        let backward = n * (self.layer.backward + self.again[0].max(self.again[1]))
            + fixed.backward
            + 2.0 * (n * self.kept[0]) / self.host * f64::from(u8::from(pp == 1))
            + if on_host {
                let ends = dense(1, first) + dense(2, last);
                let frequent = layers + self.others;
                rates.crossing(frequent * self.dense[0] + ends, frequent * self.expert)
            } else {
                0.0
            };
        let forward = forward + (n * self.kept[0]) / self.host * f64::from(u8::from(pp == 1));
        // As in a stage's cost, where every chunk but the last passes behind the others' rounds.
        let rounds = (1 + (vpp - 1) * pp) as f64;
        let whole = if vpp == 1 { 1.0 } else { 1.0 + rounds / vpp as f64 };
        let step_end = StepEnd {
            dense_parameters: layers * self.dense[0] + dense(1, first) + dense(2, last),
            ends: dense(1, first) + dense(2, last),
            expert_parameters: layers * self.expert,
            regathered: (0, 0),
            tied_parameters: 0,
            // Where layers differ, a last piece that nothing hides would bend the curve downwards: it is left out.
            layers: if self.others == 0 { layers } else { u64::MAX },
            embedding: dense(1, first),
            groups: None,
            backward_window: Time::from_seconds(backward * whole),
            forward_window: Time::from_seconds(
                forward * if vpp == 1 { 1.0 } else { rounds / vpp as f64 },
            ),
        };
        (replica::synchronise_at_least(&step_end, rates, &problem.framework)
            + replica::update(&step_end, rates, on_host))
        .seconds()
    }
}
