//! Facts about the kinds that are built into Kubernetes
