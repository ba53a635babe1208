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

/// Additions for one elimination at most; above it tables are taken out in groups: a graph has thousands of eliminations.
pub const LARGEST_SUM: u64 = 1 << 28;
/// Cells that are kept of one at most: a quarter of a gibibyte.
const LARGEST_TABLE: u64 = 1 << 25;

/// In which order variables are taken out of tables over given scopes, and which tables are added up for that.
#[derive(Clone, Debug)]
pub struct Order {
    /// Values of each variable.
    pub(super) sizes: Vec<usize>,
    /// The variables of each table, outermost first: of those that were given, then of the sums in order.
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
    /// The tables that name it.
    pub(super) tables: Vec<usize>,
    /// Sums of these, one after the other.
    pub(super) groups: Vec<Group>,
}

/// Tables that are added up, by their places in [`Order::scopes`].
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) tables: Vec<usize>,
    /// Place in [`Order::forms`].
    form: usize,
}

/// How the scopes of tables lie in their joint one. Sums of one form over equal tables are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// Values of the variables of the joint scope.
    sizes: Vec<usize>,
    /// The place of the variable that is taken out.
    out: usize,
    /// The places of each table's variables.
    scopes: Vec<Vec<usize>>,
}

/// Every table, given ones and sums.
#[derive(Clone, Debug)]
pub(super) struct Summed {
    /// The distinct ones.
    cells: Vec<Rc<[u64]>>,
    /// Which of them each place in [`Order::scopes`] has.
    tables: Vec<usize>,
    /// The sum of those that name no variable.
    pub(super) bound: u64,
}

impl Summed {
    /// The cells of a table, in row-major order of its scope.
    pub(super) fn table(&self, place: usize) -> &[u64] {
        &self.cells[self.tables[place]]
    }
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
    /// values; a scope names the variables of a table. A chain is added up from its beginning.
    pub fn new(sizes: Vec<usize>, scopes: Vec<Vec<usize>>) -> Order {
        Order::of(sizes, scopes, false)
    }

    /// The same, but a chain of equal tables is added up in pairs, and pairs of those: its length matters little.
    pub fn in_pairs(sizes: Vec<usize>, scopes: Vec<Vec<usize>>) -> Order {
        Order::of(sizes, scopes, true)
    }

    fn of(sizes: Vec<usize>, scopes: Vec<Vec<usize>>, in_pairs: bool) -> Order {
        let given = scopes.len();
        let mut order = Order { sizes, scopes, given, steps: vec![], forms: vec![] };
        let count = order.sizes.len();
        // The tables that name each variable and are not yet added up.
        let mut of: Vec<Vec<usize>> = vec![vec![]; count];
        for (table, scope) in order.scopes.iter().enumerate() {
            scope.iter().for_each(|&variable| of[variable].push(table));
        }
        let mut weights: Vec<u64> = of.iter().map(|tables| order.cells(tables)).collect();
        // In pairs, a variable whose neighbour was taken out waits for all others of its weight.
        let mut rounds = vec![0usize; count];
        let mut queue: BTreeSet<(u64, usize, usize)> =
            (0..count).map(|v| (weights[v], rounds[v], v)).collect();
        let mut known: HashMap<Form, usize> = HashMap::new();
        while let Some((_, round, variable)) = queue.pop_first() {
            let named = std::mem::take(&mut of[variable]);
            let neighbours: Vec<usize> =
                order.joint(&named).into_iter().filter(|&other| other != variable).collect();
            for &other in &neighbours {
                of[other].retain(|table| !named.contains(table));
            }
            let mut groups = Vec::new();
            for tables in order.groups(variable, named.clone()) {
                let group = order.add(variable, tables, &mut known);
                groups.push(group);
                let result = order.scopes.len() - 1;
                order.scopes[result].iter().for_each(|&other| of[other].push(result));
            }
            for &other in &neighbours {
                queue.remove(&(weights[other], rounds[other], other));
                weights[other] = order.cells(&of[other]);
                if in_pairs {
                    rounds[other] = rounds[other].max(round + 1);
                }
                queue.insert((weights[other], rounds[other], other));
            }
            order.steps.push(Step { variable, tables: named, groups });
        }
        order
    }

    /// Whether each step is one sum.
    pub(super) fn is_whole(&self) -> bool {
        self.steps.iter().all(|step| step.groups.len() == 1)
    }

    /// The least sum of tables, one for each scope that was given: `tables` says which of the distinct `cells`, in row-major
    /// order of the scope.
    pub fn eliminate(&self, cells: Vec<Rc<[u64]>>, tables: Vec<usize>) -> Eliminated {
        self.chosen(&self.summed(cells, tables))
    }

    /// The best values for sums that were worked out.
    pub(super) fn chosen(&self, sums: &Summed) -> Eliminated {
        Eliminated { choice: self.replay(sums), bound: sums.bound }
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
        let named = tables.iter().flat_map(|&table| &self.scopes[table]);
        let mut all: Vec<usize> = named.copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Cells of the joint table: the additions of taking out one of its variables.
    pub(super) fn cells(&self, tables: &[usize]) -> u64 {
        let sizes = self.joint(tables).into_iter().map(|variable| self.sizes[variable] as u64);
        sizes.fold(1, u64::saturating_mul)
    }

    /// Splits tables into groups whose sums are not too large; one group if they all fit.
    fn groups(&self, variable: usize, named: Vec<usize>) -> Vec<Vec<usize>> {
        let values = self.sizes[variable].max(1) as u64;
        let fits = |tables: &[usize]| {
            let cells = self.cells(tables);
            cells <= LARGEST_SUM && cells / values <= LARGEST_TABLE
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

    /// Adds a sum of tables: its scope, and the group that it is.
    fn add(
        &mut self,
        variable: usize,
        tables: Vec<usize>,
        known: &mut HashMap<Form, usize>,
    ) -> Group {
        let joint = self.joint(&tables);
        let place = |variable: usize| joint.partition_point(|&other| other < variable);
        let places = |&table: &usize| self.scopes[table].iter().map(|&v| place(v)).collect();
        let sizes = joint.iter().map(|&variable| self.sizes[variable]).collect();
        let form =
            Form { sizes, out: place(variable), scopes: tables.iter().map(places).collect() };
        let next = known.len();
        let form = *known.entry(form).or_insert_with_key(|form| {
            self.forms.push(form.clone());
            next
        });
        self.scopes.push(joint.into_iter().filter(|&other| other != variable).collect());
        Group { tables, form }
    }

    /// Values in the opposite order of elimination, each the best (the first of equals) given the later ones.
    fn replay(&self, sums: &Summed) -> Vec<usize> {
        let mut choice = vec![0usize; self.sizes.len()];
        let mut added: Vec<u64> = Vec::new();
        for step in self.steps.iter().rev() {
            added.clear();
            added.resize(self.sizes[step.variable], 0);
            for &table in &step.tables {
                let (mut base, mut stride) = (0, 0);
                for &variable in &self.scopes[table] {
                    (base, stride) = (base * self.sizes[variable], stride * self.sizes[variable]);
                    if variable == step.variable {
                        stride = 1;
                    } else {
                        base += choice[variable];
                    }
                }
                let line = sums.table(table)[base..].iter().step_by(stride);
                added.iter_mut().zip(line).for_each(|(sum, &cell)| *sum = sum.saturating_add(cell));
            }
            let best = (0..added.len()).min_by_key(|&value| (added[value], value));
            choice[step.variable] = best.unwrap_or_default();
        }
        choice
    }
}

/// A table as a sum reads it.
struct Turned {
    /// Its cells, with the variable that is taken out innermost.
    cells: Vec<u64>,
    /// For each outer place of the joint scope how far apart its cells are.
    strides: Vec<usize>,
}

impl Form {
    /// The least sum over the variable that is taken out, which every table names, for each choice of the others.
    fn least(&self, parts: &[&[u64]]) -> Vec<u64> {
        // A variable that no table names takes its first value at no cost.
        let Some(&length) = self.sizes.get(self.out) else { return vec![0] };
        let outer: Vec<usize> = (0..self.sizes.len()).filter(|&place| place != self.out).collect();
        let sizes: Vec<usize> = outer.iter().map(|&place| self.sizes[place]).collect();
        let turned: Vec<Turned> = self
            .scopes
            .iter()
            .zip(parts)
            .map(|(scope, cells)| self.turned(&outer, scope, cells))
            .collect();
        let choices: usize = sizes.iter().product();
        let mut out = Vec::with_capacity(choices);
        let mut at = vec![0usize; outer.len()];
        let mut bases = vec![0usize; turned.len()];
        let mut line = Vec::with_capacity(length);
        for _ in 0..choices {
            let mut lines =
                turned.iter().zip(&bases).map(|(table, &base)| &table.cells[base..base + length]);
            let (last, before) = (lines.next_back(), lines);
            out.push(least_sum(&mut line, before, last.unwrap_or(&[])));
            for d in (0..outer.len()).rev() {
                at[d] += 1;
                let back = if at[d] < sizes[d] { 0 } else { at[d] };
                for (table, base) in turned.iter().zip(&mut bases) {
                    *base = *base + table.strides[d] - back * table.strides[d];
                }
                if back == 0 {
                    break;
                }
                at[d] = 0;
            }
        }
        out
    }

    /// A table's cells with the variable that is taken out innermost, and how far apart those of each outer place are.
    fn turned(&self, outer: &[usize], scope: &[usize], cells: &[u64]) -> Turned {
        let stride_in = |place: usize, scope: &[usize]| -> Option<usize> {
            let mut inner = scope.iter().skip_while(|&&p| p != place);
            inner.next()?;
            Some(inner.map(|&p| self.sizes[p]).product())
        };
        let others = scope.iter().copied().filter(|&place| place != self.out);
        let order: Vec<usize> = others.chain([self.out]).collect();
        let strides = outer.iter().map(|&place| stride_in(place, &order).unwrap_or(0)).collect();
        if order == scope {
            return Turned { cells: cells.to_vec(), strides };
        }
        let mut data = Vec::with_capacity(cells.len());
        let from: Vec<usize> =
            order.iter().map(|&place| stride_in(place, scope).unwrap_or(0)).collect();
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
        Turned { cells: data, strides }
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

    #[test]
    fn a_chain_in_pairs_is_the_same_sum() {
        let scopes = (0..50).map(|v| vec![v]).chain((0..49).map(|v| vec![v, v + 1]));
        let scopes: Vec<Vec<usize>> = scopes.collect();
        let cells: Vec<Rc<[u64]>> = vec![[3, 1, 2].into(), [1, 0, 7, 6, 9, 2, 0, 5, 3].into()];
        let tables = || [vec![0; 50], vec![1; 49]].concat();
        let straight = Order::new(vec![3; 50], scopes.clone()).eliminate(cells.clone(), tables());
        let paired = Order::in_pairs(vec![3; 50], scopes).eliminate(cells.clone(), tables());
        assert_eq!(straight.bound, paired.bound);
        let cost = |choice: &[usize]| -> u64 {
            let own: u64 = choice.iter().map(|&v| cells[0][v]).sum();
            own + choice.windows(2).map(|v| cells[1][v[0] * 3 + v[1]]).sum::<u64>()
        };
        assert_eq!(cost(&paired.choice), paired.bound);
    }
}
