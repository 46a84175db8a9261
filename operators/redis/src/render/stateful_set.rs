use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{
    StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec, StatefulSetUpdateStrategy,
};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvVar,
    EnvVarSource, ExecAction, KeyToPath, Lifecycle, LifecycleHandler, ObjectFieldSelector,
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PodAffinityTerm, PodAntiAffinity, PodSecurityContext,
    PodSpec, PodTemplateSpec, Probe, SeccompProfile, SecretVolumeSource, SecurityContext, Volume,
    VolumeMount, VolumeResourceRequirements, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use super::scripts::hash8;
use super::{Identity, OWNER_UID, PORT, REDIS_USER, SYSTEM_PATH, Scripts};
use crate::api::Storage;
use crate::settings::{AT_START, Settings, lines};

/// Annotation of pods: hash of the template that they were made from, as the operator rendered it. Not of
/// what the API server returns, so that a default of a new Kubernetes version cannot look like a change.
pub const TEMPLATE_HASH: &str = "cache.example.com/template-hash";

/// Annotation of pods: hash of the settings that servers take only when they start.
const RESTART_HASH: &str = "cache.example.com/restart-hash";

/// The update strategy: pods stay until somebody deletes them.
pub const ON_DELETE: &str = "OnDelete";

/// The StatefulSet with `replicas` servers. Its pods are replaced only when the operator deletes them
/// (`OnDelete`) and start independently of one another (`Parallel`).
pub fn stateful_set(
    identity: &Identity,
    settings: &Settings,
    storage: Option<&Storage>,
    scripts: &Scripts,
    replicas: u32,
) -> StatefulSet {
    let keep = || Some("Retain".to_owned());
    StatefulSet {
        metadata: identity.metadata(identity.name.clone()),
        spec: StatefulSetSpec {
            replicas: i32::try_from(replicas).ok(),
            service_name: Some(identity.child("nodes")),
            selector: LabelSelector { match_labels: Some(identity.selector()), ..LabelSelector::default() },
            pod_management_policy: Some("Parallel".to_owned()),
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some(ON_DELETE.to_owned()),
                ..Default::default()
            }),
            persistent_volume_claim_retention_policy: Some(StatefulSetPersistentVolumeClaimRetentionPolicy {
                when_deleted: keep(),
                when_scaled: keep(),
            }),
            template: template(identity, settings, storage, scripts),
            volume_claim_templates: storage.map(|storage| vec![claim(identity, storage)]),
            ..StatefulSetSpec::default()
        },
        ..StatefulSet::default()
    }
}

fn claim(identity: &Identity, storage: &Storage) -> PersistentVolumeClaim {
    let mut labels = identity.labels();
    labels.insert(OWNER_UID.to_owned(), identity.uid.clone());
    PersistentVolumeClaim {
        metadata: ObjectMeta { name: Some("data".to_owned()), labels: Some(labels), ..ObjectMeta::default() },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            storage_class_name: storage.storage_class.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([("storage".to_owned(), Quantity(storage.size.clone()))])),
                ..VolumeResourceRequirements::default()
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    }
}

fn template(
    identity: &Identity,
    settings: &Settings,
    storage: Option<&Storage>,
    scripts: &Scripts,
) -> PodTemplateSpec {
    let mut volumes = vec![
        Volume {
            name: "config".to_owned(),
            config_map: Some(ConfigMapVolumeSource { name: identity.child("config"), ..Default::default() }),
            ..Volume::default()
        },
        Volume {
            name: "scripts".to_owned(),
            config_map: Some(ConfigMapVolumeSource { name: scripts.name.clone(), ..Default::default() }),
            ..Volume::default()
        },
        Volume {
            name: "system".to_owned(),
            secret: Some(SecretVolumeSource {
                secret_name: Some(identity.child("system")),
                default_mode: Some(0o440),
                items: Some(
                    ["users.acl", "auth.conf", "probe"]
                        .map(|key| KeyToPath {
                            key: key.to_owned(),
                            path: key.to_owned(),
                            ..KeyToPath::default()
                        })
                        .to_vec(),
                ),
                ..SecretVolumeSource::default()
            }),
            ..Volume::default()
        },
    ];
    if storage.is_none() {
        let empty_dir = Some(EmptyDirVolumeSource::default());
        volumes.push(Volume { name: "data".to_owned(), empty_dir, ..Volume::default() });
    }
    let mut template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(identity.labels()),
            annotations: at_start(settings),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            // 60 s, and 5 s for each GiB that the memory limit allows.
            termination_grace_period_seconds: i64::try_from(60 + 5 * settings.limit.div_ceil(1 << 30)).ok(),
            security_context: Some(PodSecurityContext {
                run_as_user: Some(REDIS_USER),
                run_as_group: Some(REDIS_USER),
                run_as_non_root: Some(true),
                fs_group: Some(REDIS_USER),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..Default::default()
                }),
                ..PodSecurityContext::default()
            }),
            affinity: Some(settings.scheduling.affinity.clone().unwrap_or_else(|| spread(identity))),
            node_selector: some(&settings.scheduling.node_selector),
            tolerations: some(&settings.scheduling.tolerations),
            topology_spread_constraints: some(&settings.scheduling.topology_spread_constraints),
            priority_class_name: settings.scheduling.priority_class_name.clone(),
            containers: vec![container(settings)],
            volumes: Some(volumes),
            ..PodSpec::default()
        }),
    };
    // Values of our own types always serialise; an empty text would only merge two templates into one hash.
    let text = serde_json::to_string(&template).unwrap_or_default();
    if let Some(metadata) = &mut template.metadata {
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(TEMPLATE_HASH.to_owned(), hash8([text.as_bytes()]));
    }
    template
}

/// The settings that servers take only when they start, so that a change of one makes another template.
fn at_start(settings: &Settings) -> Option<BTreeMap<String, String>> {
    let given =
        settings.parameters.iter().filter(|(name, _)| AT_START.iter().any(|known| known.name == **name));
    let given: BTreeMap<&'static str, String> = given.map(|(name, value)| (*name, value.clone())).collect();
    (!given.is_empty())
        .then(|| BTreeMap::from([(RESTART_HASH.to_owned(), hash8([lines(&given).as_bytes()]))]))
}

fn some<T: Clone + Default + PartialEq>(all: &T) -> Option<T> {
    (*all != T::default()).then(|| all.clone())
}

/// Preferably each server on a host and in a zone of its own.
fn spread(identity: &Identity) -> Affinity {
    let apart = |weight, topology: &str| WeightedPodAffinityTerm {
        weight,
        pod_affinity_term: PodAffinityTerm {
            label_selector: Some(LabelSelector {
                match_labels: Some(identity.selector()),
                ..LabelSelector::default()
            }),
            topology_key: topology.to_owned(),
            ..PodAffinityTerm::default()
        },
    };
    Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![
                apart(100, "kubernetes.io/hostname"),
                apart(50, "topology.kubernetes.io/zone"),
            ]),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    }
}

fn container(settings: &Settings) -> Container {
    let exec = |command: &[&str]| {
        Some(ExecAction { command: Some(command.iter().map(|&word| word.to_owned()).collect()) })
    };
    // Any reply means alive (without `-e` the client succeeds on error replies): loading, a missing link or
    // a refused user must not kill data.
    let ping = || exec(&["redis-cli", "ping"]);
    let mount = |name: &str, path: &str, read_only: bool| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    };
    Container {
        name: "redis".to_owned(),
        image: Some(settings.image.clone()),
        command: Some(vec!["sh".to_owned(), "/scripts/start.sh".to_owned()]),
        env: Some(vec![EnvVar {
            name: "POD_IP".to_owned(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    field_path: "status.podIP".to_owned(),
                    api_version: None,
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        }]),
        ports: Some(vec![ContainerPort {
            name: Some("redis".to_owned()),
            container_port: i32::from(PORT),
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        resources: Some(settings.resources.clone()),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                ..Capabilities::default()
            }),
            ..SecurityContext::default()
        }),
        startup_probe: Some(Probe {
            exec: ping(),
            period_seconds: Some(2),
            timeout_seconds: Some(2),
            failure_threshold: Some(150),
            ..Probe::default()
        }),
        liveness_probe: Some(Probe {
            exec: ping(),
            period_seconds: Some(10),
            timeout_seconds: Some(5),
            failure_threshold: Some(6),
            ..Probe::default()
        }),
        readiness_probe: Some(Probe {
            exec: exec(&["sh", "/scripts/probe.sh"]),
            period_seconds: Some(2),
            timeout_seconds: Some(2),
            failure_threshold: Some(2),
            ..Probe::default()
        }),
        lifecycle: Some(Lifecycle {
            pre_stop: Some(LifecycleHandler {
                exec: exec(&["sh", "/scripts/prestop.sh"]),
                ..LifecycleHandler::default()
            }),
            ..Lifecycle::default()
        }),
        volume_mounts: Some(vec![
            mount("config", "/etc/redis", true),
            mount("system", SYSTEM_PATH, true),
            mount("scripts", "/scripts", true),
            mount("data", "/data", false),
        ]),
        ..Container::default()
    }
}
