//! What is left of a stream when its client goes without a word: nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, SinkExt, StreamExt};
use http::Request;
use http_body_util::Full;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::json;
use setpoint_apiserver::{
    Connection, ContainerRef, ExecExit, ExecOptions, ExecSession, Kubelet, KubeletError, LogOptions,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::client::{Client, server};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// An agent whose containers, commands and ports say nothing, take nothing and never end.
#[derive(Default)]
struct Silent {
    /// The other ends of connections and of commands' inputs.
    ends: Mutex<Vec<DuplexStream>>,
    /// Closed when a log or a command is over.
    over: Mutex<Vec<oneshot::Sender<()>>>,
}

impl Silent {
    fn end(&self) -> DuplexStream {
        let (ours, theirs) = duplex(64);
        self.ends.lock().push(ours);
        theirs
    }

    fn running(&self) -> oneshot::Receiver<()> {
        let (over, running) = oneshot::channel();
        self.over.lock().push(over);
        running
    }

    fn last_end(&self) -> DuplexStream {
        self.ends.lock().pop().expect("something is connected")
    }

    /// Waits until what was begun last is over.
    async fn is_over(&self) {
        let mut over = self.over.lock().pop().expect("something was begun");
        timeout(Duration::from_secs(600), over.closed()).await.expect("it is over when the client is gone");
    }
}

impl Kubelet for Silent {
    fn logs(
        &self,
        _: ContainerRef,
        _: LogOptions,
    ) -> BoxFuture<'_, Result<BoxStream<'static, Bytes>, KubeletError>> {
        let running = self.running();
        let silence = stream::once(async move {
            let _ = running.await;
            Bytes::new()
        });
        async move { Ok(silence.boxed()) }.boxed()
    }

    fn exec(&self, _: ContainerRef, _: ExecOptions) -> BoxFuture<'_, Result<ExecSession, KubeletError>> {
        let (stdin, running) = (self.end(), self.running());
        let exit = async move {
            let _ = running.await;
            Ok(ExecExit { code: 0 })
        };
        let session = ExecSession {
            stdin: Some(Box::new(stdin)),
            stdout: None,
            stderr: None,
            resize: None,
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

    fn dial(&self, _: SocketAddr) -> BoxFuture<'_, Result<Box<dyn Connection>, KubeletError>> {
        let connection = self.end();
        async move { Ok(Box::new(connection) as Box<dyn Connection>) }.boxed()
    }
}

/// A running pod on a node with this agent.
async fn silent() -> (Client, Arc<Silent>) {
    let api = server();
    let client = Client::admin(&api);
    let agent = Arc::new(Silent::default());
    api.set_kubelet("n", agent.clone());
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    client.post(PODS, &pod).await.expect(201);
    let status = json!({"status": {"phase": "Running", "podIP": "10.244.0.9"}});
    client.merge(&format!("{PODS}/a/status"), &status).await.expect(200);
    (client, agent)
}

type Socket = WebSocketStream<TokioIo<Upgraded>>;

async fn upgraded(client: &Client, path: &str, to: &str, header: &str, protocol: &str) -> TokioIo<Upgraded> {
    let request = Request::get(format!("{PODS}/a/{path}"))
        .header("connection", "Upgrade")
        .header("upgrade", to)
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .header(header, protocol)
        .body(Full::default())
        .unwrap();
    let response = client.send(request).await;
    assert_eq!(response.status(), 101);
    TokioIo::new(hyper::upgrade::on(response).await.unwrap())
}

async fn open(client: &Client, path: &str, protocol: &str) -> Socket {
    let stream = upgraded(client, path, "websocket", "sec-websocket-protocol", protocol).await;
    WebSocketStream::from_raw_socket(stream, Role::Client, None).await
}

/// A SPDY frame that opens a stream: headers in one stored block, which is what the first bytes of `text` need to be read with.
fn open_frame(stream: u32, kind: &str, first: bool) -> Vec<u8> {
    let mut text = BytesMut::new();
    text.put_u32(3);
    for part in ["port", "80", "requestid", "0", "streamtype", kind] {
        text.put_u32(part.len() as u32);
        text.put_slice(part.as_bytes());
    }
    let mut payload = BytesMut::new();
    payload.put_u32(stream);
    payload.put_slice(&[0; 6]);
    if first {
        payload.put_slice(&[0x78, 0xbb, 0, 0, 0, 0]);
    }
    payload.put_u8(0);
    payload.put_u16_le(text.len() as u16);
    payload.put_u16_le(!(text.len() as u16));
    payload.put_slice(&text);
    payload.put_slice(&[0, 0, 0, 0xff, 0xff]);
    let mut frame = BytesMut::new();
    frame.put_u32(1 << 31 | 3 << 16 | 1);
    frame.put_u32(payload.len() as u32);
    frame.put_slice(&payload);
    frame.to_vec()
}

fn data_frame(stream: u32, data: &[u8]) -> Vec<u8> {
    [&stream.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

/// A client that forwards a port, and the port's end of its connection.
async fn forwarded(client: &Client, agent: &Silent) -> (Socket, DuplexStream) {
    let mut socket = open(client, "portforward?ports=80", "SPDY/3.1+portforward.k8s.io").await;
    for frame in [open_frame(1, "error", true), open_frame(3, "data", false), data_frame(3, b"hello")] {
        socket.send(Message::binary(frame)).await.unwrap();
    }
    socket.next().await.unwrap().unwrap();
    socket.next().await.unwrap().unwrap();
    let mut port = agent.last_end();
    port.read_exact(&mut [0; 5]).await.unwrap();
    (socket, port)
}

/// Waits until nothing takes what a port says.
async fn is_closed(mut port: DuplexStream) {
    let closed = async {
        while port.write_all(b"x").await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(600), closed).await.expect("the connection is closed");
}

#[tokio::test(start_paused = true)]
async fn a_port_that_says_nothing_is_left_with_its_client() {
    let (client, agent) = silent().await;
    let (socket, mut port) = forwarded(&client, &agent).await;
    drop(socket);
    assert_eq!(port.read(&mut [0]).await.unwrap(), 0);
    // Nothing is read from it any more, either.
    is_closed(port).await;
}

#[tokio::test(start_paused = true)]
async fn channels_and_plain_streams_leave_nothing_either() {
    let (client, agent) = silent().await;
    let mut socket = open(&client, "portforward?ports=80", "v4.channel.k8s.io").await;
    socket.send(Message::binary(b"\0hello".to_vec())).await.unwrap();
    let port = timeout(Duration::from_secs(60), async {
        while agent.ends.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        agent.last_end()
    });
    let mut port = port.await.expect("the port is connected to");
    port.read_exact(&mut [0; 5]).await.unwrap();
    drop(socket);
    is_closed(port).await;

    let mut stream =
        upgraded(&client, "portforward", "SPDY/3.1", "x-stream-protocol-version", "portforward.k8s.io").await;
    for frame in [open_frame(1, "error", true), open_frame(3, "data", false), data_frame(3, b"hello")] {
        stream.write_all(&frame).await.unwrap();
    }
    // Two replies, of 28 and 26 bytes.
    stream.read_exact(&mut [0; 54]).await.unwrap();
    let mut port = agent.last_end();
    port.read_exact(&mut [0; 5]).await.unwrap();
    let mut ping = [0; 12];
    stream.read_exact(&mut ping).await.unwrap();
    assert_eq!(ping, [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2], "after half a minute without a word");
    drop(stream);
    is_closed(port).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_ends_when_its_stream_is_reset() {
    let (client, agent) = silent().await;
    let (mut socket, port) = forwarded(&client, &agent).await;
    let reset =
        [0x8003_0003_u32.to_be_bytes(), 8_u32.to_be_bytes(), 3_u32.to_be_bytes(), 5_u32.to_be_bytes()];
    socket.send(Message::binary(reset.concat())).await.unwrap();
    is_closed(port).await;
}

#[tokio::test(start_paused = true)]
async fn more_input_than_a_port_takes_does_not_hide_that_its_client_is_gone() {
    let (client, agent) = silent().await;
    let (mut socket, port) = forwarded(&client, &agent).await;
    let flood = async { while socket.send(Message::binary(data_frame(3, &[b'x'; 4096]))).await.is_ok() {} };
    timeout(Duration::from_secs(1), flood).await.expect_err("a port that takes nothing holds its client up");
    drop(socket);
    is_closed(port).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_who_was_attached() {
    let (client, agent) = silent().await;
    drop(open(&client, "attach?stdout=true", "v5.channel.k8s.io").await);
    agent.is_over().await;
}

#[tokio::test(start_paused = true)]
async fn a_command_that_takes_no_input_ends_with_its_client() {
    let (client, agent) = silent().await;
    let mut socket = open(&client, "exec?command=sleep&stdin=true&stdout=true", "v5.channel.k8s.io").await;
    let flood = async { while socket.send(Message::binary(vec![0; 4096])).await.is_ok() {} };
    timeout(Duration::from_secs(1), flood)
        .await
        .expect_err("a command that takes nothing holds its client up");
    drop(socket);
    agent.is_over().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_client_is_pinged() {
    let (client, _agent) = silent().await;
    let mut socket = open(&client, "exec?command=sleep&stdout=true", "v5.channel.k8s.io").await;
    let start = tokio::time::Instant::now();
    assert!(matches!(socket.next().await, Some(Ok(Message::Ping(_)))));
    assert_eq!(start.elapsed(), Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn a_message_of_megabytes_ends_the_stream() {
    let (client, agent) = silent().await;
    let mut socket = open(&client, "exec?command=sleep&stdout=true", "v5.channel.k8s.io").await;
    // More than the pipe takes, unless somebody reads it.
    let _ = socket.send(Message::binary(vec![0; 8 << 20])).await;
    agent.is_over().await;
}
