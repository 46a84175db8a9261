//! What a user does with an ordinary kubectl against `setpoint dev`. Runs with the kubectl that `SETPOINT_KUBECTL` names, or the one in PATH, and
//! says so where there is none.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their helpers")]

mod access;
mod apply;
mod built_in;
mod custom;
mod deletion;
mod dev;
mod pods;
