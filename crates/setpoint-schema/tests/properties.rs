//! Laws that hold for every object.
#![allow(clippy::unwrap_used, reason = "generators and helpers of tests")]

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use setpoint_schema::{
    FieldSet, Schema, default, fingerprint, fingerprint_of,
    managed::{self, Applied, ApplyRequest, Entries, Operation, UpdateRequest},
    normalise, patch, project, prune,
};

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    Schema::from_openapi(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "replicas": {"type": "integer"},
            "size": {"type": "integer", "default": 3},
            "name": {"type": "string"},
            "config": {"type": "object", "additionalProperties": {"type": "string"}},
            "ports": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["port", "protocol"],
                "items": {"type": "object", "properties": {
                    "port": {"type": "integer"},
                    "protocol": {"type": "string", "default": "TCP"},
                    "name": {"type": "string"},
                }},
            },
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "args": {"type": "array", "items": {"type": "string"}},
            "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "integer"}},
            "nested": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }},
    }}))
    .unwrap()
});

fn word() -> impl Strategy<Value = Value> {
    prop::sample::select(vec!["x", "y", "z"]).prop_map(Value::from)
}

fn small() -> impl Strategy<Value = Value> {
    (0..4).prop_map(Value::from)
}

fn map_of(value: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    prop::collection::btree_map(prop::sample::select(vec!["a", "b", "c"]), value, 1..3)
        .prop_map(|map| Value::Object(map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()))
        .boxed()
}

fn ports() -> BoxedStrategy<Value> {
    let port = (1..5_u8, prop::option::of(Just("UDP")), prop::option::of(word()));
    prop::collection::vec(port, 1..4)
        .prop_map(|ports| {
            let mut seen = Vec::new();
            let mut items = Vec::new();
            for (port, protocol, name) in ports {
                if seen.contains(&(port, protocol)) {
                    continue;
                }
                seen.push((port, protocol));
                let mut item = json!({"port": port});
                if let Some(protocol) = protocol {
                    item["protocol"] = json!(protocol);
                }
                if let Some(name) = name {
                    item["name"] = name;
                }
                items.push(item);
            }
            Value::from(items)
        })
        .boxed()
}

fn spec() -> BoxedStrategy<Value> {
    let free = prop_oneof![small(), word(), map_of(small().boxed()), map_of(map_of(word().boxed()))];
    let tags = prop::sample::subsequence(vec!["t", "u", "v"], 1..=3).prop_shuffle().prop_map(Value::from);
    let args = prop::collection::vec(word(), 1..3).prop_map(Value::from);
    let fields: Vec<(&str, BoxedStrategy<Value>)> = vec![
        ("replicas", small().boxed()),
        ("size", small().boxed()),
        ("name", word().boxed()),
        ("config", map_of(word().boxed())),
        ("ports", ports()),
        ("tags", tags.boxed()),
        ("args", args.boxed()),
        ("whole", map_of(small().boxed())),
        (
            "nested",
            map_of(small().boxed())
                .prop_map(|mut map| {
                    map.as_object_mut().unwrap().remove("c");
                    if map == json!({}) { json!({"a": 1}) } else { map }
                })
                .boxed(),
        ),
        ("free", map_of(free.boxed())),
    ];
    fields
        .into_iter()
        .map(|(name, value)| prop::option::weighted(0.4, value).prop_map(move |value| (name, value)))
        .collect::<Vec<_>>()
        .prop_map(|fields| {
            let set = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
            Value::Object(set.collect())
        })
        .boxed()
}

/// An applied configuration, without empty objects: those are in no canonical form.
fn intent() -> impl Strategy<Value = Value> {
    (spec(), prop::option::of(map_of(word().boxed()))).prop_map(|(spec, labels)| {
        let mut intent = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
        if spec != json!({}) {
            intent["spec"] = spec;
        }
        if let Some(labels) = labels {
            intent["metadata"]["labels"] = labels;
        }
        intent
    })
}

/// Applies and then defaults, as the API server does.
fn apply(live: Option<&Value>, intent: &Value, manager: &str) -> Applied {
    let mut applied = managed::apply(&ApplyRequest {
        schema: &SCHEMA,
        live,
        intent,
        manager,
        force: true,
        subresource: "",
        api_version: "example.com/v1",
        ignored: &FieldSet::default(),
        now: "2026-01-02T03:04:05Z".parse().unwrap(),
    })
    .unwrap();
    default(&SCHEMA, &mut applied.object);
    applied
}

fn owned(object: &Value, manager: &str) -> FieldSet {
    let entries = Entries::of(object).unwrap();
    entries.get(manager, Operation::Apply, "").map(|entry| entry.fields.clone()).unwrap_or_default()
}

fn set() -> impl Strategy<Value = FieldSet> {
    intent().prop_map(|intent| FieldSet::of(&SCHEMA, &intent))
}

/// Any JSON object.
fn json_object() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![any::<bool>().prop_map(Value::from), small(), word()];
    let value = leaf.prop_recursive(3, 20, 3, |value| {
        prop_oneof![
            prop::collection::vec(value.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-d]", value, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>())),
        ]
    });
    prop::collection::btree_map("[a-d]", value, 0..4).prop_map(|map| Value::Object(map.into_iter().collect()))
}

/// With the items of sets and list maps sorted: another manager's apply may bring them into its order.
fn unordered(mut value: Value) -> Value {
    for list in ["/spec/tags", "/spec/ports"] {
        if let Some(Value::Array(items)) = value.pointer_mut(list) {
            items.sort_by_key(ToString::to_string);
        }
    }
    value
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn applying_twice_changes_nothing(first in intent(), second in intent()) {
        let live = apply(None, &first, "other").object;
        let once = apply(Some(&live), &second, "one").object;
        let twice = apply(Some(&once), &second, "one");
        prop_assert!(!twice.changed);
        prop_assert_eq!(twice.object, once);
    }

    #[test]
    fn what_is_applied_is_there(first in intent(), second in intent()) {
        let live = apply(None, &first, "other").object;
        let after = apply(Some(&live), &second, "one").object;
        let fields = owned(&after, "one");
        prop_assert_eq!(project(&after, &fields), normalise(&second));
    }

    #[test]
    fn the_fingerprint_of_the_intent_is_that_of_what_is_owned(first in intent(), second in intent(), third in intent()) {
        let live = apply(None, &first, "other").object;
        let mine = apply(Some(&live), &second, "one").object;
        let fields = owned(&mine, "one");
        prop_assert_eq!(fingerprint(&normalise(&second)), fingerprint(&project(&mine, &fields)));
        prop_assert_eq!(fingerprint_of(&mine, &fields).unwrap(), fingerprint(&project(&mine, &fields)));
        // Somebody else changes what they like: unless that touches what is ours, ours stays the same.
        let theirs = apply(Some(&mine), &third, "two").object;
        let left = owned(&theirs, "one");
        if left == fields {
            let wanted = unordered(normalise(&second));
            prop_assert_eq!(fingerprint(&wanted), fingerprint(&unordered(project(&theirs, &left))));
        }
    }

    #[test]
    fn dropping_removes_exactly_what_nobody_else_owns(a in intent(), b in intent(), a2 in intent()) {
        let live = apply(None, &a, "a").object;
        let live = apply(Some(&live), &b, "b").object;
        let (a_before, b_before) = (owned(&live, "a"), owned(&live, "b"));
        let after = apply(Some(&live), &a2, "a").object;
        let wanted = FieldSet::of(&SCHEMA, &a2);
        let all_after = FieldSet::of(&SCHEMA, &after);
        for path in a_before.leaves().paths() {
            if wanted.has(&path.0) || b_before.has(&path.0) {
                continue;
            }
            // Defaults come back, and what is below an entry that goes on may be named by others' entries.
            let defaulted = path.to_string() == ".spec.size" || path.to_string().ends_with(".protocol");
            let covers = !b_before.intersection(&all_after).is_empty()
                && b_before.paths().iter().any(|other| other.0.starts_with(&path.0));
            prop_assert!(defaulted || covers || !all_after.has(&path.0), "{} is still there: {}", path, after);
        }
        // What b owns is only lost where a2 took it over with another value.
        let b_after = owned(&after, "b");
        for path in b_before.leaves().paths() {
            prop_assert!(b_after.has(&path.0) || wanted.has(&path.0) || wanted.paths().iter().any(|other| path.0.starts_with(&other.0) || other.0.starts_with(&path.0)),
                "b lost {}", path);
        }
        let values = |object: &Value| unordered(project(object, &b_after.leaves().intersection(&b_before.leaves())));
        prop_assert_eq!(values(&after), values(&live));
    }

    #[test]
    fn an_update_owns_what_it_changes(a in intent(), b in intent()) {
        let live = apply(None, &a, "a").object;
        let mut new = b.clone();
        default(&SCHEMA, &mut new);
        new["metadata"]["managedFields"] = live["metadata"]["managedFields"].clone();
        let request = UpdateRequest {
            schema: &SCHEMA,
            live: Some(&live),
            manager: "editor",
            subresource: "",
            api_version: "example.com/v1",
            ignored: &FieldSet::default(),
            now: "2026-01-02T03:04:05Z".parse().unwrap(),
        };
        managed::update(&request, &mut new);
        let after = new;
        let a_after = owned(&after, "a");
        prop_assert!(a_after.difference(&owned(&live, "a")).is_empty());
        // Everything that an applier still owns has the value that it applied.
        let leaves = a_after.leaves().intersection(&owned(&live, "a").leaves());
        let values = |object: &Value| unordered(project(object, &leaves));
        prop_assert_eq!(values(&after), values(&live));
    }

    #[test]
    fn fields_v1_round_trips(set in set()) {
        prop_assert_eq!(&FieldSet::from_fields_v1(&set.to_fields_v1()).unwrap(), &set);
    }

    #[test]
    fn sets_obey_the_laws_of_sets(a in set(), b in set(), c in set()) {
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
        prop_assert_eq!(a.union(&a), a.clone());
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert!(a.difference(&b).intersection(&b).is_empty());
        prop_assert_eq!(a.difference(&b).difference(&c), a.difference(&b.union(&c)));
        prop_assert!(a.recursive_difference(&b).difference(&a.difference(&b)).is_empty());
        prop_assert_eq!(a.len(), a.paths().len());
        for path in a.paths() {
            prop_assert_eq!(a.union(&b).has(&path.0), true);
            prop_assert_eq!(a.difference(&b).has(&path.0), !b.has(&path.0));
        }
    }

    #[test]
    fn defaulting_and_pruning_twice_is_once(object in intent(), extra in json_object()) {
        let mut object = object;
        object.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        object["spec"]["nested"] = extra;
        let unknown = prune(&SCHEMA, &mut object);
        let mut again = object.clone();
        prop_assert!(prune(&SCHEMA, &mut again).is_empty());
        prop_assert_eq!(&again, &object);
        prop_assert!(unknown.iter().all(|field| !field.path.is_empty()));
        default(&SCHEMA, &mut object);
        let mut again = object.clone();
        default(&SCHEMA, &mut again);
        prop_assert_eq!(again, object);
    }

    #[test]
    fn a_merge_diff_makes_one_the_other(old in json_object(), new in json_object()) {
        let diff = patch::merge_diff(&old, &new);
        let mut patched = old.clone();
        patch::merge(&mut patched, &diff).unwrap();
        prop_assert_eq!(&patched, &new);
        let once = patched.clone();
        patch::merge(&mut patched, &diff).unwrap();
        prop_assert_eq!(patched, once);
        prop_assert_eq!(patch::merge_diff(&new, &new), json!({}));
    }

    #[test]
    fn a_strategic_merge_twice_is_once(object in pod(), patch in pod()) {
        let schema = Schema::builtin("io.k8s.api.core.v1.Pod").unwrap();
        let mut once = object;
        patch::strategic(&schema, &mut once, &patch).unwrap();
        let mut twice = once.clone();
        patch::strategic(&schema, &mut twice, &patch).unwrap();
        prop_assert_eq!(&twice, &once);
        // The patch's containers come in the patch's order.
        let names = |object: &Value| -> Vec<String> {
            object["spec"]["containers"].as_array().into_iter().flatten().map(|c| c["name"].to_string()).collect()
        };
        let wanted = names(&patch);
        let there: Vec<String> = names(&once).into_iter().filter(|name| wanted.contains(name)).collect();
        prop_assert_eq!(there, wanted);
    }
}

fn pod() -> impl Strategy<Value = Value> {
    let container = (prop::option::of(word()), prop::option::of(map_of(word().boxed())));
    (prop::collection::btree_map(prop::sample::select(vec!["a", "b", "c", "d"]), container, 1..4), any::<bool>(), spec())
        .prop_flat_map(|(containers, host, annotations)| {
            let containers: Vec<Value> = containers
                .into_iter()
                .map(|(name, (image, env))| {
                    let mut container = json!({"name": name});
                    if let Some(image) = image {
                        container["image"] = image;
                    }
                    if let Some(Value::Object(env)) = env {
                        container["env"] = env.into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
                    }
                    container
                })
                .collect();
            (Just(containers).prop_shuffle(), Just(host), Just(annotations))
        })
        .prop_map(|(containers, host, annotations)| {
            json!({"metadata": {"annotations": annotations}, "spec": {"containers": containers, "hostNetwork": host}})
        })
}
