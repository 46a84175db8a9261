//! The API server through its in-process service: what a client sends and what it gets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "in a test, an assumption that fails should fail it"
)]

mod bodies;
mod client;
mod definitions;
mod load;
mod network;
mod objects;
mod pods;
mod races;
mod streams;
mod watches;
mod webhooks;
