use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::seconds;

type Labels = Vec<(&'static str, String)>;

/// Upper bounds of request times in seconds, as client-go's adapter in component-base has them.
const REQUEST_BUCKETS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// Upper bounds of bodies in bytes, as client-go's adapter has them.
const SIZE_BUCKETS: [f64; 11] =
    [64.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0];

/// What the client stack reports. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ClientMetrics {
    requests: Family<Labels, Counter>,
    durations: Family<Labels, Histogram, fn() -> Histogram>,
    retries: Family<Labels, Counter>,
    request_sizes: Family<Labels, Histogram, fn() -> Histogram>,
    response_sizes: Family<Labels, Histogram, fn() -> Histogram>,
}

impl ClientMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let this = Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(REQUEST_BUCKETS)),
            retries: Family::default(),
            request_sizes: Family::new_with_constructor(|| Histogram::new(SIZE_BUCKETS)),
            response_sizes: Family::new_with_constructor(|| Histogram::new(SIZE_BUCKETS)),
        };
        registry.register(
            "rest_client_requests",
            "Requests to the API server by status code, method and host",
            this.requests.clone(),
        );
        registry.register(
            "rest_client_request_duration_seconds",
            "Time of a request to the API server, with its retries",
            this.durations.clone(),
        );
        registry.register(
            "rest_client_request_retries",
            "Requests to the API server that were sent again",
            this.retries.clone(),
        );
        registry.register(
            "rest_client_request_size_bytes",
            "Bodies of requests to the API server",
            this.request_sizes.clone(),
        );
        registry.register(
            "rest_client_response_size_bytes",
            "Bodies of the API server's answers",
            this.response_sizes.clone(),
        );
        this
    }

    /// A request ended; `code` is `None` when there was no answer, which client-go counts as `<error>`.
    pub(crate) fn request(&self, code: Option<u16>, method: &str, host: &str, elapsed: Option<Duration>) {
        self.requests.get_or_create(&by_code(code, "method", method, host)).inc();
        if let Some(elapsed) = elapsed {
            let labels = vec![("verb", method.to_owned()), ("host", host.to_owned())];
            self.durations.get_or_create(&labels).observe(seconds(elapsed));
        }
    }

    /// How many bytes a request had, and its answer; `None` for streams.
    pub(crate) fn sizes(&self, method: &str, host: &str, request: Option<u64>, response: Option<u64>) {
        let labels = vec![("verb", method.to_owned()), ("host", host.to_owned())];
        if let Some(bytes) = request {
            self.request_sizes.get_or_create(&labels).observe(bytes as f64);
        }
        if let Some(bytes) = response {
            self.response_sizes.get_or_create(&labels).observe(bytes as f64);
        }
    }

    /// A request is sent again after an answer of `code`.
    pub(crate) fn retried(&self, code: Option<u16>, method: &str, host: &str) {
        self.retries.get_or_create(&by_code(code, "verb", method, host)).inc();
    }
}

fn by_code(code: Option<u16>, method_label: &'static str, method: &str, host: &str) -> Labels {
    let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
    vec![("code", code), (method_label, method.to_owned()), ("host", host.to_owned())]
}
