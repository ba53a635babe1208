//! Laws that hold for every problem, tried on random ones, and the pipeline's clock against a plain simulation.

mod draw;

use autopar_core::bulk::{estimate_many, Stages, LACKS_MEMORY, WORDS};
use autopar_core::estimate::least::Least;
use autopar_core::estimate::longest::{self, Lane};
use autopar_core::estimate::memory;
use autopar_core::estimate::pipeline::{
    events, makespan, Chunk, Event, Kind, Sends, StageClock, Task,
};
use autopar_core::estimate::stage::Place;
use autopar_core::estimate::{estimate, sends, Tables};
use autopar_core::plan::{check, Plan, Recompute, Stage};
use autopar_core::search::bound::{Continuous, Shape, Tail, Work};
use autopar_core::search::caps::Places;
use autopar_core::search::relax::{Question, Stages as Offered, Verdict};
use autopar_core::search::report::{Ranked, Report, StopReason};
use autopar_core::search::search;
use autopar_core::spec::problem::{Problem, Schedule};
use autopar_core::testing;
use autopar_core::units::{Time, GIB};
use autopar_core::{wire, Watch};
use draw::Draw;
use std::collections::HashMap;

// ---- The clock -------------------------------------------------------------------------------------------------------

const SCHEDULES: [Schedule; 5] = [
    Schedule::OneFOneB,
    Schedule::Interleaved,
    Schedule::GPipe,
    Schedule::ZeroBubbleH1,
    Schedule::ZeroBubbleV,
];

const SENDS: [Sends; 2] = [Sends::Blocking, Sends::Overlapped];

/// A pass of one stage: what it does, its chunk and its micro-batch.
type Pass = (char, u64, u64);

/// The order of passes on stage `i` of `p`, as the schedule's authors write it.
fn passes(schedule: Schedule, p: u64, i: u64, v: u64, m: u64) -> Vec<Pass> {
    let mut list = Vec::new();
    match schedule {
        Schedule::GPipe => {
            list.extend((0..m).map(|k| ('F', 0, k)));
            list.extend((0..m).map(|k| ('B', 0, k)));
        }
        // Megatron: warm-up forward passes, then one forward and one backward in turn, then the rest backward.
        Schedule::OneFOneB | Schedule::Interleaved => {
            let all = m * v;
            let warm = match schedule {
                Schedule::OneFOneB => p - i - 1,
                _ => 2 * (p - i - 1) + (v - 1) * p,
            };
            let warm = warm.min(all);
            let place = |k: u64| (k % (p * v) / p, k / (p * v) * p + k % p);
            let forward = |k: u64| ('F', place(k).0, place(k).1);
            let backward = |k: u64| ('B', v - 1 - place(k).0, place(k).1);
            let (forward, backward): (Vec<Pass>, Vec<Pass>) = if v == 1 {
                ((0..all).map(|k| ('F', 0, k)).collect(), (0..all).map(|k| ('B', 0, k)).collect())
            } else {
                ((0..all).map(forward).collect(), (0..all).map(backward).collect())
            };
            let (mut f, mut b) = (forward.into_iter(), backward.into_iter());
            list.extend(f.by_ref().take(warm as usize));
            for one in f {
                list.push(one);
                list.extend(b.next());
            }
            list.extend(b);
        }
        // Each backward pass is followed by the weight gradient of `i` micro-batches before and by a forward pass.
        Schedule::ZeroBubbleH1 => {
            let mut f = (0..m).map(|k| ('F', 0, k));
            list.extend(f.by_ref().take((p - i) as usize));
            for k in 0..m {
                list.push(('B', 0, k));
                if k >= i {
                    list.push(('W', 0, k - i));
                }
                list.extend(f.next());
            }
            list.extend((m.saturating_sub(i)..m).map(|k| ('W', 0, k)));
        }
        // The phases of ZB-V: out, both ways, inner backward, steady, drain; for at least 2p - 1 micro-batches.
        Schedule::ZeroBubbleV => {
            let n = m.max(2 * p - 1);
            let mut next: HashMap<(char, u64), u64> = HashMap::new();
            let mut run = |kind: char, chunk: u64| {
                let k = next.entry((kind, chunk)).or_insert(0);
                list.push((kind, chunk, *k));
                *k += 1;
                *k
            };
            let (mut outer, mut inner) = (0, 0);
            for _ in 0..2 * (p - i) - 1 {
                outer = run('F', 0);
            }
            for _ in 0..i {
                inner = run('F', 1);
                outer = run('F', 0);
            }
            for _ in 0..p - i {
                inner = run('F', 1);
                run('B', 1);
                run('W', 1);
            }
            while inner < n {
                if outer < n {
                    outer = run('F', 0);
                }
                run('B', 0);
                run('W', 0);
                inner = run('F', 1);
                run('B', 1);
                run('W', 1);
            }
            for _ in 0..i {
                run('B', 0);
                run('B', 1);
            }
            for _ in 0..p - i {
                run('B', 0);
                run('W', 0);
            }
            for chunk in [1, 0] {
                for _ in 0..i {
                    run('W', chunk);
                }
            }
            list.retain(|&(_, _, k)| k < m);
        }
    }
    list
}

/// Runs every pass of every stage, one after the other, as soon as what it needs is there.
fn simulate(schedule: Schedule, sends: Sends, stages: &[StageClock], m: u64) -> Time {
    let (p, v) = (stages.len() as u64, stages[0].chunks.len() as u64);
    let fold = schedule == Schedule::ZeroBubbleV;
    let split = fold || schedule == Schedule::ZeroBubbleH1;
    // Stops on a micro-batch's way, first to last.
    let stop = |i: u64, c: u64| if fold && c == 1 { 2 * p - 1 - i } else { c * p + i };
    let stage_of = |s: u64| if fold && s >= p { 2 * p - 1 - s } else { s % p };
    let message = |kind: char, from: u64, to: u64| -> u64 {
        let (a, b) = (stage_of(from), stage_of(to));
        let clock = &stages[a as usize];
        let up = if fold { b < a } else { kind == 'B' };
        match (fold && a == b, up) {
            (true, _) => 0,
            (_, true) => clock.send_backward.0,
            (_, false) => clock.send_forward.0,
        }
    };
    let lists: Vec<Vec<Pass>> = (0..p).map(|i| passes(schedule, p, i, v, m)).collect();
    let mut at = vec![0usize; p as usize];
    let mut free = vec![0u64; p as usize];
    // When each forward and backward pass has ended and its message, if any, has arrived.
    let mut arrived: HashMap<(char, u64, u64), u64> = HashMap::new();
    loop {
        let mut moved = false;
        for i in 0..p {
            while let Some(&(kind, c, k)) = lists[i as usize].get(at[i as usize]) {
                let s = stop(i, c);
                let last = p * v - 1;
                let needs = match kind {
                    'F' if s > 0 => Some(('F', s - 1, k)),
                    'B' if s < last => Some(('B', s + 1, k)),
                    'B' => Some(('F', s, k)),
                    _ => None,
                };
                let ready = match needs {
                    None => 0,
                    Some(pass) => match arrived.get(&pass) {
                        Some(&t) => t,
                        None => break,
                    },
                };
                let chunk = stages[i as usize].chunks[c as usize];
                let work = match kind {
                    'F' => chunk.forward,
                    'B' if split => chunk.input_gradient,
                    'B' => chunk.input_gradient + chunk.weight_gradient,
                    _ => chunk.weight_gradient,
                };
                let send = match kind {
                    'F' if s < last => message('F', s, s + 1),
                    'B' if s > 0 => message('B', s, s - 1),
                    _ => 0,
                };
                let end = ready.max(free[i as usize]) + work.0;
                arrived.insert((kind, s, k), end + send);
                free[i as usize] = if sends == Sends::Blocking { end + send } else { end };
                at[i as usize] += 1;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    for i in 0..p as usize {
        assert_eq!(at[i], lists[i].len(), "{schedule:?}: stage {i} of {p} waits for ever, m {m}");
    }
    Time((0..p as usize).map(|i| free[i] + stages[i].tail.0).max().unwrap_or(0))
}

/// Stages with random times; sometimes all alike, sometimes one far slower, sends and tails from none to long.
fn clocks(draw: &mut Draw, p: u64, v: u64) -> Vec<StageClock> {
    let alike = draw.once_in(4);
    let send = draw.pick(&[0, 5, 100, 2000]);
    let tail = draw.pick(&[0, 10, 5000]);
    let one = |draw: &mut Draw| {
        let scale = draw.pick(&[10, 100, 100, 1000]);
        let mut time = |most: u64| Time(draw.between(0, most));
        StageClock {
            chunks: (0..v)
                .map(|_| Chunk {
                    forward: time(scale) + Time(1),
                    input_gradient: time(scale) + Time(1),
                    weight_gradient: time(scale),
                })
                .collect(),
            send_forward: time(send),
            send_backward: time(send),
            tail: time(tail),
        }
    };
    let first = one(draw);
    (0..p).map(|_| if alike { first.clone() } else { one(draw) }).collect()
}

/// A schedule with a legal shape: stages, chunks and micro-batches.
fn shape(draw: &mut Draw, most: u64) -> Shape {
    let schedule = draw.pick(&SCHEDULES);
    let alone = matches!(schedule, Schedule::OneFOneB) && draw.once_in(8);
    let pp = if alone { 1 } else { draw.between(2, 6) };
    let vpp = match schedule {
        Schedule::Interleaved => draw.between(2, 4),
        Schedule::ZeroBubbleV => 2,
        Schedule::OneFOneB | Schedule::GPipe | Schedule::ZeroBubbleH1 => 1,
    };
    let m = if draw.once_in(2) { draw.between(1, 12) } else { draw.between(1, most) };
    let micro_batches = if schedule == Schedule::Interleaved { m.div_ceil(pp) * pp } else { m };
    Shape { schedule, pp, vpp, micro_batches }
}

#[test]
fn the_step_is_the_longest_path_through_the_schedule() {
    let mut draw = Draw::new(1);
    for n in 0..4000 {
        let Shape { schedule, pp, vpp, micro_batches: m } = shape(&mut draw, 200);
        let stages = clocks(&mut draw, pp, vpp);
        let sends = draw.pick(&SENDS);
        let expected = simulate(schedule, sends, &stages, m);
        let got = makespan(schedule, sends, &stages, m);
        assert_eq!(got, expected, "case {n}: {schedule:?} {sends:?} m {m} {stages:?}");
    }
}

/// Equal passes, or some much longer than others; tails from none to many passes.
fn lane(draw: &mut Draw) -> Lane {
    let most = draw.pick(&[3, 10, 100, 1000]);
    let mut time = |scale: u64| Time(draw.between(0, most) * draw.pick(&[1, 1, scale]));
    Lane { forward: time(5), backward: time(5), tail: time(20) }
}

/// The clocks of lanes whose passes hold their sends already.
fn of_lanes(lanes: &[Lane]) -> Vec<StageClock> {
    lanes
        .iter()
        .map(|l| StageClock {
            chunks: vec![Chunk {
                forward: l.forward,
                input_gradient: l.backward,
                weight_gradient: Time::ZERO,
            }],
            tail: l.tail,
            ..StageClock::default()
        })
        .collect()
}

#[test]
fn one_f_one_bs_closed_form_is_its_longest_path() {
    let mut draw = Draw::new(11);
    for n in 0..20_000 {
        let (p, m) = (draw.between(1, 8), draw.between(1, 20));
        let lanes: Vec<Lane> = (0..p).map(|_| lane(&mut draw)).collect();
        let expected = simulate(Schedule::OneFOneB, Sends::Blocking, &of_lanes(&lanes), m);
        assert_eq!(longest::of_stages(&lanes, m), Some(expected), "case {n}: m {m} {lanes:?}");
    }
}

#[test]
fn between_equal_stages_only_the_ends_matter() {
    let mut draw = Draw::new(12);
    for n in 0..20_000 {
        let (p, m) = (draw.between(1, 12), draw.between(1, 28));
        let mut ends = [lane(&mut draw), lane(&mut draw), lane(&mut draw)];
        let mut lanes = vec![ends[1]; p as usize];
        lanes[p as usize - 1] = ends[2];
        lanes[0] = ends[0];
        if p == 1 {
            ends[1..].fill(Lane::default());
        }
        let expected = simulate(Schedule::OneFOneB, Sends::Blocking, &of_lanes(&lanes), m);
        let got = longest::of_equal_stages(&ends, p, m);
        assert_eq!(got, Some(expected), "case {n}: p {p} m {m} {ends:?}");
    }
}

#[test]
fn a_step_too_long_to_add_up_is_left_to_the_recurrence() {
    let slow = Lane { forward: Time(1 << 60), ..Lane::default() };
    assert_eq!(longest::of_stages(&[slow, slow], 8), None);
    assert_eq!(longest::of_equal_stages(&[slow, slow, slow], 3, 8), None);
}

/// `p` stages of `v` chunks, each `f` forward, `b` to its input's gradient and `w` to its weights'.
fn equal_stages(p: u64, v: u64, f: u64, b: u64, w: u64) -> Vec<StageClock> {
    let chunk = Chunk { forward: Time(f), input_gradient: Time(b), weight_gradient: Time(w) };
    vec![StageClock { chunks: vec![chunk; v as usize], ..StageClock::default() }; p as usize]
}

#[test]
fn equal_stages_take_the_time_of_the_papers_formulas() {
    for (p, rounds) in [(2, 1), (2, 7), (4, 3), (8, 2)] {
        let m = p * rounds;
        let step = |schedule, v, f, b, w| {
            makespan(schedule, Sends::Overlapped, &equal_stages(p, v, f, b, w), m)
        };
        // GPipe and 1F1B: (m + p - 1)(f + b), the backward pass of both parts (Narayanan et al. 2021, section 2.2).
        let (f, b, w) = (10, 12, 8);
        assert_eq!(step(Schedule::GPipe, 1, f, b, w), Time((m + p - 1) * (f + b + w)));
        assert_eq!(step(Schedule::OneFOneB, 1, f, b, w), Time((m + p - 1) * (f + b + w)));
        // Interleaved with v chunks: m (f + b) + (p - 1)(f + b) / v, f and b of all chunks (ibid.).
        for v in [2, 3] {
            let whole = v * (f + b + w);
            assert_eq!(
                step(Schedule::Interleaved, v, f, b, w),
                Time(m * whole + (p - 1) * whole / v)
            );
        }
        // ZB-H1 with equal passes: m (f + b + w) + (p - 1)(f + b - w) (Qi et al. 2023, table 2).
        if m >= p {
            let f = 10;
            assert_eq!(step(Schedule::ZeroBubbleH1, 1, f, f, f), Time(m * 3 * f + (p - 1) * f));
        }
        // ZB-V with equal passes and 2p - 1 micro-batches or more: no bubble but the p - 1 passes of the fill.
        if m > 2 * p - 2 {
            let f = 10;
            assert_eq!(step(Schedule::ZeroBubbleV, 2, f, f, f), Time(m * 6 * f + (p - 1) * f));
        }
    }
}

#[test]
fn no_pass_that_gets_longer_makes_the_step_shorter() {
    let mut draw = Draw::new(2);
    for n in 0..2000 {
        let Shape { schedule, pp, vpp, micro_batches: m } = shape(&mut draw, 60);
        let stages = clocks(&mut draw, pp, vpp);
        let sends = draw.pick(&SENDS);
        let mut longer = stages.clone();
        let stage = draw.pick(&(0..pp as usize).collect::<Vec<_>>());
        let chunk = draw.pick(&(0..vpp as usize).collect::<Vec<_>>());
        let more = Time(draw.between(1, 50));
        match draw.between(0, 5) {
            0 => longer[stage].chunks[chunk].forward += more,
            1 => longer[stage].chunks[chunk].input_gradient += more,
            2 => longer[stage].chunks[chunk].weight_gradient += more,
            3 => longer[stage].send_forward += more,
            4 => longer[stage].send_backward += more,
            _ => longer[stage].tail += more,
        }
        let (a, b) = (makespan(schedule, sends, &stages, m), makespan(schedule, sends, &longer, m));
        assert!(a <= b, "case {n}: {schedule:?} {sends:?} m {m} {stages:?} to {longer:?}");
    }
}

// ---- The bounds ------------------------------------------------------------------------------------------------------

/// A stage as the bounds see it.
fn work(schedule: Schedule, sends: Sends, stages: &[StageClock], i: usize) -> Work {
    let s = &stages[i];
    let (last, v) = (i + 1 == stages.len(), s.chunks.len() as u64);
    let split = matches!(schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
    let sum = |of: &dyn Fn(&Chunk) -> Time| s.chunks.iter().map(of).sum::<Time>();
    let first_backward = if split { s.chunks[0].input_gradient } else { s.chunks[0].backward() };
    let mut w = Work {
        forward: sum(&|c| c.forward),
        backward: sum(&|c| c.backward()),
        first_forward: s.chunks[0].forward,
        first_backward,
        until_input: if split { sum(&|c| c.input_gradient) } else { sum(&|c| c.backward()) },
        tail: s.tail,
    };
    if !last {
        w.first_forward += s.send_forward;
    }
    match sends {
        Sends::Blocking => {
            w.forward += s.send_forward * if last { v - 1 } else { v };
            w.backward += s.send_backward * if i == 0 { v - 1 } else { v };
            if i > 0 {
                w.first_backward += s.send_backward;
            }
        }
        Sends::Overlapped => {
            if !last {
                w.first_backward += stages[i + 1].send_backward;
            }
        }
    }
    w
}

/// How the schedules send: the zero-bubble ones never block.
fn sends_of(draw: &mut Draw, schedule: Schedule) -> Sends {
    match schedule {
        Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV => Sends::Overlapped,
        Schedule::OneFOneB | Schedule::Interleaved | Schedule::GPipe => draw.pick(&SENDS),
    }
}

#[test]
fn the_bound_of_labels_is_never_above_the_step() {
    let mut draw = Draw::new(3);
    for n in 0..20_000 {
        let shape = shape(&mut draw, 40);
        let stages = clocks(&mut draw, shape.pp, shape.vpp);
        let sends = sends_of(&mut draw, shape.schedule);
        let bound = (0..stages.len()).rev().fold(Tail::default(), |tail, i| {
            tail.after(shape, i as u64, &work(shape.schedule, sends, &stages, i))
        });
        let step = makespan(shape.schedule, sends, &stages, shape.micro_batches);
        assert!(
            bound.end <= step,
            "case {n}: {} above {} {shape:?} {sends:?} {stages:?}",
            bound.end.0,
            step.0
        );
    }
}

#[test]
fn the_bound_with_fractional_layers_is_never_above_the_step() {
    let mut draw = Draw::new(4);
    for n in 0..20_000 {
        let shape = shape(&mut draw, 40);
        let sends = sends_of(&mut draw, shape.schedule);
        let mut layers = 0;
        // Layers of a stage take `unit` each at least, the ends and recompute come on top.
        let stages: Vec<(u64, StageClock)> = (0..shape.pp)
            .map(|_| {
                let unit = draw.scale(4.0, 4000.0) as u64;
                let count = draw.between(1, 5);
                layers += count * shape.vpp;
                let (f, b) = (unit / 4, unit / 3);
                let chunks = (0..shape.vpp)
                    .map(|_| Chunk {
                        forward: Time(f * count + draw.pick(&[0, 0, 30])),
                        input_gradient: Time(b * count + draw.pick(&[0, 0, 30])),
                        weight_gradient: Time((unit - f - b) * count),
                    })
                    .collect();
                let send = draw.pick(&[0, 1, 50]);
                let clock = StageClock {
                    chunks,
                    send_forward: Time(draw.between(0, send)),
                    send_backward: Time(draw.between(0, send)),
                    tail: Time(0),
                };
                (unit, clock)
            })
            .collect();
        let mut bound = Continuous::new(shape);
        for (i, (unit, clock)) in stages.iter().enumerate().rev() {
            let down = if i + 1 < stages.len() { clock.send_forward } else { Time::ZERO };
            let up = if i > 0 { clock.send_backward } else { Time::ZERO };
            let own = if sends == Sends::Blocking { (down + up) * shape.vpp } else { Time::ZERO };
            bound.stage(*unit as f64, own.0 as f64);
        }
        let clocks: Vec<StageClock> = stages.iter().map(|(_, clock)| clock.clone()).collect();
        let step = makespan(shape.schedule, sends, &clocks, shape.micro_batches);
        let least = bound.bound(layers as f64);
        assert!(
            least <= step.0 as f64 * (1.0 + 1e-12),
            "case {n}: {least} above {} {shape:?} {sends:?} {stages:?}",
            step.0
        );
    }
}

#[test]
fn equal_stages_meet_the_bound_with_fractional_layers_as_micro_batches_grow() {
    // Four stages of 6 layers of 10, 1F1B: the step is (m + 3) 60. The bound lets later stages hold less; as m grows both
    // tend to 60 m: at m = 1000, 60180 against 1000 * 24 * 10 / (1 + r + r^2 + r^3) with r = 1 - 1/1000, 60090.1.
    let m = 1000;
    let shape = Shape { schedule: Schedule::OneFOneB, pp: 4, vpp: 1, micro_batches: m };
    let mut bound = Continuous::new(shape);
    (0..4).for_each(|_| bound.stage(10.0, 0.0));
    let r: f64 = 1.0 - 1.0 / m as f64;
    let expected = m as f64 * 24.0 * 10.0 / (1.0 + r + r * r + r * r * r);
    assert!((bound.bound(24.0) / expected - 1.0).abs() < 1e-12);
    assert!((bound.bound(24.0) - 60_090.1).abs() < 0.1);
}

// ---- The search ------------------------------------------------------------------------------------------------------

fn best(problem: &Problem) -> Report {
    search(problem.clone(), &Watch::new(None))
}

/// A random problem in which memory binds more or less.
fn tight_problem(draw: &mut Draw) -> Problem {
    let kinds = draw.pick(&[1, 2, 3]);
    let mut problem = draw::problem(draw, kinds);
    problem.options.top = draw.pick(&[1, 4, 12]);
    (0..draw.between(0, 4)).for_each(|_| draw::narrow(draw, &mut problem));
    let share = draw.pick(&[0.5, 0.8, 1.0, 2.0]);
    if let Some(first) = best(&problem).ranked.first() {
        let needs = first.estimate.stages.iter().map(|s| s.allocated_bytes.0).max().unwrap_or(0);
        for group in &mut problem.cluster.groups {
            let jitter = 0.8 + 0.4 * draw.share();
            let context = memory::context(&problem.framework, &first.plan.shard()).gib();
            group.chip.memory_gib = context + needs as f64 / GIB * share * jitter;
        }
    }
    problem
}

#[test]
fn every_returned_plan_is_legal_fits_and_is_listed_once_in_order() {
    let mut draw = Draw::new(5);
    let mut plans = 0;
    for _ in 0..60 {
        let problem = tight_problem(&mut draw);
        let report = best(&problem);
        assert!(report.proved && report.ranked.len() <= problem.options.top as usize);
        for r in &report.ranked {
            assert_eq!(check(&problem, &r.plan), Vec::<String>::new());
            assert_eq!(r.estimate.violations, Vec::<String>::new());
            assert_eq!(r.estimate.time.sum(), r.estimate.step_ps, "the parts add up to the step");
            plans += 1;
        }
        let times: Vec<Time> = report.ranked.iter().map(|r| r.estimate.step_ps).collect();
        assert!(times.is_sorted());
        let strategy = |p: &Plan| {
            let mut p = p.clone();
            p.optimizer_offload = false;
            for s in &mut p.stages {
                (s.layers, s.offload, s.recompute) = (0, 0, Recompute::None);
            }
            p
        };
        let mut strategies: Vec<Plan> = report.ranked.iter().map(|r| strategy(&r.plan)).collect();
        strategies.sort();
        strategies.dedup();
        assert_eq!(strategies.len(), report.ranked.len(), "a strategy is listed once");
    }
    assert!(plans > 100, "only {plans} plans were looked at");
}

#[test]
fn fewer_places_list_the_head_of_more() {
    let mut draw = Draw::new(6);
    for _ in 0..25 {
        let mut problem = tight_problem(&mut draw);
        problem.options.top = 20;
        let many = best(&problem).ranked;
        for top in [1, 3, 19] {
            problem.options.top = top;
            let times = |ranked: &[Ranked]| -> Vec<(Time, u64, Schedule)> {
                ranked.iter().map(|r| (r.estimate.step_ps, r.plan.tp, r.plan.schedule)).collect()
            };
            let few = best(&problem).ranked;
            assert_eq!(times(&few), times(&many[..few.len()]));
            assert_eq!(few.len(), many.len().min(top as usize));
        }
    }
}

/// Classes of a problem's space, counted by trying.
fn size(problem: &Problem) -> u64 {
    let (n, batch) = (problem.cluster.devices, problem.workload.global_batch_size);
    let layers = u64::from(problem.model.layers);
    let divisors = |n: u64| (1..=n).filter(|d| n.is_multiple_of(*d)).count() as u64;
    let kinds = problem.cluster.groups.len() as u32;
    // Lines of kinds in which no kind comes back.
    fn lines(kinds: u32, left: u64, used: u32, last: u32) -> u64 {
        if left == 0 {
            return 1;
        }
        (0..kinds)
            .filter(|k| *k == last || used & (1 << k) == 0)
            .map(|k| lines(kinds, left - 1, used | 1 << k, k))
            .sum()
    }
    let mut all = 0;
    for pp in (1..=n).filter(|pp| n % pp == 0) {
        let chunks = (2..=layers).filter(|v| layers % v == 0 && v * pp <= layers).count() as u64;
        let schedules = if pp == 1 { 1 } else { 4 + chunks };
        for tp in (1..=n).filter(|tp| n % (pp * tp) == 0) {
            for cp in (1..=n).filter(|cp| n % (pp * tp * cp) == 0) {
                let dp = n / (pp * tp * cp);
                let mbs = if batch % dp == 0 { divisors(batch / dp) } else { 1 };
                let experts = problem.model.moe.map_or(1, |m| divisors(u64::from(m.experts)));
                let sharding = 1 + 3 * (divisors(dp * cp) - 1);
                all += 2 * experts * mbs * sharding * schedules * lines(kinds, pp, 0, u32::MAX);
            }
        }
    }
    all
}

#[test]
fn every_class_is_estimated_or_cut_and_none_twice() {
    let mut draw = Draw::new(7);
    for _ in 0..60 {
        let problem = tight_problem(&mut draw);
        let available: u64 = (0..problem.cluster.groups.len()).map(|k| problem.available(k)).sum();
        let counters = best(&problem).counters;
        let cut: u64 = counters.cut.values().sum();
        assert_eq!(counters.considered, counters.estimated + cut);
        if available >= problem.cluster.devices {
            assert_eq!(counters.considered, size(&problem));
        }
    }
}

#[test]
fn a_stopped_search_never_says_that_its_answer_is_proved() {
    let mut draw = Draw::new(17);
    let (mut stopped, mut with_plans) = (0, 0);
    for _ in 0..40 {
        let problem = tight_problem(&mut draw);
        let watch = Watch::new(None);
        let whole = search(problem.clone(), &watch);
        assert!(whole.proved);
        // At its last look a search may have nothing left to do.
        let looks = watch.looks();
        for _ in 0..6 {
            let n = draw.between(1, looks + 1);
            let watch = Watch::stopping_at(n);
            let report = search(problem.clone(), &watch);
            let said = format!("stopped at look {n} of {looks}: {:?}", report.counters);
            assert_eq!(report.proved, report.stop == StopReason::Complete, "{said}");
            if watch.interrupted() && watch.looks() > n {
                assert!(!report.proved || report.ranked == whole.ranked, "{said}");
            }
            let all = report.counters.cut.values().sum::<u64>() + report.counters.estimated;
            assert_eq!(report.counters.considered, all, "{said}");
            if !report.proved {
                stopped += 1;
                with_plans += u32::from(!report.ranked.is_empty());
                assert_eq!(report.gap.is_some(), !report.ranked.is_empty(), "{said}");
                assert_eq!(report.stop, StopReason::Interrupted, "{said}");
                assert!(report.infeasible.is_none(), "{said}");
                // The gap is an honest one.
                if let (Some(gap), Some(first), Some(best)) =
                    (report.gap, report.ranked.first(), whole.ranked.first())
                {
                    let least = first.estimate.step_s * (1.0 - gap) * (1.0 - 1e-9);
                    assert!(best.estimate.step_s >= least, "{said}");
                }
            }
        }
    }
    assert!(stopped > 100 && with_plans > 20, "{stopped} stopped, {with_plans} with plans");
}

#[test]
fn a_search_looks_whether_it_must_stop_at_least_every_thousand_estimates() {
    let mut draw = Draw::new(18);
    for _ in 0..40 {
        let watch = Watch::new(None);
        let report = search(tight_problem(&mut draw), &watch);
        assert!(watch.looks() * 1000 >= report.counters.estimates, "{:?}", report.counters);
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let mut draw = Draw::new(8);
    let mut problems: Vec<Problem> = (0..12).map(|_| tight_problem(&mut draw)).collect();
    problems.push(testing::problem(
        testing::gpt(12, 1024),
        testing::cluster(testing::a100(), 96),
        192,
        1024,
    ));
    for problem in problems {
        let document = serde_json::to_string(&problem).expect("a problem is a document");
        let on =
            |threads| wire::search(&document, threads, &Watch::new(None)).expect("it is valid");
        let one = on(1);
        assert_eq!(one, on(2));
        assert_eq!(one, on(16));
    }
}

#[test]
fn the_order_in_which_chips_are_listed_changes_only_their_indices() {
    let mut draw = Draw::new(9);
    let mut several = 0;
    for _ in 0..60 {
        let problem = tight_problem(&mut draw);
        let kinds = problem.cluster.groups.len();
        if kinds == 1 {
            continue;
        }
        several += 1;
        let shift = draw.between(1, kinds as u64 - 1) as usize;
        let mut turned = problem.clone();
        turned.cluster.groups.rotate_left(shift);
        let (a, mut b) = (best(&problem), best(&turned));
        for r in &mut b.ranked {
            for s in &mut r.plan.stages {
                s.chip = ((s.chip as usize + shift) % kinds) as u32;
            }
        }
        assert_eq!(a.ranked, b.ranked);
        assert_eq!(a.infeasible.is_some(), b.infeasible.is_some());
        assert_eq!(a.counters.considered, b.counters.considered);
    }
    assert!(several > 20);
}

/// A random plan of a problem with plenty of memory: best of none, so that its stages may wait for each other.
fn unequal_plan(draw: &mut Draw) -> (Problem, Plan) {
    let Shape { schedule, pp, vpp, micro_batches } = shape(draw, 12);
    let (dp, mbs) = (draw.between(1, 4), draw.between(1, 2));
    let zero_bubble = matches!(schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
    let kinds = if zero_bubble { 1 } else { draw.between(1, 3) };
    let mut problem = draw::problem(draw, kinds as usize);
    let equal = draw.between(1, 3) as u32;
    let border = draw.between(0, pp);
    let stages: Vec<Stage> = (0..pp)
        .map(|i| {
            let row = if zero_bubble { equal } else { draw.between(1, 3) as u32 };
            let chip = if i < border { 0 } else { kinds as u32 - 1 };
            Stage { chip, layers: row * vpp as u32, recompute: Recompute::None, offload: 0 }
        })
        .collect();
    problem.model.layers = stages.iter().map(|s| s.layers).sum();
    problem.model.window = None;
    problem.model.moe = None;
    problem.workload.global_batch_size = dp * mbs * micro_batches;
    problem.cluster.devices = pp * dp;
    problem.cluster.groups.iter_mut().for_each(|g| g.limit = None);
    let (zero, shard_group) = if dp > 1 { (draw.between(0, 3) as u8, dp) } else { (0, 1) };
    let shard_group = if zero == 0 { 1 } else { shard_group };
    let plan = Plan {
        dp,
        tp: 1,
        sp: false,
        cp: 1,
        ep: 1,
        etp: 1,
        pp,
        vpp,
        mbs,
        zero,
        shard_group,
        schedule,
        optimizer_offload: draw.once_in(4),
        stages,
    };
    (problem, plan)
}

#[test]
fn more_recompute_never_makes_a_step_shorter() {
    let mut draw = Draw::new(13);
    for _ in 0..2000 {
        let (problem, plan) = unequal_plan(&mut draw);
        let kind = draw.pick(&plan.stages).chip;
        let time = |recompute: Recompute| {
            let mut plan = plan.clone();
            for s in plan.stages.iter_mut().filter(|s| s.chip == kind) {
                s.recompute = recompute;
            }
            estimate(&problem, &plan).expect("a legal plan").step_ps
        };
        let of_kind = plan.stages.iter().filter(|s| s.chip == kind);
        let most = of_kind.map(|s| s.layers / plan.vpp as u32).max().unwrap_or(0);
        let said = format!("kind {kind} of {plan:?}");
        let none = time(Recompute::None);
        assert!(none <= time(Recompute::Selective), "selective on {said}");
        assert!(none <= time(Recompute::Uniform { layers: 1 }), "uniform on {said}");
        let blocks = (1..=most).map(|layers| time(Recompute::Block { layers }));
        let times: Vec<Time> = std::iter::once(none).chain(blocks).collect();
        assert!(times.is_sorted(), "block on {said}: {times:?}");
    }
}

#[test]
fn the_bound_of_a_class_is_never_above_a_plan_that_fits() {
    let mut draw = Draw::new(16);
    let mut tight = 0;
    for n in 0..4000 {
        let (mut problem, mut plan) = unequal_plan(&mut draw);
        if draw.once_in(2) {
            problem.model.window = draw::problem(&mut draw, 1).model.window;
        }
        let deepest = |chip: u32| {
            let of_kind = plan.stages.iter().filter(|s| s.chip == chip);
            of_kind.map(|s| s.layers / plan.vpp as u32).max().unwrap_or(1)
        };
        let choices: Vec<(Recompute, u32)> = (0..3)
            .map(|chip| {
                let layers = draw.between(1, u64::from(deepest(chip))) as u32;
                let offload = if plan.pp == 1 { layers } else { 0 };
                draw.pick(&[
                    (Recompute::None, 0),
                    (Recompute::None, offload),
                    (Recompute::Selective, 0),
                    (Recompute::Block { layers }, 0),
                    (Recompute::Uniform { layers }, 0),
                ])
            })
            .collect();
        for stage in &mut plan.stages {
            (stage.recompute, stage.offload) = choices[stage.chip as usize];
        }
        problem.options.recompute.clear();
        problem.options.activation_offload = true;
        problem.options.optimizer_offload |= plan.optimizer_offload;
        problem.options.uneven_layers = true;
        // Just as much memory as the plan needs.
        let found = estimate(&problem, &plan).expect("a legal plan");
        for (chip, group) in problem.cluster.groups.iter_mut().enumerate() {
            let of_kind = plan.stages.iter().zip(&found.stages);
            let needs = of_kind.filter(|(s, _)| s.chip as usize == chip);
            let most = needs.map(|(_, e)| e.allocated_bytes.0).max().unwrap_or(1 << 40) + 1;
            group.chip.memory_gib = memory::context(&problem.framework, &plan.shard()).gib()
                + most as f64 / GIB / (1.0 - problem.options.memory_margin);
        }
        let found = estimate(&problem, &plan).expect("a legal plan");
        assert!(found.violations.is_empty(), "{:?}", found.violations);
        let tables = Tables::new(&problem, plan.shard(), |_| true);
        let leasts: Vec<_> =
            (0..problem.cluster.groups.len()).map(|kind| Some(tables.kind(kind).least())).collect();
        let kinds: Vec<usize> = plan.stages.iter().map(|s| s.chip as usize).collect();
        let equal = plan.stages.iter().all(|s| s.layers == plan.stages[0].layers);
        let micro_batches = plan.micro_batches(&problem);
        let Plan { schedule, pp, vpp, .. } = plan;
        for (any_schedule, even) in [(false, false), (false, true), (true, false)] {
            if even && !equal {
                continue;
            }
            let shape = Shape { schedule, pp, vpp, micro_batches };
            let any = Shape { schedule: Schedule::OneFOneB, pp, vpp: 1, micro_batches };
            let question = Question {
                problem: &problem,
                shape: if any_schedule { any } else { shape },
                sends: sends(&problem, schedule),
                even: even || pp == 1,
                any_schedule,
                limit: draw.pick(&[f64::INFINITY, found.step_s]),
            };
            if !any_schedule && !even {
                within_caps(
                    &question,
                    &leasts,
                    &stages_of(&kinds, leasts.len()),
                    &kinds,
                    found.step_s,
                );
            }
            let bound = question.bound(&leasts, &kinds);
            let Verdict::Seconds(seconds) = bound else {
                panic!("{n}: {even} {any_schedule}: does not fit: {plan:?}")
            };
            assert!(seconds <= found.step_s, "{n}: {seconds} > {} for {plan:?}", found.step_s);
            tight += u64::from(!any_schedule && seconds > 0.97 * found.step_s);
        }
    }
    assert!(tight > 400, "{tight}");
}

/// As many stages of each kind as there are.
fn stages_of(kinds: &[usize], all: usize) -> Vec<Offered> {
    let used = |kind| kinds.iter().filter(|&&k| k == kind).count() as u64;
    (0..all).map(|kind| Offered { kind, most: used(kind) }).collect()
}

/// Asserts that stages of `kinds` are said to hold the model within the time that a plan on them takes, whether their order is
/// known or not; says whether they are said not to within a tenth less.
fn within_caps(
    question: &Question<'_>,
    leasts: &[Option<Least>],
    offered: &[Offered],
    kinds: &[usize],
    seconds: f64,
) -> bool {
    let mut runs: Vec<(usize, u64)> = Vec::new();
    for &kind in kinds {
        match runs.last_mut() {
            Some((last, stages)) if *last == kind => *stages += 1,
            _ => runs.push((kind, 1)),
        }
    }
    let counts: Vec<u64> = stages_of(kinds, leasts.len()).iter().map(|s| s.most).collect();
    // What the kinds that are not used would take is no matter.
    let mut used = leasts.to_vec();
    (0..used.len()).filter(|kind| !kinds.contains(kind)).for_each(|kind| used[kind] = None);
    for leasts in [leasts, &used] {
        let places = Places::new(question, leasts, offered).expect("a kind is priced");
        let caps = places.within(seconds).expect("some stages hold the model");
        assert!(caps.hold(&runs), "{runs:?} in {seconds} s");
    }
    let places = Places::new(question, leasts, offered).expect("every kind is priced");
    let caps = places.within(seconds).expect("some stages hold the model");
    for decided in 0..=offered.len() {
        let left = counts[decided..].iter().sum();
        assert!(caps.hold_counts(&counts[..decided], left), "{counts:?}, {decided}");
    }
    let least = places.bound(Time::from_seconds(seconds / 8.0), Time::MAX);
    assert!(least.expect("they fit").seconds() <= seconds, "a bound is below the plan");
    places.within(0.9 * seconds).is_none_or(|caps| !caps.hold(&runs))
}

#[test]
fn bounds_of_any_degrees_are_never_above_a_plan_that_fits() {
    let mut draw = Draw::new(19);
    let (mut experts, mut tensor, mut context, mut tight) = (0, 0, 0, 0);
    let (mut capped, mut waiting) = (0, 0);
    for n in 0..6000 {
        let kinds = draw.pick(&[1, 1, 2, 3]);
        let mut problem = draw::problem(&mut draw, kinds);
        problem.cluster.groups.iter_mut().for_each(|g| {
            g.limit = None;
            g.chip.memory_gib = 1e6;
        });
        let mut plan = any_plan(&mut draw, &problem);
        // In the space activations wait on the host without a pipeline and recompute only.
        for s in &mut plan.stages {
            if plan.pp > 1 || s.recompute != Recompute::None {
                s.offload = 0;
            }
        }
        waiting += u64::from(plan.stages[0].offload > 0);
        // And all chunks of a stage hold equally many layers.
        let whole = plan.stages.iter().all(|s| s.layers.is_multiple_of(plan.vpp as u32));
        if !whole || !check(&problem, &plan).is_empty() {
            continue;
        }
        problem.options.recompute.clear();
        problem.options.optimizer_offload |= plan.optimizer_offload;
        problem.options.activation_offload = true;
        problem.options.uneven_layers = true;
        let found = estimate(&problem, &plan).expect("a legal plan");
        // Just as much memory as the plan needs.
        for (chip, group) in problem.cluster.groups.iter_mut().enumerate() {
            let of_kind = plan.stages.iter().zip(&found.stages);
            let needs = of_kind.filter(|(s, _)| s.chip as usize == chip);
            let most = needs.map(|(_, e)| e.memory_bytes.0).max().unwrap_or(1 << 40);
            group.chip.memory_gib = (most + 2) as f64 / GIB / (1.0 - problem.options.memory_margin);
        }
        let tables = Tables::new(&problem, plan.shard(), |_| true);
        let leasts: Vec<_> =
            (0..problem.cluster.groups.len()).map(|kind| Some(tables.kind(kind).least())).collect();
        let kinds: Vec<usize> = plan.stages.iter().map(|s| s.chip as usize).collect();
        let equal = plan.stages.iter().all(|s| s.layers == plan.stages[0].layers);
        let Plan { schedule, pp, vpp, .. } = plan;
        let zero_bubble = matches!(schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
        let question = Question {
            problem: &problem,
            shape: Shape { schedule, pp, vpp, micro_batches: plan.micro_batches(&problem) },
            sends: sends(&problem, schedule),
            even: equal && (zero_bubble || pp == 1),
            any_schedule: false,
            limit: f64::INFINITY,
        };
        let stages: Vec<Offered> = (0..problem.cluster.groups.len())
            .map(|kind| {
                let used = kinds.iter().filter(|&&k| k == kind).count() as u64;
                Offered { kind, most: used + draw.between(0, 1) }
            })
            .collect();
        capped += u64::from(within_caps(&question, &leasts, &stages, &kinds, found.step_s));
        for bound in [question.bound(&leasts, &kinds), question.in_any_order(&leasts, &stages)] {
            let Verdict::Seconds(seconds) = bound else { panic!("{n}: does not fit: {plan:?}") };
            assert!(seconds <= found.step_s, "{n}: {seconds} > {} for {plan:?}", found.step_s);
            tight += u64::from(seconds > 0.9 * found.step_s);
        }
        experts += u64::from(plan.ep > 1);
        tensor += u64::from(plan.tp > 1);
        context += u64::from(plan.cp > 1);
    }
    let seen =
        [(experts, 50), (tensor, 200), (context, 100), (tight, 200), (capped, 200), (waiting, 20)];
    assert!(seen.iter().all(|&(times, least)| times >= least), "{seen:?}");
}

#[test]
fn more_layers_never_need_less_memory() {
    let mut draw = Draw::new(14);
    for _ in 0..2000 {
        let (problem, plan) = unequal_plan(&mut draw);
        let tables = Tables::new(&problem, plan.shard(), |_| true);
        let index = draw.between(0, plan.pp - 1) as usize;
        let table = tables.kind(plan.stages[index].chip as usize);
        let row = problem.model.layers / plan.vpp as u32;
        let layers = draw.between(1, 4) as u32;
        let recompute = draw.pick(&[
            Recompute::None,
            Recompute::Selective,
            Recompute::Block { layers },
            Recompute::Uniform { layers },
        ]);
        let bytes: Vec<u64> = (1..=row)
            .map(|layers| {
                let place = Place { first: 0, layers, recompute, ..plan.place(&problem, index) };
                table.stage(&place).memory.allocated().0
            })
            .collect();
        assert!(bytes.is_sorted(), "{recompute:?} at {index} of {plan:?}: {bytes:?}");
    }
}

/// The best step of `better` is no longer than that of `problem`, but for rounding to picoseconds.
fn never_slower(what: &str, problem: &Problem, better: &Problem) {
    let time = |p: &Problem| best(p).ranked.first().map(|r| r.estimate.step_ps.0 as f64);
    match (time(problem), time(better)) {
        (Some(before), Some(after)) => {
            assert!(after <= before * (1.0 + 1e-7), "{what}: {before} became {after}\n{problem:?}");
        }
        (Some(_), None) => panic!("{what}: nothing fits any more\n{problem:?}"),
        (None, _) => {}
    }
}

#[test]
fn more_memory_never_makes_the_best_plan_slower() {
    let mut draw = Draw::new(10);
    for _ in 0..60 {
        let problem = tight_problem(&mut draw);
        let mut better = problem.clone();
        let kind = draw.between(0, problem.cluster.groups.len() as u64 - 1) as usize;
        better.cluster.groups[kind].chip.memory_gib *= 1.0 + draw.share();
        never_slower("memory", &problem, &better);
    }
}

#[test]
fn a_faster_link_never_makes_the_best_plan_slower() {
    let mut draw = Draw::new(11);
    for _ in 0..60 {
        let problem = tight_problem(&mut draw);
        let mut better = problem.clone();
        let by = 1.0 + 3.0 * draw.share();
        for group in &mut better.cluster.groups {
            let (link, network) = (&mut group.chip.link, &mut group.chip.network);
            link.all_reduce_gb_per_s *= by;
            link.all_gather_gb_per_s *= by;
            link.all_to_all_gb_per_s *= by;
            link.p2p_gb_per_s *= by;
            link.latency_us /= by;
            network.nic_gbit_per_s *= by;
            network.latency_us /= by;
        }
        if let Some(link) = &mut better.cluster.between_kinds {
            link.bandwidth_gb_per_s *= by;
            link.latency_us /= by;
        }
        never_slower("link", &problem, &better);
    }
}

#[test]
fn a_faster_chip_never_makes_the_best_plan_slower() {
    let mut draw = Draw::new(12);
    for _ in 0..60 {
        let problem = tight_problem(&mut draw);
        let mut better = problem.clone();
        let by = 1.0 + 3.0 * draw.share();
        let kind = draw.between(0, problem.cluster.groups.len() as u64 - 1) as usize;
        let chip = &mut better.cluster.groups[kind].chip;
        let peaks = &mut chip.peak_tflops;
        for peak in [&mut peaks.bf16, &mut peaks.fp16, &mut peaks.fp8, &mut peaks.tf32] {
            *peak = peak.map(|p| p * by);
        }
        chip.memory_bandwidth_gb_per_s *= by;
        never_slower("chip", &problem, &better);
    }
}

#[test]
fn a_timeline_holds_every_pass_once_and_ends_with_the_step() {
    // Two stages, four micro-batches, ZB-V: 2 stages x 2 chunks x 4 micro-batches x 3 kinds of pass.
    let stages = equal_stages(2, 2, 10, 10, 10);
    let tails = [(Time::ZERO, Time::ZERO); 2];
    let all = events(Schedule::ZeroBubbleV, Sends::Overlapped, &stages, 4, &tails, usize::MAX);
    assert_eq!(all.len(), 48);
    assert_eq!(all.iter().filter(|e| e.task == Task::Pass(Kind::Weight)).count(), 16);
    let end = all.iter().map(|e| e.end).max().unwrap_or_default();
    assert_eq!(end, makespan(Schedule::ZeroBubbleV, Sends::Overlapped, &stages, 4));
}

#[test]
fn a_timeline_adds_up_to_the_step() {
    let mut draw = Draw::new(13);
    for n in 0..2000 {
        let Shape { schedule, pp, vpp, micro_batches: m } = shape(&mut draw, 30);
        let mut stages = clocks(&mut draw, pp, vpp);
        let tails: Vec<(Time, Time)> = stages
            .iter_mut()
            .map(|s| {
                let update = Time(draw.between(0, s.tail.0));
                (s.tail - update, update)
            })
            .collect();
        let sends = draw.pick(&SENDS);
        let all = events(schedule, sends, &stages, m, &tails, usize::MAX);
        let step = makespan(schedule, sends, &stages, m);
        let case = format!("case {n}: {schedule:?} {sends:?} m {m} {stages:?}");
        let end = |e: &Event| if e.task == Task::Send { Time::ZERO } else { e.end };
        // The last work of a stage may be of no length, and a send that blocks belongs to its stage.
        let last = all.iter().map(|e| if sends == Sends::Blocking { e.end } else { end(e) }).max();
        assert_eq!(last, Some(step), "{case}");
        for (stage, &tail) in tails.iter().enumerate() {
            let own: Vec<&Event> = all
                .iter()
                .filter(|e| e.stage == stage && (e.task != Task::Send || sends == Sends::Blocking))
                .collect();
            for pair in own.windows(2) {
                assert!(pair[0].end <= pair[1].start, "{case}: {pair:?} overlap");
            }
            let spent = |task: Task| -> Time {
                own.iter().filter(|e| e.task == task).map(|e| e.end - e.start).sum()
            };
            assert_eq!((spent(Task::Synchronise), spent(Task::Update)), tail, "{case}");
        }
    }
}

// ---- Many plans ------------------------------------------------------------------------------------------------------

/// A row of numbers for a plan, and the layers and chips of its stages.
fn row(plan: &Plan) -> ([i32; 17], Vec<i32>, Vec<i32>) {
    let schedule = SCHEDULES.iter().position(|s| *s == plan.schedule).unwrap_or_default();
    let (recompute, layers) = match plan.stages[0].recompute {
        Recompute::None => (0, 0),
        Recompute::Selective => (1, 0),
        Recompute::Block { layers } => (2, layers),
        Recompute::Uniform { layers } => (3, layers),
    };
    let degrees = [plan.dp, plan.tp, plan.sp.into(), plan.cp, plan.ep, plan.etp, plan.pp, plan.vpp];
    let rest = [
        plan.mbs,
        plan.zero.into(),
        plan.shard_group,
        schedule as u64,
        recompute,
        layers.into(),
        plan.stages[0].offload.into(),
        plan.optimizer_offload.into(),
        plan.stages[0].chip.into(),
    ];
    let mut all = [0; 17];
    for (cell, value) in all.iter_mut().zip(degrees.into_iter().chain(rest)) {
        *cell = value as i32;
    }
    let layers = plan.stages.iter().map(|s| s.layers as i32).collect();
    (all, layers, plan.stages.iter().map(|s| s.chip as i32).collect())
}

/// A plan for the problem's devices that is legal more often than not; its stages equal or not.
fn any_plan(draw: &mut Draw, problem: &Problem) -> Plan {
    let devices = problem.cluster.devices;
    let layers = problem.model.layers;
    let factor = |draw: &mut Draw, n: u64| {
        draw.pick(&(1..=n).filter(|d| n.is_multiple_of(*d)).collect::<Vec<_>>())
    };
    let most = draw.pick(&[1, devices, devices]);
    let pp = factor(draw, most).min(u64::from(layers));
    let tp = factor(draw, devices / pp);
    let cp = if draw.once_in(3) { factor(draw, devices / pp / tp) } else { 1 };
    let dp = devices / pp / tp / cp;
    let schedule = if pp > 1 && draw.once_in(2) { draw.pick(&SCHEDULES) } else { SCHEDULES[0] };
    let vpp = match schedule {
        Schedule::Interleaved => 2,
        Schedule::ZeroBubbleV => 2,
        _ => 1,
    };
    let recompute = match draw.between(0, 3) {
        0 => Recompute::None,
        1 => Recompute::Selective,
        2 => Recompute::Block { layers: draw.between(0, 3) as u32 },
        _ => Recompute::Uniform { layers: draw.between(1, 3) as u32 },
    };
    let kinds = problem.cluster.groups.len() as u64;
    let (chip, offload) = (draw.between(0, kinds - 1) as u32, draw.pick(&[0, 0, 0, 1, 2]));
    let stage = Stage { chip, layers: layers / pp as u32, recompute, offload };
    let mut stages = vec![stage; pp as usize];
    stages[0].layers += layers % pp as u32;
    if pp > 1 && draw.once_in(3) {
        stages[pp as usize - 1].chip = draw.between(0, kinds - 1) as u32;
    }
    let zero = draw.between(0, 3) as u8;
    Plan {
        dp,
        tp,
        sp: tp > 1 && !draw.once_in(4),
        cp,
        ep: draw.pick(&[1, 1, 2]),
        etp: 1,
        pp,
        vpp,
        mbs: draw.pick(&[1, 1, 2]),
        zero,
        shard_group: if zero > 0 { factor(draw, dp * cp) } else { 1 },
        schedule,
        optimizer_offload: draw.once_in(4),
        stages,
    }
}

#[test]
fn a_row_of_a_table_costs_what_its_estimate_says() {
    let mut draw = Draw::new(14);
    // Plans that ran, that lacked memory, that broke a rule; 1F1B over equal stages.
    let (mut fit, mut lack, mut illegal, mut plain) = (0, 0, 0, 0);
    for n in 0..1500 {
        let kinds = draw.pick(&[1, 1, 2]);
        let mut problem = draw::problem(&mut draw, kinds);
        if draw.once_in(2) {
            problem.model.moe = None;
            problem.model.window = None;
        }
        for group in &mut problem.cluster.groups {
            group.chip.memory_gib = problem.framework.context_gib + draw.scale(0.01, 20.0);
        }
        // Three of four are the first legal one of several, where there is one.
        let plans: Vec<Plan> = (0..12)
            .map(|n| {
                let mut plan = any_plan(&mut draw, &problem);
                for _ in 0..10 {
                    if n % 4 > 0 && !check(&problem, &plan).is_empty() {
                        plan = any_plan(&mut draw, &problem);
                    }
                }
                plan
            })
            .collect();
        let width = plans.iter().map(|p| p.stages.len()).max().unwrap_or_default();
        let (mut cells, mut layers, mut chips) = (Vec::new(), Vec::new(), Vec::new());
        for plan in &plans {
            let (row, of_stages, on) = row(plan);
            cells.extend(row);
            for (list, mut line) in [(&mut layers, of_stages), (&mut chips, on)] {
                line.resize(width, 0);
                list.extend(line);
            }
        }
        let stages = Stages { width, layers: &layers, chips: Some(&chips) };
        let watch = Watch::new(None);
        let words = estimate_many(&problem, &cells, Some(stages), &watch).expect("known codes");
        let alike = estimate_many(&problem, &cells, None, &watch).expect("known codes");
        for (at, plan) in plans.iter().enumerate() {
            let word = &words[at * WORDS..][..WORDS];
            let case = format!("case {n}: {plan:?} {problem:?}");
            let [fits, violation, _, _, stage @ ..] = word[6].to_ne_bytes();
            let equal = plan.stages.iter().all(|s| *s == plan.stages[0]);
            match estimate(&problem, plan) {
                Err(_) => {
                    illegal += 1;
                    assert!((1..LACKS_MEMORY).contains(&violation), "{case}");
                    assert!(word[0] == 0 && f64::from_bits(word[1]).is_nan(), "{case}");
                }
                Ok(cost) => {
                    let bits = [cost.step_s, cost.tokens_per_s, cost.mfu].map(f64::to_bits);
                    assert_eq!((word[0], &word[1..4]), (cost.step_ps.0, &bits[..]), "{case}");
                    let left = |i: usize| {
                        let s = &cost.stages[i];
                        i128::from(s.capacity_bytes.0) - i128::from(s.allocated_bytes.0)
                    };
                    let least = (0..plan.stages.len()).min_by_key(|&i| left(i)).unwrap_or_default();
                    let fullest = &cost.stages[least];
                    let memory = [fullest.allocated_bytes.0, fullest.capacity_bytes.0];
                    assert_eq!(
                        (&word[4..6], u32::from_ne_bytes(stage)),
                        (&memory[..], least as u32),
                        "{case}"
                    );
                    assert_eq!(fits == 1, cost.violations.is_empty(), "{case}");
                    assert_eq!(violation, if fits == 1 { 0 } else { LACKS_MEMORY }, "{case}");
                    fit += u32::from(fits == 1);
                    lack += u32::from(fits == 0);
                    plain += u32::from(equal && plan.pp > 2 && plan.schedule == Schedule::OneFOneB);
                }
            }
            // Equal stages need not be told. A plan without a cost has NaN, which has one pattern of bits here.
            if equal && problem.model.layers.is_multiple_of(plan.pp as u32) {
                assert_eq!(word, &alike[at * WORDS..][..WORDS], "{case}");
            }
        }
    }
    for (count, least) in [(fit, 2000), (lack, 1000), (illegal, 1000), (plain, 200)] {
        assert!(count > least, "{fit} fit, {lack} lack memory, {illegal} illegal, {plain} plain");
    }
}
