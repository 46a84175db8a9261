//! Tracking of writes other than apply.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{
    apply::take_over,
    entries::{self, Entries, Entry, Operation},
    versions::{Comparisons, Needed, Versions},
};
use crate::{field_set::FieldSet, schema::Schema};

/// A create, update or patch and what it meets.
#[derive(Clone, Copy, Debug)]
pub struct UpdateRequest<'a> {
    /// The schema of the object in the version of the request.
    pub schema: &'a Schema,
    /// The stored object, `None` for a create.
    pub live: Option<&'a Value>,
    /// The `fieldManager` of the request, or the first part of its user agent.
    pub manager: &'a str,
    /// The subresource that is written, empty for the object itself.
    pub subresource: &'a str,
    /// The group and version of the request, such as `apps/v1`.
    pub api_version: &'a str,
    /// Fields that this endpoint resets and that are therefore not owned through it.
    pub ignored: &'a FieldSet,
    /// The time for the manager's entry.
    pub now: Timestamp,
}

/// Gives an object, as it would be stored after defaults, the `metadata.managedFields` that say who owns what after the
/// write: the manager what it changed, the others what it left.
///
/// A client resets the tracking with `managedFields: [{}]`, or `[]` for built-in kinds, and may edit the entries;
/// entries that it leaves out or breaks are those of the live object. Objects whose entries were reset are not tracked until they are applied.
///
/// Fields that a manager owns in another version are taken to have the same names here: see [`update_in_versions`].
pub fn update(request: &UpdateRequest<'_>, object: &mut Value) {
    // Nothing is needed where all versions are one.
    let _ = updated(request, object, None);
}

/// As [`update`], where versions name fields differently.
///
/// # Errors
/// A conversion that is needed first; the object is as it was.
pub fn update_in_versions(
    request: &UpdateRequest<'_>,
    object: &mut Value,
    versions: &Versions,
) -> Result<(), Needed> {
    updated(request, object, Some(versions))
}

fn updated(
    request: &UpdateRequest<'_>,
    object: &mut Value,
    versions: Option<&Versions>,
) -> Result<(), Needed> {
    let sent = entries::take(object);
    let nothing = Value::Object(Map::new());
    let live = request.live.unwrap_or(&nothing);
    let mut entries = starting_entries(request, sent.as_ref());
    if entries.0.is_empty() && request.live.is_some() {
        return Ok(());
    }
    let own = Entry {
        manager: if request.manager.is_empty() { "unknown".into() } else { request.manager.into() },
        operation: Operation::Update,
        api_version: request.api_version.into(),
        subresource: request.subresource.into(),
        time: Some(entries::format_time(request.now)),
        fields: FieldSet::default(),
    };
    let tracked = track(request.schema, (live, object), own, request.ignored, &mut entries, versions);
    if let Err(needed) = tracked {
        if let Some(sent) = sent {
            object["metadata"]["managedFields"] = sent;
        }
        return Err(needed);
    }
    entries.cap();
    entries.write(object);
    if let Some(live) = request.live {
        entries::keep_times(live, object);
    }
    Ok(())
}

fn starting_entries(request: &UpdateRequest<'_>, sent: Option<&Value>) -> Entries {
    let live = || request.live.map(Entries::of).and_then(Result::ok).unwrap_or_default();
    if !request.subresource.is_empty() {
        return live();
    }
    match sent.and_then(Value::as_array).map(Vec::as_slice) {
        // For custom resources an empty list reads as none [seen on v1.37.2].
        Some([]) if request.schema.node.builtin => Entries::default(),
        Some([Value::Object(only)]) if only.is_empty() => Entries::default(),
        Some(_) => match Entries::read(sent) {
            Ok(entries) if !entries.0.is_empty() => entries,
            _ => live(),
        },
        None => live(),
    }
}

/// Hands the fields that changed between two objects to `own`, and takes them from all others.
///
/// # Errors
/// A conversion that is needed first.
pub(super) fn track(
    schema: &Schema,
    objects: (&Value, &Value),
    own: Entry,
    ignored: &FieldSet,
    entries: &mut Entries,
    versions: Option<&Versions>,
) -> Result<(), Needed> {
    let comparisons = Comparisons::of(schema, objects, &own.api_version, ignored, entries, versions)?;
    // With force there are no conflicts.
    let _ = take_over(entries, &comparisons, true);
    let comparison = comparisons.into_own();
    let mut fields = comparison.modified;
    fields.extend(comparison.added);
    entries::strip(&mut fields);
    if fields.is_empty() {
        return Ok(());
    }
    match entries.0.iter_mut().find(|entry| entry.is_of(&own)) {
        Some(entry) => {
            entry.fields.extend(fields);
            entry.time = own.time;
        }
        None => entries.0.push(Entry { fields, ..own }),
    }
    Ok(())
}
