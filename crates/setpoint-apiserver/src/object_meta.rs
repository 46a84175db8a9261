//! Validation of metadata (`k8s.io/apimachinery/pkg/api/validation/objectmeta.go`).

use serde_json::{Value, json};

use crate::catalog::Resource;
use crate::object::Metadata;
use crate::status::Cause;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
/// What is wrong with a label that has to begin with a letter.
pub(crate) const OLD_LABEL: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
pub(crate) const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
/// Upstream: `TotalAnnotationSizeLimitB`.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// How the names of a resource are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameRule {
    /// A DNS subdomain of at most 253 characters: the usual rule.
    Subdomain,
    /// A DNS label of at most 63 characters.
    Label,
    /// One that begins with a letter.
    OldLabel,
    /// Anything that can be one segment of a path (RBAC).
    PathSegment,
}

impl NameRule {
    /// Every way in which `name` breaks the rule. With `prefix`, as a `generateName`: a trailing dash is fine.
    pub(crate) fn check(self, name: &str, prefix: bool) -> Vec<String> {
        // As upstream masks it (`maskTrailingDash`): the two last bytes become a letter.
        let masked = name.strip_suffix('-').filter(|rest| prefix && !rest.is_empty()).map(|rest| {
            let mut rest = rest.to_owned();
            rest.pop();
            rest + "a"
        });
        let trimmed = masked.as_deref().unwrap_or(name);
        let too_long = |limit: usize| {
            (trimmed.len() > limit).then(|| format!("must be no more than {limit} characters"))
        };
        match self {
            Self::Subdomain => too_long(253)
                .into_iter()
                .chain((!is_subdomain(trimmed)).then(|| SUBDOMAIN.to_owned()))
                .collect(),
            Self::Label => {
                let wrong = || if is_subdomain(trimmed) { "must not contain dots" } else { LABEL };
                too_long(63).into_iter().chain((!is_label(trimmed)).then(|| wrong().to_owned())).collect()
            }
            Self::OldLabel => {
                let wrong = !is_label(trimmed) || trimmed.starts_with(|c: char| c.is_ascii_digit());
                too_long(63).into_iter().chain(wrong.then(|| OLD_LABEL.to_owned())).collect()
            }
            Self::PathSegment => {
                let mut errors = Vec::new();
                if matches!(name, "." | "..") {
                    errors.push(format!("may not be '{name}'"));
                }
                for part in ["/", "%"] {
                    if name.contains(part) {
                        errors.push(format!("may not contain '{part}'"));
                    }
                }
                errors
            }
        }
    }
}

pub(crate) fn is_label(text: &str) -> bool {
    let fine = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = text.as_bytes();
    matches!((bytes.first(), bytes.last()), (Some(&a), Some(&b)) if fine(a) && fine(b))
        && bytes.iter().all(|&c| fine(c) || c == b'-')
}

pub(crate) fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

pub(crate) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name_part(text)
}

fn is_name_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    matches!((bytes.first(), bytes.last()), (Some(a), Some(b)) if a.is_ascii_alphanumeric() && b.is_ascii_alphanumeric())
        && bytes.iter().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(c))
}

pub(crate) fn check_qualified(text: &str) -> Vec<String> {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if name.contains('/') {
        return vec![format!(
            "{} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
            QUALIFIED.replacen("name part", "a valid label key", 1)
        )];
    }
    let mut errors = Vec::new();
    match prefix {
        Some("") => errors.push("prefix part must be non-empty".to_owned()),
        Some(prefix) if prefix.len() > 253 => {
            errors.push("prefix part must be no more than 253 bytes".to_owned());
        }
        Some(prefix) if !is_subdomain(prefix) => errors.push(format!("prefix part {SUBDOMAIN}")),
        _ => {}
    }
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        errors.push("name part must be no more than 63 bytes".to_owned());
    }
    if !is_name_part(name) {
        errors.push(QUALIFIED.to_owned());
    }
    errors
}

/// Finalizers of the system, which need no domain.
pub(crate) fn is_standard_finalizer(name: &str) -> bool {
    matches!(name, "kubernetes" | "orphan" | "foregroundDeletion")
}

/// Checks metadata that is new, or that an update may have changed.
pub(crate) fn validate(object: &Value, resource: &Resource) -> Vec<Cause> {
    let (rule, namespaced, built_in) =
        (resource.name_rule(), resource.namespaced, resource.custom().is_none());
    let mut causes = Vec::new();
    let generate = object.meta("generateName");
    if !generate.is_empty() {
        for error in rule.check(generate, true) {
            causes.push(Cause::invalid("metadata.generateName", &json!(generate), &error));
        }
    }
    let name = object.meta("name");
    if name.is_empty() {
        causes.push(Cause::required("metadata.name", "name or generateName is required"));
    } else {
        for error in rule.check(name, false) {
            causes.push(Cause::invalid("metadata.name", &json!(name), &error));
        }
    }
    if !namespaced && !object.meta("namespace").is_empty() {
        causes.push(Cause::forbidden("metadata.namespace", "not allowed on this type"));
    }
    labels(&object["metadata"]["labels"], "metadata.labels", &mut causes);
    annotations(&object["metadata"]["annotations"], "metadata.annotations", &mut causes);
    owners(&object["metadata"]["ownerReferences"], &mut causes);
    if ["orphan", "foregroundDeletion"].iter().all(|name| object.finalizers().contains(name)) {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        causes.push(Cause::invalid("metadata.finalizers", &json!(object.finalizers()), detail));
    }
    for (index, finalizer) in object.finalizers().iter().enumerate() {
        let field = || format!("metadata.finalizers[{index}]");
        for error in check_qualified(finalizer) {
            causes.push(Cause::invalid("metadata.finalizers", &json!(finalizer), &error));
        }
        if built_in && !finalizer.contains('/') && !is_standard_finalizer(finalizer) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            causes.push(Cause::invalid(field(), &json!(finalizer), detail));
        }
    }
    causes
}

/// Checks a map of labels at `field`.
pub(crate) fn labels(labels: &Value, field: &str, causes: &mut Vec<Cause>) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        for error in check_qualified(key) {
            causes.push(Cause::invalid(field, &json!(key), &error));
        }
        let Some(text) = value.as_str() else { continue };
        if text.len() > 63 {
            causes.push(Cause::invalid(field, value, "must be no more than 63 bytes"));
        }
        if !is_label_value(text) {
            causes.push(Cause::invalid(field, value, LABEL_VALUE));
        }
    }
}

/// Checks a map of annotations at `field`.
pub(crate) fn annotations(annotations: &Value, field: &str, causes: &mut Vec<Cause>) {
    let mut size = 0;
    for (key, value) in annotations.as_object().into_iter().flatten() {
        for error in check_qualified(&key.to_lowercase()) {
            causes.push(Cause::invalid(field, &json!(key), &error));
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > ANNOTATIONS_LIMIT {
        causes.push(Cause {
            reason: "FieldValueTooLong".to_owned(),
            message: format!("Too long: may not be more than {ANNOTATIONS_LIMIT} bytes"),
            field: field.to_owned(),
        });
    }
}

/// Drops owner references that are there already, and warns of them (upstream: `dedupOwnerReferences`).
/// `mutated`: whether admission made the object so.
pub(crate) fn drop_repeated_owners(object: &mut Value, mutated: bool) -> Option<String> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    let (mut kept, mut repeated) = (Vec::<Value>::new(), Vec::new());
    for owner in owners {
        if kept.contains(owner) {
            repeated.push(owner["uid"].as_str().unwrap_or_default().to_owned());
        } else {
            kept.push(owner.clone());
        }
    }
    if repeated.is_empty() {
        return None;
    }
    object["metadata"]["ownerReferences"] = kept.into();
    let when = if mutated { " after mutating admission happens" } else { "" };
    Some(format!(
        ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        repeated.join(", ")
    ))
}

fn owners(owners: &Value, causes: &mut Vec<Cause>) {
    let mut controller: Option<String> = None;
    for (index, owner) in owners.as_array().into_iter().flatten().enumerate() {
        let field = format!("metadata.ownerReferences[{index}]");
        for key in ["apiVersion", "kind", "name", "uid"] {
            if owner[key].as_str().unwrap_or_default().is_empty() {
                causes.push(Cause::required(format!("{field}.{key}"), "must not be empty"));
            }
        }
        if owner["kind"] == "Event" && owner["apiVersion"] == "v1" {
            let message = format!(
                "Invalid value: {}: /v1, Kind=Event is disallowed from being an owner",
                in_order(owner)
            );
            causes.push(Cause { reason: "FieldValueInvalid".to_owned(), message, field: field.clone() });
        }
        if owner["controller"].as_bool() == Some(true) {
            let text = |key: &str| owner[key].as_str().unwrap_or_default();
            let name = format!("{}/{}", text("kind"), text("name"));
            if let Some(first) = &controller {
                let all: Vec<String> = owners.as_array().into_iter().flatten().map(in_order).collect();
                let message = format!(
                    "Invalid value: [{}]: Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}",
                    all.join(",")
                );
                let field = "metadata.ownerReferences".to_owned();
                causes.push(Cause { reason: "FieldValueInvalid".to_owned(), message, field });
            }
            controller = Some(name);
        }
    }
}

/// An owner reference as Go writes it: fields in the order of the struct.
fn in_order(owner: &Value) -> String {
    let fields: Vec<String> = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"]
        .iter()
        .filter_map(|key| {
            owner.get(*key).filter(|value| !value.is_null()).map(|value| format!("{key:?}:{value}"))
        })
        .collect();
    format!("{{{}}}", fields.join(","))
}

/// Checks what an update may not change. Fields that `new` leaves out were copied from `old` before.
pub(crate) fn validate_update(new: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for field in
        ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"]
    {
        let (new, old) = (&new["metadata"][field], &old["metadata"][field]);
        if new != old {
            causes.push(Cause::invalid(format!("metadata.{field}"), new, "field is immutable"));
        }
    }
    if old.is_deleting() {
        let before = old.finalizers();
        let added: Vec<&str> = new.finalizers().into_iter().filter(|f| !before.contains(f)).collect();
        if !added.is_empty() {
            let list: Vec<String> = added.iter().map(|f| format!("{f:?}")).collect();
            causes.push(Cause::forbidden(
                "metadata.finalizers",
                &format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    list.join(", ")
                ),
            ));
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(NameRule::Subdomain.check("a.b-c", false).is_empty());
        assert_eq!(NameRule::Subdomain.check("A", false).len(), 1);
        assert_eq!(NameRule::Label.check("a.b", false).len(), 1);
        assert!(NameRule::Label.check("a-", true).is_empty());
        assert!(NameRule::PathSegment.check("system:node", false).is_empty());
        assert_eq!(NameRule::PathSegment.check("a/b", false).len(), 1);
    }

    #[test]
    fn an_owner_is_named_once() {
        let (a, b) = (json!({"kind": "A", "uid": "1"}), json!({"kind": "B", "uid": "1"}));
        let mut object = json!({"metadata": {"ownerReferences": [a, b, a]}});
        assert!(drop_repeated_owners(&mut object, false).unwrap().ends_with("observed: 1"));
        assert_eq!(object["metadata"]["ownerReferences"], json!([a, b]));
        assert_eq!(drop_repeated_owners(&mut object, false), None);
        assert_eq!(drop_repeated_owners(&mut json!({"metadata": {}}), false), None);
    }

    #[test]
    fn every_wrong_field_is_named() {
        let object = json!({"metadata": {
            "name": "A", "labels": {"a": "-"}, "ownerReferences": [{"kind": "A", "name": "b", "uid": "c"}],
            "finalizers": ["x/"],
        }});
        let resource = Resource::built_in(setpoint_kinds::by_kind("", "v1", "ConfigMap").unwrap());
        let fields: Vec<String> = validate(&object, &resource).into_iter().map(|cause| cause.field).collect();
        assert_eq!(
            fields,
            [
                "metadata.name",
                "metadata.labels",
                "metadata.ownerReferences[0].apiVersion",
                "metadata.finalizers",
                "metadata.finalizers",
            ]
        );
    }
}
