//! Port-forward: the client's connections to ports of a pod, each a pair of SPDY streams, on the connection itself or inside a WebSocket
//! (`k8s.io/kubelet/pkg/cri/streaming/portforward`). The streams of a pair have one `requestid`: on `data` go the bytes both
//! ways, on `error` goes the reason when the port cannot be reached. Clients without SPDY use [channels](super::port_channels).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::agent;
use super::carrier::carry;
use super::forward::{Forward, PENDING};
use super::port_channels;
use super::spdy::{Frame, Writer};
use super::upgrade::{Connection, PING_EVERY, Protocols, handshake};
use crate::body::Body;
use crate::dispatch::Call;
use crate::kubelet::Kubelet;
use crate::status::{Result, Status};

const PROTOCOLS: Protocols = Protocols {
    web_socket: &["SPDY/3.1+portforward.k8s.io", port_channels::PROTOCOL],
    spdy: &["portforward.k8s.io"],
};
/// How many connections one client may have open.
const MOST: usize = 1000;

/// Answers a request to forward ports.
pub(crate) fn port_forward(call: &mut Call<'_>) -> Result<Response<Body>> {
    let pod = call.inner.registry.get(&call.place)?.decode();
    let name = &call.place.name;
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if node.is_empty() {
        return Err(Status::bad_request(format!("pod {name} does not have a host assigned")));
    }
    let address = pod["status"]["podIP"].as_str().and_then(|ip| ip.parse::<IpAddr>().ok());
    let Some(address) = address.filter(|_| phase == "Running") else {
        return Err(Status::bad_request(format!("pod {name} is not running: its phase is {phase:?}")));
    };
    let kubelet = agent(call, node)?;
    let accepted = handshake(&call.parts.headers, &PROTOCOLS)?;
    let channels = accepted.protocol() == port_channels::PROTOCOL;
    let ports = if channels { port_channels::ports(&call.query)? } else { Vec::new() };
    accepted.switch(call, move |connection| async move {
        match connection {
            Connection::WebSocket(socket) if channels => {
                port_channels::run(socket, kubelet, address, ports).await;
            }
            connection => run(connection, kubelet, address).await,
        }
    })
}

/// One connection that is asked for.
#[derive(Default)]
struct Pair {
    port: Option<u16>,
    error: Option<u32>,
    data: Option<u32>,
}

/// A connection as its client's frames reach it.
struct Open {
    /// What the client sends; `None` after the end of it.
    input: Option<mpsc::Sender<Bytes>>,
    forward: AbortHandle,
}

async fn run(connection: Connection, kubelet: Arc<dyn Kubelet>, address: IpAddr) {
    let (mut incoming, mut outgoing) = carry(connection);
    let (frames, mut waiting) = mpsc::channel::<Bytes>(PENDING);
    let writing = async move {
        loop {
            let there = match timeout(PING_EVERY, waiting.recv()).await {
                Ok(Some(frame)) => outgoing.send(frame).await,
                Ok(None) => return,
                Err(_) => outgoing.ping().await,
            };
            if !there {
                return;
            }
        }
    };
    let reading = async move {
        let mut writer = Writer::default();
        let mut pairs: BTreeMap<String, Pair> = BTreeMap::new();
        // When the client is gone its connections go with it, whether their ports have said everything or not.
        let mut forwards = JoinSet::new();
        let mut open: BTreeMap<u32, Open> = BTreeMap::new();
        while let Some(frame) = incoming.next().await {
            let answer = match frame {
                Frame::Open { stream, headers, .. } => {
                    while forwards.try_join_next().is_some() {}
                    open.retain(|_, open| !open.forward.is_finished());
                    let get = |wanted: &str| {
                        headers
                            .iter()
                            .find(|(name, _)| name == wanted)
                            .map_or("", |(_, value)| value.as_str())
                    };
                    let known = matches!(get("streamtype"), "error" | "data");
                    if !known || open.len() >= MOST || pairs.len() >= MOST {
                        Some(Writer::refuse(stream))
                    } else {
                        let id = get("requestid").to_owned();
                        let pair = pairs.entry(id.clone()).or_default();
                        pair.port = get("port").parse().ok().or(pair.port);
                        if get("streamtype") == "error" {
                            pair.error = Some(stream);
                        } else {
                            pair.data = Some(stream);
                        }
                        if let Pair { port: Some(port), error: Some(error), data: Some(data) } = *pair {
                            pairs.remove(&id);
                            let (input, bytes) = mpsc::channel(PENDING);
                            let address = SocketAddr::new(address, port);
                            let forward = Forward {
                                kubelet: Arc::clone(&kubelet),
                                address,
                                error,
                                data,
                                frame: |stream, bytes, end| Some(Writer::data(stream, bytes, end)),
                            };
                            // The stream is accepted before anything is said on it.
                            if frames.send(writer.reply(stream)).await.is_err() {
                                return;
                            }
                            let forward = forwards.spawn(forward.run(bytes, frames.clone()));
                            // A second one of the same number takes the place of the first.
                            if let Some(first) = open.insert(data, Open { input: Some(input), forward }) {
                                first.forward.abort();
                            }
                            None
                        } else {
                            Some(writer.reply(stream))
                        }
                    }
                }
                Frame::Data { stream, data, fin } => {
                    if let Some(open) = open.get_mut(&stream) {
                        // A port that reads nothing holds its client up, and the client's other connections.
                        let taken = match &open.input {
                            Some(input) if !data.is_empty() => input.send(data).await.is_ok(),
                            _ => true,
                        };
                        if fin || !taken {
                            open.input = None;
                        }
                    }
                    None
                }
                Frame::Reset { stream } => {
                    if let Some(open) = open.remove(&stream) {
                        open.forward.abort();
                    }
                    None
                }
                Frame::Ping { id } => Some(Writer::ping(id)),
                Frame::GoAway | Frame::Other => None,
            };
            if let Some(answer) = answer
                && frames.send(answer).await.is_err()
            {
                return;
            }
        }
    };
    let (reading, writing) = (std::pin::pin!(reading), std::pin::pin!(writing));
    futures::future::select(reading, writing).await;
}
