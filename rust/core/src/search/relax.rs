//! Lower bounds on every plan of a class, memory included, before any layer is placed.
//!
//! A stage that holds x layers needs at least some seconds a micro-batch: x times a layer's passes while everything fits,
//! more for what memory makes it recompute, and beyond some x nothing fits. The edges of that curve's lower convex hull are
//! its rungs. Let g_j(x_j) be the curves' values. Paths through the schedule say that a step T is at least
//! `sum_j c_ij g_j + tail_0` for every stage i, with `c_ij` the times that the path through stage i meets stage j; it ends
//! on the first stage, with that stage's tail. So for any `y_i >= 0` of sum Y, `T Y >= sum_j w_j g_j(x_j) + Y tail_0` with
//! `w_j = sum_i y_i c_ij`: the least of the right side over all `x` that add up to the model's layers is found by climbing the cheapest rungs first.
//! The y are chosen so that a layer without recompute weighs the same on every stage.

use super::bound::{Shape, Verdict};
use super::ends;
use super::room::{cheapest, Allowed, Room, Rung, Spot};
use super::weights::Weights;
use crate::estimate::least::{Least, Line, Passes};
use crate::estimate::memory::in_flight;
use crate::estimate::pipeline::Sends;
use crate::spec::problem::{Problem, Schedule};
use std::ops::Range;

/// What is asked about a class.
pub struct Question<'p> {
    /// The problem.
    pub problem: &'p Problem,
    /// Schedule and depth.
    pub shape: Shape,
    /// How sends meet computation.
    pub sends: Sends,
    /// Whether all stages hold equally many layers.
    pub even: bool,
    /// Asks for every schedule at once; `shape` then gives the depth alone.
    pub any_schedule: bool,
    /// Micro-batches of a step of which some are in flight: those of `shape`, or fewer where steps of several lengths are asked about.
    pub flying: u64,
    /// A bound above so many seconds need not be the best: memory is looked at below it alone.
    pub limit: f64,
}

impl Question<'_> {
    /// A bound for all plans whose stages are on `kinds`, one entry a stage; `leasts` by kind.
    pub fn bound(&self, leasts: &[Option<Least>], kinds: &[usize]) -> Verdict {
        let timed = !leasts.iter().flatten().all(Least::ends_at_once);
        let mut best = Verdict::Memory;
        for on_host in hosts(self.problem, leasts, timed) {
            let found = if self.even {
                self.equal(leasts, kinds, on_host)
            } else {
                match self.unequal(leasts, kinds, on_host) {
                    Verdict::Seconds(s)
                        if s <= self.limit && kinds.iter().any(|&k| k != kinds[0]) =>
                    {
                        let whole = rounded_down(self.whole_layers(leasts, kinds, 0.0));
                        Verdict::Seconds(s.max(whole))
                    }
                    other => other,
                }
            };
            best = match (best, found) {
                (Verdict::Seconds(a), Verdict::Seconds(b)) => Verdict::Seconds(a.min(b)),
                (Verdict::Memory, other) | (other, Verdict::Memory) => other,
            };
        }
        best
    }

    /// Whether every stage of 1F1B has steady work, however short the steps that are asked about.
    fn steady(&self) -> bool {
        self.flying > self.shape.pp
    }

    /// Whether the embedding may take a layer's place in the first chunk, and the head in the last.
    pub(super) fn ends_take_places(&self) -> bool {
        !self.even && !self.any_schedule && ends::leads(self.problem, self.shape.schedule)
    }

    /// Layers that a stage holds at most where the others hold as few as they may.
    pub(super) fn most_layers(&self) -> f64 {
        self.shape.most_layers(self.problem.model.layers, self.ends_take_places()) as f64
    }

    /// Layers that first chunks lack of an equal share of their stages', where that tells anything of what they hold.
    pub(super) fn lacking(&self, others: u64) -> Option<f64> {
        if self.any_schedule || self.shape.schedule != Schedule::Interleaved {
            return Some(0.0);
        }
        let lacking = self.shape.lacking(others, self.ends_take_places());
        let Shape { pp, vpp, .. } = self.shape;
        let share = f64::from(self.problem.model.layers) / (pp * vpp) as f64;
        (lacking < (pp - 1) as f64 * share).then_some(lacking)
    }

    pub(super) fn least<'l>(&self, leasts: &'l [Option<Least>], kind: usize) -> &'l Least {
        leasts[kind].as_ref().expect("a stage's kind is priced")
    }

    /// Whether stage `i` holds the embedding, and the head.
    fn ends(&self, i: usize) -> (bool, bool) {
        if self.any_schedule && self.shape.pp > 1 {
            return (false, false);
        }
        let last = match self.shape.schedule {
            Schedule::ZeroBubbleV => 0,
            _ => self.shape.pp as usize - 1,
        };
        (i == 0, i == last)
    }

    pub(super) fn spot(&self, least: &Least, i: usize) -> Spot {
        let spot = self.spot_with(least, i, self.flying);
        if self.flying == self.shape.micro_batches {
            return spot;
        }
        // Of most chunks more of more micro-batches are in flight, of the last of a zero-bubble V fewer.
        let other = self.spot_with(least, i, self.shape.micro_batches);
        let at_ends = [0, 1].map(|end| f64::min(spot.at_ends[end], other.at_ends[end]));
        let spared = spot.spared.max(other.spared);
        Spot { in_flight: spot.in_flight.min(other.in_flight), spared, at_ends, ..spot }
    }

    fn spot_with(&self, least: &Least, i: usize, micro_batches: u64) -> Spot {
        let Shape { schedule, pp, vpp, .. } = self.shape;
        let flying = in_flight(schedule, pp, vpp, i as u64, micro_batches);
        let (first, last) = self.ends(i);
        let in_flight = if self.any_schedule && least.others > 0 && pp > 1 {
            0.0
        } else if least.others == 0 {
            flying.passes() as f64 / vpp as f64
        } else {
            // The frequent layers may all lie in the chunks with fewest passes in flight.
            (0..vpp).map(|c| flying.of_chunk(c)).min().unwrap_or(0) as f64
        };
        // Of no matter where no end of the model stands.
        let at_ends =
            if first || last { [0, vpp - 1].map(|c| flying.of_chunk(c) as f64) } else { [0.0; 2] };
        // The layer that the first chunk lacks would be among those in flight longest.
        let spared = if i == 0 && least.others == 0 && self.ends_take_places() {
            flying.of_chunk(0) as f64 - in_flight
        } else {
            0.0
        };
        Spot { in_flight, spared, at_ends, first, last }
    }

    /// The same for neighbours from one stage to another: micro-batches in flight only grow or only fall along a pipeline.
    fn spot_of(&self, least: &Least, (first, last): (usize, usize)) -> Spot {
        let spot = self.spot(least, last);
        if first == last {
            return spot;
        }
        let other = self.spot(least, first);
        let spared = spot.spared.max(other.spared);
        Spot { in_flight: spot.in_flight.min(other.in_flight), spared, ..spot }
    }

    /// Seconds of a micro-batch that stage `i` spends in sends to neighbours of its kind.
    fn sends(&self, least: &Least, kinds: &[usize], i: usize) -> f64 {
        if self.any_schedule || self.sends == Sends::Overlapped {
            return 0.0;
        }
        let down = i + 1 < kinds.len() && kinds[i + 1] == kinds[i];
        let up = i > 0 && kinds[i - 1] == kinds[i];
        least.send * (u64::from(down) + u64::from(up)) as f64 * self.shape.vpp as f64
    }

    /// Stages with equally many layers: the longest of the paths that go down to one stage, through its work and back.
    fn equal(&self, leasts: &[Option<Least>], kinds: &[usize], on_host: usize) -> Verdict {
        let Shape { schedule, pp, vpp, micro_batches } = self.shape;
        let allowed = Allowed::new(self.problem, self.shape.pp);
        let m = micro_batches as f64;
        let layers = u64::from(self.problem.model.layers) / pp;
        let (mut longest, mut tail) = (0.0f64, 0.0);
        let mut ahead = 0.0;
        // What stages ahead pass on sooner than their work says.
        let mut sooner: f64 = 0.0;
        let zero_bubble = matches!(schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
        if pp > 1 && kinds.iter().all(|&k| k == kinds[0]) {
            let least = self.least(leasts, kinds[0]);
            let frequent = layers.saturating_sub(least.others).min(least.frequent) as f64;
            let most = f64::max(least.ends[0].both(), least.ends[1].both());
            let plain = rounded_down(m * (frequent * least.layer.both() + most));
            if plain > self.limit {
                return Verdict::Seconds(plain);
            }
        }
        for (i, &kind) in kinds.iter().enumerate() {
            let least = self.least(leasts, kind);
            if zero_bubble && i > 1 && i + 2 < kinds.len() {
                // No stage between waits longer than the last of them.
                ahead += self.passed_on(least, layers);
                continue;
            }
            let spot = self.spot(least, i);
            // Others may lie on other stages.
            let frequent =
                layers.saturating_sub(if pp > 1 { least.others } else { 0 }).min(least.frequent);
            let room = Room::new(least, spot, on_host);
            let Some(mut work) = room.seconds(&allowed, frequent as f64) else {
                return Verdict::Memory;
            };
            if pp == 1 {
                work += least.other.both();
            }
            work += self.sends(least, kinds, i);
            let mut forward = frequent as f64 * least.layer.forward;
            for (at, there) in [(0, spot.first), (1, spot.last)] {
                if there {
                    work += least.ends[at].both();
                    forward += least.ends[at].forward;
                }
            }
            if i == 0 || zero_bubble {
                let ends = (spot.first, spot.last);
                tail = least.tail(self.problem, (pp, vpp), frequent, ends, on_host == 1);
            }
            longest = longest.max((ahead - sooner).max(0.0) + m * work + tail);
            if rounded_down(longest) > self.limit {
                break;
            }
            if schedule == Schedule::Interleaved {
                sooner = sooner.max(self.shape.lacking(least.others, false) * least.slowest());
            }
            ahead += match schedule {
                Schedule::OneFOneB | Schedule::Interleaved => work / vpp as f64,
                Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV => self.passed_on(least, layers),
                Schedule::GPipe => forward,
            };
        }
        Verdict::Seconds(rounded_down(longest))
    }

    /// Seconds of a zero-bubble stage's first forward pass.
    fn passed_on(&self, least: &Least, layers: u64) -> f64 {
        if least.others > 0 && self.shape.vpp > 1 {
            return 0.0;
        }
        let frequent = layers.saturating_sub(least.others).min(least.frequent);
        frequent as f64 / self.shape.vpp as f64 * least.layer.forward
    }

    /// Stages with any numbers of layers: the weighted sum of the paths.
    fn unequal(&self, leasts: &[Option<Least>], kinds: &[usize], on_host: usize) -> Verdict {
        let allowed = Allowed::new(self.problem, self.shape.pp);
        let alike = self.alike(leasts, kinds, on_host, &allowed);
        if let Some((seconds, true)) = alike {
            return Verdict::Seconds(rounded_down(seconds));
        }
        let plain = alike.map(|(seconds, _)| seconds);
        if plain.is_some() && !self.could_hold(self.least(leasts, kinds[0]), on_host, &allowed) {
            return Verdict::Memory;
        }
        let lacking = self.lacking(self.least(leasts, kinds[0]).others);
        let weights = match plain {
            Some(_) => {
                let unit = self.least(leasts, kinds[0]).layer.both();
                let known = (lacking.is_none(), self.steady());
                Weights::of_equal(self.shape, self.any_schedule, unit, known)
            }
            None => {
                let unit = |&kind: &usize| self.least(leasts, kind).layer.both();
                let units: Vec<f64> = kinds.iter().map(unit).collect();
                let known = (lacking.is_none(), self.steady());
                Weights::new(self.shape, self.any_schedule, &units, known)
            }
        };
        let slowest = kinds.iter().map(|&k| self.least(leasts, k).slowest()).fold(0.0, f64::max);
        let sooner = lacking.unwrap_or(0.0) * slowest;
        let plain_or_none = plain.unwrap_or(0.0);
        let climb =
            Climb { leasts, kinds, on_host, allowed, weights, plain: plain_or_none, sooner };
        if plain.is_some() && kinds.len() > 2 * BLOCK {
            // Most are cut by a look at few stages, each of which stands for its neighbours.
            let few = self.climb(&climb, BLOCK);
            if !matches!(few, Verdict::Seconds(seconds) if seconds <= self.limit) {
                return few;
            }
        }
        self.climb(&climb, 1)
    }

    /// Whether stages of one kind could hold the model, had each the room of the one with the least in flight and no end.
    fn could_hold(&self, least: &Least, on_host: usize, allowed: &Allowed) -> bool {
        let pp = self.shape.pp;
        let limit = self.most_layers();
        let spot = self.spot_of(least, (0, pp as usize - 1));
        let spot = Spot { first: false, last: false, ..spot };
        let held = Room::new(least, spot, on_host).held(allowed, limit);
        held * pp as f64 >= least.frequent as f64
    }

    /// The weighted sum with the cheapest rungs of all stages; of the stages between the ends, each of `block` neighbours has the
    /// room of those with the most.
    fn climb(&self, climb: &Climb<'_>, block: usize) -> Verdict {
        let Climb { leasts, kinds, on_host, allowed, weights, plain, sooner } = climb;
        let limit = self.most_layers();
        let (mut fixed, mut lightest) = (0.0, f64::INFINITY);
        let mut lightest_ends = f64::INFINITY;
        // Layers that fit without recompute on the first stage, and on the others.
        let mut rooms = [0.0; 2];
        let (mut tail, mut again) = (Line::default(), f64::INFINITY);
        for (of, stages) in blocks(kinds.len(), block) {
            let i = of.1;
            let least = self.least(leasts, kinds[i]);
            again = again.min(allowed.again(least) / least.layer.both());
            let spot = self.spot_of(least, of);
            let w = weights.of(i);
            if i == 0 && !self.any_schedule {
                tail = self.tail_line(least, spot, *on_host == 1);
                fixed += weights.sum * tail.base;
            }
            fixed += stages * w * self.sends(least, kinds, i);
            for (at, there) in [(0, spot.first), (1, spot.last)] {
                if there {
                    fixed += w * least.ends[at].both();
                }
            }
            lightest = f64::min(lightest, w * least.other.both());
            lightest_ends = f64::min(lightest_ends, w * (least.ends[0] + least.ends[1]).both());
            let room = Room::new(least, spot, *on_host).most(0).min(limit) + 1e-9;
            rooms[usize::from(i > 0)] += stages * room.max(0.0).floor();
        }
        let some = self.least(leasts, kinds[0]);
        if some.other.both() > 0.0 {
            fixed += lightest;
        }
        if self.any_schedule && self.shape.pp > 1 {
            // They stand on some stages.
            fixed += lightest_ends;
        }
        // What a layer of the first stage adds to its tail: no reason to recompute as long as recompute costs more.
        let beside = weights.sum * tail.each;
        let frequent = some.frequent as f64;
        let plain_first = (allowed.none || allowed.block) && beside.abs() <= again;
        if plain_first && weights.level && rooms[0] + rooms[1] >= frequent {
            let first =
                if beside < 0.0 { rooms[0].min(frequent) } else { (frequent - rooms[1]).max(0.0) };
            fixed += frequent + first * beside;
            return Verdict::Seconds(rounded_down((fixed / weights.sum - sooner).max(*plain)));
        }
        let mut rungs: Vec<Rung> = Vec::with_capacity(2 * kinds.len() / block + 8);
        // The stage with the last rungs, where they begin, and how many stages share them.
        let mut shared: Option<(usize, Spot, usize, f64)> = None;
        for (of, stages) in blocks(kinds.len(), block) {
            let i = of.1;
            let kind = kinds[i];
            let least = self.least(leasts, kind);
            let spot = self.spot_of(least, of);
            if let Some((before, at, from, alike)) = &mut shared {
                if i > 1 && weights.level && *before == kind && *at == spot {
                    for rung in &mut rungs[*from..] {
                        rung.layers *= (*alike + stages) / *alike;
                    }
                    *alike += stages;
                    continue;
                }
            }
            shared = Some((kind, spot, rungs.len(), stages));
            let room = Room::new(least, spot, *on_host);
            let beside = if i == 0 { beside } else { 0.0 };
            room.climb(allowed, limit, |layers, slope| {
                rungs.push(Rung { layers: layers * stages, price: weights.of(i) * slope + beside });
            });
        }
        match cheapest(rungs, frequent) {
            Some(price) => {
                let seconds = (fixed + price) / weights.sum - sooner;
                Verdict::Seconds(rounded_down(seconds.max(*plain)))
            }
            None => Verdict::Memory,
        }
    }

    /// The same in closed form for stages of one kind: a bound without a look at memory, and whether another look is of
    /// no use: each stage could hold its share without recompute, or the bound is beyond the limit.
    fn alike(
        &self,
        leasts: &[Option<Least>],
        kinds: &[usize],
        on_host: usize,
        allowed: &Allowed,
    ) -> Option<(f64, bool)> {
        let least = self.least(leasts, kinds[0]);
        let Shape { pp, vpp, .. } = self.shape;
        if kinds.iter().any(|&k| k != kinds[0]) {
            return None;
        }
        let limit = self.most_layers();
        let (frequent, unit) = (least.frequent as f64, least.layer.both());
        let spot = self.spot(least, 0);
        let lacking = self.lacking(least.others);
        let known = (lacking.is_none(), self.steady());
        let sum = Weights::of_equal(self.shape, self.any_schedule, unit, known).sum;
        let blocking = !self.any_schedule && self.sends == Sends::Blocking;
        let sends = if blocking { 2.0 * ((pp - 1) * vpp) as f64 * least.send } else { 0.0 };
        let rest = sends + (least.other + least.ends[0] + least.ends[1]).both();
        let tail = if self.any_schedule {
            Line::default()
        } else {
            self.tail_line(least, spot, on_host == 1)
        };
        let beside = sum * tail.each;
        // The others may hold all layers, unless one on the first stage shortens its tail.
        let first = if beside < 0.0 { limit.min(frequent) } else { 0.0 };
        let relaxed = (frequent + rest / unit + first * beside) / sum + tail.base
            - lacking.unwrap_or(0.0) * unit;
        let bound = relaxed.max(self.whole_layers(leasts, kinds, rest));
        if rounded_down(bound) > self.limit {
            return Some((bound, true));
        }
        // The first stage has most micro-batches in flight; here it has both ends to hold too.
        let fullest = Spot { first: true, last: true, ..spot };
        let room = Room::new(least, fullest, on_host).most(0).min(limit).max(0.0).floor();
        let held = (allowed.none || allowed.block)
            && room * pp as f64 + 1e-6 >= frequent
            && beside.abs() <= allowed.again(least) / unit;
        Some((bound, held))
    }

    /// A bound for stages that hold whole layers, memory apart; `rest` are the seconds of a micro-batch besides layers.
    ///
    /// One micro-batch passes down and up through all layers, and on the stage where they take longest the others follow: with
    /// R for these, a stage holds as many layers as they last, and the fastest stages hold as many as they can. The least
    /// sum is at an R that some stage just meets.
    fn whole_layers(&self, leasts: &[Option<Least>], kinds: &[usize], rest: f64) -> f64 {
        let Shape { schedule, vpp, micro_batches, .. } = self.shape;
        let v = vpp as f64;
        // An end that takes places of layers lets its stage have one place of each chunk more in as much time.
        let spared = if self.ends_take_places() { 2.0 } else { 0.0 };
        let layers = u64::from(self.problem.model.layers).div_ceil(vpp) as f64 - spared;
        // Of each kind: seconds of a layer of every chunk passing through, of those that follow, and stages.
        let mut runs: Vec<(f64, f64, f64)> = Vec::with_capacity(leasts.len());
        for (kind, least) in leasts.iter().enumerate() {
            let stages = kinds.iter().filter(|&&k| k == kind).count() as f64;
            let Some(least) = least.as_ref().filter(|_| stages > 0.0) else { continue };
            if self.any_schedule || least.others > 0 {
                return 0.0;
            }
            let Passes { forward, backward } = least.layer;
            let (m, pp) = (micro_batches as f64, kinds.len() as f64);
            let (through, others) = match schedule {
                Schedule::OneFOneB => {
                    (forward + backward, (m - 1.0) * backward + (m - m.min(pp)) * forward)
                }
                Schedule::GPipe => (forward + backward, (m - 1.0) * (forward + backward)),
                _ => (0.0, m * (forward + backward)),
            };
            runs.push((through * v, others * v, stages));
        }
        runs.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let stages: f64 = runs.iter().map(|r| r.2).sum();
        if layers <= stages && spared > 0.0 {
            return 0.0;
        }
        let one_each: f64 = runs.iter().map(|r| r.0 * r.2).sum();
        let through_all = |seconds: f64| {
            let (mut left, mut through) = (layers - stages, one_each);
            for &(each, others, stages) in &runs {
                let most = if others > 0.0 { (seconds / others + 1e-9).floor() } else { layers };
                if most < 1.0 && spared == 0.0 {
                    return None;
                }
                let more = left.min(stages * (most - 1.0).max(0.0));
                through += more * each;
                left -= more;
            }
            (left <= 0.0).then_some(through)
        };
        let speed: f64 = runs.iter().map(|r| r.2 / r.1.max(1e-15)).sum();
        let least = layers / speed;
        let fastest = layers * runs[0].0;
        let mut best = f64::INFINITY;
        for &(_, others, _) in &runs {
            let mut most = (least / others.max(1e-15) - 1e-9).ceil().max(1.0);
            while most <= layers && most * others + fastest < best {
                if let Some(through) = through_all(most * others) {
                    best = best.min(most * others + through);
                }
                most += 1.0;
            }
        }
        let rest =
            if matches!(schedule, Schedule::OneFOneB | Schedule::GPipe) { rest } else { 0.0 };
        if best.is_finite() {
            best + rest
        } else {
            0.0
        }
    }

    /// A line below what the first stage needs after its last pass, over its layers.
    pub(super) fn tail_line(&self, least: &Least, spot: Spot, on_host: bool) -> Line {
        let Shape { pp, vpp, .. } = self.shape;
        let even = u64::from(self.problem.model.layers) / pp;
        let ends = (spot.first, spot.last);
        let at = |n| least.tail(self.problem, (pp, vpp), n, ends, on_host);
        // The tail is convex: the line through two neighbouring counts is below it at all others.
        let (a, b) = (at(even), at(even + 1));
        let base = a - (b - a) * even as f64;
        // Without a frequent layer the start of what they alone send falls away.
        let base = if least.others > 0 { base.min(at(0)) } else { base };
        Line { base, each: b - a }
    }
}

/// The places of the optimizer's state that a bound must look at: the device (0) and, where that is allowed, the host (1), which
/// is enough by itself where it spares memory and the end of the step is not `timed`.
pub(super) fn hosts(problem: &Problem, leasts: &[Option<Least>], timed: bool) -> Range<usize> {
    if !problem.options.optimizer_offload {
        return 0..1;
    }
    let alone = !timed && leasts.iter().flatten().all(Least::host_spares_memory);
    usize::from(alone)..2
}

/// What a bound by weighted paths is about; `plain` is a bound without a look at memory.
struct Climb<'a> {
    leasts: &'a [Option<Least>],
    kinds: &'a [usize],
    on_host: usize,
    allowed: Allowed,
    weights: Weights,
    plain: f64,
    /// Seconds by which first chunks pass a micro-batch on sooner than the weights say.
    sooner: f64,
}

/// Stages that a first look takes together.
const BLOCK: usize = 8;

/// The first and last stage of each block of neighbours, and how many it has; the ends of the pipeline stand alone.
fn blocks(stages: usize, block: usize) -> impl Iterator<Item = ((usize, usize), f64)> {
    let last = stages - 1;
    let between = (1..last).step_by(block).map(move |first| {
        let next = (first + block).min(last);
        ((first, next - 1), (next - first) as f64)
    });
    let end = (last > 0).then_some(((last, last), 1.0));
    std::iter::once(((0, 0), 1.0)).chain(between).chain(end)
}

/// Seconds less what rounding to whole picoseconds may have added to their parts.
pub(super) fn rounded_down(seconds: f64) -> f64 {
    debug_assert!(seconds.is_finite(), "a bound is a number");
    (seconds * (1.0 - 1e-9) - 1e-9).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::memory::InFlight;

    #[test]
    fn micro_batches_in_flight_only_grow_or_only_fall() {
        let all = [
            (Schedule::OneFOneB, 1),
            (Schedule::GPipe, 1),
            (Schedule::Interleaved, 2),
            (Schedule::Interleaved, 5),
            (Schedule::ZeroBubbleH1, 1),
            (Schedule::ZeroBubbleV, 2),
        ];
        for (schedule, vpp) in all {
            for (pp, m) in (2..=20).flat_map(|pp| (1..=50).map(move |m| (pp, m))) {
                let kept = |of: &dyn Fn(InFlight) -> u64| -> Vec<u64> {
                    (0..pp).map(|stage| of(in_flight(schedule, pp, vpp, stage, m))).collect()
                };
                let fewest = |f: InFlight| (0..vpp).map(|c| f.of_chunk(c)).min().unwrap_or(0);
                let all = kept(&InFlight::passes);
                assert!(all.iter().rev().is_sorted(), "{schedule:?}, {pp} stages, {m}: {all:?}");
                for kept in [all, kept(&fewest)] {
                    let one_way = kept.is_sorted() || kept.iter().rev().is_sorted();
                    assert!(one_way, "{schedule:?}, {pp} stages, {m} micro-batches: {kept:?}");
                }
            }
        }
    }

    #[test]
    fn blocks_hold_every_stage_once() {
        for (stages, block) in (1..40).flat_map(|n| (1..10).map(move |block| (n, block))) {
            let mut next = 0;
            for ((first, last), n) in blocks(stages, block) {
                assert_eq!((first, (last - first + 1) as f64), (next, n));
                assert!(n == 1.0 || (first > 0 && last + 1 < stages));
                next = last + 1;
            }
            assert_eq!(next, stages);
        }
    }
}
