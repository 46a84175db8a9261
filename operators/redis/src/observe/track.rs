use std::time::Duration;

use tokio::time::Instant;

use super::{Address, Handover, Link, Place, Server};

/// An answer older than this says nothing about now.
pub const FRESH: Duration = Duration::from_secs(3);

/// Two refusals at least this far apart prove that the process is gone, not just restarting its listener.
pub const REFUSALS_APART: Duration = Duration::from_millis(100);

/// The last time that a server was seen as a writable primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// When.
    pub at: Instant,
    /// The line of history that it wrote.
    pub line: String,
    /// How far it had come.
    pub offset: u64,
}

/// What a monitor has seen of one pod's server so far. Pure: times come in with the events.
#[derive(Clone, Debug, Default)]
pub struct Track {
    seen: Option<(Instant, Server)>,
    failing: Option<Instant>,
    refused: Option<Instant>,
    dead: bool,
    login: Option<String>,
    primary: Option<Sighting>,
    linked: Option<(Instant, Address)>,
    detached: Option<Instant>,
    promoting: Option<Instant>,
    kept: Option<Instant>,
    steady: Option<Instant>,
    successor: bool,
}

impl Track {
    /// The track of the pod that takes this one's name at `now`: only what was seen of the former as a primary
    /// stays true, and since when it is silent.
    pub fn succeeded(&self, now: Instant) -> Self {
        Self {
            primary: self.primary.clone(),
            failing: Some(self.failing.unwrap_or(now)),
            successor: true,
            ..Self::default()
        }
    }

    /// The server answered at `now`. Returns whether anything that matters changed.
    pub fn reached(&mut self, now: Instant, server: Server) -> bool {
        if server.writable() {
            self.primary = Some(Sighting { at: now, line: server.lines[0].clone(), offset: server.offset });
        }
        if let Place::Replica { of, link: Link::Up { .. } } = &server.place {
            self.linked = Some((now, of.clone()));
        }
        if server.detached() {
            let same = self.seen.as_ref().is_some_and(|(_, before)| before.run_id == server.run_id);
            if !same || self.detached.is_none() {
                self.detached = Some(now);
            }
        } else {
            self.detached = None;
        }
        let same = self
            .seen
            .as_ref()
            .is_some_and(|(_, before)| before.run_id == server.run_id && serves(before) == serves(&server));
        self.steady = serves(&server).and(if same { self.steady.or(Some(now)) } else { Some(now) });
        let before = self.seen.as_ref().map_or(Handover::None, |(_, before)| before.handover);
        match server.handover {
            Handover::Promoting => {
                self.promoting.get_or_insert(now);
            }
            Handover::None | Handover::Waiting => self.promoting = None,
        }
        if before != Handover::None && server.handover == Handover::None && server.place == Place::Primary {
            self.kept = Some(now);
        }
        let changed = self.failing.is_some()
            || self.seen.as_ref().is_none_or(|(at, before)| {
                now.saturating_duration_since(*at) > FRESH || before.digest() != server.digest()
            });
        self.seen = Some((now, server));
        self.successor = false;
        self.failing = None;
        self.refused = None;
        self.dead = false;
        self.login = None;
        changed
    }

    /// A probe failed at `now`, or the connection broke. Returns whether that is news.
    pub fn failed(&mut self, now: Instant) -> bool {
        self.refused = None;
        self.dead = false;
        self.steady = None;
        let news = self.failing.is_none();
        self.failing.get_or_insert(now);
        news
    }

    /// The connection was refused at `now`. Returns whether that completes the proof of death.
    pub fn refused(&mut self, now: Instant) -> bool {
        self.failing.get_or_insert(now);
        self.steady = None;
        let first = *self.refused.get_or_insert(now);
        let proven = now.saturating_duration_since(first) >= REFUSALS_APART;
        let news = proven && !self.dead;
        self.dead = proven;
        news
    }

    /// The server refused the operator's account at `now`. Returns whether that is news.
    pub fn login_refused(&mut self, now: Instant, message: String) -> bool {
        let news = self.login.is_none();
        self.failed(now);
        self.login = Some(message);
        news
    }

    /// The last answer, if it is fresh at `now` and nothing failed since, and when it came.
    pub fn answer(&self, now: Instant) -> Option<(Instant, &Server)> {
        let (at, server) = self.seen.as_ref()?;
        (self.failing.is_none() && now.saturating_duration_since(*at) <= FRESH).then_some((*at, server))
    }

    /// Whether the connection was refused twice, so that no process listens there.
    pub fn dead(&self) -> bool {
        self.dead
    }

    /// Whether a first look succeeded or failed.
    pub fn looked(&self) -> bool {
        self.seen.is_some() || self.failing.is_some()
    }

    /// Whether the pod took the place of one that was seen before, and never answered: nothing runs in it
    /// that the operator ever admitted.
    pub fn untouched(&self) -> bool {
        self.successor
    }

    /// Since when the server gives no answer, as far as known: never before the last answer.
    pub fn silent_since(&self) -> Option<Instant> {
        self.failing.or(self.seen.as_ref().map(|(at, _)| *at))
    }

    /// When the server last answered.
    pub fn heard(&self) -> Option<Instant> {
        self.seen.as_ref().map(|(at, _)| *at)
    }

    /// Why the server refuses the operator's account, if it does.
    pub fn login(&self) -> Option<&str> {
        self.login.as_deref()
    }

    /// When it was last seen as a writable primary.
    pub fn primary(&self) -> Option<&Sighting> {
        self.primary.as_ref()
    }

    /// When its link to a primary was last seen up, and to which.
    pub fn linked(&self) -> Option<&(Instant, Address)> {
        self.linked.as_ref()
    }

    /// Since when it has been seen waiting for its successor to take over.
    pub fn promoting(&self) -> Option<Instant> {
        self.promoting
    }

    /// When it was last seen to have kept its role although it was to hand it over.
    pub fn kept(&self) -> Option<Instant> {
        self.kept
    }

    /// Since when this process has been seen, without interruption, as a writable primary or as a replica of the
    /// same server with its link up.
    pub fn steady(&self) -> Option<Instant> {
        self.steady
    }

    /// Since when this process has been seen detached without interruption.
    pub fn detached(&self) -> Option<Instant> {
        self.detached
    }
}

/// Its place in replication, if it serves there: a writable primary, or the one that a replica receives from.
fn serves(server: &Server) -> Option<(bool, Option<&Address>)> {
    match &server.place {
        Place::Primary => server.writable().then_some((true, None)),
        Place::Replica { of, link: Link::Up { .. } } => Some((false, Some(of))),
        Place::Replica { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_refusal_or_two_at_once_prove_nothing() {
        let now = Instant::now();
        let mut track = Track::default();
        assert!(!track.refused(now));
        assert!(!track.refused(now + Duration::from_millis(50)));
        assert!(!track.dead());
        assert!(track.refused(now + Duration::from_millis(100)));
        assert!(track.dead());
        assert!(!track.refused(now + Duration::from_millis(200)), "no news");
    }

    #[test]
    fn any_other_failure_starts_the_proof_anew() {
        let now = Instant::now();
        let mut track = Track::default();
        track.refused(now);
        track.failed(now + Duration::from_millis(150));
        assert!(!track.dead());
        assert!(!track.refused(now + Duration::from_millis(300)));
        assert_eq!(track.silent_since(), Some(now));
    }
}
