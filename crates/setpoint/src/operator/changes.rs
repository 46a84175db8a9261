use serde_json::{Value, json};

use crate::diff::diff;
use crate::{FieldChange, WriteChange};

/// What names an object, what the server keeps itself, and what differs with each write.
const NOT_COMPARED: [&str; 8] = [
    "name",
    "namespace",
    "managedFields",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "uid",
    "selfLink",
];

/// What the API server allots to a Service that doesn't say it: another one each time it is tried.
const ALLOTTED: [&str; 6] =
    ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "nodePort", "healthCheckNodePort"];

/// The fields that a write would change. Not shown are values that the API server would allot, and
/// those of a Secret, only that they differ.
pub(super) fn changes(change: &WriteChange) -> Vec<FieldChange> {
    let mut after = comparable(&change.after);
    if change.before.is_null() && change.after["kind"] == "Service" && change.after["apiVersion"] == "v1" {
        forget_allotted(&mut after, &change.after["metadata"]["managedFields"]);
    }
    let mut found = diff(&comparable(&change.before), &after);
    if [&change.before, &change.after].into_iter().any(is_secret) {
        let hidden = |value: &mut Option<Value>| {
            if value.is_some() {
                *value = Some(json!("(not shown)"));
            }
        };
        for field in &mut found {
            if field.path.starts_with("data") || field.path.starts_with("stringData") {
                hidden(&mut field.before);
                hidden(&mut field.after);
            }
        }
    }
    found
}

/// Takes out of a Service what nobody has said, which nobody owns either.
fn forget_allotted(service: &mut Value, owners: &Value) {
    let owners = owners.to_string();
    let said = |name: &str| !ALLOTTED.contains(&name) || owners.contains(&format!("\"f:{name}\""));
    let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) else { return };
    spec.retain(|name, _| said(name));
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(port) = port.as_object_mut() {
            port.retain(|name, _| said(name));
        }
    }
}

fn is_secret(object: &Value) -> bool {
    object["apiVersion"] == "v1" && object["kind"] == "Secret"
}

fn comparable(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|name, _| !["apiVersion", "kind"].contains(&name.as_str()));
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|name, _| !NOT_COMPARED.contains(&name.as_str()));
        if metadata.is_empty()
            && let Some(fields) = object.as_object_mut()
        {
            fields.remove("metadata");
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_keeps_is_no_change() {
        let object = |version: &str| json!({"metadata": {"name": "a", "resourceVersion": version, "generation": 1, "managedFields": [version]}});
        assert_eq!(changes(&WriteChange { before: object("1"), after: object("2") }), []);
    }

    #[test]
    fn what_the_server_allots_is_not_shown_unless_it_was_said() {
        let service = |owned: Value| {
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"managedFields": [{"fieldsV1": owned}]},
            "spec": {"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ports": [{"port": 80, "nodePort": 30001}], "ipFamilies": ["IPv4"]}})
        };
        let shown = |owned: Value| -> Vec<(String, Value)> {
            let change = WriteChange { before: Value::Null, after: service(owned) };
            changes(&change).into_iter().map(|field| (field.path, field.after.unwrap())).collect()
        };
        let port = ("spec.ports".to_owned(), json!([{"port": 80}]));
        assert_eq!(shown(json!({"f:spec": {"f:ports": {}}})), std::slice::from_ref(&port));
        let address = ("spec.clusterIP".to_owned(), json!("10.96.0.7"));
        assert_eq!(shown(json!({"f:spec": {"f:clusterIP": {}}})), [address, port]);
    }

    #[test]
    fn values_of_a_secret_are_not_shown() {
        let secret = |word: &str| json!({"apiVersion": "v1", "kind": "Secret", "data": {"password": word}, "type": "Opaque"});
        let hidden = || Some(json!("(not shown)"));
        let password = |before, after| FieldChange { path: "data.password".to_owned(), before, after };
        let changed = WriteChange { before: secret("c2VjcmV0"), after: secret("b3RoZXI=") };
        assert_eq!(changes(&changed), [password(hidden(), hidden())]);
        let created = WriteChange { before: Value::Null, after: secret("c2VjcmV0") };
        assert_eq!(changes(&created)[0], password(None, hidden()));
    }
}
