use std::convert::Infallible;

use http::Response;
use kube::client::Body;

use super::*;

/// An API server's two reviews: tokens are their users' names; `reader` may read `/metrics`. What was asked is kept.
#[derive(Clone, Default)]
struct Reviews(Arc<Mutex<Vec<String>>>);

impl Reviews {
    fn guard(&self, answers: impl Fn(&str) -> bool + Clone + Send + Sync + 'static) -> Guard {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (this, answers) = (this.clone(), answers.clone());
            async move {
                let path = request.uri().path().rsplit('/').next().unwrap().to_owned();
                this.0.lock().push(path.clone());
                if !answers(&path) {
                    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500, "message": "etcd is away", "reason": "InternalError"});
                    return Ok::<_, Infallible>(
                        Response::builder()
                            .status(500)
                            .body(Body::from(body.to_string().into_bytes()))
                            .unwrap(),
                    );
                }
                let bytes = request.into_body().collect_bytes().await.unwrap();
                let mut review: Value = serde_json::from_slice(&bytes).unwrap();
                if path == "tokenreviews" {
                    let token = review["spec"]["token"].clone();
                    let known = token != "nobody";
                    review["status"] = json!({"authenticated": known});
                    if known {
                        review["status"]["user"] =
                            json!({"username": token, "uid": "u", "groups": ["g"], "extra": {"e": ["x"]}});
                    }
                } else {
                    let spec = &review["spec"];
                    assert_eq!(
                        (&spec["groups"], &spec["uid"], &spec["extra"]),
                        (&json!(["g"]), &json!("u"), &json!({"e": ["x"]}))
                    );
                    let allowed = spec["user"] == "reader"
                        && spec["nonResourceAttributes"] == json!({"path": "/metrics", "verb": "get"});
                    review["status"] = json!({"allowed": allowed});
                }
                Ok(Response::new(Body::from(review.to_string().into_bytes())))
            }
        });
        Guard::new(Client::new(service, "default"))
    }

    fn count(&self) -> usize {
        self.0.lock().len()
    }
}

fn bearing(token: &str) -> HeaderValue {
    HeaderValue::from_str(&format!("Bearer {token}")).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_good_for_a_minute_and_a_refusal_for_ten_seconds() {
    let reviews = Reviews::default();
    let guard = reviews.guard(|_| true);
    let reader = bearing("reader");
    assert_eq!(guard.admit(Some(&reader), "/metrics").await, Verdict::Allowed);
    tokio::time::advance(Duration::from_secs(59)).await;
    assert_eq!(guard.admit(Some(&reader), "/metrics").await, Verdict::Allowed);
    assert_eq!(reviews.count(), 2, "one of the token, one of the right");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(guard.admit(Some(&reader), "/metrics").await, Verdict::Allowed);
    assert_eq!(reviews.count(), 4);

    let other = bearing("other");
    for (seconds, asked) in [(0, 6), (9, 6), (2, 8)] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        assert_eq!(guard.admit(Some(&other), "/metrics").await, Verdict::Forbidden);
        assert_eq!(reviews.count(), asked);
    }
    let nobody = bearing("nobody");
    assert_eq!(guard.admit(Some(&nobody), "/metrics").await, Verdict::Unknown);
    assert_eq!(guard.admit(Some(&nobody), "/metrics").await, Verdict::Unknown);
    assert_eq!(reviews.count(), 9, "without a user there is no right to ask for");
}

#[tokio::test(start_paused = true)]
async fn the_right_to_one_path_is_none_to_another() {
    let reviews = Reviews::default();
    let guard = reviews.guard(|_| true);
    let reader = bearing("reader");
    assert_eq!(guard.admit(Some(&reader), "/metrics").await, Verdict::Allowed);
    for path in ["/debug/objects", "/metrics/", "/metrics/../debug/objects", ""] {
        assert_eq!(guard.admit(Some(&reader), path).await, Verdict::Forbidden, "{path}");
    }
    assert_ne!(question("ab", "c"), question("a", "bc"));
}

#[tokio::test(start_paused = true)]
async fn without_a_token_nobody_is_asked() {
    let reviews = Reviews::default();
    let guard = reviews.guard(|_| true);
    for header in ["", "Bearer", "Bearer ", "Basic reader", "reader"] {
        let header = HeaderValue::from_str(header).unwrap();
        assert_eq!(guard.admit(Some(&header), "/metrics").await, Verdict::Unknown, "{header:?}");
    }
    assert_eq!(guard.admit(None, "/metrics").await, Verdict::Unknown);
    assert_eq!(reviews.count(), 0);
    let lower = HeaderValue::from_static("bearer  reader ");
    assert_eq!(guard.admit(Some(&lower), "/metrics").await, Verdict::Allowed);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_asked_is_refused_and_asked_again() {
    for failing in ["tokenreviews", "subjectaccessreviews"] {
        let reviews = Reviews::default();
        let guard = reviews.guard(move |path| path != failing);
        for asked in 1..3 {
            assert_eq!(guard.admit(Some(&bearing("reader")), "/metrics").await, Verdict::Unanswered);
            let each = if failing == "tokenreviews" { 1 } else { 2 };
            assert_eq!(reviews.count(), asked * each, "nothing is remembered");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_hangs_is_given_up() {
    let service =
        tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
    let guard = Guard::new(Client::new(service, "default"));
    let start = Instant::now();
    // More than may ask at a time: those who wait for a turn wait no longer.
    let tokens: Vec<HeaderValue> = (0..3 * ASKING).map(|n| bearing(&n.to_string())).collect();
    let all = tokens.iter().map(|token| guard.admit(Some(token), "/metrics"));
    assert!(futures::future::join_all(all).await.iter().all(|verdict| *verdict == Verdict::Unanswered));
    assert_eq!(start.elapsed(), PATIENCE);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_tokens_takes_a_bounded_place_and_pushes_nobody_out() {
    let reviews = Reviews::default();
    let guard = reviews.guard(|_| true);
    let reader = bearing("reader");
    for n in 0..2 * KEPT {
        guard.admit(Some(&bearing(&format!("flood-{n}"))), "/metrics").await;
    }
    assert_eq!(guard.refused.lock().len(), KEPT);
    assert_eq!(guard.admit(Some(&reader), "/metrics").await, Verdict::Allowed);
    let asked = reviews.count();
    assert_eq!(guard.admit(Some(&reader), "/metrics").await, Verdict::Allowed);
    assert_eq!(reviews.count(), asked);
}
