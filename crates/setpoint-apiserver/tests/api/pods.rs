use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, SinkExt, StreamExt};
use http::{Method, Request};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use setpoint_apiserver::{
    Connection, ContainerRef, ExecExit, ExecOptions, ExecSession, Identity, Kubelet, KubeletError, LogOptions,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::client::{Client, server};

const PODS: &str = "/api/v1/namespaces/default/pods";

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

fn binding(node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "a"}, "target": {"kind": "Node", "name": node}})
}

/// Echoes the input of `exec` and fails with the number that the command names; without one it cannot start.
struct Echo;

impl Kubelet for Echo {
    fn logs(
        &self,
        container: ContainerRef,
        options: LogOptions,
    ) -> BoxFuture<'_, Result<BoxStream<'static, Bytes>, KubeletError>> {
        let line = format!("{}/{} {:?}\n", container.pod, container.container, options.tail_lines);
        async move { Ok(stream::iter([Bytes::from(line)]).boxed()) }.boxed()
    }

    fn exec(
        &self,
        _: ContainerRef,
        options: ExecOptions,
    ) -> BoxFuture<'_, Result<ExecSession, KubeletError>> {
        let (ours, theirs) = tokio::io::duplex(64);
        let (read, write) = tokio::io::split(theirs);
        let Ok(code) = options.command[1].parse() else {
            let error = KubeletError::Unready(format!("container c is not running: {}", options.command[1]));
            return async move { Err(error) }.boxed();
        };
        let (done, ended) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let (mut read, mut write) = tokio::io::split(ours);
            tokio::io::copy(&mut read, &mut write).await.unwrap();
            tokio::io::AsyncWriteExt::shutdown(&mut write).await.unwrap();
            let _ = done.send(());
        });
        let exit = async move {
            ended.await.unwrap();
            Ok(ExecExit { code })
        };
        let session = ExecSession {
            stdin: Some(Box::new(write)),
            stdout: Some(Box::new(read)),
            stderr: None,
            resize: None,
            exit: exit.boxed(),
        };
        async move { Ok(session) }.boxed()
    }

    fn attach(
        &self,
        container: ContainerRef,
        options: ExecOptions,
    ) -> BoxFuture<'_, Result<ExecSession, KubeletError>> {
        self.exec(container, options)
    }

    /// Port 80 answers with what it hears; nothing listens on any other.
    fn dial(&self, address: SocketAddr) -> BoxFuture<'_, Result<Box<dyn Connection>, KubeletError>> {
        if address.port() != 80 {
            let error = KubeletError::Failed(format!("{address} refuses"));
            return async move { Err(error) }.boxed();
        }
        let (ours, theirs) = tokio::io::duplex(64);
        tokio::spawn(async move {
            let (mut read, mut write) = tokio::io::split(ours);
            tokio::io::copy(&mut read, &mut write).await
        });
        async move { Ok(Box::new(theirs) as Box<dyn Connection>) }.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_once() {
    let client = Client::admin(&server());
    client.post(PODS, &pod("a")).await.expect(201);
    let path = format!("{PODS}/a");
    client.post(&format!("{path}/binding"), &binding("n1")).await.expect(201);
    let bound = client.get(&path).await.expect(200);
    assert_eq!((&bound["spec"]["nodeName"], &bound["metadata"]["generation"]), (&json!("n1"), &json!(1)));
    let again = client.post(&format!("{path}/binding"), &binding("n2")).await.expect(409);
    assert_eq!(
        again["message"],
        "Operation cannot be fulfilled on pods/binding \"a\": pod a is already assigned to node \"n1\""
    );
    let list = client.get(&format!("{PODS}?fieldSelector=spec.nodeName%3Dn1")).await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_running_pod_gets_its_grace() {
    let client = Client::admin(&server());
    client.post(PODS, &pod("a")).await.expect(201);
    let path = format!("{PODS}/a");
    client.post(&format!("{path}/binding"), &binding("n1")).await.expect(201);
    let going = client.delete(&path).await.expect(200);
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(going["metadata"]["deletionTimestamp"], "2026-01-02T03:04:35Z");
    let sooner = client.delete(&format!("{path}?gracePeriodSeconds=5")).await.expect(200);
    assert_eq!(sooner["metadata"]["deletionTimestamp"], "2026-01-02T03:04:10Z");
    let gone = client.delete(&format!("{path}?gracePeriodSeconds=0")).await.expect(200);
    assert_eq!(gone["kind"], "Pod");
    client.get(&path).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_asks_the_disruption_budget() {
    let client = Client::admin(&server());
    client.post(PODS, &pod("a")).await.expect(201);
    let status = json!({"status": {"phase": "Running"}});
    client.merge(&format!("{PODS}/a/status"), &status).await.expect(200);
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    client.post(budgets, &budget).await.expect(201);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}});
    let refused = client.post(&format!("{PODS}/a/eviction"), &eviction).await.expect(429);
    assert_eq!(refused["details"]["causes"][0]["reason"], "DisruptionBudget");
    let allowed = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1}});
    client.merge(&format!("{budgets}/b/status"), &allowed).await.expect(200);
    client.post(&format!("{PODS}/a/eviction"), &eviction).await.expect(201);
    client.get(&format!("{PODS}/a")).await.expect(404);
    let spent = client.get(&format!("{budgets}/b")).await.expect(200);
    assert_eq!(spent["status"]["disruptionsAllowed"], 0);
}

#[tokio::test]
async fn logs_and_commands_go_to_the_agent_of_the_node() {
    let api = server();
    let client = Client::admin(&api);
    client.post(PODS, &pod("a")).await.expect(201);
    client.post(&format!("{PODS}/a/binding"), &binding("n1")).await.expect(201);
    let unconnected = client.get(&format!("{PODS}/a/log")).await.expect(500);
    assert!(unconnected["message"].as_str().unwrap().contains("n1"), "{unconnected:#}");
    api.set_kubelet("n1", Arc::new(Echo));
    assert_eq!(client.get(&format!("{PODS}/a/log?tailLines=3")).await.expect(200), "a/c Some(3)\n");
    let wrong = client.get(&format!("{PODS}/a/log?container=x")).await.expect(400);
    assert_eq!(wrong["message"], "container x is not valid for pod a");

    let ask = |protocol: &str, query: &str| {
        Request::get(format!("{PODS}/a/exec?command=echo&stdin=true&stdout=true&{query}"))
            .header("connection", "Upgrade")
            .header("upgrade", protocol)
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("sec-websocket-protocol", "v5.channel.k8s.io")
            .body(Full::default())
            .unwrap()
    };
    let none = client.answer(ask("SPDY/3.1", "command=3")).await.expect(400);
    assert!(none["message"].as_str().unwrap().contains("none of the offered protocols"), "{none:#}");
    let unknown = client.answer(ask("gopher", "command=3")).await.expect(400);
    assert!(unknown["message"].as_str().unwrap().contains("cannot upgrade to \"gopher\""), "{unknown:#}");
    let wrong = client.answer(ask("SPDY/3.1", "command=3&container=x")).await.expect(400);
    assert_eq!(
        wrong["message"], "container x is not valid for pod a",
        "what is wrong comes before the protocol"
    );

    let response = client.send(ask("websocket", "command=waiting")).await;
    assert_eq!(response.status(), 101, "kubectl shows only errors that come after the switch");
    let upgraded = hyper::upgrade::on(response).await.unwrap();
    let mut socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, None).await;
    let ending = socket.next().await.unwrap().unwrap().into_data();
    assert_eq!(ending[0], 3);
    let ending: Value = serde_json::from_slice(&ending[1..]).unwrap();
    assert_eq!(
        (&ending["status"], &ending["message"]),
        (&json!("Failure"), &json!("container c is not running: waiting"))
    );

    let response = client.send(ask("websocket", "command=3")).await;
    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    let upgraded = hyper::upgrade::on(response).await.unwrap();
    let mut socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, None).await;
    socket.send(Message::binary(b"\0hello".to_vec())).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap().into_data(), "\u{1}hello");
    socket.send(Message::binary(vec![255, 0])).await.unwrap();
    let ending = socket.next().await.unwrap().unwrap().into_data();
    assert_eq!(ending[0], 3);
    let ending: Value = serde_json::from_slice(&ending[1..]).unwrap();
    assert_eq!(
        (&ending["reason"], &ending["details"]["causes"][0]["message"]),
        (&json!("NonZeroExitCode"), &json!("3"))
    );
    let Some(Ok(Message::Close(Some(close)))) = socket.next().await else {
        panic!("the server closes at the end")
    };
    assert_eq!(u16::from(close.code), 1000);
}

/// A frame of SPDY/3.1.
fn spdy_frame(first: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap() | u32::from(flags) << 24;
    [&first.to_be_bytes()[..], &length.to_be_bytes(), payload].concat()
}

/// The opening of a stream, its headers in a stored block: the first of a connection begins the compression.
fn spdy_open(stream: u32, kind: &str) -> Vec<u8> {
    let mut headers = 1_u32.to_be_bytes().to_vec();
    for part in ["streamtype", kind] {
        headers.extend(u32::try_from(part.len()).unwrap().to_be_bytes());
        headers.extend(part.as_bytes());
    }
    let mut payload = [&stream.to_be_bytes()[..], &[0; 6]].concat();
    if stream == 1 {
        payload.extend([0x78, 0xbb, 0, 0, 0, 0]);
    }
    let length = u16::try_from(headers.len()).unwrap();
    payload.push(0);
    payload.extend(length.to_le_bytes());
    payload.extend((!length).to_le_bytes());
    payload.extend(headers);
    payload.extend([0, 0, 0, 0xff, 0xff]);
    spdy_frame(0x8003_0001, 0, &payload)
}

#[tokio::test]
async fn commands_over_spdy() {
    let api = server();
    let client = Client::admin(&api);
    client.post(PODS, &pod("a")).await.expect(201);
    client.post(&format!("{PODS}/a/binding"), &binding("n1")).await.expect(201);
    api.set_kubelet("n1", Arc::new(Echo));
    let ask = |query: &str| {
        Request::post(format!("{PODS}/a/exec?command=echo&{query}"))
            .header("connection", "Upgrade")
            .header("upgrade", "SPDY/3.1")
            .header("x-stream-protocol-version", "v5.channel.k8s.io")
            .header("x-stream-protocol-version", "v4.channel.k8s.io")
            .body(Full::default())
            .unwrap()
    };
    let response = client.send(ask("command=3&stdin=true&stdout=true")).await;
    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["upgrade"], "SPDY/3.1");
    assert_eq!(response.headers()["x-stream-protocol-version"], "v4.channel.k8s.io");
    let mut stream = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    let (error, stdin, stdout) = (1_u32, 3, 5);
    stream.write_all(&spdy_open(error, "error")).await.unwrap();
    stream.write_all(&spdy_open(stdin, "stdin")).await.unwrap();
    stream.write_all(&spdy_frame(0x8003_0006, 0, &7_u32.to_be_bytes())).await.unwrap();
    stream.write_all(&spdy_open(stdout, "stdout")).await.unwrap();
    // The end of the input comes with its last bytes.
    stream.write_all(&spdy_frame(stdin, 1, b"hello")).await.unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).await.unwrap();

    let (mut rest, mut data, mut control, mut ended) =
        (said.as_slice(), BTreeMap::new(), Vec::new(), Vec::new());
    while !rest.is_empty() {
        let word = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().unwrap());
        let (first, flags, length) = (word(0), rest[4], (word(4) & 0x00ff_ffff) as usize);
        if first >> 31 == 1 {
            control.push((first & 0xffff, word(8)));
        } else {
            data.entry(first).or_insert_with(Vec::new).extend_from_slice(&rest[8..8 + length]);
            ended.extend((flags == 1).then_some(first));
        }
        rest = &rest[8 + length..];
    }
    // Replies to the openings, and to the ping.
    assert_eq!(control, [(2, error), (2, stdin), (6, 7), (2, stdout)]);
    assert_eq!(data[&stdout], b"hello");
    assert_eq!(ended, [error, stdout]);
    let ending: Value = serde_json::from_slice(&data[&error]).unwrap();
    assert_eq!(
        (&ending["reason"], &ending["details"]["causes"][0]["message"]),
        (&json!("NonZeroExitCode"), &json!("3"))
    );

    // A client that never opens what it announced is let go.
    tokio::time::pause();
    let response = client.send(ask("command=3&stdin=true&stdout=true")).await;
    let mut stream = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    stream.write_all(&spdy_open(error, "error")).await.unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).await.unwrap();
    assert_eq!(said.get(..4), Some(&0x8003_0002_u32.to_be_bytes()[..]), "one stream was accepted");
}

/// As the clients for Python and JavaScript forward ports: channels 0 and 1 for the first port, 2 and 3 for the second.
#[tokio::test]
async fn ports_over_channels() {
    let api = server();
    let client = Client::admin(&api);
    client.post(PODS, &pod("a")).await.expect(201);
    client.post(&format!("{PODS}/a/binding"), &binding("n1")).await.expect(201);
    let status = json!({"status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}});
    client.merge(&format!("{PODS}/a/status"), &status).await.expect(200);
    api.set_kubelet("n1", Arc::new(Echo));
    let ask = |query: &str| {
        Request::get(format!("{PODS}/a/portforward{query}"))
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("sec-websocket-protocol", "v4.channel.k8s.io")
            .body(Full::default())
            .unwrap()
    };
    for (query, why) in
        [("", "at least 1 port"), ("?ports=80,0", "\"0\" is no port"), ("?ports=x", "\"x\" is no port")]
    {
        let refused = client.answer(ask(query)).await.expect(400);
        assert!(refused["message"].as_str().unwrap().contains(why), "{refused:#}");
    }
    let response = client.send(ask("?ports=80,81")).await;
    assert_eq!(response.headers()["sec-websocket-protocol"], "v4.channel.k8s.io");
    let upgraded = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    let mut socket = WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await;
    let mut said = BTreeMap::<u8, Vec<u8>>::new();
    let hear = async |socket: &mut WebSocketStream<_>, said: &mut BTreeMap<u8, Vec<u8>>| {
        let message = StreamExt::next(socket).await.unwrap().unwrap().into_data();
        said.entry(message[0]).or_default().extend_from_slice(&message[1..]);
    };
    while said.len() < 4 || said[&3].len() == 2 {
        hear(&mut socket, &mut said).await;
    }
    assert_eq!((&said[&0], &said[&1], &said[&2]), (&vec![80, 0], &vec![80, 0], &vec![81, 0]));
    assert!(
        String::from_utf8_lossy(&said[&3]).contains("port 81 of the pod: 10.0.0.1:81 refuses"),
        "{said:?}"
    );
    socket.send(Message::binary(b"\0hello".to_vec())).await.unwrap();
    while said[&0].len() < 7 {
        hear(&mut socket, &mut said).await;
    }
    assert_eq!(&said[&0][2..], b"hello");
}

#[tokio::test(start_paused = true)]
async fn services_get_addresses_and_ports_of_their_own() {
    let client = Client::admin(&server());
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, spec: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
    let a = client.post(services, &service("a", json!({"ports": [{"port": 80}]}))).await.expect(201);
    let address = a["spec"]["clusterIP"].as_str().unwrap();
    assert!(address.starts_with("10.96."), "{address}");
    let taken =
        client.post(services, &service("b", json!({"clusterIP": address, "ports": [{"port": 80}]}))).await;
    assert!(taken.expect(422)["message"].as_str().unwrap().contains("provided IP is already allocated"));
    let headless =
        client.post(services, &service("c", json!({"clusterIP": "None", "ports": [{"port": 80}]}))).await;
    assert_eq!(headless.expect(201)["spec"]["clusterIP"], "None");
    let node =
        client.post(services, &service("d", json!({"type": "NodePort", "ports": [{"port": 80}]}))).await;
    let node = node.expect(201);
    assert!((30000..32768).contains(&node["spec"]["ports"][0]["nodePort"].as_u64().unwrap()), "{node:#}");
    let moved = client
        .merge(
            &format!("{services}/a"),
            &json!({"spec": {"clusterIP": "10.96.9.9", "clusterIPs": ["10.96.9.9"]}}),
        )
        .await;
    moved.expect(422);
    let kept =
        client.merge(&format!("{services}/a"), &json!({"spec": {"selector": {"x": "y"}}})).await.expect(200);
    assert_eq!(kept["spec"]["clusterIP"], address);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_goes_when_it_is_finalized() {
    let api = server();
    let client = Client::admin(&api);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    client.post("/api/v1/namespaces", &namespace).await.expect(201);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    client.post("/api/v1/namespaces/team/configmaps", &map).await.expect(201);
    let contents = api.namespace_contents("team");
    assert_eq!(contents.iter().map(|found| found.plural.as_str()).collect::<Vec<_>>(), ["configmaps"]);
    let mut going = client.delete("/api/v1/namespaces/team").await.expect(200);
    going["spec"]["finalizers"] = json!([]);
    client.put("/api/v1/namespaces/team/finalize", &going).await.expect(200);
    client.get("/api/v1/namespaces/team").await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn a_service_account_acts_by_its_token() {
    let api = server();
    let client = Client::admin(&api);
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "op"}});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    client.post(accounts, &account).await.expect(201);
    let short = json!({"spec": {"expirationSeconds": 10}});
    client.post(&format!("{accounts}/op/token"), &short).await.expect(422);
    let answer =
        client.post(&format!("{accounts}/op/token"), &json!({"spec": {"expirationSeconds": 600}})).await;
    let token = answer.expect(201)["status"]["token"].as_str().unwrap().to_owned();
    let review = || {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
        let client = &client;
        async move {
            client.post("/apis/authentication.k8s.io/v1/tokenreviews", &body).await.expect(201)["status"]
                .clone()
        }
    };
    let seen = review().await;
    assert_eq!(seen["user"]["username"], "system:serviceaccount:default:op");
    tokio::time::advance(std::time::Duration::from_secs(601)).await;
    let expired = review().await;
    assert_eq!(expired["error"], "[invalid bearer token, service account token has expired]");

    let mine = Client(api.service(Identity::service_account("default", "op", "")));
    let ask = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "list", "resource": "pods", "namespace": "default"}}});
    let answer = mine.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &ask).await.expect(201);
    assert_eq!(answer["status"]["allowed"], false);
}

#[tokio::test(start_paused = true)]
async fn no_grace_leads_to_a_date_that_nobody_can_read() {
    let client = Client::admin(&server());
    let pods = "/api/v1/namespaces/default/pods";
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    pod["spec"]["terminationGracePeriodSeconds"] = i64::MAX.into();
    client.post(pods, &pod).await.expect(201);
    for (seconds, at) in [(i64::MAX, "2126-03-"), (60, "2026-01-02T03:05:05Z")] {
        let options = json!({"gracePeriodSeconds": seconds});
        let path = format!("{pods}/p");
        let deleted =
            client.call(Method::DELETE, &path, "application/json", Some(&options)).await.expect(200);
        let time = deleted["metadata"]["deletionTimestamp"].as_str().unwrap();
        assert!(time.starts_with(at), "{seconds}: {time}");
    }
}
