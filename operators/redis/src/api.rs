//! The `RedisCluster` resource, version v1alpha1.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The finalizer that the operator puts on each `RedisCluster`.
pub const FINALIZER: &str = "cache.example.com/finalizer";

/// Annotation: `"true"` makes the operator observe and report only.
pub const PAUSED: &str = "cache.example.com/paused";

/// Annotation: the UID of a pod that a human has found to be dead; the operator takes it as proof.
pub const CONFIRM_DOWN: &str = "cache.example.com/confirm-down";

/// Annotation: the name of the pod whose data a human chose where several disagree.
pub const CHOOSE_PRIMARY: &str = "cache.example.com/choose-primary";

/// Annotation: `"true"` lets the operator start empty again after all data was lost.
pub const ACCEPT_DATA_LOSS: &str = "cache.example.com/accept-data-loss";

/// Annotation: the name of the pod that is to be the primary. The operator removes it when that is so, or when it
/// cannot be.
pub const SWITCHOVER: &str = "cache.example.com/switchover";

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
    /// Number of Redis servers: one primary, all others its replicas. Can be raised, not lowered.
    #[schemars(range(min = 1, max = 10))]
    #[x_kube(validation = Rule::new("self >= oldSelf").message("size cannot be lowered: removing servers is not supported yet"))]
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
    /// (`Ki`, `Mi`, `Gi`). At most 90 % of the memory limit (1Gi); default 75 % of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maxmemory: Option<String>,
    /// What a server does when `maxmemory` is reached. Default `noeviction`: it refuses writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maxmemory_policy: Option<MaxmemoryPolicy>,
}

/// What a server does when its memory is used up.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Default)]
pub enum MaxmemoryPolicy {
    /// Evict any key, the least recently used first.
    #[serde(rename = "allkeys-lru")]
    AllkeysLru,
    /// Evict keys that have a time to live, the least recently used first.
    #[serde(rename = "volatile-lru")]
    VolatileLru,
    /// Evict nothing and refuse writes that need memory.
    #[default]
    #[serde(rename = "noeviction")]
    Noeviction,
}

impl MaxmemoryPolicy {
    /// The policy as `CONFIG SET maxmemory-policy` takes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AllkeysLru => "allkeys-lru",
            Self::VolatileLru => "volatile-lru",
            Self::Noeviction => "noeviction",
        }
    }
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

/// Where a `RedisCluster` stands.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Default)]
pub enum Phase {
    /// It has never had a primary.
    #[default]
    Pending,
    /// A primary serves and the number of servers is the one asked for.
    Running,
    /// No primary serves and the operator cannot provide one by itself.
    Failed,
    /// The number of servers is not yet the one asked for.
    Scaling,
}

/// What the operator observed, and what it must remember across restarts of its own.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema, Default)]
#[serde(rename_all = "camelCase")]
pub struct RedisClusterStatus {
    /// Where the cluster stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Servers that exist.
    #[serde(default)]
    pub replicas: i32,
    /// Servers that are ready: they have data and a recent link to the primary, or are the primary.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Pod of the server that is the primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_primary: Option<String>,
    /// Pod of the server that is to be the primary; differs from `currentPrimary` during a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_primary: Option<String>,
    /// Number of changes of the primary so far.
    #[serde(default)]
    pub term: i64,
    /// Pods of replicas that may be receiving data from the primary.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// The lowest number of replicas without which the primary refuses writes.
    #[serde(default)]
    pub write_quorum: i32,
    /// Whether a key was seen since the last change of the primary, or the new primary had one.
    #[serde(default)]
    pub holds_data: bool,
    /// The way in which the operator made the pods. A newer operator keeps it until a change of the spec replaces
    /// the pods anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub render_revision: Option<i32>,
    /// Conditions: Ready, PrimaryAvailable, Replicated, Progressing, ConfigApplied, FailoverBlocked, RolloutBlocked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

/// The schema of `metav1.Condition` lists, a list-map by `type` as in Kubernetes' own kinds.
fn conditions(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {"type": "string", "maxLength": 316, "description": "Kind of the condition."},
                "status": {"type": "string", "enum": ["True", "False", "Unknown"], "description": "Whether it holds."},
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0, "description": "Generation of the object that it speaks of."},
                "lastTransitionTime": {"type": "string", "format": "date-time", "description": "When the status last changed."},
                "reason": {"type": "string", "minLength": 1, "maxLength": 1024, "description": "Why, as one word for programs."},
                "message": {"type": "string", "maxLength": 32768, "description": "Why, for people."},
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt;

    use super::*;

    #[test]
    fn the_custom_resource_definition_is_pinned() {
        insta::assert_json_snapshot!(RedisCluster::crd());
    }
}
