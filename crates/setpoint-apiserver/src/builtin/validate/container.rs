//! Containers: names, ports, environment, mounts, probes, resources.

use std::collections::BTreeSet;

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::errors::Errors;
use crate::{
    builtin::{
        Quantity,
        edit::{is_empty, list, text},
    },
    object_meta::NameRule,
};

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const ENV_NAME: &str =
    "a valid environment variable name must consist only of printable ASCII characters other than '='";

/// What the containers of one pod have in common.
pub struct Pod<'a> {
    pub spec: &'a Value,
    /// Names of the volumes that can be mounted.
    pub volumes: BTreeSet<&'a str>,
}

/// Checks the init containers and containers of a pod spec.
pub fn all(errors: &mut Errors, pod: &Pod<'_>, path: &FieldPath) {
    let mut names = BTreeSet::new();
    if list(pod.spec, "containers").is_empty() {
        errors.required(&path.child("containers"), "");
    }
    for (key, init) in [("containers", false), ("initContainers", true)] {
        let mut host_ports = BTreeSet::new();
        for (index, container) in list(pod.spec, key).iter().enumerate() {
            let path = path.child(key).index(index);
            let name = text(container, "name");
            if errors.present(container, &path, "name") {
                errors.name(&path.child("name"), name, NameRule::Label);
                if !names.insert(name) {
                    errors.duplicate(&path.child("name"), name);
                }
            }
            check(errors, container, pod, &path);
            if init && container["restartPolicy"] != "Always" {
                for key in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
                    if container[key].is_object() {
                        let detail = "may not be set for init containers without restartPolicy=Always";
                        errors.forbidden(&path.child(key), detail);
                    }
                }
            } else {
                probes(errors, container, &path);
            }
            for (index, port) in list(container, "ports").iter().enumerate() {
                let number = port["hostPort"].as_i64().unwrap_or(0);
                let used = format!("{}/{}/{number}", text(port, "protocol"), text(port, "hostIP"));
                if number != 0 && !host_ports.insert(used.clone()) {
                    errors.duplicate(&path.child("ports").index(index).child("hostPort"), used);
                }
            }
        }
    }
}

fn check(errors: &mut Errors, container: &Value, pod: &Pod<'_>, path: &FieldPath) {
    errors.present(container, path, "image");
    errors.one_of(container, path, "imagePullPolicy", &["Always", "IfNotPresent", "Never"]);
    errors.one_of(container, path, "terminationMessagePolicy", &["File", "FallbackToLogsOnError"]);
    ports(errors, container, pod, path);
    environment(errors, container, path);
    mounts(errors, container, pod, path);
    resources(errors, &container["resources"], &path.child("resources"));
    let security = path.child("securityContext");
    for key in ["runAsUser", "runAsGroup"] {
        errors.in_range(&container["securityContext"], &security, key, 0, i64::from(i32::MAX));
    }
}

fn ports(errors: &mut Errors, container: &Value, pod: &Pod<'_>, path: &FieldPath) {
    let mut names = BTreeSet::new();
    for (index, port) in list(container, "ports").iter().enumerate() {
        let path = path.child("ports").index(index);
        let name = text(port, "name");
        if !name.is_empty() {
            errors.port_name(&path.child("name"), name);
            if !names.insert(name) {
                errors.duplicate(&path.child("name"), name);
            }
        }
        match port["containerPort"].as_i64().unwrap_or(0) {
            0 => errors.required(&path.child("containerPort"), ""),
            _ => errors.in_range(port, &path, "containerPort", 1, 65535),
        }
        if let Some(host) = port["hostPort"].as_i64().filter(|host| *host != 0) {
            errors.in_range(port, &path, "hostPort", 1, 65535);
            if pod.spec["hostNetwork"] == true && port["containerPort"].as_i64() != Some(host) {
                let detail = "must match `containerPort` when `hostNetwork` is true";
                errors.invalid(&path.child("hostPort"), host, detail);
            }
        }
        errors.one_of(port, &path, "protocol", &PROTOCOLS);
    }
}

fn is_env_name(name: &str) -> bool {
    name.bytes().all(|c| (b' '..=b'~').contains(&c) && c != b'=')
}

fn environment(errors: &mut Errors, container: &Value, path: &FieldPath) {
    const SOURCES: [&str; 5] =
        ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
    for (index, variable) in list(container, "env").iter().enumerate() {
        let path = path.child("env").index(index);
        let name = text(variable, "name");
        if errors.present(variable, &path, "name") && !is_env_name(name) {
            errors.invalid(&path.child("name"), name, ENV_NAME);
        }
        let Some(source) = variable.get("valueFrom").filter(|source| source.is_object()) else { continue };
        let path = path.child("valueFrom");
        let set = SOURCES.iter().filter(|key| source[**key].is_object()).count();
        if set == 0 {
            let detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
            errors.invalid(&path, "", detail);
        } else if set > 1 {
            errors.invalid(&path, "", "may not have more than one field specified at a time");
        }
        if !text(variable, "value").is_empty() {
            errors.invalid(&path, "", "may not be specified when `value` is not empty");
        }
        if source["fieldRef"].is_object() {
            let path = path.child("fieldRef");
            let field = text(&source["fieldRef"], "fieldPath");
            if errors.present(&source["fieldRef"], &path, "fieldPath") && !is_env_field(field) {
                let detail = format!("error converting fieldPath: field label not supported: {field}");
                errors.invalid(&path.child("fieldPath"), field, detail);
            }
        }
        for key in ["configMapKeyRef", "secretKeyRef"] {
            let reference = &source[key];
            if reference.is_object() {
                let path = path.child(key);
                errors.name(&path.child("name"), text(reference, "name"), NameRule::Subdomain);
                errors.present(reference, &path, "key");
            }
        }
    }
    for (index, source) in list(container, "envFrom").iter().enumerate() {
        let path = path.child("envFrom");
        let item = path.index(index);
        let prefix = text(source, "prefix");
        if !is_env_name(prefix) {
            errors.invalid(&item.child("prefix"), prefix, ENV_NAME);
        }
        let given = ["configMapRef", "secretRef"].into_iter().filter(|key| source[*key].is_object());
        let given: Vec<_> = given.collect();
        for key in &given {
            errors.present(&source[*key], &item.child(key), "name");
        }
        match given.len() {
            0 => errors.invalid(&path, "", "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => errors.invalid(&path, "", "may not have more than one field specified at a time"),
        }
    }
}

/// The fields of a pod that an environment variable may take.
fn is_env_field(field: &str) -> bool {
    const FIELDS: [&str; 9] = [
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    ];
    FIELDS.contains(&field)
        || ["metadata.labels['", "metadata.annotations['"]
            .iter()
            .any(|prefix| field.starts_with(prefix) && field.ends_with("']"))
}

fn mounts(errors: &mut Errors, container: &Value, pod: &Pod<'_>, path: &FieldPath) {
    let mut paths = BTreeSet::new();
    for (index, mount) in list(container, "volumeMounts").iter().enumerate() {
        let all = path.child("volumeMounts");
        let path = all.index(index);
        let name = text(mount, "name");
        errors.present(mount, &path, "name");
        if !pod.volumes.contains(name) {
            errors.not_found(&path.child("name"), name);
        }
        if errors.present(mount, &path, "mountPath") && !paths.insert(text(mount, "mountPath")) {
            errors.invalid(&path.child("mountPath"), text(mount, "mountPath"), "must be unique");
        }
        let sub = text(mount, "subPath");
        if sub.starts_with('/') {
            errors.invalid(&all.child("subPath"), sub, "must be a relative path");
        }
        if sub.split('/').any(|part| part == "..") {
            errors.invalid(&all.child("subPath"), sub, "must not contain '..'");
        }
        if !sub.is_empty() && !text(mount, "subPathExpr").is_empty() {
            errors.invalid(
                &all.child("subPathExpr"),
                text(mount, "subPathExpr"),
                "subPathExpr and subPath are mutually exclusive",
            );
        }
    }
}

fn probes(errors: &mut Errors, container: &Value, path: &FieldPath) {
    for key in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = &container[key];
        if !probe.is_object() {
            continue;
        }
        let path = path.child(key);
        handler(errors, probe, &path, &["exec", "httpGet", "tcpSocket", "grpc"]);
        for number in
            ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
        {
            errors.not_negative(probe, &path, number);
        }
        if let Some(threshold) = probe["successThreshold"].as_i64().filter(|t| *t > 1)
            && key != "readinessProbe"
        {
            errors.invalid(&path.child("successThreshold"), threshold, "must be 1");
        }
    }
    for key in ["postStart", "preStop"] {
        let hook = &container["lifecycle"][key];
        if hook.is_object() {
            handler(
                errors,
                hook,
                &path.child("lifecycle").child(key),
                &["exec", "httpGet", "tcpSocket", "sleep"],
            );
        }
    }
}

fn handler(errors: &mut Errors, handler: &Value, path: &FieldPath, kinds: &[&str]) {
    let mut given = kinds.iter().filter(|kind| handler[**kind].is_object());
    if given.next().is_none() {
        errors.required(path, "must specify a handler type");
    }
    for second in given {
        errors.forbidden(&path.child(second), "may not specify more than 1 handler type");
    }
    if handler["exec"].is_object() && list(&handler["exec"], "command").is_empty() {
        errors.required(&path.child("exec").child("command"), "");
    }
    for kind in ["httpGet", "tcpSocket", "grpc"] {
        if handler[kind].is_object() {
            errors.port(&path.child(kind).child("port"), &handler[kind]["port"]);
        }
    }
    let http = path.child("httpGet");
    errors.one_of(&handler["httpGet"], &http, "scheme", &["HTTP", "HTTPS"]);
}

/// Checks `{limits, requests}` of a container.
fn resources(errors: &mut Errors, resources: &Value, path: &FieldPath) {
    let amounts = |key: &str| resources[key].as_object().into_iter().flatten();
    for key in ["limits", "requests"] {
        for (name, value) in amounts(key) {
            let path = path.child(key).key(name);
            errors.quantity(&path, value);
            let standard = |name: &str| {
                matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-")
            };
            let known = standard(name) || matches!(name.as_str(), "storage" | "pods" | "services");
            errors.qualified(&path, name);
            if !name.contains('/') && !known {
                errors.invalid(&path, name.as_str(), "must be a standard resource type or fully qualified");
            }
            if !name.contains('/') && !standard(name) {
                errors.invalid(&path, name.as_str(), "must be a standard resource for containers");
            }
        }
    }
    for (name, request) in amounts("requests") {
        let amount = |value: &Value| value.as_str().and_then(Quantity::parse).map(Quantity::nanos);
        let limit = &resources["limits"][name];
        if let (Some(request_amount), Some(limit_amount)) = (amount(request), amount(limit))
            && request_amount > limit_amount
            && !is_empty(limit)
        {
            let detail = format!(
                "must be less than or equal to {name} limit of {}",
                limit.as_str().unwrap_or_default()
            );
            errors.invalid(&path.child("requests"), request.clone(), detail);
        }
    }
}
