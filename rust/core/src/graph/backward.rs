//! What the backward pass needs: which tensors get a gradient, and which values must be there to compute it.

use super::form::Form;
use super::ir::{Gradients, Network, Operator, Role};

/// Which tensors get a gradient, by place: parameters, and what is computed from them in floating point.
pub fn gradients(network: &Network) -> Vec<bool> {
    let graph = &network.graph;
    let mut needed: Vec<bool> = graph
        .tensors
        .iter()
        .map(|t| {
            graph.gradients == Gradients::Implied && t.role == Role::Parameter && t.dtype.is_float()
        })
        .collect();
    for &operator in &network.order {
        if network.inputs[operator].iter().any(|&t| needed[t]) {
            for &t in &network.outputs[operator] {
                needed[t] = graph.tensors[t].dtype.is_float();
            }
        }
    }
    needed
}

/// Which activations a gradient needs: those that a reader's does, and the results of operators whose own does.
pub fn kept(network: &Network, gradients: &[bool]) -> Vec<bool> {
    let needed = |t: usize| {
        let own = network.producer[t].is_some_and(|o| {
            let form = &network.graph.operators[o].form;
            gradients[t] && matches!(form, Form::Softmax { .. } | Form::Attention { .. })
        });
        own || network.readers[t].iter().any(|&(o, place)| needs(network, gradients, o, place))
    };
    (0..network.graph.tensors.len())
        .map(|t| network.graph.tensors[t].role == Role::Activation && needed(t))
        .collect()
}

/// Whether the gradient of an operator needs one of its inputs.
pub fn needs(network: &Network, gradients: &[bool], operator: usize, input: usize) -> bool {
    network.outputs[operator].iter().any(|&t| gradients[t])
        && gradient_places(&network.graph.operators[operator], network.inputs[operator].len())
            .contains(&input)
}

/// Inputs whose values an operator's gradient needs, if it has one.
pub fn gradient_places(operator: &Operator, inputs: usize) -> Vec<usize> {
    match &operator.form {
        Form::Matmul { .. } => vec![0, 1],
        Form::Convolution { .. }
        | Form::Pool { .. }
        | Form::Norm { .. }
        | Form::BatchNorm { .. }
        | Form::CrossEntropy {} => vec![0],
        Form::Gather { .. } => vec![1],
        Form::Route {} => (1..inputs).collect(),
        Form::Attention { .. } => vec![0, 1, 2],
        // A sum needs nothing, a product its factors, a function of one input that input.
        Form::Elementwise {} => match operator.source.as_str() {
            "Add" | "Sub" | "BiasAdd" | "AddV2" | "Cast" | "Identity" | "Expand" => vec![],
            _ => (0..inputs).collect(),
        },
        Form::Opaque {} => (0..inputs).collect(),
        Form::Softmax { .. }
        | Form::Reduce { .. }
        | Form::Reshape {}
        | Form::Transpose { .. }
        | Form::Concat { .. }
        | Form::Split { .. }
        | Form::Slice { .. }
        | Form::OneHot { .. }
        | Form::TopK { .. } => vec![],
    }
}
