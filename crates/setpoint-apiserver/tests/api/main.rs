//! The API server through its in-process service: what a client sends and what it gets.

mod client;
mod conformance;
mod definitions;
mod network;
mod objects;
mod pods;
mod watches;
