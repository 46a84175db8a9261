//! Rules of a schema: what can be told of them before they run.

use serde_json::Value;
use setpoint_schema::Schema;
use setpoint_schema::cel::Rules;

use super::{field_path, shown};
use crate::status::Cause;

const REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Checks what is beside a rule's expression; `schema` is the one that the rule is about.
pub(super) fn declaration(schema: &Value, rule: &Value, at: &str, causes: &mut Vec<Cause>) {
    let text = |key: &str| rule[key].as_str().unwrap_or_default();
    let broken = |text: &str| text.contains(['\n', '\r']);
    let message = text("message");
    let message_at = format!("{at}.message");
    if text("rule").trim().is_empty() {
        causes.push(Cause::required(format!("{at}.rule"), "rule is not specified"));
    } else if !message.is_empty() && message.trim().is_empty() {
        causes.push(Cause::invalid(message_at, &rule["message"], "must be non-empty if specified"));
    } else if broken(message.trim()) {
        causes.push(Cause::invalid(message_at, &rule["message"], "must not contain line breaks"));
    } else if broken(text("rule").trim()) && message.is_empty() {
        causes.push(Cause::required(message_at, "message must be specified if rule contains line breaks"));
    }
    let expression = text("messageExpression");
    if !expression.is_empty() && expression.trim().is_empty() {
        let detail = "messageExpression must be non-empty if specified";
        causes.push(Cause::required(format!("{at}.messageExpression"), detail));
    }
    if rule["reason"].is_string() && !REASONS.contains(&text("reason")) {
        causes.push(Cause::unsupported(format!("{at}.reason"), &rule["reason"], &REASONS));
    }
    let path = text("fieldPath");
    let path_at = format!("{at}.fieldPath");
    if !path.is_empty() && path.trim().is_empty() {
        causes.push(Cause::invalid(path_at.as_str(), &rule["fieldPath"], "must be non-empty if specified"));
    }
    if broken(path) {
        causes.push(Cause::invalid(path_at.as_str(), &rule["fieldPath"], "must not contain line breaks"));
    }
    if !path.is_empty() && field_path(schema, path, true).is_err() {
        causes.push(Cause::invalid(path_at, &rule["fieldPath"], "must be a valid path"));
    }
}

/// Checks the expressions of a schema whose declarations are right.
pub(super) fn check(schema: &Value, typed: &Schema, at: &str, causes: &mut Vec<Cause>) {
    match Rules::compile(typed) {
        Ok(rules) => costs(&rules, at, causes),
        Err(errors) => causes.extend(errors.into_iter().map(|error| {
            let field = format!("{at}.{}", error.path);
            Cause::invalid_struct(field, &shown(&error.rule), &error.problem)
        })),
    }
    transitions(schema, at, None, causes);
}

/// The most that one rule may cost by upstream's estimate, for all values that it looks at in a request (`StaticEstimatedCostLimit`).
const RULE_LIMIT: u64 = 10_000_000;
/// The most that all rules of a version may cost (`StaticEstimatedCRDCostLimit`).
const TOTAL_LIMIT: u64 = 100_000_000;
/// How many rules are named that make it too much.
const NAMED: usize = 4;

/// Refuses rules that may cost too much for what the schema allows.
fn costs(rules: &Rules, at: &str, causes: &mut Vec<Cause>) {
    let mut costs = rules.costs();
    for (path, cost) in costs.iter().filter(|(_, cost)| *cost > RULE_LIMIT) {
        let what = path.rsplit('.').next().unwrap_or_default();
        let detail = exceeded(&format!("estimated {what} cost"), *cost, RULE_LIMIT);
        causes.push(Cause::forbidden(format!("{at}.{path}"), &detail));
    }
    let total = costs.iter().fold(0, |total: u64, (_, cost)| total.saturating_add(*cost));
    if total <= TOTAL_LIMIT {
        return;
    }
    costs.retain(|(_, cost)| *cost >= TOTAL_LIMIT / 100);
    costs.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
    for (path, _) in costs.iter().take(NAMED) {
        let detail =
            "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
        causes.push(Cause::forbidden(format!("{at}.{path}"), detail));
    }
    let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
    causes.push(Cause::forbidden(at, &exceeded(what, total, TOTAL_LIMIT)));
}

fn exceeded(what: &str, cost: u64, limit: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "only a few digits are shown")]
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

/// Refuses transition rules where nothing tells which value was which before: `lost` is where that begins.
fn transitions(schema: &Value, at: &str, lost: Option<&str>, causes: &mut Vec<Cause>) {
    for (index, rule) in schema["x-kubernetes-validations"].as_array().into_iter().flatten().enumerate() {
        let at = format!("{at}.x-kubernetes-validations[{index}]");
        if uses_old_self(rule["rule"].as_str().unwrap_or_default()) {
            if let Some(lost) = lost {
                let detail = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {lost}"
                );
                causes.push(Cause::invalid(format!("{at}.rule"), &rule["rule"], &detail));
            }
        } else if !rule["optionalOldSelf"].is_null() {
            let detail = "may not be set if oldSelf is not used in rule";
            causes.push(Cause::invalid(format!("{at}.optionalOldSelf"), &rule["optionalOldSelf"], detail));
        }
    }
    let of_fields = (schema["x-kubernetes-map-type"] == "atomic").then_some(at);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        transitions(property, &format!("{at}.properties[{name}]"), lost.or(of_fields), causes);
    }
    if schema["additionalProperties"].is_object() {
        transitions(&schema["additionalProperties"], &format!("{at}.additionalProperties"), lost, causes);
    }
    if schema["items"].is_object() {
        let of_items = (schema["x-kubernetes-list-type"] != "map").then_some(at);
        transitions(&schema["items"], &format!("{at}.items"), lost.or(of_items), causes);
    }
}

/// Whether an expression that compiles names the variable `oldSelf`.
fn uses_old_self(expression: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '\'' | '"');
    expression.match_indices("oldSelf").any(|(start, name)| {
        let before = expression[..start].chars().next_back();
        let after = expression[start + name.len()..].chars().next();
        !before.is_some_and(part)
            && !after.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '\'' | '"'))
    })
}
