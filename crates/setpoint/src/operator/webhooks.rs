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
use crate::webhook::{AnyVersions, Certificates, Handler, Webhook, Webhooks, reviews, serve};
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
    /// Whether metrics are served with the same certificate.
    pub(super) metrics: bool,
}

/// Webhooks that are served, or only kept in certificates where tests ask them without sockets.
pub(super) struct Serving {
    listening: bool,
    served: Served,
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
    let Declared { name, webhooks, certificates, objects, metrics: with_metrics } = declared;
    let own = matches!(certificates.source, Source::Own);
    let served = Served::new(!own);
    if !webhooks.is_empty() {
        let checked = served.clone();
        health.readiness("webhooks", move || checked.check());
    }
    let service = format!("{name}-webhook");
    let mut keeping = JoinSet::new();
    match certificates.source {
        Source::Own => {
            let services = [
                (!webhooks.is_empty()).then(|| service.clone()),
                with_metrics.then(|| format!("{name}-metrics")),
            ];
            let of_service = |service: String| {
                ["svc", "", "svc.cluster.local"]
                    .map(|end| format!("{service}.{namespace}.{end}").trim_end_matches('.').to_owned())
            };
            let mut names: Vec<String> = services.into_iter().flatten().flat_map(of_service).collect();
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
    let mut serving = Serving {
        listening: listener.is_some(),
        served,
        stop: CancellationToken::new(),
        tasks: JoinSet::new(),
        keeping,
    };
    if let Some(listener) = listener {
        serving.serve("the webhooks' server", listener, true, reviews(webhooks))?;
    }
    Ok(serving)
}

/// The Secret of the own authority.
pub(super) fn secret_name(operator: &str) -> String {
    format!("{operator}-webhook-certificates")
}

impl Serving {
    /// Serves `handler` with the certificate, by HTTP/1.1 and, if `http2`, HTTP/2.
    pub(super) fn serve(
        &mut self,
        what: &str,
        listener: TcpListener,
        http2: bool,
        handler: Handler,
    ) -> Result<(), OperatorError> {
        let config = self
            .served
            .config(http2)
            .map_err(|error| OperatorError::Failed { what: what.to_owned(), reason: error.to_string() })?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (served, stop) = (self.served.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            // Connections wait for the certificate in the listener's queue.
            served.ready().await;
            serve(listener, acceptor, handler, stop).await;
        });
        Ok(())
    }

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
