//! Who may read the metrics: whom the API server knows by the token, if it may `get` the path. As controller-runtime's
//! `WithAuthenticationAndAuthorization` asks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use http::{HeaderValue, Request, StatusCode, header};
use kube::Client;
use parking_lot::Mutex;
use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::diagnosis::chain;
use super::endpoint::{self, Answer};
use crate::webhook::Handler;

/// How long an answer is good for: after that a revoked token or right counts no more.
const ALLOWED_FOR: Duration = Duration::from_secs(60);
/// The same for refusals: what was granted meanwhile counts soon.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Answers of each sort that are kept. Whoever comes with more tokens costs a review each.
const KEPT: usize = 512;
/// Reviews that are under way at a time; more wait.
const ASKING: usize = 8;
/// How long a request waits for its reviews.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the API server says about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    /// There is no token, or nobody has it.
    Unknown,
    /// The token's user may not.
    Forbidden,
    /// It could not be asked.
    Unanswered,
}

/// Token and path; no token stays in memory.
type Question = [u8; SHA256_OUTPUT_LEN];

/// Asks the API server, and remembers what it said for a short time.
pub(super) struct Guard {
    client: Client,
    allowed: Mutex<BTreeMap<Question, Instant>>,
    refused: Mutex<BTreeMap<Question, (Instant, Verdict)>>,
    asking: Semaphore,
    /// Whether the last question had no answer: each such time is told once.
    failing: AtomicBool,
}

/// Serves what `answer` answers to those that [`Guard`] admits.
pub(super) fn guarded(answer: Answer, client: Client) -> Handler {
    let guard = Arc::new(Guard::new(client));
    Arc::new(move |request| {
        let (guard, answer) = (Arc::clone(&guard), Arc::clone(&answer));
        async move {
            let token = request.headers().get(header::AUTHORIZATION);
            match guard.admit(token, request.uri().path()).await {
                Verdict::Allowed => endpoint::respond(&request, &answer),
                refused => endpoint::text(refused.status(), refused.words()),
            }
        }
        .boxed()
    })
}

impl Verdict {
    fn status(self) -> StatusCode {
        match self {
            Self::Allowed => StatusCode::OK,
            Self::Unknown => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::Unanswered => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Allowed => "",
            Self::Unknown => {
                "401: a token that the API server knows is needed: Authorization: Bearer TOKEN\n"
            }
            Self::Forbidden => {
                "403: the token's user has no right to get this path: a ClusterRole with it in nonResourceURLs gives that\n"
            }
            Self::Unanswered => "500: the API server could not be asked about the token and its rights\n",
        }
    }
}

impl Guard {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            allowed: Mutex::default(),
            refused: Mutex::default(),
            asking: Semaphore::new(ASKING),
            failing: AtomicBool::new(false),
        }
    }

    /// Whether who brings the header `authorization` may get `path`.
    pub(super) async fn admit(&self, authorization: Option<&HeaderValue>, path: &str) -> Verdict {
        let Some(token) = authorization.and_then(bearer) else { return Verdict::Unknown };
        let question = question(token, path);
        if let Some(known) = self.recall(&question) {
            return known;
        }
        let verdict = match timeout(PATIENCE, self.ask(token, path)).await {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(error)) => return self.unanswered(&chain(&error)),
            Err(_) => return self.unanswered(&format!("no answer within {PATIENCE:?}")),
        };
        self.failing.store(false, Ordering::Relaxed);
        self.keep(question, verdict);
        verdict
    }

    fn unanswered(&self, reason: &str) -> Verdict {
        if !self.failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                reason,
                "metrics are refused: who asks for them cannot be reviewed; may the operator create tokenreviews and subjectaccessreviews?"
            );
        }
        Verdict::Unanswered
    }

    async fn ask(&self, token: &str, path: &str) -> kube::Result<Verdict> {
        // Closed by nobody: then there is no bound.
        let _permit = self.asking.acquire().await.ok();
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        });
        let status = self.review("/apis/authentication.k8s.io/v1/tokenreviews", &review).await?;
        if status["authenticated"] != true {
            return Ok(Verdict::Unknown);
        }
        // Who it is, in the words of the one review for the other.
        let user = &status["user"];
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user["username"],
                "uid": user["uid"],
                "groups": user["groups"],
                "extra": user["extra"],
                "nonResourceAttributes": {"path": path, "verb": "get"},
            },
        });
        let status = self.review("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).await?;
        Ok(if status["allowed"] == true { Verdict::Allowed } else { Verdict::Forbidden })
    }

    /// Posts a review and gives its status. Not by the types of k8s-openapi, which differ between versions of Kubernetes.
    async fn review(&self, path: &str, review: &Value) -> kube::Result<Value> {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        let request = request.body(review.to_string().into_bytes()).map_err(kube::Error::HttpError)?;
        let mut reviewed: Value = self.client.request(request).await?;
        Ok(reviewed["status"].take())
    }

    fn recall(&self, question: &Question) -> Option<Verdict> {
        let good = |asked: &Instant, limit: Duration| asked.elapsed() < limit;
        if self.allowed.lock().get(question).is_some_and(|asked| good(asked, ALLOWED_FOR)) {
            return Some(Verdict::Allowed);
        }
        self.refused
            .lock()
            .get(question)
            .filter(|(asked, _)| good(asked, REFUSED_FOR))
            .map(|(_, verdict)| *verdict)
    }

    fn keep(&self, question: Question, verdict: Verdict) {
        let now = Instant::now();
        let mut allowed = self.allowed.lock();
        let mut refused = self.refused.lock();
        allowed.retain(|_, asked| asked.elapsed() < ALLOWED_FOR);
        refused.retain(|_, (asked, _)| asked.elapsed() < REFUSED_FOR);
        // Apart, so that nobody without a right takes the place of those who have it.
        if verdict == Verdict::Allowed && allowed.len() < KEPT {
            allowed.insert(question, now);
        } else if verdict != Verdict::Allowed && refused.len() < KEPT {
            refused.insert(question, (now, verdict));
        }
    }
}

/// The token of `Bearer TOKEN`; the word in any case, as RFC 6750 and 9110 have it.
fn bearer(header: &HeaderValue) -> Option<&str> {
    let (scheme, token) = header.to_str().ok()?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn question(token: &str, path: &str) -> Question {
    let mut context = Context::new(&SHA256);
    for part in [token, path] {
        // The length keeps a token's end apart from a path's start.
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part.as_bytes());
    }
    let mut question = [0; SHA256_OUTPUT_LEN];
    question.copy_from_slice(context.finish().as_ref());
    question
}

#[cfg(test)]
mod tests;
