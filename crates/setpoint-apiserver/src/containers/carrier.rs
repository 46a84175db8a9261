//! What carries SPDY frames: the connection itself, or a WebSocket on it, through which kubectl tunnels.

use bytes::{Bytes, BytesMut};
use futures::stream::{BoxStream, SplitSink, unfold};
use futures::{SinkExt, StreamExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, WriteHalf};
use tokio_tungstenite::tungstenite::Message;

use super::spdy::{Frame, Reader, Writer};
use super::upgrade::{Connection, Socket, messages};

/// How much is read at a time.
const CHUNK: usize = 32 * 1024;

/// The frames that come in, and where frames go out.
pub(super) fn carry(connection: Connection) -> (Frames, Outgoing) {
    let (bytes, outgoing) = split(connection);
    (Frames { bytes, reader: Reader::new() }, outgoing)
}

/// The bytes that come in, until the client goes; and where bytes go out.
fn split(connection: Connection) -> (BoxStream<'static, Bytes>, Outgoing) {
    match connection {
        Connection::WebSocket(socket) => {
            let (sink, source) = socket.split();
            (messages(source).boxed(), Outgoing::WebSocket(sink))
        }
        Connection::Spdy(stream) => {
            let (read, write) = tokio::io::split(stream);
            let bytes = unfold(read, |mut read| async move {
                let mut piece = BytesMut::with_capacity(CHUNK);
                match read.read_buf(&mut piece).await {
                    Ok(length) if length > 0 => Some((piece.freeze(), read)),
                    _ => None,
                }
            });
            (bytes.boxed(), Outgoing::Stream(write))
        }
    }
}

/// Frames as they come in.
pub(super) struct Frames {
    bytes: BoxStream<'static, Bytes>,
    reader: Reader,
}

impl Frames {
    /// The next one; `None` when the client is gone or says what nobody understands.
    pub(super) async fn next(&mut self) -> Option<Frame> {
        loop {
            match self.reader.next() {
                Ok(Some(frame)) => return Some(frame),
                Ok(None) => self.reader.push(&self.bytes.next().await?),
                Err(error) => {
                    tracing::debug!(%error, "a client's connection ended");
                    return None;
                }
            }
        }
    }
}

/// The way out.
pub(super) enum Outgoing {
    WebSocket(SplitSink<Box<Socket>, Message>),
    Stream(WriteHalf<TokioIo<Upgraded>>),
}

impl Outgoing {
    /// Sends; answers whether the client is still there.
    pub(super) async fn send(&mut self, bytes: Bytes) -> bool {
        match self {
            Self::WebSocket(sink) => sink.send(Message::Binary(bytes)).await.is_ok(),
            Self::Stream(stream) => stream.write_all(&bytes).await.is_ok() && stream.flush().await.is_ok(),
        }
    }

    /// Looks whether a client that was sent nothing for a while is still there.
    pub(super) async fn ping(&mut self) -> bool {
        match self {
            Self::WebSocket(sink) => sink.send(Message::Ping(Bytes::new())).await.is_ok(),
            // Servers number theirs evenly.
            Self::Stream(_) => self.send(Writer::ping(2)).await,
        }
    }

    /// Tells the client that nothing more comes.
    pub(super) async fn close(&mut self) {
        // A client that is gone need not be told.
        match self {
            Self::WebSocket(sink) => drop(sink.close().await),
            Self::Stream(stream) => drop(stream.shutdown().await),
        }
    }
}
