//! Embeddings whose tables are cut into parts of unlike numbers of rows, as MindSpore's `manual_split` says.
//!
//! Each part of the table answers for its own columns of the indices (the features whose rows it holds), so a cut of the rows
//! is a cut of the last dimension of the indices, and nothing is added up. The largest part is what a device must hold.

use super::form::Form;
use super::ir::Network;
use super::loops::Cut;
use super::problem::FixedStrategy;
use crate::error::{require, Error};

/// Lets the operators whose strategies give rows loop as such look-ups do.
///
/// # Errors
/// Rows for an operator that is no look-up in a table of its own, or that do not make up its table.
pub fn apply(network: &mut Network, strategies: &[FixedStrategy]) -> Result<(), Error> {
    for (i, strategy) in strategies.iter().enumerate() {
        let Some(rows) = &strategy.rows else { continue };
        let path = format!("options.strategies[{i}].rows");
        let operators = &network.graph.operators;
        // Names that are not there are refused with the strategies.
        let Some(o) = operators.iter().position(|each| each.name == strategy.operator) else {
            continue;
        };
        let looks_up = matches!(operators[o].form, Form::Gather { axis: 0 });
        let table = network.inputs[o][0];
        require(
            looks_up && network.producer[table].is_none() && network.readers[table].len() == 1,
            &path,
            || format!("operator \"{}\" is no look-up in a table of its own", strategy.operator),
            "Leave them out.",
        )?;
        let size = network.graph.tensors[table].shape[0];
        let parts = rows.len() as u64;
        let sum = rows.iter().fold(0u64, |sum, &part| sum.saturating_add(part));
        require(
            sum == size && !rows.contains(&0),
            &path,
            || format!("must be positive and make up the table's {size} rows, found {rows:?}"),
            "Give the rows of each part.",
        )?;
        let cut = strategy.inputs.first().and_then(|cuts| cuts.first()).copied();
        require(
            cut == Some(parts),
            &path,
            || format!("has {parts} parts, and the strategy cuts the table {:?}", strategy.inputs),
            "Cut the first dimension into as many parts.",
        )?;
        let loops = &mut network.loops[o];
        let Some(&features) = loops.inputs[1].last() else {
            return Err(Error::new(
                path,
                "the indices are one number".to_owned(),
                "Leave them out.",
            ));
        };
        // The rows no longer are an axis of their own: nothing is left of it to cut.
        if let Some(own) = loops.inputs[0][0] {
            loops.axes[own].cut = Cut::Whole;
        }
        loops.inputs[0][0] = features;
        network.uneven.push((table, rows.clone()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::ir::{Dtype, Gradients, Graph, Operator, Role, Tensor, GRAPH_SCHEMA};

    fn embedding() -> Network {
        let tensor = |name: &str, shape: &[u64], dtype, role| Tensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype,
            role,
        };
        let graph = Graph {
            schema: GRAPH_SCHEMA.to_owned(),
            name: "embedding".to_owned(),
            gradients: Gradients::None,
            tensors: vec![
                tensor("table", &[64, 32], Dtype::Float32, Role::Parameter),
                tensor("ids", &[16, 8], Dtype::Int32, Role::Input),
                tensor("out", &[16, 8, 32], Dtype::Float32, Role::Activation),
            ],
            operators: vec![Operator {
                name: "embed".to_owned(),
                source: "Gather".to_owned(),
                form: Form::Gather { axis: 0 },
                inputs: vec!["table".to_owned(), "ids".to_owned()],
                outputs: vec!["out".to_owned()],
                host: false,
                recompute: false,
            }],
        };
        graph.validate().expect("a valid graph")
    }

    fn split(rows: &[u64]) -> FixedStrategy {
        FixedStrategy {
            operator: "embed".to_owned(),
            inputs: vec![vec![4, 1], vec![1, 4]],
            outputs: None,
            recompute: None,
            rows: Some(rows.to_vec()),
        }
    }

    #[test]
    fn rows_lie_along_the_features() {
        let mut network = embedding();
        apply(&mut network, &[split(&[10, 20, 30, 4])]).expect("rows of the table");
        assert_eq!(network.loops[0].inputs, [[Some(1), Some(2)], [Some(0), Some(1)]]);
        assert_eq!(network.uneven, [(0, vec![10, 20, 30, 4])]);
    }

    #[test]
    fn rows_that_do_not_make_up_the_table_are_refused() {
        let found = apply(&mut embedding(), &[split(&[10, 20, 30, 5])]).expect_err("65 rows");
        assert!(found.what.contains("make up the table's 64 rows"), "{}", found.what);
        let found = apply(&mut embedding(), &[split(&[32, 32])]).expect_err("two parts of four");
        assert!(found.what.contains("has 2 parts"), "{}", found.what);
    }
}
