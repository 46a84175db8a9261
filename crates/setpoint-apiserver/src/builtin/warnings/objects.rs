//! What is odd about objects that are no pods and make none (`pkg/api/*/warnings.go`, `WarningsOnCreate` and `WarningsOnUpdate` of strategies).

use std::net::IpAddr;

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::{OLD_VOLUMES, key_pair, of_node_term, old_label};
use crate::builtin::Quantity;
use crate::builtin::edit::{list, text};

/// The warnings about a new object or any update of one.
pub(super) fn warnings(group: &str, kind: &str, new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut warnings = Vec::new();
    match (group, kind) {
        ("", "Service") => service(new, &mut warnings),
        ("", "Endpoints") => endpoints(new, &mut warnings),
        ("", "PersistentVolume") => volume(new, &mut warnings),
        ("", "PersistentVolumeClaim") => {
            const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
            if !new["metadata"]["annotations"][CLASS].is_null() {
                warnings.push(format!(
                    r#"metadata.annotations[{CLASS}]: deprecated since v1.8; use "storageClassName" attribute instead"#
                ));
            }
            claim_spec(&new["spec"], &FieldPath::from("spec"), &mut warnings);
        }
        ("", "Secret") if text(new, "type") == "kubernetes.io/tls" => warnings.extend(key_pair::fault(new)),
        ("", "ServiceAccount") => {
            const MOUNTABLE: &str = "kubernetes.io/enforce-mountable-secrets";
            let has = |object: &Value| !object["metadata"]["annotations"][MOUNTABLE].is_null();
            if has(new) && !old.is_some_and(has) {
                warnings.push(format!("metadata.annotations[{MOUNTABLE}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"));
            }
        }
        ("", "Node") => node(new, &mut warnings),
        ("", "ResourceQuota") if old.is_none() => quota(&new["spec"]["hard"], &mut warnings),
        ("discovery.k8s.io", "EndpointSlice") => {
            let managed = &new["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"];
            if managed == "endpointslice-controller.k8s.io"
                || managed == "endpointslicemirroring-controller.k8s.io"
            {
                return warnings;
            }
            for (index, endpoint) in list(new, "endpoints").iter().enumerate() {
                let path = FieldPath::from("endpoints").index(index).child("addresses");
                addresses(endpoint, "addresses", &path, &mut warnings);
            }
        }
        ("networking.k8s.io", "NetworkPolicy") => network_policy(&new["spec"], &mut warnings),
        ("storage.k8s.io", "CSIDriver") => driver(new, old, &mut warnings),
        ("storage.k8s.io", "StorageClass") => {
            for (index, topology) in list(new, "allowedTopologies").iter().enumerate() {
                let path = FieldPath::from("allowedTopologies").index(index).child("matchLabelExpressions");
                for (index, expression) in list(topology, "matchLabelExpressions").iter().enumerate() {
                    let what = old_label(text(expression, "key"));
                    warnings.extend(what.map(|what| format!("{}: {what}", path.index(index).child("key"))));
                }
            }
        }
        ("storage.k8s.io", "CSIStorageCapacity") => {
            let path = FieldPath::from("nodeTopology");
            warnings.extend(of_node_term(&new["nodeTopology"], false, &path));
            for key in
                new["nodeTopology"]["matchLabels"].as_object().into_iter().flatten().map(|(key, _)| key)
            {
                let at = path.child("matchLabels").child(key);
                warnings.extend(old_label(key).map(|what| format!("{at}: {what}")));
            }
        }
        ("node.k8s.io", "RuntimeClass") => {
            for key in new["scheduling"]["nodeSelector"].as_object().into_iter().flatten().map(|(key, _)| key)
            {
                warnings.extend(old_label(key).map(|what| format!("scheduling.nodeSelector: {what}")));
            }
        }
        ("resource.k8s.io", "ResourceSlice") => {
            let driver = text(&new["spec"], "driver");
            if driver != driver.to_lowercase() {
                warnings.push(format!(
                    "spec.driver: driver names should be lowercase; {driver:?} contains uppercase characters"
                ));
            }
        }
        _ => {}
    }
    warnings
}

fn service(service: &Value, warnings: &mut Vec<String>) {
    const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
    let (spec, path) = (&service["spec"], FieldPath::from("spec"));
    let (kind, external) = (text(spec, "type"), !list(spec, "externalIPs").is_empty());
    let headless = kind == "ClusterIP" && text(spec, "clusterIP") == "None";
    if !service["metadata"]["annotations"][HINTS].is_null() {
        warnings.push(format!(
            "annotation {HINTS} is deprecated, please use service.kubernetes.io/topology-mode instead"
        ));
    }
    if !matches!(text(spec, "clusterIP"), "" | "None") {
        addresses(spec, "clusterIPs", &path.child("clusterIPs"), warnings);
    }
    if headless {
        if !text(spec, "loadBalancerIP").is_empty() {
            warnings.push("spec.loadBalancerIP is ignored for headless services".to_owned());
        }
        if external {
            warnings.push("spec.externalIPs is ignored for headless services".to_owned());
        }
        if text(spec, "sessionAffinity") != "None" {
            warnings.push("spec.SessionAffinity is ignored for headless services".to_owned());
        }
    }
    addresses(spec, "externalIPs", &path.child("externalIPs"), warnings);
    if external && !headless && kind != "ExternalName" {
        warnings.push(
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters".to_owned(),
        );
    }
    warnings.extend(address(text(spec, "loadBalancerIP"), &path.child("loadBalancerIP")));
    for (index, range) in list(spec, "loadBalancerSourceRanges").iter().filter_map(Value::as_str).enumerate()
    {
        warnings.extend(network(range, &path.child("loadBalancerSourceRanges").index(index)));
    }
    if kind == "ExternalName" && external {
        warnings.push(r#"spec.externalIPs is ignored when spec.type is "ExternalName""#.to_owned());
    }
    if kind != "ExternalName" && !text(spec, "externalName").is_empty() {
        warnings.push(r#"spec.externalName is ignored when spec.type is not "ExternalName""#.to_owned());
    }
    if text(spec, "trafficDistribution") == "PreferClose" {
        warnings.push(
            r#"spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone""#.to_owned(),
        );
    }
}

fn endpoints(endpoints: &Value, warnings: &mut Vec<String>) {
    if endpoints["metadata"]["labels"]["endpoints.kubernetes.io/managed-by"] == "endpoint-controller" {
        return;
    }
    for (index, subset) in list(endpoints, "subsets").iter().enumerate() {
        for key in ["addresses", "notReadyAddresses"] {
            let path = FieldPath::from("subsets").index(index).child(key);
            for (index, one) in list(subset, key).iter().enumerate() {
                warnings.extend(address(text(one, "ip"), &path.index(index).child("ip")));
            }
        }
    }
}

fn volume(volume: &Value, warnings: &mut Vec<String>) {
    /// Annotations that fields have taken the place of.
    const OLD: [(&str, &str); 2] = [
        (
            "volume.beta.kubernetes.io/storage-class",
            r#"deprecated since v1.8; use "storageClassName" attribute instead"#,
        ),
        (
            "volume.beta.kubernetes.io/mount-options",
            r#"deprecated since v1.31; use "mountOptions" attribute instead"#,
        ),
    ];
    let (spec, path) = (&volume["spec"], FieldPath::from("spec"));
    for (key, what) in OLD {
        if !volume["metadata"]["annotations"][key].is_null() {
            warnings.push(format!("metadata.annotations[{key}]: {what}"));
        }
    }
    if spec["persistentVolumeReclaimPolicy"] == "Recycle" {
        warnings.push("spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.".to_owned());
    }
    let terms = path.child("nodeAffinity.required.nodeSelectorTerms");
    for (index, term) in list(&spec["nodeAffinity"]["required"], "nodeSelectorTerms").iter().enumerate() {
        warnings.extend(of_node_term(term, false, &terms.index(index)));
    }
    for (key, shown, what) in OLD_VOLUMES {
        // Of these only pods are warned.
        if !spec[key].is_null() && !matches!(key, "flocker" | "quobyte" | "gitRepo") {
            warnings.push(format!("{}: {what}", path.child(shown)));
        }
    }
}

/// Bytes have no parts.
pub(super) fn claim_spec(spec: &Value, path: &FieldPath, warnings: &mut Vec<String>) {
    for kind in ["requests", "limits"] {
        let quantity = spec["resources"][kind]["storage"].as_str().and_then(Quantity::parse);
        if let Some(quantity) = quantity.filter(|quantity| quantity.nanos() % 1_000_000_000 != 0) {
            let at = path.child("resources").child(kind).key("storage");
            let shown = quantity.to_string();
            warnings.push(format!("{at}: fractional byte value {shown:?} is invalid, must be an integer"));
        }
    }
}

fn node(node: &Value, warnings: &mut Vec<String>) {
    let spec = &node["spec"];
    if !spec["configSource"].is_null() {
        warnings.push("spec.configSource: the feature is removed".to_owned());
    }
    if !text(spec, "externalID").is_empty() {
        warnings.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned());
    }
    for (index, range) in list(spec, "podCIDRs").iter().filter_map(Value::as_str).enumerate() {
        warnings.extend(network(range, &FieldPath::from("spec.podCIDRs").index(index)));
    }
}

fn quota(hard: &Value, warnings: &mut Vec<String>) {
    for name in ["cpu", "memory", "storage", "ephemeral-storage"] {
        let amount = |name: &str| hard[name].as_str().and_then(Quantity::parse);
        let mut asked = format!("requests.{name}");
        if amount(&asked).is_none() && matches!(name, "cpu" | "memory") && amount(name).is_some() {
            name.clone_into(&mut asked);
        }
        let most = format!("limits.{name}");
        if let (Some(request), Some(limit)) = (amount(&asked), amount(&most))
            && request.nanos() > limit.nanos()
        {
            warnings.push(format!("ResourceQuota {asked} ({request}) should be less than {most} ({limit})"));
        }
    }
}

fn network_policy(spec: &Value, warnings: &mut Vec<String>) {
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (index, rule) in list(spec, direction).iter().enumerate() {
            let path = FieldPath::from("spec").child(direction).index(index).child(peers);
            for (index, peer) in list(rule, peers).iter().enumerate() {
                let (block, path) = (&peer["ipBlock"], path.index(index).child("ipBlock"));
                warnings.extend(network(text(block, "cidr"), &path.child("cidr")));
                for (index, except) in list(block, "except").iter().filter_map(Value::as_str).enumerate() {
                    warnings.extend(network(except, &path.child("except").index(index)));
                }
            }
        }
    }
}

fn driver(new: &Value, old: Option<&Value>, warnings: &mut Vec<String>) {
    let spec = &new["spec"];
    let asked = !list(spec, "tokenRequests").is_empty()
        && old.is_none_or(|old| old["spec"]["tokenRequests"] != spec["tokenRequests"]);
    if asked && spec["serviceAccountTokenInSecrets"].is_null() {
        warnings.push("spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes".to_owned());
    }
}

fn addresses(object: &Value, key: &str, path: &FieldPath, warnings: &mut Vec<String>) {
    for (index, one) in list(object, key).iter().filter_map(Value::as_str).enumerate() {
        warnings.extend(address(one, &path.index(index)));
    }
}

/// An address that Go once read and that is written in an unusual way.
fn address(text: &str, path: &FieldPath) -> Option<String> {
    let sloppy = sloppy_address(text)?;
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_none() => {
            let shown = address.to_string();
            (shown != text).then(|| {
                format!("{path}: IPv6 address {text:?} should be in RFC 5952 canonical format ({shown:?})")
            })
        }
        Ok(IpAddr::V4(_)) => None,
        _ => {
            Some(format!("{path}: non-standard IP address {text:?} is invalid: use {:?}", sloppy.to_string()))
        }
    }
}

/// An address, with zeros before decimal numbers; one of IPv4 in IPv6 is that of IPv4.
fn sloppy_address(text: &str) -> Option<IpAddr> {
    let plain = if text.contains(':') {
        text.to_owned()
    } else {
        let part = |part: &str| part.trim_start_matches('0').to_owned();
        let parts = text.split('.').map(|text| match part(text) {
            short if short.is_empty() && !text.is_empty() => "0".to_owned(),
            short => short,
        });
        parts.collect::<Vec<_>>().join(".")
    };
    let address: IpAddr = plain.parse().ok()?;
    Some(match address {
        IpAddr::V6(six) => six.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    })
}

/// A network that Go once read and that is written in an unusual way.
fn network(text: &str, path: &FieldPath) -> Vec<String> {
    let Some((given, length)) = text.split_once('/') else { return Vec::new() };
    let (Some(address), Ok(length)) = (sloppy_address(given), length.parse::<u32>()) else {
        return Vec::new();
    };
    let mapped = given.contains(':') && address.is_ipv4();
    let length = if mapped { length.saturating_sub(96) } else { length };
    let (masked, bits) = match address {
        IpAddr::V4(four) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(length)).unwrap_or(0);
            (IpAddr::from(std::net::Ipv4Addr::from(u32::from(four) & mask)), 32)
        }
        IpAddr::V6(six) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(length)).unwrap_or(0);
            (IpAddr::from(std::net::Ipv6Addr::from(u128::from(six) & mask)), 128)
        }
    };
    let whole = format!("{masked}/{length}");
    let mut warnings = Vec::new();
    if masked != address {
        let single = format!("{address}/{bits}");
        warnings.push(format!(
            "{path}: CIDR value {text:?} is ambiguous in this context (should be {whole:?} or {single:?}?)"
        ));
    }
    let standard = given.parse::<IpAddr>().is_ok() && !mapped;
    if !standard {
        warnings.push(format!("{path}: non-standard CIDR value {text:?} is invalid: use {whole:?}"));
    }
    let shown = format!("{address}/{length}");
    if warnings.is_empty() && address.is_ipv6() && shown != text {
        warnings.push(format!(
            "{path}: IPv6 CIDR value {text:?} should be in RFC 5952 canonical format ({shown:?})"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_addresses_and_networks() {
        let path = FieldPath::from("f");
        assert_eq!(address("1.2.3.4", &path), None);
        assert_eq!(
            address("01.2.3.4", &path).as_deref(),
            Some(r#"f: non-standard IP address "01.2.3.4" is invalid: use "1.2.3.4""#)
        );
        assert_eq!(
            address("1::0:1", &path).as_deref(),
            Some(r#"f: IPv6 address "1::0:1" should be in RFC 5952 canonical format ("1::1")"#)
        );
        assert_eq!(network("10.0.0.0/8", &path), Vec::<String>::new());
        assert_eq!(
            network("10.1.0.0/8", &path),
            [
                r#"f: CIDR value "10.1.0.0/8" is ambiguous in this context (should be "10.0.0.0/8" or "10.1.0.0/32"?)"#
            ]
        );
    }
}
