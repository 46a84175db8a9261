//! Label selectors.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Whether `labels` meet `selector`; an empty selector is met by everything. An operator that does not exist
/// is met by nothing.
pub fn matches(selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>) -> bool {
    let value = |key: &str| labels.and_then(|labels| labels.get(key));
    let equal = selector.match_labels.iter().flatten().all(|(key, wanted)| value(key) == Some(wanted));
    equal
        && selector.match_expressions.iter().flatten().all(|requirement| {
            let values = requirement.values.as_deref().unwrap_or_default();
            meets(value(&requirement.key).map(String::as_str), &requirement.operator, values)
        })
}

/// Whether a label's value (none = the label is absent) meets one requirement. `Gt` and `Lt` are those of node
/// selectors.
pub fn meets(value: Option<&str>, operator: &str, values: &[String]) -> bool {
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
    let first = values.first().map(String::as_str);
    match operator {
        "In" => value.is_some_and(|value| values.iter().any(|other| other == value)),
        "NotIn" => value.is_none_or(|value| values.iter().all(|other| other != value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => number(value).zip(number(first)).is_some_and(|(value, limit)| value > limit),
        "Lt" => number(value).zip(number(first)).is_some_and(|(value, limit)| value < limit),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_operators() {
        let labels: BTreeMap<String, String> = [("a".into(), "1".into()), ("b".into(), "x".into())].into();
        for (selector, expected) in [
            (json!({}), true),
            (json!({"matchLabels": {"a": "1"}}), true),
            (json!({"matchLabels": {"a": "2"}}), false),
            (json!({"matchExpressions": [{"key": "b", "operator": "In", "values": ["x", "y"]}]}), true),
            (json!({"matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["x"]}]}), true),
            (json!({"matchExpressions": [{"key": "c", "operator": "Exists"}]}), false),
            (json!({"matchExpressions": [{"key": "c", "operator": "DoesNotExist"}]}), true),
            (json!({"matchExpressions": [{"key": "b", "operator": "Sideways"}]}), false),
        ] {
            let selector: LabelSelector = serde_json::from_value(selector).unwrap();
            assert_eq!(matches(&selector, Some(&labels)), expected, "{selector:?}");
        }
        assert!(meets(Some("5"), "Gt", &["4".into()]) && !meets(Some("x"), "Lt", &["4".into()]));
    }
}
