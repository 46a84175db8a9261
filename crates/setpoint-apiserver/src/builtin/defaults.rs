//! The defaults of each kind.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use super::{
    edit::{child, existing, fill, fill_absent, is_empty, items, list, remove, set, text},
    pod, service,
};

/// Counts the changes of a daemon set's template.
pub const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";
const RBAC: &str = "rbac.authorization.k8s.io";

/// One replica at least, and in v2 80 % of the requested CPU as the target where none is named, and whole rules where there are some.
fn autoscaler(object: &mut Value) {
    let second = object["apiVersion"] == "autoscaling/v2";
    // In the first version the other metrics stand in an annotation.
    let elsewhere =
        object["metadata"]["annotations"].get("autoscaling.alpha.kubernetes.io/metrics").is_some();
    let Some(spec) = existing(object, "spec") else { return };
    fill(spec, "minReplicas", 1);
    if !second {
        if !elsewhere {
            fill(spec, "targetCPUUtilizationPercentage", 80);
        }
        return;
    }
    if list(spec, "metrics").is_empty() {
        let target = json!({"type": "Utilization", "averageUtilization": 80});
        set(spec, "metrics", json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]));
    }
    let Some(behavior) = existing(spec, "behavior") else { return };
    let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    let up = child(behavior, "scaleUp");
    fill(up, "stabilizationWindowSeconds", 0);
    fill(up, "selectPolicy", "Max");
    fill(up, "policies", json!([{"type": "Pods", "value": 4, "periodSeconds": 15}, percent.clone()]));
    let down = child(behavior, "scaleDown");
    fill(down, "selectPolicy", "Max");
    fill(down, "policies", json!([percent]));
}

/// Applies the defaults of a kind.
pub fn default(group: &str, kind: &str, object: &mut Value) {
    match (group, kind) {
        ("", "Pod") => pod::default_pod(object),
        ("", "PodTemplate") => pod::default_template(object, "template"),
        ("", "Service") => service::default(object),
        ("", "Secret") => secret(object),
        ("", "Namespace") => namespace(object),
        ("", "Node") => node(object),
        ("", "PersistentVolumeClaim") => claim(object),
        ("", "PersistentVolume") => {
            if let Some(spec) = existing(object, "spec") {
                fill(spec, "persistentVolumeReclaimPolicy", "Retain");
                pod::default_source(spec);
                fill_absent(spec, "volumeMode", "Filesystem");
                if let Some(path) = existing(spec, "hostPath")
                    && path["type"].is_null()
                {
                    set(path, "type", "");
                }
            }
            fill(child(object, "status"), "phase", "Pending");
        }
        ("", "Endpoints") => {
            for subset in items(object, "subsets") {
                items(subset, "ports").for_each(|port| fill(port, "protocol", "TCP"));
            }
        }
        ("discovery.k8s.io", "EndpointSlice") => slice(object),
        ("" | "events.k8s.io", "Event") => event(group, object),
        ("", "LimitRange") => limit_range(object),
        ("", "ReplicationController") => replication_controller(object),
        ("apps", "StatefulSet") => stateful_set(object),
        ("apps", "Deployment") => deployment(object),
        ("apps", "ReplicaSet") => {
            if let Some(spec) = existing(object, "spec") {
                fill(spec, "replicas", 1);
                pod::default_template(spec, "template");
            }
        }
        ("apps", "DaemonSet") => daemon_set(object),
        ("batch", "Job") => {
            let labels = object["spec"]["template"]["metadata"]["labels"].clone();
            if labels.is_object() && object["metadata"]["labels"].as_object().is_none_or(Map::is_empty) {
                set(child(object, "metadata"), "labels", labels);
            }
            existing(object, "spec").into_iter().for_each(job);
        }
        ("batch", "CronJob") => cron_job(object),
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaler(object),
        ("storage.k8s.io", "CSIDriver") => csi_driver(object),
        ("networking.k8s.io", "IngressClass") => {
            let parameters = existing(object, "spec").and_then(|spec| existing(spec, "parameters"));
            if let Some(parameters) = parameters {
                fill_absent(parameters, "scope", "Cluster");
            }
        }
        ("storage.k8s.io", "StorageClass") => {
            fill(object, "reclaimPolicy", "Delete");
            fill(object, "volumeBindingMode", "Immediate");
        }
        ("scheduling.k8s.io", "PriorityClass") => fill(object, "preemptionPolicy", "PreemptLowerPriority"),
        ("networking.k8s.io", "NetworkPolicy") => network_policy(object),
        (RBAC, "RoleBinding" | "ClusterRoleBinding") => binding(object),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy" | "MutatingAdmissionPolicy") => {
            if let Some(spec) = existing(object, "spec") {
                fill(spec, "failurePolicy", "Fail");
                policy_resources(spec, "matchConstraints");
            }
        }
        (
            "admissionregistration.k8s.io",
            "ValidatingAdmissionPolicyBinding" | "MutatingAdmissionPolicyBinding",
        ) => {
            if let Some(spec) = existing(object, "spec") {
                policy_resources(spec, "matchResources");
            }
        }
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration") => {
            items(object, "webhooks").for_each(|hook| {
                fill(hook, "reinvocationPolicy", "Never");
                webhook(hook);
            });
        }
        ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration") => {
            items(object, "webhooks").for_each(webhook);
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => custom_resource_definition(object),
        _ => {}
    }
}

/// Of containers: a limit from the maximum, a request from the limit, or else from the minimum.
fn limit_range(object: &mut Value) {
    let Some(spec) = existing(object, "spec") else { return };
    for limit in items(spec, "limits") {
        if text(limit, "type") != "Container" {
            continue;
        }
        for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
            for (name, amount) in limit[from].as_object().cloned().into_iter().flatten() {
                fill(child(limit, to), &name, amount);
            }
        }
    }
}

/// Which resources an admission policy or its binding is for.
fn policy_resources(spec: &mut Value, key: &str) {
    let Some(given) = existing(spec, key) else { return };
    fill(given, "matchPolicy", "Equivalent");
    fill(given, "namespaceSelector", json!({}));
    fill(given, "objectSelector", json!({}));
    for key in ["resourceRules", "excludeResourceRules"] {
        items(given, key).for_each(|rule| fill(rule, "scope", "*"));
    }
}

/// An admission webhook.
fn webhook(hook: &mut Value) {
    fill(hook, "failurePolicy", "Fail");
    fill(hook, "matchPolicy", "Equivalent");
    fill(hook, "namespaceSelector", json!({}));
    fill(hook, "objectSelector", json!({}));
    fill(hook, "timeoutSeconds", 10);
    for rule in items(hook, "rules") {
        fill(rule, "scope", "*");
    }
    if let Some(service) = existing(hook, "clientConfig").and_then(|config| existing(config, "service")) {
        fill(service, "port", 443);
    }
}

/// `stringData` is write-only: it goes into `data`.
fn secret(object: &mut Value) {
    fill(object, "type", "Opaque");
    // What is no text is left to be refused: it must not empty what is there.
    let texts = |given: &Value| given.as_object().is_some_and(|texts| texts.values().all(Value::is_string));
    if object.get("stringData").is_some_and(texts)
        && let Some(Value::Object(texts)) = remove(object, "stringData")
    {
        let data = child(object, "data");
        for (key, text) in texts {
            set(data, &key, STANDARD.encode(text.as_str().unwrap_or_default()));
        }
    }
    if object.get("data").is_some_and(Value::is_null) {
        remove(object, "data");
    }
}

fn namespace(object: &mut Value) {
    let name = text(&object["metadata"], "name").to_owned();
    if !name.is_empty() {
        set(child(child(object, "metadata"), "labels"), "kubernetes.io/metadata.name", name);
    }
    fill(child(object, "status"), "phase", "Active");
}

fn node(object: &mut Value) {
    fill(object, "spec", json!({}));
    // The older field decides where both are given (`Convert_v1_NodeSpec_To_core_NodeSpec`); where only the newer one is, it is filled in.
    let range = object["spec"]["podCIDR"].as_str().filter(|range| !range.is_empty()).map(str::to_owned);
    let first = object["spec"]["podCIDRs"][0].as_str().map(str::to_owned);
    match (range, first) {
        (Some(range), first) if first.as_ref() != Some(&range) => object["spec"]["podCIDRs"] = json!([range]),
        (None, Some(first)) => object["spec"]["podCIDR"] = first.into(),
        _ => {}
    }
    let status = child(object, "status");
    if let Some(capacity) = status["capacity"].as_object().cloned() {
        let allocatable = child(status, "allocatable");
        for (name, amount) in capacity {
            fill(allocatable, &name, amount);
        }
    }
    fill(child(child(status, "daemonEndpoints"), "kubeletEndpoint"), "Port", 0);
    let info = child(status, "nodeInfo");
    for key in [
        "machineID",
        "systemUUID",
        "bootID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ] {
        fill(info, key, "");
    }
}

fn claim(object: &mut Value) {
    if let Some(spec) = existing(object, "spec") {
        fill_absent(spec, "volumeMode", "Filesystem");
    }
    fill(child(object, "status"), "phase", "Pending");
}

/// Where the first content of a volume comes from stands in an old and a new field (upstream: `NormalizeDataSources`). Sources in other namespaces
/// are a feature that is off.
pub fn data_source(spec: &mut Value) {
    let known = |source: &Value| match text(source, "kind") {
        "PersistentVolumeClaim" => text(source, "apiGroup").is_empty(),
        "VolumeSnapshot" => text(source, "apiGroup") == "snapshot.storage.k8s.io",
        _ => false,
    };
    if !text(&spec["dataSourceRef"], "namespace").is_empty() {
        remove(spec, "dataSourceRef");
    }
    if spec["dataSourceRef"].is_null() && !spec["dataSource"].is_null() && !known(&spec["dataSource"]) {
        remove(spec, "dataSource");
    }
    match (spec["dataSource"].is_object(), spec["dataSourceRef"].is_object()) {
        (true, false) => set(spec, "dataSourceRef", spec["dataSource"].clone()),
        (false, true) => set(spec, "dataSource", spec["dataSourceRef"].clone()),
        _ => {}
    }
}

fn slice(object: &mut Value) {
    for endpoint in items(object, "endpoints") {
        fill(endpoint, "conditions", json!({}));
    }
    for port in items(object, "ports") {
        if port["name"].is_null() {
            set(port, "name", "");
        }
        fill_absent(port, "protocol", "TCP");
    }
}

/// Fields of events that Go writes even if they are empty.
fn event(group: &str, object: &mut Value) {
    let absent = |object: &Value, key: &str| object.get(key).is_none();
    if group.is_empty() {
        fill(object, "source", json!({}));
        for key in ["reportingComponent", "reportingInstance"] {
            if absent(object, key) {
                set(object, key, "");
            }
        }
    }
}

fn csi_driver(object: &mut Value) {
    let Some(spec) = existing(object, "spec") else { return };
    fill(spec, "attachRequired", true);
    for key in [
        "podInfoOnMount",
        "preventPodSchedulingIfMissing",
        "requiresRepublish",
        "seLinuxMount",
        "storageCapacity",
    ] {
        fill(spec, key, false);
    }
    fill_absent(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    if list(spec, "volumeLifecycleModes").is_empty() {
        set(spec, "volumeLifecycleModes", json!(["Persistent"]));
    }
}

fn replication_controller(object: &mut Value) {
    let labels = object["spec"]["template"]["metadata"]["labels"].clone();
    if let Some(spec) = existing(object, "spec") {
        fill(spec, "replicas", 1);
        fill(spec, "selector", labels.clone());
        pod::default_template(spec, "template");
    }
    if labels.is_object() {
        fill(child(object, "metadata"), "labels", labels);
    }
}

fn stateful_set(object: &mut Value) {
    let Some(spec) = existing(object, "spec") else { return };
    fill(spec, "replicas", 1);
    if spec["serviceName"].is_null() {
        set(spec, "serviceName", "");
    }
    fill(spec, "podManagementPolicy", "OrderedReady");
    fill(spec, "revisionHistoryLimit", 10);
    let strategy = child(spec, "updateStrategy");
    fill(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate" {
        let rolling = child(strategy, "rollingUpdate");
        fill(rolling, "partition", 0);
        fill(rolling, "maxUnavailable", 1);
    }
    let retention = child(spec, "persistentVolumeClaimRetentionPolicy");
    fill(retention, "whenDeleted", "Retain");
    fill(retention, "whenScaled", "Retain");
    pod::default_template(spec, "template");
    for template in items(spec, "volumeClaimTemplates") {
        set(template, "apiVersion", "v1");
        set(template, "kind", "PersistentVolumeClaim");
        claim(template);
    }
}

fn deployment(object: &mut Value) {
    let Some(spec) = existing(object, "spec") else { return };
    fill(spec, "replicas", 1);
    fill(spec, "revisionHistoryLimit", 10);
    fill(spec, "progressDeadlineSeconds", 600);
    let strategy = child(spec, "strategy");
    fill(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate" {
        let rolling = child(strategy, "rollingUpdate");
        fill_absent(rolling, "maxUnavailable", "25%");
        fill_absent(rolling, "maxSurge", "25%");
    }
    pod::default_template(spec, "template");
}

fn daemon_set(object: &mut Value) {
    fill(child(child(object, "metadata"), "annotations"), TEMPLATE_GENERATION, "0");
    let Some(spec) = existing(object, "spec") else { return };
    fill(spec, "revisionHistoryLimit", 10);
    let strategy = child(spec, "updateStrategy");
    fill(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate" {
        let rolling = child(strategy, "rollingUpdate");
        fill_absent(rolling, "maxUnavailable", 1);
        fill_absent(rolling, "maxSurge", 0);
    }
    pod::default_template(spec, "template");
}

fn job(spec: &mut Value) {
    // Neither given means one pod; only parallelism given means a work queue.
    if spec.get("completions").is_none_or(is_empty) && spec.get("parallelism").is_none_or(is_empty) {
        set(spec, "completions", 1);
    }
    fill(spec, "parallelism", 1);
    if spec["backoffLimitPerIndex"].is_null() {
        fill(spec, "backoffLimit", 6);
    } else {
        fill(spec, "backoffLimit", i32::MAX);
    }
    failure_policy(spec);
    fill_absent(spec, "completionMode", "NonIndexed");
    fill(spec, "suspend", false);
    fill(spec, "manualSelector", false);
    let replacement = if spec["podFailurePolicy"].is_object() { "Failed" } else { "TerminatingOrFailed" };
    fill_absent(spec, "podReplacementPolicy", replacement);
    pod::default_template(spec, "template");
}

/// A condition that a rule names is meant to hold.
fn failure_policy(spec: &mut Value) {
    let Some(policy) = existing(spec, "podFailurePolicy") else { return };
    for rule in items(policy, "rules") {
        items(rule, "onPodConditions").for_each(|condition| fill(condition, "status", "True"));
    }
}

fn cron_job(object: &mut Value) {
    let Some(spec) = existing(object, "spec") else { return };
    fill(spec, "concurrencyPolicy", "Allow");
    fill(spec, "suspend", false);
    fill(spec, "successfulJobsHistoryLimit", 3);
    fill(spec, "failedJobsHistoryLimit", 1);
    let template = child(spec, "jobTemplate");
    fill(template, "metadata", json!({}));
    if let Some(spec) = existing(template, "spec") {
        failure_policy(spec);
        pod::default_template(spec, "template");
    }
}

fn network_policy(object: &mut Value) {
    let Some(spec) = existing(object, "spec") else { return };
    for rule in items(spec, "ingress") {
        items(rule, "ports").for_each(|port| fill_absent(port, "protocol", "TCP"));
    }
    for rule in items(spec, "egress") {
        items(rule, "ports").for_each(|port| fill_absent(port, "protocol", "TCP"));
    }
    if list(spec, "policyTypes").is_empty() {
        let types =
            if list(spec, "egress").is_empty() { json!(["Ingress"]) } else { json!(["Ingress", "Egress"]) };
        set(spec, "policyTypes", types);
    }
}

fn binding(object: &mut Value) {
    fill(child(object, "roleRef"), "apiGroup", RBAC);
    for subject in items(object, "subjects") {
        if matches!(text(subject, "kind"), "User" | "Group") {
            fill(subject, "apiGroup", RBAC);
        }
    }
}

fn custom_resource_definition(object: &mut Value) {
    let Some(spec) = existing(object, "spec") else { return };
    let names = child(spec, "names");
    let kind = text(names, "kind").to_owned();
    if !kind.is_empty() {
        fill(names, "singular", kind.to_lowercase());
        fill(names, "listKind", format!("{kind}List"));
    }
    fill(child(spec, "conversion"), "strategy", "None");
    if let Some(client) = existing(spec, "conversion")
        .and_then(|conversion| existing(conversion, "webhook"))
        .and_then(|webhook| existing(webhook, "clientConfig"))
        .and_then(|config| existing(config, "service"))
    {
        fill(client, "port", 443);
    }
    let storage = list(spec, "versions").iter().find(|version| version["storage"] == true);
    let stored: Vec<Value> = storage.map(|version| version["name"].clone()).into_iter().collect();
    let status = child(object, "status");
    fill(
        status,
        "acceptedNames",
        Map::from_iter([("plural".to_owned(), "".into()), ("kind".to_owned(), "".into())]),
    );
    if list(status, "storedVersions").is_empty() {
        set(status, "storedVersions", stored);
    }
}
