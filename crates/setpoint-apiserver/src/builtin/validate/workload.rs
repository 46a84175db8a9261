//! Kinds that make pods.

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::{errors::Errors, pod, selector, storage};
use crate::{
    builtin::edit::{is_empty, list, text},
    object_meta::NameRule,
};

/// Checks `spec.selector` and `spec.template`, and that one selects the other. Pods of long-running kinds always restart and have no deadline.
fn selector_and_template(
    errors: &mut Errors,
    kind: &str,
    of: &str,
    spec: &Value,
    path: &FieldPath,
    claims: &[&str],
) {
    let selector_path = path.child("selector");
    let usable = spec["selector"].is_null() || selector::check(errors, &spec["selector"], &selector_path);
    if spec["selector"].is_null() {
        errors.required(&selector_path, "");
    } else if !usable && of != "DaemonSet" {
        // Nothing is said about a template that cannot be compared.
        let detail = if of == "StatefulSet" { "" } else { "invalid label selector" };
        return errors.invalid(&selector_path, spec["selector"].clone(), detail);
    }
    let empty = !spec["selector"].is_null() && selector::is_empty(&spec["selector"]);
    if empty {
        let detail = format!("empty selector is invalid for {kind}");
        errors.invalid(&selector_path, spec["selector"].clone(), detail);
    }
    let template = path.child("template");
    let labels = &spec["template"]["metadata"]["labels"];
    let selected = !spec["selector"].is_null() && selector::selects(&spec["selector"], labels);
    if !empty && !selected && usable {
        let detail = "`selector` does not match template `labels`";
        errors.invalid(&template.child("metadata.labels"), labels.clone(), detail);
    }
    pod::template(errors, &spec["template"], &template, claims);
    always_restarts(errors, of, spec, path);
}

/// Long-running kinds: pods always restart and have no deadline.
fn always_restarts(errors: &mut Errors, kind: &str, spec: &Value, path: &FieldPath) {
    let (pod, path) = (&spec["template"]["spec"], path.child("template.spec"));
    let policy = text(pod, "restartPolicy");
    if !matches!(policy, "" | "Always") {
        errors.unsupported(&path.child("restartPolicy"), policy, &["Always"]);
    }
    if !pod["activeDeadlineSeconds"].is_null() {
        let detail = format!("activeDeadlineSeconds in {kind} is not Supported");
        errors.forbidden(&path.child("activeDeadlineSeconds"), &detail);
    }
}

fn counts(errors: &mut Errors, spec: &Value, path: &FieldPath) {
    for key in ["replicas", "minReadySeconds", "revisionHistoryLimit"] {
        errors.not_negative(spec, path, key);
    }
}

pub fn stateful_set(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    let templates = list(spec, "volumeClaimTemplates");
    let claims: Vec<_> = templates.iter().map(|template| text(&template["metadata"], "name")).collect();
    selector_and_template(errors, "statefulset", "StatefulSet", spec, &path, &claims);
    for key in ["replicas", "minReadySeconds"] {
        errors.not_negative(spec, &path, key);
    }
    let management = text(spec, "podManagementPolicy");
    if !matches!(management, "OrderedReady" | "Parallel") {
        let detail = "must be 'OrderedReady' or 'Parallel'";
        errors.invalid(&path.child("podManagementPolicy"), management, detail);
    }
    let (strategy, strategy_path) = (&spec["updateStrategy"], path.child("updateStrategy"));
    let rolling = strategy_path.child("rollingUpdate");
    match text(strategy, "type") {
        "RollingUpdate" => {
            errors.not_negative(&strategy["rollingUpdate"], &rolling, "partition");
            errors.count_or_percent(&strategy["rollingUpdate"], &rolling, "maxUnavailable");
            if is_zero(&strategy["rollingUpdate"]["maxUnavailable"]) {
                let value = strategy["rollingUpdate"]["maxUnavailable"].clone();
                errors.invalid(&rolling.child("maxUnavailable"), value, "cannot be 0");
            }
        }
        "OnDelete" => {
            if !strategy["rollingUpdate"].is_null() {
                let detail = "only allowed for updateStrategy 'RollingUpdate'";
                errors.invalid(&rolling, strategy["rollingUpdate"].clone(), detail);
            }
        }
        _ => errors.invalid(&strategy_path, strategy.clone(), "must be 'RollingUpdate' or 'OnDelete'"),
    }
    let retention = path.child("persistentVolumeClaimRetentionPolicy");
    for key in ["whenDeleted", "whenScaled"] {
        errors.one_of(&spec["persistentVolumeClaimRetentionPolicy"], &retention, key, &["Retain", "Delete"]);
    }
    errors.not_negative(&spec["ordinals"], &path.child("ordinals"), "start");
    let service = text(spec, "serviceName");
    // An update changes neither this nor the templates of claims.
    if !service.is_empty() && old.is_none() {
        errors.name(&path.child("serviceName"), service, NameRule::Label);
    }
    // Claims become volumes of the pods, beside those of the template.
    let volumes = list(&spec["template"]["spec"], "volumes").len();
    for (index, claim) in claims.iter().enumerate() {
        let path = path.child("template.spec.volumes").index(volumes + index).child("name");
        errors.name(&path, claim, NameRule::Label);
    }
    for (index, template) in templates.iter().enumerate().filter(|_| old.is_none()) {
        let path = path.child("volumeClaimTemplates").index(index).child("spec");
        storage::claim_spec(errors, &template["spec"], &path);
    }
    if let Some(old) = old {
        for key in ["selector", "volumeClaimTemplates", "serviceName", "podManagementPolicy"] {
            errors.immutable(spec, &old["spec"], &path, key);
        }
    }
}

/// Whether a count or a percentage comes to nothing; what cannot be read counts as that.
fn is_zero(value: &Value) -> bool {
    let share = |text: &str| text.strip_suffix('%').and_then(|digits| digits.parse::<u64>().ok());
    value.as_str().map_or(value.as_i64() == Some(0), |text| share(text).unwrap_or(0) == 0)
}

pub fn deployment(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    selector_and_template(errors, "deployment", "Deployment", spec, &path, &[]);
    counts(errors, spec, &path);
    if let Some(deadline) = spec["progressDeadlineSeconds"].as_i64() {
        errors.not_negative(spec, &path, "progressDeadlineSeconds");
        if deadline <= spec["minReadySeconds"].as_i64().unwrap_or(0) {
            let detail = "must be greater than minReadySeconds";
            errors.invalid(&path.child("progressDeadlineSeconds"), deadline, detail);
        }
    }
    let (strategy, path_of) = (&spec["strategy"], path.child("strategy"));
    let rolling = path_of.child("rollingUpdate");
    match text(strategy, "type") {
        "Recreate" => {
            if !strategy["rollingUpdate"].is_null() {
                errors.forbidden(&rolling, "may not be specified when strategy `type` is 'Recreate'");
            }
        }
        "RollingUpdate" => {
            let update = &strategy["rollingUpdate"];
            errors.count_or_percent(update, &rolling, "maxUnavailable");
            errors.count_or_percent(update, &rolling, "maxSurge");
            errors.at_most_all(update, &rolling, "maxUnavailable");
            if is_zero(&update["maxUnavailable"]) && is_zero(&update["maxSurge"]) {
                let path = rolling.child("maxUnavailable");
                errors.invalid(&path, update["maxUnavailable"].clone(), "may not be 0 when `maxSurge` is 0");
            }
        }
        _ => errors.unsupported(&path_of, strategy.clone(), &["Recreate", "RollingUpdate"]),
    }
    if let Some(old) = old {
        errors.immutable(spec, &old["spec"], &path, "selector");
    }
}

pub fn replica_set(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    selector_and_template(errors, "deployment", "ReplicaSet", spec, &path, &[]);
    counts(errors, spec, &path);
    if let Some(old) = old {
        errors.immutable(spec, &old["spec"], &path, "selector");
    }
}

pub fn replication_controller(errors: &mut Errors, new: &Value) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    counts(errors, spec, &path);
    if spec["selector"].as_object().is_none_or(serde_json::Map::is_empty) {
        errors.required(&path.child("selector"), "");
    }
    if errors.present(spec, &path, "template") {
        let labels = &spec["template"]["metadata"]["labels"];
        if !selector::selects(&serde_json::json!({"matchLabels": spec["selector"]}), labels) {
            let detail = "`selector` does not match template `labels`";
            errors.invalid(&path.child("template.metadata.labels"), labels.clone(), detail);
        }
        pod::template(errors, &spec["template"], &path.child("template"), &[]);
        always_restarts(errors, "ReplicationController", spec, &path);
    }
}

pub fn daemon_set(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    selector_and_template(errors, "daemonset", "DaemonSet", spec, &path, &[]);
    counts(errors, spec, &path);
    let (strategy, strategy_path) = (&spec["updateStrategy"], path.child("updateStrategy"));
    let (update, rolling) = (&strategy["rollingUpdate"], strategy_path.child("rollingUpdate"));
    match text(strategy, "type") {
        "OnDelete" => {}
        "RollingUpdate" => {
            errors.count_or_percent(update, &rolling, "maxUnavailable");
            errors.count_or_percent(update, &rolling, "maxSurge");
            match (is_zero(&update["maxUnavailable"]), is_zero(&update["maxSurge"])) {
                (true, true) => {
                    errors.required(&rolling.child("maxUnavailable"), "cannot be 0 when maxSurge is 0");
                }
                (false, false) => {
                    let detail = "may not be set when maxUnavailable is non-zero";
                    errors.invalid(&rolling.child("maxSurge"), update["maxSurge"].clone(), detail);
                }
                _ => {}
            }
        }
        _ => errors.unsupported(&strategy_path, strategy.clone(), &["RollingUpdate", "OnDelete"]),
    }
    if let Some(old) = old {
        errors.immutable(spec, &old["spec"], &path, "selector");
    }
}

pub fn disruption_budget(errors: &mut Errors, new: &Value) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    let given = |key: &str| !is_empty(&spec[key]);
    if given("minAvailable") && given("maxUnavailable") {
        let detail = "minAvailable and maxUnavailable cannot be both set";
        errors.invalid(&path, spec.clone(), detail);
    }
    errors.one_of(spec, &path, "unhealthyPodEvictionPolicy", &["AlwaysAllow", "IfHealthyBudget"]);
    for key in ["minAvailable", "maxUnavailable"] {
        errors.count_or_percent(spec, &path, key);
        errors.at_most_all(spec, &path, key);
    }
    selector::check(errors, &spec["selector"], &path.child("selector"));
}
