//! Entries for fuzz targets: parts that only a connection reaches.

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;

use crate::client_certificates::{Clients, Shown};
use crate::identity::Identity;

/// Whom a chain of certificates in DER, the client's own first, names at a time in seconds since 1970, by the authorities in `pem`. Nobody, if it isn't accepted.
#[must_use]
pub fn user_of(pem: &str, chain: &[Vec<u8>], now: i64) -> Option<Identity> {
    let chain: Vec<CertificateDer<'_>> =
        chain.iter().map(|certificate| CertificateDer::from(certificate.as_slice())).collect();
    match Clients::new(pem).ok()?.read(&chain, Timestamp::from_second(now).ok()?) {
        Shown::User { identity, .. } => Some(identity),
        Shown::Nothing | Shown::Wrong => None,
    }
}
