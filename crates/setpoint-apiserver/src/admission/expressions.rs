//! CEL in admission: what expressions of policies and match conditions may use, and what they see.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use setpoint_schema::cel::policy::{
    Authorizer, Check, Decision, Environment, Evaluation, Expression, Gives, Scope,
};

use super::Attributes;
use super::versions::Versioned;
use crate::authz::{self, authorize};
use crate::identity::Identity;
use crate::object::fields;
use crate::policies::RoleSnapshot;
use crate::registry::Registry;
use crate::store::Key;

/// What every expression of admission may use.
pub(crate) fn environment(has_params: bool) -> Environment {
    let text = || json!({"type": "string"});
    let of = |fields: Value| json!({"type": "object", "properties": fields});
    let list = |items: Value| json!({"type": "array", "items": items});
    let map = |values: Value| json!({"type": "object", "additionalProperties": values});
    let any = || json!({"x-kubernetes-preserve-unknown-fields": true});
    let kind = of(json!({"group": text(), "version": text(), "kind": text()}));
    let resource = of(json!({"group": text(), "version": text(), "resource": text()}));
    let user =
        of(json!({"username": text(), "uid": text(), "groups": list(text()), "extra": map(list(text()))}));
    let request = of(json!({
        "kind": kind, "resource": resource, "subResource": text(),
        "requestKind": kind, "requestResource": resource, "requestSubResource": text(),
        "name": text(), "namespace": text(), "operation": text(), "userInfo": user,
        "dryRun": {"type": "boolean"}, "options": any(),
    }));
    let metadata = of(json!({
        "name": text(), "generateName": text(), "namespace": text(), "labels": map(text()), "annotations": map(text()),
        "UID": text(), "creationTimestamp": text(), "deletionGracePeriodSeconds": {"type": "integer"},
        "deletionTimestamp": text(), "generation": {"type": "integer"}, "resourceVersion": text(),
        "finalizers": list(text()),
    }));
    let namespace = of(json!({
        "metadata": metadata,
        "spec": of(json!({"finalizers": list(text())})),
        "status": of(json!({"phase": text(), "conditions": list(any())})),
    }));
    let environment = Environment::new()
        .dynamic("object")
        .dynamic("oldObject")
        .typed("request", &request)
        .typed("namespaceObject", &namespace)
        .opaque("authorizer");
    if has_params { environment.dynamic("params") } else { environment }
}

/// The values that the expressions of one request see.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) object: Value,
    pub(crate) old: Value,
    request: Value,
    namespace: Value,
}

impl Registry {
    /// What expressions see of a request by way of its objects in the version that is asked for.
    pub(super) fn seen(&self, request: &Attributes<'_>, versioned: &Versioned) -> Seen {
        let namespace = match request.place.namespace.as_str() {
            // A namespace is not in itself.
            name if name.is_empty() || request.resource().is("", "namespaces") => Value::Null,
            name => self
                .store
                .get("namespaces", &Key::new("", name))
                .map_or(Value::Null, |namespace| namespace_object(&namespace.value)),
        };
        let user = request.user;
        let mut body = json!({
            "kind": versioned.kind, "resource": versioned.resource_value(), "subResource": request.subresource,
            "requestKind": request.kind.to_value(), "requestResource": resource_of(request),
            "requestSubResource": request.subresource,
            "name": request.place.name, "namespace": request.namespace(), "operation": request.operation.name(),
            "userInfo": {"username": user.user, "uid": user.uid, "groups": user.groups, "extra": user.extra},
            "dryRun": request.dry_run(), "options": request.options_object(),
        });
        leave_out_empty(&mut body);
        leave_out_empty(&mut body["userInfo"]);
        Seen { object: versioned.object.clone(), old: versioned.old.clone(), request: body, namespace }
    }

    /// Evaluates expressions on what they see. Who may do what is looked up if `asks`, as of now.
    pub(crate) fn evaluate<T>(
        &self,
        request: &Attributes<'_>,
        seen: &Seen,
        params: Option<&Value>,
        variables: &[(String, Expression)],
        asks: bool,
        work: impl FnOnce(&Evaluation<'_>) -> T,
    ) -> T {
        let mut values = vec![
            ("object", &seen.object),
            ("oldObject", &seen.old),
            ("request", &seen.request),
            ("namespaceObject", &seen.namespace),
        ];
        values.extend(params.map(|params| ("params", params)));
        let authorizer = asks.then(|| {
            let resource = request.resource();
            let about = Check {
                group: resource.group.clone(),
                resource: resource.plural.clone(),
                subresource: request.subresource.to_owned(),
                namespace: request.namespace().to_owned(),
                name: request.place.name.clone(),
                ..Check::default()
            };
            let roles = RoleSnapshot::of(&self.store);
            Arc::new(Rights { user: request.user.clone(), roles, about }) as Arc<dyn Authorizer>
        });
        Scope::new(values, variables, authorizer).enter(work)
    }
}

/// A review has no fields with nothing in them (`omitempty`).
fn leave_out_empty(review: &mut Value) {
    fields(review).retain(|_, value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    });
}

/// `{group, version, resource}` of a request.
pub(crate) fn resource_of(request: &Attributes<'_>) -> Value {
    let resource = request.resource();
    json!({"group": resource.group, "version": resource.version, "resource": resource.plural})
}

/// The part of a namespace that expressions see (upstream: `CreateNamespaceObject`).
fn namespace_object(namespace: &Value) -> Value {
    let mut metadata = Map::new();
    for (key, value) in namespace["metadata"].as_object().into_iter().flatten() {
        match key.as_str() {
            "uid" => drop(metadata.insert("UID".to_owned(), value.clone())),
            "managedFields" | "ownerReferences" | "selfLink" => {}
            _ => drop(metadata.insert(key.clone(), value.clone())),
        }
    }
    json!({"metadata": metadata, "spec": namespace["spec"], "status": namespace["status"]})
}

/// Who may do what at the time of a request.
struct Rights {
    user: Identity,
    roles: RoleSnapshot,
    about: Check,
}

impl Authorizer for Rights {
    fn check(&self, check: &Check) -> Decision {
        let account = check.service_account.as_ref();
        let account = account.map(|(namespace, name)| Identity::service_account(namespace, name, ""));
        let path = check.path.as_deref();
        let attributes = authz::Attributes {
            user: account.as_ref().unwrap_or(&self.user),
            verb: &check.verb,
            group: &check.group,
            resource: &check.resource,
            subresource: &check.subresource,
            namespace: (!check.namespace.is_empty()).then_some(check.namespace.as_str()),
            name: &check.name,
            path,
        };
        let decision = authorize(&attributes, &self.roles);
        Decision { allowed: decision.allowed, reason: decision.reason }
    }

    fn request_resource(&self) -> Check {
        self.about.clone()
    }
}

/// Conditions of a webhook or policy that all must hold for a request to concern it.
#[derive(Debug, Default)]
pub(crate) struct MatchConditions(Vec<Expression>);

/// Why match conditions could not be decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Undecided(pub(crate) String);

impl MatchConditions {
    /// Compiles the `expression`s of a list of conditions, which creation has checked. One that does not compile any more is an
    /// error of its own when it is evaluated.
    pub(crate) fn compile(conditions: &Value, environment: &Environment) -> Result<Self, Undecided> {
        let conditions = conditions.as_array().into_iter().flatten();
        let compiled = conditions.map(|condition| {
            let text = condition["expression"].as_str().unwrap_or_default();
            Expression::compile(text.trim(), environment, Gives::Bool).map_err(Undecided)
        });
        compiled.collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn use_authorizer(&self) -> bool {
        self.0.iter().any(asks)
    }

    /// Whether all conditions hold: one that does not counts more than one that fails.
    ///
    /// # Errors
    /// When a condition fails and all others hold; the failure policy decides.
    pub(crate) fn hold(&self, evaluation: &Evaluation<'_>) -> Result<bool, Undecided> {
        let mut failures = Vec::new();
        for condition in &self.0 {
            match evaluation.run(condition) {
                Ok(Value::Bool(true)) => {}
                Ok(_) => return Ok(false),
                Err(why) => failures.push(failure(condition.text(), &why)),
            }
        }
        match failures.as_slice() {
            [] => Ok(true),
            [only] => Err(Undecided(only.clone())),
            _ => Err(Undecided(format!("[{}]", failures.join(", ")))),
        }
    }
}

/// Whether an expression asks who may do what.
pub(crate) fn asks(expression: &Expression) -> bool {
    expression.uses("authorizer") || expression.uses("@authorizer.requestResource")
}

/// How an expression that fails is reported.
pub(crate) fn failure(expression: &str, why: &str) -> String {
    format!("expression '{expression}' resulted in error: {why}")
}

impl Registry {
    /// Whether the match conditions of a webhook hold for a request, by way of its objects in the version that the webhook asks for.
    ///
    /// # Errors
    /// When a condition fails and all others hold; the failure policy decides.
    pub(super) fn meets(
        &self,
        conditions: &Value,
        request: &Attributes<'_>,
        versioned: &Versioned,
    ) -> Result<bool, Undecided> {
        if conditions.as_array().is_none_or(Vec::is_empty) {
            return Ok(true);
        }
        let compiled = self.compiled_policies.conditions(conditions);
        let compiled = compiled.as_ref().as_ref().map_err(Clone::clone)?;
        let mut seen = self.seen(request, versioned);
        // Webhooks are not told of it.
        seen.namespace = Value::Null;
        self.evaluate(request, &seen, None, &[], compiled.use_authorizer(), |evaluation| {
            compiled.hold(evaluation)
        })
    }
}
