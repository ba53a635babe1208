//! How many layers each stage can hold under each choice of recompute and offload: memory alone.
//!
//! What a stage holds depends on its kind of chip, its place and its choice, not on the other stages, so it is found
//! once for all compositions of a schedule.

use super::ends::{self, Ends};
use crate::estimate::stage::{Place, Table};
use crate::estimate::Tables;
use crate::plan::{Plan, Recompute};
use crate::spec::problem::{Granularity, Problem};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

/// A choice of recompute and offload for one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Recompute.
    pub recompute: Recompute,
    /// Layers of a chunk whose activations wait in host memory.
    pub offload: u32,
}

/// Nothing is recomputed or waits on the host.
pub const NONE: Choice = Choice { recompute: Recompute::None, offload: 0 };

impl Choice {
    /// Whether both save memory in the same way, by different numbers of layers.
    pub fn same_family(&self, other: &Choice) -> bool {
        std::mem::discriminant(&self.recompute) == std::mem::discriminant(&other.recompute)
            && (self.offload > 0) == (other.offload > 0)
    }

    /// Whether `self` is never slower than `other` on the same layers, given that it stands earlier in the list.
    pub fn leads(&self, other: &Choice) -> bool {
        self.recompute == Recompute::None
            || std::mem::discriminant(&self.recompute) == std::mem::discriminant(&other.recompute)
    }

    /// Layers of a chunk that it names; more than a stage has change nothing.
    pub fn depth(&self) -> u32 {
        match self.recompute {
            Recompute::Block { layers } | Recompute::Uniform { layers } => layers,
            Recompute::Parts(parts) => parts.layers,
            Recompute::None | Recompute::Selective => self.offload,
        }
    }
}

/// The layers that stages of one degrees and schedule can hold.
pub struct Holds<'a> {
    /// The question.
    pub problem: &'a Problem,
    /// Prices of every kind that may be used.
    pub tables: Tables<'a>,
    /// The plan without its stages.
    pub degrees: Plan,
    /// Every choice, each family from its fastest on.
    pub choices: Vec<Choice>,
    /// The rows of chunks that its stages may share, by what the ends of the model take of them.
    pub rows: Vec<Row>,
    /// Where layers differ: every layer as cheap, and as dear, as any.
    extremes: Vec<Option<(Table<'a>, Table<'a>)>>,
}

/// A row of chunks, one of each stage.
pub struct Row {
    /// What the ends of the model take of it.
    pub ends: Ends,
    /// Its places for layers, which the stages share.
    pub layers: u32,
    /// For each place where a stage may start, which distinct start it is: from equal starts the same kinds of layer follow in
    /// every chunk, as far as the last stage.
    pub starts: Vec<usize>,
    /// Remembered answers: at most by the lightest layers, and surely by the heaviest.
    most: Answers,
    sure: Answers,
    ceilings: Answers,
}

/// A stage of a row on a kind of chip, with a choice of the list.
#[derive(Clone, Copy)]
pub struct Asked<'r> {
    /// The row.
    pub row: &'r Row,
    /// Kind of chip.
    pub kind: usize,
    /// Position in the pipeline.
    pub index: usize,
    /// Position in the list of choices.
    pub choice: usize,
    /// Whether the optimizer is on the host.
    pub optimizer_offload: bool,
}

/// Numbers that are found once, by any thread.
struct Answers(OnceLock<Vec<AtomicU32>>);

/// In place of a number that is not yet found.
const OPEN: u32 = u32::MAX;

impl Answers {
    fn new() -> Answers {
        Answers(OnceLock::new())
    }

    /// The number at `slot` of `slots`.
    fn get(&self, slot: usize, slots: usize, find: impl FnOnce() -> u32) -> u32 {
        let all = self.0.get_or_init(|| (0..slots).map(|_| AtomicU32::new(OPEN)).collect());
        match all[slot].load(Ordering::Relaxed) {
            OPEN => {
                let found = find();
                all[slot].store(found, Ordering::Relaxed);
                found
            }
            known => known,
        }
    }
}

impl<'a> Holds<'a> {
    /// For the kinds that `tables` were built for.
    pub fn new(tables: Tables<'a>, degrees: Plan) -> Holds<'a> {
        let problem = tables.problem();
        let kinds = problem.cluster.groups.len();
        let extremes = (0..kinds)
            .map(|kind| {
                let table = tables.get(kind)?;
                (!table.uniform()).then(|| (table.lightest(), table.heaviest()))
            })
            .collect();
        let kind_of = (0..kinds).find_map(|kind| Some(tables.get(kind)?.kind_of()));
        let of = |ends: Ends| Row {
            ends,
            layers: ends.row(problem.model.layers, degrees.vpp),
            starts: starts(kind_of.unwrap_or_default(), (degrees.vpp as usize, ends.lead as usize)),
            most: Answers::new(),
            sure: Answers::new(),
            ceilings: Answers::new(),
        };
        let rows: Vec<Row> =
            ends::all(problem, degrees.pp, (degrees.schedule, degrees.vpp)).map(of).collect();
        let longest = rows.iter().map(|row| row.layers).max().unwrap_or(0);
        let choices = choices(problem, degrees.pp, (longest + 1).saturating_sub(degrees.pp as u32));
        Holds { problem, tables, degrees, choices, rows, extremes }
    }

    /// Layers of a chunk that stage `index` may hold at most: each other stage has as few as it may.
    pub fn all(&self, row: &Row, index: usize) -> u32 {
        let pp = self.degrees.pp;
        row.layers + row.ends.fewest(index, pp) - row.ends.fewest_of_all(pp)
    }

    /// The kind's table with every layer as cheap as the cheapest.
    pub fn lightest(&self, kind: usize) -> &Table<'a> {
        self.extremes[kind].as_ref().map_or_else(|| self.tables.kind(kind), |e| &e.0)
    }

    /// Layers of a chunk that a stage may hold at most, wherever they lie.
    pub fn most(&self, of: Asked<'_>) -> u32 {
        self.answer(&of.row.most, self.lightest(of.kind), of)
    }

    /// Layers of a chunk that a stage holds in any case.
    pub fn sure(&self, of: Asked<'_>) -> u32 {
        match &self.extremes[of.kind] {
            None => self.most(of),
            Some((_, heaviest)) => self.answer(&of.row.sure, heaviest, of),
        }
    }

    /// Layers of a chunk that stage `index` on `kind` holds at most under any choice.
    pub fn ceiling(
        &self,
        row: &Row,
        (kind, index): (usize, usize),
        optimizer_offload: bool,
    ) -> u32 {
        let (slot, slots) = self.slot(kind, index, optimizer_offload);
        row.ceilings.get(slot, slots, || {
            largest(self.all(row, index), |layers| {
                let place = self.alone(row, index, layers, NONE, optimizer_offload);
                self.lightest(kind).could_fit(&place)
            })
        })
    }

    /// A number for each kind, place of the optimizer and stage, and how many there are.
    fn slot(&self, kind: usize, index: usize, optimizer_offload: bool) -> (usize, usize) {
        let pp = self.degrees.pp as usize;
        ((kind * 2 + usize::from(optimizer_offload)) * pp + index, 2 * self.extremes.len() * pp)
    }

    fn answer(&self, answers: &Answers, table: &Table<'a>, of: Asked<'_>) -> u32 {
        let Asked { row, kind, index, choice, optimizer_offload } = of;
        let (slot, slots) = self.slot(kind, index, optimizer_offload);
        let n = self.choices.len();
        answers.get(slot * n + choice, slots * n, || {
            largest(self.all(row, index), |layers| {
                let choice = self.choices[choice];
                table.fits(&self.alone(row, index, layers, choice, optimizer_offload))
            })
        })
    }

    /// Where a stage stands of which only the number of its layers matters.
    pub fn alone(
        &self,
        row: &Row,
        index: usize,
        layers: u32,
        choice: Choice,
        optimizer_offload: bool,
    ) -> Place {
        // Between the first stage and the last no end takes a place.
        let first = match index {
            0 => 0,
            last if last + 1 == self.degrees.pp as usize => row.layers - layers,
            _ => row.ends.lead,
        };
        self.place(row, (index, first), layers, choice, optimizer_offload)
    }

    /// Where a stage stands that begins at place `first` of each chunk.
    pub fn place(
        &self,
        row: &Row,
        (index, first): (usize, u32),
        layers: u32,
        choice: Choice,
        optimizer_offload: bool,
    ) -> Place {
        Place {
            pp: self.degrees.pp,
            vpp: self.degrees.vpp,
            schedule: self.degrees.schedule,
            micro_batches: self.degrees.micro_batches(self.problem),
            index: index as u64,
            row: row.layers,
            lead: row.ends.lead,
            first,
            layers,
            recompute: choice.recompute,
            offload: choice.offload,
            optimizer_offload,
        }
    }
}

/// Numbers the starts in a row of `chunks` behind `lead` places without a layer so that equal numbers see equal layers after them, in
/// every chunk.
fn starts(kind_of: &[u8], (chunks, lead): (usize, usize)) -> Vec<usize> {
    let places: Vec<Option<u8>> =
        std::iter::repeat_n(None, lead).chain(kind_of.iter().copied().map(Some)).collect();
    let row = places.len().div_ceil(chunks);
    // Whether the same layers follow `a` and the later `b` until their chunks end, wherever a stage ends before that.
    let alike = |a: usize, b: usize| {
        places.chunks(row).all(|chunk| match chunk.get(b..) {
            Some(rest) => *rest == chunk[a..a + rest.len()],
            None => true,
        })
    };
    let mut distinct: Vec<usize> = Vec::new();
    (0..row)
        .map(|b| {
            distinct.iter().position(|&a| alike(a, b)).unwrap_or_else(|| {
                distinct.push(b);
                distinct.len() - 1
            })
        })
        .collect()
}

/// Every choice for chunks of at most `most` layers, each family from the fastest on.
///
/// Activations are offloaded only without a pipeline and without recompute, as Megatron-Core allows.
fn choices(problem: &Problem, pp: u64, most: u32) -> Vec<Choice> {
    let options = &problem.options;
    let allowed = |g| options.recompute.is_empty() || options.recompute.contains(&g);
    let plain = |recompute| Choice { recompute, offload: 0 };
    let mut list = Vec::new();
    if allowed(Granularity::None) {
        list.push(plain(Recompute::None));
        if options.activation_offload && pp == 1 {
            let on_host = |offload| Choice { recompute: Recompute::None, offload };
            list.extend((1..=most).map(on_host));
        }
    }
    if allowed(Granularity::Selective) {
        list.push(plain(Recompute::Selective));
    }
    if allowed(Granularity::Block) {
        list.extend((1..=most).map(|layers| plain(Recompute::Block { layers })));
    }
    if allowed(Granularity::Uniform) {
        list.extend((1..=most).map(|layers| plain(Recompute::Uniform { layers })));
    }
    list
}

/// The largest number up to `most` for which `holds`, which must not hold again above where it fails; 0 if none.
pub fn largest(most: u32, holds: impl Fn(u32) -> bool) -> u32 {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if holds(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_alike_when_the_same_layers_follow() {
        // Two dense layers, then experts: from the third layer on every start is the same.
        assert_eq!(starts(&[0, 0, 1, 1, 1], (1, 0)), [0, 1, 2, 2, 2]);
        // Every second layer, in chunks of four: two distinct starts.
        assert_eq!(starts(&[0, 1, 0, 1, 0, 1, 0, 1], (2, 0)), [0, 1, 0, 1]);
        // Equal layers, of which the first chunk lacks one and the last another.
        assert_eq!(starts(&[0; 10], (3, 1)), [0, 1, 1, 1]);
    }

    #[test]
    fn the_largest_is_found_from_both_ends() {
        for limit in 0..=9 {
            assert_eq!(largest(9, |n| n <= limit), limit);
        }
    }
}
