//! What libraries for experts alone were timed at: how fast they send tokens to them, and results back.

use crate::error::{require, Error};
use serde::{Deserialize, Serialize};

/// One library's exchange inside a domain, by the number of its ranks.
///
/// Bytes are those that a rank gets of all ranks, its own among them, as these libraries count them ("algorithm bandwidth" of
/// deepseek-ai/DeepEP, `tests/test_intranode.py`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExchangeRate {
    /// The library: `deepep`, `hybridep`.
    pub kernel: String,
    /// Ranks that exchange, ascending.
    pub ranks: Vec<u32>,
    /// 10^9 bytes a second on the way to the experts, at each.
    pub dispatch_gb_per_s: Vec<f64>,
    /// The same on the way back.
    pub combine_gb_per_s: Vec<f64>,
}

impl ExchangeRate {
    /// Bytes a second there and back among so many ranks: between two that were timed in proportion, beyond them as at the
    /// nearest.
    pub fn among(&self, ranks: u64) -> (f64, f64) {
        let at = |rates: &[f64]| {
            let behind = self.ranks.partition_point(|&timed| u64::from(timed) < ranks);
            let (Some(&next), Some(&rate)) = (self.ranks.get(behind), rates.get(behind)) else {
                return rates.last().copied().unwrap_or(0.0);
            };
            let Some(before) = behind.checked_sub(1) else { return rate };
            let (low, high) = (f64::from(self.ranks[before]), f64::from(next));
            let share = (ranks as f64 - low) / (high - low);
            rates[before] + share * (rate - rates[before])
        };
        (1e9 * at(&self.dispatch_gb_per_s), 1e9 * at(&self.combine_gb_per_s))
    }

    /// Checks lengths and ranges.
    pub(super) fn validate(&self, path: &str) -> Result<(), Error> {
        let rates = [&self.dispatch_gb_per_s, &self.combine_gb_per_s];
        require(
            !self.ranks.is_empty()
                && self.ranks[0] > 1
                && self.ranks.windows(2).all(|w| w[0] < w[1])
                && rates.iter().all(|rates| rates.len() == self.ranks.len()),
            path,
            || "ranks must be ascending from 2, and rates as many".to_owned(),
            "Give both rates for each number of ranks.",
        )?;
        require(
            rates.iter().all(|rates| rates.iter().all(|&rate| rate.is_finite() && rate > 0.0)),
            path,
            || "rates must be positive".to_owned(),
            "Give 10^9 bytes a second.",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_that_were_timed_a_rate_changes_in_proportion() {
        let rate = ExchangeRate {
            kernel: "any".into(),
            ranks: vec![8, 16],
            dispatch_gb_per_s: vec![500.0, 400.0],
            combine_gb_per_s: vec![300.0, 100.0],
        };
        assert_eq!(rate.among(12), (450e9, 200e9));
        assert_eq!((rate.among(4), rate.among(8)), ((500e9, 300e9), (500e9, 300e9)));
        assert_eq!(rate.among(64), (400e9, 100e9));
        assert!(rate.validate("exchange[0]").is_ok());
        assert!(ExchangeRate { ranks: vec![8], ..rate }.validate("exchange[0]").is_err());
    }
}
