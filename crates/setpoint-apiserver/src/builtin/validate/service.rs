//! Services, endpoint slices and endpoints.

use std::collections::BTreeSet;

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::errors::{Errors, IMMUTABLE};
use crate::{
    builtin::edit::{list, text},
    object_meta::NameRule,
    status::GoValue,
};

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// Checks a service, with the address that it has or was given.
pub fn service(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    let kind = text(spec, "type");
    let headless = text(spec, "clusterIP") == "None";
    errors.one_of(spec, &path, "type", &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]);
    if list(spec, "ports").is_empty() && !headless && kind != "ExternalName" {
        errors.required(&path.child("ports"), "");
    }
    if kind == "ExternalName" {
        if errors.present(spec, &path, "externalName") {
            let name = text(spec, "externalName").trim_end_matches('.');
            errors.name(&path.child("externalName"), name, NameRule::Subdomain);
        }
    } else if headless && matches!(kind, "LoadBalancer" | "NodePort") {
        let detail = format!("may not be set to 'None' for {kind} services");
        errors.invalid(&path.child("clusterIPs").index(0), "None", detail);
    }
    for (index, address) in list(spec, "clusterIPs").iter().filter_map(Value::as_str).enumerate() {
        if address != "None" {
            errors.ip(&path.child("clusterIPs").index(index), address);
        }
    }
    ports(errors, spec, &path, kind);
    errors.one_of(spec, &path, "sessionAffinity", &["ClientIP", "None"]);
    errors.one_of(spec, &path, "internalTrafficPolicy", &["Cluster", "Local"]);
    errors.one_of(spec, &path, "ipFamilyPolicy", &["PreferDualStack", "RequireDualStack", "SingleStack"]);
    let external = text(spec, "externalTrafficPolicy");
    let reachable = matches!(kind, "NodePort" | "LoadBalancer") || !list(spec, "externalIPs").is_empty();
    if !external.is_empty() && !reachable {
        let detail = "may only be set for externally-accessible services";
        errors.invalid(&path.child("externalTrafficPolicy"), external, detail);
    }
    errors.labels(&path.child("selector"), &spec["selector"]);
    if let Some(old) = old.map(|old| &old["spec"])
        && kind != "ExternalName"
        && text(old, "type") != "ExternalName"
        && !text(old, "clusterIP").is_empty()
        && spec["clusterIPs"] != old["clusterIPs"]
    {
        let path = path.child("clusterIPs").index(0);
        errors.invalid(&path, spec["clusterIPs"].clone(), "may not change once set");
    }
}

fn ports(errors: &mut Errors, spec: &Value, path: &FieldPath, kind: &str) {
    let all = list(spec, "ports");
    let (mut names, mut pairs) = (BTreeSet::new(), BTreeSet::new());
    for (index, port) in all.iter().enumerate() {
        let path = path.child("ports").index(index);
        let name = text(port, "name");
        if name.is_empty() {
            if all.len() > 1 {
                errors.required(&path.child("name"), "");
            }
        } else {
            errors.name(&path.child("name"), name, NameRule::Label);
            if !names.insert(name) {
                errors.duplicate(&path.child("name"), name);
            }
        }
        errors.port(&path.child("port"), &port["port"]);
        errors.one_of(port, &path, "protocol", &PROTOCOLS);
        if port["targetPort"] != port["port"] || port["port"].as_i64() == Some(0) {
            errors.port(&path.child("targetPort"), &port["targetPort"]);
        }
        if kind == "ClusterIP" && port["nodePort"].as_i64().is_some_and(|number| number != 0) {
            errors.forbidden(&path.child("nodePort"), "may not be used when `type` is 'ClusterIP'");
        }
        if !pairs.insert((text(port, "protocol"), port["port"].as_i64())) {
            errors.duplicate_struct(
                &path,
                &GoValue::Struct(vec![
                    ("Name", GoValue::Plain("".into())),
                    ("Protocol", GoValue::Plain(port["protocol"].clone())),
                    ("AppProtocol", GoValue::Plain(Value::Null)),
                    ("Port", GoValue::Plain(port["port"].clone())),
                    ("TargetPort", GoValue::Plain(0.into())),
                    ("NodePort", GoValue::Plain(0.into())),
                ]),
            );
        }
    }
}

/// Checks an endpoint slice.
pub fn slice(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let root = FieldPath::root();
    if errors.present(new, &root, "addressType") {
        errors.one_of(new, &root, "addressType", &["FQDN", "IPv4", "IPv6"]);
    }
    for (index, endpoint) in list(new, "endpoints").iter().enumerate() {
        let path = root.child("endpoints").index(index).child("addresses");
        let addresses = list(endpoint, "addresses");
        if addresses.is_empty() {
            errors.required(&path, "");
        }
        for (index, address) in addresses.iter().filter_map(Value::as_str).enumerate() {
            match text(new, "addressType") {
                "FQDN" => errors.name(&path.index(index), address, NameRule::Subdomain),
                _ => errors.ip(&path.index(index), address),
            }
        }
    }
    let mut names = BTreeSet::new();
    for (index, port) in list(new, "ports").iter().enumerate() {
        let path = root.child("ports").index(index);
        let name = text(port, "name");
        if !name.is_empty() {
            errors.name(&path.child("name"), name, NameRule::Label);
        }
        if !names.insert(name) {
            errors.duplicate(&path.child("name"), name);
        }
        errors.one_of(port, &path, "protocol", &PROTOCOLS);
    }
    if let Some(old) = old {
        // Upstream shows no value here.
        if new["addressType"] != old["addressType"] {
            errors.invalid(&root.child("addressType"), Value::Null, IMMUTABLE);
        }
    }
}

/// Checks endpoints.
pub fn endpoints(errors: &mut Errors, new: &Value) {
    for (index, subset) in list(new, "subsets").iter().enumerate() {
        let path = FieldPath::from("subsets").index(index);
        if list(subset, "addresses").is_empty() && list(subset, "notReadyAddresses").is_empty() {
            errors.required(&path, "must specify `addresses` or `notReadyAddresses`");
        }
        for key in ["addresses", "notReadyAddresses"] {
            for (index, address) in list(subset, key).iter().enumerate() {
                errors.ip(&path.child(key).index(index).child("ip"), text(address, "ip"));
            }
        }
        for (index, port) in list(subset, "ports").iter().enumerate() {
            let path = path.child("ports").index(index);
            errors.port(&path.child("port"), &port["port"]);
            errors.one_of(port, &path, "protocol", &PROTOCOLS);
        }
    }
}
