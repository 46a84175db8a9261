//! The lock: a record in an object, written with its resource version as a precondition.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Endpoints};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ApiResource, DynamicObject, PostParams, WatchParams};
use kube::{Client, Error, ResourceExt as _};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::candidate::Record;
use crate::Kind;

/// The annotation that holds the record where the lock is no Lease (client-go: `LeaderElectionRecordAnnotationKey`).
const ANNOTATION: &str = "control-plane.alpha.kubernetes.io/leader";

/// The object that replicas compete for; see [`crate::Election::lock`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lock {
    /// A Lease of `coordination.k8s.io/v1`: small, and nothing else watches it.
    #[default]
    Lease,
    /// The annotation `control-plane.alpha.kubernetes.io/leader` of a ConfigMap, as operators of earlier days have it. Each renewal is an
    /// event to everybody who watches ConfigMaps.
    ConfigMap,
    /// The same annotation of an Endpoints object. Kubernetes warns about this kind since v1.33.
    Endpoints,
}

impl Lock {
    /// The kind of its object.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Lease => Kind::of::<Lease>(),
            Self::ConfigMap => Kind::of::<ConfigMap>(),
            Self::Endpoints => Kind::of::<Endpoints>(),
        }
    }

    fn resource(self) -> ApiResource {
        match self {
            Self::Lease => ApiResource::erase::<Lease>(&()),
            Self::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
            Self::Endpoints => ApiResource::erase::<Endpoints>(&()),
        }
    }

    /// What an object says. One that was made for something else, or says nothing that can be read, has no holder.
    fn record(self, object: &DynamicObject) -> Record {
        match self {
            Self::Lease => {
                let spec = object.data.get("spec").cloned().unwrap_or_default();
                from_spec(serde_json::from_value(spec).unwrap_or_default())
            }
            Self::ConfigMap | Self::Endpoints => {
                let annotation = object.annotations().get(ANNOTATION);
                let record = annotation.and_then(|text| serde_json::from_str::<Annotation>(text).ok());
                record.unwrap_or_default().into()
            }
        }
    }

    /// Puts a record into an object. Everything else in it stays.
    fn put(self, record: &Record, object: &mut DynamicObject) -> Result<(), Error> {
        match self {
            Self::Lease => {
                let spec = object.data.get("spec").cloned().unwrap_or_default();
                let spec = to_spec(record, serde_json::from_value(spec).unwrap_or_default());
                object.data["spec"] = serde_json::to_value(spec).map_err(Error::SerdeError)?;
            }
            Self::ConfigMap | Self::Endpoints => {
                let text = serde_json::to_string(&Annotation::from(record)).map_err(Error::SerdeError)?;
                object.annotations_mut().insert(ANNOTATION.to_owned(), text);
            }
        }
        Ok(())
    }
}

/// client-go's `LeaderElectionRecord`. Its times have whole seconds there; fractions are read all the same.
#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Annotation {
    holder_identity: String,
    lease_duration_seconds: u64,
    acquire_time: Option<Timestamp>,
    renew_time: Option<Timestamp>,
    leader_transitions: u64,
}

impl From<&Record> for Annotation {
    fn from(record: &Record) -> Self {
        Self {
            holder_identity: record.holder.clone(),
            lease_duration_seconds: record.duration.as_secs(),
            acquire_time: record.acquired,
            renew_time: record.renewed,
            leader_transitions: record.transitions,
        }
    }
}

impl From<Annotation> for Record {
    fn from(annotation: Annotation) -> Self {
        Self {
            holder: annotation.holder_identity,
            duration: Duration::from_secs(annotation.lease_duration_seconds),
            transitions: annotation.leader_transitions,
            acquired: annotation.acquire_time,
            renewed: annotation.renew_time,
        }
    }
}

fn to_spec(record: &Record, spec: LeaseSpec) -> LeaseSpec {
    LeaseSpec {
        // Nobody is no holder: an empty name is invalid.
        holder_identity: Some(record.holder.clone()).filter(|holder| !holder.is_empty()),
        lease_duration_seconds: i32::try_from(record.duration.as_secs()).ok(),
        lease_transitions: i32::try_from(record.transitions).ok(),
        acquire_time: record.acquired.map(MicroTime),
        renew_time: record.renewed.map(MicroTime),
        ..spec
    }
}

fn from_spec(spec: LeaseSpec) -> Record {
    let natural = |number: Option<i32>| number.and_then(|number| u64::try_from(number).ok());
    Record {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(natural(spec.lease_duration_seconds).unwrap_or_default()),
        transitions: natural(spec.lease_transitions).unwrap_or_default(),
        acquired: spec.acquire_time.map(|time| time.0),
        renewed: spec.renew_time.map(|time| time.0),
    }
}

/// The object of a lock.
pub(super) struct Place {
    lock: Lock,
    api: Api<DynamicObject>,
    name: String,
    namespace: String,
}

/// The object as it was read or written; what a further write builds upon.
#[derive(Clone, Debug)]
pub(super) struct Version {
    object: DynamicObject,
    record: Record,
}

impl Place {
    pub(super) fn new(lock: Lock, client: Client, namespace: String, name: String) -> Self {
        let api = Api::namespaced_with(client, &namespace, &lock.resource());
        Self { lock, api, name, namespace }
    }

    /// `namespace/name`.
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    pub(super) async fn read(&self) -> Result<Option<Version>, Error> {
        Ok(self.api.get_opt(&self.name).await?.map(|object| self.version(object)))
    }

    /// Writes `record`, if the object is still as in `base`: absent, or in that version. Whatever else is in it stays.
    pub(super) async fn write(&self, base: Option<&Version>, record: &Record) -> Result<Version, Error> {
        let written = if let Some(base) = base {
            let mut object = base.object.clone();
            self.lock.put(record, &mut object)?;
            self.api.replace(&self.name, &PostParams::default(), &object).await?
        } else {
            let mut object = DynamicObject::new(&self.name, &self.lock.resource());
            object.data = json!({});
            self.lock.put(record, &mut object)?;
            self.api.create(&PostParams::default(), &object).await?
        };
        Ok(self.version(written))
    }

    /// Rings at each change after `version`, until the server ends the watch.
    pub(super) async fn watch(&self, version: Option<&Version>) -> Result<BoxStream<'static, ()>, Error> {
        let since = version.and_then(|version| version.object.resource_version()).unwrap_or_default();
        let only = WatchParams::default().fields(&format!("metadata.name={}", self.name));
        let events = self.api.watch(&only, &since).await?;
        let changes = events.take_while(|event| futures::future::ready(event.is_ok()));
        Ok(changes.map(drop).boxed())
    }

    fn version(&self, object: DynamicObject) -> Version {
        let record = self.lock.record(&object);
        Version { object, record }
    }
}

impl Version {
    pub(super) fn record(&self) -> Record {
        self.record.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            holder: "a".to_owned(),
            duration: Duration::from_secs(15),
            transitions: 3,
            acquired: Some("2026-01-02T03:04:05.000006Z".parse().unwrap()),
            renewed: Some("2026-01-02T03:04:07Z".parse().unwrap()),
        }
    }

    #[test]
    fn each_lock_gives_back_what_was_put_in_and_keeps_the_rest() {
        for lock in [Lock::Lease, Lock::ConfigMap, Lock::Endpoints] {
            let mut object = DynamicObject::new("lock", &lock.resource());
            object.data = json!({"data": {"theirs": "1"}, "spec": {"strategy": "OldestEmulationVersion"}});
            object.annotations_mut().insert("theirs".to_owned(), "2".to_owned());
            lock.put(&record(), &mut object).unwrap();
            assert_eq!(lock.record(&object), record(), "{lock:?}");
            let released = Record { holder: String::new(), ..record() };
            lock.put(&released, &mut object).unwrap();
            assert_eq!(lock.record(&object), released, "{lock:?}");
            assert_eq!(object.data["data"]["theirs"], "1");
            assert_eq!(object.data["spec"]["strategy"], "OldestEmulationVersion");
            assert_eq!(object.annotations()["theirs"], "2");
        }
    }

    #[test]
    fn the_annotation_is_that_of_client_go() {
        let mut object = DynamicObject::new("lock", &Lock::ConfigMap.resource());
        let theirs = r#"{"holderIdentity":"web-1_uuid","leaseDurationSeconds":15,"acquireTime":"2026-01-02T03:04:05Z","renewTime":"2026-01-02T03:04:07Z","leaderTransitions":3}"#;
        object.annotations_mut().insert(ANNOTATION.to_owned(), theirs.to_owned());
        let read = Lock::ConfigMap.record(&object);
        assert_eq!((read.holder.as_str(), read.transitions, read.duration.as_secs()), ("web-1_uuid", 3, 15));
        Lock::ConfigMap.put(&read, &mut object).unwrap();
        assert_eq!(object.annotations()[ANNOTATION], theirs);
        // What somebody wrote there by hand is no holder.
        object.annotations_mut().insert(ANNOTATION.to_owned(), "me".to_owned());
        assert_eq!(Lock::ConfigMap.record(&object).holder, "");
    }
}
