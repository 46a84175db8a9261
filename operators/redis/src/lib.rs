//! The RedisCluster operator: a Redis primary and its replicas, kept alive on Kubernetes.
//!
//! ```text
//! RedisCluster ─▶ render (children) ─▶ API server
//!      │
//!      ├─ facts (pods, claims, nodes) ─┐
//!      └─ observe (a monitor a server) ─┴▶ Observation ─▶ decide (pure) ─▶ act (one step) ─▶ status
//! ```
//!
//! Everything that must not go wrong is in `decide`: a pure function from a complete observation to one step,
//! tested over random histories of model servers.

mod act;
mod admission;
pub mod api;
mod controller;
mod decide;
mod facts;
mod metrics;
#[cfg(test)]
mod model;
mod observe;
#[cfg(test)]
mod real;
mod render;
mod settings;
#[cfg(test)]
mod simulated;
mod status;

pub use controller::{RedisClusters, operator, operator_with};
pub use observe::{
    Address, Command, Credentials, Dial, DialError, Follower, Handover, Link, Place, Server, Session,
    SessionError, Target,
};
