//! The cluster: chips, the nodes they sit in, and the links between them.
//!
//! Devices of one kind fill whole nodes. A group of devices is described by its size and the
//! stride between its members' ranks; [`Group::members_within`] tells how many share a domain.

use super::attention::AttentionRate;
use super::exchange::ExchangeRate;
use super::workload::Precision;
use crate::error::{require, Error};
use serde::{Deserialize, Serialize};

/// Most kinds of chip in a cluster.
pub const MOST_KINDS: usize = 8;

/// The most devices of a node that are taken to hang on one socket, each on a root port of its own: a server of eight has a switch of
/// PCIe to four of them, or a second socket.
pub const ONE_SOCKET: u32 = 4;

/// The most devices that a job may use.
pub const MOST_DEVICES: u64 = 1 << 24;

/// Devices of one or several kinds and how they are connected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// The kinds of device that may be used.
    pub groups: Vec<DeviceGroup>,
    /// Devices that a plan uses, all kinds together.
    pub devices: u64,
    /// Network levels above the node, inner first; empty for a network without bottleneck.
    pub fabric: Vec<FabricLevel>,
    /// Link between devices of different kinds; without it the slower network of the two.
    pub between_kinds: Option<NetworkLink>,
}

/// Devices of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceGroup {
    /// The kind.
    pub chip: Chip,
    /// How many there are at most; `null` for no limit.
    pub limit: Option<u64>,
}

/// A level of the network in which fewer bytes a second get through than a device's NIC takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricLevel {
    /// Nodes below one switch of this level; traffic that leaves them passes the next level.
    pub nodes: u64,
    /// Share of the NIC's bandwidth that is left beyond those nodes: 0.5 for 2:1 oversubscription.
    pub bandwidth_fraction: f64,
}

/// A network link as one device sees it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkLink {
    /// Bytes a second in one direction, 10^9 a second, for one device.
    pub bandwidth_gb_per_s: f64,
    /// Time until the first byte arrives, in microseconds.
    pub latency_us: f64,
}

/// A kind of device with the node it comes in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chip {
    /// Name in the catalog, or the file's stem.
    pub name: String,
    /// Devices in one node.
    pub devices_per_node: u32,
    /// Devices that reach each other by `link`: a node, or more nodes with a scale-up fabric.
    pub link_domain: u32,
    /// Memory visible to the driver, in GiB.
    pub memory_gib: f64,
    /// Memory bandwidth by the data sheet, 10^9 bytes a second.
    pub memory_bandwidth_gb_per_s: f64,
    /// Share of it that a streaming kernel reaches.
    pub memory_efficiency: f64,
    /// Dense matrix peaks.
    pub peak_tflops: Peaks,
    /// Standard deviation of the sustained speed between devices of this kind, as a share of it.
    pub speed_spread: f64,
    /// How matrix products approach the peak.
    pub gemm: GemmCurve,
    /// Measured fused-attention rates, and where none were measured the nearest chip's, scaled.
    pub attention: Vec<AttentionRate>,
    /// What libraries for experts' tokens were timed at inside the domain.
    pub exchange: Vec<ExchangeRate>,
    /// Link inside the domain.
    pub link: Link,
    /// Network between nodes.
    pub network: Network,
    /// The host's side.
    pub host: Host,
    /// Price of one device-hour, in any one currency.
    pub price_per_hour: Option<f64>,
    /// What about these figures is not measured; carried into the report.
    pub caveats: Vec<String>,
}

/// Dense matrix peaks by number format, in 10^12 operations a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peaks {
    /// bfloat16; absent on chips without it.
    pub bf16: Option<f64>,
    /// IEEE half.
    pub fp16: Option<f64>,
    /// 8-bit floating point; absent on chips without it.
    pub fp8: Option<f64>,
    /// 4-bit floating point with a scale for each block of a row; absent on chips without it.
    pub fp4: Option<f64>,
    /// TensorFloat-32; absent on chips without it.
    pub tf32: Option<f64>,
    /// 32-bit matrix products.
    pub fp32: Option<f64>,
    /// 32-bit integers on vector units; absent where half of the units that take 32-bit numbers take them.
    pub int32: Option<f64>,
}

impl Peaks {
    /// The peak of a job in `precision`; absent where the chip cannot run it. What a job in 8 or 4 bits leaves in
    /// 16 runs in bfloat16.
    pub fn of(&self, precision: Precision) -> Option<f64> {
        match precision {
            Precision::Bf16 => self.bf16,
            Precision::Fp16 => self.fp16,
            Precision::Fp8 => self.bf16.and(self.fp8),
            Precision::Fp4 => self.bf16.and(self.fp4),
            Precision::Tf32 => self.tf32,
            Precision::Fp32 => self.fp32,
        }
    }

    /// The peak of 32-bit integers on vector units; absent where neither they nor those of 32-bit numbers are told.
    pub fn integers(&self) -> Option<f64> {
        self.int32.or(self.fp32.map(|peak| peak / 2.0))
    }

    /// The formats that a job can use in place of one that is absent, as a sentence.
    pub(super) fn cure(&self) -> String {
        let known: Vec<_> = Precision::ALL
            .into_iter()
            .filter(|&precision| self.of(precision).is_some())
            .map(|precision| format!("{precision:?}").to_lowercase())
            .collect();
        match known.as_slice() {
            [] => "Give a peak.".to_owned(),
            [only] => format!("Use {only} on this chip."),
            [others @ .., last] => format!("Use {} or {last} on this chip.", others.join(", ")),
        }
    }
}

/// Efficiency of matrix products by shape: a few physical figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GemmCurve {
    /// Share of the 16-bit peak that a large, aligned product sustains in training.
    pub efficiency: f64,
    /// The same of the 8-bit peak.
    pub fp8_efficiency: f64,
    /// The same of the 8-bit peak where each row of an operand has a scale of its own; none where that is no slower.
    pub fp8_row_efficiency: Option<f64>,
    /// The same of the 4-bit peak, on chips that have one.
    pub fp4_efficiency: Option<f64>,
    /// The same of the peak of vector units in 32 bits; none where products in 32 bits sustain what those in 16 do.
    pub fp32_efficiency: Option<f64>,
    /// Products of 8-bit operands take them as they lie; else only along the dimension that they sum over.
    pub fp8_any_layout: bool,
    /// How much longer a product takes one, and both, of whose 8-bit operands lie across the dimension that it sums over; none
    /// where that was not timed.
    pub fp8_across_slowdowns: Option<[f64; 2]>,
    /// Inner dimension that costs as much again in prologue and epilogue: time grows as (k + half_k)/k.
    pub half_k: f64,
    /// The same for 8-bit operands.
    pub fp8_half_k: f64,
    /// Rows of an output tile.
    pub tile_m: u32,
    /// Columns of an output tile.
    pub tile_n: u32,
    /// Processors that each hold one tile at a time.
    pub processors: u32,
    /// Bytes to which a row must be aligned for the matrix units; below it the product is slower.
    pub alignment_bytes: u32,
    /// Slowdown of an unaligned product.
    pub unaligned_slowdown: f64,
    /// The same where rows are not even aligned to 4 bytes; none where that is no slower.
    pub odd_slowdown: Option<f64>,
    /// GB/s at which a processor reads and writes the stored sum to which its tile is added, while it computes nothing; none
    /// where that passes behind arithmetic.
    pub sum_gb_per_s: Option<f64>,
}

impl GemmCurve {
    /// Slowdown of a product that stores rows of so many bytes.
    ///
    /// Tensor cores of Ampere and later are fed by copies of 16 bytes, kernels for less by copies of 4, and below that number by
    /// number through registers.
    pub fn slowdown(&self, row: f64) -> f64 {
        let aligned = |bytes: f64| (row / bytes).fract() == 0.0;
        if aligned(f64::from(self.alignment_bytes)) {
            1.0
        } else if aligned(4.0) {
            self.unaligned_slowdown
        } else {
            self.odd_slowdown.unwrap_or(self.unaligned_slowdown)
        }
    }
}

/// The link inside a node or scale-up domain.
///
/// The rates are bus bandwidths as nccl-tests define them, in 10^9 bytes a second for one device: measured
/// with large messages on the devices of a node, or on eight of a domain of smaller nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// How devices are wired.
    pub topology: Topology,
    /// All-reduce.
    pub all_reduce_gb_per_s: f64,
    /// All-gather and reduce-scatter.
    pub all_gather_gb_per_s: f64,
    /// All-to-all.
    pub all_to_all_gb_per_s: f64,
    /// One pair of devices, one direction.
    pub p2p_gb_per_s: f64,
    /// What rings among more than four devices of a node but not all reach, where the library knows those of a whole node and
    /// searches for two at most in such a part (RCCL); none where they use all wires between its devices.
    pub part_gb_per_s: Option<f64>,
    /// All-reduce in a node of [`ONE_SOCKET`] devices at most, all of which hang on one socket without a switch; none where it is as
    /// fast as in a larger one. Other rings and exchanges differ by as much.
    pub socket_gb_per_s: Option<f64>,
    /// One step of a collective between two devices, in microseconds.
    pub latency_us: f64,
    /// Share of the device's processors that a collective occupies: what runs beside it is slower by this. 1 where nothing does.
    pub processor_share: f64,
}

/// How the devices of a node are wired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// Every device reaches every other at its full rate (NVSwitch).
    Switch,
    /// One wire to each peer: a group of n uses n - 1 of them (HCCS, Infinity Fabric, Gaudi).
    Mesh,
    /// Eight devices with six wires each, a cube whose edges are partly doubled and two of whose faces have diagonals (DGX-1);
    /// in a node of four, two wires to each peer.
    CubeMesh,
    /// Shared tree through the host.
    Pcie,
    /// Rings along two axes of a pod (TPU v2, v3, v5e and v6e); rates are those of one axis.
    Torus2d,
    /// Rings along three axes (TPU v4, v5p and v7).
    Torus3d,
}

/// The network between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Network cards of one node.
    pub nics_per_node: u32,
    /// Line rate of one card, 10^9 bits a second.
    pub nic_gbit_per_s: f64,
    /// Share of the line rate that collectives reach.
    pub efficiency: f64,
    /// One step of a collective between two nodes, in microseconds.
    pub latency_us: f64,
    /// Gathers and scatters run inside nodes and between them in turn, so that a node receives once what it lacks (HCCL); else
    /// rings through all members bring it everything (NCCL, RCCL).
    pub gathers_by_level: bool,
}

/// The host beside the devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Device to host memory, one direction, 10^9 bytes a second for one device.
    pub pcie_gb_per_s: f64,
    /// Time a kernel occupies the device beyond its work, in microseconds.
    pub kernel_us: f64,
    /// Memory bandwidth of the host for one device's share, 10^9 bytes a second (optimizer on the host).
    pub memory_gb_per_s: f64,
    /// What one thread moves of it while its neighbours do the same, 10^9 bytes a second.
    pub core_gb_per_s: f64,
    /// How long it takes to launch an operator, over what the hosts take whose runs tell a framework's `launch_us`.
    pub pace: f64,
}

/// Devices that communicate: `size` ranks, `stride` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// Number of devices.
    pub size: u64,
    /// Distance of neighbours in the rank order of their stage.
    pub stride: u64,
}

impl Group {
    /// How many members lie in one aligned domain of `domain` consecutive ranks.
    ///
    /// ```
    /// use autopar_core::spec::cluster::Group;
    /// // Data parallel of 16 over tensor parallel of 2: four members share a node of eight.
    /// assert_eq!(Group { size: 16, stride: 2 }.members_within(8), 4);
    /// assert_eq!(Group { size: 16, stride: 8 }.members_within(8), 1);
    /// ```
    pub fn members_within(self, domain: u64) -> u64 {
        (domain / self.stride).clamp(1, self.size)
    }
}

impl Link {
    /// Whether the switch sums: then an all-reduce, which a ring makes of a scatter and a gather, is faster than either.
    pub fn sums_in_switch(&self) -> bool {
        self.topology == Topology::Switch && self.all_reduce_gb_per_s > self.all_gather_gb_per_s
    }
}

/// Passes for a delay of at most a second: what lasts longer was given in another unit.
fn brief(us: f64, path: &str) -> Result<(), Error> {
    require(
        (0.0..=1e6).contains(&us),
        path,
        || format!("must be from 0 to 1,000,000 (a second), found {us}"),
        "Give it in microseconds.",
    )
}

impl Chip {
    /// Bytes a second that one device's share of the node's network cards carries, one direction.
    pub fn network_bytes_per_s(&self) -> f64 {
        f64::from(self.network.nics_per_node) * self.network.nic_gbit_per_s / 8.0
            * self.network.efficiency
            * 1e9
            / f64::from(self.devices_per_node)
    }

    /// How much faster a node's rings are on PCIe where one socket has all its devices, or slower for want of a switch.
    pub fn socket_gain(&self) -> f64 {
        match self.link.socket_gb_per_s {
            Some(rate) if self.devices_per_node <= ONE_SOCKET => {
                rate / self.link.all_reduce_gb_per_s
            }
            _ => 1.0,
        }
    }

    /// Bytes a second that rings among `members` of a group in one node pass at most, whatever their wires carry.
    ///
    /// RCCL takes the rings of eight devices from a list (src/graph/rome_models.cc, parseA2a8P). For more than four but fewer
    /// it marks the node all the same, and then searches for two rings, not for as many as there are wires (src/graph/search.cc,
    /// ncclTopoCompute), unless the group goes on in other nodes.
    pub fn ring_limit(&self, members: u64, group: Group) -> f64 {
        let part = members > 4 && members < u64::from(self.devices_per_node);
        match self.link.part_gb_per_s {
            Some(rate) if part && members == group.size => rate * 1e9,
            _ => f64::INFINITY,
        }
    }

    /// Checks ranges and that every table is usable.
    pub fn validate(&self) -> Result<(), Error> {
        let positive = |v: f64, path: &str| {
            require(
                v.is_finite() && v > 0.0,
                path,
                || format!("must be a positive number, found {v}"),
                "Give the figure in the unit that the key names.",
            )
        };
        let share = |v: f64, path: &str| {
            positive(v, path)?;
            require(
                v <= 1.0,
                path,
                || format!("must be at most 1, found {v}"),
                "A share of the peak lies between 0 and 1.",
            )
        };
        for (v, path) in [
            (f64::from(self.devices_per_node), "devices_per_node"),
            (f64::from(self.link_domain), "link_domain"),
            (self.memory_gib, "memory_gib"),
            (self.memory_bandwidth_gb_per_s, "memory_bandwidth_gb_per_s"),
            (f64::from(self.gemm.tile_m), "gemm.tile_m"),
            (f64::from(self.gemm.tile_n), "gemm.tile_n"),
            (f64::from(self.gemm.processors), "gemm.processors"),
            (f64::from(self.gemm.alignment_bytes), "gemm.alignment_bytes"),
            (self.gemm.unaligned_slowdown, "gemm.unaligned_slowdown"),
            (self.link.all_reduce_gb_per_s, "link.all_reduce_gb_per_s"),
            (self.link.all_gather_gb_per_s, "link.all_gather_gb_per_s"),
            (self.link.all_to_all_gb_per_s, "link.all_to_all_gb_per_s"),
            (self.link.p2p_gb_per_s, "link.p2p_gb_per_s"),
            (f64::from(self.network.nics_per_node), "network.nics_per_node"),
            (self.network.nic_gbit_per_s, "network.nic_gbit_per_s"),
            (self.host.pcie_gb_per_s, "host.pcie_gb_per_s"),
            (self.host.memory_gb_per_s, "host.memory_gb_per_s"),
            (self.host.core_gb_per_s, "host.core_gb_per_s"),
            (self.host.pace, "host.pace"),
        ] {
            positive(v, path)?;
        }
        for (v, path) in [
            (self.link.latency_us, "link.latency_us"),
            (self.network.latency_us, "network.latency_us"),
            (self.host.kernel_us, "host.kernel_us"),
        ] {
            positive(v, path)?;
            brief(v, path)?;
        }
        for (v, path) in
            [(self.gemm.half_k, "gemm.half_k"), (self.gemm.fp8_half_k, "gemm.fp8_half_k")]
        {
            require(
                v.is_finite() && v >= 0.0,
                path,
                || format!("must not be negative, found {v}"),
                "Zero is a product that starts and ends behind others, as in a systolic array.",
            )?;
        }
        require(
            (0.0..=0.1).contains(&self.speed_spread),
            "speed_spread",
            || format!("must be from 0 to 0.1, found {}", self.speed_spread),
            "Devices of one kind differ by a per cent or two.",
        )?;
        require(
            (0.0..=1.0).contains(&self.link.processor_share),
            "link.processor_share",
            || format!("must be from 0 to 1, found {}", self.link.processor_share),
            "A collective occupies a part of the processors, or all where nothing runs beside it.",
        )?;
        share(self.memory_efficiency, "memory_efficiency")?;
        share(self.gemm.efficiency, "gemm.efficiency")?;
        share(self.gemm.fp8_efficiency, "gemm.fp8_efficiency")?;
        self.gemm.fp8_row_efficiency.map_or(Ok(()), |v| share(v, "gemm.fp8_row_efficiency"))?;
        for v in self.gemm.fp8_across_slowdowns.into_iter().flatten() {
            require(
                v.is_finite() && v >= 1.0,
                "gemm.fp8_across_slowdowns",
                || format!("must be 1 or more, found {v}"),
                "Give 1 where such a product takes no longer.",
            )?;
        }
        self.gemm.odd_slowdown.map_or(Ok(()), |v| positive(v, "gemm.odd_slowdown"))?;
        self.gemm.sum_gb_per_s.map_or(Ok(()), |v| positive(v, "gemm.sum_gb_per_s"))?;
        self.link.part_gb_per_s.map_or(Ok(()), |v| positive(v, "link.part_gb_per_s"))?;
        self.link.socket_gb_per_s.map_or(Ok(()), |v| positive(v, "link.socket_gb_per_s"))?;
        self.gemm.fp4_efficiency.map_or(Ok(()), |v| share(v, "gemm.fp4_efficiency"))?;
        self.gemm.fp32_efficiency.map_or(Ok(()), |v| share(v, "gemm.fp32_efficiency"))?;
        require(
            self.peak_tflops.fp4.is_none() || self.gemm.fp4_efficiency.is_some(),
            "gemm.fp4_efficiency",
            || "missing beside peak_tflops.fp4".to_owned(),
            "Say which share of the 4-bit peak large products sustain.",
        )?;
        share(self.network.efficiency, "network.efficiency")?;
        for (v, path) in [
            (self.peak_tflops.bf16, "peak_tflops.bf16"),
            (self.peak_tflops.fp16, "peak_tflops.fp16"),
            (self.peak_tflops.fp8, "peak_tflops.fp8"),
            (self.peak_tflops.fp4, "peak_tflops.fp4"),
            (self.peak_tflops.tf32, "peak_tflops.tf32"),
            (self.peak_tflops.fp32, "peak_tflops.fp32"),
            (self.peak_tflops.int32, "peak_tflops.int32"),
            (self.price_per_hour, "price_per_hour"),
        ] {
            v.map_or(Ok(()), |v| positive(v, path))?;
        }
        require(
            self.link_domain >= self.devices_per_node
                && self.link_domain.is_multiple_of(self.devices_per_node),
            "link_domain",
            || {
                format!(
                    "must be a multiple of devices_per_node ({}), found {}",
                    self.devices_per_node, self.link_domain
                )
            },
            "A scale-up domain holds whole nodes.",
        )?;
        for (i, row) in self.exchange.iter().enumerate() {
            row.validate(&format!("exchange[{i}]"))?;
        }
        for (i, row) in self.attention.iter().enumerate() {
            row.validate(&format!("attention[{i}]"))?;
        }
        Ok(())
    }
}

impl Cluster {
    /// Checks every chip, the counts, and that names are distinct.
    pub fn validate(&self) -> Result<(), Error> {
        require(
            !self.groups.is_empty() && self.groups.len() <= MOST_KINDS,
            "groups",
            || {
                format!(
                    "must list from 1 to {MOST_KINDS} kinds of chip, found {}",
                    self.groups.len()
                )
            },
            "Name at least one chip.",
        )?;
        require(
            (1..=MOST_DEVICES).contains(&self.devices),
            "devices",
            || format!("must be from 1 to 2^24, found {}", self.devices),
            "Give the number of devices that the job uses.",
        )?;
        for (i, group) in self.groups.iter().enumerate() {
            let path = format!("groups[{i}]");
            group.chip.validate().map_err(|e| e.under("chip").under(&path))?;
            require(
                self.groups[..i].iter().all(|g| g.chip.name != group.chip.name),
                &path,
                || format!("chip \"{}\" is listed twice", group.chip.name),
                "List each kind of chip once.",
            )?;
            require(
                group.limit != Some(0),
                &format!("{path}.limit"),
                || "must be positive, found 0".to_owned(),
                "Leave the chip out, or give null for no limit.",
            )?;
        }
        for (i, level) in self.fabric.iter().enumerate() {
            let path = format!("fabric[{i}]");
            require(
                level.nodes > 0
                    && level.bandwidth_fraction > 0.0
                    && level.bandwidth_fraction <= 1.0
                    && (i == 0
                        || (level.nodes > self.fabric[i - 1].nodes
                            && level.bandwidth_fraction <= self.fabric[i - 1].bandwidth_fraction)),
                &path,
                || "levels must grow in nodes and not in bandwidth_fraction (0 to 1)".to_owned(),
                "List the levels from the node outwards.",
            )?;
        }
        if let Some(link) = &self.between_kinds {
            require(
                link.bandwidth_gb_per_s > 0.0,
                "between_kinds.bandwidth_gb_per_s",
                || format!("must be a positive number, found {}", link.bandwidth_gb_per_s),
                "Give the link's bandwidth for one device.",
            )?;
            brief(link.latency_us, "between_kinds.latency_us")?;
        }
        Ok(())
    }
}
