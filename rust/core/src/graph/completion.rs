//! What the rest of a sum costs at least: the way back through an elimination.
//!
//! An elimination adds up tables group by group, and each sum becomes a table of a later group: a tree. Going back from
//! its root, the least of everything outside a group is known for each choice of the variables that it shares
//! with the rest. With it a value, or a part of a choice, that is in no good plan is told at once (Dechter 1999,
//! "Bucket elimination"; reduced costs of a linear program do the same).

use super::eliminate::{Order, Summed};
use super::minplus::is_exact;

/// The least of everything outside each group. What cannot be part of a sum that is small enough is infinite.
#[derive(Clone, Debug)]
pub struct Completions {
    /// For each sum, by its place behind the given tables, and each choice of its scope: the least that all other tables
    /// add up to.
    pub rest: Vec<Vec<f64>>,
    /// For each variable and value: no choice with it has a smaller sum.
    pub through: Vec<Vec<f64>>,
}

/// Cells of all groups' joint tables at most, for which the way back is gone.
const LARGEST: u64 = 1 << 30;

impl Order {
    /// The way back through sums, for choices whose sum is at most `most`; `None` if tables are too large, or such
    /// sums to be exact.
    pub(super) fn completions(&self, sums: &Summed, most: f64) -> Option<Completions> {
        let cells = self.steps.iter().map(|step| self.cells(&step.tables));
        if cells.fold(0, u64::saturating_add) > LARGEST || !self.is_whole() || !is_exact(most) {
            return None;
        }
        let count = self.scopes.len() - self.given;
        let mut rest: Vec<Vec<f64>> = vec![vec![]; count];
        let mut through: Vec<Vec<f64>> = vec![vec![]; self.sizes.len()];
        let mut sum = count;
        for step in self.steps.iter().rev() {
            sum -= 1;
            let out = self.given + sum;
            if self.scopes[out].is_empty() {
                rest[sum] = vec![sums.bound - sums.table(out)[0]];
            }
            let (own, children) =
                self.passed(sums, step.variable, &step.tables, (out, &rest[sum]), most);
            for (child, least) in children {
                rest[child - self.given] = least;
            }
            through[step.variable] = own;
        }
        Some(Completions { rest, through })
    }

    /// What a group passes on that adds up `named` and takes out `variable`: the least sum for each of its values, and for
    /// each sum in the group what that lacks. The result of the group has its place and what it lacks itself.
    fn passed(
        &self,
        sums: &Summed,
        variable: usize,
        named: &[usize],
        (out, lacks): (usize, &[f64]),
        most: f64,
    ) -> (Vec<f64>, Vec<(usize, Vec<f64>)>) {
        let joint = self.joint_of(named, variable);
        let (children, given): (Vec<usize>, Vec<usize>) =
            named.iter().partition(|&&table| table >= self.given);
        let all = [children.as_slice(), &given].concat();
        let mut least: Vec<Vec<f64>> =
            children.iter().map(|&child| vec![f64::INFINITY; sums.table(child).len()]).collect();
        let mut own = vec![f64::INFINITY; self.sizes[variable]];
        let mut line = vec![0.0; own.len()];
        let done = sums.table(out);
        self.lines(&joint, &all, |cell, places, strides| {
            if lacks[cell] + done[cell] > most {
                return;
            }
            line.fill(lacks[cell]);
            for ((&table, &place), &stride) in all.iter().zip(places).zip(strides) {
                let along = sums.table(table)[place..].iter().step_by(stride);
                line.iter_mut().zip(along).for_each(|(sum, part)| *sum += part);
            }
            own.iter_mut().zip(&line).for_each(|(least, &sum)| *least = least.min(sum));
            for ((least, &place), &stride) in least.iter_mut().zip(places).zip(strides) {
                let along = least[place..].iter_mut().step_by(stride);
                along.zip(&line).for_each(|(least, &sum)| *least = least.min(sum));
            }
        });
        let lacking = children.into_iter().zip(least).map(|(child, mut least)| {
            least.iter_mut().zip(sums.table(child)).for_each(|(total, part)| *total -= part);
            (child, least)
        });
        (own, lacking.collect())
    }

    /// The variables of tables, ascending but for the one that is taken out, which comes last.
    pub(super) fn joint_of(&self, tables: &[usize], out: usize) -> Vec<usize> {
        let mut joint = self.joint(tables);
        joint.retain(|&variable| variable != out);
        joint.push(out);
        joint
    }

    /// Goes through every choice of `joint` but its last variable, which every one of `tables` names: the number of the
    /// choice, the place where its line begins in each table, and how far apart the cells of the line are there.
    pub(super) fn lines(
        &self,
        joint: &[usize],
        tables: &[usize],
        mut visit: impl FnMut(usize, &[usize], &[usize]),
    ) {
        let stride = |table: usize, variable: usize| -> usize {
            let mut inner = self.scopes[table].iter().skip_while(|&&other| other != variable);
            match inner.next() {
                None => 0,
                Some(_) => inner.map(|&other| self.sizes[other]).product(),
            }
        };
        let strides: Vec<Vec<usize>> = joint
            .iter()
            .map(|&variable| tables.iter().map(|&table| stride(table, variable)).collect())
            .collect();
        let (Some((_, outer)), Some(along)) = (joint.split_last(), strides.last()) else { return };
        let choices: usize = outer.iter().map(|&variable| self.sizes[variable]).product();
        let mut at = vec![0usize; outer.len()];
        let mut places = vec![0usize; tables.len()];
        for choice in 0..choices {
            visit(choice, &places, along);
            for (d, &variable) in outer.iter().enumerate().rev() {
                at[d] += 1;
                if at[d] < self.sizes[variable] {
                    places.iter_mut().zip(&strides[d]).for_each(|(place, stride)| *place += stride);
                    break;
                }
                let back = at[d] - 1;
                places.iter_mut().zip(&strides[d]).for_each(|(place, s)| *place -= back * s);
                at[d] = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn each_value_of_a_chain_has_the_least_sum_that_goes_through_it() {
        // Own costs 0 and 4 of three variables; unlike neighbours cost 3.
        let own: Arc<[f64]> = [0.0, 4.0].into();
        let unlike: Arc<[f64]> = [0.0, 3.0, 3.0, 0.0].into();
        let scopes = vec![vec![0], vec![1], vec![2], vec![0, 1], vec![1, 2]];
        let order = Order::new(vec![2; 3], scopes);
        let sums = order.summed(vec![own, unlike], vec![0, 0, 0, 1, 1]);
        // The middle one pays 4 and both neighbours 3, an outer one 4 and one neighbour 3.
        let through = |most| order.completions(&sums, most).map(|found| found.through);
        assert_eq!(through(10.0), Some(vec![vec![0.0, 7.0], vec![0.0, 10.0], vec![0.0, 7.0]]));
        // Above what is asked for a value may have none, or any bound above it.
        let small = through(6.0).expect("small tables");
        assert!(small.iter().all(|values| values[0] == 0.0 && values[1] > 6.0));
    }
}
