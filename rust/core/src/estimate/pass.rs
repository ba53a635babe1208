//! One pass over a device, and how long its host and it take for it together.

use super::host::Launch;
use super::shard::Split;
use crate::units::Time;

/// One pass over a device, in seconds, with the number of kernels that the host must launch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Pass {
    pub(super) compute: f64,
    pub(super) tensor: f64,
    pub(super) context: f64,
    pub(super) expert: f64,
    pub(super) shard: f64,
    pub(super) kernels: u32,
    /// Kernels that compiled loops inside operators launch, one for each expert.
    pub(super) looped: u32,
    /// Kernels of experts' dispatch and combination that lie between compiled parts of a layer.
    pub(super) apart: u32,
    /// Compiled layers that are entered.
    pub(super) entered: u32,
    /// Layers, or their experts, whose shards are gathered or reduced.
    pub(super) hooked: u32,
    /// Kernels whose operators a policy is asked about.
    pub(super) asked: u32,
}

impl Pass {
    pub(super) fn run(&mut self, seconds: f64) {
        self.compute += seconds;
        self.kernels += 1;
    }

    pub(super) fn run_many(&mut self, seconds: f64, kernels: u32) {
        self.compute += seconds;
        self.kernels += kernels;
    }

    /// Both together.
    pub(super) fn plus(self, other: Pass) -> Pass {
        Pass {
            compute: self.compute + other.compute,
            tensor: self.tensor + other.tensor,
            context: self.context + other.context,
            expert: self.expert + other.expert,
            shard: self.shard + other.shard,
            kernels: self.kernels + other.kernels,
            looped: self.looped + other.looped,
            apart: self.apart + other.apart,
            entered: self.entered + other.entered,
            hooked: self.hooked + other.hooked,
            asked: self.asked + other.asked,
        }
    }

    /// What was added since `before`.
    pub(super) fn since(self, before: Pass) -> Pass {
        Pass {
            compute: self.compute - before.compute,
            tensor: self.tensor - before.tensor,
            context: self.context - before.context,
            expert: self.expert - before.expert,
            shard: self.shard - before.shard,
            kernels: self.kernels.saturating_sub(before.kernels),
            looped: self.looped.saturating_sub(before.looped),
            apart: self.apart.saturating_sub(before.apart),
            entered: self.entered.saturating_sub(before.entered),
            hooked: self.hooked.saturating_sub(before.hooked),
            asked: self.asked.saturating_sub(before.asked),
        }
    }

    /// An operator that launches so many kernels for each of `batch` products, where there are several, and so many `once`.
    pub(super) fn loops(&mut self, batch: u64, kernels: u32, once: u32) {
        if batch > 1 {
            self.looped += kernels * batch.min(1 << 16) as u32 + once;
        }
    }

    /// Seconds of the device.
    fn device(&self) -> f64 {
        self.compute + self.tensor + self.context + self.expert
    }

    /// Seconds of the host.
    fn host(&self, launch: Launch) -> f64 {
        f64::from(self.kernels) * launch.seconds
            + f64::from(self.looped) * launch.looped
            + f64::from(self.apart) * launch.apart
            + f64::from(self.entered) * launch.entered
            + f64::from(self.hooked) * launch.hooked
            + f64::from(self.asked) * launch.asked
    }

    /// How long the pass lasts beside its gathers: its device time or the host's to launch it, whichever is longer, and both in
    /// turn where launches block.
    pub(super) fn lasts(&self, launch: Launch) -> f64 {
        let (device, host) = (self.device(), self.host(launch));
        if launch.blocking {
            device + host
        } else {
            device.max(host)
        }
    }

    /// How long the device waits for launches in it.
    pub(super) fn waits(&self, launch: Launch) -> f64 {
        self.lasts(launch) - self.device()
    }

    /// How long the device waits for launches of `parts` in their order, before the first of which the host waited for it.
    ///
    /// Until the first kernel is launched it has nothing to do. Then it is done when the host has launched the first parts, all of
    /// them or none but that kernel, and it has run the others: the latest of these.
    pub(super) fn waits_in_order(parts: &[Pass], launch: Launch) -> f64 {
        let device = parts.iter().map(Pass::device).sum::<f64>();
        if launch.blocking {
            return parts.iter().map(|part| part.waits(launch)).sum();
        }
        let (mut launched, mut left, mut done) = (0.0, device, launch.seconds + device);
        for part in parts {
            launched += part.host(launch);
            left -= part.device();
            done = f64::max(done, launched + left);
        }
        done - device
    }

    /// Whole picoseconds by cause; a pass lasts at least as long as its launches.
    pub(super) fn split(self, launch: Launch) -> Split {
        self.with_waits(self.waits(launch))
    }

    /// The same of what begins with the host ahead: what it waits more, or less, than the `backward` pass behind it does by itself,
    /// as launches of the one are made while the device is at the other.
    pub(super) fn split_before(self, backward: Pass, launch: Launch) -> Split {
        self.with_waits(self.plus(backward).waits(launch) - backward.waits(launch))
    }

    /// The same of what follows `before`, which waits for its own launches: it waits for what is left of both passes' waiting, or is
    /// shorter by what the host gains while it runs.
    pub(super) fn split_behind(self, before: Pass, launch: Launch) -> Split {
        self.with_waits(before.plus(self).waits(launch) - before.waits(launch))
    }

    /// Whole picoseconds by cause, with so many seconds of waiting.
    pub(super) fn with_waits(self, waiting: f64) -> Split {
        Split {
            compute: Time::from_seconds((self.compute + waiting).max(0.0)),
            tensor: Time::from_seconds(self.tensor),
            context: Time::from_seconds(self.context),
            expert: Time::from_seconds(self.expert),
            shard: Time::from_seconds(self.shard),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second a launch.
    const LAUNCH: Launch = Launch {
        seconds: 1.0,
        looped: 0.0,
        apart: 0.0,
        entered: 0.0,
        hooked: 0.0,
        asked: 0.0,
        blocking: false,
    };

    fn part(compute: f64, kernels: u32) -> Pass {
        Pass { compute, kernels, ..Pass::default() }
    }

    #[test]
    fn a_host_that_waited_has_launched_nothing_ahead() {
        // Experts take the host four and the device two, attention one and five. Together the device has more to
        // do, seven over five; but it gets to attention after the fourth launch, at second four, and is done at nine.
        let (experts, attention) = (part(2.0, 4), part(5.0, 1));
        assert_eq!(experts.plus(attention).waits(LAUNCH), 0.0);
        assert_eq!(Pass::waits_in_order(&[experts, attention], LAUNCH), 2.0);
        // With six seconds of experts it waits for the first launch alone.
        assert_eq!(Pass::waits_in_order(&[part(6.0, 4), attention], LAUNCH), 1.0);
        // With ten launches for attention the host is what lasts: fourteen over seven.
        assert_eq!(Pass::waits_in_order(&[experts, part(5.0, 10)], LAUNCH), 7.0);
        let blocking = Launch { blocking: true, ..LAUNCH };
        assert_eq!(Pass::waits_in_order(&[experts, attention], blocking), 5.0);
    }

    #[test]
    fn what_follows_waits_for_what_is_left_of_both_passes_waiting() {
        // The first pass lasts its four launches, though the device is busy for two. Both together last the device's
        // seven seconds where the host is ahead again, so the second takes three of its five; of ten launches it lasts the ten.
        let first = part(2.0, 4);
        assert_eq!(first.split(LAUNCH).compute.seconds(), 4.0);
        assert_eq!(part(5.0, 1).split_behind(first, LAUNCH).compute.seconds(), 3.0);
        assert_eq!(part(5.0, 10).split_behind(first, LAUNCH).compute.seconds(), 10.0);
    }
}
