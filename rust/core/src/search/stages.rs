//! The best layer split, recompute and offload of one class, exactly.
//!
//! Stages are taken from the last to the first. A label is a lower bound on the clock of the stages from one to the last
//! ([`Tail`]); labels of the same layers and recompute are kept when none dominates them. Recompute is one choice a kind
//! of chip, so a label carries its kind's choice until the kind's first stage. The label with the smallest
//! end bounds the class from below, and its plan is estimated. Where the estimate is longer than the label, the class stays
//! open ([`Found::bound`] below its time) until the descent ([`super::descent`]) estimates every split whose bound is below the best
//! estimate: so the answer is the optimum of the estimate, not of the bound.

use super::bound::{Continuous, Shape, Tail, Work};
use super::holds::{largest, Choice, Holds};
use super::report::{Counters, Cut};
use crate::estimate::pipeline::Sends;
use crate::estimate::stage::{Place, Table};
use crate::estimate::{sends, Step};
use crate::plan::{Plan, Recompute, Stage};
use crate::spec::problem::Schedule;
use crate::units::Time;

/// A class: degrees and schedule, and the kind of chip of each stage.
pub struct Class<'c, 't, 'a> {
    /// What its stages can hold.
    pub holds: &'c Holds<'t, 'a>,
    /// Kind of each stage.
    pub kinds: &'c [usize],
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

/// Labels by stage, then by the layers before it.
pub(super) type Labels = Vec<Vec<Vec<Label>>>;

#[derive(Clone, Copy, Debug)]
pub(super) struct Label {
    /// Paths through the stages from this one on.
    pub tail: Tail,
    /// Layers of a chunk.
    pub layers: u32,
    /// Index of its choice.
    pub choice: usize,
    /// Index of the label of the next stage.
    next: usize,
}

/// Finds a plan of a class with a lower bound for all of them, unless none is as fast as `limit`.
pub fn solve(class: &Class<'_, '_, '_>, limit: Time, counters: &mut Counters) -> Outcome {
    let mut best: Option<Found> = None;
    let mut cut = Cut::Memory;
    for optimizer_offload in class.optimizer_offloads() {
        let limit = best.as_ref().map_or(limit, |f| Time(f.time.0.saturating_sub(1)));
        match Solver::new(class, optimizer_offload, limit).run(counters) {
            Outcome::Found(found) => {
                best = Some(match best {
                    Some(f) if f.time <= found.time => {
                        Found { bound: f.bound.min(found.bound), ..f }
                    }
                    Some(f) => Found { bound: f.bound.min(found.bound), ..found },
                    None => found,
                });
            }
            Outcome::Cut(Cut::Bound) => cut = Cut::Bound,
            Outcome::Cut(_) => {}
        }
    }
    best.map_or(Outcome::Cut(cut), Outcome::Found)
}

impl Class<'_, '_, '_> {
    pub(super) fn optimizer_offloads(&self) -> impl Iterator<Item = bool> {
        let allowed = self.holds.problem.options.optimizer_offload;
        [false, true].into_iter().filter(move |&offload| !offload || allowed)
    }
}

/// One class under one setting of the optimizer's place.
pub(super) struct Solver<'s, 'c, 't, 'a> {
    pub class: &'s Class<'c, 't, 'a>,
    pub shape: Shape,
    optimizer_offload: bool,
    limit: Time,
    sends: Sends,
    crossing: Vec<(Time, Time)>,
    /// Layers of one chunk row: what the stages share.
    pub layers: u32,
    /// Choices of each stage's kind that may be best; stages of one kind share the list.
    pub choices: Vec<Vec<Choice>>,
    /// Most layers of a chunk that each stage can hold under each choice.
    pub caps: Vec<Vec<u32>>,
    /// Most layers of a chunk that each stage passes within the limit, memory apart.
    time_caps: Vec<u32>,
    memo: Vec<Vec<Option<Option<Work>>>>,
    /// Whether a stage that does not fit has no work.
    memory: bool,
}

impl<'s, 'c, 't, 'a> Solver<'s, 'c, 't, 'a> {
    pub fn new(class: &'s Class<'c, 't, 'a>, optimizer_offload: bool, limit: Time) -> Self {
        let (problem, d) = (class.holds.problem, &class.holds.degrees);
        let shape = Shape {
            schedule: d.schedule,
            pp: d.pp,
            vpp: d.vpp,
            micro_batches: d.micro_batches(problem),
        };
        let layers = class.holds.layers;
        Solver {
            class,
            shape,
            optimizer_offload,
            limit,
            sends: sends(problem, d.schedule),
            crossing: class.holds.tables.sends(d.devices_per_stage(), class.kinds),
            layers,
            choices: Vec::new(),
            caps: Vec::new(),
            time_caps: vec![class.holds.all(); class.kinds.len()],
            memo: Vec::new(),
            memory: true,
        }
    }

    fn run(&mut self, counters: &mut Counters) -> Outcome {
        counters.bounds += 1;
        if self.continuous() > self.limit.seconds() * (1.0 + 1e-9) {
            return Outcome::Cut(Cut::Bound);
        }
        let o = &self.class.holds.problem.options;
        let one_kind = self.class.kinds.iter().all(|&k| k == self.class.kinds[0]);
        let zero_bubble =
            matches!(self.shape.schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
        if zero_bubble || (one_kind && !o.uneven_layers) || self.shape.pp == 1 {
            self.even(counters)
        } else {
            self.uneven(counters)
        }
    }

    /// The bound with fractional layers and no recompute.
    fn continuous(&self) -> f64 {
        let mut bound = Continuous::new(self.shape);
        for (i, &kind) in self.class.kinds.iter().enumerate().rev() {
            let sends = self.own_sends(i).seconds();
            bound.stage(self.class.holds.tables.kind(kind).unit(), sends);
        }
        bound.bound(f64::from(self.class.holds.problem.model.layers))
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

    fn place(&self, i: usize, first: u32, layers: u32, choice: Choice) -> Place {
        self.class.holds.place(i, first, layers, choice, self.optimizer_offload)
    }

    /// Layers that stage `i` may hold at most under a choice of the list.
    pub fn most(&self, i: usize, choice: usize) -> u32 {
        self.class.holds.most(self.class.kinds[i], i, choice, self.optimizer_offload)
    }

    /// A stage's work, or nothing when it does not fit.
    fn price(&self, table: &Table<'_>, place: &Place) -> Option<Work> {
        let (work, fits) = self.work_at(table, place);
        fits.then_some(work)
    }

    /// A stage's work, and whether it fits.
    fn work_at(&self, table: &Table<'_>, place: &Place) -> (Work, bool) {
        let cost = table.stage(place);
        let fits = cost.memory.allocated() <= table.capacity();
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
        let work = Work {
            forward,
            backward,
            first_forward: first.forward + out,
            first_backward: first_backward + back,
            until_input,
            tail: cost.tail(),
        };
        (work, fits)
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
            let (work, _) = self.work_at(self.table(i), &self.place(i, first, layers, choice));
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
        for (n, &choice) in holds.choices.iter().enumerate() {
            if choice.depth() > per_stage
                || (0..self.class.kinds.len()).any(|i| self.most(i, n) < per_stage)
            {
                continue;
            }
            // Within a family more recompute or offload is never faster: the first that fits is its best.
            let family = (std::mem::discriminant(&choice.recompute), choice.offload > 0);
            if settled.contains(&family) {
                continue;
            }
            let mut tail = Tail::default();
            let fits = (0..self.class.kinds.len()).rev().all(|i| {
                let place = self.place(i, i as u32 * per_stage, per_stage, choice);
                let work = self.price(self.table(i), &place);
                if let Some(work) = &work {
                    tail = tail.after(self.shape, i as u64, work);
                }
                work.is_some()
            });
            if !fits {
                continue;
            }
            settled.push(family);
            fits_somewhere = true;
            counters.bounds += 1;
            let limit = best.as_ref().map_or(self.limit, |(_, t)| self.limit.min(*t));
            if tail.end <= limit {
                let plan = self.plan(&vec![(per_stage, choice); self.class.kinds.len()]);
                let time = Step::new(self.class.holds.tables, &plan).time;
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
        plan.stages = stages
            .iter()
            .zip(self.class.kinds)
            .map(|(&(layers, choice), &kind)| Stage {
                chip: kind as u32,
                layers: layers * plan.vpp as u32,
                recompute: choice.recompute,
                offload: choice.offload,
            })
            .collect();
        plan
    }

    /// Whether whole layers without recompute could meet the limit if memory were no matter.
    fn fast_enough(&mut self) -> bool {
        let pp = self.class.kinds.len();
        if self.limit == Time::MAX {
            return true;
        }
        let mut caps: Vec<u32> = Vec::with_capacity(pp);
        for i in 0..pp {
            // Stages between two of their own kind are alike but for memory.
            let alike = i >= 2
                && i + 2 < pp
                && self.class.kinds[i - 2..=i + 1].iter().all(|&k| k == self.class.kinds[i]);
            caps.push(if alike { caps[i - 1] } else { self.time_cap(i) });
        }
        let enough = caps.iter().all(|&c| c > 0) && caps.iter().sum::<u32>() >= self.layers;
        self.time_caps = caps;
        enough
    }

    /// Most layers that stage `i` passes within the limit without recompute.
    fn time_cap(&self, i: usize) -> u32 {
        let choice = Choice { recompute: Recompute::None, offload: 0 };
        let table = self.class.holds.lightest(self.class.kinds[i]);
        largest(self.class.holds.all(), |layers| {
            self.within(&self.work_at(table, &self.place(i, 0, layers, choice)).0)
        })
    }

    /// Whether a stage's passes alone meet the limit; its tail may shrink as layers are added that hide it.
    fn within(&self, w: &Work) -> bool {
        (w.forward + w.backward) * self.shape.micro_batches <= self.limit
    }

    /// Splits of any shape.
    fn uneven(&mut self, counters: &mut Counters) -> Outcome {
        if !self.fast_enough() || !self.fast_enough_together(counters) {
            return Outcome::Cut(Cut::Bound);
        }
        let Some(labels) = self.prepare_choices().then(|| self.labels(counters)) else {
            return Outcome::Cut(if self.holds_the_model() { Cut::Bound } else { Cut::Memory });
        };
        let roots = &labels[0][0];
        let Some(root) = (0..roots.len()).min_by_key(|&n| (roots[n].tail.end, n)) else {
            let any = self.limit == Time::MAX;
            return Outcome::Cut(if any { Cut::Memory } else { Cut::Bound });
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
        let plan = self.plan(&stages);
        let time = Step::new(self.class.holds.tables, &plan).time;
        counters.estimates += 1;
        Outcome::Found(Found { plan, time, bound })
    }

    /// Whether some split without recompute meets the limit if memory were no matter: the programme with one choice, which
    /// cuts most classes at a small part of the cost of all.
    fn fast_enough_together(&mut self, counters: &mut Counters) -> bool {
        if self.limit == Time::MAX {
            return true;
        }
        let none = Choice { recompute: Recompute::None, offload: 0 };
        self.choices = vec![vec![none]; self.class.kinds.len()];
        self.caps = self.time_caps.iter().map(|&cap| vec![cap]).collect();
        self.memo = vec![Vec::new(); self.class.kinds.len()];
        self.memory = false;
        let labels = self.labels(counters);
        self.memory = true;
        !labels[0][0].is_empty()
    }

    /// Labels by stage and by the layers before it, for `choices` and `caps`.
    pub fn labels(&mut self, counters: &mut Counters) -> Labels {
        let pp = self.class.kinds.len();
        counters.bounds += 1;
        let most: Vec<u32> =
            self.caps.iter().map(|caps| caps.iter().copied().max().unwrap_or(0)).collect();
        let mut labels: Labels = vec![Vec::new(); pp];
        let mut behind = 0u32;
        for i in (0..pp).rev() {
            behind += most[i];
            let ahead: u32 = most[..i].iter().sum();
            let after = (pp - 1 - i) as u32;
            let lowest = (i as u32).max(self.layers.saturating_sub(behind));
            let highest = (self.layers - after - 1).min(ahead);
            let mut row = vec![Vec::new(); self.layers as usize + 1];
            for first in lowest..=highest {
                row[first as usize] = self.labels_at(i, first, labels.get(i + 1));
            }
            labels[i] = row;
        }
        labels
    }

    /// Whether the stages hold the model under some choice, time apart.
    fn holds_the_model(&self) -> bool {
        let holds = self.class.holds;
        let kinds = self.class.kinds;
        let enough =
            |caps: &[u32]| caps.iter().all(|&c| c > 0) && caps.iter().sum::<u32>() >= self.layers;
        let ceiling = |i: usize| holds.ceiling(kinds[i], i, self.optimizer_offload);
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
    /// A choice is left out when another that is never slower holds as much on every stage.
    pub fn prepare_choices(&mut self) -> bool {
        let holds = self.class.holds;
        let pp = self.class.kinds.len();
        self.choices = vec![Vec::new(); pp];
        self.caps = vec![Vec::new(); pp];
        let mut start = 0;
        while start < pp {
            let kind = self.class.kinds[start];
            let end = (start..pp).find(|&i| self.class.kinds[i] != kind).unwrap_or(pp);
            let deepest = self.time_caps[start..end].iter().copied().max().unwrap_or(0);
            let mut kept: Vec<(usize, Vec<u32>)> = Vec::new();
            for (n, choice) in holds.choices.iter().enumerate() {
                if choice.depth() > deepest {
                    continue;
                }
                let caps: Vec<u32> =
                    (start..end).map(|i| self.most(i, n).min(self.time_caps[i])).collect();
                let covers = |&(other, _): &(usize, Vec<u32>)| {
                    holds.choices[other].leads(choice)
                        && (start..end).all(|i| {
                            holds.sure(kind, i, other, self.optimizer_offload) >= caps[i - start]
                        })
                };
                if caps.iter().all(|&c| c == 0) || kept.iter().any(covers) {
                    continue;
                }
                kept.push((n, caps));
            }
            for i in start..end {
                self.choices[i] = kept.iter().map(|&(n, _)| holds.choices[n]).collect();
                self.caps[i] = kept.iter().map(|(_, caps)| caps[i - start]).collect();
            }
            start = end;
        }
        self.memo = vec![Vec::new(); pp];
        let caps: Vec<u32> =
            self.caps.iter().map(|caps| caps.iter().copied().max().unwrap_or(0)).collect();
        caps.iter().all(|&c| c > 0) && caps.iter().sum::<u32>() >= self.layers
    }

    /// The work of stage `i`, remembered for all places from which the same layers follow.
    pub fn work(&mut self, i: usize, first: u32, layers: u32, choice: usize) -> Option<Work> {
        let place = self.place(i, first, layers, self.choices[i][choice]);
        let width = self.layers as usize + 1;
        if self.memo[i].is_empty() {
            let starts = self.class.holds.starts.iter().max().map_or(1, |&n| n + 1);
            self.memo[i] = vec![None; starts * width * self.choices[i].len()];
        }
        let start = self.class.holds.starts[first as usize];
        let slot = (start * self.choices[i].len() + choice) * width + layers as usize;
        if let Some(known) = self.memo[i][slot] {
            return known;
        }
        let (work, fits) = self.work_at(self.table(i), &place);
        let work = (fits || !self.memory).then_some(work);
        self.memo[i][slot] = Some(work);
        work
    }

    /// Labels of the stages from `i` on when `first` layers lie before them.
    fn labels_at(&mut self, i: usize, first: u32, next: Option<&Vec<Vec<Label>>>) -> Vec<Label> {
        let left = self.layers - first;
        let mut labels: Vec<Label> = Vec::new();
        let same_kind =
            i + 1 < self.class.kinds.len() && self.class.kinds[i + 1] == self.class.kinds[i];
        for choice in 0..self.choices[i].len() {
            let cap = self.caps[i][choice].min(left);
            let range = if next.is_none() { left..=cap } else { 1..=cap };
            for layers in range {
                let nothing = [Label { tail: Tail::default(), layers: 0, choice, next: 0 }];
                let after: &[Label] = match next {
                    None => &nothing,
                    Some(rows) => match rows.get((first + layers) as usize) {
                        Some(row) if !row.is_empty() => row,
                        _ => continue,
                    },
                };
                let Some(work) = self.work(i, first, layers, choice) else { continue };
                for (n, label) in after.iter().enumerate() {
                    if same_kind && !self.alike((label.layers, label.choice), (layers, choice)) {
                        continue;
                    }
                    let tail = label.tail.after(self.shape, i as u64, &work);
                    if tail.end > self.limit {
                        continue;
                    }
                    let new = Label { tail, layers, choice, next: n };
                    // Only the first stage of a kind may forget its choice.
                    let previous_same = i > 0 && self.class.kinds[i - 1] == self.class.kinds[i];
                    let rival = |l: &Label| {
                        !previous_same || self.alike((l.layers, l.choice), (layers, choice))
                    };
                    if labels.iter().any(|l| rival(l) && l.tail.dominates(&tail)) {
                        continue;
                    }
                    labels.retain(|l| !(rival(l) && tail.dominates(&l.tail)));
                    labels.push(new);
                }
            }
        }
        labels
    }

    /// Whether two stages of one kind may stand side by side, by their layers and choice.
    pub fn alike(&self, a: (u32, usize), b: (u32, usize)) -> bool {
        a.1 == b.1 && (a.0 == b.0 || self.class.holds.problem.options.uneven_layers)
    }
}
