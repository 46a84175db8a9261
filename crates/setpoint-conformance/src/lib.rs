//! Conformance as data: cases in `conformance/cases`, what a real kube-apiserver answered in `conformance/recordings`.
//!
//! ```text
//! cases/*.yaml ─▶ Case ─▶ run ── requests ─▶ server
//!                          │ ◀─── answers ──┘
//!                          ▼
//!                      Normal: identifiers, versions and times become $uid1, $version1, $time
//!                          ▼
//!                      Outcome ─┬─ record ──▶ recordings/*.json
//!                               └─ compare ◀─ recordings/*.json ──▶ differences: path, expected, got
//! ```
//!
//! A case with `webhooks` has a server of its own that the API server calls; what it was sent is compared as well.
//!
//! The format is described in `conformance/README.md`.

mod case;
mod check;
mod client_certificates;
mod compare;
mod normal;
mod not_yet;
mod pointer;
mod protobuf;
mod recording;
mod run;
mod server;
mod session;
mod webhooks;

pub use case::{Case, CaseError, Step, Suite, Topic};
pub use check::{Report, check, record};
pub use client_certificates::{ClientAuthority, ClientCertificate};
pub use compare::{Difference, differences};
pub use not_yet::{NotYet, NotYetError, verdict};
pub use recording::{Recording, RecordingError};
pub use run::{Outcome, Recorded, run};
pub use server::{Server, ServerError, Trust};
