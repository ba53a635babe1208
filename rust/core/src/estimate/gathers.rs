//! What gathers of sharded parameters and reductions of sharded gradients add to the passes of a layer, and of the embedding and
//! head.
//!
//! Both are of one layer and run one layer ahead: what is longer than the layer's passes shows. So it is with PyTorch's
//! FSDP and DeepSpeed's ZeRO-3 where nothing keeps the host from going ahead. Before the embedding there is nothing to hide
//! its gather, and nothing behind its gradients' reduction.
//!
//! A pass has communication of its own, of tensors and of tokens. Where that takes the same wires, a node's network cards or the
//! links inside it, neither passes while the other does: together they take what both take in turn.

use super::block::Block;
use super::host::Launch;
use super::layer::Pricer;
use super::pass::Pass;
use super::shard::parameter_sent;
use crate::spec::cluster::Group;
use crate::spec::framework::{GatheredUnit, Shards};

/// What a layer, or an end, moves in one micro-batch.
struct Moved {
    /// Seconds to gather its parameters once.
    gather: f64,
    /// Seconds to reduce and scatter its gradients.
    reduce: f64,
    /// Groups in which it is sharded: dense parameters, and those of experts.
    groups: u32,
    /// Launches of either.
    pieces: u32,
    /// Parameters that are sharded at all.
    parameters: f64,
    /// The shares of either that stay inside a domain, and that pass the network.
    ways: [f64; 2],
}

impl Pricer<'_> {
    /// Gathering so many dense parameters and parameters of experts of this rank from their shards, of so many bytes each; as
    /// long as scattering their gradients.
    pub(super) fn shard_gather(&self, dense: f64, expert: f64, bytes: f64) -> f64 {
        let pieces = self.gather_pieces(expert > 0.0);
        self.gather_in(pieces, [dense, expert], bytes)
    }

    /// The same in so many collectives of either.
    fn gather_in(&self, pieces: [u32; 2], [dense, expert]: [f64; 2], bytes: f64) -> f64 {
        let s = &self.shard;
        let collective = |parameters: f64, pieces: u32, experts: bool| {
            let replicas = if experts { s.expert_replica_group() } else { s.replica_group() };
            let (group, pieces) = (s.sharded(replicas), f64::from(pieces));
            if parameters == 0.0 || group.size <= 1 {
                return 0.0;
            }
            let bytes = parameters * (bytes / pieces);
            if let Some(shortest) = &self.shortest {
                return pieces * shortest.seconds(experts, bytes);
            }
            let copies = group.size as f64 * self.framework.gather_copy_us * 1e-6;
            pieces * (self.fabric.all_gather(bytes, group) + copies)
        };
        collective(dense, pieces[0], false) + collective(expert, pieces[1], true)
    }

    /// Whether hooks surround the passes of layers that nothing shards over their replicas.
    fn hooks_replicas(&self) -> bool {
        let s = &self.shard;
        // What holds for any number of replicas holds for one.
        self.framework.hooks_replicas && s.zero == 0 && !s.alone() && self.up_to.is_none()
    }

    /// Collectives in which the dense parameters of a layer, with or without experts, are gathered, and those of its experts.
    ///
    /// Where each matrix is gathered by itself, each of an expert that is a module of its own is too, and what such a layer has
    /// beside them lacks the matrices of an MLP if no expert is shared.
    fn gather_pieces(&self, experts: bool) -> [u32; 2] {
        let (f, m) = (self.framework, self.model);
        let pieces = f.gather_pieces;
        let apart = f.held.gathered_unit == GatheredUnit::Matrix
            && !f.fused.grouped_gemm
            && !f.sliced_experts;
        match &m.moe {
            Some(moe) if experts && apart && pieces > 1 => {
                let matrices = if m.activation.gated() { 3 } else { 2 };
                let shared = if moe.shared_ffn > 0 { matrices } else { 0 };
                let own = pieces.saturating_sub(matrices - shared).max(1);
                [own, matrices * (moe.experts / self.shard.ep as u32).max(1)]
            }
            _ => [pieces; 2],
        }
    }
}

impl Block<'_, '_> {
    /// Adds gathers and reductions to the passes, and to what recompute runs beside them.
    pub(super) fn shards(&mut self, recompute: &mut Pass) {
        let p = self.p;
        let (gathers, reduces) = (p.gathers_each_pass(), p.reduces_each_pass());
        let fetches = p.fetches_from_host();
        if p.hooks_replicas() {
            (self.forward.hooked, self.input.hooked) = (1, 1);
            recompute.hooked = u32::from(p.framework.recompute_gathers);
        }
        if !gathers && !reduces && !fetches {
            return;
        }
        let pieces = p.gather_pieces(self.expert_parameters > 0.0);
        let moved = p.moved(pieces, [self.dense_parameters, self.expert_parameters]);
        let of = |each: bool| if each { moved.pieces } else { 0 };
        self.forward.kernels += of(gathers);
        self.input.kernels += of(gathers) + of(reduces);
        self.forward.hooked = if gathers { moved.groups } else { 0 };
        self.input.hooked = if gathers || reduces { moved.groups } else { 0 };
        if p.framework.recompute_gathers {
            recompute.kernels += of(gathers);
            recompute.hooked = self.forward.hooked;
        }
        self.wait(&moved, recompute);
        let (out, into) = p.copied(moved.parameters);
        self.forward.shard += out;
        self.input.shard += out + into;
        let released = self.released(moved.parameters);
        recompute.shard += out * if p.framework.recompute_gathers { 1.0 } else { released };
    }

    /// The time that shows.
    ///
    /// A host that waits inside a layer has fetched nothing ahead when the layer begins, or is computed again. Where recompute
    /// gathers for itself, that waits for the reduction of the layer before, as both take their turn on one stream, and the
    /// backward pass's own gather runs behind what is computed again.
    fn wait(&mut self, moved: &Moved, recompute: &mut Pass) {
        let p = self.p;
        let (launch, overlap) = (p.launch(), p.framework.overlap);
        let &Moved { gather, reduce, parameters, ways, .. } = moved;
        let hidden = |seconds, pass: Pass, overlapped| {
            p.hidden(seconds, p.free(pass, launch, seconds, ways), overlapped)
        };
        let (beside, apart) = if overlap.gradient_scatter { (reduce, 0.0) } else { (0.0, reduce) };
        let released = self.released(parameters);
        let fetches = overlap.parameter_gather && !self.waits_for_routing();
        let (forward, backward) = (self.forward, self.input.plus(self.weight));
        let reduces = overlap.reduces(p.shard.zero);
        let reduced = hidden(beside, backward, reduces) + apart;
        let waited = |gather: f64| {
            if overlap.backward_gather {
                hidden(gather + beside, backward, reduces) + apart
            } else {
                gather + reduced
            }
        };
        let ahead = waited(gather);
        let gathers = gather * (1.0 + released);
        self.forward.shard += hidden(gather, forward, fetches);
        self.input.shard += ahead;
        let recomputed = if p.framework.recompute_gathers && gather > 0.0 {
            gather + reduce + hidden(gather, *recompute, fetches)
        } else if self.waits_for_routing() {
            gathers + reduced
        } else {
            waited(gathers)
        };
        recompute.shard += (recomputed - ahead).max(0.0);
    }

    /// Share of a layer's parameters that are released between recompute and backward pass, where so many may lie gathered at a time
    /// (microsoft/DeepSpeed, runtime/zero/partitioned_param_coordinator.py): its last matrices stay, as far as they are no more than
    /// that, but always one. So the gathers of its release 0.19.8 were counted: 0.67 of a layer of GPT-3 175B again, 0.31 of
    /// Mixtral-8x7B, none of Llama-2-70B.
    fn released(&self, parameters: f64) -> f64 {
        let p = self.p;
        let live = p.framework.held.live_parameters as f64;
        if live == 0.0 || parameters <= live {
            return 0.0;
        }
        let (m, s) = (p.model, p.shard);
        let width = match &m.moe {
            Some(moe) if self.expert_parameters > 0.0 => moe.expert_ffn / s.etp,
            _ => m.ffn_hidden / s.tp,
        };
        let matrix = (m.hidden * width) as f64;
        1.0 - ((live / matrix).floor().max(1.0) * matrix / parameters).min(1.0)
    }

    /// Whether the host waits for the device inside the layer: to run experts one after another it must know which tokens each
    /// has (huggingface/transformers, modeling_mixtral.py of release 4: `torch.where` for each expert).
    pub(super) fn waits_for_routing(&self) -> bool {
        let f = self.p.framework;
        self.expert_parameters > 0.0 && !f.fused.grouped_gemm && f.launch_us > 0.0
    }
}

impl Pricer<'_> {
    /// What so many dense parameters and parameters of experts of this rank move in a micro-batch, in so many collectives of
    /// either.
    fn moved(&self, pieces: [u32; 2], [dense, expert]: [f64; 2]) -> Moved {
        let s = self.shard;
        let fetches = self.fetches_from_host();
        let parts =
            [(dense, s.sharded(s.replica_group())), (expert, s.sharded(s.expert_replica_group()))];
        let alone = fetches && s.alone();
        let sharded =
            |&&(parameters, group): &&(f64, Group)| parameters > 0.0 && (group.size > 1 || alone);
        // A rank's shards come from the host before they are gathered, and go there once they are reduced.
        let held = parts
            .iter()
            .filter(sharded)
            .map(|(parameters, group)| parameters / group.size.max(1) as f64);
        let crossing = if fetches { held.sum::<f64>() / self.device.host_bandwidth() } else { 0.0 };
        let seconds = |moves: bool, crosses: bool, bytes: u64| {
            if moves || crosses {
                let crossing = if crosses { crossing } else { 0.0 };
                self.gather_in(pieces, [dense, expert], bytes as f64) + crossing * bytes as f64
            } else {
                0.0
            }
        };
        let framework = self.framework;
        let sent = parameter_sent(framework, self.workload.precision);
        let all = seconds(true, fetches, sent);
        let share = |network: bool| {
            let [dense, expert] =
                parts.map(
                    |(parameters, group)| {
                        if self.fabric.leaves(group) == network {
                            parameters
                        } else {
                            0.0
                        }
                    },
                );
            if all > 0.0 {
                self.gather_in(pieces, [dense, expert], sent as f64) / all
            } else {
                0.0
            }
        };
        // An all-reduce scatters and gathers.
        let ways = if framework.all_reduces && s.zero <= 2 { 2.0 } else { 1.0 };
        Moved {
            gather: seconds(self.gathers_each_pass(), fetches, sent),
            reduce: ways
                * seconds(
                    self.reduces_each_pass(),
                    fetches && !framework.held.gradients_stay,
                    framework.bytes.gradient_sent,
                )
                + self.owners_in_turn(parts)
                + self.among_copies(parts),
            // Experts that no other rank has are in one unit with the rest of their layer.
            groups: parts.iter().filter(sharded).count().min(if s.ep > 1 { 2 } else { 1 }) as u32,
            pieces: parts
                .iter()
                .zip(pieces)
                .filter(|(part, _)| sharded(part))
                .map(|(_, n)| n)
                .sum(),
            parameters: parts.iter().filter(sharded).map(|part| part.0).sum(),
            ways: [share(false), share(true)],
        }
    }

    /// Seconds in which chains fill, where slices of so many parameters are reduced in each pass to one owner after another
    /// (microsoft/DeepSpeed before release 0.13, ZeRO-2), whose slices are alike: a layer has as many as its share of all
    /// parameters. What holds for any group of shards leaves them out.
    fn owners_in_turn(&self, parts: [(f64, Group); 2]) -> f64 {
        let (framework, shard) = (self.framework, self.shard);
        let turns = framework.shards == Shards::Owners && shard.zero == 2;
        if !turns || !self.reduces_each_pass() || self.shortest.is_some() {
            return 0.0;
        }
        let all = shard.tensors(self.model).map(|owned| owned.elements as f64);
        let chains = |((parameters, group), all): ((f64, Group), f64)| {
            if parameters == 0.0 || group.size <= 1 {
                return 0.0;
            }
            let slice = all / group.size as f64;
            (parameters / slice * self.fabric.chains(group) / group.size as f64)
                * self.fabric.chain(slice * framework.bytes.gradient_sent as f64, group)
        };
        parts.into_iter().zip(all).map(chains).sum()
    }

    /// Seconds in which the gradients of so many parameters, scattered over shards, are summed over copies of these in each pass, the
    /// dense ones and those of experts one after the other. What holds for any group of shards knows no copies.
    fn among_copies(&self, parts: [(f64, Group); 2]) -> f64 {
        let (framework, shard) = (self.framework, self.shard);
        let each = framework.sums_copies_each_pass && self.reduces_each_pass();
        if !each || self.shortest.is_some() {
            return 0.0;
        }
        let groups = [shard.replica_group(), shard.expert_replica_group()];
        let sums = parts.iter().zip(groups).map(|(&(parameters, group), replicas)| {
            let share = parameters / group.size.max(1) as f64;
            self.fabric.all_reduce(
                share * framework.bytes.gradient_sent as f64,
                shard.replicated(replicas),
            )
        });
        sums.sum()
    }

    /// How long a pass hides communication of `seconds`, such shares of which pass inside a domain and on the network: as long as
    /// it lasts, but for what it sends in the open on the same wires itself. What it hides of that is not counted again.
    ///
    /// Axes of a torus have wires of their own. What holds for any group of shards does not know their wires.
    fn free(&self, pass: Pass, launch: Launch, seconds: f64, ways: [f64; 2]) -> f64 {
        let lasts = pass.lasts(launch);
        if self.shortest.is_some() || self.fabric.has_axes() {
            return lasts;
        }
        let mut taken = [0.0; 2];
        for (open, group) in [
            (pass.tensor, self.shard.tensor_group()),
            (pass.context, self.shard.context_group()),
            (pass.expert, self.shard.expert_group()),
        ] {
            taken[usize::from(self.fabric.leaves(group))] += open;
        }
        let shows = |way: usize| seconds * ways[way] - (lasts - taken[way]).max(0.0);
        lasts.min(seconds - shows(0).max(shows(1)))
    }

    /// What communication of `seconds` adds beside a computation, where it is overlapped.
    fn hidden(&self, seconds: f64, behind: f64, overlapped: bool) -> f64 {
        if overlapped {
            self.fabric.beside(seconds, behind)
        } else {
            seconds
        }
    }

    /// Adds the gather of an end's parameters to its forward pass and the reduction of their gradients to its backward pass.
    ///
    /// The embedding's shows, as nothing runs before it and nothing after its gradients. So does the head's where both are
    /// gathered at once and reduced together (PyTorch's FSDP: the root has what no layer has); else it runs beside the head's own
    /// products.
    pub(super) fn shard_end(
        &self,
        (parameters, first): (u64, bool),
        forward: &mut Pass,
        (input, weight): (&mut Pass, Pass),
    ) {
        let (gathers, reduces) = (self.gathers_each_pass(), self.reduces_each_pass());
        if parameters == 0 || !(gathers || reduces || self.fetches_from_host()) {
            return;
        }
        let (launch, overlap) = (self.launch(), self.framework.overlap);
        let moved = self.moved([1, 0], [parameters as f64, 0.0]);
        forward.kernels += if gathers { moved.pieces } else { 0 };
        input.kernels += if reduces { moved.pieces } else { 0 };
        let together = self.framework.held.gathered_ends && !self.framework.ends_apart;
        let behind = !first && !together;
        let shows = |seconds, pass: Pass, overlapped| {
            self.hidden(seconds, self.free(pass, launch, seconds, moved.ways), overlapped && behind)
        };
        forward.shard += shows(moved.gather, *forward, overlap.parameter_gather);
        let scattered = overlap.reduces(self.shard.zero) && overlap.gradient_scatter;
        input.shard += shows(moved.reduce, input.plus(weight), scattered);
        let (out, into) = self.copied(moved.parameters);
        forward.shard += out;
        input.shard += into;
    }

    /// Seconds to copy so many parameters out of the buffer that they were gathered into, and their gradients into the one that is
    /// reduced.
    fn copied(&self, parameters: f64) -> (f64, f64) {
        let (copies, bytes) = (self.framework.shard_copies, self.framework.bytes);
        let copy = |copied: bool, each: u64| {
            if copied {
                self.device.traffic(each as f64 * parameters)
            } else {
                0.0
            }
        };
        (
            copy(
                copies.gathered && self.gathers_each_pass(),
                2 * parameter_sent(self.framework, self.workload.precision),
            ),
            copy(copies.reduced && self.reduces_each_pass(), bytes.parameter + bytes.gradient_sent),
        )
    }
}
