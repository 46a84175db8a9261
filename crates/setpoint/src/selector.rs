use serde_json::Value;

use crate::store::Member;

/// Which objects of a kind are watched: label and field selectors in the API server's own syntax.
/// The default selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector {
    labels: Option<String>,
    fields: Option<String>,
}

impl Selector {
    /// Everything.
    pub fn all() -> Self {
        Self::default()
    }

    /// By labels, such as `app=web,tier!=db,zone in (a, b),!legacy`.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    /// By fields, such as `spec.nodeName=n1`.
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.fields = Some(selector.into());
        self
    }

    pub(crate) fn label_selector(&self) -> Option<&str> {
        self.labels.as_deref().filter(|text| !text.trim().is_empty())
    }

    pub(crate) fn field_selector(&self) -> Option<&str> {
        self.fields.as_deref().filter(|text| !text.trim().is_empty())
    }

    /// Whether a written object is selected, as far as it can be told without the server. Fields are looked
    /// up under their path, as the built-in kinds and the selectable fields of custom ones mean them.
    pub(crate) fn matches(&self, object: &Value) -> Member {
        let mut member = Member::Yes;
        if let Some(selector) = self.label_selector() {
            let labels = object.pointer("/metadata/labels");
            let label = |key: &str| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str);
            match matches(selector, label) {
                Some(true) => {}
                Some(false) => return Member::No,
                None => member = Member::Unknown,
            }
        }
        if let Some(selector) = self.field_selector() {
            match fields_match(selector, object) {
                Some(true) => {}
                Some(false) => return Member::No,
                None => member = Member::Unknown,
            }
        }
        member
    }
}

/// Evaluates a selector; `None` if it cannot be read.
fn matches<'a>(selector: &str, value: impl Fn(&str) -> Option<&'a str>) -> Option<bool> {
    let mut all = true;
    for term in terms(selector) {
        all &= term_matches(term.trim(), &value)?;
    }
    Some(all)
}

/// Evaluates a field selector: terms with `=`, `==` and `!=` only. `None` if it cannot be read, or if the
/// object lacks a field whose zero value the server may see there: `spec.unschedulable=false` selects nodes
/// without that field.
fn fields_match(selector: &str, object: &Value) -> Option<bool> {
    let mut all = Some(true);
    for term in terms(selector) {
        let (path, wanted, equal) = match term.split_once("!=") {
            Some((path, wanted)) => (path, wanted.trim(), false),
            None => {
                term.split_once("==").or_else(|| term.split_once('=')).map(|(p, w)| (p, w.trim(), true))?
            }
        };
        let matches = match object.pointer(&format!("/{}", path.trim().replace('.', "/"))) {
            Some(Value::String(text)) => Some(text == wanted),
            Some(Value::Bool(flag)) => Some(flag.to_string() == wanted),
            Some(Value::Number(number)) => Some(number.to_string() == wanted),
            Some(Value::Array(_) | Value::Object(_)) => None,
            None | Some(Value::Null) if matches!(wanted, "false" | "0") => None,
            None | Some(Value::Null) => Some(wanted.is_empty()),
        };
        match matches {
            Some(matches) if matches != equal => return Some(false),
            Some(_) => {}
            None => all = None,
        }
    }
    all
}

/// The selector split at the commas outside parentheses.
fn terms(selector: &str) -> Vec<&str> {
    let (mut depth, mut start, mut terms) = (0_u32, 0, Vec::new());
    for (at, character) in selector.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                terms.push(&selector[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&selector[start..]);
    terms
}

fn term_matches<'a>(term: &str, value: &impl Fn(&str) -> Option<&'a str>) -> Option<bool> {
    let get = |key: &str| value(key.trim());
    if let Some(open) = term.find('(') {
        let values: Vec<&str> = term[open + 1..].strip_suffix(')')?.split(',').map(str::trim).collect();
        let mut words = term[..open].split_whitespace();
        let value = get(words.next()?);
        return match words.next()? {
            "in" => Some(value.is_some_and(|value| values.contains(&value))),
            "notin" => Some(!value.is_some_and(|value| values.contains(&value))),
            _ => None,
        };
    }
    if let Some((key, value)) = term.split_once("!=") {
        return Some(get(key) != Some(value.trim()));
    }
    if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return Some(get(key) == Some(value.trim()));
    }
    if let Some(key) = term.strip_prefix('!') {
        return Some(get(key).is_none());
    }
    if term.is_empty() || term.contains(['<', '>', ' ']) { None } else { Some(get(term).is_some()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_match_as_the_server_does() {
        let object = json!({ "metadata": { "name": "p", "labels": { "app": "web", "zone": "a" } },
            "spec": { "nodeName": "n1", "paused": true, "ports": [] } });
        for (selector, expected) in [
            ("app=web", Member::Yes),
            ("app==web,zone in (a, b)", Member::Yes),
            ("app!=web", Member::No),
            ("tier!=db", Member::Yes),
            ("zone notin (a,b)", Member::No),
            ("tier notin (a,b)", Member::Yes),
            ("app", Member::Yes),
            ("!app", Member::No),
            ("!tier,app", Member::Yes),
            ("cpu>4", Member::Unknown),
        ] {
            assert_eq!(Selector::all().labels(selector).matches(&object), expected, "{selector}");
        }
        for (selector, expected) in [
            ("spec.nodeName=n1", Member::Yes),
            ("spec.nodeName=", Member::No),
            ("status.phase!=Running,metadata.name=p", Member::Yes),
            ("spec.paused=true", Member::Yes),
            ("spec.paused!=true", Member::No),
            // The server's zero value of a field that the object lacks.
            ("spec.unschedulable=false", Member::Unknown),
            ("spec.unschedulable=true", Member::No),
            ("spec.unschedulable=false,metadata.name=q", Member::No),
            ("spec.ports=80", Member::Unknown),
            ("metadata.name", Member::Unknown),
        ] {
            assert_eq!(Selector::all().fields(selector).matches(&object), expected, "{selector}");
        }
    }
}
