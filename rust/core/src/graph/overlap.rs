//! Two streams of a device: operators compute one after the other, and what they need or leave is moved beside them.
//!
//! Gathers of divided weights run ahead of the operators that use them, as far as a buffer holds them. Gradients are
//! exchanged in buckets while the backward pass goes on. What a stream waits for the other is exposed; the rest is hidden.

use crate::units::{Bytes, Time};
use std::ops::Range;

/// An operator of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// How long it takes once its weights are there.
    pub time: Time,
    /// How long its weights take to be gathered.
    pub gather: Time,
    /// What they take up from the start of the gather to the end of the operator.
    pub bytes: Bytes,
}

/// What a pass waits for its weights, and the most that is gathered at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Exposed time.
    pub exposed: Time,
    /// The most that lies in the buffer.
    pub peak: Bytes,
}

/// Gathers ahead of use, in order, one at a time, each as soon as the buffer has room for it beside those whose operators
/// are not done; one that is larger than the buffer comes alone. Without a buffer there is no limit.
///
/// ```
/// use autopar_core::graph::overlap::{ahead, Turn};
/// use autopar_core::units::{Bytes, Time};
/// let turn = Turn { time: Time(10), gather: Time(6), bytes: Bytes(1) };
/// // The first gather is waited for; each of the others runs behind the operator before.
/// assert_eq!(ahead(&[turn; 4], None).exposed, Time(6));
/// ```
pub fn ahead(turns: &[Turn], buffer: Option<Bytes>) -> Waiting {
    let limit = buffer.unwrap_or(Bytes(u64::MAX));
    let mut found = Waiting::default();
    let mut ends: Vec<Time> = Vec::with_capacity(turns.len());
    let (mut held, mut done) = (Bytes::ZERO, 0);
    let (mut clock, mut stream) = (Time::ZERO, Time::ZERO);
    for turn in turns {
        let mut start = stream;
        if turn.gather > Time::ZERO {
            // Operators that are done by then give their room back; the gather waits for more of them if it must.
            while done < ends.len()
                && (ends[done] <= start || held.0.saturating_add(turn.bytes.0) > limit.0)
            {
                start = start.max(ends[done]);
                held = held - turns[done].bytes;
                done += 1;
            }
            stream = start + turn.gather;
        }
        held += turn.bytes;
        found.peak = found.peak.max(held);
        if turn.gather > Time::ZERO && stream > clock {
            found.exposed += stream - clock;
            clock = stream;
        }
        clock += turn.time;
        ends.push(clock);
    }
    found
}

/// A bucket of gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// When its last gradient is there.
    pub ready: Time,
    /// How long it takes to be exchanged.
    pub time: Time,
}

/// How long the exchange of buckets goes on after the `end` of the pass that makes them: each starts when it is ready
/// and the ones before it are done.
///
/// ```
/// use autopar_core::graph::overlap::{behind, Bucket};
/// use autopar_core::units::Time;
/// let bucket = |ready, time| Bucket { ready: Time(ready), time: Time(time) };
/// // From 10 to 18, then from 20 to 28, when the pass has been over for three.
/// assert_eq!(behind(&[bucket(10, 8), bucket(20, 8)], Time(25)), Time(3));
/// ```
pub fn behind(buckets: &[Bucket], end: Time) -> Time {
    let mut order = buckets.to_vec();
    order.sort_by_key(|bucket| bucket.ready);
    let done = order.iter().fold(Time::ZERO, |stream, b| stream.max(b.ready) + b.time);
    done.max(end) - end
}

/// Consecutive items in groups that are closed as soon as they hold `most` bytes.
///
/// ```
/// use autopar_core::graph::overlap::filled;
/// use autopar_core::units::Bytes;
/// let sizes = [30, 40, 10, 90, 5].map(Bytes);
/// assert_eq!(filled(&sizes, Bytes(64)), [0..2, 2..4, 4..5]);
/// ```
pub fn filled(sizes: &[Bytes], most: Bytes) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let (mut first, mut held) = (0, Bytes::ZERO);
    for (i, &size) in sizes.iter().enumerate() {
        held += size;
        if held >= most || i + 1 == sizes.len() {
            groups.push(first..i + 1);
            (first, held) = (i + 1, Bytes::ZERO);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(time: u64, gather: u64, bytes: u64) -> Turn {
        Turn { time: Time(time), gather: Time(gather), bytes: Bytes(bytes) }
    }

    #[test]
    fn a_buffer_of_one_layer_hides_nothing() {
        // Each gather waits for the operator before it to give its room back: 3 times 6.
        let turns = [turn(10, 6, 4); 3];
        assert_eq!(ahead(&turns, Some(Bytes(4))), Waiting { exposed: Time(18), peak: Bytes(4) });
        // Room for two: the first alone is waited for.
        assert_eq!(ahead(&turns, Some(Bytes(8))), Waiting { exposed: Time(6), peak: Bytes(8) });
    }

    #[test]
    fn slow_gathers_expose_what_computation_cannot_cover() {
        // Gathers end at 6, 12, 18; operators run 6-8, 12-14, 18-20: waited 6 + 4 + 4.
        assert_eq!(ahead(&[turn(2, 6, 1); 3], None).exposed, Time(14));
    }

    #[test]
    fn a_larger_buffer_reaches_behind_a_long_operator() {
        // A long operator, then two short ones: with room for all, both gathers run behind it.
        let turns = [turn(20, 0, 0), turn(1, 8, 4), turn(1, 8, 4)];
        assert_eq!(ahead(&turns, None).exposed, Time::ZERO);
        // With room for one the second starts when the first is used, at 21, and is waited for from then.
        assert_eq!(ahead(&turns, Some(Bytes(4))).exposed, Time(8));
    }
}
