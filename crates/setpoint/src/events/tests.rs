use http::{Request, Response};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;

type Seen = Arc<Mutex<Vec<(String, Value)>>>;

/// A server that records requests and answers with the status that `code` gives for the n-th one; 0 is no
/// answer at all.
fn server(code: impl Fn(usize) -> u16 + Send + Sync + 'static) -> (Client, Seen) {
    let seen = Seen::default();
    let log = seen.clone();
    let code = Arc::new(code);
    let service = service_fn(move |request: Request<Body>| {
        let (log, code) = (log.clone(), code.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap();
            let code = {
                let mut log = log.lock();
                log.push((format!("{} {}", parts.method, parts.uri), body.clone()));
                code(log.len() - 1)
            };
            let answer = match code {
                0 => return Err(tower::BoxError::from("connection refused")),
                200 | 201 => json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "eventTime": null,
                    "metadata": body.get("metadata").unwrap_or(&Value::Null)}),
                _ => json!({"kind": "Status", "apiVersion": "v1", "code": code, "status": "Failure",
                    "message": "no", "reason": "Forbidden"}),
            };
            Ok(Response::builder().status(code).body(Body::from(answer.to_string().into_bytes())).unwrap())
        }
    });
    (Client::new(service, "default"), seen)
}

fn start(client: Client) -> (EventRecorder, tokio::task::JoinHandle<()>) {
    let clock = Clock::at(jiff::Timestamp::UNIX_EPOCH);
    let (recorder, sender) = recorder(client, clock, Entropy::seeded(1), "website-operator-7d9f");
    (recorder, tokio::spawn(sender.run()))
}

fn website() -> ObjectReference {
    ObjectReference {
        api_version: Some("example.com/v1".to_owned()),
        kind: Some("Website".to_owned()),
        namespace: Some("team-a".to_owned()),
        name: Some("web".to_owned()),
        uid: Some("u-1".to_owned()),
        ..Default::default()
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_is_complete() {
    let (client, seen) = server(|_| 201);
    let (recorder, task) = start(client);
    recorder.record("website", &website(), Event::warning("DiskFull", "no space on /data").action("Resize"));
    drop(recorder);
    task.await.unwrap();
    let seen = seen.lock();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].0, "POST /apis/events.k8s.io/v1/namespaces/team-a/events?");
    assert_eq!(
        seen[0].1,
        json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": "web.1", "namespace": "team-a"},
            "eventTime": "1970-01-01T00:00:00.000000Z",
            "type": "Warning",
            "reason": "DiskFull",
            "action": "Resize",
            "note": "no space on /data",
            "regarding": {"apiVersion": "example.com/v1", "kind": "Website", "namespace": "team-a", "name": "web", "uid": "u-1"},
            "reportingController": "website",
            "reportingInstance": "website-operator-7d9f",
        })
    );
}

#[tokio::test(start_paused = true)]
async fn a_series_is_one_event_with_its_final_count() {
    let (client, seen) = server(|_| 201);
    let (recorder, task) = start(client);
    for n in 0..10 {
        recorder.record("website", &website(), Event::normal("Scaled", format!("to {n}")));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    drop(recorder);
    task.await.unwrap();
    let seen = seen.lock();
    let requests: Vec<_> =
        seen.iter().map(|(line, body)| (line.as_str(), &body["series"]["count"])).collect();
    let patch = "PATCH /apis/events.k8s.io/v1/namespaces/team-a/events/web.1?";
    assert_eq!(requests[0].0, "POST /apis/events.k8s.io/v1/namespaces/team-a/events?");
    assert_eq!(requests[1..], [(patch, &json!(2)), (patch, &json!(10))]);
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_server_is_tried_again_and_a_refusal_is_not() {
    let (client, seen) = server(|count| if count < 3 { 0 } else { 403 });
    let (recorder, task) = start(client);
    recorder.record("website", &website(), Event::normal("Scaled", "to 3"));
    drop(recorder);
    task.await.unwrap();
    assert_eq!(seen.lock().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_had_arrived_counts_as_created() {
    let (client, seen) = server(|count| [0, 409, 200][count]);
    let (recorder, task) = start(client);
    recorder.record("website", &website(), Event::normal("Scaled", "to 3"));
    recorder.record("website", &website(), Event::normal("Scaled", "to 4"));
    drop(recorder);
    task.await.unwrap();
    let methods: Vec<String> = seen.lock().iter().map(|(line, _)| line[..4].to_owned()).collect();
    assert_eq!(methods, ["POST", "POST", "PATC"]);
}

#[tokio::test(start_paused = true)]
async fn recording_never_waits() {
    let (client, seen) = server(|_| 0);
    let (recorder, task) = start(client);
    for n in 0..5000 {
        recorder.record("website", &website(), Event::normal(format!("Reason{n}"), "x"));
    }
    assert_eq!(recorder.dropped.load(Ordering::Relaxed), 4000);
    assert_eq!(seen.lock().len(), 0);
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn long_texts_are_cut_between_characters() {
    let (client, seen) = server(|_| 201);
    let (recorder, task) = start(client);
    let mut about = website();
    about.name = Some("w".repeat(253));
    recorder.record("website", &about, Event::normal("Scaled", "é".repeat(800)));
    drop(recorder);
    task.await.unwrap();
    let seen = seen.lock();
    assert_eq!(seen[0].1["note"].as_str().unwrap(), "é".repeat(512));
    assert_eq!(seen[0].1["metadata"]["name"].as_str().unwrap().len(), 253);
}
