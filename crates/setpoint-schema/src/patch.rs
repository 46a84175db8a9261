//! The three patch types that a PATCH request may carry beside server-side apply.

mod json_patch;
mod merge;
mod strategic;

pub use self::{
    json_patch::{json, json_of_any_length},
    merge::{merge, merge_diff},
    strategic::strategic,
};

/// Indicates that a patch cannot be applied. The target may be half patched then: throw it away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch itself is malformed: the server answers 400 BadRequest.
    #[error("{0}")]
    Malformed(String),
    /// The patch has a directive that upstream's code trips over: the server answers 500 without a reason.
    #[error("{0}")]
    Failed(String),
    /// The patch is well-formed but does not fit the object: the server answers 422 Invalid.
    #[error("{0}")]
    Unprocessable(String),
    /// A `test` of the patch does not hold: the server answers 422 Invalid.
    #[error("{0}")]
    TestFailed(String),
    /// The patch has too many operations: the server answers 413 RequestEntityTooLarge.
    #[error("{0}")]
    TooLarge(String),
}
