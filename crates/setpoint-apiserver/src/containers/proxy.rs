//! `proxy` of pods and services: the API server passes an HTTP request on to a port, and the answer back
//! (`pkg/registry/core/{pod,service}/storage`, `k8s.io/apimachinery/pkg/util/proxy`).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures::StreamExt;
use http::header::{AUTHORIZATION, CONNECTION, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde_json::Value;

use super::agent;
use crate::body::Body;
use crate::dispatch::Call;
use crate::kubelet::Kubelet;
use crate::object::Metadata;
use crate::registry::Place;
use crate::status::{Result, Status};

/// Headers that concern one connection only.
const HOPS: [HeaderName; 3] = [CONNECTION, TRANSFER_ENCODING, UPGRADE];

/// Passes a request on.
pub(crate) async fn proxy(call: &mut Call<'_>) -> Result<Response<Body>> {
    if call.parts.headers.contains_key(UPGRADE) {
        return Err(Status::not_implemented("an upgrade through the subresource proxy"));
    }
    let (scheme, name, port) = split_name(&call.place.name)?;
    if scheme == "https" {
        return Err(Status::not_implemented("https in the subresource proxy"));
    }
    let place = Place { name: name.to_owned(), ..call.place.clone() };
    let object = call.inner.registry.get(&place)?.decode();
    let (address, kubelet) = match call.place.resource.plural.as_str() {
        "pods" => pod(call, &object, port)?,
        "services" => service(call, &object, port)?,
        other => return Err(Status::not_implemented(&format!("the subresource {other}/proxy"))),
    };
    let unreachable = |error: &dyn std::fmt::Display| {
        Status::service_unavailable(format!("error trying to reach service: {error}"))
    };
    let connection = kubelet.dial(address).await.map_err(|error| unreachable(&error))?;
    let (mut sender, connection) =
        handshake(TokioIo::new(connection)).await.map_err(|error| unreachable(&error))?;
    tokio::spawn(connection);
    let query = call.parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut request =
        Request::builder().method(call.parts.method.clone()).uri(format!("/{}{query}", path(call)));
    if let Some(headers) = request.headers_mut() {
        *headers = passed_on(&call.parts.headers);
        headers.remove(AUTHORIZATION);
        let host = HeaderValue::from_str(&address.to_string()).map_err(Status::internal)?;
        headers.insert(HOST, host);
    }
    let request = request.body(Full::new(call.body.clone())).map_err(Status::internal)?;
    let answer = sender.send_request(request).await.map_err(|error| unreachable(&error))?;
    let (parts, body) = answer.into_parts();
    // An answer that breaks off ends.
    let body = body.into_data_stream().filter_map(|chunk| std::future::ready(chunk.ok()));
    let mut response = Response::new(Body::stream(body));
    *response.status_mut() = parts.status;
    *response.headers_mut() = passed_on(&parts.headers);
    Ok(response)
}

/// What follows `proxy` in the path, as it was written.
fn path(call: &Call<'_>) -> String {
    let path = call.parts.uri.path();
    path.split_once("/proxy/").map_or_else(String::new, |(_, rest)| rest.to_owned())
}

fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    for hop in HOPS {
        headers.remove(hop);
    }
    headers
}

/// `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT`.
fn split_name(text: &str) -> Result<(&str, &str, &str)> {
    match text.split(':').collect::<Vec<_>>().as_slice() {
        [name] => Ok(("http", name, "")),
        [name, port] | ["" | "http", name, port] => Ok(("http", name, port)),
        ["https", name, port] => Ok(("https", name, port)),
        _ => Err(Status::bad_request(format!("invalid proxy request {text:?}"))),
    }
}

type Reached = (SocketAddr, Arc<dyn Kubelet>);

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// A port of a pod: the given one, by number, or the first that it names.
fn pod(call: &Call<'_>, pod: &Value, port: &str) -> Result<Reached> {
    let name = pod.meta("name");
    let mut named = list(&pod["spec"], "containers").iter().flat_map(|container| list(container, "ports"));
    let first = named.find_map(|port| port["containerPort"].as_u64());
    let port = if port.is_empty() { first.unwrap_or(80).to_string() } else { port.to_owned() };
    let bad = || Status::bad_request(format!("pod {name:?} has no port {port:?}"));
    let port: u16 = port.parse().map_err(|_| bad())?;
    let address = pod["status"]["podIP"].as_str().and_then(|ip| ip.parse::<IpAddr>().ok());
    let address = address.ok_or_else(|| Status::bad_request("address not allowed"))?;
    let kubelet = agent(call, pod["spec"]["nodeName"].as_str().unwrap_or_default())?;
    Ok((SocketAddr::new(address, port), kubelet))
}

/// A ready endpoint of a service's port, which is given by name or number; the only one need not be given.
fn service(call: &Call<'_>, service: &Value, wanted: &str) -> Result<Reached> {
    let name = service.meta("name");
    let ports = list(&service["spec"], "ports");
    let number = wanted.parse::<u64>().ok();
    let port = ports.iter().find(|port| {
        wanted.is_empty() && ports.len() == 1
            || !wanted.is_empty()
                && (port["name"] == wanted || number.is_some() && port["port"].as_u64() == number)
    });
    let none = |what: String| Status::service_unavailable(what);
    let port = port.ok_or_else(|| none(format!("no service port {wanted:?} found for service {name:?}")))?;
    let port_name = port["name"].as_str().unwrap_or_default();
    let store = &call.inner.registry.store;
    let slices = store.snapshot("endpointslices.discovery.k8s.io");
    let slices = slices.range(&call.place.namespace, None).map(|(_, slice)| slice.decode());
    for slice in slices.filter(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == name) {
        let target =
            list(&slice, "ports").iter().find(|port| port["name"].as_str().unwrap_or_default() == port_name);
        let number = target.and_then(|port| port["port"].as_u64()).and_then(|port| u16::try_from(port).ok());
        let Some(number) = number else { continue };
        for endpoint in list(&slice, "endpoints").iter().filter(|one| one["conditions"]["ready"] != false) {
            let ip = endpoint["addresses"][0].as_str().and_then(|ip| ip.parse::<IpAddr>().ok());
            if let (Some(ip), Some(node)) = (ip, endpoint["nodeName"].as_str()) {
                return Ok((SocketAddr::new(ip, number), agent(call, node)?));
            }
        }
    }
    Err(none(format!("no endpoints available for service {name:?}")))
}
