//! Back-references: what ties a child to its owner where an owner reference cannot, since the two are in different namespaces or the
//! child is in none. Garbage collection knows nothing of them, so the owner has a finalizer.

use kube::core::ObjectMeta;
use serde_json::{Map, Value, json};

use crate::{Key, Kind, ObjectRef};

/// The label with the owner's uid: what finds its children.
const UID: &str = "setpoint.dev/owner-uid";
/// The annotation with the owner's kind and key, which can be too long for a label: `Website.example.com default/shop`.
const OWNER: &str = "setpoint.dev/owner";

/// A back-reference as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link<'a> {
    /// The owner's uid.
    pub(crate) uid: &'a str,
    /// The owner in words; empty if somebody took the annotation away.
    pub(crate) owner: &'a str,
}

/// The back-reference of an object, if it has one.
pub(crate) fn of(meta: &ObjectMeta) -> Option<Link<'_>> {
    let uid = meta.labels.as_ref()?.get(UID)?;
    let owner = meta.annotations.as_ref().and_then(|annotations| annotations.get(OWNER));
    Some(Link { uid, owner: owner.map_or("", String::as_str) })
}

/// Puts a back-reference to `owner` into metadata that is to be applied.
pub(crate) fn put(metadata: &mut Map<String, Value>, owner: &ObjectRef) {
    for (field, name, value) in
        [("labels", UID, owner.uid.clone().unwrap_or_default()), ("annotations", OWNER, owner.to_string())]
    {
        let entries = metadata.entry(field).or_insert_with(|| json!({}));
        if let Some(entries) = entries.as_object_mut() {
            entries.insert(name.to_owned(), json!(value));
        }
    }
}

impl Link<'_> {
    /// The owner's key, if the owner is of this kind, in whatever version.
    pub(crate) fn key(&self, kind: &Kind) -> Option<Key> {
        let (of, key) = self.owner.split_once(' ')?;
        let key = Key::from(key);
        (of == kind.to_string() && key.namespace.is_some() == kind.namespaced).then_some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn website() -> Kind {
        let [group, version, kind, plural] = ["example.com", "v1", "Website", "websites"].map(str::to_owned);
        Kind { group, version, kind, plural, namespaced: true }
    }

    #[test]
    fn what_was_put_is_read() {
        let mut owner = ObjectRef::new(website(), Key::new("default", "shop"));
        owner.uid = Some("uid-1".to_owned());
        let mut metadata = json!({"labels": {"app": "web"}});
        put(metadata.as_object_mut().unwrap(), &owner);
        let meta: ObjectMeta = serde_json::from_value(metadata).unwrap();
        let link = of(&meta).unwrap();
        assert_eq!(link, Link { uid: "uid-1", owner: "Website.example.com default/shop" });
        assert_eq!(meta.labels.as_ref().unwrap()["app"], "web");
        assert_eq!(link.key(&website()), Some(Key::new("default", "shop")));
        assert_eq!(link.key(&website().cluster_scoped()), None);
        assert_eq!(link.key(&Kind { group: "other.com".to_owned(), ..website() }), None);
        assert_eq!(of(&ObjectMeta::default()), None);
    }
}
