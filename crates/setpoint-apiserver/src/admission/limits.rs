//! The plugin `LimitRanger`: defaults and bounds for containers, pods and claims (`plugin/pkg/admission/limitranger`).

use serde_json::{Value, json};

use super::{Attributes, Operation};
use crate::builtin::{Amounts, Quantity, amounts_of_pod};
use crate::object::fields;
use crate::registry::Registry;
use crate::status::Result;

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

impl Registry {
    /// The limit ranges that a request has to do with. The containers of a pod cannot be changed later, but for `resize`.
    fn limits_for(&self, request: &Attributes<'_>) -> Vec<Value> {
        let of_pod = match request.operation {
            Operation::Create => request.is("", "pods"),
            Operation::Update => request.resource().is("", "pods") && request.subresource == "resize",
            _ => false,
        };
        let written = matches!(request.operation, Operation::Create | Operation::Update);
        if !(of_pod || written && request.is("", "persistentvolumeclaims")) {
            return Vec::new();
        }
        let snapshot = self.store.snapshot("limitranges");
        let ranges = snapshot.range(&request.place.namespace, None);
        ranges
            .flat_map(|(_, range)| range.value["spec"]["limits"].as_array().cloned().unwrap_or_default())
            .collect()
    }

    /// Gives the containers of a new pod what it does not say.
    pub(super) fn set_limits(&self, request: &Attributes<'_>, object: &mut Value) {
        if request.operation == Operation::Create && request.is("", "pods") {
            for limit in self.limits_for(request).iter().filter(|limit| limit["type"] == "Container") {
                complete(object, limit);
            }
        }
    }

    /// Refuses what is out of bounds.
    pub(super) fn check_limits(&self, request: &Attributes<'_>, object: &Value) -> Result<()> {
        let claims = request.resource().plural == "persistentvolumeclaims";
        let mut problems = Vec::new();
        for limit in self.limits_for(request) {
            let kind = limit["type"].as_str().unwrap_or_default();
            match kind {
                "PersistentVolumeClaim" if claims => {
                    let requests = Amounts::of(&object["spec"]["resources"]["requests"]);
                    for (name, min) in Amounts::of(&limit["min"]).0 {
                        problems.extend(too_little(kind, &name, min, &requests, &Amounts::default()));
                    }
                    for (name, max) in Amounts::of(&limit["max"]).0 {
                        problems.extend(too_much_requested(kind, &name, max, &requests));
                    }
                }
                "Container" if !claims => {
                    for list in ["containers", "initContainers"] {
                        for container in object["spec"][list].as_array().into_iter().flatten() {
                            let of = |key: &str| Amounts::of(&container["resources"][key]);
                            problems.extend(check(&limit, kind, &of("requests"), &of("limits")));
                        }
                    }
                }
                "Pod" if !claims => {
                    let of = |key: &str| amounts_of_pod(object, key);
                    problems.extend(check(&limit, kind, &of("requests"), &of("limits")));
                }
                _ => {}
            }
        }
        match problems.as_slice() {
            [] => Ok(()),
            [only] => Err(request.forbidden(object, only)),
            _ => Err(request.forbidden(object, &format!("[{}]", problems.join(", ")))),
        }
    }
}

/// Gives each container the defaults of one limit, and notes in an annotation which.
fn complete(pod: &mut Value, limit: &Value) {
    let mut notes = Vec::new();
    for (list, what) in [("containers", "container"), ("initContainers", "init container")] {
        let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            for (key, defaults, word) in
                [("requests", "defaultRequest", "request"), ("limits", "default", "limit")]
            {
                let mut set = Vec::new();
                for (resource, amount) in limit[defaults].as_object().into_iter().flatten() {
                    let resources = fields(container).entry("resources").or_insert_with(|| json!({}));
                    let of = fields(fields(resources).entry(key).or_insert_with(|| json!({})));
                    if !of.contains_key(resource) {
                        of.insert(resource.clone(), amount.clone());
                        set.push(resource.as_str());
                    }
                }
                if !set.is_empty() {
                    notes.push(format!("{} {word} for {what} {name}", set.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        let annotations = fields(fields(pod).entry("metadata").or_insert_with(|| json!({})))
            .entry("annotations")
            .or_insert_with(|| json!({}));
        fields(annotations)
            .insert(ANNOTATION.to_owned(), format!("LimitRanger plugin set: {}", notes.join("; ")).into());
    }
}

/// Everything in which a container or pod does not keep to a limit.
fn check(limit: &Value, kind: &str, requests: &Amounts, limits: &Amounts) -> Vec<String> {
    let of = |key: &str| Amounts::of(&limit[key]).0.into_iter();
    let small = of("min").filter_map(|(name, min)| too_little(kind, &name, min, requests, limits));
    let large = of("max").filter_map(|(name, max)| too_much(kind, &name, max, requests, limits));
    let apart =
        of("maxLimitRequestRatio").filter_map(|(name, most)| too_far(kind, &name, most, requests, limits));
    small.chain(large).chain(apart).collect()
}

fn too_little(kind: &str, name: &str, min: Quantity, requests: &Amounts, limits: &Amounts) -> Option<String> {
    let lead = format!("minimum {name} usage per {kind} is {min}");
    match (requests.get(name), limits.get(name)) {
        (None, _) => Some(format!("{lead}.  No request is specified")),
        (Some(request), _) if request.nanos() < min.nanos() => {
            Some(format!("{lead}, but request is {request}"))
        }
        (_, Some(limit)) if limit.nanos() < min.nanos() => Some(format!("{lead}, but limit is {limit}")),
        _ => None,
    }
}

fn too_much(kind: &str, name: &str, max: Quantity, requests: &Amounts, limits: &Amounts) -> Option<String> {
    let lead = format!("maximum {name} usage per {kind} is {max}");
    match (limits.get(name), requests.get(name)) {
        (None, _) => Some(format!("{lead}.  No limit is specified")),
        (Some(limit), _) if limit.nanos() > max.nanos() => Some(format!("{lead}, but limit is {limit}")),
        (_, Some(request)) if request.nanos() > max.nanos() => {
            Some(format!("{lead}, but request is {request}"))
        }
        _ => None,
    }
}

fn too_much_requested(kind: &str, name: &str, max: Quantity, requests: &Amounts) -> Option<String> {
    let lead = format!("maximum {name} usage per {kind} is {max}");
    match requests.get(name) {
        None => Some(format!("{lead}.  No request is specified")),
        Some(request) if request.nanos() > max.nanos() => Some(format!("{lead}, but request is {request}")),
        Some(_) => None,
    }
}

fn too_far(kind: &str, name: &str, most: Quantity, requests: &Amounts, limits: &Amounts) -> Option<String> {
    let lead = format!("{name} max limit to request ratio per {kind} is {most}");
    let some = |amounts: &Amounts| amounts.get(name).filter(|quantity| quantity.nanos() != 0);
    let Some(request) = some(requests) else {
        return Some(format!("{lead}, but no request is specified or request is 0"));
    };
    let Some(limit) = some(limits) else {
        return Some(format!("{lead}, but no limit is specified or limit is 0"));
    };
    let ratio = limit.ratio(request);
    (ratio > most.ratio(Quantity::whole(1))).then(|| format!("{lead}, but provided ratio is {ratio:.6}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_for_what_is_not_said() {
        let limit = json!({"type": "Container", "default": {"cpu": "500m", "memory": "1Gi"}, "defaultRequest": {"cpu": "100m"}});
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {
            "containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "1"}}}],
            "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "2"}}}],
        }});
        complete(&mut pod, &limit);
        let spec = &pod["spec"];
        let wanted = json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "500m", "memory": "1Gi"}});
        assert_eq!(spec["containers"][0]["resources"], wanted);
        assert_eq!(spec["containers"][1]["resources"]["limits"]["cpu"], "1");
        assert_eq!(spec["initContainers"][0]["resources"]["requests"]["cpu"], "2");
        assert_eq!(
            pod["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu request for container a; cpu, memory limit for container a; cpu, memory limit for init container i"
        );
    }

    #[test]
    fn bounds_are_worded_as_upstream_words_them() {
        let of = |limit: &Value, requests: Value, limits: Value| {
            check(limit, "Container", &Amounts::of(&requests), &Amounts::of(&limits))
        };
        let limit =
            json!({"min": {"cpu": "100m"}, "max": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "2"}});
        assert_eq!(of(&limit, json!({"cpu": "500m"}), json!({"cpu": "1"})), Vec::<String>::new());
        assert_eq!(
            of(&limit, json!({}), json!({"cpu": "2"})),
            [
                "minimum cpu usage per Container is 100m.  No request is specified",
                "maximum cpu usage per Container is 1, but limit is 2",
                "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
            ]
        );
        assert_eq!(
            of(&limit, json!({"cpu": "100m"}), json!({"cpu": "250m"})),
            ["cpu max limit to request ratio per Container is 2, but provided ratio is 2.500000"]
        );
    }
}
