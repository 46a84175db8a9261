//! The test kit for operators.
//!
//! ```text
//! TestEnv::embedded() ──▶ setpoint-cluster in this process ──▶ clients (all rights, or as a ServiceAccount)
//!        │ run(operator): CRDs, derived RBAC, its own ServiceAccount  │
//!        ▼                                                           ▼
//!     Running                    eventually("…", bound, probe): says what it saw last when the bound is over
//!
//! ControlPlane::start(KUBEBUILDER_ASSETS) ──▶ a real kube-apiserver and etcd, to check against
//! ```

mod control_plane;
mod env;
mod wait;

pub use control_plane::{ControlPlane, ControlPlaneError};
pub use env::{EnvError, OPERATOR_NAMESPACE, Running, TestEnv};
pub use wait::{Seen, WaitError, eventually, throughout};
