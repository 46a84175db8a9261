//! The SDK: what controller-runtime is to Go, on top of kube
