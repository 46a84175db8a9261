//! Version v1alpha1: what everything needs, nothing more.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RedisClusterStatus;

/// What the user asks for.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "cache.example.com",
    version = "v1alpha1",
    kind = "RedisCluster",
    plural = "redisclusters",
    singular = "rediscluster",
    shortname = "rdc",
    namespaced,
    status = "RedisClusterStatus",
    derive = "PartialEq",
    doc = "A Redis primary and the replicas that follow it, kept alive by the redis-operator.",
    scale(spec_replicas_path = ".spec.size", status_replicas_path = ".status.replicas"),
    printcolumn(name = "Size", type_ = "integer", json_path = ".spec.size", description = "Servers asked for"),
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image", description = "Image of the servers"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", description = "Where the cluster stands"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas", description = "Servers that are ready"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp", description = "Time since creation"),
    validation = Rule::new("size(self.metadata.name) <= 40").message("name must have at most 40 characters: names of children are derived from it")
)]
#[serde(rename_all = "camelCase")]
pub struct RedisClusterSpec {
    /// Number of Redis servers: one primary, all others its replicas. Can be lowered only
    /// where the annotation `cache.example.com/allow-scale-down` says `true`.
    #[schemars(range(min = 1, max = 10))]
    pub size: i32,
    /// Repository of the server's image, for example `redis`. May carry a tag or digest of its own.
    #[schemars(length(min = 1))]
    pub image: String,
    /// Tag of the image, for example `7.0`. Must agree with the tag in `image` if that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Settings of the servers. Changes reach running servers without a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<RedisConfig>,
    /// Where the servers keep their data. Without it they keep it in memory only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
}

/// Settings of the servers.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema, Default)]
#[serde(rename_all = "camelCase")]
pub struct RedisConfig {
    /// Memory for data in each server: bytes, or with a unit of Redis (`kb`, `mb`, `gb`) or Kubernetes
    /// (`Ki`, `Mi`, `Gi`). At most 90 % of the memory limit; default 75 % of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maxmemory: Option<String>,
    /// What a server does when `maxmemory` is reached. Default `noeviction`: it refuses writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maxmemory_policy: Option<MaxmemoryPolicy>,
}

/// What a server does when its memory is used up.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum MaxmemoryPolicy {
    /// Evict any key, the least recently used first.
    #[serde(rename = "allkeys-lru")]
    AllkeysLru,
    /// Evict keys that have a time to live, the least recently used first.
    #[serde(rename = "volatile-lru")]
    VolatileLru,
    /// Evict nothing and refuse writes that need memory.
    #[serde(rename = "noeviction")]
    Noeviction,
}

/// Where a server keeps its data.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Size of each server's volume, for example `1Gi`.
    #[schemars(regex(pattern = r"^[0-9]+(Gi|Mi|Ti)$"))]
    pub size: String,
    /// Storage class of the volumes. Default: the class that the Kubernetes cluster has marked as default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
}
