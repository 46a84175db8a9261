//! Managed fields: who owns which field, server-side apply and the tracking of other writes.

/// Fields of `metadata` that no manager ever owns: identity and bookkeeping (upstream: `stripMetaManager`).
pub(crate) const NEVER_OWNED_METADATA: [&str; 9] = [
    "clusterName",
    "creationTimestamp",
    "generation",
    "managedFields",
    "name",
    "namespace",
    "resourceVersion",
    "selfLink",
    "uid",
];
