//! The README's test, of the README's operator, and what else most tests of an operator are made of.
//!
//! The same on a real API server:
//!
//! ```console
//! SETPOINT_TEST_SERVER=binaries KUBEBUILDER_ASSETS=/path cargo test -p setpoint-test
//! ```

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, DeleteParams};
use kube::core::ObjectMeta;
use serde_json::{Value, json};
use setpoint::{Action, Context, Controller, Operator, Reconciler, Result};
use setpoint_test::{Seen, TestEnv};
use website::Website;

#[path = "../../setpoint/examples/website.rs"]
#[expect(dead_code, reason = "the example is a program: its main is not called here")]
mod website;

#[tokio::test(start_paused = true)]
async fn a_website_gets_its_page() {
    let env = TestEnv::start().await.unwrap();
    let running = env.run(website::operator()).await.unwrap();
    env.apply(json!({
        "apiVersion": "example.com/v1",
        "kind": "Website",
        "metadata": {"name": "shop", "namespace": "default"},
        "spec": {"text": "hello"},
    }))
    .await
    .unwrap();
    env.wait_for("default", "shop-page", "the page to say hello", |page: &ConfigMap| {
        let text = page.data.as_ref().and_then(|data| data.get("index.html"));
        if text.is_some_and(|text| text == "hello") { Ok(()) } else { Err(format!("{text:?}")) }
    })
    .await
    .unwrap();
    running.stop().await.unwrap();
}

fn website(text: &str) -> Value {
    json!({
        "apiVersion": "example.com/v1",
        "kind": "Website",
        "metadata": {"name": "shop", "namespace": "default"},
        "spec": {"text": text},
    })
}

/// Whether a page says `wanted`.
fn says(wanted: &str) -> impl Fn(&ConfigMap) -> Seen<()> {
    move |page: &ConfigMap| {
        let text = page.data.as_ref().and_then(|data| data.get("index.html"));
        if text.is_some_and(|text| text == wanted) { Ok(()) } else { Err(format!("{text:?}")) }
    }
}

#[tokio::test(start_paused = true)]
async fn the_page_follows_and_goes() {
    let env = TestEnv::start().await.unwrap();
    let running = env.run(website::operator()).await.unwrap();
    for text in ["hello", "bye"] {
        env.apply(website(text)).await.unwrap();
        env.wait_for("default", "shop-page", text, says(text)).await.unwrap();
    }
    env.api::<Website>("default").delete("shop", &DeleteParams::default()).await.unwrap();
    env.wait_gone::<ConfigMap>("default", "shop-page").await.unwrap();
    running.stop().await.unwrap();
}

/// Reads a pod, which it never declared, and writes down the answer.
struct Nosy;

impl Reconciler for Nosy {
    type Object = Website;

    async fn reconcile(&self, _site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
        let answer = match Api::<Pod>::namespaced(cx.client(), "default").get("any").await {
            Err(kube::Error::Api(status)) => status.message,
            other => return Err(setpoint::Error::msg(format!("not refused: {other:?}"))),
        };
        cx.apply(ConfigMap {
            metadata: ObjectMeta { name: Some("answer".to_owned()), ..ObjectMeta::default() },
            data: Some([("message".to_owned(), answer)].into()),
            ..ConfigMap::default()
        })
        .await?;
        Ok(Action::await_change())
    }
}

#[tokio::test(start_paused = true)]
async fn rights_that_were_not_declared_are_refused() {
    let env = TestEnv::start().await.unwrap();
    env.allow_refusals();
    let nosy = Operator::new("nosy").crd::<Website>().controller(Controller::new(Nosy).owns::<ConfigMap>());
    let _running = env.run(nosy).await.unwrap();
    env.apply(website("hello")).await.unwrap();
    let message = env
        .wait_for("default", "answer", "the answer to be written down", |config: &ConfigMap| {
            Ok(config.data.clone().unwrap_or_default().remove("message").unwrap_or_default())
        })
        .await
        .unwrap();
    assert_eq!(
        message,
        "pods \"any\" is forbidden: User \"system:serviceaccount:operators:nosy\" cannot get resource \"pods\" in API \
         group \"\" in the namespace \"default\""
    );
}

/// Never gets anywhere.
struct Stuck;

impl Reconciler for Stuck {
    type Object = Website;

    async fn reconcile(&self, _site: Arc<Website>, _cx: &Context<Website>) -> Result<Action> {
        Err(setpoint::Error::msg("the registry does not answer"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_in_vain_says_what_fails_in_the_operator() {
    let env = TestEnv::start().await.unwrap();
    let stuck = Operator::new("stuck").crd::<Website>().controller(Controller::new(Stuck));
    let _running = env.run(stuck).await.unwrap();
    env.apply(website("hello")).await.unwrap();
    let error =
        env.wait_for("default", "shop-page", "the page", says("hello")).await.unwrap_err().to_string();
    let expected = "last seen: there is no shop-page in namespace default; failing: controller website, default/shop: \
                    the registry does not answer";
    assert!(error.ends_with(expected), "{error}");
}
