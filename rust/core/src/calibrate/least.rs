//! Weighted least squares of a few unknowns; a slope is a list of one derivative a point, one slope an unknown.

use std::collections::BTreeMap;

/// Standard errors of figures, as shares, from the slopes of points that scatter by `noise`: the root of the diagonal of
/// the inverse of the normal matrix. Infinite for what the points do not tell.
pub fn standard_errors(slopes: &[Vec<f64>], noise: f64) -> Vec<f64> {
    let points = slopes.first().map_or(0, Vec::len);
    let normal = normal_matrix(slopes, &vec![1.0; points]);
    (0..slopes.len())
        .map(|i| {
            let mut unit = vec![0.0; slopes.len()];
            unit[i] = 1.0;
            solve(normal.clone(), unit).map_or(f64::INFINITY, |x| noise * x[i].max(0.0).sqrt())
        })
        .collect()
}

/// Standard errors of unknowns where the residuals of a group go together, as those of one source do: the cluster-robust
/// covariance (Liang and Zeger, 1986), with G/(G - 1) for G groups. Zeros for a single group, which says nothing of it.
pub fn grouped_errors(slopes: &[Vec<f64>], residuals: &[f64], groups: &[&String]) -> Vec<f64> {
    let mut pulls: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
    for (i, &group) in groups.iter().enumerate() {
        let pull = pulls.entry(group).or_insert_with(|| vec![0.0; slopes.len()]);
        pull.iter_mut().zip(slopes).for_each(|(p, s)| *p += s[i] * residuals[i]);
    }
    let normal = normal_matrix(slopes, &vec![1.0; residuals.len()]);
    let mut variances = vec![0.0; slopes.len()];
    for pull in pulls.values() {
        match solve(normal.clone(), pull.clone()) {
            Some(shift) => variances.iter_mut().zip(shift).for_each(|(v, s)| *v += s * s),
            None => variances.fill(f64::INFINITY),
        }
    }
    let count = pulls.len() as f64;
    let correction = if count > 1.0 { count / (count - 1.0) } else { 0.0 };
    variances.iter().map(|v| (v * correction).sqrt()).collect()
}

/// The change of the figures that makes the pulled sum of squared residuals least, in linear approximation; 0 for a
/// figure without slope.
pub fn newton_step(slopes: &[Vec<f64>], residuals: &[f64], pulls: &[f64]) -> Vec<f64> {
    let mut normal = normal_matrix(slopes, pulls);
    let size: f64 = (0..slopes.len()).map(|i| normal[i][i]).sum();
    (0..slopes.len()).for_each(|i| normal[i][i] += 1e-9 * size + f64::MIN_POSITIVE);
    let downhill = slopes
        .iter()
        .map(|s| -s.iter().zip(residuals).zip(pulls).map(|((s, r), p)| s * r * p).sum::<f64>())
        .collect();
    solve(normal, downhill).unwrap_or_else(|| vec![0.0; slopes.len()])
}

fn normal_matrix(slopes: &[Vec<f64>], pulls: &[f64]) -> Vec<Vec<f64>> {
    let product =
        |a: &[f64], b: &[f64]| a.iter().zip(b).zip(pulls).map(|((a, b), p)| a * b * p).sum();
    slopes.iter().map(|a| slopes.iter().map(|b| product(a, b)).collect()).collect()
}

/// Solves a small symmetric positive system by elimination; nothing where it is singular.
fn solve(mut a: Vec<Vec<f64>>, mut b: Vec<f64>) -> Option<Vec<f64>> {
    let n = b.len();
    let largest = (0..n).map(|i| a[i][i]).fold(0.0, f64::max);
    for i in 0..n {
        if a[i][i] <= 1e-12 * largest {
            return None;
        }
        let pivot = a[i].clone();
        for j in i + 1..n {
            let factor = a[j][i] / pivot[i];
            a[j].iter_mut().zip(&pivot).for_each(|(x, p)| *x -= factor * p);
            b[j] -= factor * b[i];
        }
    }
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|k| a[i][k] * b[k]).sum();
        b[i] = (b[i] - known) / a[i][i];
    }
    Some(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_one_unknown_is_the_noise_over_the_root_of_the_squared_slopes() {
        // 0.6^2 + 0.8^2 = 1.
        assert_eq!(standard_errors(&[vec![0.6, 0.8]], 0.05), [0.05]);
    }

    #[test]
    fn unknowns_that_move_together_are_not_told_apart() {
        assert!(standard_errors(&[vec![1.0, 2.0], vec![2.0, 4.0]], 0.05)[1].is_infinite());
    }

    #[test]
    fn groups_that_disagree_leave_an_unknown_open() {
        // The groups pull by +0.2 and -0.2: (0.2^2 + 0.2^2) / 2^2 * 2 / (2 - 1) = 0.04.
        let (one, two) = ("a".to_owned(), "b".to_owned());
        let errors = grouped_errors(&[vec![1.0, 1.0]], &[0.2, -0.2], &[&one, &two]);
        assert!((errors[0] - 0.2).abs() < 1e-12);
    }

    #[test]
    fn a_step_solves_the_linear_problem() {
        // Residuals -x - 2y = -5 and -3x - 4y = -11 vanish at x = 1, y = 2.
        let step = newton_step(&[vec![-1.0, -3.0], vec![-2.0, -4.0]], &[5.0, 11.0], &[1.0, 1.0]);
        assert!((step[0] - 1.0).abs() < 1e-4 && (step[1] - 2.0).abs() < 1e-4, "{step:?}");
    }
}
