//! What definitions and their fields are for: the descriptions of the OpenAPI documents.

use std::{collections::BTreeMap, io::Read};

use flate2::read::DeflateDecoder;
use serde_json::Value;

use crate::{
    definition::find,
    facts::{PATHS, PROSE},
};

/// The descriptions of all definitions, unpacked: about 0.8 MB. Hold it only while a document is made.
#[derive(Debug)]
pub struct Prose(String);

impl Prose {
    /// Unpacks the descriptions, which takes a few milliseconds.
    pub fn unpack() -> Self {
        Self(unpacked(PROSE))
    }

    /// The descriptions of a definition by field; the one of the definition itself has the empty name.
    pub fn of(&self, definition: &str) -> BTreeMap<String, String> {
        let line = find(&self.0, definition);
        line.and_then(|(_, texts)| serde_json::from_str(texts).ok()).unwrap_or_default()
    }

    /// Puts the descriptions of a definition into its schema.
    pub fn describe(&self, definition: &str, schema: &mut Value) {
        for (field, text) in self.of(definition) {
            let place =
                if field.is_empty() { Some(&mut *schema) } else { schema["properties"].get_mut(&field) };
            if let Some(Value::Object(place)) = place {
                place.insert("description".to_owned(), text.into());
            }
        }
    }
}

/// The paths of the OpenAPI documents that the index names without custom resources, unpacked: about 1 MB. Hold it only while a document is made.
#[derive(Debug)]
pub struct Paths(String);

impl Paths {
    /// Unpacks the paths, which takes a few milliseconds.
    pub fn unpack() -> Self {
        Self(unpacked(PATHS))
    }

    /// The `paths` of the OpenAPI v3 document of this name in the index, such as `api/v1`, `apis/apps/v1`, `apis/apps` or `version`; `None` for one that
    /// is not built in.
    pub fn of(&self, document: &str) -> Option<Value> {
        let parameters = self.parameters();
        let (_, text) = find(&self.0, document).filter(|_| !document.is_empty())?;
        let mut paths: Value = serde_json::from_str(text).ok()?;
        for operations in paths.as_object_mut()?.values_mut() {
            for (method, operation) in operations.as_object_mut().into_iter().flatten() {
                let list =
                    if method == "parameters" { Some(operation) } else { operation.get_mut("parameters") };
                for parameter in list.and_then(Value::as_array_mut).into_iter().flatten() {
                    let number = parameter.as_u64().and_then(|number| usize::try_from(number).ok())?;
                    *parameter = parameters.get(number)?.clone();
                }
            }
        }
        Some(paths)
    }

    /// The names of all documents, sorted.
    pub fn documents(&self) -> impl Iterator<Item = &str> {
        let names = self.0.lines().filter_map(|line| line.split_once('\t'));
        names.map(|(name, _)| name).filter(|name| !name.is_empty())
    }

    /// All parameters of operations.
    pub fn parameters(&self) -> Vec<Value> {
        find(&self.0, "").and_then(|(_, text)| serde_json::from_str(text).ok()).unwrap_or_default()
    }
}

/// What is embedded is whole: tests unpack it. If it were not, there would be none of it.
fn unpacked(packed: &[u8]) -> String {
    let mut text = String::new();
    match DeflateDecoder::new(packed).read_to_string(&mut text) {
        Ok(_) => text,
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{definition, definition_names};

    #[test]
    fn definitions_and_fields_are_described() {
        let prose = Prose::unpack();
        let pod = prose.of("io.k8s.api.core.v1.Pod");
        assert!(pod[""].starts_with("Pod is a collection of containers"), "{pod:?}");
        assert!(pod["spec"].starts_with("Specification of the desired behavior of the pod."));
        assert!(prose.of("io.k8s.api.core.v1.Po").is_empty());
        for name in definition_names() {
            let properties = definition(name).map(|schema| &schema["properties"]);
            for field in prose.of(name).keys().filter(|field| !field.is_empty()) {
                assert!(properties.is_some_and(|known| known.get(field).is_some()), "{name} has no {field}");
            }
        }
        let first = definition_names().next().expect("a definition");
        assert!(!prose.of(first).is_empty(), "{first} is the first line");
    }

    #[test]
    fn every_group_version_has_paths() {
        let paths = Paths::unpack();
        for kind in crate::kinds() {
            let root = if kind.group.is_empty() { "api".to_owned() } else { format!("apis/{}", kind.group) };
            let name = format!("{root}/{}", kind.version);
            assert!(paths.documents().any(|known| known == name), "{name}");
            let all = paths.of(&name).unwrap_or_else(|| panic!("{name}"));
            assert!(all.get(format!("/{name}/")).is_some(), "{name}");
            let group = paths.of(&root).unwrap_or_else(|| panic!("{root}"));
            assert!(group.get(format!("/{root}/")).is_some(), "{root}");
        }
        let pods = &paths.of("api/v1").expect("core")["/api/v1/namespaces/{namespace}/pods"];
        assert_eq!(pods["parameters"][0]["name"], "namespace");
        assert_eq!(paths.of("apis/example.com/v1"), None);
        assert_eq!(paths.of(""), None);
    }

    #[test]
    fn a_schema_is_described() {
        let name = "io.k8s.api.core.v1.Secret";
        let mut schema = definition(name).expect("Secret").clone();
        Prose::unpack().describe(name, &mut schema);
        assert!(
            schema["description"].as_str().is_some_and(|text| text.starts_with("Secret holds secret data"))
        );
        assert!(schema["properties"]["data"]["description"].is_string());
    }
}
