//! `exec` over a WebSocket: one connection, a channel number before each message
//! (`k8s.io/apimachinery/pkg/util/remotecommand/constants.go`, protocols v4 and v5).

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::{Either, select};
use futures::stream::{SplitSink, SplitStream};
use futures::{FutureExt, SinkExt, StreamExt};
use http::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::{failure, find};
use crate::body::Body;
use crate::dispatch::Call;
use crate::kubelet::{ExecExit, ExecOptions, ExecSession, KubeletError};
use crate::status::{Result, Status};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// In v5: the channel whose number follows is closed.
const CLOSE: u8 = 255;

const V5: &str = "v5.channel.k8s.io";
const V4: &str = "v4.channel.k8s.io";

/// How many messages may wait for a slow client.
const PENDING: usize = 32;
const CHUNK: usize = 32 * 1024;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Starts a command and turns the connection into its terminal.
pub(crate) async fn exec(call: &mut Call<'_>) -> Result<Response<Body>> {
    let query = &call.query;
    let options = ExecOptions {
        command: query.all("command").into_iter().map(str::to_owned).collect(),
        stdin: query.flag("stdin"),
        stdout: query.flag("stdout"),
        stderr: query.flag("stderr") && !query.flag("tty"),
        tty: query.flag("tty"),
    };
    if options.command.is_empty() {
        return Err(Status::bad_request("you must specify at least 1 container command to execute"));
    }
    // Before the handshake: kubectl takes an error in the answer to a WebSocket for a server that has none, asks again over
    // SPDY and shows only what is said to that.
    let Some((kubelet, container)) = find(call)? else {
        return Err(Status::bad_request(format!("pod {} does not have a host assigned", call.place.name)));
    };
    let (protocol, accept) = handshake(&call.parts.headers)?;
    // For the same reason a command that cannot be started ends on the error channel.
    let session = kubelet.exec(container, options.clone()).await.unwrap_or_else(failed);
    let mut upgrade = Request::new(());
    if let Some(pending) = call.parts.extensions.remove::<hyper::upgrade::OnUpgrade>() {
        upgrade.extensions_mut().insert(pending);
    }
    tokio::spawn(async move {
        // A client that goes away before the switch gets nothing, and the command ends with the session.
        let Ok(upgraded) = hyper::upgrade::on(&mut upgrade).await else { return };
        let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
        run(socket, session, &options.command).await;
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert("sec-websocket-protocol", HeaderValue::from_static(protocol));
    headers.insert("sec-websocket-accept", HeaderValue::from_str(&accept).map_err(Status::internal)?);
    Ok(response)
}

/// The protocol to speak and the proof that we understood.
fn handshake(headers: &HeaderMap) -> Result<(&'static str, String)> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let upgrade = text("upgrade");
    if !upgrade.eq_ignore_ascii_case("websocket") {
        return Err(Status::bad_request(format!(
            "exec needs an upgrade to a WebSocket (asked for {upgrade:?}; SPDY is not implemented by this API server)"
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
    let protocol = [V5, V4].into_iter().find(|known| offered.contains(known)).ok_or_else(|| {
        Status::bad_request(format!(
            "none of the offered protocols is known: {offered:?}; known are {V5} and {V4}"
        ))
    })?;
    Ok((protocol, derive_accept_key(key.as_bytes())))
}

/// Moves bytes between client and command until the command ends or the client goes.
async fn run(socket: Socket, session: ExecSession, command: &[String]) {
    let ExecSession { stdin, stdout, stderr, resize, exit } = session;
    let (sink, source) = socket.split();
    let (messages, waiting) = mpsc::channel(PENDING);
    let outputs = async {
        let out = pump(STDOUT, stdout, messages.clone());
        let err = pump(STDERR, stderr, messages.clone());
        futures::join!(out, err);
        let status = ending(exit.await, command);
        // A closed channel means that the client is gone.
        let _ = messages.send(frame(ERROR, status.to_string().as_bytes())).await;
        drop(messages);
    };
    let writing = write(sink, waiting);
    let serving = std::pin::pin!(async { futures::join!(outputs, writing) });
    let input = std::pin::pin!(read(source, stdin, resize));
    // The end of the command ends the session; so does a client that goes away.
    if let Either::Right((gone, serving)) = select(serving, input).await
        && !gone
    {
        serving.await;
    }
}

/// The session of a command that never ran.
fn failed(error: KubeletError) -> ExecSession {
    let exit = std::future::ready(Err(error)).boxed();
    ExecSession { stdin: None, stdout: None, stderr: None, resize: None, exit }
}

fn frame(channel: u8, data: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(data.len() + 1);
    frame.put_u8(channel);
    frame.put_slice(data);
    frame.freeze()
}

/// Sends what a stream of the command says.
async fn pump(channel: u8, stream: Option<Box<dyn AsyncRead + Send + Unpin>>, messages: mpsc::Sender<Bytes>) {
    let Some(mut stream) = stream else { return };
    let mut chunk = vec![0; CHUNK];
    while let Ok(read) = stream.read(&mut chunk).await {
        if read == 0 || messages.send(frame(channel, &chunk[..read])).await.is_err() {
            return;
        }
    }
}

async fn write(mut sink: SplitSink<Socket, Message>, mut waiting: mpsc::Receiver<Bytes>) {
    while let Some(frame) = waiting.recv().await {
        if sink.send(Message::Binary(frame)).await.is_err() {
            return;
        }
    }
    // The last message was sent; the client may close first. Without a code kubectl reports an abnormal end.
    let normal = CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() };
    let _ = sink.send(Message::Close(Some(normal))).await;
}

/// Gives the client's input to the command. Answers true when the client is gone, false when only its input ended.
async fn read(
    mut source: SplitStream<Socket>,
    mut stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    resize: Option<mpsc::Sender<(u16, u16)>>,
) -> bool {
    while let Some(Ok(message)) = source.next().await {
        let data: Bytes = match message {
            Message::Binary(data) => data,
            Message::Text(text) => text.into(),
            Message::Close(_) => return true,
            _ => continue,
        };
        let Some((channel, data)) = data.split_first() else { continue };
        match *channel {
            STDIN => {
                if let Some(input) = &mut stdin
                    && (input.write_all(data).await.is_err() || input.flush().await.is_err())
                {
                    stdin = None;
                }
            }
            RESIZE => {
                let size: Value = serde_json::from_slice(data).unwrap_or_default();
                let side = |key: &str| size[key].as_u64().and_then(|side| u16::try_from(side).ok());
                if let (Some(resize), Some(width), Some(height)) = (&resize, side("Width"), side("Height")) {
                    // A command that is over has no size.
                    let _ = resize.try_send((width, height));
                }
            }
            CLOSE if data.first() == Some(&STDIN) => {
                if let Some(mut input) = stdin.take() {
                    // The command sees the end of its input.
                    let _ = input.shutdown().await;
                }
            }
            _ => {}
        }
    }
    true
}

/// The last message: how the command ended, as a `Status`.
fn ending(exit: Result<ExecExit, KubeletError>, command: &[String]) -> Value {
    match exit {
        Ok(ExecExit { code: 0 }) => json!({"metadata": {}, "status": "Success"}),
        Ok(ExecExit { code }) => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: error executing command {command:?}, exit code {code}"),
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
        Err(error) => failure(error).to_value(),
    }
}
