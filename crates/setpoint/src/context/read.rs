use std::sync::Arc;

use http::Method;
use serde_json::Value;

use super::{Access, Resource};
use crate::cache::{AnyCache, CONTROLLER, Cache, Origin};
use crate::request::{Form, request};
use crate::{Error, Key, Kind, Object, Result, Verb};

/// A read of what the controller does not keep.
#[derive(Debug, thiserror::Error)]
pub enum NotCached {
    /// The kind is not watched.
    #[error(
        "controller {controller} does not watch {kind}: declare it with owns, owns_metadata or watches, or read it live"
    )]
    Kind {
        /// The controller.
        controller: String,
        /// The kind.
        kind: Kind,
    },
    /// The kind is watched, but has no such index.
    #[error("controller {controller} has no index {index} on {kind}: declare it with index")]
    Index {
        /// The controller.
        controller: String,
        /// The kind.
        kind: Kind,
        /// The index.
        index: String,
    },
}

impl<K: Object> Resource<'_, K> {
    /// As [`crate::Context::get`].
    pub async fn get(&self, key: impl Into<Key>) -> Result<Option<Arc<K>>> {
        let key = self.access.resolve(&self.kind, key.into());
        let cache = self.cache()?;
        self.access.settle(&*cache, Some(&key)).await?;
        Ok(cache.get(&key))
    }

    /// As [`crate::Context::list`].
    pub async fn list(&self) -> Result<Vec<Arc<K>>> {
        let namespace = if self.kind.namespaced { self.access.owner.key.namespace.as_deref() } else { None };
        let cache = self.cache()?;
        self.access.settle(&*cache, None).await?;
        Ok(cache.list(namespace))
    }

    /// As [`crate::Context::list_all`].
    pub async fn list_all(&self) -> Result<Vec<Arc<K>>> {
        let cache = self.cache()?;
        self.access.settle(&*cache, None).await?;
        Ok(cache.list(None))
    }

    /// As [`crate::Context::by_index`].
    pub async fn by_index(&self, index: &str, value: &str) -> Result<Vec<Arc<K>>> {
        let cache = self.cache()?;
        self.access.settle(&*cache, None).await?;
        cache.by_index(index, value).ok_or_else(|| {
            let (controller, kind) = (self.access.controller.name.to_string(), self.kind.clone());
            Error::from(NotCached::Index { controller, kind, index: index.to_owned() })
        })
    }

    /// As [`crate::Context::children`].
    pub async fn children(&self) -> Result<Vec<Arc<K>>> {
        self.by_index(CONTROLLER, self.access.owner.uid.as_deref().unwrap_or_default()).await
    }

    /// As [`crate::Context::live`].
    pub async fn live(&self, key: impl Into<Key>) -> Result<Option<K>> {
        let key = self.access.resolve(&self.kind, key.into());
        let form = if K::metadata_api() { Form::Metadata } else { Form::Whole };
        let object = self.access.read_live(&self.kind, &key, form).await?;
        Ok(object.map(serde_json::from_value).transpose()?)
    }

    fn cache(&self) -> Result<Arc<Cache<K>>> {
        self.access.controller.cache(&self.kind).ok_or_else(|| {
            let (controller, kind) = (self.access.controller.name.to_string(), self.kind.clone());
            Error::from(NotCached::Kind { controller, kind })
        })
    }
}

impl Access {
    /// A quorum read; `None` if there is no such object.
    pub(crate) async fn read_live(&self, kind: &Kind, key: &Key, form: Form) -> Result<Option<Value>> {
        self.controller.check(kind, None, Verb::Get)?;
        let request = request(Method::GET, &kind.object_path(key), &[], form, None)?;
        match self.runtime.client().request::<Value>(request).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads live what a write with an unknown outcome may have changed: one key, or all that are suspect.
    pub(crate) async fn settle(&self, cache: &dyn AnyCache, key: Option<&Key>) -> Result<()> {
        for key in cache.suspects(key) {
            let form = if cache.is_metadata() { Form::Metadata } else { Form::Whole };
            match self.read_live(cache.kind_of(), &key, form).await? {
                // If only the watch can tell whether it is selected, the watch will.
                Some(object) => drop(cache.wrote(&object.to_string(), &Origin::Watch)),
                None => cache.vanish(&key),
            }
            cache.settled(&key);
        }
        Ok(())
    }
}
