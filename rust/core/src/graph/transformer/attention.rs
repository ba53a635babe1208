//! The attention of a layer: grouped heads, or latent attention.

use super::Build;
use crate::graph::form::Form;
use crate::graph::ir::Role;
use crate::spec::model::{Mla, Position, QkNorm};

impl Build<'_> {
    /// Attention of a layer, which sees all places or those of a window.
    pub(super) fn attention(&mut self, name: &str, x: &str, window: Option<u64>) -> String {
        if let Some(mla) = &self.asked.model.mla {
            return self.latent_attention(name, x, mla, window);
        }
        let model = &self.asked.model;
        let (b, s, d) = (self.asked.batch, self.asked.sequence_length, model.head_dim);
        let (heads, groups) = (u64::from(model.heads), u64::from(model.kv_heads));
        let each = heads / groups;
        let columns = groups * (each + 2) * d;
        let fused = self.linear(&format!("{name}.qkv"), x, model.hidden, columns, model.qkv_bias);
        let by_group =
            self.reshape(&format!("{name}.by_group"), &fused, &[b, s, groups, (each + 2) * d]);
        let parts = [("q", each * d), ("k", d), ("v", d)].map(|(part, width)| {
            let shape = [b, s, groups, width];
            self.tensor(&format!("{name}.{part}.part"), &shape, self.dtype, Role::Activation)
        });
        let split = Form::Split { axis: 3 };
        self.operator(&format!("{name}.split"), "Split", split, &[&by_group], parts.to_vec());
        let [q, k, v] = parts;
        let mut q = self.reshape(&format!("{name}.q.heads"), &q, &[b, s, heads, d]);
        let mut k = k;
        match model.qk_norm {
            QkNorm::None => {}
            QkNorm::Head => {
                q = self.norm_over_last(
                    &format!("{name}.q.norm"),
                    "RmsNorm",
                    &q,
                    &[b, s, heads, d],
                    false,
                );
                k = self.norm_over_last(
                    &format!("{name}.k.norm"),
                    "RmsNorm",
                    &k,
                    &[b, s, groups, d],
                    false,
                );
            }
            QkNorm::Full => {
                q = self.norm_over_heads(&format!("{name}.q.norm"), &q, &[b, s, heads, d]);
                k = self.norm_over_heads(&format!("{name}.k.norm"), &k, &[b, s, groups, d]);
            }
        }
        if model.position == Position::Rope {
            // Channels are turned in pairs: places move along the head's width.
            let turn = Form::Slice { axes: vec![3] };
            q = self.add(&format!("{name}.q.rope"), "Rope", turn.clone(), &[&q], &[b, s, heads, d]);
            k = self.add(&format!("{name}.k.rope"), "Rope", turn, &[&k], &[b, s, groups, d]);
        }
        let widths = (d, d);
        self.core(name, [&q, &k, &v], groups, widths, window)
    }

    /// Queries, keys and values `[b, s, heads, width]` to the layer's width; keys and values of so many heads.
    fn core(
        &mut self,
        name: &str,
        [q, k, v]: [&str; 3],
        groups: u64,
        (qk, value): (u64, u64),
        window: Option<u64>,
    ) -> String {
        let model = &self.asked.model;
        let (b, s, heads) = (self.asked.batch, self.asked.sequence_length, u64::from(model.heads));
        let by_head = Form::Transpose { permutation: vec![0, 2, 1, 3] };
        let [q, k, v] = [("q", q, heads, qk), ("k", k, groups, qk), ("v", v, groups, value)].map(
            |(part, x, heads, width)| {
                let name = format!("{name}.{part}.turn");
                self.add(&name, "Transpose", by_head.clone(), &[x], &[b, heads, s, width])
            },
        );
        let form = Form::Attention { causal: true, window };
        let shape = [b, heads, s, value];
        let mixed =
            self.add(&format!("{name}.core"), "FlashAttention", form, &[&q, &k, &v], &shape);
        let shape = [b, s, heads, value];
        let back = self.add(&format!("{name}.turn"), "Transpose", by_head, &[&mixed], &shape);
        let flat = self.reshape(&format!("{name}.flat"), &back, &[b, s, heads * value]);
        self.linear(&format!("{name}.out"), &flat, heads * value, model.hidden, model.o_bias)
    }

    /// Latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): queries and keys with values come from narrow
    /// latents, and all heads share the part of the key that is turned by its place.
    fn latent_attention(&mut self, name: &str, x: &str, mla: &Mla, window: Option<u64>) -> String {
        let model = &self.asked.model;
        let (b, s, heads) = (self.asked.batch, self.asked.sequence_length, u64::from(model.heads));
        let (nope, rope, qk) =
            (mla.qk_nope_dim, mla.qk_rope_dim, mla.qk_nope_dim + mla.qk_rope_dim);
        let turn = Form::Slice { axes: vec![3] };
        let side = Form::Concat { axis: 3 };

        let q = if mla.q_lora_rank > 0 {
            let rank = mla.q_lora_rank;
            let down = self.linear(&format!("{name}.q.down"), x, model.hidden, rank, false);
            let norm = format!("{name}.q.latent.norm");
            let latent = self.norm_over_last(&norm, "RmsNorm", &down, &[b, s, rank], false);
            self.linear(&format!("{name}.q.up"), &latent, rank, heads * qk, false)
        } else {
            self.linear(&format!("{name}.q"), x, model.hidden, heads * qk, false)
        };
        let q = self.reshape(&format!("{name}.q.heads"), &q, &[b, s, heads, qk]);
        let [fixed, turned] =
            self.split(&format!("{name}.q.split"), &q, 3, [nope, rope], &[b, s, heads, qk]);
        let turned = self.add(
            &format!("{name}.q.rope"),
            "Rope",
            turn.clone(),
            &[&turned],
            &[b, s, heads, rope],
        );
        let q = self.add(
            &format!("{name}.q.joined"),
            "Concat",
            side.clone(),
            &[&fixed, &turned],
            &[b, s, heads, qk],
        );

        let rank = mla.kv_lora_rank;
        let down = self.linear(&format!("{name}.kv.down"), x, model.hidden, rank + rope, false);
        let [latent, shared] =
            self.split(&format!("{name}.kv.parts"), &down, 2, [rank, rope], &[b, s, rank + rope]);
        let norm = format!("{name}.kv.latent.norm");
        let latent = self.norm_over_last(&norm, "RmsNorm", &latent, &[b, s, rank], false);
        let columns = heads * (nope + mla.v_dim);
        let up = self.linear(&format!("{name}.kv.up"), &latent, rank, columns, false);
        let shape = [b, s, heads, nope + mla.v_dim];
        let up = self.reshape(&format!("{name}.kv.heads"), &up, &shape);
        let [fixed, v] = self.split(&format!("{name}.kv.split"), &up, 3, [nope, mla.v_dim], &shape);
        let shared = self.reshape(&format!("{name}.k.shared"), &shared, &[b, s, 1, rope]);
        let shared =
            self.add(&format!("{name}.k.rope"), "Rope", turn, &[&shared], &[b, s, 1, rope]);
        let copies = Form::Elementwise {};
        let turned = self.add(
            &format!("{name}.k.copies"),
            "Expand",
            copies,
            &[&shared],
            &[b, s, heads, rope],
        );
        let k = self.add(
            &format!("{name}.k.joined"),
            "Concat",
            side,
            &[&fixed, &turned],
            &[b, s, heads, qk],
        );
        self.core(name, [&q, &k, &v], heads, (qk, mla.v_dim), window)
    }

    /// The two parts of a tensor along an axis.
    fn split(
        &mut self,
        name: &str,
        x: &str,
        axis: usize,
        sizes: [u64; 2],
        shape: &[u64],
    ) -> [String; 2] {
        let mut place = 0;
        let parts = sizes.map(|size| {
            let mut shape = shape.to_vec();
            shape[axis] = size;
            place += 1;
            self.tensor(&format!("{name}.{place}"), &shape, self.dtype, Role::Activation)
        });
        self.operator(name, "Split", Form::Split { axis }, &[x], parts.to_vec());
        parts
    }

    /// A norm over all channels of all heads at once.
    fn norm_over_heads(&mut self, name: &str, x: &str, shape: &[u64; 4]) -> String {
        let scale = self.weight(&format!("{name}.scale"), &shape[2..]);
        self.add(name, "RmsNorm", Form::Norm { axes: vec![2, 3] }, &[x, &scale], shape)
    }
}
