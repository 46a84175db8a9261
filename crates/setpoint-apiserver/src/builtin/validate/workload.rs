//! Kinds that make pods.

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::{errors::Errors, pod, selector, storage};
use crate::{
    builtin::edit::{is_empty, list, text},
    object_meta::NameRule,
    status::GoValue,
};

/// Checks `spec.selector` and `spec.template`, and that one selects the other.
fn selector_and_template(errors: &mut Errors, kind: &str, spec: &Value, path: &FieldPath, claims: &[&str]) {
    let selector_path = path.child("selector");
    let mut usable = true;
    if spec["selector"].is_null() {
        errors.required(&selector_path, "");
    } else {
        usable = selector::check(errors, &spec["selector"], &selector_path);
        if !usable {
            errors.invalid(&selector_path, spec["selector"].clone(), "invalid label selector");
        } else if selector::is_empty(&spec["selector"]) {
            errors.invalid(
                &selector_path,
                spec["selector"].clone(),
                format!("empty selector is invalid for {kind}"),
            );
            usable = false;
        }
    }
    let template = path.child("template");
    if usable {
        let labels = &spec["template"]["metadata"]["labels"];
        let selected = !spec["selector"].is_null() && selector::selects(&spec["selector"], labels);
        if !selected {
            let detail = "`selector` does not match template `labels`";
            errors.invalid(&template.child("metadata.labels"), labels.clone(), detail);
        }
    }
    pod::template(errors, &spec["template"], &template, claims);
}

/// Long-running kinds: pods always restart and have no deadline.
fn always_restarts(errors: &mut Errors, kind: &str, spec: &Value, path: &FieldPath) {
    let (pod, path) = (&spec["template"]["spec"], path.child("template.spec"));
    let policy = text(pod, "restartPolicy");
    if !policy.is_empty() && policy != "Always" {
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
    if old.is_none() {
        let name = text(&new["metadata"], "name");
        if name.len() > 63 {
            errors.invalid(&FieldPath::from("metadata.name"), name, "must be no more than 63 characters");
        }
    }
    let templates = list(spec, "volumeClaimTemplates");
    let claims: Vec<_> = templates.iter().map(|template| text(&template["metadata"], "name")).collect();
    selector_and_template(errors, "statefulset", spec, &path, &claims);
    always_restarts(errors, "StatefulSet", spec, &path);
    counts(errors, spec, &path);
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
                let given = |key: &str| GoValue::Plain(strategy["rollingUpdate"][key].clone());
                let shown =
                    vec![("Partition", given("partition")), ("MaxUnavailable", given("maxUnavailable"))];
                errors.invalid_struct(&rolling, &GoValue::Struct(shown), detail);
            }
        }
        other => errors.invalid_struct(
            &strategy_path,
            &GoValue::Struct(vec![
                ("Type", GoValue::Plain(other.into())),
                ("RollingUpdate", GoValue::Plain(strategy["rollingUpdate"].clone())),
            ]),
            "must be 'RollingUpdate' or 'OnDelete'",
        ),
    }
    let retention = path.child("persistentVolumeClaimRetentionPolicy");
    for key in ["whenDeleted", "whenScaled"] {
        errors.one_of(&spec["persistentVolumeClaimRetentionPolicy"], &retention, key, &["Retain", "Delete"]);
    }
    errors.not_negative(&spec["ordinals"], &path.child("ordinals"), "start");
    let service = text(spec, "serviceName");
    if !service.is_empty() {
        errors.name(&path.child("serviceName"), service, NameRule::Label);
    }
    // Claims become volumes of the pods, beside those of the template.
    let volumes = list(&spec["template"]["spec"], "volumes").len();
    for (index, claim) in claims.iter().enumerate() {
        let path = path.child("template.spec.volumes").index(volumes + index).child("name");
        errors.name(&path, claim, NameRule::Label);
    }
    for (index, template) in templates.iter().enumerate() {
        let path = path.child("volumeClaimTemplates").index(index).child("spec");
        storage::claim_spec(errors, &template["spec"], &path);
    }
    if let Some(old) = old {
        for key in ["selector", "volumeClaimTemplates", "serviceName", "podManagementPolicy"] {
            errors.immutable(spec, &old["spec"], &path, key);
        }
    }
}

fn is_zero(value: &Value) -> bool {
    value.as_i64() == Some(0) || value == "0%"
}

pub fn deployment(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    selector_and_template(errors, "deployment", spec, &path, &[]);
    always_restarts(errors, "Deployment", spec, &path);
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
    selector_and_template(errors, "deployment", spec, &path, &[]);
    always_restarts(errors, "ReplicaSet", spec, &path);
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
    selector_and_template(errors, "daemonset", spec, &path, &[]);
    always_restarts(errors, "DaemonSet", spec, &path);
    counts(errors, spec, &path);
    let (strategy, strategy_path) = (&spec["updateStrategy"], path.child("updateStrategy"));
    let (update, rolling) = (&strategy["rollingUpdate"], strategy_path.child("rollingUpdate"));
    match text(strategy, "type") {
        "OnDelete" => {}
        "RollingUpdate" => {
            errors.count_or_percent(update, &rolling, "maxUnavailable");
            errors.count_or_percent(update, &rolling, "maxSurge");
            if is_zero(&update["maxUnavailable"]) && is_zero(&update["maxSurge"]) {
                errors.required(&rolling.child("maxUnavailable"), "cannot be 0 when maxSurge is 0");
            }
        }
        other => errors.unsupported_struct(
            &strategy_path,
            &GoValue::Struct(vec![
                ("Type", GoValue::Plain(other.into())),
                ("RollingUpdate", GoValue::Plain(strategy["rollingUpdate"].clone())),
            ]),
            &["RollingUpdate", "OnDelete"],
        ),
    }
    if let Some(old) = old {
        errors.immutable(spec, &old["spec"], &path, "selector");
    }
}

pub fn controller_revision(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let root = FieldPath::root();
    errors.not_negative(new, &root, "revision");
    if let Some(old) = old {
        errors.immutable(new, old, &root, "data");
    }
}

pub fn job(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    let template = &spec["template"];
    let labels = &template["metadata"]["labels"];
    let uid = text(&new["metadata"], "uid");
    if spec["manualSelector"] != true && old.is_none() {
        let made = serde_json::json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}});
        if spec["selector"] != made {
            errors.invalid(
                &path.child("selector"),
                spec["selector"].clone(),
                "`selector` not auto-generated",
            );
        }
    }
    if !selector::selects(&spec["selector"], labels) {
        let detail = "`selector` does not match template `labels`";
        errors.invalid(&path.child("template.metadata.labels"), labels.clone(), detail);
    }
    job_spec(errors, spec, &path);
    if let Some(old) = old {
        let old = &old["spec"];
        let mut fixed = vec!["selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex"];
        let indexed = spec["completionMode"] == "Indexed";
        // An indexed job may grow together with its parallelism.
        if !(indexed && spec["completions"] == spec["parallelism"]) {
            fixed.push("completions");
        }
        // A suspended job that never started may still be rewritten.
        let startable = old["suspend"] == true && new["status"]["startTime"].is_null();
        if !startable {
            fixed.push("template");
        }
        for key in fixed {
            errors.immutable(spec, old, &path, key);
        }
    }
}

fn job_spec(errors: &mut Errors, spec: &Value, path: &FieldPath) {
    for key in
        ["parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"]
    {
        errors.not_negative(spec, path, key);
    }
    errors.one_of(spec, path, "completionMode", &["NonIndexed", "Indexed"]);
    if spec["completionMode"] == "Indexed" && spec["completions"].is_null() {
        let detail = "when completion mode is Indexed";
        errors.required(&path.child("completions"), detail);
    }
    let template = path.child("template");
    pod::template(errors, &spec["template"], &template, &[]);
    let policy = text(&spec["template"]["spec"], "restartPolicy");
    let policy_path = template.child("spec.restartPolicy");
    match policy {
        "OnFailure" | "Never" => {}
        // The default of pods doesn't suit jobs, so it must be chosen.
        "" | "Always" => errors.required(&policy_path, "valid values: \"OnFailure\", \"Never\""),
        other => errors.unsupported(&policy_path, other, &["OnFailure", "Never"]),
    }
}

/// The longest name of a cron job: those of its jobs have eleven characters more (upstream: `ValidateCronJobCreate`).
const CRON_JOB_NAME: usize = 52;

pub fn cron_job(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    let name = text(&new["metadata"], "name");
    if old.is_none() && name.len() > CRON_JOB_NAME {
        let detail = format!("must be no more than {CRON_JOB_NAME} characters");
        errors.invalid(&FieldPath::from("metadata.name"), name, detail);
    }
    let zone = text(spec, "timeZone");
    // A machine without a database of time zones knows none.
    let known = jiff::tz::db().is_definitively_empty() || jiff::tz::TimeZone::get(zone).is_ok();
    if !zone.is_empty() && !known {
        errors.invalid(&path.child("timeZone"), zone, format!("unknown time zone {zone}"));
    }
    if errors.present(spec, &path, "schedule") {
        let schedule = text(spec, "schedule");
        let fields: Vec<_> = schedule.split_whitespace().collect();
        if !schedule.starts_with('@') && fields.len() != 5 {
            let detail = format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" "));
            errors.invalid(&path.child("schedule"), schedule, detail);
        }
    }
    errors.one_of(spec, &path, "concurrencyPolicy", &["Allow", "Forbid", "Replace"]);
    for key in ["startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        errors.not_negative(spec, &path, key);
    }
    let job = path.child("jobTemplate.spec");
    if spec["jobTemplate"]["spec"]["manualSelector"] == true {
        errors.unsupported(&job.child("manualSelector"), true, &["nil", "false"]);
    }
    job_spec(errors, &spec["jobTemplate"]["spec"], &job);
}

pub fn disruption_budget(errors: &mut Errors, new: &Value) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    let given = |key: &str| !is_empty(&spec[key]);
    if given("minAvailable") && given("maxUnavailable") {
        let field = |key: &str| GoValue::Plain(spec[key].clone());
        let shown = vec![
            ("MinAvailable", field("minAvailable")),
            ("Selector", field("selector")),
            ("MaxUnavailable", field("maxUnavailable")),
            ("UnhealthyPodEvictionPolicy", field("unhealthyPodEvictionPolicy")),
        ];
        let detail = "minAvailable and maxUnavailable cannot be both set";
        errors.invalid_struct(&path, &GoValue::Struct(shown), detail);
    }
    errors.one_of(spec, &path, "unhealthyPodEvictionPolicy", &["AlwaysAllow", "IfHealthyBudget"]);
    for key in ["minAvailable", "maxUnavailable"] {
        errors.count_or_percent(spec, &path, key);
        errors.at_most_all(spec, &path, key);
    }
    selector::check(errors, &spec["selector"], &path.child("selector"));
}
