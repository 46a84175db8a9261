//! Kinds that are questions: access reviews, token reviews, and requests for tokens. Nothing is stored.

use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::authz::review;
use crate::identity::Identity;
use crate::object::{Metadata, fields, timestamp};
use crate::policies::StoredPolicies;
use crate::registry::{Place, Registry};
use crate::server::Inner;
use crate::status::{Cause, Result, Status, Subject};
use crate::store::Key;
use crate::tokens::{Grant, ISSUER};

/// Whether creating this kind is a question.
pub(crate) fn is_review(group: &str) -> bool {
    matches!(group, "authorization.k8s.io" | "authentication.k8s.io")
}

/// Answers a review.
pub(crate) fn answer(inner: &Inner, user: &Identity, place: &Place, mut body: Value) -> Result<Value> {
    fields(&mut body).entry("metadata").or_insert_with(|| json!({}));
    let registry = &inner.registry;
    let kind = place.resource.kind.as_str();
    if kind == "TokenReview" {
        return review_token(inner, body);
    }
    let namespace = (!place.namespace.is_empty()).then_some(place.namespace.as_str());
    let policies = StoredPolicies(&registry.store);
    review::answer(kind, body, user, namespace, &registry.now(), &policies).map_err(|(field, message)| {
        if kind == "SelfSubjectRulesReview" {
            return Status::bad_request(message);
        }
        let cause = Cause { reason: "FieldValueInvalid".to_owned(), message, field: field.to_owned() };
        // Upstream names no kind here.
        Status::invalid(Subject { group: &place.resource.group, kind: "", name: "" }, vec![cause])
    })
}

fn review_token(inner: &Inner, mut body: Value) -> Result<Value> {
    let token = body["spec"]["token"].as_str().unwrap_or_default().to_owned();
    if token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let asked: Vec<String> = body["spec"]["audiences"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|audience| audience.as_str().map(str::to_owned))
        .collect();
    let audiences: Vec<&str> =
        if asked.is_empty() { vec![ISSUER] } else { asked.iter().map(String::as_str).collect() };
    body["status"] = match inner.tokens.authenticate(&token, &audiences, &inner.registry) {
        Some(user) => {
            json!({"authenticated": true, "user": review::user_info(&user), "audiences": audiences})
        }
        None => json!({"user": {}, "error": "invalid bearer token"}),
    };
    Ok(body)
}

/// Gives out a token of a service account (`pkg/registry/core/serviceaccount/storage/token.go`).
pub(crate) fn request_token(inner: &Inner, place: &Place, mut body: Value) -> Result<Value> {
    let registry = &inner.registry;
    let account = registry.get(place)?;
    let spec = &body["spec"];
    let seconds = spec["expirationSeconds"].as_i64().unwrap_or(3600);
    if seconds < 600 {
        let detail = "may not specify a duration less than 10 minutes";
        let cause = Cause::invalid("spec.expirationSeconds", &spec["expirationSeconds"], detail);
        let subject = Subject { group: "authentication.k8s.io", kind: "TokenRequest", name: "" };
        return Err(Status::invalid(subject, vec![cause]));
    }
    if seconds > 1 << 32 {
        let detail = "may not specify a duration larger than 2^32 seconds";
        let cause = Cause::invalid("spec.expirationSeconds", &spec["expirationSeconds"], detail);
        let subject = Subject { group: "authentication.k8s.io", kind: "TokenRequest", name: "" };
        return Err(Status::invalid(subject, vec![cause]));
    }
    let mut audiences: Vec<String> = spec["audiences"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|audience| audience.as_str().map(str::to_owned))
        .collect();
    if audiences.is_empty() {
        audiences.push(ISSUER.to_owned());
    }
    let bound = match &spec["boundObjectRef"] {
        Value::Null => None,
        reference => Some(bound_object(registry, &place.namespace, reference)?),
    };
    let grant = Grant {
        namespace: &place.namespace,
        account: &account.value,
        audiences: audiences.clone(),
        lifetime: SignedDuration::from_secs(seconds),
        bound,
    };
    let (token, expires) = inner.tokens.sign(&grant, registry.clock.now())?;
    body["apiVersion"] = "authentication.k8s.io/v1".into();
    body["kind"] = "TokenRequest".into();
    body["metadata"] = json!({
        "name": place.name, "namespace": place.namespace, "creationTimestamp": registry.now(),
        "uid": registry.entropy.uuid(),
    });
    fields(&mut body["spec"]).entry("boundObjectRef").or_insert(Value::Null);
    body["spec"]["audiences"] = json!(audiences);
    body["spec"]["expirationSeconds"] = seconds.into();
    body["status"] = json!({"token": token, "expirationTimestamp": timestamp(expires)});
    Ok(body)
}

fn bound_object(registry: &Registry, namespace: &str, reference: &Value) -> Result<(String, String, String)> {
    let text = |field: &str| reference[field].as_str().unwrap_or_default().to_owned();
    let (kind, name, uid) = (text("kind"), text("name"), text("uid"));
    let plural = match kind.as_str() {
        "Pod" => "pods",
        "Secret" => "secrets",
        other => {
            return Err(Status::bad_request(format!(
                "cannot bind token to object of type {}, Kind={other}",
                match text("apiVersion").as_str() {
                    version if version.contains('/') => version.to_owned(),
                    version => format!("/{version}"),
                }
            )));
        }
    };
    let subject = Subject { group: "", kind: plural, name: &name };
    let found = registry.store.get(plural, &Key::new(namespace, name.as_str()));
    let found = found.ok_or_else(|| Status::not_found(subject))?;
    let live = found.value.meta("uid");
    if !uid.is_empty() && uid != live {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(Status::conflict(subject, &why));
    }
    Ok((kind, name.clone(), live.to_owned()))
}
