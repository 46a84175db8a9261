use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// Servers that the operator keeps: the spec's `size` as soon as it may be carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i32>,
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
    /// Pod of a replica that is being removed, and takes over from no primary any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<String>,
    /// The largest size that a volume was asked to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_size: Option<String>,
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
