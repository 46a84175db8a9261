//! An API server with built-in controllers and hollow nodes.

mod hollow;
pub mod kubelet;
mod labels;
mod quantity;
mod scheduler;
mod statefulset;

pub use hollow::{Behaviour, ExecAnswer, HollowRuntime, Run};
