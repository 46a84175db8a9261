//! The children as an operator keeps them that has many: their metadata, and what it reads of them.

use std::borrow::Cow;
use std::marker::PhantomData;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::Resource;
use kube::core::{NamespaceResourceScope, ObjectMeta};
use serde::{Deserialize, Serialize};

/// A `K` of which only this is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Slim<K> {
    metadata: ObjectMeta,
    /// Its status, where the kind has one of this shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<SlimStatus>,
    #[serde(skip)]
    of: PhantomData<fn() -> K>,
}

/// The status of a StatefulSet, as far as it is read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlimStatus {
    /// Servers that run.
    #[serde(default)]
    pub ready_replicas: i32,
}

/// A ConfigMap's metadata.
pub type SlimConfigMap = Slim<ConfigMap>;
/// A Service's metadata.
pub type SlimService = Slim<Service>;
/// A StatefulSet's metadata and ready replicas.
pub type SlimStatefulSet = Slim<StatefulSet>;

impl<K: Resource<DynamicType = ()>> Resource for Slim<K> {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
