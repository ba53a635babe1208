//! A transformer layer operator by operator: what all of it shares, the MLP, and the sums over attention and experts.

use super::choice::Weighed;
use super::compute::{Casts, Gemm};
use super::layer::Pricer;
use super::pass::Pass;
use super::repeats::{Layer, Operator, Products, Repeats, SavedOutputs};
use super::shard::{LayerCost, Uneven};
use crate::spec::framework::{ExpertDispatch, GatheredUnit, Projections, Selective};
use crate::spec::model::{Activation, LayerKind};
use crate::spec::workload::Precision;
use crate::units::Bytes;

/// Prices one layer, whose passes wait for the rank with most tokens; what adds up over layers is kept of as many as the mean.
pub fn price(pricer: &Pricer<'_>, kind: LayerKind) -> Layer {
    let (fullest, uneven) = price_of(pricer, kind, false);
    let mean = uneven.then(|| price_of(pricer, kind, true).0);
    mean.map_or(fullest, |mean| fullest.beside(&mean))
}

/// The layer on the rank with most tokens, or if `mean` on one with as many as the mean; and whether these differ.
fn price_of(pricer: &Pricer<'_>, kind: LayerKind, mean: bool) -> (Layer, bool) {
    let mut block = Block { mean, ..Block::new(pricer) };
    let graphs = pricer.framework.graphs;
    let start = block.launched();
    block.attention(kind);
    if graphs.attention {
        block.in_graph(start, true);
    }
    match (&pricer.model.moe, kind.moe) {
        (Some(moe), true) => block.experts(moe),
        _ => {
            let before = block.launched();
            block.mlp(pricer.model.ffn_hidden, 1.0);
            if graphs.mlp {
                block.in_graph(before, !graphs.attention);
            }
        }
    }
    let uneven = block.uneven;
    (block.finish(kind), uneven)
}

/// The products that open a sub-layer: seconds of all of them together, and how many read the input by themselves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    pub(super) forward: f64,
    pub(super) input: f64,
    pub(super) weight: f64,
    pub(super) products: u32,
}

/// The passes and bytes of one layer as they add up.
pub(super) struct Block<'p, 'a> {
    pub(super) p: &'p Pricer<'a>,
    pub(super) forward: Pass,
    pub(super) input: Pass,
    pub(super) weight: Pass,
    /// Forward time of the part that selective recompute repeats.
    pub(super) core: Pass,
    /// Norms, and the addition between them, that the backward pass runs again by themselves.
    pub(super) again: Pass,
    /// Forward time after the last tensor that the backward pass reads.
    pub(super) unread: Pass,
    /// What runs forward before the host waits for how many tokens each expert gets.
    pub(super) counted: Pass,
    pub(super) kept: f64,
    /// Bytes of `kept` up to the layer's router, if its balancing loss holds them.
    pub(super) routed: f64,
    /// Bytes of `kept` that selective recompute of the core drops.
    pub(super) kept_core: f64,
    /// The operators that may be computed again by themselves.
    pub(super) repeats: Repeats,
    /// The matrix products that recompute of single operators tells apart.
    pub(super) products: Products,
    /// Forward seconds of gathers over the tensor-parallel group.
    pub(super) gathered: f64,
    /// Launches of the forward pass that selective recompute does not repeat: sums over the tensor-parallel group with the exchanges
    /// of experts, of these the latter, and the exchange of context parallel.
    pub(super) summed: u32,
    pub(super) sent: u32,
    pub(super) exchanged: u32,
    /// What recompute of single operators saves of the products' outputs.
    pub(super) saved: SavedOutputs,
    /// Bytes of keys and values.
    pub(super) keys: f64,
    /// Bytes of the output of attention.
    pub(super) attention_output: f64,
    /// Numbers that attention reads: queries, keys and values.
    pub(super) attention_inputs: f64,
    /// Of these, queries and keys that are no part of a product's result.
    pub(super) scored: f64,
    /// Bytes that a layer's exchanges of experts bring.
    pub(super) dispatched: f64,
    pub(super) transient: f64,
    /// Bytes that tensor-parallel communication brings and the backward pass reads: inputs that were gathered, and every sum but
    /// the layer's last, its output.
    pub(super) brought: f64,
    pub(super) last_sum: f64,
    pub(super) dense_parameters: f64,
    pub(super) expert_parameters: f64,
    /// Parameters of the largest matrix.
    pub(super) matrix: f64,
    /// Whether it is a rank that gets as many tokens as the mean.
    pub(super) mean: bool,
    /// Whether another gets more.
    pub(super) uneven: bool,
}

impl<'p, 'a> Block<'p, 'a> {
    fn new(p: &'p Pricer<'a>) -> Self {
        Block {
            p,
            forward: Pass::default(),
            input: Pass::default(),
            weight: Pass::default(),
            core: Pass::default(),
            again: Pass::default(),
            unread: Pass::default(),
            counted: Pass::default(),
            kept: 0.0,
            routed: 0.0,
            kept_core: 0.0,
            repeats: Repeats::default(),
            products: Products::default(),
            gathered: 0.0,
            summed: 0,
            sent: 0,
            exchanged: 0,
            saved: SavedOutputs::default(),
            keys: 0.0,
            attention_output: 0.0,
            attention_inputs: 0.0,
            scored: 0.0,
            dispatched: 0.0,
            transient: 0.0,
            brought: 0.0,
            last_sum: 0.0,
            dense_parameters: 0.0,
            expert_parameters: 0.0,
            matrix: 0.0,
            mean: false,
            uneven: false,
        }
    }

    /// A linear layer's three products; returns (forward, input gradient, weight gradient) seconds.
    pub(super) fn linear(&mut self, g: Gemm) -> (f64, f64, f64) {
        self.linear_in(g, true, Casts::ALL)
    }

    /// The same in the job's precision with these `casts`, if `narrow`, or in that of the activations.
    pub(super) fn linear_in(&mut self, g: Gemm, narrow: bool, casts: Casts) -> (f64, f64, f64) {
        let d = &self.p.device;
        let product = |g: Gemm| if narrow { d.linear(g) } else { d.plain(g) };
        let weights = g.batch as f64 * g.n as f64 * g.k as f64;
        self.matrix = self.matrix.max(weights);
        let weight = self.p.weight_gradient(g, narrow);
        let across = self.p.framework.operands_across.input_gradient;
        let times = (product(g), product(g.input_gradient().across(across)), weight);
        self.p.cast_weights(weights, &mut self.forward, &mut self.weight);
        self.forward.run(times.0);
        self.input.run(times.1);
        self.weight.run(times.2);
        self.products.run(times.0);
        self.fill_results(g);
        match self.p.workload.precision {
            Precision::Fp8 if narrow => self.casts(g, casts),
            Precision::Fp4 if narrow => self.casts_to_four_bits(g),
            _ => {}
        }
        if self.p.framework.fused.looped_gemm {
            self.launch_in_turn(g.batch);
        }
        times
    }

    /// Projections of one input of `tokens` rows and `k` columns, which a norm made if `of_norm`, each a product of its own of one
    /// of `widths`; their input gradients are added up.
    pub(super) fn joined(&mut self, tokens: u64, k: u64, widths: &[u64], of_norm: bool) -> Entry {
        let products = widths.len() as u32;
        let mut entry = Entry { products, ..Entry::default() };
        for &width in widths {
            let (forward, input, weight) =
                self.linear_in(Gemm::new(tokens, width, k), true, Casts::of(of_norm));
            entry.forward += forward;
            entry.input += input;
            entry.weight += weight;
        }
        self.read_stream((tokens * k) as f64, products);
        entry
    }

    /// A memory-bound kernel forward, and one backward, over `elements`, in 16-bit passes.
    pub(super) fn stream(
        &mut self,
        elements: f64,
        forward: f64,
        backward: f64,
        kernels: (u32, u32),
    ) {
        let d = &self.p.device;
        if forward > 0.0 {
            self.forward.run_many(d.stream(forward * elements * self.p.width), kernels.0);
        }
        if backward > 0.0 {
            self.input.run_many(d.stream(backward * elements * self.p.width), kernels.1);
        }
        self.fill_streams(elements, (forward, backward), kernels);
    }

    /// Norm before a sub-layer: keeps its input and its output.
    pub(super) fn norm(&mut self) {
        let p = self.p;
        if p.model.norms_per_layer == 0 {
            return;
        }
        let width = p.model.hidden as f64;
        let before = self.forward;
        p.norm(&mut self.forward, &mut self.input, p.residual_tokens, width);
        self.kept += p.norm_kept(p.residual_tokens * width) + p.column_input(width);
        self.norm_may_repeat(before);
        if p.framework.repeats_norms {
            self.repeat_norm(width);
        }
        self.dense_parameters += p.model.norm_parameters() as f64;
        if p.model.norms_per_layer == 4 {
            // Sandwich: one more norm on the sub-layer's output.
            p.norm(&mut self.forward, &mut self.input, p.residual_tokens, width);
            self.kept += p.residual_bytes();
            self.dense_parameters += p.model.norm_parameters() as f64;
        }
    }

    /// The gradient of a bias: a sum over all rows of `elements` output gradients.
    pub(super) fn bias(&mut self, elements: f64) {
        self.stream(elements, 0.0, 1.0, (0, 1));
    }

    /// Collectives around a sub-layer: its input is gathered before each product of `entry`, or once before all of them, its output
    /// summed after `exit` (product times forward, input gradient, weight gradient).
    pub(super) fn tensor_edges(&mut self, entry: Entry, exit: (f64, f64, f64)) {
        let p = self.p;
        if p.shard.tp == 1 {
            return;
        }
        let inputs = if p.framework.shared_edges { 1 } else { entry.products };
        let entry = Entry { products: inputs, ..entry };
        let elements = p.tokens * p.model.hidden as f64;
        let bytes = elements * self.p.width;
        let (gather, sum) = (p.tensor_gather(p.gathered(elements)), p.tensor_sum(bytes));
        let products = f64::from(entry.products);
        let each = |product: f64| product / products;
        let gathered = products * p.beside_forward(gather, each(entry.forward));
        self.gathered += gathered;
        self.forward.tensor += gathered + p.beside_forward(sum, exit.0);
        // Backward: the output gradient is gathered; the input is gathered again for the weight gradient
        // behind the input gradient, unless it was kept so; the input gradient is summed behind the weight gradient.
        let gathers = if p.shard.sp { entry.products } else { 0 };
        let again = if p.framework.held.gathered_inputs { 0 } else { gathers };
        // The host launches a collective as it launches a kernel.
        self.forward.kernels += gathers + 1;
        self.summed += 1;
        self.input.kernels += gathers.min(1) + again + entry.products;
        if p.shard.sp && p.framework.sequence_copies {
            let copies = |pass: &mut Pass, gathered: u32, summed: u32| {
                let moved = [(gathered, p.gathered(elements)), (summed, bytes)];
                for (count, bytes) in moved {
                    pass.run_many(f64::from(count) * p.device.stream(2.0 * bytes), count);
                }
            };
            let (edges, sums) = p.whole_collectives();
            let [edges, sums] = [edges, sums].map(u32::from);
            copies(&mut self.forward, edges * gathers, edges);
            copies(&mut self.input, edges * (1 + again), sums * entry.products);
        }
        self.input.tensor += p.beside_forward(gather, exit.1);
        self.brought += self.last_sum;
        self.last_sum = p.residual_bytes();
        if p.shard.sp {
            self.brought += bytes;
            self.input.tensor += f64::from(again) * p.beside_backward(gather, each(entry.input));
            self.transient = self.transient.max(bytes);
        }
        self.input.tensor += products * p.beside_input_sum(sum, each(entry.weight));
    }

    /// A dense MLP of inner width `ffn` over all tokens; `copies` residual streams end here.
    fn mlp(&mut self, ffn: u64, copies: f64) {
        let p = self.p;
        let m = p.model;
        let normed = !m.parallel_block || m.norms_per_layer > 1;
        if normed {
            self.norm();
        }
        let (entry, exit) =
            self.mlp_products(p.tokens, ffn / p.shard.tp, p.tokens * copies, normed);
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

    /// Whether the backward pass reads what follows the last product: dropout keeps a mask, and a norm its input.
    pub(super) fn reads_results(&self) -> bool {
        self.p.workload.dropout || self.p.model.norms_per_layer == 4
    }

    /// What follows the MLP's second product in the forward pass, itself included, if the backward pass reads nothing of it:
    /// the sum of its results and the residual addition since `before`. Dropout keeps a mask, and a norm its input.
    fn after_last_read(&self, product: f64, before: Pass) -> Pass {
        let p = self.p;
        if self.reads_results() {
            return Pass::default();
        }
        let results = p.tokens * p.model.hidden as f64 * p.width;
        let sum = if p.shard.tp == 1 { 0.0 } else { p.tensor_sum(results) };
        Pass {
            compute: product + self.forward.compute - before.compute,
            tensor: p.beside_forward(sum, product),
            kernels: 1 + u32::from(p.shard.tp > 1) + self.forward.kernels - before.kernels,
            ..Pass::default()
        }
    }

    /// The products and activation of an MLP: `tokens` rows, which a norm made if `of_norm`, `width` inner columns on this device.
    #[allow(clippy::type_complexity)]
    pub(super) fn mlp_products(
        &mut self,
        tokens: f64,
        width: u64,
        kept_tokens: f64,
        of_norm: bool,
    ) -> (Entry, (f64, f64, f64)) {
        let m = self.p.model;
        let inputs: u64 = if m.activation.gated() { 2 } else { 1 };
        let (before, products) = (self.forward, self.products);
        let entry = match self.p.framework.projections {
            Projections::GateApart | Projections::Apart if inputs == 2 => {
                self.joined(tokens as u64, m.hidden, &[width, width], of_norm)
            }
            _ => self.joined(tokens as u64, m.hidden, &[inputs * width], of_norm),
        };
        for _ in 0..entry.products {
            let each = inputs / u64::from(entry.products) * width;
            self.product_made(tokens * each as f64, true, m.mlp_bias);
        }
        self.products_spared(products, m.mlp_bias);
        let made = self.activation_inputs(kept_tokens * width as f64);
        self.may_repeat(Operator::Expansion, before, made);
        self.inner_activation(tokens, width);
        let products = self.products;
        let exit = self.linear(Gemm::new(tokens as u64, m.hidden, width));
        self.product_made(tokens * m.hidden as f64, false, m.mlp_bias);
        self.products_spared(products, m.mlp_bias);
        self.kept += self.activation_kept(kept_tokens * width as f64, true);
        self.transient = self.transient.max(tokens * ((inputs + 1) * width) as f64 * self.p.width);
        (entry, exit)
    }

    /// Bytes that the nonlinearity over `elements` inner channels keeps, and the product after it of its output, which it reads
    /// in the job's precision if `narrow`.
    pub(super) fn activation_kept(&self, elements: f64, narrow: bool) -> f64 {
        self.activation_inputs(elements) + self.activation_results(elements, narrow)
    }

    /// Bytes that the nonlinearity keeps of what it reads.
    pub(super) fn activation_inputs(&self, elements: f64) -> f64 {
        let inputs = match self.p.model.activation {
            Activation::Swiglu | Activation::ClampedSwiglu | Activation::Geglu => 2.0,
            Activation::Gelu | Activation::Relu2 => 1.0,
            // Its output tells where it was positive.
            Activation::Relu => 0.0,
        };
        elements * inputs * self.p.width
    }

    /// Bytes that are kept of what it makes: the input of the next product, and of separate operators with a gate its output
    /// before the gate; with clamps their outputs and the sigmoid too.
    pub(super) fn activation_results(&self, elements: f64, narrow: bool) -> f64 {
        let p = self.p;
        let before_gate = match p.model.activation {
            // The halves as they were joined again.
            _ if self.clamps_apart() => 2.0,
            // Half of what it reads, the tangent, and one more than that; in 32 bits what it reads is widened too.
            _ if self.gelu_apart() && p.framework.fused.gelu_again => 0.0,
            _ if self.gelu_widened() => 12.0 / p.width,
            _ if self.gelu_apart() => 3.0,
            _ if self.activation_in_one() => 0.0,
            Activation::ClampedSwiglu => 4.0,
            activation => f64::from(u8::from(activation.gated())),
        };
        before_gate * elements * p.width + p.linear_input(elements, narrow)
    }

    /// Whether bias, nonlinearity and gate are one kernel.
    fn activation_in_one(&self) -> bool {
        let fused = &self.p.framework.fused;
        fused.activation && (fused.gate || !self.p.model.activation.gated())
    }

    /// Whether halves are clamped before the kernel of the nonlinearity reads them.
    fn clamps_apart(&self) -> bool {
        let fused = &self.p.framework.fused;
        self.p.model.activation == Activation::ClampedSwiglu
            && self.activation_in_one()
            && !fused.clamp
    }

    /// Whether GELU runs term by term.
    fn gelu_apart(&self) -> bool {
        let fused = &self.p.framework.fused;
        self.p.model.activation == Activation::Gelu && !fused.activation && !fused.gelu
    }

    /// Whether most of these terms are in 32 bits.
    fn gelu_widened(&self) -> bool {
        self.gelu_apart() && self.p.framework.fused.gelu_in_fp32 && self.p.width < 4.0
    }

    /// The nonlinearity over `elements` inner channels, with its gate and bias, in so many `parts` one after another, before a product in
    /// the job's precision if `narrow`; `weighed` before that with their tokens' weights.
    ///
    /// A product's own kernel has `made` it, if so.
    pub(super) fn activation(
        &mut self,
        elements: f64,
        parts: u32,
        narrow: bool,
        weighed: Weighed,
        made: bool,
    ) {
        let activation = self.p.model.activation;
        let (forward, backward, kernels) = match (activation.gated(), self.activation_in_one()) {
            // NVIDIA/Megatron-LM (fusions/fused_bias_geglu.py): two clamps (2 times 2), their results joined (4), and the kernel
            // (3); backward that (5), and for each half its gradient beside what was clamped (3), both joined (4).
            (true, true) if self.clamps_apart() => (11.0, 15.0, (4, 4)),
            // Read both halves, write their product; backward read three, write two. With weights of tokens inside, the same read
            // again for a sum over each row (NVIDIA/Megatron-LM, fusions/fused_bias_swiglu.py, weighted_swiglu_back): on an H100 0.507
            // and 0.232 ms for 117 million numbers, of which one read or write takes 0.078 (tests/data/operators/te_layers.csv).
            (true, true) if weighed == Weighed::Within => (3.0, 9.5, (1, 2)),
            (true, true) => (3.0, 5.0, (1, 1)),
            // The halves lie interleaved (pytorch/torchtitan, models/gpt_oss/moe.py): two clamps (2 times 3), scale (2), sigmoid
            // (2), product (3), sum of products (3). Backward the latter (6, 3 for their sum), product (6), sigmoid (3), scale (2),
            // their sum (3), one comparison and choice for the upper clamp (5), four operators for both (9), each half
            // copied into zeros (2 times 5), and the sum of these (6). The host starts the backward of each of 8 operators.
            (true, false) if activation == Activation::ClampedSwiglu => (16.0, 53.0, (6, 8)),
            // Nonlinearity (2), product (3); backward a product for each factor's gradient (2 times 3), nonlinearity (3), and
            // where both are halves of one result their gradients joined (4).
            (true, false) if self.p.framework.projections == Projections::Packed => {
                (5.0, 13.0, (2, 4))
            }
            (true, false) => (5.0, 9.0, (2, 3)),
            (false, true) => (2.0, 3.0, (1, 1)),
            // Sum with the bias (2); half of it (2), two scales (2 times 2), square (3), one more (2), product (3), the tangent (2),
            // one more (2), product (3). Backward that sum and the tangent again (2 + 14), half (2), the tangent's square (2) from
            // one (2), scale (2), square (3), more (2), their product (3) and that with the half (3), half of one more than the
            // tangent (2 + 2), the sum of both (3) and the gradient's product with it (3).
            (false, false) if self.gelu_apart() && self.p.framework.fused.gelu_again => {
                (23.0, 45.0, (10, 19))
            }
            // In bytes: half of it (2 + 2), a wide copy (2 + 4), its cube and the share of that (2 times 4 + 4), sum (2 + 4 + 4), scaled,
            // the tangent, one more (3 times 4 + 4), product (2 + 4 + 4), its cast (4 + 2). Backward that cast (2 + 4), the product
            // (4 + 4 + 4 and its cast, 4 + 2; 4 + 2 + 4), tangent (4 + 4 + 4), scale (4 + 4), the cast of one path (4 + 2), share
            // (4 + 4), cube (2 times 4 + 4, 4 + 4 + 4) and its cast (4 + 2), half (2 + 2), and the sum of three paths (2 times 2 + 2 + 2).
            (false, false) if self.gelu_widened() => {
                (76.0 / self.p.width, 118.0 / self.p.width, (10, 15))
            }
            // Half of it (2), its cube (2), its share (2) and sum (3), scaled (2), the tangent (2), one more (2), product (3).
            // Backward the product (6), tangent (3), scale (2), share (2), cube (7), half (2), and the sum of three paths (6).
            (false, false) if self.gelu_apart() => (18.0, 28.0, (8, 11)),
            // Bias (2) and nonlinearity (2).
            (false, false) => (4.0, 3.0, (2, 1)),
        };
        let before = self.forward;
        if !made {
            self.stream(elements, forward, backward, (parts * kernels.0, parts * kernels.1));
        }
        let apart = weighed == Weighed::Apart;
        if apart {
            self.weigh(elements, parts);
        }
        let read = if apart { elements * self.p.width } else { 0.0 };
        self.activation_may_repeat(before, self.activation_results(elements, narrow) + read);
    }

    /// Activations times the weights of their tokens where no kernel joins them (NVIDIA/Megatron-LM, transformer/moe/experts.py,
    /// TEGroupedMLP.bias_act_func without bias_activation_fusion): a product (2 passes), backward one for each gradient (2 and 3)
    /// and a sum (1).
    ///
    /// A dispatch that sends a token to a node once wants the weights in 32 bits (--moe-router-dtype fp32), and so is what they
    /// are multiplied with: the product reads 2 bytes and writes 4, and a cast follows. Backward that cast (2 + 4), the product
    /// with the weights (4 + 4) and its cast (4 + 2), a product of both (2 + 4 + 4) and its sum (4). On eight MI355X a kernel for all
    /// of it spares 0.98 of the 8.89 s that a step of Qwen3-30B-A3B takes (AMD-AGI/Primus,
    /// agent/workspace/qwen3_fp8_tw_gfx950_20261010/README.md); these passes and those of the nonlinearity come to 0.93.
    fn weigh(&mut self, elements: f64, parts: u32) {
        let wide = 4.0 / self.p.width;
        if self.p.framework.expert_dispatch == ExpertDispatch::OnceANode && wide > 1.0 {
            self.stream(elements, 2.0 + 2.0 * wide, 3.0 + 7.0 * wide, (2 * parts, 5 * parts));
        } else {
            self.stream(elements, 2.0, 6.0, (parts, 3 * parts));
        }
    }

    fn finish(mut self, kind: LayerKind) -> Layer {
        let p = self.p;
        let launch = p.launch();
        let exchanged = self.forward.expert;
        (self.forward.entered, self.input.entered) = (1, 1);
        // What is computed again finds its parameters gathered for the backward pass, and no other micro-batch beside its exchange.
        let mut recompute = self.forward;
        if p.framework.overlap.expert {
            // The other micro-batch's computation hides the exchange as far as it lasts.
            self.forward.expert = p.fabric.beside(self.forward.expert, self.forward.compute);
            let behind = self.input.compute + self.weight.compute;
            self.input.expert = p.fabric.beside(self.input.expert, behind);
        }
        // A layer that is run again as a whole has its norms with it, and no other time. Their checkpoints are launched in no other pass.
        recompute.compute -= self.again.compute;
        recompute.kernels = recompute.kernels.saturating_sub(self.again.kernels);
        let (selective, kept_selective) = self.selective();
        let asked = self.forward.kernels + self.forward.apart;
        let mut input_bytes = p.residual_bytes();
        if p.framework.recompute_stops_early {
            recompute.compute -= self.unread.compute;
            recompute.tensor -= self.unread.tensor;
            recompute.kernels = recompute.kernels.saturating_sub(self.unread.kernels);
            recompute.looped -= self.unread.looped;
            recompute.apart -= self.unread.apart;
            if exchanged > 0.0 {
                recompute.expert *= 1.0 - self.unread.expert / exchanged;
            }
        }
        if p.framework.keeps_tensor_results {
            recompute.tensor = 0.0;
        }
        if p.framework.slices_kept_inputs && !p.shard.sp {
            recompute.tensor += p.fabric.all_gather(input_bytes, p.shard.tensor_group());
            input_bytes /= p.shard.tp as f64;
        }
        self.shards(&mut recompute);
        if p.framework.keeps_tensor_results {
            input_bytes += self.brought;
        }
        let returned = if p.framework.held.returned_keys { self.keys } else { 0.0 };
        let kept_input = input_bytes + returned;
        // What lives on though a layer is computed again as a whole does so too where its operators are.
        let kept_selective = kept_selective.max(kept_input).min(self.kept);
        let (dense_whole, expert_whole) = p.whole_parameters(kind);
        let backward = self.input.plus(self.weight);
        self.repeats.backward = backward;
        let (forward, recompute_full) = self.forward_and_again(recompute, backward);
        Layer {
            cost: LayerCost {
                forward,
                input_gradient: self.input.split(launch),
                weight_gradient: self.weight.split_behind(self.input, launch),
                recompute_selective: self.selective_again(selective, backward, asked),
                recompute_full,
                kept: Bytes::from_f64(self.kept),
                kept_selective: Bytes::from_f64(kept_selective),
                kept_offloaded: Bytes::from_f64(self.repeats.offloaded(
                    p.framework.held.offloaded,
                    (p.framework.selective == Selective::Named).then_some(p.framework.named),
                    p.residual_bytes(),
                )),
                kept_input: Bytes::from_f64(kept_input),
                held_balancing: Bytes::from_f64(self.routed),
                uneven: [Uneven::default(); 2],
                dense_parameters: self.dense_parameters.round() as u64,
                expert_parameters: self.expert_parameters.round() as u64,
                dense_whole,
                expert_whole,
            },
            repeats: self.repeats,
            mean: self.repeats.made(),
            widest: Bytes::from_f64(self.kept),
            core: Bytes::from_f64(self.kept) - Bytes::from_f64(kept_selective),
            transient: Bytes::from_f64(self.transient),
            returned: Bytes::from_f64(returned),
            gathered: match p.framework.held.gathered_unit {
                GatheredUnit::Layer => (self.dense_parameters + self.expert_parameters).round(),
                GatheredUnit::Matrix => self.matrix,
            } as u64,
        }
    }
}

/// A tensor-parallel rank's share of a matrix's parameters.
pub(super) fn dense_share(parameters: u64, ranks: u64) -> f64 {
    parameters as f64 / ranks as f64
}
