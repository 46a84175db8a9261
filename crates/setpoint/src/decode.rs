use std::sync::Arc;

use serde_json::{Map, Value};

use crate::store::{Payload, Seen, Version};
use crate::{Key, Kind, Object, fingerprint};

/// The annotation that client-side `kubectl apply` keeps its last input in.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

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
        assert_eq!((seen.key, seen.version.number(), seen.prints.len()), (Key::new("ns", "a"), Some(7), 1));
        let object = seen.payload.object().expect("decodes").clone();
        assert_eq!((&object.metadata.managed_fields, &object.metadata.annotations), (&None, &None));
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
