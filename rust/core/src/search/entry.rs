//! One choice of degrees and micro-batch, with a lower bound for every plan below it.

use super::bound::Shape;
use super::cell::Cell;
use super::places::Places;
use super::relax::Question;
use super::report::Cut;
use super::space::{offered, shard, Stages};
use crate::estimate::least::{Least, Passes};
use crate::estimate::pipeline::Sends;
use crate::estimate::sends;
use crate::estimate::shard::Shard;
use crate::spec::problem::{Problem, Schedule};
use crate::units::Time;
use std::borrow::Cow;

/// One choice of degrees and micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Degrees.
    pub cell: Cell,
    /// Sequence parallelism.
    pub sp: bool,
    /// Expert parallelism.
    pub ep: u64,
    /// Micro-batch.
    pub mbs: u64,
    /// ZeRO stages that may matter.
    pub zero: [bool; 4],
    /// No plan below it is faster.
    pub bound: Time,
    /// Classes below it.
    pub classes: u64,
    /// Place of its prices.
    pub(super) row: usize,
}

impl Entry {
    /// How its stages on a kind of chip are sharded under a ZeRO stage and shard group.
    pub fn shard(&self, problem: &Problem, kind: usize, sharding: (u8, u64)) -> Shard {
        shard(problem, self.cell, kind, self.sp, self.ep, self.mbs, sharding)
    }

    /// Micro-batches of a step.
    pub fn micro_batches(&self, problem: &Problem) -> u64 {
        problem.workload.global_batch_size / (self.cell.dp * self.mbs)
    }

    /// What is asked about a schedule; `even`: all stages hold equally many layers.
    pub fn question<'p>(
        &self,
        problem: &'p Problem,
        (schedule, vpp): (Schedule, u64),
        even: bool,
        limit: Time,
    ) -> Question<'p> {
        let micro_batches = self.micro_batches(problem);
        Question {
            problem,
            shape: Shape { schedule, pp: self.cell.pp, vpp, micro_batches },
            sends: sends(problem, schedule),
            even,
            any_schedule: false,
            flying: micro_batches,
            limit: limit.seconds(),
        }
    }
}

/// Bytes that no stage needs, finite so that rates may be made of them.
const UNLIMITED: f64 = 1e18;

/// Why no plan below an entry is within `limit`, if none is: as [`entry_bound`] says, without looking for the time that all take.
pub fn cut_entry(
    problem: &Problem,
    entry: &Entry,
    flying: u64,
    leasts: &[Option<Least>],
    limit: Time,
) -> Option<Cut> {
    let within = |places: &Places<'_>, bound| places.cut(limit).map_or(Ok(bound), Err);
    bound_with(problem, entry, flying, leasts, limit, within).err()
}

/// A bound for every schedule, sharding and composition below an entry: the fastest kinds take as many stages as
/// they may; activations take their memory, and of parameters and optimizer what the most frugal sharding leaves. Of `flying`
/// micro-batches of a step, no more than it has, some are in flight.
pub fn entry_bound(
    problem: &Problem,
    entry: &Entry,
    flying: u64,
    leasts: &[Option<Least>],
    limit: Time,
) -> Result<Time, Cut> {
    let least = |places: &Places<'_>, bound| places.bound(bound, limit);
    bound_with(problem, entry, flying, leasts, limit, least)
}

/// The same where `among` says what stages on several kinds make of a bound.
fn bound_with(
    problem: &Problem,
    entry: &Entry,
    flying: u64,
    leasts: &[Option<Least>],
    limit: Time,
    among: impl FnOnce(&Places<'_>, Time) -> Result<Time, Cut>,
) -> Result<Time, Cut> {
    let cell = entry.cell;
    let mut fastest = Cow::Borrowed(leasts);
    let offered = offered(problem, &entry.cell);
    let mut order = offered.clone();
    order.retain(|s| s.most > 0);
    let unit = |s: &Stages| leasts[s.kind].as_ref().map_or(f64::INFINITY, |l| l.layer.both());
    // The layers fit best with the slowest stages last.
    order.sort_by(|a, b| unit(a).total_cmp(&unit(b)));
    let mut kinds = Vec::with_capacity(cell.pp as usize);
    for Stages { kind, most } in &order {
        let stages = (*most).min(cell.pp - kinds.len() as u64);
        kinds.extend(std::iter::repeat_n(*kind, stages as usize));
    }
    if kinds.len() < cell.pp as usize {
        return Err(Cut::Limits);
    }
    if order.len() > 1 {
        // Any kind may stand anywhere: memory is looked at below, the ends take what they take on the fastest, and the
        // step ends where its end is shortest.
        let of = |pick: fn(&Least) -> Passes| {
            leasts.iter().flatten().map(pick).reduce(Passes::min).unwrap_or_default()
        };
        let (other, ends) = (of(|l| l.other), [of(|l| l.ends[0]), of(|l| l.ends[1])]);
        for least in fastest.to_mut().iter_mut().flatten() {
            least.capacity = UNLIMITED;
            least.forget_tail();
            (least.other, least.ends) = (other, ends);
        }
    }
    let micro_batches = entry.micro_batches(problem);
    let question = Question {
        problem,
        shape: Shape { schedule: Schedule::OneFOneB, pp: cell.pp, vpp: 1, micro_batches },
        sends: Sends::Overlapped,
        even: cell.pp == 1,
        any_schedule: true,
        flying,
        limit: limit.seconds(),
    };
    let bound = question.bound(&fastest, &kinds).within(limit)?;
    if order.len() == 1 {
        return Ok(bound);
    }
    Places::new(&question, leasts, &offered)
        .map_or(Err(Cut::Placement), |places| among(&places, bound))
}
