//! The small files in `/etc` that a container gets: pure functions.

use std::fmt::Write;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use setpoint_cluster::kubelet::{DnsConfig, SandboxConfig};

/// The files that all containers of a pod have.
pub(super) fn of_pod(
    config: &SandboxConfig,
    hostname: &str,
    address: Option<Ipv4Addr>,
) -> Vec<(PathBuf, String)> {
    let machine = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    vec![
        (PathBuf::from("/etc/hostname"), format!("{hostname}\n")),
        (PathBuf::from("/etc/hosts"), hosts(config, address)),
        (PathBuf::from("/etc/resolv.conf"), resolv_conf(&config.dns, &machine)),
    ]
}

/// As the kubelet writes it.
fn hosts(config: &SandboxConfig, address: Option<Ipv4Addr>) -> String {
    let mut text = String::from(
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    );
    if let Some(address) = address {
        let names: Vec<&str> = config.fqdn.as_deref().into_iter().chain([config.hostname.as_str()]).collect();
        let _ = writeln!(text, "{address}\t{}", names.join("\t"));
    }
    if !config.hosts.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
    }
    for (address, names) in &config.hosts {
        let _ = writeln!(text, "{address}\t{}", names.join("\t"));
    }
    text
}

fn resolv_conf(dns: &DnsConfig, machine: &str) -> String {
    let mut text = String::new();
    if dns.host {
        text.push_str(machine.trim_end());
        text.push('\n');
    }
    if !dns.searches.is_empty() {
        let _ = writeln!(text, "search {}", dns.searches.join(" "));
    }
    for server in &dns.nameservers {
        let _ = writeln!(text, "nameserver {server}");
    }
    if !dns.options.is_empty() {
        let _ = writeln!(text, "options {}", dns.options.join(" "));
    }
    text
}

/// Largest number of a system user or group (Debian policy 9.2.2, `UID_MIN` − 1).
const LAST_SYSTEM_ID: u32 = 999;

/// What Debian calls nobody and nogroup.
const NOBODY: u32 = 65534;

/// `/etc/passwd` and `/etc/group` for a container that runs the machine's own programs: its system users,
/// and the user that the container runs as.
pub(super) fn users(user: u32, group: u32) -> Vec<(PathBuf, String)> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let passwd = with_id(
        &system_entries(&read("/etc/passwd")),
        user,
        &format!("user{user}:x:{user}:{group}::/:/bin/sh"),
    );
    let groups = with_id(&system_entries(&read("/etc/group")), group, &format!("group{group}:x:{group}:"));
    vec![(PathBuf::from("/etc/passwd"), passwd), (PathBuf::from("/etc/group"), groups)]
}

/// The machine's primary group of a user, 0 for an unknown one (as container runtimes take it from the image).
pub(super) fn primary_group(user: u32) -> u32 {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = passwd.lines().find(|line| id(line) == Some(user));
    line.and_then(|line| line.split(':').nth(3)?.parse().ok()).unwrap_or(0)
}

fn id(line: &str) -> Option<u32> {
    line.split(':').nth(2)?.parse().ok()
}

fn system_entries(text: &str) -> String {
    let system = |line: &&str| id(line).is_some_and(|id| id <= LAST_SYSTEM_ID || id == NOBODY);
    text.lines().filter(system).fold(String::new(), |text, line| text + line + "\n")
}

fn with_id(text: &str, wanted: u32, line: &str) -> String {
    if text.lines().any(|line| id(line) == Some(wanted)) {
        text.to_owned()
    } else {
        format!("{text}{line}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_resolution_is_as_the_kubelet_writes_it() {
        let dns = DnsConfig {
            nameservers: vec!["10.96.0.10".into()],
            searches: vec!["default.svc.cluster.local".into(), "svc.cluster.local".into()],
            options: vec!["ndots:5".into()],
            host: false,
        };
        assert_eq!(
            resolv_conf(&dns, "nameserver 1.1.1.1"),
            "search default.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n"
        );
        let own = DnsConfig { host: true, ..DnsConfig::default() };
        assert_eq!(resolv_conf(&own, "nameserver 1.1.1.1"), "nameserver 1.1.1.1\n");
    }

    #[test]
    fn only_system_users_and_the_containers_own_are_known() {
        let machine = "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n";
        let system = system_entries(machine);
        assert!(!system.contains("alice") && system.contains("nobody"));
        assert_eq!(with_id(&system, 0, "never"), system);
        assert!(
            with_id(&system, 1234, "user1234:x:1234:0::/:/bin/sh")
                .ends_with("user1234:x:1234:0::/:/bin/sh\n")
        );
    }
}
