//! The second half of a layer: a dense MLP, or experts with a router.

use super::Build;
use crate::graph::form::Form;
use crate::graph::ir::{Dtype, Role};
use crate::spec::model::{Activation, Moe};

/// What an MLP works on: rows `[.., width]`, and whether each entry of the leading axis has weights of its own.
struct Rows<'a> {
    leading: &'a [u64],
    experts: bool,
}

impl Rows<'_> {
    fn shape(&self, last: &[u64]) -> Vec<u64> {
        [self.leading, last].concat()
    }
}

impl Build<'_> {
    /// The MLP of a layer, of an inner width.
    pub(super) fn mlp(&mut self, name: &str, x: &str, inner: u64, biased: bool) -> String {
        let leading = [self.asked.batch, self.asked.sequence_length];
        self.mlp_of(name, x, &Rows { leading: &leading, experts: false }, inner, biased)
    }

    /// Experts with a router. Tokens of one sequence choose together (GShard, arXiv:2006.16668): each expert has room for
    /// its even share of a sequence, rounded up, and tokens go to the devices of their experts and back by all-to-all.
    pub(super) fn experts(&mut self, name: &str, x: &str, moe: &Moe) -> String {
        let model = &self.asked.model;
        let (b, s, h) = (self.asked.batch, self.asked.sequence_length, model.hidden);
        let (experts, visits) = (u64::from(moe.experts), u64::from(moe.topk));
        let room = (s * visits).div_ceil(experts);
        let router = format!("{name}.router");
        let scores = self.linear(&router, x, h, experts, moe.router_bias);
        let shares = Form::Softmax { axes: vec![2] };
        let shares =
            self.add(&format!("{router}.shares"), "Softmax", shares, &[&scores], &[b, s, experts]);
        let shape = [b, s, visits];
        let gates = self.tensor(&format!("{router}.gates"), &shape, self.dtype, Role::Activation);
        let places =
            self.tensor(&format!("{router}.places"), &shape, Dtype::Int32, Role::Activation);
        let best = Form::TopK { axis: 2 };
        let written = vec![gates.clone(), places.clone()];
        self.operator(&format!("{router}.best"), "TopK", best, &[&shares], written);

        let (by_token, by_expert) = ([b, experts, room, h], [experts, b, room, h]);
        let swap = Form::Transpose { permutation: vec![1, 0, 2, 3] };
        let sent = self.add(
            &format!("{name}.dispatch"),
            "Dispatch",
            Form::Route {},
            &[x, &places],
            &by_token,
        );
        let sent =
            self.add(&format!("{name}.sent"), "Transpose", swap.clone(), &[&sent], &by_expert);
        let leading = [experts, b * room];
        let rows = self.reshape(&format!("{name}.rows"), &sent, &[experts, b * room, h]);
        let each = Rows { leading: &leading, experts: true };
        let done =
            self.mlp_of(&format!("{name}.experts"), &rows, &each, moe.expert_ffn, moe.expert_bias);
        let done = self.reshape(&format!("{name}.done"), &done, &by_expert);
        let back = self.add(&format!("{name}.returned"), "Transpose", swap, &[&done], &by_token);
        let visited = [b, s, visits, h];
        let back = self.add(
            &format!("{name}.combine"),
            "Combine",
            Form::Route {},
            &[&back, &places],
            &visited,
        );
        let gates = self.reshape(&format!("{name}.gates"), &gates, &[b, s, visits, 1]);
        let act = Form::Elementwise {};
        let weighed =
            self.add(&format!("{name}.weighed"), "Mul", act.clone(), &[&back, &gates], &visited);
        let sum = Form::Reduce { axes: vec![2], places: false };
        let routed = self.add(&format!("{name}.sum"), "ReduceSum", sum, &[&weighed], &[b, s, h]);
        if moe.shared_ffn == 0 {
            return routed;
        }
        let mut shared = self.mlp(&format!("{name}.shared"), x, moe.shared_ffn, moe.expert_bias);
        if moe.shared_gate {
            let gate = self.linear(&format!("{name}.shared.score"), x, h, 1, false);
            let name = format!("{name}.shared.score");
            let gate =
                self.add(&format!("{name}.act"), "Sigmoid", act.clone(), &[&gate], &[b, s, 1]);
            shared =
                self.add(&format!("{name}.mul"), "Mul", act.clone(), &[&shared, &gate], &[b, s, h]);
        }
        self.add(&format!("{name}.both"), "Add", act, &[&routed, &shared], &[b, s, h])
    }

    fn mlp_of(&mut self, name: &str, x: &str, rows: &Rows<'_>, f: u64, biased: bool) -> String {
        let model = &self.asked.model;
        let source = match model.activation {
            Activation::Swiglu => "Silu",
            Activation::ClampedSwiglu => "ClampedSilu",
            Activation::Geglu | Activation::Gelu => "Gelu",
            Activation::Relu => "Relu",
            Activation::Relu2 => "SquaredRelu",
        };
        let act = Form::Elementwise {};
        let flat = rows.shape(&[f]);
        let inner = if model.activation.gated() {
            let gate_up = format!("{name}.gate_up");
            let fused = self.project(&gate_up, x, rows, [model.hidden, 2 * f], biased);
            let by_channel =
                self.reshape(&format!("{name}.by_channel"), &fused, &rows.shape(&[f, 2]));
            let parts = ["gate", "up"].map(|part| {
                let shape = rows.shape(&[f, 1]);
                self.tensor(&format!("{name}.{part}.part"), &shape, self.dtype, Role::Activation)
            });
            let split = Form::Split { axis: rows.leading.len() + 1 };
            self.operator(&format!("{name}.split"), "Split", split, &[&by_channel], parts.to_vec());
            let gate = self.reshape(&format!("{name}.gate"), &parts[0], &flat);
            let up = self.reshape(&format!("{name}.up"), &parts[1], &flat);
            let gate = self.add(&format!("{name}.act"), source, act.clone(), &[&gate], &flat);
            self.add(&format!("{name}.mul"), "Mul", act, &[&gate, &up], &flat)
        } else {
            let up = self.project(&format!("{name}.up"), x, rows, [model.hidden, f], biased);
            self.add(&format!("{name}.act"), source, act, &[&up], &flat)
        };
        self.project(&format!("{name}.down"), &inner, rows, [f, model.hidden], biased)
    }

    /// `[.., width] x [width, columns]`, with a bias if there is one; each expert has a weight and a bias of its own.
    fn project(
        &mut self,
        name: &str,
        x: &str,
        rows: &Rows<'_>,
        [width, columns]: [u64; 2],
        biased: bool,
    ) -> String {
        if !rows.experts {
            return self.linear(name, x, width, columns, biased);
        }
        let (experts, shape) = (rows.leading[0], rows.shape(&[columns]));
        let weight = self.weight(&format!("{name}.weight"), &[experts, width, columns]);
        let form = Form::Matmul { transpose_a: false, transpose_b: false };
        let product = self.add(name, "BatchMatMul", form, &[x, &weight], &shape);
        if !biased {
            return product;
        }
        let bias = self.weight(&format!("{name}.bias.weight"), &[experts, 1, columns]);
        self.add(
            &format!("{name}.bias"),
            "BiasAdd",
            Form::Elementwise {},
            &[&product, &bias],
            &shape,
        )
    }
}
