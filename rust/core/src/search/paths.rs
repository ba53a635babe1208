//! The paths through a schedule that meet a stage most often, and what they leave it time for.

use super::bound::Shape;
use super::relax::Question;
use super::room::Spot;
use super::stall::Pass;
use crate::estimate::least::{Least, Passes};
use crate::spec::problem::Schedule;

/// A path through the schedule that meets a stage often.
#[derive(Clone, Copy)]
pub struct Path {
    pub pass: Pass,
    /// Seconds more for each layer before the stage beyond so many, and for each layer behind it.
    before: (f64, f64),
    behind: f64,
}

impl Path {
    /// What is left of `seconds` where so many layers lie before and behind the stage.
    pub fn left(&self, seconds: f64, around: (f64, f64)) -> f64 {
        let before = (around.0 - self.before.1).max(0.0);
        seconds - self.before.0 * before - self.behind * around.1
    }
}

/// What one micro-batch takes at least, on any kind.
pub struct Once {
    /// A layer.
    pub layer: f64,
    /// All of the model.
    pub once: f64,
    /// Layers of other sorts.
    pub others: f64,
}

/// The paths that meet stage `i` on a kind most often, where it stands on a `spot`.
pub fn paths(
    asked: &Question<'_>,
    (least, spot): (&Least, &Spot),
    i: usize,
    one: &Once,
) -> [Option<Path>; 3] {
    let path = |met: Met| {
        let on_path = |p: Passes| met.forward * p.forward + met.backward * p.backward;
        let ends = [(0, spot.first), (1, spot.last)].into_iter().filter(|end| end.1);
        let ends: f64 = ends.map(|(at, _)| on_path(least.ends[at])).sum();
        Path {
            pass: Pass::new(
                met.elsewhere + ends,
                on_path(least.layer),
                least.again.map(|again| met.backward * again),
            ),
            before: met.before,
            behind: met.behind,
        }
    };
    meetings(asked, one, i).map(|met| met.map(path))
}

/// How often a path meets a stage's forward and backward passes, and what it spends elsewhere.
#[derive(Clone, Copy, Default)]
struct Met {
    forward: f64,
    backward: f64,
    elsewhere: f64,
    before: (f64, f64),
    behind: f64,
}

/// How the paths through the schedule meet stage `i` (see [`super::bound::Tail`]).
fn meetings(asked: &Question<'_>, one: &Once, i: usize) -> [Option<Met>; 3] {
    let Shape { schedule, pp, vpp, micro_batches } = asked.shape;
    let (m, i) = (micro_batches as f64, i as f64);
    let all = Met { forward: m, backward: m, ..Met::default() };
    if asked.any_schedule {
        return [Some(all), None, None];
    }
    // Each stage ahead passes the layers of its first chunk on, and back: one at least, and an equal share, but for those of other
    // sorts and the one of whose place the embedding may have taken.
    let (v, taken) = (vpp as f64, f64::from(u8::from(asked.ends_take_places())));
    let one_each = (i - taken - one.others).max(0.0);
    let beyond = if vpp == 1 { one_each } else { v * (one_each + one.others) + taken * (v - 1.0) };
    let filled = Met { elsewhere: one_each * one.layer, before: (one.layer / v, beyond), ..all };
    let elsewhere = one.once;
    match schedule {
        Schedule::OneFOneB => {
            // The first micro-batch comes back through all stages, and then the others go through this one.
            let warm = m.min(pp as f64 - i);
            let turned = Met { forward: m - warm, backward: m - 1.0, elsewhere, ..Met::default() };
            // It comes back, the others go through this one, and the last goes on and comes back too.
            let both = Met {
                forward: m - warm,
                backward: m - warm,
                elsewhere,
                behind: one.layer,
                ..Met::default()
            };
            let steady = asked.flying as f64 > pp as f64 - i;
            [Some(filled), Some(turned), steady.then_some(both)]
        }
        Schedule::GPipe => {
            let turned = Met { forward: m - 1.0, backward: m - 1.0, elsewhere, ..Met::default() };
            [Some(filled), Some(turned), None]
        }
        Schedule::Interleaved => [Some(filled), None, None],
        Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV => [Some(all), None, None],
    }
}
