//! Server-side apply.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    compare::{Comparison, compare},
    conflict::Conflicts,
    declared,
    entries::{self, Entries, EntriesError, Entry, Operation},
    last_applied,
    merge::merge,
    remove::remove,
    update,
};
use crate::{element::equal, field_set::FieldSet, schema::Schema};

/// The manager of the fields that an object had before it was first applied, when they were not tracked.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// An apply patch and what it meets.
#[derive(Clone, Copy, Debug)]
pub struct ApplyRequest<'a> {
    /// The schema of the object in the version of the request.
    pub schema: &'a Schema,
    /// The stored object, `None` when it does not exist.
    pub live: Option<&'a Value>,
    /// The applied configuration: the fields that the manager wants, with apiVersion, kind and name.
    pub intent: &'a Value,
    /// The `fieldManager` of the request.
    pub manager: &'a str,
    /// Whether to take over fields that others own.
    pub force: bool,
    /// The subresource that is written, empty for the object itself.
    pub subresource: &'a str,
    /// The group and version of the request, such as `apps/v1`.
    pub api_version: &'a str,
    /// Fields that this endpoint resets and that are therefore not owned through it: `status` on the object itself,
    /// `spec` on `/status`.
    pub ignored: &'a FieldSet,
    /// The time for the manager's entry.
    pub now: Timestamp,
}

/// The result of an apply, before defaulting, validation and admission.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The object with its `metadata.managedFields`.
    pub object: Value,
    /// Whether it differs from the live object, in a field or in who owns it.
    pub changed: bool,
}

/// Indicates that an apply was refused.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Somebody else owns fields that would change: 409 with a cause for each.
    #[error("{0}")]
    Conflicts(Conflicts),
    /// The request is malformed: 400.
    #[error("{0}")]
    BadRequest(String),
    /// The configuration does not fit the schema: 500 from Kubernetes, which checks this before anything else.
    #[error("{0}")]
    Untyped(String),
    /// The live object's entries are malformed: 500.
    #[error("failed to decode managed fields: {0}")]
    Entries(#[from] EntriesError),
}

/// Applies a configuration: merges it into the live object, removes what the manager applied before and applies no
/// more (unless another manager owns it too), and records what the manager owns now.
///
/// A `manager` of `kubectl` takes over from client-side apply without conflicts, as upstream does: by the
/// `last-applied-configuration` annotation, which is then kept up to date.
///
/// When nothing changes, the object is the live one, times included.
///
/// # Errors
/// [`ApplyError`] says which.
pub fn apply(request: &ApplyRequest<'_>) -> Result<Applied, ApplyError> {
    check(request)?;
    let empty = json!({"apiVersion": request.api_version, "kind": request.intent.get("kind")});
    let (live, mut entries) = match request.live {
        None => (&empty, Entries::default()),
        Some(live) => (live, Entries::of(live)?),
    };
    if entries.0.is_empty() && request.live.is_some() {
        let before = Entry {
            time: Some(entries::format_time(request.now)),
            ..request.entry(BEFORE_FIRST_APPLY, Operation::Update)
        };
        update::track(request.schema, &empty, live, before, request.ignored, &mut entries);
    }
    let result = match merge_owned(request, live, &entries, request.force) {
        Err(conflicts) if request.manager == "kubectl" => {
            match last_applied::left_over(request.schema, live, request.api_version, conflicts) {
                Ok(()) => merge_owned(request, live, &entries, true),
                Err(conflicts) => Err(conflicts),
            }
        }
        result => result,
    };
    let (mut object, entries) = result.map_err(ApplyError::Conflicts)?;
    if request.manager == "kubectl" {
        last_applied::refresh(&mut object, request.intent);
    }
    entries.write(&mut object);
    if let Some(before) = request.live {
        let changed = entries::keep_times(before, &mut object);
        return Ok(Applied { object: if changed { object } else { before.clone() }, changed });
    }
    Ok(Applied { object, changed: true })
}

impl ApplyRequest<'_> {
    fn entry(&self, manager: &str, operation: Operation) -> Entry {
        Entry {
            manager: if manager.is_empty() { "unknown".into() } else { manager.into() },
            operation,
            api_version: self.api_version.into(),
            subresource: self.subresource.into(),
            time: None,
            fields: FieldSet::default(),
        }
    }
}

fn check(request: &ApplyRequest<'_>) -> Result<(), ApplyError> {
    let text = |pointer: &str| request.intent.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let version = text("/apiVersion");
    if version != request.api_version {
        return Err(ApplyError::BadRequest(format!(
            "Incorrect version specified in apply patch. Specified patch version: {version}, expected: {}",
            request.api_version
        )));
    }
    if request.intent.pointer("/metadata/managedFields").is_some_and(|entries| !entries.is_null()) {
        return Err(ApplyError::BadRequest("metadata.managedFields must be nil".into()));
    }
    let problems = declared::problems(request.schema, request.intent);
    if problems.is_empty() {
        return Ok(());
    }
    // Go prints a group and a version, of which the group may be empty.
    let version = if version.contains('/') { version.to_owned() } else { format!("/{version}") };
    let problems = match problems.as_slice() {
        [only] => only.clone(),
        several => format!("errors:\n  {}", several.join("\n  ")),
    };
    Err(ApplyError::Untyped(format!(
        "failed to create typed patch object ({}/{}; {version}, Kind={}): {problems}",
        text("/metadata/namespace"),
        text("/metadata/name"),
        text("/kind"),
    )))
}

/// Merges the intent and hands its fields to the manager.
fn merge_owned(
    request: &ApplyRequest<'_>,
    live: &Value,
    entries: &Entries,
    force: bool,
) -> Result<(Value, Entries), Conflicts> {
    let own = request.entry(request.manager, Operation::Apply);
    let mut entries = entries.clone();
    let last = entries.0.iter().position(|entry| entry.is_of(&own)).map(|index| entries.0.remove(index));
    let mut fields = FieldSet::of(request.schema, request.intent);
    fields.remove_below(request.ignored);

    let merged = merge(request.schema, live, request.intent);
    let object = match &last {
        None => merged,
        Some(last) => remove_dropped(request.schema, merged, &last.fields, &fields, &entries),
    };

    if !entries.0.is_empty() {
        let comparison = compare(request.schema, live, &object, request.ignored);
        take_over(&mut entries, &comparison, force)?;
    }

    entries::strip(&mut fields);
    if !fields.is_empty() {
        let time = if equal(live, &object) {
            last.and_then(|last| last.time)
        } else {
            Some(entries::format_time(request.now))
        };
        entries.0.push(Entry { time, fields, ..own });
    }
    Ok((object, entries))
}

/// Removes the fields that the manager applied before, applies no more, and that nobody else owns.
fn remove_dropped(
    schema: &Schema,
    merged: Value,
    last: &FieldSet,
    now: &FieldSet,
    others: &Entries,
) -> Value {
    if last.difference(now).is_empty() {
        return merged;
    }
    let mut owned = now.clone();
    for entry in &others.0 {
        owned.extend(entry.fields.clone());
    }
    let dropped = last.with_named_fields(schema).difference(&owned.with_named_fields(schema));
    remove(schema, merged, &dropped)
}

/// Takes changed and removed fields from their other owners.
///
/// # Errors
/// The conflicts, when a changed field has another owner and `force` is not set.
pub(super) fn take_over(
    entries: &mut Entries,
    comparison: &Comparison,
    force: bool,
) -> Result<(), Conflicts> {
    if entries.0.is_empty() {
        return Ok(());
    }
    let changed = comparison.modified.union(&comparison.added);
    let mut conflicts = Conflicts::default();
    let mut owners: Vec<&Entry> = entries.0.iter().collect();
    owners.sort_by_key(|entry| (&entry.manager, entry.operation, &entry.api_version, &entry.subresource));
    for owner in owners {
        conflicts.add(owner, &owner.fields.intersection(&changed));
    }
    if !force && !conflicts.0.is_empty() {
        return Err(conflicts);
    }
    for entry in &mut entries.0 {
        entry.fields.remove_all(&changed);
        entry.fields.remove_all(&comparison.removed);
    }
    entries.0.retain(|entry| !entry.fields.is_empty());
    Ok(())
}
