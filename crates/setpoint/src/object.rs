use std::fmt;

use kube::api::ApiResource;
use kube::core::{ClusterResourceScope, DynamicResourceScope, NamespaceResourceScope};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Key;

/// How the API server names a kind: enough to build every path and owner reference.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: String,
    /// Version within the group, such as `v1`.
    pub version: String,
    /// Name of the kind, such as `StatefulSet`.
    pub kind: String,
    /// Plural resource name, as in paths and RBAC rules.
    pub plural: String,
    /// Whether its objects live in namespaces. True for kinds known only at run time unless
    /// [`Kind::cluster_scoped`] says otherwise.
    pub namespaced: bool,
}

impl Kind {
    /// The kind of a type that is known at compile time.
    pub fn of<K: Object>() -> Self
    where
        K::DynamicType: Default,
    {
        K::kind_of(&K::DynamicType::default())
    }

    /// A kind that is known only at run time, taken as namespaced.
    pub fn dynamic(resource: &ApiResource) -> Self {
        Self {
            group: resource.group.clone(),
            version: resource.version.clone(),
            kind: resource.kind.clone(),
            plural: resource.plural.clone(),
            namespaced: true,
        }
    }

    /// The same kind, with objects outside namespaces.
    pub fn cluster_scoped(mut self) -> Self {
        self.namespaced = false;
        self
    }

    /// `group/version`, or only the version for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Path of the collection: in one namespace, or over all of them.
    pub fn collection_path(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis" };
        let namespace = match namespace {
            Some(namespace) => format!("namespaces/{namespace}/"),
            None => String::new(),
        };
        format!("{root}/{}/{namespace}{}", self.api_version(), self.plural)
    }

    /// Path of one object.
    pub fn object_path(&self, key: &Key) -> String {
        format!("{}/{}", self.collection_path(key.namespace.as_deref()), key.name)
    }

    /// Whether both name the same resource in the same version, whatever is known about its scope.
    pub(crate) fn same_resource(&self, other: &Self) -> bool {
        (&self.group, &self.version, &self.plural) == (&other.group, &other.version, &other.plural)
    }

    /// Whether `api_version` and `kind` name this group and kind, in whatever version.
    pub fn same_group_kind(&self, api_version: &str, kind: &str) -> bool {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        self.group == group && self.kind == kind
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.kind)
        } else {
            write!(f, "{}.{}", self.kind, self.group)
        }
    }
}

/// What the SDK can cache and write: any kube `Resource` that can be encoded and decoded. Implemented for
/// all of them: k8s-openapi's types, derived custom resources, `DynamicObject` and `PartialObjectMeta`.
pub trait Object:
    kube::Resource<Scope: Scoped> + Clone + fmt::Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// The names of this kind.
    fn kind_of(dynamic: &Self::DynamicType) -> Kind;
}

impl<K> Object for K
where
    K: kube::Resource<Scope: Scoped>
        + Clone
        + fmt::Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    fn kind_of(dynamic: &Self::DynamicType) -> Kind {
        Kind {
            group: K::group(dynamic).into_owned(),
            version: K::version(dynamic).into_owned(),
            kind: K::kind(dynamic).into_owned(),
            plural: K::plural(dynamic).into_owned(),
            namespaced: K::Scope::NAMESPACED,
        }
    }
}

/// Scopes of kinds, as kube's marker types tell them.
pub trait Scoped {
    /// Whether objects live in namespaces.
    const NAMESPACED: bool;
}

impl Scoped for NamespaceResourceScope {
    const NAMESPACED: bool = true;
}

impl Scoped for ClusterResourceScope {
    const NAMESPACED: bool = false;
}

impl Scoped for DynamicResourceScope {
    const NAMESPACED: bool = true;
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::StatefulSet;
    use k8s_openapi::api::core::v1::{Node, Pod};
    use kube::core::PartialObjectMeta;

    use super::*;

    #[test]
    fn paths_follow_group_and_scope() {
        let set = Kind::of::<StatefulSet>();
        assert_eq!(set.object_path(&Key::new("ns", "web")), "/apis/apps/v1/namespaces/ns/statefulsets/web");
        assert_eq!(Kind::of::<Node>().object_path(&Key::cluster("n1")), "/api/v1/nodes/n1");
        assert_eq!(Kind::of::<Pod>().collection_path(None), "/api/v1/pods");
        assert_eq!(Kind::of::<PartialObjectMeta<Pod>>(), Kind::of::<Pod>());
    }

    #[test]
    fn owners_compare_without_their_version() {
        let set = Kind::of::<StatefulSet>();
        assert!(set.same_group_kind("apps/v1beta1", "StatefulSet"));
        assert!(!set.same_group_kind("v1", "StatefulSet"));
    }
}
