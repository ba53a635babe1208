//! Weighted least squares of a few unknowns; a slope is a list of one derivative a point, one slope an unknown.

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
