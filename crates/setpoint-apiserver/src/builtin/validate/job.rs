//! Jobs and cron jobs (`pkg/apis/batch/validation`).

mod policy;
mod schedule;

use serde_json::{Value, json};
use setpoint_schema::{FieldError, FieldPath};

use super::{errors::Errors, pod, selector};
use crate::builtin::edit::{copy, text};

/// The longest name of a cron job: those of its jobs have eleven characters more (upstream: `ValidateCronJobCreate`).
const CRON_JOB_NAME: usize = 52;
const PARALLELISM_LIMIT: i64 = 100_000;
const MANAGER_LIMIT: usize = 63;

pub fn job(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    let labels = &spec["template"]["metadata"]["labels"];
    if spec["manualSelector"] != true && old.is_none() {
        let made =
            json!({"matchLabels": {"batch.kubernetes.io/controller-uid": text(&new["metadata"], "uid")}});
        if spec["selector"] != made {
            let detail = "`selector` not auto-generated";
            errors.invalid(&path.child("selector"), spec["selector"].clone(), detail);
        }
    }
    if !selector::selects(&spec["selector"], labels) {
        let detail = "`selector` does not match template `labels`";
        errors.invalid(&path.child("template.metadata.labels"), labels.clone(), detail);
    }
    job_spec(errors, spec, &path);
    let Some(old) = old else { return };
    let started = !new["status"]["startTime"].is_null();
    update(errors, spec, &old["spec"], &path, started);
}

fn update(errors: &mut Errors, new: &Value, old: &Value, path: &FieldPath, started: bool) {
    for key in [
        "selector",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
    ] {
        errors.immutable(new, old, path, key);
    }
    if new["completionMode"] != "Indexed" {
        errors.immutable(new, old, path, "completions");
    } else if new["completions"] != old["completions"] && new["completions"] != new["parallelism"] {
        let detail = "can only be modified in tandem with spec.parallelism";
        errors.invalid(&path.child("completions"), new["completions"].clone(), detail);
    }
    // Whoever queues jobs says where the pods of a suspended one go, and what they may use, until they run.
    let suspended = old["suspend"] == true;
    let mut allowed = old["template"].clone();
    if suspended && !started {
        for key in ["nodeSelector", "tolerations", "schedulingGates"] {
            copy(&mut allowed["spec"], &new["template"]["spec"], key);
        }
        copy_node_affinity(&mut allowed["spec"], &new["template"]["spec"]);
        for key in ["annotations", "labels"] {
            copy(&mut allowed["metadata"], &new["template"]["metadata"], key);
        }
        pod::copy_resources(&mut allowed["spec"], &new["template"]["spec"]);
    }
    if suspended {
        if allowed["spec"] != new["template"]["spec"] {
            errors.changed(&path.child("template.spec"), &new["template"]["spec"]);
        }
    } else if allowed != new["template"] {
        errors.changed(&path.child("template"), &new["template"]);
    }
}

fn copy_node_affinity(into: &mut Value, from: &Value) {
    if into["affinity"].is_null() && from["affinity"].is_null() {
        return;
    }
    let mut affinity = into["affinity"].clone();
    if affinity.is_null() {
        affinity = json!({});
    }
    copy(&mut affinity, &from["affinity"], "nodeAffinity");
    if affinity == json!({}) && from["affinity"].is_null() {
        crate::builtin::edit::remove(into, "affinity");
    } else {
        into["affinity"] = affinity;
    }
}

fn job_spec(errors: &mut Errors, spec: &Value, path: &FieldPath) {
    for key in [
        "parallelism",
        "completions",
        "backoffLimit",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        errors.not_negative(spec, path, key);
    }
    let number = |key: &str| spec[key].as_i64();
    if number("maxFailedIndexes").is_some() && number("backoffLimitPerIndex").is_none() {
        errors.required(&path.child("backoffLimitPerIndex"), "when maxFailedIndexes is specified");
    }
    if let Some(manager) = spec["managedBy"].as_str() {
        errors.domain_path(&path.child("managedBy"), manager);
        if manager.len() > MANAGER_LIMIT {
            errors.push(FieldError::too_long(&path.child("managedBy"), MANAGER_LIMIT as u64));
        }
    }
    errors.one_of(spec, path, "completionMode", &["NonIndexed", "Indexed"]);
    if spec["completionMode"] == "Indexed" {
        if spec["completions"].is_null() {
            errors.required(&path.child("completions"), "when completion mode is Indexed");
        }
        if let Some(many) = number("parallelism").filter(|many| *many > PARALLELISM_LIMIT) {
            let detail =
                format!("must be less than or equal to {PARALLELISM_LIMIT} when completion mode is Indexed");
            errors.invalid(&path.child("parallelism"), many, detail);
        }
        if let (Some(failed), Some(all)) = (number("maxFailedIndexes"), number("completions"))
            && failed > all
        {
            errors.invalid(
                &path.child("maxFailedIndexes"),
                failed,
                "must be less than or equal to completions",
            );
        }
    } else if matches!(text(spec, "completionMode"), "" | "NonIndexed") {
        for key in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if let Some(number) = number(key) {
                errors.invalid(&path.child(key), number, "requires indexed completion mode");
            }
        }
    }
    policy::failure(errors, spec, &path.child("podFailurePolicy"));
    policy::success(errors, spec, &path.child("successPolicy"));
    let replacement: &[&str] =
        if spec["podFailurePolicy"].is_object() { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    errors.one_of(spec, path, "podReplacementPolicy", replacement);
    let template = path.child("template");
    pod::template(errors, &spec["template"], &template, &[]);
    let policy = text(&spec["template"]["spec"], "restartPolicy");
    let policy_path = template.child("spec.restartPolicy");
    match policy {
        "OnFailure" if spec["podFailurePolicy"].is_object() => {
            let detail = "only \"Never\" is supported when podFailurePolicy is specified";
            errors.invalid(&policy_path, policy, detail);
        }
        "OnFailure" | "Never" => {}
        // The default of pods doesn't suit jobs, so it must be chosen.
        "" | "Always" => errors.required(&policy_path, "valid values: \"OnFailure\", \"Never\""),
        other => errors.unsupported(&policy_path, other, &["OnFailure", "Never"]),
    }
}

pub fn cron_job(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    let name = text(&new["metadata"], "name");
    if old.is_none() && name.len() > CRON_JOB_NAME {
        let detail = format!("must be no more than {CRON_JOB_NAME} characters");
        errors.invalid(&FieldPath::from("metadata.name"), name, detail);
    }
    if let Some(zone) = spec["timeZone"].as_str() {
        time_zone(errors, &path.child("timeZone"), zone);
    }
    if errors.present(spec, &path, "schedule") {
        let given = text(spec, "schedule");
        if given.contains("TZ") {
            // Old ones keep theirs.
            if old.is_none_or(|old| old["spec"]["schedule"] != spec["schedule"]) {
                let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
                errors.invalid(&path.child("schedule"), given, detail);
            }
        } else if let Err(why) = schedule::check(given) {
            errors.invalid(&path.child("schedule"), given, why);
        }
    }
    errors.one_of(spec, &path, "concurrencyPolicy", &["Allow", "Forbid", "Replace"]);
    for key in ["startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        errors.not_negative(spec, &path, key);
    }
    let (job, path) = (&spec["jobTemplate"]["spec"], path.child("jobTemplate.spec"));
    if job["manualSelector"] == true {
        errors.unsupported(&path.child("manualSelector"), true, &["nil", "false"]);
    }
    if !job["selector"].is_null() {
        errors.invalid(&path.child("selector"), job["selector"].clone(), "`selector` will be auto-generated");
    }
    job_spec(errors, job, &path);
}

fn time_zone(errors: &mut Errors, path: &FieldPath, zone: &str) {
    if zone.is_empty() {
        errors.invalid(path, zone, "timeZone must be nil or non-empty string");
    } else if zone.eq_ignore_ascii_case("local") {
        let detail = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        errors.invalid(path, zone, detail);
    } else if !jiff::tz::db().is_definitively_empty() && jiff::tz::TimeZone::get(zone).is_err() {
        // A machine without a database of time zones knows none.
        errors.invalid(path, zone, format!("unknown time zone {zone}"));
    }
}
