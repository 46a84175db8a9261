//! Just enough HTTP/2 (RFC 9113) for many watches on one connection.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::failure::Failure;
use crate::tls;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// The largest window: no server has to wait for this client.
const WINDOW: u32 = (1 << 31) - 1;
const FIRST_WINDOW: u32 = 65_535;
const HEAD: usize = 9;

/// A connection with watches.
pub(crate) struct Multiplexed {
    stream: TlsStream<TcpStream>,
    authority: String,
    headers: Vec<u8>,
    buffer: Vec<u8>,
    /// How much of the buffer was used.
    used: usize,
    next_stream: u32,
}

impl Multiplexed {
    pub(crate) async fn open(address: SocketAddr, token: &str) -> Result<Self, Failure> {
        let stream = tls::connect(address, "h2").await?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(Failure::Refused("the server does not speak HTTP/2".into()));
        }
        // By their indices in the static table of HPACK (RFC 7541).
        let mut headers = Vec::new();
        for (name, value) in [(19, "application/json".into()), (23, format!("Bearer {token}"))] {
            literal(&mut headers, name, &value);
        }
        let mut connection = Self {
            stream,
            authority: address.to_string(),
            headers,
            buffer: Vec::new(),
            used: 0,
            next_stream: 1,
        };
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let settings = [&[0, 2, 0, 0, 0, 0, 0, 4], &WINDOW.to_be_bytes()[..]].concat();
        frame(&mut bytes, SETTINGS, 0, 0, &settings);
        frame(&mut bytes, WINDOW_UPDATE, 0, 0, &(WINDOW - FIRST_WINDOW).to_be_bytes());
        connection.send(&bytes).await?;
        Ok(connection)
    }

    /// Starts one more watch, and waits for the head of its answer.
    pub(crate) async fn watch(&mut self, path: &str) -> Result<(), Failure> {
        // GET, https, and then what is not one of all possible values.
        let mut headers = vec![0x82, 0x87];
        literal(&mut headers, 1, &self.authority);
        literal(&mut headers, 4, path);
        headers.extend_from_slice(&self.headers);
        let mut bytes = Vec::new();
        frame(&mut bytes, HEADERS, END_STREAM | END_HEADERS, self.next_stream, &headers);
        self.next_stream += 2;
        self.send(&bytes).await?;
        while self.next().await?.0 != HEADERS {}
        Ok(())
    }

    /// The next event of any watch.
    pub(crate) async fn event(&mut self) -> Result<Vec<u8>, Failure> {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            if let (DATA, data) = self.next().await? {
                line.extend(data);
            }
        }
        Ok(line)
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.stream.write_all(bytes).await.map_err(Failure::io("send frames"))?;
        self.stream.flush().await.map_err(Failure::io("send frames"))
    }

    /// The type and the payload of the next frame. Answers what has to be answered.
    async fn next(&mut self) -> Result<(u8, Vec<u8>), Failure> {
        let end = loop {
            let left = &self.buffer[self.used..];
            if let [high, middle, low, ..] = *left {
                let end = HEAD + u32::from_be_bytes([0, high, middle, low]) as usize;
                if left.len() >= end {
                    break end;
                }
            }
            self.buffer.drain(..std::mem::take(&mut self.used));
            let read = self.stream.read_buf(&mut self.buffer).await;
            if read.map_err(Failure::io("read frames"))? == 0 {
                return Err(Failure::Refused("the server closed the connection".into()));
            }
        };
        let frame_read = &self.buffer[self.used..self.used + end];
        let (kind, flags, payload) = (frame_read[3], frame_read[4], frame_read[HEAD..].to_vec());
        self.used += end;
        match kind {
            SETTINGS | PING if flags & ACK == 0 => {
                let mut bytes = Vec::new();
                let echo = if kind == PING { &payload[..] } else { &[] };
                frame(&mut bytes, kind, ACK, 0, echo);
                self.send(&bytes).await?;
            }
            RST_STREAM | GOAWAY => return Err(Failure::Refused("the server ended a watch".into())),
            _ => {}
        }
        Ok((kind, payload))
    }
}

fn frame(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
}

/// A header whose name is in the static table.
fn literal(bytes: &mut Vec<u8>, name: usize, value: &str) {
    integer(bytes, 0, 4, name);
    integer(bytes, 0, 7, value.len());
    bytes.extend_from_slice(value.as_bytes());
}

/// An integer of HPACK in the low `bits` of the first byte and, if it has no room there, in more bytes.
fn integer(bytes: &mut Vec<u8>, first: u8, bits: u32, value: usize) {
    let most = (1 << bits) - 1;
    if value < most {
        bytes.push(first | value as u8);
        return;
    }
    bytes.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 128 {
        bytes.push((rest % 128) as u8 | 128);
        rest /= 128;
    }
    bytes.push(rest as u8);
}
