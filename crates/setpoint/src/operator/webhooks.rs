//! The part of an operator's life in which webhooks are served. It begins before the caches fill, which may need a conversion, and
//! ends after everything else.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use setpoint_clock::Clock;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::OperatorError;
use crate::webhook::certificates::{Keeper, Served, Source, TargetKind, Targets, watch};
use crate::webhook::{AnyVersions, Certificates, Webhook, Webhooks, serve};
use crate::{Health, Metrics};

/// How long webhooks are served after the stop began: until no API server sends more to this replica.
const LINGER: Duration = Duration::from_secs(3);

/// What is declared about webhooks.
pub(super) struct Declared {
    pub(super) name: String,
    pub(super) webhooks: Webhooks,
    pub(super) certificates: Certificates,
    /// The configurations and definitions that name the webhooks.
    pub(super) objects: Vec<(TargetKind, String)>,
}

/// Webhooks that are served, or only kept in certificates where tests ask them without sockets.
pub(super) struct Serving {
    listening: bool,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    keeping: JoinSet<()>,
}

/// The configurations and definitions whose `caBundle` is the operator's.
pub(super) fn objects(
    name: &str,
    webhooks: &[Webhook],
    converting: &[AnyVersions],
) -> Vec<(TargetKind, String)> {
    let any = |mutating: bool| webhooks.iter().any(|webhook| webhook.mutating == mutating);
    let mutating = any(true).then(|| (TargetKind::Mutating, name.to_owned()));
    let validating = any(false).then(|| (TargetKind::Validating, name.to_owned()));
    let definitions = converting.iter().map(|versions| (TargetKind::Definition, versions.crd_name()));
    mutating.into_iter().chain(validating).chain(definitions).collect()
}

/// Starts what has to be there before anything else: the certificate, the listener, the bundle.
pub(super) fn start(
    declared: Declared,
    listener: Option<TcpListener>,
    client: Client,
    namespace: String,
    clock: Clock,
    (health, metrics): (&Health, &Metrics),
) -> Result<Serving, OperatorError> {
    let Declared { name, webhooks, certificates, objects } = declared;
    let own = matches!(certificates.source, Source::Own);
    let served = Served::new(!own);
    let checked = served.clone();
    health.readiness("webhooks", move || checked.check());
    let service = format!("{name}-webhook");
    let mut keeping = JoinSet::new();
    match certificates.source {
        Source::Own => {
            let mut names = vec![
                format!("{service}.{namespace}.svc"),
                format!("{service}.{namespace}"),
                format!("{service}.{namespace}.svc.cluster.local"),
            ];
            names.extend(certificates.names);
            let targets = Targets {
                service: (namespace.clone(), service),
                manager: format!("{name}-ca-bundle"),
                objects,
            };
            let keeper = Keeper {
                client,
                clock,
                namespace,
                name: secret_name(&name),
                names,
                lifetimes: certificates.lifetimes,
                targets,
                served: served.clone(),
            };
            keeping.spawn(keeper.run());
        }
        Source::Files(folder) => {
            let (served, metrics) = (served.clone(), metrics.webhooks().clone());
            keeping.spawn(async move { watch(&folder, &served, &metrics).await });
        }
    }
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let listening = listener.is_some();
    if let Some(listener) = listener {
        let config = served.config().map_err(|error| OperatorError::Failed {
            what: "the webhooks' server".to_owned(),
            reason: error.to_string(),
        })?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let stop = stop.clone();
        tasks.spawn(async move {
            // Connections wait for the certificate in the listener's queue.
            served.ready().await;
            serve(listener, acceptor, webhooks, stop).await;
        });
    }
    Ok(Serving { listening, stop, tasks, keeping })
}

/// The Secret of the own authority.
pub(super) fn secret_name(operator: &str) -> String {
    format!("{operator}-webhook-certificates")
}

impl Serving {
    /// Stops serving: not before those who ask know that the stop began at `since`.
    pub(super) async fn stop(mut self, since: Instant) {
        if self.listening {
            tokio::time::sleep_until(since + LINGER).await;
        }
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.keeping.shutdown().await;
    }
}
