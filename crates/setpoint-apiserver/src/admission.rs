//! Admission: what may change or refuse a write between its decoding and the store
//! (`k8s.io/apiserver/pkg/admission`, order of `pkg/kubeapiserver/options/plugins.go`).
//!
//! ```text
//! decode · default · managed fields ─▶ mutate ─▶ prepare · validate the object ─▶ validate ─▶ store
//!                                       │                                         │
//!              built-in plugins, policies, webhooks          built-in plugins, policies, webhooks, quota
//! ```
//!
//! Creates, updates, patches and applies pass both places, also those of subresources and dry runs; a deletion passes both with
//! nothing but the old object, each object of a collection on its own; so does opening a stream (`exec`, `attach`, `portforward`,
//! `proxy`), with its options as the object. What a mutation makes of an object belongs to no field manager, and is validated
//! like what the client sent.

mod certificates;
mod claim_resize;
mod classes;
mod connect;
mod expressions;
mod lifecycle;
mod limits;
mod matching;
mod pod_security;
mod policy;
mod priority;
mod quota;
mod resize;
mod runtime_class;
mod service_account;
mod staying;
mod topology;
mod versions;
mod webhooks;

use std::sync::Arc;

use serde_json::{Value, json};
use setpoint_schema::managed::Entries;

pub(crate) use self::expressions::environment;
pub(crate) use self::policy::Cache as CompiledPolicies;
use self::policy::PolicyRounds;
pub(crate) use self::staying::{protect_storage, tolerate_failing_nodes};
use self::webhooks::Reinvocation;
use crate::catalog::Resource;
use crate::identity::Identity;
use crate::object::{Metadata, meta_mut};
use crate::registry::{DeleteOptions, Place, Registry, WriteOptions};
use crate::status::{Result, Status};

/// What a request does, in the sense of admission: a patch updates, or creates when an apply finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    /// As rules of webhooks and policies name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// Group, version and kind of the object of a request. For a subresource it may be another one than that of the resource: `Scale`,
/// `Eviction`, `PodExecOptions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectKind<'a> {
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) kind: &'a str,
}

/// The options of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Options<'a> {
    Write(&'a WriteOptions),
    Delete(&'a DeleteOptions),
    /// Of a stream: they are its object.
    Connect,
}

/// What admission knows of a request beside its object, which the two places get on its own (`null` for a deletion).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes<'a> {
    pub(crate) operation: Operation,
    /// The resource, and namespace and name as far as the request names them: the name of an object that is created under
    /// `generateName` is empty, and so is that of a deleted collection.
    pub(crate) place: &'a Place,
    /// Empty for the object itself.
    pub(crate) subresource: &'a str,
    pub(crate) kind: ObjectKind<'a>,
    /// The object as it is: of updates and deletions.
    pub(crate) old: Option<&'a Value>,
    pub(crate) options: Options<'a>,
    pub(crate) user: &'a Identity,
}

impl<'a> Attributes<'a> {
    /// A creation (without an `old` object) or an update.
    pub(crate) fn write(
        place: &'a Place,
        subresource: &'a str,
        old: Option<&'a Value>,
        options: &'a WriteOptions,
    ) -> Self {
        let operation = if old.is_some() { Operation::Update } else { Operation::Create };
        let kind = ObjectKind::of(&place.resource);
        let user = &options.user;
        Self { operation, place, subresource, kind, old, options: Options::Write(options), user }
    }

    /// The same request with an object of another kind.
    pub(crate) fn of_kind(self, group: &'a str, version: &'a str, kind: &'a str) -> Self {
        Self { kind: ObjectKind { group, version, kind }, ..self }
    }

    pub(crate) fn delete(
        place: &'a Place,
        old: &'a Value,
        options: &'a DeleteOptions,
        user: &'a Identity,
    ) -> Self {
        Self {
            operation: Operation::Delete,
            place,
            subresource: "",
            kind: ObjectKind::of(&place.resource),
            old: Some(old),
            options: Options::Delete(options),
            user,
        }
    }

    pub(crate) fn resource(&self) -> &'a Arc<Resource> {
        &self.place.resource
    }

    /// The namespace of the request: for a namespace, it is its own.
    pub(crate) fn namespace(&self) -> &'a str {
        if self.resource().is("", "namespaces") { &self.place.name } else { &self.place.namespace }
    }

    pub(crate) fn dry_run(&self) -> bool {
        match self.options {
            Options::Write(options) => options.dry_run,
            Options::Delete(options) => options.dry_run(),
            Options::Connect => false,
        }
    }

    /// Whether this is about `group` and `plural` themselves and not about a subresource.
    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.subresource.is_empty() && self.resource().is(group, plural)
    }

    /// Refuses the request. An object that has no name yet is named as far as it will be (upstream: `admission.NewForbidden`).
    pub(crate) fn forbidden(&self, object: &Value, why: &str) -> Status {
        let own = |field: &str| Some(object.meta(field)).filter(|name| !name.is_empty());
        let known = Some(self.place.name.as_str()).filter(|name| !name.is_empty());
        let name = known.or_else(|| own("name")).or_else(|| own("generateName")).unwrap_or("Unknown");
        Status::forbidden(self.resource().subject(name), why)
    }

    /// `CreateOptions`, `UpdateOptions` or `DeleteOptions` as reviews of webhooks and policies show them; `null` for streams.
    pub(crate) fn options_object(&self) -> Value {
        let mut object = match self.options {
            Options::Connect => return Value::Null,
            Options::Delete(options) => options.to_value(),
            Options::Write(options) => options.to_value(),
        };
        let kind = match self.operation {
            Operation::Create => "CreateOptions",
            Operation::Update => "UpdateOptions",
            _ => "DeleteOptions",
        };
        object["kind"] = kind.into();
        object["apiVersion"] = "meta.k8s.io/v1".into();
        object
    }
}

impl<'a> ObjectKind<'a> {
    fn of(resource: &'a Resource) -> Self {
        Self { group: &resource.group, version: &resource.version, kind: &resource.kind }
    }

    /// `{group, version, kind}`, as reviews show it.
    pub(crate) fn to_value(self) -> Value {
        json!({"group": self.group, "version": self.version, "kind": self.kind})
    }
}

/// Gives an object back the managed fields that it had `before`, with a warning, where mutations left none that can be read
/// (upstream: `managedFieldsValidatingAdmissionController`).
fn keep_managed_fields(object: &mut Value, before: Value) -> Option<String> {
    let why = Entries::of(object).err()?;
    match before {
        Value::Null => drop(meta_mut(object).remove("managedFields")),
        before => drop(meta_mut(object).insert("managedFields".to_owned(), before)),
    }
    Some(format!(
        ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: {why}"
    ))
}

impl Registry {
    /// The mutating place: may change `object`, or refuse the request. `warnings` go into the answer, also into that of a refusal.
    ///
    /// # Errors
    /// A `Status` when the request is refused, or cannot be admitted.
    pub(crate) async fn mutate(
        &self,
        request: &Attributes<'_>,
        object: &mut Value,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        let (mut policies, mut webhooks) = (PolicyRounds::default(), Reinvocation::default());
        loop {
            self.mutate_built_in(request, object)?;
            self.mutate_by_policies(request, object, &mut policies).await?;
            self.ask_mutating_webhooks(request, object, warnings, &mut webhooks).await?;
            // What a webhook changed has everything asked once more.
            if !policies.again(webhooks.again()) {
                let before = policies.managed_before().or_else(|| webhooks.managed_before());
                warnings.extend(before.and_then(|before| keep_managed_fields(object, before)));
                return Ok(());
            }
        }
    }

    fn mutate_built_in(&self, request: &Attributes<'_>, object: &mut Value) -> Result<()> {
        self.check_lifecycle(request)?;
        self.set_limits(request, object);
        classes::taint_node(request, object);
        if request.operation == Operation::Create && request.is("", "pods") {
            self.set_service_account(request, object)?;
            self.set_priority(request, object)?;
        }
        if matches!(request.operation, Operation::Create | Operation::Update) && request.is("", "pods") {
            tolerate_failing_nodes(object);
        }
        let storage = ["", "storage.k8s.io"].contains(&request.kind.group) && request.subresource.is_empty();
        if request.operation == Operation::Create && storage {
            protect_storage(request.kind.kind, object);
        }
        self.set_default_class(request, object);
        if request.operation == Operation::Create && request.is("", "pods") {
            self.set_runtime_class(request, object)?;
        }
        self.set_topology(request, object);
        Ok(())
    }

    /// Both places, one after the other: for requests whose object is not itself stored. Answers the warnings.
    ///
    /// # Errors
    /// As of the two places.
    pub(crate) async fn admit_body(
        &self,
        request: &Attributes<'_>,
        object: &mut Value,
    ) -> Result<Vec<String>> {
        let mut warnings = Vec::new();
        let admitted = match self.mutate(request, object, &mut warnings).await {
            Ok(()) => self.validate(request, object, &mut warnings).await,
            refused => refused,
        };
        match admitted {
            Ok(()) => Ok(warnings),
            Err(status) => Err(status.with_warnings(warnings)),
        }
    }

    /// The validating place: may refuse the request. It sees the object as it would be stored.
    ///
    /// # Errors
    /// A `Status` when the request is refused, or cannot be admitted.
    pub(crate) async fn validate(
        &self,
        request: &Attributes<'_>,
        object: &Value,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        self.check_limits(request, object)?;
        self.check_pod_security(request, object, warnings)?;
        self.check_priority_class(request, object)?;
        self.check_claim_resize(request, object)?;
        self.check_runtime_class(request, object)?;
        self.check_certificates(request, object)?;
        self.check_resize(request, object)?;
        self.validate_by_policies(request, object, warnings).await?;
        self.ask_validating_webhooks(request, object, warnings).await?;
        // Last, so that nothing that is refused is charged.
        self.charge_quotas(request, object)
    }
}
