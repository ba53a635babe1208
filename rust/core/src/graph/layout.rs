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

/// How a given axis of the mesh may be divided among its uses: loop axes that it cuts, and copies that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Division {
    /// It has one use.
    Whole,
    /// It has two at most.
    Twice,
    /// Each of its primes may have another use.
    Primes,
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
    /// use autopar_core::graph::layout::{Division, Mesh};
    /// // Three equal axes among two loops and none: C(5, 2).
    /// assert_eq!(Mesh::new(&[8]).ways(2, Division::Primes), 10);
    /// assert_eq!(Mesh::new(&[2, 4]).ways(2, Division::Primes), 3 * 6);
    /// // Whole for one of three uses, or divided between two of them at two places.
    /// assert_eq!(Mesh::new(&[8]).ways(2, Division::Twice), 3 + 3 * 2);
    /// assert_eq!(Mesh::new(&[2, 4]).ways(2, Division::Whole), 3 * 3);
    /// ```
    pub fn ways(&self, loops: u64, division: Division) -> u64 {
        let uses = loops + 1;
        let primes = |axes: &[MeshAxis]| -> Vec<u64> {
            axes.chunk_by(|a, b| a.size == b.size).map(|alike| alike.len() as u64).collect()
        };
        let ways = |axes: &[MeshAxis]| match division {
            Division::Whole => uses,
            // A use alone, or two that share each prime in some way, but for giving all to one of them.
            Division::Twice => {
                let shared = primes(axes).into_iter().map(|count| count + 1);
                let shared = shared.fold(1, u64::saturating_mul) - 2;
                (uses * (uses - 1) / 2).saturating_mul(shared).saturating_add(uses)
            }
            Division::Primes => {
                let among = |count: u64| {
                    (1..=loops).fold(1u64, |ways, i| ways.saturating_mul(count + i) / i)
                };
                primes(axes).into_iter().map(among).fold(1, u64::saturating_mul)
            }
        };
        self.axes.chunk_by(|a, b| a.given == b.given).map(ways).fold(1, u64::saturating_mul)
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
