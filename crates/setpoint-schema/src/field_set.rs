//! Sets of fields of an object.

pub(crate) mod fingerprint;
pub(crate) mod project;

use std::{collections::BTreeMap, fmt};

use serde_json::{Map, Value};

use crate::element::Element;

/// A set of paths through an object: a trie, one [`Node`] for each [`Element`].
///
/// The wire form is the `fieldsV1` of an entry in `metadata.managedFields`:
///
/// ```
/// # use setpoint_schema::FieldSet;
/// # use serde_json::json;
/// let wire = json!({"f:spec": {"f:replicas": {}, "f:ports": {"k:{\"name\":\"web\"}": {".": {}, "f:port": {}}}}});
/// let set = FieldSet::from_fields_v1(&wire)?;
/// assert_eq!(set.to_fields_v1(), wire);
/// let paths: Vec<String> = set.paths().iter().map(ToString::to_string).collect();
/// assert_eq!(paths, [".spec.replicas", r#".spec.ports[name="web"]"#, r#".spec.ports[name="web"].port"#]);
/// # Ok::<(), setpoint_schema::FieldSetError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    // No node is neither a member nor an ancestor of one.
    nodes: BTreeMap<Element, Node>,
}

/// What a [`FieldSet`] holds at one element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Whether the path that ends here is in the set.
    pub member: bool,
    /// The paths below.
    pub children: FieldSet,
}

impl Node {
    /// The node of a path that ends here.
    pub(crate) fn leaf() -> Self {
        Self { member: true, children: FieldSet::default() }
    }

    /// Whether neither this path nor any below is in the set.
    pub fn is_empty(&self) -> bool {
        !self.member && self.children.is_empty()
    }
}

/// A path through an object, printed as Kubernetes prints it: `.spec.ports[name="web"].port`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(pub Vec<Element>);

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|element| element.fmt(f))
    }
}

/// Indicates that a `fieldsV1` value is malformed.
#[derive(Debug, thiserror::Error)]
pub enum FieldSetError {
    /// A set must be an object.
    #[error("fieldsV1: expected an object at {path:?}, got {found}")]
    NotAnObject {
        /// The fieldsV1 keys down to the value, joined with `/`.
        path: String,
        /// The value found instead.
        found: Value,
    },
    /// A key is no path element.
    #[error("fieldsV1: {element:?} is not a path element: {source}")]
    Element {
        /// The key.
        element: String,
        /// Why.
        source: serde_json::Error,
    },
}

impl FieldSet {
    /// A set of plain field paths: `FieldSet::of_fields(&[&["status"], &["metadata", "labels"]])`.
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Self::default();
        for path in paths {
            set.insert(path.iter().map(|name| Element::field(*name)));
        }
        set
    }

    /// Reads the `fieldsV1` of a managed fields entry. Elements of unknown kinds are skipped, as upstream does.
    ///
    /// # Errors
    /// When a set is not an object, or a `k:`, `v:` or `i:` key does not hold JSON.
    pub fn from_fields_v1(fields: &Value) -> Result<Self, FieldSetError> {
        fn read(fields: &Value, path: &mut Vec<String>) -> Result<Node, FieldSetError> {
            let Value::Object(fields) = fields else {
                return Err(FieldSetError::NotAnObject { path: path.join("/"), found: fields.clone() });
            };
            let mut node = Node { member: fields.is_empty(), ..Node::default() };
            for (key, value) in fields {
                if key == "." {
                    node.member = true;
                    continue;
                }
                let element = Element::parse(key)
                    .map_err(|source| FieldSetError::Element { element: key.clone(), source })?;
                path.push(key.clone());
                let child = read(value, path)?;
                path.pop();
                if let Some(element) = element {
                    node.children.attach(element, child);
                }
            }
            Ok(node)
        }
        // The root itself is never owned, so an empty object is the empty set.
        Ok(read(fields, &mut Vec::new())?.children)
    }

    /// The `fieldsV1` of a managed fields entry.
    pub fn to_fields_v1(&self) -> Value {
        Value::Object(
            self.nodes
                .iter()
                .map(|(element, node)| {
                    let mut value = node.children.to_fields_v1();
                    if node.member
                        && !node.children.is_empty()
                        && let Value::Object(fields) = &mut value
                    {
                        fields.insert(".".into(), Value::Object(Map::new()));
                    }
                    (element.encode(), value)
                })
                .collect(),
        )
    }

    /// Whether no path is in the set.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// How many paths are in the set.
    pub fn len(&self) -> usize {
        self.nodes.values().map(|node| usize::from(node.member) + node.children.len()).sum()
    }

    /// The nodes directly below the root, in order.
    pub fn nodes(&self) -> impl Iterator<Item = (&Element, &Node)> {
        self.nodes.iter()
    }

    /// The node at one element below the root.
    pub fn node(&self, element: &Element) -> Option<&Node> {
        self.nodes.get(element)
    }

    /// The node of a field below the root.
    pub fn field(&self, name: &str) -> Option<&Node> {
        // Fields come first, in the order of their names.
        self.nodes().find_map(|(element, node)| match element {
            Element::Field(field) => (**field == *name).then_some(node),
            _ => None,
        })
    }

    /// Adds a path. The empty path is no field and adds nothing.
    pub fn insert(&mut self, path: impl IntoIterator<Item = Element>) {
        let mut path = path.into_iter().peekable();
        let mut set = self;
        while let Some(element) = path.next() {
            let node = set.nodes.entry(element).or_default();
            if path.peek().is_none() {
                node.member = true;
                return;
            }
            set = &mut node.children;
        }
    }

    /// Puts a node below the root, joined with the one that is there; an empty node adds nothing.
    pub(crate) fn attach(&mut self, element: Element, node: Node) {
        if node.is_empty() {
            return;
        }
        match self.nodes.entry(element) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(node);
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                let there = entry.get_mut();
                there.member |= node.member;
                there.children.extend(node.children);
            }
        }
    }

    /// Adds every path of `other`.
    pub fn extend(&mut self, other: Self) {
        if self.nodes.is_empty() {
            *self = other;
            return;
        }
        for (element, node) in other.nodes {
            self.attach(element, node);
        }
    }

    /// Whether this exact path is in the set.
    pub fn has(&self, path: &[Element]) -> bool {
        let Some((first, rest)) = path.split_first() else { return false };
        self.nodes
            .get(first)
            .is_some_and(|node| if rest.is_empty() { node.member } else { node.children.has(rest) })
    }

    /// The paths in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut union = self.clone();
        union.extend(other.clone());
        union
    }

    /// The paths in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        if other.nodes.len() < self.nodes.len() {
            return other.intersection(self);
        }
        let mut set = Self::default();
        for (element, node) in &self.nodes {
            if let Some(there) = other.nodes.get(element) {
                let both = Node {
                    member: node.member && there.member,
                    children: node.children.intersection(&there.children),
                };
                set.attach(element.clone(), both);
            }
        }
        set
    }

    /// The paths of this set that are not in `other`, path by path: a path below a member of `other` stays.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut set = self.clone();
        set.remove_all(other);
        set
    }

    /// The paths of this set that are neither in `other` nor below a path in `other`.
    #[must_use]
    pub fn recursive_difference(&self, other: &Self) -> Self {
        let mut set = self.clone();
        set.remove_below(other);
        set
    }

    /// Removes every path of `other`; paths below a member of `other` stay.
    pub fn remove_all(&mut self, other: &Self) {
        self.subtract(other, false);
    }

    /// Removes every path of `other` and all that is below.
    pub fn remove_below(&mut self, other: &Self) {
        self.subtract(other, true);
    }

    fn subtract(&mut self, other: &Self, recursive: bool) {
        for (element, there) in &other.nodes {
            let Some(node) = self.nodes.get_mut(element) else { continue };
            if there.member {
                node.member = false;
                if recursive {
                    node.children = Self::default();
                }
            }
            node.children.subtract(&there.children, recursive);
            if node.is_empty() {
                self.nodes.remove(element);
            }
        }
    }

    /// The paths of this set with none below them.
    #[must_use]
    pub fn leaves(&self) -> Self {
        let mut set = Self::default();
        for (element, node) in &self.nodes {
            let leaf =
                Node { member: node.member && node.children.is_empty(), children: node.children.leaves() };
            set.attach(element.clone(), leaf);
        }
        set
    }

    /// Every path in the set: at each level those that end there, then those that go on, as upstream walks a set.
    pub fn paths(&self) -> Vec<Path> {
        fn walk(set: &FieldSet, at: &mut Vec<Element>, out: &mut Vec<Path>) {
            for (element, _) in set.nodes.iter().filter(|(_, node)| node.member) {
                let mut path = at.clone();
                path.push(element.clone());
                out.push(Path(path));
            }
            for (element, node) in &set.nodes {
                if !node.children.is_empty() {
                    at.push(element.clone());
                    walk(&node.children, at, out);
                    at.pop();
                }
            }
        }
        let mut out = Vec::new();
        walk(self, &mut Vec::new(), &mut out);
        out
    }
}
