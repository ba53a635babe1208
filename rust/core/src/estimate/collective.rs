//! Seconds of a collective on a group, from where its members really sit.
//!
//! A group is split by levels: the scale-up domain (NVLink, HCCS, a PCIe tree), then the network with its
//! switches. Each level moves the bytes that must cross it with the links that the group's members own
//! there, all levels at once as pipelined rings and trees do, so the slowest level decides.
//!
//! Before the last byte arrives a message must pass every step of its algorithm, however small its pieces are. A ring of n
//! takes n - 1 steps to gather or to scatter and twice as many to sum; a small sum over many nodes takes a tree instead, a
//! chain inside each node and one step for each doubling of the nodes. This is NCCL's own model of itself
//! (src/graph/tuning.cc, protocol Simple), which is why sharding over a thousand ranks costs milliseconds a gather.
//!
//! Volumes: an all-gather or reduce-scatter of `bytes` (the whole tensor) brings `(n-1)/n` of it to each of n
//! members; an all-reduce is both in turn. Between units of u members each, a unit lacks `1 - u/n` of the
//! tensor (Thakur, Rabenseifner, Gropp 2005), and receives no more of it over the u network shares of its members in a
//! sum (for two nodes the tree moves half of the tensor each way) and where a library gathers level by level. NCCL gathers
//! and scatters by rings through all members: what a node's own members hold passes its cards too, `(n-1)/n` in all.

use super::torus::Torus;
use crate::spec::cluster::{Chip, Cluster, FabricLevel, Group, NetworkLink, Topology};

/// One kind of chip with the network around it.
#[derive(Clone, Debug)]
pub struct Fabric<'a> {
    pub(super) chip: &'a Chip,
    levels: &'a [FabricLevel],
    torus: Option<Torus>,
}

/// Bus bandwidths inside the domain differ by operation.
#[derive(Clone, Copy)]
enum Operation {
    AllReduce,
    AllGather,
}

impl<'a> Fabric<'a> {
    /// The chip's links with the cluster's network levels above them.
    pub fn new(cluster: &'a Cluster, chip: &'a Chip) -> Fabric<'a> {
        let torus = Torus::new(chip.link.topology, u64::from(chip.link_domain), cluster.devices);
        Fabric { chip, levels: &cluster.fabric, torus }
    }

    /// What communication of `seconds` adds beside computation of `behind` seconds that could hide it: what is longer, and the
    /// computation's loss of the processors that collectives occupy.
    pub fn beside(&self, seconds: f64, behind: f64) -> f64 {
        let hidden = seconds.min(behind.max(0.0));
        seconds - hidden + self.chip.link.processor_share * hidden
    }

    /// Whether a group has members in several domains, between which its messages pass the network.
    pub fn leaves(&self, group: Group) -> bool {
        group.members_within(u64::from(self.chip.link_domain)) < group.size
    }

    /// Whether devices are joined along axes, with wires of their own on each.
    pub fn has_axes(&self) -> bool {
        self.torus.is_some()
    }

    /// Seconds to gather a tensor of `bytes` on every member, or to reduce and scatter it.
    pub fn all_gather(&self, bytes: f64, group: Group) -> f64 {
        if group.size <= 1 || bytes <= 0.0 {
            return 0.0;
        }
        self.transfer(bytes, group, Operation::AllGather) + self.ring_steps(group)
    }

    /// Seconds of a gather to start, and for each byte.
    pub fn gather_line(&self, group: Group) -> (f64, f64) {
        (self.ring_steps(group), self.transfer(1.0, group, Operation::AllGather))
    }

    /// Seconds to sum a tensor of `bytes` on every member.
    pub fn all_reduce(&self, bytes: f64, group: Group) -> f64 {
        if group.size <= 1 || bytes <= 0.0 {
            return 0.0;
        }
        // Both halves move the same volume. A tree takes fewer steps with less bandwidth: the faster, as NCCL chooses.
        let wires = 2.0 * self.transfer(bytes, group, Operation::AllReduce);
        let ring = wires + self.ring_sum_steps(group);
        ring.min(wires / tree_share(bytes) + self.tree_steps(group))
    }

    /// Seconds until every member has exchanged `bytes` (all that one member holds) with all others.
    pub fn all_to_all(&self, bytes: f64, group: Group) -> f64 {
        if group.size <= 1 || bytes <= 0.0 {
            return 0.0;
        }
        let n = group.size as f64;
        let inside = group.members_within(u64::from(self.chip.link_domain));
        let local = bytes * (inside - 1) as f64 / n / self.exchange_rate(inside, group.stride);
        let network = self
            .network_levels(group)
            .map(|(below, rate)| bytes * (group.size - below) as f64 / n / rate)
            .fold(0.0, f64::max);
        local.max(network) + self.exchange_steps(group)
    }

    /// Seconds to send `bytes` to a device `distance` ranks away.
    pub fn send(&self, bytes: f64, distance: u64) -> f64 {
        if distance < u64::from(self.chip.link_domain) {
            bytes / (self.chip.link.p2p_gb_per_s * 1e9) + start(self.chip.link.latency_us)
        } else {
            self.send_out(bytes, distance, u64::from(self.chip.devices_per_node))
        }
    }

    /// The same where it lies in another domain, however near it is, and so many devices side by side send at once: those of a
    /// part of a node share the cards that are theirs, and one at least.
    pub fn send_out(&self, bytes: f64, distance: u64, senders: u64) -> f64 {
        let (node, cards) =
            (u64::from(self.chip.devices_per_node), u64::from(self.chip.network.nics_per_node));
        let senders = senders.min(node);
        let theirs = (senders * cards).div_ceil(node) as f64 / senders as f64;
        let more = theirs * node as f64 / cards as f64;
        let rate = self.chip.network_bytes_per_s() * more * self.fraction_beyond(distance);
        bytes / rate + start(self.chip.network.latency_us)
    }

    /// Seconds to send `bytes` to a device of another kind.
    pub fn send_between(
        &self,
        bytes: f64,
        other: &Fabric<'_>,
        between: Option<&NetworkLink>,
    ) -> f64 {
        let (rate, latency) = match between {
            Some(link) => (link.bandwidth_gb_per_s * 1e9, link.latency_us),
            None => (
                self.chip.network_bytes_per_s().min(other.chip.network_bytes_per_s()),
                self.chip.network.latency_us.max(other.chip.network.latency_us),
            ),
        };
        bytes / rate + start(latency)
    }

    /// Seconds that the bytes of one half of a sum, or of a gather, take on the busiest level.
    fn transfer(&self, bytes: f64, group: Group, operation: Operation) -> f64 {
        let n = group.size as f64;
        let inside = group.members_within(u64::from(self.chip.link_domain));
        let local =
            if inside > 1 { self.local_transfer(bytes, inside, group, operation) } else { 0.0 };
        // A ring a member of a node, each of which leaves a switch by one of the cards below it.
        let rings = inside as f64 * self.chip.network_bytes_per_s();
        let by_level = self.chip.network.gathers_by_level;
        let network = self
            .network_levels(group)
            .map(|(below, rate)| match operation {
                Operation::AllGather if !by_level => {
                    bytes * (n - 1.0) / n / rings.min(below as f64 * rate)
                }
                _ => bytes * (1.0 - below as f64 / n) / (below as f64 * rate),
            })
            .fold(0.0, f64::max);
        local.max(network)
    }

    /// The same on the links of a domain that `inside` of the group's n members share.
    ///
    /// A ring passes all n - 1 shares of the others through each member. Multicast in the switch sums the members of a
    /// domain there, and only a domain's own sum goes round the others (NCCL's algorithms NVLS and NVLSTree).
    fn local_transfer(&self, bytes: f64, inside: u64, group: Group, operation: Operation) -> f64 {
        let link = &self.chip.link;
        let n = group.size as f64;
        let limit = self.chip.ring_limit(inside, group);
        let ring = |gb_per_s: f64| {
            bytes * (n - 1.0) / n / self.domain_rate(gb_per_s, inside, group.stride).min(limit)
        };
        match operation {
            Operation::AllGather => ring(link.all_gather_gb_per_s),
            Operation::AllReduce if link.sums_in_switch() => {
                let members = inside as f64;
                let rate = 1e9 * link.all_reduce_gb_per_s * self.multicast_share(inside);
                ring(link.all_gather_gb_per_s).min(bytes * (members - 1.0) / members / rate)
            }
            Operation::AllReduce => ring(link.all_reduce_gb_per_s),
        }
    }

    /// Share of the bus bandwidth of a sum in the switch that `members` of a domain reach, of what [`MEASURED`] do.
    ///
    /// Each member's wire carries the whole tensor once to be summed, a share for every member, and its own share of the
    /// result once, which the switch copies to all: `1 + 1/n` tensors each way. Bus bandwidth counts `2 (n - 1)/n` of
    /// them, so it grows as `(n - 1)/(n + 1)`. Beyond the measured number it is taken to stay.
    fn multicast_share(&self, members: u64) -> f64 {
        let growth = |n: u64| (n - 1) as f64 / (n + 1) as f64;
        let measured = MEASURED.min(u64::from(self.chip.link_domain));
        if members < measured {
            growth(members) / growth(measured)
        } else {
            1.0
        }
    }

    /// Bytes a second of an exchange of each with all among `members` of one domain.
    pub(super) fn exchange_rate(&self, members: u64, stride: u64) -> f64 {
        let gb_per_s = self.chip.link.all_to_all_gb_per_s;
        match &self.torus {
            Some(torus) => gb_per_s * 1e9 * torus.cover(members).exchanges(),
            None => self.domain_rate(gb_per_s, members, stride),
        }
    }

    /// Bytes a second of a collective among `members` of one domain, `stride` ranks apart, for a rate measured with all of it,
    /// or on one axis of a torus.
    pub(super) fn domain_rate(&self, gb_per_s: f64, members: u64, stride: u64) -> f64 {
        let all = u64::from(self.chip.devices_per_node);
        let share = match self.chip.link.topology {
            Topology::Torus2d | Topology::Torus3d => {
                self.torus.map_or(1.0, |torus| torus.cover(members).gathers())
            }
            Topology::Switch => 1.0,
            Topology::Pcie => self.chip.socket_gain(),
            Topology::CubeMesh if all > 4 => cube_mesh_wires(members, stride) / 6.0,
            // One wire, or one pair of wires, to each peer: a smaller group drives fewer of them.
            Topology::Mesh | Topology::CubeMesh if members <= all && all > 1 => {
                members.saturating_sub(1).max(1) as f64 / (all - 1) as f64
            }
            Topology::Mesh | Topology::CubeMesh => 1.0,
        };
        gb_per_s * 1e9 * share
    }

    /// For each network level that the group crosses: members below it, and a member's bytes a second there.
    pub(super) fn network_levels(&self, group: Group) -> impl Iterator<Item = (u64, f64)> + '_ {
        let node = u64::from(self.chip.devices_per_node);
        let nic = self.chip.network_bytes_per_s();
        let first = (u64::from(self.chip.link_domain), 1.0);
        let above = self.levels.iter().map(move |l| (l.nodes * node, l.bandwidth_fraction));
        std::iter::once(first).chain(above).filter_map(move |(span, fraction)| {
            let below = group.members_within(span);
            (below < group.size).then_some((below, nic * fraction))
        })
    }

    fn fraction_beyond(&self, distance: u64) -> f64 {
        let node = u64::from(self.chip.devices_per_node);
        self.levels
            .iter()
            .filter(|l| distance >= l.nodes * node)
            .map(|l| l.bandwidth_fraction)
            .fold(1.0, f64::min)
    }

    /// Members of the group in one domain, and domains that the group spans.
    pub(super) fn spread(&self, group: Group) -> (u64, u64) {
        let inside = group.members_within(u64::from(self.chip.link_domain));
        (inside, group.size.div_ceil(inside))
    }

    /// Steps between `members` of one domain: from each to the next, from end to end of a torus, or all at once where wires join
    /// every pair.
    fn local_steps(&self, members: u64) -> u64 {
        match self.chip.link.topology {
            Topology::Torus2d | Topology::Torus3d => {
                self.torus.map_or(0, |torus| torus.cover(members).hops())
            }
            Topology::Mesh => u64::from(members > 1),
            Topology::Switch | Topology::Pcie | Topology::CubeMesh => members - 1,
        }
    }

    /// Seconds of so many steps inside domains and between them.
    pub(super) fn steps(&self, local: u64, network: f64) -> f64 {
        let hops =
            local as f64 * self.chip.link.latency_us + network * self.chip.network.latency_us;
        start(hops)
    }

    /// Once round all members: what a gather or a scatter passes.
    fn ring_steps(&self, group: Group) -> f64 {
        let (inside, domains) = self.spread(group);
        let between = if domains > 1 { domains } else { 0 };
        self.steps(domains * self.local_steps(inside), between as f64)
    }

    /// Twice round all members: what a sum by a ring passes.
    fn ring_sum_steps(&self, group: Group) -> f64 {
        let (inside, domains) = self.spread(group);
        let between = if domains > 1 { domains } else { 0 };
        self.steps(2 * domains * self.local_steps(inside), 2.0 * between as f64)
    }

    /// Up and down a tree over the domains with a chain inside each.
    fn tree_steps(&self, group: Group) -> f64 {
        let (inside, domains) = self.spread(group);
        self.steps(2 * self.local_steps(inside), 2.0 * doublings(domains) as f64)
    }

    /// To every peer in the domain in turn; peers beyond it are served together, the longer the more there are.
    pub(super) fn exchange_steps(&self, group: Group) -> f64 {
        let (inside, domains) = self.spread(group);
        let (once, each) = EXCHANGE_STEPS;
        let between = if domains > 1 { once + each * domains as f64 } else { 0.0 };
        self.steps(self.local_steps(inside), between)
    }
}

/// Wires of a device that the rings of a group use in a hybrid cube mesh of eight with six wires each.
///
/// Devices 0 to 3 and 4 to 7 are joined each to each, and device i to i + 4. In each face the wires 0-1, 0-2 and 1-3 are single,
/// 0-3, 1-2 and 2-3 double; 0-4 and 1-5 are double, 2-6 and 3-7 single (a DGX-1's `nvidia-smi topo -m`). So the slowest pair of a
/// group of pairs has one wire; a face has the rings 0-1-2-3 and 0-2-1-3 each way, four wires; every second device has one ring
/// each way; all eight have three (NVIDIA: three interwoven rings of single connections).
fn cube_mesh_wires(members: u64, stride: u64) -> f64 {
    match (members, stride) {
        (0..=2, _) => 1.0,
        (3..=4, 1) => 4.0,
        (3..=4, _) => 2.0,
        _ => 6.0,
    }
}

/// Devices with which the rates of a domain were measured, where it has as many: those of one baseboard.
const MEASURED: u64 = 8;

/// Network steps that an all-to-all takes beyond its bytes, and those for each node that it spans: in aliyun/SimAI
/// (inputs/ratio/ata_ratio.csv) 16 MB reach 0.65 and 0.68 of the rate of the largest messages on two and eight nodes, which
/// is 112 and 170 us more than the 208 and 364 us in which half and 7/8 of them cross at 38.5 GB/s, 8 and 12.1 steps of 14 us.
/// On EFA, whose steps take 31 us, they give 0.25, 0.29, 0.38, 0.55 and 0.89 ms for 2 to 32 nodes; 32 MB were 0.27, 0.34, 0.49,
/// 0.60 and 0.88 ms over what 2 GB take a byte (crazyguitar/aws-gpu-communication-benchmark, data/nccl_alltoall.csv).
const EXCHANGE_STEPS: (f64, f64) = (6.6, 0.69);

/// Time to start a collective or a send, in microseconds: NCCL's base latency of a ring (src/graph/tuning.cc).
const START_US: f64 = 8.4;

/// Seconds from the launch until `hops_us` microseconds of hops are behind.
fn start(hops_us: f64) -> f64 {
    (START_US + hops_us) * 1e-6
}

/// Share of a ring's bandwidth that a tree reaches with a tensor of `bytes`: 0.92, and less for middle sizes, as NCCL corrects
/// its model by what it measured (src/graph/tuning.cc, protocol Simple). Sizes between those of its table are joined.
fn tree_share(bytes: f64) -> f64 {
    let place = (bytes / MIB).log2().clamp(0.0, (TREE_CORRECTION.len() - 1) as f64);
    let (i, part) = (place as usize, place.fract());
    let next = TREE_CORRECTION[(i + 1).min(TREE_CORRECTION.len() - 1)];
    0.92 * (TREE_CORRECTION[i] + part * (next - TREE_CORRECTION[i]))
}

pub(super) const MIB: f64 = 1_048_576.0;

/// The correction at 1, 2, 4 MiB and so on; below, where steps take the time, that of 1 MiB, and above that of 128 MiB.
const TREE_CORRECTION: [f64; 8] = [0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9];

/// How often two must be doubled to reach `n`.
fn doublings(n: u64) -> u64 {
    u64::from(n.max(1).ilog2() + u32::from(!n.max(1).is_power_of_two()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::cluster::Network;

    use crate::testing::{a100, cluster};

    fn close(a: f64, b: f64) {
        assert!((a / b - 1.0).abs() < 1e-9, "{a} against {b}");
    }

    #[test]
    fn an_all_reduce_in_a_node_moves_twice_n_minus_one_over_n() {
        // 1 GB over 8 at 235 GB/s bus bandwidth: 2 * 7/8 / 235 s, plus 8.4 us and 14 steps of 3.4 us.
        let cluster = cluster(a100(), 8);
        let f = Fabric::new(&cluster, &cluster.groups[0].chip);
        let got = f.all_reduce(1e9, Group { size: 8, stride: 1 });
        close(got, 2.0 * 0.875 / 235.0 + 56e-6);
    }

    #[test]
    fn rings_through_two_nodes_bring_each_what_it_has_already() {
        // 16 ranks, 8 a node: eight rings pass 15/16 of 1 GB over 8 x 25 GB/s x efficiency. Level by level a node would
        // receive the half that it lacks. 14 steps inside the two nodes and 2 between them.
        let gathered = |by_level: bool| {
            let mut chip = a100();
            chip.network.gathers_by_level = by_level;
            let cluster = cluster(chip, 16);
            let f = Fabric::new(&cluster, &cluster.groups[0].chip);
            f.all_gather(1e9, Group { size: 16, stride: 1 }) - (8.4e-6 + 14.0 * 3.4e-6 + 28e-6)
        };
        let cards = 8.0 * 25.0 * a100().network.efficiency;
        close(gathered(false), 15.0 / 16.0 / cards);
        close(gathered(true), (0.5 / cards).max(15.0 / 16.0 / 230.0));
    }

    #[test]
    fn rings_cross_a_narrow_spine_by_a_card_each() {
        // 64 ranks on 8 nodes, 4 below a switch whose uplinks carry a sixteenth: 32 cards' worth in, 2 out. Eight rings want 8.
        let mut c = cluster(a100(), 64);
        let whole = Group { size: 64, stride: 1 };
        let free = Fabric::new(&c, &c.groups[0].chip).transfer(1e9, whole, Operation::AllGather);
        c.fabric.push(FabricLevel { nodes: 4, bandwidth_fraction: 1.0 / 16.0 });
        let narrow = Fabric::new(&c, &c.groups[0].chip).transfer(1e9, whole, Operation::AllGather);
        close(narrow, 4.0 * free);
        c.fabric[0].bandwidth_fraction = 0.25;
        let wide = Fabric::new(&c, &c.groups[0].chip).transfer(1e9, whole, Operation::AllGather);
        close(wide, free);
    }

    #[test]
    fn a_group_with_one_member_a_node_has_one_card_each() {
        let cluster = cluster(a100(), 64);
        let chip = &cluster.groups[0].chip;
        let f = Fabric::new(&cluster, chip);
        let got = f.all_gather(1e9, Group { size: 8, stride: 8 });
        close(got, 7.0 / 8.0 / (25.0 * chip.network.efficiency) + 8.4e-6 + 8.0 * 14e-6);
    }

    #[test]
    fn a_sum_in_the_switch_is_the_faster_of_multicast_and_ring() {
        // 480 GB/s measured with 8. Four reach (3/5)/(7/9) of it, 370.3; two would reach (1/3)/(7/9), 205.7, and take the
        // ring's 360. A group over two nodes sums its eight in the switch: 2 * 7/8 of the tensor instead of 2 * 15/16.
        let mut chip = a100();
        chip.link.all_reduce_gb_per_s = 480.0;
        chip.link.all_gather_gb_per_s = 360.0;
        chip.network.nic_gbit_per_s = 3200.0;
        let cluster = cluster(chip, 16);
        let f = Fabric::new(&cluster, &cluster.groups[0].chip);
        let wire = |size: u64| {
            let group = Group { size, stride: 1 };
            f.all_reduce(1e9, group) - f.ring_sum_steps(group)
        };
        close(wire(8), 1.75 / 480.0);
        close(wire(4), 1.5 / (480.0 * 0.6 / (7.0 / 9.0)));
        close(wire(2), 1.0 / 360.0);
        close(wire(16), 1.75 / 480.0);
    }

    #[test]
    fn a_mesh_group_of_two_uses_one_of_seven_wires() {
        let mut chip = a100();
        chip.link.topology = Topology::Mesh;
        let cluster = cluster(chip, 8);
        let f = Fabric::new(&cluster, &cluster.groups[0].chip);
        let pair = f.all_gather(1e9, Group { size: 2, stride: 1 }) - 11.8e-6;
        close(pair, 0.5 / (230.0 / 7.0));
    }

    #[test]
    fn a_pair_in_a_cube_mesh_has_one_wire_of_six_and_a_face_four() {
        let mut chip = a100();
        chip.link.topology = Topology::CubeMesh;
        let cluster = cluster(chip, 8);
        let f = Fabric::new(&cluster, &cluster.groups[0].chip);
        let gathered = |size: u64, stride: u64| {
            f.all_gather(1e9, Group { size, stride }) - 8.4e-6 - (size - 1) as f64 * 3.4e-6
        };
        close(gathered(2, 1), 0.5 / (230.0 / 6.0));
        close(gathered(2, 4), 0.5 / (230.0 / 6.0));
        close(gathered(4, 1), 0.75 / (230.0 * 4.0 / 6.0));
        close(gathered(4, 2), 0.75 / (230.0 / 3.0));
        close(gathered(8, 1), 0.875 / 230.0);
    }

    #[test]
    fn a_small_sum_over_many_nodes_takes_the_tree() {
        // 1,024 ranks, 8 a node: the ring has 2 (7 * 128 * 3.4 + 128 * 14) us, the tree 2 (7 * 3.4 + 7 * 14) = 243.6 us.
        let cluster = cluster(a100(), 1024);
        let f = Fabric::new(&cluster, &cluster.groups[0].chip);
        let whole = Group { size: 1024, stride: 1 };
        close(f.all_reduce(1e-9, whole), 8.4e-6 + 243.6e-6);
        close(f.all_gather(1e-9, whole), 8.4e-6 + 896.0 * 3.4e-6 + 128.0 * 14e-6);
    }

    #[test]
    fn a_tree_has_less_bandwidth_than_a_ring_and_fewer_steps() {
        // 32 ranks, 8 a node: 3/4 of the tensor crosses twice over 8 cards of 25 GB/s x efficiency. 16 MiB take the tree with
        // 0.92 x 0.7 of that and 2 (7 x 3.4 + 2 x 14) us of steps; 16 GiB the ring with 2 (28 x 3.4 + 4 x 14) us.
        let cluster = cluster(a100(), 32);
        let chip = &cluster.groups[0].chip;
        let f = Fabric::new(&cluster, chip);
        let whole = Group { size: 32, stride: 1 };
        let wires = |bytes: f64| 2.0 * 0.75 * bytes / (8.0 * 25e9 * chip.network.efficiency);
        close(
            f.all_reduce(16.0 * MIB, whole),
            wires(16.0 * MIB) / (0.92 * 0.7) + 8.4e-6 + 103.6e-6,
        );
        let large = 16384.0 * MIB;
        close(f.all_reduce(large, whole), wires(large) + 8.4e-6 + 302.4e-6);
        // Half way between 1 and 2 MiB as doublings go.
        close(tree_share(MIB * 2f64.sqrt()), 0.92 * 0.55);
        close(tree_share(1.0), 0.92 * 0.5);
        close(tree_share(1e12), 0.92 * 0.9);
    }

    #[test]
    fn an_exchange_over_the_nodes_of_a_cloud_takes_what_was_measured() {
        // NCCL on 2 to 32 nodes of eight H100 with 3.2 Tbit/s of EFA, 32 MiB and 2 GiB a device: in GB/s, out of place
        // (crazyguitar/aws-gpu-communication-benchmark, data/nccl_alltoall.csv).
        let measured = [
            (2, 47.78, 84.53),
            (4, 35.56, 55.82),
            (8, 29.13, 50.41),
            (16, 24.83, 44.58),
            (32, 19.79, 40.94),
        ];
        for (nodes, small, large) in measured {
            let mut chip = a100();
            chip.network = Network {
                nic_gbit_per_s: 400.0,
                efficiency: 0.84,
                latency_us: 31.0,
                ..chip.network
            };
            let cluster = cluster(chip, 8 * nodes);
            let f = Fabric::new(&cluster, &cluster.groups[0].chip);
            for (bytes, rate) in [(33_554_432.0, small), (2_147_483_648.0, large)] {
                let got = bytes / f.all_to_all(bytes, Group { size: 8 * nodes, stride: 1 }) / 1e9;
                assert!((got / rate - 1.0).abs() < 0.06, "{nodes} nodes: {got} of {rate} GB/s");
            }
        }
    }

    #[test]
    fn a_lone_device_communicates_nothing() {
        let cluster = cluster(a100(), 8);
        let f = Fabric::new(&cluster, &cluster.groups[0].chip);
        assert_eq!(f.all_gather(1e9, Group { size: 1, stride: 8 }), 0.0);
        assert_eq!(f.all_reduce(1e9, Group { size: 1, stride: 8 }), 0.0);
        assert_eq!(f.all_to_all(1e9, Group { size: 1, stride: 8 }), 0.0);
    }

    #[test]
    fn an_oversubscribed_spine_slows_only_what_crosses_it() {
        let mut c = cluster(a100(), 1024);
        let group = Group { size: 64, stride: 8 };
        let free = Fabric::new(&c, &c.groups[0].chip).all_gather(1e9, group);
        c.fabric.push(FabricLevel { nodes: 64, bandwidth_fraction: 0.5 });
        let inside = Fabric::new(&c, &c.groups[0].chip).all_gather(1e9, group);
        assert_eq!(free, inside, "64 members, one a node, stay below the switch");
        // With one node a switch every hop is halved.
        c.fabric[0].nodes = 1;
        let outside = Fabric::new(&c, &c.groups[0].chip).all_gather(1e9, group);
        assert!(outside > 1.9 * free);
    }
}
