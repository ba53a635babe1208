//! One step of a plan as two streams: what of the exchange of parameters and gradients runs beside computation.
//!
//! The links are those of the plan's other communication too, which is charged in full: a gather ahead and a collective
//! inside an operator are not charged for sharing them.

use super::cost::{CostGraph, Subject};
use super::layout::AxisIndex;
use super::overlap::{ahead, behind, filled, Bucket, Turn};
use super::price::{steps_time, Exchange, Pricer};
use super::problem::{Collective, Fusion, Grouping, GroupingMode, Overlap, SharedExchange};
use crate::units::{Bytes, Time};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a megabyte.
const MB: u64 = 1_000_000;
/// Megabytes that close a group by default, as MindSpore's `auto`.
const AUTO_MB: u64 = 64;
/// The largest group tried for the best is of two to this many megabytes.
const LARGEST_POWER: u32 = 11;

/// What runs beside computation, as the options ask; nothing if they do not. `room` is the memory that the plan leaves for
/// a buffer.
pub fn overlap(
    pricer: &Pricer<'_>,
    graph: &CostGraph,
    choice: &[usize],
    room: Bytes,
) -> Option<Overlap> {
    let options = pricer.options;
    let buffer = options.prefetch_mb.filter(|_| options.zero >= 3);
    if options.fusion.is_none() && buffer.is_none() {
        return None;
    }
    let step = Step::new(pricer, graph, choice);
    if step.weights.is_empty() {
        return None;
    }
    let mut all = Overlap {
        buckets: vec![],
        bucket_mb: None,
        gradients_exposed_ps: Time::ZERO,
        gathers_exposed_ps: Time::ZERO,
        buffer_bytes: Bytes::ZERO,
    };
    step.gradients(options.fusion.as_ref(), &mut all);
    if options.zero >= 3 {
        step.gathers_of_each_pass(buffer, room, &mut all);
    } else if options.zero > 0 {
        step.gathers_after_update(options.fusion.as_ref(), &mut all);
    }
    Some(all)
}

/// Every exchange of parameters and gradients on its own.
pub fn each_exchange(
    pricer: &Pricer<'_>,
    graph: &CostGraph,
    choice: &[usize],
) -> Vec<SharedExchange> {
    let step = Step::new(pricer, graph, choice);
    let zero = pricer.options.zero;
    let mut all = Vec::new();
    for (w, weight) in step.weights.iter().enumerate() {
        let Exchange { bytes, gradient, summed, copies } = &weight.exchange;
        if !summed.is_empty() {
            let operation =
                if zero > 0 { Collective::ReduceScatter } else { Collective::AllReduce };
            let seconds = pricer.reduction(summed, *gradient);
            all.push(step.shared(operation, summed, &[w], *gradient, seconds));
        }
        let gathers = match zero {
            0 => 0,
            1 | 2 => 1,
            _ => 2,
        };
        for _ in (0..gathers).filter(|_| !copies.is_empty()) {
            let seconds = pricer.gathering(copies, *bytes);
            all.push(step.shared(Collective::AllGather, copies, &[w], *bytes, seconds));
        }
    }
    all
}

/// A trained parameter with its place in the step.
struct Weight {
    tensor: usize,
    exchange: Exchange,
    /// The first operator that reads it, by its place in the running order.
    first: usize,
}

struct Step<'a, 'b> {
    pricer: &'b Pricer<'a>,
    /// Time of each operator's forward and backward pass, in running order, with the reshards of what it reads.
    passes: Vec<(Time, Time)>,
    /// In the order of the graph.
    weights: Vec<Weight>,
}

/// A way to group: the groups as lists of weights.
type Groups = Vec<Vec<usize>>;

impl<'a, 'b> Step<'a, 'b> {
    fn new(pricer: &'b Pricer<'a>, graph: &CostGraph, choice: &[usize]) -> Step<'a, 'b> {
        let network = pricer.network;
        let mut place = vec![0; network.graph.operators.len()];
        for (i, &o) in network.order.iter().enumerate() {
            place[o] = i;
        }
        let mut passes = vec![(Time::ZERO, Time::ZERO); place.len()];
        let mut weights: BTreeMap<usize, Weight> = BTreeMap::new();
        for (n, node) in graph.nodes.iter().enumerate() {
            let kind = &graph.kinds[node.kind];
            let strategy = &kind.strategies[choice[n]];
            match node.subject {
                Subject::Operator(o) => {
                    passes[place[o]] = pricer.passes(o, strategy);
                    for (input, &t) in network.inputs[o].iter().enumerate() {
                        if pricer.is_own(t) {
                            let layout = strategy.input_gradient(&kind.loops, input);
                            let exchange = pricer.exchange(t, &layout);
                            let weight = exchange.map(|exchange| Weight {
                                tensor: t,
                                exchange,
                                first: place[o],
                            });
                            weights.extend(weight.map(|weight| (t, weight)));
                        }
                    }
                }
                Subject::Tensor(t) => {
                    let layout = strategy.output(&kind.loops, 0);
                    let readers = network.readers[t].iter().map(|&(o, _)| place[o]);
                    if let (Some(exchange), Some(first)) =
                        (pricer.exchange(t, &layout), readers.min())
                    {
                        weights.insert(t, Weight { tensor: t, exchange, first });
                    }
                }
            }
        }
        for edge in &graph.edges {
            let Subject::Operator(reader) = graph.nodes[edge.to].subject else { continue };
            let strategy = &graph.kinds[graph.nodes[edge.to].kind].strategies[choice[edge.to]];
            for &(tensor, output, input) in &edge.tensors {
                let written = graph.written(edge.from, choice[edge.from], output);
                let (forward, backward) =
                    pricer.transfer(tensor, &written, (reader, strategy), input);
                let pass = &mut passes[place[reader]];
                pass.0 += steps_time(&forward);
                pass.1 += steps_time(&backward);
            }
        }
        Step { pricer, passes, weights: weights.into_values().collect() }
    }

    /// When the backward pass has left each operator, in running order, and when it is over.
    fn left(&self) -> (Vec<Time>, Time) {
        let mut clock = Time::ZERO;
        let mut left = vec![Time::ZERO; self.passes.len()];
        for (place, (_, backward)) in self.passes.iter().enumerate().rev() {
            clock += *backward;
            left[place] = clock;
        }
        (left, clock)
    }

    /// Groups gradients and lets them be exchanged behind the backward pass, or charges each in full.
    fn gradients(&self, fusion: Option<&Fusion>, all: &mut Overlap) {
        let zero = self.pricer.options.zero > 0;
        let summed = |w: &Weight| !w.exchange.summed.is_empty();
        let reduce = |axes: &[AxisIndex], bytes: f64| self.pricer.reduction(axes, bytes);
        let Some(fusion) = fusion else {
            let each = self.weights.iter().filter(|w| summed(w));
            all.gradients_exposed_ps = each
                .map(|w| Time::from_seconds(reduce(&w.exchange.summed, w.exchange.gradient)))
                .sum();
            return;
        };
        let grouping = if zero { &fusion.reduce_scatter } else { &fusion.all_reduce };
        let (left, end) = self.left();
        // The gradient of what is read first comes last.
        let mut order: Vec<usize> =
            (0..self.weights.len()).filter(|&w| summed(&self.weights[w])).collect();
        order.sort_by_key(|&w| std::cmp::Reverse(self.weights[w].first));
        let axes = |w: usize| &self.weights[w].exchange.summed;
        let bytes = |w: usize| self.weights[w].exchange.gradient;
        let exposed = |groups: &Groups| {
            let bucket = |group: &Vec<usize>| Bucket {
                ready: group.iter().map(|&w| left[self.weights[w].first]).max().unwrap_or_default(),
                time: Time::from_seconds(reduce(
                    axes(group[0]),
                    group.iter().map(|&w| bytes(w)).sum(),
                )),
            };
            behind(&groups.iter().map(bucket).collect::<Vec<_>>(), end)
        };
        let (mb, groups) = choose(grouping, &order, axes, bytes, exposed);
        all.gradients_exposed_ps = exposed(&groups);
        all.bucket_mb = mb;
        let operation = if zero { Collective::ReduceScatter } else { Collective::AllReduce };
        all.buckets.extend(groups.iter().map(|group| {
            let total = group.iter().map(|&w| bytes(w)).sum();
            self.shared(operation, axes(group[0]), group, total, reduce(axes(group[0]), total))
        }));
    }

    /// Gathers parameters that were updated in parts, in groups, behind the next forward pass.
    fn gathers_after_update(&self, fusion: Option<&Fusion>, all: &mut Overlap) {
        let gather = |axes: &[AxisIndex], bytes: f64| self.pricer.gathering(axes, bytes);
        let axes = |w: usize| &self.weights[w].exchange.copies;
        let bytes = |w: usize| self.weights[w].exchange.bytes;
        let mut order: Vec<usize> =
            (0..self.weights.len()).filter(|&w| !axes(w).is_empty()).collect();
        let Some(fusion) = fusion else {
            let each = order.iter().map(|&w| Time::from_seconds(gather(axes(w), bytes(w))));
            all.gathers_exposed_ps = each.sum();
            return;
        };
        order.sort_by_key(|&w| self.weights[w].first);
        let exposed = |groups: &Groups| {
            let mut turns = self.turns(|(forward, _)| forward);
            for group in groups {
                let first = group.iter().map(|&w| self.weights[w].first).min().unwrap_or_default();
                let total = group.iter().map(|&w| bytes(w)).sum();
                turns[first].gather += Time::from_seconds(gather(axes(group[0]), total));
            }
            ahead(&turns, None).exposed
        };
        let (_, groups) = choose(&fusion.all_gather, &order, axes, bytes, exposed);
        all.gathers_exposed_ps = exposed(&groups);
        all.buckets.extend(groups.iter().map(|group| {
            let total = group.iter().map(|&w| bytes(w)).sum();
            let time = gather(axes(group[0]), total);
            self.shared(Collective::AllGather, axes(group[0]), group, total, time)
        }));
    }

    /// Gathers divided parameters before each pass, as far ahead as the buffer allows. One without a limit of its own is as
    /// large as is of use, within the room that there is.
    fn gathers_of_each_pass(&self, buffer_mb: Option<u64>, room: Bytes, all: &mut Overlap) {
        let mut gathers = vec![(Time::ZERO, Bytes::ZERO); self.passes.len()];
        for weight in &self.weights {
            let Exchange { bytes, copies, .. } = &weight.exchange;
            let (time, held) = &mut gathers[weight.first];
            *time += Time::from_seconds(self.pricer.gathering(copies, *bytes));
            *held += Bytes::from_f64(bytes.ceil());
        }
        let Some(mb) = buffer_mb else {
            let once: Time = gathers.iter().map(|&(time, _)| time).sum();
            all.gathers_exposed_ps = once * 2;
            return;
        };
        let with = |mut turns: Vec<Turn>| {
            for (turn, &(gather, bytes)) in turns.iter_mut().zip(&gathers) {
                (turn.gather, turn.bytes) = (gather, bytes);
            }
            turns
        };
        let there = with(self.turns(|(forward, _)| forward));
        let mut back = with(self.turns(|(_, backward)| backward));
        back.reverse();
        let within = |buffer| {
            let (forward, backward) = (ahead(&there, buffer), ahead(&back, buffer));
            (forward.exposed + backward.exposed, forward.peak.max(backward.peak))
        };
        let asked = Some(mb).filter(|&mb| mb > 0).map(|mb| Bytes(mb.saturating_mul(MB)));
        let mut found = within(asked);
        if asked.is_none() && found.1 > room {
            found = within(Some(room));
        }
        (all.gathers_exposed_ps, all.buffer_bytes) = found;
    }

    fn turns(&self, time: impl Fn((Time, Time)) -> Time) -> Vec<Turn> {
        self.passes.iter().map(|&pass| Turn { time: time(pass), ..Turn::default() }).collect()
    }

    fn shared(
        &self,
        operation: Collective,
        axes: &[AxisIndex],
        group: &[usize],
        bytes: f64,
        seconds: f64,
    ) -> SharedExchange {
        let tensors = &self.pricer.network.graph.tensors;
        SharedExchange {
            operation,
            axes: axes.iter().map(|&axis| axis.into()).collect(),
            tensors: group.iter().map(|&w| tensors[self.weights[w].tensor].name.clone()).collect(),
            bytes: Bytes::from_f64(bytes.ceil()),
            time_ps: Time::from_seconds(seconds),
        }
    }
}

/// The groups that a rule makes of weights in this order, and the megabytes that closed them.
fn choose<'w>(
    grouping: &Grouping,
    order: &[usize],
    axes: impl Fn(usize) -> &'w Vec<AxisIndex>,
    bytes: impl Fn(usize) -> f64,
    exposed: impl Fn(&Groups) -> Time,
) -> (Option<u64>, Groups) {
    let sized = |mb: u64| -> Groups {
        let fill = |list: &[usize]| -> Vec<Range<usize>> {
            let sizes: Vec<Bytes> = list.iter().map(|&w| Bytes::from_f64(bytes(w))).collect();
            filled(&sizes, Bytes(mb.saturating_mul(MB)))
        };
        alike(order, &axes)
            .into_iter()
            .flat_map(|list| {
                fill(&list).into_iter().map(|range| list[range].to_vec()).collect::<Vec<_>>()
            })
            .collect()
    };
    match grouping.mode {
        GroupingMode::Auto => (Some(AUTO_MB), sized(AUTO_MB)),
        GroupingMode::Size => (grouping.mb, sized(grouping.mb.unwrap_or(AUTO_MB))),
        GroupingMode::Index => {
            let of = |w: usize| grouping.places.iter().filter(|&&place| place <= w as u64).count();
            let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for &w in order {
                groups.entry(of(w)).or_default().push(w);
            }
            let apart = |list: &Vec<usize>| alike(list, &axes);
            (None, groups.values().flat_map(apart).collect())
        }
        GroupingMode::Best => {
            let sizes = (0..LARGEST_POWER).map(|power| 1 << power);
            let best = sizes.min_by_key(|&mb| (exposed(&sized(mb)), mb)).unwrap_or(AUTO_MB);
            (Some(best), sized(best))
        }
    }
}

/// Weights by the axes over which they are exchanged, each list in order.
fn alike<'w>(order: &[usize], axes: &impl Fn(usize) -> &'w Vec<AxisIndex>) -> Groups {
    let mut lists: BTreeMap<&Vec<AxisIndex>, Vec<usize>> = BTreeMap::new();
    for &w in order {
        lists.entry(axes(w)).or_default().push(w);
    }
    lists.into_values().collect()
}
