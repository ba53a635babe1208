//! How many stages each kind of chip takes, and in which order: the compositions of a cell, counted and listed.
//!
//! Where all kinds have one tensor-parallel degree, their stages need only add up to the pipeline's. Where each has its own, the
//! stages' devices must add up to the cluster's too, and each kind that has one holds some stage: what a kind without
//! stages would have is no other plan.

use super::report::Cut;
use super::space::Cell;
use crate::spec::problem::Problem;

/// Contiguous runs of kinds over the stages.
pub type Composition = Vec<(usize, u64)>;

/// One step of a walk over compositions.
pub enum Walked<'w> {
    /// A composition.
    One(&'w Composition),
    /// As many as this were cut together.
    Cut(Cut, u64),
}

/// What the stages of some kinds must still add up to.
#[derive(Clone, Copy)]
struct Left {
    stages: u64,
    /// Tensor-parallel groups' ranks of one replica, where kinds differ in them.
    ranks: u64,
}

/// The compositions of a cell over kinds of chip.
pub struct Counts {
    kinds: usize,
    /// Tensor-parallel degree of each kind, where they differ.
    each: Option<Vec<u64>>,
    all: Left,
}

impl Counts {
    /// Of a cell of a problem.
    pub fn of(problem: &Problem, cell: &Cell) -> Counts {
        Counts::new(cell, problem.cluster.groups.len(), problem.cluster.devices)
    }

    /// Of a cell of a cluster with so many devices of so many kinds.
    fn new(cell: &Cell, kinds: usize, devices: u64) -> Counts {
        let each = cell.each.map(|_| (0..kinds).map(|kind| cell.tp_of(kind)).collect());
        let all = Left { stages: cell.pp, ranks: devices / (cell.dp * cell.cp) };
        Counts { kinds, each, all }
    }

    /// How many there are: for r used kinds r! orders of each choice of counts.
    pub fn count(&self) -> u64 {
        self.completions(&[], self.all)
    }

    /// Every composition, kinds in the order of the cluster's list, then by their counts, then by the order of the runs.
    ///
    /// `prune` sees the stages of the first kinds and how many are left for the others; what it cuts is counted, not listed.
    pub fn walk(
        &self,
        prune: &dyn Fn(&[u64], u64) -> Option<Cut>,
        visit: &mut dyn FnMut(Walked<'_>),
    ) {
        self.spread(&mut Vec::with_capacity(self.kinds), self.all, prune, visit);
    }

    fn spread(
        &self,
        counts: &mut Vec<u64>,
        left: Left,
        prune: &dyn Fn(&[u64], u64) -> Option<Cut>,
        visit: &mut dyn FnMut(Walked<'_>),
    ) {
        if let Some(reason) = prune(counts, left.stages) {
            visit(Walked::Cut(reason, self.completions(counts, left)));
            return;
        }
        if counts.len() == self.kinds {
            let used: Composition =
                counts.iter().copied().enumerate().filter(|&(_, n)| n > 0).collect();
            orders(&used, &mut Vec::new(), visit);
            return;
        }
        let kind = counts.len();
        let of_kind = match &self.each {
            Some(each) if each[kind] == 0 => 0..=0,
            Some(_) => 1..=left.stages,
            // The last kind takes what is left.
            None if kind + 1 == self.kinds => left.stages..=left.stages,
            None => 0..=left.stages,
        };
        for n in of_kind {
            let ranks = self.each.as_ref().map_or(0, |each| n * each[kind]);
            if ranks > left.ranks {
                break;
            }
            let left = Left { stages: left.stages - n, ranks: left.ranks - ranks };
            counts.push(n);
            if self.completions(counts, left) > 0 {
                self.spread(counts, left, prune, visit);
            }
            counts.pop();
        }
    }

    /// Compositions that begin with kinds of these counts.
    fn completions(&self, counts: &[u64], left: Left) -> u64 {
        let factorial = |n: u64| (1..=n).fold(1u64, u64::saturating_mul);
        if let Some(each) = &self.each {
            let used = each.iter().filter(|&&tp| tp > 0).count() as u64;
            let others: Vec<u64> =
                each[counts.len()..].iter().copied().filter(|&tp| tp > 0).collect();
            return ways(&others, left).saturating_mul(factorial(used));
        }
        let used = counts.iter().filter(|&&n| n > 0).count() as u64;
        if left.stages == 0 {
            return factorial(used);
        }
        let kinds = (self.kinds - counts.len()) as u64;
        (1..=kinds.min(left.stages))
            .map(|t| {
                choose(kinds, t)
                    .saturating_mul(choose(left.stages - 1, t - 1))
                    .saturating_mul(factorial(used + t))
            })
            .fold(0, u64::saturating_add)
    }
}

/// Ways in which kinds of these degrees hold some stages each.
fn ways(degrees: &[u64], left: Left) -> u64 {
    let Left { stages, ranks } = left;
    match *degrees {
        [] => u64::from(stages == 0 && ranks == 0),
        [tp] => u64::from(stages > 0 && stages * tp == ranks),
        [a, b] if a == b => u64::from(stages * a == ranks) * stages.saturating_sub(1),
        [a, b] => {
            // n a + (stages - n) b = ranks.
            let (more, each) = if a > b {
                (ranks.checked_sub(stages * b), a - b)
            } else {
                ((stages * b).checked_sub(ranks), b - a)
            };
            let of_first = more.filter(|more| more.is_multiple_of(each)).map(|more| more / each);
            u64::from(of_first.is_some_and(|n| n > 0 && n < stages))
        }
        [tp, ref others @ ..] => (1..stages)
            .take_while(|n| n * tp < ranks)
            .map(|n| ways(others, Left { stages: stages - n, ranks: ranks - n * tp }))
            .fold(0, u64::saturating_add),
    }
}

fn orders(left: &Composition, taken: &mut Composition, visit: &mut dyn FnMut(Walked<'_>)) {
    if left.is_empty() {
        visit(Walked::One(taken));
        return;
    }
    for i in 0..left.len() {
        let mut rest = left.clone();
        taken.push(rest.remove(i));
        orders(&rest, taken, visit);
        taken.pop();
    }
}

/// Ways to choose `k` of `n`.
fn choose(n: u64, k: u64) -> u64 {
    (0..k).fold(1u64, |c, i| c.saturating_mul(n - i) / (i + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::space::Each;

    /// Walks all compositions, those with an odd count cut where `odd`: how many were listed and how many cut.
    fn walked(of: &Counts, odd: bool, check: &dyn Fn(&Composition)) -> u64 {
        let mut n = 0;
        let prune = |counts: &[u64], _| {
            let cut = odd && counts.last().is_some_and(|n| n % 2 == 1);
            cut.then_some(Cut::Limits)
        };
        of.walk(&prune, &mut |step| match step {
            Walked::One(runs) => {
                check(runs);
                n += 1;
            }
            Walked::Cut(_, below) => n += below,
        });
        n
    }

    fn cell(pp: u64, tp: u64, each: Option<Each>) -> Cell {
        Cell { pp, tp, each, cp: 1, dp: 2 }
    }

    #[test]
    fn compositions_are_counted_as_they_are_listed() {
        for kinds in 1..=3 {
            for pp in 1..=6 {
                let of = Counts::new(&cell(pp, 1, None), kinds, 2 * pp);
                let stages =
                    |runs: &Composition| assert_eq!(runs.iter().map(|r| r.1).sum::<u64>(), pp);
                for odd in [false, true] {
                    let n = walked(&of, odd, &stages);
                    assert_eq!(n, of.count(), "{kinds} kinds, {pp} stages");
                }
            }
        }
        // Two kinds over three stages: each alone, and 1 + 2 and 2 + 1 in two orders.
        assert_eq!(Counts::new(&cell(3, 1, None), 2, 6).count(), 6);
    }

    #[test]
    fn kinds_with_degrees_of_their_own_fill_the_cluster() {
        let each = |degrees: [u32; 3]| {
            let mut all = [0; 8];
            all[..3].copy_from_slice(&degrees);
            all
        };
        for degrees in [[4, 2, 0], [4, 4, 2], [1, 2, 4], [0, 8, 1]] {
            for (pp, ranks) in (2..=9).flat_map(|pp| (2..=40).map(move |ranks| (pp, ranks))) {
                let of = Counts::new(&cell(pp, 8, Some(each(degrees))), 3, 2 * ranks);
                // Every choice of counts, tried.
                let mut tried = 0;
                for (a, b) in (0..=pp).flat_map(|a| (0..=pp - a).map(move |b| (a, b))) {
                    let counts = [a, b, pp - a - b];
                    let fills = (0..3).map(|k| counts[k] * u64::from(degrees[k])).sum::<u64>();
                    let held = (0..3).all(|k| (counts[k] > 0) == (degrees[k] > 0));
                    tried += u64::from(fills == ranks && held);
                }
                let orders = if degrees.contains(&0) { 2 } else { 6 };
                assert_eq!(of.count(), tried * orders, "{degrees:?}, {pp} stages, {ranks} ranks");
                for odd in [false, true] {
                    assert_eq!(walked(&of, odd, &|_| ()), of.count());
                }
            }
        }
    }
}
