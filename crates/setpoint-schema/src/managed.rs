//! Managed fields: who owns which field, server-side apply, and the tracking of other writes.
//!
//! ```text
//! live ─┬─▶ merge with the intent ─▶ remove what this manager dropped and nobody else owns ─▶ compare with live
//!       └─▶ entries of metadata.managedFields ◀── conflicts, or fields taken over by force ◀──────────┘
//! ```
//!
//! The rules are those of structured-merge-diff v6 and of apimachinery's field manager in Kubernetes v1.37.

mod apply;
mod compare;
mod conflict;
mod declared;
mod entries;
mod field_set_of;
mod last_applied;
mod merge;
mod remove;
mod shape;
mod update;
mod versions;

pub use self::{
    apply::{Applied, ApplyError, ApplyRequest, apply, apply_in_versions},
    conflict::{Conflict, Conflicts},
    entries::{Entries, EntriesError, Entry, Operation, keep_times},
    update::{UpdateRequest, update, update_in_versions},
    versions::{Needed, Versions},
};

/// Fields of `metadata` that no manager ever owns: identity and bookkeeping (upstream: `stripMetaManager`).
pub(crate) const NEVER_OWNED_METADATA: [&str; 9] = [
    "clusterName",
    "creationTimestamp",
    "generation",
    "managedFields",
    "name",
    "namespace",
    "resourceVersion",
    "selfLink",
    "uid",
];
