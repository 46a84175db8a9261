//! What clients send after the switch from HTTP to a stream: frames of WebSockets and of SPDY, of commands, logs and ports.
//!
//! When the client is gone nothing may be left of a stream: that is looked at after each.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, join};
use futures::stream::BoxStream;
use futures::{FutureExt, SinkExt, StreamExt, stream};
use http::{Method, Request};
use http_body_util::Full;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde_json::json;
use setpoint_apiserver::{
    Connection, ContainerRef, ExecExit, ExecOptions, ExecSession, Kubelet, KubeletError, LogOptions,
};
use tokio::io::{AsyncWriteExt, copy, duplex, sink, split};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tower::Service;

use crate::server::{JSON, Server};

const PODS: &str = "/api/v1/namespaces/default/pods";
/// How long what a stream began may take to end, by a clock that nobody waits for.
const ENDING: Duration = Duration::from_secs(3600);
/// The most pieces that a stream is sent in.
const PIECES: usize = 64;

/// An agent whose commands and ports say back what they are told. A port below 1000 is closed, and one above 60000 never ends by itself.
struct Echo;

impl Kubelet for Echo {
    fn logs(
        &self,
        _: ContainerRef,
        _: LogOptions,
    ) -> BoxFuture<'_, Result<BoxStream<'static, Bytes>, KubeletError>> {
        let lines = stream::iter([Bytes::from_static(b"hello\n")]).chain(stream::pending());
        async move { Ok(lines.boxed()) }.boxed()
    }

    fn exec(&self, _: ContainerRef, _: ExecOptions) -> BoxFuture<'_, Result<ExecSession, KubeletError>> {
        let (ours, theirs) = duplex(64);
        let (read, write) = split(theirs);
        let (resize, mut sizes) = tokio::sync::mpsc::channel(1);
        let exit = async move {
            let (mut read, mut write) = split(ours);
            let sizing = async { while sizes.recv().await.is_some() {} };
            // A client that reads nothing any more ends the copy.
            let echoing = async {
                let copied = copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
                copied
            };
            let echoing = std::pin::pin!(echoing);
            let sizing = std::pin::pin!(sizing);
            futures::future::select(echoing, sizing).await;
            Ok(ExecExit { code: 0 })
        };
        let (done, ended) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let _ = done.send(exit.await);
        });
        let exit = async { ended.await.unwrap_or(Ok(ExecExit { code: 1 })) };
        let session = ExecSession {
            stdin: Some(Box::new(write)),
            stdout: Some(Box::new(read)),
            stderr: None,
            resize: Some(resize),
            exit: exit.boxed(),
        };
        async move { Ok(session) }.boxed()
    }

    fn attach(
        &self,
        container: ContainerRef,
        options: ExecOptions,
    ) -> BoxFuture<'_, Result<ExecSession, KubeletError>> {
        self.exec(container, options)
    }

    fn dial(&self, address: SocketAddr) -> BoxFuture<'_, Result<Box<dyn Connection>, KubeletError>> {
        let port = address.port();
        async move {
            if port < 1000 {
                return Err(KubeletError::Failed("connection refused".to_owned()));
            }
            let (ours, theirs) = duplex(64);
            tokio::spawn(async move {
                let (mut read, mut write) = split(ours);
                if port > 60_000 {
                    // It reads, says nothing and closes only when its client has gone for good.
                    let _ = copy(&mut read, &mut sink()).await;
                    while write.write_all(b".").await.is_ok() {
                        tokio::time::sleep(Duration::from_secs(60)).await;
                    }
                } else {
                    let _ = copy(&mut read, &mut write).await;
                }
            });
            Ok(Box::new(theirs) as Box<dyn Connection>)
        }
        .boxed()
    }
}

thread_local! {
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

fn server() -> Server {
    let mut server = Server::new();
    server.api.set_kubelet("n", std::sync::Arc::new(Echo));
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "s"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    let code = server.send(Method::POST, PODS, &[JSON], pod.to_string().as_bytes());
    assert_eq!(code, 201);
    let status = json!({"status": {"phase": "Running", "podIP": "10.244.0.9"}});
    let merge = [("content-type", "application/merge-patch+json")];
    let code = server.send(Method::PATCH, &format!("{PODS}/s/status"), &merge, status.to_string().as_bytes());
    assert_eq!(code, 200);
    server
}

/// An upgrade, and where the protocol behind it is asked for.
const WEB_SOCKET: (&str, &str) = ("websocket", "sec-websocket-protocol");
const SPDY: (&str, &str) = ("SPDY/3.1", "x-stream-protocol-version");

/// Opens a stream, lets `talk` have it and waits until nothing of it is left.
#[expect(clippy::expect_used, reason = "the request is right")]
fn converse<F: Future<Output = ()>>(
    path: &str,
    (upgrade, header): (&str, &str),
    protocol: &str,
    talk: impl FnOnce(Upgraded) -> F,
) {
    SERVER.with_borrow_mut(|kept| {
        let server = kept.get_or_insert_with(server);
        let request = Request::get(format!("{PODS}/s/{path}"))
            .header("connection", "Upgrade")
            .header("upgrade", upgrade)
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header(header, protocol)
            .body(Full::<Bytes>::default())
            .expect("the request is right");
        let service = &mut server.service;
        server.runtime.block_on(async {
            let response = match service.call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            assert_eq!(response.status(), 101);
            talk(hyper::upgrade::on(response).await.expect("the switch takes place")).await;
            let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
            let start = tokio::time::Instant::now();
            while tasks() > 0 {
                assert!(
                    start.elapsed() < ENDING,
                    "{} tasks are left of a stream whose client is gone",
                    tasks()
                );
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
    });
}

/// Sends the bytes as they are and reads what comes until the end.
async fn tell(stream: Upgraded, data: &[u8]) {
    let (mut read, mut write) = split(TokioIo::new(stream));
    let writing = async {
        // A stream that the server has ended takes no more.
        let _ = write.write_all(data).await;
        let _ = write.shutdown().await;
    };
    let mut said = sink();
    // A connection that breaks off has ended, too.
    join(writing, copy(&mut read, &mut said)).await.1.ok();
}

/// WebSocket frames: the bytes as they are, to a command, to a container that is attached to, and to two ports.
pub fn web_sockets(data: &[u8]) {
    for (path, protocol) in [
        ("exec?command=echo&stdin=true&stdout=true&tty=true", "v5.channel.k8s.io"),
        ("attach?stdout=true", "v5.channel.k8s.io"),
        ("portforward?ports=8080,61000", "v4.channel.k8s.io"),
    ] {
        converse(path, WEB_SOCKET, protocol, |stream| tell(stream, data));
    }
}

/// SPDY frames, to ports and to a command; and to ports inside WebSocket messages, whose size the first byte says.
pub fn spdy(data: &[u8]) {
    let Some((size, frames)) = data.split_first() else { return };
    converse("portforward", SPDY, "portforward.k8s.io", |stream| tell(stream, frames));
    let command = "exec?command=echo&stdin=true&stdout=true&tty=true";
    converse(command, SPDY, "v4.channel.k8s.io", |stream| tell(stream, frames));
    let size = usize::from(*size).max(frames.len() / PIECES).max(1);
    converse("portforward", WEB_SOCKET, "SPDY/3.1+portforward.k8s.io", async |stream| {
        let socket = WebSocketStream::from_raw_socket(TokioIo::new(stream), Role::Client, None).await;
        let (mut to, mut from) = socket.split();
        let writing = async {
            for piece in frames.chunks(size) {
                if to.send(Message::binary(piece.to_vec())).await.is_err() {
                    return;
                }
            }
            let _ = to.send(Message::Close(None)).await;
        };
        let reading = async { while let Some(Ok(_)) = from.next().await {} };
        join(writing, reading).await;
    });
}
