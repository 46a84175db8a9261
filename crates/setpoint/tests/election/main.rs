//! Replicas of an operator that elect the one that works: in one process, in simulated time, against the
//! embedded API server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod chaos;
mod handover;
mod replicas;
