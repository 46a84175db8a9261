//! What the demo tells: a line for each step with its time, a progress line while it waits, a table at the
//! end and the same figures as JSON.

use std::future::Future;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use futures::future::{Either, select};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::failure::Failure;

/// A wait says that it waits when it takes longer than this.
const PROGRESS_AFTER: Duration = Duration::from_secs(1);

/// One finished step.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Step {
    /// What the step does, in a few words.
    pub(crate) name: String,
    /// Whether it did.
    pub(crate) ok: bool,
    /// From its start to its end.
    pub(crate) seconds: f64,
    /// What happened, or why it failed.
    pub(crate) outcome: String,
}

/// The document `target/demo.json`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Whether every step did what it should.
    pub(crate) ok: bool,
    /// The whole demo, from the first step to the last.
    pub(crate) seconds: f64,
    /// In the order in which they ran.
    pub(crate) steps: Vec<Step>,
    /// Measured on the way, by name; the unit is the name's last word.
    pub(crate) figures: std::collections::BTreeMap<String, f64>,
}

/// Prints the steps as they go and collects them.
pub(crate) struct Narrator {
    started: Instant,
    report: Report,
    transcript: Vec<String>,
}

impl Narrator {
    pub(crate) fn new() -> Self {
        let report = Report { ok: true, ..Report::default() };
        Self { started: Instant::now(), report, transcript: Vec::new() }
    }

    /// Prints a line and keeps it.
    pub(crate) fn say(&mut self, text: &str) {
        println!("{text}");
        self.transcript.extend(text.lines().map(str::to_owned));
    }

    /// All lines that stay on the terminal, without those that only tell of a wait.
    pub(crate) fn transcript(&self) -> &[String] {
        &self.transcript
    }

    /// Runs one step and says how it ended. After a failed step the caller stops.
    pub(crate) async fn step<T>(
        &mut self,
        name: &str,
        step: impl Future<Output = Result<(T, String), Failure>>,
    ) -> Result<T, Failure> {
        let started = Instant::now();
        let result = with_progress(name, step).await;
        let seconds = started.elapsed().as_secs_f64();
        let (ok, outcome) = match &result {
            Ok((_, outcome)) => (true, outcome.clone()),
            Err(failure) => (false, failure.to_string()),
        };
        let mark = if ok { "✔" } else { "✘" };
        self.say(&format!("{mark} {seconds:>6.2} s  {name}\n            {outcome}"));
        self.report.ok &= ok;
        self.report.steps.push(Step { name: name.to_owned(), ok, seconds, outcome });
        result.map(|(value, _)| value)
    }

    /// Keeps a measured figure.
    pub(crate) fn figure(&mut self, name: &str, value: f64) {
        self.report.figures.insert(name.to_owned(), value);
    }

    /// Prints the table and writes the JSON file. Says whether every step did what it should.
    pub(crate) fn finish(&mut self, file: &Path) -> Result<bool, Failure> {
        self.report.seconds = self.started.elapsed().as_secs_f64();
        let width = self.report.steps.iter().map(|step| step.name.chars().count()).max().unwrap_or(4).max(14);
        let mut table = vec![String::new(), format!("{:<width$}  {:>8}  result", "step", "seconds")];
        table.push(format!("{:-<width$}  {:->8}  ------", "", ""));
        for step in &self.report.steps {
            let result = if step.ok { "ok" } else { "FAILED" };
            table.push(format!("{:<width$}  {:>8.2}  {result}", step.name, step.seconds));
        }
        table.push(format!("{:<width$}  {:>8.2}", "the whole demo", self.report.seconds));
        table.push(String::new());
        table.extend(self.report.figures.iter().map(|(name, value)| format!("{name}: {value:.3}")));
        self.say(&table.join("\n"));
        let json = serde_json::to_vec_pretty(&self.report)?;
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder).map_err(|source| Failure::file(folder, source))?;
        }
        std::fs::write(file, json).map_err(|source| Failure::file(file, source))?;
        println!("\nThe same figures are in {}.", file.display());
        Ok(self.report.ok)
    }
}

/// Runs `work`, with a line that counts the seconds while it takes longer than [`PROGRESS_AFTER`].
async fn with_progress<T>(name: &str, work: impl Future<Output = T>) -> T {
    let terminal = std::io::stdout().is_terminal();
    let started = Instant::now();
    let mut work = Box::pin(work);
    loop {
        let tick = Box::pin(sleep(PROGRESS_AFTER));
        match select(work, tick).await {
            Either::Left((value, _)) => {
                if terminal {
                    print!("\r\x1b[K");
                }
                return value;
            }
            Either::Right(((), unfinished)) => {
                work = unfinished;
                let seconds = started.elapsed().as_secs();
                if terminal {
                    print!("\r\x1b[K… {seconds:>4} s  {name}");
                    drop(std::io::stdout().flush());
                } else if seconds.is_multiple_of(5) {
                    println!("… {seconds:>4} s  {name}");
                }
            }
        }
    }
}
