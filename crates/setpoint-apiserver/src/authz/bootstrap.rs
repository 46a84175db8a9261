//! The roles and bindings that a fresh cluster has.

use serde_json::Value;

/// The cluster roles and bindings that Kubernetes creates at its start (`cluster-admin`, `admin`, `edit`, `view`, `system:discovery`, …), without
/// those of its own controllers, which are no users here.
pub fn policy() -> Vec<Value> {
    // A line that doesn't parse can't get here: a test reads them all.
    setpoint_kinds::bootstrap_policy().filter_map(|line| serde_json::from_str(line).ok()).collect()
}
