use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crate::Object;
use crate::packed::Packed;
use crate::store::Payload;

/// The object that an apply led to, as the caches have it: read it as a `K`. It is decoded when it is first read, so that an apply whose
/// outcome nobody looks at costs nothing. [`into_arc`](Self::into_arc) gives what can be kept.
#[derive(Clone)]
pub struct Applied<K>(Source<K>);

#[derive(Clone)]
enum Source<K> {
    Object(Arc<K>),
    Packed(Packed, OnceLock<Arc<K>>),
}

impl<K: Object> Applied<K> {
    /// `None` of what cannot be decoded.
    pub(super) fn of(payload: Payload<K>) -> Option<Self> {
        match payload {
            Payload::Object(object) => Some(Self::object(object)),
            Payload::Packed(packed) => Some(Self(Source::Packed(packed, OnceLock::new()))),
            Payload::Undecodable(_) => None,
        }
    }

    pub(super) fn object(object: Arc<K>) -> Self {
        Self(Source::Object(object))
    }

    /// The object, shared.
    pub fn into_arc(self) -> Arc<K> {
        Arc::clone(self.shared())
    }

    fn shared(&self) -> &Arc<K> {
        match &self.0 {
            Source::Object(object) => object,
            Source::Packed(packed, object) => object.get_or_init(|| {
                #[expect(clippy::expect_used, reason = "it was decoded into this type before it was packed")]
                packed.decode().map(Arc::new).expect("an object that was decoded before")
            }),
        }
    }
}

impl<K: Object> Deref for Applied<K> {
    type Target = K;

    fn deref(&self) -> &K {
        self.shared()
    }
}

impl<K: Object> AsRef<K> for Applied<K> {
    fn as_ref(&self) -> &K {
        self
    }
}

impl<K: Object> From<Applied<K>> for Arc<K> {
    fn from(applied: Applied<K>) -> Self {
        applied.into_arc()
    }
}

impl<K: Object> fmt::Debug for Applied<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
