//! Weights of the stages' work in a bound by paths: `y_i >= 0` for the path through each stage, chosen so that a layer without recompute
//! weighs 1 on every stage wherever that can be.

use super::bound::Shape;
use crate::spec::problem::Schedule;

/// The weight of each stage's work, or one for all, and what the paths weigh together.
pub struct Weights {
    w: Vec<f64>,
    /// The sum of the y.
    pub sum: f64,
    /// Whether a layer without recompute weighs 1 on every stage.
    pub level: bool,
}

impl Weights {
    /// Where every stage takes `unit` seconds a layer; `uneven`: a first chunk may hold little of its stage's layers; `steady`: every
    /// stage of 1F1B has steady work. For `any` schedule no stage waits.
    pub fn of_equal(shape: Shape, any: bool, unit: f64, (uneven, steady): (bool, bool)) -> Weights {
        let within = if any {
            shape.pp as f64 / shape.micro_batches as f64
        } else {
            shape.work_within(uneven, steady)
        };
        Weights { w: vec![1.0 / unit], sum: within / unit, level: true }
    }

    /// Where the stages take `units` seconds a layer.
    pub fn new(shape: Shape, any: bool, units: &[f64], (uneven, steady): (bool, bool)) -> Weights {
        let m = shape.micro_batches as f64;
        let (pp, v) = (units.len() as f64, shape.vpp as f64);
        if any {
            return down(units, m, 0.0);
        }
        match shape.schedule {
            Schedule::OneFOneB => {
                let exact = steady.then(|| both_ways(units, m)).flatten();
                exact.unwrap_or_else(|| down(units, m, 1.0))
            }
            Schedule::Interleaved => down(units, m, if uneven { 0.0 } else { 1.0 / v }),
            Schedule::GPipe if m > 1.0 => {
                // Every path passes every stage once, and one of them m times.
                let sum = units.iter().map(|u| 1.0 / u).sum::<f64>() / (m - 1.0 + pp);
                if units.iter().all(|u| 1.0 / u >= sum) {
                    let w = units.iter().map(|u| 1.0 / u).collect();
                    Weights { w, sum, level: true }
                } else {
                    down(units, m, 0.0)
                }
            }
            Schedule::GPipe | Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV => down(units, m, 0.0),
        }
    }

    /// Of a stage.
    pub fn of(&self, stage: usize) -> f64 {
        if self.w.len() == 1 {
            self.w[0]
        } else {
            self.w[stage]
        }
    }
}

/// Paths that go down to stage i and, on the way back, up: `ahead` of each earlier stage's work, and m times its own.
fn down(units: &[f64], m: f64, ahead: f64) -> Weights {
    let mut w = vec![0.0; units.len()];
    let (mut sum, mut level) = (0.0, true);
    for (i, unit) in units.iter().enumerate().rev() {
        // Where the stages behind are so much faster that this one only delays them, it is best left empty.
        let y = ((1.0 / unit - ahead * sum) / m).max(0.0);
        w[i] = m * y + ahead * sum;
        sum += y;
        level &= y > 0.0;
    }
    Weights { w, sum, level }
}

/// 1F1B with steady work on every stage: the path through stage i meets the earlier stages once, the later ones twice
/// (while the first micro-batch comes back and while the last does) and stage i itself `m - (pp - i) + 1` times.
///
/// With S the sum of the y and P_j that of those before j, `S + P_j + (m - pp + j) y_j = 1 / unit_j`: linear in S.
fn both_ways(units: &[f64], m: f64) -> Option<Weights> {
    let pp = units.len() as f64;
    // y_j = a_j - b_j S.
    let (mut a, mut b) = (0.0, 0.0);
    let lines: Vec<(f64, f64)> = units
        .iter()
        .enumerate()
        .map(|(j, unit)| {
            let own = m - pp + j as f64;
            let line = ((1.0 / unit - a) / own, (1.0 - b) / own);
            a += line.0;
            b += line.1;
            line
        })
        .collect();
    let sum = a / (1.0 + b);
    let nowhere_negative = lines.iter().all(|(a, b)| a - b * sum >= 0.0);
    let w = || units.iter().map(|u| 1.0 / u).collect();
    nowhere_negative.then(|| Weights { w: w(), sum, level: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stages_weigh_what_they_do_one_by_one() {
        let schedules = [
            (Schedule::OneFOneB, 1),
            (Schedule::GPipe, 1),
            (Schedule::Interleaved, 3),
            (Schedule::ZeroBubbleH1, 1),
            (Schedule::ZeroBubbleV, 2),
        ];
        for (schedule, vpp) in schedules {
            for (pp, micro_batches) in (2..12).flat_map(|pp| (2..30).map(move |m| (pp, m))) {
                let shape = Shape { schedule, pp, vpp, micro_batches };
                for (any, uneven) in [(false, false), (false, true), (true, false)] {
                    let known = (uneven, micro_batches > pp);
                    let equal = Weights::of_equal(shape, any, 0.25, known);
                    let each = Weights::new(shape, any, &vec![0.25; pp as usize], known);
                    assert!((equal.sum / each.sum - 1.0).abs() < 1e-9, "{shape:?}");
                    let close = |stage| (equal.of(stage) / each.of(stage) - 1.0).abs() < 1e-9;
                    assert!(each.level && (0..pp as usize).all(close), "{shape:?}");
                }
            }
        }
    }
}
