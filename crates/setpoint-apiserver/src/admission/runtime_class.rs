//! The plugin `RuntimeClass`: a pod that names a class gets the overhead and the places of that class.

use serde_json::{Value, json};

use super::{Attributes, Operation};
use crate::builtin::{Amounts, list, text};
use crate::object::fields;
use crate::registry::Registry;
use crate::status::Result;
use crate::store::Key;

const CLASSES: &str = "runtimeclasses.node.k8s.io";
const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

impl Registry {
    /// The class that a new pod names; `null` if it names none.
    fn runtime_class(&self, request: &Attributes<'_>, pod: &Value) -> Result<Value> {
        let Some(name) = pod["spec"]["runtimeClassName"].as_str() else { return Ok(Value::Null) };
        match self.store.get(CLASSES, &Key::new("", name)) {
            Some(class) => Ok(class.decode()),
            None => Err(request.forbidden(pod, &format!("pod rejected: RuntimeClass {name:?} not found"))),
        }
    }

    /// Gives a new pod the overhead, the node selector and the tolerations of its class.
    pub(super) fn set_runtime_class(&self, request: &Attributes<'_>, pod: &mut Value) -> Result<()> {
        let class = self.runtime_class(request, pod)?;
        if class["overhead"].is_object() {
            let fixed = &class["overhead"]["podFixed"];
            let given = Amounts::of(&pod["spec"]["overhead"]);
            if !given.0.is_empty() && given != Amounts::of(fixed) {
                return Err(request.forbidden(pod, MISMATCH));
            }
            if fixed.as_object().is_some_and(|fixed| !fixed.is_empty()) {
                fields(&mut pod["spec"]).insert("overhead".to_owned(), fixed.clone());
            }
        }
        let scheduling = &class["scheduling"];
        for (key, value) in scheduling["nodeSelector"].as_object().into_iter().flatten() {
            let known = pod["spec"]["nodeSelector"][key].as_str();
            if let Some(known) = known.filter(|known| value != known) {
                let value = value.as_str().unwrap_or_default();
                let why = format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = {known}"
                );
                return Err(request.forbidden(pod, &why));
            }
            let selector = fields(&mut pod["spec"]).entry("nodeSelector").or_insert_with(|| json!({}));
            fields(selector).insert(key.clone(), value.clone());
        }
        if scheduling.is_object() {
            let merged = merge(list(&pod["spec"], "tolerations"), list(scheduling, "tolerations"));
            if !merged.is_empty() {
                fields(&mut pod["spec"]).insert("tolerations".to_owned(), merged.into());
            }
        }
        Ok(())
    }

    /// Refuses a new pod with another overhead than its class has.
    pub(super) fn check_runtime_class(&self, request: &Attributes<'_>, pod: &Value) -> Result<()> {
        if request.operation != Operation::Create || !request.is("", "pods") {
            return Ok(());
        }
        let class = self.runtime_class(request, pod)?;
        let given = &pod["spec"]["overhead"];
        let why = if class["overhead"].is_object() {
            let same = Amounts::of(given) == Amounts::of(&class["overhead"]["podFixed"]);
            (!same).then_some(MISMATCH)
        } else {
            let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
            given.is_object().then_some(why)
        };
        why.map_or(Ok(()), |why| Err(request.forbidden(pod, why)))
    }
}

/// Both lists of tolerations, without those that another one includes.
fn merge(first: &[Value], second: &[Value]) -> Vec<Value> {
    let all: Vec<&Value> = first.iter().chain(second).collect();
    let mut merged: Vec<Value> = Vec::new();
    for (index, one) in all.iter().enumerate() {
        let included = merged.iter().any(|known| includes(known, one))
            || all[index + 1..].iter().any(|later| later != one && includes(later, one));
        if !included {
            merged.push((*one).clone());
        }
    }
    merged
}

/// Whether the toleration `wide` tolerates everything that `one` does.
fn includes(wide: &Value, one: &Value) -> bool {
    if wide == one {
        return true;
    }
    let differ = |key: &str| text(wide, key) != text(one, key);
    let everything = text(wide, "key").is_empty() && text(wide, "operator") == "Exists";
    if differ("key") && !everything || differ("effect") && !text(wide, "effect").is_empty() {
        return false;
    }
    if text(wide, "effect") == "NoExecute"
        && let Some(seconds) = wide["tolerationSeconds"].as_i64()
        && one["tolerationSeconds"].as_i64().is_none_or(|own| own > seconds)
    {
        return false;
    }
    match text(wide, "operator") {
        "Equal" | "" => text(one, "operator") == "Equal" && !differ("value"),
        operator => operator == "Exists",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wider_toleration_stays() {
        let any = json!({"operator": "Exists"});
        let one = json!({"key": "a", "operator": "Exists", "effect": "NoSchedule"});
        let value = json!({"key": "a", "operator": "Equal", "value": "x", "effect": "NoSchedule"});
        let brief = json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3});
        let long = json!({"key": "a", "operator": "Exists", "effect": "NoExecute"});
        for (first, second, expected) in [
            (&one, &any, vec![&any]),
            (&value, &one, vec![&one]),
            (&brief, &long, vec![&long]),
            (&long, &brief, vec![&long]),
            (&one, &one, vec![&one]),
            (&brief, &one, vec![&brief, &one]),
        ] {
            let merged = merge(std::slice::from_ref(first), std::slice::from_ref(second));
            assert_eq!(merged.iter().collect::<Vec<_>>(), expected, "{first} {second}");
        }
    }
}
