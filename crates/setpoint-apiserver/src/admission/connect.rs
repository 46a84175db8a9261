//! Opening of streams: `exec`, `attach`, `portforward` and `proxy`.

use serde_json::{Map, Value, json};

use super::{Attributes, ObjectKind, Operation, Options};
use crate::identity::Identity;
use crate::registry::{Place, Registry};
use crate::request::Query;
use crate::status::Result;

impl Registry {
    /// Has the opening of a stream admitted. Answers the warnings.
    pub(crate) async fn admit_connect(
        &self,
        place: &Place,
        subresource: &str,
        query: &Query,
        user: &Identity,
    ) -> Result<Vec<String>> {
        let (kind, mut object) = stream_options(&place.resource.plural, subresource, query);
        object["kind"] = kind.into();
        object["apiVersion"] = "v1".into();
        let request = Attributes {
            operation: Operation::Connect,
            place,
            subresource,
            kind: ObjectKind { group: "", version: "v1", kind },
            old: None,
            options: Options::Connect,
            user,
        };
        self.admit_body(&request, &mut object).await
    }
}

/// The options of a stream as an object, with its kind.
fn stream_options(plural: &str, subresource: &str, query: &Query) -> (&'static str, Value) {
    let mut object = Map::new();
    let mut text = |key: &str| {
        if let Some(value) = query.get(key) {
            object.insert(key.to_owned(), value.into());
        }
    };
    let kind = match (plural, subresource) {
        ("pods", "exec" | "attach") => {
            text("container");
            for key in ["stdin", "stdout", "stderr", "tty"] {
                if query.flag(key) {
                    object.insert(key.to_owned(), true.into());
                }
            }
            if subresource == "attach" {
                return ("PodAttachOptions", Value::Object(object));
            }
            object.insert("command".to_owned(), json!(query.all("command")));
            "PodExecOptions"
        }
        ("pods", "portforward") => {
            let ports = query.all("ports").into_iter().filter_map(|port| port.parse::<u16>().ok());
            let ports: Vec<u16> = ports.collect();
            if !ports.is_empty() {
                object.insert("ports".to_owned(), json!(ports));
            }
            "PodPortForwardOptions"
        }
        (_, _) => {
            text("path");
            match plural {
                "services" => "ServiceProxyOptions",
                "nodes" => "NodeProxyOptions",
                _ => "PodProxyOptions",
            }
        }
    };
    (kind, Value::Object(object))
}
