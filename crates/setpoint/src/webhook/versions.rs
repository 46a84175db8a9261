//! Versions of a kind: one hub, to and from which every other version is converted.
//!
//! ```text
//! v1alpha1 ─▶ to_hub ─▶ + what v1 has and v1alpha1 cannot say (annotation) ─▶ v1 ─▶ from_hub ─▶ v1beta1
//!                                                                              └─▶ − what is lost: into the annotation
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::loss::{Loss, content, first_difference, with_unknown, without_nulls};
use crate::{Kind, Object, Result};

/// The annotation that carries, for each other version, what the version at hand cannot express.
pub(crate) const LOST: &str = "setpoint.dev/lost-in-conversion";

/// A version that is converted to and from the hub, the one version that the operator's own code works with.
///
/// Say what corresponds and leave out the rest: what one of the two cannot express is kept in an annotation, and put back on
/// the way back ([`Versions`]). The API server takes no change of metadata from a conversion but labels and annotations; hand
/// the metadata on as they are.
///
/// ```
/// # use setpoint::{Result, Spoke};
/// # use kube::CustomResource;
/// # use schemars::JsonSchema;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
/// # #[kube(group = "example.com", version = "v1", kind = "Website", namespaced)]
/// # pub struct WebsiteSpec { text: String }
/// # mod v1beta1 {
/// #     use kube::CustomResource;
/// #     use schemars::JsonSchema;
/// #     use serde::{Deserialize, Serialize};
/// #     #[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
/// #     #[kube(group = "example.com", version = "v1beta1", kind = "Website", namespaced)]
/// #     pub struct WebsiteSpec { pub(crate) body: String }
/// # }
/// impl Spoke<Website> for v1beta1::Website {
///     fn to_hub(self) -> Result<Website> {
///         Ok(Website { metadata: self.metadata, spec: WebsiteSpec { text: self.spec.body } })
///     }
///     fn from_hub(hub: &Website) -> Result<Self> {
///         let spec = v1beta1::WebsiteSpec { body: hub.spec.text.clone() };
///         Ok(Self { metadata: hub.metadata.clone(), spec })
///     }
/// }
/// ```
pub trait Spoke<Hub>: Sized {
    /// This object as one of the hub's version.
    ///
    /// # Errors
    /// If there is none. The API server then cannot serve the object, and no list that holds it: find a way if there is one.
    fn to_hub(self) -> Result<Hub>;

    /// The hub's object in this version.
    ///
    /// # Errors
    /// As for [`to_hub`](Self::to_hub).
    fn from_hub(hub: &Hub) -> Result<Self>;
}

/// The versions of one kind; see [`Operator::versions`](crate::Operator::versions).
///
/// Conversion loses nothing: what a version cannot express travels in an annotation, and comes back at every place that nobody
/// has changed meanwhile. Items of lists are found again by their field `name`, `key`, `type` or `id`; a list of items without one of these
/// comes back as long as it is not changed at all.
#[must_use = "give it to Operator::versions"]
pub struct Versions<Hub> {
    pub(crate) all: AnyVersions,
    hub: PhantomData<fn(Hub)>,
}

/// The versions of a kind, whatever its types.
#[derive(Clone)]
pub(crate) struct AnyVersions {
    kind: Kind,
    stored: String,
    crds: Vec<CustomResourceDefinition>,
    normalise: fn(&Value) -> Result<Value>,
    spokes: BTreeMap<String, Converter>,
}

/// Between a spoke and the hub, as JSON.
#[derive(Clone, Copy)]
struct Converter {
    to_hub: fn(&Value) -> Result<Value>,
    from_hub: fn(&Value) -> Result<Value>,
    normalise: fn(&Value) -> Result<Value>,
}

/// Versions that do not fit together.
#[derive(Debug, thiserror::Error)]
pub enum VersionsError {
    /// Two of them are of different kinds.
    #[error("{hub} and {other} are not versions of one kind: group, names and scope have to be the same")]
    Kinds {
        /// Of the hub.
        hub: String,
        /// The other.
        other: String,
    },
    /// Two of them are the same version.
    #[error("{kind} has two versions {version}")]
    Twice {
        /// The kind.
        kind: String,
        /// The version.
        version: String,
    },
    /// The version to be stored is none of them.
    #[error("{kind} has no version {version} that could be stored")]
    Stored {
        /// The kind.
        kind: String,
        /// The version.
        version: String,
    },
}

/// Why an object cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum ConversionError {
    /// It says that it is something else.
    #[error("{given:?} is no version of {kind}: these are {known}")]
    Version {
        /// What was asked for.
        given: String,
        /// The kind.
        kind: String,
        /// Its versions.
        known: String,
    },
    /// The author's code, or the object does not fit the type.
    #[error("{object} from {from} to {to}: {reason}")]
    Failed {
        /// Namespace and name.
        object: String,
        /// Its version.
        from: String,
        /// The version that was asked for.
        to: String,
        /// Why.
        reason: String,
    },
    /// It is not the same after a way there and back; see [`Versions::round_trip`].
    #[error("from {from} to {to} and back, {field} became {became} and was {was}")]
    Lossy {
        /// Its version.
        from: String,
        /// The version on the way.
        to: String,
        /// The field that changed.
        field: String,
        /// Its value before.
        was: Box<Value>,
        /// Its value after.
        became: Box<Value>,
    },
}

impl<Hub: Object + CustomResourceExt> Versions<Hub>
where
    Hub::DynamicType: Default,
{
    /// The version that the operator's own code works with. It is the one that is stored, unless told otherwise.
    pub fn hub() -> Self {
        let kind = Kind::of::<Hub>();
        let all = AnyVersions {
            stored: kind.version.clone(),
            kind,
            crds: vec![Hub::crd()],
            normalise: normalise::<Hub>,
            spokes: BTreeMap::new(),
        };
        Self { all, hub: PhantomData }
    }

    /// Adds another version.
    pub fn spoke<S: Spoke<Hub> + Object + CustomResourceExt>(mut self) -> Self
    where
        S::DynamicType: Default,
    {
        self.all.crds.push(S::crd());
        let converter = Converter {
            to_hub: |value| Ok(serde_json::to_value(serde_json::from_value::<S>(value.clone())?.to_hub()?)?),
            from_hub: |value| {
                Ok(serde_json::to_value(S::from_hub(&serde_json::from_value(value.clone())?)?)?)
            },
            normalise: normalise::<S>,
        };
        self.all.spokes.insert(Kind::of::<S>().version, converter);
        self
    }

    /// The version in which objects are stored. Keep the old one for the release in which a version is new: its predecessor, which
    /// may have to be put back, cannot read the new one.
    pub fn storing(mut self, version: impl Into<String>) -> Self {
        self.all.stored = version.into();
        self
    }

    /// Converts an object, given as JSON, to a version such as `v1beta1`.
    ///
    /// # Errors
    /// If it is of another kind, or cannot be converted.
    pub fn convert(&self, object: &Value, version: &str) -> Result<Value, ConversionError> {
        self.all.convert(object, version)
    }

    /// Converts an object of any of the versions to every other one and back: for tests, best property tests over arbitrary
    /// objects of each version.
    ///
    /// ```
    /// # use setpoint::{Result, Spoke, Versions};
    /// # use kube::CustomResource;
    /// # use schemars::JsonSchema;
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
    /// # #[kube(group = "example.com", version = "v1", kind = "Website", namespaced)]
    /// # pub struct WebsiteSpec { text: String }
    /// # fn versions() -> Versions<Website> { Versions::hub() }
    /// versions().round_trip(&Website::new("shop", WebsiteSpec { text: "hello".to_owned() })).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`ConversionError::Lossy`] names the field that changed.
    pub fn round_trip(&self, object: &impl Serialize) -> Result<(), ConversionError> {
        let object = serde_json::to_value(object).map_err(|error| ConversionError::Failed {
            object: "the object".to_owned(),
            from: "Rust".to_owned(),
            to: "JSON".to_owned(),
            reason: error.to_string(),
        })?;
        let from = version_of(&object).to_owned();
        for to in self.all.names() {
            let there = self.convert(&object, to)?;
            let back = self.convert(&there, &from)?;
            // The annotation may say what the way back did not need.
            let comparable = |value: &Value| without_losses(value).map(|(value, _)| without_nulls(value));
            let (Ok(was), Ok(became)) = (comparable(&object), comparable(&back)) else { continue };
            if let Some((field, was, became)) = first_difference(&was, &became) {
                let (was, became) = (Box::new(was), Box::new(became));
                return Err(ConversionError::Lossy { from, to: to.to_owned(), field, was, became });
            }
        }
        Ok(())
    }

    /// The CustomResourceDefinition with all versions.
    ///
    /// # Errors
    /// If they do not fit together.
    pub fn crd(&self) -> Result<CustomResourceDefinition, VersionsError> {
        self.all.crd()
    }
}

impl AnyVersions {
    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// `websites.example.com`.
    pub(crate) fn crd_name(&self) -> String {
        format!("{}.{}", self.kind.plural, self.kind.group)
    }

    /// Whether there is anything to convert.
    pub(crate) fn several(&self) -> bool {
        !self.spokes.is_empty()
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.kind.version.as_str()).chain(self.spokes.keys().map(String::as_str))
    }

    pub(crate) fn crd(&self) -> Result<CustomResourceDefinition, VersionsError> {
        let (mut merged, others) = match self.crds.as_slice() {
            [hub, others @ ..] => (hub.clone(), others),
            [] => (CustomResourceDefinition::default(), [].as_slice()),
        };
        let name = |crd: &CustomResourceDefinition| {
            let versions: Vec<&str> = crd.spec.versions.iter().map(|version| version.name.as_str()).collect();
            format!("{}.{}/{}", crd.spec.names.plural, crd.spec.group, versions.join(","))
        };
        for other in others {
            let same =
                (&merged.spec.group, &merged.spec.names.plural, &merged.spec.names.kind, &merged.spec.scope)
                    == (
                        &other.spec.group,
                        &other.spec.names.plural,
                        &other.spec.names.kind,
                        &other.spec.scope,
                    );
            if !same {
                return Err(VersionsError::Kinds { hub: name(&self.crds[0]), other: name(other) });
            }
            for version in &other.spec.versions {
                if merged.spec.versions.iter().any(|known| known.name == version.name) {
                    let version = version.name.clone();
                    return Err(VersionsError::Twice { kind: self.kind.to_string(), version });
                }
                merged.spec.versions.push(version.clone());
            }
        }
        for version in &mut merged.spec.versions {
            version.storage = version.name == self.stored;
        }
        if !merged.spec.versions.iter().any(|version| version.storage) {
            let version = self.stored.clone();
            return Err(VersionsError::Stored { kind: self.kind.to_string(), version });
        }
        Ok(merged)
    }

    /// `object` in another version, by way of the hub.
    pub(super) fn convert(&self, object: &Value, to: &str) -> Result<Value, ConversionError> {
        let from = version_of(object);
        let same_kind = self.kind.same_group_kind(
            object["apiVersion"].as_str().unwrap_or_default(),
            object["kind"].as_str().unwrap_or_default(),
        );
        let unknown = |given: String| ConversionError::Version {
            given,
            kind: self.kind.to_string(),
            known: self.names().collect::<Vec<_>>().join(", "),
        };
        if !same_kind || !self.names().any(|name| name == from) {
            return Err(unknown(format!("{} {}", object["apiVersion"], object["kind"])));
        }
        if !self.names().any(|name| name == to) {
            return Err(unknown(to.to_owned()));
        }
        if from == to {
            return Ok(object.clone());
        }
        let failed = |error: crate::Error| {
            let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
            ConversionError::Failed {
                object: if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") },
                from: from.to_owned(),
                to: to.to_owned(),
                reason: error.to_string(),
            }
        };
        let mut at = object.clone();
        if let Some(spoke) = self.spokes.get(from) {
            at = self
                .step(&at, &self.kind.version, spoke.to_hub, spoke.from_hub, spoke.normalise)
                .map_err(failed)?;
        }
        if let Some(spoke) = self.spokes.get(to) {
            at = self.step(&at, to, spoke.from_hub, spoke.to_hub, self.normalise).map_err(failed)?;
        }
        Ok(at)
    }

    /// One conversion that loses nothing. `normalise` reads and writes an object of the version that it comes from.
    fn step(
        &self,
        object: &Value,
        to: &str,
        forth: fn(&Value) -> Result<Value>,
        back: fn(&Value) -> Result<Value>,
        normalise: fn(&Value) -> Result<Value>,
    ) -> Result<Value> {
        let (object, mut losses) = without_losses(object)?;
        let api_version = format!("{}/{to}", self.kind.group);
        let mut converted = finished(forth(&object)?, &object, &api_version);
        if let Some(loss) = losses.remove(to) {
            let restored = loss.restore(Some(content(&converted)));
            converted = with_content(&converted, restored);
        }
        let was = without_nulls(with_unknown(content(&normalise(&object)?), &content(&object)));
        let kept = content(&back(&converted)?);
        if let Some(loss) = Loss::between(Some(&kept), Some(&was)) {
            losses.insert(version_of(&object).to_owned(), loss);
        }
        if !losses.is_empty() {
            converted["metadata"]["annotations"][LOST] = json!(serde_json::to_string(&losses)?);
        }
        Ok(converted)
    }
}

/// As a Rust type reads it and writes it.
fn normalise<T: Serialize + DeserializeOwned>(object: &Value) -> Result<Value> {
    Ok(serde_json::to_value(serde_json::from_value::<T>(object.clone())?)?)
}

/// The object without our annotation, and what that holds: by version, what is lost of it here.
fn without_losses(object: &Value) -> Result<(Value, BTreeMap<String, Loss>)> {
    let mut object = object.clone();
    let mut losses = BTreeMap::new();
    if let Some(metadata) = object["metadata"].as_object_mut()
        && let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut)
        && let Some(text) = annotations.remove(LOST)
    {
        losses = serde_json::from_str(text.as_str().unwrap_or_default())
            .map_err(|error| crate::Error::msg(format!("the annotation {LOST} was changed: {error}")))?;
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    Ok((object, losses))
}

/// What a conversion made, as the API server takes it: with the original's metadata, but for labels and annotations that the
/// conversion changed.
fn finished(converted: Value, original: &Value, api_version: &str) -> Value {
    let mut object = without_nulls(converted);
    let mut metadata = original["metadata"].clone();
    // Without a name it has not handed the metadata on at all.
    if object.pointer("/metadata/name") == original.pointer("/metadata/name") && metadata.is_object() {
        for field in ["labels", "annotations"] {
            match object["metadata"].get(field) {
                Some(changed) => metadata[field] = changed.clone(),
                None => drop(metadata.as_object_mut().map(|metadata| metadata.remove(field))),
            }
        }
    }
    object["apiVersion"] = json!(api_version);
    object["kind"] = original["kind"].clone();
    object["metadata"] = metadata;
    object
}

fn with_content(object: &Value, content: Option<Value>) -> Value {
    let mut result = content.unwrap_or_else(|| json!({}));
    for field in ["apiVersion", "kind", "metadata"] {
        result[field] = object[field].clone();
    }
    result
}

fn version_of(object: &Value) -> &str {
    let api_version = object["apiVersion"].as_str().unwrap_or_default();
    api_version.rsplit('/').next().unwrap_or_default()
}

impl<Hub> fmt::Debug for Versions<Hub> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let versions: Vec<&str> = self.all.names().collect();
        f.debug_struct("Versions").field("kind", &self.all.kind.kind).field("versions", &versions).finish()
    }
}

#[cfg(test)]
mod tests;
