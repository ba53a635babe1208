//! Elimination of variables from a sum of tables: the best choice and a lower bound, exact while the tables fit.
//!
//! A variable is taken out by adding up the tables that name it and keeping, for each choice of its neighbours, the
//! least sum (Bertele, Brioschi 1972). Where that table would be too large the tables are taken out in groups,
//! each with its own least: a lower bound (mini-buckets; Dechter, Rish 2003). Going back in the opposite order, each
//! variable takes its best value given those that were taken out later.
//!
//! Equal tables have equal numbers, and a sum that was worked out once is not worked out again: the layers of a
//! deep network are taken apart as one.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// Additions for one elimination at most; above it tables are taken out in groups.
pub const LARGEST_SUM: u64 = 1 << 28;

/// A sum of tables over variables with finitely many values.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    sizes: Vec<usize>,
    factors: Vec<Factor>,
    /// Cells by number of the table.
    cells: Vec<Rc<[u64]>>,
    sums: HashMap<Vec<(usize, Vec<u8>)>, usize>,
}

/// A table over some variables.
#[derive(Clone, Debug)]
struct Factor {
    /// Ascending; cells are in row-major order of it.
    scope: Vec<usize>,
    /// Place in [`Tables::cells`].
    table: usize,
}

/// The result of an elimination.
#[derive(Clone, Debug)]
pub struct Eliminated {
    /// A value for each variable.
    pub choice: Vec<usize>,
    /// No choice has a smaller sum; it is that of the choice if every table fitted.
    pub bound: u64,
}

impl Tables {
    /// No tables yet, over variables with so many values each.
    pub fn new(sizes: Vec<usize>) -> Tables {
        Tables { sizes, ..Tables::default() }
    }

    /// Enters cells that several variables share; the table's number.
    pub fn enter(&mut self, cells: Rc<[u64]>) -> usize {
        self.cells.push(cells);
        self.cells.len() - 1
    }

    /// Adds a table over one variable.
    pub fn add_one(&mut self, variable: usize, table: usize) {
        self.factors.push(Factor { scope: vec![variable], table });
    }

    /// Adds a table over two variables, `first` by row and smaller.
    pub fn add_two(&mut self, first: usize, second: usize, table: usize) {
        debug_assert!(first < second, "rows belong to the smaller variable");
        self.factors.push(Factor { scope: vec![first, second], table });
    }

    /// Takes out every variable, at each step the one with the smallest sum, in order where equal.
    pub fn eliminate(mut self) -> Eliminated {
        let count = self.sizes.len();
        let mut alive: Vec<Option<Factor>> = self.factors.drain(..).map(Some).collect();
        let mut of: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); count];
        for (f, factor) in alive.iter().enumerate() {
            for &v in factor.iter().flat_map(|factor| &factor.scope) {
                of[v].insert(f);
            }
        }
        let weight = |v: usize, of: &[BTreeSet<usize>], alive: &[Option<Factor>]| -> u64 {
            let scope: BTreeSet<usize> = of[v]
                .iter()
                .filter_map(|&f| alive[f].as_ref())
                .flat_map(|f| f.scope.iter().copied())
                .collect();
            scope.iter().fold(1u64, |w, &u| w.saturating_mul(self.sizes[u] as u64))
        };
        let mut weights: Vec<u64> = (0..count).map(|v| weight(v, &of, &alive)).collect();
        let mut queue: BTreeSet<(u64, usize)> = (0..count).map(|v| (weights[v], v)).collect();
        let mut taken: Vec<(usize, Vec<Factor>)> = Vec::with_capacity(count);
        let mut bound = 0u64;
        while let Some((_, v)) = queue.pop_first() {
            let named: Vec<Factor> = of[v].iter().filter_map(|&f| alive[f].take()).collect();
            let neighbours: BTreeSet<usize> =
                named.iter().flat_map(|f| f.scope.iter().copied()).filter(|&u| u != v).collect();
            for group in self.groups(v, &named) {
                let (scope, table) = self.sum(v, &group);
                if scope.is_empty() {
                    bound = bound.saturating_add(self.cells[table][0]);
                    continue;
                }
                for &u in &scope {
                    of[u].insert(alive.len());
                }
                alive.push(Some(Factor { scope, table }));
            }
            for &u in &neighbours {
                of[u].retain(|&f| alive[f].is_some());
                queue.remove(&(weights[u], u));
                weights[u] = {
                    let scope: BTreeSet<usize> = of[u]
                        .iter()
                        .filter_map(|&f| alive[f].as_ref())
                        .flat_map(|f| f.scope.iter().copied())
                        .collect();
                    scope.iter().fold(1u64, |w, &n| w.saturating_mul(self.sizes[n] as u64))
                };
                queue.insert((weights[u], u));
            }
            taken.push((v, named));
        }
        Eliminated { choice: self.replay(&taken), bound }
    }

    /// Splits tables into groups whose sums are not too large; one group if they all fit.
    fn groups(&self, v: usize, named: &[Factor]) -> Vec<Vec<Factor>> {
        let mut groups: Vec<(BTreeSet<usize>, Vec<Factor>)> = Vec::new();
        for factor in named {
            let joins = |scope: &BTreeSet<usize>| {
                let all: BTreeSet<usize> = scope.iter().chain(&factor.scope).copied().collect();
                let cells = all.iter().fold(1u64, |w, &u| w.saturating_mul(self.sizes[u] as u64));
                (cells <= LARGEST_SUM).then_some(all)
            };
            match groups.iter_mut().find_map(|group| joins(&group.0).map(|all| (group, all))) {
                Some((group, all)) => {
                    group.0 = all;
                    group.1.push(factor.clone());
                }
                None => groups.push((factor.scope.iter().copied().collect(), vec![factor.clone()])),
            }
        }
        if groups.is_empty() {
            // A variable that no table names takes its first value at no cost.
            groups.push((BTreeSet::from([v]), vec![]));
        }
        groups.into_iter().map(|(_, factors)| factors).collect()
    }

    /// The least sum over `v` for each choice of the other variables: their scope and the table.
    fn sum(&mut self, v: usize, group: &[Factor]) -> (Vec<usize>, usize) {
        let all: BTreeSet<usize> = group.iter().flat_map(|f| f.scope.iter().copied()).collect();
        let scope: Vec<usize> = all.iter().copied().filter(|&u| u != v).collect();
        // The sum depends on the tables and on how their scopes lie in the joint one, not on the variables' names.
        let joint: Vec<usize> = all.iter().copied().collect();
        let place = |u: usize| joint.iter().position(|&w| w == u).unwrap_or_default() as u8;
        let mut key: Vec<(usize, Vec<u8>)> =
            group.iter().map(|f| (f.table, f.scope.iter().map(|&u| place(u)).collect())).collect();
        key.sort_unstable();
        key.push((usize::MAX, vec![place(v)]));
        if let Some(&table) = self.sums.get(&key) {
            return (scope, table);
        }
        let values = self.sizes[v];
        let sizes: Vec<usize> = scope.iter().map(|&u| self.sizes[u]).collect();
        let turned: Vec<(Vec<u64>, Vec<usize>)> =
            group.iter().map(|f| self.turned(f, v, &scope)).collect();
        let cells: usize = sizes.iter().product();
        let mut out = Vec::with_capacity(cells);
        let mut at = vec![0usize; scope.len()];
        let mut bases = vec![0usize; turned.len()];
        let mut line = vec![0u64; values];
        for _ in 0..cells {
            line.fill(0);
            for ((data, _), &base) in turned.iter().zip(&bases) {
                for (sum, &cell) in line.iter_mut().zip(&data[base..base + values]) {
                    *sum += cell;
                }
            }
            out.push(line.iter().copied().min().unwrap_or(0));
            for d in (0..scope.len()).rev() {
                at[d] += 1;
                for ((_, strides), base) in turned.iter().zip(&mut bases) {
                    *base += strides[d];
                }
                if at[d] < sizes[d] {
                    break;
                }
                at[d] = 0;
                for ((_, strides), base) in turned.iter().zip(&mut bases) {
                    *base -= strides[d] * sizes[d];
                }
            }
        }
        let table = self.enter(out.into());
        self.sums.insert(key, table);
        (scope, table)
    }

    /// A table's cells with `v` innermost, and its stride along each variable of `scope`.
    fn turned(&self, factor: &Factor, v: usize, scope: &[usize]) -> (Vec<u64>, Vec<usize>) {
        let cells = &self.cells[factor.table];
        let order: Vec<usize> =
            factor.scope.iter().copied().filter(|&u| u != v).chain([v]).collect();
        let stride_in = |u: usize, scope: &[usize]| -> usize {
            scope.iter().skip_while(|&&w| w != u).skip(1).map(|&w| self.sizes[w]).product()
        };
        let strides = scope
            .iter()
            .map(|&u| if order.contains(&u) { stride_in(u, &order) } else { 0 })
            .collect();
        if order == factor.scope {
            return (cells.to_vec(), strides);
        }
        let mut data = Vec::with_capacity(cells.len());
        let from: Vec<usize> = order.iter().map(|&u| stride_in(u, &factor.scope)).collect();
        let mut at = vec![0usize; order.len()];
        let mut base = 0;
        for _ in 0..cells.len() {
            data.push(cells[base]);
            for d in (0..order.len()).rev() {
                at[d] += 1;
                base += from[d];
                if at[d] < self.sizes[order[d]] {
                    break;
                }
                at[d] = 0;
                base -= from[d] * self.sizes[order[d]];
            }
        }
        (data, strides)
    }

    /// Values in the opposite order of elimination, each the best (the first of equals) given the later ones.
    fn replay(&self, taken: &[(usize, Vec<Factor>)]) -> Vec<usize> {
        let mut choice = vec![0usize; self.sizes.len()];
        for (v, named) in taken.iter().rev() {
            let sum = |value: usize| -> u64 {
                named
                    .iter()
                    .map(|f| {
                        let place = f.scope.iter().fold(0, |place, &u| {
                            place * self.sizes[u] + if u == *v { value } else { choice[u] }
                        });
                        self.cells[f.table][place]
                    })
                    .sum()
            };
            let best = (0..self.sizes[*v]).min_by_key(|&value| (sum(value), value));
            choice[*v] = best.unwrap_or_default();
        }
        choice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_triangle_is_solved_exactly() {
        // Equal neighbours cost 5; the third value is dear: 0, 1 and 2 in some order, 0 + 1 + 3 = 4.
        let mut tables = Tables::new(vec![3; 3]);
        let own = tables.enter(vec![0, 1, 3].into());
        let differ = tables.enter(vec![5, 0, 0, 0, 5, 0, 0, 0, 5].into());
        for v in 0..3 {
            tables.add_one(v, own);
        }
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            tables.add_two(a, b, differ);
        }
        let found = tables.eliminate();
        assert_eq!(found.bound, 4);
        let mut values = found.choice.clone();
        values.sort_unstable();
        assert_eq!(values, [0, 1, 2]);
    }

    #[test]
    fn like_parts_of_a_chain_are_summed_once() {
        let mut tables = Tables::new(vec![2; 100]);
        let own = tables.enter(vec![1, 2].into());
        let step = tables.enter(vec![0, 9, 9, 0].into());
        for v in 0..100 {
            tables.add_one(v, own);
        }
        for v in 0..99 {
            tables.add_two(v, v + 1, step);
        }
        assert_eq!(tables.eliminate().bound, 100);
    }
}
