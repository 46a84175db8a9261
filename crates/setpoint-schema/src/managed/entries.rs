//! The entries of `metadata.managedFields`.

use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::NEVER_OWNED_METADATA;
use crate::{
    element::{Element, equal},
    field_set::{FieldSet, FieldSetError},
};

/// How many managers may be tracked by their updates; the oldest beyond become one (upstream: `capManagersManager`).
const MAX_UPDATE_MANAGERS: usize = 10;

/// The manager of the fields of the oldest updates.
const ANCIENT_CHANGES: &str = "ancient-changes";

/// How a manager came to own its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// By server-side apply.
    Apply,
    /// By any other write.
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// What one manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The manager's name.
    pub manager: String,
    /// How it came to own the fields.
    pub operation: Operation,
    /// The version in which the fields are named.
    pub api_version: String,
    /// The subresource that was written, empty for the object itself.
    pub subresource: String,
    /// When the set last changed, as RFC 3339 text.
    pub time: Option<String>,
    /// The fields.
    pub fields: FieldSet,
}

impl Entry {
    /// Whether the two are entries of one manager: an applier stays itself across versions, an updater does not.
    pub(super) fn is_of(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    fn seconds(&self) -> i64 {
        self.time.as_deref().and_then(|time| time.parse::<Timestamp>().ok()).map_or(0, Timestamp::as_second)
    }

    fn sort_key(&self) -> (Operation, i64, &str, &str, &str) {
        (self.operation, self.seconds(), &self.manager, &self.api_version, &self.subresource)
    }
}

/// Indicates that `metadata.managedFields` cannot be read. Messages are upstream's.
#[derive(Debug, thiserror::Error)]
pub enum EntriesError {
    /// The field is not a list of objects.
    #[error("managedFields must be a list of entries, not {0}")]
    Shape(Value),
    /// An entry's operation is neither.
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    /// An entry has no apiVersion.
    #[error("apiVersion must not be empty")]
    ApiVersion,
    /// An entry has no fieldsType.
    #[error("missing fieldsType in managed fields entry {0}")]
    MissingType(usize),
    /// An entry's fieldsType is not `FieldsV1`.
    #[error("invalid fieldsType {kind:?} in managed fields entry {index}")]
    Type {
        /// Which entry.
        index: usize,
        /// What it says.
        kind: String,
    },
    /// An entry's fields are malformed.
    #[error("error decoding set: {0}")]
    Fields(#[from] FieldSetError),
}

/// The entries of an object's `metadata.managedFields`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries(pub Vec<Entry>);

impl Entries {
    /// Reads the entries of an object; none when it has no `managedFields`.
    ///
    /// # Errors
    /// When an entry is malformed.
    pub fn of(object: &Value) -> Result<Self, EntriesError> {
        Self::read(object.get("metadata").and_then(|metadata| metadata.get("managedFields")))
    }

    /// Reads the entries of a `managedFields`.
    pub(super) fn read(entries: Option<&Value>) -> Result<Self, EntriesError> {
        match entries {
            None | Some(Value::Null) => Ok(Self::default()),
            Some(Value::Array(entries)) => Ok(Self(
                entries
                    .iter()
                    .enumerate()
                    .map(|(index, entry)| read(index, entry))
                    .collect::<Result<_, _>>()?,
            )),
            Some(other) => Err(EntriesError::Shape(other.clone())),
        }
    }

    /// The entry of a manager, by name, operation and subresource.
    pub fn get(&self, manager: &str, operation: Operation, subresource: &str) -> Option<&Entry> {
        self.0.iter().find(|entry| {
            entry.manager == manager && entry.operation == operation && entry.subresource == subresource
        })
    }

    /// Writes the entries into an object, sorted as Kubernetes sorts them: appliers first, then by time and name.
    pub fn write(mut self, object: &mut Value) {
        self.0.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        let entries: Vec<Value> = self.0.iter().map(encode).collect();
        let Value::Object(fields) = object else { return };
        if entries.is_empty() {
            if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
                metadata.remove("managedFields");
            }
            return;
        }
        if let Value::Object(metadata) = fields.entry("metadata").or_insert_with(|| Value::Object(Map::new()))
        {
            metadata.insert("managedFields".into(), Value::Array(entries));
        }
    }

    /// Merges the oldest update entries of each version until no more than the limit are left.
    pub(super) fn cap(&mut self) {
        let is_updater = |entry: &&Entry| entry.operation == Operation::Update;
        if self.0.iter().filter(is_updater).count() <= MAX_UPDATE_MANAGERS {
            return;
        }
        let mut updaters: Vec<Entry> = self.0.iter().filter(is_updater).cloned().collect();
        updaters.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        let mut left = updaters.len();
        let mut firsts: Vec<Entry> = Vec::new();
        for updater in updaters {
            if left <= MAX_UPDATE_MANAGERS {
                break;
            }
            let Some(first) = firsts.iter().position(|first| first.api_version == updater.api_version) else {
                firsts.push(updater);
                continue;
            };
            let bucket = Entry {
                manager: ANCIENT_CHANGES.into(),
                operation: Operation::Update,
                api_version: updater.api_version.clone(),
                subresource: String::new(),
                time: updater.time.clone(),
                fields: FieldSet::default(),
            };
            if !self.0.iter().any(|entry| entry.is_of(&bucket)) {
                // The first of this version turns into the bucket.
                let first = firsts[first].clone();
                self.0.retain(|entry| !entry.is_of(&first));
                self.0.push(Entry { fields: first.fields, ..bucket.clone() });
            }
            self.0.retain(|entry| !entry.is_of(&updater));
            if let Some(bucket) = self.0.iter_mut().find(|entry| entry.is_of(&bucket)) {
                bucket.fields.extend(updater.fields);
                bucket.time = updater.time;
            }
            left -= 1;
        }
    }
}

fn read(index: usize, entry: &Value) -> Result<Entry, EntriesError> {
    let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
    let operation = match text("operation") {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return Err(EntriesError::Operation),
    };
    if text("apiVersion").is_empty() {
        return Err(EntriesError::ApiVersion);
    }
    match text("fieldsType") {
        "FieldsV1" => {}
        "" => return Err(EntriesError::MissingType(index)),
        other => return Err(EntriesError::Type { index, kind: other.into() }),
    }
    Ok(Entry {
        manager: text("manager").into(),
        operation,
        api_version: text("apiVersion").into(),
        subresource: text("subresource").into(),
        time: entry.get("time").and_then(Value::as_str).map(Into::into),
        fields: match entry.get("fieldsV1") {
            None | Some(Value::Null) => FieldSet::default(),
            Some(fields) => FieldSet::from_fields_v1(fields)?,
        },
    })
}

fn encode(entry: &Entry) -> Value {
    let mut value = Map::new();
    let mut set = |key: &str, text: &str| value.insert(key.to_owned(), text.into());
    set("manager", &entry.manager);
    set("operation", entry.operation.name());
    set("apiVersion", &entry.api_version);
    set("fieldsType", "FieldsV1");
    if let Some(time) = &entry.time {
        set("time", time);
    }
    if !entry.subresource.is_empty() {
        set("subresource", &entry.subresource);
    }
    value.insert("fieldsV1".to_owned(), entry.fields.to_fields_v1());
    Value::Object(value)
}

/// Takes `metadata.managedFields` out of an object.
pub(super) fn take(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

/// When a write changed nothing but the times of its managed fields, puts back those that `live` has, so that the
/// write is none. To be called last before an object is stored, after defaults and admission (upstream:
/// `IgnoreManagedFieldsTimestampsTransformer`). Answers whether anything but times changed.
pub fn keep_times(live: &Value, object: &mut Value) -> bool {
    if live == object {
        return false;
    }
    let metadata =
        |object: &Value| object.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    let (mut before, mut after) = (metadata(live), metadata(object));
    let (kept, sent) = (before.remove("managedFields"), after.remove("managedFields"));
    let unchanged = same_but_times(kept.as_ref(), sent.as_ref())
        && before.len() == after.len()
        && before.iter().all(|(key, value)| after.get(key).is_some_and(|other| equal(value, other)))
        && same_but_metadata(live, object);
    if !unchanged {
        return true;
    }
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.extend(kept.map(|kept| ("managedFields".to_owned(), kept)));
    }
    false
}

fn same_but_metadata(a: &Value, b: &Value) -> bool {
    let (Value::Object(a), Value::Object(b)) = (a, b) else { return a == b };
    a.len() == b.len()
        && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| key == "metadata" || equal(a, b)))
}

/// Whether two lists of entries say the same, in any order and at any time.
fn same_but_times(a: Option<&Value>, b: Option<&Value>) -> bool {
    const KEYS: [&str; 5] = ["manager", "operation", "apiVersion", "subresource", "fieldsV1"];
    let (a, b) = (super::shape::items(a), super::shape::items(b));
    let same = |a: &Value, b: &Value| KEYS.iter().all(|key| a.get(key) == b.get(key));
    a.len() == b.len() && a.iter().all(|a| b.iter().any(|b| same(a, b)))
}

/// Takes out what nobody owns: the kind of the object and its identity.
pub(super) fn strip(fields: &mut FieldSet) {
    static STRIPPED: LazyLock<FieldSet> = LazyLock::new(|| {
        let mut set = FieldSet::of_fields(&[&["apiVersion"], &["kind"], &["metadata"]]);
        for name in NEVER_OWNED_METADATA {
            set.insert([Element::field("metadata"), Element::field(name)]);
        }
        set
    });
    fields.remove_all(&STRIPPED);
}

/// A time as managed fields carry it: RFC 3339 in UTC, whole seconds.
pub(super) fn format_time(now: Timestamp) -> String {
    // Printing RFC 3339 takes a fraction of what a format of one's own does.
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}
