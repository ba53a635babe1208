//! The pipeline's clock against a plain simulation, the papers' formulas, and its own timeline.

mod draw;

use autopar_core::estimate::longest::{self, Lane};
use autopar_core::estimate::pipeline::tape::Tapes;
use autopar_core::estimate::pipeline::{
    events, makespan, Chunk, Event, Kind, Sends, StageClock, Task,
};
use autopar_core::search::bound::Shape;
use autopar_core::spec::problem::Schedule;
use autopar_core::units::Time;
use draw::pipeline::{clocks, shape, SENDS};
use draw::Draw;
use std::collections::HashMap;

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

#[test]
fn the_step_is_the_longest_path_through_the_schedule() {
    let mut draw = Draw::new(1);
    // Orders of passes that steps share.
    let mut tapes = Tapes::default();
    for n in 0..4000 {
        let Shape { schedule, pp, vpp, micro_batches: m } = shape(&mut draw, 200);
        let stages = clocks(&mut draw, pp, vpp);
        let sends = draw.pick(&SENDS);
        let expected = simulate(schedule, sends, &stages, m);
        let got = makespan(schedule, sends, &stages, m);
        assert_eq!(got, expected, "case {n}: {schedule:?} {sends:?} m {m} {stages:?}");
        let taped = tapes.makespan(schedule, sends, &stages, pp, m);
        assert_eq!(taped, expected, "case {n}: {schedule:?} {sends:?} m {m} {stages:?}");
    }
}

#[test]
fn a_run_serves_every_tail_and_one_stage_all_between_the_ends() {
    let mut draw = Draw::new(13);
    let mut tapes = Tapes::default();
    for n in 0..1000 {
        let Shape { schedule, pp, vpp, micro_batches: m } = shape(&mut draw, 60);
        let sends = draw.pick(&SENDS);
        let mut ends = clocks(&mut draw, pp.min(3), vpp);
        for _ in 0..3 {
            let between = (1..pp.saturating_sub(1)).map(|_| &ends[1]);
            let (first, last) = (ends.first(), ends.last().filter(|_| pp > 1));
            let all: Vec<_> = first.into_iter().chain(between).chain(last).cloned().collect();
            let expected = simulate(schedule, sends, &all, m);
            let got = tapes.makespan(schedule, sends, &ends, pp, m);
            assert_eq!(got, expected, "case {n}: {schedule:?} {sends:?} pp {pp} m {m} {ends:?}");
            let tail = |stage: &mut StageClock| stage.tail = Time(draw.between(0, 3000));
            ends.iter_mut().for_each(tail);
        }
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
