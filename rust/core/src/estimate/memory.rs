//! Bytes of one device of a stage at its peak, item by item.
//!
//! Parameters, gradients and optimizer state by ZeRO stage (Rajbhandari et al. 2020, arXiv:1910.02054);
//! activations by the micro-batches that the schedule keeps in flight.

use super::layer::{gathers_each_pass, reduces_each_pass};
use super::shard::{fetches_from_host, Shard};
use crate::spec::cluster::{Chip, Group};
use crate::spec::framework::{Framework, Gradients};
use crate::spec::problem::{Problem, Schedule};
use crate::spec::workload::Precision;
use crate::units::Bytes;
use serde::{Deserialize, Serialize};

/// Memory of one device of a stage at its peak, in bytes; 0 for what is not there then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryItems {
    /// Parameters.
    pub parameters: Bytes,
    /// Gradients.
    pub gradients: Bytes,
    /// Optimizer state.
    pub optimizer: Bytes,
    /// Activations kept for the backward pass, of all micro-batches in flight.
    pub activations: Bytes,
    /// Logits and loss (last stage).
    pub logits: Bytes,
    /// Activations that exist only while one layer is computed (again).
    pub working_set: Bytes,
    /// Communication buffers: gathered parameters, gradient buckets, pipeline sends.
    pub buffers: Bytes,
    /// Copies of parameters and gradients, and roots of moments, that live only during the optimizer's step.
    pub update: Bytes,
    /// Freed memory that the allocator keeps: other streams and larger tensors than those that it held cannot use it, and what
    /// they need lies beside it.
    pub cached: Bytes,
    /// Device context, communicators and library workspaces, outside the allocator.
    pub context: Bytes,
}

/// Micro-batches whose activations a stage holds at its peak, for each of its chunks (first to last).
///
/// 1F1B holds `pp - stage` (Narayanan et al. 2021, arXiv:2104.04473); interleaved 1F1B warms up with
/// `2 (pp - stage - 1) + (vpp - 1) pp` chunk passes and holds one more; GPipe holds all; ZB-H1 holds `pp` on every
/// stage, its last weight gradients waiting; ZB-V holds `2 pp` halves (arXiv:2401.10241, 2405.15362).
pub fn in_flight(
    schedule: Schedule,
    pp: u64,
    vpp: u64,
    stage: u64,
    micro_batches: u64,
) -> InFlight {
    let m = micro_batches;
    match schedule {
        Schedule::GPipe => InFlight { passes: m * vpp, pp: m, vpp },
        Schedule::OneFOneB => InFlight { passes: (pp - stage).min(m), pp: m, vpp: 1 },
        Schedule::ZeroBubbleH1 => InFlight { passes: pp.min(m), pp: m, vpp: 1 },
        Schedule::Interleaved => {
            let warm = 2 * (pp - stage - 1) + (vpp - 1) * pp;
            InFlight { passes: (warm + 1).min(m * vpp), pp, vpp }
        }
        // Both chunks together hold 2 pp passes; the outer chunk waits longer for its backward pass.
        Schedule::ZeroBubbleV => {
            let outer = (2 * pp - stage).min(m);
            InFlight { passes: outer + (2 * pp).saturating_sub(outer).min(m), pp: outer, vpp: 2 }
        }
    }
}

/// Chunk passes in flight: the first `pp` belong to chunk 0, the next to chunk 1, and round again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    passes: u64,
    pp: u64,
    vpp: u64,
}

impl InFlight {
    /// The same with so many chunk passes more, of all that there are.
    pub fn and_more(self, passes: u64, micro_batches: u64) -> InFlight {
        InFlight { passes: (self.passes + passes).min(micro_batches * self.vpp), ..self }
    }

    /// Passes of all chunks in flight.
    pub fn passes(self) -> u64 {
        self.passes
    }

    /// Passes of `chunk` in flight.
    pub fn of_chunk(self, chunk: u64) -> u64 {
        let round = self.pp * self.vpp;
        let whole = self.passes / round * self.pp;
        whole + (self.passes % round).saturating_sub(chunk * self.pp).min(self.pp)
    }
}

/// What a stage holds, before it is sharded and counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Holdings {
    /// Dense parameters on this tensor-parallel rank.
    pub dense_parameters: u64,
    /// Expert parameters on this rank.
    pub expert_parameters: u64,
    /// Of those of layers, dense and expert, what ZeRO leaves whole.
    pub whole_parameters: (u64, u64),
    /// Of those of embedding and head.
    pub whole_end_parameters: u64,
    /// The same of those that are gathered for each pass where ZeRO gathers the others once a step.
    pub regathered_parameters: (u64, u64),
    /// Dense parameters of embedding and head among them.
    pub end_parameters: u64,
    /// Of these those that the head reads.
    pub head_parameters: u64,
    /// Parameters that are gathered at a time where ZeRO gathers for each pass.
    pub gathered_parameters: u64,
    /// Parameters whose gradients are complete but not yet reduced there.
    pub unreduced_parameters: u64,
    /// Parameters whose gradients pass through a bucket.
    pub reduced_parameters: u64,
    /// Bytes of the casts of each weight for narrow products, in sixteenths.
    pub cast_sixteenths: u64,
    /// These are all that there is of a layer's weights.
    pub narrow_weights: bool,
    /// Activations of all micro-batches in flight.
    pub activations: Bytes,
    /// What routers hold of layers that were computed again.
    pub held_balancing: Bytes,
    /// Logits and loss.
    pub logits: Bytes,
    /// What the allocator keeps beside them.
    pub cached_logits: Bytes,
    /// Tensors that live only while one layer runs.
    pub working_set: Bytes,
    /// One message to the next stage; 0 without a pipeline.
    pub boundary: Bytes,
    /// Messages that arrive in a step from both sides.
    pub messages: u64,
    /// Bytes of casts of its weights that wait for the backward pass.
    pub casts: Bytes,
    /// Bytes of casts that are counted with its parameters but not made.
    pub uncast: Bytes,
    /// No micro-batch comes after the first: gradients that pass are not there before its backward pass.
    pub single: bool,
}

/// Bytes, in sixteenths, of the casts of a weight that are kept beside it for products in `precision`.
///
/// By rows alone where products take any layout (`any_layout`). In 4 bits the weight itself stays in 16 (NVIDIA-NeMo/Megatron-Bridge
/// refuses fp4_param_gather). Megatron has Transformer Engine keep its casts by rows and by columns from the first micro-batch to the
/// last; others cast for each pass.
pub fn cast_sixteenths(framework: &Framework, precision: Precision, any_layout: bool) -> u64 {
    let engine = framework.eight_bit_gathers.activations && framework.held.fp8_input_bytes == 1;
    match precision {
        Precision::Fp8 if framework.by_rows_alone(any_layout) => {
            16 * framework.held.fp8_weight_bytes.min(1)
        }
        Precision::Fp8 => 16 * framework.held.fp8_weight_bytes,
        Precision::Fp4 if engine => 2 * 9,
        _ => 0,
    }
}

/// Whether the layers' weights lie in casts alone: not where none are kept, and in 4 bits the weight itself stays in 16.
pub fn narrow_weights(framework: &Framework, precision: Precision) -> bool {
    let held = &framework.held;
    held.narrow_weights && held.fp8_weight_bytes > 0 && precision == Precision::Fp8
}

/// Bytes of casts that are counted with each of so many parameters of an embedding and not made: where its 32-bit rows begin a
/// stream in 32 bits no product reads them, unless it is the head too.
pub fn uncast(problem: &Problem, parameters: u64) -> Bytes {
    let framework = &problem.framework;
    let counted = framework.casts_weights && framework.bytes.parameter > 4;
    if counted && framework.held.fp32_residual && !problem.model.tied_embeddings {
        Bytes::from_f64(parameters as f64 * problem.workload.precision.activation_bytes())
    } else {
        Bytes::ZERO
    }
}

/// The items of a stage's memory.
pub fn items(
    held: &Holdings,
    shard: &Shard,
    optimizer_offload: bool,
    framework: &Framework,
) -> MemoryItems {
    let bytes = &framework.bytes;
    let each = framework.gathers.each_pass(shard.pipelined);
    let gathers = gathers_each_pass(shard, framework);
    let fetches = fetches_from_host(shard, framework);
    let reduces = reduces_each_pass(shard, framework);
    // Parameters and gradients stay whole when they are gathered and reduced once a step.
    let (mut parameters, mut gradients, mut optimizer, mut buffers) = (0u64, 0u64, 0u64, 0u64);
    let (mut updated, mut roots, mut waiting, mut reduced_late) = (0u64, 0u64, 0u64, 0u64);
    let hooked = framework.hooks_replicas && shard.zero == 0 && !shard.alone();
    let mut working_set = held.working_set.0;
    let (dense_again, expert_again) = held.regathered_parameters;
    let cast_dense = held.dense_parameters - held.end_parameters;
    let cast_expert = if framework.wide_experts { 0 } else { held.expert_parameters };
    // Of what is made orthogonal one moment is kept.
    let single = if framework.orthogonal.any() { bytes.moment() } else { 0 };
    for (count, cast, moments, left, again, uncast, replicas) in [
        (
            cast_dense,
            cast_dense,
            cast_dense * single,
            held.whole_parameters.0,
            dense_again,
            0,
            shard.replica_group(),
        ),
        (
            held.end_parameters,
            0,
            0,
            held.whole_end_parameters,
            0,
            held.uncast.0,
            shard.replica_group(),
        ),
        (
            held.expert_parameters,
            cast_expert,
            held.expert_parameters * single,
            held.whole_parameters.1,
            expert_again,
            0,
            shard.expert_replica_group(),
        ),
    ] {
        if count == 0 {
            continue;
        }
        let left = left.min(count);
        let narrow = if held.narrow_weights { cast } else { 0 };
        // In place of each weight that is cast for good lies its cast.
        let wider = (16 * bytes.parameter).saturating_sub(held.cast_sixteenths);
        let uncast = uncast + narrow * wider / 16;
        // As many of the casts that are not made as of the parameters.
        let of_all = |here: u64, all: u64| match all {
            0 => 0,
            _ => (u128::from(here) * u128::from(all) / u128::from(count)) as u64,
        };
        let stored = |here: u64| (here * bytes.parameter).saturating_sub(of_all(here, uncast));
        // What it was cast from is the optimizer's, whose own copy in full precision serves where there is one.
        let source = if bytes.updates_a_copy() { 0 } else { narrow * bytes.parameter };
        let state =
            |here: u64| here * bytes.optimizer + of_all(here, source) - of_all(here, moments);
        let ranks = group_size(shard, replicas);
        let share = |from: u8| {
            if shard.zero >= from {
                (count - left).div_ceil(ranks) + left
            } else {
                count
            }
        };
        // Gathered once a step, they lie beside the shards that they come from and are reduced to.
        let whole = if shard.zero == 3 && !gathers && ranks > 1 { count - left } else { 0 };
        let copy = framework.held.gathered_copy_bytes;
        if (1..3).contains(&shard.zero) && copy > 0 && ranks > 1 {
            parameters += stored(share(1)) + (count - left - again) * copy;
            // Scattered as they are reduced: in the only micro-batch, or in each; otherwise they add up whole.
            let scattered = held.single || (reduces && shard.zero == 2);
            gradients += (if scattered { share(1) } else { count }) * bytes.gradient;
            optimizer += state(share(1));
            updated += share(1);
            roots += share(1) * framework.root_bytes();
            continue;
        }
        if fetches && (ranks > 1 || shard.alone()) {
            // A layer's are here while it works with them.
            let left = if shard.alone() { 0 } else { left };
            parameters += left * bytes.parameter;
            let stay = framework.held.gradients_stay;
            gradients += if stay { share(3) } else { left } * bytes.gradient;
            optimizer += state(share(1));
            updated += share(1);
            roots += share(1) * framework.root_bytes();
            continue;
        }
        // What is gathered and kept whole lies beside the shards that are updated, where the optimizer has no copy of its own.
        // So is what replicas compute with that are hooked as shards of themselves.
        let kept = (shard.zero == 2 && each && ranks > 1) || (hooked && replicas.size > 1);
        let beside = if kept && !bytes.updates_a_copy() { share(2) - left } else { 0 };
        let summed = hooked || (shard.zero >= 2 && each && replicas.size > ranks);
        if framework.held.waiting_sums && summed && bytes.gradient_sent != bytes.gradient {
            waiting += share(2) * bytes.gradient_sent;
        }
        parameters += stored(share(3) + whole + beside);
        if !(gathers && framework.held.gradients == Gradients::Replace) {
            let reduced = (if each { share(2) } else { count }) * bytes.gradient;
            // Until they are reduced they add up whole, as they will travel; each that is leaves a share in its place.
            let waits = each && framework.reduces_once && shard.zero >= 2 && !held.single;
            let whole_sums = (count - left) * bytes.gradient_sent + left * bytes.gradient;
            gradients += if waits { reduced.max(whole_sums) } else { reduced };
            // Where none are left of the step before, each that is reduced leaves its share in its place.
            let stay = framework.held.gradients != Gradients::Passing;
            let shares = if whole > 0 { share(3) * bytes.gradient } else { 0 };
            *(if stay { &mut gradients } else { &mut reduced_late }) += shares;
        }
        optimizer += state(share(1));
        updated += share(1);
        roots += share(1) * framework.root_bytes();
    }
    let at_once = framework.held.updated_at_once;
    if shard.zero == 3 && at_once > 0 {
        updated = updated.min(at_once);
    }
    let update = updated * framework.held.update_bytes;
    let at_work = held.gathered_parameters.min(dense_again + expert_again);
    buffers += at_work * framework.held.gathered_copy_bytes;
    let lasting = buffers;
    parameters += held.casts.0;
    if !held.narrow_weights {
        parameters += (cast_dense + cast_expert) * held.cast_sixteenths / 16;
    }
    // What is gathered and kept whole is reduced layer by layer all the same.
    let keeps = shard.zero == 2 && each && !shard.alone() && !bytes.updates_a_copy();
    let passed_on = gathers || fetches;
    if passed_on || keeps || hooked {
        buffers += if passed_on { held.gathered_parameters * bytes.parameter } else { 0 };
        // The gradient as it is computed, and the one before it as it travels, if that is wider.
        let wider = if bytes.gradient_sent > bytes.parameter { bytes.gradient_sent } else { 0 };
        buffers += held.unreduced_parameters * (bytes.parameter + wider);
        if framework.held.gathered_ends {
            let at_end = end_gradients(held, framework).saturating_sub(buffers - lasting);
            buffers += if passed_on { held.end_parameters * bytes.parameter } else { 0 };
            let apart = framework.ends_apart && held.head_parameters < held.end_parameters;
            // Gradients of the head come before the first layer of the backward pass and stay to its last, unless they are reduced at
            // once.
            working_set += if apart { 0 } else { held.head_parameters * bytes.parameter };
            working_set = working_set.max(at_end);
        }
    }
    if optimizer_offload && reduces && framework.offload.pass_bytes > 0 {
        gradients = 0; // The host holds their sums.
    }
    // Those of layers that are gathered and reduced are gone when the optimizer steps.
    let of_layers = buffers - lasting;
    if shard.dp * shard.cp > 1 {
        // ZeRO allocates its bucket whole; without it gradients are copied into one that is as large as they need.
        let all = held.reduced_parameters * bytes.gradient_sent;
        buffers += if framework.held.bucket_copies {
            all
        } else {
            framework.bucket_bytes.min(if shard.zero == 0 { all } else { u64::MAX })
        };
    }
    // One message arriving from each side, or all of a step; of buffered stages also one leaving to each side.
    let messages = match (framework.held.message_buffers, framework.held.stage_buffers) {
        (true, _) => held.messages.max(1),
        (false, true) => 4,
        (false, false) => 2,
    };
    buffers += messages * held.boundary.0;
    let here = |bytes: u64| if optimizer_offload { Bytes::ZERO } else { Bytes(bytes) };
    let whole_step = MemoryItems {
        parameters: Bytes(parameters),
        gradients: Bytes(gradients),
        optimizer: here(optimizer),
        update: here(update),
        activations: held.activations,
        logits: held.logits,
        working_set: Bytes(working_set),
        buffers: Bytes(buffers + waiting),
        cached: Bytes::ZERO,
        context: context(framework, shard),
    };
    let at_update = MemoryItems {
        update: whole_step.update + here(roots),
        buffers: Bytes(buffers - of_layers),
        ..whole_step
    };
    let passing = held.single && framework.held.gradients == Gradients::Passing;
    let late = if passing { late_gradients(held, shard, framework) } else { Bytes::ZERO };
    let gone = MemoryItems { activations: held.held_balancing, logits: Bytes::ZERO, ..whole_step };
    let at_update = MemoryItems { activations: gone.activations, ..at_update };
    let before = passing.then_some(late);
    let planned = framework.held.planned;
    let mut items = whole_step.at_peak(gone, at_update, before, Bytes(waiting), planned);
    items.cached += if framework.held.gradients == Gradients::Passing {
        // The first step, which makes gradients and moments when logits are gone, puts them there.
        held.cached_logits.beyond(whole_step.gradients + whole_step.optimizer)
    } else {
        held.cached_logits
    };
    items.cached += gather_buffers(held, framework, gathers, keeps);
    // They lie on the stream that reduces, which has nothing of what whole ones leave.
    items.cached += Bytes(if framework.shard_copies.reduced { reduced_late } else { 0 });
    items
}

/// Bytes of the buffers in which FSDP2 gathers, as far as they are not there at the peak: they lie on a stream of their own, whose
/// blocks no other serves.
///
/// In the forward pass a unit's buffer is freed only after the next one's is there (pytorch/pytorch, torch/distributed/fsdp/
/// _fully_shard/_fsdp_param_group.py: wait_for_unshard), so that the stream has two layers', or a layer's beside that of embedding
/// and head, which are apart where each is a unit. One layer's is counted where each pass gathers.
fn gather_buffers(held: &Holdings, framework: &Framework, gathers: bool, keeps: bool) -> Bytes {
    if !framework.shard_copies.gathered || !(gathers || keeps) {
        return Bytes::ZERO;
    }
    let (ends, head) = (held.end_parameters, held.head_parameters.min(held.end_parameters));
    let end = match (framework.held.gathered_ends, framework.ends_apart) {
        (true, true) => head.max(ends - head),
        (true, false) => ends,
        (false, _) => 0,
    };
    let layer = held.unreduced_parameters;
    let counted = if gathers { 0 } else { layer };
    Bytes((counted + layer.max(end)) * framework.bytes.parameter)
}

/// Bytes of the gradients of embedding and head as no layer is gathered any more: as they were computed, and, if that is wider, as
/// they travel. Those of a head that is a unit of its own have been reduced by then.
fn end_gradients(held: &Holdings, framework: &Framework) -> u64 {
    let (all, head) = (held.end_parameters, held.head_parameters);
    let waiting = if framework.ends_apart && head < all { all - head } else { all };
    let bytes = &framework.bytes;
    let sent = if bytes.gradient_sent > bytes.parameter { bytes.gradient_sent } else { 0 };
    waiting * (bytes.parameter + sent)
}

/// Bytes of gradients that are not there while the first layer works: its own, and the embedding's, unless that is the head too.
fn late_gradients(held: &Holdings, shard: &Shard, framework: &Framework) -> Bytes {
    let embedding = held.end_parameters - held.head_parameters.min(held.end_parameters);
    let scattered = shard.zero >= 2 && framework.gathers.each_pass(shard.pipelined);
    let ranks = if scattered { group_size(shard, shard.replica_group()) } else { 1 };
    Bytes((embedding + held.unreduced_parameters) / ranks * framework.bytes.gradient)
}

fn group_size(shard: &Shard, replicas: Group) -> u64 {
    shard.sharded(replicas).size.max(1)
}

/// What one process holds outside the allocator: the device context, library workspaces, and the buffers of the communicators
/// of the groups that the process belongs to.
///
/// Each communicator has buffers of its own, whose size hardly depends on the number of ranks beyond two nodes
/// (NVIDIA/nccl issues 864 and 964).
pub fn context(framework: &Framework, shard: &Shard) -> Bytes {
    let c = &framework.held.communicators;
    let several = |ranks: u64, count: u64| if ranks > 1 { count } else { 0 };
    let stages = if shard.pipelined { 2 } else { 1 };
    let communicators = several(shard.dp * shard.tp * shard.cp * stages, c.world)
        + several(shard.tp, c.tensor)
        + several(shard.cp, c.context)
        + several(shard.ep, c.expert)
        + several(shard.dp * shard.cp, c.data)
        + several(stages, c.pipeline);
    let buffers = communicators as f64 * framework.held.communicator_gib;
    Bytes::from_gib(framework.context_gib + buffers)
}

/// What the allocator may hand out on a chip: visible memory less the context, less the margin.
pub fn capacity(chip: &Chip, framework: &Framework, shard: &Shard, margin: f64) -> Bytes {
    let visible = Bytes::from_gib(chip.memory_gib);
    let left = visible.beyond(context(framework, shard));
    Bytes::from_f64(left.0 as f64 * (1.0 - margin))
}

impl MemoryItems {
    /// Of all that a step needs at one time or another, what is there when it needs most: as the backward pass begins, as it
    /// ends, or during the optimizer's step, which needs what `update` says but for activations. Gradients that are `passing` grow from
    /// nothing as activations go, both layer by layer, so that one of its ends is its peak; so many bytes of them come after the
    /// first layer has worked. What is left of activations is there when the others are `gone`. Sums over replicas are `waiting`
    /// only as the backward pass ends.
    ///
    /// Unless memory is `planned`, PyTorch's caching allocator has all of it at the end: freed blocks serve the stream that they
    /// were allocated on, FSDP's gradients another one, and what is left of them between the states that the first step put into what
    /// logits had been in is too small for the next logits; and the copies of the optimizer's step, each as large as the gradients
    /// together where they lie in one tensor, fit into no block that an activation left. What `update` holds tensor by tensor does.
    fn at_peak(
        self,
        gone: MemoryItems,
        update: MemoryItems,
        passing: Option<Bytes>,
        waiting: Bytes,
        planned: bool,
    ) -> MemoryItems {
        let none = Bytes::ZERO;
        let begin = MemoryItems {
            gradients: if passing.is_some() { none } else { self.gradients },
            buffers: self.buffers.beyond(waiting),
            update: none,
            ..self
        };
        let working_set = self.working_set.beyond(passing.unwrap_or(none));
        let end = MemoryItems { working_set, update: none, ..gone };
        let update = MemoryItems { logits: none, working_set: none, ..update };
        let peak = [begin, end, update]
            .into_iter()
            .reduce(|a, b| if b.allocated() > a.allocated() { b } else { a })
            .unwrap_or(self);
        let cached = if planned { none } else { self.allocated().beyond(peak.allocated()) };
        MemoryItems { cached, ..peak }
    }

    /// The same on a device of so much memory: where it is full the allocator gives back what it keeps before it asks for more
    /// (pytorch/pytorch, c10/cuda/CUDACachingAllocator.cpp: release_cached_blocks).
    pub fn within(self, memory: Bytes) -> MemoryItems {
        let room = memory.beyond(self.allocated() + self.context);
        MemoryItems { cached: self.cached.min(room), ..self }
    }

    /// What lies there whatever its layers keep: parameters, gradients, optimizer state and buffers.
    pub fn resident(&self) -> Bytes {
        self.parameters + self.gradients + self.optimizer + self.buffers
    }

    /// What the framework's allocator hands out.
    pub fn allocated(&self) -> Bytes {
        // The loss is done before the first layer is recomputed: the larger of the two counts.
        self.resident() + self.activations + self.logits.max(self.working_set) + self.update
    }

    /// What the framework's allocator has taken from the driver.
    pub fn reserved(&self) -> Bytes {
        self.allocated() + self.cached
    }

    /// What the driver shows.
    pub fn total(&self) -> Bytes {
        self.reserved() + self.context
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_f_one_b_holds_as_many_micro_batches_as_stages_follow() {
        let of = |stage| in_flight(Schedule::OneFOneB, 4, 1, stage, 100).of_chunk(0);
        assert_eq!([of(0), of(1), of(2), of(3)], [4, 3, 2, 1]);
        assert_eq!(in_flight(Schedule::OneFOneB, 4, 1, 0, 2).of_chunk(0), 2);
    }

    #[test]
    fn interleaving_holds_one_part_in_pp_vpp_more_than_one_f_one_b() {
        // pp 4, vpp 2, first stage: 2 * 3 + 4 + 1 = 11 chunk passes, that is 5.5 micro-batches of
        // both chunks: 4 (1 + 3 / 8) (Korthikanti et al. 2022, section 4.2.3).
        let held = in_flight(Schedule::Interleaved, 4, 2, 0, 100);
        assert_eq!(held.of_chunk(0) + held.of_chunk(1), 11);
        assert_eq!(held.of_chunk(0), 7);
        assert_eq!(held.of_chunk(1), 4);
    }

    #[test]
    fn gpipe_holds_every_micro_batch() {
        assert_eq!(in_flight(Schedule::GPipe, 4, 1, 3, 100).of_chunk(0), 100);
    }
}
