//! The tables of the kinds.

use super::rules::{
    Check::{
        AtMost, Fixed, FixedUnshown, Kept, Labels, Name, NoMoreThan, NotNegative, OneOf, OneOfTexts,
        Positive, Qualified, Quantity, Required, Selector,
    },
    Rule,
};
use crate::object_meta::NameRule::{Label, PathSegment, Subdomain};

const NOT_OVER: &str = "cannot be greater than status.replicas";
const NOT_OVER_READY: &str = "cannot be greater than readyReplicas";
const METRIC: &str = "must specify a metric name";

/// What is checked of the objects of a kind, field by field.
pub fn object(group: &str, kind: &str) -> &'static [Rule] {
    match (group, kind) {
        ("coordination.k8s.io", "Lease") => &[
            ("spec.leaseDurationSeconds", Positive("must be greater than 0")),
            ("spec.leaseTransitions", NotNegative),
        ],
        ("node.k8s.io", "RuntimeClass") => &[
            ("handler", Required("")),
            ("handler", Name(Label)),
            ("handler", FixedUnshown),
            ("scheduling.nodeSelector", Labels),
        ],
        ("scheduling.k8s.io", "PriorityClass") => {
            &[("value", Kept("may not be changed in an update.")), ("preemptionPolicy", Fixed)]
        }
        ("networking.k8s.io", "IngressClass") => &[
            ("spec.controller", Required("")),
            ("spec.controller", Fixed),
            ("spec.parameters?.kind", Required("")),
            ("spec.parameters.kind", Name(PathSegment)),
            ("spec.parameters?.name", Required("")),
            ("spec.parameters.name", Name(PathSegment)),
            ("spec.parameters.apiGroup", Name(Subdomain)),
            ("spec.parameters.scope", OneOf(&["Cluster", "Namespace"])),
        ],
        ("storage.k8s.io", "StorageClass") => &[
            ("provisioner", Required("")),
            ("provisioner", FixedUnshown),
            ("parameters", FixedUnshown),
            ("reclaimPolicy", OneOfTexts(&["Delete", "Retain"])),
            ("reclaimPolicy", FixedUnshown),
            ("volumeBindingMode", OneOf(&["Immediate", "WaitForFirstConsumer"])),
            ("volumeBindingMode", FixedUnshown),
        ],
        ("storage.k8s.io", "CSIDriver") => &[
            ("spec.fsGroupPolicy", OneOf(&["File", "None", "ReadWriteOnceWithFSType"])),
            ("spec.attachRequired", Fixed),
        ],
        ("storage.k8s.io", "CSINode") => &[
            ("spec.drivers[].name", Required("")),
            ("spec.drivers[].name", Name(Subdomain)),
            ("spec.drivers[].nodeID", Required("")),
            ("spec.drivers[].allocatable.count", NotNegative),
        ],
        ("storage.k8s.io", "VolumeAttachment") => &[
            ("spec.attacher", Required("")),
            ("spec.attacher", Name(Subdomain)),
            ("spec.nodeName", Required("")),
            ("spec.nodeName", Name(Subdomain)),
            ("spec", FixedUnshown),
        ],
        ("storage.k8s.io", "CSIStorageCapacity") => &[
            ("storageClassName", Required("")),
            ("storageClassName", Name(Subdomain)),
            ("storageClassName", Fixed),
            ("nodeTopology", Selector),
            ("nodeTopology", Fixed),
            ("capacity", Quantity),
        ],
        ("storage.k8s.io", "VolumeAttributesClass") => &[
            ("driverName", Required("")),
            ("driverName", Kept("updates to driverName are forbidden.")),
            ("parameters", Kept("updates to parameters are forbidden.")),
        ],
        ("apps", "ControllerRevision") => {
            &[("data", Required("data is mandatory")), ("revision", NotNegative), ("data", Fixed)]
        }
        ("autoscaling", "HorizontalPodAutoscaler") => &[
            ("spec.scaleTargetRef.kind", Required("")),
            ("spec.scaleTargetRef.kind", Name(PathSegment)),
            ("spec.scaleTargetRef.name", Required("")),
            ("spec.scaleTargetRef.name", Name(PathSegment)),
            ("spec.behavior.scaleDown?.policies", Required("must specify at least one Policy")),
            ("spec.behavior.scaleDown.selectPolicy", OneOf(&["Disabled", "Max", "Min"])),
            ("spec.behavior.scaleUp.selectPolicy", OneOf(&["Disabled", "Max", "Min"])),
            ("spec.behavior.scaleUp?.policies", Required("must specify at least one Policy")),
            (
                "spec.behavior.scaleUp.stabilizationWindowSeconds",
                AtMost(3600, "must be less than or equal to 3600"),
            ),
            (
                "spec.behavior.scaleDown.stabilizationWindowSeconds",
                AtMost(3600, "must be less than or equal to 3600"),
            ),
            ("spec.behavior.scaleUp.policies[].type", OneOf(&["Percent", "Pods"])),
            ("spec.behavior.scaleDown.policies[].type", OneOf(&["Percent", "Pods"])),
            ("spec.behavior.scaleUp.policies[].value", Positive("must be greater than zero")),
            ("spec.behavior.scaleDown.policies[].value", Positive("must be greater than zero")),
            ("spec.behavior.scaleUp.policies[].periodSeconds", Positive("must be greater than zero")),
            ("spec.behavior.scaleDown.policies[].periodSeconds", Positive("must be greater than zero")),
            (
                "spec.behavior.scaleUp.policies[].periodSeconds",
                AtMost(1800, "must be less than or equal to 1800"),
            ),
            (
                "spec.behavior.scaleDown.policies[].periodSeconds",
                AtMost(1800, "must be less than or equal to 1800"),
            ),
            ("spec.metrics[].type", Required("must specify a metric source type")),
            ("spec.metrics[].resource?.name", Required("must specify a resource name")),
            ("spec.metrics[].containerResource?.name", Required("must specify a resource name")),
            ("spec.metrics[].containerResource?.container", Required("must specify a container")),
            ("spec.metrics[].pods?.metric.name", Required(METRIC)),
            ("spec.metrics[].pods.metric.name", Name(PathSegment)),
            ("spec.metrics[].external?.metric.name", Required(METRIC)),
            ("spec.metrics[].external.metric.name", Name(PathSegment)),
            ("spec.metrics[].object?.metric.name", Required(METRIC)),
            ("spec.metrics[].object.metric.name", Name(PathSegment)),
            ("spec.metrics[].object?.describedObject.kind", Required("")),
            ("spec.metrics[].object.describedObject.kind", Name(PathSegment)),
            ("spec.metrics[].object?.describedObject.name", Required("")),
            ("spec.metrics[].object.describedObject.name", Name(PathSegment)),
        ],
        _ => &[],
    }
}

/// What is checked of a status, field by field.
pub fn status(group: &str, kind: &str) -> &'static [Rule] {
    match (group, kind) {
        ("apps", "Deployment") => &[
            ("status.observedGeneration", NotNegative),
            ("status.replicas", NotNegative),
            ("status.updatedReplicas", NotNegative),
            ("status.readyReplicas", NotNegative),
            ("status.availableReplicas", NotNegative),
            ("status.unavailableReplicas", NotNegative),
            ("status.terminatingReplicas", NotNegative),
            ("status.collisionCount", NotNegative),
            ("status.updatedReplicas", NoMoreThan("status.replicas", NOT_OVER)),
            ("status.readyReplicas", NoMoreThan("status.replicas", NOT_OVER)),
            ("status.availableReplicas", NoMoreThan("status.replicas", NOT_OVER)),
            ("status.availableReplicas", NoMoreThan("status.readyReplicas", NOT_OVER_READY)),
        ],
        ("apps", "ReplicaSet") | ("", "ReplicationController") => &[
            ("status.observedGeneration", NotNegative),
            ("status.replicas", NotNegative),
            ("status.fullyLabeledReplicas", NotNegative),
            ("status.readyReplicas", NotNegative),
            ("status.availableReplicas", NotNegative),
            ("status.terminatingReplicas", NotNegative),
            ("status.fullyLabeledReplicas", NoMoreThan("status.replicas", NOT_OVER)),
            ("status.readyReplicas", NoMoreThan("status.replicas", NOT_OVER)),
            ("status.availableReplicas", NoMoreThan("status.replicas", NOT_OVER)),
            ("status.availableReplicas", NoMoreThan("status.readyReplicas", NOT_OVER_READY)),
        ],
        ("apps", "StatefulSet") => &[
            ("status.observedGeneration", NotNegative),
            ("status.replicas", NotNegative),
            ("status.readyReplicas", NotNegative),
            ("status.currentReplicas", NotNegative),
            ("status.updatedReplicas", NotNegative),
            ("status.availableReplicas", NotNegative),
            ("status.collisionCount", NotNegative),
            ("status.readyReplicas", NoMoreThan("status.replicas", NOT_OVER)),
            ("status.currentReplicas", NoMoreThan("status.replicas", NOT_OVER)),
            ("status.updatedReplicas", NoMoreThan("status.replicas", NOT_OVER)),
            ("status.availableReplicas", NoMoreThan("status.replicas", NOT_OVER)),
            (
                "status.availableReplicas",
                NoMoreThan("status.readyReplicas", "cannot be greater than status.readyReplicas"),
            ),
        ],
        ("apps", "DaemonSet") => &[
            ("status.currentNumberScheduled", NotNegative),
            ("status.numberMisscheduled", NotNegative),
            ("status.desiredNumberScheduled", NotNegative),
            ("status.numberReady", NotNegative),
            ("status.observedGeneration", NotNegative),
            ("status.updatedNumberScheduled", NotNegative),
            ("status.numberAvailable", NotNegative),
            ("status.numberUnavailable", NotNegative),
            ("status.collisionCount", NotNegative),
        ],
        ("batch", "Job") => &[
            ("status.active", NotNegative),
            ("status.succeeded", NotNegative),
            ("status.failed", NotNegative),
            ("status.ready", NotNegative),
            ("status.terminating", NotNegative),
        ],
        ("policy", "PodDisruptionBudget") => &[
            ("status.disruptionsAllowed", NotNegative),
            ("status.currentHealthy", NotNegative),
            ("status.desiredHealthy", NotNegative),
            ("status.expectedPods", NotNegative),
        ],
        ("autoscaling", "HorizontalPodAutoscaler") => {
            &[("status.currentReplicas", NotNegative), ("status.desiredReplicas", NotNegative)]
        }
        ("", "Pod") => {
            &[("status.nominatedNodeName", Name(Subdomain)), ("status.conditions[].type", Qualified)]
        }
        _ => &[],
    }
}
