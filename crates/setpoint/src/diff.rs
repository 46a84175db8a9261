use std::collections::BTreeSet;

use serde_json::Value;

/// One field that differs between two states of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldChange {
    /// `spec.replicas`, `spec.containers[0].image`, `data["a.b"]`.
    pub path: String,
    /// None where the field is added.
    pub before: Option<Value>,
    /// None where it is removed.
    pub after: Option<Value>,
}

/// The fields that differ, by path.
pub(crate) fn diff(before: &Value, after: &Value) -> Vec<FieldChange> {
    let mut found = Vec::new();
    compare(&mut String::new(), present(before), present(after), &mut found);
    found
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
            let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
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
    use serde_json::json;

    use super::*;

    #[test]
    fn each_field_is_named_by_its_path() {
        let before = json!({
            "metadata": {"labels": {"app.io/x": "1"}},
            "spec": {"replicas": 1, "list": ["a", "b"], "gone": {"deep": true}},
        });
        let after = json!({
            "metadata": {"labels": {"app.io/x": "2"}},
            "spec": {"replicas": 3, "list": ["a"], "new": {"deep": {"x": 1}, "empty": {}}},
        });
        let text = |value: Option<Value>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        let lines: Vec<String> = diff(&before, &after)
            .into_iter()
            .map(|field| format!("{}: {} -> {}", field.path, text(field.before), text(field.after)))
            .collect();
        assert_eq!(
            lines,
            [
                r#"metadata.labels["app.io/x"]: "1" -> "2""#,
                "spec.gone.deep: true -> -",
                r#"spec.list[1]: "b" -> -"#,
                "spec.new.deep.x: - -> 1",
                "spec.new.empty: - -> {}",
                "spec.replicas: 1 -> 3",
            ]
        );
        assert_eq!(diff(&after, &after), []);
    }
}
