use proptest::prelude::*;
use serde_json::json;

use super::*;

fn object(name: &str, n: u64) -> Value {
    json!({"metadata": {"name": name}, "n": n})
}

fn pods() -> Arc<str> {
    "pods".into()
}

#[test]
fn a_write_needs_what_it_expects() {
    let store = Store::new(LogLimits::default());
    let key = Key::new("a", "b");
    let put = |expect, n| store.write(&pods(), &key, expect, Change::Put(object("b", n)));
    let first = put(Expect::Absent, 1).unwrap();
    assert_eq!(put(Expect::Absent, 2).unwrap_err(), Raced);
    let second = put(Expect::Revision(first.revision), 3).unwrap();
    assert_eq!(put(Expect::Revision(first.revision), 4).unwrap_err(), Raced);
    assert_eq!(second.value["metadata"]["resourceVersion"], second.revision.to_string());
    let read: Value = serde_json::from_slice(&store.get("pods", &key).unwrap().json).unwrap();
    assert_eq!(read["n"], 3);
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8),
    Remove(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![3 => (0u8..6).prop_map(Step::Put), 1 => (0u8..6).prop_map(Step::Remove)]
}

fn run(store: &Store, steps: &[Step]) -> Vec<(u64, Vec<(Key, u64)>)> {
    let mut history = vec![(store.revision(), contents(&store.snapshot("pods")))];
    for (n, step) in steps.iter().enumerate() {
        let (Step::Put(id) | Step::Remove(id)) = step;
        let key = Key::new(if id % 2 == 0 { "even" } else { "odd" }, id.to_string());
        let found = store.get("pods", &key);
        let expect = found.as_ref().map_or(Expect::Absent, |found| Expect::Revision(found.revision));
        match (step, found) {
            (Step::Put(id), _) => {
                store.write(&pods(), &key, expect, Change::Put(object(&id.to_string(), n as u64))).unwrap();
            }
            (Step::Remove(_), Some(found)) => {
                store.write(&pods(), &key, expect, Change::Remove((*found.value).clone())).unwrap();
            }
            (Step::Remove(_), None) => continue,
        }
        // Other resources move the same counter.
        store
            .write(&"secrets".into(), &Key::new("", n.to_string()), Expect::Absent, Change::Put(json!({})))
            .unwrap();
        history.push((store.revision(), contents(&store.snapshot("pods"))));
    }
    history
}

fn contents(snapshot: &Snapshot) -> Vec<(Key, u64)> {
    snapshot.objects.iter().map(|(key, stored)| (key.clone(), stored.revision)).collect()
}

proptest! {
    /// A list at any version and the events after it lead to the state that is there now; and every
    /// version that the log still reaches can be read again as it was.
    #[test]
    fn list_and_watch_agree(steps in prop::collection::vec(step(), 0..60)) {
        let store = Store::new(LogLimits::default());
        let history = run(&store, &steps);
        let now = contents(&store.snapshot("pods"));
        for (revision, then) in history {
            let snapshot = store.snapshot_at("pods", revision).unwrap();
            prop_assert_eq!(&contents(&snapshot), &then);
            let mut replayed = snapshot.objects.clone();
            let mut last = revision;
            for event in store.events_after("pods", revision).unwrap().0 {
                prop_assert!(event.revision() > last);
                last = event.revision();
                prop_assert_eq!(event.old.as_ref().map(|o| o.revision), replayed.get(&event.key).map(|o| o.revision));
                match event.kind {
                    EventKind::Deleted => { replayed.remove(&event.key); }
                    _ => { replayed.insert(event.key.clone(), Arc::clone(&event.object)); }
                }
            }
            let replayed: Vec<_> = replayed.iter().map(|(k, o)| (k.clone(), o.revision)).collect();
            prop_assert_eq!(&replayed, &now);
        }
    }

    /// With a short log an old version is refused, never answered with gaps.
    #[test]
    fn compaction_is_never_silent(steps in prop::collection::vec(step(), 20..60)) {
        let full = Store::new(LogLimits::default());
        let short = Store::new(LogLimits { events: 3, bytes: usize::MAX });
        run(&full, &steps);
        for (revision, then) in run(&short, &steps) {
            match short.events_after("pods", revision) {
                Err(Compacted { oldest }) => prop_assert!(oldest > revision),
                Ok((events, _)) => {
                    let kept: Vec<u64> = events.iter().map(|e| e.revision()).collect();
                    let all: Vec<u64> = full.events_after("pods", revision).unwrap().0.iter().map(|e| e.revision()).collect();
                    prop_assert_eq!(kept, all);
                    prop_assert_eq!(contents(&short.snapshot_at("pods", revision).unwrap()), then);
                }
            }
        }
    }
}

#[test]
fn an_object_comes_into_being_only_under_holders_that_stay() {
    let store = Store::new(LogLimits::default());
    let write = |name: &str, object: Value| {
        let key = Key::new("", name);
        let found = store.get("namespaces", &key);
        let expect = found.map_or(Expect::Absent, |found| Expect::Revision(found.revision));
        store.write(&"namespaces".into(), &key, expect, Change::Put(object)).unwrap();
    };
    let create = |name: &str, holder: &str, uid: Option<&str>| {
        let holder = Holder { resource: "namespaces", key: Key::new("", holder), uid };
        store.create(&pods(), &Key::new("n", name), &[holder], &object(name, 0)).map(drop)
    };
    write("n", json!({"metadata": {"name": "n", "uid": "1"}}));
    assert_eq!(create("a", "n", None), Ok(()));
    assert_eq!(create("a", "n", None), Err(Refused::Taken));
    assert_eq!(create("b", "n", Some("1")), Ok(()));
    assert_eq!(create("c", "n", Some("2")), Err(Refused::Unheld));
    assert_eq!(create("c", "missing", None), Err(Refused::Unheld));
    write("n", json!({"metadata": {"name": "n", "uid": "1", "deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    assert_eq!(create("c", "n", None), Err(Refused::Unheld));
}
