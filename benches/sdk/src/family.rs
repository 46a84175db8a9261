//! A RedisCluster and its children, as an author of an operator would write them.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapVolumeSource, Container, ContainerPort, PodSpec, PodTemplateSpec, Probe,
    ResourceRequirements, Service, ServicePort, ServiceSpec, TCPSocketAction, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Some Redis servers.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "cache.example.com",
    version = "v1",
    kind = "RedisCluster",
    namespaced,
    status = "RedisClusterStatus"
)]
pub struct RedisClusterSpec {
    /// How many.
    pub replicas: i32,
    /// Their image.
    pub image: String,
    /// Lines of redis.conf.
    pub config: BTreeMap<String, String>,
}

/// What was reached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RedisClusterStatus {
    /// Of the spec that was reconciled last.
    pub observed_generation: Option<i64>,
    /// Servers that run.
    pub ready_replicas: i32,
    /// In one word.
    pub phase: String,
}

const PORT: i32 = 6379;

/// A new cluster.
pub fn cluster(name: &str) -> RedisCluster {
    let config = [("maxmemory", "64mb"), ("maxmemory-policy", "allkeys-lru"), ("appendonly", "yes")];
    let spec = RedisClusterSpec {
        replicas: 3,
        image: "redis:7.4".to_owned(),
        config: config.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
    };
    RedisCluster::new(name, spec)
}

fn metadata(cluster: &RedisCluster) -> ObjectMeta {
    ObjectMeta {
        name: Some(cluster.name_any()),
        namespace: cluster.namespace(),
        labels: Some(labels(cluster)),
        ..ObjectMeta::default()
    }
}

fn labels(cluster: &RedisCluster) -> BTreeMap<String, String> {
    let labels = [
        ("app.kubernetes.io/name", "redis"),
        ("app.kubernetes.io/instance", &cluster.name_any()),
        ("app.kubernetes.io/managed-by", "redis-operator"),
    ];
    labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// redis.conf.
pub fn config_map(cluster: &RedisCluster) -> ConfigMap {
    let lines = cluster.spec.config.iter().map(|(key, value)| format!("{key} {value}\n"));
    ConfigMap {
        metadata: metadata(cluster),
        data: Some([("redis.conf".to_owned(), lines.collect())].into()),
        ..ConfigMap::default()
    }
}

/// Names for the servers.
pub fn service(cluster: &RedisCluster) -> Service {
    Service {
        metadata: metadata(cluster),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            selector: Some(labels(cluster)),
            publish_not_ready_addresses: Some(true),
            ports: Some(vec![ServicePort {
                name: Some("redis".to_owned()),
                port: PORT,
                target_port: Some(IntOrString::String("redis".to_owned())),
                protocol: Some("TCP".to_owned()),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// The servers.
pub fn stateful_set(cluster: &RedisCluster) -> StatefulSet {
    let probe = |delay| Probe {
        tcp_socket: Some(TCPSocketAction { port: IntOrString::String("redis".to_owned()), host: None }),
        initial_delay_seconds: Some(delay),
        period_seconds: Some(5),
        ..Probe::default()
    };
    let amounts = [("cpu", "100m"), ("memory", "128Mi")];
    let amounts: BTreeMap<_, _> =
        amounts.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned()))).into();
    let container = Container {
        name: "redis".to_owned(),
        image: Some(cluster.spec.image.clone()),
        command: Some(vec!["redis-server".to_owned(), "/etc/redis/redis.conf".to_owned()]),
        ports: Some(vec![ContainerPort {
            name: Some("redis".to_owned()),
            container_port: PORT,
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        resources: Some(ResourceRequirements {
            requests: Some(amounts.clone()),
            limits: Some(amounts),
            ..ResourceRequirements::default()
        }),
        readiness_probe: Some(probe(1)),
        liveness_probe: Some(probe(10)),
        volume_mounts: Some(vec![VolumeMount {
            name: "config".to_owned(),
            mount_path: "/etc/redis".to_owned(),
            ..VolumeMount::default()
        }]),
        ..Container::default()
    };
    let volume = Volume {
        name: "config".to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: cluster.name_any(),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    };
    StatefulSet {
        metadata: metadata(cluster),
        spec: StatefulSetSpec {
            replicas: Some(cluster.spec.replicas),
            service_name: Some(cluster.name_any()),
            selector: LabelSelector { match_labels: Some(labels(cluster)), ..LabelSelector::default() },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels(cluster)), ..ObjectMeta::default() }),
                spec: Some(PodSpec {
                    containers: vec![container],
                    volumes: Some(vec![volume]),
                    ..PodSpec::default()
                }),
            },
            ..StatefulSetSpec::default()
        },
        status: None,
    }
}

/// How many of the servers run.
pub fn ready(servers: &StatefulSet) -> i32 {
    servers.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default()
}

/// What is to be said of a cluster of which so many servers run.
pub fn status(cluster: &RedisCluster, ready: i32) -> RedisClusterStatus {
    RedisClusterStatus {
        observed_generation: cluster.metadata.generation,
        ready_replicas: ready,
        phase: if ready == cluster.spec.replicas { "Ready" } else { "Progressing" }.to_owned(),
    }
}
