//! Kubernetes object semantics as pure functions
