//! What a compiler makes part of the products beside it, so that their arithmetic hides what it moves.

use super::block::Block;
use super::choice::Weighed;
use super::compute::Gemm;

impl Block<'_, '_> {
    /// The nonlinearity between the products of a dense MLP of `tokens` rows and `width` inner columns.
    pub(super) fn inner_activation(&mut self, tokens: f64, width: u64) {
        if self.p.framework.fused.activation_in_products {
            self.activation_in_products(tokens, width);
        } else {
            self.activation(tokens * width as f64, 1, true, Weighed::Not, false);
        }
    }

    /// The same as part of these products.
    ///
    /// Forward a product that opens the MLP reads the other half and writes the input of the next beside its own result; backward
    /// the one that makes the gradient of that input reads both halves and writes a gradient for each of them in its place.
    /// Without a gate it is one tensor more forward, and one read and none more written backward.
    ///
    /// Of 13 dense models on four TPU v4 under one set of options (yxanul/yxTPU, pretraining/MFU/README.md, section 1b: 1,024 to
    /// 2,048 channels, 2,048 to 4,608 inner ones, 18 to 24 layers) the steps are 0.99 of the products' time, 77 passes over the
    /// channels and -0.9 over the inner ones, within 0.9 %, where an operator of its own would be 11 passes.
    fn activation_in_products(&mut self, tokens: f64, width: u64) {
        let p = self.p;
        let (rows, channels) = (tokens as u64, p.model.hidden);
        let (forward, backward) = if p.model.activation.gated() { (2.0, 3.0) } else { (1.0, 1.0) };
        let more = |g: Gemm, moved: f64| p.device.linear_moving(g, moved) - p.device.linear(g);
        let before = self.forward;
        self.forward.compute += more(Gemm::new(rows, width, channels), forward);
        self.input.compute += more(Gemm::new(rows, channels, width).input_gradient(), backward);
        self.activation_may_repeat(before, self.activation_results(tokens * width as f64, true));
    }
}
