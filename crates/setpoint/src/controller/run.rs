use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::join_all;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::identity::Declared;
use super::inbox::Inbox;
use super::watch::{Lookup, Setup, Subscribe, Wiring, primary};
use super::worker::Worker;
use super::{Controller, Identity};
use crate::background::Wake;
use crate::cache::Cache;
use crate::queue::{Causes, Popped};
use crate::{Cause, Key, Reason, Reconciler, Report, Result, Runtime};

/// What a controller reads and hears, with its watches running.
struct Opened<R: Reconciler> {
    cache: Arc<Cache<R::Object>>,
    caches: Vec<Declared>,
    subscribers: Vec<Subscribe>,
}

/// Opens the caches, once the controller is to start.
async fn open<R: Reconciler>(controller: &Controller<R>, runtime: &Runtime) -> Result<Opened<R>> {
    if let Some(start) = &controller.start {
        start.clone().await;
    }
    let cache = runtime.caches().open::<R::Object>(&controller.kind, &controller.selector);
    let mut caches = vec![Declared::new(&cache)];
    let mut subscribers = Vec::new();
    for setup in &controller.watches {
        if let Setup::Watch(open) = setup {
            let (declared, subscribe) = open(runtime.caches());
            caches.extend(declared);
            subscribers.push(subscribe);
        }
    }
    for setup in &controller.watches {
        if let Setup::Index(add) = setup {
            add(&caches)?;
        }
    }
    Ok(Opened { cache, caches, subscribers })
}

/// Fills the caches, and does nothing else.
pub(super) async fn warm<R: Reconciler>(controller: &Controller<R>, runtime: &Runtime) -> Result<()> {
    let opened = open(controller, runtime).await?;
    join_all(opened.caches.iter().map(|declared| declared.cache().synced())).await;
    tracing::info!(controller = controller.name, "caches are synced, stands by");
    Ok(())
}

/// Reconciles `keys` once, or all objects, one after the other.
pub(super) async fn once<R: Reconciler>(
    controller: Arc<Controller<R>>,
    runtime: Runtime,
    keys: Option<Vec<Key>>,
) -> Result<Vec<Report>> {
    let Opened { cache, caches, .. } = open(&controller, &runtime).await?;
    join_all(caches.iter().map(|declared| declared.cache().synced())).await;
    let keys = keys.unwrap_or_else(|| cache.keys());
    // Without a queue nothing runs again.
    let worker = worker(controller, cache, caches, runtime, Weak::new());
    let mut reports = Vec::new();
    for key in keys {
        let cause = Cause::new(Reason::Initial, None);
        let causes = Causes { kept: vec![cause], more: 0 };
        let popped = Popped { key, causes, waited: Duration::ZERO, failures: 0 };
        reports.push(worker.reported(popped).await.1);
    }
    Ok(reports)
}

fn worker<R: Reconciler>(
    controller: Arc<Controller<R>>,
    cache: Arc<Cache<R::Object>>,
    caches: Vec<Declared>,
    runtime: Runtime,
    inbox: Weak<Inbox>,
) -> Arc<Worker<R>> {
    let wake: Wake = {
        let inbox = Weak::clone(&inbox);
        Arc::new(move |trigger| {
            if let Some(inbox) = inbox.upgrade() {
                inbox.trigger(trigger);
            }
        })
    };
    let name: Arc<str> = controller.name.as_str().into();
    let identity = Identity {
        field_manager: controller.field_manager.clone().unwrap_or_else(|| name.to_string()),
        name,
        declared: controller.declared.clone(),
        caches,
        has_finalizer: controller.finalizer.is_some(),
        works: Arc::default(),
        wake,
        inbox,
    };
    Arc::new(Worker { cache, identity: Arc::new(identity), controller, runtime })
}

/// Opens the caches, subscribes the handlers, waits until the caches are filled and fresh, and works until
/// `stop`.
pub(super) async fn run<R: Reconciler>(
    controller: Arc<Controller<R>>,
    runtime: Runtime,
    stop: CancellationToken,
    workers: usize,
) -> Result<()> {
    let Some(opened) = stop.run_until_cancelled(open(&controller, &runtime)).await else { return Ok(()) };
    let Opened { cache, caches, subscribers } = opened?;
    let name: Arc<str> = controller.name.as_str().into();
    let inbox = Arc::new(Inbox::new(Arc::clone(&name), runtime.clone()));
    let lookup = Lookup { caches: Arc::new(caches.clone()) };
    let wiring = Wiring { controller: Arc::clone(&name), inbox: Arc::clone(&inbox), lookup };
    runtime.observer().controller_started(&name, workers);
    let mut synced = vec![primary(Arc::clone(&cache), controller.predicate.clone(), &wiring)];
    synced.extend(subscribers.into_iter().map(|subscribe| subscribe(&wiring)));
    let ready = async {
        join_all(synced).await;
        if runtime.is_elected() {
            let caches = caches.iter().map(|declared| runtime.caches().catch_up(declared.cache()));
            join_all(caches).await;
        }
    };
    if stop.run_until_cancelled(ready).await.is_none() {
        return Ok(());
    }
    tracing::info!(controller = &*name, kind = %controller.kind, "caches are synced, workers start");

    let mut sources = JoinSet::new();
    for source in &controller.sources {
        let (mut triggers, inbox) = (source(), Arc::clone(&inbox));
        sources.spawn(async move {
            while let Some(trigger) = triggers.next().await {
                inbox.trigger(trigger);
            }
        });
    }
    if let Some(period) = controller.resync {
        let (cache, inbox) = (Arc::clone(&cache), Arc::clone(&inbox));
        sources.spawn(async move {
            let mut ticks = tokio::time::interval_at(Instant::now() + period, period);
            loop {
                ticks.tick().await;
                inbox.resync(cache.keys());
            }
        });
    }
    let worker = worker(controller, cache, caches, runtime.clone(), Arc::downgrade(&inbox));
    let mut running = JoinSet::new();
    for _ in 0..workers {
        running.spawn(Arc::clone(&worker).serve(Arc::clone(&inbox)));
    }
    stop.run_until_cancelled(inbox.keep_time()).await;
    // Sources stop, nothing more is popped, what runs gets its grace, then it is dropped.
    sources.shutdown().await;
    inbox.stop();
    let finished = async { while running.join_next().await.is_some() {} };
    if tokio::time::timeout(runtime.grace(), finished).await.is_err() {
        tracing::warn!(
            controller = worker.name(),
            "reconciles did not end within the grace period and are dropped"
        );
    }
    Ok(())
}
