//! Seconds of fused attention on one chip: rates measured by pass, mask, head width and sequence.

use super::compute::Device;
use crate::spec::attention::{AttentionRate, Pass};

/// What fused attention computes on one device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedAttention {
    /// Query and key pairs times heads times sequences that are computed, masked ones left out.
    pub pairs: f64,
    /// Width of a head in the score product.
    pub qk_dim: u64,
    /// Width of a head in the value product.
    pub v_dim: u64,
    /// Length of the sequence as one kernel call sees it.
    pub sequence: u64,
}

impl Device<'_> {
    /// Whether a fused-attention rate is known.
    pub fn has_fused_attention(&self) -> bool {
        !self.attention.is_empty()
    }

    /// Which of the named kernels it has, if it has any.
    pub fn attention_is_of(&self, kernels: &[String]) -> bool {
        self.attention.first().is_some_and(|rate| kernels.contains(&rate.kernel))
    }

    /// Seconds of the forward pass of fused attention.
    pub fn attention_forward(&self, a: FusedAttention) -> f64 {
        let flops = 2.0 * a.pairs * (a.qk_dim + a.v_dim) as f64;
        flops / self.attention_rate(Pass::Forward, a) + self.kernel
    }

    /// Seconds of the backward pass: five products for the forward's two, of which three are as wide as the scores
    /// and two as wide as the values (Dao 2023, arXiv:2307.08691).
    pub fn attention_backward(&self, a: FusedAttention) -> f64 {
        let flops = 2.0 * a.pairs * (3 * a.qk_dim + 2 * a.v_dim) as f64;
        flops / self.attention_rate(Pass::Backward, a) + self.kernel
    }

    /// How much longer the backward pass takes where gradients of queries are added up in one order.
    ///
    /// Causal heads of 128 over 8,192 tokens on an H100 ran backward at 166 TFLOP/s so by FlashAttention-2, at 470 by cuDNN and at 474
    /// by FlashAttention-3, and at 575 by that one in any order (Dao-AILab/flash-attention pull request 1893, September 2025);
    /// in any order the first does 299 and cuDNN 541, by the figures of h100. Of other kernels nothing is known.
    pub fn ordered_slowdown(&self) -> f64 {
        match self.attention.first().map(|rate| rate.kernel.as_str()) {
            Some("fa2") => 299.0 / 166.0,
            Some("cudnn") => 541.0 / 470.0,
            Some("fa3") => 575.0 / 474.0,
            _ => 1.0,
        }
    }

    /// Seconds that drawing and applying dropout adds to a pass over so many pairs.
    ///
    /// Nothing is stored: the backward pass draws again what the forward pass drew. FlashAttention's generator is Philox of seven
    /// rounds, each two products of 32 bits to 64, which take two multiplications, and two sums without carry of three numbers, 42
    /// instructions of integer units for 128 bits (Dao-AILab/flash-attention @d9cbcfb, csrc/flash_attn/src/philox.cuh). Its second
    /// version spends 8 bits on a pair and compares two pairs at once forward, where unpacking, comparing and masking take 24
    /// instructions for 16 pairs; backward it keeps the mask in signs, pair by pair, which takes 48 (dropout.h). The first spends 16
    /// bits on a pair, and three instructions either way (@e518a4b, csrc/flash_attn/src/fmha/softmax.h).
    ///
    /// Nothing on a chip whose vector units have no peak, as a report's notes say.
    ///
    /// Taken to run beside nothing, and of other kernels to be as of the second. Heads of 64 over 2,048 and 4,096 tokens on a GB10
    /// take 17 % longer forward by it and 6 backward, where 22 to 32 and 4 to 9 were measured, and heads of 128 10 and 3, where up to 5
    /// and 6 were (Dao-AILab/flash-attention pull request 2439, April 2026); FlashAttention-4 on a GB200 29 to 47 % in both passes, where
    /// rates fell to 0.75 to 0.85 forward and 0.6 to 0.7 backward (pull request 2597, May 2026).
    pub fn attention_dropout(&self, pass: Pass, pairs: f64) -> f64 {
        let Some(peak) = self.chip.peak_tflops.integers() else { return 0.0 };
        let first = self.attention.first().is_some_and(|rate| rate.kernel == "fa1");
        let instructions = match (first, pass) {
            (true, _) => (42.0 + 3.0 * 8.0) / 8.0,
            (false, Pass::Backward) => (42.0 + 48.0) / 16.0,
            (false, Pass::Forward | Pass::Both) => (42.0 + 24.0) / 16.0,
        };
        // A peak counts two operations an instruction.
        2.0 * instructions * pairs / (peak * 1e12 * self.pace)
    }

    /// Rate of causal fused attention: the row of the nearest head width, its points joined in 1/s.
    ///
    /// Kernels are timed in short bursts. Where power limits what matrix products sustain, it limits attention too, which
    /// spends the same on each multiplication and the exponentials beside it: it sustains no more than they do.
    fn attention_rate(&self, pass: Pass, a: FusedAttention) -> f64 {
        self.burst_rate(pass, a).min(self.matrix)
    }

    fn burst_rate(&self, pass: Pass, a: FusedAttention) -> f64 {
        let rate = |pass, causal| self.measured_rate(pass, causal, a.qk_dim, a.sequence);
        let other = match pass {
            Pass::Forward => Pass::Backward,
            Pass::Backward | Pass::Both => Pass::Forward,
        };
        rate(pass, true)
            .or_else(|| if pass == Pass::Backward { self.backward_of_both(a) } else { None })
            .or_else(|| self.masked_as(other, pass, a))
            .or_else(|| rate(Pass::Both, true))
            .or_else(|| rate(pass, false))
            .or_else(|| rate(Pass::Both, false))
            .or_else(|| rate(other, true))
            .or_else(|| rate(other, false))
            .unwrap_or(self.matrix)
    }

    /// Rate of the backward pass where both passes were timed together and the forward pass alone: what the forward's
    /// operations, one part of 3.5, leave of the time. Between head widths it changes as the forward pass does.
    fn backward_of_both(&self, a: FusedAttention) -> Option<f64> {
        let timed = u64::from(self.row(Pass::Both, true, a.qk_dim)?.head_dim);
        let at = |pass, width| self.measured_rate(pass, true, width, a.sequence);
        let forward = at(Pass::Forward, timed)?;
        let left = 3.5 / at(Pass::Both, timed)? - 1.0 / forward;
        (left > 0.0).then_some(2.5 / left * at(Pass::Forward, a.qk_dim)? / forward)
    }

    /// Rate of a pass that was only timed unmasked: masking, and a head width of its own, change it as they change the
    /// other pass.
    fn masked_as(&self, other: Pass, pass: Pass, a: FusedAttention) -> Option<f64> {
        let timed = u64::from(self.row(pass, false, a.qk_dim)?.head_dim);
        let at = |pass, causal, width| self.measured_rate(pass, causal, width, a.sequence);
        Some(at(pass, false, timed)? * at(other, true, a.qk_dim)? / at(other, false, timed)?)
    }

    /// The table of a pass whose head width is nearest.
    fn row(&self, pass: Pass, causal: bool, width: u64) -> Option<&AttentionRate> {
        self.attention
            .iter()
            .filter(|r| r.pass == pass && r.causal == causal)
            .min_by_key(|r| u64::from(r.head_dim).abs_diff(width))
            .copied()
    }

    /// Keys beyond a window that a pass works out for each query.
    pub fn beyond_window(&self, pass: Pass, width: u64) -> f64 {
        self.row(pass, true, width).map_or(0.0, |row| f64::from(row.window_keys))
    }

    /// Rate of the operations asked for, which are fewer than those of a kernel that is built for wider heads.
    fn measured_rate(&self, pass: Pass, causal: bool, width: u64, sequence: u64) -> Option<f64> {
        let built = self.built_for(width);
        let row = self.row(pass, causal, built)?;
        let whole = interpolate(&row.sequence, &row.tflops, sequence as f64);
        Some(1e12 * self.pace * whole * width as f64 / built as f64)
    }

    /// Width of the heads that the kernel for `width` is built for; the same where it is not known, or none is as wide.
    ///
    /// FlashAttention has kernels of a few widths, and fills the rest of a tile with zeros: run_fmha_fwd of its first version
    /// (Dao-AILab/flash-attention v1, csrc/flash_attn/fmha_api.cpp) and HEADDIM_SWITCH of its second (@2bce87c9,
    /// csrc/flash_attn/src/static_switch.h).
    fn built_for(&self, width: u64) -> u64 {
        let widths: &[u64] = match self.attention.first().map(|rate| rate.kernel.as_str()) {
            Some("fa1") => &[32, 64, 128],
            Some("fa2") => &[32, 64, 96, 128, 160, 192, 256],
            _ => &[],
        };
        widths.iter().copied().find(|&built| built >= width).unwrap_or(width)
    }
}

/// Joins measured rates linearly in time, that is 1/rate is linear in 1/x; flat beyond the last point, and
/// proportional to x below the first, where start-up dominates.
fn interpolate(xs: &[u32], rates: &[f64], x: f64) -> f64 {
    let (first, last) = (0, xs.len() - 1);
    if x <= f64::from(xs[first]) {
        return rates[first] * x / f64::from(xs[first]);
    }
    if x >= f64::from(xs[last]) {
        return rates[last];
    }
    let i = xs.partition_point(|&p| f64::from(p) <= x) - 1;
    let (x0, x1) = (1.0 / f64::from(xs[i]), 1.0 / f64::from(xs[i + 1]));
    let share = (1.0 / x - x0) / (x1 - x0);
    1.0 / (1.0 / rates[i] + share * (1.0 / rates[i + 1] - 1.0 / rates[i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::cluster::Chip;
    use crate::spec::workload::Precision;
    use crate::testing::a100;

    #[test]
    fn attention_sustains_no_more_than_large_products() {
        // 16,384 tokens of one head of 128: 2 x 16384^2 / 2 x 256 operations at 189 TFLOP/s, as timed in a burst; where products
        // sustain 0.5 of 312 TFLOP/s, at these 156.
        let mut chip = a100();
        let call =
            FusedAttention { pairs: 16384.0 * 8192.0, qk_dim: 128, v_dim: 128, sequence: 16384 };
        let kernels = ["fa2".to_owned()];
        let seconds = |chip: &Chip| {
            Device::new(chip, Precision::Bf16, &kernels, 1).attention_forward(call) - 3e-6
        };
        let flops = 16384.0 * 16384.0 * 256.0;
        assert!((seconds(&chip) * 189e12 / flops - 1.0).abs() < 1e-9);
        chip.gemm.efficiency = 0.5;
        assert!((seconds(&chip) * 156e12 / flops - 1.0).abs() < 1e-9);
    }

    #[test]
    fn dropout_is_drawn_anew_for_every_pair_in_each_pass() {
        // 9.75e12 instructions a second on an A100's 108 x 64 integer units at 1.41 GHz, 16.75e12 on an H100's 132 x 64 at 1.98. Of
        // 1e9 pairs 66 instructions for 16 take 423 us there forward and 90 take 577 backward; FlashAttention's first version takes 66
        // for 8, 846 us.
        let us = |chip: &Chip, kernel: &str, pass| {
            let mut chip = chip.clone();
            kernel.clone_into(&mut chip.attention[0].kernel);
            let kernels = [kernel.to_owned()];
            1e6 * Device::new(&chip, Precision::Bf16, &kernels, 1).attention_dropout(pass, 1e9)
        };
        let (a100, h100) = (a100(), crate::testing::fast());
        for (found, worked) in [
            (us(&a100, "fa2", Pass::Forward), 66.0 / 16.0 / 9.75e-3),
            (us(&a100, "fa2", Pass::Backward), 90.0 / 16.0 / 9.75e-3),
            (us(&a100, "fa1", Pass::Forward), 66.0 / 8.0 / 9.75e-3),
            (us(&h100, "fa2", Pass::Forward), 66.0 / 16.0 / 16.75e-3),
        ] {
            assert!((found / worked - 1.0).abs() < 1e-9, "{found} {worked}");
        }
    }

    #[test]
    fn sums_in_one_order_take_as_much_longer_as_they_did_on_an_h100() {
        // 8.279 ms of FlashAttention-2 where 166 TFLOP/s in place of 299 say 4.596 in any order.
        let mut chip = a100();
        let mut slower = |kernel: &str| {
            kernel.clone_into(&mut chip.attention[0].kernel);
            Device::new(&chip, Precision::Bf16, &[kernel.to_owned()], 1).ordered_slowdown()
        };
        assert!((slower("fa2") - 8.279 / 4.596).abs() < 1e-3);
        assert!(slower("cudnn") > 1.1 && slower("cudnn") < slower("fa2"));
        assert_eq!(slower("aiter"), 1.0);
    }

    /// An A100 whose attention was timed with rows of (pass, head width, causal, rate).
    fn timed(rows: &[(Pass, u32, bool, f64)]) -> Chip {
        let mut chip = a100();
        chip.speed_spread = 0.0;
        chip.peak_tflops.bf16 = Some(1000.0);
        chip.attention = rows
            .iter()
            .map(|&(pass, head_dim, causal, rate)| AttentionRate {
                kernel: "fa2".to_owned(),
                pass,
                head_dim,
                causal,
                sequence: vec![1024],
                tflops: vec![rate],
                window_keys: 0,
            })
            .collect();
        chip
    }

    fn backward_rate(chip: &Chip, width: u64) -> f64 {
        let device = Device::new(chip, Precision::Bf16, &["fa2".to_owned()], 1);
        let asked = FusedAttention { pairs: 1.0, qk_dim: width, v_dim: width, sequence: 1024 };
        device.attention_rate(Pass::Backward, asked) / 1e12
    }

    #[test]
    fn the_backward_pass_is_what_the_forward_leaves_of_both() {
        // 3.5 parts at 280 take 12.5, the forward's one at 400 takes 2.5: 2.5 parts in 10 run at 250. A width whose
        // forward pass is half as fast has half of that.
        let chip = timed(&[
            (Pass::Both, 128, true, 280.0),
            (Pass::Forward, 128, true, 400.0),
            (Pass::Forward, 64, true, 200.0),
        ]);
        assert!((backward_rate(&chip, 128) - 250.0).abs() < 1e-9);
        assert!((backward_rate(&chip, 64) - 125.0).abs() < 1e-9);
    }

    #[test]
    fn mask_and_width_change_the_backward_pass_as_they_change_the_forward() {
        // Backward 300 unmasked at 128, where the forward pass runs at 400. Masked it runs at 360, at 64 masked at 240.
        let chip = timed(&[
            (Pass::Backward, 128, false, 300.0),
            (Pass::Forward, 128, false, 400.0),
            (Pass::Forward, 128, true, 360.0),
            (Pass::Forward, 64, false, 300.0),
            (Pass::Forward, 64, true, 240.0),
        ]);
        assert!((backward_rate(&chip, 128) - 270.0).abs() < 1e-9);
        assert!((backward_rate(&chip, 64) - 180.0).abs() < 1e-9);
    }

    #[test]
    fn measured_points_are_met_and_joined_in_time() {
        let (xs, rates) = ([512, 1024], [100.0, 150.0]);
        assert_eq!(interpolate(&xs, &rates, 512.0), 100.0);
        assert_eq!(interpolate(&xs, &rates, 1024.0), 150.0);
        assert_eq!(interpolate(&xs, &rates, 256.0), 50.0);
        assert_eq!(interpolate(&xs, &rates, 1e9), 150.0);
        // Half way in 1/x: x = 2 * 512 * 1024 / 1536 = 682.67, rate the harmonic mean 120.
        let middle = interpolate(&xs, &rates, 2.0 * 512.0 * 1024.0 / 1536.0);
        assert!((middle - 120.0).abs() < 1e-9);
    }

    #[test]
    fn a_head_between_the_widths_of_flash_attention_takes_as_long_as_the_wider() {
        // Heads of 80 run in the kernel of 96 of FlashAttention-2, whose nearest rows are those of 64, and of 128 of the first.
        let seconds = |kernel: &str, width: u64| {
            let mut chip =
                timed(&[(Pass::Forward, 64, true, 120.0), (Pass::Forward, 128, true, 180.0)]);
            chip.attention.iter_mut().for_each(|rate| kernel.clone_into(&mut rate.kernel));
            let call = FusedAttention { pairs: 1e12, qk_dim: width, v_dim: width, sequence: 4096 };
            let kernels = [kernel.to_owned()];
            Device::new(&chip, Precision::Bf16, &kernels, 1).attention_forward(call)
        };
        for (kernel, built) in [("fa1", 128), ("fa2", 96)] {
            assert!((seconds(kernel, 80) / seconds(kernel, built) - 1.0).abs() < 1e-9);
        }
        // One that is wider than any, or whose kernels nobody read, is priced by its own operations.
        assert!((seconds("fa1", 160) / seconds("fa1", 128) - 1.25).abs() < 1e-5);
        assert!((seconds("cudnn", 80) / seconds("cudnn", 64) - 1.25).abs() < 1e-5);
    }
}
