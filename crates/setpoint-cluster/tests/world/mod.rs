//! A cluster in simulated time, and waits that say what they saw last.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a part of tests")]

use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use setpoint_cluster::{Cluster, ClusterBuilder};

pub struct World {
    pub cluster: Cluster,
    pub client: Client,
}

impl World {
    pub async fn start(builder: ClusterBuilder) -> Self {
        let cluster = builder.seed(1).start().await.unwrap();
        let client = cluster.client();
        Self { cluster, client }
    }

    pub async fn create_set(&self, name: &str, spec: Value) {
        let mut full = json!({
            "serviceName": name,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "v1"}]}},
        });
        for (key, value) in spec.as_object().unwrap() {
            full[key] = value.clone();
        }
        let set: StatefulSet =
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": full})).unwrap();
        let sets = Api::<StatefulSet>::namespaced(self.client.clone(), "default");
        sets.create(&PostParams::default(), &set).await.unwrap();
    }

    pub async fn patch_set(&self, name: &str, patch: Value) {
        let sets = Api::<StatefulSet>::namespaced(self.client.clone(), "default");
        sets.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
    }

    pub async fn set_status(&self, name: &str, is: impl Fn(&Value) -> bool) -> Value {
        let sets = Api::<StatefulSet>::namespaced(self.client.clone(), "default");
        self.until(&format!("status of StatefulSet {name}"), async || {
            let set = sets.get(name).await.unwrap();
            let status = json!(set.status);
            if is(&status) {
                Ok(status)
            } else {
                Err(format!("{status:#}\npods: {}", self.pods_in_short().await))
            }
        })
        .await
    }

    pub async fn pod(&self, name: &str, is: impl Fn(&Value) -> bool) -> Value {
        let pods = Api::<Pod>::namespaced(self.client.clone(), "default");
        self.until(&format!("pod {name}"), async || {
            let pod = json!(pods.get_opt(name).await.unwrap());
            if is(&pod) { Ok(pod) } else { Err(format!("{pod:#}")) }
        })
        .await
    }

    pub async fn event(&self, reason: &str, message: &str) {
        let events = Api::<Event>::namespaced(self.client.clone(), "default");
        self.until(&format!("event {reason} with {message:?}"), async || {
            let events = events.list(&ListParams::default()).await.unwrap().items;
            let found = events.iter().any(|event| {
                event.reason.as_deref() == Some(reason)
                    && event.message.as_deref().is_some_and(|text| text.contains(message))
            });
            let seen = || {
                events
                    .iter()
                    .map(|event| format!("{:?}: {:?}", event.reason, event.message))
                    .collect::<Vec<_>>()
            };
            if found { Ok(()) } else { Err(format!("{:#?}", seen())) }
        })
        .await;
    }

    async fn pods_in_short(&self) -> String {
        let pods = pods(&self.client, "default").await;
        pods.iter()
            .map(|pod| format!("\n{} {}", pod["metadata"]["name"], pod["status"]))
            .collect::<Vec<_>>()
            .concat()
    }

    /// Waits for up to ten simulated minutes.
    pub async fn until<T>(&self, what: &str, check: impl AsyncFn() -> Result<T, String>) -> T {
        let start = tokio::time::Instant::now();
        let mut pause = Duration::from_millis(10);
        loop {
            match check().await {
                Ok(value) => return value,
                Err(seen) if start.elapsed() > Duration::from_secs(600) => {
                    panic!("waited ten minutes for {what}; last seen: {seen}")
                }
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }
}

pub async fn pods(client: &Client, namespace: &str) -> Vec<Value> {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    pods.list(&ListParams::default()).await.unwrap().items.iter().map(|pod| json!(pod)).collect()
}
