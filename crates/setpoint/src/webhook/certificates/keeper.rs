use std::pin::pin;
use std::time::Duration;

use futures::future::{BoxFuture, select, select_all};
use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, ListParams, PostParams, WatchEvent, WatchParams};
use kube::core::ObjectMeta;
use serde::de::DeserializeOwned;
use setpoint_clock::Clock;

use super::kept::Kept;
use super::plan::{Step, step};
use super::publish::{Target, Targets};
use super::served::Served;
use super::{CertificateError, Lifetimes};

/// How long a change may stay unseen when no watch tells of it.
const RESYNC: Duration = Duration::from_secs(300);
/// How long to leave a watch alone that ends at once.
const REST: Duration = Duration::from_secs(10);
/// The longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Keeps the certificates of the own authority, step by step. Runs on every replica; they agree by the Secret's version.
pub(crate) struct Keeper {
    /// Not fenced: it does not wait for leadership.
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    pub(crate) namespace: String,
    /// Of the Secret, and the start of the authority's.
    pub(crate) name: String,
    /// What the leaf is for.
    pub(crate) names: Vec<String>,
    pub(crate) lifetimes: Lifetimes,
    pub(crate) targets: Targets,
    pub(crate) served: Served,
}

/// What a pass came to.
enum Pass {
    /// Something was done; look again.
    Again,
    /// Nothing to do before then, unless one of these changes.
    Until(Timestamp, Vec<Target>, String),
}

impl Keeper {
    /// Runs until dropped.
    pub(crate) async fn run(self) {
        let mut failures = 0_u32;
        loop {
            match self.pass().await {
                Ok(Pass::Again) => failures = 0,
                Ok(Pass::Until(at, targets, version)) => {
                    failures = 0;
                    let left = Duration::try_from(at.duration_since(self.clock.now())).unwrap_or_default();
                    let changed = pin!(self.changed(targets, version));
                    select(changed, pin!(tokio::time::sleep(left.min(RESYNC)))).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "the serving certificates");
                    self.served.problem(error.to_string());
                    let pause = Duration::from_secs(1) * 2_u32.pow(failures.min(6));
                    failures += 1;
                    tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
                }
            }
        }
    }

    async fn pass(&self) -> Result<Pass, CertificateError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let api_error = |what: &str| {
            let what = format!("Secret {}/{} cannot be {what}", self.namespace, self.name);
            move |source| CertificateError::Api { what, source }
        };
        let only = ListParams::default().fields(&format!("metadata.name={}", self.name));
        let mut list = secrets.list(&only).await.map_err(api_error("read"))?;
        let version = list.metadata.resource_version.take().unwrap_or_default();
        let secret = list.items.pop();
        let kept = secret.as_ref().map(Kept::read).transpose();
        let facts = kept.and_then(|kept| {
            kept.map(|kept| Ok::<_, CertificateError>((kept.facts(&self.names)?, kept))).transpose()
        });
        let known = facts.unwrap_or_else(|error| {
            tracing::warn!(%error, "the Secret with the serving certificates is unreadable and made anew");
            None
        });
        if let Some((_, kept)) = &known {
            self.served.serve(&kept.leaf)?;
        }
        let targets = self.targets.read(&self.client).await?;
        let bundle = known.as_ref().map(|(_, kept)| kept.bundle()).unwrap_or_default();
        let published = targets.iter().all(|target| target.has(&self.targets, &bundle));
        if published && known.is_some() {
            match targets.iter().find_map(|target| target.elsewhere(&self.targets)) {
                None => self.served.published(),
                Some(elsewhere) => self.served.elsewhere(elsewhere),
            }
        }
        let now = self.clock.now();
        let next = step(known.as_ref().map(|(facts, _)| *facts), published, now, self.lifetimes);
        match next {
            Step::Wait(until) => return Ok(Pass::Until(until, targets, version)),
            Step::Publish => {
                let mut failed = None;
                for target in &targets {
                    // One that cannot be set does not keep the others from it.
                    if let Err(error) = target.publish(&self.targets, &bundle).await {
                        failed.get_or_insert(error);
                    }
                }
                return failed.map_or(Ok(Pass::Again), Err);
            }
            _ => {}
        }
        let kept = match known {
            Some((_, kept)) => kept.after(next, &self.name, &self.names, now, self.lifetimes)?,
            None => Kept::create(&self.name, &self.names, now, self.lifetimes)?,
        };
        tracing::info!(step = ?next, "the serving certificates change");
        let written = self.write(&secrets, secret, &kept).await;
        match written {
            Ok(()) => Ok(Pass::Again),
            // Another replica was first: see what it made.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Pass::Again),
            Err(error) => Err(api_error("written")(error)),
        }
    }

    /// Writes the Secret if it is still as it was read.
    async fn write(&self, secrets: &Api<Secret>, read: Option<Secret>, kept: &Kept) -> kube::Result<()> {
        let params = PostParams::default();
        if let Some(mut secret) = read {
            secret.data = Some(kept.data());
            secrets.replace(&self.name, &params, &secret).await?;
        } else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let secret = Secret {
                metadata,
                data: Some(kept.data()),
                type_: Some("kubernetes.io/tls".to_owned()),
                ..Secret::default()
            };
            secrets.create(&params, &secret).await?;
        }
        Ok(())
    }

    /// Waits until the Secret or one of the targets changes.
    async fn changed(&self, targets: Vec<Target>, version: String) {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut rings: Vec<BoxFuture<'_, ()>> = vec![ring(secrets, self.name.clone(), version).boxed()];
        rings.extend(targets.into_iter().map(|target| ring(target.api, target.name, target.version).boxed()));
        select_all(rings).await;
    }
}

/// Waits for the next change of an object after `version`.
async fn ring<K>(api: Api<K>, name: String, version: String)
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let only = WatchParams::default().fields(&format!("metadata.name={name}"));
    let Ok(events) = api.watch(&only, &version).await else {
        return tokio::time::sleep(RESYNC).await;
    };
    let mut events = pin!(events);
    while let Some(Ok(event)) = events.next().await {
        if matches!(event, WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Deleted(_)) {
            return;
        }
    }
    // It ended, as watches do, or broke.
    tokio::time::sleep(REST).await;
}

#[cfg(test)]
mod tests;
