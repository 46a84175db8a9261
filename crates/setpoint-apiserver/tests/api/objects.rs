use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use setpoint_apiserver::Identity;

use crate::client::{Client, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

#[tokio::test(start_paused = true)]
async fn an_object_lives_from_create_to_delete() {
    let client = Client::admin(&server());
    let created = client.post(MAPS, &map("a", &json!({"x": "1"}))).await.expect(201);
    assert_eq!(created["metadata"]["namespace"], "default");
    assert_eq!(created["metadata"]["creationTimestamp"], "2026-01-02T03:04:05Z");
    assert_eq!(created["metadata"]["managedFields"][0]["manager"], "test");
    let again = client.post(MAPS, &map("a", &json!({}))).await.expect(409);
    assert_eq!(again["message"], "configmaps \"a\" already exists");
    assert_eq!(again["reason"], "AlreadyExists");

    let path = format!("{MAPS}/a");
    assert_eq!(client.get(&path).await.expect(200), created);
    let mut changed = created.clone();
    changed["data"]["x"] = "2".into();
    let updated = client.put(&path, &changed).await.expect(200);
    assert_ne!(updated["metadata"]["resourceVersion"], created["metadata"]["resourceVersion"]);
    let stale = client.put(&path, &changed).await.expect(409);
    assert_eq!(
        stale["message"],
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again"
    );
    // The same content is no write.
    let same = client.put(&path, &updated).await.expect(200);
    assert_eq!(same, updated);

    let gone = client.delete(&path).await.expect(200);
    assert_eq!(gone["status"], "Success");
    assert_eq!(gone["details"]["uid"], created["metadata"]["uid"]);
    let missing = client.get(&path).await.expect(404);
    assert_eq!(missing["message"], "configmaps \"a\" not found");
    assert_eq!(missing["details"], json!({"name": "a", "kind": "configmaps"}));
}

#[tokio::test(start_paused = true)]
async fn all_patches_change_an_object() {
    let client = Client::admin(&server());
    client.post(MAPS, &map("a", &json!({"x": "1", "y": "1"}))).await.expect(201);
    let path = format!("{MAPS}/a");
    let merged = client.merge(&path, &json!({"data": {"x": null, "z": "3"}})).await.expect(200);
    assert_eq!(merged["data"], json!({"y": "1", "z": "3"}));
    let patch = json!([{"op": "replace", "path": "/data/y", "value": "2"}]);
    let patched =
        client.call(Method::PATCH, &path, "application/json-patch+json", Some(&patch)).await.expect(200);
    assert_eq!(patched["data"], json!({"y": "2", "z": "3"}));
    let failed = json!([{"op": "test", "path": "/data/y", "value": "9"}]);
    let failed = client.call(Method::PATCH, &path, "application/json-patch+json", Some(&failed)).await;
    assert_eq!(failed.expect(422)["reason"], "Invalid");
    let strategic = json!({"data": {"y": "4"}});
    let patched =
        client.call(Method::PATCH, &path, "application/strategic-merge-patch+json", Some(&strategic)).await;
    assert_eq!(patched.expect(200)["data"]["y"], "4");
    let version = json!({"metadata": {"resourceVersion": "1"}, "data": {"y": "5"}});
    assert_eq!(client.merge(&path, &version).await.expect(409)["reason"], "Conflict");
    let unknown = client.call(Method::PATCH, &path, "application/json", Some(&json!({}))).await;
    unknown.expect(415);
}

#[tokio::test(start_paused = true)]
async fn patches_cannot_grow_an_object_without_bound() {
    let client = Client::admin(&server());
    client.post(MAPS, &map("a", &json!({"x": "x".repeat(1000)}))).await.expect(201);
    let path = format!("{MAPS}/a");
    let double = |n: usize| json!({"op": "copy", "from": "/data", "path": format!("/data/{n}")});
    let bomb: Value = (0..40).map(double).collect();
    client.call(Method::PATCH, &path, "application/json-patch+json", Some(&bomb)).await.expect(422);
    let many = Value::Array(vec![json!({"op": "test", "path": "/kind", "value": "ConfigMap"}); 10_001]);
    let many =
        client.call(Method::PATCH, &path, "application/json-patch+json", Some(&many)).await.expect(413);
    let why =
        "Request entity is too large: The allowed maximum operations in a JSON patch is 10000, got 10001";
    assert_eq!((&many["reason"], &many["message"]), (&json!("RequestEntityTooLarge"), &json!(why)));

    // Each body is below the limit; the object that they add up to is not.
    client.merge(&path, &json!({"data": {"y": "y".repeat(900_000)}})).await.expect(200);
    let second = json!({"data": {"z": "z".repeat(2_500_000)}});
    assert_eq!(client.merge(&path, &second).await.expect(413)["reason"], "RequestEntityTooLarge");
    let intent = map("a", &second["data"]);
    client.apply(&format!("{path}?fieldManager=one"), &intent).await.expect(413);
    assert_eq!(client.get(&path).await.expect(200)["data"].as_object().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn apply_creates_merges_and_finds_conflicts() {
    let client = Client::admin(&server());
    let path = format!("{MAPS}/a");
    let mine = map("a", &json!({"x": "1", "y": "1"}));
    let created = client.apply(&format!("{path}?fieldManager=one"), &mine).await.expect(201);
    let again = client.apply(&format!("{path}?fieldManager=one"), &mine).await.expect(200);
    assert_eq!(again, created, "an apply that changes nothing moves no version");
    let other = map("a", &json!({"x": "2"}));
    let conflict = client.apply(&format!("{path}?fieldManager=two"), &other).await.expect(409);
    assert_eq!(conflict["details"]["causes"][0]["reason"], "FieldManagerConflict");
    assert_eq!(conflict["details"]["causes"][0]["field"], ".data.x");
    let forced = client.apply(&format!("{path}?fieldManager=two&force=true"), &other).await.expect(200);
    assert_eq!(forced["data"], json!({"x": "2", "y": "1"}));
    let dropped = client.apply(&format!("{path}?fieldManager=one"), &map("a", &json!({}))).await.expect(200);
    assert_eq!(dropped["data"], json!({"x": "2"}));
    client.apply(&path, &mine).await.expect(422);
}

#[tokio::test(start_paused = true)]
async fn finalizers_hold_a_deleted_object() {
    let client = Client::admin(&server());
    let mut object = map("a", &json!({}));
    object["metadata"]["finalizers"] = json!(["example.com/hold"]);
    client.post(MAPS, &object).await.expect(201);
    let path = format!("{MAPS}/a");
    let deleting = client.delete(&path).await.expect(200);
    assert_eq!(deleting["metadata"]["deletionTimestamp"], "2026-01-02T03:04:05Z");
    let more = json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}});
    let refused = client.merge(&path, &more).await.expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "metadata.finalizers");
    client.merge(&path, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    client.get(&path).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn a_list_comes_in_consistent_pages() {
    let client = Client::admin(&server());
    for name in ["a", "b", "c", "d"] {
        client.post(MAPS, &map(name, &json!({}))).await.expect(201);
    }
    let first = client.get(&format!("{MAPS}?limit=2")).await.expect(200);
    assert_eq!(first["metadata"]["remainingItemCount"], 2);
    client.delete(&format!("{MAPS}/c")).await.expect(200);
    client.post(MAPS, &map("bb", &json!({}))).await.expect(201);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = client.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(200);
    let names: Vec<_> = second["items"].as_array().unwrap().iter().map(|o| &o["metadata"]["name"]).collect();
    assert_eq!(names, ["c", "d"], "the second page shows the same moment as the first");
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let all = client.get(&format!("{MAPS}?fieldSelector=metadata.name!%3Da")).await.expect(200);
    assert_eq!(all["items"].as_array().unwrap().len(), 3);
    client.get(&format!("{MAPS}?fieldSelector=spec.x%3Da")).await.expect(400);
    let future = client.get(&format!("{MAPS}?resourceVersion=99999")).await.expect(504);
    assert_eq!(future["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_changes_nothing() {
    let api = server();
    let client = Client::admin(&api);
    let before = api.revision();
    client.post(&format!("{MAPS}?dryRun=All"), &map("a", &json!({}))).await.expect(201);
    client.get(&format!("{MAPS}/a")).await.expect(404);
    assert_eq!(api.revision(), before);
    let wrong = client.post(&format!("{MAPS}?dryRun=Some"), &map("a", &json!({}))).await.expect(422);
    assert_eq!(wrong["details"]["causes"][0]["field"], "dryRun");
}

#[tokio::test(start_paused = true)]
async fn a_stranger_is_refused() {
    let api = server();
    let client = Client(api.service(Identity::new("jane", ["dev"])));
    let refused = client.get(MAPS).await.expect(403);
    assert_eq!(
        refused["message"],
        "configmaps is forbidden: User \"jane\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"default\""
    );
    let admin = Client::admin(&api);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "reader"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]});
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    admin.post(&format!("{rbac}/roles"), &role).await.expect(201);
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "reader"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}]});
    admin.post(&format!("{rbac}/rolebindings"), &binding).await.expect(201);
    client.get(MAPS).await.expect(200);
    client.get(&format!("{MAPS}/a")).await.expect(403);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_must_exist_and_not_be_going() {
    let client = Client::admin(&server());
    let missing = client.post("/api/v1/namespaces/none/configmaps", &map("a", &json!({}))).await.expect(404);
    assert_eq!(missing["message"], "namespaces \"none\" not found");
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    client.post("/api/v1/namespaces", &namespace).await.expect(201);
    let going = client.delete("/api/v1/namespaces/team").await.expect(200);
    assert_eq!(going["status"]["phase"], "Terminating");
    let refused = client.post("/api/v1/namespaces/team/configmaps", &map("a", &json!({}))).await.expect(403);
    assert_eq!(
        refused["message"],
        "configmaps \"a\" is forbidden: unable to create new content in namespace team because it is being terminated"
    );
    assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
    client.delete("/api/v1/namespaces/default").await.expect(403);
}

#[tokio::test(start_paused = true)]
async fn an_event_is_the_same_in_both_groups() {
    let client = Client::admin(&server());
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "example.com/c", "reportingInstance": "i",
        "action": "Do", "reason": "Done", "type": "Normal", "note": "n",
        "regarding": {"kind": "Pod", "namespace": "default", "name": "p"}});
    client.post(events, &event).await.expect(201);
    let core = "/api/v1/namespaces/default/events";
    let read = client.get(&format!("{core}/e")).await.expect(200);
    assert_eq!((&read["message"], &read["involvedObject"]["name"]), (&json!("n"), &json!("p")));
    for path in [
        format!("{core}?fieldSelector=involvedObject.name%3Dp"),
        format!("{events}?fieldSelector=regarding.name%3Dp,reportingController%3Dexample.com/c"),
    ] {
        let list = client.get(&path).await.expect(200);
        assert_eq!(list["items"].as_array().unwrap().len(), 1, "{path}");
    }
    let mut watch = client.watch(&format!("{events}?watch=true&resourceVersion=0")).await;
    assert_eq!(watch.next().await.unwrap()["object"]["note"], "n");
}

#[tokio::test(start_paused = true)]
async fn a_body_over_the_limit_is_refused() {
    let client = Client::admin(&server());
    let big = json!({"x": "y".repeat(4 << 20)});
    client.post(MAPS, &map("big", &big)).await.expect(413);
}

#[tokio::test(start_paused = true)]
async fn what_a_patch_empties_is_left_out() {
    let client = Client::admin(&server());
    let nodes = "/api/v1/nodes";
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": {"x": "y"}},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
    client.post(nodes, &node).await.expect(201);
    let empty = json!({"metadata": {"labels": {"x": null}, "ownerReferences": []}, "spec": {"taints": []}});
    let patched = client.merge(&format!("{nodes}/a"), &empty).await.expect(200);
    assert!(patched["spec"].get("taints").is_none(), "{patched:#}");
    for key in ["labels", "ownerReferences"] {
        assert!(patched["metadata"].get(key).is_none(), "{patched:#}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_known_checks_are_healthy() {
    let client = Client::admin(&server());
    for known in ["/healthz", "/livez", "/readyz/", "/healthz/ping"] {
        assert_eq!(client.get(known).await.expect(200), "ok", "{known}");
    }
    for unknown in ["/healthz/foo", "/livez/ping/foo", "/readyz/etcd"] {
        client.get(unknown).await.expect(404);
    }
}

#[tokio::test(start_paused = true)]
async fn a_field_that_is_given_twice_is_told_of() {
    let client = Client::admin(&server());
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"1","k":"2"}}"#;
    let send = async |path: &str| {
        let request = Request::post(path).body(Full::new(Bytes::from_static(body.as_bytes()))).unwrap();
        client.answer(request).await
    };
    let strict = send(&format!("{MAPS}?fieldValidation=Strict")).await.expect(400);
    assert_eq!(
        strict["message"],
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: duplicate field \"data.k\""
    );
    let created = send(MAPS).await;
    assert_eq!(created.warnings(), ["299 - \"duplicate field \\\"data.k\\\"\""]);
    assert_eq!(created.expect(201)["data"], json!({"k": "2"}));
}

#[tokio::test(start_paused = true)]
async fn no_client_is_drowned_in_warnings() {
    let client = Client::admin(&server());
    let mut object = map("a", &json!({}));
    for index in 0..1000 {
        object[format!("unknown{index}")] = 1.into();
    }
    assert_eq!(client.post(MAPS, &object).await.warnings().len(), 64);
    let mut object = map("b", &json!({}));
    object["x".repeat(100_000)] = 1.into();
    let answer = client.post(MAPS, &object).await;
    let warnings = answer.warnings();
    assert!(
        warnings.len() == 1 && warnings[0].len() < 300,
        "{} warnings, not one that is cut",
        warnings.len()
    );
    answer.expect(201);
}

#[tokio::test(start_paused = true)]
async fn a_page_of_the_future_is_refused() {
    let client = Client::admin(&server());
    let token = URL_SAFE_NO_PAD.encode(r#"{"v":"meta.k8s.io/v1","rv":9000000000000000000,"start":"a"}"#);
    let refused = client.get(&format!("{MAPS}?limit=1&continue={token}")).await.expect(504);
    assert_eq!(refused["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
}
