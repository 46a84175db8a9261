use std::collections::BTreeMap;
use std::time::Duration;

use crate::Contender;

/// Something that is measured; results are numbers in its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Measure {
    /// MiB of a process that watches four kinds without objects.
    Empty,
    /// Writes for each created object.
    CreateWrites,
    /// Reads for each created object.
    CreateReads,
    /// Reconciles for each created object.
    CreateReconciles,
    /// Milliseconds of processor time for each created object.
    CreateTime,
    /// Requests for each touched object.
    TouchRequests,
    /// Reconciles for each touched object.
    TouchReconciles,
    /// Milliseconds of processor time for each touched object.
    TouchTime,
    /// Milliseconds from before a change is sent until its child's event is read, in the middle.
    ChangeMedian,
    /// The same, that 99 of 100 don't exceed.
    ChangeHigh,
    /// Writes for each change.
    ChangeWrites,
    /// Of them those that were answered 409.
    ChangeConflicts,
    /// Reconciles for each change.
    ChangeReconciles,
    /// KiB for each family in an operator that found them settled.
    Family,
    /// KiB for each family in an operator that made its children.
    FamilyGrown,
    /// Seconds from the start of the process until the last object's reconcile has begun.
    Restart,
    /// Seconds of processor time until everything is quiet.
    RestartTime,
    /// Writes of a restart.
    RestartWrites,
    /// Milliseconds from the answer to a create until its reconcile begins, while others are reconciled first; in the middle.
    NewMedian,
    /// The same, that 99 of 100 don't exceed.
    NewHigh,
}

/// All results, by measure and contender.
#[derive(Debug, Default)]
pub(crate) struct Samples(BTreeMap<(Measure, Contender), Vec<f64>>);

impl Samples {
    pub(crate) fn add(&mut self, contender: Contender, measure: Measure, value: f64) {
        eprintln!("{contender:?}: {measure:?} {value:.3}");
        self.0.entry((measure, contender)).or_default().push(value);
    }

    /// The results of one contender, sorted.
    pub(crate) fn of(&self, measure: Measure, contender: Contender) -> Option<Vec<f64>> {
        let mut values = self.0.get(&(measure, contender))?.clone();
        values.sort_by(f64::total_cmp);
        Some(values)
    }
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The value at `part` (0 to 1) of sorted values.
pub(crate) fn quantile(sorted: &[f64], part: f64) -> f64 {
    let index = (sorted.len().saturating_sub(1) as f64 * part).round() as usize;
    sorted.get(index).copied().unwrap_or_default()
}
