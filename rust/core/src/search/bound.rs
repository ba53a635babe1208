//! Lower bounds on the step time of every completion of a partial plan.
//!
//! Two bounds. [`Continuous`] allows fractional layers: stage i cannot end before the stages ahead of it have passed
//! one micro-batch down and up, and it has done its own work, so the step T is at least
//! `sum_{j<i} x_j / v + m x_i` with x_i its work for one micro-batch. How many layers fit into T is a linear programme;
//! any `y_i >= 0` with `m y_i + sum_{k>i} y_k / v >= 1 / unit_i` shows that at most `T sum_i y_i` do, and from the
//! last stage to the first the least such y is at hand. (For equal stages all the paths are then equally long.) [`Tail`] is
//! a complete label of the stages from i to the last, for the exact dynamic programme: each of its numbers is the
//! length of a path through the schedule's events, so none exceeds the longest.

use super::report::Cut;
use crate::spec::problem::Schedule;
use crate::units::Time;

/// A lower bound, or that nothing fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// No plan takes fewer seconds.
    Seconds(f64),
    /// No plan fits in memory.
    Memory,
}

impl Verdict {
    /// The bound as a time, or why nothing is within `limit`.
    pub fn within(self, limit: Time) -> Result<Time, Cut> {
        match self {
            Verdict::Memory => Err(Cut::Memory),
            Verdict::Seconds(s) if Time::from_seconds(s) > limit => Err(Cut::Bound),
            Verdict::Seconds(s) => Ok(Time::from_seconds(s)),
        }
    }
}

/// Work of one stage for one micro-batch as the bounds see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Forward pass of all its chunks, with its own send when that blocks.
    pub forward: Time,
    /// Backward pass, likewise.
    pub backward: Time,
    /// Forward pass of the first chunk: what passes a micro-batch on.
    pub first_forward: Time,
    /// Backward pass of the first chunk.
    pub first_backward: Time,
    /// Backward pass up to the gradient of the input, where the schedule lets the weights' gradient wait.
    pub until_input: Time,
    /// Work after the last pass.
    pub tail: Time,
}

/// The shape of a schedule for the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Schedule.
    pub schedule: Schedule,
    /// Pipeline depth.
    pub pp: u64,
    /// Chunks a stage.
    pub vpp: u64,
    /// Micro-batches of a step.
    pub micro_batches: u64,
}

impl Shape {
    /// Seconds of a micro-batch's work, on all stages together, that a second of the step has time for where a layer takes as
    /// long on every stage: the sum of the y of [`super::relax`]. `uneven`: a first chunk may hold little of its stage's layers;
    /// `steady`: every stage of 1F1B has steady work.
    pub fn work_within(self, uneven: bool, steady: bool) -> f64 {
        let (m, pp) = (self.micro_batches as f64, self.pp as f64);
        let down = |ahead: f64| {
            if ahead == 0.0 {
                pp / m
            } else {
                (1.0 - (1.0 - ahead / m).powf(pp)) / ahead
            }
        };
        match self.schedule {
            // The y of `both_ways` are as 1 / ((m - pp + j) (m - pp + j - 1)): their sum telescopes.
            Schedule::OneFOneB if steady => pp / (m + pp - 1.0),
            Schedule::OneFOneB => down(1.0),
            Schedule::Interleaved => down(if uneven { 0.0 } else { 1.0 / self.vpp as f64 }),
            Schedule::GPipe => pp / (m + pp - 1.0),
            Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV => down(0.0),
        }
    }

    /// Frequent layers that the first chunks of an interleaved pipeline lack at most of an equal share of their stages', all together:
    /// there may be those of `other` sorts, and where the embedding has `taken` a place a stage with x layers has `(x + 1) / vpp - 1`.
    pub fn lacking(self, others: u64, taken: bool) -> f64 {
        let of_first = if taken { 1.0 - 1.0 / self.vpp as f64 } else { 0.0 };
        others as f64 + of_first
    }

    /// Layers that a stage holds at most where the others hold as few as they may; where `taken`, both ends of the model take a
    /// layer's place.
    pub fn most_layers(self, layers: u32, taken: bool) -> u64 {
        u64::from(layers) + if taken { 2 } else { 0 } - (self.pp - 1) * self.vpp
    }
}

/// Bound with fractional layers, where each chunk of a stage holds as many.
#[derive(Clone, Copy, Debug)]
pub struct Continuous {
    /// Layers that a unit of time holds: the sum of the y.
    capacity: f64,
    /// Layers' worth of fixed work: sends.
    fixed: f64,
    micro_batches: f64,
    /// Share of a stage's work for one micro-batch that the stages after it wait for.
    ahead: f64,
}

impl Continuous {
    /// No stage yet; `uneven`: a first chunk may hold little of its stage's layers.
    pub fn new(shape: Shape, uneven: bool) -> Continuous {
        let ahead = match shape.schedule {
            Schedule::Interleaved if uneven => 0.0,
            Schedule::OneFOneB | Schedule::Interleaved => 1.0 / shape.vpp as f64,
            // Zero-bubble and GPipe stages overlap differently: count no fill for them.
            Schedule::GPipe | Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV => 0.0,
        };
        Continuous { capacity: 0.0, fixed: 0.0, micro_batches: shape.micro_batches as f64, ahead }
    }

    /// Puts a stage before those added so far: `unit` seconds a layer, and `fixed` seconds besides, of which each
    /// chunk passes on its equal share.
    pub fn stage(&mut self, unit: f64, fixed: f64) {
        // Where the stages behind are so much faster that this one only delays them, it is best left empty.
        let own = (1.0 / unit - self.ahead * self.capacity) / self.micro_batches;
        self.capacity += own.max(0.0);
        self.fixed += fixed / unit;
    }

    /// Puts `count` stages of `unit` seconds a layer before those added so far.
    ///
    /// With C layers behind, a stage adds `(1 / unit - ahead C) / m` until nothing is left to add: a geometric series.
    pub fn stages(&mut self, unit: f64, count: u64) {
        let m = self.micro_batches;
        if self.ahead == 0.0 {
            self.capacity += count as f64 / (unit * m);
            return;
        }
        let left = 1.0 / (unit * self.ahead) - self.capacity;
        if left > 0.0 {
            self.capacity += left * (1.0 - (1.0 - self.ahead / m).powf(count as f64));
        }
    }

    /// Seconds that no plan with `layers` layers on these stages undercuts.
    pub fn bound(&self, layers: f64) -> f64 {
        (layers + self.fixed) / self.capacity
    }
}

/// Path lengths through the stages from one to the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// Until the last tail ends.
    pub end: Time,
    /// Until the last backward pass of the first of these stages ends.
    pub passes: Time,
    /// One micro-batch down and up.
    pub through: Time,
}

impl Tail {
    /// Puts a stage before these; `index` is its position in the pipeline.
    pub fn after(self, shape: Shape, index: u64, w: &Work) -> Tail {
        let m = shape.micro_batches;
        let own = match shape.schedule {
            Schedule::OneFOneB => {
                // Forward passes ahead of the first backward pass.
                let warm = (shape.pp - index).min(m);
                let busy = (w.forward + w.backward) * m;
                // Waiting for the first micro-batch to come back, then all other work.
                let fill = w.forward + self.through + w.backward * m + w.forward * (m - warm);
                // All forward work, then the last micro-batch down and back.
                let drain = w.forward * m + self.through + w.backward + w.backward * (m - warm);
                // Both at once, when there is steady work between them.
                let both = if m > warm {
                    w.forward
                        + self.through * 2
                        + w.backward
                        + (w.forward + w.backward) * (m - warm)
                } else {
                    Time::ZERO
                };
                busy.max(fill).max(drain).max(both)
            }
            Schedule::GPipe => w.forward * m + self.through + w.backward * m,
            Schedule::Interleaved => (w.forward + w.backward) * m,
            Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV => (w.forward + w.until_input) * m,
        };
        let (down, up) = (w.first_forward, w.first_backward);
        let passes = own.max(down + self.passes + up);
        let all_work = (w.forward + w.backward) * m;
        let end = (passes.max(all_work) + w.tail).max(down + self.end);
        Tail { end, passes, through: down + self.through + up }
    }

    /// Whether no number of the other is smaller.
    pub fn dominates(&self, other: &Tail) -> bool {
        self.end <= other.end && self.passes <= other.passes && self.through <= other.through
    }
}
