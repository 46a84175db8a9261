//! Admission policies and their bindings (`pkg/apis/admissionregistration/validation`).

use serde_json::Value;
use setpoint_schema::FieldPath;
use setpoint_schema::cel::is_reserved;
use setpoint_schema::cel::policy::{Environment, Gives};

use super::{conditions, errors::Errors, selector};
use crate::admission::environment;
use crate::builtin::edit::{list, text};
use crate::object_meta::{NameRule, check_qualified};

pub fn validating(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    if old.is_some_and(|old| old["spec"] == *spec) {
        return;
    }
    let mut environment = begin(errors, spec, &path);
    match_resources(errors, &spec["matchConstraints"], &path.child("matchConstraints"), true);
    variables(errors, spec, &path, &mut environment);
    let (validations, annotations) = (list(spec, "validations"), list(spec, "auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        let detail = "validations or auditAnnotations must contain at least one item";
        errors.required(&path.child("validations"), detail);
        errors.required(&path.child("auditAnnotations"), detail);
    }
    for (index, validation) in validations.iter().enumerate() {
        check_validation(errors, validation, &path.child("validations").index(index), &environment);
    }
    let policy = text(&new["metadata"], "name");
    let mut keys: Vec<&str> = Vec::new();
    for (index, annotation) in annotations.iter().enumerate() {
        let path = path.child("auditAnnotations").index(index);
        let key = text(annotation, "key");
        let qualified = format!("{policy}/{key}");
        for problem in check_qualified(&qualified) {
            errors.invalid(&path.child("key"), qualified.as_str(), problem);
        }
        if keys.contains(&key) {
            errors.duplicate(&path.child("key"), key);
        }
        keys.push(key);
        let (written, path) = (text(annotation, "valueExpression"), path.child("valueExpression"));
        if written.trim().is_empty() {
            errors.required(&path, "valueExpression is not specified");
        } else {
            conditions::expression(errors, written, &path, &environment, Gives::StringOrNull);
        }
    }
}

pub fn mutating(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    if old.is_some_and(|old| old["spec"] == *spec) {
        return;
    }
    let mut environment = begin(errors, spec, &path);
    match_resources(errors, &spec["matchConstraints"], &path.child("matchConstraints"), true);
    no_deletions(errors, &spec["matchConstraints"], &path.child("matchConstraints"));
    variables(errors, spec, &path, &mut environment);
    let environment = environment.constructing();
    let mutations = list(spec, "mutations");
    if mutations.is_empty() {
        errors.required(&path.child("mutations"), "mutations must contain at least one item");
    }
    for (index, mutation) in mutations.iter().enumerate() {
        let path = path.child("mutations").index(index);
        let (key, other, gives) = match text(mutation, "patchType") {
            "ApplyConfiguration" => ("applyConfiguration", "jsonPatch", Gives::Object),
            "JSONPatch" => ("jsonPatch", "applyConfiguration", Gives::JsonPatches),
            "" => {
                errors.required(&path.child("patchType"), "");
                continue;
            }
            unknown => {
                errors.unsupported(&path.child("patchType"), unknown, &["ApplyConfiguration", "JSONPatch"]);
                continue;
            }
        };
        let patch = text(mutation, "patchType");
        if mutation[key].is_null() {
            errors.required(&path.child(key), &format!("must be specified when patchType is {patch}"));
        } else {
            let (written, path) = (text(&mutation[key], "expression"), path.child(key).child("expression"));
            if written.trim().is_empty() {
                errors.required(&path, "");
            } else {
                conditions::expression(errors, written, &path, &environment, gives);
            }
        }
        if !mutation[other].is_null() {
            let detail = format!("must not be specified when patchType is {patch}");
            errors.invalid(&path.child(other), format!("{{{other}}}"), detail);
        }
    }
    match text(spec, "reinvocationPolicy") {
        "" => errors.required(&path.child("reinvocationPolicy"), ""),
        _ => errors.one_of(spec, &path, "reinvocationPolicy", &["IfNeeded", "Never"]),
    }
}

/// What both kinds of policies begin with. Answers what their expressions may use.
fn begin(errors: &mut Errors, spec: &Value, path: &FieldPath) -> Environment {
    errors.one_of(spec, path, "failurePolicy", &["Fail", "Ignore"]);
    let kind = &spec["paramKind"];
    if kind.is_object() {
        let path = path.child("paramKind");
        let version = text(kind, "apiVersion");
        if version.is_empty() {
            errors.required(&path.child("apiVersion"), "");
        } else if version.matches('/').count() > 1 {
            errors.invalid(
                &path.child("apiVersion"),
                version,
                format!("unexpected GroupVersion string: {version}"),
            );
        }
        if text(kind, "kind").is_empty() {
            errors.required(&path.child("kind"), "");
        } else {
            let lower = text(kind, "kind").to_lowercase();
            for problem in NameRule::OldLabel.check(&lower, false) {
                let detail = format!("may have mixed case, but should otherwise match: {problem}");
                errors.invalid(&path.child("kind"), text(kind, "kind"), detail);
            }
        }
    }
    let environment = environment(kind.is_object());
    conditions::match_conditions(
        errors,
        &spec["matchConditions"],
        &path.child("matchConditions"),
        &environment,
    );
    environment.with_variables()
}

fn variables(errors: &mut Errors, spec: &Value, path: &FieldPath, environment: &mut Environment) {
    for (index, variable) in list(spec, "variables").iter().enumerate() {
        let path = path.child("variables").index(index);
        let (name, written) = (text(variable, "name"), text(variable, "expression"));
        if name.is_empty() {
            errors.required(&path.child("name"), "name is not specified");
        } else if !is_identifier(name) {
            errors.invalid(&path.child("name"), name, "must be a valid CEL identifier");
        }
        let compiled = if written.trim().is_empty() {
            errors.required(&path.child("expression"), "expression is not specified");
            None
        } else {
            conditions::expression(errors, written, &path.child("expression"), environment, Gives::Any)
        };
        environment.variable(name, compiled.as_ref());
    }
}

fn is_identifier(name: &str) -> bool {
    let start = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(start) && name.chars().all(|c| start(c) || c.is_ascii_digit()) && !is_reserved(name)
}

fn check_validation(errors: &mut Errors, validation: &Value, path: &FieldPath, environment: &Environment) {
    let (written, message) = (text(validation, "expression"), text(validation, "message"));
    let by_expression = text(validation, "messageExpression");
    if written.trim().is_empty() {
        errors.required(&path.child("expression"), "expression is not specified");
    } else {
        conditions::expression(errors, written, &path.child("expression"), environment, Gives::Bool);
    }
    if !by_expression.is_empty() {
        let path = path.child("messageExpression");
        if by_expression.trim().is_empty() {
            errors.invalid(&path, by_expression, "must be non-empty if specified");
        } else {
            conditions::expression(errors, by_expression, &path, environment, Gives::String);
        }
    }
    let at = path.child("message");
    if !message.is_empty() && message.trim().is_empty() {
        errors.invalid(&at, message, "must be non-empty if specified");
    } else if message.trim().contains(['\n', '\r']) {
        errors.invalid(&at, message, "must not contain line breaks");
    }
    errors.one_of(validation, path, "reason", &["Forbidden", "Invalid", "RequestEntityTooLarge"]);
}

/// Checks which resources a policy or binding is for.
fn match_resources(errors: &mut Errors, given: &Value, path: &FieldPath, of_policy: bool) {
    if !given.is_object() {
        errors.required(path, "");
        return;
    }
    errors.one_of(given, path, "matchPolicy", &["Equivalent", "Exact"]);
    for key in ["namespaceSelector", "objectSelector"] {
        selector::check(errors, &given[key], &path.child(key));
    }
    let rules = &given["resourceRules"];
    if of_policy && rules.as_array().is_none_or(Vec::is_empty) {
        errors.required(&path.child("resourceRules"), "");
    }
    conditions::rules(errors, rules, &path.child("resourceRules"));
    conditions::rules(errors, &given["excludeResourceRules"], &path.child("excludeResourceRules"));
}

/// Nothing is left to mutate of what is deleted.
fn no_deletions(errors: &mut Errors, given: &Value, path: &FieldPath) {
    for rule in list(given, "resourceRules") {
        if list(rule, "operations").iter().any(|operation| operation == "DELETE") {
            let path = path.child("resourceRules").child("operations");
            errors.unsupported(&path, "DELETE", &["*", "CONNECT", "CREATE", "UPDATE"]);
        }
    }
}

pub fn binding(errors: &mut Errors, new: &Value, validates: bool) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    match text(spec, "policyName") {
        "" => errors.required(&path.child("policyName"), ""),
        name => errors.name(&path.child("policyName"), name, NameRule::Subdomain),
    }
    if spec["paramRef"].is_object() {
        param_ref(errors, &spec["paramRef"], &path.child("paramRef"));
    }
    if spec["matchResources"].is_object() {
        let at = path.child("matchResources");
        match_resources(errors, &spec["matchResources"], &at, false);
        if !validates {
            no_deletions(errors, &spec["matchResources"], &at);
        }
    }
    if validates {
        actions(errors, &spec["validationActions"], &path.child("validationActions"));
    }
}

fn param_ref(errors: &mut Errors, given: &Value, path: &FieldPath) {
    let (name, selector) = (text(given, "name"), &given["selector"]);
    if !name.is_empty() {
        for problem in NameRule::PathSegment.check(name, false) {
            errors.invalid(&path.child("name"), name, problem);
        }
        if !selector.is_null() {
            errors.forbidden(&path.child("name"), "name and selector are mutually exclusive");
        }
    }
    if selector.is_object() {
        selector::check(errors, selector, &path.child("selector"));
        if !name.is_empty() {
            errors.forbidden(&path.child("selector"), "name and selector are mutually exclusive");
        }
    }
    if name.is_empty() && selector.is_null() {
        errors.required(path, "one of name or selector must be specified");
    }
    match text(given, "parameterNotFoundAction") {
        "" => errors.required(&path.child("parameterNotFoundAction"), ""),
        _ => errors.one_of(given, path, "parameterNotFoundAction", &["Deny", "Allow"]),
    }
}

fn actions(errors: &mut Errors, given: &Value, path: &FieldPath) {
    const SUPPORTED: [&str; 3] = ["Audit", "Deny", "Warn"];
    let actions: Vec<&str> = given.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if actions.is_empty() {
        errors.required(path, "");
    }
    for (index, action) in actions.iter().enumerate() {
        if !SUPPORTED.contains(action) {
            errors.unsupported(&path.index(index), *action, &SUPPORTED);
        }
        if actions[..index].contains(action) {
            errors.duplicate(&path.index(index), *action);
        }
    }
    if actions.contains(&"Deny") && actions.contains(&"Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.invalid(path, given.clone(), detail);
    }
}
