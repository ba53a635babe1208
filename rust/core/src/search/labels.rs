//! The labels of a class: lower bounds on the clock of the stages from one to the last, the exact dynamic programme.

use super::bound::Tail;
use super::pace::{before, Ahead};
use super::report::Counters;
use super::stages::Solver;
use crate::spec::problem::Schedule;

/// Labels by stage, then by the layers before it.
pub type Labels = Vec<Vec<Vec<Label>>>;

/// A lower bound on the stages from one to the last.
#[derive(Clone, Copy, Debug)]
pub struct Label {
    /// Paths through the stages from this one on.
    pub tail: Tail,
    /// Layers of a chunk.
    pub layers: u32,
    /// Index of its choice.
    pub choice: usize,
    /// Index of the label of the next stage.
    pub next: usize,
}

/// The labels of the stage behind.
#[derive(Clone, Copy)]
struct Next<'l> {
    rows: &'l [Vec<Label>],
    /// The least and most layers before it for which it has any.
    reached: (u32, u32),
    /// Whether it has any of each choice, where the two recompute alike.
    chosen: &'l [bool],
}

impl Solver<'_, '_, '_> {
    /// Labels by stage and by the layers before it, for `choices` and `caps`.
    pub fn labels(&mut self, counters: &mut Counters) -> Labels {
        let pp = self.class.kinds.len();
        counters.bounds += 1;
        let most: Vec<u32> =
            self.caps.iter().map(|caps| caps.iter().copied().max().unwrap_or(0)).collect();
        let ahead = before(&self.paces);
        let mut labels: Labels = vec![Vec::new(); pp];
        let (mut behind, mut room) = (0u32, most.iter().sum::<u32>());
        // Layers before the stage behind with which it has labels, and choices of which it has some.
        let (mut reached, mut chosen) = (None, Vec::new());
        for i in (0..pp).rev() {
            if self.class.watch.stopped() {
                labels[..=i].fill(vec![Vec::new(); self.layers as usize + 1]);
                break;
            }
            behind += most[i];
            room -= most[i];
            let after = (pp - 1 - i) as u32;
            let lowest = (i as u32).max(self.layers.saturating_sub(behind));
            let highest = (self.layers - after - 1).min(room);
            let mut row = vec![Vec::new(); self.layers as usize + 1];
            let mut found: Option<(u32, u32)> = None;
            for first in lowest..=highest {
                let rows = labels.get(i + 1).map_or(&[][..], |rows| rows);
                let next = reached.map(|reached| Next { rows, reached, chosen: &chosen });
                let list = self.labels_at(i, first, next, &ahead[i]);
                if !list.is_empty() {
                    found = Some((found.map_or(first, |f| f.0), first));
                }
                row[first as usize] = list;
            }
            labels[i] = row;
            if found.is_none() {
                // No split meets the limit: the stages before have none either.
                labels[..i].fill(vec![Vec::new(); self.layers as usize + 1]);
                break;
            }
            reached = found;
            chosen = vec![false; self.choices[i].len()];
            labels[i].iter().flatten().for_each(|label| chosen[label.choice] = true);
        }
        labels
    }

    /// Labels of the stages from `i` on when `first` layers lie before them; `next` are those of the stage behind.
    fn labels_at(
        &mut self,
        i: usize,
        first: u32,
        next: Option<Next<'_>>,
        ahead: &Ahead,
    ) -> Vec<Label> {
        let left = self.layers - first;
        let mut labels: Vec<Label> = Vec::new();
        let same_kind =
            i + 1 < self.class.kinds.len() && self.class.kinds[i + 1] == self.class.kinds[i];
        let tied = self.tied(i);
        // Only the first stage that recomputes alike may forget its choice.
        let previous_same = i > 0 && self.class.kinds[i - 1] == self.class.kinds[i];
        let previous_tied = i > 0 && self.tied(i - 1);
        for choice in 0..self.choices[i].len() {
            if tied && next.is_some_and(|next| !next.chosen[choice]) {
                continue;
            }
            let mut before = None;
            // Labels stand in the order of their choices.
            let begin = if previous_tied { labels.len() } else { 0 };
            let cap = self.caps[i][choice].min(left);
            let range = match next {
                None => left..=cap,
                Some(Next { reached: (least, most), .. }) => {
                    least.saturating_sub(first).max(1)..=cap.min(most.saturating_sub(first))
                }
            };
            for layers in range {
                let nothing = [Label { tail: Tail::default(), layers: 0, choice, next: 0 }];
                let (after, skipped): (&[Label], usize) = match next {
                    None => (&nothing, 0),
                    Some(next) if tied => {
                        let row = &next.rows[(first + layers) as usize];
                        let from = row.partition_point(|l| l.choice < choice);
                        let until = from + row[from..].partition_point(|l| l.choice == choice);
                        (&row[from..until], from)
                    }
                    Some(next) => (&next.rows[(first + layers) as usize], 0),
                };
                if after.is_empty() {
                    continue;
                }
                let Some(work) = self.work(i, first, layers, choice) else { continue };
                let (through, rounds) = *before
                    .get_or_insert_with(|| self.ahead(ahead, i, first, self.choices[i][choice]));
                for (n, label) in after.iter().enumerate() {
                    if same_kind && !self.alike((label.layers, label.choice), (layers, choice)) {
                        continue;
                    }
                    let tail = label.tail.after(self.shape, i as u64, &work);
                    // What the stages before add to each path.
                    let longest =
                        (tail.passes + through).max(tail.through + through + rounds).max(tail.end);
                    if longest > self.limit {
                        continue;
                    }
                    let new = Label { tail, layers, choice, next: skipped + n };
                    let rival = |l: &Label| {
                        !previous_same || self.alike((l.layers, l.choice), (layers, choice))
                    };
                    if labels[begin..].iter().any(|l| rival(l) && l.tail.dominates(&tail)) {
                        continue;
                    }
                    let mut kept = begin;
                    for at in begin..labels.len() {
                        let l = labels[at];
                        if !(rival(&l) && tail.dominates(&l.tail)) {
                            labels[kept] = l;
                            kept += 1;
                        }
                    }
                    labels.truncate(kept);
                    labels.push(new);
                }
            }
        }
        labels
    }

    /// Whether two stages of one kind may stand side by side, by their layers and choice.
    pub fn alike(&self, a: (u32, usize), b: (u32, usize)) -> bool {
        let o = &self.class.holds.problem.options;
        let zero_bubble =
            matches!(self.shape.schedule, Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleV);
        (o.recompute_per_stage || a.1 == b.1) && (a.0 == b.0 || (o.uneven_layers && !zero_bubble))
    }
}
