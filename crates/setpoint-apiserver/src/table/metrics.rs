//! The targets of a HorizontalPodAutoscaler.

use serde_json::Value;

use super::sources::{at_most, list, text};

/// Each metric as `current/target`: at most two, and how many more there are.
pub fn targets(spec: &Value, status: &Value) -> String {
    let current = list(status, "currentMetrics");
    let mut all: Vec<_> = list(spec, "metrics")
        .iter()
        .enumerate()
        .map(|(index, metric)| target(metric, current.get(index).unwrap_or(&Value::Null)))
        .collect();
    // The one metric of autoscaling/v1.
    if let (true, Some(percent)) = (all.is_empty(), spec["targetCPUUtilizationPercentage"].as_i64()) {
        let current = status["currentCPUUtilizationPercentage"].as_i64();
        let current = current.map_or_else(|| "<unknown>".to_owned(), |current| format!("{current}%"));
        all.push(format!("cpu: {current}/{percent}%"));
    }
    at_most(2, ", ", &all)
}

fn target(metric: &Value, current: &Value) -> String {
    let (key, named) = match text(metric, "type") {
        "Resource" => ("resource", true),
        "ContainerResource" => ("containerResource", true),
        "Pods" => ("pods", false),
        "Object" => ("object", false),
        "External" => ("external", false),
        _ => return "<unknown type>".to_owned(),
    };
    let (wanted, current) = (&metric[key]["target"], &current[key]["current"]);
    let plain = |value: &Value| match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    let percent = |value: &Value| plain(value).map(|number| format!("{number}%"));
    let unknown = || "<unknown>".to_owned();
    let average = plain(&wanted["averageValue"]);
    if named {
        let (now, goal) = match average {
            Some(goal) => (plain(&current["averageValue"]), goal),
            None => (
                percent(&current["averageUtilization"]),
                percent(&wanted["averageUtilization"]).unwrap_or_else(|| "<auto>".to_owned()),
            ),
        };
        return format!("{}: {}/{goal}", text(&metric[key], "name"), now.unwrap_or_else(unknown));
    }
    if let Some(goal) = average {
        let mark = if key == "pods" { "" } else { " (avg)" };
        return format!("{}/{goal}{mark}", plain(&current["averageValue"]).unwrap_or_else(unknown));
    }
    let goal = plain(&wanted["value"]).unwrap_or_default();
    format!("{}/{goal}", plain(&current["value"]).unwrap_or_else(unknown))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn targets_are_shown_with_what_is_known() {
        let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}});
        let pods = json!({"type": "Pods", "pods": {"target": {"averageValue": "1k"}}});
        let object = json!({"type": "Object", "object": {"target": {"value": "5"}}});
        let status = json!({"currentMetrics": [{"resource": {"current": {"averageUtilization": 7}}}, {}]});
        let spec = json!({"metrics": [cpu, pods]});
        assert_eq!(targets(&spec, &Value::Null), "cpu: <unknown>/80%, <unknown>/1k");
        assert_eq!(targets(&spec, &status), "cpu: 7%/80%, <unknown>/1k");
        let spec = json!({"metrics": [pods, object, cpu]});
        assert_eq!(targets(&spec, &Value::Null), "<unknown>/1k, <unknown>/5 + 1 more...");
        assert_eq!(targets(&json!({}), &Value::Null), "<none>");
        assert_eq!(
            targets(&json!({"targetCPUUtilizationPercentage": 50}), &Value::Null),
            "cpu: <unknown>/50%"
        );
    }
}
