//! An API server that behaves as Kubernetes does, inside one process.
//!
//! ```text
//! kubectl ── HTTPS ──▶ authentication ─┐
//!                                      ▼
//! kube::Client ── InProcess(identity) ─▶ request ─▶ authorization (RBAC) ─▶ registry ─▶ store
//!                                                                              ▲          │ event log
//!                                                                              └─ watch ◀─┘
//! ```
//!
//! Objects are JSON values; the shapes of built-in kinds come from `setpoint-kinds`, the semantics of patches, managed
//! fields and schemas from `setpoint-schema`. What is not implemented answers 501 with a message that names it.

mod admission;
mod authn;
mod authz;
mod autoscaling;
mod body;
mod builtin;
mod catalog;
mod certificates;
mod client_certificates;
mod containers;
mod custom;
mod deadline;
mod discovery;
mod dispatch;
mod distinguished_name;
mod events;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod headers;
mod https;
mod identity;
mod impersonation;
mod in_process;
mod kubelet;
mod object;
mod object_meta;
mod openapi;
mod paths;
mod policies;
mod protobuf;
mod registry;
mod render;
mod request;
mod request_body;
mod reviews;
mod selector;
mod server;
mod status;
mod store;
mod table;
mod token_request;
mod tokens;
mod warnings;
mod webhooks;

pub use body::Body;
pub use certificates::CertificateError;
pub use https::Serving;
pub use identity::Identity;
pub use in_process::InProcess;
pub use kubelet::{
    Connection, ContainerRef, ExecExit, ExecOptions, ExecSession, Kubelet, KubeletError, LogOptions,
};
pub use server::{ApiServer, Builder, FirstUses, KUBECONFIG_CONTEXT, ResourceName};
pub use store::OpenError;
pub use webhooks::{WebhookAnswer, WebhookServer};
