use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::api::RedisCluster;

/// Label of pods: the role that the operator admitted the server to. Services select on it.
pub const ROLE: &str = "cache.example.com/role";

/// Label of volume claims: UID of the `RedisCluster` that they were made for.
pub const OWNER_UID: &str = "cache.example.com/owner-uid";

/// Label of all children: name of the `RedisCluster`.
pub const CLUSTER: &str = "cache.example.com/cluster";

/// Label of all children: number of the shard.
const SHARD: &str = "cache.example.com/shard";

/// What a server was admitted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Accepts writes.
    Primary,
    /// Follows the primary.
    Replica,
}

impl Role {
    /// The value of the label [`ROLE`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Replica => "replica",
        }
    }

    /// The role that `labels` name.
    pub fn of(labels: &BTreeMap<String, String>) -> Option<Self> {
        match labels.get(ROLE).map(String::as_str) {
            Some("primary") => Some(Self::Primary),
            Some("replica") => Some(Self::Replica),
            _ => None,
        }
    }
}

/// Names and labels of a cluster's children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the `RedisCluster`.
    pub name: String,
    /// Namespace of the `RedisCluster` and of all children.
    pub namespace: String,
    /// UID of the `RedisCluster`.
    pub uid: String,
}

impl Identity {
    /// The identity of `cluster`.
    pub fn of(cluster: &RedisCluster) -> Self {
        Self {
            name: cluster.name_any(),
            namespace: cluster.namespace().unwrap_or_default(),
            uid: cluster.uid().unwrap_or_default(),
        }
    }

    /// Name of the child that is named after its purpose.
    pub fn child(&self, purpose: &str) -> String {
        format!("{}-{purpose}", self.name)
    }

    /// Name of the pod with `ordinal`.
    pub fn pod(&self, ordinal: u32) -> String {
        format!("{}-{ordinal}", self.name)
    }

    /// The ordinal of the pod called `name`, if it is one of this cluster's.
    pub fn ordinal(&self, name: &str) -> Option<u32> {
        let digits = name.strip_prefix(&self.name)?.strip_prefix('-')?;
        digits.parse().ok().filter(|ordinal: &u32| ordinal.to_string() == digits)
    }

    /// Name of the volume claim of the pod with `ordinal`.
    pub fn claim(&self, ordinal: u32) -> String {
        format!("data-{}-{ordinal}", self.name)
    }

    /// The labels by which children and Services find the cluster's pods.
    pub fn selector(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(CLUSTER.to_owned(), self.name.clone()), (SHARD.to_owned(), "0".to_owned())])
    }

    /// All labels of a child.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.selector();
        labels.extend([
            ("app.kubernetes.io/name".to_owned(), "redis".to_owned()),
            ("app.kubernetes.io/instance".to_owned(), self.name.clone()),
            ("app.kubernetes.io/managed-by".to_owned(), "redis-operator".to_owned()),
        ]);
        labels
    }

    /// Metadata of the child called `name`.
    pub fn metadata(&self, name: String) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.namespace.clone()),
            labels: Some(self.labels()),
            ..ObjectMeta::default()
        }
    }
}
