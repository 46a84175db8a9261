//! What a level forbids a pod, as each minor version of Kubernetes defines it (`k8s.io/pod-security-admission/policy`).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use super::policy::{Level, LevelVersion};
use crate::builtin::{list, text};

/// Something that a level forbids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    pub(super) reason: Cow<'static, str>,
    detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.reason, self.detail)
    }
}

/// A pod, or the template of pods.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pod<'a> {
    metadata: &'a Value,
    spec: &'a Value,
}

impl<'a> Pod<'a> {
    pub(super) fn of(object: &'a Value) -> Self {
        Self { metadata: &object["metadata"], spec: &object["spec"] }
    }

    fn containers(self) -> impl Iterator<Item = &'a Value> {
        ["initContainers", "containers", "ephemeralContainers"]
            .into_iter()
            .flat_map(|key| list(self.spec, key))
    }

    /// The names of the containers for which `is_bad` holds.
    fn bad(self, is_bad: impl FnMut(&&'a Value) -> bool) -> Vec<&'a str> {
        self.containers().filter(is_bad).map(|container| text(container, "name")).collect()
    }

    fn is_for_windows(self) -> bool {
        self.spec["os"]["name"] == "windows"
    }

    fn has_own_users(self) -> bool {
        self.spec["hostUsers"] == false
    }
}

/// What a level and a version of it forbid a pod, in the order in which upstream tells it.
pub(super) fn violations(level: LevelVersion, pod: Pod<'_>) -> Vec<Violation> {
    if level.level == Level::Privileged {
        return Vec::new();
    }
    let version = level.version.min(NEWEST);
    let valid = |check: &&Check| check.level <= level.level && check.since <= version;
    let replaced: BTreeSet<&str> = CHECKS.iter().filter(valid).filter_map(|check| check.replaces).collect();
    let asked = CHECKS.iter().filter(valid).filter(|check| !replaced.contains(check.id));
    asked.filter_map(|check| (check.of)(pod, version)).collect()
}

/// The last minor version that changed a check.
const NEWEST: u64 = 37;

struct Check {
    id: &'static str,
    level: Level,
    /// The minor version that brought the check.
    since: u64,
    /// The check of the lower level that this one makes needless.
    replaces: Option<&'static str>,
    of: fn(Pod<'_>, u64) -> Option<Violation>,
}

const fn baseline(id: &'static str, since: u64, of: fn(Pod<'_>, u64) -> Option<Violation>) -> Check {
    Check { id, level: Level::Baseline, since, replaces: None, of }
}

const fn restricted(
    id: &'static str,
    since: u64,
    replaces: Option<&'static str>,
    of: fn(Pod<'_>, u64) -> Option<Violation>,
) -> Check {
    Check { id, level: Level::Restricted, since, replaces, of }
}

/// In the order of upstream: the baseline before what is restricted, each by id.
const CHECKS: [Check; 19] = [
    baseline("appArmorProfile", 0, app_armor),
    baseline("capabilities_baseline", 0, capabilities),
    baseline("hostNamespaces", 0, host_namespaces),
    baseline("hostPathVolumes", 0, host_paths),
    baseline("hostPorts", 0, host_ports),
    baseline("hostProbesAndHostLifecycle", 34, hosts_of_probes),
    baseline("privileged", 0, privileged),
    baseline("procMount", 0, proc_mount_outside_user_namespaces),
    baseline("seLinuxOptions", 0, se_linux),
    baseline("seccompProfile_baseline", 0, seccomp),
    baseline("sysctls", 0, sysctls),
    baseline("windowsHostProcess", 0, host_process),
    restricted("allowPrivilegeEscalation", 8, None, privilege_escalation),
    restricted("capabilities_restricted", 22, Some("capabilities_baseline"), dropped_capabilities),
    restricted("procMount_restricted", 35, Some("procMount"), |pod, _| proc_mount(pod)),
    restricted("restrictedVolumes", 0, Some("hostPathVolumes"), volumes),
    restricted("runAsNonRoot", 0, None, non_root),
    restricted("runAsUser", 23, None, root_user),
    restricted("seccompProfile_restricted", 19, Some("seccompProfile_baseline"), required_seccomp),
];

#[expect(clippy::unnecessary_wraps, reason = "what a check answers")]
fn violation(reason: impl Into<Cow<'static, str>>, detail: String) -> Option<Violation> {
    Some(Violation { reason: reason.into(), detail })
}

/// `"a", "b"`.
fn quoted<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| format!("\"{}\"", item.as_ref())).collect::<Vec<_>>().join(", ")
}

fn plural(count: usize, one: &'static str, several: &'static str) -> &'static str {
    if count == 1 { one } else { several }
}

/// `container "a"`, or `containers "a", "b"`.
fn containers(names: &[&str]) -> String {
    format!("{} {}", plural(names.len(), "container", "containers"), quoted(names))
}

/// `pod and containers "a", "b"`, as far as they do it.
fn setters(pod: bool, bad: &[&str]) -> Option<String> {
    let pod = pod.then(|| "pod".to_owned());
    let bad = (!bad.is_empty()).then(|| containers(bad));
    let all: Vec<String> = pod.into_iter().chain(bad).collect();
    (!all.is_empty()).then(|| all.join(" and "))
}

fn security(of: &Value) -> &Value {
    &of["securityContext"]
}

fn app_armor(pod: Pod<'_>, _: u64) -> Option<Violation> {
    const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
    let mut values = BTreeSet::new();
    let mut is_bad = |of: &Value| {
        let profile = &security(of)["appArmorProfile"];
        let kind = text(profile, "type");
        let bad = profile.is_object() && !matches!(kind, "RuntimeDefault" | "Localhost");
        if bad {
            values.insert(kind.to_owned());
        }
        bad
    };
    let whole = is_bad(pod.spec);
    let bad = pod.bad(|container| is_bad(container));
    let mut who: Vec<String> = setters(whole, &bad).into_iter().collect();
    let annotations = pod.metadata["annotations"].as_object().into_iter().flatten();
    let mut forbidden: Vec<String> = annotations
        .filter(|(key, _)| key.starts_with(ANNOTATION))
        .map(|(key, value)| (key, value.as_str().unwrap_or_default()))
        .filter(|(_, value)| {
            !(value.is_empty() || *value == "runtime/default" || value.starts_with("localhost/"))
        })
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    forbidden.sort();
    if !forbidden.is_empty() {
        who.push(plural(forbidden.len(), "annotation", "annotations").to_owned());
    }
    let values: Vec<String> = values.into_iter().chain(forbidden).collect();
    if who.is_empty() {
        return None;
    }
    violation(
        plural(values.len(), "forbidden AppArmor profile", "forbidden AppArmor profiles"),
        format!("{} must not set AppArmor profile type to {}", who.join(" and "), quoted(values)),
    )
}

const DEFAULT_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Which containers add capabilities that are not `allowed`, and which capabilities these are.
fn added<'a>(pod: Pod<'a>, allowed: &[&str]) -> (Vec<&'a str>, BTreeSet<&'a str>) {
    let mut forbidden = BTreeSet::new();
    let bad = pod.bad(|container| {
        let added = list(&security(container)["capabilities"], "add").iter().filter_map(Value::as_str);
        let before: Vec<&str> = added.filter(|name| !allowed.contains(name)).collect();
        forbidden.extend(before.iter().copied());
        !before.is_empty()
    });
    (bad, forbidden)
}

fn capabilities(pod: Pod<'_>, _: u64) -> Option<Violation> {
    let (bad, forbidden) = added(pod, &DEFAULT_CAPABILITIES);
    if bad.is_empty() {
        return None;
    }
    let detail = format!(
        "{} must not include {} in securityContext.capabilities.add",
        containers(&bad),
        quoted(forbidden)
    );
    violation("non-default capabilities", detail)
}

fn dropped_capabilities(pod: Pod<'_>, version: u64) -> Option<Violation> {
    if version >= 25 && pod.is_for_windows() {
        return None;
    }
    let keeping = pod.bad(|container| {
        let dropped = list(&security(container)["capabilities"], "drop");
        !dropped.iter().any(|name| name == "ALL")
    });
    let (adding, forbidden) = added(pod, &["NET_BIND_SERVICE"]);
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details
            .push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", containers(&keeping)));
    }
    if !adding.is_empty() {
        details.push(format!(
            "{} must not include {} in securityContext.capabilities.add",
            containers(&adding),
            quoted(forbidden)
        ));
    }
    if details.is_empty() { None } else { violation("unrestricted capabilities", details.join("; ")) }
}

fn host_namespaces(pod: Pod<'_>, _: u64) -> Option<Violation> {
    let shared = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|key| pod.spec[*key] == true);
    let shared: Vec<String> = shared.map(|key| format!("{key}=true")).collect();
    if shared.is_empty() { None } else { violation("host namespaces", shared.join(", ")) }
}

fn host_paths(pod: Pod<'_>, _: u64) -> Option<Violation> {
    let bad = list(pod.spec, "volumes").iter().filter(|volume| !volume["hostPath"].is_null());
    let bad: Vec<&str> = bad.map(|volume| text(volume, "name")).collect();
    if bad.is_empty() {
        return None;
    }
    violation("hostPath volumes", format!("{} {}", plural(bad.len(), "volume", "volumes"), quoted(bad)))
}

fn host_ports(pod: Pod<'_>, _: u64) -> Option<Violation> {
    // As texts, as upstream sorts them.
    let mut ports = BTreeSet::new();
    let bad = pod.bad(|container| {
        let used = list(container, "ports").iter().filter_map(|port| port["hostPort"].as_i64());
        let used: Vec<String> = used.filter(|port| *port != 0).map(|port| port.to_string()).collect();
        let any = !used.is_empty();
        ports.extend(used);
        any
    });
    if bad.is_empty() {
        return None;
    }
    let (use_, port) = (plural(bad.len(), "uses", "use"), plural(ports.len(), "hostPort", "hostPorts"));
    let ports = ports.into_iter().collect::<Vec<_>>().join(", ");
    violation("hostPort", format!("{} {use_} {port} {ports}", containers(&bad)))
}

fn hosts_of_probes(pod: Pod<'_>, _: u64) -> Option<Violation> {
    let mut hosts = BTreeSet::new();
    let mut bad = pod.bad(|container| {
        let probes = ["livenessProbe", "readinessProbe", "startupProbe"].map(|key| &container[key]);
        let hooks = ["postStart", "preStop"].map(|key| &container["lifecycle"][key]);
        let before: Vec<&str> = probes
            .into_iter()
            .chain(hooks)
            .flat_map(|handler| ["httpGet", "tcpSocket"].map(|kind| text(&handler[kind], "host")))
            .filter(|host| !host.is_empty())
            .collect();
        hosts.extend(before.iter().copied());
        !before.is_empty()
    });
    if bad.is_empty() {
        return None;
    }
    bad.sort_unstable();
    bad.dedup();
    let host = plural(hosts.len(), "probe or lifecycle host", "probe or lifecycle hosts");
    let use_ = plural(bad.len(), "uses", "use");
    violation("probe or lifecycle host", format!("{} {use_} {host} {}", containers(&bad), quoted(hosts)))
}

fn privileged(pod: Pod<'_>, _: u64) -> Option<Violation> {
    let bad = pod.bad(|container| security(container)["privileged"] == true);
    if bad.is_empty() {
        return None;
    }
    violation("privileged", format!("{} must not set securityContext.privileged=true", containers(&bad)))
}

fn proc_mount(pod: Pod<'_>) -> Option<Violation> {
    let mut values = BTreeSet::new();
    let bad = pod.bad(|container| {
        let given = security(container)["procMount"].as_str().filter(|given| *given != "Default");
        values.extend(given);
        given.is_some()
    });
    if bad.is_empty() {
        return None;
    }
    let detail = format!("{} must not set securityContext.procMount to {}", containers(&bad), quoted(values));
    violation("procMount", detail)
}

fn proc_mount_outside_user_namespaces(pod: Pod<'_>, version: u64) -> Option<Violation> {
    if version >= 35 && pod.has_own_users() { None } else { proc_mount(pod) }
}

fn se_linux(pod: Pod<'_>, version: u64) -> Option<Violation> {
    let mut types = BTreeSet::new();
    let (mut user, mut role) = (false, false);
    let mut is_bad = |of: &Value| {
        let options = &security(of)["seLinuxOptions"];
        let kind = text(options, "type");
        let allowed = matches!(kind, "" | "container_t" | "container_init_t" | "container_kvm_t")
            || version >= 31 && kind == "container_engine_t";
        if !allowed {
            types.insert(kind.to_owned());
        }
        let (sets_user, sets_role) = (!text(options, "user").is_empty(), !text(options, "role").is_empty());
        user |= sets_user;
        role |= sets_role;
        !allowed || sets_user || sets_role
    };
    let whole = is_bad(pod.spec);
    let bad = pod.bad(|container| is_bad(container));
    let who = setters(whole, &bad)?;
    let mut what = Vec::new();
    if !types.is_empty() {
        what.push(format!("{} {}", plural(types.len(), "type", "types"), quoted(types)));
    }
    if user {
        what.push("user may not be set".to_owned());
    }
    if role {
        what.push("role may not be set".to_owned());
    }
    violation(
        "seLinuxOptions",
        format!("{who} set forbidden securityContext.seLinuxOptions: {}", what.join("; ")),
    )
}

/// The types of seccomp profiles that are set and not allowed, and who sets them.
fn bad_seccomp(pod: Pod<'_>) -> Option<Violation> {
    let mut values = BTreeSet::new();
    let mut is_bad = |of: &Value| {
        let profile = &security(of)["seccompProfile"];
        let bad = profile.is_object() && !is_good_seccomp(profile);
        if bad {
            values.insert(text(profile, "type").to_owned());
        }
        bad
    };
    let whole = is_bad(pod.spec);
    let bad = pod.bad(|container| is_bad(container));
    let who = setters(whole, &bad)?;
    let detail = format!("{who} must not set securityContext.seccompProfile.type to {}", quoted(values));
    violation("seccompProfile", detail)
}

fn is_good_seccomp(profile: &Value) -> bool {
    matches!(text(profile, "type"), "Localhost" | "RuntimeDefault")
}

fn seccomp(pod: Pod<'_>, version: u64) -> Option<Violation> {
    if version >= 19 {
        return bad_seccomp(pod);
    }
    // Before, annotations said it.
    let whole = std::iter::once("seccomp.security.alpha.kubernetes.io/pod".to_owned());
    let each = pod.containers().map(|container| {
        format!("container.seccomp.security.alpha.kubernetes.io/{}", text(container, "name"))
    });
    let annotations = &pod.metadata["annotations"];
    let forbidden: BTreeSet<String> = whole
        .chain(each)
        .filter_map(|key| annotations[&key].as_str().map(|value| (key, value)))
        .filter(|(_, value)| {
            !(matches!(*value, "runtime/default" | "docker/default") || value.starts_with("localhost/"))
        })
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    if forbidden.is_empty() {
        return None;
    }
    let annotation = plural(forbidden.len(), "annotation", "annotations");
    let forbidden = forbidden.into_iter().collect::<Vec<_>>().join(", ");
    violation("seccompProfile", format!("forbidden {annotation} {forbidden}"))
}

fn required_seccomp(pod: Pod<'_>, version: u64) -> Option<Violation> {
    if version >= 25 && pod.is_for_windows() {
        return None;
    }
    if let Some(bad) = bad_seccomp(pod) {
        return Some(bad);
    }
    let profile = &security(pod.spec)["seccompProfile"];
    if profile.is_object() {
        return None;
    }
    let lacking = pod.bad(|container| !security(container)["seccompProfile"].is_object());
    if lacking.is_empty() {
        return None;
    }
    let detail = format!(
        "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
        containers(&lacking)
    );
    violation("seccompProfile", detail)
}

/// With the minor versions since which they are allowed.
const SAFE_SYSCTLS: [(&str, u64); 14] = [
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
    ("net.ipv4.tcp_slow_start_after_idle", 37),
    ("net.ipv4.tcp_notsent_lowat", 37),
];

fn sysctls(pod: Pod<'_>, version: u64) -> Option<Violation> {
    let safe = |name: &str| SAFE_SYSCTLS.iter().any(|(known, since)| *known == name && *since <= version);
    let set = list(security(pod.spec), "sysctls").iter().map(|sysctl| text(sysctl, "name"));
    let forbidden: Vec<&str> = set.filter(|name| !safe(name)).collect();
    if forbidden.is_empty() { None } else { violation("forbidden sysctls", forbidden.join(", ")) }
}

fn host_process(pod: Pod<'_>, _: u64) -> Option<Violation> {
    let is_set = |of: &Value| security(of)["windowsOptions"]["hostProcess"] == true;
    let who = setters(is_set(pod.spec), &pod.bad(|container| is_set(container)))?;
    violation("hostProcess", format!("{who} must not set securityContext.windowsOptions.hostProcess=true"))
}

fn privilege_escalation(pod: Pod<'_>, version: u64) -> Option<Violation> {
    if version >= 25 && pod.is_for_windows() {
        return None;
    }
    let bad = pod.bad(|container| security(container)["allowPrivilegeEscalation"] != false);
    if bad.is_empty() {
        return None;
    }
    let detail = format!("{} must set securityContext.allowPrivilegeEscalation=false", containers(&bad));
    violation("allowPrivilegeEscalation != false", detail)
}

fn volumes(pod: Pod<'_>, _: u64) -> Option<Violation> {
    const ALLOWED: [&str; 9] = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    const KNOWN: [&str; 21] = [
        "hostPath",
        "gcePersistentDisk",
        "awsElasticBlockStore",
        "gitRepo",
        "nfs",
        "iscsi",
        "glusterfs",
        "rbd",
        "flexVolume",
        "cinder",
        "cephfs",
        "flocker",
        "fc",
        "azureFile",
        "vsphereVolume",
        "quobyte",
        "azureDisk",
        "photonPersistentDisk",
        "portworxVolume",
        "scaleIO",
        "storageos",
    ];
    let has =
        |volume: &Value, kinds: &[&'static str]| kinds.iter().find(|kind| !volume[**kind].is_null()).copied();
    let mut kinds = BTreeSet::new();
    let mut bad = Vec::new();
    for volume in list(pod.spec, "volumes").iter().filter(|volume| has(volume, &ALLOWED).is_none()) {
        bad.push(text(volume, "name"));
        kinds.insert(has(volume, &KNOWN).unwrap_or("unknown"));
    }
    if bad.is_empty() {
        return None;
    }
    let detail = format!(
        "{} {} {} {} {}",
        plural(bad.len(), "volume", "volumes"),
        quoted(&bad),
        plural(bad.len(), "uses", "use"),
        plural(kinds.len(), "restricted volume type", "restricted volume types"),
        quoted(kinds)
    );
    violation("restricted volume types", detail)
}

fn non_root(pod: Pod<'_>, version: u64) -> Option<Violation> {
    const REASON: &str = "runAsNonRoot != true";
    if version >= 35 && pod.has_own_users() {
        return None;
    }
    let says = |of: &Value| security(of)["runAsNonRoot"].as_bool();
    let whole = says(pod.spec);
    let bad = pod.bad(|container| says(container) == Some(false));
    if let Some(who) = setters(whole == Some(false), &bad) {
        return violation(REASON, format!("{who} must not set securityContext.runAsNonRoot=false"));
    }
    let lacking = pod.bad(|container| says(container).is_none());
    if whole == Some(true) || lacking.is_empty() {
        return None;
    }
    violation(REASON, format!("pod or {} must set securityContext.runAsNonRoot=true", containers(&lacking)))
}

fn root_user(pod: Pod<'_>, version: u64) -> Option<Violation> {
    if version >= 35 && pod.has_own_users() {
        return None;
    }
    let is_root = |of: &Value| security(of)["runAsUser"] == 0;
    let who = setters(is_root(pod.spec), &pod.bad(|container| is_root(container)))?;
    violation("runAsUser=0", format!("{who} must not set runAsUser=0"))
}

#[cfg(test)]
mod tests;
