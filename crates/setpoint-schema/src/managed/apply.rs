//! Server-side apply.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    conflict::Conflicts,
    declared,
    entries::{self, Entries, EntriesError, Entry, Operation},
    last_applied,
    merge::merge,
    remove::remove,
    update,
    versions::{Comparisons, Needed, Versions},
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
/// Fields that a manager owns in another version are taken to have the same names here: see [`apply_in_versions`].
///
/// # Errors
/// [`ApplyError`] says which.
pub fn apply(request: &ApplyRequest<'_>) -> Result<Applied, ApplyError> {
    match applied(request, None) {
        Ok(applied) => Ok(applied),
        Err(Stopped::Refused(error)) => Err(error),
        // Nothing is needed where all versions are one.
        Err(Stopped::Needs(needed)) => {
            Err(ApplyError::BadRequest(format!("the object is needed in version {}", needed.api_version)))
        }
    }
}

/// As [`apply`], where versions name fields differently.
///
/// # Errors
/// Outside, a conversion that is needed first; inside, why the apply was refused.
pub fn apply_in_versions(
    request: &ApplyRequest<'_>,
    versions: &Versions,
) -> Result<Result<Applied, ApplyError>, Needed> {
    match applied(request, Some(versions)) {
        Ok(applied) => Ok(Ok(applied)),
        Err(Stopped::Refused(error)) => Ok(Err(error)),
        Err(Stopped::Needs(needed)) => Err(needed),
    }
}

/// Why an apply did not come to its end.
enum Stopped {
    Refused(ApplyError),
    Needs(Needed),
}

impl<E: Into<ApplyError>> From<E> for Stopped {
    fn from(error: E) -> Self {
        Self::Refused(error.into())
    }
}

/// Why fields could not be merged and taken over.
enum Unmerged {
    Conflicts(Conflicts),
    Needs(Needed),
}

impl From<Needed> for Unmerged {
    fn from(needed: Needed) -> Self {
        Self::Needs(needed)
    }
}

fn applied(request: &ApplyRequest<'_>, versions: Option<&Versions>) -> Result<Applied, Stopped> {
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
        update::track(request.schema, (&empty, live), before, request.ignored, &mut entries, versions)
            .map_err(Stopped::Needs)?;
    }
    let result = match merge_owned(request, live, &entries, request.force, versions) {
        Err(Unmerged::Conflicts(conflicts)) if request.manager == "kubectl" => {
            match last_applied::left_over(request.schema, live, request.api_version, conflicts) {
                Ok(()) => merge_owned(request, live, &entries, true, versions),
                Err(conflicts) => Err(Unmerged::Conflicts(conflicts)),
            }
        }
        result => result,
    };
    let (mut object, entries) = result.map_err(|unmerged| match unmerged {
        Unmerged::Conflicts(conflicts) => Stopped::Refused(ApplyError::Conflicts(conflicts)),
        Unmerged::Needs(needed) => Stopped::Needs(needed),
    })?;
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
    versions: Option<&Versions>,
) -> Result<(Value, Entries), Unmerged> {
    let own = request.entry(request.manager, Operation::Apply);
    let mut entries = entries.clone();
    let last = entries.0.iter().position(|entry| entry.is_of(&own)).map(|index| entries.0.remove(index));
    let mut fields = FieldSet::of(request.schema, request.intent);
    fields.remove_below(request.ignored);

    let merged = merge(request.schema, live, request.intent);
    let object = match &last {
        None => merged,
        Some(last) => remove_dropped(request, merged, last, &fields, &entries, versions)?,
    };

    if !entries.0.is_empty() {
        let comparisons = Comparisons::of(
            request.schema,
            (live, &object),
            request.api_version,
            request.ignored,
            &entries,
            versions,
        )?;
        take_over(&mut entries, &comparisons, force).map_err(Unmerged::Conflicts)?;
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
    request: &ApplyRequest<'_>,
    merged: Value,
    last: &Entry,
    now: &FieldSet,
    others: &Entries,
    versions: Option<&Versions>,
) -> Result<Value, Needed> {
    let own = request.api_version;
    let elsewhere = last.api_version != own || others.0.iter().any(|entry| entry.api_version != own);
    if let (true, Some(versions)) = (elsewhere, versions) {
        return remove_dropped_elsewhere(request, &merged, last, now, others, versions);
    }
    if last.fields.difference(now).is_empty() {
        return Ok(merged);
    }
    let mut owned = now.clone();
    for entry in &others.0 {
        owned.extend(entry.fields.clone());
    }
    let schema = request.schema;
    let dropped = last.fields.with_named_fields(schema).difference(&owned.with_named_fields(schema));
    Ok(remove(schema, merged, &dropped))
}

/// The same where managers use several versions: all that was applied is removed in the version in which it was, and what
/// managers own is put back in theirs, version by version (upstream: `prune`, `addBackOwnedItems`).
fn remove_dropped_elsewhere(
    request: &ApplyRequest<'_>,
    merged: &Value,
    last: &Entry,
    now: &FieldSet,
    others: &Entries,
    versions: &Versions,
) -> Result<Value, Needed> {
    let Some((mut schema, mut whole)) = versions.get(request.schema, merged, &last.api_version)? else {
        return Ok(merged.clone());
    };
    let mut pruned = remove(&schema, whole.clone(), &last.fields.with_named_fields(&schema));
    let mut owned: Vec<(&str, FieldSet)> = vec![(&last.api_version, FieldSet::default())];
    let own = std::iter::once((request.api_version, now));
    for (version, fields) in others.0.iter().map(|entry| (&*entry.api_version, &entry.fields)).chain(own) {
        match owned.iter_mut().find(|(known, _)| *known == version) {
            Some((_, known)) => known.extend(fields.clone()),
            None => owned.push((version, fields.clone())),
        }
    }
    for (version, fields) in owned {
        let Some((other, there)) = versions.get(&schema, &whole, version)? else { continue };
        let Some((_, left)) = versions.get(&schema, &pruned, version)? else { continue };
        (schema, whole) = (other, there);
        let kept = FieldSet::of(&schema, &left).union(&fields).with_named_fields(&schema);
        let gone = FieldSet::of(&schema, &whole).with_named_fields(&schema).difference(&kept);
        pruned = remove(&schema, whole.clone(), &gone);
    }
    let Some((_, mut object)) = versions.get(&schema, &pruned, request.api_version)? else {
        return Ok(merged.clone());
    };
    // No version knows of the entries themselves.
    if let Some(entries) = merged.pointer("/metadata/managedFields") {
        object["metadata"]["managedFields"] = entries.clone();
    }
    Ok(object)
}

/// Takes changed and removed fields from their other owners. Owners by a version that is no more lose everything.
///
/// # Errors
/// The conflicts, when a changed field has another owner and `force` is not set.
pub(super) fn take_over(
    entries: &mut Entries,
    comparisons: &Comparisons,
    force: bool,
) -> Result<(), Conflicts> {
    if entries.0.is_empty() {
        return Ok(());
    }
    let mut conflicts = Conflicts::default();
    let mut owners: Vec<&Entry> = entries.0.iter().collect();
    owners.sort_by_key(|entry| (&entry.manager, entry.operation, &entry.api_version, &entry.subresource));
    for owner in owners {
        if let Some(comparison) = comparisons.in_version(&owner.api_version) {
            let changed = comparison.modified.union(&comparison.added);
            conflicts.add(owner, &owner.fields.intersection(&changed));
        }
    }
    if !force && !conflicts.0.is_empty() {
        return Err(conflicts);
    }
    entries.0.retain_mut(|entry| {
        let Some(comparison) = comparisons.in_version(&entry.api_version) else { return false };
        entry.fields.remove_all(&comparison.modified);
        entry.fields.remove_all(&comparison.added);
        entry.fields.remove_all(&comparison.removed);
        !entry.fields.is_empty()
    });
    Ok(())
}
