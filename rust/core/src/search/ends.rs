//! Places that the ends of a model take in an interleaved pipeline.
//!
//! Its stages share a row of equal chunks. Where layers do not fill it, the embedding may stand in the first chunk of all in place
//! of one, and the head in the last in place of several: an embedding is looked up in less time than a layer takes, a head is
//! a product as wide as the vocabulary. Megatron-Core 0.16 splits layers so (`--account-for-embedding-in-pipeline-split`,
//! `--account-for-loss-in-pipeline-split`: a place each; `--pipeline-model-parallel-layout`: any). Rules ([`crate::plan::rules`])
//! leave the embedding more; plans with that are estimated, and not searched.

use crate::spec::problem::{Problem, Schedule};

/// Places that the embedding and the head take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// Of the first chunk of all: the embedding's.
    pub lead: u32,
    /// Of the last: the head's.
    pub lag: u32,
}

impl Ends {
    /// Places of one chunk of all stages together.
    pub fn row(self, layers: u32, vpp: u64) -> u32 {
        (layers + self.lead + self.lag) / vpp as u32
    }

    /// Those that an end takes on stage `index` of `pp`.
    pub fn of_stage(self, index: usize, pp: u64) -> u32 {
        match index as u64 {
            0 => self.lead,
            last if last + 1 == pp => self.lag,
            _ => 0,
        }
    }

    /// Places of one chunk of stage `index` of `pp` at least: no end takes more than its chunk has.
    pub fn fewest(self, index: usize, pp: u64) -> u32 {
        self.of_stage(index, pp).max(1)
    }

    /// The same of all `pp` stages together.
    pub fn fewest_of_all(self, pp: u64) -> u32 {
        self.lead.max(1) + self.lag.max(1) + pp as u32 - 2
    }
}

/// Whether the embedding may take a layer's place.
pub fn leads(problem: &Problem, schedule: Schedule) -> bool {
    schedule == Schedule::Interleaved && problem.options.uneven_layers
}

/// All that the ends may take in pipelines of `pp` stages, so that every chunk has as many places as the other chunks of its stage.
pub fn all(
    problem: &Problem,
    pp: u64,
    (schedule, vpp): (Schedule, u64),
) -> impl Iterator<Item = Ends> {
    let (layers, chunks) = (problem.model.layers, vpp as u32);
    let uneven = leads(problem, schedule);
    (0..=u32::from(uneven)).filter_map(move |lead| {
        let ends = Ends { lead, lag: (layers + lead).next_multiple_of(chunks) - layers - lead };
        let held = ends.row(layers, vpp) >= ends.fewest_of_all(pp);
        (held && (uneven || ends.lag == 0)).then_some(ends)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::model::Model;
    use crate::testing;

    #[test]
    fn the_ends_fill_the_chunks() {
        let of = |layers: u32, uneven: bool, pp: u64, vpp: u64| -> Vec<(u32, u32)> {
            let model = Model { layers, ..testing::gpt(8, 1024) };
            let mut problem =
                testing::problem(model, testing::cluster(testing::a100(), 8), 8, 1024);
            problem.options.uneven_layers = uneven;
            let ends = all(&problem, pp, (Schedule::Interleaved, vpp));
            ends.map(|ends| (ends.lead, ends.lag)).collect()
        };
        // 126 layers on 8 stages: 128 places in 16 chunks of 8, of which the head alone has only one to take.
        assert_eq!(of(126, true, 8, 16), [(1, 1)]);
        assert_eq!(of(126, true, 8, 2), [(0, 0), (1, 1)]);
        // 61 on 8 stages: 64 places in 4 chunks of 16. On 16 stages a chunk has one, and the head would take two or three.
        assert_eq!(of(61, true, 8, 4), [(0, 3), (1, 2)]);
        assert_eq!(of(61, true, 16, 4), []);
        assert_eq!(of(61, false, 8, 4), []);
        assert_eq!(of(64, false, 8, 4), [(0, 0)]);
    }
}
