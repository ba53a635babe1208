//! What stages take at least, as lines over their layers, and so what those before a stage add to every path through it.

use crate::plan::Recompute;
use crate::units::Time;

/// A time that grows with the layers of a chunk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slope {
    pub base: Time,
    pub each: Time,
}

impl Slope {
    /// The line through the times of one layer and of two.
    pub fn through(one: Time, two: Time) -> Slope {
        let each = two - one;
        Slope { base: one - each, each }
    }
}

/// What a stage takes at least for one micro-batch, whatever it recomputes and wherever its layers lie.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// All its passes with its sends.
    pub busy: Slope,
    /// The passes of its first chunk, and what hands their results on.
    pub down_and_up: Slope,
    /// What a layer of a chunk adds to the path that waits on the stage for its first micro-batch and then does the others.
    pub rounds: Time,
    /// What selective and full recompute add for each layer of a chunk, in all chunks together.
    pub again: [Time; 2],
}

impl Pace {
    /// Most layers of a chunk, up to `all`, whose passes under `recompute` last no longer than `room`.
    pub fn most(&self, room: Time, recompute: Recompute, all: u32) -> u32 {
        let Some(room) = room.0.checked_sub(self.busy.base.0) else { return 0 };
        let within = |room: u64, each: u64| match room.checked_div(each) {
            Some(n) => n.min(u64::from(all)) as u32,
            None => all,
        };
        let (each, [selective, full]) = (self.busy.each.0, self.again.map(|t| t.0));
        match recompute {
            // Parts are no choice of the search; the passes alone bound them.
            Recompute::None | Recompute::Parts(_) => within(room, each),
            Recompute::Selective => within(room, each + selective),
            Recompute::Uniform { .. } => within(room, each + full),
            Recompute::Block { layers } => {
                let few = within(room, each + full);
                match room.checked_sub(full * u64::from(layers)) {
                    Some(rest) if few >= layers => within(rest, each),
                    _ => few,
                }
            }
        }
    }
}

/// What the stages before one add at least to a path, by the layers of a chunk that they hold together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ahead {
    pub down_and_up: Slope,
    /// Of a path that does its other micro-batches on one of them: layers a second of all of them, and the stages where
    /// these are alike, with the time of a layer.
    pub speed: f64,
    pub alike: Option<(u32, Time)>,
}

impl Ahead {
    /// One micro-batch down and up.
    pub fn through(&self, layers: u32) -> Time {
        self.down_and_up.base + self.down_and_up.each * u64::from(layers)
    }

    /// The other micro-batches on the slowest.
    pub fn rounds(&self, layers: u32) -> Time {
        match self.alike {
            Some((stages, layer)) => layer * u64::from(layers.div_ceil(stages)),
            None if self.speed > 0.0 => {
                Time((f64::from(layers) / self.speed * 1e12 * (1.0 - 1e-9)) as u64)
            }
            None => Time::ZERO,
        }
    }
}

/// What the stages before each add to the paths that come from it; the last entry, all stages.
pub fn before(paces: &[Pace]) -> Vec<Ahead> {
    let mut ahead = Ahead::default();
    let mut before = Vec::with_capacity(paces.len() + 1);
    for (i, pace) in paces.iter().enumerate() {
        before.push(ahead);
        let each = pace.down_and_up.each;
        let least = if i == 0 { each } else { ahead.down_and_up.each.min(each) };
        let base = ahead.down_and_up.base + pace.down_and_up.base;
        ahead.down_and_up = Slope { base, each: least };
        ahead.speed += 1.0 / pace.rounds.seconds().max(1e-12);
        ahead.alike = match ahead.alike {
            _ if i == 0 => Some((1, pace.rounds)),
            Some((stages, layer)) if layer == pace.rounds => Some((stages + 1, layer)),
            _ => None,
        };
    }
    before.push(ahead);
    before
}
