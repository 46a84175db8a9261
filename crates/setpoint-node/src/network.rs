//! The pods' network: one bridge in the sandbox's network namespace, a pair of virtual interfaces and an
//! address for each pod, Service addresses, DNS.
//!
//! Pods have a /32 address and reach each other through the bridge's own address, not directly: so every
//! packet passes the sandbox's routing, where Service addresses are translated (also for the answers),
//! the client's address stays visible, and a rule can cut any pair of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::tool;

mod conntrack;
pub(crate) mod dns;
mod forward;
mod proxy;
mod rules;
mod watch;

use forward::{Forward, Protocol, forwards};
pub(crate) use rules::{Cut, Rules};
pub(crate) use watch::follow_services;

/// The sandbox's own address on the pods' network; pods reach the API server on it.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 1);

/// Where the cluster's DNS server listens (the address of the Service `kube-system/kube-dns`).
pub const DNS_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);

/// Network of the Services' addresses.
const SERVICES: &str = "10.96.0.0/12";

/// Name of the bridge.
const BRIDGE: &str = "setpoint0";

/// The bridge's hardware address, locally administered. A bridge without one of its own takes the lowest of its
/// ports', so that it changes as pods come and go, and what pods send to the address that they remember is lost.
const BRIDGE_HARDWARE: &str = "02:00:0a:f4:00:01";

/// Addresses for pods on one node: 10.244.N.2 to 10.244.N.254.
const FIRST_HOST: u8 = 2;
const LAST_HOST: u8 = 254;

/// Most nodes in one sandbox: one /24 for each, the first of which is the sandbox's own.
pub(crate) const MOST_NODES: u8 = 250;

/// Sets up interfaces of the new network namespace.
pub(crate) fn set_up_sandbox(ip: &Path) -> Result<(), String> {
    // Pods use IPv4 only; this spares them duplicate address detection. Absent where the kernel has no IPv6.
    for which in ["all", "default"] {
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
    }
    // Pods must keep using the gateway, although it sees that there is a shorter way.
    for setting in ["ip_forward", "conf/all/send_redirects", "conf/default/send_redirects"] {
        let value = if setting == "ip_forward" { "1" } else { "0" };
        fs::write(format!("/proc/sys/net/ipv4/{setting}"), value)
            .map_err(|error| format!("setting net.ipv4.{setting} in the new network namespace: {error}"))?;
    }
    // Where the bridge's filter is built into the kernel it is on: it would translate and forward below routing,
    // and drop what a pod sends to itself through a Service.
    let _ = fs::write("/proc/sys/net/bridge/bridge-nf-call-iptables", "0");
    let commands = format!(
        "link set lo up\n\
         link add {BRIDGE} address {BRIDGE_HARDWARE} type bridge\n\
         addr add {GATEWAY}/16 dev {BRIDGE}\n\
         link set {BRIDGE} up\n\
         addr add {DNS_ADDRESS}/32 dev lo\n\
         route add {SERVICES} dev {BRIDGE} src {GATEWAY}\n"
    );
    tool::run(ip, &["-batch", "-"], &commands)
        .map_err(|error| format!("setting up the sandbox's network: {error}"))
}

/// Commands for `ip -batch -` inside a pod's network namespace.
pub(crate) fn pod_commands(address: Ipv4Addr) -> String {
    format!(
        "link set lo up\n\
         addr add {address}/32 dev eth0\n\
         link set eth0 up\n\
         route add {GATEWAY}/32 dev eth0 scope link\n\
         route add default via {GATEWAY} dev eth0\n"
    )
}

/// The network of all nodes of a sandbox.
pub(crate) struct Network {
    ip: PathBuf,
    pub(crate) rules: Rules,
    addresses: Mutex<Addresses>,
}

/// Which addresses are in use, and which came last on each node: an address is given again as late as
/// possible, since somebody may still have it in a list.
#[derive(Default)]
struct Addresses {
    used: BTreeSet<Ipv4Addr>,
    last: BTreeMap<u8, u8>,
    interfaces: u64,
}

impl Addresses {
    fn take(&mut self, node: u8) -> Option<Ipv4Addr> {
        let last = self.last.get(&node).copied().unwrap_or(FIRST_HOST - 1);
        let host = (last + 1..=LAST_HOST)
            .chain(FIRST_HOST..=last)
            .find(|host| !self.used.contains(&Ipv4Addr::new(10, 244, node, *host)))?;
        self.last.insert(node, host);
        let address = Ipv4Addr::new(10, 244, node, host);
        self.used.insert(address);
        Some(address)
    }
}

/// A pod's address, given back when dropped.
pub(crate) struct Lease {
    network: Arc<Network>,
    /// The address.
    pub(crate) address: Ipv4Addr,
    interface: String,
}

impl Lease {
    /// Takes the pod off the network at once. The kernel would do so with the pod's namespace, which the rest of a connection
    /// to a peer that is gone can hold for minutes, with an address that another pod may get.
    pub(crate) async fn detach(&self) {
        // It may be gone already.
        let _ = tool::run_async(&self.network.ip, &["link", "del", &self.interface], "").await;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.network.addresses.lock().used.remove(&self.address);
    }
}

impl Network {
    pub(crate) fn new(ip: PathBuf, nft: Option<PathBuf>) -> Self {
        Self { ip, rules: Rules::new(nft), addresses: Mutex::default() }
    }

    /// Gives a node its own address on the bridge.
    pub(crate) async fn add_node(&self, node: u8) -> io::Result<Ipv4Addr> {
        let address = Ipv4Addr::new(10, 244, node, 1);
        let command = format!("addr add {address}/32 dev {BRIDGE}\n");
        tool::run_async(&self.ip, &["-batch", "-"], &command).await?;
        Ok(address)
    }

    /// Reserves an address for a pod on a node.
    pub(crate) fn lease(self: &Arc<Self>, node: u8) -> io::Result<Lease> {
        let mut addresses = self.addresses.lock();
        let address = addresses
            .take(node)
            .ok_or_else(|| io::Error::other("all pod addresses of this node are in use"))?;
        addresses.interfaces += 1;
        let interface = format!("pod{}", addresses.interfaces);
        drop(addresses);
        Ok(Lease { network: Arc::clone(self), address, interface })
    }

    /// Connects a pod's network namespace, named by its first process, with the bridge. The kernel removes the interfaces
    /// together with the namespace.
    pub(crate) async fn attach(&self, lease: &Lease, pid: i32) -> io::Result<()> {
        let interface = &lease.interface;
        let commands = format!(
            "link add {interface} type veth peer name eth0 netns {pid}\n\
             link set {interface} master {BRIDGE} up\n"
        );
        tool::run_async(&self.ip, &["-batch", "-"], &commands).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_given_again_as_late_as_possible() {
        let mut addresses = Addresses::default();
        let first = addresses.take(1).unwrap();
        assert_eq!(first, Ipv4Addr::new(10, 244, 1, 2));
        addresses.used.remove(&first);
        assert_eq!(addresses.take(1), Some(Ipv4Addr::new(10, 244, 1, 3)));
        assert_eq!(addresses.take(2), Some(Ipv4Addr::new(10, 244, 2, 2)));
        let rest: Vec<_> = std::iter::from_fn(|| addresses.take(1)).collect();
        assert_eq!(rest.len(), 252);
        assert_eq!(rest.last(), Some(&first), "the oldest free one comes last");
    }
}
