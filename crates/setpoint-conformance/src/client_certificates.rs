//! Certificates that steps show: signed by an authority that the server was told of, or by one that it does not know.

use std::fmt;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::Deserialize;
use setpoint_clock::Clock;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The attribute of a subject that Kubernetes reads as the user's uid.
const UID: [u64; 8] = [1, 3, 6, 1, 4, 1, 57683, 2];
const ORGANIZATION: [u64; 4] = [2, 5, 4, 10];

/// What a step's certificate says.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ClientCertificate {
    /// The common name; empty: none.
    pub user: String,
    /// Organizations, at most two.
    #[serde(default)]
    pub groups: Vec<String>,
    /// The attribute for a uid.
    pub uid: Option<String>,
    /// For how many days from now it is good. A negative number: it ended so many days ago.
    #[serde(default = "one")]
    pub days: i64,
    /// Whether an authority signed it that the server does not know.
    #[serde(default)]
    pub stranger: bool,
    /// Whether it is one for servers.
    #[serde(default)]
    pub of_a_server: bool,
}

fn one() -> i64 {
    1
}

/// An authority for clients' certificates.
pub struct ClientAuthority {
    issuer: Issuer<'static, KeyPair>,
    stranger: Issuer<'static, KeyPair>,
    pem: String,
    key: String,
}

impl fmt::Debug for ClientAuthority {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientAuthority").field("pem", &self.pem).finish_non_exhaustive()
    }
}

impl ClientAuthority {
    /// A new authority.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn new() -> Result<Self, rcgen::Error> {
        Self::of(KeyPair::generate()?)
    }

    /// The authority of a key in PEM that [`Self::key_pem`] gave.
    ///
    /// # Errors
    /// When it is not such a key.
    pub fn from_key(pem: &str) -> Result<Self, rcgen::Error> {
        Self::of(KeyPair::from_pem(pem)?)
    }

    fn of(key: KeyPair) -> Result<Self, rcgen::Error> {
        let params = |name: &str| -> Result<_, rcgen::Error> {
            let mut params = CertificateParams::new(Vec::new())?;
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
            Ok(params)
        };
        let mine = params("conformance clients")?;
        let pem = mine.self_signed(&key)?.pem();
        let text = key.serialize_pem();
        let stranger = Issuer::new(params("stranger")?, KeyPair::generate()?);
        Ok(Self { issuer: Issuer::new(mine, key), stranger, pem, key: text })
    }

    /// The certificate in PEM, for the server.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The key in PEM.
    pub fn key_pem(&self) -> &str {
        &self.key
    }

    /// A certificate and its key.
    pub(crate) fn sign(
        &self,
        wanted: &ClientCertificate,
    ) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name = DistinguishedName::new();
        if !wanted.user.is_empty() {
            params.distinguished_name.push(DnType::CommonName, wanted.user.as_str());
        }
        // The library takes each name of an attribute once; this one has two.
        for (name, group) in [DnType::OrganizationName, DnType::CustomDnType(ORGANIZATION.to_vec())]
            .into_iter()
            .zip(&wanted.groups)
        {
            params.distinguished_name.push(name, group.as_str());
        }
        if let Some(uid) = &wanted.uid {
            params.distinguished_name.push(DnType::CustomDnType(UID.to_vec()), uid.as_str());
        }
        let purpose = if wanted.of_a_server {
            ExtendedKeyUsagePurpose::ServerAuth
        } else {
            ExtendedKeyUsagePurpose::ClientAuth
        };
        params.extended_key_usages = vec![purpose];
        let now = SystemTime::from(Clock::system().now());
        let days = DAY * u32::try_from(wanted.days.unsigned_abs()).unwrap_or(u32::MAX);
        let end = if wanted.days < 0 { now - days } else { now + days };
        params.not_before = (end.min(now) - 2 * DAY).into();
        params.not_after = end.into();
        let issuer = if wanted.stranger { &self.stranger } else { &self.issuer };
        let certificate = params.signed_by(&key, issuer)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok((certificate.der().clone(), key))
    }
}
