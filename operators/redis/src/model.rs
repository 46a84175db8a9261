//! A model of Redis replication for simulated time: enough to be wrong in the ways that matter. Processes
//! die and come back with what they wrote to disk, replicas lag, networks break, clients write.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::observe::{
    Address, Command, Credentials, Dial, DialError, Follower, Handover, Link, Place, Server, Session,
    SessionError, Target,
};
use crate::render::{NOBODY, PORT, SEALED};
use crate::settings::LIVE;

/// How long a copy of the whole data takes.
const FULL_SYNC: Duration = Duration::from_millis(300);

/// `min-replicas-max-lag`.
const MAX_LAG: Duration = Duration::from_secs(3);

/// All servers, by IP address.
#[derive(Debug, Default)]
pub struct World {
    /// The servers.
    pub servers: BTreeMap<String, ModelServer>,
    /// Every write that a client was told to be done.
    pub acknowledged: BTreeSet<u64>,
    /// Every write that a replica confirmed while its primary was there to say so: what `WAIT 1` tells a client.
    pub confirmed: BTreeSet<u64>,
    /// The last number given to a write, a process or a line.
    serial: u64,
}

/// One server.
#[derive(Debug)]
pub struct ModelServer {
    /// The process runs.
    pub running: bool,
    /// Neither the operator nor another server reaches it.
    pub isolated: bool,
    /// The operator does not reach it.
    pub hidden: bool,
    /// Nothing that it sends arrives at other servers, though it receives.
    pub muted: bool,
    /// How long data takes from its primary.
    pub delay: Duration,
    /// `maxmemory`.
    pub maxmemory: u64,
    /// `maxmemory-policy`.
    pub policy: String,
    /// Other settings.
    pub parameters: BTreeMap<&'static str, String>,
    /// Numbers of the writes that it has.
    pub log: Vec<u64>,
    /// Cancelled when the process ends.
    pub process: CancellationToken,
    disk: String,
    persistent: bool,
    run: u64,
    loading_until: Instant,
    primary: bool,
    of: Option<String>,
    link: ModelLink,
    /// The process that the link leads to.
    linked: u64,
    heard: Instant,
    acks: BTreeMap<String, Instant>,
    in_flight: Vec<(Instant, u64)>,
    lines: [u64; 2],
    offset: u64,
    quorum: u32,
    serve_stale: bool,
    handover: ModelHandover,
    /// Its link to a primary doesn't come about before this.
    pub cut: Option<Instant>,
}

/// How far a server is with `FAILOVER`, and to whom.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ModelHandover {
    None,
    Waiting { to: String, until: Instant },
    Promoting { to: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ModelLink {
    Down,
    Syncing(Instant),
    Up,
}

/// What `FAILOVER` does next.
enum Next {
    Promoting,
    Done,
    Aborted,
}

impl ModelServer {
    /// A hand-over ends without a successor: it is the primary again, in a new line if it had stopped being it.
    fn abort(&mut self, line: u64) {
        if let ModelHandover::Promoting { .. } = self.handover {
            self.primary = true;
            self.of = None;
            self.acks.clear();
            self.lines = [line, self.lines[0]];
        }
        self.handover = ModelHandover::None;
    }
}

impl World {
    /// Starts the process at `ip` on the volume `disk`, as `start.sh` does.
    pub fn start(&mut self, ip: &str, disk: &str, persistent: bool, now: Instant) {
        self.serial += 2;
        let before = self.servers.iter().find(|(_, server)| server.disk == disk).map(|(ip, _)| ip.clone());
        let before = before.and_then(|ip| self.servers.remove(&ip));
        let faults = before
            .as_ref()
            .map_or((false, false, false), |server| (server.isolated, server.hidden, server.muted));
        let log = before.filter(|server| server.persistent).map(|server| server.log).unwrap_or_default();
        let loading_until = now + if log.is_empty() { Duration::ZERO } else { Duration::from_millis(200) };
        let server = ModelServer {
            running: true,
            isolated: faults.0,
            hidden: faults.1,
            muted: faults.2,
            delay: Duration::ZERO,
            maxmemory: 805_306_368,
            policy: "noeviction".into(),
            parameters: LIVE.iter().map(|known| (known.name, known.default.to_owned())).collect(),
            log,
            process: CancellationToken::new(),
            disk: disk.to_owned(),
            persistent,
            run: self.serial,
            loading_until,
            primary: false,
            of: None,
            link: ModelLink::Down,
            linked: 0,
            heard: now,
            acks: BTreeMap::new(),
            in_flight: Vec::new(),
            lines: [self.serial + 1, 0],
            offset: 0,
            quorum: SEALED,
            serve_stale: false,
            handover: ModelHandover::None,
            cut: None,
        };
        self.serial += 1;
        self.servers.insert(ip.to_owned(), server);
    }

    /// Kills the process at `ip`. What it sent before still arrives.
    pub fn kill(&mut self, ip: &str) {
        if let Some(server) = self.servers.get_mut(ip) {
            server.running = false;
            server.process.cancel();
            server.in_flight.clear();
        }
    }

    /// Removes the server at `ip` with its disk.
    pub fn remove(&mut self, ip: &str) {
        self.servers.remove(ip);
    }

    /// What the server at `ip` answers.
    pub fn server(&self, ip: &str, now: Instant) -> Option<Server> {
        let server =
            self.servers.get(ip).filter(|server| server.running && !server.isolated && !server.hidden)?;
        let place = if server.primary {
            Place::Primary
        } else {
            let (of_ip, port) = server.of.as_ref().map_or(NOBODY, |of| (of.as_str(), PORT));
            let link = match server.link {
                ModelLink::Down => Link::Down,
                ModelLink::Syncing(_) => Link::Syncing,
                ModelLink::Up => Link::Up { last_io: now.saturating_duration_since(server.heard).as_secs() },
            };
            Place::Replica { of: Address { ip: of_ip.to_owned(), port }, link }
        };
        let followers = self
            .servers
            .iter()
            .filter(|(_, other)| other.running && !other.primary && other.of.as_deref() == Some(ip));
        let followers =
            followers.filter(|(_, other)| other.link == ModelLink::Up).map(|(follower, other)| Follower {
                ip: follower.clone(),
                online: true,
                offset: other.offset,
                lag: server.acks.get(follower).map_or(0, |at| now.saturating_duration_since(*at).as_secs()),
            });
        Some(Server {
            run_id: server.run.to_string(),
            version: "7.0.15".into(),
            place,
            loading: now < server.loading_until,
            lines: server.lines.map(|line| line.to_string()),
            offset: server.offset,
            followers: if server.primary { followers.collect() } else { Vec::new() },
            handover: match server.handover {
                ModelHandover::None => Handover::None,
                ModelHandover::Waiting { .. } => Handover::Waiting,
                ModelHandover::Promoting { .. } => Handover::Promoting,
            },
            quorum: server.quorum,
            serve_stale: server.serve_stale,
            maxmemory: server.maxmemory,
            parameters: server.parameters.clone(),
            policy: server.policy.clone(),
            used_memory: 1_000_000,
            keys: server.log.len() as u64,
            write_error: false,
        })
    }

    /// Carries out `command` at `ip`; false if the server doesn't answer.
    pub fn command(&mut self, ip: &str, command: &Command, now: Instant) -> bool {
        self.serial += 1;
        let line = self.serial;
        let successor = match command {
            Command::HandOver { to } => self
                .servers
                .get(&to.ip)
                .is_some_and(|to| to.of.as_deref() == Some(ip) && to.link == ModelLink::Up),
            _ => false,
        };
        let Some(server) =
            self.servers.get_mut(ip).filter(|server| server.running && !server.isolated && !server.hidden)
        else {
            return false;
        };
        let follow = |server: &mut ModelServer, of: Option<String>| {
            server.primary = false;
            server.link = ModelLink::Down;
            server.in_flight.clear();
            server.of = of;
        };
        match command {
            Command::Follow(_) if server.handover != ModelHandover::None => {}
            Command::Seal => server.quorum = SEALED,
            Command::HandOver { to } if server.primary && successor => {
                server.handover =
                    ModelHandover::Waiting { to: to.ip.clone(), until: now + Duration::from_secs(3) };
            }
            Command::HandOver { .. } => {}
            Command::AbortHandOver => server.abort(line),
            Command::Retire | Command::Demote if server.handover != ModelHandover::None => {
                server.quorum = SEALED;
            }
            Command::Follow(Target::Nobody) => follow(server, None),
            Command::Follow(Target::Server(address)) => follow(server, Some(address.ip.clone())),
            Command::Retire | Command::Demote => {
                server.quorum = SEALED;
                follow(server, None);
            }
            Command::Promote { quorum } => {
                server.quorum = *quorum;
                if !server.primary {
                    server.primary = true;
                    server.acks.clear();
                    server.lines = [line, server.lines[0]];
                    server.offset = server.offset.max(1);
                }
            }
            Command::Set { name, value } => match *name {
                "min-replicas-to-write" => server.quorum = value.parse().unwrap(),
                "replica-serve-stale-data" => server.serve_stale = value == "yes",
                "maxmemory" => server.maxmemory = value.parse().unwrap(),
                "maxmemory-policy" => server.policy.clone_from(value),
                other => {
                    let known = LIVE.iter().find(|known| known.name == other);
                    let known = known.unwrap_or_else(|| panic!("the model does not know {other}"));
                    server.parameters.insert(known.name, value.clone());
                }
            },
        }
        self.advance(now);
        true
    }

    /// Whether the server at `ip` would accept a write now.
    pub fn accepts_writes(&self, ip: &str, now: Instant) -> bool {
        self.servers.get(ip).is_some_and(|server| {
            let good =
                server.acks.values().filter(|at| now.saturating_duration_since(**at) <= MAX_LAG).count();
            server.running
                && server.primary
                && server.handover == ModelHandover::None
                && now >= server.loading_until
                && good >= server.quorum as usize
        })
    }

    /// `min-replicas-to-write` of the server at `ip`.
    pub fn quorum(&self, ip: &str) -> u32 {
        self.servers[ip].quorum
    }

    /// What the readiness probe says of the server on the volume `disk`.
    pub fn ready(&self, disk: &str, now: Instant) -> bool {
        self.servers.values().any(|server| {
            let linked = server.primary || server.link == ModelLink::Up;
            server.disk == disk && server.running && now >= server.loading_until && linked
        })
    }

    /// A client writes to the server at `ip`; true if it was told that this was done.
    pub fn write(&mut self, ip: &str, now: Instant) -> bool {
        if !self.accepts_writes(ip, now) {
            return false;
        }
        self.serial += 1;
        let number = self.serial;
        if let Some(server) = self.servers.get_mut(ip) {
            server.log.push(number);
            server.offset += 10;
        }
        for replica in self.servers.values_mut() {
            if replica.of.as_deref() == Some(ip) && !replica.primary && replica.link == ModelLink::Up {
                replica.in_flight.push((now + replica.delay, number));
            }
        }
        self.acknowledged.insert(number);
        true
    }

    /// Lets replication happen.
    pub fn advance(&mut self, now: Instant) {
        let names: Vec<String> = self.servers.keys().cloned().collect();
        for name in names {
            let Some(mut server) = self.servers.remove(&name) else { continue };
            let promoting = matches!(server.handover, ModelHandover::Promoting { .. });
            if server.running && !server.primary && !promoting && now >= server.loading_until {
                self.replicate(&name, &mut server, now);
            }
            let running = server.running;
            self.servers.insert(name.clone(), server);
            if running {
                self.hand_over(&name, now);
            }
        }
    }

    /// `FAILOVER` goes on at `ip`.
    fn hand_over(&mut self, ip: &str, now: Instant) {
        let Some(server) = self.servers.get(ip) else { return };
        let (offset, line, muted, isolated) = (server.offset, server.lines[0], server.muted, server.isolated);
        let (to, until) = match &server.handover {
            ModelHandover::None => return,
            ModelHandover::Waiting { to, until } => (to.clone(), Some(*until)),
            ModelHandover::Promoting { to } => (to.clone(), None),
        };
        self.serial += 1;
        let new_line = self.serial;
        let successor = self.servers.get_mut(&to).filter(|to| to.running && !to.isolated && !isolated);
        // What the successor says must arrive.
        let heard = successor.as_ref().is_some_and(|to| !to.muted);
        let mut next = None;
        match (until, successor) {
            (Some(_), Some(to))
                if heard
                    && to.of.as_deref() == Some(ip)
                    && to.link == ModelLink::Up
                    && to.offset == offset =>
            {
                next = Some(Next::Promoting);
            }
            (Some(until), _) if now >= until => next = Some(Next::Aborted),
            (None, Some(to)) if !muted && now >= to.loading_until => {
                let accepts = !to.primary && to.lines[0] == line;
                if accepts {
                    to.primary = true;
                    to.acks.clear();
                    to.lines = [new_line, line];
                    if heard {
                        to.acks.insert(ip.to_owned(), now);
                    }
                }
                if heard {
                    next = Some(if accepts { Next::Done } else { Next::Aborted });
                }
            }
            _ => {}
        }
        let Some(server) = self.servers.get_mut(ip) else { return };
        match next {
            None => {}
            Some(Next::Promoting) => {
                server.handover = ModelHandover::Promoting { to: to.clone() };
                server.primary = false;
                server.of = Some(to);
                server.link = ModelLink::Down;
            }
            Some(Next::Done) => server.handover = ModelHandover::None,
            Some(Next::Aborted) => server.abort(new_line + 1),
        }
        self.serial += 1;
    }

    fn replicate(&mut self, name: &str, replica: &mut ModelServer, now: Instant) {
        let Some(of) = replica.of.clone() else { return };
        if replica.cut.is_some_and(|until| now < until) {
            replica.link = ModelLink::Down;
            replica.in_flight.clear();
            return;
        }
        let mut source = self.servers.get_mut(&of);
        if replica.isolated || source.as_ref().is_some_and(|source| source.isolated) {
            // Nothing arrives, but nobody hangs up: an open link stays open, and data is sent again later.
            return;
        }
        if let Some(source) = source.as_mut().filter(|source| source.muted && source.running) {
            if source.primary && replica.link == ModelLink::Up {
                source.acks.insert(name.to_owned(), now);
            }
            return;
        }
        let arrived = replica.in_flight.iter().take_while(|(at, _)| *at <= now).count();
        for (_, number) in replica.in_flight.drain(..arrived) {
            replica.log.push(number);
            replica.offset += 10;
        }
        let same = |source: &ModelServer| replica.link == ModelLink::Down || replica.linked == source.run;
        let Some(source) = source
            .filter(|source| source.running && source.primary && now >= source.loading_until && same(source))
        else {
            // What was sent before is read before the end of the connection is seen.
            if replica.in_flight.is_empty() {
                replica.link = ModelLink::Down;
            }
            return;
        };
        let shares = source.lines.iter().any(|line| *line != 0 && replica.lines[0] == *line);
        let partial = shares
            && replica.offset <= source.offset
            && replica.offset > 0
            && source.log.starts_with(&replica.log);
        replica.linked = source.run;
        match replica.link {
            ModelLink::Down if !partial => {
                replica.link = ModelLink::Syncing(now + FULL_SYNC);
                return;
            }
            ModelLink::Syncing(until) if now < until => return,
            _ => {}
        }
        if replica.link != ModelLink::Up {
            replica.in_flight.clear();
            replica.log.clone_from(&source.log);
            replica.offset = source.offset;
        }
        replica.link = ModelLink::Up;
        replica.lines = source.lines;
        replica.heard = now;
        source.acks.insert(name.to_owned(), now);
        self.confirmed.extend(replica.log.iter().copied());
    }
}

/// A world that monitors reach, with time that passes by itself.
#[derive(Clone, Default)]
pub struct SharedWorld(Arc<Mutex<World>>);

impl SharedWorld {
    /// Looks at or changes the world as it is now.
    pub fn with<T>(&self, look: impl FnOnce(&mut World, Instant) -> T) -> T {
        let now = Instant::now();
        let mut world = self.0.lock();
        world.advance(now);
        look(&mut world, now)
    }

    /// Lets time pass in the world for as long as the returned future is polled.
    pub async fn run(self) {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.with(|_, _| ());
        }
    }
}

impl Dial for SharedWorld {
    fn dial(
        &self,
        address: Address,
        _: Credentials,
    ) -> BoxFuture<'static, Result<Box<dyn Session>, DialError>> {
        let world = self.clone();
        async move {
            let (process, run) = world.with(|world, _| match world.servers.get(&address.ip) {
                None => Err(DialError::Other("no route to host".into())),
                Some(server) if server.isolated || server.hidden => Err(DialError::Other("timed out".into())),
                Some(server) if !server.running => Err(DialError::Refused),
                Some(server) => Ok((server.process.clone(), server.run)),
            })?;
            let closed = Box::pin(process.cancelled_owned());
            Ok(Box::new(ModelSession { world, ip: address.ip, run, closed }) as Box<dyn Session>)
        }
        .boxed()
    }
}

struct ModelSession {
    world: SharedWorld,
    ip: String,
    run: u64,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl ModelSession {
    fn same_process(&self, world: &World) -> Result<(), SessionError> {
        let same = world.servers.get(&self.ip).is_some_and(|server| server.running && server.run == self.run);
        if same { Ok(()) } else { Err(SessionError::Lost("connection reset".into())) }
    }
}

impl Session for ModelSession {
    fn observe(&mut self) -> BoxFuture<'_, Result<Server, SessionError>> {
        async move {
            let seen = self
                .world
                .with(|world, now| self.same_process(world).map(|()| world.server(&self.ip, now)))?;
            match seen {
                Some(server) => Ok(server),
                None => futures::future::pending().await,
            }
        }
        .boxed()
    }

    fn command(&mut self, command: Command) -> BoxFuture<'_, Result<(), SessionError>> {
        async move {
            let done = self.world.with(|world, now| {
                self.same_process(world).map(|()| world.command(&self.ip, &command, now))
            })?;
            if done { Ok(()) } else { futures::future::pending().await }
        }
        .boxed()
    }

    fn poll_closed(&mut self, cx: &mut task::Context<'_>) -> task::Poll<()> {
        self.closed.as_mut().poll(cx)
    }
}
