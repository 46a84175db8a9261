//! What may happen at the same time, on several threads: nothing is lost, and nothing is left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use setpoint_apiserver::ApiServer;
use tokio::task::JoinSet;

use crate::client::{Client, server};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CREATORS: usize = 6;
const ROUNDS: usize = 10;

fn definition(plural: &str, kind: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    })
}

/// Creates objects at `path` from several tasks until told to stop, and says how many it made.
fn creators(api: &ApiServer, path: &str, object: &Value) -> (Arc<AtomicBool>, JoinSet<usize>) {
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for _ in 0..CREATORS {
        let (client, path, object, stop) =
            (Client::admin(api), path.to_owned(), object.clone(), Arc::clone(&stop));
        tasks.spawn(async move {
            let mut made = 0;
            while !stop.load(Ordering::Relaxed) {
                made += usize::from(client.post(&path, &object).await.code == 201);
                tokio::task::yield_now().await;
            }
            made
        });
    }
    (stop, tasks)
}

async fn wait_for_first(client: &Client, path: &str) {
    while client.get(path).await.body["items"].as_array().is_none_or(Vec::is_empty) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_object_outlives_its_definition() {
    let api = server();
    let client = Client::admin(&api);
    let sites = "/apis/example.com/v1/namespaces/default/sites";
    let own = format!("{DEFINITIONS}/sites.example.com");
    let site = json!({"apiVersion": "example.com/v1", "kind": "Site", "metadata": {"generateName": "a-"}});
    for round in 0..ROUNDS {
        client.post(DEFINITIONS, &definition("sites", "Site")).await.expect(201);
        let (stop, tasks) = creators(&api, sites, &site);
        wait_for_first(&client, sites).await;
        client.delete(&own).await.expect(200);
        stop.store(true, Ordering::Relaxed);
        assert!(tasks.join_all().await.iter().sum::<usize>() > 0);
        // Objects without finalizers go with the request that deletes the definition.
        let left = client.get(&own).await;
        assert_eq!(left.code, 404, "round {round}: {:#}", left.body);
        client.post(DEFINITIONS, &definition("sites", "Site")).await.expect(201);
        let list = client.get(sites).await.expect(200);
        assert_eq!(list["items"], json!([]), "round {round}");
        client.delete(&own).await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_object_outlives_its_namespace() {
    let api = server();
    let client = Client::admin(&api);
    for round in 0..ROUNDS {
        client
            .post(
                "/api/v1/namespaces",
                &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}),
            )
            .await
            .expect(201);
        let maps = "/api/v1/namespaces/n/configmaps";
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "a-"}});
        let (stop, tasks) = creators(&api, maps, &map);
        wait_for_first(&client, maps).await;
        client.delete("/api/v1/namespaces/n").await.expect(200);
        // As the namespace's controller does it: empty it, and once nothing is left let it go.
        while !api.namespace_contents("n").is_empty() {
            client.delete(maps).await.expect(200);
        }
        let mut namespace = client.get("/api/v1/namespaces/n").await.expect(200);
        namespace["spec"]["finalizers"] = json!([]);
        client.put("/api/v1/namespaces/n/finalize", &namespace).await.expect(200);
        stop.store(true, Ordering::Relaxed);
        assert!(tasks.join_all().await.iter().sum::<usize>() > 0);
        assert_eq!(api.namespace_contents("n"), [], "round {round}");
        client.get("/api/v1/namespaces/n").await.expect(404);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_name_goes_to_one_definition() {
    let api = server();
    let client = Client::admin(&api);
    for round in 0..ROUNDS {
        let mut tasks = JoinSet::new();
        let plurals: Vec<String> = (0..CREATORS).map(|index| format!("p{index}")).collect();
        for plural in plurals.clone() {
            let client = Client::admin(&api);
            tasks.spawn(async move { client.post(DEFINITIONS, &definition(&plural, "Same")).await.code });
        }
        assert_eq!(tasks.join_all().await, [201; CREATORS]);
        // One after the other goes, and each time another one gets the name.
        let mut there = plurals;
        while !there.is_empty() {
            let mut holders = Vec::new();
            for plural in &there {
                let stored = client.get(&format!("{DEFINITIONS}/{plural}.example.com")).await.expect(200);
                if stored["status"]["acceptedNames"]["kind"] == "Same" {
                    assert_eq!(stored["status"]["conditions"][1]["status"], "True", "{stored:#}");
                    client.get(&format!("/apis/example.com/v1/{plural}")).await.expect(200);
                    holders.push(plural.clone());
                }
            }
            assert_eq!(holders.len(), 1, "round {round}: {holders:?} of {there:?}");
            client.delete(&format!("{DEFINITIONS}/{}.example.com", holders[0])).await.expect(200);
            there.retain(|plural| *plural != holders[0]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_writes_of_every_kind_lose_nothing() {
    const EACH: usize = 20;
    let api = server();
    let client = Client::admin(&api);
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"n": "0"}});
    let start = client.post(maps, &map).await.expect(201);
    let since = start["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let path = format!("{maps}/a");
    let mut tasks = JoinSet::new();
    for writer in 0..9 {
        let (client, path) = (Client::admin(&api), path.clone());
        tasks.spawn(async move {
            let mut versions = Vec::new();
            while versions.len() < EACH {
                let turn = versions.len();
                let answer = match writer % 3 {
                    // Read, count up, write back: only with the version that was read.
                    0 => {
                        let mut live = client.get(&path).await.expect(200);
                        let n: usize = live["data"]["n"].as_str().unwrap().parse().unwrap();
                        live["data"]["n"] = (n + 1).to_string().into();
                        client.put(&path, &live).await
                    }
                    1 => {
                        let patch = json!({"data": {format!("m{writer}"): turn.to_string()}});
                        client.merge(&path, &patch).await
                    }
                    _ => {
                        let intent = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {format!("a{writer}"): turn.to_string()}});
                        client.apply(&format!("{path}?fieldManager=w{writer}"), &intent).await
                    }
                };
                match (answer.code, writer % 3) {
                    (409, 0) => {}
                    (200, _) => {
                        let version = answer.body["metadata"]["resourceVersion"].as_str().unwrap();
                        versions.push(version.parse::<u64>().unwrap());
                    }
                    (code, _) => panic!("{code}: {:#}", answer.body),
                }
            }
            versions
        });
    }
    let mut versions: Vec<u64> = tasks.join_all().await.concat();
    versions.sort_unstable();
    let last = client.get(&path).await.expect(200);
    assert_eq!(last["data"]["n"], (3 * EACH).to_string());
    for writer in 0..9 {
        for key in [format!("m{writer}"), format!("a{writer}")] {
            let expected = match writer % 3 {
                1 if key.starts_with('m') => json!((EACH - 1).to_string()),
                2 if key.starts_with('a') => json!((EACH - 1).to_string()),
                _ => Value::Null,
            };
            assert_eq!(last["data"][&key], expected, "{key}");
        }
    }
    // A watch from before sees each version once, in order.
    let mut watch =
        client.watch(&format!("{maps}?watch=true&resourceVersion={since}&timeoutSeconds=1")).await;
    let mut seen: Vec<u64> = Vec::new();
    while let Some(event) = watch.next().await {
        seen.push(event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap());
    }
    assert_eq!(seen, versions);
}
