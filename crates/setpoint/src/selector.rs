use std::collections::BTreeMap;

/// Which objects of a kind are watched: label and field selectors in the API server's own syntax.
/// The default selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector {
    labels: Option<String>,
    fields: Option<String>,
}

/// Whether an object is selected, as far as it can be told without the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    Yes,
    No,
    /// A field selector that only the server can evaluate.
    Unknown,
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

    pub(crate) fn matches(&self, labels: &BTreeMap<String, String>) -> Match {
        if let Some(selector) = self.label_selector() {
            match labels_match(selector, labels) {
                Some(true) => {}
                Some(false) => return Match::No,
                None => return Match::Unknown,
            }
        }
        if self.field_selector().is_some() { Match::Unknown } else { Match::Yes }
    }
}

/// Evaluates a label selector; `None` if it cannot be read, which the server will complain about.
fn labels_match(selector: &str, labels: &BTreeMap<String, String>) -> Option<bool> {
    let mut all = true;
    for term in terms(selector) {
        all &= term_matches(term.trim(), labels)?;
    }
    Some(all)
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

fn term_matches(term: &str, labels: &BTreeMap<String, String>) -> Option<bool> {
    let get = |key: &str| labels.get(key.trim()).map(String::as_str);
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
    use super::*;

    #[test]
    fn label_selectors_match_as_the_server_does() {
        let labels: BTreeMap<String, String> =
            [("app", "web"), ("zone", "a")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        for (selector, expected) in [
            ("app=web", Match::Yes),
            ("app==web,zone in (a, b)", Match::Yes),
            ("app!=web", Match::No),
            ("tier!=db", Match::Yes),
            ("zone notin (a,b)", Match::No),
            ("tier notin (a,b)", Match::Yes),
            ("app", Match::Yes),
            ("!app", Match::No),
            ("!tier,app", Match::Yes),
            ("cpu>4", Match::Unknown),
        ] {
            assert_eq!(Selector::all().labels(selector).matches(&labels), expected, "{selector}");
        }
        assert_eq!(Selector::all().fields("spec.nodeName=a").matches(&labels), Match::Unknown);
    }
}
