//! Whether a custom resource definition is fit to be served
//! (`apiextensions-apiserver/pkg/apis/apiextensions/validation`, `pkg/apiserver/schema/structural.go`).

use serde_json::{Value, json};
use setpoint_schema::Schema;
use setpoint_schema::cel::Rules;

use crate::object::Metadata;
use crate::object_meta::is_label;
use crate::status::Cause;

/// Everything that is wrong with a definition; `old` is the stored one on an update.
pub(crate) fn check(definition: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let spec = &definition["spec"];
    names(definition, &mut causes);
    let scope = &spec["scope"];
    if scope.is_null() {
        causes.push(Cause::required("spec.scope", ""));
    } else if scope != "Namespaced" && scope != "Cluster" {
        causes.push(Cause::unsupported("spec.scope", scope, &["Cluster", "Namespaced"]));
    }
    versions(definition, &mut causes);
    if let Some(old) = old {
        for field in ["group", "scope"] {
            unchanged(&format!("spec.{field}"), &spec[field], &old["spec"][field], &mut causes);
        }
        for field in ["kind", "plural"] {
            let (new, old) = (&spec["names"][field], &old["spec"]["names"][field]);
            unchanged(&format!("spec.names.{field}"), new, old, &mut causes);
        }
    }
    causes
}

fn unchanged(field: &str, new: &Value, old: &Value, causes: &mut Vec<Cause>) {
    if new != old {
        causes.push(Cause::invalid(field, new, "field is immutable"));
    }
}

fn names(definition: &Value, causes: &mut Vec<Cause>) {
    let spec = &definition["spec"];
    let group = spec["group"].as_str().unwrap_or_default();
    let plural = spec["names"]["plural"].as_str().unwrap_or_default();
    if definition.meta("name") != format!("{plural}.{group}") {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        causes.push(Cause::invalid("metadata.name", &definition.meta("name").into(), detail));
    }
    if group.is_empty() {
        causes.push(Cause::required("spec.group", ""));
    } else if !group.contains('.') {
        causes.push(Cause::invalid("spec.group", &spec["group"], "should be a domain with at least one dot"));
    }
    let protected = group == "k8s.io" || group.ends_with(".k8s.io") || group.ends_with("kubernetes.io");
    let approval = "api-approved.kubernetes.io";
    if protected && definition["metadata"]["annotations"][approval].is_null() {
        causes.push(Cause::required(
            format!("metadata.annotations[{approval}]"),
            &format!(
                "protected groups must have approval annotation \"{approval}\", see https://github.com/kubernetes/enhancements/pull/1111"
            ),
        ));
    }
    for field in ["plural", "kind"] {
        let name = spec["names"][field].as_str().unwrap_or_default();
        let path = format!("spec.names.{field}");
        if name.is_empty() {
            causes.push(Cause::required(path, ""));
        } else if !is_label(&name.to_lowercase()) || (field == "plural" && name.to_lowercase() != name) {
            let detail = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
            causes.push(Cause::invalid(path, &name.into(), detail));
        }
    }
}

fn versions(definition: &Value, causes: &mut Vec<Cause>) {
    let versions = definition["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    if versions.is_empty() {
        let detail = "must have exactly one version marked as storage version";
        causes.push(Cause::invalid("spec.versions", &json!([]), detail));
        return;
    }
    let mut seen: Vec<&str> = Vec::new();
    // Upstream moves what all versions share to the top before it checks, and its errors name that place.
    let shared = versions.iter().all(|version| version["schema"] == versions[0]["schema"]);
    for (index, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{index}]");
        let name = version["name"].as_str().unwrap_or_default();
        if !is_label(name) {
            let detail = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
            causes.push(Cause::invalid(format!("{path}.name"), &name.into(), detail));
        }
        if seen.contains(&name) {
            causes.push(Cause::invalid("spec.versions", &json!(name), "must contain unique version names"));
        }
        seen.push(name);
        subresources(&path, version, causes);
        columns(&path, version, causes);
        let schema = &version["schema"]["openAPIV3Schema"];
        if schema.is_null() {
            causes.push(Cause::required(format!("{path}.schema.openAPIV3Schema"), "schemas are required"));
            continue;
        }
        if shared && index > 0 {
            continue;
        }
        let at = if shared {
            "spec.validation.openAPIV3Schema".to_owned()
        } else {
            format!("{path}.schema.openAPIV3Schema")
        };
        let before = causes.len();
        structure(schema, &at, true, causes);
        if causes.len() == before {
            compile(schema, &at, causes);
        }
    }
    let storage = versions.iter().filter(|version| version["storage"] == true).count();
    if storage != 1 {
        let detail = "must have exactly one version marked as storage version";
        causes.push(Cause::invalid("spec.versions", &definition["spec"]["versions"], detail));
    }
    for (index, stored) in definition["status"]["storedVersions"].as_array().into_iter().flatten().enumerate()
    {
        if !seen.contains(&stored.as_str().unwrap_or_default()) {
            let path = format!("status.storedVersions[{index}]");
            causes.push(Cause::invalid(path, stored, "missing from spec.versions; v1 was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v1 and removes v1 from status.storedVersions".replace("v1", stored.as_str().unwrap_or_default()).as_str()));
        }
    }
}

fn compile(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    match Schema::from_openapi(schema) {
        Err(error) => causes.push(Cause {
            reason: "FieldValueInvalid".to_owned(),
            message: format!("Invalid value: {error}"),
            field: at.to_owned(),
        }),
        Ok(schema) => {
            for error in Rules::compile(&schema).err().into_iter().flatten() {
                let detail = format!("compilation failed: {}", error.problem);
                causes.push(Cause::invalid(
                    format!("{at}.{}", error.path),
                    &json!(error.expression),
                    &detail,
                ));
            }
        }
    }
}

fn subresources(path: &str, version: &Value, causes: &mut Vec<Cause>) {
    let scale = &version["subresources"]["scale"];
    if !scale.is_object() {
        return;
    }
    for (field, below, required) in [
        ("specReplicasPath", ".spec", true),
        ("statusReplicasPath", ".status", true),
        ("labelSelectorPath", ".status", false),
    ] {
        let value = &scale[field];
        let text = value.as_str().unwrap_or_default();
        let field = format!("{path}.subresources.scale.{field}");
        if text.is_empty() {
            if required {
                causes.push(Cause::required(field, ""));
            }
        } else if !text.starts_with(&format!("{below}.")) && (required || !text.starts_with(".spec.")) {
            let detail = format!("should be a json path under {below}");
            causes.push(Cause::invalid(field, value, &detail));
        }
    }
}

fn columns(path: &str, version: &Value, causes: &mut Vec<Cause>) {
    for (index, column) in version["additionalPrinterColumns"].as_array().into_iter().flatten().enumerate() {
        let path = format!("{path}.additionalPrinterColumns[{index}]");
        for field in ["name", "jsonPath"] {
            if column[field].as_str().unwrap_or_default().is_empty() {
                causes.push(Cause::required(format!("{path}.{field}"), ""));
            }
        }
        let kinds = ["boolean", "date", "integer", "number", "string"];
        let kind = column["type"].as_str().unwrap_or_default();
        if kind.is_empty() {
            causes.push(Cause::required(
                format!("{path}.type"),
                &format!("must be one of {}", kinds.join(",")),
            ));
        } else if !kinds.contains(&kind) {
            causes.push(Cause::invalid(
                format!("{path}.type"),
                &column["type"],
                &format!("must be one of {}", kinds.join(",")),
            ));
        }
    }
}

/// A structural schema says a type at every place, and what it says in `allOf` and its like adds no fields.
fn structure(schema: &Value, at: &str, root: bool, causes: &mut Vec<Cause>) {
    let kind = schema["type"].as_str().unwrap_or_default();
    let int_or_string = schema["x-kubernetes-int-or-string"] == true;
    let preserved = schema["x-kubernetes-preserve-unknown-fields"] == true;
    if root && kind != "object" {
        if kind.is_empty() {
            causes.push(Cause::required(format!("{at}.type"), "must not be empty at the root"));
        } else {
            causes.push(Cause::invalid(format!("{at}.type"), &json!(kind), "must be object at the root"));
        }
    } else if kind.is_empty() && !int_or_string && !preserved {
        let item = at.rsplit('.').next() == Some("items");
        let what = if item { "array items" } else { "object fields" };
        let detail = format!("must not be empty for specified {what}");
        causes.push(Cause::required(format!("{at}.type"), &detail));
    }
    if int_or_string && !kind.is_empty() {
        let detail = "must be empty if x-kubernetes-int-or-string is true";
        causes.push(Cause::invalid(format!("{at}.type"), &json!(kind), detail));
    }
    let properties = schema["properties"].as_object();
    let additional = &schema["additionalProperties"];
    if properties.is_some_and(|map| !map.is_empty()) && !additional.is_null() && additional != &json!(false) {
        let detail = "additionalProperties and properties are mutual exclusive";
        causes.push(Cause::forbidden(format!("{at}.additionalProperties"), detail));
    }
    for field in [
        "$ref",
        "definitions",
        "dependencies",
        "deprecated",
        "discriminator",
        "id",
        "patternProperties",
        "readOnly",
        "writeOnly",
        "xml",
    ] {
        if !schema[field].is_null() {
            causes.push(Cause::forbidden(format!("{at}.{field}"), &format!("{field} is not supported")));
        }
    }
    if schema["uniqueItems"] == true {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        causes.push(Cause::forbidden(format!("{at}.uniqueItems"), detail));
    }
    for (name, property) in properties.into_iter().flatten() {
        let below = format!("{at}.properties[{name}]");
        if root && name == "metadata" {
            if property["type"].as_str() != Some("object") {
                causes.push(Cause::invalid(format!("{below}.type"), &property["type"], "must be object"));
            }
            continue;
        }
        structure(property, &below, false, causes);
    }
    if additional.is_object() {
        structure(additional, &format!("{at}.additionalProperties"), false, causes);
    }
    match &schema["items"] {
        Value::Null if kind == "array" => {
            causes.push(Cause::required(format!("{at}.items"), "must be specified"));
        }
        Value::Array(_) => {
            causes.push(Cause::forbidden(
                format!("{at}.items"),
                "items must be a schema object and not an array",
            ));
        }
        items @ Value::Object(_) => structure(items, &format!("{at}.items"), false, causes),
        _ => {}
    }
    let list = schema["x-kubernetes-list-type"].as_str().unwrap_or_default();
    if list == "map" && schema["x-kubernetes-list-map-keys"].as_array().is_none_or(Vec::is_empty) {
        let detail = "must not be empty if x-kubernetes-list-type is map";
        causes.push(Cause::required(format!("{at}.x-kubernetes-list-map-keys"), detail));
    }
    if !list.is_empty() && kind != "array" {
        let detail = "must be array if x-kubernetes-list-type is specified";
        causes.push(Cause::invalid(format!("{at}.type"), &json!(kind), detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_named() {
        let mut definition = json!({
            "metadata": {"name": "foos.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}},
                }}}],
            },
        });
        assert_eq!(check(&definition, None), []);
        definition["spec"]["versions"][0]["storage"] = false.into();
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
            ["x"] = json!({});
        definition["metadata"]["name"] = "bars.example.com".into();
        let fields: Vec<String> = check(&definition, None).into_iter().map(|cause| cause.field).collect();
        assert_eq!(
            fields,
            [
                "metadata.name",
                "spec.validation.openAPIV3Schema.properties[spec].properties[x].type",
                "spec.versions",
            ]
        );
    }
}
