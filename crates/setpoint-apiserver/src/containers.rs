//! Logs of containers, commands in them and connections to them: requests that the agent of the pod's node answers.

mod carrier;
mod channels;
mod exec;
mod forward;
mod port_channels;
mod port_forward;
mod proxy;
mod spdy;
mod streams;
mod terminal;
mod upgrade;

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use serde_json::Value;

use crate::body::Body;
use crate::dispatch::Call;
use crate::kubelet::{ContainerRef, Kubelet, KubeletError, LogOptions};
use crate::object::Metadata;
use crate::render::respond;
use crate::request::integer;
use crate::status::{Cause, Result, Status, Subject};

pub(crate) use self::exec::{attach, exec};
pub(crate) use self::port_forward::port_forward;
pub(crate) use self::proxy::proxy;

/// Answers a request for a container's log.
pub(crate) async fn logs(call: &Call<'_>) -> Result<Response<Body>> {
    let options = log_options(call)?;
    let Some((kubelet, container)) = find(call)? else {
        // A pod that is nowhere has said nothing.
        return Ok(no_content());
    };
    let stream = kubelet.logs(container, options).await.map_err(failure)?;
    Ok(respond(200, "text/plain", Body::stream(stream)))
}

fn no_content() -> Response<Body> {
    let mut response = Response::new(Body::from(Bytes::new()));
    *response.status_mut() = http::StatusCode::NO_CONTENT;
    response
}

/// The options of a log request (`ValidatePodLogOptions` of `pkg/apis/core/validation`).
fn log_options(call: &Call<'_>) -> Result<LogOptions> {
    let query = &call.query;
    let number = |key: &str| -> Result<Option<i64>> {
        let text = query.get(key).filter(|text| !text.is_empty());
        text.map(|text| integer("ParseInt", text)).transpose()
    };
    let (tail, bytes, since) = (number("tailLines")?, number("limitBytes")?, number("sinceSeconds")?);
    let time = query.get("sinceTime").filter(|text| !text.is_empty());
    if let Some(why) = time.and_then(crate::registry::unread_time) {
        return Err(Status::bad_request(why));
    }
    let mut causes = Vec::new();
    let mut least = |key: &str, number: Option<i64>, least: i64, detail: &str| {
        if let Some(number) = number.filter(|number| *number < least) {
            causes.push(Cause::invalid(key, &number.into(), detail));
        }
    };
    least("tailLines", tail, 0, "must be greater than or equal to 0");
    least("limitBytes", bytes, 1, "must be greater than 0");
    least("sinceSeconds", since, 1, "must be greater than 0");
    if since.is_some() && time.is_some() {
        causes.push(Cause::forbidden("[]", "at most one of `sinceTime` or `sinceSeconds` may be specified"));
    }
    if query.get("stream").is_some_and(|stream| !matches!(stream, "" | "All")) {
        causes.push(Cause::forbidden("stream", "may not be specified"));
    }
    if !causes.is_empty() {
        return Err(Status::invalid(
            Subject { group: "", kind: "PodLogOptions", name: &call.place.name },
            causes,
        ));
    }
    let unsigned = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
    Ok(LogOptions {
        follow: query.flag("follow"),
        previous: query.flag("previous"),
        since_seconds: since,
        since_time: time.map(str::to_owned),
        timestamps: query.flag("timestamps"),
        tail_lines: unsigned(tail),
        limit_bytes: unsigned(bytes),
    })
}

/// The container that a request names, and the agent that has it; `None` for a pod without a node.
fn find(call: &Call<'_>) -> Result<Option<(Arc<dyn Kubelet>, ContainerRef)>> {
    let pod = call.inner.registry.get(&call.place)?;
    let container = container(&pod.value, call.query.get("container"))?;
    let node = pod.value["spec"]["nodeName"].as_str().unwrap_or_default();
    if node.is_empty() {
        return Ok(None);
    }
    let kubelet = agent(call, node)?;
    let container = ContainerRef {
        namespace: call.place.namespace.clone(),
        pod: call.place.name.clone(),
        uid: pod.value.meta("uid").to_owned(),
        container,
    };
    Ok(Some((kubelet, container)))
}

/// The agent of a node.
fn agent(call: &Call<'_>, node: &str) -> Result<Arc<dyn Kubelet>> {
    let kubelet = call.inner.kubelets.read().get(node).cloned();
    kubelet.ok_or_else(|| {
        let name = &call.place.name;
        Status::internal(format!("no agent of node {node:?}, which has {name:?}, is connected"))
    })
}

/// The named container, or the only one, or the one that an annotation makes the default.
fn container(pod: &Value, name: Option<&str>) -> Result<String> {
    let names = |list: &str| -> Vec<String> {
        let containers = pod["spec"][list].as_array().into_iter().flatten();
        containers.filter_map(|container| container["name"].as_str().map(str::to_owned)).collect()
    };
    let (main, init) = (names("containers"), names("initContainers"));
    let all = || init.iter().chain(&main).cloned().chain(names("ephemeralContainers"));
    let pod_name = pod.meta("name");
    if let Some(name) = name {
        if all().any(|known| known == name) {
            return Ok(name.to_owned());
        }
        return Err(Status::bad_request(format!("container {name} is not valid for pod {pod_name}")));
    }
    let default = pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"].as_str();
    if let Some(default) = default.filter(|name| main.iter().any(|known| known == name)) {
        return Ok(default.to_owned());
    }
    match main.as_slice() {
        [only] => Ok(only.clone()),
        _ => Err(Status::bad_request(format!(
            "a container name must be specified for pod {pod_name}, choose one of: [{}]",
            all().collect::<Vec<_>>().join(" ")
        ))),
    }
}

fn failure(error: KubeletError) -> Status {
    match error {
        KubeletError::NotFound(why) | KubeletError::Unready(why) => Status::bad_request(why),
        KubeletError::Unsupported(what) => Status::unsupported(what),
        KubeletError::Failed(why) => Status::internal(why),
    }
}
