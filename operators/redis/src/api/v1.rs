use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, Toleration, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{MaxmemoryPolicy, RedisClusterStatus};

/// What the user asks for.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "cache.example.com",
    version = "v1",
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
    printcolumn(name = "Primary", type_ = "string", json_path = ".status.currentPrimary", description = "Pod of the primary"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version", description = "Tag of the image", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp", description = "Time since creation"),
    validation = Rule::new("size(self.metadata.name) <= 40").message("name must have at most 40 characters: names of children are derived from it"),
    validation = Rule::new("self.spec.size >= oldSelf.spec.size || self.spec.scaleDown == 'Allow'").message("size can be lowered only where scaleDown is Allow: servers would be removed").field_path(".spec.size")
)]
#[serde(rename_all = "camelCase")]
pub struct RedisClusterSpec {
    /// How the servers share the data. Cannot be changed.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message("mode cannot be changed"))]
    pub mode: Mode,
    /// Number of Redis servers: one primary, all others its replicas. Can be lowered only where `scaleDown` is `Allow`.
    #[schemars(range(min = 1, max = 10))]
    pub size: i32,
    /// Repository of the server's image, for example `redis`. May carry a tag or digest of its own.
    #[schemars(length(min = 1))]
    pub image: String,
    /// Tag of the image, for example `7.0`. Must agree with the tag in `image` if that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Where the servers keep their data. Without it they keep it in memory only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// Settings of the servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<RedisConfig>,
    /// What each server asks of its node. Default: requests of 100m CPU and 256Mi, limits of 500m and 1Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// When the primary accepts writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes: Option<Writes>,
    /// Whether `size` may be lowered. Volumes of removed servers stay unless `storage.reclaim` is `Delete`.
    #[serde(default)]
    pub scale_down: ScaleDown,
    /// How pods are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<Update>,
    /// When the primary counts as lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failover: Option<Failover>,
    /// Where the servers run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<Scheduling>,
}

/// How the servers share the data.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Default)]
pub enum Mode {
    /// One primary has all of it, and replicas follow.
    #[default]
    Replication,
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
    /// What becomes of a volume when its server is removed or the cluster is deleted.
    #[serde(default)]
    pub reclaim: Reclaim,
}

/// What becomes of volumes that nothing uses any more.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Default)]
pub enum Reclaim {
    /// They stay.
    #[default]
    Retain,
    /// Their claims are deleted, and with them, in most storage classes, the data.
    Delete,
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
    /// Other settings of redis.conf, by name, as texts. Which ones, and which of them restart the servers, is in the
    /// documentation; what keeps the data safe cannot be set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

/// What each server asks of its node.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema, Default)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What is set aside. Default: what `limits` say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Amounts>,
    /// The most that it gets. Without `memory` it is 1Gi, or the request where that is more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Amounts>,
}

/// Amounts of what a node has.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema, Default)]
#[serde(rename_all = "camelCase")]
pub struct Amounts {
    /// Processors, for example `500m` or `2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub cpu: Option<IntOrString>,
    /// Memory, for example `2Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub memory: Option<IntOrString>,
}

/// When the primary accepts writes.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Writes {
    /// How many replicas must follow closely: `auto`, half of the servers rounded down, or a number below `size`.
    #[serde(default = "auto")]
    #[schemars(schema_with = "auto_or_number")]
    pub min_replicas: IntOrString,
    /// What happens where fewer replicas are there.
    #[serde(default)]
    pub policy: WritePolicy,
}

impl Default for Writes {
    fn default() -> Self {
        Self { min_replicas: auto(), policy: WritePolicy::default() }
    }
}

/// What happens where fewer replicas follow than wanted.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Default)]
pub enum WritePolicy {
    /// As many as there are suffice: the loss of a replica stops no write.
    #[default]
    Preferred,
    /// Writes are refused until there are enough.
    Required,
}

/// Whether servers may be removed.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Default)]
pub enum ScaleDown {
    /// They may not.
    #[default]
    Forbid,
    /// They may.
    Allow,
}

/// How pods are replaced.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema, Default)]
#[serde(rename_all = "camelCase")]
pub struct Update {
    /// How the primary is updated once all replicas are.
    #[serde(default)]
    pub primary: PrimaryUpdate,
    /// When pods get what a newer operator makes in another way.
    #[serde(default)]
    pub operator_changes: OperatorChanges,
    /// How long a new pod may take to be in sync before somebody is to look, for example `10m`. Default `10m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub timeout: Option<String>,
}

/// How the primary is updated.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Default)]
pub enum PrimaryUpdate {
    /// Its role moves to an updated replica by itself.
    #[default]
    Auto,
    /// Its role moves when somebody asks for that by annotation.
    Manual,
}

/// When pods get what a newer operator makes in another way.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Default)]
pub enum OperatorChanges {
    /// When they are replaced anyway.
    #[default]
    WithNextRoll,
    /// At once: each upgrade of the operator may replace all pods, one at a time.
    Auto,
}

/// When the primary counts as lost.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema, Default)]
#[serde(rename_all = "camelCase")]
pub struct Failover {
    /// How long the primary must be silent, for operator and replicas, before another takes over: `3s` to `5m`.
    /// Default `3s`. A primary that is known to be dead is replaced at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub unreachable_after: Option<String>,
}

/// Where the servers run, as in pods.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema, Default)]
#[serde(rename_all = "camelCase")]
pub struct Scheduling {
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Which nodes and neighbours. Default: preferably a node and a zone of its own for each server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Taints of nodes that do not matter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// How servers are spread.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// The pods' priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
}

fn auto() -> IntOrString {
    IntOrString::String("auto".to_owned())
}

fn auto_or_number(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "pattern": "^(auto|[0-9])$",
        "default": "auto",
    })
}

fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$",
    })
}

fn duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "pattern": "^([0-9]+(s|m|h))+$"})
}
