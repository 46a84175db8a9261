//! Patches: JSON, merge, strategic merge, and server-side apply.

use http::HeaderMap;
use serde_json::Value;
use setpoint_schema::json_size;
use setpoint_schema::managed::ApplyError;
use setpoint_schema::patch::{self, PatchError};

use super::decode::{media_type, parse_json_naming, parse_yaml_naming};
use super::modify::Wanted;
use super::options::{FieldValidation, refuse};
use super::tracked::Tracked;
use super::{Place, Registry, WriteOptions, Written, patched};
use crate::catalog::Resource;
use crate::object::{Metadata, meta_mut};
use crate::request_body::BODY_LIMIT;
use crate::status::{Cause, Result, Status};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchKind {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchKind {
    /// With their media types, in the order in which kube-apiserver lists them.
    const ALL: [(Self, &str); 4] = [
        (Self::Json, "application/json-patch+json"),
        (Self::Merge, "application/merge-patch+json"),
        (Self::Strategic, "application/strategic-merge-patch+json"),
        (Self::Apply, "application/apply-patch+yaml"),
    ];

    /// The patches that `resource` takes. A strategic merge follows the tags of Go types: custom resources have none.
    fn taken_by(resource: &Resource) -> impl Iterator<Item = (Self, &'static str)> {
        let custom = resource.custom().is_some();
        Self::ALL.into_iter().filter(move |(kind, _)| !custom || *kind != Self::Strategic)
    }

    /// The media types of the patches that `resource` takes.
    pub(crate) fn media_types(resource: &Resource) -> impl Iterator<Item = &'static str> {
        Self::taken_by(resource).map(|(_, media)| media)
    }

    /// The kind of patch that the content type names.
    pub(crate) fn of(headers: &HeaderMap, resource: &Resource) -> Result<Self> {
        let wanted = media_type(headers);
        let found = Self::taken_by(resource).find(|(_, media)| *media == wanted);
        found.map(|(kind, _)| kind).ok_or_else(|| {
            if resource.custom().is_none() {
                return Status::no_such_media();
            }
            let media = Self::media_types(resource).collect::<Vec<_>>().join(", ");
            Status::unsupported_media_type(format!(
                "the body of the request was in an unknown format - accepted media types include: {media}"
            ))
        })
    }
}

impl Registry {
    /// Patches an object or its status. Only an apply may create one.
    pub(crate) async fn patch(
        &self,
        place: &Place,
        subresource: &str,
        kind: PatchKind,
        body: &[u8],
        options: &WriteOptions,
    ) -> Result<Written> {
        if kind == PatchKind::Apply {
            let (intent, repeated) = parse_yaml_naming(body)?;
            if options.validation == FieldValidation::Strict && !repeated.is_empty() {
                return Err(Status::bad_request(format!(
                    "error strict decoding patch: error converting YAML to JSON: yaml: unmarshal errors:\n  {}",
                    repeated.join("\n  ")
                )));
            }
            let mut written = self.apply(place, subresource, &intent, options).await?;
            if options.validation == FieldValidation::Warn {
                written.warnings.splice(0..0, repeated);
            }
            return Ok(written);
        }
        if options.force_given {
            let cause = Cause::forbidden("force", "may not be specified for non-apply patch");
            refuse("PatchOptions", vec![cause])?;
        }
        let (patch, mut faults) =
            parse_json_naming(body).map_err(|_| Status::bad_request("invalid JSON patch"))?;
        check_form(kind, &patch)?;
        if kind == PatchKind::Json {
            for fault in &mut faults {
                fault.insert_str(0, "json patch ");
            }
            faults.extend(patched::unknown_in_operations(&patch));
        }
        let resource = &place.resource;
        self.modify(place, subresource, options, |live| {
            let mut object = live.clone();
            patch_object(kind, resource, &mut object, &patch)?;
            bounded(Some(live), &object)?;
            let patch = patched::Patch { kind, value: &patch, faults: &faults };
            let warnings = patched::check(resource, live, &object, &patch, options)?;
            if object.meta("name") != place.name {
                return Err(Status::bad_request(format!(
                    "the name of the object ({}) does not match the name on the URL ({})",
                    object.meta("name"),
                    place.name
                )));
            }
            Ok(Wanted { object, tracked: Tracked::Update, warnings })
        })
        .await
    }

    /// Server-side apply: creates the object, or merges the intent into it.
    async fn apply(
        &self,
        place: &Place,
        subresource: &str,
        intent: &Value,
        options: &WriteOptions,
    ) -> Result<Written> {
        require_manager(options)?;
        check_type(&place.resource, intent)?;
        refuse_other_type(&place.resource, intent)?;
        if !intent.meta("name").is_empty() && intent.meta("name") != place.name {
            return Err(Status::bad_request(format!(
                "the name of the object ({}) does not match the name on the URL ({})",
                intent.meta("name"),
                place.name
            )));
        }
        if subresource.is_empty() && self.get(place).is_err() {
            match self.apply_new(place, intent, options).await {
                // Somebody created it in between: then it is merged into that.
                Err(status) if status.reason == "AlreadyExists" => {}
                result => return result,
            }
        }
        self.modify(place, subresource, options, |_| {
            let tracked = Tracked::Intent { force: options.force };
            Ok(Wanted { object: intent.clone(), tracked, warnings: Vec::new() })
        })
        .await
    }

    async fn apply_new(&self, place: &Place, intent: &Value, options: &WriteOptions) -> Result<Written> {
        // An object that is there has its name from what is stored.
        if intent.meta("name").is_empty() {
            return Err(Status::bad_request(format!(
                "the name of the object ({} based on URL) was undeterminable: name must be provided",
                place.name
            )));
        }
        let uid = intent.meta("uid");
        if !uid.is_empty() {
            return Err(Status::conflict(
                place.resource.subject(&place.name),
                &format!(
                    "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                ),
            ));
        }
        let mut object = self.applied(place, "", None, intent, options.force, options).await?;
        meta_mut(&mut object).remove("resourceVersion");
        self.create_missing(place, object, options, Tracked::Done).await
    }
}

/// What is applied to a custom resource must be of its kind, whatever else it is.
fn refuse_other_type(resource: &Resource, intent: &Value) -> Result<()> {
    let text = |key: &str| intent[key].as_str().unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    if resource.custom().is_none() || (version == resource.api_version() && kind == resource.kind) {
        return Ok(());
    }
    let slash = if version.contains('/') { "" } else { "/" };
    Err(Status::bad_request(format!("invalid object type: {slash}{version}, Kind={kind}")))
}

/// Why an apply was refused.
pub(super) fn apply_refused(error: &ApplyError) -> Status {
    match error {
        ApplyError::Conflicts(conflicts) => {
            let causes = conflicts
                .0
                .iter()
                .map(|conflict| Cause {
                    reason: "FieldManagerConflict".to_owned(),
                    message: conflict.message(),
                    field: conflict.path.to_string(),
                })
                .collect();
            Status::apply_conflict(conflicts.to_string(), causes)
        }
        ApplyError::BadRequest(why) => Status::bad_request(why.as_str()),
        ApplyError::Untyped(_) | ApplyError::Entries(_) => Status::unknown(error.to_string()),
    }
}

/// An apply says who applies.
pub(super) fn require_manager(options: &WriteOptions) -> Result<()> {
    if options.manager_given {
        return Ok(());
    }
    refuse("PatchOptions", vec![Cause::required("fieldManager", "is required for apply patch")])
}

/// Refuses a patch of the wrong form, as Go's decoder words it.
pub(super) fn check_form(kind: PatchKind, patch: &Value) -> Result<()> {
    let given = match patch {
        Value::Object(_) if kind != PatchKind::Json => return Ok(()),
        Value::Array(_) if kind == PatchKind::Json => return Ok(()),
        Value::Null => return Ok(()),
        Value::Object(_) => "object",
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
    };
    let wanted = if kind == PatchKind::Json { "[]handlers.jsonPatchOp" } else { "map[string]interface {}" };
    let before = if kind == PatchKind::Strategic { "" } else { "error decoding patch: " };
    Err(Status::bad_request(format!("{before}json: cannot unmarshal {given} into Go value of type {wanted}")))
}

/// Refuses an intent of another kind than the resource's.
pub(super) fn check_type(resource: &Resource, intent: &Value) -> Result<()> {
    let text = |key: &str| intent[key].as_str().unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if resource.custom().is_some() || (api_version == resource.api_version() && kind == resource.kind) {
        return Ok(());
    }
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    Err(Status::bad_request(format!("invalid object type: {group}/{version}, Kind={kind}")))
}

/// Refuses a patch that grows an object over the limit of a request's body. One that is over it already may get smaller,
/// so that it can be cleaned up.
pub(super) fn bounded(before: Option<&Value>, after: &Value) -> Result<()> {
    let size = json_size(after);
    if size <= BODY_LIMIT || before.is_some_and(|before| size <= json_size(before)) {
        return Ok(());
    }
    Err(Status::too_large(format!(
        "Request entity too large: the patched object has {size} bytes, the limit is {BODY_LIMIT}"
    )))
}

/// Applies a patch that is not an apply to `object`.
pub(super) fn patch_object(
    kind: PatchKind,
    resource: &Resource,
    object: &mut Value,
    patch: &Value,
) -> Result<()> {
    match kind {
        PatchKind::Json => patch::json(object, patch),
        PatchKind::Merge | PatchKind::Apply => patch::merge(object, patch),
        PatchKind::Strategic => patch::strategic(&resource.schema(), object, patch),
    }
    .map_err(|error| match error {
        PatchError::Malformed(why) => Status::bad_request(why),
        PatchError::Failed(why) => Status::unknown(why),
        PatchError::Unprocessable(_) | PatchError::TestFailed(_) => Status::rejected(),
        PatchError::TooLarge(why) => Status::too_large(format!("Request entity is too large: {why}")),
    })
}
