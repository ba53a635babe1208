//! Elimination of variables from a sum of tables: the best choice and a lower bound, exact while the tables fit.
//!
//! A variable is taken out by adding up the tables that name it and keeping, for each choice of its neighbours, the
//! least sum (Bertele, Brioschi 1972). Where that table would be too large the tables are taken out in groups,
//! each with its own least: a lower bound (mini-buckets; Dechter, Rish 2003). Going back in the opposite order, each
//! variable takes its best value given those that were taken out later.
//!
//! The order depends on the scopes alone and is found once, whatever is then added up in it. Equal tables have equal
//! numbers, and a sum that was worked out once is not worked out again: the layers of a deep network are taken apart as
//! one.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// Additions for one elimination at most; above it tables are taken out in groups. It is a tenth of a second's work, and
/// with a limit four times as high GPT-3 on 4 x 16 devices takes over a minute.
pub const LARGEST_SUM: u64 = 1 << 28;
/// Cells that are kept of one at most: a quarter of a gibibyte.
const LARGEST_TABLE: u64 = 1 << 25;

/// In which order variables are taken out of tables over given scopes, and which tables are added up for that.
#[derive(Clone, Debug)]
pub struct Order {
    /// Values of each variable.
    pub(super) sizes: Vec<usize>,
    /// The variables of each table, ascending: first of those that were given, then of the sums in order.
    pub(super) scopes: Vec<Vec<usize>>,
    /// Tables that were given.
    pub(super) given: usize,
    /// In the order in which variables are taken out.
    pub(super) steps: Vec<Step>,
    forms: Vec<Form>,
}

/// A variable is taken out.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) variable: usize,
    /// More than one where a single table would be too large.
    pub(super) groups: Vec<Group>,
}

/// Tables that are added up, by their places in [`Order::scopes`].
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) tables: Vec<usize>,
    /// Place in [`Order::forms`].
    pub(super) form: usize,
}

/// Every table, given ones and sums.
#[derive(Clone, Debug)]
pub(super) struct Summed {
    /// The distinct ones.
    pub(super) cells: Vec<Rc<[u64]>>,
    /// Which of them each place in [`Order::scopes`] has.
    pub(super) tables: Vec<usize>,
    /// The sum of those that name no variable.
    pub(super) bound: u64,
}

impl Summed {
    /// The cells of a table, in row-major order of its scope.
    pub(super) fn table(&self, place: usize) -> &[u64] {
        &self.cells[self.tables[place]]
    }
}

/// How the scopes of tables lie in their joint one. Sums of one form over equal tables are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// Values of each variable of the joint scope.
    sizes: Vec<usize>,
    /// The place of the variable that is taken out.
    out: usize,
    /// The places of each table's variables.
    scopes: Vec<Vec<usize>>,
}

/// The result of an elimination.
#[derive(Clone, Debug)]
pub struct Eliminated {
    /// A value for each variable.
    pub choice: Vec<usize>,
    /// No choice has a smaller sum; it is that of the choice if every table fitted.
    pub bound: u64,
}

impl Order {
    /// Takes out every variable, at each step the one with the smallest sum, in order where equal. `sizes` are numbers of
    /// values, and scopes ascend.
    pub fn new(sizes: Vec<usize>, scopes: Vec<Vec<usize>>) -> Order {
        debug_assert!(scopes.iter().all(|scope| scope.is_sorted()), "scopes ascend");
        let given = scopes.len();
        let mut order = Order { sizes, scopes, given, steps: vec![], forms: vec![] };
        let count = order.sizes.len();
        // The tables that name each variable and are not yet added up.
        let mut of: Vec<Vec<usize>> = vec![vec![]; count];
        for (table, scope) in order.scopes.iter().enumerate() {
            scope.iter().for_each(|&variable| of[variable].push(table));
        }
        let mut weights: Vec<u64> = of.iter().map(|tables| order.cells(tables)).collect();
        let mut queue: BTreeSet<(u64, usize)> = (0..count).map(|v| (weights[v], v)).collect();
        let mut known: HashMap<Form, usize> = HashMap::new();
        while let Some((_, variable)) = queue.pop_first() {
            let named = std::mem::take(&mut of[variable]);
            let neighbours: Vec<usize> =
                order.joint(&named).into_iter().filter(|&other| other != variable).collect();
            for &other in &neighbours {
                of[other].retain(|table| !named.contains(table));
            }
            let mut groups = Vec::new();
            for tables in order.groups(variable, named) {
                let mut scope = order.joint(&tables);
                let form = order.form(variable, &scope, &tables);
                let next = known.len();
                let form = *known.entry(form).or_insert_with_key(|form| {
                    order.forms.push(form.clone());
                    next
                });
                scope.retain(|&other| other != variable);
                scope.iter().for_each(|&other| of[other].push(order.scopes.len()));
                order.scopes.push(scope);
                groups.push(Group { tables, form });
            }
            for &other in &neighbours {
                queue.remove(&(weights[other], other));
                weights[other] = order.cells(&of[other]);
                queue.insert((weights[other], other));
            }
            order.steps.push(Step { variable, groups });
        }
        order
    }

    /// The least sum of tables, one for each scope that was given: `tables` says which of the distinct `cells`, in row-major
    /// order of the scope.
    pub fn eliminate(&self, cells: Vec<Rc<[u64]>>, tables: Vec<usize>) -> Eliminated {
        self.chosen(&self.summed(cells, tables))
    }

    /// The best values for sums that were worked out.
    pub(super) fn chosen(&self, sums: &Summed) -> Eliminated {
        Eliminated { choice: self.replay(&sums.cells, &sums.tables), bound: sums.bound }
    }

    /// The sums of all steps.
    pub(super) fn summed(&self, mut cells: Vec<Rc<[u64]>>, mut tables: Vec<usize>) -> Summed {
        debug_assert_eq!(tables.len(), self.given, "a table for each scope");
        let mut sums: HashMap<(usize, Vec<usize>), usize> = HashMap::new();
        let mut bound = 0u64;
        for group in self.steps.iter().flat_map(|step| &step.groups) {
            let parts: Vec<usize> = group.tables.iter().map(|&table| tables[table]).collect();
            let sum = *sums.entry((group.form, parts)).or_insert_with_key(|(form, parts)| {
                let parts: Vec<&[u64]> = parts.iter().map(|&part| &*cells[part]).collect();
                cells.push(self.forms[*form].least(&parts).into());
                cells.len() - 1
            });
            if self.scopes[tables.len()].is_empty() {
                bound = bound.saturating_add(cells[sum][0]);
            }
            tables.push(sum);
        }
        Summed { cells, tables, bound }
    }

    /// The variables of tables, ascending.
    pub(super) fn joint(&self, tables: &[usize]) -> Vec<usize> {
        let mut all: Vec<usize> =
            tables.iter().flat_map(|&table| self.scopes[table].iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Cells of the joint table.
    pub(super) fn cells(&self, tables: &[usize]) -> u64 {
        self.joint(tables).iter().fold(1, |cells, &v| cells.saturating_mul(self.sizes[v] as u64))
    }

    /// Splits tables into groups whose sums are not too large; one group if they all fit.
    fn groups(&self, variable: usize, named: Vec<usize>) -> Vec<Vec<usize>> {
        let fits = |tables: &[usize]| {
            let cells = self.cells(tables);
            cells <= LARGEST_SUM && cells / self.sizes[variable].max(1) as u64 <= LARGEST_TABLE
        };
        if fits(&named) {
            return vec![named];
        }
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for table in named {
            let joins = |group: &&mut Vec<usize>| fits(&[group.as_slice(), &[table]].concat());
            match groups.iter_mut().find(joins) {
                Some(group) => group.push(table),
                None => groups.push(vec![table]),
            }
        }
        debug_assert!(!groups.is_empty(), "variable {variable} is named by a table");
        groups
    }

    fn form(&self, variable: usize, joint: &[usize], tables: &[usize]) -> Form {
        let place = |&variable: &usize| joint.partition_point(|&other| other < variable);
        let places = |&table: &usize| self.scopes[table].iter().map(place).collect();
        Form {
            // A variable that no table names takes its first value at no cost.
            sizes: joint.iter().map(|&variable| self.sizes[variable]).collect(),
            out: place(&variable),
            scopes: tables.iter().map(places).collect(),
        }
    }

    /// Values in the opposite order of elimination, each the best (the first of equals) given the later ones.
    fn replay(&self, cells: &[Rc<[u64]>], tables: &[usize]) -> Vec<usize> {
        let mut choice = vec![0usize; self.sizes.len()];
        let mut sums: Vec<u64> = Vec::new();
        for step in self.steps.iter().rev() {
            sums.clear();
            sums.resize(self.sizes[step.variable], 0);
            for &table in step.groups.iter().flat_map(|group| &group.tables) {
                let (mut base, mut stride) = (0, 0);
                for &variable in &self.scopes[table] {
                    let size = self.sizes[variable];
                    (base, stride) = (base * size, stride * size);
                    if variable == step.variable {
                        stride = 1;
                    } else {
                        base += choice[variable];
                    }
                }
                let along = cells[tables[table]][base..].iter().step_by(stride.max(1));
                for (sum, &cell) in sums.iter_mut().zip(along) {
                    *sum = sum.saturating_add(cell);
                }
            }
            let best = (0..sums.len()).min_by_key(|&value| (sums[value], value));
            choice[step.variable] = best.unwrap_or_default();
        }
        choice
    }
}

impl Form {
    /// The least sum over the variable that is taken out, which every table names, for each choice of the others.
    fn least(&self, parts: &[&[u64]]) -> Vec<u64> {
        let values = self.sizes.get(self.out).copied().unwrap_or(1);
        let outer: Vec<usize> = (0..self.sizes.len()).filter(|&place| place != self.out).collect();
        let turned: Vec<(Vec<u64>, Vec<usize>)> =
            self.scopes.iter().zip(parts).map(|(scope, cells)| self.turned(scope, cells)).collect();
        let cells: usize = outer.iter().map(|&place| self.sizes[place]).product();
        let mut out = Vec::with_capacity(cells);
        let mut at = vec![0usize; outer.len()];
        let mut bases = vec![0usize; turned.len()];
        let mut line = Vec::with_capacity(values);
        for _ in 0..cells {
            let mut lines =
                turned.iter().zip(&bases).map(|((data, _), &base)| &data[base..base + values]);
            let (last, before) = (lines.next_back(), lines);
            out.push(least_sum(&mut line, before, last.unwrap_or(&[])));
            for (d, &place) in outer.iter().enumerate().rev() {
                at[d] += 1;
                for ((_, strides), base) in turned.iter().zip(&mut bases) {
                    *base += strides[d];
                }
                if at[d] < self.sizes[place] {
                    break;
                }
                at[d] = 0;
                for ((_, strides), base) in turned.iter().zip(&mut bases) {
                    *base -= strides[d] * self.sizes[place];
                }
            }
        }
        out
    }

    /// A table's cells with the variable that is taken out innermost, and its stride along each other one.
    fn turned(&self, scope: &[usize], cells: &[u64]) -> (Vec<u64>, Vec<usize>) {
        let stride_in = |place: usize, scope: &[usize]| -> usize {
            scope.iter().skip_while(|&&p| p != place).skip(1).map(|&p| self.sizes[p]).product()
        };
        let others = scope.iter().copied().filter(|&place| place != self.out);
        let order: Vec<usize> = others.chain([self.out]).collect();
        let strides = (0..self.sizes.len())
            .filter(|&place| place != self.out)
            .map(|place| if scope.contains(&place) { stride_in(place, &order) } else { 0 })
            .collect();
        if order == scope {
            return (cells.to_vec(), strides);
        }
        let mut data = Vec::with_capacity(cells.len());
        let from: Vec<usize> = order.iter().map(|&place| stride_in(place, scope)).collect();
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
}

/// The least of the sums, place by place, of lines and a last one; `sum` is room to add them up in.
fn least_sum<'a>(
    sum: &mut Vec<u64>,
    mut lines: impl Iterator<Item = &'a [u64]>,
    last: &[u64],
) -> u64 {
    let Some(first) = lines.next() else { return last.iter().copied().min().unwrap_or(0) };
    let Some(second) = lines.next() else {
        return first.iter().zip(last).map(|(a, b)| a + b).min().unwrap_or(0);
    };
    sum.clear();
    sum.extend(first.iter().zip(second).map(|(a, b)| a + b));
    for line in lines {
        sum.iter_mut().zip(line).for_each(|(sum, cell)| *sum += cell);
    }
    sum.iter().zip(last).map(|(a, b)| a + b).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_triangle_is_solved_exactly() {
        // Equal neighbours cost 5; the third value is dear: 0, 1 and 2 in some order, 0 + 1 + 3 = 4.
        let own = [0, 1, 3].into();
        let differ = [5, 0, 0, 0, 5, 0, 0, 0, 5].into();
        let scopes = vec![vec![0], vec![1], vec![2], vec![0, 1], vec![0, 2], vec![1, 2]];
        let order = Order::new(vec![3; 3], scopes);
        let found = order.eliminate(vec![own, differ], vec![0, 0, 0, 1, 1, 1]);
        assert_eq!(found.bound, 4);
        let mut values = found.choice.clone();
        values.sort_unstable();
        assert_eq!(values, [0, 1, 2]);
    }

    #[test]
    fn an_order_serves_any_tables_over_its_scopes() {
        let scopes = (0..100).map(|v| vec![v]).chain((0..99).map(|v| vec![v, v + 1])).collect();
        let order = Order::new(vec![2; 100], scopes);
        let step: Rc<[u64]> = [0, 9, 9, 0].into();
        let tables = || [vec![0; 100], vec![1; 99]].concat();
        assert_eq!(order.eliminate(vec![[1, 2].into(), step.clone()], tables()).bound, 100);
        assert_eq!(order.eliminate(vec![[3, 2].into(), step], tables()).bound, 200);
    }
}
