use http::Method;
use serde_json::{Value, json};

use crate::client::{Client, server};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SITES: &str = "/apis/example.com/v1/namespaces/default/sites";

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "sites.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "sites", "kind": "Site", "shortNames": ["st"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {
                        "type": "object", "required": ["host"],
                        "properties": {
                            "host": {"type": "string", "minLength": 1},
                            "replicas": {"type": "integer", "minimum": 0, "default": 1},
                        },
                        "x-kubernetes-validations": [
                            {"rule": "!has(oldSelf.replicas) || self.replicas >= oldSelf.replicas", "message": "replicas may not shrink"},
                        ],
                    },
                    "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "phase": {"type": "string"}}},
                }}},
            }],
        },
    })
}

fn site(spec: &Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Site", "metadata": {"name": "a"}, "spec": spec})
}

#[tokio::test(start_paused = true)]
async fn a_definition_is_served_as_soon_as_it_is_created() {
    let client = Client::admin(&server());
    client.get(SITES).await.expect(404);
    let created = client.post(DEFINITIONS, &definition()).await.expect(201);
    // As upstream: the answer is what was created, and the names come with the next version.
    assert_eq!(created["status"]["acceptedNames"], json!({"plural": "", "kind": ""}));
    assert_eq!(created["status"]["storedVersions"], json!(["v1"]));
    let accepted = client.get(&format!("{DEFINITIONS}/sites.example.com")).await.expect(200);
    assert_eq!(accepted["status"]["acceptedNames"]["listKind"], "SiteList");
    let conditions = accepted["status"]["conditions"].as_array().unwrap();
    let kinds: Vec<_> = conditions.iter().map(|c| (&c["type"], &c["status"])).collect();
    assert_eq!(kinds, [(&json!("NamesAccepted"), &json!("True")), (&json!("Established"), &json!("True"))]);
    let list = client.get(SITES).await.expect(200);
    assert_eq!(list["kind"], "SiteList");
}

#[tokio::test(start_paused = true)]
async fn objects_are_defaulted_pruned_and_checked() {
    let client = Client::admin(&server());
    client.post(DEFINITIONS, &definition()).await.expect(201);
    let answer = client.post(SITES, &site(&json!({"host": "a", "color": "red"}))).await;
    assert_eq!(answer.warnings(), ["299 - \"unknown field \\\"spec.color\\\"\""]);
    let created = answer.expect(201);
    assert_eq!(created["spec"], json!({"host": "a", "replicas": 1}));
    assert_eq!(created["metadata"]["generation"], 1);

    let mut other = site(&json!({"host": "a", "color": "red"}));
    other["metadata"]["name"] = "b".into();
    let strict = client.post(&format!("{SITES}?fieldValidation=Strict"), &other).await.expect(400);
    assert_eq!(
        strict["message"],
        "Site in version \"v1\" cannot be handled as a Site: strict decoding error: unknown field \"spec.color\""
    );
    other["spec"] = json!({"replicas": -1});
    let invalid = client.post(SITES, &other).await.expect(422);
    let fields: Vec<_> =
        invalid["details"]["causes"].as_array().unwrap().iter().map(|c| &c["field"]).collect();
    assert!(
        fields.contains(&&json!("spec.host")) && fields.contains(&&json!("spec.replicas")),
        "{invalid:#}"
    );

    let path = format!("{SITES}/a");
    client.merge(&path, &json!({"spec": {"replicas": 3}})).await.expect(200);
    let shrunk = client.merge(&path, &json!({"spec": {"replicas": 2}})).await.expect(422);
    assert!(shrunk["message"].as_str().unwrap().contains("replicas may not shrink"), "{shrunk:#}");
    let strategic =
        client.call(Method::PATCH, &path, "application/strategic-merge-patch+json", Some(&json!({}))).await;
    strategic.expect(415);
}

#[tokio::test(start_paused = true)]
async fn status_and_scale_are_written_on_their_own() {
    let client = Client::admin(&server());
    client.post(DEFINITIONS, &definition()).await.expect(201);
    let mut new = site(&json!({"host": "a"}));
    new["status"] = json!({"phase": "forged"});
    let created = client.post(SITES, &new).await.expect(201);
    assert!(created["status"].is_null(), "{created:#}");
    let path = format!("{SITES}/a");
    let patch = json!({"status": {"phase": "Ready", "replicas": 1}, "spec": {"host": "ignored"}});
    let updated = client.merge(&format!("{path}/status"), &patch).await.expect(200);
    assert_eq!((&updated["status"]["phase"], &updated["spec"]["host"]), (&json!("Ready"), &json!("a")));
    assert_eq!(updated["metadata"]["generation"], 1);
    let main =
        client.merge(&path, &json!({"status": {"phase": "Gone"}, "spec": {"host": "b"}})).await.expect(200);
    assert_eq!((&main["status"]["phase"], &main["metadata"]["generation"]), (&json!("Ready"), &json!(2)));

    let scale = client.get(&format!("{path}/scale")).await.expect(200);
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]["replicas"]), (&json!(1), &json!(1)));
    let scaled = client.merge(&format!("{path}/scale"), &json!({"spec": {"replicas": 5}})).await.expect(200);
    assert_eq!(scaled["spec"]["replicas"], 5);
    assert_eq!(client.get(&path).await.expect(200)["spec"]["replicas"], 5);
    client.merge(&format!("{path}/scale"), &json!({"spec": {"replicas": -5}})).await.expect(422);
}

#[tokio::test(start_paused = true)]
async fn status_is_applied_by_its_manager() {
    let client = Client::admin(&server());
    client.post(DEFINITIONS, &definition()).await.expect(201);
    client.post(SITES, &site(&json!({"host": "a"}))).await.expect(201);
    let intent = json!({"apiVersion": "example.com/v1", "kind": "Site", "metadata": {"name": "a"},
        "status": {"phase": "Ready"}});
    let path = format!("{SITES}/a/status?fieldManager=op&force=true");
    let first = client.apply(&path, &intent).await.expect(200);
    assert_eq!(first["status"]["phase"], "Ready");
    assert_eq!(client.apply(&path, &intent).await.expect(200), first);
    client
        .apply(
            &format!("{SITES}/none/status?fieldManager=op"),
            &json!({"apiVersion": "example.com/v1",
        "kind": "Site", "metadata": {"name": "none"}}),
        )
        .await
        .expect(404);
}

#[tokio::test(start_paused = true)]
async fn every_version_serves_every_object() {
    let client = Client::admin(&server());
    let mut two = definition();
    let mut next = two["spec"]["versions"][0].clone();
    next["name"] = "v2".into();
    next["storage"] = false.into();
    next["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["color"] =
        json!({"type": "string", "default": "red"});
    two["spec"]["versions"].as_array_mut().unwrap().push(next);
    client.post(DEFINITIONS, &two).await.expect(201);
    client.post(SITES, &site(&json!({"host": "a"}))).await.expect(201);
    let read = client.get("/apis/example.com/v2/namespaces/default/sites/a").await.expect(200);
    assert_eq!(read["apiVersion"], "example.com/v2");
    assert_eq!(read["spec"]["color"], json!(null), "reading has the defaults of the stored version only");
    let list = client.get("/apis/example.com/v2/sites").await.expect(200);
    assert_eq!(list["items"][0]["apiVersion"], "example.com/v2");
}

#[tokio::test(start_paused = true)]
async fn deleting_a_definition_deletes_its_objects_first() {
    let client = Client::admin(&server());
    client.post(DEFINITIONS, &definition()).await.expect(201);
    let mut held = site(&json!({"host": "a"}));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    client.post(SITES, &held).await.expect(201);
    let mut free = site(&json!({"host": "b"}));
    free["metadata"]["name"] = "b".into();
    client.post(SITES, &free).await.expect(201);
    let mut watch = client.watch(&format!("{SITES}?watch=true&resourceVersion=0")).await;
    assert_eq!(watch.brief().await, "ADDED a");
    assert_eq!(watch.brief().await, "ADDED b");

    let path = format!("{DEFINITIONS}/sites.example.com");
    client.delete(&path).await.expect(200);
    let going = client.get(&path).await.expect(200);
    assert_eq!(going["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    client.get(&format!("{SITES}/b")).await.expect(404);
    free["metadata"]["name"] = "c".into();
    client.post(SITES, &free).await.expect(403);
    client.merge(&format!("{SITES}/a"), &json!({"metadata": {"finalizers": null}})).await.expect(200);
    client.get(&path).await.expect(404);
    client.get(SITES).await.expect(404);
    for expected in ["MODIFIED a", "DELETED b", "DELETED a"] {
        assert_eq!(watch.brief().await, expected);
    }
    assert_eq!(watch.next().await, None, "a watch ends with its resource");
}

#[tokio::test(start_paused = true)]
async fn a_changed_schema_applies_at_once() {
    let client = Client::admin(&server());
    client.post(DEFINITIONS, &definition()).await.expect(201);
    client.post(SITES, &site(&json!({"host": "a"}))).await.expect(201);
    let color = json!([{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/color",
        "value": {"type": "string", "default": "red"}}]);
    let path = format!("{DEFINITIONS}/sites.example.com");
    client.call(Method::PATCH, &path, "application/json-patch+json", Some(&color)).await.expect(200);
    assert_eq!(client.get(&format!("{SITES}/a")).await.expect(200)["spec"]["color"], "red");
}

#[tokio::test(start_paused = true)]
async fn built_in_kinds_are_pruned_and_typed() {
    let client = Client::admin(&server());
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "creationTimestamp": null},
        "spec": {"containers": [{"name": "c", "image": "i", "imagee": 1}]}});
    let answer = client.post(pods, &pod).await;
    assert_eq!(answer.warnings(), ["299 - \"unknown field \\\"spec.containers[0].imagee\\\"\""]);
    let created = answer.expect(201);
    assert_eq!(created["status"]["phase"], "Pending");
    assert_eq!(created["spec"]["restartPolicy"], "Always");
    assert_eq!(created["spec"]["tolerations"].as_array().unwrap().len(), 2);
    let mut wrong = pod.clone();
    wrong["spec"]["containers"][0]["image"] = 5.into();
    client.post(pods, &wrong).await.expect(400);
}

#[tokio::test(start_paused = true)]
async fn a_rule_that_would_overflow_the_stack_is_refused() {
    let client = Client::admin(&server());
    let nested = |depth: usize| format!("{}1 == 1{}", "(".repeat(depth), ")".repeat(depth));
    for (rule, code) in [(nested(20_000), 422), (nested(60), 201), (vec!["1 == 1"; 900].join(" && "), 409)] {
        let mut definition = definition();
        let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        schema["x-kubernetes-validations"] = json!([{"rule": rule}]);
        client.post(DEFINITIONS, &definition).await.expect(code);
    }
    client.post(SITES, &site(&json!({"host": "a"}))).await.expect(201);
}
