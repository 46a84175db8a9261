//! The part of an operator's life that only the leader has: controllers and leading tasks, term after term.

use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{Either, select};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Task;
use super::lifecycle::{OperatorError, Running, drain, first_failure};
use crate::election::{Campaign, Ended};
use crate::{AnyController, Result, Runtime};

/// What the leader runs.
pub(super) struct Work {
    pub(super) controllers: Vec<AnyController>,
    pub(super) tasks: Vec<Task>,
    pub(super) runtime: Runtime,
}

/// A lease that is being renewed in the background, until it is lost or given back.
pub(super) struct Tenure {
    renewing: JoinHandle<(Campaign, Ended)>,
    release: CancellationToken,
}

/// Works until `shutdown`, if there is an election in each term that is won; then drains. Gives what holds
/// the lease, to be given back when nothing is written any more.
///
/// # Errors
/// If a controller or task fails, one of `always`, or leadership is lost and `stands_by` is not set.
pub(super) async fn run(
    work: &Work,
    campaign: Option<Campaign>,
    stands_by: bool,
    always: &mut Running,
    mut shutdown: Pin<&mut (impl Future<Output = ()> + Send)>,
) -> (Option<Tenure>, Result<(), OperatorError>) {
    let Some(mut campaign) = campaign else {
        let (_, outcome) = work.term(always, shutdown, std::future::pending::<()>()).await;
        return (None, outcome);
    };
    let mut warming = work.warm();
    loop {
        let end = {
            let ended = pin!(end(shutdown.as_mut(), &mut warming, always));
            match select(pin!(campaign.win()), ended).await {
                Either::Left(((), _)) => None,
                Either::Right((end, _)) => Some(end),
            }
        };
        if let Some(outcome) = end {
            return (None, outcome);
        }
        let mut tenure = Tenure::hold(campaign);
        let (lost, outcome) = work.term(always, shutdown.as_mut(), tenure.lost()).await;
        let Some(back) = lost else { return (Some(tenure), outcome) };
        if !stands_by {
            return (None, Err(OperatorError::LeadershipLost));
        }
        campaign = back;
    }
}

impl Work {
    /// Fills the caches of all controllers. What waits for its start goes on waiting.
    fn warm(&self) -> Running {
        let mut warming = Running::new();
        for controller in &self.controllers {
            let name = format!("controller {}", controller.name());
            let warm = AssertUnwindSafe(controller.warm(self.runtime.clone())).catch_unwind();
            warming.spawn(warm.map(|result| (name, result)));
        }
        warming
    }

    fn start(&self, stop: &CancellationToken) -> Running {
        let mut running = Running::new();
        for controller in &self.controllers {
            let name = format!("controller {}", controller.name());
            let run = controller.start(self.runtime.clone(), stop.clone());
            running.spawn(AssertUnwindSafe(run).catch_unwind().map(|result| (name, result)));
        }
        for task in &self.tasks {
            let name = format!("task {}", task.name);
            let run = (task.run)(self.runtime.clone(), stop.clone());
            let run = within_grace(run, stop.clone(), self.runtime.grace(), name.clone());
            running.spawn(AssertUnwindSafe(run).catch_unwind().map(|result| (name, result)));
        }
        running
    }

    /// One term: until `shutdown` or a failure, and then the drain; or until it is lost, when everything is
    /// dropped at once. Gives what `lost` gave, if it was lost.
    async fn term<L>(
        &self,
        always: &mut Running,
        shutdown: Pin<&mut (impl Future<Output = ()> + Send)>,
        lost: impl Future<Output = L> + Send,
    ) -> (Option<L>, Result<(), OperatorError>) {
        let stop = CancellationToken::new();
        let mut running = self.start(&stop);
        tracing::info!(controllers = self.controllers.len(), "started");
        let mut lost = pin!(lost);
        let ended = {
            let end = pin!(end(shutdown, &mut running, always));
            match select(lost.as_mut(), end).await {
                Either::Left((given, _)) => Either::Left(given),
                Either::Right((outcome, _)) => Either::Right(outcome),
            }
        };
        let outcome = match ended {
            Either::Left(given) => {
                running.shutdown().await;
                return (Some(given), Ok(()));
            }
            Either::Right(outcome) => outcome,
        };
        tracing::info!("stopping");
        // Controllers keep the grace themselves: sources stop, nothing new starts, running reconciles end.
        stop.cancel();
        let drained = {
            let drained = pin!(drain(&mut running));
            match select(lost, drained).await {
                Either::Left((given, _)) => Either::Left(given),
                Either::Right((drained, _)) => Either::Right(drained),
            }
        };
        match drained {
            Either::Left(given) => {
                running.shutdown().await;
                (Some(given), outcome)
            }
            Either::Right(drained) => (None, outcome.and(drained)),
        }
    }
}

impl Tenure {
    fn hold(mut campaign: Campaign) -> Self {
        let release = CancellationToken::new();
        let until = release.clone();
        let renewing = tokio::spawn(async move {
            let ended = campaign.hold(&until).await;
            (campaign, ended)
        });
        Self { renewing, release }
    }

    /// Waits until the lease is lost.
    async fn lost(&mut self) -> Campaign {
        match (&mut self.renewing).await {
            Ok((campaign, _)) => campaign,
            // Nothing aborts it, and it has nothing that panics; time has shut the fence if it did.
            Err(_) => std::future::pending().await,
        }
    }

    /// Gives the lease back.
    pub(super) async fn release(mut self) {
        self.release.cancel();
        let _ = (&mut self.renewing).await;
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

/// The shutdown, or the first failure. In this order when both are there.
async fn end(
    shutdown: Pin<&mut (impl Future<Output = ()> + Send)>,
    running: &mut Running,
    always: &mut Running,
) -> Result<(), OperatorError> {
    match select(shutdown, pin!(first_failure(running, always))).await {
        Either::Left(((), _)) => Ok(()),
        Either::Right((failure, _)) => Err(failure),
    }
}

/// Runs a task until it ends, at most so long after the stop.
async fn within_grace(
    task: impl Future<Output = Result<()>>,
    stop: CancellationToken,
    grace: Duration,
    name: String,
) -> Result<()> {
    let late = pin!(async {
        stop.cancelled().await;
        tokio::time::sleep(grace).await;
    });
    match select(pin!(task), late).await {
        Either::Left((result, _)) => result,
        Either::Right(_) => {
            tracing::warn!("{name} did not end within the grace and was dropped");
            Ok(())
        }
    }
}
