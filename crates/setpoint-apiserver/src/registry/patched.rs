//! What is wrong with an object after a patch, as upstream says it: in one cause named `patch` with the object that the patch made
//! (`k8s.io/apiserver/pkg/endpoints/handlers/patch.go`).

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Map, Value};
use setpoint_kinds::{Label, message};
use setpoint_schema::{printed, prune};

use super::PatchKind;
use super::decode::go::{self, Decoder};
use super::decode::unregistered;
use super::options::{FieldValidation, WriteOptions};
use super::shape::{drop_nulls, metadata_fault};
use crate::catalog::Resource;
use crate::status::{Cause, Result, Status, Subject};

/// A patch of the body of a request.
pub(super) struct Patch<'a> {
    pub(super) kind: PatchKind,
    pub(super) value: &'a Value,
    /// Fields that it gives twice, and fields of operations that no operation has.
    pub(super) faults: &'a [String],
}

/// Refuses a patch after which a built-in object cannot be decoded, or, under strict validation, one with fields that nobody knows; answers with the
/// warnings about the patch itself.
pub(super) fn check(
    resource: &Resource,
    live: &Value,
    object: &Value,
    patch: &Patch<'_>,
    options: &WriteOptions,
) -> Result<Vec<String>> {
    if let Some(error) = undecodable(resource, patch.kind, object) {
        return Err(refusal(resource, live, object, patch, &error));
    }
    if resource.custom().is_some() {
        check_version(resource, object, options)?;
    }
    match options.validation {
        FieldValidation::Ignore => Ok(Vec::new()),
        FieldValidation::Warn => Ok(patch.faults.to_vec()),
        FieldValidation::Strict => {
            let mut faults = patch.faults.to_vec();
            faults.extend(unknown(resource, object));
            if faults.is_empty() {
                return Ok(Vec::new());
            }
            let error = format!("strict decoding error: {}", faults.join(", "));
            Err(refusal(resource, live, object, patch, &error))
        }
    }
}

/// Refuses a patch that makes a custom resource one of another version, of which nothing is known.
fn check_version(resource: &Resource, object: &Value, options: &WriteOptions) -> Result<()> {
    let version = &object["apiVersion"];
    if *version == resource.api_version() || object["kind"] != resource.kind {
        return Ok(());
    }
    let cause = Cause::invalid("apiVersion", version, &format!("must be {}", resource.api_version()));
    let status = Status::invalid(
        resource.invalid_subject(object["metadata"]["name"].as_str().unwrap_or_default()),
        vec![cause],
    );
    if options.validation != FieldValidation::Warn {
        return Err(status);
    }
    let fields = object.as_object().into_iter().flat_map(Map::keys);
    let unknown = fields.filter(|field| !matches!(field.as_str(), "apiVersion" | "kind" | "metadata"));
    Err(status.with_warnings(unknown.map(|field| format!("unknown field \"{field}\"")).collect()))
}

/// The names of fields in operations that no operation of a JSON patch has.
pub(super) fn unknown_in_operations(patch: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    for (index, operation) in patch.as_array().into_iter().flatten().enumerate() {
        let names = operation.as_object().into_iter().flat_map(Map::keys);
        for name in names.filter(|name| !matches!(name.as_str(), "op" | "path" | "from" | "value")) {
            unknown.push(format!("json patch unknown field \"[{index}].{name}\""));
        }
    }
    unknown
}

/// Why Go's decoder could not read a built-in object.
fn undecodable(resource: &Resource, kind: PatchKind, object: &Value) -> Option<String> {
    let decoder = if kind == PatchKind::Strategic { Decoder::Unstructured } else { Decoder::Json };
    if resource.custom().is_some() {
        return metadata_fault(object);
    }
    let text = |key: &str| object[key].as_str().unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if api_version == resource.api_version() && kind == resource.kind {
        return go::misfit(decoder, resource.definition()?, object);
    }
    // It is decoded as what it says it is.
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let Some(other) = setpoint_kinds::by_kind(group, version, kind) else {
        return Some(unregistered(api_version, kind));
    };
    go::misfit(decoder, other.definition, object)
}

fn unknown(resource: &Resource, object: &Value) -> Vec<String> {
    let mut object = object.clone();
    let unknown = if let Some(custom) = resource.custom() {
        custom.complete(&mut object)
    } else {
        drop_nulls(&mut object);
        prune(&resource.schema(), &mut object)
    };
    unknown.iter().map(ToString::to_string).collect()
}

fn refusal(resource: &Resource, live: &Value, object: &Value, patch: &Patch<'_>, error: &str) -> Status {
    let shown = match patch.kind {
        PatchKind::Strategic => printed(patch.value),
        _ => text_of(resource, live, object, patch),
    };
    let cause = Cause::invalid("patch", &shown.into(), error);
    Status::invalid(Subject { group: "", kind: "", name: "" }, vec![cause])
}

/// The patched object as upstream's patch library leaves its text: what the patch went through has sorted fields, the rest stands as Go wrote it.
fn text_of(resource: &Resource, live: &Value, object: &Value, patch: &Patch<'_>) -> String {
    let mut entered = BTreeSet::new();
    match patch.kind {
        PatchKind::Merge => entered_by_merge(live, patch.value, &mut String::new(), &mut entered),
        _ => {
            for operation in patch.value.as_array().into_iter().flatten() {
                for path in ["path", "from"].iter().filter_map(|key| operation[key].as_str()) {
                    let ends = path.match_indices('/').map(|(at, _)| at);
                    entered.extend(ends.map(|at| path[..at].to_owned()));
                }
            }
        }
    }
    let mut text = String::new();
    let definition = resource.definition();
    write(&mut text, object, Some(live), definition, &mut String::new(), &entered);
    text
}

/// The paths of objects that a merge patch has fields for.
fn entered_by_merge(live: &Value, patch: &Value, at: &mut String, entered: &mut BTreeSet<String>) {
    entered.insert(at.clone());
    for (name, below) in patch.as_object().into_iter().flatten() {
        if let (true, Some(live @ Value::Object(_))) = (below.is_object(), live.get(name)) {
            let length = at.len();
            let _ = write!(at, "/{}", name.replace('~', "~0").replace('/', "~1"));
            entered_by_merge(live, below, at, entered);
            at.truncate(length);
        }
    }
}

/// `live` is what stood at the same place: what the patch brought is written as it came.
fn write(
    text: &mut String,
    value: &Value,
    live: Option<&Value>,
    definition: Option<&str>,
    at: &mut String,
    entered: &BTreeSet<String>,
) {
    match value {
        Value::Object(fields) => {
            let ours = live.is_some_and(Value::is_object);
            let order =
                definition.filter(|_| ours && !entered.contains(at.as_str())).map(order).unwrap_or_default();
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort();
            names.sort_by_key(|name| order.iter().position(|known| known == *name).unwrap_or(usize::MAX));
            text.push('{');
            for (index, name) in names.into_iter().enumerate() {
                let _ = write!(text, "{}{}:", if index == 0 { "" } else { "," }, Value::from(name.as_str()));
                let length = at.len();
                let _ = write!(at, "/{}", name.replace('~', "~0").replace('/', "~1"));
                let live = live.and_then(|live| live.get(name));
                let below = definition.and_then(|definition| definition_of(definition, name));
                write(text, &fields[name], live, below.as_deref(), at, entered);
                at.truncate(length);
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                let length = at.len();
                let _ = write!(at, "/{index}");
                let live = live
                    .and_then(|live| live.get(index))
                    .or(live.filter(|live| live.is_array()).and(Some(item)));
                write(text, item, live, definition, at, entered);
                at.truncate(length);
            }
            text.push(']');
        }
        other => {
            let shown = other.to_string();
            text.push_str(&shown.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"));
        }
    }
}

/// The fields of a Go struct in their order; those of embedded ones where they are embedded.
fn order(definition: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut queue = vec![definition.to_owned()];
    while let Some(definition) = queue.pop() {
        for field in message(&definition).unwrap_or_default() {
            match field.name {
                Some(name) => names.push(name.to_owned()),
                None => queue.push(field.kind.to_owned()),
            }
        }
    }
    // The type of an object is no field of its message; that of a reference is.
    if !names.iter().any(|name| name == "apiVersion") {
        names.splice(0..0, ["kind".to_owned(), "apiVersion".to_owned()]);
    }
    names
}

/// The definition of a field's value, or of its items.
fn definition_of(definition: &str, name: &str) -> Option<String> {
    let mut queue = vec![definition.to_owned()];
    while let Some(definition) = queue.pop() {
        for field in message(&definition).unwrap_or_default() {
            match field.name {
                Some(known) if known == name => {
                    // Entries of maps are no fields.
                    return (field.label != Label::Map && field.kind.starts_with("io."))
                        .then(|| field.kind.to_owned());
                }
                None => queue.push(field.kind.to_owned()),
                _ => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(live: &Value, object: &Value, kind: PatchKind, value: &Value) -> String {
        let kind_of = setpoint_kinds::by_kind("", "v1", "ConfigMap").unwrap();
        let patch = Patch { kind, value, faults: &[] };
        text_of(&Resource::built_in(kind_of), live, object, &patch)
    }

    #[test]
    fn what_a_patch_enters_is_sorted_and_the_rest_is_in_the_order_of_go() {
        let live = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"},
            "metadata": {"uid": "u", "name": "a", "labels": {"x": "<"}, "namespace": "n"}});
        let mut object = live.clone();
        object["data"] = 5.into();
        let said = r#"{"apiVersion":"v1","data":5,"kind":"ConfigMap","metadata":{"name":"a","namespace":"n","uid":"u","labels":{"x":"\u003c"}}}"#;
        assert_eq!(
            shown(&live, &object, PatchKind::Json, &json!([{"op": "add", "path": "/data", "value": 5}])),
            said
        );
        assert_eq!(shown(&live, &object, PatchKind::Merge, &json!({"data": 5})), said);
        let mut object = live.clone();
        object["metadata"]["labels"]["b"] = 1.into();
        let said = r#"{"apiVersion":"v1","data":{"k":"v"},"kind":"ConfigMap","metadata":{"labels":{"b":1,"x":"\u003c"},"name":"a","namespace":"n","uid":"u"}}"#;
        assert_eq!(shown(&live, &object, PatchKind::Merge, &json!({"metadata": {"labels": {"b": 1}}})), said);
    }

    #[test]
    fn fields_of_operations_that_nobody_knows_are_named() {
        let patch = json!([{"op": "add", "path": "/a", "value": 1}, {"op": "add", "path": "/a", "valu": 1}]);
        assert_eq!(unknown_in_operations(&patch), [r#"json patch unknown field "[1].valu""#]);
    }
}
