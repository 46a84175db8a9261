//! Port-forward: the client's connections to ports of a pod, each a pair of SPDY streams, on the connection itself or inside a WebSocket
//! (`k8s.io/kubelet/pkg/cri/streaming/portforward`). The streams of a pair have one `requestid`: on `data` go the bytes both
//! ways, on `error` goes the reason when the port cannot be reached. Clients without SPDY use [channels](super::port_channels).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use tokio::sync::mpsc;

use super::agent;
use super::carrier::carry;
use super::forward::{Forward, PENDING};
use super::port_channels;
use super::spdy::{Frame, Writer};
use super::upgrade::{Connection, Protocols, handshake};
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

async fn run(connection: Connection, kubelet: Arc<dyn Kubelet>, address: IpAddr) {
    let (mut incoming, mut outgoing) = carry(connection);
    let (frames, mut waiting) = mpsc::channel::<Bytes>(PENDING);
    let writing = async move {
        while let Some(frame) = waiting.recv().await {
            if !outgoing.send(frame).await {
                return;
            }
        }
    };
    let reading = async move {
        let mut writer = Writer::default();
        let mut pairs: BTreeMap<String, Pair> = BTreeMap::new();
        let mut inputs: BTreeMap<u32, mpsc::Sender<Bytes>> = BTreeMap::new();
        while let Some(frame) = incoming.next().await {
            let answer = match frame {
                Frame::Open { stream, headers, .. } => {
                    inputs.retain(|_, input| !input.is_closed());
                    let get = |wanted: &str| {
                        headers
                            .iter()
                            .find(|(name, _)| name == wanted)
                            .map_or("", |(_, value)| value.as_str())
                    };
                    let known = matches!(get("streamtype"), "error" | "data");
                    if !known || inputs.len() >= MOST || pairs.len() >= MOST {
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
                            inputs.insert(data, input);
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
                            tokio::spawn(forward.run(bytes, frames.clone()));
                            None
                        } else {
                            Some(writer.reply(stream))
                        }
                    }
                }
                Frame::Data { stream, data, fin } => {
                    // A port that reads nothing holds its client up, and the client's other connections.
                    let taken = match inputs.get(&stream) {
                        Some(input) if !data.is_empty() => input.send(data).await.is_ok(),
                        _ => true,
                    };
                    if fin || !taken {
                        inputs.remove(&stream);
                    }
                    None
                }
                Frame::Reset { stream } => {
                    inputs.remove(&stream);
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
