use std::collections::BTreeMap;
use std::fmt::Write;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use ring::rand::{SecureRandom, SystemRandom};
use sha2::{Digest, Sha256};

use super::Identity;

/// Passwords of the accounts that the operator makes in every server.
#[derive(Clone, PartialEq, Eq)]
pub struct Passwords {
    /// Of `setpoint`, the operator's own account.
    pub operator: String,
    /// Of `repl`, the account of replicas.
    pub replication: String,
    /// Of `probe`, the account of the readiness probe.
    pub probe: String,
}

/// Never shows a password.
impl std::fmt::Debug for Passwords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Passwords(..)")
    }
}

/// The operating system gave no randomness.
#[derive(Debug, thiserror::Error)]
#[error("the operating system gave no randomness for passwords")]
pub struct NoRandomness;

impl Passwords {
    /// New passwords of 192 random bits each.
    pub fn generate() -> Result<Self, NoRandomness> {
        let random = SystemRandom::new();
        let password = || {
            let mut bytes = [0; 24];
            random.fill(&mut bytes).map(|()| hex(&bytes)).map_err(|_| NoRandomness)
        };
        Ok(Self { operator: password()?, replication: password()?, probe: password()? })
    }

    /// The passwords in `secret`, and new ones for those that it lacks: servers may run with the others.
    pub fn complete(secret: Option<&Secret>) -> Result<Self, NoRandomness> {
        let new = Self::generate()?;
        let found = |name, new| secret.and_then(|secret| field(secret, name)).unwrap_or(new);
        Ok(Self {
            operator: found("setpoint", new.operator),
            replication: found("repl", new.replication),
            probe: found("probe", new.probe),
        })
    }

    /// The passwords in `secret`; none if one is missing.
    pub fn read(secret: &Secret) -> Option<Self> {
        let field = |name| field(secret, name);
        Some(Self { operator: field("setpoint")?, replication: field("repl")?, probe: field("probe")? })
    }
}

/// The text at `name` in `secret`, if there is some.
fn field(secret: &Secret, name: &str) -> Option<String> {
    let bytes = &secret.data.as_ref()?.get(name)?.0;
    std::str::from_utf8(bytes).ok().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// The Secret with the servers' user list, the replicas' credentials and the passwords themselves. Pods
/// mount only what they need; the operator's password is not among it, only its hash.
pub fn system_secret(identity: &Identity, passwords: &Passwords) -> Secret {
    let users = format!(
        "\
user default on nopass ~* &* +@all -@admin
user setpoint on #{} ~* &* +@all
user repl on #{} -@all +psync +replconf +ping
user probe on #{} -@all +ping +info +role
",
        sha256(&passwords.operator),
        sha256(&passwords.replication),
        sha256(&passwords.probe),
    );
    let data = [
        ("users.acl", users),
        ("auth.conf", format!("masteruser repl\nmasterauth {}\n", passwords.replication)),
        ("setpoint", passwords.operator.clone()),
        ("repl", passwords.replication.clone()),
        ("probe", passwords.probe.clone()),
    ];
    Secret {
        metadata: identity.metadata(identity.child("system")),
        data: Some(
            data.into_iter()
                .map(|(name, text)| (name.to_owned(), ByteString(text.into_bytes())))
                .collect::<BTreeMap<_, _>>(),
        ),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

fn sha256(password: &str) -> String {
    hex(&Sha256::digest(password))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
