use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;
use setpoint::{Action, Context, Controller, Error, Reason, Reconciler, Result, seconds};

use crate::world::{Website, WebsiteStatus, World, page, settle};

/// Does what the text of the site says.
#[derive(Default)]
struct Trouble {
    runs: Mutex<Vec<String>>,
    tries: AtomicUsize,
}

impl Reconciler for Trouble {
    type Object = Website;

    async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
        self.runs.lock().push(site.name_any());
        match site.spec.text.as_str() {
            "panic once" if self.tries.fetch_add(1, Ordering::Relaxed) == 0 => panic!("no such thing"),
            "hang once" if self.tries.fetch_add(1, Ordering::Relaxed) == 0 => std::future::pending().await,
            "fail twice" if self.tries.fetch_add(1, Ordering::Relaxed) < 2 => {
                return Err(Error::msg("not yet"));
            }
            "never" => return Err(Error::msg("impossible size").terminal()),
            _ => {}
        }
        cx.apply(page(&site)).await?;
        cx.status(WebsiteStatus { pages: Some(1), text: Some(site.spec.text.clone()) }).await?;
        Ok(Action::await_change())
    }
}

fn controller() -> Controller<Trouble> {
    Controller::new(Trouble::default()).owns::<ConfigMap>().time_limit(seconds(5))
}

#[tokio::test(start_paused = true)]
async fn panics_time_limits_and_errors_are_those_of_one_key_and_are_retried() {
    let mut world = World::new().await;
    world.start(controller());
    for (name, text) in [("a", "panic once"), ("b", "fine")] {
        world.create_site(name, text).await;
    }
    world.status_has("b", "fine").await;
    world.status_has("a", "panic once").await;
    world.stop().await;
    for text in ["hang once", "fail twice"] {
        let mut world = World::new().await;
        world.start(controller());
        world.create_site("a", text).await;
        world.create_site("b", "fine").await;
        world.status_has("b", "fine").await;
        world.status_has("a", text).await;
        world.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_terminal_failure_waits_for_a_new_generation() {
    let mut world = World::new().await;
    let controller = controller();
    let trouble = controller.reconciler();
    world.start(controller);
    world.create_site("a", "never").await;
    settle().await;
    let label = Patch::Merge(json!({ "metadata": { "labels": { "x": "y" } } }));
    world.sites().patch("a", &PatchParams::default(), &label).await.unwrap();
    settle().await;
    assert_eq!(*trouble.runs.lock(), ["a"]);
    let edit = Patch::Merge(json!({ "spec": { "text": "possible" } }));
    world.sites().patch("a", &PatchParams::default(), &edit).await.unwrap();
    world.status_has("a", "possible").await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_decoded_does_not_stop_the_others() {
    let mut world = World::new().await;
    world.create_raw("bad", json!({ "text": 7 })).await;
    world.create_site("before", "fine").await;
    world.start(controller());
    world.create_raw("worse", json!({})).await;
    world.create_site("after", "fine").await;
    world.status_has("before", "fine").await;
    world.status_has("after", "fine").await;
    settle().await;
    let events = world.events.all();
    for name in ["bad", "worse"] {
        let expected = format!("Website/{name} Undecodable: cannot be read as Website.example.com");
        assert!(events.iter().any(|event| event.starts_with(&expected)), "{events:?}");
    }
    let repair = Patch::Merge(json!({ "spec": { "text": "repaired" } }));
    world.sites().patch("bad", &PatchParams::default(), &repair).await.unwrap();
    world.page_has("bad", "repaired").await;
    world.stop().await;
}

/// The type, status and message of the site's conditions, whatever its spec.
async fn conditions(world: &World, name: &str) -> Vec<String> {
    let request = http::Request::get(format!("/apis/example.com/v1/namespaces/default/websites/{name}"));
    let site: serde_json::Value = world.client.request(request.body(Vec::new()).unwrap()).await.unwrap();
    let conditions = site.pointer("/status/conditions").and_then(serde_json::Value::as_array);
    let text = |condition: &serde_json::Value| {
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        format!("{}={}: {}", text("type"), text("status"), text("message"))
    };
    conditions.into_iter().flatten().map(text).collect()
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_decoded_says_so_in_a_condition_until_it_can() {
    let mut world = World::new().await;
    world.create_raw("bad", json!({ "text": 7 })).await;
    world.start(controller());
    settle().await;
    let expected = "Decodable=False: cannot be read as Website.example.com: invalid type: integer `7`";
    let seen = conditions(&world, "bad").await;
    assert!(seen.len() == 1 && seen[0].starts_with(expected), "{seen:?}");

    // Said once: neither later passes nor a restart say it again.
    let versions = world.versions().await;
    world.stop().await;
    world.start(controller());
    settle().await;
    assert_eq!(world.versions().await, versions);

    // What is wrong may change, and others' conditions stay.
    let theirs = json!({ "apiVersion": "example.com/v1", "kind": "Website", "status": { "conditions": [{
        "type": "Paid", "status": "True", "reason": "Yes", "message": "",
        "lastTransitionTime": "1970-01-01T00:00:00Z",
    }] } });
    // The answers are no Websites.
    let billing = PatchParams::apply("billing");
    world.sites().patch_status("bad", &billing, &Patch::Apply(theirs)).await.unwrap_err();
    let change = Patch::Merge(json!({ "spec": { "text": [] } }));
    world.sites().patch("bad", &PatchParams::default(), &change).await.unwrap_err();
    settle().await;
    let seen = conditions(&world, "bad").await;
    assert!(seen.iter().any(|condition| condition.contains("invalid type: sequence")), "{seen:?}");
    assert!(seen.contains(&"Paid=True: ".to_owned()), "{seen:?}");

    let repair = Patch::Merge(json!({ "spec": { "text": "repaired" } }));
    world.sites().patch("bad", &PatchParams::default(), &repair).await.unwrap();
    world.status_has("bad", "repaired").await;
    assert_eq!(conditions(&world, "bad").await, ["Paid=True: "]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_status_from_an_old_state_is_a_conflict_and_runs_again() {
    /// Edits the site behind its own back, once.
    struct Late(kube::Api<Website>, AtomicUsize);
    impl Reconciler for Late {
        type Object = Website;
        async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            if self.1.fetch_add(1, Ordering::Relaxed) == 0 {
                let edit = Patch::Merge(json!({ "spec": { "text": "new" } }));
                self.0.patch("a", &PatchParams::default(), &edit).await?;
                let status = WebsiteStatus { text: Some(site.spec.text.clone()), ..WebsiteStatus::default() };
                let error = cx.status(status).await.unwrap_err();
                assert!(error.is_conflict(), "{error}");
                return Err(error);
            }
            cx.status(WebsiteStatus { text: Some(site.spec.text.clone()), ..WebsiteStatus::default() })
                .await?;
            Ok(Action::await_change())
        }
    }
    let mut world = World::new().await;
    world.create_site("a", "old").await;
    world.start(Controller::new(Late(world.sites(), AtomicUsize::new(0))));
    world.status_has("a", "new").await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn after_a_write_of_unknown_outcome_the_next_read_is_live() {
    struct Counting(AtomicUsize);
    impl Reconciler for Counting {
        type Object = Website;
        async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            if cx.get::<ConfigMap>(site.name_any()).await?.is_none() {
                self.0.fetch_add(1, Ordering::Relaxed);
                cx.create(page(&site)).await?;
            }
            Ok(Action::await_change())
        }
    }
    let mut world = World::new().await;
    let controller = Controller::new(Counting(AtomicUsize::new(0))).owns::<ConfigMap>();
    let counting = controller.reconciler();
    world.start(controller);
    settle().await;
    let site = Website::new("a", crate::world::WebsiteSpec { text: "x".to_owned(), node: None });
    world.requests();
    world.sites().create(&kube::api::PostParams::default(), &site).await.unwrap();
    world.lose_next_answer();
    world.page_has("a", "x").await;
    settle().await;
    assert_eq!(counting.0.load(Ordering::Relaxed), 1, "the lost creation was seen");
    let requests = world.requests();
    let posts =
        requests.iter().filter(|request| request.starts_with("POST") && request.ends_with("/configmaps"));
    assert_eq!(posts.count(), 1, "{requests:?}");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_map_that_panics_does_not_stop_the_watch() {
    let mut world = World::new().await;
    let controller =
        controller().watches(|_: Option<&ConfigMap>, new: Option<&ConfigMap>, _: &setpoint::Lookup| {
            assert_ne!(new.and_then(|map| map.metadata.name.as_deref()), Some("a"), "no such page");
            Vec::new()
        });
    world.start(controller);
    for name in ["a", "b"] {
        world.create_site(name, "fine").await;
    }
    for name in ["a", "b"] {
        world.status_has(name, "fine").await;
        world.pages().delete(name, &kube::api::DeleteParams::default()).await.unwrap();
        world.page_has(name, "fine").await;
    }
    world.stop().await;
}

/// Fails as long as it is told to.
struct Failing;

impl Reconciler for Failing {
    type Object = Website;

    async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
        let fails = |text| Err(Error::msg(text).reason("NoDisk"));
        match site.spec.text.as_str() {
            "twice" if cx.causes().iter().all(|cause| cause.reason != Reason::Retry(2)) => fails("not yet"),
            "always" => fails("the disk is full"),
            "never" => Err(Error::msg("impossible size").terminal()),
            "later" => Err(Error::msg("no answer").after(seconds(1))),
            _ => Ok(Action::await_change()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_keeps_failing_says_so_in_an_event() {
    let mut world = World::new().await;
    world.start(Controller::new(Failing));
    for text in ["twice", "always", "never", "later", "fine"] {
        world.create_site(text, text).await;
    }
    settle().await;
    settle().await;
    let mut events = world.events.all();
    let always = events.iter().filter(|event| event.starts_with("Website/always ")).count();
    assert!(always > 1, "the recorder makes a series of them: {events:?}");
    events.sort();
    events.dedup();
    assert_eq!(
        events,
        [
            "Website/always NoDisk: the disk is full",
            "Website/later ReconcileFailed: no answer",
            "Website/never ReconcileFailed: impossible size",
        ]
    );
    world.stop().await;
}
