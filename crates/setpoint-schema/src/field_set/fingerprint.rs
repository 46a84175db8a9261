//! Fingerprints of what a manager wants and of what it has.

use std::fmt;
use std::hash::{DefaultHasher, Hasher};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{FieldSet, Node};
use crate::managed::NEVER_OWNED_METADATA;

/// The part of an apply intent that a manager can own: without `apiVersion`, `kind`, the identity and the
/// bookkeeping in `metadata`, and without a `metadata` that is empty then.
///
/// For an intent in canonical form (quantities as the server prints them, no values that the server drops), and `ours`
/// the fields of the entry that its apply left, `fingerprint(&normalise(intent)) == fingerprint(&project(live, &ours))`
/// until somebody changes an owned field, in whatever way.
pub fn normalise(intent: &Value) -> Value {
    let Value::Object(intent) = intent else { return intent.clone() };
    let mut out = Map::new();
    for (key, value) in intent {
        match (key.as_str(), value) {
            ("apiVersion" | "kind", _) => {}
            ("metadata", Value::Object(metadata)) => {
                let kept: Map<String, Value> = metadata
                    .iter()
                    .filter(|(key, _)| !NEVER_OWNED_METADATA.contains(&key.as_str()))
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect();
                if !kept.is_empty() {
                    out.insert(key.clone(), Value::Object(kept));
                }
            }
            _ => {
                out.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(out)
}

/// A hash of a JSON value, the same in all processes of a build, in which the order of fields does not matter and numbers
/// go by value (`1` and `1.0` are one).
pub fn fingerprint(value: &Value) -> u64 {
    All.deserialize(value).unwrap_or_default()
}

/// `fingerprint(&project(object, set))` of an object that need not be a [`Value`]: its JSON text is read once, and nothing of it
/// is kept.
///
/// ```
/// # use setpoint_schema::{FieldSet, fingerprint, fingerprint_of, project};
/// # use serde_json::json;
/// let live = json!({"spec": {"replicas": 3, "paused": false}});
/// let ours = FieldSet::of_fields(&[&["spec", "replicas"]]);
/// let text = live.to_string();
/// let print = fingerprint_of(&mut serde_json::Deserializer::from_str(&text), &ours)?;
/// assert_eq!(print, fingerprint(&project(&live, &ours)));
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// # Errors
/// When the object cannot be read.
pub fn fingerprint_of<'de, D: Deserializer<'de>>(object: D, set: &FieldSet) -> Result<u64, D::Error> {
    Ok(match Covered(set).deserialize(object)? {
        Part::Some(hash) => hash,
        Part::Nothing(_) => fields(Vec::new()),
    })
}

fn leaf(tag: u8, bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u8(tag);
    hasher.write(bytes);
    hasher.finish()
}

fn integer(value: i128) -> u64 {
    leaf(b'i', &value.to_be_bytes())
}

fn float(value: f64) -> u64 {
    // Up to 2^53 a float names one integer only.
    if value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0 {
        integer(value as i128)
    } else {
        leaf(b'd', &value.to_bits().to_be_bytes())
    }
}

fn items(hashes: &[u64]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u8(b'a');
    for hash in hashes {
        hasher.write_u64(*hash);
    }
    hasher.finish()
}

/// Of the hashes of names and values.
fn fields(mut hashes: Vec<(u64, u64)>) -> u64 {
    hashes.sort_unstable();
    let mut hasher = DefaultHasher::new();
    hasher.write_u8(b'o');
    for (name, value) in hashes {
        hasher.write_u64(name);
        hasher.write_u64(value);
    }
    hasher.finish()
}

/// The hash of everything that is read.
struct All;

impl<'de> DeserializeSeed<'de> for All {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for All {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<u64, E> {
        Ok(leaf(b'n', b""))
    }

    fn visit_bool<E>(self, value: bool) -> Result<u64, E> {
        Ok(leaf(b'b', &[u8::from(value)]))
    }

    fn visit_i64<E>(self, value: i64) -> Result<u64, E> {
        Ok(integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<u64, E> {
        Ok(integer(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<u64, E> {
        Ok(float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<u64, E> {
        Ok(leaf(b's', value.as_bytes()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<u64, A::Error> {
        let mut hashes = Vec::new();
        while let Some(hash) = seq.next_element_seed(Self)? {
            hashes.push(hash);
        }
        Ok(items(&hashes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<u64, A::Error> {
        let mut hashes = Vec::new();
        while let Some(name) = map.next_key_seed(Self)? {
            hashes.push((name, map.next_value_seed(Self)?));
        }
        Ok(fields(hashes))
    }
}

/// The part of what is read that a set covers: see [`super::project::project`], which says the same of a value.
struct Covered<'a>(&'a FieldSet);

/// The hash of a part.
enum Part {
    Some(u64),
    /// Nothing is covered; what stands there for a member of the set: an empty object or list, or else the value itself.
    Nothing(u64),
}

impl Node {
    /// The hash of the part below this node, if anything of it is covered.
    fn covered<E>(
        &self,
        read: impl FnOnce(Option<Covered<'_>>) -> Result<Part, E>,
    ) -> Result<Option<u64>, E> {
        let below = (!self.children.is_empty()).then_some(Covered(&self.children));
        Ok(match read(below)? {
            Part::Some(hash) => Some(hash),
            Part::Nothing(hash) => self.member.then_some(hash),
        })
    }
}

impl<'de> DeserializeSeed<'de> for Covered<'_> {
    type Value = Part;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Part, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// As [`Covered`], where a leaf of the set covers everything.
struct CoveredOrAll<'a>(Option<Covered<'a>>);

impl<'de> DeserializeSeed<'de> for CoveredOrAll<'_> {
    type Value = Part;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Part, D::Error> {
        match self.0 {
            Some(covered) => covered.deserialize(deserializer),
            None => All.deserialize(deserializer).map(Part::Some),
        }
    }
}

impl<'de> Visitor<'de> for Covered<'_> {
    type Value = Part;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        All.expecting(f)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Part, E> {
        All.visit_unit().map(Part::Nothing)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Part, E> {
        All.visit_bool(value).map(Part::Nothing)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Part, E> {
        All.visit_i64(value).map(Part::Nothing)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Part, E> {
        All.visit_u64(value).map(Part::Nothing)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Part, E> {
        All.visit_f64(value).map(Part::Nothing)
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Part, E> {
        All.visit_str(value).map(Part::Nothing)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Part, A::Error> {
        let mut hashes = Vec::new();
        let mut index = 0;
        // Which item it is, only its values tell.
        while let Some(item) = seq.next_element::<Value>()? {
            if let Some((_, node)) = self.0.nodes().find(|(element, _)| element.names(index, &item)) {
                let read = |below: Option<Covered<'_>>| CoveredOrAll(below).deserialize(&item);
                hashes.extend(node.covered(read).map_err(serde::de::Error::custom)?);
            }
            index += 1;
        }
        Ok(if hashes.is_empty() { Part::Nothing(items(&[])) } else { Part::Some(items(&hashes)) })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Part, A::Error> {
        let mut hashes = Vec::new();
        while let Some(Field { name, node }) = map.next_key_seed(FieldOf(self.0))? {
            match node {
                Some(node) => {
                    let value =
                        node.covered(|below: Option<Covered<'_>>| map.next_value_seed(CoveredOrAll(below)))?;
                    hashes.extend(value.map(|value| (name, value)));
                }
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(if hashes.is_empty() { Part::Nothing(fields(Vec::new())) } else { Part::Some(fields(hashes)) })
    }
}

/// Looks a name up in a set.
struct FieldOf<'a>(&'a FieldSet);

struct Field<'a> {
    /// The hash of its name.
    name: u64,
    node: Option<&'a Node>,
}

impl<'de, 'a> DeserializeSeed<'de> for FieldOf<'a> {
    type Value = Field<'a>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Field<'a>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for FieldOf<'a> {
    type Value = Field<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E>(self, name: &str) -> Result<Field<'a>, E> {
        let node = self.0.field(name);
        Ok(Field { name: if node.is_some() { leaf(b's', name.as_bytes()) } else { 0 }, node })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::project;

    #[test]
    fn a_text_has_the_print_of_its_projection() {
        let live = json!({
            "metadata": { "name": "web", "labels": { "app": "web", "other": "x" }, "annotations": {} },
            "spec": {
                "replicas": 3, "ratio": 1.0, "none": null, "set": ["a", "b"],
                "ports": [{ "name": "web", "port": 80, "protocol": "TCP" }, { "name": "metrics", "port": 9090 }],
            },
        });
        for set in [
            json!({}),
            json!({ "f:metadata": { "f:labels": { "f:app": {} } } }),
            json!({ "f:metadata": { "f:annotations": { ".": {}, "f:gone": {} } } }),
            json!({ "f:metadata": { "f:annotations": { "f:gone": {} } }, "f:spec": { "f:replicas": {} } }),
            json!({ "f:spec": { "f:replicas": { ".": {}, "f:no": {} }, "f:ratio": {}, "f:none": {}, "f:set": { "v:\"b\"": {} } } }),
            json!({ "f:spec": { "f:ports": { "k:{\"name\":\"web\"}": { ".": {}, "f:name": {}, "f:port": {} } } } }),
            json!({ "f:spec": { "f:ports": { ".": {}, "k:{\"name\":\"gone\"}": { ".": {}, "f:name": {} } }, "f:set": { "i:0": {} } } }),
        ] {
            let set = FieldSet::from_fields_v1(&set).expect("a field set");
            let print = fingerprint_of(&mut serde_json::Deserializer::from_str(&live.to_string()), &set);
            assert_eq!(print.expect("JSON"), fingerprint(&project(&live, &set)), "{set:?}");
            assert_eq!(
                fingerprint_of(&live, &set).expect("JSON"),
                fingerprint(&project(&live, &set)),
                "{set:?}"
            );
        }
    }
}
