//! Watches that freeze and lose events.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::Value;
use tower::{BoxError, service_fn};

use super::Faults;
use crate::request::ApiRequest;

/// The answer of a watch, whose events pass the faults one by one.
pub(super) async fn faulty(
    answer: Response<Body>,
    watch: ApiRequest,
    faults: Faults,
) -> Result<Response<Body>, BoxError> {
    let (parts, body) = answer.into_parts();
    let lines = lines(body);
    let passed = lines.filter_map(move |line| {
        let (faults, watch) = (faults.clone(), watch.clone());
        async move {
            faults.thawed(&watch).await;
            match line {
                Ok(line) if is_lost(&line, &watch, &faults) => None,
                line => Some(line.map(Frame::data)),
            }
        }
    });
    wrapped(Response::from_parts(parts, StreamBody::new(passed).boxed_unsync())).await
}

/// kube makes a body of a stream only as the answer of a client.
async fn wrapped(answer: Response<UnsyncBoxBody<Bytes, BoxError>>) -> Result<Response<Body>, BoxError> {
    let answer = Arc::new(Mutex::new(Some(answer)));
    let service = service_fn(move |_: Request<Body>| {
        let answer = answer.lock().take();
        async move { answer.ok_or_else(|| BoxError::from("asked twice")) }
    });
    Ok(Client::new(service, "default").send(Request::new(Body::empty())).await?)
}

/// The events of a watch, each with its line end.
fn lines(body: Body) -> BoxStream<'static, Result<Bytes, BoxError>> {
    let start = (body.into_data_stream(), BytesMut::new(), false);
    let lines = stream::unfold(start, |(mut data, mut pending, ended)| async move {
        if ended {
            return None;
        }
        loop {
            if let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                let line = pending.split_to(end + 1).freeze();
                return Some((Ok(line), (data, pending, false)));
            }
            match data.next().await {
                Some(Ok(chunk)) => pending.extend_from_slice(&chunk),
                Some(Err(error)) => return Some((Err(error.into()), (data, pending, true))),
                None if pending.is_empty() => return None,
                None => return Some((Ok(pending.split().freeze()), (data, pending, true))),
            }
        }
    });
    lines.boxed()
}

fn is_lost(line: &[u8], watch: &ApiRequest, faults: &Faults) -> bool {
    let Ok(event) = serde_json::from_slice::<Value>(line) else { return false };
    if !matches!(event["type"].as_str(), Some("ADDED" | "MODIFIED" | "DELETED")) {
        return false;
    }
    let metadata = &event["object"]["metadata"];
    faults.loses(watch, metadata["namespace"].as_str(), metadata["name"].as_str())
}
