//! The operator's API on any server: what users may write, and the children that they get, under the operator's own rights.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their helpers")]

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::api::{Api, DeleteParams};
use redis_operator::api::RedisCluster;
use serde_json::{Value, json};
use setpoint_test::TestEnv;

/// The example for users.
fn orders() -> Value {
    serde_saphyr::from_str(include_str!("../orders.yaml")).unwrap()
}

fn with(path: &str, value: Value) -> Value {
    let mut orders = orders();
    orders["metadata"]["namespace"] = json!("default");
    *orders.pointer_mut(path).unwrap() = value;
    orders
}

#[tokio::test(start_paused = true)]
async fn the_api_server_refuses_what_the_operator_could_not_run() {
    let env = TestEnv::start().await.unwrap();
    env.install_crd::<RedisCluster>().await.unwrap();
    let long = "a".repeat(41);
    for (path, value, says) in [
        (
            "/spec/size",
            json!(0),
            "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1",
        ),
        (
            "/spec/size",
            json!(11),
            "spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10",
        ),
        (
            "/spec/storage/size",
            json!("1GB"),
            "spec.storage.size: Invalid value: \"1GB\": spec.storage.size in body should match",
        ),
        (
            "/metadata/name",
            json!(long),
            "name must have at most 40 characters: names of children are derived from it",
        ),
    ] {
        let refused = env.apply(with(path, value)).await.unwrap_err().to_string();
        assert!(refused.contains(says), "{refused}");
    }
    env.apply(with("/spec/size", json!(3))).await.unwrap();
    let smaller = env.apply(with("/spec/size", json!(2))).await.unwrap_err().to_string();
    assert!(smaller.contains("size cannot be lowered: removing servers is not supported yet"), "{smaller}");
}

/// In real time: it looks for servers, which hollow nodes don't have, over sockets.
#[tokio::test]
async fn the_children_are_made_and_put_back() {
    let env = TestEnv::start().await.unwrap();
    let running = env.run(redis_operator::operator()).await.unwrap();
    env.apply(with("/spec/size", json!(3))).await.unwrap();
    let owned = |meta: &kube::core::ObjectMeta| {
        let owner = meta.owner_references.iter().flatten().next().map(|owner| owner.kind.clone());
        if owner.as_deref() == Some("RedisCluster") { Ok(()) } else { Err(format!("{owner:?}")) }
    };
    env.wait_for("default", "orders", "the StatefulSet", |set: &StatefulSet| owned(&set.metadata))
        .await
        .unwrap();
    let services: Api<Service> = env.api("default");
    let mut made = Vec::new();
    for service in services.list(&kube::api::ListParams::default()).await.unwrap() {
        if owned(&service.metadata).is_ok() {
            made.push(service.metadata.name.unwrap());
        }
    }
    assert!(!made.is_empty());
    let maps: Api<ConfigMap> = env.api("default");
    let maps = maps.list(&kube::api::ListParams::default()).await.unwrap();
    assert!(maps.iter().any(|map| owned(&map.metadata).is_ok()));
    let secrets: Api<Secret> = env.api("default");
    let secrets = secrets.list(&kube::api::ListParams::default()).await.unwrap();
    assert!(secrets.iter().any(|secret| owned(&secret.metadata).is_ok()));

    services.delete(&made[0], &DeleteParams::default()).await.unwrap();
    env.wait_for("default", &made[0], "the Service again", |service: &Service| owned(&service.metadata))
        .await
        .unwrap();
    running.stop().await.unwrap();
}
