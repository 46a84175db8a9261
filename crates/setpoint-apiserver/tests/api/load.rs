//! Thousands of watches, most of which nothing happens to, and clients that do not read.

use std::future::Future;
use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use http::Request;
use http_body::Body;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use setpoint_apiserver::{ApiServer, Identity, Serving};
use tokio::time::{Instant, timeout};

use crate::client::{Client, server};
use crate::network::connect;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

#[tokio::test(start_paused = true)]
async fn five_thousand_idle_watches_get_bookmarks_and_news() {
    let api = server();
    let client = Client::admin(&api);
    let mut watches = Vec::new();
    for _ in 0..5000 {
        watches.push(client.watch(&format!("{MAPS}?watch=true&allowWatchBookmarks=true")).await);
    }
    let (start, revision) = (Instant::now(), api.revision());
    // One says where the present begins, the next one comes after a minute.
    for _ in 0..2 {
        let bookmarks = join_all(watches.iter_mut().map(crate::client::Lines::brief)).await;
        assert!(bookmarks.iter().all(|line| line == "BOOKMARK -"));
    }
    assert_eq!((start.elapsed(), api.revision()), (Duration::from_secs(60), revision));
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    client.post(MAPS, &map).await.expect(201);
    let news = join_all(watches.iter_mut().map(crate::client::Lines::brief)).await;
    assert!(news.iter().all(|line| line == "ADDED a"));
    assert_eq!(start.elapsed(), Duration::from_secs(60), "nobody waits for news");
}

/// The body of a watch over a socket.
struct Watch {
    body: Incoming,
    rest: Vec<u8>,
    /// How many bytes came.
    came: usize,
}

impl Watch {
    fn request(serving: &Serving, token: &str, path: &str) -> Request<Empty<Bytes>> {
        let request = Request::get(format!("https://{}{path}?watch=true", serving.address()));
        let request = request.header("host", serving.address().to_string()).header("authorization", token);
        request.body(Empty::new()).unwrap()
    }

    fn new(response: http::Response<Incoming>) -> Self {
        assert_eq!(response.status(), 200);
        Self { body: response.into_body(), rest: Vec::new(), came: 0 }
    }

    /// The next event; `None` at the end, also one without a farewell.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let data = self.body.frame().await?.ok()?.into_data().unwrap_or_default();
            self.came += data.len();
            self.rest.extend_from_slice(&data);
        }
    }
}

/// What comes within a time that no machine needs.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(60), future)
        .await
        .unwrap_or_else(|_| panic!("after a minute, still no {what}"))
}

async fn watch_alone(api: &ApiServer, serving: &Serving, token: &str, path: &str) -> Watch {
    let stream = connect(api, serving.address(), "http/1.1").await;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    Watch::new(sender.send_request(Watch::request(serving, token, path)).await.unwrap())
}

/// Two thousand watches on twenty connections.
async fn watch_together(api: &ApiServer, serving: &Serving, token: &str, path: &str) -> Vec<Watch> {
    let mut watches = Vec::new();
    for _ in 0..20 {
        let stream = connect(api, serving.address(), "h2").await;
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        for _ in 0..100 {
            watches
                .push(Watch::new(sender.send_request(Watch::request(serving, token, path)).await.unwrap()));
        }
    }
    watches
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_costs_little_and_delays_nobody() {
    const CHANGES: usize = 60;
    const SIZE: usize = 700 << 10;
    let api = server();
    let client = Client::admin(&api);
    let serving = api.serve(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let token = format!("Bearer {}", api.issue_token(Identity::admin()).unwrap());
    let mut idle = watch_together(&api, &serving, &token, SECRETS).await;
    let mut slow = watch_alone(&api, &serving, &token, MAPS).await;
    let mut reader = watch_alone(&api, &serving, &token, MAPS).await;
    for change in 0..CHANGES {
        let name = format!("big-{change}");
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "x".repeat(SIZE)}});
        client.post(MAPS, &map).await.expect(201);
        let event = soon("event for the one who reads", reader.next()).await.unwrap();
        assert_eq!(event["object"]["metadata"]["name"], name);
    }
    // Beyond what lay in sockets and in the log of events nothing was kept for it: it has to begin anew.
    let last = soon("end of the slow one's watch", async {
        let mut last = None;
        while let Some(event) = slow.next().await {
            last = Some(event);
        }
        last
    })
    .await
    .unwrap();
    assert_eq!((&last["type"], &last["object"]["reason"]), (&json!("ERROR"), &json!("Expired")));
    assert!(slow.came < CHANGES * SIZE / 2, "{} of {} bytes", slow.came, CHANGES * SIZE);

    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}});
    client.post(SECRETS, &secret).await.expect(201);
    let news = soon("event for all", join_all(idle.iter_mut().map(Watch::next))).await;
    assert!(news.iter().flatten().filter(|event| event["object"]["metadata"]["name"] == "a").count() == 2000);
    drop(serving);
    let ends = soon("end of all watches", join_all(idle.iter_mut().map(Watch::next))).await;
    assert!(ends.iter().all(Option::is_none), "a server that is gone says nothing more");
}

/// Sends a list, and gives its bytes, and whether they were made while they were read.
async fn large_list(client: &Client, accept: &str, encoding: &str) -> (Vec<u8>, bool) {
    let request = Request::get(MAPS).header("accept", accept).header("accept-encoding", encoding);
    let response = client.send(request.body(Full::default()).unwrap()).await;
    assert_eq!(response.status(), 200, "{accept}");
    let packed = response.headers().contains_key("content-encoding");
    assert_eq!(packed, encoding == "gzip", "{accept}");
    let mut body = response.into_body();
    let in_pieces = body.size_hint().exact().is_none();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        assert!(data.len() < 80 << 10, "{accept}: a piece of {} bytes", data.len());
        bytes.extend_from_slice(&data);
    }
    if packed {
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(bytes.as_slice()).read_to_end(&mut unpacked).unwrap();
        bytes = unpacked;
    }
    (bytes, in_pieces)
}

/// Otherwise a hundred lists that nobody reads would be a hundred copies of everything.
#[tokio::test(start_paused = true)]
async fn a_large_list_is_made_while_it_is_read() {
    const OBJECTS: usize = 700;
    let client = Client::admin(&server());
    for n in 0..OBJECTS {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{n:03}")}, "data": {"a": "x".repeat(2000)}});
        client.post(MAPS, &map).await.expect(201);
    }
    for (accept, kind, items, name) in [
        ("application/json", "ConfigMapList", "items", "/metadata/name"),
        ("application/json;as=Table;v=v1;g=meta.k8s.io", "Table", "rows", "/object/metadata/name"),
        (
            "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
            "PartialObjectMetadataList",
            "items",
            "/metadata/name",
        ),
    ] {
        for encoding in ["", "gzip"] {
            let (bytes, in_pieces) = large_list(&client, accept, encoding).await;
            assert!(in_pieces, "{accept}");
            let list: Value = serde_json::from_slice(&bytes).unwrap();
            let all = list[items].as_array().unwrap();
            let named = |index: usize| all[index].pointer(name).and_then(Value::as_str).unwrap();
            assert_eq!((all.len(), named(0), named(OBJECTS - 1)), (OBJECTS, "m000", "m699"), "{accept}");
            assert_eq!(list["kind"], kind);
        }
    }
    let protobuf = "application/vnd.kubernetes.protobuf";
    let (plain, in_pieces) = large_list(&client, protobuf, "").await;
    assert!(in_pieces);
    let (unpacked, _) = large_list(&client, protobuf, "gzip").await;
    assert_eq!(plain, unpacked);
    // The magic number, the list's kind, the list with its length, no encoding, no content type.
    let kind = plain[5] as usize;
    let raw = &plain[6 + kind..plain.len() - 4];
    assert_eq!((raw[0], plain.ends_with(&[0x1a, 0, 0x22, 0])), (0x12, true));
    let size = raw[1..].iter().position(|byte| *byte < 0x80).unwrap() + 1;
    let length = raw[1..=size].iter().rev().fold(0, |all, byte| all << 7 | usize::from(byte & 0x7f));
    assert_eq!(length, raw.len() - 1 - size);
    let text = String::from_utf8_lossy(&plain);
    let names = (0..OBJECTS).filter(|n| text.contains(&format!("m{n:03}")));
    assert_eq!(names.count(), OBJECTS);
}
