//! The requests of one case: fills names in, sends, and keeps what later steps need.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Read;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use flate2::read::GzDecoder;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use regex::{Captures, Regex};
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::case::Step;
use crate::client_certificates::ClientCertificate;
use crate::protobuf;
use crate::server::{Server, ServerError};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a watch may be silent while events are awaited.
const SILENCE: Duration = Duration::from_secs(10);
/// Who sends: it becomes the field manager of writes that name none.
const AGENT: &str = "conformance/1.0";

/// A server's answer, as it came.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// `None`: empty.
    pub(crate) body: Option<Value>,
}

/// A watch that is open.
pub(crate) struct Stream {
    body: Incoming,
    rest: Vec<u8>,
    /// Whether events come in frames with their length, and not on lines.
    frames: bool,
}

pub(crate) struct Session<'a> {
    server: &'a Server,
    variable: Regex,
    values: BTreeMap<String, Value>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(server: &'a Server, values: BTreeMap<String, Value>) -> Result<Self, String> {
        let variable = Regex::new(r"\$\{?([a-z][A-Za-z0-9]*)\}?").map_err(|error| error.to_string())?;
        Ok(Self { server, variable, values })
    }

    pub(crate) fn set(&mut self, name: &str, value: Value) {
        self.values.insert(name.to_owned(), value);
    }

    /// `text` with `$names` of values filled in. What is not a known name stays: `$patch`, `$ref`.
    fn fill(&self, text: &str) -> String {
        let replaced = self.variable.replace_all(text, |found: &Captures| match self.values.get(&found[1]) {
            Some(Value::String(value)) => value.clone(),
            Some(value) => value.to_string(),
            None => found[0].to_owned(),
        });
        replaced.into_owned()
    }

    pub(crate) fn fill_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => {
                let whole = text.strip_prefix('$').and_then(|name| self.values.get(name));
                whole.cloned().unwrap_or_else(|| self.fill(text).into())
            }
            Value::Array(items) => items.iter().map(|item| self.fill_value(item)).collect(),
            Value::Object(fields) => {
                let filled: Map<String, Value> =
                    fields.iter().map(|(key, value)| (self.fill(key), self.fill_value(value))).collect();
                filled.into()
            }
            other => other.clone(),
        }
    }

    /// A step's certificate with names filled in.
    fn shown(&self, certificate: &ClientCertificate) -> ClientCertificate {
        ClientCertificate {
            user: self.fill(&certificate.user),
            groups: certificate.groups.iter().map(|group| self.fill(group)).collect(),
            ..certificate.clone()
        }
    }

    /// The path with what URLs may not contain encoded.
    pub(crate) fn path(&self, path: &str) -> String {
        let mut encoded = String::new();
        for byte in self.fill(path).bytes() {
            match byte {
                b' ' | b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' | 0x80.. => {
                    let _ = write!(encoded, "%{byte:02X}");
                }
                byte => encoded.push(char::from(byte)),
            }
        }
        encoded
    }

    /// The request of a step.
    fn request(&self, step: &Step, method: &str, path: &str) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::builder()
            .method(method)
            .uri(self.path(path))
            .header("host", self.server.authority())
            .header("user-agent", AGENT);
        match &step.token {
            None if step.certificate.is_some() => {}
            None => request = request.header("authorization", format!("Bearer {}", self.server.token)),
            Some(token) if token.is_empty() => {}
            Some(token) => request = request.header("authorization", format!("Bearer {}", self.fill(token))),
        }
        if let Some(user) = &step.user {
            let user = self.fill(user);
            let mut words = user.split_whitespace();
            request = request.header("impersonate-user", words.next().unwrap_or_default());
            for group in words {
                request = request.header("impersonate-group", group);
            }
        }
        let body = match (&step.body, &step.raw, &step.base64) {
            (Some(body), ..) => Some(self.fill_value(body).to_string().into_bytes()),
            (_, Some(raw), _) => Some(self.fill(raw).into_bytes()),
            (.., Some(text)) => Some(STANDARD.decode(text).map_err(|error| format!("base64: {error}"))?),
            _ => None,
        };
        let media = match step.media.as_deref() {
            Some("merge") => Some("application/merge-patch+json"),
            Some("json") => Some("application/json-patch+json"),
            Some("strategic") => Some("application/strategic-merge-patch+json"),
            Some("apply") => Some("application/apply-patch+yaml"),
            Some("none") => None,
            Some(other) => Some(other),
            None => body.is_some().then_some("application/json"),
        };
        if let Some(media) = media {
            request = request.header("content-type", media);
        }
        if let Some(accept) = &step.accept {
            request = request.header("accept", accept);
        }
        for (name, value) in &step.headers {
            request = request.header(name, self.fill(value));
        }
        request
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| format!("this is not a request: {error}"))
    }

    /// Sends a step's request on a connection of its own and gives the answer before its body is read.
    pub(crate) async fn open(
        &self,
        step: &Step,
        method: &str,
        path: &str,
    ) -> Result<Response<Incoming>, String> {
        let request = self.request(step, method, path)?;
        in_time(async { self.server.connect().await?.send_request(request).await.map_err(ServerError::Http) })
            .await
    }

    /// Sends a step's request and reads the answer.
    pub(crate) async fn send(&self, step: &Step, method: &str, path: &str) -> Result<Answer, String> {
        let request = self.request(step, method, path)?;
        let mut connection = match &step.certificate {
            // A connection of its own: its certificate is for no other step.
            Some(certificate) => {
                let mut connection = in_time(self.server.connect_as(&self.shown(certificate))).await?;
                let sent = async { connection.send_request(request).await.map_err(ServerError::Http) };
                return collect(in_time(sent).await?).await;
            }
            None => in_time(self.server.pooled()).await?,
        };
        let response =
            in_time(async { connection.send_request(request).await.map_err(ServerError::Http) }).await?;
        let answer = collect(response).await?;
        self.server.give_back(connection);
        Ok(answer)
    }
}

async fn in_time<T>(work: impl Future<Output = Result<T, ServerError>>) -> Result<T, String> {
    match timeout(PATIENCE, work).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

/// Reads an answer to its end.
pub(crate) async fn collect(response: Response<Incoming>) -> Result<Answer, String> {
    let (parts, body) = response.into_parts();
    let bytes = match timeout(PATIENCE, body.collect()).await {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) => return Err(format!("the body broke off: {error}")),
        Err(_) => return Err(format!("the body did not end within {} s", PATIENCE.as_secs())),
    };
    let media = parts.headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let gzip = parts.headers.get("content-encoding").is_some_and(|encoding| encoding == "gzip");
    let bytes = if gzip { unzipped(&bytes)? } else { bytes };
    let body = (!bytes.is_empty()).then(|| decode(media, &bytes));
    Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
}

fn unzipped(bytes: &[u8]) -> Result<Bytes, String> {
    let mut plain = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut plain).map_err(|error| format!("gzip: {error}"))?;
    Ok(plain.into())
}

fn decode(media: &str, bytes: &Bytes) -> Value {
    if media.starts_with(protobuf::MEDIA)
        && let Some(shown) = protobuf::body(bytes)
    {
        return shown;
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return serde_json::json!({ "$base64": STANDARD.encode(bytes) });
    };
    // The index of OpenAPI says that it is plain text.
    let parsed = if media.contains("json") || text.starts_with("{\"paths\":") {
        serde_json::from_str(text).ok()
    } else if media.contains("yaml") {
        serde_saphyr::from_str(text).ok()
    } else {
        None
    };
    parsed.unwrap_or_else(|| text.into())
}

impl Stream {
    pub(crate) fn new(body: Incoming, media: &str) -> Self {
        Self { body, rest: Vec::new(), frames: media.starts_with(protobuf::MEDIA) }
    }

    /// `count` events, or all until the server ends the watch.
    pub(crate) async fn events(&mut self, count: Option<usize>) -> Result<Vec<Value>, String> {
        let mut events = Vec::new();
        while count.is_none_or(|count| events.len() < count) {
            match timeout(SILENCE, self.next()).await {
                Ok(Ok(Some(event))) => events.push(event),
                Ok(Ok(None)) if count.is_none() => break,
                Ok(Ok(None)) => return Err(format!("the watch ended after {}", shown(&events))),
                Ok(Err(error)) => return Err(format!("the watch broke off: {error}")),
                Err(_) => {
                    return Err(format!(
                        "no further event within {} s after {}",
                        SILENCE.as_secs(),
                        shown(&events)
                    ));
                }
            }
        }
        Ok(events)
    }

    async fn next(&mut self) -> Result<Option<Value>, String> {
        loop {
            if self.frames {
                if let Some((length, rest)) = self.rest.split_first_chunk::<4>() {
                    let length = u32::from_be_bytes(*length) as usize;
                    if let Some(frame) = rest.get(..length) {
                        let event = protobuf::event(frame).ok_or("a frame that is no event");
                        self.rest.drain(..length + 4);
                        return event.map(Some).map_err(str::to_owned);
                    }
                }
            } else if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return serde_json::from_slice(&line).map(Some).map_err(|error| error.to_string());
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.rest.extend(frame.into_data().unwrap_or_default()),
                Some(Err(error)) => return Err(error.to_string()),
                None => return Ok(None),
            }
        }
    }
}

fn shown(events: &[Value]) -> String {
    let brief: Vec<String> = events
        .iter()
        .map(|event| {
            format!("{} {}", event["type"], event.pointer("/object/metadata/name").unwrap_or(&Value::Null))
        })
        .collect();
    format!("{} events ({})", events.len(), brief.join(", "))
}
