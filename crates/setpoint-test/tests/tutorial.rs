//! The tutorial's test, of the tutorial's operator.

use k8s_openapi::api::apps::v1::StatefulSet;
use rediscluster::RedisCluster;
use serde_json::{Value, json};
use setpoint_test::TestEnv;

#[path = "../../setpoint/examples/rediscluster.rs"]
#[expect(dead_code, reason = "the example is a program: its main is not called here")]
mod rediscluster;

fn orders(size: i32) -> Value {
    json!({
        "apiVersion": "cache.example.com/v1alpha1",
        "kind": "RedisCluster",
        "metadata": {"name": "orders", "namespace": "default"},
        "spec": {"size": size, "image": "redis:7.0"},
    })
}

#[tokio::test(start_paused = true)]
async fn a_cluster_gets_its_servers() {
    let env = TestEnv::start().await.unwrap();
    let running = env.run(rediscluster::operator()).await.unwrap();
    env.apply(orders(2)).await.unwrap();
    env.wait_for("default", "orders", "both servers to answer", |cluster: &RedisCluster| {
        let status = serde_json::to_value(&cluster.status).unwrap_or_default();
        if status["conditions"][0]["status"] == "True" { Ok(()) } else { Err(status.to_string()) }
    })
    .await
    .unwrap();

    env.apply(orders(3)).await.unwrap();
    env.wait_for("default", "orders", "a third server", |set: &StatefulSet| {
        if set.spec.replicas == Some(3) { Ok(()) } else { Err(format!("{:?}", set.spec.replicas)) }
    })
    .await
    .unwrap();
    let refused = env.apply(orders(1)).await.unwrap_err().to_string();
    assert!(refused.contains("spec.size: Invalid value: 1: a cluster does not shrink"), "{refused}");
    running.stop().await.unwrap();
}
