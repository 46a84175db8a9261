//! A pod's specification turned into complete orders for the runtime.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::environment::Environment;
use super::runtime::{ContainerSpec, DnsConfig, Image, Mount, PodRef, SandboxConfig, Volume};
use crate::quantity;

/// Settings that all pods of a cluster share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDns {
    /// Addresses of the cluster's name server; none = pods use the machine's own configuration.
    pub servers: Vec<String>,
    /// The cluster's domain; upstream's default is `cluster.local`.
    pub domain: String,
}

/// Host names are at most this long; a longer pod name is cut (`truncatePodHostnameIfNeeded` upstream).
const HOSTNAME_LIMIT: usize = 63;

/// Which pod, and which life of it.
pub fn pod_ref(pod: &Pod) -> PodRef {
    let metadata = &pod.metadata;
    PodRef {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
    }
}

/// The host name of a pod.
pub fn hostname(pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    let name = spec
        .and_then(|spec| spec.hostname.clone())
        .filter(|name| !name.is_empty())
        .or_else(|| pod.metadata.name.clone())
        .unwrap_or_default();
    let cut: String = name.chars().take(HOSTNAME_LIMIT).collect();
    cut.trim_end_matches(['-', '.']).to_owned()
}

/// What the sandbox of a pod must be.
pub fn sandbox_config(pod: &Pod, volumes: Vec<Volume>, dns: &ClusterDns) -> SandboxConfig {
    let default = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&default);
    let hostname = hostname(pod);
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let subdomain = spec.subdomain.as_deref().filter(|subdomain| !subdomain.is_empty());
    let hosts = spec.host_aliases.iter().flatten();
    SandboxConfig {
        pod: pod_ref(pod),
        fqdn: subdomain.map(|subdomain| format!("{hostname}.{subdomain}.{namespace}.svc.{}", dns.domain)),
        hostname,
        hostname_is_fqdn: spec.set_hostname_as_fqdn == Some(true),
        dns: dns_config(spec, namespace, dns),
        hosts: hosts.map(|alias| (alias.ip.clone(), alias.hostnames.clone().unwrap_or_default())).collect(),
        host_network: spec.host_network == Some(true),
        share_process_namespace: spec.share_process_namespace == Some(true),
        fs_group: spec.security_context.as_ref().and_then(|context| context.fs_group),
        volumes,
    }
}

fn dns_config(spec: &PodSpec, namespace: &str, dns: &ClusterDns) -> DnsConfig {
    let policy = spec.dns_policy.as_deref().unwrap_or("ClusterFirst");
    let cluster = match policy {
        "ClusterFirst" => spec.host_network != Some(true),
        "ClusterFirstWithHostNet" => true,
        _ => false,
    } && !dns.servers.is_empty();
    let mut config = if cluster {
        let domain = &dns.domain;
        DnsConfig {
            nameservers: dns.servers.clone(),
            searches: vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()],
            options: vec!["ndots:5".into()],
            host: false,
        }
    } else {
        DnsConfig { host: policy != "None", ..DnsConfig::default() }
    };
    if let Some(extra) = &spec.dns_config {
        config.nameservers.extend(extra.nameservers.iter().flatten().cloned());
        config.searches.extend(extra.searches.iter().flatten().cloned());
        for option in extra.options.iter().flatten() {
            let Some(name) = &option.name else { continue };
            config.options.retain(|other| other.split(':').next() != Some(name));
            config.options.push(match &option.value {
                Some(value) => format!("{name}:{value}"),
                None => name.clone(),
            });
        }
    }
    config
}

/// What a container must be. Fails with the message of `CreateContainerConfigError`.
pub fn container_spec(
    pod: &Pod,
    container: &Container,
    attempt: u32,
    image: Image,
    environment: Environment,
) -> Result<ContainerSpec, String> {
    let shared = pod.spec.as_ref().and_then(|spec| spec.security_context.clone()).unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let user = own.run_as_user.or(shared.run_as_user);
    if own.run_as_non_root.or(shared.run_as_non_root) == Some(true) && user == Some(0) {
        return Err("container's runAsUser breaks non-root policy".into());
    }
    let expand = |words: &Option<Vec<String>>| {
        words.iter().flatten().map(|word| environment.expand(word)).collect::<Vec<_>>()
    };
    let capabilities = own.capabilities.unwrap_or_default();
    let resources = container.resources.clone().unwrap_or_default();
    let limit =
        |name: &str| resources.limits.as_ref().and_then(|limits| quantity::millis(&limits.get(name)?.0));
    let mounts = container.volume_mounts.iter().flatten().map(|mount| {
        let sub_path =
            mount.sub_path.clone().or_else(|| Some(environment.expand(mount.sub_path_expr.as_ref()?)));
        let sub_path = sub_path.filter(|path| !path.is_empty());
        if sub_path
            .as_ref()
            .is_some_and(|path| path.starts_with('/') || path.split('/').any(|part| part == ".."))
        {
            return Err(format!(
                "subPath of volume mount {:?} must stay inside the volume",
                mount.mount_path
            ));
        }
        Ok(Mount {
            volume: mount.name.clone(),
            path: mount.mount_path.clone(),
            sub_path,
            read_only: mount.read_only == Some(true),
        })
    });
    Ok(ContainerSpec {
        name: container.name.clone(),
        attempt,
        image,
        command: expand(&container.command),
        args: expand(&container.args),
        working_dir: container.working_dir.clone().filter(|dir| !dir.is_empty()),
        mounts: mounts.collect::<Result<_, _>>()?,
        user,
        group: own.run_as_group.or(shared.run_as_group),
        groups: shared.supplemental_groups.iter().flatten().copied().chain(shared.fs_group).collect(),
        read_only_root: own.read_only_root_filesystem == Some(true),
        drop_capabilities: capabilities.drop.unwrap_or_default(),
        add_capabilities: capabilities.add.unwrap_or_default(),
        allow_privilege_escalation: own.allow_privilege_escalation != Some(false),
        memory_limit: limit("memory").and_then(|millis| u64::try_from(millis / 1000).ok()),
        cpu_limit_millis: limit("cpu").and_then(|millis| u64::try_from(millis).ok()),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        termination_message_path: container
            .termination_message_path
            .clone()
            .unwrap_or_else(|| "/dev/termination-log".into()),
        termination_message_from_log: container.termination_message_policy.as_deref()
            == Some("FallbackToLogsOnError"),
        env: environment.into_inner(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::environment::PodFacts;
    use super::super::sources::Sources;
    use super::*;

    #[test]
    fn stateful_pod_gets_its_names() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "db-0", "namespace": "shop"},
            "spec": {"hostname": "db-0", "subdomain": "db", "containers": [],
                     "dnsConfig": {"searches": ["x.org"], "options": [{"name": "ndots", "value": "2"}, {"name": "rotate"}]}},
        }))
        .unwrap();
        let dns = ClusterDns { servers: vec!["10.96.0.10".into()], domain: "cluster.local".into() };
        let config = sandbox_config(&pod, Vec::new(), &dns);
        assert_eq!(config.fqdn.as_deref(), Some("db-0.db.shop.svc.cluster.local"));
        assert_eq!(
            config.dns.searches,
            ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "x.org"]
        );
        assert_eq!(config.dns.options, ["ndots:2", "rotate"]);
    }

    #[test]
    fn long_names_are_cut_to_valid_host_names() {
        let mut pod = Pod::default();
        pod.metadata.name = Some(format!("{}-rest", "a".repeat(62)));
        assert_eq!(hostname(&pod), "a".repeat(62));
    }

    #[test]
    fn container_settings_win_over_the_pods() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [], "securityContext": {"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3}},
        }))
        .unwrap();
        let container: Container = serde_json::from_value(json!({
            "name": "c", "command": ["run", "$(A)"], "env": [{"name": "A", "value": "x"}],
            "securityContext": {"runAsUser": 9},
            "resources": {"limits": {"memory": "1Mi", "cpu": "250m"}},
            "volumeMounts": [{"name": "v", "mountPath": "/v", "subPathExpr": "$(A)/y"}],
        }))
        .unwrap();
        let environment =
            Environment::build(&container, &pod, &PodFacts::default(), &Sources::default()).unwrap();
        let image = Image { name: "i".into(), id: "i".into() };
        let spec = container_spec(&pod, &container, 0, image, environment).unwrap();
        assert_eq!((spec.user, spec.group, spec.groups), (Some(9), Some(2), vec![3]));
        assert_eq!(spec.command, ["run", "x"]);
        assert_eq!((spec.memory_limit, spec.cpu_limit_millis), (Some(1 << 20), Some(250)));
        assert_eq!(spec.mounts[0].sub_path.as_deref(), Some("x/y"));
    }
}
