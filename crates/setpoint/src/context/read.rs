use std::sync::Arc;

use super::Resource;
use crate::{Error, Key, Kind, Object, Result};

/// A read of a kind that the controller does not watch.
#[derive(Debug, thiserror::Error)]
#[error(
    "controller {controller} does not watch {kind}: declare it with owns, owns_metadata or watches, or read it live"
)]
pub struct NotCached {
    controller: String,
    kind: Kind,
}

#[expect(clippy::unused_async, reason = "first landing: the shape")]
impl<K: Object> Resource<'_, K> {
    /// As [`crate::Context::get`].
    pub async fn get(&self, key: impl Into<Key>) -> Result<Option<Arc<K>>> {
        let _ = (key.into(), &self.access, &self.kind);
        Err(Error::msg("cached reads are not there yet"))
    }

    /// As [`crate::Context::list`].
    pub async fn list(&self) -> Result<Vec<Arc<K>>> {
        Err(Error::msg("cached reads are not there yet"))
    }

    /// As [`crate::Context::list_all`].
    pub async fn list_all(&self) -> Result<Vec<Arc<K>>> {
        Err(Error::msg("cached reads are not there yet"))
    }

    /// As [`crate::Context::by_index`].
    pub async fn by_index(&self, _index: &str, _value: &str) -> Result<Vec<Arc<K>>> {
        Err(Error::msg("cached reads are not there yet"))
    }

    /// As [`crate::Context::children`].
    pub async fn children(&self) -> Result<Vec<Arc<K>>> {
        Err(Error::msg("cached reads are not there yet"))
    }

    /// As [`crate::Context::live`].
    pub async fn live(&self, key: impl Into<Key>) -> Result<Option<K>> {
        let _ = key.into();
        Err(Error::msg("live reads are not there yet"))
    }
}
