//! The test kit for operators.
//!
//! ```text
//! TestEnv::start() ── SETPOINT_TEST_SERVER ─┬─▶ embedded: setpoint-cluster in this process
//!        │                                  ├─▶ binaries: kube-apiserver and etcd, started for the test
//!        │                                  └─▶ existing: the kubeconfig's cluster
//!        ├─ run(operator): CRDs, derived RBAC, its own ServiceAccount ─▶ Running: stops, and tells refused rights
//!        │                                              all of a suite ─▶ unused_rights(operator)
//!        ├─ reconcile(controller, key): one object, once ─▶ Pass: action, writes, events, causes
//!        └─ wait_for(…): says what it saw last when the bound is over
//!
//! Faults::new().under(operator): fail, delay, lose, freeze, crash after the n-th write
//! ```

mod control_plane;
mod env;
mod faults;
mod pass;
mod request;
mod rights;
mod server;
mod suite;
mod wait;
mod witness;

pub use control_plane::{ControlPlane, ControlPlaneError};
pub use env::{EnvError, OPERATOR_NAMESPACE, Running, TestEnv};
pub use faults::{Fault, Faults, Faulty, Requests};
pub use pass::Pass;
pub use request::ApiRequest;
pub use server::TestServer;
pub use suite::unused_rights;
pub use wait::{Seen, WaitError, eventually, throughout};
pub use witness::Sent;
