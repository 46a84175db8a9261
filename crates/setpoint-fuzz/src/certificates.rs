//! Certificates that clients show, and requests for certificates.

use std::cell::RefCell;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose, PublicKeyData, SigningKey,
};
use serde_json::json;
use setpoint_apiserver::fuzzing::user_of;

use crate::server::{self, JSON};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const TEXT: u8 = 0x0c;
const TIME: u8 = 0x17;
const BITS: u8 = 0x03;
const COMMON_NAME: [u8; 5] = [6, 3, 0x55, 4, 3];
const ORGANIZATION: [u8; 5] = [6, 3, 0x55, 4, 10];
const ECDSA_WITH_SHA256: [u8; 10] = [6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
const MASTERS: &str = "system:masters";
/// 2 January 2026.
const NOW: i64 = 1_767_323_045;

/// An authority of clients.
struct Authority {
    key: KeyPair,
    pem: String,
}

impl Authority {
    #[expect(clippy::expect_used, reason = "without an authority there is nothing to test")]
    fn new() -> Self {
        let key = KeyPair::generate().expect("a key can be made");
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "clients");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let pem = params.self_signed(&key).expect("the authority can sign itself").pem();
        Self { key, pem }
    }

    /// A certificate that is good but for what `subject` and `extensions` say.
    #[expect(clippy::expect_used, reason = "the key was made here")]
    fn sign(&self, subject: &[u8], extensions: &[u8]) -> Vec<u8> {
        let algorithm = der(SEQUENCE, &ECDSA_WITH_SHA256);
        let to_be_signed = der(
            SEQUENCE,
            &[
                &[0xa0, 3, 2, 1, 2, 2, 1, 1],
                algorithm.as_slice(),
                &der(SEQUENCE, &name(COMMON_NAME, "clients")),
                &der(SEQUENCE, &[der(TIME, b"250101000000Z"), der(TIME, b"270101000000Z")].concat()),
                subject,
                &self.key.subject_public_key_info(),
                extensions,
            ]
            .concat(),
        );
        let signature = self.key.sign(&to_be_signed).expect("the key signs");
        let bits = der(BITS, &[&[0], signature.as_slice()].concat());
        der(SEQUENCE, &[to_be_signed, algorithm, bits].concat())
    }

    /// A request for a certificate, whose signature nobody looks at.
    fn request(&self, subject: &[u8]) -> Vec<u8> {
        let information = [&[2, 1, 0], subject, &self.key.subject_public_key_info(), &[0xa0, 0]].concat();
        let signed = [der(SEQUENCE, &information), der(SEQUENCE, &ECDSA_WITH_SHA256), der(BITS, &[0, 0])];
        der(SEQUENCE, &signed.concat())
    }
}

/// A value in DER.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let mut value = match length {
        0..128 => vec![tag, length as u8],
        128..256 => vec![tag, 0x81, length as u8],
        _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
    };
    value.extend_from_slice(content);
    value
}

/// A part of a distinguished name.
fn name(attribute: [u8; 5], text: &str) -> Vec<u8> {
    der(SET, &der(SEQUENCE, &[&attribute, der(TEXT, text.as_bytes()).as_slice()].concat()))
}

fn pem(kind: &str, content: &[u8]) -> String {
    STANDARD.encode(format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", STANDARD.encode(content)))
}

thread_local! {
    static AUTHORITY: RefCell<Option<Authority>> = const { RefCell::new(None) };
}

/// Certificates: the bytes as a whole certificate, which names nobody since no authority signed it; as the subject and as the extensions of one
/// that an authority signed; and as a request for one, as its subject, and as what a signer issued. Nobody becomes a master by what
/// doesn't say so, and nobody is let to ask for it.
pub fn certificates(data: &[u8]) {
    AUTHORITY.with_borrow_mut(|authority| {
        let authority = authority.get_or_insert_with(Authority::new);
        let user = |leaf: Vec<u8>, more: &[Vec<u8>]| {
            let chain: Vec<Vec<u8>> = [&[leaf], more].concat();
            user_of(&authority.pem, &chain, NOW)
        };
        assert_eq!(user(data.to_vec(), &[data.to_vec()]), None, "nobody signed this");
        let parts = [name(ORGANIZATION, "team"), name(COMMON_NAME, "ann")].concat();
        let subjects = [data.to_vec(), der(SEQUENCE, data), der(SEQUENCE, &[parts.as_slice(), data].concat())];
        for subject in &subjects {
            let Some(user) = user(authority.sign(subject, &[]), &[data.to_vec()]) else { continue };
            assert!(!user.user.is_empty(), "{user:?}");
            let named = |text: &str| {
                let wide = text.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<_>>();
                [text.as_bytes(), &wide].iter().any(|bytes| data.windows(bytes.len()).any(|window| window == *bytes))
            };
            assert!(user.groups.iter().all(|group| group != MASTERS) || named(MASTERS), "{user:?}");
        }
        let extensions = der(0xa3, &der(SEQUENCE, data));
        let plain = der(SEQUENCE, &parts);
        if let Some(user) = user(authority.sign(&plain, &extensions), &[]) {
            assert_eq!((user.user.as_str(), user.groups), ("ann", vec!["team".to_owned(), "system:authenticated".to_owned()]));
        }

        let master = der(SEQUENCE, &[name(ORGANIZATION, MASTERS).as_slice(), data].concat());
        let other = der(SEQUENCE, &[data, name(ORGANIZATION, MASTERS).as_slice()].concat());
        let requests = [data.to_vec(), authority.request(&subjects[2]), authority.request(&master), authority.request(&other)];
        server::with(|server| {
            let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
            for (index, request) in requests.iter().enumerate() {
                let object = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
                    "metadata": {"name": "b"}, "spec": {"signerName": "kubernetes.io/kube-apiserver-client",
                    "usages": ["client auth"], "request": pem("CERTIFICATE REQUEST", request)}});
                let code = server.send(
                    Method::POST,
                    &format!("{path}?dryRun=All"),
                    &[JSON],
                    object.to_string().as_bytes(),
                );
                assert!(index < 2 || code != 201, "a master could be asked for: {object}");
            }
            let issued = json!({"status": {"certificate": pem("CERTIFICATE", data)}});
            let merge = [("content-type", "application/merge-patch+json")];
            let path = format!("{path}/a/status?dryRun=All");
            server.send(Method::PATCH, &path, &merge, issued.to_string().as_bytes());
        });
    });
}
