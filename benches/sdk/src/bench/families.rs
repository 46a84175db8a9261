use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::PostParams;
use setpoint_bench_sdk::{family, monotonic_nanoseconds};

use super::Failure;
use super::cluster::Cluster;
use super::operator::Operator;
use super::samples::{Measure, Samples, quantile};
use crate::{Contender, Options};

/// Between two new objects.
const PAUSE: Duration = Duration::from_millis(20);

/// An operator that finds all families without children; new objects come meanwhile. Then a new one that finds them settled.
pub(crate) async fn measure(
    contender: Contender,
    options: &Options,
    samples: &mut Samples,
) -> Result<(), Failure> {
    let families = u64::from(options.families);
    let cluster = Cluster::start(options.server).await?;
    let mut operator = Operator::start(contender, &cluster)?;
    operator.ready().await?;
    let empty = operator.memory()?;
    drop(operator);
    let each = |memory: u64, objects: u64| memory.saturating_sub(empty) as f64 / 1024.0 / objects as f64;

    cluster.create(0..options.families).await?;
    let mut operator = Operator::start(contender, &cluster)?;
    operator.reconciled(1).await?;
    let mut probes = Vec::new();
    while operator.read().await?.stats.reconciles < families {
        let name = format!("probe-{}", probes.len());
        cluster.clusters().create(&PostParams::default(), &family::cluster(&name)).await?;
        probes.push((name, monotonic_nanoseconds()));
        tokio::time::sleep(PAUSE).await;
    }
    let objects = families + probes.len() as u64;
    operator.quiet(objects).await?;
    samples.add(contender, Measure::FamilyGrown, each(operator.memory()?, objects));
    let mut starts = BTreeMap::new();
    for start in operator.starts() {
        starts.entry(start.name.as_str()).or_insert(start.at);
    }
    let mut waits = Vec::new();
    for (name, answered) in &probes {
        let at = starts
            .get(name.as_str())
            .ok_or_else(|| Failure::Refused(format!("{name} was never reconciled")))?;
        waits.push(at.saturating_sub(*answered) as f64 / 1e6);
    }
    waits.sort_by(f64::total_cmp);
    samples.add(contender, Measure::NewMedian, quantile(&waits, 0.5));
    samples.add(contender, Measure::NewHigh, quantile(&waits, 0.99));
    drop(operator);

    let mut operator = Operator::start(contender, &cluster)?;
    operator.quiet(objects).await?;
    samples.add(contender, Measure::Family, each(operator.memory()?, objects));
    Ok(())
}
