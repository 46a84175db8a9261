//! A real kube-apiserver with its etcd, to compare with.

use std::time::Duration;

use setpoint_test::ControlPlane;

use crate::failure::Failure;
use crate::measure::Stopwatch;

/// Why there is none here.
pub(crate) fn unavailable() -> Option<String> {
    ControlPlane::assets().err().map(|error| error.to_string())
}

/// From the start of etcd's process until kube-apiserver says that it is ready.
pub(crate) fn ready() -> Result<Duration, Failure> {
    let assets = ControlPlane::assets()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::io("make a runtime"))?;
    let watch = Stopwatch::start();
    let started = runtime.block_on(ControlPlane::start(&assets))?;
    let elapsed = watch.elapsed();
    drop(started);
    Ok(elapsed)
}
