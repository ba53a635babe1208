//! The order in which each stage runs its passes, by schedule.

use crate::spec::problem::Schedule;
use crate::units::Time;

/// What a pass does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Forward.
    Forward,
    /// Backward; gradient of the input alone where the schedule separates them.
    Backward,
    /// Gradient of the weights.
    Weight,
}

/// Each stage's order of passes, told by index so that nothing is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Order {
    pub schedule: Schedule,
    pub pp: u64,
    pub vpp: u64,
    pub m: u64,
}

/// Where a forward pass is on a micro-batch's way through a stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    chunk: u64,
    micro_batch: u64,
}

impl Order {
    /// Passes of one stage.
    pub fn len(&self) -> u64 {
        match self.schedule {
            Schedule::ZeroBubbleH1 => 3 * self.m,
            Schedule::ZeroBubbleV => 6 * self.padded(),
            _ => 2 * self.m * self.vpp,
        }
    }

    /// Passes of one stage in a round of `pp` micro-batches.
    pub fn round(&self) -> u64 {
        match self.schedule {
            Schedule::ZeroBubbleH1 => 3 * self.pp,
            Schedule::ZeroBubbleV => 6 * self.pp,
            _ => 2 * self.pp * self.vpp,
        }
    }

    /// Passes of `stage` before its steady state.
    pub fn before_steady(&self, stage: u64) -> u64 {
        match self.schedule {
            Schedule::ZeroBubbleV => 5 * self.pp - 3 * stage - 1,
            _ => self.warm(stage),
        }
    }

    /// Micro-batches that ZB-V's order is made for; passes of those beyond the last are skipped.
    fn padded(&self) -> u64 {
        self.m.max(2 * self.pp - 1)
    }

    /// Forward passes before the first backward pass.
    pub fn warm(&self, stage: u64) -> u64 {
        let all = self.m * self.vpp;
        match self.schedule {
            Schedule::Interleaved => {
                (2 * (self.pp - stage - 1) + (self.vpp - 1) * self.pp + 1).min(all)
            }
            Schedule::GPipe => all,
            _ => (self.pp - stage).min(all),
        }
    }

    /// Pass `n` of `stage`: what it does, its chunk and its micro-batch; `ways` are those of the order.
    pub fn pass(&self, ways: &[Way], stage: u64, n: u64) -> (Kind, u64, u64) {
        match self.schedule {
            Schedule::ZeroBubbleV => return self.v_pass(stage, n),
            Schedule::ZeroBubbleH1 => return self.zero_bubble_pass(stage, n),
            Schedule::OneFOneB | Schedule::GPipe | Schedule::Interleaved => {}
        }
        let warm = self.warm(stage);
        let steady = 2 * (self.m * self.vpp - warm);
        let (kind, index) = match n.checked_sub(warm) {
            None => (Kind::Forward, n),
            Some(j) if j >= steady => (Kind::Backward, steady / 2 + (j - steady)),
            Some(j) if j.is_multiple_of(2) => (Kind::Backward, j / 2),
            Some(j) => (Kind::Forward, warm + j / 2),
        };
        let Way { chunk, micro_batch } = ways[index as usize];
        let chunk = if kind == Kind::Forward { chunk } else { self.vpp - 1 - chunk };
        (kind, chunk, micro_batch)
    }

    /// The way of every stage's forward passes, in their order; backward passes go it from the last chunk to the first. Zero-bubble
    /// schedules have orders of their own.
    ///
    /// Megatron's order: `pp` micro-batches through chunk 0, the same through chunk 1, and so on.
    pub fn ways(&self) -> Vec<Way> {
        if matches!(self.schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV) {
            return Vec::new();
        }
        if self.vpp == 1 {
            return (0..self.m).map(|micro_batch| Way { chunk: 0, micro_batch }).collect();
        }
        let mut ways = Vec::with_capacity((self.m * self.vpp) as usize);
        for first in (0..self.m).step_by(self.pp as usize) {
            for chunk in 0..self.vpp {
                let group = first..first + self.pp;
                ways.extend(group.map(|micro_batch| Way { chunk, micro_batch }));
            }
        }
        ways
    }

    /// ZB-H1 after its warm-up: backward, the weight gradient of `stage` micro-batches ago, forward.
    fn zero_bubble_pass(&self, stage: u64, n: u64) -> (Kind, u64, u64) {
        let warm = self.warm(stage);
        let Some(mut j) = n.checked_sub(warm) else { return (Kind::Forward, 0, n) };
        // A stage may owe `stage` weight gradients: as much memory as the first stage holds.
        let owed = stage.min(self.m);
        for (weights, micro_batches) in [(0, owed), (1, self.m - owed)] {
            let first = if weights == 0 { 0 } else { owed };
            // Forward passes that are still left run beside the first of these backward passes.
            let forwards = (self.m - warm).saturating_sub(first).min(micro_batches);
            let full = forwards * (2 + weights);
            if j < full {
                let (k, slot) = (first + j / (2 + weights), j % (2 + weights));
                return match (slot, weights) {
                    (0, _) => (Kind::Backward, 0, k),
                    (1, 1) => (Kind::Weight, 0, k - owed),
                    _ => (Kind::Forward, 0, warm + k),
                };
            }
            j -= full;
            let rest = (micro_batches - forwards) * (1 + weights);
            if j < rest {
                let (k, slot) = (first + forwards + j / (1 + weights), j % (1 + weights));
                return if slot == 0 {
                    (Kind::Backward, 0, k)
                } else {
                    (Kind::Weight, 0, k - owed)
                };
            }
            j -= rest;
        }
        (Kind::Weight, 0, self.m - owed + j)
    }

    /// ZB-V's order for equal passes (arXiv:2401.10241, section 6; PyTorch's `ScheduleZBVZeroBubble`): at most
    /// `2 pp` chunks in flight, of which `2 pp - stage` on the way out. A fixed order, unlike a greedy one, never ends
    /// later when a pass gets shorter.
    fn v_pass(&self, stage: u64, n: u64) -> (Kind, u64, u64) {
        use Kind::{Backward, Forward, Weight};
        let (p, m, after) = (self.pp, self.padded(), self.pp - stage);
        let mut j = n;
        // The way out, until the first micro-batch comes back; then forward passes of both chunks in turn; then the
        // first backward passes of chunk 1.
        if j < 2 * after - 1 {
            return (Forward, 0, j);
        }
        j -= 2 * after - 1;
        if j < 2 * stage {
            let k = j / 2;
            return if j.is_multiple_of(2) {
                (Forward, 1, k)
            } else {
                (Forward, 0, 2 * after - 1 + k)
            };
        }
        j -= 2 * stage;
        if j < 3 * after {
            let k = j / 3;
            return [(Forward, 1, stage + k), (Backward, 1, k), (Weight, 1, k)][(j % 3) as usize];
        }
        j -= 3 * after;
        // Six passes a micro-batch, while forward passes of chunk 0 are left; then five.
        let started = p + after - 1;
        let steady = |k: u64| {
            let (outer, inner) = (k, after + k);
            [
                (Forward, 0, started + k),
                (Backward, 0, outer),
                (Weight, 0, outer),
                (Forward, 1, p + k),
                (Backward, 1, inner),
                (Weight, 1, inner),
            ]
        };
        let full = m - started;
        if j < 6 * full {
            return steady(j / 6)[(j % 6) as usize];
        }
        j -= 6 * full;
        let draining = m - p - full;
        if j < 5 * draining {
            return steady(full + j / 5)[1 + (j % 5) as usize];
        }
        j -= 5 * draining;
        // The last backward passes of both chunks in turn, then of chunk 0 with weight gradients, then the rest of these.
        if j < 2 * stage {
            let k = j / 2;
            return if j.is_multiple_of(2) {
                (Backward, 0, m - p + k)
            } else {
                (Backward, 1, m - stage + k)
            };
        }
        j -= 2 * stage;
        if j < 2 * after {
            let k = j / 2;
            return if j.is_multiple_of(2) {
                (Backward, 0, m - after + k)
            } else {
                (Weight, 0, m - p + k)
            };
        }
        j -= 2 * after;
        let chunk = if j < stage { 1 } else { 0 };
        (Weight, chunk, m - stage + j % stage)
    }

    /// Whether the gradient of the weights is a pass of its own.
    pub fn splits(&self) -> bool {
        match self.schedule {
            Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV => true,
            Schedule::OneFOneB | Schedule::Interleaved | Schedule::GPipe => false,
        }
    }

    /// The common shift of one round if, on every stage, two successive rounds repeat the one before: the last three that
    /// end before any stage runs out of forward passes. `ends` are those of a stage's passes.
    pub fn shift<'e>(&self, ends: impl Fn(usize) -> &'e [Time]) -> Option<Time> {
        let round = self.round() as usize;
        let skipped = (self.m / self.pp - 5) as usize * round;
        let mut shift = None;
        for stage in 0..self.pp {
            let ends = ends(stage as usize);
            let first = self.before_steady(stage) as usize + skipped;
            for n in first..first + 2 * round {
                let step = *ends.get(n + round)? - ends[n];
                if *shift.get_or_insert(step) != step {
                    return None;
                }
            }
        }
        shift
    }

    /// Position of a chunk of `stage` on a micro-batch's way.
    pub fn position(&self, stage: u64, chunk: u64) -> u64 {
        match self.schedule {
            // Out through the stages and back.
            Schedule::ZeroBubbleV if chunk == 1 => 2 * self.pp - 1 - stage,
            _ => chunk * self.pp + stage,
        }
    }

    /// The stage at a position, and which of its chunks.
    pub fn owned(&self, position: u64) -> (usize, u64) {
        (self.owner(position), position / self.pp)
    }

    /// The stage at a position.
    pub fn owner(&self, position: u64) -> usize {
        let stage = match self.schedule {
            Schedule::ZeroBubbleV if position >= self.pp => 2 * self.pp - 1 - position,
            _ => position % self.pp,
        };
        stage as usize
    }
}
