use std::fmt::Write;

use serde_json::{Value, json};

use crate::contender::{BARE, DURABLE, EMBEDDED, KUBE};
use crate::samples::{Measure, Samples, quantile};

/// What the embedded server is to reach.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// This many times as good as kube-apiserver.
    Times(f64),
    AtLeast(f64),
    AtMost(f64),
    /// Only told.
    None,
}

struct Row {
    measure: Measure,
    title: &'static str,
    key: &'static str,
    more_is_better: bool,
    target: Target,
}

const fn row(
    measure: Measure,
    title: &'static str,
    key: &'static str,
    more_is_better: bool,
    target: Target,
) -> Row {
    Row { measure, title, key, more_is_better, target }
}

const ROWS: [Row; 15] = [
    row(Measure::Boot, "boot to ready, ms", "boot_milliseconds", false, Target::Times(25.0)),
    row(Measure::Rest, "memory at rest, MiB", "rest_mebibytes", false, Target::Times(10.0)),
    row(
        Measure::PerObject,
        "memory for each ConfigMap of 1 KiB, KiB",
        "object_kibibytes",
        false,
        Target::AtMost(4.0),
    ),
    row(
        Measure::Creates,
        "creates a second, HTTPS, 16 clients",
        "creates_per_second",
        true,
        Target::Times(5.0),
    ),
    row(Measure::LatencyMedian, "one create, median, ms", "create_median_milliseconds", false, Target::None),
    row(Measure::LatencyHigh, "one create, p99, ms", "create_p99_milliseconds", false, Target::AtMost(1.0)),
    row(
        Measure::FanOut,
        "change to the last of 1,000 watchers, ms",
        "fan_out_milliseconds",
        false,
        Target::Times(5.0),
    ),
    row(
        Measure::SharedFanOut,
        "the same, 100 watches a connection, ms",
        "shared_fan_out_milliseconds",
        false,
        Target::Times(5.0),
    ),
    row(
        Measure::Blocked,
        "longest write while all is listed, ms",
        "blocked_write_milliseconds",
        false,
        Target::AtMost(5.0),
    ),
    row(
        Measure::BlockedHigh,
        "p99 of writes while all is listed, ms",
        "blocked_write_p99_milliseconds",
        false,
        Target::None,
    ),
    row(Measure::Pages, "all objects in pages of 500, s", "pages_seconds", false, Target::None),
    row(Measure::Watch, "memory for each of 2,000 idle watches, KiB", "watch_kibibytes", false, Target::None),
    row(
        Measure::SharedWatch,
        "the same, 100 watches a connection, KiB",
        "shared_watch_kibibytes",
        false,
        Target::None,
    ),
    row(
        Measure::WatchTime,
        "processor time of 2,000 idle watches, %",
        "watch_time_percent",
        false,
        Target::None,
    ),
    row(
        Measure::InProcess,
        "creates a second in process, one core",
        "in_process_creates_per_second",
        true,
        Target::AtLeast(50_000.0),
    ),
];

/// The results as people and programs read them: medians, and how many times as good the embedded server is.
pub(crate) struct Report<'a>(&'a Samples);

impl<'a> Report<'a> {
    pub(crate) fn new(samples: &'a Samples) -> Self {
        Self(samples)
    }

    fn median(&self, row: &Row, contender: &'static str) -> Option<f64> {
        self.0.of(row.measure, contender).map(|values| quantile(&values, 0.5))
    }

    fn ratio(&self, row: &Row) -> Option<f64> {
        let (ours, theirs) = (self.median(row, EMBEDDED)?, self.median(row, KUBE)?);
        Some(if row.more_is_better { ours / theirs } else { theirs / ours })
    }

    fn met(&self, row: &Row) -> Option<bool> {
        let ours = self.median(row, EMBEDDED)?;
        match row.target {
            Target::Times(times) => self.ratio(row).map(|ratio| ratio >= times),
            Target::AtLeast(least) => Some(ours >= least),
            Target::AtMost(most) => Some(ours <= most),
            Target::None => None,
        }
    }

    pub(crate) fn table(&self) -> String {
        let mut table = format!(
            "{:<42} {:>10} {:>22} {:>14} {:>8}  target\n",
            "medians (fastest to slowest)", "embedded", "", "kube-apiserver", "ratio"
        );
        for row in &ROWS {
            let Some(ours) = self.0.of(row.measure, EMBEDDED) else { continue };
            let spread = format!("({} to {})", number(quantile(&ours, 0.0)), number(quantile(&ours, 1.0)));
            let theirs = self.median(row, KUBE).map(number).unwrap_or_default();
            let ratio = self.ratio(row).map(|ratio| format!("{ratio:.1}x")).unwrap_or_default();
            let target = match row.target {
                Target::Times(times) => format!("{times}x"),
                Target::AtLeast(least) => format!(">= {}", number(least)),
                Target::AtMost(most) => format!("<= {}", number(most)),
                Target::None => String::new(),
            };
            let verdict = self.met(row).map_or("", |met| if met { "met" } else { "MISSED" });
            // Writing into a String cannot fail.
            let _ = writeln!(
                table,
                "{:<42} {:>10} {spread:>22} {theirs:>14} {ratio:>8}  {target} {verdict}",
                row.title,
                number(quantile(&ours, 0.5)),
            );
            for (other, title) in
                [(DURABLE, "    with a data folder"), (BARE, "    as many bytes, by nothing but writes")]
            {
                if let Some(median) = self.median(row, other) {
                    let _ = writeln!(table, "{title:<42} {:>10}", number(median));
                }
            }
        }
        table
    }

    pub(crate) fn json(&self) -> Value {
        let cores = std::thread::available_parallelism().map(usize::from).ok();
        let results = ROWS.iter().filter_map(|row| {
            Some(json!({
                "name": row.key, "embedded": self.0.of(row.measure, EMBEDDED)?,
                "embedded_with_data_folder": self.0.of(row.measure, DURABLE),
                "bare_writes": self.0.of(row.measure, BARE),
                "kube_apiserver": self.0.of(row.measure, KUBE), "ratio_of_medians": self.ratio(row), "met": self.met(row),
            }))
        });
        json!({"cores": cores, "results": results.collect::<Vec<_>>()})
    }
}

fn number(value: f64) -> String {
    match value {
        value if value >= 1000.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    }
}
