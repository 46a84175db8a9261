//! A terminal over a WebSocket: one connection, a channel number before each message
//! (`k8s.io/apimachinery/pkg/util/remotecommand/constants.go`, protocols v4 and v5).

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::{FutureExt, SinkExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::terminal::{Input, Output, PENDING, Terminal, size};
use super::upgrade::{PING_EVERY, Socket, messages};

/// The protocols, best first. In v5 a channel can be closed by a message.
pub(super) const PROTOCOLS: &[&str] = &["v5.channel.k8s.io", "v4.channel.k8s.io"];

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// The channel whose number follows is closed.
const CLOSE: u8 = 255;

/// Speaks with the client behind a WebSocket.
pub(super) fn terminal(socket: Box<Socket>) -> Terminal {
    let (mut sink, source) = socket.split();
    let (output, mut waiting) = mpsc::channel(PENDING);
    let writing = async move {
        loop {
            let message = match timeout(PING_EVERY, waiting.recv()).await {
                Ok(Some(said)) => Message::Binary(frame(&said)),
                Ok(None) => break,
                Err(_) => Message::Ping(Bytes::new()),
            };
            if sink.send(message).await.is_err() {
                return;
            }
        }
        // The last message was sent; the client may close first. Without a code kubectl reports an abnormal end.
        let normal = CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() };
        let _ = sink.send(Message::Close(Some(normal))).await;
    };
    let input = messages(source).filter_map(|data| std::future::ready(input(data)));
    Terminal { input: input.boxed(), output, writing: writing.boxed() }
}

fn frame(said: &Output) -> Bytes {
    let ended;
    let (channel, data) = match said {
        Output::Stdout(data) => (STDOUT, data.as_ref()),
        Output::Stderr(data) => (STDERR, data.as_ref()),
        Output::Ended(status) => {
            ended = status.to_string();
            (ERROR, ended.as_bytes())
        }
    };
    let mut frame = BytesMut::with_capacity(data.len() + 1);
    frame.put_u8(channel);
    frame.put_slice(data);
    frame.freeze()
}

fn input(mut data: Bytes) -> Option<Input> {
    match data.try_get_u8().ok()? {
        STDIN => Some(Input::Stdin(data)),
        RESIZE => size(&serde_json::from_slice(&data).ok()?),
        CLOSE if data.first() == Some(&STDIN) => Some(Input::StdinEnd),
        _ => None,
    }
}
