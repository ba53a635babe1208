//! What a stage has room for, and what that costs it: the lower hull of its seconds over its layers, for the bounds.

use super::stall::{Block, Stall};
use crate::estimate::least::{Least, Passes};
use crate::spec::problem::{Granularity, Problem};

/// The lower hull of a stage's seconds a micro-batch over its layers: corners in order, the first at no layers.
#[derive(Clone, Copy, Debug, Default)]
struct Rungs {
    corners: [(f64, f64); 5],
    len: usize,
}

impl Rungs {
    /// Adds a corner further right, dropping those that are now above the hull.
    fn push(&mut self, corner: (f64, f64)) {
        while self.len > 1 {
            let (a, b) = (self.corners[self.len - 2], self.corners[self.len - 1]);
            let above = (b.1 - a.1) * (corner.0 - a.0) >= (corner.1 - a.1) * (b.0 - a.0);
            if !above {
                break;
            }
            self.len -= 1;
        }
        self.corners[self.len] = corner;
        self.len += 1;
    }
}

/// Where a stage stands, as far as its memory is concerned.
#[derive(Clone, Copy, PartialEq)]
pub struct Spot {
    /// Micro-batches in flight of a layer, at least.
    pub in_flight: f64,
    /// What that counts too many of, of all layers together.
    pub spared: f64,
    /// Of the first chunk, and of the last.
    pub at_ends: [f64; 2],
    pub first: bool,
    pub last: bool,
}

/// The cheapest way to hold a number of layers, and how many can be held.
pub struct Room<'l> {
    least: &'l Least,
    spot: Spot,
    on_host: usize,
    /// Bytes that are taken without layers, without working set and logits.
    taken: f64,
}

impl Room<'_> {
    pub fn new<'l>(least: &'l Least, spot: Spot, on_host: usize) -> Room<'l> {
        let kept = least.kept.into_iter().fold(0.0, f64::max);
        let mut taken = least.resident[on_host].base - spot.spared * kept;
        for (at, there) in [(0, spot.first), (1, spot.last)] {
            if there {
                taken += least.end_resident[at][on_host] + least.end_kept[at] * spot.at_ends[at];
            }
        }
        Room { least, spot, on_host, taken }
    }

    /// Bytes left for layers when `again` (none, selective, full) is recomputed.
    fn left(&self, again: usize) -> f64 {
        self.left_beside(if again > 0 { self.least.working[again] } else { 0.0 })
    }

    /// Bytes left for layers beside a working set that is larger by `more`.
    fn left_beside(&self, more: f64) -> f64 {
        let l = self.least;
        let working = l.working[0] + more;
        let logits = if self.spot.last { l.logits } else { 0.0 };
        l.capacity - self.taken - working.max(logits)
    }

    /// Layers that fit when every one is treated alike.
    pub fn most(&self, again: usize) -> f64 {
        let each =
            self.least.resident[self.on_host].each + self.spot.in_flight * self.least.kept[again];
        self.left(again) / each.max(1.0)
    }

    /// Layers that fit when at least one layer's input is kept of each chunk pass.
    fn most_grouped(&self) -> f64 {
        self.left(2) / self.least.resident[self.on_host].each.max(1.0)
    }

    /// The hull up to `limit` layers.
    fn rungs(&self, allowed: &Allowed, limit: f64) -> Rungs {
        let l = self.least;
        let unit = l.layer.both();
        let mut ends = [(-1.0, 0.0); 4];
        if allowed.none || allowed.block {
            ends[0] = (self.most(0), unit);
        }
        if allowed.offload {
            // Transfers may hide behind passes.
            ends[0] = (limit, unit);
        }
        if allowed.selective {
            ends[1] = (self.most(1), unit + l.again[0]);
        }
        if allowed.block {
            ends[2] = (self.most(2), unit + l.again[1]);
        }
        if allowed.uniform {
            ends[3] = (self.most_grouped(), unit + l.again[1]);
        }
        if l.again[0] > l.again[1] {
            // Many operators, each a checkpoint, may take longer again than the layer.
            ends[1..].rotate_left(1);
        }
        let mut rungs = Rungs::default();
        rungs.push((0.0, 0.0));
        let mut reached = 0.0;
        for (layers, slope) in ends {
            // Corners in order of their slope: one that reaches no further is no help.
            if layers > reached {
                rungs.push((layers, slope * layers));
                reached = layers;
            }
            if reached >= limit {
                break;
            }
        }
        rungs
    }

    /// The most whole layers up to `limit`, in whatever way saves most memory.
    pub fn held(&self, allowed: &Allowed, limit: f64) -> f64 {
        let hull = self.rungs(allowed, limit);
        (hull.corners[hull.len - 1].0 + 1e-9).min(limit).floor()
    }

    /// Calls `each` with the layers and the slope of every part of the hull up to `limit` layers.
    pub fn climb(&self, allowed: &Allowed, limit: f64, mut each: impl FnMut(f64, f64)) {
        let hull = self.rungs(allowed, limit);
        let whole = (hull.corners[hull.len - 1].0 + 1e-9).min(limit).floor();
        for pair in hull.corners[..hull.len].windows(2) {
            let (a, b) = (pair[0], pair[1]);
            let layers = b.0.min(whole) - a.0;
            if layers > 0.0 {
                each(layers, (b.1 - a.1) / (b.0 - a.0));
            }
        }
    }

    /// What limits the layers when their time must fit too.
    pub fn stall(&self, allowed: &Allowed) -> Stall {
        let (n, l) = (self.spot.in_flight, self.least);
        let of = |is: bool, layers: f64| if is { layers } else { f64::NEG_INFINITY };
        // Transfers to the host may hide behind passes.
        let plain = if allowed.offload { f64::INFINITY } else { self.most(0) };
        let each = (l.resident[self.on_host].each + n * l.kept[0]).max(1.0);
        Stall {
            plain: of(allowed.none, plain),
            selective: of(allowed.selective, self.most(1)),
            uniform: of(allowed.uniform, self.most_grouped()),
            block: allowed.block.then(|| Block {
                none: self.left(2) / each,
                more: n * (l.kept[0] - l.kept[2]).max(0.0) / each,
                all: self.most(2),
                // With less than one layer of each chunk recomputed there is no working set of one.
                plain: self.most(0),
            }),
        }
    }

    /// Seconds a micro-batch of exactly `layers` frequent layers of one chunk each; nothing if they do not fit.
    pub fn seconds(&self, allowed: &Allowed, layers: f64) -> Option<f64> {
        let l = self.least;
        let plain = layers * l.layer.both();
        if allowed.none && self.most(0) >= layers {
            return Some(plain);
        }
        let n = self.spot.in_flight;
        // Where layers differ, the one that is recomputed or waits on the host may be another.
        let one = if l.others == 0 { 1.0 } else { 0.0 };
        let resident = l.resident[self.on_host].each * layers;
        let mut best = f64::INFINITY;
        if allowed.selective && self.most(1) >= layers {
            best = plain + layers * l.again[0];
        }
        // The fewest layers that must be recomputed so that the others' activations fit.
        let lacking = resident + n * l.kept[0] * layers - self.left(2);
        let recomputed = (lacking / (n * (l.kept[0] - l.kept[2])).max(1.0) - 1e-9).ceil().max(one);
        if allowed.block && recomputed <= layers {
            best = best.min(plain + recomputed * l.again[1]);
        }
        if allowed.uniform && self.most_grouped() >= layers {
            best = best.min(plain + layers * l.again[1]);
        }
        if allowed.offload {
            // Two layers are on their way to and from the host.
            let spare = self.left_beside(2.0 * l.working[2]);
            let moved =
                ((resident + l.kept[0] * layers - spare) / l.kept[0].max(1.0) - 1e-9).ceil();
            if moved <= layers {
                let passes = self.passes(layers);
                let transfer = moved.max(one) * l.kept[0] / l.host;
                let wait =
                    (transfer - passes.forward).max(0.0) + (transfer - passes.backward).max(0.0);
                best = best.min(plain + wait);
            }
        }
        best.is_finite().then_some(best)
    }

    /// All passes of a stage that holds `layers` frequent layers, the others and both ends.
    fn passes(&self, layers: f64) -> Passes {
        let l = self.least;
        let all = l.other + l.ends[0] + l.ends[1];
        Passes {
            forward: layers * l.layer.forward + all.forward,
            backward: layers * l.layer.backward + all.backward,
        }
    }
}

/// The ways to save memory that the options allow.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    pub none: bool,
    pub selective: bool,
    pub block: bool,
    pub uniform: bool,
    pub offload: bool,
}

impl Allowed {
    /// In pipelines of `pp` stages: activations wait on the host without one alone.
    pub fn new(problem: &Problem, pp: u64) -> Allowed {
        let o = &problem.options;
        let allows = |g| o.recompute.is_empty() || o.recompute.contains(&g);
        Allowed {
            none: allows(Granularity::None),
            selective: allows(Granularity::Selective),
            block: allows(Granularity::Block),
            uniform: allows(Granularity::Uniform),
            offload: pp == 1 && o.activation_offload && allows(Granularity::None),
        }
    }

    /// Seconds a layer that any recompute adds at least.
    pub fn again(&self, least: &Least) -> f64 {
        let selective = if self.selective { least.again[0] } else { f64::INFINITY };
        let full = if self.block || self.uniform { least.again[1] } else { f64::INFINITY };
        selective.min(full)
    }
}

/// Layers that some stage can hold at one price each.
pub struct Rung {
    pub layers: f64,
    pub price: f64,
}

/// The least that `layers` cost; nothing if there is no room for them.
pub fn cheapest(mut rungs: Vec<Rung>, layers: f64) -> Option<f64> {
    rungs.sort_unstable_by(|a, b| a.price.total_cmp(&b.price));
    let (mut left, mut price) = (layers, 0.0);
    for rung in rungs {
        let taken = rung.layers.min(left);
        price += taken * rung.price;
        left -= taken;
        if left <= 0.0 {
            break;
        }
    }
    (left <= 1e-6).then_some(price)
}
