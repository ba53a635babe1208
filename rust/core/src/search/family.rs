//! Classes that differ in their shard group alone, bounded together.
//!
//! Where shards travel once a step, the passes of a stage take as long whatever the group: only its memory and the end of its step
//! differ. Stages with the memory that the largest group leaves and the shortest of all ends are a class of their own, and no split
//! of any of the others ends before its best: where it has none within a time, none of them has.

use super::entry::Entry;
use super::report::Cut;
use super::space;
use crate::estimate::layer::priced_as;
use crate::estimate::Tables;
use crate::spec::problem::Problem;
use crate::units::Time;
use rustc_hash::FxHashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The shard groups of a pipeline's entry under a ZeRO stage, largest first, if there are several and all are priced alike.
pub fn shard_groups(problem: &Problem, entry: &Entry, zero: u8) -> Option<Vec<u64>> {
    if zero == 0 || entry.cell.pp == 1 {
        return None;
    }
    let of_stage =
        |s: &(u8, u64)| s.0 == zero && space::cut_sharding(problem, entry.cell, *s).is_none();
    let shardings = space::shardings(entry.cell);
    let groups: Vec<u64> = shardings.into_iter().filter(of_stage).map(|s| s.1).rev().collect();
    let kind = (0..problem.cluster.groups.len())
        .find(|&kind| space::places(problem, entry.cell, kind, false))?;
    let largest = entry.shard(problem, kind, (zero, *groups.first()?));
    let alike = priced_as(largest, &problem.framework).zero == 0;
    (alike && groups.len() > 1).then_some(groups)
}

/// Prices of a family's stages, with the memory that the largest of some groups leaves and the shortest end of any.
pub fn tables<'a>(problem: &'a Problem, entry: &Entry, zero: u8, groups: &[u64]) -> Tables<'a> {
    let shard = |kind, group| entry.shard(problem, kind, (zero, group));
    let largest = Tables::new(problem, |kind| {
        space::places(problem, entry.cell, kind, false).then(|| shard(kind, groups[0]))
    });
    largest.or_ending_as(|kind| groups[1..].iter().map(|&group| shard(kind, group)).collect())
}

/// A time before which no plan of a family ends, or why none is within the limit that was known then; found once.
type Known = Arc<OnceLock<Result<Time, Cut>>>;

/// What is known of families.
pub struct Families<K>(Mutex<FxHashMap<K, Known>>);

impl<K: Hash + Eq> Families<K> {
    /// Nothing is known.
    pub fn new() -> Families<K> {
        Families(Mutex::default())
    }

    /// What is known of a family, found out by the first that asks. As limits only fall, it stays true.
    pub fn bound(&self, of: K, find: impl FnOnce() -> Result<Time, Cut>) -> Result<Time, Cut> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let family = known.entry(of).or_default().clone();
        drop(known);
        *family.get_or_init(find)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::stage::{Place, StageCost};
    use crate::plan::Recompute;
    use crate::search::entries::Entries;
    use crate::search::report::Counters;
    use crate::spec::problem::Schedule;
    use crate::testing;

    #[test]
    fn a_familys_stage_holds_what_any_of_its_classes_does_and_ends_when_the_first_of_them_does() {
        let cluster = testing::cluster(testing::a100(), 64);
        let problem = testing::problem(testing::gpt(8, 2048), cluster, 64, 1024);
        let entries = Entries::new(&problem, &mut Counters::default());
        let mut later = 0;
        for entry in entries.list.iter().filter(|entry| entry.cell.pp == 2) {
            let Some(groups) = shard_groups(&problem, entry, 1) else { continue };
            let place = |layers| Place {
                pp: 2,
                vpp: 1,
                schedule: Schedule::OneFOneB,
                micro_batches: 64 / (entry.cell.dp * entry.mbs),
                index: 0,
                row: 8,
                lead: 0,
                first: 0,
                layers,
                recompute: Recompute::Selective,
                offload: 0,
                optimizer_offload: false,
            };
            let family = tables(&problem, entry, 1, &groups);
            let reversed: Vec<u64> = groups.iter().rev().copied().collect();
            let reversed = tables(&problem, entry, 1, &reversed);
            let of_group = |&group: &u64| {
                Tables::new(&problem, |kind| Some(entry.shard(&problem, kind, (1, group))))
            };
            let classes: Vec<Tables<'_>> = groups.iter().map(of_group).collect();
            for layers in [1, 7] {
                let of = |tables: &Tables<'_>| tables.kind(0).stage(&place(layers));
                let each: Vec<StageCost> = classes.iter().map(of).collect();
                let all = of(&family);
                let least = |what: fn(&StageCost) -> u64| each.iter().map(what).min();
                assert_eq!(Some(all.tail().0), least(|cost| cost.tail().0));
                assert_eq!(Some(all.busy().0), least(|cost| cost.busy().0));
                let memory = |cost: &StageCost| cost.memory.allocated().0;
                assert_eq!(Some(memory(&all)), least(memory));
                // Whichever comes first.
                assert_eq!(of(&reversed).tail(), all.tail());
                later += u64::from(each[groups.len() - 1].tail() > all.tail());
            }
        }
        assert!(later > 0, "ends differ");
    }
}
