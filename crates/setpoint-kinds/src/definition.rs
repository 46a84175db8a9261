//! Definitions, looked up by binary search in the sorted text and parsed one at a time.

use std::{
    collections::BTreeMap,
    sync::{PoisonError, RwLock},
};

use serde_json::Value;

use crate::facts::definition_lines;

/// What every `$ref` of a definition starts with; the rest is the name of a definition.
pub const REF_PREFIX: &str = "#/components/schemas/";

/// The definitions that have been asked for; each is leaked once, so that schemas can point into it for as long as the process lives.
static PARSED: RwLock<BTreeMap<&'static str, &'static Value>> = RwLock::new(BTreeMap::new());

/// The OpenAPI v3 schema of a definition such as `io.k8s.api.core.v1.Pod`: `$ref`s, `default`, `enum`, `required`, `format` and
/// `x-kubernetes-*` as kube-apiserver serves them, without descriptions. `None` for a name that Kubernetes doesn't have.
pub fn definition(name: &str) -> Option<&'static Value> {
    if let Some(found) = PARSED.read().unwrap_or_else(PoisonError::into_inner).get(name) {
        return Some(found);
    }
    let (name, text) = find(definition_lines(), name)?;
    let value: Value = serde_json::from_str(text).ok()?;
    let mut parsed = PARSED.write().unwrap_or_else(PoisonError::into_inner);
    // Another thread may have been faster: then its value is the one that others already hold.
    Some(parsed.entry(name).or_insert_with(|| Box::leak(Box::new(value))))
}

/// The names of all definitions, sorted.
pub fn definition_names() -> impl Iterator<Item = &'static str> {
    definition_lines().lines().filter_map(|line| line.split_once('\t')).map(|(name, _)| name)
}

/// Binary search for the line `name<TAB>…` among sorted lines.
pub fn find<'a>(lines: &'a str, name: &str) -> Option<(&'a str, &'a str)> {
    let (mut low, mut high) = (0, lines.len());
    while low < high {
        let middle = usize::midpoint(low, high);
        let start = lines[..middle].rfind('\n').map_or(0, |newline| newline + 1).max(low);
        let end = lines[middle..].find('\n').map_or(lines.len(), |newline| middle + newline);
        let (found, text) = lines[start..end].split_once('\t')?;
        match found.cmp(name) {
            std::cmp::Ordering::Equal => return Some((found, text)),
            std::cmp::Ordering::Less => low = end + 1,
            std::cmp::Ordering::Greater => high = start,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `see` with every `$ref` in a schema; a property that is called `$ref` is not one.
    fn references(schema: &Value, see: &mut dyn FnMut(&str)) {
        match schema {
            Value::Object(fields) => {
                for (key, value) in fields {
                    match (key.as_str(), value) {
                        ("$ref", Value::String(target)) => see(target),
                        ("properties", Value::Object(properties)) => {
                            properties.values().for_each(|property| references(property, see));
                        }
                        ("default" | "enum", _) => {}
                        _ => references(value, see),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, see)),
            _ => {}
        }
    }

    #[test]
    fn every_name_is_found_and_every_reference_resolves() {
        let names: Vec<_> = definition_names().collect();
        assert!(names.len() > 500, "only {} definitions", names.len());
        assert!(names.is_sorted_by(|a, b| a < b), "the names must be sorted for the search");
        for name in names {
            let schema = definition(name).unwrap_or_else(|| panic!("{name} is listed, but not found"));
            references(schema, &mut |target| {
                let target =
                    target.strip_prefix(REF_PREFIX).unwrap_or_else(|| panic!("{name} refers to {target}"));
                assert!(definition(target).is_some(), "{name} refers to {target}, which is missing");
            });
        }
    }

    #[test]
    fn unknown_names_have_no_definition() {
        for name in ["", "a", "io.k8s.api.core.v1.Po", "io.k8s.api.core.v1.Podx", "zzz"] {
            assert_eq!(definition(name), None, "{name:?}");
        }
    }

    #[test]
    fn what_merging_needs_is_kept_and_prose_is_not() {
        let pod = definition("io.k8s.api.core.v1.PodSpec").expect("PodSpec");
        let containers = &pod["properties"]["containers"];
        assert_eq!(containers["x-kubernetes-list-type"], "map");
        assert_eq!(containers["x-kubernetes-list-map-keys"], serde_json::json!(["name"]));
        assert_eq!(containers["x-kubernetes-patch-strategy"], "merge");
        assert_eq!(containers.get("description"), None);
        let column = definition(
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceColumnDefinition",
        )
        .expect("column");
        assert_eq!(
            column["properties"]["description"]["type"], "string",
            "a field that is called description is no prose"
        );
    }

    #[test]
    fn a_definition_is_parsed_once() {
        let first = definition("io.k8s.api.core.v1.Secret").expect("Secret");
        let second = definition("io.k8s.api.core.v1.Secret").expect("Secret");
        assert!(std::ptr::eq(first, second));
    }
}
