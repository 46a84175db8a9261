//! Versions of checks. What messages say is compared with recordings: `conformance/cases/pod-security.yaml`.

use serde_json::{Value, json};

use super::*;

fn found(level: Level, minor: u64, pod: &Value) -> Vec<String> {
    let level = LevelVersion { level, version: minor };
    violations(level, Pod::of(pod)).iter().map(|violation| violation.reason.to_string()).collect()
}

fn pod(spec: &Value) -> Value {
    let mut pod = json!({"metadata": {}, "spec": {"containers": [{"name": "c"}]}});
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

#[test]
fn a_plain_pod_is_restricted_by_what_its_version_knew() {
    let plain = pod(&json!({}));
    for (minor, expected) in [
        (0, &["runAsNonRoot != true"][..]),
        (8, &["allowPrivilegeEscalation != false", "runAsNonRoot != true"]),
        (19, &["allowPrivilegeEscalation != false", "runAsNonRoot != true", "seccompProfile"]),
        (
            22,
            &[
                "allowPrivilegeEscalation != false",
                "unrestricted capabilities",
                "runAsNonRoot != true",
                "seccompProfile",
            ],
        ),
    ] {
        assert_eq!(found(Level::Restricted, minor, &plain), expected, "v1.{minor}");
        assert!(found(Level::Baseline, minor, &plain).is_empty());
    }
    assert_eq!(found(Level::Restricted, 99, &plain), found(Level::Restricted, NEWEST, &plain));
    assert!(found(Level::Privileged, 37, &pod(&json!({"hostPID": true}))).is_empty());
}

#[test]
fn versions_allow_and_forbid_more() {
    let sysctl = |name: &str| pod(&json!({"securityContext": {"sysctls": [{"name": name, "value": "1"}]}}));
    let container = |context: Value| pod(&json!({"containers": [{"name": "c", "securityContext": context}]}));
    let mut own_users = container(json!({"procMount": "Unmasked"}));
    own_users["spec"]["hostUsers"] = false.into();
    let probe =
        json!({"containers": [{"name": "c", "livenessProbe": {"httpGet": {"host": "h", "port": 1}}}]});
    // The last version that forbids it, or the first.
    for (subject, forbidding, allowing) in [
        (sysctl("net.ipv4.ip_local_reserved_ports"), 26, 27),
        (sysctl("net.ipv4.tcp_fin_timeout"), 28, 29),
        (sysctl("net.ipv4.tcp_rmem"), 31, 32),
        (sysctl("net.ipv4.tcp_notsent_lowat"), 36, 37),
        (container(json!({"seLinuxOptions": {"type": "container_engine_t"}})), 30, 31),
        (own_users, 34, 35),
        (pod(&probe), 34, 33),
        (container(json!({"seccompProfile": {"type": "Unconfined"}})), 19, 18),
    ] {
        assert_eq!(found(Level::Baseline, forbidding, &subject).len(), 1, "v1.{forbidding}: {subject}");
        assert!(found(Level::Baseline, allowing, &subject).is_empty(), "v1.{allowing}: {subject}");
    }
}

#[test]
fn what_the_restricted_level_says_itself_is_not_said_twice() {
    let both = pod(&json!({
        "volumes": [{"name": "v", "hostPath": {"path": "/"}}],
        "containers": [{"name": "c", "securityContext": {
            "capabilities": {"add": ["SYS_ADMIN"], "drop": ["ALL"]}, "procMount": "Unmasked",
            "runAsNonRoot": true, "allowPrivilegeEscalation": false, "seccompProfile": {"type": "Unconfined"},
        }}],
    }));
    let mut expected = vec!["non-default capabilities", "hostPath volumes", "procMount", "seccompProfile"];
    assert_eq!(found(Level::Baseline, 37, &both), expected);
    expected = vec!["unrestricted capabilities", "procMount", "restricted volume types", "seccompProfile"];
    assert_eq!(found(Level::Restricted, 37, &both), expected);
}
