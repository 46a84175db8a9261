//! A Kubernetes cluster inside one process: an API server, the built-in controllers, and nodes.
//!
//! ```text
//!                 ┌────────── ApiServer ──────────┐
//!   scheduler ────┤  StatefulSets, Pods, Nodes …  ├──── kubelet of each node ──▶ Runtime
//!   StatefulSets ─┤         (watch, apply)        │      (pod machine)           hollow: a script
//!   …             └───────────────────────────────┘                              process: setpoint-node
//! ```
//!
//! The controllers are written with the SDK, decide by pure functions, and start when first something of their
//! kind is used. The kubelet is generic over [`kubelet::Runtime`]; [`HollowRuntime`] runs nothing and follows a
//! script, so that a whole cluster works in simulated time.

mod aggregation;
mod attached;
mod cluster;
mod controllers;
mod endpoints;
mod garbage;
mod hollow;
pub mod kubelet;
mod labels;
mod namespaces;
mod policies;
mod quantity;
mod quotas;
mod recorder;
mod scheduler;
mod serviceaccounts;
mod statefulset;
mod unreachable;
mod volumes;

pub use attached::Attached;
pub use cluster::{Cluster, ClusterBuilder};
pub use hollow::{Behaviour, ExecAnswer, HollowRuntime, Run};
pub use setpoint_apiserver::{ApiServer, Identity};
