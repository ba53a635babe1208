//! The mesh of devices, refined to its prime factors, and how a tensor lies on it.

use crate::spec::cluster::Group;
use std::ops::Range;

/// Devices as a grid: rank = mixed radix number of its coordinates, outermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// The prime axes, outermost first.
    pub axes: Vec<MeshAxis>,
}

/// A prime axis of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshAxis {
    /// Devices along it: a prime.
    pub size: u64,
    /// Distance of neighbours in rank.
    pub stride: u64,
    /// The axis of the given mesh that it is a factor of.
    pub given: usize,
}

/// A place of a prime axis in [`Mesh::axes`].
pub type AxisIndex = u8;

/// How a tensor lies on the mesh. Axes that are named nowhere hold copies.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Layout {
    /// For each dimension the prime axes that cut it, the one that cuts first in front.
    pub dims: Vec<Vec<AxisIndex>>,
    /// Prime axes along which devices hold summands, ascending.
    pub summed: Vec<AxisIndex>,
}

impl Mesh {
    /// A mesh of these sizes, each split into its primes, smaller ones first.
    ///
    /// ```
    /// use autopar_core::graph::layout::Mesh;
    /// let mesh = Mesh::new(&[2, 12]);
    /// assert_eq!(mesh.axes.iter().map(|a| a.size).collect::<Vec<_>>(), [2, 2, 2, 3]);
    /// assert_eq!(mesh.axes.iter().map(|a| a.stride).collect::<Vec<_>>(), [12, 6, 3, 1]);
    /// ```
    pub fn new(sizes: &[u64]) -> Mesh {
        let mut axes: Vec<MeshAxis> = Vec::new();
        for (given, &size) in sizes.iter().enumerate() {
            let (mut left, mut prime) = (size, 2);
            while left > 1 {
                if prime * prime > left {
                    prime = left;
                }
                while left % prime == 0 {
                    axes.push(MeshAxis { size: prime, stride: 1, given });
                    left /= prime;
                }
                prime += 1;
            }
        }
        let mut stride = 1;
        for axis in axes.iter_mut().rev() {
            axis.stride = stride;
            stride *= axis.size;
        }
        Mesh { axes }
    }

    /// Devices of all axes together.
    pub fn devices(&self) -> u64 {
        self.axes.iter().map(|axis| axis.size).product()
    }

    /// Ways to give the prime axes to so many loop axes, or to none; equal ones of a given axis are interchangeable.
    ///
    /// ```
    /// use autopar_core::graph::layout::Mesh;
    /// // Three equal axes among two loops and none: C(5, 2).
    /// assert_eq!(Mesh::new(&[8]).ways(2), 10);
    /// assert_eq!(Mesh::new(&[2, 4]).ways(2), 3 * 6);
    /// ```
    pub fn ways(&self, loops: u64) -> u64 {
        let alike = self.axes.chunk_by(|a, b| (a.given, a.size) == (b.given, b.size));
        let ways = |axes: &[MeshAxis]| {
            let count = axes.len() as u64;
            (1..=loops).fold(1u64, |ways, i| ways.saturating_mul(count + i) / i)
        };
        alike.map(ways).fold(1, u64::saturating_mul)
    }

    /// Parts that these axes make.
    pub fn parts(&self, axes: &[AxisIndex]) -> u64 {
        axes.iter().map(|&i| self.axes[usize::from(i)].size).product()
    }

    /// The devices along neighbouring axes, given in ascending order.
    pub fn group(&self, run: &[AxisIndex]) -> Group {
        let stride = run.last().map_or(1, |&i| self.axes[usize::from(i)].stride);
        Group { size: self.parts(run), stride }
    }

    /// The devices along a run of axes.
    pub fn neighbours(&self, run: &Range<AxisIndex>) -> Group {
        let run = &self.axes[usize::from(run.start)..usize::from(run.end)];
        let stride = run.last().map_or(1, |axis| axis.stride);
        Group { size: run.iter().map(|axis| axis.size).product(), stride }
    }

    /// The axes, ascending, that are not among `used`.
    pub fn others(&self, used: impl Fn(AxisIndex) -> bool) -> Vec<AxisIndex> {
        (0..self.axes.len() as AxisIndex).filter(|&i| !used(i)).collect()
    }
}

impl Layout {
    /// The same copies everywhere.
    pub fn replicated(rank: usize) -> Layout {
        Layout { dims: vec![vec![]; rank], summed: vec![] }
    }

    /// Parts of each dimension.
    pub fn cuts(&self, mesh: &Mesh) -> Vec<u64> {
        self.dims.iter().map(|axes| mesh.parts(axes)).collect()
    }

    /// Elements of one part of a tensor.
    pub fn elements(&self, shape: &[u64], mesh: &Mesh) -> u64 {
        shape.iter().zip(&self.dims).map(|(&size, axes)| size / mesh.parts(axes)).product()
    }

    /// Whether an axis cuts a dimension or holds summands.
    pub fn uses(&self, axis: AxisIndex) -> bool {
        self.summed.contains(&axis) || self.dims.iter().any(|axes| axes.contains(&axis))
    }
}

/// Splits ascending axes into runs of neighbours: each run is one evenly spaced group of devices.
pub fn runs(axes: &[AxisIndex]) -> impl Iterator<Item = &[AxisIndex]> {
    axes.chunk_by(|a, b| a + 1 == *b)
}
