//! Calls of webhooks: where they are, how they are reached, and what went wrong, in the words of kube-apiserver's client
//! (`k8s.io/apiserver/pkg/util/webhook`, `k8s.io/client-go/rest`).
//!
//! ```text
//! clientConfig ─▶ Target: URL, name, authority ─┬─ a server in this process ────────┬─▶ status and body ─▶ review
//!                 (a Service by its address)    └─ a kept connection, or a new one ─┘
//! ```

mod answer;
mod client;
mod pool;
mod service;
mod target;
mod trust;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{Request, Response};
use parking_lot::RwLock;
use serde_json::Value;

pub(crate) use self::answer::{TYPE_META, type_of, unexpected};
pub(crate) use self::pool::Pool;
use self::target::Target;
use crate::registry::Registry;

/// A future that a [`WebhookServer`] answers with.
pub type WebhookAnswer = Pin<Box<dyn Future<Output = Response<Bytes>> + Send>>;

/// A server of webhooks in this process, which is called without sockets: for tests on a paused clock.
pub trait WebhookServer: Send + Sync {
    /// Answers a POST of an `AdmissionReview` or a `ConversionReview` as JSON. The path and query are those of the webhook's URL.
    fn answer(&self, request: Request<Bytes>) -> WebhookAnswer;
}

/// The servers in this process, by host (and port, where a URL names one).
#[derive(Default)]
pub(crate) struct Servers(RwLock<BTreeMap<String, Arc<dyn WebhookServer>>>);

impl Servers {
    pub(crate) fn insert(&self, host: String, server: Arc<dyn WebhookServer>) {
        self.0.write().insert(host, server);
    }

    fn get(&self, target: &Target) -> Option<Arc<dyn WebhookServer>> {
        let servers = self.0.read();
        servers.get(&target.authority).or_else(|| servers.get(&target.host)).cloned()
    }
}

/// Why a webhook gave no answer that could be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The configuration does not allow to call it at all.
    #[error("could not get REST client: {0}")]
    Client(String),
    /// It could not be called, or answered with an error or with something else than a review.
    #[error("failed to call webhook: {0}")]
    Call(String),
}

impl CallError {
    /// Without what a caller of admission webhooks puts before it.
    pub(crate) fn why(&self) -> &str {
        match self {
            Self::Client(why) | Self::Call(why) => why,
        }
    }
}

/// The most bytes of an answer that are read.
const ANSWER_LIMIT: usize = 32 << 20;
/// How often a webhook that asks for it is asked again (upstream: `rest.Request.maxRetries`).
const RETRIES: usize = 10;

impl Registry {
    /// Sends `review` to the webhook of `config` (a `clientConfig`) and gives the review that it answers, of the same kind and version.
    ///
    /// # Errors
    /// When it cannot be reached in time, or answers anything else.
    pub(crate) async fn call_webhook(
        &self,
        config: &Value,
        timeout: Duration,
        review: &Value,
    ) -> Result<Value, CallError> {
        let target = Target::of(config).map_err(CallError::Client)?;
        let seconds = timeout.as_secs();
        let path = format!("{}?timeout={seconds}s", target.path);
        let body = Bytes::from(review.to_string());
        let call = async {
            for _ in 0..RETRIES {
                let (parts, answer) = self.post(&target, &path, body.clone()).await?;
                match answer::retry_after(&parts) {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => return Ok((parts, answer)),
                }
            }
            self.post(&target, &path, body).await
        };
        let shown = format!("Post \"https://{}{path}\": ", target.authority);
        let (parts, body) = match tokio::time::timeout(timeout, call).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(client::Failure::Client(why))) => return Err(CallError::Client(why)),
            Ok(Err(client::Failure::Unread(why))) => return Err(CallError::Call(why)),
            Ok(Err(client::Failure::Call(why))) => return Err(CallError::Call(format!("{shown}{why}"))),
            Err(_) => return Err(CallError::Call(format!("{shown}context deadline exceeded"))),
        };
        answer::review(&parts, &body, review).map_err(CallError::Call)
    }

    /// Sends one request, to a server in this process or by a connection.
    async fn post(
        &self,
        target: &Target,
        path: &str,
        body: Bytes,
    ) -> Result<(Parts, Bytes), client::Failure> {
        if let Some(server) = self.webhook_servers.get(target) {
            let request = client::request(target, path, body)?;
            return Ok(server.answer(request).await.into_parts());
        }
        let address = self.webhook_address(target)?;
        client::post(&self.webhook_connections, target, &address, path, body, ANSWER_LIMIT).await
    }
}
