//! Version v1beta1: v1alpha1, and what resources the servers get, when writes are accepted, and whether servers may be removed.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::RedisClusterStatus;
use super::v1::{Resources, ScaleDown};
pub use super::v1alpha1::{MaxmemoryPolicy, RedisConfig, Storage};

/// What the user asks for.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "cache.example.com",
    version = "v1beta1",
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
    validation = Rule::new("size(self.metadata.name) <= 40").message("name must have at most 40 characters: names of children are derived from it"),
    validation = Rule::new("self.spec.size >= oldSelf.spec.size || self.spec.scaleDown == 'Allow'").message("size can be lowered only where scaleDown is Allow: servers would be removed").field_path(".spec.size")
)]
#[serde(rename_all = "camelCase")]
pub struct RedisClusterSpec {
    /// Number of Redis servers: one primary, all others its replicas. Can be lowered only
    /// where `scaleDown` is `Allow`.
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
    /// What each server asks of its node. Default: requests of 100m CPU and 256Mi, limits of 500m and 1Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// How many replicas must follow closely for writes to be accepted, as far as there are so many: `auto`, half of the
    /// servers rounded down, or a number below `size`. Default `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "auto_or_number")]
    pub min_replicas_to_write: Option<IntOrString>,
    /// Whether `size` may be lowered.
    #[serde(default)]
    pub scale_down: ScaleDown,
}

fn auto_or_number(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "pattern": "^(auto|[0-9])$",
    })
}
