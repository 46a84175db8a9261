//! The switch from HTTP to a WebSocket, or to SPDY/3.1 (`k8s.io/apimachinery/pkg/util/httpstream`).

use std::future::{Future, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::SplitStream;
use futures::{Stream, StreamExt};
use http::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::body::Body;
use crate::dispatch::Call;
use crate::headers::{text, texts};
use crate::status::{Result, Status};

pub(super) type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// How often a client that is sent nothing is pinged: one that is gone without a word is noticed when it cannot be written to.
pub(super) const PING_EVERY: Duration = Duration::from_secs(30);
/// The most bytes of a message: clients send what one read of theirs gave, 32 KiB at most.
const LONGEST: usize = 1 << 20;
/// How much is read at once. Each socket has a buffer of this size.
const READ: usize = 16 << 10;

const WEB_SOCKET: &str = "websocket";
const SPDY: &str = "SPDY/3.1";
/// Where a client offers protocols for a WebSocket, and for SPDY.
const WEB_SOCKET_PROTOCOL: HeaderName = HeaderName::from_static("sec-websocket-protocol");
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// What is spoken on a connection, best first.
pub(super) struct Protocols {
    pub(super) web_socket: &'static [&'static str],
    pub(super) spdy: &'static [&'static str],
}

/// An upgrade that may take place.
pub(super) struct Accepted {
    upgrade: &'static str,
    protocol: &'static str,
    /// For a WebSocket the proof that we understood.
    key: Option<String>,
}

/// A connection after the switch.
pub(super) enum Connection {
    WebSocket(Box<Socket>),
    Spdy(TokioIo<Upgraded>),
}

/// What comes in on a WebSocket, until it is closed.
pub(super) fn messages(source: SplitStream<Box<Socket>>) -> impl Stream<Item = Bytes> + Send {
    let data = source.map(|message| match message {
        Ok(Message::Binary(data)) => Some(data),
        Ok(Message::Text(text)) => Some(text.into()),
        Ok(Message::Close(_)) | Err(_) => None,
        Ok(_) => Some(Bytes::new()),
    });
    data.take_while(|data| ready(data.is_some())).filter_map(ready)
}

/// The first of the known protocols that the client offers for the upgrade that it asks for.
pub(super) fn handshake(headers: &HeaderMap, known: &Protocols) -> Result<Accepted> {
    let upgrade = text(headers, "upgrade");
    if upgrade.eq_ignore_ascii_case(WEB_SOCKET) {
        let key = text(headers, "sec-websocket-key");
        if key.is_empty() {
            return Err(Status::bad_request("the upgrade request has no Sec-WebSocket-Key"));
        }
        let protocol = choose(headers, &WEB_SOCKET_PROTOCOL, known.web_socket)?;
        let key = Some(derive_accept_key(key.as_bytes()));
        return Ok(Accepted { upgrade: WEB_SOCKET, protocol, key });
    }
    if upgrade.eq_ignore_ascii_case(SPDY) {
        let protocol = choose(headers, &STREAM_PROTOCOL, known.spdy)?;
        return Ok(Accepted { upgrade: SPDY, protocol, key: None });
    }
    Err(Status::bad_request(if upgrade.is_empty() {
        "Upgrade request required".to_owned()
    } else {
        format!("cannot upgrade to {upgrade:?}: known are {WEB_SOCKET} and {SPDY}")
    }))
}

fn choose(headers: &HeaderMap, name: &HeaderName, known: &[&'static str]) -> Result<&'static str> {
    let values: Vec<_> = texts(headers, name).collect();
    let offered: Vec<_> = values.iter().flat_map(|value| value.split(',')).map(str::trim).collect();
    known.iter().copied().find(|known| offered.contains(known)).ok_or_else(|| {
        let known = known.join(" and ");
        Status::bad_request(format!("none of the offered protocols is known: {offered:?}; known are {known}"))
    })
}

impl Accepted {
    /// What will be spoken.
    pub(super) fn protocol(&self) -> &'static str {
        self.protocol
    }

    /// Answers 101, and lets `then` have the connection.
    pub(super) fn switch<F>(
        self,
        call: &mut Call<'_>,
        then: impl FnOnce(Connection) -> F + Send + 'static,
    ) -> Result<Response<Body>>
    where
        F: Future<Output = ()> + Send,
    {
        let mut upgrade = Request::new(());
        if let Some(pending) = call.parts.extensions.remove::<hyper::upgrade::OnUpgrade>() {
            upgrade.extensions_mut().insert(pending);
        }
        let web_socket = self.key.is_some();
        tokio::spawn(async move {
            // A client that goes away before the switch gets nothing.
            let Ok(upgraded) = hyper::upgrade::on(&mut upgrade).await else { return };
            let stream = TokioIo::new(upgraded);
            then(if web_socket {
                let config = WebSocketConfig::default()
                    .read_buffer_size(READ)
                    .max_message_size(Some(LONGEST))
                    .max_frame_size(Some(LONGEST));
                let socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
                Connection::WebSocket(Box::new(socket))
            } else {
                Connection::Spdy(stream)
            })
            .await;
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static(self.upgrade));
        let protocol = HeaderValue::from_static(self.protocol);
        if let Some(key) = self.key {
            headers.insert(WEB_SOCKET_PROTOCOL, protocol);
            headers.insert("sec-websocket-accept", HeaderValue::from_str(&key).map_err(Status::internal)?);
        } else {
            headers.insert(STREAM_PROTOCOL, protocol);
        }
        Ok(response)
    }
}
