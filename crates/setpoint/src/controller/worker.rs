use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::ObjectReference;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{Instant, timeout};
use tracing::Instrument as _;

use super::inbox::Inbox;
use super::{CleanupFn, Controller, Identity, undecodable};
use crate::cache::Cache;
use crate::context::Access;
use crate::queue::{Outcome, Popped};
use crate::report::Journal;
use crate::store::Payload;
use crate::{
    Action, Context, Ended, Error, Event, Key, ObjectRef, Patch, Reconciled, Reconciler, Report, Result,
    Retry, Runtime, traces,
};

/// Runs keys, one at a time in each task that [`serve`](Worker::serve)s.
pub(super) struct Worker<R: Reconciler> {
    pub(super) controller: Arc<Controller<R>>,
    pub(super) cache: Arc<Cache<R::Object>>,
    pub(super) identity: Arc<Identity>,
    pub(super) runtime: Runtime,
}

/// So many failures in a row are worth an event: one or two are ordinary life.
const FAILURES: u32 = 3;
/// A conflict says that somebody else was faster, which may happen some times in a row.
const CONFLICTS: u32 = 10;
/// The reason of the event that a failed cleanup records by itself.
const CLEANUP_FAILED: &str = "CleanupFailed";

/// A pass that failed.
struct Failed {
    text: String,
    /// In CamelCase.
    reason: String,
    conflict: bool,
}

impl Failed {
    /// A pass that did not end by itself.
    fn broken(reason: &str, text: String) -> Self {
        Self { text, reason: reason.to_owned(), conflict: false }
    }
}

/// What a pass came to.
enum Pass {
    /// The object does not exist.
    Gone,
    Succeeded(Action),
}

impl<R: Reconciler> Worker<R> {
    pub(super) fn name(&self) -> &str {
        &self.identity.name
    }

    /// Works until nothing is popped any more.
    pub(super) async fn serve(self: Arc<Self>, inbox: Arc<Inbox>) {
        while let Some(popped) = inbox.next().await {
            let key = popped.key.clone();
            let outcome = match AssertUnwindSafe(self.reported(popped)).catch_unwind().await {
                Ok((outcome, report)) => {
                    self.runtime.reports().note(report);
                    outcome
                }
                // No reconcile of the author's, which are guarded: an observer.
                Err(_) => Outcome::Error,
            };
            inbox.finish(&key, outcome);
            // A reconcile that waits for nothing must not keep others from their turn.
            tokio::task::yield_now().await;
        }
    }

    /// One pass, and what is to be told about it.
    pub(super) async fn reported(&self, popped: Popped) -> (Outcome, Report) {
        let key = popped.key.clone();
        let causes = popped.causes.clone();
        let id = self.runtime.entropy().uuid();
        let span = tracing::info_span!(
            "reconcile",
            controller = self.name(),
            namespace = key.namespace,
            name = key.name,
            reconcile_id = id
        );
        traces::causes(&span, &causes.kept);
        let observer = self.runtime.observer();
        observer.reconcile_started(self.name());
        let (begun, began) = (Instant::now(), self.runtime.clock().now());
        let journal = Arc::new(Mutex::new(Journal::default()));
        let pass = self.guarded(popped, id.clone(), Arc::clone(&journal));
        let (outcome, ended, failed) = pass.instrument(span.clone()).await;
        let error = failed.as_ref().map(|failed| failed.text.clone());
        traces::ended(&span, ended, error.as_deref());
        let times = self.runtime.failures().note(&self.identity.name, &key, error.clone());
        if let Some(failed) = failed {
            self.warn(&key, failed, times, outcome == Outcome::Terminal, &journal);
        }
        let took = begun.elapsed();
        observer.reconcile_finished(self.name(), ended, took);
        let Journal { writes, events } = std::mem::take(&mut *journal.lock());
        let report = Report {
            controller: self.name().to_owned(),
            object: ObjectRef::new(self.controller.kind.clone(), key),
            id,
            causes: causes.kept,
            more_causes: causes.more,
            writes,
            more_writes: 0,
            events,
            began,
            took,
            ended: match (outcome, error) {
                (_, Some(error)) => Ended::Failed { error, terminal: outcome == Outcome::Terminal },
                (Outcome::Gone, None) => Ended::Gone,
                (Outcome::After(delay), None) => Ended::Succeeded(Action::requeue(delay)),
                (Outcome::Success | Outcome::Error | Outcome::Terminal, None) => {
                    Ended::Succeeded(Action::await_change())
                }
            },
        };
        (outcome, report)
    }

    /// One pass, with its time limit; a panic is an error of this key only.
    async fn guarded(
        &self,
        popped: Popped,
        id: String,
        journal: Arc<Mutex<Journal>>,
    ) -> (Outcome, Reconciled, Option<Failed>) {
        let pass = timeout(self.controller.time_limit, self.pass(popped, id, journal));
        match AssertUnwindSafe(pass).catch_unwind().await {
            Ok(Ok(Ok(Pass::Gone))) => (Outcome::Gone, Reconciled::Success, None),
            Ok(Ok(Ok(Pass::Succeeded(action)))) => match action.delay() {
                Some(delay) => (Outcome::After(delay), Reconciled::RequeueAfter, None),
                None => (Outcome::Success, Reconciled::Success, None),
            },
            Ok(Ok(Err(error))) => {
                let reason = error.reason_or_default();
                match error.retry() {
                    // Somebody was faster: ordinary life of optimistic locking.
                    Retry::BackOff if error.is_conflict() => tracing::info!(%error, "conflict, runs again"),
                    Retry::Never => {
                        tracing::error!(%error, reason, "reconcile failed, waits for a new generation");
                    }
                    _ => tracing::warn!(%error, reason, "reconcile failed"),
                }
                let text = Some(Failed {
                    text: error.to_string(),
                    reason: reason.to_owned(),
                    conflict: error.is_conflict(),
                });
                match error.retry() {
                    Retry::BackOff => (Outcome::Error, Reconciled::Error, text),
                    Retry::After(delay) => (Outcome::After(delay), Reconciled::Error, text),
                    Retry::Never => (Outcome::Terminal, Reconciled::Terminal, text),
                }
            }
            Ok(Err(_)) => {
                tracing::error!(limit = ?self.controller.time_limit, "reconcile ran into its time limit and was dropped");
                let text = format!("ran into its time limit of {:?}", self.controller.time_limit);
                (Outcome::Error, Reconciled::TimedOut, Some(Failed::broken("TimedOut", text)))
            }
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().copied();
                let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
                let text = text.unwrap_or("(no text)");
                tracing::error!(panic = text, "reconcile panicked");
                (
                    Outcome::Error,
                    Reconciled::Panic,
                    Some(Failed::broken("Panicked", format!("panicked: {text}"))),
                )
            }
        }
    }

    /// A warning event about an object whose reconcile keeps failing, or waits for somebody to change it. That it is said
    /// again is for the recorder to bound: it makes a series of it.
    fn warn(&self, key: &Key, failed: Failed, times: u32, terminal: bool, journal: &Mutex<Journal>) {
        let limit = if failed.conflict { CONFLICTS } else { FAILURES };
        let said = journal.lock().events.iter().any(|event| event.reason == CLEANUP_FAILED);
        if !terminal && times < limit || said || self.runtime.dry_run() {
            return;
        }
        let uid = self.cache.read(key, |store| store.visible(key).map(|record| record.uid.to_string()));
        let Some(uid) = uid.flatten() else { return };
        let about = ObjectReference {
            api_version: Some(self.controller.kind.api_version()),
            kind: Some(self.controller.kind.kind.clone()),
            namespace: key.namespace.clone(),
            name: Some(key.name.clone()),
            uid: Some(uid),
            ..ObjectReference::default()
        };
        let event = Event::warning(failed.reason, failed.text);
        journal.lock().events.push(event.clone());
        self.runtime.recorder().record(self.name(), &about, event);
    }

    async fn pass(&self, popped: Popped, id: String, journal: Arc<Mutex<Journal>>) -> Result<Pass> {
        let key = popped.key;
        for cause in &popped.causes.kept {
            tracing::debug!(%cause, "runs because");
        }
        let mut access = Access {
            runtime: self.runtime.clone(),
            controller: Arc::clone(&self.identity),
            owner: ObjectRef::new(self.controller.kind.clone(), key.clone()),
            version: Mutex::new(None),
            causes: popped.causes.kept,
            more_causes: popped.causes.more,
            reconcile_id: id,
            term: self.runtime.term(),
            journal,
        };
        access.settle(&*self.cache, Some(&key)).await?;
        let read = self.cache.read(&key, |store| {
            let record = store.visible(&key)?;
            let reported = undecodable::is_reported(&record.prints, &self.identity);
            Some((record.uid.clone(), record.version.text(), record.payload.clone(), reported))
        });
        let Some((uid, version, payload, reported)) = read.flatten() else {
            self.identity.works.forget(&key);
            self.controller.gone.iter().for_each(|forget| forget(&key));
            return Ok(Pass::Gone);
        };
        access.owner.uid = Some(uid.into());
        access.version = Mutex::new(Some(version));
        if let Payload::Undecodable(problem) = &payload {
            // Nothing to do before somebody changes it; the others go on.
            undecodable::report(&access, problem).await?;
            return Ok(Pass::Succeeded(Action::await_change()));
        }
        let Some(mut object) = payload.object() else { return Ok(Pass::Succeeded(Action::await_change())) };
        if reported {
            object = undecodable::withdraw(&access, object).await?;
        }
        let action = match &self.controller.finalizer {
            Some((finalizer, cleanup)) => self.finalized(object, access, finalizer, *cleanup).await?,
            None => {
                self.controller
                    .reconciler
                    .reconcile(Arc::clone(&object), &Context::new(object, access))
                    .await?
            }
        };
        Ok(Pass::Succeeded(action))
    }

    /// A pass of a controller with a finalizer: that is added before the first reconcile, and removed when
    /// the cleanup has nothing left to do.
    async fn finalized(
        &self,
        object: Arc<R::Object>,
        access: Access,
        finalizer: &str,
        cleanup: CleanupFn<R>,
    ) -> Result<Action> {
        let meta = kube::Resource::meta(&*object);
        let finalizers = meta.finalizers.clone().unwrap_or_default();
        let ours = finalizers.iter().any(|name| name == finalizer);
        if meta.deletion_timestamp.is_none() {
            if ours {
                return self
                    .controller
                    .reconciler
                    .reconcile(Arc::clone(&object), &Context::new(object, access))
                    .await;
            }
            let with = finalizers.into_iter().chain([finalizer.to_owned()]).collect();
            let answer = set_finalizers(&access, with).await?;
            let object = crate::context::object::<R::Object>(&self.controller.kind, &answer)?;
            return self
                .controller
                .reconciler
                .reconcile(Arc::clone(&object), &Context::new(object, access))
                .await;
        }
        if !ours {
            return Ok(Action::await_change());
        }
        let cx = Context::new(Arc::clone(&object), access);
        let action = match cleanup(&self.controller.reconciler, object, &cx).await {
            Ok(action) => action,
            Err(error) => {
                if !error.is_conflict() {
                    cx.event(Event::warning(CLEANUP_FAILED, error.to_string()).action("Cleanup"));
                }
                // A cleanup is retried until it is done: its object waits for nothing else.
                return Err(error.retried());
            }
        };
        if action.delay().is_none() {
            let without = finalizers.into_iter().filter(|name| name != finalizer).collect();
            match set_finalizers(cx.access(), without).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        Ok(action)
    }
}

/// Replaces the finalizers, if the object is still as it was read.
async fn set_finalizers(access: &Access, finalizers: Vec<String>) -> Result<String, Error> {
    let version = access.version.lock().clone();
    let patch = json!({ "metadata": { "resourceVersion": version, "finalizers": finalizers } });
    access.patch(&access.owner.kind, &access.owner.key, None, &Patch::Merge(patch)).await
}
