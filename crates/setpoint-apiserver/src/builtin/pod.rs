//! Pods and pod templates: their defaults, and what a new pod starts with.

use serde_json::{Value, json};

use super::{
    edit::{child, copy, existing, fill, fill_absent, fill_number, items, list, set, text},
    pod_resources::{self, class_of},
};

/// Defaults of a pod spec, in a pod or a template.
pub fn default_spec(spec: &mut Value) {
    if !spec.is_object() {
        return;
    }
    fill(spec, "restartPolicy", "Always");
    fill(spec, "terminationGracePeriodSeconds", 30);
    fill(spec, "dnsPolicy", "ClusterFirst");
    fill(spec, "securityContext", json!({}));
    fill(spec, "schedulerName", "default-scheduler");
    // The deprecated name of the same field follows the new one.
    let account = match text(spec, "serviceAccountName") {
        "" => text(spec, "serviceAccount"),
        account => account,
    };
    if !account.is_empty() {
        let account = account.to_owned();
        set(spec, "serviceAccountName", account.clone());
        set(spec, "serviceAccount", account);
    }
    for key in ["initContainers", "containers", "ephemeralContainers"] {
        items(spec, key).for_each(default_container);
    }
    items(spec, "volumes").for_each(default_volume);
}

/// Defaults that only pods get, not templates.
pub fn default_pod(pod: &mut Value) {
    existing(pod, "status").into_iter().for_each(one_address);
    let Some(spec) = existing(pod, "spec") else { return };
    fill(spec, "enableServiceLinks", true);
    let host_network = spec["hostNetwork"] == true;
    for key in ["initContainers", "containers"] {
        for container in items(spec, key) {
            if host_network {
                for port in items(container, "ports") {
                    let number = port["containerPort"].as_i64().unwrap_or_default();
                    fill_number(port, "hostPort", number);
                }
            }
            requests_from_limits(container);
        }
    }
    default_spec(spec);
}

/// The first of a pod's addresses is that of clients that know one only, who win.
fn one_address(status: &mut Value) {
    let (one, first) = (text(status, "podIP").to_owned(), text(&status["podIPs"][0], "ip").to_owned());
    if one.is_empty() && !first.is_empty() {
        set(status, "podIP", first);
    } else if one != first {
        set(status, "podIPs", json!([{"ip": one}]));
    }
}

/// Who names a limit and no request wants the limit.
fn requests_from_limits(container: &mut Value) {
    if let Some(resources) = existing(container, "resources")
        && let Some(limits) = resources["limits"].as_object().cloned()
    {
        let requests = child(resources, "requests");
        for (name, limit) in limits {
            fill(requests, &name, limit);
        }
    }
}

/// Defaults of a `{metadata, spec}` template.
pub fn default_template(owner: &mut Value, key: &str) {
    if let Some(template) = existing(owner, key) {
        fill(template, "metadata", json!({}));
        if let Some(spec) = existing(template, "spec") {
            default_spec(spec);
        }
    }
}

fn default_container(container: &mut Value) {
    if !container.is_object() {
        return;
    }
    fill(container, "resources", json!({}));
    fill(container, "terminationMessagePath", "/dev/termination-log");
    fill(container, "terminationMessagePolicy", "File");
    let policy = if is_latest(text(container, "image")) { "Always" } else { "IfNotPresent" };
    fill(container, "imagePullPolicy", policy);
    for port in items(container, "ports") {
        fill(port, "protocol", "TCP");
    }
    for variable in items(container, "env") {
        if let Some(reference) = existing(variable, "valueFrom").and_then(|from| existing(from, "fieldRef")) {
            fill(reference, "apiVersion", "v1");
        }
    }
    for key in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = existing(container, key) {
            for (key, number) in [
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ] {
                fill_number(probe, key, number);
            }
            default_http_get(probe);
            if let Some(grpc) = existing(probe, "grpc")
                && grpc["service"].is_null()
            {
                set(grpc, "service", "");
            }
        }
    }
    for key in ["postStart", "preStop"] {
        if let Some(handler) = existing(container, "lifecycle").and_then(|lifecycle| existing(lifecycle, key))
        {
            default_http_get(handler);
        }
    }
}

fn default_http_get(handler: &mut Value) {
    if let Some(get) = existing(handler, "httpGet") {
        fill(get, "path", "/");
        fill(get, "scheme", "HTTP");
    }
}

/// Whether an image reference has the tag `latest` or neither tag nor digest; one that is no reference has neither.
fn is_latest(image: &str) -> bool {
    // `github.com/distribution/reference`: components of lower case, and a domain before them; 255 characters at most.
    let sound = |c: char| c.is_ascii_alphanumeric() || "._-/:@+".contains(c);
    let named = image.split('/').next_back().is_some_and(|last| {
        let name = last.split([':', '@']).next().unwrap_or_default();
        !name.is_empty() && !name.contains(|c: char| c.is_ascii_uppercase())
    });
    if image.len() > 255 || !image.chars().all(sound) || !named || image.contains('@') {
        return false;
    }
    let name = image.rsplit('/').next().unwrap_or(image);
    name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

fn default_volume(volume: &mut Value) {
    let Some(fields) = volume.as_object_mut() else { return };
    fields.retain(|key, value| key == "name" || !value.is_null());
    if fields.keys().all(|key| key == "name") {
        fields.insert("emptyDir".to_owned(), json!({}));
    }
    for key in ["configMap", "secret", "downwardAPI", "projected"] {
        if let Some(source) = existing(volume, key) {
            fill(source, "defaultMode", 0o644);
        }
    }
    if let Some(path) = existing(volume, "hostPath")
        && path["type"].is_null()
    {
        set(path, "type", "");
    }
    default_source(volume);
    if let Some(source) = existing(volume, "downwardAPI") {
        default_downward(source);
    }
    if let Some(projected) = existing(volume, "projected") {
        for source in items(projected, "sources") {
            if let Some(token) = existing(source, "serviceAccountToken") {
                fill(token, "expirationSeconds", 3600);
            }
            if let Some(downward) = existing(source, "downwardAPI") {
                default_downward(downward);
            }
        }
    }
    if let Some(template) = existing(volume, "ephemeral").and_then(|e| existing(e, "volumeClaimTemplate")) {
        fill(template, "metadata", json!({}));
        if let Some(spec) = existing(template, "spec") {
            fill_absent(spec, "volumeMode", "Filesystem");
        }
    }
}

/// Defaults of sources that volumes of pods share with persistent volumes, one of which is the field of `volume`.
pub fn default_source(volume: &mut Value) {
    if let Some(source) = existing(volume, "image") {
        let policy = if is_latest(text(source, "reference")) { "Always" } else { "IfNotPresent" };
        fill(source, "pullPolicy", policy);
    }
    if let Some(source) = existing(volume, "iscsi") {
        fill(source, "iscsiInterface", "default");
    }
    if let Some(source) = existing(volume, "rbd") {
        fill(source, "pool", "rbd");
        fill(source, "user", "admin");
        fill(source, "keyring", "/etc/ceph/keyring");
    }
    if let Some(source) = existing(volume, "azureDisk") {
        fill_absent(source, "cachingMode", "ReadWrite");
        fill_absent(source, "kind", "Shared");
        fill_absent(source, "fsType", "ext4");
        fill_absent(source, "readOnly", false);
    }
    if let Some(source) = existing(volume, "scaleIO") {
        fill(source, "storageMode", "ThinProvisioned");
        fill(source, "fsType", "xfs");
    }
}

fn default_downward(source: &mut Value) {
    for item in items(source, "items") {
        if let Some(reference) = existing(item, "fieldRef") {
            fill(reference, "apiVersion", "v1");
        }
    }
}

/// A new pod: pending, with its class of service.
pub fn create(pod: &mut Value) {
    existing(pod, "spec").into_iter().for_each(pod_resources::default);
    let class = class_of(pod);
    set(pod, "status", json!({"phase": "Pending", "qosClass": class}));
    let spec = &mut pod["spec"];
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0) {
        spec["terminationGracePeriodSeconds"] = 1.into();
    }
    if !list(&pod["spec"], "schedulingGates").is_empty() {
        let created = pod["metadata"]["creationTimestamp"].clone();
        let condition = json!({
            "type": "PodScheduled", "status": "False", "lastProbeTime": null, "lastTransitionTime": created,
            "reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates",
        });
        set(&mut pod["status"], "conditions", json!([condition]));
    }
}

/// An update keeps what belongs to the status or to other subresources.
pub fn update(subresource: Option<&str>, new: &mut Value, old: &Value) {
    match subresource {
        // The class of service never changes; status writers may leave it out.
        Some("status") => {
            if let Some(status) = existing(new, "status")
                && text(status, "qosClass").is_empty()
            {
                copy(status, &old["status"], "qosClass");
            }
        }
        Some("ephemeralcontainers") => keep_spec_but(new, old, "ephemeralContainers"),
        Some("resize") => {
            let mut kept = old.clone();
            for key in ["containers", "initContainers"] {
                let wanted = list(&new["spec"], key).to_vec();
                if wanted.len() != list(&old["spec"], key).len() {
                    // Refused by validation.
                    copy(&mut kept["spec"], &new["spec"], key);
                    continue;
                }
                for (container, wanted) in items(&mut kept["spec"], key).zip(&wanted) {
                    copy(container, wanted, "resources");
                    copy(container, wanted, "resizePolicy");
                }
            }
            copy(&mut kept, new, "metadata");
            keep_metadata(&mut kept, old);
            items(&mut kept["spec"], "containers").for_each(requests_from_limits);
            *new = kept;
        }
        Some(_) | None => {}
    }
}

fn keep_spec_but(new: &mut Value, old: &Value, key: &str) {
    let mut kept = old.clone();
    if let Some(spec) = existing(&mut kept, "spec") {
        copy(spec, &new["spec"], key);
    }
    copy(&mut kept, new, "metadata");
    keep_metadata(&mut kept, old);
    *new = kept;
}

/// Of the metadata a write to a subresource changes nothing but its bookkeeping.
fn keep_metadata(new: &mut Value, old: &Value) {
    for key in ["labels", "annotations", "finalizers", "ownerReferences"] {
        copy(&mut new["metadata"], &old["metadata"], key);
    }
}
