//! The part of an operator's life in which webhooks are served. It begins before the caches fill, which may need a conversion, and
//! ends after everything else.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
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
    /// Where they are reached, if not through their Service.
    pub(super) url: Option<Url>,
    /// The configurations and definitions that name the webhooks.
    pub(super) objects: Vec<(TargetKind, String)>,
    /// Whether metrics are served with the same certificate.
    pub(super) metrics: bool,
}

/// Where webhooks are reached without a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    /// Without a path or a slash at its end.
    pub(super) base: String,
    /// A name or an address.
    pub(super) host: String,
}

impl Url {
    /// Reads `https://host[:port][/path]`.
    pub(super) fn read(url: &str) -> Result<Self, OperatorError> {
        let wrong = |what: &str| OperatorError::Declaration {
            reason: format!("the webhooks' URL {url:?} {what}: it is like https://10.0.0.5:9443"),
        };
        let uri: http::Uri = url.parse().map_err(|error| wrong(&format!("cannot be read ({error})")))?;
        if uri.scheme_str() != Some("https") {
            return Err(wrong("does not begin with https://, which the API server demands"));
        }
        if uri.query().is_some() {
            return Err(wrong("has a query"));
        }
        let host = uri.host().ok_or_else(|| wrong("has no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { base: url.trim_end_matches('/').to_owned(), host })
    }
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
    let Declared { name, webhooks, certificates, url, objects, metrics: with_metrics } = declared;
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
            names.extend(url.as_ref().map(|url| url.host.clone()));
            names.extend(certificates.names);
            let targets = Targets {
                service: (namespace.clone(), service),
                url: url.map(|url| url.base),
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
            // Connections wait for the certificate in the listener's queue. There may never be one.
            let (ready, stopped) = (pin!(served.ready()), pin!(stop.cancelled()));
            if let Either::Left(_) = select(ready, stopped).await {
                serve(listener, acceptor, handler, stop.clone()).await;
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_scheme_a_host_and_no_query() {
        let read =
            |url: &str| Url::read(url).map(|url| (url.base, url.host)).map_err(|error| error.to_string());
        let url = |base: &str, host: &str| Ok((base.to_owned(), host.to_owned()));
        assert_eq!(read("https://10.0.0.5:9443/"), url("https://10.0.0.5:9443", "10.0.0.5"));
        assert_eq!(read("https://[fd00::1]:9443"), url("https://[fd00::1]:9443", "fd00::1"));
        assert_eq!(
            read("https://laptop.example.com/op"),
            url("https://laptop.example.com/op", "laptop.example.com")
        );
        for (wrong, why) in [
            ("10.0.0.5:9443", "does not begin with https://"),
            ("http://10.0.0.5", "does not begin with https://"),
            ("https://10.0.0.5?x=1", "has a query"),
            ("https://a b", "cannot be read"),
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains(why) && error.contains(wrong), "{error}");
        }
    }
}
