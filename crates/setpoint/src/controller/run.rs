use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures::StreamExt as _;
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::identity::Declared;
use super::inbox::Inbox;
use super::watch::{Lookup, Setup, Wiring, primary};
use super::worker::{Done, Worker};
use super::{Controller, Identity};
use crate::{Reconciler, Result, Runtime};

/// What the controller's loop woke up for.
enum Woken {
    Stop,
    Done(Done),
    /// Something was added, or a timer is due.
    Queue,
}

/// Opens the caches, subscribes the handlers, waits for the first lists, and works until `stop`.
pub(super) async fn run<R: Reconciler>(
    mut controller: Controller<R>,
    runtime: Runtime,
    stop: CancellationToken,
) -> Result<()> {
    if let Some(start) = controller.start.take()
        && stop.run_until_cancelled(start).await.is_none()
    {
        return Ok(());
    }
    let name: Arc<str> = controller.name.as_str().into();
    let cache = runtime.caches().open::<R::Object>(&controller.kind, &controller.selector);
    let mut caches = vec![Declared::new(&cache)];
    let (mut subscribers, mut indexes) = (Vec::new(), Vec::new());
    for setup in controller.watches {
        match setup {
            Setup::Watch(open) => {
                let (declared, subscribe) = open(runtime.caches());
                caches.push(declared);
                subscribers.push(subscribe);
            }
            Setup::Index(add) => indexes.push(add),
        }
    }
    for add in indexes {
        add(&caches)?;
    }
    let inbox = Arc::new(Inbox::new(Arc::clone(&name), runtime.clone()));
    let lookup = Lookup { caches: Arc::new(caches.clone()) };
    let wiring = Wiring { controller: Arc::clone(&name), inbox: Arc::clone(&inbox), lookup };
    runtime.observer().controller_started(&name, controller.concurrency);
    let mut synced = vec![primary(Arc::clone(&cache), controller.predicate, &wiring)];
    synced.extend(subscribers.into_iter().map(|subscribe| subscribe(&wiring)));
    if stop.run_until_cancelled(futures::future::join_all(synced)).await.is_none() {
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
    let worker = Arc::new(Worker {
        reconciler: controller.reconciler,
        cache,
        kind: controller.kind,
        finalizer: controller.finalizer,
        gone: controller.gone,
        time_limit: controller.time_limit,
        identity: Arc::new(Identity {
            field_manager: controller.field_manager.unwrap_or_else(|| name.to_string()),
            name,
            rights: controller.rights,
            caches,
        }),
        runtime: runtime.clone(),
    });
    let mut running = JoinSet::new();
    let mut stopped = pin!(stop.cancelled());
    loop {
        while running.len() < controller.concurrency
            && let Some(popped) = inbox.pop()
        {
            running.spawn(Arc::clone(&worker).work(popped));
        }
        inbox.report_depth();
        match wait(&inbox, &mut running, stopped.as_mut()).await {
            Woken::Stop => break,
            Woken::Done(done) => inbox.finish(&done.key, done.outcome),
            Woken::Queue => {}
        }
    }
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

/// The first of: the stop, an ended reconcile, an add, a timer. In this order when several are there.
async fn wait(
    inbox: &Inbox,
    running: &mut JoinSet<Done>,
    mut stopped: std::pin::Pin<&mut impl Future<Output = ()>>,
) -> Woken {
    let mut added = pin!(inbox.bell().notified());
    let mut timer = pin!(futures::future::OptionFuture::from(inbox.next_wake().map(sleep_until)));
    let has_timer = inbox.next_wake().is_some();
    poll_fn(|cx| {
        if stopped.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Woken::Stop);
        }
        if let Poll::Ready(Some(Ok(done))) = running.poll_join_next(cx) {
            return Poll::Ready(Woken::Done(done));
        }
        if added.as_mut().poll(cx).is_ready() || has_timer && timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Woken::Queue);
        }
        Poll::Pending
    })
    .await
}
