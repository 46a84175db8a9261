//! Configurations of admission webhooks (`pkg/apis/admissionregistration/validation`), and the places of webhooks of all sorts
//! (`k8s.io/apiserver/pkg/util/webhook`).

use std::collections::BTreeSet;

use serde_json::Value;
use setpoint_schema::FieldPath;
use setpoint_schema::cel::policy::Environment;

use super::{conditions, errors::Errors, selector};
use crate::admission::environment;
use crate::builtin::edit::{list, text};
use crate::object_meta::{NameRule, is_label};

const FORM: &str = "; desired format: https://host[/path]";
const DNS_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";

/// Checks a mutating or validating configuration.
pub fn configuration(errors: &mut Errors, new: &Value) {
    let mut names = BTreeSet::new();
    let environment = environment(false);
    for (index, hook) in list(new, "webhooks").iter().enumerate() {
        let path = FieldPath::from("webhooks").index(index);
        webhook(errors, hook, &path, &environment);
        let name = text(hook, "name");
        if !name.is_empty() && !names.insert(name) {
            errors.duplicate(&path.child("name"), name);
        }
    }
}

fn webhook(errors: &mut Errors, hook: &Value, path: &FieldPath, environment: &Environment) {
    let name = text(hook, "name");
    let at = path.child("name");
    if name.is_empty() {
        errors.required(&at, "");
    } else {
        let before = errors.len();
        errors.name(&at, name, NameRule::Subdomain);
        if errors.len() == before && name.split('.').count() < 3 {
            errors.invalid(&at, name, "should be a domain with at least three segments separated by dots");
        }
    }
    conditions::rules(errors, &hook["rules"], &path.child("rules"));
    for (key, supported) in [
        ("failurePolicy", ["Fail", "Ignore"]),
        ("matchPolicy", ["Equivalent", "Exact"]),
        ("reinvocationPolicy", ["IfNeeded", "Never"]),
    ] {
        given_one_of(errors, hook, path, key, &supported);
    }
    if hook["sideEffects"].is_null() {
        errors.required(&path.child("sideEffects"), "must specify one of None, NoneOnDryRun");
    }
    given_one_of(errors, hook, path, "sideEffects", &["None", "NoneOnDryRun"]);
    if let Some(seconds) = hook["timeoutSeconds"].as_i64().filter(|seconds| !(1..=30).contains(seconds)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.invalid(&path.child("timeoutSeconds"), seconds, detail);
    }
    for key in ["namespaceSelector", "objectSelector"] {
        selector::check(errors, &hook[key], &path.child(key));
    }
    client(errors, &hook["clientConfig"], &path.child("clientConfig"));
    let given = &hook["matchConditions"];
    conditions::match_conditions(errors, given, &path.child("matchConditions"), environment);
    let versions = path.child("admissionReviewVersions");
    if list(hook, "admissionReviewVersions").is_empty() {
        errors.required(&versions, "must specify one of v1, v1beta1");
    } else {
        review_versions(errors, list(hook, "admissionReviewVersions"), &versions);
    }
}

fn given_one_of(errors: &mut Errors, object: &Value, path: &FieldPath, key: &str, supported: &[&str]) {
    if let Some(given) = object[key].as_str().filter(|given| !supported.contains(given)) {
        errors.unsupported(&path.child(key), given, supported);
    }
}

/// Checks the versions of reviews that a webhook takes, of which there is one.
pub fn review_versions(errors: &mut Errors, versions: &[Value], path: &FieldPath) {
    let mut seen = BTreeSet::new();
    for (index, version) in versions.iter().enumerate() {
        let (version, at) = (version.as_str().unwrap_or_default(), path.index(index));
        if !seen.insert(version) {
            errors.invalid(&at, version, "duplicate version");
        } else if !is_label(version) || version.starts_with(|first: char| first.is_ascii_digit()) {
            errors.invalid(&at, version, DNS_1035);
        }
    }
    if !seen.contains("v1") && !seen.contains("v1beta1") {
        errors.invalid(path, versions, "must include at least one of v1, v1beta1");
    }
}

/// Checks a `clientConfig`: a URL or a Service.
pub fn client(errors: &mut Errors, config: &Value, path: &FieldPath) {
    if config["url"].is_null() == config["service"].is_null() {
        errors.required(path, "exactly one of url or service is required");
    } else if let Some(given) = config["url"].as_str() {
        url(errors, given, &path.child("url"));
    } else {
        service(errors, &config["service"], &path.child("service"));
    }
}

/// Checks a URL, by the parts that Go's parser finds in it.
fn url(errors: &mut Errors, given: &str, path: &FieldPath) {
    let (rest, fragment) = given.split_once('#').unwrap_or((given, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (scheme, rest) = match rest.split_once(':') {
        Some((scheme, rest)) if !scheme.is_empty() && !scheme.contains('/') => (scheme, rest),
        _ => ("", rest),
    };
    let authority = rest.strip_prefix("//").map(|rest| rest.split('/').next().unwrap_or_default());
    let (user, host) = match authority.unwrap_or_default().rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority.unwrap_or_default()),
    };
    if let Some(wrong) = host.chars().find(|c| c.is_whitespace() || "\"<>\\^`{|}".contains(*c)) {
        let detail = format!(
            "url must be a valid URL: parse {given:?}: invalid character {:?} in host name{FORM}",
            wrong.to_string()
        );
        errors.required(path, &detail);
        return;
    }
    if scheme != "https" {
        errors.invalid(path, scheme, format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if host.is_empty() {
        errors.invalid(path, host, format!("host must be specified{FORM}"));
    }
    if let Some(user) = user {
        errors.invalid(path, user, "user information is not permitted in the URL");
    }
    if !fragment.is_empty() {
        errors.invalid(path, fragment, "fragments are not permitted in the URL");
    }
    if !query.is_empty() {
        errors.invalid(path, query, "query parameters are not permitted in the URL");
    }
}

fn service(errors: &mut Errors, service: &Value, path: &FieldPath) {
    // Upstream has taken one for the other.
    for (key, shown) in [("namespace", "name"), ("name", "namespace")] {
        if text(service, key).is_empty() {
            errors.required(&path.child(shown), "");
        }
    }
    let port = service["port"].as_i64().unwrap_or_default();
    if !(1..=65535).contains(&port) {
        let detail = "port is not valid: must be between 1 and 65535, inclusive";
        errors.invalid(&path.child("port"), port, detail);
    }
    let (given, at) = (text(service, "path"), path.child("path"));
    if matches!(given, "" | "/") {
        return;
    }
    if given == "//" {
        errors.invalid(&at, given, "segment[0] may not be empty");
        return;
    }
    if !given.starts_with('/') {
        errors.invalid(&at, given, "must start with a '/'");
    }
    // Go cuts the first character off, whatever it is.
    let rest = given.get(1..).unwrap_or_default();
    for (index, segment) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if segment.is_empty() {
            errors.invalid(&at, given, format!("segment[{index}] may not be empty"));
            continue;
        }
        for failure in NameRule::Subdomain.check(segment, false) {
            errors.invalid(&at, given, format!("segment[{index}]: {failure}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(check: impl FnOnce(&mut Errors)) -> Vec<String> {
        let mut errors = Errors::default();
        check(&mut errors);
        errors.into_inner().into_iter().map(|error| error.path.to_string()).collect()
    }

    #[test]
    fn places_are_checked() {
        let root = FieldPath::from("c");
        assert!(of(|errors| client(errors, &json!({"url": "https://a:1/b"}), &root)).is_empty());
        assert_eq!(of(|errors| client(errors, &json!({"url": "http://u@a/b?c#d"}), &root)), ["c.url"; 4]);
        let service = json!({"service": {"name": "a", "namespace": "b", "port": 443, "path": "/c/d"}});
        assert!(of(|errors| client(errors, &service, &root)).is_empty());
    }
}
