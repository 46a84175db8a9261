//! The admission plugin ServiceAccount: every pod runs as a service account, and finds its token where clients look for it.

use serde_json::{Value, json};

use super::edit::{copy, existing, fill, items, list, set, text};

/// Where clients look for the token, the CA and the namespace.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME: &str = "kube-api-access-";
/// An hour and a few seconds, by which upstream knows tokens that it mounted itself.
const EXPIRATION_SECONDS: u32 = 3607;

/// The name of the service account that a new pod asks for; `default` if it names none.
pub(crate) fn account_name(pod: &Value) -> &str {
    match text(&pod["spec"], "serviceAccountName") {
        "" => "default",
        name => name,
    }
}

/// Sets the account of a new pod, and mounts a token unless pod or account say no. `suffix` is a random part for the volume's name.
pub(crate) fn admit_pod(pod: &mut Value, account: &Value, suffix: &str) {
    let name = account_name(pod).to_owned();
    let Some(spec) = existing(pod, "spec") else { return };
    set(spec, "serviceAccountName", name.clone());
    set(spec, "serviceAccount", name);
    let automount = spec["automountServiceAccountToken"].as_bool();
    if automount.or(account["automountServiceAccountToken"].as_bool()).unwrap_or(true) {
        mount_token(spec, suffix);
    }
    if list(spec, "imagePullSecrets").is_empty() && !list(account, "imagePullSecrets").is_empty() {
        copy(spec, account, "imagePullSecrets");
    }
}

fn mount_token(spec: &mut Value, suffix: &str) {
    let given =
        list(spec, "volumes").iter().map(|volume| text(volume, "name")).find(|name| name.starts_with(VOLUME));
    let is_new = given.is_none();
    let name = given.map_or_else(|| format!("{VOLUME}{suffix}"), str::to_owned);
    let mut mounted = false;
    for key in ["initContainers", "containers"] {
        for container in items(spec, key) {
            if list(container, "volumeMounts").iter().any(|mount| mount["mountPath"] == MOUNT_PATH) {
                continue;
            }
            push(container, "volumeMounts", json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH}));
            mounted = true;
        }
    }
    if mounted && is_new {
        push(spec, "volumes", token_volume(&name));
    }
}

fn push(object: &mut Value, key: &str, item: Value) {
    fill(object, key, json!([]));
    if let Some(list) = object[key].as_array_mut() {
        list.push(item);
    }
}

fn token_volume(name: &str) -> Value {
    json!({"name": name, "projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": EXPIRATION_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: Value) -> Value {
        let mut pod =
            json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}]}});
        if let (Some(into), Value::Object(fields)) = (pod["spec"].as_object_mut(), spec) {
            into.extend(fields);
        }
        pod
    }

    #[test]
    fn a_pod_gets_the_default_account_and_its_token() {
        let mut pod = pod(json!({}));
        assert_eq!(account_name(&pod), "default");
        admit_pod(&mut pod, &json!({"imagePullSecrets": [{"name": "pull"}]}), "x7d2k");
        let spec = &pod["spec"];
        assert_eq!(spec["serviceAccountName"], "default");
        assert_eq!(spec["serviceAccount"], "default");
        assert_eq!(spec["imagePullSecrets"], json!([{"name": "pull"}]));
        assert_eq!(spec["volumes"][0]["name"], "kube-api-access-x7d2k");
        for index in 0..2 {
            let mount = &spec["containers"][index]["volumeMounts"][0];
            assert_eq!(
                *mount,
                json!({"name": "kube-api-access-x7d2k", "readOnly": true, "mountPath": MOUNT_PATH})
            );
        }
        // A copy of an admitted pod is as it was.
        let once = pod.clone();
        admit_pod(&mut pod, &json!({}), "other");
        assert_eq!(pod, once);
    }

    #[test]
    fn the_pod_decides_before_its_account() {
        for (in_pod, in_account, mounts) in [
            (json!(null), json!(null), true),
            (json!(null), json!(false), false),
            (json!(false), json!(true), false),
            (json!(true), json!(false), true),
        ] {
            let mut pod = pod(json!({"automountServiceAccountToken": in_pod, "serviceAccountName": "own"}));
            admit_pod(&mut pod, &json!({"automountServiceAccountToken": in_account}), "x");
            assert_eq!(pod["spec"]["volumes"].is_array(), mounts, "{in_pod} {in_account}");
            assert_eq!(pod["spec"]["serviceAccountName"], "own");
        }
    }

    #[test]
    fn a_mount_of_ones_own_at_the_place_stays() {
        let own = json!({"name": "mine", "mountPath": MOUNT_PATH});
        let mut pod =
            pod(json!({"containers": [{"name": "a", "volumeMounts": [own]}], "volumes": [{"name": "mine"}]}));
        let before = pod["spec"]["containers"].clone();
        admit_pod(&mut pod, &json!({}), "x");
        assert_eq!(pod["spec"]["containers"], before);
        assert_eq!(pod["spec"]["volumes"], json!([{"name": "mine"}]));
    }
}
