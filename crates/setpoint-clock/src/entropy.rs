use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// The alphabet of generated names in Kubernetes (`k8s.io/apimachinery/pkg/util/rand`): no vowels, so that
/// no words appear, and no characters that look alike.
const NAME_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// `bytes` as characters of generated names, one for each byte, as `rand.SafeEncodeString` upstream: for names that follow
/// from a hash.
pub fn name_characters(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(NAME_ALPHABET[usize::from(*byte) % NAME_ALPHABET.len()])).collect()
}

/// A shared, seedable source of randomness. Clones draw from the same stream.
///
/// Not for keys, passwords or tokens: those come from the TLS library's secure generator.
#[derive(Clone, Debug)]
pub struct Entropy(Arc<Mutex<fastrand::Rng>>);

impl Entropy {
    /// Randomness that differs in each process.
    pub fn from_system() -> Self {
        Self(Arc::new(Mutex::new(fastrand::Rng::new())))
    }

    /// Randomness that is the same for the same `seed`.
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))))
    }

    /// A number from the whole range.
    pub fn u64(&self) -> u64 {
        self.0.lock().u64(..)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.0.lock().u64(..bound) }
    }

    /// A duration of at least `base` and less than `base · (1 + factor)`, as `wait.Jitter` of
    /// `k8s.io/apimachinery` gives. A `factor` of zero or less gives `base`.
    pub fn jitter(&self, base: Duration, factor: f64) -> Duration {
        if factor <= 0.0 { base } else { base + base.mul_f64(self.0.lock().f64() * factor) }
    }

    /// `length` characters of the alphabet that Kubernetes uses for generated names.
    pub fn name_suffix(&self, length: usize) -> String {
        let mut rng = self.0.lock();
        (0..length).map(|_| char::from(NAME_ALPHABET[rng.usize(..NAME_ALPHABET.len())])).collect()
    }

    /// A random (version 4) UUID in its usual text form.
    pub fn uuid(&self) -> String {
        let bits = self.0.lock().u128(..);
        let bits = bits & !(0xf << 76) | (0x4 << 76);
        let bits = bits & !(0x3 << 62) | (0x2 << 62);
        let mut text = String::with_capacity(36);
        for place in 0..32_u32 {
            if matches!(place, 8 | 12 | 16 | 20) {
                text.push('-');
            }
            let digit = (bits >> (124 - 4 * place)) & 0xf;
            text.push(char::from(b"0123456789abcdef"[digit as usize]));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_stream() {
        let (a, b) = (Entropy::seeded(7), Entropy::seeded(7));
        assert_eq!((a.u64(), a.name_suffix(5), a.uuid()), (b.u64(), b.name_suffix(5), b.uuid()));
    }

    #[test]
    fn uuid_has_version_and_variant() {
        let entropy = Entropy::seeded(1);
        for _ in 0..100 {
            let uuid = entropy.uuid();
            assert_eq!(uuid.len(), 36, "{uuid}");
            assert_eq!(&uuid[14..15], "4", "{uuid}");
            assert!("89ab".contains(&uuid[19..20]), "{uuid}");
        }
    }

    #[test]
    fn jitter_stays_within_its_factor() {
        let entropy = Entropy::seeded(3);
        let base = Duration::from_secs(2);
        for _ in 0..100 {
            let jittered = entropy.jitter(base, 1.2);
            assert!(jittered >= base && jittered < base.mul_f64(2.2), "{jittered:?}");
        }
        assert_eq!(entropy.jitter(base, 0.0), base);
    }
}
