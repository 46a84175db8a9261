//! What fuzzing feeds: one function for each parser of the API server, from bytes that anybody may have sent.
//!
//! ```text
//! fuzz/targets/NAME.rs ─┐                      ┌▶ Server ─▶ ApiServer (in process, dry run)
//!                            ├─ bytes ─▶ TARGETS ───┤
//! tests/replay.rs ───────────┘                      └▶ setpoint-schema
//! ```
//!
//! A function panics where the parser is wrong: when it panics itself, when the server answers that it did, or when something
//! that must hold for any input does not.

#![allow(clippy::missing_panics_doc, reason = "to panic is how a finding is told")]

mod answers;
mod certificates;
mod schemas;
mod server;
mod streams;
mod writes;

pub use answers::answers;
pub use certificates::certificates;
pub use schemas::{cel, field_sets, schemas};
pub use server::{pages, request, selectors};
pub use streams::{spdy, web_sockets};
pub use writes::{apply, bodies, columns, json_patch, merge_patch, protobuf, strategic_patch};

/// A function that fuzzing feeds.
pub type Target = fn(&[u8]);

/// All of them, by the names of their folders in `fuzz/seeds` and files in `fuzz/targets`.
pub const TARGETS: [(&str, Target); 17] = [
    ("answers", answers),
    ("apply", apply),
    ("bodies", bodies),
    ("cel", cel),
    ("certificates", certificates),
    ("columns", columns),
    ("field_sets", field_sets),
    ("json_patch", json_patch),
    ("merge_patch", merge_patch),
    ("pages", pages),
    ("protobuf", protobuf),
    ("request", request),
    ("schemas", schemas),
    ("selectors", selectors),
    ("spdy", spdy),
    ("strategic_patch", strategic_patch),
    ("web_sockets", web_sockets),
];
