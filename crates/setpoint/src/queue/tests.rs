use k8s_openapi::api::core::v1::ConfigMap;
use proptest::prelude::*;

use super::*;
use crate::ObjectRef;

fn fresh(text: &str) -> Add {
    Add { cause: Cause::source(text), class: Class::Fresh, echo: false, renews: false, version: None }
}

fn background(text: &str) -> Add {
    Add { class: Class::Background, ..fresh(text) }
}

fn key(name: &str) -> Key {
    Key::new("ns", name)
}

fn popped(queue: &mut Queue, now: Instant) -> Option<String> {
    queue.pop(now).map(|popped| popped.key.name)
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn an_event_that_was_faster_than_its_answer_is_taken_back() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    let child = ObjectRef::new(Kind::of::<ConfigMap>(), key("child"));
    let changed = |version| Add {
        cause: Cause::new(Reason::Changed, Some(child.clone())),
        version: Some(version),
        ..fresh("")
    };
    queue.add(&key("a"), fresh("spec"), now);
    queue.pop(now).expect("ready");
    queue.add(&key("a"), changed(7), now);
    queue.made(&key("a"), (&child.kind, &child.key), 7);
    queue.finish(&key("a"), Outcome::Success, now);
    assert_eq!(queue.pop(now), None);

    queue.add(&key("a"), fresh("spec"), now);
    queue.pop(now).expect("ready");
    queue.add(&key("a"), changed(8), now);
    queue.add(&key("a"), changed(9), now);
    queue.made(&key("a"), (&child.kind, &child.key), 9);
    queue.made(&key("a"), (&child.kind, &key("other")), 8);
    queue.finish(&key("a"), Outcome::Success, now);
    let popped = queue.pop(now).expect("somebody else's change");
    assert_eq!(popped.causes.kept, [changed(8).cause]);
}

#[test]
fn a_key_is_queued_once_and_its_causes_merge() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    for n in 0..20 {
        queue.add(&key("a"), fresh(&n.to_string()), now + SECOND * n);
    }
    let popped = queue.pop(now + SECOND * 30).expect("one");
    assert_eq!((popped.causes.kept.len(), popped.causes.more), (16, 4));
    assert_eq!(popped.waited, SECOND * 30, "waiting counts from the first add");
    assert_eq!(queue.pop(now + SECOND * 30), None);
}

#[test]
fn an_add_while_running_runs_once_more_after() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    queue.add(&key("a"), fresh("1"), now);
    assert!(queue.pop(now).is_some());
    queue.add(&key("a"), fresh("2"), now);
    queue.add(&key("a"), fresh("3"), now);
    assert_eq!(queue.pop(now), None, "never two at a time");
    queue.finish(&key("a"), Outcome::Success, now);
    assert_eq!(queue.pop(now).expect("dirty").causes.kept.len(), 2);
    queue.finish(&key("a"), Outcome::Success, now);
    assert_eq!(queue.pop(now), None);
    assert!(queue.entries.is_empty());
}

#[test]
fn every_fourth_pop_serves_background() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    for n in 0..8 {
        queue.add(&key(&format!("b{n}")), background("list"), now);
        queue.add(&key(&format!("f{n}")), fresh("event"), now);
    }
    let order: Vec<String> = std::iter::from_fn(|| popped(&mut queue, now)).take(8).collect();
    assert_eq!(order, ["f0", "f1", "f2", "b0", "f3", "f4", "f5", "b1"]);
}

#[test]
fn a_raised_key_gets_a_new_place() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    queue.add(&key("a"), background("list"), now);
    queue.add(&key("b"), fresh("event"), now);
    queue.add(&key("a"), fresh("event"), now);
    queue.add(&key("b"), fresh("again"), now);
    assert_eq!(queue.depth(), (2, 0));
    assert_eq!(popped(&mut queue, now).as_deref(), Some("b"), "an add does not move a key back");
    assert_eq!(popped(&mut queue, now).as_deref(), Some("a"));
}

#[test]
fn failures_back_off_and_success_resets() {
    let (mut queue, mut now) = (Queue::default(), Instant::now());
    queue.add(&key("a"), fresh("1"), now);
    let mut waits = Vec::new();
    for _ in 0..20 {
        assert!(queue.pop(now).is_some());
        queue.finish(&key("a"), Outcome::Error, now);
        let wake = queue.next_wake().expect("backs off");
        waits.push(wake - now);
        now = wake;
    }
    assert_eq!(waits[..4], [5, 10, 20, 40].map(Duration::from_millis));
    assert_eq!(waits[19], Duration::from_secs(1000));
    let retry = queue.pop(now).expect("retry");
    assert_eq!((retry.failures, &retry.causes.kept[0].reason), (20, &Reason::Retry(20)));
    queue.finish(&key("a"), Outcome::After(SECOND), now);
    now += SECOND;
    assert_eq!(queue.pop(now).expect("after").failures, 0);
}

#[test]
fn echoes_neither_promote_a_key_that_backs_off_nor_make_it_dirty() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    let echo = || Add { echo: true, ..fresh("own status") };
    queue.add(&key("a"), fresh("1"), now);
    assert!(queue.pop(now).is_some());
    queue.add(&key("a"), echo(), now);
    queue.finish(&key("a"), Outcome::Error, now);
    assert_eq!(queue.pop(now), None, "not dirty");
    queue.add(&key("a"), echo(), now);
    assert_eq!(queue.pop(now), None, "not promoted");
    queue.add(&key("a"), fresh("foreign"), now);
    let popped = queue.pop(now).expect("promoted by a foreign cause");
    assert_eq!(popped.failures, 1, "which keeps the failure count");
}

#[test]
fn a_terminal_failure_waits_for_a_new_generation() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    queue.add(&key("a"), fresh("1"), now);
    assert!(queue.pop(now).is_some());
    queue.finish(&key("a"), Outcome::Terminal, now);
    queue.add(&key("a"), fresh("a child changed"), now);
    assert_eq!(queue.pop(now + SECOND * 5000), None);
    queue.add(&key("a"), Add { renews: true, ..fresh("spec") }, now);
    assert!(queue.pop(now).is_some());
    queue.add(&key("a"), Add { renews: true, ..fresh("spec again") }, now);
    queue.finish(&key("a"), Outcome::Terminal, now);
    assert!(queue.pop(now).is_some(), "a new generation during the run");
}

#[test]
fn result_timers_die_at_the_next_pop_and_source_timers_live() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    queue.add_after(&key("a"), Cause::source("poll"), SECOND * 10, now);
    queue.add(&key("a"), fresh("1"), now);
    assert!(queue.pop(now).is_some());
    queue.finish(&key("a"), Outcome::After(SECOND * 5), now);
    assert_eq!(queue.next_wake(), Some(now + SECOND * 5), "the earliest wins");
    queue.add(&key("a"), fresh("2"), now);
    assert!(queue.pop(now).is_some());
    queue.finish(&key("a"), Outcome::Success, now);
    assert_eq!(queue.pop(now + SECOND * 9), None, "the result timer is dead");
    let popped = queue.pop(now + SECOND * 10).expect("the source timer lives");
    assert_eq!(popped.causes.kept, [Cause::source("poll")]);
    queue.finish(&key("a"), Outcome::After(Duration::MAX), now + SECOND * 10);
    assert!(queue.next_wake().expect("clamped") < now + FAR + SECOND * 11);
}

#[test]
fn a_gone_object_leaves_no_trace() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    queue.add_after(&key("a"), Cause::source("poll"), SECOND, now);
    queue.add(&key("a"), fresh("1"), now);
    for _ in 0..3 {
        let at = queue.next_wake().unwrap_or(now);
        let _ = queue.pop(at);
        queue.finish(&key("a"), Outcome::Error, now);
    }
    queue.add(&key("a"), fresh("deleted"), now);
    assert!(queue.pop(now).is_some());
    queue.finish(&key("a"), Outcome::Gone, now);
    assert!(queue.entries.is_empty() && queue.timers.is_empty(), "{queue:?}");
}

#[test]
fn nothing_is_popped_after_the_stop() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    queue.add(&key("a"), fresh("1"), now);
    queue.stop();
    assert_eq!((queue.pop(now), queue.next_wake()), (None, None));
}

#[derive(Clone, Debug)]
enum Step {
    Add { key: u8, fresh: bool, echo: bool, renews: bool },
    Later { key: u8, seconds: u64 },
    Pop,
    Finish { which: usize, outcome: Outcome },
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let outcome = prop_oneof![
        Just(Outcome::Success),
        (0..20u64).prop_map(|s| Outcome::After(SECOND * s as u32)),
        Just(Outcome::Error),
        Just(Outcome::Terminal),
        Just(Outcome::Gone),
    ];
    prop_oneof![
        4 => (0..4u8, any::<bool>(), proptest::bool::weighted(0.2), any::<bool>())
            .prop_map(|(key, fresh, echo, renews)| Step::Add { key, fresh, echo, renews }),
        1 => (0..4u8, 0..30u64).prop_map(|(key, seconds)| Step::Later { key, seconds }),
        4 => Just(Step::Pop),
        4 => (0..4usize, outcome).prop_map(|(which, outcome)| Step::Finish { which, outcome }),
        1 => (0..2000u64).prop_map(Step::Wait),
    ]
}

/// The same queue without any index: everything is found by looking at all keys.
#[derive(Debug, Default)]
struct Model {
    keys: BTreeMap<Key, State>,
    places: u64,
    pops: u64,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    causes: Vec<Cause>,
    class: Option<Class>,
    since: Option<Instant>,
    renews: bool,
    /// Class of the last run.
    last: Class,
    failures: u32,
    terminal: bool,
    result: Option<(Instant, Timer)>,
    sources: Vec<(Instant, Cause)>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            phase: Phase::Waiting,
            causes: Vec::new(),
            class: None,
            since: None,
            renews: false,
            last: Class::Background,
            failures: 0,
            terminal: false,
            result: None,
            sources: Vec::new(),
        }
    }
}

impl State {
    fn next_timer(&self) -> Option<Instant> {
        let sources = self.sources.iter().map(|(at, _)| *at);
        sources.chain(self.result.map(|(at, _)| at)).min()
    }
}

impl Model {
    fn place(&mut self) -> u64 {
        self.places += 1;
        self.places
    }

    fn add(&mut self, key: &Key, add: Add, now: Instant) {
        let place = self.places + 1;
        let state = self.keys.entry(key.clone()).or_default();
        let held = add.echo && matches!(state.result, Some((_, Timer::BackOff)));
        let ready = match state.phase {
            Phase::Running if add.echo => return,
            Phase::Waiting if state.terminal && !add.renews => return,
            Phase::Running => false,
            Phase::Waiting => !held,
            Phase::Ready { .. } => Some(add.class) > state.class,
        };
        state.causes.push(add.cause);
        state.class = state.class.max(Some(add.class));
        state.since = state.since.or(Some(now));
        state.renews |= add.renews;
        if ready {
            state.phase = Phase::Ready { place };
            self.places = place;
        }
    }

    /// Timers that are due become adds: the earliest key first, all of a key's together.
    fn fire(&mut self, now: Instant) {
        loop {
            let timers = self.keys.iter().filter_map(|(key, state)| Some((state.next_timer()?, key.clone())));
            let Some((_, key)) = timers.filter(|(at, _)| *at <= now).min() else { return };
            let state = self.keys.get_mut(&key).expect("has a timer");
            let last = state.last;
            let mut adds = Vec::new();
            if let Some((_, timer)) = state.result.take_if(|(at, _)| *at <= now) {
                let reason =
                    if timer == Timer::After { Reason::After } else { Reason::Retry(state.failures) };
                adds.push((Cause::new(reason, None), last));
            }
            // Of two at the same time the one that was asked for first.
            state.sources.sort_by_key(|(at, _)| *at);
            while state.sources.first().is_some_and(|(at, _)| *at <= now) {
                adds.push((state.sources.remove(0).1, Class::Fresh));
            }
            for (cause, class) in adds {
                self.add(&key, Add { cause, class, echo: false, renews: false, version: None }, now);
            }
        }
    }

    fn pop(&mut self, now: Instant) -> Option<Popped> {
        let background_first = (self.pops + 1).is_multiple_of(4);
        let ready = self.keys.iter().filter_map(|(key, state)| match state.phase {
            Phase::Ready { place } => {
                let background = state.class.unwrap_or(state.last) == Class::Background;
                Some((background != background_first, place, key.clone()))
            }
            _ => None,
        });
        let (.., key) = ready.min()?;
        self.pops += 1;
        let state = self.keys.get_mut(&key)?;
        let causes = std::mem::take(&mut state.causes);
        let popped = Popped {
            key,
            causes: Causes {
                kept: causes.iter().take(16).cloned().collect(),
                more: causes.len().saturating_sub(16),
            },
            waited: state.since.map_or(Duration::ZERO, |since| now - since),
            failures: state.failures,
        };
        *state = State {
            phase: Phase::Running,
            last: state.class.unwrap_or(state.last),
            failures: state.failures,
            sources: std::mem::take(&mut state.sources),
            ..State::default()
        };
        Some(popped)
    }

    fn finish(&mut self, key: &Key, outcome: Outcome, now: Instant) {
        let place = self.places + 1;
        let state = self.keys.get_mut(key).expect("runs");
        let dirty = state.since.is_some();
        let (ready, timer) = match outcome {
            Outcome::After(delay) => (dirty, Some((now + delay, Timer::After))),
            Outcome::Error => (dirty, Some((now + back_off(state.failures + 1), Timer::BackOff))),
            Outcome::Terminal => (state.renews, None),
            Outcome::Success | Outcome::Gone => (dirty, None),
        };
        state.failures = if outcome == Outcome::Error { state.failures + 1 } else { 0 };
        state.terminal = outcome == Outcome::Terminal;
        state.result = timer.filter(|_| !dirty);
        state.phase = Phase::Waiting;
        if outcome == Outcome::Gone {
            (state.last, state.sources) = (Class::Background, Vec::new());
        }
        if outcome == Outcome::Terminal && !ready {
            (state.causes, state.class, state.since) = (Vec::new(), None, None);
        }
        if ready {
            state.phase = Phase::Ready { place };
            self.places = place;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn the_queue_does_what_its_model_does(steps in proptest::collection::vec(step(), 0..400)) {
        let (mut queue, mut model, mut now) = (Queue::default(), Model::default(), Instant::now());
        for (number, step) in steps.into_iter().enumerate() {
            let cause = Cause::source(number.to_string());
            match step {
                Step::Add { key: name, fresh, echo, renews } => {
                    let class = if fresh { Class::Fresh } else { Class::Background };
                    let add = Add { cause, class, echo, renews, version: None };
                    queue.add(&key(&name.to_string()), add.clone(), now);
                    model.fire(now);
                    model.add(&key(&name.to_string()), add, now);
                }
                Step::Later { key: name, seconds } => {
                    let (name, delay) = (key(&name.to_string()), SECOND * seconds as u32);
                    queue.add_after(&name, cause.clone(), delay, now);
                    model.fire(now);
                    model.place();
                    model.keys.entry(name).or_default().sources.push((now + delay, cause));
                }
                Step::Pop => {
                    model.fire(now);
                    prop_assert_eq!(queue.pop(now), model.pop(now));
                }
                Step::Finish { which, outcome } => {
                    let running: Vec<Key> = model.keys.iter()
                        .filter(|(_, state)| state.phase == Phase::Running)
                        .map(|(key, _)| key.clone())
                        .collect();
                    if running.is_empty() {
                        continue;
                    }
                    let key = &running[which % running.len()];
                    let retried = queue.finish(key, outcome, now);
                    prop_assert_eq!(retried, outcome == Outcome::Error);
                    model.fire(now);
                    model.finish(key, outcome, now);
                }
                Step::Wait(millis) => {
                    now += Duration::from_millis(millis * 10);
                    continue;
                }
            }
            let ready = |class| model.keys.values().filter(|state| {
                matches!(state.phase, Phase::Ready { .. }) && state.class.unwrap_or(state.last) == class
            }).count();
            prop_assert_eq!(queue.depth(), (ready(Class::Fresh), ready(Class::Background)));
            prop_assert_eq!(queue.next_wake(), model.keys.values().filter_map(State::next_timer).min());
        }
        // Who waits for nothing leaves no trace.
        let kept = |state: &State| state.phase != Phase::Waiting || state.next_timer().is_some() || state.terminal;
        let expected: Vec<&Key> = model.keys.iter().filter(|(_, state)| kept(state)).map(|(key, _)| key).collect();
        prop_assert_eq!(queue.entries.keys().collect::<Vec<_>>(), expected);
    }
}
