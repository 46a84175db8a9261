//! The test kit for operators.
//!
//! ```text
//! TestEnv::embedded() ──▶ setpoint-cluster in this process ──▶ clients (admin, or as a ServiceAccount)
//!                                   ▲                              │
//! eventually("…", bound, probe) ────┴── probes, and says what it saw last when the bound is over
//! ```

mod wait;

pub use wait::{Seen, WaitError, eventually, throughout};
