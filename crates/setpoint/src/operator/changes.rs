use serde_json::{Value, json};

use crate::WriteChange;

/// One field that a write would change.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FieldChange {
    /// `spec.replicas`, `spec.containers[0].image`, `data["a.b"]`.
    pub(super) path: String,
    /// None where the field is added.
    pub(super) before: Option<Value>,
    /// None where it is removed.
    pub(super) after: Option<Value>,
}

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

/// The fields that differ, by path. Values of a Secret are not shown, only that they differ.
pub(super) fn changes(change: &WriteChange) -> Vec<FieldChange> {
    let mut found = Vec::new();
    let (before, after) = (comparable(&change.before), comparable(&change.after));
    compare(&mut String::new(), present(&before), present(&after), &mut found);
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

fn present(value: &Value) -> Option<&Value> {
    (!value.is_null()).then_some(value)
}

fn compare(path: &mut String, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<FieldChange>) {
    if before == after {
        return;
    }
    match (before, after) {
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            for name in names {
                below(path, &segment(name), before.get(name), after.get(name), found);
            }
        }
        (None, Some(Value::Object(fields))) if !fields.is_empty() => {
            for (name, value) in fields {
                below(path, &segment(name), None, Some(value), found);
            }
        }
        (Some(Value::Object(fields)), None) if !fields.is_empty() => {
            for (name, value) in fields {
                below(path, &segment(name), Some(value), None, found);
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) => {
            for index in 0..before.len().max(after.len()) {
                below(path, &format!("[{index}]"), before.get(index), after.get(index), found);
            }
        }
        _ => found.push(FieldChange {
            path: path.trim_start_matches('.').to_owned(),
            before: before.cloned(),
            after: after.cloned(),
        }),
    }
}

fn below(
    path: &mut String,
    segment: &str,
    before: Option<&Value>,
    after: Option<&Value>,
    found: &mut Vec<FieldChange>,
) {
    let length = path.len();
    path.push_str(segment);
    compare(path, before, after, found);
    path.truncate(length);
}

/// A name that is not plain, such as a label's, stands in brackets.
fn segment(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(plain) { format!(".{name}") } else { format!("[{name:?}]") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(before: Value, after: Value) -> Vec<String> {
        let text = |value: Option<Value>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        changes(&WriteChange { before, after })
            .into_iter()
            .map(|field| format!("{}: {} -> {}", field.path, text(field.before), text(field.after)))
            .collect()
    }

    #[test]
    fn each_field_is_named_by_its_path() {
        let before = json!({
            "kind": "X", "metadata": {"name": "a", "resourceVersion": "1", "labels": {"app.io/x": "1"}},
            "spec": {"replicas": 1, "list": ["a", "b"], "gone": {"deep": true}},
        });
        let after = json!({
            "kind": "X", "metadata": {"name": "a", "resourceVersion": "2", "labels": {"app.io/x": "2"}},
            "spec": {"replicas": 3, "list": ["a"], "new": {"deep": {"x": 1}, "empty": {}}},
        });
        assert_eq!(
            lines(before, after),
            [
                r#"metadata.labels["app.io/x"]: "1" -> "2""#,
                "spec.gone.deep: true -> -",
                r#"spec.list[1]: "b" -> -"#,
                "spec.new.deep.x: - -> 1",
                "spec.new.empty: - -> {}",
                "spec.replicas: 1 -> 3",
            ]
        );
    }

    #[test]
    fn what_the_server_keeps_is_no_change() {
        let object = |version: &str| json!({"metadata": {"name": "a", "resourceVersion": version, "generation": 1, "managedFields": [version]}});
        assert_eq!(lines(object("1"), object("2")), Vec::<String>::new());
    }

    #[test]
    fn values_of_a_secret_are_not_shown() {
        let secret = |word: &str| json!({"apiVersion": "v1", "kind": "Secret", "data": {"password": word}, "type": "Opaque"});
        assert_eq!(
            lines(secret("c2VjcmV0"), secret("b3RoZXI=")),
            [r#"data.password: "(not shown)" -> "(not shown)""#]
        );
        assert_eq!(lines(Value::Null, secret("c2VjcmV0"))[0], r#"data.password: - -> "(not shown)""#);
    }
}
