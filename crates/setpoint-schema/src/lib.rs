//! Kubernetes object semantics as pure functions.
//!
//! Objects are [`serde_json::Value`]s. Nothing here reads a clock, talks to a server or keeps state.
//!
//! ```text
//! OpenAPI v3 ─▶ Schema ──┬─▶ validate · prune · default ─▶ every wrong field, unknown fields, a complete object
//!                        ├─▶ patch::{json, merge, strategic} ─▶ the patched object
//!                        └─▶ managed::{apply, update} ─▶ the object with its metadata.managedFields, or conflicts
//!                                 │
//! fieldsV1 ◀─────────────▶ FieldSet ─▶ project ─▶ fingerprint (what a manager owns, in 8 bytes)
//! ```

mod element;
mod field_set;
pub mod managed;
pub mod patch;
mod schema;

pub use element::{Element, Literal};
pub use field_set::{
    FieldSet, FieldSetError, Node, Path,
    fingerprint::{fingerprint, normalise},
    project::project,
};
pub use schema::{Schema, SchemaError};
