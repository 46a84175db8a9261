//! Cells of the kinds that operators seldom list.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::age::{human, since};
use super::sources::{count, labels, list, or_none, text};

/// The cells of one object; `name` and `age` are those of most. `None` for kinds without a printer: they have a name and a time.
pub fn cells(group: &str, kind: &str, object: &Value, now: Timestamp) -> Option<Vec<Value>> {
    let (metadata, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
    let name = metadata["name"].clone();
    let age = Value::from(since(&metadata["creationTimestamp"], now));
    let flag = |key: &str, unset: bool| Value::from(spec[key].as_bool().unwrap_or(unset));
    let texts = |value: &Value| {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
    };
    let cells = match (group, kind) {
        ("", "ComponentStatus") => component(object, name),
        ("", "ResourceQuota") => {
            let [requests, limits] = quota(status);
            vec![name, requests.into(), limits.into(), age]
        }
        (
            "admissionregistration.k8s.io",
            "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration",
        ) => {
            vec![name, list(object, "webhooks").len().into(), age]
        }
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicy" | "ValidatingAdmissionPolicy") => {
            let rules = list(spec, "mutations").len() + list(spec, "validations").len();
            let param = &spec["paramKind"];
            let param = if param.is_object() {
                format!("{}/{}", text(param, "apiVersion"), text(param, "kind"))
            } else {
                "<unset>".to_owned()
            };
            vec![name, rules.into(), param.into(), age]
        }
        (
            "admissionregistration.k8s.io",
            "MutatingAdmissionPolicyBinding" | "ValidatingAdmissionPolicyBinding",
        ) => {
            vec![name, text(spec, "policyName").into(), param_name(&spec["paramRef"]).into(), age]
        }
        ("certificates.k8s.io", "CertificateSigningRequest") => {
            let duration =
                spec["expirationSeconds"].as_i64().map(|seconds| human(SignedDuration::from_secs(seconds)));
            vec![
                name,
                age,
                or_none(text(spec, "signerName")).into(),
                text(spec, "username").into(),
                duration.unwrap_or_else(|| "<none>".to_owned()).into(),
                request_status(status).into(),
            ]
        }
        ("certificates.k8s.io", "ClusterTrustBundle") => vec![name, or_none(text(spec, "signerName")).into()],
        ("certificates.k8s.io", "PodCertificateRequest") => {
            let mut states = list(status, "conditions").iter().map(|condition| text(condition, "type"));
            let state = states.rfind(|state| matches!(*state, "Issued" | "Denied" | "Failed"));
            vec![
                name,
                text(spec, "podName").into(),
                text(spec, "serviceAccountName").into(),
                text(spec, "nodeName").into(),
                text(spec, "signerName").into(),
                state.unwrap_or("Pending").into(),
                labels(&spec["unverifiedUserAnnotations"]).into(),
            ]
        }
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => {
            let method = or_none(text(&spec["distinguisherMethod"], "type"));
            let dangling =
                list(status, "conditions").iter().find(|condition| condition["type"] == "Dangling");
            vec![
                name,
                text(&spec["priorityLevelConfiguration"], "name").into(),
                count(spec, "matchingPrecedence").into(),
                method.into(),
                age,
                dangling.map_or("?", |condition| text(condition, "status")).into(),
            ]
        }
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => {
            let limited = &spec["limited"];
            let queuing = &limited["limitResponse"]["queuing"];
            let number = |value: &Value| if value.is_null() { "<none>".into() } else { value.clone() };
            vec![
                name,
                text(spec, "type").into(),
                number(&limited["nominalConcurrencyShares"]),
                number(&queuing["queues"]),
                number(&queuing["handSize"]),
                number(&queuing["queueLengthLimit"]),
                age,
            ]
        }
        ("networking.k8s.io", "IngressClass") => {
            let is_default = metadata["annotations"]["ingressclass.kubernetes.io/is-default-class"] == "true";
            let shown = format!("{}{}", text(metadata, "name"), if is_default { " (default)" } else { "" });
            vec![shown.into(), text(spec, "controller").into(), parameters(&spec["parameters"]).into(), age]
        }
        ("networking.k8s.io", "IPAddress") => vec![name, parent(&spec["parentRef"]).into(), age],
        ("networking.k8s.io", "ServiceCIDR") => vec![name, texts(&spec["cidrs"]).into(), age],
        ("node.k8s.io", "RuntimeClass") => vec![name, text(object, "handler").into(), age],
        ("resource.k8s.io", "DeviceClass" | "ResourceClaimTemplate") => vec![name, age],
        ("resource.k8s.io", "DeviceTaintRule") => {
            let taint = &spec["taint"];
            vec![
                name,
                text(taint, "key").into(),
                text(taint, "value").into(),
                text(taint, "effect").into(),
                if taint["timeAdded"].is_null() { "".into() } else { since(&taint["timeAdded"], now).into() },
                age,
            ]
        }
        ("resource.k8s.io", "ResourceClaim") => vec![name, claim_state(object).into(), age],
        ("resource.k8s.io", "ResourceSlice") => {
            let pool = text(&spec["pool"], "name");
            vec![name, text(spec, "nodeName").into(), text(spec, "driver").into(), pool.into(), age]
        }
        ("storage.k8s.io", "CSIDriver") => {
            let requests = spec["tokenRequests"].as_array();
            let requests = requests.map_or("<unset>".to_owned(), |all| {
                all.iter().map(|request| text(request, "audience")).collect::<Vec<_>>().join(",")
            });
            vec![
                name,
                flag("attachRequired", true),
                flag("podInfoOnMount", false),
                flag("storageCapacity", false),
                requests.into(),
                flag("requiresRepublish", false),
                or_none(&texts(&spec["volumeLifecycleModes"])).into(),
                age,
            ]
        }
        ("storage.k8s.io", "CSINode") => vec![name, list(spec, "drivers").len().into(), age],
        ("storage.k8s.io", "VolumeAttachment") => vec![
            name,
            text(spec, "attacher").into(),
            text(&spec["source"], "persistentVolumeName").into(),
            text(spec, "nodeName").into(),
            (status["attached"] == true).into(),
            age,
        ],
        ("storage.k8s.io", "VolumeAttributesClass") => vec![name, text(object, "driverName").into(), age],
        ("storagemigration.k8s.io", "StorageVersionMigration") => {
            let resource = &spec["resource"];
            let (group, plural) = (text(resource, "group"), text(resource, "resource"));
            let dot = if group.is_empty() { "" } else { "." };
            let done = list(status, "conditions").iter().filter(|condition| condition["status"] == "True");
            let mut states = done.map(|condition| text(condition, "type"));
            let state = states.rfind(|state| matches!(*state, "Running" | "Failed" | "Succeeded"));
            vec![name, format!("{plural}{dot}{group}").into(), state.unwrap_or("Unknown").into()]
        }
        _ => return None,
    };
    Some(cells)
}

fn component(object: &Value, name: Value) -> Vec<Value> {
    let healthy = list(object, "conditions").iter().find(|condition| condition["type"] == "Healthy");
    let Some(condition) = healthy else { return vec![name, "Unknown".into(), "".into(), "".into()] };
    let state = if condition["status"] == "True" { "Healthy" } else { "Unhealthy" };
    vec![name, state.into(), text(condition, "message").into(), text(condition, "error").into()]
}

/// What is used of what may be: requests, and limits.
fn quota(status: &Value) -> [String; 2] {
    let mut shown = [Vec::new(), Vec::new()];
    for (resource, hard) in status["hard"].as_object().into_iter().flatten() {
        let used = status["used"][resource].as_str().unwrap_or("0");
        let line = format!("{resource}: {used}/{}", hard.as_str().unwrap_or("0"));
        shown[usize::from(resource.starts_with("limits."))].push(line);
    }
    shown.map(|lines| lines.join(", "))
}

fn param_name(reference: &Value) -> String {
    match (text(reference, "namespace"), text(reference, "name")) {
        (_, "") if reference["selector"].is_object() => reference["selector"].to_string(),
        (_, "") => "<unset>".to_owned(),
        ("", name) => format!("*/{name}"),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}

fn request_status(status: &Value) -> String {
    let is = |kind: &str| list(status, "conditions").iter().any(|condition| condition["type"] == kind);
    let mut shown = if is("Denied") {
        "Denied".to_owned()
    } else if is("Approved") {
        "Approved".to_owned()
    } else {
        "Pending".to_owned()
    };
    if is("Failed") {
        shown.push_str(",Failed");
    }
    if !text(status, "certificate").is_empty() {
        shown.push_str(",Issued");
    }
    shown
}

fn parameters(reference: &Value) -> String {
    if !reference.is_object() {
        return "<none>".to_owned();
    }
    let group = reference["apiGroup"].as_str().map_or_else(String::new, |group| format!(".{group}"));
    format!("{}{group}/{}", text(reference, "kind"), text(reference, "name"))
}

fn parent(reference: &Value) -> String {
    if !reference.is_object() {
        return "<none>".to_owned();
    }
    let (group, namespace) = (text(reference, "group"), text(reference, "namespace"));
    let dot = if group.is_empty() { "" } else { "." };
    let resource = format!("{}{dot}{group}", text(reference, "resource")).to_lowercase();
    let slash = if namespace.is_empty() { "" } else { "/" };
    format!("{resource}{slash}{namespace}/{}", text(reference, "name"))
}

fn claim_state(claim: &Value) -> String {
    let mut states = Vec::new();
    let deleted = !claim["metadata"]["deletionTimestamp"].is_null();
    if deleted {
        states.push("deleted");
    }
    if claim["status"]["allocation"].is_null() {
        if !deleted {
            states.push("pending");
        }
    } else {
        states.push("allocated");
        if !list(&claim["status"], "reservedFor").is_empty() {
            states.push("reserved");
        }
    }
    states.join(",")
}
