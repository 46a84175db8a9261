use k8s_openapi::api::core::v1::ConfigMap;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::Kind;
use crate::decode::decode_text;

type Thing = (String, u64);

fn key(name: &str) -> Key {
    Key::new("ns", name)
}

fn seen(name: &str, uid: &str, version: u64) -> Seen<Thing> {
    Seen {
        key: Arc::new(key(name)),
        uid: uid.to_owned(),
        version: Version::new(&version.to_string()),
        payload: Payload::Object(Arc::new((uid.to_owned(), version))),
        packed: None,
        prints: Box::default(),
    }
}

fn keyed<T>(items: impl IntoIterator<Item = Seen<T>>) -> BTreeMap<Arc<Key>, Seen<T>> {
    items.into_iter().map(|item| (Arc::clone(&item.key), item)).collect()
}

fn at(version: u64) -> Version {
    Version::new(&version.to_string())
}

fn read(store: &Store<Thing>, name: &str) -> Option<Thing> {
    store.visible(&key(name)).and_then(|record| record.payload.object()).map(|object| (*object).clone())
}

#[test]
fn an_own_write_is_read_at_once_and_its_event_is_an_echo() {
    let mut store = Store::default();
    store.listed(keyed([seen("a", "1", 5)]), &at(5), false).expect("first list");
    assert!(matches!(store.wrote(seen("a", "1", 7), Member::Yes), Put::Stored(_)));
    let late = store.applied(seen("a", "1", 6)).expect("somebody else's");
    assert!(late.late, "told, but older than what is stored");
    assert_eq!(read(&store, "a"), Some(("1".to_owned(), 7)));
    assert!(store.applied(seen("a", "1", 7)).is_none(), "an echo");
    assert!(store.applied(seen("a", "1", 8)).is_some());
}

/// A status that a kubelet wrote, or an edit, between what we knew and what we applied: nobody would look at it otherwise.
#[test]
fn a_foreign_change_that_an_own_write_overtakes_is_told() {
    let mut store = Store::default();
    store.listed(keyed([seen("a", "1", 5)]), &at(5), false).expect("first list");
    assert!(matches!(store.wrote(seen("a", "1", 8), Member::Yes), Put::Stored(_)));
    assert!(matches!(store.wrote(seen("a", "1", 10), Member::Yes), Put::Stored(_)));
    let told = |transition: Option<Transition<Thing>>| {
        let transition = transition.expect("told");
        assert!(transition.late);
        [transition.old, transition.new]
            .map(|state| state.and_then(|state| state.object()).map(|thing| thing.1))
    };
    assert_eq!(told(store.applied(seen("a", "1", 7))), [Some(5), Some(7)]);
    assert!(store.applied(seen("a", "1", 8)).is_none(), "our own");
    assert_eq!(told(store.applied(seen("a", "1", 9))), [Some(7), Some(9)]);
    assert_eq!(read(&store, "a"), Some(("1".to_owned(), 10)), "what can be read stays the newest");
    assert!(store.applied(seen("a", "1", 10)).is_none());
    assert!(store.overtaking.is_empty(), "nothing is left of it");
}

/// The watch broke before the event came, and a list has no events.
#[test]
fn what_a_list_hides_may_have_been_a_foreign_change() {
    let mut store = Store::default();
    store.listed(keyed([seen("a", "1", 5), seen("b", "2", 5)]), &at(5), false).expect("first list");
    assert!(matches!(store.wrote(seen("a", "1", 8), Member::Yes), Put::Stored(_)));
    let listed = store.listed(keyed([seen("a", "1", 8), seen("b", "2", 5)]), &at(9), false).expect("a list");
    let told: Vec<_> = listed.transitions.iter().map(|told| (told.key.name.as_str(), told.late)).collect();
    assert_eq!(told, [("a", true)]);
    assert!(store.overtaking.is_empty());
}

#[test]
fn a_late_answer_does_not_resurrect() {
    let mut store = Store::default();
    store.listed(keyed([seen("a", "1", 5)]), &at(5), false).expect("first list");
    assert!(store.applied(seen("a", "1", 6)).is_some());
    assert!(store.deleted(&key("a"), "1", &at(7)).is_some());
    assert!(matches!(store.wrote(seen("a", "1", 6), Member::Yes), Put::Known));
    assert_eq!(read(&store, "a"), None);
}

/// Such a version says nothing about before and after: events are taken in their order, and an own write waits for a live read.
#[test]
fn versions_that_are_no_numbers_are_not_compared() {
    let odd = |version: &str, mark: u64| Seen {
        version: Version::new(version),
        payload: Payload::Object(Arc::new(("1".to_owned(), mark))),
        ..seen("a", "1", 0)
    };
    let mut store = Store::default();
    store.listed(keyed([odd("v9", 1)]), &Version::new("v9"), false).expect("first list");
    assert!(store.applied(odd("v1", 2)).is_some());
    assert_eq!(read(&store, "a"), Some(("1".to_owned(), 2)));
    assert!(matches!(store.wrote(odd("v2", 3), Member::Yes), Put::Known));
    assert_eq!(read(&store, "a"), Some(("1".to_owned(), 2)), "not put");
    assert!(store.suspects.contains(&key("a")), "but read live");
}

#[test]
fn a_deleted_object_is_hidden_until_its_event() {
    let mut store = Store::default();
    store.listed(keyed([seen("a", "1", 5)]), &at(5), false).expect("first list");
    assert!(store.hide(&key("a"), "1").is_some());
    assert!(store.applied(seen("a", "1", 6)).is_none());
    assert_eq!(read(&store, "a"), None);
    assert!(store.deleted(&key("a"), "1", &at(7)).is_none(), "was told already");
    assert!(store.hidden.is_empty());
    assert!(store.hide(&key("a"), "1").is_none(), "the answer after the event hides nothing");
    assert!(store.hidden.is_empty());
}

#[test]
fn another_uid_is_not_hidden() {
    let mut store = Store::default();
    store.listed(keyed([seen("a", "1", 5)]), &at(5), false).expect("first list");
    store.hide(&key("a"), "1");
    assert!(matches!(store.wrote(seen("a", "2", 9), Member::Yes), Put::Stored(_)));
    assert!(store.deleted(&key("a"), "1", &at(7)).is_none());
    assert_eq!(read(&store, "a"), Some(("2".to_owned(), 9)));
}

#[test]
fn an_object_that_leaves_the_selector_is_gone_at_once() {
    let mut store = Store::default();
    store.listed(keyed([seen("a", "1", 5)]), &at(5), false).expect("first list");
    assert!(matches!(store.wrote(seen("a", "1", 7), Member::No), Put::Stored(_)));
    assert!(store.applied(seen("a", "1", 6)).is_none(), "from before it left");
    assert!(store.deleted(&key("a"), "1", &at(7)).is_none());
    assert!(store.slots.is_empty());
    assert!(matches!(store.wrote(seen("a", "1", 9), Member::Unknown), Put::Wait(9)));
}

#[test]
fn a_list_keeps_newer_own_writes() {
    let mut store = Store::default();
    store.listed(keyed([seen("a", "1", 5), seen("b", "2", 4)]), &at(5), false).expect("first list");
    store.wrote(seen("c", "3", 9), Member::Yes);
    store.wrote(seen("a", "1", 10), Member::Yes);
    store.hide(&key("b"), "2");
    let listed =
        store.listed(keyed([seen("a", "1", 7), seen("d", "4", 8)]), &at(8), false).expect("second list");
    assert_eq!(listed.transitions.len(), 1, "{:?}", listed.transitions);
    assert_eq!(read(&store, "a").map(|a| a.1), Some(10));
    assert_eq!(read(&store, "c").map(|c| c.1), Some(9));
    assert!(store.hidden.is_empty(), "a list without it");
    assert!(store.listed(BTreeMap::new(), &at(6), false).is_err(), "a stale list is refused");
}

#[test]
fn a_restored_server_starts_again() {
    let mut store = Store::default();
    store.listed(keyed([seen("a", "1", 50)]), &at(50), false).expect("first list");
    store.wrote(seen("b", "2", 51), Member::Yes);
    let listed = store.listed(keyed([seen("a", "1", 20)]), &at(30), true).expect("quorum list");
    assert!(listed.restored);
    assert_eq!((read(&store, "a").map(|a| a.1), read(&store, "b")), (Some(20), None));
    assert!(store.applied(seen("a", "1", 31)).is_some());
}

#[test]
fn what_a_list_has_is_covered_when_it_was_seen() {
    let mut store: Store<Thing> = Store::default();
    store.listed(keyed([seen("a", "1", 5), seen("b", "2", 4)]), &at(5), false).expect("first list");
    let list = |objects: &[(&str, u64)]| {
        objects.iter().map(|(name, version)| (key(name), *version)).collect::<BTreeMap<_, _>>()
    };
    assert!(store.covers(&list(&[("a", 5)]), 5), "seen up to there");
    assert!(store.covers(&list(&[("a", 5), ("b", 4)]), 9), "nothing has changed since");
    assert!(!store.covers(&list(&[("a", 8), ("b", 4)]), 9), "a change is missing");
    assert!(!store.covers(&list(&[("a", 5), ("b", 4), ("c", 7)]), 9), "an object is missing");
    assert!(!store.covers(&list(&[("a", 5)]), 9), "a deletion is missing");
    store.applied(seen("a", "1", 8));
    assert!(store.covers(&list(&[("a", 8), ("b", 4)]), 9));
    store.deleted(&key("b"), "2", &at(9));
    assert!(store.covers(&list(&[("a", 8)]), 9));
}

#[test]
fn indexes_follow_what_can_be_read() {
    let mut store: Store<Thing> = Store::default();
    store.listed(keyed([seen("a", "1", 5)]), &at(5), false).expect("first list");
    let values: Values<Thing> =
        Arc::new(|thing: &Payload<Thing>| thing.object().map(|thing| thing.0.clone()).into_iter().collect());
    store.add_index("uid", &values);
    let count = |store: &Store<Thing>, value: &str| store.by_index("uid", value).expect("index").len();
    assert_eq!(count(&store, "1"), 1);
    store.wrote(seen("b", "1", 6), Member::Yes);
    assert_eq!(count(&store, "1"), 2);
    store.hide(&key("b"), "1");
    assert_eq!(count(&store, "1"), 1);
    store.applied(seen("a", "9", 8));
    assert_eq!((count(&store, "1"), count(&store, "9")), (0, 1));
    assert!(store.by_index("other", "1").is_none());
}

fn page(name: &str, version: u64) -> Seen<ConfigMap> {
    let text = json!({
        "metadata": { "namespace": "ns", "name": name, "uid": name, "resourceVersion": version.to_string() },
        "data": { "index.html": "hello" },
    });
    decode_text(&Kind::of::<ConfigMap>(), &text.to_string()).expect("named")
}

/// What a change tells has the object as it was decoded for it; what is kept is its text, until somebody reads many of them.
#[test]
fn objects_are_kept_as_texts_until_many_are_read() {
    let mut store: Store<ConfigMap> = Store::default();
    store.listed(keyed([page("a", 5).pack()]), &at(5), false).expect("first list");
    let told = store.applied(page("a", 6)).expect("a change");
    assert!(matches!(told.new, Some(Payload::Object(_))));
    assert!(matches!(told.old, Some(Payload::Packed(_))));
    let record = store.visible(&key("a")).expect("stored");
    assert!(matches!(record.payload, Payload::Packed(_)));
    assert_eq!(record.payload.object(), told.new.and_then(|new| new.object()), "and nothing of it is lost");
    store.unpack();
    store.applied(page("b", 7));
    for name in ["a", "b"] {
        let record = store.visible(&key(name)).expect("stored");
        let [one, two] = [record.payload.object(), record.payload.object()].map(Option::unwrap);
        assert!(Arc::ptr_eq(&one, &two), "{name} is decoded once");
    }
}

/// A server with one kind: the truth that the store has to follow.
#[derive(Debug, Default)]
struct Server {
    version: u64,
    uids: u64,
    /// uid, version, selected.
    objects: BTreeMap<Key, (String, u64, bool)>,
    events: Vec<Event>,
}

#[derive(Clone, Debug)]
enum Event {
    Applied(Key, String, u64),
    Deleted(Key, String, u64),
}

impl Event {
    fn version(&self) -> u64 {
        match self {
            Self::Applied(_, _, version) | Self::Deleted(_, _, version) => *version,
        }
    }
}

#[derive(Clone, Debug)]
enum Answer {
    Wrote(Key, String, u64, bool),
    Deleted(Key, String),
}

impl Server {
    fn write(&mut self, key: &Key, selected: bool) -> Answer {
        self.version += 1;
        let before = self.objects.get(key).cloned();
        let uid = before.as_ref().map_or_else(
            || {
                self.uids += 1;
                format!("u{}", self.uids)
            },
            |(uid, ..)| uid.clone(),
        );
        self.objects.insert(key.clone(), (uid.clone(), self.version, selected));
        if selected {
            self.events.push(Event::Applied(key.clone(), uid.clone(), self.version));
        } else if before.is_some_and(|(_, _, selected)| selected) {
            self.events.push(Event::Deleted(key.clone(), uid.clone(), self.version));
        }
        Answer::Wrote(key.clone(), uid, self.version, selected)
    }

    fn delete(&mut self, key: &Key) -> Option<Answer> {
        let (uid, _, selected) = self.objects.remove(key)?;
        self.version += 1;
        if selected {
            self.events.push(Event::Deleted(key.clone(), uid.clone(), self.version));
        }
        Some(Answer::Deleted(key.clone(), uid))
    }

    fn selected(&self) -> BTreeMap<Key, Thing> {
        let selected = self.objects.iter().filter(|(_, (_, _, selected))| *selected);
        selected.map(|(key, (uid, version, _))| (key.clone(), (uid.clone(), *version))).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    OwnWrite { key: u8, selected: bool },
    OwnDelete { key: u8 },
    ForeignWrite { key: u8, selected: bool },
    ForeignDelete { key: u8 },
    Event,
    Bookmark,
    Answer(usize),
    Relist,
}

fn step() -> impl Strategy<Value = Step> {
    let selected = || proptest::bool::weighted(0.8);
    prop_oneof![
        4 => (0..3u8, selected()).prop_map(|(key, selected)| Step::OwnWrite { key, selected }),
        2 => (0..3u8).prop_map(|key| Step::OwnDelete { key }),
        2 => (0..3u8, selected()).prop_map(|(key, selected)| Step::ForeignWrite { key, selected }),
        1 => (0..3u8).prop_map(|key| Step::ForeignDelete { key }),
        6 => Just(Step::Event),
        1 => Just(Step::Bookmark),
        5 => (0..8usize).prop_map(Step::Answer),
        1 => Just(Step::Relist),
    ]
}

/// What a handler has been told.
#[derive(Default)]
struct Told {
    last: BTreeMap<Key, Thing>,
    /// The newest version ever told of a key.
    newest: BTreeMap<Key, u64>,
    /// Versions that an own write had overtaken.
    late: BTreeSet<u64>,
}

impl Told {
    fn extend(&mut self, transitions: impl IntoIterator<Item = Transition<Thing>>) {
        for transition in transitions {
            self.tell(transition);
        }
    }

    fn tell(&mut self, transition: Transition<Thing>) {
        let thing = |payload: Option<Payload<Thing>>| payload.map(|p| (*p.object().expect("object")).clone());
        let (old, new) = (thing(transition.old), thing(transition.new));
        if transition.late {
            // After a list nobody can tell what was between: there old and new are what can be read.
            let version = new.clone().map(|new| new.1);
            assert!(
                old == new || version.is_some_and(|version| self.late.insert(version)),
                "told once: {new:?}"
            );
            return;
        }
        assert_eq!(self.last.get(&transition.key), old.as_ref(), "the right old state");
        assert_ne!(old, new, "a change");
        match new {
            Some(new) => {
                let newest = self.newest.insert(Key::clone(&transition.key), new.1);
                assert!(newest.is_none_or(|newest| newest < new.1), "{newest:?} told again: {new:?}");
                self.last.insert(Key::clone(&transition.key), new);
            }
            None => {
                self.last.remove(&transition.key);
            }
        }
    }
}

struct Run {
    server: Server,
    store: Store<Thing>,
    told: Told,
    delivered: usize,
    answers: Vec<Answer>,
    /// Versions of own writes whose answers were taken.
    taken: BTreeSet<u64>,
}

impl Run {
    fn event(&mut self) {
        let Some(event) = self.server.events.get(self.delivered).cloned() else { return };
        self.delivered += 1;
        let transition = match event {
            Event::Applied(key, uid, version) => {
                let transition = self.store.applied(seen(&key.name, &uid, version));
                let answered = self.taken.contains(&version);
                let late = transition.as_ref().is_some_and(|transition| transition.late);
                assert!(!(late && answered), "version {version} is our own");
                transition
            }
            Event::Deleted(key, uid, version) => self.store.deleted(&key, &uid, &at(version)),
        };
        self.told.extend(transition);
    }

    fn answer(&mut self, which: usize) {
        if self.answers.is_empty() {
            return;
        }
        let answer = self.answers.remove(which % self.answers.len());
        let transition = match answer {
            Answer::Wrote(key, uid, version, selected) => {
                self.taken.insert(version);
                let member = if selected { Member::Yes } else { Member::No };
                match self.store.wrote(seen(&key.name, &uid, version), member) {
                    Put::Stored(transition) => Some(transition),
                    _ => None,
                }
            }
            Answer::Deleted(key, uid) => self.store.hide(&key, &uid),
        };
        self.told.extend(transition);
    }

    /// The watch broke; a list of the newest state replaces the events that were not delivered.
    fn relist(&mut self) {
        let items = self.server.selected().into_iter().map(|(key, (uid, v))| seen(&key.name, &uid, v));
        self.delivered = self.server.events.len();
        let listed = self.store.listed(keyed(items), &at(self.server.version), false).expect("not older");
        self.told.extend(listed.transitions);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn any_interleaving_ends_at_the_servers_state(steps in proptest::collection::vec(step(), 0..60)) {
        let mut run = Run {
            server: Server::default(),
            store: Store::default(),
            told: Told::default(),
            delivered: 0,
            answers: Vec::new(),
            taken: BTreeSet::new(),
        };
        run.relist();
        let name = |k: u8| key(&k.to_string());
        for step in steps {
            match step {
                Step::OwnWrite { key, selected } => {
                    let answer = run.server.write(&name(key), selected);
                    run.answers.push(answer);
                }
                Step::OwnDelete { key } => {
                    let answer = run.server.delete(&name(key));
                    run.answers.extend(answer);
                }
                Step::ForeignWrite { key, selected } => { run.server.write(&name(key), selected); }
                Step::ForeignDelete { key } => { run.server.delete(&name(key)); }
                Step::Event => run.event(),
                Step::Bookmark => {
                    // A bookmark comes in the stream's order: up to the next event that was not delivered.
                    let next = run.server.events.get(run.delivered).map(|event| event.version() - 1);
                    run.store.bookmark(&at(next.unwrap_or(run.server.version)));
                }
                Step::Answer(which) => run.answer(which),
                Step::Relist => run.relist(),
            }
        }
        while !run.answers.is_empty() || run.delivered < run.server.events.len() {
            run.answer(0);
            run.event();
        }
        run.store.bookmark(&at(run.server.version));
        let read: BTreeMap<Key, Thing> = run.store.iter()
            .map(|(key, record)| (Key::clone(key), (*record.payload.object().expect("object")).clone()))
            .collect();
        prop_assert_eq!(&read, &run.server.selected());
        prop_assert_eq!(&read, &run.told.last, "handlers know what can be read");
        prop_assert!(run.store.hidden.is_empty(), "nothing stays hidden: {:?}", run.store.hidden);
        prop_assert_eq!(run.store.slots.len(), read.len(), "no tombstone stays");
    }
}
