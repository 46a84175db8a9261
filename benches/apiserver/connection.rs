use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::failure::Failure;
use crate::tls;

/// A kept TLS connection that speaks just enough HTTP/1.1: one request at a time.
pub(crate) struct Connection {
    stream: TlsStream<TcpStream>,
    /// The headers of every request.
    headers: String,
    request: Vec<u8>,
    /// What was read and not used yet.
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr, token: &str) -> Result<Self, Failure> {
        let stream = tls::connect(address, "http/1.1").await?;
        let headers = format!(
            "host: {address}\r\nauthorization: Bearer {token}\r\naccept: application/json\r\nuser-agent: bench\r\n"
        );
        Ok(Self { stream, headers, request: Vec::new(), buffer: Vec::new() })
    }

    async fn send(&mut self, method: &str, path: &str, body: &[u8]) -> Result<(), Failure> {
        let Self { request, headers, .. } = self;
        request.clear();
        request.extend_from_slice(format!("{method} {path} HTTP/1.1\r\n").as_bytes());
        request.extend_from_slice(headers.as_bytes());
        if !body.is_empty() {
            request.extend_from_slice(b"content-type: application/json\r\n");
        }
        request.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        request.extend_from_slice(body);
        self.stream.write_all(&self.request).await.map_err(Failure::io("send a request"))?;
        self.stream.flush().await.map_err(Failure::io("send a request"))
    }

    /// Reads until `found` finds its end in the buffer.
    async fn read_until(&mut self, found: impl Fn(&[u8]) -> Option<usize>) -> Result<usize, Failure> {
        loop {
            if let Some(end) = found(&self.buffer) {
                return Ok(end);
            }
            let read = self.stream.read_buf(&mut self.buffer).await;
            if read.map_err(Failure::io("read an answer"))? == 0 {
                return Err(Failure::Refused("the server closed the connection".into()));
            }
        }
    }

    /// Reads the status and the headers: the code, and how long the body is if that is said.
    async fn head(&mut self) -> Result<(u16, Option<usize>), Failure> {
        let end = self.read_until(|bytes| after(bytes, b"\r\n\r\n")).await?;
        let head = String::from_utf8_lossy(&self.buffer[..end]).to_ascii_lowercase();
        self.buffer.drain(..end);
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        Ok((code, length.and_then(|length| length.trim().parse().ok())))
    }

    /// Reads a chunk of a body.
    async fn chunk(&mut self) -> Result<Vec<u8>, Failure> {
        let end = self.read_until(|bytes| after(bytes, b"\r\n")).await?;
        let size = String::from_utf8_lossy(&self.buffer[..end - 2]).into_owned();
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or_default();
        self.buffer.drain(..end);
        self.read_until(|bytes| (bytes.len() >= size + 2).then_some(size)).await?;
        let chunk = self.buffer[..size].to_vec();
        self.buffer.drain(..size + 2);
        Ok(chunk)
    }

    /// Sends a request and reads the answer whole; anything but `code` is a failure.
    pub(crate) async fn request(
        &mut self,
        method: &str,
        path: &str,
        body: &[u8],
        expected: u16,
    ) -> Result<Vec<u8>, Failure> {
        self.send(method, path, body).await?;
        let (code, length) = self.head().await?;
        let body = if let Some(length) = length {
            self.read_until(|bytes| (bytes.len() >= length).then_some(length)).await?;
            self.buffer.drain(..length).collect()
        } else {
            let mut body = Vec::new();
            loop {
                let chunk = self.chunk().await?;
                if chunk.is_empty() {
                    break body;
                }
                body.extend(chunk);
            }
        };
        if code == expected {
            return Ok(body);
        }
        let text = String::from_utf8_lossy(&body).chars().take(400).collect::<String>();
        Err(Failure::Refused(format!("{method} {path}: {code} {text}")))
    }

    pub(crate) async fn get(&mut self, path: &str) -> Result<Vec<u8>, Failure> {
        self.request("GET", path, b"", 200).await
    }

    /// Starts a watch: from now on [`Connection::event`] gives its events.
    pub(crate) async fn watch(&mut self, path: &str) -> Result<(), Failure> {
        self.send("GET", path, b"").await?;
        match self.head().await? {
            (200, None) => Ok(()),
            (code, _) => Err(Failure::Refused(format!("GET {path}: {code}"))),
        }
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        self.stream.get_ref().0
    }

    /// The next event of the watch.
    pub(crate) async fn event(&mut self) -> Result<Vec<u8>, Failure> {
        let mut line = self.chunk().await?;
        while line.last() != Some(&b'\n') {
            line.extend(self.chunk().await?);
        }
        Ok(line)
    }
}

/// Where the first `mark` ends.
fn after(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    bytes.windows(mark.len()).position(|window| window == mark).map(|at| at + mark.len())
}
