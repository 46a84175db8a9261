use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use setpoint_clock::{Clock, Entropy};

use crate::cache::Caches;
use crate::election::Fence;
use crate::{Failures, Kind, Reports, Scope, Term};

/// One watch for each: the namespaces of `scope`, or `None` for all of them or for a cluster-scoped kind.
pub(crate) fn partitions(scope: &Scope, kind: &Kind) -> Vec<Option<String>> {
    match scope {
        Scope::Namespaces(names) if kind.namespaced => names.iter().cloned().map(Some).collect(),
        _ => vec![None],
    }
}

/// How a reconcile ended, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reconciled {
    /// Done until something changes.
    Success,
    /// Done; comes back after a delay.
    RequeueAfter,
    /// Failed; retried.
    Error,
    /// Failed; waits for a new generation. Counts as an error too.
    Terminal,
    /// Panicked. Counts as an error too.
    Panic,
    /// Ran into its time limit. Counts as an error too.
    TimedOut,
}

/// What happens inside, for metrics. Each method does nothing unless overridden, and must not block.
pub trait Observer: Send + Sync + 'static {
    /// A controller is about to start, with so many workers.
    fn controller_started(&self, _controller: &str, _workers: usize) {}
    /// A key was put into a controller's queue.
    fn queue_added(&self, _controller: &str) {}
    /// Keys that are ready now, of both classes: fresh, and background (initial list, resync).
    fn queue_depth(&self, _controller: &str, _fresh: usize, _background: usize) {}
    /// A key left the queue after waiting since its first add.
    fn queue_waited(&self, _controller: &str, _waited: Duration) {}
    /// A key was put back after a failure.
    fn queue_retried(&self, _controller: &str) {}
    /// A worker has begun a reconcile.
    fn reconcile_started(&self, _controller: &str) {}
    /// A worker has ended a reconcile.
    fn reconcile_finished(&self, _controller: &str, _ended: Reconciled, _took: Duration) {}
    /// A watch is about to begin.
    fn watch_started(&self, _kind: &Kind) {}
    /// A watch delivered an event, or a list was taken.
    fn watch_event(&self, _kind: &Kind) {}
    /// A watch had to be started again.
    fn watch_restarted(&self, _kind: &Kind) {}
    /// So many objects of a kind cannot be decoded.
    fn undecodable(&self, _kind: &Kind, _objects: usize) {}
    /// This replica has begun or ended to lead in an election.
    fn leading(&self, _election: &str, _leads: bool) {}
    /// A lease was not in the version that its holder knew, and had to be read before it was renewed.
    fn election_slow_path(&self, _election: &str) {}
}

/// An [`Observer`] that looks away.
#[derive(Clone, Copy, Debug)]
pub struct Unobserved;

impl Observer for Unobserved {}

/// Normal or Warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Everything goes as it should.
    Normal,
    /// Something went wrong.
    Warning,
}

/// A Kubernetes event about the reconciled object; see [`crate::Context::event`].
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Normal or Warning.
    pub severity: Severity,
    /// Why, in CamelCase.
    pub reason: String,
    /// What was done, in CamelCase; `Reconcile` unless set.
    pub action: String,
    /// For people.
    pub note: String,
    /// A second object that it is about.
    pub related: Option<ObjectReference>,
}

impl Event {
    /// A normal event.
    pub fn normal(reason: impl Into<String>, note: impl Into<String>) -> Self {
        Self {
            severity: Severity::Normal,
            reason: reason.into(),
            action: "Reconcile".to_owned(),
            note: note.into(),
            related: None,
        }
    }

    /// A warning.
    pub fn warning(reason: impl Into<String>, note: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::normal(reason, note) }
    }

    /// Names the action.
    pub fn action(mut self, action: impl Into<String>) -> Self {
        self.action = action.into();
        self
    }

    /// Names a second object.
    pub fn related(mut self, object: ObjectReference) -> Self {
        self.related = Some(object);
        self
    }
}

/// Where events go. Must not block; the recorder of an operator sends them in the background.
pub trait Recorder: Send + Sync + 'static {
    /// Takes an event of `controller` about the object `about`.
    fn record(&self, controller: &str, about: &ObjectReference, event: Event);
}

/// A [`Recorder`] that writes events to the log only.
#[derive(Clone, Copy, Debug)]
pub struct LogOnly;

impl Recorder for LogOnly {
    fn record(&self, controller: &str, about: &ObjectReference, event: Event) {
        tracing::info!(
            controller,
            kind = about.kind,
            namespace = about.namespace,
            name = about.name,
            reason = event.reason,
            "{}",
            event.note
        );
    }
}

/// What all controllers of a process share: client, caches, time, randomness, metrics and events.
///
/// [`crate::Operator`] makes one; controllers without an operator make their own with [`Runtime::builder`].
#[derive(Clone)]
pub struct Runtime(Arc<Shared>);

/// Which runtime something was made for.
pub(crate) struct RuntimeId(Weak<Shared>);

impl PartialEq for RuntimeId {
    fn eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

struct Shared {
    client: Client,
    clock: Clock,
    entropy: Entropy,
    observer: Arc<dyn Observer>,
    recorder: Arc<dyn Recorder>,
    caches: Caches,
    dry_run: bool,
    grace: Duration,
    fence: Option<Fence>,
    failures: Failures,
    reports: Reports,
}

/// Makes a [`Runtime`].
pub struct RuntimeBuilder {
    client: Client,
    clock: Option<Clock>,
    entropy: Option<Entropy>,
    scope: Scope,
    observer: Arc<dyn Observer>,
    recorder: Arc<dyn Recorder>,
    dry_run: bool,
    grace: Duration,
    fence: Option<Fence>,
    failures: Failures,
    reports: Reports,
}

impl Runtime {
    /// Which runtime it is; does not keep it alive.
    pub(crate) fn id(&self) -> RuntimeId {
        RuntimeId(Arc::downgrade(&self.0))
    }

    /// Starts from a client: the machine's clock and randomness, all namespaces, no metrics, events to the
    /// log, 30 s of grace at the end.
    pub fn builder(client: Client) -> RuntimeBuilder {
        RuntimeBuilder {
            client,
            clock: None,
            entropy: None,
            scope: Scope::All,
            observer: Arc::new(Unobserved),
            recorder: Arc::new(LogOnly),
            dry_run: false,
            grace: Duration::from_secs(30),
            fence: None,
            failures: Failures::default(),
            reports: Reports::default(),
        }
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// Time.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Randomness.
    pub fn entropy(&self) -> &Entropy {
        &self.0.entropy
    }

    /// The caches that all controllers share, with their health.
    pub fn caches(&self) -> &Caches {
        &self.0.caches
    }

    /// Receiver of what happens inside.
    pub fn observer(&self) -> &dyn Observer {
        &*self.0.observer
    }

    /// Where events go.
    pub fn recorder(&self) -> &dyn Recorder {
        &*self.0.recorder
    }

    /// Whether writes are only tried (`dryRun=All`).
    pub fn dry_run(&self) -> bool {
        self.0.dry_run
    }

    /// How long running reconciles may go on after the stop.
    pub fn grace(&self) -> Duration {
        self.0.grace
    }

    /// The objects whose last reconcile failed.
    pub fn failures(&self) -> &Failures {
        &self.0.failures
    }

    /// The last reconciles.
    pub fn reports(&self) -> &Reports {
        &self.0.reports
    }

    /// The present term of leadership, or the last one; one without an end where there is no election.
    pub fn term(&self) -> Term {
        self.0.fence.as_ref().map_or_else(Term::endless, Fence::term)
    }

    /// Whether there is an election, so that caches may be older than the term.
    pub(crate) fn is_elected(&self) -> bool {
        self.0.fence.is_some()
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("caches", &self.0.caches).finish_non_exhaustive()
    }
}

impl RuntimeBuilder {
    /// Takes the time from `clock`.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Takes randomness from `entropy`.
    pub fn entropy(mut self, entropy: Entropy) -> Self {
        self.entropy = Some(entropy);
        self
    }

    /// Watches only these namespaces.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// Tells `observer` what happens.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = observer;
        self
    }

    /// Sends events to `recorder`.
    pub fn recorder(mut self, recorder: Arc<dyn Recorder>) -> Self {
        self.recorder = recorder;
        self
    }

    /// Only tries writes (`dryRun=All`): nothing is changed.
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Time for running reconciles after the stop.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Terms of leadership come from `fence`.
    pub(crate) fn fence(mut self, fence: Option<Fence>) -> Self {
        self.fence = fence;
        self
    }

    /// Failures are noted in `failures`.
    pub(crate) fn failures(mut self, failures: Failures) -> Self {
        self.failures = failures;
        self
    }

    /// Reconciles are noted in `reports`.
    pub(crate) fn reports(mut self, reports: Reports) -> Self {
        self.reports = reports;
        self
    }

    /// The runtime. Call inside a tokio runtime.
    pub fn build(self) -> Runtime {
        let entropy = self.entropy.unwrap_or_else(Entropy::from_system);
        let caches =
            Caches::new(self.client.clone(), self.scope, entropy.clone(), Arc::clone(&self.observer));
        Runtime(Arc::new(Shared {
            client: self.client,
            clock: self.clock.unwrap_or_else(Clock::system),
            entropy,
            observer: self.observer,
            recorder: self.recorder,
            caches,
            dry_run: self.dry_run,
            grace: self.grace,
            fence: self.fence,
            failures: self.failures,
            reports: self.reports,
        }))
    }
}

impl fmt::Debug for RuntimeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeBuilder").field("scope", &self.scope).finish_non_exhaustive()
    }
}
