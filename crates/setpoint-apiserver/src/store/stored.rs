//! An object as the store keeps it: the bytes that every reader gets.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::{Map, Value, json};

/// An object as it was written, encoded once for every reader. A tree of JSON values takes several times as much memory as its text, so none is
/// kept of objects that are only listed, watched and fetched.
#[derive(Debug)]
pub(crate) struct Stored {
    /// The object as a tree, decoded when something first looks at it and kept from then on: for the objects that many requests ask, such as
    /// namespaces and roles. Where all objects of a kind are looked at, or one is replaced, [`Stored::decode`] keeps nothing.
    pub(crate) value: Decoded,
    pub(crate) json: Bytes,
    /// The revision of the write; also in `metadata.resourceVersion`.
    pub(crate) revision: u64,
    kind: Field,
}

/// Where the bytes of an object have its kind, with the comma that follows: from the first byte to before the last. Empty if it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) start: u32,
    pub(super) end: u32,
}

/// An object in JSON and, once it was looked at, as a tree.
#[derive(Debug)]
pub(crate) struct Decoded {
    json: Bytes,
    tree: OnceLock<Arc<Value>>,
}

impl Decoded {
    /// The tree, to be kept longer than the object.
    pub(crate) fn shared(&self) -> Arc<Value> {
        Arc::clone(self.tree.get_or_init(|| Arc::new(decode(&self.json))))
    }
}

impl Deref for Decoded {
    type Target = Value;

    fn deref(&self) -> &Value {
        self.tree.get_or_init(|| Arc::new(decode(&self.json)))
    }
}

fn decode(json: &[u8]) -> Value {
    // What was encoded from a tree can be decoded again.
    serde_json::from_slice(json).unwrap_or_default()
}

/// An object encoded but for its `metadata.resourceVersion`, which is known only when it is its turn to be written.
pub(crate) struct Draft {
    bytes: Vec<u8>,
    /// Where the version belongs.
    version: usize,
    /// It comes before the version.
    kind: Field,
}

impl Draft {
    pub(crate) fn of(object: &Value) -> Self {
        // A size that most objects have.
        let mut bytes = Vec::with_capacity(2048);
        let mut version = 0;
        let none = Map::new();
        let fields = object.as_object().unwrap_or(&none);
        let empty = json!({});
        let metadata = fields.get("metadata").filter(|metadata| metadata.is_object()).unwrap_or(&empty);
        let is_metadata = |(key, _): &(&str, &Value)| *key == "metadata";
        let mut entries = with(fields, "metadata", metadata);
        let mut kind = Field::default();
        write_map(&mut bytes, &mut entries, |bytes, entry| {
            if entry.0 == "kind" {
                let start = bytes.len() - "\"kind\":".len();
                write(bytes, entry.1);
                kind = Field::of(start, bytes.len() + 1);
                return;
            }
            if !is_metadata(&entry) {
                return write(bytes, entry.1);
            }
            let blank = Value::Null;
            let own = entry.1.as_object().unwrap_or(&none);
            write_map(bytes, &mut with(own, "resourceVersion", &blank), |bytes, (key, value)| {
                if key == "resourceVersion" {
                    bytes.extend_from_slice(b"\"\"");
                    version = bytes.len() - 1;
                } else {
                    write(bytes, value);
                }
            });
        });
        Self { bytes, version, kind }
    }

    /// The object at `revision`.
    pub(crate) fn at(&self, revision: u64) -> Arc<Stored> {
        let text = revision.to_string();
        let mut json = Vec::with_capacity(self.bytes.len() + text.len());
        json.extend_from_slice(&self.bytes[..self.version]);
        json.extend_from_slice(text.as_bytes());
        json.extend_from_slice(&self.bytes[self.version..]);
        Stored::of(json.into(), revision, self.kind)
    }
}

impl Field {
    /// Nothing that has no room in it is stored: bodies have a limit.
    fn of(start: usize, end: usize) -> Self {
        match (u32::try_from(start), u32::try_from(end)) {
            (Ok(start), Ok(end)) => Self { start, end },
            _ => Self::default(),
        }
    }
}

/// The fields of a map with one that is replaced or added, in their order.
fn with<'a>(
    fields: &'a Map<String, Value>,
    key: &'a str,
    value: &'a Value,
) -> impl Iterator<Item = (&'a str, &'a Value)> {
    let before = fields.iter().take_while(move |(name, _)| name.as_str() < key);
    let after =
        fields.iter().skip_while(move |(name, _)| name.as_str() < key).filter(move |(name, _)| *name != key);
    let plain = |(name, value): (&'a String, &'a Value)| (name.as_str(), value);
    before.map(plain).chain(std::iter::once((key, value))).chain(after.map(plain))
}

fn write_map<'a>(
    bytes: &mut Vec<u8>,
    entries: &mut dyn Iterator<Item = (&'a str, &'a Value)>,
    mut write_value: impl FnMut(&mut Vec<u8>, (&'a str, &'a Value)),
) {
    bytes.push(b'{');
    for (index, entry) in entries.enumerate() {
        if index > 0 {
            bytes.push(b',');
        }
        write_text(bytes, entry.0);
        bytes.push(b':');
        write_value(bytes, entry);
    }
    bytes.push(b'}');
}

/// As serde_json writes it.
fn write(bytes: &mut Vec<u8>, value: &Value) {
    match value {
        Value::String(text) => write_text(bytes, text),
        Value::Object(fields) => {
            let mut entries = fields.iter().map(|(name, value)| (name.as_str(), value));
            write_map(bytes, &mut entries, |bytes, (_, value)| write(bytes, value));
        }
        Value::Array(items) => {
            bytes.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    bytes.push(b',');
                }
                write(bytes, item);
            }
            bytes.push(b']');
        }
        // Writing to memory does not fail.
        plain => drop(serde_json::to_writer(bytes, plain)),
    }
}

fn write_text(bytes: &mut Vec<u8>, text: &str) {
    // Most texts need no escapes; to look for one in all bytes at once is much faster than to copy them one by one.
    let is_special = |byte: u8| byte < 0x20 || byte == b'"' || byte == b'\\';
    let special = text.bytes().fold(0_u8, |special, byte| special | u8::from(is_special(byte))) != 0;
    if special {
        // Writing to memory does not fail.
        drop(serde_json::to_writer(bytes, text));
        return;
    }
    bytes.push(b'"');
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(b'"');
}

impl Stored {
    /// From the bytes of an object whose `metadata.resourceVersion` is `revision`.
    pub(super) fn of(json: Bytes, revision: u64, kind: Field) -> Arc<Self> {
        Arc::new(Self { value: Decoded { json: json.clone(), tree: OnceLock::new() }, json, revision, kind })
    }

    /// The bytes without `apiVersion` and `kind`, in two pieces: an item of a list that says what its items are. None if they cannot be cut out.
    pub(crate) fn without_kind(&self) -> Option<[&[u8]; 2]> {
        let rest = self.json.strip_prefix(b"{\"apiVersion\":\"")?;
        let end = rest.iter().position(|&byte| byte == b'"')?;
        let first = self.json.len() - rest.len() + end + 2;
        let Field { start, end } = self.kind;
        Some([self.json.get(first..start as usize)?, self.json.get(end as usize..)?])
    }

    pub(crate) fn encode(value: &Value, revision: u64) -> Arc<Self> {
        Draft::of(value).at(revision)
    }

    pub(super) fn kind_field(&self) -> Field {
        self.kind
    }

    /// The object as a tree of the caller's own.
    pub(crate) fn decode(&self) -> Value {
        self.tree().into_owned()
    }

    /// The object as a tree: the one that is kept, if there is one.
    pub(crate) fn tree(&self) -> Cow<'_, Value> {
        match self.value.tree.get() {
            Some(tree) => Cow::Borrowed(tree),
            None => Cow::Owned(decode(&self.json)),
        }
    }

    /// What selectors of labels and names look at: an object with nothing but its name, namespace and labels.
    pub(crate) fn head(&self) -> Value {
        #[derive(Default, serde::Deserialize)]
        struct Head {
            #[serde(default)]
            metadata: Map,
        }
        #[derive(Default, serde::Deserialize)]
        struct Map {
            #[serde(default)]
            name: String,
            #[serde(default)]
            namespace: String,
            #[serde(default)]
            labels: Value,
        }
        let Head { metadata: Map { name, namespace, labels } } =
            serde_json::from_slice(&self.json).unwrap_or_default();
        json!({"metadata": {"name": name, "namespace": namespace, "labels": labels}})
    }

    /// Whether the object was written in this version, `v1` or `apps/v1`.
    pub(crate) fn is_in(&self, api_version: &str) -> bool {
        // Fields are sorted, and hardly one is before this one.
        match self.json.strip_prefix(b"{\"apiVersion\":\"") {
            Some(rest) => {
                rest.strip_prefix(api_version.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'"'))
            }
            None => self.value["apiVersion"] == api_version,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_put_where_it_belongs() {
        for object in [
            json!({"apiVersion": "v1", "kind": "A", "metadata": {"annotations": {"resourceVersion": ""}, "name": "a", "uid": "1"}, "spec": {"metadata": {"resourceVersion": "7"}}}),
            json!({"apiVersion": "v1", "metadata": {"resourceVersion": "6", "uid": "1"}}),
            json!({"metadata": {}}),
            json!({"metadata": null, "z": 1}),
            json!({"a": 1, "z": "ü\"\n"}),
            json!({"a\"": [1.5, -3, true, null, "\u{1f}\u{7f}\\", [], {}, {"b": [{"c": "/"}]}], "z": u64::MAX}),
            json!({}),
        ] {
            let stored = Stored::encode(&object, 42);
            let mut expected = object.clone();
            expected["metadata"]["resourceVersion"] = "42".into();
            assert_eq!(stored.decode(), expected);
            assert_eq!(stored.json, expected.to_string());
            assert_eq!(*stored.value, expected);
        }
    }

    #[test]
    fn an_item_of_a_list_does_not_say_its_kind() {
        for object in [
            json!({"apiVersion": "v1", "kind": "A", "data": {"kind": "x"}, "metadata": {"name": "a"}}),
            json!({"apiVersion": "v1", "kind": "A", "metadata": {"name": "a"}, "spec": {}}),
        ] {
            let stored = Stored::encode(&object, 42);
            let [first, second] = stored.without_kind().unwrap();
            let item = [b"{", first, second].concat();
            let mut expected = stored.decode();
            expected.as_object_mut().unwrap().retain(|key, _| key != "apiVersion" && key != "kind");
            assert_eq!(String::from_utf8(item).unwrap(), expected.to_string());
        }
        assert!(Stored::encode(&json!({"metadata": {}}), 1).without_kind().is_none());
    }

    #[test]
    fn a_head_is_what_selectors_of_labels_see() {
        let object = json!({"data": {"metadata": "x"}, "metadata": {"name": "a", "namespace": "b", "labels": {"k": "v"}}});
        let head = Stored::encode(&object, 1).head();
        assert_eq!(head, json!({"metadata": {"name": "a", "namespace": "b", "labels": {"k": "v"}}}));
        assert_eq!(Stored::encode(&json!({}), 1).head()["metadata"]["labels"], Value::Null);
    }

    #[test]
    fn the_version_of_an_object_is_seen_in_its_bytes() {
        let stored = Stored::encode(&json!({"apiVersion": "apps/v1", "kind": "D"}), 1);
        assert!(stored.is_in("apps/v1") && !stored.is_in("apps/v") && !stored.is_in("v1"));
        let stored = Stored::encode(&json!({"aaa": 1, "apiVersion": "x.org/v1"}), 1);
        assert!(stored.is_in("x.org/v1") && !stored.is_in("x.org/v2"));
    }
}
