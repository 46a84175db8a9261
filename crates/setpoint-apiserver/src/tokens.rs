//! Bearer tokens: random ones for users, signed ones (JWT, ES256) for service accounts
//! (`pkg/serviceaccount/claims.go`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use parking_lot::{Mutex, RwLock};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey,
};
use serde_json::{Value, json};

use crate::identity::Identity;
use crate::object::Metadata;
use crate::registry::Registry;
use crate::status::{Result, Status};
use crate::store::{Key, Store};

/// Who signs the tokens, and the audience of this API server.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The names under which tokens and the signing key are kept in a data folder.
const KEPT: &str = "token/";
const KEY: &str = "service-account-key";

/// The tokens that this server knows or can check.
#[derive(Default)]
pub(crate) struct Tokens {
    users: RwLock<BTreeMap<String, Identity>>,
    /// Made when the first service account's token is signed.
    key: OnceLock<EcdsaKeyPair>,
    /// Held while the key is made, so that the one that is kept is the one that is used.
    making: Mutex<()>,
}

/// What a service account's token is for.
pub(crate) struct Grant<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) account: &'a Value,
    pub(crate) audiences: Vec<String>,
    pub(crate) lifetime: SignedDuration,
    pub(crate) bound: Bound,
}

/// What a token is bound to.
#[derive(Default)]
pub(crate) struct Bound {
    /// The object that it dies with: kind, name and uid.
    pub(crate) itself: Option<(String, String, String)>,
    /// The node of a pod: name and uid, which is empty if there is no such node.
    pub(crate) node: Option<(String, String)>,
}

/// Whose a token is.
pub(crate) struct Owner {
    pub(crate) identity: Identity,
    /// Those of the audiences that were asked for which the token is for.
    pub(crate) audiences: Vec<String>,
}

/// Why a token is refused.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum Refused {
    /// Nobody here made it.
    #[error("invalid bearer token")]
    Unknown,
    #[error("token audiences {} is invalid for the target audiences {}", go_list(.has), go_list(.wanted))]
    Audiences { has: Vec<String>, wanted: Vec<String> },
    #[error("service account token has expired")]
    Expired,
    /// What it belongs to is gone.
    #[error("service account token has been invalidated")]
    Invalidated,
}

/// As Go prints a slice of strings (`%q`).
fn go_list(items: &[String]) -> String {
    let quoted: Vec<String> = items.iter().map(|item| format!("{item:?}")).collect();
    format!("[{}]", quoted.join(" "))
}

impl Tokens {
    /// With the tokens and the key that an earlier process kept.
    pub(crate) fn restore(store: &Store) -> Self {
        let tokens = Self::default();
        for (token, identity) in store.secrets(KEPT) {
            let Ok(identity) = serde_json::from_slice::<Value>(&identity) else { continue };
            let list = |value: &Value| -> Vec<String> {
                value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
            };
            let text = |field: &str| identity[field].as_str().unwrap_or_default().to_owned();
            let extra = identity["extra"].as_object().into_iter().flatten();
            let identity = Identity {
                user: text("user"),
                uid: text("uid"),
                groups: list(&identity["groups"]),
                extra: extra.map(|(key, values)| (key.clone(), list(values))).collect(),
            };
            tokens.users.write().insert(token, identity);
        }
        if let Some(key) = store.secret(KEY) {
            let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
            if let Ok(key) = EcdsaKeyPair::from_pkcs8(algorithm, &key, &SystemRandom::new()) {
                // Nobody else has it yet.
                let _ = tokens.key.set(key);
            }
        }
        tokens
    }

    /// The token of a user that was kept.
    pub(crate) fn of(&self, identity: &Identity) -> Option<String> {
        self.users.read().iter().find(|(_, known)| *known == identity).map(|(token, _)| token.clone())
    }

    /// A new token for a user.
    pub(crate) fn issue(&self, identity: Identity, store: &Store) -> Result<String> {
        let token = random()?;
        let Identity { user, uid, groups, extra } = &identity;
        let kept = json!({"user": user, "uid": uid, "groups": groups, "extra": extra});
        store
            .keep_secret(&format!("{KEPT}{token}"), kept.to_string().as_bytes())
            .map_err(|problem| Status::internal(&problem))?;
        self.users.write().insert(token.clone(), identity);
        Ok(token)
    }

    fn key(&self, store: &Store) -> Result<&EcdsaKeyPair> {
        if let Some(key) = self.key.get() {
            return Ok(key);
        }
        let _making = self.making.lock();
        if let Some(key) = self.key.get() {
            return Ok(key);
        }
        let failed = |_| Status::internal("no key for service account tokens could be made");
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).map_err(failed)?;
        let key = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random)
            .map_err(|error| Status::internal(format!("the key for service account tokens: {error}")))?;
        store.keep_secret(KEY, document.as_ref()).map_err(|problem| Status::internal(&problem))?;
        Ok(self.key.get_or_init(|| key))
    }

    /// Signs a token. Also answers when it expires.
    pub(crate) fn sign(
        &self,
        grant: &Grant<'_>,
        now: Timestamp,
        store: &Store,
    ) -> Result<(String, Timestamp)> {
        let expires = now.saturating_add(grant.lifetime).unwrap_or(now);
        let name = grant.account.meta("name");
        let mut kubernetes = json!({
            "namespace": grant.namespace,
            "serviceaccount": {"name": name, "uid": grant.account.meta("uid")},
        });
        if let Some((kind, name, uid)) = &grant.bound.itself {
            kubernetes[kind.to_lowercase()] = json!({"name": name, "uid": uid});
        }
        if let Some((name, uid)) = &grant.bound.node {
            kubernetes["node"] = json!({"name": name});
            if !uid.is_empty() {
                kubernetes["node"]["uid"] = uid.as_str().into();
            }
        }
        let claims = json!({
            "aud": grant.audiences, "exp": expires.as_second(), "iat": now.as_second(), "nbf": now.as_second(),
            "iss": ISSUER, "jti": identifier(&random()?), "kubernetes.io": kubernetes,
            "sub": format!("system:serviceaccount:{}:{name}", grant.namespace),
        });
        let key = self.key(store)?;
        let head = json!({"alg": "ES256", "kid": key_id(key.public_key().as_ref())});
        let head = URL_SAFE_NO_PAD.encode(head.to_string());
        let text = format!("{head}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = key
            .sign(&SystemRandom::new(), text.as_bytes())
            .map_err(|_| Status::internal("a service account token could not be signed"))?;
        Ok((format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref())), expires))
    }

    /// The key that checks the tokens of service accounts, as a set of JSON web keys (RFC 7517).
    pub(crate) fn key_set(&self, store: &Store) -> Result<Value> {
        let point = self.key(store)?.public_key().as_ref();
        // A point of P-256 that is not compressed: a 4 and two numbers of 32 bytes.
        let part = |from: usize| URL_SAFE_NO_PAD.encode(point.get(from..from + 32).unwrap_or_default());
        Ok(json!({"keys": [{
            "use": "sig", "kty": "EC", "kid": key_id(point), "crv": "P-256", "alg": "ES256", "x": part(1), "y": part(33),
        }]}))
    }

    /// Who a token belongs to; refused if it is wrong, expired, for others, or what it belongs to is gone.
    /// `audiences` are those that are asked for; any of them will do.
    pub(crate) fn authenticate(
        &self,
        token: &str,
        audiences: &[&str],
        registry: &Registry,
    ) -> Result<Owner, Refused> {
        let among = |own: &[String]| -> Vec<String> {
            own.iter().filter(|audience| audiences.contains(&audience.as_str())).cloned().collect()
        };
        if let Some(identity) = self.users.read().get(token) {
            let audiences = among(&[ISSUER.to_owned()]);
            let owner = Owner { identity: identity.clone(), audiences };
            return if owner.audiences.is_empty() { Err(Refused::Unknown) } else { Ok(owner) };
        }
        let claims = self.verify(token).filter(|claims| claims["iss"] == ISSUER).ok_or(Refused::Unknown)?;
        let own = claims["aud"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let own: Vec<String> = own.map(str::to_owned).collect();
        let matching = among(&own);
        if matching.is_empty() {
            let wanted = audiences.iter().map(|&audience| audience.to_owned()).collect();
            return Err(Refused::Audiences { has: own, wanted });
        }
        let now = registry.clock.now().as_second();
        let time = |name: &str| claims[name].as_i64().ok_or(Refused::Unknown);
        if !(time("nbf")? <= now && now < time("exp")?) {
            return Err(Refused::Expired);
        }
        let identity = account_of(&claims, registry).ok_or(Refused::Invalidated)?;
        Ok(Owner { identity, audiences: matching })
    }

    fn verify(&self, token: &str) -> Option<Value> {
        // Without a key nothing was ever signed.
        let key = self.key.get()?;
        let (text, signature) = token.rsplit_once('.')?;
        let (head, claims) = text.split_once('.')?;
        let head: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(head).ok()?).ok()?;
        if head["alg"] != "ES256" {
            return None;
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key.public_key().as_ref())
            .verify(text.as_bytes(), &signature)
            .ok()?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }
}

/// The service account of a token whose signature is right; `None` if it, or what the token is bound to, is gone.
fn account_of(claims: &Value, registry: &Registry) -> Option<Identity> {
    let kubernetes = &claims["kubernetes.io"];
    let namespace = kubernetes["namespace"].as_str()?;
    let part = |kind: &str, field: &str| kubernetes[kind][field].as_str().unwrap_or_default().to_owned();
    let (name, uid) = (part("serviceaccount", "name"), part("serviceaccount", "uid"));
    let lives = |resource: &str, namespace: &str, name: &str, uid: &str| {
        let found = registry.store.get(resource, &Key::new(namespace, name));
        found.is_some_and(|found| found.value.meta("uid") == uid)
    };
    if !lives("serviceaccounts", namespace, &name, &uid) {
        return None;
    }
    let mut identity = Identity::service_account(namespace, &name, &uid);
    let mut extra = |key: &str, value: String| {
        identity.extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value]);
    };
    extra("credential-id", format!("JTI={}", claims["jti"].as_str().unwrap_or_default()));
    for (kind, resource) in [("pod", "pods"), ("secret", "secrets"), ("node", "nodes")] {
        let (name, uid) = (part(kind, "name"), part(kind, "uid"));
        if name.is_empty() {
            continue;
        }
        // Where a pod was is known from its token only; the pod may outlive the node's object.
        let place = kind == "node" && !kubernetes["pod"].is_null();
        let namespace = if kind == "node" { "" } else { namespace };
        if !place && !lives(resource, namespace, &name, &uid) {
            return None;
        }
        if kind != "secret" {
            extra(&format!("{kind}-name"), name);
            if !uid.is_empty() {
                extra(&format!("{kind}-uid"), uid);
            }
        }
    }
    Some(identity)
}

/// The name of a key as upstream makes it: the digest of its public half as a `SubjectPublicKeyInfo` (`keyIDFromPublicKey`).
fn key_id(point: &[u8]) -> String {
    // What stands before a point of P-256 in DER: id-ecPublicKey, prime256v1, a string of 66 bytes.
    const HEAD: [u8; 26] = [
        0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
        0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
    ];
    URL_SAFE_NO_PAD.encode(digest(&SHA256, &[&HEAD, point].concat()))
}

/// The first half of such digits in the form of a UUID of version 4, as tokens are identified upstream.
fn identifier(digits: &str) -> String {
    let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    format!("{}-{}-4{}-a{}-{}", part(0, 8), part(8, 12), part(13, 16), part(17, 20), part(20, 32))
}

/// 32 bytes that nobody can guess, as hexadecimal digits.
fn random() -> Result<String> {
    let mut bytes = [0; 32];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Status::internal("the machine's source of randomness failed"))?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String never fails.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}
