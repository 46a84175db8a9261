use proptest::prelude::*;

use super::*;

fn fresh(text: &str) -> Add {
    Add { cause: Cause::source(text), class: Class::Fresh, echo: false, renews: false }
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

/// What the queue promises about one key, told without places and timers' bookkeeping.
#[derive(Clone, Debug, Default)]
struct Promise {
    running: bool,
    /// Adds that the next run must show.
    owed: usize,
    /// An add that must lead to a run without any timer.
    due: bool,
    terminal: bool,
    failures: u32,
    result: Option<Instant>,
    backs_off: bool,
    sources: Vec<Instant>,
}

impl Promise {
    fn add(&mut self, echo: bool, renews: bool) {
        if self.running && echo || !self.running && !self.due && self.terminal && !renews {
            return;
        }
        let held = !self.running && !self.due && echo && self.backs_off && self.result.is_some();
        self.owed += 1;
        self.due |= !held;
    }

    fn fire(&mut self, now: Instant) {
        if self.result.is_some_and(|at| at <= now) {
            self.result = None;
            self.add(false, false);
        }
        for _ in 0..self.sources.iter().filter(|at| **at <= now).count() {
            self.add(false, false);
        }
        self.sources.retain(|at| *at > now);
    }
}

proptest! {
    #[test]
    fn every_add_is_answered_and_no_key_runs_twice(steps in proptest::collection::vec(step(), 0..200)) {
        let mut queue = Queue::default();
        let mut now = Instant::now();
        let mut model: BTreeMap<Key, Promise> = BTreeMap::new();
        let mut renewed: BTreeSet<Key> = BTreeSet::new();
        for step in steps {
            for promise in model.values_mut() {
                promise.fire(now);
            }
            match step {
                Step::Add { key: k, fresh: is_fresh, echo, renews } => {
                    let k = key(&k.to_string());
                    let class = if is_fresh { Class::Fresh } else { Class::Background };
                    queue.add(&k, Add { class, echo, renews, ..fresh("x") }, now);
                    let promise = model.entry(k.clone()).or_default();
                    if promise.running && renews && !echo {
                        renewed.insert(k);
                    }
                    promise.add(echo, renews);
                }
                Step::Later { key: k, seconds } => {
                    let k = key(&k.to_string());
                    queue.add_after(&k, Cause::source("later"), SECOND * seconds as u32, now);
                    model.entry(k).or_default().sources.push(now + SECOND * seconds as u32);
                }
                Step::Pop => match queue.pop(now) {
                    Some(popped) => {
                        let promise = model.get_mut(&popped.key).expect("was added");
                        prop_assert!(!promise.running, "{} runs twice", popped.key);
                        prop_assert!(promise.due, "{} runs without a cause", popped.key);
                        prop_assert_eq!(popped.causes.kept.len() + popped.causes.more, promise.owed);
                        prop_assert_eq!(popped.failures, promise.failures);
                        *promise = Promise {
                            running: true,
                            failures: promise.failures,
                            sources: std::mem::take(&mut promise.sources),
                            ..Promise::default()
                        };
                        renewed.remove(&popped.key);
                    }
                    None => prop_assert!(
                        !model.values().any(|promise| promise.due && !promise.running),
                        "a due key is not popped: {:?}", model
                    ),
                },
                Step::Finish { which, outcome } => {
                    let running: Vec<Key> =
                        model.iter().filter(|(_, p)| p.running).map(|(k, _)| k.clone()).collect();
                    if running.is_empty() {
                        continue;
                    }
                    let k = running[which % running.len()].clone();
                    queue.finish(&k, outcome, now);
                    let promise = model.get_mut(&k).expect("runs");
                    promise.running = false;
                    let dirty = promise.due;
                    match outcome {
                        Outcome::Success => promise.failures = 0,
                        Outcome::After(delay) => {
                            promise.failures = 0;
                            promise.result = (!dirty).then_some(now + delay);
                            promise.backs_off = false;
                        }
                        Outcome::Error => {
                            promise.failures += 1;
                            promise.result = (!dirty).then(|| now + back_off(promise.failures));
                            promise.backs_off = true;
                        }
                        Outcome::Terminal => {
                            promise.failures = 0;
                            promise.terminal = true;
                            if !renewed.contains(&k) {
                                (promise.due, promise.owed) = (false, 0);
                            }
                        }
                        Outcome::Gone => {
                            *promise = Promise { due: dirty, owed: promise.owed, ..Promise::default() };
                        }
                    }
                }
                Step::Wait(millis) => now += Duration::from_millis(millis * 10),
            }
        }
    }
}
