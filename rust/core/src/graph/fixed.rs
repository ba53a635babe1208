//! What the user has fixed: strategies of operators and of the dataset, checked and matched.

use super::ir::Role;
use super::layout::{Division, Layout, Mesh};
use super::loops::{Axis, Cut, Loops};
use super::price::Pricer;
use super::problem::FixedStrategy;
use super::strategy::{strategies, Choices, Strategy};
use crate::error::{require, Error};
use std::collections::HashMap;

/// The user's strategy of each operator.
pub fn fixed_strategies<'a>(pricer: &Pricer<'a>) -> Result<Vec<Option<&'a FixedStrategy>>, Error> {
    let network = pricer.network;
    let names: HashMap<&str, usize> = network
        .graph
        .operators
        .iter()
        .enumerate()
        .map(|(i, operator)| (operator.name.as_str(), i))
        .collect();
    let mut fixed: Vec<Option<&FixedStrategy>> = vec![None; network.graph.operators.len()];
    for (i, strategy) in pricer.options.strategies.iter().enumerate() {
        let path = format!("options.strategies[{i}]");
        let Some(&o) = names.get(strategy.operator.as_str()) else {
            return Err(Error::new(
                format!("{path}.operator"),
                format!("there is no operator \"{}\"", strategy.operator),
                "Name an operator of the graph.",
            ));
        };
        require(
            fixed[o].replace(strategy).is_none(),
            &path,
            || format!("operator \"{}\" has a strategy already", strategy.operator),
            "Give each operator one strategy.",
        )?;
    }
    Ok(fixed)
}

/// Refuses cuts of the dataset that it cannot have.
pub fn check_dataset(pricer: &Pricer<'_>) -> Result<(), Error> {
    let graph = &pricer.network.graph;
    for (i, input) in pricer.options.dataset.iter().enumerate() {
        let path = format!("options.dataset[{i}]");
        let found = graph.tensors.iter().find(|t| t.name == input.tensor && t.role == Role::Input);
        let Some(tensor) = found else {
            return Err(Error::new(
                format!("{path}.tensor"),
                format!("there is no input \"{}\"", input.tensor),
                "Name an input of the graph.",
            ));
        };
        require(
            !pricer.options.dataset[..i].iter().any(|other| other.tensor == input.tensor),
            &path,
            || format!("input \"{}\" is cut already", input.tensor),
            "Cut each input once.",
        )?;
        let axes = tensor.shape.iter().map(|&size| Axis { size, cut: Cut::Free }).collect();
        let dims = (0..tensor.shape.len()).map(Some).collect();
        let loops = Loops { axes, inputs: vec![], outputs: vec![dims] };
        let free = Choices { use_all_devices: false, division: Division::Primes };
        let all = strategies(&loops, None, pricer.mesh, free);
        require(
            all.iter().any(|s| s.output(&loops, 0).cuts(pricer.mesh) == input.cuts),
            &format!("{path}.cuts"),
            || {
                let devices = pricer.mesh.devices();
                let shape = &tensor.shape;
                format!("must divide {shape:?} and its product {devices}, found {:?}", input.cuts)
            },
            "Give a number a dimension.",
        )?;
    }
    Ok(())
}

/// The strategies that cut as the user wants; a mesh of several axes may leave more than one.
pub fn matching(
    found: Vec<Strategy>,
    fixed: &FixedStrategy,
    loops: &Loops,
    mesh: &Mesh,
) -> Vec<Strategy> {
    let cuts = |layout: Layout| layout.cuts(mesh);
    found
        .into_iter()
        .filter(|s| {
            let inputs = (0..loops.inputs.len()).map(|i| cuts(s.input(loops, i)));
            let outputs = (0..loops.outputs.len()).map(|i| cuts(s.output(loops, i)));
            // Axes that no input has are cut only if the outputs say so.
            let seen = |axis: usize| loops.inputs.iter().any(|dims| dims.contains(&Some(axis)));
            fixed.inputs.iter().cloned().eq(inputs)
                && match &fixed.outputs {
                    Some(wanted) => wanted.iter().cloned().eq(outputs),
                    None => {
                        s.scatter.is_none()
                            && (0..s.axes.len()).all(|axis| seen(axis) || s.axes[axis].is_empty())
                    }
                }
        })
        .collect()
}

/// Why an operator cannot have the user's strategy.
pub fn refusal(pricer: &Pricer<'_>, o: usize, fixed: &FixedStrategy) -> Error {
    let network = pricer.network;
    let loops = &network.loops[o];
    let shapes: Vec<&[u64]> =
        network.inputs[o].iter().map(|&t| network.graph.tensors[t].shape.as_slice()).collect();
    let name = &fixed.operator;
    let place = pricer.options.strategies.iter().position(|s| &s.operator == name);
    let path = format!("options.strategies[{}]", place.unwrap_or_default());
    let at =
        |what: String, hint: &str| Error::new(&path, format!("operator \"{name}\": {what}"), hint);
    let ranks_match = fixed.inputs.len() == shapes.len()
        && fixed.inputs.iter().zip(&shapes).all(|(cuts, shape)| cuts.len() == shape.len());
    if !ranks_match {
        let what = format!(
            "cuts {:?} do not have a number for each dimension of {shapes:?}",
            fixed.inputs
        );
        return at(what, "Give a list an input, a number a dimension.");
    }
    let mut cut_of: Vec<Option<u64>> = vec![None; loops.axes.len()];
    for (i, cuts) in fixed.inputs.iter().enumerate() {
        for (dim, &cut) in cuts.iter().enumerate() {
            let size = shapes[i][dim];
            if cut == 0 || !size.is_multiple_of(cut) {
                let what = format!(
                    "dimension {dim} of input {i}, of size {size}, does not divide into {cut}"
                );
                return at(what, "Cut by a divisor of the size.");
            }
            let Some(axis) = loops.inputs[i][dim] else {
                if cut == 1 {
                    continue;
                }
                let what = format!("dimension {dim} of input {i} cannot be cut");
                return at(what, "Leave it at 1.");
            };
            if loops.axes[axis].cut == Cut::Whole && cut > 1 {
                let what = format!("dimension {dim} of input {i} cannot be cut");
                return at(what, "Leave it at 1.");
            }
            if let Some(other) = cut_of[axis].replace(cut).filter(|&other| other != cut) {
                let what = format!("dimension {dim} of input {i} is cut into {cut}, and {other} where it meets another input");
                return at(what, "Cut both alike.");
            }
        }
    }
    let product: u64 = cut_of.iter().flatten().product();
    let outputs = fixed.outputs.as_ref().map_or(String::new(), |cuts| format!(" to {cuts:?}"));
    let what = format!(
        "cuts {:?}{outputs}, together {product}, cannot be laid on {} devices",
        fixed.inputs,
        pricer.mesh.devices()
    );
    at(what, "Give cuts whose product divides the devices.")
}
