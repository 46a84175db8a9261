use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt as _;
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use crate::{Cause, Error, Key, Result, Trigger};

/// How background work of an object is doing; from [`crate::Context::background`].
#[derive(Debug)]
pub enum Background {
    /// It was started now.
    Started,
    /// It was started before and goes on.
    Running,
    /// It has ended, with this result. This is told once: the next call starts it anew.
    Ended(Result<()>),
}

/// The background work of one controller, by object and name. Dropping it drops the work.
#[derive(Default)]
pub(crate) struct Works(Mutex<BTreeMap<(Key, String), Work>>);

struct Work {
    /// Of the object that it is for: another one under the same name does not inherit it.
    uid: Option<String>,
    /// Tells this work from an earlier one of the same name.
    number: u64,
    task: AbortHandle,
    ended: Option<Result<()>>,
}

impl Drop for Work {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reconciles a key, now or later.
pub(crate) type Wake = Arc<dyn Fn(Trigger) + Send + Sync>;

impl Works {
    /// See [`crate::Context::background`].
    pub(crate) fn run<F>(
        self: &Arc<Self>,
        (key, uid): (&Key, Option<&String>),
        name: &str,
        wake: &Wake,
        work: impl FnOnce() -> F,
    ) -> Background
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let place = (key.clone(), name.to_owned());
        let mut works = self.0.lock();
        let mut number = 0;
        if let Some(found) = works.get_mut(&place) {
            number = found.number + 1;
            if found.uid.as_ref() == uid {
                let Some(result) = found.ended.take() else { return Background::Running };
                works.remove(&place);
                return Background::Ended(result);
            }
        }
        let (all, wake, at) = (Arc::downgrade(self), Arc::clone(wake), place.clone());
        let work = AssertUnwindSafe(work()).catch_unwind();
        let task = tokio::spawn(async move {
            let result = work.await.unwrap_or_else(|_| Err(Error::msg("the background work panicked")));
            ended(&all, at, number, result, &wake);
        });
        let work = Work { uid: uid.cloned(), number, task: task.abort_handle(), ended: None };
        works.insert(place, work);
        Background::Started
    }

    /// Drops all work of an object.
    pub(crate) fn forget(&self, key: &Key) {
        self.0.lock().retain(|(of, _), _| of != key);
    }
}

/// Keeps the result until it is asked for, and reconciles the object so that it is.
fn ended(works: &Weak<Works>, place: (Key, String), number: u64, result: Result<()>, wake: &Wake) {
    let Some(works) = works.upgrade() else { return };
    let mut works = works.0.lock();
    let Some(work) = works.get_mut(&place).filter(|work| work.number == number) else { return };
    work.ended = Some(result);
    let (key, name) = place;
    wake(Trigger::later(key, Cause::source(format!("background work {name} has ended")), Duration::ZERO));
}

impl fmt::Debug for Works {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.lock().keys()).finish()
    }
}
