use std::time::Duration;

use crate::contender::Contender;
use crate::creates::{namespace, path};
use crate::failure::Failure;
use crate::samples::{Measure, Samples};

/// How many watch, and how many of them share a connection where some do.
const WATCHES: usize = 2000;
const SHARING: usize = 100;
/// How long nothing happens before memory is looked at, and then while processor time is measured.
const SETTLED: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(10);
const SPACE: &str = "watches";

/// Watches that nothing happens to: what one costs in memory, with a connection of its own and with a share of one, and what all of them cost in
/// processor time.
pub(crate) async fn measure(contender: &Contender, samples: &mut Samples) -> Result<(), Failure> {
    let mut connection = contender.connect().await?;
    namespace(&mut connection, SPACE).await?;
    let path = format!("{}?watch=true&allowWatchBookmarks=true", path(SPACE));
    let mut own = Vec::new();
    let before = contender.memory();
    for _ in 0..WATCHES {
        let mut connection = contender.connect().await?;
        connection.watch(&path).await?;
        own.push(connection);
    }
    tokio::time::sleep(SETTLED).await;
    samples.add(contender.name, Measure::Watch, each(contender, before));
    let busy = contender.processor_time();
    tokio::time::sleep(IDLE).await;
    let busy = contender.processor_time().saturating_sub(busy);
    samples.add(contender.name, Measure::WatchTime, busy.as_secs_f64() / IDLE.as_secs_f64() * 100.0);

    // The others stay: nothing is measured with memory that they gave back.
    let mut shared = Vec::new();
    let before = contender.memory();
    for _ in 0..WATCHES / SHARING {
        let mut connection = contender.multiplexed().await?;
        for _ in 0..SHARING {
            connection.watch(&path).await?;
        }
        shared.push(connection);
    }
    tokio::time::sleep(SETTLED).await;
    samples.add(contender.name, Measure::SharedWatch, each(contender, before));
    Ok(())
}

fn each(contender: &Contender, before: u64) -> f64 {
    contender.memory().saturating_sub(before) as f64 / WATCHES as f64 / 1024.0
}
