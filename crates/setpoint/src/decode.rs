use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::packed::{self, Packed, Taken, members, value};
use crate::store::{Payload, Seen, Version};
use crate::{Key, Kind, Object, fingerprint};

/// Which object a text of the server shows, and in which state: what is told without reading the rest.
#[derive(Debug)]
pub(crate) struct Peek {
    pub(crate) key: Key,
    pub(crate) uid: String,
    pub(crate) version: Version,
    pub(crate) deleting: bool,
}

impl Peek {
    /// # Errors
    /// A data error if it has no name, another one if it is no JSON.
    pub(crate) fn of(text: &str) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Top<'a> {
            #[serde(borrow)]
            metadata: Metadata<'a>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metadata<'a> {
            namespace: Option<String>,
            name: String,
            #[serde(default)]
            uid: String,
            #[serde(borrow, default)]
            resource_version: Cow<'a, str>,
            deletion_timestamp: Option<IgnoredAny>,
        }
        if let Some(peek) = Self::at_a_glance(text) {
            return Ok(peek);
        }
        let Metadata { namespace, name, uid, resource_version, deletion_timestamp } =
            serde_json::from_str::<Top>(text)?.metadata;
        Ok(Self {
            key: Key { namespace, name },
            uid,
            version: Version::new(&resource_version),
            deleting: deletion_timestamp.is_some(),
        })
    }

    /// As API servers write objects.
    fn at_a_glance(text: &str) -> Option<Self> {
        let metadata = members(value(&members(text)?, "metadata")?)?;
        let read = |name: &str| -> Option<String> {
            let quoted = value(&metadata, name)?;
            let plain = quoted.strip_prefix('"')?.strip_suffix('"')?;
            if plain.contains('\\') { serde_json::from_str(quoted).ok() } else { Some(plain.to_owned()) }
        };
        Some(Self {
            key: Key { namespace: read("namespace"), name: read("name")? },
            uid: read("uid").unwrap_or_default(),
            version: Version::new(&read("resourceVersion").unwrap_or_default()),
            deleting: read("deletionTimestamp").is_some(),
        })
    }
}

/// As [`decode`], of a text: read once where it fits the type.
pub(crate) fn decode_text<T: Object>(kind: &Kind, text: &str) -> Option<Seen<T>> {
    if !T::metadata_api()
        && let Some(Taken { packed, managed_fields, dropped }) = packed::take(text)
        && let Ok(object) = packed.decode::<T>()
    {
        let meta = object.meta();
        let key = Key { namespace: meta.namespace.clone(), name: meta.name.clone()? };
        let uid = meta.uid.clone().unwrap_or_default();
        let version = Version::new(meta.resource_version.as_deref().unwrap_or_default());
        // What was dropped may be somebody's field.
        let whole = if dropped { text } else { packed.text() };
        let prints = fingerprint::prints_of(whole, managed_fields.unwrap_or("[]"));
        let packed = (!packed.is_wasteful(&object)).then_some(packed);
        let (key, payload) = (Arc::new(key), Payload::Object(Arc::new(object)));
        return Some(Seen { key, uid, version, payload, packed, prints });
    }
    decode(kind, serde_json::from_str(text).ok()?)
}

/// Takes an object of the server apart. `None` if it has no name, which no object of a server lacks.
///
/// Managed fields and the last-applied annotation are dropped when their fingerprints were taken: together
/// they are often larger than the rest. An object that is no `T` keeps its key and says why.
pub(crate) fn decode<T: Object>(kind: &Kind, mut value: Value) -> Option<Seen<T>> {
    let prints = fingerprint::prints(&value, T::metadata_api());
    let object = value.as_object_mut()?;
    // Items of lists come without them, metadata with those of PartialObjectMetadata.
    object.insert("apiVersion".to_owned(), Value::String(kind.api_version()));
    object.insert("kind".to_owned(), Value::String(kind.kind.clone()));
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    metadata.remove("managedFields");
    packed::drop_annotation(metadata);
    let text = |field: &str| metadata.get(field).and_then(Value::as_str);
    let key = Key { namespace: text("namespace").map(str::to_owned), name: text("name")?.to_owned() };
    let uid = text("uid").unwrap_or_default().to_owned();
    let version = Version::new(text("resourceVersion").unwrap_or_default());
    let packed = Packed::of_value(&value);
    let (payload, packed) = match serde_json::from_value::<T>(value) {
        Ok(object) => {
            let packed = packed.filter(|packed| !packed.is_wasteful(&object));
            (Payload::Object(Arc::new(object)), packed)
        }
        Err(error) => (Payload::Undecodable(error.to_string().into()), None),
    };
    Some(Seen { key: Arc::new(key), uid, version, payload, packed, prints })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    use kube::core::PartialObjectMeta;
    use serde_json::json;

    use super::*;
    use crate::packed::LAST_APPLIED;

    #[test]
    fn what_is_kept_is_the_object_without_bookkeeping() {
        let value = json!({
            "metadata": { "name": "a", "namespace": "ns", "uid": "1", "resourceVersion": "7",
                "annotations": { LAST_APPLIED: "{}" },
                "managedFields": [{ "manager": "m", "operation": "Apply", "fieldsV1": { "f:data": {} } }] },
            "data": { "k": "v" },
        });
        let seen = decode::<ConfigMap>(&Kind::of::<ConfigMap>(), value.clone()).expect("named");
        assert_eq!(
            (&*seen.key, seen.version.number(), seen.prints.len()),
            (&Key::new("ns", "a"), Some(7), 1)
        );
        let object = seen.payload.object().expect("decodes").clone();
        assert_eq!((&object.metadata.managed_fields, &object.metadata.annotations), (&None, &None));
        let text = decode_text::<ConfigMap>(&Kind::of::<ConfigMap>(), &value.to_string()).expect("named");
        assert_eq!(
            (&*text.key, &text.prints, &text.version),
            (&Key::new("ns", "a"), &seen.prints, &seen.version)
        );
        let meta = &text.payload.object().expect("decodes").metadata;
        assert_eq!((&meta.managed_fields, &meta.annotations), (&None, &None));
        let seen = decode::<PartialObjectMeta<ConfigMap>>(&Kind::of::<ConfigMap>(), value).expect("named");
        assert_eq!(seen.payload.object().expect("decodes").types.as_ref().expect("types").kind, "ConfigMap");
    }

    #[test]
    fn a_glance_tells_what_a_reading_tells() {
        let metadata = json!({
            "name": "a\"b", "namespace": "ns", "uid": "1", "resourceVersion": "7",
            "deletionTimestamp": "2026-01-01T00:00:00Z", "labels": { "name": "other" },
        });
        let text = json!({ "metadata": metadata, "spec": { "metadata": { "name": "c" } } });
        for text in [text.to_string(), serde_json::to_string_pretty(&text).unwrap()] {
            let peek = Peek::at_a_glance(&text).expect("as servers write it");
            assert_eq!((peek.key, &*peek.uid), (Key::new("ns", "a\"b"), "1"));
            assert_eq!((peek.version.number(), peek.deleting), (Some(7), true));
        }
        let cut = text.to_string();
        assert!(
            Peek::of(&cut[..cut.len() - 1]).is_err_and(|error| !error.is_data()),
            "half an object is none"
        );
        assert!(Peek::of("{\"metadata\":{}}").is_err_and(|error| error.is_data()), "no name");
    }

    /// Whoever keeps a slim type of large objects wants them slim, not their text.
    #[test]
    fn a_projection_is_kept_as_it_is() {
        let text = json!({
            "metadata": { "name": "a", "managedFields": [] }, "data": { "k": "v".repeat(2000) },
        });
        let kind = Kind::of::<ConfigMap>();
        let packed = decode_text::<ConfigMap>(&kind, &text.to_string()).expect("named").packed;
        assert!(packed.is_some_and(|packed| packed.text().len() < 2100));
        let slim = decode_text::<PartialObjectMeta<ConfigMap>>(&kind, &text.to_string()).expect("named");
        assert!(slim.packed.is_none());
    }

    #[test]
    fn an_undecodable_object_keeps_its_key() {
        let value =
            json!({ "metadata": { "name": "a", "namespace": "ns" }, "spec": { "containers": "none" } });
        let seen = decode::<Pod>(&Kind::of::<Pod>(), value).expect("named");
        assert_eq!(*seen.key, Key::new("ns", "a"));
        assert!(matches!(seen.payload, Payload::Undecodable(_)));
    }
}
