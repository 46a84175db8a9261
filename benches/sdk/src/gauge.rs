use std::future::Future;
use std::io::{BufRead, Write};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use http::{Method, Request, Response, StatusCode, Uri};
use kube::client::Body;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tower::{Layer, Service};

/// Objects whose names begin so have the times of their reconciles written down.
const PROBE: &str = "probe-";

/// What an operator does, counted in its process: requests under its client, and reconciles.
#[derive(Debug, Default)]
pub struct Gauge {
    reads: AtomicU64,
    writes: AtomicU64,
    conflicts: AtomicU64,
    watches: AtomicU64,
    reconciles: AtomicU64,
    starts: Mutex<Vec<Start>>,
}

/// What a [`Gauge`] shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Requests that only read or ask, without watches.
    pub reads: u64,
    /// All others.
    pub writes: u64,
    /// Those that were answered 409.
    pub conflicts: u64,
    /// Watches that were begun.
    pub watches: u64,
    /// Reconciles that were begun.
    pub reconciles: u64,
    /// Reconciles of probes since the last question.
    pub starts: Vec<Start>,
}

/// A reconcile of a probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// The object.
    pub name: String,
    /// By [`monotonic_nanoseconds`].
    pub at: u64,
}

/// The clock that all processes of the machine share.
pub fn monotonic_nanoseconds() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

impl Gauge {
    /// A gauge that answers each line of standard input with a line of its [`Stats`]. The process ends with standard input.
    pub fn start() -> Arc<Self> {
        let gauge = Arc::new(Self::default());
        let answering = Arc::clone(&gauge);
        std::thread::spawn(move || {
            for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
                let line = serde_json::to_string(&answering.stats()).unwrap_or_default();
                let mut out = std::io::stdout().lock();
                if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
                    break;
                }
            }
            std::process::exit(0);
        });
        gauge
    }

    /// To be called first in each reconcile.
    pub fn reconcile(&self, name: &str) {
        self.reconciles.fetch_add(1, Relaxed);
        if name.starts_with(PROBE) {
            let start = Start { name: name.to_owned(), at: monotonic_nanoseconds() };
            self.starts.lock().unwrap_or_else(PoisonError::into_inner).push(start);
        }
    }

    fn request(&self, method: &Method, uri: &Uri) {
        // Questions about rights are posted, but change nothing.
        let question = uri.path().starts_with("/apis/authorization.k8s.io/");
        let watch = uri
            .query()
            .is_some_and(|query| query.split('&').any(|pair| pair == "watch=1" || pair == "watch=true"));
        let counter = match *method {
            Method::GET if watch => &self.watches,
            Method::GET => &self.reads,
            _ if question => &self.reads,
            _ => &self.writes,
        };
        counter.fetch_add(1, Relaxed);
    }

    fn stats(&self) -> Stats {
        Stats {
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            conflicts: self.conflicts.load(Relaxed),
            watches: self.watches.load(Relaxed),
            reconciles: self.reconciles.load(Relaxed),
            starts: std::mem::take(&mut *self.starts.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

/// The layer that counts requests.
#[derive(Clone, Debug)]
pub struct Counting(pub Arc<Gauge>);

/// See [`Counting`].
#[derive(Clone, Debug)]
pub struct CountingService<S> {
    inner: S,
    gauge: Arc<Gauge>,
}

impl<S> Layer<S> for Counting {
    type Service = CountingService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CountingService { inner, gauge: Arc::clone(&self.0) }
    }
}

impl<S, B> Service<Request<Body>> for CountingService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.gauge.request(request.method(), request.uri());
        let (answer, gauge) = (self.inner.call(request), Arc::clone(&self.gauge));
        Box::pin(async move {
            let answer = answer.await?;
            if answer.status() == StatusCode::CONFLICT {
                gauge.conflicts.fetch_add(1, Relaxed);
            }
            Ok(answer)
        })
    }
}
