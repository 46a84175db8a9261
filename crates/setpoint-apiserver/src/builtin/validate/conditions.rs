//! Expressions in policies and webhook configurations.

use serde_json::Value;
use setpoint_schema::cel::policy::{Environment, Expression, Gives};
use setpoint_schema::{FieldError, FieldPath};

use super::errors::Errors;
use crate::builtin::edit::{list, text};
use crate::object_meta::check_qualified;

/// The most match conditions of one policy or webhook.
const MOST: usize = 64;

/// Checks an expression, and answers it if it compiles.
pub fn expression(
    errors: &mut Errors,
    written: &str,
    path: &FieldPath,
    environment: &Environment,
    gives: Gives,
) -> Option<Expression> {
    let trimmed = written.trim();
    match Expression::compile(trimmed, environment, gives) {
        Ok(expression) => Some(expression),
        Err(problem) => {
            errors.invalid(path, written, problem);
            None
        }
    }
}

/// Checks match conditions.
pub fn match_conditions(
    errors: &mut Errors,
    conditions: &Value,
    path: &FieldPath,
    environment: &Environment,
) {
    let conditions = conditions.as_array().map(Vec::as_slice).unwrap_or_default();
    if conditions.len() > MOST {
        errors.push(FieldError::too_many(path, conditions.len() as u64, MOST as u64));
    }
    let mut names: Vec<&str> = Vec::new();
    for (index, condition) in conditions.iter().enumerate() {
        let path = path.index(index);
        let written = text(condition, "expression");
        if written.trim().is_empty() {
            errors.required(&path.child("expression"), "");
        } else {
            expression(errors, written, &path.child("expression"), environment, Gives::Bool);
        }
        let name = text(condition, "name");
        let at = path.child("name");
        if name.is_empty() {
            errors.required(&at, "");
        } else {
            for problem in check_qualified(name) {
                errors.invalid(&at, name, problem);
            }
        }
        if !name.is_empty() && names.contains(&name) {
            errors.duplicate(&at, name);
        }
        names.push(name);
    }
}

/// Checks rules about resources, as webhooks and policies have them.
pub fn rules(errors: &mut Errors, rules: &Value, path: &FieldPath) {
    for (index, rule) in rules.as_array().into_iter().flatten().enumerate() {
        let path = path.index(index);
        let texts = |key: &str| list(rule, key).iter().filter_map(Value::as_str).collect::<Vec<_>>();
        let operations = texts("operations");
        let at = path.child("operations");
        if operations.is_empty() {
            errors.required(&at, "");
        }
        if operations.len() > 1 && operations.contains(&"*") {
            errors.invalid(
                &at,
                rule["operations"].clone(),
                "if '*' is present, must not specify other operations",
            );
        }
        for (index, operation) in operations.iter().enumerate() {
            const SUPPORTED: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
            if !SUPPORTED.contains(operation) {
                errors.unsupported(&at.index(index), *operation, &SUPPORTED);
            }
        }
        for (key, what, may_be_empty) in
            [("apiGroups", "API groups", true), ("apiVersions", "API versions", false)]
        {
            let given = texts(key);
            let at = path.child(key);
            if given.is_empty() {
                errors.required(&at, "");
            }
            if given.len() > 1 && given.contains(&"*") {
                let detail = format!("if '*' is present, must not specify other {what}");
                errors.invalid(&at, rule[key].clone(), detail);
            }
            for (index, _) in given.iter().enumerate().filter(|(_, one)| one.is_empty() && !may_be_empty) {
                errors.required(&at.index(index), "");
            }
        }
        resources(errors, rule, &texts("resources"), &path.child("resources"));
        errors.one_of(rule, &path, "scope", &["*", "Cluster", "Namespaced"]);
    }
}

fn resources(errors: &mut Errors, rule: &Value, given: &[&str], path: &FieldPath) {
    if given.is_empty() {
        errors.required(path, "");
    }
    // `*/x` covers `y/x`, and `y/*` too.
    // Of several names without a subresource the last one counts, as upstream.
    let mut whole = false;
    let (mut everywhere, mut all_of): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for (index, name) in given.iter().enumerate() {
        let at = path.index(index);
        if name.is_empty() {
            errors.required(&at, "");
        }
        let (resource, subresource) = name.split_once('/').unwrap_or((name, ""));
        if !name.contains('/') {
            whole = *name != "*";
        }
        let both = given.contains(&"*/*");
        if both && *name != "*/*" && subresource == "*" && resource != "*" {
            errors.invalid(&at, *name, format!("if '*/*' is present, must not specify {name}"));
        } else if !subresource.is_empty() && subresource != "*" && everywhere.contains(&subresource) {
            errors.invalid(&at, *name, format!("if '*/{subresource}' is present, must not specify {name}"));
        } else if !subresource.is_empty() && subresource != "*" && all_of.contains(&resource) {
            errors.invalid(&at, *name, format!("if '{resource}/*' is present, must not specify {name}"));
        }
        match (resource, subresource) {
            ("*", subresource) if !subresource.is_empty() => everywhere.push(subresource),
            (resource, "*") => all_of.push(resource),
            _ => {}
        }
    }
    if given.len() > 1 && given.contains(&"*/*") {
        errors.invalid(
            path,
            rule["resources"].clone(),
            "if '*/*' is present, must not specify other resources",
        );
    }
    if given.contains(&"*") && whole {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.invalid(path, rule["resources"].clone(), detail);
    }
}
