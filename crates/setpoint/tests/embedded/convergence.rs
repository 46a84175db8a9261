use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;
use setpoint::{Action, Context, Controller, Reason, Reconciler, Result, minutes, seconds};

use crate::world::{Website, WebsiteStatus, World, is_simulated, page, page_text, pass, settle};

/// One page for each site; says what it saw.
#[derive(Default, Clone)]
pub struct Web {
    causes: Arc<Mutex<Vec<String>>>,
    runs: Arc<AtomicUsize>,
}

impl Reconciler for Web {
    type Object = Website;

    async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.causes.lock().extend(cx.causes().iter().map(ToString::to_string));
        let page = cx.apply(page(&site)).await?;
        // What was just written can be read.
        let read = cx.get::<ConfigMap>(page.name_any()).await?.expect("our own write");
        assert_eq!(page_text(&read), Some(site.spec.text.as_str()));
        let pages = i32::try_from(cx.children::<ConfigMap>().await?.len())?;
        cx.status(WebsiteStatus { pages: Some(pages), text: Some(site.spec.text.clone()) }).await?;
        Ok(Action::await_change())
    }
}

fn controller(web: Web) -> Controller<Web> {
    Controller::new(web).owns::<ConfigMap>()
}

#[tokio::test(start_paused = true)]
async fn a_child_follows_its_owner_and_is_put_back() {
    let mut world = World::new().await;
    let web = Web::default();
    world.start(controller(web.clone()));
    let site = world.create_site("a", "hello").await;
    let page = world.page_has("a", "hello").await;
    let owner = &page.owner_references()[0];
    assert_eq!(
        (&owner.kind[..], owner.controller, &owner.uid),
        ("Website", Some(true), &site.uid().unwrap())
    );
    assert_eq!(world.status_has("a", "hello").await.status.unwrap().pages, Some(1));

    world.pages().delete("a", &DeleteParams::default()).await.unwrap();
    world.page_has("a", "hello").await;
    let edit = Patch::Merge(json!({ "data": { "index.html": "defaced", "extra": "theirs" } }));
    world.pages().patch("a", &PatchParams::default(), &edit).await.unwrap();
    let page = world.page_has("a", "hello").await;
    assert_eq!(page.data.unwrap().get("extra").map(String::as_str), Some("theirs"), "what others own stays");
    world.pages().patch("a", &PatchParams::default(), &Patch::Merge(json!({ "data": null }))).await.unwrap();
    world.page_has("a", "hello").await;

    let edit = Patch::Merge(json!({ "spec": { "text": "changed" } }));
    world.sites().patch("a", &PatchParams::default(), &edit).await.unwrap();
    world.page_has("a", "changed").await;
    world.status_has("a", "changed").await;
    let causes = web.causes.lock().clone();
    assert!(causes.contains(&"deleted: ConfigMap default/a".to_owned()), "{causes:?}");
    assert!(causes.contains(&"changed: Website.example.com default/a".to_owned()), "{causes:?}");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_converged_controller_sends_nothing_and_moves_no_version_also_after_a_restart() {
    let mut world = World::new().await;
    let web = Web::default();
    world.start(controller(web.clone()));
    for name in ["a", "b", "c"] {
        world.create_site(name, "hello").await;
    }
    for name in ["a", "b", "c"] {
        world.status_has(name, "hello").await;
    }
    settle().await;
    let (versions, runs) = (world.versions().await, web.runs.load(Ordering::Relaxed));
    assert!(runs <= 2 * 3, "own writes lead to no further runs");
    world.requests();
    pass(minutes(20)).await;
    assert_eq!(world.requests(), Vec::<String>::new());
    assert_eq!((world.versions().await, web.runs.load(Ordering::Relaxed)), (versions.clone(), runs));

    world.stop().await;
    let web = Web::default();
    world.start(controller(web.clone()));
    settle().await;
    assert_eq!(web.runs.load(Ordering::Relaxed), 3, "each runs once after the restart");
    assert_eq!(world.requests(), Vec::<String>::new());
    assert_eq!(world.versions().await, versions);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_own_write_whose_event_is_faster_than_its_answer_leads_to_no_further_run() {
    let mut world = World::new().await;
    world.late_answers();
    let web = Web::default();
    world.start(controller(web.clone()));
    world.create_site("a", "hello").await;
    world.status_has("a", "hello").await;
    settle().await;
    assert_eq!(*web.causes.lock(), ["added: Website.example.com default/a"]);
    // The page exists now, and its apply has no precondition.
    let edit = Patch::Merge(json!({ "spec": { "text": "changed" } }));
    world.sites().patch("a", &PatchParams::default(), &edit).await.unwrap();
    world.status_has("a", "changed").await;
    settle().await;
    assert_eq!(web.causes.lock()[1..], ["changed: Website.example.com default/a"]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_foreign_change_beside_an_own_write_leads_to_a_further_run() {
    let mut world = World::new().await;
    let web = Web::default();
    world.start(controller(web.clone()));
    world.create_site("a", "hello").await;
    world.status_has("a", "hello").await;
    settle().await;
    world.late_answers();
    web.causes.lock().clear();
    let edit = Patch::Merge(json!({ "spec": { "text": "changed" } }));
    world.sites().patch("a", &PatchParams::default(), &edit).await.unwrap();
    // The apply has reached the server, and its answer is on its way.
    world.page_has("a", "changed").await;
    let label = Patch::Merge(json!({ "metadata": { "labels": { "theirs": "yes" } } }));
    world.pages().patch("a", &PatchParams::default(), &label).await.unwrap();
    world.status_has("a", "changed").await;
    settle().await;
    let causes = ["changed: Website.example.com default/a", "changed: ConfigMap default/a"];
    assert_eq!(*web.causes.lock(), causes);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_object_costs_a_write_for_each_child_and_its_status_and_no_read() {
    let mut world = World::new().await;
    world.start(controller(Web::default()));
    world.create_site("a", "hello").await;
    world.status_has("a", "hello").await;
    settle().await;
    let page = "/api/v1/namespaces/default/configmaps/a";
    let ours: Vec<String> = world.requests().into_iter().filter(|request| !is_a_test_s(request)).collect();
    let status = "PATCH /apis/example.com/v1/namespaces/default/websites/a/status";
    assert_eq!(ours, [format!("PATCH {page}"), status.to_owned()]);

    // A touch is a reconcile that sends nothing.
    let touch = Patch::Merge(json!({ "metadata": { "annotations": { "touched": "yes" } } }));
    world.sites().patch("a", &PatchParams::default(), &touch).await.unwrap();
    settle().await;
    assert_eq!(
        world.requests(),
        ["PATCH /apis/example.com/v1/namespaces/default/websites/a"],
        "the test's own"
    );
    world.stop().await;
}

/// What the test above asks for itself.
fn is_a_test_s(request: &str) -> bool {
    request.starts_with("GET /apis/example.com/v1/namespaces/default/websites/")
        || request == "POST /apis/example.com/v1/namespaces/default/websites"
}

#[tokio::test(start_paused = true)]
async fn foreign_status_and_labels_cause_no_write() {
    let mut world = World::new().await;
    world.start(controller(Web::default()));
    world.create_site("a", "hello").await;
    world.status_has("a", "hello").await;
    settle().await;
    world.requests();
    let label = Patch::Merge(json!({ "metadata": { "labels": { "theirs": "yes" } } }));
    world.pages().patch("a", &PatchParams::default(), &label).await.unwrap();
    settle().await;
    assert_eq!(world.requests(), ["PATCH /api/v1/namespaces/default/configmaps/a"], "ours was the only one");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_reason_of_a_run_is_told() {
    struct Once(Mutex<Vec<Reason>>);
    impl Reconciler for Once {
        type Object = Website;
        async fn reconcile(&self, _: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
            let mut runs = self.0.lock();
            runs.extend(cx.causes().iter().map(|cause| cause.reason.clone()));
            Ok(if runs.len() == 1 { Action::requeue(seconds(1)) } else { Action::await_change() })
        }
    }
    let mut world = World::new().await;
    world.create_site("a", "hello").await;
    let once = Once(Mutex::default());
    let controller = Controller::new(once);
    let reconciler = controller.reconciler();
    world.start(controller);
    settle().await;
    settle().await;
    assert_eq!(*reconciler.0.lock(), [Reason::Initial, Reason::After]);
    world.stop().await;
}

#[test]
fn the_same_seed_gives_the_same_requests_at_the_same_times() {
    fn run() -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let mut world = World::new().await;
            world.start(controller(Web::default()));
            for name in ["a", "b", "c", "d", "e"] {
                world.create_site(name, "hello").await;
            }
            settle().await;
            world.pages().delete("c", &DeleteParams::default()).await.unwrap();
            pass(minutes(20)).await;
            world.stop().await;
            world.transcript()
        })
    }
    if !is_simulated() {
        return;
    }
    let first = run();
    assert!(first.len() > 20, "{first:#?}");
    assert_eq!(first, run());
}
