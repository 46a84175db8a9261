//! The demo: a real Redis cluster on a Kubernetes inside one process
