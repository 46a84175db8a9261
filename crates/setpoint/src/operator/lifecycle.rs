use std::collections::BTreeSet;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use futures::future::select;
use setpoint_clock::{Clock, Entropy};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::diagnosis::{self, chain};
use super::lead::{self, Work};
use super::webhooks::{self, Declared};
use super::{Operator, Task, endpoint, guard};
use crate::election::{Campaign, Fence};
use crate::webhook::{AnyVersions, migration};
use crate::{Health, Metrics, Observer, RequestStack, Result, RetryPolicy, Runtime, Scope, events, rbac};

/// A reconcile is dropped at its time limit. One that is still there so long after it holds on to its thread,
/// and only a restart helps.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// Why an operator could not start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// No cluster is configured.
    #[error(
        "no cluster to connect to: {reason}; name one with --kubeconfig and --context, or set KUBECONFIG"
    )]
    Configuration {
        /// What was looked for and not found.
        reason: String,
    },
    /// What was declared does not fit together.
    #[error("{reason}")]
    Declaration {
        /// What is wrong.
        reason: String,
    },
    /// The cluster does not answer.
    #[error(
        "cannot reach the API server at {url}: {reason}; is the cluster running, and is it the right one (--kubeconfig, --context)?"
    )]
    Unreachable {
        /// Its address.
        url: String,
        /// What happened.
        reason: String,
    },
    /// The cluster answers, but not to us.
    #[error(
        "the API server at {url} refuses these credentials: {reason}; check the user of the kubeconfig's context, or whether its token has expired"
    )]
    Unauthorized {
        /// Its address.
        url: String,
        /// What it said.
        reason: String,
    },
    /// An endpoint's address cannot be listened on.
    #[error(
        "cannot listen on {address} for {purpose}: {source}; choose another address with {flag}, or 0 to do without"
    )]
    Listen {
        /// The address.
        address: String,
        /// `metrics` or `health probes`.
        purpose: &'static str,
        /// The flag that sets it.
        flag: &'static str,
        /// Why.
        source: io::Error,
    },
    /// Two controllers have the same name.
    #[error("two controllers are named {name}: tell them apart with Controller::named")]
    DuplicateController {
        /// The name.
        name: String,
    },
    /// The election cannot work as it was configured.
    #[error("leader election {name}: {reason}")]
    Election {
        /// The name of its lease.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// Another replica may lead now.
    #[error(
        "leader election lost: the lease could not be renewed in time, so that another replica may take over; start this one again"
    )]
    LeadershipLost,
    /// A controller, task or endpoint failed.
    #[error("{what} failed: {reason}")]
    Failed {
        /// What failed.
        what: String,
        /// Why.
        reason: String,
    },
}

/// What runs has a name and a result.
pub(super) type Running = JoinSet<(String, std::thread::Result<Result<()>>)>;

/// [`Operator::run_until`].
pub(super) async fn run(
    operator: Operator,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), OperatorError> {
    let declared = Declared {
        name: operator.name.clone(),
        webhooks: operator.webhooks(),
        certificates: operator.certificates.clone(),
        url: operator.webhook_url.as_deref().map(webhooks::Url::read).transpose()?,
        objects: webhooks::objects(&operator.name, &operator.webhooks, &operator.converting()),
        metrics: operator.metrics_secure && operator.metrics_address.is_some(),
    };
    let secure = declared.metrics;
    let with_webhooks = !declared.webhooks.is_empty();
    if let Some(reason) = operator.fault() {
        return Err(OperatorError::Declaration { reason });
    }
    let controllers = operator.controllers;
    let migrated: Vec<String> = operator.versions.iter().map(AnyVersions::crd_name).collect();
    let mut names = BTreeSet::new();
    for controller in &controllers {
        if !names.insert(controller.name().to_owned()) {
            return Err(OperatorError::DuplicateController { name: controller.name().to_owned() });
        }
    }
    if let Some(election) = &operator.election {
        election.timings.check().map_err(|error| OperatorError::Election {
            name: election.name.clone(),
            reason: error.to_string(),
        })?;
    }
    let clock = operator.clock.unwrap_or_else(Clock::system);
    let entropy = operator.entropy.unwrap_or_else(Entropy::from_system);
    let metrics = operator.metrics;

    // Endpoints first: a taken port is known before anything is written. Until the caches have their own check, nothing is ready.
    operator.health.readiness("caches", || Err("the API server has not been reached yet".to_owned()));
    let mut endpoints = JoinSet::new();
    let mut guarded = None;
    if let Some(address) = &operator.metrics_address {
        let listener = endpoint::listen(address).await.map_err(|source| OperatorError::Listen {
            address: address.clone(),
            purpose: "metrics",
            flag: "--metrics-bind-address",
            source,
        })?;
        let answer = endpoint::metrics(metrics.clone(), operator.reports.clone());
        if secure {
            guarded = Some((listener, answer));
        } else {
            endpoints.spawn(endpoint::serve(listener, answer));
        }
    }
    if let Some(address) = &operator.health_address {
        let listener = endpoint::listen(address).await.map_err(|source| OperatorError::Listen {
            address: address.clone(),
            purpose: "health probes",
            flag: "--health-probe-bind-address",
            source,
        })?;
        endpoints.spawn(endpoint::serve(listener, endpoint::health(operator.health.clone())));
    }

    let webhook_listener = match operator.webhook_address.as_ref().filter(|_| with_webhooks) {
        None => None,
        Some(address) => Some(endpoint::listen(address).await.map_err(|source| OperatorError::Listen {
            address: address.clone(),
            purpose: "webhooks",
            flag: "--webhook-bind-address",
            source,
        })?),
    };

    let fence = operator.election.as_ref().map(|election| Fence::new(election.timings));
    let mut stack = RequestStack::new(&metrics, entropy.clone()).fence(fence.clone());
    if let Some(change) = operator.stack {
        stack = change(stack);
    }
    // A connection of its own, without retries: a renewal that waits behind other requests comes too late.
    let elect = operator.election.as_ref().map(|election| {
        RequestStack::new(&metrics, entropy.clone())
            .retry(RetryPolicy::never())
            .deadline(election.timings.request())
    });
    // Certificates are kept by every replica, so their writes don't wait for leadership.
    let keep = (with_webhooks || secure).then(|| RequestStack::new(&metrics, entropy.clone()));
    let scope = operator.scope.unwrap_or_default();
    let everywhere = scope == Scope::All;
    let mut diagnosing = JoinSet::new();
    let (client, elector, keeper) = match (operator.client, operator.config) {
        (Some(client), _) => (
            stack.over(client.clone()),
            elect.map(|elect| elect.over(client.clone())),
            keep.map(|keep| keep.over(client)),
        ),
        (None, config) => {
            let config = match config {
                Some(config) => config,
                None => kube::Config::infer().await.map_err(|error| OperatorError::Configuration {
                    reason: chain(&kube::Error::InferConfig(error)),
                })?,
            };
            let url = config.cluster_url.to_string();
            let unusable =
                |error: kube::Error| OperatorError::Unreachable { url: url.clone(), reason: chain(&error) };
            let elector = elect.map(|elect| elect.connect(config.clone())).transpose().map_err(unusable)?;
            let keeper = keep.map(|keep| keep.connect(config.clone())).transpose().map_err(unusable)?;
            let client = stack.connect(config).map_err(unusable)?;
            diagnosis::reach(&client, &url).await?;
            // A cluster that we were not handed may lack what we need: say so, and go on waiting for it.
            let kinds = controllers.iter().map(|controller| controller.kind().clone()).collect();
            diagnosing.spawn(diagnosis::await_kinds(client.clone(), operator.name.clone(), kinds));
            diagnosing.spawn(diagnosis::report_missing_namespace(client.clone(), scope.clone()));
            let rights = rbac::rights(&controllers);
            diagnosing.spawn(diagnosis::report_missing_rights(
                client.clone(),
                operator.name.clone(),
                rights,
                scope.clone(),
            ));
            (client, elector, keeper)
        }
    };

    // Before the caches: to fill them, the API server may have to convert objects.
    let serving = match keeper {
        None => None,
        Some(client) => {
            let namespace =
                operator.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
            let observed = (&operator.health, &metrics);
            let mut serving =
                webhooks::start(declared, webhook_listener, client.clone(), namespace, clock, observed)?;
            if let Some((listener, answer)) = guarded {
                serving.serve("the metrics' server", listener, false, guard::guarded(answer, client))?;
            }
            Some(serving)
        }
    };
    if with_webhooks {
        // Else the pod would not be in its Service, the conversion would fail, and the caches never fill.
        operator.health.readiness_apart("caches");
    }

    let instance = instance(&operator.name);
    let (recorder, sender) = events::recorder(client.clone(), clock, entropy.clone(), &instance);
    let mut sending = JoinSet::new();
    sending.spawn(sender.run());
    let observer: Arc<dyn Observer> = Arc::new(metrics.clone());
    let runtime = Runtime::builder(client)
        .clock(clock)
        .entropy(entropy.clone())
        .scope(scope)
        .observer(Arc::clone(&observer))
        .recorder(Arc::new(recorder))
        .grace(operator.grace)
        .fence(fence.clone())
        .failures(operator.failures)
        .reports(operator.reports)
        .build();
    register_checks(&operator.health, &runtime, &metrics, &controllers);

    let stands_by = operator.election.as_ref().is_some_and(|election| election.stands_by);
    let campaign = operator.election.zip(elector).zip(fence).map(|((election, client), fence)| {
        let identity = election.identity.clone().unwrap_or_else(|| format!("{instance}_{}", entropy.uuid()));
        Campaign::new(&election, identity, client, fence, (clock, entropy), observer)
    });
    let (mut leading, always): (Vec<Task>, Vec<Task>) =
        operator.tasks.into_iter().partition(|task| task.leading);
    // Where only some namespaces may be seen, nobody could say that all objects are migrated.
    if !migrated.is_empty() && everywhere {
        leading.push(Task::leading("storage migration", move |runtime, stop| {
            migration::run(migrated.clone(), runtime, stop)
        }));
    }
    let stop_tasks = CancellationToken::new();
    let mut tasks = Running::new();
    for task in always {
        let name = format!("task {}", task.name);
        tasks.spawn(
            AssertUnwindSafe((task.run)(runtime.clone(), stop_tasks.clone()))
                .catch_unwind()
                .map(|result| (name, result)),
        );
    }

    let stopping = Arc::new(OnceLock::new());
    let stopped = Arc::clone(&stopping);
    let shutdown = shutdown.map(move |()| {
        stopped.get_or_init(Instant::now);
    });
    let work = Work { controllers, tasks: leading, runtime };
    let (tenure, outcome) = lead::run(&work, campaign, stands_by, &mut tasks, pin!(shutdown)).await;
    diagnosing.abort_all();
    if matches!(outcome, Err(OperatorError::LeadershipLost)) {
        // No grace: what is left would only be refused.
        tasks.shutdown().await;
        sending.shutdown().await;
    }
    stop_tasks.cancel();
    let ended = tokio::time::timeout(operator.grace, drain(&mut tasks)).await;
    if ended.is_err() {
        tracing::warn!(left = tasks.len(), "tasks did not end within the grace and were dropped");
        tasks.shutdown().await;
    }
    // The last recorder goes with the runtime; the sender then empties its queue.
    drop(work);
    if tokio::time::timeout(events::DRAIN, sending.join_next()).await.is_err() {
        tracing::warn!("events were left unsent");
    }
    // Nothing is written any more.
    if let Some(tenure) = tenure {
        tenure.release().await;
    }
    if let Some(serving) = serving {
        serving.stop(*stopping.get_or_init(Instant::now)).await;
    }
    endpoints.shutdown().await;
    tracing::info!(operator = operator.name, "stopped");
    outcome.and(ended.unwrap_or(Ok(())))
}

/// Waits until a controller or task fails. Ending well is no failure: a controller of nothing may.
pub(super) async fn first_failure(controllers: &mut Running, tasks: &mut Running) -> OperatorError {
    let controllers = pin!(failure(controllers));
    let tasks = pin!(failure(tasks));
    select(controllers, tasks).await.factor_first().0
}

async fn failure(running: &mut Running) -> OperatorError {
    while let Some(end) = running.join_next().await {
        if let Err(error) = judge(end) {
            return error;
        }
    }
    std::future::pending().await
}

/// Waits for the end of all and gives the first failure.
pub(super) async fn drain(running: &mut Running) -> Result<(), OperatorError> {
    let mut outcome = Ok(());
    while let Some(end) = running.join_next().await {
        outcome = outcome.and(judge(end));
    }
    outcome
}

fn judge(end: Result<(String, std::thread::Result<Result<()>>), JoinError>) -> Result<(), OperatorError> {
    match end {
        Ok((_, Ok(Ok(())))) => Ok(()),
        Ok((what, Ok(Err(error)))) => Err(OperatorError::Failed { what, reason: error.to_string() }),
        Ok((what, Err(_))) => Err(OperatorError::Failed { what, reason: "it panicked".to_owned() }),
        Err(error) => Err(OperatorError::Failed { what: "a task".to_owned(), reason: error.to_string() }),
    }
}

/// `/healthz` fails when only a restart helps, `/readyz` while the caches cannot be trusted.
fn register_checks(
    health: &Health,
    runtime: &Runtime,
    metrics: &Metrics,
    controllers: &[crate::AnyController],
) {
    health.liveness("ping", || Ok(()));
    health.readiness("ping", || Ok(()));
    let caches = runtime.caches().clone();
    health.liveness("caches", move || {
        let stuck = caches.health().into_iter().filter(|cache| cache.stuck);
        all_well(stuck.map(|cache| format!("{}: nothing heard for {:?}", cache.kind, cache.silent)))
    });
    let caches = runtime.caches().clone();
    let any = !controllers.is_empty();
    health.readiness("caches", move || {
        let caches = caches.health();
        if caches.is_empty() && any {
            return Err("no watch has been started yet".to_owned());
        }
        all_well(caches.into_iter().filter_map(|cache| {
            let place = cache.place();
            match cache.error {
                _ if cache.stuck => Some(format!("{place}: nothing heard for {:?}", cache.silent)),
                Some(error) => Some(format!("{place}: {error}")),
                None if !cache.synced => Some(format!("{place}: not listed yet")),
                None => None,
            }
        }))
    });
    let limits: Vec<(String, Duration)> = controllers
        .iter()
        .map(|controller| (controller.name().to_owned(), controller.time_limit()))
        .collect();
    let metrics = metrics.clone();
    health.liveness("workers", move || {
        all_well(limits.iter().filter_map(|(name, limit)| {
            let longest = metrics.longest_running(name)?;
            (longest > *limit + STUCK_AFTER)
                .then(|| format!("controller {name}: a reconcile has been running for {longest:?}"))
        }))
    });
}

fn all_well(problems: impl Iterator<Item = String>) -> Result<(), String> {
    let problems: Vec<String> = problems.collect();
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

/// Who reports events: the pod, or outside a cluster the operator on its host.
fn instance(operator: &str) -> String {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    set("POD_NAME")
        .or_else(|| Some(format!("{operator}-{}", set("HOSTNAME")?)))
        .unwrap_or_else(|| operator.to_owned())
}
