//! The EndpointSlices of an Endpoints object that somebody made, as a pure function of it
//! (`k8s.io/kubernetes/pkg/controller/endpointslicemirroring`).

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use setpoint::kube::ResourceExt;

use super::desired::slice_name;

/// `--mirroring-max-endpoints-per-subset` of kube-controller-manager: no slice can hold more, and a subset gets one.
const ENDPOINTS_PER_SUBSET: usize = 1000;
/// Annotations that say something about the Endpoints object, not about what it lists.
const NOT_COPIED: [&str; 2] =
    ["kubectl.kubernetes.io/last-applied-configuration", "endpoints.kubernetes.io/last-change-trigger-time"];

/// Whether somebody else than a controller keeps these endpoints, and wants them to be used: their Service has no selector, they are no lock
/// of an election and not marked as having slices already.
pub(super) fn is_mirrored(endpoints: &Endpoints, service: &Service) -> bool {
    let selects =
        service.spec.as_ref().is_some_and(|spec| spec.selector.as_ref().is_some_and(|s| !s.is_empty()));
    let skipped = endpoints
        .labels()
        .get("endpointslice.kubernetes.io/skip-mirror")
        .is_some_and(|value| value == "true");
    let lock = endpoints.annotations().contains_key("control-plane.alpha.kubernetes.io/leader");
    !(selects || skipped || lock)
}

/// One slice for each list of ports and family of addresses.
pub(super) fn slices(endpoints: &Endpoints) -> Vec<EndpointSlice> {
    let mut groups: BTreeMap<_, (Vec<EndpointPort>, Vec<Endpoint>)> = BTreeMap::new();
    for subset in endpoints.subsets.iter().flatten() {
        let ports: Vec<_> = subset.ports.iter().flatten().map(slice_port).collect();
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let not_ready = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        for (address, ready) in ready.chain(not_ready).take(ENDPOINTS_PER_SUBSET) {
            let family = match address.ip.parse() {
                Ok(IpAddr::V4(_)) => "IPv4",
                Ok(IpAddr::V6(_)) => "IPv6",
                // Validation lets none of these in.
                Err(_) => continue,
            };
            let group =
                groups.entry((family, format!("{ports:?}"))).or_insert_with(|| (ports.clone(), Vec::new()));
            group.1.push(endpoint(address, ready));
        }
    }
    let mut slices = Vec::new();
    for ((family, _), (ports, listed)) in groups {
        for chunk in listed.chunks(ENDPOINTS_PER_SUBSET) {
            slices.push(EndpointSlice {
                metadata: metadata(endpoints, slices.len()),
                address_type: family.to_owned(),
                endpoints: Some(chunk.to_vec()),
                ports: Some(ports.clone()),
            });
        }
    }
    slices
}

fn metadata(endpoints: &Endpoints, number: usize) -> ObjectMeta {
    let mut labels = endpoints.labels().clone();
    labels.insert("kubernetes.io/service-name".to_owned(), endpoints.name_any());
    labels.insert(
        "endpointslice.kubernetes.io/managed-by".to_owned(),
        "endpointslicemirroring-controller.k8s.io".to_owned(),
    );
    let mut annotations = endpoints.annotations().clone();
    annotations.retain(|key, _| !NOT_COPIED.contains(&key.as_str()));
    ObjectMeta {
        name: Some(slice_name(&endpoints.metadata, number)),
        namespace: endpoints.namespace(),
        labels: Some(labels),
        annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
        ..ObjectMeta::default()
    }
}

fn slice_port(port: &k8s_openapi::api::core::v1::EndpointPort) -> EndpointPort {
    EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        port: Some(port.port),
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
        app_protocol: port.app_protocol.clone(),
    }
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..EndpointConditions::default() }),
        hostname: address.hostname.clone().filter(|name| !name.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn endpoints(labels: &Value, annotations: &Value) -> Endpoints {
        serde_json::from_value(json!({
            "metadata": {"name": "db", "namespace": "shop", "uid": "u1", "labels": labels, "annotations": annotations},
            "subsets": [
                {"addresses": [{"ip": "192.0.2.1"}, {"ip": "2001:db8::1"}],
                 "notReadyAddresses": [{"ip": "192.0.2.2", "hostname": "two"}],
                 "ports": [{"name": "sql", "port": 3306, "protocol": "TCP"}]},
                {"addresses": [{"ip": "192.0.2.3"}], "ports": [{"port": 80}]},
            ],
        }))
        .unwrap()
    }

    #[test]
    fn a_slice_for_each_list_of_ports_and_family_of_addresses() {
        let annotations = json!({"team": "data", NOT_COPIED[0]: "{}"});
        let slices = slices(&endpoints(&json!({"tier": "db"}), &annotations));
        let mut listed: Vec<_> = slices
            .iter()
            .map(|slice| {
                let addresses = slice.endpoints.iter().flatten().map(|endpoint| {
                    (endpoint.addresses[0].as_str(), endpoint.conditions.as_ref().unwrap().ready.unwrap())
                });
                let port = slice.ports.as_ref().unwrap()[0].port.unwrap();
                (slice.address_type.as_str(), port, addresses.collect::<Vec<_>>())
            })
            .collect();
        listed.sort_unstable();
        let sql = vec![("192.0.2.1", true), ("192.0.2.2", false)];
        let wanted = [
            ("IPv4", 80, vec![("192.0.2.3", true)]),
            ("IPv4", 3306, sql),
            ("IPv6", 3306, vec![("2001:db8::1", true)]),
        ];
        assert_eq!(listed, wanted);
        let names: std::collections::BTreeSet<_> = slices.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names.len(), 3, "{names:?}");
        let labels = slices[0].labels();
        assert_eq!(labels["kubernetes.io/service-name"], "db");
        assert_eq!(labels["tier"], "db");
        assert_eq!(slices[0].annotations().keys().collect::<Vec<_>>(), ["team"]);
    }

    #[test]
    fn what_a_controller_keeps_is_not_mirrored() {
        let service = |spec: Value| serde_json::from_value::<Service>(json!({"spec": spec})).unwrap();
        let (plain, selecting) = (service(json!({})), service(json!({"selector": {"app": "db"}})));
        let by_hand = endpoints(&json!({}), &json!({}));
        assert!(is_mirrored(&by_hand, &plain));
        assert!(!is_mirrored(&by_hand, &selecting));
        let skipped = endpoints(&json!({"endpointslice.kubernetes.io/skip-mirror": "true"}), &json!({}));
        assert!(!is_mirrored(&skipped, &plain));
        let lock = endpoints(&json!({}), &json!({"control-plane.alpha.kubernetes.io/leader": "{}"}));
        assert!(!is_mirrored(&lock, &plain));
    }
}
