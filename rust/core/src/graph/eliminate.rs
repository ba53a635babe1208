//! Elimination of variables from a sum of tables: the best choice and a lower bound, exact while the tables fit.
//!
//! A variable is taken out by adding up the tables that name it and keeping, for each choice of its neighbours, the
//! least sum (Bertele, Brioschi 1972). Where that table would be too large the tables are taken out in groups,
//! each with its own least: a lower bound (mini-buckets; Dechter, Rish 2003). Going back in the opposite order, each
//! variable takes its best value given those that were taken out later.
//!
//! A table may name a variable by classes of its values ([`View`]): layouts are fewer than strategies. Where that spares
//! work, the other tables are first brought to the least of each class.
//!
//! The order depends on the scopes alone and is found once, whatever is then added up in it. Equal tables have equal
//! numbers, and a sum that was worked out once is not worked out again: the layers of a deep network are taken apart as
//! one.

use super::view::{View, Views};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// Additions for one elimination at most; above it tables are taken out in groups. It is a tenth of a second's work.
pub const LARGEST_SUM: u64 = 1 << 28;
/// Cells that are kept of one at most: a quarter of a gibibyte.
const LARGEST_TABLE: u64 = 1 << 25;

/// A variable of a table, and the place in [`Order::views`] of the classes by which the table names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Named {
    pub(super) variable: usize,
    pub(super) view: usize,
}

/// In which order variables are taken out of tables over given scopes, and which tables are added up for that.
#[derive(Clone, Debug)]
pub struct Order {
    /// Values of each variable.
    pub(super) sizes: Vec<usize>,
    /// The variables of each table, outermost first: of those that were given, then of the sums in order.
    pub(super) scopes: Vec<Vec<Named>>,
    /// Tables that were given.
    pub(super) given: usize,
    /// In the order in which variables are taken out.
    pub(super) steps: Vec<Step>,
    views: Views,
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
    /// The views of the joint scope.
    joint: Vec<usize>,
    /// The place of the variable that is taken out.
    out: usize,
    /// Of what classes of it the least are kept, if it is not taken out whole.
    kept: Option<usize>,
    /// The places of each table's variables, with their views there.
    scopes: Vec<Vec<(usize, usize)>>,
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
    /// values; a scope names each variable by its values. A chain is added up from its beginning.
    pub fn new(sizes: Vec<usize>, scopes: Vec<Vec<usize>>) -> Order {
        let whole = |scope: Vec<usize>| scope.into_iter().map(|v| (v, None)).collect();
        Order::of_classes(sizes, scopes.into_iter().map(whole).collect())
    }

    /// The same for tables that name variables by classes, where a view is given. A chain of equal tables is added up in
    /// pairs, and pairs of those: its length matters little.
    pub fn of_classes(sizes: Vec<usize>, scopes: Vec<Vec<(usize, Option<View>)>>) -> Order {
        let mut views = Views::default();
        let mut named = |(variable, view): (usize, Option<View>)| {
            let view = view.unwrap_or_else(|| View::whole(sizes[variable]));
            Named { variable, view: views.place(view) }
        };
        let in_pairs = scopes.iter().flatten().any(|(_, view)| view.is_some());
        let scopes: Vec<Vec<Named>> =
            scopes.into_iter().map(|scope| scope.into_iter().map(&mut named).collect()).collect();
        let given = scopes.len();
        let mut order = Order { sizes, scopes, given, steps: vec![], views, forms: vec![] };
        let count = order.sizes.len();
        // The tables that name each variable and are not yet added up.
        let mut of: Vec<Vec<usize>> = vec![vec![]; count];
        for (table, scope) in order.scopes.iter().enumerate() {
            scope.iter().for_each(|named| of[named.variable].push(table));
        }
        let mut weights: Vec<u64> = (0..count).map(|v| order.work(v, &of[v]).0).collect();
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
            for mut tables in order.groups(variable, named.clone()) {
                if let (_, Some(view)) = order.work(variable, &tables) {
                    let by_class = |&table: &usize| order.view_in(table, variable) == Some(view);
                    let (last, first): (Vec<usize>, Vec<usize>) =
                        tables.into_iter().partition(by_class);
                    let group = order.add(variable, first, Some(view), &mut known);
                    groups.push(group);
                    tables = [last.as_slice(), &[order.scopes.len() - 1]].concat();
                }
                let group = order.add(variable, tables, None, &mut known);
                groups.push(group);
                let result = order.scopes.len() - 1;
                order.scopes[result].iter().for_each(|other| of[other.variable].push(result));
            }
            for &other in &neighbours {
                queue.remove(&(weights[other], rounds[other], other));
                weights[other] = order.work(other, &of[other]).0;
                if in_pairs {
                    rounds[other] = rounds[other].max(round + 1);
                }
                queue.insert((weights[other], rounds[other], other));
            }
            order.steps.push(Step { variable, tables: named, groups });
        }
        order
    }

    /// Whether every table names variables by their values and each step is one sum.
    pub(super) fn is_plain(&self) -> bool {
        let whole = |named: &Named| self.views.all[named.view].count == self.sizes[named.variable];
        self.scopes.iter().flatten().all(whole)
            && self.steps.iter().all(|step| step.groups.len() == 1)
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
                cells.push(self.forms[*form].least(&self.views, &parts).into());
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
        let mut all: Vec<usize> = named.map(|named| named.variable).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// By what classes a table names a variable, if it does.
    fn view_in(&self, table: usize, variable: usize) -> Option<usize> {
        let mut scope = self.scopes[table].iter();
        scope.find(|named| named.variable == variable).map(|named| named.view)
    }

    /// The classes by which tables together name a variable.
    fn view_of(&mut self, tables: &[usize], variable: usize) -> usize {
        let views: Vec<usize> =
            tables.iter().filter_map(|&table| self.view_in(table, variable)).collect();
        self.views.joint(views)
    }

    /// Cells of the joint table of the classes of each variable.
    pub(super) fn cells(&mut self, tables: &[usize]) -> u64 {
        let views: Vec<usize> =
            self.joint(tables).into_iter().map(|v| self.view_of(tables, v)).collect();
        let counts = views.into_iter().map(|view| self.views.all[view].count as u64);
        counts.fold(1, u64::saturating_mul)
    }

    /// The additions of taking out a variable, and by what classes of it the tables that do not name it so are first added up,
    /// where that spares work.
    fn work(&mut self, variable: usize, tables: &[usize]) -> (u64, Option<usize>) {
        let whole = self.cells(tables);
        let mut best = (whole, None);
        let mut views: Vec<usize> =
            tables.iter().filter_map(|&table| self.view_in(table, variable)).collect();
        views.sort_unstable();
        views.dedup();
        if views.len() < 2 {
            return best;
        }
        let all = self.view_of(tables, variable);
        for view in views {
            let by_class = |&table: &usize| self.view_in(table, variable) == Some(view);
            let first: Vec<usize> =
                tables.iter().copied().filter(|table| !by_class(table)).collect();
            let classes = self.views.all[view].count as u64;
            let values = self.views.all[all].count.max(1) as u64;
            let work = self.cells(&first).saturating_add((whole / values).saturating_mul(classes));
            if work < best.0 {
                best = (work, Some(view));
            }
        }
        best
    }

    /// Splits tables into groups whose sums are not too large; one group if they all fit.
    fn groups(&mut self, variable: usize, named: Vec<usize>) -> Vec<Vec<usize>> {
        let mut fits = |tables: &[usize]| {
            let view = self.view_of(tables, variable);
            let values = self.views.all[view].count.max(1) as u64;
            self.work(variable, tables).0 <= LARGEST_SUM
                && self.cells(tables) / values <= LARGEST_TABLE
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
        kept: Option<usize>,
        known: &mut HashMap<Form, usize>,
    ) -> Group {
        let joint = self.joint(&tables);
        let views: Vec<usize> = joint.iter().map(|&v| self.view_of(&tables, v)).collect();
        let place = |variable: usize| joint.partition_point(|&other| other < variable);
        let places = |&table: &usize| {
            self.scopes[table].iter().map(|named| (place(named.variable), named.view)).collect()
        };
        let out = place(variable);
        let scopes = tables.iter().map(places).collect();
        let form = Form { joint: views.clone(), out, kept, scopes };
        let next = known.len();
        let form = *known.entry(form).or_insert_with_key(|form| {
            self.forms.push(form.clone());
            next
        });
        let named = joint.iter().zip(views).map(|(&variable, view)| Named { variable, view });
        let mut scope: Vec<Named> = named.filter(|named| named.variable != variable).collect();
        scope.extend(kept.map(|view| Named { variable, view }));
        self.scopes.push(scope);
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
                let (mut base, mut stride, mut classes) = (0, 0, None);
                for named in &self.scopes[table] {
                    let view = &self.views.all[named.view];
                    (base, stride) = (base * view.count, stride * view.count);
                    if named.variable == step.variable {
                        (stride, classes) = (1, Some(&view.class));
                    } else {
                        base += view.class[choice[named.variable]] as usize;
                    }
                }
                let cells = sums.table(table);
                for (sum, &class) in added.iter_mut().zip(classes.into_iter().flat_map(|c| &**c)) {
                    *sum = sum.saturating_add(cells[base + class as usize * stride]);
                }
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
    /// For each outer place of the joint scope and each class there, how far its cells are from the first.
    offsets: Vec<Vec<usize>>,
    /// For each class of the variable that is taken out the place in a line; none if they are the same.
    line: Option<Vec<u32>>,
    /// Cells of a line.
    length: usize,
}

impl Form {
    /// The least sum over the variable that is taken out, which every table names, for each choice of the others, and of
    /// each of its classes that is kept.
    fn least(&self, views: &Views, parts: &[&[u64]]) -> Vec<u64> {
        // A variable that no table names takes its first value at no cost.
        let Some(&domain) = self.joint.get(self.out) else { return vec![0] };
        let outer: Vec<usize> = (0..self.joint.len()).filter(|&place| place != self.out).collect();
        let sizes: Vec<usize> =
            outer.iter().map(|&place| views.all[self.joint[place]].count).collect();
        let turned: Vec<Turned> = self
            .scopes
            .iter()
            .zip(parts)
            .map(|(scope, cells)| self.turned(views, &outer, scope, cells))
            .collect();
        let kept = self.kept.map(|view| (views.between(domain, view), views.all[view].count));
        let choices: usize = sizes.iter().product();
        let mut out = Vec::with_capacity(choices * kept.as_ref().map_or(1, |(_, count)| *count));
        let mut at = vec![0usize; outer.len()];
        let first = |table: &Turned| -> usize { table.offsets.iter().map(|of| of[0]).sum() };
        let mut bases: Vec<usize> = turned.iter().map(first).collect();
        let mut line = vec![0u64; views.all[domain].count];
        let plain = turned.iter().all(|table| table.line.is_none()) && kept.is_none();
        for _ in 0..choices {
            if plain {
                let mut lines = turned
                    .iter()
                    .zip(&bases)
                    .map(|(table, &base)| &table.cells[base..base + table.length]);
                let (last, before) = (lines.next_back(), lines);
                out.push(least_sum(&mut line, before, last.unwrap_or(&[])));
            } else {
                line.fill(0);
                for (table, &base) in turned.iter().zip(&bases) {
                    let cells = &table.cells[base..base + table.length];
                    match &table.line {
                        None => line.iter_mut().zip(cells).for_each(|(sum, cell)| *sum += cell),
                        Some(places) => line
                            .iter_mut()
                            .zip(places)
                            .for_each(|(sum, &place)| *sum += cells[place as usize]),
                    }
                }
                match &kept {
                    None => out.push(line.iter().copied().min().unwrap_or(0)),
                    Some((class, count)) => {
                        let start = out.len();
                        out.resize(start + count, u64::MAX);
                        for (&sum, &class) in line.iter().zip(class) {
                            let least = &mut out[start + class as usize];
                            *least = sum.min(*least);
                        }
                    }
                }
            }
            for d in (0..outer.len()).rev() {
                let next = (at[d] + 1) % sizes[d];
                for (table, base) in turned.iter().zip(&mut bases) {
                    *base = *base + table.offsets[d][next] - table.offsets[d][at[d]];
                }
                at[d] = next;
                if next > 0 {
                    break;
                }
            }
        }
        out
    }

    /// A table's cells with the variable that is taken out innermost, and where those of each choice lie.
    fn turned(
        &self,
        views: &Views,
        outer: &[usize],
        scope: &[(usize, usize)],
        cells: &[u64],
    ) -> Turned {
        let count = |view: usize| views.all[view].count;
        let stride_in = |place: usize, scope: &[(usize, usize)]| -> Option<usize> {
            let mut inner = scope.iter().skip_while(|(p, _)| *p != place);
            inner.next()?;
            Some(inner.map(|&(_, view)| count(view)).product())
        };
        let others = scope.iter().copied().filter(|&(place, _)| place != self.out);
        let last = scope.iter().copied().find(|&(place, _)| place == self.out);
        let order: Vec<(usize, usize)> = others.chain(last).collect();
        let offsets = outer
            .iter()
            .map(|&place| match order.iter().find(|(p, _)| *p == place) {
                None => vec![0; count(self.joint[place])],
                Some(&(_, view)) => {
                    let stride = stride_in(place, &order).unwrap_or(0);
                    let classes = views.between(self.joint[place], view);
                    classes.into_iter().map(|class| class as usize * stride).collect()
                }
            })
            .collect();
        let line = last.filter(|&(_, view)| view != self.joint[self.out]);
        let line = line.map(|(_, view)| views.between(self.joint[self.out], view));
        let length = last.map_or(1, |(_, view)| count(view));
        if order == scope {
            return Turned { cells: cells.to_vec(), offsets, line, length };
        }
        let mut data = Vec::with_capacity(cells.len());
        let from: Vec<usize> =
            order.iter().map(|&(place, _)| stride_in(place, scope).unwrap_or(0)).collect();
        let mut at = vec![0usize; order.len()];
        let mut base = 0;
        for _ in 0..cells.len() {
            data.push(cells[base]);
            for d in (0..order.len()).rev() {
                at[d] += 1;
                base += from[d];
                if at[d] < count(order[d].1) {
                    break;
                }
                at[d] = 0;
                base -= from[d] * count(order[d].1);
            }
        }
        Turned { cells: data, offsets, line, length }
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
    fn classes_of_values_cost_what_their_values_cost() {
        // A ring of four variables with six values each, whose neighbours see the value halved: against the same by value.
        let own: Rc<[u64]> = [5, 0, 4, 1, 3, 2].into();
        let classes = View::by([0, 0, 1, 1, 2, 2]);
        let between: Rc<[u64]> = [9, 1, 2, 3, 9, 1, 2, 0, 9].into();
        let spread: Rc<[u64]> =
            (0..36).map(|cell| between[cell / 6 / 2 * 3 + cell % 6 / 2]).collect();
        let edges = [[0, 1], [1, 2], [2, 3], [0, 3]];
        let ones = (0..4).map(|v| vec![(v, None)]);
        let twos = edges.map(|edge| edge.map(|v| (v, Some(classes.clone()))).to_vec());
        let by_class = Order::of_classes(vec![6; 4], ones.chain(twos).collect());
        let scopes = (0..4).map(|v| vec![v]).chain(edges.map(|edge| edge.to_vec()));
        let by_value = Order::new(vec![6; 4], scopes.collect());
        let tables = || vec![0, 0, 0, 0, 1, 1, 1, 1];
        let found = by_class.eliminate(vec![own.clone(), between], tables());
        assert_eq!(found.bound, by_value.eliminate(vec![own, spread.clone()], tables()).bound);
        let cost = |v: [usize; 2]| spread[found.choice[v[0]] * 6 + found.choice[v[1]]];
        let own: u64 = found.choice.iter().map(|&v| [5, 0, 4, 1, 3, 2][v]).sum();
        assert_eq!(own + edges.map(cost).iter().sum::<u64>(), found.bound);
        assert!(!by_class.is_plain() && by_value.is_plain());
    }
}
