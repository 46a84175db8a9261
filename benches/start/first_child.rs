use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use setpoint::{Action, Context, Controller, Operator, Reconciler, Result};
use setpoint_test::TestEnv;

use crate::failure::Failure;

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

/// What most tests of an operator are made of: a cluster, a CRD, the operator under its derived rights, a child.
pub(crate) async fn first_child() -> Result<(), Failure> {
    let env = TestEnv::embedded().await?;
    let operator =
        Operator::new("pages").crd::<Page>().controller(Controller::new(Pages).owns::<ConfigMap>());
    let _running = env.run(operator).await?;
    let page = Page::new("home", PageSpec { text: "hello".to_owned() });
    env.api::<Page>("default").create(&PostParams::default(), &page).await?;
    env.wait_for("default", "home", "the first child", |_: &ConfigMap| Ok(())).await?;
    Ok(())
}
