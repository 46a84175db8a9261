//! Services: defaults, and what updates may leave out. Addresses and node ports are the allocator's.

use serde_json::{Value, json};

use super::edit::{
    child, copy, existing, fill, fill_absent, fill_number, is_empty, items, list, remove, text,
};

pub fn default(service: &mut Value) {
    let balanced = service["spec"]["type"] == "LoadBalancer";
    if let Some(balancer) = existing(service, "status").and_then(|status| existing(status, "loadBalancer")) {
        for ingress in items(balancer, "ingress").filter(|_| balanced) {
            if !text(ingress, "ip").is_empty() {
                fill(ingress, "ipMode", "VIP");
            }
        }
    }
    let Some(spec) = existing(service, "spec") else { return };
    fill(spec, "type", "ClusterIP");
    fill(spec, "sessionAffinity", "None");
    if spec["sessionAffinity"] == "None" {
        remove(spec, "sessionAffinityConfig");
    }
    if spec["sessionAffinity"] == "ClientIP" {
        let client = child(child(spec, "sessionAffinityConfig"), "clientIP");
        fill(client, "timeoutSeconds", 10_800);
    }
    for port in items(spec, "ports") {
        fill(port, "protocol", "TCP");
        let number = port["port"].clone();
        if port["targetPort"].as_i64() == Some(0) || port.get("targetPort").is_none_or(is_empty) {
            port["targetPort"] = number;
        }
    }
    let kind = text(spec, "type").to_owned();
    if kind == "ExternalName" {
        return;
    }
    fill(spec, "internalTrafficPolicy", "Cluster");
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
        fill(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        fill(spec, "allocateLoadBalancerNodePorts", true);
    }
}

/// A new service belongs to one address family: the allocator has IPv4 addresses only.
pub fn create(object: &mut Value) {
    let Some(spec) = existing(object, "spec") else { return };
    if text(spec, "type") != "ExternalName" {
        fill(spec, "ipFamilies", json!(["IPv4"]));
        fill_absent(spec, "ipFamilyPolicy", "SingleStack");
        complete_address(spec);
    }
}

/// The list of addresses has the one address of clients that know no list.
fn complete_address(spec: &mut Value) {
    let address = text(spec, "clusterIP").to_owned();
    if !address.is_empty() {
        fill(spec, "clusterIPs", json!([address]));
    }
}

/// What only services of the old type have goes, where an update does not set it anew (upstream: `dropTypeDependentFields`).
fn leave_out(spec: &mut Value, old: &Value, fields: &[&str]) {
    for &field in fields {
        if spec.get(field) == old.get(field) {
            remove(spec, field);
        }
    }
}

/// An update may leave out the allocated address and node ports, as long as the type keeps them.
pub fn update(new: &mut Value, old: &Value) {
    if new["spec"]["type"] != "LoadBalancer" && !is_empty(&new["status"]["loadBalancer"]) {
        new["status"]["loadBalancer"] = json!({});
    }
    let old = &old["spec"];
    let Some(spec) = existing(new, "spec") else { return };
    if text(spec, "type") == "ExternalName" {
        for field in ["internalTrafficPolicy", "ipFamilies", "ipFamilyPolicy"] {
            if spec.get(field) == old.get(field) {
                remove(spec, field);
            }
        }
        return;
    }
    if text(old, "type") == "ExternalName" {
        return;
    }
    for field in ["ipFamilies", "ipFamilyPolicy"] {
        if is_empty(&spec[field]) {
            copy(spec, old, field);
        }
    }
    complete_address(spec);
    if is_empty(&spec["clusterIP"]) && list(spec, "clusterIPs").is_empty() {
        copy(spec, old, "clusterIP");
        copy(spec, old, "clusterIPs");
    } else if spec["clusterIP"] != old["clusterIP"] && spec["clusterIPs"] == old["clusterIPs"] {
        // A client that knows only one of the two fields changed that one.
        let address = spec["clusterIP"].clone();
        spec["clusterIPs"] = json!([address]);
    }
    if text(spec, "type") != "LoadBalancer" {
        leave_out(spec, old, &["healthCheckNodePort", "allocateLoadBalancerNodePorts", "loadBalancerClass"]);
    }
    if !matches!(text(spec, "type"), "NodePort" | "LoadBalancer") {
        leave_out(spec, old, &["externalTrafficPolicy"]);
        return;
    }
    if text(spec, "type") == "LoadBalancer"
        && text(spec, "externalTrafficPolicy") == "Local"
        && spec["healthCheckNodePort"].as_i64().unwrap_or(0) == 0
    {
        copy(spec, old, "healthCheckNodePort");
    }
    for port in items(spec, "ports") {
        let known = list(old, "ports")
            .iter()
            .find(|known| known["port"] == port["port"] && text(known, "protocol") == text(port, "protocol"));
        if let Some(number) = known.and_then(|known| known["nodePort"].as_i64()).filter(|number| *number != 0)
        {
            fill_number(port, "nodePort", number);
        }
    }
}
