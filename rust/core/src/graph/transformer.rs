//! The graph of a catalog model: a decoder transformer's operators, forward, with the loss in training.
//!
//! Projections that share their input are one product whose columns are interleaved by key head (query, key and
//! value) or by channel (gate and up), as Megatron-LM stores them, so that one cut of the columns gives each device whole
//! heads and matching channels.

mod attention;
mod mlp;

use super::form::Form;
use super::ir::{Dtype, Gradients, Graph, Operator, Role, Tensor, GRAPH_SCHEMA};
use crate::error::{require, Error};
use crate::spec::model::{LayerKind, Model, Norm, Position};
use crate::spec::workload::Precision;
use serde::{Deserialize, Serialize};

/// What is asked of a model's graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelGraph {
    /// The model.
    pub model: Model,
    /// Sequences that all devices work on together.
    pub batch: u64,
    /// Tokens in one sequence.
    pub sequence_length: u64,
    /// Number format of weights and activations.
    pub precision: Precision,
    /// The first so many layers; `null` for all.
    pub layers: Option<u32>,
    /// With the loss, and gradients implied.
    pub training: bool,
    /// The embedding's rows are padded to a multiple of this.
    pub vocab_multiple: u64,
}

/// The graph of a model.
///
/// # Errors
/// A model that is wrong, or whose layers have no graph here.
pub fn graph(asked: &ModelGraph) -> Result<Graph, Error> {
    let model = &asked.model;
    model.validate().map_err(|e| e.under("model"))?;
    check(asked)?;
    let dtype = match asked.precision {
        Precision::Bf16 | Precision::Fp8 | Precision::Fp4 => Dtype::Bfloat16,
        Precision::Fp16 => Dtype::Float16,
        Precision::Tf32 | Precision::Fp32 => Dtype::Float32,
    };
    let mut build = Build { asked, dtype, tensors: vec![], operators: vec![] };
    let (b, s, h) = (asked.batch, asked.sequence_length, model.hidden);
    let vocab = model.vocab.next_multiple_of(asked.vocab_multiple);
    let ids = build.tensor("tokens", &[b, s], Dtype::Int32, Role::Input);
    let table = build.weight("embedding", &[vocab, h]);
    let mut x = build.add("embed", "Gather", Form::Gather { axis: 0 }, &[&table, &ids], &[b, s, h]);
    if model.position == Position::Learned && model.position_rows > 0 {
        let rows = build.weight("positions", &[model.position_rows, h]);
        let cut = Form::Slice { axes: vec![0] };
        let used = build.add("positions.used", "Slice", cut, &[&rows], &[s, h]);
        x = build.add("positions.add", "Add", Form::Elementwise {}, &[&x, &used], &[b, s, h]);
    }
    if model.embedding_norm {
        x = build.norm("embedding.norm", &x, &[b, s, h]);
    }
    for layer in 0..asked.layers.unwrap_or(model.layers) {
        x = build.layer(layer, &x);
    }
    x = build.norm("norm", &x, &[b, s, h]);
    let head = if model.tied_embeddings { table } else { build.weight("head", &[vocab, h]) };
    let product = Form::Matmul { transpose_a: false, transpose_b: true };
    let mut logits = build.add("logits", "MatMul", product, &[&x, &head], &[b, s, vocab]);
    if model.head_bias {
        logits = build.bias("logits.bias", &logits, &[b, s, vocab]);
    }
    if asked.training {
        let labels = build.tensor("labels", &[b, s], Dtype::Int32, Role::Input);
        let loss = Form::CrossEntropy {};
        build.add("loss", "CrossEntropy", loss, &[&logits, &labels], &[]);
    }
    Ok(Graph {
        schema: GRAPH_SCHEMA.to_owned(),
        name: model.name.clone(),
        gradients: if asked.training { Gradients::Implied } else { Gradients::None },
        tensors: build.tensors,
        operators: build.operators,
    })
}

fn check(asked: &ModelGraph) -> Result<(), Error> {
    let model = &asked.model;
    for (value, path) in [
        (asked.batch, "batch"),
        (asked.sequence_length, "sequence_length"),
        (asked.vocab_multiple, "vocab_multiple"),
        (u64::from(asked.layers.unwrap_or(1)), "layers"),
    ] {
        require(
            (1..=1 << 30).contains(&value),
            path,
            || format!("must be from 1 to 2^30, found {value}"),
            "Give a whole number.",
        )?;
    }
    let layers = asked.layers.unwrap_or(model.layers);
    require(
        layers <= model.layers,
        "layers",
        || format!("must be at most the model's {}, found {layers}", model.layers),
        "Leave it out for all layers.",
    )?;
    let positions = model.position == Position::Learned && model.position_rows > 0;
    let lacks = [
        (model.mla.is_some() && model.qkv_bias, "latent attention with biases"),
        (model.attention_sinks, "attention sinks"),
        (model.position == Position::Relative, "relative positions"),
    ];
    if let Some((_, what)) = lacks.into_iter().find(|(has, _)| *has) {
        return Err(Error::new(
            "model",
            format!("\"{}\" has {what}, which the operator level does not build", model.name),
            "Export the model as ONNX, or choose another model.",
        ));
    }
    require(
        !positions || asked.sequence_length <= model.position_rows,
        "sequence_length",
        || {
            format!(
                "must be at most the {} positions of \"{}\", found {}",
                model.position_rows, model.name, asked.sequence_length
            )
        },
        "Give a shorter sequence.",
    )
}

struct Build<'a> {
    asked: &'a ModelGraph,
    dtype: Dtype,
    tensors: Vec<Tensor>,
    operators: Vec<Operator>,
}

impl Build<'_> {
    fn tensor(&mut self, name: &str, shape: &[u64], dtype: Dtype, role: Role) -> String {
        self.tensors.push(Tensor { name: name.to_owned(), shape: shape.to_vec(), dtype, role });
        name.to_owned()
    }

    fn weight(&mut self, name: &str, shape: &[u64]) -> String {
        self.tensor(name, shape, self.dtype, Role::Parameter)
    }

    /// Adds an operator with one output, which bears its name.
    fn add(
        &mut self,
        name: &str,
        source: &str,
        form: Form,
        inputs: &[&str],
        shape: &[u64],
    ) -> String {
        let output = self.tensor(&format!("{name}.out"), shape, self.dtype, Role::Activation);
        self.operator(name, source, form, inputs, vec![output.clone()]);
        output
    }

    fn operator(
        &mut self,
        name: &str,
        source: &str,
        form: Form,
        inputs: &[&str],
        outputs: Vec<String>,
    ) {
        self.operators.push(Operator {
            name: name.to_owned(),
            source: source.to_owned(),
            form,
            inputs: inputs.iter().map(|&input| input.to_owned()).collect(),
            outputs,
            host: false,
            recompute: false,
        });
    }

    fn norm(&mut self, name: &str, x: &str, shape: &[u64]) -> String {
        let model = &self.asked.model;
        let source = match model.norm {
            Norm::Rmsnorm => "RmsNorm",
            Norm::Layernorm => "LayerNorm",
        };
        let shifted = model.norm_bias;
        self.norm_over_last(name, source, x, shape, shifted)
    }

    fn norm_over_last(
        &mut self,
        name: &str,
        source: &str,
        x: &str,
        shape: &[u64],
        shifted: bool,
    ) -> String {
        let last = shape.len() - 1;
        let mut inputs = vec![x.to_owned()];
        for (vector, there) in [("scale", self.asked.model.norm_weight), ("shift", shifted)] {
            if there {
                inputs.push(self.weight(&format!("{name}.{vector}"), &shape[last..]));
            }
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        self.add(name, source, Form::Norm { axes: vec![last] }, &inputs, shape)
    }

    fn bias(&mut self, name: &str, x: &str, shape: &[u64]) -> String {
        let bias = self.weight(&format!("{name}.weight"), &shape[shape.len() - 1..]);
        self.add(name, "BiasAdd", Form::Elementwise {}, &[x, &bias], shape)
    }

    /// `[b, s, width] x [width, columns]`, with a bias if there is one.
    fn linear(&mut self, name: &str, x: &str, width: u64, columns: u64, biased: bool) -> String {
        let shape = [self.asked.batch, self.asked.sequence_length, columns];
        let weight = self.weight(&format!("{name}.weight"), &[width, columns]);
        let form = Form::Matmul { transpose_a: false, transpose_b: false };
        let product = self.add(name, "MatMul", form, &[x, &weight], &shape);
        if biased {
            self.bias(&format!("{name}.bias"), &product, &shape)
        } else {
            product
        }
    }

    /// What follows the attention: experts, or the dense MLP.
    fn second_half(&mut self, kind: LayerKind, name: &str, x: &str) -> String {
        let model = &self.asked.model;
        match &model.moe {
            Some(moe) if kind.moe => self.experts(name, x, moe),
            _ => self.mlp(name, x, model.ffn_hidden, model.mlp_bias),
        }
    }

    fn reshape(&mut self, name: &str, x: &str, shape: &[u64]) -> String {
        self.add(name, "Reshape", Form::Reshape {}, &[x], shape)
    }

    fn layer(&mut self, index: u32, x: &str) -> String {
        let (model, name) = (&self.asked.model, format!("layers.{index}"));
        let kind = model.layer_kind(index);
        let window = model.window.filter(|_| kind.windowed).map(|window| window.size);
        let shape = [self.asked.batch, self.asked.sequence_length, model.hidden];
        let before = self.norm(&format!("{name}.attention.norm"), x, &shape);
        let attention = self.attention(&format!("{name}.attention"), &before, window);
        let add = Form::Elementwise {};
        if model.parallel_block {
            let read = if model.norms_per_layer > 1 {
                self.norm(&format!("{name}.mlp.norm"), x, &shape)
            } else {
                before
            };
            let mlp = self.second_half(kind, &format!("{name}.mlp"), &read);
            let both =
                self.add(&format!("{name}.sum"), "Add", add.clone(), &[&attention, &mlp], &shape);
            return self.add(&format!("{name}.residual"), "Add", add, &[x, &both], &shape);
        }
        let sandwich = model.norms_per_layer > 2;
        let attention = if sandwich {
            self.norm(&format!("{name}.attention.after"), &attention, &shape)
        } else {
            attention
        };
        let x = self.add(
            &format!("{name}.attention.residual"),
            "Add",
            add.clone(),
            &[x, &attention],
            &shape,
        );
        let before = self.norm(&format!("{name}.mlp.norm"), &x, &shape);
        let mut mlp = self.second_half(kind, &format!("{name}.mlp"), &before);
        if sandwich {
            mlp = self.norm(&format!("{name}.mlp.after"), &mlp, &shape);
        }
        self.add(&format!("{name}.mlp.residual"), "Add", add, &[&x, &mlp], &shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::model::{Activation, Mla, Moe, QkNorm, Window};
    use crate::testing::gpt;

    fn asked(model: Model) -> ModelGraph {
        ModelGraph {
            model,
            batch: 2,
            sequence_length: 128,
            precision: Precision::Bf16,
            layers: None,
            training: true,
            vocab_multiple: 1,
        }
    }

    fn parameters(graph: &Graph) -> u64 {
        let weights = graph.tensors.iter().filter(|t| t.role == Role::Parameter);
        weights.map(|t| t.shape.iter().product::<u64>()).sum()
    }

    #[test]
    fn the_graph_has_the_model_s_parameters() {
        let plain = gpt(3, 512);
        let mut llama = gpt(3, 512);
        llama.norm = Norm::Rmsnorm;
        llama.norm_bias = false;
        llama.kv_heads = 2;
        llama.position = Position::Rope;
        llama.position_rows = 0;
        llama.activation = Activation::Swiglu;
        llama.tied_embeddings = false;
        (llama.qkv_bias, llama.o_bias, llama.mlp_bias) = (false, false, false);
        llama.qk_norm = QkNorm::Head;
        let mut falcon = gpt(3, 512);
        falcon.parallel_block = true;
        falcon.norms_per_layer = 1;
        falcon.qk_norm = QkNorm::Full;
        let mut gemma = llama.clone();
        gemma.norms_per_layer = 4;
        let mut mixture = llama.clone();
        mixture.moe = Some(Moe {
            experts: 8,
            topk: 2,
            expert_ffn: 96,
            shared_ffn: 64,
            first_dense: 1,
            every: 1,
            router_bias: true,
            expert_bias: true,
            shared_gate: true,
            node_limit: 0,
            capacity_factor: 0.0,
        });
        let mut latent = mixture.clone();
        latent.qk_norm = QkNorm::None;
        latent.mla = Some(Mla {
            q_lora_rank: 48,
            kv_lora_rank: 32,
            qk_nope_dim: 24,
            qk_rope_dim: 8,
            v_dim: 16,
        });
        let mut direct = latent.clone();
        direct.mla.iter_mut().for_each(|mla| mla.q_lora_rank = 0);
        let mut weightless = llama.clone();
        weightless.norm_weight = false;
        for model in [plain, llama, falcon, gemma, mixture, latent, direct, weightless] {
            let graph = graph(&asked(model.clone())).expect("a graph");
            assert_eq!(parameters(&graph), model.parameters());
            graph.validate().expect("a valid graph");
        }
    }

    #[test]
    fn layers_outside_the_global_ones_see_a_window() {
        let mut model = gpt(4, 512);
        model.window = Some(Window { size: 32, global_every: 2 });
        let graph = graph(&asked(model)).expect("a graph");
        let windows: Vec<Option<u64>> = graph
            .operators
            .iter()
            .filter_map(|operator| match operator.form {
                Form::Attention { window, .. } => Some(window),
                _ => None,
            })
            .collect();
        assert_eq!(windows, [Some(32), None, Some(32), None]);
    }

    #[test]
    fn tokens_reach_their_experts_in_even_shares() {
        // 128 tokens that each visit 2 of 8 experts: 32 a sequence and expert.
        let mut model = gpt(1, 512);
        model.moe = Some(crate::testing::moe(8, 2, 96));
        let graph = graph(&asked(model)).expect("a graph");
        let shape = |name: &str| {
            let found = graph.tensors.iter().find(|t| t.name == name);
            found.map(|t| t.shape.clone()).unwrap_or_default()
        };
        assert_eq!(shape("layers.0.mlp.dispatch.out"), [2, 8, 32, 512]);
        assert_eq!(shape("layers.0.mlp.rows.out"), [8, 64, 512]);
        assert_eq!(shape("layers.0.mlp.combine.out"), [2, 128, 2, 512]);
    }

    #[test]
    fn a_model_without_a_graph_is_refused() {
        let mut model = gpt(3, 512);
        model.position = Position::Relative;
        let error = graph(&asked(model)).expect_err("relative positions");
        assert!(error.what.contains("relative positions"));
    }
}
