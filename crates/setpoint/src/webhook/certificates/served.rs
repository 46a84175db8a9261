use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, version};
use tokio::sync::watch;

use super::CertificateError;
use super::authority::Pair;

/// The certificate that new connections get, and what stands in the way of serving. Clones share both.
#[derive(Clone)]
pub(crate) struct Served(Arc<Shared>);

struct Shared {
    now: RwLock<Option<(Pair, Arc<CertifiedKey>)>>,
    /// Whether everything is as it should be for the first time, and what is missing until then.
    state: watch::Sender<State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    certificate: bool,
    published: bool,
    problem: Option<String>,
}

impl Served {
    /// Nothing to serve yet. `published`: whether the bundle is none of our business.
    pub(crate) fn new(published: bool) -> Self {
        let state = State { published, ..State::default() };
        Self(Arc::new(Shared { now: RwLock::default(), state: watch::Sender::new(state) }))
    }

    /// Serves a chain with its key from now on.
    pub(super) fn serve(&self, pair: &Pair) -> Result<(), CertificateError> {
        if self.0.now.read().as_ref().is_some_and(|(served, _)| served == pair) {
            return Ok(());
        }
        let wrong = |what: &str, error: &dyn fmt::Display| CertificateError::Read {
            what: what.to_owned(),
            reason: error.to_string(),
        };
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pair.certificate.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|error| wrong("tls.crt", &error))?;
        let key =
            PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(|error| wrong("tls.key", &error))?;
        let certified = CertifiedKey::from_der(chain, key, &ring::default_provider())?;
        *self.0.now.write() = Some((pair.clone(), Arc::new(certified)));
        self.0.state.send_modify(|state| state.certificate = true);
        Ok(())
    }

    /// Everyone who has to trust the certificate does.
    pub(super) fn published(&self) {
        self.0.state.send_modify(|state| {
            state.published = true;
            state.problem = None;
        });
    }

    /// Somebody else is asked. Said once in the log, as long as it stays so.
    pub(super) fn elsewhere(&self, whom: String) {
        if self.0.state.borrow().problem.as_ref() != Some(&whom) {
            tracing::warn!("the webhooks are not asked: {whom}");
        }
        self.problem(whom);
    }

    /// Something is in the way.
    pub(super) fn problem(&self, problem: String) {
        self.0.state.send_modify(|state| state.problem = Some(problem));
    }

    /// Waits until there is a certificate.
    pub(crate) async fn ready(&self) {
        let mut state = self.0.state.subscribe();
        // The sender is here.
        drop(state.wait_for(|state| state.certificate).await);
    }

    /// Whether requests can be answered: what keeps them from it, otherwise. Once they can, a lost configuration is no reason to
    /// take the webhooks out of their Service: conversion needs them while an operator is uninstalled.
    pub(crate) fn check(&self) -> Result<(), String> {
        let state = self.0.state.borrow().clone();
        match (state.certificate && state.published, state.problem) {
            (true, _) => Ok(()),
            (false, Some(problem)) => Err(problem),
            (false, None) if state.certificate => Err("the certificate is not published yet".to_owned()),
            (false, None) => Err("there is no certificate yet".to_owned()),
        }
    }

    /// TLS 1.3 or 1.2; HTTP/1.1, and HTTP/2 if `http2`.
    pub(crate) fn config(&self, http2: bool) -> Result<ServerConfig, CertificateError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&[&version::TLS13, &version::TLS12])?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        if http2 {
            config.alpn_protocols.insert(0, b"h2".to_vec());
        }
        Ok(config)
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.now.read().as_ref().map(|(_, certified)| Arc::clone(certified))
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Served").field(&*self.0.state.borrow()).finish()
    }
}

#[cfg(test)]
impl Served {
    pub(super) fn pair(&self) -> Option<Pair> {
        self.0.now.read().as_ref().map(|(pair, _)| pair.clone())
    }
}
