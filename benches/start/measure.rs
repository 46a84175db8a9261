use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;

use crate::case::Case;
use crate::failure::Failure;

/// A point in the machine's own time: the cases' clocks may be paused.
pub(crate) struct Stopwatch(std::time::Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    pub(crate) fn start() -> Self {
        Self(std::time::Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// The times of `runs` runs, sorted.
pub(crate) fn times(
    runs: u32,
    mut run: impl FnMut() -> Result<Duration, Failure>,
) -> Result<Vec<Duration>, Failure> {
    let mut times = (0..runs).map(|_| run()).collect::<Result<Vec<_>, _>>()?;
    times.sort_unstable();
    Ok(times)
}

/// How long `case` takes in a runtime like that of `#[tokio::test(start_paused = true)]`, the runtime's own making included.
pub(crate) fn in_test<F, R>(case: F) -> Result<Duration, Failure>
where
    F: FnOnce() -> R,
    R: Future<Output = Result<(), Failure>>,
{
    let watch = Stopwatch::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.map_err(Failure::io("make a runtime"))?.block_on(async {
        case().await?;
        Ok(watch.elapsed())
    })
}

/// Runs `case` once in a new process of this program, where nothing is cached yet.
pub(crate) fn in_new_process(case: Case) -> Result<Duration, Failure> {
    let program = std::env::current_exe().map_err(Failure::io("find this program"))?;
    let name = case.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let output = Command::new(program).args(["--once", &name]).output();
    let output = output.map_err(Failure::io("start this program again"))?;
    let nanoseconds = String::from_utf8_lossy(&output.stdout).trim().parse();
    nanoseconds.map(Duration::from_nanos).map_err(|_| {
        Failure::Refused(format!("{}: {}", case.title(), String::from_utf8_lossy(&output.stderr).trim()))
    })
}
