//! Pods without a kubelet: orders to the runtime, written short.

use std::net::IpAddr;
use std::time::Duration;

use futures::StreamExt;
use setpoint_cluster::kubelet::{
    ContainerId, ContainerSpec, DnsConfig, ExecRequest, Exit, LogOptions, Mount, PodRef, Runtime,
    SandboxConfig, Volume, VolumeSource, command_output,
};
use setpoint_node::{Machine, ProcessRuntime};

/// What every case gets.
pub struct World {
    pub machine: Machine,
    pub nodes: Vec<ProcessRuntime>,
    pub data: std::path::PathBuf,
    /// An administrator of the API server.
    pub client: kube::Client,
    pub _cluster: setpoint_cluster::Cluster,
    pub _joined: setpoint_node::ProcessNodes,
    /// Whether pods can run as other users.
    pub root: bool,
}

/// A pod with its address.
pub struct TestPod<'a> {
    pub node: &'a ProcessRuntime,
    pub pod: PodRef,
    pub address: IpAddr,
}

impl World {
    pub async fn pod(&self, name: &str) -> TestPod<'_> {
        self.pod_with(0, name, vec![]).await
    }

    pub async fn pod_with(&self, node: usize, name: &str, volumes: Vec<Volume>) -> TestPod<'_> {
        let node = &self.nodes[node];
        let config = SandboxConfig { volumes, ..TestPod::config(name) };
        let sandbox = node.create_sandbox(&config).await.unwrap();
        TestPod { node, pod: config.pod, address: sandbox.addresses[0] }
    }

    pub fn empty_dir(name: &str) -> Volume {
        Volume { name: name.into(), source: VolumeSource::EmptyDir { memory: false, size_limit: None } }
    }
}

impl TestPod<'_> {
    pub fn config(name: &str) -> SandboxConfig {
        let pod = PodRef { namespace: "default".into(), name: name.into(), uid: format!("uid-{name}") };
        SandboxConfig {
            pod,
            hostname: name.into(),
            fqdn: Some(format!("{name}.nodes.default.svc.cluster.local")),
            hostname_is_fqdn: false,
            dns: DnsConfig {
                nameservers: vec![setpoint_node::DNS_ADDRESS.to_string()],
                searches: vec![
                    "default.svc.cluster.local".into(),
                    "svc.cluster.local".into(),
                    "cluster.local".into(),
                ],
                options: vec!["ndots:5".into()],
                host: false,
            },
            hosts: vec![],
            host_network: false,
            share_process_namespace: false,
            fs_group: Some(999),
            volumes: vec![],
        }
    }

    /// The specification of a container that runs a shell script.
    pub async fn script(&self, script: &str) -> ContainerSpec {
        self.command("debian:12", &["sh", "-c", script]).await
    }

    /// `image` may be `debian:12` for the machine's own system, whatever that is.
    pub async fn command(&self, image: &str, command: &[&str]) -> ContainerSpec {
        let own = self.node.images();
        let image = if image == "debian:12" {
            own.iter().find(|name| name.contains("debian") || name.contains("ubuntu")).unwrap()
        } else {
            image
        };
        ContainerSpec {
            name: "main".into(),
            attempt: 0,
            image: self.node.resolve_image(image).await.unwrap(),
            command: command.iter().map(|part| (*part).to_owned()).collect(),
            args: vec![],
            env: vec![("MARK".into(), std::env::current_exe().unwrap().display().to_string())],
            working_dir: None,
            mounts: vec![],
            user: None,
            group: None,
            groups: vec![],
            read_only_root: false,
            drop_capabilities: vec![],
            add_capabilities: vec![],
            allow_privilege_escalation: true,
            memory_limit: None,
            cpu_limit_millis: None,
            stdin_once: false,
            stdin: false,
            tty: false,
            termination_message_path: "/dev/termination-log".into(),
            termination_message_from_log: false,
        }
    }

    pub async fn start(&self, spec: &ContainerSpec) -> ContainerId {
        self.node.start_container(&self.pod, spec).await.unwrap()
    }

    pub async fn run(&self, script: &str) -> (Exit, String) {
        let id = self.start(&self.script(script).await).await;
        let exit = self.wait(&id).await;
        (exit, self.logs(&id).await)
    }

    pub async fn wait(&self, id: &ContainerId) -> Exit {
        let waited = tokio::time::timeout(Duration::from_secs(20), self.node.wait(id)).await;
        waited.expect("the container should end within 20 s").unwrap()
    }

    pub async fn logs(&self, id: &ContainerId) -> String {
        let pieces: Vec<_> = self.node.logs(id, &LogOptions::default()).await.unwrap().collect().await;
        let bytes: Vec<u8> = pieces.into_iter().flat_map(Result::unwrap).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub async fn exec(&self, id: &ContainerId, command: &[&str]) -> (i32, String) {
        let command: Vec<String> = command.iter().map(|part| (*part).to_owned()).collect();
        let output =
            tokio::time::timeout(Duration::from_secs(20), command_output(self.node, id, &command)).await;
        output.unwrap_or_else(|_| panic!("{command:?} should end within 20 s")).unwrap()
    }

    /// Repeats a command until it succeeds with an output that `done` accepts.
    pub async fn until(&self, id: &ContainerId, command: &[&str], done: impl Fn(&str) -> bool) -> String {
        let mut last = (0, String::new());
        for _ in 0..200 {
            last = self.exec(id, command).await;
            if last.0 == 0 && done(&last.1) {
                return last.1;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{command:?} did not give what was waited for; at last: {last:?}");
    }

    pub async fn exec_with_input(
        &self,
        id: &ContainerId,
        command: &[&str],
        input: &str,
        tty: bool,
    ) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let command = command.iter().map(|part| (*part).to_owned()).collect();
        let mut session = self.node.exec(id, &ExecRequest { command, tty, stdin: true }).await.unwrap();
        let mut stdin = session.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).await.unwrap();
        drop(stdin);
        let mut output = String::new();
        session.stdout.read_to_string(&mut output).await.unwrap();
        session.exit.await.unwrap();
        output
    }

    pub async fn remove(self) {
        self.node.remove_sandbox(&self.pod).await.unwrap();
    }
}

/// A mount of a volume of the same name.
pub fn mount(volume: &str, path: &str) -> Mount {
    Mount { volume: volume.into(), path: path.into(), sub_path: None, read_only: false }
}
