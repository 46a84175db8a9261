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

#[cfg(feature = "cel")]
pub mod cel;
mod default;
mod element;
mod field_error;
mod field_set;
pub mod managed;
mod omit;
pub mod patch;
mod printed;
mod prune;
mod schema;
mod size;
mod validate;

pub use default::{default, default_applied};
pub use element::{Element, Literal};
pub use field_error::{ErrorKind, FieldError, FieldPath};
pub use field_set::{
    FieldSet, FieldSetError, Node, Path,
    fingerprint::{fingerprint, fingerprint_of, normalise},
    project::project,
};
pub use omit::{fill_nulls, forget_empty, has_empty_texts, keep_empty_texts, omit_empty, write_zeros};
pub use printed::printed;
pub use prune::{UnknownField, prune};
pub use schema::{Schema, SchemaError};
pub use size::json_size;
pub use validate::{is_known_format, validate, validate_update};
