//! A mixture of experts in a layer: router, permutation, exchange, the experts' products.

use super::block::{dense_share, Block};
use super::choice::{Choice, Weighed};
use super::compute::{Casts, Gemm};
use super::pass::Pass;
use super::permutation::PERMUTED_UNFUSED;
use super::repeats::Operator;
use crate::spec::framework::{ByProducts, ExpertDispatch, Projections};
use crate::spec::model::Moe;
use crate::spec::workload::Precision;

/// Seconds in which a gradient is added to a sum that thousands are added to: see [`Block::copied_biases`].
const ADDED: f64 = 6.8e-3 / 283e6;

impl Block<'_, '_> {
    /// A mixture of experts: router, dispatch, expert MLPs, combine, shared expert.
    pub(super) fn experts(&mut self, moe: &Moe) {
        let p = self.p;
        let (m, s) = (p.model, p.shard);
        let before = self.launched();
        self.norm();
        self.routed = if p.framework.held.held_balancing { self.kept } else { 0.0 };
        // With whole experts every rank routes its own slice of the sequence; with experts cut over the
        // tensor-parallel group the group routes together.
        let own_tokens = p.residual_tokens;
        let h = m.hidden as f64;
        let visits = own_tokens * f64::from(moe.topk);
        // Who gathers tokens before it permutes them has those of all ranks that hold parts of its experts.
        let gathers = p.framework.expert_dispatch == ExpertDispatch::Gather;
        let handled = if gathers { visits * s.etp as f64 } else { visits };
        let wide = h * p.residual_width() / p.width;
        let looked_up = p.framework.gathers_in_vectors;
        // Router: 32-bit scores, top-k, and the permutation's index.
        self.scores(Gemm::new(own_tokens as u64, u64::from(moe.experts), m.hidden));
        if !p.framework.wide_router {
            self.read_stream(own_tokens * h, 1);
        }
        // Gradients of what the router, routed and shared experts read are added up.
        self.add_gradients(own_tokens * h, 1 + u32::from(moe.shared_ffn > 0));
        self.choose(own_tokens, moe);
        self.dense_parameters += (m.hidden * u64::from(moe.experts)) as f64
            + if moe.router_bias { f64::from(moe.experts) } else { 0.0 };
        let graphed = p.framework.graphs.router;
        if graphed {
            self.in_graph(before, !p.framework.graphs.attention);
        }
        self.counted = self.forward;
        let once = p.framework.expert_dispatch == ExpertDispatch::OnceANode;
        // What follows the experts' second product in the forward pass.
        let mut after = Pass::default();
        let groups = match p.framework.dispatch_by_products {
            ByProducts::Sequence | ByProducts::AtLeast => s.mbs,
            ByProducts::MicroBatch => 1,
            ByProducts::None => 0,
        };
        let by_products = moe.capacity_factor > 0.0 && groups > 0;
        let unsent = self.forward;
        if by_products {
            self.places(own_tokens, groups, moe);
        } else if !once {
            // Permute into expert order, which three kernels find (NVIDIA/TransformerEngine, pytorch/triton/permutation.py), and
            // back with the weighted sum.
            let found = if self.looks_up() { 1 } else { 4 };
            let scattered = p.framework.scatters_results;
            let both = self.tokens_and_copies(moe);
            let put = if scattered { 0.0 } else { both };
            self.permute(handled * h, (both, looked_up), (put, false), (found, 1));
            self.find_places(own_tokens, moe);
            if scattered {
                self.input.run(self.added(handled * h));
            }
            self.counted = self.forward;
            // Apart from them a copy reads each token and writes its choices, and a sum reads these and writes it; backward likewise.
            let apart =
                if p.framework.copies_choices { 1.0 + 1.0 / f64::from(moe.topk) } else { 0.0 };
            self.stream(handled * wide, apart, apart, (1, 1));
            if s.ep * s.etp == 1 {
                self.may_repeat(Operator::Dispatch, unsent, 0.0);
            }
            let before = self.forward;
            // Backward the weights' gradients need what experts made, unless the weights act inside of them or in an operator of their own.
            let backward = both + if self.weighs_on_the_way() { 1.0 } else { 0.0 };
            self.permute(handled * h, (put, false), (backward, looked_up), (1, 1));
            if scattered {
                self.forward.run(self.added(handled * h));
            }
            self.stream(handled * wide, apart, apart, (1, 1));
            if gathers && s.ep * s.etp > 1 {
                // Results are added to zeros for all that was gathered, and so are the gradients of what was permuted.
                self.stream(own_tokens * (s.ep * s.etp) as f64 * h, 1.0, 1.0, (1, 1));
            }
            after = after.plus(self.forward.since(before));
        }
        if by_products {
            self.kept += visits * h * p.framework.held.weighted_result_bytes as f64;
        } else {
            self.weight(moe, handled * h);
        }

        let experts = u64::from(moe.experts) / s.ep;
        let width = moe.expert_ffn / s.etp;
        let (filled, fullest) = self.filled(moe, visits, experts);
        let load = filled * fullest;
        let way_back = self.exchange(moe, filled * visits * h * self.p.width, fullest);
        let arrived = visits * s.etp as f64 * load;
        let inputs: u64 = if m.activation.gated() { 2 } else { 1 };
        // Rows that are worked out, with those of zeros.
        let padded = self.padded_rows(moe, visits * s.etp as f64, experts);
        let worked = padded.unwrap_or(arrived);
        let rows = (worked / experts as f64).ceil() as u64;
        // Places are filled alike, and so are experts in turn; where every expert is chosen there is nothing to draw; and tiles that lie
        // where the rows lie are all filled.
        let grouped = !by_products && experts > 1;
        let even = self.is_even(moe) || padded.is_some();
        let drawn = !even && moe.topk < moe.experts && p.framework.grouped_tile_rows == 0;
        // Gate and up are tiled as one where they are one product.
        let parts = if p.framework.projections == Projections::Packed { 1 } else { inputs };
        let product = |parts, n, k| {
            let product = Gemm::batched(experts, rows, n, k);
            let product = if drawn { product.drawn() } else { product };
            product.in_tiles(if grouped {
                self.whole_tiles(experts, rows, n / parts, k)
            } else {
                1.0
            })
        };
        let (up, down) = (product(parts, inputs * width, m.hidden), product(1, m.hidden, width));
        let (before, before_matrix) = (self.forward, self.matrix);
        let (opening, closing) = self.expert_casts();
        self.expert_products(up, opening);
        if parts > 1 && p.framework.fused.grouped_gemm {
            // Gate and up are a matrix each.
            self.matrix = before_matrix.max((up.batch * up.n * up.k / parts) as f64);
        }
        // Each of a group of products, or of those of one expert after another, has its own gradient of the input.
        self.read_stream(worked * h, parts as u32);
        let made = self.activation_inputs(worked * width as f64);
        self.may_repeat(Operator::Expansion, before, made);
        let before = self.forward;
        self.expert_products(down, closing);
        self.may_repeat(
            Operator::Contraction,
            before,
            handled * h * p.framework.held.weighted_result_bytes as f64,
        );
        after = after.plus(self.forward.since(before));
        let passes = if by_products {
            0.0
        } else if once {
            // A token is read where it lies, copied for each of its experts here, and their results are summed for its way back.
            1.0 + p.fabric.copies_a_choice(self.choice(moe), s.expert_group())
        } else if experts > 1 && (self.sorts_arrivals() || p.framework.permutes_twice) {
            // What arrived by rank is sorted by expert, and the results are sorted back; what no other rank sent came sorted.
            2.0
        } else {
            0.0
        };
        if passes > 0.0 {
            let before = self.forward;
            // Forward two kernels more find where the chunks go.
            if looked_up {
                // There by a look-up and back by putting rows where they belong.
                self.permute(arrived * h, (passes, true), (passes, false), (3, 1));
                self.permute(arrived * h, (passes, false), (passes, true), (1, 1));
            } else {
                self.permute(arrived * h, (2.0 * passes, false), (2.0 * passes, false), (4, 2));
            }
            if !once {
                self.sort_places(2.0 * arrived);
            }
            let both = self.forward.since(before);
            let (kernels, apart) = (both.kernels.min(2), both.apart.min(2));
            after =
                after.plus(Pass { compute: both.compute / 2.0, kernels, apart, ..Pass::default() });
        }
        if padded.is_some() {
            after = after.plus(self.pad_to_the_fullest(experts, arrived * h, worked * h));
        }
        if self.pads_experts(moe) {
            // Copied to whole multiples of rows, the weights beside them, and the results copied back; their gradients likewise.
            let before = self.forward;
            self.stream(arrived * h, 4.0, 4.0, (3, 3));
            let both = self.forward.since(before);
            after = after.plus(Pass { compute: both.compute / 2.0, kernels: 1, ..Pass::default() });
        }
        // Tokens of other ranks arrive sorted.
        if self.looks_up() {
            self.look_up(experts, own_tokens * h);
        }
        // Products that are not grouped have an activation each between them.
        let apart = if p.framework.fused.grouped_gemm { 1 } else { experts as u32 };
        let weighed = self.weighs();
        let (narrow, made) = (!p.framework.wide_experts, self.casts_in_products());
        self.activation(worked * width as f64, apart, narrow, weighed, made);
        if moe.expert_bias {
            self.biases(worked * (inputs * width) as f64);
            self.weighted_biases(worked * h, experts);
        }
        if weighed == Weighed::Apart {
            self.weight_inner(worked * width as f64, apart);
        }
        let sent = p.linear_input(worked * h, !p.framework.wide_experts);
        if s.ep * s.etp == 1 && (by_products || !once) {
            self.repeats.each[Operator::Dispatch as usize].1 += sent;
        }
        let inner = worked * width as f64;
        let (read, made) = (self.activation_inputs(inner), self.activation_results(inner, narrow));
        self.kept += self.stashed(read + made + sent);
        self.stash([sent, read, made]);
        // Products that are not grouped are of one expert at a time.
        let at_once = worked / f64::from(apart);
        self.transient =
            self.transient.max(at_once * (h + ((inputs + 1) * width) as f64) * self.p.width);
        self.expert_parameters +=
            dense_share(experts * m.mlp_parameters(moe.expert_ffn, moe.expert_bias), s.etp);
        if moe.shared_ffn > 0 {
            let (before, passed) = (self.launched(), self.forward);
            let (entry, exit) = self.mlp_products(p.tokens, moe.shared_ffn / s.tp, p.tokens, false);
            self.tensor_edges(entry, exit);
            self.dense_parameters +=
                dense_share(m.mlp_parameters(moe.shared_ffn, moe.expert_bias), s.tp)
                    + if moe.shared_gate { h } else { 0.0 };
            if graphed {
                self.in_graph(before, false);
            }
            self.counted = self.counted.plus(self.forward.since(passed));
        }
        let (before, launched) = (self.forward, self.launched());
        self.residual();
        self.beside_compiled(launched);
        after = after.plus(self.forward.since(before));
        if p.framework.held.weighted_result_bytes == 0 && !self.reads_results() {
            self.unread = Pass { expert: way_back, ..after };
        }
    }

    /// A router's product, which 8 and 4 bits leave out (NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_utils.py:
    /// router_gating_linear; pytorch/torchtitan, docs on float8: filter_fqns). Recompute of single operators runs it again.
    ///
    /// In 32 bits its input is cast (2 + 4 bytes), and kept so, and the input's gradient cast back (4 + 2), which of both a compiler
    /// makes part of what is beside them, where the stream is not that wide itself; so are weights and their gradient that are not
    /// kept in 32 bits. On eight B200 gpt-oss-20b, 24 layers with 32
    /// experts and a width of 2,880, took 80.4 us a token in 16 bits and 80.7 so, with layers computed again 99.5 and 100.1
    /// (pytorch/torchtitan pull request 2389): 12 and 25 ns a layer.
    fn scores(&mut self, g: Gemm) {
        let p = self.p;
        let d = &p.device;
        let of = |g: Gemm| d.widened(g).filter(|_| p.framework.wide_router);
        let (Some(product), Some(input), Some(weight)) =
            (of(g), of(g.input_gradient()), of(g.weight_gradient()))
        else {
            let products = self.products;
            self.linear_in(g, false, Casts::ALL);
            self.products = products;
            return;
        };
        let (tokens, weights) = ((g.m * g.k) as f64, (g.n * g.k) as f64);
        for (pass, seconds) in
            [(&mut self.forward, product), (&mut self.input, input), (&mut self.weight, weight)]
        {
            pass.run(seconds);
        }
        if p.framework.fused.activation {
            self.forward.compute += d.traffic(4.0 * tokens);
            self.input.compute += d.traffic(4.0 * tokens);
        } else if !p.is_wide() {
            self.forward.run(d.stream(6.0 * tokens));
            self.input.run(d.stream(6.0 * tokens));
            self.kept += 4.0 * tokens;
        }
        if !p.framework.casts_weights {
            self.forward.run(d.stream(6.0 * weights));
            self.weight.run(d.stream(6.0 * weights));
        }
        self.matrix = self.matrix.max(weights);
    }

    /// Whether what experts made is weighted as it is put back in order.
    fn weighs_on_the_way(&self) -> bool {
        let (f, weighted) = (self.p.framework, self.p.framework.held.weighted_result_bytes as f64);
        let joined = f.fused.activation && f.dispatch_launch_us == 0.0;
        // A product that sums them reads them again for the weights' gradients itself.
        let by_product = weighted > self.p.width && self.sums_by_product();
        weighted > 0.0 && !by_product && (joined || weighted <= self.p.width)
    }

    /// Weights what experts made, of so many `elements`. In another width it is cast for that, and its gradient back.
    fn weight(&mut self, moe: &Moe, elements: f64) {
        let p = self.p;
        let weighted = p.framework.held.weighted_result_bytes as f64;
        self.kept += elements * weighted;
        if weighted > p.width && self.sums_by_product() {
            self.transient = self.transient.max(elements * (weighted + p.width));
            self.sum_by_product(moe, elements);
            return;
        }
        if p.framework.fused.activation && p.framework.dispatch_launch_us == 0.0 {
            if weighted > p.width {
                self.transient = self.transient.max(elements * (weighted + p.width));
            }
            return;
        }
        // Of a product of its own the gradient lies beside those of both factors, which is summed to the weights' shape afterwards
        // (pytorch/pytorch, derivatives.yaml: mul.Tensor; autograd/engine.cpp: validate_outputs). Where experts run in turn and
        // look their tokens up, so do their results.
        let at_once = if self.looks_up() { 1.0 / f64::from(moe.experts) } else { 1.0 };
        self.transient = self.transient.max(at_once * elements * 3.0 * weighted);
        if weighted > p.width {
            // No compiler joins the steps: cast, product and cast; backward both casts, the product, and for the weights'
            // gradient another product and its sum.
            let wide = weighted / p.width;
            let before = self.launched();
            self.stream(elements, 2.0 + 4.0 * wide, 2.0 + 8.0 * wide, (3, 5));
            self.beside_compiled(before);
        }
    }

    /// Keeps what the weights multiply inside of an expert, of so many `elements` in `parts` one after another: in separate operators
    /// the activation's
    /// result beside what becomes of it (NVIDIA/Megatron-LM, megatron/core/transformer/moe/experts.py, bias_act_func: `glu`,
    /// times the permuted probabilities, which are in 32 bits, and a cast).
    fn weight_inner(&mut self, elements: f64, parts: u32) {
        self.kept += elements * self.p.width;
        // In 32 bits the gradient and those of both factors.
        self.transient = self.transient.max(3.0 * 4.0 * elements / f64::from(parts));
    }

    /// Whether each expert's tokens are copied to a multiple of rows that products of 8 or 4 bits want.
    fn pads_experts(&self, moe: &Moe) -> bool {
        let f = self.p.framework;
        let narrow = matches!(self.p.workload.precision, Precision::Fp8 | Precision::Fp4);
        f.pads_experts
            && narrow
            && !f.wide_experts
            && f.fused.grouped_gemm
            && moe.capacity_factor == 0.0
    }

    /// Whether the host waits in the forward pass for how many tokens each expert gets: an exchange's sizes and those of products
    /// that a loop launches, or that are padded to the fullest, are the host's (NVIDIA/Megatron-LM, token_dispatcher.py:
    /// cuda_sync_point; pytorch/torchtitan, expert_parallel.py), unless places are fixed. Another micro-batch leaves the device
    /// something to do meanwhile.
    pub(super) fn waits_for_counts(&self) -> bool {
        let (f, s) = (self.p.framework, self.p.shard);
        let free = self.p.model.moe.as_ref().is_some_and(|moe| moe.capacity_factor == 0.0);
        let asked = s.ep > 1 || f.fused.looped_gemm || f.pads_to_fullest;
        let routed = self.expert_parameters > 0.0 && f.fused.grouped_gemm;
        routed && free && asked && !f.overlap.expert && f.launch_us > 0.0
    }

    /// Which experts a token is sent to.
    pub(super) fn choice(&self, moe: &Moe) -> Choice {
        let in_turn = if self.p.framework.neighbouring_experts { moe.experts } else { 0 };
        Choice { topk: moe.topk, node_limit: moe.node_limit, in_turn }
    }

    /// Tokens put into the experts' places, and their results taken from there with their weights: products of each of `sequences`, or
    /// of all as one, with a matrix of its tokens by all places (AI-Hypercomputer/maxtext, layers/moe.py, dense_matmul). Backward two
    /// more for what was
    /// taken, by places and by weights, and one for what was put.
    fn places(&mut self, tokens: f64, sequences: u64, moe: &Moe) {
        let d = &self.p.device;
        let own = (tokens / sequences as f64).ceil() as u64;
        let places = (own as f64 * f64::from(moe.topk) * moe.capacity_factor).ceil() as u64;
        let h = self.p.model.hidden;
        let [put, taken, weights] = if self.p.framework.dispatch_by_products == ByProducts::AtLeast
        {
            // Whole tiles and deep products, of no fewer tokens than a sequence has.
            let own = tokens / sequences as f64;
            let pairs = tokens * own * f64::from(moe.topk) * moe.capacity_factor;
            [d.linear(Gemm::new((pairs / h as f64) as u64, h, h)); 3]
        } else {
            [(places, h, own), (own, h, places), (own, places, h)]
                .map(|(m, n, k)| d.linear(Gemm::batched(sequences, m, n, k)))
        };
        // One matrix of ones and one of weights are read again.
        let masks = 2.0 * tokens * places as f64 * self.p.width;
        let before = self.forward;
        self.forward.run(put);
        if self.p.shard.ep == 1 {
            self.may_repeat(Operator::Dispatch, before, masks);
        }
        self.forward.run(taken);
        for product in [taken, put, weights] {
            self.input.run(product);
        }
        self.kept += masks;
    }

    /// Operations of a grouped product in whole tiles over those of `rows` tokens for each of `experts`.
    ///
    /// Tiles lie where the rows lie, not where an expert's begin, so that one more is worked out at each border between two (jax-ml/jax,
    /// pallas/ops/tpu/megablox/gmm.py: make_group_metadata), and the last one of each width is whole (_calculate_irregular_num_tiles).
    fn whole_tiles(&self, experts: u64, rows: u64, n: u64, k: u64) -> f64 {
        let f = self.p.framework;
        if rows == 0 {
            return 1.0;
        }
        let all = (experts * rows) as f64;
        let again = f.grouped_tile_rows.min(experts * rows) * (experts - 1);
        let filled = |width: u64| match f.grouped_tile_width.min(width) {
            0 => 1.0,
            tile => (width.div_ceil(tile) * tile) as f64 / width as f64,
        };
        (all + again as f64) / all * filled(n) * filled(k)
    }

    /// The products of this rank's experts, one for each.
    fn expert_products(&mut self, g: Gemm, casts: Casts) {
        let narrow = !self.p.framework.wide_experts;
        if self.p.framework.fused.grouped_gemm {
            // No matrix product of those that recompute of single operators counts.
            let products = self.products;
            self.linear_in(g, narrow, casts);
            let kept = self.p.framework.keeps_grouped_products;
            self.products = self.products.uncounted_since(products, kept);
            if kept {
                self.saved.save((g.batch * g.m * g.n) as f64, true);
            }
        } else {
            let mut one = g;
            one.batch = 1;
            for _ in 0..g.batch {
                self.linear_in(one, narrow, casts);
                self.saved.product((g.m * g.n) as f64, true);
            }
            if self.p.framework.sliced_experts && g.batch > 1 {
                self.fill_gradients(g);
            }
        }
    }

    /// The gradients of one parameter that holds all experts' weights, a product at a time: each writes zeros for all of them (1) and
    /// copies its own there (2 of its share), which all but the first add to the sum (3).
    fn fill_gradients(&mut self, g: Gemm) {
        let p = self.p;
        let experts = g.batch as f64;
        let width = if p.framework.casts_weights { p.width.max(4.0) } else { p.width };
        let all = experts * (g.n * g.k) as f64 * width;
        let moved = (experts + 2.0 + 3.0 * (experts - 1.0)) * all;
        let kernels = 3 * g.batch.min(1 << 16) as u32 - 1;
        self.weight.run_many(p.device.stream(moved), kernels);
        self.transient = self.transient.max(all);
        self.matrix = self.matrix.max(experts * (g.n * g.k) as f64);
    }

    /// Whether experts run one after another, each on what it looks up among all tokens.
    fn looks_up(&self) -> bool {
        let f = self.p.framework;
        f.looks_up_tokens && !f.fused.grouped_gemm && self.p.shard.ep == 1
    }

    /// What a loop over `experts` runs beside their products, where each looks up its tokens among all, of so many `elements`.
    ///
    /// Its row of a mask is taken (1) and asked where it is not zero, for which the host waits (3), tokens and weights are looked
    /// up (2), results weighted (1) and added to all (1). Backward the gradients of its results are looked up (1), those of the
    /// weighting worked out (3), both look-ups scattered into zeros (2 times 3), and these added to what other experts left (2):
    /// for tokens, zeros (1) and a sum (3) as large as all of them (huggingface/transformers, release 4, modeling_mixtral.py:
    /// MixtralSparseMoeBlock).
    fn look_up(&mut self, experts: u64, elements: f64) {
        let loops = experts.min(1 << 16) as u32;
        self.forward.kernels += 8 * loops;
        let each = self.p.device.stream(4.0 * elements * self.p.residual_width());
        self.input.run_many(f64::from(loops) * each, 12 * loops);
    }

    /// The biases of the experts' first products, over `elements` results: in the product or the activation's kernel, or each row's
    /// copied out (1) and added (3), and the gradients summed by expert (1) (pytorch/torchtitan, models/gpt_oss/moe.py).
    fn biases(&mut self, elements: f64) {
        let fused = &self.p.framework.fused;
        if fused.expert_bias && !fused.activation {
            self.copied_biases(elements);
        }
    }

    /// Biases that are copied out for each row (1) and added (3), and whose gradients are summed by expert (1).
    ///
    /// The gradient of a row that is repeated (repeat_interleave, whose gradient is index_add) is summed by additions to 16-bit
    /// numbers in memory, thousands to each, which pass one after another whatever the memory's rate. On eight H100 gpt-oss-20b
    /// reached 16.50 % of the peak so, with 8,192 tokens a rank and layers computed again, and 18.68 % with a kernel for biases
    /// (pytorch/torchtitan pull request 2686): 1.57 and 1.39 s, or 7.6 ms a layer. Of these 0.8 are what that kernel spares two
    /// forward passes, and the rest is [`ADDED`] for each of the 283 million gradients, of which one read would be 0.19.
    /// mlc-ai/pith-train found 48 % of the time of all kernels in it (operators/indexed_bias_add.py). The gradient of a row that
    /// is looked up is that of an index, which PyTorch sorts first: it passes at a fifth of the memory's rate, as others do
    /// (tests/data/steps/profiles.csv). Where experts run in turn, or a compiler joins operators, rows are summed.
    fn copied_biases(&mut self, elements: f64) {
        let framework = self.p.framework;
        let summed = !framework.fused.grouped_gemm || framework.fused.residual;
        let (reads, added) = match framework.repeats_biases {
            _ if summed => (1.0, false),
            true => (0.0, true),
            false => (1.0 / PERMUTED_UNFUSED, false),
        };
        self.stream(elements, 4.0, reads, (2, 1));
        if added {
            self.input.run(self.p.device.stream(0.0) + ADDED * elements);
        }
    }

    /// The biases of the experts' second products, weighted as their tokens, over `elements` results.
    ///
    /// NVIDIA/Megatron-LM (TEGroupedMLP._apply_bias) multiplies and adds them expert by expert in 32 bits, joins the parts
    /// and casts them back: 4, 2 + 4 + 4, 4 + 4 and 4 + 2 bytes an element. Backward it casts twice (6 + 6), multiplies by
    /// weight and by bias and sums both (2 times 12), and joins (4). Others copy out each row's bias and add it (2 + 6), and sum the
    /// gradients by expert (2).
    fn weighted_biases(&mut self, elements: f64, experts: u64) {
        if self.p.framework.fused.expert_bias {
            self.copied_biases(elements);
            return;
        }
        self.stream(elements, 14.0, 20.0, (2, 2));
        // The loop's elementwise operators take the host no longer each than the products of a compiled one. Forward it reads
        // how many tokens each expert has, for which it waits for the device, and the device then for it.
        if experts > 1 {
            self.forward.loops(experts, 2, 0);
            self.forward.compute += (2 * experts) as f64 * self.p.launch().looped;
            self.input.loops(experts, 6, 0);
        }
    }

    /// Whether tokens arrive by the ranks that sent them: of all ranks' tokens, where each gathers these, it takes those of its own
    /// experts once, sorted (marin-community/marin, lib/levanter/src/levanter/grug/_moe/ep_ring.py).
    fn sorts_arrivals(&self) -> bool {
        self.p.shard.ep > 1 && self.p.framework.expert_dispatch != ExpertDispatch::Gather
    }
}
