//! The server's own certificate authority, made when it is first needed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::client_certificates::{AskForCertificate, Clients};

/// The names by which pods and people reach the server.
const NAMES: [&str; 5] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];
/// The address of the Service `kubernetes`.
const SERVICE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));

/// Indicates that a key or certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// From the certificate library.
    #[error("the API server's certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// From the TLS library.
    #[error("the API server's TLS configuration: {0}")]
    Tls(#[from] rustls::Error),
    /// The authorities of clients' certificates are none.
    #[error("the authorities of client certificates: {0}")]
    Clients(String),
    /// From the data folder.
    #[error("{0}")]
    Store(String),
    /// From the operating system.
    #[error("the machine's source of randomness failed")]
    Randomness,
}

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
}

impl Authority {
    pub(crate) fn new() -> Result<Self, CertificateError> {
        let key = KeyPair::generate()?;
        let certificate = Self::params()?.self_signed(&key)?;
        let (pem, der) = (certificate.pem(), certificate.der().clone());
        Ok(Self { issuer: Issuer::new(Self::params()?, key), certificate: der, pem })
    }

    /// The authority of an earlier process: its key in PKCS #8, and its certificate in PEM.
    pub(crate) fn restore(key: &[u8], pem: &str) -> Result<Self, CertificateError> {
        let key = KeyPair::try_from(key)?;
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|_| CertificateError::Certificate(rcgen::Error::CouldNotParseCertificate))?;
        Ok(Self { issuer: Issuer::new(Self::params()?, key), certificate, pem: pem.to_owned() })
    }

    /// The key in PKCS #8, to be kept.
    pub(crate) fn key(&self) -> Vec<u8> {
        self.issuer.key().serialize_der()
    }

    fn params() -> Result<CertificateParams, CertificateError> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, "setpoint-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Ok(params)
    }

    /// The authority's certificate, for clients.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// A TLS configuration for connections to `address`.
    pub(crate) fn server(
        &self,
        address: IpAddr,
        clients: Option<&Clients>,
    ) -> Result<Arc<ServerConfig>, CertificateError> {
        let mut names: Vec<String> = NAMES.map(str::to_owned).into();
        for ip in [address, SERVICE, Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
            if !names.contains(&ip.to_string()) {
                names.push(ip.to_string());
            }
        }
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let leaf = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = match clients {
            Some(clients) => config.with_client_cert_verifier(Arc::new(AskForCertificate::new(clients))),
            None => config.with_no_client_auth(),
        };
        let mut config = config.with_single_cert(vec![leaf.der().clone(), self.certificate.clone()], key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}
