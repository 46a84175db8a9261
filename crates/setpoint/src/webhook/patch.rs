use std::collections::BTreeSet;

use serde_json::{Value, json};

/// The JSON Patch of `original` that makes those changes which lead from `before` to `after`.
///
/// `before` is `original` as a Rust type reads and writes it: without what the type does not know, and with what it
/// writes of its own accord. Neither difference is a change, so neither is in the patch.
pub(super) fn changes(original: &Value, before: &Value, after: &Value) -> Vec<Value> {
    let mut operations = Vec::new();
    change(&mut operations, "", Some(original), Some(before), Some(after));
    operations
}

fn change(
    operations: &mut Vec<Value>,
    path: &str,
    original: Option<&Value>,
    before: Option<&Value>,
    after: Option<&Value>,
) {
    if before == after {
        return;
    }
    match (original, before, after) {
        (Some(Value::Object(original)), Some(Value::Object(before)), Some(Value::Object(after))) => {
            let fields: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            for field in fields {
                let path = format!("{path}/{}", escaped(field));
                change(operations, &path, original.get(field), before.get(field), after.get(field));
            }
        }
        (Some(Value::Array(original)), Some(Value::Array(before)), Some(Value::Array(after)))
            if original.len() == before.len() && before.len() == after.len() =>
        {
            for (index, original) in original.iter().enumerate() {
                let path = format!("{path}/{index}");
                change(operations, &path, Some(original), before.get(index), after.get(index));
            }
        }
        (Some(_), _, Some(after)) => {
            operations.push(json!({"op": "replace", "path": path, "value": after}));
        }
        (None, _, Some(after)) => operations.push(json!({"op": "add", "path": path, "value": after})),
        (Some(_), _, None) => operations.push(json!({"op": "remove", "path": path})),
        (None, _, None) => {}
    }
}

/// A step of a JSON pointer (RFC 6901).
fn escaped(field: &str) -> String {
    field.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_the_type_does_not_know_and_what_it_adds_is_left_alone() {
        let original = json!({"spec": {"unknown": 1, "size": 1}});
        let before = json!({"spec": {"size": 1, "extra": null}, "status": null});
        let after = json!({"spec": {"size": 2, "extra": null}, "status": null});
        let expected = vec![json!({"op": "replace", "path": "/spec/size", "value": 2})];
        assert_eq!(changes(&original, &before, &after), expected);
    }

    #[test]
    fn an_object_that_only_the_type_has_is_added_whole() {
        let (original, before) = (json!({"spec": {}}), json!({"spec": {"config": {}}}));
        let after = json!({"spec": {"config": {"a/b": "c"}}});
        let expected = vec![json!({"op": "add", "path": "/spec/config", "value": {"a/b": "c"}})];
        assert_eq!(changes(&original, &before, &after), expected);
    }

    #[test]
    fn pointers_are_escaped() {
        let (before, after) = (json!({"a/b~c": 1}), json!({}));
        let expected = vec![json!({"op": "remove", "path": "/a~1b~0c"})];
        assert_eq!(changes(&before, &before, &after), expected);
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf =
            prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from), (0..4).prop_map(Value::from)];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                prop::collection::btree_map("[ab/~]{1,2}", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_patch_leads_from_one_to_the_other(before in value(), after in value()) {
            let mut patched = before.clone();
            let operations = Value::Array(changes(&before, &before, &after));
            let patch: json_patch::Patch = serde_json::from_value(operations).unwrap();
            json_patch::patch(&mut patched, &patch).unwrap();
            prop_assert_eq!(patched, after);
        }
    }
}
