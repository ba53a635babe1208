//! A transformer layer operator by operator: attention, then the MLP or the experts.

use super::compute::{FusedAttention, Gemm};
use super::layer::{Pass, Pricer};
use super::shard::{parameter_sent, Layer, LayerCost};
use crate::spec::cluster::Group;
use crate::spec::framework::{
    ContextExchange, ExpertDispatch, GatheredUnit, Projections, Selective,
};
use crate::spec::model::{Activation, LayerKind, Moe, Position, QkNorm};
use crate::spec::workload::Precision;
use crate::units::Bytes;

/// Prices one layer.
pub fn price(pricer: &Pricer<'_>, kind: LayerKind) -> Layer {
    let mut block = Block::new(pricer);
    block.attention(kind);
    match (&pricer.model.moe, kind.moe) {
        (Some(moe), true) => block.experts(moe),
        _ => block.mlp(pricer.model.ffn_hidden, 1.0),
    }
    block.finish(kind)
}

/// The products that open a sub-layer: seconds of all of them together, and how many read the input by themselves.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    forward: f64,
    input: f64,
    weight: f64,
    products: u32,
}

/// The passes and bytes of one layer as they add up.
struct Block<'p, 'a> {
    p: &'p Pricer<'a>,
    forward: Pass,
    input: Pass,
    weight: Pass,
    /// Forward time of the part that selective recompute repeats.
    core: Pass,
    /// Forward time after the last tensor that the backward pass reads.
    unread: Pass,
    kept: f64,
    /// Bytes of `kept` that selective recompute of the core drops.
    kept_core: f64,
    /// Forward seconds of the matrix products, how many there are, and the elements of their outputs.
    products: (f64, u32, f64),
    /// Forward seconds of gathers over the tensor-parallel group.
    gathered: f64,
    /// Bytes of the output of attention.
    attention_output: f64,
    transient: f64,
    /// Bytes that tensor-parallel communication brings and the backward pass reads: inputs that were gathered, and every sum but
    /// the layer's last, its output.
    brought: f64,
    last_sum: f64,
    dense_parameters: f64,
    expert_parameters: f64,
    /// Parameters of the largest matrix.
    matrix: f64,
}

impl<'p, 'a> Block<'p, 'a> {
    fn new(p: &'p Pricer<'a>) -> Self {
        Block {
            p,
            forward: Pass::default(),
            input: Pass::default(),
            weight: Pass::default(),
            core: Pass::default(),
            unread: Pass::default(),
            kept: 0.0,
            kept_core: 0.0,
            products: (0.0, 0, 0.0),
            gathered: 0.0,
            attention_output: 0.0,
            transient: 0.0,
            brought: 0.0,
            last_sum: 0.0,
            dense_parameters: 0.0,
            expert_parameters: 0.0,
            matrix: 0.0,
        }
    }

    /// A linear layer's three products; returns (forward, input gradient, weight gradient) seconds.
    ///
    /// The weight gradient is added to the stored one: the product's kernel reads and writes the sum instead of its own
    /// result, or a second kernel reads that result too. Gradients that are reduced after each pass are not added here.
    fn linear(&mut self, g: Gemm) -> (f64, f64, f64) {
        let d = &self.p.device;
        let weights = g.batch as f64 * g.n as f64 * g.k as f64;
        self.matrix = self.matrix.max(weights);
        let stored = self.p.framework.bytes.gradient as f64;
        let accumulate = if self.p.reduces_each_pass() {
            0.0
        } else if self.p.framework.fused.gradient_accumulation {
            d.traffic(weights * (2.0 * stored - self.p.width))
        } else {
            d.stream(weights * (2.0 * stored + self.p.width))
        };
        let times =
            (d.linear(g), d.linear(g.input_gradient()), d.linear(g.weight_gradient()) + accumulate);
        if self.p.framework.casts_weights {
            // Read in one width and written in the other, 4 + 2 bytes: the weights before, their gradients after.
            self.forward.run(d.stream(6.0 * weights));
            self.weight.run(d.stream(6.0 * weights));
        }
        self.forward.run(times.0);
        self.input.run(times.1);
        self.weight.run(times.2);
        self.products.0 += times.0;
        self.products.1 += 1;
        self.products.2 += g.batch as f64 * g.m as f64 * g.n as f64;
        if self.p.workload.precision == Precision::Fp8 {
            // Operands are cast and transposed to 8 bits: read 2, write 1 + 1 bytes an element, input and
            // output gradient (Transformer Engine's delayed scaling reads no extra maximum).
            let batch = g.batch as f64;
            let cast = |elements: f64| d.stream(4.0 * batch * elements);
            self.forward.run(cast((g.m * g.k) as f64));
            self.input.run(cast((g.m * g.n) as f64));
            self.forward.loops(g.batch, CASTS);
            self.input.loops(g.batch, CASTS);
        }
        for pass in [&mut self.forward, &mut self.input, &mut self.weight] {
            pass.loops(g.batch, 1);
        }
        times
    }

    /// Projections of one input of `tokens` rows and `k` columns, each a product of its own of one of `widths`; their input
    /// gradients are added up.
    fn joined(&mut self, tokens: u64, k: u64, widths: &[u64]) -> Entry {
        let mut entry = Entry { products: widths.len() as u32, ..Entry::default() };
        for &width in widths {
            let (forward, input, weight) = self.linear(Gemm::new(tokens, width, k));
            entry.forward += forward;
            entry.input += input;
            entry.weight += weight;
        }
        let more = entry.products - 1;
        self.stream((tokens * k) as f64, 0.0, 3.0 * f64::from(more), (0, more));
        entry
    }

    /// A memory-bound kernel forward, and one backward, over `elements`, in 16-bit passes.
    fn stream(&mut self, elements: f64, forward: f64, backward: f64, kernels: (u32, u32)) {
        let d = &self.p.device;
        if forward > 0.0 {
            self.forward.run_many(d.stream(forward * elements * self.p.width), kernels.0);
        }
        if backward > 0.0 {
            self.input.run_many(d.stream(backward * elements * self.p.width), kernels.1);
        }
    }

    /// The same where rows change their places: scattered rows pass at a share of the streaming rate.
    fn permute(&mut self, elements: f64, forward: f64, backward: f64, kernels: (u32, u32)) {
        let rate = if self.p.framework.fused.permutation { PERMUTED } else { PERMUTED_UNFUSED };
        self.stream(elements, forward / rate, backward / rate, kernels);
    }

    /// Norm before a sub-layer: keeps its input and its output.
    fn norm(&mut self) {
        let p = self.p;
        if p.model.norms_per_layer == 0 {
            return;
        }
        let width = p.model.hidden as f64;
        p.norm(&mut self.forward, &mut self.input, p.residual_tokens, width);
        self.kept += p.norm_kept(p.residual_tokens * width) + p.column_input(width);
        self.dense_parameters += p.model.norm_parameters() as f64;
        if p.model.norms_per_layer == 4 {
            // Sandwich: one more norm on the sub-layer's output.
            p.norm(&mut self.forward, &mut self.input, p.residual_tokens, width);
            self.kept += p.residual_bytes();
            self.dense_parameters += p.model.norm_parameters() as f64;
        }
    }

    /// The gradient of a bias: a sum over all rows of `elements` output gradients.
    fn bias(&mut self, elements: f64) {
        self.stream(elements, 0.0, 1.0, (0, 1));
    }

    /// Bias, dropout and residual addition after a sub-layer; backward, the gradients of both branches are added.
    fn residual(&mut self) {
        let p = self.p;
        let elements = p.residual_tokens * p.model.hidden as f64;
        let dropout = p.workload.dropout;
        let (forward, backward, kernels) = match (p.framework.fused.residual, dropout) {
            // Read two, write one, each way.
            (_, false) => (3.0, 3.0, (1, 1)),
            // The mask is one byte an element, half a 16-bit pass.
            (true, true) => (3.5, 5.5, (1, 2)),
            // Bias (2), dropout (2.5), addition (3).
            (false, true) => (7.5, 5.5, (3, 2)),
        };
        self.stream(elements, forward, backward, kernels);
        if dropout {
            self.kept += elements;
        }
    }

    /// Collectives around a sub-layer: its input is gathered before each product of `entry`, its output summed after `exit`
    /// (product times forward, input gradient, weight gradient).
    fn tensor_edges(&mut self, entry: Entry, exit: (f64, f64, f64)) {
        let p = self.p;
        if p.shard.tp == 1 {
            return;
        }
        let elements = p.tokens * p.model.hidden as f64;
        let bytes = elements * self.p.width;
        let (gather, sum) = (p.tensor_gather(p.gathered(elements)), p.tensor_sum(bytes));
        let products = f64::from(entry.products);
        let each = |product: f64| product / products;
        let gathered = products * p.beside_forward(gather, each(entry.forward));
        self.gathered += gathered;
        self.forward.tensor += gathered + p.beside_forward(sum, exit.0);
        // Backward: the output gradient is gathered; the input is gathered again for the weight gradient
        // behind the input gradient; the input gradient is summed behind the weight gradient.
        self.input.tensor += p.beside_forward(gather, exit.1);
        self.brought += self.last_sum;
        self.last_sum = p.residual_bytes();
        if p.shard.sp {
            self.brought += bytes;
            self.input.tensor += products * p.beside_backward(gather, each(entry.input));
            self.transient = self.transient.max(bytes);
        }
        self.input.tensor += products * p.beside_backward(sum, each(entry.weight));
    }

    fn attention(&mut self, kind: LayerKind) {
        let p = self.p;
        let (m, s) = (p.model, p.shard);
        let (h, tokens) = (m.hidden, p.tokens as u64);
        let heads = u64::from(m.heads) / s.tp.min(u64::from(m.heads));
        let kv_heads = (u64::from(m.kv_heads) / s.tp).max(1);
        self.norm();
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
                    let latent = p.tokens * a.q_lora_rank as f64;
                    self.stream(latent, 2.0, 5.0, (1, 2));
                    self.kept += 2.0 * latent * self.p.width;
                    self.dense_parameters +=
                        (h * a.q_lora_rank + a.q_lora_rank * heads * qk + a.q_lora_rank) as f64;
                } else {
                    entry = add(entry, self.linear(Gemm::new(tokens, heads * qk, h)));
                    self.dense_parameters += (h * heads * qk) as f64;
                }
                let latent = a.kv_lora_rank + a.qk_rope_dim;
                let up = heads * (a.qk_nope_dim + a.v_dim);
                entry = add(entry, self.linear(Gemm::new(tokens, latent, h)));
                entry = add(entry, self.linear(Gemm::new(tokens, up, a.kv_lora_rank)));
                self.stream(p.tokens * a.kv_lora_rank as f64, 2.0, 5.0, (1, 2));
                self.kept += (latent + a.kv_lora_rank) as f64 * p.tokens * self.p.width;
                self.dense_parameters += (h * latent + a.kv_lora_rank * up + a.kv_lora_rank) as f64;
                (entry, heads * qk, heads * (qk + a.v_dim), heads * a.v_dim)
            }
            None => {
                let (q, kv) = (heads * m.head_dim, 2 * kv_heads * m.head_dim);
                let entry = match p.framework.projections {
                    Projections::Packed | Projections::GateApart => {
                        self.joined(tokens, h, &[q + kv])
                    }
                    Projections::Apart => self.joined(tokens, h, &[q, kv / 2, kv / 2]),
                };
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
            self.dense_parameters += (h * h / s.tp) as f64;
        }
        let qk_elements = p.tokens * (q_width + kv_width / 2) as f64;
        if m.qk_norm != QkNorm::None {
            self.stream(qk_elements, 2.0, 5.0, (2, 4));
            self.kept += qk_elements * self.p.width;
            self.dense_parameters += match m.qk_norm {
                QkNorm::Full => (q_width + kv_width / 2) as f64,
                QkNorm::Head | QkNorm::None => 2.0 * m.head_dim as f64,
            };
        }
        if m.position == Position::Rope {
            let rotated = match &m.mla {
                Some(a) => p.tokens * ((heads + 1) * a.qk_rope_dim) as f64,
                None => qk_elements,
            };
            if p.framework.fused.rope {
                self.stream(rotated, 2.0, 2.0, (2, 2));
            } else {
                // For queries and keys: cosine product (2), negate and join halves (4), sine product (2), sum (3).
                self.stream(rotated, 11.0, 11.0, (10, 10));
            }
            let packed = p.framework.projections != Projections::Apart;
            if packed && !p.framework.repeats_key_heads {
                // The rotated copies live beside the packed projection, whose values are still in use.
                self.kept += rotated * self.p.width;
            }
        }
        if m.attention_sinks {
            self.dense_parameters += heads as f64;
        }
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
        if p.workload.precision == Precision::Fp8 {
            self.kept += p.linear_input(p.tokens * v_out as f64);
        }
        self.core_attention(kind, heads);
        let exit = self.linear(Gemm::new(tokens, h, v_out));
        self.dense_parameters += (v_out * h) as f64;
        if m.o_bias {
            self.dense_parameters += h as f64;
            self.bias(p.residual_tokens * h as f64);
        }
        // In a parallel block one gather and one sum serve both halves; the MLP prices them.
        if !m.parallel_block {
            self.tensor_edges(entry, exit);
            self.residual();
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
        // Causal pairs of one head of one sequence: a triangle, then a band as wide as the window.
        let causal = seen * seen / 2.0 + seen * (length - seen);
        let sequences = s.mbs as f64 * heads as f64 / s.cp as f64;
        let (qk_dim, v_dim) = m.attention_widths();
        let (forward, backward) = if p.fused_attention {
            let sequence = match p.framework.context_exchange {
                ContextExchange::Ring => p.workload.sequence_length / s.cp,
                ContextExchange::Gather | ContextExchange::Heads => p.workload.sequence_length,
            };
            let call = FusedAttention { pairs: causal * sequences, qk_dim, v_dim, sequence };
            self.core.run(p.device.attention_forward(call));
            self.input.run_many(p.device.attention_backward(call), 2);
            // One 32-bit log-sum-exp a query.
            self.kept += p.tokens * heads as f64 * 4.0;
            (p.device.attention_forward(call), p.device.attention_backward(call))
        } else {
            self.unfused_core(length, seen, heads, qk_dim, v_dim)
        };
        self.forward.compute += self.core.compute;
        self.forward.kernels += self.core.kernels;
        if s.cp > 1 {
            let kv = match &m.mla {
                Some(_) => heads * (qk_dim + v_dim),
                None => (u64::from(m.kv_heads) / s.tp).max(1) * 2 * m.head_dim,
            };
            let block = p.tokens * kv as f64 * self.p.width;
            let ends = p.tokens * (heads * (qk_dim + v_dim)) as f64 * self.p.width;
            self.exchange_context(block, ends, forward, backward);
        }
    }

    /// What context parallel adds to attention of `forward` and `backward` seconds: `block` are a rank's keys and values,
    /// `ends` its queries and outputs, in bytes.
    fn exchange_context(&mut self, block: f64, ends: f64, forward: f64, backward: f64) {
        let p = self.p;
        let s = p.shard;
        let group = s.context_group();
        match p.framework.context_exchange {
            ContextExchange::Ring => {
                let step = p.fabric.send(block, group.stride.max(1) * (s.cp - 1).min(1));
                let far = p.fabric.all_gather(block * s.cp as f64, group) / (s.cp - 1) as f64;
                // A ring step lasts as long as its slowest hop: the one that leaves the domain, if any does.
                let hop = step.max(far);
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
            }
            ContextExchange::Gather => {
                let whole = block * s.cp as f64;
                let gather = p.fabric.all_gather(whole, group);
                self.forward.context += gather;
                // Gathered again, and their gradients scattered.
                self.input.context += 2.0 * gather;
                self.transient = self.transient.max(whole);
            }
            ContextExchange::Heads => {
                // Queries, keys and values before attention, its output after; backward the reverse.
                let exchange = p.fabric.all_to_all(block + ends, group);
                self.forward.context += exchange;
                self.input.context += exchange;
            }
        }
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
        if p.framework.fused.softmax {
            // Below the diagonal alone it reads (half), and everywhere it writes: the kernel of causal models
            // (NVIDIA/Megatron-LM, scaled_upper_triang_masked_softmax). Backward it reads two halves.
            self.core.run(d.stream(1.5 * bytes));
            self.input.run(d.stream(2.0 * bytes));
        } else {
            // Scale (2), mask (2.5), cast to 32 bits (3), softmax (4), cast back (3).
            self.core.run_many(d.stream(14.5 * bytes), 5);
            self.input.run_many(d.stream(16.0 * bytes), 5);
        }
        if p.workload.dropout {
            self.core.run(d.stream(2.5 * bytes));
            self.input.run(d.stream(2.5 * bytes));
        }
        // Softmax output, dropout mask and dropout output: Korthikanti's 5 as^2b.
        let stored = bytes + if p.workload.dropout { elements + bytes } else { 0.0 };
        self.kept += stored;
        self.kept_core += stored;
        self.transient = self.transient.max(2.0 * bytes);
        (self.core.compute - before.0, self.input.compute - before.1)
    }

    /// A dense MLP of inner width `ffn` over all tokens; `copies` residual streams end here.
    fn mlp(&mut self, ffn: u64, copies: f64) {
        let p = self.p;
        let m = p.model;
        if !m.parallel_block || m.norms_per_layer > 1 {
            self.norm();
        }
        let (entry, exit) = self.mlp_products(p.tokens, ffn / p.shard.tp, p.tokens * copies);
        self.dense_parameters += dense_share(m.mlp_parameters(ffn, m.mlp_bias), p.shard.tp);
        if m.mlp_bias {
            self.bias(p.tokens * (ffn / p.shard.tp) as f64 + p.residual_tokens * m.hidden as f64);
        }
        self.tensor_edges(entry, exit);
        let before = self.forward;
        self.residual();
        if m.parallel_block {
            self.residual();
        }
        self.unread = self.after_last_read(exit.0, before);
    }

    /// What follows the MLP's second product in the forward pass, itself included, if the backward pass reads nothing of it:
    /// the sum of its results and the residual addition since `before`. Dropout keeps a mask, and a norm its input.
    fn after_last_read(&self, product: f64, before: Pass) -> Pass {
        let p = self.p;
        if p.workload.dropout || p.model.norms_per_layer == 4 {
            return Pass::default();
        }
        let results = p.tokens * p.model.hidden as f64 * p.width;
        let sum = if p.shard.tp == 1 { 0.0 } else { p.tensor_sum(results) };
        Pass {
            compute: product + self.forward.compute - before.compute,
            tensor: p.beside_forward(sum, product),
            kernels: 1 + self.forward.kernels - before.kernels,
            ..Pass::default()
        }
    }

    /// The products and activation of an MLP: `tokens` rows, `width` inner columns on this device.
    #[allow(clippy::type_complexity)]
    fn mlp_products(
        &mut self,
        tokens: f64,
        width: u64,
        kept_tokens: f64,
    ) -> (Entry, (f64, f64, f64)) {
        let m = self.p.model;
        let inputs: u64 = if m.activation.gated() { 2 } else { 1 };
        let entry = match self.p.framework.projections {
            Projections::GateApart | Projections::Apart if inputs == 2 => {
                self.joined(tokens as u64, m.hidden, &[width, width])
            }
            _ => self.joined(tokens as u64, m.hidden, &[inputs * width]),
        };
        self.activation(tokens * width as f64);
        let exit = self.linear(Gemm::new(tokens as u64, m.hidden, width));
        self.kept += self.activation_kept(kept_tokens * width as f64);
        self.transient = self.transient.max(tokens * ((inputs + 1) * width) as f64 * self.p.width);
        (entry, exit)
    }

    /// Bytes that the nonlinearity over `elements` inner channels keeps, and the product after it of its output.
    fn activation_kept(&self, elements: f64) -> f64 {
        let p = self.p;
        let inputs = match p.model.activation {
            // Both halves; of separate operators also the nonlinearity's output, for the product with the gate.
            Activation::Swiglu | Activation::Geglu if p.framework.fused.activation => 2.0,
            Activation::Swiglu | Activation::Geglu => 3.0,
            Activation::Gelu | Activation::Relu2 => 1.0,
            // Its output tells where it was positive.
            Activation::Relu => 0.0,
        };
        elements * inputs * p.width + p.linear_input(elements)
    }

    /// The nonlinearity over `elements` inner channels, with its gate and bias.
    fn activation(&mut self, elements: f64) {
        let gated = self.p.model.activation.gated();
        let (forward, backward, kernels) = match (gated, self.p.framework.fused.activation) {
            // Read both halves, write their product; backward read three, write two.
            (true, true) => (3.0, 5.0, (1, 1)),
            // Nonlinearity (2), product (3); backward product (5), nonlinearity (3), joining halves (4).
            (true, false) => (5.0, 12.0, (2, 4)),
            (false, true) => (2.0, 3.0, (1, 1)),
            // Bias (2) and nonlinearity (2).
            (false, false) => (4.0, 3.0, (2, 1)),
        };
        self.stream(elements, forward, backward, kernels);
    }

    /// A mixture of experts: router, dispatch, expert MLPs, combine, shared expert.
    fn experts(&mut self, moe: &Moe) {
        let p = self.p;
        let (m, s) = (p.model, p.shard);
        self.norm();
        // With whole experts every rank routes its own slice of the sequence; with experts cut over the
        // tensor-parallel group the group routes together.
        let own_tokens = p.residual_tokens;
        let h = m.hidden as f64;
        let visits = own_tokens * f64::from(moe.topk);
        // Router: 32-bit scores, top-k, and the permutation's index. The host launches some 34 small kernels for it and some 12
        // backward, by a count of NVIDIA/Megatron-LM's router and token dispatcher (megatron/core/transformer/moe).
        self.linear(Gemm::new(own_tokens as u64, u64::from(moe.experts), m.hidden));
        self.stream(own_tokens * f64::from(moe.experts), 8.0, 6.0, (34, 12));
        self.dense_parameters += (m.hidden * u64::from(moe.experts)) as f64
            + if moe.router_bias { f64::from(moe.experts) } else { 0.0 };
        // Permute into expert order, and back with the weighted sum.
        self.permute(visits * h, 2.0, 2.0, (1, 1));
        self.permute(visits * h, 2.0, 3.0, (1, 1));
        self.kept += visits * h * self.p.width;
        self.exchange(moe, visits * h * self.p.width);

        let experts = u64::from(moe.experts) / s.ep;
        let width = moe.expert_ffn / s.etp;
        let arrived = visits * s.etp as f64 * load_of_the_fullest(visits * s.ep as f64, s.ep);
        let inputs: u64 = if m.activation.gated() { 2 } else { 1 };
        let rows = (arrived / experts as f64).ceil() as u64;
        for (n, k) in [(inputs * width, m.hidden), (m.hidden, width)] {
            if p.framework.fused.grouped_gemm {
                self.linear(Gemm::batched(experts, rows, n, k));
            } else {
                for _ in 0..experts {
                    self.linear(Gemm::new(rows, n, k));
                }
            }
        }
        if experts > 1 {
            // What arrived by rank is sorted by expert, and the results are sorted back.
            self.permute(arrived * h, 4.0, 4.0, (2, 2));
        }
        self.activation(arrived * width as f64);
        if moe.expert_bias {
            self.weighted_biases(arrived * h, experts);
        }
        self.kept += self.activation_kept(arrived * width as f64) + p.linear_input(arrived * h);
        self.transient =
            self.transient.max(arrived * (h + ((inputs + 1) * width) as f64) * self.p.width);
        self.expert_parameters +=
            dense_share(experts * m.mlp_parameters(moe.expert_ffn, moe.expert_bias), s.etp);
        if moe.shared_ffn > 0 {
            let (entry, exit) = self.mlp_products(p.tokens, moe.shared_ffn / s.tp, p.tokens);
            self.tensor_edges(entry, exit);
            self.dense_parameters +=
                dense_share(m.mlp_parameters(moe.shared_ffn, moe.expert_bias), s.tp)
                    + if moe.shared_gate { h } else { 0.0 };
        }
        self.residual();
    }

    /// The biases of the experts' second products, weighted as their tokens, over `elements` results.
    ///
    /// NVIDIA/Megatron-LM (TEGroupedMLP._apply_bias) multiplies and adds them expert by expert in 32 bits, joins the parts
    /// and casts them back: 4, 2 + 4 + 4, 4 + 4 and 4 + 2 bytes an element. Backward it casts twice (6 + 6), multiplies by
    /// weight and by bias and sums both (2 times 12), and joins (4).
    fn weighted_biases(&mut self, elements: f64, experts: u64) {
        let experts = experts.min(1 << 16) as u32;
        self.stream(elements, 14.0, 20.0, (2 * experts + 2, 6 * experts + 2));
    }

    /// Dispatch and combine: all-to-all over the expert group, then over the expert's own tensor-parallel group.
    fn exchange(&mut self, moe: &Moe, bytes: f64) {
        let p = self.p;
        let s = p.shard;
        let group = s.expert_group();
        let mut once = match p.framework.expert_dispatch {
            ExpertDispatch::Copies => p.fabric.all_to_all(bytes, group),
            ExpertDispatch::OnceANode => {
                p.fabric.once_a_node(bytes, moe.topk, moe.node_limit, group)
            }
            ExpertDispatch::Gather => {
                p.fabric.all_gather(bytes / f64::from(moe.topk) * group.size as f64, group)
            }
            ExpertDispatch::GatherSplit if group.size == 1 => 0.0,
            ExpertDispatch::GatherSplit => {
                let whole = bytes * group.size as f64;
                self.transient = self.transient.max(whole);
                // Split, everyone's share is read and written; joined, this rank's.
                let split = p.device.stream(2.0 * whole) + p.device.stream(2.0 * bytes);
                p.fabric.all_gather(whole, group) + split
            }
        };
        if s.etp > 1 {
            once += p.fabric.all_gather(bytes * s.etp as f64, s.tensor_group());
        }
        self.forward.expert += 2.0 * once;
        self.input.expert += 2.0 * once;
    }

    fn finish(mut self, kind: LayerKind) -> Layer {
        let p = self.p;
        let launch = p.launch();
        if p.framework.overlap.expert {
            // The other micro-batch's computation hides the exchange as far as it lasts.
            self.forward.expert = p.fabric.beside(self.forward.expert, self.forward.compute);
            let behind = self.input.compute + self.weight.compute;
            self.input.expert = p.fabric.beside(self.input.expert, behind);
        }
        self.gathers();
        let mut input_bytes = p.residual_bytes();
        let mut recompute = Pass { shard: 0.0, ..self.forward };
        if p.framework.recompute_stops_early {
            recompute.compute -= self.unread.compute;
            recompute.tensor -= self.unread.tensor;
            recompute.kernels -= self.unread.kernels;
        }
        if p.framework.keeps_tensor_results {
            recompute.tensor = 0.0;
        }
        if p.framework.slices_kept_inputs && !p.shard.sp {
            recompute.tensor += p.fabric.all_gather(input_bytes, p.shard.tensor_group());
            input_bytes /= p.shard.tp as f64;
        }
        if p.framework.keeps_tensor_results {
            input_bytes += self.brought;
        }
        let (selective, kept_selective) = self.selective();
        let (dense_whole, expert_whole) = p.whole_parameters(kind);
        Layer {
            cost: LayerCost {
                forward: self.forward.split(launch),
                input_gradient: self.input.split(launch),
                weight_gradient: self.weight.split(launch),
                recompute_selective: selective.split(launch),
                recompute_full: recompute.split(launch),
                kept: Bytes::from_f64(self.kept),
                kept_selective: Bytes::from_f64(kept_selective),
                kept_input: Bytes::from_f64(input_bytes),
                dense_parameters: self.dense_parameters.round() as u64,
                expert_parameters: self.expert_parameters.round() as u64,
                dense_whole,
                expert_whole,
            },
            transient: Bytes::from_f64(self.transient),
            gathered: match p.framework.held.gathered_unit {
                GatheredUnit::Layer => (self.dense_parameters + self.expert_parameters).round(),
                GatheredUnit::Matrix => self.matrix,
            } as u64,
        }
    }

    /// What selective recompute runs again, and the bytes that are kept with it.
    fn selective(&self) -> (Pass, f64) {
        let p = self.p;
        match p.framework.selective {
            Selective::Attention => (self.core, self.kept - self.kept_core),
            Selective::Operators => {
                let (seconds, count, outputs) = self.products;
                let again = Pass {
                    compute: self.forward.compute - self.core.compute - seconds / 2.0,
                    tensor: self.gathered,
                    kernels: self.forward.kernels - self.core.kernels - count / 2,
                    ..Pass::default()
                };
                // The layer's input, the outputs of half of the products, that of attention with its sums, and of the two
                // reduce-scatters.
                let sums = if p.shard.sp { 2.0 * p.residual_bytes() } else { 0.0 };
                let kept = p.residual_bytes() + outputs / 2.0 * p.width + self.attention_output;
                (again, (kept + sums).min(self.kept))
            }
        }
    }

    /// Sharded parameters are gathered, and sharded gradients reduced, layer by layer in every micro-batch, one
    /// layer ahead: what is longer than the layer's computation shows.
    fn gathers(&mut self) {
        let p = self.p;
        let s = p.shard;
        if !p.reduces_each_pass() {
            return;
        }
        let dense = s.sharded(s.replica_group());
        let expert = s.sharded(s.expert_replica_group());
        let pieces = f64::from(p.framework.gather_pieces);
        let move_all = |bytes_each: f64| {
            let each = bytes_each / pieces;
            let collective = |parameters: f64, group: Group| {
                if parameters == 0.0 || group.size <= 1 {
                    return 0.0;
                }
                let copies = group.size as f64 * p.framework.gather_copy_us * 1e-6;
                p.fabric.all_gather(parameters * each, group) + copies
            };
            pieces
                * (collective(self.dense_parameters, dense)
                    + collective(self.expert_parameters, expert))
        };
        let parameter = parameter_sent(p.framework, p.workload.precision) as f64;
        let gather = if s.zero == 3 { move_all(parameter) } else { 0.0 };
        let reduce = move_all(p.framework.bytes.gradient_sent as f64);
        let forward = self.forward.lasts(p.launch());
        let backward = self.input.lasts(p.launch()) + self.weight.lasts(p.launch());
        let hidden = |seconds: f64, behind: f64, overlapped: bool| {
            if overlapped {
                p.fabric.beside(seconds, behind)
            } else {
                seconds
            }
        };
        let o = p.framework.overlap;
        self.forward.shard += hidden(gather, forward, o.parameter_gather);
        self.input.shard += hidden(gather + reduce, backward, o.gradient_reduce);
        let sharded = |group: Group, parameters: f64| if group.size > 1 { parameters } else { 0.0 };
        let moved = sharded(dense, self.dense_parameters) + sharded(expert, self.expert_parameters);
        let copies = p.framework.shard_copies;
        if copies.gathered && s.zero == 3 {
            let out = p.device.traffic(2.0 * parameter * moved);
            self.forward.shard += out;
            self.input.shard += out;
        }
        if copies.reduced {
            let bytes = p.framework.bytes;
            let each = bytes.parameter + bytes.gradient_sent;
            self.input.shard += p.device.traffic(each as f64 * moved);
        }
    }
}

/// Kernels that cast one expert's operand: its maximum is cleared and found, the scale follows, then cast and transpose
/// (NVIDIA/TransformerEngine, current scaling).
const CASTS: u32 = 4;

/// Share of the streaming rate at which a fused kernel permutes tokens: 4.0 TB/s on a B200 by MooreThreads/SimuMax
/// (configs/system/b200_bf16_ceperm.json), whose streams are taken at 6.8.
const PERMUTED: f64 = 0.6;

/// The same as gathers, scatters and sums of their own: 301 of 1,456 GB/s on an A100 (configs/system/a100_pcie.json).
const PERMUTED_UNFUSED: f64 = 0.2;

/// A tensor-parallel rank's share of a matrix's parameters.
fn dense_share(parameters: u64, ranks: u64) -> f64 {
    parameters as f64 / ranks as f64
}

/// How many times the mean the fullest of `ranks` receives when `visits` are spread at random.
///
/// The expected maximum of `ranks` nearly normal counts of mean `visits / ranks`: mean + sqrt(2 mean ln ranks).
fn load_of_the_fullest(visits: f64, ranks: u64) -> f64 {
    if ranks <= 1 || visits <= 0.0 {
        return 1.0;
    }
    let mean = visits / ranks as f64;
    1.0 + (2.0 * (ranks as f64).ln() / mean).sqrt()
}
