//! How experts' tokens travel where each is sent once to a node, and there once to a rank.

use super::choice::Choice;
use super::collective::Fabric;
use crate::spec::cluster::Group;

impl Fabric<'_> {
    /// Seconds until every member has sent `bytes` of copies for all experts (all that one member holds) there, and until their
    /// results are back, where a token crosses the network once for each node that holds some of its experts, and is passed on there
    /// once to each rank that does (DeepEP, HybridEP).
    ///
    /// Inside a domain at what the library `kernel` was timed at, if it was, else at the rate of an all-to-all.
    pub fn once_a_node(
        &self,
        bytes: f64,
        choice: Choice,
        group: Group,
        kernel: &str,
    ) -> (f64, f64) {
        if group.size <= 1 || bytes <= 0.0 {
            return (0.0, 0.0);
        }
        let (inside, domains) = self.spread(group);
        let n = domains as f64;
        let nodes = choice.touched(choice.nodes(n));
        let sent = bytes / f64::from(choice.topk) * nodes * (1.0 - 1.0 / n);
        let copies = bytes * (1.0 - 1.0 / n);
        let arrived = bytes * self.copies_a_choice(choice, group);
        let timed = self.chip.exchange.iter().find(|rate| inside > 1 && rate.kernel == kernel);
        let local = match timed.map(|rate| rate.among(inside)) {
            Some((there, back)) => (arrived / there, arrived / back),
            None => {
                let own = (inside - 1) as f64 / inside as f64;
                let each = arrived * own / self.exchange_rate(inside, group.stride);
                (each, each)
            }
        };
        let network = self
            .network_levels(group)
            .map(|(below, rate)| bytes * (group.size - below) as f64 / group.size as f64 / rate)
            .fold(0.0, f64::max);
        let share = if copies > 0.0 { sent / copies } else { 1.0 };
        // What was timed holds the steps inside a domain.
        let steps = if timed.is_some() && domains == 1 { 0.0 } else { self.exchange_steps(group) };
        let both = |local: f64| local.max(network * share) + steps;
        (both(local.0), both(local.1))
    }

    /// Copies of a token that reach a rank by [`Fabric::once_a_node`], for each of its choices of an expert: ranks that hold some
    /// of them over experts.
    pub fn copies_a_choice(&self, choice: Choice, group: Group) -> f64 {
        let (inside, domains) = self.spread(group);
        let ranks = inside as f64 * choice.nodes(domains as f64);
        choice.touched(ranks) / f64::from(choice.topk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::exchange::ExchangeRate;
    use crate::testing::{a100, cluster};

    fn anywhere(node_limit: u32) -> Choice {
        Choice { topk: 8, node_limit, in_turn: 0 }
    }

    fn close(a: f64, b: f64) {
        assert!((a / b - 1.0).abs() < 1e-9, "{a} against {b}");
    }

    #[test]
    fn one_copy_a_node_crosses_the_network_as_often_as_nodes_are_touched() {
        // Inside the nodes 32 (1 - (31/32)^8) = 7.18 ranks of 8 choices have less time than outside.
        // 32 ranks on 4 nodes, 8 experts a token: 4 (1 - (3/4)^8) = 3.5995 nodes, of which 3 in 4 are others:
        // 2.6997 copies of 1/8 GB cross at 25 GB/s x efficiency; with a limit of two nodes 2 (1 - (1/2)^8) 3/4 = 1.4941.
        let cluster = cluster(a100(), 32);
        let chip = &cluster.groups[0].chip;
        let f = Fabric::new(&cluster, chip);
        let group = Group { size: 32, stride: 1 };
        let steps = 8.4e-6 + 7.0 * 3.4e-6 + (6.6 + 4.0 * 0.69) * 14e-6;
        let wire = |copies: f64| copies / 8.0 / (25.0 * chip.network.efficiency) + steps;
        let touched = 4.0 * (1.0 - 0.75f64.powi(8)) * 0.75;
        close(f.once_a_node(1e9, anywhere(0), group, "").0, wire(touched));
        close(
            f.once_a_node(1e9, anywhere(2), group, "").0,
            wire(2.0 * (1.0 - 0.5f64.powi(8)) * 0.75),
        );
        assert!(f.once_a_node(1e9, anywhere(0), group, "").0 < f.all_to_all(1e9, group));
    }

    #[test]
    fn inside_a_node_a_token_is_sent_once_to_each_rank_that_holds_some_of_its_experts() {
        // 8 ranks, 8 experts a token: 8 (1 - (7/8)^8) = 5.2511 ranks, 7 in 8 of them others, of 1/8 GB each, at the rate of an
        // all-to-all; over two nodes, of which a token takes one, the same with the card's bytes beside.
        let one = cluster(a100(), 8);
        let f = Fabric::new(&one, &one.groups[0].chip);
        let group = Group { size: 8, stride: 1 };
        let ranks = 8.0 * (1.0 - 0.875f64.powi(8));
        let rate = one.groups[0].chip.link.all_to_all_gb_per_s;
        let wire = ranks * 0.875 / 8.0 / rate;
        close(f.once_a_node(1e9, anywhere(0), group, "").0, wire + 8.4e-6 + 7.0 * 3.4e-6);
        close(f.copies_a_choice(anywhere(0), group), ranks / 8.0);
        let two = cluster(a100(), 16);
        let f = Fabric::new(&two, &two.groups[0].chip);
        close(f.copies_a_choice(anywhere(1), Group { size: 16, stride: 1 }), ranks / 8.0);
    }

    #[test]
    fn a_library_that_was_timed_inside_a_domain_takes_that() {
        // 4,096 tokens of 7,168 channels in 16 bits, 8 experts each of 8 ranks: 5.2511 copies of each, 308 MB with those that stay,
        // at 500 GB/s there and 400 back. Its table says nothing of another library.
        let mut chip = a100();
        chip.exchange = vec![ExchangeRate {
            kernel: "timed".into(),
            ranks: vec![8],
            dispatch_gb_per_s: vec![500.0],
            combine_gb_per_s: vec![400.0],
        }];
        let cluster = cluster(chip, 8);
        let f = Fabric::new(&cluster, &cluster.groups[0].chip);
        let group = Group { size: 8, stride: 1 };
        let arrived = 4096.0 * 7168.0 * 2.0 * 8.0 * (1.0 - 0.875f64.powi(8));
        let bytes = 4096.0 * 7168.0 * 2.0 * 8.0;
        let (there, back) = f.once_a_node(bytes, anywhere(0), group, "timed");
        close(there, arrived / 500e9);
        close(back, arrived / 400e9);
        let (there, back) = f.once_a_node(bytes, anywhere(0), group, "another");
        assert!(there == back && there > arrived * 0.875 / 500e9);
    }
}
