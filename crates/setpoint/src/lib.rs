//! The SDK: what controller-runtime is to Go, on top of kube

mod client;
mod metrics;

pub use client::{DeadlineExceeded, RequestStack, RetryPolicy, Transport};
pub use metrics::{ControllerMetrics, Metrics, Outcome, Reconciling, ReflectorMetrics};
