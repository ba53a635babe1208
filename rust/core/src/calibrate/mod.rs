//! The few physical figures of a chip, fitted to what was measured on it: whole runs, or single operators.
//!
//! A figure belongs to the chip and never to a row. What the points cannot tell is refused with its reason. The fit makes
//! the mean absolute logarithm of predicted over measured time least, a group of points counting as much as any other: an
//! outlier pulls no more than its neighbour. Each fold is left out in turn and predicted by the rest.

pub mod figure;
mod least;
pub mod point;

use crate::error::{require, Error};
use crate::search::watch::Watch;
use crate::spec::cluster::Chip;
use figure::{Figure, LEAST};
use least::{grouped_errors, newton_step, standard_errors};
use point::Point;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Standard deviation, as a share, between repeats of one training run: published repeats differ by 0.1 to 8 %.
const NOISE: f64 = 0.05;
/// Standard deviation of normal values over the median of their sizes.
const DEVIATION_OF_MEDIAN: f64 = 1.4826;
/// A figure that the points would give to a wider standard error than this share is refused.
const WIDEST: f64 = 0.15;
/// A figure that changes no time by this share of its own change does not matter to the points.
const DEAF: f64 = 0.01;
/// Different points that each figure after the first needs.
const POINTS_A_FIGURE: usize = 3;
/// Folds where the points are of one group.
const FOLDS: usize = 10;
/// Change of a logarithm by which derivatives are taken.
const NUDGE: f64 = 0.01;

/// What is to be fitted, to what.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The chip with its present figures; points of operators are priced on it.
    pub chip: Chip,
    /// What the wires of its link together carry in one direction by the data sheet, 10^9 bytes a second; `null` if unknown.
    pub link_line_gb_per_s: Option<f64>,
    /// The figures, the one to tell first first.
    pub figures: Vec<Figure>,
    /// The measurements.
    pub points: Vec<Point>,
    /// Whether to fit without each fold too.
    pub cross_validate: bool,
}

/// What a calibration found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The chip with the fitted figures.
    pub chip: Chip,
    /// The figures that the points tell.
    pub figures: Vec<Fitted>,
    /// Those that they do not.
    pub refused: Vec<Refused>,
    /// One entry a point.
    pub points: Vec<Residual>,
    /// The fits without one fold each; none for a single point, or where they were not asked for.
    pub folds: Vec<Fold>,
    /// Mean absolute error of the points before.
    pub before: f64,
    /// The same after.
    pub after: f64,
    /// The same where each point is predicted by the fit without its fold; absent for a single point.
    pub left_out: Option<f64>,
}

/// A figure that was fitted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fitted {
    /// Which.
    pub figure: Figure,
    /// Its value before; 1 for a scale.
    pub before: f64,
    /// Its value now.
    pub after: f64,
    /// Standard error as a share of it, where points scatter as they do about the fit, by 5 % at least.
    pub error: f64,
    /// Whether it stopped at the end of what is plausible.
    pub at_bound: bool,
}

/// A figure that was not.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refused {
    /// Which.
    pub figure: Figure,
    /// Why.
    pub why: String,
    /// What would tell it.
    pub cure: String,
}

/// A point's errors: predicted over measured time, less 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Residual {
    /// With the figures of before.
    pub before: f64,
    /// With the fitted ones.
    pub after: f64,
    /// With those fitted without its fold.
    pub left_out: Option<f64>,
}

/// The fit without one fold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fold {
    /// The group that was left out, or the fold's number where they are not groups.
    pub name: String,
    /// What the other points tell, with its value.
    pub figures: BTreeMap<Figure, f64>,
}

/// Fits the figures that the points tell.
///
/// # Errors
/// An input that is not valid, points that tell no figure, or a watch that was stopped.
pub fn calibrate(task: &Calibration, watch: &Watch) -> Result<Fit, Error> {
    let bench = Bench::new(task, watch)?;
    let all: Vec<usize> = (0..task.points.len()).collect();
    let start = bench.start.clone();
    let before = bench.residuals(&start, &all)?;
    let Settled { told, refused, values, errors } = bench.settle(&all, &start)?;
    if let (true, Some(first)) = (told.is_empty(), refused.first()) {
        let name = first.figure.name();
        let what = format!("tell no figure; {name}: {}", first.why);
        return Err(Error::new("points", what, format!("{}.", first.cure)));
    }
    let after = bench.residuals(&values, &all)?;
    let mut left_out = vec![None; all.len()];
    let mut folds = Vec::new();
    let parts = if task.cross_validate { bench.folds() } else { vec![] };
    for (name, members) in parts {
        let rest: Vec<usize> = all.iter().copied().filter(|i| !members.contains(i)).collect();
        let Settled { told: known, values: found, .. } = bench.settle(&rest, &values)?;
        for (&i, residual) in members.iter().zip(bench.residuals(&found, &members)?) {
            left_out[i] = Some(residual);
        }
        let figures = known.iter().map(|&f| (task.figures[f], found[f].exp())).collect();
        folds.push(Fold { name, figures });
    }
    let mut chip = task.chip.clone();
    told.iter().for_each(|&f| task.figures[f].scale(&mut chip, (values[f] - start[f]).exp()));
    let figures = told
        .iter()
        .zip(errors)
        .map(|(&f, error)| {
            let (low, high) = bench.bounds[f];
            let at_bound = values[f] <= low + 1e-9 || values[f] >= high - 1e-9;
            let (before, after) = (bench.start[f].exp(), values[f].exp());
            Fitted { figure: task.figures[f], before, after, error, at_bound }
        })
        .collect();
    let known: Option<Vec<f64>> = left_out.iter().copied().collect();
    Ok(Fit {
        chip,
        figures,
        refused,
        before: mean_error(&before),
        after: mean_error(&after),
        left_out: known.as_deref().map(mean_error),
        points: (0..all.len())
            .map(|i| Residual {
                before: before[i].exp_m1(),
                after: after[i].exp_m1(),
                left_out: left_out[i].map(f64::exp_m1),
            })
            .collect(),
        folds,
    })
}

fn mean_error(residuals: &[f64]) -> f64 {
    residuals.iter().map(|r| r.exp_m1().abs()).sum::<f64>() / residuals.len().max(1) as f64
}

/// Figures fitted to some points.
struct Settled {
    told: Vec<usize>,
    refused: Vec<Refused>,
    values: Vec<f64>,
    errors: Vec<f64>,
}

/// The points and how they answer to the figures; values are logarithms.
struct Bench<'a> {
    task: &'a Calibration,
    watch: &'a Watch,
    start: Vec<f64>,
    bounds: Vec<(f64, f64)>,
}

impl<'a> Bench<'a> {
    fn new(task: &'a Calibration, watch: &'a Watch) -> Result<Bench<'a>, Error> {
        task.chip.validate().map_err(|e| e.under("chip"))?;
        let figures = &task.figures;
        for (i, figure) in figures.iter().enumerate() {
            require(
                !figures[..i].contains(figure),
                &format!("figures[{i}]"),
                || format!("{} is listed twice", figure.name()),
                "List each figure once.",
            )?;
        }
        for (ok, path) in [(!figures.is_empty(), "figures"), (!task.points.is_empty(), "points")] {
            require(ok, path, || "empty".to_owned(), "Give at least one.")?;
        }
        if let Some(line) = task.link_line_gb_per_s {
            require(
                line.is_finite() && line > 0.0,
                "link_line_gb_per_s",
                || format!("must be a positive number, found {line}"),
                "Give 10^9 bytes a second in one direction.",
            )?;
        }
        for (i, point) in task.points.iter().enumerate() {
            let path = format!("points[{i}]");
            require(
                point.seconds.is_finite() && point.seconds > 0.0,
                &format!("{path}.seconds"),
                || format!("must be a positive number, found {}", point.seconds),
                "Give the time that was measured.",
            )?;
            point.what.check(&task.chip).map_err(|e| e.under(&path))?;
        }
        let start = figures.iter().map(|f| f.value(&task.chip).ln()).collect();
        let bounds = figures
            .iter()
            .map(|f| (LEAST.ln(), f.most(&task.chip, task.link_line_gb_per_s).ln()))
            .collect();
        Ok(Bench { task, watch, start, bounds })
    }

    /// Logarithm of predicted over measured time of some points.
    fn residuals(&self, values: &[f64], points: &[usize]) -> Result<Vec<f64>, Error> {
        if self.watch.stopped() {
            return Err(Error::new("calibration", "stopped before it was done", "Run it again."));
        }
        let figures = &self.task.figures;
        let change = |chip: &mut Chip| {
            for ((figure, value), start) in figures.iter().zip(values).zip(&self.start) {
                // What is not moved keeps its very bits.
                if value != start {
                    figure.scale(chip, (value - start).exp());
                }
            }
        };
        let launch = figures.iter().position(|&f| f == Figure::Launch);
        let launch = launch.map_or(1.0, |f| values[f].exp());
        points
            .par_iter()
            .map(|&i| {
                let point = &self.task.points[i];
                let seconds = point.what.seconds(&self.task.chip, change, launch);
                let seconds = seconds.map_err(|e| e.under(&format!("points[{i}]")))?;
                Ok((seconds / point.seconds).ln())
            })
            .collect()
    }

    /// By how much, of its own change, each of some figures changes the time of each of some points.
    fn slopes(
        &self,
        values: &[f64],
        figures: &[usize],
        points: &[usize],
    ) -> Result<Vec<Vec<f64>>, Error> {
        let here = self.residuals(values, points)?;
        figures
            .iter()
            .map(|&f| {
                // Away from the bound, as an efficiency of 1 has no more above it.
                let nudge = if values[f] + NUDGE > self.bounds[f].1 { -NUDGE } else { NUDGE };
                let mut moved = values.to_vec();
                moved[f] += nudge;
                let there = self.residuals(&moved, points)?;
                Ok(here.iter().zip(there).map(|(a, b)| (b - a) / nudge).collect())
            })
            .collect()
    }

    /// The figures that some points tell, and the others with the reason.
    fn told(&self, points: &[usize]) -> Result<(Vec<usize>, Vec<Refused>), Error> {
        let figures: Vec<usize> = (0..self.task.figures.len()).collect();
        let slopes = self.slopes(&self.start, &figures, points)?;
        let mut different: Vec<u64> = points
            .iter()
            .zip(self.residuals(&self.start, points)?)
            .map(|(&i, r)| (self.task.points[i].seconds * r.exp()).to_bits())
            .collect();
        different.sort_unstable();
        different.dedup_by(|a, b| (f64::from_bits(*a) / f64::from_bits(*b) - 1.0).abs() < 1e-9);
        let (mut told, mut refused): (Vec<usize>, _) = (vec![], vec![]);
        for f in figures {
            let figure = self.task.figures[f];
            let most = slopes[f].iter().map(|s| s.abs()).fold(0.0, f64::max);
            let alone = standard_errors(&slopes[f..=f], NOISE)[0];
            let mut with: Vec<Vec<f64>> = told.iter().map(|&t| slopes[t].clone()).collect();
            with.push(slopes[f].clone());
            let together = standard_errors(&with, NOISE).into_iter().fold(0.0, f64::max);
            let needed = if told.is_empty() { 1 } else { POINTS_A_FIGURE * (told.len() + 1) };
            let why = if most < DEAF {
                "no point depends on it".to_owned()
            } else if alone > WIDEST {
                format!(
                    "a change of 10 % moves no time by more than {:.1} %, which leaves it open to {}",
                    10.0 * most,
                    percent(alone)
                )
            } else if different.len() < needed {
                let (n, figures) = (different.len(), told.len() + 1);
                format!("{n} different points do not tell {figures} figures, three each are needed")
            } else if together > WIDEST {
                format!(
                    "the points do not tell it apart from {}, which leaves one open to {}",
                    told.iter()
                        .map(|&t| self.task.figures[t].name())
                        .collect::<Vec<_>>()
                        .join(", "),
                    percent(together)
                )
            } else {
                told.push(f);
                continue;
            };
            refused.push(Refused { figure, why, cure: figure.cure().to_owned() });
        }
        Ok((told, refused))
    }

    /// Fits the figures that some points tell. Where the points scatter about the fit by more than repeats do, what that leaves
    /// too open is refused too, the most open first; the first figure is the level about which they scatter, and stays.
    fn settle(&self, points: &[usize], from: &[f64]) -> Result<Settled, Error> {
        let (mut told, mut refused) = self.told(points)?;
        loop {
            let mut values = self.start.clone();
            told.iter().for_each(|&f| values[f] = from[f]);
            let values = self.fit(&told, points, &values)?;
            let residuals = self.residuals(&values, points)?;
            let mut sizes: Vec<f64> = residuals.iter().map(|r| r.abs()).collect();
            sizes.sort_unstable_by(f64::total_cmp);
            let median = sizes.get(sizes.len() / 2).copied().unwrap_or_default();
            let scatter = NOISE.max(DEVIATION_OF_MEDIAN * median);
            let slopes = self.slopes(&values, &told, points)?;
            let groups: Vec<&String> = points.iter().map(|&i| &self.task.points[i].group).collect();
            let errors: Vec<f64> = standard_errors(&slopes, scatter)
                .into_iter()
                .zip(grouped_errors(&slopes, &residuals, &groups))
                .map(|(alone, together)| alone.max(together))
                .collect();
            let open = (1..told.len()).max_by(|&a, &b| errors[a].total_cmp(&errors[b]));
            match open.filter(|&f| errors[f] > WIDEST) {
                None => return Ok(Settled { told, refused, values, errors }),
                Some(f) => {
                    let figure = self.task.figures[told.remove(f)];
                    let why = format!(
                        "the points lie {} about the fit or their groups disagree, which leaves it open to {}",
                        percent(scatter),
                        percent(errors[f])
                    );
                    refused.push(Refused { figure, why, cure: figure.cure().to_owned() });
                }
            }
        }
    }

    /// Each group as a fold with the points in it; ten interleaved folds of a single group or of several kinds of point, none
    /// of a single point.
    fn folds(&self) -> Vec<(String, Vec<usize>)> {
        let points = &self.task.points;
        let mut folds: Vec<(String, Vec<usize>)> = vec![];
        for (i, point) in points.iter().enumerate() {
            match folds.iter_mut().find(|(name, _)| *name == point.group) {
                Some((_, members)) => members.push(i),
                None => folds.push((point.group.clone(), vec![i])),
            }
        }
        // Runs do not stand for what collectives tell, nor the reverse: kinds that are mixed are cut across.
        let kind = |point: &Point| std::mem::discriminant(&point.what);
        if folds.len() > 1 && points.iter().all(|point| kind(point) == kind(&points[0])) {
            return folds;
        }
        let count = if points.len() == 1 { 0 } else { points.len().min(FOLDS) };
        let members = |fold| (fold..points.len()).step_by(count).collect();
        (0..count).map(|fold| (format!("{}", fold + 1), members(fold))).collect()
    }

    /// Weights of points: all groups alike, and all points of a group.
    fn weights(&self, points: &[usize]) -> Vec<f64> {
        let group = |i: usize| &self.task.points[i].group;
        let mut sizes: BTreeMap<&String, usize> = BTreeMap::new();
        points.iter().for_each(|&i| *sizes.entry(group(i)).or_default() += 1);
        points.iter().map(|&i| 1.0 / (sizes.len() * sizes[group(i)]) as f64).collect()
    }

    /// The values of some figures that make the mean absolute residual of some points least.
    ///
    /// Iteratively reweighted least squares (Holland and Welsch, 1977): an absolute residual is a squared one over its
    /// own size, taken to be at least a width that shrinks. A step that does not help is halved.
    fn fit(&self, figures: &[usize], points: &[usize], from: &[f64]) -> Result<Vec<f64>, Error> {
        let mut values = from.to_vec();
        if figures.is_empty() || points.is_empty() {
            return Ok(values);
        }
        let weights = self.weights(points);
        let loss = |residuals: &[f64]| {
            residuals.iter().zip(&weights).map(|(r, w)| w * r.abs()).sum::<f64>()
        };
        let mut residuals = self.residuals(&values, points)?;
        let mut width = 0.1;
        while width > 1e-4 {
            let slopes = self.slopes(&values, figures, points)?;
            let pulls: Vec<f64> =
                residuals.iter().zip(&weights).map(|(r, w)| w / r.abs().max(width)).collect();
            let mut step = newton_step(&slopes, &residuals, &pulls);
            // A figure at its bound that would leave it stays there, and the others move without it.
            for _ in figures {
                let mut free = slopes.clone();
                for (j, &f) in figures.iter().enumerate() {
                    let (low, high) = self.bounds[f];
                    if (values[f] >= high && step[j] > 0.0) || (values[f] <= low && step[j] < 0.0) {
                        free[j].fill(0.0);
                    }
                }
                step = newton_step(&free, &residuals, &pulls);
            }
            let mut gain = 0.0;
            for halving in 0..4 {
                let mut next = values.clone();
                for (j, &f) in figures.iter().enumerate() {
                    let (low, high) = self.bounds[f];
                    next[f] = (values[f] + step[j] * 0.5_f64.powi(halving)).clamp(low, high);
                }
                let found = self.residuals(&next, points)?;
                gain = loss(&residuals) - loss(&found);
                if gain > 0.0 {
                    (values, residuals) = (next, found);
                    break;
                }
            }
            if gain < 1e-3 * width {
                width /= 4.0;
            }
        }
        Ok(values)
    }
}

fn percent(share: f64) -> String {
    if share > 1.0 {
        "more than 100 %".to_owned()
    } else {
        format!("{:.0} %", 100.0 * share)
    }
}
