//! How fast so many devices are at most, whatever the plan: a bound for every plan of a device count.
//!
//! A stage that holds x layers of u seconds for a sequence takes B x u for the B sequences of its replica. So n devices that share the
//! model's L most frequent layers among pp stages of tp x cp ranks in dp replicas, n = pp tp cp dp, need
//! `sum_i floor(T dp / (G u_i)) >= L` for a global batch G, as layers are whole. Here u is the least that a layer takes on a kind at these
//! degrees in a micro-batch of any size.
//! Where kinds have degrees of their own, all that is said is that the devices of each kind do their best:
//! `T sum_k n_k / c_k >= G L` with c_k the least of tp cp u.

use super::cell::{divisors, Cell};
use super::passage::Passage;
use super::prices::PriceList;
use super::space;
use crate::spec::cluster::{Topology, MOST_KINDS};
use crate::spec::problem::Problem;
use crate::units::Time;
use rayon::prelude::*;

/// The most that devices pass.
pub struct Throughput {
    /// Tensor- and context-parallel ranks, with the seconds of a layer for a sequence on each kind; none where a kind cannot hold them.
    shapes: Vec<(u64, Vec<f64>)>,
    /// Data-parallel degrees and pipeline depths that there may be.
    dp: Vec<u64>,
    pp: Vec<bool>,
    /// Devices that there are of each kind.
    available: Vec<u64>,
    /// Sequences, and layers of the most frequent sort.
    batch: f64,
    layers: f64,
    mixed: bool,
}

impl Throughput {
    /// For counts from `fewest` to `most` devices; nothing where links depend on the count, as in a torus.
    pub fn new(problem: &Problem, fewest: u64, most: u64) -> Option<Throughput> {
        let groups = &problem.cluster.groups;
        let torus = |t: Topology| matches!(t, Topology::Torus2d | Topology::Torus3d);
        if groups.iter().any(|group| torus(group.chip.link.topology)) {
            return None;
        }
        // The slowest of few devices is faster than that of many: rates vary.
        let mut few = problem.clone();
        few.cluster.devices = fewest;
        let mut prices = PriceList::new(&few, most);
        let mut asked = Vec::new();
        for kind in 0..groups.len() {
            for (cell, sp, ep) in degrees(problem, kind, most) {
                asked.push((kind, cell.tp * cell.cp, prices.ask_for_kind(cell, kind, sp, ep)));
            }
        }
        prices.settle();
        let mut shapes: Vec<(u64, Vec<f64>)> = Vec::new();
        let mut layers: f64 = 0.0;
        let floors: Vec<&Passage> =
            asked.par_iter().map(|&(_, _, at)| prices.floor_at(at)).collect();
        for ((kind, ranks, _), floor) in asked.iter().zip(floors) {
            let (kind, ranks) = (*kind, *ranks);
            let at = shapes.iter().position(|shape| shape.0 == ranks).unwrap_or_else(|| {
                shapes.push((ranks, vec![f64::INFINITY; groups.len()]));
                shapes.len() - 1
            });
            let least = &mut shapes[at].1[kind];
            *least = least.min(floor.layer);
            layers = floor.frequent;
        }
        let (w, o) = (&problem.workload, &problem.options);
        let depths = 0..=u64::from(problem.model.layers);
        Some(Throughput {
            shapes,
            dp: divisors(w.global_batch_size)
                .into_iter()
                .filter(|dp| space::allows(&o.dp, dp))
                .collect(),
            pp: depths.map(|pp| pp > 0 && space::allows(&o.pp, &pp)).collect(),
            available: (0..groups.len()).map(|kind| problem.available(kind)).collect(),
            batch: w.global_batch_size as f64,
            layers,
            mixed: o.mixed_tp && groups.len() > 1,
        })
    }

    /// No plan on so many devices is faster.
    pub fn least(&self, devices: u64) -> Time {
        let seconds = if self.mixed { self.at_their_best(devices) } else { self.alike(devices) };
        time(seconds)
    }

    /// The same with the degrees of a cell.
    pub fn least_of(&self, cell: &Cell) -> Time {
        let (ranks, stage) = (cell.tp * cell.cp, cell.tp * cell.cp * cell.dp);
        let shape = self.shapes.iter().find(|shape| shape.0 == ranks);
        let of = |seconds: &[f64]| {
            self.batch / cell.dp as f64 * self.bottleneck(seconds, cell.pp, stage)
        };
        time(shape.map_or(f64::INFINITY, |shape| of(&shape.1)))
    }

    /// Seconds of a step at least where all stages have as many ranks.
    fn alike(&self, devices: u64) -> f64 {
        let mut least = f64::INFINITY;
        for (ranks, seconds) in &self.shapes {
            for dp in &self.dp {
                let stage = ranks * dp;
                let pp = devices / stage;
                let legal = pp * stage == devices && self.pp.get(pp as usize) == Some(&true);
                if legal {
                    least =
                        least.min(self.batch / *dp as f64 * self.bottleneck(seconds, pp, stage));
                }
            }
        }
        least
    }

    /// Seconds that the slowest of `pp` stages needs for a sequence: of the fastest stages that there are, each as many whole layers as
    /// it passes in that time.
    fn bottleneck(&self, seconds: &[f64], pp: u64, stage: u64) -> f64 {
        let mut order = [0; MOST_KINDS];
        let order = &mut order[..seconds.len()];
        order.iter_mut().enumerate().for_each(|(kind, place)| *place = kind);
        order.sort_unstable_by(|&a, &b| seconds[a].total_cmp(&seconds[b]));
        let (mut used, mut left) = ([(0.0, 0.0); MOST_KINDS], pp);
        for (&kind, used) in order.iter().zip(&mut used) {
            let stages = (self.available[kind] / stage).min(left);
            *used = (stages as f64, seconds[kind]);
            left -= stages;
        }
        let used = || used.iter().filter(|(stages, _)| *stages > 0.0);
        if left > 0 || used().any(|(_, u)| u.is_infinite()) {
            return f64::INFINITY;
        }
        let mut time = self.layers / used().map(|(stages, u)| stages / u).sum::<f64>();
        // The rounding of a quotient must not cost a layer.
        let whole = |time: f64, u: f64| (time / u + 1e-9).floor();
        while used().map(|&(stages, u)| stages * whole(time, u)).sum::<f64>() < self.layers {
            time = used().map(|&(_, u)| (whole(time, u) + 1.0) * u).fold(f64::INFINITY, f64::min);
        }
        time
    }

    /// Seconds of a step at least where every device does its best.
    fn at_their_best(&self, devices: u64) -> f64 {
        let mut kinds: Vec<(u64, f64)> = self
            .available
            .iter()
            .enumerate()
            .map(|(kind, &available)| {
                let all = self.shapes.iter().map(|(ranks, u)| *ranks as f64 * u[kind]);
                (available, all.fold(f64::INFINITY, f64::min))
            })
            .collect();
        kinds.sort_unstable_by(|a, b| a.1.total_cmp(&b.1));
        let (mut left, mut speed) = (devices, 0.0);
        for (available, seconds) in kinds {
            let used = available.min(left);
            speed += used as f64 / seconds;
            left -= used;
        }
        self.batch * self.layers / speed
    }
}

/// Seconds less what rounding may have added to their parts.
fn time(seconds: f64) -> Time {
    if seconds.is_finite() {
        Time::from_seconds(seconds * (1.0 - 1e-9))
    } else {
        Time::MAX
    }
}

/// The degrees that stages on a kind may have, each as a cell with just enough replicas: in a pipeline and without, as that may change
/// what travels in a pass.
fn degrees(problem: &Problem, kind: usize, most: u64) -> Vec<(Cell, bool, u64)> {
    let (m, w) = (&problem.model, &problem.workload);
    let experts = m.moe.map_or(1, |moe| u64::from(moe.experts));
    let mut all = Vec::new();
    for tp in divisors(u64::from(m.heads)) {
        let shards = space::expert_tensor_parallel(problem, tp);
        for cp in divisors(w.sequence_length).into_iter().filter(|cp| tp * cp <= most) {
            for ep in divisors(experts).into_iter().filter(|ep| ep * shards <= most) {
                for (pp, sp) in [(1, false), (1, true), (2, false), (2, true)] {
                    let cell = Cell { pp, tp, each: None, cp, dp: ep * shards };
                    let legal = space::places(problem, cell, kind, false)
                        && space::cut_degrees(problem, tp, cp, 1).is_none()
                        && space::cut_any_size(problem, cell, sp, ep).is_none();
                    if legal {
                        all.push((cell, sp, ep));
                    }
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{search, watch::Watch};
    use crate::spec::model::Model;
    use crate::testing;

    #[test]
    fn no_plan_is_faster_than_all_devices_at_their_best() {
        let mut cluster = testing::cluster(testing::a100(), 12);
        cluster.groups[0].limit = Some(8);
        cluster.groups.push(cluster.groups[0].clone());
        cluster.groups[1].chip = testing::fast();
        cluster.groups[1].limit = Some(8);
        for moe in [None, Some(testing::moe(4, 2, 8192))] {
            let model = Model { moe, ..testing::gpt(8, 4096) };
            let mut problem = testing::problem(model, cluster.clone(), 48, 4096);
            problem.options.top = 1;
            let mut near = 0;
            for (devices, mixed_tp) in (1..=12).flat_map(|n| [(n, false), (n, true)]) {
                problem.cluster.devices = devices;
                problem.options.mixed_tp = mixed_tp;
                let bound = Throughput::new(&problem, devices, 12).expect("no torus");
                let report = search(problem.clone(), &Watch::new(None));
                let Some(best) = report.ranked.first() else { continue };
                let (least, time) = (bound.least(devices), best.estimate.step_ps);
                assert!(least <= time, "{devices} devices");
                near += u32::from(least * 2 > time);
            }
            assert!(near > 0, "the bound tells something");
        }
    }
}
