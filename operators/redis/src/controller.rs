//! The controller: observe, decide, carry out one step, report.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{
    ConfigMap, Node as NodeObject, PersistentVolumeClaim, Pod, Secret, Service,
};
use k8s_openapi::api::networking::v1::{NetworkPolicyEgressRule, NetworkPolicyPort};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use setpoint::{
    Action, Cleanup, Context, Controller, Error, Event, Key, Object, Operator, Reconciler, Refused, Result,
    Selector, Verb, Watch,
};
use tokio::time::Instant;

use crate::act::{ActError, act, event};
use crate::admission::{Checks, Defaults};
use crate::api::{self, FINALIZER, Reclaim, RedisCluster, RedisClusterStatus, Storage};
use crate::decide::{Decision, Step, decide};
use crate::facts;
use crate::metrics::ClusterMetrics;
use crate::observe::{
    Command, Credentials, Dial, Instance, Monitored, Monitors, Node, Observation, OrderError, Resp,
    SessionError, Workload,
};
use crate::render::{self, Identity, PORT, Passwords, Revision, Revisions, TEMPLATE_HASH};
use crate::settings::{Problem, Settings, quantity, quantity_in_bytes, same_size};
use crate::status::{Report, status};

/// Selects the objects of this operator.
const OURS: &str = "app.kubernetes.io/managed-by=redis-operator";

/// Index of pods and volume claims: `namespace/name` of their cluster.
const CLUSTER_INDEX: &str = "cluster";

/// Index of pods: name of their node.
const NODE_INDEX: &str = "node";

/// A volume claim that waits longer than this is a problem worth naming.
const CLAIM_PATIENCE: Duration = Duration::from_secs(30);

/// How soon to come back when the monitors have just been started.
const FIRST_LOOK: Duration = Duration::from_millis(50);

/// Finalizer of an object whose children are to stay.
const ORPHAN: &str = "orphan";

/// How often a settled cluster is looked at although nothing changed.
const RESYNC: Duration = Duration::from_secs(60);

/// Reconciles `RedisCluster` objects.
pub struct RedisClusters {
    revisions: Revisions,
    monitors: Monitors,
    metrics: ClusterMetrics,
}

/// The operator, for real servers.
pub fn operator() -> Operator {
    operator_with(Arc::new(Resp))
}

/// The operator, with sessions from `dial`.
pub fn operator_with(dial: Arc<dyn Dial>) -> Operator {
    operator_of(dial, Revisions::default())
}

/// The operator as a build would be that knows `revisions`.
pub(crate) fn operator_of(dial: Arc<dyn Dial>, revisions: Revisions) -> Operator {
    let operator = Operator::new("redis-operator")
        .versions(api::versions())
        .defaulter(Defaults)
        .validator(Checks)
        .egress(servers());
    let metrics = ClusterMetrics::register(operator.metrics());
    operator.controller(controller(revisions, Monitors::new(dial), metrics))
}

/// The operator looks at the servers themselves, so a NetworkPolicy of it has to let it.
fn servers() -> NetworkPolicyEgressRule {
    let redis = NetworkPolicyPort {
        port: Some(IntOrString::Int(i32::from(PORT))),
        protocol: Some("TCP".to_owned()),
        ..NetworkPolicyPort::default()
    };
    NetworkPolicyEgressRule { ports: Some(vec![redis]), ..NetworkPolicyEgressRule::default() }
}

fn controller(
    revisions: Revisions,
    monitors: Monitors,
    metrics: ClusterMetrics,
) -> Controller<RedisClusters> {
    let changes = monitors.clone();
    let forget = (monitors.clone(), metrics.clone());
    Controller::new(RedisClusters { revisions, monitors, metrics })
        .owns_as(ours::<StatefulSet>())
        .owns_as(ours::<Service>())
        .owns_as(ours::<ConfigMap>())
        .owns_as(ours::<Secret>())
        .owns_as(ours::<PodDisruptionBudget>())
        .watches_as(ours::<Pod>(), |old, new, _| keys(old, new))
        .watches_as(ours::<PersistentVolumeClaim>(), |old, new, _| keys(old, new))
        .watches_as(Watch::<NodeObject>::new(), |old, new, lookup| {
            let facts = |node: Option<&NodeObject>| (facts::node(node), node.map(facts::cordoned));
            if facts(old) == facts(new) {
                return Vec::new();
            }
            let name = new.or(old).map(ResourceExt::name_any).unwrap_or_default();
            lookup.by_index::<Pod>(NODE_INDEX, &name).iter().filter_map(|pod| cluster_of(&**pod)).collect()
        })
        .index(NODE_INDEX, |pod: &Pod| facts::node_name(pod).map(str::to_owned).into_iter().collect())
        .index(CLUSTER_INDEX, |pod: &Pod| cluster_of(pod).into_iter().map(|key| key.to_string()).collect())
        .index(CLUSTER_INDEX, |claim: &PersistentVolumeClaim| {
            cluster_of(claim).into_iter().map(|key| key.to_string()).collect()
        })
        .uses::<Pod>(&[Verb::Patch, Verb::Delete])
        .uses::<StatefulSet>(&[Verb::Delete])
        .uses::<PersistentVolumeClaim>(&[Verb::Patch, Verb::Delete])
        .uses::<RedisCluster>(&[Verb::Patch])
        .uses::<StorageClass>(&[Verb::Get])
        .source(move || changes.changes())
        .finalizer(FINALIZER)
        .gone(move |key| {
            forget.0.forget(key);
            forget.1.forget(key);
        })
        .concurrency(8)
        .time_limit(setpoint::seconds(10))
}

fn ours<K: Object>() -> Watch<K>
where
    K::DynamicType: Default,
{
    Watch::new().selector(Selector::all().labels(OURS))
}

/// The cluster that `object` belongs to by its labels.
fn cluster_of(object: &impl kube::Resource) -> Option<Key> {
    let name = object.labels().get(render::CLUSTER)?;
    Some(Key::new(object.namespace()?, name))
}

fn keys<K: kube::Resource>(old: Option<&K>, new: Option<&K>) -> Vec<Key> {
    new.or(old).and_then(cluster_of).into_iter().collect()
}

impl Reconciler for RedisClusters {
    type Object = RedisCluster;

    async fn reconcile(&self, cluster: Arc<RedisCluster>, cx: &Context<RedisCluster>) -> Result<Action> {
        let identity = Identity::of(&cluster);
        let (mut settings, mut problems) = Settings::of(&cluster.spec);
        problems.extend(kept_size(&cluster, &mut settings));
        let paused = facts::flag(&cluster, api::PAUSED);
        let existing = cx.get::<StatefulSet>(&identity.name).await?;
        let (storage, mut impossible) = effective_storage(&cluster, existing.as_deref());
        let differs = storage.as_ref().zip(cluster.spec.storage.as_ref()).is_some_and(|(has, wanted)| {
            !same_size(&has.size, &wanted.size) || has.storage_class != wanted.storage_class
        });
        if let (true, Some(set), false, true) =
            (impossible.is_some() || differs, &existing, paused, problems.is_empty())
            && set.metadata.deletion_timestamp.is_none()
            && self.start_over(cx, &cluster, set).await?
        {
            cx.event(Event::normal(
                "StartedOver",
                "the volumes never came about: asked for anew as the spec says now",
            ));
            return Ok(Action::requeue(FIRST_LOOK));
        }
        settings.persistent = storage.is_some();
        let pinned = cluster.status.as_ref().and_then(|status| status.render_revision);
        let revision =
            self.revision(cx, &identity, &settings, storage.as_ref(), pinned, &mut problems).await?;
        if let (Some(revision), false) = (&revision, paused || cx.dry_run())
            && pinned != Some(revision.number())
        {
            // Recorded before anything is made by it, so that no older operator takes it for a user's change.
            let status = cluster.status.clone().unwrap_or_default();
            cx.status(RedisClusterStatus { render_revision: Some(revision.number()), ..status }).await?;
            return Ok(Action::requeue(Duration::ZERO));
        }
        let revision = revision.as_ref();
        let rendered = |replicas| {
            let revision = revision.unwrap_or_else(|| self.revisions.newest());
            revision.stateful_set(&identity, &settings, storage.as_ref(), replicas)
        };

        // A broken spec or a refused child never keeps the operator from repairing what runs.
        let mut failure = None;
        let mut workload = existing.as_deref().map(of_stateful_set);
        let mut credentials = None;
        if let (Some(revision), false) = (revision, paused) {
            match self.children(cx, &identity, &settings, &**revision, &problems).await {
                Ok(passwords) => credentials = Some(passwords),
                Err(error) => failure = refused(error, &mut problems),
            }
            let goes = existing.as_ref().is_some_and(|set| set.metadata.deletion_timestamp.is_some());
            if problems.is_empty() && failure.is_none() && credentials.is_some() && !goes {
                if let Some(patch) = existing.as_deref().and_then(facts::foreign_strategy) {
                    cx.patch::<StatefulSet>(&*identity.name, patch).await?;
                }
                // Servers that are recorded stay, whatever somebody did to the StatefulSet.
                let recorded = facts::recorded(&identity, cluster.status.as_ref()).min(settings.size);
                let replicas =
                    workload.as_ref().map_or(settings.size, |workload| workload.replicas.max(recorded));
                match cx.apply(rendered(replicas)).await {
                    Ok(applied) => workload = Some(of_stateful_set(&applied)),
                    Err(error) => failure = refused(error, &mut problems),
                }
            }
        }
        if credentials.is_none() {
            credentials =
                cx.get::<Secret>(&identity.child("system")).await?.as_deref().and_then(Passwords::read);
        }

        if cx.dry_run() {
            // What the servers need is decided from connections to them, and a second operator that opens some cuts
            // those of the first.
            return failure.map_or(Ok(Action::requeue(RESYNC)), Err);
        }
        let mut observation = self
            .observe(cx, &cluster, &identity, settings.clone(), workload, credentials.as_ref(), &mut problems)
            .await?;
        if observation.premature() {
            return Ok(Action::requeue(FIRST_LOOK));
        }
        if problems.is_empty() && impossible.is_none() {
            (observation.volumes, impossible) = growth(cx, &cluster, &observation).await?;
        }
        let mut decision = decide(&observation);
        if paused {
            decision.step = Step::Settled;
        }
        tracing::debug!(step = ?decision.step, reasons = ?decision.reasons, "decided");
        let mut refused_set = None;
        if let Err(error) = act(&decision.step, &observation, &self.monitors, rendered, cx).await {
            refused_set = refused_setting(&error, &decision.step);
            let refused_volume = refused_growth(&error, &decision.step);
            if refused_set.is_none() && refused_volume.is_none() {
                return Err(error);
            }
            impossible = impossible.or(refused_volume);
            failure = failure.or(Some(error));
        }
        let waits = matches!(decision.step, Step::Wait(_) | Step::Settled);
        if waits || failure.is_some() || matches!(decision.step, Step::Record(_) | Step::Scale(_)) {
            let report = Report { problems, storage: impossible, paused, refused: refused_set };
            let before = cluster.status.as_ref();
            let after =
                status(&observation, &decision, &report, before, cluster.metadata.generation, cx.clock());
            let news = troubles(before, &after);
            cx.status(after).await?;
            for (reason, note) in news {
                cx.event(Event::warning(reason, note));
            }
        }
        if failure.is_none() {
            announce(cx, &decision);
        }
        if decision.step == Step::Settled && !paused {
            self.reclaim(cx, &cluster, &identity, &observation).await?;
        }
        self.metrics.note(&Key::of(&*cluster), &observation, &decision);
        if let Some(error) = failure {
            return Err(error);
        }
        Ok(match decision.step {
            Step::Settled => Action::requeue(RESYNC),
            Step::Wait(after) => Action::requeue(after),
            _ => Action::requeue(Duration::ZERO),
        })
    }
}

impl Cleanup for RedisClusters {
    /// Nothing outside the Kubernetes cluster is left behind: children go with their owner, volumes stay unless the
    /// spec says otherwise.
    /// Servers that answer refuse writes from here on and don't wait for each other when their pods end.
    /// Orphaned ones go on as they are.
    async fn cleanup(&self, cluster: Arc<RedisCluster>, cx: &Context<RedisCluster>) -> Result<Action> {
        if cx.dry_run() {
            return Ok(Action::await_change());
        }
        let key = Key::of(&*cluster);
        let owned = cx.get::<StatefulSet>(&Identity::of(&cluster).name).await?.is_some_and(|set| {
            set.owner_references().iter().any(|owner| Some(&owner.uid) == cluster.metadata.uid.as_ref())
        });
        if owned && !cluster.finalizers().iter().any(|finalizer| finalizer == ORPHAN) {
            let tracks = self.monitors.tracks(&key);
            let retire = async |pod: &String| {
                if let Err(error) = self.monitors.order(&key, pod, Command::Retire).await {
                    tracing::debug!(pod, %error, "a server was not prepared for its end");
                }
            };
            futures::future::join_all(tracks.keys().map(retire)).await;
            for claim in self.deletable(cx, &cluster).await? {
                if claim.metadata.deletion_timestamp.is_none() {
                    cx.delete(&*claim).await?;
                }
            }
        }
        self.monitors.forget(&key);
        Ok(Action::await_change())
    }
}

impl RedisClusters {
    /// The revision by which the cluster is rendered now; none, with a problem, if it is one that this build doesn't know.
    async fn revision(
        &self,
        cx: &Context<RedisCluster>,
        identity: &Identity,
        settings: &Settings,
        storage: Option<&Storage>,
        pinned: Option<i32>,
        problems: &mut Vec<Problem>,
    ) -> Result<Option<Arc<dyn Revision>>> {
        let index = Key::of(&**cx.object()).to_string();
        let pods = cx.by_index::<Pod>(CLUSTER_INDEX, &index).await?;
        let set = cx.get::<StatefulSet>(&identity.name).await?;
        let of_pods = pods.iter().filter_map(|pod| pod.annotations().get(TEMPLATE_HASH).cloned());
        let made = of_pods.chain(set.as_deref().map(render::template_hash)).collect();
        // A broken spec says nothing about what its author wants: all stays as it is.
        let made = if problems.is_empty() { made } else { BTreeSet::new() };
        let chosen = self.revisions.choose(pinned, &made, settings.newest, |revision| {
            render::template_hash(&revision.stateful_set(identity, settings, storage, 1))
        });
        match chosen {
            Ok(revision) => Ok(Some(Arc::clone(revision))),
            Err(unknown) => {
                problems.push(Problem { field: "status.renderRevision", message: unknown.to_string() });
                Ok(None)
            }
        }
    }

    /// Applies all children but the StatefulSet; the passwords are made once and kept.
    async fn children(
        &self,
        cx: &Context<RedisCluster>,
        identity: &Identity,
        settings: &Settings,
        revision: &dyn Revision,
        problems: &[Problem],
    ) -> Result<Passwords> {
        let existing = cx.get::<Secret>(&identity.child("system")).await?;
        // Running servers know only the passwords that they started with: what the monitors use is right, whatever
        // was done to the Secret.
        let passwords = match self.monitors.passwords(&Key::of(&**cx.object())) {
            Some(passwords) => passwords,
            None => Passwords::complete(existing.as_deref())?,
        };
        let secret = revision.system_secret(identity, &passwords);
        if existing.is_some() {
            cx.apply(secret).await?;
        } else {
            cx.create(secret).await?;
        }
        for service in render::services(identity) {
            cx.apply(service).await?;
        }
        if let (true, Some(maxmemory)) = (problems.is_empty(), settings.maxmemory) {
            cx.apply(revision.config_map(identity, settings, maxmemory)).await?;
        }
        cx.apply(revision.scripts(identity).config_map).await?;
        if let Some(budget) = render::disruption_budget(identity, settings) {
            cx.apply(budget).await?;
        }
        Ok(passwords)
    }

    /// Puts together what Kubernetes and the monitors know.
    #[expect(clippy::too_many_arguments, reason = "the parts of one observation")]
    async fn observe(
        &self,
        cx: &Context<RedisCluster>,
        cluster: &RedisCluster,
        identity: &Identity,
        settings: Settings,
        workload: Option<Workload>,
        passwords: Option<&Passwords>,
        problems: &mut Vec<Problem>,
    ) -> Result<Observation> {
        let key = Key::of(cluster);
        let index = key.to_string();
        let pods: BTreeMap<String, Arc<Pod>> = cx
            .by_index::<Pod>(CLUSTER_INDEX, &index)
            .await?
            .into_iter()
            .map(|pod| (pod.name_any(), pod))
            .collect();
        let claims: BTreeMap<String, Arc<PersistentVolumeClaim>> = cx
            .by_index::<PersistentVolumeClaim>(CLUSTER_INDEX, &index)
            .await?
            .into_iter()
            .map(|claim| (claim.name_any(), claim))
            .collect();
        if let Some(passwords) = passwords {
            let monitored: Vec<Monitored> = pods
                .values()
                .filter_map(|pod| {
                    Some(Monitored { name: pod.name_any(), uid: pod.uid()?, ip: facts::ip(pod)? })
                })
                .collect();
            let credentials =
                Credentials { user: "setpoint".to_owned(), password: passwords.operator.clone() };
            self.monitors.watch(&key, &monitored, &credentials, passwords);
        }
        for claim in claims.values() {
            self.claim_problem(cx, claim, problems).await?;
        }
        let tracks = self.monitors.tracks(&key);
        let now = Instant::now();
        let confirmed = cluster.annotations().get(api::CONFIRM_DOWN);
        // Every pod that there is counts, also one that the StatefulSet is no longer to have.
        let replicas = workload.as_ref().map_or(0, |workload| workload.replicas);
        let present = pods.keys().filter_map(|name| Some(identity.ordinal(name)? + 1)).max().unwrap_or(0);
        let recorded = facts::recorded(identity, cluster.status.as_ref());
        let mut instances = BTreeMap::new();
        for ordinal in 0..replicas.max(present).max(recorded) {
            let name = identity.pod(ordinal);
            let pod = match pods.get(&name) {
                Some(pod) => Some(Arc::clone(pod)),
                None => self.strayed(cx, identity, &name).await?.map(Arc::new),
            };
            let pod = pod.as_ref();
            let track = tracks.get(&name);
            // A pod that has no address yet is not monitored: what is known is of the one before.
            let track = track.map(|(uid, track)| match pod {
                Some(pod) if pod.uid().as_ref() != Some(uid) => track.succeeded(now),
                _ => track.clone(),
            });
            let track = track.as_ref();
            let facts = match pod {
                None => None,
                Some(pod) => {
                    // The node's state only matters for servers that don't answer.
                    let node = match facts::node_name(pod) {
                        None => Node::None,
                        Some(_) if track.is_some_and(|track| track.answer(now).is_some()) => Node::Unknown,
                        Some(node) => facts::node(cx.live::<NodeObject>(Key::cluster(node)).await?.as_ref()),
                    };
                    let cordoned = match facts::node_name(pod) {
                        Some(node) => cx
                            .get::<NodeObject>(Key::cluster(node))
                            .await?
                            .is_some_and(|node| facts::cordoned(&node)),
                        None => false,
                    };
                    Some(facts::pod(pod, node, cordoned, cx.clock().now()))
                }
            };
            let claim = identity.claim(ordinal);
            let volume = match claims.get(&claim) {
                Some(claim) => facts::has_volume(claim),
                None if settings.persistent => self.strayed_claim(cx, identity, &claim).await?,
                None => false,
            };
            let confirmed = facts.as_ref().is_some_and(|facts| Some(&facts.uid) == confirmed);
            let mut instance = Instance::of(name, facts, track, now, volume, confirmed);
            instance.claim = claims.get(&claim).and_then(|claim| facts::claim(claim));
            instances.insert(ordinal, instance);
        }
        Ok(Observation {
            now,
            settings,
            ledger: facts::ledger(cluster.status.as_ref()),
            workload,
            instances,
            chosen: cluster.annotations().get(api::CHOOSE_PRIMARY).cloned(),
            requested: cluster.annotations().get(api::SWITCHOVER).cloned(),
            accept_data_loss: facts::flag(cluster, api::ACCEPT_DATA_LOSS),
            frozen: !problems.is_empty(),
            volumes: None,
        })
    }

    /// Deletes the claims of servers that were removed, where the user wants that. Only once everything is as the spec
    /// says, and never one that a pod could still use.
    async fn reclaim(
        &self,
        cx: &Context<RedisCluster>,
        cluster: &RedisCluster,
        identity: &Identity,
        o: &Observation,
    ) -> Result<()> {
        let kept = o.workload.as_ref().map_or(u32::MAX, |workload| workload.replicas.max(o.settings.size));
        for claim in self.deletable(cx, cluster).await? {
            let unused = |ordinal: u32| ordinal >= kept && !o.instances.contains_key(&ordinal);
            let name = claim.name_any();
            let pod = name.strip_prefix("data-").and_then(|pod| identity.ordinal(pod));
            if pod.is_some_and(unused) && claim.metadata.deletion_timestamp.is_none() {
                cx.delete(&*claim).await?;
                cx.event(Event::normal(
                    "VolumeDeleted",
                    format!("{name}: its server was removed, and storage.reclaim is Delete"),
                ));
            }
        }
        Ok(())
    }

    /// The volume claims that were made for this very object and may be deleted with their servers.
    async fn deletable(
        &self,
        cx: &Context<RedisCluster>,
        cluster: &RedisCluster,
    ) -> Result<Vec<Arc<PersistentVolumeClaim>>> {
        if cluster.spec.storage.as_ref().is_none_or(|storage| storage.reclaim != Reclaim::Delete) {
            return Ok(Vec::new());
        }
        let index = Key::of(cluster).to_string();
        let claims = cx.by_index::<PersistentVolumeClaim>(CLUSTER_INDEX, &index).await?;
        let ours = |claim: &Arc<PersistentVolumeClaim>| {
            claim.labels().get(render::OWNER_UID) == cluster.metadata.uid.as_ref()
        };
        Ok(claims.into_iter().filter(ours).collect())
    }

    /// A pod of this cluster that lost its labels is still there, and its server serves: it gets them back.
    async fn strayed(
        &self,
        cx: &Context<RedisCluster>,
        identity: &Identity,
        name: &str,
    ) -> Result<Option<Pod>> {
        let Some(pod) = cx.live::<Pod>(name).await?.filter(|pod| facts::is_of(pod, identity)) else {
            return Ok(None);
        };
        if let Some(patch) = facts::missing_labels(&pod, identity) {
            tracing::info!(name, "put the labels of a pod back");
            cx.patch::<Pod>(name, patch).await?;
        }
        Ok(Some(pod))
    }

    /// Whether there is a claim called `name` with a volume although it is not found by its labels, which it gets
    /// back.
    async fn strayed_claim(
        &self,
        cx: &Context<RedisCluster>,
        identity: &Identity,
        name: &str,
    ) -> Result<bool> {
        let Some(claim) = cx.live::<PersistentVolumeClaim>(name).await? else { return Ok(false) };
        if let Some(patch) = facts::missing_labels(&claim, identity) {
            tracing::info!(name, "put the labels of a volume claim back");
            cx.patch::<PersistentVolumeClaim>(name, patch).await?;
        }
        Ok(facts::has_volume(&claim))
    }

    /// The StatefulSet was made with storage that never came about, and the spec asks for other storage now: it is
    /// made anew. Only where no claim has a volume and no server was ever admitted, so that there is no data.
    async fn start_over(
        &self,
        cx: &Context<RedisCluster>,
        cluster: &RedisCluster,
        set: &StatefulSet,
    ) -> Result<bool> {
        let began = cluster.status.as_ref().is_some_and(|status| status.term > 0 || status.holds_data);
        let index = Key::of(cluster).to_string();
        let claims = cx.by_index::<PersistentVolumeClaim>(CLUSTER_INDEX, &index).await?;
        if began || claims.iter().any(|claim| facts::has_volume(claim)) {
            return Ok(false);
        }
        cx.delete(set).await?;
        for claim in claims {
            if let Some(live) = cx.live::<PersistentVolumeClaim>(&*claim.name_any()).await?
                && !facts::has_volume(&live)
            {
                cx.delete(&live).await?;
            }
        }
        Ok(true)
    }

    /// Names the field that keeps `claim` from getting a volume.
    async fn claim_problem(
        &self,
        cx: &Context<RedisCluster>,
        claim: &PersistentVolumeClaim,
        problems: &mut Vec<Problem>,
    ) -> Result<()> {
        if facts::has_volume(claim)
            || problems.iter().any(|problem| problem.field.starts_with("spec.storage"))
        {
            return Ok(());
        }
        let class =
            claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()).unwrap_or_default();
        if claim.spec.as_ref().is_some_and(|spec| spec.storage_class_name.as_deref() == Some("")) {
            let message = format!(
                "\"\" means no class: volume claim {} waits for a volume that somebody makes by hand",
                claim.name_any()
            );
            problems.push(Problem { field: "spec.storage.storageClass", message });
            return Ok(());
        }
        if !class.is_empty() && cx.live::<StorageClass>(Key::cluster(class)).await?.is_none() {
            let message = format!(
                "storage class \"{class}\" does not exist, so volume claim {} waits for ever",
                claim.name_any()
            );
            problems.push(Problem { field: "spec.storage.storageClass", message });
            return Ok(());
        }
        let created = claim.creation_timestamp().map_or_else(|| cx.clock().now(), |time| time.0);
        let age = Duration::try_from(cx.clock().now().duration_since(created)).unwrap_or_default();
        if age > CLAIM_PATIENCE {
            let size = facts::storage(claim).map(|storage| storage.size).unwrap_or_default();
            let message = format!(
                "volume claim {} of {size} has got no volume for {} s",
                claim.name_any(),
                age.as_secs()
            );
            problems.push(Problem { field: "spec.storage.size", message });
        }
        Ok(())
    }
}

fn of_stateful_set(set: &StatefulSet) -> Workload {
    Workload {
        replicas: set.spec.replicas.and_then(|replicas| u32::try_from(replicas).ok()).unwrap_or(1),
        template_hash: render::template_hash(set),
        uid: set.uid().unwrap_or_default(),
        volumes: set
            .spec
            .volume_claim_templates
            .as_ref()
            .and_then(|claims| claims.first())
            .and_then(facts::claim)
            .map(|claim| claim.asked),
        terminating: set.metadata.deletion_timestamp.is_some(),
    }
}

/// The storage to render: once the StatefulSet exists its own, which cannot be changed; and what to say if
/// the spec asks for another that volumes cannot become.
fn effective_storage(
    cluster: &RedisCluster,
    existing: Option<&StatefulSet>,
) -> (Option<Storage>, Option<String>) {
    let wanted = cluster.spec.storage.clone();
    let Some(existing) = existing else { return (wanted, None) };
    let claims = existing.spec.volume_claim_templates.as_ref();
    let current = claims.and_then(|claims| claims.first()).and_then(facts::storage);
    let fine = match (&wanted, &current) {
        (Some(wanted), Some(current)) => {
            quantity_in_bytes(&wanted.size) >= quantity_in_bytes(&current.size)
                && wanted.storage_class == current.storage_class
        }
        (None, None) => true,
        _ => false,
    };
    let say = |storage: &Option<Storage>| {
        storage.as_ref().map_or_else(
            || "no volumes".to_owned(),
            |storage| match &storage.storage_class {
                Some(class) => format!("volumes of {} of class \"{class}\"", storage.size),
                None => format!("volumes of {}", storage.size),
            },
        )
    };
    let impossible = (!fine).then(|| {
        format!("spec.storage: the servers run with {}, which cannot become {}", say(&current), say(&wanted))
    });
    (current, impossible)
}

/// Where the spec asks for fewer servers than are kept and does not say that they may go, all stay.
fn kept_size(cluster: &RedisCluster, settings: &mut Settings) -> Option<Problem> {
    let kept = cluster.status.as_ref().filter(|status| status.term > 0)?.size?;
    let kept = u32::try_from(kept).ok().filter(|kept| *kept > settings.size)?;
    settings.shrinks |= facts::flag(cluster, api::ALLOW_SCALE_DOWN);
    if settings.shrinks {
        return None;
    }
    let message = format!(
        "{} servers stay although it says {}: scaleDown: Allow lets servers be removed",
        kept, settings.size
    );
    settings.size = kept;
    Some(Problem { field: "spec.size", message })
}

/// The size that volumes are to grow to, or why they cannot.
async fn growth(
    cx: &Context<RedisCluster>,
    cluster: &RedisCluster,
    o: &Observation,
) -> Result<(Option<u128>, Option<String>)> {
    let Some(wanted) = cluster.spec.storage.as_ref().and_then(|storage| quantity_in_bytes(&storage.size))
    else {
        return Ok((None, None));
    };
    let small = |size: u128| size < wanted;
    for claim in
        o.instances.values().filter_map(|instance| instance.claim.as_ref()).filter(|claim| small(claim.asked))
    {
        let object = cx.get::<PersistentVolumeClaim>(&*claim.name).await?;
        let class = object
            .as_ref()
            .and_then(|claim| claim.spec.as_ref()?.storage_class_name.clone())
            .unwrap_or_default();
        let found =
            if class.is_empty() { None } else { cx.live::<StorageClass>(Key::cluster(&*class)).await? };
        if found.is_none_or(|class| class.allow_volume_expansion != Some(true)) {
            let why = format!(
                "spec.storage.size: {} has {} and cannot grow: storage class \"{class}\" does not allow it",
                claim.name,
                quantity(claim.asked),
            );
            return Ok((None, Some(why)));
        }
    }
    let grows = o.workload.as_ref().and_then(|workload| workload.volumes).is_some_and(small)
        || o.instances
            .values()
            .filter_map(|instance| instance.claim.as_ref())
            .any(|claim| small(claim.asked.min(claim.has)));
    Ok((grows.then_some(wanted), None))
}

/// Why a volume may not grow, as the API server says.
fn refused_growth(error: &Error, step: &Step) -> Option<String> {
    let Step::GrowClaim { claim, .. } = step else { return None };
    let status = error.status().filter(|status| matches!(status.code, 403 | 422))?;
    Some(format!("spec.storage.size: {claim} cannot grow: {}", status.message))
}

/// What a server said that refuses a setting.
fn refused_setting(error: &Error, step: &Step) -> Option<String> {
    let Step::Set { pod, name, value } = step else { return None };
    match error.downcast_ref::<ActError>()? {
        ActError::Order { source: OrderError::Session(SessionError::Refused(why)), .. } => {
            Some(format!("{name} {value} on {pod}: {why}"))
        }
        _ => None,
    }
}

/// A child that the API server refuses is a problem to report. One that it finds invalid stays so until the spec
/// changes; any other error is returned, to be tried again.
fn refused(error: Error, problems: &mut Vec<Problem>) -> Option<Error> {
    let foreign = matches!(error.downcast_ref::<Refused>(), Some(Refused::NotOurs { .. }));
    let (code, message) = match error.status() {
        Some(status) => (status.code, status.message.clone()),
        None => (0, error.to_string()),
    };
    // A conflict or a busy server is nothing that a user could do something about.
    if foreign || !matches!(code, 0 | 409 | 429 | 500..) {
        problems.push(Problem { field: "spec", message });
    }
    if code == 422 { None } else { Some(error) }
}

/// Warnings for what was fine before and is not any more.
fn troubles(before: Option<&RedisClusterStatus>, after: &RedisClusterStatus) -> Vec<(String, String)> {
    let was = |kind: &str| {
        let conditions = before.map(|status| status.conditions.as_slice()).unwrap_or_default();
        conditions
            .iter()
            .find(|condition| condition.type_ == kind)
            .map(|condition| (condition.reason.as_str(), condition.message.as_str()))
    };
    after
        .conditions
        .iter()
        .filter(|now| match now.type_.as_str() {
            "FailoverBlocked" | "RolloutBlocked" => now.status == "True",
            "ConfigApplied" => {
                now.status == "False" && !matches!(&*now.reason, "Applying" | "NoServerAnswers")
            }
            "Progressing" => now.reason.starts_with("Storage"),
            "StorageResized" => now.reason == "NotSupported",
            _ => false,
        })
        .filter(|now| {
            // Messages of waits that go on carry times; the word is what counts there.
            let word = was(&now.type_).map(|(reason, _)| reason);
            word != Some(now.reason.as_str())
        })
        .map(|now| (now.reason.clone(), now.message.clone()))
        .collect()
}

/// Tells users what was done.
fn announce(cx: &Context<RedisCluster>, decision: &Decision) {
    if matches!(decision.step, Step::Wait(_) | Step::Settled) {
        return;
    }
    for (warning, reason, note) in decision.reasons.iter().filter_map(event) {
        if warning {
            tracing::warn!(reason, "{note}");
        } else {
            tracing::info!(reason, "{note}");
        }
        cx.event(if warning { Event::warning(reason, note) } else { Event::normal(reason, note) });
    }
}
