//! Custom resources from one version into another by webhook
//! (`apiextensions-apiserver/pkg/apiserver/conversion/webhook_converter.go`).
//!
//! ```text
//! read:  stored ─▶ its own version's defaults ─▶ ConversionReview ─▶ checks, metadata restored ─▶ pruned ─▶ reader
//! write: request's version, admitted and valid ─▶ ConversionReview ─▶ store ─▶ as read ─▶ writer
//! ```
//!
//! Objects that are stored in the version of the request are never sent. Nothing is kept: what a webhook says today holds today.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::shape::{served_value, storage_form};
use super::{Answer, Place, Registry};
use crate::catalog::Resource;
use crate::custom::Conversion;
use crate::object::Metadata;
use crate::status::Status;
use crate::store::{Key, Stored};

/// How long a webhook may take (upstream: the default of its client).
const TIMEOUT: Duration = Duration::from_secs(30);
/// The most objects of one review.
const BATCH: usize = 500;
const KIND: &str = "ConversionReview";
const GROUP: &str = "apiextensions.k8s.io";

/// A stored object that cannot be read in the wanted version.
#[derive(Debug)]
pub(crate) struct Unreadable {
    key: Key,
    revision: u64,
    why: String,
}

impl Unreadable {
    fn undecodable(&self) -> String {
        format!("object not decodable revision={}: {}", self.revision, self.why)
    }

    fn corrupt(&self, resource: &Resource, root: &str) -> String {
        let namespace =
            if self.key.namespace.is_empty() { String::new() } else { format!("{}/", self.key.namespace) };
        let key = format!("{root}/{}/{}/{namespace}{}", resource.group, resource.plural, self.key.name);
        format!(
            "StorageError: corrupt object, Code: 7, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {}",
            self.undecodable()
        )
    }

    /// For who wants to read or delete it.
    pub(super) fn on_read(&self, resource: &Resource) -> Status {
        Status::internal(self.corrupt(resource, ""))
    }

    /// For who wants to change it.
    pub(super) fn on_update(&self) -> Status {
        Status::unknown(self.undecodable())
    }

    /// For who wants to list it with others.
    pub(super) fn on_list(&self, resource: &Resource) -> Status {
        let text = self.corrupt(resource, "/registry");
        let key = format!(
            "/registry/{}/{}/{}/{}",
            resource.group, resource.plural, self.key.namespace, self.key.name
        );
        Status::unreadable(resource.subject("list"), &key.replace("//", "/"), &text)
    }
}

/// The conversion by webhook of a custom resource, if it has one.
pub(super) fn by_webhook(resource: &Resource) -> Option<&Conversion> {
    resource.custom()?.conversion.as_ref()
}

impl Registry {
    /// The object at `place`, in the version of its resource.
    ///
    /// # Errors
    /// When there is none, or it cannot be converted.
    pub(crate) async fn read(&self, place: &Place) -> Result<Arc<Stored>, Status> {
        let stored = self.get(place)?;
        self.in_version(&place.resource, stored).await.map_err(|error| error.on_read(&place.resource))
    }

    /// A stored object in the version of `resource`, as far as a webhook is needed for that.
    pub(super) async fn in_version(
        &self,
        resource: &Resource,
        stored: Arc<Stored>,
    ) -> Result<Arc<Stored>, Unreadable> {
        let mut one = self.all_in_version(resource, vec![Arc::clone(&stored)]).await?;
        Ok(one.pop().unwrap_or(stored))
    }

    /// An answer in the version of `resource`.
    pub(super) async fn answer_in_version(
        &self,
        resource: &Resource,
        answer: Answer,
    ) -> Result<Answer, Status> {
        match answer {
            Answer::Stored(stored) => {
                let read = self.in_version(resource, stored).await;
                read.map(Answer::Stored).map_err(|error| error.on_read(resource))
            }
            Answer::Draft(object) if by_webhook(resource).is_some() => {
                let version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
                let Some(from) = self.version_of(resource, &version) else {
                    return Ok(Answer::Draft(object));
                };
                let converted = self.converted(&from, resource, object).await;
                converted.map(Answer::Draft).map_err(Status::unknown)
            }
            other => Ok(other),
        }
    }

    /// Stored objects in the version of `resource`, in the same order.
    pub(super) async fn all_in_version(
        &self,
        resource: &Resource,
        mut stored: Vec<Arc<Stored>>,
    ) -> Result<Vec<Arc<Stored>>, Unreadable> {
        let Some(conversion) = by_webhook(resource) else { return Ok(stored) };
        let wanted = resource.api_version();
        let other: Vec<usize> = (0..stored.len()).filter(|&index| !stored[index].is_in(&wanted)).collect();
        for batch in other.chunks(BATCH) {
            let unreadable = |why: String| {
                let first = &stored[batch[0]];
                let key = Key::new(first.value.meta("namespace"), first.value.meta("name"));
                Unreadable { key, revision: first.revision, why }
            };
            let mut objects = Vec::with_capacity(batch.len());
            for &index in batch {
                let mut object = stored[index].decode();
                let version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
                let from = self.version_of(resource, &version).ok_or_else(|| {
                    unreadable(format!("request to convert CR from an invalid group/version: {version}"))
                })?;
                if let Some(custom) = from.custom() {
                    custom.complete(&mut object);
                }
                objects.push(object);
            }
            let converted = self.convert(resource, conversion, objects).await.map_err(unreadable)?;
            for (&index, object) in batch.iter().zip(converted) {
                stored[index] = Stored::encode(&object, stored[index].revision);
            }
        }
        Ok(stored)
    }

    /// A valid object of `resource` as it is stored.
    pub(super) async fn to_storage(&self, resource: &Resource, object: Value) -> Result<Value, Status> {
        if let (Some(conversion), Some(custom)) = (by_webhook(resource), resource.custom())
            && object["apiVersion"] != custom.storage_version.as_str()
            && let Some(to) = self.version_of(resource, &custom.storage_version)
        {
            let mut converted = self.convert(&to, conversion, vec![object]).await.map_err(Status::unknown)?;
            return Ok(converted.pop().unwrap_or_default());
        }
        Ok(storage_form(resource, object))
    }

    /// `object`, which is in the version of `from`, in that of `to`.
    ///
    /// # Errors
    /// Why a webhook did not convert it.
    pub(crate) async fn converted(
        &self,
        from: &Resource,
        to: &Resource,
        object: Value,
    ) -> Result<Value, String> {
        if from.version == to.version && from.group == to.group {
            return Ok(object);
        }
        match by_webhook(to) {
            Some(conversion) => {
                Ok(self.convert(to, conversion, vec![object]).await?.pop().unwrap_or_default())
            }
            None => Ok(served_value(to, storage_form(from, object))),
        }
    }

    /// Has a webhook convert objects into the version of `to`.
    async fn convert(
        &self,
        to: &Resource,
        conversion: &Conversion,
        mut objects: Vec<Value>,
    ) -> Result<Vec<Value>, String> {
        let versions: Vec<Value> = objects
            .iter_mut()
            .map(|object| {
                let meta = object["metadata"].as_object_mut();
                meta.and_then(|meta| meta.remove("resourceVersion")).unwrap_or_default()
            })
            .collect();
        let first = objects.first().unwrap_or(&Value::Null);
        let of = format!(
            "conversion webhook for {}, Kind={}",
            first["apiVersion"].as_str().unwrap_or_default(),
            first["kind"].as_str().unwrap_or_default()
        );
        let Some(version) = conversion.review_version() else {
            return Err("no supported conversion review versions".to_owned());
        };
        let (uid, wanted) = (self.entropy.uuid(), to.api_version());
        let review = json!({
            "apiVersion": format!("{GROUP}/{version}"), "kind": KIND,
            "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": objects},
            "response": {"uid": "", "convertedObjects": null, "result": {"metadata": {}}},
        });
        // Few requests call a webhook: the others need no room for it.
        let answer = Box::pin(self.call_webhook(&conversion.client, TIMEOUT, &review)).await;
        let answer = answer.map_err(|error| format!("{of} failed: {}", error.why()))?;
        let converted = read(version, &uid, answer).map_err(|why| format!("{of} failed: {why}"))?;
        if converted.len() != objects.len() {
            return Err(format!("{of} returned {} objects, expected {}", converted.len(), objects.len()));
        }
        let several = objects.len() > 1;
        let pairs = objects.iter().zip(converted).zip(versions).enumerate();
        pairs
            .map(|(index, ((original, converted), version))| {
                let index = several.then_some(index);
                let mut object = checked(original, converted, &wanted, &of, index)?;
                if let Some(custom) = to.custom() {
                    setpoint_schema::prune(&custom.schema, &mut object);
                }
                if !version.is_null() {
                    object["metadata"]["resourceVersion"] = version;
                }
                Ok(object)
            })
            .collect()
    }
}

/// The objects of an answer to the review `uid` of `version`.
fn read(version: &str, uid: &str, mut review: Value) -> Result<Vec<Value>, String> {
    if version == "v1" && review["kind"] != KIND {
        return Err(format!("expected webhook response of {GROUP}/v1, Kind={KIND}, got /, Kind="));
    }
    let mut response = review["response"].take();
    if !response.is_object() {
        return Err("no response provided".to_owned());
    }
    let answered = response["uid"].as_str().unwrap_or_default();
    if version == "v1" && answered != uid {
        return Err(format!("expected response.uid={uid:?}, got {answered:?}"));
    }
    let text = |key: &str| response["result"][key].as_str().unwrap_or_default();
    if text("status") != "Success" {
        let message = text("message");
        return Err(match message {
            "" => format!("response.result.status was '{}', not 'Success'", text("status")),
            message => message.to_owned(),
        });
    }
    match response["convertedObjects"].take() {
        Value::Array(objects) => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

/// Checks a converted object against the original, whose metadata it gets back but for labels and annotations. `index` is its
/// place where there are several.
fn checked(
    original: &Value,
    mut converted: Value,
    wanted: &str,
    of: &str,
    index: Option<usize>,
) -> Result<Value, String> {
    if !converted.is_object() {
        let kind = match converted {
            Value::String(_) => "string",
            Value::Number(_) => "number",
            Value::Bool(_) => "bool",
            Value::Array(_) => "array",
            _ => "null",
        };
        return Err(format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"));
    }
    let text = |object: &Value, key: &str| object[key].as_str().unwrap_or_default().to_owned();
    if text(&converted, "kind").is_empty() {
        return Err(format!("Object 'Kind' is missing in '{converted}'"));
    }
    let (object, place) = match index {
        None => ("object".to_owned(), "object at index 0".to_owned()),
        Some(index) => {
            let place = format!("converted object at index {index}");
            (place.clone(), place)
        }
    };
    let got = text(&converted, "apiVersion");
    if got != wanted {
        return Err(format!(
            "{of} returned invalid {place}: invalid groupVersion (expected {wanted}, received {got})"
        ));
    }
    let (expected, got) = (text(original, "kind"), text(&converted, "kind"));
    if expected != got {
        return Err(format!(
            "{of} returned invalid {place}: invalid kind (expected {expected}, received {got})"
        ));
    }
    for (field, name) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let (expected, got) = (original.meta(field), converted.meta(field));
        if expected != got {
            return Err(format!(
                "{of} returned invalid {object}: must have the same {name}: {expected} != {got}"
            ));
        }
    }
    let invalid = |why: &str| match index {
        None => format!("{of} returned invalid metadata: {why}"),
        Some(index) => format!("{of} returned invalid metadata in object at index {index}: {why}"),
    };
    let given = match converted.get_mut("metadata").map(Value::take) {
        Some(Value::Object(given)) => given,
        Some(_) => return Err(invalid("invalid metadata of type string in converted object")),
        None => return Err(invalid("missing metadata in converted object")),
    };
    let mut metadata = original["metadata"].as_object().cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        let texts = restored(field, &given).map_err(|why| invalid(&why))?;
        match texts {
            Some(texts) => drop(metadata.insert(field.to_owned(), texts)),
            None => drop(metadata.remove(field)),
        }
    }
    converted["metadata"] = metadata.into();
    Ok(converted)
}

/// The labels or annotations that a webhook gave.
fn restored(field: &str, given: &Map<String, Value>) -> Result<Option<Value>, String> {
    match given.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(texts)) => match texts.iter().find(|(_, value)| !value.is_string()) {
            Some((key, _)) => Err(format!("metadata.{field}[{key}] must be a string in converted object")),
            None => Ok(Some(Value::Object(texts.clone()))),
        },
        Some(_) => Err(format!("invalid metadata.{field} in converted object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(change: impl FnOnce(&mut Value)) -> Result<Value, String> {
        let original = json!({"apiVersion": "g/v1", "kind": "K",
            "metadata": {"name": "a", "uid": "u", "generation": 3, "labels": {"a": "b"}}, "spec": {"x": 1}});
        let mut converted = original.clone();
        converted["apiVersion"] = "g/v2".into();
        change(&mut converted);
        checked(&original, converted, "g/v2", "conversion webhook for g/v1, Kind=K", None)
    }

    #[test]
    fn only_labels_and_annotations_may_change() {
        let changed = of(|object| {
            object["metadata"] = json!({"name": "a", "uid": "u", "generation": 9, "labels": {"c": "d"}});
        });
        let expected = json!({"name": "a", "uid": "u", "generation": 3, "labels": {"c": "d"}});
        assert_eq!(changed.unwrap()["metadata"], expected);
        for (change, why) in [
            (
                json!({"apiVersion": "g/v1", "kind": "K"}),
                "object at index 0: invalid groupVersion (expected g/v2, received g/v1)",
            ),
            (
                json!({"apiVersion": "g/v2", "kind": "L"}),
                "object at index 0: invalid kind (expected K, received L)",
            ),
            (
                json!({"apiVersion": "g/v2", "kind": "K", "metadata": {"name": "b"}}),
                "object: must have the same name: a != b",
            ),
        ] {
            let error = of(|object| *object = change.clone()).unwrap_err();
            assert_eq!(error, format!("conversion webhook for g/v1, Kind=K returned invalid {why}"));
        }
    }
}
