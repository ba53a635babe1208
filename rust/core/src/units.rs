//! Quantities that refuse to mix: bytes and picoseconds.
//!
//! Time is added as whole picoseconds, so a sum does not depend on its order and two plans
//! with the same cost compare equal. Both integers saturate: the largest [`Time`] is 213 days.

use serde::{Deserialize, Serialize};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub};

/// The whole number nearest to `x`, halves upwards; what is negative or no number becomes zero, what is too large the
/// largest. On processors without an instruction of its own `f64::round` calls the C library for every figure.
fn nearest(x: f64) -> u64 {
    // `as` cuts off what is behind the point, saturates at both ends and maps NaN to zero.
    let below = x as u64;
    below.saturating_add(u64::from(x - below as f64 >= 0.5))
}

/// A duration in whole picoseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// No time at all.
    pub const ZERO: Time = Time(0);
    /// The longest duration that can be told: 2^64 - 1 ps, 213 days. Sums stop here.
    pub const MAX: Time = Time(u64::MAX);

    /// Rounds a duration in seconds to the nearest picosecond; negative durations become zero.
    pub fn from_seconds(seconds: f64) -> Time {
        Time(nearest(seconds * 1e12))
    }

    /// The duration in seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 * 1e-12
    }

    /// The difference, or zero when `other` is longer: what is left of `self` after `other` hides it.
    pub fn beyond(self, other: Time) -> Time {
        Time(self.0.saturating_sub(other.0))
    }
}

impl Add for Time {
    type Output = Time;
    fn add(self, other: Time) -> Time {
        Time(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Time {
    fn add_assign(&mut self, other: Time) {
        *self = *self + other;
    }
}

impl Sub for Time {
    type Output = Time;
    /// Exact difference; prefix sums only ever subtract a smaller prefix.
    fn sub(self, other: Time) -> Time {
        debug_assert!(self >= other, "time cannot be negative");
        Time(self.0.saturating_sub(other.0))
    }
}

impl Mul<u64> for Time {
    type Output = Time;
    fn mul(self, times: u64) -> Time {
        Time(self.0.saturating_mul(times))
    }
}

impl Sum for Time {
    fn sum<I: Iterator<Item = Time>>(iter: I) -> Time {
        iter.fold(Time::ZERO, Add::add)
    }
}

/// An amount of device memory in bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Nothing.
    pub const ZERO: Bytes = Bytes(0);

    /// Rounds an amount to whole bytes; negative amounts become zero.
    pub fn from_f64(bytes: f64) -> Bytes {
        Bytes(nearest(bytes))
    }

    /// Rounds an amount in GiB (2^30 bytes) to whole bytes.
    pub fn from_gib(gib: f64) -> Bytes {
        Bytes::from_f64(gib * GIB)
    }

    /// The amount in GiB (2^30 bytes).
    pub fn gib(self) -> f64 {
        self.0 as f64 / GIB
    }

    /// The difference, or zero when `other` is larger.
    pub fn beyond(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

/// Bytes in one GiB.
pub const GIB: f64 = 1_073_741_824.0;

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    /// Exact difference; prefix sums only ever subtract a smaller prefix.
    fn sub(self, other: Bytes) -> Bytes {
        debug_assert!(self >= other, "an amount cannot be negative");
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl Mul<u64> for Bytes {
    type Output = Bytes;
    fn mul(self, times: u64) -> Bytes {
        Bytes(self.0.saturating_mul(times))
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(iter: I) -> Bytes {
        iter.fold(Bytes::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_rounds_to_picoseconds_and_saturates() {
        assert_eq!(Time::from_seconds(1.5e-12), Time(2));
        assert_eq!(Time::from_seconds(-1.0), Time::ZERO);
        assert_eq!(Time::from_seconds(f64::NAN), Time::ZERO);
        assert_eq!(Time::from_seconds(f64::INFINITY), Time::MAX);
        for x in [0.0, 0.49999999999999994, 0.5, 1.4999999999999998, 2.5, 1e15 + 0.5, 1e18, 3e19] {
            assert_eq!(Bytes::from_f64(x).0, x.round() as u64, "{x}");
        }
        assert_eq!(Time::MAX + Time(1), Time::MAX);
        assert_eq!(Time(u64::MAX / 2) * 3, Time::MAX);
    }

    #[test]
    fn a_gib_is_two_to_the_thirty() {
        assert_eq!(Bytes::from_gib(1.0), Bytes(1 << 30));
        assert_eq!(Bytes(3 << 29).gib(), 1.5);
    }
}
