//! The SDK: what controller-runtime is to Go, on top of kube.
//!
//! ```text
//! API server ── watch ──▶ Reflector ──▶ Cache ──▶ handlers ──▶ Queue ──▶ Worker ──▶ reconcile(object, cx)
//!                                        ▲  │ read                                        │
//!                        written objects ┘  └──▶ Context ── apply / status / delete ──────┘──▶ API server
//! ```
//!
//! Implement [`Reconciler`], declare a [`Controller`], and give it to an `Operator`.

mod action;
mod background;
mod cache;
mod cause;
mod client;
mod condition;
mod context;
mod controller;
mod decode;
mod diff;
mod election;
mod error;
mod events;
mod failures;
mod fingerprint;
mod function;
mod handlers;
mod health;
mod key;
mod link;
mod logs;
mod metrics;
mod object;
mod operator;
mod packed;
mod predicate;
mod queue;
mod rbac;
mod reconciler;
mod reflector;
mod report;
mod request;
mod rights;
mod runtime;
mod selector;
mod store;
mod traces;
mod webhook;

pub use action::{Action, minutes, seconds};
pub use background::Background;
pub use cache::{CacheHealth, Caches};
pub use cause::{Cause, Reason};
pub use client::{DeadlineExceeded, RequestStack, RetryPolicy, Transport};
pub use condition::set_condition;
pub use context::{
    Applied, Apply, Context, Create, Delete, Incomplete, NotCached, Patch, Patching, Propagation, Refused,
    Replace, Resource,
};
pub use controller::{AnyController, Channel, Controller, Lookup, Trigger, Watch, by_index};
pub use diff::FieldChange;
pub use election::{Election, Lock, NotLeading, Term};
pub use error::{Error, Result, Retry};
pub use failures::{Failure, Failures};
pub use function::reconciler;
pub use handlers::{Handlers, Update, handlers};
pub use health::Health;
pub use k8s_openapi;
pub use key::{Key, ObjectRef};
pub use kube;
pub use logs::{LogError, LogFormat, init_logs};
pub use metrics::Metrics;
pub use object::{Kind, Object, Scoped};
pub use operator::{Operator, OperatorError, Task};
pub use predicate::{
    Change, Predicate, annotations_changed, generation_changed, labels_changed, resource_version_changed,
};
pub use reconciler::{Cleanup, Reconciler};
pub use report::{Ended, Report, Reports, Write, WriteChange, WriteVerb};
pub use rights::{Declarations, Target, Undeclared, Verb};
pub use runtime::{
    Event, LogOnly, Observer, Reconciled, Recorder, Runtime, RuntimeBuilder, Severity, Unobserved,
};
pub use selector::Selector;
pub use setpoint_clock::{Clock, Entropy};
pub use setpoint_manifests::{Install, Rights, Rule, Scope};
pub use webhook::{
    AdmissionRequest, Certificates, ConversionError, Defaulter, FailurePolicy, Operation, Review, Spoke,
    User, Validator, Versions, VersionsError, Webhook, Webhooks,
};
