//! Endpoints that somebody made for a Service without a selector get EndpointSlices.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests")]

mod world;

use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use setpoint_cluster::Cluster;
use world::World;

/// The addresses in the slices of the Service `db`, by what keeps the slice.
async fn addresses(slices: &Api<EndpointSlice>) -> Vec<(String, Vec<String>)> {
    let of_service = ListParams::default().labels("kubernetes.io/service-name=db");
    let slices = slices.list(&of_service).await.unwrap();
    let listed = slices.items.into_iter().map(|slice| {
        let by = slice.metadata.labels.unwrap().remove("endpointslice.kubernetes.io/managed-by").unwrap();
        let addresses = slice.endpoints.into_iter().flatten().flat_map(|endpoint| endpoint.addresses);
        (by, addresses.collect())
    });
    listed.collect()
}

#[tokio::test(start_paused = true)]
async fn endpoints_made_by_hand_are_mirrored() {
    let world = World::start(Cluster::builder()).await;
    let services = Api::<Service>::namespaced(world.client.clone(), "default");
    let endpoints = Api::<Endpoints>::namespaced(world.client.clone(), "default");
    let slices = Api::<EndpointSlice>::namespaced(world.client.clone(), "default");
    let until = async |what: &str, wanted: Value| {
        world
            .until(what, async || {
                let found = json!(addresses(&slices).await);
                if found == wanted { Ok(()) } else { Err(found.to_string()) }
            })
            .await;
    };
    let mirror = "endpointslicemirroring-controller.k8s.io";

    let listed = |ip: &str| json!({"subsets": [{"addresses": [{"ip": ip}], "ports": [{"port": 3306}]}]});
    let mut made = listed("192.0.2.1");
    made["metadata"] = json!({"name": "db"});
    let create = PostParams::default();
    endpoints.create(&create, &serde_json::from_value(made).unwrap()).await.unwrap();
    let service = json!({"metadata": {"name": "db"}, "spec": {"ports": [{"port": 3306}]}});
    services.create(&create, &serde_json::from_value(service).unwrap()).await.unwrap();
    until("a slice", json!([[mirror, ["192.0.2.1"]]])).await;

    let patch = PatchParams::default();
    endpoints.patch("db", &patch, &Patch::Merge(listed("192.0.2.2"))).await.unwrap();
    until("the other address", json!([[mirror, ["192.0.2.2"]]])).await;

    // Now the pods of the selector are the endpoints, and there are none.
    let selecting = json!({"spec": {"selector": {"app": "db"}}});
    services.patch("db", &patch, &Patch::Merge(selecting)).await.unwrap();
    until("the Service's own slice alone", json!([["endpointslice-controller.k8s.io", []]])).await;

    services.delete("db", &DeleteParams::default()).await.unwrap();
    until("nothing", json!([])).await;
}
