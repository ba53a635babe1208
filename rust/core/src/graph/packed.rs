//! Layouts in few machine words, for walking from one to another: tables ask that of millions of pairs.

use super::layout::{AxisIndex, Layout, Mesh};
use std::ops::Range;

/// Axes in order, each a digit of a number: five bits with its place and one, the first in the lowest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct List(u128);

/// Bits of a digit. Sixteen million devices, the most there may be, have 24 prime axes, and there is room for 25.
const DIGIT: usize = 5;

/// The axes that cut a dimension, in order and as bits, and how long its parts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dimension {
    axes: List,
    mask: u32,
    size: u64,
    parts: u64,
    part: u64,
}

/// A [`Layout`] of a tensor.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// The axes of each dimension.
    pub dims: Vec<Dimension>,
    /// A bit for each axis along which devices hold summands.
    pub summed: u32,
}

/// A bit for each axis of a run.
pub fn mask(axes: &Range<AxisIndex>) -> u32 {
    axes.clone().fold(0, |mask, axis| mask | 1 << axis)
}

impl List {
    /// No axes.
    pub const EMPTY: List = List(0);

    fn len(self) -> usize {
        (u128::BITS as usize - self.0.leading_zeros() as usize).div_ceil(DIGIT)
    }

    /// How many axes two lists begin with alike.
    fn shared(self, other: List) -> usize {
        match self.0 ^ other.0 {
            0 => self.len(),
            unlike => unlike.trailing_zeros() as usize / DIGIT,
        }
    }

    /// The first `count` axes.
    pub fn first(self, count: usize) -> List {
        List(self.0 & ((1 << (DIGIT * count)) - 1))
    }

    /// What is behind the first `count` axes.
    fn after(self, count: usize) -> List {
        List(self.0 >> (DIGIT * count))
    }

    fn iter(self) -> impl Iterator<Item = AxisIndex> {
        let digits = std::iter::successors(Some(self.0), |rest| Some(rest >> DIGIT));
        digits.take_while(|&rest| rest != 0).map(|rest| (rest as AxisIndex & 31) - 1)
    }

    /// A bit for each axis.
    pub fn mask(self) -> u32 {
        self.iter().fold(0, |mask, axis| mask | 1 << axis)
    }

    /// Whether a list that is not longer is its end.
    pub fn ends_with(self, end: List) -> bool {
        self.len().checked_sub(end.len()).is_some_and(|before| self.after(before) == end)
    }

    /// The longest beginning that consists of neighbours whose bits are in a mask.
    pub fn neighbours(self, among: u32) -> Range<AxisIndex> {
        let Some(first) = self.iter().next() else { return 0..0 };
        let next = |&(axis, expected): &(_, AxisIndex)| axis == expected && among >> axis & 1 == 1;
        let count = self.iter().zip(first..).take_while(next).count();
        first..first + count as AxisIndex
    }

    /// The longest end that consists of neighbours.
    pub fn last_neighbours(self) -> Range<AxisIndex> {
        let extend = |run: Range<AxisIndex>, axis| {
            if run.end == axis {
                run.start..axis + 1
            } else {
                axis..axis + 1
            }
        };
        self.iter().fold(0..0, extend)
    }
}

impl Dimension {
    /// The axes that are to cut it next, on the way to other ones, if those that cut it now can stay.
    pub fn wanted(&self, to: &Dimension) -> List {
        let kept = self.axes.shared(to.axes);
        if self.axes.after(kept) == List::EMPTY {
            to.axes.after(kept)
        } else {
            List::EMPTY
        }
    }

    /// The axes that must go on the way to other ones.
    pub fn loose(&self, to: &Dimension) -> List {
        self.axes.after(self.axes.shared(to.axes))
    }

    /// Cuts its parts by further axes.
    pub fn push(&mut self, axes: &Range<AxisIndex>, mesh: &Mesh) {
        for axis in axes.clone() {
            let digit = u128::from(axis) + 1;
            self.axes.0 |= digit << (DIGIT * self.axes.len());
            self.mask |= 1 << axis;
            self.parts *= mesh.axes[usize::from(axis)].size;
        }
        self.part = self.size / self.parts;
    }

    /// Puts the parts together that its last `count` axes make.
    pub fn pop(&mut self, count: usize, mesh: &Mesh) {
        let left = self.axes.len() - count;
        for axis in self.axes.after(left).iter() {
            self.mask &= !(1 << axis);
            self.parts /= mesh.axes[usize::from(axis)].size;
        }
        self.axes = self.axes.first(left);
        self.part = self.size / self.parts;
    }
}

impl Packed {
    /// The same layout of a tensor of `shape`.
    pub fn new(layout: &Layout, shape: &[u64], mesh: &Mesh) -> Packed {
        let dimension = |(axes, &size): (&Vec<AxisIndex>, &u64)| {
            let mut dimension =
                Dimension { axes: List::EMPTY, mask: 0, size, parts: 1, part: size };
            axes.iter().for_each(|&axis| dimension.push(&(axis..axis + 1), mesh));
            dimension
        };
        let summed = layout.summed.iter().fold(0, |mask, axis| mask | 1 << axis);
        Packed { dims: layout.dims.iter().zip(shape).map(dimension).collect(), summed }
    }

    /// A bit for each axis that cuts a dimension or holds summands.
    pub fn used(&self) -> u32 {
        self.dims.iter().fold(self.summed, |used, dimension| used | dimension.mask)
    }

    /// Elements of one part.
    pub fn elements(&self) -> u64 {
        self.dims.iter().map(|dimension| dimension.part).product()
    }
}

impl Clone for Packed {
    fn clone(&self) -> Packed {
        Packed { dims: self.dims.clone(), summed: self.summed }
    }

    /// Keeps the room that it has: a walk begins anew in the same one.
    fn clone_from(&mut self, other: &Packed) {
        self.dims.clone_from(&other.dims);
        self.summed = other.summed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_begins_ends_and_runs_as_its_axes_do() {
        let mesh = Mesh::new(&[64]);
        let dimension = |axes: &[AxisIndex]| {
            Packed::new(&Layout { dims: vec![axes.to_vec()], summed: vec![] }, &[64], &mesh).dims[0]
        };
        let (now, to) = (dimension(&[4, 1, 2]), dimension(&[4, 3]));
        assert_eq!((now.parts, now.axes.len(), now.axes.mask()), (8, 3, 0b10110));
        // The shared 4 stays; 1 and 2 are in the way of 3.
        assert_eq!(now.loose(&to).iter().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(now.wanted(&to), List::EMPTY);
        assert_eq!(dimension(&[4]).wanted(&to), dimension(&[3]).axes);
        assert!(now.axes.ends_with(dimension(&[1, 2]).axes));
        assert!(!now.axes.ends_with(dimension(&[4, 2]).axes));
        assert_eq!(now.axes.last_neighbours(), 1..3);
        assert_eq!(dimension(&[1, 2, 3]).axes.neighbours(0b0110), 1..3);
    }

    #[test]
    fn what_was_pushed_can_be_popped() {
        let mesh = Mesh::new(&[6, 4]);
        let layout = Layout { dims: vec![vec![3], vec![]], summed: vec![0] };
        let mut now = Packed::new(&layout, &[12, 12], &mesh);
        // Primes 2, 3, 2, 2: of 12 x 12 elements a half of the rows, then a sixth of the columns.
        assert_eq!(now.elements(), 6 * 12);
        now.dims[1].push(&(1..3), &mesh);
        assert_eq!((now.elements(), now.used()), (6 * 2, 0b1111));
        now.dims[1].pop(2, &mesh);
        assert_eq!(now, Packed::new(&layout, &[12, 12], &mesh));
    }
}
