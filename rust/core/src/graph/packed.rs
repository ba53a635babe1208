//! Layouts in few machine words, for walking from one to another: tables ask that of millions of pairs.

use super::layout::{AxisIndex, Layout, Mesh};
use std::hash::{Hash, Hasher};
use std::ops::Range;

/// Place of a list of axes in [`Lists`].
type ListIndex = u32;

/// The list without axes.
const EMPTY: ListIndex = 0;

/// Lists of axes of a mesh, each once, and what is between each two of them: few lists cut the dimensions of many layouts.
#[derive(Clone, Debug)]
pub struct Lists {
    /// Sizes of the axes.
    sizes: Vec<u64>,
    lists: Vec<List>,
    /// By list and axis the list that has this axis more; the empty one as long as it was not asked for.
    longer: Vec<ListIndex>,
    /// By lists, as far as it was asked for.
    ways: Vec<Vec<Option<Way>>>,
}

#[derive(Clone, Debug)]
struct List {
    /// In order, the one that cuts first in front.
    axes: Vec<AxisIndex>,
    /// The list without the last axis.
    shorter: ListIndex,
    /// A bit for each axis.
    mask: u32,
    parts: u64,
}

/// What must happen to a dimension that is cut by one list so that it is cut by another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// A bit for each axis that must go: those behind the common beginning.
    pub loose: u32,
    /// The neighbouring axes at the end of those that must go.
    pub last: (AxisIndex, AxisIndex),
    /// The neighbouring axes that are to come first, if none must go before.
    pub wanted: (AxisIndex, AxisIndex),
}

/// A [`Layout`] of tensors of one rank.
#[derive(Debug)]
pub struct Packed {
    /// What cuts each dimension.
    dims: Vec<ListIndex>,
    /// A bit for each axis along which devices hold summands.
    pub summed: u32,
    /// A bit for each axis that cuts a dimension.
    cutting: u32,
    /// Parts of the whole tensor.
    parts: u64,
}

/// A bit for each axis of a run.
pub fn mask(axes: &Range<AxisIndex>) -> u32 {
    axes.clone().fold(0, |mask, axis| mask | 1 << axis)
}

impl Way {
    /// Whether axes can come now.
    pub fn is_wanted(&self) -> bool {
        self.wanted.0 < self.wanted.1
    }

    /// The neighbouring axes that are to come first and whose bits are in a mask.
    pub fn wanted_among(&self, mask: u32) -> Range<AxisIndex> {
        let (start, end) = self.wanted;
        let count = (mask.checked_shr(start.into()).unwrap_or(0)).trailing_ones();
        start..end.min(start.saturating_add(count as AxisIndex)).max(start)
    }

    /// The first of the axes that are to come, if those at the end of another way's that must go are just these.
    pub fn wanted_from(&self, other: &Way) -> Range<AxisIndex> {
        let ((start, end), (first, last)) = (self.wanted, other.last);
        // Both are runs of neighbours.
        if start < end && first <= start && start < last && last <= end {
            start..last
        } else {
            start..start
        }
    }
}

impl Lists {
    /// The empty list of a mesh's axes.
    pub fn new(mesh: &Mesh) -> Lists {
        let sizes: Vec<u64> = mesh.axes.iter().map(|axis| axis.size).collect();
        let empty = List { axes: vec![], shorter: EMPTY, mask: 0, parts: 1 };
        Lists { longer: vec![EMPTY; sizes.len()], lists: vec![empty], ways: vec![vec![]], sizes }
    }

    /// The list that has an axis more than another.
    fn longer(&mut self, list: ListIndex, axis: AxisIndex) -> ListIndex {
        let place = list as usize * self.sizes.len() + usize::from(axis);
        if self.longer[place] == EMPTY {
            let shorter = &self.lists[list as usize];
            let mut axes = shorter.axes.clone();
            axes.push(axis);
            let (mask, parts) =
                (shorter.mask | 1 << axis, shorter.parts * self.sizes[usize::from(axis)]);
            self.longer[place] = self.lists.len() as ListIndex;
            self.lists.push(List { axes, shorter: list, mask, parts });
            self.longer.resize(self.lists.len() * self.sizes.len(), EMPTY);
            self.ways.push(vec![]);
        }
        self.longer[place]
    }

    /// What is between two lists.
    fn way(&mut self, from: ListIndex, to: ListIndex) -> Way {
        let known = &mut self.ways[from as usize];
        if known.len() <= to as usize {
            known.resize(self.lists.len(), None);
        }
        let axes = |list: ListIndex| self.lists[list as usize].axes.as_slice();
        *known[to as usize].get_or_insert_with(|| Way::new(axes(from), axes(to)))
    }

    /// What must happen to a dimension of one layout on the way to another.
    pub fn between(&mut self, from: &Packed, to: &Packed, dim: usize) -> Way {
        self.way(from.dims[dim], to.dims[dim])
    }

    /// A layout by its lists.
    pub fn packed(&mut self, layout: &Layout) -> Packed {
        let dims = vec![EMPTY; layout.dims.len()];
        let summed = layout.summed.iter().fold(0, |mask, axis| mask | 1 << axis);
        let mut packed = Packed { dims, summed, cutting: 0, parts: 1 };
        for (dim, axes) in layout.dims.iter().enumerate() {
            axes.iter().for_each(|&axis| self.push(&mut packed, dim, &(axis..axis + 1)));
        }
        packed
    }

    /// Cuts the parts of a dimension by further axes.
    pub fn push(&mut self, layout: &mut Packed, dim: usize, axes: &Range<AxisIndex>) {
        let list = &mut layout.dims[dim];
        for axis in axes.clone() {
            *list = self.longer(*list, axis);
            layout.parts *= self.sizes[usize::from(axis)];
        }
        layout.cutting |= mask(axes);
    }

    /// Puts the parts of a dimension together that its last `count` axes make.
    pub fn pop(&self, layout: &mut Packed, dim: usize, count: usize) {
        let list = &mut layout.dims[dim];
        let before = &self.lists[*list as usize];
        for _ in 0..count {
            *list = self.lists[*list as usize].shorter;
        }
        let now = &self.lists[*list as usize];
        layout.cutting ^= before.mask ^ now.mask;
        layout.parts /= before.parts / now.parts;
    }
}

impl Way {
    fn new(from: &[AxisIndex], to: &[AxisIndex]) -> Way {
        let shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        let (loose, coming) = (&from[shared..], &to[shared..]);
        let run = |axes: &mut dyn Iterator<Item = &AxisIndex>, follows: fn(u8, u8) -> bool| {
            let mut before = None;
            axes.take_while(|&&axis| before.replace(axis).is_none_or(|b| follows(b, axis))).count()
        };
        let ends = |axes: &[AxisIndex]| match axes {
            [] => (0, 0),
            [first, ..] => (*first, first + axes.len() as AxisIndex),
        };
        let last = run(&mut loose.iter().rev(), |before, axis| axis + 1 == before);
        let first = run(&mut coming.iter(), |before, axis| axis == before + 1);
        Way {
            loose: loose.iter().fold(0, |mask, axis| mask | 1 << axis),
            last: ends(&loose[loose.len() - last..]),
            wanted: if loose.is_empty() { ends(&coming[..first]) } else { (0, 0) },
        }
    }
}

impl Packed {
    /// Dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// A bit for each axis that cuts a dimension or holds summands.
    pub fn used(&self) -> u32 {
        self.cutting | self.summed
    }

    /// Parts of a tensor.
    pub fn parts(&self) -> u64 {
        self.parts
    }
}

/// The other fields follow from lists and summands.
impl PartialEq for Packed {
    fn eq(&self, other: &Packed) -> bool {
        self.summed == other.summed && self.dims == other.dims
    }
}

impl Eq for Packed {}

impl Hash for Packed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.dims.iter().for_each(|list| list.hash(state));
        self.summed.hash(state);
    }
}

impl Clone for Packed {
    fn clone(&self) -> Packed {
        Packed { dims: self.dims.clone(), ..*self }
    }

    /// Keeps the room that it has: a walk begins anew in the same one.
    fn clone_from(&mut self, other: &Packed) {
        self.dims.clone_from(&other.dims);
        (self.summed, self.cutting, self.parts) = (other.summed, other.cutting, other.parts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_between_lists_keeps_their_common_beginning() {
        // The shared 4 stays; 1 and 2, neighbours, are in the way of 3.
        let way = Way::new(&[4, 1, 2], &[4, 3]);
        assert_eq!(way, Way { loose: 0b110, last: (1, 3), wanted: (0, 0) });
        let way = Way::new(&[4, 2, 1], &[]);
        assert_eq!((way.loose, way.last), (0b10110, (1, 2)));
        let way = Way::new(&[4], &[4, 1, 2, 0]);
        assert_eq!(way, Way { loose: 0, last: (0, 0), wanted: (1, 3) });
        assert_eq!((way.wanted_among(0b0110), way.wanted_among(0b0010)), (1..3, 1..2));
        assert!(way.wanted_among(0b0100).is_empty());
        assert_eq!(Way::new(&[2, 3], &[2, 3]), Way::default());
    }

    #[test]
    fn axes_go_straight_to_another_dimension_where_they_lie_last() {
        let wants = Way::new(&[], &[1, 2, 4]);
        let found = |from: &[AxisIndex]| wants.wanted_from(&Way::new(from, &[]));
        assert_eq!((found(&[1]), found(&[0, 1, 2]), found(&[4, 1])), (1..2, 1..3, 1..2));
        // Behind the 1 lies what stays in its way; of 1, 2 and 3 only two are wanted.
        assert!(found(&[1, 4]).is_empty() && found(&[2]).is_empty() && found(&[]).is_empty());
        assert!(found(&[1, 2, 3]).is_empty());
    }

    #[test]
    fn what_was_pushed_can_be_popped() {
        let mut lists = Lists::new(&Mesh::new(&[6, 4]));
        let layout = Layout { dims: vec![vec![3], vec![]], summed: vec![0] };
        let mut now = lists.packed(&layout);
        // Primes 2, 3, 2, 2: a half of the rows, then a sixth of the columns.
        assert_eq!((now.parts(), now.used()), (2, 0b1001));
        lists.push(&mut now, 1, &(1..3));
        assert_eq!((now.parts(), now.used()), (2 * 6, 0b1111));
        lists.pop(&mut now, 1, 2);
        assert_eq!(now, lists.packed(&layout));
    }
}
