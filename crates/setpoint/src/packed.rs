//! Objects as they are kept: as their text, a fraction of what the structs of a kind take, decoded when they are read.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use kube::core::ObjectMeta;
use serde::Serialize;
use serde::de::{Deserialize, DeserializeOwned};
use serde_json::{Map, Value};

use crate::link;

/// The annotation that client-side `kubectl apply` keeps its last input in.
pub(crate) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What a packed text begins with.
const METADATA: &str = "{\"metadata\":";
/// Texts below this are kept whatever their type drops.
const SMALL: usize = 1024;

/// An object's text without its bookkeeping, the metadata first. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Packed(Arc<str>);

/// A text of the server, taken apart.
pub(crate) struct Taken<'a> {
    pub(crate) packed: Packed,
    /// The managed fields, as they were written.
    pub(crate) managed_fields: Option<&'a str>,
    /// More than managed fields was dropped.
    pub(crate) dropped: bool,
}

/// Who an object belongs to, and in which state it is: what is asked also where nobody decodes it.
#[derive(Debug, Default)]
pub(crate) struct Head {
    pub(crate) controller: Option<Owner>,
    /// Uid of the owner that it is linked to, and that owner in words.
    pub(crate) link: Option<(String, String)>,
    pub(crate) uid: Option<String>,
    pub(crate) version: Option<u64>,
    pub(crate) generation: Option<i64>,
    pub(crate) deletion: Option<String>,
}

/// An owner reference with `controller: true`.
#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Owner {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    #[serde(default)]
    controller: Option<bool>,
}

impl Packed {
    /// Of an object that was read as a value, without managed fields.
    pub(crate) fn of_value(object: &Value) -> Option<Self> {
        let metadata = object.get("metadata")?;
        let mut text = format!("{METADATA}{metadata}");
        for (name, value) in object.as_object()?.iter().filter(|(name, _)| *name != "metadata") {
            text.push(',');
            text.push_str(&Value::from(name.as_str()).to_string());
            text.push(':');
            text.push_str(&value.to_string());
        }
        text.push('}');
        Some(Self(text.into()))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    pub(crate) fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }

    pub(crate) fn head(&self) -> Head {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metadata {
            owner_references: Option<Vec<Owner>>,
            labels: Option<Labels>,
            annotations: Option<Annotations>,
            uid: Option<String>,
            resource_version: Option<String>,
            generation: Option<i64>,
            deletion_timestamp: Option<String>,
        }
        #[derive(serde::Deserialize)]
        struct Labels {
            #[serde(rename = "setpoint.dev/owner-uid")]
            uid: Option<String>,
        }
        #[derive(serde::Deserialize)]
        struct Annotations {
            #[serde(rename = "setpoint.dev/owner")]
            owner: Option<String>,
        }
        // The metadata is first: the rest is not looked at.
        let mut text = serde_json::Deserializer::from_str(self.0.get(METADATA.len()..).unwrap_or_default());
        let Ok(metadata) = Metadata::deserialize(&mut text) else { return Head::default() };
        let mut owners = metadata.owner_references.into_iter().flatten();
        let uid = metadata.labels.and_then(|labels| labels.uid);
        let owner = metadata.annotations.and_then(|annotations| annotations.owner).unwrap_or_default();
        Head {
            controller: owners.find(|owner| owner.controller == Some(true)),
            link: uid.map(|uid| (uid, owner)),
            uid: metadata.uid,
            version: metadata.resource_version.and_then(|version| version.parse().ok()),
            generation: metadata.generation,
            deletion: metadata.deletion_timestamp,
        }
    }

    /// Whether this is much more than what a type keeps of it: a projection of the author's, which is smaller than the text.
    pub(crate) fn is_wasteful<T: Serialize>(&self, object: &T) -> bool {
        struct Length(usize);
        impl io::Write for Length {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 += bytes.len();
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        if self.0.len() < SMALL {
            return false;
        }
        let mut kept = Length(0);
        serde_json::to_writer(&mut kept, object).is_err() || kept.0 * 2 < self.0.len()
    }
}

impl Head {
    pub(crate) fn of(meta: &ObjectMeta) -> Self {
        let mut owners = meta.owner_references.iter().flatten();
        let controller = owners.find(|owner| owner.controller == Some(true)).map(|owner| Owner {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
            controller: owner.controller,
        });
        Self {
            controller,
            link: link::of(meta).map(|link| (link.uid.to_owned(), link.owner.to_owned())),
            uid: meta.uid.clone(),
            version: meta.resource_version.as_deref().and_then(|version| version.parse().ok()),
            generation: meta.generation,
            deletion: meta.deletion_timestamp.as_ref().map(|time| time.0.to_string()),
        }
    }

    pub(crate) fn is_deleting(&self) -> bool {
        self.deletion.is_some()
    }

    /// Its back-reference, if it has one.
    pub(crate) fn link(&self) -> Option<link::Link<'_>> {
        self.link.as_ref().map(|(uid, owner)| link::Link { uid, owner })
    }
}

/// Takes the text of an object apart: its managed fields, and what is kept. `None` where it is not written as API servers do.
pub(crate) fn take(text: &str) -> Option<Taken<'_>> {
    let top = members(text)?;
    let metadata = members(value(&top, "metadata")?)?;
    let managed_fields = value(&metadata, "managedFields");
    let mut packed = String::with_capacity(text.len() - managed_fields.map_or(0, str::len));
    packed.push_str(METADATA);
    packed.push('{');
    let mut dropped = false;
    let mut first = true;
    for (name, value) in &metadata {
        let mut value = Cow::Borrowed(*value);
        if *name == "\"managedFields\"" {
            continue;
        }
        if *name == "\"annotations\"" && value.contains(LAST_APPLIED) {
            dropped = true;
            let mut annotations: Map<String, Value> = serde_json::from_str(&value).ok()?;
            if !keeps_others(&mut annotations) {
                continue;
            }
            value = Value::Object(annotations).to_string().into();
        }
        if !std::mem::take(&mut first) {
            packed.push(',');
        }
        packed.push_str(name);
        packed.push(':');
        packed.push_str(&value);
    }
    packed.push('}');
    for (name, value) in top.iter().filter(|(name, _)| *name != "\"metadata\"") {
        packed.push(',');
        packed.push_str(name);
        packed.push(':');
        packed.push_str(value);
    }
    packed.push('}');
    Some(Taken { packed: Packed(packed.into()), managed_fields, dropped })
}

/// Drops the last-applied annotation from metadata that was read as a value.
pub(crate) fn drop_annotation(metadata: &mut Map<String, Value>) {
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut)
        && !keeps_others(annotations)
    {
        metadata.remove("annotations");
    }
}

/// Drops that annotation, and says whether there are others.
fn keeps_others(annotations: &mut Map<String, Value>) -> bool {
    annotations.remove(LAST_APPLIED);
    !annotations.is_empty()
}

/// The value of a member.
pub(crate) fn value<'a>(members: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    let named = |quoted: &str| quoted.get(1..quoted.len() - 1) == Some(name);
    members.iter().find(|(quoted, _)| named(quoted)).map(|(_, value)| *value)
}

/// Names, with their quotes, and values of an object's text. What is between is not checked: whoever decodes it does.
pub(crate) fn members(text: &str) -> Option<Vec<(&str, &str)>> {
    let bytes = text.as_bytes();
    let mut at = expect(bytes, space(bytes, 0), b'{')?;
    let mut members = Vec::with_capacity(16);
    loop {
        at = space(bytes, at);
        match bytes.get(at)? {
            b'}' => break,
            b',' => at = space(bytes, at + 1),
            _ => {}
        }
        let name = at..string_end(bytes, at)?;
        let start = space(bytes, expect(bytes, space(bytes, name.end), b':')?);
        at = value_end(bytes, start)?;
        members.push((text.get(name)?, text.get(start..at)?));
    }
    (space(bytes, at + 1) == bytes.len()).then_some(members)
}

/// The items of a list's text.
pub(crate) fn items(text: &str) -> Option<Vec<&str>> {
    let bytes = text.as_bytes();
    let mut at = expect(bytes, space(bytes, 0), b'[')?;
    let mut items = Vec::new();
    loop {
        at = space(bytes, at);
        match bytes.get(at)? {
            b']' => return (space(bytes, at + 1) == bytes.len()).then_some(items),
            b',' => at = space(bytes, at + 1),
            _ => {}
        }
        let start = at;
        at = value_end(bytes, start)?;
        items.push(text.get(start..at)?);
    }
}

fn space(bytes: &[u8], at: usize) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count()
}

fn expect(bytes: &[u8], at: usize, byte: u8) -> Option<usize> {
    (bytes.get(at) == Some(&byte)).then_some(at + 1)
}

fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = expect(bytes, start, b'"')?;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn value_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    let mut depth = 0_usize;
    loop {
        match bytes.get(at)? {
            b'"' => at = string_end(bytes, at)?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                at += 1;
            }
            b',' | b':' if depth > 0 => {
                at += 1;
                continue;
            }
            // A number or a word.
            _ => {
                let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
                let length = bytes.get(at..)?.iter().take_while(|byte| !ends(byte)).count();
                if length == 0 && depth == 0 {
                    return None;
                }
                at += length;
                if depth > 0 {
                    at = space(bytes, at);
                }
            }
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn object() -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "a", "namespace": "ns", "uid": "1", "resourceVersion": "7",
                "annotations": { LAST_APPLIED: "{\"data\":{}}", "note": "a \"quoted\" {[" },
                "labels": { "setpoint.dev/owner-uid": "u-2" },
                "deletionTimestamp": "2026-01-01T00:00:00Z",
                "managedFields": [{ "manager": "m", "operation": "Apply", "fieldsV1": { "f:data": {} } }],
                "ownerReferences": [
                    { "apiVersion": "v1", "kind": "Other", "name": "o", "uid": "u-0" },
                    { "apiVersion": "v1", "kind": "Web", "name": "w", "uid": "u-1", "controller": true },
                ],
            },
            "data": { "k": "v\\", "n": "{\"metadata\":{}}" },
        })
    }

    #[test]
    fn what_is_packed_is_the_object_without_bookkeeping() {
        let text = object().to_string();
        let taken = take(&text).expect("an object");
        assert!(taken.dropped && taken.managed_fields.is_some());
        let mut expected = object();
        let metadata = expected["metadata"].as_object_mut().unwrap();
        metadata.remove("managedFields");
        drop_annotation(metadata);
        assert_eq!(serde_json::from_str::<Value>(taken.packed.text()).unwrap(), expected);
        let of_value = Packed::of_value(&expected).unwrap();
        assert_eq!(serde_json::from_str::<Value>(of_value.text()).unwrap(), expected);
        assert_eq!(taken.packed.decode::<ConfigMap>().unwrap(), of_value.decode().unwrap());
    }

    #[test]
    fn the_head_is_read_as_the_whole_says_it() {
        let taken = object().to_string();
        let packed = take(&taken).unwrap().packed;
        let whole = Head::of(&packed.decode::<ConfigMap>().unwrap().metadata);
        for head in [packed.head(), whole] {
            let owner = head.controller.as_ref().expect("a controller");
            assert_eq!((&*owner.name, &*owner.uid, head.is_deleting()), ("w", "u-1", true));
            assert_eq!(
                (head.uid.as_deref(), head.version, head.deletion.as_deref()),
                (Some("1"), Some(7), Some("2026-01-01T00:00:00Z"))
            );
            assert_eq!(head.link().map(|link| (link.uid, link.owner)), Some(("u-2", "")));
        }
    }

    #[test]
    fn projections_are_told_from_what_keeps_all() {
        #[derive(Serialize)]
        struct Slim {
            name: &'static str,
        }
        let text = json!({ "metadata": { "name": "a" }, "data": { "k": "v".repeat(SMALL) } }).to_string();
        let packed = take(&text).unwrap().packed;
        assert!(packed.is_wasteful(&Slim { name: "a" }));
        assert!(!packed.is_wasteful(&packed.decode::<ConfigMap>().unwrap()));
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in [
            "",
            "[]",
            "{",
            "{\"metadata\":",
            "{\"metadata\":{}",
            "{\"metadata\":{}} x",
            "{\"metadata\":}",
            "{\"spec\":{}}",
        ] {
            assert!(take(text).is_none(), "{text}");
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a\"\\\\{}\\[\\],: é]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[a\"\\\\{}:]{0,4}", inner, 0..4)
                    .prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_object_is_packed_without_loss(name in json(), spec in json(), pretty: bool) {
            let object = json!({ "metadata": { "x": name, "name": "a" }, "spec": spec, "n": 1 });
            let text = if pretty { serde_json::to_string_pretty(&object).unwrap() } else { object.to_string() };
            let packed = take(&text).expect("an object").packed;
            prop_assert_eq!(serde_json::from_str::<Value>(packed.text()).unwrap(), object);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[{}\\[\\]\",:\\\\ a1é]{0,24}") {
            let _ = take(&text);
            let _ = items(&text);
        }
    }
}
