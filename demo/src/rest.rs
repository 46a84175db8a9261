//! What cluster and operator cost while nothing happens.

use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::failure::Failure;
use crate::stage::Stage;

/// How long after the last change the cluster is at rest.
pub(crate) const CALM: Duration = Duration::from_secs(12);

/// Measures this process (API server, controllers, kubelet and operator; not the servers) for `during`.
pub(crate) async fn measure(
    stage: &Stage,
    during: Duration,
) -> Result<(Vec<(&'static str, f64)>, String), Failure> {
    sleep(CALM).await;
    let revision = stage.revision();
    let cpu = cpu_seconds()?;
    let started = Instant::now();
    sleep(during).await;
    let percent = (cpu_seconds()? - cpu) / started.elapsed().as_secs_f64() * 100.0;
    let writes = stage.revision() - revision;
    let resident = resident_mebibytes()?;
    let outcome = format!(
        "{resident:.0} MiB resident, {percent:.2} % of a core, {writes} writes in {} s, without the servers",
        during.as_secs()
    );
    let figures = vec![
        ("rest_resident_mebibytes", resident),
        ("rest_core_percent", percent),
        ("rest_writes_count", writes as f64),
    ];
    Ok((figures, outcome))
}

fn read(path: &str) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|source| Failure::file(Path::new(path), source))
}

fn resident_mebibytes() -> Result<f64, Failure> {
    let status = read("/proc/self/status")?;
    let kibibytes = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|value| value.split_whitespace().next()?.parse::<f64>().ok());
    kibibytes
        .map(|kibibytes| kibibytes / 1024.0)
        .ok_or_else(|| Failure::Broken("/proc/self/status has no VmRSS".to_owned()))
}

/// User and system time of this process, without its children.
fn cpu_seconds() -> Result<f64, Failure> {
    // The kernel's clock ticks of /proc are 100 a second on every Linux architecture (USER_HZ).
    const TICKS: f64 = 100.0;
    let stat = read("/proc/self/stat")?;
    // The second field is the program's name in parentheses and may hold blanks: times are fields 14 and 15.
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: Option<f64> =
        (|| Some(fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?))();
    ticks
        .map(|ticks| ticks / TICKS)
        .ok_or_else(|| Failure::Broken("/proc/self/stat is unreadable".to_owned()))
}
