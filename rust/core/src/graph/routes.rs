//! How long tensors of one shape take from each layout to each other: every pair that is asked for, walked once.
//!
//! A walk that comes upon a layout from which another one went to the same goal goes on as that one did. Goals are
//! independent of each other, so processors share them.

use super::ir::Tensor;
use super::layout::Layout;
use super::packed::Packed;
use super::price::Reading;
use super::reshard::Walker;
use crate::units::{Bytes, Time};
use rayon::prelude::*;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Times of the reshards of tensors of one shape and format.
#[derive(Clone, Debug)]
pub struct Routes {
    /// Bytes of a whole tensor.
    whole: Bytes,
    /// Places of the layouts that were seen.
    places: HashMap<Layout, usize>,
    /// By place of the layout to be reached, whether the walk from each other is asked for.
    asked: Vec<Vec<bool>>,
    /// The same, picoseconds of those that are.
    times: Vec<Vec<u64>>,
}

/// A tensor from each of a writer's layouts to each of the ways in which it is read.
#[derive(Clone, Debug)]
pub struct Passage {
    rows: Vec<usize>,
    columns: Vec<Column>,
}

/// A way to read a tensor, by places of layouts.
#[derive(Clone, Copy, Debug)]
struct Column {
    read: usize,
    again: bool,
    gradient: Option<usize>,
}

/// Goals for which a processor looks up what it has learned for others.
const GOALS: usize = 128;

impl Routes {
    /// Nothing is asked for yet.
    pub fn new(tensor: &Tensor) -> Routes {
        Routes { whole: tensor.bytes(), places: HashMap::new(), asked: vec![], times: vec![] }
    }

    /// Asks for the walks from each written layout to each reading of a tensor, forward and backward.
    pub fn ask(&mut self, written: &[Layout], readings: &[Reading]) -> Passage {
        let rows: Vec<usize> = written.iter().map(|layout| self.place(layout)).collect();
        let column = |reading: &Reading| Column {
            read: self.place(&reading.layout),
            again: reading.again,
            gradient: reading.gradient.as_ref().map(|gradient| self.place(gradient)),
        };
        let columns: Vec<Column> = readings.iter().map(column).collect();
        let mut goals: Vec<usize> = columns.iter().map(|column| column.read).collect();
        self.ask_all(&rows, &mut goals);
        let gradients: Vec<usize> = columns.iter().filter_map(|column| column.gradient).collect();
        self.ask_all(&gradients, &mut rows.clone());
        Passage { rows, columns }
    }

    fn ask_all(&mut self, from: &[usize], goals: &mut Vec<usize>) {
        goals.sort_unstable();
        goals.dedup();
        for &mut goal in goals {
            let asked = &mut self.asked[goal];
            asked.resize(self.places.len(), false);
            from.iter().for_each(|&from| asked[from] = true);
        }
    }

    fn place(&mut self, layout: &Layout) -> usize {
        if let Some(&place) = self.places.get(layout) {
            return place;
        }
        self.places.insert(layout.clone(), self.asked.len());
        self.asked.push(vec![]);
        self.asked.len() - 1
    }

    /// Walks wherever that was asked for; `walker` makes one that has not gone anywhere.
    pub fn walk<'a>(&mut self, walker: impl Fn() -> Walker<'a> + Sync) {
        let mut layouts: Vec<(&Layout, usize)> = self.places.iter().map(|(l, &p)| (l, p)).collect();
        layouts.sort_unstable_by_key(|&(_, place)| place);
        let whole = self.whole;
        let walked = self.asked.par_chunks(GOALS).enumerate().map(|(chunk, asked)| {
            let mut walks = Walks::new(walker(), whole, layouts.iter().map(|&(layout, _)| layout));
            let first = chunk * GOALS;
            let goals = asked.iter().zip(first..);
            goals.map(|(asked, goal)| walks.to(goal, asked)).collect::<Vec<Vec<u64>>>()
        });
        self.times = walked.flatten_iter().collect();
    }

    /// Picoseconds for each writer's layout (by row) and each reading, forward and backward, once they were walked.
    pub fn cells(&self, passage: &Passage) -> Vec<u64> {
        let mut cells = Vec::with_capacity(passage.rows.len() * passage.columns.len());
        for &row in &passage.rows {
            cells.extend(passage.columns.iter().map(|&Column { read, again, gradient }| {
                let backward = gradient.map_or(0, |gradient| self.times[row][gradient]);
                self.times[read][row] * (1 + u64::from(again)) + backward
            }));
        }
        cells
    }
}

/// Walks of a tensor of so many bytes from layout to layout.
struct Walks<'a> {
    walker: Walker<'a>,
    whole: Bytes,
    /// The layouts that were asked about, by place.
    layouts: Vec<Packed>,
    /// Places of these and of those on the way between them.
    places: HashMap<Packed, usize, BuildHasherDefault<Mixer>>,
    /// By place the last goal that was reached from there, and how long that took.
    left: Vec<(usize, Time)>,
    /// Of a walk each layout that it leaves, and how long the step from there takes.
    steps: Vec<(usize, Time)>,
}

impl<'a> Walks<'a> {
    fn new<'b>(
        mut walker: Walker<'a>,
        whole: Bytes,
        layouts: impl Iterator<Item = &'b Layout>,
    ) -> Walks<'a> {
        let layouts: Vec<Packed> = layouts.map(|layout| walker.packed(layout)).collect();
        let places = layouts.iter().cloned().zip(0..).collect();
        let left = vec![(usize::MAX, Time::ZERO); layouts.len()];
        Walks { walker, whole, layouts, places, left, steps: vec![] }
    }

    /// Picoseconds to a goal from each layout from which that is asked; from others none.
    fn to(&mut self, goal: usize, asked: &[bool]) -> Vec<u64> {
        let to = self.layouts[goal].clone();
        let mut now = to.clone();
        self.left[goal] = (goal, Time::ZERO);
        let mut time = |from| self.between(from, (goal, &to), &mut now).0;
        asked.iter().enumerate().map(|(from, &asked)| if asked { time(from) } else { 0 }).collect()
    }

    /// The time from one layout to another; `now` is room for those between them.
    fn between(&mut self, from: usize, (goal, to): (usize, &Packed), now: &mut Packed) -> Time {
        if self.left[from].0 == goal {
            return self.left[from].1;
        }
        now.clone_from(&self.layouts[from]);
        self.walker.begin(now, to);
        self.steps.clear();
        let mut place = from;
        while self.left[place].0 != goal {
            let Some(time) = self.walker.time(now, to, self.whole) else {
                debug_assert!(false, "a walk ends at its goal");
                break;
            };
            self.steps.push((place, time));
            place = self.place(now);
        }
        let (_, mut total) = self.left[place];
        for &(place, time) in self.steps.iter().rev() {
            total += time;
            self.left[place] = (goal, total);
        }
        total
    }

    fn place(&mut self, layout: &Packed) -> usize {
        if let Some(&place) = self.places.get(layout) {
            return place;
        }
        self.places.insert(layout.clone(), self.left.len());
        self.left.push((usize::MAX, Time::ZERO));
        self.left.len() - 1
    }
}

/// Mixes a few words: layouts on the way are looked up at each step, and come from nobody who wants them to collide.
#[derive(Clone, Copy, Debug, Default)]
struct Mixer(u64);

/// Odd, with ones and zeros in no order: 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(byte.into()));
    }

    fn write_u32(&mut self, word: u32) {
        self.0 = (self.0.rotate_left(5) ^ u64::from(word)).wrapping_mul(GOLDEN);
    }
}
