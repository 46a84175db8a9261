//! Follows Services and EndpointSlices and keeps Service addresses and DNS names up to date.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::{Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, oneshot};
use tracing::{debug, warn};

use super::dns::{SharedZone, Zone};
use super::forward::by_service;
use super::{Network, forwards};

/// How long to wait after a failed list or watch before the next.
const RETRY: Duration = Duration::from_millis(500);

/// The objects of one kind, by namespace and name; none before the first list.
type Objects<K> = Mutex<Option<BTreeMap<(String, String), K>>>;

/// Keeps the network and the zone up to date, and says when they are for the first time; never returns.
pub(crate) async fn follow_services(
    client: Client,
    network: Arc<Network>,
    ip: PathBuf,
    zone: SharedZone,
    ready: oneshot::Sender<()>,
) {
    let services: Objects<Service> = Mutex::default();
    let slices: Objects<EndpointSlice> = Mutex::default();
    let changed = Notify::new();
    let mut ready = Some(ready);
    let update = async {
        loop {
            changed.notified().await;
            let (forwards, names) = {
                let (services, slices) = (services.lock(), slices.lock());
                let (Some(services), Some(slices)) = (&*services, &*slices) else { continue };
                let slices = by_service(slices.values());
                (forwards(services.values(), &slices), Zone::new(services.values(), &slices))
            };
            *zone.write() = Arc::new(names);
            if let Err(error) = network.rules.set_forwards(&ip, forwards).await {
                warn!(%error, "Service addresses could not be updated; trying again");
                tokio::time::sleep(RETRY).await;
                changed.notify_one();
            } else if let Some(ready) = ready.take() {
                // Nobody has to wait for it.
                let _ = ready.send(());
            }
        }
    };
    let client = &client;
    futures::future::join3(follow(client, &services, &changed), follow(client, &slices, &changed), update)
        .await;
}

/// Lists and watches one kind for ever.
fn follow<'a, K>(
    client: &'a Client,
    objects: &'a Objects<K>,
    changed: &'a Notify,
) -> impl Future<Output = ()> + 'a
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + 'static,
{
    let api: Api<K> = Api::all(client.clone());
    async move {
        loop {
            if let Err(error) = list_and_watch(&api, objects, changed).await {
                debug!(%error, kind = %K::kind(&()), "watch ended; listing again");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn list_and_watch<K>(api: &Api<K>, objects: &Objects<K>, changed: &Notify) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + 'static,
{
    let list = api.list(&ListParams::default()).await?;
    let mut version = list.metadata.resource_version.unwrap_or_default();
    *objects.lock() = Some(list.items.into_iter().map(|object| (key(&object), object)).collect());
    changed.notify_one();
    loop {
        let mut events = api.watch(&WatchParams::default(), &version).await?.boxed();
        while let Some(event) = events.next().await {
            match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    version = object.resource_version().unwrap_or(version);
                    objects.lock().get_or_insert_default().insert(key(&object), object);
                    changed.notify_one();
                }
                WatchEvent::Deleted(object) => {
                    version = object.resource_version().unwrap_or(version);
                    objects.lock().get_or_insert_default().remove(&key(&object));
                    changed.notify_one();
                }
                WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
            }
        }
    }
}

fn key<K: Resource>(object: &K) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}
