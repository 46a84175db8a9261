//! The part of SPDY/3.1 that `exec`, `attach` and `portforward` need: frames in, frames out
//! (<https://www.chromium.org/spdy/spdy-protocol/spdy-protocol-draft3-1/>). Pure.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

/// What both sides' compressors know beforehand (section 2.6.10.1).
const DICTIONARY: &[u8] = include_bytes!("spdy.dictionary");
/// How far back compressed headers may refer.
const WINDOW: usize = 32 * 1024;
/// The most bytes of a frame: clients send what one read of theirs gave.
const LONGEST: usize = 1 << 20;
/// The most bytes of a stream's headers.
const LONGEST_HEADERS: usize = 16 * 1024;
const FIN: u8 = 1;

/// What the peer says.
#[derive(Debug, PartialEq)]
pub(super) enum Frame {
    /// A new stream with its headers, names in lower case.
    Open {
        stream: u32,
        headers: Vec<(String, String)>,
        fin: bool,
    },
    Data {
        stream: u32,
        data: Bytes,
        fin: bool,
    },
    Reset {
        stream: u32,
    },
    Ping {
        id: u32,
    },
    /// The peer opens no more streams.
    GoAway,
    /// Nothing that concerns us.
    Other,
}

/// Why a connection cannot go on.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(super) enum SpdyError {
    #[error("a frame of {0} bytes")]
    TooLong(usize),
    #[error("a frame that is cut off")]
    Short,
    #[error("headers that cannot be decompressed")]
    Headers,
}

/// Reads frames from bytes as they come.
pub(super) struct Reader {
    waiting: BytesMut,
    inflate: Box<DecompressorOxide>,
    window: Vec<u8>,
    at: usize,
    begun: bool,
}

impl Reader {
    pub(super) fn new() -> Self {
        let mut window = vec![0; WINDOW];
        window[..DICTIONARY.len()].copy_from_slice(DICTIONARY);
        let waiting = BytesMut::new();
        Self { waiting, inflate: Box::default(), window, at: DICTIONARY.len(), begun: false }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.waiting.extend_from_slice(bytes);
    }

    /// The next frame, if all of it is there.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, SpdyError> {
        let Some(head) = self.waiting.get(..8) else { return Ok(None) };
        let length = usize::from(head[5]) << 16 | usize::from(head[6]) << 8 | usize::from(head[7]);
        if length > LONGEST {
            return Err(SpdyError::TooLong(length));
        }
        if self.waiting.len() < 8 + length {
            return Ok(None);
        }
        let mut frame = self.waiting.split_to(8 + length).freeze();
        let first = frame.get_u32();
        let flags = frame.get_u8();
        frame.advance(3);
        let fin = flags & FIN != 0;
        if first >> 31 == 0 {
            return Ok(Some(Frame::Data { stream: first, data: frame, fin }));
        }
        let mut number =
            || frame.try_get_u32().map(|number| number & 0x7fff_ffff).map_err(|_| SpdyError::Short);
        Ok(Some(match first & 0xffff {
            1 => {
                let (stream, _) = (number()?, number()?);
                if frame.len() < 2 {
                    return Err(SpdyError::Short);
                }
                frame.advance(2);
                Frame::Open { stream, headers: headers(&self.inflate(&frame)?)?, fin }
            }
            // A stream's further headers: what they say does not matter, but the compression goes on with them.
            8 => {
                number()?;
                self.inflate(&frame)?;
                Frame::Other
            }
            3 => Frame::Reset { stream: number()? },
            6 => Frame::Ping { id: number()? },
            7 => Frame::GoAway,
            _ => Frame::Other,
        }))
    }

    /// Decompresses a block of headers: one stream of zlib for the whole connection, with a dictionary.
    fn inflate(&mut self, block: &[u8]) -> Result<Vec<u8>, SpdyError> {
        let mut block = block;
        if !self.begun {
            // CMF, FLG and the dictionary's identifier.
            block = block.get(6..).ok_or(SpdyError::Headers)?;
            self.begun = true;
        }
        let mut text = Vec::new();
        loop {
            let from = self.at;
            let (status, read, written) =
                decompress(&mut self.inflate, block, &mut self.window, from, TINFL_FLAG_HAS_MORE_INPUT);
            block = block.get(read..).unwrap_or_default();
            text.extend_from_slice(&self.window[from..from + written]);
            self.at = (from + written) % WINDOW;
            match status {
                TINFLStatus::NeedsMoreInput if block.is_empty() => break,
                // The window turns round.
                TINFLStatus::HasMoreOutput if written > 0 && text.len() <= LONGEST_HEADERS => {}
                _ => return Err(SpdyError::Headers),
            }
        }
        Ok(text)
    }
}

fn headers(mut block: &[u8]) -> Result<Vec<(String, String)>, SpdyError> {
    let count = block.try_get_u32().map_err(|_| SpdyError::Headers)?;
    let mut text = || -> Result<String, SpdyError> {
        let length = block.try_get_u32().map_err(|_| SpdyError::Headers)? as usize;
        let bytes = block.get(..length).ok_or(SpdyError::Headers)?;
        block.advance(length);
        Ok(String::from_utf8_lossy(bytes).into_owned())
    };
    let mut headers = Vec::new();
    for _ in 0..count {
        headers.push((text()?.to_lowercase(), text()?));
    }
    Ok(headers)
}

/// Writes frames.
#[derive(Default)]
pub(super) struct Writer {
    begun: bool,
}

impl Writer {
    /// Accepts a stream, without headers.
    pub(super) fn reply(&mut self, stream: u32) -> Bytes {
        let mut block = BytesMut::new();
        if !self.begun {
            // zlib without a dictionary, which the peer's reader does not insist on.
            block.put_slice(&[0x78, 0x01]);
            self.begun = true;
        }
        // A stored block of four bytes, the count of headers, and an empty one, with which compressors end a frame.
        block.put_slice(&[0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0]);
        block.put_slice(&[0, 0, 0, 0xff, 0xff]);
        let mut payload = BytesMut::new();
        payload.put_u32(stream);
        payload.put_slice(&block);
        control(2, &payload)
    }

    pub(super) fn data(stream: u32, data: &[u8], fin: bool) -> Bytes {
        let mut frame = BytesMut::with_capacity(data.len() + 8);
        frame.put_u32(stream);
        frame.put_u32(u32::from(fin) << 24 | data.len() as u32);
        frame.put_slice(data);
        frame.freeze()
    }

    /// Ends a stream at once, as one that is not wanted.
    pub(super) fn refuse(stream: u32) -> Bytes {
        const REFUSED: u32 = 3;
        let mut payload = BytesMut::new();
        payload.put_u32(stream);
        payload.put_u32(REFUSED);
        control(3, &payload)
    }

    pub(super) fn ping(id: u32) -> Bytes {
        control(6, &id.to_be_bytes())
    }
}

fn control(kind: u32, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(payload.len() + 8);
    frame.put_u32(1 << 31 | 3 << 16 | kind);
    frame.put_u32(payload.len() as u32);
    frame.put_slice(payload);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream's opening as Go's compress/zlib writes it with the dictionary: stored here, since only the reader matters.
    fn open(reader: &mut Reader, stream: u32, pairs: &[(&str, &str)], first: bool) {
        let mut text = BytesMut::new();
        text.put_u32(pairs.len() as u32);
        for part in pairs.iter().flat_map(|(name, value)| [name, value]) {
            text.put_u32(part.len() as u32);
            text.put_slice(part.as_bytes());
        }
        let mut payload = BytesMut::new();
        payload.put_u32(stream);
        payload.put_u32(0);
        payload.put_u16(0);
        if first {
            payload.put_slice(&[0x78, 0xbb, 0, 0, 0, 0]);
        }
        payload.put_u8(0);
        payload.put_u16_le(text.len() as u16);
        payload.put_u16_le(!(text.len() as u16));
        payload.put_slice(&text);
        payload.put_slice(&[0, 0, 0, 0xff, 0xff]);
        reader.push(&control(1, &payload));
    }

    #[test]
    fn streams_are_opened_over_a_window_that_turns_round() {
        let mut reader = Reader::new();
        let long = "x".repeat(9000);
        for stream in 0..20 {
            open(&mut reader, stream * 2 + 1, &[("Port", "80"), ("streamtype", &long)], stream == 0);
            let expected =
                vec![("port".to_owned(), "80".to_owned()), ("streamtype".to_owned(), long.clone())];
            let frame = Frame::Open { stream: stream * 2 + 1, headers: expected, fin: false };
            assert_eq!(reader.next(), Ok(Some(frame)));
        }
        assert_eq!(reader.next(), Ok(None));
    }

    #[test]
    fn data_comes_in_pieces() {
        let mut reader = Reader::new();
        let frame = Writer::data(7, b"hello", true);
        for byte in &frame[..frame.len() - 1] {
            reader.push(&[*byte]);
            assert_eq!(reader.next(), Ok(None));
        }
        reader.push(b"o");
        assert_eq!(
            reader.next(),
            Ok(Some(Frame::Data { stream: 7, data: Bytes::from_static(b"hello"), fin: true }))
        );
    }

    #[test]
    fn nonsense_is_refused() {
        let mut reader = Reader::new();
        reader.push(&[0x80, 3, 0, 1, 0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 9, 9]);
        assert_eq!(reader.next(), Err(SpdyError::Headers));
        let mut reader = Reader::new();
        reader.push(&[0, 0, 0, 1, 0, 0xff, 0xff, 0xff]);
        assert_eq!(reader.next(), Err(SpdyError::TooLong(0x00ff_ffff)));
        let mut reader = Reader::new();
        reader.push(&control(3, &[]));
        assert_eq!(reader.next(), Err(SpdyError::Short));
    }
}
