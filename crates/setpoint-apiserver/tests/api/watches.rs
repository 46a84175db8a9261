use std::collections::BTreeMap;

use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use setpoint_apiserver::ApiServer;
use setpoint_clock::Entropy;
use tokio::time::{Duration, Instant};

use crate::client::{Client, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str, label: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"app": label}}})
}

#[tokio::test(start_paused = true)]
async fn a_watch_shows_what_happens_after_its_version() {
    let client = Client::admin(&server());
    client.post(MAPS, &map("before", "x")).await.expect(201);
    let list = client.get(MAPS).await.expect(200);
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch = client.watch(&format!("{MAPS}?watch=true&resourceVersion={version}")).await;
    client.post(MAPS, &map("a", "x")).await.expect(201);
    client.merge(&format!("{MAPS}/a"), &json!({"data": {"k": "v"}})).await.expect(200);
    client.post("/api/v1/namespaces/kube-system/configmaps", &map("elsewhere", "x")).await.expect(201);
    client.delete(&format!("{MAPS}/a")).await.expect(200);
    assert_eq!(watch.brief().await, "ADDED a");
    assert_eq!(watch.brief().await, "MODIFIED a");
    let deleted = watch.next().await.unwrap();
    assert_eq!(deleted["type"], "DELETED");
    assert_eq!(deleted["object"]["data"]["k"], "v");
}

#[tokio::test(start_paused = true)]
async fn objects_enter_and_leave_a_selection() {
    let client = Client::admin(&server());
    client.post(MAPS, &map("a", "x")).await.expect(201);
    let mut watch = client.watch(&format!("{MAPS}?watch=true&labelSelector=app%3Dy")).await;
    client.merge(&format!("{MAPS}/a"), &json!({"metadata": {"labels": {"app": "y"}}})).await.expect(200);
    client.merge(&format!("{MAPS}/a"), &json!({"data": {"k": "v"}})).await.expect(200);
    let left =
        client.merge(&format!("{MAPS}/a"), &json!({"metadata": {"labels": {"app": "z"}}})).await.expect(200);
    client.delete(&format!("{MAPS}/a")).await.expect(200);
    assert_eq!(watch.brief().await, "ADDED a");
    assert_eq!(watch.brief().await, "MODIFIED a");
    let event = watch.next().await.unwrap();
    assert_eq!(event["type"], "DELETED");
    assert_eq!(event["object"]["metadata"]["labels"]["app"], "y", "the state in which it was last seen");
    assert_eq!(event["object"]["metadata"]["resourceVersion"], left["metadata"]["resourceVersion"]);
}

#[tokio::test(start_paused = true)]
async fn an_idle_watch_gets_bookmarks_and_ends_in_time() {
    let api = server();
    let client = Client::admin(&api);
    let start = Instant::now();
    let mut watch =
        client.watch(&format!("{MAPS}?watch=true&allowWatchBookmarks=true&timeoutSeconds=150")).await;
    assert_eq!(watch.brief().await, "BOOKMARK -", "the present begins");
    assert_eq!(start.elapsed(), Duration::ZERO);
    let bookmark = watch.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(start.elapsed(), Duration::from_secs(60));
    assert_eq!(bookmark["object"]["metadata"]["resourceVersion"], api.revision().to_string());
    assert_eq!(watch.brief().await, "BOOKMARK -");
    assert_eq!(watch.next().await, None);
    assert_eq!(start.elapsed(), Duration::from_secs(150));
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_says_where_the_present_begins() {
    let client = Client::admin(&server());
    client.post(MAPS, &map("a", "x")).await.expect(201);
    let path = format!(
        "{MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let mut watch = client.watch(&path).await;
    assert_eq!(watch.brief().await, "ADDED a");
    let end = watch.next().await.unwrap();
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    client.get(&format!("{MAPS}?watch=true&sendInitialEvents=true")).await.expect(422);
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_version_is_gone() {
    let api = ApiServer::builder().event_log(2).build();
    let client = Client::admin(&api);
    for name in ["a", "b", "c", "d"] {
        client.post(MAPS, &map(name, "x")).await.expect(201);
    }
    let mut watch = client.watch(&format!("{MAPS}?watch=true&resourceVersion=1")).await;
    let error = watch.next().await.unwrap();
    assert_eq!((error["type"].as_str(), error["object"]["code"].as_i64()), (Some("ERROR"), Some(410)));
    assert_eq!(error["object"]["reason"], "Expired");
    assert_eq!(watch.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn the_first_object_of_a_kind_is_announced() {
    use futures::StreamExt;
    let api = server();
    let client = Client::admin(&api);
    let mut uses = api.on_first_use();
    let mut known = Vec::new();
    client.post(MAPS, &map("a", "x")).await.expect(201);
    loop {
        let used = uses.next().await.unwrap();
        if used.plural == "configmaps" {
            assert_eq!((used.kind.as_str(), used.namespaced), ("ConfigMap", true));
            break;
        }
        known.push(used.plural);
    }
    assert!(known.contains(&"namespaces".to_owned()), "{known:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_makes_its_lines_piece_by_piece() {
    let client = Client::admin(&server());
    let big = json!({"text": "x".repeat(50 << 10)});
    for index in 0..20 {
        let mut object = map(&format!("m{index}"), "a");
        object["data"] = big.clone();
        client.post(MAPS, &object).await.expect(201);
    }
    let request = Request::get(format!("{MAPS}?watch=true&timeoutSeconds=1")).body(Full::default()).unwrap();
    let mut body = client.send(request).await.into_body();
    let mut frames = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        frames.push(frame.data_ref().unwrap().len());
    }
    // A reader that stops holds one piece, not the state of the world.
    assert!(frames.iter().sum::<usize>() > 1_000_000, "{frames:?}");
    assert!(frames.iter().all(|&size| size < 128 << 10), "{frames:?}");
}

#[tokio::test(start_paused = true)]
async fn no_number_of_seconds_is_too_large() {
    let client = Client::admin(&server());
    for seconds in [i64::MAX, i64::MIN, -1, 0] {
        let request = Request::get(format!("{MAPS}?watch=true&timeoutSeconds={seconds}"));
        let answer = client.send(request.body(Full::default()).unwrap()).await;
        assert_eq!(answer.status(), 200, "{seconds}");
    }
}

/// What a client keeps of a list and the events after it.
type Seen = BTreeMap<String, u64>;

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

fn seen(list: &Value) -> Seen {
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    list["items"].as_array().unwrap().iter().map(|object| (name(object), version(object))).collect()
}

/// Random writes, and watches that begin anywhere among them, from a list or with the initial objects, with and without a
/// selection: each ends up with exactly what a list gives, by versions that rise.
#[tokio::test(start_paused = true)]
async fn every_watch_leads_to_what_a_list_gives() {
    for seed in 0..12 {
        let entropy = Entropy::seeded(seed);
        let below = |bound: u64| u64::from_str_radix(&entropy.uuid()[..8], 16).unwrap() % bound;
        let client = Client::admin(&server());
        let mut watches = Vec::new();
        for _ in 0..60 {
            let name = format!("m{}", below(4));
            let object = map(&name, ["a", "b"][usize::try_from(below(2)).unwrap()]);
            let path = format!("{MAPS}/{name}");
            match below(6) {
                0 | 1 => drop(client.post(MAPS, &object).await),
                2 => drop(
                    client.merge(&path, &json!({"metadata": {"labels": object["metadata"]["labels"]}})).await,
                ),
                3 => drop(client.merge(&path, &json!({"data": {"n": below(3).to_string()}})).await),
                4 => drop(client.delete(&path).await),
                _ => {
                    let selector = [
                        "",
                        "labelSelector=app%3Da&",
                        "labelSelector=app!%3Da&",
                        "fieldSelector=metadata.name%3Dm1&",
                    ][usize::try_from(below(4)).unwrap()];
                    let (start, list) = if below(2) == 0 {
                        let list = client.get(&format!("{MAPS}?{selector}")).await.expect(200);
                        (format!("resourceVersion={}&", version(&list)), seen(&list))
                    } else {
                        ("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&".to_owned(), Seen::new())
                    };
                    let path = format!(
                        "{MAPS}?watch=true&allowWatchBookmarks=true&timeoutSeconds=1&{start}{selector}"
                    );
                    watches.push((selector, list, client.watch(&path).await));
                }
            }
        }
        for (selector, mut state, mut watch) in watches {
            let mut last = 0;
            while let Some(event) = watch.next().await {
                let object = &event["object"];
                let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                let now = version(object);
                // Initial objects come by name, not by version.
                let initial = event["type"] == "ADDED" && !state.contains_key(&name) && last == 0;
                assert!(initial || now >= last, "seed {seed}, {selector}: {event} after {last}");
                match event["type"].as_str().unwrap() {
                    "ADDED" => assert_eq!(state.insert(name, now), None, "seed {seed}, {selector}: {event}"),
                    "MODIFIED" => {
                        let before = state.insert(name, now);
                        assert!(
                            before.is_some_and(|before| before < now),
                            "seed {seed}, {selector}: {event}"
                        );
                    }
                    "DELETED" => assert!(state.remove(&name).is_some(), "seed {seed}, {selector}: {event}"),
                    "BOOKMARK" => last = now,
                    other => panic!("seed {seed}, {selector}: {other}"),
                }
                if !initial {
                    last = now;
                }
            }
            let list = client.get(&format!("{MAPS}?{selector}")).await.expect(200);
            assert_eq!(state, seen(&list), "seed {seed}, {selector}");
        }
    }
}
