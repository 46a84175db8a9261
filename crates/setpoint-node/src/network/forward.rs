//! From Services and EndpointSlices to the connections that must be redirected: a pure function.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;

/// Label of an EndpointSlice with the name of its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// What a Service port carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
}

/// One port of one Service address, and where its connections go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Forward {
    /// The Service's address.
    pub(crate) address: Ipv4Addr,
    /// The Service's port.
    pub(crate) port: u16,
    /// TCP or UDP.
    pub(crate) protocol: Protocol,
    /// Ready endpoints, sorted; with none, connections are refused.
    pub(crate) endpoints: Vec<(Ipv4Addr, u16)>,
}

/// The endpoints' slices of each Service, by namespace and name.
pub(crate) type Slices<'a> = BTreeMap<(String, String), Vec<&'a EndpointSlice>>;

/// Groups slices by the Service that they belong to.
pub(crate) fn by_service<'a>(slices: impl IntoIterator<Item = &'a EndpointSlice>) -> Slices<'a> {
    let mut grouped = Slices::new();
    for slice in slices {
        if let (Some(namespace), Some(service)) = (slice.namespace(), slice.labels().get(SERVICE_NAME)) {
            grouped.entry((namespace, service.clone())).or_default().push(slice);
        }
    }
    grouped
}

/// All forwards of all Services with an address of their own, sorted.
pub(crate) fn forwards<'a>(
    services: impl IntoIterator<Item = &'a Service>,
    slices: &Slices<'_>,
) -> Vec<Forward> {
    let mut forwards: Vec<Forward> =
        services.into_iter().flat_map(|service| service_forwards(service, slices)).collect();
    forwards.sort();
    forwards.dedup();
    forwards
}

fn service_forwards(service: &Service, slices: &Slices<'_>) -> Vec<Forward> {
    let key = (service.namespace().unwrap_or_default(), service.name_any());
    let slices = slices.get(&key).map(Vec::as_slice).unwrap_or_default();
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    let addresses = cluster_addresses(service);
    addresses
        .iter()
        .flat_map(|address| ports.iter().filter_map(move |port| forward(*address, port, slices)))
        .collect()
}

/// The IPv4 addresses of a Service; none for a headless one.
pub(crate) fn cluster_addresses(service: &Service) -> Vec<Ipv4Addr> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let mut addresses: Vec<Ipv4Addr> = spec
        .cluster_ips
        .iter()
        .flatten()
        .chain(&spec.cluster_ip)
        .filter_map(|text| text.parse().ok())
        .collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

fn forward(address: Ipv4Addr, port: &ServicePort, slices: &[&EndpointSlice]) -> Option<Forward> {
    let protocol = match port.protocol.as_deref() {
        None | Some("TCP") => Protocol::Tcp,
        Some("UDP") => Protocol::Udp,
        Some(_) => return None,
    };
    let name = port.name.as_deref().unwrap_or_default();
    let mut endpoints: Vec<(Ipv4Addr, u16)> = slices
        .iter()
        .flat_map(|slice| {
            let target = slice
                .ports
                .iter()
                .flatten()
                .find(|target| target.name.as_deref().unwrap_or_default() == name)
                .and_then(|target| u16::try_from(target.port?).ok());
            slice.endpoints.iter().flatten().filter(|endpoint| serves(endpoint)).flat_map(move |endpoint| {
                endpoint.addresses.iter().filter_map(move |text| Some((text.parse().ok()?, target?)))
            })
        })
        .collect();
    endpoints.sort_unstable();
    endpoints.dedup();
    Some(Forward { address, port: u16::try_from(port.port).ok()?, protocol, endpoints })
}

/// Whether an endpoint gets connections: an unknown condition counts as ready (EndpointConditions' documentation).
pub(crate) fn serves(endpoint: &k8s_openapi::api::discovery::v1::Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(name: &str, address: &str) -> Service {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"clusterIP": address, "clusterIPs": [address], "ports": [
                {"name": "redis", "port": 6379, "protocol": "TCP", "targetPort": "redis"},
                {"name": "udp", "port": 53, "protocol": "UDP"},
            ]},
        }))
        .unwrap()
    }

    fn slice() -> EndpointSlice {
        serde_json::from_value(json!({
            "metadata": {"name": "orders-abc", "namespace": "default", "labels": {SERVICE_NAME: "orders"}},
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": ["10.244.1.3"], "conditions": {"ready": true}},
                {"addresses": ["10.244.1.2"]},
                {"addresses": ["10.244.1.4"], "conditions": {"ready": false}},
            ],
            "ports": [{"name": "redis", "port": 7000, "protocol": "TCP"}],
        }))
        .unwrap()
    }

    #[test]
    fn ready_endpoints_with_the_ports_name_serve_a_service() {
        let slice = slice();
        let found =
            forwards([&service("orders", "10.96.3.4"), &service("lonely", "None")], &by_service([&slice]));
        let address = Ipv4Addr::new(10, 96, 3, 4);
        let endpoint = |last| (Ipv4Addr::new(10, 244, 1, last), 7000);
        assert_eq!(
            found,
            [
                Forward { address, port: 53, protocol: Protocol::Udp, endpoints: vec![] },
                Forward {
                    address,
                    port: 6379,
                    protocol: Protocol::Tcp,
                    endpoints: vec![endpoint(2), endpoint(3)]
                },
            ]
        );
    }
}
