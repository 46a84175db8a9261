//! From a Service to an address that can be called (`k8s.io/apiserver/pkg/util/proxy.ResolveEndpoint`, which kube-apiserver takes with
//! `--enable-aggregator-routing`): a ready endpoint, which needs nobody who routes cluster addresses.

use serde_json::Value;

use super::client::Failure;
use super::target::Target;
use crate::registry::Registry;
use crate::store::Key;

const SLICES: &str = "endpointslices.discovery.k8s.io";

impl Registry {
    /// Host and port to connect to.
    pub(super) fn webhook_address(&self, target: &Target) -> Result<(String, u16), Failure> {
        let Some((namespace, name)) = &target.service else {
            return Ok((target.host.clone(), target.port));
        };
        let found = self.store.get("services", &Key::new(namespace.as_str(), name.as_str()));
        let service = found.ok_or_else(|| Failure::Call(format!("service {name:?} not found")))?;
        let slices = self.store.snapshot(SLICES);
        let slices = slices.range(namespace, None).map(|(_, stored)| &*stored.value);
        let of_service =
            slices.filter(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == name.as_str());
        resolve(&service.value, target.port, of_service).map_err(Failure::Call)
    }
}

/// The address behind `port` of a Service with these slices of endpoints.
fn resolve<'a>(
    service: &Value,
    port: u16,
    slices: impl Iterator<Item = &'a Value>,
) -> Result<(String, u16), String> {
    let spec = &service["spec"];
    let text = |key: &str| spec[key].as_str().unwrap_or_default();
    let name = service["metadata"]["name"].as_str().unwrap_or_default();
    match text("type") {
        "ExternalName" => return Ok((text("externalName").to_owned(), port)),
        "ClusterIP" if text("clusterIP") == "None" => {
            return Err("cannot route to service with ClusterIP \"None\"".to_owned());
        }
        "ClusterIP" | "LoadBalancer" | "NodePort" => {}
        other => return Err(format!("unsupported service type {other:?}")),
    }
    let ports = spec["ports"].as_array().into_iter().flatten();
    let found = ports.into_iter().find(|listed| listed["port"] == port);
    let found = found.ok_or_else(|| format!("no service port {port} found for service {name:?}"))?;
    for slice in slices {
        let named = |listed: &&Value| {
            listed["name"].as_str().unwrap_or_default() == found["name"].as_str().unwrap_or_default()
        };
        let target = slice["ports"].as_array().into_iter().flatten().find(named);
        let ready = |endpoint: &&Value| endpoint["conditions"]["ready"] != false;
        let endpoint = slice["endpoints"].as_array().into_iter().flatten().find(ready);
        let address = endpoint.and_then(|endpoint| endpoint["addresses"][0].as_str());
        let number = target.and_then(|listed| listed["port"].as_u64()?.try_into().ok());
        if let (Some(address), Some(number)) = (address, number) {
            return Ok((address.to_owned(), number));
        }
    }
    // Its own address would lead out of this machine where no node routes it.
    Err(format!("no endpoints available for service {name:?}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_ready_endpoint_is_called() {
        let service = json!({"metadata": {"name": "hook"}, "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.7",
            "ports": [{"port": 443, "name": "https"}]}});
        let slice = |ready: bool| {
            json!({"ports": [{"name": "https", "port": 9443}],
                "endpoints": [{"addresses": ["10.244.0.9"], "conditions": {"ready": ready}}]})
        };
        let (gone, there) = (slice(false), slice(true));
        let of = |port, slices: &[&Value]| resolve(&service, port, slices.iter().copied());
        assert_eq!(of(443, &[&gone, &there]), Ok(("10.244.0.9".to_owned(), 9443)));
        assert_eq!(of(443, &[&gone]), Err("no endpoints available for service \"hook\"".to_owned()));
        assert_eq!(of(80, &[&there]), Err("no service port 80 found for service \"hook\"".to_owned()));
    }
}
