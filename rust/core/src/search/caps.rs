//! How many layers each stage can hold within a time, on each kind of chip: what cuts compositions before they are listed.
//!
//! A stage's share of the step grows with its layers and with what memory makes it recompute. So a step of T seconds leaves
//! stage i on a kind room for a whole number of layers, wherever the other kinds stand, and a composition whose stages have
//! room for fewer than the model's layers takes longer than T. Before their order is known, n stages of a kind have at most
//! the n largest of its rooms.
//!
//! Where all stages save memory in one way (`stall::Way`), what they hold together is the most that any one way lets them
//! hold, not the sum of the most at each.

use super::counts::Composition;

/// In place of the layers of a stage that cannot hold any: no sum over stages makes up for it.
pub const NOTHING: i64 = -(1 << 32);

/// The layers that stages of a kind can hold in one way, by their place.
#[derive(Clone, Debug)]
pub struct Held {
    /// Of each stage.
    pub stages: Vec<i64>,
    /// Layers that they may hold beyond that together.
    pub more: i64,
}

impl Held {
    /// What all of them hold together.
    pub fn all(&self) -> i64 {
        self.stages.iter().sum::<i64>() + self.more
    }
}

/// The most layers of stages by kind and place, within a time.
#[derive(Clone, Debug)]
pub struct Caps {
    /// By kind and way, layers that the stages before each can hold together, the last entry all stages, and how many more.
    before: Vec<Vec<(Vec<i64>, i64)>>,
    /// By kind, the most that so many stages can hold, wherever they stand.
    most: Vec<Vec<i64>>,
    /// The same for stages of any of the kinds from one on.
    rest: Vec<Vec<i64>>,
    layers: i64,
}

/// Whether stages in this order could hold the model, if any could.
pub fn hold(caps: &Option<Caps>, runs: &Composition) -> bool {
    caps.as_ref().is_some_and(|caps| caps.hold(runs))
}

impl Caps {
    /// From what each kind holds in each way.
    pub fn new(held: Vec<Vec<Held>>, rest: Vec<Vec<i64>>, layers: i64) -> Caps {
        let of_kind = |ways: &Vec<Held>| {
            ways.iter().map(|held| (sums(&held.stages), held.more)).collect::<Vec<_>>()
        };
        Caps {
            before: held.iter().map(of_kind).collect(),
            most: held.into_iter().map(most_of_any).collect(),
            rest,
            layers,
        }
    }

    /// Whether stages of the first kinds, as many as `counts` says, and `left` of the others could hold the model in some order.
    pub fn hold_counts(&self, counts: &[u64], left: u64) -> bool {
        let first = counts.iter().zip(&self.most).map(|(&n, most)| most[n as usize]);
        first.sum::<i64>() + self.rest[counts.len()][left as usize] >= self.layers
    }

    /// Whether stages in this order could hold the model.
    pub fn hold(&self, runs: &Composition) -> bool {
        let mut first = 0;
        let held = runs.iter().map(|&(kind, stages)| {
            let last = first + stages as usize;
            let held = |(before, more): &(Vec<i64>, i64)| before[last] - before[first] + more;
            let most = self.before[kind].iter().map(held).max().unwrap_or(NOTHING);
            first = last;
            most
        });
        held.sum::<i64>() >= self.layers
    }
}

/// The most that so many stages of a kind can hold wherever they stand, in the best way for that number.
fn most_of_any(ways: Vec<Held>) -> Vec<i64> {
    let of_way = |held: Held| {
        let mut most = sums(&largest_first(held.stages));
        most[1..].iter_mut().for_each(|n| *n += held.more);
        most
    };
    let larger = |a: Vec<i64>, b: Vec<i64>| a.into_iter().zip(b).map(|(a, b)| a.max(b)).collect();
    ways.into_iter().map(of_way).reduce(larger).unwrap_or_default()
}

/// Sums over the first elements, from none to all.
pub fn sums(list: &[i64]) -> Vec<i64> {
    let mut sum = 0;
    let sums = list.iter().map(|n| {
        sum += n;
        sum
    });
    std::iter::once(0).chain(sums).collect()
}

/// The same, largest first.
pub fn largest_first(mut list: Vec<i64>) -> Vec<i64> {
    list.sort_unstable_by(|a, b| b.cmp(a));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three stages: on one kind they hold 3, 3 and 4 layers in one way, on the other 1, 1 and 2.
    fn caps(layers: i64) -> Caps {
        let held = [[3, 3, 4], [1, 1, 2]].map(|stages| vec![held(stages)]);
        let rest = vec![vec![0, 4, 7, 10], vec![0, 2, 3, 4], vec![0, NOTHING, 2 * NOTHING]];
        Caps::new(held.to_vec(), rest, layers)
    }

    fn held(stages: [i64; 3]) -> Held {
        Held { stages: stages.to_vec(), more: 0 }
    }

    #[test]
    fn stages_of_a_kind_hold_what_one_way_lets_them() {
        // 5 + 1 + 1 layers in one way and 2 + 2 + 2 in the other: 7 and no 5 + 2 + 2; two of them 6, of which the first is one,
        // or 4.
        let ways = vec![held([5, 1, 1]), held([2, 2, 2])];
        let rest = vec![vec![0; 4], vec![0; 4]];
        let caps = |layers| Caps::new(vec![ways.clone()], rest.clone(), layers);
        assert!(caps(7).hold(&vec![(0, 3)]) && !caps(8).hold(&vec![(0, 3)]));
        assert_eq!(most_of_any(ways.clone()), [0, 5, 6, 7]);
    }

    #[test]
    fn a_composition_holds_what_its_stages_hold_where_they_stand() {
        let orders = [vec![(0, 2), (1, 1)], vec![(1, 1), (0, 2)]];
        assert!(orders.iter().all(|runs| caps(8).hold(runs)));
        // 3 + 3 + 2 and 1 + 3 + 4 layers: not 9.
        assert!(orders.iter().all(|runs| !caps(9).hold(runs)));
        assert!(caps(10).hold(&vec![(0, 3)]) && !caps(11).hold(&vec![(0, 3)]));
    }

    #[test]
    fn counts_hold_what_their_best_places_hold() {
        // Two stages of the first kind hold 4 + 3, one of the second 2, wherever they stand: 9, though no order gives it.
        assert!(caps(9).hold_counts(&[2], 1) && caps(9).hold_counts(&[2, 1], 0));
        assert!(!caps(10).hold_counts(&[2], 1));
        // And there is no third kind.
        assert!(!caps(1).hold_counts(&[2, 0], 1));
    }
}
