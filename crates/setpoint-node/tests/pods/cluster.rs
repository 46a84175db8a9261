//! Cases with a whole cluster: Services, names, the kubelet, a StatefulSet.

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use setpoint_cluster::kubelet::{Runtime, Signal};
use setpoint_node::ProxyMode;

use crate::DIRECTORY;
use crate::cases::{API_PORT, enter, redis, world};
use crate::machine::World;

/// Applies an object as a test's own manager.
async fn apply<K>(world: &World, object: serde_json::Value) -> K
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug,
    K: serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(world.client.clone(), "default");
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    let mut object = object;
    object["apiVersion"] = K::api_version(&()).into();
    object["kind"] = K::kind(&()).into();
    api.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&object)).await.unwrap()
}

pub async fn services_and_names(world: &World) {
    let Some((one, first)) = redis(world, 0, "one").await else { return };
    let Some((two, _)) = redis(world, 1, "two").await else { return };
    let client = world.pod("client").await;
    let id = client.start(&client.script("sleep 1000").await).await;
    let ports = json!([{"name": "redis", "port": 6379, "targetPort": 7000}]);
    let service: Service =
        apply(world, json!({"metadata": {"name": "orders"}, "spec": {"ports": ports}})).await;
    let address = service.spec.unwrap().cluster_ip.unwrap();
    apply::<Service>(
        world,
        json!({"metadata": {"name": "nodes"}, "spec": {"clusterIP": "None", "ports": ports}}),
    )
    .await;
    let slice = |service: &str, endpoints: serde_json::Value| {
        json!({
            "metadata": {"name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "ports": [{"name": "redis", "port": 7000, "protocol": "TCP"}],
            "endpoints": endpoints,
        })
    };
    let endpoints = json!([
        {"addresses": [one.address], "hostname": "one", "conditions": {"ready": true}},
        {"addresses": [two.address], "hostname": "two", "conditions": {"ready": true}},
    ]);
    apply::<EndpointSlice>(world, slice("orders", endpoints.clone())).await;
    apply::<EndpointSlice>(world, slice("nodes", endpoints)).await;

    // By its short name, from a pod; both endpoints get connections.
    client.until(&id, &["redis-cli", "-h", "orders", "ping"], |output| output.contains("PONG")).await;
    let ids = [
        "sh",
        "-c",
        "for i in $(seq 20); do redis-cli -h orders info server | grep run_id; done | sort -u | wc -l",
    ];
    client.until(&id, &ids, |count| count.trim() == "2").await;
    // A pod reaches itself through the Service, and the server sees the client's own address otherwise.
    one.until(&first, &ids, |count| count.trim() == "2").await;
    let own = client.address.to_string();
    client
        .until(&id, &["redis-cli", "-h", "orders", "client", "info"], |info| {
            info.contains(&format!("addr={own}:"))
        })
        .await;
    // From the main process, where operators run.
    let stream = tokio::net::TcpStream::connect((address.as_str(), 6379)).await;
    assert!(stream.is_ok(), "{stream:?}");

    let (_, hosts) = client.exec(&id, &["getent", "ahostsv4", "one.nodes.default.svc.cluster.local"]).await;
    assert!(hosts.starts_with(&one.address.to_string()), "{hosts}");
    let (_, hosts) = client.exec(&id, &["getent", "hosts", "two.nodes"]).await;
    assert!(hosts.starts_with(&two.address.to_string()), "{hosts}");
    let (_, hosts) = client.exec(&id, &["getent", "hosts", "kubernetes.default"]).await;
    assert!(hosts.starts_with("10.96.0.1 "), "{hosts}");
    let (_, hosts) = client.exec(&id, &["getent", "hosts", &one.address.to_string()]).await;
    assert!(hosts.contains("one.nodes.default.svc.cluster.local"), "{hosts}");
    assert_eq!(client.exec(&id, &["getent", "hosts", "nobody.default.svc.cluster.local"]).await.0, 2);

    // Without endpoints connections are refused, at once.
    apply::<EndpointSlice>(world, slice("orders", json!([]))).await;
    let refused = ["sh", "-c", "timeout 5 redis-cli -h orders ping 2>&1 || true"];
    client.until(&id, &refused, |output| output.contains("Connection refused")).await;
    for pod in [one, two, client] {
        pod.remove().await;
    }
}

/// Waits until a pod is as wanted.
async fn until(world: &World, name: &str, what: &str, done: &dyn Fn(&Pod) -> bool) -> Pod {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    let mut last = None;
    for _ in 0..400 {
        last = pods.get_opt(name).await.unwrap();
        if last.as_ref().is_some_and(done) {
            return last.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}; at last: {}", serde_json::to_string_pretty(&last.and_then(|pod| pod.status)).unwrap());
}

fn ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}

/// What the machine offers as the distribution's own image.
fn own_image(world: &World) -> String {
    let own = |name: &String| name.starts_with("debian") || name.starts_with("ubuntu");
    world.nodes[0].images().into_iter().find(own).unwrap()
}

/// As with kube-proxy: a TCP connection stays where it is, what a UDP client sends goes to an endpoint that is left.
pub async fn clients_of_a_removed_endpoint(world: &World) {
    let server = "use IO::Socket::INET; my $u = IO::Socket::INET->new(LocalPort => 5300, Proto => 'udp'); \
        my $t = IO::Socket::INET->new(LocalPort => 5300, Listen => 5); \
        if (fork) { while ($u->recv(my $b, 9)) { $u->send($ENV{HOSTNAME}) } } \
        while (my $c = $t->accept) { while (<$c>) { print $c \"$ENV{HOSTNAME}\\n\" } }";
    let client = "use IO::Socket::INET; $| = 1; my $a = $ENV{SERVICE}; \
        my ($u, $t); until ($t) { $t = IO::Socket::INET->new(\"$a:53\") or select(undef, undef, undef, 0.1) } \
        $u = IO::Socket::INET->new(PeerAddr => \"$a:53\", Proto => 'udp'); \
        while (1) { $u->send('x'); vec(my $r = '', fileno($u), 1) = 1; my $b = ''; \
            if (select($r, undef, undef, 0.2)) { $u->recv($b, 9) } \
            print $t \"x\\n\"; my $l = <$t>; print \"udp $b tcp $l\"; select(undef, undef, undef, 0.05) }";
    let start = async |pod: &crate::machine::TestPod<'_>, program: &str, service: &str| {
        let mut spec = pod.command("debian:12", &["perl", "-e", program]).await;
        spec.env.push(("SERVICE".into(), service.into()));
        pod.start(&spec).await
    };
    let (one, two) = (world.pod_with(0, "one", vec![]).await, world.pod_with(1, "two", vec![]).await);
    for pod in [&one, &two] {
        start(pod, server, "").await;
    }
    let ports = json!([{"name": "t", "port": 53, "targetPort": 5300}, {"name": "u", "port": 53, "targetPort": 5300, "protocol": "UDP"}]);
    let service: Service =
        apply(world, json!({"metadata": {"name": "both"}, "spec": {"ports": ports}})).await;
    let slice = |address: std::net::IpAddr| {
        json!({
            "metadata": {"name": "both-1", "labels": {"kubernetes.io/service-name": "both"}},
            "addressType": "IPv4",
            "ports": [{"name": "t", "port": 5300, "protocol": "TCP"}, {"name": "u", "port": 5300, "protocol": "UDP"}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
        })
    };
    apply::<EndpointSlice>(world, slice(one.address)).await;
    let asker = world.pod("asker").await;
    let id = start(&asker, client, &service.spec.unwrap().cluster_ip.unwrap()).await;
    let says = async |line: &str| {
        for _ in 0..200 {
            if asker.logs(&id).await.lines().last() == Some(line) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the client does not come to say {line:?}: {}", asker.logs(&id).await);
    };
    says("udp one tcp one").await;
    apply::<EndpointSlice>(world, slice(two.address)).await;
    says("udp two tcp one").await;
    for pod in [one, two, asker] {
        pod.remove().await;
    }
}

pub async fn a_pod_whose_first_process_is_killed(world: &World) {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    let script = "echo run >> /memory/runs; echo run >> /data/runs; exec sleep 424242";
    let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
    let pod = json!({
        "metadata": {"name": "resurrected"},
        "spec": {
            "nodeName": "node-1",
            "terminationGracePeriodSeconds": 1,
            "initContainers": [{"name": "init", "image": own_image(world), "command": ["sh", "-c", "echo init >> /data/runs"],
                "volumeMounts": [mount("data")]}],
            "containers": [{"name": "main", "image": own_image(world), "command": ["sh", "-c", script],
                "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1},
                "volumeMounts": [mount("data"), mount("memory")]}],
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}}],
        },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let before = until(world, "resurrected", "ready", &ready).await;
    let first = first_process_of("sleep\x00424242\x00");
    nix::sys::signal::kill(first, nix::sys::signal::Signal::SIGKILL).unwrap();

    let restarted = |pod: &Pod| {
        let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
        ready(pod) && containers.is_some_and(|all| all[0].restart_count == 1)
    };
    let after = until(world, "resurrected", "ready again after one restart", &restarted).await;
    assert_eq!(after.metadata.uid, before.metadata.uid);
    let (old, new) = (before.status.unwrap(), after.status.unwrap());
    assert_ne!(new.pod_ip, old.pod_ip, "a new sandbox has a new address");
    assert_eq!(new.pod_ips.unwrap().len(), 1);
    assert_eq!(new.init_container_statuses.unwrap()[0].restart_count, 1, "init containers run again");
    assert_ne!(first_process_of("sleep\x00424242\x00"), first);
    // Volumes are the pod's, not the sandbox's.
    let volumes = world.data.join("pods").join(after.metadata.uid.as_deref().unwrap()).join("volumes");
    let runs = |volume: &str| std::fs::read_to_string(volumes.join(volume).join("runs")).unwrap();
    assert_eq!(
        (runs("data"), runs("memory")),
        ("init\nrun\ninit\nrun\n".to_owned(), "run\nrun\n".to_owned())
    );

    let events: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(world.client.clone(), "default");
    let events = events.list(&kube::api::ListParams::default()).await.unwrap().items;
    let changed =
        |event: &&k8s_openapi::api::events::v1::Event| event.reason.as_deref() == Some("SandboxChanged");
    assert_eq!(events.iter().filter(changed).count(), 1, "{events:#?}");
    delete(&pods, "resurrected").await;
}

/// The process that started the one with this command line.
fn first_process_of(command: &str) -> nix::unistd::Pid {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let found = processes
        .map(|entry| entry.path())
        .find(|path| std::fs::read_to_string(path.join("cmdline")).is_ok_and(|line| line == command));
    let status = std::fs::read_to_string(found.unwrap().join("status")).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
    nix::unistd::Pid::from_raw(parent.trim().parse().unwrap())
}

pub async fn a_pod_through_the_kubelet(world: &World) {
    let _server = tokio::net::TcpListener::bind((setpoint_node::GATEWAY, API_PORT)).await.unwrap();
    apply::<ConfigMap>(world, json!({"metadata": {"name": "config"}, "data": {"greeting": "hello\n"}})).await;
    let image = own_image(world);
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    let pod = json!({
        "metadata": {"name": "whole"},
        "spec": {
            "nodeName": "node-1",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsUser": 999, "fsGroup": 999},
            "containers": [{
                "name": "main", "image": image,
                "command": ["bash", "-c", "trap 'exit 0' TERM; cat /config/greeting; \
                    until exec 3<>/dev/tcp/kubernetes.default/443; do sleep 0.1; done; echo reached the API server; \
                    while :; do sleep 0.05; done"],
                "ports": [{"containerPort": 7000, "hostPort": 17000}],
                "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "readinessProbe": {"exec": {"command": ["sh", "-c", "test -n \"$POD_IP\""]}, "periodSeconds": 1},
                "volumeMounts": [{"name": "config", "mountPath": "/config"}, {"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "config", "configMap": {"name": "config"}}, {"name": "data", "emptyDir": {}}],
        },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let found = until(world, "whole", "ready", &ready).await;
    assert!(found.status.as_ref().unwrap().pod_ip.as_ref().unwrap().starts_with("10.244."));
    let said = note(world, "whole", "NotSupported").await;
    assert!(said.contains("hostPort 17000 of container \"main\" has no effect"), "{said}");
    let logs = world.data.join("pods").join(found.metadata.uid.unwrap()).join("logs");
    let log = || -> String {
        let files = std::fs::read_dir(&logs).unwrap().flatten();
        files.map(|file| std::fs::read_to_string(file.path()).unwrap_or_default()).collect()
    };
    for _ in 0..200 {
        if log().contains("reached") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(
        log().contains(" stdout F hello\n") && log().contains(" stdout F reached the API server\n"),
        "{}",
        log()
    );
    world.machine.signal("default", "whole", "main", Signal::Kill).await.unwrap();
    let restarted = |pod: &Pod| {
        let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
        statuses
            .and_then(|all| all.first()?.last_state.as_ref()?.terminated.as_ref().map(|end| end.exit_code))
            == Some(137)
    };
    until(world, "whole", "the exit code of the first run", &restarted).await;
    delete(&pods, "whole").await;
}

/// Waits for an event of a pod and gives its text.
async fn note(world: &World, pod: &str, reason: &str) -> String {
    let events: Api<Event> = Api::namespaced(world.client.clone(), "default");
    let mut seen = Vec::new();
    for _ in 0..200 {
        seen = events.list(&ListParams::default()).await.unwrap().items;
        let wanted = seen.iter().find(|event| {
            event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(pod)
                && event.reason.as_deref() == Some(reason)
        });
        if let Some(event) = wanted {
            return event.note.clone().unwrap_or_default();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let seen: Vec<_> = seen.iter().map(|event| (&event.reason, &event.note)).collect();
    panic!("no event {reason} of pod {pod}; there are {seen:?}");
}

/// Deletes a pod and waits until it is gone.
async fn delete(pods: &Api<Pod>, name: &str) {
    pods.delete(name, &DeleteParams::default()).await.unwrap();
    for _ in 0..400 {
        if pods.get_opt(name).await.unwrap().is_none() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("pod {name} should be gone; at last: {:#?}", pods.get_opt(name).await);
}

/// A second machine cannot be had in one sandbox, so that this runs the proxy beside it, in a process of its own.
pub async fn services_without_nftables(world: &World) {
    let mut command = tokio::process::Command::new(env::current_exe().unwrap());
    command.env(crate::ROLE, "proxy").env(DIRECTORY, world.data.join("proxy"));
    let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

/// Serves a Service by the proxy, in a sandbox inside the sandbox.
pub fn proxy() -> ExitCode {
    let sandbox = match enter() {
        Ok(sandbox) => sandbox,
        Err(status) => return status,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let world = world(sandbox, ProxyMode::Userspace).await;
        let Some((server, id)) = redis(&world, 0, "server").await else { return };
        let ports = json!([{"name": "redis", "port": 6379, "targetPort": 7000}]);
        apply::<Service>(&world, json!({"metadata": {"name": "orders"}, "spec": {"ports": ports}})).await;
        let slice = |ready: bool| {
            json!({
                "metadata": {"name": "orders-1", "labels": {"kubernetes.io/service-name": "orders"}},
                "addressType": "IPv4",
                "ports": [{"name": "redis", "port": 7000, "protocol": "TCP"}],
                "endpoints": [{"addresses": [server.address], "conditions": {"ready": ready}}],
            })
        };
        apply::<EndpointSlice>(&world, slice(true)).await;
        server.until(&id, &["redis-cli", "-h", "orders", "ping"], |output| output.contains("PONG")).await;
        apply::<EndpointSlice>(&world, slice(false)).await;
        let refused = ["sh", "-c", "timeout 5 redis-cli -h orders ping 2>&1 || true"];
        server.until(&id, &refused, |output| output.contains("Connection refused")).await;
        server.remove().await;
    });
    ExitCode::SUCCESS
}

pub async fn a_stateful_set_of_servers(world: &World) {
    if !world.nodes[0].images().iter().any(|image| image == "redis:7.0") {
        println!("    (redis-server 7.0 is not installed: skipped)");
        return;
    }
    let labels = json!({"app": "db"});
    let ports = json!([{"name": "redis", "port": 6379, "targetPort": "redis"}]);
    let headless = json!({"clusterIP": "None", "selector": labels, "ports": ports});
    apply::<Service>(world, json!({"metadata": {"name": "db"}, "spec": headless})).await;
    let set = json!({
        "metadata": {"name": "db"},
        "spec": {
            "serviceName": "db", "replicas": 2, "podManagementPolicy": "Parallel", "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "securityContext": {"runAsUser": 999, "runAsNonRoot": true, "fsGroup": 999},
                    "containers": [{
                        "name": "redis", "image": "redis:7.0",
                        "command": ["redis-server", "--appendonly", "yes", "--dir", "/data", "--protected-mode", "no"],
                        "ports": [{"name": "redis", "containerPort": 6379}],
                        "readinessProbe": {"exec": {"command": ["redis-cli", "ping"]}, "periodSeconds": 1},
                        "securityContext": {"readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    }],
                },
            },
            "volumeClaimTemplates": [{
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }],
        },
    });
    apply::<StatefulSet>(world, set).await;
    let sets: Api<StatefulSet> = Api::namespaced(world.client.clone(), "default");
    let ready = async || {
        let mut last = None;
        for _ in 0..400 {
            last = sets.get("db").await.unwrap().status;
            if last.as_ref().is_some_and(|status| status.ready_replicas == Some(2)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
        let pods = pods.list(&kube::api::ListParams::default().labels("app=db")).await.unwrap();
        let pods: Vec<_> = pods
            .items
            .into_iter()
            .map(|pod| (pod.metadata.name, pod.spec.unwrap().node_name, pod.status))
            .collect();
        panic!("two ready replicas; at last: {last:?} {}", serde_json::to_string_pretty(&pods).unwrap());
    };
    ready().await;
    let client = world.pod("db-client").await;
    let id = client.start(&client.script("sleep 1000").await).await;
    client
        .until(&id, &["redis-cli", "-h", "db-1.db", "set", "key", "kept"], |output| output.contains("OK"))
        .await;

    // A new pod of the same name finds its data, at a new address.
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    let uid = pods.get("db-1").await.unwrap().metadata.uid;
    pods.delete("db-1", &DeleteParams::default()).await.unwrap();
    for _ in 0..400 {
        if pods.get_opt("db-1").await.unwrap().is_some_and(|pod| pod.metadata.uid != uid) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ready().await;
    client.until(&id, &["redis-cli", "-h", "db-1.db", "get", "key"], |output| output.contains("kept")).await;
    sets.delete("db", &DeleteParams::foreground()).await.unwrap();
    for _ in 0..400 {
        if sets.get_opt("db").await.unwrap().is_none() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(sets.get_opt("db").await.unwrap().is_none(), "the set is deleted with its pods");
    client.remove().await;
}
