//! What is wrong with a value that does not fit its Go type, in the words of Go's decoders.

use serde_json::Value;
use setpoint_schema::FieldError;

/// The words for `error`, a value of a wrong type in an object of a built-in definition (`io.k8s.api.core.v1.ConfigMap`): the struct that
/// has the field, the fields that lead to it, and its type. `None` where the type is no scalar, or has a decoder of its own.
pub(in crate::registry) fn words(definition: &str, error: &FieldError) -> Option<String> {
    let place = Place::find(definition, error.path.as_str())?;
    let found = error.value.as_ref()?.as_str()?;
    if place.kind == "[]byte" {
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
        let at = found.bytes().position(|byte| !fine(byte))?;
        return Some(format!("illegal base64 data at input byte {at}"));
    }
    let found = match found {
        "integer" | "number" => "number",
        "boolean" => "bool",
        other @ ("string" | "array" | "object") => other,
        _ => return None,
    };
    let Place { of, fields, kind } = place;
    Some(format!(
        "json: cannot unmarshal {found} into Go struct field {of}.{} of type {kind}",
        fields.join(".")
    ))
}

/// Where a value is.
struct Place {
    /// The name of the innermost struct.
    of: String,
    /// The fields that lead there from the object; items and entries of maps have no names.
    fields: Vec<String>,
    /// The type of the value.
    kind: &'static str,
}

impl Place {
    fn find(definition: &str, path: &str) -> Option<Self> {
        let short = |definition: &str| definition.rsplit('.').next().unwrap_or_default().to_owned();
        let (mut of, mut fields) = (short(definition), Vec::new());
        let mut node = setpoint_kinds::definition(definition)?;
        let mut enter = |mut node: &'static Value| {
            while let Some(target) = reference(node) {
                let found = setpoint_kinds::definition(target)?;
                if found["properties"].is_object() {
                    of = short(target);
                }
                node = found;
            }
            Some(node)
        };
        for step in path.split(['.', '[']) {
            if step.ends_with(']') {
                node = enter(&node["items"])?;
            } else if let Some(field) = node["properties"].get(step) {
                fields.push(step.to_owned());
                node = enter(field)?;
            } else {
                node = enter(node.get("additionalProperties")?)?;
            }
        }
        let kind = match (node["type"].as_str()?, node["format"].as_str().unwrap_or_default()) {
            ("string", "") => "string",
            ("string", "byte") => "[]byte",
            ("integer", "int32") => "int32",
            ("integer", "int64") => "int64",
            ("boolean", _) => "bool",
            _ => return None,
        };
        Some(Self { of, fields, kind })
    }
}

/// The definition that a field's schema refers to.
fn reference(node: &'static Value) -> Option<&'static str> {
    let target = node.get("$ref").or_else(|| node["allOf"][0].get("$ref"))?;
    target.as_str()?.rsplit('/').next()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use setpoint_schema::{FieldPath, Schema, validate};

    use super::*;

    fn of(definition: &str, object: &Value) -> Option<String> {
        let errors = validate(&Schema::builtin(definition).unwrap(), object, &FieldPath::root());
        words(definition, errors.first().unwrap())
    }

    #[test]
    fn the_innermost_struct_and_all_fields_are_named() {
        let said = |text: &str| Some(format!("json: cannot unmarshal {text}"));
        assert_eq!(
            of("io.k8s.api.core.v1.ConfigMap", &json!({"data": {"k": true}})),
            said("bool into Go struct field ConfigMap.data of type string")
        );
        assert_eq!(
            of("io.k8s.api.core.v1.Pod", &json!({"spec": {"containers": [{"name": "a", "image": 5}]}})),
            said("number into Go struct field Container.spec.containers.image of type string")
        );
        assert_eq!(
            of("io.k8s.api.core.v1.Pod", &json!({"metadata": {"labels": {"a.b": 5}}})),
            None,
            "keys with dots cannot be told from fields"
        );
        assert_eq!(
            of("io.k8s.api.core.v1.Secret", &json!({"data": {"k": "ab*"}})),
            Some("illegal base64 data at input byte 2".to_owned())
        );
    }
}
