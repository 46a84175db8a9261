//! What the demo asks the Redis servers themselves, so that it believes neither the operator nor its status.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

use crate::failure::Failure;

const LIMIT: Duration = Duration::from_secs(1);

/// A server as it describes itself.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) pod: String,
    pub(crate) info: BTreeMap<String, String>,
}

impl Server {
    pub(crate) fn is_primary(&self) -> bool {
        self.info.get("role").is_some_and(|role| role == "master")
    }

    pub(crate) fn in_sync(&self) -> bool {
        self.is_primary() || self.info.get("master_link_status").is_some_and(|link| link == "up")
    }
}

/// The servers of one RedisCluster.
pub(crate) struct Servers {
    client: Client,
    namespace: String,
    cluster: String,
}

impl Servers {
    pub(crate) fn new(client: Client, namespace: &str, cluster: &str) -> Self {
        Self { client, namespace: namespace.to_owned(), cluster: cluster.to_owned() }
    }

    /// Its pods, by name.
    pub(crate) async fn pods(&self) -> Result<Vec<Pod>, Failure> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let of_cluster = ListParams::default().labels(&format!("cache.example.com/cluster={}", self.cluster));
        Ok(pods.list(&of_cluster).await?.items)
    }

    /// Asks each server for its part in the replication. A pod without an address is left out.
    pub(crate) async fn observe(&self) -> Result<Vec<Server>, Failure> {
        let mut servers = Vec::new();
        for pod in self.pods().await? {
            let name = pod.name_any();
            if let Some(mut connection) = self.connect(&pod).await? {
                let text: String = redis::cmd("INFO")
                    .arg("replication")
                    .query_async(&mut connection)
                    .await
                    .map_err(|source| Failure::Redis { server: name.clone(), source })?;
                servers.push(Server { pod: name, info: parse_info(&text) });
            }
        }
        Ok(servers)
    }

    /// `CONFIG GET parameter` of each server, by pod.
    pub(crate) async fn config(&self, parameter: &str) -> Result<BTreeMap<String, String>, Failure> {
        let mut values = BTreeMap::new();
        for pod in self.pods().await? {
            let name = pod.name_any();
            if let Some(mut connection) = self.connect(&pod).await? {
                let answer: BTreeMap<String, String> = redis::cmd("CONFIG")
                    .arg("GET")
                    .arg(parameter)
                    .query_async(&mut connection)
                    .await
                    .map_err(|source| Failure::Redis { server: name.clone(), source })?;
                values.insert(name, answer.get(parameter).cloned().unwrap_or_default());
            }
        }
        Ok(values)
    }

    /// Connects as the operator's user, with the password of the cluster's Secret.
    async fn connect(&self, pod: &Pod) -> Result<Option<MultiplexedConnection>, Failure> {
        let Some(ip) = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()) else {
            return Ok(None);
        };
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let secret = secrets.get(&format!("{}-system", self.cluster)).await?;
        let password = secret
            .data
            .as_ref()
            .and_then(|data| data.get("setpoint"))
            .map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned())
            .ok_or_else(|| Failure::Broken(format!("Secret {}-system has no key setpoint", self.cluster)))?;
        let server = pod.name_any();
        let failed = |source| Failure::Redis { server: server.clone(), source };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(LIMIT))
            .set_response_timeout(Some(LIMIT));
        redis::Client::open(format!("redis://setpoint:{password}@{ip}:6379/"))
            .map_err(failed)?
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map(Some)
            .map_err(failed)
    }
}

fn parse_info(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.trim_end().split_once(':'))
        .map(|(field, value)| (field.to_owned(), value.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_read_by_field() {
        let info = parse_info("# Replication\r\nrole:slave\r\nmaster_link_status:up\r\n");
        let server = Server { pod: "orders-1".to_owned(), info };
        assert!(!server.is_primary() && server.in_sync(), "{server:?}");
    }
}
