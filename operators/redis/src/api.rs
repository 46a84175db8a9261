//! The `RedisCluster` resource: version v1, which is stored and which the operator works with, and the older ones,
//! which are converted to and from it.

mod convert;
mod policy;
mod status;
mod v1;
pub mod v1alpha1;
pub mod v1beta1;

use setpoint::Versions;

pub use policy::MaxmemoryPolicy;
pub use status::{Phase, RedisClusterStatus};
pub use v1::{
    Amounts, Failover, Mode, OperatorChanges, PrimaryUpdate, Reclaim, RedisCluster, RedisClusterSpec,
    RedisConfig, Resources, ScaleDown, Scheduling, Storage, Update, WritePolicy, Writes,
};

/// All versions: every one is served, v1 is stored.
pub fn versions() -> Versions<RedisCluster> {
    Versions::hub().spoke::<v1beta1::RedisCluster>().spoke::<v1alpha1::RedisCluster>()
}

/// The finalizer that the operator puts on each `RedisCluster`.
pub const FINALIZER: &str = "cache.example.com/finalizer";

/// Annotation: `"true"` makes the operator observe and report only.
pub const PAUSED: &str = "cache.example.com/paused";

/// Annotation: the UID of a pod that a human has found to be dead; the operator takes it as proof.
pub const CONFIRM_DOWN: &str = "cache.example.com/confirm-down";

/// Annotation: the name of the pod whose data a human chose where several disagree.
pub const CHOOSE_PRIMARY: &str = "cache.example.com/choose-primary";

/// Annotation: `"true"` lets the operator start empty again after all data was lost.
pub const ACCEPT_DATA_LOSS: &str = "cache.example.com/accept-data-loss";

/// Annotation: the name of the pod that is to be the primary. The operator removes it when that is so, or when it
/// cannot be.
pub const SWITCHOVER: &str = "cache.example.com/switchover";

/// Annotation: `"true"` lets `spec.size` be lowered in v1alpha1, which has no field for that.
pub const ALLOW_SCALE_DOWN: &str = "cache.example.com/allow-scale-down";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_custom_resource_definition_is_pinned() {
        let mut crd = serde_json::to_value(versions().crd().unwrap()).unwrap();
        // The types of Kubernetes' own pod fields are not ours to review.
        let scheduling =
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/scheduling/properties";
        for field in ["affinity", "tolerations", "topologySpreadConstraints"] {
            crd.pointer_mut(scheduling).unwrap()[field] = "as in pods".into();
        }
        insta::assert_json_snapshot!(crd);
    }
}
