//! Schedules, and stages with random times.

use super::Draw;
use autopar_core::estimate::pipeline::{Chunk, Sends, StageClock};
use autopar_core::search::bound::Shape;
use autopar_core::spec::problem::Schedule;
use autopar_core::units::Time;

pub const SCHEDULES: [Schedule; 5] = [
    Schedule::OneFOneB,
    Schedule::Interleaved,
    Schedule::GPipe,
    Schedule::ZeroBubbleH1,
    Schedule::ZeroBubbleV,
];

pub const SENDS: [Sends; 2] = [Sends::Blocking, Sends::Overlapped];

/// Stages with random times; sometimes all alike, sometimes one far slower, sends and tails from none to long.
pub fn clocks(draw: &mut Draw, p: u64, v: u64) -> Vec<StageClock> {
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
pub fn shape(draw: &mut Draw, most: u64) -> Shape {
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
