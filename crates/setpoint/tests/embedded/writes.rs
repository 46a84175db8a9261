use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::json;
use setpoint::{Action, Context, Controller, Reconciler, Result, Selector, Verb, Watch};
use tokio::time::Instant;

use crate::world::{Website, World, eventually, is_simulated, page, page_text, settle};

/// Changes a page behind the controller's back: its cache is one version late.
async fn edit(pages: &Api<ConfigMap>, text: &str) -> Result<()> {
    let edit = Patch::Merge(json!({ "data": { "index.html": text } }));
    pages.patch("a", &PatchParams::default(), &edit).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_write_only_if_unchanged_is_a_conflict_after_a_change() {
    struct Careful(Api<ConfigMap>, Mutex<Vec<&'static str>>);
    impl Reconciler for Careful {
        type Object = Website;
        async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            let Some(old) = cx.get::<ConfigMap>("a").await? else {
                // Nothing there yet: nothing that could have changed.
                cx.apply(page(&site)).if_unchanged().await?;
                return Ok(Action::await_change());
            };
            if page_text(&old) == Some(&site.spec.text) || self.1.lock().len() == 3 {
                return Ok(Action::await_change());
            }
            edit(&self.0, "theirs").await?;
            let apply = cx.apply(page(&site)).if_unchanged().await.unwrap_err();
            let delete = cx.delete(&*old).if_unchanged().await.unwrap_err();
            let mut new = (*old).clone();
            new.data = None;
            let replace = cx.replace(new).await.unwrap_err();
            for (what, error) in [("apply", apply), ("delete", delete), ("replace", replace)] {
                assert!(error.is_conflict(), "{what}: {error}");
                self.1.lock().push(what);
            }
            Ok(Action::await_change())
        }
    }
    // In real time the watch may tell the cache before the apply: then it is no change.
    if !is_simulated() {
        return;
    }
    let mut world = World::new().await;
    world.create_site("a", "ours").await;
    let careful = Careful(world.pages(), Mutex::default());
    let controller =
        Controller::new(careful).owns::<ConfigMap>().uses::<ConfigMap>(&[Verb::Delete, Verb::Update]);
    let careful = controller.reconciler();
    world.start(controller);
    world.page_has("a", "ours").await;
    let change = Patch::Merge(json!({ "spec": { "text": "new" } }));
    world.sites().patch("a", &PatchParams::default(), &change).await.unwrap();
    settle().await;
    assert_eq!(*careful.1.lock(), ["apply", "delete", "replace"]);
    assert_eq!(page_text(&world.pages().get("a").await.unwrap()), Some("theirs"));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_replaced_object_is_read_at_once_and_a_conflict_runs_again() {
    struct Counter(Api<ConfigMap>);
    impl Reconciler for Counter {
        type Object = Website;
        async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            let Some(old) = cx.get::<ConfigMap>("a").await? else {
                cx.create(page(&site)).await?;
                edit(&self.0, "theirs").await?;
                return Ok(Action::await_change());
            };
            if page_text(&old) == Some("replaced") {
                return Ok(Action::await_change());
            }
            let mut new = (*old).clone();
            new.data = Some([("index.html".to_owned(), "replaced".to_owned())].into());
            new.metadata.labels = Some([("seen".to_owned(), page_text(&old).unwrap().to_owned())].into());
            let replaced = cx.replace(new).await?;
            let read = cx.get::<ConfigMap>("a").await?.unwrap();
            assert_eq!(read.resource_version(), replaced.resource_version());
            // Only what was read can replace anything.
            let mut without = page(&site);
            without.metadata.resource_version = None;
            let error = cx.replace(without).await.unwrap_err();
            assert!(error.to_string().contains("has no resourceVersion"), "{error}");
            Ok(Action::await_change())
        }
    }
    let mut world = World::new().await;
    world.create_site("a", "ours").await;
    world.start(
        Controller::new(Counter(world.pages())).owns::<ConfigMap>().uses::<ConfigMap>(&[Verb::Update]),
    );
    let page = world.page_has("a", "replaced").await;
    assert_eq!((page.labels()["seen"].as_str(), page.owner_references().len()), ("theirs", 1));
    world.stop().await;
}

fn pod(name: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "default", "labels": { "app": name } },
        "spec": { "nodeName": "n1", "containers": [{ "name": "web", "image": "web" }] },
    }))
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_evicted_pod_is_read_as_going_and_a_budget_can_refuse() {
    #[derive(Default)]
    struct Drain(Mutex<Vec<String>>);
    impl Reconciler for Drain {
        type Object = Website;
        async fn reconcile(&self, _: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            for name in ["free", "held"] {
                let Some(pod) = cx.get::<Pod>(name).await? else { continue };
                match cx.evict(&pod).await {
                    Ok(()) => {
                        let going = cx
                            .get::<Pod>(name)
                            .await?
                            .is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
                        self.0.lock().push(format!("{name}: going {going}"));
                    }
                    Err(error) => {
                        let code = error.status().map(|status| status.code);
                        self.0.lock().push(format!("{name}: {code:?}"));
                    }
                }
            }
            Ok(Action::await_change())
        }
    }
    let mut world = World::new().await;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    for name in ["free", "held"] {
        pods.create(&PostParams::default(), &pod(name)).await.unwrap();
        let running = Patch::Merge(json!({ "status": { "phase": "Running" } }));
        pods.patch_status(name, &PatchParams::default(), &running).await.unwrap();
    }
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(world.client.clone(), "default");
    let budget = json!({ "metadata": { "name": "held" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "held" } } } });
    budgets.create(&PostParams::default(), &serde_json::from_value(budget).unwrap()).await.unwrap();
    let controller = Controller::new(Drain::default())
        .watches::<Pod>(|_, _, _| Vec::new())
        .uses_subresource::<Pod>("eviction", &[Verb::Create]);
    let drain = controller.reconciler();
    world.start(controller);
    settle().await;
    world.requests();
    let began = Instant::now();
    world.create_site("a", "x").await;
    settle().await;
    assert_eq!(*drain.0.lock(), ["free: going true", "held: Some(429)"], "{:?}", began.elapsed());
    let requests = world.requests();
    assert!(!requests.iter().any(|request| request.starts_with("GET")), "the watch told: {requests:?}");
    world.stop().await;
}

/// The size of a page is in a label, by which pages are selected in a way that only the server can tell.
fn sized(site: &Website, size: &str) -> ConfigMap {
    let mut page = page(site);
    page.labels_mut().insert("size".to_owned(), size.to_owned());
    page
}

#[tokio::test(start_paused = true)]
async fn a_write_waits_for_the_watch_where_only_that_can_tell_what_is_selected() {
    #[derive(Default)]
    struct Sized(Mutex<Vec<String>>);
    impl Reconciler for Sized {
        type Object = Website;
        async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            let began = Instant::now();
            cx.apply(sized(&site, &site.spec.text)).await?;
            let seen = cx.get::<ConfigMap>("a").await?;
            let seen = seen.map(|page| page.labels()["size"].clone());
            let waited = began.elapsed();
            // An object that is not selected sends no event: the wait has its limit.
            assert!(waited <= Duration::from_secs(10), "{waited:?}");
            self.0.lock().push(format!("{}: {seen:?}", site.spec.text));
            Ok(Action::await_change())
        }
    }
    let mut world = World::new().await;
    let watch = Watch::<ConfigMap>::new().selector(Selector::all().labels("size>4"));
    let controller = Controller::new(Sized::default()).owns_as(watch);
    let sized = controller.reconciler();
    world.start(controller);
    settle().await;
    world.requests();
    world.create_site("a", "5").await;
    settle().await;
    for size in ["6", "3"] {
        let change = Patch::Merge(json!({ "spec": { "text": size } }));
        world.sites().patch("a", &PatchParams::default(), &change).await.unwrap();
        settle().await;
    }
    // A write that leaves the selector is an event, too: DELETED. These events are told like anybody's, so
    // each write is followed by one more run.
    let mut seen = sized.0.lock().clone();
    seen.dedup();
    assert_eq!(seen, ["5: Some(\"5\")", "6: Some(\"6\")", "3: None"]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_the_watch_has_a_limit() {
    struct Small(Mutex<Option<Duration>>);
    impl Reconciler for Small {
        type Object = Website;
        async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            let began = Instant::now();
            cx.apply(sized(&site, "1")).await?;
            *self.0.lock() = Some(began.elapsed());
            Ok(Action::await_change())
        }
    }
    let mut world = World::new().await;
    let watch = Watch::<ConfigMap>::new().selector(Selector::all().labels("size>4"));
    let controller = Controller::new(Small(Mutex::default())).owns_as(watch);
    let small = controller.reconciler();
    world.start(controller);
    settle().await;
    world.create_site("a", "x").await;
    // Never selected: neither an event nor, for up to a minute, a bookmark tells.
    let waited = eventually("it goes on", || async { small.0.lock().ok_or("it waits") }).await;
    // Real time adds what the machine takes.
    let limit = Duration::from_secs(if is_simulated() { 10 } else { 15 });
    assert!(waited <= limit, "{waited:?}");
    world.stop().await;
}

/// How a deletion is asked for reaches the API server.
#[tokio::test(start_paused = true)]
async fn deletions_say_what_becomes_of_children_and_how_long_they_may_take() {
    struct Deletes;
    impl Reconciler for Deletes {
        type Object = Website;
        async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            let Some(map) = cx.get::<ConfigMap>("parent").await? else { return Ok(Action::await_change()) };
            if map.metadata.deletion_timestamp.is_some() {
                return Ok(Action::await_change());
            }
            cx.delete(&*map).propagation(setpoint::Propagation::Orphan).await?;
            let pod = cx.get::<Pod>(site.name_any()).await?.expect("it is there");
            cx.delete(&*pod).grace(setpoint::seconds(7)).await?;
            Ok(Action::await_change())
        }
    }
    let mut world = World::new().await;
    let map = json!({"metadata": {"name": "parent"}});
    world.pages().create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
    // Only a pod that is on a node is waited for.
    let pod = json!({"metadata": {"name": "a"},
        "spec": {"nodeName": "somewhere", "containers": [{"name": "c", "image": "c"}]}});
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    world.create_site("a", "x").await;
    let controller = Controller::new(Deletes)
        .watches::<ConfigMap>(|_, _, _| Vec::new())
        .watches::<Pod>(|_, _, _| Vec::new())
        .uses::<ConfigMap>(&[Verb::Delete])
        .uses::<Pod>(&[Verb::Delete]);
    world.start(controller);
    let pod = eventually("the pod to be going", || async {
        let pod = pods.get("a").await.unwrap();
        if pod.metadata.deletion_timestamp.is_some() { Ok(pod) } else { Err(pod) }
    })
    .await;
    assert_eq!(pod.metadata.deletion_grace_period_seconds, Some(7));
    let map = world.pages().get("parent").await.unwrap();
    assert!(map.metadata.deletion_timestamp.is_some());
    assert_eq!(map.finalizers(), ["orphan"], "its children are let go first");
    world.stop().await;
}
