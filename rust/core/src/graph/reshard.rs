//! From one layout to another: the collectives, in order, with their prices.
//!
//! A dimension that is cut by the axes `a, b` in this order lies in `|a| |b|` consecutive parts, `a` choosing first. What two
//! layouts of it share is therefore the longest common beginning of their lists; whatever stands behind it must go
//! before the new axes can come. Axes go by an all-gather, or by an all-to-all straight to another dimension; they come
//! by a reduce-scatter if summands lie along them and by a slice if copies do. Slices come early and gathers late,
//! so that little is moved.

use super::layout::{runs, AxisIndex, Layout, Mesh};
use super::packed::{mask, List, Packed};
use super::problem::{Collective, ReshardStep};
use crate::estimate::collective::Fabric;
use crate::estimate::compute::Device;
use crate::units::{Bytes, Time};
use std::ops::Range;

/// Prices reshards on one mesh.
pub struct Carrier<'a> {
    /// The mesh.
    pub mesh: &'a Mesh,
    /// Its links.
    pub fabric: &'a Fabric<'a>,
    /// The devices, which copy.
    pub device: &'a Device<'a>,
    /// All-to-all may be used.
    pub all_to_all: bool,
}

/// A step: what is done over neighbouring axes of the mesh, and what it does to the dimensions.
#[derive(Clone, Debug)]
struct Move {
    operation: Collective,
    axes: Range<AxisIndex>,
    dimension: Option<usize>,
    cut: Option<usize>,
}

impl Carrier<'_> {
    /// The steps that turn `from` into `to`, which holds no summands, for a tensor of `shape` in `width` bytes an element.
    pub fn steps(&self, from: &Layout, to: &Layout, shape: &[u64], width: u64) -> Vec<ReshardStep> {
        let mut steps = Vec::new();
        let mut now = Packed::new(from, shape, self.mesh);
        let to = Packed::new(to, shape, self.mesh);
        self.walk(&mut now, &to, width, |taken, bytes, time_ps| {
            let Move { operation, axes, dimension, cut } = taken;
            let axes = axes.map(usize::from).collect();
            steps.push(ReshardStep { operation, axes, dimension, cut, bytes, time_ps });
        });
        steps
    }

    /// The time of these steps. `now` begins as the layout from which they go, and ends as `to`.
    pub fn time(&self, now: &mut Packed, to: &Packed, width: u64) -> Time {
        let mut total = Time::ZERO;
        self.walk(now, to, width, |_, _, time| total += time);
        total
    }

    fn walk(
        &self,
        now: &mut Packed,
        to: &Packed,
        width: u64,
        mut step: impl FnMut(Move, Bytes, Time),
    ) {
        let mut before = now.elements() * width;
        while now != to {
            let taken = self.next(now, to);
            let after = now.elements() * width;
            let bytes = if taken.operation == Collective::AllGather { after } else { before };
            let (size, group) = (bytes as f64, self.mesh.neighbours(&taken.axes));
            let seconds = match taken.operation {
                Collective::ReduceScatter | Collective::AllGather => {
                    self.fabric.all_gather(size, group)
                }
                Collective::AllReduce => self.fabric.all_reduce(size, group),
                Collective::AllToAll => self.fabric.all_to_all(size, group),
                Collective::Slice => self.device.stream(2.0 * after as f64),
            };
            step(taken, Bytes(bytes), Time::from_seconds(seconds));
            before = after;
        }
    }

    /// Seconds to add summands of `bytes` along `axes` on every device, one run of neighbouring axes after the other.
    pub fn all_reduce(&self, axes: &[AxisIndex], bytes: f64) -> f64 {
        runs(axes).map(|run| self.fabric.all_reduce(bytes, self.mesh.group(run))).sum()
    }

    /// Seconds to gather a whole of `bytes` along `axes`, or to add and scatter it.
    pub fn all_gather(&self, axes: &[AxisIndex], bytes: f64) -> f64 {
        // The innermost run first: each later run finds the parts put together so far.
        let mut total = 0.0;
        let mut part = bytes / self.mesh.parts(axes) as f64;
        for run in runs(axes).collect::<Vec<_>>().into_iter().rev() {
            let group = self.mesh.group(run);
            part *= group.size as f64;
            total += self.fabric.all_gather(part, group);
        }
        total
    }

    /// Takes the next step towards `to`.
    fn next(&self, now: &mut Packed, to: &Packed) -> Move {
        let rank = now.dims.len();
        let used = now.used();
        for dim in 0..rank {
            // What a dimension is to be cut by next: everything that it is cut by now stays.
            let wanted = now.dims[dim].wanted(&to.dims[dim]);
            if wanted == List::EMPTY {
                continue;
            }
            let summed = wanted.neighbours(now.summed);
            if !summed.is_empty() {
                now.summed &= !mask(&summed);
                now.dims[dim].push(&summed, self.mesh);
                let (operation, cut) = (Collective::ReduceScatter, Some(dim));
                return Move { operation, axes: summed, dimension: None, cut };
            }
            let free = wanted.neighbours(!used);
            if !free.is_empty() {
                now.dims[dim].push(&free, self.mesh);
                let (operation, cut) = (Collective::Slice, Some(dim));
                return Move { operation, axes: free, dimension: None, cut };
            }
        }
        for dim in (0..rank).filter(|_| self.all_to_all) {
            let wanted = now.dims[dim].wanted(&to.dims[dim]);
            for source in (0..rank).filter(|_| wanted != List::EMPTY) {
                let loose = now.dims[source].loose(&to.dims[source]);
                let most = wanted.neighbours(loose.mask()).len();
                if let Some(count) = (1..=most).rev().find(|&n| loose.ends_with(wanted.first(n))) {
                    let axes = wanted.neighbours(u32::MAX);
                    let axes = axes.start..axes.start + count as AxisIndex;
                    now.dims[source].pop(count, self.mesh);
                    now.dims[dim].push(&axes, self.mesh);
                    let (operation, dimension) = (Collective::AllToAll, Some(source));
                    return Move { operation, axes, dimension, cut: Some(dim) };
                }
            }
        }
        let unwanted = now.summed & !to.used();
        if unwanted != 0 {
            let first = unwanted.trailing_zeros() as AxisIndex;
            let axes = first..first + (unwanted >> first).trailing_ones() as AxisIndex;
            now.summed &= !mask(&axes);
            let operation = Collective::AllReduce;
            return Move { operation, axes, dimension: None, cut: None };
        }
        // Something is left to go: otherwise every dimension would be ready or done.
        let loose = |dim: &usize| now.dims[*dim].loose(&to.dims[*dim]);
        let dim = (0..rank).find(|dim| loose(dim) != List::EMPTY).unwrap_or_default();
        let axes = loose(&dim).last_neighbours();
        now.dims[dim].pop(axes.len(), self.mesh);
        Move { operation: Collective::AllGather, axes, dimension: Some(dim), cut: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::workload::Precision;
    use crate::testing::{a100, cluster};
    use proptest::prelude::*;

    fn steps(from: &Layout, to: &Layout, all_to_all: bool) -> Vec<ReshardStep> {
        let cluster = cluster(a100(), 16);
        let chip = &cluster.groups[0].chip;
        let device = Device::new(chip, Precision::Bf16, &[], 1);
        let fabric = Fabric::new(&cluster, chip);
        let mesh = Mesh::new(&[16]);
        let carrier = Carrier { mesh: &mesh, fabric: &fabric, device: &device, all_to_all };
        carrier.steps(from, to, &[64, 64], 2)
    }

    fn layout(dims: [&[AxisIndex]; 2], summed: &[AxisIndex]) -> Layout {
        Layout { dims: dims.iter().map(|d| d.to_vec()).collect(), summed: summed.to_vec() }
    }

    fn operations(from: Layout, to: Layout) -> Vec<Collective> {
        steps(&from, &to, true).iter().map(|s| s.operation).collect()
    }

    #[test]
    fn each_pair_of_layouts_has_its_collective() {
        use Collective::*;
        assert_eq!(operations(layout([&[0], &[]], &[]), layout([&[], &[]], &[])), [AllGather]);
        assert_eq!(operations(layout([&[], &[]], &[]), layout([&[0], &[]], &[])), [Slice]);
        assert_eq!(operations(layout([&[0], &[]], &[]), layout([&[], &[0]], &[])), [AllToAll]);
        assert_eq!(operations(layout([&[], &[]], &[0]), layout([&[], &[]], &[])), [AllReduce]);
        assert_eq!(operations(layout([&[], &[]], &[0]), layout([&[], &[0]], &[])), [ReduceScatter]);
    }

    #[test]
    fn an_outer_cut_cannot_go_while_an_inner_one_stays() {
        // Parts 0..4 by axes 0 and 1; by axis 1 alone the device (0, 1) needs parts 2 and 3, and has part 1.
        use Collective::*;
        let found = operations(layout([&[0, 1], &[]], &[]), layout([&[1], &[]], &[]));
        assert_eq!(found, [AllGather, Slice]);
    }

    #[test]
    fn gathering_64_by_64_halves_over_the_pair_costs_a_whole_tensor() {
        // 8,192 bytes over two devices 8 apart: one network hop.
        let found = steps(&layout([&[0], &[]], &[]), &layout([&[], &[]], &[]), true);
        assert_eq!(found[0].bytes, Bytes(8192));
    }

    fn any_layout(summed: bool) -> impl Strategy<Value = Layout> {
        // Each of four axes cuts one of two dimensions, holds summands, or holds copies.
        let last = if summed { 4 } else { 3 };
        (proptest::collection::vec(0..last, 4), any::<bool>()).prop_map(|(roles, turned)| {
            let of = |role| (0..4u8).filter(|&i| roles[usize::from(i)] == role).collect::<Vec<_>>();
            let mut dims = vec![of(0), of(1)];
            if turned {
                dims[0].reverse();
            }
            Layout { dims, summed: of(3) }
        })
    }

    /// What each of 16 devices holds: the elements' places along both dimensions.
    fn parts(layout: &Layout) -> Vec<Vec<(u64, u64)>> {
        let place = |rank: u64, axes: &[AxisIndex]| {
            axes.iter().fold((0, 1), |(place, parts), &axis| {
                (2 * place + (rank >> (3 - axis) & 1), 2 * parts)
            })
        };
        (0..16).map(|rank| layout.dims.iter().map(|axes| place(rank, axes)).collect()).collect()
    }

    proptest! {
        #[test]
        fn every_layout_is_reached_and_each_step_moves_what_it_says(
            from in any_layout(true), to in any_layout(false), all_to_all: bool,
        ) {
            let found = steps(&from, &to, all_to_all);
            prop_assert!(all_to_all || found.iter().all(|s| s.operation != Collective::AllToAll));
            prop_assert_eq!(found.is_empty(), from == to);
            // Where nothing but slices happens, each device's new part lies within its old one.
            if found.iter().all(|s| s.operation == Collective::Slice) {
                for (old, new) in parts(&from).into_iter().zip(parts(&to)) {
                    for ((a, n), (b, m)) in old.into_iter().zip(new) {
                        prop_assert!(m >= n && b / (m / n) == a);
                    }
                }
            }
        }
    }
}
