//! Which endpoints a Service has, as a pure function of the Service and its pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, ObjectReference, Pod, Service, ServicePort,
};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointPort as SlicePort, EndpointSlice,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sha2::{Digest, Sha256};

use setpoint::kube::ResourceExt;
use setpoint_clock::name_characters;

/// `--max-endpoints-per-slice` of kube-controller-manager.
const ENDPOINTS_PER_SLICE: usize = 100;

/// The EndpointSlices of `service` over `pods` (those that its selector matches): at least one, at most 100
/// endpoints each. Pods whose named target port is another number go into slices of their own, as upstream
/// does.
pub(super) fn slices(service: &Service, pods: &[&Pod]) -> Vec<EndpointSlice> {
    let mut groups: BTreeMap<Vec<PortKey>, Vec<Endpoint>> = BTreeMap::new();
    for pod in pods {
        if let Some(ip) = address(pod) {
            groups.entry(slice_ports(service, Some(pod))).or_default().push(endpoint(service, pod, ip));
        }
    }
    if groups.is_empty() {
        groups.insert(slice_ports(service, None), Vec::new());
    }
    let mut slices = Vec::new();
    for (ports, mut endpoints) in groups {
        endpoints.sort_by(|a, b| a.addresses.cmp(&b.addresses));
        let mut rest = endpoints.as_slice();
        loop {
            let (chunk, next) = rest.split_at(rest.len().min(ENDPOINTS_PER_SLICE));
            slices.push(slice(service, slices.len(), &ports, chunk));
            rest = next;
            if rest.is_empty() {
                break;
            }
        }
    }
    slices
}

fn slice(service: &Service, number: usize, ports: &[PortKey], endpoints: &[Endpoint]) -> EndpointSlice {
    let mut labels = service.labels().clone();
    labels.insert("kubernetes.io/service-name".to_owned(), service.name_any());
    labels.insert(
        "endpointslice.kubernetes.io/managed-by".to_owned(),
        "endpointslice-controller.k8s.io".to_owned(),
    );
    if headless(service) {
        labels.insert("service.kubernetes.io/headless".to_owned(), String::new());
    }
    EndpointSlice {
        metadata: ObjectMeta {
            name: Some(slice_name(&service.metadata, number)),
            namespace: service.namespace(),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        address_type: "IPv4".to_owned(),
        endpoints: Some(endpoints.to_vec()),
        ports: Some(
            ports
                .iter()
                .map(|port| SlicePort {
                    name: Some(port.name.clone()),
                    port: Some(port.number),
                    protocol: Some(port.protocol.clone()),
                    app_protocol: port.app_protocol.clone(),
                })
                .collect(),
        ),
    }
}

/// `owner-xxxxx`, where the suffix follows from the owner's UID and the slice's number: the same after
/// a restart, so that a slice is never made twice, and another one for an owner that is made again.
pub(super) fn slice_name(owner: &ObjectMeta, number: usize) -> String {
    let digest = Sha256::digest(format!("{}/{number}", owner.uid.as_deref().unwrap_or_default()));
    let suffix = name_characters(&digest[..5]);
    format!("{}-{suffix}", owner.name.as_deref().unwrap_or_default())
}

/// The Endpoints object of `service`. Terminating pods are left out, as upstream does, unless the Service
/// publishes addresses that are not ready.
pub(super) fn endpoints(service: &Service, pods: &[&Pod]) -> Endpoints {
    let mut groups: BTreeMap<Vec<PortKey>, (Vec<EndpointAddress>, Vec<EndpointAddress>)> = BTreeMap::new();
    for pod in pods {
        let Some(ip) = address(pod) else { continue };
        let publish = publishes_not_ready(service);
        if pod.metadata.deletion_timestamp.is_some() && !publish {
            continue;
        }
        let (ready, not_ready) = groups.entry(slice_ports(service, Some(pod))).or_default();
        let address = EndpointAddress {
            ip: ip.to_owned(),
            hostname: hostname(service, pod),
            node_name: node_name(pod),
            target_ref: Some(reference(pod)),
        };
        if publish || is_ready(pod) { ready.push(address) } else { not_ready.push(address) }
    }
    let subsets: Vec<_> = groups
        .into_iter()
        .filter(|(_, (ready, not_ready))| !ready.is_empty() || !not_ready.is_empty())
        .map(|(ports, (mut ready, mut not_ready))| {
            ready.sort_by(|a, b| a.ip.cmp(&b.ip));
            not_ready.sort_by(|a, b| a.ip.cmp(&b.ip));
            EndpointSubset {
                addresses: some_unless_empty(ready),
                not_ready_addresses: some_unless_empty(not_ready),
                ports: some_unless_empty(
                    ports
                        .iter()
                        .map(|port| EndpointPort {
                            name: Some(port.name.clone()).filter(|name| !name.is_empty()),
                            port: port.number,
                            protocol: Some(port.protocol.clone()),
                            app_protocol: port.app_protocol.clone(),
                        })
                        .collect(),
                ),
            }
        })
        .collect();
    let mut labels = service.labels().clone();
    labels.insert("endpoints.kubernetes.io/managed-by".to_owned(), "endpoint-controller".to_owned());
    if headless(service) {
        labels.insert("service.kubernetes.io/headless".to_owned(), String::new());
    }
    Endpoints {
        metadata: ObjectMeta {
            name: Some(service.name_any()),
            namespace: service.namespace(),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        subsets: some_unless_empty(subsets),
    }
}

/// Whether the endpoints of `service` are made from a selector at all. Without one, or for an external
/// name, they are somebody else's.
pub(super) fn has_endpoints(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| {
        spec.selector.as_ref().is_some_and(|selector| !selector.is_empty())
            && spec.type_.as_deref() != Some("ExternalName")
    })
}

/// Whether the selector of `service` matches `pod`.
pub(super) fn selects(service: &Service, pod: &Pod) -> bool {
    has_endpoints(service)
        && service
            .spec
            .iter()
            .flat_map(|spec| spec.selector.iter().flatten())
            .all(|(label, value)| pod.labels().get(label).is_some_and(|actual| actual == value))
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PortKey {
    name: String,
    number: i32,
    protocol: String,
    app_protocol: Option<String>,
}

/// The ports of `service` as `pod` has them. A named target port that the pod doesn't declare is left out;
/// without a pod so are all named ones.
fn slice_ports(service: &Service, pod: Option<&Pod>) -> Vec<PortKey> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    ports
        .filter_map(|port| {
            Some(PortKey {
                name: port.name.clone().unwrap_or_default(),
                number: target_port(port, pod)?,
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect()
}

fn target_port(port: &ServicePort, pod: Option<&Pod>) -> Option<i32> {
    match &port.target_port {
        None | Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let containers = pod?.spec.iter().flat_map(|spec| &spec.containers);
            containers
                .flat_map(|container| container.ports.iter().flatten())
                .find(|declared| {
                    declared.name.as_deref() == Some(name)
                        && declared.protocol.as_deref().unwrap_or("TCP") == protocol
                })
                .map(|declared| declared.container_port)
        }
    }
}

fn endpoint(service: &Service, pod: &Pod, ip: &str) -> Endpoint {
    let serving = is_ready(pod);
    let terminating = pod.metadata.deletion_timestamp.is_some();
    Endpoint {
        addresses: vec![ip.to_owned()],
        conditions: Some(EndpointConditions {
            ready: Some(publishes_not_ready(service) || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: hostname(service, pod),
        node_name: node_name(pod),
        target_ref: Some(reference(pod)),
        ..Endpoint::default()
    }
}

/// The address of a pod that can be an endpoint: it has one, and it has not ended.
fn address(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref()?;
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return None;
    }
    status.pod_ip.as_deref().filter(|ip| !ip.is_empty())
}

fn is_ready(pod: &Pod) -> bool {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn publishes_not_ready(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses).unwrap_or(false)
}

fn headless(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None")
}

/// The pod's host name, when it is one in this Service's subdomain.
fn hostname(service: &Service, pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    if spec.subdomain.as_deref() == Some(&service.name_any()) { spec.hostname.clone() } else { None }
}

fn node_name(pod: &Pod) -> Option<String> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone())
}

fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: pod.namespace(),
        name: Some(pod.name_any()),
        uid: pod.uid(),
        ..ObjectReference::default()
    }
}

fn some_unless_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    if list.is_empty() { None } else { Some(list) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(spec: &serde_json::Value) -> Service {
        serde_json::from_value(
            json!({"metadata": {"name": "orders", "namespace": "shop", "uid": "u1"}, "spec": spec}),
        )
        .unwrap()
    }

    fn pod(name: &str, ip: &str, ready: bool) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": "orders"}},
            "spec": {"nodeName": "node-1", "hostname": name, "subdomain": "orders",
                     "containers": [{"name": "redis", "ports": [{"name": "redis", "containerPort": 6379}]}]},
            "status": {"podIP": ip, "phase": "Running",
                       "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
        }))
        .unwrap()
    }

    #[test]
    fn a_pod_that_is_not_ready_is_listed_but_not_ready() {
        let service =
            service(&json!({"selector": {"app": "orders"}, "ports": [{"port": 80, "targetPort": "redis"}]}));
        let (a, b) = (pod("orders-0", "10.244.0.2", true), pod("orders-1", "10.244.0.3", false));
        let slices = slices(&service, &[&b, &a]);
        assert_eq!(slices.len(), 1);
        let listed = slices[0].endpoints.clone().unwrap();
        let ready: Vec<_> = listed
            .iter()
            .map(|endpoint| (endpoint.addresses[0].as_str(), endpoint.conditions.as_ref().unwrap().ready))
            .collect();
        assert_eq!(ready, [("10.244.0.2", Some(true)), ("10.244.0.3", Some(false))]);
        assert_eq!(slices[0].ports.as_ref().unwrap()[0].port, Some(6379));
        let subsets = endpoints(&service, &[&a, &b]).subsets.unwrap();
        assert_eq!(subsets[0].addresses.as_ref().unwrap()[0].ip, "10.244.0.2");
        assert_eq!(subsets[0].not_ready_addresses.as_ref().unwrap()[0].ip, "10.244.0.3");
    }

    #[test]
    fn a_headless_service_publishes_what_is_not_ready_when_asked() {
        let service = service(&json!({"selector": {"app": "orders"}, "clusterIP": "None",
                                      "publishNotReadyAddresses": true, "ports": [{"port": 6379}]}));
        let mut leaving = pod("orders-0", "10.244.0.2", false);
        leaving.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        let slices = slices(&service, &[&leaving]);
        let endpoint = &slices[0].endpoints.as_ref().unwrap()[0];
        let conditions = endpoint.conditions.clone().unwrap();
        assert_eq!(
            (conditions.ready, conditions.serving, conditions.terminating),
            (Some(true), Some(false), Some(true))
        );
        assert_eq!(endpoint.hostname.as_deref(), Some("orders-0"));
        assert!(slices[0].labels().contains_key("service.kubernetes.io/headless"));
    }

    #[test]
    fn ended_pods_and_pods_without_address_are_no_endpoints() {
        let service = service(&json!({"selector": {"app": "orders"}, "ports": [{"port": 80}]}));
        let mut ended = pod("orders-0", "10.244.0.2", true);
        ended.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
        let waiting = pod("orders-1", "", false);
        let slices = slices(&service, &[&ended, &waiting]);
        assert_eq!(slices[0].endpoints.as_ref().unwrap().len(), 0);
        assert_eq!(endpoints(&service, &[&ended, &waiting]).subsets, None);
    }

    #[test]
    fn slices_hold_a_hundred_endpoints_and_keep_their_names() {
        let service = service(&json!({"selector": {"app": "orders"}, "ports": [{"port": 80}]}));
        let pods: Vec<_> =
            (0..150).map(|i| pod(&format!("orders-{i}"), &format!("10.244.1.{i}"), true)).collect();
        let references: Vec<_> = pods.iter().collect();
        let made = slices(&service, &references);
        let sizes: Vec<_> = made.iter().map(|slice| slice.endpoints.as_ref().unwrap().len()).collect();
        assert_eq!(sizes, [100, 50]);
        assert_eq!(made, slices(&service, &references));
        assert_ne!(made[0].name_any(), made[1].name_any());
    }
}
