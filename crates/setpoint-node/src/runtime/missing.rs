//! What a pod asks for that a process node does not have and does without: a pure function.

use k8s_openapi::api::core::v1::{Container, PodSpec};

/// A sentence for each field that has no effect.
pub(super) fn of_pod(spec: &PodSpec) -> Vec<String> {
    let mut missing = Vec::new();
    let own_network = spec.host_network != Some(true);
    for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
        // With the node's network the container's port is the node's.
        if own_network {
            host_ports(container, &mut missing);
        }
        for device in container.volume_devices.iter().flatten() {
            missing.push(format!(
                "volumeDevices {:?} of container {:?} has no effect: process nodes have no block volumes",
                device.device_path, container.name
            ));
        }
    }
    let wants = [
        (
            spec.host_pid,
            "hostPID has no effect: each container of a process node has a process namespace of its own",
        ),
        (spec.host_ipc, "hostIPC has no effect: each pod of a process node has an IPC namespace of its own"),
    ];
    missing.extend(
        wants.into_iter().filter(|(wanted, _)| *wanted == Some(true)).map(|(_, what)| what.to_owned()),
    );
    for sysctl in spec.security_context.iter().flat_map(|context| context.sysctls.iter().flatten()) {
        missing
            .push(format!("sysctl {:?} has no effect: process nodes set no kernel parameters", sysctl.name));
    }
    missing
}

fn host_ports(container: &Container, missing: &mut Vec<String>) {
    for port in container.ports.iter().flatten() {
        let Some(number) = port.host_port.filter(|number| *number != 0) else { continue };
        missing.push(format!(
            "hostPort {number} of container {:?} has no effect: process nodes open no ports on the machine; \
             inside the cluster's network the pod's address and Services lead to containerPort {}",
            container.name, port.container_port
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn missing(spec: serde_json::Value) -> Vec<String> {
        of_pod(&serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn each_field_without_effect_is_named() {
        let container = json!({
            "name": "web",
            "ports": [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81}],
            "volumeDevices": [{"name": "disk", "devicePath": "/dev/xvda"}],
        });
        let all = missing(json!({
            "containers": [container],
            "hostPID": true,
            "hostIPC": true,
            "securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]},
        }));
        let starts = [
            "hostPort 8080 of container \"web\"",
            "volumeDevices \"/dev/xvda\"",
            "hostPID",
            "hostIPC",
            "sysctl \"net.core.somaxconn\"",
        ];
        assert_eq!(all.len(), starts.len(), "{all:?}");
        for (sentence, start) in all.iter().zip(starts) {
            assert!(sentence.starts_with(start), "{sentence}");
        }
    }

    #[test]
    fn what_has_an_effect_is_not() {
        let ports = json!([{"containerPort": 80, "hostPort": 80}]);
        let spec = json!({"hostNetwork": true, "containers": [{"name": "web", "ports": ports}]});
        assert_eq!(missing(spec), Vec::<String>::new());
    }
}
