//! When a job fails or succeeds before its time.

use serde_json::{Value, json};
use setpoint_schema::FieldPath;

use super::super::errors::Errors;
use crate::builtin::edit::{list, text};

/// Checks `podFailurePolicy`.
pub fn failure(errors: &mut Errors, spec: &Value, path: &FieldPath) {
    let policy = &spec["podFailurePolicy"];
    if policy.is_null() {
        return;
    }
    let pod = &spec["template"]["spec"];
    let containers: Vec<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|key| list(pod, key))
        .map(|one| text(one, "name"))
        .collect();
    for (index, rule) in list(policy, "rules").iter().enumerate() {
        let path = path.child("rules").index(index);
        let action = text(rule, "action");
        if action.is_empty() {
            let detail = r#"valid values: ["Count" "FailIndex" "FailJob" "Ignore"]"#;
            errors.required(&path.child("action"), detail);
        }
        errors.one_of(rule, &path, "action", &["Count", "FailIndex", "FailJob", "Ignore"]);
        if action == "FailIndex" && spec["backoffLimitPerIndex"].is_null() {
            errors.invalid(&path.child("action"), action, "requires the backoffLimitPerIndex to be set");
        }
        let (codes, conditions) = (&rule["onExitCodes"], list(rule, "onPodConditions"));
        match (codes.is_object(), conditions.is_empty()) {
            (true, false) => {
                errors
                    .bare_invalid(&path, "specifying both OnExitCodes and OnPodConditions is not supported");
            }
            (false, true) => {
                errors.bare_invalid(&path, "specifying one of OnExitCodes and OnPodConditions is required");
            }
            _ => {}
        }
        if codes.is_object() {
            exit_codes(errors, codes, &path.child("onExitCodes"), &containers);
        }
        for (index, condition) in conditions.iter().enumerate() {
            let path = path.child("onPodConditions").index(index);
            if !text(condition, "type").is_empty() {
                errors.qualified(&path.child("type"), text(condition, "type"));
            }
            if text(condition, "status").is_empty() {
                errors.required(&path.child("status"), "");
            }
            errors.one_of(condition, &path, "status", &["False", "True", "Unknown"]);
        }
    }
}

fn exit_codes(errors: &mut Errors, codes: &Value, path: &FieldPath, containers: &[&str]) {
    let operator = text(codes, "operator");
    if operator.is_empty() {
        errors.required(&path.child("operator"), r#"valid values: ["In" "NotIn"]"#);
    }
    errors.one_of(codes, path, "operator", &["In", "NotIn"]);
    if let Some(name) = codes["containerName"].as_str().filter(|name| !containers.contains(name)) {
        let detail = "must be one of the container or initContainer names in the pod template";
        errors.invalid(&path.child("containerName"), name, detail);
    }
    let (values, at) = (list(codes, "values"), path.child("values"));
    if values.is_empty() {
        errors.invalid(&at, json!([]), "at least one value is required");
    }
    for (index, value) in values.iter().enumerate() {
        if operator == "In" && value.as_i64() == Some(0) {
            errors.invalid(&at.index(index), 0, "must not be 0 for the In operator");
        }
        if values[..index].contains(value) {
            errors.duplicate(&at.index(index), value.clone());
        }
    }
    if !values.is_sorted_by_key(Value::as_i64) {
        errors.invalid(&at, values, "must be ordered");
    }
}

/// Checks `successPolicy`.
pub fn success(errors: &mut Errors, spec: &Value, path: &FieldPath) {
    let policy = &spec["successPolicy"];
    if policy.is_null() {
        return;
    }
    if spec["completionMode"] != "Indexed" {
        return errors.invalid(path, policy.clone(), "requires indexed completion mode");
    }
    let completions = spec["completions"].as_i64().unwrap_or(0);
    let path = path.child("rules");
    if list(policy, "rules").is_empty() {
        errors.required(&path, "at least one rules must be specified when the successPolicy is specified");
    }
    for (index, rule) in list(policy, "rules").iter().enumerate() {
        let path = path.index(index);
        let (indexes, count) = (rule["succeededIndexes"].as_str(), rule["succeededCount"].as_i64());
        if indexes.is_none() && count.is_none() {
            let detail = "at least one of succeededCount or succeededIndexes must be specified";
            errors.required(&path, detail);
        }
        let total = indexes.map(|indexes| count_indexes(indexes, completions));
        if let (Some(indexes), Some(Err(why))) = (indexes, &total) {
            let detail = format!("error parsing succeededIndexes: {why}");
            errors.invalid(&path.child("succeededIndexes"), indexes, detail);
        }
        let Some(count) = count else { continue };
        let path_of_count = path.child("succeededCount");
        errors.not_negative(rule, &path, "succeededCount");
        if count > completions {
            let detail =
                format!("must be less than or equal to {completions} (the number of specified completions)");
            errors.invalid(&path_of_count, count, detail);
        }
        if let Some(total) = total.map(Result::unwrap_or_default).filter(|total| count > *total) {
            let detail = format!(
                "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
            );
            errors.invalid(&path_of_count, count, detail);
        }
    }
}

/// How many indexes a text such as `1-3,5` names.
fn count_indexes(text: &str, completions: i64) -> Result<i64, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let index = |text: &str| {
        let number: i64 =
            text.parse().map_err(|_| format!("cannot convert string to integer for index: {text:?}"))?;
        if number >= completions { Err(format!("too large index: {text:?}")) } else { Ok(number) }
    };
    let (mut last, mut total) = (None, 0);
    for interval in text.split(',') {
        let ends: Vec<&str> = interval.split('-').collect();
        let (start, end) = match ends.as_slice() {
            [one] => (index(one)?, index(one)?),
            [start, end] => (index(start)?, index(end)?),
            _ => {
                return Err(format!(
                    "the fragment {interval:?} violates the requirement that an index interval can have at most two parts separated by '-'"
                ));
            }
        };
        if ends.len() == 2 && start >= end {
            return Err(format!("non-increasing order, previous: {start}, current: {end}"));
        }
        if let Some(last) = last.filter(|last| *last >= start) {
            return Err(format!("non-increasing order, previous: {last}, current: {start}"));
        }
        total += end - start + 1;
        last = Some(end);
    }
    Ok(total)
}
