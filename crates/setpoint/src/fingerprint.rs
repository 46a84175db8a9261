use std::hash::{DefaultHasher, Hasher as _};
use std::io;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde::Serialize;
use serde_json::Value;
use setpoint_schema::{FieldSet, fingerprint, fingerprint_of};

/// What a manager's applies left on an object, in 8 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Print {
    manager: Box<str>,
    part: Part,
    hash: u64,
}

/// Which entry of managed fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Main,
    Status,
}

impl Part {
    fn of(subresource: &str) -> Option<Self> {
        match subresource {
            "" => Some(Self::Main),
            "status" => Some(Self::Status),
            _ => None,
        }
    }
}

/// An apply that needed no further one: this intent led to this print. Covers values that the server rewrites.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Memo {
    manager: Box<str>,
    part: Part,
    intent: u64,
    print: u64,
}

/// The prints of every Apply entry in the object's managed fields. `metadata_only`: the object's other
/// fields are not at hand, so that the names of the owned fields stand for their values.
pub(crate) fn prints(object: &Value, metadata_only: bool) -> Vec<Print> {
    let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array);
    entries.into_iter().flatten().filter_map(|entry| print(object, entry, metadata_only)).collect()
}

/// The same of a whole object's text and its managed fields.
pub(crate) fn prints_of(object: &str, entries: &[ManagedFieldsEntry]) -> Vec<Print> {
    let print = |entry: &ManagedFieldsEntry| {
        if entry.operation.as_deref() != Some("Apply") {
            return None;
        }
        let part = Part::of(entry.subresource.as_deref().unwrap_or_default())?;
        let fields = FieldSet::from_fields_v1(&entry.fields_v1.as_ref()?.0).ok()?;
        let hash = fingerprint_of(&mut serde_json::Deserializer::from_str(object), &fields).ok()?;
        Some(Print { manager: entry.manager.as_deref()?.into(), part, hash })
    };
    entries.iter().filter_map(print).collect()
}

/// A hash of an intent as its author wrote it: cheap, and known to a [`Memo`] only.
pub(crate) fn draft(intent: &impl Serialize) -> Result<u64, serde_json::Error> {
    struct Sink(DefaultHasher);
    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut sink = Sink(DefaultHasher::new());
    serde_json::to_writer(&mut sink, intent)?;
    Ok(sink.0.finish())
}

fn print(object: &Value, entry: &Value, metadata_only: bool) -> Option<Print> {
    if entry.get("operation")?.as_str()? != "Apply" {
        return None;
    }
    let part = Part::of(entry.get("subresource").and_then(Value::as_str).unwrap_or_default())?;
    let fields = entry.get("fieldsV1")?;
    let hash = if metadata_only {
        fingerprint(fields)
    } else {
        fingerprint_of(object, &FieldSet::from_fields_v1(fields).ok()?).ok()?
    };
    Some(Print { manager: entry.get("manager")?.as_str()?.into(), part, hash })
}

/// The print of a manager's part, if it has applied anything.
pub(crate) fn find(prints: &[Print], manager: &str, part: Part) -> Option<u64> {
    prints.iter().find(|print| &*print.manager == manager && print.part == part).map(|print| print.hash)
}

/// Whether applying an intent is known to change nothing.
pub(crate) fn settled(prints: &[Print], memos: &[Memo], manager: &str, part: Part, intent: u64) -> bool {
    let Some(print) = find(prints, manager, part) else { return false };
    print == intent
        || memos.iter().any(|memo| {
            &*memo.manager == manager && memo.part == part && memo.intent == intent && memo.print == print
        })
}

/// Remembers that `intent` led to the print that the object has now.
pub(crate) fn remember(memos: &mut Vec<Memo>, prints: &[Print], manager: &str, part: Part, intent: u64) {
    memos.retain(|memo| &*memo.manager != manager || memo.part != part);
    if let Some(print) = find(prints, manager, part) {
        memos.push(Memo { manager: manager.into(), part, intent, print });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use setpoint_schema::normalise;

    use super::*;

    fn live(replicas: i64) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "web", "uid": "1", "labels": { "app": "web", "other": "x" }, "managedFields": [
                { "manager": "website", "operation": "Apply", "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
                  "fieldsV1": { "f:metadata": { "f:labels": { "f:app": {} } }, "f:spec": { "f:replicas": {} } } },
                { "manager": "kubectl", "operation": "Update", "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
                  "fieldsV1": { "f:metadata": { "f:labels": { "f:other": {} } } } },
            ] },
            "spec": { "replicas": replicas, "paused": false },
        })
    }

    #[test]
    fn an_unchanged_intent_is_settled_and_a_foreign_change_is_not() {
        let intent = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "web", "labels": { "app": "web" } }, "spec": { "replicas": 3 },
        });
        let intent = fingerprint(&normalise(&intent));
        assert!(settled(&prints(&live(3), false), &[], "website", Part::Main, intent));
        assert!(!settled(&prints(&live(4), false), &[], "website", Part::Main, intent));
        assert!(!settled(&prints(&live(3), false), &[], "kubectl", Part::Main, intent), "no Apply entry");
        assert!(!settled(&prints(&live(3), false), &[], "website", Part::Status, intent));
    }

    #[test]
    fn a_memo_covers_what_the_server_rewrites() {
        let (prints, mut memos) = (prints(&live(3), true), Vec::new());
        assert!(!settled(&prints, &memos, "website", Part::Main, 7));
        remember(&mut memos, &prints, "website", Part::Main, 7);
        assert!(settled(&prints, &memos, "website", Part::Main, 7));
        assert!(!settled(&prints, &memos, "website", Part::Main, 8));
    }
}
