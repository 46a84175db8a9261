use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kube::ResourceExt as _;
use kube::api::DeleteParams;
use parking_lot::Mutex;
use setpoint::{Action, Background, Context, Controller, Error, Reconciler, Result};

use crate::world::{Website, World, settle};

/// Copies the text of a site somewhere, for as many seconds as it says.
#[derive(Default)]
struct Copies {
    seen: Mutex<Vec<String>>,
    running: Arc<AtomicUsize>,
}

/// Counts what runs.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Reconciler for Copies {
    type Object = Website;

    async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
        let text = site.spec.text.clone();
        let running = Arc::clone(&self.running);
        let state = cx.background("copy", move || {
            running.fetch_add(1, Ordering::Relaxed);
            let running = Running(running);
            async move {
                let _running = running;
                match text.as_str() {
                    "fail" => Err(Error::msg("the disk is full")),
                    "panic" => panic!("no such thing"),
                    "ever" => std::future::pending().await,
                    _ => {
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        Ok(())
                    }
                }
            }
        });
        let causes: Vec<String> = cx.causes().iter().map(ToString::to_string).collect();
        self.seen.lock().push(match state {
            Background::Started => format!("{} started", site.name_any()),
            Background::Running => format!("{} running", site.name_any()),
            Background::Ended(Ok(())) => format!("{} done: {}", site.name_any(), causes.join(", ")),
            Background::Ended(Err(error)) => format!("{} failed: {error}", site.name_any()),
        });
        Ok(Action::await_change())
    }
}

#[tokio::test(start_paused = true)]
async fn background_work_ends_with_a_further_run() {
    let mut world = World::new().await;
    let controller = Controller::new(Copies::default());
    let copies = controller.reconciler();
    world.start(controller);
    for text in ["fine", "fail", "panic"] {
        world.create_site(text, text).await;
    }
    settle().await;
    let mut seen = copies.seen.lock().clone();
    seen.sort();
    assert_eq!(
        seen,
        [
            "fail failed: the disk is full",
            "fail started",
            "fine done: background work copy has ended",
            "fine started",
            "panic failed: the background work panicked",
            "panic started",
        ]
    );
    assert_eq!(copies.running.load(Ordering::Relaxed), 0);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn background_work_goes_with_its_object_and_with_the_controller() {
    let mut world = World::new().await;
    let controller = Controller::new(Copies::default());
    let copies = controller.reconciler();
    world.start(controller);
    let running = || copies.running.load(Ordering::Relaxed);
    for name in ["a", "b"] {
        world.create_site(name, "ever").await;
    }
    settle().await;
    assert_eq!(running(), 2);
    let label = kube::api::Patch::Merge(serde_json::json!({ "metadata": { "labels": { "x": "y" } } }));
    world.sites().patch("a", &kube::api::PatchParams::default(), &label).await.unwrap();
    settle().await;
    assert_eq!((running(), copies.seen.lock().last().unwrap().as_str()), (2, "a running"));
    world.sites().delete("a", &DeleteParams::default()).await.unwrap();
    settle().await;
    assert_eq!(running(), 1);
    world.stop().await;
    settle().await;
    assert_eq!(running(), 0);
}
