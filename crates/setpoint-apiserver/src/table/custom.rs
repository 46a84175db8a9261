//! Columns of custom resources.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{age::since, json_path::JsonPath};

/// `Name`, then the columns of the definition; without any, `Age`.
pub fn columns(definitions: &[Value]) -> Vec<Value> {
    // Those of metadata are described as those of every kind.
    let common = setpoint_kinds::columns("", "v1", "configmaps").unwrap_or_default();
    let mut columns: Vec<_> = common.first().cloned().into_iter().collect();
    let about = common.last().and_then(|age| age["description"].as_str()).unwrap_or_default();
    for column in used(definitions, about) {
        let text = |key: &str| column[key].as_str().unwrap_or_default();
        let described = match text("description") {
            "" => format!("Custom resource definition column (in JSONPath format): {}", text("jsonPath")),
            description => description.to_owned(),
        };
        columns.push(json!({"name": text("name"), "type": text("type"), "format": text("format"), "description": described,
            "priority": column["priority"].as_i64().unwrap_or(0)}));
    }
    columns
}

/// The cells of one object.
pub fn cells(definitions: &[Value], object: &Value, now: Timestamp) -> Vec<Value> {
    let mut cells = vec![object["metadata"]["name"].clone()];
    cells.extend(used(definitions, "").iter().map(|column| cell(column, object, now)));
    cells
}

/// The columns after the name; `about` describes the one that is there without any.
fn used(definitions: &[Value], about: &str) -> Vec<Value> {
    if definitions.is_empty() {
        vec![
            json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": about}),
        ]
    } else {
        definitions.to_vec()
    }
}

fn cell(column: &Value, object: &Value, now: Timestamp) -> Value {
    // A path that doesn't parse was refused with its definition.
    let Ok(path) = JsonPath::parse(column["jsonPath"].as_str().unwrap_or_default()) else {
        return Value::Null;
    };
    let Some(value) = path.find(object).first().copied() else { return Value::Null };
    match (column["type"].as_str().unwrap_or_default(), value) {
        ("string", Value::String(_)) | ("boolean", Value::Bool(_)) | ("number", Value::Number(_)) => {
            value.clone()
        }
        ("string", Value::Null) => "<nil>".into(),
        ("string", other) => other.to_string().into(),
        ("integer", Value::Number(number)) => number
            .as_i64()
            .or_else(|| number.as_f64().map(|float| float as i64))
            .map_or(Value::Null, Value::from),
        ("date", Value::String(_)) => since(value, now).into(),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_by_type() {
        let object = json!({"metadata": {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"n": 3, "f": 1.5, "b": true, "s": "t", "o": {"a": 1}}});
        let now = "2026-01-01T00:01:00Z".parse().expect("a time");
        for (kind, path, wanted) in [
            ("string", ".spec.s", json!("t")),
            ("string", ".spec.n", json!("3")),
            ("string", ".spec.o", json!(r#"{"a":1}"#)),
            ("integer", ".spec.n", json!(3)),
            ("integer", ".spec.f", json!(1)),
            ("integer", ".spec.s", json!(null)),
            ("number", ".spec.f", json!(1.5)),
            ("boolean", ".spec.b", json!(true)),
            ("date", ".metadata.creationTimestamp", json!("60s")),
            ("date", ".spec.s", json!("<invalid>")),
            ("string", ".spec.missing", json!(null)),
        ] {
            let column = json!({"name": "C", "type": kind, "jsonPath": path});
            assert_eq!(cells(&[column], &object, now), [json!("x"), wanted], "{kind} {path}");
        }
        assert_eq!(cells(&[], &object, now), [json!("x"), json!("60s")]);
        assert_eq!(columns(&[])[1]["name"], "Age");
    }
}
