//! Nodes that fall silent, and the way to the logs and commands of containers, in simulated time.

mod world;

use std::time::Duration;

use futures::AsyncBufReadExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, LogParams};
use serde_json::{Value, json};
use setpoint_cluster::Cluster;

use world::World;

fn ready(object: &Value) -> Value {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions
        .iter()
        .find(|condition| condition["type"] == "Ready")
        .map_or(Value::Null, |c| c["status"].clone())
}

#[tokio::test(start_paused = true)]
async fn silent_node_loses_its_pods_after_their_toleration() {
    let world = World::start(Cluster::builder().hollow_nodes(2)).await;
    world.create_set("web", json!({"replicas": 2, "podManagementPolicy": "Parallel"})).await;
    world.set_status("web", |status| status["readyReplicas"] == 2).await;
    let pods = world::pods(&world.client, "default").await;
    let lost = pods.iter().find(|pod| pod["spec"]["nodeName"] == "hollow-1").unwrap();
    let lost = lost["metadata"]["name"].as_str().unwrap();

    assert!(world.cluster.connect("hollow-1", false));
    let start = tokio::time::Instant::now();
    world.pod(lost, |pod| ready(pod) == "False").await;
    assert_eq!(start.elapsed().as_secs(), 50);
    let nodes = Api::<Node>::all(world.client.clone());
    let node = json!(nodes.get("hollow-1").await.unwrap());
    assert_eq!(ready(&node), "Unknown");
    assert_eq!(node["spec"]["taints"][1]["key"], "node.kubernetes.io/unreachable");
    world.pod(lost, |pod| !pod["metadata"]["deletionTimestamp"].is_null()).await;
    assert_eq!(start.elapsed().as_secs(), 350);

    // Back: it ends the pod that was deleted, and the set gets a new one.
    assert!(world.cluster.connect("hollow-1", true));
    world.set_status("web", |status| status["readyReplicas"] == 2).await;
    let node = json!(nodes.get("hollow-1").await.unwrap());
    assert_eq!(ready(&node), "True");
    assert!(node["spec"]["taints"].as_array().is_none_or(Vec::is_empty), "{:#}", node["spec"]);
}

#[tokio::test(start_paused = true)]
async fn node_that_comes_back_soon_changes_nothing_for_good() {
    let world = World::start(Cluster::builder()).await;
    world.create_set("web", json!({"replicas": 1})).await;
    let uid = |pod: &Value| pod["metadata"]["uid"].clone();
    let before = uid(&world.pod("web-0", |pod| ready(pod) == "True").await);
    world.cluster.connect("hollow-0", false);
    world.pod("web-0", |pod| ready(pod) == "False").await;
    world.cluster.connect("hollow-0", true);
    assert_eq!(uid(&world.pod("web-0", |pod| ready(pod) == "True").await), before);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(uid(&world.pod("web-0", |pod| ready(pod) == "True").await), before);
}

#[tokio::test(start_paused = true)]
async fn pod_whose_sandbox_ended_goes_on_in_a_new_one() {
    let world = World::start(Cluster::builder()).await;
    world.create_set("web", json!({"replicas": 1})).await;
    let before = world.pod("web-0", |pod| ready(pod) == "True").await;
    let node = world.cluster.node("hollow-0").unwrap();
    assert!(node.end_sandbox("default", "web-0"));
    let restarted =
        |pod: &Value| ready(pod) == "True" && pod["status"]["containerStatuses"][0]["restartCount"] == 1;
    let after = world.pod("web-0", restarted).await;
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"], "the same pod");
    let address = &after["status"]["podIP"];
    assert_ne!(address, &before["status"]["podIP"], "a new address, as from a real kubelet");
    assert_eq!(after["status"]["podIPs"], json!([{"ip": address}]), "and the old one is gone");
    let terminated = &after["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(terminated["exitCode"], 137);
    // At rest again: nothing is written any more.
    let version = after["metadata"]["resourceVersion"].clone();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.pod("web-0", restarted).await["metadata"]["resourceVersion"], version);
    assert!(!node.end_sandbox("default", "no-such-pod"));
}

#[tokio::test(start_paused = true)]
async fn logs_of_this_run_and_the_last() {
    let world = World::start(Cluster::builder()).await;
    world.create_set("web", json!({"replicas": 1})).await;
    let node = world.cluster.node("hollow-0").unwrap();
    let restarts = |count: i64| {
        move |pod: &Value| {
            let status = &pod["status"]["containerStatuses"][0];
            status["restartCount"] == count && status["ready"] == true
        }
    };
    world.pod("web-0", restarts(0)).await;
    let pods = Api::<Pod>::namespaced(world.client.clone(), "default");
    // Nothing was written, and never will be by itself: an empty answer would look like a silent server.
    for follow in [false, true] {
        let params = LogParams { follow, ..LogParams::default() };
        let Err(kube::Error::Api(answer)) = pods.logs("web-0", &params).await else { panic!("no error") };
        assert_eq!(answer.code, 501, "{answer:?}");
        assert!(answer.message.contains("hollow nodes run no processes"), "{answer:?}");
        assert!(!answer.message.contains("not implemented"), "one sentence: {answer:?}");
    }
    for line in ["one", "two", "three"] {
        assert!(node.log("default", "web-0", "c", line));
    }
    assert_eq!(pods.logs("web-0", &LogParams::default()).await.unwrap(), "one\ntwo\nthree\n");
    let tail = LogParams { tail_lines: Some(1), ..LogParams::default() };
    assert_eq!(pods.logs("web-0", &tail).await.unwrap(), "three\n");
    node.exit("default", "web-0", "c", 1);
    world.pod("web-0", restarts(1)).await;
    node.log("default", "web-0", "c", "again");
    let previous = LogParams { previous: true, ..LogParams::default() };
    assert_eq!(pods.logs("web-0", &previous).await.unwrap(), "one\ntwo\nthree\n");
    assert_eq!(pods.logs("web-0", &LogParams::default()).await.unwrap(), "again\n");

    let follow = LogParams { follow: true, ..LogParams::default() };
    let mut lines = pods.log_stream("web-0", &follow).await.unwrap();
    let mut line = String::new();
    lines.read_line(&mut line).await.unwrap();
    node.log("default", "web-0", "c", "more");
    lines.read_line(&mut line).await.unwrap();
    assert_eq!(line, "again\nmore\n");
    let missing =
        pods.logs("web-0", &LogParams { container: Some("x".into()), ..LogParams::default() }).await;
    assert!(missing.unwrap_err().to_string().contains("container x is not valid for pod web-0"));
}

#[tokio::test(start_paused = true)]
async fn pods_get_the_token_of_their_account_and_keep_it_fresh() {
    let world = World::start(Cluster::builder()).await;
    world.create_set("web", json!({"replicas": 1})).await;
    let pod = world.pod("web-0", |pod| ready(pod) == "True").await;
    assert_eq!(pod["spec"]["serviceAccountName"], "default");
    let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array().unwrap().clone();
    let mount =
        mounts.iter().find(|mount| mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount");
    let volume = mount.unwrap()["name"].as_str().unwrap();
    let node = world.cluster.node("hollow-0").unwrap();
    let file = |name: &str| {
        let files = node.volume("default", "web-0", volume).unwrap().files;
        String::from_utf8(files[name].data.to_vec()).unwrap()
    };
    assert_eq!(file("namespace"), "default");
    assert!(file("ca.crt").starts_with("-----BEGIN CERTIFICATE-----"));
    let first = file("token");
    assert_eq!(first.split('.').count(), 3, "{first}");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(file("token"), first, "a token is kept while it is good");
    tokio::time::sleep(Duration::from_secs(3000)).await;
    assert_ne!(file("token"), first, "and renewed before its hour is over");
}

#[tokio::test(start_paused = true)]
async fn what_nothing_acts_on_is_said_at_its_creation() {
    let world = World::start(Cluster::builder()).await;
    let create = async |path: &str, query: &str, object: Value| {
        let request = http::Request::post(format!("{path}?{query}"))
            .header("content-type", "application/json")
            .body(kube::client::Body::from(object.to_string().into_bytes()))
            .unwrap();
        let answer = world.client.send(request).await.unwrap();
        assert_eq!(answer.status(), 201, "{object}");
        let warnings = answer.headers().get_all("warning").iter();
        warnings.map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (labels, containers) = (json!({"app": "web"}), json!([{"name": "c", "image": "v1"}]));
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": containers}});
    let spec = json!({"selector": {"matchLabels": labels}, "template": template});
    for (plural, kind) in
        [("deployments", "Deployment"), ("replicasets", "ReplicaSet"), ("daemonsets", "DaemonSet")]
    {
        let path = format!("/apis/apps/v1/namespaces/default/{plural}");
        let object = json!({"metadata": {"name": "web"}, "spec": spec});
        let expected = format!(
            "299 - \"nothing in this cluster processes objects of kind {kind}: this one is only stored\""
        );
        for query in ["dryRun=All", ""] {
            assert_eq!(create(&path, query, object.clone()).await, *std::slice::from_ref(&expected));
        }
    }
    // Each name is one that there is, and none of what this cluster does act on.
    let budget = json!({"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": labels}}});
    assert_eq!(create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", "", budget).await.len(), 1);
    let map = json!({"metadata": {"name": "web"}});
    assert_eq!(create("/api/v1/namespaces/default/configmaps", "", map).await, Vec::<String>::new());
    let mut set = spec.clone();
    set["serviceName"] = "web".into();
    let set = json!({"metadata": {"name": "web"}, "spec": set});
    assert_eq!(create("/apis/apps/v1/namespaces/default/statefulsets", "", set).await, Vec::<String>::new());
}
