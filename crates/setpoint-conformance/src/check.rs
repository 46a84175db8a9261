//! Records a whole suite, or compares a server with what is recorded.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use serde_json::to_value;

use crate::case::Suite;
use crate::compare::{Difference, differences};
use crate::recording::{Recording, RecordingError};
use crate::run::{Outcome, Recorded, run};
use crate::server::Server;

/// How a server did in one case.
#[derive(Clone, Debug)]
pub struct Report {
    /// `topic/case`.
    pub name: String,
    /// By step, the action and what differs.
    pub different: Vec<(String, Vec<Difference>)>,
    /// Why the case could not be run or compared to its end.
    pub broken: Option<String>,
}

impl Report {
    /// Whether every answer was as recorded.
    pub fn passed(&self) -> bool {
        self.different.is_empty() && self.broken.is_none()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "── {}", self.name)?;
        for (action, differences) in &self.different {
            writeln!(f, "{action}")?;
            for difference in differences {
                writeln!(f, " {difference}")?;
            }
        }
        if let Some(broken) = &self.broken {
            writeln!(f, "{broken}")?;
        }
        Ok(())
    }
}

/// Sends the cases whose `topic/case` contains `only` to `server` and compares its answers with the recorded ones.
/// `run` makes this run's names unique on the server.
///
/// # Errors
/// When a recording cannot be read.
pub async fn check(
    server: &Server,
    suite: &Suite,
    folder: &Path,
    only: &str,
    unique: &str,
) -> Result<Vec<Report>, RecordingError> {
    let mut reports = Vec::new();
    for topic in &suite.topics {
        let recording = Recording::load(folder, &topic.name)?;
        for case in &topic.cases {
            let name = format!("{}/{}", topic.name, case.name);
            if name.contains(only) {
                let outcome = run(server, &suite.volatile, &name, case, unique).await;
                reports.push(report(name, recording.cases.get(&case.name), outcome));
            }
        }
    }
    Ok(reports)
}

fn report(name: String, recorded: Option<&Vec<Recorded>>, outcome: Outcome) -> Report {
    let mut different = Vec::new();
    let Some(recorded) = recorded else {
        return Report {
            name,
            different,
            broken: Some("it is not recorded: make conformance-record".to_owned()),
        };
    };
    for (expected, got) in recorded.iter().zip(&outcome.answers) {
        let (Ok(left), Ok(right)) = (to_value(expected), to_value(got)) else { continue };
        let found = differences(&left, &right);
        if !found.is_empty() {
            different.push((got.action.clone(), found));
        }
    }
    let broken = outcome.broken.or_else(|| {
        (recorded.len() != outcome.answers.len())
            .then(|| "its steps are not those of the recording: make conformance-record".to_owned())
    });
    Report { name, different, broken }
}

/// Sends the cases whose `topic/case` contains `only` to `server` and writes its answers to `folder`. Recordings of cases that don't
/// exist any more go. Gives a line for each case that could not be run to its end, which then keeps its old recording.
///
/// # Errors
/// When a recording cannot be read or written.
pub async fn record(
    server: &Server,
    suite: &Suite,
    folder: &Path,
    only: &str,
    unique: &str,
) -> Result<Vec<String>, RecordingError> {
    let mut broken = Vec::new();
    for topic in &suite.topics {
        let mut recording = Recording::load(folder, &topic.name)?;
        let known: BTreeSet<&str> = topic.cases.iter().map(|case| case.name.as_str()).collect();
        recording.cases.retain(|name, _| known.contains(name.as_str()));
        for case in &topic.cases {
            let name = format!("{}/{}", topic.name, case.name);
            if !name.contains(only) {
                continue;
            }
            let outcome = run(server, &suite.volatile, &name, case, unique).await;
            match outcome.broken {
                Some(error) => broken.push(format!("{name}: {error}")),
                None => drop(recording.cases.insert(case.name.clone(), outcome.answers)),
            }
        }
        recording.save(folder, &topic.name)?;
    }
    Ok(broken)
}
