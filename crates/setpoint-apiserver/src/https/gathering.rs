//! A connection that gathers what several answers write at about the same time: HTTP/2 writes each frame by itself, and for an event that goes to a
//! hundred watches of a connection that would be a hundred TLS records and system calls.

use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, BufWriter, ReadBuf};

/// The most that fits into a TLS record.
const RECORD: usize = 16 << 10;

/// Writes when a record is full, or when it is flushed and everybody who is ready has had a turn to add something.
pub(super) struct Gathering<S> {
    stream: BufWriter<S>,
    /// Whether the others had their turn since the flush was asked for.
    yielded: bool,
}

impl<S: AsyncWrite> Gathering<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream: BufWriter::with_capacity(RECORD, stream), yielded: false }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Gathering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gathering<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if !self.stream.buffer().is_empty() && !self.yielded {
            self.yielded = true;
            // A task that wakes itself comes after those that are ready.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.yielded = false;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures::future::join;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn what_others_add_in_their_turn_goes_out_at_once() {
        let (near, mut far) = duplex(64);
        let mut near = Gathering::new(near);
        near.write_all(b"one ").await.unwrap();
        let first = poll_fn(|cx| Poll::Ready(Pin::new(&mut near).poll_flush(cx))).await;
        assert!(first.is_pending());
        near.write_all(b"two").await.unwrap();
        near.flush().await.unwrap();
        let mut bytes = [0; 64];
        let read = far.read(&mut bytes).await.unwrap();
        assert_eq!(&bytes[..read], b"one two");
    }

    #[tokio::test]
    async fn all_of_it_arrives_in_order() {
        let (near, mut far) = duplex(100);
        let mut near = Gathering::new(near);
        let sent: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
        let write = async {
            for (index, piece) in sent.chunks(777).enumerate() {
                near.write_all(piece).await.unwrap();
                if index % 3 == 0 {
                    near.flush().await.unwrap();
                }
            }
            near.shutdown().await.unwrap();
        };
        let mut received = Vec::new();
        let ((), read) = join(write, far.read_to_end(&mut received)).await;
        read.unwrap();
        assert_eq!(received, sent);
    }
}
