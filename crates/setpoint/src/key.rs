use std::fmt;

use crate::{Kind, Object};

/// Namespace and name of an object of a kind that the context knows.
///
/// `From<&str>` reads `namespace/name`, or a bare `name`. Where a [`crate::Context`] is given a bare name of
/// a namespaced kind, the namespace of the reconciled object is meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Namespace; none for cluster-scoped kinds.
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
}

impl Key {
    /// A key in a namespace.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: Some(namespace.into()), name: name.into() }
    }

    /// A key outside namespaces.
    pub fn cluster(name: impl Into<String>) -> Self {
        Self { namespace: None, name: name.into() }
    }

    /// The key of an object. Its name is empty as long as the server has not given it one.
    pub fn of<K: kube::Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self { namespace: meta.namespace.clone(), name: meta.name.clone().unwrap_or_default() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        match text.split_once('/') {
            Some((namespace, name)) => Self::new(namespace, name),
            None => Self::cluster(text),
        }
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<&String> for Key {
    fn from(text: &String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<&Key> for Key {
    fn from(key: &Key) -> Self {
        key.clone()
    }
}

/// An object named completely: in causes, events, logs and errors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: Kind,
    /// Namespace and name.
    pub key: Key,
    /// Its uid, where known.
    pub uid: Option<String>,
}

impl ObjectRef {
    /// A reference to an object of a kind that is known at compile time.
    pub fn of<K: Object>(object: &K) -> Self
    where
        K::DynamicType: Default,
    {
        Self { kind: Kind::of::<K>(), key: Key::of(object), uid: object.meta().uid.clone() }
    }

    /// A reference by name only.
    pub fn new(kind: Kind, key: Key) -> Self {
        Self { kind, key, uid: None }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.key)
    }
}
