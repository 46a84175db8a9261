//! Which certificates of webhooks are good.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use x509_parser::prelude::{FromDer, X509Certificate};

use super::client::Failure;

/// The TLS configuration for webhooks that `bundle` (PEM) signed; without one, the machine's own authorities.
pub(super) fn configuration(bundle: Option<&[u8]>) -> Result<ClientConfig, Failure> {
    let certificates = match bundle {
        Some(pem) => {
            let found: Vec<_> = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).collect();
            if found.is_empty() {
                let why = "unable to load root certificates: unable to parse bytes as PEM block";
                return Err(Failure::Client(why.to_owned()));
            }
            found
        }
        None => machine().to_vec(),
    };
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates.iter().cloned());
    // Without any authority there is no verifier, and nothing is good.
    let inner =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build().ok();
    let verifier = Verifier { inner, given: certificates, provider: Arc::clone(&provider) };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Failure::Client(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The authorities of this machine, read once.
fn machine() -> &'static [CertificateDer<'static>] {
    static FOUND: OnceLock<Vec<CertificateDer<'static>>> = OnceLock::new();
    FOUND.get_or_init(|| rustls_native_certs::load_native_certs().certs)
}

/// Checks chains, and takes a server's certificate that is itself in the bundle, as Go does: many webhooks sign their own.
#[derive(Debug)]
struct Verifier {
    inner: Option<Arc<WebPkiServerVerifier>>,
    given: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        stapled: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.given.contains(certificate) {
            check_validity(certificate, now)?;
            verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
            return Ok(ServerCertVerified::assertion());
        }
        let inner = self.inner.as_ref().ok_or(CertificateError::UnknownIssuer)?;
        inner.verify_server_cert(certificate, chain, name, stapled, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Refuses a certificate outside of its time: one that is trusted itself is not part of a chain whose times are looked at.
fn check_validity(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let second = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let (from, until) = (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
    let time =
        |second: i64| UnixTime::since_unix_epoch(Duration::from_secs(second.try_into().unwrap_or_default()));
    if second < from {
        return Err(CertificateError::NotValidYetContext { time: now, not_before: time(from) }.into());
    }
    if second > until {
        return Err(CertificateError::ExpiredContext { time: now, not_after: time(until) }.into());
    }
    Ok(())
}

/// Why a handshake failed, in Go's words.
pub(super) fn words(error: &Error, name: &str) -> String {
    let Error::InvalidCertificate(why) = error else { return format!("remote error: tls: {error}") };
    let why = match why {
        CertificateError::UnknownIssuer => "certificate signed by unknown authority".to_owned(),
        CertificateError::NotValidForNameContext { presented, .. } => not_for(presented, name),
        CertificateError::ExpiredContext { time, not_after } => out_of_time(*time, "after", *not_after),
        CertificateError::NotValidYetContext { time, not_before } => {
            out_of_time(*time, "before", *not_before)
        }
        CertificateError::Expired | CertificateError::NotValidYet => {
            "certificate has expired or is not yet valid".to_owned()
        }
        other => other.to_string(),
    };
    format!("tls: failed to verify certificate: x509: {why}")
}

fn out_of_time(now: UnixTime, side: &str, limit: UnixTime) -> String {
    let shown = |time: UnixTime| {
        let second =
            i64::try_from(time.as_secs()).ok().and_then(|second| Timestamp::from_second(second).ok());
        second.map_or_else(|| time.as_secs().to_string(), |time| time.to_string())
    };
    let (now, limit) = (shown(now), shown(limit));
    format!("certificate has expired or is not yet valid: current time {now} is {side} {limit}")
}

/// The names of one sort, addresses or DNS names, that the certificate has instead of `name`.
fn not_for(presented: &[String], name: &str) -> String {
    let address = name.parse::<std::net::IpAddr>().is_ok();
    let names: Vec<&str> = presented
        .iter()
        .filter_map(|text| {
            let inner =
                text.split_once(['(', '"']).map(|(kind, rest)| (kind, rest.trim_end_matches([')', '"'])));
            match inner {
                Some((kind, rest)) if kind.starts_with("DnsName") => {
                    (!address).then(|| rest.trim_matches('"'))
                }
                Some((kind, rest)) if kind.starts_with("IpAddress") => address.then_some(rest),
                _ => Some(text.as_str()),
            }
        })
        .collect();
    match (names.is_empty(), address) {
        (false, _) => format!("certificate is valid for {}, not {name}", names.join(", ")),
        (true, true) => {
            format!("cannot validate certificate for {name} because it doesn't contain any IP SANs")
        }
        (true, false) => format!("certificate is not valid for any names, but wanted to match {name}"),
    }
}
