//! Random small problems, the same ones on every run.

#![allow(dead_code)] // Each test file is a crate of its own and uses a part of this.

pub mod pipeline;
pub mod plans;

use autopar_core::spec::cluster::{Chip, Cluster, DeviceGroup, FabricLevel, NetworkLink, Topology};
use autopar_core::spec::framework::{
    ByProducts, Communicators, ContextExchange, ExpertDispatch, Fp8Scaling, GatheredUnit, Gathers,
    Gradients, Held, Named, Offloaded, Projections, Selective, Shards, TensorOverlap,
};
use autopar_core::spec::kernels::{
    AdamKernel, GeneralNorms, NormKernel, RotaryKernel, SoftmaxKernel,
};
use autopar_core::spec::model::{Activation, Mla, Model, Moe, Norm, Position, Window};
use autopar_core::spec::problem::{Granularity, Problem, Schedule};
use autopar_core::spec::workload::{Attention, Precision};
use autopar_core::testing;

/// SplitMix64 (Steele, Lea, Flood 2014): every seed gives its own stream.
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A whole number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// A number from 0 up to 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True once in `n`.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }

    pub fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[(self.next() % list.len() as u64) as usize].clone()
    }

    /// A number between `low` and `high`, each decade as likely.
    pub fn scale(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.share())
    }
}

/// A problem with `kinds` kinds of chip and so much memory that every plan fits.
pub fn problem(draw: &mut Draw, kinds: usize) -> Problem {
    let devices = draw.pick(&[1, 2, 3, 4, 4, 5, 6, 8, 8, 12, 16, 24]);
    let cluster = cluster(draw, kinds, devices);
    let model = model(draw);
    let batch = draw.pick(&[1, 2, 3, 4, 6, 8, 12, 16, 24, 36, 40, 64]);
    let sequence = draw.pick(&[32, 96, 128, 256, 512]);
    let mut p = testing::problem(model, cluster, batch, sequence);
    if draw.once_in(3) {
        p.workload.attention = Attention::Unfused;
    }
    p.workload.dropout = draw.once_in(3);
    if p.model.moe.is_some_and(|moe| moe.experts > moe.topk) {
        p.workload.expert_load_variation = if p.workload.dropout { 0.5 } else { 0.0 };
    }
    p.workload.precision =
        draw.pick(&[Precision::Bf16, Precision::Bf16, Precision::Fp8, Precision::Tf32]);
    let f = &mut p.framework;
    f.overlap.gradient_reduce = !draw.once_in(3);
    f.overlap.replicas_alone = draw.once_in(4);
    f.overlap.unsharded_alone = draw.once_in(4);
    f.overlap.parameter_gather = !draw.once_in(3);
    f.overlap.pipeline = !draw.once_in(3);
    f.overlap.context = !draw.once_in(3);
    f.overlap.expert = draw.once_in(3);
    f.overlap.tensor = draw.pick(&[
        TensorOverlap::None,
        TensorOverlap::Backward,
        TensorOverlap::Pipelined,
        TensorOverlap::PipelinedProducts,
    ]);
    f.gathers = draw.pick(&[Gathers::MicroBatch, Gathers::Step, Gathers::StepInPipeline]);
    f.gather_pieces = draw.pick(&[1, 1, 12]);
    f.ends_apart = f.gather_pieces > 1;
    f.context_exchange = draw.pick(&[
        ContextExchange::Ring,
        ContextExchange::Gather,
        ContextExchange::Blocks,
        ContextExchange::Heads,
    ]);
    f.expert_dispatch = draw.pick(&[
        ExpertDispatch::Copies,
        ExpertDispatch::OnceANode,
        ExpertDispatch::Gather,
        ExpertDispatch::GatherSplit,
    ]);
    f.fused.gradient_accumulation = draw.once_in(2);
    f.sharded_sends = draw.once_in(2);
    f.bucket_bytes = draw.pick(&[0, 1 << 16]);
    f.blocking_launches = draw.once_in(4);
    (f.ordered_attention, f.fills_tensors) = (f.blocking_launches, f.blocking_launches);
    f.launch_us = draw.pick(&[0.0, 0.5, 4.0]);
    f.vocab_multiple = draw.pick(&[1, 128]);
    let o = &mut p.options;
    o.top = draw.pick(&[1, 2, 3, 5, 10, 40, 1000]);
    o.memory_margin = draw.pick(&[0.0, 0.05]);
    o.partial_shard_groups = draw.once_in(2);
    o.activation_offload = draw.once_in(2);
    o.optimizer_offload = draw.once_in(2);
    o.uneven_layers = !draw.once_in(4);
    o.recompute_per_stage = draw.once_in(3);
    o.mixed_tp = draw.once_in(2);
    o.expert_tensor_parallel = draw.once_in(3);
    if draw.once_in(4) {
        o.shard_group = vec![draw.pick(&[2, 3, 4])];
    }
    let f = &mut p.framework;
    f.whole_vocabulary = draw.once_in(4);
    f.gathered_logits = draw.once_in(4);
    f.sums_in_fp32 = draw.once_in(4);
    f.overlap.every_send = draw.once_in(4);
    f.overlap.backward_gather = draw.once_in(2);
    f.overlap.gradient_scatter = !draw.once_in(4);
    f.slices_kept_inputs = draw.once_in(4);
    f.sequence_copies = draw.once_in(2);
    f.held.gathered_inputs = draw.once_in(4);
    f.recompute_stops_early = draw.once_in(4);
    f.recompute_gathers = draw.once_in(4);
    f.casts_weights = draw.once_in(4);
    f.gather_copy_us = draw.pick(&[0.0, 0.0, 6.0]);
    f.projections = draw.pick(&[Projections::Packed, Projections::GateApart, Projections::Apart]);
    f.keeps_tensor_results = draw.once_in(4);
    f.fused.permutation = draw.once_in(2);
    f.fused.general_norms =
        if f.fused.permutation { GeneralNorms::Cuda } else { GeneralNorms::Absent };
    f.fused.gate = draw.once_in(2);
    f.dispatch_by_products =
        draw.pick(&[ByProducts::None, ByProducts::Sequence, ByProducts::MicroBatch]);
    f.fused.router = f.keeps_tensor_results;
    f.fused.expert_bias = f.fused.permutation;
    f.fused.clamp = !f.fused.permutation;
    f.fused.gelu = f.fused.clamp;
    let one_kernel = draw.once_in(2);
    f.fused.optimizer = match (one_kernel, f.fused.permutation) {
        (false, _) => AdamKernel::Separate,
        (true, false) => AdamKernel::Fused,
        (true, true) => AdamKernel::Native,
    };
    f.orthogonal.iterations = draw.pick(&[0, 5]);
    (f.orthogonal.shared, f.orthogonal.batched) = (draw.once_in(2), f.fused.permutation);
    f.fused.gelu_in_fp32 = f.fused.permutation;
    f.fused.normed_rotation = f.fused.clamp;
    f.softmax_multiple = draw.pick(&[1, 4]);
    f.shard_copies.gathered = draw.once_in(2);
    f.fused.gelu_again = f.shard_copies.gathered;
    f.shard_copies.reduced = draw.once_in(2);
    f.eight_bit_gathers.activations = draw.once_in(2);
    f.eight_bit_gathers.parameters = draw.once_in(2);
    f.fp8_scaling =
        draw.pick(&[Fp8Scaling::Delayed, Fp8Scaling::Current, Fp8Scaling::Block, Fp8Scaling::Row]);
    f.loss_in_16_bits = draw.once_in(4);
    f.shards = draw.pick(&[Shards::Slices, Shards::Owners, Shards::Tensors]);
    f.fused_reduce_bytes = draw.pick(&[0, 0, 1 << 12, 1 << 20]);
    f.fused_gather_bytes = draw.pick(&[0, 0, 1 << 12, 1 << 20]);
    f.whole_below_bytes = draw.pick(&[0, 0, 1 << 13, 1 << 22]);
    f.selective = draw.pick(&[Selective::Attention, Selective::Named, Selective::Operators]);
    // Made of what was drawn already: one more draw would change every problem after it.
    f.fused_groups = f.fused_gather_bytes % 7;
    f.permutes_twice = f.keeps_tensor_results;
    f.gathers_in_vectors = f.loss_in_16_bits;
    f.repeats_biases = f.sharded_sends;
    f.sums_by_product = f.sums_in_fp32;
    f.copies_packed_heads = f.keeps_tensor_results;
    f.shared_edges = f.keeps_tensor_results;
    f.copies_choices = f.overlap.context;
    f.scatters_results = f.overlap.parameter_gather;
    f.recomputes_logits = f.overlap.parameter_gather;
    f.grouped_tile_rows = u64::from(f.copies_choices) * 64;
    f.grouped_tile_width = f.grouped_tile_rows * 3;
    f.neighbouring_experts = f.shard_copies.gathered;
    f.pads_experts = f.neighbouring_experts;
    f.pads_to_fullest = f.sequence_copies;
    f.stashes_experts = f.scatters_results;
    f.casts_by_rows = f.neighbouring_experts;
    f.operands_across.input_gradient = u8::from(f.copies_choices);
    f.operands_across.weight_gradient = 2 * u8::from(f.scatters_results);
    f.wide_experts = f.sequence_copies;
    if f.held.fp32_residual && f.casts_weights {
        f.bytes.parameter = 6;
    }
    if f.casts_weights && f.recompute_gathers {
        f.bytes.optimizer = 0;
    }
    f.wide_router = f.recompute_gathers;
    f.softmax_longest = 128 * u64::from(f.sequence_copies);
    f.sliced_experts = f.casts_weights;
    f.distributed_tensor_us = f.gather_copy_us * 0.5;
    f.distributed_heads_us = f.gather_copy_us * 0.25;
    f.asked_operator_us = f.distributed_heads_us;
    f.compiled_layer_us = f.gather_copy_us * 7.0;
    f.dispatch_launch_us = f.gather_copy_us;
    f.waits_for_messages = f.sharded_sends;
    f.overlap.step_gather = !f.sharded_sends;
    f.fetching_operators = if f.fused.gradient_accumulation { 9 } else { 0 };
    f.sharded_layer_us = f.gather_copy_us * 3.0;
    f.hooks_replicas = f.sharded_sends;
    f.looks_up_tokens = f.recompute_gathers;
    f.reduces_once = f.eight_bit_gathers.parameters;
    f.all_reduces = f.shard_copies.reduced;
    (f.offload.threads, f.offload.pinned) = (u64::from(f.all_reduces), !f.casts_weights);
    f.offload.pass_bytes = 4 * u64::from(f.recompute_gathers || f.all_reduces);
    f.offload.step_bytes = 6 * u64::from(f.casts_weights);
    f.softmax_in_fp32 = !f.loss_in_16_bits;
    if f.sequence_copies {
        f.fused.softmax = SoftmaxKernel::Compiled;
    }
    f.attention_layouts = u32::from(f.sequence_copies) * (1 + u32::from(f.shard_copies.gathered));
    f.heads_first = f.shard_copies.gathered;
    f.attention_padding = f.fused_reduce_bytes % 97;
    f.attention_block = f.grouped_tile_rows;
    f.contiguous_context = f.sequence_copies;
    f.fused.compiled_loss = one_kernel;
    f.fused.activation_in_products = f.sequence_copies;
    f.embeds_by_product = f.whole_vocabulary;
    f.metric_bytes = f.fused_gather_bytes % 37;
    f.repeats_norms = f.fused.permutation;
    (f.fused.norm, f.fused.rope) = match (f.fused.permutation, one_kernel) {
        (false, false) => (NormKernel::Separate, RotaryKernel::Fused),
        (false, true) => (NormKernel::Compiled, RotaryKernel::Compiled),
        (true, false) => (NormKernel::Eager, RotaryKernel::Eager),
        (true, true) => (NormKernel::Tuned, RotaryKernel::ByToken),
    };
    f.keeps_biased_products = f.repeats_key_heads;
    f.keeps_grouped_products = f.repeats_key_heads;
    f.keeps_attention_inputs = f.repeats_key_heads;
    f.named = Named {
        norm: true,
        projections: true,
        attention: !f.fused.activation,
        output: f.fused.residual,
        dispatch: f.fused.activation,
        expansion: f.fused.residual,
        activation: true,
        contraction: f.fused.activation,
    };
    if f.fused_reduce_bytes == 1 << 12 {
        f.fused_reduce_places = vec![1, 4, 30];
    }
    f.held = held(draw);
    f.held.overlapped_pass = f.held.stage_buffers;
    f.held.whole_experts = f.held.returned_keys;
    f.held.held_balancing = f.held.copied_attention;
    p
}

fn held(draw: &mut Draw) -> Held {
    Held {
        communicators: Communicators {
            world: draw.between(0, 2),
            tensor: draw.between(0, 3),
            context: draw.between(0, 2),
            expert: draw.between(0, 2),
            data: draw.between(0, 2),
            pipeline: draw.between(0, 2),
        },
        communicator_gib: draw.pick(&[0.0, 1e-4, 1e-3]),
        live_parameters: draw.pick(&[0, 0, 1000, 1_000_000]),
        gathered_unit: draw.pick(&[GatheredUnit::Layer, GatheredUnit::Matrix]),
        gathered_ends: draw.once_in(3),
        gathered_inputs: draw.once_in(3),
        fp32_residual: draw.once_in(4),
        fp8_input_bytes: draw.pick(&[1, 2]),
        fp8_weight_bytes: draw.pick(&[0, 2]),
        narrow_weights: draw.pick(&[false, true]),
        gradients: draw.pick(&[Gradients::Kept, Gradients::Passing, Gradients::Replace]),
        bucket_copies: draw.once_in(4),
        waiting_sums: draw.once_in(4),
        planned: draw.once_in(3),
        gathered_copy_bytes: draw.pick(&[0, 0, 2]),
        update_bytes: draw.pick(&[0, 4, 8]),
        updated_at_once: draw.pick(&[0, 0, 100_000]),
        returned_keys: draw.once_in(4),
        held_balancing: false, // Made of another.
        copied_attention: draw.once_in(4),
        weighted_result_bytes: draw.pick(&[0, 2, 4]),
        overlapped_pass: false, // These two are made of others.
        whole_experts: false,
        stage_buffers: draw.once_in(4),
        message_buffers: draw.once_in(4),
        offloaded_share: 0.0,            // A run's setting: no search takes it.
        offloaded: Offloaded::default(), // Another.
        parameters_on_host: false,       // Another.
        gradients_stay: false,           // Another.
        logit_bytes: draw.pick(&[8, 12]),
        split_logit_bytes: draw.pick(&[8, 12, 16]),
        cached_logit_bytes: 4,
        loss_pieces: draw.pick(&[1, 1, 8]),
    }
}

fn model(draw: &mut Draw) -> Model {
    let heads = draw.pick(&[1, 2, 3, 4, 6, 8]);
    let mut m = testing::gpt(draw.between(1, 7) as u32, 128);
    m.heads = heads;
    m.kv_heads = draw.pick(&(1..=heads).filter(|k| heads.is_multiple_of(*k)).collect::<Vec<_>>());
    m.head_dim = draw.pick(&[32, 64]);
    m.hidden = u64::from(heads) * m.head_dim * draw.pick(&[1, 1, 2]);
    m.ffn_hidden = m.hidden * draw.pick(&[1, 2, 3, 4]);
    m.vocab = draw.pick(&[64, 1000, 8192, 51_200]);
    m.tied_embeddings = draw.once_in(2);
    m.parallel_block = draw.once_in(8);
    m.activation = draw.pick(&[Activation::Gelu, Activation::Swiglu]);
    m.norm = draw.pick(&[Norm::Rmsnorm, Norm::Layernorm]);
    if draw.once_in(2) {
        m.position = Position::Rope;
        m.position_rows = 0;
    }
    if draw.once_in(3) {
        m.moe = Some(Moe {
            experts: draw.pick(&[2, 3, 4, 6]),
            topk: draw.between(1, 2) as u32,
            expert_ffn: m.ffn_hidden / draw.pick(&[1, 2]),
            shared_ffn: draw.pick(&[0, m.ffn_hidden]),
            first_dense: draw.between(0, u64::from(m.layers)) as u32,
            every: draw.pick(&[1, 1, 2]),
            router_bias: false,
            expert_bias: false,
            shared_gate: false,
            node_limit: draw.pick(&[0, 0, 2]),
            capacity_factor: draw.pick(&[0.0, 0.0, 1.0, 1.5]),
        });
    }
    if draw.once_in(4) {
        m.window = Some(Window { size: draw.pick(&[16, 64]), global_every: draw.pick(&[0, 2, 3]) });
    }
    if draw.once_in(8) {
        m.mla = Some(Mla {
            q_lora_rank: draw.pick(&[0, 32]),
            kv_lora_rank: 32,
            qk_nope_dim: 32,
            qk_rope_dim: 16,
            v_dim: 32,
        });
    }
    m
}

fn cluster(draw: &mut Draw, kinds: usize, devices: u64) -> Cluster {
    let mut chips: Vec<Chip> = Vec::new();
    for name in ["b", "a", "c"].into_iter().take(kinds) {
        let mut chip = match chips.first() {
            // The same figures under another name: every tie must be broken by the documented order.
            Some(first) if draw.once_in(6) => first.clone(),
            _ => chip(draw),
        };
        chip.name = name.into();
        chips.push(chip);
    }
    let mut groups: Vec<DeviceGroup> =
        chips.into_iter().map(|chip| DeviceGroup { chip, limit: None }).collect();
    for group in &mut groups {
        if draw.once_in(2) {
            // Often not a whole number of nodes, sometimes too few.
            group.limit = Some(draw.between(1, devices + 2));
        }
    }
    let mut cluster = Cluster { groups, devices, fabric: vec![], between_kinds: None };
    if draw.once_in(4) {
        cluster.fabric.push(FabricLevel { nodes: 1, bandwidth_fraction: 0.5 });
    }
    if draw.once_in(3) {
        cluster.between_kinds =
            Some(NetworkLink { bandwidth_gb_per_s: draw.scale(0.5, 50.0), latency_us: 5.0 });
    }
    cluster
}

fn chip(draw: &mut Draw) -> Chip {
    let mut chip = testing::a100();
    chip.devices_per_node = draw.pick(&[2, 3, 4, 8]);
    chip.link_domain = chip.devices_per_node * draw.pick(&[1, 1, 2]);
    chip.memory_gib = 1e6;
    // From a chip slower than its launches to one a hundred times as fast as the next.
    let peak = draw.scale(3.0, 400.0);
    chip.peak_tflops.bf16 = Some(peak);
    chip.peak_tflops.fp16 = Some(peak);
    chip.peak_tflops.tf32 = Some(peak / 2.0);
    chip.peak_tflops.fp8 = Some(peak * 2.0);
    chip.speed_spread = draw.pick(&[0.0, 0.02]);
    chip.memory_bandwidth_gb_per_s = draw.scale(100.0, 4000.0);
    chip.link.topology = draw.pick(&[
        Topology::Switch,
        Topology::Mesh,
        Topology::CubeMesh,
        Topology::Pcie,
        Topology::Torus2d,
        Topology::Torus3d,
    ]);
    let rate = draw.scale(5.0, 500.0);
    chip.link.all_reduce_gb_per_s = rate;
    chip.link.all_gather_gb_per_s = rate * 0.9;
    chip.link.all_to_all_gb_per_s = rate * 0.8;
    chip.link.p2p_gb_per_s = rate;
    chip.link.part_gb_per_s = (chip.link.topology == Topology::Mesh).then_some(rate * 0.1);
    chip.link.socket_gb_per_s = (chip.link.topology == Topology::Pcie).then_some(rate * 1.5);
    chip.link.latency_us = draw.scale(0.1, 10.0);
    chip.network.nics_per_node = chip.devices_per_node;
    chip.network.nic_gbit_per_s = draw.scale(5.0, 800.0);
    chip.network.latency_us = draw.scale(0.2, 20.0);
    // Made of what was drawn already: one more draw would change every problem after it.
    chip.network.gathers_by_level = chip.link.topology == Topology::Mesh;
    chip.host.kernel_us = draw.pick(&[0.1, 1.0, 3.0]);
    chip.host.pcie_gb_per_s = draw.scale(1.0, 50.0);
    chip.gemm.fp8_any_layout = chip.host.kernel_us > 1.0;
    chip.gemm.fp8_across_slowdowns = chip.gemm.fp8_any_layout.then_some([1.5, 2.0]);
    chip.gemm.fp32_efficiency = (chip.host.kernel_us > 1.0).then_some(0.4);
    chip.link.processor_share = match chip.link.topology {
        Topology::Pcie => 1.0,
        Topology::Switch => 0.3,
        _ => 0.0,
    };
    chip
}

/// Takes away a part of what the options allow.
pub fn narrow(draw: &mut Draw, problem: &mut Problem) {
    let some = |draw: &mut Draw, list: &[u64]| -> Vec<u64> {
        let mut kept: Vec<u64> = list.iter().copied().filter(|_| draw.once_in(2)).collect();
        if kept.is_empty() {
            kept.push(draw.pick(list));
        }
        kept
    };
    let degrees = [1, 2, 3, 4, 5, 6, 8, 12];
    let o = &mut problem.options;
    match draw.between(0, 11) {
        0 => o.tp = some(draw, &[1, 2, 4]),
        1 => o.pp = some(draw, &degrees),
        2 => o.cp = some(draw, &[1, 2]),
        3 => o.dp = some(draw, &degrees),
        4 => o.ep = some(draw, &[1, 2, 3]),
        5 => o.mbs = some(draw, &[1, 2, 4]),
        6 => o.vpp = some(draw, &[1, 2, 3]),
        7 => o.zero = some(draw, &[0, 1, 2, 3]).into_iter().map(|z| z as u8).collect(),
        8 => o.sp = vec![draw.once_in(2)],
        9 | 10 => {
            let all = [
                Schedule::OneFOneB,
                Schedule::Interleaved,
                Schedule::GPipe,
                Schedule::ZeroBubbleH1,
                Schedule::ZeroBubbleV,
            ];
            o.schedules = some(draw, &[0, 1, 2, 3, 4]).iter().map(|&i| all[i as usize]).collect();
        }
        _ => {
            let all = [
                Granularity::None,
                Granularity::Selective,
                Granularity::Block,
                Granularity::Uniform,
            ];
            o.recompute = some(draw, &[0, 1, 2, 3]).iter().map(|&i| all[i as usize]).collect();
        }
    }
}

/// Degrees of their own for at least two kinds, 0 for the others.
pub fn every_choice_of_degrees(problem: &Problem) -> Vec<Vec<u64>> {
    let mut all = vec![vec![]];
    for group in &problem.cluster.groups {
        let node = u64::from(group.chip.devices_per_node);
        let grown = |some: &Vec<u64>| {
            let degrees = (0..=node).filter(|&tp| tp == 0 || node.is_multiple_of(tp));
            degrees.map(|tp| [some.as_slice(), &[tp]].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(grown).collect();
    }
    all.retain(|degrees| {
        let used: Vec<u64> = degrees.iter().copied().filter(|&tp| tp > 0).collect();
        used.iter().any(|&tp| tp != used[0])
    });
    all
}
