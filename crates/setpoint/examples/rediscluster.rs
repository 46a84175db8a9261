//! The operator that the tutorial (docs/sdk/tutorial.md) builds: Redis servers from a RedisCluster.

use std::process::ExitCode;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use setpoint::{Action, Cleanup, Context, Controller, Event, Operator, Reconciler, Result, set_condition};

/// Redis servers that run alike.
#[derive(CustomResource, KubeSchema, Clone, Debug, Serialize, Deserialize)]
#[kube(
    group = "cache.example.com",
    version = "v1alpha1",
    kind = "RedisCluster",
    plural = "redisclusters",
    shortname = "rdc",
    namespaced,
    status = "RedisClusterStatus",
    scale(spec_replicas_path = ".spec.size", status_replicas_path = ".status.replicas"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image")
)]
#[serde(rename_all = "camelCase")]
pub struct RedisClusterSpec {
    /// Number of servers. It can be raised, not lowered.
    #[schemars(range(min = 1, max = 10))]
    #[x_kube(validation = Rule::new("self >= oldSelf").message("a cluster does not shrink"))]
    size: i32,
    /// Image of the servers, with its tag.
    image: String,
    /// Memory for data in each server, such as `64mb`.
    #[serde(default = "maxmemory")]
    maxmemory: String,
}

fn maxmemory() -> String {
    "64mb".to_owned()
}

/// What there is.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RedisClusterStatus {
    /// Servers that there are.
    #[serde(default)]
    replicas: i32,
    /// Servers that answer.
    #[serde(default)]
    ready_replicas: i32,
    /// `Ready`: every server that is asked for answers.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    conditions: Vec<Condition>,
}

struct Redis;

impl Reconciler for Redis {
    type Object = RedisCluster;

    async fn reconcile(&self, cluster: Arc<RedisCluster>, cx: &Context<RedisCluster>) -> Result<Action> {
        cx.apply(config(&cluster)?).await?;
        cx.apply(service(&cluster)?).await?;
        let servers = cx.apply(servers(&cluster)?).await?;

        let seen = servers.status.clone().unwrap_or_default();
        let mut status = cluster.status.clone().unwrap_or_default();
        (status.replicas, status.ready_replicas) = (seen.replicas, seen.ready_replicas.unwrap_or(0));
        let ready = status.ready_replicas == cluster.spec.size;
        let (word, reason) = if ready { ("True", "AllReady") } else { ("False", "Waiting") };
        let message = format!("{} of {} servers answer", status.ready_replicas, cluster.spec.size);
        let generation = cluster.metadata.generation;
        set_condition(&mut status.conditions, cx.clock(), generation, ("Ready", word), reason, message);
        cx.status(status).await?;
        Ok(Action::await_change())
    }
}

impl Cleanup for Redis {
    /// The place for what garbage collection doesn't reach, such as accounts, DNS names and backups.
    async fn cleanup(&self, cluster: Arc<RedisCluster>, cx: &Context<RedisCluster>) -> Result<Action> {
        cx.event(Event::normal("Deleted", format!("{} goes, and its servers with it", cluster.name_any())));
        Ok(Action::await_change())
    }
}

fn labels(cluster: &RedisCluster) -> serde_json::Value {
    json!({"app.kubernetes.io/name": "redis", "app.kubernetes.io/instance": cluster.name_any()})
}

fn config(cluster: &RedisCluster) -> Result<ConfigMap> {
    let text = format!("bind * -::*\nprotected-mode no\nmaxmemory {}\n", cluster.spec.maxmemory);
    Ok(serde_json::from_value(json!({
        "metadata": {"name": format!("{}-config", cluster.name_any()), "labels": labels(cluster)},
        "data": {"redis.conf": text},
    }))?)
}

fn service(cluster: &RedisCluster) -> Result<Service> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": cluster.name_any(), "labels": labels(cluster)},
        "spec": {"selector": labels(cluster), "ports": [{"name": "redis", "port": 6379}]},
    }))?)
}

fn servers(cluster: &RedisCluster) -> Result<StatefulSet> {
    let config = format!("{}-config", cluster.name_any());
    Ok(serde_json::from_value(json!({
        "metadata": {"name": cluster.name_any(), "labels": labels(cluster)},
        "spec": {
            "replicas": cluster.spec.size,
            "serviceName": cluster.name_any(),
            "selector": {"matchLabels": labels(cluster)},
            "template": {
                "metadata": {"labels": labels(cluster)},
                "spec": {
                    "containers": [{
                        "name": "redis",
                        "image": cluster.spec.image,
                        "command": ["redis-server", "/etc/redis/redis.conf"],
                        "ports": [{"containerPort": 6379}],
                        "readinessProbe": {"tcpSocket": {"port": 6379}, "periodSeconds": 1},
                        "volumeMounts": [{"name": "config", "mountPath": "/etc/redis"}],
                    }],
                    "volumes": [{"name": "config", "configMap": {"name": config}}],
                },
            },
        },
    }))?)
}

/// The operator: what it declares here is all that it may do.
pub fn operator() -> Operator {
    let controller = Controller::new(Redis)
        .owns::<ConfigMap>()
        .owns::<Service>()
        .owns::<StatefulSet>()
        .finalizer("cache.example.com/finalizer");
    Operator::new("redis-tutorial")
        .version(env!("CARGO_PKG_VERSION"))
        .crd::<RedisCluster>()
        .controller(controller)
}

fn main() -> ExitCode {
    operator().main()
}
