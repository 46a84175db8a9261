//! What is odd about pods and what makes them, though it is valid (`pkg/api/pod/warnings.go`, `pkg/api/job/warnings.go`).

mod key_pair;
mod objects;
mod paths;

use std::collections::BTreeMap;

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::Quantity;
use super::edit::{list, text};
use super::profiles::{self, CONTAINERS, SECCOMP_CONTAINER, SECCOMP_POD};
use crate::object::Metadata;
use crate::object_meta::{LABEL_VALUE, NameRule, is_label_value};

/// Labels of nodes that have new names, with what to say.
const OLD_LABELS: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", r#"deprecated since v1.14; use "kubernetes.io/arch" instead"#),
    ("beta.kubernetes.io/os", r#"deprecated since v1.14; use "kubernetes.io/os" instead"#),
    (
        "failure-domain.beta.kubernetes.io/region",
        r#"deprecated since v1.17; use "topology.kubernetes.io/region" instead"#,
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        r#"deprecated since v1.17; use "topology.kubernetes.io/zone" instead"#,
    ),
    (
        "beta.kubernetes.io/instance-type",
        r#"deprecated since v1.17; use "node.kubernetes.io/instance-type" instead"#,
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    ("node-role.kubernetes.io/master", r#"use "node-role.kubernetes.io/control-plane" instead"#),
];

/// Annotations that do nothing any more, with what to say.
const OLD_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        r#"non-functional in v1.16+; use the "priorityClassName" field instead"#,
    ),
    ("security.alpha.kubernetes.io/sysctls", r#"non-functional in v1.11+; use the "sysctls" field instead"#),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        r#"non-functional in v1.11+; use the "sysctls" field instead"#,
    ),
];

/// Sources of volumes that nothing mounts any more, with what to say.
const OLD_VOLUMES: [(&str, &str, &str); 9] = [
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// The warnings about a new object, or about an update that changes its spec.
pub(crate) fn warnings(group: &str, kind: &str, new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut warnings = objects::warnings(group, kind, new, old);
    if old.is_some_and(|old| old.generation() == new.generation()) || old.is_some() && kind == "Pod" {
        return warnings;
    }
    let spec = FieldPath::from("spec");
    let template = |path: &FieldPath| of_template(&new["spec"]["template"], path);
    if old.is_none() {
        warnings.extend(of_name(kind, new.meta("name")));
    }
    match (group, kind) {
        ("", "Pod") => warnings.extend(of_pod(new, &FieldPath::root())),
        ("", "PodTemplate") => warnings.extend(of_template(&new["template"], &FieldPath::from("template"))),
        ("apps", "StatefulSet") => {
            warnings.extend(template(&spec.child("template")));
            for (index, claim) in list(&new["spec"], "volumeClaimTemplates").iter().enumerate() {
                let mut path = spec.child("volumeClaimTemplates").index(index);
                if old.is_some() {
                    path = path.child("Spec");
                }
                objects::claim_spec(&claim["spec"], &path, &mut warnings);
            }
            if new["spec"]["revisionHistoryLimit"].as_i64().is_some_and(|limit| limit < 0) {
                warnings.push("spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended".to_owned());
            }
        }
        ("" | "apps", "ReplicationController" | "Deployment" | "ReplicaSet" | "DaemonSet") => {
            warnings.extend(template(&spec.child("template")));
        }
        ("batch", "Job") => warnings.extend(of_job(&new["spec"], &spec)),
        ("batch", "CronJob") => {
            warnings.extend(of_job(&new["spec"]["jobTemplate"]["spec"], &spec.child("jobTemplate.spec")));
            if old.is_some() && text(&new["spec"], "schedule").contains("TZ") {
                warnings.push("cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details".to_owned());
            }
        }
        ("networking.k8s.io", "Ingress") if old.is_none() => {
            const CLASS: &str = "kubernetes.io/ingress.class";
            if !new["metadata"]["annotations"][CLASS].is_null() && new["spec"]["ingressClassName"].is_null() {
                warnings.push(format!(
                    "annotation {CLASS:?} is deprecated, please use 'spec.ingressClassName' instead"
                ));
            }
        }
        _ => {}
    }
    warnings
}

/// Names become parts of host names.
fn of_name(kind: &str, name: &str) -> Option<String> {
    let used = match kind {
        "Pod" => "in the Pod's hostname",
        "Deployment" | "ReplicaSet" | "ReplicationController" | "Job" | "CronJob" => {
            "in Pod names and hostnames"
        }
        _ => return None,
    };
    let wrong = NameRule::Label.check(name, false);
    (!wrong.is_empty()).then(|| {
        format!(
            "metadata.name: this is used {used}, which can result in surprising behavior; a DNS label is recommended: [{}]",
            wrong.join(" ")
        )
    })
}

fn of_job(spec: &Value, path: &FieldPath) -> Vec<String> {
    let mut warnings = Vec::new();
    let number = |key: &str| spec[key].as_i64().unwrap_or_default();
    if spec["completionMode"] == "Indexed"
        && number("completions") > 100_000
        && number("parallelism") > 10_000
    {
        warnings.push(format!("{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"));
    }
    warnings.extend(of_template(&spec["template"], &path.child("template")));
    warnings
}

fn of_template(template: &Value, path: &FieldPath) -> Vec<String> {
    if template.is_object() { of_pod(template, path) } else { Vec::new() }
}

fn old_label(key: &str) -> Option<&'static str> {
    OLD_LABELS.iter().find(|(label, _)| *label == key).map(|(_, what)| *what)
}

/// A pod, where `path` is the root, or a template.
fn of_pod(pod: &Value, path: &FieldPath) -> Vec<String> {
    let (spec, at) = (&pod["spec"], path.child("spec"));
    let annotations = &pod["metadata"]["annotations"];
    let annotation = |key: &str| path.child("metadata.annotations").key(key);
    let mut warnings = Vec::new();
    for key in spec["nodeSelector"].as_object().into_iter().flatten().map(|(key, _)| key) {
        warnings.extend(old_label(key).map(|what| format!("{}: {what}", at.child("nodeSelector").key(key))));
    }
    warnings.extend(of_node_affinity(&spec["affinity"]["nodeAffinity"], &at.child("affinity.nodeAffinity")));
    for (index, spread) in list(spec, "topologySpreadConstraints").iter().enumerate() {
        let (key, at) = (text(spread, "topologyKey"), at.child("topologySpreadConstraints").index(index));
        warnings.extend(old_label(key).map(|what| format!("{}: {key} is {what}", at.child("topologyKey"))));
        warnings.extend(no_selector(spread, &at));
    }
    for (key, what) in OLD_ANNOTATIONS {
        if !annotations[key].is_null() {
            warnings.push(format!("{}: {what}", annotation(key)));
        }
    }
    for (index, volume) in list(spec, "volumes").iter().enumerate() {
        for (key, shown, what) in OLD_VOLUMES {
            if !volume[key].is_null() {
                warnings.push(format!("{}: {what}", at.child("volumes").index(index).child(shown)));
            }
        }
        paths::overlapping(volume, &mut warnings);
    }
    warnings.extend(repeated(spec, &at, "hostAliases", "ip"));
    warnings.extend(repeated(spec, &at, "imagePullSecrets", "name"));
    for (index, secret) in list(spec, "imagePullSecrets").iter().enumerate() {
        if text(secret, "name").is_empty() {
            warnings.push(format!(
                "{}: invalid empty name \"\"",
                at.child("imagePullSecrets").index(index).child("name")
            ));
        }
    }
    warnings.extend(fractions(&spec["overhead"], &at.child("overhead")));
    let unset = |of: &Value| of["securityContext"]["seccompProfile"].is_null();
    let seccomp = |key: &str| {
        let set = !annotations[key].is_null();
        set.then(|| {
            format!(
                r#"{}: non-functional in v1.27+; use the "seccompProfile" field instead"#,
                annotation(key)
            )
        })
    };
    if unset(spec) {
        warnings.extend(seccomp(SECCOMP_POD));
    }
    let template = !path.is_root();
    for (container, at) in containers(spec, &at) {
        if unset(container) {
            warnings.extend(seccomp(&format!("{SECCOMP_CONTAINER}{}", text(container, "name"))));
        }
        // A pod has taken what they choose.
        if template {
            let odd = profiles::annotated(pod, container);
            warnings.extend(odd.map(|key| format!("{}: {}", annotation(&key), profiles::OLD_APP_ARMOR)));
        }
        for kind in ["limits", "requests"] {
            warnings.extend(fractions(&container["resources"][kind], &at.child("resources").child(kind)));
        }
        warnings.extend(hidden_variables(container, &at));
    }
    warnings.extend(of_ports(spec, &at));
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0) {
        warnings.push(format!(
            "{}: must be >= 0; negative values are invalid and will be treated as 1",
            at.child("terminationGracePeriodSeconds")
        ));
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let (affinity, at) = (&spec["affinity"][kind], at.child("affinity").child(kind));
        let key = "requiredDuringSchedulingIgnoredDuringExecution";
        for (index, term) in list(affinity, key).iter().enumerate() {
            warnings.extend(no_selector(term, &at.child(key).index(index)));
        }
        let key = "preferredDuringSchedulingIgnoredDuringExecution";
        for (index, term) in list(affinity, key).iter().enumerate() {
            let at = at.child(key).index(index).child("podAffinityTerm");
            warnings.extend(no_selector(&term["podAffinityTerm"], &at));
        }
    }
    warnings
}

/// The containers of all kinds with their paths.
fn containers<'a>(spec: &'a Value, path: &FieldPath) -> Vec<(&'a Value, FieldPath)> {
    let of = |kind: &'static str| {
        let path = path.child(kind);
        list(spec, kind).iter().enumerate().map(move |(index, container)| (container, path.index(index)))
    };
    CONTAINERS.into_iter().flat_map(of).collect()
}

fn no_selector(of: &Value, path: &FieldPath) -> Option<String> {
    of["labelSelector"]
        .is_null()
        .then(|| format!("{}: a null labelSelector results in matching no pod", path.child("labelSelector")))
}

fn of_node_affinity(affinity: &Value, path: &FieldPath) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut term = |term: &Value, values, path: &FieldPath| warnings.extend(of_node_term(term, values, path));
    let key = "requiredDuringSchedulingIgnoredDuringExecution";
    for (index, one) in list(&affinity[key], "nodeSelectorTerms").iter().enumerate() {
        term(one, false, &path.child(key).child("nodeSelectorTerms").index(index));
    }
    let key = "preferredDuringSchedulingIgnoredDuringExecution";
    for (index, one) in list(affinity, key).iter().enumerate() {
        term(&one["preference"], true, &path.child(key).index(index).child("preference"));
    }
    warnings
}

fn of_node_term(term: &Value, values: bool, path: &FieldPath) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, expression) in list(term, "matchExpressions").iter().enumerate() {
        let (key, path) = (text(expression, "key"), path.child("matchExpressions").index(index));
        warnings.extend(old_label(key).map(|what| format!("{}: {key} is {what}", path.child("key"))));
        for (index, value) in list(expression, "values").iter().filter_map(Value::as_str).enumerate() {
            if values && !is_label_value(value) {
                let path = path.child("values").index(index);
                warnings.push(format!("{path}: {value} is invalid, {LABEL_VALUE}"));
            }
        }
    }
    warnings
}

/// Items of a list that say the same in one field as one before.
fn repeated(spec: &Value, path: &FieldPath, key: &str, field: &str) -> Vec<String> {
    let items = list(spec, key);
    let again =
        |index: usize| items[..index].iter().any(|before| text(before, field) == text(&items[index], field));
    let again = (0..items.len()).filter(|index| again(*index));
    again
        .map(|index| {
            let path = path.child(key).index(index).child(field);
            format!("{path}: duplicate {field} {:?}", text(&items[index], field))
        })
        .collect()
}

/// Bytes have no parts.
fn fractions(amounts: &Value, path: &FieldPath) -> Vec<String> {
    let odd = ["memory", "ephemeral-storage"].into_iter().filter_map(|name| {
        let given = amounts[name].as_str()?;
        let quantity = Quantity::parse(given)?;
        let whole = quantity.nanos() % 1_000_000_000 == 0;
        (!whole).then(|| {
            format!("{}: fractional byte value {given:?} is invalid, must be an integer", path.key(name))
        })
    });
    odd.collect()
}

/// Variables that are set twice, unless the later one builds on the earlier.
fn hidden_variables(container: &Value, path: &FieldPath) -> Vec<String> {
    let variables = list(container, "env");
    let hides = |index: &usize| {
        let variable = &variables[*index];
        let (name, value) = (text(variable, "name"), text(variable, "value"));
        let reference = format!("$({name})");
        let builds = variable["valueFrom"].is_null() && value != reference && value.contains(&reference);
        !builds && variables[..*index].iter().any(|before| text(before, "name") == name)
    };
    let hiding = (0..variables.len()).filter(hides);
    hiding
        .map(|index| {
            let name = text(&variables[index], "name");
            let path = path.child("env").index(index);
            format!("{path}: hides previous definition of {name:?}, which may be dropped when using apply")
        })
        .collect()
}

fn of_ports(spec: &Value, path: &FieldPath) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut all: BTreeMap<(i64, &str), Vec<(FieldPath, &Value)>> = BTreeMap::new();
    let containers = containers(spec, path);
    let ports = || {
        containers.iter().flat_map(|(container, path)| {
            let path = path.child("ports");
            list(container, "ports").iter().enumerate().map(move |(index, port)| (port, path.index(index)))
        })
    };
    let number = |port: &Value, key: &str| port[key].as_i64().unwrap_or_default();
    for (port, path) in ports() {
        let (host, ip) = (number(port, "hostPort"), text(port, "hostIP"));
        if !ip.is_empty() && host == 0 {
            warnings.push(format!(
                "{path}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{} Protocol:{} HostIP:{ip}}}",
                text(port, "name"),
                number(port, "containerPort"),
                text(port, "protocol")
            ));
        }
        let known = all.entry((number(port, "containerPort"), text(port, "protocol"))).or_default();
        for (other_path, other) in known.iter() {
            let (other_host, other_ip) = (number(other, "hostPort"), text(other, "hostIP"));
            let what = if (host, ip) == (other_host, other_ip) {
                "duplicate"
            } else if host == 0 || other_host == 0 {
                "overlapping"
            } else if host == other_host && ip.is_empty() != other_ip.is_empty() {
                "dangerously ambiguous"
            } else {
                continue;
            };
            warnings.push(format!("{path}: {what} port definition with {other_path}"));
        }
        known.push((path, port));
    }
    let mut names: BTreeMap<&str, FieldPath> = BTreeMap::new();
    for (port, path) in ports() {
        let name = text(port, "name");
        if name.is_empty() {
            continue;
        }
        match names.get(name) {
            Some(other) => warnings.push(format!(
                "{path}: duplicate port name {name:?} with {other}, services and probes that select ports by name will use {other}"
            )),
            None => drop(names.insert(name, path)),
        }
    }
    warnings
}
