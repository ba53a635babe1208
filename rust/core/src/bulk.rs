//! Many plans of one problem, one row of whole numbers each: what [`estimate`](crate::estimate::estimate) says of a plan, to
//! the bit, without a document.
//!
//! Rows share the price tables of their sharding, and those of a block are priced in its order, so that tables stay in the
//! processor's caches. A pipeline of equal stages is priced by its first, second and last stage, under 1F1B by a closed form of
//! them; every other plan goes the way of `estimate`, but that the order of its passes is worked out once.

use crate::error::{require, Error};
use crate::estimate::longest::{self, Lane};
use crate::estimate::pipeline::tape::Tapes;
use crate::estimate::pipeline::{Sends, StageClock};
use crate::estimate::shard::Shard;
use crate::estimate::stage::{Place, StageCost, Table};
use crate::estimate::{flops, sends, Step, Tables};
use crate::plan::rules::{first_broken, Rule};
use crate::plan::{Plan, Recompute, Stage};
use crate::search::watch::Watch;
use crate::spec::problem::{Problem, Schedule};
use crate::units::{Bytes, Time};
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::{Hash, Hasher};

/// The columns of a row, in order. A degree that does not lie in 1 to 2^30 makes the row illegal, not the table.
pub const COLUMNS: [&str; 17] = [
    "dp",
    "tp",
    "sp",
    "cp",
    "ep",
    "etp",
    "pp",
    "vpp",
    "mbs",
    "zero",
    "shard_group",
    "schedule",
    "recompute",
    "recompute_layers",
    "offload",
    "optimizer_offload",
    "chip",
];

/// Words of one answer: step in picoseconds; seconds, tokens a second and MFU as the bits of 64-bit floats; allocated and
/// offered bytes of the fullest stage; `fits`, violation and stage in one (1, 1, 2 empty and 4 bytes in native order).
pub const WORDS: usize = 7;

/// Violation of a plan that does not fit in memory. Of others it is the [`Rule`], of none 0.
pub const LACKS_MEMORY: u8 = 32;
/// Violation of a step beyond [`Time::MAX`].
pub const TOO_LONG: u8 = 33;

/// Layers and kinds of chip of each row's stages, one line a row; a line is as long as the deepest pipeline.
#[derive(Clone, Copy, Debug)]
pub struct Stages<'a> {
    /// Entries in a line.
    pub width: usize,
    /// Layers of each stage; entries from `pp` on are not looked at.
    pub layers: &'a [i32],
    /// Kind of chip of each stage; the row's `chip` for all of them if there is none.
    pub chips: Option<&'a [i32]>,
}

/// Sharding tables kept at a time: about 100 MB for a model of 100 layers.
const KEPT_TABLES: usize = 4096;

/// Rows between two looks at the watch.
const ROWS_A_LOOK: usize = 256;

/// Rows of a block, and into how many parts their shardings are told apart.
const BLOCK: usize = 1 << 13;
const PARTS: usize = 1 << 12;

/// What each row of [`COLUMNS`] in `cells` costs, [`WORDS`] a row; fewer rows if the watch stopped it.
///
/// # Errors
/// A column that holds a code that does not exist, or stages of another shape than the rows.
pub fn estimate_many(
    problem: &Problem,
    cells: &[i32],
    stages: Option<Stages<'_>>,
    watch: &Watch,
) -> Result<Vec<u64>, Error> {
    let columns = COLUMNS.len();
    require(
        cells.len().is_multiple_of(columns),
        "plans",
        || format!("must have {columns} columns, found {} cells", cells.len()),
        "Give one row a plan.",
    )?;
    let rows = cells.len() / columns;
    if let Some(s) = stages {
        let entries = rows.saturating_mul(s.width);
        require(
            s.layers.len() == entries && s.chips.is_none_or(|chips| chips.len() == entries),
            "layers",
            || format!("must have one line for each of {rows} plans"),
            "Give layers, and chips if any, as arrays of plans by stages.",
        )?;
    }
    let mut bulk = Bulk::new(problem);
    let mut words = vec![0; rows * WORDS];
    for (block, cells) in cells.chunks(BLOCK * columns).enumerate() {
        let start = block * BLOCK;
        for (n, row) in cells.chunks_exact(columns).enumerate() {
            check_codes(problem, start + n, row, stages)?;
        }
        for (done, n) in by_sharding(cells).into_iter().enumerate() {
            if done % ROWS_A_LOOK == 0 && watch.stopped() {
                words.truncate(start * WORDS);
                return Ok(words);
            }
            let verdict = match bulk.read(start + n, &cells[n * columns..][..columns], stages) {
                None => bulk.price(),
                Some(rule) => Verdict::illegal(rule),
            };
            words[(start + n) * WORDS..][..WORDS].copy_from_slice(&verdict.words());
        }
    }
    Ok(words)
}

/// Places of the rows of a block, those with one sharding next to each other.
fn by_sharding(cells: &[i32]) -> Vec<usize> {
    let part = |row: &[i32]| {
        let &[dp, tp, sp, cp, ep, etp, pp, _, mbs, zero, shard_group, ..] = row else {
            unreachable!("a row has {} columns", COLUMNS.len());
        };
        let mut hasher = FxHasher::default();
        [dp, tp, sp, cp, ep, etp, i32::from(pp > 1), mbs, zero, shard_group].hash(&mut hasher);
        hasher.finish() as usize % PARTS
    };
    let parts: Vec<usize> = cells.chunks_exact(COLUMNS.len()).map(part).collect();
    let mut next = vec![0; PARTS + 1];
    parts.iter().for_each(|part| next[part + 1] += 1);
    for part in 0..PARTS {
        next[part + 1] += next[part];
    }
    let mut order = vec![0; parts.len()];
    for (n, part) in parts.into_iter().enumerate() {
        order[next[part]] = n;
        next[part] += 1;
    }
    order
}

/// Refuses a code that does not exist in row `n`.
fn check_codes(
    problem: &Problem,
    n: usize,
    row: &[i32],
    stages: Option<Stages<'_>>,
) -> Result<(), Error> {
    let &[_, _, sp, _, _, _, pp, _, _, zero, _, schedule, recompute, _, _, on_host, chip] = row
    else {
        unreachable!("a row has {} columns", COLUMNS.len());
    };
    let code = |name: &str, found: i32, last: i32| {
        if (0..=last).contains(&found) {
            return Ok(());
        }
        Err(Error::new(
            format!("plans[{n}].{name}"),
            format!("must be from 0 to {last}, found {found}"),
            "The codes are listed at autopar.estimate_many.",
        ))
    };
    let last_kind = problem.cluster.groups.len() as i32 - 1;
    code("sp", sp, 1)?;
    code("zero", zero, 3)?;
    code("schedule", schedule, SCHEDULES.len() as i32 - 1)?;
    code("recompute", recompute, 3)?;
    code("optimizer_offload", on_host, 1)?;
    code("chip", chip, last_kind)?;
    let Some(Stages { width, chips: Some(chips), .. }) = stages else { return Ok(()) };
    let depth = usize::try_from(pp).unwrap_or(0);
    let line = if depth > width { 0 } else { depth };
    chips[n * width..][..line].iter().try_for_each(|&kind| code("chips", kind, last_kind))
}

/// What one row costs.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    step: Time,
    tokens_per_s: f64,
    mfu: f64,
    allocated: Bytes,
    capacity: Bytes,
    stage: u32,
    violation: u8,
}

impl Verdict {
    fn illegal(rule: Rule) -> Verdict {
        Verdict {
            step: Time::ZERO,
            tokens_per_s: f64::NAN,
            mfu: f64::NAN,
            allocated: Bytes::ZERO,
            capacity: Bytes::ZERO,
            stage: 0,
            violation: rule as u8,
        }
    }
}

impl Verdict {
    fn words(&self) -> [u64; WORDS] {
        let [a, b, c, d] = self.stage.to_ne_bytes();
        let fits = u8::from(self.violation == 0);
        let step_s = if self.mfu.is_nan() { f64::NAN } else { self.step.seconds() };
        [
            self.step.0,
            step_s.to_bits(),
            self.tokens_per_s.to_bits(),
            self.mfu.to_bits(),
            self.allocated.0,
            self.capacity.0,
            u64::from_ne_bytes([fits, self.violation, 0, 0, a, b, c, d]),
        ]
    }
}

/// What rows share: the tables so far, and one plan that is written over.
struct Bulk<'a> {
    problem: &'a Problem,
    tokens: f64,
    flops: f64,
    tables: Vec<Tables<'a>>,
    places: FxHashMap<Shard, usize>,
    /// The sharding of the row before, and the place of its tables.
    last: Option<(Shard, usize)>,
    plan: Plan,
    /// Whether all stages of the plan are equal.
    equal: bool,
    /// First, second and last of equal stages for the clock, and the orders of their passes.
    clocks: [StageClock; 3],
    tapes: Tapes,
}

impl<'a> Bulk<'a> {
    fn new(problem: &'a Problem) -> Bulk<'a> {
        let tokens = problem.workload.tokens();
        Bulk {
            problem,
            tokens: tokens as f64,
            flops: problem.model.model_flops(tokens, problem.workload.sequence_length),
            tables: Vec::new(),
            places: FxHashMap::default(),
            last: None,
            plan: Plan {
                dp: 1,
                tp: 1,
                tp_of_kind: Vec::new(),
                sp: false,
                cp: 1,
                ep: 1,
                etp: 1,
                pp: 1,
                vpp: 1,
                mbs: 1,
                zero: 0,
                shard_group: 1,
                schedule: Schedule::OneFOneB,
                optimizer_offload: false,
                stages: Vec::new(),
            },
            equal: true,
            clocks: Default::default(),
            tapes: Tapes::default(),
        }
    }

    /// Reads row `n`, whose codes exist, into the plan, or says which rule its stages break before they can be told.
    fn read(&mut self, n: usize, row: &[i32], stages: Option<Stages<'_>>) -> Option<Rule> {
        let &[dp, tp, sp, cp, ep, etp, pp, vpp, mbs, zero, shard_group, schedule, recompute, layers, offload, on_host, chip] =
            row
        else {
            unreachable!("a row has {} columns", COLUMNS.len());
        };
        // What is negative is no degree either way.
        let degree = |found: i32| u64::try_from(found).unwrap_or(0);
        let count = |found: i32| u32::try_from(found).unwrap_or(u32::MAX);
        let recompute = match recompute {
            0 => Recompute::None,
            1 => Recompute::Selective,
            2 => Recompute::Block { layers: count(layers) },
            _ => Recompute::Uniform { layers: count(layers) },
        };
        let all = self.problem.model.layers;
        let plan = &mut self.plan;
        plan.dp = degree(dp);
        plan.tp = degree(tp);
        plan.sp = sp == 1;
        plan.cp = degree(cp);
        plan.ep = degree(ep);
        plan.etp = degree(etp);
        plan.pp = degree(pp);
        plan.vpp = degree(vpp);
        plan.mbs = degree(mbs);
        plan.zero = zero as u8;
        plan.shard_group = degree(shard_group);
        plan.schedule = SCHEDULES[schedule as usize];
        plan.optimizer_offload = on_host == 1;
        let stage = Stage { chip: chip as u32, layers: 0, recompute, offload: count(offload) };
        let depth = plan.pp as usize;
        plan.stages.clear();
        if pp < 1 {
            return Some(Rule::Degrees);
        }
        match stages {
            None if !all.is_multiple_of(pp as u32) => return Some(Rule::Layers),
            None => plan.stages.resize(depth, Stage { layers: all / pp as u32, ..stage }),
            Some(stages) if depth > stages.width => return Some(Rule::Layers),
            Some(stages) => {
                let line = n * stages.width..n * stages.width + depth;
                let layers = &stages.layers[line.clone()];
                plan.stages.extend(layers.iter().map(|&l| Stage { layers: count(l), ..stage }));
                let chips = stages.chips.map_or(&[][..], |chips| &chips[line]);
                for (stage, &kind) in plan.stages.iter_mut().zip(chips) {
                    stage.chip = kind as u32;
                }
            }
        }
        self.equal = stages.is_none() || plan.stages.iter().all(|s| *s == plan.stages[0]);
        None
    }

    /// Where the tables of a sharding are.
    fn place(&mut self, shard: Shard) -> usize {
        if let Some(&place) = self.places.get(&shard) {
            return place;
        }
        if self.tables.len() >= KEPT_TABLES {
            self.tables.clear();
            self.places.clear();
        }
        self.tables.push(Tables::new(self.problem, |_| None));
        self.places.insert(shard, self.tables.len() - 1);
        self.tables.len() - 1
    }

    /// Prices the plan.
    fn price(&mut self) -> Verdict {
        if let Some(rule) = first_broken(self.problem, &self.plan) {
            return Verdict::illegal(rule);
        }
        let shard = self.plan.shard(0);
        let place = match self.last {
            Some((last, place)) if last == shard => place,
            _ => self.place(shard),
        };
        self.last = Some((shard, place));
        let (plan, tables) = (&self.plan, &mut self.tables[place]);
        let distinct = if self.equal { 1 } else { plan.stages.len() };
        for stage in &plan.stages[..distinct] {
            tables.price(stage.chip as usize, shard);
        }
        let of_equals = if self.equal {
            equal_stages(tables, plan, &mut self.clocks, &mut self.tapes)
        } else {
            None
        };
        let (step, fullest) = of_equals.unwrap_or_else(|| {
            let (costs, clocks, sends) = Step::stages(tables, plan);
            let micro_batches = plan.micro_batches(self.problem);
            let step = self.tapes.makespan(plan.schedule, sends, &clocks, plan.pp, micro_batches);
            let stages = costs.iter().zip(&plan.stages).enumerate();
            let rooms =
                stages.map(|(i, (cost, s))| Room::of(i, cost, tables.kind(s.chip as usize)));
            (step, fullest(rooms))
        });
        let lacks = fullest.allocated > fullest.capacity;
        let seconds = step.seconds();
        Verdict {
            step,
            tokens_per_s: self.tokens / seconds,
            mfu: self.flops / seconds / flops::peak(self.problem, plan),
            allocated: fullest.allocated,
            capacity: fullest.capacity,
            stage: fullest.stage as u32,
            violation: match (lacks, step == Time::MAX) {
                (true, _) => LACKS_MEMORY,
                (false, true) => TOO_LONG,
                (false, false) => 0,
            },
        }
    }
}

/// Schedules by their code.
const SCHEDULES: [Schedule; 5] = [
    Schedule::OneFOneB,
    Schedule::Interleaved,
    Schedule::GPipe,
    Schedule::ZeroBubbleH1,
    Schedule::ZeroBubbleV,
];

/// Memory of one stage.
#[derive(Clone, Copy, Debug)]
struct Room {
    stage: usize,
    allocated: Bytes,
    capacity: Bytes,
}

impl Room {
    fn of(stage: usize, cost: &StageCost, table: &Table<'_>) -> Room {
        Room { stage, allocated: cost.memory.allocated(), capacity: table.capacity() }
    }
}

/// The stage with the least memory left, or that lacks most; the first of several.
fn fullest(rooms: impl Iterator<Item = Room>) -> Room {
    let left = |room: &Room| i128::from(room.capacity.0) - i128::from(room.allocated.0);
    rooms.min_by_key(left).expect("a pipeline has a stage")
}

/// Step and fullest stage of equal stages over equal layers: the second stage stands for all between the ends, which hold as much
/// but for activations in flight, of which the second has most. Nothing for other plans.
fn equal_stages(
    tables: &Tables<'_>,
    plan: &Plan,
    clocks: &mut [StageClock; 3],
    tapes: &mut Tapes,
) -> Option<(Time, Room)> {
    let problem = tables.problem();
    let kind = plan.stages[0].chip as usize;
    let table = tables.kind(kind);
    if !table.uniform() || !table.pricer().neighbours_alike(plan.pp) {
        return None;
    }
    let (schedule, sends) = (plan.schedule, sends(problem, plan.schedule));
    let one_f_one_b = schedule == Schedule::OneFOneB && sends == Sends::Blocking;
    let micro_batches = plan.micro_batches(problem);
    let last = plan.stages.len() - 1;
    let layers = plan.stages[0].layers;
    // What `Plan::place` says of equal stages of one chunk.
    let place = |index: usize| Place {
        pp: plan.pp,
        vpp: 1,
        schedule,
        micro_batches,
        index: index as u64,
        row: problem.model.layers,
        lead: 0,
        first: index as u32 * layers,
        layers,
        recompute: plan.stages[0].recompute,
        offload: plan.stages[0].offload,
        optimizer_offload: plan.optimizer_offload,
    };
    let send = |to: usize| match last {
        0 => Time::ZERO,
        _ => tables.send((kind, 0), (kind, to as u64)),
    };
    // An interleaved pipeline sends from its last stage to its first too.
    let (near, around) = (send(1), if one_f_one_b { Time::ZERO } else { send(last) });
    let mut lanes = [Lane::default(); 3];
    let mut rooms = [None; 3];
    let mut told = 0;
    for (n, index) in [0, 1, last].into_iter().enumerate() {
        // A short pipeline has no middle, and one stage is its own last.
        if (n == 1 && last < 2) || (n == 2 && last == 0) {
            continue;
        }
        let place = if plan.vpp == 1 { place(index) } else { plan.place(problem, index) };
        let cost = table.stage(&place);
        rooms[n] = Some(Room::of(index, &cost, table));
        if one_f_one_b {
            lanes[n] = Lane {
                forward: cost.forward + if index == last { Time::ZERO } else { near },
                backward: cost.backward + if index == 0 { Time::ZERO } else { near },
                tail: cost.tail(),
            };
        } else {
            let clock = &mut clocks[told];
            clock.chunks.clear();
            clock.chunks.extend((0..plan.vpp).map(|chunk| table.chunk(&place, chunk)));
            clock.send_forward = if index == last { around } else { near };
            clock.send_backward = if index == 0 { around } else { near };
            clock.tail = cost.tail();
        }
        told += 1;
    }
    let time = if one_f_one_b {
        longest::of_equal_stages(&lanes, plan.pp, micro_batches)?
    } else {
        tapes.makespan(schedule, sends, &clocks[..told], plan.pp, micro_batches)
    };
    Some((time, fullest(rooms.into_iter().flatten())))
}
