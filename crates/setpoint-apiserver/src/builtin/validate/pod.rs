//! Pods and pod templates.

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::{
    container::{self, Pod},
    errors::Errors,
    security, selector, volume,
};
use crate::{
    builtin::{
        edit::{copy, list, text},
        pod_resources, profiles,
    },
    object_meta::{NameRule, check_qualified, is_label},
};

/// Checks a new pod or an update of one.
pub fn pod(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let path = FieldPath::from("spec");
    if let Some(old) = old {
        update(errors, &new["spec"], &old["spec"], &path);
    }
    spec(errors, &new["spec"], &path, &[]);
    annotations(errors, &new["metadata"], &FieldPath::from("metadata"));
    if old.is_some() {
        return;
    }
    for key in ["containers", "initContainers"] {
        for (index, container) in list(&new["spec"], key).iter().enumerate() {
            let image = text(container, "image");
            if image != image.trim() {
                let path = path.child(key).index(index).child("image");
                errors.invalid(&path, image, "must not have leading or trailing whitespace");
            }
        }
    }
    if !list(&new["spec"], "ephemeralContainers").is_empty() {
        errors.forbidden(&path.child("ephemeralContainers"), "cannot be set on create");
    }
    let gated = !list(&new["spec"], "schedulingGates").is_empty();
    if gated && !text(&new["spec"], "nodeName").is_empty() {
        let detail = "cannot be set until all schedulingGates have been cleared";
        errors.forbidden(&path.child("nodeName"), detail);
    }
}

/// Checks a `{metadata, spec}` template. `claims` are the names of claim templates, which can be mounted like volumes.
pub fn template(errors: &mut Errors, template: &Value, path: &FieldPath, claims: &[&str]) {
    // As upstream, which leaves out the metadata here.
    errors.labels(&path.child("labels"), &template["metadata"]["labels"]);
    for key in template["metadata"]["annotations"].as_object().into_iter().flatten().map(|(key, _)| key) {
        for problem in check_qualified(&key.to_lowercase()) {
            errors.invalid(&path.child("annotations"), key.as_str(), problem);
        }
    }
    annotations(errors, &template["metadata"], path);
    spec(errors, &template["spec"], &path.child("spec"), claims);
}

/// Annotations that once chose profiles.
fn annotations(errors: &mut Errors, metadata: &Value, path: &FieldPath) {
    for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
        let seccomp = key == profiles::SECCOMP_POD || key.starts_with(profiles::SECCOMP_CONTAINER);
        let chosen = value.as_str().unwrap_or_default();
        if seccomp && !profiles::is_seccomp(chosen) {
            errors.invalid(&path.child("annotations").child(key), chosen, "must be a valid seccomp profile");
        }
    }
}

fn spec(errors: &mut Errors, spec: &Value, path: &FieldPath, claims: &[&str]) {
    let mut volumes = volume::all(errors, spec, path);
    volumes.extend(claims);
    container::all(errors, &Pod { spec, volumes }, path);
    errors.one_of(spec, path, "restartPolicy", &["Always", "OnFailure", "Never"]);
    errors.in_range(spec, path, "activeDeadlineSeconds", 1, i64::from(i32::MAX));
    errors.labels(&path.child("nodeSelector"), &spec["nodeSelector"]);
    security::pod(errors, &spec["securityContext"], &path.child("securityContext"));
    for key in profiles::CONTAINERS {
        for (index, container) in list(spec, key).iter().enumerate() {
            let mount = text(&container["securityContext"], "procMount");
            if mount == "Unmasked" && spec["hostUsers"] != false {
                let path = path.child(key).index(index).child("securityContext").child("procMount");
                errors.invalid(&path, mount, "`hostUsers` must be false to use `Unmasked`");
            }
        }
    }
    for key in ["serviceAccountName", "nodeName", "priorityClassName", "runtimeClassName"] {
        if !text(spec, key).is_empty() {
            errors.name(&path.child(key), text(spec, key), NameRule::Subdomain);
        }
    }
    let host = text(spec, "hostname");
    if !host.is_empty() {
        errors.name(&path.child("hostname"), host, NameRule::Label);
    }
    let domain = text(spec, "subdomain");
    if !domain.is_empty() && !is_label(domain) {
        if domain.contains('.') {
            errors.invalid(&path.child("subdomain"), domain, "must not contain dots");
        } else {
            errors.name(&path.child("subdomain"), domain, NameRule::Label);
        }
    }
    dns(errors, spec, path);
    for (index, alias) in list(spec, "hostAliases").iter().enumerate() {
        let path = path.child("hostAliases").index(index);
        errors.ip(&path.child("ip"), text(alias, "ip"));
        for (index, name) in list(alias, "hostnames").iter().filter_map(Value::as_str).enumerate() {
            errors.name(&path.child("hostnames").index(index), name, NameRule::Subdomain);
        }
    }
    for (index, gate) in list(spec, "readinessGates").iter().enumerate() {
        let path = path.child("readinessGates").index(index).child("conditionType");
        errors.qualified(&path, text(gate, "conditionType"));
    }
    if spec["os"].is_object() && errors.present(&spec["os"], &path.child("os"), "name") {
        let os = text(&spec["os"], "name");
        if !matches!(os, "linux" | "windows") {
            errors.unsupported(&path.child("os"), os, &["linux", "windows"]);
        }
    }
    if spec["hostUsers"] == false {
        for key in ["hostNetwork", "hostPID", "hostIPC"] {
            if spec[key] == true {
                errors.forbidden(&path.child(key), "when `hostUsers` is false");
            }
        }
    }
    if spec["hostPID"] == true && spec["shareProcessNamespace"] == true {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.invalid(&path.child("shareProcessNamespace"), true, detail);
    }
    pod_resources::check(errors, spec, path);
    resource_claims(errors, spec, path);
    gates(errors, spec, path);
    tolerations(errors, spec, path, &["Equal", "Exists"]);
    spread(errors, spec, path);
    affinity(errors, &spec["affinity"], &path.child("affinity"));
}

const SEARCH: &str = r"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')";

fn dns(errors: &mut Errors, spec: &Value, path: &FieldPath) {
    errors.one_of(spec, path, "dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]);
    let (config, at) = (&spec["dnsConfig"], path.child("dnsConfig"));
    let servers = list(config, "nameservers");
    if spec["dnsPolicy"] == "None" {
        if config.is_null() {
            errors.required(&at, "must provide `dnsConfig` when `dnsPolicy` is None");
        } else if servers.is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.required(&at.child("nameservers"), detail);
        }
    }
    if servers.len() > 3 {
        let detail = "must not have more than 3 nameservers";
        errors.invalid(&at.child("nameservers"), servers, detail);
    }
    for (index, server) in servers.iter().filter_map(Value::as_str).enumerate() {
        errors.ip(&at.child("nameservers").index(index), server);
    }
    for (index, search) in list(config, "searches").iter().filter_map(Value::as_str).enumerate() {
        // One dot stands for the root, and underscores are common in search paths.
        let name = search.strip_suffix('.').unwrap_or(search).replace('_', "a");
        let problems = if search == "." { Vec::new() } else { NameRule::Subdomain.check(&name, false) };
        for problem in problems {
            let long = problem.starts_with("must be no more");
            let path = at.child("searches").index(index);
            let detail = if long { problem.as_str() } else { SEARCH };
            errors.invalid(&path, search.strip_suffix('.').unwrap_or(search), detail);
        }
    }
    for (index, option) in list(config, "options").iter().enumerate() {
        if text(option, "name").is_empty() {
            errors.required(&at.child("options").index(index), "must not be empty");
        }
    }
}

fn resource_claims(errors: &mut Errors, spec: &Value, path: &FieldPath) {
    let mut names = std::collections::BTreeSet::new();
    for (index, claim) in list(spec, "resourceClaims").iter().enumerate() {
        let path = path.child("resourceClaims").index(index);
        if errors.present(claim, &path, "name") {
            if names.insert(text(claim, "name")) {
                errors.name(&path.child("name"), text(claim, "name"), NameRule::Label);
            } else {
                errors.duplicate(&path.child("name"), text(claim, "name"));
            }
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        for key in sources {
            if let Some(name) = claim[key].as_str() {
                errors.name(&path.child(key), name, NameRule::Subdomain);
            }
        }
        match sources.iter().filter(|key| claim[**key].is_string()).count() {
            0 => {
                let detail = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
                errors.invalid(&path, claim.clone(), detail);
            }
            1 => {}
            _ => {
                let detail =
                    "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
                errors.invalid(&path, claim.clone(), detail);
            }
        }
    }
}

fn gates(errors: &mut Errors, spec: &Value, path: &FieldPath) {
    let gates = list(spec, "schedulingGates");
    for (index, gate) in gates.iter().enumerate() {
        let path = path.child("schedulingGates").index(index);
        errors.qualified(&path, text(gate, "name"));
        if gates[..index].iter().any(|other| other["name"] == gate["name"]) {
            errors.duplicate(&path, text(gate, "name"));
        }
    }
}

/// Checks tolerations; `operators` are those that are in use.
pub fn tolerations(errors: &mut Errors, spec: &Value, path: &FieldPath, operators: &[&str]) {
    for (index, toleration) in list(spec, "tolerations").iter().enumerate() {
        let path = path.child("tolerations").index(index);
        let (key, operator) = (text(toleration, "key"), text(toleration, "operator"));
        if !key.is_empty() {
            errors.qualified(&path.child("key"), key);
        }
        if key.is_empty() && operator != "Exists" {
            let detail =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.invalid(&path.child("operator"), operator, detail);
        }
        let effect = text(toleration, "effect");
        if !toleration["tolerationSeconds"].is_null() && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.invalid(&path.child("effect"), effect, detail);
        }
        let value = text(toleration, "value");
        match operator {
            "" | "Equal" => errors.label_value(&path.child("operator"), value),
            "Exists" if !value.is_empty() => {
                let detail = "value must be empty when `operator` is 'Exists'";
                errors.invalid(&path.child("operator"), value, detail);
            }
            "Exists" => {}
            other => errors.unsupported(&path.child("operator"), other, operators),
        }
        errors.one_of(toleration, &path, "effect", &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
    }
}

fn spread(errors: &mut Errors, spec: &Value, path: &FieldPath) {
    const OTHERWISE: [&str; 2] = ["DoNotSchedule", "ScheduleAnyway"];
    let constraints = list(spec, "topologySpreadConstraints");
    for (index, constraint) in constraints.iter().enumerate() {
        let path = path.child("topologySpreadConstraints").index(index);
        let (key, otherwise) = (text(constraint, "topologyKey"), text(constraint, "whenUnsatisfiable"));
        if constraint["maxSkew"].as_i64().unwrap_or(0) <= 0 {
            let skew = constraint["maxSkew"].as_i64().unwrap_or(0);
            errors.invalid(&path.child("maxSkew"), skew, "must be greater than zero");
        }
        if key.is_empty() {
            errors.required(&path.child("topologyKey"), "can not be empty");
        }
        if !OTHERWISE.contains(&otherwise) {
            errors.unsupported(&path.child("whenUnsatisfiable"), otherwise, &OTHERWISE);
        }
        if let Some(least) = constraint["minDomains"].as_i64() {
            if least <= 0 {
                errors.invalid(&path.child("minDomains"), least, "must be greater than zero");
            }
            if otherwise != "DoNotSchedule" {
                let detail =
                    format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {otherwise}");
                errors.invalid(&path.child("minDomains"), least, detail);
            }
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            errors.one_of(constraint, &path, policy, &["Honor", "Ignore"]);
        }
        let same = |other: &Value| {
            other["topologyKey"] == constraint["topologyKey"]
                && other["whenUnsatisfiable"] == constraint["whenUnsatisfiable"]
        };
        // Upstream looks ahead: the first of two is the one it names.
        if constraints[index + 1..].iter().any(same) {
            let path = path.child("{topologyKey, whenUnsatisfiable}");
            errors.duplicate(&path, format!("{{{key}, {otherwise}}}"));
        }
        if constraint["labelSelector"].is_object() {
            selector::check(errors, &constraint["labelSelector"], &path.child("labelSelector"));
        } else if !list(constraint, "matchLabelKeys").is_empty() {
            let detail = "must not be specified when labelSelector is not set";
            errors.forbidden(&path.child("matchLabelKeys"), detail);
        }
    }
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn affinity(errors: &mut Errors, affinity: &Value, path: &FieldPath) {
    let weight = |errors: &mut Errors, term: &Value, path: &FieldPath| {
        if !term["weight"].as_i64().is_some_and(|weight| (1..=100).contains(&weight)) {
            let weight = term["weight"].as_i64().unwrap_or(0);
            errors.invalid(&path.child("weight"), weight, "must be in the range 1-100");
        }
    };
    for key in ["podAffinity", "podAntiAffinity"] {
        let (terms, path) = (&affinity[key], path.child(key));
        for (index, term) in list(terms, REQUIRED).iter().enumerate() {
            affinity_term(errors, term, &path.child(REQUIRED).index(index));
        }
        for (index, weighted) in list(terms, PREFERRED).iter().enumerate() {
            let path = path.child(PREFERRED).index(index);
            weight(errors, weighted, &path);
            affinity_term(errors, &weighted["podAffinityTerm"], &path.child("podAffinityTerm"));
        }
    }
    let path = path.child("nodeAffinity");
    let nodes = &affinity["nodeAffinity"];
    if nodes[REQUIRED].is_object() {
        selector::nodes(errors, &nodes[REQUIRED], &path.child(REQUIRED));
    }
    for (index, term) in list(nodes, PREFERRED).iter().enumerate() {
        let path = path.child(PREFERRED).index(index);
        weight(errors, term, &path);
        selector::node_term(errors, &term["preference"], &path.child("preference"), false);
    }
}

fn affinity_term(errors: &mut Errors, term: &Value, path: &FieldPath) {
    for key in ["labelSelector", "namespaceSelector"] {
        if term[key].is_object() {
            selector::check(errors, &term[key], &path.child(key));
        }
    }
    for name in list(term, "namespaces").iter().filter_map(Value::as_str) {
        errors.name(&path.child("namespace"), name, NameRule::Label);
    }
    for key in ["matchLabelKeys", "mismatchLabelKeys"] {
        if !list(term, key).is_empty() && term["labelSelector"].is_null() {
            errors.forbidden(&path.child(key), "must not be specified when labelSelector is not set");
        }
    }
    let key = text(term, "topologyKey");
    if key.is_empty() {
        errors.required(&path.child("topologyKey"), "can not be empty");
    }
    errors.qualified(&path.child("topologyKey"), key);
}

/// What an update of a pod may change is little.
fn update(errors: &mut Errors, new: &Value, old: &Value, path: &FieldPath) {
    const FORBIDDEN: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
    let before = errors.len();
    for key in ["containers", "initContainers"] {
        if list(new, key).len() != list(old, key).len() {
            errors.forbidden(&path.child(key), "pod updates may not add or remove containers");
            return;
        }
    }
    let deadline_path = path.child("activeDeadlineSeconds");
    if new["activeDeadlineSeconds"] != old["activeDeadlineSeconds"] {
        match (new["activeDeadlineSeconds"].as_i64(), old["activeDeadlineSeconds"].as_i64()) {
            (Some(now), _) if !(0..=i64::from(i32::MAX)).contains(&now) => {
                errors.in_range(new, path, "activeDeadlineSeconds", 0, i64::from(i32::MAX));
            }
            (Some(now), Some(before)) if now > before => {
                errors.invalid(&deadline_path, now, "must be less than or equal to previous value");
            }
            (None, Some(_)) => {
                let detail = "must not update from a positive integer to nil value";
                errors.invalid(&deadline_path, Value::Null, detail);
            }
            _ => {}
        }
    }
    errors.in_range(new, path, "activeDeadlineSeconds", 1, i64::from(i32::MAX));
    let kept = |old: &Value| list(new, "tolerations").iter().any(|new| same_toleration(new, old));
    if !list(old, "tolerations").iter().all(kept) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.forbidden(&path.child("tolerations"), detail);
    }
    for (index, gate) in list(new, "schedulingGates").iter().enumerate() {
        if !list(old, "schedulingGates").contains(gate) {
            let path = path.child("schedulingGates").index(index).child("name");
            let detail =
                format!("only deletion is allowed, but found new scheduling gate '{}'", text(gate, "name"));
            errors.forbidden(&path, &detail);
        }
    }
    if errors.len() > before
        && list(new, "containers").iter().all(|container| !text(container, "image").is_empty())
    {
        return;
    }
    // The new pod with everything as it was that may change.
    let mut allowed = new.clone();
    for key in ["containers", "initContainers"] {
        for (index, container) in list(old, key).iter().enumerate() {
            copy(&mut allowed[key][index], container, "image");
        }
    }
    for key in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        copy(&mut allowed, old, key);
    }
    if old["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0)
        && new["terminationGracePeriodSeconds"].as_i64() == Some(1)
    {
        copy(&mut allowed, old, "terminationGracePeriodSeconds");
    }
    // Before a gated pod can be scheduled, whoever holds the gate may say more exactly where.
    if !list(old, "schedulingGates").is_empty() {
        if allowed["nodeSelector"] != old["nodeSelector"] {
            let pairs = |spec: &Value| spec["nodeSelector"].as_object().cloned().unwrap_or_default();
            let more = pairs(new);
            if pairs(old).iter().any(|(key, value)| more.get(key) != Some(value)) {
                let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
                errors.invalid(&path.child("nodeSelector"), new["nodeSelector"].clone(), detail);
                return;
            }
            copy(&mut allowed, old, "nodeSelector");
        }
        restricted_affinity(errors, new, old, &mut allowed, path);
    }
    if allowed != *old {
        errors.forbidden_change(path, FORBIDDEN, SPEC, [old, &allowed]);
    }
}

const SPEC: &str = "io.k8s.api.core.v1.PodSpec";

/// A gated pod's node affinity may be set, and narrowed by more expressions.
fn restricted_affinity(errors: &mut Errors, new: &Value, old: &Value, allowed: &mut Value, path: &FieldPath) {
    let terms =
        |spec: &Value| list(&spec["affinity"]["nodeAffinity"][REQUIRED], "nodeSelectorTerms").to_vec();
    let (now, before) = (terms(new), terms(old));
    if now != before && !before.is_empty() {
        let path = path.child("affinity.nodeAffinity").child(REQUIRED).child("nodeSelectorTerms");
        let narrowed = |(new, old): (&Value, &Value)| {
            ["matchExpressions", "matchFields"]
                .iter()
                .all(|key| list(old, key).iter().all(|one| list(new, key).contains(one)))
        };
        if now.len() != before.len() {
            let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
            errors.invalid(&path, Value::Array(now), detail);
            return;
        }
        if let Some(index) = now.iter().zip(&before).position(|pair| !narrowed(pair)) {
            let detail = "only additions are allowed (no mutations or deletions)";
            errors.invalid(&path.index(index), now[index].clone(), detail);
            return;
        }
    }
    let mut affinity = new["affinity"].clone();
    if affinity.is_object() || old["affinity"].is_object() {
        if affinity.is_null() {
            affinity = serde_json::json!({});
        }
        copy(&mut affinity, &old["affinity"], "nodeAffinity");
        if affinity == serde_json::json!({}) && old["affinity"].is_null() {
            crate::builtin::edit::remove(allowed, "affinity");
        } else {
            allowed["affinity"] = affinity;
        }
    }
}

/// Ephemeral containers may be added, and never changed or removed.
pub fn ephemeral_containers(errors: &mut Errors, new: &Value, old: &Value) {
    const CONTAINER: &str = "io.k8s.api.core.v1.EphemeralContainer";
    let (spec, path) = (&new["spec"], FieldPath::from("spec.ephemeralContainers"));
    let volumes = list(spec, "volumes").iter().map(|volume| text(volume, "name")).collect();
    let pod = Pod { spec, volumes };
    let names = |key: &str| list(spec, key).iter().map(|one| text(one, "name")).collect::<Vec<_>>();
    let mut taken = [names("containers"), names("initContainers")].concat();
    for (index, one) in list(spec, "ephemeralContainers").iter().enumerate() {
        let path = path.index(index);
        let name = text(one, "name");
        if errors.present(one, &path, "name") {
            errors.name(&path.child("name"), name, NameRule::Label);
            if taken.contains(&name) {
                errors.duplicate(&path.child("name"), name);
            }
            taken.push(name);
        }
        let target = text(one, "targetContainerName");
        if !target.is_empty() && !names("containers").contains(&target) {
            errors.not_found(&path.child("targetContainerName"), target);
        }
        container::ephemeral(errors, one, &pod, &path);
    }
    for before in list(&old["spec"], "ephemeralContainers") {
        let name = text(before, "name");
        match list(spec, "ephemeralContainers").iter().find(|now| text(now, "name") == name) {
            None => {
                errors.forbidden(
                    &path,
                    &format!("existing ephemeral containers {name:?} may not be removed\n"),
                );
            }
            Some(now) if now != before => {
                let detail = format!("existing ephemeral containers {name:?} may not be changed");
                errors.forbidden_change(&path, &detail, CONTAINER, [before, now]);
            }
            Some(_) => {}
        }
    }
}

/// Copies the resources of containers, by position.
pub fn copy_resources(into: &mut Value, from: &Value) {
    for key in ["containers", "initContainers"] {
        let sources = list(from, key).to_vec();
        for (container, source) in crate::builtin::edit::items(into, key).zip(&sources) {
            copy(container, source, "resources");
        }
    }
}

/// A resize changes cpu and memory of containers, and nothing else that matters.
pub fn resize(errors: &mut Errors, new: &Value, old: &Value) {
    let path = FieldPath::from("spec");
    let class = |pod: &Value| crate::builtin::class_of(pod);
    if class(new) != class(old) {
        errors.invalid(&path, class(old), "Pod QOS Class may not change as a result of resizing");
    }
    for key in ["containers", "initContainers"] {
        let (now, before) = (list(&new["spec"], key), list(&old["spec"], key));
        if now.len() != before.len() {
            let detail = format!("{key} may not be added or removed on resize");
            errors.forbidden(&path.child(key), &detail);
            return;
        }
        for (index, (now, before)) in now.iter().zip(before).enumerate() {
            let path = path.child(key).index(index).child("resources");
            container::resources(errors, &now["resources"], &path);
            resized(errors, now, before, &path);
        }
    }
    let mut allowed = new["spec"].clone();
    copy_resources(&mut allowed, &old["spec"]);
    if allowed != old["spec"] {
        let detail = "only cpu and memory resources are mutable";
        errors.forbidden_change(&path, detail, SPEC, [&old["spec"], &allowed]);
    }
}

fn resized(errors: &mut Errors, new: &Value, old: &Value, path: &FieldPath) {
    if new["resources"] == old["resources"] {
        return;
    }
    for key in ["limits", "requests"] {
        let (now, before) = (&new["resources"][key], &old["resources"][key]);
        let names = |value: &Value| {
            value.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect::<Vec<_>>()
        };
        for name in names(before) {
            if matches!(name.as_str(), "cpu" | "memory") && now.get(&name).is_none() {
                errors.forbidden(&path.child(key), &format!("resource {key} cannot be removed"));
                break;
            }
        }
        for name in [names(now), names(before)].concat() {
            if !matches!(name.as_str(), "cpu" | "memory") && now.get(&name) != before.get(&name) {
                errors.forbidden(&FieldPath::from("spec"), "only cpu and memory resources are mutable");
                return;
            }
        }
    }
}

/// The status of a pod is its kubelet's; a few things never change.
pub fn status(errors: &mut Errors, new: &Value, old: &Value) {
    let path = FieldPath::from("status");
    for (index, address) in list(&new["status"], "podIPs").iter().enumerate() {
        let address = text(address, "ip");
        if address.parse::<std::net::IpAddr>().is_err() {
            errors.ip(&path.child("podIPs").index(index), address);
        }
    }
    errors.immutable(&new["status"], &old["status"], &path, "qosClass");
}

fn same_toleration(a: &Value, b: &Value) -> bool {
    ["key", "operator", "value", "effect"].iter().all(|key| text(a, key) == text(b, key))
}
