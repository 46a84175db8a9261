//! The switch from HTTP to a WebSocket.

use std::future::Future;

use http::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::body::Body;
use crate::dispatch::Call;
use crate::status::{Result, Status};

pub(super) type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// An upgrade that may take place.
pub(super) struct Accepted {
    protocol: &'static str,
    /// The proof that we understood.
    key: String,
}

/// The first of the known protocols that the client offers.
pub(super) fn handshake(headers: &HeaderMap, known: &[&'static str]) -> Result<Accepted> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let upgrade = text("upgrade");
    if !upgrade.eq_ignore_ascii_case("websocket") {
        return Err(Status::bad_request(format!(
            "this needs an upgrade to a WebSocket (asked for {upgrade:?}; SPDY without one is not implemented by this API server)"
        )));
    }
    let key = text("sec-websocket-key");
    if key.is_empty() {
        return Err(Status::bad_request("the upgrade request has no Sec-WebSocket-Key"));
    }
    let offered = headers
        .get_all("sec-websocket-protocol")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .collect::<Vec<_>>();
    let protocol = known.iter().copied().find(|known| offered.contains(known)).ok_or_else(|| {
        let known = known.join(" and ");
        Status::bad_request(format!("none of the offered protocols is known: {offered:?}; known are {known}"))
    })?;
    Ok(Accepted { protocol, key: derive_accept_key(key.as_bytes()) })
}

impl Accepted {
    /// Answers 101, and lets `then` have the connection.
    pub(super) fn switch<F>(
        self,
        call: &mut Call<'_>,
        then: impl FnOnce(Socket) -> F + Send + 'static,
    ) -> Result<Response<Body>>
    where
        F: Future<Output = ()> + Send,
    {
        let mut upgrade = Request::new(());
        if let Some(pending) = call.parts.extensions.remove::<hyper::upgrade::OnUpgrade>() {
            upgrade.extensions_mut().insert(pending);
        }
        tokio::spawn(async move {
            // A client that goes away before the switch gets nothing.
            let Ok(upgraded) = hyper::upgrade::on(&mut upgrade).await else { return };
            let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
            then(socket).await;
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert("sec-websocket-protocol", HeaderValue::from_static(self.protocol));
        headers.insert("sec-websocket-accept", HeaderValue::from_str(&self.key).map_err(Status::internal)?);
        Ok(response)
    }
}
