//! Coarse to fine: the least sum over a cost graph whose nodes have too many strategies for tables of all of them.
//!
//! Strategies of a kind are put in groups. A group costs the least of its members, and a pair of groups the least of all
//! pairs of members: the least sum over groups is a lower bound of every plan's (Raphael 2001, "Coarse-to-fine dynamic
//! programming"). Where the best choice of groups is one of single strategies, its cost is the bound and nothing is better.
//! Otherwise the groups on it are split where their members differ in what this choice pays, and the sum is worked out
//! anew. Strategies that are far from any good plan stay together to the end.

use super::cost::{CostGraph, Kind};
use super::eliminate::{Eliminated, Order};
use super::price::Price;
use super::view::View;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Strategies of a node from which on they are put in groups.
const MANY: usize = 256;
/// Rounds of splitting for one sum at most; a few dozen suffice where costs differ.
const ROUNDS: usize = 200;
/// Members of a group that may be part of a good plan which are not told apart further.
const FEW: usize = 4;
/// Pieces into which a larger one is split.
const PIECES: usize = 4;

/// The strategies of each kind of node in groups, which stay split from one sum to the next.
#[derive(Clone, Debug)]
pub struct Groups<'a> {
    graph: &'a CostGraph,
    /// The edges of each node, by place.
    edges: Vec<Vec<usize>>,
    /// The kinds of writer and reader of each matrix.
    ends: Vec<(usize, usize)>,
    /// By kind: the group of each strategy.
    of: Vec<Vec<usize>>,
    /// By kind and group: its strategies, ascending.
    members: Vec<Vec<Vec<usize>>>,
    /// By kind and group: the round of tables after which it was split last.
    since: Vec<Vec<usize>>,
    /// Rounds of tables.
    round: usize,
    /// By matrix.
    pairs: Vec<Pairs>,
}

/// The least cost between members of each two groups.
#[derive(Clone, Debug)]
struct Pairs {
    /// The round in which it was worked out.
    round: usize,
    /// The classes of the matrix that each of the writer's groups has, and each of the reader's.
    rows: Vec<Vec<usize>>,
    columns: Vec<Vec<usize>>,
    /// Row by row.
    cells: Arc<[f64]>,
}

/// A group: its kind and its place there.
type Group = (usize, usize);

/// What tells the members of a group apart.
type Marks = Vec<u8>;

/// What the members of a group cost beyond the least of them, beside chosen groups: by itself, then on each edge.
struct Excess {
    parts: Vec<Vec<u64>>,
    /// The member whose parts add up to the least, and their sum.
    best: usize,
    least: u64,
}

/// Whether a node has too many strategies for tables of all of them.
pub fn has_many(graph: &CostGraph) -> bool {
    graph.kinds.iter().any(|kind| kind.strategies.len() >= MANY)
}

impl<'a> Groups<'a> {
    /// All strategies of a kind together.
    pub fn new(graph: &'a CostGraph) -> Groups<'a> {
        let mut ends = vec![(0, 0); graph.matrices.len()];
        for edge in &graph.edges {
            ends[edge.matrix] = (graph.nodes[edge.from].kind, graph.nodes[edge.to].kind);
        }
        let strategies = graph.kinds.iter().map(|kind| kind.strategies.len());
        Groups {
            graph,
            edges: graph.edges_of(),
            ends,
            of: strategies.clone().map(|count| vec![0; count]).collect(),
            members: strategies.map(|count| vec![(0..count).collect()]).collect(),
            since: vec![vec![0]; graph.kinds.len()],
            round: 0,
            pairs: graph.matrices.iter().map(|_| Pairs::none()).collect(),
        }
    }

    /// The least sum in which `weigh` turns the price of a strategy into one number, and a plan that has it; after too many
    /// rounds a plan near it with the bound so far.
    pub fn least(&mut self, weigh: impl Fn(&Price) -> u64) -> Eliminated {
        let own = self.weighed(weigh);
        let mut round = 0;
        loop {
            round += 1;
            let found = self.eliminated(&own);
            let (choice, splits) = self.members_of(&own, &found.choice);
            if round == ROUNDS || splits.is_empty() || self.sum(&own, &choice) == found.bound {
                return Eliminated { choice, bound: found.bound };
            }
            for ((kind, group), marks) in splits {
                self.split(kind, group, &marks);
            }
        }
    }

    /// The strategies of each node that may be part of a plan whose sum is at most `most`; `None` if too many may be. Nodes
    /// of a kind keep the same.
    pub fn promising(
        &mut self,
        weigh: impl Fn(&Price) -> u64,
        most: u64,
        known: &[&[usize]],
    ) -> Option<Vec<Vec<usize>>> {
        let graph = self.graph;
        let own = self.weighed(weigh);
        loop {
            let mut kept: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); graph.kinds.len()];
            let order = Order::new(self.sizes(), self.scopes());
            let (cells, tables) = self.tables(&own);
            let completions = order.completions(&order.summed(cells, tables), most as f64)?;
            for (node, through) in graph.nodes.iter().zip(&completions.through) {
                let good = (0..through.len()).filter(|&group| through[group] <= most as f64);
                kept[node.kind].extend(good);
            }
            for plan in known {
                let groups =
                    graph.nodes.iter().zip(*plan).map(|(n, &s)| (n.kind, self.of[n.kind][s]));
                groups.for_each(|(kind, group)| _ = kept[kind].insert(group));
            }
            let large: Vec<Group> = kept
                .iter()
                .enumerate()
                .flat_map(|(kind, groups)| groups.iter().map(move |&group| (kind, group)))
                .filter(|&(kind, group)| self.members[kind][group].len() > FEW)
                .collect();
            if large.is_empty() {
                let of = |(kind, groups): (usize, &BTreeSet<usize>)| {
                    let members = groups.iter().flat_map(|&group| &self.members[kind][group]);
                    let mut members: Vec<usize> = members.copied().collect();
                    members.sort_unstable();
                    members
                };
                let kept: Vec<Vec<usize>> = kept.iter().enumerate().map(of).collect();
                let few = kept.iter().all(|kept| kept.len() < MANY);
                return few.then(|| graph.nodes.iter().map(|n| kept[n.kind].clone()).collect());
            }
            for (kind, group) in large {
                // Strategies are listed in order: neighbours in the list are alike.
                let members = self.members[kind][group].len();
                let marks: Vec<Marks> =
                    (0..members).map(|m| vec![(m * PIECES / members) as u8]).collect();
                self.split(kind, group, &marks);
            }
            if self.members.iter().any(|groups| groups.len() >= MANY) {
                return None;
            }
        }
    }

    /// The number of each strategy of each kind.
    fn weighed(&self, weigh: impl Fn(&Price) -> u64) -> Vec<Vec<u64>> {
        let all = |kind: &Kind| kind.prices.iter().map(&weigh).collect();
        self.graph.kinds.iter().map(all).collect()
    }

    /// The best choice of groups.
    fn eliminated(&mut self, own: &[Vec<u64>]) -> Eliminated {
        let order = Order::in_pairs(self.sizes(), self.scopes());
        let (cells, tables) = self.tables(own);
        order.eliminate(cells, tables)
    }

    /// Groups of each node.
    fn sizes(&self) -> Vec<usize> {
        self.graph.nodes.iter().map(|node| self.members[node.kind].len()).collect()
    }

    /// The nodes of each table: those of one node, then those of edges.
    fn scopes(&self) -> Vec<Vec<usize>> {
        let ones = (0..self.graph.nodes.len()).map(|node| vec![node]);
        ones.chain(self.graph.edges.iter().map(|edge| vec![edge.from, edge.to])).collect()
    }

    /// The distinct tables, and which of them each scope has.
    fn tables(&mut self, own: &[Vec<u64>]) -> (Vec<Arc<[f64]>>, Vec<usize>) {
        let graph = self.graph;
        let least = |members: &Vec<usize>, own: &[u64]| -> u64 {
            members.iter().map(|&s| own[s]).min().unwrap_or(u64::MAX)
        };
        let ones = self.members.iter().zip(own);
        let mut cells: Vec<Arc<[f64]>> = ones
            .map(|(groups, own)| groups.iter().map(|m| least(m, own) as f64).collect())
            .collect();
        self.round += 1;
        let mut pairs = std::mem::take(&mut self.pairs);
        pairs.par_iter_mut().enumerate().for_each(|(matrix, pairs)| self.renew(matrix, pairs));
        cells.extend(pairs.iter().map(|pairs| pairs.cells.clone()));
        self.pairs = pairs;
        let kinds = graph.kinds.len();
        let tables = graph.nodes.iter().map(|node| node.kind);
        let tables = tables.chain(graph.edges.iter().map(|edge| kinds + edge.matrix)).collect();
        (cells, tables)
    }

    /// Works out what was split since: rows and columns of other groups stay as they are.
    fn renew(&self, place: usize, pairs: &mut Pairs) {
        let (from, to) = self.ends[place];
        let matrix = &self.graph.matrices[place];
        let split = |kind: usize| -> Vec<bool> {
            self.since[kind].iter().map(|&since| since >= pairs.round).collect()
        };
        let (new_rows, new_columns) = (split(from), split(to));
        if !new_rows.contains(&true) && !new_columns.contains(&true) {
            return;
        }
        let before = pairs.columns.len();
        self.classes(from, &matrix.rows, &new_rows, &mut pairs.rows);
        self.classes(to, &matrix.columns, &new_columns, &mut pairs.columns);
        let width = matrix.columns.count;
        let mut line = vec![u64::MAX; width];
        let mut cells = Vec::with_capacity(pairs.rows.len() * pairs.columns.len());
        for (r, (rows, &new)) in pairs.rows.iter().zip(&new_rows).enumerate() {
            line.fill(u64::MAX);
            let cell = |row: usize, column: usize| matrix.cells[row * width + column];
            if new {
                for row in rows {
                    let row = &matrix.cells[row * width..][..width];
                    line.iter_mut().zip(row).for_each(|(least, &cell)| *least = cell.min(*least));
                }
            }
            for (c, columns) in pairs.columns.iter().enumerate() {
                if !new && !new_columns[c] {
                    cells.push(pairs.cells[r * before + c]);
                    continue;
                }
                let below = |column: usize| match new {
                    true => line[column],
                    false => rows.iter().map(|&row| cell(row, column)).min().unwrap_or(u64::MAX),
                };
                cells.push(columns.iter().map(|&c| below(c)).min().unwrap_or(u64::MAX) as f64);
            }
        }
        (pairs.round, pairs.cells) = (self.round, cells.into());
    }

    /// The classes that the members of split groups are in, each once.
    fn classes(&self, kind: usize, view: &View, split: &[bool], classes: &mut Vec<Vec<usize>>) {
        classes.resize(split.len(), vec![]);
        for ((members, classes), _) in
            self.members[kind].iter().zip(classes).zip(split).filter(|(_, &split)| split)
        {
            *classes = members.iter().map(|&s| view.class[s] as usize).collect();
            classes.sort_unstable();
            classes.dedup();
        }
    }

    /// The best member of each chosen group, and for each group that has several how its members differ: equal ones stay
    /// together. A group is told apart by what its members pay, or if none pays anything, into its best and the others.
    fn members_of(
        &self,
        own: &[Vec<u64>],
        groups: &[usize],
    ) -> (Vec<usize>, BTreeMap<Group, Vec<Marks>>) {
        let graph = self.graph;
        let mut choice = vec![0; groups.len()];
        let mut known: HashMap<(Group, Vec<Group>), usize> = HashMap::new();
        let mut splits: BTreeMap<Group, Vec<Marks>> = BTreeMap::new();
        for (node, &group) in groups.iter().enumerate() {
            let kind = graph.nodes[node].kind;
            let members = &self.members[kind][group];
            if let [only] = members.as_slice() {
                choice[node] = *only;
                continue;
            }
            // Edges of one matrix have their other ends in one kind.
            let beside = self.edges[node].iter().map(|&e| {
                let edge = &graph.edges[e];
                (edge.matrix, groups[if edge.from == node { edge.to } else { edge.from }])
            });
            let key = ((kind, group), beside.collect());
            if let Some(&best) = known.get(&key) {
                choice[node] = best;
                continue;
            }
            let excess = self.excess(own, groups, node);
            choice[node] = members[excess.best];
            known.insert(key, choice[node]);
            let marks = splits.entry((kind, group)).or_insert_with(|| vec![vec![]; members.len()]);
            for (member, marks) in marks.iter_mut().enumerate() {
                excess.mark(member, marks);
            }
        }
        (choice, splits)
    }

    /// What the members of a node's group cost beside the chosen groups of its neighbours.
    fn excess(&self, own: &[Vec<u64>], groups: &[usize], node: usize) -> Excess {
        let graph = self.graph;
        let kind = graph.nodes[node].kind;
        let members = &self.members[kind][groups[node]];
        let mut parts: Vec<Vec<u64>> = vec![members.iter().map(|&s| own[kind][s]).collect()];
        for &e in &self.edges[node] {
            let edge = &graph.edges[e];
            let matrix = &graph.matrices[edge.matrix];
            let other = if edge.from == node { edge.to } else { edge.from };
            let theirs = &self.members[graph.nodes[other].kind][groups[other]];
            let writes = edge.from == node;
            let least = |mine: usize| {
                let cell =
                    |&s: &usize| if writes { matrix.at(mine, s) } else { matrix.at(s, mine) };
                theirs.iter().map(cell).min().unwrap_or(u64::MAX)
            };
            let view = if writes { &matrix.rows } else { &matrix.columns };
            let mut known: HashMap<u32, u64> = HashMap::new();
            let part =
                |&mine: &usize| *known.entry(view.class[mine]).or_insert_with(|| least(mine));
            parts.push(members.iter().map(part).collect());
        }
        for part in &mut parts {
            let least = part.iter().copied().min().unwrap_or(0);
            part.iter_mut().for_each(|cost| *cost -= least);
        }
        let sum =
            |member: usize| parts.iter().map(|part| part[member]).fold(0, u64::saturating_add);
        let best = (0..members.len()).min_by_key(|&member| sum(member)).unwrap_or(0);
        let least = sum(best);
        Excess { parts, best, least }
    }

    /// Divides a group into those whose marks are equal; the first keeps its place.
    fn split(&mut self, kind: usize, group: usize, marks: &[Marks]) {
        let members = std::mem::take(&mut self.members[kind][group]);
        let next = self.members[kind].len();
        let mut places: HashMap<&Marks, usize> = HashMap::new();
        for (strategy, marks) in members.into_iter().zip(marks) {
            let count = places.len();
            let place = if count == 0 { group } else { next + count - 1 };
            let place = *places.entry(marks).or_insert(place);
            if place == self.members[kind].len() {
                self.members[kind].push(vec![]);
            }
            self.members[kind][place].push(strategy);
            self.of[kind][strategy] = place;
        }
        let round = self.round;
        self.since[kind][group] = round;
        self.since[kind].resize(self.members[kind].len(), round);
    }

    /// The sum of a plan.
    fn sum(&self, own: &[Vec<u64>], choice: &[usize]) -> u64 {
        let graph = self.graph;
        let nodes = graph.nodes.iter().zip(choice).map(|(node, &s)| own[node.kind][s]);
        let edges = graph
            .edges
            .iter()
            .map(|edge| graph.matrices[edge.matrix].at(choice[edge.from], choice[edge.to]));
        nodes.chain(edges).fold(0, u64::saturating_add)
    }
}

impl Pairs {
    /// Nothing is known yet.
    fn none() -> Pairs {
        Pairs { round: 0, rows: vec![], columns: vec![], cells: [].into() }
    }
}

impl Excess {
    /// Marks a member by how each of its parts compares with the best member's.
    fn mark(&self, member: usize, marks: &mut Marks) {
        if self.least == 0 {
            marks.push(u8::from(member != self.best));
            return;
        }
        for part in &self.parts {
            let (cost, best) = (part[member], part[self.best]);
            marks.push(u8::from(cost > 0) + u8::from(cost >= best) + u8::from(cost > best));
        }
    }
}
