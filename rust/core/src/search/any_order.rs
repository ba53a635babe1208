//! A lower bound on every plan whose stages are on some kinds of chip, in whatever order they stand.

use super::bound::{Continuous, Shape, Verdict};
use super::relax::{hosts, rounded_down, Question};
use super::room::{cheapest, Allowed, Room, Rung, Spot};
use super::space::Stages;
use crate::estimate::least::Least;
use crate::estimate::memory::in_flight;

impl Question<'_> {
    /// A bound for all plans whose stages are among `stages`, in any order.
    ///
    /// The fastest make up the depth, the slowest of them last, where the layers fit best; all of them offer their room, with the
    /// least that a stage keeps anywhere.
    pub fn in_any_order(&self, leasts: &[Option<Least>], stages: &[Stages]) -> Verdict {
        let allowed = Allowed::new(self.problem, self.shape.pp);
        let Shape { schedule, pp, vpp, .. } = self.shape;
        let limit = self.most_layers();
        let mut fastest: Vec<(f64, u64)> = Vec::with_capacity(stages.len());
        let (mut frequent, mut other, mut ends) = (0.0, f64::INFINITY, [f64::INFINITY; 2]);
        let mut others = 0;
        let some = || stages.iter().filter(|s| s.most > 0);
        for s in some() {
            let least = self.least(leasts, s.kind);
            let unit = least.layer.both();
            fastest.push((unit, s.most));
            frequent = least.frequent as f64;
            others = least.others;
            other = f64::min(other, least.other.both() / unit);
            ends = [0, 1].map(|at| ends[at].min(least.ends[at].both() / unit));
        }
        fastest.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let mut left = pp;
        for (_, n) in &mut fastest {
            *n = left.min(*n);
            left -= *n;
        }
        if left > 0 {
            return Verdict::Memory;
        }
        let lacking = self.lacking(others);
        let slowest = some().map(|s| self.least(leasts, s.kind).slowest()).fold(0.0, f64::max);
        let sooner = lacking.unwrap_or(0.0) * slowest;
        let mut speed = Continuous::new(self.shape, lacking.is_none());
        fastest.iter().rev().for_each(|&(unit, n)| speed.stages(unit, n));
        let mut best: Option<f64> = None;
        for on_host in hosts(self.problem, leasts, false) {
            let mut rungs: Vec<Rung> = Vec::with_capacity(4 * stages.len());
            for s in some() {
                let least = self.least(leasts, s.kind);
                let flying = [0, pp - 1].map(|i| in_flight(schedule, pp, vpp, i, self.flying));
                let in_flight = if least.others > 0 {
                    0.0
                } else {
                    flying.map(|f| f.passes()).into_iter().min().unwrap_or(0) as f64 / vpp as f64
                };
                let spared = self.spot(least, 0).spared;
                let spot = Spot { in_flight, spared, at_ends: [0.0; 2], first: false, last: false };
                let unit = least.layer.both();
                Room::new(least, spot, on_host).climb(&allowed, limit, |layers, slope| {
                    rungs.push(Rung { layers: layers * s.most as f64, price: slope / unit });
                });
            }
            if let Some(price) = cheapest(rungs, frequent) {
                best = Some(best.map_or(price, |b| b.min(price)));
            }
        }
        match best {
            Some(price) => {
                let seconds = speed.bound(price + other + ends[0] + ends[1]) - sooner;
                Verdict::Seconds(rounded_down(seconds))
            }
            None => Verdict::Memory,
        }
    }
}
