use k8s_openapi::api::core::v1::ConfigMap;

use super::*;

fn webhooks() -> Webhooks {
    let check = Webhook::validate(|_: &ConfigMap, _| {});
    Webhooks::new(vec![check], Vec::new(), &Metrics::new())
}

const PATH: &str = "/validate--v1-configmap";

async fn post(webhooks: &Webhooks, path: &str, body: &str) -> (u16, String) {
    let request = Request::post(path).body(Bytes::from(body.to_owned())).unwrap();
    let response = webhooks.answer(request).await;
    (response.status().as_u16(), String::from_utf8(response.body().to_vec()).unwrap())
}

fn review(object: &Value) -> String {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": "7", "operation": "CREATE", "object": object}})
    .to_string()
}

#[tokio::test]
async fn what_is_no_review_is_refused_by_name() {
    let webhooks = webhooks();
    let other = json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview"}).to_string();
    let empty = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}).to_string();
    for (path, body, status, says) in [
        ("/elsewhere", "{}", 404, "no webhook is served at /elsewhere"),
        (PATH, "{", 400, "not an AdmissionReview"),
        (PATH, other.as_str(), 400, "not \"AdmissionReview\" of \"admission.k8s.io/v1beta1\""),
        (PATH, empty.as_str(), 400, "has no request"),
    ] {
        let (code, text) = post(&webhooks, path, body).await;
        assert_eq!(code, status, "{text}");
        assert!(text.contains(says), "{text}");
    }
    let get = Request::get(PATH).body(Bytes::new()).unwrap();
    assert_eq!(webhooks.answer(get).await.status(), 405);
}

#[tokio::test]
async fn an_object_that_does_not_fit_the_type_is_refused_with_the_reason() {
    let (_, text) = post(&webhooks(), PATH, &review(&json!({"data": 7}))).await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["response"]["uid"], "7");
    assert_eq!(answer["response"]["status"]["code"], 400);
    let message = answer["response"]["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("the object does not fit ConfigMap: invalid type"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn more_reviews_than_the_bound_wait_within_their_time() {
    let webhooks = webhooks();
    let all = webhooks.0.permits.acquire_many(u32::try_from(IN_FLIGHT).unwrap()).await.unwrap();
    let start = Instant::now();
    let (code, _) = post(&webhooks, &format!("{PATH}?timeout=5s"), &review(&json!({}))).await;
    assert_eq!((code, start.elapsed()), (429, Duration::from_millis(4500)));
    drop(all);
    assert_eq!(post(&webhooks, PATH, &review(&json!({}))).await.0, 200);
}

#[test]
fn the_caller_says_how_long_it_waits() {
    assert_eq!(patience("timeout=3s"), Duration::from_secs(3));
    assert_eq!(patience("a=b&timeout=30s"), Duration::from_secs(30));
    assert_eq!(patience("timeout=3600s"), Duration::from_secs(60));
    assert_eq!(patience("timeout=soon"), TIME_LIMIT);
    assert_eq!(patience(""), TIME_LIMIT);
}
