//! The lock: a Lease of `coordination.k8s.io/v1`, written with its resource version as a precondition.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use k8s_openapi::api::coordination::v1::{Lease as Object, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams, WatchParams};
use kube::{Client, Error, ResourceExt as _};

use super::candidate::Record;

pub(super) struct Lease {
    api: Api<Object>,
    name: String,
    namespace: String,
}

/// A Lease as it was read or written; what a further write builds upon.
#[derive(Clone, Debug)]
pub(super) struct Version(Object);

impl Lease {
    pub(super) fn new(client: Client, namespace: String, name: String) -> Self {
        Self { api: Api::namespaced(client, &namespace), name, namespace }
    }

    /// `namespace/name`.
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    pub(super) async fn read(&self) -> Result<Option<Version>, Error> {
        Ok(self.api.get_opt(&self.name).await?.map(Version))
    }

    /// Writes `record`, if the Lease is still as in `base`: absent, or in that version. Others' labels and
    /// annotations stay.
    pub(super) async fn write(&self, base: Option<&Version>, record: &Record) -> Result<Version, Error> {
        let mut object = base.map(|version| version.0.clone()).unwrap_or_default();
        object.spec = Some(LeaseSpec {
            // Nobody is no holder: an empty name is invalid.
            holder_identity: Some(record.holder.clone()).filter(|holder| !holder.is_empty()),
            lease_duration_seconds: i32::try_from(record.duration.as_secs()).ok(),
            lease_transitions: i32::try_from(record.transitions).ok(),
            acquire_time: record.acquired.map(MicroTime),
            renew_time: record.renewed.map(MicroTime),
            ..object.spec.unwrap_or_default()
        });
        let written = if base.is_some() {
            self.api.replace(&self.name, &PostParams::default(), &object).await?
        } else {
            object.metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            self.api.create(&PostParams::default(), &object).await?
        };
        Ok(Version(written))
    }

    /// Rings at each change after `version`, until the server ends the watch.
    pub(super) async fn watch(&self, version: Option<&Version>) -> Result<BoxStream<'static, ()>, Error> {
        let since = version.and_then(|version| version.0.resource_version()).unwrap_or_default();
        let only = WatchParams::default().fields(&format!("metadata.name={}", self.name));
        let events = self.api.watch(&only, &since).await?;
        let changes = events.take_while(|event| futures::future::ready(event.is_ok()));
        Ok(changes.map(drop).boxed())
    }
}

impl Version {
    pub(super) fn record(&self) -> Record {
        let spec = self.0.spec.clone().unwrap_or_default();
        let natural = |number: Option<i32>| number.and_then(|number| u64::try_from(number).ok());
        Record {
            holder: spec.holder_identity.unwrap_or_default(),
            duration: Duration::from_secs(natural(spec.lease_duration_seconds).unwrap_or_default()),
            transitions: natural(spec.lease_transitions).unwrap_or_default(),
            acquired: spec.acquire_time.map(|time| time.0),
            renewed: spec.renew_time.map(|time| time.0),
        }
    }
}
