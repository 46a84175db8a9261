//! Ingresses and network policies (`pkg/apis/networking/validation`).

use std::net::IpAddr;

use serde_json::Value;
use setpoint_schema::{FieldError, FieldPath};

use super::{address, errors::Errors, selector};
use crate::{
    builtin::edit::{list, text},
    object_meta::NameRule,
};

/// How long the name of a controller may be.
const CONTROLLER_LIMIT: usize = 250;

/// Checks an ingress.
pub fn ingress(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    let class = text(spec, "ingressClassName");
    let annotation = text(&new["metadata"]["annotations"], "kubernetes.io/ingress.class");
    if old.is_none() && !class.is_empty() && !annotation.is_empty() && class != annotation {
        let detail = "must match `ingressClassName` when both are specified";
        errors.invalid(&FieldPath::from("annotations.kubernetes.io/ingress.class"), annotation, detail);
    }
    for (index, tls) in list(spec, "tls").iter().enumerate() {
        let path = path.child("tls").index(index);
        for (index, host) in list(tls, "hosts").iter().filter_map(Value::as_str).enumerate() {
            let path = path.child("hosts").index(index);
            if host.contains('*') {
                errors.wildcard(&path, host);
            } else {
                errors.name(&path, host, NameRule::Subdomain);
            }
        }
        let secret = text(tls, "secretName");
        if !secret.is_empty() {
            errors.name(&path.child("secretName"), secret, NameRule::Subdomain);
        }
    }
    if spec["defaultBackend"].is_null() && list(spec, "rules").is_empty() {
        // Upstream shows no value here.
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.invalid(&path, Value::Null, detail);
    }
    if spec["defaultBackend"].is_object() {
        backend(errors, &spec["defaultBackend"], &path.child("defaultBackend"));
    }
    for (index, rule) in list(spec, "rules").iter().enumerate() {
        let path = path.child("rules").index(index);
        let host = text(rule, "host");
        if host.parse::<IpAddr>().is_ok() {
            errors.invalid(&path.child("host"), host, "must be a DNS name, not an IP address");
        } else if host.contains('*') {
            errors.wildcard(&path.child("host"), host);
        } else if !host.is_empty() {
            errors.name(&path.child("host"), host, NameRule::Subdomain);
        }
        if rule["http"].is_object() && list(&rule["http"], "paths").is_empty() {
            errors.required(&path.child("http.paths"), "");
        }
        for (index, one) in list(&rule["http"], "paths").iter().enumerate() {
            let path = path.child("http.paths").index(index);
            ingress_path(errors, one, &path);
            if !one["pathType"].is_null() {
                backend(errors, &one["backend"], &path.child("backend"));
            }
        }
    }
    if let Some(class) = spec["ingressClassName"].as_str() {
        errors.name(&path.child("ingressClassName"), class, NameRule::Subdomain);
    }
}

/// Where requests go: a service or a resource.
fn backend(errors: &mut Errors, backend: &Value, path: &FieldPath) {
    let (service, resource) = (&backend["service"], &backend["resource"]);
    match (service.is_object(), resource.is_object()) {
        (true, true) => errors.invalid(path, "", "cannot set both resource and service backends"),
        (false, false) => errors.invalid(path, "", "resource or service backend is required"),
        (false, true) => {
            for key in ["kind", "name"] {
                errors.present(resource, &path.child("resource"), key);
            }
            if let Some(group) = resource["apiGroup"].as_str() {
                errors.name(&path.child("resource.apiGroup"), group, NameRule::Subdomain);
            }
        }
        (true, false) => {
            let at = path.child("service");
            if errors.present(service, &at, "name") {
                for problem in service_name(text(service, "name")) {
                    errors.invalid(&at.child("name"), text(service, "name"), problem);
                }
            }
            let (name, number) =
                (text(&service["port"], "name"), service["port"]["number"].as_i64().unwrap_or(0));
            match (name.is_empty(), number) {
                (false, 1..) => errors.invalid(path, "", "cannot set both port name & port number"),
                (false, _) => errors.port(&at.child("port.name"), &name.into()),
                (true, 0) => errors.required(path, "port name or number is required"),
                (true, _) => errors.port(&at.child("port.number"), &number.into()),
            }
        }
    }
}

/// What is wrong with the name of a service.
fn service_name(name: &str) -> Vec<String> {
    NameRule::Label.check(name, false)
}

/// The addresses of a status.
pub fn ingress_status(errors: &mut Errors, new: &Value) {
    let path = FieldPath::from("status.loadBalancer.ingress");
    for (index, one) in list(&new["status"]["loadBalancer"], "ingress").iter().enumerate() {
        let path = path.index(index);
        let (ip, host) = (text(one, "ip"), text(one, "hostname"));
        if !ip.is_empty() {
            errors.ip(&path.child("ip"), ip);
        }
        if host.parse::<IpAddr>().is_ok() {
            errors.invalid(&path.child("hostname"), host, "must be a DNS name, not an IP address");
        } else if !host.is_empty() {
            errors.name(&path.child("hostname"), host, NameRule::Subdomain);
        }
    }
}

fn ingress_path(errors: &mut Errors, one: &Value, path: &FieldPath) {
    let (at, given) = (path.child("path"), text(one, "path"));
    match text(one, "pathType") {
        "" if one["pathType"].is_null() => {
            errors.required(&path.child("pathType"), "pathType must be specified");
        }
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

pub fn ingress_class(errors: &mut Errors, new: &Value) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    let controller = text(spec, "controller");
    if controller.len() > CONTROLLER_LIMIT {
        errors.push(FieldError::too_long(&path.child("controller"), CONTROLLER_LIMIT as u64));
    }
    if !controller.is_empty() {
        errors.domain_path(&path.child("controller"), controller);
    }
    let (parameters, path) = (&spec["parameters"], path.child("parameters.namespace"));
    let namespace = !parameters["namespace"].is_null();
    if !matches!(text(parameters, "scope"), "Namespace" | "Cluster") {
        return;
    }
    match text(parameters, "scope") {
        "Namespace" if !namespace => errors.required(&path, "`parameters.scope` is set to 'Namespace'"),
        "Namespace" => errors.name(&path, text(parameters, "namespace"), NameRule::Label),
        "Cluster" if namespace => errors.forbidden(&path, "`parameters.scope` is set to 'Cluster'"),
        _ => {}
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
            _ if port["port"].is_null() => {
                errors.invalid(&at, end, "may not be specified when `port` is not specified");
            }
            None => errors.invalid(&at, end, "may not be specified when `port` is non-numeric"),
            Some(start) => {
                if end < start {
                    errors.invalid(&at, end, "must be greater than or equal to `port`");
                }
                errors.port(&at, &end.into());
            }
        }
    }
}

fn policy_peer(errors: &mut Errors, peer: &Value, path: &FieldPath) {
    let selectors = ["podSelector", "namespaceSelector"];
    for key in selectors {
        selector::check(errors, &peer[key], &path.child(key));
    }
    let selected = selectors.iter().any(|key| peer[*key].is_object());
    let block = &peer["ipBlock"];
    if !selected && !block.is_object() {
        errors.required(path, "must specify a peer");
    }
    if selected && block.is_object() {
        errors.forbidden(path, "may not specify both ipBlock and another peer");
    }
    if !block.is_object() {
        return;
    }
    let path = path.child("ipBlock");
    let range = text(block, "cidr");
    if range.is_empty() {
        return errors.required(&path.child("cidr"), "");
    }
    let whole = cidr(errors, &path.child("cidr"), range);
    for (index, except) in list(block, "except").iter().filter_map(Value::as_str).enumerate() {
        let path = path.child("except").index(index);
        let Some(part) = cidr(errors, &path, except) else { continue };
        if whole.is_some_and(|whole| !within(part, whole)) {
            errors.invalid(&path, except, "must be a strict subset of `cidr`");
        }
    }
}

/// The bits of an address, and how many it may have.
fn bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)), 32),
        IpAddr::V6(address) => (u128::from(address), 128),
    }
}

/// Whether a range lies in another one and is smaller.
fn within((part, length): (IpAddr, u8), (whole, shorter): (IpAddr, u8)) -> bool {
    let ((part, width), (whole, other)) = (bits(part), bits(whole));
    let prefix = |bits: u128| bits.checked_shr(u32::from(width - shorter)).unwrap_or(0);
    width == other && length > shorter && prefix(part) == prefix(whole)
}

/// A range of addresses such as `10.0.0.0/8`.
pub fn cidr(errors: &mut Errors, path: &FieldPath, range: &str) -> Option<(IpAddr, u8)> {
    let parts = range.split_once('/').and_then(|(address, length)| {
        let digits = length.bytes().all(|byte| byte.is_ascii_digit());
        Some((address::read(address)?, length, length.parse::<u8>().ok().filter(|_| digits)?))
    });
    let parts =
        parts.map(|(read, written, length)| (read, written.len() > 1 && written.starts_with('0'), length));
    let Some((read, zero, length)) = parts.filter(|(read, _, length)| *length <= bits(read.address).1) else {
        errors.invalid(path, range, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)");
        return None;
    };
    let address = read.address;
    if read.mapped {
        errors.invalid(path, range, "must not have an IPv4-mapped IPv6 address");
        return Some((address, length));
    }
    if read.zeros || zero {
        errors.invalid(path, range, "must not have leading 0s in IP or prefix length");
        return Some((address, length));
    }
    let (address_bits, width) = bits(address);
    if address_bits & 1_u128.checked_shl(u32::from(width - length)).unwrap_or(0).wrapping_sub(1) != 0 {
        errors.invalid(path, range, "must not have bits set beyond the prefix length");
    }
    Some((address, length))
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
            let rule = json!({"host": "*.example.com", "http": {"paths": [{"path": path, "pathType": kind,
                    "backend": {"service": {"name": "s", "port": {"number": 80}}}}]}});
            fields(|errors| ingress(errors, &json!({"spec": {"rules": [rule]}}), None))
        };
        assert!(of("Prefix", "/a").is_empty());
        assert!(of("ImplementationSpecific", "").is_empty());
        assert_eq!(of("Exact", "a"), ["spec.rules[0].http.paths[0].path"]);
        assert_eq!(of("Prefix", "/a/../b"), ["spec.rules[0].http.paths[0].path"]);
        assert_eq!(of("Nope", "/"), ["spec.rules[0].http.paths[0].pathType"]);
    }
}
