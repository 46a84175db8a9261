//! Kinds that are questions: access reviews and token reviews. Nothing is stored.

use serde_json::{Value, json};

use crate::authz::review;
use crate::identity::Identity;
use crate::object::fields;
use crate::policies::StoredPolicies;
use crate::registry::{Place, check};
use crate::server::Inner;
use crate::status::{Cause, Result, Status, Subject};
use crate::tokens::{ISSUER, Refused};

/// Whether creating this kind is a question.
pub(crate) fn is_review(group: &str) -> bool {
    matches!(group, "authorization.k8s.io" | "authentication.k8s.io")
}

/// Answers a review.
pub(crate) fn answer(inner: &Inner, user: &Identity, place: &Place, mut body: Value) -> Result<Value> {
    fields(&mut body).entry("metadata").or_insert_with(|| json!({}));
    let registry = &inner.registry;
    if !place.resource.namespaced {
        fields(&mut body["metadata"]).remove("namespace");
    }
    let kind = place.resource.kind.as_str();
    if kind == "TokenReview" {
        return review_token(inner, body);
    }
    if !place.namespace.is_empty() && body["metadata"]["namespace"].is_null() {
        body["metadata"]["namespace"] = place.namespace.as_str().into();
    }
    let causes = check(&place.resource, &body, None, "", &mut Vec::new());
    if !causes.is_empty() {
        // Upstream names no kind here.
        return Err(Status::invalid(Subject { group: &place.resource.group, kind: "", name: "" }, causes));
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
        Ok(owner) => json!({
            "authenticated": true, "user": review::user_info(&owner.identity), "audiences": owner.audiences,
        }),
        Err(Refused::Unknown) => json!({"user": {}, "error": "invalid bearer token"}),
        Err(refused) => json!({"user": {}, "error": format!("[invalid bearer token, {refused}]")}),
    };
    Ok(body)
}
