//! Webhooks: what the API server asks an operator before it stores an object.
//!
//! ```text
//! AdmissionReview ─▶ path ─▶ Webhook: time limit, panic guard ─▶ Defaulter: what it changed, as a patch ─┐
//!                                                              └▶ Validator: findings ───────────────────┴▶ response
//! ```
//!
//! [`Webhooks`] is the whole server without its sockets: a request in, a response out. An operator serves it over TLS;
//! tests give it to an API server in their own process.

mod admission;
pub(crate) mod certificates;
mod loss;
pub(crate) mod migration;
mod patch;
mod request;
mod review;
mod server;
mod service;
mod versions;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use self::admission::{Admit, DefaultWith, Defaulting, ValidateWith, Validating};
pub use self::admission::{Defaulter, Validator};
pub use self::certificates::Certificates;
pub use self::request::{AdmissionRequest, Operation, User};
pub use self::review::Review;
pub(crate) use self::server::{Handler, reviews, serve};
pub use self::service::Webhooks;
pub(crate) use self::versions::AnyVersions;
pub use self::versions::{ConversionError, Spoke, Versions, VersionsError};
use crate::{Kind, Object};

/// What the API server does with a request when a webhook cannot be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// It is refused: nothing passes unseen.
    #[default]
    Fail,
    /// It passes.
    Ignore,
}

impl FailurePolicy {
    /// As a webhook configuration writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fail => "Fail",
            Self::Ignore => "Ignore",
        }
    }
}

/// A webhook for admission, from its declaration to its configuration; see [`Operator::webhook`](crate::Operator::webhook).
///
/// Its path is the one of kubebuilder's projects: `/validate-<group>-<version>-<kind>` or `/mutate-…`, with dashes for the
/// dots of the group.
#[derive(Clone)]
pub struct Webhook {
    pub(crate) kind: Kind,
    pub(crate) mutating: bool,
    pub(crate) operations: &'static [Operation],
    pub(crate) failure_policy: FailurePolicy,
    pub(crate) time_limit: Duration,
    pub(crate) match_conditions: Vec<(String, String)>,
    admit: Arc<dyn Admit>,
}

impl Webhook {
    /// A validating webhook.
    pub fn validating<V: Validator>(validator: V) -> Self
    where
        <V::Object as kube::Resource>::DynamicType: Default,
    {
        let kind = Kind::of::<V::Object>();
        let admit = Arc::new(Validating { validator, kind: kind.clone() });
        Self::new(kind, false, V::OPERATIONS, admit)
    }

    /// A mutating webhook that sets defaults.
    pub fn defaulting<D: Defaulter>(defaulter: D) -> Self
    where
        <D::Object as kube::Resource>::DynamicType: Default,
    {
        let kind = Kind::of::<D::Object>();
        let admit = Arc::new(Defaulting { defaulter, kind: kind.clone() });
        Self::new(kind, true, D::OPERATIONS, admit)
    }

    /// A validating webhook made of a closure, which is asked about creations and updates.
    pub fn validate<K: Object>(check: impl Fn(&K, &mut Review) + Send + Sync + 'static) -> Self
    where
        K::DynamicType: Default,
    {
        Self::validating(ValidateWith(check, PhantomData))
    }

    /// A defaulting webhook made of a closure.
    pub fn default<K: Object>(fill: impl Fn(&mut K, &mut Review) + Send + Sync + 'static) -> Self
    where
        K::DynamicType: Default,
    {
        Self::defaulting(DefaultWith(fill, PhantomData))
    }

    fn new(kind: Kind, mutating: bool, operations: &'static [Operation], admit: Arc<dyn Admit>) -> Self {
        Self {
            kind,
            mutating,
            operations,
            failure_policy: FailurePolicy::Fail,
            time_limit: Duration::from_secs(10),
            match_conditions: Vec::new(),
            admit,
        }
    }

    /// What happens to a request when the webhook cannot be asked. Default: it is refused.
    pub fn failure_policy(mut self, policy: FailurePolicy) -> Self {
        self.failure_policy = policy;
        self
    }

    /// How long the API server waits, in whole seconds from 1 to 30. Default: 10 s. The webhook itself is given up a
    /// little earlier, so that the answer says which one it was.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Duration::from_secs(limit.as_secs().clamp(1, 30));
        self
    }

    /// Only requests for which the CEL expression is true are asked about: `request.userInfo.username != 'system:admin'`.
    pub fn match_condition(mut self, name: impl Into<String>, expression: impl Into<String>) -> Self {
        self.match_conditions.push((name.into(), expression.into()));
        self
    }

    /// The path that it is served at.
    pub fn path(&self) -> String {
        let Kind { group, version, kind, .. } = &self.kind;
        let verb = if self.mutating { "mutate" } else { "validate" };
        format!("/{verb}-{}-{version}-{}", group.replace('.', "-"), kind.to_lowercase())
    }

    /// Its name in its configuration. Kubernetes asks for three parts at least, which a core kind has not.
    pub(crate) fn name(&self) -> String {
        let Kind { group, version, plural, .. } = &self.kind;
        let group = if group.is_empty() { "core" } else { group };
        let verb = if self.mutating { "default" } else { "validate" };
        format!("{verb}.{plural}.{version}.{group}")
    }
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").field("path", &self.path()).finish_non_exhaustive()
    }
}
