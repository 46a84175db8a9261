//! How Go reads and prints the structs of built-in kinds: messages of kube-apiserver name its types and show its values.

use crate::{definition::find, facts::go_lines};

/// One field of the internal type behind a definition. Messages of validation show values of internal types, as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoField {
    /// Its name there, such as `DNSPolicy`.
    pub shown: &'static str,
    /// Its name in requests (`dnsPolicy`); `None` for one that requests don't have.
    pub name: Option<Name>,
    /// Whether it is left out where it is empty.
    pub omitted: bool,
    /// What is in it.
    pub shape: GoShape,
}

/// A field's name in requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// This one.
    Is(&'static str),
    /// That in the internal type, with a small first letter.
    Lower,
    /// A field of the object's metadata, under the same name.
    Metadata,
}

/// The shape of a Go value, as written: `string`, `bool`, `number`, `bytes`, `quantity`, `time`, `int-or-string`, `raw` or the name of a definition without
/// `io.k8s.`; with `*` before what a pointer refers to, `[` before the items of a list and `{` before the values of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoShape(pub &'static str);

/// The fields of metadata in the order of Go's struct.
const METADATA: &str = "name string;generateName string;namespace string;selfLink string;uid string;resourceVersion string;generation number;creationTimestamp time;deletionTimestamp *time;deletionGracePeriodSeconds *number;labels {string;annotations {string;ownerReferences [apimachinery.pkg.apis.meta.v1.OwnerReference;finalizers [string;managedFields [apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry";

/// The fields of the internal type behind a definition such as `io.k8s.api.core.v1.PodSpec`, in their order; none where there is no such type.
pub fn go_fields(definition: &str) -> impl Iterator<Item = GoField> + use<> {
    let metadata = definition.ends_with("meta.v1.ObjectMeta");
    let fields = find(go_lines(), definition)
        .and_then(|(_, line)| line.split_once('\t'))
        .map_or("", |(_, fields)| fields);
    let fields = if metadata { "" } else { fields };
    let whole = fields.split(';').flat_map(|text| {
        let (own, embedded) = if text == "@" { ("", METADATA) } else { (text, "") };
        field(own).into_iter().chain(embedded.split(';').filter_map(|text| of_metadata(text, Name::Metadata)))
    });
    let own = if metadata { METADATA } else { "" };
    whole.chain(own.split(';').filter_map(|text| of_metadata(text, Name::Lower)))
}

fn field(text: &'static str) -> Option<GoField> {
    let (names, shape) = text.split_once(' ')?;
    let (names, omitted) = names.strip_suffix('?').map_or((names, false), |names| (names, true));
    let (shown, name) = names
        .split_once('=')
        .map_or((names, Some(Name::Lower)), |(shown, name)| (shown, (name != "-").then_some(Name::Is(name))));
    Some(GoField { shown, name, omitted, shape: GoShape(shape) })
}

fn of_metadata(text: &'static str, name: Name) -> Option<GoField> {
    let (shown, shape) = text.split_once(' ')?;
    Some(GoField { shown, name: Some(name), omitted: true, shape: GoShape(shape) })
}

/// What Go's decoders know of a field of a struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoMember {
    /// Its name in requests.
    pub name: &'static str,
    /// The embedded struct that it is in, if it is not the struct's own.
    pub embedded: Option<&'static str>,
    /// Its type without pointers, such as `[]v1.Container`.
    pub kind: &'static str,
}

/// The fields of a definition such as `io.k8s.api.core.v1.PodSpec` in the order in which Go writes them.
pub fn go_members(definition: &str) -> impl Iterator<Item = GoMember> + use<> {
    let line = find(go_lines(), definition).map_or("", |(_, line)| line);
    let types = line.split('\t').next().unwrap_or_default();
    types.split(';').filter_map(|text| {
        let (name, kind) = text.split_once(' ')?;
        let (name, embedded) = name.split_once('@').map_or((name, None), |(name, of)| (name, Some(of)));
        Some(GoMember { name, embedded, kind })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{definition, definition_names};

    #[test]
    fn structs_are_listed_and_their_shapes_are_known() {
        assert!(go_lines().lines().is_sorted());
        for name in definition_names() {
            for field in go_fields(name) {
                let shape = field.shape.0.trim_start_matches(['*', '[', '{']);
                if shape.contains('.') {
                    let of = format!("io.k8s.{shape}");
                    assert!(definition(&of).is_some(), "{name} refers to {of}");
                }
            }
        }
    }

    #[test]
    fn internal_names_differ_from_those_of_requests() {
        let find =
            |name: &str| go_fields("io.k8s.api.core.v1.PodSpec").find(|field| field.shown == name).unwrap();
        assert_eq!(find("DNSPolicy").name, Some(Name::Is("dnsPolicy")));
        assert_eq!(find("Containers").shape, GoShape("[api.core.v1.Container"));
        let template: Vec<_> = go_fields("io.k8s.api.core.v1.PodTemplateSpec").collect();
        assert_eq!((template[0].shown, template[0].name), ("name", Some(Name::Metadata)));
        assert_eq!(template.last().unwrap().shown, "Spec");
        let member = |definition: &str, name: &str| go_members(definition).find(|member| member.name == name);
        assert_eq!(member("io.k8s.api.core.v1.PodSpec", "restartPolicy").unwrap().kind, "v1.RestartPolicy");
        let get = member("io.k8s.api.core.v1.Probe", "httpGet").unwrap();
        assert_eq!((get.embedded, get.kind), (Some("ProbeHandler"), "v1.HTTPGetAction"));
        assert_eq!(member("io.k8s.api.core.v1.PodSpec", "nope"), None);
    }
}
