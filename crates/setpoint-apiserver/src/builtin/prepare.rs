//! What the server decides when an object is created or updated (the strategies of `pkg/registry`).

use serde_json::{Value, json};

use super::{
    defaults,
    edit::{child, copy, existing, fill, is_empty, items, remove, set, text},
    pod, service,
};

/// A new object.
pub fn create(group: &str, kind: &str, object: &mut Value) {
    match (group, kind) {
        ("", "PersistentVolumeClaim") => {
            existing(object, "spec").into_iter().for_each(defaults::data_source);
        }
        ("coordination.k8s.io", "Lease") => lease(object),
        ("", "Service") => service::create(object),
        // The feature is gone, and so is what v1beta1 had instead of the names of nodes and zones.
        ("", "Node") => drop(existing(object, "spec").and_then(|spec| remove(spec, "configSource"))),
        ("discovery.k8s.io", "EndpointSlice") => {
            items(object, "endpoints").for_each(|endpoint| drop(remove(endpoint, "deprecatedTopology")));
        }
        // Go writes the list without `omitempty`.
        ("rbac.authorization.k8s.io", "ClusterRole" | "Role") if object["rules"].is_null() => {
            object["rules"] = Value::Null;
        }
        _ => {}
    }
    match (group, kind) {
        ("", "Pod") => pod::create(object),
        // Whoever creates a node is its kubelet.
        ("", "Node") => {}
        ("", "Namespace") => {
            let spec = child(object, "spec");
            fill(spec, "finalizers", json!([]));
            if let Some(finalizers) = spec["finalizers"].as_array_mut()
                && !finalizers.iter().any(|known| known == "kubernetes")
            {
                finalizers.push("kubernetes".into());
            }
            set(object, "status", json!({"phase": "Active"}));
        }
        ("apps", "DaemonSet") => {
            set(object, "status", initial_status(group, kind));
            let annotations = child(child(object, "metadata"), "annotations");
            set(annotations, defaults::TEMPLATE_GENERATION, "1");
        }
        ("batch", "Job") => {
            set(object, "status", json!({}));
            job(object);
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            remove(object, "status");
            defaults::default(group, kind, object);
        }
        _ => {
            let known = setpoint_kinds::kinds().iter().find(|k| k.group == group && k.kind == kind);
            if known.is_some_and(|k| k.subresource("status").is_some()) {
                set(object, "status", initial_status(group, kind));
            }
            if (group, kind) == ("", "PersistentVolume") {
                let now = object["metadata"]["creationTimestamp"].clone();
                set(&mut object["status"], "lastPhaseTransitionTime", now);
            }
        }
    }
}

/// The status of a new object: empty, with the counters that Go writes even if they are zero.
fn initial_status(group: &str, kind: &str) -> Value {
    match (group, kind) {
        ("apps", "StatefulSet") => json!({"replicas": 0, "availableReplicas": 0}),
        ("apps", "ReplicaSet") | ("", "ReplicationController") => json!({"replicas": 0}),
        ("apps", "DaemonSet") => {
            json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0})
        }
        ("", "Service") | ("networking.k8s.io", "Ingress") => json!({"loadBalancer": {}}),
        ("", "PersistentVolumeClaim" | "PersistentVolume") => json!({"phase": "Pending"}),
        ("policy", "PodDisruptionBudget") => {
            json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0})
        }
        ("autoscaling", "HorizontalPodAutoscaler") => json!({"desiredReplicas": 0}),
        _ => json!({}),
    }
}

/// Fields of a feature that is off.
fn lease(object: &mut Value) {
    if let Some(spec) = existing(object, "spec") {
        remove(spec, "strategy");
        remove(spec, "preferredHolder");
    }
}

/// A job without a selector of its own gets one by its uid.
fn job(object: &mut Value) {
    let (name, uid) = {
        let metadata = &object["metadata"];
        (text(metadata, "name").to_owned(), text(metadata, "uid").to_owned())
    };
    if object["spec"]["manualSelector"] == true {
        return;
    }
    let labels = [
        ("batch.kubernetes.io/controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
        ("controller-uid", &uid),
        ("job-name", &name),
    ];
    // The labels of a job that has none of its own are those of its template, also what is added to them.
    let own = &object["metadata"]["labels"];
    let shared = own.as_object().is_none_or(serde_json::Map::is_empty)
        || *own == object["spec"]["template"]["metadata"]["labels"];
    let Some(spec) = existing(object, "spec") else { return };
    let selector = child(child(spec, "selector"), "matchLabels");
    fill(selector, "batch.kubernetes.io/controller-uid", uid.clone());
    let of_template = child(child(child(spec, "template"), "metadata"), "labels");
    for (key, value) in &labels {
        fill(of_template, key, (*value).clone());
    }
    if shared {
        let own = child(child(object, "metadata"), "labels");
        for (key, value) in &labels {
            fill(own, key, (*value).clone());
        }
    }
}

/// An update of an object or of a subresource.
pub fn update(group: &str, kind: &str, subresource: Option<&str>, new: &mut Value, old: &Value) {
    match (group, kind) {
        ("", "Pod") => pod::update(subresource, new, old),
        ("", "Service") if subresource.is_none() => service::update(new, old),
        ("", "Namespace") => {
            if subresource == Some("finalize") {
                let mut kept = old.clone();
                copy(child(&mut kept, "spec"), &new["spec"], "finalizers");
                copy(&mut kept, new, "metadata");
                *new = kept;
            } else {
                copy(new, old, "spec");
            }
        }
        ("coordination.k8s.io", "Lease") => lease(new),
        ("", "PersistentVolumeClaim") => existing(new, "spec").into_iter().for_each(defaults::data_source),
        ("apps", "DaemonSet") => {
            let of = |object: &Value| {
                text(&object["metadata"]["annotations"], defaults::TEMPLATE_GENERATION)
                    .parse::<i64>()
                    .unwrap_or(0)
            };
            let changed = subresource.is_none() && new["spec"]["template"] != old["spec"]["template"];
            let count = of(old) + i64::from(changed);
            let annotations = child(child(new, "metadata"), "annotations");
            set(annotations, defaults::TEMPLATE_GENERATION, count.to_string());
        }
        // What was asked for does not change.
        ("certificates.k8s.io", "CertificateSigningRequest") => copy(new, old, "spec"),
        ("", "Secret") if is_empty(&new["type"]) => {
            copy(new, old, "type");
        }
        ("batch", "Job") if subresource.is_none() => {
            if let Some(spec) = existing(new, "spec")
                && spec.get("selector").is_none()
            {
                copy(spec, &old["spec"], "selector");
            }
        }
        _ => {}
    }
}
