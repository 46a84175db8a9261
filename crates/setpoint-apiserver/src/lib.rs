//! An API server that behaves as Kubernetes does, inside one process
