//! The parameters of a model one by one: how large each is, and over which ranks it is cut.
//!
//! Query, key and value, and gate and up, are parameters of their own, as MindFormers stores them; an expert's are its own.

use super::model::{LayerKind, Model, Position, QkNorm};

/// Parameters that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensors {
    /// How many there are in a layer.
    pub count: u64,
    /// Elements of each.
    pub elements: u64,
    /// Over which ranks each is cut.
    pub cut: Cut,
    /// The side of a matrix that is not cut, and 0 of vectors and of a router's scores.
    pub side: u64,
}

/// Over which ranks a parameter is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// None: each rank has all of it.
    Whole,
    /// Those of a layer.
    Tensor,
    /// Those of an expert; a rank has some of the experts.
    Expert,
}

impl Model {
    /// The parameters of a layer of this kind; they add up to [`Model::layer_parameters`].
    pub fn layer_tensors(&self, kind: LayerKind) -> Vec<Tensors> {
        let mut found = Listed(Vec::new());
        self.attention_tensors(&mut found);
        self.norm_tensors(&mut found, u64::from(self.norms_per_layer));
        match (&self.moe, kind.moe) {
            (Some(moe), true) => {
                let experts = u64::from(moe.experts);
                self.mlp_tensors(&mut found, experts, moe.expert_ffn, moe.expert_bias, Cut::Expert);
                found.add(1, self.hidden * experts, Cut::Whole);
                found.add(u64::from(moe.router_bias), experts, Cut::Whole);
                if moe.shared_ffn > 0 {
                    self.mlp_tensors(&mut found, 1, moe.shared_ffn, moe.expert_bias, Cut::Tensor);
                    found.add(u64::from(moe.shared_gate), self.hidden, Cut::Whole);
                }
            }
            _ => self.mlp_tensors(&mut found, 1, self.ffn_hidden, self.mlp_bias, Cut::Tensor),
        }
        found.0
    }

    fn attention_tensors(&self, found: &mut Listed) {
        let (h, a, k, d) =
            (self.hidden, u64::from(self.heads), u64::from(self.kv_heads), self.head_dim);
        if let Some(m) = &self.mla {
            let qk = m.qk_nope_dim + m.qk_rope_dim;
            if m.q_lora_rank > 0 {
                found.matrices(1, h, m.q_lora_rank, Cut::Whole);
                found.add(1, m.q_lora_rank, Cut::Whole);
                found.matrices(1, m.q_lora_rank, a * qk, Cut::Tensor);
            } else {
                found.matrices(1, h, a * qk, Cut::Tensor);
            }
            found.matrices(1, h, m.kv_lora_rank + m.qk_rope_dim, Cut::Whole);
            found.add(1, m.kv_lora_rank, Cut::Whole);
            found.matrices(1, m.kv_lora_rank, a * (m.qk_nope_dim + m.v_dim), Cut::Tensor);
            found.matrices(1, h, a * m.v_dim, Cut::Tensor);
        } else {
            found.matrices(2, h, a * d, Cut::Tensor);
            found.matrices(2, h, k * d, Cut::Tensor);
        }
        match &self.mla {
            _ if !self.qkv_bias => {}
            Some(m) => found.add(1, m.latents(), Cut::Whole),
            None => {
                found.add(1, a * d, Cut::Tensor);
                found.add(2, k * d, Cut::Tensor);
            }
        }
        found.add(u64::from(self.o_bias), h, Cut::Whole);
        match self.qk_norm {
            QkNorm::None => {}
            _ if !self.norm_weight => {}
            QkNorm::Head => found.add(2, d, Cut::Whole),
            QkNorm::Full => {
                found.add(1, a * d, Cut::Tensor);
                found.add(1, k * d, Cut::Tensor);
            }
        }
        found.add(u64::from(self.attention_sinks), a, Cut::Tensor);
        found.matrices(u64::from(self.position == Position::Relative), h, h, Cut::Tensor);
    }

    fn mlp_tensors(&self, found: &mut Listed, copies: u64, ffn: u64, bias: bool, cut: Cut) {
        let inputs = if self.activation.gated() { 2 } else { 1 };
        found.matrices(copies * (inputs + 1), self.hidden, ffn, cut);
        if bias {
            found.add(copies * inputs, ffn, cut);
            let output = if cut == Cut::Expert { Cut::Expert } else { Cut::Whole };
            found.add(copies, self.hidden, output);
        }
    }

    fn norm_tensors(&self, found: &mut Listed, norms: u64) {
        found.add(norms * self.norm_vectors(), self.hidden, Cut::Whole);
    }
}

struct Listed(Vec<Tensors>);

impl Listed {
    /// Vectors, or what is stepped like them.
    fn add(&mut self, count: u64, elements: u64, cut: Cut) {
        if count > 0 {
            self.0.push(Tensors { count, elements, cut, side: 0 });
        }
    }

    /// Matrices of `side` by `other`, of which the latter is cut.
    fn matrices(&mut self, count: u64, side: u64, other: u64, cut: Cut) {
        if count > 0 {
            self.0.push(Tensors { count, elements: side * other, cut, side });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::model::{Activation, Mla, Moe};
    use crate::testing::gpt;

    fn models() -> Vec<Model> {
        let plain = gpt(3, 512);
        let mut full = plain.clone();
        (full.qkv_bias, full.o_bias, full.mlp_bias) = (true, true, true);
        (full.qk_norm, full.attention_sinks) = (QkNorm::Full, true);
        full.position = Position::Relative;
        full.norms_per_layer = 4;
        let mut gated = plain.clone();
        (gated.activation, gated.kv_heads, gated.qk_norm) = (Activation::Swiglu, 2, QkNorm::Head);
        gated.norm_bias = false;
        let mut weightless = gated.clone();
        weightless.norm_weight = false;
        let mut latent = gated.clone();
        latent.qk_norm = QkNorm::None;
        let ranks = |q_lora_rank| Mla {
            q_lora_rank,
            kv_lora_rank: 64,
            qk_nope_dim: 32,
            qk_rope_dim: 16,
            v_dim: 32,
        };
        latent.mla = Some(ranks(0));
        let mut compressed = latent.clone();
        compressed.mla = Some(ranks(96));
        let mut sparse = gated.clone();
        sparse.moe = Some(Moe {
            experts: 8,
            topk: 2,
            expert_ffn: 256,
            expert_bias: true,
            shared_ffn: 128,
            shared_gate: true,
            router_bias: true,
            first_dense: 1,
            every: 1,
            node_limit: 0,
            capacity_factor: 0.0,
        });
        vec![plain, full, gated, weightless, latent, compressed, sparse]
    }

    #[test]
    fn the_tensors_of_a_layer_are_its_parameters() {
        for model in models() {
            for index in 0..model.layers {
                let tensors = model.layer_tensors(model.layer_kind(index));
                let sum: u64 = tensors.iter().map(|t| t.count * t.elements).sum();
                assert_eq!(sum, model.layer_parameters(index), "layer {index} of {model:?}");
            }
        }
    }
}
