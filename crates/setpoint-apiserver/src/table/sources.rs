//! Where cells come from: fields of an object, and the texts that several printers share.

use serde_json::Value;

/// The text of a field, or an empty one.
pub fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// The whole number of a field, or 0.
pub fn count(value: &Value, key: &str) -> i64 {
    value[key].as_i64().unwrap_or_default()
}

/// The list of a field, or an empty one.
pub fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// `<none>` for an empty text.
pub fn or_none(text: &str) -> &str {
    if text.is_empty() { "<none>" } else { text }
}

/// `a=b,c=d`, or `<none>`.
pub fn labels(labels: &Value) -> String {
    let pairs: Vec<_> = labels
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    or_none(&pairs.join(",")).to_owned()
}

/// A label selector as kubectl accepts it, or an empty text.
pub fn selector(selector: &Value) -> String {
    let mut parts: Vec<_> = selector["matchLabels"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.as_str(), format!("{key}={}", value.as_str().unwrap_or_default())))
        .collect();
    for expression in list(selector, "matchExpressions") {
        let key = text(expression, "key");
        let mut values: Vec<_> = list(expression, "values").iter().filter_map(Value::as_str).collect();
        values.sort_unstable();
        let values = values.join(",");
        parts.push((
            key,
            match text(expression, "operator") {
                "In" => format!("{key} in ({values})"),
                "NotIn" => format!("{key} notin ({values})"),
                "DoesNotExist" => format!("!{key}"),
                _ => key.to_owned(),
            },
        ));
    }
    parts.sort_by_key(|(key, _)| *key);
    parts.into_iter().map(|(_, part)| part).collect::<Vec<_>>().join(",")
}

/// Names and images of containers.
pub fn containers(spec: &Value) -> [String; 2] {
    ["name", "image"].map(|key| {
        list(spec, "containers").iter().map(|container| text(container, key)).collect::<Vec<_>>().join(",")
    })
}

/// At most three, and how many more there are.
pub fn at_most_three(all: &[String]) -> String {
    at_most(3, ",", all)
}

/// At most `most` texts, and how many more there are.
pub fn at_most(most: usize, separator: &str, all: &[String]) -> String {
    let shown = all.iter().take(most).cloned().collect::<Vec<_>>().join(separator);
    match all.len() {
        0 => "<none>".to_owned(),
        many if many <= most => shown,
        many => format!("{shown} + {} more...", many - most),
    }
}

/// Access modes by their short names, in Kubernetes' order.
pub fn access_modes(modes: &Value) -> String {
    let has = |mode: &str| modes.as_array().is_some_and(|modes| modes.iter().any(|m| m == mode));
    [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ]
    .into_iter()
    .filter(|(mode, _)| has(mode))
    .map(|(_, short)| short)
    .collect::<Vec<_>>()
    .join(",")
}

/// Names of a binding's subjects of one kind.
pub fn subjects(binding: &Value, kind: &str) -> String {
    let name = |subject: &Value| match kind {
        "ServiceAccount" => format!("{}/{}", text(subject, "namespace"), text(subject, "name")),
        _ => text(subject, "name").to_owned(),
    };
    list(binding, "subjects").iter().filter(|s| s["kind"] == kind).map(name).collect::<Vec<_>>().join(", ")
}
