//! A client that sends raw requests and decodes what comes back.

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use setpoint_apiserver::{ApiServer, Body, Identity, InProcess};
use setpoint_clock::{Clock, Entropy};
use tower::ServiceExt;

pub struct Client(pub InProcess);

pub struct Answer {
    pub code: u16,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Answer {
    /// The body, if the code is `code`.
    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{:#}", self.body);
        self.body
    }

    pub fn warnings(&self) -> Vec<&str> {
        self.headers.get_all("warning").iter().map(|value| value.to_str().unwrap()).collect()
    }
}

pub fn server() -> ApiServer {
    ApiServer::builder()
        .clock(Clock::at("2026-01-02T03:04:05Z".parse().unwrap()))
        .entropy(Entropy::seeded(1))
        .build()
}

impl Client {
    pub fn admin(api: &ApiServer) -> Self {
        Self(api.service(Identity::admin()))
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> http::Response<Body> {
        match self.0.clone().oneshot(request).await {
            Ok(response) => response,
        }
    }

    pub async fn call(&self, method: Method, path: &str, media: &str, body: Option<&Value>) -> Answer {
        let bytes = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", media)
            .header("user-agent", "test/1.0")
            .body(Full::new(Bytes::from(bytes)))
            .unwrap();
        self.answer(request).await
    }

    pub async fn answer(&self, request: Request<Full<Bytes>>) -> Answer {
        let response = self.send(request).await;
        let (parts, body) = response.into_parts();
        let bytes = match body.collect().await {
            Ok(collected) => collected.to_bytes(),
        };
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Answer { code: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, "application/json", None).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call(Method::POST, path, "application/json", Some(body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.call(Method::PUT, path, "application/json", Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.call(Method::DELETE, path, "application/json", None).await
    }

    pub async fn merge(&self, path: &str, body: &Value) -> Answer {
        self.call(Method::PATCH, path, "application/merge-patch+json", Some(body)).await
    }

    pub async fn apply(&self, path: &str, body: &Value) -> Answer {
        self.call(Method::PATCH, path, "application/apply-patch+yaml", Some(body)).await
    }

    /// Opens a watch.
    pub async fn watch(&self, path: &str) -> Lines {
        let request = Request::get(path).body(Full::default()).unwrap();
        let response = self.send(request).await;
        let code = response.status().as_u16();
        let mut lines = Lines { body: response.into_body(), rest: Vec::new() };
        assert_eq!(code, 200, "watch {path}: {:?}", lines.next().await);
        lines
    }
}

/// The events of a watch.
pub struct Lines {
    body: Body,
    rest: Vec<u8>,
}

impl Lines {
    /// The next event, `None` at the end. Under a paused clock a watch with nothing to say moves time on.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.rest.extend_from_slice(frame.data_ref().unwrap()),
                None => return (!self.rest.is_empty()).then(|| serde_json::from_slice(&self.rest).unwrap()),
            }
        }
    }

    /// The type and name of the next event.
    pub async fn brief(&mut self) -> String {
        let event = self.next().await.expect("the watch ended");
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or("-").to_owned();
        format!("{} {name}", event["type"].as_str().unwrap())
    }
}
