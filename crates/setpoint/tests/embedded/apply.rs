use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::ResourceExt as _;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use setpoint::{
    Action, Context, Controller, NotCached, Reconciler, Refused, Result, Runtime, Undeclared, Verb,
};

use crate::world::{Website, WebsiteStatus, World, page, page_text, settle};

/// Runs a closure's worth of steps once for each site, and keeps what failed.
struct Steps {
    adopt: bool,
    errors: Mutex<Vec<String>>,
}

impl Reconciler for Steps {
    type Object = Website;

    async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
        let apply = cx.apply(page(&site));
        let applied = if self.adopt { apply.adopt().await } else { apply.await };
        if let Err(error) = applied {
            assert!(error.downcast_ref::<Refused>().is_some(), "{error}");
            self.errors.lock().push(error.to_string());
            return Err(error.terminal());
        }
        Ok(Action::await_change())
    }
}

async fn with_a_users_page(adopt: bool) -> (World, Arc<Steps>) {
    let mut world = World::new().await;
    let mut theirs =
        page(&Website::new("a", crate::world::WebsiteSpec { text: "theirs".to_owned(), node: None }));
    theirs.labels_mut().insert("by".to_owned(), "user".to_owned());
    world.pages().create(&PostParams::default(), &theirs).await.unwrap();
    world.create_site("a", "ours").await;
    let controller = Controller::new(Steps { adopt, errors: Mutex::default() }).owns::<ConfigMap>();
    let steps = controller.reconciler();
    world.start(controller);
    settle().await;
    (world, steps)
}

#[tokio::test(start_paused = true)]
async fn what_is_not_ours_is_refused() {
    let (mut world, steps) = with_a_users_page(false).await;
    let page = world.pages().get("a").await.unwrap();
    assert_eq!(page_text(&page), Some("theirs"));
    assert_eq!(
        *steps.errors.lock(),
        ["ConfigMap default/a exists and is not ours: delete it, or apply with .adopt()"]
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_ours_can_be_adopted() {
    let (mut world, steps) = with_a_users_page(true).await;
    let page = world.page_has("a", "ours").await;
    assert_eq!((page.owner_references().len(), &page.labels()["by"][..]), (1, "user"));
    assert!(steps.errors.lock().is_empty());
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn undeclared_kinds_and_verbs_are_refused_before_anything_is_sent() {
    #[derive(Default)]
    struct Greedy(Mutex<Vec<String>>);
    impl Reconciler for Greedy {
        type Object = Website;
        async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            let error = cx.get::<Secret>("a").await.unwrap_err();
            assert!(error.downcast_ref::<NotCached>().is_some());
            self.0.lock().push(error.to_string());
            let secret = Secret { metadata: page(&site).metadata, ..Secret::default() };
            let error = cx.apply(secret).await.unwrap_err();
            assert!(error.downcast_ref::<Undeclared>().is_some());
            self.0.lock().push(error.to_string());
            let page = cx.apply(page(&site)).await?;
            let error = cx.delete(&*page).await.unwrap_err();
            self.0.lock().push(error.to_string());
            Ok(Action::await_change())
        }
    }
    let mut world = World::new().await;
    let controller = Controller::new(Greedy::default()).owns::<ConfigMap>();
    let greedy = controller.reconciler();
    world.start(controller);
    world.create_site("a", "x").await;
    settle().await;
    let errors = greedy.0.lock().clone();
    assert!(errors[0].contains("does not watch Secret"), "{errors:?}");
    assert!(errors[1].contains("did not declare create on secrets: add .owns::<Secret>() for"), "{errors:?}");
    let expected = "did not declare delete on configmaps: add .uses::<ConfigMap>(&[Verb::Delete]) to it";
    assert!(errors[2].contains(expected), "{errors:?}");
    assert!(!world.requests().iter().any(|request| request.contains("secrets")));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn owners_that_garbage_collection_would_punish_are_refused() {
    #[derive(Default)]
    struct Far(Mutex<Vec<String>>);
    impl Reconciler for Far {
        type Object = Website;
        async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            let mut far = page(&site);
            far.metadata.namespace = Some("kube-system".to_owned());
            let error = cx.apply(far.clone()).await.unwrap_err();
            self.0.lock().push(error.to_string());
            let mut namespace = Namespace::default();
            namespace.metadata.name = Some("mine".to_owned());
            let error = cx.apply(namespace).await.unwrap_err();
            self.0.lock().push(error.to_string());
            // Without an owner reference it is allowed.
            cx.apply(far).unowned().await?;
            Ok(Action::await_change())
        }
    }
    let mut world = World::new().await;
    let controller = Controller::new(Far::default()).owns::<ConfigMap>().owns::<Namespace>();
    let far = controller.reconciler();
    world.start(controller);
    world.create_site("a", "x").await;
    settle().await;
    let errors = far.0.lock().clone();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(
        errors.iter().all(|error| error.contains("an owner must be in the namespace of its child")),
        "{errors:?}"
    );
    let pages: Api<ConfigMap> = Api::namespaced(world.client.clone(), "kube-system");
    assert!(pages.get("a").await.unwrap().owner_references().is_empty());
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn kept_metadata_is_enough_for_an_apply() {
    struct Slim;
    impl Reconciler for Slim {
        type Object = Website;
        async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            cx.apply(page(&site)).await?;
            // A second apply of the same is answered by the memo.
            let page = cx.apply(page(&site)).await?;
            assert!(page.uid().is_some());
            Ok(Action::await_change())
        }
    }
    let mut world = World::new().await;
    world.start(Controller::new(Slim).owns_metadata::<ConfigMap>());
    world.create_site("a", "hello").await;
    world.page_has("a", "hello").await;
    settle().await;
    let writes: Vec<String> =
        world.requests().into_iter().filter(|request| request.starts_with("PATCH")).collect();
    assert_eq!(writes.len(), 1, "{writes:?}");
    let edit = kube::api::Patch::Merge(serde_json::json!({ "data": { "index.html": "defaced" } }));
    world.pages().patch("a", &kube::api::PatchParams::default(), &edit).await.unwrap();
    world.page_has("a", "hello").await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn deletion_and_patches_of_declared_kinds_go_through() {
    struct Tidy;
    impl Reconciler for Tidy {
        type Object = Website;
        async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            let name = site.name_any();
            if site.spec.text.is_empty() {
                if let Some(page) = cx.get::<ConfigMap>(&name).await? {
                    cx.delete(&*page).await?;
                    assert!(cx.get::<ConfigMap>(&name).await?.is_none(), "what was deleted is not read");
                    cx.delete(&*page).await?;
                }
                return Ok(Action::await_change());
            }
            if cx.get::<ConfigMap>(&name).await?.is_none() {
                cx.create(page(&site)).await?;
            }
            let page = cx.patch::<ConfigMap>(&name, setpoint::Patch::label("seen", Some("yes"))).await?;
            assert_eq!(cx.live::<ConfigMap>(&name).await?.unwrap().labels(), page.labels());
            Ok(Action::await_change())
        }
    }
    let mut world = World::new().await;
    world.start(Controller::new(Tidy).owns::<ConfigMap>().uses::<ConfigMap>(&[Verb::Delete]));
    world.create_site("a", "hello").await;
    let page = world.page_has("a", "hello").await;
    assert_eq!(page.owner_references().len(), 1);
    settle().await;
    assert_eq!(world.pages().get("a").await.unwrap().labels()["seen"], "yes");
    let edit = kube::api::Patch::Merge(serde_json::json!({ "spec": { "text": "" } }));
    world.sites().patch("a", &kube::api::PatchParams::default(), &edit).await.unwrap();
    settle().await;
    assert!(world.pages().get_opt("a").await.unwrap().is_none());
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_scaled_object_is_read_with_its_new_size() {
    struct Scaler;
    impl Reconciler for Scaler {
        type Object = Website;
        async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            let name = site.name_any();
            let size = site.spec.text.parse()?;
            let spec = serde_json::json!({ "serviceName": name, "selector": { "matchLabels": { "app": name } },
                "template": { "metadata": { "labels": { "app": name } },
                    "spec": { "containers": [{ "name": "web", "image": "web" }] } } });
            let set: StatefulSet =
                serde_json::from_value(serde_json::json!({ "metadata": { "name": name }, "spec": spec }))?;
            cx.apply(set).await?;
            cx.scale::<StatefulSet>(&name, size).await?;
            let set = cx.get::<StatefulSet>(&name).await?.expect("applied");
            assert_eq!(set.spec.replicas, Some(size));
            cx.status(WebsiteStatus { pages: Some(size), text: Some(site.spec.text.clone()) }).await?;
            Ok(Action::await_change())
        }
    }
    let mut world = World::new().await;
    let scale = |controller: Controller<Scaler>| {
        controller.owns::<StatefulSet>().uses_subresource::<StatefulSet>("scale", &[Verb::Patch])
    };
    world.start(scale(Controller::new(Scaler)));
    world.create_site("a", "3").await;
    world.status_has("a", "3").await;
    settle().await;
    let writes: Vec<String> =
        world.requests().into_iter().filter(|request| request.starts_with("PATCH")).collect();
    assert_eq!(writes.iter().filter(|write| write.ends_with("/statefulsets/a")).count(), 1, "{writes:?}");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_changes_nothing() {
    struct Plan;
    impl Reconciler for Plan {
        type Object = Website;
        async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            let page = cx.apply(page(&site)).await?;
            assert_eq!(page_text(&page), Some(site.spec.text.as_str()), "what it would be");
            assert!(cx.get::<ConfigMap>(page.name_any()).await?.is_none());
            Ok(Action::await_change())
        }
    }
    let world = World::new().await;
    world.create_site("a", "x").await;
    let versions = world.versions().await;
    let runtime = Runtime::builder(world.client.clone()).dry_run(true).build();
    let stop = tokio_util::sync::CancellationToken::new();
    let controller = setpoint::AnyController::from(Controller::new(Plan).owns::<ConfigMap>());
    let running = tokio::spawn(controller.run(runtime, stop.clone()));
    settle().await;
    assert!(world.requests().iter().any(|request| request.starts_with("PATCH")));
    assert_eq!(world.versions().await, versions);
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn only_the_namespaces_in_scope_are_watched() {
    #[derive(Default)]
    struct Names(Mutex<Vec<String>>);
    impl Reconciler for Names {
        type Object = ConfigMap;
        async fn reconcile(&self, map: Arc<ConfigMap>, cx: &Context<ConfigMap>) -> Result<Action> {
            let (here, all) = (cx.list::<ConfigMap>().await?.len(), cx.list_all::<ConfigMap>().await?.len());
            let nodes = cx.list::<k8s_openapi::api::core::v1::Node>().await?.len();
            self.0.lock().push(format!(
                "{}/{} {here} {all} {nodes}",
                map.namespace().unwrap(),
                map.name_any()
            ));
            Ok(Action::await_change())
        }
    }
    let world = World::new().await;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    for namespace in ["team-a", "team-b", "team-c"] {
        let mut made = Namespace::default();
        made.metadata.name = Some(namespace.to_owned());
        namespaces.create(&PostParams::default(), &made).await.unwrap();
        let api: Api<ConfigMap> = Api::namespaced(world.client.clone(), namespace);
        let mut map = ConfigMap::default();
        map.metadata.name = Some("m".to_owned());
        api.create(&PostParams::default(), &map).await.unwrap();
    }
    let scope = setpoint::Scope::parse("team-a, team-b");
    let runtime = Runtime::builder(world.client.clone()).scope(scope).build();
    let stop = tokio_util::sync::CancellationToken::new();
    let controller = Controller::new(Names::default())
        .watches(|_: Option<&k8s_openapi::api::core::v1::Node>, _, _| Vec::new());
    let names = controller.reconciler();
    let running = tokio::spawn(setpoint::AnyController::from(controller).run(runtime.clone(), stop.clone()));
    settle().await;
    let mut seen = names.0.lock().clone();
    seen.sort();
    assert_eq!(seen, ["team-a/m 1 2 0", "team-b/m 1 2 0"]);
    assert_eq!(runtime.caches().health().len(), 3, "two for ConfigMaps, one for nodes");
    stop.cancel();
    running.await.unwrap().unwrap();
}

/// A ConfigMap as far as its owner cares: how many pages it has.
#[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
struct SlimMap {
    metadata: kube::core::ObjectMeta,
    #[serde(default, deserialize_with = "count", skip_serializing)]
    data: usize,
}

fn count<'de, D: serde::Deserializer<'de>>(data: D) -> Result<usize, D::Error> {
    let data: std::collections::BTreeMap<String, String> = serde::Deserialize::deserialize(data)?;
    Ok(data.len())
}

impl kube::Resource for SlimMap {
    type DynamicType = ();
    type Scope = kube::core::NamespaceResourceScope;

    fn kind((): &()) -> std::borrow::Cow<'_, str> {
        "ConfigMap".into()
    }
    fn group((): &()) -> std::borrow::Cow<'_, str> {
        "".into()
    }
    fn version((): &()) -> std::borrow::Cow<'_, str> {
        "v1".into()
    }
    fn plural((): &()) -> std::borrow::Cow<'_, str> {
        "configmaps".into()
    }
    fn meta(&self) -> &kube::core::ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut kube::core::ObjectMeta {
        &mut self.metadata
    }
}

#[tokio::test(start_paused = true)]
async fn a_projection_is_enough_for_an_apply() {
    struct Slim(Mutex<Vec<usize>>);
    impl Reconciler for Slim {
        type Object = Website;
        async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            let page = cx.apply(page(&site)).await?;
            assert_eq!(page_text(&page), Some(site.spec.text.as_str()));
            let slim = cx.get::<SlimMap>(site.name_any()).await?.expect("our own write");
            self.0.lock().push(slim.data);
            Ok(Action::await_change())
        }
    }
    let mut world = World::new().await;
    let start = |world: &mut World| {
        let controller = Controller::new(Slim(Mutex::default())).owns::<SlimMap>();
        let slim = controller.reconciler();
        world.start(controller);
        slim
    };
    let slim = start(&mut world);
    settle().await;
    world.requests();
    world.create_site("a", "hello").await;
    world.page_has("a", "hello").await;
    settle().await;
    // A child that no cache has yet is looked for once; then it is known.
    let sent = |world: &World| {
        let requests = world.requests();
        let of_page = |request: &&String| {
            request.contains("/configmaps")
                && !request.starts_with("GET /api/v1/namespaces/default/configmaps/a")
        };
        (requests.iter().filter(of_page).count(), requests.len())
    };
    assert_eq!(sent(&world).0, 1, "one apply");
    let touch = serde_json::json!({ "metadata": { "labels": { "x": "y" } } });
    world
        .sites()
        .patch("a", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(touch))
        .await
        .unwrap();
    settle().await;
    assert_eq!(sent(&world), (0, 1), "only the test's own");
    assert!(slim.0.lock().len() >= 2);
    world.stop().await;

    // The print is that of the whole object: also after a restart nothing is sent.
    let slim = start(&mut world);
    settle().await;
    assert_eq!(*slim.0.lock(), [1]);
    let requests = world.requests();
    assert!(!requests.iter().any(|request| request.contains("/configmaps/a")), "{requests:?}");
    world.stop().await;
}
