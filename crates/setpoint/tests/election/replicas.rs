use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::channel::oneshot;
use http::{Method, Request};
use http_body_util::{BodyExt as _, StreamBody};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::Value;
use setpoint::{
    Action, Context, Controller, Election, Lock, Operator, OperatorError, Patch, Reconciler, Result,
    Selector, Verb,
};
use setpoint_apiserver::{ApiServer, Identity};
use setpoint_clock::{Clock, Entropy};
use setpoint_test::TestServer;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower::{BoxError, Service as _};

pub const LEASE: &str = "counter.example.com";
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// The retry period of 2 s with its jitter.
pub const RETRY: Duration = Duration::from_millis(4400);

/// Whether these tests run. Not on a server in another process: its clock is not moved, its links are not cut, and minutes would be minutes.
pub fn simulated() -> bool {
    let embedded = TestServer::from_env().unwrap() == TestServer::Embedded;
    if !embedded {
        eprintln!(
            "skipped: elections need simulated time, clocks that differ and links that hang, which only the server in this process \
             has; a_lease_is_handed_over in tests/convergence.rs is for any server"
        );
    }
    embedded
}

/// An API server that writes down who leads and who writes, as it sees it.
pub struct Cluster {
    lock: Lock,
    pub api: ApiServer,
    pub seen: Arc<Seen>,
    started: AtomicU64,
}

/// What the server has seen.
#[derive(Default)]
pub struct Seen {
    /// Holders of the lease, with the time at which each began.
    pub holders: Mutex<Vec<(Instant, String)>>,
    /// Last write to anything but the lease: when and by whom.
    pub last_write: Mutex<Option<(Instant, String)>>,
    pub writes: AtomicU64,
    /// Writes of somebody who did not hold the lease.
    pub violations: Mutex<Vec<String>>,
}

/// The way between a replica and the server.
pub struct Link {
    pub way: watch::Sender<Way>,
    /// Watches of anything but the lease deliver nothing.
    pub frozen: watch::Sender<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Open,
    /// Connections are refused, and break.
    Refused,
    /// Requests and answers hang until it is open again.
    Hanging,
}

pub struct Replica {
    pub name: String,
    pub link: Arc<Link>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), OperatorError>>,
}

impl Link {
    async fn passable(&self) -> Result<(), BoxError> {
        let mut way = self.way.subscribe();
        let way = way.wait_for(|way| *way != Way::Hanging).await.map(|way| *way);
        if matches!(way, Ok(Way::Refused)) { Err("connection refused".into()) } else { Ok(()) }
    }

    pub fn set(&self, way: Way) {
        self.way.send_replace(way);
    }
}

impl Seen {
    pub fn holder(&self) -> String {
        self.holders.lock().last().map(|(_, holder)| holder.clone()).unwrap_or_default()
    }

    pub fn terms(&self) -> usize {
        self.holders.lock().iter().filter(|(_, holder)| !holder.is_empty()).count()
    }

    fn wrote(&self, writer: &str, what: &str) {
        let now = Instant::now();
        self.writes.fetch_add(1, Ordering::Relaxed);
        *self.last_write.lock() = Some((now, writer.to_owned()));
        let holder = self.holder();
        if holder != writer {
            self.violations.lock().push(format!("{writer} wrote {what} while {holder:?} held the lease"));
        }
    }

    fn lease(&self, lease: &Value) {
        // The three locks: a Lease has it in its spec, the others in an annotation.
        let record = lease["metadata"]["annotations"]["control-plane.alpha.kubernetes.io/leader"].as_str();
        let record: Value =
            record.map_or_else(|| lease["spec"].clone(), |text| serde_json::from_str(text).unwrap());
        let holder = record["holderIdentity"].as_str().unwrap_or_default();
        if self.holder() != holder {
            self.holders.lock().push((Instant::now(), holder.to_owned()));
        }
    }
}

impl Cluster {
    pub async fn new() -> Self {
        Self::with(Lock::Lease).await
    }

    /// A cluster whose replicas compete for this lock.
    pub async fn with(lock: Lock) -> Self {
        let api =
            ApiServer::builder().clock(Clock::at(Timestamp::UNIX_EPOCH)).entropy(Entropy::seeded(1)).build();
        let cluster = Self { api, lock, seen: Arc::default(), started: AtomicU64::new(0) };
        let mut map = ConfigMap::default();
        map.metadata.name = Some("counter".to_owned());
        cluster.maps().create(&PostParams::default(), &map).await.unwrap();
        cluster
    }

    pub fn client(&self) -> Client {
        Client::new(self.api.service(Identity::admin()), "default")
    }

    pub fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client(), "default")
    }

    pub fn lease(&self) -> Api<Lease> {
        Api::namespaced(self.client(), "default")
    }

    /// A replica whose wall clock is anywhere.
    pub fn start(&self, name: &str) -> Replica {
        self.start_with(name, |operator, election| operator.controller(counter(name)).election(election))
    }

    pub fn start_with(&self, name: &str, change: impl FnOnce(Operator, Election) -> Operator) -> Replica {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let link = Arc::new(Link { way: watch::Sender::new(Way::Open), frozen: watch::Sender::new(false) });
        let epoch = Timestamp::from_second(1 + 7_919 * ((number * 31) % 97) as i64).unwrap();
        let election = Election::new(LEASE).lock(self.lock).identity(name);
        let operator = change(Operator::new("counter"), election)
            .client(self.connect(name, &link))
            .clock(Clock::at(epoch))
            .entropy(Entropy::seeded(number));
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(operator.run_until(async move {
            let _ = stopped.await;
        }));
        Replica { name: name.to_owned(), link, stop: Some(stop), task }
    }

    /// A client of a replica, whose requests are seen where they arrive.
    fn connect(&self, name: &str, link: &Arc<Link>) -> Client {
        let (service, seen) = (self.api.service(Identity::admin()), Arc::clone(&self.seen));
        let (name, link) = (name.to_owned(), Arc::clone(link));
        let recorded = tower::service_fn(move |request: Request<Body>| {
            let (mut service, seen) = (service.clone(), Arc::clone(&seen));
            let (name, link) = (name.clone(), Arc::clone(&link));
            async move {
                link.passable().await?;
                let path = request.uri().path().to_owned();
                let lease = is_lock(&request);
                let write = *request.method() != Method::GET;
                if write && !lease {
                    seen.wrote(&name, &path);
                }
                let answer =
                    service.call(request).await.map_err(|error| BoxError::from(format!("{error}")))?;
                let (parts, body) = answer.into_parts();
                let body = if write {
                    let bytes =
                        body.collect().await.map_err(|error| BoxError::from(format!("{error}")))?.to_bytes();
                    if lease && parts.status.is_success() {
                        seen.lease(&serde_json::from_slice(&bytes)?);
                    }
                    http_body_util::Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
                } else {
                    let way = Arc::clone(&link);
                    let data = body.into_data_stream().then(move |chunk| {
                        let link = Arc::clone(&way);
                        async move {
                            if !lease {
                                // The sender lives as long as the link.
                                let _ = link.frozen.subscribe().wait_for(|frozen| !frozen).await;
                            }
                            link.passable().await?;
                            chunk
                                .map(http_body::Frame::data)
                                .map_err(|error| BoxError::from(format!("{error}")))
                        }
                    });
                    StreamBody::new(data).boxed_unsync()
                };
                link.passable().await?;
                Ok::<_, BoxError>(http::Response::from_parts(parts, body))
            }
        });
        Client::new(recorded, "default")
    }

    /// Waits until one of `replicas` leads and has written.
    pub async fn somebody_works(&self) -> String {
        let before = self.seen.writes.load(Ordering::Relaxed);
        eventually("somebody works", async || {
            let last = self.seen.last_write.lock().clone();
            match last {
                Some((_, writer))
                    if self.seen.writes.load(Ordering::Relaxed) > before && writer == self.seen.holder() =>
                {
                    Ok(writer)
                }
                last => Err(format!("{last:?}, lease: {:?}", self.seen.holder())),
            }
        })
        .await
    }
}

impl Replica {
    /// Asks it to stop and waits for its end.
    pub async fn stop(mut self) -> Result<(), OperatorError> {
        drop(self.stop.take());
        (&mut self.task).await.unwrap()
    }

    /// Ends it at once, as a crash does.
    pub async fn crash(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// How it ended by itself.
    pub async fn outcome(&mut self) -> Result<(), OperatorError> {
        (&mut self.task).await.unwrap()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether a request is about the lock, whatever that is.
fn is_lock(request: &Request<Body>) -> bool {
    let path = request.uri().path();
    let named = path.ends_with(LEASE) || request.uri().query().is_some_and(|query| query.contains(LEASE));
    // The replicas of these tests make no other ConfigMaps and Endpoints.
    let made =
        *request.method() == Method::POST && (path.ends_with("/configmaps") || path.ends_with("/endpoints"));
    path.contains("/leases") || named || made
}

/// Counts in an annotation each second.
pub struct Count(String);

impl Reconciler for Count {
    type Object = ConfigMap;

    async fn reconcile(&self, map: Arc<ConfigMap>, cx: &Context<ConfigMap>) -> Result<Action> {
        cx.term().check()?;
        let name = map.metadata.name.clone().unwrap_or_default();
        let writer = format!("{} in term {} at {}", self.0, cx.term().number(), cx.clock().now());
        cx.patch::<ConfigMap>(name, Patch::annotation("writer", Some(&writer))).await?;
        Ok(Action::requeue(Duration::from_secs(1)))
    }
}

pub fn counter(name: &str) -> Controller<Count> {
    // Not in the lock itself, which may be a ConfigMap.
    let counter = Selector::all().fields("metadata.name=counter");
    Controller::new(Count(name.to_owned())).selector(counter).uses::<ConfigMap>(&[Verb::Patch])
}

/// Waits for a state, up to ten minutes of simulated time, and says what it saw last.
pub async fn eventually<T, F: Future<Output = Result<T, String>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let mut last = String::new();
    for _ in 0..6000 {
        match look().await {
            Ok(seen) => return seen,
            Err(seen) => last = seen,
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("not within ten minutes: {what}; last seen: {last}")
}

pub async fn pause(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}
