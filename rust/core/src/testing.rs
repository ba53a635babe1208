//! Specs and plans for tests, with round figures whose sums can be worked by hand.

use crate::estimate::shard::Shard;
use crate::plan::{Plan, Stage};
use crate::spec::attention::{AttentionRate, Pass};
use crate::spec::cluster::*;
use crate::spec::framework::*;
use crate::spec::kernels::{
    AdamKernel, GeneralNorms, NormKernel, OperandsAcross, RotaryKernel, SoftmaxKernel,
};
use crate::spec::model::*;
use crate::spec::problem::*;
use crate::spec::workload::*;

/// An A100 with round link figures and no fused attention.
pub fn a100() -> Chip {
    Chip {
        name: "a100".into(),
        devices_per_node: 8,
        link_domain: 8,
        memory_gib: 80.0,
        memory_bandwidth_gb_per_s: 2039.0,
        memory_efficiency: 0.87,
        peak_tflops: Peaks {
            bf16: Some(312.0),
            fp16: Some(312.0),
            fp8: None,
            fp4: None,
            tf32: Some(156.0),
            fp32: Some(19.5),
            int32: Some(19.5),
        },
        speed_spread: 0.0,
        gemm: GemmCurve {
            efficiency: 0.8333,
            fp8_efficiency: 0.8333,
            fp8_row_efficiency: None,
            fp4_efficiency: None,
            fp32_efficiency: None,
            fp8_any_layout: false,
            fp8_across_slowdowns: None,
            half_k: 280.0,
            fp8_half_k: 280.0,
            tile_m: 128,
            tile_n: 256,
            processors: 108,
            alignment_bytes: 16,
            unaligned_slowdown: 4.5,
            odd_slowdown: None,
            sum_gb_per_s: None,
        },
        attention: vec![AttentionRate {
            kernel: "fa2".into(),
            pass: Pass::Both,
            head_dim: 128,
            causal: true,
            sequence: vec![512, 1024, 2048, 4096, 8192, 16384],
            tflops: vec![99.0, 133.0, 155.0, 173.0, 182.0, 189.0],
            window_keys: 0,
        }],
        exchange: vec![],
        link: Link {
            topology: Topology::Switch,
            all_reduce_gb_per_s: 235.0,
            all_gather_gb_per_s: 230.0,
            all_to_all_gb_per_s: 230.0,
            p2p_gb_per_s: 280.0,
            part_gb_per_s: None,
            socket_gb_per_s: None,
            latency_us: 3.4,
            processor_share: 0.0,
        },
        network: Network {
            nics_per_node: 8,
            nic_gbit_per_s: 200.0,
            efficiency: 0.77,
            latency_us: 14.0,
            gathers_by_level: false,
        },
        host: Host {
            pcie_gb_per_s: 25.0,
            kernel_us: 3.0,
            memory_gb_per_s: 40.0,
            core_gb_per_s: 10.0,
            pace: 1.0,
        },
        price_per_hour: None,
        caveats: vec![],
    }
}

/// The same chip under another name, three times as fast and with slower links.
pub fn fast() -> Chip {
    let mut chip = a100();
    chip.name = "fast".into();
    chip.peak_tflops = Peaks {
        bf16: Some(989.0),
        fp16: Some(989.0),
        fp8: Some(1979.0),
        fp4: None,
        tf32: Some(494.5),
        fp32: Some(67.0),
        int32: None,
    };
    chip.link.all_reduce_gb_per_s = 165.0;
    chip.link.all_gather_gb_per_s = 165.0;
    chip.network.nic_gbit_per_s = 400.0;
    chip
}

/// `devices` of one kind without a limit.
pub fn cluster(chip: Chip, devices: u64) -> Cluster {
    Cluster {
        groups: vec![DeviceGroup { chip, limit: None }],
        devices,
        fabric: vec![],
        between_kinds: None,
    }
}

/// Megatron-like choices.
pub fn framework() -> Framework {
    Framework {
        name: "test".into(),
        attention_kernels: vec!["fa2".into()],
        fused: Fused {
            norm: NormKernel::Tuned,
            general_norms: GeneralNorms::Absent,
            activation: true,
            activation_in_products: false,
            rope: RotaryKernel::Fused,
            softmax: SoftmaxKernel::Fused,
            residual: true,
            cross_entropy: false,
            compiled_loss: false,
            grouped_gemm: true,
            looped_gemm: true,
            quantized_mlp: false,
            gradient_accumulation: true,
            permutation: true,
            router: false,
            expert_bias: false,
            gate: true,
            clamp: true,
            gelu: true,
            optimizer: AdamKernel::Fused,
            gelu_again: false,
            gelu_in_fp32: false,
            normed_rotation: false,
        },
        overlap: Overlap {
            gradient_reduce: true,
            reduce_from_stage: 0,
            replicas_alone: false,
            unsharded_alone: false,
            gradient_scatter: true,
            parameter_gather: true,
            step_gather: true,
            backward_gather: true,
            tensor: TensorOverlap::Backward,
            pipeline: true,
            every_send: false,
            context: true,
            expert: false,
        },
        bytes: NumberBytes { parameter: 2, gradient: 4, gradient_sent: 4, optimizer: 12 },
        sharded_sends: true,
        repeats_key_heads: false,
        vocab_multiple: 128,
        gathers: Gathers::MicroBatch,
        reduces_once: false,
        sums_copies_each_pass: false,
        all_reduces: false,
        shards: Shards::Slices,
        gather_pieces: 1,
        gather_copy_us: 0.0,
        ends_apart: false,
        context_exchange: ContextExchange::Ring,
        dispatch_by_products: ByProducts::None,
        expert_dispatch: ExpertDispatch::Copies,
        exchange_kernel: String::new(),
        permutes_twice: false,
        gathers_in_vectors: false,
        repeats_biases: false,
        sums_by_product: false,
        copies_packed_heads: false,
        copies_choices: false,
        scatters_results: false,
        grouped_tile_rows: 0,
        grouped_tile_width: 0,
        neighbouring_experts: false,
        pads_experts: false,
        pads_to_fullest: false,
        stashes_experts: false,
        wide_experts: false,
        wide_router: false,
        sliced_experts: false,
        whole_vocabulary: false,
        embeds_by_product: false,
        gathered_logits: false,
        shard_copies: ShardCopies { gathered: false, reduced: false },
        eight_bit_gathers: EightBitGathers { activations: false, parameters: false },
        fp8_scaling: Fp8Scaling::Delayed,
        casts_by_rows: false,
        operands_across: OperandsAcross { input_gradient: 0, weight_gradient: 0 },
        softmax_multiple: 1,
        softmax_longest: 0,
        recomputes_logits: false,
        piece_sum_bytes: 0,
        clips_gradients: true,
        loss_in_16_bits: false,
        sums_in_fp32: false,
        softmax_in_fp32: true,
        attention_layouts: 0,
        heads_first: false,
        attention_padding: 0,
        attention_block: 0,
        contiguous_context: false,
        metric_bytes: 0,
        repeats_norms: false,
        sequence_copies: false,
        slices_kept_inputs: false,
        casts_weights: false,
        projections: Projections::Packed,
        shared_edges: false,
        looks_up_tokens: false,
        recompute_stops_early: false,
        recompute_gathers: false,
        keeps_tensor_results: false,
        fused_reduce_bytes: 0,
        fused_reduce_places: vec![],
        fused_gather_bytes: 0,
        fused_groups: 0,
        whole_below_bytes: 0,
        selective: Selective::Attention,
        named: named(),
        keeps_biased_products: false,
        keeps_grouped_products: false,
        reruns_attention: vec![],
        reruns_exchange: false,
        keeps_attention_inputs: false,
        context_gib: 0.5,
        held: held(),
        offload: Offload { threads: 0, pinned: true, pass_bytes: 0, step_bytes: 0 },
        orthogonal: Orthogonal { iterations: 0, shared: false, batched: false },
        bucket_bytes: 0,
        launch_us: 4.0,
        distributed_tensor_us: 0.0,
        distributed_heads_us: 0.0,
        asked_operator_us: 0.0,
        compiled_layer_us: 0.0,
        dispatch_launch_us: 0.0,
        sharded_layer_us: 0.0,
        hooks_replicas: false,
        graphs: Graphs { attention: false, router: false, mlp: false },
        blocking_launches: false,
        ordered_attention: false,
        fills_tensors: false,
        waits_for_messages: false,
        fetching_operators: 0,
    }
}

/// No operator of a layer.
pub fn named() -> Named {
    Named {
        norm: false,
        projections: false,
        attention: false,
        output: false,
        dispatch: false,
        expansion: false,
        activation: false,
        contraction: false,
    }
}

/// As Megatron-Core holds it, with two GiB of context where tensors, replicas and a pipeline communicate.
pub fn held() -> Held {
    Held {
        communicators: Communicators {
            world: 0,
            tensor: 1,
            context: 1,
            expert: 1,
            data: 1,
            pipeline: 1,
        },
        communicator_gib: 0.5,
        live_parameters: 0,
        gathered_unit: GatheredUnit::Layer,
        gathered_ends: false,
        gathered_inputs: false,
        fp32_residual: false,
        fp8_input_bytes: 1,
        fp8_weight_bytes: 0,
        narrow_weights: false,
        gradients: Gradients::Kept,
        bucket_copies: false,
        waiting_sums: false,
        planned: false,
        gathered_copy_bytes: 0,
        update_bytes: 0,
        updated_at_once: 0,
        stage_buffers: false,
        message_buffers: false,
        returned_keys: false,
        held_balancing: false,
        copied_attention: false,
        weighted_result_bytes: 2,
        overlapped_pass: false,
        whole_experts: false,
        offloaded_share: 0.0,
        offloaded: Offloaded::default(),
        parameters_on_host: false,
        gradients_stay: false,
        logit_bytes: 12,
        split_logit_bytes: 12,
        cached_logit_bytes: 0,
        loss_pieces: 1,
    }
}

/// A GPT of `layers` layers of width `hidden`, heads of 128.
pub fn gpt(layers: u32, hidden: u64) -> Model {
    Model {
        name: "gpt".into(),
        layers,
        hidden,
        ffn_hidden: 4 * hidden,
        heads: (hidden / 128) as u32,
        kv_heads: (hidden / 128) as u32,
        head_dim: 128,
        vocab: 51200,
        max_positions: 2048,
        norm: Norm::Layernorm,
        norm_weight: true,
        norm_bias: true,
        norms_per_layer: 2,
        position: Position::Learned,
        position_rows: 2048,
        activation: Activation::Gelu,
        tied_embeddings: true,
        qkv_bias: true,
        o_bias: true,
        mlp_bias: true,
        head_bias: false,
        qk_norm: QkNorm::None,
        parallel_block: false,
        embedding_norm: false,
        attention_sinks: false,
        scaled_rotation: false,
        mla: None,
        moe: None,
        window: None,
    }
}

/// Everything allowed.
pub fn options() -> Options {
    Options {
        top: 5,
        memory_margin: 0.05,
        tp: vec![],
        pp: vec![],
        vpp: vec![],
        cp: vec![],
        ep: vec![],
        dp: vec![],
        mbs: vec![],
        sp: vec![],
        zero: vec![],
        schedules: vec![],
        recompute: vec![],
        shard_group: vec![],
        partial_shard_groups: true,
        activation_offload: true,
        optimizer_offload: true,
        uneven_layers: true,
        recompute_per_stage: false,
        mixed_tp: false,
        expert_tensor_parallel: false,
        batch_multiple: 1,
    }
}

/// A problem of these parts in bf16 with flash attention.
pub fn problem(model: Model, cluster: Cluster, batch: u64, sequence: u64) -> Problem {
    Problem {
        schema: PROBLEM_SCHEMA.into(),
        version: "test".into(),
        catalog: "test".into(),
        model,
        cluster,
        workload: Workload {
            global_batch_size: batch,
            sequence_length: sequence,
            precision: Precision::Bf16,
            attention: Attention::Flash,
            dropout: false,
            expert_load_variation: 0.0,
        },
        framework: framework(),
        options: options(),
    }
}

/// Experts of `ffn` channels in every layer, nothing shared and no biases.
pub fn moe(experts: u32, topk: u32, ffn: u64) -> Moe {
    Moe {
        experts,
        topk,
        expert_ffn: ffn,
        shared_ffn: 0,
        first_dense: 0,
        every: 1,
        router_bias: false,
        expert_bias: false,
        shared_gate: false,
        node_limit: 0,
        capacity_factor: 0.0,
    }
}

/// No parallelism, one sequence a micro-batch.
pub fn whole() -> Shard {
    Shard {
        dp: 1,
        tp: 1,
        sp: false,
        cp: 1,
        ep: 1,
        etp: 1,
        mbs: 1,
        zero: 0,
        shard_group: 1,
        pipelined: false,
    }
}

/// A plan of these stages under 1F1B with nothing else parallel, one sequence a micro-batch.
pub fn plan(stages: Vec<Stage>) -> Plan {
    Plan {
        dp: 1,
        tp: 1,
        tp_of_kind: Vec::new(),
        sp: false,
        cp: 1,
        ep: 1,
        etp: 1,
        pp: stages.len() as u64,
        vpp: 1,
        mbs: 1,
        zero: 0,
        shard_group: 1,
        schedule: Schedule::OneFOneB,
        optimizer_offload: false,
        stages,
    }
}
