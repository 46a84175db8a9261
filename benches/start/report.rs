use std::fmt::Write;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::case::Case;

/// The runs of one case.
#[derive(Debug)]
pub(crate) struct Measured {
    case: Case,
    runs: usize,
    median: Duration,
    fastest: Duration,
    slowest: Duration,
}

impl Measured {
    /// `times` is sorted and not empty.
    pub(crate) fn of(case: Case, times: &[Duration]) -> Self {
        let at = |index: usize| times.get(index).copied().unwrap_or_default();
        Self {
            case,
            runs: times.len(),
            median: at(times.len() / 2),
            fastest: at(0),
            slowest: at(times.len().saturating_sub(1)),
        }
    }

    fn verdict(&self) -> &'static str {
        match self.case.target() {
            None => "",
            Some(target) if self.median < target => "met",
            Some(_) => "MISSED",
        }
    }
}

/// All results, in the order in which they were measured.
#[derive(Debug, Default)]
pub(crate) struct Report {
    measured: Vec<Measured>,
    skipped: Vec<(Case, String)>,
}

impl Report {
    pub(crate) fn add(&mut self, measured: Measured) {
        self.measured.push(measured);
    }

    pub(crate) fn skip(&mut self, case: Case, reason: String) {
        self.skipped.push((case, reason));
    }

    /// How many times as long the real servers take as `setpoint dev --nodes hollow`, by medians.
    fn ratio(&self) -> Option<f64> {
        let median = |case| self.measured.iter().find(|measured| measured.case == case).map(|it| it.median);
        Some(median(Case::KubeApiserver)?.as_secs_f64() / median(Case::HollowNodes)?.as_secs_f64())
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut table = format!(
            "{:<52} {:>5} {:>10} {:>10} {:>10} {:>8}\n",
            "milliseconds", "runs", "median", "fastest", "slowest", "target"
        );
        // Writing into a String cannot fail.
        for it in &self.measured {
            let target = it.case.target().map(|target| format!("< {}", target.as_millis()));
            let _ = writeln!(
                table,
                "{:<52} {:>5} {:>10.1} {:>10.1} {:>10.1} {:>8} {}",
                it.case.title(),
                it.runs,
                milliseconds(it.median),
                milliseconds(it.fastest),
                milliseconds(it.slowest),
                target.unwrap_or_default(),
                it.verdict()
            );
        }
        if let Some(ratio) = self.ratio() {
            let _ = writeln!(
                table,
                "etcd and kube-apiserver take {ratio:.0} times as long as setpoint dev --nodes hollow"
            );
        }
        for (case, reason) in &self.skipped {
            let _ = writeln!(table, "skipped: {}: {reason}", case.title());
        }
        table
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let cores = std::thread::available_parallelism().map(usize::from).ok();
        let results = self.measured.iter().map(|it| {
            json!({
                "name": name(it.case),
                "runs": it.runs,
                "median_milliseconds": milliseconds(it.median),
                "fastest_milliseconds": milliseconds(it.fastest),
                "slowest_milliseconds": milliseconds(it.slowest),
                "target_milliseconds": it.case.target().map(milliseconds),
            })
        });
        let skipped: Vec<_> = self
            .skipped
            .iter()
            .map(|(case, reason)| json!({"name": name(*case), "reason": reason}))
            .collect();
        json!({"cores": cores, "results": results.collect::<Vec<_>>(), "kube_apiserver_ratio": self.ratio(), "skipped": skipped})
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn name(case: Case) -> String {
    case.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
