//! Parameter servers: sums worked by hand, a simulated queue, and what must hold whatever the figures.

use autopar_core::estimate::servers::{
    placements, Batch, Limit, Placement, Rows, ServersOptions, Weights, Where,
};
use autopar_core::testing;
use autopar_core::units::{Bytes, Time, GIB};

/// A billion parameters that are read whole, in 16 bits.
const DENSE: Weights = Weights { elements: 1e9, bytes: 2.0, rows: None };
/// A table of 10^7 rows of 64 numbers, of which a mini-batch names 5,000.
const TABLE: Weights =
    Weights { elements: 6.4e8, bytes: 4.0, rows: Some(Rows { all: 1e7, named: 5000.0 }) };

fn options() -> ServersOptions {
    ServersOptions {
        servers: 2,
        server_memory_gib: None,
        memory_gib: None,
        optimizer_bytes: 12,
        gradient_bytes: 4,
        dynamic_workers: false,
        restart_s: 60.0,
        checkpoint_s: 1800.0,
        storage_gb_per_s: 2.0,
    }
}

/// The placements of passes of half a second on A100s, eight a node.
fn costs(weights: &[Weights], workers: u64, options: &ServersOptions) -> Vec<Placement> {
    let batch =
        Batch { compute: Time::from_seconds(0.5), activations: Bytes(1_000_000_000), weights };
    placements(&batch, &testing::cluster(testing::a100(), workers), options)
}

fn place(found: &[Placement], parameters: Where) -> &Placement {
    found.iter().find(|p| p.parameters == parameters).expect("all three are priced")
}

fn close(got: f64, expected: f64) {
    // A time is kept to the picosecond.
    let off = (got - expected).abs();
    assert!(off < 1e-9 * expected || off <= 1e-12, "{got} against {expected}");
}

// Cards of 25 GB/s at 77 %: 19.25 GB/s a worker, 154 GB/s a server. A message takes 8.4 + 14 us to start.
const WIRE: f64 = 19.25e9;
const START: f64 = 22.4e-6;
// A server's memory moves 8 x 40 GB/s.
const HOST: f64 = 320e9;

#[test]
fn dense_parameters_on_two_servers_cost_eight_workers_what_the_sum_says() {
    let found = costs(&[DENSE], 8, &options());
    let servers = place(&found, Where::Servers).synchronous;
    // 4 GB of gradients leave each worker; 8 x 4 GB enter two servers in half that time.
    close(servers.push_ps.seconds(), 4e9 / WIRE + START);
    close(servers.pull_ps.seconds(), 2e9 / WIRE + START);
    // Each server adds seven further gradients of 2 GB (read, and the sum read and written), then moves 2 x 12 + 4 + 2 bytes
    // of each of its 5 x 10^8 parameters.
    close(servers.update_ps.seconds(), (7.0 * 3.0 * 2e9 + 30.0 * 5e8) / HOST);
    assert_eq!(servers.reduce_ps, Time::ZERO);
    let parts = servers.compute_ps + servers.push_ps + servers.update_ps + servers.pull_ps;
    assert_eq!(servers.step_ps, parts);
    close(servers.batches_per_s, 8.0 / servers.step_ps.seconds());

    let reduced = place(&found, Where::AllReduce).synchronous;
    // 2 x 7/8 of 4 GB at 235 GB/s with 8.4 us and 14 steps of 3.4 us; 30 bytes a parameter at 87 % of 2,039 GB/s.
    close(reduced.reduce_ps.seconds(), 2.0 * 0.875 * 4e9 / 235e9 + 56e-6);
    close(reduced.update_ps.seconds(), 30e9 / (2039e9 * 0.87));
    assert!(reduced.step_ps < servers.step_ps, "inside a node all-reduce is faster");
}

#[test]
fn the_servers_links_decide_where_workers_are_many() {
    // 64 x 4 GB through 2 x 154 GB/s is 0.831 s, 4 GB through 19.25 GB/s only 0.208 s.
    let found = costs(&[DENSE], 64, &options());
    close(place(&found, Where::Servers).synchronous.push_ps.seconds(), 256e9 / 308e9 + START);
    // With as many servers as nodes both take as long.
    let found = costs(&[DENSE], 64, &ServersOptions { servers: 8, ..options() });
    close(place(&found, Where::Servers).synchronous.push_ps.seconds(), 4e9 / WIRE + START);
}

#[test]
fn different_rows_are_counted_as_drawing_them_one_by_one_does() {
    // After each draw of R rows the expected number of different ones is e + (1 - e / R).
    for (all, named, batches) in [(1.0, 3.0, 2), (7.0, 1.0, 1), (100.0, 30.0, 4), (1000.0, 5.0, 3)]
    {
        let mut expected = 0.0;
        for _ in 0..(named as u64 * batches) {
            expected += 1.0 - expected / all;
        }
        close(Rows { all, named }.different(batches), expected);
    }
    assert_eq!(Rows { all: 9.0, named: 0.0 }.different(5), 0.0);
}

#[test]
fn of_a_table_only_the_rows_travel_and_change() {
    let found = costs(&[TABLE], 8, &options());
    // 10^7 (1 - (1 - 10^-7)^5000) = 4,998.75 rows of 64 numbers with an index of 8 bytes.
    let rows = 1e7 * -((-1e-7f64).ln_1p() * 5000.0).exp_m1();
    assert!((rows - 4998.75).abs() < 0.01);
    let all_rows = 1e7 * -((-1e-7f64).ln_1p() * 40000.0).exp_m1();
    let bytes = rows * (64.0 * 4.0 + 8.0);
    let servers = place(&found, Where::Servers);
    close(servers.synchronous.push_ps.seconds(), bytes / WIRE + START);
    let sums = 7.0 * 3.0 * rows * 64.0 * 4.0;
    let applied = all_rows * 64.0 * 32.0;
    close(servers.synchronous.update_ps.seconds(), (sums + applied) / 2.0 / HOST);
    // Both tables and their sums lie on two servers; a worker holds its rows and their gradients.
    let held = (6.4e8 * 16.0 + all_rows * 64.0 * 4.0) / 2.0;
    assert_eq!(servers.server_bytes, Bytes::from_f64(held));
    assert_eq!(servers.worker_bytes, Bytes(1_000_000_000) + Bytes::from_f64(rows * 64.0 * 8.0));
    // Among workers the rows of all eight are gathered.
    let gathered = place(&found, Where::AllReduce).synchronous.reduce_ps.seconds();
    close(gathered, 0.875 * 8.0 * bytes / 230e9 + 8.4e-6 + 7.0 * 3.4e-6);
}

#[test]
fn mixed_keeps_dense_parameters_on_workers_and_tables_on_servers() {
    let both = costs(&[DENSE, TABLE], 8, &options());
    let (dense, table) = (costs(&[DENSE], 8, &options()), costs(&[TABLE], 8, &options()));
    let mixed = place(&both, Where::Mixed);
    let (kept, moved) = (place(&dense, Where::AllReduce), place(&table, Where::Servers));
    assert_eq!(mixed.synchronous.reduce_ps, kept.synchronous.reduce_ps);
    assert_eq!(mixed.synchronous.push_ps, moved.synchronous.push_ps);
    assert_eq!(mixed.server_bytes, moved.server_bytes);
    assert_eq!(
        mixed.worker_bytes + Bytes(1_000_000_000),
        kept.worker_bytes + moved.worker_bytes,
        "one set of activations"
    );
    assert_eq!(mixed.asynchronous, None);
    // A worker of all-reduce keeps 6.4e8 x 16 bytes more.
    assert!(mixed.worker_bytes < place(&both, Where::AllReduce).worker_bytes);
}

#[test]
fn a_lone_asynchronous_round_is_worked_by_hand() {
    let found = costs(&[DENSE], 8, &options());
    let free = place(&found, Where::Servers).asynchronous.expect("all on servers");
    let update = 30.0 * 5e8 / HOST;
    let round = 0.5 + 4e9 / WIRE + update + 2e9 / WIRE + 2.0 * START;
    close(free.round_ps.seconds(), round);
    // 8 rounds in 0.859 s; the servers' memory could take one in 0.047 s.
    close(free.batches_per_s, 8.0 / round);
    assert_eq!((free.limit, free.staleness), (Limit::Workers, 7));
    // From the 19th worker on the memory is always busy.
    let many = costs(&[DENSE], 24, &options());
    let busy = place(&many, Where::Servers).asynchronous.expect("all on servers");
    close(busy.batches_per_s, 1.0 / update);
    assert_eq!(busy.limit, Limit::Update);
}

/// Mini-batches a second of workers that go round a delay and then stations in turn, first come first served.
fn simulated(workers: usize, delay: f64, stations: &[f64], rounds: usize) -> f64 {
    let mut free = vec![0.0f64; stations.len()];
    // A worker's next station and when it arrives there; the earliest arrival is served next.
    let mut queue: Vec<(f64, usize)> = (0..workers).map(|_| (delay, 0)).collect();
    let (mut done, mut half) = (0, 0.0);
    loop {
        let (next, _) = queue
            .iter()
            .enumerate()
            .min_by(|a, b| a.1 .0.total_cmp(&b.1 .0))
            .expect("there are workers");
        let (arrival, station) = queue[next];
        let end = arrival.max(free[station]) + stations[station];
        free[station] = end;
        if station + 1 < stations.len() {
            queue[next] = (end, station + 1);
            continue;
        }
        queue[next] = (end + delay, 0);
        done += 1;
        if done == rounds / 2 {
            half = end;
        }
        if done == rounds {
            return (rounds - rounds / 2) as f64 / (end - half);
        }
    }
}

#[test]
fn asynchronous_workers_are_as_fast_as_a_simulated_queue() {
    for workers in [1, 3, 8, 16, 24, 40, 64] {
        for servers in [1, 2, 5] {
            let options = ServersOptions { servers, ..options() };
            let found = costs(&[DENSE], workers, &options);
            let free = place(&found, Where::Servers).asynchronous.expect("all on servers");
            let s = servers as f64;
            let stations = [4e9 / (s * 154e9), 30e9 / s / HOST, 2e9 / (s * 154e9)];
            let delay = free.round_ps.seconds() - stations.iter().sum::<f64>();
            let got = simulated(workers as usize, delay, &stations, 200 * workers as usize);
            assert!(
                (got / free.batches_per_s - 1.0).abs() < 2e-3,
                "{workers} workers, {servers} servers: {got} against {}",
                free.batches_per_s
            );
        }
    }
}

#[test]
fn a_lost_process_costs_what_the_sum_says() {
    let found = costs(&[DENSE], 8, &options());
    let reduced = place(&found, Where::AllReduce);
    // Restart, 14 GB of parameters and state at 2 GB/s, half an interval of work.
    close(reduced.lost_worker_s, 60.0 + 7.0 + 900.0);
    assert_eq!(reduced.lost_server_s, None);
    let servers = place(&found, Where::Servers);
    close(servers.lost_server_s.expect("there are servers"), 60.0 + 3.5 + 900.0);
    close(servers.lost_worker_s, 60.0 + 3.5 + 900.0);
    // Where the others go on, an eighth of the restart and of the round that was lost.
    let goes_on = costs(&[DENSE], 8, &ServersOptions { dynamic_workers: true, ..options() });
    let round = place(&found, Where::Servers).asynchronous.expect("all on servers").round_ps;
    close(place(&goes_on, Where::Servers).lost_worker_s, (60.0 + round.seconds()) / 8.0);
    assert_eq!(place(&goes_on, Where::AllReduce).lost_worker_s, reduced.lost_worker_s);
}

#[test]
fn what_lacks_memory_says_by_how_much() {
    let tight =
        ServersOptions { memory_gib: Some(10.0), server_memory_gib: Some(4.0), ..options() };
    let found = costs(&[DENSE], 8, &tight);
    // All-reduce: 14 + 4 GB and 1 GB of activations in 10 GiB; a server: (14 + 4) / 2 GB in 4 GiB.
    let lack = 19e9 / GIB - 10.0;
    assert_eq!(
        place(&found, Where::AllReduce).violations,
        [format!("a worker lacks {lack:.2} GiB of memory")]
    );
    let lack = 9e9 / GIB - 4.0;
    assert_eq!(
        place(&found, Where::Servers).violations,
        [format!("a server lacks {lack:.2} GiB of memory")]
    );
}

#[test]
fn more_servers_never_slow_a_step() {
    let mut last = Time::MAX;
    for servers in [1, 2, 3, 8, 64] {
        let found = costs(&[DENSE, TABLE], 128, &ServersOptions { servers, ..options() });
        let step = place(&found, Where::Servers).synchronous.step_ps;
        assert!(step <= last, "{servers} servers");
        last = step;
    }
}
