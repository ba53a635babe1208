//! The parts of the space that are still to be opened, in the order of their bounds, and what was found so far.

use super::best::{Best, Candidate};
use super::compositions::Listed;
use super::counts::Composition;
use super::entries::Entries;
use super::entry::Entry;
use super::report::{Counters, Cut};
use crate::estimate::least::Least;
use crate::plan::Plan;
use crate::spec::problem::Schedule;
use crate::units::Time;
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;

/// What the enumeration found.
pub struct Found {
    /// Best plans.
    pub best: Best,
    /// What happened to every class.
    pub counters: Counters,
    /// Bound of the first entry that was not reached, if the search was stopped.
    pub open: Option<Time>,
}

/// A part of the space with a lower bound for all that is in it.
pub struct Node {
    pub bound: Time,
    /// Order of its making, so that equal bounds are taken in turn.
    pub serial: u64,
    pub entry: usize,
    /// Classes in it; none where its class is already counted as estimated.
    pub classes: u64,
    pub part: Part,
}

/// What a node stands for.
pub enum Part {
    /// All classes of an entry, bounded without a look at memory.
    Entry,
    /// Those with one ZeRO stage, bounded with it, with what any stage costs at least.
    Weighed(u8, Arc<Vec<Option<Least>>>),
    /// All compositions under a sharding and a schedule that are not yet listed, with what any stage costs at least.
    Schedule((u8, u64), (Schedule, u64), Arc<Vec<Option<Least>>>, Listed),
    /// One class.
    Class((u8, u64), (Schedule, u64), Composition),
    /// A class with a plan that may not be its optimum, its time, and how many splits to estimate at most.
    Open(Box<Plan>, Time, u64),
}

/// Guesses without a plan within the limit, one after another, from which on they are made with less care.
const BARREN: u32 = 8;

/// What classes that differ in their sharding alone have in common: their entry, schedule and kinds of chip.
type Kin = (usize, (Schedule, u64), Composition);

impl Node {
    /// What it has in common with classes that differ from it in their sharding alone.
    fn kin(&self) -> Option<Kin> {
        match &self.part {
            Part::Class(_, schedule, runs) => Some((self.entry, *schedule, runs.clone())),
            _ => None,
        }
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Node {}

impl PartialOrd for Node {
    fn partial_cmp(&self, other: &Node) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Node {
    /// The smallest bound is the greatest node: a heap gives it first.
    fn cmp(&self, other: &Node) -> Ordering {
        (other.bound, other.serial).cmp(&(self.bound, self.serial))
    }
}

/// What became of a node.
#[derive(Default)]
pub struct Opened {
    /// Its parts.
    pub parts: Vec<(Time, u64, Part)>,
    /// The time of some plan of its class.
    pub guess: Option<Time>,
    /// A plan of its class.
    pub found: Option<Candidate>,
    /// A better plan of an open class, with the one that it replaces.
    pub better: Option<(Plan, Candidate)>,
    pub counters: Counters,
}

/// Parts of the space in the order of their bounds, and what was found in those that were opened.
pub struct Walk {
    pub best: Best,
    pub counters: Counters,
    pub heap: BinaryHeap<Node>,
    /// Entries that are not yet reached: each with its bound, its place, and its classes.
    entries: BinaryHeap<Reverse<(Time, usize, u64)>>,
    /// Classes wait, with their guesses, until all have been guessed at; some whose guesses are among the best are solved at once.
    pub waiting: Vec<(Node, Option<Time>)>,
    /// Whether a guess at the first of some classes that differ in their sharding alone was within the limit.
    hopeful: FxHashMap<Option<Kin>, bool>,
    /// Guesses since the last that was within the limit.
    barren: u32,
    pub serial: u64,
    pub done: u64,
    /// The least bound of what the watch left.
    pub open: Option<Time>,
}

impl Walk {
    pub fn new(entries: &Entries<'_>, best: Best, counters: Counters) -> Walk {
        let places = entries.list.iter().enumerate();
        let entries: BinaryHeap<_> =
            places.map(|(n, e): (usize, &Entry)| Reverse((e.bound, n, e.classes))).collect();
        Walk {
            best,
            counters,
            heap: BinaryHeap::new(),
            serial: entries.len() as u64,
            entries,
            waiting: Vec::new(),
            hopeful: FxHashMap::default(),
            barren: 0,
            done: 0,
            open: None,
        }
    }

    /// The least bound of what is not opened.
    fn least(&self) -> Option<Time> {
        let entry = self.entries.peek().map(|entry| entry.0 .0);
        self.heap.peek().map(|node| node.bound).into_iter().chain(entry).min()
    }

    /// Whether a part may hold a plan that enters the list.
    pub fn goes_on(&self) -> bool {
        self.least().is_some_and(|bound| bound <= self.best.limit())
    }

    /// Takes the next nodes that may hold a plan which enters the list, at most `most`; of equal bounds entries first.
    pub fn block(&mut self, most: usize) -> Vec<Node> {
        let limit = self.best.limit();
        let mut block = Vec::with_capacity(most);
        while block.len() < most {
            let Some(least) = self.least().filter(|&bound| bound <= limit) else { break };
            match self.entries.peek() {
                Some(&Reverse((bound, entry, classes))) if bound == least => {
                    self.entries.pop();
                    let part = Part::Entry;
                    block.push(Node { bound, serial: entry as u64, entry, classes, part });
                }
                _ => block.extend(self.heap.pop()),
            }
        }
        block
    }

    /// Notes what became of a node; returns its parts.
    pub fn take(&mut self, node: &Node, opened: Opened) -> Vec<Node> {
        self.done += 1;
        self.counters.merge(&opened.counters);
        opened.guess.into_iter().for_each(|time| self.best.guess(time));
        opened.found.into_iter().for_each(|c| self.best.offer(c));
        opened.better.into_iter().for_each(|(old, c)| self.best.replace(&old, c));
        if opened.counters.cut.contains_key(&Cut::Unreached) {
            self.open = Some(self.open.map_or(node.bound, |o| o.min(node.bound)));
        }
        let mut parts = Vec::with_capacity(opened.parts.len());
        for (bound, classes, part) in opened.parts {
            // A part is bounded by what it is a part of.
            let bound = bound.max(node.bound);
            parts.push(Node { bound, serial: self.serial, entry: node.entry, classes, part });
            self.serial += 1;
        }
        parts
    }

    /// Opens nodes side by side; returns their parts.
    pub fn open_all(
        &mut self,
        nodes: Vec<Node>,
        limit: Time,
        open: impl Fn(&Node, Time) -> Opened + Sync,
    ) -> Vec<Node> {
        let results: Vec<Opened> = nodes.par_iter().map(|node| open(node, limit)).collect();
        nodes.iter().zip(results).flat_map(|(node, opened)| self.take(node, opened)).collect()
    }

    /// Guesses at classes, and of those that differ in their sharding alone first at one: where nothing is within the limit, the
    /// others are left alone.
    pub fn guess_all(
        &mut self,
        mut classes: Vec<Node>,
        apart: bool,
        guess: impl Fn(&Node, Time, bool) -> Opened + Sync,
    ) -> Vec<(Node, Option<Time>)> {
        let mut guessed = Vec::with_capacity(classes.len());
        classes.sort_unstable_by(|a, b| b.cmp(a));
        while !classes.is_empty() {
            let limit = self.best.limit();
            let thorough = self.barren < BARREN;
            let (mut now, mut later): (Vec<Node>, Vec<Node>) = (Vec::new(), Vec::new());
            let mut asked = FxHashSet::default();
            for node in classes {
                match (node.kin(), self.hopeful.get(&node.kin())) {
                    (_, Some(false)) if !apart => guessed.push((node, None)),
                    (kin, None) if !apart && !asked.insert(kin.clone()) => later.push(node),
                    _ => now.push(node),
                }
            }
            let results: Vec<Opened> =
                now.par_iter().map(|node| guess(node, limit, thorough)).collect();
            for (node, opened) in now.into_iter().zip(results) {
                let guess = opened.guess;
                let kin = node.kin();
                // What its kin found stands in a class's way: that it is no faster tells nothing of others.
                let asked_before = self.hopeful.contains_key(&kin);
                self.hopeful.entry(kin).or_insert(guess.is_some());
                self.barren = match guess {
                    Some(_) => 0,
                    None => self.barren + u32::from(!asked_before),
                };
                self.take(&node, opened);
                guessed.push((node, guess));
            }
            classes = later;
        }
        guessed
    }

    /// Solves the classes whose guesses are among the best, at most `most` and the best first, and lets the others wait.
    ///
    /// Of classes that differ in their sharding alone one is solved, and the others are guessed at again, `like` its plan. A guess
    /// far beyond all that is not opened yet promises nothing.
    pub fn solve_promising(
        &mut self,
        guessed: Vec<(Node, Option<Time>)>,
        most: usize,
        open: impl Fn(&Node, Time) -> Opened + Sync,
        like: impl Fn(&Node, &Plan, Time) -> Opened + Sync,
    ) {
        let limit = self.best.limit();
        let far = self.least().map_or(Time::MAX, |least| least * 2);
        let mut promising = Vec::new();
        for (node, guess) in guessed {
            match guess.filter(|&time| time <= limit && time <= far) {
                Some(time) => promising.push((node, time)),
                None => self.waiting.push((node, guess)),
            }
        }
        promising.sort_unstable_by_key(|(node, guess)| (*guess, node.serial));
        let (mut chosen, mut asked) = (Vec::new(), FxHashSet::default());
        for (node, guess) in promising {
            if most == usize::MAX || (chosen.len() < most && asked.insert(node.kin())) {
                chosen.push((node, guess));
            } else {
                self.waiting.push((node, Some(guess)));
            }
        }
        // A class's own guess bounds its optimum.
        let results: Vec<Opened> =
            chosen.par_iter().map(|(node, guess)| open(node, limit.min(*guess))).collect();
        let mut found = FxHashMap::default();
        for ((node, guess), opened) in chosen.into_iter().zip(results) {
            let plan = opened.found.as_ref().map(|(time, plan)| {
                self.best.better(guess, *time);
                (*time, plan.clone())
            });
            let parts = self.take(&node, opened);
            self.waiting.extend(parts.into_iter().map(|part| (part, None)));
            found.extend(plan.map(|plan| (node.kin(), plan)));
        }
        self.guess_again(&found, like);
    }

    /// Guesses again at the classes that wait and differ in their sharding alone from some whose plans are known.
    fn guess_again(
        &mut self,
        found: &FxHashMap<Option<Kin>, (Time, Plan)>,
        like: impl Fn(&Node, &Plan, Time) -> Opened + Sync,
    ) {
        if found.is_empty() {
            return;
        }
        let limit = self.best.limit();
        let results: Vec<Option<Opened>> = self
            .waiting
            .par_iter()
            .map(|(node, guess)| {
                let (time, plan) = found.get(&node.kin())?;
                // Next to the plan's own time there is little to gain.
                let far = guess.is_none_or(|guess| guess.beyond(*time) * 8 > *time);
                far.then(|| like(node, plan, limit))
            })
            .collect();
        for (n, opened) in results.into_iter().enumerate() {
            let Some(opened) = opened else { continue };
            self.counters.merge(&opened.counters);
            let Some(time) = opened.guess else { continue };
            let guess = &mut self.waiting[n].1;
            match guess.replace(guess.map_or(time, |known| known.min(time))) {
                Some(known) if known <= time => {}
                Some(known) => self.best.guess_again(known, time),
                None => self.best.guess(time),
            }
        }
    }

    /// Counts what was not opened.
    pub fn finish(mut self) -> Found {
        self.heap.extend(std::mem::take(&mut self.waiting).into_iter().map(|(node, _)| node));
        let limit = self.best.limit();
        let left = self.least().filter(|&bound| bound <= limit);
        // What the watch left is not proved to be slower.
        let [mut slower, mut unreached] = [0u64; 2];
        let nodes = self.heap.iter().map(|node| (node.bound, node.classes));
        let entries = self.entries.iter().map(|&Reverse((bound, _, classes))| (bound, classes));
        for (bound, classes) in nodes.chain(entries) {
            let to = if bound <= limit { &mut unreached } else { &mut slower };
            *to = to.saturating_add(classes);
        }
        self.counters.cut(Cut::Bound, slower);
        self.counters.cut(Cut::Unreached, unreached);
        let complete = left.is_none() && self.open.is_none();
        if !complete && !self.counters.cut.contains_key(&Cut::Unreached) {
            // Only classes with a plan are left; whether it is their best is not proved.
            self.counters.cut.insert(Cut::Unreached, 0);
        }
        let open = left.into_iter().chain(self.open).min();
        Found { best: self.best, counters: self.counters, open }
    }
}
