//! Facts about the kinds that are built into Kubernetes: names, scope, verbs, subresources, the shape of their fields, and
//! how Go's types read and print them, and the roles of a fresh cluster.
//!
//! ```text
//! kube-apiserver ── generator/fetch.sh ──▶ documents ── generator/generate.rs ──▶ src/*.txt ──▶ kinds(), definition(), message()
//! ```
//!
//! The facts come from the discovery and OpenAPI v3 documents of a real kube-apiserver. They are embedded as text: the table of kinds is parsed at its
//! first use (well under a millisecond), and each definition when it is first asked for. Their prose lies apart, compressed, and is unpacked for as long
//! as somebody holds it; it is text of Kubernetes, © its authors, under the Apache License 2.0 (see NOTICE).

mod column;
mod definition;
mod facts;
mod go;
mod kind;
mod message;
mod presence;
mod prose;

pub use column::columns;
pub use definition::{REF_PREFIX, definition, definition_names};
pub use facts::{bootstrap_policy, kubernetes_version};
pub use go::{GoField, GoMember, GoShape, Name, go_fields, go_members};
pub use kind::{Kind, Subresource, by_kind, by_resource, kinds};
pub use message::{Label, MessageField, message};
pub use presence::{Presence, presence};
pub use prose::{Paths, Prose};
