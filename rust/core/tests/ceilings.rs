//! How much the searches of `benches/problems` may count and hold in memory: a bound that gets weaker is seen here, not in
//! seconds.

use autopar_core::search::search;
use autopar_core::spec::problem::Problem;
use autopar_core::Watch;
use std::path::Path;

/// The documents, with the most bounds and the most plans that their searches may compute: half as many again as they did
/// when this was written, as the estimate moves both a little.
const CEILINGS: &[(&str, u64, u64)] = &[
    ("deepseek-v3-2048-h800", 264_000, 65),
    ("gpt3-175b-4096-a100", 60_000, 190),
    ("llama-175b-25000-h800", 7_700, 27),
    ("llama-1800b-1048576-h800", 18_000, 17),
    ("llama-540b-1048576-three", 41_500, 15),
    ("llama-540b-1048576-three-limited", 740_000, 22_000),
    ("llama-540b-1048576-two", 41_500, 15),
    ("llama2-70b-256-a800", 21_500, 42),
    ("llama2-70b-256-a800-h800", 72_500, 98),
    ("llama2-70b-288-a800-h800", 28_500, 45),
    ("llama2-70b-288-a800-h800-mixed-tp", 88_000, 67),
    ("llama2-70b-384-three-mixed-tp", 478_000, 210),
    ("llama2-70b-8000-h800", 72_500, 117),
];

fn problem(name: &str) -> Problem {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/problems");
    let text = std::fs::read_to_string(folder.join(format!("{name}.json"))).expect("a document");
    serde_json::from_str::<Problem>(&text).expect("a problem").validate().expect("a valid one")
}

/// The largest part of memory that the process has held, in MiB, where the system tells.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib >> 10)
}

#[test]
fn no_search_of_the_benchmarks_counts_more_than_its_ceiling() {
    for &(name, bounds, estimates) in CEILINGS {
        let counters = search(problem(name), &Watch::new(None)).counters;
        println!("{name}: {} bounds, {} estimates", counters.bounds, counters.estimates);
        assert!(counters.bounds <= bounds, "{name}: {} bounds", counters.bounds);
        assert!(counters.estimates <= estimates, "{name}: {} estimates", counters.estimates);
        // A space may have more classes than the counters can tell: then they stand still.
        if counters.considered < u64::MAX {
            let cut: u64 = counters.cut.values().sum();
            assert_eq!(counters.considered, counters.estimated + cut, "{name}");
        }
    }
    let Some(peak) = peak_mib() else { return };
    println!("{peak} MiB at the peak");
    assert!(peak < 150, "{peak} MiB");
}
