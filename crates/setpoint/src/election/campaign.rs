//! Competes for the lease, renews it, and gives it back.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::{Either, select};
use futures::stream::BoxStream;
use jiff::Timestamp;
use kube::Client;
use setpoint_clock::{Clock, Entropy};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::candidate::{Candidate, Decision, Record};
use super::lock::{Place, Version};
use super::{Election, Fence, JITTER, Timings};
use crate::{Error, Observer};

/// What a released lease lasts: nobody has to wait for its end.
const RELEASED: Duration = Duration::from_secs(1);

/// One replica's part in an election, term after term.
pub(crate) struct Campaign {
    name: String,
    lease: Place,
    candidate: Candidate,
    fence: Fence,
    timings: Timings,
    clock: Clock,
    entropy: Entropy,
    observer: Arc<dyn Observer>,
    /// The lease as it was seen or written last.
    version: Option<Version>,
    /// Tells the end of a standby's pause early.
    changes: Option<BoxStream<'static, ()>>,
    /// The last failure, told once.
    trouble: Option<String>,
}

/// How a term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The lease could not be renewed in time, or somebody else has it.
    Lost,
    /// It was given back.
    Released,
}

impl Campaign {
    /// `client` is the election's own: without retries, with a short deadline, and not fenced.
    pub(crate) fn new(
        election: &Election,
        identity: String,
        client: Client,
        fence: Fence,
        (clock, entropy): (Clock, Entropy),
        observer: Arc<dyn Observer>,
    ) -> Self {
        let namespace = election.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        observer.leading(&election.name, false);
        Self {
            name: election.name.clone(),
            lease: Place::new(election.lock, client, namespace, election.name.clone()),
            candidate: Candidate::new(identity),
            fence,
            timings: election.timings,
            clock,
            entropy,
            observer,
            version: None,
            changes: None,
            trouble: None,
        }
    }

    /// Waits until this replica leads; the fence is open then.
    pub(crate) async fn win(&mut self) {
        loop {
            match self.attempt().await {
                Ok(Some(sent)) if Instant::now() < sent + self.timings.renew => {
                    let term = self.version.as_ref().map_or(0, |version| version.record().transitions);
                    self.fence.open(term, sent);
                    self.changes = None;
                    self.trouble = None;
                    self.observer.leading(&self.name, true);
                    tracing::info!(lease = self.lease.name(), term, "leading");
                    return;
                }
                Ok(_) => self.trouble = None,
                Err(error) => self.report("cannot take part in the election", error),
            }
            self.pause().await;
        }
    }

    /// One look at the lease, and a claim if it is free. Gives when the request of a won claim was sent.
    async fn attempt(&mut self) -> Result<Option<Instant>, kube::Error> {
        self.version = self.lease.read().await?;
        let sent = Instant::now();
        let record = self.version.as_ref().map(Version::record);
        let holder = record.as_ref().map(|record| record.holder.clone());
        let decision = self.candidate.decide(record, sent, self.clock.now(), self.timings.lease);
        let claim = match decision {
            Decision::Won(sent) => return Ok(Some(sent)),
            Decision::Wait => {
                tracing::debug!(lease = self.lease.name(), holder, "standing by");
                if self.candidate.has_double() && self.trouble.is_none() {
                    self.trouble = Some(String::new());
                    tracing::warn!(
                        lease = self.lease.name(),
                        holder,
                        "the lease is held under this replica's identity, by another process or an earlier \
                         one: if it stays so, give each replica an identity of its own"
                    );
                }
                return Ok(None);
            }
            Decision::Claim(claim) => claim,
        };
        self.candidate.forget_claim();
        match self.lease.write(self.version.as_ref(), &claim).await {
            Ok(version) => {
                self.version = Some(version);
                Ok(Some(sent))
            }
            // Somebody was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(error) => {
                let refused = matches!(&error, kube::Error::Api(status) if status.code < 500);
                if !refused {
                    self.candidate.unanswered(claim, sent);
                }
                Err(error)
            }
        }
    }

    /// Waits for the retry period, or until the lease ends or changes.
    async fn pause(&mut self) {
        let now = Instant::now();
        if self.changes.is_none() {
            // Without a watch the period has to do. A server that does not answer must not hold up the next look.
            let watch = timeout_at(now + self.timings.request(), self.lease.watch(self.version.as_ref()));
            self.changes = watch.await.ok().and_then(Result::ok);
        }
        let mut next = now + self.entropy.jitter(self.timings.retry, JITTER);
        if let Some(expiry) = self.candidate.expiry().filter(|expiry| *expiry > now) {
            next = next.min(expiry);
        }
        let period = pin!(sleep_until(next));
        let Some(changes) = &mut self.changes else { return period.await };
        if let Either::Left((None, period)) = select(changes.next(), period).await {
            self.changes = None;
            period.await;
        }
    }

    /// Renews the lease until it is lost, or given back when `release` is cancelled. The fence is shut then.
    pub(crate) async fn hold(&mut self, release: &CancellationToken) -> Ended {
        let ended = self.renew_until(release).await;
        self.fence.shut();
        self.observer.leading(&self.name, false);
        match ended {
            Ended::Lost => tracing::error!(lease = self.lease.name(), "leadership lost"),
            Ended::Released => self.give_back().await,
        }
        ended
    }

    async fn renew_until(&mut self, release: &CancellationToken) -> Ended {
        // The first renewal at once: that the lease was taken may be some time ago.
        let mut next = Instant::now();
        loop {
            let Some(deadline) = self.fence.deadline() else { return Ended::Lost };
            let due = pin!(sleep_until(next.min(deadline)));
            if release.run_until_cancelled(due).await.is_none() {
                return Ended::Released;
            }
            match timeout_at(deadline, self.renew()).await {
                Ok(Ok(Some(sent))) => {
                    self.fence.renewed(sent);
                    self.trouble = None;
                }
                Ok(Ok(None)) | Err(_) => return Ended::Lost,
                Ok(Err(error)) => self.report("cannot renew the lease", error),
            }
            next = Instant::now() + self.timings.retry;
        }
    }

    /// Renews once; gives when the request was sent, or `None` if somebody else has the lease.
    async fn renew(&mut self) -> Result<Option<Instant>, kube::Error> {
        let Some(base) = self.version.clone() else { return Ok(None) };
        let held = base.record();
        match self.refresh(Some(&base), &held).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            result => return result.map(Some),
        }
        // Somebody has written the lease, perhaps we ourselves in a request without an answer.
        self.observer.election_slow_path(&self.name);
        let found = self.lease.read().await?;
        if found.as_ref().is_some_and(|found| !found.record().same_term(&held)) {
            return Ok(None);
        }
        // A Lease that somebody has deleted is made again: those who have seen it wait for its end.
        match self.refresh(found.as_ref(), &held).await {
            // Once more in the next round.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.version = found.or(Some(base));
                Err(kube::Error::Api(status))
            }
            result => result.map(Some),
        }
    }

    async fn refresh(&mut self, base: Option<&Version>, held: &Record) -> Result<Instant, kube::Error> {
        let sent = Instant::now();
        let now = self.clock.now();
        let renewed = Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now);
        let record = Record { renewed: Some(renewed), duration: self.timings.lease, ..held.clone() };
        self.version = Some(self.lease.write(base, &record).await?);
        Ok(sent)
    }

    /// Gives the lease back, so that another replica need not wait for its end. If that fails, it ends by itself.
    async fn give_back(&mut self) {
        let until = Instant::now() + self.timings.request();
        let given = timeout_at(until, async {
            let Some(found) = self.lease.read().await? else { return Ok(()) };
            let Some(held) = self.version.as_ref().map(Version::record) else { return Ok(()) };
            if !found.record().same_term(&held) {
                return Ok(());
            }
            let record = Record { holder: String::new(), duration: RELEASED, ..found.record() };
            self.lease.write(Some(&found), &record).await.map(drop)
        });
        match given.await {
            Ok(Ok(())) => tracing::info!(lease = self.lease.name(), "lease given back"),
            Ok(Err(error)) => {
                let error = Error::from(error);
                tracing::warn!(lease = self.lease.name(), %error, "the lease was not given back, it will expire");
            }
            Err(_) => {
                tracing::warn!(lease = self.lease.name(), "the lease was not given back, it will expire");
            }
        }
    }

    /// Says a failure when it is another one than before.
    fn report(&mut self, what: &str, error: kube::Error) {
        let error = Error::from(error).to_string();
        if self.trouble.as_ref() != Some(&error) {
            tracing::warn!(lease = self.lease.name(), error, "{what}");
            self.trouble = Some(error);
        }
    }
}
