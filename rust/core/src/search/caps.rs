//! How many layers each stage can hold within a time, on each kind of chip: what cuts compositions before they are listed.
//!
//! A stage's share of the step grows with its layers and with what memory makes it recompute. So a step of T seconds leaves
//! stage i on a kind room for a whole number of layers, wherever the other kinds stand, and a composition whose stages have
//! room for fewer than the model's layers takes longer than T. Before their order is known, n stages of a kind have at most
//! the n largest of its rooms.

use super::relax::{Question, Stages};
use super::report::Cut;
use super::room::{Allowed, Budget, Room};
use super::space::Composition;
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

/// The times that a path through the schedule passes a stage's forward and backward work, and the seconds that it spends
/// elsewhere.
#[derive(Clone, Copy)]
struct Path {
    forward: f64,
    backward: f64,
    elsewhere: f64,
}

/// The stages of a schedule, of any kind each, and what they can hold within a time.
pub struct Places<'q, 'p> {
    asked: &'q Question<'p>,
    /// What any stage costs at least, by kind.
    leasts: &'q [Option<Least>],
    /// Stages that there may be of each kind.
    offered: &'q [Stages],
    allowed: Allowed,
    /// Layers that a stage can hold while every other has one of each chunk.
    most: f64,
    /// Seconds of the first stage after its last pass, at least.
    tail: f64,
    /// Seconds of a layer of the first chunk on the fastest kind, where every stage has one.
    layer: f64,
    /// Seconds in which one micro-batch passes down and up, at least.
    once: f64,
    /// Layers of the most frequent sort.
    layers: i64,
}

impl<'q, 'p> Places<'q, 'p> {
    /// `leasts` and `offered` by kind; nothing where no kind can hold a stage.
    pub fn new(
        asked: &'q Question<'p>,
        leasts: &'q [Option<Least>],
        offered: &'q [Stages],
    ) -> Option<Places<'q, 'p>> {
        let (o, shape) = (&asked.problem.options, &asked.shape);
        let most = (u64::from(asked.problem.model.layers) - (shape.pp - 1) * shape.vpp) as f64;
        let hosts: &[bool] = if o.optimizer_offload { &[false, true] } else { &[false] };
        let mut least = [f64::INFINITY; 4];
        let (mut frequent, mut tail) = (None, f64::INFINITY);
        for of in leasts.iter().flatten() {
            let times = [of.layer, of.other, of.ends[0], of.ends[1]].map(Passes::both);
            least = [0, 1, 2, 3].map(|n| f64::min(least[n], times[n]));
            frequent = Some((of.frequent, of.others > 0));
            for &on_host in hosts {
                let line = asked.tail_line(of, asked.spot(of, 0), on_host);
                let fewest = if of.others > 0 { 0.0 } else { shape.vpp as f64 };
                tail =
                    tail.min(line.base + line.each * if line.each < 0.0 { most } else { fewest });
            }
        }
        let ([layer, other, first, last], (frequent, differ)) = (least, frequent?);
        Some(Places {
            asked,
            leasts,
            offered,
            allowed: Allowed::new(asked.problem, shape.pp),
            most,
            tail: tail.max(0.0),
            layer: if differ { 0.0 } else { layer },
            once: frequent as f64 * layer + other + first + last,
            layers: frequent as i64,
        })
    }

    /// The layers that stages can hold when a step takes at most `seconds`, unless all of them together cannot hold the model.
    pub fn within(&self, seconds: f64) -> Option<Caps> {
        let pp = self.asked.shape.pp as usize;
        let seconds = seconds * (1.0 + 1e-9) + 1e-9 - self.tail;
        let of_kind = |least: &Option<Least>| match least {
            Some(least) => (0..pp).map(|i| self.cap(least, i, seconds)).collect(),
            None => vec![NOTHING; pp],
        };
        let held: Vec<Vec<i64>> = self.leasts.iter().map(of_kind).collect();
        // The best of the kinds from one on: at each place, and of as many stages as there are of each.
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
        (rest[0][pp] >= self.layers).then(|| Caps {
            before: held.iter().map(|held| sums(held)).collect(),
            most: held.into_iter().map(|held| sums(&largest_first(held))).collect(),
            rest,
            layers: self.layers,
        })
    }

    /// A time that no plan undercuts, from one that is known to be none on: within it the stages cannot hold the model, within
    /// little more they could.
    pub fn bound(&self, from: Time, limit: Time) -> Result<Time, Cut> {
        let (mut bound, mut step) = (from, (from.0 / 64).max(1));
        loop {
            let next = Time(bound.0.saturating_add(step)).min(limit);
            if self.within(next.seconds()).is_some() {
                return Ok(bound);
            }
            if bound == from && self.within(f64::INFINITY).is_none() {
                return Err(Cut::Memory);
            }
            if next == limit {
                return Err(Cut::Bound);
            }
            (bound, step) = (next, 2 * step);
        }
    }

    /// The paths through the schedule that meet stage `i` most often (see [`super::bound::Tail`]).
    fn paths(&self, i: usize) -> [Path; 2] {
        let (m, pp) = (self.asked.shape.micro_batches as f64, self.asked.shape.pp as f64);
        let zero_bubble =
            matches!(self.asked.shape.schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
        // Each stage ahead passes a layer of its first chunk on, and back.
        let ahead = if zero_bubble { 0.0 } else { i as f64 * self.layer };
        let all = Path { forward: m, backward: m, elsewhere: ahead };
        let fill = |forward| Path { forward, backward: m - 1.0, elsewhere: self.once };
        match self.asked.shape.schedule {
            Schedule::OneFOneB => [all, fill(m - m.min(pp - i as f64))],
            Schedule::GPipe => [all, fill(m - 1.0)],
            Schedule::Interleaved | Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV => [all; 2],
        }
    }

    /// Layers that stage `i` can hold on a kind within the time.
    fn cap(&self, least: &Least, i: usize, seconds: f64) -> i64 {
        let spot = self.asked.spot(least, i);
        let paths = self.paths(i);
        let on_path = |path: &Path, passes: Passes| {
            path.forward * passes.forward + path.backward * passes.backward
        };
        let hosts = if self.asked.problem.options.optimizer_offload { 2 } else { 1 };
        let held = (0..hosts).map(|on_host| {
            let room = Room::new(least, spot, on_host);
            let within = paths.iter().map(|path| {
                let mut left = seconds - path.elsewhere;
                for (at, there) in [(0, spot.first), (1, spot.last)] {
                    if there {
                        left -= on_path(path, least.ends[at]);
                    }
                }
                let budget = Budget {
                    seconds: left,
                    layer: on_path(path, least.layer),
                    again: least.again.map(|again| path.backward * again),
                };
                room.most_within(&self.allowed, &budget)
            });
            within.fold(self.most, f64::min)
        });
        let held = (held.fold(f64::NEG_INFINITY, f64::max) + 1e-9).floor();
        if least.others > 0 {
            return held.max(0.0) as i64;
        }
        let chunks = self.asked.shape.vpp as i64;
        let held = held.max(0.0) as i64 / chunks * chunks;
        if held > 0 {
            held
        } else {
            NOTHING
        }
    }
}
