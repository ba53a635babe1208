//! How many layers each stage can hold within a time, on each kind of chip: what cuts compositions before they are listed.
//!
//! A stage's share of the step grows with its layers and with what memory makes it recompute. So a step of T seconds leaves
//! stage i on a kind room for a whole number of layers, wherever the other kinds stand, and a composition whose stages have
//! room for fewer than the model's layers takes longer than T. Before their order is known, n stages of a kind have at most
//! the n largest of its rooms.

use super::bound::Shape;
use super::counts::Composition;
use super::relax::{Question, Stages};
use super::report::Cut;
use super::room::{Allowed, Pass, Room, Stall};
use crate::estimate::least::{Least, Passes};
use crate::spec::problem::Schedule;
use crate::units::Time;

/// In place of the layers of a stage that cannot hold any: no sum over stages makes up for it.
const NOTHING: i64 = -(1 << 32);

/// The most layers of stages by kind and place, within a time.
#[derive(Clone, Debug)]
pub struct Caps {
    /// By kind, layers that the stages before each can hold together; the last entry, all stages.
    before: Vec<Vec<i64>>,
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
            let before = &self.before[kind];
            let held = before[last] - before[first];
            first = last;
            held
        });
        held.sum::<i64>() >= self.layers
    }
}

/// Sums over the first elements, from none to all.
fn sums(list: &[i64]) -> Vec<i64> {
    let mut sum = 0;
    let sums = list.iter().map(|n| {
        sum += n;
        sum
    });
    std::iter::once(0).chain(sums).collect()
}

fn largest_first(mut list: Vec<i64>) -> Vec<i64> {
    list.sort_unstable_by(|a, b| b.cmp(a));
    list
}

/// The stages of a schedule, on any kind each, and what they can hold within a time.
pub struct Places<'q> {
    /// By kind; nothing where it is not priced.
    kinds: Vec<Option<Vec<Place>>>,
    /// Stages that there may be of each kind.
    offered: &'q [Stages],
    shape: Shape,
    /// Whether layers differ.
    differ: bool,
    /// Layers that a stage can hold while every other has one of each chunk.
    most: f64,
    /// Seconds of the first stage after its last pass, at least.
    tail: f64,
    /// Layers of the most frequent sort.
    layers: i64,
}

/// What limits the layers of a stage on a kind: memory and two paths through the schedule, with the optimizer's state on the
/// device and, where that is allowed, on the host.
type Place = [Option<(Stall, [Pass; 2])>; 2];

/// What one micro-batch takes at least, on any kind.
struct Once {
    /// A layer of the first chunk, where every stage has one.
    layer: f64,
    /// All of the model.
    once: f64,
}

impl<'q> Places<'q> {
    /// `leasts` and `offered` by kind; nothing where no kind can hold a stage.
    pub fn new(
        asked: &Question<'_>,
        leasts: &[Option<Least>],
        offered: &'q [Stages],
    ) -> Option<Places<'q>> {
        let (o, shape) = (&asked.problem.options, asked.shape);
        let most = (u64::from(asked.problem.model.layers) - (shape.pp - 1) * shape.vpp) as f64;
        let hosts = if o.optimizer_offload { 2 } else { 1 };
        // Zero-bubble stages end where their weights' gradients do; and chunks hide more of the end: one is not the least of all
        // schedules.
        let zero_bubble = matches!(shape.schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
        let ends_first = !zero_bubble && !asked.any_schedule;
        let mut least = [f64::INFINITY; 4];
        let (mut frequent, mut tail) = (None, f64::INFINITY);
        for of in leasts.iter().flatten() {
            let times = [of.layer, of.other, of.ends[0], of.ends[1]].map(Passes::both);
            least = [0, 1, 2, 3].map(|n| f64::min(least[n], times[n]));
            frequent = Some((of.frequent, of.others > 0));
            for on_host in (0..hosts).filter(|_| ends_first) {
                let line = asked.tail_line(of, asked.spot(of, 0), on_host == 1);
                let fewest = if of.others > 0 { 0.0 } else { shape.vpp as f64 };
                let layers = if line.each < 0.0 { most } else { fewest };
                tail = tail.min(line.base + line.each * layers);
            }
        }
        let ([layer, other, first, last], (frequent, differ)) = (least, frequent?);
        let once = frequent as f64 * layer + other + first + last;
        let one = Once { layer: if differ { 0.0 } else { layer }, once };
        let allowed = Allowed::new(asked.problem, shape.pp);
        let of_kind = |least: &Least| {
            (0..shape.pp as usize).map(|i| place(asked, least, i, &allowed, &one, hosts)).collect()
        };
        Some(Places {
            kinds: leasts.iter().map(|least| least.as_ref().map(of_kind)).collect(),
            offered,
            shape,
            differ,
            most,
            tail: if tail.is_finite() { tail.max(0.0) } else { 0.0 },
            layers: frequent as i64,
        })
    }

    /// The layers that stages can hold when a step takes at most `seconds`, unless all of them together cannot hold the model.
    pub fn within(&self, seconds: f64) -> Option<Caps> {
        let held = self.held(seconds);
        let rest = self.rest(&held);
        (rest[0][self.shape.pp as usize] >= self.layers).then(|| Caps {
            before: held.iter().map(|held| sums(held)).collect(),
            most: held.into_iter().map(|held| sums(&largest_first(held))).collect(),
            rest,
            layers: self.layers,
        })
    }

    /// Whether the stages could hold the model when a step takes at most `seconds`.
    fn hold(&self, seconds: f64) -> bool {
        let held = self.held(seconds);
        let best = |i: usize| held.iter().map(|held| held[i]).max().unwrap_or(NOTHING);
        let pp = self.shape.pp as usize;
        (0..pp).map(best).sum::<i64>() >= self.layers
            && (self.offered.iter().all(|s| s.most >= self.shape.pp)
                || self.rest(&held)[0][pp] >= self.layers)
    }

    /// By kind, what each stage can hold.
    fn held(&self, seconds: f64) -> Vec<Vec<i64>> {
        let seconds = seconds * (1.0 + 1e-9) + 1e-9 - self.tail;
        let of_kind = |places: &Option<Vec<Place>>| match places {
            Some(places) => places.iter().map(|place| self.layers_of(place, seconds)).collect(),
            None => vec![NOTHING; self.shape.pp as usize],
        };
        self.kinds.iter().map(of_kind).collect()
    }

    fn layers_of(&self, place: &Place, seconds: f64) -> i64 {
        let held = place
            .iter()
            .flatten()
            .map(|(stall, [a, b])| a.most(stall, seconds).min(b.most(stall, seconds)));
        let held = (held.fold(0.0, f64::max).min(self.most) + 1e-9) as i64;
        if self.differ {
            return held;
        }
        let chunks = self.shape.vpp as i64;
        match held / chunks * chunks {
            0 => NOTHING,
            whole => whole,
        }
    }

    /// The most that so many stages can hold of the kinds from one on: the best at each place, and of each kind as many as
    /// there are.
    fn rest(&self, held: &[Vec<i64>]) -> Vec<Vec<i64>> {
        let pp = self.shape.pp as usize;
        let mut any = vec![NOTHING; pp];
        let mut most = vec![NOTHING; pp];
        let mut rest = vec![sums(&any)];
        for (held, stages) in held.iter().zip(self.offered).rev() {
            any.iter_mut().zip(held).for_each(|(any, &n)| *any = n.max(*any));
            most.extend(largest_first(held.clone()).into_iter().take(stages.most as usize));
            most = largest_first(most);
            most.truncate(pp);
            let anywhere = sums(&largest_first(any.clone()));
            rest.push(anywhere.into_iter().zip(sums(&most)).map(|(a, b)| a.min(b)).collect());
        }
        rest.reverse();
        rest
    }

    /// A time that no plan undercuts, from one that is known to be none on: within it the stages cannot hold the model, within
    /// little more they could.
    pub fn bound(&self, from: Time, limit: Time) -> Result<Time, Cut> {
        if !self.hold(limit.seconds()) {
            let ever = self.hold(f64::INFINITY);
            return Err(if ever { Cut::Bound } else { Cut::Memory });
        }
        let (mut bound, mut step) = (from, (from.0 / 64).max(1));
        loop {
            let next = Time(bound.0.saturating_add(step)).min(limit);
            if next == limit || self.hold(next.seconds()) {
                return Ok(bound);
            }
            (bound, step) = (next, 2 * step);
        }
    }
}

/// What limits stage `i` on a kind.
fn place(
    asked: &Question<'_>,
    least: &Least,
    i: usize,
    allowed: &Allowed,
    one: &Once,
    hosts: usize,
) -> Place {
    let spot = asked.spot(least, i);
    let pass = |(forward, backward, elsewhere): (f64, f64, f64), stall: &Stall| {
        let on_path = |p: Passes| forward * p.forward + backward * p.backward;
        let ends = [(0, spot.first), (1, spot.last)].into_iter().filter(|end| end.1);
        let ends: f64 = ends.map(|(at, _)| on_path(least.ends[at])).sum();
        let again = least.again.map(|again| backward * again);
        Pass::new(elsewhere + ends, on_path(least.layer), again, stall)
    };
    let paths = paths(asked, one, i);
    [0, 1].map(|on_host| {
        (on_host < hosts).then(|| {
            let stall = Room::new(least, spot, on_host).stall(allowed);
            (stall, paths.map(|path| pass(path, &stall)))
        })
    })
}

/// The paths through the schedule that meet stage `i` most often (see [`super::bound::Tail`]): how many of its forward and
/// of its backward passes, and the seconds elsewhere.
fn paths(asked: &Question<'_>, one: &Once, i: usize) -> [(f64, f64, f64); 2] {
    let (m, pp) = (asked.shape.micro_batches as f64, asked.shape.pp as f64);
    if asked.any_schedule {
        return [(m, m, 0.0); 2];
    }
    // Each stage ahead passes a layer of its first chunk on, and back.
    let all = (m, m, i as f64 * one.layer);
    match asked.shape.schedule {
        Schedule::OneFOneB => [all, (m - m.min(pp - i as f64), m - 1.0, one.once)],
        Schedule::GPipe => [all, (m - 1.0, m - 1.0, one.once)],
        Schedule::Interleaved => [all; 2],
        Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV => [(m, m, 0.0); 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three stages: on one kind they hold 3, 3 and 4 layers, on the other 1, 1 and 2.
    fn caps(layers: i64) -> Caps {
        let held = [vec![3, 3, 4], vec![1, 1, 2]];
        Caps {
            before: held.iter().map(|held| sums(held)).collect(),
            most: held.iter().map(|held| sums(&largest_first(held.clone()))).collect(),
            rest: vec![vec![0, 4, 7, 10], vec![0, 2, 3, 4], vec![0, NOTHING, 2 * NOTHING]],
            layers,
        }
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
