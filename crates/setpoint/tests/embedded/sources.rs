use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt as _;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::{Value, json};
use setpoint::{
    Action, AnyController, Cause, Channel, Context, Controller, Key, Predicate, Reconciler, Result, Runtime,
    Scope, Trigger, Watch, annotations_changed, generation_changed, labels_changed, minutes,
    resource_version_changed,
};
use setpoint_apiserver::{ApiServer, Identity};
use tokio_util::sync::CancellationToken;

use crate::seen::Seen;
use crate::world::{Website, World, is_simulated, later, settle};

/// Runs a controller with this predicate through one change after the other; gives which of them counted.
async fn which_count(predicate: Predicate<Website>) -> Vec<&'static str> {
    let mut world = World::new().await;
    let controller = Controller::new(Seen::default()).when(predicate);
    let seen = controller.reconciler();
    world.start(controller);
    let mut counted = Vec::new();
    settle().await;
    world.create_site("a", "x").await;
    settle().await;
    if !seen.take().is_empty() {
        counted.push("create");
    }
    let changes: [(&str, Value); 3] = [
        ("spec", json!({ "spec": { "text": "y" } })),
        ("label", json!({ "metadata": { "labels": { "l": "1" } } })),
        ("annotation", json!({ "metadata": { "annotations": { "a": "1" } } })),
    ];
    for (what, change) in changes {
        world.sites().patch("a", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
        settle().await;
        if !seen.take().is_empty() {
            counted.push(what);
        }
    }
    let status = Patch::Merge(json!({ "status": { "text": "z" } }));
    world.sites().patch_status("a", &PatchParams::default(), &status).await.unwrap();
    settle().await;
    if !seen.take().is_empty() {
        counted.push("status");
    }
    world.stop().await;
    counted
}

#[tokio::test(start_paused = true)]
async fn predicates_choose_the_changes_that_count() {
    let all = ["create", "spec", "label", "annotation", "status"];
    assert_eq!(which_count(resource_version_changed()).await, all);
    assert_eq!(which_count(generation_changed()).await, ["create", "spec"]);
    assert_eq!(which_count(labels_changed()).await, ["create", "label"]);
    assert_eq!(which_count(annotations_changed()).await, ["create", "annotation"]);
    let either = generation_changed().or(annotations_changed());
    assert_eq!(which_count(either).await, ["create", "spec", "annotation"]);
    assert_eq!(which_count(generation_changed().and(labels_changed())).await, ["create"]);
    assert_eq!(which_count(generation_changed().not()).await, ["label", "annotation", "status"]);
    let custom = Predicate::new(|change: setpoint::Change<'_, Website>| {
        change.new.is_some_and(|site| site.status.is_some())
    });
    assert_eq!(which_count(custom).await, ["status"]);
}

#[tokio::test(start_paused = true)]
async fn a_predicate_of_a_watch_is_for_that_watch() {
    let mut world = World::new().await;
    let owned = Watch::<ConfigMap>::new().when(labels_changed());
    let controller = Controller::new(Seen::default()).owns_as(owned);
    let seen = controller.reconciler();
    world.start(controller);
    let site = world.create_site("a", "x").await;
    let mut page = crate::world::page(&site);
    page.metadata.owner_references = Some(vec![kube::Resource::controller_owner_ref(&site, &()).unwrap()]);
    world.pages().create(&PostParams::default(), &page).await.unwrap();
    settle().await;
    seen.take();
    for (change, expected) in [
        (json!({ "data": { "index.html": "y" } }), 0),
        (json!({ "metadata": { "labels": { "l": "1" } } }), 1),
    ] {
        world.pages().patch("a", &PatchParams::default(), &Patch::Merge(change.clone())).await.unwrap();
        settle().await;
        assert_eq!(seen.take().len(), expected, "{change}");
    }
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_channel_triggers_from_outside_and_survives_a_restart() {
    let mut world = World::new().await;
    let channel = Channel::new();
    let key = || Key::new("default", "a");
    // Nobody listens: nothing is kept.
    channel.send((key(), Cause::source("too early")));
    world.create_site("a", "x").await;
    for round in 0..2 {
        let controller = Controller::new(Seen::default()).channel(&channel);
        let seen = controller.reconciler();
        world.start(controller);
        settle().await;
        assert_eq!(seen.take(), ["a: found at the start: Website.example.com default/a"], "round {round}");
        channel.send((key(), Cause::source("called")));
        channel.clone().send(Trigger::later(key(), Cause::source("called for later"), later()));
        settle().await;
        assert_eq!(seen.take(), ["a: called"]);
        settle().await;
        settle().await;
        assert_eq!(seen.take(), ["a: called for later"]);
        world.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_resync_looks_at_every_object() {
    if !is_simulated() {
        return;
    }
    let mut world = World::new().await;
    let controller = Controller::new(Seen::default()).resync(minutes(10));
    let seen = controller.reconciler();
    for name in ["a", "b"] {
        world.create_site(name, "x").await;
    }
    world.start(controller);
    settle().await;
    assert_eq!(seen.take().len(), 2);
    tokio::time::sleep(minutes(9)).await;
    assert_eq!(seen.take(), Vec::<String>::new());
    tokio::time::sleep(minutes(11)).await;
    let mut runs = seen.take();
    runs.sort();
    assert_eq!(runs, ["a: resync", "a: resync", "b: resync", "b: resync"]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_clusters_objects_trigger_and_can_be_read() {
    /// Reads the Secret of its name in the other cluster.
    struct Remote(Runtime, Mutex<Vec<String>>);
    impl Reconciler for Remote {
        type Object = Website;
        async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            let name = site.name_any();
            let secret = self.0.caches().get::<Secret>(&Key::new("shared", &name));
            let here = cx.get::<Secret>(name.as_str()).await.is_ok();
            let version = secret.map(|secret| secret.labels()["version"].clone());
            self.1.lock().push(format!("{name}: {version:?}, read here: {here}"));
            Ok(Action::await_change())
        }
    }
    let mut world = World::new().await;
    let other = ApiServer::builder().entropy(setpoint_clock::Entropy::seeded(3)).build();
    let other = kube::Client::new(other.service(Identity::admin()), "default");
    let namespace = json!({ "metadata": { "name": "shared" } });
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(other.clone());
    namespaces.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(other.clone(), "shared");
    let labelled = |version: &str| Secret {
        metadata: ObjectMeta {
            name: Some("a".to_owned()),
            labels: Some([("version".to_owned(), version.to_owned())].into()),
            ..ObjectMeta::default()
        },
        ..Secret::default()
    };
    secrets.create(&PostParams::default(), &labelled("1")).await.unwrap();
    world.create_site("a", "x").await;

    let elsewhere = Runtime::builder(other).scope(Scope::parse("shared")).build();
    let watch = Watch::<Secret>::new().elsewhere(&elsewhere);
    let controller = Controller::new(Remote(elsewhere, Mutex::default())).watches_as(watch, |old, new, _| {
        let name = new.or(old).map(kube::ResourceExt::name_any).unwrap_or_default();
        vec![Key::new("default", name)]
    });
    let remote = controller.reconciler();
    let controller = AnyController::from(controller);
    assert!(
        !controller.declared().iter().any(|(target, _)| target.resource == "secrets"),
        "rights in another cluster are no rights here"
    );
    world.start(controller);
    settle().await;
    let change = Patch::Merge(json!({ "metadata": { "labels": { "version": "2" } } }));
    secrets.patch("a", &PatchParams::default(), &change).await.unwrap();
    settle().await;
    assert_eq!(*remote.1.lock(), ["a: Some(\"1\"), read here: false", "a: Some(\"2\"), read here: false"]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_source_starts_when_the_caches_are_filled_and_ends_with_the_controller() {
    if !is_simulated() {
        return;
    }
    let mut world = World::new().await;
    world.create_site("a", "x").await;
    let running = CancellationToken::new();
    let source = running.clone();
    let controller = Controller::new(Seen::default()).source(move || {
        let guard = source.clone().drop_guard();
        async_ticks(guard)
    });
    let seen = controller.reconciler();
    world.start(controller);
    tokio::time::sleep(Duration::from_secs(35)).await;
    let runs = seen.take();
    assert_eq!(runs.iter().filter(|run| run.contains("tick")).count(), 3, "{runs:?}");
    assert!(!running.is_cancelled());
    world.stop().await;
    assert!(running.is_cancelled(), "the stream is dropped");
}

/// A tick each 10 s that holds on to `guard`.
fn async_ticks(
    guard: tokio_util::sync::DropGuard,
) -> impl futures::Stream<Item = (Key, Cause)> + Send + 'static {
    futures::stream::unfold(guard, async |guard| {
        tokio::time::sleep(Duration::from_secs(10)).await;
        Some(((Key::new("default", "a"), Cause::source("tick")), guard))
    })
}
