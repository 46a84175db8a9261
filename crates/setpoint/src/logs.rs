//! Logs on standard error, plain for people or JSON for collectors, through `tracing`.
//!
//! Every line of a reconcile carries the fields of its span: controller, namespace, name and reconcile id. In
//! JSON they stand beside the message under the keys of controller-runtime's logs (`ts`, `level`, `logger`,
//! `msg`), so that queries for those find ours too.

use std::collections::BTreeMap;
use std::fmt;
use std::io::IsTerminal;

use clap::ValueEnum;
use serde_json::Value;
use setpoint_clock::Clock;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormattedFields};
use tracing_subscriber::registry::{LookupSpan, Scope};

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people; with colours on a terminal.
    #[default]
    Plain,
    /// One JSON object a line.
    Json,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The level is none.
    #[error(
        "log level {level:?}: {reason}; give one of error, warn, info, debug, trace, or directives such as info,setpoint=debug"
    )]
    Level {
        /// What was given.
        level: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Sends this process's log lines of `level` and above to standard error. The one thing that is global in a
/// process: where a subscriber is set already, it stays and nothing happens.
///
/// `level` is a level or a list of directives as in `RUST_LOG`. A bare level leaves out the chatter of the
/// HTTP libraries below `info`.
///
/// # Errors
/// If `level` cannot be read.
pub fn init_logs(level: &str, format: LogFormat, clock: Clock) -> Result<(), LogError> {
    let filter = filter(level)?;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // An error means that a subscriber is there: an embedding program has its own.
    let _ = match format {
        LogFormat::Plain => tracing::subscriber::set_global_default(
            subscriber.with_timer(ClockTime(clock)).with_ansi(std::io::stderr().is_terminal()).finish(),
        ),
        LogFormat::Json => tracing::subscriber::set_global_default(
            subscriber.fmt_fields(JsonFields::new()).event_format(JsonLines { clock }).finish(),
        ),
    };
    Ok(())
}

/// The same beside another layer, which has a filter of its own.
#[cfg(feature = "otlp")]
pub(crate) fn init_logs_beside<L>(
    level: &str,
    format: LogFormat,
    clock: Clock,
    beside: L,
) -> Result<(), LogError>
where
    L: tracing_subscriber::Layer<tracing_subscriber::Registry> + Send + Sync + 'static,
{
    use tracing_subscriber::fmt::layer;
    use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};

    let filter = filter(level)?;
    let registry = tracing_subscriber::registry().with(beside);
    let lines = layer().with_writer(std::io::stderr);
    let _ = match format {
        LogFormat::Plain => {
            let lines = lines.with_timer(ClockTime(clock)).with_ansi(std::io::stderr().is_terminal());
            tracing::subscriber::set_global_default(registry.with(lines.with_filter(filter)))
        }
        LogFormat::Json => {
            let lines = lines.fmt_fields(JsonFields::new()).event_format(JsonLines { clock });
            tracing::subscriber::set_global_default(registry.with(lines.with_filter(filter)))
        }
    };
    Ok(())
}

fn filter(level: &str) -> Result<EnvFilter, LogError> {
    let bad = |reason: String| LogError::Level { level: level.to_owned(), reason };
    let bare = !level.contains(['=', ',']);
    if bare && level.parse::<tracing::level_filters::LevelFilter>().is_err() {
        return Err(bad("no such level".to_owned()));
    }
    let directives = if bare {
        // kube's own layer reports failures at the error level which our stack retries or returns.
        format!(
            "{level},hyper=info,hyper_util=info,h2=info,tower=info,rustls=info,kube_client=info,kube_client::client::builder=off"
        )
    } else {
        level.to_owned()
    };
    EnvFilter::try_new(directives).map_err(|error| bad(error.to_string()))
}

/// The operator's clock as the time of log lines: RFC 3339 in UTC with milliseconds.
struct ClockTime(Clock);

impl FormatTime for ClockTime {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        write!(writer, "{:.3}", self.0.now())
    }
}

/// One JSON object for each event, span fields flattened into it; inner spans win over outer ones, and the
/// event over both.
struct JsonLines {
    clock: Clock,
}

impl<S> FormatEvent<S, JsonFields> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        for span in context.event_scope().into_iter().flat_map(Scope::from_root) {
            let extensions = span.extensions();
            let written = extensions.get::<FormattedFields<JsonFields>>();
            let parsed = written.and_then(|text| serde_json::from_str::<BTreeMap<String, Value>>(text).ok());
            fields.0.extend(parsed.into_iter().flatten());
        }
        event.record(&mut fields);
        let message = fields.0.remove("message").unwrap_or_default();
        let metadata = event.metadata();
        let level = metadata.level().as_str().to_lowercase();
        write!(
            writer,
            r#"{{"ts":"{:.3}","level":"{level}","logger":{},"msg":{message}"#,
            self.clock.now(),
            Value::from(metadata.target()),
        )?;
        for (key, value) in fields.0 {
            write!(writer, ",{}:{value}", Value::from(key))?;
        }
        writeln!(writer, "}}")
    }
}

#[derive(Default)]
struct Fields(BTreeMap<String, Value>);

impl Fields {
    fn set(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use jiff::Timestamp;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn json_lines(level: &str, log: impl FnOnce()) -> Vec<Value> {
        let buffer = Buffer::default();
        let target = buffer.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(filter(level).unwrap())
            .with_writer(move || target.clone())
            .fmt_fields(JsonFields::new())
            .event_format(JsonLines { clock: Clock::at(Timestamp::UNIX_EPOCH) })
            .finish();
        tracing::subscriber::with_default(subscriber, log);
        let bytes = buffer.0.lock().clone();
        String::from_utf8(bytes).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_line_has_the_fields_of_its_spans() {
        let mut lines = json_lines("info", || {
            let reconcile =
                tracing::info_span!("reconcile", controller = "website", namespace = "a", name = "web");
            let _guard = reconcile.enter();
            let _step = tracing::info_span!("step", name = "config").entered();
            tracing::info!(bytes = 3, changed = true, note = "a \"quoted\"\nline", "applied {}", "it");
        });
        let ts = lines[0].as_object_mut().unwrap().remove("ts").unwrap();
        assert!(ts.as_str().unwrap().starts_with("1970-01-01T00:00:0"), "{ts}");
        assert_eq!(
            lines,
            [json!({
                "level": "info",
                "logger": "setpoint::logs::tests",
                "msg": "applied it",
                "controller": "website",
                "namespace": "a",
                "name": "config",
                "bytes": 3,
                "changed": true,
                "note": "a \"quoted\"\nline",
            })]
        );
    }

    #[test]
    fn a_bare_level_quiets_the_libraries() {
        let lines = json_lines("debug", || {
            tracing::debug!(target: "hyper::client", "chatter");
            tracing::error!(target: "kube_client::client::builder", "failed with status 503");
            tracing::debug!(target: "redis_operator", "decided");
        });
        assert_eq!(lines.iter().map(|line| &line["msg"]).collect::<Vec<_>>(), ["decided"]);
    }

    #[test]
    fn a_bad_level_is_named() {
        let error = filter("loud").unwrap_err().to_string();
        assert!(error.starts_with("log level \"loud\": no such level; give one of error"), "{error}");
        assert!(filter("info,setpoint=debug").is_ok());
        assert!(filter("info,setpoint=loud").is_err());
    }
}
