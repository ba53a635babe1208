//! The model: a decoder transformer by its dimensions, and what follows from them alone.

use crate::error::{require, Error};
use serde::{Deserialize, Serialize};

/// A decoder transformer. Dimensions are element counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Name in the catalog, or the file's stem.
    pub name: String,
    /// Number of transformer layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Inner width of a dense MLP (one of the two input projections when gated).
    pub ffn_hidden: u64,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; equal to `heads` without grouping.
    pub kv_heads: u32,
    /// Width of one query and key head.
    pub head_dim: u64,
    /// Rows of the embedding as published, before any padding.
    pub vocab: u64,
    /// Longest sequence it was trained for.
    pub max_positions: u64,
    /// Kind of normalisation.
    pub norm: Norm,
    /// Whether a norm has a weight for each channel.
    pub norm_weight: bool,
    /// Whether it has a bias for each.
    pub norm_bias: bool,
    /// Norms in one layer: 1 in a parallel block with a shared norm, 4 with sandwich norms.
    pub norms_per_layer: u32,
    /// How positions enter.
    pub position: Position,
    /// Rows of a learned position table; 0 without one.
    pub position_rows: u64,
    /// The MLP's nonlinearity; gated kinds have two input projections.
    pub activation: Activation,
    /// Whether the output head shares the embedding's weights.
    pub tied_embeddings: bool,
    /// Bias of the query, key and value projections.
    pub qkv_bias: bool,
    /// Bias of the attention output projection.
    pub o_bias: bool,
    /// Bias of the MLP projections.
    pub mlp_bias: bool,
    /// Bias of the output head.
    pub head_bias: bool,
    /// Norm on queries and keys.
    pub qk_norm: QkNorm,
    /// Attention and MLP read the same normalised input and are added together.
    pub parallel_block: bool,
    /// A norm directly after the embedding (BLOOM, Gemma's scaling is not one).
    pub embedding_norm: bool,
    /// One learned sink logit a query head (gpt-oss).
    pub attention_sinks: bool,
    /// Queries and keys are multiplied by a factor as they are rotated (YaRN: gpt-oss, not DeepSeek, whose factors cancel).
    pub scaled_rotation: bool,
    /// Multi-head latent attention; replaces the plain projections.
    pub mla: Option<Mla>,
    /// Mixture of experts; replaces the MLP of some layers.
    pub moe: Option<Moe>,
    /// Sliding-window attention in some layers.
    pub window: Option<Window>,
}

/// Kind of normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Norm {
    /// Root-mean-square norm.
    Rmsnorm,
    /// Layer norm.
    Layernorm,
}

/// How positions enter the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Position {
    /// Rotary embedding of queries and keys.
    Rope,
    /// A learned table added to the embedding.
    Learned,
    /// Linear biases on the attention scores.
    Alibi,
    /// Transformer-XL relative positions: one extra `hidden x hidden` projection a layer.
    Relative,
}

/// The MLP's nonlinearity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// SiLU-gated.
    Swiglu,
    /// SiLU-gated, both halves clamped and the linear one raised by 1 (gpt-oss).
    #[serde(rename = "clamped_swiglu")]
    ClampedSwiglu,
    /// GELU-gated.
    Geglu,
    /// Plain GELU.
    Gelu,
    /// Plain ReLU.
    Relu,
    /// Squared ReLU.
    Relu2,
}

impl Activation {
    /// Whether the MLP has a second input projection as a gate.
    pub fn gated(self) -> bool {
        match self {
            Activation::Swiglu | Activation::ClampedSwiglu | Activation::Geglu => true,
            Activation::Gelu | Activation::Relu | Activation::Relu2 => false,
        }
    }
}

/// Norm on queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QkNorm {
    /// None.
    None,
    /// One weight vector a projection, shared by its heads.
    Head,
    /// A weight for every channel of every head.
    Full,
}

/// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mla {
    /// Rank of the query compression; 0 for a direct projection.
    pub q_lora_rank: u64,
    /// Rank of the joint key and value compression.
    pub kv_lora_rank: u64,
    /// Channels of a head without position.
    pub qk_nope_dim: u64,
    /// Channels of a head with rotary position, shared by all heads in the key.
    pub qk_rope_dim: u64,
    /// Channels of a value head.
    pub v_dim: u64,
}

impl Mla {
    /// Channels of what the projections to latents make, which alone have biases (huggingface/transformers,
    /// modeling_deepseek_v3.py: `attention_bias`).
    pub fn latents(&self) -> u64 {
        self.q_lora_rank + self.kv_lora_rank + self.qk_rope_dim
    }
}

/// Mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moe {
    /// Routed experts in a layer.
    pub experts: u32,
    /// Routed experts a token visits.
    pub topk: u32,
    /// Inner width of one routed expert.
    pub expert_ffn: u64,
    /// Inner width of all shared experts together; 0 without one.
    pub shared_ffn: u64,
    /// Leading layers that keep a dense MLP.
    pub first_dense: u32,
    /// Every how many layers one is MoE: 1 for all, 2 for every second.
    pub every: u32,
    /// Bias of the router, learned or kept for balance.
    pub router_bias: bool,
    /// Biases in the experts' projections.
    pub expert_bias: bool,
    /// A sigmoid gate of width one on the shared expert (Qwen2-MoE).
    pub shared_gate: bool,
    /// Nodes on which the experts of one token may lie; 0 for no limit (DeepSeek-V2, arXiv:2405.04434, section 2.2.2).
    pub node_limit: u32,
    /// Tokens that every expert takes, as a multiple of the mean: what is beyond is dropped, what lacks is padded. 0 where none is
    /// dropped.
    pub capacity_factor: f64,
}

/// Sliding-window attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Positions a query sees.
    pub size: u64,
    /// Every how many layers one sees the whole sequence; 0 for none.
    pub global_every: u32,
}

/// What distinguishes one layer's cost from another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerKind {
    /// The MLP is a mixture of experts.
    pub moe: bool,
    /// Attention is limited to the sliding window.
    pub windowed: bool,
}

impl Model {
    /// Checks every dimension, alone and against the others.
    pub fn validate(&self) -> Result<(), Error> {
        let positive = |v: u64, path: &str| {
            require(v > 0, path, || format!("must be positive, found {v}"), "Give at least 1.")
        };
        require(
            (1..=4096).contains(&self.layers),
            "layers",
            || format!("must be from 1 to 4096, found {}", self.layers),
            "Give the number of transformer layers.",
        )?;
        for (value, path) in [
            (self.hidden, "hidden"),
            (self.ffn_hidden, "ffn_hidden"),
            (u64::from(self.heads), "heads"),
            (u64::from(self.kv_heads), "kv_heads"),
            (self.head_dim, "head_dim"),
            (self.vocab, "vocab"),
            (self.max_positions, "max_positions"),
        ] {
            positive(value, path)?;
            require(
                value <= 1 << 30,
                path,
                || format!("must be at most 2^30, found {value}"),
                "Check the unit: dimensions are element counts.",
            )?;
        }
        require(
            self.heads.is_multiple_of(self.kv_heads),
            "kv_heads",
            || format!("must divide heads ({}), found {}", self.heads, self.kv_heads),
            "Grouped-query attention shares each key head between equally many query heads.",
        )?;
        require(
            self.norms_per_layer <= 8,
            "norms_per_layer",
            || format!("must be at most 8, found {}", self.norms_per_layer),
            "A pre-norm layer has 2, a sandwich-norm layer 4.",
        )?;
        if let Some(mla) = &self.mla {
            positive(mla.kv_lora_rank, "mla.kv_lora_rank")?;
            positive(mla.qk_nope_dim, "mla.qk_nope_dim")?;
            positive(mla.v_dim, "mla.v_dim")?;
        }
        if let Some(moe) = &self.moe {
            positive(u64::from(moe.experts), "moe.experts")?;
            positive(moe.expert_ffn, "moe.expert_ffn")?;
            positive(u64::from(moe.every), "moe.every")?;
            require(
                (1..=moe.experts).contains(&moe.topk),
                "moe.topk",
                || format!("must be from 1 to experts ({}), found {}", moe.experts, moe.topk),
                "A token visits topk of the experts.",
            )?;
            require(
                (0.0..=1e3).contains(&moe.capacity_factor),
                "moe.capacity_factor",
                || format!("must be from 0 to 1000, found {}", moe.capacity_factor),
                "Give 0 where no token is dropped, else about 1.",
            )?;
            require(
                moe.first_dense <= self.layers,
                "moe.first_dense",
                || format!("must be at most layers ({}), found {}", self.layers, moe.first_dense),
                "Give the number of leading dense layers.",
            )?;
        }
        if let Some(window) = &self.window {
            positive(window.size, "window.size")?;
        }
        Ok(())
    }

    /// The kind of layer `index`, counted from 0 at the embedding.
    ///
    /// With `every` = 2 the odd layers are MoE (Llama 4's interleave step); with `global_every` = n
    /// the layers n-1, 2n-1, ... see the whole sequence.
    pub fn layer_kind(&self, index: u32) -> LayerKind {
        let moe =
            self.moe.is_some_and(|m| index >= m.first_dense && (index + 1).is_multiple_of(m.every));
        let windowed = self
            .window
            .is_some_and(|w| w.global_every == 0 || !(index + 1).is_multiple_of(w.global_every));
        LayerKind { moe, windowed }
    }

    /// Parameters of one attention block.
    pub fn attention_parameters(&self) -> u64 {
        let (h, a, k, d) =
            (self.hidden, u64::from(self.heads), u64::from(self.kv_heads), self.head_dim);
        let mut p = match &self.mla {
            Some(m) => {
                let qk = m.qk_nope_dim + m.qk_rope_dim;
                // Low-rank queries carry a norm on the latent; so does the key-value latent.
                let q = if m.q_lora_rank > 0 {
                    h * m.q_lora_rank + m.q_lora_rank * a * qk + m.q_lora_rank
                } else {
                    h * a * qk
                };
                let kv = h * (m.kv_lora_rank + m.qk_rope_dim)
                    + m.kv_lora_rank * a * (m.qk_nope_dim + m.v_dim)
                    + m.kv_lora_rank;
                q + kv + a * m.v_dim * h
            }
            None => h * (a * d) + 2 * h * (k * d) + (a * d) * h,
        };
        if self.qkv_bias {
            p += self.mla.map_or(a * d + 2 * k * d, |m| m.latents());
        }
        if self.o_bias {
            p += h;
        }
        p += match self.qk_norm {
            QkNorm::None => 0,
            _ if !self.norm_weight => 0,
            QkNorm::Head => 2 * d,
            QkNorm::Full => (a + k) * d,
        };
        if self.attention_sinks {
            p += a;
        }
        if self.position == Position::Relative {
            p += h * h;
        }
        p
    }

    /// Parameters of an MLP of inner width `ffn`, with biases if `bias`.
    pub fn mlp_parameters(&self, ffn: u64, bias: bool) -> u64 {
        let inputs = if self.activation.gated() { 2 } else { 1 };
        let weights = (inputs + 1) * self.hidden * ffn;
        weights + if bias { inputs * ffn + self.hidden } else { 0 }
    }

    /// Parameters of one norm over the residual stream.
    pub fn norm_parameters(&self) -> u64 {
        self.norm_vectors() * self.hidden
    }

    /// Its tensors: a weight, a bias, both or none.
    pub fn norm_vectors(&self) -> u64 {
        u64::from(self.norm_weight) + u64::from(self.norm_bias)
    }

    /// Parameters of the router with its bias, and of the shared experts with their gate.
    pub fn router_and_shared_parameters(&self, moe: &Moe) -> u64 {
        let router = self.hidden * u64::from(moe.experts)
            + if moe.router_bias { u64::from(moe.experts) } else { 0 };
        let shared = if moe.shared_ffn > 0 {
            self.mlp_parameters(moe.shared_ffn, moe.expert_bias)
                + if moe.shared_gate { self.hidden } else { 0 }
        } else {
            0
        };
        router + shared
    }

    /// Parameters of layer `index`.
    pub fn layer_parameters(&self, index: u32) -> u64 {
        let kind = self.layer_kind(index);
        let mlp = match (&self.moe, kind.moe) {
            (Some(moe), true) => {
                u64::from(moe.experts) * self.mlp_parameters(moe.expert_ffn, moe.expert_bias)
                    + self.router_and_shared_parameters(moe)
            }
            _ => self.mlp_parameters(self.ffn_hidden, self.mlp_bias),
        };
        self.attention_parameters() + mlp + u64::from(self.norms_per_layer) * self.norm_parameters()
    }

    /// Parameters of the embedding: tokens, learned positions and the norm after them.
    pub fn embedding_parameters(&self) -> u64 {
        (self.vocab + self.position_rows) * self.hidden
            + if self.embedding_norm { self.norm_parameters() } else { 0 }
    }

    /// Parameters of the final norm and an untied output head.
    pub fn head_parameters(&self) -> u64 {
        let weight = if self.tied_embeddings { 0 } else { self.vocab * self.hidden };
        weight + if self.head_bias { self.vocab } else { 0 } + self.norm_parameters()
    }

    /// All parameters, tied weights counted once.
    pub fn parameters(&self) -> u64 {
        self.embedding_parameters()
            + self.head_parameters()
            + (0..self.layers).map(|i| self.layer_parameters(i)).sum::<u64>()
    }

    /// Parameters that one token meets: `topk` of the routed experts instead of all.
    pub fn active_parameters(&self) -> u64 {
        let Some(moe) = &self.moe else { return self.parameters() };
        let idle = u64::from(moe.experts - moe.topk)
            * self.mlp_parameters(moe.expert_ffn, moe.expert_bias);
        let moe_layers = (0..self.layers).filter(|&i| self.layer_kind(i).moe).count() as u64;
        self.parameters() - moe_layers * idle
    }

    /// FLOPs of one training step by the usual convention: forward and twice that backward, no
    /// recompute, full (not causal) attention, output head counted, embedding look-up not.
    ///
    /// Source: Korthikanti et al. 2022, arXiv:2205.05198, appendix A, generalised to GQA and MoE.
    pub fn model_flops(&self, tokens: u64, sequence: u64) -> f64 {
        let layers: f64 = (0..self.layers)
            .map(|i| self.layer_matmul_parameters(i) as f64 + self.attention_products(i, sequence))
            .sum();
        6.0 * tokens as f64 * (layers + (self.vocab * self.hidden) as f64)
    }

    /// Multiplications of a token with keys and values in layer `index`: with every position of the sequence, or of
    /// the window.
    pub fn attention_products(&self, index: u32, sequence: u64) -> f64 {
        let seen = match (&self.window, self.layer_kind(index).windowed) {
            (Some(w), true) => w.size.min(sequence),
            _ => sequence,
        };
        let (qk, v) = self.attention_widths();
        f64::from(self.heads) * (qk + v) as f64 * seen as f64
    }

    /// Widths of a head in the score product and in the value product.
    pub fn attention_widths(&self) -> (u64, u64) {
        match &self.mla {
            Some(m) => (m.qk_nope_dim + m.qk_rope_dim, m.v_dim),
            None => (self.head_dim, self.head_dim),
        }
    }

    /// Weights that a token is multiplied with in layer `index`.
    pub fn layer_matmul_parameters(&self, index: u32) -> u64 {
        let idle = match (&self.moe, self.layer_kind(index).moe) {
            (Some(m), true) => {
                u64::from(m.experts - m.topk) * self.mlp_parameters(m.expert_ffn, m.expert_bias)
            }
            _ => 0,
        };
        self.layer_parameters(index) - idle
    }
}
