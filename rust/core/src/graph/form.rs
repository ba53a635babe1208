//! What an operator computes, and from that: over which axes it loops, and how its tensors' dimensions lie along them.
//!
//! A strategy cuts loop axes. A dimension of an input or output that lies along a cut axis is cut as often; two
//! dimensions along one axis (the inner dimensions of a product, say) are cut together. This is the whole of what
//! sharding needs to know of an operator.

use super::loops::{Loops, Sides};
use crate::error::Error;
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
        /// Places that a query sees; `null` for all.
        window: Option<u64>,
    },
    /// Rows moved to other places within each entry of the leading axis, as further inputs say: tokens `[b, s, h]` to the
    /// experts `[b, e, c, h]` that they chose, and back. Rows may be copied or left out.
    Route {},
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
            Form::Attention { causal: _, window: _ } => sides.attention(),
            Form::Route {} => sides.route(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::loops::{Axis, Cut};

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
