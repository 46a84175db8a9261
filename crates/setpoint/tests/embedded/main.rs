//! Controllers against the embedded API server: in process, without sockets, in simulated time. The same against a real one:
//!
//! ```console
//! SETPOINT_TEST_SERVER=binaries KUBEBUILDER_ASSETS=/path cargo test -p setpoint --test embedded -- --test-threads=2
//! ```
//!
//! Tests of nothing but timers (resyncs, ticks, the same seed) end at once there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod apply;
mod background;
mod convergence;
mod dynamic;
mod failures;
mod finalizers;
mod handlers;
mod linked;
mod mapping;
mod seen;
mod sources;
mod world;
mod writes;
