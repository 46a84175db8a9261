//! The certificate that webhooks are served with, from an authority of the operator's own or from files.
//!
//! ```text
//! Secret, configurations, now ─▶ plan: one step ─▶ keeper: writes the Secret by compare-and-swap, or publishes the bundle
//!      └──▶ Served: the leaf that new connections get                    (caBundle of configurations and CRDs)
//! files ─▶ watched ──┘
//! ```
//!
//! Every replica does this, whoever leads. A new authority is published beside the old one first; only when each
//! `caBundle` has had both for some minutes a leaf of the new one is served, and the old one goes later still. So there is no
//! moment at which the API server could meet a leaf that it doesn't trust.

mod authority;
mod files;
mod keeper;
mod kept;
mod plan;
mod publish;
mod served;

use std::path::PathBuf;
use std::time::Duration;

pub(crate) use self::files::watch;
pub(crate) use self::keeper::Keeper;
pub(crate) use self::publish::{Kind as TargetKind, Targets};
pub(crate) use self::served::Served;

/// Where the certificate of the webhooks comes from; see [`Operator::certificates`](crate::Operator::certificates).
#[derive(Clone, Debug)]
pub struct Certificates {
    pub(crate) source: Source,
    pub(crate) names: Vec<String>,
    pub(crate) lifetimes: Lifetimes,
}

#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// An authority of the operator's own, in a Secret.
    Own,
    /// `tls.crt` and `tls.key` in a folder.
    Files(PathBuf),
}

/// How long certificates of the own authority last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifetimes {
    pub(crate) authority: Duration,
    pub(crate) leaf: Duration,
    /// How long both authorities are trusted before a leaf of the new one is served, and after that.
    pub(crate) overlap: Duration,
}

const DAY: Duration = Duration::from_secs(24 * 3600);

impl Certificates {
    /// An authority of the operator's own, kept in the Secret `<operator>-webhook-certificates`, which all replicas share. It lasts a year and
    /// a leaf 90 days; each is replaced when a third of that is left.
    pub fn own() -> Self {
        let lifetimes = Lifetimes { authority: DAY * 365, leaf: DAY * 90, overlap: Duration::from_secs(300) };
        Self { source: Source::Own, names: Vec::new(), lifetimes }
    }

    /// The files `tls.crt` and `tls.key` in a folder, as cert-manager and OLM mount them. They are read again every 10 s. Who mounts
    /// them sees to the `caBundle`s, too.
    pub fn files(folder: impl Into<PathBuf>) -> Self {
        Self { source: Source::Files(folder.into()), ..Self::own() }
    }

    /// Another name or address that the leaf is for, beside the names of the Service: `localhost`, for webhooks that are
    /// reached by a URL.
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.names.push(name.into());
        self
    }

    /// How long the authority and a leaf last, and how long an old and a new authority are both trusted before and after the
    /// change from one to the other. Defaults: 365 days, 90 days, 5 min, which is time for every API server to learn of the new one.
    /// A leaf never outlasts its authority.
    pub fn lifetimes(mut self, authority: Duration, leaf: Duration, overlap: Duration) -> Self {
        self.lifetimes = Lifetimes { authority, leaf: leaf.min(authority), overlap };
        self
    }
}

impl Default for Certificates {
    fn default() -> Self {
        Self::own()
    }
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error("a certificate cannot be made: {0}")]
    Made(#[from] rcgen::Error),
    #[error("{what} is no certificate: {reason}")]
    Read { what: String, reason: String },
    #[error("the certificate cannot be served: {0}")]
    Tls(#[from] rustls::Error),
    #[error("{path}: {source}; is the Secret with tls.crt and tls.key mounted there?", path = .path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("{what}: {}", crate::error::words(.source))]
    Api { what: String, source: kube::Error },
}
