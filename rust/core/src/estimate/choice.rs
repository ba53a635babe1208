//! On how many ranks and nodes the experts of a token lie.

/// Whether a nonlinearity's results are multiplied with the weights of their tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weighed {
    /// Elsewhere, or there are none.
    Not,
    /// In its own kernel.
    Within,
    /// In operators of their own.
    Apart,
}

/// Which experts a token is sent to.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Experts a token.
    pub topk: u32,
    /// Nodes a token at most, 0 for any number.
    pub node_limit: u32,
    /// Experts in all where a token's lie next to each other, the next token's behind them; 0 where they lie anywhere.
    pub in_turn: u32,
}

impl Choice {
    /// Of `n` nodes those that a token's experts may lie on.
    pub(super) fn nodes(&self, n: f64) -> f64 {
        if self.node_limit > 0 && self.in_turn == 0 {
            f64::from(self.node_limit).min(n)
        } else {
            n
        }
    }

    /// How many of `places` hold some of a token's k experts: `n (1 - (1 - 1/n)^k)` where they lie anywhere. Of k in a row that start
    /// at multiples of k, over places of b experts each, `1 + (k - gcd(k, b)) / b`: a row may start at each multiple of the divisor.
    pub(super) fn touched(&self, places: f64) -> f64 {
        if self.in_turn == 0 {
            return places * (1.0 - (1.0 - 1.0 / places).powf(f64::from(self.topk)));
        }
        let each = (f64::from(self.in_turn) / places).round().max(1.0);
        let steps = gcd(u64::from(self.topk), each as u64) as f64;
        (1.0 + (f64::from(self.topk) - steps) / each).min(places)
    }
}

/// The greatest number that divides both.
fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_in_turn_lie_on_as_few_ranks_as_hold_them() {
        // Eight in a row of 128 start where a rank of 16 begins or in its middle: one rank. Six of 64 start at even places: over 16
        // ranks at the first or third of four, two ranks; over two nodes two of a node's sixteen places, 28 and 30, reach over
        // its end: 1 + 2 / 16. As many as there are lie on all.
        let touched =
            |topk, in_turn, places| Choice { topk, node_limit: 1, in_turn }.touched(places);
        assert_eq!(touched(8, 128, 8.0), 1.0);
        assert_eq!(touched(6, 64, 16.0), 2.0);
        assert_eq!(touched(6, 64, 2.0), 1.125);
        assert_eq!(touched(8, 8, 8.0), 8.0);
    }
}
