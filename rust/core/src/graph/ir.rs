//! The graph: operators with typed, shaped tensors; and the same checked, with places instead of names.

use super::form::Form;
use super::loops::Loops;
use crate::error::{require, Error};
use crate::units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Schema of the graph document.
pub const GRAPH_SCHEMA: &str = "autopar.graph/1";

/// Operators and the tensors between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graph {
    /// [`GRAPH_SCHEMA`].
    pub schema: String,
    /// Name of the network.
    pub name: String,
    /// Whether and where gradients are computed.
    pub gradients: Gradients,
    /// Every tensor, in any order.
    pub tensors: Vec<Tensor>,
    /// Every operator, in any order.
    pub operators: Vec<Operator>,
}

/// Whether and where gradients are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gradients {
    /// Nowhere: the graph is run forward.
    None,
    /// In training, with the operators of the graph, which holds only the forward pass.
    Implied,
    /// In training, by operators of the graph itself.
    Explicit,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// Unique name.
    pub name: String,
    /// Elements along each dimension; empty for a scalar.
    pub shape: Vec<u64>,
    /// Number format.
    pub dtype: Dtype,
    /// Where its values come from.
    pub role: Role,
}

impl Tensor {
    /// Bytes of all its elements.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.shape.iter().product::<u64>() * self.dtype.bytes())
    }
}

/// Number format of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// A truth value in a byte.
    Bool,
    /// 8-bit integer.
    Int8,
    /// 8-bit natural number.
    Uint8,
    /// 16-bit integer.
    Int16,
    /// 32-bit integer.
    Int32,
    /// 64-bit integer.
    Int64,
    /// 8-bit floating point.
    Float8,
    /// IEEE half.
    Float16,
    /// bfloat16.
    Bfloat16,
    /// IEEE single.
    Float32,
    /// IEEE double.
    Float64,
}

impl Dtype {
    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::Bool | Dtype::Int8 | Dtype::Uint8 | Dtype::Float8 => 1,
            Dtype::Int16 | Dtype::Float16 | Dtype::Bfloat16 => 2,
            Dtype::Int32 | Dtype::Float32 => 4,
            Dtype::Int64 | Dtype::Float64 => 8,
        }
    }

    /// Whether gradients flow through it.
    pub fn is_float(self) -> bool {
        match self {
            Dtype::Bool
            | Dtype::Int8
            | Dtype::Uint8
            | Dtype::Int16
            | Dtype::Int32
            | Dtype::Int64 => false,
            Dtype::Float8 | Dtype::Float16 | Dtype::Bfloat16 | Dtype::Float32 | Dtype::Float64 => {
                true
            }
        }
    }
}

/// Where a tensor's values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The dataset.
    Input,
    /// Trained weights.
    Parameter,
    /// Fixed values.
    Constant,
    /// An operator.
    Activation,
}

/// An operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operator {
    /// Unique name.
    pub name: String,
    /// Its type where the graph came from, as `MatMul` or `Gelu`.
    pub source: String,
    /// What it computes.
    pub form: Form,
    /// Names of the tensors it reads.
    pub inputs: Vec<String>,
    /// Names of the tensors it writes.
    pub outputs: Vec<String>,
    /// It runs on the host beside each device.
    pub host: bool,
    /// It runs again before the backward pass: what it reads is kept, not what it writes.
    pub recompute: bool,
}

/// A checked graph: tensors and operators by their places in the lists.
#[derive(Clone, Debug)]
pub struct Network {
    /// The document.
    pub graph: Graph,
    /// Operators so that each stands after those whose tensors it reads.
    pub order: Vec<usize>,
    /// The loop axes of each operator.
    pub loops: Vec<Loops>,
    /// The tensors each operator reads.
    pub inputs: Vec<Vec<usize>>,
    /// The tensors each operator writes.
    pub outputs: Vec<Vec<usize>>,
    /// The operator that writes each tensor.
    pub producer: Vec<Option<usize>>,
    /// The operators that read each tensor, with the input's place.
    pub readers: Vec<Vec<(usize, usize)>>,
    /// Tables that are cut into parts of unlike numbers of rows, with the rows of each part.
    pub uneven: Vec<(usize, Vec<u64>)>,
}

impl Network {
    /// The shape that a device must have room for, times the parts of each dimension: that of the tensor, or of as many
    /// parts as large as the largest.
    pub fn roomy(&self, tensor: usize) -> Vec<u64> {
        let mut shape = self.graph.tensors[tensor].shape.clone();
        if let Some((_, rows)) = self.uneven.iter().find(|(table, _)| *table == tensor) {
            shape[0] = rows.len() as u64 * rows.iter().copied().max().unwrap_or(0);
        }
        shape
    }
}

impl Graph {
    /// Checks names, shapes and that the operators can be ordered.
    ///
    /// # Errors
    /// The first thing that is wrong: where, what, found, cure.
    pub fn validate(self) -> Result<Network, Error> {
        require(
            self.schema == GRAPH_SCHEMA,
            "schema",
            || format!("must be \"{GRAPH_SCHEMA}\", found \"{}\"", self.schema),
            "Write the document with this version of autopar.",
        )?;
        require(
            !self.operators.is_empty(),
            "operators",
            || "must not be empty".to_owned(),
            "Give a graph that computes something.",
        )?;
        let tensors = self.tensors_by_name()?;
        self.unique_operators()?;
        let (inputs, outputs) = (
            self.places(&tensors, "inputs", |operator| &operator.inputs)?,
            self.places(&tensors, "outputs", |operator| &operator.outputs)?,
        );
        let producer = self.producers(&outputs)?;
        let mut readers = vec![vec![]; self.tensors.len()];
        for (operator, read) in inputs.iter().enumerate() {
            for (place, &tensor) in read.iter().enumerate() {
                readers[tensor].push((operator, place));
            }
        }
        let order = self.ordered(&inputs, &outputs, &producer, &readers)?;
        let shapes = |places: &[usize]| -> Vec<&[u64]> {
            places.iter().map(|&t| self.tensors[t].shape.as_slice()).collect()
        };
        let mut loops = Vec::with_capacity(self.operators.len());
        for (i, operator) in self.operators.iter().enumerate() {
            let found = operator.form.loops(&shapes(&inputs[i]), &shapes(&outputs[i]));
            loops.push(found.map_err(|e| e.under(&self.operator_path(i)))?);
        }
        let uneven = Vec::new();
        Ok(Network { graph: self, order, loops, inputs, outputs, producer, readers, uneven })
    }

    fn operator_path(&self, i: usize) -> String {
        format!("operators[{i}] \"{}\"", self.operators[i].name)
    }

    fn tensors_by_name(&self) -> Result<HashMap<&str, usize>, Error> {
        let mut places = HashMap::with_capacity(self.tensors.len());
        for (i, tensor) in self.tensors.iter().enumerate() {
            let path = format!("tensors[{i}]");
            require(
                !tensor.name.is_empty() && places.insert(tensor.name.as_str(), i).is_none(),
                &path,
                || format!("the name \"{}\" is empty or used twice", tensor.name),
                "Give each tensor a name of its own.",
            )?;
            for (axis, &size) in tensor.shape.iter().enumerate() {
                require(
                    size > 0,
                    &format!("{path}.shape[{axis}]"),
                    || format!("dimension {axis} of \"{}\" must be positive, found 0", tensor.name),
                    "Settle every dimension before sharding.",
                )?;
            }
            let bytes = tensor
                .shape
                .iter()
                .try_fold(tensor.dtype.bytes(), |bytes, &size| bytes.checked_mul(size));
            require(
                bytes.is_some_and(|bytes| bytes <= 1 << 50) && tensor.shape.len() <= 16,
                &format!("{path}.shape"),
                || {
                    format!(
                        "\"{}\" must have at most 2^50 bytes in 16 dimensions, found {:?}",
                        tensor.name, tensor.shape
                    )
                },
                "Check the shape.",
            )?;
        }
        Ok(places)
    }

    fn unique_operators(&self) -> Result<(), Error> {
        let mut names = HashMap::with_capacity(self.operators.len());
        for (i, operator) in self.operators.iter().enumerate() {
            require(
                !operator.name.is_empty() && names.insert(operator.name.as_str(), i).is_none(),
                &format!("operators[{i}].name"),
                || format!("the name \"{}\" is empty or used twice", operator.name),
                "Give each operator a name of its own.",
            )?;
            require(
                !operator.outputs.is_empty(),
                &format!("{}.outputs", self.operator_path(i)),
                || "must not be empty".to_owned(),
                "Leave out operators that compute nothing.",
            )?;
        }
        Ok(())
    }

    fn places(
        &self,
        tensors: &HashMap<&str, usize>,
        side: &str,
        names: impl Fn(&Operator) -> &Vec<String>,
    ) -> Result<Vec<Vec<usize>>, Error> {
        let mut all = Vec::with_capacity(self.operators.len());
        for (i, operator) in self.operators.iter().enumerate() {
            let mut found = Vec::with_capacity(names(operator).len());
            for (place, name) in names(operator).iter().enumerate() {
                found.push(*tensors.get(name.as_str()).ok_or_else(|| {
                    Error::new(
                        format!("{}.{side}[{place}]", self.operator_path(i)),
                        format!("there is no tensor \"{name}\""),
                        "List it among the tensors.",
                    )
                })?);
            }
            all.push(found);
        }
        Ok(all)
    }

    fn producers(&self, outputs: &[Vec<usize>]) -> Result<Vec<Option<usize>>, Error> {
        let mut producer: Vec<Option<usize>> = vec![None; self.tensors.len()];
        for (i, written) in outputs.iter().enumerate() {
            for &t in written {
                let name = &self.tensors[t].name;
                if let Some(first) = producer[t].replace(i) {
                    return Err(Error::new(
                        format!("{}.outputs", self.operator_path(i)),
                        format!(
                            "\"{name}\" is already written by \"{}\"",
                            self.operators[first].name
                        ),
                        "Give each result a tensor of its own.",
                    ));
                }
            }
        }
        for (t, tensor) in self.tensors.iter().enumerate() {
            let written = producer[t].is_some();
            require(
                written == (tensor.role == Role::Activation),
                &format!("tensors[{t}].role"),
                || {
                    let found = if written { "one writes" } else { "no operator writes" };
                    format!(
                        "only an activation is written by an operator; {found} \"{}\"",
                        tensor.name
                    )
                },
                "Mark what operators write as activation, and the rest as input, parameter or constant.",
            )?;
        }
        Ok(producer)
    }

    /// Kahn's order, earlier operators of the list first; an error names a cycle if there is one.
    fn ordered(
        &self,
        inputs: &[Vec<usize>],
        outputs: &[Vec<usize>],
        producer: &[Option<usize>],
        readers: &[Vec<(usize, usize)>],
    ) -> Result<Vec<usize>, Error> {
        let mut waiting: Vec<usize> = inputs
            .iter()
            .map(|read| read.iter().filter(|&&t| producer[t].is_some()).count())
            .collect();
        let mut ready: std::collections::BTreeSet<usize> =
            (0..waiting.len()).filter(|&i| waiting[i] == 0).collect();
        let mut order = Vec::with_capacity(waiting.len());
        while let Some(i) = ready.pop_first() {
            order.push(i);
            for &(reader, _) in outputs[i].iter().flat_map(|&t| &readers[t]) {
                waiting[reader] -= 1;
                if waiting[reader] == 0 {
                    ready.insert(reader);
                }
            }
        }
        let Some(start) = waiting.iter().position(|&left| left > 0) else { return Ok(order) };
        // Each operator that waits reads from another that waits: going back must come round.
        let mut path = vec![start];
        let cycle = loop {
            let last = path[path.len() - 1];
            let before = inputs[last]
                .iter()
                .filter_map(|&t| producer[t])
                .find(|&p| waiting[p] > 0)
                .unwrap_or(last);
            if let Some(from) = path.iter().position(|&seen| seen == before) {
                break path.split_off(from);
            }
            path.push(before);
        };
        let names: Vec<_> =
            cycle.iter().rev().take(8).map(|&i| self.operators[i].name.as_str()).collect();
        Err(Error::new(
            "operators",
            format!("{} wait for each other in a cycle: {}", cycle.len(), names.join(", ")),
            "Unroll loops and break the cycle.",
        ))
    }
}
