use std::time::Duration;

use crate::contender::{Contender, EMBEDDED, KUBE};
use crate::failure::Failure;
use crate::samples::{Measure, Samples, milliseconds};

/// What a server does after its start is done by then.
const SETTLED: Duration = Duration::from_secs(5);

/// Starts both in turn; measures the memory of the last one of each at rest.
pub(crate) async fn measure(rounds: u32, real: bool, samples: &mut Samples) -> Result<(), Failure> {
    for round in 0..rounds {
        let (embedded, time) = Contender::embedded(None).await?;
        samples.add(EMBEDDED, Measure::Boot, milliseconds(time));
        let kube = if real { Some(Contender::kube_apiserver().await?) } else { None };
        if let Some((_, time)) = &kube {
            samples.add(KUBE, Measure::Boot, milliseconds(*time));
        }
        if round + 1 == rounds {
            tokio::time::sleep(SETTLED).await;
            for contender in [Some(&embedded), kube.as_ref().map(|(kube, _)| kube)].into_iter().flatten() {
                samples.add(contender.name, Measure::Rest, contender.memory() as f64 / f64::from(1 << 20));
            }
        }
    }
    Ok(())
}
