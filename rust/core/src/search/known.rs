//! Plans that are known to exist, and what they leave to others: which device counts matter beside them, and up to which time.

use super::report::Wanted;
use crate::units::Time;

/// Devices on which some plan takes a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    pub devices: u64,
    pub time: Time,
}

impl Known {
    /// What grows with the money of a step where every device-hour has one price.
    pub fn money(&self) -> u128 {
        u128::from(self.devices) * u128::from(self.time.0)
    }

    /// Whether `other` is better in time or money and as good in the other.
    pub fn is_beaten_by(&self, other: &Known) -> bool {
        let costs = |of: &Known| (of.time, of.money());
        let ((time, money), (t, m)) = (costs(self), costs(other));
        t <= time && m <= money && (t, m) != (time, money)
    }

    /// The longest time that is of use on `devices` beside this plan.
    fn leaves(&self, devices: u64, wanted: Wanted) -> Time {
        let money = |most: u128| {
            let time = most / u128::from(devices);
            Time(u64::try_from(time).unwrap_or(u64::MAX))
        };
        match wanted {
            Wanted::Every => Time::MAX,
            // Of sizes as fast the one with the fewest devices.
            Wanted::Fastest => self.time,
            Wanted::Cheapest => money(self.money()),
            // A count's best may be this one.
            Wanted::Frontier if devices == self.devices => self.time,
            // More devices that are no faster cost more; fewer that are no cheaper are slower.
            Wanted::Frontier if devices > self.devices => Time(self.time.0.saturating_sub(1)),
            Wanted::Frontier => money(self.money().saturating_sub(1)),
        }
    }
}

/// Those of some plans that no other of them beats.
#[derive(Clone, Debug, Default)]
pub struct Unbeaten(Vec<Known>);

impl Unbeaten {
    /// Adds a plan.
    pub fn add(&mut self, plan: Known) {
        if self.0.iter().any(|known| *known == plan || plan.is_beaten_by(known)) {
            return;
        }
        self.0.retain(|known| !known.is_beaten_by(&plan));
        self.0.push(plan);
    }

    /// The longest time that is of use on so many devices.
    pub fn limit(&self, devices: u64, wanted: Wanted) -> Time {
        let leaves = self.0.iter().map(|known| known.leaves(devices, wanted));
        leaves.min().unwrap_or(Time::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_leaves_others_what_does_not_lose_to_it() {
        let known = |devices, time| Known { devices, time: Time(time) };
        let all = [known(4, 30), known(8, 15), known(8, 14), known(16, 9), known(16, 10)];
        let mut unbeaten = Unbeaten::default();
        all.into_iter().for_each(|plan| unbeaten.add(plan));
        // 4 x 30 = 120 costs more than 8 x 14 = 112 and is slower; 16 x 9 = 144 is faster.
        assert_eq!(unbeaten.0, [known(8, 14), known(16, 9)]);
        for (devices, time) in (1..40).flat_map(|n| (1..160).map(move |t| (n, t))) {
            let plan = known(devices, time);
            let of_use = unbeaten.0.iter().all(|known| *known == plan || !plan.is_beaten_by(known));
            let within = |wanted| Time(time) <= unbeaten.limit(devices, wanted);
            assert_eq!(of_use, within(Wanted::Frontier), "{plan:?}");
            assert_eq!(time <= 9, within(Wanted::Fastest), "{plan:?}");
            assert_eq!(devices * time <= 112, within(Wanted::Cheapest), "{plan:?}");
            assert!(within(Wanted::Every));
        }
    }
}
