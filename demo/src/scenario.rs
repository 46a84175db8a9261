//! The walk: what a user of a RedisCluster does in its life, and what breaks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use redis_operator::api::RedisCluster;
use serde_json::json;
use setpoint_test::eventually;
use tokio::time::Instant;

use crate::failure::Failure;
use crate::report::Narrator;
use crate::rest;
use crate::servers::Servers;
use crate::stage::Stage;
use crate::writer::{KEYS, Writer, key};

/// Where the demo's RedisCluster lives.
pub(crate) const NAMESPACE: &str = "shop";
/// Its name.
pub(crate) const NAME: &str = "orders";
/// How long any one wait may take. Far more than needed: a slow machine is no failure.
const BOUND: Duration = Duration::from_secs(120);

type Outcome<T> = Result<(T, String), Failure>;

/// What the steps share.
pub(crate) struct Walk<'a> {
    /// As an administrator.
    pub(crate) client: Client,
    /// The version of the installed redis-server, e.g. `7.0`.
    pub(crate) version: String,
    /// The cluster with its faults.
    pub(crate) stage: &'a Stage,
}

impl Walk<'_> {
    fn clusters(&self) -> Api<RedisCluster> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn servers(&self) -> Servers {
        Servers::new(self.client.clone(), NAMESPACE, NAME)
    }

    /// All steps after the operator runs.
    pub(crate) async fn all(&self, narrator: &mut Narrator, rest: Option<u64>) -> Result<(), Failure> {
        narrator.step("create a RedisCluster of 3", self.create()).await?;
        if let Some(seconds) = rest {
            let during = Duration::from_secs(seconds);
            let name =
                format!("do nothing for {} s, then measure for {seconds} s (--rest)", rest::CALM.as_secs());
            let measured = narrator.step(&name, rest::measure(self.stage, during)).await?;
            for (name, value) in measured {
                narrator.figure(name, value);
            }
        }
        let service = self.service_address().await?;
        let writer = Writer::start(service);
        narrator.step("write through the primary's Service", self.writes(&writer)).await?;
        narrator.step("scale to 5", self.scale()).await?;
        narrator.step("change maxmemory on running servers", self.configure()).await?;
        let gap = narrator.step("kill -9 the primary", self.fail_over(&writer)).await?;
        narrator.figure("kill_to_first_accepted_write_seconds", gap.as_secs_f64());
        narrator.note(format!(
            "From the kill of the primary to the first accepted write: {:.2} s",
            gap.as_secs_f64()
        ));
        narrator.step("lose a replica and its volume", self.lose_replica()).await?;
        narrator.step("check every acknowledged write", self.check(writer)).await?;
        narrator.step("delete the RedisCluster", self.delete()).await
    }

    async fn create(&self) -> Outcome<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let namespace = Namespace {
            metadata: kube::core::ObjectMeta { name: Some(NAMESPACE.to_owned()), ..Default::default() },
            ..Default::default()
        };
        namespaces.create(&PostParams::default(), &namespace).await?;
        let orders: RedisCluster = serde_json::from_value(json!({
            "apiVersion": "cache.example.com/v1",
            "kind": "RedisCluster",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {
                "size": 3,
                "image": "redis",
                "version": self.version,
                "config": {"maxmemory": "100mb", "maxmemoryPolicy": "noeviction"},
                "storage": {"size": "1Gi"},
            },
        }))?;
        self.clusters().create(&PostParams::default(), &orders).await?;
        let primary = self.settled(3).await?;
        Ok(((), format!("three redis-server processes: {primary} is the primary, two replicas are in sync")))
    }

    /// Waits until `size` pods are ready and the servers themselves say: one primary, the others in sync with it.
    async fn settled(&self, size: usize) -> Result<String, Failure> {
        let servers = self.servers();
        let pods: Api<Pod> = self.api();
        Ok(eventually(format!("{size} servers, one primary, the others in sync"), BOUND, async || {
            let seen = servers.observe().await.map_err(|failure| failure.to_string())?;
            let parts: Vec<_> = seen
                .iter()
                .map(|server| {
                    let part = if server.is_primary() { "primary" } else { "replica" };
                    let sync = if server.in_sync() { "in sync" } else { "not in sync" };
                    format!("{} {part} {sync}", server.pod)
                })
                .collect();
            let primaries: Vec<_> = seen.iter().filter(|server| server.is_primary()).collect();
            let [primary] = primaries[..] else { return Err(parts.join(", ")) };
            if seen.len() != size || !seen.iter().all(crate::servers::Server::in_sync) {
                return Err(parts.join(", "));
            }
            let status = self.clusters().get(NAME).await.map_err(|error| error.to_string())?.status;
            let status = status.map(|status| json!(status)).unwrap_or_default();
            if status["readyReplicas"] != json!(size) || status["phase"] != json!("Running") {
                return Err(format!("{}; status: {status}", parts.join(", ")));
            }
            let listed = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let unready: Vec<_> =
                listed.iter().filter(|pod| !ready(pod)).map(ResourceExt::name_any).collect();
            if unready.is_empty() { Ok(primary.pod.clone()) } else { Err(format!("not ready: {unready:?}")) }
        })
        .await?)
    }

    async fn service_address(&self) -> Result<SocketAddr, Failure> {
        let services: Api<Service> = self.api();
        let service = services.get(NAME).await?;
        let address = service.spec.and_then(|spec| spec.cluster_ip);
        let ip: Option<IpAddr> = address.as_deref().and_then(|ip| ip.parse().ok());
        ip.map(|ip| SocketAddr::new(ip, 6379))
            .ok_or_else(|| Failure::Broken(format!("Service {NAME} has no cluster address: {address:?}")))
    }

    async fn writes(&self, writer: &Writer) -> Outcome<()> {
        let first = KEYS / 20;
        eventually(format!("{first} acknowledged keys"), BOUND, async || {
            let (written, error) = writer.progress();
            if written >= first { Ok(()) } else { Err(format!("{written} written; last error: {error}")) }
        })
        .await?;
        Ok((
            (),
            format!(
                "{first} of {KEYS} keys acknowledged by the primary and a replica; it goes on beside the next steps"
            ),
        ))
    }

    async fn scale(&self) -> Outcome<()> {
        let scale = json!({"spec": {"replicas": 5}});
        self.clusters().patch_scale(NAME, &PatchParams::default(), &Patch::Merge(scale)).await?;
        let primary = self.settled(5).await?;
        Ok(((), format!("two more replicas in sync with {primary}")))
    }

    async fn configure(&self) -> Outcome<()> {
        let before = self.lives().await?;
        let patch = json!({"spec": {"config": {"maxmemory": "200mb"}}});
        self.clusters().patch(NAME, &PatchParams::default(), &Patch::Merge(patch)).await?;
        let bytes = (200_u64 * 1024 * 1024).to_string();
        let servers = self.servers();
        eventually("CONFIG GET maxmemory of every server to be 200mb", BOUND, async || {
            let values = servers.config("maxmemory").await.map_err(|failure| failure.to_string())?;
            if values.len() == 5 && values.values().all(|value| *value == bytes) {
                Ok(())
            } else {
                Err(format!("{values:?}"))
            }
        })
        .await?;
        let after = self.lives().await?;
        if before != after {
            return Err(Failure::Broken(format!(
                "a server was restarted: before {before:?}, after {after:?}"
            )));
        }
        Ok(((), "CONFIG GET says 200mb on all five; no pod or process was restarted".to_owned()))
    }

    /// Each pod's UID and its containers' restarts.
    async fn lives(&self) -> Result<BTreeMap<String, (String, i32)>, Failure> {
        let lives = self.servers().pods().await?.into_iter().map(|pod| {
            let restarts = pod
                .status
                .iter()
                .flat_map(|status| status.container_statuses.iter().flatten())
                .map(|status| status.restart_count)
                .sum();
            (pod.name_any(), (pod.uid().unwrap_or_default(), restarts))
        });
        Ok(lives.collect())
    }

    async fn fail_over(&self, writer: &Writer) -> Outcome<Duration> {
        let old = self.settled(5).await?;
        let killed = Instant::now();
        writer.mark();
        self.stage.kill(NAMESPACE, &old).await?;
        let gap = eventually("a write accepted through the Service", BOUND, async || {
            writer.gap().ok_or_else(|| format!("last error: {}", writer.progress().1))
        })
        .await?;
        let new = self.settled(5).await?;
        if new == old {
            return Err(Failure::Broken(format!("{old} is the primary again: no replica was promoted")));
        }
        self.service_points_at(&new).await?;
        let whole = killed.elapsed().as_secs_f64();
        Ok((
            gap,
            format!(
                "{new} was promoted: first write after {:.2} s; {old} is back as a replica after {whole:.2} s",
                gap.as_secs_f64()
            ),
        ))
    }

    async fn service_points_at(&self, pod: &str) -> Result<(), Failure> {
        let slices: Api<EndpointSlice> = self.api();
        let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={NAME}"));
        Ok(eventually(format!("Service {NAME} to point at {pod} alone"), BOUND, async || {
            let slices = slices.list(&of_service).await.map_err(|error| error.to_string())?;
            let targets: BTreeSet<_> = slices
                .items
                .iter()
                .flat_map(|slice| slice.endpoints.iter().flatten())
                .filter_map(|endpoint| endpoint.target_ref.as_ref()?.name.clone())
                .collect();
            if targets.iter().eq([pod]) { Ok(()) } else { Err(format!("it points at {targets:?}")) }
        })
        .await?)
    }

    async fn lose_replica(&self) -> Outcome<()> {
        let primary = self.settled(5).await?;
        let pods = self.servers().pods().await?;
        let lost = pods
            .iter()
            .rev()
            .find(|pod| pod.name_any() != primary)
            .ok_or_else(|| Failure::Broken("no replica to lose".to_owned()))?;
        let (name, uid) = (lost.name_any(), lost.uid());
        let claim = format!("data-{name}");
        let claims: Api<PersistentVolumeClaim> = self.api();
        let old_claim = claims.get(&claim).await?.uid();
        // The claim is protected while the pod uses it, so it goes when the pod does.
        claims.delete(&claim, &DeleteParams::default()).await?;
        self.api::<Pod>().delete(&name, &DeleteParams::default()).await?;
        eventually(format!("a new {name} with a new {claim}"), BOUND, async || {
            let pod = self.api::<Pod>().get_opt(&name).await.map_err(|error| error.to_string())?;
            let new_claim = claims.get_opt(&claim).await.map_err(|error| error.to_string())?;
            let pod_is_new = pod.as_ref().is_some_and(|pod| pod.uid() != uid);
            let claim_is_new = new_claim.as_ref().is_some_and(|claim| claim.uid() != old_claim);
            if pod_is_new && claim_is_new {
                Ok(())
            } else {
                Err(format!("pod new: {pod_is_new}, claim new: {claim_is_new}"))
            }
        })
        .await?;
        self.settled(5).await?;
        Ok(((), format!("{name} came back with an empty volume and synced anew from {primary}")))
    }

    async fn check(&self, writer: Writer) -> Outcome<()> {
        eventually(format!("all {KEYS} keys to be acknowledged"), BOUND, async || {
            let (written, error) = writer.progress();
            if written == KEYS { Ok(()) } else { Err(format!("{written} written; last error: {error}")) }
        })
        .await?;
        let (rounds, acknowledged) = writer.stop().await;
        let address = self.service_address().await?;
        let failed = |source| Failure::Redis { server: format!("Service {NAME}"), source };
        let mut connection = redis::Client::open(format!("redis://{address}/"))
            .map_err(failed)?
            .get_multiplexed_async_connection()
            .await
            .map_err(failed)?;
        let names: Vec<_> = (0..KEYS).map(key).collect();
        let values: Vec<Option<u32>> =
            redis::cmd("MGET").arg(&names).query_async(&mut connection).await.map_err(failed)?;
        let lost: Vec<_> = values
            .iter()
            .zip(&rounds)
            .zip(&names)
            .filter(|((value, rounds), _)| {
                value.is_none_or(|value| value < rounds.acknowledged || value > rounds.sent)
            })
            .map(|((value, rounds), name)| {
                format!("{name} is {value:?}, acknowledged {}", rounds.acknowledged)
            })
            .collect();
        if let Some(first) = lost.first() {
            return Err(Failure::Broken(format!(
                "{} of {KEYS} keys lost an acknowledged write: {first}",
                lost.len()
            )));
        }
        Ok(((), format!("{acknowledged} writes to {KEYS} keys were acknowledged, none is lost")))
    }

    async fn delete(&self) -> Outcome<()> {
        self.clusters().delete(NAME, &DeleteParams::default()).await?;
        eventually("the RedisCluster and its children to be gone", BOUND, async || {
            let mut left = Vec::new();
            if self.clusters().get_opt(NAME).await.map_err(|error| error.to_string())?.is_some() {
                left.push(format!("RedisCluster {NAME} (finalizer)"));
            }
            left.extend(self.left::<StatefulSet>("StatefulSet").await?);
            left.extend(self.left::<Pod>("Pod").await?);
            left.extend(self.left::<Service>("Service").await?);
            left.extend(self.left::<ConfigMap>("ConfigMap").await?);
            left.extend(self.left::<Secret>("Secret").await?);
            if left.is_empty() { Ok(()) } else { Err(format!("still there: {}", left.join(", "))) }
        })
        .await?;
        let claims: Api<PersistentVolumeClaim> = self.api();
        let kept = claims.list(&ListParams::default()).await?.items.len();
        Ok((
            (),
            format!(
                "finalizer released, all children gone; the {kept} volume claims are kept, as data is by default"
            ),
        ))
    }

    async fn left<K>(&self, kind: &str) -> Result<Vec<String>, String>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
        K::DynamicType: Default,
    {
        let of_cluster = ListParams::default().labels(&format!("cache.example.com/cluster={NAME}"));
        let listed = self.api::<K>().list(&of_cluster).await.map_err(|error| error.to_string())?;
        Ok(listed.iter().map(|object| format!("{kind} {}", object.name_any())).collect())
    }
}

fn ready(pod: &Pod) -> bool {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
