//! Versions of a kind: conversion, and the migration of what is stored.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail as tests do")]

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResource;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use setpoint::{Action, Context, Controller, Operator, Reconciler, Result, Spoke, Versions};
use setpoint_test::{TestEnv, eventually};

#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Page", namespaced)]
struct PageSpec {
    text: String,
    /// Only here.
    title: Option<String>,
}

mod v1beta1 {
    use super::*;

    #[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
    #[kube(group = "example.com", version = "v1beta1", kind = "Page", namespaced)]
    pub(super) struct PageSpec {
        pub(super) body: String,
    }
}

impl Spoke<Page> for v1beta1::Page {
    fn to_hub(self) -> Result<Page> {
        match self.spec.body.as_str() {
            "panic" => panic!("the conversion's own fault"),
            "odd" => Err(setpoint::Error::msg("an odd page")),
            text => {
                let spec = PageSpec { text: text.to_owned(), title: None };
                Ok(Page { metadata: self.metadata, spec })
            }
        }
    }

    fn from_hub(hub: &Page) -> Result<Self> {
        let spec = v1beta1::PageSpec { body: hub.spec.text.clone() };
        Ok(Self { metadata: hub.metadata.clone(), spec })
    }
}

fn versions() -> Versions<Page> {
    Versions::hub().spoke::<v1beta1::Page>()
}

/// Puts each page's text into a ConfigMap.
struct Pages;

impl Reconciler for Pages {
    type Object = Page;

    async fn reconcile(&self, page: Arc<Page>, cx: &Context<Page>) -> Result<Action> {
        cx.apply(ConfigMap {
            metadata: ObjectMeta { name: page.metadata.name.clone(), ..ObjectMeta::default() },
            data: Some([("text".to_owned(), page.spec.text.clone())].into()),
            ..ConfigMap::default()
        })
        .await?;
        Ok(Action::await_change())
    }
}

fn old(name: &str, body: &str) -> v1beta1::Page {
    let mut page = v1beta1::Page::new(name, v1beta1::PageSpec { body: body.to_owned() });
    page.metadata.namespace = Some("default".to_owned());
    page
}

#[tokio::test(start_paused = true)]
async fn an_edit_in_an_old_version_keeps_what_only_the_new_one_has() {
    let env = TestEnv::start().await.unwrap();
    let _running = env.run(Operator::new("op").versions(versions())).await.unwrap();
    let (pages, olds): (Api<Page>, Api<v1beta1::Page>) = (env.api("default"), env.api("default"));
    let spec = PageSpec { text: "hello".to_owned(), title: Some("Greeting".to_owned()) };
    pages.create(&PostParams::default(), &Page::new("a", spec)).await.unwrap();

    let mut page = olds.get("a").await.unwrap();
    assert_eq!(page.spec.body, "hello");
    page.spec.body = "bye".to_owned();
    olds.replace("a", &PostParams::default(), &page).await.unwrap();
    let page = pages.get("a").await.unwrap();
    assert_eq!((page.spec.text.as_str(), page.spec.title.as_deref()), ("bye", Some("Greeting")));
    assert_eq!(
        page.metadata.annotations, None,
        "what travels with the old version is not stored with the new"
    );

    // The same by server-side apply, which merges in the old version.
    let patch = json!({"apiVersion": "example.com/v1beta1", "kind": "Page", "spec": {"body": "again"}});
    olds.patch("a", &PatchParams::apply("test").force(), &Patch::Apply(patch)).await.unwrap();
    let page = pages.get("a").await.unwrap();
    assert_eq!((page.spec.text.as_str(), page.spec.title.as_deref()), ("again", Some("Greeting")));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_converted_says_so_and_a_panic_stays_alone() {
    let env = TestEnv::start().await.unwrap();
    let operator = Operator::new("op").versions(versions());
    let metrics = operator.metrics().clone();
    let _running = env.run(operator).await.unwrap();
    let olds: Api<v1beta1::Page> = env.api("default");
    for (body, says) in
        [("odd", "default/a from v1beta1 to v1: an odd page"), ("panic", "the conversion's own fault")]
    {
        let error = olds.create(&PostParams::default(), &old("a", body)).await.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    olds.create(&PostParams::default(), &old("a", "fine")).await.unwrap();
    let text = metrics.encode();
    assert!(text.contains("controller_runtime_conversion_webhook_panics_total 1"), "{text}");
}

/// Objects that an earlier release has stored in its version are written again, more than fit on a page of a list; then the old
/// version is no longer among the stored ones.
#[tokio::test(start_paused = true)]
async fn stored_objects_are_migrated() {
    let env = TestEnv::start().await.unwrap();
    let before = Operator::new("op").versions(versions().storing("v1beta1"));
    env.install_operator(&before, "operators").await.unwrap();
    let olds: Api<v1beta1::Page> = env.api("default");
    for number in 0..502 {
        olds.create(&PostParams::default(), &old(&format!("p{number}"), "hello")).await.unwrap();
    }
    let versions_of = async |env: &TestEnv| {
        let page = olds.get("p501").await.unwrap();
        let crds: Api<CustomResourceDefinition> = Api::all(env.client());
        let crd = crds.get("pages.example.com").await.unwrap();
        (page.metadata.resource_version.unwrap(), crd.status.unwrap().stored_versions.unwrap())
    };
    let (version, _) = versions_of(&env).await;

    let operator =
        Operator::new("op").versions(versions()).controller(Controller::new(Pages).owns::<ConfigMap>());
    let running = env.run(operator).await.unwrap();
    // The controller works with the new version at once, although everything is stored in the old one.
    eventually("the text of the last page", Duration::from_secs(300), async || {
        env.api::<ConfigMap>("default").get("p501").await.map(drop).map_err(|error| error.to_string())
    })
    .await
    .unwrap();
    assert_eq!(
        versions_of(&env).await.1,
        ["v1beta1", "v1"],
        "not before every API server stores the new one"
    );
    eventually("only v1 to be stored", Duration::from_secs(300), async || {
        let (_, stored) = versions_of(&env).await;
        if stored == ["v1"] { Ok(()) } else { Err(format!("{stored:?}")) }
    })
    .await
    .unwrap();
    assert_ne!(versions_of(&env).await.0, version, "it was written again");
    assert_eq!(olds.list(&ListParams::default()).await.unwrap().items.len(), 502);
    let (version, _) = versions_of(&env).await;
    // In real time what would be repeated is repeated at once.
    let while_later = if env.cluster().is_some() { 3600 } else { 5 };
    tokio::time::sleep(Duration::from_secs(while_later)).await;
    assert_eq!(versions_of(&env).await.0, version, "once");
    running.stop().await.unwrap();
}
