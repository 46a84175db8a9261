use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use setpoint_clock::Clock;

/// Puts a condition of type `kind` into `conditions`, sorted by type. The transition time changes only when
/// the status does, so that an unchanged condition stays byte for byte the same.
///
/// `status` is `True`, `False` or `Unknown`; `reason` is CamelCase; `generation` is the object's generation
/// that was looked at.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    clock: &Clock,
    generation: Option<i64>,
    (kind, status): (&str, &str),
    reason: &str,
    message: impl Into<String>,
) {
    let place = conditions.binary_search_by(|condition| condition.type_.as_str().cmp(kind));
    let place = place.or_else(|_| {
        conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        conditions.binary_search_by(|condition| condition.type_.as_str().cmp(kind))
    });
    let previous = place.ok().map(|at| &conditions[at]).filter(|previous| previous.status == status);
    let condition = Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.into(),
        observed_generation: generation,
        last_transition_time: previous.map_or_else(
            // Kubernetes keeps whole seconds.
            || Time(jiff::Timestamp::from_second(clock.now().as_second()).unwrap_or_else(|_| clock.now())),
            |previous| previous.last_transition_time.clone(),
        ),
    };
    match place {
        Ok(at) => conditions[at] = condition,
        Err(at) => conditions.insert(at, condition),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn transition_times_change_only_on_transitions() {
        let clock = Clock::at(Timestamp::UNIX_EPOCH);
        let mut conditions = Vec::new();
        set_condition(&mut conditions, &clock, Some(1), ("Ready", "False"), "Starting", "");
        tokio::time::advance(Duration::from_secs(10)).await;
        set_condition(&mut conditions, &clock, Some(2), ("Ready", "False"), "Starting", "still");
        set_condition(&mut conditions, &clock, Some(2), ("Healthy", "True"), "Fine", "");
        assert_eq!(conditions.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(), ["Healthy", "Ready"]);
        assert_eq!(conditions[1].last_transition_time.0.as_second(), 0);
        set_condition(&mut conditions, &clock, Some(2), ("Ready", "True"), "Up", "");
        assert_eq!(conditions[1].last_transition_time.0.as_second(), 10);
    }
}
