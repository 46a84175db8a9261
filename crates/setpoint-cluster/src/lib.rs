//! An API server with built-in controllers and hollow nodes.

mod hollow;
pub mod kubelet;
mod quantity;

pub use hollow::{Behaviour, ExecAnswer, HollowRuntime, Run};
