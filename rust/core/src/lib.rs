//! Finds the fastest parallel training plan for a model on a cluster, and proves it.
//!
//! A [`Problem`](spec::problem::Problem) (model, cluster, workload, framework, options) goes in; [`search::search`] walks
//! the [`search::space`] in the order of a lower bound ([`search::bound`]), lets [`estimate::estimate`] judge, and returns
//! a [`Report`](search::report::Report). Nothing here reads a file or a clock, but for a search's time limit; nothing is
//! global.
//!
//! ```
//! use autopar_core::{search::{search, watch::Watch}, testing};
//!
//! let cluster = testing::cluster(testing::a100(), 8);
//! let problem = testing::problem(testing::gpt(4, 1024), cluster, 64, 1024);
//! let report = search(problem, &Watch::new(None));
//! assert!(report.proved);
//! assert_eq!(report.ranked[0].plan.devices(), 8);
//! ```

pub mod bulk;
pub mod calibrate;
pub mod error;
pub mod estimate;
pub mod graph;
pub mod plan;
pub mod reading;
pub mod search;
pub mod spec;
#[doc(hidden)]
pub mod testing;
pub mod units;
pub mod wire;

pub use error::Error;
pub use search::watch::Watch;
