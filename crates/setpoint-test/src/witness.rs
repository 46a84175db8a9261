//! What an operator asks of the API server, seen where its requests leave it.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::Value;
use setpoint::Verb;
use tower::{BoxError, service_fn};

use crate::request::ApiRequest;

/// A request other than a read, as it was sent to the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    /// What it did to which object.
    pub request: ApiRequest,
    /// What it said: an object, a patch, delete options. `Null` where it said nothing.
    pub body: Value,
    /// The status code of the answer; none if there was no answer.
    pub code: Option<u16>,
}

/// A request that the API server refused for want of rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) request: ApiRequest,
    pub(crate) message: String,
}

/// Group, resource, verb and, where one is named, the object.
pub(crate) type Used = (String, String, Verb, Option<String>);

/// Remembers the requests of one account.
#[derive(Clone, Default)]
pub(crate) struct Witness(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    sent: Vec<Sent>,
    refusals: Vec<Refusal>,
    used: BTreeSet<Used>,
}

impl Witness {
    /// The same client, whose requests are remembered, with another default namespace.
    pub(crate) fn watch(&self, client: Client, namespace: &str) -> Client {
        let witness = self.clone();
        let watched = service_fn(move |request| {
            let (witness, client) = (witness.clone(), client.clone());
            async move { witness.pass(request, client).await }
        });
        Client::new(watched, namespace)
    }

    async fn pass(&self, request: Request<Body>, client: Client) -> Result<Response<Body>, BoxError> {
        let Some(asked) = ApiRequest::read(request.method(), request.uri()) else {
            return Ok(client.send(request).await?);
        };
        let copy = asked.is_write().then(|| request.body().try_clone()).flatten();
        let body = match copy {
            Some(copy) => serde_json::from_slice(&copy.collect_bytes().await?).unwrap_or_default(),
            None => Value::Null,
        };
        // Noted before it is sent: who is dropped meanwhile has sent it all the same.
        let place = asked.is_write().then(|| {
            let mut seen = self.0.lock();
            seen.sent.push(Sent { request: asked.clone(), body, code: None });
            seen.sent.len() - 1
        });
        let answer = client.send(request).await?;
        let status = answer.status();
        {
            let mut seen = self.0.lock();
            if let Some(write) = place.and_then(|place| seen.sent.get_mut(place)) {
                write.code = Some(status.as_u16());
            }
            if status != StatusCode::FORBIDDEN {
                // An apply that made its object was a creation, too.
                let created = status == StatusCode::CREATED && asked.verb == Verb::Patch;
                for verb in [asked.verb].into_iter().chain(created.then_some(Verb::Create)) {
                    let (group, resource) = (asked.group.clone(), asked.resource.clone());
                    seen.used.insert((group, resource, verb, asked.name.clone()));
                }
                return Ok(answer);
            }
        }
        let (parts, body) = answer.into_parts();
        let bytes = body.collect_bytes().await?;
        let status: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let message = status["message"].as_str().unwrap_or("403 Forbidden").to_owned();
        // Admission and namespaces that are being deleted answer with 403, too: only authorization is meant here.
        if is_refusal(&message) {
            self.0.lock().refusals.push(Refusal { request: asked, message });
        }
        Ok(Response::from_parts(parts, Body::from(bytes)))
    }

    /// All writes so far, in their order.
    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.0.lock().sent.clone()
    }

    /// All refusals so far.
    pub(crate) fn refusals(&self) -> Vec<Refusal> {
        self.0.lock().refusals.clone()
    }

    /// What was asked and not refused.
    pub(crate) fn used(&self) -> BTreeSet<Used> {
        self.0.lock().used.clone()
    }
}

/// Whether a 403 is the authorizer's: `… is forbidden: User "u" cannot VERB resource "r" …`.
fn is_refusal(message: &str) -> bool {
    message.contains("User \"") && message.contains("\" cannot ")
}
