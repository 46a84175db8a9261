//! Protobuf messages: which field has which number. Clients written in Go send built-in kinds in this form.

use crate::{definition::find, facts::message_lines};

/// One field of a protobuf message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageField {
    /// Number on the wire.
    pub number: u32,
    /// Name in JSON; `None` if the fields of its message are the parent's own in JSON (an embedded struct in Go).
    pub name: Option<&'static str>,
    /// `string`, `bytes`, `bool`, `int`, `double` or the name of a message.
    pub kind: &'static str,
    /// How often it occurs.
    pub label: Label,
}

/// How often a field occurs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    /// At most once.
    Single,
    /// As the items of a list.
    Repeated,
    /// As the entries of a map from strings.
    Map,
}

/// The fields of a message, which has the name of the definition that describes the same type in JSON, such as `io.k8s.api.core.v1.Pod`.
/// `None` for a message that Kubernetes doesn't have.
pub fn message(name: &str) -> Option<Vec<MessageField>> {
    let (_, fields) = find(message_lines(), name)?;
    Some(fields.split(';').filter_map(field).collect())
}

fn field(text: &'static str) -> Option<MessageField> {
    let mut parts = text.split(' ');
    let (number, name, kind) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
    let (label, kind) = match kind.split_at_checked(1)? {
        ("*", kind) => (Label::Repeated, kind),
        ("{", kind) => (Label::Map, kind),
        _ => (Label::Single, kind),
    };
    Some(MessageField { number, name: (name != "-").then_some(name), kind, label })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{definition, kinds};

    #[test]
    fn every_line_is_well_formed_and_every_message_is_known() {
        let names: Vec<_> = message_lines().lines().filter_map(|line| line.split_once('\t')).collect();
        assert!(names.len() > 500, "only {} messages", names.len());
        assert!(names.is_sorted());
        for (name, fields) in names {
            let parsed = message(name).unwrap_or_else(|| panic!("{name} is listed, but not found"));
            let listed = fields.split(';').filter(|field| !field.is_empty()).count();
            assert_eq!(parsed.len(), listed, "{name} has a malformed field");
            for field in parsed.iter().filter(|field| field.kind.starts_with("io.")) {
                let simple = definition(field.kind).is_some();
                assert!(simple || message(field.kind).is_some(), "{name} refers to {}", field.kind);
            }
        }
    }

    #[test]
    fn every_kind_but_those_of_extensions_has_a_message() {
        for kind in kinds() {
            assert!(message(kind.definition).is_some(), "{}", kind.definition);
        }
    }

    #[test]
    fn embedded_structs_have_no_name() {
        let volume = message("io.k8s.api.core.v1.Volume").expect("Volume");
        assert_eq!(volume[0].name, Some("name"));
        assert_eq!((volume[1].name, volume[1].kind), (None, "io.k8s.api.core.v1.VolumeSource"));
    }
}
