//! Controllers against the embedded API server: in process, without sockets, in simulated time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod apply;
mod convergence;
mod failures;
mod finalizers;
mod handlers;
mod mapping;
mod seen;
mod sources;
mod world;
mod writes;
