//! Addresses and ports of Services: taken at creation, kept on update, free again with the object.
//!
//! What is taken is read from the stored Services each time, so that there is nothing to repair. What a Service gets is
//! reserved until it is stored, since admission may take its time in between.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::Registry;
use super::prepare::refuse_invalid;
use crate::catalog::Resource;
use crate::object::{Metadata, fields};
use crate::status::{Cause, Result, Status};

/// `10.96.0.0/16`, of which the first address is the API server's own Service.
const NETWORK: [u8; 2] = [10, 96];
const FIRST_NODE_PORT: u64 = 30000;
const NODE_PORTS: u64 = 2768;
const NONE: &str = "None";

/// An address or a port, and the uid of the Service that it is for.
pub(super) type Reserved = (String, String);

/// What a Service got that is not stored yet. Free again when dropped.
pub(super) struct Reservation<'a> {
    registry: &'a Registry,
    reserved: Vec<Reserved>,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut all = self.registry.reserved.lock();
        for one in &self.reserved {
            if let Some(index) = all.iter().position(|known| known == one) {
                all.swap_remove(index);
            }
        }
    }
}

impl Registry {
    /// Gives a Service what it lacks. The reservation is held until the Service is stored.
    pub(super) fn allocate(
        &self,
        resource: &Resource,
        service: &mut Value,
        old: Option<&Value>,
    ) -> Result<Option<Reservation<'_>>> {
        if !resource.is("", "services") {
            return Ok(None);
        }
        let mut all = self.reserved.lock();
        let uid = service.meta("uid").to_owned();
        let reserved: BTreeSet<String> =
            all.iter().filter(|(_, other)| *other != uid).map(|(what, _)| what.clone()).collect();
        let mut causes = Vec::new();
        if service["spec"]["type"].as_str() == Some("ExternalName") {
            // A new one with an address is refused.
            for field in ["clusterIP", "clusterIPs"].into_iter().filter(|_| old.is_some()) {
                fields(&mut service["spec"]).remove(field);
            }
        } else {
            self.allocate_address(service, old, &reserved, &mut causes)?;
        }
        self.allocate_ports(service, old, &reserved, &mut causes)?;
        let name = service.meta("name").to_owned();
        refuse_invalid(resource, &name, causes)?;
        let given = owned(service).into_iter().map(|what| (what, uid.clone())).collect::<Vec<_>>();
        all.extend(given.iter().cloned());
        Ok(Some(Reservation { registry: self, reserved: given }))
    }

    /// The other Services.
    fn others(&self, service: &Value) -> Vec<std::sync::Arc<crate::store::Stored>> {
        let snapshot = self.store.snapshot("services");
        let uid = service.meta("uid");
        snapshot.objects.values().filter(|other| other.value.meta("uid") != uid).cloned().collect()
    }

    fn allocate_address(
        &self,
        service: &mut Value,
        old: Option<&Value>,
        reserved: &BTreeSet<String>,
        causes: &mut Vec<Cause>,
    ) -> Result<()> {
        let before = old.and_then(|old| old["spec"]["clusterIP"].as_str()).unwrap_or_default().to_owned();
        let spec = &service["spec"];
        let both = (
            spec["clusterIP"].as_str().unwrap_or_default(),
            spec["clusterIPs"][0].as_str().unwrap_or_default(),
        );
        let differ = !both.0.is_empty() && !both.1.is_empty() && both.0 != both.1;
        if differ || (!both.0.is_empty() && both.0 != NONE && both.0.parse::<std::net::IpAddr>().is_err()) {
            // Refused by validation.
            return Ok(());
        }
        let given = spec["clusterIP"].as_str().filter(|text| !text.is_empty());
        let given = given.or_else(|| spec["clusterIPs"][0].as_str()).unwrap_or_default().to_owned();
        let address = if given.is_empty() { before.clone() } else { given.clone() };
        if !before.is_empty() && address != before {
            let detail = "may not change once set";
            causes.push(Cause::invalid("spec.clusterIPs[0]", &json!([address]), detail));
            return Ok(());
        }
        // All other Services are looked at only where one could be in the way.
        let taken = || -> BTreeSet<String> {
            let others = self.others(service);
            let addresses = others.iter().filter_map(|other| other.value["spec"]["clusterIP"].as_str());
            addresses.map(str::to_owned).chain(reserved.iter().cloned()).collect()
        };
        let address = if address.is_empty() {
            self.free_address(&taken())?
        } else {
            if before.is_empty() && address != NONE {
                let in_range = address.parse::<Ipv4Addr>().is_ok_and(|ip| ip.octets()[..2] == NETWORK);
                let why = if !in_range {
                    Some(format!(
                        "failed to allocate IP {address}: the provided network does not match the current range"
                    ))
                } else if taken().contains(&address) {
                    Some(format!("failed to allocate IP {address}: provided IP is already allocated"))
                } else {
                    None
                };
                if let Some(why) = why {
                    causes.push(Cause::invalid("spec.clusterIPs", &json!([address]), &why));
                }
            }
            address
        };
        let spec = fields(&mut service["spec"]);
        spec.insert("clusterIPs".to_owned(), json!([address]));
        spec.insert("clusterIP".to_owned(), address.into());
        spec.entry("ipFamilies").or_insert_with(|| json!(["IPv4"]));
        spec.entry("ipFamilyPolicy").or_insert_with(|| json!("SingleStack"));
        Ok(())
    }

    fn free_address(&self, taken: &BTreeSet<String>) -> Result<String> {
        // The lower part of the range is left to those who ask for an address (upstream: KEP-3070).
        let start = 0x0100 + self.entropy.below(0xfe00);
        (0..0xfe00u64)
            .map(|step| 0x0100 + (start - 0x0100 + step) % 0xfe00)
            .map(|host| Ipv4Addr::new(NETWORK[0], NETWORK[1], (host >> 8) as u8, host as u8).to_string())
            .find(|address| !taken.contains(address))
            .ok_or_else(|| Status::internal("failed to allocate a serviceIP: range is full"))
    }

    fn allocate_ports(
        &self,
        service: &mut Value,
        old: Option<&Value>,
        reserved: &BTreeSet<String>,
        causes: &mut Vec<Cause>,
    ) -> Result<()> {
        let wants = matches!(service["spec"]["type"].as_str(), Some("NodePort" | "LoadBalancer"));
        if !wants {
            // Ports that another type had before are given back.
            let had = old.is_some_and(|old| old["spec"]["type"] != service["spec"]["type"]);
            for port in service.pointer_mut("/spec/ports").and_then(Value::as_array_mut).into_iter().flatten()
            {
                if had {
                    fields(port).remove("nodePort");
                }
            }
            return Ok(());
        }
        let mut taken: BTreeSet<u64> = self
            .others(service)
            .iter()
            .flat_map(|other| node_ports(&other.value).collect::<Vec<_>>())
            .chain(reserved.iter().filter_map(|port| port.parse().ok()))
            .collect();
        let before = old.map(|old| old["spec"]["ports"].clone()).unwrap_or_default();
        let mut ports = service["spec"]["ports"].clone();
        for (index, port) in ports.as_array_mut().into_iter().flatten().enumerate() {
            let kept = before
                .as_array()
                .into_iter()
                .flatten()
                .find(|old| old["port"] == port["port"] && old["protocol"] == port["protocol"]);
            let given = port["nodePort"].as_u64().filter(|&port| port != 0);
            let kept = given.or_else(|| kept.and_then(|old| old["nodePort"].as_u64()));
            let chosen = if let Some(number) = kept {
                let field = format!("spec.ports[{index}].nodePort");
                if !(FIRST_NODE_PORT..FIRST_NODE_PORT + NODE_PORTS).contains(&number) {
                    let detail =
                        "provided port is not in the valid range. The range of valid ports is 30000-32767";
                    causes.push(Cause::invalid(field, &number.into(), detail));
                } else if taken.contains(&number) {
                    causes.push(Cause::invalid(field, &number.into(), "provided port is already allocated"));
                }
                number
            } else {
                let start = self.entropy.below(NODE_PORTS);
                (0..NODE_PORTS)
                    .map(|step| FIRST_NODE_PORT + (start + step) % NODE_PORTS)
                    .find(|number| !taken.contains(number))
                    .ok_or_else(|| Status::internal("failed to allocate a nodePort: range is full"))?
            };
            taken.insert(chosen);
            fields(port).insert("nodePort".to_owned(), chosen.into());
        }
        service["spec"]["ports"] = ports;
        let spec = &service["spec"];
        let checked = spec["type"] == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local";
        if checked && spec["healthCheckNodePort"].as_u64().unwrap_or(0) == 0 {
            let free =
                (FIRST_NODE_PORT..FIRST_NODE_PORT + NODE_PORTS).rev().find(|number| !taken.contains(number));
            let free =
                free.ok_or_else(|| Status::internal("failed to allocate a nodePort: range is full"))?;
            fields(&mut service["spec"]).insert("healthCheckNodePort".to_owned(), free.into());
        }
        Ok(())
    }
}

fn node_ports(service: &Value) -> impl Iterator<Item = u64> {
    let ports = service["spec"]["ports"].as_array().into_iter().flatten();
    ports.filter_map(|port| port["nodePort"].as_u64()).chain(service["spec"]["healthCheckNodePort"].as_u64())
}

/// The address and the ports of a Service.
fn owned(service: &Value) -> Vec<String> {
    let address = service["spec"]["clusterIP"].as_str().filter(|address| !matches!(*address, "" | NONE));
    address.map(str::to_owned).into_iter().chain(node_ports(service).map(|port| port.to_string())).collect()
}
