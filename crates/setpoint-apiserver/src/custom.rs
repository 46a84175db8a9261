//! Custom resource definitions: from a stored definition to resources that can be served.

mod definition;
mod structure;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use setpoint_schema::cel::Rules;
use setpoint_schema::{
    FieldError, FieldPath, Schema, SchemaError, UnknownField, default, default_applied, prune, validate,
    validate_update,
};
use tokio_util::sync::CancellationToken;

use crate::catalog::{Resource, Shape, storage_name};
use crate::discovery::priority;
use crate::object::Metadata;
use crate::registry::printed;
use crate::status::Cause;

pub(crate) use self::definition::{check, warnings};

pub(crate) const GROUP: &str = "apiextensions.k8s.io";
pub(crate) const PLURAL: &str = "customresourcedefinitions";
pub(crate) const STORAGE: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// What is special about one version of a custom resource.
#[derive(Debug)]
pub(crate) struct CustomShape {
    pub(crate) api_version: String,
    /// The `apiVersion` in which objects are stored.
    pub(crate) storage_version: String,
    pub(crate) schema: Schema,
    /// The CEL rules; `None` if there are none.
    rules: Option<Rules>,
    /// The schema as it was written, for OpenAPI.
    pub(crate) openapi: Value,
    pub(crate) has_status: bool,
    pub(crate) scale: Option<ScalePaths>,
    /// The schemas of all versions by `apiVersion`.
    siblings: Arc<BTreeMap<String, Schema>>,
    /// The conversion by webhook, if there is one; else objects are the same in every version, as far as its schema knows them.
    pub(crate) conversion: Option<Conversion>,
    /// `additionalPrinterColumns`.
    pub(crate) columns: Vec<Value>,
    /// Paths of fields that can be selected by, without the leading dot.
    pub(crate) selectable: Vec<String>,
    /// The warning of a deprecated version.
    pub(crate) deprecation: Option<String>,
    /// The revision at which this shape came: objects written before may lack its defaults.
    pub(crate) since: u64,
    /// The definition's uid.
    pub(crate) definition: String,
    /// Whether this version is served. The objects of a definition that serves none are still there.
    pub(crate) served: bool,
    /// The definition is being deleted: no new objects.
    pub(crate) terminating: bool,
    /// Cancelled when the definition is gone.
    pub(crate) removed: CancellationToken,
}

/// How objects get from one version into another, where a webhook is asked.
#[derive(Clone, Debug)]
pub(crate) struct Conversion {
    /// `clientConfig`.
    pub(crate) client: Value,
    /// `conversionReviewVersions`.
    versions: Vec<String>,
}

impl Conversion {
    fn of(spec: &Value) -> Option<Self> {
        let webhook = &spec["conversion"]["webhook"];
        let versions = webhook["conversionReviewVersions"].as_array().into_iter().flatten();
        let versions = versions.filter_map(Value::as_str).map(str::to_owned).collect();
        (spec["conversion"]["strategy"] == "Webhook")
            .then(|| Self { client: webhook["clientConfig"].clone(), versions })
    }

    /// The first version of reviews that the webhook takes and this server knows.
    pub(crate) fn review_version(&self) -> Option<&str> {
        self.versions.iter().map(String::as_str).find(|version| matches!(*version, "v1" | "v1beta1"))
    }
}

/// Where the numbers of the scale subresource are (JSON paths).
#[derive(Clone, Debug)]
pub(crate) struct ScalePaths {
    pub(crate) spec: String,
    pub(crate) status: String,
    pub(crate) selector: Option<String>,
}

/// The resources of a definition: one for each version, served or not.
pub(crate) fn resources(
    definition: &Value,
    since: u64,
    removed: &CancellationToken,
) -> Result<Vec<Resource>, SchemaError> {
    let spec = &definition["spec"];
    // What was accepted, not what is asked for: names that another definition holds are not served.
    let names = &definition["status"]["acceptedNames"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let texts = |value: &Value| value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
    let group = text(&spec["group"]);
    let namespaced = spec["scope"] == "Namespaced";
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let storage_version = versions.iter().find(|version| version["storage"] == true);
    let storage_version =
        format!("{group}/{}", storage_version.map(|version| text(&version["name"])).unwrap_or_default());
    let schema_of = |openapi: &Value| {
        if openapi.is_null() { Ok(Schema::untyped()) } else { Schema::from_openapi(openapi) }
    };
    let schemas = versions.iter().map(|version| {
        let schema = schema_of(&version["schema"]["openAPIV3Schema"])?;
        Ok((format!("{group}/{}", text(&version["name"])), schema))
    });
    let siblings: Arc<BTreeMap<_, _>> = Arc::new(schemas.collect::<Result<_, SchemaError>>()?);
    let mut resources = Vec::new();
    for version in versions {
        let name = text(&version["name"]);
        let openapi = version["schema"]["openAPIV3Schema"].clone();
        let api_version = format!("{group}/{name}");
        let Some(schema) = siblings.get(&api_version).cloned() else { continue };
        let kind = text(&names["kind"]);
        let deprecation = (version["deprecated"] == true).then(|| {
            let given = version["deprecationWarning"].as_str().map(str::to_owned);
            given.unwrap_or_else(|| deprecated(&group, &name, &kind, versions))
        });
        let subresources = &version["subresources"];
        let scale = &subresources["scale"];
        let selectable = version["selectableFields"].as_array().into_iter().flatten();
        let shape = CustomShape {
            api_version,
            storage_version: storage_version.clone(),
            rules: Rules::compile(&schema).ok().filter(|rules| !rules.is_empty()),
            schema,
            siblings: Arc::clone(&siblings),
            openapi,
            has_status: subresources["status"].is_object(),
            scale: scale.is_object().then(|| ScalePaths {
                spec: text(&scale["specReplicasPath"]),
                status: text(&scale["statusReplicasPath"]),
                selector: scale["labelSelectorPath"].as_str().map(str::to_owned),
            }),
            conversion: Conversion::of(spec),
            columns: version["additionalPrinterColumns"].as_array().cloned().unwrap_or_default(),
            selectable: selectable
                .filter_map(|field| field["jsonPath"].as_str())
                .map(|path| path.trim_start_matches('.').to_owned())
                .collect(),
            deprecation,
            since,
            definition: definition.meta("uid").to_owned(),
            served: version["served"] == true,
            terminating: definition.is_deleting(),
            removed: removed.clone(),
        };
        resources.push(Resource {
            version: name,
            kind,
            list_kind: text(&names["listKind"]),
            plural: text(&names["plural"]),
            singular: text(&names["singular"]),
            short_names: texts(&names["shortNames"]),
            categories: texts(&names["categories"]),
            namespaced,
            verbs: ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]
                .map(str::to_owned)
                .into(),
            storage: storage_name(&group, &text(&names["plural"])),
            shape: Shape::Custom(Arc::new(shape)),
            group: group.clone(),
        });
    }
    Ok(resources)
}

impl CustomShape {
    /// Gives an object the fields of this shape: no unknown ones (which are returned), defaults for missing ones.
    pub(crate) fn complete(&self, object: &mut Value) -> Vec<UnknownField> {
        let unknown = prune(&self.schema, object);
        default(&self.schema, object);
        unknown
    }

    /// As [`Self::complete`], for what an apply of `intent` made.
    pub(crate) fn complete_applied(&self, object: &mut Value, intent: &Value) -> Vec<UnknownField> {
        let unknown = prune(&self.schema, object);
        default_applied(&self.schema, object, intent);
        unknown
    }

    /// Makes of an object as it is stored what readers in this version get. An object has the defaults of the version that it is stored in, and
    /// each conversion drops what the next version does not know (upstream: `unstructuredDefaulter`, `schemaCoercingConverter`).
    pub(crate) fn serve(&self, object: &mut Value) {
        let stored = object["apiVersion"].as_str().unwrap_or_default();
        if let Some(schema) = self.siblings.get(stored).filter(|_| stored != self.api_version) {
            prune(schema, object);
            default(schema, object);
            object["apiVersion"] = self.api_version.as_str().into();
            prune(&self.schema, object);
        } else {
            object["apiVersion"] = self.api_version.as_str().into();
            self.complete(object);
        }
    }

    /// Makes of an object in this version what is stored.
    pub(crate) fn to_storage(&self, object: &mut Value) {
        if object["apiVersion"] == self.storage_version.as_str() {
            return;
        }
        object["apiVersion"] = self.storage_version.as_str().into();
        if let (None, Some(schema)) = (&self.conversion, self.siblings.get(&self.storage_version)) {
            prune(schema, object);
            default(schema, object);
        }
    }

    /// Every field that breaks the schema or one of its rules. What is wrong with values that did not change becomes a warning.
    pub(crate) fn validate(
        &self,
        new: &Value,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> Vec<FieldError> {
        let root = FieldPath::root();
        let mut errors = match old {
            Some(old) => validate_update(&self.schema, new, old, &root),
            None => validate(&self.schema, new, &root),
        };
        if let Some(rules) = &self.rules {
            let ratcheted = rules.validate_after(&mut errors, new, old);
            warnings.extend(ratcheted.iter().map(ToString::to_string));
        }
        errors
    }

    /// What is wrong with the numbers of the scale subresource, as upstream checks them beside the schema
    /// (`customResourceValidator.ValidateScaleSpec`, `ValidateScaleStatus`). `parts`: of `spec`, of `status`.
    pub(crate) fn validate_scale(&self, object: &Value, parts: [bool; 2]) -> Vec<Cause> {
        let Some(scale) = &self.scale else { return Vec::new() };
        let mut causes = Vec::new();
        for (path, checked) in [&scale.spec, &scale.status].into_iter().zip(parts) {
            if !checked {
                continue;
            }
            match nested(object, path) {
                Ok(None) => {}
                Ok(Some(Value::Number(number))) if number.is_i64() => {
                    let count = number.as_i64().unwrap_or_default();
                    if count < 0 {
                        causes.push(Cause::invalid(path, &count.into(), "should be a non-negative integer"));
                    } else if count > i64::from(i32::MAX) {
                        let detail = format!("should be less than or equal to {}", i32::MAX);
                        causes.push(Cause::invalid(path, &count.into(), &detail));
                    }
                }
                Ok(Some(other)) => {
                    causes.push(Cause::invalid(path, &0.into(), &of_type(path, other, "int64")));
                }
                Err(why) => causes.push(Cause::invalid(path, &0.into(), &why)),
            }
        }
        if let Some(path) = scale.selector.as_ref().filter(|_| parts[1]) {
            match nested(object, path) {
                Ok(None | Some(Value::String(_))) => {}
                Ok(Some(other)) => {
                    causes.push(Cause::invalid(path, &"".into(), &of_type(path, other, "string")));
                }
                Err(why) => causes.push(Cause::invalid(path, &"".into(), &why)),
            }
        }
        causes
    }
}

/// The value at a path of fields; nothing where one is missing (`unstructured.NestedFieldNoCopy`).
fn nested<'a>(object: &'a Value, path: &str) -> std::result::Result<Option<&'a Value>, String> {
    let (mut value, mut at) = (object, String::new());
    for field in path.trim_start_matches('.').split('.') {
        match value {
            Value::Object(fields) => match fields.get(field) {
                Some(found) => value = found,
                None => return Ok(None),
            },
            Value::Null => return Ok(None),
            other => return Err(of_type(&at, other, "map[string]interface{}")),
        }
        at = format!("{at}.{field}");
    }
    Ok(Some(value))
}

/// A value of another type than wanted, as Go words it.
fn of_type(path: &str, value: &Value, wanted: &str) -> String {
    let (shown, kind) = match value {
        Value::Null => ("<nil>".to_owned(), "<nil>"),
        Value::Bool(_) => (value.to_string(), "bool"),
        Value::Number(number) if number.is_f64() => (value.to_string(), "float64"),
        Value::Number(_) => (value.to_string(), "int64"),
        Value::String(text) => (text.clone(), "string"),
        Value::Array(_) => (printed(value), "[]interface {}"),
        Value::Object(_) => (printed(value), "map[string]interface {}"),
    };
    format!(
        ".{} accessor error: {shown} is of the type {kind}, expected {wanted}",
        path.trim_start_matches('.')
    )
}

/// What users of a deprecated version are told by default: which one to use, if there is a newer one.
fn deprecated(group: &str, version: &str, kind: &str, versions: &[Value]) -> String {
    let served = versions.iter().filter(|other| other["served"] == true && other["deprecated"] != true);
    let names = served.filter_map(|other| other["name"].as_str());
    let newer = names.filter(|name| priority(name) > priority(version));
    match newer.max_by_key(|name| priority(name)) {
        Some(newest) => format!("{group}/{version} {kind} is deprecated; use {group}/{newest} {kind}"),
        None => format!("{group}/{version} {kind} is deprecated"),
    }
}
