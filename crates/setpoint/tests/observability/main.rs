//! What others see of an operator and may do to it: manifests, metrics, traces.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail as tests do")]

mod guarded;
mod manifests;
mod scrape;
mod world;
