use std::fmt::Write;

use serde_json::{Value, json};

use super::samples::{Measure, Samples, quantile};
use crate::Contender;

struct Row {
    measure: Measure,
    title: &'static str,
    key: &'static str,
    /// At most this.
    target: Option<f64>,
}

const fn row(measure: Measure, title: &'static str, key: &'static str, target: Option<f64>) -> Row {
    Row { measure, title, key, target }
}

const ROWS: [Row; 20] = [
    row(Measure::CreateWrites, "create: writes for each object", "create_writes", Some(4.0)),
    row(Measure::CreateReads, "create: reads for each object", "create_reads", Some(0.0)),
    row(Measure::CreateReconciles, "create: reconciles for each object", "create_reconciles", None),
    row(Measure::CreateTime, "create: processor time for each object, ms", "create_milliseconds", Some(1.2)),
    row(Measure::TouchRequests, "no-op: requests", "no_op_requests", Some(0.0)),
    row(Measure::TouchReconciles, "no-op: reconciles", "no_op_reconciles", None),
    row(Measure::TouchTime, "no-op: processor time, ms", "no_op_milliseconds", Some(0.1)),
    row(Measure::ChangeMedian, "spec change to child, median, ms", "change_median_milliseconds", None),
    row(Measure::ChangeHigh, "spec change to child, p99, ms", "change_p99_milliseconds", Some(3.0)),
    row(Measure::ChangeWrites, "spec change: writes", "change_writes", Some(2.0)),
    row(Measure::ChangeConflicts, "spec change: conflicts", "change_conflicts", Some(0.0)),
    row(Measure::ChangeReconciles, "spec change: reconciles", "change_reconciles", None),
    row(Measure::Empty, "memory without objects, MiB", "empty_mebibytes", Some(12.0)),
    row(Measure::Family, "memory for each settled family, KiB", "family_kibibytes", Some(10.0)),
    row(
        Measure::FamilyGrown,
        "the same where it made the children, KiB",
        "family_grown_kibibytes",
        Some(10.0),
    ),
    row(Measure::Restart, "restart: until all are reconciled, s", "restart_seconds", Some(1.5)),
    row(Measure::RestartTime, "restart: processor time, s", "restart_processor_seconds", Some(1.0)),
    row(Measure::RestartWrites, "restart: writes", "restart_writes", Some(0.0)),
    row(Measure::NewMedian, "new object among first passes, median, ms", "new_median_milliseconds", None),
    row(Measure::NewHigh, "new object among first passes, p99, ms", "new_p99_milliseconds", Some(10.0)),
];

/// As people read it: medians and, for Setpoint, the spread.
pub(crate) fn table(samples: &Samples) -> String {
    let mut table = format!(
        "{:<44} {:>9} {:>20} {:>9} {:>7}  target\n",
        "medians (fastest to slowest)", "Setpoint", "", "kube-rs", "ratio"
    );
    for row in &ROWS {
        let ours = samples.of(row.measure, Contender::Setpoint);
        let theirs = samples.of(row.measure, Contender::Kube);
        if ours.is_none() && theirs.is_none() {
            continue;
        }
        let median = |values: &Option<Vec<f64>>| values.as_ref().map(|values| number(quantile(values, 0.5)));
        let spread = ours.as_ref().map(|values| {
            format!("({} to {})", number(quantile(values, 0.0)), number(quantile(values, 1.0)))
        });
        let ratio = ratio(row, samples).map(|ratio| format!("{ratio:.1}x")).unwrap_or_default();
        let target = row.target.map(|target| format!("<= {}", number(target))).unwrap_or_default();
        let verdict = met(row, samples).map_or("", |met| if met { "met" } else { "MISSED" });
        // Writing into a String cannot fail.
        let _ = writeln!(
            table,
            "{:<44} {:>9} {:>20} {:>9} {ratio:>7}  {target} {verdict}",
            row.title,
            median(&ours).unwrap_or_default(),
            spread.unwrap_or_default(),
            median(&theirs).unwrap_or_default(),
        );
        if let Some(slim) = samples.of(row.measure, Contender::Slim) {
            let _ = writeln!(table, "{:<44} {:>9}", "    with slim children", number(quantile(&slim, 0.5)));
        }
    }
    table
}

/// As programs read it, with every sample.
pub(crate) fn json(samples: &Samples) -> Value {
    let cores = std::thread::available_parallelism().map(usize::from).ok();
    let results = ROWS.iter().map(|row| {
        json!({
            "name": row.key,
            "setpoint": samples.of(row.measure, Contender::Setpoint),
            "setpoint_with_slim_children": samples.of(row.measure, Contender::Slim),
            "kube_rs": samples.of(row.measure, Contender::Kube),
            "ratio_of_medians": ratio(row, samples),
            "target_at_most": row.target,
            "met": met(row, samples),
        })
    });
    json!({ "cores": cores, "results": results.collect::<Vec<_>>() })
}

/// How many times as much kube-rs's operator takes; nothing where ours takes nothing.
fn ratio(row: &Row, samples: &Samples) -> Option<f64> {
    let median = |contender| samples.of(row.measure, contender).map(|values| quantile(&values, 0.5));
    let (ours, theirs) = (median(Contender::Setpoint)?, median(Contender::Kube)?);
    (ours > 0.0).then(|| theirs / ours)
}

fn met(row: &Row, samples: &Samples) -> Option<bool> {
    let ours = samples.of(row.measure, Contender::Setpoint)?;
    row.target.map(|target| quantile(&ours, 0.5) <= target)
}

fn number(value: f64) -> String {
    match value {
        value if value >= 1000.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    }
}
