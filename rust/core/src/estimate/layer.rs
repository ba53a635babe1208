//! Time, memory and parameters of one layer, and of the embedding and head at the ends, on one device.
//!
//! A layer is listed operator by operator as a device sees it after sharding: matrix products, attention,
//! memory-bound kernels and the collectives between them, for the forward pass, the backward pass (gradient
//! of the input, then of the weights) and the recompute. Activation bytes follow Korthikanti et al. 2022
//! (arXiv:2205.05198, section 4), operator by operator, generalised to gated MLPs, grouped queries, latent
//! attention and experts; its 34 sbh + 5 as^2b comes out for a GPT layer (see the tests).

use super::collective::Fabric;
use super::compute::Device;
use super::compute::Gemm;
use super::host::Launch;
use super::pass::Pass;
use super::shard::{self, End, LayerCost, Shard};
use super::shortest::Shortest;
use crate::spec::framework::{Fp8Scaling, Framework, TensorOverlap};
use crate::spec::kernels::{GeneralNorms, NormKernel, Traffic};
use crate::spec::model::{LayerKind, Model, Norm, Position};
use crate::spec::problem::Problem;
use crate::spec::tensors::Cut;
use crate::spec::workload::{Attention, Precision, Workload};
use crate::units::Bytes;

/// Whether parameters are gathered layer by layer in every pass.
pub(super) fn gathers_each_pass(shard: &Shard, framework: &Framework) -> bool {
    shard.zero == 3 && framework.gathers.each_pass(shard.pipelined)
}

/// Whether gradients are reduced layer by layer in every backward pass.
pub(super) fn reduces_each_pass(shard: &Shard, framework: &Framework) -> bool {
    shard.zero >= 2 && !framework.reduces_once && framework.gathers.each_pass(shard.pipelined)
}

/// The sharding with what no price of a layer or an end depends on set to nothing: equal ones have equal prices, but for hooks where
/// nothing is sharded.
pub fn priced_as(shard: Shard, framework: &Framework) -> Shard {
    if gathers_each_pass(&shard, framework) || reduces_each_pass(&shard, framework) {
        shard
    } else {
        Shard { zero: 0, shard_group: 1, ..shard }
    }
}

/// Prices layers for one kind of chip and one way of sharding.
#[derive(Clone)]
pub struct Pricer<'a> {
    pub(super) model: &'a Model,
    pub(super) workload: &'a Workload,
    pub(super) framework: &'a Framework,
    pub(super) device: Device<'a>,
    pub(super) fabric: Fabric<'a>,
    pub(super) shard: Shard,
    /// What gathers of shards take in place of what they do in their group, where that is not known yet.
    pub(super) shortest: Option<Shortest>,
    /// Where prices are the least for any number of replicas up to so many.
    pub(super) up_to: Option<u64>,
    /// Tokens of one micro-batch on this device, in the tensor-parallel region.
    pub(super) tokens: f64,
    /// Tokens in the region of norms and residuals.
    pub(super) residual_tokens: f64,
    pub(super) fused_attention: bool,
    /// Bytes of an activation.
    pub(super) width: f64,
}

impl<'a> Pricer<'a> {
    /// Prices for chips of group `kind`.
    pub fn new(problem: &'a Problem, kind: usize, shard: Shard) -> Pricer<'a> {
        let cluster = &problem.cluster;
        let chip = &cluster.groups[kind].chip;
        let workload = &problem.workload;
        let device = Device::new(
            chip,
            workload.precision,
            &problem.framework.attention_kernels,
            cluster.devices,
        );
        let device = match (workload.precision, problem.framework.fp8_scaling) {
            (Precision::Fp8, Fp8Scaling::Row) => device.with_scales_of_rows(),
            _ => device,
        };
        let tokens = (shard.mbs * workload.sequence_length) as f64 / shard.cp as f64;
        let residual_tokens = if shard.sp { tokens / shard.tp as f64 } else { tokens };
        let fused_attention =
            workload.attention == Attention::Flash && device.has_fused_attention();
        Pricer {
            model: &problem.model,
            workload,
            framework: &problem.framework,
            device,
            fabric: Fabric::new(cluster, chip),
            shard,
            shortest: None,
            up_to: None,
            tokens,
            residual_tokens,
            fused_attention,
            width: workload.precision.activation_bytes(),
        }
    }

    /// The links of this chip.
    pub fn fabric(&self) -> &Fabric<'a> {
        &self.fabric
    }

    /// Bytes of a linear layer's input of so many elements as it is kept for the weight gradient: as it was cast where the
    /// products are `narrow` and the framework saves what they read. NVIDIA/TransformerEngine does; pytorch/ao does in
    /// 4 bits (mx_formats/nvfp4_linear.py saves codes and scales alone), not in 8.
    pub(super) fn linear_input(&self, elements: f64, narrow: bool) -> f64 {
        match self.workload.precision.cast_bytes().filter(|_| narrow) {
            Some(cast) if cast < 1.0 || self.framework.held.fp8_input_bytes == 1 => elements * cast,
            Some(_) => elements * self.framework.held.fp8_input_bytes as f64,
            None => elements * self.width,
        }
    }

    /// Bytes of so many elements of a linear layer's input, or of its output's gradient, as a tensor-parallel group
    /// gathers them.
    pub(super) fn gathered(&self, elements: f64) -> f64 {
        match self.workload.precision.cast_bytes() {
            Some(cast) if self.framework.eight_bit_gathers.activations => elements * cast,
            _ => elements * self.width,
        }
    }

    /// Bytes of the input of the column-parallel products after a norm over `channels`.
    pub(super) fn column_input(&self, channels: f64) -> f64 {
        self.linear_input(self.column_tokens() * channels, true)
    }

    /// Tokens of the input of a column-parallel product as it is kept.
    fn column_tokens(&self) -> f64 {
        if self.framework.held.gathered_inputs {
            self.tokens
        } else {
            self.residual_tokens
        }
    }

    /// Bytes that a norm of `elements` keeps of its input and of what it makes of it before the weight.
    ///
    /// A fused kernel keeps its input and works out the rest again. In separate operators a root-mean-square norm keeps its
    /// input in 32 bits, for the square and for the product, and the normalised copy for the product with the weight
    /// (huggingface/transformers: LlamaRMSNorm). A layer norm is one kernel in any framework.
    pub(super) fn norm_kept(&self, elements: f64) -> f64 {
        elements * self.kept_of_norm(self.residual_width())
    }

    /// The same of an element of so many bytes.
    pub(super) fn kept_of_norm(&self, width: f64) -> f64 {
        match self.norm_kernel() {
            // An input in 32 bits is its own copy.
            NormKernel::Eager | NormKernel::Separate => 4.0 + width,
            // The kernel keeps what the cast before it made.
            NormKernel::Widened => width.max(4.0),
            NormKernel::Compiled | NormKernel::Fused | NormKernel::Native | NormKernel::Tuned => {
                width
            }
        }
    }

    /// Whether parameters are gathered layer by layer in every pass.
    pub(super) fn gathers_each_pass(&self) -> bool {
        gathers_each_pass(&self.shard, self.framework)
    }

    /// Whether a pass fetches its parameters from the host.
    pub(super) fn fetches_from_host(&self) -> bool {
        // Of many replicas each has little to fetch.
        self.up_to.is_none() && shard::fetches_from_host(&self.shard, self.framework)
    }

    /// Whether gradients are reduced in every backward pass.
    pub(super) fn reduces_each_pass(&self) -> bool {
        reduces_each_pass(&self.shard, self.framework)
    }

    /// Bytes of one micro-batch's residual stream on this device.
    pub fn residual_bytes(&self) -> f64 {
        self.residual_tokens * self.model.hidden as f64 * self.residual_width()
    }

    /// How the stage is sharded.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Bytes that this device sends to the next stage for one micro-batch.
    pub fn boundary_bytes(&self) -> f64 {
        let whole = self.tokens * self.model.hidden as f64 * self.residual_width();
        if self.shard.sp || self.framework.sharded_sends {
            whole / self.shard.tp as f64
        } else {
            whole
        }
    }

    /// Seconds that a message of one micro-batch takes both stages, the `from`th and the `to`th of this kind. Where they are parts
    /// of a domain, devices side by side, it leaves that where they begin or end in different ones.
    pub fn message(&self, from: u64, to: u64) -> f64 {
        let (devices, domain) = (self.shard.devices(), self.link_domain());
        let domains = |stage: u64| [stage * devices, (stage + 1) * devices - 1].map(|d| d / domain);
        let (bytes, distance) = (self.boundary_bytes(), devices * from.abs_diff(to));
        self.exchanged(if domains(from) == domains(to) {
            self.fabric.send(bytes, distance)
        } else {
            self.fabric.send_out(bytes, distance, devices)
        })
    }

    /// What one between neighbours takes at least, wherever they lie.
    pub fn least_message(&self) -> f64 {
        let devices = self.shard.devices();
        let out = self.fabric.send_out(self.boundary_bytes(), devices, devices);
        self.message(0, 1).min(self.exchanged(out))
    }

    /// Whether all neighbours of so many stages lie alike: all pairs in one domain, or none.
    pub fn neighbours_alike(&self, stages: u64) -> bool {
        let (devices, domain) = (self.shard.devices(), self.link_domain());
        2 * devices > domain || devices.saturating_mul(stages) <= domain
    }

    fn link_domain(&self) -> u64 {
        u64::from(self.device.chip.link_domain)
    }

    /// The same where it crosses in `seconds` to a stage of this kind: a message that was cut over the tensor-parallel group is
    /// gathered where it arrives (Narayanan et al., arXiv:2104.04473, section 4.1), unless the sequence stays cut.
    pub fn exchanged(&self, seconds: f64) -> f64 {
        let gathered = if self.shard.sp || !self.framework.sharded_sends {
            0.0
        } else {
            let whole = self.boundary_bytes() * self.shard.tp as f64;
            self.fabric.all_gather(whole, self.shard.tensor_group())
        };
        seconds + gathered
    }

    /// The embedding: a look-up, its gradient a scatter-add into zeros as large as the tables, which are added to stored gradients;
    /// or a product with rows of one 1 each.
    pub fn embedding(&self) -> End {
        let m = self.model;
        let row = m.hidden as f64 * self.residual_width();
        let mut forward = Pass::default();
        let mut backward = Pass::default();
        let positions = m.position_rows.max(self.learned_rows());
        let mut looked_up = positions;
        if self.framework.embeds_by_product {
            let product = Gemm::new(self.tokens as u64, m.hidden, self.vocab_rows());
            forward.run(self.device.plain(product));
            backward.run(self.weight_gradient(product, false));
        } else {
            forward.run(self.device.stream(2.0 * self.tokens * row));
            backward.run(self.device.stream(3.0 * self.tokens * row));
            looked_up += self.vocab_rows();
        }
        if looked_up > 0 {
            self.table_gradient((looked_up * m.hidden) as f64, &mut backward);
        }
        if !self.framework.whole_vocabulary {
            // Rows live on one rank each: a sum over the group, scattered at once with sequence parallel.
            let summed =
                if self.framework.sums_in_fp32 { self.width } else { row / m.hidden as f64 };
            forward.tensor += self.tensor_sum(self.tokens * m.hidden as f64 * summed);
        }
        backward.tensor += self.tensor_gather(self.tokens * row);
        if self.workload.dropout {
            let passed = self.residual_tokens * (2.0 * row + m.hidden as f64);
            forward.run(self.device.stream(passed));
            backward.run(self.device.stream(passed));
        }
        if m.embedding_norm {
            forward.run(self.device.stream(2.0 * self.residual_tokens * row));
            backward.run(self.device.stream(5.0 * self.residual_tokens * row));
        }
        // A mask is one byte an element.
        let mask = if self.workload.dropout { m.hidden as f64 } else { 0.0 };
        let norm = if m.embedding_norm { row } else { 0.0 };
        let parameters = self.vocab_rows() * m.hidden
            + positions * m.hidden
            + if m.embedding_norm { m.norm_parameters() } else { 0 };
        self.shard_end((parameters, true), &mut forward, (&mut backward, Pass::default()));
        let launch = self.launch();
        End {
            cost: LayerCost {
                forward: forward.split(launch),
                input_gradient: backward.split(launch),
                kept: Bytes::from_f64((mask + norm) * self.residual_tokens),
                kept_selective: Bytes::from_f64((mask + norm) * self.residual_tokens),
                kept_input: Bytes::from_f64((mask + norm) * self.residual_tokens),
                dense_parameters: parameters,
                dense_whole: self.whole(self.vocab_rows() * m.hidden)
                    + self.whole(positions * m.hidden)
                    + if m.embedding_norm { self.whole_norm() } else { 0 },
                ..LayerCost::default()
            },
            logits: Bytes::ZERO,
            cached: Bytes::ZERO,
        }
    }

    /// Final norm, output head and cross-entropy.
    pub fn head(&self) -> End {
        let m = self.model;
        let h = m.hidden;
        let rows = self.vocab_rows();
        let launch = self.launch();
        let mut forward = Pass::default();
        let mut input = Pass::default();
        let mut weight = Pass::default();
        let kept = self.norm_kept(self.residual_tokens * h as f64)
            + self.column_tokens() * h as f64 * self.width;
        self.norm(&mut forward, &mut input, self.residual_tokens, h as f64);
        if self.is_wide() && !self.is_joined() {
            let cast = self
                .device
                .stream(self.residual_tokens * h as f64 * (self.residual_width() + self.width));
            forward.run(cast);
            input.run(cast);
        }
        let logits = Gemm::new(self.tokens as u64, rows, h);
        self.cast_weights((rows * h) as f64, &mut forward, &mut weight);
        forward.run(self.device.plain(logits));
        input.run(self.device.plain(logits.input_gradient()));
        weight.run(self.weight_gradient(logits, false));
        if self.framework.recomputes_logits && self.framework.held.loss_pieces > 1 {
            input.run(self.device.plain(logits));
        }
        let pieces = self.framework.held.loss_pieces;
        if pieces > 1 && self.framework.piece_sum_bytes > 0 {
            let each = (rows * h * self.framework.piece_sum_bytes) as f64;
            weight.run_many(self.device.stream(each * pieces as f64), pieces as u32);
        }
        // Tensor-parallel vocabulary: gather the input, and sum the maxima, the targets and the exponentials or gather the logits.
        forward.tensor += self.tensor_gather(self.tokens * h as f64 * self.width);
        let mut elements = self.tokens * rows as f64;
        let cut = self.shard.tp > 1 && !self.framework.whole_vocabulary;
        let whole = !cut || self.framework.gathered_logits;
        if cut {
            input.tensor += self.tensor_sum(self.tokens * h as f64 * self.width);
            let group = self.shard.tensor_group();
            if whole {
                // Ranks' shares are joined along the vocabulary in a copy, and taken out of its gradient again.
                input.run_many(self.device.stream(2.0 * self.width * elements), 1);
                elements *= self.shard.tp as f64;
                forward.tensor += self.fabric.all_gather(self.width * elements, group);
                forward.run_many(self.device.stream(2.0 * self.width * elements), 1);
            } else {
                forward.tensor += 3.0 * self.fabric.all_reduce(self.tokens * 4.0, group);
            }
        }
        self.loss(&mut forward, &mut input, elements, whole);
        let held = &self.framework.held;
        let logit = if whole { held.logit_bytes } else { held.split_logit_bytes };
        let bytes = |each: u64| Bytes::from_f64(elements * each as f64 / held.loss_pieces as f64);
        let head_rows = if m.tied_embeddings { 0 } else { rows * h };
        let parameters = head_rows + if m.head_bias { rows } else { 0 } + m.norm_parameters();
        self.shard_end((parameters, false), &mut forward, (&mut input, weight));
        End {
            cost: LayerCost {
                forward: forward.split(launch),
                input_gradient: input.split(launch),
                weight_gradient: weight.split(launch),
                kept: Bytes::from_f64(kept),
                kept_selective: Bytes::from_f64(kept),
                kept_input: Bytes::from_f64(kept),
                dense_parameters: parameters,
                dense_whole: self.whole(head_rows)
                    + if m.head_bias { self.whole(rows) } else { 0 }
                    + self.whole_norm(),
                ..LayerCost::default()
            },
            logits: bytes(logit),
            cached: bytes(held.cached_logit_bytes),
        }
    }

    /// Cross-entropy over so many logits on this device, of a `whole` vocabulary or of a rank's share of one, and metrics.
    fn loss(&self, forward: &mut Pass, backward: &mut Pass, logits: f64, whole: bool) {
        let stream = |bytes: f64| self.device.stream(bytes * logits);
        if self.framework.metric_bytes > 0 {
            forward.run(stream(self.framework.metric_bytes as f64));
        }
        match (self.framework.loss_in_16_bits, self.framework.fused.cross_entropy) {
            (true, fused) => {
                if whole || fused {
                    // One kernel holds a row: it reads logits and writes probabilities. Of a rank's share Transformer Engine's
                    // keeps the logits, and what is summed over ranks are two numbers a row (common/triton/cross_entropy.py); on an
                    // H100 it took as long as 4.1 bytes a logit forward and 4.8 backward.
                    forward.run_many(stream(4.0), 1);
                } else {
                    // Maximum (2), difference (4), exponential (4), sum (2), division (4).
                    forward.run_many(stream(16.0), 5);
                }
                // Probability less one, scaled (2 + 2).
                backward.run_many(stream(4.0), 1);
            }
            (false, _) if self.framework.fused.compiled_loss => {
                // Maximum (4), exponentials of the difference as they are summed (4).
                forward.run_many(stream(8.0), 2);
                // Softmax less one, cast to 16 bits (4 + 2).
                backward.run_many(stream(6.0), 1);
            }
            (false, true) => {
                // Cast to 32 bits (2 + 4), maximum (4), difference, exponential and sum in one (8), division (8).
                forward.run_many(stream(26.0), 4);
                // Softmax less one, scaled and cast to 16 bits.
                backward.run_many(stream(6.0), 1);
            }
            (false, false) => {
                // Cast to 32 bits (2 + 4), maximum (4), difference (8), exponential (8), sum (4), division (8).
                forward.run_many(stream(38.0), 8);
                // Scaling by the incoming gradient (8), cast to 16 bits (6).
                backward.run_many(stream(14.0), 3);
            }
        }
    }

    /// Parameters of a norm that ZeRO leaves whole.
    fn whole_norm(&self) -> u64 {
        self.model.norm_vectors() * self.whole(self.model.hidden)
    }

    /// A parameter's elements where ZeRO leaves it whole, as it is small; none of a larger one.
    pub fn whole(&self, elements: u64) -> u64 {
        let bytes = elements * self.framework.bytes.parameter;
        if bytes <= self.framework.whole_below_bytes {
            elements
        } else {
            0
        }
    }

    /// Parameters of a layer of this kind that ZeRO leaves whole: dense ones, and those of experts.
    pub fn whole_parameters(&self, kind: LayerKind) -> (u64, u64) {
        let apart = self.framework.held.whole_experts && self.shard.ep > 1;
        if self.framework.whole_below_bytes == 0 && !apart {
            return (0, 0);
        }
        let (mut dense, mut expert) = (0, 0);
        for tensors in self.model.layer_tensors(kind) {
            match tensors.cut {
                Cut::Whole => dense += tensors.count * self.whole(tensors.elements),
                Cut::Tensor => {
                    dense += tensors.count * self.whole(tensors.elements / self.shard.tp);
                }
                Cut::Expert => {
                    let mine = tensors.count / self.shard.ep;
                    let elements = tensors.elements / self.shard.etp;
                    expert += mine * if apart { elements } else { self.whole(elements) };
                }
            }
        }
        (dense, expert)
    }

    /// Parameters of the copy of the embedding that the last stage holds when weights are tied.
    pub fn tied_parameters(&self) -> u64 {
        if self.model.tied_embeddings {
            self.vocab_rows() * self.model.hidden
        } else {
            0
        }
    }

    /// Rows of the padded vocabulary on one tensor-parallel rank.
    fn vocab_rows(&self) -> u64 {
        let ranks = if self.framework.whole_vocabulary { 1 } else { self.shard.tp };
        let multiple = self.framework.vocab_multiple * ranks;
        self.model.vocab.div_ceil(multiple) * multiple / ranks
    }

    /// A learned position table grows with the sequence.
    fn learned_rows(&self) -> u64 {
        if self.model.position == Position::Learned {
            self.workload.sequence_length
        } else {
            0
        }
    }

    pub(super) fn launch(&self) -> Launch {
        Launch::of(self.framework, self.model, self.device.host_pace(), self.shard.tp)
    }

    /// A norm over `width` channels of `tokens` tokens.
    pub(super) fn norm(&self, forward: &mut Pass, backward: &mut Pass, tokens: f64, width: f64) {
        let bytes = tokens * width * self.norm_width();
        let d = &self.device;
        let (general, processors) = (self.general_norms(width), d.processors());
        let passes = match general {
            GeneralNorms::Absent => self.norm_traffic(),
            GeneralNorms::Cuda | GeneralNorms::Hip => general.traffic(),
        };
        let waits = general.waits(tokens, width, processors);
        let backwards = d.stream(passes.backward * bytes).max(waits);
        self.fill(forward, bytes, 1);
        self.fill(backward, bytes, 1);
        forward.run_many(d.stream(passes.forward * bytes), passes.kernels.0);
        backward.run_many(backwards + general.sums(tokens, width, processors), passes.kernels.1);
    }

    /// The kernels of norms over `width` channels, if they are such as were made for no width.
    fn general_norms(&self, width: f64) -> GeneralNorms {
        let tuned = self.norm_kernel() == NormKernel::Tuned && self.model.norm == Norm::Rmsnorm;
        if tuned && !NormKernel::is_shaped_for(width as u64) {
            self.framework.fused.general_norms
        } else {
            GeneralNorms::Absent
        }
    }

    /// Every framework has a layer norm of one kernel; what is unfused is the newer RMS norm. That without a weight is OLMo's, which
    /// casts to 32 bits before it and back (huggingface/transformers, modeling_olmo.py: OlmoLayerNorm; in allenai/OLMo autocast does).
    pub(super) fn norm_kernel(&self) -> NormKernel {
        match (self.framework.fused.norm, self.model.norm) {
            (NormKernel::Tuned, _) => NormKernel::Tuned,
            (NormKernel::Eager, Norm::Layernorm) if !self.model.norm_weight => NormKernel::Widened,
            (_, Norm::Layernorm) => NormKernel::Fused,
            (kernel, Norm::Rmsnorm) => kernel,
        }
    }

    /// What the kernels of a norm of the stream are worth.
    fn norm_traffic(&self) -> Traffic {
        match self.norm_kernel() {
            NormKernel::Compiled if !self.model.norm_weight => NormKernel::WITHOUT_WEIGHT,
            kernel => kernel.traffic(),
        }
    }

    /// Seconds to bring a sequence-sharded tensor of `bytes` together; nothing without sequence parallel.
    pub(super) fn tensor_gather(&self, bytes: f64) -> f64 {
        if self.shard.sp {
            self.fabric.all_gather(bytes, self.shard.tensor_group())
        } else {
            0.0
        }
    }

    /// Seconds to sum a tensor of `bytes` over the tensor-parallel group, scattered with sequence parallel.
    pub(super) fn tensor_sum(&self, bytes: f64) -> f64 {
        let bytes = if self.framework.sums_in_fp32 { bytes * 4.0 / self.width } else { bytes };
        if self.shard.sp {
            self.fabric.all_gather(bytes, self.shard.tensor_group())
        } else {
            self.fabric.all_reduce(bytes, self.shard.tensor_group())
        }
    }

    /// What a tensor-parallel collective of `seconds` adds beside a product of `product` seconds in the forward
    /// pass.
    pub(super) fn beside_forward(&self, seconds: f64, product: f64) -> f64 {
        match self.framework.overlap.tensor {
            TensorOverlap::None | TensorOverlap::Backward => seconds,
            TensorOverlap::Pipelined | TensorOverlap::PipelinedProducts => {
                self.pipelined(seconds, product)
            }
        }
    }

    /// The same in the backward pass.
    pub(super) fn beside_backward(&self, seconds: f64, product: f64) -> f64 {
        match self.framework.overlap.tensor {
            TensorOverlap::None => seconds,
            TensorOverlap::Backward => self.fabric.beside(seconds, product),
            TensorOverlap::Pipelined | TensorOverlap::PipelinedProducts => {
                self.pipelined(seconds, product)
            }
        }
    }

    /// The same of the sum of an input's gradient, which several products may contribute to.
    pub(super) fn beside_input_sum(&self, seconds: f64, product: f64) -> f64 {
        match self.framework.overlap.tensor {
            TensorOverlap::PipelinedProducts => seconds,
            TensorOverlap::None | TensorOverlap::Backward | TensorOverlap::Pipelined => {
                self.beside_backward(seconds, product)
            }
        }
    }

    /// Whether tensors are gathered, and inputs' gradients summed, by collectives of their own and not in pieces.
    pub(super) fn whole_collectives(&self) -> (bool, bool) {
        match self.framework.overlap.tensor {
            TensorOverlap::None | TensorOverlap::Backward => (true, true),
            TensorOverlap::Pipelined => (false, false),
            TensorOverlap::PipelinedProducts => (false, true),
        }
    }

    /// Cut into one piece a rank, the first of which nothing hides.
    fn pipelined(&self, seconds: f64, product: f64) -> f64 {
        let first = seconds / self.shard.tp as f64;
        first + self.fabric.beside(seconds - first, product)
    }
}
