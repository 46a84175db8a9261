use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::store::{Payload, Seen, Version};
use crate::{Key, Kind, Object, fingerprint};

/// The annotation that client-side `kubectl apply` keeps its last input in.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

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
        let Metadata { namespace, name, uid, resource_version, deletion_timestamp } =
            serde_json::from_str::<Top>(text)?.metadata;
        Ok(Self {
            key: Key { namespace, name },
            uid,
            version: Version::new(&resource_version),
            deleting: deletion_timestamp.is_some(),
        })
    }
}

/// As [`decode`], of a text: read once where it fits the type.
pub(crate) fn decode_text<T: Object>(kind: &Kind, text: &str) -> Option<Seen<T>> {
    if !T::metadata_api()
        && let Ok(mut object) = serde_json::from_str::<T>(text)
    {
        let meta = object.meta_mut();
        let entries = meta.managed_fields.take().unwrap_or_default();
        if let Some(annotations) = &mut meta.annotations {
            annotations.remove(LAST_APPLIED);
            if annotations.is_empty() {
                meta.annotations = None;
            }
        }
        // Lists are decoded with room to grow.
        meta.owner_references.iter_mut().for_each(Vec::shrink_to_fit);
        let key = Key { namespace: meta.namespace.clone(), name: meta.name.clone()? };
        let uid = meta.uid.clone().unwrap_or_default();
        let version = Version::new(meta.resource_version.as_deref().unwrap_or_default());
        let prints = fingerprint::prints_of(text, &entries);
        return Some(Seen { key, uid, version, payload: Payload::Object(Arc::new(object)), prints });
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
    drop_annotation(metadata);
    let text = |field: &str| metadata.get(field).and_then(Value::as_str);
    let key = Key { namespace: text("namespace").map(str::to_owned), name: text("name")?.to_owned() };
    let uid = text("uid").unwrap_or_default().to_owned();
    let version = Version::new(text("resourceVersion").unwrap_or_default());
    let payload = match serde_json::from_value::<T>(value) {
        Ok(object) => Payload::Object(Arc::new(object)),
        Err(error) => Payload::Undecodable(error.to_string().into()),
    };
    Some(Seen { key, uid, version, payload, prints })
}

fn drop_annotation(metadata: &mut Map<String, Value>) {
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    use kube::core::PartialObjectMeta;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_kept_is_the_object_without_bookkeeping() {
        let value = json!({
            "metadata": { "name": "a", "namespace": "ns", "uid": "1", "resourceVersion": "7",
                "annotations": { LAST_APPLIED: "{}" },
                "managedFields": [{ "manager": "m", "operation": "Apply", "fieldsV1": { "f:data": {} } }] },
            "data": { "k": "v" },
        });
        let seen = decode::<ConfigMap>(&Kind::of::<ConfigMap>(), value.clone()).expect("named");
        assert_eq!((&seen.key, seen.version.number(), seen.prints.len()), (&Key::new("ns", "a"), Some(7), 1));
        let object = seen.payload.object().expect("decodes").clone();
        assert_eq!((&object.metadata.managed_fields, &object.metadata.annotations), (&None, &None));
        let text = decode_text::<ConfigMap>(&Kind::of::<ConfigMap>(), &value.to_string()).expect("named");
        assert_eq!(
            (&text.key, &text.prints, &text.version),
            (&Key::new("ns", "a"), &seen.prints, &seen.version)
        );
        let meta = &text.payload.object().expect("decodes").metadata;
        assert_eq!((&meta.managed_fields, &meta.annotations), (&None, &None));
        let seen = decode::<PartialObjectMeta<ConfigMap>>(&Kind::of::<ConfigMap>(), value).expect("named");
        assert_eq!(seen.payload.object().expect("decodes").types.as_ref().expect("types").kind, "ConfigMap");
    }

    #[test]
    fn an_undecodable_object_keeps_its_key() {
        let value =
            json!({ "metadata": { "name": "a", "namespace": "ns" }, "spec": { "containers": "none" } });
        let seen = decode::<Pod>(&Kind::of::<Pod>(), value).expect("named");
        assert_eq!(seen.key, Key::new("ns", "a"));
        assert!(matches!(seen.payload, Payload::Undecodable(_)));
    }
}
