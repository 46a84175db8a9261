//! The client's side of `exec` and `attach`, whatever its protocol: what it types comes in, what the command writes goes out.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use serde_json::Value;
use tokio::sync::mpsc;

/// How many messages may wait for a slow client.
pub(super) const PENDING: usize = 32;

/// What the client says.
pub(super) enum Input {
    Stdin(Bytes),
    /// The command sees the end of its input.
    StdinEnd,
    /// Columns and rows.
    Resize(u16, u16),
}

/// What is said to the client.
pub(super) enum Output {
    Stdout(Bytes),
    Stderr(Bytes),
    /// The last message: how the command ended, as a `Status`.
    Ended(Value),
}

/// A client that is connected.
pub(super) struct Terminal {
    /// Ends when the client is gone.
    pub(super) input: BoxStream<'static, Input>,
    /// Dropped after the last message.
    pub(super) output: mpsc::Sender<Output>,
    /// Sends what was put into `output`, until that is dropped or the client is gone.
    pub(super) writing: BoxFuture<'static, ()>,
}

/// The size in a client's message (`TerminalSize`), if it is one.
pub(super) fn size(message: &Value) -> Option<Input> {
    let side = |key: &str| message[key].as_u64().and_then(|side| u16::try_from(side).ok());
    Some(Input::Resize(side("Width")?, side("Height")?))
}
