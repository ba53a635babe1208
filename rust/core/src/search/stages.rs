//! The best layer split, recompute and offload of one class, exactly.
//!
//! Stages are taken from the last to the first. A label is a lower bound on the clock of the stages from one to the last
//! ([`Tail`]); labels of the same layers and recompute are kept when none dominates them. Recompute is one choice a kind
//! of chip, unless the options ask for one a stage, so a label carries its kind's choice until the kind's first stage. The label with the smallest
//! end bounds the class from below, and its plan is estimated. Where the estimate is longer than the label, the class stays
//! open ([`Found::bound`] below its time) until the descent ([`super::descent`]) estimates every split whose bound is below the best
//! estimate: so the answer is the optimum of the estimate, not of the bound.

use super::bound::{Continuous, Shape, Tail, Work};
use super::holds::{Asked, Choice, Holds, Row, NONE};
use super::pace::{before, Pace, Passed};
use super::report::{Counters, Cut};
use super::watch::Watch;
use crate::estimate::pipeline::Sends;
use crate::estimate::stage::{Place, Table};
use crate::estimate::{sends, Step};
use crate::plan::{Plan, Recompute, Stage};
use crate::spec::problem::Schedule;
use crate::units::Time;

/// A class: degrees and schedule, and the kind of chip of each stage.
pub struct Class<'c, 'a> {
    /// What its stages can hold.
    pub holds: &'c Holds<'a>,
    /// Kind of each stage.
    pub kinds: &'c [usize],
    /// Asked whether to go on.
    pub watch: &'c Watch,
}

/// What is known of a class that matters, or why it does not.
pub enum Outcome {
    /// A plan.
    Found(Found),
    /// Cut.
    Cut(Cut),
}

/// A plan of a class.
pub struct Found {
    /// The plan.
    pub plan: Plan,
    /// Its time.
    pub time: Time,
    /// No plan of the class is faster than this; equal to `time` when the plan is the optimum.
    pub bound: Time,
}

/// Finds a plan of a class with a lower bound for all of them, unless none is as fast as `limit`.
pub fn solve(class: &Class<'_, '_>, limit: Time, counters: &mut Counters) -> Outcome {
    let mut best: Option<Found> = None;
    let mut cut = Cut::Memory;
    for way in class.ways() {
        let limit = best.as_ref().map_or(limit, |f| Time(f.time.0.saturating_sub(1)));
        match Solver::new(class, way, limit).run(counters) {
            Outcome::Found(found) => {
                best = Some(match best {
                    Some(f) if f.time <= found.time => {
                        Found { bound: f.bound.min(found.bound), ..f }
                    }
                    Some(f) => Found { bound: f.bound.min(found.bound), ..found },
                    None => found,
                });
            }
            // Whatever else was found, no bound holds for what was not reached.
            Outcome::Cut(Cut::Unreached) => return Outcome::Cut(Cut::Unreached),
            Outcome::Cut(Cut::Bound) => cut = Cut::Bound,
            Outcome::Cut(_) => {}
        }
    }
    best.map_or(Outcome::Cut(cut), Outcome::Found)
}

/// A lower bound for all plans of a class whose stages may differ, if any is as fast as `limit`.
pub fn least(class: &Class<'_, '_>, limit: Time, counters: &mut Counters) -> Result<Time, Cut> {
    let bounds = class.ways().map(|way| {
        let mut solver = Solver::new(class, way, limit);
        solver.best_split(counters).map(|(bound, _)| bound)
    });
    // Where one of them was not reached, nothing is known.
    bounds
        .reduce(|a, b| match (a, b) {
            (Err(Cut::Unreached), _) | (_, Err(Cut::Unreached)) => Err(Cut::Unreached),
            (Ok(a), Ok(b)) => Ok(a.min(b)),
            (Ok(bound), _) | (_, Ok(bound)) => Ok(bound),
            (Err(a), Err(b)) => Err(a.max(b)),
        })
        .expect("the stages share a row, and the optimizer has a place")
}

/// The row of chunks that stages share, and whether the optimizer is on the host.
pub type Way<'c> = (&'c Row, bool);

impl<'c> Class<'c, '_> {
    /// Whether the stages may differ in their layers or what they recompute.
    pub fn uneven(&self) -> bool {
        let (o, d) = (&self.holds.problem.options, &self.holds.degrees);
        let one_kind = self.kinds.iter().all(|&k| k == self.kinds[0]);
        let zero_bubble = matches!(d.schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
        let equal = zero_bubble || (one_kind && !o.uneven_layers);
        d.pp > 1 && (!equal || o.recompute_per_stage)
    }

    /// Every row of chunks with every place of the optimizer.
    pub(super) fn ways(&self) -> impl Iterator<Item = Way<'c>> + use<'c, '_> {
        let places: Vec<bool> = self.optimizer_offloads().collect();
        let with = move |row| places.clone().into_iter().map(move |on_host| (row, on_host));
        self.holds.rows.iter().flat_map(with)
    }

    pub(super) fn optimizer_offloads(&self) -> impl Iterator<Item = bool> {
        let allowed = self.holds.problem.options.optimizer_offload;
        [false, true].into_iter().filter(move |&offload| !offload || allowed)
    }
}

/// One class with one row of chunks, under one setting of the optimizer's place.
pub(super) struct Solver<'s, 'c, 'a> {
    pub class: &'s Class<'c, 'a>,
    pub shape: Shape,
    pub row: &'c Row,
    optimizer_offload: bool,
    pub limit: Time,
    sends: Sends,
    crossing: Vec<(Time, Time)>,
    /// Places for layers of one chunk row: what the stages share.
    pub layers: u32,
    /// Choices of each stage's kind that may be best; stages of one kind share the list.
    pub choices: Vec<Vec<Choice>>,
    /// Most layers of a chunk that each stage can hold under each choice.
    pub caps: Vec<Vec<u32>>,
    /// What each stage takes at least.
    pub paces: Vec<Pace>,
    /// What layers take at least where they lie, if each stage has one chunk.
    pub passed: Option<Passed>,
    memo: Vec<Vec<Option<Option<Work>>>>,
    /// Layers of a chunk, one more than each stage holds at most.
    widths: Vec<usize>,
    /// Whether a stage that does not fit has no work.
    memory: bool,
}

impl<'s, 'c, 'a> Solver<'s, 'c, 'a> {
    pub fn new(class: &'s Class<'c, 'a>, (row, optimizer_offload): Way<'c>, limit: Time) -> Self {
        let (problem, d) = (class.holds.problem, &class.holds.degrees);
        let shape = Shape {
            schedule: d.schedule,
            pp: d.pp,
            vpp: d.vpp,
            micro_batches: d.micro_batches(problem),
        };
        Solver {
            class,
            shape,
            row,
            optimizer_offload,
            limit,
            sends: sends(problem, d.schedule),
            crossing: class.holds.tables.sends(class.kinds),
            layers: row.layers,
            choices: Vec::new(),
            caps: Vec::new(),
            paces: Vec::new(),
            passed: None,
            memo: Vec::new(),
            widths: Vec::new(),
            memory: true,
        }
    }

    fn run(&mut self, counters: &mut Counters) -> Outcome {
        counters.bounds += 1;
        if self.continuous() > self.limit.seconds() * (1.0 + 1e-9) {
            return Outcome::Cut(Cut::Bound);
        }
        if self.class.uneven() {
            self.uneven(counters)
        } else {
            self.even(counters)
        }
    }

    /// The bound with fractional layers and no recompute.
    fn continuous(&self) -> f64 {
        let mut bound = Continuous::new(self.shape, false);
        for (i, &kind) in self.class.kinds.iter().enumerate().rev() {
            let sends = self.own_sends(i).seconds();
            bound.stage(self.class.holds.tables.kind(kind).unit(), sends);
        }
        let lacking = self.shape.lacking(0, self.row.ends.lead > 0);
        let layers = f64::from(self.class.holds.problem.model.layers);
        bound.bound(layers) - lacking * self.table(0).unit()
    }

    /// Time of one micro-batch that stage `i` spends in its sends to its neighbours; those between the last stage and the
    /// first are left out, as the first chunk passes none on.
    fn own_sends(&self, i: usize) -> Time {
        if self.sends == Sends::Overlapped {
            return Time::ZERO;
        }
        let down = if i + 1 < self.class.kinds.len() { self.crossing[i].0 } else { Time::ZERO };
        let up = if i > 0 { self.crossing[i].1 } else { Time::ZERO };
        (down + up) * self.shape.vpp
    }

    fn send_counts(&self, i: usize) -> (u64, u64) {
        let v = self.shape.vpp;
        (if i + 1 < self.class.kinds.len() { v } else { v - 1 }, if i > 0 { v } else { v - 1 })
    }

    pub fn place(&self, i: usize, first: u32, layers: u32, choice: Choice) -> Place {
        self.class.holds.place(self.row, (i, first), layers, choice, self.optimizer_offload)
    }

    /// The same of a stage of which only the number of its layers matters.
    pub fn alone(&self, i: usize, layers: u32, choice: Choice) -> Place {
        self.class.holds.alone(self.row, i, layers, choice, self.optimizer_offload)
    }

    /// Layers that stage `i` may hold at most under a choice of the list.
    pub fn most(&self, i: usize, choice: usize) -> u32 {
        self.class.holds.most(self.asked(i, choice))
    }

    fn asked(&self, index: usize, choice: usize) -> Asked<'c> {
        let (kind, optimizer_offload) = (self.class.kinds[index], self.optimizer_offload);
        Asked { row: self.row, kind, index, choice, optimizer_offload }
    }

    /// Layers of a chunk that stage `i` may hold at least.
    pub fn fewest(&self, i: usize) -> u32 {
        self.row.ends.fewest(i, self.shape.pp)
    }

    /// A stage's work, memory apart.
    pub fn work_at(&self, table: &Table<'_>, place: &Place) -> Work {
        let cost = table.in_unlimited_memory(place);
        let i = place.index as usize;
        let (down, up) = self.send_counts(i);
        let (to_next, to_previous) = self.crossing[i];
        let first = table.chunk(place, 0);
        let split = matches!(self.shape.schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
        let first_backward = if split { first.input_gradient } else { first.backward() };
        let until_input = if split {
            (0..place.vpp).map(|c| table.chunk(place, c).input_gradient).sum()
        } else {
            cost.backward
        };
        let last = i + 1 == self.class.kinds.len();
        let (forward, backward, out, back) = match self.sends {
            Sends::Blocking => (
                cost.forward + to_next * down,
                cost.backward + to_previous * up,
                if last { Time::ZERO } else { to_next },
                if i == 0 { Time::ZERO } else { to_previous },
            ),
            Sends::Overlapped => (
                cost.forward,
                cost.backward,
                if last { Time::ZERO } else { to_next },
                if last { Time::ZERO } else { self.crossing[i + 1].1 },
            ),
        };
        Work {
            forward,
            backward,
            first_forward: first.forward + out,
            first_backward: first_backward + back,
            until_input,
            tail: cost.tail(),
        }
    }

    /// Whether stage `i` and the one behind it recompute alike.
    pub fn tied(&self, i: usize) -> bool {
        let kinds = self.class.kinds;
        let apart = self.class.holds.problem.options.recompute_per_stage;
        !apart && i + 1 < kinds.len() && kinds[i] == kinds[i + 1]
    }

    fn table(&self, i: usize) -> &Table<'a> {
        self.class.holds.tables.kind(self.class.kinds[i])
    }

    /// A lower bound on the step of the plan with these stages.
    pub fn end(&self, stages: &[(u32, Choice)]) -> Time {
        let mut first = self.layers;
        let mut tail = Tail::default();
        for (i, &(layers, choice)) in stages.iter().enumerate().rev() {
            first -= layers;
            let work = self.work_at(self.table(i), &self.place(i, first, layers, choice));
            tail = tail.after(self.shape, i as u64, &work);
        }
        tail.end
    }

    /// Equal stages: the fastest choice that fits, of each family the first.
    fn even(&mut self, counters: &mut Counters) -> Outcome {
        let per_stage = self.layers / self.shape.pp as u32;
        let mut best: Option<(Plan, Time)> = None;
        let mut fits_somewhere = false;
        let mut settled: Vec<(std::mem::Discriminant<Recompute>, bool)> = Vec::new();
        let holds = self.class.holds;
        let stages = || (0..self.class.kinds.len()).rev();
        for &choice in &holds.choices {
            // Within a family more recompute or offload is never faster: the first that fits is its best.
            let family = (std::mem::discriminant(&choice.recompute), choice.offload > 0);
            if choice.depth() > per_stage || settled.contains(&family) {
                continue;
            }
            let place = |i: usize| self.place(i, i as u32 * per_stage, per_stage, choice);
            if !stages().all(|i| self.table(i).fits(&place(i))) {
                continue;
            }
            let tail = stages().fold(Tail::default(), |tail, i| {
                let work = self.work_at(self.table(i), &place(i));
                tail.after(self.shape, i as u64, &work)
            });
            settled.push(family);
            fits_somewhere = true;
            counters.bounds += 1;
            let limit = best.as_ref().map_or(self.limit, |(_, t)| self.limit.min(*t));
            if tail.end <= limit {
                let plan = self.plan(&vec![(per_stage, choice); self.class.kinds.len()]);
                let time = Step::new(&self.class.holds.tables, &plan).time;
                counters.estimates += 1;
                if time <= self.limit && best.as_ref().is_none_or(|(_, t)| time < *t) {
                    best = Some((plan, time));
                }
            }
            if choice.recompute == Recompute::None && choice.offload == 0 {
                // Nothing is faster than no recompute at all.
                break;
            }
        }
        match best {
            Some((plan, time)) => Outcome::Found(Found { plan, time, bound: time }),
            None => Outcome::Cut(if fits_somewhere { Cut::Bound } else { Cut::Memory }),
        }
    }

    pub fn plan(&self, stages: &[(u32, Choice)]) -> Plan {
        let mut plan = self.class.holds.degrees.clone();
        plan.optimizer_offload = self.optimizer_offload;
        let taken = |i: usize| self.row.ends.of_stage(i, self.shape.pp);
        plan.stages = stages
            .iter()
            .zip(self.class.kinds)
            .enumerate()
            .map(|(i, (&(layers, choice), &kind))| Stage {
                chip: kind as u32,
                layers: layers * plan.vpp as u32 - taken(i),
                recompute: choice.recompute,
                offload: choice.offload,
            })
            .collect();
        plan
    }

    /// The split whose label ends first, with that end: no other ends before it.
    fn best_split(&mut self, counters: &mut Counters) -> Result<(Time, Vec<(u32, Choice)>), Cut> {
        if !self.fast_enough() {
            return Err(Cut::Bound);
        }
        if !self.prepare_choices() {
            return Err(if self.holds_the_model() { Cut::Bound } else { Cut::Memory });
        }
        if !self.fast_enough_together(counters) {
            return Err(if self.class.watch.stopped() { Cut::Unreached } else { Cut::Bound });
        }
        let labels = self.labels(counters);
        if self.class.watch.stopped() {
            return Err(Cut::Unreached);
        }
        let roots = &labels[0][0];
        let Some(root) = (0..roots.len()).min_by_key(|&n| (roots[n].tail.end, n)) else {
            let any = self.limit == Time::MAX;
            return Err(if any { Cut::Memory } else { Cut::Bound });
        };
        let bound = roots[root].tail.end;
        let mut stages = Vec::with_capacity(labels.len());
        let (mut first, mut at) = (0u32, root);
        for (i, row) in labels.iter().enumerate() {
            let label = row[first as usize][at];
            stages.push((label.layers, self.choices[i][label.choice]));
            first += label.layers;
            at = label.next;
        }
        Ok((bound, stages))
    }

    /// Splits of any shape.
    fn uneven(&mut self, counters: &mut Counters) -> Outcome {
        let (bound, stages) = match self.best_split(counters) {
            Ok(found) => found,
            Err(reason) => return Outcome::Cut(reason),
        };
        let plan = self.plan(&stages);
        let time = Step::new(&self.class.holds.tables, &plan).time;
        counters.estimates += 1;
        Outcome::Found(Found { plan, time, bound })
    }

    /// Whether whole layers without recompute could meet the limit if memory were no matter.
    pub fn fast_enough(&mut self) -> bool {
        self.pace_stages();
        let caps = (0..self.paces.len()).map(|i| self.time_cap(i, Recompute::None));
        let (mut least, mut sum) = (u32::MAX, 0);
        for cap in caps {
            least = least.min(cap);
            sum += cap;
        }
        let whole = *before(&self.paces).last().expect("there is a stage");
        let (through, rounds) = self.ahead(&whole, self.paces.len(), self.layers, NONE);
        let turned = through + rounds;
        least > 0 && sum >= self.layers && turned <= self.limit
    }

    /// Whether some split without recompute meets the limit if memory were no matter: the programme with one choice, which
    /// cuts most classes at a small part of the cost of several.
    fn fast_enough_together(&mut self, counters: &mut Counters) -> bool {
        if self.limit == Time::MAX || self.choices.iter().all(|choices| choices.len() == 1) {
            return true;
        }
        let pp = self.class.kinds.len();
        let caps = (0..pp).map(|i| vec![self.time_cap(i, Recompute::None)]).collect();
        let kept = (
            std::mem::replace(&mut self.choices, vec![vec![NONE]; pp]),
            std::mem::replace(&mut self.caps, caps),
        );
        self.forget();
        self.memory = false;
        let labels = self.labels(counters);
        self.memory = true;
        (self.choices, self.caps) = kept;
        self.forget();
        !labels[0][0].is_empty()
    }

    /// Drops what is remembered of stages under other choices.
    fn forget(&mut self) {
        self.memo = vec![Vec::new(); self.class.kinds.len()];
        let most = |caps: &Vec<u32>| caps.iter().copied().max().unwrap_or(0);
        self.widths = self.caps.iter().map(|caps| most(caps) as usize + 1).collect();
    }

    /// Whether the stages hold the model under some choice, time apart.
    pub fn holds_the_model(&self) -> bool {
        let holds = self.class.holds;
        let kinds = self.class.kinds;
        let enough =
            |caps: &[u32]| caps.iter().all(|&c| c > 0) && caps.iter().sum::<u32>() >= self.layers;
        let ceiling = |i: usize| holds.ceiling(self.row, (kinds[i], i), self.optimizer_offload);
        let mut caps: Vec<u32> = (0..kinds.len()).map(ceiling).collect();
        if !enough(&caps) {
            return false;
        }
        caps.fill(0);
        // The deepest recompute last in each family holds most: from there on, until it is enough.
        (0..holds.choices.len()).rev().any(|n| {
            for (i, cap) in caps.iter_mut().enumerate() {
                *cap = (*cap).max(self.most(i, n));
            }
            enough(&caps)
        })
    }

    /// Fills `choices` and `caps`; false when the stages cannot hold the model within the limit.
    ///
    /// A choice is left out when the stages under it hold too little, or another that is never slower holds as much on every
    /// stage.
    pub fn prepare_choices(&mut self) -> bool {
        if self.paces.is_empty() {
            self.pace_stages();
        }
        let kinds = self.class.kinds;
        let pp = kinds.len();
        self.choices = vec![Vec::new(); pp];
        let mut caps: Vec<u32> = (0..pp).map(|i| self.time_cap(i, Recompute::None)).collect();
        self.caps = vec![Vec::new(); pp];
        let mut start = 0;
        while start < pp {
            let end = (start + 1..pp).find(|&i| !self.tied(i - 1)).unwrap_or(pp);
            let elsewhere = caps[..start].iter().chain(&caps[end..]).sum();
            let kept = self.choices_of(start, end, elsewhere);
            for i in start..end {
                self.choices[i] = kept.iter().map(|&(n, _)| self.class.holds.choices[n]).collect();
                self.caps[i] = kept.iter().map(|(_, caps)| caps[i - start]).collect();
                caps[i] = self.caps[i].iter().copied().max().unwrap_or(0);
            }
            start = end;
        }
        self.forget();
        caps.iter().all(|&c| c > 0) && caps.iter().sum::<u32>() >= self.layers
    }

    /// Choices of the stages `start..end` of one kind that may be best, with the layers that each of them holds, when the
    /// other stages hold at most `elsewhere`.
    fn choices_of(&self, start: usize, end: usize, elsewhere: u32) -> Vec<(usize, Vec<u32>)> {
        let holds = self.class.holds;
        let kind = self.class.kinds[start];
        let uniform = holds.tables.kind(kind).uniform();
        let enough = |caps: &[u32]| {
            caps.iter().all(|&c| c > 0) && caps.iter().sum::<u32>() + elsewhere >= self.layers
        };
        let deepest = (start..end).map(|i| self.time_cap(i, Recompute::None)).max().unwrap_or(0);
        let mut kept: Vec<(usize, Vec<u32>)> = Vec::new();
        let mut too_slow = None;
        for (n, choice) in holds.choices.iter().enumerate() {
            let family = std::mem::discriminant(&choice.recompute);
            if choice.depth() > deepest || too_slow == Some(family) {
                continue;
            }
            let mut caps: Vec<u32> =
                (start..end).map(|i| self.time_cap(i, choice.recompute)).collect();
            if !enough(&caps) {
                // What follows in its family is no faster.
                too_slow = Some(family);
                continue;
            }
            if caps.iter().all(|&cap| choice.depth() > cap) {
                // The same as to name all layers that it leaves time for.
                continue;
            }
            for (i, cap) in (start..end).zip(&mut caps) {
                if !holds.lightest(kind).fits(&self.alone(i, *cap, *choice)) {
                    *cap = self.most(i, n).min(*cap);
                }
            }
            let covers = |(other, held): &(usize, Vec<u32>)| {
                let holds_as_much = |(i, &cap): (usize, &u32)| {
                    if uniform {
                        held[i] >= cap
                    } else {
                        holds.sure(self.asked(start + i, *other)) >= cap
                    }
                };
                holds.choices[*other].leads(choice) && caps.iter().enumerate().all(holds_as_much)
            };
            if enough(&caps) && !kept.iter().any(covers) {
                kept.push((n, caps));
            }
        }
        kept
    }

    /// The work of stage `i`, remembered for all places from which the same layers follow.
    pub fn work(&mut self, i: usize, first: u32, layers: u32, choice: usize) -> Option<Work> {
        if layers < self.fewest(i) {
            return None;
        }
        let place = self.place(i, first, layers, self.choices[i][choice]);
        let width = self.widths[i];
        if self.memo[i].is_empty() {
            let starts = self.row.starts.iter().max().map_or(1, |&n| n + 1);
            self.memo[i] = vec![None; starts * width * self.choices[i].len()];
        }
        // Of the last stage its layers tell where it starts.
        let last = i + 1 == self.class.kinds.len();
        let start = if last { 0 } else { self.row.starts[first as usize] };
        let slot = (start * self.choices[i].len() + choice) * width + layers as usize;
        if let Some(known) = self.memo[i][slot] {
            return known;
        }
        let table = self.table(i);
        let fits = !self.memory || table.fits(&place);
        let work = fits.then(|| self.work_at(table, &place));
        self.memo[i][slot] = Some(work);
        work
    }
}
