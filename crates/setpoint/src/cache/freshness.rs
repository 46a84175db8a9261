//! Warm is not fresh: a standby's watch may lag, and what it has not seen yet may be the last leader's work. Before
//! a new leader acts, its caches hold everything that the API server had when it won.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde_json::Value;

use super::{AnyCache, Caches};
use crate::request::{Form, request};
use crate::{Error, Key, Result};

const PAGE: &str = "500";
/// Before a list that failed is tried again, and up to as much longer.
const PAUSE: Duration = Duration::from_secs(1);

/// Keys and versions of a kind's objects, and the version of their list.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) objects: BTreeMap<Key, u64>,
    pub(crate) version: u64,
}

impl Caches {
    /// Waits until `cache` has seen everything that the API server has now.
    pub(crate) async fn catch_up(&self, cache: Arc<dyn AnyCache>) {
        for namespace in cache.partitions() {
            let snapshot = loop {
                match self.snapshot(&*cache, namespace.as_deref()).await {
                    Ok(snapshot) => break snapshot,
                    Err(error) => {
                        let kind = cache.kind_of();
                        tracing::warn!(%kind, %error, "cannot check that the cache is up to date, tries again");
                        tokio::time::sleep(self.0.entropy.jitter(PAUSE, 1.0)).await;
                    }
                }
            };
            cache.covers(namespace.as_deref(), &snapshot).await;
        }
    }

    /// A quorum list of metadata.
    async fn snapshot(&self, cache: &dyn AnyCache, namespace: Option<&str>) -> Result<Snapshot> {
        let (kind, selector) = (cache.kind_of(), cache.selector_of());
        let mut snapshot = Snapshot::default();
        let mut token = String::new();
        loop {
            let mut query = vec![("limit", PAGE)];
            query.extend(selector.label_selector().map(|selector| ("labelSelector", selector)));
            query.extend(selector.field_selector().map(|selector| ("fieldSelector", selector)));
            if !token.is_empty() {
                query.push(("continue", token.as_str()));
            }
            let path = kind.collection_path(namespace);
            let list: Value =
                self.0.client.request(request(Method::GET, &path, &query, Form::MetadataList, None)?).await?;
            let text = |object: &Value, field: &str| {
                object.pointer(field).and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            // Versions that are no numbers are never compared: there is nothing to wait for.
            let number =
                |object: &Value| text(object, "/metadata/resourceVersion").parse().unwrap_or_default();
            snapshot.version = number(&list);
            let items = list
                .get("items")
                .and_then(Value::as_array)
                .ok_or_else(|| Error::msg(format!("the list of {kind} has no items")))?;
            snapshot.objects.extend(items.iter().map(|item| {
                let namespace = Some(text(item, "/metadata/namespace")).filter(|name| !name.is_empty());
                (Key { namespace, name: text(item, "/metadata/name") }, number(item))
            }));
            token = text(&list, "/metadata/continue");
            if token.is_empty() {
                return Ok(snapshot);
            }
        }
    }
}
