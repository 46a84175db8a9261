//! An API server that behaves as Kubernetes does, inside one process

mod authz;
mod builtin;
mod identity;

pub use identity::Identity;
