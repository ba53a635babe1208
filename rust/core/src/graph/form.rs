//! What an operator computes, and from that: over which axes it loops, and how its tensors' dimensions lie along them.
//!
//! A strategy cuts loop axes. A dimension of an input or output that lies along a cut axis is cut as often; two
//! dimensions along one axis (the inner dimensions of a product, say) are cut together. This is the whole of what
//! sharding needs to know of an operator.

use crate::error::{require, Error};
use serde::{Deserialize, Serialize};

/// The kind of an operator with its attributes. Axes count from 0 at the outermost dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Form {
    /// `[.., m, k] x [.., k, n]` with leading dimensions broadcast; a factor without them may be `[k, n]`.
    Matmul {
        /// The first factor is stored `[.., k, m]`.
        transpose_a: bool,
        /// The second factor is stored `[.., n, k]`.
        transpose_b: bool,
    },
    /// `[n, c, spatial..]` with a filter `[o, c / groups, window..]` and a bias `[o]` or none.
    Convolution {
        /// Step of the window along each spatial axis.
        strides: Vec<u64>,
        /// Distance of the window's points along each spatial axis.
        dilations: Vec<u64>,
        /// Blocks of channels that do not see each other.
        groups: u64,
    },
    /// A maximum or mean over windows of `[n, c, spatial..]`.
    Pool {
        /// Size of the window along each spatial axis.
        window: Vec<u64>,
        /// Step of the window along each spatial axis.
        strides: Vec<u64>,
    },
    /// Rows of a table at the places that indices name: `table, indices`.
    Gather {
        /// The axis of the table that the indices replace.
        axis: usize,
    },
    /// Layer or RMS norm of the first input; the others scale and shift and broadcast to it.
    Norm {
        /// Axes over which mean and variance are taken.
        axes: Vec<usize>,
    },
    /// Normalisation of each channel over all other axes; further inputs are vectors of channels.
    BatchNorm {
        /// The axis of the channels.
        axis: usize,
    },
    /// Softmax and its logarithm.
    Softmax {
        /// Axes over which the exponentials are summed.
        axes: Vec<usize>,
    },
    /// Attention as a whole: queries `[b, h, s, d]`, keys `[b, g, t, d]`, values `[b, g, t, e]`, where `g` divides `h`, and
    /// a mask that broadcasts to `[b, h, s, t]` or none; gives `[b, h, s, e]`.
    Attention {
        /// A query sees only the keys up to its own place.
        causal: bool,
    },
    /// Any function of equal places, inputs broadcast to the output: arithmetic, activations, casts, dropout, expansion.
    Elementwise {},
    /// A sum, mean, maximum or minimum over axes.
    Reduce {
        /// The axes that vanish, or stay with size 1.
        axes: Vec<usize>,
        /// The result is a place rather than a value (argmax): parts of it cannot be put together.
        places: bool,
    },
    /// The same elements in the same order under another shape.
    Reshape {},
    /// Dimensions in another order.
    Transpose {
        /// The input's axis that each axis of the output is.
        permutation: Vec<usize>,
    },
    /// Inputs side by side.
    Concat {
        /// Along this axis.
        axis: usize,
    },
    /// One input taken apart.
    Split {
        /// Along this axis.
        axis: usize,
    },
    /// A part of the input, or the input with a margin: slices, pads, reversals, running sums.
    Slice {
        /// The axes along which places move; along the others each place stays.
        axes: Vec<usize>,
    },
    /// Loss of class scores `[.., c]` against classes `[..]` or shares `[.., c]`: a value for each row, or one for all.
    CrossEntropy {},
    /// Indices as rows that are 1 at their place; further inputs are scalars.
    OneHot {
        /// The axis of the output that is new.
        axis: usize,
    },
    /// The largest values and their places.
    TopK {
        /// The axis that is searched.
        axis: usize,
    },
    /// An operator of unknown kind: it is replicated, or cut along the leading axis if all its activations share it.
    Opaque {},
}

/// What cutting a loop axis entails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// Each part is computed alone.
    Free,
    /// Each part gives a summand (or a candidate, for a maximum) of every output that does not lie along the axis.
    Summed,
    /// Parts agree on so many numbers for each place of the other axes of the first input, then each goes on alone.
    Agreed(u64),
    /// A part also reads so many places of its neighbours.
    Window(u64),
    /// It cannot be cut.
    Whole,
}

/// An axis that an operator loops over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    /// Parts it can be cut into: the divisors of this number.
    pub size: u64,
    /// What a cut entails.
    pub cut: Cut,
}

/// The axes of an operator, outermost first, and the axis that each dimension of each tensor lies along.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Loops {
    /// The axes.
    pub axes: Vec<Axis>,
    /// For each input, for each of its dimensions: the axis, or none for one that is broadcast.
    pub inputs: Vec<Vec<Option<usize>>>,
    /// The same for each output.
    pub outputs: Vec<Vec<Option<usize>>>,
}

impl Loops {
    fn axis(&mut self, size: u64, cut: Cut) -> Option<usize> {
        self.axes.push(Axis { size, cut });
        Some(self.axes.len() - 1)
    }
}

impl Form {
    /// The loop axes for tensors of these shapes.
    ///
    /// # Errors
    /// Tensors that this kind of operator does not take; the path is `inputs`, `outputs` or an attribute.
    pub fn loops(&self, inputs: &[&[u64]], outputs: &[&[u64]]) -> Result<Loops, Error> {
        let sides = Sides { inputs, outputs };
        match self {
            Form::Matmul { transpose_a, transpose_b } => sides.matmul(*transpose_a, *transpose_b),
            Form::Convolution { strides, dilations, groups } => {
                sides.convolution(strides, dilations, *groups)
            }
            Form::Pool { window, strides } => sides.pool(window, strides),
            Form::Gather { axis } => sides.gather(*axis),
            Form::Norm { axes } => sides.along_first(axes, "axes"),
            Form::BatchNorm { axis } => sides.batch_norm(*axis),
            Form::Softmax { axes } => sides.along_first(axes, "axes"),
            Form::Attention { causal: _ } => sides.attention(),
            Form::Elementwise {} => sides.elementwise(),
            Form::Reduce { axes, places } => sides.reduce(axes, *places),
            Form::Reshape {} => sides.reshape(),
            Form::Transpose { permutation } => sides.transpose(permutation),
            Form::Concat { axis } => sides.concat(*axis),
            Form::Split { axis } => sides.split(*axis),
            Form::Slice { axes } => sides.slice(axes),
            Form::CrossEntropy {} => sides.cross_entropy(),
            Form::OneHot { axis } => sides.one_hot(*axis),
            Form::TopK { axis } => sides.slice(&[*axis]),
            Form::Opaque {} => sides.opaque(),
        }
    }
}

/// The shapes around an operator.
struct Sides<'a> {
    inputs: &'a [&'a [u64]],
    outputs: &'a [&'a [u64]],
}

/// Writes shapes as messages show them.
fn shapes(list: &[&[u64]]) -> String {
    list.iter().map(|shape| format!("{shape:?}")).collect::<Vec<_>>().join(", ")
}

impl Sides<'_> {
    fn mismatch(&self, what: &str) -> Error {
        Error::new(
            "inputs",
            format!("{what}, found {} to {}", shapes(self.inputs), shapes(self.outputs)),
            "Check the shapes of its tensors.",
        )
    }

    fn counts(&self, least: usize, most: usize, outputs: usize) -> Result<(), Error> {
        let given = self.inputs.len();
        require(
            (least..=most).contains(&given),
            "inputs",
            || {
                let wanted =
                    if least == most { format!("{least}") } else { format!("{least} to {most}") };
                format!("must be {wanted} tensors, found {given}")
            },
            "List what the operator reads.",
        )?;
        require(
            self.outputs.len() == outputs,
            "outputs",
            || format!("must be {outputs}, found {}", self.outputs.len()),
            "List what the operator writes.",
        )
    }

    fn equal(&self, found: &[u64], wanted: &[u64], what: &str) -> Result<(), Error> {
        if found == wanted {
            Ok(())
        } else {
            Err(self.mismatch(&format!("{what} must be {wanted:?}")))
        }
    }

    fn within(&self, axes: &[usize], rank: usize, path: &str) -> Result<(), Error> {
        for (i, &axis) in axes.iter().enumerate() {
            require(
                axis < rank && !axes[..i].contains(&axis),
                path,
                || format!("must name different axes below {rank}, found {axes:?}"),
                "Count the axes from 0.",
            )?;
        }
        Ok(())
    }

    /// Loops with one axis for each dimension of `shape`; those in `moving` are cut as `cut` says.
    fn over(shape: &[u64], moving: &[usize], cut: Cut) -> Loops {
        let axes = shape
            .iter()
            .enumerate()
            .map(|(i, &size)| Axis { size, cut: if moving.contains(&i) { cut } else { Cut::Free } })
            .collect();
        Loops { axes, inputs: vec![], outputs: vec![] }
    }

    /// Where the dimensions of `shape` lie when it broadcasts to `target`, whose dimensions are the first axes.
    fn broadcast(&self, shape: &[u64], target: &[u64]) -> Result<Vec<Option<usize>>, Error> {
        if shape.len() > target.len() {
            return Err(self.mismatch(&format!("an input does not broadcast to {target:?}")));
        }
        let skipped = target.len() - shape.len();
        shape
            .iter()
            .enumerate()
            .map(|(i, &size)| match (size, target[skipped + i]) {
                (1, wanted) if wanted != 1 => Ok(None),
                (size, wanted) if size == wanted => Ok(Some(skipped + i)),
                _ => Err(self.mismatch(&format!("an input does not broadcast to {target:?}"))),
            })
            .collect()
    }

    fn elementwise(&self) -> Result<Loops, Error> {
        self.counts(1, usize::MAX, 1)?;
        let out = self.outputs[0];
        let mut loops = Sides::over(out, &[], Cut::Free);
        for shape in self.inputs {
            loops.inputs.push(self.broadcast(shape, out)?);
        }
        loops.outputs.push((0..out.len()).map(Some).collect());
        Ok(loops)
    }

    /// First input and outputs alike, the listed axes whole, other inputs broadcast.
    fn along_first(&self, axes: &[usize], path: &str) -> Result<Loops, Error> {
        self.counts(1, 3, 1)?;
        let first = self.inputs[0];
        self.within(axes, first.len(), path)?;
        self.equal(self.outputs[0], first, "the output")?;
        let mut loops = Sides::over(first, axes, Cut::Whole);
        for shape in self.inputs {
            loops.inputs.push(self.broadcast(shape, first)?);
        }
        loops.outputs.push((0..first.len()).map(Some).collect());
        Ok(loops)
    }

    fn batch_norm(&self, axis: usize) -> Result<Loops, Error> {
        self.counts(1, 5, 1)?;
        let first = self.inputs[0];
        self.within(&[axis], first.len(), "axis")?;
        self.equal(self.outputs[0], first, "the output")?;
        let mut loops = Sides::over(first, &[], Cut::Free);
        loops.inputs.push((0..first.len()).map(Some).collect());
        for shape in &self.inputs[1..] {
            self.equal(shape, &first[axis..=axis], "a vector of channels")?;
            loops.inputs.push(vec![Some(axis)]);
        }
        loops.outputs.push((0..first.len()).map(Some).collect());
        Ok(loops)
    }

    fn matmul(&self, transpose_a: bool, transpose_b: bool) -> Result<Loops, Error> {
        self.counts(2, 2, 1)?;
        let (a, b, out) = (self.inputs[0], self.inputs[1], self.outputs[0]);
        if a.len() < 2 || b.len() < 2 {
            return Err(self.mismatch("both factors must have two dimensions or more"));
        }
        let rank = a.len().max(b.len());
        let turned = |shape: &[u64], transposed: bool| {
            let (x, y) = (shape[shape.len() - 2], shape[shape.len() - 1]);
            if transposed {
                (y, x)
            } else {
                (x, y)
            }
        };
        let ((m, k), (inner, n)) = (turned(a, transpose_a), turned(b, transpose_b));
        if k != inner {
            return Err(self.mismatch(&format!("the inner dimensions differ, {k} and {inner}")));
        }
        if out.len() != rank || out[rank - 2..] != [m, n] {
            return Err(self.mismatch(&format!("the output must end in [{m}, {n}]")));
        }
        let batch = &out[..rank - 2];
        let mut loops = Sides::over(batch, &[], Cut::Free);
        let mut left = self.broadcast(&a[..a.len() - 2], batch)?;
        let mut right = self.broadcast(&b[..b.len() - 2], batch)?;
        let mut result: Vec<_> = (0..batch.len()).map(Some).collect();
        let row = loops.axis(m, Cut::Free);
        let inner = loops.axis(k, Cut::Summed);
        let column = loops.axis(n, Cut::Free);
        left.extend(if transpose_a { [inner, row] } else { [row, inner] });
        right.extend(if transpose_b { [column, inner] } else { [inner, column] });
        result.extend([row, column]);
        loops.inputs = vec![left, right];
        loops.outputs = vec![result];
        Ok(loops)
    }

    fn spatial(&self, per_axis: &[&[u64]]) -> Result<(), Error> {
        let (x, out) = (self.inputs[0], self.outputs[0]);
        let fits = x.len() >= 3
            && out.len() == x.len()
            && out[0] == x[0]
            && per_axis.iter().all(|list| list.len() == x.len() - 2 && !list.contains(&0));
        if fits {
            Ok(())
        } else {
            Err(self.mismatch("windows must have a positive number for each spatial axis"))
        }
    }

    /// Adds the spatial axes of the first input: parts overlap by what the window sees beyond its step.
    fn windows(
        &self,
        loops: &mut Loops,
        extents: impl Iterator<Item = u64>,
        strides: &[u64],
    ) -> Vec<Option<usize>> {
        let (x, out) = (self.inputs[0], self.outputs[0]);
        extents
            .zip(strides)
            .enumerate()
            .map(|(i, (extent, &stride))| {
                // Parts are equal on both sides only if output places times step are the input's.
                let (size, cut) = if out[i + 2] * stride == x[i + 2] {
                    (out[i + 2], Cut::Window(extent.saturating_sub(stride)))
                } else {
                    (1, Cut::Whole)
                };
                loops.axis(size, cut)
            })
            .collect()
    }

    fn convolution(&self, strides: &[u64], dilations: &[u64], groups: u64) -> Result<Loops, Error> {
        self.counts(2, 3, 1)?;
        self.spatial(&[strides, dilations])?;
        let (x, filter, out) = (self.inputs[0], self.inputs[1], self.outputs[0]);
        let channels = filter.len() == x.len()
            && groups > 0
            && filter[0] == out[1]
            && filter[1].checked_mul(groups) == Some(x[1])
            && out[1].is_multiple_of(groups);
        if !channels {
            return Err(self.mismatch(&format!("channels do not match in {groups} groups")));
        }
        let mut loops = Sides::over(&x[..1], &[], Cut::Free);
        let (shared, from, to) = if groups > 1 {
            let group = loops.axis(groups, Cut::Free);
            (group, None, group)
        } else {
            let to = loops.axis(out[1], Cut::Free);
            let from = loops.axis(x[1], Cut::Summed);
            (from, from, to)
        };
        let extents = filter[2..].iter().zip(dilations).map(|(&w, &d)| (w - 1) * d + 1);
        let places = self.windows(&mut loops, extents, strides);
        let with = |first, second| [first, second].into_iter().chain(places.clone()).collect();
        loops.inputs = vec![
            with(Some(0), shared),
            [to, from].into_iter().chain(places.iter().map(|_| None)).collect(),
        ];
        if let Some(bias) = self.inputs.get(2) {
            self.equal(bias, &out[1..2], "the bias")?;
            loops.inputs.push(vec![to]);
        }
        loops.outputs = vec![with(Some(0), to)];
        Ok(loops)
    }

    fn pool(&self, window: &[u64], strides: &[u64]) -> Result<Loops, Error> {
        self.counts(1, 1, 1)?;
        self.spatial(&[window, strides])?;
        let (x, out) = (self.inputs[0], self.outputs[0]);
        self.equal(&out[..2], &x[..2], "batch and channels of the output")?;
        let mut loops = Sides::over(&x[..2], &[], Cut::Free);
        let places = self.windows(&mut loops, window.iter().copied(), strides);
        let all: Vec<_> = [Some(0), Some(1)].into_iter().chain(places).collect();
        loops.inputs = vec![all.clone()];
        loops.outputs = vec![all];
        Ok(loops)
    }

    fn gather(&self, axis: usize) -> Result<Loops, Error> {
        self.counts(2, 2, 1)?;
        let (table, indices, out) = (self.inputs[0], self.inputs[1], self.outputs[0]);
        self.within(&[axis], table.len(), "axis")?;
        let wanted = [&table[..axis], indices, &table[axis + 1..]].concat();
        self.equal(out, &wanted, "the output")?;
        let mut loops = Sides::over(out, &[], Cut::Free);
        let row = loops.axis(table[axis], Cut::Summed);
        let after = axis + indices.len();
        let columns = (0..axis).map(Some).chain([row]).chain((after..out.len()).map(Some));
        loops.inputs = vec![columns.collect(), (axis..after).map(Some).collect()];
        loops.outputs = vec![(0..out.len()).map(Some).collect()];
        Ok(loops)
    }

    fn attention(&self) -> Result<Loops, Error> {
        self.counts(3, 4, 1)?;
        let (q, k, v) = (self.inputs[0], self.inputs[1], self.inputs[2]);
        let fits = [q, k, v].iter().all(|shape| shape.len() == 4)
            && q[0] == k[0]
            && q[3] == k[3]
            && k[..3] == v[..3]
            && q[1].is_multiple_of(k[1]);
        if !fits {
            return Err(self.mismatch("queries, keys and values do not match"));
        }
        self.equal(self.outputs[0], &[q[0], q[1], q[2], v[3]], "the output")?;
        let mut loops = Sides::over(&q[..1], &[], Cut::Free);
        let (batch, head) = (Some(0), loops.axis(k[1], Cut::Free));
        let place = loops.axis(q[2], Cut::Free);
        loops.inputs = vec![
            vec![batch, head, place, None],
            vec![batch, head, None, None],
            vec![batch, head, None, None],
        ];
        if let Some(mask) = self.inputs.get(3) {
            let scores = [q[0], q[1], q[2], k[2]];
            let along = self.broadcast(mask, &scores)?;
            let axes = [batch, head, place, None];
            loops.inputs.push(along.into_iter().map(|i| i.and_then(|i| axes[i])).collect());
        }
        loops.outputs = vec![vec![batch, head, place, None]];
        Ok(loops)
    }

    fn reduce(&self, axes: &[usize], places: bool) -> Result<Loops, Error> {
        self.counts(1, 1, 1)?;
        let (x, out) = (self.inputs[0], self.outputs[0]);
        self.within(axes, x.len(), "axes")?;
        let cut = if places { Cut::Whole } else { Cut::Summed };
        let mut loops = Sides::over(x, axes, cut);
        loops.inputs = vec![(0..x.len()).map(Some).collect()];
        let left = |i: &usize| !axes.contains(i);
        let dropped: Vec<usize> = (0..x.len()).filter(left).collect();
        if out.iter().eq(dropped.iter().map(|&i| &x[i])) && out.len() == dropped.len() {
            loops.outputs = vec![dropped.into_iter().map(Some).collect()];
        } else {
            let kept: Vec<u64> = (0..x.len()).map(|i| if left(&i) { x[i] } else { 1 }).collect();
            self.equal(out, &kept, "the output")?;
            loops.outputs = vec![(0..x.len()).map(|i| left(&i).then_some(i)).collect()];
        }
        Ok(loops)
    }

    /// Dimensions whose products agree form a group; its outermost dimensions are cut together, the others not at all.
    fn reshape(&self) -> Result<Loops, Error> {
        self.counts(1, 2, 1)?;
        let (x, out) = (self.inputs[0], self.outputs[0]);
        if x.iter().product::<u64>() != out.iter().product::<u64>() {
            return Err(self.mismatch("both sides must have as many elements"));
        }
        let mut loops = Loops { axes: vec![], inputs: vec![], outputs: vec![] };
        let (mut from, mut to) = (vec![None; x.len()], vec![None; out.len()]);
        let (mut i, mut j) = (0, 0);
        while i < x.len() && j < out.len() {
            if x[i] == 1 {
                i += 1;
                continue;
            }
            if out[j] == 1 {
                j += 1;
                continue;
            }
            let shared = loops.axis(gcd(x[i], out[j]), Cut::Free);
            (from[i], to[j]) = (shared, shared);
            let (mut left, mut right) = (x[i], out[j]);
            (i, j) = (i + 1, j + 1);
            while left != right {
                if left < right {
                    left *= x[i];
                    i += 1;
                } else {
                    right *= out[j];
                    j += 1;
                }
            }
        }
        loops.inputs.push(from);
        if let Some(target) = self.inputs.get(1) {
            // The shape itself, as some formats pass it.
            loops.inputs.push(vec![None; target.len()]);
        }
        loops.outputs.push(to);
        Ok(loops)
    }

    fn transpose(&self, permutation: &[usize]) -> Result<Loops, Error> {
        self.counts(1, 1, 1)?;
        let x = self.inputs[0];
        self.within(permutation, x.len(), "permutation")?;
        let wanted: Vec<u64> = permutation.iter().map(|&i| x[i]).collect();
        if wanted.len() != x.len() {
            return Err(self.mismatch("the permutation must name every axis"));
        }
        self.equal(self.outputs[0], &wanted, "the output")?;
        let mut loops = Sides::over(x, &[], Cut::Free);
        loops.inputs = vec![(0..x.len()).map(Some).collect()];
        loops.outputs = vec![permutation.iter().map(|&i| Some(i)).collect()];
        Ok(loops)
    }

    fn concat(&self, axis: usize) -> Result<Loops, Error> {
        self.counts(1, usize::MAX, 1)?;
        self.joined(self.outputs[0], self.inputs, axis)
    }

    fn split(&self, axis: usize) -> Result<Loops, Error> {
        self.counts(1, 2, self.outputs.len().max(1))?;
        let mut turned = self.joined(self.inputs[0], self.outputs, axis)?;
        std::mem::swap(&mut turned.inputs, &mut turned.outputs);
        if let Some(sizes) = self.inputs.get(1) {
            turned.inputs.push(vec![None; sizes.len()]);
        }
        Ok(turned)
    }

    /// Loops of `parts` that lie side by side in `whole`, parts as inputs.
    fn joined(&self, whole: &[u64], parts: &[&[u64]], axis: usize) -> Result<Loops, Error> {
        self.within(&[axis], whole.len(), "axis")?;
        let alike = |part: &&[u64]| {
            part.len() == whole.len() && (0..whole.len()).all(|i| i == axis || part[i] == whole[i])
        };
        if !parts.iter().all(alike) || parts.iter().map(|p| p[axis]).sum::<u64>() != whole[axis] {
            return Err(self.mismatch(&format!("parts along axis {axis} must make up {whole:?}")));
        }
        let mut loops = Sides::over(whole, &[axis], Cut::Whole);
        let all: Vec<_> = (0..whole.len()).map(Some).collect();
        loops.inputs = vec![all.clone(); parts.len()];
        loops.outputs = vec![all];
        Ok(loops)
    }

    fn slice(&self, axes: &[usize]) -> Result<Loops, Error> {
        let x = *self.inputs.first().ok_or_else(|| self.mismatch("must read a tensor"))?;
        self.within(axes, x.len(), "axes")?;
        let mut loops = Sides::over(x, axes, Cut::Whole);
        let all: Vec<_> = (0..x.len()).map(Some).collect();
        loops.inputs.push(all.clone());
        for bounds in &self.inputs[1..] {
            loops.inputs.push(vec![None; bounds.len()]);
        }
        for out in self.outputs {
            let alike =
                out.len() == x.len() && (0..x.len()).all(|i| axes.contains(&i) || out[i] == x[i]);
            if !alike {
                return Err(self.mismatch(&format!("only axes {axes:?} may change their size")));
            }
            loops.outputs.push(all.clone());
        }
        Ok(loops)
    }

    fn cross_entropy(&self) -> Result<Loops, Error> {
        self.counts(2, 2, 1)?;
        let (scores, labels, out) = (self.inputs[0], self.inputs[1], self.outputs[0]);
        let Some(class) = scores.len().checked_sub(1) else {
            return Err(self.mismatch("scores must have an axis of classes"));
        };
        let rows = &scores[..class];
        if labels != rows && labels != scores {
            return Err(self.mismatch(&format!("labels must be {rows:?} or {scores:?}")));
        }
        // The largest score, the sum of exponentials and the score of the true class (Megatron-LM).
        let mut loops = Sides::over(scores, &[class], Cut::Agreed(3));
        let all: Vec<_> = (0..scores.len()).map(Some).collect();
        loops.inputs = vec![all.clone(), all[..labels.len()].to_vec()];
        if out == rows && !out.is_empty() {
            loops.outputs = vec![all[..class].to_vec()];
        } else {
            if out.iter().any(|&size| size != 1) {
                return Err(self.mismatch(&format!("the loss must be {rows:?} or one number")));
            }
            for axis in &mut loops.axes[..class] {
                axis.cut = Cut::Summed;
            }
            loops.outputs = vec![vec![None; out.len()]];
        }
        Ok(loops)
    }

    fn one_hot(&self, axis: usize) -> Result<Loops, Error> {
        self.counts(1, 4, 1)?;
        let (indices, out) = (self.inputs[0], self.outputs[0]);
        self.within(&[axis], out.len(), "axis")?;
        let rest = [&out[..axis], &out[axis + 1..]].concat();
        self.equal(indices, &rest, "the indices")?;
        let mut loops = Sides::over(out, &[], Cut::Free);
        loops.inputs = vec![(0..out.len()).filter(|&i| i != axis).map(Some).collect()];
        for scalar in &self.inputs[1..] {
            loops.inputs.push(vec![None; scalar.len()]);
        }
        loops.outputs = vec![(0..out.len()).map(Some).collect()];
        Ok(loops)
    }

    fn opaque(&self) -> Result<Loops, Error> {
        let mut all = self.inputs.iter().chain(self.outputs);
        let leading = all.clone().next().and_then(|shape| shape.first()).copied();
        let shared = all.all(|shape| shape.first().copied() == leading);
        let mut loops = Loops { axes: vec![], inputs: vec![], outputs: vec![] };
        let batch = leading.filter(|_| shared).and_then(|size| loops.axis(size, Cut::Free));
        let along = |shape: &&[u64]| {
            (0..shape.len()).map(|i| if i == 0 { batch } else { None }).collect::<Vec<_>>()
        };
        loops.inputs = self.inputs.iter().map(along).collect();
        loops.outputs = self.outputs.iter().map(along).collect();
        Ok(loops)
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loops(form: Form, inputs: &[&[u64]], outputs: &[&[u64]]) -> Loops {
        form.loops(inputs, outputs).expect("the shapes match")
    }

    #[test]
    fn a_product_shares_its_inner_axis() {
        let form = Form::Matmul { transpose_a: false, transpose_b: true };
        let l = loops(form, &[&[2, 5, 3], &[7, 3]], &[&[2, 5, 7]]);
        assert_eq!(l.axes.iter().map(|a| a.size).collect::<Vec<_>>(), [2, 5, 3, 7]);
        assert_eq!(l.axes[2].cut, Cut::Summed);
        assert_eq!(l.inputs, [vec![Some(0), Some(1), Some(2)], vec![Some(3), Some(2)]]);
        assert_eq!(l.outputs, [[Some(0), Some(1), Some(3)]]);
    }

    #[test]
    fn a_reshape_cuts_the_outermost_dimensions_of_equal_products() {
        // [4, 6, 64] to [24, 8, 8]: 4 and 24 share four parts, 64 and 8 eight.
        let l = loops(Form::Reshape {}, &[&[4, 6, 64]], &[&[24, 8, 8]]);
        assert_eq!(l.axes.iter().map(|a| a.size).collect::<Vec<_>>(), [4, 8]);
        assert_eq!(l.inputs, [[Some(0), None, Some(1)]]);
        assert_eq!(l.outputs, [[Some(0), Some(1), None]]);
    }

    #[test]
    fn a_lookup_in_a_cut_table_leaves_summands() {
        let l = loops(Form::Gather { axis: 0 }, &[&[100, 16], &[2, 8]], &[&[2, 8, 16]]);
        assert_eq!(l.inputs, [vec![Some(3), Some(2)], vec![Some(0), Some(1)]]);
        assert_eq!(l.axes[3], Axis { size: 100, cut: Cut::Summed });
    }

    #[test]
    fn a_strided_window_reads_beyond_its_part() {
        // A 3 x 3 window in steps of 2 over 56 x 56: a part of the rows reads one row more.
        let form = Form::Convolution { strides: vec![2, 2], dilations: vec![1, 1], groups: 1 };
        let l = loops(form, &[&[8, 64, 56, 56], &[128, 64, 3, 3]], &[&[8, 128, 28, 28]]);
        assert_eq!(l.axes[3], Axis { size: 28, cut: Cut::Window(1) });
        assert_eq!(l.inputs[1], [Some(1), Some(2), None, None]);
    }

    #[test]
    fn shapes_that_do_not_match_are_named() {
        let form = Form::Matmul { transpose_a: false, transpose_b: false };
        let e = form.loops(&[&[2, 3], &[4, 5]], &[&[2, 5]]).unwrap_err();
        assert_eq!(e.what, "the inner dimensions differ, 3 and 4, found [2, 3], [4, 5] to [2, 5]");
    }
}
