//! A pod's status as a function of its machine's state.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    HostIP, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::container::{ContainerMachine, Role, State, seconds};
use super::pod::PodMachine;

/// A condition that the kubelet owns.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    status: bool,
    reason: Option<&'static str>,
    message: Option<String>,
    since: Time,
}

/// Conditions by type in the order of upstream's output.
const CONDITIONS: [&str; 4] = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"];

impl PodMachine {
    /// What `status` should say, except for conditions of others. `host` is the node's address.
    pub fn status(&self, host: Option<&str>) -> PodStatus {
        let generation = self.pod.metadata.generation;
        let conditions = CONDITIONS.iter().filter_map(|type_| {
            let condition = self.conditions.get(type_)?;
            Some(PodCondition {
                type_: (*type_).into(),
                status: if condition.status { "True" } else { "False" }.into(),
                reason: condition.reason.map(Into::into),
                message: condition.message.clone(),
                last_transition_time: Some(condition.since.clone()),
                observed_generation: generation,
                ..PodCondition::default()
            })
        });
        let addresses: Vec<String> =
            self.sandbox().iter().flat_map(|sandbox| &sandbox.addresses).map(ToString::to_string).collect();
        let some = |statuses: Vec<ContainerStatus>| Some(statuses).filter(|statuses| !statuses.is_empty());
        let statuses = |init: bool| {
            let of_part = self.containers.iter().filter(|container| (container.role != Role::Main) == init);
            some(of_part.map(|container| self.container_status(container)).collect())
        };
        PodStatus {
            phase: Some(self.phase().into()),
            conditions: Some(conditions.collect()),
            observed_generation: generation,
            host_ip: host.map(Into::into),
            host_ips: host.map(|host| vec![HostIP { ip: host.into() }]),
            pod_ip: addresses.first().cloned(),
            pod_ips: Some(addresses.into_iter().map(|ip| PodIP { ip }).collect())
                .filter(|ips: &Vec<_>| !ips.is_empty()),
            start_time: Some(seconds(self.since)),
            container_statuses: statuses(false),
            init_container_statuses: statuses(true),
            ..PodStatus::default()
        }
    }

    fn container_status(&self, container: &ContainerMachine) -> ContainerStatus {
        let metadata = &self.pod.metadata;
        let pod = format!(
            "{}_{}",
            metadata.name.as_deref().unwrap_or_default(),
            metadata.namespace.as_deref().unwrap_or_default()
        );
        let back_off = container.back_off(&pod, metadata.uid.as_deref().unwrap_or_default());
        let waiting = |reason: &str, message: Option<String>| ContainerState {
            waiting: Some(ContainerStateWaiting { reason: Some(reason.into()), message }),
            ..ContainerState::default()
        };
        let terminated = |run: &ContainerStateTerminated| ContainerState {
            terminated: Some(run.clone()),
            ..ContainerState::default()
        };
        let mut last = container.last.clone();
        let (state, id) = match &container.state {
            State::Waiting { reason, message, .. } => (waiting(reason, message.clone()), None),
            State::Running { id, since } => {
                let running = ContainerStateRunning { started_at: Some(seconds(*since)) };
                (ContainerState { running: Some(running), ..ContainerState::default() }, Some(id.0.clone()))
            }
            State::Exited { run, .. } => match back_off {
                Some(message) => {
                    last = Some(run.clone());
                    (waiting("CrashLoopBackOff", Some(message)), run.container_id.clone())
                }
                None => (terminated(run), run.container_id.clone()),
            },
        };
        ContainerStatus {
            name: container.spec.name.clone(),
            image: container
                .image
                .as_ref()
                .map_or_else(|| container.spec.image.clone().unwrap_or_default(), |image| image.name.clone()),
            image_id: container.image.as_ref().map(|image| image.id.clone()).unwrap_or_default(),
            container_id: id.or_else(|| last.as_ref().and_then(|run| run.container_id.clone())),
            state: Some(state),
            last_state: Some(last.as_ref().map(terminated).unwrap_or_default()),
            ready: container.ready(),
            started: Some(container.started && container.running().is_some()),
            restart_count: i32::try_from(container.restarts).unwrap_or(i32::MAX),
            ..ContainerStatus::default()
        }
    }

    /// The rules of `getPhase` in `pkg/kubelet/kubelet_pods.go`.
    pub(super) fn phase(&self) -> &'static str {
        let of_role = |role| self.containers.iter().filter(move |container| container.role == role);
        if self.is_ending()
            && of_role(Role::Main).all(ContainerMachine::finished)
            && of_role(Role::Main).next().is_some()
        {
            return if of_role(Role::Main).all(ContainerMachine::succeeded) { "Succeeded" } else { "Failed" };
        }
        if of_role(Role::Init).any(|container| container.finished() && !container.succeeded()) {
            return "Failed";
        }
        let never_ran = |container: &ContainerMachine| {
            matches!(container.state, State::Waiting { .. }) && container.last.is_none()
        };
        // Init containers that run again in a new sandbox do not make it pending again.
        if of_role(Role::Init).any(|container| !container.succeeded()) && of_role(Role::Main).all(never_ran) {
            return "Pending";
        }
        if self.is_terminal() {
            return if of_role(Role::Main).all(ContainerMachine::succeeded) { "Succeeded" } else { "Failed" };
        }
        if of_role(Role::Main).any(never_ran) { "Pending" } else { "Running" }
    }

    /// Brings the conditions up to date; the time of one moves only when its status changes.
    pub(super) fn refresh_conditions(&mut self, now: Timestamp) {
        let phase = self.phase();
        let names = |containers: Vec<&ContainerMachine>| {
            containers.iter().map(|container| container.spec.name.as_str()).collect::<Vec<_>>().join(" ")
        };
        let incomplete: Vec<_> = self
            .containers
            .iter()
            .filter(|c| c.role != Role::Main && !c.lets_pass() && phase != "Succeeded")
            .collect();
        let unready: Vec<_> = self.containers.iter().filter(|c| c.role != Role::Init && !c.ready()).collect();
        let initialized = if incomplete.is_empty() {
            (true, None, None)
        } else {
            let message = format!("containers with incomplete status: [{}]", names(incomplete));
            (false, Some("ContainersNotInitialized"), Some(message))
        };
        let containers = match phase {
            "Succeeded" => (false, Some("PodCompleted"), None),
            "Failed" => (false, Some("PodFailed"), None),
            _ if unready.is_empty() => (true, None, None),
            _ => {
                let message = format!("containers with unready status: [{}]", names(unready));
                (false, Some("ContainersNotReady"), Some(message))
            }
        };
        let ready = match self.missing_gates() {
            Some(message) if containers.0 => (false, Some("ReadinessGatesNotReady"), Some(message)),
            _ => containers.clone(),
        };
        let sandbox = (self.sandbox().is_some(), None, None);
        let values = [sandbox, initialized, ready, containers];
        for (type_, (status, reason, message)) in CONDITIONS.into_iter().zip(values) {
            let since = match self.conditions.get(type_) {
                Some(old) if old.status == status => old.since.clone(),
                _ => seconds(now),
            };
            self.conditions.insert(type_, Condition { status, reason, message, since });
        }
    }

    /// Readiness gates whose condition is not True.
    fn missing_gates(&self) -> Option<String> {
        let conditions = self.pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let met =
            |gate: &str| conditions.into_iter().flatten().any(|c| c.type_ == gate && c.status == "True");
        let gates = self.spec()?.readiness_gates.as_ref()?;
        let missing: Vec<_> = gates
            .iter()
            .filter(|gate| !met(&gate.condition_type))
            .map(|gate| {
                format!(
                    "corresponding condition of pod readiness gate \"{}\" does not exist or is not True.",
                    gate.condition_type
                )
            })
            .collect();
        Some(missing.join(", ")).filter(|message| !message.is_empty())
    }
}
