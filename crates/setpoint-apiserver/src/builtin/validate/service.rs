//! Services, endpoint slices and endpoints.

use std::{collections::BTreeSet, net::IpAddr};

use serde_json::{Value, json};
use setpoint_schema::{FieldError, FieldPath};

use super::{
    address,
    errors::{Errors, IMMUTABLE},
    network,
};
use crate::{
    builtin::edit::{list, text},
    object_meta::NameRule,
};

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

const MOST_HINTS: usize = 8;
const MOST_ADDRESSES: usize = 100;
const MOST_ENDPOINTS: usize = 1000;

const FAMILY_POLICIES: [&str; 3] = ["PreferDualStack", "RequireDualStack", "SingleStack"];

/// Checks a service, with the address that it has or was given.
pub fn service(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    let kind = text(spec, "type");
    if kind != "ExternalName" && !families(errors, spec, &path) {
        // Nothing else is looked at before the addresses are right.
        return;
    }
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
        if !list(spec, "clusterIPs").is_empty() || !text(spec, "clusterIP").is_empty() {
            errors.forbidden(&path.child("clusterIPs"), "may not be set for ExternalName services");
        }
    } else if headless && matches!(kind, "LoadBalancer" | "NodePort") {
        let detail = format!("may not be set to 'None' for {kind} services");
        errors.invalid(&path.child("clusterIPs").index(0), "None", detail);
    }
    ports(errors, spec, &path, kind);
    errors.one_of(spec, &path, "sessionAffinity", &["ClientIP", "None"]);
    if let Some(seconds) = spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"].as_i64()
        && !(1..=86400).contains(&seconds)
    {
        let path = path.child("sessionAffinityConfig.clientIP.timeoutSeconds");
        errors.invalid(&path, seconds, "must be greater than 0 and less than 86400");
    }
    for (index, address) in list(spec, "externalIPs").iter().filter_map(Value::as_str).enumerate() {
        let path = path.child("externalIPs").index(index);
        errors.ip(&path, address);
        endpoint_address(errors, &path, address);
    }
    let external = text(spec, "externalTrafficPolicy");
    let reachable = matches!(kind, "NodePort" | "LoadBalancer")
        || kind == "ClusterIP" && !list(spec, "externalIPs").is_empty();
    if !external.is_empty() && !reachable {
        let detail = "may only be set for externally-accessible services";
        errors.invalid(&path.child("externalTrafficPolicy"), external, detail);
    } else {
        errors.one_of(spec, &path, "externalTrafficPolicy", &["Cluster", "Local"]);
    }
    errors.one_of(spec, &path, "internalTrafficPolicy", &["Cluster", "Local"]);
    errors.one_of(spec, &path, "trafficDistribution", &["PreferClose", "PreferSameZone", "PreferSameNode"]);
    load_balancer(errors, spec, &path, kind);
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

/// Checks families and addresses; answers whether they are right.
fn families(errors: &mut Errors, spec: &Value, path: &FieldPath) -> bool {
    let before = errors.len();
    let families = list(spec, "ipFamilies");
    for (index, family) in families.iter().enumerate() {
        let path = path.child("ipFamilies").index(index);
        if !matches!(family.as_str(), Some("IPv4" | "IPv6")) {
            errors.unsupported(&path, family.clone(), &["IPv4", "IPv6"]);
        }
        if families[..index].contains(family) {
            errors.duplicate(&path, family.clone());
        }
    }
    errors.one_of(spec, path, "ipFamilyPolicy", &FAMILY_POLICIES);
    let addresses = list(spec, "clusterIPs");
    for (index, address) in addresses.iter().filter_map(Value::as_str).enumerate() {
        if address == "None" {
            continue;
        }
        let path = path.child("clusterIPs").index(index);
        errors.ip(&path, address);
        let is = if address.contains(':') { "IPv6" } else { "IPv4" };
        let known = families.get(index).and_then(Value::as_str);
        let wanted = known.filter(|family| matches!(*family, "IPv4" | "IPv6")).unwrap_or(is);
        if address.parse::<IpAddr>().is_ok() && is != wanted {
            let detail = format!("expected an {wanted} value as indicated by `ipFamilies[{index}]`");
            errors.invalid(&path, address, detail);
        }
    }
    let first = addresses.first().and_then(Value::as_str).unwrap_or_default();
    if !text(spec, "clusterIP").is_empty() && !first.is_empty() && text(spec, "clusterIP") != first {
        errors.invalid(&path.child("clusterIPs"), addresses, "first value must match `clusterIP`");
    }
    errors.len() == before
}

/// Checks what only services of the type `LoadBalancer` have.
fn load_balancer(errors: &mut Errors, spec: &Value, path: &FieldPath, kind: &str) {
    const ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
    let balanced = kind == "LoadBalancer";
    let ranges = list(spec, "loadBalancerSourceRanges");
    if !ranges.is_empty() && !balanced {
        // Upstream names the field as Go does.
        errors.forbidden(&path.child("LoadBalancerSourceRanges"), ONLY);
    } else {
        for (index, range) in ranges.iter().filter_map(Value::as_str).enumerate() {
            network::cidr(errors, &path.child("LoadBalancerSourceRanges").index(index), range.trim());
        }
    }
    if !spec["allocateLoadBalancerNodePorts"].is_null() && !balanced {
        errors.forbidden(&path.child("allocateLoadBalancerNodePorts"), ONLY);
    }
    if let Some(class) = spec["loadBalancerClass"].as_str() {
        if balanced {
            errors.qualified(&path.child("loadBalancerClass"), class);
        } else {
            errors.forbidden(&path.child("loadBalancerClass"), ONLY);
        }
    }
    let port = spec["healthCheckNodePort"].as_i64().unwrap_or(0);
    if port != 0 && !(balanced && spec["externalTrafficPolicy"] == "Local") {
        let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errors.invalid(&path.child("healthCheckNodePort"), port, detail);
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
        if let Some(protocol) = port["appProtocol"].as_str() {
            errors.qualified(&path.child("appProtocol"), protocol);
        }
        if port["targetPort"] != port["port"] || port["port"].as_i64() == Some(0) {
            errors.port(&path.child("targetPort"), &port["targetPort"]);
        }
        if kind == "ClusterIP" && port["nodePort"].as_i64().is_some_and(|number| number != 0) {
            errors.forbidden(&path.child("nodePort"), "may not be used when `type` is 'ClusterIP'");
        }
        if !pairs.insert((text(port, "protocol"), port["port"].as_i64())) {
            let shown = json!({"protocol": port["protocol"], "port": port["port"]});
            errors.duplicate(&path, shown);
        }
    }
}

/// Checks an endpoint slice.
pub fn slice(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let root = FieldPath::root();
    if errors.present(new, &root, "addressType") {
        errors.one_of(new, &root, "addressType", &["FQDN", "IPv4", "IPv6"]);
    }
    // Endpoints that an update leaves alone are as good as they were.
    let known = old.is_some_and(|old| old["endpoints"] == new["endpoints"]);
    let endpoints = list(new, "endpoints");
    let few = endpoints.len() <= MOST_ENDPOINTS;
    if !few {
        let path = root.child("endpoints");
        errors.push(FieldError::too_many(&path, endpoints.len() as u64, MOST_ENDPOINTS as u64));
    }
    for (at, endpoint) in endpoints.iter().enumerate().filter(|_| few && !known) {
        let path = root.child("endpoints").index(at).child("addresses");
        let addresses = list(endpoint, "addresses");
        if addresses.len() > MOST_ADDRESSES {
            errors.push(FieldError::too_many(&path, addresses.len() as u64, MOST_ADDRESSES as u64));
        }
        if addresses.is_empty() {
            errors.required(&path, "");
        }
        for (index, address) in addresses.iter().filter_map(Value::as_str).enumerate() {
            slice_address(errors, &path, index, address, text(new, "addressType"));
        }
        slice_endpoint(errors, endpoint, &FieldPath::from("endpoints").index(at));
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
        match text(port, "protocol") {
            "" => errors.required(&path.child("protocol"), ""),
            other if !PROTOCOLS.contains(&other) => {
                errors.unsupported(&path.child("protocol"), other, &PROTOCOLS);
            }
            _ => {}
        }
        if !text(port, "appProtocol").is_empty() {
            errors.qualified(&path.child("appProtocol"), text(port, "appProtocol"));
        }
    }
    if let Some(old) = old {
        // Upstream shows no value here.
        if new["addressType"] != old["addressType"] {
            errors.invalid(&root.child("addressType"), Value::Null, IMMUTABLE);
        }
    }
}

/// Checks an address of an endpoint.
fn slice_address(errors: &mut Errors, all: &FieldPath, index: usize, address: &str, kind: &str) {
    let path = all.index(index);
    let unusual = address::read(address).is_some_and(|read| read.zeros || read.mapped);
    let parsed = address.parse::<IpAddr>();
    if let (false, "IPv4" | "IPv6", Ok(parsed)) = (unusual, kind, &parsed) {
        let canonical = parsed.to_string();
        if canonical != address {
            let detail = format!("must be in canonical form ({canonical:?})");
            return errors.invalid(&path, address, detail);
        }
    }
    match (kind, parsed) {
        ("FQDN", _) => errors.name(&path, address, NameRule::Subdomain),
        ("IPv4" | "IPv6", _) if unusual => errors.ip(&path, address),
        ("IPv4" | "IPv6", Err(_)) => errors.ip(&path, address),
        ("IPv4", Ok(IpAddr::V6(_))) => {
            errors.invalid(all, address, "must be an IPv4 address");
            endpoint_address(errors, &path, address);
        }
        ("IPv6", Ok(IpAddr::V4(_))) => {
            errors.invalid(all, address, "must be an IPv6 address");
            endpoint_address(errors, &path, address);
        }
        ("IPv4" | "IPv6", Ok(_)) => endpoint_address(errors, &path, address),
        _ => {}
    }
}

/// An address of an endpoint is one that others can reach.
fn endpoint_address(errors: &mut Errors, path: &FieldPath, address: &str) {
    let Ok(parsed) = address.parse::<IpAddr>() else { return };
    let (local, multicast) = match parsed {
        IpAddr::V4(address) => (address.is_link_local(), address.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(address) => {
            (address.segments()[0] & 0xffc0 == 0xfe80, address.segments()[0] & 0xff0f == 0xff02)
        }
    };
    for (wrong, detail) in [
        (parsed.is_unspecified(), format!("may not be unspecified ({address})")),
        (parsed.is_loopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned()),
        (local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned()),
        (multicast, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned()),
    ] {
        if wrong {
            errors.invalid(path, address, detail);
        }
    }
}

fn slice_endpoint(errors: &mut Errors, endpoint: &Value, path: &FieldPath) {
    if let Some(host) = endpoint["hostname"].as_str() {
        errors.name(&path.child("hostname"), host, NameRule::Label);
    }
    if let Some(node) = endpoint["nodeName"].as_str() {
        errors.name(&path.child("nodeName"), node, NameRule::Subdomain);
    }
    for key in ["forZones", "forNodes"] {
        let (hints, path) = (list(&endpoint["hints"], key), path.child("hints").child(key));
        if hints.len() > MOST_HINTS {
            // Upstream looks at nothing else then.
            return errors.push(FieldError::too_many(&path, hints.len() as u64, MOST_HINTS as u64));
        }
        let mut names = BTreeSet::new();
        for (index, hint) in hints.iter().enumerate() {
            let (name, path) = (text(hint, "name"), path.index(index).child("name"));
            if !names.insert(name) {
                errors.duplicate(&path, name);
            }
            if key == "forZones" {
                errors.label_value(&path, name);
            } else {
                errors.name(&path, name, NameRule::Subdomain);
            }
        }
    }
}

/// The addresses of a status.
pub fn status(errors: &mut Errors, new: &Value) {
    let path = FieldPath::from("status.loadBalancer.ingress");
    let ingress = list(&new["status"]["loadBalancer"], "ingress");
    if !ingress.is_empty() && text(&new["spec"], "type") != "LoadBalancer" {
        return errors.forbidden(&path, "may only be used when `spec.type` is 'LoadBalancer'");
    }
    for (index, one) in ingress.iter().enumerate() {
        let path = path.index(index);
        let (ip, host, mode) = (text(one, "ip"), text(one, "hostname"), text(one, "ipMode"));
        if !ip.is_empty() {
            errors.ip(&path.child("ip"), ip);
        }
        errors.one_of(one, &path, "ipMode", &["Proxy", "VIP"]);
        if ip.is_empty() && !mode.is_empty() {
            errors.forbidden(&path.child("ipMode"), "may not be specified when `ip` is not set");
        }
        if host.parse::<IpAddr>().is_ok() {
            errors.invalid(&path.child("hostname"), host, "must be a DNS name, not an IP address");
        } else if !host.is_empty() {
            errors.name(&path.child("hostname"), host, NameRule::Subdomain);
        }
    }
}

/// Checks endpoints.
pub fn endpoints(errors: &mut Errors, new: &Value) {
    for (subset_index, subset) in list(new, "subsets").iter().enumerate() {
        let path = FieldPath::from("subsets").index(subset_index);
        if list(subset, "addresses").is_empty() && list(subset, "notReadyAddresses").is_empty() {
            errors.required(&path, "must specify `addresses` or `notReadyAddresses`");
        }
        for key in ["addresses", "notReadyAddresses"] {
            for (index, address) in list(subset, key).iter().enumerate() {
                let (path, ip) = (path.child(key).index(index).child("ip"), text(address, "ip"));
                errors.ip(&path, ip);
                if address::read(ip).is_none() {
                    // The second check says it again, in other words.
                    errors.invalid(&path, ip, "must be a valid IP address");
                }
                endpoint_address(errors, &path, ip);
                let host = text(address, "hostname");
                if !host.is_empty() {
                    let path = FieldPath::from("subsets").index(subset_index).child(key).index(index);
                    errors.name(&path.child("hostname"), host, NameRule::Label);
                }
                if let Some(node) = address["nodeName"].as_str() {
                    let path = FieldPath::from("subsets").index(subset_index).child(key).index(index);
                    errors.name(&path.child("nodeName"), node, NameRule::Subdomain);
                }
            }
        }
        for (index, port) in list(subset, "ports").iter().enumerate() {
            let path = path.child("ports").index(index);
            let number = port["port"].as_i64().unwrap_or(0);
            errors.port(&path.child("port"), &number.into());
            errors.one_of(port, &path, "protocol", &PROTOCOLS);
        }
    }
}
