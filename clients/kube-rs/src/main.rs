//! An operator built with kube-rs alone, and a round of its life: create, change, delete. It needs nothing but KUBECONFIG,
//! and ends with 0 if everything came out as on any Kubernetes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Container, Namespace, PodSpec, PodTemplateSpec};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::finalizer::{Error as FinalizerError, Event as Finalizer, finalizer};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::watcher;
use kube::{Api, Client, CustomResource, CustomResourceExt, Resource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

const NAMESPACE: &str = "kube-rs";
const MANAGER: &str = "barn-operator";
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks for a Deployment and a ConfigMap with a page.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "kube-rs.example.com", version = "v1", kind = "Barn", namespaced, status = "BarnStatus")]
#[serde(rename_all = "camelCase")]
struct BarnSpec {
    text: String,
    #[serde(default = "two")]
    replicas: i32,
}

fn two() -> i32 {
    2
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct BarnStatus {
    observed_generation: Option<i64>,
    ready_replicas: Option<i32>,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("finalizer: {0}")]
    Finalizer(#[from] Box<FinalizerError<Failure>>),
}

struct Context {
    client: Client,
    recorder: Recorder,
}

async fn reconcile(barn: Arc<Barn>, cx: Arc<Context>) -> Result<Action, Failure> {
    let barns: Api<Barn> = Api::namespaced(cx.client.clone(), NAMESPACE);
    finalizer(&barns, "kube-rs.example.com/farewell", barn, |event| async {
        match event {
            Finalizer::Apply(barn) => apply(&barn, &cx).await,
            Finalizer::Cleanup(barn) => farewell(&barn, &cx).await,
        }
    })
    .await
    .map_err(|error| Failure::Finalizer(Box::new(error)))
}

async fn apply(barn: &Barn, cx: &Context) -> Result<Action, Failure> {
    let params = PatchParams::apply(MANAGER).force();
    let owners = Some(vec![barn.controller_owner_ref(&()).expect("it was read from the server")]);
    let name = barn.name_any();
    let page = ConfigMap {
        metadata: ObjectMeta {
            name: Some(format!("{name}-page")),
            owner_references: owners.clone(),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("index.html".to_owned(), barn.spec.text.clone())])),
        ..ConfigMap::default()
    };
    let pages: Api<ConfigMap> = Api::namespaced(cx.client.clone(), NAMESPACE);
    pages.patch(&page.name_any(), &params, &Patch::Apply(&page)).await?;
    let labels = BTreeMap::from([("barn".to_owned(), name.clone())]);
    let deployment = Deployment {
        metadata: ObjectMeta { name: Some(name.clone()), owner_references: owners, ..ObjectMeta::default() },
        spec: DeploymentSpec {
            replicas: Some(barn.spec.replicas),
            selector: LabelSelector { match_labels: Some(labels.clone()), ..LabelSelector::default() },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }),
                spec: Some(PodSpec {
                    containers: vec![Container {
                        name: "web".to_owned(),
                        image: Some("nginx:1.27".to_owned()),
                        ..Container::default()
                    }],
                    ..PodSpec::default()
                }),
            },
            ..DeploymentSpec::default()
        },
        ..Deployment::default()
    };
    let deployments: Api<Deployment> = Api::namespaced(cx.client.clone(), NAMESPACE);
    let deployment = deployments.patch(&name, &params, &Patch::Apply(&deployment)).await?;
    if barn.status.is_none() {
        let built = Event {
            type_: EventType::Normal,
            reason: "Built".to_owned(),
            note: Some("the barn stands".to_owned()),
            action: "Build".to_owned(),
            secondary: None,
        };
        cx.recorder.publish(&built, &barn.object_ref(&())).await?;
    }
    let status = json!({"apiVersion": Barn::api_version(&()), "kind": Barn::kind(&()), "status": BarnStatus {
        observed_generation: barn.metadata.generation,
        ready_replicas: deployment.status.and_then(|status| status.ready_replicas),
    }});
    let barns: Api<Barn> = Api::namespaced(cx.client.clone(), NAMESPACE);
    barns.patch_status(&name, &params, &Patch::Apply(&status)).await?;
    Ok(Action::await_change())
}

/// Leaves a note that nothing else in the cluster would have made.
async fn farewell(barn: &Barn, cx: &Context) -> Result<Action, Failure> {
    let note = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("{}-gone", barn.name_any())}});
    let pages: Api<ConfigMap> = Api::namespaced(cx.client.clone(), NAMESPACE);
    let name = format!("{}-gone", barn.name_any());
    pages.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&note)).await?;
    Ok(Action::await_change())
}

#[tokio::main]
async fn main() {
    let client = Client::try_default().await.expect("KUBECONFIG names a cluster");
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&PostParams::default(), &Barn::crd()).await.expect("the definition can be created");
    let established = await_condition(definitions, Barn::crd_name(), conditions::is_crd_established());
    tokio::time::timeout(PATIENCE, established)
        .await
        .expect("in time")
        .expect("the definition is established");
    let namespace: Namespace =
        serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).expect("a namespace");
    Api::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .expect("the namespace can be created");

    let context = Arc::new(Context {
        client: client.clone(),
        recorder: Recorder::new(client.clone(), Reporter { controller: MANAGER.to_owned(), instance: None }),
    });
    let barns: Api<Barn> = Api::namespaced(client.clone(), NAMESPACE);
    // One of them lists by a streaming watch, as newer clients do.
    let operator = Controller::new(barns, watcher::Config::default().streaming_lists())
        .owns(Api::<Deployment>::namespaced(client.clone(), NAMESPACE), watcher::Config::default())
        .owns(Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE), watcher::Config::default())
        .run(
            reconcile,
            |_, error, _| {
                println!("   the operator tries again: {error}");
                Action::requeue(Duration::from_millis(200))
            },
            context,
        )
        .for_each(|outcome| async move {
            if let Err(error) = outcome {
                println!("   of the controller: {error}");
            }
        });
    tokio::select! {
        () = operator => panic!("the controller ended"),
        () = round(client) => println!("kube-rs: create, change and delete came out right"),
    }
}

async fn round(client: Client) {
    let barns: Api<Barn> = Api::namespaced(client.clone(), NAMESPACE);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let pages: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    // Without the replicas, which the definition's default fills in.
    let wanted: Barn = serde_json::from_value(json!({
        "apiVersion": Barn::api_version(&()), "kind": "Barn", "metadata": {"name": "red"}, "spec": {"text": "hello"},
    }))
    .expect("a barn");
    let barn = barns.create(&PostParams::default(), &wanted).await.expect("the barn can be created");

    let made = eventually("the Deployment is made", &deployments, "red", |one| one.is_some())
        .await
        .expect("it is there");
    assert_eq!(made.owner_references()[0].uid, barn.uid().expect("every object has one"));
    assert_eq!(made.spec.replicas, Some(2));
    let status = json!({"status": {"replicas": 2, "readyReplicas": 2}});
    deployments
        .patch_status("red", &PatchParams::default(), &Patch::Merge(status))
        .await
        .expect("a status can be written");
    eventually("the count of ready pods reaches the status", &barns, "red", |barn| {
        let status = barn.and_then(|barn| barn.status.clone()).unwrap_or_default();
        (status.ready_replicas, status.observed_generation) == (Some(2), Some(1))
    })
    .await;

    let change = json!({"spec": {"text": "changed", "replicas": 3}});
    barns
        .patch("red", &PatchParams::default(), &Patch::Merge(change))
        .await
        .expect("the barn can be changed");
    eventually("the page changes", &pages, "red-page", |page| {
        page.and_then(|page| page.data.as_ref()).is_some_and(|data| data["index.html"] == "changed")
    })
    .await;
    eventually("the Deployment grows", &deployments, "red", |one| {
        one.is_some_and(|one| one.spec.replicas == Some(3))
    })
    .await;

    let old = pages.get("red-page").await.expect("the page is there").uid();
    pages.delete("red-page", &DeleteParams::default()).await.expect("the page can be deleted");
    eventually("a deleted page comes back", &pages, "red-page", |page| {
        page.is_some_and(|page| page.uid() != old)
    })
    .await;

    barns.delete("red", &DeleteParams::default()).await.expect("the barn can be deleted");
    eventually("the barn goes", &barns, "red", |one| one.is_none()).await;
    eventually("its Deployment goes", &deployments, "red", |one| one.is_none()).await;
    eventually("its page goes", &pages, "red-page", |one| one.is_none()).await;
    pages.get("red-gone").await.expect("the finalizer ran");
}

/// Waits for a state of one object, by a watch.
async fn eventually<K>(what: &str, api: &Api<K>, name: &str, holds: impl Fn(Option<&K>) -> bool) -> Option<K>
where
    K: Resource + Clone + std::fmt::Debug + for<'de> Deserialize<'de> + Send + 'static,
{
    let waiting = await_condition(api.clone(), name, |one: Option<&K>| holds(one));
    match tokio::time::timeout(PATIENCE, waiting).await {
        Ok(outcome) => {
            println!("   {what}");
            outcome.unwrap_or_else(|error| panic!("{what}: {error}"))
        }
        Err(_) => panic!("{what} did not come; last seen: {:?}", api.get_opt(name).await),
    }
}
