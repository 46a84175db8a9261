use std::sync::Arc;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use setpoint::{
    Action, Cause, Context, Controller, Key, Reconciler, Result, Runtime, Trigger, by_index,
    generation_changed,
};
use tokio_util::sync::CancellationToken;

use crate::seen::Seen;
use crate::world::{Website, WebsiteSpec, World, later, settle};

#[tokio::test(start_paused = true)]
async fn an_index_maps_changes_of_another_kind() {
    let mut world = World::new().await;
    let controller = Controller::new(Seen::default())
        .watches::<Node>(by_index::<Website, Node>("node"))
        .index("node", |site: &Website| site.spec.node.iter().cloned().collect())
        .when(generation_changed());
    let seen = controller.reconciler();
    world.start(controller);
    for (name, node) in [("a", Some("n1")), ("b", Some("n2")), ("c", None)] {
        let spec = WebsiteSpec { text: String::new(), node: node.map(str::to_owned) };
        world.sites().create(&PostParams::default(), &Website::new(name, spec)).await.unwrap();
    }
    settle().await;
    seen.take();
    let nodes: Api<Node> = Api::all(world.client.clone());
    let mut node = Node::default();
    node.metadata.name = Some("n2".to_owned());
    nodes.create(&PostParams::default(), &node).await.unwrap();
    settle().await;
    assert_eq!(seen.take(), ["b: added: Node n2"]);
    let label = Patch::Merge(json!({ "metadata": { "labels": { "x": "y" } } }));
    world.sites().patch("a", &PatchParams::default(), &label).await.unwrap();
    settle().await;
    assert_eq!(seen.take(), Vec::<String>::new(), "a label is no new generation");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn sources_trigger_now_and_later() {
    let mut world = World::new().await;
    let controller = Controller::new(Seen::default()).source(|| {
        let key = || Key::new("default", "a");
        let now = Trigger::from((key(), Cause::source("called")));
        let later = Trigger::later(key(), Cause::source("clock"), later());
        futures::stream::iter([now, later]).chain(futures::stream::pending())
    });
    world.create_site("a", "x").await;
    let seen = controller.reconciler();
    world.start(controller);
    settle().await;
    let first = seen.take().join("; ");
    assert!(first.contains("found at the start") && first.contains("called"), "{first}");
    settle().await;
    settle().await;
    assert_eq!(seen.take(), ["a: clock"]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_controller_starts_its_watches_when_it_is_told_to() {
    let mut world = World::new().await;
    let start = CancellationToken::new();
    let wait = start.clone();
    let controller = Controller::new(Seen::default())
        .owns::<ConfigMap>()
        .start_when(async move { wait.cancelled().await });
    let seen = controller.reconciler();
    world.create_site("a", "x").await;
    world.start(controller);
    settle().await;
    assert_eq!(seen.take(), Vec::<String>::new());
    start.cancel();
    settle().await;
    assert_eq!(seen.take().len(), 1);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn controllers_share_caches_and_hear_each_others_writes_once() {
    struct Labels;
    impl Reconciler for Labels {
        type Object = Website;
        async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            if !site.labels().contains_key("seen") {
                cx.patch::<Website>(site.name_any(), setpoint::Patch::label("seen", Some("yes"))).await?;
            }
            Ok(Action::await_change())
        }
    }
    let world = World::new().await;
    let runtime: Runtime = world.runtime();
    let stop = CancellationToken::new();
    let watcher = Controller::new(Seen::default()).named("watcher");
    let seen = watcher.reconciler();
    let writer = Controller::new(Labels).named("writer").uses::<Website>(&[setpoint::Verb::Patch]);
    let running = [watcher.into(), setpoint::AnyController::from(writer)]
        .map(|controller| tokio::spawn(controller.run(runtime.clone(), stop.clone())));
    settle().await;
    world.create_site("a", "x").await;
    settle().await;
    assert_eq!(runtime.caches().health().len(), 1, "{:?}", runtime.caches());
    let runs = seen.take().join("; ");
    assert_eq!(runs.matches("added").count(), 1, "{runs}");
    assert_eq!(runs.matches("changed").count(), 1, "{runs}");
    stop.cancel();
    for running in running {
        running.await.unwrap().unwrap();
    }
}

/// What a source says is news: it goes before the objects that are looked at for the first time.
#[tokio::test(start_paused = true)]
async fn sources_go_before_what_was_found_at_the_start() {
    let mut world = World::new().await;
    for number in 0..12 {
        world.create_site(&format!("a{number:02}"), "x").await;
    }
    world.create_site("z", "x").await;
    let controller = Controller::new(Seen::default()).concurrency(1).source(|| {
        let now = Trigger::from((Key::new("default", "z"), Cause::source("called")));
        futures::stream::iter([now]).chain(futures::stream::pending())
    });
    let seen = controller.reconciler();
    world.start(controller);
    settle().await;
    let runs = seen.take();
    let place = runs.iter().position(|run| run.starts_with("z: ")).unwrap();
    assert!(place < 4 && runs.len() == 13, "{runs:?}");
    world.stop().await;
}
