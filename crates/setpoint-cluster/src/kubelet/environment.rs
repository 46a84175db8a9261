//! A container's environment: service links, `envFrom`, `env` with its sources, and `$(VAR)` expansion.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVarSource, Pod, ResourceFieldSelector, Service};

use super::sources::Sources;
use crate::quantity;

/// Facts about a pod on its node that its specification does not hold.
#[derive(Clone, Debug, Default)]
pub struct PodFacts {
    /// Addresses of the pod.
    pub pod_ips: Vec<String>,
    /// Address of the node.
    pub host_ip: Option<String>,
    /// Host name of the pod.
    pub hostname: String,
    /// The node's CPUs in thousandths, the limit of containers without one.
    pub node_cpu_millis: u64,
    /// The node's memory in bytes.
    pub node_memory_bytes: u64,
}

/// Variables in order of definition; a later definition of a name replaces the earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(Vec<(String, String)>);

impl Environment {
    /// Works it out. Fails with a message as `CreateContainerConfigError` shows it when something that is
    /// referred to does not exist.
    pub fn build(
        container: &Container,
        pod: &Pod,
        facts: &PodFacts,
        sources: &Sources,
    ) -> Result<Self, String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let mut environment = Self::default();
        environment.set("HOSTNAME", facts.hostname.clone());
        for service in &sources.services {
            environment.service(service);
        }
        for from in container.env_from.iter().flatten() {
            let prefix = from.prefix.as_deref().unwrap_or_default();
            if let Some(reference) = &from.config_map_ref {
                match sources.config_maps.get(&reference.name).and_then(Option::as_ref) {
                    Some(map) => {
                        for (key, value) in map.data.iter().flatten() {
                            environment.set(&format!("{prefix}{key}"), value.clone());
                        }
                    }
                    None if reference.optional == Some(true) => {}
                    None => return Err(format!("configmap \"{}\" not found", reference.name)),
                }
            }
            if let Some(reference) = &from.secret_ref {
                match sources.secrets.get(&reference.name).and_then(Option::as_ref) {
                    Some(secret) => {
                        for (key, value) in secret.data.iter().flatten() {
                            let value = String::from_utf8_lossy(&value.0).into_owned();
                            environment.set(&format!("{prefix}{key}"), value);
                        }
                    }
                    None if reference.optional == Some(true) => {}
                    None => return Err(format!("secret \"{}\" not found", reference.name)),
                }
            }
        }
        for variable in container.env.iter().flatten() {
            let value = match &variable.value_from {
                Some(source) => match from_source(source, container, pod, facts, sources, namespace)? {
                    Some(value) => value,
                    None => continue,
                },
                None => environment.expand(variable.value.as_deref().unwrap_or_default()),
            };
            environment.set(&variable.name, value);
        }
        Ok(environment)
    }

    /// The variables.
    pub fn into_inner(self) -> Vec<(String, String)> {
        self.0
    }

    /// Replaces `$(NAME)` by the variable's value; unknown names stay, `$$` is a `$`
    /// (`third_party/forked/golang/expansion`).
    pub fn expand(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            out.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('$') {
                out.push('$');
                rest = after;
            } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')'))
            {
                match self.get(name) {
                    Some(value) => out.push_str(value),
                    None => out.extend(["$(", name, ")"]),
                }
                rest = after;
            } else {
                out.push('$');
            }
        }
        out.push_str(rest);
        out
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    fn set(&mut self, name: &str, value: String) {
        match self.0.iter_mut().find(|(other, _)| other == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    /// `NAME_SERVICE_HOST` and its kin (`pkg/kubelet/envvars`). Headless services have none.
    fn service(&mut self, service: &Service) {
        let Some(spec) = &service.spec else { return };
        let address = spec.cluster_ip.as_deref().unwrap_or_default();
        let ports = spec.ports.as_deref().unwrap_or_default();
        let (Some(first), false) = (ports.first(), address.is_empty() || address == "None") else { return };
        let name = shout(service.metadata.name.as_deref().unwrap_or_default());
        self.set(&format!("{name}_SERVICE_HOST"), address.to_owned());
        self.set(&format!("{name}_SERVICE_PORT"), first.port.to_string());
        for port in ports {
            if let Some(port_name) = port.name.as_deref().filter(|port_name| !port_name.is_empty()) {
                self.set(&format!("{name}_SERVICE_PORT_{}", shout(port_name)), port.port.to_string());
            }
        }
        for (index, port) in ports.iter().enumerate() {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let url = format!("{}://{address}:{}", protocol.to_lowercase(), port.port);
            let prefix = format!("{name}_PORT_{}_{protocol}", port.port);
            if index == 0 {
                self.set(&format!("{name}_PORT"), url.clone());
            }
            self.set(&prefix, url);
            self.set(&format!("{prefix}_PROTO"), protocol.to_lowercase());
            self.set(&format!("{prefix}_PORT"), port.port.to_string());
            self.set(&format!("{prefix}_ADDR"), address.to_owned());
        }
    }
}

fn shout(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

fn from_source(
    source: &EnvVarSource,
    container: &Container,
    pod: &Pod,
    facts: &PodFacts,
    sources: &Sources,
    namespace: &str,
) -> Result<Option<String>, String> {
    if let Some(field) = &source.field_ref {
        return pod_field(&field.field_path, pod, facts)
            .map(Some)
            .ok_or_else(|| format!("unsupported fieldPath: {}", field.field_path));
    }
    if let Some(field) = &source.resource_field_ref {
        return resource_field(field, container, facts).map(Some);
    }
    if let Some(reference) = &source.config_map_key_ref {
        let optional = reference.optional == Some(true);
        return match sources.config_maps.get(&reference.name).and_then(Option::as_ref) {
            None if optional => Ok(None),
            None => Err(format!("configmap \"{}\" not found", reference.name)),
            Some(map) => match map.data.iter().flatten().find(|(key, _)| **key == reference.key) {
                Some((_, value)) => Ok(Some(value.clone())),
                None if optional => Ok(None),
                None => Err(format!(
                    "couldn't find key {} in ConfigMap {namespace}/{}",
                    reference.key, reference.name
                )),
            },
        };
    }
    if let Some(reference) = &source.secret_key_ref {
        let optional = reference.optional == Some(true);
        return match sources.secrets.get(&reference.name).and_then(Option::as_ref) {
            None if optional => Ok(None),
            None => Err(format!("secret \"{}\" not found", reference.name)),
            Some(secret) => match secret.data.iter().flatten().find(|(key, _)| **key == reference.key) {
                Some((_, value)) => Ok(Some(String::from_utf8_lossy(&value.0).into_owned())),
                None if optional => Ok(None),
                None => Err(format!(
                    "couldn't find key {} in Secret {namespace}/{}",
                    reference.key, reference.name
                )),
            },
        };
    }
    Err("valueFrom names no source that this node knows".into())
}

/// A field of the pod as the downward API gives it. None for paths that it does not offer.
pub fn pod_field(path: &str, pod: &Pod, facts: &PodFacts) -> Option<String> {
    let metadata = &pod.metadata;
    let lines = |map: &Option<BTreeMap<String, String>>| {
        map.iter().flatten().map(|(key, value)| format!("{key}={value:?}")).collect::<Vec<_>>().join("\n")
    };
    let keyed = |prefix: &str, map: &Option<BTreeMap<String, String>>| {
        let key = path.strip_prefix(prefix)?.strip_prefix("['")?.strip_suffix("']")?;
        Some(map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default())
    };
    let spec = pod.spec.as_ref();
    Some(match path {
        "metadata.name" => metadata.name.clone().unwrap_or_default(),
        "metadata.namespace" => metadata.namespace.clone().unwrap_or_default(),
        "metadata.uid" => metadata.uid.clone().unwrap_or_default(),
        "metadata.labels" => lines(&metadata.labels),
        "metadata.annotations" => lines(&metadata.annotations),
        "spec.nodeName" => spec?.node_name.clone().unwrap_or_default(),
        "spec.serviceAccountName" => spec?.service_account_name.clone().unwrap_or_default(),
        "status.hostIP" | "status.hostIPs" => facts.host_ip.clone().unwrap_or_default(),
        "status.podIP" => facts.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => facts.pod_ips.join(","),
        _ => {
            return keyed("metadata.labels", &metadata.labels)
                .or_else(|| keyed("metadata.annotations", &metadata.annotations));
        }
    })
}

/// A resource of a container as the downward API gives it: in units of the divisor, rounded up; the node's
/// own where the container has no limit.
pub fn resource_field(
    field: &ResourceFieldSelector,
    container: &Container,
    facts: &PodFacts,
) -> Result<String, String> {
    let (part, resource) = field
        .resource
        .split_once('.')
        .ok_or_else(|| format!("unsupported container resource: {}", field.resource))?;
    let resources = container.resources.clone().unwrap_or_default();
    let of = |map: &Option<BTreeMap<String, _>>| {
        map.as_ref()
            .and_then(|map| map.get(resource))
            .and_then(|q: &k8s_openapi::apimachinery::pkg::api::resource::Quantity| quantity::millis(&q.0))
    };
    let node = match resource {
        "cpu" => i128::from(facts.node_cpu_millis),
        "memory" => i128::from(facts.node_memory_bytes) * 1000,
        _ => 0,
    };
    let value = match part {
        "limits" => of(&resources.limits).unwrap_or(node),
        "requests" => of(&resources.requests).or_else(|| of(&resources.limits)).unwrap_or(0),
        _ => return Err(format!("unsupported container resource: {}", field.resource)),
    };
    let divisor = match field.divisor.as_ref().map(|divisor| divisor.0.as_str()) {
        None | Some("" | "0") => 1000,
        Some(divisor) => quantity::millis(divisor).filter(|divisor| *divisor > 0).ok_or_else(|| {
            format!("divisor {divisor:?} of {} is not a quantity above zero", field.resource)
        })?,
    };
    Ok((value / divisor + i128::from(value % divisor != 0)).to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn build(container: Value, sources: &Sources) -> Result<BTreeMap<String, String>, String> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web-0", "namespace": "shop", "uid": "u1", "labels": {"a": "b\"c"}},
            "spec": {"nodeName": "node-1", "containers": []},
        }))
        .unwrap();
        let facts = PodFacts {
            pod_ips: vec!["10.0.0.7".into()],
            hostname: "web-0".into(),
            node_cpu_millis: 2000,
            ..PodFacts::default()
        };
        let container: Container = serde_json::from_value(container).unwrap();
        let built = Environment::build(&container, &pod, &facts, sources)?;
        Ok(built.into_inner().into_iter().collect())
    }

    fn sources() -> Sources {
        let map = serde_json::from_value(json!({"data": {"k": "v", "x": "1"}})).unwrap();
        let service = serde_json::from_value(json!({
            "metadata": {"name": "my-db"},
            "spec": {"clusterIP": "10.96.0.9", "ports": [{"port": 6379, "name": "redis", "protocol": "TCP"}]},
        }))
        .unwrap();
        Sources {
            config_maps: [("cm".to_owned(), Some(map)), ("none".to_owned(), None)].into(),
            services: vec![service],
            ..Sources::default()
        }
    }

    #[test]
    fn sources_links_and_expansion() {
        let container = json!({
            "name": "c",
            "resources": {"limits": {"memory": "100Mi"}},
            "envFrom": [{"prefix": "P_", "configMapRef": {"name": "cm"}}],
            "env": [
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}},
                {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}},
                {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                {"name": "ADDR", "value": "$(IP):$(P_x) $(UNKNOWN) $$(IP) $ $(MY_DB_SERVICE_HOST)"},
                {"name": "OPT", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": true}}},
            ],
        });
        let env = build(container, &sources()).unwrap();
        let expected = [
            ("IP", "10.0.0.7"),
            ("LABEL", "b\"c"),
            ("KEY", "v"),
            ("P_k", "v"),
            ("MEM", "100"),
            ("CPU", "2"),
            ("ADDR", "10.0.0.7:1 $(UNKNOWN) $(IP) $ 10.96.0.9"),
            ("HOSTNAME", "web-0"),
            ("MY_DB_SERVICE_PORT_REDIS", "6379"),
            ("MY_DB_PORT", "tcp://10.96.0.9:6379"),
            ("MY_DB_PORT_6379_TCP_ADDR", "10.96.0.9"),
        ];
        for (name, value) in expected {
            assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert!(!env.contains_key("OPT"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let cases = [
            (json!({"configMapKeyRef": {"name": "none", "key": "k"}}), "configmap \"none\" not found"),
            (
                json!({"configMapKeyRef": {"name": "cm", "key": "z"}}),
                "couldn't find key z in ConfigMap shop/cm",
            ),
            (json!({"secretKeyRef": {"name": "s", "key": "k"}}), "secret \"s\" not found"),
            (json!({"fieldRef": {"fieldPath": "spec.x"}}), "unsupported fieldPath: spec.x"),
        ];
        for (source, message) in cases {
            let container = json!({"name": "c", "env": [{"name": "V", "valueFrom": source}]});
            assert_eq!(build(container, &sources()).unwrap_err(), message);
        }
    }
}
