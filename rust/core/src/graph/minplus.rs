//! The least sum of tables over one of their variables, for each choice of the others: a product of matrices in which
//! minima take the place of sums and sums that of products.
//!
//! Cells are whole numbers in floating point, for which every processor adds and compares several at a time. Sums below
//! 2^53, two and a half hours in picoseconds, are exact, and a larger one is never taken for a smaller: rounding keeps order.

/// Cells of a table that are gone through again and again, while a processor's nearest memories hold them.
const TILE: usize = 1 << 14;
/// Whole numbers below it are themselves in floating point.
const EXACT: f64 = (1u64 << f64::MANTISSA_DIGITS) as f64;

/// How the scopes of tables lie in their joint one. Sums of one form over equal tables are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Values of the variables of the joint scope.
    pub(super) sizes: Vec<usize>,
    /// The place of the variable that is taken out.
    pub(super) out: usize,
    /// The places of each table's variables, ascending.
    pub(super) scopes: Vec<Vec<usize>>,
}

/// Tables of one scope, added up.
struct Added {
    /// The places of the variables, outermost first.
    scope: Vec<usize>,
    cells: Vec<f64>,
}

/// Whether whole numbers up to this one are told apart.
pub(super) fn is_exact(sum: f64) -> bool {
    sum < EXACT
}

/// A whole number that is not above the sum of so many terms, as it was added up: the sum itself while that is exact.
///
/// Each addition and each term was rounded by one part in 2^53 at most.
pub(super) fn floor(sum: f64, terms: usize) -> u64 {
    if is_exact(sum) {
        sum as u64
    } else {
        (sum * (1.0 - 2.0 * terms as f64 * f64::EPSILON)) as u64
    }
}

impl Form {
    /// The least sum over the variable that is taken out, which every table names, for each choice of the others, in
    /// row-major order.
    pub(super) fn least(&self, parts: &[&[f64]]) -> Vec<f64> {
        // A variable that no table names takes its first value at no cost.
        let Some(&length) = self.sizes.get(self.out) else { return vec![0.0] };
        let mut rest: Vec<usize> = (0..self.sizes.len()).filter(|&p| p != self.out).collect();
        let outer = rest.clone();
        // Sums are worked out for all values of the largest variable at a time.
        let Some(along) = outer.iter().copied().max_by_key(|&place| self.sizes[place]) else {
            let added = self.added(parts, None);
            return vec![added[0].cells.iter().copied().fold(f64::INFINITY, least)];
        };
        rest.retain(|&place| place != along);
        let width = self.sizes[along];
        let (rows, firsts): (Vec<Added>, Vec<Added>) =
            self.added(parts, Some(along)).into_iter().partition(|t| t.scope.contains(&along));
        let steps = |tables: &[Added]| -> Vec<Vec<usize>> {
            let step = |table: &Added| rest.iter().map(|&p| self.step(p, &table.scope)).collect();
            tables.iter().map(step).collect()
        };
        let steps = [steps(&rows), steps(&firsts)];
        let mut sums = vec![f64::INFINITY; outer.iter().map(|&place| self.sizes[place]).product()];
        let mut first = Vec::with_capacity(length);
        let mut joined = Vec::new();
        let tile = (TILE / width).max(4);
        for start in (0..length).step_by(tile) {
            let end = length.min(start + tile);
            let cells = start * width..end * width;
            let mut places = Places::new(rest.iter().map(|&p| self.sizes[p]).collect(), &steps);
            for sums in sums.chunks_exact_mut(width) {
                first.clear();
                first.resize(end - start, 0.0);
                for (table, base) in firsts.iter().zip(&places.of[1]) {
                    let part = &table.cells[base + start..base + end];
                    first.iter_mut().zip(part).for_each(|(sum, cell)| *sum += cell);
                }
                let mut parts = rows
                    .iter()
                    .zip(&places.of[0])
                    .map(|(table, base)| &table.cells[base + cells.start..base + cells.end]);
                if let (Some(one), None) = (parts.next(), parts.next()) {
                    lower(sums, &first, one);
                } else {
                    joined.clear();
                    joined.resize(cells.len(), 0.0);
                    for (table, base) in rows.iter().zip(&places.of[0]) {
                        let part = &table.cells[base + cells.start..base + cells.end];
                        joined.iter_mut().zip(part).for_each(|(sum, cell)| *sum += cell);
                    }
                    lower(sums, &first, &joined);
                }
                places.next();
            }
        }
        rest.push(along);
        if rest == outer {
            return sums;
        }
        let mut turned = vec![0.0; sums.len()];
        self.add(&mut turned, &outer, &rest, &sums);
        turned
    }

    /// The tables, each added to one that names all of its variables as long as there is one. The variable that is taken out
    /// comes last in each, but for one `along` which sums are worked out.
    fn added(&self, parts: &[&[f64]], along: Option<usize>) -> Vec<Added> {
        let mut tables: Vec<(&Vec<usize>, &[f64])> =
            self.scopes.iter().zip(parts.iter().copied()).collect();
        tables.sort_by_key(|(scope, _)| std::cmp::Reverse(scope.len()));
        let mut all: Vec<Added> = Vec::new();
        for (scope, cells) in tables {
            let within = |added: &&mut Added| scope.iter().all(|place| added.scope.contains(place));
            if let Some(Added { scope: order, cells: sums }) = all.iter_mut().find(within) {
                self.add(sums, order, scope, cells);
                continue;
            }
            let last = [Some(self.out), along];
            let is_last = |&place: &usize| last.contains(&Some(place));
            let mut order: Vec<usize> = scope.iter().copied().filter(|p| !is_last(p)).collect();
            order.extend(last.into_iter().flatten().filter(|place| scope.contains(place)));
            let mut sums = vec![0.0; order.iter().map(|&place| self.sizes[place]).product()];
            self.add(&mut sums, &order, scope, cells);
            all.push(Added { scope: order, cells: sums });
        }
        all
    }

    /// Adds the cells of a table to sums of its variables, and maybe others, in another order.
    fn add(&self, sums: &mut [f64], order: &[usize], scope: &[usize], cells: &[f64]) {
        let steps: Vec<usize> = order.iter().map(|&place| self.step(place, scope)).collect();
        let (Some((&inner, outer)), Some((&step, steps))) =
            (order.split_last(), steps.split_last())
        else {
            return;
        };
        let sizes = outer.iter().map(|&place| self.sizes[place]).collect();
        let mut places = Places::new(sizes, &[vec![steps.to_vec()]]);
        for row in sums.chunks_exact_mut(self.sizes[inner]) {
            let cells = &cells[places.of[0][0]..];
            match step {
                0 => row.iter_mut().for_each(|sum| *sum += cells[0]),
                1 => row.iter_mut().zip(cells).for_each(|(sum, cell)| *sum += cell),
                _ => row.iter_mut().zip(cells.iter().step_by(step)).for_each(|(s, c)| *s += c),
            }
            places.next();
        }
    }

    /// How far apart cells are in which only the variable at `place` differs; 0 if the scope does not name it.
    fn step(&self, place: usize, scope: &[usize]) -> usize {
        let mut inner = scope.iter().skip_while(|&&other| other != place);
        match inner.next() {
            None => 0,
            Some(_) => inner.map(|&other| self.sizes[other]).product(),
        }
    }
}

/// Every choice of some variables in row-major order, with its place in each of some tables.
struct Places {
    sizes: Vec<usize>,
    at: Vec<usize>,
    /// By variable, how far each of the tables goes with it.
    steps: Vec<Vec<Vec<usize>>>,
    /// By group of tables.
    of: Vec<Vec<usize>>,
}

impl Places {
    /// The first choice; `steps` are those of each variable, by group and table.
    fn new(sizes: Vec<usize>, steps: &[Vec<Vec<usize>>]) -> Places {
        let of = steps.iter().map(|group| vec![0; group.len()]).collect();
        Places { at: vec![0; sizes.len()], sizes, steps: steps.to_vec(), of }
    }

    fn next(&mut self) {
        for d in (0..self.sizes.len()).rev() {
            self.at[d] += 1;
            let back = if self.at[d] < self.sizes[d] { 0 } else { self.at[d] };
            for (places, tables) in self.of.iter_mut().zip(&self.steps) {
                for (place, steps) in places.iter_mut().zip(tables) {
                    *place = *place + steps[d] - back * steps[d];
                }
            }
            if back == 0 {
                break;
            }
            self.at[d] = 0;
        }
    }
}

/// The smaller one: of numbers that are ordered, in one instruction.
fn least(a: f64, b: f64) -> f64 {
    if b < a {
        b
    } else {
        a
    }
}

/// Lowers each of the sums to the least of `first` and the cell of its column, over all rows.
fn lower(sums: &mut [f64], first: &[f64], rows: &[f64]) {
    let width = sums.len();
    let (fours, ones) = (first.chunks_exact(4), first.len() / 4 * 4);
    for (first, rows) in fours.zip(rows.chunks_exact(4 * width)) {
        let (a, rows) = rows.split_at(width);
        let (b, rows) = rows.split_at(width);
        let (c, d) = rows.split_at(width);
        for ((((sum, a), b), c), d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            let one = least(first[0] + a, first[1] + b);
            let other = least(first[2] + c, first[3] + d);
            *sum = least(*sum, least(one, other));
        }
    }
    for (first, row) in first[ones..].iter().zip(rows[ones * width..].chunks_exact(width)) {
        sums.iter_mut().zip(row).for_each(|(sum, cell)| *sum = least(*sum, first + cell));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_product_of_matrices_with_minima() {
        // Rows 1 2 | 3 0 by columns 5 1 | 0 4: min(1 + 5, 2 + 0), min(1 + 1, 2 + 4); min(3 + 5, 0 + 0), min(3 + 1, 0 + 4).
        let form = Form { sizes: vec![2, 2, 2], out: 1, scopes: vec![vec![0, 1], vec![1, 2]] };
        let found = form.least(&[&[1.0, 2.0, 3.0, 0.0], &[5.0, 1.0, 0.0, 4.0]]);
        assert_eq!(found, [2.0, 2.0, 0.0, 4.0]);
    }

    #[test]
    fn whole_numbers_are_kept_while_floating_point_has_them() {
        let most = EXACT - 1.0;
        assert_eq!(floor(most, 1000), (1 << 53) - 1);
        // Beyond, a sum of 1000 terms is off by less than 2^-52 * 2000 of itself.
        let sum = 4.0 * EXACT;
        let below = floor(sum, 1000);
        assert!(below < 1 << 55 && below > (1 << 55) - (1 << 55) / (1 << 40));
    }

    /// Up to four variables, the one that is taken out, and tables that name it and others.
    fn any_form() -> impl Strategy<Value = (Form, Vec<Vec<f64>>)> {
        let sizes = proptest::collection::vec(1usize..7, 1..5);
        (sizes, 0usize..4, proptest::collection::vec((0u8..16, any::<u64>()), 1..5)).prop_map(
            |(sizes, out, tables)| {
                let out = out % sizes.len();
                let named =
                    |bits: u8| (0..sizes.len()).filter(move |&p| p == out || bits >> p & 1 == 1);
                let mut scopes: Vec<Vec<usize>> =
                    tables.iter().map(|&(bits, _)| named(bits).collect()).collect();
                // Every variable of the joint scope is named.
                scopes.push((0..sizes.len()).collect());
                let cells = |(scope, seed): (&Vec<usize>, u64)| {
                    let count = scope.iter().map(|&p| sizes[p]).product::<usize>() as u64;
                    let cell = |i| (seed.wrapping_add(i).wrapping_mul(0x9E37_79B9_7F4A_7C15)) >> 50;
                    (0..count).map(|i| cell(i) as f64).collect()
                };
                let seeds = tables.iter().map(|&(_, seed)| seed).chain([7]);
                let cells = scopes.iter().zip(seeds).map(cells).collect();
                (Form { sizes, out, scopes }, cells)
            },
        )
    }

    proptest! {
        #[test]
        fn every_sum_is_the_least_of_all_values((form, cells) in any_form()) {
            let parts: Vec<&[f64]> = cells.iter().map(Vec::as_slice).collect();
            let found = form.least(&parts);
            let total: usize = form.sizes.iter().product();
            let mut least = vec![f64::INFINITY; total / form.sizes[form.out]];
            for choice in 0..total {
                let mut left = choice;
                let mut at = vec![0; form.sizes.len()];
                for (at, size) in at.iter_mut().zip(&form.sizes).rev() {
                    (*at, left) = (left % size, left / size);
                }
                let place = |scope: &mut dyn Iterator<Item = usize>| {
                    scope.fold(0, |place, p| place * form.sizes[p] + at[p])
                };
                let tables = form.scopes.iter().zip(&cells);
                let sum = tables.map(|(scope, cells)| cells[place(&mut scope.iter().copied())]);
                let sum = sum.sum::<f64>();
                let out = place(&mut (0..form.sizes.len()).filter(|&p| p != form.out));
                least[out] = least[out].min(sum);
            }
            prop_assert_eq!(found, least);
        }
    }
}
