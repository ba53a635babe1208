//! From a class's labels to its optimum: every split whose bound is below the best estimate is estimated.

use super::bound::{Tail, Work};
use super::holds::Choice;
use super::labels::{Label, Labels};
use super::report::Counters;
use super::stages::{Class, Solver};
use crate::estimate::Step;
use crate::plan::Plan;
use crate::units::Time;

/// What a descent found of a class.
pub struct Closed {
    /// The fastest plan that it estimated, if that is faster than what was known.
    pub better: Option<(Plan, Time)>,
    /// Whether every split was estimated, or is bounded above the fastest.
    pub done: bool,
}

/// The optimum of a class if it is faster than `time`, by at most `estimates` estimates.
pub fn close(class: &Class<'_, '_>, time: Time, estimates: u64, counters: &mut Counters) -> Closed {
    let mut closed = Closed { better: None, done: true };
    let mut ceiling = time;
    let until = counters.estimates + estimates;
    for way in class.ways() {
        let limit = Time(ceiling.0.saturating_sub(1));
        let mut solver = Solver::new(class, way, limit);
        let found = solver.exhaust(ceiling, until, counters);
        closed.done &= found.done;
        if let Some((plan, time)) = found.better {
            ceiling = time;
            closed.better = Some((plan, time));
        }
    }
    closed
}

impl Solver<'_, '_, '_> {
    /// The best split faster than `ceiling`, by estimating every one whose bound is, `until` there are so many estimates.
    fn exhaust(&mut self, ceiling: Time, until: u64, counters: &mut Counters) -> Closed {
        if !self.prepare_choices() {
            return Closed { better: None, done: true };
        }
        let labels = self.labels(counters);
        let closed = Closed { better: None, done: true };
        let mut descent = Descent { labels: &labels, closed, ceiling, until };
        self.descend(&mut descent, &mut Vec::new(), &mut Vec::new(), 0, counters);
        descent.closed
    }

    /// Estimates every split whose bound is below the best estimate.
    fn descend(
        &mut self,
        descent: &mut Descent<'_>,
        stages: &mut Vec<(u32, usize)>,
        works: &mut Vec<Work>,
        first: u32,
        counters: &mut Counters,
    ) {
        if self.class.watch.stopped() || counters.estimates >= descent.until {
            descent.closed.done = false;
            return;
        }
        let i = stages.len();
        if i == self.class.kinds.len() {
            let chosen: Vec<(u32, Choice)> = stages
                .iter()
                .enumerate()
                .map(|(i, &(layers, choice))| (layers, self.choices[i][choice]))
                .collect();
            let plan = self.plan(&chosen);
            let time = Step::time_below(&self.class.holds.tables, &plan, descent.ceiling);
            counters.estimates += 1;
            if let Some(time) = time {
                descent.ceiling = time;
                descent.closed.better = Some((plan, time));
            }
            return;
        }
        let last = i + 1 == self.class.kinds.len();
        let bound_by = i > 0 && self.class.kinds[i - 1] == self.class.kinds[i];
        for choice in 0..self.choices[i].len() {
            let left = self.layers - first;
            let range = if last { left..=left } else { 1..=left };
            for layers in range {
                if layers > self.caps[i][choice] {
                    break;
                }
                if bound_by && !self.alike(stages[i - 1], (layers, choice)) {
                    continue;
                }
                let Some(work) = self.work(i, first, layers, choice) else { continue };
                works.push(work);
                counters.bounds += 1;
                let next_same = !last && self.class.kinds[i + 1] == self.class.kinds[i];
                let follows =
                    |l: &Label| !next_same || self.alike((l.layers, l.choice), (layers, choice));
                let reaches = descent.rest(i + 1, first + layers, follows).iter().any(|tail| {
                    let whole = works
                        .iter()
                        .enumerate()
                        .rev()
                        .fold(*tail, |t, (j, w)| t.after(self.shape, j as u64, w));
                    whole.end < descent.ceiling
                });
                if reaches {
                    stages.push((layers, choice));
                    self.descend(descent, stages, works, first + layers, counters);
                    stages.pop();
                }
                works.pop();
            }
        }
    }
}

/// A search through the splits of one class below the best estimate.
struct Descent<'l> {
    labels: &'l Labels,
    closed: Closed,
    ceiling: Time,
    until: u64,
}

impl Descent<'_> {
    /// Bounds of the stages from `i` on, of the labels that may follow.
    fn rest(&self, i: usize, first: u32, follows: impl Fn(&Label) -> bool) -> Vec<Tail> {
        match self.labels.get(i) {
            None => vec![Tail::default()],
            Some(rows) => {
                rows[first as usize].iter().filter(|l| follows(l)).map(|l| l.tail).collect()
            }
        }
    }
}
