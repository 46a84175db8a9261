//! What `/healthz` and `/readyz` answer: named checks, in the format of the Kubernetes components' endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use http::StatusCode;
use parking_lot::Mutex;

type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The health of an operator: checks by name. Cheap to clone; clones share the checks.
///
/// Liveness (`/healthz`) fails when only a restart helps; readiness (`/readyz`) says whether the operator
/// does its work now.
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<Checks>>);

#[derive(Default)]
struct Checks {
    live: BTreeMap<String, Check>,
    ready: BTreeMap<String, Check>,
    /// Those of `ready` that only answer when they are asked alone.
    apart: BTreeSet<String>,
}

impl Health {
    /// Adds a check to `/healthz`, asked alone as `/healthz/<name>`. The error is shown to who asks, so it
    /// must not hold a secret. A check runs at each request: it must not block.
    pub fn liveness(
        &self,
        name: impl Into<String>,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.0.lock().live.insert(name.into(), Arc::new(check));
    }

    /// Adds a check to `/readyz`, asked alone as `/readyz/<name>`. As for [`liveness`](Self::liveness).
    pub fn readiness(
        &self,
        name: impl Into<String>,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.0.lock().ready.insert(name.into(), Arc::new(check));
    }

    /// Has a check of `/readyz` answer only when it is asked alone: it says something about the operator, but not whether
    /// requests may be sent to it.
    pub(crate) fn readiness_apart(&self, name: &str) {
        self.0.lock().apart.insert(name.to_owned());
    }

    /// Asks the check of `/readyz` of this name, such as `webhooks` or `caches`.
    ///
    /// # Errors
    /// What stands in its way, also that there is no such check yet.
    pub fn ready(&self, name: &str) -> Result<(), String> {
        let check = self.0.lock().ready.get(name).cloned();
        check.map_or_else(|| Err(format!("there is no check {name:?} yet")), |check| check())
    }

    /// What a GET of `path` with `query` answers: 200 and `ok`, or 500 with a line for each check; the lines
    /// of a healthy operator are shown with `?verbose`, and `?exclude=<name>` leaves a check out.
    pub(crate) fn answer(&self, path: &str, query: &str) -> (StatusCode, String) {
        let (endpoint, only) = match path.trim_matches('/').split_once('/') {
            Some((endpoint, name)) => (endpoint, Some(name)),
            None => (path.trim_matches('/'), None),
        };
        let mut checks = match endpoint {
            "healthz" => self.0.lock().live.clone(),
            "readyz" => self.0.lock().ready.clone(),
            _ => return (StatusCode::NOT_FOUND, "404: /healthz and /readyz are served here\n".to_owned()),
        };
        if let Some(only) = only {
            checks.retain(|name, _| name == only);
            if checks.is_empty() {
                return (StatusCode::NOT_FOUND, format!("404: {endpoint} has no check {only:?}\n"));
            }
        } else if endpoint == "readyz" {
            let apart = &self.0.lock().apart;
            checks.retain(|name, _| !apart.contains(name));
        }
        let parameters: Vec<(&str, &str)> =
            query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
        checks.retain(|name, _| !parameters.contains(&("exclude", name.as_str())));

        let mut lines = Vec::new();
        let mut failed = false;
        for (name, check) in &checks {
            match check() {
                Ok(()) => lines.push(format!("[+]{name} ok\n")),
                Err(reason) => {
                    failed = true;
                    lines.push(format!("[-]{name} failed: {reason}\n"));
                }
            }
        }
        let lines = lines.concat();
        if failed {
            return (StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{endpoint} check failed\n"));
        }
        if parameters.iter().any(|(name, _)| *name == "verbose") {
            return (StatusCode::OK, format!("{lines}{endpoint} check passed\n"));
        }
        (StatusCode::OK, "ok".to_owned())
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checks = self.0.lock();
        f.debug_struct("Health")
            .field("live", &checks.live.keys())
            .field("ready", &checks.ready.keys())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health() -> Health {
        let health = Health::default();
        health.liveness("ping", || Ok(()));
        health.readiness("caches", || Err("configmaps: not listed yet".to_owned()));
        health.readiness("election", || Ok(()));
        health
    }

    #[test]
    fn a_failing_check_shows_with_its_reason() {
        let (status, text) = health().answer("/readyz", "");
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(
            text,
            "[-]caches failed: configmaps: not listed yet\n[+]election ok\nreadyz check failed\n"
        );
    }

    #[test]
    fn one_check_can_be_asked_alone_or_left_out() {
        let health = health();
        assert_eq!(health.answer("/readyz/election", "").0, StatusCode::OK);
        assert_eq!(health.answer("/readyz/caches/", "").0, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(health.answer("/readyz", "exclude=caches"), (StatusCode::OK, "ok".to_owned()));
        assert_eq!(health.answer("/readyz/nothing", "").0, StatusCode::NOT_FOUND);
    }

    #[test]
    fn a_check_that_stands_apart_is_only_asked_alone() {
        let health = health();
        health.readiness_apart("caches");
        assert_eq!(health.answer("/readyz", "").0, StatusCode::OK);
        assert_eq!(health.answer("/readyz/caches", "").0, StatusCode::INTERNAL_SERVER_ERROR);
    }

    #[test]
    fn healthy_is_ok_and_verbose_tells_more() {
        let health = health();
        assert_eq!(health.answer("/healthz", ""), (StatusCode::OK, "ok".to_owned()));
        assert_eq!(
            health.answer("/healthz", "verbose"),
            (StatusCode::OK, "[+]ping ok\nhealthz check passed\n".to_owned())
        );
        assert_eq!(health.answer("/elsewhere", "").0, StatusCode::NOT_FOUND);
    }
}
