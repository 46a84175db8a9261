//! Containers: names, ports, environment, mounts, probes, resources.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::{errors::Errors, security};
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

const HEADER: &str = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";

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
            errors.one_of(container, &path, "restartPolicy", &["Always", "Never", "OnFailure"]);
            resize_policy(errors, container, &path);
            if init && container["restartPolicy"] != "Always" {
                for key in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
                    if container[key].is_object() {
                        let detail = "may not be set for init containers without restartPolicy=Always";
                        errors.forbidden(&path.child(key), detail);
                    }
                }
            } else {
                probes(errors, container, pod.spec, &path);
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

/// How a container takes a change of its resources.
fn resize_policy(errors: &mut Errors, container: &Value, path: &FieldPath) {
    let mut names = BTreeSet::new();
    let path = path.child("resizePolicy");
    for (index, policy) in list(container, "resizePolicy").iter().enumerate() {
        let (name, how) = (text(policy, "resourceName"), text(policy, "restartPolicy"));
        if !names.insert(name) {
            errors.duplicate(&path.index(index), name);
        }
        if name.is_empty() {
            errors.required(&path, "");
        } else if !matches!(name, "cpu" | "memory") {
            errors.unsupported(&path, name, &["cpu", "memory"]);
        }
        if how.is_empty() {
            errors.required(&path, "");
        } else if !matches!(how, "NotRequired" | "RestartContainer") {
            errors.unsupported(&path, how, &["NotRequired", "RestartContainer"]);
        }
    }
}

/// Checks an ephemeral container, which has no other fields than those that make sense for it.
pub fn ephemeral(errors: &mut Errors, container: &Value, pod: &Pod<'_>, path: &FieldPath) {
    const NEVER: [&str; 7] = [
        "lifecycle",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "ports",
        "resizePolicy",
        "restartPolicy",
    ];
    check(errors, container, pod, path);
    for key in NEVER {
        if !is_empty(&container[key]) {
            errors.forbidden(&path.child(key), "cannot be set for an Ephemeral Container");
        }
    }
    if container["resources"].as_object().is_some_and(|resources| !resources.is_empty()) {
        errors.forbidden(&path.child("resources"), "cannot be set for an Ephemeral Container");
    }
    for (index, mount) in list(container, "volumeMounts").iter().enumerate() {
        for key in ["subPath", "subPathExpr"] {
            if !text(mount, key).is_empty() {
                let path = path.child("volumeMounts").index(index).child(key);
                errors.forbidden(&path, "cannot be set for an Ephemeral Container");
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
    devices(errors, container, pod, path);
    resources(errors, &container["resources"], &path.child("resources"));
    claims(errors, &container["resources"], pod.spec, &path.child("resources.claims"));
    security::container(errors, &container["securityContext"], &path.child("securityContext"));
}

/// The claims of devices that a container uses are some of its pod's.
pub fn claims(errors: &mut Errors, resources: &Value, spec: &Value, path: &FieldPath) {
    let known: BTreeSet<&str> =
        list(spec, "resourceClaims").iter().map(|claim| text(claim, "name")).collect();
    let mut seen = BTreeSet::new();
    for (index, claim) in list(resources, "claims").iter().enumerate() {
        let (name, path) = (text(claim, "name"), path.index(index));
        if name.is_empty() {
            errors.required(&path, "");
            continue;
        }
        if !seen.insert((name, text(claim, "request"))) {
            errors.duplicate(&path, name);
        }
        if !known.contains(name) {
            let mut error = setpoint_schema::FieldError::not_found(&path, name);
            error.detail = if known.is_empty() {
                "must be one of the names in pod.spec.resourceClaims which is empty".to_owned()
            } else {
                let names: Vec<&str> = known.iter().copied().collect();
                format!("must be one of the names in pod.spec.resourceClaims: {}", names.join(", "))
            };
            errors.push(error);
        }
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
            let version = text(&source["fieldRef"], "apiVersion");
            if errors.present(&source["fieldRef"], &path, "fieldPath") {
                let at = path.child("fieldPath");
                if version != "v1" {
                    errors.invalid(
                        &at,
                        field,
                        format!("error converting fieldPath: unsupported pod version: {version}"),
                    );
                } else if let Some(key) = subscript(field) {
                    errors.qualified(&path, key);
                } else if !ENV_FIELDS.contains(&field) {
                    let detail = format!("error converting fieldPath: field label not supported: {field}");
                    errors.invalid(&at, field, detail);
                }
            }
        }
        if source["resourceFieldRef"].is_object() {
            resource_field(errors, &source["resourceFieldRef"], &path.child("resourceFieldRef"), false);
        }
        for key in ["configMapKeyRef", "secretKeyRef"] {
            let reference = &source[key];
            if reference.is_object() {
                let path = path.child(key);
                errors.name(&path.child("name"), text(reference, "name"), NameRule::Subdomain);
                if errors.present(reference, &path, "key") {
                    super::config::key(errors, &path.child("key"), text(reference, "key"));
                }
            }
        }
    }
    for (index, source) in list(container, "envFrom").iter().enumerate() {
        let path = path.child("envFrom");
        let item = path.index(index);
        let prefix = text(source, "prefix");
        if !prefix.is_empty() && !is_env_name(prefix) {
            errors.invalid(&item.child("prefix"), prefix, ENV_NAME);
        }
        let given = ["configMapRef", "secretRef"].into_iter().filter(|key| source[*key].is_object());
        let given: Vec<_> = given.collect();
        for key in &given {
            let path = item.child(key);
            if errors.present(&source[*key], &path, "name") {
                errors.name(&path.child("name"), text(&source[*key], "name"), NameRule::Subdomain);
            }
        }
        match given.len() {
            0 => errors.invalid(&path, "", "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => errors.invalid(&path, "", "may not have more than one field specified at a time"),
        }
    }
}

/// The fields of a pod that an environment variable may take, beside single labels and annotations.
const ENV_FIELDS: [&str; 9] = [
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

/// Whether a pod has a field of this name that can be taken.
pub fn is_field(name: &str) -> bool {
    // What volumes may take, beside what variables may.
    const MORE: [&str; 5] = [
        "metadata.annotations",
        "metadata.labels",
        "spec.restartPolicy",
        "spec.schedulerName",
        "status.phase",
    ];
    ENV_FIELDS.contains(&name) || MORE.contains(&name)
}

/// The key of a label or annotation in `metadata.labels['key']`.
pub fn subscript(field: &str) -> Option<&str> {
    let rest =
        field.strip_prefix("metadata.labels['").or_else(|| field.strip_prefix("metadata.annotations['"))?;
    rest.strip_suffix("']")
}

/// Checks a reference to an amount that a container has.
pub fn resource_field(errors: &mut Errors, reference: &Value, path: &FieldPath, in_volume: bool) {
    const KNOWN: [&str; 6] = [
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    let resource = text(reference, "resource");
    if in_volume && !errors.present(reference, path, "containerName") {
        return;
    }
    if !errors.present(reference, path, "resource") {
        return;
    }
    let pages =
        ["limits.hugepages-", "requests.hugepages-"].iter().any(|prefix| resource.starts_with(prefix));
    if !KNOWN.contains(&resource) && !pages {
        return errors.unsupported(&path.child("resource"), resource, &KNOWN);
    }
    let divisor = text(reference, "divisor");
    if matches!(divisor, "" | "0") {
        return;
    }
    let (fine, words) = if resource.rsplit_once('.').is_some_and(|(_, unit)| unit == "cpu") {
        (["1m", "1"].contains(&divisor), "1m and 1 are supported with the cpu resource")
    } else {
        let sizes = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
        (
            sizes.contains(&divisor),
            "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the memory resource",
        )
    };
    if !fine {
        errors.invalid(&path.child("divisor"), resource, format!("only divisor's values {words}"));
    }
}

fn mounts(errors: &mut Errors, container: &Value, pod: &Pod<'_>, path: &FieldPath) {
    let mut paths = BTreeSet::new();
    let devices: BTreeMap<&str, &str> = list(container, "volumeDevices")
        .iter()
        .map(|device| (text(device, "name"), text(device, "devicePath")))
        .collect();
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
        if devices.contains_key(name) {
            errors.invalid(&path.child("name"), name, "must not already exist in volumeDevices");
        }
        if devices.values().any(|device| *device == text(mount, "mountPath")) {
            let detail = "must not already exist as a path in volumeDevices";
            errors.invalid(&path.child("mountPath"), text(mount, "mountPath"), detail);
        }
        errors.one_of(mount, &all, "mountPropagation", &["Bidirectional", "HostToContainer", "None"]);
        let recursive = text(mount, "recursiveReadOnly");
        if matches!(recursive, "Enabled" | "IfPossible") && mount["readOnly"] != true {
            errors.forbidden(&all.child("recursiveReadOnly"), "may only be specified when readOnly is true");
        }
        errors.one_of(mount, &all, "recursiveReadOnly", &["Disabled", "Enabled", "IfPossible"]);
        let sub = text(mount, "subPath");
        if sub.starts_with('/') {
            errors.invalid(&all.child("subPath"), sub, "must be a relative path");
        }
        if sub.split('/').any(|part| part == "..") {
            errors.invalid(&all.child("subPath"), sub, "must not contain '..'");
        }
        if !sub.is_empty() && !text(mount, "subPathExpr").is_empty() {
            errors.invalid(
                &path.child("subPathExpr"),
                text(mount, "subPathExpr"),
                "subPathExpr and subPath are mutually exclusive",
            );
        }
    }
}

/// Checks the block devices of a container: claims of that mode, each at a path of its own.
fn devices(errors: &mut Errors, container: &Value, pod: &Pod<'_>, path: &FieldPath) {
    let mounts: BTreeMap<&str, &str> = list(container, "volumeMounts")
        .iter()
        .map(|mount| (text(mount, "name"), text(mount, "mountPath")))
        .collect();
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (index, device) in list(container, "volumeDevices").iter().enumerate() {
        let path = path.child("volumeDevices").index(index);
        let (name, at) = (text(device, "name"), text(device, "devicePath"));
        errors.present(device, &path, "name");
        if !names.insert(name) {
            errors.invalid(&path.child("name"), name, "must be unique");
        }
        let volume = list(pod.spec, "volumes").iter().find(|volume| text(volume, "name") == name);
        let claimed =
            |volume: &Value| volume["persistentVolumeClaim"].is_object() || volume["ephemeral"].is_object();
        if !pod.volumes.contains(name) {
            errors.not_found(&path.child("name"), name);
        } else if volume.is_some_and(|volume| !claimed(volume)) {
            let detail =
                "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
            errors.invalid(&path.child("name"), name, detail);
        }
        if mounts.contains_key(name) {
            errors.invalid(&path.child("name"), name, "must not already exist in volumeMounts");
        }
        if errors.present(device, &path, "devicePath") && !paths.insert(at) {
            errors.invalid(&path.child("devicePath"), at, "must be unique");
        }
        if at.split('/').any(|part| part == "..") {
            errors.invalid(&path.child("devicePath"), at, "can not contain backsteps ('..')");
        }
        if mounts.values().any(|mount| *mount == at) {
            let detail = "must not already exist as a path in volumeMounts";
            errors.invalid(&path.child("devicePath"), at, detail);
        }
    }
}

fn probes(errors: &mut Errors, container: &Value, pod: &Value, path: &FieldPath) {
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
        if let Some(threshold) = probe["successThreshold"].as_i64().filter(|threshold| *threshold != 1)
            && key != "readinessProbe"
        {
            errors.invalid(&path.child("successThreshold"), threshold, "must be 1");
        }
        if let Some(grace) = probe["terminationGracePeriodSeconds"].as_i64() {
            let path = path.child("terminationGracePeriodSeconds");
            if key == "readinessProbe" {
                errors.invalid(&path, grace, "must not be set for readinessProbes");
            } else if grace <= 0 {
                errors.invalid(&path, grace, "must be greater than 0");
            }
        }
    }
    let grace = pod["terminationGracePeriodSeconds"].as_i64().unwrap_or(0);
    for key in ["postStart", "preStop"] {
        let hook = &container["lifecycle"][key];
        if hook.is_object() {
            let path = path.child("lifecycle").child(key);
            handler(errors, hook, &path, &["exec", "httpGet", "tcpSocket", "sleep"]);
            let alone = ["exec", "httpGet", "tcpSocket"].iter().all(|other| !hook[*other].is_object());
            if let Some(seconds) = hook["sleep"]["seconds"].as_i64().filter(|s| *s < 0 || *s > grace)
                && alone
            {
                let detail =
                    format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                errors.invalid(&path.child("sleep"), seconds, detail);
            }
        }
    }
}

fn handler(errors: &mut Errors, handler: &Value, path: &FieldPath, kinds: &[&str]) {
    let mut given = kinds.iter().filter(|kind| handler[**kind].is_object());
    let Some(first) = given.next() else { return errors.required(path, "must specify a handler type") };
    for second in given {
        errors.forbidden(&path.child(second), "may not specify more than 1 handler type");
    }
    if *first == "exec" && list(&handler["exec"], "command").is_empty() {
        errors.required(&path.child("exec").child("command"), "");
    }
    for kind in ["httpGet", "tcpSocket", "grpc"] {
        if *first == kind {
            errors.port(&path.child(kind).child("port"), &handler[kind]["port"]);
        }
    }
    if *first != "httpGet" {
        return;
    }
    let http = path.child("httpGet");
    errors.one_of(&handler["httpGet"], &http, "scheme", &["HTTP", "HTTPS"]);
    for header in list(&handler["httpGet"], "httpHeaders") {
        let name = text(header, "name");
        if name.is_empty() || !name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-') {
            errors.invalid(&http.child("httpHeaders"), name, HEADER);
        }
    }
}

/// Checks the name of a resource that a container can have.
pub fn resource_name(errors: &mut Errors, path: &FieldPath, name: &str) {
    let standard = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    let before = errors.len();
    errors.qualified(path, name);
    let known = standard || matches!(name, "storage" | "pods" | "services");
    if errors.len() == before && !name.contains('/') && !known {
        errors.invalid(path, name, "must be a standard resource type or fully qualified");
    }
    if !name.contains('/') && !standard {
        errors.invalid(path, name, "must be a standard resource for containers");
    }
}

/// Checks `{limits, requests}` of a container.
pub fn resources(errors: &mut Errors, resources: &Value, path: &FieldPath) {
    amounts(errors, resources, path, resource_name);
}

/// Checks `{limits, requests}` whose resources may have the names that `name` lets pass.
pub fn amounts(
    errors: &mut Errors,
    resources: &Value,
    path: &FieldPath,
    name_of: fn(&mut Errors, &FieldPath, &str),
) {
    let amounts = |key: &str| resources[key].as_object().into_iter().flatten();
    let amount = |value: &Value| value.as_str().and_then(Quantity::parse).map(Quantity::nanos);
    // What cannot be shared: a request must be the limit.
    let mut kinds = ["limits", "requests"].into_iter().flat_map(&amounts).map(|(name, _)| name.as_str());
    if kinds.clone().any(|name| name.starts_with("hugepages-"))
        && !kinds.any(|name| matches!(name, "cpu" | "memory"))
    {
        errors.forbidden(path, "HugePages require cpu or memory");
    }
    let exclusive = |name: &str| {
        name.contains('/') && !name.starts_with("kubernetes.io/") || name.starts_with("hugepages-")
    };
    for key in ["limits", "requests"] {
        for (name, value) in amounts(key) {
            let path = path.child(key).key(name);
            name_of(errors, &path, name);
            errors.quantity(&path, value);
            let whole = amount(value).is_some_and(|nanos| nanos % 1_000_000_000 == 0);
            if name.contains('/') && !whole {
                errors.invalid(&path, value.clone(), "must be an integer");
            }
        }
    }
    for (name, request) in amounts("requests") {
        let limit = &resources["limits"][name];
        let (Some(wanted), Some(most)) = (amount(request), amount(limit)) else {
            if exclusive(name) {
                errors.required(&path.child("limits"), "Limit must be set for non overcommitable resources");
            }
            continue;
        };
        let shown = limit.as_str().unwrap_or_default();
        if exclusive(name) && wanted != most {
            errors.invalid(
                &path.child("requests"),
                request.clone(),
                format!("must be equal to {name} limit of {shown}"),
            );
        } else if wanted > most {
            let detail = format!("must be less than or equal to {name} limit of {shown}");
            errors.invalid(&path.child("requests"), request.clone(), detail);
        }
    }
}
