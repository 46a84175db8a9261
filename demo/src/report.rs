//! What the demo tells: a line for each step with its time, a progress line while it waits, a table at the
//! end and the same figures as JSON.

use std::fs;
use std::future::Future;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use futures::future::{Either, select};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::failure::Failure;

/// How often the line of progress is looked at.
const TICK: Duration = Duration::from_secs(1);

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
    /// The figures as people read them.
    figures: Vec<String>,
    transcript: Vec<String>,
}

/// Prints a line. A reader that has gone away is no reason to end.
pub(crate) fn print_line(text: &str) {
    drop(writeln!(std::io::stdout(), "{text}"));
}

impl Narrator {
    pub(crate) fn new() -> Self {
        let report = Report { ok: true, ..Report::default() };
        Self { started: Instant::now(), report, figures: Vec::new(), transcript: Vec::new() }
    }

    /// Prints a line and keeps it.
    pub(crate) fn say(&mut self, text: &str) {
        print_line(text);
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

    /// Keeps a measured figure under the name that it has in the file.
    pub(crate) fn figure(&mut self, name: &str, value: f64) {
        self.report.figures.insert(name.to_owned(), value);
    }

    /// Keeps a figure for the end of the table.
    pub(crate) fn note(&mut self, figure: String) {
        self.figures.push(figure);
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
        if !self.figures.is_empty() {
            table.push(String::new());
            table.append(&mut self.figures);
        }
        self.say(&table.join("\n"));
        let json = serde_json::to_vec_pretty(&self.report)?;
        fs::write(file, json).map_err(|source| Failure::file(file, source))?;
        print_line(&format!("\nThe same figures are in {}.", file.display()));
        Ok(self.report.ok)
    }
}

/// Makes sure that a file can be written at the end; what is in it stays till then.
pub(crate) fn check_writable(path: &Path, option: &'static str) -> Result<(), Failure> {
    let new = !path.exists();
    let opened = path
        .parent()
        .filter(|folder| !folder.exists())
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::OpenOptions::new().append(true).create(true).open(path))
        .and_then(|_| if new { fs::remove_file(path) } else { Ok(()) });
    opened.map_err(|source| Failure::Unwritable { path: path.to_owned(), option, source })
}

/// Runs `work`, with a line that says what begins, and then counts the seconds.
async fn with_progress<T>(name: &str, work: impl Future<Output = T>) -> T {
    let terminal = std::io::stdout().is_terminal();
    let started = Instant::now();
    let mut work = Box::pin(work);
    let mut shown = None;
    loop {
        let seconds = started.elapsed().as_secs();
        // A line that stays is for every so many seconds only.
        if shown.is_none_or(|shown| seconds >= shown + if terminal { 1 } else { 5 }) {
            shown = Some(seconds);
            show(terminal, &format!("… {seconds:>4} s  {name}"));
        }
        match select(work, Box::pin(sleep(TICK))).await {
            Either::Left((value, _)) => {
                if terminal {
                    show(terminal, "");
                }
                return value;
            }
            Either::Right(((), unfinished)) => work = unfinished,
        }
    }
}

/// Shows a line of progress: on a terminal in place of the one before.
fn show(terminal: bool, line: &str) {
    let mut out = std::io::stdout();
    let shown = if terminal { write!(out, "\r\x1b[K{line}") } else { writeln!(out, "{line}") };
    // A reader that has gone away is no reason to end.
    drop(shown.and_then(|()| out.flush()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_is_named_with_its_option() {
        let folder = std::env::temp_dir().join(format!("setpoint-demo-test-{}", std::process::id()));
        let file = folder.join("new/report.json");
        check_writable(&file, "--report").unwrap();
        assert!(!file.exists(), "it is written at the end");
        fs::write(&file, "old").unwrap();
        check_writable(&file, "--report").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"old");
        for wrong in [file.join("below"), folder.clone()] {
            let error = check_writable(&wrong, "--picture").unwrap_err().to_string();
            let start = format!("cannot write {}: ", wrong.display());
            assert!(error.starts_with(&start) && error.ends_with("with --picture"), "{error}");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
