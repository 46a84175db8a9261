//! `matches`: regular expressions are compiled once, since a loop may look for the same one in a thousand texts.

use std::collections::HashMap;
use std::sync::LazyLock;

use kube_cel::cel::ExecutionError;
use parking_lot::Mutex;
use regex::Regex;

/// How many are kept.
const MOST: usize = 256;

static KNOWN: LazyLock<Mutex<HashMap<String, Regex>>> = LazyLock::new(Mutex::default);

/// Whether some part of `text` fits `pattern`.
pub(super) fn matches(text: &str, pattern: &str) -> Result<bool, ExecutionError> {
    if let Some(known) = KNOWN.lock().get(pattern).cloned() {
        return Ok(known.is_match(text));
    }
    let compiled = Regex::new(pattern).map_err(|problem| {
        ExecutionError::function_error("matches", format!("'{pattern}' not a valid regex:\n{problem}"))
    })?;
    let mut known = KNOWN.lock();
    if known.len() >= MOST {
        known.clear();
    }
    known.insert(pattern.to_owned(), compiled.clone());
    drop(known);
    Ok(compiled.is_match(text))
}
