//! Fingerprints of what a manager wants and of what it has.

use serde_json::{Number, Value};
use sha2::{Digest, Sha256};

use crate::managed::NEVER_OWNED_METADATA;

/// The part of an apply intent that a manager can own: without `apiVersion`, `kind`, the identity and the
/// bookkeeping in `metadata`, and without a `metadata` that is empty then.
///
/// For an intent in canonical form (quantities as the server prints them, no values that the server drops), and `ours`
/// the fields of the entry that its apply left, `fingerprint(&normalise(intent)) == fingerprint(&project(live, &ours))`
/// until somebody changes an owned field, in whatever way.
pub fn normalise(intent: &Value) -> Value {
    let Value::Object(intent) = intent else { return intent.clone() };
    let mut out = serde_json::Map::new();
    for (key, value) in intent {
        match (key.as_str(), value) {
            ("apiVersion" | "kind", _) => {}
            ("metadata", Value::Object(metadata)) => {
                let kept: serde_json::Map<String, Value> = metadata
                    .iter()
                    .filter(|(key, _)| !NEVER_OWNED_METADATA.contains(&key.as_str()))
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect();
                if !kept.is_empty() {
                    out.insert(key.clone(), Value::Object(kept));
                }
            }
            _ => {
                out.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(out)
}

/// A hash of a JSON value that is the same in every process and release: the first 8 bytes of the SHA-256 of a
/// canonical form in which the order of fields does not matter and numbers go by value (`1` and `1.0` are one).
pub fn fingerprint(value: &Value) -> u64 {
    let mut hasher = Sha256::new();
    feed(&mut hasher, value);
    let digest = hasher.finalize();
    digest.iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Every value starts with a tag, and what has a length with its length, so that no two values feed the same bytes.
fn feed(hasher: &mut Sha256, value: &Value) {
    fn text(hasher: &mut Sha256, text: &str) {
        hasher.update((text.len() as u64).to_be_bytes());
        hasher.update(text);
    }
    match value {
        Value::Null => hasher.update(b"n"),
        Value::Bool(value) => hasher.update(if *value { b"t" } else { b"f" }),
        Value::Number(number) => {
            if let Some(integer) = integer(number) {
                hasher.update(b"i");
                hasher.update(integer.to_be_bytes());
            } else {
                hasher.update(b"d");
                hasher.update(number.as_f64().unwrap_or(f64::NAN).to_bits().to_be_bytes());
            }
        }
        Value::String(value) => {
            hasher.update(b"s");
            text(hasher, value);
        }
        Value::Array(items) => {
            hasher.update(b"a");
            hasher.update((items.len() as u64).to_be_bytes());
            for item in items {
                feed(hasher, item);
            }
        }
        Value::Object(fields) => {
            hasher.update(b"o");
            hasher.update((fields.len() as u64).to_be_bytes());
            // serde_json may keep insertion order when some crate of the build asks for it.
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(key, _)| *key);
            for (key, value) in fields {
                text(hasher, key);
                feed(hasher, value);
            }
        }
    }
}

/// The number as an integer, when it is one.
fn integer(number: &Number) -> Option<i128> {
    number.as_i128().or_else(|| {
        let float = number.as_f64()?;
        // Up to 2^53 a float names one integer only.
        (float.fract() == 0.0 && float.abs() < 9_007_199_254_740_992.0).then_some(float as i128)
    })
}
