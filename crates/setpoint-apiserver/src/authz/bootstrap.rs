//! The roles and bindings that a fresh cluster has.

use serde_json::Value;

/// The roles and bindings that Kubernetes creates at its start (`cluster-admin`, `admin`, `edit`, `view`, `system:discovery`, …), with those
/// of its own controllers: charts and operators refer to some of them.
pub fn policy() -> Vec<Value> {
    // A line that doesn't parse can't get here: a test reads them all.
    setpoint_kinds::bootstrap_policy().filter_map(|line| serde_json::from_str(line).ok()).collect()
}
