//! One object, reconciled once, in one call.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;
use setpoint::{
    Action, AnyController, Cleanup, Context, Controller, Ended, Event, Reconciler, Result, seconds,
};
use setpoint_test::{EnvError, TestEnv};
use website::Website;

#[path = "../../setpoint/examples/website.rs"]
#[expect(dead_code, reason = "the example is a program: its main is not called here")]
mod website;

async fn site() -> TestEnv {
    let env = TestEnv::start().await.unwrap();
    env.install_crd::<Website>().await.unwrap();
    env.apply(json!({
        "apiVersion": "example.com/v1",
        "kind": "Website",
        "metadata": {"name": "shop", "namespace": "default"},
        "spec": {"text": "hello"},
    }))
    .await
    .unwrap();
    env
}

/// What the text of the site asks for.
struct Obeys;

impl Reconciler for Obeys {
    type Object = Website;

    async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
        match site.spec.text.as_str() {
            "panic" => panic!("as told"),
            "fail" => return Err(setpoint::Error::msg("as told").terminal()),
            "hang" => std::future::pending().await,
            "pry" => drop(Api::<Pod>::namespaced(cx.client(), "default").get("any").await),
            _ => {}
        }
        cx.event(Event::normal("Seen", site.spec.text.clone()));
        Ok(Action::requeue(seconds(30)))
    }
}

impl Cleanup for Obeys {
    async fn cleanup(&self, _: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
        cx.event(Event::normal("Cleaned", ""));
        Ok(Action::await_change())
    }
}

async fn say(env: &TestEnv, text: &str) {
    let change = Patch::Merge(json!({"spec": {"text": text}}));
    env.api::<Website>("default").patch("shop", &PatchParams::default(), &change).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_call_tells_the_action_and_what_was_written() {
    let env = site().await;
    let controller = AnyController::from(Controller::new(website::Web).owns::<ConfigMap>());
    let seen = env.reconcile(controller.clone(), "default/shop").await.unwrap();
    assert_eq!(seen.action().unwrap(), Action::await_change());
    assert_eq!(
        seen.written(),
        ["patch configmaps default/shop-page", "patch websites.example.com/status default/shop"]
    );
    assert_eq!(seen.body("configmaps", "shop-page").unwrap()["data"]["index.html"], "hello");
    assert_eq!(seen.causes(), ["found at the start"]);
    assert_eq!(seen.reasons(), ["Published"]);
    assert_eq!(seen.sent.iter().map(|sent| sent.code).collect::<Vec<_>>(), [Some(201), Some(200)]);

    // Settled: nothing is sent.
    let again = env.reconcile(controller, "default/shop").await.unwrap();
    assert_eq!((again.action().unwrap(), again.written()), (Action::await_change(), Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn failures_panics_and_time_limits_are_its_result() {
    let env = site().await;
    let controller = AnyController::from(Controller::new(Obeys).time_limit(seconds(2)));
    for (text, expected) in
        [("fail", "as told"), ("panic", "panicked: as told"), ("hang", "ran into its time limit of 2s")]
    {
        say(&env, text).await;
        let seen = env.reconcile(controller.clone(), "default/shop").await.unwrap();
        assert_eq!(seen.action().unwrap_err().to_string(), expected);
    }
    say(&env, "fine").await;
    let seen = env.reconcile(controller, "default/shop").await.unwrap();
    assert_eq!(seen.action().unwrap().delay(), Some(seconds(30)));
    assert_eq!((seen.reasons(), seen.report.events[0].note.as_str()), (vec!["Seen"], "fine"));
}

#[tokio::test(start_paused = true)]
async fn finalizers_and_absent_objects_are_those_of_a_worker() {
    let env = site().await;
    let controller = AnyController::from(Controller::new(Obeys).finalizer("example.com/obey"));
    let seen = env.reconcile(controller.clone(), "default/shop").await.unwrap();
    assert_eq!(seen.written(), ["patch websites.example.com default/shop"]);
    assert_eq!(seen.body("websites", "shop").unwrap()["metadata"]["finalizers"], json!(["example.com/obey"]));
    env.api::<Website>("default").delete("shop", &DeleteParams::default()).await.unwrap();
    let seen = env.reconcile(controller.clone(), "default/shop").await.unwrap();
    assert_eq!(
        (seen.reasons(), seen.written()),
        (vec!["Cleaned"], vec!["patch websites.example.com default/shop".into()])
    );
    env.wait_gone::<Website>("default", "shop").await.unwrap();
    let seen = env.reconcile(controller, "default/shop").await.unwrap();
    assert_eq!(seen.report.ended, Ended::Gone);
}

#[tokio::test(start_paused = true)]
async fn it_runs_under_the_rights_that_the_controller_declares() {
    let env = site().await;
    say(&env, "pry").await;
    let error = env.reconcile(Controller::new(Obeys), "default/shop").await.unwrap_err();
    assert!(matches!(&error, EnvError::Rights(_)), "{error}");
    assert!(error.to_string().contains("missing is get on pods: "), "{error}");
    env.allow_refusals();
    env.reconcile(Controller::new(Obeys), "default/shop").await.unwrap();
}
