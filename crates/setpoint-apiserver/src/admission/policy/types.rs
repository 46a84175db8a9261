//! What is wrong with the expressions of a `ValidatingAdmissionPolicy` for the kinds that it is about: no error, since the kinds may change
//! (`…/policy/validating/typechecking.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use setpoint_schema::cel::policy::{Environment, Expression, Gives};

use super::validating::POLICIES;
use crate::admission::expressions::environment;
use crate::catalog::Resource;
use crate::object::Metadata;
use crate::registry::Registry;
use crate::store::Key;

/// How many kinds are looked at for each rule (upstream: `maxTypesToCheck`).
const KINDS: usize = 10;

impl Registry {
    /// The `status` that a policy should have, if it is there.
    pub(crate) fn policy_status(&self, name: &str) -> Option<Value> {
        let policy = self.store.get(POLICIES, &Key::new("", name))?.decode();
        let warnings: Vec<Value> = self
            .type_check(&policy)
            .into_iter()
            .map(|(field, warning)| json!({"fieldRef": field, "warning": warning}))
            .collect();
        let mut checking = json!({});
        if !warnings.is_empty() {
            checking["expressionWarnings"] = warnings.into();
        }
        Some(json!({"observedGeneration": policy.generation(), "typeChecking": checking}))
    }

    /// The fields of a policy whose expressions do not fit the kinds that its rules name, with what is wrong for which kind.
    fn type_check(&self, policy: &Value) -> Vec<(String, String)> {
        let kinds = self.kinds_of(policy);
        let items = |key: &str| policy["spec"][key].as_array().into_iter().flatten();
        let mut warnings = Vec::new();
        for (index, validation) in items("validations").enumerate() {
            for key in ["expression", "messageExpression"] {
                let Some(text) = validation[key].as_str().filter(|text| !text.is_empty()) else { continue };
                let problems: Vec<String> = kinds
                    .iter()
                    .filter_map(|kind| {
                        let environment = self.typed(policy, kind);
                        let why = Expression::compile(text.trim(), &environment, Gives::Any).err()?;
                        Some(format!("{}/{}, Kind={}: {why}\n", kind.group, kind.version, kind.kind))
                    })
                    .collect();
                if !problems.is_empty() {
                    let field = format!("spec.validations[{index}].{key}");
                    warnings.push((field, problems.join("\n")));
                }
            }
        }
        warnings
    }

    /// The kinds that the rules of a policy name without wildcards, sorted.
    fn kinds_of(&self, policy: &Value) -> Vec<Arc<Resource>> {
        let all = self.catalog.all();
        let mut kinds = BTreeMap::new();
        let rules = policy["spec"]["matchConstraints"]["resourceRules"].as_array();
        for rule in rules.into_iter().flatten() {
            let names = |key: &str| {
                let mut names: Vec<&str> =
                    rule[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                names.sort_unstable();
                names
            };
            let (groups, versions) = (names("apiGroups"), names("apiVersions"));
            if groups.iter().chain(&versions).any(|name| name.contains('*')) {
                continue;
            }
            let plurals = names("resources");
            let mut left = KINDS;
            for (group, version) in
                groups.iter().flat_map(|group| versions.iter().map(move |one| (group, one)))
            {
                for plural in plurals.iter().filter(|name| !name.contains(['*', '/'])) {
                    let found = all.iter().find(|one| one.is(group, plural) && one.version == **version);
                    if let Some(kind) = found.filter(|_| left > 0) {
                        left -= 1;
                        let key = (kind.group.clone(), kind.version.clone(), kind.kind.clone());
                        kinds.insert(key, Arc::clone(kind));
                    }
                }
            }
        }
        kinds.into_values().collect()
    }

    /// What the expressions of a policy may use where the object is of `kind`.
    fn typed(&self, policy: &Value, kind: &Resource) -> Environment {
        let params = &policy["spec"]["paramKind"];
        let mut known = environment(!params.is_null());
        for name in ["object", "oldObject"] {
            known = with(known, name, kind);
        }
        let version = params["apiVersion"].as_str().unwrap_or_default();
        let of_params = self.catalog.all();
        let of_params =
            of_params.iter().find(|one| one.api_version() == version && params["kind"] == one.kind.as_str());
        if let Some(of_params) = of_params {
            known = with(known, "params", of_params);
        }
        let mut known = known.with_variables();
        for variable in policy["spec"]["variables"].as_array().into_iter().flatten() {
            let text = |key: &str| variable[key].as_str().unwrap_or_default();
            let compiled = Expression::compile(text("expression").trim(), &known, Gives::Any).ok();
            known.variable(text("name"), compiled.as_ref());
        }
        known
    }
}

/// Lets `name` stand for an object of a resource.
fn with(environment: Environment, name: &str, resource: &Resource) -> Environment {
    if let Some(definition) = resource.definition() {
        return environment.built_in(name, definition);
    }
    let Some(custom) = resource.custom() else { return environment };
    let mut schema = custom.openapi.clone();
    // Their authors say nothing about what every object has.
    if let Some(properties) = schema["properties"].as_object_mut() {
        for field in ["apiVersion", "kind"] {
            properties.insert(field.to_owned(), json!({"type": "string"}));
        }
        let metadata = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        properties.insert("metadata".to_owned(), metadata);
    }
    environment.typed(name, &schema)
}
