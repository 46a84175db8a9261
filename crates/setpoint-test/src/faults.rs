//! Faults between an operator and the API server, below its retries and deadlines: they meet it as real ones do.

mod pattern;
mod stream;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Request, Response};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::json;
use setpoint::{Operator, Transport};
use tokio::sync::watch;
use tower::{BoxError, Layer, Service, ServiceExt as _};

use crate::request::ApiRequest;
pub use pattern::Requests;

/// Faults of the way between one operator and the API server, to be switched on and off by a test.
///
/// ```no_run
/// # async fn test(env: setpoint_test::TestEnv, operator: setpoint::Operator) -> Result<(), setpoint_test::EnvError> {
/// use setpoint_test::{Faults, Requests};
///
/// let faults = Faults::new();
/// let running = env.run(faults.under(operator)).await?;
/// faults.fail(Requests::writes().to("configmaps"), 503).times(2);
/// faults.lose_answer(Requests::writes().to("websites/status")).once();
/// let frozen = faults.freeze(Requests::watches().to("configmaps"));
/// // …
/// frozen.lift();
/// # Ok(())
/// # }
/// ```
///
/// A fault lasts until it is lifted or has happened as often as it was told to. Where several match a request, the one that
/// was set first happens.
#[derive(Clone)]
pub struct Faults(Arc<Shared>);

struct Shared {
    rules: Mutex<Vec<Arc<Rule>>>,
    /// Rings when a fault of a watch was lifted, or a crash has happened.
    changed: watch::Sender<()>,
    crash: Mutex<Crash>,
}

#[derive(Default)]
struct Crash {
    /// Writes until the crash.
    left: Option<usize>,
    crashed: bool,
    /// Writes since the faults were made.
    writes: usize,
}

struct Rule {
    requests: Requests,
    effect: Effect,
    state: Mutex<State>,
}

struct State {
    /// Matches to let pass first.
    skip: usize,
    /// How often it happens from now on; for ever if none.
    left: Option<usize>,
    happened: usize,
}

#[derive(Clone, Debug)]
enum Effect {
    Fail { code: u16, reason: &'static str, message: String },
    Refuse,
    LoseAnswer,
    Delay(Duration),
    Hang,
    Freeze,
    DropEvents,
}

/// A fault that was set. Dropping it changes nothing.
#[derive(Clone)]
pub struct Fault {
    rule: Arc<Rule>,
    faults: Faults,
}

/// How far a request gets.
enum Fate {
    Pass,
    Answer(Response<Body>),
    Refused,
    /// Passes, but the answer does not come back.
    LoseAnswer,
    Delayed(Duration),
    Hang,
    /// The last write before the crash: it arrives, and nobody is there for its answer.
    LastWrite,
}

impl Default for Faults {
    fn default() -> Self {
        Self::new()
    }
}

impl Faults {
    /// No faults yet.
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            rules: Mutex::default(),
            changed: watch::Sender::new(()),
            crash: Mutex::default(),
        }))
    }

    /// Puts the faults under the request stack of `operator`.
    pub fn under(&self, operator: Operator) -> Operator {
        let faults = self.clone();
        operator.requests(move |stack| stack.faults(faults))
    }

    /// The API server answers with this status code and does nothing: 500, 503, 429, 504.
    pub fn fail(&self, requests: Requests, code: u16) -> Fault {
        let reason = match code {
            404 => "NotFound",
            409 => "Conflict",
            429 => "TooManyRequests",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "InternalError",
        };
        self.add(requests, Effect::Fail { code, reason, message: format!("a fault of the test: {code}") })
    }

    /// Somebody else has changed the object: 409, and nothing is done.
    pub fn conflict(&self, requests: Requests) -> Fault {
        let message =
            "the object has been modified; please apply your changes to the latest version and try again";
        self.add(requests, Effect::Fail { code: 409, reason: "Conflict", message: message.to_owned() })
    }

    /// The connection is refused.
    pub fn refuse(&self, requests: Requests) -> Fault {
        self.add(requests, Effect::Refuse)
    }

    /// The request arrives and has its effect, but the connection breaks before the answer.
    pub fn lose_answer(&self, requests: Requests) -> Fault {
        self.add(requests, Effect::LoseAnswer)
    }

    /// The request is sent so much later.
    pub fn delay(&self, requests: Requests, by: Duration) -> Fault {
        self.add(requests, Effect::Delay(by))
    }

    /// No answer, ever; the request does not arrive.
    pub fn hang(&self, requests: Requests) -> Fault {
        self.add(requests, Effect::Hang)
    }

    /// Watches deliver nothing, neither events nor bookmarks, until this is lifted; then everything that was held up: a stale
    /// cache. For patterns of [`Requests::watches`] with a resource or none; also watches that are open already.
    pub fn freeze(&self, watches: Requests) -> Fault {
        self.add(watches, Effect::Freeze)
    }

    /// Watches lose events: `.once()` loses one. Bookmarks pass. A name in the pattern is that of the event's object. For
    /// patterns of [`Requests::watches`]; also watches that are open already.
    pub fn drop_events(&self, watches: Requests) -> Fault {
        self.add(watches, Effect::DropEvents)
    }

    /// The process dies with its `count`-th write from now on (1 is the next): this one still arrives, its answer and
    /// everything else does not. Then drop what runs, and start it again: see [`crashed`](Self::crashed).
    pub fn crash_after(&self, count: usize) {
        *self.0.crash.lock() = Crash { left: Some(count), ..Crash::default() };
    }

    /// Waits for the crash.
    pub async fn crashed(&self) {
        let mut changed = self.0.changed.subscribe();
        while !self.0.crash.lock().crashed {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// How many writes there were since these faults were made or a crash was asked for.
    pub fn writes(&self) -> usize {
        self.0.crash.lock().writes
    }

    /// Lifts all faults.
    pub fn clear(&self) {
        self.0.rules.lock().clear();
        self.0.changed.send_replace(());
    }

    fn add(&self, requests: Requests, effect: Effect) -> Fault {
        let state = State { skip: 0, left: None, happened: 0 };
        let rule = Arc::new(Rule { requests, effect, state: Mutex::new(state) });
        self.0.rules.lock().push(Arc::clone(&rule));
        Fault { rule, faults: self.clone() }
    }

    /// The first fault that happens to this request.
    fn fate(&self, request: Option<&ApiRequest>) -> Fate {
        {
            let mut crash = self.0.crash.lock();
            if crash.crashed {
                return Fate::Hang;
            }
            if request.is_some_and(ApiRequest::is_write) {
                crash.writes += 1;
                if let Some(left) = &mut crash.left {
                    *left = left.saturating_sub(1);
                    if *left == 0 {
                        crash.crashed = true;
                        return Fate::LastWrite;
                    }
                }
            }
        }
        let Some(request) = request else { return Fate::Pass };
        let effect = self.first(|rule| {
            let of_watches = matches!(rule.effect, Effect::Freeze | Effect::DropEvents);
            !of_watches && rule.requests.matches(request)
        });
        match effect {
            None | Some(Effect::Freeze | Effect::DropEvents) => Fate::Pass,
            Some(Effect::Fail { code, reason, message }) => Fate::Answer(status(code, reason, &message)),
            Some(Effect::Refuse) => Fate::Refused,
            Some(Effect::LoseAnswer) => Fate::LoseAnswer,
            Some(Effect::Delay(by)) => Fate::Delayed(by),
            Some(Effect::Hang) => Fate::Hang,
        }
    }

    /// The effect of the first rule that matches and is due.
    fn first(&self, matches: impl Fn(&Rule) -> bool) -> Option<Effect> {
        let rules = self.0.rules.lock();
        rules.iter().filter(|rule| matches(rule)).find(|rule| rule.due()).map(|rule| rule.effect.clone())
    }

    /// Waits until the watch may deliver.
    async fn thawed(&self, watch: &ApiRequest) {
        let mut changed = self.0.changed.subscribe();
        loop {
            let frozen =
                self.0.crash.lock().crashed
                    || self.0.rules.lock().iter().any(|rule| {
                        matches!(rule.effect, Effect::Freeze) && rule.requests.matches_watch(watch)
                    });
            if !frozen || changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Whether an event of the watch is lost.
    fn loses(&self, watch: &ApiRequest, namespace: Option<&str>, name: Option<&str>) -> bool {
        self.first(|rule| {
            matches!(rule.effect, Effect::DropEvents) && rule.requests.matches_event(watch, namespace, name)
        })
        .is_some()
    }
}

impl Rule {
    /// Counts a match; whether it happens this time.
    fn due(&self) -> bool {
        let mut state = self.state.lock();
        if state.skip > 0 {
            state.skip -= 1;
            return false;
        }
        if state.left == Some(0) {
            return false;
        }
        state.left = state.left.map(|left| left - 1);
        state.happened += 1;
        true
    }
}

impl Fault {
    /// It happens so often from now on.
    pub fn times(self, count: usize) -> Self {
        self.rule.state.lock().left = Some(count);
        self
    }

    /// It happens once.
    pub fn once(self) -> Self {
        self.times(1)
    }

    /// Lets so many matches pass first.
    pub fn after(self, count: usize) -> Self {
        self.rule.state.lock().skip = count;
        self
    }

    /// How often it has happened. Not counted for [`Faults::freeze`].
    pub fn happened(&self) -> usize {
        self.rule.state.lock().happened
    }

    /// Ends it.
    pub fn lift(&self) {
        self.faults.0.rules.lock().retain(|rule| !Arc::ptr_eq(rule, &self.rule));
        self.faults.0.changed.send_replace(());
    }
}

/// An answer of the API server that is no success.
fn status(code: u16, reason: &str, message: &str) -> Response<Body> {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    let mut answer = Response::new(Body::from(body.to_string().into_bytes()));
    *answer.status_mut() =
        http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    answer
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    answer
}

impl Layer<Transport> for Faults {
    type Service = Faulty;

    fn layer(&self, transport: Transport) -> Faulty {
        Faulty { transport, faults: self.clone() }
    }
}

/// What [`Faults`] put into a request stack.
#[derive(Clone)]
pub struct Faulty {
    transport: Transport,
    faults: Faults,
}

impl Service<Request<Body>> for Faulty {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (transport, faults) = (self.transport.clone(), self.faults.clone());
        send(transport, faults, request).boxed()
    }
}

async fn send(
    transport: Transport,
    faults: Faults,
    request: Request<Body>,
) -> Result<Response<Body>, BoxError> {
    let asked = ApiRequest::read(request.method(), request.uri());
    match faults.fate(asked.as_ref()) {
        Fate::Pass => {}
        Fate::Answer(answer) => return Ok(answer),
        Fate::Refused => return Err("connection refused (a fault of the test)".into()),
        Fate::LoseAnswer => {
            transport.oneshot(request).await?.into_body().collect_bytes().await?;
            return Err("connection reset (a fault of the test)".into());
        }
        Fate::Delayed(by) => tokio::time::sleep(by).await,
        Fate::Hang => return Ok(never().await),
        Fate::LastWrite => {
            // It has to arrive, also when the process is dropped at the crash.
            let answer = tokio::spawn(async move {
                transport.oneshot(request).await?.into_body().collect_bytes().await.map_err(BoxError::from)
            });
            drop(answer.await);
            faults.0.changed.send_replace(());
            return Ok(never().await);
        }
    }
    let watch = asked.filter(|asked| asked.verb == setpoint::Verb::Watch);
    let answer = transport.oneshot(request).await?;
    match watch {
        Some(watch) if answer.status().is_success() => stream::faulty(answer, watch, faults).await,
        _ => {
            if faults.0.crash.lock().crashed {
                return Ok(never().await);
            }
            Ok(answer)
        }
    }
}

async fn never<T>() -> T {
    std::future::pending().await
}
