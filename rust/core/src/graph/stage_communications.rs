//! The communication operators of a plan as MindSpore compiles it: stage by stage, and how many are left when identical ones
//! share a subgraph.
//!
//! A stage's graph holds every micro-batch of a pipeline's step; without a pipeline it holds one. What reduces gradients and gathers
//! parameters is fused instead, and what sends to another stage is never shared (MindSpore,
//! frontend/parallel/pass/comm_op_reuse_tag.cc): neither is counted. Operators are alike that do the same over the same group
//! with a result of the same size (plugin/device/ascend/optimizer/ascend_comm_op_reuse.cc).

use super::communications::{count, Signature};
use super::problem::{Collective, Communications};
use crate::error::Error;
use crate::estimate::stage::Place;
use crate::plan::rules::require_legal;
use crate::plan::{Plan, Recompute};
use crate::spec::framework::{ContextExchange, ExpertDispatch, Projections};
use crate::spec::model::LayerKind;
use crate::spec::problem::Problem;
use std::collections::HashMap;

/// Groups of ranks, in the place of a graph's axes.
const TENSOR: usize = 0;
const CONTEXT: usize = 1;
const EXPERT: usize = 2;
const REPLICAS: usize = 3;

/// Counts the communication operators of each stage. Of them `limit` may become calls of shared subgraphs.
///
/// # Errors
/// A plan that breaks a rule, or with more than one tensor-parallel degree.
pub fn stage_communications(
    problem: &Problem,
    plan: &Plan,
    limit: u64,
) -> Result<Vec<Communications>, Error> {
    require_legal(problem, plan)?;
    if !plan.tp_of_kind.is_empty() {
        let what = "kinds of chip have tensor-parallel degrees of their own";
        return Err(Error::new("plan.tp_of_kind", what, "Give one degree for all kinds."));
    }
    let graphs = if plan.pp > 1 { plan.micro_batches(problem) } else { 1 };
    let stage = |index: usize| {
        let mut calls = Calls::new(problem, plan, graphs);
        calls.stage(&plan.place(problem, index));
        count(calls.kinds, Some(limit))
    };
    Ok((0..plan.stages.len()).map(stage).collect())
}

#[derive(Clone, Copy)]
enum Pass {
    Forward,
    Backward,
}

/// The operators of one stage as they add up.
struct Calls<'a> {
    problem: &'a Problem,
    plan: &'a Plan,
    /// Micro-batches of a graph.
    graphs: u64,
    /// Bytes of a hidden element, and of the hidden states of a micro-batch on this rank, whole.
    width: f64,
    tokens: f64,
    kinds: HashMap<Signature, u64>,
}

impl<'a> Calls<'a> {
    fn new(problem: &'a Problem, plan: &'a Plan, graphs: u64) -> Self {
        let work = &problem.workload;
        Calls {
            problem,
            plan,
            graphs,
            width: work.precision.activation_bytes(),
            tokens: (plan.mbs * work.sequence_length) as f64 / plan.cp as f64,
            kinds: HashMap::new(),
        }
    }

    /// `times` operators over `group`, whose ranks together have a tensor of so many bytes.
    fn add(&mut self, operation: Collective, group: usize, whole: f64, times: u64) {
        let ranks = match group {
            TENSOR => self.plan.tp,
            CONTEXT => self.plan.cp,
            EXPERT => self.plan.ep,
            _ => self.plan.dp * self.plan.cp,
        };
        let result = match operation {
            Collective::AllGather | Collective::AllReduce => whole,
            Collective::ReduceScatter | Collective::AllToAll | Collective::Slice => {
                whole / ranks as f64
            }
        };
        if ranks > 1 && times > 0 {
            let kind = (operation, vec![group], result.round() as u64);
            *self.kinds.entry(kind).or_default() += times * self.graphs;
        }
    }

    /// The same in one pass: the backward pass of a gather scatters, and of a scatter gathers.
    fn run(&mut self, pass: Pass, operation: Collective, group: usize, whole: f64, times: u64) {
        let operation = match (pass, operation) {
            (Pass::Backward, Collective::AllGather) => Collective::ReduceScatter,
            (Pass::Backward, Collective::ReduceScatter) => Collective::AllGather,
            (_, same) => same,
        };
        self.add(operation, group, whole, times);
    }

    fn stage(&mut self, place: &Place) {
        let model = &self.problem.model;
        for chunk in 0..place.vpp {
            let (from, held) = place.range(model.layers, chunk);
            // How many of the first layers run again, in groups of how many; and in how many what norms made is gathered again.
            let mut gathered = 0;
            let (again, group) = match place.recompute {
                Recompute::None | Recompute::Selective => (0, 1),
                Recompute::Block { layers } => (layers.min(held), 1),
                Recompute::Parts(parts) => {
                    let parts = parts.of_chunk(chunk, place.vpp);
                    let kept = self.problem.framework.held.gathered_inputs;
                    gathered = if kept { parts.operators.gather } else { 0 };
                    (parts.layers.min(held), 1)
                }
                Recompute::Uniform { layers } => (held, layers.max(1)),
            };
            for n in 0..held {
                let kind = model.layer_kind(from + n);
                self.layer(kind, Pass::Forward, 1, 1);
                self.layer(kind, Pass::Backward, 1, 1);
                if n < again {
                    // The backward pass reads no result of a group's last layer.
                    let ends = (n + 1) % group == 0 || n + 1 == held;
                    self.again(kind, u64::from(!ends));
                } else if n < gathered {
                    let inputs = self.edges(kind).iter().sum();
                    self.gather(Pass::Forward, inputs);
                }
            }
            let (embedding, head) = place.ends(chunk);
            if embedding && !self.problem.framework.whole_vocabulary {
                // Rows of the table lie on one rank each.
                self.sum(Pass::Forward, 1);
                self.sum(Pass::Backward, 1);
            }
            if head {
                self.gather(Pass::Forward, 1);
                self.gather(Pass::Backward, 1);
                self.loss();
            }
        }
    }

    /// Bytes of hidden states, whole on a tensor-parallel rank.
    fn hidden(&self) -> f64 {
        self.tokens * self.problem.model.hidden as f64 * self.width
    }

    /// Products that open attention, and those that open an MLP, as far as each has collectives of its own.
    fn products(&self) -> (u64, u64) {
        let gated = if self.problem.model.activation.gated() { 2 } else { 1 };
        match self.problem.framework.projections {
            _ if self.problem.framework.shared_edges => (1, 1),
            Projections::Packed => (1, 1),
            Projections::GateApart => (1, gated),
            Projections::Apart => (3, gated),
        }
    }

    /// Sub-layers of a layer with a sum after their last product: how many products each opens with, all of which gather their
    /// input. Both halves of a parallel block have one edge.
    fn edges(&self, kind: LayerKind) -> Vec<u64> {
        let (attention, mlp) = self.products();
        match (&self.problem.model.moe, kind.moe) {
            (Some(moe), true) if moe.shared_ffn > 0 => vec![attention, mlp],
            (Some(_), true) => vec![attention],
            _ if self.problem.model.parallel_block => vec![mlp],
            _ => vec![attention, mlp],
        }
    }

    /// Sums over the tensor-parallel group, scattered with sequence parallel.
    fn sum(&mut self, pass: Pass, times: u64) {
        let operation =
            if self.plan.sp { Collective::ReduceScatter } else { Collective::AllReduce };
        self.run(pass, operation, TENSOR, self.hidden(), times);
    }

    /// Gathers of what sequence parallel cuts.
    fn gather(&mut self, pass: Pass, times: u64) {
        if self.plan.sp {
            self.run(pass, Collective::AllGather, TENSOR, self.hidden(), times);
        }
    }

    /// A pass of a layer in which tensor-parallel operators run `tensor` times, the last sum `last` times.
    fn layer(&mut self, kind: LayerKind, pass: Pass, tensor: u64, last: u64) {
        let edges = self.edges(kind);
        let experts = self.problem.model.moe.is_some() && kind.moe;
        // With experts a layer ends in their exchange, else in a sum.
        let ends = u64::from(!experts);
        self.gather(pass, tensor * edges.iter().sum::<u64>());
        self.sum(pass, tensor * (edges.len() as u64 - ends + last * ends));
        self.context(pass);
        if experts {
            self.exchange(pass);
        }
    }

    /// What a recomputed layer repeats; `last` times its last sum.
    fn again(&mut self, kind: LayerKind, last: u64) {
        let tensor = u64::from(!self.problem.framework.keeps_tensor_results);
        self.layer(kind, Pass::Forward, tensor, last);
        if self.problem.framework.slices_kept_inputs && !self.plan.sp {
            // What it kept of its input in slices.
            self.add(Collective::AllGather, TENSOR, self.hidden(), 1);
        }
    }

    /// The exchange of a sequence's ranks in one pass; a ring sends only.
    fn context(&mut self, pass: Pass) {
        let (model, plan) = (&self.problem.model, self.plan);
        let (qk, v) = model.attention_widths();
        let heads = (u64::from(model.heads) / plan.tp).max(1);
        let kv_heads = match model.mla {
            Some(_) => heads,
            None => (u64::from(model.kv_heads) / plan.tp).max(1),
        };
        let sequence = self.tokens * plan.cp as f64 * self.width;
        let of = |heads: u64, width: u64| (heads * width) as f64 * sequence;
        let (keys, values) = (of(kv_heads, qk), of(kv_heads, v));
        match self.problem.framework.context_exchange {
            ContextExchange::Ring => {}
            ContextExchange::Gather | ContextExchange::Blocks => {
                for whole in [keys, values] {
                    self.run(pass, Collective::AllGather, CONTEXT, whole, 1);
                }
            }
            ContextExchange::Heads => {
                for whole in [of(heads, qk), keys, values, of(heads, v)] {
                    self.run(pass, Collective::AllToAll, CONTEXT, whole, 1);
                }
            }
        }
    }

    /// Tokens to their experts and back, in one pass.
    fn exchange(&mut self, pass: Pass) {
        let Some(moe) = &self.problem.model.moe else { return };
        let rows = if self.plan.sp { self.tokens / self.plan.tp as f64 } else { self.tokens };
        let copies = rows * f64::from(moe.topk) * self.problem.model.hidden as f64 * self.width;
        let (ep, etp) = (self.plan.ep as f64, self.plan.etp as f64);
        // Where all ranks gather, tokens travel, not copies of them, and over both groups at once.
        let (operation, whole, group) = match self.problem.framework.expert_dispatch {
            ExpertDispatch::Copies | ExpertDispatch::OnceANode => {
                (Collective::AllToAll, copies * ep, copies * etp)
            }
            ExpertDispatch::Gather => {
                let tokens = copies / f64::from(moe.topk);
                (Collective::AllGather, tokens * ep * etp, tokens * etp)
            }
            ExpertDispatch::GatherSplit => (Collective::AllGather, copies * ep, copies * etp),
        };
        self.run(pass, operation, EXPERT, whole, 2);
        if self.plan.etp > 1 {
            // Experts that are cut compute all of the group's tokens.
            self.run(pass, Collective::AllGather, TENSOR, group, 1);
            self.run(pass, Collective::ReduceScatter, TENSOR, group, 1);
        }
    }

    /// Maxima, targets and exponentials are summed over a vocabulary that is cut, or its logits gathered; the loss is summed
    /// over the replicas.
    fn loss(&mut self) {
        let framework = &self.problem.framework;
        if framework.gathered_logits && !framework.whole_vocabulary {
            let logits = self.tokens * self.problem.model.vocab as f64 * self.width;
            self.add(Collective::AllGather, TENSOR, logits, 1);
        } else if !framework.whole_vocabulary {
            self.add(Collective::AllReduce, TENSOR, self.tokens * 4.0, 3);
        }
        self.add(Collective::AllReduce, REPLICAS, 4.0, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{NamedLayers, Parts, Stage};
    use crate::spec::model::Model;
    use crate::spec::problem::Schedule;
    use crate::testing::{a100, cluster, gpt, moe, plan, problem};

    const ALL: u64 = 1000;

    fn asked(model: Model) -> Problem {
        problem(model, cluster(a100(), 8), 16, 2048)
    }

    fn stages(layers: &[u32], recompute: Recompute) -> Vec<Stage> {
        layers.iter().map(|&layers| Stage { chip: 0, layers, recompute, offload: 0 }).collect()
    }

    /// (operators, replaced, subgraphs, compiled) of each stage.
    fn counts(problem: &Problem, plan: &Plan, limit: u64) -> Vec<(u64, u64, u64, u64)> {
        stage_communications(problem, plan, limit)
            .expect("a legal plan")
            .iter()
            .map(|c| (c.operators, c.replaced, c.subgraphs, c.compiled))
            .collect()
    }

    #[test]
    fn a_plan_without_stages_compiles_one_micro_batch() {
        // MindSpore 2.10 compiles 18 gathers and 18 scatters of these four layers: four a layer, two at the ends. The loss
        // adds three sums over the vocabulary and its own over the replicas.
        let asked = asked(gpt(4, 1024));
        let cut = Plan { dp: 4, tp: 2, sp: true, ..plan(stages(&[4], Recompute::None)) };
        assert_eq!(counts(&asked, &cut, ALL), [(40, 39, 3, 4)]);
        // Room for one kind of 18.
        assert_eq!(counts(&asked, &cut, 20), [(40, 18, 1, 23)]);
        // Without sequence parallel 18 sums of one kind do for both.
        let whole = Plan { sp: false, ..cut };
        assert_eq!(counts(&asked, &whole, ALL), [(22, 21, 2, 3)]);
    }

    #[test]
    fn logits_that_are_gathered_spare_the_sums_over_the_vocabulary() {
        // One gather of all logits in place of three sums of a number a token.
        let mut asked = asked(gpt(4, 1024));
        asked.framework.gathered_logits = true;
        let cut = Plan { dp: 4, tp: 2, sp: true, ..plan(stages(&[4], Recompute::None)) };
        assert_eq!(counts(&asked, &cut, ALL)[0].0, 40 - 3 + 1);
        asked.framework.whole_vocabulary = true;
        let whole = counts(&asked, &cut, ALL)[0].0;
        asked.framework.gathered_logits = false;
        assert_eq!(whole, counts(&asked, &cut, ALL)[0].0);
    }

    #[test]
    fn a_stage_compiles_every_micro_batch_of_its_layers_and_end() {
        // 16 sequences on 2 replicas: 8 micro-batches. Four sums a layer, two for the embedding; at the other end three of the
        // loss, one over the replicas: the sum of the head's input gradient is that of the last layer's output.
        let asked = asked(gpt(4, 1024));
        let split = Plan { dp: 2, tp: 2, ..plan(stages(&[3, 1], Recompute::None)) };
        let (first, last) = (8 * (3 * 4 + 2), 8 * (4 + 3 + 1));
        assert_eq!(counts(&asked, &split, ALL), [(first, first, 1, 1), (last, last, 3, 3)]);
        // Interleaved, a stage holds as many layers in two chunks.
        let chunks = Plan { vpp: 2, schedule: Schedule::Interleaved, ..split.clone() };
        let even = Plan { stages: stages(&[2, 2], Recompute::None), ..chunks };
        let (first, last) = (8 * (2 * 4 + 2), 8 * (2 * 4 + 3 + 1));
        assert_eq!(counts(&asked, &even, ALL), [(first, first, 1, 1), (last, last, 3, 3)]);
    }

    #[test]
    fn experts_exchange_their_tokens_twice_a_pass() {
        let mut model = gpt(2, 1024);
        model.moe = Some(moe(8, 2, 512));
        let mut asked = asked(model);
        let cut = Plan { dp: 8, ep: 4, ..plan(stages(&[2], Recompute::None)) };
        // Two layers of two exchanges in each of two passes; the sum of the loss stays alone.
        assert_eq!(counts(&asked, &cut, ALL), [(9, 8, 1, 2)]);
        // Gathered and split in its place, gathers forward and scatters backward.
        asked.framework.expert_dispatch = ExpertDispatch::GatherSplit;
        assert_eq!(counts(&asked, &cut, ALL), [(9, 8, 2, 3)]);
    }

    #[test]
    fn a_recomputed_layer_repeats_all_but_its_last_sum() {
        let mut asked = asked(gpt(4, 1024));
        let cut = Plan { dp: 4, tp: 2, sp: true, ..plan(stages(&[4], Recompute::None)) };
        let again = |recompute| Plan { stages: stages(&[4], recompute), ..cut.clone() };
        // Two gathers and a scatter of each recomputed layer.
        let block = again(Recompute::Block { layers: 2 });
        assert_eq!(counts(&asked, &block, ALL)[0].0, 40 + 2 * 3);
        // Groups of two layers: the first's last sum is read by the second.
        let groups = again(Recompute::Uniform { layers: 2 });
        assert_eq!(counts(&asked, &groups, ALL)[0].0, 40 + 2 * (4 + 3));
        asked.framework.keeps_tensor_results = true;
        assert_eq!(counts(&asked, &block, ALL)[0].0, 40);
        // One whole layer, and in two of the other three both inputs that were kept gathered.
        asked.framework.keeps_tensor_results = false;
        asked.framework.held.gathered_inputs = true;
        let operators = NamedLayers { gather: 3, ..NamedLayers::default() };
        let parts = again(Recompute::Parts(Parts { layers: 1, regathers: false, operators }));
        assert_eq!(counts(&asked, &parts, ALL)[0].0, 40 + 3 + 2 * 2);
    }

    #[test]
    fn ranks_of_a_sequence_gather_keys_and_values_and_scatter_their_gradients() {
        // MindSpore 2.10 compiles 8 gathers and 8 scatters of these four layers. Keys and values are of one size.
        let mut asked = asked(gpt(4, 1024));
        asked.framework.context_exchange = ContextExchange::Gather;
        let cut = Plan { dp: 2, cp: 4, ..plan(stages(&[4], Recompute::None)) };
        assert_eq!(counts(&asked, &cut, ALL), [(17, 16, 2, 3)]);
        // A ring sends to its neighbours; for heads four exchanges a pass.
        asked.framework.context_exchange = ContextExchange::Ring;
        assert_eq!(counts(&asked, &cut, ALL), [(1, 0, 0, 1)]);
        asked.framework.context_exchange = ContextExchange::Heads;
        assert_eq!(counts(&asked, &cut, ALL), [(33, 32, 1, 2)]);
    }
}
