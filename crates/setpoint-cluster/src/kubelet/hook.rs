//! What a container's probes and lifecycle hooks do, worked out from its specification and the pod's address.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, HTTPGetAction, LifecycleHandler, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::probe::ProbeAction;
use super::runtime::Signal;

/// A `postStart` or `preStop` hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Run a command or send a request, as a probe does.
    Action(ProbeAction),
    /// Do nothing for a while.
    Sleep(Duration),
}

/// The action of a probe.
pub fn probe_action(probe: &Probe, container: &Container, address: Option<IpAddr>) -> ProbeAction {
    if let Some(exec) = &probe.exec {
        return ProbeAction::Exec { command: exec.command.clone().unwrap_or_default() };
    }
    if let Some(http) = &probe.http_get {
        return http_action(http, container, address);
    }
    if let Some(tcp) = &probe.tcp_socket {
        return match target(tcp.host.as_deref(), &tcp.port, container, address) {
            Ok(address) => ProbeAction::Tcp { address },
            Err(message) => ProbeAction::Unsupported(message),
        };
    }
    let what = if probe.grpc.is_some() { "gRPC probes" } else { "a probe without an action" };
    ProbeAction::Unsupported(format!("this node cannot run {what}; use exec, httpGet or tcpSocket"))
}

/// The action of a lifecycle hook; none when it has nothing to do.
pub fn lifecycle_hook(
    handler: Option<&LifecycleHandler>,
    container: &Container,
    address: Option<IpAddr>,
) -> Option<Hook> {
    let handler = handler?;
    if let Some(exec) = &handler.exec {
        return Some(Hook::Action(ProbeAction::Exec { command: exec.command.clone().unwrap_or_default() }));
    }
    if let Some(http) = &handler.http_get {
        return Some(Hook::Action(http_action(http, container, address)));
    }
    // `tcpSocket` hooks are kept in the API for old objects only and do nothing upstream either.
    let sleep = handler.sleep.as_ref()?;
    Some(Hook::Sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))))
}

/// The signal that asks a container to stop: `lifecycle.stopSignal`, else SIGTERM.
pub fn stop_signal(container: &Container) -> Signal {
    let name = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.as_deref());
    match name.unwrap_or("SIGTERM") {
        "SIGHUP" => Signal::Other(1),
        "SIGINT" => Signal::Other(2),
        "SIGQUIT" => Signal::Other(3),
        "SIGKILL" => Signal::Kill,
        "SIGUSR1" => Signal::Other(10),
        "SIGUSR2" => Signal::Other(12),
        "SIGWINCH" => Signal::Other(28),
        _ => Signal::Term,
    }
}

fn http_action(http: &HTTPGetAction, container: &Container, address: Option<IpAddr>) -> ProbeAction {
    if http.scheme.as_deref() == Some("HTTPS") {
        return ProbeAction::Unsupported(
            "this node cannot send HTTPS probes; use scheme HTTP, or exec with a client of the image".into(),
        );
    }
    let path = http.path.clone().filter(|path| !path.is_empty()).unwrap_or_else(|| "/".into());
    let headers = http.http_headers.iter().flatten();
    match target(http.host.as_deref(), &http.port, container, address) {
        Ok(address) => ProbeAction::Http {
            address,
            path: if path.starts_with('/') { path } else { format!("/{path}") },
            headers: headers.map(|header| (header.name.clone(), header.value.clone())).collect(),
        },
        Err(message) => ProbeAction::Unsupported(message),
    }
}

fn target(
    host: Option<&str>,
    port: &IntOrString,
    container: &Container,
    address: Option<IpAddr>,
) -> Result<SocketAddr, String> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => container
            .ports
            .iter()
            .flatten()
            .find(|port| port.name.as_ref() == Some(name))
            .map(|port| port.container_port)
            .or_else(|| name.parse().ok()),
    };
    let number = number
        .and_then(|number| u16::try_from(number).ok())
        .filter(|number| *number > 0)
        .ok_or_else(|| format!("port {port:?} is neither a number nor a named port of the container"))?;
    let address = match host.filter(|host| !host.is_empty()) {
        Some(host) => host.parse().map_err(|_| format!("host {host:?} is not an IP address"))?,
        None => address.ok_or("the pod has no address yet")?,
    };
    Ok(SocketAddr::new(address, number))
}
