use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Identity, PORT, ROLE, Role};
use crate::settings::Settings;

/// The three Services: `name` leads to the primary, `name-ro` to the replicas, and the headless
/// `name-nodes` gives every pod a name of its own, ready or not.
pub fn services(identity: &Identity) -> [Service; 3] {
    let by_role = |name: String, role: Role| {
        let mut selector = identity.selector();
        selector.insert(ROLE.to_owned(), role.as_str().to_owned());
        service(identity, name, ServiceSpec { selector: Some(selector), ..ServiceSpec::default() })
    };
    [
        by_role(identity.name.clone(), Role::Primary),
        by_role(identity.child("ro"), Role::Replica),
        service(
            identity,
            identity.child("nodes"),
            ServiceSpec {
                selector: Some(identity.selector()),
                cluster_ip: Some("None".to_owned()),
                publish_not_ready_addresses: Some(true),
                ..ServiceSpec::default()
            },
        ),
    ]
}

fn service(identity: &Identity, name: String, spec: ServiceSpec) -> Service {
    let port = ServicePort {
        name: Some("redis".to_owned()),
        port: i32::from(PORT),
        protocol: Some("TCP".to_owned()),
        target_port: Some(IntOrString::String("redis".to_owned())),
        ..ServicePort::default()
    };
    Service {
        metadata: identity.metadata(name),
        spec: Some(ServiceSpec { ports: Some(vec![port]), ..spec }),
        ..Service::default()
    }
}

/// One budget over all pods: the eviction API refuses a pod that two budgets select, and one pod at a time
/// keeps the primary's replicas. None for a single server, which would block every drain for ever.
pub fn disruption_budget(identity: &Identity, settings: &Settings) -> Option<PodDisruptionBudget> {
    (settings.size > 1).then(|| PodDisruptionBudget {
        metadata: identity.metadata(identity.name.clone()),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(LabelSelector {
                match_labels: Some(identity.selector()),
                ..LabelSelector::default()
            }),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    })
}
