//! Service addresses without nftables: this process takes the connections and passes them on.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tracing::debug;

use super::{DNS_ADDRESS, Forward, Protocol};
use crate::tool;

type Endpoints = Arc<Mutex<Vec<(Ipv4Addr, u16)>>>;

/// One listener for each TCP port of a Service that has endpoints.
#[derive(Default)]
pub(super) struct Proxies {
    listeners: BTreeMap<(Ipv4Addr, u16), (Endpoints, JoinSet<()>)>,
}

impl Proxies {
    /// Makes the listeners fit. A Service without endpoints has none, so that connections are refused.
    pub(super) async fn set(&mut self, ip: &Path, forwards: &[Forward]) -> io::Result<()> {
        let wanted: BTreeMap<(Ipv4Addr, u16), &Vec<(Ipv4Addr, u16)>> = forwards
            .iter()
            .filter(|forward| forward.protocol == Protocol::Tcp && !forward.endpoints.is_empty())
            .filter(|forward| forward.address != DNS_ADDRESS)
            .map(|forward| ((forward.address, forward.port), &forward.endpoints))
            .collect();
        self.listeners.retain(|key, _| wanted.contains_key(key));
        for (key, endpoints) in wanted {
            if let Some((current, _)) = self.listeners.get(&key) {
                current.lock().clone_from(endpoints);
                continue;
            }
            let command = format!("addr replace {}/32 dev lo\n", key.0);
            tool::run_async(ip, &["-batch", "-"], &command).await?;
            let listener = TcpListener::bind(key).await?;
            let endpoints: Endpoints = Arc::new(Mutex::new(endpoints.clone()));
            let mut tasks = JoinSet::new();
            tasks.spawn(accept(listener, Arc::clone(&endpoints)));
            self.listeners.insert(key, (endpoints, tasks));
        }
        Ok(())
    }
}

async fn accept(listener: TcpListener, endpoints: Endpoints) {
    let turn = AtomicUsize::new(0);
    while let Ok((client, _)) = listener.accept().await {
        let choice = {
            let endpoints = endpoints.lock();
            let turn = turn.fetch_add(1, Ordering::Relaxed);
            endpoints.get(turn % endpoints.len().max(1)).copied()
        };
        if let Some(endpoint) = choice {
            tokio::spawn(pass_on(client, endpoint));
        }
    }
}

async fn pass_on(mut client: TcpStream, endpoint: (Ipv4Addr, u16)) {
    let passed = async {
        let mut server = TcpStream::connect(endpoint).await?;
        copy_bidirectional(&mut client, &mut server).await
    };
    if let Err(error) = passed.await {
        debug!(%error, endpoint = ?endpoint, "a connection through a Service ended");
    }
}
