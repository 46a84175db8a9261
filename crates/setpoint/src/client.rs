//! The stack that every request of an operator passes:
//!
//! ```text
//! kube::Client ─▶ metrics ─▶ retry (reads; writes only when the server refused to look at them)
//!                              └─ each attempt ─▶ fence (writes) ─▶ deadline (all but streams) ─▶ faults (tests) ─▶ transport
//! ```
//!
//! kube's own retry is off: it sends any request again up to 15 times, minutes later, when what it was made
//! from is long out of date.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, header};
use http_body::Body as _;
use kube::client::{Body, ClientBuilder};
use setpoint_clock::Entropy;
use tokio::time::Instant;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};

use tracing::Instrument as _;

use crate::election::Fence;
use crate::metrics::ClientMetrics;
use crate::{Metrics, traces};

mod deadline;
mod retry;

pub use deadline::DeadlineExceeded;
pub use retry::RetryPolicy;

use retry::{Answer, Repeat};

/// What sends a request in the end: the seam that fault injection wraps.
pub type Transport = BoxCloneSyncService<Request<Body>, Response<Body>, BoxError>;

/// Builder of the client stack. See [`RequestStack::over`] and [`RequestStack::connect`].
pub struct RequestStack {
    metrics: ClientMetrics,
    entropy: Entropy,
    retry: RetryPolicy,
    deadline: Duration,
    fence: Option<Fence>,
    read_only: bool,
    faults: Option<Box<dyn FnOnce(Transport) -> Transport + Send>>,
}

impl RequestStack {
    /// A stack that counts in `metrics` and draws the jitter of its back-off from `entropy`, with the default
    /// [`RetryPolicy`] and a deadline of 30 s for each attempt.
    pub fn new(metrics: &Metrics, entropy: Entropy) -> Self {
        Self {
            metrics: metrics.client(),
            entropy,
            retry: RetryPolicy::default(),
            deadline: Duration::from_secs(30),
            fence: None,
            read_only: false,
            faults: None,
        }
    }

    /// How often and how soon requests are sent again.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// The time that one attempt may take, its answer's body included. Default: 30 s. Watches, followed logs
    /// and upgraded connections have none.
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.deadline = limit;
        self
    }

    /// Lets writes through only while this replica leads.
    pub(crate) fn fence(mut self, fence: Option<Fence>) -> Self {
        self.fence = fence;
        self
    }

    /// Lets no write through that is not tried only (`dryRun=All`).
    pub(crate) fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// A layer right above the transport, for tests that lose, delay or refuse requests. What it does is
    /// retried and timed like the real thing.
    pub fn faults<L>(mut self, layer: L) -> Self
    where
        L: Layer<Transport> + Send + 'static,
        L::Service: Service<Request<Body>, Response = Response<Body>, Error = BoxError>
            + Clone
            + Send
            + Sync
            + 'static,
        <L::Service as Service<Request<Body>>>::Future: Send,
    {
        self.faults = Some(Box::new(move |transport| Transport::new(layer.layer(transport))));
        self
    }

    /// The stack over a connection to the cluster that `config` names.
    ///
    /// # Errors
    /// If the TLS material or the authentication in `config` cannot be used. No connection is made yet.
    pub fn connect(self, mut config: kube::Config) -> Result<kube::Client, kube::Error> {
        config.default_retry = false;
        let authority = config.cluster_url.authority().map_or("unknown", |authority| authority.as_str());
        let host = authority.to_owned();
        Ok(self.build(ClientBuilder::try_from(config)?.build(), host))
    }

    /// The stack over an existing client, for instance one whose service is an API server in this process.
    /// Metrics name its host `in-process`.
    pub fn over(self, client: kube::Client) -> kube::Client {
        self.build(client, "in-process".to_owned())
    }

    fn build(self, client: kube::Client, host: String) -> kube::Client {
        let namespace = client.default_namespace().to_owned();
        let transport = Transport::new(service_fn(move |request| {
            let client = client.clone();
            async move { client.send(request).await.map_err(BoxError::from) }
        }));
        let transport = match self.faults {
            Some(wrap) => wrap(transport),
            None => transport,
        };
        let stack = Arc::new(Stack {
            metrics: self.metrics,
            entropy: self.entropy,
            retry: self.retry,
            deadline: self.deadline,
            fence: self.fence,
            read_only: self.read_only,
            host,
            transport,
        });
        let service = service_fn(move |request| {
            let stack = stack.clone();
            async move { stack.measured(request).await }
        });
        kube::Client::new(service, namespace)
    }
}

impl std::fmt::Debug for RequestStack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestStack")
            .field("retry", &self.retry)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// A write where nothing may be changed.
#[derive(Debug, thiserror::Error)]
#[error("{0} {1} was not sent: this is a dry run; ask Context::dry_run before what cannot be tried")]
struct NotSent(Method, String);

struct Stack {
    metrics: ClientMetrics,
    entropy: Entropy,
    retry: RetryPolicy,
    deadline: Duration,
    fence: Option<Fence>,
    read_only: bool,
    host: String,
    transport: Transport,
}

impl Stack {
    /// Counts and times the request. Streams are counted when they start and not timed.
    async fn measured(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let method = request.method().clone();
        let stream = is_stream(&request);
        let start = Instant::now();
        let sent = request.body().size_hint().exact();
        let span = traces::request(&request, &self.host);
        let result = self.retried(request, stream).instrument(span.clone()).await;
        traces::answered(&span, &result);
        let code = result.as_ref().ok().map(|response| response.status().as_u16());
        let elapsed = (!stream).then(|| start.elapsed());
        self.metrics.request(code, method.as_str(), &self.host, elapsed);
        if !stream {
            let received = result.as_ref().ok().and_then(|response| response.body().size_hint().exact());
            self.metrics.sizes(method.as_str(), &self.host, sent, received);
        }
        result
    }

    /// Sends the request until it is answered for good or the policy gives up. Streams are never retried:
    /// who reads one must know that it broke.
    async fn retried(&self, request: Request<Body>, stream: bool) -> Result<Response<Body>, BoxError> {
        if stream {
            self.admitted(&request)?;
            return self.transport.clone().oneshot(request).await;
        }
        let repeat = Repeat::of(&request);
        let method = request.method().clone();
        let mut next = Some(request);
        let mut attempt = 0;
        loop {
            let Some(request) = next.take() else {
                return Err("a request was sent again after it had been used up".into());
            };
            next = (repeat != Repeat::Never).then(|| copy(&request)).flatten();
            let result = self.timed(request).await;
            let answer = Answer::of(&result);
            let delay = self.retry.delay(repeat, attempt, &answer, &self.entropy);
            let (Some(delay), true) = (delay, next.is_some()) else {
                return result;
            };
            tracing::debug!(%method, attempt, ?answer, ?delay, "sending a request again");
            self.metrics.retried(answer.code(), method.as_str(), &self.host);
            tokio::time::sleep(delay).await;
            attempt += 1;
            tracing::Span::current().record("http.request.resend_count", attempt);
        }
    }

    async fn timed(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let limit = self.admitted(&request)?;
        deadline::within(limit, self.transport.clone(), request).await
    }

    /// How long an attempt may take that begins now.
    fn admitted(&self, request: &Request<Body>) -> Result<Duration, BoxError> {
        if self.read_only && is_write(request) && !is_dry_run(request) {
            return Err(NotSent(request.method().clone(), request.uri().path().to_owned()).into());
        }
        match &self.fence {
            Some(fence) if is_write(request) => Ok(self.deadline.min(fence.admit(Instant::now())?)),
            _ => Ok(self.deadline),
        }
    }
}

/// Whether the answer goes on for as long as the client reads: a watch, a followed log, exec and the like.
fn is_stream(request: &Request<Body>) -> bool {
    let flag = |name: &str| {
        request.uri().query().is_some_and(|query| {
            query.split('&').filter_map(|pair| pair.split_once('=')).any(|(key, value)| {
                // The spellings that Go's strconv.ParseBool takes for true.
                key == name && ["true", "1", "t", "T", "TRUE", "True"].contains(&value)
            })
        })
    };
    request.headers().contains_key(header::UPGRADE)
        || (request.method() == Method::GET && (flag("watch") || flag("follow")))
}

/// Whether the request may change something, which is only for the leader. Commands in containers (exec) may;
/// questions about rights and tokens are posted, but change nothing.
fn is_write(request: &Request<Body>) -> bool {
    let path = request.uri().path();
    let question = ["/apis/authorization.k8s.io/", "/apis/authentication.k8s.io/"]
        .iter()
        .any(|group| path.starts_with(group));
    match *request.method() {
        Method::GET | Method::HEAD | Method::OPTIONS => request.headers().contains_key(header::UPGRADE),
        Method::POST => !question,
        _ => true,
    }
}

/// Whether the request only tries what it would do.
fn is_dry_run(request: &Request<Body>) -> bool {
    request.uri().query().is_some_and(|query| query.split('&').any(|pair| pair == "dryRun=All"))
}

/// The same request once more, if its body is not a stream.
fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

#[cfg(test)]
mod tests;
