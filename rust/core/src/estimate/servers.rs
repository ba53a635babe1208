//! Parameter servers beside all-reduce: the time of a step, what workers and servers hold, what a lost one costs.
//!
//! Every worker is a device that runs the passes of a mini-batch of its own. With all-reduce it also keeps every parameter
//! with its optimizer state, and gradients are summed among the workers. With servers, each of them keeps an equal share of
//! the parameters and their state in the memory of a node of its own: keys are ranges, and a parameter may lie on several
//! (Li et al. 2014, Scaling distributed machine learning with the parameter server, OSDI, section 3.1). A worker pulls what
//! its mini-batch reads and pushes gradients of the same extent; of a table that is looked up only the rows that were
//! named travel, with their indices, which is why tables gain by servers and dense parameters by all-reduce (Kim et al. 2019,
//! Parallax, EuroSys, arXiv:1808.02621). The mixed placement is MindSpore's too: `set_param_ps` for some, all-reduce
//! for the others (its tutorial on parameter servers).
//!
//! All workers push at once, then pull at once. The slower of the workers' and the servers' links decides, `max(b/w, n b/(s v))`
//! for b bytes, n workers of w and s servers of v bytes a second (Jiang et al. 2020, BytePS, OSDI, section 2.2).
//! Nothing is taken to hide behind the passes, in no placement.

use super::collective::Fabric;
use crate::error::{require, Error};
use crate::spec::cluster::{Chip, Cluster, Group};
use crate::units::{Bytes, Time};
use serde::{Deserialize, Serialize};

/// Servers, what is kept where, and how a job recovers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServersOptions {
    /// Servers, each on a node of its own.
    pub servers: u64,
    /// Memory of a server, in GiB; `null` for no limit.
    pub server_memory_gib: Option<f64>,
    /// Memory of a worker's device, in GiB; `null` for the chip's.
    pub memory_gib: Option<f64>,
    /// Bytes of optimizer state a parameter, its copy in 32 bits included.
    pub optimizer_bytes: u64,
    /// Bytes of a gradient as it travels and is summed.
    pub gradient_bytes: u64,
    /// The job goes on while a lost worker is replaced; otherwise it stops and starts again.
    pub dynamic_workers: bool,
    /// Seconds until a lost process runs again.
    pub restart_s: f64,
    /// Seconds between two checkpoints.
    pub checkpoint_s: f64,
    /// What one process reads of a checkpoint, 10^9 bytes a second.
    pub storage_gb_per_s: f64,
}

/// Where parameters and their optimizer state are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Where {
    /// Everything on every worker.
    AllReduce,
    /// Everything on the servers.
    Servers,
    /// Tables that are looked up on the servers, the rest on every worker.
    Mixed,
}

/// What one placement costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// Where parameters are.
    pub parameters: Where,
    /// Every worker waits for all gradients of a step.
    pub synchronous: Synchronous,
    /// Every worker goes on with what the servers have; `null` where gradients are summed among workers.
    pub asynchronous: Option<Asynchronous>,
    /// Memory of a worker: parameters, gradients, optimizer state, kept activations.
    pub worker_bytes: Bytes,
    /// Memory of a server: parameters, sums of gradients, optimizer state.
    pub server_bytes: Bytes,
    /// Seconds of the whole job that a lost worker costs, on average.
    pub lost_worker_s: f64,
    /// The same of a lost server; `null` without servers.
    pub lost_server_s: Option<f64>,
    /// Why it does not fit; empty for a placement that runs.
    pub violations: Vec<String>,
}

/// A step in which every worker waits for all; the parts add up to it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Synchronous {
    /// The step.
    pub step_ps: Time,
    /// Forward and backward passes of a mini-batch.
    pub compute_ps: Time,
    /// Sums of gradients among the workers.
    pub reduce_ps: Time,
    /// Gradients on their way to the servers.
    pub push_ps: Time,
    /// Sums and optimizer steps, on the servers and on the workers.
    pub update_ps: Time,
    /// Parameters on their way to the workers.
    pub pull_ps: Time,
    /// Mini-batches of all workers in a second.
    pub batches_per_s: f64,
}

/// Workers that do not wait for one another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asynchronous {
    /// A worker's round where no other is in its way: pull, passes, push, update.
    pub round_ps: Time,
    /// Mini-batches of all workers in a second.
    pub batches_per_s: f64,
    /// What more workers would wait for; `workers` while they would not.
    pub limit: Limit,
    /// Updates by others between a worker's pull and its push, where all are as fast.
    pub staleness: u64,
}

/// What bounds asynchronous workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Their own rounds.
    Workers,
    /// The servers' incoming links.
    Push,
    /// The servers' memory.
    Update,
    /// The servers' outgoing links.
    Pull,
}

/// Parameters that are trained alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// Elements.
    pub elements: f64,
    /// Bytes of an element as workers compute with it.
    pub bytes: f64,
    /// The rows, of a table that is looked up.
    pub rows: Option<Rows>,
}

/// Rows of a table and how many places of a mini-batch name one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rows {
    /// Rows of the table.
    pub all: f64,
    /// Indices of a mini-batch, repeated ones too.
    pub named: f64,
}

/// Bytes of the index that goes with a row.
const INDEX_BYTES: f64 = 8.0;

impl Rows {
    /// Different rows that so many mini-batches name: R (1 - (1 - 1/R)^n) of n even draws from R. Draws that favour some rows name
    /// fewer, as the sum of 1 - (1 - p)^n over all rows is concave in the shares p and greatest where they are equal.
    pub fn different(&self, batches: u64) -> f64 {
        let draws = self.named * batches as f64;
        if draws == 0.0 {
            return 0.0;
        }
        -self.all * ((-1.0 / self.all).ln_1p() * draws).exp_m1()
    }
}

impl Weights {
    /// Elements that so many mini-batches read, and rows of which indices travel with them.
    fn read(&self, batches: u64) -> (f64, f64) {
        match self.rows {
            None => (self.elements, 0.0),
            Some(rows) => {
                let different = rows.different(batches);
                (self.elements / rows.all * different, different)
            }
        }
    }
}

/// A mini-batch of one worker.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Its passes.
    pub compute: Time,
    /// Activations kept between them.
    pub activations: Bytes,
    /// What is trained.
    pub weights: &'a [Weights],
}

impl ServersOptions {
    /// Checks ranges.
    ///
    /// # Errors
    /// The first thing that is wrong: where, what, found, cure.
    pub fn validate(&self) -> Result<(), Error> {
        require(
            (1..=1 << 20).contains(&self.servers),
            "servers",
            || format!("must be from 1 to 2^20, found {}", self.servers),
            "Give the servers that stand beside the workers.",
        )?;
        for (bytes, path) in
            [(self.optimizer_bytes, "optimizer_bytes"), (self.gradient_bytes, "gradient_bytes")]
        {
            require(
                bytes <= 64,
                path,
                || format!("must be at most 64, found {bytes}"),
                "Adam in mixed precision keeps 12 bytes a parameter and sums gradients of 4.",
            )?;
        }
        for (value, path) in [(self.restart_s, "restart_s"), (self.checkpoint_s, "checkpoint_s")] {
            require(
                value.is_finite() && value >= 0.0,
                path,
                || format!("must be seconds from 0, found {value}"),
                "Give the time of your own cluster.",
            )?;
        }
        for (value, path) in [
            (Some(self.storage_gb_per_s), "storage_gb_per_s"),
            (self.server_memory_gib, "server_memory_gib"),
            (self.memory_gib, "memory_gib"),
        ] {
            require(
                value.is_none_or(|v| v.is_finite() && v > 0.0),
                path,
                || format!("must be positive, found {}", value.unwrap_or_default()),
                "Give the figure in the unit that the key names.",
            )?;
        }
        Ok(())
    }
}

/// The three placements of a mini-batch's parameters on a cluster, every device of which is a worker.
pub fn placements(
    batch: &Batch<'_>,
    cluster: &Cluster,
    options: &ServersOptions,
) -> Vec<Placement> {
    let chip = &cluster.groups[0].chip;
    let site = Site { chip, fabric: Fabric::new(cluster, chip), options, workers: cluster.devices };
    [Where::AllReduce, Where::Servers, Where::Mixed]
        .into_iter()
        .map(|parameters| site.placement(batch, parameters))
        .collect()
}

/// Workers and servers with their links.
struct Site<'a> {
    chip: &'a Chip,
    fabric: Fabric<'a>,
    options: &'a ServersOptions,
    workers: u64,
}

/// Seconds on the way to the servers, on them, and back.
struct Exchange {
    push: f64,
    update: f64,
    pull: f64,
}

impl Site<'_> {
    fn placement(&self, batch: &Batch<'_>, parameters: Where) -> Placement {
        let (moved, kept): (Vec<Weights>, Vec<Weights>) =
            batch.weights.iter().partition(|w| match parameters {
                Where::AllReduce => false,
                Where::Servers => true,
                Where::Mixed => w.rows.is_some(),
            });
        let synchronous = self.synchronous(batch.compute, &moved, &kept);
        let asynchronous =
            (parameters == Where::Servers).then(|| self.asynchronous(batch.compute, &moved));
        let worker_bytes = batch.activations + self.worker_bytes(&moved, &kept);
        let server_bytes = self.server_bytes(&moved);
        // A worker reads all that it keeps of a checkpoint, a server its share.
        let (worker, server) = (self.stored(&kept), self.stored(&moved) / self.servers());
        let lost_worker_s = match asynchronous {
            // The others work on: its share of the time is lost, and the mini-batch that it was at.
            Some(alone) if self.options.dynamic_workers => {
                (self.options.restart_s + alone.round_ps.seconds()) / self.workers as f64
            }
            _ => self.rolled_back(worker.max(server)),
        };
        Placement {
            parameters,
            synchronous,
            asynchronous,
            worker_bytes,
            server_bytes,
            lost_worker_s,
            // Every mini-batch needs every server, so that all workers wait.
            lost_server_s: (!moved.is_empty()).then(|| self.rolled_back(server)),
            violations: self.violations(worker_bytes, server_bytes),
        }
    }

    fn synchronous(&self, compute: Time, moved: &[Weights], kept: &[Weights]) -> Synchronous {
        let exchange = self.exchange(moved, self.workers);
        let updated = self.updated(kept) + self.gathered(kept);
        let device = self.chip.memory_bandwidth_gb_per_s * 1e9 * self.chip.memory_efficiency;
        let reduce_ps = Time::from_seconds(self.reduce(kept));
        let push_ps = Time::from_seconds(exchange.push);
        let update_ps = Time::from_seconds(exchange.update + updated / device);
        let pull_ps = Time::from_seconds(exchange.pull);
        let step_ps = compute + reduce_ps + push_ps + update_ps + pull_ps;
        Synchronous {
            step_ps,
            compute_ps: compute,
            reduce_ps,
            push_ps,
            update_ps,
            pull_ps,
            batches_per_s: self.workers as f64 / step_ps.seconds(),
        }
    }

    /// Workers go round through the servers' incoming links, memory and outgoing links, each of which serves one mini-batch
    /// after another. With fixed times and room to wait such a ring turns, in the long run, once in the longest of any
    /// station's time and the round over the workers (Baccelli, Cohen, Olsder, Quadrat 1992, Synchronization and
    /// Linearity, section 9.2: the largest mean weight of a circuit).
    fn asynchronous(&self, compute: Time, moved: &[Weights]) -> Asynchronous {
        let alone = self.exchange(moved, 1);
        let round_ps = compute + Time::from_seconds(alone.push + alone.update + alone.pull);
        let wire = |bytes: f64| self.to_servers(bytes) - self.to_servers(0.0);
        let stations = [
            (Limit::Workers, round_ps.seconds() / self.workers as f64),
            (Limit::Push, wire(self.pushed(moved))),
            (Limit::Update, alone.update),
            (Limit::Pull, wire(self.pulled(moved))),
        ];
        let (limit, longest) =
            stations.into_iter().fold(stations[0], |a, b| if b.1 > a.1 { b } else { a });
        Asynchronous { round_ps, batches_per_s: 1.0 / longest, limit, staleness: self.workers - 1 }
    }

    /// What so many mini-batches at once take on their way, summed and applied together where there are several.
    fn exchange(&self, moved: &[Weights], batches: u64) -> Exchange {
        if moved.is_empty() {
            return Exchange { push: 0.0, update: 0.0, pull: 0.0 };
        }
        let travel = |bytes: f64| {
            let own = self.fabric.send(bytes, self.distance()).max(self.to_host(bytes));
            own.max(self.to_servers(bytes * batches as f64))
        };
        // The first gradient becomes the sum; each further one is read, and the sum read and written.
        let summed: f64 = moved.iter().map(|w| w.read(1).0 * self.gradient()).sum();
        let applied: f64 = moved.iter().map(|w| self.step_traffic(w, batches)).sum();
        let traffic = 3.0 * (batches - 1) as f64 * summed + applied;
        let memory = self.chip.host.memory_gb_per_s * 1e9 * self.devices_per_node();
        Exchange {
            push: travel(self.pushed(moved)),
            update: traffic / self.servers() / memory,
            pull: travel(self.pulled(moved)),
        }
    }

    /// Seconds of the sums among workers: dense gradients are all-reduced, the rows of tables gathered with their indices.
    fn reduce(&self, kept: &[Weights]) -> f64 {
        let group = Group { size: self.workers, stride: 1 };
        let dense = kept.iter().filter(|w| w.rows.is_none());
        let dense: f64 = dense.map(|w| w.elements * self.gradient()).sum();
        let tables = kept.iter().filter(|w| w.rows.is_some());
        let rows: f64 = tables.map(|w| self.with_indices(w, self.gradient())).sum();
        self.fabric.all_reduce(dense, group)
            + self.fabric.all_gather(rows * self.workers as f64, group)
    }

    /// Bytes of one mini-batch's gradients.
    fn pushed(&self, moved: &[Weights]) -> f64 {
        moved.iter().map(|w| self.with_indices(w, self.gradient())).sum()
    }

    /// Bytes of what one mini-batch reads.
    fn pulled(&self, moved: &[Weights]) -> f64 {
        moved.iter().map(|w| self.with_indices(w, w.bytes)).sum()
    }

    fn with_indices(&self, weights: &Weights, bytes: f64) -> f64 {
        let (elements, indices) = weights.read(1);
        elements * bytes + indices * INDEX_BYTES
    }

    /// Bytes that the optimizer moves on every worker.
    fn updated(&self, kept: &[Weights]) -> f64 {
        kept.iter().map(|w| self.step_traffic(w, self.workers)).sum()
    }

    /// Bytes of the rows' gradients that every worker has gathered.
    fn gathered(&self, kept: &[Weights]) -> f64 {
        let tables = kept.iter().filter(|w| w.rows.is_some());
        tables.map(|w| w.read(1).0 * self.gradient() * self.workers as f64).sum()
    }

    /// Bytes that an optimizer step moves: state is read and written, the gradient read, the parameter written. Of a table only
    /// the rows that were read change.
    fn step_traffic(&self, weights: &Weights, batches: u64) -> f64 {
        let each = 2.0 * self.options.optimizer_bytes as f64 + self.gradient() + weights.bytes;
        weights.read(batches).0 * each
    }

    fn worker_bytes(&self, moved: &[Weights], kept: &[Weights]) -> Bytes {
        let dense = kept.iter().filter(|w| w.rows.is_none());
        let sums: f64 = dense.map(|w| w.elements * self.gradient()).sum();
        let copies: f64 = moved.iter().map(|w| w.read(1).0 * (w.bytes + self.gradient())).sum();
        Bytes::from_f64(self.stored(kept) + sums + self.gathered(kept) + copies)
    }

    fn server_bytes(&self, moved: &[Weights]) -> Bytes {
        let sums: f64 = moved.iter().map(|w| w.read(self.workers).0 * self.gradient()).sum();
        Bytes::from_f64((self.stored(moved) + sums) / self.servers())
    }

    /// Bytes of parameters and their optimizer state: what a checkpoint holds.
    fn stored(&self, weights: &[Weights]) -> f64 {
        let state = self.options.optimizer_bytes as f64;
        weights.iter().map(|w| w.elements * (w.bytes + state)).sum()
    }

    /// Seconds lost where everyone goes back to the last checkpoint, half an interval old on average, when the lost process
    /// runs again and every process has read so many bytes.
    fn rolled_back(&self, bytes: f64) -> f64 {
        let read = bytes / (self.options.storage_gb_per_s * 1e9);
        self.options.restart_s + read + self.options.checkpoint_s / 2.0
    }

    fn violations(&self, worker: Bytes, server: Bytes) -> Vec<String> {
        let device = Some(self.options.memory_gib.unwrap_or(self.chip.memory_gib));
        [("a worker", worker, device), ("a server", server, self.options.server_memory_gib)]
            .into_iter()
            .filter_map(|(who, bytes, limit)| {
                let lack = bytes.beyond(Bytes::from_gib(limit?));
                (lack > Bytes::ZERO).then(|| format!("{who} lacks {:.2} GiB of memory", lack.gib()))
            })
            .collect()
    }

    /// Seconds of bytes over the links of all servers together.
    fn to_servers(&self, bytes: f64) -> f64 {
        // A server has the cards of a whole node.
        let each = bytes / (self.servers() * self.devices_per_node());
        self.fabric.send(each, self.distance())
    }

    /// Seconds of bytes between a worker's device and its host.
    fn to_host(&self, bytes: f64) -> f64 {
        bytes / (self.chip.host.pcie_gb_per_s * 1e9)
    }

    /// Ranks from the first worker to the last server, if servers stand behind the workers: never inside a domain.
    fn distance(&self) -> u64 {
        let node = u64::from(self.chip.devices_per_node);
        let nodes = self.workers.div_ceil(node) + self.options.servers;
        (nodes * node).max(u64::from(self.chip.link_domain))
    }

    fn gradient(&self) -> f64 {
        self.options.gradient_bytes as f64
    }

    fn servers(&self) -> f64 {
        self.options.servers as f64
    }

    fn devices_per_node(&self) -> f64 {
        f64::from(self.chip.devices_per_node)
    }
}
