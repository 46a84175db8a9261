//! The operator, written with kube's Controller as its guide shows it: server-side apply of each child.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::api::{Api, Patch, PatchParams};
use kube::client::ClientBuilder;
use kube::core::NamespaceResourceScope;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use setpoint_bench_sdk::family::{self, RedisCluster};
use setpoint_bench_sdk::{Counting, Gauge};

const MANAGER: &str = "redis-operator";

struct Data {
    client: Client,
    gauge: Arc<Gauge>,
}

async fn reconcile(cluster: Arc<RedisCluster>, data: Arc<Data>) -> Result<Action, kube::Error> {
    data.gauge.reconcile(&cluster.name_any());
    apply(family::config_map(&cluster), &cluster, &data).await?;
    apply(family::service(&cluster), &cluster, &data).await?;
    let servers = apply(family::stateful_set(&cluster), &cluster, &data).await?;
    let status = family::status(&cluster, family::ready(&servers));
    if cluster.status.as_ref() != Some(&status) {
        let clusters: Api<RedisCluster> =
            Api::namespaced(data.client.clone(), &cluster.namespace().unwrap_or_default());
        let patch = Patch::Merge(json!({ "status": status }));
        clusters.patch_status(&cluster.name_any(), &PatchParams::default(), &patch).await?;
    }
    Ok(Action::await_change())
}

async fn apply<K>(mut child: K, owner: &RedisCluster, data: &Data) -> Result<K, kube::Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    child.meta_mut().owner_references = owner.controller_owner_ref(&()).map(|reference| vec![reference]);
    let api: Api<K> = Api::namespaced(data.client.clone(), &owner.namespace().unwrap_or_default());
    api.patch(&child.name_any(), &PatchParams::apply(MANAGER).force(), &Patch::Apply(&child)).await
}

fn on_error(_: Arc<RedisCluster>, _: &kube::Error, _: Arc<Data>) -> Action {
    Action::requeue(Duration::from_secs(1))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gauge = Gauge::start();
    let config = kube::Config::infer().await?;
    let client = ClientBuilder::try_from(config)?.with_layer(&Counting(Arc::clone(&gauge))).build();
    let all = watcher::Config::default();
    Controller::new(Api::<RedisCluster>::all(client.clone()), all.clone())
        .with_config(Config::default().concurrency(4))
        .owns(Api::<ConfigMap>::all(client.clone()), all.clone())
        .owns(Api::<Service>::all(client.clone()), all.clone())
        .owns(Api::<StatefulSet>::all(client.clone()), all)
        .run(reconcile, on_error, Arc::new(Data { client, gauge }))
        .for_each(|_| std::future::ready(()))
        .await;
    Ok(())
}
