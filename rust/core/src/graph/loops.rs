//! The axes that an operator loops over, worked out from the shapes around it.

use crate::error::{require, Error};

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

/// The shapes around an operator.
pub struct Sides<'a> {
    /// Of what it reads.
    pub inputs: &'a [&'a [u64]],
    /// Of what it writes.
    pub outputs: &'a [&'a [u64]],
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

    /// Equal places.
    pub fn elementwise(&self) -> Result<Loops, Error> {
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
    pub fn along_first(&self, axes: &[usize], path: &str) -> Result<Loops, Error> {
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

    /// Channels alone.
    pub fn batch_norm(&self, axis: usize) -> Result<Loops, Error> {
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

    /// A product.
    pub fn matmul(&self, transpose_a: bool, transpose_b: bool) -> Result<Loops, Error> {
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

    /// A convolution.
    pub fn convolution(
        &self,
        strides: &[u64],
        dilations: &[u64],
        groups: u64,
    ) -> Result<Loops, Error> {
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

    /// Windows of a channel.
    pub fn pool(&self, window: &[u64], strides: &[u64]) -> Result<Loops, Error> {
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

    /// A lookup.
    pub fn gather(&self, axis: usize) -> Result<Loops, Error> {
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

    /// Attention as a whole.
    pub fn attention(&self) -> Result<Loops, Error> {
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

    /// A reduction.
    pub fn reduce(&self, axes: &[usize], places: bool) -> Result<Loops, Error> {
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
    pub fn reshape(&self) -> Result<Loops, Error> {
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

    /// Other order.
    pub fn transpose(&self, permutation: &[usize]) -> Result<Loops, Error> {
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

    /// Inputs side by side.
    pub fn concat(&self, axis: usize) -> Result<Loops, Error> {
        self.counts(1, usize::MAX, 1)?;
        self.joined(self.outputs[0], self.inputs, axis)
    }

    /// An input taken apart.
    pub fn split(&self, axis: usize) -> Result<Loops, Error> {
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

    /// Places move along some axes.
    pub fn slice(&self, axes: &[usize]) -> Result<Loops, Error> {
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

    /// A loss of class scores.
    pub fn cross_entropy(&self) -> Result<Loops, Error> {
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

    /// Indices as rows.
    pub fn one_hot(&self, axis: usize) -> Result<Loops, Error> {
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

    /// Rows moved within each entry of the leading axis.
    pub fn route(&self) -> Result<Loops, Error> {
        self.counts(1, usize::MAX, 1)?;
        let (rows, out) = (self.inputs[0], self.outputs[0]);
        let ends = |shape: &[u64]| Some((*shape.first()?, *shape.last()?));
        if rows.len() < 3 || out.len() < 3 || ends(rows) != ends(out) {
            return Err(self.mismatch("rows must keep their leading axis and their width"));
        }
        if self.inputs.iter().any(|shape| shape.first() != rows.first()) {
            return Err(self.mismatch("every input must have the leading axis of the rows"));
        }
        let axis = |size: u64| Axis { size, cut: Cut::Free };
        let axes = vec![axis(rows[0]), axis(rows[rows.len() - 1])];
        let along = |shape: &[u64], last: Option<usize>| {
            let mut dims = vec![None; shape.len()];
            dims[shape.len() - 1] = last;
            dims[0] = Some(0);
            dims
        };
        let mut inputs = vec![along(rows, Some(1))];
        inputs.extend(self.inputs[1..].iter().map(|shape| along(shape, None)));
        Ok(Loops { axes, inputs, outputs: vec![along(out, Some(1))] })
    }

    /// What is known of any operator.
    pub fn opaque(&self) -> Result<Loops, Error> {
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
