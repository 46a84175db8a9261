use std::convert::Infallible;
use std::future::{Future, pending};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, LogParams, Patch, PatchParams, PostParams, WatchParams};
use parking_lot::Mutex;
use serde_json::json;
use tower::layer::layer_fn;

use super::*;

/// A server that records requests and answers the n-th one as `answer` says.
fn server<F, A>(answer: F) -> (kube::Client, Arc<Mutex<Vec<String>>>, Metrics)
where
    F: Fn(usize) -> A + Send + Sync + 'static,
    A: Future<Output = Response<Body>> + Send + 'static,
{
    server_with(answer, |stack| stack)
}

fn server_with<F, A>(
    answer: F,
    change: impl FnOnce(RequestStack) -> RequestStack,
) -> (kube::Client, Arc<Mutex<Vec<String>>>, Metrics)
where
    F: Fn(usize) -> A + Send + Sync + 'static,
    A: Future<Output = Response<Body>> + Send + 'static,
{
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = seen.clone();
    let answer = Arc::new(answer);
    let service = service_fn(move |request: Request<Body>| {
        let (log, answer) = (log.clone(), answer.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.map(|bytes| bytes.len()).unwrap_or_default();
            let count = {
                let mut log = log.lock();
                log.push(format!("{} {} {body}", parts.method, parts.uri));
                log.len() - 1
            };
            Ok::<_, Infallible>(answer(count).await)
        }
    });
    let metrics = Metrics::new();
    let stack = change(RequestStack::new(&metrics, Entropy::seeded(1)));
    (stack.over(kube::Client::new(service, "default")), seen, metrics)
}

fn ok() -> Response<Body> {
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web"}}).to_string();
    Response::new(Body::from(body.into_bytes()))
}

fn status(code: u16) -> Response<Body> {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no", "reason": "No"});
    Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap()
}

fn config_maps(client: kube::Client) -> Api<ConfigMap> {
    Api::default_namespaced(client)
}

#[tokio::test(start_paused = true)]
async fn a_read_is_repeated_until_it_is_answered() {
    let (client, seen, metrics) = server(|count| async move { if count < 2 { status(503) } else { ok() } });
    let read = config_maps(client).get("web").await.unwrap();
    assert_eq!(read.metadata.name.as_deref(), Some("web"));
    assert_eq!(*seen.lock(), ["GET /api/v1/namespaces/default/configmaps/web 0"; 3]);
    let text = metrics.encode();
    assert!(
        text.contains("rest_client_requests_total{code=\"200\",method=\"GET\",host=\"in-process\"} 1"),
        "{text}"
    );
    assert!(
        text.contains("rest_client_request_retries_total{code=\"503\",verb=\"GET\",host=\"in-process\"} 2"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_read_is_given_up_in_the_end_with_the_last_answer() {
    let (client, seen, _) = server(|_| async { status(503) });
    let error = config_maps(client).get("web").await.unwrap_err();
    assert!(matches!(error, kube::Error::Api(status) if status.code == 503));
    assert_eq!(seen.lock().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_write_with_an_unknown_outcome_is_not_repeated() {
    let (client, seen, _) = server(|_| async { status(503) });
    let api = config_maps(client);
    let object = ConfigMap::default();
    assert!(api.create(&PostParams::default(), &object).await.is_err());
    assert!(api.delete("web", &DeleteParams::default()).await.is_err());
    assert!(api.patch("web", &PatchParams::apply("test"), &Patch::Apply(json!({}))).await.is_err());
    assert_eq!(seen.lock().len(), 3, "{:?}", seen.lock());
}

#[tokio::test(start_paused = true)]
async fn a_refused_apply_is_repeated_after_the_time_that_the_server_names() {
    let (client, seen, _) = server(|count| async move {
        if count > 0 {
            return ok();
        }
        let mut refused = status(429);
        refused.headers_mut().insert(header::RETRY_AFTER, "3".parse().unwrap());
        refused
    });
    let start = Instant::now();
    let patch = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap"}));
    config_maps(client).patch("web", &PatchParams::apply("test"), &patch).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(3));
    let seen = seen.lock();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0], seen[1], "the same request, body included");
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_costs_the_deadline_and_no_more() {
    let (client, seen, metrics) = server_with(|_| pending(), |stack| stack.deadline(Duration::from_secs(5)));
    let start = Instant::now();
    let error = config_maps(client).create(&PostParams::default(), &ConfigMap::default()).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    let kube::Error::Service(cause) = error else { panic!("{error:?}") };
    assert!(cause.is::<DeadlineExceeded>(), "{cause:?}");
    assert_eq!(
        cause.to_string(),
        "POST /api/v1/namespaces/default/configmaps: no complete answer from the API server within 5s"
    );
    assert_eq!(seen.lock().len(), 1);
    assert!(metrics.encode().contains("rest_client_requests_total{code=\"<error>\",method=\"POST\""));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_stops_in_its_body_is_late_too() {
    let (client, seen, _) = server_with(
        |count| async move {
            if count > 0 {
                return ok();
            }
            let endless = futures::stream::pending::<Result<http_body::Frame<bytes::Bytes>, Infallible>>();
            Response::new(wrap(http_body_util::StreamBody::new(endless)).await)
        },
        |stack| stack.deadline(Duration::from_secs(5)),
    );
    config_maps(client).get("web").await.unwrap();
    assert_eq!(seen.lock().len(), 2);
}

/// A streaming [`Body`], which kube makes only from a service's answer.
async fn wrap<B>(body: B) -> Body
where
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let body = Mutex::new(Some(body));
    let service = service_fn(move |_: Request<Body>| {
        let body = body.lock().take().expect("asked once");
        async move { Ok::<_, Infallible>(Response::new(body)) }
    });
    let client = kube::Client::new(service, "default");
    client.send(Request::new(Body::empty())).await.unwrap().into_body()
}

#[tokio::test(start_paused = true)]
async fn streams_have_no_deadline_and_are_not_repeated() {
    let late = |_| async {
        tokio::time::sleep(Duration::from_secs(300)).await;
        status(503)
    };
    let (client, seen, _) = server_with(late, |stack| stack.deadline(Duration::from_secs(5)));
    let start = Instant::now();
    let error = config_maps(client.clone()).watch(&WatchParams::default(), "0").await.err().unwrap();
    assert!(matches!(error, kube::Error::Api(status) if status.code == 503));
    assert_eq!(start.elapsed(), Duration::from_secs(300));
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::default_namespaced(client);
    assert!(pods.log_stream("web", &LogParams { follow: true, ..Default::default() }).await.is_err());
    assert_eq!(seen.lock().len(), 2, "{:?}", seen.lock());
}

#[tokio::test(start_paused = true)]
async fn injected_faults_are_retried_like_real_ones() {
    let lost: Arc<Mutex<u32>> = Arc::default();
    let count = lost.clone();
    let faults = layer_fn(move |transport: Transport| {
        let lost = lost.clone();
        service_fn(move |request: Request<Body>| {
            let transport = transport.clone();
            let lose = {
                let mut lost = lost.lock();
                *lost += 1;
                *lost == 1
            };
            async move {
                if lose {
                    return Err(BoxError::from("connection reset"));
                }
                transport.oneshot(request).await
            }
        })
    });
    let (client, seen, _) = server_with(|_| async { ok() }, |stack| stack.faults(faults));
    config_maps(client).get("web").await.unwrap();
    assert_eq!((*count.lock(), seen.lock().len()), (2, 1));
}
