//! Horizontal pod autoscalers are one kind in two versions: stored as `autoscaling/v2`. The first version knows the use of CPU only; the rest stands in
//! annotations there (`k8s.io/kubernetes/pkg/apis/autoscaling/v1/conversion.go`).

use serde_json::{Map, Value, json};

use crate::builtin::{self, GoValue};
use crate::catalog::Resource;
use crate::object::fields;

const GROUP: &str = "autoscaling";
const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
/// The kinds of metrics, and the fields that hold them.
const SOURCES: [(&str, &str); 5] = [
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
    ("Pods", "pods"),
    ("Object", "object"),
    ("External", "external"),
];

/// Whether objects of a resource are in the first version.
pub(crate) fn is_first(resource: &Resource) -> bool {
    resource.group == GROUP && resource.version == "v1" && resource.kind == "HorizontalPodAutoscaler"
}

/// Turns an autoscaler of the first version into the stored form, with the defaults of that.
pub(crate) fn to_second(object: &mut Value) {
    object["apiVersion"] = "autoscaling/v2".into();
    let mut annotation = |key: &str| -> Value {
        let annotations = object.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations"));
        let text = annotations.and_then(Value::as_object_mut).and_then(|all| all.remove(key));
        text.and_then(|text| serde_json::from_str(text.as_str()?).ok()).unwrap_or_default()
    };
    let (mut metrics, current, behavior, conditions) =
        (annotation(METRICS), annotation(CURRENT_METRICS), annotation(BEHAVIOR), annotation(CONDITIONS));
    if object["metadata"]["annotations"].as_object().is_some_and(Map::is_empty) {
        fields(&mut object["metadata"]).remove("annotations");
    }
    metrics = metrics
        .as_array()
        .map(|all| all.iter().map(|one| second_metric(one, "target")).collect())
        .unwrap_or_default();
    let share = fields(&mut object["spec"]).remove("targetCPUUtilizationPercentage");
    if let Some(share) = share.filter(|share| !share.is_null()) {
        let target = json!({"type": "Utilization", "averageUtilization": share});
        let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
        if !metrics.is_array() {
            metrics = json!([]);
        }
        if let Some(all) = metrics.as_array_mut() {
            all.insert(0, cpu);
        }
    }
    let spec = fields(&mut object["spec"]);
    if metrics.is_array() {
        spec.insert("metrics".to_owned(), metrics);
    }
    if behavior.is_object() {
        spec.insert("behavior".to_owned(), renamed(&behavior));
    }
    let status = fields(&mut object["status"]);
    let share = status.remove("currentCPUUtilizationPercentage");
    if conditions.is_array() {
        status.insert("conditions".to_owned(), conditions);
    }
    if let Some(all) = current.as_array() {
        let all: Value = all.iter().map(|one| second_metric(one, "current")).collect();
        status.insert("currentMetrics".to_owned(), all);
    } else if let Some(share) = share.filter(|share| !share.is_null()) {
        let current = json!({"averageUtilization": share});
        let cpu = json!([{"type": "Resource", "resource": {"name": "cpu", "current": current}}]);
        status.insert("currentMetrics".to_owned(), cpu);
    }
    if status.get("currentReplicas").and_then(Value::as_i64) == Some(0) {
        status.remove("currentReplicas");
    }
    builtin::default(GROUP, "HorizontalPodAutoscaler", object);
}

/// Turns a stored autoscaler into the first version.
pub(crate) fn from_second(object: &mut Value) {
    object["apiVersion"] = "autoscaling/v1".into();
    let spec = fields(&mut object["spec"]);
    let (metrics, behavior) =
        (spec.remove("metrics").unwrap_or_default(), spec.remove("behavior").unwrap_or_default());
    let mut others = Vec::new();
    for metric in metrics.as_array().into_iter().flatten() {
        let share = &metric["resource"]["target"]["averageUtilization"];
        if metric["type"] == "Resource" && metric["resource"]["name"] == "cpu" && !share.is_null() {
            spec.insert("targetCPUUtilizationPercentage".to_owned(), share.clone());
        } else {
            others.push(first_metric(metric, "target"));
        }
    }
    let status = fields(&mut object["status"]);
    let conditions = status.remove("conditions").unwrap_or_default();
    let current = status.remove("currentMetrics").unwrap_or_default();
    for metric in current.as_array().into_iter().flatten() {
        let share = &metric["resource"]["current"]["averageUtilization"];
        if metric["type"] == "Resource" && metric["resource"]["name"] == "cpu" && !share.is_null() {
            status.insert("currentCPUUtilizationPercentage".to_owned(), share.clone());
        }
    }
    let mut annotate = |key: &str, text: String| {
        fields(&mut object["metadata"]["annotations"]).insert(key.to_owned(), text.into());
    };
    if !others.is_empty() {
        annotate(METRICS, GoValue::Items(others).to_string());
    }
    if let Some(all) = current.as_array().filter(|all| !all.is_empty()) {
        annotate(
            CURRENT_METRICS,
            GoValue::Items(all.iter().map(|one| first_metric(one, "current")).collect()).to_string(),
        );
    }
    if behavior.is_object() {
        annotate(
            BEHAVIOR,
            builtin::shown("io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerBehavior", &behavior)
                .to_string(),
        );
    }
    if let Some(all) = conditions.as_array().filter(|all| !all.is_empty()) {
        let keys = ["type", "status", "lastTransitionTime", "reason", "message"];
        let shown = all.iter().map(|one| {
            let there = keys.iter().filter(|key| **key == "lastTransitionTime" || !one[**key].is_null());
            GoValue::Fields(there.map(|key| ((*key).to_owned(), GoValue::Plain(one[*key].clone()))).collect())
        });
        annotate(CONDITIONS, GoValue::Items(shown.collect()).to_string());
    }
}

/// A metric, or what was measured of it (`amounts` is `target` or `current`), as the first version's annotations write it.
fn first_metric(metric: &Value, amounts: &str) -> GoValue {
    let kind = metric["type"].as_str().unwrap_or_default();
    let field = SOURCES.iter().find(|(name, _)| *name == kind).map_or("", |(_, field)| field);
    let source = &metric[field];
    let amount = |key: &str| source[amounts][key].clone();
    let named = |name: &str| format!("{amounts}{name}");
    let mut shown: Vec<(String, Value)> = Vec::new();
    let mut push = |key: &str, value: Value| {
        if !value.is_null() {
            shown.push((key.to_owned(), value));
        }
    };
    match kind {
        "Resource" | "ContainerResource" => {
            push("name", source["name"].clone());
            push(&named("AverageUtilization"), amount("averageUtilization"));
            push(&named("AverageValue"), amount("averageValue"));
            push("container", source["container"].clone());
        }
        "Pods" => {
            push("metricName", source["metric"]["name"].clone());
            push(&named("AverageValue"), amount("averageValue"));
            push("selector", source["metric"]["selector"].clone());
        }
        "Object" => {
            push("target", source["describedObject"].clone());
            push("metricName", source["metric"]["name"].clone());
            push(&named("Value"), amount("value"));
            push("selector", source["metric"]["selector"].clone());
            push("averageValue", amount("averageValue"));
        }
        _ => {
            push("metricName", source["metric"]["name"].clone());
            push("metricSelector", source["metric"]["selector"].clone());
            push(&named("Value"), amount("value"));
            push(&named("AverageValue"), amount("averageValue"));
        }
    }
    let source = shown.into_iter().map(|(key, value)| {
        let shown = if key == "target" { reference(&value) } else { GoValue::Plain(value) };
        (key, shown)
    });
    GoValue::fields([("type", GoValue::Plain(kind.into())), (field, GoValue::Fields(source.collect()))])
}

/// A reference to an object with its fields as Go has them.
fn reference(object: &Value) -> GoValue {
    let there = ["kind", "name", "apiVersion"].into_iter().filter(|key| !object[*key].is_null());
    GoValue::Fields(there.map(|key| (key.to_owned(), GoValue::Plain(object[key].clone()))).collect())
}

/// The reverse of [`first_metric`].
fn second_metric(metric: &Value, amounts: &str) -> Value {
    let kind = metric["type"].as_str().unwrap_or_default();
    let field = SOURCES.iter().find(|(name, _)| *name == kind).map_or("", |(_, field)| field);
    let source = &metric[field];
    let mut target = json!({});
    for (key, name, of) in [
        ("averageUtilization", "AverageUtilization", "Utilization"),
        ("averageValue", "AverageValue", "AverageValue"),
        ("value", "Value", "Value"),
    ] {
        let given = source.get(format!("{amounts}{name}")).or_else(|| source.get(key));
        if let Some(value) = given {
            target[key] = value.clone();
            if amounts == "target" && target["type"].is_null() {
                target["type"] = of.into();
            }
        }
    }
    let mut second = json!({});
    if matches!(kind, "Resource" | "ContainerResource") {
        second["name"] = source["name"].clone();
        if kind == "ContainerResource" {
            second["container"] = source["container"].clone();
        }
    } else {
        second["metric"] = json!({"name": source["metricName"]});
        let selector = source.get("selector").or_else(|| source.get("metricSelector"));
        if let Some(selector) = selector {
            second["metric"]["selector"] = selector.clone();
        }
        if kind == "Object" {
            second["describedObject"] = source["target"].clone();
        }
    }
    second[amounts] = target;
    json!({"type": kind, field: second})
}

/// The internal names of fields (`SelectPolicy`) as requests have them.
fn renamed(value: &Value) -> Value {
    match value {
        Value::Object(entries) => entries
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| {
                let mut letters = key.chars();
                let key: String =
                    letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect();
                (key, renamed(value))
            })
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(items) => items.iter().map(renamed).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_version_comes_back_whole() {
        let metric = |name: &str| json!({"type": "Resource", "resource": {"name": name, "target": {"type": "Utilization", "averageUtilization": 50}}});
        let pods = json!({"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "1"}}});
        let second = json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
            "spec": {"maxReplicas": 5, "minReplicas": 1, "metrics": [metric("cpu"), metric("memory"), pods],
                "behavior": {"scaleUp": {"selectPolicy": "Min", "stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]},
                    "scaleDown": {"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}}},
            "status": {"desiredReplicas": 3},
        });
        let mut object = second.clone();
        from_second(&mut object);
        assert_eq!(object["spec"]["targetCPUUtilizationPercentage"], 50);
        assert!(
            object["metadata"]["annotations"][METRICS]
                .as_str()
                .unwrap()
                .starts_with(r#"[{"type":"Resource","resource":{"name":"memory""#)
        );
        to_second(&mut object);
        assert_eq!(object, second);
    }
}
