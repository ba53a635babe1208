//! From one layout to another: the collectives, in order, with their prices.
//!
//! A dimension that is cut by the axes `a, b` in this order lies in `|a| |b|` consecutive parts, `a` choosing first. What two
//! layouts of it share is therefore the longest common beginning of their lists; whatever stands behind it must go
//! before the new axes can come. Axes go by an all-gather, or by an all-to-all straight to another dimension; they come
//! by a reduce-scatter if summands lie along them and by a slice if copies do. Slices come early and gathers late,
//! so that little is moved.

use super::layout::{runs, AxisIndex, Layout, Mesh};
use super::packed::{mask, Lists, Packed, Way};
use super::problem::{Collective, ReshardStep};
use crate::estimate::collective::Fabric;
use crate::estimate::compute::Device;
use crate::units::{Bytes, Time};
use std::ops::Range;

/// Kinds of collectives and copies.
const OPERATIONS: usize = 5;

/// Prices collectives and copies on one mesh.
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

/// Goes from layouts to others, and keeps what it learns on the way.
pub struct Walker<'a> {
    carrier: Carrier<'a>,
    lists: Lists,
    /// By operation and axes the bytes that were priced: a tensor has as many as the mesh's devices have divisors.
    prices: Vec<Vec<(Bytes, Time)>>,
    /// Of a walk what is left to do to each dimension.
    left: Vec<Way>,
}

impl<'a> Walker<'a> {
    /// One that has not gone anywhere.
    pub fn new(carrier: Carrier<'a>) -> Walker<'a> {
        let (axes, lists) = (carrier.mesh.axes.len(), Lists::new(carrier.mesh));
        let prices = vec![vec![]; OPERATIONS * (axes + 1) * (axes + 1)];
        Walker { carrier, lists, prices, left: vec![] }
    }

    /// A layout by its lists.
    pub fn packed(&mut self, layout: &Layout) -> Packed {
        self.lists.packed(layout)
    }

    /// The steps that turn `from` into `to`, which holds no summands, for a tensor of so many bytes.
    pub fn steps(&mut self, from: &Layout, to: &Layout, whole: Bytes) -> Vec<ReshardStep> {
        let mut steps = Vec::new();
        let mut now = self.packed(from);
        let to = self.packed(to);
        self.begin(&now, &to);
        loop {
            let before = Bytes(whole.0 / now.parts());
            let Some((taken, bytes, time_ps)) = self.step(&mut now, &to, whole) else { break };
            let Move { operation, axes, dimension, cut } = taken;
            let bytes = if operation == Collective::Slice { before } else { bytes };
            let axes = axes.map(usize::from).collect();
            steps.push(ReshardStep { operation, axes, dimension, cut, bytes, time_ps });
        }
        steps
    }

    /// Looks how far it is from one layout to another: before the first step.
    pub fn begin(&mut self, now: &Packed, to: &Packed) {
        self.left.clear();
        self.left.extend((0..now.rank()).map(|dim| self.lists.between(now, to, dim)));
    }

    /// Takes the next step of a tensor of so many bytes: its time, if one is left.
    pub fn time(&mut self, now: &mut Packed, to: &Packed, whole: Bytes) -> Option<Time> {
        self.step(now, to, whole).map(|(_, _, time)| time)
    }

    /// The next step with its bytes, those that are left of a slice, and its time. Cuts divide dimensions evenly.
    fn step(&mut self, now: &mut Packed, to: &Packed, whole: Bytes) -> Option<(Move, Bytes, Time)> {
        let before = now.parts();
        let taken = self.next(now, to)?;
        let parts = match taken.operation {
            Collective::AllGather | Collective::Slice => now.parts(),
            Collective::ReduceScatter | Collective::AllReduce | Collective::AllToAll => before,
        };
        let bytes = Bytes(whole.0 / parts);
        let time = self.price(&taken, bytes);
        Some((taken, bytes, time))
    }

    /// The time of a step; of a slice `bytes` are what is left.
    fn price(&mut self, step: &Move, bytes: Bytes) -> Time {
        let Move { operation, axes, .. } = step;
        let places = self.carrier.mesh.axes.len() + 1;
        let place = *operation as usize * places + usize::from(axes.start);
        let known = &mut self.prices[place * places + usize::from(axes.end)];
        if let Some(&(_, time)) = known.iter().find(|(known, _)| *known == bytes) {
            return time;
        }
        let time = Time::from_seconds(self.carrier.seconds(*operation, axes, bytes));
        known.push((bytes, time));
        time
    }

    /// Takes the next step towards `to`, if one is left.
    fn next(&mut self, now: &mut Packed, to: &Packed) -> Option<Move> {
        let used = now.used();
        for (dim, way) in self.left.iter().enumerate() {
            // What a dimension is to be cut by next: everything that it is cut by now stays.
            let summed = way.wanted_among(now.summed);
            if !summed.is_empty() {
                now.summed &= !mask(&summed);
                self.push(now, to, dim, &summed);
                let (operation, cut) = (Collective::ReduceScatter, Some(dim));
                return Some(Move { operation, axes: summed, dimension: None, cut });
            }
            let free = way.wanted_among(!used);
            if !free.is_empty() {
                self.push(now, to, dim, &free);
                let (operation, cut) = (Collective::Slice, Some(dim));
                return Some(Move { operation, axes: free, dimension: None, cut });
            }
        }
        if self.carrier.all_to_all {
            let pairs = self.left.iter().enumerate().filter(|(_, way)| way.is_wanted());
            let found = pairs.flat_map(|(dim, way)| {
                let axes = self.left.iter().map(|source| way.wanted_from(source));
                axes.enumerate().map(move |(source, axes)| (dim, source, axes))
            });
            if let Some((dim, source, axes)) = found.into_iter().find(|(_, _, a)| !a.is_empty()) {
                self.pop(now, to, source, axes.len());
                self.push(now, to, dim, &axes);
                let (operation, dimension) = (Collective::AllToAll, Some(source));
                return Some(Move { operation, axes, dimension, cut: Some(dim) });
            }
        }
        let unwanted = now.summed & !to.used();
        if unwanted != 0 {
            let first = unwanted.trailing_zeros() as AxisIndex;
            let axes = first..first + (unwanted >> first).trailing_ones() as AxisIndex;
            now.summed &= !mask(&axes);
            let operation = Collective::AllReduce;
            return Some(Move { operation, axes, dimension: None, cut: None });
        }
        // If nothing is left to go, every dimension is done: otherwise one would be ready.
        let (dim, way) = self.left.iter().enumerate().find(|(_, way)| way.loose != 0)?;
        let axes = way.last.0..way.last.1;
        self.pop(now, to, dim, axes.len());
        let operation = Collective::AllGather;
        Some(Move { operation, axes, dimension: Some(dim), cut: None })
    }

    fn push(&mut self, now: &mut Packed, to: &Packed, dim: usize, axes: &Range<AxisIndex>) {
        self.lists.push(now, dim, axes);
        self.left[dim] = self.lists.between(now, to, dim);
    }

    fn pop(&mut self, now: &mut Packed, to: &Packed, dim: usize, count: usize) {
        self.lists.pop(now, dim, count);
        self.left[dim] = self.lists.between(now, to, dim);
    }
}

impl Carrier<'_> {
    /// Seconds of a collective or copy over neighbouring axes; of a slice `bytes` are what is left.
    fn seconds(&self, operation: Collective, axes: &Range<AxisIndex>, bytes: Bytes) -> f64 {
        let (size, group) = (bytes.0 as f64, self.mesh.neighbours(axes));
        match operation {
            Collective::ReduceScatter | Collective::AllGather => {
                self.fabric.all_gather(size, group)
            }
            Collective::AllReduce => self.fabric.all_reduce(size, group),
            Collective::AllToAll => self.fabric.all_to_all(size, group),
            Collective::Slice => self.device.stream(2.0 * size),
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
        Walker::new(carrier).steps(from, to, Bytes(64 * 64 * 2))
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
