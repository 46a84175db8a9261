//! What most tests of an operator are made of: a cluster, a CRD, the operator under its own rights, a child.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::core::ObjectMeta;
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use setpoint::{Action, Context, Controller, Operator, Reconciler, Result};
use setpoint_test::TestEnv;

/// A page.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Page", namespaced)]
struct PageSpec {
    /// What it says.
    text: String,
}

struct Pages;

impl Reconciler for Pages {
    type Object = Page;

    async fn reconcile(&self, page: Arc<Page>, cx: &Context<Page>) -> Result<Action> {
        cx.apply(ConfigMap {
            metadata: ObjectMeta { name: Some(page.name_any()), ..ObjectMeta::default() },
            data: Some([("text".to_owned(), page.spec.text.clone())].into()),
            ..ConfigMap::default()
        })
        .await?;
        Ok(Action::await_change())
    }
}

fn operator() -> Operator {
    Operator::new("pages").crd::<Page>().controller(Controller::new(Pages).owns::<ConfigMap>())
}

/// Reads a Secret, which it never declared.
struct Nosy;

impl Reconciler for Nosy {
    type Object = Page;

    async fn reconcile(&self, _page: Arc<Page>, cx: &Context<Page>) -> Result<Action> {
        let api: kube::Api<Pod> = kube::Api::namespaced(cx.client(), "default");
        match api.get("any").await {
            Err(kube::Error::Api(status)) if status.code == 403 => {
                cx.apply(ConfigMap {
                    metadata: ObjectMeta { name: Some("refused".to_owned()), ..ObjectMeta::default() },
                    data: Some([("message".to_owned(), status.message.clone())].into()),
                    ..ConfigMap::default()
                })
                .await?;
            }
            other => return Err(setpoint::Error::msg(format!("not refused: {other:?}"))),
        }
        Ok(Action::await_change())
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_appears_follows_and_goes() {
    let env = TestEnv::embedded().await.unwrap();
    let running = env.run(operator()).await.unwrap();
    let pages = env.api::<Page>("default");
    let page = Page::new("home", PageSpec { text: "hello".to_owned() });
    pages.create(&PostParams::default(), &page).await.unwrap();
    let text = |wanted: &'static str| {
        move |config: &ConfigMap| {
            let text = config.data.as_ref().and_then(|data| data.get("text")).cloned();
            if text.as_deref() == Some(wanted) { Ok(()) } else { Err(format!("{text:?}")) }
        }
    };
    env.wait_for("default", "home", "the child to say hello", text("hello")).await.unwrap();
    let mut changed = pages.get("home").await.unwrap();
    changed.spec.text = "bye".to_owned();
    pages.replace("home", &PostParams::default(), &changed).await.unwrap();
    env.wait_for("default", "home", "the child to say bye", text("bye")).await.unwrap();
    pages.delete("home", &DeleteParams::default()).await.unwrap();
    env.wait_gone::<ConfigMap>("default", "home").await.unwrap();
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn rights_that_were_not_declared_are_refused() {
    let env = TestEnv::embedded().await.unwrap();
    let nosy = Operator::new("nosy").crd::<Page>().controller(Controller::new(Nosy).owns::<ConfigMap>());
    let _running = env.run(nosy).await.unwrap();
    let page = Page::new("home", PageSpec { text: "hello".to_owned() });
    env.api::<Page>("default").create(&PostParams::default(), &page).await.unwrap();
    let message = env
        .wait_for("default", "refused", "the refusal to be written down", |config: &ConfigMap| {
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
