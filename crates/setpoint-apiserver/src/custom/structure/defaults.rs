//! Whether defaults are what they would become: valid, and without unknown fields
//! (`apiextensions-apiserver/pkg/apiserver/schema/defaulting/validation.go`).

use serde_json::Value;
use setpoint_schema::{FieldPath, Schema, prune, validate};

use crate::status::Cause;

/// Checks the defaults of a schema, which `typed` was read from. Those inside `additionalProperties` are never used.
pub(super) fn check(schema: &Value, typed: &Schema, at: &str, causes: &mut Vec<Cause>) {
    fields(schema, typed, at, true, causes);
}

/// `object`: whether this is an object of the API, whose metadata has a schema of its own.
fn fields(schema: &Value, typed: &Schema, at: &str, object: bool, causes: &mut Vec<Cause>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if object && matches!(name.as_str(), "metadata" | "kind" | "apiVersion") {
            continue;
        }
        if let Some(below) = typed.at(&[name]) {
            one(property, below, &format!("{at}.properties[{name}]"), causes);
        }
    }
    if let Some(below) = typed.at(&["*"]).filter(|_| schema["items"].is_object()) {
        one(&schema["items"], below, &format!("{at}.items"), causes);
    }
}

fn one(schema: &Value, typed: &Schema, at: &str, causes: &mut Vec<Cause>) {
    let default = &schema["default"];
    if !default.is_null() {
        let at = format!("{at}.default");
        if !prune(typed, &mut default.clone()).is_empty() {
            causes.push(Cause::invalid(at.as_str(), default, "must not have unknown fields"));
        }
        for error in validate(typed, default, &FieldPath::root()) {
            let field = match error.path.as_str() {
                "" => at.clone(),
                below => format!("{at}.{below}"),
            };
            let (reason, message) = (error.reason().to_owned(), error.cause_message());
            causes.push(Cause { reason, message, field });
        }
    }
    fields(schema, typed, at, schema["x-kubernetes-embedded-resource"] == true, causes);
}
