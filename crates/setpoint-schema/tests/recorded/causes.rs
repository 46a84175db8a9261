use serde_json::{Value, json};
use setpoint_schema::FieldError;

/// The causes of a Status as they were recorded: `[field, reason, message]`, sorted.
pub(crate) fn causes(errors: &[FieldError]) -> Value {
    let mut causes: Vec<[String; 3]> = errors
        .iter()
        .map(|error| [error.path.to_string(), error.reason().to_string(), error.cause_message()])
        .collect();
    causes.sort_unstable();
    json!(causes)
}
