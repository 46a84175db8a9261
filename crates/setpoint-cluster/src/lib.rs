//! An API server with built-in controllers and hollow nodes.

pub mod kubelet;
mod quantity;
