//! Service addresses and cut connections as nftables rules, one transaction for each change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use tokio::sync::Mutex;
use tracing::warn;

use super::proxy::Proxies;
use super::{DNS_ADDRESS, Forward, Protocol, SERVICES};
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
            Some(Backend::Nftables(nft)) => tool::run_async(nft, &["-f", "-"], &services(&forwards)).await?,
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
        let rule = format!("add rule ip setpoint services ip daddr {address} {protocol} dport {port}");
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
