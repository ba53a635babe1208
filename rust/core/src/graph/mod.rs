//! The operator level: which axis of which tensor of each operator is cut over which devices.

pub mod form;
pub mod ir;
pub mod problem;
