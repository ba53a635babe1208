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

use super::minplus::{floor, Form};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

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

/// Every table, given ones and sums.
#[derive(Clone, Debug)]
pub(super) struct Summed {
    /// The distinct ones.
    cells: Vec<Arc<[f64]>>,
    /// Which of them each place in [`Order::scopes`] has.
    tables: Vec<usize>,
    /// The sum of those that name no variable.
    pub(super) bound: f64,
}

impl Summed {
    /// The cells of a table, in row-major order of its scope.
    pub(super) fn table(&self, place: usize) -> &[f64] {
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
    pub fn eliminate(&self, cells: Vec<Arc<[f64]>>, tables: Vec<usize>) -> Eliminated {
        self.chosen(&self.summed(cells, tables))
    }

    /// The best values for sums that were worked out.
    pub(super) fn chosen(&self, sums: &Summed) -> Eliminated {
        Eliminated { choice: self.replay(sums), bound: floor(sums.bound, self.scopes.len()) }
    }

    /// The sums of all steps.
    pub(super) fn summed(&self, mut cells: Vec<Arc<[f64]>>, mut tables: Vec<usize>) -> Summed {
        debug_assert_eq!(tables.len(), self.given, "a table for each scope");
        let mut sums: HashMap<(usize, Vec<usize>), usize> = HashMap::new();
        let mut bound = 0.0;
        for group in self.steps.iter().flat_map(|step| &step.groups) {
            let parts: Vec<usize> = group.tables.iter().map(|&table| tables[table]).collect();
            let sum = *sums.entry((group.form, parts)).or_insert_with_key(|(form, parts)| {
                let parts: Vec<&[f64]> = parts.iter().map(|&part| &*cells[part]).collect();
                cells.push(self.forms[*form].least(&parts).into());
                cells.len() - 1
            });
            if self.scopes[tables.len()].is_empty() {
                bound += cells[sum][0];
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
        let mut added: Vec<f64> = Vec::new();
        for step in self.steps.iter().rev() {
            added.clear();
            added.resize(self.sizes[step.variable], 0.0);
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
                added.iter_mut().zip(line).for_each(|(sum, cell)| *sum += cell);
            }
            let best = (0..added.len()).min_by(|&a, &b| added[a].total_cmp(&added[b]));
            choice[step.variable] = best.unwrap_or_default();
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
        let own = [0.0, 1.0, 3.0].into();
        let differ = [5.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 5.0].into();
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
        let step: Arc<[f64]> = [0.0, 9.0, 9.0, 0.0].into();
        let tables = || [vec![0; 100], vec![1; 99]].concat();
        assert_eq!(order.eliminate(vec![[1.0, 2.0].into(), step.clone()], tables()).bound, 100);
        assert_eq!(order.eliminate(vec![[3.0, 2.0].into(), step], tables()).bound, 200);
    }

    #[test]
    fn a_chain_in_pairs_is_the_same_sum() {
        let scopes = (0..50).map(|v| vec![v]).chain((0..49).map(|v| vec![v, v + 1]));
        let scopes: Vec<Vec<usize>> = scopes.collect();
        let cells: Vec<Arc<[f64]>> =
            vec![[3.0, 1.0, 2.0].into(), [1.0, 0.0, 7.0, 6.0, 9.0, 2.0, 0.0, 5.0, 3.0].into()];
        let tables = || [vec![0; 50], vec![1; 49]].concat();
        let straight = Order::new(vec![3; 50], scopes.clone()).eliminate(cells.clone(), tables());
        let paired = Order::in_pairs(vec![3; 50], scopes).eliminate(cells.clone(), tables());
        assert_eq!(straight.bound, paired.bound);
        let cost = |choice: &[usize]| -> f64 {
            let own: f64 = choice.iter().map(|&v| cells[0][v]).sum();
            own + choice.windows(2).map(|v| cells[1][v[0] * 3 + v[1]]).sum::<f64>()
        };
        assert_eq!(cost(&paired.choice), paired.bound as f64);
    }
}
