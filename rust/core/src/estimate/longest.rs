//! The longest path through 1F1B's events in closed form, for any stages whose sends block them.
//!
//! Stage `i` of `p` runs `w = min(p - i, m)` forward passes, then backward and forward passes in turn, then the backward
//! passes that are left. A path through these events that comes back to a stage went round a cycle; every cycle over
//! stages `i..=j` advances by `j - i + 1` micro-batches in as many of their passes, so it is never longer than the same
//! number of rounds at the slowest of them. What remains is a path that spends its rounds at a single stage `x`:
//! - it reaches `x`'s first backward pass through forward passes down to some `y >= x`, of which each stage above may hold
//!   several (`lead`), and backward passes up;
//! - it runs `m - w` backward and forward passes of `x` in turn;
//! - it ends, after forward passes down to some `y >= x`, with backward passes up, and a stage's tail (`trail`).
//!
//! With `w = m` there are no rounds: the path turns once. The step is the longest over all `x`, each way out and back the
//! longest over its own `y`. A test holds it against a plain simulation.
//!
//! Where stages repeat, the terms are convex in `x` and `y` between the first and the last of equal stages and the kink at
//! `p - m`, so only these ends are looked at ([`of_equal_stages`]).

use crate::units::Time;

/// One stage: its passes of a micro-batch with its own sends, and its work after the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    /// Forward pass and send.
    pub forward: Time,
    /// Backward pass and send.
    pub backward: Time,
    /// Work after the last pass.
    pub tail: Time,
}

/// A stage at which a longest path may turn.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    index: u64,
    forward: i64,
    backward: i64,
    tail: i64,
    /// Forward and backward passes of all stages before.
    forward_before: i64,
    backward_before: i64,
}

/// Time from the first pass to the end of the last tail of 1F1B over `lanes`; nothing where sums might overflow.
pub fn of_stages(lanes: &[Lane], micro_batches: u64) -> Option<Time> {
    let (mut all, mut tail) = (0u64, 0);
    for lane in lanes {
        all = all.checked_add(lane.forward.0)?.checked_add(lane.backward.0)?;
        tail = tail.max(lane.tail.0);
    }
    let p = lanes.len() as u64;
    addable(all, tail, p, micro_batches)?;
    let (mut forward_before, mut backward_before) = (0, 0);
    let turns: Vec<Turn> = lanes
        .iter()
        .enumerate()
        .map(|(i, lane)| {
            let turn = Turn::new(i as u64, lane, forward_before, backward_before);
            forward_before += turn.forward;
            backward_before += turn.backward;
            turn
        })
        .collect();
    Some(longest(&turns, p, micro_batches))
}

/// The same where all `p` stages but the first and the last are equal: a time that does not grow with `p`, without an
/// allocation. The lanes that a short pipeline does not have are empty: the middle of two, all but the first of one.
pub fn of_equal_stages(
    [first, middle, last]: &[Lane; 3],
    p: u64,
    micro_batches: u64,
) -> Option<Time> {
    let between = p.saturating_sub(2);
    let sum =
        |a: Time, b: Time, c: Time| b.0.checked_mul(between)?.checked_add(a.0)?.checked_add(c.0);
    let all = sum(first.forward, middle.forward, last.forward)?.checked_add(sum(
        first.backward,
        middle.backward,
        last.backward,
    )?)?;
    addable(all, first.tail.0.max(middle.tail.0).max(last.tail.0), p, micro_batches)?;
    let kink = p.saturating_sub(micro_batches);
    let mut turns = [Turn::default(); 6];
    let mut count = 0;
    for index in [0, 1, kink, kink + 1, between, p - 1] {
        let seen = turns[..count].iter().any(|t| t.index == index);
        if seen || index >= p {
            continue;
        }
        let lane = match index {
            0 => first,
            _ if index == p - 1 => last,
            _ => middle,
        };
        let before = |f: fn(&Lane) -> Time| match index {
            0 => 0,
            _ => f(first).0 as i64 + f(middle).0 as i64 * (index as i64 - 1),
        };
        turns[count] = Turn::new(index, lane, before(|l| l.forward), before(|l| l.backward));
        count += 1;
    }
    turns[..count].sort_unstable_by_key(|t| t.index);
    Some(longest(&turns[..count], p, micro_batches))
}

/// Whether no sum along a path can leave 63 bits.
fn addable(all: u64, tail: u64, p: u64, m: u64) -> Option<()> {
    let most = all.checked_mul(m.checked_add(p)?)?.checked_add(tail)?;
    (most < 1 << 61).then_some(())
}

impl Turn {
    fn new(index: u64, lane: &Lane, forward_before: i64, backward_before: i64) -> Turn {
        Turn {
            index,
            forward: lane.forward.0 as i64,
            backward: lane.backward.0 as i64,
            tail: lane.tail.0 as i64,
            forward_before,
            backward_before,
        }
    }

    /// Forward passes of all stages to this one.
    fn forward_to(&self) -> i64 {
        self.forward_before + self.forward
    }

    /// Backward passes of all stages to this one.
    fn backward_to(&self) -> i64 {
        self.backward_before + self.backward
    }
}

/// The longest path, over `turns` from the first stage to the last.
fn longest(turns: &[Turn], p: u64, m: u64) -> Time {
    let warm = |turn: &Turn| (p - turn.index).min(m) as i64;
    let m = m as i64;
    // From the start through forward pass `k` of the last of `turns`: down, with the other `k` passes where they take longest.
    let lead = |turns: &[Turn], k: i64| {
        let slowest = turns.iter().map(|t| t.forward).max().unwrap_or(0);
        turns[turns.len() - 1].forward_to() + k * slowest
    };
    // From the last but `k` backward pass of the last of `turns` to the end: up to some stage's tail, likewise.
    let trail = |turns: &[Turn], k: i64| {
        let (mut end, mut best) = (i64::MIN, i64::MIN);
        for turn in turns {
            end = end.max(turn.tail - turn.backward_before);
            best = best.max(end + k * turn.backward);
        }
        turns[turns.len() - 1].backward_to() + best
    };
    // Longest ways over the stages from `x` on: to the backward passes above them, and from the forward passes.
    let (mut to, mut from) = (i64::MIN, i64::MIN);
    let mut time = 0;
    for n in (0..turns.len()).rev() {
        let (upto, x) = (&turns[..=n], turns[n]);
        let w = warm(&x);
        to = to.max(lead(upto, w - 1) + x.backward_to());
        from = from.max(trail(upto, w - 1) + x.forward_to());
        let (start, end) = (to - x.backward_before, from - x.forward_before);
        time = time.max(if w < m {
            start + end + (m - w - 1) * (x.forward + x.backward)
        } else {
            let turned = start - x.backward + trail(upto, m - 1);
            turned.max(lead(upto, m - 1) + end - x.forward)
        });
    }
    Time(time as u64)
}
