//! Times the search on the whole problem documents of `benches/problems`, and first prints what it counted.
//!
//! `cargo bench -p autopar-core --bench search -- NAME` runs those whose name contains NAME.

use autopar_core::search::search;
use autopar_core::spec::problem::Problem;
use autopar_core::Watch;
use criterion::Criterion;
use std::hint::black_box;
use std::path::{Path, PathBuf};

/// The documents whose name contains `wanted`, by name.
fn problems(wanted: &str) -> Vec<(String, Problem)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/problems");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("benches/problems is a folder")
        .map(|entry| entry.expect("a folder can be listed").path())
        .collect();
    files.sort();
    files
        .into_iter()
        .map(|file| (file.file_stem().unwrap_or_default().to_string_lossy().into_owned(), file))
        .filter(|(name, _)| name.contains(wanted))
        .map(|(name, file)| {
            let text = std::fs::read_to_string(&file).expect("a document can be read");
            let problem: Problem = serde_json::from_str(&text).expect("it is a problem");
            (name, problem.validate().expect("it is a valid problem"))
        })
        .collect()
}

fn searches(c: &mut Criterion) {
    // Criterion knows its filter only when it runs: counters are printed for the same names.
    let wanted = std::env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
    let mut group = c.benchmark_group("search");
    group.sample_size(10);
    for (name, problem) in problems(&wanted) {
        let report = search(problem.clone(), &Watch::new(None));
        let n = &report.counters;
        println!("\n{name}: proved {}, considered {}", report.proved, n.considered);
        println!("  estimated {}, estimates {}, bounds {}", n.estimated, n.estimates, n.bounds);
        println!("  cut {:?}", n.cut);
        if let Some(best) = report.ranked.first() {
            println!("  best {:?} in {} ps", best.plan, best.estimate.step_ps.0);
        }
        group.bench_function(&name, |b| {
            b.iter(|| search(black_box(problem.clone()), &Watch::new(None)))
        });
    }
    group.finish();
}

fn main() {
    searches(&mut Criterion::default().configure_from_args());
    Criterion::default().configure_from_args().final_summary();
}
