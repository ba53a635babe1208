//! One layer, and the operators of it that may be computed again by themselves.

use super::host::Launch;
use super::pass::Pass;
use super::shard::{LayerCost, Split, Uneven};
use crate::spec::framework::{Named, Offloaded};
use crate::units::Bytes;

/// An operator of [`Named`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Operator {
    Norm,
    /// Gathering what norms made, where it is kept gathered.
    Gather,
    Projections,
    Attention,
    Output,
    Dispatch,
    Expansion,
    Activation,
    Contraction,
}

/// The operators of a layer that may be computed again by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Repeats {
    /// For each [`Operator`] its forward pass, and the bytes that it makes and the backward pass reads.
    pub(super) each: [(Pass, f64); 9],
    /// Bytes of this rank's share of what norms made, which are kept where it is gathered again and the norm is not.
    pub(super) shares: f64,
    /// The layer's backward pass, before which they run.
    pub(super) backward: Pass,
}

impl Repeats {
    /// The pass of the operators that are named, and of gathers if they are run again; and the bytes that they make.
    pub(super) fn sum(&self, named: Named, gather: bool) -> (Pass, f64) {
        let Named {
            norm,
            projections,
            attention,
            output,
            dispatch,
            expansion,
            activation,
            contraction,
        } = named;
        let again = [
            norm,
            gather,
            projections,
            attention,
            output,
            dispatch,
            expansion,
            activation,
            contraction,
        ];
        let chosen = self.each.iter().zip(again).filter(|(_, again)| *again);
        let shares = if norm && gather { self.shares } else { 0.0 };
        chosen.fold((Pass::default(), shares), |(all, made), ((pass, own), _)| {
            (all.plus(*pass), made + own)
        })
    }

    /// Bytes of what waits in host memory, of a layer with an input of so many: nothing of what is computed `again`.
    pub(super) fn offloaded(&self, tensors: Offloaded, again: Option<Named>, input: f64) -> f64 {
        let kept = |named: fn(Named) -> bool| !again.is_some_and(named);
        let made = |operator: Operator, waits: bool| {
            if waits {
                self.each[operator as usize].1
            } else {
                0.0
            }
        };
        (if tensors.input { input } else { 0.0 })
            + made(Operator::Projections, tensors.projections && kept(|again| again.projections))
            + made(Operator::Attention, tensors.attention && kept(|again| again.attention))
            + made(Operator::Output, tensors.output && kept(|again| again.output))
            + made(Operator::Expansion, tensors.expansion && kept(|again| again.expansion))
            + made(Operator::Contraction, tensors.contraction && kept(|again| again.contraction))
    }

    /// Bytes that each operator makes.
    pub(super) fn made(&self) -> [f64; 9] {
        self.each.map(|(_, made)| made)
    }

    /// Kernels of each operator.
    pub(super) fn kernels(&self) -> [u32; 9] {
        self.each.map(|(pass, _)| pass.kernels)
    }

    /// Has each operator launch so many.
    pub(super) fn set_kernels(&mut self, kernels: [u32; 9]) {
        self.each.iter_mut().zip(kernels).for_each(|((pass, _), n)| pass.kernels = n);
    }

    /// Running again the operators that are named, and gathers if so: how long it takes, and the bytes that are not kept.
    pub(super) fn priced(&self, (named, gather): (Named, bool), launch: Launch) -> (Split, Bytes) {
        let (pass, made) = self.sum(named, gather);
        (pass.split_before(self.backward, launch), Bytes::from_f64(made))
    }
}

/// The matrix products of a layer's forward pass that recompute of single operators runs again, and those that it spares: the first,
/// the third and so on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Products {
    /// How many are counted.
    count: u32,
    /// Forward seconds of all.
    seconds: f64,
    /// How many all are.
    all: u32,
    /// Forward seconds of those that are spared, and how many these are.
    pub(super) spared: (f64, u32),
}

impl Products {
    /// The next product, of so many seconds.
    pub(super) fn run(&mut self, seconds: f64) {
        self.count += 1;
        self.seconds += seconds;
        self.all += 1;
        if self.count % 2 == 1 {
            self.spare(seconds, 1);
        }
    }

    fn spare(&mut self, seconds: f64, products: u32) {
        self.spared.0 += seconds;
        self.spared.1 += products;
    }

    /// The same where those since `before` are not counted, and all of them spared or none.
    pub(super) fn uncounted_since(self, before: Products, spared: bool) -> Products {
        let mut products = before;
        if spared {
            products.spare(self.seconds - before.seconds, self.all - before.all);
        }
        products
    }
}

/// The outputs of a layer's matrix products that recompute of single operators saves: the first, the third and so on, in the order
/// in which they run (pytorch/torchtitan: a count of `aten.mm`, whose even ones are computed again), and those of products with a
/// bias where all of them are (`aten.addmm`, which is not counted).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SavedOutputs {
    count: u32,
    /// Elements of those that the backward pass reads, or that lead to what it reads.
    read: f64,
    /// Elements of the others.
    unread: f64,
}

impl SavedOutputs {
    /// The next product, with an output of so many elements.
    pub(super) fn product(&mut self, elements: f64, read: bool) {
        self.count += 1;
        if self.count % 2 == 1 {
            self.save(elements, read);
        }
    }

    /// An output that is saved whatever its place.
    pub(super) fn save(&mut self, elements: f64, read: bool) {
        *(if read { &mut self.read } else { &mut self.unread }) += elements;
    }

    /// Elements that are kept: an eager cache holds what it was told to save, a compiler drops what nothing reads.
    pub(super) fn kept(self, compiled: bool) -> f64 {
        self.read + if compiled { 0.0 } else { self.unread }
    }
}

/// One layer: its cost and what it needs only while it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    /// What adds up over layers.
    pub cost: LayerCost,
    /// Its operators that may be computed again by themselves, on the rank with most tokens.
    pub repeats: Repeats,
    /// Bytes that each makes on one with as many as the mean.
    pub mean: [f64; 9],
    /// Bytes that the rank with most tokens keeps without recompute.
    pub widest: Bytes,
    /// Of these, what selective recompute drops.
    pub core: Bytes,
    /// Largest transient tensors of its backward pass.
    pub transient: Bytes,
    /// Keys and values that live although the layer is computed again.
    pub returned: Bytes,
    /// Parameters that ZeRO stage 3 gathers at once: all, or those of the largest matrix.
    pub gathered: u64,
}

impl Layer {
    /// The same where what is kept is that of a rank with as many tokens as the `mean`, and what this one has beyond it.
    pub(super) fn beside(self, mean: &Layer) -> Layer {
        let (most, least) = (self.cost, mean.cost);
        let uneven = |most: Bytes, least: Bytes| Uneven::new(most.beyond(least));
        let here = |cost: &LayerCost| cost.kept_selective.beyond(cost.kept_offloaded);
        Layer {
            cost: LayerCost {
                kept: least.kept,
                kept_selective: least.kept_selective,
                kept_offloaded: least.kept_offloaded,
                uneven: [uneven(most.kept, least.kept), uneven(here(&most), here(&least))],
                ..most
            },
            mean: mean.mean,
            ..self
        }
    }

    /// Bytes that are kept where the operators that are named are computed again, and gathers if so: with as many tokens as the
    /// mean, and what the rank with most has beyond them.
    pub(super) fn kept(&self, (named, gather): (Named, bool)) -> (Bytes, Uneven) {
        let made = |each: [f64; 9]| {
            let repeats = self.repeats;
            let each = [0, 1, 2, 3, 4, 5, 6, 7, 8].map(|n| (repeats.each[n].0, each[n]));
            Bytes::from_f64(Repeats { each, ..repeats }.sum(named, gather).1)
        };
        let kept = self.cost.kept.beyond(made(self.mean));
        let most = self.widest.beyond(made(self.repeats.made()));
        (kept, Uneven::new(most.beyond(kept)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_product_runs_again_and_those_with_a_bias_all_or_none() {
        let mut products = Products::default();
        for seconds in [1.0, 2.0, 4.0, 8.0] {
            products.run(seconds);
        }
        assert_eq!(products.spared, (1.0 + 4.0, 2));
        let before = products;
        products.run(16.0);
        products.run(32.0);
        assert_eq!(products.spared, (1.0 + 4.0 + 16.0, 3));
        assert_eq!(products.uncounted_since(before, true).spared, (5.0 + 48.0, 4));
        // They are not counted: the next one is the fifth all the same.
        let mut products = products.uncounted_since(before, false);
        products.run(64.0);
        assert_eq!(products.spared, (5.0 + 64.0, 3));
    }
}
