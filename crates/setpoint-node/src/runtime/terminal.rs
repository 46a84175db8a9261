//! The controlling side of a container's terminal.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use setpoint_cluster::kubelet::TerminalSize;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;

use crate::channel;

/// A socket over which a new process sends its terminal: our end and theirs.
pub(super) fn offer() -> io::Result<(OwnedFd, OwnedFd)> {
    channel::pair()
}

/// Takes new sizes for a terminal until the sender is dropped.
pub(super) fn resizing(terminal: Terminal) -> mpsc::Sender<TerminalSize> {
    let (resize, mut sizes) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Some(size) = sizes.recv().await {
            let _ = terminal.resize(size);
        }
    });
    resize
}

/// Clones are the same terminal.
#[derive(Clone)]
pub(super) struct Terminal(Arc<AsyncFd<OwnedFd>>);

impl Terminal {
    /// Takes what the process sent before it started.
    pub(super) fn accept(socket: &OwnedFd) -> io::Result<Self> {
        let received = channel::receive::<String>(socket.as_fd())?;
        let side = received.and_then(|(_, mut descriptors)| descriptors.pop());
        let side = side.ok_or_else(|| io::Error::other("the process sent no terminal"))?;
        fcntl(&side, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        // SAFETY: the result owns the descriptor and nothing closes it before.
        let side = unsafe { AsyncFd::register(side) }?;
        Ok(Self(Arc::new(side)))
    }

    /// Tells the terminal its size; its foreground processes get SIGWINCH.
    pub(super) fn resize(&self, size: TerminalSize) -> io::Result<()> {
        let size = libc::winsize { ws_row: size.height, ws_col: size.width, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the structure lives during the call, which only reads it.
        let answer = unsafe { libc::ioctl(self.0.get_ref().as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsyncRead for Terminal {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(cx))?;
            let read =
                guard.try_io(|side| match nix::unistd::read(side.get_ref(), buffer.initialize_unfilled()) {
                    // The other side is closed: all processes on the terminal have ended.
                    Err(Errno::EIO) => Ok(0),
                    other => other.map_err(io::Error::from),
                });
            if let Ok(read) = read {
                return Poll::Ready(read.map(|size| buffer.advance(size)));
            }
        }
    }
}

impl AsyncWrite for Terminal {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(cx))?;
            let written =
                guard.try_io(|side| nix::unistd::write(side.get_ref(), bytes).map_err(io::Error::from));
            if let Ok(written) = written {
                return Poll::Ready(written);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
