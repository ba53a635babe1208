//! Brute force over every choice of strategies, against dynamic programming, on random small graphs.
//!
//! The oracle lists choices and adds up what the cost graph says of them; it shares nothing with the elimination, the
//! multiplier or the fronts. `AUTOPAR_ORACLE_GRAPHS` sets how many graphs are tried.

use autopar_core::graph::charged::among;
use autopar_core::graph::cost::CostGraph;
use autopar_core::graph::dp;
use autopar_core::graph::form::Form;
use autopar_core::graph::ilp::{Core, Program};
use autopar_core::graph::ir::{Dtype, Gradients, Graph, Operator, Role, Tensor, GRAPH_SCHEMA};
use autopar_core::graph::layout::Mesh;
use autopar_core::graph::price::Pricer;
use autopar_core::graph::problem::{CostModel, Method, Others, ShardingOptions};
use autopar_core::graph::strategy::Choices;
use autopar_core::graph::{propagate, recursive};
use autopar_core::testing::{a100, cluster};
use autopar_core::units::Bytes;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::Cell;

/// A graph by what each operator is and which earlier results it reads.
#[derive(Clone, Debug)]
struct Sketch {
    size: u64,
    devices: u64,
    training: bool,
    zero: u8,
    /// Kind, first and second source counted back from the operator.
    operators: Vec<(u8, usize, usize)>,
    /// Where the memory limit lies between the least and that of the fastest plan, in tenths.
    limit: u64,
}

fn sketch() -> impl Strategy<Value = Sketch> {
    let operator = (0u8..5, 1usize..4, 1usize..4);
    let size = prop_oneof![Just(64u64), Just(96), Just(1024), Just(2048)];
    (
        size,
        prop_oneof![Just(2u64), Just(4), Just(6), Just(8)],
        any::<bool>(),
        0u8..4,
        proptest::collection::vec(operator, 2..7),
        0u64..10,
    )
        .prop_map(|(size, devices, training, zero, operators, limit)| Sketch {
            size,
            devices,
            training,
            zero,
            operators,
            limit,
        })
}

/// Square matrices throughout, so that any result fits any operator.
fn graph(sketch: &Sketch) -> Graph {
    let shape = vec![sketch.size, sketch.size];
    let tensor =
        |name: String, role| Tensor { name, shape: shape.clone(), dtype: Dtype::Bfloat16, role };
    let mut tensors =
        vec![tensor("x".into(), Role::Input), tensor("shared".into(), Role::Parameter)];
    let mut results = vec!["x".to_owned()];
    let mut operators = Vec::new();
    for (i, &(kind, first, second)) in sketch.operators.iter().enumerate() {
        let source = |back: usize| results[results.len().saturating_sub(back)].clone();
        let weight = format!("w{i}");
        let (form, inputs) = match kind {
            0 => (
                Form::Matmul { transpose_a: false, transpose_b: false },
                vec![source(first), weight.clone()],
            ),
            1 => (
                Form::Matmul { transpose_a: false, transpose_b: true },
                vec![source(first), source(second)],
            ),
            2 => (Form::Elementwise {}, vec![source(first), source(second)]),
            3 => (Form::Softmax { axes: vec![1] }, vec![source(first)]),
            _ => (
                Form::Matmul { transpose_a: true, transpose_b: false },
                vec![source(first), "shared".into()],
            ),
        };
        if kind == 0 {
            tensors.push(tensor(weight, Role::Parameter));
        }
        let output = format!("t{i}");
        tensors.push(tensor(output.clone(), Role::Activation));
        operators.push(Operator {
            name: format!("op{i}"),
            source: String::new(),
            form,
            inputs,
            outputs: vec![output.clone()],
            host: false,
            recompute: false,
        });
        results.push(output);
    }
    Graph {
        schema: GRAPH_SCHEMA.into(),
        name: "random".into(),
        gradients: if sketch.training { Gradients::Implied } else { Gradients::None },
        tensors,
        operators,
    }
}

/// The least time of all choices within a limit, added up cell by cell, depth first; a branch ends only where its time is
/// no longer the least, for no price is negative.
fn least(graph: &CostGraph, limit: u64) -> Option<u64> {
    fn walk(
        g: &CostGraph,
        chosen: &mut Vec<usize>,
        time: u64,
        memory: u64,
        limit: u64,
        best: &mut u64,
    ) {
        if memory > limit || time >= *best {
            return;
        }
        let node = chosen.len();
        if node == g.nodes.len() {
            *best = time;
            return;
        }
        for (value, price) in g.prices(node).iter().enumerate() {
            chosen.push(value);
            let mut more = price.time().0;
            for edge in g.edges.iter().filter(|edge| edge.to == node) {
                more += g.matrices[edge.matrix].at(chosen[edge.from], value);
            }
            walk(g, chosen, time + more, memory + price.memory.0, limit, best);
            chosen.pop();
        }
    }
    let mut best = u64::MAX;
    walk(graph, &mut Vec::new(), 0, 0, limit, &mut best);
    (best < u64::MAX).then_some(best)
}

#[test]
fn dynamic_programming_finds_what_brute_force_finds() {
    let cases = std::env::var("AUTOPAR_ORACLE_GRAPHS").ok().and_then(|n| n.parse().ok());
    let mut runner = TestRunner::new(Config {
        cases: cases.unwrap_or(60),
        failure_persistence: None,
        ..Config::default()
    });
    let (proved, limited) = (Cell::new(0), Cell::new(0));
    runner
        .run(&sketch(), |sketch| {
            let network = graph(&sketch).validate().expect("a valid graph");
            let cluster = cluster(a100(), sketch.devices);
            let options = ShardingOptions {
                method: Method::Dp,
                cost_model: CostModel::Estimate,
                mesh: vec![],
                strategies: vec![],
                others: Others::Search,
                dataset: vec![],
                prefetch_mb: None,
                fusion: None,
                reuse_limit: None,
                recompute: sketch.zero == 3,
                use_all_devices: false,
                refine: true,
                all_to_all: true,
                zero: sketch.zero,
                optimizer_bytes: 12,
                gradient_bytes: 4,
                memory_gib: None,
            };
            let mesh = Mesh::new(&[sketch.devices]);
            let pricer = Pricer::new(&network, &cluster, &options, &mesh);
            let choices = Choices { use_all_devices: true, refine: true };
            let costs = CostGraph::new(&pricer, choices).expect("strategies");
            let free = dp::solve(&costs, Bytes(u64::MAX));
            let (time, memory) = costs.total(&free.choice);
            prop_assert_eq!(Some(time), least(&costs, u64::MAX));
            prop_assert_eq!(free.bound, Some(time));
            let grouped = dp::solve_in_groups(&costs, Bytes(u64::MAX));
            prop_assert_eq!((costs.total(&grouped.choice).0, grouped.bound), (time, Some(time)));
            let set = vec![false; costs.nodes.len()];
            let greedy = propagate::solve(&costs, &set, Bytes(u64::MAX));
            prop_assert!(costs.total(&greedy.choice).0 >= time);
            let all = CostGraph::new(&pricer, Choices { use_all_devices: false, refine: true });
            let all = all.expect("strategies");
            let greedy = recursive::solve(&all, &mesh, Bytes(u64::MAX));
            let best = dp::solve(&all, Bytes(u64::MAX));
            prop_assert!(all.total(&greedy.choice).0 >= all.total(&best.choice).0);
            // A part of the strategies costs what it costs among all.
            let kept = all.kept(|strategy| strategy.is_whole(&mesh, None));
            let part = all.part(&kept);
            let coarse = dp::solve(&part, Bytes(u64::MAX)).choice;
            let among = among(&kept, &coarse);
            prop_assert_eq!(all.total(&among), part.total(&coarse));
            prop_assert!(all.total(&among).0 >= all.total(&best.choice).0);
            let floor = dp::least_memory(&costs).0;
            let limit = floor + (memory.0 - floor) * sketch.limit / 10;
            let bounded = dp::solve(&costs, Bytes(limit));
            let (time, memory) = costs.total(&bounded.choice);
            prop_assert!(bounded.fits && memory.0 <= limit);
            let bound = bounded.bound.expect("a bound");
            let best = least(&costs, limit).expect("a plan");
            prop_assert!(bound <= best && best <= time, "{} {} {}", bound, best, time);
            limited.set(limited.get() + 1);
            if bound == time {
                proved.set(proved.get() + 1);
                prop_assert_eq!(time, best);
            }
            let grouped = dp::solve_in_groups(&costs, Bytes(limit));
            let (time, memory) = costs.total(&grouped.choice);
            prop_assert!(memory.0 <= limit);
            prop_assert_eq!((time, grouped.bound), (best, Some(best)));
            if floor > 0 {
                let none = dp::solve(&costs, Bytes(floor - 1));
                prop_assert!(!none.fits);
                prop_assert_eq!(costs.total(&none.choice).1, Bytes(floor));
            }
            let program =
                Program::new(&Core::new(&costs, Bytes(limit)), Bytes(limit)).expect("a program");
            prop_assert_eq!(
                program.whole,
                (0..costs.nodes.len()).map(|n| costs.count(n)).sum::<usize>()
            );
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(proved.get(), limited.get(), "each limit is settled");
}
