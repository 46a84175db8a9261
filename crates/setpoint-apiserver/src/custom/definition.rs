//! Whether a custom resource definition is fit to be served
//! (`apiextensions-apiserver/pkg/apis/apiextensions/validation`).

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::structure;
use crate::builtin::{GoValue, validate_conversion, validate_review_versions};
use crate::object::Metadata;
use crate::object_meta::OLD_LABEL;
use crate::object_meta::is_label;
use crate::status::Cause;

const APPROVAL: &str = "api-approved.kubernetes.io";
/// Upstream: `MaxSelectableFields`.
const MAX_SELECTABLE: usize = 8;

/// Everything that is wrong with a definition; `old` is the stored one on an update.
pub(crate) fn check(definition: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let spec = &definition["spec"];
    group(definition, old, &mut causes);
    names(&spec["names"], &mut causes);
    let scope = &spec["scope"];
    if scope.is_null() || scope == "" {
        causes.push(Cause::required("spec.scope", ""));
    } else if scope != "Namespaced" && scope != "Cluster" {
        causes.push(Cause::unsupported("spec.scope", scope, &["Cluster", "Namespaced"]));
    }
    versions(spec, &mut causes);
    stored_versions(definition, &mut causes);
    conversion(&spec["conversion"], &mut causes);
    let strategy = &spec["conversion"]["strategy"];
    if spec["preserveUnknownFields"] == true && *strategy != "None" {
        let detail = "must be None if spec.preserveUnknownFields is true";
        causes.push(Cause::invalid("spec.conversion.strategy", strategy, detail));
    }
    if spec["preserveUnknownFields"] == true
        && old.is_none_or(|old| old["spec"]["preserveUnknownFields"] != true)
    {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        causes.push(Cause::invalid("spec.preserveUnknownFields", &json!(true), detail));
    }
    if let Some(old) = old {
        let mut unchanged = |field: &str, new: &Value, old: &Value| {
            if new != old {
                causes.push(Cause::invalid(field, new, "field is immutable"));
            }
        };
        let before = &old["spec"];
        unchanged("spec.group", &spec["group"], &before["group"]);
        unchanged("spec.names.plural", &spec["names"]["plural"], &before["names"]["plural"]);
        // These say how objects are stored, once there may be any.
        if is_established(old) {
            unchanged("spec.scope", scope, &before["scope"]);
            unchanged("spec.names.kind", &spec["names"]["kind"], &before["names"]["kind"]);
        }
    }
    causes
}

/// What the author of a definition should know: formats that nothing checks, sets of what cannot be compared. On an update,
/// what `old` had already is not said again.
pub(crate) fn warnings(definition: &Value, old: Option<&Value>) -> Vec<String> {
    let of = |definition: &Value| {
        let (mut formats, mut sets) = (BTreeSet::new(), BTreeSet::new());
        for version in definition["spec"]["versions"].as_array().into_iter().flatten() {
            structure::notices(&version["schema"]["openAPIV3Schema"], &mut formats, &mut sets);
        }
        let formats = formats.into_iter().map(|format| format!("unrecognized format {format:?}"));
        let sets = sets.into_iter().map(|kind| format!("x-kubernetes-list-type: set for items of type {kind:?} is not supported by server-side apply or CEL validation rules"));
        formats.chain(sets).collect::<Vec<_>>()
    };
    let before = old.map(of).unwrap_or_default();
    of(definition).into_iter().filter(|warning| !before.contains(warning)).collect()
}

fn is_established(definition: &Value) -> bool {
    let conditions = definition["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|known| known["type"] == "Established" && known["status"] == "True")
}

fn group(definition: &Value, old: Option<&Value>, causes: &mut Vec<Cause>) {
    let spec = &definition["spec"];
    let group = spec["group"].as_str().unwrap_or_default();
    let plural = spec["names"]["plural"].as_str().unwrap_or_default();
    // The name cannot change, so only a new definition can have a wrong one.
    if old.is_none() && definition.meta("name") != format!("{plural}.{group}") {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        causes.push(Cause::invalid("metadata.name", &definition.meta("name").into(), detail));
    }
    if group.is_empty() {
        causes.push(Cause::required("spec.group", ""));
    } else if !group.contains('.') {
        causes.push(Cause::invalid("spec.group", &spec["group"], "should be a domain with at least one dot"));
    }
    let protected = group == "k8s.io" || group.ends_with(".k8s.io") || group.ends_with("kubernetes.io");
    if protected && definition["metadata"]["annotations"][APPROVAL].is_null() {
        causes.push(Cause::required(
            format!("metadata.annotations[{APPROVAL}]"),
            &format!(
                "protected groups must have approval annotation \"{APPROVAL}\", see https://github.com/kubernetes/enhancements/pull/1111"
            ),
        ));
    }
}

/// A DNS label of RFC 1035, which begins with a letter.
fn label(field: String, text: &str, mixed_case: bool, causes: &mut Vec<Cause>) {
    let checked = if mixed_case { text.to_lowercase() } else { text.to_owned() };
    if !is_label(&checked) || checked.len() > 63 || checked.starts_with(|first: char| first.is_ascii_digit())
    {
        let lead = if mixed_case { "may have mixed case, but should otherwise match: " } else { "" };
        causes.push(Cause::invalid(field, &text.into(), &format!("{lead}{OLD_LABEL}")));
    }
}

fn names(names: &Value, causes: &mut Vec<Cause>) {
    for (field, mixed_case) in [("plural", false), ("singular", false), ("kind", true), ("listKind", true)] {
        let path = format!("spec.names.{field}");
        match names[field].as_str().unwrap_or_default() {
            "" => causes.push(Cause::required(path, "")),
            name => label(path, name, mixed_case, causes),
        }
    }
    let kind = names["kind"].as_str().unwrap_or_default();
    if !kind.is_empty() && names["kind"] == names["listKind"] {
        causes.push(Cause::invalid(
            "spec.names.listKind",
            &names["listKind"],
            "kind and listKind may not be the same",
        ));
    }
    for field in ["shortNames", "categories"] {
        for (index, name) in names[field].as_array().into_iter().flatten().enumerate() {
            label(format!("spec.names.{field}[{index}]"), name.as_str().unwrap_or_default(), false, causes);
        }
    }
}

/// Where upstream keeps what versions say: it moves what is the same in all of them to the top before it checks, and its
/// errors name that place.
fn place(versions: &[Value], field: &str, top: &str) -> Vec<(usize, String)> {
    let set = |value: &Value| match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        _ => true,
    };
    if versions.iter().all(|version| version[field] == versions[0][field]) {
        let one = versions.first().filter(|version| set(&version[field]));
        return one.map(|_| (0, format!("spec.{top}"))).into_iter().collect();
    }
    let own = versions.iter().enumerate().filter(|(_, version)| set(&version[field]));
    own.map(|(index, _)| (index, format!("spec.versions[{index}].{field}"))).collect()
}

fn versions(spec: &Value, causes: &mut Vec<Cause>) {
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut seen = BTreeSet::new();
    let mut unique = true;
    for (index, version) in versions.iter().enumerate() {
        let name = version["name"].as_str().unwrap_or_default();
        unique &= seen.insert(name);
        label(format!("spec.versions[{index}].name"), name, false, causes);
        if version["schema"]["openAPIV3Schema"].is_null() {
            causes.push(Cause::required(format!("spec.versions[{index}].schema.openAPIV3Schema"), ""));
        }
        let warning = &version["deprecationWarning"];
        if version["deprecated"] != true && warning.is_string() {
            let field = format!("spec.versions[{index}].deprecationWarning");
            causes.push(Cause::invalid(field, warning, "can only be set for deprecated versions"));
        }
    }
    // Upstream has a field for the first version too.
    if let Some(first) = versions.first() {
        label("spec.version".to_owned(), first["name"].as_str().unwrap_or_default(), false, causes);
    }
    if !unique {
        causes.push(Cause::invalid_struct(
            "spec.versions",
            &shown(versions),
            "must contain unique version names",
        ));
    }
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        causes.push(Cause::invalid_struct("spec.versions", &shown(versions), detail));
    }
    let with_status = |version: &Value| version["subresources"]["status"].is_object();
    for (index, path) in place(versions, "schema", "validation") {
        let schema = &versions[index]["schema"]["openAPIV3Schema"];
        if schema.is_object() {
            let top = path == "spec.validation";
            let has_status =
                if top { versions.iter().any(with_status) } else { with_status(&versions[index]) };
            structure::check(schema, &format!("{path}.openAPIV3Schema"), has_status, causes);
        }
    }
    for (index, path) in place(versions, "subresources", "subresources") {
        scale(&versions[index]["subresources"]["scale"], &path, causes);
    }
    for (index, path) in place(versions, "additionalPrinterColumns", "additionalPrinterColumns") {
        let columns = versions[index]["additionalPrinterColumns"].as_array().into_iter().flatten();
        for (number, column) in columns.enumerate() {
            self::column(column, &format!("{path}[{number}]"), causes);
        }
    }
    for (index, path) in place(versions, "selectableFields", "selectableFields") {
        let version = &versions[index];
        selectable(&version["selectableFields"], &version["schema"]["openAPIV3Schema"], &path, causes);
    }
}

/// The versions as upstream holds them, without what it has moved to the top.
fn shown(versions: &[Value]) -> GoValue {
    let plain = |value: &Value| GoValue::Plain(value.clone());
    let flag = |value: &Value| GoValue::Plain((value == true).into());
    let own = |version: &Value, field: &str| {
        let shared = versions.iter().all(|other| other[field] == version[field]);
        if shared { GoValue::Plain(Value::Null) } else { plain(&version[field]) }
    };
    let version = |version: &Value| {
        GoValue::fields([
            ("Name", plain(&version["name"])),
            ("Served", flag(&version["served"])),
            ("Storage", flag(&version["storage"])),
            ("Deprecated", flag(&version["deprecated"])),
            ("DeprecationWarning", plain(&version["deprecationWarning"])),
            ("Schema", own(version, "schema")),
            ("Subresources", own(version, "subresources")),
            ("AdditionalPrinterColumns", own(version, "additionalPrinterColumns")),
            ("SelectableFields", own(version, "selectableFields")),
        ])
    };
    GoValue::Items(versions.iter().map(version).collect())
}

fn stored_versions(definition: &Value, causes: &mut Vec<Cause>) {
    let stored = &definition["status"]["storedVersions"];
    let list = stored.as_array().map(Vec::as_slice).unwrap_or_default();
    if list.is_empty() {
        let detail = "must have at least one stored version";
        causes.push(Cause::invalid("status.storedVersions", &Value::Null, detail));
        return;
    }
    let versions = definition["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    for version in versions.iter().filter(|version| version["storage"] == true) {
        if !list.contains(&version["name"]) {
            let name = version["name"].as_str().unwrap_or_default();
            let detail = format!("must have the storage version {name}");
            causes.push(Cause::invalid("status.storedVersions", stored, &detail));
        }
    }
    for (index, name) in list.iter().enumerate() {
        if !versions.iter().any(|version| version["name"] == *name) {
            let text = name.as_str().unwrap_or_default();
            causes.push(Cause::invalid(format!("status.storedVersions[{index}]"), name, &format!(
                "missing from spec.versions; {text} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {text} and removes {text} from status.storedVersions"
            )));
        }
    }
}

fn conversion(conversion: &Value, causes: &mut Vec<Cause>) {
    let strategy = conversion["strategy"].as_str().unwrap_or_default();
    let webhook = &conversion["webhook"];
    let client = "spec.conversion.webhookClientConfig";
    match strategy {
        "Webhook" => {
            let config = &webhook["clientConfig"];
            if config.is_object() {
                causes.extend(validate_conversion(config, &client.into()).iter().map(Cause::of));
            } else {
                causes.push(Cause::required(client, "required when strategy is set to Webhook"));
            }
            let reviews = "spec.conversion.conversionReviewVersions";
            let given = webhook["conversionReviewVersions"].as_array().map(Vec::as_slice).unwrap_or_default();
            if given.is_empty() {
                causes.push(Cause::required(reviews, ""));
            } else {
                causes.extend(validate_review_versions(given, &reviews.into()).iter().map(Cause::of));
            }
        }
        "None" => {
            if webhook.is_object() {
                let detail = "should not be set when strategy is not set to Webhook";
                causes.push(Cause::forbidden(client, detail));
                if webhook["conversionReviewVersions"].as_array().is_some_and(|given| !given.is_empty()) {
                    causes.push(Cause::forbidden("spec.conversion.conversionReviewVersions", detail));
                }
            }
        }
        "" => causes.push(Cause::required("spec.conversion.strategy", "")),
        _ => {
            let field = "spec.conversion.strategy";
            causes.push(Cause::unsupported(field, &conversion["strategy"], &["None", "Webhook"]));
        }
    }
}

/// A path such as `.spec.replicas`.
fn json_path(field: &str, value: &Value, below: &str, causes: &mut Vec<Cause>) {
    let text = value.as_str().unwrap_or_default();
    if !text.starts_with('.') {
        causes.push(Cause::invalid(field, value, "must be a simple json path starting with ."));
    } else if !below.is_empty() && !text.starts_with(&format!("{below}.")) {
        causes.push(Cause::invalid(field, value, &format!("should be a json path under {below}")));
    }
}

fn scale(scale: &Value, path: &str, causes: &mut Vec<Cause>) {
    if !scale.is_object() {
        return;
    }
    for (field, below) in [("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")] {
        let path = format!("{path}.scale.{field}");
        match scale[field].as_str().unwrap_or_default() {
            "" => causes.push(Cause::required(path, "")),
            _ => json_path(&path, &scale[field], below, causes),
        }
    }
    let selector = scale["labelSelectorPath"].as_str().unwrap_or_default();
    if !selector.is_empty() {
        let below = if selector.starts_with(".spec.") { ".spec" } else { ".status" };
        json_path(&format!("{path}.scale.labelSelectorPath"), &scale["labelSelectorPath"], below, causes);
    }
}

fn column(column: &Value, path: &str, causes: &mut Vec<Cause>) {
    const KINDS: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    const FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
    let text = |field: &str| column[field].as_str().unwrap_or_default();
    if text("name").is_empty() {
        causes.push(Cause::required(format!("{path}.name"), ""));
    }
    let detail = format!("must be one of {}", KINDS.join(","));
    if text("type").is_empty() {
        causes.push(Cause::required(format!("{path}.type"), &detail));
    } else if !KINDS.contains(&text("type")) {
        causes.push(Cause::invalid(format!("{path}.type"), &column["type"], &detail));
    }
    if !text("format").is_empty() && !FORMATS.contains(&text("format")) {
        let detail = format!("must be one of {}", FORMATS.join(","));
        causes.push(Cause::invalid(format!("{path}.format"), &column["format"], &detail));
    }
    match text("jsonPath") {
        "" => causes.push(Cause::required(format!("{path}.JSONPath"), "")),
        _ => json_path(&format!("{path}.JSONPath"), &column["jsonPath"], "", causes),
    }
}

fn selectable(fields: &Value, schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    for (index, field) in fields.as_array().into_iter().flatten().enumerate() {
        let value = &field["jsonPath"];
        let path = format!("{path}[{index}].jsonPath");
        let text = value.as_str().unwrap_or_default();
        if text.is_empty() {
            causes.push(Cause::required(path, ""));
            continue;
        }
        let found = match structure::field_path(schema, text, false) {
            Ok(found) => found,
            Err(problem) => {
                causes.push(Cause::invalid(path, value, &format!("is an invalid path: {problem}")));
                continue;
            }
        };
        if text.starts_with(".metadata") {
            causes.push(Cause::invalid(path.as_str(), value, "must not point to fields in metadata"));
        }
        if !matches!(found["type"].as_str(), Some("string" | "boolean" | "integer")) {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            causes.push(Cause::invalid(path.as_str(), value, detail));
        }
        if !seen.insert(text) {
            causes.push(Cause::duplicate(path, value));
        }
    }
    if seen.len() > MAX_SELECTABLE {
        causes.push(Cause::too_many(path, seen.len(), MAX_SELECTABLE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foos() -> Value {
        json!({
            "metadata": {"name": "foos.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "conversion": {"strategy": "None"},
                "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}},
                }}}],
            },
            "status": {"storedVersions": ["v1"]},
        })
    }

    #[test]
    fn every_fault_is_named() {
        let mut definition = foos();
        assert_eq!(check(&definition, None), []);
        let version = &mut definition["spec"]["versions"][0];
        version["storage"] = false.into();
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["x"] = json!({});
        version["subresources"] = json!({"scale": {"specReplicasPath": "spec.size"}});
        version["selectableFields"] = json!([{"jsonPath": ".spec.size"}, {"jsonPath": ".spec.y"}]);
        definition["metadata"]["name"] = "bars.example.com".into();
        let fields: Vec<String> = check(&definition, None).into_iter().map(|cause| cause.field).collect();
        assert_eq!(
            fields,
            [
                "metadata.name",
                "spec.versions",
                "spec.validation.openAPIV3Schema.properties[spec].properties[x].type",
                "spec.subresources.scale.specReplicasPath",
                "spec.subresources.scale.statusReplicasPath",
                "spec.selectableFields[1].jsonPath",
            ]
        );
    }

    #[test]
    fn what_versions_do_not_share_is_named_in_each() {
        let mut definition = foos();
        let mut second = definition["spec"]["versions"][0].clone();
        second["name"] = "v2".into();
        second["storage"] = false.into();
        second["schema"]["openAPIV3Schema"]["properties"]["spec"] = json!({"type": "text"});
        definition["spec"]["versions"].as_array_mut().unwrap().push(second);
        let fields: Vec<String> = check(&definition, None).into_iter().map(|cause| cause.field).collect();
        assert_eq!(fields, ["spec.versions[1].schema.openAPIV3Schema.properties[spec].type"]);
    }

    #[test]
    fn kind_and_scope_are_free_until_objects_may_exist() {
        let mut old = foos();
        let mut new = old.clone();
        new["spec"]["scope"] = "Cluster".into();
        assert_eq!(check(&new, Some(&old)), []);
        old["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
        let fields: Vec<String> = check(&new, Some(&old)).into_iter().map(|cause| cause.field).collect();
        assert_eq!(fields, ["spec.scope"]);
    }
}
