//! Seconds of messages that pass from member to member of a group to reach, or from, one of them.
//!
//! NCCL reduces to one rank, and broadcasts from one, by a ring cut open behind it: each member passes on what it has of a piece when
//! it has all of it. All pieces together take what their bytes take on the slowest link, as in a scatter; but the first one has every
//! member to pass before anything arrives. Messages to one member after another follow each other through a node, where the ring runs
//! the way that the owners go; to reach the next node each begins anew.

use super::collective::{Fabric, MIB};
use crate::spec::cluster::{Group, Topology};

impl Fabric<'_> {
    /// How many chains fill where every member of a group is reached in turn: one a domain.
    pub fn chains(&self, group: Group) -> f64 {
        self.spread(group).1 as f64
    }

    /// Seconds until the first piece of a message of `bytes` has passed all members: each card sends pieces of 1 MiB, which those of
    /// all of a node's members pass together from one device to the next.
    ///
    /// Between devices that are wired to each other there is a protocol whose members pass on each line of 128 bytes, which the
    /// library takes where a message is short for its hops.
    pub fn chain(&self, bytes: f64, group: Group) -> f64 {
        if group.size <= 1 || bytes <= 0.0 {
            return 0.0;
        }
        let (inside, domains) = self.spread(group);
        let (local, between) = (group.size - domains, domains - 1);
        let cards = inside as f64;
        let piece = PIECE.min(bytes / cards);
        let gathered = self.chip.link.all_gather_gb_per_s;
        let rate = self.domain_rate(gathered, inside, group.stride);
        let wire = cards * piece / rate.min(self.chip.ring_limit(inside, group));
        let card = piece / self.chip.network_bytes_per_s();
        let in_pieces =
            self.steps(local, between as f64) + local as f64 * wire + between as f64 * card;
        if self.chip.link.topology == Topology::Pcie {
            return in_pieces;
        }
        let in_lines = (local as f64 * LINE_US[0] + between as f64 * LINE_US[1]) * 1e-6;
        in_pieces.min(in_lines)
    }
}

/// Microseconds of a hop by protocol LL128, between devices and between nodes (NVIDIA/nccl, src/graph/tuning.cc: hwLat).
const LINE_US: [f64; 2] = [1.9, 4.0];

/// Bytes that a card's two channels send at a time: an eighth of the buffer of 4 MiB that each has (NVIDIA/nccl: DEFAULT_BUFFSIZE of
/// protocol Simple, NCCL_STEPS, REDUCE_CHUNKSTEPS and BROADCAST_CHUNKSTEPS of 1; src/graph/connect.cc doubles the channels that the
/// search for rings found).
const PIECE: f64 = 2.0 * 4.0 * MIB / 8.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{a100, cluster};

    #[test]
    fn a_chain_over_the_host_fills_hop_by_hop() {
        // Sixteen devices on two nodes of eight. Seven hops in each node pass 8 MiB at 230 GB/s and one between them 1 MiB at a
        // card's 25 GB/s times its efficiency, after 8.4 us, 14 steps of 3.4 us and one of 14.
        let mut chip = a100();
        chip.link.topology = Topology::Pcie;
        let rate = 25e9 * chip.network.efficiency;
        let mib = 1_048_576.0;
        let cluster = cluster(chip, 16);
        let f = Fabric::new(&cluster, &cluster.groups[0].chip);
        let wire =
            f.domain_rate(230.0, 8, 1).min(f.chip.ring_limit(8, Group { size: 16, stride: 1 }));
        let got = f.chain(1e9, Group { size: 16, stride: 1 });
        let all = 14.0 * (8.0 * mib / wire + 3.4e-6) + mib / rate + 14e-6 + 8.4e-6;
        assert!((got / all - 1.0).abs() < 1e-9, "{got} against {all}");
        // A message of 1 MiB is one piece, an eighth of it a card's.
        let small = f.chain(mib, Group { size: 16, stride: 1 });
        let all = 14.0 * (mib / wire + 3.4e-6) + mib / 8.0 / rate + 14e-6 + 8.4e-6;
        assert!((small / all - 1.0).abs() < 1e-9, "{small} against {all}");
    }

    #[test]
    fn lines_pass_wired_devices_a_hop_at_a_time() {
        // Of sixteen devices on two nodes, 14 hops of 1.9 us and one of 4.
        let cluster = cluster(a100(), 16);
        let f = Fabric::new(&cluster, &cluster.groups[0].chip);
        let group = Group { size: 16, stride: 1 };
        assert!((f.chain(1e9, group) / 30.6e-6 - 1.0).abs() < 1e-9);
        assert_eq!(f.chains(group), 2.0);
    }
}
