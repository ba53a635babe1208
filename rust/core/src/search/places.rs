//! What the stages of a schedule can hold within a time, each on any kind of chip.
//!
//! The paths through the schedule that meet a stage most often leave it time for some layers, wherever the others are. And on one
//! kind of chip the others are somewhere: what the stages behind cannot hold lies before it, where each micro-batch passes first.

use super::bound::Shape;
use super::caps::{largest_first, sums, Caps, Held, NOTHING};
use super::paths::{paths, Once, Path};
use super::relax::{hosts, Question};
use super::report::Cut;
use super::room::{Allowed, Room, Spot};
use super::space::Stages;
use super::stall::{larger, lesser, Stall, Way};
use crate::estimate::least::{Least, Passes};
use crate::spec::problem::Schedule;
use crate::units::Time;
use std::ops::Range;

/// The stages of a schedule, on any kind each, and what they can hold within a time.
pub struct Places<'q> {
    /// By kind; nothing where it is not priced.
    kinds: Vec<Option<Kind>>,
    /// Stages that there may be of each kind.
    offered: &'q [Stages],
    shape: Shape,
    /// Layers of other sorts.
    others: usize,
    /// Whether all stages recompute alike: of several kinds each may do as it likes, and is taken to do so on each stage, which is
    /// quicker to say.
    tied: bool,
    /// Whether the ends of the model take places of layers, so that the first stage and the last hold any number of them.
    taken: bool,
    /// The ways to save memory.
    allowed: Allowed,
    /// Layers that a stage can hold while every other has one of each chunk.
    most: f64,
    /// Seconds of the first stage after its last pass, at least.
    tail: f64,
    /// Layers of the most frequent sort.
    layers: i64,
}

/// The stages of a pipeline on one kind.
struct Kind {
    stalls: Vec<[Option<Stall>; 2]>,
    /// Of each stage, or one for all of them where any schedule is meant: then none waits for others.
    paths: Vec<[Option<Path>; 3]>,
}

impl Kind {
    fn of(
        asked: &Question<'_>,
        least: &Least,
        (allowed, hosts): (&Allowed, &Range<usize>),
        one: &Once,
    ) -> Kind {
        let pp = asked.shape.pp as usize;
        let spots: Vec<Spot> = (0..pp).map(|i| asked.spot(least, i)).collect();
        let stalls = |spot: &Spot| {
            [0, 1].map(|on_host| {
                hosts.contains(&on_host).then(|| Room::new(least, *spot, on_host).stall(allowed))
            })
        };
        let told = if asked.any_schedule { 1 } else { pp };
        let paths = |(i, spot): (usize, &Spot)| paths(asked, (least, spot), i, one);
        Kind {
            stalls: spots.iter().map(stalls).collect(),
            paths: spots[..told].iter().enumerate().map(paths).collect(),
        }
    }

    /// A stage.
    fn place(&self, i: usize) -> Place<'_> {
        Place { stalls: &self.stalls[i], paths: &self.paths[i.min(self.paths.len() - 1)] }
    }

    /// All of them.
    fn places(&self) -> impl Iterator<Item = Place<'_>> {
        (0..self.stalls.len()).map(|i| self.place(i))
    }
}

/// What limits the layers of a stage on a kind: memory, with the optimizer's state on the device and, where that is allowed, on the
/// host, and the paths through the schedule.
#[derive(Clone, Copy)]
struct Place<'k> {
    stalls: &'k [Option<Stall>; 2],
    paths: &'k [Option<Path>; 3],
}

impl Place<'_> {
    /// The least of the paths.
    fn least(&self, of: impl Fn(&Path) -> f64) -> f64 {
        self.paths.iter().flatten().map(of).fold(f64::INFINITY, lesser)
    }

    /// The most layers within some seconds in whatever way suits the stage, with nothing known of what lies around it.
    fn most_in_any(&self, seconds: f64) -> f64 {
        let on_host = |stall| self.least(|path| path.pass.most_in_any(stall, seconds));
        self.stalls.iter().flatten().map(on_host).fold(f64::NEG_INFINITY, larger)
    }
}

/// Layers that lie at least before, and behind, each stage, because the others cannot hold them.
type Around = Vec<(f64, f64)>;

impl<'q> Places<'q> {
    /// `leasts` and `offered` by kind; nothing where no kind can hold a stage.
    pub fn new(
        asked: &Question<'_>,
        leasts: &[Option<Least>],
        offered: &'q [Stages],
    ) -> Option<Places<'q>> {
        let (o, shape) = (&asked.problem.options, asked.shape);
        let (most, taken) = (asked.most_layers(), asked.ends_take_places());
        // Zero-bubble stages end where their weights' gradients do; and chunks hide more of the end: one is not the least of all
        // schedules.
        let zero_bubble = matches!(shape.schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
        let ends_first = !zero_bubble && !asked.any_schedule;
        let mut least = [f64::INFINITY; 4];
        let (mut frequent, mut tail) = (None, f64::INFINITY);
        for of in leasts.iter().flatten() {
            let times = [of.layer, of.other, of.ends[0], of.ends[1]].map(Passes::both);
            least = [0, 1, 2, 3].map(|n| f64::min(least[n], times[n]));
            frequent = Some((of.frequent, of.others));
            for on_host in hosts(asked.problem, leasts, true).filter(|_| ends_first) {
                let line = asked.tail_line(of, asked.spot(of, 0), on_host == 1);
                let whole = shape.vpp - u64::from(taken);
                let fewest = if of.others > 0 { 0.0 } else { whole as f64 };
                let layers = if line.each < 0.0 { most } else { fewest };
                tail = tail.min(line.base + line.each * layers);
            }
        }
        let ([layer, other, first, last], (frequent, others)) = (least, frequent?);
        let once = frequent as f64 * layer + other + first + last;
        let one = Once { layer, once, others: others as f64 };
        let allowed = Allowed::new(asked.problem, shape.pp);
        let hosts = hosts(asked.problem, leasts, false);
        let of_kind = |least: &Least| Kind::of(asked, least, (&allowed, &hosts), &one);
        Some(Places {
            kinds: leasts.iter().map(|least| least.as_ref().map(of_kind)).collect(),
            offered,
            shape,
            others: others as usize,
            tied: leasts.len() == 1 && !o.recompute_per_stage,
            taken,
            allowed,
            most,
            tail: if tail.is_finite() { tail.max(0.0) } else { 0.0 },
            layers: frequent as i64,
        })
    }

    /// The layers that stages can hold when a step takes at most `seconds`, unless all of them together cannot hold the model.
    pub fn within(&self, seconds: f64) -> Option<Caps> {
        let held = self.held(seconds);
        let rest = self.rest(&held);
        (rest[0][self.shape.pp as usize] >= self.layers).then(|| Caps::new(held, rest, self.layers))
    }

    /// Whether the stages could hold the model when a step takes at most `seconds`.
    fn hold(&self, seconds: f64) -> bool {
        if let [kind] = &self.kinds[..] {
            let enough = self.offered[0].most >= self.shape.pp;
            let holds = |kind| {
                let mut ways = self.ways(kind, self.left(seconds));
                ways.any(|held| held.all() >= self.layers)
            };
            return enough && kind.as_ref().is_some_and(holds);
        }
        self.hold_on_any(self.left(seconds))
    }

    /// The same of several kinds, each stage on the one that holds most there, and of each as many as there are: what
    /// [`Places::within`] says, without what it remembers.
    fn hold_on_any(&self, seconds: f64) -> bool {
        let pp = self.shape.pp as usize;
        let mut any = vec![NOTHING; pp];
        let mut most = Vec::with_capacity(pp * self.kinds.len());
        for (kind, stages) in self.kinds.iter().zip(self.offered) {
            let known = most.len();
            let places = kind.iter().flat_map(Kind::places).enumerate();
            for ((i, place), any) in places.zip(&mut any) {
                let held = self.whole(i, place.most_in_any(seconds));
                *any = held.max(*any);
                most.push(held);
            }
            keep_largest(&mut most, known, stages.most as usize);
        }
        keep_largest(&mut most, 0, pp);
        let enough = |held: &[i64]| held.len() == pp && held.iter().sum::<i64>() >= self.layers;
        enough(&any) && enough(&most)
    }

    /// Whether they could if memory were no matter: quick, and mostly decisive.
    fn last(&self, seconds: f64) -> bool {
        let seconds = self.left(seconds);
        let of_place =
            |place: Place<'_>| place.least(|path| path.pass.lasts(0.0, seconds)).min(self.most);
        let best = |i: usize| {
            let kinds = self.kinds.iter().flatten().map(|kind| of_place(kind.place(i)));
            (kinds.fold(0.0, f64::max) + 1e-9) as i64
        };
        (0..self.shape.pp as usize).map(best).sum::<i64>() >= self.layers
    }

    /// What the passes have of so many seconds.
    fn left(&self, seconds: f64) -> f64 {
        seconds * (1.0 + 1e-9) + 1e-9 - self.tail
    }

    /// By kind and way, what each stage can hold; nothing of a kind that no stage can be on.
    fn held(&self, seconds: f64) -> Vec<Vec<Held>> {
        let seconds = self.left(seconds);
        let nothing = || Held { stages: vec![NOTHING; self.shape.pp as usize], more: 0 };
        let of_kind = |kind: &Option<Kind>| match kind {
            Some(kind) => self.ways(kind, seconds).collect(),
            None => vec![nothing()],
        };
        self.kinds.iter().map(of_kind).collect()
    }

    /// The most that each stage can hold on any kind, and how many more all together.
    fn best(&self, held: &[Vec<Held>]) -> (Vec<i64>, i64) {
        let all = || held.iter().flatten();
        let best = |i: usize| all().map(|held| held.stages[i]).max().unwrap_or(NOTHING);
        let more = held.iter().map(|ways| ways.iter().map(|held| held.more).max().unwrap_or(0));
        ((0..self.shape.pp as usize).map(best).collect(), more.sum())
    }

    /// What lies around each stage where stages hold so many layers; nothing if they cannot hold the model.
    fn around(&self, stages: &[i64], more: i64) -> Option<Around> {
        let sums = sums(stages);
        let all = sums[stages.len()] + more;
        (all >= self.layers).then(|| {
            let least = |held: i64| (self.layers - held).max(0) as f64;
            let of = |i: usize| (least(all - sums[i]), least(sums[i + 1] + more));
            (0..stages.len()).map(of).collect()
        })
    }

    /// What stages of one kind can hold, by the place of the optimizer's state and the way to save memory, which are the same on all
    /// of them; with no other kind, what they leave for each other is seen to.
    fn ways<'s>(&'s self, kind: &'s Kind, seconds: f64) -> impl Iterator<Item = Held> + 's {
        let alone = self.kinds.len() == 1;
        let simple = [
            (Way::Any, !self.tied),
            (Way::Plain, self.tied && self.allowed.none),
            (Way::Selective, self.tied && self.allowed.selective),
            (Way::Uniform, self.tied && self.allowed.uniform),
        ];
        let simple = simple.into_iter().filter(|way| way.1).map(|way| way.0);
        let block = self.tied && self.allowed.block;
        let depths = if block { self.depths(kind, seconds) } else { Vec::new() };
        let ways = simple.chain(depths.into_iter().map(Way::Block));
        let hosts = move |way| (0..2).map(move |host| (host, way));
        let allowed = ways.flat_map(hosts).filter(|(host, _)| kind.stalls[0][*host].is_some());
        allowed.map(move |(host, way)| {
            let first = self.held_in(kind, host, way, seconds, None);
            match self.around(&first.stages, first.more).filter(|_| alone) {
                Some(around) => self.held_in(kind, host, way, seconds, Some(&around)),
                None => first,
            }
        })
    }

    /// The same in one way, of which `around` is known.
    fn held_in(
        &self,
        kind: &Kind,
        host: usize,
        way: Way,
        seconds: f64,
        around: Option<&Around>,
    ) -> Held {
        let stages = |way: Way| -> Vec<i64> {
            let of = |(i, place): (usize, Place<'_>)| {
                let around = around.map_or((0.0, 0.0), |around| around[i]);
                // A chunk that lacks layers may have fewer than are recomputed of the others.
                let way = match way {
                    Way::Block(again) if self.takes(i) => Way::Spared(again),
                    of_all => of_all,
                };
                self.layers_of((i, place), host, way, (seconds, around))
            };
            kind.places().enumerate().map(of).collect()
        };
        let mut held = Held { stages: stages(way), more: 0 };
        if let (Way::Block(again), true) = (way, self.others > 0) {
            // Where one of other sorts is recomputed, the frequent ones may be spared: on as many stages as there are.
            let spared = stages(Way::Spared(again));
            let gains = spared.into_iter().zip(&held.stages).map(|(s, h)| s - h);
            held.more = largest_first(gains.collect()).iter().take(self.others).sum();
        }
        held
    }

    /// The numbers of a stage's layers that are worth recomputing in whole, as many of each chunk.
    fn depths(&self, kind: &Kind, seconds: f64) -> Vec<f64> {
        let chunks = self.shape.vpp as f64;
        let whole = (self.most / chunks).floor();
        if seconds.is_infinite() {
            // Where time does not matter, the more the better.
            return vec![whole * chunks];
        }
        // No stage recomputes more than it has time for.
        let lasts = |place: Place<'_>| place.least(|path| path.pass.lasts(0.0, seconds));
        let deepest = kind.places().map(lasts).fold(0.0, f64::max) / chunks;
        (1..=deepest.min(whole).max(1.0) as u64).map(|n| n as f64 * chunks).collect()
    }

    /// Whole layers of a stage within some seconds and with so many layers around it.
    fn layers_of(
        &self,
        (i, place): (usize, Place<'_>),
        host: usize,
        way: Way,
        (seconds, around): (f64, (f64, f64)),
    ) -> i64 {
        let Some(stall) = &place.stalls[host] else { return NOTHING };
        self.whole(i, place.least(|path| path.pass.most(stall, way, path.left(seconds, around))))
    }

    /// Whether an end of the model may take places of layers on a stage.
    fn takes(&self, i: usize) -> bool {
        self.taken && (i == 0 || i as u64 + 1 == self.shape.pp)
    }

    /// Whole layers of a stage, as many of each chunk where they do not differ.
    fn whole(&self, i: usize, held: f64) -> i64 {
        let held = (lesser(larger(held, 0.0), self.most) + 1e-9) as i64;
        if self.others > 0 {
            return held;
        }
        let chunks = self.shape.vpp as i64;
        let whole = match self.takes(i) {
            // An end lacks less than one of each chunk.
            true if held < chunks - 1 => 0,
            true => held,
            false => held / chunks * chunks,
        };
        if whole > 0 {
            whole
        } else {
            NOTHING
        }
    }

    /// The most that so many stages can hold of the kinds from one on: the best at each place, and of each kind as many as
    /// there are.
    fn rest(&self, held: &[Vec<Held>]) -> Vec<Vec<i64>> {
        let pp = self.shape.pp as usize;
        let mut any = vec![NOTHING; pp];
        let (mut more, mut most) = (0, vec![NOTHING; pp]);
        let mut rest = vec![sums(&any)];
        for (ways, stages) in held.iter().zip(self.offered).rev() {
            let (best, beyond) = self.best(std::slice::from_ref(ways));
            more += beyond;
            any.iter_mut().zip(&best).for_each(|(any, &n)| *any = n.max(*any));
            most.extend(largest_first(best).into_iter().take(stages.most as usize));
            most = largest_first(most);
            most.truncate(pp);
            let anywhere = sums(&largest_first(any.clone()));
            let both = anywhere.into_iter().zip(sums(&most)).map(|(a, b)| a.min(b));
            // No stages hold no more.
            rest.push(
                both.enumerate().map(|(n, sum)| if n > 0 { sum + more } else { 0 }).collect(),
            );
        }
        rest.reverse();
        rest
    }

    /// Why the stages cannot hold the model within `limit`, if they cannot.
    pub fn cut(&self, limit: Time) -> Option<Cut> {
        if !self.last(limit.seconds()) {
            return Some(Cut::Bound);
        }
        if self.hold(limit.seconds()) {
            return None;
        }
        let ever = self.hold(f64::INFINITY);
        Some(if ever { Cut::Bound } else { Cut::Memory })
    }

    /// A time that no plan undercuts, from one that is known to be none on: within it the stages cannot hold the model, within
    /// a time that is longer by a quarter of what is left to `limit` they could, or by little.
    pub fn bound(&self, from: Time, limit: Time) -> Result<Time, Cut> {
        if let Some(reason) = self.cut(limit) {
            return Err(reason);
        }
        let hold = |time: Time| self.last(time.seconds()) && self.hold(time.seconds());
        let little = (from.0 / LITTLE).max(1);
        if limit == Time::MAX {
            // Nothing is known of what is possible: a little more, and ever more.
            let (mut bound, mut step) = (from, little);
            loop {
                let next = Time(bound.0.saturating_add(step));
                if next >= limit || hold(next) {
                    return Ok(bound);
                }
                (bound, step) = (next, 2 * step);
            }
        }
        if self.kinds.len() == 1 {
            // The classes of one kind are few, and each has a better bound of its own.
            return Ok(from);
        }
        // From the limit downwards: what is close to it need not be looked at again when the limit falls.
        let mut above = limit.beyond(from).0 / 4 * 3;
        while above >= little {
            let next = from + Time(above);
            if !hold(next) {
                return Ok(next);
            }
            above /= 2;
        }
        Ok(from)
    }
}

/// The part of a bound that is little.
const LITTLE: u64 = 64;

/// Keeps only the `most` largest numbers from one place of a list on.
fn keep_largest(list: &mut Vec<i64>, from: usize, most: usize) {
    if list.len() - from > most {
        list[from..].select_nth_unstable_by(most, |a, b| b.cmp(a));
        list.truncate(from + most);
    }
}
