use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::{Map, Value};

/// A value that YAML cannot carry. No object that came from JSON is known to cause it.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {object} as YAML: {reason}")]
pub struct YamlError {
    object: String,
    reason: String,
}

/// One object as a YAML document, without a separator, ending in a newline.
///
/// Keys stand in the order in which people write and read manifests: `apiVersion`, `kind`, `metadata` (there
/// `name` and `namespace`) first, the others by alphabet, `status` last; `name` leads each entry of a list.
pub fn document(object: &Value) -> Result<String, YamlError> {
    serde_saphyr::to_string(&Ordered { value: object, place: Place::Object }).map_err(|error| YamlError {
        object: format!(
            "{} {}",
            object["kind"].as_str().unwrap_or("object"),
            object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("without a name")
        ),
        reason: error.to_string(),
    })
}

/// Several objects as one YAML stream, `---` between them, in the order given.
pub fn documents<'a>(objects: impl IntoIterator<Item = &'a Value>) -> Result<String, YamlError> {
    let mut stream = String::new();
    for object in objects {
        if !stream.is_empty() {
            stream.push_str("---\n");
        }
        stream.push_str(&document(object)?);
    }
    Ok(stream)
}

/// Where a map stands decides which of its keys come first.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Object,
    Metadata,
    ListEntry,
    Elsewhere,
}

impl Place {
    fn first_keys(self) -> &'static [&'static str] {
        match self {
            Self::Object => &["apiVersion", "kind", "metadata"],
            Self::Metadata => &["name", "namespace", "labels", "annotations"],
            Self::ListEntry => &["name", "kind"],
            Self::Elsewhere => &[],
        }
    }

    /// The keys of `map` in writing order. Sorted here and not left to the map, whose own order depends on
    /// a feature of serde_json that any crate of a build may turn on.
    fn order(self, map: &Map<String, Value>) -> Vec<&String> {
        let first = self.first_keys();
        let mut keys: Vec<&String> = map.keys().collect();
        keys.sort_by_key(|key| {
            let rank = first.iter().position(|name| name == key).unwrap_or(first.len());
            let last = self == Self::Object && *key == "status";
            (last, rank, key.as_str())
        });
        keys
    }
}

struct Ordered<'a> {
    value: &'a Value,
    place: Place,
}

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.value {
            Value::Object(map) => {
                let mut out = serializer.serialize_map(Some(map.len()))?;
                for key in self.place.order(map) {
                    let place = match (self.place, key.as_str()) {
                        (Place::Object, "metadata") => Place::Metadata,
                        _ => Place::Elsewhere,
                    };
                    out.serialize_entry(key, &Ordered { value: &map[key.as_str()], place })?;
                }
                out.end()
            }
            Value::Array(items) => {
                let mut out = serializer.serialize_seq(Some(items.len()))?;
                for value in items {
                    out.serialize_element(&Ordered { value, place: Place::ListEntry })?;
                }
                out.end()
            }
            plain => plain.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_stand_in_reading_order() {
        let object = json!({
            "status": {"ready": true},
            "data": {"a": "1"},
            "kind": "ConfigMap",
            "metadata": {"labels": {"x": "y"}, "namespace": "ns", "name": "web"},
            "apiVersion": "v1",
            "list": [{"image": "a", "name": "first"}],
        });
        assert_eq!(
            document(&object).unwrap(),
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: web\n  namespace: ns\n  labels:\n    x: \"y\"\n\
             data:\n  a: \"1\"\nlist:\n- name: first\n  image: a\nstatus:\n  ready: true\n"
        );
    }

    #[test]
    fn strings_that_look_like_other_types_stay_strings() {
        let values = json!([
            "true",
            "no",
            "on",
            "null",
            "~",
            "1",
            "1.5",
            "1e3",
            "0x1f",
            "0o7",
            "12:30:45",
            ":8080",
            "1Gi",
            "*",
            "- a",
            "a: b",
            "a #b",
            "",
            " lead",
            "trail ",
            "two\nlines\n",
            "tab\there",
            "%d",
            "@x",
            "`x`",
            "{}",
            "[]",
            "2026-01-01",
            "é",
            "y",
            "a long sentence that goes on and on for well over one hundred characters so that a writer may want to fold it",
            "  indented first line\nand a second line",
            "ends with newlines\n\n",
            "\"quoted\"",
            "it's",
            "back\\slash",
            "#"
        ]);
        let text = document(&json!({ "values": values })).unwrap();
        let back: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(back["values"], values, "{text}");
    }

    #[test]
    fn empty_maps_and_lists_stay_what_they_are() {
        let text = document(&json!({"emptyDir": {}, "list": [], "nothing": null})).unwrap();
        assert_eq!(text, "emptyDir: {}\nlist: []\nnothing: null\n");
    }

    #[test]
    fn documents_are_separated() {
        let stream = documents(&[json!({"a": 1}), json!({"b": 2})]).unwrap();
        assert_eq!(stream, "a: 1\n---\nb: 2\n");
    }
}
