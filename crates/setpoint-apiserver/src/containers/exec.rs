//! `exec` and `attach` over a WebSocket: one connection, a channel number before each message
//! (`k8s.io/apimachinery/pkg/util/remotecommand/constants.go`, protocols v4 and v5).

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::{Either, select};
use futures::stream::{BoxStream, SplitSink, SplitStream};
use futures::{FutureExt, SinkExt, StreamExt};
use http::Response;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::web_socket::{Socket, handshake};
use super::{failure, find};
use crate::body::Body;
use crate::dispatch::Call;
use crate::kubelet::{ExecExit, ExecOptions, ExecSession, KubeletError, LogOptions};
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
    // Before the handshake: kubectl takes an error in the answer to a WebSocket for a server that has none, asks again over
    // SPDY and shows only what is said to that.
    let Some((kubelet, container)) = find(call)? else {
        return Err(Status::bad_request(format!("pod {} does not have a host assigned", call.place.name)));
    };
    if options.command.is_empty() {
        return Err(Status::bad_request("you must specify at least 1 container command to execute"));
    }
    let accepted = handshake(&call.parts.headers, &[V5, V4])?;
    // For the same reason a command that cannot be started ends on the error channel.
    let session = kubelet.exec(container, options.clone()).await.unwrap_or_else(failed);
    accepted.switch(call, |socket| async move { run(socket, session, &options.command).await })
}

/// Turns the connection into what a container writes from now on.
pub(crate) async fn attach(call: &mut Call<'_>) -> Result<Response<Body>> {
    let Some((kubelet, container)) = find(call)? else {
        return Err(Status::bad_request(format!("pod {} does not have a host assigned", call.place.name)));
    };
    let accepted = handshake(&call.parts.headers, &[V5, V4])?;
    let session = if call.query.flag("stdin") {
        let why = "the standard input of a running container cannot be attached to in this cluster";
        failed(KubeletError::Unsupported(why.to_owned()))
    } else {
        let options = LogOptions { follow: true, tail_lines: Some(0), ..LogOptions::default() };
        kubelet.logs(container, options).await.map_or_else(failed, output)
    };
    accepted.switch(call, |socket| async move { run(socket, session, &[]).await })
}

/// The session of a log that goes on as long as its container.
fn output(mut log: BoxStream<'static, Bytes>) -> ExecSession {
    let (ours, theirs) = tokio::io::duplex(CHUNK);
    tokio::spawn(async move {
        let mut ours = ours;
        while let Some(piece) = log.next().await {
            // The client is gone.
            if ours.write_all(&piece).await.is_err() {
                return;
            }
        }
    });
    let exit = std::future::ready(Ok(ExecExit { code: 0 })).boxed();
    ExecSession { stdin: None, stdout: Some(Box::new(theirs)), stderr: None, resize: None, exit }
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
