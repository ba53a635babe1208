//! The shortest that a layer's parameters are gathered, and its gradients scattered, in any of many shard groups: what no plan
//! undercuts before its group is chosen.
//!
//! A gather takes some seconds to start and some for each byte. The least of either over all groups is a line below each of them.

use super::collective::Fabric;
use super::shard::Shard;
use crate::spec::cluster::Group;

/// Seconds to start and for each byte, of dense parameters and of experts'.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shortest([(f64, f64); 2]);

impl Shortest {
    /// In groups of any of some `sizes` of the ranks over which a stage is sharded like `shard`.
    pub fn of(fabric: &Fabric<'_>, shard: &Shard, sizes: &[u64]) -> Shortest {
        Shortest([shard.replica_group(), shard.expert_replica_group()].map(|replicas| {
            let lines = sizes.iter().map(|&size| fabric.gather_line(Group { size, ..replicas }));
            let least = |a: (f64, f64), b: (f64, f64)| (a.0.min(b.0), a.1.min(b.1));
            lines.reduce(least).unwrap_or_default()
        }))
    }

    /// Seconds to gather so many bytes of dense parameters, or of experts'.
    pub fn seconds(&self, expert: bool, bytes: f64) -> f64 {
        let (start, each) = self.0[usize::from(expert)];
        start + each * bytes
    }
}
