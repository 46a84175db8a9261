use std::collections::VecDeque;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::Response;
use http_body_util::StreamBody;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::json;
use tower::BoxError;

use super::*;
use crate::cache::Caches;
use crate::{Kind, Scope, Selector, Unobserved};

#[test]
fn pauses_double_up_to_their_limit_and_start_again_after_quiet() {
    let (mut back_off, entropy, now) = (BackOff::default(), Entropy::seeded(1), Instant::now());
    let within = |pause: Duration, base: Duration| assert!(pause >= base && pause < base * 2, "{pause:?}");
    for base in [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000] {
        within(back_off.pause(&entropy, now), Duration::from_millis(base));
    }
    within(back_off.pause(&entropy, now + QUIET), FIRST_BACK_OFF);
}

#[test]
fn a_compacted_version_leads_to_a_list_and_an_impossible_list_to_a_quorum_list() {
    let gone = || Failure::Event { code: 410, message: "too old resource version".to_owned() };
    assert_eq!(gone().next(Next::Watch), (Next::List, false));
    assert_eq!(gone().next(Next::List), (Next::QuorumList, true));
    assert_eq!(Failure::Silent.next(Next::Watch), (Next::Watch, true));
    let busy = Failure::Event { code: 429, message: String::new() };
    assert_eq!(busy.next(Next::List), (Next::List, true));
}

/// What the scripted server answers.
enum Answer {
    Json(u16, Value),
    /// Lines of a watch, then the end or silence.
    Watch(Vec<Value>, bool),
}

#[derive(Default)]
struct Script {
    asked: Mutex<Vec<String>>,
    answers: Mutex<VecDeque<Answer>>,
}

impl Script {
    /// A cache of ConfigMaps of a server that answers this, then is silent.
    fn cache(answers: Vec<Answer>) -> (Arc<Self>, Caches, Arc<Cache<ConfigMap>>) {
        let script = Arc::new(Self { answers: Mutex::new(answers.into()), ..Self::default() });
        let server = Arc::clone(&script);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            server.asked.lock().push(request.uri().query().unwrap_or_default().to_owned());
            let answer = server.answers.lock().pop_front();
            async move {
                let (code, lines, end) = match answer {
                    Some(Answer::Json(code, body)) => (code, vec![body], true),
                    Some(Answer::Watch(lines, end)) => (200, lines, end),
                    None => (200, Vec::new(), false),
                };
                let lines = stream::iter(lines).map(|line| format!("{line}\n"));
                let lines = lines.map(|line| Ok::<_, BoxError>(http_body::Frame::data(Bytes::from(line))));
                let body = if end { lines.boxed() } else { lines.chain(stream::pending()).boxed() };
                Response::builder().status(code).body(StreamBody::new(body)).map_err(BoxError::from)
            }
        });
        let client = Client::new(service, "default");
        let caches = Caches::new(client, Scope::All, Entropy::seeded(1), Arc::new(Unobserved));
        let cache = caches.open::<ConfigMap>(&Kind::of::<ConfigMap>(), &Selector::all());
        (script, caches, cache)
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().iter().map(|query| without_timeout(query)).collect()
    }
}

fn without_timeout(query: &str) -> String {
    query.split('&').filter(|part| !part.starts_with("timeoutSeconds")).collect::<Vec<_>>().join("&")
}

fn object(name: &str, version: u64) -> Value {
    json!({ "metadata": { "name": name, "namespace": "ns", "uid": name, "resourceVersion": version.to_string() } })
}

fn event(kind: &str, object: impl Into<Value>) -> Value {
    json!({ "type": kind, "object": object.into() })
}

fn end_of_list(version: u64) -> Value {
    json!({ "type": "BOOKMARK", "object": { "metadata": { "resourceVersion": version.to_string(),
        "annotations": { "k8s.io/initial-events-end": "true" } } } })
}

fn status(code: u16, message: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message })
}

fn names(cache: &Cache<ConfigMap>) -> Vec<String> {
    cache.list(None).iter().filter_map(|object| object.metadata.name.clone()).collect()
}

const WATCH: &str = "watch=1&allowWatchBookmarks=true&resourceVersion=";
const STREAM: &str = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";

#[tokio::test(start_paused = true)]
async fn a_streaming_list_becomes_a_watch_and_resumes_where_it_was() {
    let (script, _caches, cache) = Script::cache(vec![Answer::Watch(
        vec![event("ADDED", object("a", 3)), end_of_list(5), event("ADDED", object("b", 6))],
        false,
    )]);
    cache.synced().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(names(&cache), ["a", "b"]);
    // Nothing is heard for 150 s: the watch is stuck, and starts again from what was seen.
    tokio::time::sleep(SILENCE + FIRST_BACK_OFF * 2).await;
    assert_eq!(script.asked(), [format!("{WATCH}{STREAM}"), format!("{WATCH}6")]);
}

#[tokio::test(start_paused = true)]
async fn silence_is_told() {
    let (_script, caches, cache) = Script::cache(vec![Answer::Watch(vec![end_of_list(5)], false)]);
    cache.synced().await;
    assert!(!caches.health()[0].stuck);
    tokio::time::sleep(SILENCE + Duration::from_secs(1)).await;
    let health = &caches.health()[0];
    assert!(health.synced && health.stuck, "{health:?}");
    assert_eq!(health.error.as_deref(), Some("the server was silent for 150 s"));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_stream_lists_gives_pages() {
    let page = |items: Value, more: &str| json!({ "metadata": { "resourceVersion": "9", "continue": more }, "items": items });
    let (script, _caches, cache) = Script::cache(vec![
        Answer::Json(422, status(422, "sendInitialEvents is forbidden for watch")),
        Answer::Json(200, page(json!([object("a", 3)]), "more")),
        Answer::Json(200, page(json!([object("b", 4)]), "")),
    ]);
    cache.synced().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(names(&cache), ["a", "b"]);
    assert_eq!(
        script.asked(),
        [&format!("{WATCH}{STREAM}"), "limit=500", "limit=500&continue=more", &format!("{WATCH}9")]
    );
}

#[tokio::test(start_paused = true)]
async fn a_compacted_watch_lists_again_not_older_than_what_was_seen() {
    let (script, _caches, cache) = Script::cache(vec![
        Answer::Watch(vec![event("ADDED", object("a", 3)), end_of_list(5)], true),
        Answer::Watch(vec![event("ERROR", status(410, "too old resource version"))], true),
        Answer::Watch(vec![event("ADDED", object("b", 8)), end_of_list(9)], false),
    ]);
    cache.synced().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(names(&cache), ["b"], "what the list doesn't have is gone");
    assert_eq!(
        script.asked(),
        [format!("{WATCH}{STREAM}"), format!("{WATCH}5"), format!("{WATCH}5{STREAM}")]
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_restored_from_a_backup_is_followed() {
    let (script, _caches, cache) = Script::cache(vec![
        Answer::Watch(vec![event("ADDED", object("a", 50)), end_of_list(50)], true),
        Answer::Watch(vec![event("ERROR", status(410, "too old resource version"))], true),
        Answer::Json(504, status(504, "Too large resource version: 50, current: 20")),
        Answer::Watch(vec![event("ADDED", object("b", 7)), end_of_list(20)], false),
    ]);
    cache.synced().await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(names(&cache), ["b"]);
    assert_eq!(script.asked().last(), Some(&format!("{WATCH}{STREAM}")), "the newest state");
}
