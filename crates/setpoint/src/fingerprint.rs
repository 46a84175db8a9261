use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::io;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use setpoint_schema::{FieldSet, fingerprint, fingerprint_of};

use crate::packed::{items, members, value};

/// What a manager's applies left on an object, in 8 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Print {
    manager: Arc<str>,
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
    manager: Arc<str>,
    part: Part,
    intent: u64,
    print: u64,
}

/// The prints of every Apply entry in the object's managed fields. `metadata_only`: the object's other
/// fields are not at hand, so that the names of the owned fields stand for their values.
pub(crate) fn prints(object: &Value, metadata_only: bool) -> Box<[Print]> {
    let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array);
    entries.into_iter().flatten().filter_map(|entry| print(object, entry, metadata_only)).collect()
}

/// The same of a whole object's text and the text of its managed fields.
pub(crate) fn prints_of(object: &str, entries: &str) -> Box<[Print]> {
    let text = |members: &[(&str, &str)], name: &str| -> Option<String> {
        value(members, name).and_then(|quoted| serde_json::from_str(quoted).ok())
    };
    let print = |entry: &str| {
        let entry = members(entry)?;
        if value(&entry, "operation")? != "\"Apply\"" {
            return None;
        }
        let part = Part::of(&text(&entry, "subresource").unwrap_or_default())?;
        let fields = FIELDS.known(value(&entry, "fieldsV1")?, |fields| {
            FieldSet::from_fields_v1(&serde_json::from_str(fields).ok()?).ok().map(Arc::new)
        })?;
        let hash = fingerprint_of(&mut serde_json::Deserializer::from_str(object), &fields).ok()?;
        Some(Print { manager: name(&text(&entry, "manager")?), part, hash })
    };
    items(entries).into_iter().flatten().filter_map(print).collect()
}

/// Things that are made of texts, which are alike in most objects of a kind. What was made is kept, up to a limit.
struct Known<V>(LazyLock<Mutex<HashMap<Box<str>, V>>>);

static FIELDS: Known<Arc<FieldSet>> = Known::new();
static MANAGERS: Known<Arc<str>> = Known::new();

impl<V: Clone> Known<V> {
    /// An operator's kinds have a few sets of fields each; where there are more, they are made anew.
    const LIMIT: usize = 512;
    /// A longer text is not kept.
    const LENGTH: usize = 16 * 1024;

    const fn new() -> Self {
        Self(LazyLock::new(Mutex::default))
    }

    fn known(&self, text: &str, make: impl FnOnce(&str) -> Option<V>) -> Option<V> {
        if let Some(known) = self.0.lock().get(text) {
            return Some(known.clone());
        }
        let made = make(text)?;
        if text.len() <= Self::LENGTH {
            let mut known = self.0.lock();
            if known.len() == Self::LIMIT {
                known.clear();
            }
            known.insert(text.into(), made.clone());
        }
        Some(made)
    }
}

/// A manager's name, which all prints share.
fn name(manager: &str) -> Arc<str> {
    MANAGERS.known(manager, |manager| Some(manager.into())).unwrap_or_else(|| manager.into())
}

/// A hash of an intent as its author wrote it: cheap, and known to a [`Memo`] only.
pub(crate) fn draft(intent: &impl Serialize) -> Result<u64, serde_json::Error> {
    /// JSON is written in pieces of a few bytes, each of which would cost more than its hash.
    struct Sink {
        hasher: DefaultHasher,
        buffer: [u8; 512],
        filled: usize,
    }
    impl Sink {
        fn empty(&mut self) {
            self.hasher.write(&self.buffer[..self.filled]);
            self.filled = 0;
        }
    }
    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.filled + bytes.len() > self.buffer.len() {
                self.empty();
            }
            match self.buffer.get_mut(self.filled..self.filled + bytes.len()) {
                Some(room) => {
                    room.copy_from_slice(bytes);
                    self.filled += bytes.len();
                }
                None => self.hasher.write(bytes),
            }
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut sink = Sink { hasher: DefaultHasher::new(), buffer: [0; 512], filled: 0 };
    serde_json::to_writer(&mut sink, intent)?;
    sink.empty();
    Ok(sink.hasher.finish())
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
    Some(Print { manager: name(entry.get("manager")?.as_str()?), part, hash })
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
        memos.reserve_exact(1);
        memos.push(Memo { manager: name(manager), part, intent, print });
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
