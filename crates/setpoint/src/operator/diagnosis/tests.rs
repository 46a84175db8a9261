use std::convert::Infallible;

use http::Response;
use kube::client::Body;
use serde_json::json;
use tower::service_fn;

use super::*;

/// A server that answers each path and body as `answer` says.
fn server(answer: impl Fn(&str, Value) -> (u16, Value) + Clone + Send + Sync + 'static) -> Client {
    let service = service_fn(move |request: Request<Body>| {
        let answer = answer.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap_or_default();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let (status, json) = answer(parts.uri.path(), body);
            let response = Response::builder().status(status).body(Body::from(json.to_string().into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    Client::new(service, "default")
}

fn failure(code: u16, message: &str) -> (u16, Value) {
    (
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message, "reason": "R"}),
    )
}

#[tokio::test]
async fn refused_credentials_are_told_apart_from_an_unreachable_server() {
    let error = reach(&server(|_, _| failure(401, "Unauthorized")), "https://h:6443/").await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("the API server at https://h:6443 refuses these credentials: Unauthorized;"),
        "{error}"
    );
    let service = service_fn(|_: Request<Body>| async {
        Err::<Response<Body>, _>(std::io::Error::other("connection refused"))
    });
    let error = reach(&Client::new(service, "default"), "https://h:6443/").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot reach the API server at https://h:6443: connection refused; is the cluster running, and is it the right one (--kubeconfig, --context)?"
    );
}

#[derive(Debug, thiserror::Error)]
#[error("cannot read the file: {0}")]
struct Repeating(#[source] std::io::Error);

#[derive(Debug, thiserror::Error)]
#[error("cannot read the file")]
struct Short(#[source] std::io::Error);

#[test]
fn an_error_says_each_cause_once() {
    let cause = || std::io::Error::other("no such file");
    assert_eq!(chain(&Repeating(cause())), "cannot read the file: no such file");
    assert_eq!(chain(&Short(cause())), "cannot read the file: no such file");
}

#[tokio::test]
async fn a_kind_is_served_when_discovery_lists_it() {
    let client = server(|path, _| match path {
        "/apis/example.com/v1" => {
            (200, json!({"kind": "APIResourceList", "resources": [{"name": "websites"}]}))
        }
        _ => failure(404, "404 page not found"),
    });
    let kind = |group: &str, plural: &str| Kind {
        group: group.to_owned(),
        version: "v1".to_owned(),
        kind: "Website".to_owned(),
        plural: plural.to_owned(),
        namespaced: true,
    };
    assert!(serves(&client, &kind("example.com", "websites")).await.unwrap());
    assert!(!serves(&client, &kind("example.com", "certs")).await.unwrap());
    assert!(!serves(&client, &kind("example.org", "websites")).await.unwrap());
}

#[tokio::test]
async fn missing_rights_are_named_with_their_place() {
    let client = server(|_, body| {
        let wanted = &body["spec"]["resourceAttributes"];
        let allowed = wanted["namespace"] == "team-a" || wanted["resource"] == "configmaps";
        (201, json!({"spec": body["spec"], "metadata": {}, "status": {"allowed": allowed}}))
    });
    let mut rights = Rights::new();
    rights
        .allow("example.com", "websites", true, ["list", "watch"])
        .allow("example.com", "websites/status", true, ["patch"])
        .allow("", "configmaps", true, ["get"])
        .allow("", "nodes", false, ["get"]);
    let scope = Scope::parse("team-a,team-b");
    assert_eq!(
        missing_rights(&client, &rights, &scope).await,
        [
            "get nodes",
            "list, watch websites.example.com (in team-b)",
            "patch websites.example.com/status (in team-b)"
        ]
    );
    assert_eq!(
        missing_rights(&client, &rights, &Scope::All).await,
        ["get nodes", "list, watch websites.example.com", "patch websites.example.com/status"]
    );
}
