//! The names of a cluster, made from its Services and EndpointSlices: a pure function.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;

use crate::network::forward::{Slices, cluster_addresses, serves};

/// The cluster's domain, absolute.
pub(super) const DOMAIN: &str = "cluster.local.";

/// Reverse zones of the Services' (10.96.0.0/12) and pods' (10.244.0.0/16) networks: whether we answer for an address.
fn ours(address: Ipv4Addr) -> bool {
    let [a, b, ..] = address.octets();
    a == 10 && (b & 0xf0 == 96 || b == 244)
}

/// What is at one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Records {
    /// A records.
    pub(super) addresses: BTreeSet<Ipv4Addr>,
    /// SRV records: port and absolute name.
    pub(super) servers: BTreeSet<(u16, String)>,
    /// PTR records: absolute names.
    pub(super) pointers: BTreeSet<String>,
    /// CNAME record: an absolute name.
    pub(super) alias: Option<String>,
}

/// What a zone says to a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    /// The name exists, maybe only as a part of others.
    Name(&'a Records),
    /// The zone is ours and has no such name.
    Nothing,
    /// Another zone.
    NotOurs,
}

/// All names of a cluster, absolute and in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Zone(BTreeMap<String, Records>);

impl Zone {
    /// The names for these Services and their endpoints.
    pub(crate) fn new<'a>(services: impl IntoIterator<Item = &'a Service>, slices: &Slices<'_>) -> Self {
        let mut zone = Self::default();
        zone.name(DOMAIN);
        for service in services {
            let key = (service.namespace().unwrap_or_default(), service.name_any());
            zone.add_service(service, slices.get(&key).map(Vec::as_slice).unwrap_or_default());
        }
        zone
    }

    /// Makes the name exist, and all above it that are ours.
    fn name(&mut self, name: &str) -> &mut Records {
        let mut above = name;
        while let Some((_, parent)) = above.split_once('.')
            && parent.ends_with(DOMAIN)
        {
            self.0.entry(parent.to_owned()).or_default();
            above = parent;
        }
        self.0.entry(name.to_owned()).or_default()
    }

    fn add_service(&mut self, service: &Service, slices: &[&EndpointSlice]) {
        let namespace = service.namespace().unwrap_or_default();
        let base = format!("{}.{namespace}.svc.{DOMAIN}", service.name_any());
        let Some(spec) = &service.spec else { return };
        if spec.type_.as_deref() == Some("ExternalName") {
            if let Some(target) = &spec.external_name {
                self.name(&base).alias = Some(format!("{}.", target.trim_end_matches('.')));
            }
            return;
        }
        let addresses = cluster_addresses(service);
        if addresses.is_empty() {
            for slice in slices {
                self.add_endpoints(&base, &namespace, slice);
            }
            return;
        }
        for address in &addresses {
            self.name(&base).addresses.insert(*address);
            self.name(&reverse(*address)).pointers.insert(base.clone());
        }
        for port in spec.ports.iter().flatten() {
            let (Some(name), Ok(number)) = (&port.name, u16::try_from(port.port)) else { continue };
            let protocol = port.protocol.as_deref().unwrap_or("TCP").to_ascii_lowercase();
            self.name(&format!("_{name}._{protocol}.{base}")).servers.insert((number, base.clone()));
        }
    }

    /// The names of a headless Service: the Service's own with all addresses, and one for each endpoint.
    fn add_endpoints(&mut self, base: &str, namespace: &str, slice: &EndpointSlice) {
        for endpoint in slice.endpoints.iter().flatten().filter(|endpoint| serves(endpoint)) {
            for address in endpoint.addresses.iter().filter_map(|text| text.parse::<Ipv4Addr>().ok()) {
                let dashed = address.to_string().replace('.', "-");
                let label = endpoint.hostname.as_deref().filter(|name| !name.is_empty()).unwrap_or(&dashed);
                let own = format!("{label}.{base}");
                self.name(base).addresses.insert(address);
                self.name(&own).addresses.insert(address);
                self.name(&reverse(address)).pointers.insert(own.clone());
                self.name(&format!("{dashed}.{namespace}.pod.{DOMAIN}")).addresses.insert(address);
                for port in slice.ports.iter().flatten() {
                    let Some(number) = port.port.and_then(|port| u16::try_from(port).ok()) else { continue };
                    let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) else { continue };
                    let protocol = port.protocol.as_deref().unwrap_or("TCP").to_ascii_lowercase();
                    self.name(&format!("_{name}._{protocol}.{base}")).servers.insert((number, own.clone()));
                }
            }
        }
    }

    /// Looks up an absolute name, in any case.
    pub(super) fn find(&self, name: &str) -> Found<'_> {
        let name = name.to_ascii_lowercase();
        match self.0.get(&name) {
            Some(records) => Found::Name(records),
            None if name.ends_with(&format!(".{DOMAIN}")) || reverse_address(&name).is_some_and(ours) => {
                Found::Nothing
            }
            None => Found::NotOurs,
        }
    }
}

/// The name of an address in the reverse zone.
fn reverse(address: Ipv4Addr) -> String {
    let [a, b, c, d] = address.octets();
    format!("{d}.{c}.{b}.{a}.in-addr.arpa.")
}

fn reverse_address(name: &str) -> Option<Ipv4Addr> {
    let digits = name.strip_suffix(".in-addr.arpa.")?;
    let mut octets = digits.split('.').map(|part| part.parse::<u8>().ok());
    let (d, c, b, a) = (octets.next()??, octets.next()??, octets.next()??, octets.next()??);
    octets.next().is_none().then(|| Ipv4Addr::new(a, b, c, d))
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;
    use crate::network::forward::by_service;

    fn objects(endpoints: &serde_json::Value) -> (Vec<Service>, EndpointSlice) {
        let service = |name: &str, spec| {
            serde_json::from_value(json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec}))
                .unwrap()
        };
        let services = vec![
            service("orders", json!({"clusterIP": "10.96.3.4", "ports": [{"name": "redis", "port": 6379}]})),
            service("orders-nodes", json!({"clusterIP": "None", "ports": [{"name": "redis", "port": 6379}]})),
            service("many", json!({"clusterIP": "None"})),
            service("other", json!({"type": "ExternalName", "externalName": "db.example.com"})),
        ];
        let slice = serde_json::from_value(json!({
            "metadata": {"name": "s", "namespace": "default", "labels": {"kubernetes.io/service-name":
                if endpoints.as_array().is_some_and(|all| all.len() > 10) { "many" } else { "orders-nodes" }}},
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": "redis", "port": 6379, "protocol": "TCP"}],
        }))
        .unwrap();
        (services, slice)
    }

    pub(in crate::network::dns) fn example() -> Zone {
        let (services, slice) = objects(&json!([
            {"addresses": ["10.244.1.2"], "hostname": "orders-0"},
            {"addresses": ["10.244.1.3"]},
            {"addresses": ["10.244.1.4"], "conditions": {"ready": false}},
        ]));
        Zone::new(&services, &by_service([&slice]))
    }

    pub(in crate::network::dns) fn many(count: u8) -> Zone {
        let endpoints: Vec<_> =
            (1..=count).map(|last| json!({"addresses": [format!("10.244.2.{last}")]})).collect();
        let (services, slice) = objects(&json!(endpoints));
        Zone::new(&services, &by_service([&slice]))
    }

    fn addresses(zone: &Zone, name: &str) -> Vec<String> {
        match zone.find(name) {
            Found::Name(records) => records.addresses.iter().map(ToString::to_string).collect(),
            other => vec![format!("{other:?}")],
        }
    }

    #[test]
    fn names_of_services_and_their_endpoints() {
        let zone = example();
        assert_eq!(addresses(&zone, "orders.default.svc.cluster.local."), ["10.96.3.4"]);
        assert_eq!(addresses(&zone, "orders-nodes.default.svc.cluster.local."), ["10.244.1.2", "10.244.1.3"]);
        assert_eq!(addresses(&zone, "orders-0.orders-nodes.default.svc.cluster.local."), ["10.244.1.2"]);
        assert_eq!(addresses(&zone, "10-244-1-3.orders-nodes.default.svc.cluster.local."), ["10.244.1.3"]);
        assert_eq!(addresses(&zone, "10-244-1-3.default.pod.cluster.local."), ["10.244.1.3"]);
        // Parts of names exist without records; others do not.
        assert_eq!(zone.find("default.svc.cluster.local."), Found::Name(&Records::default()));
        assert_eq!(zone.find("nothing.svc.cluster.local."), Found::Nothing);
        assert_eq!(zone.find("9.9.244.10.in-addr.arpa."), Found::Nothing);
        assert_eq!(zone.find("8.8.8.8.in-addr.arpa."), Found::NotOurs);
        assert_eq!(zone.find("example.com."), Found::NotOurs);
        let Found::Name(records) = zone.find("other.default.svc.cluster.local.") else { unreachable!() };
        assert_eq!(records.alias.as_deref(), Some("db.example.com."));
    }
}
