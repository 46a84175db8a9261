//! Starts the built-in controllers, each when first an object exists that it is for. A cluster in which nobody
//! uses StatefulSets runs no controller and no watch for them, and boots in milliseconds.

use std::collections::BTreeMap;

use futures::{Stream, StreamExt};
use setpoint::{AnyController, Runtime};
use setpoint_apiserver::ResourceName;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Controllers by what starts them.
#[derive(Default)]
pub(crate) struct Controllers {
    waiting: Vec<Waiting>,
    each_kind: Vec<Make>,
}

type Make = Box<dyn FnMut(&ResourceName) -> Option<AnyController> + Send>;

struct Waiting {
    group: &'static str,
    plural: &'static str,
    controller: AnyController,
}

impl Controllers {
    /// Runs `controller` from the first object of a kind on.
    pub(crate) fn when_used(
        mut self,
        group: &'static str,
        plural: &'static str,
        controller: impl Into<AnyController>,
    ) -> Self {
        self.waiting.push(Waiting { group, plural, controller: controller.into() });
        self
    }

    /// Runs what `make` gives for each kind from its first object on; anew when the kind is served in another version.
    pub(crate) fn for_each_kind(
        mut self,
        make: impl FnMut(&ResourceName) -> Option<AnyController> + Send + 'static,
    ) -> Self {
        self.each_kind.push(Box::new(make));
        self
    }

    /// Runs until `stop` is cancelled; dropping it drops all controllers at once. `uses` tells each kind that is used.
    pub(crate) async fn run(
        mut self,
        mut uses: impl Stream<Item = ResourceName> + Unpin,
        runtime: Runtime,
        stop: CancellationToken,
    ) {
        let mut running = JoinSet::new();
        // What runs for each kind ends with the version that it watches.
        let mut versions: BTreeMap<(String, String), CancellationToken> = BTreeMap::new();
        while let Some(Some(used)) = stop.run_until_cancelled(uses.next()).await {
            let (due, waiting): (Vec<_>, Vec<_>) = self
                .waiting
                .into_iter()
                .partition(|waiting| waiting.group == used.group && waiting.plural == used.plural);
            self.waiting = waiting;
            let version = stop.child_token();
            let kind = (used.group.clone(), used.plural.clone());
            if let Some(before) = versions.insert(kind, version.clone()) {
                before.cancel();
            }
            let made = self.each_kind.iter_mut().filter_map(|make| make(&used));
            let due: Vec<_> = due
                .into_iter()
                .map(|waiting| (waiting.controller, stop.clone()))
                .chain(made.map(|controller| (controller, version.clone())))
                .collect();
            for (controller, stop) in due {
                let (runtime, name) = (runtime.clone(), controller.name().to_owned());
                running.spawn(async move {
                    if let Err(error) = controller.run(runtime, stop).await {
                        tracing::error!(controller = name, %error, "built-in controller has ended");
                    }
                });
            }
        }
        while running.join_next().await.is_some() {}
    }
}
