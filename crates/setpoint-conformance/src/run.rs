//! Runs a case and gives what was answered, normal.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::case::{Case, Step};
use crate::normal::{Normal, Rules};
use crate::pointer;
use crate::server::Server;
use crate::session::{Answer, Session, Stream, collect};
use crate::webhooks::{PROBE, Webhooks};

/// Response headers that are always compared.
const HEADERS: [&str; 6] =
    ["content-type", "warning", "retry-after", "location", "www-authenticate", "allow"];
/// How often and how many times `WAIT` looks.
const WAIT_STEP: Duration = Duration::from_millis(50);
const WAIT_TRIES: usize = 600;

/// One step's answer, or the events of a watch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// The step's action, to see where a recording does not belong to the case any more.
    #[serde(rename = "do")]
    pub action: String,
    /// The code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The headers that are compared.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Value>,
    /// The body; without it, the answer had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    /// The events of a watch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<Value>>,
    /// What the API server sent to the case's webhooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Vec<Value>>,
}

impl Recorded {
    /// JSON on two lines, or more for events.
    pub(crate) fn lines(&self) -> String {
        let head = json!({ "do": self.action, "status": self.status, "headers": self.headers });
        let mut fields = head.as_object().cloned().unwrap_or_default();
        fields.retain(|_, value| !value.is_null() && *value != json!({}));
        let mut text = Value::from(fields).to_string();
        text.pop();
        if let Some(body) = &self.body {
            let _ = write!(text, ",\n    \"body\": {body}");
        }
        for (name, items) in [("events", &self.events), ("requests", &self.requests)] {
            if let Some(items) = items {
                let items: Vec<String> = items.iter().map(|item| format!("\n      {item}")).collect();
                let _ = write!(text, ",\n    \"{name}\": [{}]", items.join(","));
            }
        }
        text.push('}');
        text
    }
}

/// What came of a case.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The answers to its steps.
    pub answers: Vec<Recorded>,
    /// Why it could not go on.
    pub broken: Option<String>,
}

/// Runs `case`, called `name`, in a namespace and with names of its own, which `run` makes unique; afterwards it deletes what the
/// case created.
pub async fn run(
    server: &Server,
    rules: &crate::case::Volatile,
    name: &str,
    case: &Case,
    run: &str,
) -> Outcome {
    let mut answers = Vec::new();
    let broken = match session(server, name, run) {
        Ok((session, ids)) => {
            let mut runner =
                Runner { session, created: Vec::new(), streams: BTreeMap::new(), webhooks: None };
            let result = match Rules::new(rules) {
                Ok(rules) => runner.all(case, &mut Normal::new(&rules, ids), &mut answers).await,
                Err(error) => Err(format!("volatile.yaml: {error}")),
            };
            runner.clean().await;
            result.err()
        }
        Err(error) => Some(error),
    };
    Outcome { answers, broken }
}

struct Runner<'a> {
    session: Session<'a>,
    /// Paths of what was created outside of namespaces, with the case's own namespace.
    created: Vec<String>,
    streams: BTreeMap<String, Stream>,
    webhooks: Option<Webhooks>,
}

impl Runner<'_> {
    async fn all(
        &mut self,
        case: &Case,
        normal: &mut Normal<'_>,
        answers: &mut Vec<Recorded>,
    ) -> Result<(), String> {
        if !case.webhooks.is_null() {
            self.serve(&case.webhooks, normal).await?;
        }
        if mentions(case, "$ns") {
            self.namespace().await?;
        }
        for (index, step) in case.given.iter().enumerate() {
            let answer = self.step(step, normal).await.map_err(|error| at("given", index, step, &error))?;
            if let Some(answer) = answer.filter(|answer| answer.status.is_some_and(|status| status >= 300)) {
                return Err(at("given", index, step, &format!("was answered {}", answer.lines())));
            }
        }
        for (index, step) in case.steps.iter().enumerate() {
            let answer = self.step(step, normal).await.map_err(|error| at("step", index, step, &error))?;
            answers.extend(answer);
        }
        Ok(())
    }

    /// Starts the case's webhook server.
    async fn serve(&mut self, answers: &Value, normal: &mut Normal<'_>) -> Result<(), String> {
        let answers = self.session.fill_value(answers);
        let namespace = self.session.path("$ns");
        let webhooks = Webhooks::start(answers, &namespace).await.map_err(|error| error.to_string())?;
        let address = webhooks.address.to_string();
        let port = webhooks.address.port();
        let values = [
            ("webhook", format!("https://{address}")),
            ("webhookLocalhost", format!("https://localhost:{port}")),
            ("webhookAddress", address),
            ("ca", STANDARD.encode(&webhooks.ca)),
        ];
        for (name, value) in values {
            normal.name(name, &value);
            self.session.set(name, value.into());
        }
        self.session.set("webhookPort", port.into());
        self.webhooks = Some(webhooks);
        Ok(())
    }

    /// Waits until the API server has noticed a change of its webhooks of one kind: it hears of changes in order, so it knows of all
    /// when it asks a last one.
    async fn settle(&self, plural: &str) -> Result<(), String> {
        let kind = if plural.starts_with("mutating") { "Mutating" } else { "Validating" };
        let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}");
        let probe = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}WebhookConfiguration"),
            "metadata": {"name": "probe-$id"},
            "webhooks": [{
                "name": "probe.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "clientConfig": {"url": format!("$webhook{PROBE}"), "caBundle": "$ca"},
                "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
                "objectSelector": {"matchLabels": {"probe": "$id"}},
            }],
        });
        let answer = self.session.send(&request("POST", probe), "POST", &path).await?;
        if answer.status != 201 {
            return Err(format!("the probe of webhooks was refused: {} {:?}", answer.status, answer.body));
        }
        let seen = Step {
            until: BTreeMap::from([("code".to_owned(), json!(418))]),
            ..request(
                "WAIT",
                json!({"apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"generateName": "probe-", "labels": {"probe": "$id"}}}),
            )
        };
        self.wait(&seen, "POST /api/v1/namespaces/default/configmaps?dryRun=All").await?;
        self.session.send(&request("DELETE", json!({})), "DELETE", &format!("{path}/probe-$id")).await?;
        Ok(())
    }

    /// The namespace of a case, with the service account that the controllers of a whole cluster would make.
    async fn namespace(&mut self) -> Result<(), String> {
        let namespace = request(
            "POST /api/v1/namespaces",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "$ns"}}),
        );
        let answer = self.session.send(&namespace, "POST", "/api/v1/namespaces").await?;
        if answer.status != 201 {
            return Err(format!("its namespace was refused: {} {:?}", answer.status, answer.body));
        }
        self.created.push(self.session.path("/api/v1/namespaces/$ns"));
        let path = "/api/v1/namespaces/$ns/serviceaccounts";
        let account = request(
            path,
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}),
        );
        let answer = self.session.send(&account, "POST", path).await?;
        if answer.status != 201 && answer.status != 409 {
            return Err(format!("its service account was refused: {} {:?}", answer.status, answer.body));
        }
        Ok(())
    }

    async fn step(&mut self, step: &Step, normal: &mut Normal<'_>) -> Result<Option<Recorded>, String> {
        let (verb, path) = step.action.split_once(' ').unwrap_or((&step.action, ""));
        let stream = step.stream.clone().unwrap_or_default();
        match verb {
            "WAIT" => self.wait(step, path).await.map(|()| None),
            "HOOKS" => {
                let webhooks = self.webhooks.as_ref().ok_or("the case has no webhooks")?;
                let mut requests = Value::from(webhooks.take(path));
                mask(&mut requests, &step.volatile);
                if !step.keep.is_empty() {
                    requests = Value::Array(vec![kept(&requests, &step.keep)]);
                }
                let requests =
                    requests.as_array().into_iter().flatten().map(|request| normal.body(request)).collect();
                Ok(Some(Recorded {
                    action: step.action.clone(),
                    status: None,
                    headers: BTreeMap::new(),
                    body: None,
                    events: None,
                    requests: Some(requests),
                }))
            }
            "WATCH" => {
                let response = self.session.open(step, "GET", path).await?;
                if response.status().as_u16() != 200 {
                    let answer = collect(response).await?;
                    return self.answered(step, answer, normal).map(Some);
                }
                let (parts, body) = response.into_parts();
                let media = parts.headers.get("content-type").and_then(|media| media.to_str().ok());
                self.streams.insert(stream, Stream::new(body, media.unwrap_or_default()));
                let answer = Answer { status: 200, headers: parts.headers, body: None };
                self.answered(step, answer, normal).map(Some)
            }
            "EVENTS" => {
                let watch = self.streams.get_mut(&stream).ok_or("there is no such watch")?;
                let events = watch.events(step.count).await?;
                let all = Value::from(events);
                for (name, pointer) in &step.save {
                    self.save(name, pointer, &all, normal)?;
                }
                let events = all.as_array().into_iter().flatten().map(|event| normal.body(event)).collect();
                Ok(Some(Recorded {
                    action: step.action.clone(),
                    status: None,
                    headers: BTreeMap::new(),
                    body: None,
                    events: Some(events),
                    requests: None,
                }))
            }
            method => {
                let answer = self.session.send(step, method, path).await?;
                self.remember(method, path, &answer);
                let plural = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];
                let changed = plural.into_iter().find(|plural| path.contains(plural));
                if let Some(plural) = changed.filter(|_| method != "GET" && answer.status < 300)
                    && self.webhooks.is_some()
                {
                    self.settle(plural).await?;
                }
                self.answered(step, answer, normal).map(Some)
            }
        }
    }

    fn save(
        &mut self,
        name: &str,
        pointer: &str,
        body: &Value,
        normal: &mut Normal<'_>,
    ) -> Result<(), String> {
        let value = pointer::get(body, pointer)
            .ok_or_else(|| format!("the answer has no {pointer} to save: {body}"))?;
        if let Some(text) = value.as_str() {
            normal.name(name, text);
        }
        self.session.set(name, value.clone());
        Ok(())
    }

    fn answered(&mut self, step: &Step, answer: Answer, normal: &mut Normal<'_>) -> Result<Recorded, String> {
        let mut body = answer.body;
        for (name, pointer) in &step.save {
            self.save(name, pointer, body.as_ref().unwrap_or(&Value::Null), normal)?;
        }
        if let Some(body) = &mut body {
            mask(body, &step.volatile);
            for pointer in &step.unordered {
                if let Some(Value::Array(items)) = pointer::get_mut(body, pointer) {
                    items.sort_by_key(Value::to_string);
                }
            }
            if !step.keep.is_empty() && answer.status < 300 {
                *body = kept(body, &step.keep);
            }
        }
        let mut headers = BTreeMap::new();
        for name in HEADERS.iter().copied().chain(step.answer_headers.iter().map(String::as_str)) {
            let texts: Vec<Value> = answer
                .headers
                .get_all(name)
                .iter()
                .map(|value| normal.text(&String::from_utf8_lossy(value.as_bytes())).into())
                .collect();
            match texts.len() {
                0 => {}
                1 => drop(headers.insert(name.to_owned(), texts.into_iter().next().unwrap_or_default())),
                _ => drop(headers.insert(name.to_owned(), texts.into())),
            }
        }
        Ok(Recorded {
            action: step.action.clone(),
            status: Some(answer.status),
            headers,
            body: body.map(|body| normal.body(&body)),
            events: None,
            requests: None,
        })
    }

    /// Keeps the path of a created object of the whole cluster, to delete it at the end.
    fn remember(&mut self, method: &str, path: &str, answer: &Answer) {
        let path = self.session.path(path.split('?').next().unwrap_or_default());
        let name = |body: &Value| {
            let name = body.pointer("/metadata/name").or_else(|| body.pointer("/$protobuf/metadata/name"))?;
            name.as_str().map(str::to_owned)
        };
        let Some(name) = answer.body.as_ref().and_then(name) else {
            return;
        };
        if answer.status != 201 || path.contains("/namespaces/") {
            return;
        }
        match method {
            "POST" => self.created.push(format!("{path}/{name}")),
            "PUT" | "PATCH" => self.created.push(path),
            _ => {}
        }
    }

    async fn wait(&self, step: &Step, path: &str) -> Result<(), String> {
        let (method, path) =
            path.split_once(' ').filter(|(_, path)| path.starts_with('/')).unwrap_or(("GET", path));
        let mut last = String::new();
        for _ in 0..WAIT_TRIES {
            let answer = self.session.send(step, method, path).await?;
            let body = answer.body.unwrap_or_default();
            let met = step.until.iter().all(|(pointer, value)| match pointer.as_str() {
                "code" => *value == json!(answer.status),
                pointer => pointer::get(&body, pointer) == Some(&self.session.fill_value(value)),
            });
            if met {
                // Nobody knows how often the webhooks were asked while we waited.
                if let Some(webhooks) = &self.webhooks {
                    webhooks.take("");
                }
                return Ok(());
            }
            last = format!("{} {body}", answer.status);
            tokio::time::sleep(WAIT_STEP).await;
        }
        Err(format!("{:?} did not come; last: {last}", step.until))
    }

    /// Deletes what the case created in the cluster, as far as it can be deleted.
    async fn clean(&mut self) {
        self.streams.clear();
        for path in self.created.iter().rev() {
            let step = request("DELETE", json!({"gracePeriodSeconds": 0, "propagationPolicy": "Background"}));
            // The next run has names of its own, so what stays behind is in nobody's way.
            let _ = self.session.send(&step, "DELETE", path).await;
        }
    }
}

/// A session with the names of one case, and what stands for them in answers.
fn session<'a>(
    server: &'a Server,
    name: &str,
    run: &str,
) -> Result<(Session<'a>, Vec<(String, String)>), String> {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let tail = format!("{run}{:08x}", hasher.finish() as u32);
    let (namespace, id) = (format!("ns-{tail}"), format!("id-{tail}"));
    let values = BTreeMap::from([
        ("ns".to_owned(), Value::from(namespace.as_str())),
        ("id".to_owned(), Value::from(id.as_str())),
    ]);
    let names = vec![(namespace, "$ns".to_owned()), (id, "$id".to_owned())];
    Ok((Session::new(server, values)?, names))
}

fn request(action: &str, body: Value) -> Step {
    Step {
        action: action.to_owned(),
        body: Some(body),
        raw: None,
        base64: None,
        media: None,
        accept: None,
        headers: BTreeMap::new(),
        user: None,
        token: None,
        certificate: None,
        save: BTreeMap::new(),
        keep: Vec::new(),
        volatile: Vec::new(),
        unordered: Vec::new(),
        answer_headers: Vec::new(),
        count: None,
        stream: None,
        until: BTreeMap::new(),
    }
}

/// The parts of a value that are compared, by their pointers.
fn kept(value: &Value, pointers: &[String]) -> Value {
    let part = |pointer: &String| pointer::get(value, pointer).cloned().unwrap_or(Value::Null);
    pointers.iter().map(|pointer| (pointer.clone(), part(pointer))).collect::<serde_json::Map<_, _>>().into()
}

/// Replaces the parts that differ from run to run.
fn mask(value: &mut Value, pointers: &[String]) {
    for pointer in pointers {
        if let Some(part) = pointer::get_mut(value, pointer) {
            *part = "$volatile".into();
        }
    }
}

fn mentions(case: &Case, name: &str) -> bool {
    case.given.iter().chain(&case.steps).any(|step| {
        step.action.contains(name)
            || step.body.as_ref().is_some_and(|body| body.to_string().contains(name))
            || step.raw.as_ref().is_some_and(|raw| raw.contains(name))
            || step.user.as_ref().is_some_and(|user| user.contains(name))
    })
}

fn at(part: &str, index: usize, step: &Step, error: &str) -> String {
    format!("{part} {} ({}): {error}", index + 1, step.action)
}
