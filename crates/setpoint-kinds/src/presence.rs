//! What Go's types say about missing fields, which the OpenAPI documents don't tell.

use crate::{definition::find, facts::presence_lines};

/// How a field of a built-in kind that is no pointer in Go is written as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Left out when it is zero: `false`, 0, an empty text, list or map (`omitempty`).
    Omitted,
    /// Always there: structs, and what has no `omitempty`.
    Always,
    /// A pointer that is `null` when it is not set.
    Null,
}

/// The fields of a definition such as `io.k8s.api.core.v1.Pod` that are more than there or not there. A field that is not among them is a pointer: it is
/// there when it is set, whatever its value. Empty for definitions that are no structs.
pub fn presence(definition: &str) -> impl Iterator<Item = (&'static str, Presence)> {
    let fields = find(presence_lines(), definition).map_or("", |(_, fields)| fields);
    fields.split(';').filter_map(|field| {
        field
            .strip_prefix('-')
            .map(|name| (name, Presence::Omitted))
            .or_else(|| field.strip_prefix('+').map(|name| (name, Presence::Always)))
            .or_else(|| Some((field.strip_prefix('*')?, Presence::Null)))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{definition, definition_names};

    #[test]
    fn every_struct_is_listed_and_every_field_exists() {
        assert!(presence_lines().lines().is_sorted());
        for name in definition_names() {
            let properties = definition(name).and_then(|schema| schema["properties"].as_object());
            let listed = find(presence_lines(), name).is_some();
            // These are used in answers only.
            let answer =
                [".WatchEvent", ".GroupResource", ".version.Info"].iter().any(|end| name.ends_with(end));
            assert_eq!(listed, properties.is_some() && !answer, "{name}");
            for (field, _) in presence(name) {
                assert!(properties.is_some_and(|known| known.contains_key(field)), "{name} has no {field}");
            }
        }
    }

    #[test]
    fn pointers_structs_and_zero_values_are_told_apart() {
        let spec: BTreeMap<_, _> = presence("io.k8s.api.apps.v1.DeploymentSpec").collect();
        assert_eq!(spec.get("paused"), Some(&Presence::Omitted));
        assert_eq!(spec.get("template"), Some(&Presence::Always));
        assert_eq!(spec.get("replicas"), None);
        // From an embedded struct.
        let key: BTreeMap<_, _> = presence("io.k8s.api.core.v1.ConfigMapKeySelector").collect();
        assert_eq!(key.get("name"), Some(&Presence::Omitted));
    }
}
