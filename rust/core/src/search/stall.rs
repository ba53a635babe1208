//! How many layers a stage has memory and time for, by the way in which it saves memory.

/// What is recomputed of a stage's frequent layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    /// Nothing.
    Plain,
    /// The attention core of every layer.
    Selective,
    /// Every layer, in groups of which one input is kept.
    Uniform,
    /// As many layers as this in whole, or all if there are fewer.
    Block(f64),
    /// As many, of other sorts if it has any: what they would keep is spared, and their time is counted elsewhere.
    Spared(f64),
    /// Whatever suits the stage.
    Any,
}

/// The most layers that a stage has memory for; negative and without bound where a way is not allowed.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    /// Nothing recomputed.
    pub plain: f64,
    /// Selectively.
    pub selective: f64,
    /// In groups.
    pub uniform: f64,
    /// Some layers in whole.
    pub block: Option<Block>,
}

/// The same of layers that are recomputed in whole.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Layers beside the working set of one that is recomputed, and how many more for each that is.
    pub none: f64,
    pub more: f64,
    /// Layers when all are recomputed, and when none is.
    pub all: f64,
    pub plain: f64,
}

impl Block {
    /// Layers when `again` of them are recomputed.
    fn most(&self, again: f64) -> f64 {
        let some = self.none + again * self.more;
        if some >= again {
            some
        } else {
            self.all.min(again)
        }
    }
}

/// How long a path through the schedule spends with a stage's layers.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Seconds that the path spends elsewhere.
    elsewhere: f64,
    /// Seconds with a layer.
    layer: f64,
    /// What full recompute of one adds.
    full: f64,
    /// Layers a second: nothing recomputed, selectively, in whole.
    rates: [f64; 3],
}

impl Pass {
    /// With the seconds of a layer, and what selective and full recompute of one add.
    pub fn new(elsewhere: f64, layer: f64, [selective, full]: [f64; 2]) -> Pass {
        let rate = |seconds: f64| if seconds > 0.0 { 1.0 / seconds } else { f64::MAX };
        let rates = [layer, layer + selective, layer + full].map(rate);
        Pass { elsewhere, layer, full, rates }
    }

    /// The most layers that the path leaves time for in `seconds`, and the stage memory.
    pub fn most(&self, stall: &Stall, way: Way, seconds: f64) -> f64 {
        let left = seconds - self.elsewhere;
        let [plain, selective, full] = self.rates.map(|rate| left * rate);
        let block = |most: f64, again: f64| {
            stall.block.map_or(f64::NEG_INFINITY, |block| most.min(block.most(again)))
        };
        match way {
            Way::Plain => stall.plain.min(plain),
            Way::Selective => stall.selective.min(selective),
            Way::Uniform => stall.uniform.min(full),
            Way::Block(again) => block(self.lasts(again, seconds), again),
            Way::Spared(again) => block(plain, again),
            Way::Any => self.most_in_any(stall, seconds),
        }
    }

    /// The same in whatever way suits the stage: asked most often.
    pub fn most_in_any(&self, stall: &Stall, seconds: f64) -> f64 {
        let left = seconds - self.elsewhere;
        let [plain, selective, full] = self.rates.map(|rate| left * rate);
        let simple = larger(lesser(stall.plain, plain), lesser(stall.selective, selective));
        let simple = larger(simple, lesser(stall.uniform, full));
        match &stall.block {
            Some(block) => larger(simple, lesser(self.filled(block, left), plain)),
            None => simple,
        }
    }

    /// The most layers that `seconds` leave time for, memory apart, when `again` of them are recomputed in whole.
    pub fn lasts(&self, again: f64, seconds: f64) -> f64 {
        let left = seconds - self.elsewhere;
        let some = (left - again * self.full) * self.rates[0];
        if some >= again {
            some
        } else {
            left * self.rates[2]
        }
    }

    /// Layers when just as many are recomputed in whole as memory asks for.
    ///
    /// Of x layers r fit with `x <= none + more r` and take `x layer + r full`.
    fn filled(&self, block: &Block, left: f64) -> f64 {
        let spent = self.layer * block.more + self.full;
        let again = if spent > 0.0 && left < f64::INFINITY {
            (left * block.more + self.full * block.none) / spent
        } else {
            f64::INFINITY
        };
        lesser(block.all, larger(again, block.plain))
    }
}

/// The smaller of two numbers: one instruction, where `f64::min` takes several to see to what is no number.
pub fn lesser(a: f64, b: f64) -> f64 {
    if a < b {
        a
    } else {
        b
    }
}

/// The larger of two numbers.
pub fn larger(a: f64, b: f64) -> f64 {
    if a > b {
        a
    } else {
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO: f64 = f64::NEG_INFINITY;

    /// A layer takes 2 s and keeps 4 bytes of 40, or 1 byte and a second more where it is recomputed.
    fn block() -> (Stall, Pass) {
        let block = Block { none: 10.0, more: 0.75, all: 40.0, plain: 10.0 };
        let stall = Stall { plain: NO, selective: NO, uniform: NO, block: Some(block) };
        (stall, Pass::new(0.0, 2.0, [0.5, 1.0]))
    }

    #[test]
    fn memory_and_time_together_say_how_many_layers_a_stage_holds() {
        // With r of x layers recomputed 4 x - 3 r <= 40 and 2 x + r <= 30: at most 13, of which 4 are. Without recompute 10.
        let (stall, pass) = block();
        let within = |seconds| pass.most(&stall, Way::Any, seconds);
        assert!((within(30.0) - 13.0).abs() < 1e-12);
        assert!((within(20.0) - 10.0).abs() < 1e-12);
        assert!((within(f64::INFINITY) - 40.0).abs() < 1e-12);
    }

    #[test]
    fn a_way_that_is_given_holds_less() {
        let (stall, pass) = block();
        let within = |again, seconds| pass.most(&stall, Way::Block(again), seconds);
        // 4 x <= 40 + 3 r of memory, 2 x <= 30 - r of time.
        assert_eq!(within(2.0, 30.0), 11.5);
        assert_eq!(within(4.0, 30.0), 13.0);
        assert_eq!(within(6.0, 30.0), 12.0);
        // Twelve of which nine leave time for: then all are recomputed, 3 s each.
        assert_eq!(within(12.0, 27.0), 9.0);
        let plain = Stall { plain: 10.0, block: None, ..stall };
        assert_eq!(pass.most(&plain, Way::Plain, 30.0), 10.0);
        assert_eq!(pass.most(&plain, Way::Any, 30.0), 10.0);
        // And 6 s on the way are gone.
        let later = Pass::new(6.0, 2.0, [0.5, 1.0]);
        assert_eq!(later.most(&plain, Way::Plain, 20.0), 7.0);
        let uniform = Stall { uniform: 40.0, ..plain };
        assert_eq!(pass.most(&uniform, Way::Any, 36.0), 12.0);
    }
}
