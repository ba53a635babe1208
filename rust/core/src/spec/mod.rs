//! What is asked: model, cluster, workload, framework, and the problem made of them.

pub mod attention;
pub mod cluster;
pub mod exchange;
pub mod framework;
pub mod kernels;
pub mod model;
pub mod problem;
pub mod tensors;
pub mod workload;
