//! What a plan costs: the only verdict.
//!
//! A layer is priced operator by operator ([`layer`], over [`compute`] and [`collective`]); a stage is a range of
//! layers ([`stage`], with its [`memory`] and its [`replica`] work); the step is the longest path through the
//! schedule's events ([`pipeline`]). The search calls [`Step::new`] with tables that it keeps; [`estimate`] builds them
//! for one plan. Both give the same time to the picosecond.

mod attention;
pub mod block;
mod casts;
mod chain;
pub mod choice;
pub mod collective;
pub mod compute;
mod dispatch;
mod exchange;
mod experts;
mod fills;
pub mod flops;
pub mod fused_attention;
mod gathers;
mod host;
mod joined;
mod launches;
pub mod layer;
pub mod least;
mod loads;
pub mod longest;
pub mod memory;
mod orthogonal;
mod pass;
mod permutation;
pub mod pipeline;
pub mod repeats;
pub mod replica;
mod residual;
mod routing;
mod selective;
pub mod servers;
pub mod shard;
pub mod shortest;
pub mod stage;
mod stash;
mod torus;

use crate::error::Error;
use crate::plan::rules::require_legal;
use crate::plan::Plan;
use crate::spec::problem::Problem;
use crate::units::{Bytes, Time};
pub use memory::MemoryItems;
pub use pipeline::sends;
use pipeline::{Event, Sends, StageClock};
use serde::{Deserialize, Serialize};
use shard::Shard;
use stage::{Place, StageCost, Table};

/// What one step of a plan costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Estimate {
    /// Time of one step, in picoseconds.
    pub step_ps: Time,
    /// The same in seconds.
    pub step_s: f64,
    /// Tokens of the whole cluster in a second.
    pub tokens_per_s: f64,
    /// Model FLOPs (no recompute, full attention) over the 16-bit peak of the devices used.
    pub mfu: f64,
    /// What it costs in money, where each of its devices has a price.
    pub money: Option<Money>,
    /// Where the step goes, seen from its slowest stage. The parts add up to `step_ps`.
    pub time: TimeItems,
    /// One entry a pipeline stage.
    pub stages: Vec<StageEstimate>,
    /// Why it is not a legal plan, or does not fit; empty for a plan that runs.
    pub violations: Vec<String>,
}

/// Money, in the currency of the prices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Money {
    /// Of one step.
    pub step: f64,
    /// Of training on 10^12 tokens.
    pub trillion_tokens: f64,
}

impl Money {
    /// Money of `seconds` in which `tokens` are trained on; nothing if a chip that the plan uses has no price.
    fn of(problem: &Problem, plan: &Plan, seconds: f64, tokens: u64) -> Option<Money> {
        let price = |kind: usize| {
            let each = problem.cluster.groups[kind].chip.price_per_hour?;
            Some(each * plan.devices_per_stage(kind) as f64)
        };
        let hour: Option<f64> = plan.stages.iter().map(|s| price(s.chip as usize)).sum();
        let step = hour? * seconds / 3600.0;
        Some(Money { step, trillion_tokens: step / tokens as f64 * 1e12 })
    }
}

/// Where a step goes, in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeItems {
    /// Forward and backward passes of the layers, embedding and head, recompute apart.
    pub compute_ps: Time,
    /// Forward passes run a second time.
    pub recompute_ps: Time,
    /// Tensor-parallel communication that is not hidden.
    pub tensor_ps: Time,
    /// Context-parallel communication that is not hidden.
    pub context_ps: Time,
    /// Expert all-to-all that is not hidden.
    pub expert_ps: Time,
    /// Gathers and reductions of sharded parameters in every micro-batch that are not hidden, and activation offload.
    pub shard_ps: Time,
    /// Pipeline sends on the device's own time line.
    pub pipeline_ps: Time,
    /// Waiting for other stages.
    pub bubble_ps: Time,
    /// Gradient reduction and parameter gathering that is not hidden.
    pub data_ps: Time,
    /// Gradient norm and optimizer step.
    pub optimizer_ps: Time,
}

/// What one pipeline stage costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageEstimate {
    /// Forward pass of one micro-batch through all chunks, in picoseconds.
    pub forward_ps: Time,
    /// Backward pass of one micro-batch with its recompute, in picoseconds.
    pub backward_ps: Time,
    /// Memory by item.
    pub memory: MemoryItems,
    /// Allocated bytes and the context: what the driver shows at the peak.
    pub memory_bytes: Bytes,
    /// The same without the context: what the framework's allocator has taken.
    pub reserved_bytes: Bytes,
    /// What the framework's allocator hands out: the items but `context`, of logits and working set only the larger, as the
    /// loss is done before the first layer is computed again. This must not exceed `capacity_bytes`.
    pub allocated_bytes: Bytes,
    /// What a device of this chip offers, margin taken off.
    pub capacity_bytes: Bytes,
}

impl Plan {
    /// How its stages on a kind of chip are sharded.
    pub fn shard(&self, kind: usize) -> Shard {
        let tp = self.tp_of(kind);
        Shard {
            dp: self.dp,
            tp,
            sp: self.sp && tp > 1,
            cp: self.cp,
            ep: self.ep,
            etp: self.etp_of(kind),
            mbs: self.mbs,
            zero: self.zero,
            shard_group: self.shard_group,
            pipelined: self.pp > 1,
        }
    }

    /// Micro-batches of one step.
    pub fn micro_batches(&self, problem: &Problem) -> u64 {
        problem.workload.global_batch_size / (self.mbs * self.dp)
    }

    /// Places for layers in one chunk of stage `index`: its layers over vpp, rounded up where an end of the model takes one.
    fn slots(&self, index: usize) -> u32 {
        self.stages[index].layers.div_ceil(self.vpp as u32)
    }

    /// Where stage `index` stands.
    pub fn place(&self, problem: &Problem, index: usize) -> Place {
        let stage = &self.stages[index];
        let before = (0..index).map(|i| self.slots(i)).sum();
        Place {
            pp: self.pp,
            vpp: self.vpp,
            schedule: self.schedule,
            micro_batches: self.micro_batches(problem),
            index: index as u64,
            row: (0..self.stages.len()).map(|i| self.slots(i)).sum(),
            lead: self.slots(0) * self.vpp as u32 - self.stages[0].layers,
            first: before,
            layers: self.slots(index),
            recompute: stage.recompute,
            offload: stage.offload,
            optimizer_offload: self.optimizer_offload,
        }
    }
}

/// Prices for every kind of chip, each under its sharding; kinds that are not asked for are left out.
pub struct Tables<'a> {
    problem: &'a Problem,
    kinds: Vec<Option<Table<'a>>>,
}

impl<'a> Tables<'a> {
    /// Prices the kinds for which there is a `shard`.
    pub fn new(problem: &'a Problem, shard: impl Fn(usize) -> Option<Shard>) -> Tables<'a> {
        let kinds = (0..problem.cluster.groups.len())
            .map(|kind| shard(kind).map(|shard| Table::new(problem, kind, shard)))
            .collect();
        Tables { problem, kinds }
    }

    /// Prices the kinds that a plan uses.
    pub fn of(problem: &'a Problem, plan: &Plan) -> Tables<'a> {
        let used = |kind: usize| plan.stages.iter().any(|s| s.chip as usize == kind);
        Tables::new(problem, |kind| used(kind).then(|| plan.shard(kind)))
    }

    /// The same where each kind's steps may also end as under other shardings, which price its layers alike: as soon as under any.
    pub fn or_ending_as(mut self, shards: impl Fn(usize) -> Vec<Shard>) -> Tables<'a> {
        for (kind, table) in self.kinds.iter_mut().enumerate() {
            table.iter_mut().for_each(|table| table.may_end_as(&shards(kind)));
        }
        self
    }

    /// Prices a kind under a sharding, if it is not yet priced.
    pub fn price(&mut self, kind: usize, shard: Shard) {
        self.kinds[kind].get_or_insert_with(|| Table::new(self.problem, kind, shard));
    }

    /// What is trained, on what.
    pub fn problem(&self) -> &'a Problem {
        self.problem
    }

    /// The table of a kind, if it was asked for.
    pub fn get(&self, kind: usize) -> Option<&Table<'a>> {
        self.kinds[kind].as_ref()
    }

    /// The table of a kind.
    ///
    /// # Panics
    /// When the kind was not asked for.
    pub fn kind(&self, kind: usize) -> &Table<'a> {
        self.kinds[kind].as_ref().expect("a table is built for every kind that a plan uses")
    }

    /// Sends of one micro-batch for each stage of a pipeline over `kinds`: to the next stage, and the gradient to
    /// the previous one. The last stage's next is the first (its next chunk), and the reverse.
    pub fn sends(&self, kinds: &[usize]) -> Vec<(Time, Time)> {
        let pp = kinds.len();
        if pp == 1 {
            return vec![(Time::ZERO, Time::ZERO)];
        }
        let mut first = vec![pp; self.kinds.len()];
        for (i, &kind) in kinds.iter().enumerate() {
            first[kind] = first[kind].min(i);
        }
        let place = |i: usize| (kinds[i], (i - first[kinds[i]]) as u64);
        let send = |from: usize, to: usize| self.send(place(from), place(to));
        (0..pp).map(|i| (send(i, (i + 1) % pp), send(i, (i + pp - 1) % pp))).collect()
    }

    /// Send of one micro-batch between stages, each given by its kind and how many of that stand before it.
    ///
    /// Where the kinds differ in tensor parallel, each rank of the smaller group sends its slice of the sequence to several
    /// of the other, or takes it from them: its own bytes are what takes longest.
    pub fn send(&self, from: (usize, u64), to: (usize, u64)) -> Time {
        let (a, b) = (self.kind(from.0).pricer(), self.kind(to.0).pricer());
        Time::from_seconds(if from.0 == to.0 {
            a.message(from.1, to.1)
        } else {
            let bytes = a.boundary_bytes().max(b.boundary_bytes());
            let link = self.problem.cluster.between_kinds.as_ref();
            b.exchanged(a.fabric().send_between(bytes, b.fabric(), link))
        })
    }
}

/// One step of a plan, priced.
pub struct Step {
    /// One entry a stage.
    pub stages: Vec<StageCost>,
    /// The same for the clock.
    pub clocks: Vec<StageClock>,
    /// How sends meet computation.
    pub sends: Sends,
    /// From the first pass to the last update.
    pub time: Time,
}

impl Step {
    /// Prices `plan`, which must pass [`crate::plan::rules::check`] apart from its device count and memory.
    pub fn new(tables: &Tables<'_>, plan: &Plan) -> Step {
        let (stages, clocks, sends) = Step::stages(tables, plan);
        let micro_batches = plan.micro_batches(tables.problem);
        let time = pipeline::makespan(plan.schedule, sends, &clocks, micro_batches);
        Step { stages, clocks, sends, time }
    }

    /// The time of `plan`, which must pass the same, if it is less than `ceiling`.
    pub fn time_below(tables: &Tables<'_>, plan: &Plan, ceiling: Time) -> Option<Time> {
        let (_, clocks, sends) = Step::stages(tables, plan);
        let micro_batches = plan.micro_batches(tables.problem);
        pipeline::late::makespan_below(plan.schedule, sends, &clocks, micro_batches, ceiling)
    }

    /// What each stage of a plan costs, the same for the clock, and how sends meet computation.
    pub fn stages(tables: &Tables<'_>, plan: &Plan) -> (Vec<StageCost>, Vec<StageClock>, Sends) {
        let problem = tables.problem;
        let sends = sends(problem, plan.schedule);
        let kinds: Vec<usize> = plan.stages.iter().map(|s| s.chip as usize).collect();
        let crossing = tables.sends(&kinds);
        let (mut stages, mut clocks) = (Vec::new(), Vec::new());
        for (i, s) in plan.stages.iter().enumerate() {
            let place = plan.place(problem, i);
            let table = tables.kind(s.chip as usize);
            let cost = table.stage(&place);
            clocks.push(StageClock {
                chunks: (0..plan.vpp).map(|c| table.chunk(&place, c)).collect(),
                send_forward: crossing[i].0,
                send_backward: crossing[i].1,
                tail: cost.tail(),
            });
            stages.push(cost);
        }
        (stages, clocks, sends)
    }

    /// Stages that lack memory, with what each lacks.
    pub fn lacking(&self, tables: &Tables<'_>, plan: &Plan) -> Vec<(usize, Bytes)> {
        self.stages
            .iter()
            .enumerate()
            .map(|(i, s)| {
                let capacity = tables.kind(plan.stages[i].chip as usize).capacity();
                (i, s.memory.allocated().beyond(capacity))
            })
            .filter(|(_, lack)| *lack > Bytes::ZERO)
            .collect()
    }
}

/// Estimates one step of `plan`.
///
/// # Errors
/// When the plan breaks a rule of [`crate::plan::rules::check`]. A plan that does not fit in memory is estimated, and its `violations`
/// say what it lacks.
pub fn estimate(problem: &Problem, plan: &Plan) -> Result<Estimate, Error> {
    require_legal(problem, plan)?;
    let tables = Tables::of(problem, plan);
    let step = Step::new(&tables, plan);
    let violations = step
        .lacking(&tables, plan)
        .into_iter()
        .map(|(stage, lack)| format!("stage {stage} lacks {:.2} GiB of memory", lack.gib()))
        .chain((step.time == Time::MAX).then(|| "the step takes over 213 days".to_owned()))
        .collect();
    let seconds = step.time.seconds();
    let tokens = problem.workload.tokens();
    let flops = problem.model.model_flops(tokens, problem.workload.sequence_length);
    Ok(Estimate {
        step_ps: step.time,
        step_s: seconds,
        tokens_per_s: tokens as f64 / seconds,
        mfu: flops / seconds / flops::peak(problem, plan),
        money: Money::of(problem, plan, seconds, tokens),
        time: items(&tables, plan, &step),
        stages: step
            .stages
            .iter()
            .enumerate()
            .map(|(i, s)| StageEstimate {
                forward_ps: s.forward,
                backward_ps: s.backward,
                memory: s.memory,
                memory_bytes: s.memory.total(),
                reserved_bytes: s.memory.reserved(),
                allocated_bytes: s.memory.allocated(),
                capacity_bytes: tables.kind(plan.stages[i].chip as usize).capacity(),
            })
            .collect(),
        violations,
    })
}

/// Splits the step by cause, seen from the stage with the most work; what is left is waiting.
fn items(tables: &Tables<'_>, plan: &Plan, step: &Step) -> TimeItems {
    let problem = tables.problem;
    let m = plan.micro_batches(problem);
    let busy = |i: usize| {
        let s = &step.stages[i];
        (s.busy() + own_sends(plan, step, i)) * m + s.tail()
    };
    let slowest =
        (0..step.stages.len()).max_by_key(|&i| (busy(i), std::cmp::Reverse(i))).unwrap_or(0);
    let place = plan.place(problem, slowest);
    let table = tables.kind(plan.stages[slowest].chip as usize);
    let mut t = TimeItems::default();
    for chunk in 0..plan.vpp {
        let spent = table.spent(&place, chunk);
        t.compute_ps += spent.passes.compute * m;
        t.recompute_ps += spent.recompute.compute * m;
        t.tensor_ps += (spent.passes.tensor + spent.recompute.tensor) * m;
        t.context_ps += (spent.passes.context + spent.recompute.context) * m;
        t.expert_ps += (spent.passes.expert + spent.recompute.expert) * m;
        t.shard_ps += (spent.passes.shard + spent.recompute.shard + spent.offload) * m;
    }
    t.pipeline_ps = own_sends(plan, step, slowest) * m;
    t.data_ps = step.stages[slowest].synchronise;
    t.optimizer_ps = step.stages[slowest].update;
    t.bubble_ps = step.time.beyond(t.sum());
    t
}

/// Time of one micro-batch that a stage spends in its own sends.
fn own_sends(plan: &Plan, step: &Step, i: usize) -> Time {
    if step.sends == Sends::Overlapped {
        return Time::ZERO;
    }
    let clock = &step.clocks[i];
    let v = plan.vpp;
    let forward = if i + 1 < step.clocks.len() { v } else { v - 1 };
    let backward = if i > 0 { v } else { v - 1 };
    clock.send_forward * forward + clock.send_backward * backward
}

/// The events of one step, at most `limit`, in order of their start.
///
/// # Errors
/// As [`estimate`].
pub fn timeline(problem: &Problem, plan: &Plan, limit: usize) -> Result<Vec<Event>, Error> {
    estimate(problem, plan)?;
    let tables = Tables::of(problem, plan);
    let step = Step::new(&tables, plan);
    let shown = plan.micro_batches(problem).min(SHOWN_ROUNDS * plan.pp);
    let tails: Vec<_> = step.stages.iter().map(|s| (s.synchronise, s.update)).collect();
    Ok(pipeline::events(plan.schedule, step.sends, &step.clocks, shown, &tails, limit))
}

/// Rounds of `pp` micro-batches that a timeline shows: warm-up, steady state and cool-down.
pub const SHOWN_ROUNDS: u64 = 8;

impl TimeItems {
    /// All parts together.
    pub fn sum(&self) -> Time {
        self.compute_ps
            + self.recompute_ps
            + self.tensor_ps
            + self.context_ps
            + self.expert_ps
            + self.shard_ps
            + self.pipeline_ps
            + self.bubble_ps
            + self.data_ps
            + self.optimizer_ps
    }
}
