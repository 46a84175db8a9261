use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kube::ResourceExt as _;
use kube::api::DeleteParams;
use parking_lot::Mutex;
use setpoint::{Action, Cleanup, Context, Controller, Error, Reconciler, Result, seconds};

use crate::world::{Website, World, eventually, settle};

const FINALIZER: &str = "example.com/dns";

/// Keeps names in a place outside the cluster.
#[derive(Default)]
struct Dns {
    names: Mutex<Vec<String>>,
    cleanups: AtomicUsize,
}

impl Reconciler for Dns {
    type Object = Website;

    async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
        assert_eq!(site.finalizers(), [FINALIZER], "it is there before the first outside effect");
        let live = cx.live::<Website>(site.name_any()).await?.expect("exists");
        assert_eq!(live.finalizers(), [FINALIZER]);
        self.names.lock().push(site.name_any());
        Ok(Action::await_change())
    }
}

impl Cleanup for Dns {
    async fn cleanup(&self, site: Arc<Website>, _cx: &Context<Website>) -> Result<Action> {
        match self.cleanups.fetch_add(1, Ordering::Relaxed) {
            0 => Err(Error::msg("the DNS server does not answer").terminal()),
            1 => Ok(Action::requeue(seconds(10))),
            _ => {
                self.names.lock().retain(|name| *name != site.name_any());
                Ok(Action::await_change())
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_comes_first_and_goes_last() {
    let mut world = World::new().await;
    let gone = Arc::<Mutex<Vec<String>>>::default();
    let forget = Arc::clone(&gone);
    let controller = Controller::new(Dns::default())
        .finalizer(FINALIZER)
        .gone(move |key| forget.lock().push(key.to_string()));
    let dns = controller.reconciler();
    world.start(controller);
    world.create_site("a", "x").await;
    settle().await;
    let mut names = dns.names.lock().clone();
    // In real time the event of the finalizer may be here before the answer to its write, and is news then.
    names.dedup();
    assert_eq!(names, ["a"]);
    world.sites().delete("a", &DeleteParams::default()).await.unwrap();
    eventually("the site is gone", || async {
        match world.sites().get_opt("a").await.unwrap() {
            None => Ok(()),
            Some(site) => Err(site),
        }
    })
    .await;
    settle().await;
    assert!(dns.names.lock().is_empty());
    assert_eq!(dns.cleanups.load(Ordering::Relaxed), 3);
    assert_eq!(world.events.all(), ["Website/a CleanupFailed: the DNS server does not answer"]);
    assert_eq!(*gone.lock(), ["default/a"]);
    world.stop().await;
}
