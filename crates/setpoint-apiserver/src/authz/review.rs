//! Answers to the questions of `kubectl auth`: access reviews, rules reviews and "who am I".

use std::{collections::BTreeMap, ops::ControlFlow};

use serde_json::{Map, Value, json};

use super::{
    Attributes, Policies, authorize,
    rules::{aggregate, array, text, visit},
};
use crate::identity::Identity;

/// Why a review can't be answered, as `(field, text)` for an answer of 422.
pub type Invalid = (&'static str, String);

/// Fills in the status of a `SubjectAccessReview`, `LocalSubjectAccessReview` (with the namespace of the URL), `SelfSubjectAccessReview`,
/// `SelfSubjectRulesReview` or `SelfSubjectReview` that `user` sent. `now` is an RFC 3339 time of whole seconds.
pub fn answer(
    kind: &str,
    mut review: Value,
    user: &Identity,
    namespace: Option<&str>,
    now: &str,
    policies: &dyn Policies,
) -> Result<Value, Invalid> {
    match kind {
        "SelfSubjectReview" => {
            review["metadata"] = json!({"creationTimestamp": now});
            review["status"] = json!({"userInfo": user_info(user)});
        }
        "SelfSubjectRulesReview" => {
            let namespace = text(&review["spec"], "namespace").to_owned();
            if namespace.is_empty() {
                return Err(("spec.namespace", "no namespace on request".to_owned()));
            }
            review["metadata"] = json!({});
            review["spec"] = json!({});
            review["status"] = rules(user, &namespace, policies);
        }
        "SelfSubjectAccessReview" => review["status"] = access(&review["spec"], user, policies)?,
        "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            let spec = &review["spec"];
            let asked = subject(spec);
            if asked.user.is_empty() && asked.groups.is_empty() {
                return Err((
                    "spec.user",
                    "Invalid value: \"\": at least one of user or group must be specified".to_owned(),
                ));
            }
            if kind == "LocalSubjectAccessReview" {
                let asked_for = text(&spec["resourceAttributes"], "namespace");
                if Some(asked_for) != namespace {
                    return Err((
                        "spec.resourceAttributes.namespace",
                        format!("Invalid value: {asked_for:?}: must match metadata.namespace"),
                    ));
                }
            }
            review["status"] = access(spec, &asked, policies)?;
        }
        _ => return Err(("kind", format!("Unsupported value: {kind:?}"))),
    }
    Ok(review)
}

/// `{username, uid, groups, extra}`, as `TokenReview` and `SelfSubjectReview` show a user.
pub fn user_info(user: &Identity) -> Value {
    let mut info = Map::new();
    info.insert("username".to_owned(), user.user.clone().into());
    if !user.uid.is_empty() {
        info.insert("uid".to_owned(), user.uid.clone().into());
    }
    if !user.groups.is_empty() {
        info.insert("groups".to_owned(), user.groups.clone().into());
    }
    if !user.extra.is_empty() {
        info.insert("extra".to_owned(), json!(user.extra));
    }
    info.into()
}

fn subject(spec: &Value) -> Identity {
    let list = |value: &Value| {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    Identity {
        user: text(spec, "user").to_owned(),
        uid: text(spec, "uid").to_owned(),
        groups: list(&spec["groups"]),
        extra: spec["extra"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, values)| (key.clone(), list(values)))
            .collect::<BTreeMap<_, _>>(),
    }
}

fn access(spec: &Value, user: &Identity, policies: &dyn Policies) -> Result<Value, Invalid> {
    let resource = spec.get("resourceAttributes").filter(|r| !r.is_null());
    let path = spec.get("nonResourceAttributes").filter(|r| !r.is_null());
    let attributes = match (resource, path) {
        (Some(asked), None) => Attributes {
            user,
            verb: text(asked, "verb"),
            group: text(asked, "group"),
            resource: text(asked, "resource"),
            subresource: text(asked, "subresource"),
            namespace: asked["namespace"].as_str().filter(|namespace| !namespace.is_empty()),
            name: text(asked, "name"),
            path: None,
        },
        (None, Some(asked)) => Attributes {
            user,
            verb: text(asked, "verb"),
            group: "",
            resource: "",
            subresource: "",
            namespace: None,
            name: "",
            path: Some(text(asked, "path")),
        },
        _ => {
            let text = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            return Err((
                "spec.resourceAttributes",
                format!("Invalid value: {}: {text}", spec["resourceAttributes"]),
            ));
        }
    };
    let decision = authorize(&attributes, policies);
    let mut status = json!({"allowed": decision.allowed});
    if !decision.reason.is_empty() {
        status["reason"] = decision.reason.into();
    }
    Ok(status)
}

fn rules(user: &Identity, namespace: &str, policies: &dyn Policies) -> Value {
    let (mut resources, mut paths) = (Vec::new(), Vec::new());
    let mut add = |rule: &Value| {
        let pick = |keys: &[&str]| -> Value {
            keys.iter()
                .filter(|key| !array(rule, key).is_empty())
                .map(|key| ((*key).to_owned(), rule[*key].clone()))
                .collect::<Map<_, _>>()
                .into()
        };
        if !array(rule, "resources").is_empty() {
            resources.push(pick(&["verbs", "apiGroups", "resources", "resourceNames"]));
        }
        if !array(rule, "nonResourceURLs").is_empty() {
            paths.push(pick(&["verbs", "nonResourceURLs"]));
        }
    };
    let errors = visit(user, Some(namespace), policies, &mut |_, rule| {
        add(rule);
        ControlFlow::Continue(())
    });
    let mut status =
        json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": !errors.is_empty()});
    if !errors.is_empty() {
        status["evaluationError"] = aggregate(&errors).into();
    }
    status
}
