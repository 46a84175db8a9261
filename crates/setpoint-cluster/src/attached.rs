//! The built-in controllers and hollow nodes on an API server of another process.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt as _};
use kube::Client;
use kube::discovery::{Discovery, Scope, verbs};
use setpoint::Runtime;
use setpoint_apiserver::ResourceName;
use setpoint_clock::Clock;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cluster::create_default_class;
use crate::controllers::Controllers;
use crate::endpoints::ServiceEndpoints;
use crate::garbage::{GarbageCollector, Graph};
use crate::hollow::HollowRuntime;
use crate::kubelet::{Node, NodeConfig};
use crate::recorder::Recorder;
use crate::volumes::{ClaimBinder, VolumeReclaimer};
use crate::{scheduler, statefulset};

/// How often a remote API server is asked for kinds that are new.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Built-in controllers and hollow nodes that run in this process and work on an API server of another one, such as a
/// kube-apiserver that a test has started. Dropping it stops them.
///
/// There are: garbage collection, StatefulSets, the scheduler, Services' endpoints, volumes, hollow nodes. Not here are those that need the
/// embedded API server itself: namespaces that are being deleted stay `Terminating`, new ones get no default ServiceAccount, the
/// status of quotas is not kept, and there are neither logs nor exec.
pub struct Attached {
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    nodes: BTreeMap<String, (HollowRuntime, Node<HollowRuntime>)>,
}

impl Attached {
    /// Starts them with the rights of `client`, which has to have all, and with `hollow_nodes` nodes, called `hollow-0`
    /// and so on. Time is the machine's.
    ///
    /// # Errors
    /// When the API server refuses what they need from the start: nodes and the default StorageClass.
    pub async fn start(client: Client, hollow_nodes: u8) -> kube::Result<Self> {
        let clock = Clock::system();
        create_default_class(&client).await?;
        let (recorder, recording) = Recorder::new(client.clone(), clock);
        let runtime = Runtime::builder(client.clone()).clock(clock).recorder(Arc::new(recorder)).build();
        let stop = CancellationToken::new();
        let controllers = controllers(Path::new("/var/lib/setpoint/volumes"));
        let controllers = controllers.run(kinds(client.clone()), runtime, stop.clone());
        let tasks = vec![tokio::spawn(recording), tokio::spawn(controllers)];
        let mut attached = Self { stop, tasks, nodes: BTreeMap::new() };
        for index in 0..hollow_nodes {
            let name = format!("hollow-{index}");
            let (config, machine) = (NodeConfig::new(name.clone()), HollowRuntime::new(index, clock));
            let node = Node::start(config, machine.clone(), client.clone(), clock).await?;
            attached.nodes.insert(name, (machine, node));
        }
        Ok(attached)
    }

    /// The machine of a hollow node, to move what runs there. None for other names.
    pub fn node(&self, name: &str) -> Option<&HollowRuntime> {
        self.nodes.get(name).map(|(machine, _)| machine)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.stop.cancel();
        for task in &self.tasks {
            task.abort();
        }
    }
}

fn controllers(volumes: &Path) -> Controllers {
    let graph = Arc::new(Graph::default());
    let volumes: PathBuf = volumes.to_owned();
    Controllers::default()
        .when_used("", "pods", scheduler::controller())
        .when_used("apps", "statefulsets", statefulset::controller())
        .when_used("", "services", ServiceEndpoints::controller())
        .when_used("", "persistentvolumeclaims", ClaimBinder::controller(volumes.clone()))
        .when_used("", "persistentvolumes", VolumeReclaimer::controller(volumes))
        .for_each_kind(move |used| GarbageCollector::for_kind(used, &graph).map(Into::into))
}

/// Each kind whose objects can come and go, once: those that are served now, and new ones when they are.
fn kinds(client: Client) -> BoxStream<'static, ResourceName> {
    let batches = stream::unfold((client, BTreeSet::new(), false), |(client, mut given, again)| async move {
        if again {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let served = match Discovery::new(client.clone()).run_aggregated().await {
            Ok(served) => served,
            Err(error) => {
                tracing::debug!(%error, "the API server does not tell its kinds");
                return Some((Vec::new(), (client, given, true)));
            }
        };
        let resources = served.groups().flat_map(kube::discovery::ApiGroup::recommended_resources);
        let new = resources.filter(|(resource, capabilities)| {
            [verbs::LIST, verbs::WATCH, verbs::DELETE]
                .into_iter()
                .all(|verb| capabilities.supports_operation(verb))
                && given.insert((resource.group.clone(), resource.plural.clone()))
        });
        let new = new.map(|(resource, capabilities)| ResourceName {
            group: resource.group,
            version: resource.version,
            kind: resource.kind,
            plural: resource.plural,
            namespaced: capabilities.scope == Scope::Namespaced,
        });
        let new: Vec<_> = new.collect();
        Some((new, (client, given, true)))
    });
    batches.flat_map(stream::iter).boxed()
}
