//! The embedded text: a line with the Kubernetes version; a line of JSON for each kind; an empty line; and for each definition, sorted by name, a
//! line of its name, a tab, and its schema as JSON.

const FACTS: &str = include_str!("facts.txt");

/// The roles and bindings that a fresh API server creates, each an object of `rbac.authorization.k8s.io/v1` as one line of JSON.
pub fn bootstrap_policy() -> impl Iterator<Item = &'static str> {
    include_str!("policy.txt").lines()
}

/// The version of Kubernetes that the facts were taken from, such as `v1.37.2`.
pub fn kubernetes_version() -> &'static str {
    FACTS.lines().next().unwrap_or_default()
}

/// The lines of protobuf messages, sorted by name.
pub fn message_lines() -> &'static str {
    include_str!("messages.txt")
}

/// The lines about zero values in JSON, sorted by definition.
pub fn presence_lines() -> &'static str {
    include_str!("presence.txt")
}

/// The lines of columns of tables, sorted by resource.
pub fn column_lines() -> &'static str {
    include_str!("columns.txt")
}

/// Compressed lines of descriptions, sorted by definition.
pub const PROSE: &[u8] = include_bytes!("prose.deflate");

/// Compressed lines of the paths of OpenAPI documents, sorted by group version.
pub const PATHS: &[u8] = include_bytes!("paths.deflate");

/// The lines about Go's types, sorted by definition.
pub fn go_lines() -> &'static str {
    include_str!("go.txt")
}

/// The lines of the table of kinds.
pub fn kind_lines() -> impl Iterator<Item = &'static str> {
    FACTS.lines().skip(1).take_while(|line| !line.is_empty())
}

/// The lines of definitions, sorted by name.
pub fn definition_lines() -> &'static str {
    FACTS.split_once("\n\n").map_or("", |(_, lines)| lines)
}
