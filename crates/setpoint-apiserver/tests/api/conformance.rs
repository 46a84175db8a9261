//! Requests whose answers were recorded from a real kube-apiserver (`tests/conformance/record.sh`), replayed here.
//!
//! Of the cases marked `~` only the code is compared. Their answers differ on purpose: texts of Go's own decoders and
//! of internal type names; the reason for a failed JSON patch, which we give and upstream does not; plain text for
//! unknown paths, where we answer a Status; definitions, which we serve and accept in the request that creates them;
//! empty structs in Events; the taint of a new Node, which no controller here would take away.

use http::Method;
use regex::Regex;
use serde_json::Value;

use crate::client::{Client, server};

const CASES: &str = include_str!("../conformance/cases.txt");
const RECORDED: &str = include_str!("../conformance/recorded.txt");

/// What differs from one server to the next, and the parts that other tests compare.
struct Normal {
    identifiers: Regex,
    versions: Regex,
}

impl Normal {
    fn new() -> Self {
        Self {
            identifiers: Regex::new(
                "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|x_[a-z0-9]{5}",
            )
            .unwrap(),
            versions: Regex::new(r"in record \(\d+\)").unwrap(),
        }
    }

    fn apply(&self, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                // Field managers are compared in setpoint-schema. Where Go writes a null, we leave the field out.
                fields.remove("managedFields");
                fields.retain(|_, value| !value.is_null());
                for (key, value) in fields.iter_mut() {
                    let volatile = [
                        "uid",
                        "resourceVersion",
                        "creationTimestamp",
                        "deletionTimestamp",
                        "lastTransitionTime",
                        "clusterIP",
                        "clusterIPs",
                    ];
                    if volatile.contains(&key.as_str()) {
                        *value = "*".into();
                    } else {
                        self.apply(value);
                    }
                }
                // Lists of built-in kinds: our items name their kind, as a single object does.
                if let Some(Value::Array(items)) = fields.get_mut("items") {
                    for item in items {
                        item.as_object_mut().unwrap().remove("kind");
                        item.as_object_mut().unwrap().remove("apiVersion");
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.apply(item)),
            Value::String(text) => {
                let replaced = self.identifiers.replace_all(text, "*");
                *text = self.versions.replace_all(&replaced, "in record (*)").into_owned();
            }
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn answers_are_those_of_kube_apiserver() {
    let client = Client::admin(&server());
    let normal = Normal::new();
    let mut wrong = Vec::new();
    assert_eq!(CASES.lines().count(), RECORDED.lines().count(), "record.sh has to be run again");
    for (case, recorded) in CASES.lines().zip(RECORDED.lines()) {
        let (case, code_only) = case.strip_prefix('~').map_or((case, false), |case| (case, true));
        let mut parts = case.splitn(4, ' ');
        let method: Method = parts.next().unwrap().parse().unwrap();
        let (path, media) = (parts.next().unwrap(), parts.next().unwrap());
        let body: Option<Value> = parts.next().map(|text| serde_json::from_str(text).unwrap());
        let mut answer = client.call(method, path, media, body.as_ref()).await;
        let (code, expected) = recorded.split_once(' ').unwrap();
        let mut expected = serde_json::from_str(expected).unwrap_or_else(|_| Value::from(expected));
        normal.apply(&mut expected);
        normal.apply(&mut answer.body);
        if answer.code.to_string() != code || !code_only && answer.body != expected {
            wrong.push(format!("{case}\n  real {code} {expected}\n  ours {} {}", answer.code, answer.body));
        }
    }
    assert!(wrong.is_empty(), "{} answers differ:\n{}", wrong.len(), wrong.join("\n"));
}
