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

/// The fields that a write would change. Values of a Secret are not shown, only that they differ.
pub(super) fn changes(change: &WriteChange) -> Vec<FieldChange> {
    let mut found = diff(&comparable(&change.before), &comparable(&change.after));
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
