use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, DeleteParams, PostParams};
use kube::core::ObjectMeta;
use setpoint::{Action, Cleanup, Context, Controller, Reconciler, Refused, Result, Verb};

use crate::world::{Website, World, eventually, page, page_text, settle};

/// Puts each site's page into another namespace, where no owner reference may point from.
struct Mirror;

impl Reconciler for Mirror {
    type Object = Website;

    async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
        let mut page = page(&site);
        page.metadata.namespace = Some("mirror".to_owned());
        let applied = cx.apply_linked(page).await?;
        assert_eq!(applied.metadata.owner_references, None);
        let children = cx.children::<ConfigMap>().await?;
        assert_eq!(children.len(), 1, "what is linked is a child");
        Ok(Action::await_change())
    }
}

impl Cleanup for Mirror {
    async fn cleanup(&self, _: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
        for page in cx.children::<ConfigMap>().await? {
            cx.delete(&*page).await?;
        }
        Ok(Action::await_change())
    }
}

async fn with_a_mirror() -> (World, Api<ConfigMap>) {
    let world = World::new().await;
    let metadata = ObjectMeta { name: Some("mirror".to_owned()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    Api::all(world.client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let mirrored = Api::namespaced(world.client.clone(), "mirror");
    (world, mirrored)
}

#[tokio::test(start_paused = true)]
async fn a_linked_child_is_put_back_and_goes_with_the_cleanup() {
    let (mut world, mirrored) = with_a_mirror().await;
    let mirror = || {
        Controller::new(Mirror)
            .owns::<ConfigMap>()
            .uses::<ConfigMap>(&[Verb::Delete])
            .finalizer("example.com/mirror")
    };
    world.start(mirror());
    let site = world.create_site("a", "hello").await;
    let has = async |text: &str| {
        eventually(&format!("a mirrored page with {text:?}"), || async {
            match mirrored.get_opt("a").await.unwrap() {
                Some(page) if page_text(&page) == Some(text) => Ok(page),
                other => Err(other),
            }
        })
        .await
    };
    let first = has("hello").await;
    assert_eq!(first.metadata.labels.as_ref().unwrap()["setpoint.dev/owner-uid"], site.metadata.uid.unwrap());
    assert_eq!(
        first.metadata.annotations.as_ref().unwrap()["setpoint.dev/owner"],
        "Website.example.com default/a"
    );

    // Its changes wake the owner, also after a restart, and a converged one is silent.
    mirrored.delete("a", &DeleteParams::default()).await.unwrap();
    let second = has("hello").await;
    assert_ne!(first.metadata.uid, second.metadata.uid);
    world.stop().await;
    world.start(mirror());
    settle().await;
    assert_eq!(has("hello").await.metadata.resource_version, second.metadata.resource_version);
    mirrored.delete("a", &DeleteParams::default()).await.unwrap();
    has("hello").await;

    world.sites().delete("a", &DeleteParams::default()).await.unwrap();
    eventually("both to be gone", || async {
        let seen = (world.sites().get_opt("a").await.unwrap(), mirrored.get_opt("a").await.unwrap());
        if seen.0.is_none() && seen.1.is_none() { Ok(()) } else { Err(seen) }
    })
    .await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_owners_linked_child_is_left_alone() {
    let (mut world, mirrored) = with_a_mirror().await;
    world.create_site("a", "hello").await;
    let mut theirs = page(&world.sites().get("a").await.unwrap());
    let labels = [("setpoint.dev/owner-uid".to_owned(), "another".to_owned())];
    theirs.metadata.labels = Some(labels.into());
    let owner = ("setpoint.dev/owner".to_owned(), "Website.example.com other/b".to_owned());
    theirs.metadata.annotations = Some([owner].into());
    mirrored.create(&PostParams::default(), &theirs).await.unwrap();
    let controller = Controller::new(Mirror).owns::<ConfigMap>().finalizer("example.com/mirror");
    let (controller, runtime) = (setpoint::AnyController::from(controller), world.runtime());
    let reports = controller.once(runtime, Some(vec!["default/a".into()])).await.unwrap();
    let ended = format!("{:?}", reports[0].ended);
    let expected = "ConfigMap mirror/a exists and is not ours but controlled by Website.example.com other/b";
    assert!(ended.contains(expected), "{ended}");
    world.stop().await;
}

/// What only a cleanup would delete is not made without one.
#[tokio::test(start_paused = true)]
async fn a_link_without_a_finalizer_is_refused() {
    struct Careless;
    impl Reconciler for Careless {
        type Object = Website;
        async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            let mut page = page(&site);
            page.metadata.namespace = Some("mirror".to_owned());
            let error = cx.apply_linked(page).await.unwrap_err();
            assert!(matches!(error.downcast_ref::<Refused>(), Some(Refused::NoFinalizer { .. })), "{error}");
            Err(error)
        }
    }
    let (mut world, mirrored) = with_a_mirror().await;
    world.create_site("a", "hello").await;
    let controller = setpoint::AnyController::from(Controller::new(Careless).owns::<ConfigMap>());
    let reports = controller.once(world.runtime(), Some(vec!["default/a".into()])).await.unwrap();
    let ended = format!("{:?}", reports[0].ended);
    assert!(
        ended.contains("ConfigMap mirror/a cannot be linked") && ended.contains("Controller::finalizer"),
        "{ended}"
    );
    assert!(mirrored.get_opt("a").await.unwrap().is_none());
    world.stop().await;
}
