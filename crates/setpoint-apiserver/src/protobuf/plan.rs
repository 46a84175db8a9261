//! How a message is read and written: its fields from the facts, with what Go's types say about missing ones.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use setpoint_kinds::{Label, Presence, message, presence};

/// The fields of one message, sorted by number.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) fields: Vec<Field>,
}

#[derive(Debug)]
pub(super) struct Field {
    pub(super) number: u32,
    /// Name in JSON; `None` where the fields of `kind` are the parent's own there.
    pub(super) name: Option<&'static str>,
    pub(super) kind: Kind,
    pub(super) label: Label,
    /// What Go's JSON does with a zero; `None` for a pointer.
    pub(super) presence: Option<Presence>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Text,
    Bytes,
    Bool,
    Int,
    Double,
    /// A message; some have a form of their own in JSON.
    Message(&'static str, Special),
    /// A message that JSON shows as fields of its parent.
    Embedded(&'static Plan),
}

/// Messages that JSON does not show as objects of their fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    None,
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    /// JSON inside of a message.
    Raw,
    /// A list without its wrapping.
    Items,
    SchemaOrBool,
    SchemaOrArray,
    SchemaOrStrings,
}

/// Plans that were asked for; each is leaked once, as there are no more than messages.
static PLANS: RwLock<BTreeMap<&'static str, &'static Plan>> = RwLock::new(BTreeMap::new());

/// The plan of a message; `None` if there is none of this name.
pub(super) fn plan(name: &str) -> Option<&'static Plan> {
    if let Some(found) = PLANS.read().unwrap_or_else(PoisonError::into_inner).get(name) {
        return Some(found);
    }
    let kinds: BTreeMap<_, _> = presence(name).collect();
    let plan: &'static Plan = Box::leak(Box::new(make(name, &kinds)?));
    let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
    let mut plans = PLANS.write().unwrap_or_else(PoisonError::into_inner);
    // Another thread may have been faster.
    Some(plans.entry(name).or_insert(plan))
}

/// `kinds` are those of the outermost message: in JSON, the fields of embedded ones are its own.
fn make(name: &str, kinds: &BTreeMap<&str, Presence>) -> Option<Plan> {
    let mut fields = Vec::new();
    for field in message(name)? {
        let kind = match (field.kind, field.name) {
            ("string", _) => Kind::Text,
            ("bytes", _) => Kind::Bytes,
            ("bool", _) => Kind::Bool,
            ("int", _) => Kind::Int,
            ("double", _) => Kind::Double,
            (inner, None) => Kind::Embedded(Box::leak(Box::new(make(inner, kinds)?))),
            (inner, Some(_)) => Kind::Message(inner, special(inner)),
        };
        let presence = match field.name {
            Some(name) => kinds.get(name).copied(),
            None => Some(Presence::Always),
        };
        fields.push(Field { number: field.number, name: field.name, kind, label: field.label, presence });
    }
    fields.sort_by_key(|field| field.number);
    Some(Plan { fields })
}

fn special(name: &str) -> Special {
    match name.strip_prefix("io.k8s.").unwrap_or(name) {
        "apimachinery.pkg.apis.meta.v1.Time" => Special::Time,
        "apimachinery.pkg.apis.meta.v1.MicroTime" => Special::MicroTime,
        "apimachinery.pkg.api.resource.Quantity" => Special::Quantity,
        "apimachinery.pkg.util.intstr.IntOrString" => Special::IntOrString,
        "apimachinery.pkg.runtime.RawExtension"
        | "apimachinery.pkg.apis.meta.v1.FieldsV1"
        | "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON" => Special::Raw,
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool" => Special::SchemaOrBool,
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray" => Special::SchemaOrArray,
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray" => {
            Special::SchemaOrStrings
        }
        other if other.ends_with(".ExtraValue") || other.ends_with(".Verbs") => Special::Items,
        _ => Special::None,
    }
}
