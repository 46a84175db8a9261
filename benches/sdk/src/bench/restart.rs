use super::Failure;
use super::cluster::Cluster;
use super::operator::Operator;
use super::samples::{Measure, Samples};
use crate::{Contender, Options};

/// Starts the operator on families that an earlier life of it has settled.
pub(crate) async fn measure(
    contender: Contender,
    options: &Options,
    samples: &mut Samples,
) -> Result<(), Failure> {
    let families = options.families / 2;
    let cluster = Cluster::start(options.server).await?;
    cluster.create(0..families).await?;
    let mut first = Operator::start(contender, &cluster)?;
    first.quiet(u64::from(families)).await?;
    drop(first);
    for _ in 0..options.rounds {
        let mut operator = Operator::start(contender, &cluster)?;
        operator.reconciled(u64::from(families)).await?;
        samples.add(contender, Measure::Restart, operator.begun.elapsed().as_secs_f64());
        let done = operator.quiet(u64::from(families)).await?;
        samples.add(contender, Measure::RestartTime, done.processor.as_secs_f64());
        samples.add(contender, Measure::RestartWrites, done.stats.writes as f64);
    }
    Ok(())
}
