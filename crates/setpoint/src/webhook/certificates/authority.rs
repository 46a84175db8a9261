use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::CertificateError;
use super::plan::Validity;

/// How far a certificate's validity reaches back, for API servers whose clocks are behind ours.
const BACKDATED: Duration = Duration::from_secs(3600);

/// A certificate with its key, both in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// An authority that is valid from now on.
pub(super) fn authority(name: &str, now: Timestamp, lifetime: Duration) -> Result<Pair, CertificateError> {
    let key = KeyPair::generate()?;
    // Two authorities of one operator are never taken for each other: the name has the time.
    let mut params = signing(&format!("{name}-{}", now.as_second()))?;
    dated(&mut params, now, lifetime)?;
    let certificate = params.self_signed(&key)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// What an authority's certificate says beside its validity: enough to sign with it again later.
fn signing(name: &str) -> Result<CertificateParams, CertificateError> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// A leaf for `names`, signed by `authority` and not valid longer than that.
pub(super) fn leaf(
    authority: &Pair,
    names: &[String],
    now: Timestamp,
    lifetime: Duration,
) -> Result<Pair, CertificateError> {
    let (valid, name) = read("the authority", &authority.certificate)?;
    let left = valid.until.duration_since(now);
    let lifetime = lifetime.min(Duration::try_from(left).unwrap_or_default());
    let issuer = Issuer::new(signing(&name)?, KeyPair::from_pem(&authority.key)?);
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name.push(DnType::CommonName, names.first().map_or("webhooks", String::as_str));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    dated(&mut params, now, lifetime)?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn dated(params: &mut CertificateParams, now: Timestamp, lifetime: Duration) -> Result<(), CertificateError> {
    let at = |time: Timestamp| {
        let seconds = u64::try_from(time.as_second()).unwrap_or_default();
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
    };
    let out_of_range = |error: jiff::Error| CertificateError::Read {
        what: "the validity".to_owned(),
        reason: error.to_string(),
    };
    params.not_before = at(now.checked_sub(BACKDATED).map_err(out_of_range)?);
    params.not_after = at(now.checked_add(lifetime).map_err(out_of_range)?);
    // Random, so that no two certificates of an authority have the same.
    let serial = KeyPair::generate()?.public_key_raw().get(1..17).map(<[u8]>::to_vec).unwrap_or_default();
    params.serial_number = Some(SerialNumber::from(serial));
    Ok(())
}

/// From when until when the first certificate of `pem` is in use: its validity without what it is backdated by.
pub(super) fn validity(what: &str, pem: &str) -> Result<Validity, CertificateError> {
    read(what, pem).map(|(validity, _)| validity)
}

/// The validity, and the name of the subject.
fn read(what: &str, pem: &str) -> Result<(Validity, String), CertificateError> {
    let wrong = |reason: String| CertificateError::Read { what: what.to_owned(), reason };
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| wrong(error.to_string()))?;
    let (_, certificate) =
        x509_parser::parse_x509_certificate(&der).map_err(|error| wrong(error.to_string()))?;
    let at = |seconds: i64| Timestamp::from_second(seconds).map_err(|error| wrong(error.to_string()));
    let from = at(certificate.validity().not_before.timestamp())?;
    let name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    let validity = Validity {
        from: from.checked_add(BACKDATED).map_err(|error| wrong(error.to_string()))?,
        until: at(certificate.validity().not_after.timestamp())?,
    };
    Ok((validity, name.unwrap_or_default().to_owned()))
}
