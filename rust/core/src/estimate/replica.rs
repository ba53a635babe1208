//! What replicas do once a step: reduce gradients, gather parameters, clip and update.
//!
//! Collectives and updates cost a start-up and a time a parameter ([`Rates`]); a stage multiplies them by its parameters.

use super::collective::Fabric;
use super::host::Launch;
use super::layer::{gathers_each_pass, reduces_each_pass};
use super::memory::{cast_sixteenths, narrow_weights};
use super::orthogonal;
use super::shard::{fetches_from_host, parameter_sent, Owned, Shard};
use crate::spec::cluster::{Chip, Group};
use crate::spec::framework::{Fp8Scaling, Framework, Gradients, Shards};
use crate::spec::problem::Problem;
use crate::spec::workload::Precision;
use crate::units::Time;

/// What a stage brings to the end of the step.
#[derive(Clone, Copy, Debug)]
pub struct StepEnd {
    /// Dense parameters on this tensor-parallel rank.
    pub dense_parameters: u64,
    /// Of these, those of embedding and head, which no product in 8 bits reads and no update is made orthogonal of.
    pub ends: u64,
    /// Expert parameters on this rank.
    pub expert_parameters: u64,
    /// Of these, dense and expert, those that are gathered for each pass in place of once a step.
    pub regathered: (u64, u64),
    /// Embedding parameters whose gradients are summed with another stage's copy.
    pub tied_parameters: u64,
    /// Layers of the stage: gradients are reduced in about as many pieces.
    pub layers: u64,
    /// Parameters of the embedding, if the stage has it: their gradients are complete last, and they are needed first.
    pub embedding: u64,
    /// The groups in which they are reduced instead, where their places are given.
    pub groups: Option<Groups>,
    /// Backward time that passes after the first gradients of the last micro-batch are ready.
    pub backward_window: Time,
    /// Forward time of the first micro-batch until the last parameters are needed.
    pub forward_window: Time,
}

/// Groups of a stage's gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Groups {
    /// How many.
    pub count: u64,
    /// The share of all gradients in the group that is complete last, the one with the stage's first parameters.
    pub last: f64,
}

impl Groups {
    /// Groups that begin at `places` among a stage's parameters, which have these elements on a rank, in order.
    pub fn of(places: &[u32], parameters: impl Iterator<Item = (u64, u64)>) -> Groups {
        let (mut passed, mut all, mut first) = (0u64, 0u64, 0u64);
        let begins = places.iter().map(|&place| u64::from(place)).find(|&place| place > 0);
        for (count, elements) in parameters {
            let within = begins.map_or(count, |end| end.saturating_sub(passed).min(count));
            first += within * elements;
            passed += count;
            all += count * elements;
        }
        let inside = places.iter().filter(|&&place| (1..passed).contains(&u64::from(place)));
        Groups { count: 1 + inside.count() as u64, last: first as f64 / all.max(1) as f64 }
    }
}

/// Seconds to start, seconds for each parameter, and seconds to start a further collective behind another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rate {
    start: f64,
    each: f64,
    next: f64,
}

impl Rate {
    /// The line through `seconds` at two sizes; every collective here is one.
    fn of(seconds: impl Fn(f64) -> f64) -> Rate {
        Rate::near(SAMPLE, seconds)
    }

    /// The same at so many parameters and twice as many, where a collective takes other ways with few than with many.
    fn near(sample: f64, seconds: impl Fn(f64) -> f64) -> Rate {
        let (one, two) = (seconds(sample), seconds(2.0 * sample));
        // Where twice as many take more than twice as long, the line begins at nothing.
        let each = (two - one).min(one) / sample;
        let start = (one - each * sample).max(0.0);
        Rate { start, each, next: start }
    }

    fn seconds(self, parameters: u64) -> f64 {
        if parameters == 0 {
            0.0
        } else {
            self.start + self.each * parameters as f64
        }
    }
}

/// Parameters at which a [`Rate`] is sampled.
const SAMPLE: f64 = 1e9;

/// The step's end as rates: dense parameters first, experts second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    reduce: [Rate; 2],
    gather: [Rate; 2],
    /// Whether gradients are reduced behind computation.
    reduced_beside: bool,
    tied: Rate,
    /// Groups of layers whose collectives are one; 0 for each layer's by itself.
    groups: u64,
    /// Collectives in which a layer's gradients are summed over copies of a shard, each of which starts by itself; 1 where layers
    /// start behind one another.
    pieces: u64,
    /// Share of the processors that collectives take from what they run beside.
    processor_share: f64,
    update: [f64; 2],
    update_on_host: [f64; 2],
    orthogonal: [f64; 2],
    cast: [f64; 2],
    crossing: [f64; 2],
}

impl Rates {
    /// The rates of one way of sharding on one kind of chip.
    pub fn new(problem: &Problem, kind: usize, shard: &Shard, fabric: &Fabric<'_>) -> Rates {
        let framework = &problem.framework;
        let precision = problem.workload.precision;
        let chip = &problem.cluster.groups[kind].chip;
        let groups = [shard.replica_group(), shard.expert_replica_group()];
        let sent = framework.bytes.gradient_sent as f64;
        let pair = Group { size: 2, stride: shard.devices() };
        let casts = cast_rate(framework, precision, chip);
        let all = Group { size: problem.cluster.devices, stride: 1 };
        let beside = framework.overlap.gradient_scatter || fabric.leaves(all);
        Rates {
            reduce: in_turn(
                problem,
                shard,
                fabric,
                owned(problem, shard, fabric, groups.map(|g| reduce(problem, shard, fabric, g))),
            ),
            gather: owned(
                problem,
                shard,
                fabric,
                groups.map(|g| gather(shard, framework, precision, fabric, g)),
            ),
            reduced_beside: beside
                && framework.overlap.reduces(shard.zero)
                && !(framework.overlap.replicas_alone && (shard.tp > 1 || shard.pipelined))
                && !(framework.overlap.unsharded_alone && shard.zero > 0),
            processor_share: chip.link.processor_share,
            pieces: u64::from(pieces(shard, framework)),
            groups: if shard.pipelined {
                framework.fused_groups.min(1)
            } else {
                framework.fused_groups
            },
            tied: Rate::of(|parameters| fabric.all_reduce(parameters * sent, pair)),
            update: by_tensor(
                problem,
                shard,
                chip,
                groups.map(|g| update_rate(shard, false, framework, chip, g)),
            ),
            update_on_host: groups.map(|g| update_rate(shard, true, framework, chip, g)),
            orthogonal: orthogonal::rates(problem, chip, shard, fabric),
            cast: [casts, if framework.wide_experts { 0.0 } else { casts }],
            crossing: groups.map(|g| crossing_rate(shard, framework, chip, g)),
        }
    }

    /// Seconds in which gradients of so many dense parameters and parameters of experts cross to and from the host with each
    /// micro-batch where the optimizer is there.
    pub fn crossing(&self, dense: u64, expert: u64) -> f64 {
        self.crossing[0] * dense as f64 + self.crossing[1] * expert as f64
    }
}

/// Collectives in which a layer's gradients are summed over copies of a shard that every pass scatters to.
fn pieces(shard: &Shard, framework: &Framework) -> u32 {
    if reduces_each_pass(shard, framework) {
        framework.gather_pieces
    } else {
        1
    }
}

/// Summing gradients once a step: over all replicas, or scattered over the shard group and then summed among its copies.
fn reduce(problem: &Problem, shard: &Shard, fabric: &Fabric<'_>, replicas: Group) -> Rate {
    let (framework, model) = (&problem.framework, &problem.model);
    let sent = framework.bytes.gradient_sent as f64;
    let (inner, outer) = (shard.sharded(replicas), shard.replicated(replicas));
    let sample = match pieces(shard, framework) {
        1 => SAMPLE,
        pieces => model.layer_parameters(0) as f64 / (u64::from(pieces) * shard.tp) as f64,
    };
    Rate::near(sample, |parameters| {
        let bytes = parameters * sent;
        let among_copies = fabric.all_reduce(bytes / inner.size as f64, outer);
        if reduces_each_pass(shard, framework) {
            if framework.sums_copies_each_pass {
                0.0
            } else {
                among_copies
            }
        } else if shard.zero == 0 || (framework.all_reduces && shard.zero <= 2) {
            fabric.all_reduce(bytes, replicas)
        } else {
            fabric.all_gather(bytes, inner) + among_copies
        }
    })
}

/// Gathering updated parameters once a step.
fn gather(
    shard: &Shard,
    framework: &Framework,
    precision: Precision,
    fabric: &Fabric<'_>,
    replicas: Group,
) -> Rate {
    if shard.zero == 0 || gathers_each_pass(shard, framework) {
        return Rate::default();
    }
    let bytes = parameter_sent(framework, precision) as f64;
    Rate::of(|parameters| fabric.all_gather(parameters * bytes, shard.sharded(replicas)))
}

/// The same where slices are reduced to one owner after another (microsoft/DeepSpeed before release 0.13, runtime/zero/
/// stage_1_and_2.py, average_tensor: dist.reduce of each run of a bucket that one rank owns).
///
/// All of them together move what a scatter does. But each is a chain through all ranks, which fills before its owner gets anything.
/// Where every pass reduces (stage 2) the passes have it.
fn in_turn(problem: &Problem, shard: &Shard, fabric: &Fabric<'_>, rates: [Rate; 2]) -> [Rate; 2] {
    let framework = &problem.framework;
    let once_a_step = shard.zero > 0 && !reduces_each_pass(shard, framework);
    if framework.shards != Shards::Owners || !once_a_step {
        return rates;
    }
    by_owner(problem, shard, rates, |rate, ring, tensors| {
        let bytes = (tensors.elements * framework.bytes.gradient_sent) as f64 / ring.size as f64;
        let chain = fabric.chain(bytes, ring);
        // A further bucket has one run of its own, and one more owner's begins in it.
        Rate { start: rate.start + fabric.chains(ring) * chain, next: rate.next + chain, ..rate }
    })
}

/// The same where a rank owns whole tensors: each owner's reduction or broadcast passes all ranks by itself.
///
/// A ring of n takes as long for the bytes of all owners together as a gather does, and n - 1 steps more for each further
/// owner. There are as many owners as ranks, or as tensors where those are fewer, which a stage has in proportion to its
/// parameters.
fn owned(problem: &Problem, shard: &Shard, fabric: &Fabric<'_>, rates: [Rate; 2]) -> [Rate; 2] {
    let framework = &problem.framework;
    let each_pass = gathers_each_pass(shard, framework) || reduces_each_pass(shard, framework);
    let once_a_step = shard.zero > 0 && !each_pass;
    if framework.shards != Shards::Tensors || !once_a_step {
        return rates;
    }
    by_owner(problem, shard, rates, |rate, ring, tensors| {
        let round = fabric.all_gather(f64::MIN_POSITIVE, ring);
        if ring.size <= tensors.count {
            Rate { start: rate.start + (ring.size - 1) as f64 * round, ..rate }
        } else {
            let each = round * tensors.count as f64 / tensors.elements.max(1) as f64;
            Rate { start: (rate.start - round).max(0.0), each: rate.each + each, ..rate }
        }
    })
}

/// The rates of dense parameters and of experts as their owners in a group change them, and the tensors that these own.
fn by_owner(
    problem: &Problem,
    shard: &Shard,
    [dense, expert]: [Rate; 2],
    changed: impl Fn(Rate, Group, Owned) -> Rate,
) -> [Rate; 2] {
    let [dense_tensors, expert_tensors] = shard.tensors(&problem.model);
    [
        changed(dense, shard.sharded(shard.replica_group()), dense_tensors),
        changed(expert, shard.sharded(shard.expert_replica_group()), expert_tensors),
    ]
}

/// Time of a step's end that nothing hides: gradient reduction and parameter gathering.
pub fn synchronise(end: &StepEnd, rates: &Rates, framework: &Framework) -> Time {
    let fused = Fused {
        reduce_bytes: framework.fused_reduce_bytes,
        gather_bytes: framework.fused_gather_bytes,
        groups: rates.groups,
        pieces: rates.pieces,
    };
    exposed(end, rates, framework, fused)
}

/// What [`synchronise`] is at least, whatever the size of the pieces that travel: convex in parameters and windows.
pub fn synchronise_at_least(end: &StepEnd, rates: &Rates, framework: &Framework) -> Time {
    let fused = framework.fused_reduce_bytes > 0
        || framework.fused_gather_bytes > 0
        || framework.fused_groups > 0
        || !framework.fused_reduce_places.is_empty();
    // Without a last piece that nothing hides but the embedding, which may be in a group that others hide.
    let embedding = if framework.fused_reduce_places.is_empty() { end.embedding } else { 0 };
    let endless = StepEnd { layers: u64::MAX, embedding, ..*end };
    let pieces = Fused { pieces: rates.pieces, ..Fused::default() };
    exposed(if fused { &endless } else { end }, rates, framework, pieces)
}

/// What travels together: bytes of gradients and of parameters, groups of layers in place of bytes; layers where all are 0, each in
/// so many pieces.
#[derive(Clone, Copy, Default)]
struct Fused {
    reduce_bytes: u64,
    gather_bytes: u64,
    groups: u64,
    pieces: u64,
}

/// The same with pieces that are fused so.
fn exposed(end: &StepEnd, rates: &Rates, framework: &Framework, fused: Fused) -> Time {
    let (overlap, bytes) = (&framework.overlap, &framework.bytes);
    // Pieces whose start is charged, and how many as large as the last would be all: of a given size or number each; of a
    // layer they start behind one another, unless it has several. How many layers there are may not be known.
    let layers = end.layers.max(1);
    let pieces = |bytes: u64, each: u64, several: u64| match (bytes, fused.groups) {
        (0, 0) if several > 1 && layers < u64::MAX => (layers * several, layers as f64),
        (0, 0) => (1, layers as f64),
        (0, groups) => (groups.min(layers), groups.min(layers) as f64),
        _ => {
            let parameters = end.dense_parameters + end.expert_parameters;
            let count = (parameters * each).div_ceil(bytes).max(1);
            (count, count as f64)
        }
    };
    let groups = end.groups.map(|groups| (groups.count, 1.0 / groups.last));
    let share = rates.processor_share;
    let all = (end.dense_parameters, end.expert_parameters);
    let once = (all.0 - end.regathered.0, all.1 - end.regathered.1);
    let exposed = |rates: &[Rate; 2],
                   (dense, expert): (u64, u64),
                   pieces: (u64, f64),
                   embedding: u64,
                   window: Time,
                   overlapped: bool| {
        let (starts, as_the_last) = pieces;
        let seconds = rates[0].seconds(dense)
            + rates[1].seconds(expert)
            + rates[0].next * (starts - 1) as f64;
        if overlapped {
            // The last piece has nothing left to hide behind. An embedding, however large, is one parameter.
            let last = (seconds / as_the_last).max(rates[0].seconds(embedding).min(seconds));
            let hidden = (seconds - last).min(window.seconds());
            seconds - hidden + share * hidden
        } else {
            seconds
        }
    };
    Time::from_seconds(
        exposed(
            &rates.reduce,
            all,
            groups.unwrap_or_else(|| pieces(fused.reduce_bytes, bytes.gradient_sent, fused.pieces)),
            if groups.is_some() { 0 } else { end.embedding },
            end.backward_window,
            rates.reduced_beside,
        ) + exposed(
            &rates.gather,
            once,
            pieces(fused.gather_bytes, bytes.parameter, 1),
            end.embedding,
            end.forward_window,
            overlap.parameter_gather && overlap.step_gather,
        )
            // The embedding's two copies, on the first and the last stage.
            + rates.tied.seconds(end.tied_parameters),
    )
}

/// Seconds a parameter of the gradient norm and the optimizer step.
///
/// The norm reads, and clipping reads and writes, the gradients that a rank updates with; the next step's zeroing writes those
/// that it keeps. Adam reads the gradient, reads and writes 32-bit weights, two moments and any copy of the gradients that the
/// step makes, and where those weights are a copy another kernel reads them and writes the parameters: on the device at its memory
/// bandwidth, or on the host at what its process's threads move there, with gradients and parameters crossing PCIe. What its
/// kernels were timed at is [`AdamKernel`](crate::spec::kernels::AdamKernel)'s.
fn update_rate(
    shard: &Shard,
    on_host: bool,
    framework: &Framework,
    chip: &Chip,
    replicas: Group,
) -> f64 {
    let bytes = &framework.bytes;
    let ranks = if shard.zero >= 1 { shard.sharded(replicas).size.max(1) } else { 1 };
    let mine = 1.0 / ranks as f64;
    let device = chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency;
    // Of gradients that are reduced after each pass a share is kept; others are dropped, or overwritten.
    let zeroed = match framework.held.gradients {
        Gradients::Kept if shard.zero >= 2 => mine,
        Gradients::Kept => 1.0,
        Gradients::Passing | Gradients::Replace => 0.0,
    };
    let clipped = if framework.clips_gradients { 3.0 * mine } else { 0.0 };
    let gradients = (zeroed + clipped) * bytes.gradient as f64 / device;
    // The optimizer's weights and both moments; without a copy of them the weights are the parameters, of 32 bits at most: casts
    // of these that lie beside them are the passes'.
    let (copied, state) = if bytes.updates_a_copy() {
        (4 + bytes.parameter, bytes.optimizer)
    } else {
        (0, bytes.parameter.min(4) + bytes.optimizer)
    };
    let once = (bytes.gradient + 2 * (state + framework.held.update_bytes)) as f64;
    if on_host {
        // One thread after another, the parameters with them.
        let update = mine * (once + bytes.parameter as f64 * f64::from(u8::from(copied > 0)));
        // Where parameters are on the host too, both have crossed with each pass.
        let there = fetches_from_host(shard, framework) && (ranks > 1 || shard.alone());
        let offload = &framework.offload;
        let crossing = match offload.step_bytes {
            0 if there => u64::from(framework.held.gradients_stay) * bytes.gradient,
            0 => bytes.gradient + bytes.parameter,
            step if there => step.saturating_sub(bytes.parameter),
            step => step,
        };
        gradients
            + update / offload.memory(&chip.host)
            + mine * crossing as f64 / offload.wire(&chip.host)
    } else {
        let kernel = framework.fused.optimizer.traffic(once, state as f64 / 3.0);
        gradients + mine * (kernel + copied as f64) / device
    }
}

/// The rates of an optimizer that steps dense parameters and those of experts tensor by tensor: what the host takes for its kernels
/// where that is longer. A stage has tensors in proportion to its parameters.
fn by_tensor(problem: &Problem, shard: &Shard, chip: &Chip, rates: [f64; 2]) -> [f64; 2] {
    let framework = &problem.framework;
    let kernels = framework.fused.optimizer.kernels_a_tensor();
    if kernels == 0 {
        return rates;
    }
    let launch = Launch::of(framework, &problem.model, chip.host.pace, shard.tp);
    let each = f64::from(kernels) * launch.seconds;
    let host = |owned: Owned| each * owned.count as f64 / owned.elements.max(1) as f64;
    let [dense, expert] = shard.tensors(&problem.model);
    [rates[0].max(host(dense)), rates[1].max(host(expert))]
}

/// Seconds a parameter to cast weights for 8-bit products once a step, for its first micro-batch, where the casts are kept over a
/// step: read in 16 bits and written by rows and by columns, and read for their maximum before where its scale is their own.
/// Of weights that lie in casts alone, which the optimizer writes, those by columns are read and written.
///
/// On an H100 0.334 ms for 218 million weights by a scale that was known, 4.6 bytes each at the rate of a copy (Megatron-Core
/// 0.19.2 with Transformer Engine 2.20, tests/data/operators/te_layers.csv).
fn cast_rate(framework: &Framework, precision: Precision, chip: &Chip) -> f64 {
    let casts = cast_sixteenths(framework, precision, chip.gemm.fp8_any_layout) / 16;
    if precision != Precision::Fp8 || casts == 0 {
        return 0.0;
    }
    let bytes = match framework.fp8_scaling {
        _ if narrow_weights(framework, precision) => 2 * (casts - 1),
        Fp8Scaling::Current => 4 + casts,
        Fp8Scaling::Delayed | Fp8Scaling::Block => 2 + casts,
        // Cast in each pass, as its products are priced.
        Fp8Scaling::Row => 0,
    };
    bytes as f64 / (chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency)
}

/// Seconds a parameter in which gradients cross between a device and its host with each micro-batch, where their sums are on the
/// host: to the device, where the new ones are added, and back. What comes from there with its parameters is counted with these.
fn crossing_rate(shard: &Shard, framework: &Framework, chip: &Chip, replicas: Group) -> f64 {
    if !reduces_each_pass(shard, framework) {
        return 0.0;
    }
    let offload = &framework.offload;
    let counted =
        if fetches_from_host(shard, framework) { framework.bytes.gradient_sent } else { 0 };
    let mine = 1.0 / shard.sharded(replicas).size.max(1) as f64;
    mine * offload.pass_bytes.saturating_sub(counted) as f64 / offload.wire(&chip.host)
}

/// Time of the gradient norm and the optimizer step on a stage's parameters.
pub fn update(end: &StepEnd, rates: &Rates, on_host: bool) -> Time {
    let each = if on_host { rates.update_on_host } else { rates.update };
    let of_layers = end.dense_parameters.saturating_sub(end.ends) as f64;
    Time::from_seconds(
        each[0] * end.dense_parameters as f64
            + each[1] * end.expert_parameters as f64
            + (rates.cast[0] + rates.orthogonal[0]) * of_layers
            + (rates.cast[1] + rates.orthogonal[1]) * end.expert_parameters as f64,
    )
}
