//! The API server on a socket: TLS, HTTP/1.1 and HTTP/2.

mod farewell;
mod gathering;
mod stalling;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use self::farewell::Farewell;
use self::gathering::Gathering;
use self::stalling::Stalling;
use crate::body::Body;
use crate::certificates::CertificateError;
use crate::client_certificates::Shown;
use crate::server::ApiServer;
use crate::warnings::warn;
use crate::{authn, dispatch};

/// How long a client may take for the TLS handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// How long to wait after the system refused a connection, for lack of descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Dead clients are noticed by pings, so that their watches end.
const PING_EVERY: Duration = Duration::from_secs(30);
/// How long an HTTP/1.1 connection may be idle, and how long a client may take for a request's headers. Upstream: the server's `IdleTimeout`.
const IDLE_LIMIT: Duration = Duration::from_secs(90);
/// How long a client may leave unread what it was sent. Long, since it may be a person with a pager.
const STALL_LIMIT: Duration = Duration::from_secs(300);
/// How much of an answer may wait for an HTTP/2 client that does not read. A connection has up to 200 of them.
const SEND_BUFFER: usize = 64 << 10;
/// The most bytes of a request's headers, as Go's server has it: selectors are long.
const HEADER_LIMIT: u32 = 1 << 20;

/// A listening API server. Dropping it closes the listener and every connection.
#[derive(Debug)]
pub struct Serving {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Serving {
    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// TLS configurations by the address that clients connected to: each certificate names its own.
#[derive(Default)]
struct Configurations(Mutex<BTreeMap<IpAddr, Arc<ServerConfig>>>);

impl Configurations {
    fn get(&self, api: &ApiServer, address: IpAddr) -> Result<Arc<ServerConfig>, CertificateError> {
        let mut known = self.0.lock();
        if let Some(config) = known.get(&address) {
            return Ok(Arc::clone(config));
        }
        let config = api.authority()?.server(address, api.clients()?)?;
        known.insert(address, Arc::clone(&config));
        Ok(config)
    }
}

/// Accepts connections until the handle is dropped.
pub(crate) fn serve(api: ApiServer, listener: std::net::TcpListener) -> io::Result<Serving> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let address = listener.local_addr()?;
    let accepting = tokio::spawn(async move {
        let configurations = Arc::new(Configurations::default());
        let mut connections = JoinSet::new();
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    connections.spawn(connection(api.clone(), Arc::clone(&configurations), stream));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection to the API server could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
            while connections.try_join_next().is_some() {}
        }
    });
    Ok(Serving { address, accepting })
}

async fn connection(api: ApiServer, configurations: Arc<Configurations>, stream: TcpStream) {
    let config = match stream.local_addr() {
        Ok(address) => configurations.get(&api, address.ip().to_canonical()),
        // The client is gone already.
        Err(_) => return,
    };
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            tracing::error!(%error, "no TLS for a connection to the API server");
            return;
        }
    };
    // Small answers go out at once.
    let _ = stream.set_nodelay(true);
    let handshake = TlsAcceptor::from(config).accept(stream);
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_LIMIT, handshake).await else { return };
    let shown = match (stream.get_ref().1.peer_certificates(), api.clients()) {
        (Some(chain), Ok(Some(clients))) => clients.read(chain, api.inner.registry.clock.now()),
        _ => Shown::Nothing,
    };
    let service = service_fn(move |request| answer(api.clone(), shown.clone(), request));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE_LIMIT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(HEADER_LIMIT);
    // The handshake has settled the version. To guess it from the first bytes would wait for them without a limit.
    let two = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let stream = Stalling::new(Farewell(stream), STALL_LIMIT);
    // Errors here are clients that went away.
    let _ = if two {
        let stream = TokioIo::new(Gathering::new(stream));
        builder.http2_only().serve_connection_with_upgrades(stream, service).await
    } else {
        builder.http1_only().serve_connection_with_upgrades(TokioIo::new(stream), service).await
    };
}

async fn answer(
    api: ApiServer,
    shown: Shown,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let user = authn::authenticate(shown, request.headers(), &api.inner.tokens, &api.inner.registry);
    let warning = authn::warning(request.headers());
    let mut response = dispatch::answer(api, user, request).await;
    if let Some(text) = warning {
        warn(&mut response, text);
    }
    Ok(response)
}
