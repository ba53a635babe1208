//! Neighbouring device counts, which share prices: the slowest of more devices is no faster, so those of the fewest bound all.

use super::throughput::Throughput;
use crate::spec::problem::Problem;
use rayon::prelude::*;

/// Counts within a factor of two.
pub struct Octave {
    /// The question with the fewest of them.
    pub problem: Problem,
    /// The most.
    pub most: u64,
    /// What they pass at most.
    pub throughput: Throughput,
}

/// Ascending octaves.
pub struct Octaves(Vec<Octave>);

impl Octaves {
    /// Of ascending counts; nothing where links depend on the count, as in a torus.
    pub fn new(problem: &Problem, counts: &[u64]) -> Option<Octaves> {
        let mut parts = Vec::new();
        let mut left = counts;
        while let Some(&fewest) = left.first() {
            let (now, rest) = left.split_at(left.partition_point(|&n| n < 2 * fewest));
            parts.push((fewest, now[now.len() - 1]));
            left = rest;
        }
        let octave = |(fewest, most): (u64, u64)| {
            let throughput = Throughput::new(problem, fewest, most)?;
            let mut problem = problem.clone();
            problem.cluster.devices = fewest;
            Some(Octave { problem, most, throughput })
        };
        parts.into_par_iter().map(octave).collect::<Option<Vec<Octave>>>().map(Octaves)
    }

    /// All of them.
    pub fn all(&self) -> &[Octave] {
        &self.0
    }

    /// The place of a count's.
    pub fn place(&self, devices: u64) -> usize {
        self.0.partition_point(|octave| octave.problem.cluster.devices <= devices) - 1
    }

    /// A count's.
    pub fn of(&self, devices: u64) -> &Octave {
        &self.0[self.place(devices)]
    }
}
