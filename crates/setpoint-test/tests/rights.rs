//! An operator that lacks rights, or has some that it does not need, fails its test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::{Api, DeleteParams};
use serde_json::json;
use setpoint::{Action, Context, Controller, Operator, Reconciler, Result, Verb};
use setpoint_test::{TestEnv, eventually};
use website::Website;

#[path = "../../setpoint/examples/website.rs"]
#[expect(dead_code, reason = "the example is a program: its main is not called here")]
mod website;

async fn create_site(env: &TestEnv) {
    env.apply(json!({
        "apiVersion": "example.com/v1",
        "kind": "Website",
        "metadata": {"name": "shop", "namespace": "default"},
        "spec": {"text": "hello"},
    }))
    .await
    .unwrap();
}

/// Reads a pod behind the SDK's back, without having declared it.
struct Nosy;

impl Reconciler for Nosy {
    type Object = Website;

    async fn reconcile(&self, _site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
        let answer = Api::<Pod>::namespaced(cx.client(), "default").get("any").await;
        cx.status(website::WebsiteStatus { page: Some(format!("{}", answer.is_err())) }).await?;
        Ok(Action::await_change())
    }
}

fn nosy() -> Operator {
    Operator::new("nosy").crd::<Website>().controller(Controller::new(Nosy))
}

/// Runs the nosy operator until it has read.
async fn read(env: &TestEnv) -> setpoint_test::Running {
    let running = env.run(nosy()).await.unwrap();
    create_site(env).await;
    env.wait_for("default", "shop", "the status to be written", |site: &Website| {
        site.status.as_ref().map(drop).ok_or_else(|| format!("{site:?}"))
    })
    .await
    .unwrap();
    running
}

const MISSING: &str = "the rights of operator nosy: missing is get on pods: the API server said: pods \"any\" is forbidden: User \
                       \"system:serviceaccount:operators:nosy\" cannot get resource \"pods\" in API group \"\" in the namespace \
                       \"default\" (declare it in the controller";

#[tokio::test(start_paused = true)]
async fn a_refused_request_fails_the_stop_and_names_the_right() {
    let env = TestEnv::start().await.unwrap();
    let error = read(&env).await.stop().await.unwrap_err();
    assert!(error.starts_with(MISSING), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_fails_a_test_that_does_not_stop_the_operator() {
    let env = TestEnv::start().await.unwrap();
    let running = read(&env).await;
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(running))).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.starts_with(MISSING), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_test_may_want_refusals() {
    let env = TestEnv::start().await.unwrap();
    env.allow_refusals();
    read(&env).await.stop().await.unwrap();
    drop(read(&env).await);
}

#[tokio::test(start_paused = true)]
async fn rights_that_are_never_used_are_named_unless_excepted() {
    let greedy = || {
        let controller = Controller::new(website::Web)
            .owns::<ConfigMap>()
            .uses::<Secret>(&[Verb::Delete])
            .uses_subresource::<Pod>("eviction", &[Verb::Create]);
        Operator::new("greedy").crd::<Website>().controller(controller)
    };
    let run = async |env: &TestEnv| {
        let running = env.run(greedy()).await.unwrap();
        create_site(env).await;
        env.wait_for("default", "shop", "the status to be written", |site: &Website| {
            site.status.as_ref().map(drop).ok_or_else(|| format!("{site:?}"))
        })
        .await
        .unwrap();
        env.api::<Website>("default").delete("shop", &DeleteParams::default()).await.unwrap();
        env.wait_gone::<Website>("default", "shop").await.unwrap();
        running.stop().await
    };
    let env = TestEnv::start().await.unwrap();
    run(&env).await.unwrap();
    env.require_used_rights(&["pods/eviction"]);
    assert_eq!(
        run(&env).await.unwrap_err(),
        "the rights of operator greedy: never used is delete on secrets"
    );
    env.require_used_rights(&["pods/eviction", "secrets"]);
    run(&env).await.unwrap();
    // The page of the last site goes by garbage collection.
    let pages = env.api::<ConfigMap>("default");
    eventually("the page to be collected", std::time::Duration::from_secs(60), async || {
        match pages.get_opt("shop-page").await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
}
