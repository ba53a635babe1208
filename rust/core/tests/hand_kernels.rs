//! Kernels that a framework runs beside those that its mathematics needs, worked by hand.

mod sums;

use autopar_core::estimate::block;
use autopar_core::estimate::compute::Device;
use autopar_core::estimate::layer::Pricer;
use autopar_core::estimate::shard::{LayerCost, Shard, Split};
use autopar_core::spec::framework::Fp8Scaling;
use autopar_core::spec::kernels::{NormKernel, RotaryKernel, SoftmaxKernel};
use autopar_core::spec::model::{Activation, LayerKind, Mla, Norm, Position, QkNorm, Window};
use autopar_core::spec::problem::Problem;
use autopar_core::spec::workload::{Attention, Precision};
use autopar_core::testing::{self, whole};
use sums::{close, gpt_problem, layer};

/// Width 1024, one sequence of 512, a host that takes no time, and kernels without a gap.
fn problem() -> Problem {
    let mut problem = gpt_problem(1024, 512);
    problem.framework.launch_us = 0.0;
    problem.cluster.groups[0].chip.host.kernel_us = 1e-9;
    problem
}

/// Seconds in which so many bytes pass memory.
fn passes(problem: &Problem, bytes: f64) -> f64 {
    Device::new(&problem.cluster.groups[0].chip, Precision::Bf16, &[], 8).traffic(bytes)
}

fn compute(cost: LayerCost) -> [f64; 3] {
    [cost.forward, cost.input_gradient, cost.recompute_full].map(|pass| pass.compute.seconds())
}

#[test]
fn metrics_pass_the_logits_of_every_micro_batch() {
    // 512 tokens by 51,200 rows, nine passes of 4 bytes beside the loss.
    let mut problem = problem();
    let head = |problem: &Problem| compute(Pricer::new(problem, 0, whole()).head().cost);
    let plain = head(&problem);
    problem.framework.metric_bytes = 36;
    let more = head(&problem);
    close(more[0] - plain[0], passes(&problem, 36.0 * 512.0 * 51_200.0), 1e-6);
    assert_eq!(more[1..], plain[1..]);
}

#[test]
fn norms_run_again_in_the_backward_pass_of_a_layer_that_does_not() {
    // Two norms of 512 by 1024 numbers in 2.1 passes of 2 bytes, and one addition in three; a layer that is run again as a
    // whole takes what it took.
    let mut problem = problem();
    let plain = compute(layer(&problem, whole()));
    problem.framework.repeats_norms = true;
    let [forward, backward, again] = compute(layer(&problem, whole()));
    let more = passes(&problem, (2.0 * 2.1 + 3.0) * 2.0 * 512.0 * 1024.0);
    assert_eq!(forward, plain[0]);
    close(backward - plain[1], more, 1e-4);
    close(plain[2] - again, more, 1e-4);
}

#[test]
fn heads_before_the_sequence_are_copied_of_a_single_sequence_too() {
    // Queries, keys, values and the result, each read and written once.
    let mut problem = problem();
    problem.framework.attention_layouts = 1;
    let plain = compute(layer(&problem, whole()));
    problem.framework.heads_first = true;
    let [forward, backward, _] = compute(layer(&problem, whole()));
    let copies = passes(&problem, 4.0 * 2.0 * 2.0 * 512.0 * 1024.0);
    close(forward - plain[0], copies, 1e-4);
    close(backward - plain[1], copies, 1e-4);
}

#[test]
fn heads_of_a_packed_projection_are_copied_out_of_it() {
    // 512 tokens of 8 query heads and 2 of keys, 128 wide: queries and values of 256 channels are copied in what 3.8 passes take,
    // and backward all 1,536 channels joined, read and written. As many heads of keys leave queries where they are; without
    // positions nothing moves.
    let mut problem = problem();
    (problem.model.heads, problem.model.kv_heads, problem.model.head_dim) = (8, 2, 128);
    problem.model.position = Position::Rope;
    let more = |problem: &Problem| {
        let mut copied = problem.clone();
        copied.framework.copies_packed_heads = true;
        let (before, after) = (compute(layer(problem, whole())), compute(layer(&copied, whole())));
        [after[0] - before[0], after[1] - before[1]]
    };
    let channels = |forward: f64, backward: f64| {
        [forward, backward].map(|channels| passes(&problem, 2.0 * 512.0 * channels))
    };
    let grouped = channels(3.8 * (1024.0 + 256.0), 2.0 * 1536.0);
    let single = channels(3.8 * 1024.0, 2.0 * 3072.0);
    let found = more(&problem);
    close(found[0], grouped[0], 1e-4);
    close(found[1], grouped[1], 1e-4);
    problem.model.kv_heads = 8;
    let found = more(&problem);
    close(found[0], single[0], 1e-4);
    close(found[1], single[1], 1e-4);
    problem.model.position = Position::Learned;
    assert_eq!(more(&problem), [0.0, 0.0]);
}

/// Heads of 128 + 64 and 128.
const LATENT: Mla =
    Mla { q_lora_rank: 0, kv_lora_rank: 512, qk_nope_dim: 128, qk_rope_dim: 64, v_dim: 128 };

#[test]
fn biases_of_latent_attention_are_those_of_its_latents() {
    // 512 + 64 channels of keys and values, and of queries' latent of 96 if they have one.
    let parameters = |q_lora_rank: u64, biased: bool| {
        let mut problem = problem();
        problem.model.mla = Some(Mla { q_lora_rank, ..LATENT });
        problem.model.qkv_bias = biased;
        let cost = layer(&problem, whole());
        let all = problem.model.attention_parameters();
        (cost.dense_parameters, all)
    };
    for (q_lora_rank, biases) in [(0, 576), (96, 672)] {
        let [(priced, counted), (bare, bare_counted)] =
            [true, false].map(|biased| parameters(q_lora_rank, biased));
        assert_eq!((priced - bare, counted - bare_counted), (biases, biases));
    }
}

#[test]
fn heads_of_latent_attention_are_put_together_of_two_parts() {
    // In operators queries of 192 are read and written, of keys 128 read and 192 written, 704 numbers a head; backward 192 of
    // queries and 256 of keys and values are read and written, and 64 summed, 960. A kernel reads 256 of keys and values and
    // writes 320, each way 576. It rotates 64 numbers a head and 64 more in 3.2 passes, and back in 3.3, in
    // place of 11.
    let mut problem = problem();
    problem.model.mla = Some(LATENT);
    problem.model.position = Position::Rope;
    let heads = f64::from(problem.model.heads);
    let mut passed = |rope| {
        problem.framework.fused.rope = rope;
        compute(layer(&problem, whole()))
    };
    let (kernel, operators) = (passed(RotaryKernel::ByToken), passed(RotaryKernel::Separate));
    for (pass, fused, more) in [(0, 3.2, 704.0 - 576.0), (1, 3.3, 960.0 - 576.0)] {
        let rotated = (11.0 - fused) * 64.0 * (heads + 1.0);
        let bytes = 2.0 * 512.0 * (rotated + more * heads);
        close(operators[pass] - kernel[pass], passes(&problem, bytes), 1e-4);
    }
}

#[test]
fn heads_of_latent_attention_are_padded_to_one_multiple() {
    // Queries and keys of 128 + 64, values of 128, to 256 each: causal attention of 512 tokens at 10 TFLOP/s takes
    // 2 x 512^2 / 2 x (256 + 256) operations a head for 2 x 512^2 / 2 x (192 + 128), backward (3 + 2) x 256 for 3 x 192 + 2 x 128.
    let mut problem = problem();
    problem.model.mla = Some(LATENT);
    let chip = &mut problem.cluster.groups[0].chip;
    chip.memory_bandwidth_gb_per_s = 1e12;
    for rate in &mut chip.attention {
        rate.tflops.fill(10.0);
    }
    let heads = f64::from(problem.model.heads);
    let plain = layer(&problem, whole());
    problem.framework.attention_padding = 128;
    let padded = layer(&problem, whole());
    let pairs = heads * 512.0 * 512.0;
    for (pass, wider) in [(0, 512.0 - 320.0), (1, 1280.0 - 832.0)] {
        close(compute(padded)[pass] - compute(plain)[pass], pairs * wider / 10e12, 1e-4);
    }
    // Queries, keys, values and the result of 256 are kept for the kernel in place of the first three of 192, 192 and 128; the
    // result of 128 is the next product's input in both.
    let kept = 512.0 * heads * 2.0 * (4.0 * 256.0 - 192.0 - 192.0 - 128.0);
    close((padded.kept.0 - plain.kept.0) as f64, kept, 1e-6);
}

#[test]
fn a_window_is_worked_out_in_whole_blocks() {
    // 512 tokens in blocks of 64 are eight rows: all of causal attention visits 36 blocks, a window of 65 tokens its own and one before
    // it, 15. Forward two products of width 64 over half of 512^2 pairs at 10 TFLOP/s, 15 / 36 of that for the window's 65^2 / 2 +
    // 65 x 447 pairs.
    let mut problem = problem();
    problem.model.window = Some(Window { size: 65, global_every: 0 });
    for rate in &mut problem.cluster.groups[0].chip.attention {
        rate.tflops.fill(10.0);
    }
    let width = (problem.model.heads as u64 * problem.model.head_dim) as f64;
    let kind = LayerKind { moe: false, windowed: true };
    let forward =
        |problem: &Problem| compute(block::price(&Pricer::new(problem, 0, whole()), kind).cost)[0];
    let alone = forward(&problem);
    problem.framework.attention_block = 64;
    let blocks = forward(&problem);
    let pairs = 512.0 * 256.0 * 15.0 / 36.0 - (65.0 * 65.0 / 2.0 + 65.0 * 447.0);
    close(blocks - alone, 4.0 * width * pairs / 10e12, 1e-4);
    // As wide as the sequence it masks nothing.
    problem.model.window = Some(Window { size: 512, global_every: 0 });
    let all = forward(&problem);
    problem.model.window = None;
    close(all, forward(&problem), 1e-9);
}

#[test]
fn gelu_term_by_term_passes_its_inner_width_again_and_again() {
    // 512 tokens by 4,096 inner channels in 2 bytes. Forward 0.5 x, x^3, 0.044715 x^3, scale, tanh and 1 + tanh read and write one
    // each, the sum and the product two and one: 6 x 2 + 2 x 3 = 18, where bias and one operator take 4. Backward tanh' (3), two
    // factors (6), two scales (4), x^2, 3 x^2 and their product (7), 0.5 (2), two sums (6): 28 for 3. Kept are half, tanh and 1 + tanh.
    let mut problem = problem();
    problem.framework.fused.activation = false;
    let plain = layer(&problem, whole());
    problem.framework.fused.gelu = false;
    let apart = layer(&problem, whole());
    let inner = 2.0 * 512.0 * 4096.0;
    close(compute(apart)[0] - compute(plain)[0], passes(&problem, 14.0 * inner), 1e-3);
    close(compute(apart)[1] - compute(plain)[1], passes(&problem, 25.0 * inner), 1e-3);
    close((apart.kept.0 - plain.kept.0) as f64, 3.0 * inner, 1e-6);
}

#[test]
fn gelu_whose_terms_are_computed_again_keeps_none_of_them() {
    // bias_gelu: x = bias + y (2), x / 2 (2), 0.80 x and 0.045 x (4), 0.045 x^2 (3), 1 + that (2), product (3), tanh (2), 1 + tanh (2),
    // product (3): 23 where bias and one operator take 4. bias_gelu_back: x and tanh again (16); x / 2 (2), tanh^2 (2), 1 - tanh^2 (2),
    // 0.11 x (2), 0.11 x^2 (3), 0.80 + that (2), product (3), times x / 2 (3), 1 + tanh (2), its half (2), sum (3), times gradient (3):
    // 45 for 3.
    let mut problem = problem();
    problem.framework.fused.activation = false;
    let plain = layer(&problem, whole());
    problem.framework.fused.gelu = false;
    problem.framework.fused.gelu_again = true;
    let again = layer(&problem, whole());
    let inner = 2.0 * 512.0 * 4096.0;
    close(compute(again)[0] - compute(plain)[0], passes(&problem, 19.0 * inner), 1e-3);
    close(compute(again)[1] - compute(plain)[1], passes(&problem, 42.0 * inner), 1e-3);
    assert_eq!(again.kept, plain.kept);
}

#[test]
fn gelu_under_autocast_has_its_cube_and_what_follows_in_32_bits() {
    // Bytes an element. Forward half 4, copy 6, cube 8, share 8, sum 10, scale 8, tanh 8, 1 + tanh 8, product 10, cast 6: 76 for 8.
    // Backward cast 6, factors 12 + 6 and 10, tanh' 12, scale 8, cast 6, share 8, cube 8 + 8 + 12, cast 6, half 4, sums 12: 118
    // for 6. Kept beyond its input and its result are half 2, tanh 4, 1 + tanh 4, and the copy 4 in place of 2: 12.
    let mut problem = problem();
    problem.framework.fused.activation = false;
    let plain = layer(&problem, whole());
    problem.framework.fused.gelu = false;
    problem.framework.fused.gelu_in_fp32 = true;
    let wide = layer(&problem, whole());
    let inner = 512.0 * 4096.0;
    close(compute(wide)[0] - compute(plain)[0], passes(&problem, 68.0 * inner), 1e-3);
    close(compute(wide)[1] - compute(plain)[1], passes(&problem, 112.0 * inner), 1e-3);
    close((wide.kept.0 - plain.kept.0) as f64, 12.0 * inner, 1e-6);
}

#[test]
fn a_gradient_that_is_stored_beside_its_sum_is_copied_in_the_sum_s_width_first() {
    // A GPT layer of width 1024 has 12 x 1024^2 weights. Into a sum of 4 bytes the second kernel reads 2 + 4 and writes 4; with the
    // result stored in 2 beside it, a cast reads 2 and writes 4, and the sum reads 4 + 4 and writes 4: 8 bytes more.
    let mut problem = problem();
    problem.framework.fused.gradient_accumulation = false;
    let weight = |problem: &Problem| layer(problem, whole()).weight_gradient.compute.seconds();
    problem.framework.bytes.gradient = 4;
    let summed = weight(&problem);
    problem.framework.bytes.gradient = 6;
    let weights = 12.0 * 1024.0 * 1024.0;
    close(weight(&problem) - summed, passes(&problem, 8.0 * weights), 1e-3);
}

#[test]
fn the_gradient_of_one_parameter_of_all_experts_is_filled_for_each() {
    // Four experts of two matrices of 1,024 by 1,024, 2 bytes: zeros four times, each expert's gradient read and written, three sums
    // that read two and write one: 4 + 2 + 9 passes over all. Under autocast over 32-bit weights twice that.
    let mut problem = problem();
    problem.model.moe = Some(testing::moe(4, 2, 1024));
    problem.framework.fused.grouped_gemm = false;
    let weights = |problem: &Problem| {
        let kind = LayerKind { moe: true, windowed: false };
        let priced = block::price(&Pricer::new(problem, 0, whole()), kind);
        priced.cost.weight_gradient.compute.seconds()
    };
    for (casts, width) in [(false, 2.0), (true, 4.0)] {
        problem.framework.casts_weights = casts;
        problem.framework.sliced_experts = false;
        let apart = weights(&problem);
        problem.framework.sliced_experts = true;
        let all = 4.0 * 1024.0 * 1024.0 * width;
        close(weights(&problem) - apart, passes(&problem, 2.0 * 15.0 * all), 1e-4);
    }
}

#[test]
fn a_gate_that_no_kernel_takes_in_is_an_operator_of_its_own() {
    // 512 tokens of 4,096 inner channels in 2 bytes: nonlinearity and product in 5 passes in place of 3, backward in 13 in place
    // of 5, and what the nonlinearity made is kept. Without a gate nothing changes.
    let mut problem = problem();
    let bytes = 2.0 * 512.0 * 4096.0;
    for (activation, more, kept) in
        [(Activation::Swiglu, [2.0, 8.0], bytes), (Activation::Gelu, [0.0, 0.0], 0.0)]
    {
        problem.model.activation = activation;
        problem.framework.fused.gate = true;
        let one = layer(&problem, whole());
        problem.framework.fused.gate = false;
        let apart = layer(&problem, whole());
        for (n, more) in more.into_iter().enumerate() {
            let slower = compute(apart)[n] - compute(one)[n];
            assert!((slower - more * passes(&problem, bytes)).abs() < 1e-9, "{n}: {slower}");
        }
        assert_eq!((apart.kept.0 - one.kept.0) as f64, kept);
    }
}

#[test]
fn a_thread_block_a_head_takes_longer_than_its_bytes() {
    // 512 tokens with 16 heads of 64 and as many of keys are 16,384 rows, of which 108 processors hold 16 each: 1.38 us for every
    // 1,728 of them in each pass, 13.1 us. The norms of the model are the same kernels.
    let mut problem = problem();
    problem.model.norm = Norm::Rmsnorm;
    problem.model.qk_norm = QkNorm::Head;
    problem.framework.fused.norm = NormKernel::Fused;
    let rows = 512.0 * f64::from(problem.model.heads + problem.model.kv_heads);
    let fused = compute(layer(&problem, whole()));
    problem.framework.fused.norm = NormKernel::Native;
    let native = compute(layer(&problem, whole()));
    let more = rows * 1.38e-6 / (16.0 * 108.0);
    close(native[0] - fused[0], more, 1e-4);
    close(native[1] - fused[1], more, 1e-4);
}

#[test]
fn a_rotation_that_norms_its_heads_reads_them_once_more_backward() {
    // 512 tokens with 16 heads of 64 and as many of keys, 1,048,576 numbers of 2 bytes: by Transformer Engine the norm passes 2.3 and
    // 6.6 times over them and the rotation by tokens 3.2 and 3.3, one kernel for both 2.3 and 3.3. What is kept is the same.
    let mut problem = problem();
    problem.model.norm = Norm::Rmsnorm;
    problem.model.position = Position::Rope;
    problem.model.qk_norm = QkNorm::Head;
    problem.framework.fused.norm = NormKernel::Tuned;
    problem.framework.fused.rope = RotaryKernel::ByToken;
    let apart = layer(&problem, whole());
    problem.framework.fused.normed_rotation = true;
    let joined = layer(&problem, whole());
    let bytes = 2.0 * 512.0 * 2.0 * 16.0 * 64.0;
    let saved = |n: usize| compute(apart)[n] - compute(joined)[n];
    close(saved(0), passes(&problem, 3.2 * bytes), 1e-2);
    close(saved(1), passes(&problem, 6.6 * bytes), 1e-2);
    assert_eq!(joined.kept, apart.kept);
    problem.model.qk_norm = QkNorm::None;
    assert_eq!(compute(layer(&problem, whole())), {
        problem.framework.fused.normed_rotation = false;
        compute(layer(&problem, whole()))
    });
}

#[test]
fn a_factor_takes_the_kernel_by_tokens_back_to_operators() {
    // 512 tokens with 16 heads of 64 and as many of keys, 1,048,576 numbers: 20.1 and 22.7 reads and writes of 2 bytes by PyTorch's
    // operators, as timed, with a join (2), and a gradient of zeros that is added (4), where the kernel has 3.2 and 3.3.
    let mut problem = problem();
    problem.model.position = Position::Rope;
    problem.framework.copies_packed_heads = true;
    let mut taken = |rope, scaled_rotation| {
        (problem.framework.fused.rope, problem.model.scaled_rotation) = (rope, scaled_rotation);
        compute(layer(&problem, whole()))
    };
    let (kernel, scaled) =
        (taken(RotaryKernel::ByToken, false), taken(RotaryKernel::ByToken, true));
    let other = taken(RotaryKernel::Fused, false);
    assert_eq!(other, taken(RotaryKernel::Fused, true));
    let bytes = 2.0 * 1_048_576.0;
    close(scaled[0] - kernel[0], passes(&problem, (22.1 - 3.2) * bytes), 1e-4);
    close(scaled[1] - kernel[1], passes(&problem, (26.7 - 3.3) * bytes), 1e-4);
}

#[test]
fn a_tensor_s_maximum_is_read_before_its_cast_where_no_pass_before_nor_the_norm_found_it() {
    // On 8 ranks the projections are [512, 1024] x [1024, 384], [512, 128] x [128, 1024], [512, 1024] x [1024, 512] and
    // [512, 512] x [512, 1024]: in units of 1,024 elements inputs 512, 64, 512 and 256, outputs 192, 512, 256 and 512: 1,472. The
    // first and the third input are a norm's. With its own kernel each is cast by rows and columns, 4 bytes, after 2 for its
    // maximum.
    let mut problem = gpt_problem(1024, 512);
    problem.workload.precision = Precision::Fp8;
    (problem.framework.launch_us, problem.framework.fused.norm) = (0.0, NormKernel::Fused);
    let shard = Shard { tp: 8, ..whole() };
    let chip = problem.cluster.groups[0].chip.clone();
    let device = Device::new(&chip, Precision::Fp8, &[], 8);
    let more = |units: f64, kernels: f64| {
        device.traffic(units * 1024.0) + kernels * (device.stream(1.0) - device.traffic(1.0))
    };
    let gained = |problem: &mut Problem, pass: fn(&LayerCost) -> Split| {
        let mut of = |scaling| {
            problem.framework.fp8_scaling = scaling;
            pass(&layer(problem, shard)).compute.seconds()
        };
        of(Fp8Scaling::Current) - of(Fp8Scaling::Delayed)
    };
    close(gained(&mut problem, |c| c.forward), more(2.0 * 1_344.0, 4.0), 1e-6);
    close(gained(&mut problem, |c| c.input_gradient), more(2.0 * 1_472.0, 4.0), 1e-6);
    // A tuned norm finds the maximum of what it writes; if it knows the scale, it writes 1 byte less, and 1 + 1 transpose it:
    // 1 in place of 4.
    problem.framework.fused.norm = NormKernel::Tuned;
    let units = 2.0 * 320.0 + (4.0 - 1.0) * 1_024.0;
    close(gained(&mut problem, |c| c.forward), more(units, 2.0), 1e-6);
    // A chip that multiplies by rows whatever it sums over needs no columns: 3 bytes, and none after a norm that knows the scale.
    problem.framework.casts_by_rows = true;
    problem.cluster.groups[0].chip.gemm.fp8_any_layout = true;
    let units = 2.0 * 320.0 + 3.0 * 1_024.0;
    close(gained(&mut problem, |c| c.forward), more(units, 2.0 + 2.0), 1e-6);
    let by_rows = layer(&problem, shard).input_gradient.compute.seconds();
    problem.framework.casts_by_rows = false;
    let both = layer(&problem, shard).input_gradient.compute.seconds();
    close(both - by_rows, more(1_472.0, 0.0), 1e-6);
    // Nor does a product that reads them across.
    problem.framework.operands_across.weight_gradient = 1;
    let input_across = layer(&problem, shard).input_gradient.compute.seconds();
    problem.framework.operands_across.weight_gradient = 2;
    let both_across = layer(&problem, shard).input_gradient.compute.seconds();
    close(input_across, both, 1e-9);
    close(both_across, by_rows, 1e-9);
}

#[test]
fn a_fused_softmax_that_wants_a_multiple_takes_16_bits_alone() {
    // 8 heads are a multiple of 4: in 16 bits its one kernel runs, in 32 what runs where there is none.
    let forward = |softmax: SoftmaxKernel, precision: Precision| {
        let mut problem = problem();
        (problem.workload.attention, problem.workload.precision) = (Attention::Unfused, precision);
        (problem.framework.fused.softmax, problem.framework.softmax_multiple) = (softmax, 4);
        layer(&problem, whole()).forward.compute
    };
    let [fused, apart] = [SoftmaxKernel::Fused, SoftmaxKernel::Separate];
    assert_eq!(forward(fused, Precision::Tf32), forward(apart, Precision::Tf32));
    assert!(forward(fused, Precision::Bf16) < forward(apart, Precision::Bf16));
}

#[test]
fn pieces_of_a_loss_add_their_gradients_of_the_head() {
    // 51,200 rows of 1,024 channels, ten bytes a weight for each of eight pieces; a loss in one piece adds nothing.
    let mut problem = problem();
    let weight = |problem: &Problem| {
        Pricer::new(problem, 0, whole()).head().cost.weight_gradient.compute.seconds()
    };
    let whole_loss = weight(&problem);
    problem.framework.piece_sum_bytes = 10;
    assert_eq!(weight(&problem), whole_loss);
    problem.framework.held.loss_pieces = 8;
    let added = weight(&problem);
    problem.framework.piece_sum_bytes = 0;
    close(added - weight(&problem), passes(&problem, 8.0 * 10.0 * 51_200.0 * 1024.0), 1e-6);
}
