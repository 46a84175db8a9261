//! `kubectl attach`: a running container's own streams.

use std::io::{self, PipeWriter};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::{self, Stream};
use parking_lot::Mutex;
use setpoint_cluster::kubelet::{ContainerId, ExecSession, RuntimeError};
use tokio::io::AsyncWrite;
use tokio::net::unix::pipe;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio_util::io::StreamReader;

use super::container::Container;
use super::terminal::{Terminal, resizing};

/// What a container reads.
pub(super) enum Input {
    /// The end of a file.
    Nothing,
    /// A pipe, whose end here is kept open, so that the container waits for who attaches.
    Pipe {
        /// `None` when it has been closed for good.
        held: Arc<Mutex<Option<OwnedFd>>>,
        /// Whether it is closed when the first who was attached has gone.
        once: bool,
    },
    /// A terminal.
    Terminal {
        /// Its controlling side.
        terminal: Terminal,
        /// Whether the container was to have an input.
        read: bool,
    },
}

impl Input {
    pub(super) fn pipe(writer: PipeWriter, once: bool) -> Self {
        Self::Pipe { held: Arc::new(Mutex::new(Some(writer.into()))), once }
    }

    /// A way to write to it.
    fn open(&self) -> io::Result<Option<Pin<Box<dyn AsyncWrite + Send>>>> {
        match self {
            Self::Pipe { held, once } => {
                let Some(copy) = held.lock().as_ref().map(OwnedFd::try_clone).transpose()? else {
                    return Ok(None);
                };
                let sender = pipe::Sender::from_owned_fd(copy)?;
                let closes = once.then(|| Arc::clone(held));
                Ok(Some(Box::pin(Attached { sender, closes })))
            }
            Self::Terminal { terminal, read: true } => Ok(Some(Box::pin(terminal.clone()))),
            Self::Nothing | Self::Terminal { .. } => Ok(None),
        }
    }
}

/// The input of a container while somebody is attached to it.
struct Attached {
    sender: pipe::Sender,
    /// What ends with it, if the input is for one only.
    closes: Option<Arc<Mutex<Option<OwnedFd>>>>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(held) = &self.closes {
            held.lock().take();
        }
    }
}

impl AsyncWrite for Attached {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.sender).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sender).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sender).poll_shutdown(cx)
    }
}

/// Connects to a container; see `Runtime::attach`.
pub(super) fn attach(
    container: &Container,
    id: &ContainerId,
    stdin: bool,
) -> Result<ExecSession, RuntimeError> {
    let Some((stdout, stderr)) = container.log.live() else {
        return Err(RuntimeError::NotRunning(id.clone()));
    };
    let failed = |source| RuntimeError::Io { what: "standard input".to_owned(), source };
    let stdin = if stdin { container.input.open().map_err(failed)? } else { None };
    let (stderr, resize): (Option<Pin<Box<dyn tokio::io::AsyncRead + Send>>>, _) = match &container.input {
        Input::Terminal { terminal, .. } => (None, Some(resizing(terminal.clone()))),
        Input::Nothing | Input::Pipe { .. } => {
            (Some(Box::pin(StreamReader::new(Box::pin(pieces(stderr))))), None)
        }
    };
    let mut exit = container.exit.clone();
    Ok(ExecSession {
        stdin,
        stdout: Box::pin(StreamReader::new(Box::pin(pieces(stdout)))),
        stderr,
        resize,
        exit: Box::pin(async move {
            // Without a sender the machine shuts down.
            let _ = exit.wait_for(Option::is_some).await;
            Ok(0)
        }),
    })
}

/// What comes until the container has ended.
fn pieces(receiver: Receiver<Bytes>) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::unfold(receiver, async |mut receiver| {
        loop {
            match receiver.recv().await {
                Ok(piece) => return Some((Ok(piece), receiver)),
                // What was missed is in the log.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    })
}
