//! Strategies of an operator: every way to cut its loop axes over the mesh.

use super::layout::{AxisIndex, Division, Layout, Mesh};
use super::loops::{Axis, Cut, Loops};

/// One way to run an operator on the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Strategy {
    /// For each loop axis the prime axes that cut it, ascending.
    pub axes: Vec<Vec<AxisIndex>>,
    /// The dimension of the first output over which summands are scattered; otherwise every device gets their sum.
    pub scatter: Option<usize>,
    /// Its outputs are not kept for the backward pass: they are computed again there.
    pub recompute: bool,
}

/// Which strategies are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choices {
    /// Only those that cut by all devices.
    pub use_all_devices: bool,
    /// How a given axis of the mesh may be divided.
    pub division: Division,
}

impl Strategy {
    /// How an input lies when the operator reads it.
    pub fn input(&self, loops: &Loops, place: usize) -> Layout {
        Layout { dims: self.along(&loops.inputs[place]), summed: vec![] }
    }

    /// How the gradient of an input lies when the operator has computed it: devices that read the same part of the
    /// input for different parts of the work hold summands.
    pub fn input_gradient(&self, loops: &Loops, place: usize) -> Layout {
        let dims = self.along(&loops.inputs[place]);
        let summed = self.beside(&loops.inputs[place]);
        Layout { dims, summed }
    }

    /// How an output lies before its summands are added.
    pub fn raw_output(&self, loops: &Loops, place: usize) -> Layout {
        let along = &loops.outputs[place];
        let mut summed = vec![];
        for (i, axis) in loops.axes.iter().enumerate() {
            if axis.cut == Cut::Summed && !along.contains(&Some(i)) {
                summed.extend(&self.axes[i]);
            }
        }
        summed.sort_unstable();
        Layout { dims: self.along(along), summed }
    }

    /// How an output lies for its readers.
    pub fn output(&self, loops: &Loops, place: usize) -> Layout {
        let mut layout = self.raw_output(loops, place);
        let summed = std::mem::take(&mut layout.summed);
        if let (Some(dim), 0) = (self.scatter, place) {
            layout.dims[dim].extend(summed);
        }
        layout
    }

    /// Whether it takes each given axis of the mesh whole, for one loop axis, or not at all; one may be an exception.
    pub fn is_whole(&self, mesh: &Mesh, exception: Option<usize>) -> bool {
        let given = |&axis: &AxisIndex| mesh.axes[usize::from(axis)].given;
        self.axes.iter().all(|axes| {
            let factors = |of: usize| mesh.axes.iter().filter(|axis| axis.given == of).count();
            let taken = |of: usize| axes.iter().filter(|&axis| given(axis) == of).count();
            axes.iter().map(given).all(|of| Some(of) == exception || taken(of) == factors(of))
        })
    }

    /// Parts of a loop axis.
    pub fn parts(&self, axis: usize, mesh: &Mesh) -> u64 {
        mesh.parts(&self.axes[axis])
    }

    /// Whether a prime axis of the mesh is used.
    pub fn uses(&self, axis: AxisIndex) -> bool {
        self.axes.iter().any(|axes| axes.contains(&axis))
    }

    fn along(&self, dims: &[Option<usize>]) -> Vec<Vec<AxisIndex>> {
        dims.iter().map(|axis| axis.map_or(vec![], |axis| self.axes[axis].clone())).collect()
    }

    fn beside(&self, dims: &[Option<usize>]) -> Vec<AxisIndex> {
        let mut axes: Vec<_> = (0..self.axes.len())
            .filter(|&i| !dims.contains(&Some(i)))
            .flat_map(|i| self.axes[i].iter().copied())
            .collect();
        axes.sort_unstable();
        axes
    }
}

/// Every strategy of an operator, repetition of all work first; always in the same order.
///
/// Equal prime axes of one given axis are interchangeable: the outer loop takes the outer one.
pub fn strategies(
    loops: &Loops,
    shape: Option<&[u64]>,
    mesh: &Mesh,
    choices: Choices,
) -> Vec<Strategy> {
    let mut found = vec![vec![vec![]; loops.axes.len()]];
    for (alike, prime) in alike(mesh, choices.division != Division::Whole) {
        let mut next = Vec::new();
        for start in &found {
            spread(loops, mesh, &alike, prime, 0, start, &mut next);
        }
        found = next;
    }
    if choices.division == Division::Twice {
        found.retain(|axes| uses(mesh, axes) <= 2);
    }
    let mut all = Vec::new();
    for mut axes in found {
        let used: usize = axes.iter().map(Vec::len).sum();
        if choices.use_all_devices && used < mesh.axes.len() {
            continue;
        }
        for list in &mut axes {
            list.sort_unstable();
        }
        let plain = Strategy { axes, scatter: None, recompute: false };
        let dims = scatters(&plain, loops, shape, mesh);
        all.push(plain.clone());
        all.extend(dims.into_iter().map(|dim| Strategy { scatter: Some(dim), ..plain.clone() }));
    }
    all
}

/// The most uses of a given axis of the mesh: loop axes that it cuts, and copies that it holds.
fn uses(mesh: &Mesh, axes: &[Vec<AxisIndex>]) -> usize {
    let given = |&axis: &AxisIndex| mesh.axes[usize::from(axis)].given;
    let uses = |of: usize| {
        let taken = |axes: &Vec<AxisIndex>| axes.iter().filter(|&axis| given(axis) == of).count();
        let factors = mesh.axes.iter().filter(|axis| axis.given == of).count();
        let copies = axes.iter().map(taken).sum::<usize>() < factors;
        axes.iter().filter(|axes| taken(axes) > 0).count() + usize::from(copies)
    };
    mesh.axes.iter().map(|axis| uses(axis.given)).max().unwrap_or(0)
}

/// Blocks of interchangeable prime axes with how many of them are taken together.
fn alike(mesh: &Mesh, refine: bool) -> Vec<(Vec<AxisIndex>, usize)> {
    let mut blocks: Vec<Vec<AxisIndex>> = Vec::new();
    for (i, axis) in mesh.axes.iter().enumerate() {
        let joins = i > 0 && {
            let before = mesh.axes[i - 1];
            before.given == axis.given && (before.size == axis.size || !refine)
        };
        match blocks.last_mut() {
            Some(block) if joins => block.push(i as AxisIndex),
            _ => blocks.push(vec![i as AxisIndex]),
        }
    }
    blocks
        .into_iter()
        .map(|block| {
            let together = if refine { 1 } else { block.len() };
            (block, together)
        })
        .collect()
}

/// Gives the axes of a block to loop axes from `first` on, outer ones first, and leaves the rest unused.
fn spread(
    loops: &Loops,
    mesh: &Mesh,
    block: &[AxisIndex],
    together: usize,
    first: usize,
    start: &[Vec<AxisIndex>],
    found: &mut Vec<Vec<Vec<AxisIndex>>>,
) {
    found.push(start.to_vec());
    if block.is_empty() {
        return;
    }
    for loop_axis in first..loops.axes.len() {
        let mut axes = start.to_vec();
        for taken in (together..=block.len()).step_by(together) {
            axes[loop_axis].extend(&block[taken - together..taken]);
            if !divides(loops.axes[loop_axis], mesh.parts(&axes[loop_axis])) {
                break;
            }
            let rest = &block[taken..];
            spread(loops, mesh, rest, together, loop_axis + 1, &axes, found);
        }
    }
}

fn divides(axis: Axis, parts: u64) -> bool {
    axis.size.is_multiple_of(parts) && axis.cut != Cut::Whole
}

/// The dimensions of the first output over which summands can be scattered.
fn scatters(plain: &Strategy, loops: &Loops, shape: Option<&[u64]>, mesh: &Mesh) -> Vec<usize> {
    let (Some(shape), [_]) = (shape, loops.outputs.as_slice()) else { return vec![] };
    let raw = plain.raw_output(loops, 0);
    if raw.summed.is_empty() {
        return vec![];
    }
    let summed = mesh.parts(&raw.summed);
    let fits = |&dim: &usize| shape[dim].is_multiple_of(mesh.parts(&raw.dims[dim]) * summed);
    (0..shape.len()).filter(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::form::Form;

    const ALL: Choices = Choices { use_all_devices: false, division: Division::Primes };

    fn product() -> Loops {
        let form = Form::Matmul { transpose_a: false, transpose_b: false };
        form.loops(&[&[64, 64], &[64, 64]], &[&[64, 64]]).expect("a product")
    }

    #[test]
    fn eight_devices_cut_a_product_in_twenty_ways() {
        // Exponents of m, k and n with a sum up to 3: C(6, 3); those that cut k also scatter over m or over n.
        let loops = product();
        let all = strategies(&loops, None, &Mesh::new(&[8]), ALL);
        assert_eq!(all.len(), 20);
        let used =
            strategies(&loops, None, &Mesh::new(&[8]), Choices { use_all_devices: true, ..ALL });
        assert_eq!(used.len(), 10);
        let scattered = strategies(&loops, Some(&[64, 64]), &Mesh::new(&[8]), ALL);
        assert_eq!(scattered.len(), 20 + 2 * 10);
    }

    #[test]
    fn six_devices_cut_by_two_and_three() {
        // The two goes to m, k, n or nowhere; so does the three, but 64 has no third: 4.
        assert_eq!(strategies(&product(), None, &Mesh::new(&[6]), ALL).len(), 4);
    }

    #[test]
    fn whole_axes_of_the_mesh_are_taken_or_left() {
        // 4 x 16 unrefined: each axis goes to one of three loops or none.
        let whole = Choices { division: Division::Whole, ..ALL };
        let mesh = Mesh::new(&[4, 16]);
        let listed = strategies(&product(), None, &mesh, whole);
        assert_eq!(listed.len(), 16);
        let all = strategies(&product(), None, &mesh, ALL);
        let kept: Vec<_> = all.iter().filter(|s| s.is_whole(&mesh, None)).cloned().collect();
        assert_eq!(kept, listed);
        // The exponents of the four: C(5, 3).
        assert_eq!(all.iter().filter(|s| s.is_whole(&mesh, Some(0))).count(), 10 * 4);
    }

    #[test]
    fn an_axis_that_is_divided_once_has_two_uses() {
        // Sixteen for m, k, n or copies: four whole, and three ways to divide it between each two of them.
        let mesh = Mesh::new(&[16]);
        let twice = Choices { division: Division::Twice, ..ALL };
        assert_eq!(strategies(&product(), None, &mesh, twice).len(), 4 + 3 * 6);
        assert_eq!(mesh.ways(3, Division::Twice), 4 + 3 * 6);
        // One loop and copies are two uses.
        assert_eq!(mesh.ways(1, Division::Twice), mesh.ways(1, Division::Primes));
    }

    #[test]
    fn the_outer_loop_takes_the_outer_axis_and_copies_lie_innermost() {
        let mesh = Mesh::new(&[8]);
        let all = strategies(&product(), None, &mesh, ALL);
        assert!(all.iter().any(|s| s.axes == [vec![0], vec![], vec![1]]));
        assert!(!all.iter().any(|s| s.axes == [vec![1], vec![], vec![0]]));
    }

    #[test]
    fn a_product_with_a_cut_inner_axis_leaves_summands() {
        let loops = product();
        let axes = vec![vec![0], vec![1], vec![]];
        let s = Strategy { axes, scatter: Some(1), recompute: false };
        assert_eq!(s.raw_output(&loops, 0).summed, [1]);
        assert_eq!(s.output(&loops, 0).dims, [vec![0], vec![1]]);
        // Rows are cut: the second factor's gradient is a sum over them.
        assert_eq!(s.input_gradient(&loops, 1).summed, [0]);
    }
}
