//! Ingresses and network policies (`pkg/apis/networking/validation`).

use std::net::IpAddr;

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::{errors::Errors, selector};
use crate::{
    builtin::edit::{list, text},
    object_meta::NameRule,
};

/// Checks an ingress.
pub fn ingress(errors: &mut Errors, new: &Value) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    if spec["defaultBackend"].is_null() && list(spec, "rules").is_empty() {
        // Upstream shows no value here.
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.invalid(&path, Value::Null, detail);
    }
    for (index, rule) in list(spec, "rules").iter().enumerate() {
        let path = path.child("rules").index(index);
        let host = text(rule, "host");
        if host.parse::<IpAddr>().is_ok() {
            errors.invalid(&path.child("host"), host, "must be a DNS name, not an IP address");
        } else if !host.is_empty() {
            errors.name(&path.child("host"), host.strip_prefix("*.").unwrap_or(host), NameRule::Subdomain);
        }
        for (index, one) in list(&rule["http"], "paths").iter().enumerate() {
            ingress_path(errors, one, &path.child("http.paths").index(index));
        }
    }
}

fn ingress_path(errors: &mut Errors, one: &Value, path: &FieldPath) {
    let (at, given) = (path.child("path"), text(one, "path"));
    match text(one, "pathType") {
        "" => errors.required(&path.child("pathType"), "pathType must be specified"),
        "Exact" | "Prefix" => {
            if !given.starts_with('/') {
                errors.invalid(&at, given, "must be an absolute path");
            }
            for part in ["//", "/./", "/../", "%2f", "%2F"] {
                if given.contains(part) {
                    errors.invalid(&at, given, format!("must not contain '{part}'"));
                }
            }
            for end in ["/..", "/."] {
                if given.ends_with(end) {
                    errors.invalid(&at, given, format!("cannot end with '{end}'"));
                }
            }
        }
        "ImplementationSpecific" => {
            if !given.is_empty() && !given.starts_with('/') {
                errors.invalid(&at, given, "must be an absolute path");
            }
        }
        other => {
            let supported = ["Exact", "ImplementationSpecific", "Prefix"];
            errors.unsupported(&path.child("pathType"), other, &supported);
        }
    }
}

pub fn ingress_class(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    if let Some(old) = old {
        errors.immutable(&new["spec"], &old["spec"], &FieldPath::from("spec"), "controller");
    }
}

/// Checks a network policy.
pub fn policy(errors: &mut Errors, new: &Value) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    selector::check(errors, &spec["podSelector"], &path.child("podSelector"));
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (index, rule) in list(spec, direction).iter().enumerate() {
            let path = path.child(direction).index(index);
            for (index, port) in list(rule, "ports").iter().enumerate() {
                policy_port(errors, port, &path.child("ports").index(index));
            }
            for (index, peer) in list(rule, peers).iter().enumerate() {
                policy_peer(errors, peer, &path.child(peers).index(index));
            }
        }
    }
    let types = list(spec, "policyTypes");
    if types.len() > 2 {
        errors.invalid(&path.child("policyTypes"), types, "may not specify more than two policyTypes");
        return;
    }
    for (index, kind) in types.iter().filter_map(Value::as_str).enumerate() {
        if !matches!(kind, "Ingress" | "Egress") {
            errors.unsupported(&path.child("policyTypes").index(index), kind, &["Ingress", "Egress"]);
        }
    }
}

fn policy_port(errors: &mut Errors, port: &Value, path: &FieldPath) {
    errors.one_of(port, path, "protocol", &["TCP", "UDP", "SCTP"]);
    if !port["port"].is_null() {
        errors.port(&path.child("port"), &port["port"]);
    }
    if let Some(end) = port["endPort"].as_i64() {
        let at = path.child("endPort");
        match port["port"].as_i64() {
            Some(start) if end < start => {
                errors.invalid(&at, end, "must be greater than or equal to `port`");
            }
            Some(_) => {}
            None if port["port"].is_null() => {
                errors.required(&path.child("port"), "must be specified when `endPort` is specified");
            }
            None => errors.invalid(&at, end, "may not be specified when `port` is non-numeric"),
        }
    }
}

fn policy_peer(errors: &mut Errors, peer: &Value, path: &FieldPath) {
    let selectors = ["podSelector", "namespaceSelector"];
    for key in selectors {
        selector::check(errors, &peer[key], &path.child(key));
    }
    let selected = selectors.iter().any(|key| peer[*key].is_object());
    match (selected, peer["ipBlock"].is_object()) {
        (false, false) => errors.required(path, "must specify a peer"),
        (true, true) => {
            errors.forbidden(path, "may not specify both ipBlock and another peer");
        }
        (false, true) => {
            let path = path.child("ipBlock");
            let range = text(&peer["ipBlock"], "cidr");
            if range.is_empty() {
                errors.required(&path.child("cidr"), "");
            } else {
                cidr(errors, &path.child("cidr"), range);
            }
            for (index, except) in list(&peer["ipBlock"], "except").iter().enumerate() {
                cidr(errors, &path.child("except").index(index), except.as_str().unwrap_or_default());
            }
        }
        (true, false) => {}
    }
}

/// A range of addresses such as `10.0.0.0/8`.
fn cidr(errors: &mut Errors, path: &FieldPath, range: &str) {
    let parts = range
        .split_once('/')
        .and_then(|(address, bits)| Some((address.parse::<IpAddr>().ok()?, bits.parse::<u8>().ok()?)));
    let fits = parts.is_some_and(|(address, bits)| bits <= if address.is_ipv4() { 32 } else { 128 });
    if !fits {
        errors.invalid(path, range, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(check: impl FnOnce(&mut Errors)) -> Vec<String> {
        let mut errors = Errors::default();
        check(&mut errors);
        errors.into_inner().into_iter().map(|error| error.path.to_string()).collect()
    }

    #[test]
    fn ranges_and_peers_of_policies_are_checked() {
        let of = |peer: Value| {
            let object = json!({"spec": {"podSelector": {}, "ingress": [{"from": [peer]}]}});
            fields(|errors| policy(errors, &object))
        };
        assert!(of(json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}})).is_empty());
        assert!(of(json!({"ipBlock": {"cidr": "2001:db8::/64"}})).is_empty());
        assert_eq!(of(json!({"ipBlock": {"cidr": "10.0.0.0/33"}})), ["spec.ingress[0].from[0].ipBlock.cidr"]);
        assert_eq!(of(json!({})), ["spec.ingress[0].from[0]"]);
        let both = json!({"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}});
        assert_eq!(of(both), ["spec.ingress[0].from[0]"]);
    }

    #[test]
    fn paths_of_ingresses_are_absolute() {
        let of = |kind: &str, path: &str| {
            let rule =
                json!({"host": "*.example.com", "http": {"paths": [{"path": path, "pathType": kind}]}});
            fields(|errors| ingress(errors, &json!({"spec": {"rules": [rule]}})))
        };
        assert!(of("Prefix", "/a").is_empty());
        assert!(of("ImplementationSpecific", "").is_empty());
        assert_eq!(of("Exact", "a"), ["spec.rules[0].http.paths[0].path"]);
        assert_eq!(of("Prefix", "/a/../b"), ["spec.rules[0].http.paths[0].path"]);
        assert_eq!(of("Nope", "/"), ["spec.rules[0].http.paths[0].pathType"]);
    }
}
