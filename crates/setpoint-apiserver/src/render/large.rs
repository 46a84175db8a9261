//! Answers of megabytes, made piece by piece while they are sent: neither is all of one in memory, nor does its thread do nothing else.

use std::io::Write;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::{GZIP_FROM, object_json, partial};
use crate::body::TURN;
use crate::catalog::Resource;
use crate::protobuf::{EncodeError, ListEncoder};
use crate::registry::{ListPage, is_served_as_stored, served};
use crate::store::Stored;
use crate::table;

/// How much is compressed before others have a turn: that takes about as long as to send a [`TURN`].
const COMPRESSED_AT_ONCE: usize = TURN / 4;

/// What a list says of each of its objects.
pub(super) enum Part {
    Object,
    Metadata,
    /// A row of a table; how much of the object it carries, and when "now" is.
    Row(String, Timestamp),
}

/// A list as JSON, in pieces.
pub(super) struct Items {
    resource: Arc<Resource>,
    page: ListPage,
    part: Part,
    /// The list without its items, as far as it is not written yet.
    head: Option<String>,
    /// The first item that is not written yet.
    next: usize,
    ended: bool,
}

impl Items {
    /// `head` is the list without its items, which stand in its field `field`.
    pub(super) fn new(
        resource: Arc<Resource>,
        page: ListPage,
        part: Part,
        head: &Value,
        field: &str,
    ) -> Self {
        let mut head = head.to_string();
        // The last brace comes after the items.
        head.pop();
        head.extend([",\"", field, "\":["]);
        Self { resource, page, part, head: Some(head), next: 0, ended: false }
    }

    /// All of it at once; `None` if it is large, and better made in pieces.
    pub(super) fn whole(&mut self) -> Option<Bytes> {
        let size: usize = self.page.items.iter().map(|item| item.json.len() + 1).sum();
        (size <= GZIP_FROM).then(|| self.piece(size + 256, usize::MAX))
    }

    /// The next `enough` bytes or some more.
    fn piece(&mut self, capacity: usize, enough: usize) -> Bytes {
        let mut body = BytesMut::with_capacity(capacity);
        body.put_slice(self.head.take().unwrap_or_default().as_bytes());
        while let Some(item) = self.page.items.get(self.next)
            && body.len() < enough
        {
            if self.next > 0 {
                body.put_u8(b',');
            }
            self.next += 1;
            match &self.part {
                Part::Object => put_object(&mut body, &self.resource, item),
                Part::Metadata => put(&mut body, &partial(&served(&self.resource, item))),
                Part::Row(include, now) => {
                    let row = table::row(&self.resource, &served(&self.resource, item), include, *now);
                    put(&mut body, &row);
                }
            }
        }
        if self.next == self.page.items.len() {
            body.put_slice(b"]}");
            self.ended = true;
        }
        body.freeze()
    }
}

impl Iterator for Items {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        (!self.ended).then(|| self.piece(TURN + TURN / 8, TURN))
    }
}

fn put(body: &mut BytesMut, value: &impl Serialize) {
    // Writing JSON values to memory does not fail.
    let _ = serde_json::to_writer(body.writer(), value);
}

fn put_object(body: &mut BytesMut, resource: &Resource, item: &Stored) {
    if resource.custom().is_some() {
        body.put(object_json(resource, item));
    } else if let Some(pieces) = item.without_kind().filter(|_| is_served_as_stored(resource, item)) {
        body.put_u8(b'{');
        body.put_slice(pieces[0]);
        body.put_slice(pieces[1]);
    } else {
        put(body, &Item { resource, object: &served(resource, item) });
    }
}

/// How much of a list in protobuf is kept from when it is measured until it is sent. The rest is made twice, since what was not read
/// yet of hundreds of lists must not be in memory.
const KEPT: usize = 1 << 20;

/// A list in protobuf form.
pub(super) enum Messages {
    Whole(Bytes),
    Pieces(Box<dyn Iterator<Item = Bytes> + Send>),
}

/// The message of a list begins with its length: it is measured first. Others have a turn meanwhile.
pub(super) async fn messages(
    resource: Arc<Resource>,
    page: ListPage,
    list: ListEncoder,
) -> Result<Messages, EncodeError> {
    let mut kept: Vec<Bytes> = Vec::new();
    let (mut piece, mut length, mut made) = (Vec::new(), 0, 0);
    for (index, item) in page.items.iter().enumerate() {
        list.item(&mut piece, &served(&resource, item))?;
        let last = index + 1 == page.items.len();
        if piece.len() < TURN && !last {
            continue;
        }
        length += piece.len();
        if length <= KEPT {
            kept.push(std::mem::take(&mut piece).into());
            made = index + 1;
        }
        piece.clear();
        if !last {
            tokio::task::yield_now().await;
        }
    }
    let head = Bytes::from(list.head(length));
    let tail = Bytes::from(ListEncoder::tail());
    if made == page.items.len() {
        kept.insert(0, head);
        kept.push(tail);
        return Ok(Messages::Whole(kept.concat().into()));
    }
    let rest = std::iter::from_fn(move || {
        let mut piece = Vec::with_capacity(TURN + TURN / 8);
        while let Some(item) = page.items.get(made)
            && piece.len() < TURN
        {
            made += 1;
            // It went well when it was measured.
            let _ = list.item(&mut piece, &served(&resource, item));
        }
        (!piece.is_empty()).then(|| Bytes::from(piece))
    });
    let pieces = std::iter::once(head).chain(kept).chain(rest).chain(std::iter::once(tail));
    Ok(Messages::Pieces(Box::new(pieces)))
}

/// An item of a list. The list of a built-in kind says what its items are; custom resources, whose items upstream keeps as
/// they were stored, say it themselves.
pub(super) struct Item<'a> {
    pub(super) resource: &'a Resource,
    pub(super) object: &'a Value,
}

impl Serialize for Item<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self.object {
            Value::Object(fields) if self.resource.custom().is_none() => serializer
                .collect_map(fields.iter().filter(|(key, _)| *key != "kind" && *key != "apiVersion")),
            other => other.serialize(serializer),
        }
    }
}

/// Compresses a body, and lets others have a turn meanwhile.
pub(super) fn gzip(body: impl Stream<Item = Bytes> + Send) -> impl Stream<Item = Bytes> + Send {
    let encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let parts = body.map(Some).chain(futures::stream::iter([None]));
    let state = (Box::pin(parts), Bytes::new(), Some(encoder));
    futures::stream::unfold(state, async |(mut parts, mut rest, mut encoder)| {
        loop {
            if rest.is_empty() {
                let Some(part) = parts.next().await.flatten() else {
                    // Writing to memory does not fail.
                    let end = encoder.take()?.finish().unwrap_or_default();
                    return Some((Bytes::from(end), (parts, rest, encoder)));
                };
                rest = part;
            }
            let now = rest.split_to(rest.len().min(COMPRESSED_AT_ONCE));
            let made = encoder.as_mut()?;
            made.write_all(&now).ok()?;
            tokio::task::yield_now().await;
            let made = std::mem::take(made.get_mut());
            if !made.is_empty() {
                return Some((Bytes::from(made), (parts, rest, encoder)));
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;
    use futures::{FutureExt, stream};

    use super::*;

    #[tokio::test]
    async fn others_have_a_turn_while_what_is_read_again_is_compressed() {
        let pieces: Vec<Bytes> =
            (0..40_u32).map(|n| Bytes::from(format!("{n} ").repeat(n as usize * 300))).collect();
        let plain = pieces.concat();
        let mut packing = Box::pin(gzip(stream::iter(pieces)));
        let (mut packed, mut turns) = (Vec::new(), 0);
        loop {
            match packing.next().now_or_never() {
                Some(Some(piece)) => packed.extend_from_slice(&piece),
                Some(None) => break,
                None => {
                    turns += 1;
                    tokio::task::yield_now().await;
                }
            }
        }
        assert!(turns >= plain.len() / COMPRESSED_AT_ONCE, "{turns} turns for {} bytes", plain.len());
        let mut read = Vec::new();
        GzDecoder::new(packed.as_slice()).read_to_end(&mut read).unwrap();
        assert_eq!(read, plain);
    }
}
