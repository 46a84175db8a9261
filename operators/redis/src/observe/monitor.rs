use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::Stream;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use parking_lot::Mutex;
use setpoint::{Cause, Key};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::track::REFUSALS_APART;
use super::{Address, Command, Credentials, Dial, DialError, Handover, Place, Session, SessionError, Track};
use crate::render::{PORT, Passwords};

/// How often a server is asked.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long a server may take for an answer.
const ANSWER: Duration = Duration::from_secs(1);

/// How long an order may take, with a connection being opened before it.
const ORDER: Duration = Duration::from_secs(4);

/// How often all servers are asked while one hands its role over.
const HANDOVER_INTERVAL: Duration = Duration::from_millis(50);

/// How long a server that doesn't answer is asked often.
const IMPATIENCE: Duration = Duration::from_secs(10);

/// The monitors of all clusters: a task for each pod, with one connection, which asks the server each second
/// and wakes the controller when something changes. Cheap to clone.
#[derive(Clone)]
pub struct Monitors(Arc<Shared>);

struct Shared {
    dial: Arc<dyn Dial>,
    wake: Mutex<Option<UnboundedSender<(Key, Cause)>>>,
    clusters: Mutex<BTreeMap<Key, BTreeMap<String, Entry>>>,
    passwords: Mutex<BTreeMap<Key, Passwords>>,
}

/// What is kept of one pod name. It outlives the pod, so that a primary whose pod is gone is remembered.
struct Entry {
    uid: String,
    ip: String,
    track: Arc<Mutex<Track>>,
    task: Option<Task>,
}

struct Task {
    credentials: Credentials,
    orders: mpsc::Sender<Order>,
    poke: Arc<Notify>,
    handle: JoinHandle<()>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

type Answer = Result<(), OrderError>;

struct Order {
    command: Command,
    reply: oneshot::Sender<Answer>,
}

/// An order was not carried out, as far as known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// The server is not connected, so nothing was sent.
    #[error("not connected")]
    NotConnected,
    /// No answer in time: the connection was closed, and nobody knows.
    #[error("no answer within {} s", ANSWER.as_secs())]
    NoAnswer,
    /// The session failed.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// A pod to be monitored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitored {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its address.
    pub ip: String,
}

impl Monitors {
    /// Monitors that connect through `dial`.
    pub fn new(dial: Arc<dyn Dial>) -> Self {
        Self(Arc::new(Shared {
            dial,
            wake: Mutex::new(None),
            clusters: Mutex::default(),
            passwords: Mutex::default(),
        }))
    }

    /// The clusters where something changed, from now on. Only the latest stream gets them.
    pub fn changes(&self) -> impl Stream<Item = (Key, Cause)> + Send + use<> {
        let (sender, receiver): (_, UnboundedReceiver<(Key, Cause)>) = unbounded();
        *self.0.wake.lock() = Some(sender);
        receiver
    }

    /// Monitors exactly `pods` of `cluster` from now on, each by its UID and address.
    pub fn watch(&self, cluster: &Key, pods: &[Monitored], credentials: &Credentials, passwords: &Passwords) {
        self.0.passwords.lock().insert(cluster.clone(), passwords.clone());
        let now = Instant::now();
        let mut clusters = self.0.clusters.lock();
        let entries = clusters.entry(cluster.clone()).or_default();
        for (name, entry) in entries.iter_mut() {
            if entry.task.is_some() && !pods.iter().any(|pod| &pod.name == name) {
                entry.task = None;
                entry.track.lock().failed(now);
            }
        }
        for pod in pods {
            let same = entries.get(&pod.name).is_some_and(|entry| {
                let current = entry.task.as_ref().is_some_and(|task| &task.credentials == credentials);
                current && entry.uid == pod.uid && entry.ip == pod.ip
            });
            if same {
                continue;
            }
            let track =
                entries.get(&pod.name).map(|entry| entry.track.lock().succeeded(now)).unwrap_or_default();
            let track = Arc::new(Mutex::new(track));
            let (orders, inbox) = mpsc::channel(8);
            let poke = Arc::new(Notify::new());
            let monitor = Monitor {
                shared: Arc::clone(&self.0),
                cluster: cluster.clone(),
                pod: pod.name.clone(),
                address: Address { ip: pod.ip.clone(), port: PORT },
                credentials: credentials.clone(),
                track: Arc::clone(&track),
                poke: Arc::clone(&poke),
            };
            let handle = tokio::spawn(monitor.run(inbox));
            let task = Some(Task { credentials: credentials.clone(), orders, poke, handle });
            entries.insert(pod.name.clone(), Entry { uid: pod.uid.clone(), ip: pod.ip.clone(), track, task });
        }
    }

    /// The passwords that the servers of `cluster` were last monitored with.
    pub fn passwords(&self, cluster: &Key) -> Option<Passwords> {
        self.0.passwords.lock().get(cluster).cloned()
    }

    /// What was seen of the pods of `cluster`, by name, with the UID of the pod that it speaks of.
    pub fn tracks(&self, cluster: &Key) -> BTreeMap<String, (String, Track)> {
        let clusters = self.0.clusters.lock();
        let entries = clusters.get(cluster).into_iter().flatten();
        entries.map(|(name, entry)| (name.clone(), (entry.uid.clone(), entry.track.lock().clone()))).collect()
    }

    /// Has the server of `pod` carry out `command`, and looks at it again before this returns.
    pub async fn order(&self, cluster: &Key, pod: &str, command: Command) -> Result<(), OrderError> {
        let orders = {
            let clusters = self.0.clusters.lock();
            let task = clusters
                .get(cluster)
                .and_then(|entries| entries.get(pod))
                .and_then(|entry| entry.task.as_ref());
            task.ok_or(OrderError::NotConnected)?.orders.clone()
        };
        let (reply, answer) = oneshot::channel();
        orders.try_send(Order { command, reply }).map_err(|_| OrderError::NotConnected)?;
        match timeout(ORDER, answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(OrderError::NotConnected),
            Err(_) => Err(OrderError::NoAnswer),
        }
    }

    /// Stops the monitors of `cluster` and forgets what they saw.
    pub fn forget(&self, cluster: &Key) {
        self.0.clusters.lock().remove(cluster);
        self.0.passwords.lock().remove(cluster);
    }
}

impl Shared {
    fn wake(&self, cluster: &Key, why: String) {
        if let Some(sender) = &*self.wake.lock() {
            // A closed receiver means that no controller runs; the next one looks at everything anyway.
            let _ = sender.unbounded_send((cluster.clone(), Cause::source(why)));
        }
    }

    /// Has all other monitors of `cluster` than that of `pod` look now.
    fn poke(&self, cluster: &Key, pod: &str) {
        for (name, entry) in self.clusters.lock().get(cluster).into_iter().flatten() {
            if let Some(task) = entry.task.as_ref().filter(|_| name != pod) {
                task.poke.notify_one();
            }
        }
    }
}

struct Monitor {
    shared: Arc<Shared>,
    cluster: Key,
    pod: String,
    address: Address,
    credentials: Credentials,
    track: Arc<Mutex<Track>>,
    poke: Arc<Notify>,
}

/// What ends a pause between two looks.
enum Next {
    Closed,
    Order(Order),
    Look,
}

impl Monitor {
    async fn run(self, mut inbox: mpsc::Receiver<Order>) {
        let mut since = Instant::now();
        loop {
            match timeout(ANSWER, self.shared.dial.dial(self.address.clone(), self.credentials.clone())).await
            {
                Ok(Ok(session)) => {
                    let failure = self.attend(session, &mut inbox).await;
                    tracing::debug!(pod = self.pod, %failure, "lost the connection to a server");
                    since = Instant::now();
                    if self.note(Track::failed) {
                        // The others must say how far they are, now that one is lost.
                        self.shared.poke(&self.cluster, &self.pod);
                        self.shared.wake(&self.cluster, format!("lost {}", self.pod));
                    }
                    continue;
                }
                Ok(Err(DialError::Refused)) => {
                    if self.note(Track::refused) {
                        self.shared.wake(&self.cluster, format!("{} refuses connections", self.pod));
                    }
                }
                Ok(Err(DialError::Login(message))) => {
                    if self.note(|track, now| track.login_refused(now, message)) {
                        self.shared.wake(&self.cluster, format!("{} refuses the login", self.pod));
                    }
                }
                Ok(Err(DialError::Other(_))) | Err(_) => {
                    self.note(Track::failed);
                }
            }
            let patient = since.elapsed() > IMPATIENCE;
            let pause = if patient { INTERVAL } else { REFUSALS_APART };
            let until = Instant::now() + pause;
            while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            {
                if let Next::Order(order) = self.next(None, &mut inbox, left).await {
                    let _ = order.reply.send(Err(OrderError::NotConnected));
                }
            }
        }
    }

    /// Looks at the server and carries out orders until the session fails; returns why.
    async fn attend(&self, mut session: Box<dyn Session>, inbox: &mut mpsc::Receiver<Order>) -> String {
        let mut answered: Option<(oneshot::Sender<Answer>, Answer)> = None;
        let (mut hands_over, mut leads) = (false, None);
        loop {
            let observed = timeout(ANSWER, session.observe()).await;
            let failure = match observed {
                Ok(Ok(server)) => {
                    let handed_over = hands_over;
                    hands_over = server.handover != Handover::None;
                    let leads_now = server.place == Place::Primary;
                    let changed_role = leads.replace(leads_now).is_some_and(|before| before != leads_now);
                    // A hand-over may be through before the next look.
                    if hands_over || handed_over || changed_role {
                        self.shared.poke(&self.cluster, &self.pod);
                    }
                    if self.note(|track, now| track.reached(now, server)) {
                        self.shared.wake(&self.cluster, format!("{} changed", self.pod));
                    }
                    None
                }
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(OrderError::NoAnswer.to_string()),
            };
            if let Some((reply, result)) = answered.take() {
                let _ = reply.send(result);
            }
            if let Some(failure) = failure {
                return failure;
            }
            let pause = if hands_over { HANDOVER_INTERVAL } else { INTERVAL };
            match self.next(Some(&mut *session), inbox, pause).await {
                Next::Closed => return "closed by the server".to_owned(),
                Next::Look => {}
                Next::Order(order) => match timeout(ANSWER, session.command(order.command)).await {
                    Ok(Ok(())) => answered = Some((order.reply, Ok(()))),
                    Ok(Err(SessionError::Refused(why))) => {
                        answered = Some((order.reply, Err(SessionError::Refused(why).into())));
                    }
                    Ok(Err(error)) => {
                        let why = error.to_string();
                        let _ = order.reply.send(Err(error.into()));
                        return why;
                    }
                    Err(_) => {
                        let _ = order.reply.send(Err(OrderError::NoAnswer));
                        return OrderError::NoAnswer.to_string();
                    }
                },
            }
        }
    }

    /// The first of: the server hangs up, an order, a poke, the end of the pause.
    async fn next(
        &self,
        mut session: Option<&mut dyn Session>,
        inbox: &mut mpsc::Receiver<Order>,
        pause: Duration,
    ) -> Next {
        let mut over = pin!(sleep(pause));
        let mut poked = pin!(self.poke.notified());
        poll_fn(|cx| {
            if let Some(session) = &mut session
                && session.poll_closed(cx).is_ready()
            {
                return Poll::Ready(Next::Closed);
            }
            // A closed inbox means that this task is about to be dropped.
            if let Poll::Ready(Some(order)) = inbox.poll_recv(cx) {
                return Poll::Ready(Next::Order(order));
            }
            if poked.as_mut().poll(cx).is_ready() || over.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Next::Look);
            }
            Poll::Pending
        })
        .await
    }

    fn note(&self, event: impl FnOnce(&mut Track, Instant) -> bool) -> bool {
        event(&mut self.track.lock(), Instant::now())
    }
}
