//! Port-forward: the client's connections to ports of a pod, each a pair of SPDY streams inside one WebSocket
//! (`k8s.io/kubelet/pkg/cri/streaming/portforward`). The streams of a pair have one `requestid`: on `data` go the bytes both
//! ways, on `error` goes the reason when the port cannot be reached.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::Response;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

use super::agent;
use super::spdy::{Frame, Reader, Writer};
use super::web_socket::{Socket, handshake};
use crate::body::Body;
use crate::dispatch::Call;
use crate::kubelet::Kubelet;
use crate::status::{Result, Status};

const PROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";
/// How many frames may wait for a slow client, or pieces for a slow port.
const PENDING: usize = 32;
const CHUNK: usize = 32 * 1024;
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
    let accepted = handshake(&call.parts.headers, &[PROTOCOL])?;
    accepted.switch(call, move |socket| run(socket, kubelet, address))
}

/// One connection that is asked for.
#[derive(Default)]
struct Pair {
    port: Option<u16>,
    error: Option<u32>,
    data: Option<u32>,
}

async fn run(socket: Socket, kubelet: Arc<dyn Kubelet>, address: IpAddr) {
    let (mut sink, mut source) = socket.split();
    let (frames, mut waiting) = mpsc::channel::<Bytes>(PENDING);
    let writing = async move {
        while let Some(frame) = waiting.recv().await {
            if sink.send(Message::Binary(frame)).await.is_err() {
                return;
            }
        }
    };
    let reading = async move {
        let (mut reader, mut writer) = (Reader::new(), Writer::default());
        let mut pairs: BTreeMap<String, Pair> = BTreeMap::new();
        let mut inputs: BTreeMap<u32, mpsc::Sender<Bytes>> = BTreeMap::new();
        while let Some(Ok(message)) = source.next().await {
            match message {
                Message::Binary(data) => reader.push(&data),
                Message::Close(_) => return,
                _ => continue,
            }
            loop {
                let frame = match reader.next() {
                    Ok(Some(frame)) => frame,
                    Ok(None) => break,
                    Err(error) => {
                        tracing::debug!(%error, "a client's port-forward ended");
                        return;
                    }
                };
                match frame {
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
                            if frames.send(Writer::refuse(stream)).await.is_err() {
                                return;
                            }
                            continue;
                        }
                        let id = get("requestid").to_owned();
                        let pair = pairs.entry(id.clone()).or_default();
                        pair.port = get("port").parse().ok().or(pair.port);
                        if get("streamtype") == "error" {
                            pair.error = Some(stream);
                        } else {
                            pair.data = Some(stream);
                        }
                        if frames.send(writer.reply(stream)).await.is_err() {
                            return;
                        }
                        if let Pair { port: Some(port), error: Some(error), data: Some(data) } = *pair {
                            pairs.remove(&id);
                            let (input, bytes) = mpsc::channel(PENDING);
                            inputs.insert(data, input);
                            let address = SocketAddr::new(address, port);
                            let forward = Forward { kubelet: Arc::clone(&kubelet), address, error, data };
                            tokio::spawn(forward.run(bytes, frames.clone()));
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
                    }
                    Frame::Reset { stream } => drop(inputs.remove(&stream)),
                    Frame::Ping { id } => {
                        if frames.send(Writer::ping(id)).await.is_err() {
                            return;
                        }
                    }
                    Frame::GoAway | Frame::Other => {}
                }
            }
        }
    };
    let (reading, writing) = (std::pin::pin!(reading), std::pin::pin!(writing));
    futures::future::select(reading, writing).await;
}

/// One connection to a port.
struct Forward {
    kubelet: Arc<dyn Kubelet>,
    address: SocketAddr,
    error: u32,
    data: u32,
}

impl Forward {
    async fn run(self, mut input: mpsc::Receiver<Bytes>, frames: mpsc::Sender<Bytes>) {
        let connection = match self.kubelet.dial(self.address).await {
            Ok(connection) => connection,
            Err(error) => {
                let port = self.address.port();
                let text = format!("an error occurred forwarding to port {port} of the pod: {error}");
                // A closed channel means that the client is gone.
                let _ = frames.send(Writer::data(self.error, text.as_bytes(), true)).await;
                let _ = frames.send(Writer::data(self.data, b"", true)).await;
                return;
            }
        };
        let (mut from_port, mut to_port) = tokio::io::split(connection);
        let inward = async {
            while let Some(bytes) = input.recv().await {
                if to_port.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            // The port sees the end of its input.
            let _ = to_port.shutdown().await;
        };
        let outward = async {
            let mut chunk = vec![0; CHUNK];
            while let Ok(read) = from_port.read(&mut chunk).await {
                if read == 0 || frames.send(Writer::data(self.data, &chunk[..read], false)).await.is_err() {
                    break;
                }
            }
            let _ = frames.send(Writer::data(self.data, b"", true)).await;
            let _ = frames.send(Writer::data(self.error, b"", true)).await;
        };
        // When the port has said everything, the connection is over.
        let (inward, outward) = (std::pin::pin!(inward), std::pin::pin!(outward));
        if let futures::future::Either::Left(((), outward)) = futures::future::select(inward, outward).await {
            outward.await;
        }
    }
}
