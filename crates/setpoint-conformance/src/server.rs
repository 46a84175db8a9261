//! The server that cases are sent to: HTTP/1.1 over TLS.

use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, io};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Uri;
use http_body_util::Full;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::client::WantsClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::client_certificates::{ClientAuthority, ClientCertificate};

pub(crate) type Connection = SendRequest<Full<Bytes>>;

/// Why a server could not be spoken to.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The URL is not one of HTTPS.
    #[error("server {0}: this is not a URL of the form https://host:port")]
    Url(String),
    /// The file of certificates could not be read.
    #[error("{path}: {source}")]
    Ca {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The certificates are not usable.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// A client's certificate could not be made.
    #[error("a client's certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A step shows a certificate, and nobody said which authority of clients the server trusts.
    #[error(
        "the step shows a client certificate: --client-ca-key must name the key of an authority that the server trusts"
    )]
    NoClients,
    /// There is no connection.
    #[error("server {address}: {source}")]
    Connect {
        /// Host and port.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The exchange broke off.
    #[error("HTTP: {0}")]
    Http(hyper::Error),
}

/// How a server's certificate is checked.
#[derive(Clone, Debug)]
pub enum Trust {
    /// By these PEM certificates.
    Pem(String),
    /// By the PEM certificates in a file.
    File(PathBuf),
    /// Not at all: for servers of this machine.
    Anything,
}

/// A server and its administrator's bearer token.
pub struct Server {
    host: String,
    port: u16,
    tls: TlsConnector,
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    clients: Option<ClientAuthority>,
    idle: Mutex<Vec<Connection>>,
    pub(crate) token: String,
}

impl Server {
    /// A server at `url`, such as `https://127.0.0.1:6443`. Nothing is sent yet.
    ///
    /// # Errors
    /// When the URL or the certificates are not usable.
    pub fn new(url: &str, token: impl Into<String>, trust: &Trust) -> Result<Self, ServerError> {
        let bad = || ServerError::Url(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let host = uri.host().filter(|_| uri.scheme_str() == Some("https")).ok_or_else(bad)?.to_owned();
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match trust {
            Trust::Pem(pem) => builder.with_root_certificates(roots(pem)?),
            Trust::File(path) => {
                let pem = fs::read_to_string(path)
                    .map_err(|source| ServerError::Ca { path: path.clone(), source })?;
                builder.with_root_certificates(roots(&pem)?)
            }
            Trust::Anything => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            }
        };
        Ok(Self {
            host,
            port: uri.port_u16().unwrap_or(443),
            tls: Arc::new(builder.clone().with_no_client_auth()).into(),
            builder,
            clients: None,
            idle: Mutex::new(Vec::new()),
            token: token.into(),
        })
    }

    /// With an authority of client certificates that the server trusts.
    #[must_use]
    pub fn with_clients(mut self, authority: ClientAuthority) -> Self {
        self.clients = Some(authority);
        self
    }

    /// Host and port.
    pub(crate) fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// A connection that is idle, or a new one.
    pub(crate) async fn pooled(&self) -> Result<Connection, ServerError> {
        let idle = self.idle.lock().pop();
        if let Some(mut connection) = idle
            && connection.ready().await.is_ok()
        {
            return Ok(connection);
        }
        self.connect().await
    }

    /// Takes back a connection whose last answer was read.
    pub(crate) fn give_back(&self, connection: Connection) {
        self.idle.lock().push(connection);
    }

    /// A new connection.
    pub(crate) async fn connect(&self) -> Result<Connection, ServerError> {
        self.connect_with(&self.tls).await
    }

    /// A new connection on which the client shows a certificate.
    pub(crate) async fn connect_as(&self, wanted: &ClientCertificate) -> Result<Connection, ServerError> {
        let clients = self.clients.as_ref().ok_or(ServerError::NoClients)?;
        let (certificate, key) = clients.sign(wanted)?;
        let config = self.builder.clone().with_client_auth_cert(vec![certificate], key)?;
        self.connect_with(&Arc::new(config).into()).await
    }

    async fn connect_with(&self, tls: &TlsConnector) -> Result<Connection, ServerError> {
        let failed = |source| ServerError::Connect { address: self.authority(), source };
        let tcp = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(failed)?;
        tcp.set_nodelay(true).map_err(failed)?;
        let name =
            ServerName::try_from(self.host.clone()).map_err(|_| ServerError::Url(self.host.clone()))?;
        let tls = tls.connect(name, tcp).await.map_err(failed)?;
        let (sender, connection) = handshake(TokioIo::new(tls)).await.map_err(ServerError::Http)?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// The certificates of a PEM text.
fn roots(pem: &str) -> Result<RootCertStore, rustls::Error> {
    let mut roots = RootCertStore::empty();
    for block in pem.split("-----BEGIN CERTIFICATE-----").skip(1) {
        let body: String = block.lines().take_while(|line| !line.starts_with("-----END")).collect();
        roots.add(CertificateDer::from(STANDARD.decode(body).unwrap_or_default()))?;
    }
    Ok(roots)
}

/// Accepts any certificate whose key signed the handshake.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
