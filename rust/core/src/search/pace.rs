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
    /// The line through the times of one layer and of two, which times that grow ever faster are never below.
    ///
    /// Where a second layer adds more than the first one took, as what no longer crosses to the host behind the passes, the line
    /// through nothing and the first one's time lies below them too.
    pub fn through(one: Time, two: Time) -> Slope {
        let each = (two - one).min(one);
        Slope { base: one - each, each }
    }
}

/// What a stage takes at least for one micro-batch, whatever it recomputes and wherever its layers lie.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// All its passes with its sends.
    pub busy: Slope,
    /// The same without the gradients that cross to the host behind them, which recompute may hide.
    pub bare: Slope,
    /// The passes of its first chunk, and what hands their results on.
    pub down_and_up: Slope,
    /// What these take beside the passes of layers, likewise without what crosses.
    pub ends: Time,
    /// What a layer of a chunk adds to the path that waits on the stage for its first micro-batch and then does the others.
    pub rounds: Time,
    /// What selective and full recompute add for each layer of a chunk, in all chunks together.
    pub again: [Time; 2],
    /// What these count too much, where an end of the model takes places of layers.
    pub taken: [Time; 2],
}

impl Pace {
    /// Most layers of a chunk, up to `all`, whose passes under `recompute` last no longer than `room`.
    pub fn most(&self, room: Time, recompute: Recompute, all: u32) -> u32 {
        let within = |room: Time, line: Slope, again: Time, more: Time| {
            let room = room.0.checked_sub((line.base + more).0)?;
            Some(match room.checked_div((line.each + again).0) {
                Some(n) => n.min(u64::from(all)) as u32,
                None => all,
            })
        };
        let [selective, full] = [0, 1].map(|n| (self.again[n], room + self.taken[n]));
        let repeated = |(again, room)| within(room, self.bare, again, Time::ZERO);
        let again = match recompute {
            // Parts are no choice of the search; the passes alone bound them.
            Recompute::None | Recompute::Parts(_) => Some(all),
            Recompute::Selective => repeated(selective),
            Recompute::Uniform { .. } => repeated(full),
            Recompute::Block { layers } => {
                let few = repeated(full);
                let all_of_them = full.0 * u64::from(layers);
                few.filter(|&few| few >= layers)
                    .and_then(|_| within(full.1, self.bare, Time::ZERO, all_of_them))
                    .or(few)
            }
        };
        within(room, self.busy, Time::ZERO, Time::ZERO).unwrap_or(0).min(again.unwrap_or(0))
    }
}

/// What the stages before one add at least to a path, by the layers of a chunk that they hold together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ahead {
    pub down_and_up: Slope,
    pub ends: Time,
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
        ahead.ends += pace.ends;
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

/// What layers take at least where they lie, in a pipeline of one chunk a stage: sums over those before each.
#[derive(Clone, Debug, Default)]
pub struct Passed {
    /// One micro-batch down and up.
    through: Vec<Time>,
    /// The other micro-batches of a path that waits for the first.
    rounds: Vec<Time>,
    /// Each sort of layer: what it adds to that, and how many lie before each layer.
    sorts: Vec<(Time, Vec<u32>)>,
    /// How many backward passes of these other micro-batches there are.
    backward: u64,
    /// What selective and full recompute of a layer add to a pass where all stages choose alike; nothing where they may not.
    again: [Time; 2],
}

impl Passed {
    /// From what one micro-batch and the others take with each layer, in order, and what recompute adds.
    pub fn new(layers: &[(Time, Time)], backward: u64, again: [Time; 2]) -> Passed {
        let sums = |of: fn(&(Time, Time)) -> Time| {
            let mut sum = Time::ZERO;
            let sums = layers.iter().map(|layer| {
                sum += of(layer);
                sum
            });
            std::iter::once(Time::ZERO).chain(sums).collect()
        };
        let mut distinct: Vec<Time> = layers.iter().map(|layer| layer.1).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let counted = |rounds: Time| {
            let mut count = 0;
            let counts = layers.iter().map(|layer| {
                count += u32::from(layer.1 >= rounds);
                count
            });
            (rounds, std::iter::once(0).chain(counts).collect())
        };
        Passed {
            through: sums(|layer| layer.0),
            rounds: sums(|layer| layer.1),
            sorts: distinct.into_iter().map(counted).collect(),
            backward,
            again,
        }
    }

    /// Once through the first layers on some stages, and the other micro-batches on the slowest of these.
    ///
    /// The slowest takes no less than the mean, and one of them has no less than its share of the layers that take some time,
    /// rounded up. Each stage holds a layer, and recomputes one at least if it does so in whole.
    pub fn least(&self, layers: u32, stages: u32, recompute: Recompute) -> (Time, Time) {
        let n = layers as usize;
        let (each, whole, deep) = match recompute {
            Recompute::None | Recompute::Parts(_) => (Time::ZERO, Time::ZERO, 0),
            Recompute::Selective => (self.again[0], Time::ZERO, 0),
            Recompute::Uniform { .. } => (self.again[1], Time::ZERO, 0),
            Recompute::Block { layers } => (Time::ZERO, self.again[1], layers),
        };
        if stages == 0 {
            return (self.through[n], Time::ZERO);
        }
        let through = self.through[n] + each * u64::from(layers) + whole * u64::from(stages);
        let sum = self.rounds[n] + each * (self.backward * u64::from(layers));
        let mean = Time(sum.0 / u64::from(stages)) + whole * self.backward;
        let fullest = self.sorts.iter().map(|(rounds, before)| {
            let share = before[n].div_ceil(stages);
            let again = each * u64::from(share) + whole * u64::from(share.min(deep));
            *rounds * u64::from(share) + again * self.backward
        });
        (through, fullest.fold(mean, Time::max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_through_two_times_is_never_above_those_that_grow_faster() {
        // 5 and 7 are 3 + 2 n. The line through 5 and 16 would start at -6: 5 n takes its place, below max(5, 11 n - 6).
        let line = Slope::through(Time(5), Time(7));
        assert_eq!((line.base, line.each), (Time(3), Time(2)));
        let steep = Slope::through(Time(5), Time(16));
        assert_eq!((steep.base, steep.each), (Time(0), Time(5)));
        assert!((1..9).all(|n| steep.base + steep.each * n <= Time(5.max(11 * n - 6))));
    }

    #[test]
    fn recompute_may_hide_what_crosses_to_the_host() {
        // Passes of 3 + 2 n, with what crosses of 3 + 10 n. Computing layers again takes 5 each, 3 + 7 n, and nothing shows of it:
        // two layers last 23. At 9 each they last 25, 3 + 11 n, unless one alone is computed again.
        let pace = |full| Pace {
            busy: Slope { base: Time(3), each: Time(10) },
            bare: Slope { base: Time(3), each: Time(2) },
            again: [Time(1), Time(full)],
            ..Pace::default()
        };
        let most = |full, recompute| pace(full).most(Time(23), recompute, 4);
        let uniform = Recompute::Uniform { layers: 1 };
        assert_eq!([most(5, Recompute::None), most(5, uniform), most(9, uniform)], [2, 2, 1]);
        assert_eq!(most(9, Recompute::Block { layers: 1 }), 2);
        assert_eq!(most(17, Recompute::Block { layers: 1 }), 1);
        assert_eq!([Time(2), Time(3)].map(|room| pace(5).most(room, uniform, 4)), [0, 0]);
    }

    #[test]
    fn the_slowest_stage_has_its_share_of_the_heavy_layers() {
        // Two layers of 1 and 10, then three of 2 and 20, on two stages: once through takes 8, and of the others 80, a mean of
        // 40. One stage has two heavy layers or more, 40; of the first four, 60, the mean is 30, and one has one heavy layer
        // and two of 10 or more, 20.
        let layers = [(1, 10), (1, 10), (2, 20), (2, 20), (2, 20)].map(|(a, b)| (Time(a), Time(b)));
        let passed = Passed::new(&layers, 9, [Time(1), Time(3)]);
        assert_eq!(passed.least(5, 2, Recompute::None), (Time(8), Time(40)));
        assert_eq!(passed.least(4, 2, Recompute::None), (Time(6), Time(30)));
        // Selectively each layer takes 1 longer in 9 backward passes: (80 + 45) / 2 rounded down, against 2 (20 + 9) and 3 (10 + 9).
        assert_eq!(passed.least(5, 2, Recompute::Selective), (Time(13), Time(62)));
        // In whole one layer of each stage at least: 8 + 2 * 3 and 40 + 9 * 3.
        let block = Recompute::Block { layers: 1 };
        assert_eq!(passed.least(5, 2, block), (Time(14), Time(67)));
        assert_eq!(passed.least(0, 0, block), (Time(0), Time(0)));
    }
}
