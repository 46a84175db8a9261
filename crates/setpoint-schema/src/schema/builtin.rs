//! Schemas of built-in definitions, read when they are first asked for and kept: they are facts and never change.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock, PoisonError, RwLock},
};

use super::{Node, Schema, Type, parse};

static READ: LazyLock<RwLock<BTreeMap<Box<str>, Schema>>> = LazyLock::new(RwLock::default);

/// A definition's schema.
pub(super) fn lookup(definition: &str) -> Option<Schema> {
    if let Some(schema) = READ.read().unwrap_or_else(PoisonError::into_inner).get(definition) {
        return Some(schema.clone());
    }
    let document = setpoint_kinds::definition(definition)?;
    // What the generator wrote is tested to parse; a definition that does not says nothing rather than break a kind.
    let mut node = parse::node(document, parse::Origin::Builtin, definition).ok()?;
    // What is in it is somebody else's type: Go keeps the bytes, so it has one owner.
    node.atomic_map |= definition == "io.k8s.apimachinery.pkg.runtime.RawExtension";
    node.presence = Arc::new(setpoint_kinds::presence(definition).collect());
    let schema = Schema::of(node);
    let mut read = READ.write().unwrap_or_else(PoisonError::into_inner);
    Some(read.entry(definition.into()).or_insert(schema).clone())
}

/// The schema of `metadata`, in every object.
pub(super) fn object_meta() -> &'static Schema {
    static OBJECT_META: LazyLock<Schema> = LazyLock::new(|| {
        lookup("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").unwrap_or_else(Schema::untyped)
    });
    &OBJECT_META
}

/// The schema of a plain string.
pub(super) fn text() -> &'static Schema {
    static TEXT: LazyLock<Schema> =
        LazyLock::new(|| Schema::of(Node { kind: Some(Type::String), ..Node::default() }));
    &TEXT
}
