//! Seconds of one operator on one chip: a roofline with efficiency by shape.
//!
//! An operator takes the longer of its arithmetic and its memory traffic, plus the time a kernel occupies
//! the device beyond its work. Arithmetic efficiency depends on the shape: partly filled tiles and waves, short
//! inner dimensions and unaligned rows all cost.

use crate::spec::attention::AttentionRate;
use crate::spec::cluster::Chip;
use crate::spec::workload::Precision;

/// A chip as one workload uses it: its rates in plain units.
#[derive(Clone, Debug)]
pub struct Device<'a> {
    pub(super) chip: &'a Chip,
    /// Sustained matrix rate outside the linear layers, operations a second.
    pub(super) matrix: f64,
    /// Speed of the slowest device over the mean.
    pub(super) pace: f64,
    /// Inner dimension that the start and end of its products last as long as.
    half_k: f64,
    /// Sustained rate of the linear layers' products: 8-bit if the workload says so.
    linear: f64,
    linear_half_k: f64,
    linear_bytes: f64,
    /// Whether products pass matrix units, which want their rows aligned.
    in_units: bool,
    /// Sustained rate of vector units on 32-bit numbers, if it is known.
    vector: Option<f64>,
    /// Bytes of an activation.
    width: f64,
    memory: f64,
    pub(super) kernel: f64,
    pub(super) attention: Vec<&'a AttentionRate>,
}

/// A matrix product `[m, k] x [k, n]`, `batch` times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemm {
    /// Independent products of this shape.
    pub batch: u64,
    /// Rows of the result.
    pub m: u64,
    /// Columns of the result.
    pub n: u64,
    /// Inner dimension.
    pub k: u64,
    /// Widths of the rows in which its operands and result are stored, whose alignment decides which kernel runs.
    ///
    /// Tokens are rows: the forward product and both gradients store the same two widths, its `n` and `k`.
    stored: [u64; 2],
    /// Whether `m` is the mean of rows that chance sends to each of the products.
    drawn: bool,
    /// Operations of whole tiles over those asked for, beyond what the chip's own tiles are priced at.
    whole: f64,
    /// Operands of 8 bits that lie across the dimension that it sums over.
    across: u8,
}

impl Gemm {
    /// One product.
    pub fn new(m: u64, n: u64, k: u64) -> Gemm {
        Gemm::batched(1, m, n, k)
    }

    /// `batch` independent products.
    pub fn batched(batch: u64, m: u64, n: u64, k: u64) -> Gemm {
        Gemm { batch, m, n, k, stored: [n, k], drawn: false, whole: 1.0, across: 0 }
    }

    /// The same where chance sends rows to each of the products, `m` on average.
    pub fn drawn(self) -> Gemm {
        Gemm { drawn: true, ..self }
    }

    /// The same by a kernel that does `whole` times the operations asked for.
    pub fn in_tiles(self, whole: f64) -> Gemm {
        Gemm { whole, ..self }
    }

    /// The same with `operands` of 8 bits that lie across the dimension that it sums over.
    pub fn across(self, operands: u8) -> Gemm {
        Gemm { across: operands, ..self }
    }

    /// Operations: a multiplication and an addition for each of `batch m n k`.
    pub fn flops(self) -> f64 {
        2.0 * self.batch as f64 * self.m as f64 * self.n as f64 * self.k as f64
    }

    /// The product that gives the gradient of its left operand.
    pub fn input_gradient(self) -> Gemm {
        Gemm { n: self.k, k: self.n, ..self }
    }

    /// The product that gives the gradient of its right operand.
    pub fn weight_gradient(self) -> Gemm {
        Gemm { m: self.k, k: self.m, drawn: false, ..self }
    }

    /// How many tiles of so many rows and columns hold the results of all products.
    ///
    /// Each product's last tile of rows is filled in part, also where the mean is a multiple of a tile.
    fn tiles(self, rows: u64, columns: u64) -> f64 {
        let down = if self.drawn {
            tiles_of_drawn(self.m as f64, rows as f64)
        } else {
            self.m.div_ceil(rows) as f64
        };
        (self.batch * self.n.div_ceil(columns)) as f64 * down
    }
}

/// Which operands of a product kernels of their own cast to 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Casts {
    /// The input is of a norm.
    pub(super) of_norm: bool,
    /// The input; else the kernel that makes it writes it so.
    pub(super) input: bool,
    /// The output's gradient; else likewise.
    pub(super) gradient: bool,
}

impl Casts {
    /// Of both.
    pub(super) const ALL: Casts = Casts { of_norm: false, input: true, gradient: true };

    /// The same, of an input that a norm made, if `of_norm`.
    pub(super) fn of(of_norm: bool) -> Casts {
        Casts { of_norm, ..Casts::ALL }
    }
}

/// Operands of a product: operations a second, depth at which half of them are reached, bytes of an element.
#[derive(Clone, Copy, Debug)]
struct Format {
    rate: f64,
    half_k: f64,
    bytes: f64,
}

impl<'a> Device<'a> {
    /// Bytes a second between the device and its host, one direction.
    pub fn host_bandwidth(&self) -> f64 {
        self.chip.host.pcie_gb_per_s * 1e9
    }

    /// How long its host takes to launch an operator, over the usual.
    pub fn host_pace(&self) -> f64 {
        self.chip.host.pace
    }

    /// The chip's rates in `precision`, with the first of `kernels` that it has a table for, on the slowest of `devices`
    /// that wait for each other.
    ///
    /// Devices of one kind differ in the clock that their power and heat allow. In synchronous training the slowest
    /// sets the pace: of n nearly normal speeds it lies `sqrt(2 ln n)` standard deviations below the mean.
    pub fn new(
        chip: &'a Chip,
        precision: Precision,
        kernels: &[String],
        devices: u64,
    ) -> Device<'a> {
        let peaks = &chip.peak_tflops;
        let peak = match precision {
            Precision::Fp16 => peaks.fp16.or(peaks.bf16),
            Precision::Bf16 | Precision::Fp8 | Precision::Fp4 => peaks.bf16.or(peaks.fp16),
            Precision::Tf32 => peaks.tf32,
            Precision::Fp32 => peaks.fp32,
        };
        // `Problem::validate` has refused a chip without the workload's format.
        let deviations = (2.0 * (devices.max(1) as f64).ln()).sqrt();
        let pace = 1.0 / (1.0 + chip.speed_spread * deviations);
        // Products in 32 bits pass vector units, unless they are rounded to TF32.
        let own = chip.gemm.fp32_efficiency.filter(|_| precision == Precision::Fp32);
        let sustained = own.unwrap_or(chip.gemm.efficiency);
        let matrix = peak.unwrap_or(1.0) * 1e12 * sustained * pace;
        let width = precision.activation_bytes();
        let gemm = &chip.gemm;
        let narrow = match precision {
            Precision::Fp8 => peaks.fp8.map(|peak| (peak * gemm.fp8_efficiency, gemm.fp8_half_k)),
            // What begins and ends a product lasts as long as in 8 bits, in which the inner dimension passes twice as fast.
            Precision::Fp4 => peaks
                .fp4
                .zip(gemm.fp4_efficiency)
                .map(|(peak, share)| (peak * share, 2.0 * gemm.fp8_half_k)),
            _ => None,
        };
        // What begins and ends a product moves numbers of its format, while the inner dimension passes at the format's peak: it
        // lasts as long as in the fastest 16-bit format, and twice as long where numbers have 32 bits.
        let fastest = peaks.bf16.unwrap_or(0.0).max(peaks.fp16.unwrap_or(0.0));
        let share = peak.filter(|_| fastest > 0.0).map_or(1.0, |peak| width / 2.0 * peak / fastest);
        let half_k = gemm.half_k * share.min(1.0);
        let (linear, linear_half_k) =
            narrow.map_or((matrix, half_k), |(rate, half_k)| (rate * 1e12 * pace, half_k));
        let linear_bytes = precision.cast_bytes().unwrap_or(width);
        // Fused kernels were timed, and mostly exist, for 16-bit numbers alone.
        let kernels = if width == 2.0 { kernels } else { &[] };
        // Where the chip has none of the framework's kernels, PyTorch's fused attention calls its maker's own.
        let own = chip.attention.first().filter(|_| !kernels.is_empty()).map(|rate| &rate.kernel);
        let attention = kernels
            .iter()
            .chain(own)
            .map(|kernel| chip.attention.iter().filter(|r| &r.kernel == kernel).collect::<Vec<_>>())
            .find(|rows| !rows.is_empty())
            .unwrap_or_default();
        Device {
            chip,
            matrix,
            pace,
            half_k,
            linear,
            linear_half_k,
            linear_bytes,
            in_units: precision != Precision::Fp32,
            vector: peaks.fp32.map(|peak| {
                peak * 1e12 * chip.gemm.fp32_efficiency.unwrap_or(chip.gemm.efficiency) * pace
            }),
            width,
            memory: chip.memory_bandwidth_gb_per_s * 1e9 * chip.memory_efficiency,
            kernel: chip.host.kernel_us * 1e-6,
            attention,
        }
    }

    /// Whether products of 8-bit operands take them as they lie.
    pub fn takes_any_layout(&self) -> bool {
        self.chip.gemm.fp8_any_layout
    }

    /// The same with products of 8-bit operands each row of which has a scale of its own.
    pub fn with_scales_of_rows(mut self) -> Device<'a> {
        let rate = self.chip.peak_tflops.fp8.zip(self.chip.gemm.fp8_row_efficiency);
        if let Some((peak, share)) = rate {
            self.linear = peak * 1e12 * share * self.pace;
        }
        self
    }

    /// Seconds of a product of a linear layer, in the workload's format.
    pub fn linear(&self, g: Gemm) -> f64 {
        self.product(g, self.in_linear(), self.width)
    }

    /// The same where the kernel adds its result to one that is stored in `stored` bytes an element.
    pub fn linear_added(&self, g: Gemm, stored: f64) -> f64 {
        self.product(g, self.in_linear(), 2.0 * stored)
    }

    /// Seconds of a product of a linear layer whose kernel moves so many activations more for each element of its result.
    pub fn linear_moving(&self, g: Gemm, more: f64) -> f64 {
        self.product(g, self.in_linear(), (1.0 + more) * self.width)
    }

    /// Seconds of a product in the activations' own format: attention's, and the output head's.
    pub fn plain(&self, g: Gemm) -> f64 {
        self.product(g, self.in_plain(), self.width)
    }

    /// The same where the kernel adds its result to one that is stored in `stored` bytes an element.
    pub fn plain_added(&self, g: Gemm, stored: f64) -> f64 {
        self.product(g, self.in_plain(), 2.0 * stored)
    }

    /// Seconds of a product of 32-bit numbers on vector units, where their rate is known and activations are narrower.
    ///
    /// No processor waits for tiles, of which a router's few columns make few: assumed, as a library may split the depth instead.
    pub fn widened(&self, g: Gemm) -> Option<f64> {
        let rate = self.vector.filter(|_| self.width < 4.0)?;
        let (m, n, k) = (g.m as f64, g.n as f64, g.k as f64);
        Some((g.flops() / rate).max(4.0 * (m * k + k * n + m * n) / self.memory) + self.kernel)
    }

    fn in_linear(&self) -> Format {
        Format { rate: self.linear, half_k: self.linear_half_k, bytes: self.linear_bytes }
    }

    fn in_plain(&self) -> Format {
        Format { rate: self.matrix, half_k: self.half_k, bytes: self.width }
    }

    /// Seconds of a memory-bound kernel that moves `bytes`, reads and writes together.
    pub fn stream(&self, bytes: f64) -> f64 {
        bytes / self.memory + self.kernel
    }

    /// Seconds to move `bytes` inside a kernel that runs anyway.
    pub fn traffic(&self, bytes: f64) -> f64 {
        bytes / self.memory
    }

    /// Its processors, each of which works on thread blocks of its own.
    pub fn processors(&self) -> f64 {
        f64::from(self.chip.gemm.processors)
    }

    /// Time of the arithmetic: full waves of tiles, each tile with its start-up along k.
    ///
    /// A smaller tile fills the last wave better but reads more operand bytes for each operation; the faster of
    /// the chip's own tile, its half and its quarter is taken, as a library's heuristic would.
    /// Operands and `result_bytes` an element of the result pass memory meanwhile. A tile is added to what is stored once it is
    /// worked out, by a processor that computes nothing else: what it reads and writes for that, beyond the result that any
    /// product writes as part of its start and end, adds to the time.
    fn product(&self, g: Gemm, format: Format, result_bytes: f64) -> f64 {
        if g.m == 0 || g.n == 0 || g.k == 0 || g.batch == 0 {
            return 0.0;
        }
        let curve = &self.chip.gemm;
        let (tm, tn) = (u64::from(curve.tile_m), u64::from(curve.tile_n));
        let tile_seconds = |tm: u64, tn: u64| {
            let waves = (g.tiles(tm, tn) / f64::from(curve.processors)).ceil();
            let area = (tm * tn) as f64;
            let intensity = area / (tm + tn) as f64;
            let loss = 1.0 + TILE_LOAD / intensity;
            waves * f64::from(curve.processors) * area * loss
        };
        let own = 1.0 + TILE_LOAD * (tm + tn) as f64 / (tm * tn) as f64;
        let elements = tile_seconds(tm, tn)
            .min(tile_seconds(tm, (tn / 2).max(1)))
            .min(tile_seconds((tm / 2).max(1), (tn / 2).max(1)))
            / own;
        let mut arithmetic = 2.0 * elements * (g.k as f64 + format.half_k) / format.rate;
        // Scales lie apart from the numbers of a row, of which 4-bit ones share a byte.
        let each = if format.bytes < 1.0 { 0.5 } else { format.bytes };
        // Products of 32 bits pass vector units, which load number by number: the alignment that NVIDIA's guide to matrix
        // products asks for is that of tensor cores (docs.nvidia.com/deeplearning/performance, table 1).
        if self.in_units {
            let slowdown = |width: u64| curve.slowdown(width as f64 * each);
            let unaligned = slowdown(g.stored[0]).max(slowdown(g.stored[1]));
            // No batch of such products has a kernel on matrix units: pairs of steps of BLOOM on A100 that differ in their heads' width
            // alone, 144 and 108 numbers, tell 10 to 14 times as long (bigscience-workshop/bigscience, experiments of the 176B model).
            let batched = self.vector.filter(|_| g.batch > 1 && unaligned > 1.0);
            arithmetic *= batched.map_or(unaligned, |vector| unaligned.max(self.matrix / vector));
        }
        arithmetic *= g.whole;
        if let (Some([one, both]), true) = (curve.fp8_across_slowdowns, format.bytes == 1.0) {
            arithmetic *= [1.0, one, both][usize::from(g.across.min(2))];
        }
        let (m, n, k) = (g.m as f64, g.n as f64, g.k as f64);
        if let Some(rate) = curve.sum_gb_per_s {
            let added = g.batch as f64 * m * n * (result_bytes - self.width);
            arithmetic += added / (rate * 1e9 * f64::from(curve.processors));
        }
        let bytes = g.batch as f64 * (format.bytes * (m * k + k * n) + result_bytes * m * n);
        arithmetic.max(bytes / self.memory) + self.kernel
    }
}

/// Multiply-adds that one loaded operand element costs a tile in lost issue slots.
///
/// Assumed, not measured: an A100 processor does 1,024 16-bit multiply-adds a cycle and reads 64 elements from shared
/// memory (A100 whitepaper), that is 16 for each; half of the loads are taken to hide behind arithmetic.
const TILE_LOAD: f64 = 8.0;

/// Tiles of `tile` rows that a number of rows fills on average, the last one in part, where `mean` rows are drawn at random.
///
/// A draw over many has nearly the variance of its mean (Poisson). The expected number of tiles is the sum over j of the
/// chance of more than `j tile` rows, for which the logistic curve of slope 1.702 stands, within 0.01 of the normal law's.
fn tiles_of_drawn(mean: f64, tile: f64) -> f64 {
    let deviation = mean.sqrt();
    if deviation >= tile {
        return mean / tile + 0.5;
    }
    let sure = ((mean - 6.0 * deviation) / tile).floor().max(0.0);
    let last = ((mean + 6.0 * deviation) / tile).ceil();
    let some = if sure > 0.0 { 0.0 } else { 1.0 - (-mean).exp() };
    let mut tiles = sure + some;
    let mut j = sure.max(1.0);
    while j < last {
        tiles += 1.0 / (1.0 + (-1.702 * (mean - j * tile) / deviation).exp());
        j += 1.0;
    }
    tiles
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::a100;

    #[test]
    fn products_with_a_scale_for_each_row_have_a_rate_of_their_own_where_one_was_measured() {
        let mut chip = a100();
        (chip.peak_tflops.fp8, chip.host.kernel_us) = (Some(624.0), 1e-6);
        let large = Gemm::new(1 << 16, 1 << 14, 1 << 14);
        let time = |chip: &Chip| {
            Device::new(chip, Precision::Fp8, &[], 1).with_scales_of_rows().linear(large)
        };
        let usual = time(&chip);
        chip.gemm.fp8_row_efficiency = Some(chip.gemm.fp8_efficiency / 2.0);
        let slow = time(&chip);
        assert!((slow / usual - 2.0).abs() < 1e-6, "{slow} after {usual}");
        // Other scales are as fast as before.
        assert_eq!(Device::new(&chip, Precision::Fp8, &[], 1).linear(large), usual);
    }

    #[test]
    fn a_batch_of_unaligned_products_runs_on_vector_units() {
        let chip = a100();
        let d = Device::new(&chip, Precision::Bf16, &[], 1);
        let [aligned, unaligned] =
            [144, 108].map(|k| d.plain(Gemm::batched(64, 2048, 2048, k)) - 3e-6);
        let arithmetic = 64.0 * 2.0 * 2048.0 * 2048.0 * (108.0 + chip.gemm.half_k);
        let vector = chip.peak_tflops.fp32.unwrap() * 1e12 * chip.gemm.efficiency;
        assert!((unaligned / (arithmetic / vector) - 1.0).abs() < 0.1, "{unaligned}");
        assert!(unaligned > 5.0 * aligned, "{unaligned} after {aligned}");
    }

    #[test]
    fn products_on_vector_units_sustain_a_share_of_their_own() {
        let mut chip = a100();
        chip.host.kernel_us = 0.0;
        let large = Gemm::new(1 << 14, 1 << 14, 1 << 14);
        let time = |chip: &Chip, precision| Device::new(chip, precision, &[], 1).linear(large);
        let before = [Precision::Fp32, Precision::Tf32].map(|precision| time(&chip, precision));
        chip.gemm.fp32_efficiency = Some(chip.gemm.efficiency / 2.0);
        let slower = time(&chip, Precision::Fp32) / before[0];
        assert!((slower - 2.0).abs() < 1e-6, "{slower}");
        assert_eq!(time(&chip, Precision::Tf32), before[1]);
    }

    #[test]
    fn a_large_aligned_product_runs_at_the_sustained_rate() {
        // 8192^3 on 108 processors with 128 x 256 tiles: 2048 tiles in 19 waves of 108 = 2052 slots;
        // 2 * 2052 * 32768 * (8192 + 280) / (312e12 * 0.8333) = 4.382 ms, plus 3 us of kernel.
        let chip = a100();
        let d = Device::new(&chip, Precision::Bf16, &[], 1);
        let expected = 2.0 * 2052.0 * 32768.0 * 8472.0 / (312e12 * chip.gemm.efficiency) + 3e-6;
        let got = d.linear(Gemm::new(8192, 8192, 8192));
        assert!((got / expected - 1.0).abs() < 1e-9, "{got} against {expected}");
    }

    #[test]
    fn an_unaligned_product_is_slower_by_the_chip_s_factor() {
        let chip = a100();
        let d = Device::new(&chip, Precision::Bf16, &[], 1);
        let aligned = d.linear(Gemm::new(4096, 8192, 4096)) - 3e-6;
        let unaligned = d.linear(Gemm::new(4096, 8191, 4096)) - 3e-6;
        assert!((unaligned / aligned - chip.gemm.unaligned_slowdown).abs() < 1e-9);
    }

    #[test]
    fn products_of_32_bits_need_no_alignment_and_start_in_twice_the_time_of_16() {
        // A peak of 19.5 beside 312: an inner dimension of 280 16-bit numbers passes in the time of 17.5, so the start and end of
        // a product of 32 bits last as long as 35. 8192 x 8191 are 64 x 32 tiles of 128 x 256 as 8192 x 8192 are, in 19 waves of
        // 108: 2 * 2052 * 32768 * (8192 + 35) / (19.5e12 * 0.8333) = 68.09 ms.
        let mut chip = a100();
        chip.peak_tflops.fp32 = Some(19.5);
        let d = Device::new(&chip, Precision::Fp32, &[], 1);
        let expected = 2.0 * 2052.0 * 32768.0 * 8227.0 / (19.5e12 * chip.gemm.efficiency) + 3e-6;
        for width in [8191, 8192] {
            let got = d.linear(Gemm::new(8192, width, 8192));
            assert!((got / expected - 1.0).abs() < 1e-9, "{got} against {expected}");
        }
        // TF32 has half the rate and twice the bytes of 16 bits: all lasts twice as long.
        chip.peak_tflops.tf32 = Some(156.0);
        let square = Gemm::new(8192, 8192, 8192);
        let time = |precision| Device::new(&chip, precision, &[], 1).linear(square) - 3e-6;
        assert!((time(Precision::Tf32) / time(Precision::Bf16) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn odd_rows_are_slower_still_where_that_was_measured() {
        // Rows of 8,190 16-bit numbers are aligned to 4 bytes, of 8,191 to 2.
        let mut chip = a100();
        chip.gemm.odd_slowdown = Some(9.0);
        let d = Device::new(&chip, Precision::Bf16, &[], 1);
        let seconds = |width| d.linear(Gemm::new(4096, width, 4096)) - 3e-6;
        assert!((seconds(8190) / seconds(8192) - 4.5).abs() < 1e-9);
        assert!((seconds(8191) / seconds(8192) - 9.0).abs() < 1e-9);
    }

    #[test]
    fn rows_that_chance_sends_fill_half_a_tile_more_where_their_mean_is_whole_tiles() {
        // 512 rows on average vary by 22.6: as often 513 and more, five tiles of 128, as 512 and fewer, four. 448 of them vary by
        // 21 and lie between 384 and 512 in all but 0.3 % either way. Of 10,000 tiles' worth half a tile is lost.
        assert!((tiles_of_drawn(512.0, 128.0) - 4.5).abs() < 0.01);
        assert!((tiles_of_drawn(448.0, 128.0) - 4.0).abs() < 0.01);
        assert!((tiles_of_drawn(1_280_000.0, 128.0) - 10_000.5).abs() < 1e-9);
        // A draw of few rows leaves some products none: 1 - exp(-0.5).
        assert!((tiles_of_drawn(0.5, 128.0) - 0.393_469).abs() < 1e-3);
        // Rates on an H100 with rows drawn and with 1,024 for each of 32 products, which torch._grouped_mm took: 619 and 662
        // TFLOP/s; 8 / 8.5 of them is 623.
        let grouped = Gemm::batched(32, 1024, 2880, 2880);
        let lost = grouped.drawn().tiles(128, 256) / grouped.tiles(128, 256);
        assert!((662.0 / lost - 619.0).abs() < 10.0);
        // A weight gradient sums over the rows, where nothing is lost.
        assert_eq!(grouped.drawn().weight_gradient(), grouped.weight_gradient());
    }

    #[test]
    fn eight_bit_operands_that_lie_across_what_is_summed_take_longer_where_that_was_timed() {
        // 16,384 tokens by 24,576 of depth 4,096 on an MI350X: 1.328 ms, 2.201 with the weights across.
        let mut chip = a100();
        (chip.peak_tflops.fp8, chip.host.kernel_us) = (Some(624.0), 1e-6);
        let large = Gemm::new(1 << 14, 24_576, 4096);
        let time = |chip: &Chip, g: Gemm| Device::new(chip, Precision::Fp8, &[], 1).linear(g);
        assert_eq!(time(&chip, large.across(1)), time(&chip, large));
        chip.gemm.fp8_across_slowdowns = Some([2.201 / 1.328, 2.914 / 1.277]);
        let longer = |across: u8| time(&chip, large.across(across)) / time(&chip, large);
        assert!((longer(1) - 1.657).abs() < 1e-3 && (longer(2) - 2.282).abs() < 1e-3);
        let wide = Device::new(&chip, Precision::Bf16, &[], 1);
        assert_eq!(wide.linear(large.across(2)), wide.linear(large));
    }

    #[test]
    fn the_number_of_tokens_needs_no_alignment() {
        // A weight gradient sums over tokens, which are rows: 4,097 of them cost what 4,097 / 4,096 of the depth does.
        let chip = a100();
        let d = Device::new(&chip, Precision::Bf16, &[], 1);
        let gradient = |tokens| d.linear(Gemm::new(tokens, 8192, 4096).weight_gradient()) - 3e-6;
        let depth = |tokens: f64| tokens + chip.gemm.half_k;
        let expected = depth(4097.0) / depth(4096.0);
        assert!((gradient(4097) / gradient(4096) - expected).abs() < 1e-9);
    }

    #[test]
    fn a_thin_product_is_bound_by_memory() {
        // One row: 8192 x 8192 weights of 2 bytes at 2039 GB/s x 0.87.
        let chip = a100();
        let d = Device::new(&chip, Precision::Bf16, &[], 1);
        let bytes = 2.0 * (8192.0 * 8192.0 + 8192.0) + 2.0 * 8192.0;
        let expected = bytes / (2039e9 * 0.87) + 3e-6;
        let got = d.linear(Gemm::new(1, 8192, 8192));
        assert!((got / expected - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_result_that_is_added_passes_memory_behind_the_arithmetic() {
        // A gradient of 8192 x 8192 over 4,096 tokens is bound by arithmetic; over 64 by memory, where the sum is read and
        // written in 4 bytes.
        let chip = a100();
        let d = Device::new(&chip, Precision::Bf16, &[], 1);
        let deep = Gemm::new(8192, 8192, 4096);
        assert_eq!(d.linear_added(deep, 4.0), d.linear(deep));
        let flat = Gemm::new(8192, 8192, 64);
        let bytes = 2.0 * 2.0 * 64.0 * 8192.0 + 8.0 * 8192.0 * 8192.0;
        let expected = bytes / (2039e9 * 0.87) + 3e-6;
        assert!((d.linear_added(flat, 4.0) / expected - 1.0).abs() < 1e-9);
        // While nothing is computed: 6 bytes more than any result takes, over 108 processors of 40 GB/s, 93.2 us.
        let mut chip = a100();
        chip.gemm.sum_gb_per_s = Some(40.0);
        let d = Device::new(&chip, Precision::Bf16, &[], 1);
        let added = d.linear_added(deep, 4.0) - d.linear(deep);
        assert!((added / 93.2e-6 - 1.0).abs() < 1e-3);
    }
}
