//! Attention in a layer: its projections, its core fused or in separate operators, and context parallel.

use super::block::{Block, Entry};
use super::compute::Gemm;
use super::fused_attention::FusedAttention;
use super::repeats::Operator;
use crate::spec::attention::Pass;
use crate::spec::framework::{ContextExchange, Projections};
use crate::spec::kernels::{NormKernel, RotaryKernel, SoftmaxKernel};
use crate::spec::model::{LayerKind, Mla, Position, QkNorm};

impl Block<'_, '_> {
    pub(super) fn attention(&mut self, kind: LayerKind) {
        let p = self.p;
        let (m, s) = (p.model, p.shard);
        let (h, tokens) = (m.hidden, p.tokens as u64);
        let heads = u64::from(m.heads) / s.tp.min(u64::from(m.heads));
        let kv_heads = (u64::from(m.kv_heads) / s.tp).max(1);
        self.norm();
        let (before, kept) = (self.forward, self.kept);
        let (entry, q_width, kv_width, v_out) = match &m.mla {
            Some(a) => {
                let qk = a.qk_nope_dim + a.qk_rope_dim;
                let mut entry = Entry { products: 1, ..Entry::default() };
                let add = |x: Entry, y: (f64, f64, f64)| Entry {
                    forward: x.forward + y.0,
                    input: x.input + y.1,
                    weight: x.weight + y.2,
                    ..x
                };
                // Down-projections are whole on each rank; up-projections are cut by heads.
                if a.q_lora_rank > 0 {
                    entry = add(entry, self.linear(Gemm::new(tokens, a.q_lora_rank, h)));
                    entry = add(entry, self.linear(Gemm::new(tokens, heads * qk, a.q_lora_rank)));
                    self.saved.product(p.tokens * a.q_lora_rank as f64, true);
                    let latent = p.tokens * a.q_lora_rank as f64;
                    self.stream(latent, 2.0, 5.0, (1, 2));
                    self.kept += 2.0 * latent * self.p.width;
                    self.dense_parameters +=
                        (h * a.q_lora_rank + a.q_lora_rank * heads * qk + a.q_lora_rank) as f64;
                } else {
                    entry = add(entry, self.linear(Gemm::new(tokens, heads * qk, h)));
                    self.dense_parameters += (h * heads * qk) as f64;
                }
                self.saved.product(p.tokens * (heads * qk) as f64, true);
                let latent = a.kv_lora_rank + a.qk_rope_dim;
                let up = heads * (a.qk_nope_dim + a.v_dim);
                self.saved.product(p.tokens * latent as f64, true);
                self.saved.product(p.tokens * up as f64, true);
                entry = add(entry, self.linear(Gemm::new(tokens, latent, h)));
                entry = add(entry, self.linear(Gemm::new(tokens, up, a.kv_lora_rank)));
                self.stream(p.tokens * a.kv_lora_rank as f64, 2.0, 5.0, (1, 2));
                self.kept += (latent + a.kv_lora_rank) as f64 * p.tokens * self.p.width;
                self.dense_parameters += (h * latent + a.kv_lora_rank * up + a.kv_lora_rank) as f64;
                if m.qkv_bias {
                    self.dense_parameters += a.latents() as f64;
                    self.bias(p.tokens * a.latents() as f64);
                }
                // What opens both is read of the stream.
                self.read_stream((tokens * h) as f64, 2);
                self.assemble_heads(heads as f64, a);
                (entry, heads * qk, heads * (qk + a.v_dim), heads * a.v_dim)
            }
            None => {
                let (q, kv) = (heads * m.head_dim, 2 * kv_heads * m.head_dim);
                let widths: &[u64] = match p.framework.projections {
                    Projections::Packed | Projections::GateApart => &[q + kv],
                    Projections::Apart => &[q, kv / 2, kv / 2],
                };
                let products = self.products;
                let entry = self.joined(tokens, h, widths, true);
                for width in widths {
                    self.product_made(p.tokens * *width as f64, true, m.qkv_bias);
                }
                self.products_spared(products, m.qkv_bias);
                self.dense_parameters += (h * (q + kv)) as f64;
                if m.qkv_bias {
                    self.dense_parameters += (q + kv) as f64;
                    self.bias(p.tokens * (q + kv) as f64);
                }
                (entry, q, kv, q)
            }
        };
        if m.position == Position::Relative {
            self.linear(Gemm::new(tokens, h / s.tp, h));
            self.saved.product(p.tokens * (h / s.tp) as f64, true);
            self.dense_parameters += (h * h / s.tp) as f64;
        }
        let qk_elements = p.tokens * (q_width + kv_width / 2) as f64;
        if self.takes_apart() {
            self.take_apart(q_width as f64, (kv_width / 2) as f64);
        }
        let in_rotation = p.norms_in_rotation();
        if m.qk_norm != QkNorm::None && !in_rotation {
            let passes = match (m.qk_norm, p.norm_kernel()) {
                (QkNorm::Head, NormKernel::Tuned) => NormKernel::HEADS,
                (_, kernel) => kernel.traffic(),
            };
            let (forward, backward) = passes.kernels;
            self.stream(qk_elements, passes.forward, passes.backward, (2 * forward, 2 * backward));
            if m.qk_norm == QkNorm::Head && p.norm_kernel() == NormKernel::Native {
                let rows = qk_elements / m.head_dim as f64;
                let seconds = rows * BLOCK / (BLOCKS * p.device.processors());
                self.forward.compute += seconds;
                self.input.compute += seconds;
            }
        }
        if m.qk_norm != QkNorm::None {
            self.kept += qk_elements * p.kept_of_norm(p.width);
            self.dense_parameters += match m.qk_norm {
                _ if !m.norm_weight => 0.0,
                QkNorm::Full => (q_width + kv_width / 2) as f64,
                QkNorm::Head | QkNorm::None => 2.0 * m.head_dim as f64,
            };
        }
        if m.position == Position::Rope {
            let rotated = match &m.mla {
                Some(a) => p.tokens * ((heads + 1) * a.qk_rope_dim) as f64,
                None => qk_elements,
            };
            let passes = p.rotary_traffic();
            self.stream(rotated, passes.forward, passes.backward, passes.kernels);
            let packed = p.framework.projections != Projections::Apart;
            // A ring copies keys and values into its buffers (NVIDIA/TransformerEngine, AttnFuncWithCPAndKVP2P).
            let copied = s.cp > 1 && p.framework.context_exchange == ContextExchange::Ring;
            let copied = copied || self.takes_apart();
            if packed && !p.framework.repeats_key_heads && !copied && m.qk_norm == QkNorm::None {
                // The rotated copies live beside the packed projection, whose values are still in use. A norm before rotation
                // keeps queries and keys there anyway, and rotation reads none of its own input again.
                self.kept += rotated * self.p.width;
            }
        }
        if m.attention_sinks {
            self.dense_parameters += heads as f64;
        }
        self.keys = p.tokens * kv_width as f64 * self.p.width;
        let kv_width = if p.framework.repeats_key_heads && m.mla.is_none() && kv_width < 2 * q_width
        {
            // Read each head, write it once for every query head of its group; summed again backward.
            self.stream(p.tokens * (2 * q_width) as f64, 1.0, 1.0, (2, 2));
            2 * q_width
        } else {
            kv_width
        };
        // Queries, keys, values and the output, which is the next product's input: in 8 bits a copy.
        self.kept += p.tokens * (q_width + kv_width + v_out) as f64 * self.p.width;
        self.attention_output = p.tokens * v_out as f64 * self.p.width;
        self.attention_inputs = p.tokens * (q_width + kv_width) as f64;
        if m.position == Position::Rope || m.qk_norm != QkNorm::None {
            let keys = if m.mla.is_some() { q_width } else { kv_width / 2 };
            self.scored = p.tokens * (q_width + keys) as f64;
        }
        let cast = match p.workload.precision.cast_bytes() {
            Some(_) => p.linear_input(p.tokens * v_out as f64, true),
            None => 0.0,
        };
        self.kept += cast;
        if p.framework.held.copied_attention && s.mbs > 1 {
            self.kept += self.attention_output;
        }
        let output = self.attention_output + cast;
        self.may_repeat(Operator::Projections, before, self.kept - kept - output);
        let (before, kept) = (self.forward, self.kept);
        self.core_attention(kind, heads);
        self.attention_may_repeat(before, self.kept - kept + output);
        let (products, before, gathered) = (self.products, self.forward, self.gathered);
        let exit = self.linear(Gemm::new(tokens, h, v_out));
        self.product_made(p.tokens * h as f64, true, m.o_bias);
        self.products_spared(products, m.o_bias);
        self.dense_parameters += (v_out * h) as f64;
        if m.o_bias {
            self.dense_parameters += h as f64;
            self.bias(p.residual_tokens * h as f64);
        }
        // In a parallel block one gather and one sum serve both halves; the MLP prices them.
        if !m.parallel_block {
            self.tensor_edges(entry, exit);
            let launched = self.launched();
            self.residual();
            if kind.moe {
                self.beside_compiled(launched);
            }
            // The next norm keeps it as its input.
            let made = if m.norms_per_layer > 0 { p.residual_bytes() } else { 0.0 };
            self.may_repeat(Operator::Output, before, made);
            self.repeats.each[Operator::Output as usize].0.tensor -= self.gathered - gathered;
        }
    }

    /// Whether queries, keys and values are copied out of what one product made of them.
    fn takes_apart(&self) -> bool {
        let p = self.p;
        p.framework.copies_packed_heads
            && p.fused_attention
            && p.model.mla.is_none()
            && p.framework.projections != Projections::Apart
    }

    /// Takes queries and keys of so many channels, and as many values, out of what one product made of all three.
    ///
    /// Groups of queries lie with their key and value between each other. Queries that share keys become heads in a row by a copy
    /// (NVIDIA/Megatron-LM, megatron/core/transformer/attention.py, get_query_key_value_tensors: `query.reshape`), keys by
    /// the norm or rotation that reads them, and values by a copy, as Transformer Engine wants all three alike
    /// (attention/dot_product_attention/utils.py, get_qkv_layout: `contiguous`). Backward the three's gradients are joined by one
    /// kernel (pytorch/utils.py, SplitAlongDim: `torch.cat`). Without positions, and a group for each query, all stay where they
    /// are.
    fn take_apart(&mut self, queries: f64, keys: f64) {
        let p = self.p;
        let m = p.model;
        let moved = m.position == Position::Rope || m.qk_norm != QkNorm::None;
        if !(moved || queries > keys) {
            return;
        }
        let shared = queries > keys;
        let copied = keys + if shared { queries } else { 0.0 };
        self.stream(p.tokens * copied, TAKEN_OUT, 0.0, (1 + u32::from(shared), 0));
        self.stream(p.tokens * (queries + 2.0 * keys), 0.0, 2.0, (0, 1));
    }

    /// Puts together the queries and keys of latent attention, of a part without position and one that is rotated, which all heads
    /// share of the keys.
    ///
    /// A kernel that rotates them takes keys and values apart and joins the former (NVIDIA/Megatron-LM, core/fusions/
    /// fused_mla_yarn_rope_apply.py): it reads what was projected for both and writes both, and backward the other way. In operators
    /// queries are read and written once more, and of the keys the part without position read and all of them written; backward
    /// gradients of the two parts are joined for the projections that made them, and those of the shared part summed over all heads
    /// (pytorch/torchtitan, models/deepseek_v3/model.py: torch.cat and torch.split). There values stay a view of what was projected
    /// with the keys.
    fn assemble_heads(&mut self, heads: f64, a: &Mla) {
        let [nope, rope, v] = [a.qk_nope_dim, a.qk_rope_dim, a.v_dim].map(|width| width as f64);
        let elements = self.p.tokens * heads;
        let rotary = self.p.framework.fused.rope;
        if matches!(rotary, RotaryKernel::Fused | RotaryKernel::ByToken) {
            let moved = ((nope + v) + (nope + rope + v)) * elements * self.p.width;
            self.forward.compute += self.p.device.traffic(moved);
            self.input.compute += self.p.device.traffic(moved);
        } else {
            let forward = 2.0 * (nope + rope) + nope + (nope + rope);
            let backward = 2.0 * (nope + rope) + 2.0 * (nope + v) + rope;
            self.stream(elements, forward, backward, (2, 3));
            if matches!(
                rotary,
                RotaryKernel::Eager
                    | RotaryKernel::Unfused
                    | RotaryKernel::Widened
                    | RotaryKernel::Complex
            ) {
                self.kept += elements * nope * self.p.width;
            }
        }
    }

    /// Scores, softmax and values; with context parallel a ring of key and value blocks behind them.
    fn core_attention(&mut self, kind: LayerKind, heads: u64) {
        let p = self.p;
        let (m, s) = (p.model, p.shard);
        let length = p.workload.sequence_length as f64;
        let seen = match (&m.window, kind.windowed) {
            (Some(w), true) => (w.size as f64).min(length),
            _ => length,
        };
        let sequences = s.mbs as f64 * heads as f64;
        let (qk_dim, v_dim) = m.attention_widths();
        let (forward, backward) = if p.fused_attention {
            let sequence = match p.framework.context_exchange {
                ContextExchange::Ring | ContextExchange::Blocks => {
                    p.workload.sequence_length / s.cp
                }
                ContextExchange::Gather | ContextExchange::Heads => p.workload.sequence_length,
            };
            let (wide, own) = self.padded(qk_dim, v_dim);
            let call = |pass| {
                let worked = seen + p.device.beyond_window(pass, wide);
                let pairs = self.pairs_of_rank(worked, seen, length);
                FusedAttention { pairs: pairs * sequences, qk_dim: wide, v_dim: own, sequence }
            };
            let mut forward = p.device.attention_forward(call(Pass::Forward));
            let mut backward = p.device.attention_backward(call(Pass::Backward));
            if p.workload.dropout {
                forward += p.device.attention_dropout(Pass::Forward, call(Pass::Forward).pairs);
                backward += p.device.attention_dropout(Pass::Backward, call(Pass::Backward).pairs);
            }
            if p.framework.ordered_attention {
                backward *= p.device.ordered_slowdown();
            }
            self.core.run(forward);
            self.input.run_many(backward, 2);
            let made = p.tokens * heads as f64 * p.width;
            p.fill(&mut self.core, made * v_dim as f64, 1);
            p.fill(&mut self.input, made * (2 * qk_dim + v_dim) as f64, 3);
            self.lay_out(p.tokens * (heads * v_dim) as f64);
            if own > v_dim {
                self.pad(p.tokens * heads as f64, qk_dim, v_dim, wide);
            }
            // One 32-bit log-sum-exp a query.
            self.kept += p.tokens * heads as f64 * 4.0;
            (forward, backward)
        } else {
            self.unfused_core(length, seen, heads, qk_dim, v_dim)
        };
        let kv = match &m.mla {
            Some(_) => heads * (qk_dim + v_dim),
            None if p.framework.repeats_key_heads => heads * 2 * m.head_dim,
            None => (u64::from(m.kv_heads) / s.tp).max(1) * 2 * m.head_dim,
        };
        if s.cp > 1 && p.framework.context_exchange == ContextExchange::Blocks {
            self.merge_blocks(p.tokens * (heads * v_dim) as f64, p.tokens * kv as f64);
        }
        self.forward.compute += self.core.compute;
        self.forward.kernels += self.core.kernels;
        if s.cp > 1 {
            let block = p.tokens * kv as f64 * self.p.width;
            let ends = p.tokens * (heads * (qk_dim + v_dim)) as f64 * self.p.width;
            self.exchange_context(block, ends, forward, backward);
        }
    }

    /// Causal pairs of one head of a sequence of so many tokens on the rank that is waited for, in a window of `seen` tokens of which
    /// a kernel works out `worked`.
    ///
    /// Of all tokens they are a triangle, then a band as wide as the window. Each rank has an equal share, or the last those of the
    /// last tokens: all but what the tokens before them have (zhuzilin/ring-flash-attention, ring_flash_attn.py: a rank skips the
    /// blocks behind its own).
    fn pairs_of_rank(&self, worked: f64, seen: f64, length: f64) -> f64 {
        let framework = &self.p.framework;
        let ranks = self.p.shard.cp as f64;
        let up_to = |length: f64| {
            let worked = worked.min(length);
            let masked = worked * worked / 2.0 + worked * (length - worked);
            masked.max(in_blocks(length, seen, framework.attention_block as f64))
        };
        let whole = up_to(length);
        if framework.contiguous_context && framework.context_exchange != ContextExchange::Heads {
            whole - up_to(length - length / ranks)
        } else {
            whole / ranks
        }
    }

    /// Channels of a head's queries and values as fused attention gets them.
    fn padded(&self, qk_dim: u64, v_dim: u64) -> (u64, u64) {
        let multiple = self.p.framework.attention_padding;
        if multiple == 0 || self.p.model.mla.is_none() {
            return (qk_dim, v_dim);
        }
        let wide = qk_dim.max(v_dim).next_multiple_of(multiple);
        (wide, wide)
    }

    /// Copies so many heads of queries, keys and values into wider ones for fused attention, and what is not padding out of its
    /// result; and the gradients of these the other way (torch.nn.functional.pad). The kernel keeps what it reads and makes.
    fn pad(&mut self, heads: f64, qk_dim: u64, v_dim: u64, wide: u64) {
        let bytes = heads * self.p.width;
        let scores = if wide > qk_dim { 2 } else { 0 };
        let forward = scores * (qk_dim + wide) + (v_dim + wide) + 2 * v_dim;
        let backward = (v_dim + wide) + scores * 2 * qk_dim + 2 * v_dim;
        let kernels = 2 + scores as u32;
        self.core.run_many(self.p.device.stream(bytes * forward as f64), kernels);
        self.input.run_many(self.p.device.stream(bytes * backward as f64), kernels);
        let more = scores * (wide - qk_dim) + (wide - v_dim) + wide;
        self.kept += bytes * more as f64;
    }

    /// Copies queries, keys and values for a fused kernel, and its `results` back, that so many numbers are. The batch is no
    /// dimension where it is one, heads are.
    fn lay_out(&mut self, results: f64) {
        let p = self.p;
        let moves = p.shard.mbs > 1 || p.framework.heads_first;
        let transposed = u32::from(moves && p.framework.attention_layouts > 0);
        let packed = p.framework.attention_layouts.saturating_sub(1);
        let read = self.attention_inputs * f64::from(transposed + packed);
        let bytes = (read + results * f64::from(transposed)) * p.width;
        let kernels = 3 * (transposed + packed) + transposed;
        if kernels > 0 {
            self.core.run_many(p.device.stream(2.0 * bytes), kernels);
            self.input.run_many(p.device.stream(2.0 * bytes), kernels);
        }
    }

    /// What it costs to merge the results of attention block by block, `results` numbers of a rank, and to sum up gradients,
    /// those of `keys` numbers of keys and values among them, all in 32 bits.
    ///
    /// Forward a rank casts its own results (2 + 4 bytes a number) and at last all (4 + 2). Of each further block they are cast
    /// (6), their difference is taken (12), weighted (8) and added (12); or where operators are joined, half of them at once
    /// (5) and the two halves joined again (8). Keys and values are put behind one another to be gathered (4). Backward three
    /// sums are cleared (4), with each block each is added to (10), that of keys and values is put behind one another to
    /// travel (8), and at last they are cast (6).
    fn merge_blocks(&mut self, results: f64, keys: f64) {
        let d = &self.p.device;
        let blocks = self.p.shard.cp as f64;
        let (merge, kernels) = if self.p.framework.fused.residual { (13.0, 4) } else { (38.0, 12) };
        let forward = results * (12.0 + (blocks - 1.0) * merge) + keys * (blocks - 1.0) * 4.0;
        let backward =
            results * (10.0 + blocks * 10.0) + keys * (10.0 + blocks * 18.0 + (blocks - 1.0) * 4.0);
        let count = self.p.shard.cp.min(1 << 16) as u32;
        self.core.run_many(d.stream(forward), count * kernels);
        self.input.run_many(d.stream(backward), count * 8);
    }

    /// What context parallel adds to attention of `forward` and `backward` seconds: `block` are a rank's keys and values,
    /// `ends` its queries and outputs, in bytes.
    fn exchange_context(&mut self, block: f64, ends: f64, forward: f64, backward: f64) {
        let p = self.p;
        let s = p.shard;
        let group = s.context_group();
        // A ring step lasts as long as its slowest hop: the one that leaves the domain, if any does.
        let hop = |bytes: f64| {
            let step = p.fabric.send(bytes, group.stride.max(1) * (s.cp - 1).min(1));
            step.max(p.fabric.all_gather(bytes * s.cp as f64, group) / (s.cp - 1) as f64)
        };
        match p.framework.context_exchange {
            ContextExchange::Ring => {
                let hop = hop(block);
                let exposed = |compute: f64, hop: f64| {
                    let steps = (s.cp - 1) as f64;
                    if p.framework.overlap.context {
                        steps * p.fabric.beside(hop, compute / s.cp as f64)
                    } else {
                        steps * hop
                    }
                };
                self.forward.context += exposed(forward, hop);
                // Keys and values once more, and their gradients.
                self.input.context += exposed(backward, 2.0 * hop);
                // Each further block is a send and attention of its own, backward two of each.
                let blocks = s.cp.min(1 << 16) as u32 - 1;
                self.core.kernels += blocks;
                self.forward.kernels += blocks;
                self.exchanged += blocks;
                self.input.kernels += 4 * blocks;
            }
            ContextExchange::Gather => {
                let whole = block * s.cp as f64;
                let gather = p.fabric.all_gather(whole, group);
                self.forward.context += gather;
                // Gathered again, and their gradients scattered.
                self.input.context += 2.0 * gather;
                self.exchanged += 1;
                self.input.kernels += 2;
                self.transient = self.transient.max(whole);
            }
            ContextExchange::Blocks => {
                let whole = block * s.cp as f64;
                let gather = p.fabric.all_gather(whole, group);
                let behind =
                    |seconds: f64, passes: f64| p.fabric.beside(seconds, passes / s.cp as f64);
                self.forward.context += behind(gather, forward);
                // Gathered again; gradients travel behind the next block's, and the last home.
                let hop = hop(block * 4.0 / self.p.width);
                self.input.context +=
                    behind(gather, backward) + (s.cp - 1) as f64 * behind(hop, backward) + hop;
                self.exchanged += 1;
                self.input.kernels += 1 + s.cp.min(1 << 16) as u32;
                self.transient = self.transient.max(whole);
            }
            ContextExchange::Heads => {
                // Queries, keys and values before attention, its output after; backward the reverse.
                let exchange = p.fabric.all_to_all(block + ends, group);
                self.forward.context += exchange;
                self.input.context += exchange;
                self.exchanged += 2;
                self.input.kernels += 2;
            }
        }
        self.forward.kernels += self.exchanged;
    }

    /// Attention with stored scores: two products, scale and mask, softmax, dropout. Returns its forward and
    /// backward seconds.
    fn unfused_core(&mut self, length: f64, _seen: f64, heads: u64, qk: u64, v: u64) -> (f64, f64) {
        let p = self.p;
        let s = p.shard;
        let (rows, columns) = (p.workload.sequence_length / s.cp, p.workload.sequence_length);
        let batch = s.mbs * heads;
        let scores = Gemm::batched(batch, rows, columns, qk);
        let values = Gemm::batched(batch, rows, v, columns);
        let before = (self.core.compute, self.input.compute);
        let d = &p.device;
        for g in [scores, values] {
            self.core.run(d.plain(g));
            self.input.run(d.plain(g.input_gradient()));
            self.input.run(d.plain(g.weight_gradient()));
        }
        let elements = batch as f64 * rows as f64 * length;
        let bytes = elements * self.p.width;
        if p.model.position == Position::Alibi {
            // The biases are spread over the scores (1) and read by the product that adds to them (1): torch.baddbmm, as
            // bigscience-workshop/Megatron-DeepSpeed calls it (megatron/model/transformer.py).
            self.core.run(d.stream(2.0 * bytes));
        }
        let (multiple, longest) = (p.framework.softmax_multiple, p.framework.softmax_longest);
        // The kernel that wants a multiple takes 16 bits alone.
        let takes = (s.mbs * heads).is_multiple_of(multiple)
            && (longest == 0 || length <= longest as f64)
            && (multiple == 1 || p.width < 4.0);
        let kernel = if takes { p.framework.fused.softmax } else { SoftmaxKernel::Separate };
        let softmax = kernel.traffic();
        self.core.run_many(d.stream(softmax.forward * bytes), softmax.kernels.0);
        self.input.run_many(d.stream(softmax.backward * bytes), softmax.kernels.1);
        if p.workload.dropout {
            self.core.run(d.stream(2.5 * bytes));
            self.input.run(d.stream(2.5 * bytes));
        }
        // Softmax output, dropout mask and dropout output: Korthikanti's 5 as^2b.
        let mut stored = bytes + if p.workload.dropout { elements + bytes } else { 0.0 };
        let mut gradients = 2.0 * bytes;
        let apart = kernel == SoftmaxKernel::Separate;
        if apart && p.framework.softmax_in_fp32 && self.p.width < 4.0 {
            // A softmax of its own runs in 32 bits and keeps its result so. Cast back it is the input of the product with the
            // values, or dropout makes that of it. The gradient passes softmax in 32 bits too.
            stored += 4.0 * elements - if p.workload.dropout { bytes } else { 0.0 };
            gradients = bytes + 8.0 * elements;
        }
        self.kept += stored;
        self.kept_core += stored;
        self.transient = self.transient.max(gradients);
        (self.core.compute - before.0, self.input.compute - before.1)
    }
}

/// Reads and writes, at the rate of a copy, that a copy out of a packed projection lasts as long as: 83.3 and 23.0 us for queries of
/// 8,192 tokens by 4,096 channels and values of 1,024 on an H100, on which one read or write of both takes 27.8 us (Megatron-Core
/// 0.19.2 with Transformer Engine 2.20, tests/data/operators/te_layers.csv).
const TAKEN_OUT: f64 = 3.8;

/// Seconds that a thread block stays on a processor for a row that one warp reads, beside what it moves: two norms of 528,640 heads
/// of 128 numbers and a rotation of six passes take 0.986 ms on a B300, of which those and 3.3 passes of the norms are 0.37
/// (vllm-project/vllm-omni pull request 5773). 32,768 rows of 1,024 on a B200 tell the same (ml-explore/mlx pull request 3850:
/// 51.7 us, of which 3.3 passes are 32.6). Taken to be no shorter backward, where two tensors are read.
const BLOCK: f64 = 1.38e-6;

/// Blocks of 128 threads that a processor of 2,048 holds.
const BLOCKS: f64 = 16.0;

/// Pairs of a sequence of so many tokens that take as long as a window of `seen` tokens in blocks of so many rows and columns.
///
/// A row of blocks visits its own, and those before it that the window of its first token reaches. All of causal attention visits
/// n (n + 1) / 2 of them, for which the kernel was timed; so these take that time's share.
fn in_blocks(length: f64, seen: f64, block: f64) -> f64 {
    if block == 0.0 || seen >= length {
        return 0.0;
    }
    let rows = (length / block).ceil();
    let before = ((seen - 1.0) / block).ceil().min(rows - 1.0);
    let all = rows * (rows + 1.0) / 2.0;
    // The first rows have fewer before them.
    let visited = before * (before + 1.0) / 2.0 + (rows - before) * (before + 1.0);
    length * length / 2.0 * visited / all
}
