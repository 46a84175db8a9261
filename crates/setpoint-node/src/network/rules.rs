//! Service addresses and cut connections as nftables rules, one transaction for each change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use tokio::sync::Mutex;
use tracing::warn;

use super::proxy::Proxies;
use super::{DNS_ADDRESS, Forward, Protocol, SERVICES, conntrack};
use crate::tool;

/// The chains that stay; only what they jump to is replaced, since established connections need the hooks.
const BASE: &str = "
table ip setpoint {
    set cut { type ipv4_addr . ipv4_addr; }
    set cut_from { type ipv4_addr; }
    set cut_to { type ipv4_addr; }
    set hairpin { type ipv4_addr . ipv4_addr; }
    chain services { }
    chain prerouting { type nat hook prerouting priority -100; jump services; }
    chain output { type nat hook output priority -100; jump services; }
    chain postrouting { type nat hook postrouting priority 100; ip saddr . ip daddr @hairpin masquerade; }
    chain cuts {
        ip saddr . ip daddr @cut drop
        ip saddr @cut_from drop
        ip daddr @cut_to drop
    }
    chain refused {
        jump cuts
        ip daddr DNS accept
        ip daddr SERVICES meta l4proto tcp reject with tcp reset
        ip daddr SERVICES reject
    }
    chain refuse_forward { type filter hook forward priority 0; jump refused; }
    chain refuse_output { type filter hook output priority 0; jump refused; }
    chain cut_input { type filter hook input priority 0; jump cuts; }
}
";

/// The current rules of a sandbox.
pub(crate) struct Rules {
    nft: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How Service addresses are served; unknown until the first use.
    backend: Option<Backend>,
    forwards: Vec<Forward>,
    cuts: BTreeMap<Cut, usize>,
}

/// Packets that are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cut {
    /// From one address to another.
    Between(Ipv4Addr, Ipv4Addr),
    /// All from an address.
    From(Ipv4Addr),
    /// All to an address.
    To(Ipv4Addr),
}

enum Backend {
    /// Address translation by the kernel.
    Nftables(PathBuf),
    /// Connections taken and passed on by this process (TCP only, and servers see the gateway as client).
    Proxy(Proxies),
}

impl Rules {
    pub(crate) fn new(nft: Option<PathBuf>) -> Self {
        Self { nft, state: Mutex::default() }
    }

    /// Makes Service addresses lead to these endpoints.
    pub(crate) async fn set_forwards(&self, ip: &Path, forwards: Vec<Forward>) -> io::Result<()> {
        let mut state = self.state.lock().await;
        if state.backend.is_some() && state.forwards == forwards {
            return Ok(());
        }
        self.start(&mut state).await?;
        match state.backend.as_mut() {
            Some(Backend::Nftables(nft)) => {
                tool::run_async(nft, &["-f", "-"], &services(&forwards)).await?;
                for mark in stale(&state.forwards, &forwards) {
                    if let Err(error) = conntrack::forget(mark) {
                        warn!(%error, "UDP clients of a Service may stay with an endpoint that is no more");
                    }
                }
            }
            Some(Backend::Proxy(proxies)) => proxies.set(ip, &forwards).await?,
            None => {}
        }
        state.forwards = forwards;
        Ok(())
    }

    /// Drops these packets, in addition to what is cut already.
    pub(crate) async fn cut(&self, cuts: &[Cut]) -> io::Result<()> {
        self.change_cuts(cuts, true).await
    }

    /// Takes back one [`cut`](Self::cut).
    pub(crate) async fn heal(&self, cuts: &[Cut]) -> io::Result<()> {
        self.change_cuts(cuts, false).await
    }

    async fn change_cuts(&self, changed: &[Cut], cut: bool) -> io::Result<()> {
        let mut state = self.state.lock().await;
        self.start(&mut state).await?;
        let Some(Backend::Nftables(nft)) = &state.backend else {
            let message = "cutting connections needs nf_tables in the kernel and the package nftables";
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        };
        let mut cuts = state.cuts.clone();
        for change in changed {
            let count = cuts.entry(*change).or_default();
            *count = if cut { *count + 1 } else { count.saturating_sub(1) };
        }
        cuts.retain(|_, count| *count > 0);
        tool::run_async(nft, &["-f", "-"], &cut_sets(cuts.keys())).await?;
        state.cuts = cuts;
        Ok(())
    }

    async fn start(&self, state: &mut State) -> io::Result<()> {
        if state.backend.is_some() {
            return Ok(());
        }
        let base = BASE.replace("DNS", &DNS_ADDRESS.to_string()).replace("SERVICES", SERVICES);
        let reason = match &self.nft {
            None => "asked for, or the program nft (package nftables) is missing".to_owned(),
            Some(nft) => match tool::run_async(nft, &["-f", "-"], &base).await {
                Ok(()) => {
                    state.backend = Some(Backend::Nftables(nft.clone()));
                    return Ok(());
                }
                Err(error) => error.to_string(),
            },
        };
        warn!(
            reason,
            "Service addresses are served by a proxy: TCP only, and servers do not see the client's address"
        );
        state.backend = Some(Backend::Proxy(Proxies::default()));
        Ok(())
    }
}

/// One transaction that replaces all Service rules.
fn services(forwards: &[Forward]) -> String {
    let mut text = String::from("flush chain ip setpoint services\nflush set ip setpoint hairpin\n");
    let mut pods = BTreeSet::new();
    for Forward { address, port, protocol, endpoints } in forwards {
        let protocol = match protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        let mut rule = format!("add rule ip setpoint services ip daddr {address} {protocol} dport {port}");
        if protocol == "udp" {
            let _ = write!(rule, " ct mark set {}", mark(*address, *port));
        }
        let _ = match endpoints.as_slice() {
            [] => Ok(()),
            [(pod, target)] => writeln!(text, "{rule} dnat to {pod}:{target}"),
            several => {
                let choices: Vec<String> = several
                    .iter()
                    .enumerate()
                    .map(|(index, (pod, target))| format!("{index} : {pod} . {target}"))
                    .collect();
                let count = several.len();
                writeln!(text, "{rule} dnat ip to numgen random mod {count} map {{ {} }}", choices.join(", "))
            }
        };
        pods.extend(endpoints.iter().map(|(pod, _)| *pod));
    }
    let pairs: Vec<String> = pods.iter().map(|pod| format!("{pod} . {pod}")).collect();
    if !pairs.is_empty() {
        let _ = writeln!(text, "add element ip setpoint hairpin {{ {} }}", pairs.join(", "));
    }
    text
}

/// Marks the UDP packets of a Service's port in the kernel's table of connections. Two ports with the same mark would
/// only be forgotten together.
fn mark(address: Ipv4Addr, port: u16) -> u32 {
    (u32::from(address) ^ (u32::from(port) << 16)).max(1)
}

/// Marks of what the kernel has to forget: UDP has no end of a connection, so that a client would stay with an endpoint
/// that was removed for as long as it sends. TCP connections stay until client or server end them. Both is
/// what kube-proxy does (`CleanStaleEntries` in `pkg/proxy/conntrack`), which forgets only those of the removed endpoint.
fn stale<'a>(old: &'a [Forward], new: &'a [Forward]) -> impl Iterator<Item = u32> + 'a {
    let removed = |forward: &Forward| {
        let now = new.iter().find(|other| {
            (other.address, other.port, other.protocol) == (forward.address, forward.port, forward.protocol)
        });
        let still = |endpoint| now.is_some_and(|now| now.endpoints.contains(endpoint));
        forward.protocol == Protocol::Udp && !forward.endpoints.iter().all(still)
    };
    old.iter().filter(move |forward| removed(forward)).map(|forward| mark(forward.address, forward.port))
}

/// One transaction that replaces the sets of cuts.
fn cut_sets<'a>(cuts: impl Iterator<Item = &'a Cut>) -> String {
    let mut text = String::from(
        "flush set ip setpoint cut\nflush set ip setpoint cut_from\nflush set ip setpoint cut_to\n",
    );
    for cut in cuts {
        let (set, element) = match cut {
            Cut::Between(from, to) => ("cut", format!("{from} . {to}")),
            Cut::From(address) => ("cut_from", address.to_string()),
            Cut::To(address) => ("cut_to", address.to_string()),
        };
        let _ = writeln!(text, "add element ip setpoint {set} {{ {element} }}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_clients_of_removed_endpoints_are_forgotten() {
        let forward = |protocol, port, hosts: &[u8]| Forward {
            address: Ipv4Addr::new(10, 96, 3, 4),
            port,
            protocol,
            endpoints: hosts.iter().map(|host| (Ipv4Addr::new(10, 244, 1, *host), 5300)).collect(),
        };
        let (udp, tcp) = (Protocol::Udp, Protocol::Tcp);
        let old = [
            forward(tcp, 1, &[2, 3]),
            forward(udp, 1, &[2, 3]),
            forward(udp, 2, &[2]),
            forward(udp, 3, &[2]),
        ];
        let new = [forward(tcp, 1, &[2]), forward(udp, 1, &[2]), forward(udp, 2, &[2, 3])];
        let expected = [1, 3].map(|port| mark(Ipv4Addr::new(10, 96, 3, 4), port));
        assert_eq!(stale(&old, &new).collect::<Vec<_>>(), expected);
        assert_eq!(stale(&new, &old).count(), 1, "2 lost an endpoint that it had");
        assert_eq!(stale(&[], &new).count(), 0);
    }

    #[test]
    fn services_become_one_transaction() {
        let address = Ipv4Addr::new(10, 96, 3, 4);
        let endpoint = |last| (Ipv4Addr::new(10, 244, 1, last), 6379);
        let forward = |port, endpoints| Forward { address, port, protocol: Protocol::Tcp, endpoints };
        let text = services(&[
            forward(1, vec![]),
            forward(2, vec![endpoint(2)]),
            forward(3, vec![endpoint(2), endpoint(3)]),
        ]);
        assert_eq!(
            text,
            "flush chain ip setpoint services\n\
             flush set ip setpoint hairpin\n\
             add rule ip setpoint services ip daddr 10.96.3.4 tcp dport 2 dnat to 10.244.1.2:6379\n\
             add rule ip setpoint services ip daddr 10.96.3.4 tcp dport 3 dnat ip to numgen random mod 2 map { 0 : 10.244.1.2 . 6379, 1 : 10.244.1.3 . 6379 }\n\
             add element ip setpoint hairpin { 10.244.1.2 . 10.244.1.2, 10.244.1.3 . 10.244.1.3 }\n"
        );
    }
}
