//! One connection to a port of a pod, on behalf of a client that is connected by whatever protocol.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{Either, select};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::kubelet::Kubelet;

/// How many frames may wait for a slow client, or pieces for a slow port.
pub(super) const PENDING: usize = 32;
const CHUNK: usize = 32 * 1024;

/// One connection to a port.
pub(super) struct Forward {
    pub(super) kubelet: Arc<dyn Kubelet>,
    pub(super) address: SocketAddr,
    /// The stream for the reason when the port cannot be reached, and the one for bytes.
    pub(super) error: u32,
    pub(super) data: u32,
    /// How bytes of a stream, and its end, are put to the client; `None` where an end is not told.
    pub(super) frame: fn(u32, &[u8], bool) -> Option<Bytes>,
}

impl Forward {
    /// Moves `input` to the port and what the port says to `frames`, until the port has said everything.
    pub(super) async fn run(self, mut input: mpsc::Receiver<Bytes>, frames: mpsc::Sender<Bytes>) {
        let connection = match self.kubelet.dial(self.address).await {
            Ok(connection) => connection,
            Err(error) => {
                let port = self.address.port();
                let text = format!("an error occurred forwarding to port {port} of the pod: {error}");
                self.say(&frames, self.error, text.as_bytes(), true).await;
                self.say(&frames, self.data, b"", true).await;
                return;
            }
        };
        let (mut from_port, mut to_port) = tokio::io::split(connection);
        let inward = async {
            while let Some(bytes) = input.recv().await {
                if to_port.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            // The port sees the end of its input.
            let _ = to_port.shutdown().await;
        };
        let outward = async {
            let mut chunk = vec![0; CHUNK];
            while let Ok(read) = from_port.read(&mut chunk).await {
                if read == 0 || !self.say(&frames, self.data, &chunk[..read], false).await {
                    break;
                }
            }
            self.say(&frames, self.data, b"", true).await;
            self.say(&frames, self.error, b"", true).await;
        };
        // When the port has said everything, the connection is over.
        let (inward, outward) = (std::pin::pin!(inward), std::pin::pin!(outward));
        if let Either::Left(((), outward)) = select(inward, outward).await {
            outward.await;
        }
    }
    /// Puts something to the client; answers whether it is still there.
    async fn say(&self, frames: &mpsc::Sender<Bytes>, stream: u32, bytes: &[u8], end: bool) -> bool {
        match (self.frame)(stream, bytes, end) {
            Some(frame) => frames.send(frame).await.is_ok(),
            None => true,
        }
    }
}
