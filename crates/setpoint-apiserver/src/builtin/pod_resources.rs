//! What a pod as a whole may have, beside what each of its containers has: what is filled in (`pkg/api/pod/util.go`, `DefaultPodLevelResources`), what
//! may stand there, and the class of service that follows.

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::Quantity;
use super::amounts::{Amounts, of_containers};
use super::edit::{list, set};
use super::validate::{Errors, claims, container_resources};

fn is_huge_pages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Whether a pod may have it as a whole.
fn is_known(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_huge_pages(name)
}

/// Fills in what a pod that says something about its resources leaves to its containers.
pub fn default(spec: &mut Value) {
    let resources = &spec["resources"];
    let (mut requests, mut limits) = (Amounts::of(&resources["requests"]), Amounts::of(&resources["limits"]));
    if requests.0.is_empty() && limits.0.is_empty() {
        return;
    }
    let (wanted, most) = (of_containers(spec, "requests"), of_containers(spec, "limits"));
    for (name, quantity) in &most.0 {
        if is_huge_pages(name) && requests.get(name).is_none() && limits.get(name).is_none() {
            limits.set(name.clone(), *quantity);
        }
    }
    for (name, quantity) in &wanted.0 {
        if matches!(name.as_str(), "cpu" | "memory") && requests.get(name).is_none() {
            requests.set(name.clone(), *quantity);
        }
    }
    for (name, quantity) in &limits.0 {
        if is_known(name) && requests.get(name).is_none() {
            requests.set(name.clone(), *quantity);
        }
    }
    // A limit follows where every container has one.
    let containers = || list(spec, "containers").iter().chain(list(spec, "initContainers"));
    for (name, request) in &requests.0 {
        let all = containers().all(|container| !container["resources"]["limits"][name].is_null());
        if let Some(limit) = most.get(name).filter(|_| is_known(name) && all)
            && limits.get(name).is_none()
        {
            limits.set(name.clone(), if request.nanos() > limit.nanos() { *request } else { limit });
        }
    }
    for (key, amounts) in [("requests", requests), ("limits", limits)] {
        if !amounts.0.is_empty() {
            set(&mut spec["resources"], key, amounts.to_value());
        }
    }
}

/// Checks the resources of a pod as a whole.
pub fn check(errors: &mut Errors, spec: &Value, path: &FieldPath) {
    let (resources, path) = (&spec["resources"], path.child("resources"));
    if !resources.is_object() {
        return;
    }
    if spec["os"]["name"] == "windows" {
        return errors.forbidden(&path, "may not be set for a windows pod");
    }
    if !resources["claims"].is_null() {
        errors.forbidden(&path.child("claims"), "claims may not be set for Resources at pod-level");
        claims(errors, resources, spec, &path.child("claims"));
    }
    container_resources(errors, resources, &path, name);
    let own = |key: &str, name: &str| resources[key][name].as_str().and_then(Quantity::parse);
    for (name, wanted) in of_containers(spec, "requests").0 {
        if let Some(request) = own("requests", &name).filter(|request| wanted.nanos() > request.nanos()) {
            let detail = format!("must be greater than or equal to aggregate container requests of {wanted}");
            errors.invalid(&path.child("requests").key(&name), request.to_string(), detail);
        }
    }
    for (name, most) in of_containers(spec, "limits").0 {
        if let Some(limit) =
            own("limits", &name).filter(|limit| is_huge_pages(&name) && most.nanos() > limit.nanos())
        {
            let detail = format!("must be greater than or equal to aggregate container limits of {most}");
            errors.invalid(&path.child("limits").key(&name), limit.to_string(), detail);
        }
    }
    for (index, container) in list(spec, "containers").iter().enumerate() {
        for (name, most) in Amounts::of(&container["resources"]["limits"]).0 {
            if let Some(limit) = own("limits", &name).filter(|limit| most.nanos() > limit.nanos()) {
                let path = path.child("containers").index(index).key(&name).child("limits");
                let detail = format!("must be less than or equal to pod limits of {limit}");
                errors.invalid(&path, most.to_string(), detail);
            }
        }
    }
}

/// The name of a resource that a pod may have as a whole.
fn name(errors: &mut Errors, path: &FieldPath, name: &str) {
    let before = errors.len();
    errors.qualified(path, name);
    let standard = matches!(name, "cpu" | "memory" | "ephemeral-storage" | "storage" | "pods" | "services");
    if errors.len() == before && !name.contains('/') && !standard && !is_huge_pages(name) {
        errors.invalid(path, name, "must be a standard resource type or fully qualified");
    }
    if errors.len() == before && !is_known(name) {
        errors.unsupported(path, name, &["cpu", "hugepages-", "memory"]);
    }
}

/// The class of service: of the pod as a whole if it says something, else of its containers, where one that differs makes it `Burstable`.
pub fn class_of(pod: &Value) -> &'static str {
    let spec = &pod["spec"];
    let says = |key: &str| spec["resources"][key].as_object().is_some_and(|amounts| !amounts.is_empty());
    if says("requests") || says("limits") {
        return class_by(&spec["resources"]);
    }
    let mut classes = list(spec, "initContainers")
        .iter()
        .chain(list(spec, "containers"))
        .map(|one| class_by(&one["resources"]));
    let first = classes.next().unwrap_or("BestEffort");
    if classes.all(|class| class == first) { first } else { "Burstable" }
}

/// `Guaranteed` if requests and limits of cpu and memory are set and equal, `BestEffort` if there are none.
fn class_by(resources: &Value) -> &'static str {
    let of = |name: &str| {
        let amount =
            |key: &str| resources[key][name].as_str().and_then(Quantity::parse).map_or(0, Quantity::nanos);
        match (amount("requests"), amount("limits")) {
            (0, 0) => "BestEffort",
            (request, limit) if request == limit => "Guaranteed",
            _ => "Burstable",
        }
    };
    let cpu = of("cpu");
    if cpu == of("memory") { cpu } else { "Burstable" }
}
