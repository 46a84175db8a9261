//! Plugins about what stays for a while: `DefaultTolerationSeconds` and `StorageObjectInUseProtection`.

use serde_json::{Value, json};

use crate::object::fields;

/// Unless a pod says otherwise, it stays for 300 s on a node that fails.
pub(crate) fn tolerate_failing_nodes(pod: &mut Value) {
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let toleration =
            json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
        let known = pod["spec"]["tolerations"]
            .as_array()
            .is_some_and(|known| known.iter().any(|toleration| tolerates(toleration, key)));
        if !known {
            append(&mut pod["spec"], "tolerations", toleration);
        }
    }
}

fn tolerates(toleration: &Value, key: &str) -> bool {
    let text = |field: &str| toleration[field].as_str().unwrap_or_default();
    (text("key") == key || text("key").is_empty()) && matches!(text("effect"), "NoExecute" | "")
}

/// Keeps a new volume or claim, when it is deleted, until nothing uses it.
pub(crate) fn protect_storage(kind: &str, object: &mut Value) {
    let finalizer = match kind {
        "PersistentVolumeClaim" => "kubernetes.io/pvc-protection",
        "PersistentVolume" => "kubernetes.io/pv-protection",
        "VolumeAttributesClass" => "kubernetes.io/vac-protection",
        _ => return,
    };
    let finalizers = object["metadata"]["finalizers"].as_array();
    if !finalizers.is_some_and(|finalizers| finalizers.iter().any(|known| known == finalizer)) {
        append(&mut object["metadata"], "finalizers", finalizer.into());
    }
}

fn append(object: &mut Value, list: &str, item: Value) {
    match object.get_mut(list).and_then(Value::as_array_mut) {
        Some(items) => items.push(item),
        None => {
            fields(object).insert(list.to_owned(), json!([item]));
        }
    }
}
