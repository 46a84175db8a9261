//! Users who show a certificate: its subject's common name is the user, its organizations are the groups
//! (`k8s.io/apiserver/pkg/authentication/request/x509`).
//!
//! The handshake only proves that the client has the certificate's key, so that a client whose certificate is not accepted may
//! still come with a token, and otherwise reads 401. Whether it is accepted is decided here.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::certificates::CertificateError;
use crate::distinguished_name::{COMMON_NAME, Name, ORGANIZATION, UID};
use crate::identity::Identity;

const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// The authorities whose certificates name users.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    verifier: Arc<dyn ClientCertVerifier>,
}

/// What a connection's certificate says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shown {
    /// No certificate, or one without a user's name.
    Nothing,
    /// One that is not accepted.
    Wrong,
    /// A user, until the certificate ends.
    User { identity: Identity, until: Timestamp },
}

impl Clients {
    /// Trusts the certificates in `pem`.
    pub(crate) fn new(pem: &str) -> Result<Self, CertificateError> {
        let mut roots = RootCertStore::empty();
        for block in pem.split("-----BEGIN CERTIFICATE-----").skip(1) {
            let body: String = block.lines().take_while(|line| !line.starts_with("-----END")).collect();
            roots.add(CertificateDer::from(STANDARD.decode(body.trim()).unwrap_or_default()))?;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| CertificateError::Clients(error.to_string()))?;
        Ok(Self { verifier })
    }

    /// Who showed this chain.
    pub(crate) fn read(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> Shown {
        let Some((leaf, others)) = chain.split_first() else { return Shown::Nothing };
        let since = Duration::from_secs(u64::try_from(now.as_second()).unwrap_or_default());
        let time = UnixTime::since_unix_epoch(since);
        if self.verifier.verify_client_cert(leaf, others, time).is_err() {
            return Shown::Wrong;
        }
        let Ok(([], parsed)) = X509Certificate::from_der(leaf) else { return Shown::Wrong };
        let Some(subject) = Name::read(parsed.subject().as_raw()) else { return Shown::Wrong };
        // Of several, the last counts, as in Go's `pkix.Name`.
        let name = subject.all(COMMON_NAME).last().unwrap_or_default();
        if name.is_empty() {
            return Shown::Nothing;
        }
        let groups = subject.all(ORGANIZATION).map(str::to_owned);
        let digest = Sha256::digest(leaf);
        let digest = digest.iter().fold(String::new(), |mut text, byte| {
            // Writing to a String never fails.
            let _ = write!(text, "{byte:02x}");
            text
        });
        let mut identity = Identity::new(name, groups);
        subject.all(UID).next().unwrap_or_default().clone_into(&mut identity.uid);
        identity.extra.insert(CREDENTIAL.to_owned(), vec![format!("X509SHA256={digest}")]);
        let end = parsed.validity().not_after.timestamp();
        Shown::User { identity, until: Timestamp::from_second(end).unwrap_or(Timestamp::MAX) }
    }
}

/// The handshake's part: asks for a certificate and accepts any whose key the client has.
#[derive(Debug)]
pub(crate) struct AskForCertificate {
    provider: Arc<CryptoProvider>,
    hints: Vec<DistinguishedName>,
}

impl AskForCertificate {
    pub(crate) fn new(clients: &Clients) -> Self {
        let hints = clients.verifier.root_hint_subjects().to_vec();
        Self { provider: Arc::new(ring::default_provider()), hints }
    }
}

impl ClientCertVerifier for AskForCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
