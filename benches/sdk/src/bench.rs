mod changes;
mod cluster;
mod failure;
mod families;
mod operator;
mod report;
mod restart;
mod samples;
mod serve;

pub(crate) use failure::Failure;
pub(crate) use report::{json, table};
pub(crate) use serve::serve;

use crate::{Contender, Options, Workload};
use samples::Samples;

/// All that `options` wants, each contender in turn.
pub(crate) async fn measure(options: &Options) -> Result<Samples, Failure> {
    let wanted = |workload| options.only.is_empty() || options.only.contains(&workload);
    let mut samples = Samples::default();
    for _ in 0..options.rounds {
        for contender in &options.operators {
            // Slim children change what a family takes.
            if wanted(Workload::Changes) && *contender != Contender::Slim {
                changes::measure(*contender, options, &mut samples).await?;
            }
        }
    }
    for contender in &options.operators {
        if wanted(Workload::Restart) {
            restart::measure(*contender, options, &mut samples).await?;
        }
        if wanted(Workload::Families) {
            families::measure(*contender, options, &mut samples).await?;
        }
    }
    Ok(samples)
}
