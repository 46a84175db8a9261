//! Connections that are kept for the next call, as Go's client keeps them (`net/http.Transport`): by where they lead, the name that was checked,
//! and the authorities that were trusted, so that a changed configuration gets a new one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::time::Instant;

use super::client::Failure;
use super::target::Target;
use super::trust;

/// How long a connection waits (upstream: `IdleConnTimeout`).
const IDLE: Duration = Duration::from_secs(90);
/// How many wait for each webhook (upstream: `MaxIdleConnsPerHost` of client-go).
const EACH: usize = 25;
/// How many bundles of authorities are remembered.
const BUNDLES: usize = 64;

pub(super) type Sender = SendRequest<Full<Bytes>>;

/// What a connection is good for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Purpose {
    address: (String, u16),
    name: String,
    ca: Option<Vec<u8>>,
}

/// All that wait.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    idle: Mutex<BTreeMap<Purpose, Vec<(Sender, Instant)>>>,
    /// How to speak to those who trust a bundle: reading it is work, and sessions can be resumed.
    configurations: Mutex<BTreeMap<Option<Vec<u8>>, Arc<ClientConfig>>>,
}

impl Purpose {
    pub(super) fn of(target: &Target, address: &(String, u16)) -> Self {
        Self { address: address.clone(), name: target.host.clone(), ca: target.ca.clone() }
    }
}

impl Pool {
    /// The connection that was used last, if one is open.
    pub(super) fn take(&self, purpose: &Purpose) -> Option<Sender> {
        let mut all = self.idle.lock();
        let waiting = all.get_mut(purpose)?;
        while let Some((sender, since)) = waiting.pop() {
            if sender.is_ready() && since.elapsed() < IDLE {
                return Some(sender);
            }
        }
        all.remove(purpose);
        None
    }

    /// Keeps a connection whose last answer was read whole, unless it closes.
    pub(super) async fn keep(&self, purpose: Purpose, mut sender: Sender) {
        if sender.ready().await.is_err() {
            return;
        }
        let mut all = self.idle.lock();
        all.retain(|_, waiting| {
            waiting.retain(|(sender, since)| !sender.is_closed() && since.elapsed() < IDLE);
            !waiting.is_empty()
        });
        let waiting = all.entry(purpose).or_default();
        if waiting.len() < EACH {
            waiting.push((sender, Instant::now()));
        }
    }

    /// The TLS configuration for webhooks that `bundle` (PEM) signed.
    pub(super) fn configuration(&self, bundle: Option<&Vec<u8>>) -> Result<Arc<ClientConfig>, Failure> {
        let bundle = bundle.cloned();
        if let Some(known) = self.configurations.lock().get(&bundle) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(trust::configuration(bundle.as_deref())?);
        let mut all = self.configurations.lock();
        if all.len() >= BUNDLES {
            all.clear();
        }
        all.insert(bundle, Arc::clone(&made));
        Ok(made)
    }
}
