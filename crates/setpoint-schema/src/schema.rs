//! Schemas of objects: custom resources' structural schemas and the shapes of built-in kinds.

mod builtin;
mod parse;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, LazyLock, OnceLock},
};

use regex::Regex;
use serde_json::{Number, Value};
use setpoint_kinds::Presence;

pub use parse::SchemaError;

/// The schema of an object or of a value in it. Cheap to clone.
///
/// A schema comes from the `openAPIV3Schema` of a CustomResourceDefinition ([`Schema::from_openapi`]), from the facts
/// about built-in kinds ([`Schema::builtin`]), or says nothing ([`Schema::untyped`]). Definitions that refer to each
/// other, or to themselves, are read when they are first reached.
#[derive(Clone)]
pub struct Schema {
    pub(crate) node: Arc<Node>,
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the fields: a definition may contain itself.
        f.debug_struct("Schema").field("type", &self.node.kind).finish_non_exhaustive()
    }
}

static UNTYPED: LazyLock<Schema> =
    LazyLock::new(|| Schema::of(Node { preserve_unknown: true, ..Node::default() }));

impl Schema {
    fn of(node: Node) -> Self {
        Self { node: Arc::new(node) }
    }

    /// Reads the `openAPIV3Schema` of a version of a CustomResourceDefinition. The root is an object of the API, so
    /// `apiVersion`, `kind` and `metadata` are known without being listed.
    ///
    /// # Errors
    /// When a keyword has the wrong shape or a value that means nothing; the error names the place in the schema.
    /// Keywords that structural schemas forbid (`$ref`, `definitions`, `patternProperties`, …) are errors too.
    pub fn from_openapi(schema: &Value) -> Result<Self, SchemaError> {
        let mut node = parse::node(schema, parse::Origin::Custom, "openAPIV3Schema")?;
        node.resource = true;
        Ok(Self::of(node))
    }

    /// The same for an object that is no object of the API.
    #[cfg(feature = "cel")]
    pub(crate) fn without_resource(&self) -> Self {
        Self::of(Node { resource: false, ..(*self.node).clone() })
    }

    /// The schema of a built-in definition, such as `io.k8s.api.core.v1.Pod`, or `None` for an unknown name.
    pub fn builtin(definition: &str) -> Option<Self> {
        builtin::lookup(definition)
    }

    /// The schema that says nothing: every value is allowed and kept, maps merge by key, lists are replaced as a whole.
    pub fn untyped() -> Self {
        UNTYPED.clone()
    }

    pub(crate) fn untyped_ref() -> &'static Self {
        &UNTYPED
    }

    /// The schema at a path of field names, with `*` for the values of a map and the items of a list.
    pub fn at(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |schema, step| match *step {
            "*" if schema.node.kind == Some(Type::Array) => Some(schema.item()),
            "*" => schema.element(),
            name => schema.field(name),
        })
    }
}

/// What a schema says about one value: its keywords.
#[derive(Clone, Default)]
pub(crate) struct Node {
    pub(crate) kind: Option<Type>,
    pub(crate) nullable: bool,
    pub(crate) int_or_string: bool,
    pub(crate) preserve_unknown: bool,
    /// An object of the API: the root, or an embedded resource.
    pub(crate) resource: bool,
    /// From the facts about built-in kinds, whose documents give Go's zero values as defaults.
    pub(crate) builtin: bool,
    pub(crate) format: Option<Box<str>>,
    pub(crate) default: Option<Value>,
    pub(crate) properties: Arc<BTreeMap<String, Child>>,
    pub(crate) additional: Additional,
    pub(crate) items: Option<Child>,
    pub(crate) list: ListType,
    pub(crate) atomic_map: bool,
    pub(crate) patch: Patch,
    pub(crate) checks: Arc<Checks>,
    /// What Go's type says about fields that are not set; empty for custom resources.
    pub(crate) presence: Arc<BTreeMap<&'static str, Presence>>,
    /// `x-kubernetes-validations`, as written; compiled by the feature `cel`.
    #[cfg_attr(not(feature = "cel"), expect(dead_code, reason = "read by the feature `cel` only"))]
    pub(crate) rules: Arc<[Value]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Type {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// `x-kubernetes-list-type`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ListType {
    #[default]
    Atomic,
    Set,
    /// With the fields that make an item's key.
    Map(Arc<[Box<str>]>),
}

/// `x-kubernetes-patch-strategy` and `x-kubernetes-patch-merge-key`: how a strategic merge patch treats a field.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patch {
    pub(crate) merge: bool,
    pub(crate) replace: bool,
    pub(crate) retain_keys: bool,
    pub(crate) merge_key: Option<Box<str>>,
}

/// `additionalProperties`.
#[derive(Clone, Default)]
pub(crate) enum Additional {
    #[default]
    Unset,
    Allowed,
    Denied,
    Schema(Child),
}

/// What is checked on values and changes nothing else.
#[derive(Clone, Default)]
pub(crate) struct Checks {
    pub(crate) minimum: Option<Number>,
    pub(crate) exclusive_minimum: bool,
    pub(crate) maximum: Option<Number>,
    pub(crate) exclusive_maximum: bool,
    pub(crate) multiple_of: Option<Number>,
    pub(crate) min_length: Option<u64>,
    pub(crate) max_length: Option<u64>,
    pub(crate) pattern: Option<Regex>,
    pub(crate) min_items: Option<u64>,
    pub(crate) max_items: Option<u64>,
    pub(crate) unique_items: bool,
    pub(crate) min_properties: Option<u64>,
    pub(crate) max_properties: Option<u64>,
    pub(crate) required: Vec<String>,
    pub(crate) allowed: Vec<Value>,
    pub(crate) all_of: Vec<Schema>,
    pub(crate) any_of: Vec<Schema>,
    pub(crate) one_of: Vec<Schema>,
    pub(crate) not: Option<Schema>,
}

/// A schema below another.
#[derive(Clone)]
pub(crate) enum Child {
    Inline(Schema),
    Reference(Arc<Reference>),
}

/// A `$ref` with the keywords beside it that matter for a field.
pub(crate) struct Reference {
    pub(crate) definition: Box<str>,
    pub(crate) default: Option<Value>,
    pub(crate) nullable: bool,
    /// Overrides that of the definition.
    pub(crate) atomic_map: Option<bool>,
    pub(crate) patch: Patch,
    pub(crate) resolved: OnceLock<Schema>,
}

impl Child {
    pub(crate) fn schema(&self) -> &Schema {
        match self {
            Self::Inline(schema) => schema,
            Self::Reference(reference) => reference.resolved.get_or_init(|| reference.resolve()),
        }
    }
}

impl Reference {
    fn resolve(&self) -> Schema {
        // A definition that the facts lack says nothing.
        let schema = Schema::builtin(&self.definition).unwrap_or_else(Schema::untyped);
        let patch = &self.patch;
        let changes_how_it_merges =
            self.atomic_map.is_some() || patch.merge || patch.replace || patch.retain_keys;
        if self.default.is_none() && !self.nullable && !changes_how_it_merges {
            return schema;
        }
        let mut node = (*schema.node).clone();
        node.default = self.default.clone().or(node.default);
        node.nullable |= self.nullable;
        node.atomic_map = self.atomic_map.unwrap_or(node.atomic_map);
        node.patch = patch.clone();
        Schema::of(node)
    }
}

impl Schema {
    /// The schema of a field that is listed in `properties`, or known because this is an object of the API.
    pub(crate) fn named(&self, name: &str) -> Option<&Schema> {
        if self.node.resource {
            match name {
                "metadata" => return Some(builtin::object_meta()),
                "apiVersion" | "kind" => return Some(builtin::text()),
                _ => {}
            }
        }
        self.node.properties.get(name).map(Child::schema)
    }

    /// The schema of the entries of a map, `None` where only the listed fields are allowed.
    pub(crate) fn element(&self) -> Option<&Schema> {
        match &self.node.additional {
            Additional::Schema(child) => Some(child.schema()),
            Additional::Allowed => Some(Schema::untyped_ref()),
            Additional::Unset if self.node.preserve_unknown || self.node.properties.is_empty() => {
                Some(Schema::untyped_ref())
            }
            Additional::Unset | Additional::Denied => None,
        }
    }

    /// The schema of a field, listed or not.
    pub(crate) fn field(&self, name: &str) -> Option<&Schema> {
        self.named(name).or_else(|| self.element())
    }

    /// The schema that the document gives a field: by its name or as an entry of a map.
    pub(crate) fn declared(&self, name: &str) -> Option<&Child> {
        self.node.properties.get(name).or(match &self.node.additional {
            Additional::Schema(child) => Some(child),
            _ => None,
        })
    }

    /// The schema of a list's items.
    pub(crate) fn item(&self) -> &Schema {
        self.node.items.as_ref().map_or(Schema::untyped_ref(), Child::schema)
    }

    /// Whether this is an object about whose fields nothing is said.
    pub(crate) fn is_free_form(&self) -> bool {
        self.node.properties.is_empty() && matches!(self.node.additional, Additional::Unset)
    }

    /// The item of an old list that is the same item: only those of list maps can be told to be, by their key.
    pub(crate) fn same_item<'a>(&self, item: &Value, old: Option<&'a Value>) -> Option<&'a Value> {
        let ListType::Map(keys) = &self.node.list else { return None };
        let same = |other: &&Value| keys.iter().all(|key| other.get(&**key) == item.get(&**key));
        old?.as_array()?.iter().find(same)
    }
}
