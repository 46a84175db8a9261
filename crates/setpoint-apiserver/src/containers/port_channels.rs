//! Port-forward over a WebSocket without SPDY, as the clients for Python and JavaScript speak it: for each port that the request names one connection and
//! two channels, for bytes and for the reason when the port cannot be reached. The first message of a channel is its port, as two bytes, the lower
//! one first (`k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go`).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::future::{Either, join_all, select};
use futures::{SinkExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use super::forward::{Forward, PENDING};
use super::upgrade::{PING_EVERY, Socket, messages};
use crate::kubelet::Kubelet;
use crate::request::Query;
use crate::status::{Result, Status};

/// The protocol: a channel number before each message.
pub(super) const PROTOCOL: &str = "v4.channel.k8s.io";
/// A channel number is a byte, and each port has two.
const MOST: usize = 128;

/// The ports that a request names, in the order of their channels.
pub(super) fn ports(query: &Query) -> Result<Vec<u16>> {
    let named = query.all("ports").into_iter().flat_map(|ports| ports.split(','));
    let ports: Vec<u16> = named
        .map(|text| {
            let port = text.parse().ok().filter(|port| *port != 0);
            port.ok_or_else(|| Status::bad_request(format!("{text:?} is no port from 1 to 65535")))
        })
        .collect::<Result<_>>()?;
    match ports.len() {
        0 => Err(Status::bad_request("you must specify at least 1 port")),
        1..=MOST => Ok(ports),
        _ => Err(Status::bad_request(format!("at most {MOST} ports can be forwarded at once"))),
    }
}

/// Connects the channels with the ports until all ports have said everything, or the client goes.
pub(super) async fn run(socket: Box<Socket>, kubelet: Arc<dyn Kubelet>, address: IpAddr, ports: Vec<u16>) {
    let (mut sink, source) = socket.split();
    let (frames, mut waiting) = mpsc::channel(PENDING);
    let mut inputs = Vec::new();
    let mut forwards = Vec::new();
    for (data, port) in (0..).step_by(2).zip(&ports) {
        let (input, bytes) = mpsc::channel(PENDING);
        inputs.push(Some(input));
        let address = SocketAddr::new(address, *port);
        let forward = Forward { kubelet: Arc::clone(&kubelet), address, error: data + 1, data, frame };
        forwards.push(forward.run(bytes, frames.clone()));
    }
    let ends = (0_u8..).zip(ports.iter().flat_map(|port| [port, port]));
    let begin: Vec<_> = ends.map(|(channel, port)| [&[channel][..], &port.to_le_bytes()].concat()).collect();
    let outputs = async {
        for message in begin {
            // A closed channel means that the client is gone.
            let _ = frames.send(message.into()).await;
        }
        join_all(forwards).await;
        drop(frames);
    };
    let writing = async {
        loop {
            let message = match timeout(PING_EVERY, waiting.recv()).await {
                Ok(Some(frame)) => Message::Binary(frame),
                Ok(None) => break,
                Err(_) => Message::Ping(Bytes::new()),
            };
            if sink.send(message).await.is_err() {
                return;
            }
        }
        let _ = sink.close().await;
    };
    let reading = async {
        let mut messages = std::pin::pin!(messages(source));
        while let Some(mut message) = messages.next().await {
            let Ok(channel) = message.try_get_u8() else { continue };
            let input = inputs.get_mut(usize::from(channel) / 2).filter(|_| channel % 2 == 0);
            if let Some(place @ Some(_)) = input
                && let Some(input) = place
                && input.send(message).await.is_err()
            {
                *place = None;
            }
        }
    };
    let (outputs, writing) = (std::pin::pin!(outputs), std::pin::pin!(writing));
    let serving = std::pin::pin!(async {
        // A client that takes no more ends it, even if the ports have nothing to say and take no input.
        if let Either::Left(((), writing)) = select(outputs, writing).await {
            writing.await;
        }
    });
    select(serving, std::pin::pin!(reading)).await;
}

fn frame(channel: u32, bytes: &[u8], _end: bool) -> Option<Bytes> {
    if bytes.is_empty() {
        return None;
    }
    let mut frame = BytesMut::with_capacity(bytes.len() + 1);
    frame.put_u8(u8::try_from(channel).ok()?);
    frame.put_slice(bytes);
    Some(frame.freeze())
}
