use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use serde_json::json;
use setpoint::{Action, Context, Controller, Reconciler, Result, Watch};

use crate::world::{Website, World};

/// Knows no type: neither of what it reconciles nor of what it makes.
struct Generic {
    page: ApiResource,
}

impl Reconciler for Generic {
    type Object = DynamicObject;

    async fn reconcile(&self, site: Arc<DynamicObject>, cx: &Context<DynamicObject>) -> Result<Action> {
        let text = &site.data["spec"]["text"];
        let pages = cx.resource::<DynamicObject>(&self.page);
        pages
            .apply(
                DynamicObject::new(&site.name_any(), &self.page).data(json!({"data": {"index.html": text}})),
            )
            .await?;
        assert_eq!(pages.children().await?.len(), 1);
        cx.status_as(json!({"text": text})).await?;
        Ok(Action::await_change())
    }
}

#[tokio::test(start_paused = true)]
async fn kinds_that_are_known_at_run_time_are_reconciled_like_others() {
    let mut world = World::new().await;
    let (site, page) = (ApiResource::erase::<Website>(&()), ApiResource::erase::<ConfigMap>(&()));
    let controller =
        Controller::with(Generic { page: page.clone() }, &site).owns_as(Watch::<DynamicObject>::of(&page));
    world.start(controller);
    world.create_site("a", "hello").await;
    world.page_has("a", "hello").await;
    world.status_has("a", "hello").await;
    // Its child is put back.
    let edit = Patch::Merge(json!({"data": {"index.html": "theirs"}}));
    world.pages().patch("a", &PatchParams::default(), &edit).await.unwrap();
    world.page_has("a", "hello").await;
    world.stop().await;
}
